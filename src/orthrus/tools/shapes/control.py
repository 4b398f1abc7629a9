"""Types of If, Loop, Scan and SequenceMap: what their bodies give.

In: an `Inference` and one of these nodes. Out: the types of its outputs; the bodies' values are typed on the
way. The invariant: what a turn of a loop may change is not taken for constant.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...ir import Graph, Node, OptionalType, SequenceType, TensorType, Type, Value
from ...ops.infer import body_inputs
from ...shapes.elements import Elements
from ...shapes.expression import Dim, bounds

if TYPE_CHECKING:
    from .inference import Inference

_TURNS = 8


def control(it: Inference, node: Node, label: str, prefix: str) -> list[Type | None]:
    """The types of the outputs of a node with bodies."""
    return CONTROL[node.op_type](it, node, label, f"{prefix}_{label}")


def _if(it: Inference, node: Node, label: str, prefix: str) -> list[Type | None]:
    branches: list[Graph] = [node.attrs[k] for k in ("then_branch", "else_branch")]
    for name, body in zip(("then", "else"), branches, strict=True):
        it._graph(body, f"{prefix}_{name}")
    for value, other in zip(branches[0].outputs, branches[1].outputs, strict=False):
        kinds = [v.elem if isinstance(v.type, TensorType) else None for v in (value, other)]
        if None not in kinds and kinds[0] is not kinds[1]:
            raise ValueError(f"the branches of {node.label} give different types: " + " and ".join(
                f"{v.name} is {v.elem.name}" for v in (value, other)))
    condition = it.known.get(node.inputs[0]) if node.inputs and node.inputs[0] is not None else None
    flag = condition.reshape(-1)[0] if condition is not None and condition.size == 1 else None
    if isinstance(flag, bool):
        taken = branches[0] if flag else branches[1]
        for mine, theirs in zip(node.outputs, taken.outputs, strict=False):
            if mine is not None and theirs in it.known:
                it.known[mine] = it.known[theirs]
        return [v.type for v in taken.outputs]
    return [_either(a.type, b.type) for a, b in zip(branches[0].outputs, branches[1].outputs, strict=False)]


def _either(a: Type | None, b: Type | None) -> Type | None:
    """A type that holds whichever of two came about."""
    if isinstance(a, TensorType) and isinstance(b, TensorType):
        elem = a.elem or b.elem
        if a.shape is None or b.shape is None or len(a.shape) != len(b.shape):
            return TensorType(elem, None)
        return TensorType(elem, tuple(x if x == y else None for x, y in zip(a.shape, b.shape, strict=True)))
    return b if isinstance(b, OptionalType) or a is None else a


def _carry(it: Inference, body: Graph, start: list[Type | None], at: int, skip: int, prefix: str) -> None:
    """Type a body's inputs from `at` on with what they start with, and loosen what a turn changes until none
    does. `skip`: outputs of the body before those that are carried on."""
    kinds = start[:len(body.inputs) - at]
    known, names = dict(it.known), set(it.names)
    for turn in range(_TURNS + 1):
        it.known, it.names = dict(known), set(names)
        for value, kind in zip(body.inputs[at:], kinds, strict=False):
            if kind is not None:
                value.type = it._fill(kind, f"{prefix}_{value.name}")
        it._graph(body, prefix)
        loose = [_either(v.type, out.type) if out.type != v.type else k for k, v, out in
                 zip(kinds, body.inputs[at:], body.outputs[skip:], strict=False)]
        if loose == kinds or turn == _TURNS:
            return
        kinds = loose if turn < _TURNS - 1 else [
            TensorType(k.elem, None) if isinstance(k, TensorType) and k != s else k
            for k, s in zip(loose, start, strict=False)]


def _loop(it: Inference, node: Node, label: str, prefix: str) -> list[Type | None]:
    body: Graph = node.attrs["body"]
    carried = [v.type if v is not None else None for v in node.inputs[2:]]
    for value, kind in zip(body.inputs[:2], body_inputs(node), strict=False):
        value.type = kind
    _carry(it, body, carried, 2, 1, prefix)
    after = [v.type for v in body.outputs[1:]]
    before = [v.type for v in body.inputs[2:]]
    turns = _turns(it, node, body)
    return [*(_either(a, b) for a, b in zip(after, before, strict=False)),
            *(_stacked(it, kind, 0, turns) for kind in after[len(before):])]


def _turns(it: Inference, node: Node, body: Graph) -> Dim | None:
    """How often a Loop's body runs, where its condition cannot end it."""
    trips = it.known.get(node.inputs[0]) if node.inputs and node.inputs[0] is not None else None
    keep: Value = body.outputs[0]
    going = it.known.get(keep)
    always = going is not None and going.size == 1 and going.reshape(-1)[0] is True
    passed = keep is body.inputs[1] or (keep.node is not None and keep.node.op_type == "Identity"
                                        and keep.node.inputs[0] is body.inputs[1])
    starts = it.known.get(node.inputs[1]) if len(node.inputs) > 1 and node.inputs[1] is not None else None
    if len(node.inputs) > 1 and node.inputs[1] is not None and not _true(starts):
        return None
    count = trips.reshape(-1)[0] if trips is not None and trips.size == 1 else None
    return count if (always or passed) and count is not None and bounds(count)[0] >= 0 else None


