"""oneDNN's objects as Python's: memory descriptors, attributes and primitives, each let go with its last
reference.

In: shapes, strides in elements, numpy's type names. Out: objects whose `handle` the library takes.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from ...records import cached_property, dataclass
from . import binding
from .binding import Library, dims


class Desc:
    """A memory descriptor: shape, type and layout. `strides`: in elements, None where the layout is blocked
    or still open."""

    __slots__ = ("lib", "handle", "shape", "dtype", "strides", "size", "__weakref__")

    def __init__(self, lib: Library, handle: int, shape: tuple[int, ...], dtype: str,
                 strides: tuple[int, ...] | None) -> None:
        self.lib, self.handle = lib, handle
        self.shape, self.dtype, self.strides = shape, dtype, strides
        self.size = lib.size(handle)

    def __del__(self) -> None:
        if self.handle:
            self.lib.free["memory_desc"](self.handle)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Desc) and (self is other or self.lib.equal(self.handle, other.handle))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        lying = "blocked" if self.strides is None else list(self.strides)
        return f"{self.dtype}{list(self.shape)} {lying}"


def c_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of a dense array in C order, in elements."""
    out, at = [0] * len(shape), 1
    for i in range(len(shape) - 1, -1, -1):
        out[i] = at
        at *= max(shape[i], 1)
    return tuple(out)


def strided(lib: Library, shape: Sequence[int], dtype: str, strides: Sequence[int] | None = None) -> Desc:
    """A layout by strides, C order where none are given; a scalar counts as one element."""
    given = tuple(shape) or (1,)
    lying = c_strides(given) if not strides else tuple(strides)
    handle = lib.make("memory_desc_create_with_strides", len(given), dims(given), binding.TYPES[dtype],
                      dims(lying))
    return Desc(lib, handle, given, dtype, lying)


def open_layout(lib: Library, shape: Sequence[int], dtype: str) -> Desc:
    """A layout that oneDNN is to choose."""
    given = tuple(shape) or (1,)
    handle = lib.make("memory_desc_create_with_tag", len(given), dims(given), binding.TYPES[dtype],
                      binding.ANY)
    return Desc(lib, handle, given, dtype, None)


def inner(whole: Desc, shape: Sequence[int], offsets: Sequence[int]) -> Desc:
    """The layout of a box inside `whole`, whose memory begins where `whole`'s does. Raises Refused
    where the box does not begin at a block."""
    handle = whole.lib.make("memory_desc_create_submemory", whole.handle, dims(shape), dims(offsets))
    return Desc(whole.lib, handle, tuple(shape), whole.dtype, None)


@dataclass(frozen=True, slots=True)
class Scaling:
    """That argument `arg` has scales or zero points, one in all where `mask` is 0, else one for each index of
    the dimensions that are bits of `mask`."""

    arg: int
    kind: str
    mask: int = 0


@dataclass(frozen=True, slots=True)
class Sum:
    """A post-op: what the destination held before, times `scale`, is added."""

    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Eltwise:
    """A post-op: a function of one number."""

    name: str
    alpha: float = 0.0
    beta: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Binary:
    """A post-op: a function of the result and of a tensor of layout `desc`, which broadcasts to it."""

    name: str
    desc: Desc


PostOp = Sum | Eltwise | Binary


class Attr:
    """How a primitive is to compute beyond what it is: post-ops in their order, scales, zero points.
    Scratchpads are the caller's, so that a primitive may run in several threads at once."""

    def __init__(self, lib: Library, post_ops: Sequence[PostOp] = (),
                 scalings: Sequence[Scaling] = ()) -> None:
        self.lib = lib
        self.handle = lib.make("primitive_attr_create")
        lib.call("primitive_attr_set_scratchpad_mode", self.handle, 1)
        for scaling in scalings:
            lib.call(f"primitive_attr_set_{scaling.kind}_mask", self.handle, scaling.arg, scaling.mask)
        if post_ops:
            self._append(post_ops)

    def _append(self, post_ops: Sequence[PostOp]) -> None:
        lib = self.lib
        made = lib.make("post_ops_create")
        try:
            for op in post_ops:
                if isinstance(op, Sum):
                    lib.call("post_ops_append_sum", made, op.scale, 0, 0)
                elif isinstance(op, Eltwise):
                    lib.call("post_ops_append_eltwise", made, binding.ELTWISE[op.name], op.alpha, op.beta)
                else:
                    lib.call("post_ops_append_binary", made, binding.BINARY[op.name], op.desc.handle)
            lib.call("primitive_attr_set_post_ops", self.handle, made)
        finally:
            lib.free["post_ops"](made)

    def __del__(self) -> None:
        if getattr(self, "handle", 0):
            self.lib.free["primitive_attr"](self.handle)


