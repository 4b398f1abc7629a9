"""Whether a part may use the matrix unit: found out by trying, where `float32_precision` is `auto`.

Products summed from bfloat16 halves have an error of some 5e-6 of the largest result. Most networks end with
about that; one that amplifies differences, or decides by them, does not. In: a part, the shapes and types of
its inputs, and a way to run it with the unit and without. Out: whether both gave the same, decisions and
whole numbers exactly, everything else within LIMIT. What came out is kept beside the generated code, under a
name made of all that it depends on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from .. import knobs
from ..codegen.kernels import amx
from ..codegen.machines.machine import Machine
from ..codegen.object import cache
from ..ir import Node, Value, in_memory
from ..kernels import Part
from ..records import cached_property
from .shaped_part import Kinds
from .tensor import numpy_type

LIMIT = 2e-5
"""Difference, in parts of the largest output, up to which fast products are good enough."""

_FLOATS = frozenset({"float16", "bfloat16", "float32", "float64"})
"""Types whose numbers change a little where their sources do."""

_STEPS = frozenset({"Round", "Floor", "Ceil", "Sign", "Hardmax"})
_JUMPS = frozenset({"Mod", "ThresholdedRelu", "Shrink"})
"""Operators whose floats jump where their sources change a little: to whole numbers, and to others."""

_FAST, _EXACT = b"fast", b"exact"

Run = Callable[..., Any]


class Trial:
    """The question for one part, and for its inputs' kinds what came out."""

    def __init__(self, part: Part, machine: Machine) -> None:
        self.part, self.machine, self.followed = part, machine, _followed(part)
        watched = [v for node in part.nodes for v in node.outputs
                   if v is not None and v not in part.outputs and (_decides(node, v) or _jumps(node))]
        self.watched = replace(part, outputs=[*part.outputs, *watched])
        self.decided = [any(_decides(node, v) for node in part.nodes if v in node.outputs)
                        for v in self.watched.outputs]

    def __call__(self, kinds: Kinds, prepared: Callable[[Part, bool], Run | None]) -> bool:
        """Whether the part may use the unit for inputs of these shapes and types. `prepared(part, fast)`:
        what runs a part with the unit or without, None where that is not what it would do."""
        if self.followed or not self._held:
            return False
        name = self._name(kinds)
        known = cache.load([name]).get(name) if name is not None else None
        if known in (_FAST, _EXACT):
            return known == _FAST
        fast, exact = prepared(self.watched, True), prepared(self.watched, False)
        good = fast is not None and exact is not None and all(
            self._agrees(fast, exact, [_drawn(draw, i, *kind) for i, kind in enumerate(kinds)])
            for draw in (_normal, _one_hot, _neighbours_cancel, _halves_cancel))
        if name is not None:
            cache.store({name: _FAST if good else _EXACT})
        return good

    def _agrees(self, fast: Run, exact: Run, inputs: list[np.ndarray]) -> bool:
        found, wanted = fast(*inputs), exact(*inputs)
        if len(self.decided) == 1:
            found, wanted = (found,), (wanted,)
        return all(map(_same, found, wanted, self.decided))

    @cached_property
    def _held(self) -> bool:
        """Whether the unit can hold what may be a factor of a product."""
        factors = (v.const for node in self.part.nodes if node.op is None or not node.op.broadcasts
                   for v in node.inputs if v is not None)
        return all(amx.holds(in_memory(factor)) for factor in factors
                   if isinstance(factor, np.ndarray) and factor.ndim > 1 and factor.dtype == np.float32)

    def _name(self, kinds: Kinds) -> str | None:
        """What the verdict is kept under; None where it is neither kept nor believed."""
        stamp = cache.stamp()
        if knobs.OVERRIDE or not stamp or self._content is None:
            return None
        return cache.name(f"precision of {self._content} for {kinds} by {stamp}", self.machine, __file__)

    @cached_property
    def _content(self) -> str | None:
        """A digest of the part, all of its weights included; None where something in it cannot be told."""
        digest = hashlib.sha256()
        for node in self.part.nodes:
            digest.update(f"{node.kind}-{node.version}({len(node.inputs)})".encode())
            for key, value in sorted(node.attrs.items()):
                if not _tell(digest, key, value):
                    return None
            for v in (*node.inputs, *node.outputs):
                digest.update(f"{v}".encode("utf-8", "surrogatepass"))
                if v is not None and v.const is not None and not _tell(digest, "", v.const):
                    return None
        digest.update(repr([v.name for v in self.part.outputs]).encode("utf-8", "surrogatepass"))
        return digest.hexdigest()