def _true(flag: Elements | None) -> bool:
    return flag is not None and flag.size == 1 and flag.reshape(-1)[0] is True


def _stacked(it: Inference, kind: Type | None, axis: int, count: Dim | None) -> Type | None:
    if not isinstance(kind, TensorType) or kind.shape is None:
        return kind
    dims: list[Any] = list(kind.shape)
    dims.insert(axis if axis >= 0 else axis + len(dims) + 1, None if count is None else it.text(count))
    return TensorType(kind.elem, tuple(dims))


def _scan(it: Inference, node: Node, label: str, prefix: str) -> list[Type | None]:
    body: Graph = node.attrs["body"]
    old = node.version < 9
    inputs = node.inputs[1:] if old else node.inputs
    states = len(inputs) - int(node.attrs["num_scan_inputs"])
    axes = node.attrs.get("scan_input_axes") or [0] * (len(inputs) - states)
    count: Dim | None = None
    batch: Any = None
    for value, scanned, axis in zip(body.inputs[states:], inputs[states:], axes, strict=False):
        dims = None if scanned is None or scanned.shape is None else list(scanned.shape)
        if dims is not None:
            batch = dims.pop(0) if old else None
            count = it.dim(dims.pop(axis if axis >= 0 else axis + len(dims)))
        value.type = TensorType(None if scanned is None else scanned.elem,
                                None if dims is None else tuple(dims))
    start = [v.type if v is not None else None for v in inputs[:states]]
    if old:
        start = [TensorType(k.elem, k.shape[1:]) if isinstance(k, TensorType) and k.shape else k
                 for k in start]
    _carry(it, body, start, 0, 0, prefix)
    made = [v.type for v in body.outputs]
    places = node.attrs.get("scan_output_axes") or [0] * (len(made) - states)
    out = [*made[:states], *(_stacked(it, k, a, count) for k, a in zip(made[states:], places, strict=False))]
    return [_stacked(it, k, 0, it.dim(batch) if batch is not None else None) for k in out] if old else out


def _sequence_map(it: Inference, node: Node, label: str, prefix: str) -> list[Type | None]:
    body: Graph = node.attrs["body"]
    for inner, value in zip(body.inputs, node.inputs, strict=False):
        kind = None if value is None else value.type
        kind = kind.elem if isinstance(kind, SequenceType) else kind
        if isinstance(kind, TensorType):
            inner.type = it._fill(kind, f"{prefix}_{inner.name}")
    it._graph(body, prefix)
    return [SequenceType(TensorType(v.elem, None)) for v in body.outputs]


CONTROL: dict[str, Callable[[Inference, Node, str, str], list[Type | None]]] = {
    "If": _if, "Loop": _loop, "Scan": _scan, "SequenceMap": _sequence_map}
