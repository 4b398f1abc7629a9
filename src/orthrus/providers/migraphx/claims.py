"""Which nodes MIGraphX computes right by the record, and which of them together.

In: a node, or a graph's claimed nodes. Out: None or `No` with the reason; groups that can be compiled whole.
The parser looks operators up by name alone, so domain and definition are checked here."""

from __future__ import annotations

from collections.abc import Sequence

from ...ir import ElementType, No, Node, TensorType, Value
from ...ops import find
from ...ops.schema import newest_opset
from .conditions import why_not
from .table import CROSSING, EMPTY, OPERATORS, REFUSED, VERSION, VIEWS

_HALVES = (ElementType.FLOAT16, ElementType.BFLOAT16)
_INSIDE = CROSSING | {ElementType.INT4, ElementType.UINT4}


def judged(node: Node, target: str) -> No | None:
    """None where the record speaks for `node`, else why it does not. `target`: ref or gpu."""
    why = _typed(node) or _operator(node) or _kinds(node, target) or _constants(node) or _filled(node) \
        or why_not(node)
    return No(f"MIGraphX {VERSION}: {why}") if why else None


def _typed(node: Node) -> str | None:
    for value in (*node.inputs, *node.outputs):
        if value is None:
            continue
        if not isinstance(value.type, TensorType) or value.elem is None:
            return f"the type of {value.name} is not known to be a tensor's"
        if value.shape is None:
            return f"the rank of {value.name} is not known"
    return None


def _operator(node: Node) -> str | None:
    row = OPERATORS.get(node.kind)
    if row is None:
        return REFUSED.get(node.kind, f"{node.kind} is not among the operators that were seen to be right")
    newest = find(node.domain, node.op_type, newest_opset(node.domain) or node.version)
    if node.op is None or newest is None or (node.op is not newest and node.op.since not in row.older):
        return f"{node.kind} of version {node.version} has another meaning than the newest, which is computed"
    return None


def _kinds(node: Node, target: str) -> str | None:
    row, first = OPERATORS[node.kind], next((v for v in node.inputs if v is not None), None)
    for value in (*node.inputs, *node.outputs):
        if value is not None and value.elem not in (_INSIDE if value.const is not None else CROSSING):
            return f"{value.name} is a {value.type}, which a program cannot be handed"
    if first is not None and first.elem.text not in row.types:
        return f"{node.kind} of {first.elem.text} was not tried"
    halves = [v.elem for v in (*node.inputs, *node.outputs) if v is not None and v.elem in _HALVES]
    if halves and not row.exact and target == "ref":
        return (f"{halves[0].text} is rounded between steps on the target ref"
                " (test_attention_4d_fp16_expanded)")
    return None


def _constants(node: Node) -> str | None:
    for i in sorted(OPERATORS[node.kind].constant):
        value = node.inputs[i] if i < len(node.inputs) else None
        if value is not None and not from_shapes(value):
            return f"input {i}, {value.name}, has to be a constant, and follows from values of a run"
    return None


def _filled(node: Node) -> str | None:
    empty = any(v is not None and v.const is None and 0 in v.shape for v in (*node.inputs, *node.outputs))
    return f"{node.kind} without elements was not tried" if empty and node.kind not in EMPTY else None


def from_shapes(value: Value) -> bool:
    """Whether a value follows from constants and from shapes, and so is a constant once these are known."""
    stack, seen = [value], set[Value]()
    while stack:
        it = stack.pop()
        if it.const is not None or it in seen:
            continue
        seen.add(it)
        if it.node is None or it.node.has_bodies:
            return False
        if it.node.op_type not in ("Shape", "Size"):
            stack += [v for v in it.node.inputs if v is not None]
    return True


def makers(value: Value) -> set[Node]:
    """The nodes that compute a value which follows from shapes."""
    stack, found = [value], set[Node]()
    while stack:
        node = stack.pop().node
        if node is not None and node not in found:
            found.add(node)
            if node.op_type not in ("Shape", "Size"):
                stack += [v for v in node.inputs if v is not None and v.const is None]
    return found


def torn(group: Sequence[Node]) -> dict[Node, No]:
    """The nodes of a group that need a constant which is computed from shapes outside of it."""
    inside, found = set(group), dict[Node, No]()
    for node in group:
        for i in OPERATORS[node.kind].constant:
            value = node.inputs[i] if i < len(node.inputs) else None
            if value is not None and value.const is None and not makers(value) <= inside:
                found[node] = No(f"MIGraphX {VERSION}: {value.name} has to be a constant, and is computed by"
                                 " nodes that are refused")
    return found


def trivial(group: Sequence[Node]) -> bool:
    """Whether a group does nothing that an engine would be worth."""
    return all(node.kind in VIEWS for node in group)


def border(group: Sequence[Node]) -> No | None:
    """Why a value cannot cross a group's border: a program cannot be handed its type."""
    inside = set(group)
    crossing = [v for n in group for v in n.inputs if v is not None and v.const is None
                and v.node not in inside]
    crossing += [v for n in group for v in n.outputs
                 if v is not None and (v.graph_outputs or any(use not in inside for use in v.uses))]
    return next((No(f"{v.name} is a {v.type}, which a program cannot be handed") for v in crossing
                 if v.elem not in CROSSING), None)