def _followed(part: Part) -> bool:
    """Whether a decision outside the part depends on what it computes, or may."""
    whole = part.origin() if part.origin is not None else None
    if whole is None:
        return False
    inside, reached = set(part.nodes), set(part.outputs)
    for node in whole.nodes:
        read = {*node.inputs, *(v for body in node.bodies() for v in body.captures())}
        if node in inside or reached.isdisjoint(read):
            continue
        made = [v for v in node.outputs if v is not None]
        if node.has_bodies or _jumps(node) or any(_decides(node, v) for v in made):
            return True
        reached.update(made)
    return whole.outer is not None and not reached.isdisjoint(whole.outputs)


def _tell(digest: Any, name: str, value: Any) -> bool:
    """Add a constant to `digest`; False where its content cannot be told."""
    if isinstance(value, np.ndarray):
        array = in_memory(value)
        digest.update(f"{name}: {array.dtype.name}{array.shape}".encode())
        if array.dtype != object:
            digest.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
            return True
        value = array.tolist()
    if isinstance(value, list) and any(isinstance(each, np.ndarray) for each in value):
        return all(_tell(digest, name, each) for each in value)
    text = repr(value)
    digest.update(f"{name}: {text};".encode("utf-8", "surrogatepass"))
    return " at 0x" not in text


def _smooth(value: Value | None) -> bool:
    return value is not None and value.elem is not None and value.elem.numpy.name in _FLOATS


def _decides(node: Node, out: Value) -> bool:
    """Whether `out` says which of several cases floats are: a bit more or less is another one."""
    return any(map(_smooth, node.inputs)) and (not _smooth(out) or node.op_type in _STEPS)


def _jumps(node: Node) -> bool:
    return node.op_type in _JUMPS


def _same(fast: np.ndarray, exact: np.ndarray, decided: bool) -> bool:
    """Whether the unit's result is as good. What is not finite, on either side, is not: nothing says then how
    far apart they are."""
    if exact.dtype.name not in _FLOATS:
        return bool(np.array_equal(fast, exact))
    a, b = fast.astype(np.float64), exact.astype(np.float64)
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        return False
    if decided or np.array_equal(b, np.rint(b)):
        return bool(np.array_equal(a, b))
    return bool(np.abs(a - b).max() <= LIMIT * np.abs(b).max())


# inputs

_NEARLY = 1 + 2.0 ** -12
"""How far numbers that cancel are apart: float32 keeps half of their digits, halves lose nearly all."""

Draw = Callable[["np.random.Generator", tuple[int, ...]], np.ndarray]


def _drawn(draw: Draw, seed: int, shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """An input: floats as `draw` makes them, along axis 1 of images and the last axis of all else; integers
    that are 0 or 1, which every table has."""
    rng = np.random.default_rng(seed)
    if dtype not in _FLOATS:
        return rng.integers(0, 2, shape).astype(numpy_type(dtype))
    axis = 1 if len(shape) > 3 else len(shape) - 1
    if not shape or shape[axis] < 2:
        return _normal(rng, shape).astype(numpy_type(dtype))
    moved = (*shape[:axis], *shape[axis + 1:], shape[axis])
    return np.ascontiguousarray(np.moveaxis(draw(rng, moved), -1, axis).astype(numpy_type(dtype)))


def _normal(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    return rng.standard_normal(shape, np.float32)


def _one_hot(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    made = np.zeros(shape, np.float32)
    np.put_along_axis(made, rng.integers(0, shape[-1], (*shape[:-1], 1)), 1, -1)
    return made


def _neighbours_cancel(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    made, even = _normal(rng, shape), shape[-1] // 2 * 2
    made[..., 1:even:2] = made[..., 0:even:2] * -_NEARLY
    return made


def _halves_cancel(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    made, half = _normal(rng, shape), shape[-1] // 2
    made[..., half:2 * half] = made[..., :half] * -_NEARLY
    return made
