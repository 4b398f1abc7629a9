"""Which nodes go into compiled parts: those whose results' shapes follow from the part's input shapes.

An operator that reads its output's shape from an input (`Reshape`) is taken where that input is constant or
is itself computed from shapes inside the same part.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

import numpy as np

from ..codegen.write.expr import LLVM
from ..codegen.write.trace import trace
from ..ir import Graph, No, Node, TensorType, Value
from ..kernels import convex_groups
from ..ops.tensor.movement import VIEWS
from . import rules as _rules  # noqa: F401
from .lower import RULES, RuleSet

CONTENT: dict[str, tuple[int, ...]] = {
    "CenterCropPad": (1,), "ConstantOfShape": (0,), "CumProd": (1,), "CumSum": (1,),
    "Expand": (1,), "GroupQueryAttention": (6,), "OneHot": (1, 2), "Pad": (1, 2, 3),
    "Range": (0, 1, 2), "Reshape": (1,), "Resize": (1, 2, 3), "Slice": (1, 2, 3, 4), "Split": (1,),
    "Squeeze": (1,), "Tile": (1,), "TopK": (1,), "Unsqueeze": (1,), "Upsample": (1,), "AffineGrid": (1,),
    "Trilu": (1,),
    "ReduceSum": (1,), "ReduceMean": (1,), "ReduceMax": (1,), "ReduceMin": (1,), "ReduceProd": (1,),
    "ReduceL1": (1,), "ReduceL2": (1,), "ReduceLogSum": (1,), "ReduceLogSumExp": (1,),
    "ReduceSumSquare": (1,), "Dropout": (1, 2),
}
"""Inputs whose elements decide shapes, or what is computed: they must be known while lowering."""

_NARROW = frozenset({"DequantizeLinear", "GatherBlockQuantized"})
"""Operators whose constants may be of few bits: these are packed, or computed, while lowering."""

_VIEWS = VIEWS | {"Transpose", "Slice", "Shape", "Size"}
"""Operators that cost numpy nothing: alone they are not worth a part."""

_FREE = "views cost nothing where they are"
_CONTROL = "control flow: the nodes of its bodies are placed by themselves"
_REGISTERED = "a registered kernel comes first"

HARMLESS = frozenset({_FREE, _CONTROL, _REGISTERED})
"""Reasons to leave a node out by which nothing is lost."""


def groups(graph: Graph, nodes: Iterable[Node], registered: Callable[[Node], bool], views: bool = False,
           rules: RuleSet = RULES) -> tuple[list[list[Node]], dict[Node, str]]:
    """Convex groups of `nodes` to compile by `rules`, and why each other node was left out; `views`: groups
    of nothing but views count."""
    why: dict[Node, str] = {}
    taken: dict[Node, None] = {}
    derived: set[Value] = set()
    for node in nodes:
        why_not = refusal(node, derived, registered, rules)
        if why_not is None:
            taken[node] = None
            if _derives(node, derived):
                derived.update(v for v in node.outputs if v is not None)
        else:
            why[node] = why_not.reason
    while True:
        found = convex_groups(graph, taken)
        lost = [node for group in found for node in _undecided(group, rules)]
        if not lost:
            break
        for node in lost:
            why[node] = "its shape depends on elements that another part computes"
            del taken[node]
    idle = [] if views else [group for group in found if all(n.op_type in _VIEWS for n in group)
                             and not any(_turns(n) for n in group)]
    why.update((n, _FREE) for group in idle for n in group)
    return [group for group in found if group not in idle], why


def refusal(node: Node, derived: Collection[Value] = (), registered: Callable[[Node], bool] = lambda _: False,
            rules: RuleSet = RULES) -> No | None:
    """Why no kernel is generated for `node` by `rules`, where the elements of the values `derived` are known
    by then."""
    op = node.op
    if node.has_bodies:
        return No(_CONTROL)
    if registered(node):
        return No(_REGISTERED)
    if op is None:
        return No(f"{node.kind} has no definition")
    for value in (*node.inputs, *node.outputs):
        if value is not None and not _numeric(value) and not (
                node.op_type in _NARROW and isinstance(value.const, np.ndarray)):
            return No(f"%{value.name} is no tensor of a type that kernels compute with")
    if all(v is None or v.dead for v in node.outputs):
        return No("nobody reads it")
    if _derives(node, derived) and not op.runtime - {"n_outputs"}:
        return None
    for i in CONTENT.get(node.op_type, ()):
        v = node.inputs[i] if i < len(node.inputs) else None
        if v is not None and v.const is None and v not in derived:
            return No(f"its result depends on the elements of %{v.name}, known only at run time")
    key = (node.domain, node.op_type)
    if key in rules:
        types = rules.types.get(key)
        first = next((v for v in node.inputs if v is not None), None)
        if types is not None and first is not None and first.elem.numpy.name not in types:
            return No(f"no generated kernel of {node.kind} for {first.elem.numpy.name}")
        return None
    if op.broadcasts:
        present = [v for v in node.inputs if v is not None]
        numbers = {i: v.const.reshape(())[()] for i, v in enumerate(present)
                   if v.const is not None and v.const.size == 1}
        made = trace(op, node.attrs, [v.elem.numpy.name for v in present], numbers)
        return made if isinstance(made, No) else None
    return No(f"no generated kernel of {node.kind}")


def _turns(node: Node) -> bool:
    """Whether a caller is given what `node` turns: a view would be copied then."""
    return node.op_type == "Transpose" and bool(node.output.graph_outputs)


def _numeric(value: Value) -> bool:
    kind = value.type
    return isinstance(kind, TensorType) and kind.elem is not None and kind.elem.numpy.name in LLVM


def _derives(node: Node, derived: Collection[Value]) -> bool:
    """Whether `node`'s results follow from shapes and constants alone."""
    if node.op_type in ("Shape", "Size") and not node.domain:
        return True
    return all(v is None or v.const is not None or v in derived for v in node.inputs)


def _undecided(group: list[Node], rules: RuleSet) -> list[Node]:
    """The nodes of `group` that need elements which are not derived inside it, or have no kernel else."""
    derived: set[Value] = set()
    lost = []
    for node in group:
        if _derives(node, derived):
            derived.update(v for v in node.outputs if v is not None)
        needed = [node.inputs[i] for i in CONTENT.get(node.op_type, ()) if i < len(node.inputs)]
        missing = any(v is not None and v.const is None and v not in derived for v in needed)
        written = (node.domain, node.op_type) in rules or node.op is None or node.op.broadcasts
        if missing or not (written or _derives(node, derived)):
            lost.append(node)
    return lost
