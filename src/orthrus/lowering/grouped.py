"""GroupQueryAttention whose total length a run computes: by the code for a length that follows from shapes,
wherever it is one of those.

In: a node, what runs a part, and its definition. Out: what computes the node. Everything that code is not for
is computed by the definition, which refuses what does not fit.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..codegen.runtime import fastcall
from ..ir import ElementType, Node, TensorType, Value
from ..kernels import Part
from ..limits import HARMLESS
from ..locks import lock
from ..ops.define import find
from .claims import refusal
from .contents import contents
from .native import Elsewhere, Native

QUERY, PAST, ENDS, TOTAL, BIAS = 0, 3, 5, 6, 10
"""Inputs that decide which length it is, and the bias, which has as many columns at least."""
LENGTHS = {"prompt": ((QUERY, 1),), "within": ((PAST, 2),), "behind": ((PAST, 2), (QUERY, 1))}
"""The inputs' dimensions whose sum stands for a length: within a cache it does not matter where."""
OUTPUTS = 3
"""The result and the caches."""


class Way:
    """A part, and a door to its program for the shapes that came twice in a row."""

    def __init__(self, part: Native) -> None:
        self.part = part
        names = [sys.intern(f"{i}") for i in range(len(part.part.inputs) + len(part.part.outputs))]
        self.names, outputs = names[:len(part.part.inputs)], names[len(part.part.inputs):]
        self.door = fastcall.Door(self.names, outputs, range(len(outputs))) if fastcall.available() else None
        self.seen: list[tuple[int, ...]] = []
        self._lock = lock()

    def __call__(self, read: Sequence[np.ndarray]) -> Any:
        door = self.door
        if door is None:
            return self.part(*read)
        made: Any = door.run(None, dict(zip(self.names, read, strict=True)))
        if made is None:
            made = self.part(*read)
            self._learn(door, read)
        return tuple(made) if type(made) is list else made

    def _learn(self, door: fastcall.Door, read: Sequence[np.ndarray]) -> None:
        shapes, quick = [a.shape for a in read], self.part.quick
        with self._lock:
            again, self.seen = shapes == self.seen, shapes
            if again and quick is not None and self.door is not None:
                program = quick(read)
                if program is not None and sum(
                        math.prod(shape) * dtype.itemsize for shape, dtype in program.outputs) <= HARMLESS:
                    door.open(program)
                elif program is not None:
                    program.give()

    def close(self) -> None:
        with self._lock:
            if self.door is not None:
                self.door.close()
            self.door = None
        self.part.close()


class Grouped:
    """The kernel of a node. `native(part)` runs a part, `otherwise` is the node's definition."""

    def __init__(self, node: Node, native: Callable[[Part], Native], otherwise: Callable[..., Any]) -> None:
        self.node, self.native, self.otherwise = node, native, otherwise
        self.read = [i for i, v in enumerate(node.inputs) if v is not None and v.const is None and i != TOTAL]
        self.ways: dict[str, Way] = {}

    def __call__(self, *given: Any) -> Any:
        return self._computed(given, None)

    def into(self, given: Sequence[Any], targets: Sequence[Any]) -> Any:
        """See `Kernel`."""
        return self._computed(given, targets)

    def _computed(self, given: Sequence[Any], targets: Sequence[Any] | None) -> Any:
        which = _which(given[QUERY], given[PAST], given[ENDS], given[TOTAL])
        bias: Any = given[BIAS] if len(given) > BIAS else None
        if which == "within" and bias is not None:
            bias = _widened(bias, given[TOTAL].item(), given[PAST].shape[2])
            if bias is None or bias is not given[BIAS] and BIAS not in self.read:
                which = ""
        if which:
            way = self.ways.get(which)
            if way is None:
                part = self.native(_assuming(self.node, which, self.read))
                part.assumed = True
                way = self.ways.setdefault(which, Way(part))
            read = [bias if i == BIAS else given[i] for i in self.read]
            try:
                return way(read) if targets is None else way.part.into(read, targets[:OUTPUTS])
            except Elsewhere:
                pass
        return self.otherwise(*given)

    def close(self) -> None:
        for way in self.ways.values():
            way.close()


def grouped(node: Node, native: Callable[[Part], Native], otherwise: Callable[..., Any]) -> Grouped | None:
    """The kernel of `node`; None where its length is a constant, or no code is generated for it."""
    given = contents(node)
    if not given or len([v for v in node.outputs if v is not None and not v.dead]) > OUTPUTS or refusal(
            node, given) is not None:
        return None
    return Grouped(node, native, otherwise)


def _which(query: np.ndarray, past: np.ndarray | None, ends: np.ndarray, total: np.ndarray) -> str:
    """Which of `LENGTHS` it is, "" for one that is none of them, or is below that of a sequence."""
    if query.ndim != 3 or total.size != 1 or not ends.size or past is not None and past.ndim != 4:
        return ""
    wanted, length, held = total.item(), query.shape[1], 0 if past is None else past.shape[2]
    if (ends.item() if ends.size == 1 else ends.max()) >= wanted:
        return ""
    if wanted == length:
        return "prompt" if wanted <= held or not held else ""
    return "within" if length < wanted <= held else "behind" if wanted == held + length else ""


def _widened(bias: np.ndarray, total: int, held: int) -> np.ndarray | None:
    """A bias with a column for each row of the cache, what is behind the sequence's being unseen; None where
    it has fewer than the sequence is long."""
    if bias.ndim != 4 or bias.shape[3] < total:
        return None
    lacking = held - bias.shape[3]
    return bias if lacking <= 0 else np.pad(bias, ((0, 0), (0, 0), (0, 0), (0, lacking)))


def _assuming(node: Node, which: str, read: Sequence[int]) -> Part:
    """The node as a part, its total length computed from the shapes of the others."""
    twins = [None if v is None else Value(v.name, v.type, None, v.const) for v in node.inputs]
    nodes = list[Node]()

    def made(op_type: str, version: int, inputs: Sequence[Value | None], **attrs: Any) -> Value:
        step = Node(op_type, "", version, find("", op_type, version), inputs, attrs, node.name)
        step.outputs = [Value(f"{node.name}.{len(nodes)}", TensorType(ElementType.INT64, (1,)), step)]
        nodes.append(step)
        return step.output
    sizes = [made("Shape", 15, [twins[i]], start=axis, end=axis + 1) for i, axis in LENGTHS[which]]
    twins[TOTAL] = sizes[0] if len(sizes) == 1 else made("Add", 14, sizes)
    copied = Node(node.op_type, node.domain, node.version, node.op, twins, node.attrs, node.name, node.index)
    kinds = [None if v is None else v.type for v in node.outputs[:OUTPUTS]]
    copied.outputs = [Value(f"{node.name} {i}", kind, copied) for i, kind in enumerate(kinds)]
    outputs = [v for v in copied.outputs if v is not None]
    for value in outputs:
        value.graph_outputs = 1
    return Part("", [*nodes, copied], [v for i in read if (v := twins[i]) is not None], outputs, node.label)
