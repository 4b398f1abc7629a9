"""A part of a graph, for concrete shapes, to a list of steps: oneDNN's primitives with their arguments.

Nodes are walked once. A rule asks for its inputs, which may lie in any layout, and makes a primitive; as many
of the nodes behind it as oneDNN takes become its post-ops (`fuse.finish`). Reorders are written where a
primitive wants another layout than a value has; those of constants run right away, once for the part. A node
oneDNN has no code for at these shapes becomes a step of its definition, and `why` says so.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ...errors import EPFail
from ...ir import ElementType, No, Node, Value, in_memory
from ...limits import bounded
from ...lowering.interpret import Reference, by_definition
from ...lowering.shaped_part import Unfit
from ...lowering.tensor import Buffer
from .binding import DST, MULTIPLE_SRC, SCALES, SRC, ZERO_POINTS, Library, Refused
from .constants import Constants
from .generated import GeneratedCode
from .objects import (
    Attr,
    Desc,
    PostOp,
    Primitive,
    Scaling,
    c_strides,
    last_strides,
    open_layout,
    regrouped,
    strided,
)
from .step import RULES, DnnlStep
from .tensor import Argument, Joined, Quantized, Tensor

_STATUS = np.zeros(2, np.float32)
"""The bytes of a status, as a type that oneDNN has."""


def _in_range(status: np.ndarray) -> tuple[()]:
    if status.view(np.int64)[0]:
        raise Unfit("a convolution met numbers that are not finite, or beyond what its transform is for")
    return ()


class Lowering:
    """One walk over a part's nodes. `inputs`: the arrays' shapes and numpy type names, by input value.
    `outputs`: where the part's outputs are at the end. `why`: per node left to its definition, why.
    `winograd`: whether convolutions may be computed so. `looked`: elements of inputs, by value."""

    def __init__(self, lib: Library, nodes: Sequence[Node],
                 inputs: Sequence[tuple[Value, tuple[int, ...], str]], outputs: Sequence[Value],
                 constants: Constants, reference: Reference, winograd: bool = False,
                 looked: Mapping[Value, np.ndarray] | None = None) -> None:
        self.lib, self.constants, self.reference = lib, constants, reference
        self.winograd, self.looked = winograd, looked or {}
        self.steps: list[DnnlStep] = []
        self.env: dict[Value, Tensor | Quantized | Joined] = {}
        self.outputs: dict[Value, Tensor] = {}
        self.why: dict[Node, str] = {}
        self.finals = {v: i for i, v in enumerate(outputs)}
        self.nodes = frozenset(nodes)
        self.done: set[Node] = set()
        self.left: dict[Value, int] = dict.fromkeys(outputs, 1)
        self.sharing: dict[int, list[Value]] = {}
        self.copies: dict[int, list[tuple[Tensor, Tensor]]] = {}
        self.rooms: dict[str, Buffer] = {}
        self.looked_at: list[tuple[Tensor, Tensor]] = []
        self.node: Node = nodes[0]
        for i, (value, shape, dtype) in enumerate(inputs):
            if value not in self.looked:
                self.bind(value, Tensor(shape, strided(lib, shape, dtype), Buffer("input", 0, i)))
        for node in nodes:
            for v in node.inputs:
                if v is not None:
                    self.left[v] = self.left.get(v, 0) + 1
        for node in nodes:
            if node not in self.done:
                self.node = node
                self._lower(node)
        for v in outputs:
            if v not in self.outputs:
                self.node = v.node or nodes[-1]
                found = self.tensor(v)
                self.outputs[v] = target = self.output(v, found.shape, found.dtype)
                self.reorder(found, target)
        self._prune()
        self._look_at_status()

    # what a rule asks

    def shape(self, value: Value | None) -> tuple[int, ...]:
        """The shape of a value that is there."""
        assert value is not None
        found = self.env.get(value)
        if found is None:
            return tuple(self.looked[value].shape if value in self.looked else value.const.shape)
        return found.tensor.shape if isinstance(found, Quantized) else found.shape

    def known(self, value: Value | None) -> np.ndarray | None:
        """The elements of a constant, or of an input that was looked at; None for what is neither."""
        if value is not None and value in self.looked:
            return self.looked[value]
        if value is None or value in self.env or value.const is None:
            return None
        return np.asarray(in_memory(value.const))

    def there(self, value: Value | None) -> bool:
        """Whether a value has been computed, or is constant."""
        return value is not None and (value in self.env or value.const is not None)

    def quantized(self, value: Value | None) -> Quantized | None:
        """A value that is kept as integers, as that."""
        found = self.env.get(value) if value is not None else None
        return found if isinstance(found, Quantized) else None

    def joined(self, value: Value | None) -> tuple[Tensor, ...]:
        """The parts of a value that lies in several tensors, none for every other value."""
        found = self.env.get(value) if value is not None else None
        return found.parts if isinstance(found, Joined) else ()

    def tensor(self, value: Value | None) -> Tensor:
        """A value in memory, in whatever layout it has."""
        assert value is not None
        found = self.env.get(value)
        if isinstance(found, Quantized):
            found = self._dequantized(value, found)
        elif isinstance(found, Joined):
            found = self.concatenated(found.parts, 1)
            self.bind(value, found)
        return self.constants.stored(value) if found is None else found

    def constant(self, key: Any, make: Callable[[], np.ndarray]) -> Tensor:
        """A constant that is computed once for the part."""
        return self.constants.made(key, make)

    def number(self, value: float, dtype: str = "float32") -> Tensor:
        """A constant of one element, as scales and zero points are given."""
        return self.constant(("number", value, dtype), lambda: np.array([value], dtype))

    def plain(self, t: Tensor) -> Tensor:
        """`t`, or a copy of it, dense in C order. Dimensions of one have the strides of that order as well: a
        primitive may take them for the length of a row."""
        if t.plain:
            return t if t.desc.strides == c_strides(t.desc.shape) else self.view(t, t.shape)
        return self.laid(t, strided(self.lib, t.shape, t.dtype))

    def strided(self, t: Tensor) -> Tensor:
        """`t`, or a copy of it, in a layout that strides describe."""
        return t if t.desc.strides is not None else self.plain(t)

    def dense(self, t: Tensor) -> Tensor:
        """`t`, or a copy of it, without gaps: in C order, with its channels last, or blocked."""
        lying = t.desc.strides
        if lying is None or t.plain or lying == last_strides(t.desc.shape):
            return t
        return self.plain(t)

    def laid(self, t: Tensor, desc: Desc) -> Tensor:
        """`t`, or a copy of it, that lies as `desc` says; a constant is copied once for the part."""
        if t.desc == desc:
            return t
        if t.buffer.kind == "const":
            return self.constants.laid(t, desc)
        for source, copy in self.copies.setdefault(id(t.buffer), []):
            if source.offset == t.offset and source.desc == t.desc and copy.desc == desc:
                return copy
        made = self.new(t.shape, desc)
        self.reorder(t, made)
        self.copies[id(t.buffer)].append((t, made))
        return made

    def view(self, t: Tensor, shape: Sequence[int], strides: Sequence[int] | None = None,
             offset: int = 0) -> Tensor:
        """Another shape over the same memory; `offset` in elements. Without strides `t` has to be plain."""
        desc = strided(self.lib, shape, t.dtype, strides or None)
        return Tensor(tuple(shape), desc, t.buffer, t.offset + offset * np.dtype(_numpy(t.dtype)).itemsize)

    def reshaped(self, t: Tensor, shape: Sequence[int]) -> Tensor:
        """`t` in another shape, copied to C order where it does not lie so."""
        return self.view(self.plain(t), shape)

    def regrouped(self, t: Tensor, shape: Sequence[int]) -> Tensor:
        """`t` in another shape, in the same memory where strides can say so, else copied to C order."""
        lying = None if t.desc.strides is None else regrouped(t.desc.shape, t.desc.strides, shape)
        return self.reshaped(t, shape) if lying is None else self.view(t, shape, lying)

    def as_it_lies(self, t: Tensor) -> tuple[Tensor, list[int]]:
        """`t` dense with its dimensions in the order they have in memory, and that order; copied to C order
        where it has gaps."""
        t = self.strided(t)
        assert t.desc.strides is not None
        lying = t.desc.strides
        order = sorted(range(len(t.shape)), key=lambda i: -lying[i])
        made = self.permuted(t, order)
        return (made, order) if made.plain else (self.plain(t), list(range(len(t.shape))))

    def permuted(self, t: Tensor, order: Sequence[int]) -> Tensor:
        """`t` with its dimensions in another order, in the same memory where strides can say so."""
        t = self.strided(t)
        assert t.desc.strides is not None
        lying = t.desc.strides
        return self.view(t, [t.shape[i] for i in order], [lying[i] for i in order])

    def new(self, shape: Sequence[int], desc: Desc) -> Tensor:
        """Memory of the arena. Raises where it passes the limits."""
        bounded((desc.size,), np.uint8)
        return Tensor(tuple(shape), desc, Buffer("arena", desc.size))

    def workspace(self, name: str, size: int) -> Tensor:
        """`size` float32s that all steps with the same `name` use, one after another, so that they stay in
        the cache: what a rule leaves there is for steps it writes at once."""
        desc = strided(self.lib, (size,), "float32")
        bounded((desc.size,), np.uint8)
        room = self.rooms.setdefault(name, Buffer("arena", 0))
        room.size = max(room.size, desc.size)
        return Tensor((size,), desc, room)

    def status(self) -> Tensor:
        """Where generated kernels say that numbers are outside the range they are for, 0 before the first:
        looked at when the part is done."""
        first = "status" not in self.rooms
        made = self.workspace("status", _STATUS.size)
        if first:
            self.steps.append(DnnlStep(self.node, (self.node,), "clear the status", [], [made], None,
                                   _STATUS.copy))
        return made

    def _look_at_status(self) -> None:
        status = self.rooms.get("status")
        touched = (t for step in self.steps for t in step.reads if t is not None and t.buffer is status)
        if (last := next(touched, None)) is not None:
            self.steps.append(DnnlStep(self.node, (self.node,), "look at the status", [], [], None, _in_range,
                                   [last]))

    def bind(self, value: Value | None, found: Tensor | Quantized | Joined) -> None:
        """Let `value` be `found`."""
        if value is None:
            return
        self.env[value] = found
        parts = found.parts if isinstance(found, Joined) else (
            found.tensor if isinstance(found, Quantized) else found,)
        for t in parts:
            self.sharing.setdefault(id(t.buffer), []).append(value)

    # steps

    def step(self, primitive: Primitive, args: Sequence[Argument], outs: Sequence[Tensor],
             nodes: Sequence[Node] = ()) -> None:
        """Append a primitive's execution, on behalf of `nodes`, the one at hand where none are given."""
        pad = primitive.scratchpad
        self.steps.append(DnnlStep(self.node, tuple(nodes) or (self.node,), primitive.kernel, list(args),
                               list(outs), primitive,
                               scratch=None if pad is None else self.new((pad.size,), pad)))

    def generate(self, name: str, code: GeneratedCode, reads: Sequence[Tensor], outs: Sequence[Tensor],
                 nodes: Sequence[Node] = ()) -> None:
        """Append a kernel of generated code."""
        self.steps.append(DnnlStep(self.node, tuple(nodes) or (self.node,), f"generated {name}", [],
                                   list(outs), reads=list(reads), code=code))

    def reorder(self, source: Tensor, target: Tensor, scalings: Sequence[Scaling] = (),
                args: Sequence[Argument] = (), post_ops: Sequence[PostOp] = ()) -> None:
        """Append a copy from one layout or type to another."""
        if source.size == 0:
            return
        engine = self.lib.engine
        made = Primitive(self.lib, "reorder", source.desc, engine, target.desc, engine,
                         Attr(self.lib, post_ops, scalings))
        self.step(made, [(SRC, source), (DST, target), *args], [target])

    def concatenated(self, parts: Sequence[Tensor], axis: int) -> Tensor:
        """The tensors one after another along a dimension, with channels last where all of them lie so."""
        parts = [p for p in parts if p.size]
        if len(parts) == 1:
            return parts[0]
        shape = list(parts[0].shape)
        shape[axis] = sum(p.shape[axis] for p in parts)
        dtype = parts[0].dtype
        open_ = any(p.desc.strides is None for p in parts)
        last = len(shape) > 2 and all(p.desc.strides is not None and p.desc.strides[1] == 1 for p in parts)
        target = strided(self.lib, shape, dtype, last_strides(shape)) if last else \
            (open_layout if open_ else strided)(self.lib, shape, dtype)
        handles = (ctypes.c_void_p * len(parts))(*[p.desc.handle for p in parts])
        made = Primitive(self.lib, "concat", self.lib.engine, target, len(parts), axis, handles,
                         Attr(self.lib))
        desc = made.desc(DST, shape, dtype) if open_ else target
        out = self.new(shape, desc)
        self.step(made, [*((MULTIPLE_SRC + i, p) for i, p in enumerate(parts)), (DST, out)], [out])
        return out

    def only_reader(self, value: Value) -> Node | None:
        """The one node of this part that reads `value`, once, where nobody else does."""
        if value in self.finals or len(value.uses) != 1:
            return None
        reader, count = next(iter(value.uses.items()))
        return reader if count == 1 and reader in self.nodes and reader not in self.done else None

    def _prune(self) -> None:
        """Drop steps whose results nobody reads: what a rule had written before it gave up."""
        needed = {id(t.buffer) for t in self.outputs.values()}
        kept = []
        for step in reversed(self.steps):
            if any(id(t.buffer) in needed for t in step.outs):
                kept.append(step)
                needed.update(id(t.buffer) for t in step.tensors())
        self.steps = kept[::-1]

    def output(self, value: Value, shape: Sequence[int], dtype: str) -> Tensor:
        """The caller's memory for one of the part's outputs."""
        return Tensor(tuple(shape), strided(self.lib, shape, dtype), Buffer("output", 0, self.finals[value]))

    def _dequantized(self, value: Value, found: Quantized) -> Tensor:
        """The real value of what is kept as integers."""
        source = found.tensor
        if source.buffer.kind == "const":
            arrays = [self.known(v) for v in found.node.inputs]
            made = self.constant(("real", id(value)), lambda: self.reference(found.node)(*arrays))
        else:
            made = self.new(source.shape, self._like(source.desc, "float32"))
            self.reorder(source, made, *self.scaled(found, SRC))
        self.env[value] = made
        self.sharing.setdefault(id(made.buffer), []).append(value)
        return made

    def scaled(self, found: Quantized, arg: int) -> tuple[list[Scaling], list[Argument]]:
        """The scale and zero point of a whole tensor as attributes of argument `arg`, and as arguments."""
        scalings, args = [Scaling(arg, "scales")], [(SCALES | arg, self.number(float(found.scale.item())))]
        if zero := int(found.zero.item()):
            scalings.append(Scaling(arg, "zero_points"))
            args.append((ZERO_POINTS | arg, self.number(zero, "int32")))
        return scalings, args

    def _like(self, desc: Desc, dtype: str) -> Desc:
        """A layout as `desc`'s for another type; C order where it is blocked."""
        return strided(self.lib, desc.shape, dtype, desc.strides)

    # nodes

    def read(self, node: Node) -> None:
        """`node` has been written: it needs its inputs no more."""
        self.done.add(node)
        for v in node.inputs:
            if v is not None:
                self.left[v] -= 1

    def _lower(self, node: Node) -> None:
        try:
            made = self._apply(node)
        except Refused as error:
            made = No(f"oneDNN {'.'.join(map(str, self.lib.version))} makes no primitive of it here: {error}")
        except EPFail as error:
            raise EPFail(error.text, node=node, found=", ".join(
                f"{v.name}: {v.elem.text if v.elem else '?'}{list(self.shape(v))}"
                for v in node.inputs if v is not None and self.there(v))) from error
        if isinstance(made, No):
            self.why[node] = made.reason
            self._by_reference(node, made.reason)
        elif made is not None:
            results = made if isinstance(made, tuple) else (made,)
            for value, result in zip(node.outputs, results, strict=False):
                if result is not None:
                    self.bind(value, result)
        self.read(node)

    def _apply(self, node: Node) -> Any:
        rule = RULES.get((node.domain, node.op_type))
        if rule is None:
            return No(f"no rule for {node.kind}")
        if any(v is not None and 0 in self.shape(v) for v in node.inputs):
            return No("a tensor without elements")
        return rule(self, node)

    def _by_reference(self, node: Node, reason: str) -> None:
        """A step of the node's definition between plain tensors."""
        reads, made = by_definition(node, lambda v: self.plain(self.tensor(v)), self.known)
        outs = [self.new(shape, strided(self.lib, shape, dtype)) for _, shape, dtype in made]
        for (value, _, _), out in zip(made, outs, strict=True):
            self.bind(value, out)
        self.steps.append(DnnlStep(node, (node,), f"reference {node.op_type}", [], outs, None,
                               self.reference(node), reads, reason))


def _numpy(dtype: str) -> Any:
    return ElementType.BFLOAT16.numpy if dtype == "bfloat16" else dtype
