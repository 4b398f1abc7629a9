"""What a step of a run costs at least: arithmetic operations, and bytes that have to be read and written.

In: a node or a `Work` with concrete types. Out: a `Cost`. Bytes are those of the tensors that come from
outside of what is computed together, and of those that go out; a tensor that is read twice counts once, one
that is only looked at through another view counts nothing, and of a table only the rows taken.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from weakref import WeakKeyDictionary

from ..ir import Node, Type, Value
from ..kernels import Work
from ..ops.tensor.movement import VIEWS
from ..records import dataclass
from .flops import Given, Unknown, flops

FREE = VIEWS | {"Dropout", "Shape", "Size", "ExpandDims", "Optional", "OptionalGetElement",
                "SequenceConstruct", "SequenceAt"}
"""Operators that move no element."""

MOVES = frozenset({"Transpose", "Slice", "Split", "Concat", "Expand", "DepthToSpace", "SpaceToDepth",
                   "Gather"})
"""Operators that may be nothing but another view of memory, where a kernel reads through it."""

_TAKEN = frozenset({"Gather", "GatherElements", "GatherND", "Slice"})
"""Operators that read as many elements of their first input as they give."""


@dataclass(frozen=True)
class Cost:
    """`flop`: arithmetic operations, a multiply-add is two. `bytes`: read and written. `known`: False where a
    shape was missing and something counts as nothing."""

    flop: int
    bytes: int
    known: bool = True

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.flop + other.flop, self.bytes + other.bytes, self.known and other.known)


def cost(node: Node, types: Mapping[Value, Type]) -> Cost:
    """The cost of `node` alone."""
    inputs = [v for v in node.inputs if v is not None]
    return _cost((node,), node, inputs, [v for v in node.outputs if v is not None], types)


def cost_of_nodes(nodes: Iterable[Node], types: Mapping[Value, Type]) -> Cost:
    """The sum of nodes that are computed one by one, without what bodies of control flow cost."""
    return sum((cost(node, types) for node in nodes), Cost(0, 0))


def cost_of_work(work: Work) -> Cost:
    """The cost of the nodes that a step serves; all of it is charged to the first of a node's steps."""
    if work.turn > 1 or work.node.has_bodies:
        return Cost(0, 0)
    copies = not work.kernel.startswith(("reference", "numpy"))
    return _cost(work.nodes, work.node, work.inputs, work.outputs, work.types, copies)


def head_of(work: Work) -> Node:
    """Of the nodes that a step serves the one that does most; the last one where that is no less."""
    head = _HEADS.get(work)
    if head is None:
        counts = {node: flops(node, work.types) or 0 for node in work.nodes}
        most = max(counts.values())
        head = work.node if counts[work.node] == most else max(counts, key=counts.__getitem__)
        _HEADS[work] = head
    return head


_HEADS: WeakKeyDictionary[Work, Node] = WeakKeyDictionary()


def size(value: Value, types: Mapping[Value, Type]) -> int:
    """Bytes of a tensor in memory. Raises Unknown."""
    return _size(Given(value.node or _NOBODY, types), value)


_NOBODY = Node("", "", 1, None, (), {})


def _size(given: Given, value: Value) -> int:
    kind = given.kind(value)
    assert kind.elem is not None and kind.shape is not None
    return prod(int(d or 0) for d in kind.shape) * kind.elem.numpy.itemsize


def _cost(nodes: Sequence[Node], head: Node, inputs: Sequence[Value], outputs: Sequence[Value],
          types: Mapping[Value, Type], copies: bool = False) -> Cost:
    """`copies`: the head takes a kernel even where it could be a view: its elements lie in another order."""
    total, moved, known = 0, 0, True
    if head.op_type in FREE and not copies and all(node.op_type in FREE for node in nodes):
        return Cost(0, 0)
    outside = set(inputs)
    read: dict[Value, int] = {}
    views = {v for node in nodes if (node.op_type in FREE and not (node is head and copies))
             or (node.op_type in MOVES and node is not head)
             for v in node.outputs if v is not None}
    for node in nodes:
        found = flops(node, types)
        known &= found is not None
        total += found or 0
        if any(v in views for v in node.outputs):
            continue
        given = Given(node, types)
        for i, value in enumerate(node.inputs):
            root = None if value is None else _root(value, views, outside)
            if value is None or root is None:
                continue
            try:
                read[root] = max(read.get(root, 0), _touched(given, i, value))
            except Unknown:
                known = False
    for value in outputs:
        try:
            moved += _size(Given(head, types), value)
        except Unknown:
            known = False
    return Cost(total, moved + sum(read.values()), known)


def _root(value: Value, views: set[Value], outside: set[Value]) -> Value | None:
    """The value from outside that reading `value` reads; None where it is made in between."""
    while value not in outside:
        if value not in views or value.node is None:
            return None
        first = next((v for v in value.node.inputs if v is not None), None)
        if first is None or value.node.op_type == "Concat":
            return value
        value = first
    return value


def _touched(given: Given, i: int, value: Value) -> int:
    """Bytes of input `i` that a node reads."""
    node, whole = given.node, _size(given, value)
    if i == 0 and node.op_type in _TAKEN:
        made = node.outputs[0]
        return min(whole, _size(given, made)) if made is not None else whole
    if i == 0 and node.op_type in ("Conv", "FusedConv", "MaxPool", "AveragePool") and not node.domain:
        return _under_windows(given, whole)
    if node.op_type == "EmbedLayerNormalization" and i in (2, 3, 4):
        made = node.outputs[0]
        return min(whole, _size(given, made)) if made is not None else whole
    if i > 0 and node.op_type in ("Expand", "Tile", "Pad", "Slice", "Resize", "ReduceSum"):
        return 0
    return whole


def _under_windows(given: Given, whole: int) -> int:
    """Of an image only what lies under a window: a 1x1 convolution with stride 2 reads a quarter."""
    shape, out = given.x(0), given.y(0)
    rank = len(shape) - 2
    kernel = given.attrs.get("kernel_shape") or (given.x(1)[2:] if given.has(1) else ())
    if len(kernel) != rank or not whole:
        return whole
    seen = [min(d, o * k) for d, o, k in zip(shape[2:], out[2:], kernel, strict=True)]
    return whole // max(1, prod(shape[2:])) * prod(seen)
