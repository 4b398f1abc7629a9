"""Sizes that a model takes for the open dimensions of its inputs.

In: a model, guesses at the shapes of its inputs, and a function that runs it with shapes. Out: the shapes
with which that came back. A guess that works is never changed. Where none does, one dimension at a time gets
the sizes that the graph's constants suggest and those common in the field; the size with which the model
comes furthest stays. Shape inference rules sizes out before they are run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import prod
from time import monotonic
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np

from ...ir import Graph, Node, TensorType, Type

Result = TypeVar("Result")
Shapes = dict[str, tuple[int, ...]]
Places = dict[str, list[tuple[str, int]]]
Reach = tuple[bool, int]

SECONDS = 10.0
"""How long sizes are looked for."""
LARGEST = 1 << 24
"""Elements that the inputs may have together while sizes are tried."""
_IMAGE = (224, 32, 48, 64, 96, 112, 128, 160, 192, 256, 299, 320, 384, 416, 512, 640)
_OTHERWISE = (1, 2, 4, 8, 16, 32, 64, 80, 100, 128, 256, 400, 512, 1024, 2048, 4096, 16000)
_SUGGESTED, _MOST = 24, 1 << 16
_NODE = re.compile(r"Name:'([^']*)'")


def accepted(source: Any, inputs: Sequence[Any], guesses: Sequence[Shapes],
             attempt: Callable[[Shapes], Result], fixed: Shapes | None = None) -> tuple[Shapes, Result]:
    """The shapes of the first attempt that comes back, and what came back.

    `source`: the model, as `load` takes it; `inputs`: those whose shapes are guessed, as a session declares
    them; `guesses`: a shape for each of them, the preferred guess first; `fixed`: shapes of inputs that stay
    as they are. Raises what the first attempt raised where no sizes work.
    """
    places = open_places(inputs, fixed or {})
    if not places:
        return guesses[0], attempt(guesses[0])
    return _Search(source, places, guesses, attempt).result()


def open_places(inputs: Sequence[Any], fixed: Shapes) -> Places:
    """Where each open dimension is: by its name, or `input[axis]` where it has none; the first axis, mostly a
    batch, comes last. Names that inputs in `fixed` have are not open."""
    settled = {d for arg in inputs if arg.name in fixed for d in arg.shape or () if isinstance(d, str)}
    found: Places = {}
    for arg in inputs:
        for axis, d in enumerate(arg.shape or ()):
            if arg.name in fixed or d in settled or (isinstance(d, int) and d >= 0):
                continue
            named = isinstance(d, str) and any(c.isalnum() for c in d)
            found.setdefault(str(d) if named else f"{arg.name}[{axis}]", []).append((arg.name, axis))
    return dict(sorted(found.items(), key=lambda item: item[1][0][1] == 0))


def told(inputs: Sequence[Any], refused: Shapes, taken: Shapes) -> str:
    """In a line, what `taken` has other than `refused`; empty where they are the same."""
    changed = [(name, *spots[0]) for name, spots in open_places(inputs, {}).items()
               if any(refused[n][axis] != taken[n][axis] for n, axis in spots)]
    if not changed:
        return ""
    now, before = (", ".join(f"{name} = {shapes[n][axis]}" for name, n, axis in changed)
                   for shapes in (taken, refused))
    return f"sizes found by trying: {now}; the model refuses {before}"


class Declared(NamedTuple):
    """An input as a session declares it."""

    name: str
    type: str
    shape: Any


class _Search(Generic[Result]):
    """Looks for sizes of the open dimensions at `places`."""

    def __init__(self, source: Any, places: Places, guesses: Sequence[Shapes],
                 attempt: Callable[[Shapes], Result]) -> None:
        self.places, self.guesses, self.attempt = places, guesses, attempt
        self.end = monotonic() + SECONDS
        self.facts = _Facts.of(source)
        self.tried: set[tuple[tuple[int, ...], ...]] = set()
        self.refused: Exception | None = None
        """What the preferred guess raised."""
        self.found: tuple[Shapes, Result] | None = None

    def result(self) -> tuple[Shapes, Result]:
        try:
            likelier = sorted(self.guesses, key=lambda shapes: self.facts.fault(shapes) is not None)
            reached = [(self.reach(shapes), shapes) for shapes in self._while_open(likelier)]
            if self.found is None:
                self.climb(*max(reached, key=lambda each: each[0]))
            if self.found is not None:
                return self.found
        finally:
            self.facts.close()
        if self.refused is not None:
            raise self.refused
        return self.guesses[0], self.attempt(self.guesses[0])

    def climb(self, best: Reach, at: Shapes) -> None:
        """Change sizes for as long as the model comes further with them."""
        before: Reach | None = None
        groups = [[name] for name in self.places]
        groups.append([name for name, spots in self.places.items() if spots[0][1] > 0])
        while best != before and self.found is None:
            before = best
            for group in groups:
                for shapes in self._while_open(self._moves(at, group)):
                    if (reached := self.reach(shapes)) > best:
                        best, at = reached, shapes

    def _while_open(self, moves: Iterable[Shapes]) -> Iterator[Shapes]:
        """Those of `moves` that were not tried, until something is found or time is up."""
        for shapes in moves:
            if self.found is not None or (self.tried and monotonic() > self.end):
                return
            if (key := tuple(shapes.values())) not in self.tried:
                self.tried.add(key)
                yield shapes

    def _moves(self, at: Shapes, names: Sequence[str]) -> list[Shapes]:
        """`at` with one size after the other for the dimensions called `names`."""
        spots = [spot for name in names for spot in self.places[name]]
        image = any(len(at[name]) == 4 and axis > 1 for name, axis in spots)
        sizes = dict.fromkeys((*(_IMAGE if image else _OTHERWISE), *self.facts.suggested))
        made = []
        for size in sizes:
            shapes = {name: tuple(size if (name, axis) in spots else d for axis, d in enumerate(shape))
                      for name, shape in at.items()}
            if sum(map(prod, shapes.values())) <= LARGEST:
                made.append(shapes)
        return made

    def reach(self, shapes: Shapes) -> Reach:
        """Whether inference finds nothing wrong, and the node up to which the model comes."""
        fault = self.facts.fault(shapes)
        if fault is not None:
            return False, fault
        try:
            self.found = shapes, self.attempt(shapes)
        except MemoryError:
            raise
        except Exception as error:
            if type(error).__name__ == "NotImplemented":
                raise
            if shapes is self.guesses[0]:
                self.refused = error
            named = _NODE.search(str(error))
            return True, self.facts.order.get(named[1], 0) if named is not None else 0
        return True, len(self.facts.order)


class _Facts:
    """What a model's graph says of sizes: `order` of its nodes by label, and `suggested` sizes."""

    def __init__(self, graph: Graph | None) -> None:
        self.graph = graph
        nodes = [] if graph is None else list(graph.walk())
        self.order = {node.label: i for i, node in enumerate(nodes)}
        self.main = set() if graph is None else set(graph.nodes)
        self.types = {v: _without_names(v.type) for node in nodes for v in node.outputs if v is not None}
        self.suggested = list(dict.fromkeys(n for node in nodes for n in _sizes(node)))[:_SUGGESTED]

    @classmethod
    def of(cls, source: Any) -> _Facts:
        """Those of a model as `load` takes it; none where only its session can read it."""
        from ...errors import ALL
        from ...load import load

        try:
            return cls(load(source))
        except ALL:
            return cls(None)

    def close(self) -> None:
        if self.graph is not None:
            self.graph.release()

    def fault(self, shapes: Shapes) -> int | None:
        """The first node outside bodies of control flow that contradicts inputs of these shapes; None where
        inference sees no contradiction."""
        from ...ops.infer import infer_graph

        if self.graph is None:
            return None
        for value, kind in self.types.items():
            value.type, value.content = kind, None
        for value in self.graph.inputs:
            if isinstance(value.type, TensorType) and value.name in shapes:
                value.type = TensorType(value.type.elem, shapes[value.name])
        wrong: list[Node] = []
        infer_graph(self.graph, lambda node, error: wrong.append(node) if node in self.main else None)
        return self.order[wrong[0].label] if wrong else None


def _without_names(kind: Type | None) -> Type | None:
    """The declared type, nothing said of dimensions that are names."""
    if not isinstance(kind, TensorType) or kind.shape is None:
        return kind
    return TensorType(kind.elem, tuple(d if isinstance(d, int) else None for d in kind.shape))


def _sizes(node: Node) -> Iterator[int]:
    """Sizes a node holds: dimensions of weights, what it reshapes to, slices, pads and compares with, and the
    extents of its window."""
    for value in node.inputs:
        if value is None or value.const is None:
            continue
        array = value.const
        whole = isinstance(array, np.ndarray) and array.dtype.kind in "iu" and array.size <= 8
        yield from (n for n in (array.ravel().tolist() if whole else value.shape or ())
                    if isinstance(n, int) and 1 < n <= _MOST)
    for name in ("kernel_shape", "strides"):
        yield from (n for n in node.attrs.get(name) or () if n > 1)
