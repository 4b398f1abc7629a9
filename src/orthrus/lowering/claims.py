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
from .contents import Contents, contents, derives, undecided
from .lower import RULES, RuleSet

_NARROW = frozenset({"DequantizeLinear", "GatherBlockQuantized"})
"""Operators whose constants may be of few bits: these are packed, or computed, while lowering."""

_VIEWS = VIEWS | {"Transpose", "Slice", "Shape", "Size"}
"""Operators that cost numpy nothing: beside other parts they are not worth one, as whole models they are:
what a caller is given is copied in any case."""

_FREE = "views cost nothing where they are"
_SIZES = "it follows from sizes and small numbers, which are the host's to compute with"
_CONTROL = "control flow: the nodes of its bodies are placed by themselves"
REGISTERED = "a registered kernel comes first"

HARMLESS = frozenset({_FREE, _SIZES, _CONTROL, REGISTERED})
"""Reasons to leave a node out by which nothing is lost."""


def groups(graph: Graph, nodes: Iterable[Node], registered: Callable[[Node], bool], views: bool = False,
           rules: RuleSet = RULES, deciding: bool = False) -> tuple[list[list[Node]], dict[Node, str]]:
    """Convex groups of `nodes` to compile by `rules`, and why each other node was left out; `views`: groups
    of nothing but views count. `deciding`: what comes to a part from outside may decide shapes in it."""
    why: dict[Node, str] = {}
    taken: dict[Node, None] = {}
    derived: set[Value] = set()
    nodes = list(nodes)
    if deciding:
        for node in nodes:
            whatever = refusal(node, contents(node), registered, rules)
            if whatever is not None:
                why[node] = whatever.reason
        derived = Contents.of(node for node in nodes if node not in why).hosted
    for node in nodes:
        why_not = refusal(node, derived, registered, rules)
        if why_not is None:
            taken[node] = None
            why.pop(node, None)
            if derives(node, derived):
                derived.update(v for v in node.outputs if v is not None)
        else:
            why.setdefault(node, why_not.reason)
    while True:
        known = Contents.of(taken) if deciding else Contents()
        found = convex_groups(graph, taken, known.apart)
        lost = [node for group in found for node in _undecided(group, rules, known.hosted)]
        if not lost:
            break
        for node in lost:
            why[node] = "its shape depends on elements that another part computes"
            del taken[node]
    sizes = [group for group in found if deciding and _derived(group, known.hosted)]
    why.update((n, _SIZES) for group in sizes for n in group)
    idle = [] if views else [group for group in found if len(group) < len(graph.nodes)
                             and all(n.op_type in _VIEWS for n in group)
                             and not any(_turns(n) for n in group)]
    why.update((n, _FREE) for group in idle for n in group)
    return [group for group in found if group not in idle and group not in sizes], why


def refusal(node: Node, derived: Collection[Value] = (), registered: Callable[[Node], bool] = lambda _: False,
            rules: RuleSet = RULES) -> No | None:
    """Why no kernel is generated for `node` by `rules`, where the elements of the values `derived` are known
    by then."""
    op = node.op
    if node.has_bodies:
        return No(_CONTROL)
    if registered(node):
        return No(REGISTERED)
    if op is None:
        return No(f"{node.kind} has no definition")
    for value in (*node.inputs, *node.outputs):
        if value is not None and not _numeric(value) and not (
                node.op_type in _NARROW and isinstance(value.const, np.ndarray)):
            return No(_odd(value))
    if all(v is None or v.dead for v in node.outputs):
        return No("nobody reads it")
    if derives(node, derived) and not op.runtime - {"n_outputs"}:
        return None
    why = undecided(node, lambda v: v in derived)
    if why is not None:
        return why
    rule = rules.of(node)
    if rule is not None:
        return rule if isinstance(rule, No) else None
    if op.broadcasts:
        present = [v for v in node.inputs if v is not None]
        numbers = {i: v.const.reshape(())[()] for i, v in enumerate(present)
                   if v.const is not None and v.const.size == 1}
        made = trace(op, node.attrs, [v.elem.numpy.name for v in present], numbers)
        return made if isinstance(made, No) else None
    return No(f"no generated kernel of {node.kind}")


def _odd(value: Value) -> str:
    kind = "of unknown type" if value.type is None else f"a {value.type}"
    return f"%{value.name} is {kind}, and kernels compute with tensors of numbers"


def whole(graph: Graph, registered: Callable[[Node], bool]) -> dict[Node, str]:
    """Which nodes of a graph keep it from being one part for inputs of known sizes, themselves or what bodies
    in them hold, and why. What depends on the sizes is found while lowering."""
    why = dict[Node, str]()
    for node in graph.nodes:
        for inner in (node, *(each for body in node.bodies() for each in body.walk())):
            reason = _never(inner, registered)
            if reason and node not in why:
                why[node] = reason if inner is node else f"{inner.label} in it: {reason}"
    return why


def _never(node: Node, registered: Callable[[Node], bool]) -> str:
    """Why no kernel is generated for `node`, whatever the sizes; "" where there may be one."""
    if node.op is None:
        return f"{node.kind} has no definition"
    if registered(node):
        return REGISTERED
    odd = next((v for v in (*node.inputs, *node.outputs) if v is not None and not _numeric(v) and not (
        node.op_type in _NARROW and isinstance(v.const, np.ndarray))), None)
    if odd is not None:
        return _odd(odd)
    if node.has_bodies and (node.domain, node.op_type) not in RULES:
        return f"no code is generated for the bodies of {node.kind}"
    return ""


def from_sizes(nodes: Iterable[Node]) -> set[Node]:
    """Those of `nodes`, in their order, whose results follow from shapes and constants: the host's to
    compute."""
    derived, found = set[Value](), set[Node]()
    for node in nodes:
        if derives(node, derived):
            found.add(node)
            derived.update(v for v in node.outputs if v is not None)
    return found


def alone(node: Node, rules: RuleSet) -> No | None:
    """Why `node` by itself is not taken by `rules`, where what comes from outside may decide shapes."""
    given = contents(node)
    return No(_SIZES) if derives(node, given) else refusal(node, given, rules=rules)


def _turns(node: Node) -> bool:
    """Whether a caller is given what `node` turns: a view would be copied then."""
    return node.op_type == "Transpose" and bool(node.output.graph_outputs)


def _numeric(value: Value) -> bool:
    kind = value.type
    return isinstance(kind, TensorType) and kind.elem is not None and kind.elem.numpy.name in LLVM


def _derived(group: list[Node], hosted: Collection[Value]) -> bool:
    """Whether all of `group` is known once the values `hosted` are."""
    known = set(hosted)
    for node in group:
        if not derives(node, known):
            return False
        known.update(v for v in node.outputs if v is not None)
    return True


def _undecided(group: list[Node], rules: RuleSet, hosted: Collection[Value]) -> list[Node]:
    """The nodes of `group` that need elements which are not derived inside it, or have no kernel else.
    `hosted`: values that are known where they come from outside of it."""
    inside = set(group)
    derived = {v for v in hosted if v.node not in inside}
    lost = []
    for node in group:
        if derives(node, derived):
            derived.update(v for v in node.outputs if v is not None)
        missing = any(v not in derived for v in contents(node))
        written = (node.domain, node.op_type) in rules or node.op is None or node.op.broadcasts
        if missing or not (written or derives(node, derived)):
            lost.append(node)
    return lost