class Primitive:
    """Compiled code for one operation on fixed layouts. `made_by`: the function that makes its descriptor;
    the rest are its arguments, with objects in the place of handles; `rather`: the beginning of the name of
    an implementation that is taken before oneDNN's first, if it is there."""

    def __init__(self, lib: Library, made_by: str, *arguments: Any, rather: str = "") -> None:
        self.lib = lib
        given = [getattr(a, "handle", a) for a in arguments]
        self._desc = lib.make(f"{made_by}_primitive_desc_create", *given)
        if rather and not lib.turn(self._desc, rather):
            lib.free["primitive_desc"](self._desc)
            self._desc = lib.make(f"{made_by}_primitive_desc_create", *given)
        try:
            self.handle = lib.make("primitive_create", self._desc)
        except BaseException:
            lib.free["primitive_desc"](self._desc)
            raise
        self.kernel = f"{made_by.removesuffix('_forward')} {lib.implementation(self._desc)}"
        weakref.finalize(self, _let_go, lib, self.handle, self._desc).atexit = False

    def desc(self, arg: int, shape: Sequence[int], dtype: str) -> Desc:
        """The layout that argument `arg` has to have, whose shape and type are given."""
        what, index = binding.MD_OF.get(arg, (binding.EXEC_ARG, arg))
        found = self.lib.md(self._desc, what, index)
        shape = tuple(shape) or (1,)
        for strides in (c_strides(shape), last_strides(shape)):
            plain = strided(self.lib, shape, dtype, strides)
            if self.lib.equal(found, plain.handle):
                return plain
        return Desc(self.lib, self.lib.make("memory_desc_clone", found), shape, dtype, None)

    @cached_property
    def scratchpad(self) -> Desc | None:
        """What it wants to scribble on; None where it needs nothing."""
        found = self.lib.md(self._desc, *binding.MD_OF[binding.SCRATCHPAD])
        if not found or not self.lib.size(found):
            return None
        size = self.lib.size(found)
        return Desc(self.lib, self.lib.make("memory_desc_clone", found), (size,), "uint8", None)


def _let_go(lib: Library, handle: int, desc: int) -> None:
    lib.free["primitive"](handle)
    lib.free["primitive_desc"](desc)


def last_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides of a dense array whose second dimension varies fastest."""
    if len(shape) < 3:
        return c_strides(shape)
    moved = c_strides((shape[0], *shape[2:], shape[1]))
    return (moved[0], moved[-1], *moved[1:-1])


def regrouped(shape: Sequence[int], strides: Sequence[int], new: Sequence[int]) -> tuple[int, ...] | None:
    """The strides by which the elements of `shape` and `strides` are seen in the shape `new`, which has as
    many; None where no strides do it."""
    old = [(d, s) for d, s in zip(shape, strides, strict=True) if d != 1]
    rest = [i for i, d in enumerate(new) if d != 1]
    made = [1] * len(new)
    while rest:
        group, (given, step) = [rest.pop(0)], old.pop(0)
        size = new[group[0]]
        while size != given:
            if size < given:
                group.append(rest.pop(0))
                size *= new[group[-1]]
            elif step == old[0][0] * old[0][1]:
                given *= old[0][0]
                step = old.pop(0)[1]
            else:
                return None
        for i in reversed(group):
            made[i], step = step, step * new[i]
    return tuple(made)


class Memory:
    """A memory object: a layout at an address, which `move` changes."""

    __slots__ = ("lib", "handle", "desc")

    def __init__(self, desc: Desc, address: int) -> None:
        self.lib, self.desc = desc.lib, desc
        self.handle = self.lib.make("memory_create", desc.handle, self.lib.engine, address)

    def __del__(self) -> None:
        if getattr(self, "handle", 0):
            self.lib.free["memory"](self.handle)
