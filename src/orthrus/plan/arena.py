"""Places for intermediate results: one block of memory per tuple of input shapes, offsets fixed in advance.

In: a program and the concrete types of its values. A kernel that writes where it is told (`Kernel.takes_out`)
gets a place; two values share bytes when their lives do not overlap, and a result takes its input's place
when that input ends there. What a kernel may have made a view of lives on until the view is dead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..ir import TensorType, Type, Value
from ..kernels import HOST
from ..ops.contents import content
from ..ops.infer import InferenceError, infer_node
from ..records import dataclass
from .program import Call, Code, Program, taker

SMALLEST = 1 << 14
"""Bytes below which numpy's own cache of small blocks is faster than a place in the arena."""

_ALIGN = 64


@dataclass(frozen=True, slots=True)
class Place:
    """Where one step's output lies."""

    step: int
    slot: int
    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    end: int


@dataclass(eq=False)
class Arena:
    """A program whose steps write into planned places. `instance()` makes one block; a
    block serves one run at a time."""

    size: int
    places: list[Place]
    code: Code
    template: list[Any]

    def instance(self) -> tuple[list[Any], np.ndarray]:
        """A template with views into a new block, and the block."""
        block = np.empty(self.size + _ALIGN, np.uint8)
        start = -block.ctypes.data % _ALIGN
        slots = self.template.copy()
        for place in self.places:
            count = int(np.prod(place.shape, dtype=np.int64)) * place.dtype.itemsize
            at = start + place.offset
            slots[place.slot] = block[at:at + count].view(place.dtype).reshape(place.shape)
        return slots, block

    def __str__(self) -> str:
        rows = (f"{p.offset:>12} {'x'.join(map(str, p.shape)):<20} {p.dtype} steps {p.step}..{p.end}"
                for p in self.places)
        return "\n".join([f"arena of {self.size} bytes", *rows])


def concrete_types(program: Program, types: dict[Value, Type]) -> dict[Value, Type | None]:
    """The type of every value once the graph's inputs have `types`."""
    opsets = program.graph.info.opsets
    shadows: dict[Value, Value] = {}

    def shadow(value: Value) -> Value:
        if value not in shadows:
            shadows[value] = Value(value.name, types.get(value, value.type), None, value.const)
        return shadows[value]

    for node in program.graph.nodes:
        inputs = [None if v is None else shadow(v) for v in node.inputs]
        try:
            found = infer_node(node, inputs, opsets)
        except InferenceError:
            found = []
        for value, kind in zip(node.outputs, [*found, *[None] * len(node.outputs)], strict=False):
            if value is not None:
                shadows[value] = Value(value.name, kind)
        if node.outputs and node.outputs[0] is not None:
            shadows[node.outputs[0]].content = content(node, inputs)
    return {value: made.type for value, made in shadows.items()}


def plan_arena(program: Program, made: Code, outputs: Sequence[int],
               types: dict[Value, Type]) -> Arena | None:
    """Places for what the steps of `made`, some or all of the program's, give; None where nothing gains from
    one."""
    steps = [entry[4] for entry in made]
    if not any(step.kernel.takes_out for step in steps):
        return None
    kinds = concrete_types(program, types)
    by_slot = {program.slots[v]: kind for v, kind in kinds.items() if v in program.slots}
    ends = _ends(steps, outputs)
    free: list[tuple[int, int]] = []
    places: dict[int, Place] = {}
    ending: dict[int, list[int]] = {}
    top = 0
    for i, step in enumerate(steps):
        kind = by_slot.get(step.writes[0]) if len(step.writes) == 1 else None
        size = _size(kind) if step.device is HOST and step.kernel.takes_out and (
            step.writes[0] not in outputs) else None
        expired = ending.pop(i, [])
        if size is not None:
            assert isinstance(kind, TensorType) and kind.elem is not None and kind.shape is not None
            inherited = None
            if step.kernel.in_place:
                inherited = next((s for s in step.reads if s in expired and places[s].shape == kind.shape
                                  and places[s].dtype == kind.elem.numpy), None)
            if inherited is not None:
                offset = places[inherited].offset
                expired.remove(inherited)
            else:
                offset, top = _take(free, size, top)
            shape = tuple(d for d in kind.shape if isinstance(d, int))
            slot = step.writes[0]
            places[slot] = Place(i, slot, offset, shape, kind.elem.numpy, ends[slot])
            ending.setdefault(ends[slot], []).append(slot)
        for s in expired:
            _give(free, places[s].offset, _rounded(places[s].shape, places[s].dtype))
    if not places:
        return None
    return _arena(program, made, places, top)


def _arena(program: Program, made: Code, places: dict[int, Place], top: int) -> Arena:
    template, planned, entries = program.template.copy(), list[Place](), list[Any]()
    for entry in made:
        step = entry[4]
        place = places.get(step.writes[0]) if len(step.writes) == 1 else None
        if place is not None:
            planned.append(Place(place.step, len(template), place.offset, place.shape, place.dtype,
                                 place.end))
            entry = (entry[0], taker((*step.reads, len(template))), *entry[2:])
            template.append(None)
        entries.append(entry)
    return Arena(top, planned, entries, template)


def _ends(steps: Sequence[Call], outputs: Sequence[int]) -> dict[int, int]:
    """The last step at which each slot's memory is read, through views too."""
    ends = dict.fromkeys(outputs, len(steps))
    for i in reversed(range(len(steps))):
        step = steps[i]
        for s in step.writes:
            ends.setdefault(s, i)
        until = i if step.kernel.takes_out else max((ends[s] for s in step.writes), default=i)
        for s in step.reads:
            ends[s] = max(ends.get(s, i), until)
    return ends


def _size(kind: Type | None) -> int | None:
    if not isinstance(kind, TensorType) or kind.elem is None or kind.shape is None:
        return None
    if not all(isinstance(d, int) for d in kind.shape) or kind.elem.numpy.kind == "O":
        return None
    size = _rounded(kind.shape, kind.elem.numpy)
    return size if size >= SMALLEST else None


def _rounded(shape: Sequence[Any], dtype: np.dtype[Any]) -> int:
    size = dtype.itemsize
    for d in shape:
        size *= d
    return -(-size // _ALIGN) * _ALIGN


def _take(free: list[tuple[int, int]], size: int, top: int) -> tuple[int, int]:
    """The offset of the smallest free range that fits, and the arena's new size."""
    fits = [(length, offset) for offset, length in free if length >= size]
    if not fits:
        if free and free[-1][0] + free[-1][1] == top:
            offset, _ = free.pop()
            return offset, offset + size
        return top, top + size
    length, offset = min(fits)
    free.remove((offset, length))
    if length > size:
        free.append((offset + size, length - size))
        free.sort()
    return offset, top


def _give(free: list[tuple[int, int]], offset: int, size: int) -> None:
    free.append((offset, size))
    free.sort()
    merged = list[tuple[int, int]]()
    for start, length in free:
        if merged and merged[-1][0] + merged[-1][1] == start:
            merged[-1] = (merged[-1][0], merged[-1][1] + length)
        else:
            merged.append((start, length))
    free[:] = merged
