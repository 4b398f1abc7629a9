"""What a page of `orthrus view` shows, as plain data.

In: a session, and where the model was run a profile of it. Out: `ViewData`, whose lists refer to each other
by index: nodes and the groups they stand in, values, edges, parts. Equal sessions give equal data: no clock
and no address goes in.
"""

from __future__ import annotations

import math
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, field, replace
from typing import Any

import numpy as np

from ...ir import Graph, Node, Value, shape_text
from ...kernels import Span
from ...records import dataclass
from ...run.explain import Explanation, NodeReport
from ...shown import size_text
from .groups import Scope, grouped
from .origin import differs, origins

_TEXT = 240
"""Characters of an attribute or a constant that a page shows."""

_ELEMENTS = 16
"""Elements up to which a constant is shown."""

_BORDER = 24
"""Inputs or outputs from which on they share a box."""


@dataclass(frozen=True)
class ViewValue:
    """A value: `kind` is input, constant or empty; `text` the elements of a small constant."""

    name: str
    type: str
    kind: str = ""
    text: str = ""


@dataclass(frozen=True)
class Measured:
    """What a run showed of a node: start in the first run and seconds (mean of a run), kernel, floating-point
    operations, bytes moved, share of the machine's peak, and the types it saw. `fused`: labels of the nodes
    that the same kernel computes."""

    start: float
    seconds: float
    calls: int
    kernel: str
    flop: int
    bytes: int
    share: float | None
    bound: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    fused: tuple[str, ...]


@dataclass(frozen=True)
class Distance:
    """How far a node's worst result is from its definition's: the largest absolute difference, gathered from
    the model's inputs on, and in units of what is allowed; `own`: what the node itself adds, in the same
    units, None where that was not asked. Infinite numbers are None."""

    largest: float | None
    excess: float | None
    own: float | None


@dataclass(frozen=True)
class ViewNode:
    """A node, or with `kind` input or output a border of a graph. `group` and `body`: indices of the group it
    stands in and of the one that holds its bodies, -1 for none; `inputs`, `outputs`: of values. `reasons`:
    who left it and why; `free`: it follows from shapes alone and costs a run nothing; `origin`: operators and
    names of the file's nodes it stands for, where it is not one of them."""

    name: str
    kind: str
    op: str
    domain: str
    version: int
    group: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    body: int = -1
    provider: str = ""
    kernel: str = ""
    part: str = ""
    attributes: tuple[tuple[str, str], ...] = ()
    reasons: tuple[tuple[str, str], ...] = ()
    free: bool = False
    measured: Measured | None = None
    distance: Distance | None = None
    origin: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class ViewGroup:
    """A box that can be closed: `kind` is scope (nodes of one name prefix), block (a stretch of a long
    graph), border (many inputs or outputs), control (a node with bodies) or body."""

    title: str
    kind: str
    parent: int
    node: int = -1


@dataclass(frozen=True)
class ViewPart:
    """What one provider compiled together; without a name, what runs outside of compiled parts. `arena`,
    `packed`: bytes; `steps`: kernel and nodes of each."""

    name: str
    provider: str
    nodes: int
    arena: int
    packed: int
    steps: tuple[str, ...]
    memory: tuple[Span, ...]


@dataclass(frozen=True)
class ViewData:
    """A whole page. `edges`: (maker, reader, value) indices; `seconds`: of a run, `stepwise`: taken apart;
    `peak`: operations and bytes per second of the machine, and its threads; `others`: processors that other
    programs kept busy around the runs; `file`: the graph as the model's file has it."""

    model: str
    facts: tuple[tuple[str, str], ...]
    passes: tuple[tuple[str, int], ...]
    nodes: tuple[ViewNode, ...]
    values: tuple[ViewValue, ...]
    groups: tuple[ViewGroup, ...]
    edges: tuple[tuple[int, int, int], ...]
    parts: tuple[ViewPart, ...] = ()
    runs: int = 0
    seconds: float | None = None
    stepwise: float | None = None
    peak: Mapping[str, float] = field(default_factory=dict)
    checked: bool = False
    others: float = 0.0
    file: ViewData | None = None

    def plain(self) -> dict[str, Any]:
        """Dicts and lists for JSON, with what is empty left out of nodes and values."""
        data = asdict(replace(self, file=None))
        data["file"] = None if self.file is None else self.file.plain()
        for key in ("nodes", "values"):
            data[key] = [{k: v for k, v in row.items() if v not in ("", (), None)} for row in data[key]]
        return data


def collect(session: Any, model: str, profile: Any = None,
            distances: Mapping[str, Distance] | None = None, file: Graph | None = None, others: float = 0.0
            ) -> ViewData:
    """The page's data for `session`. `profile`: what `session.profile()` gave, None where nothing ran;
    `distances`: by the name of a value; `file`: the graph before optimization; `others`: processors that
    other programs kept busy around the runs."""
    graph, report = session._sess._engine.graph, session.explain()
    made = _Collected(report, () if profile is None else profile.nodes, distances or {},
                      {} if file is None else origins(file, graph))
    made.add(graph, -1)
    data = ViewData(
        model, tuple(_facts(session, graph)), tuple((p.name, p.count) for p in report.passes if p.count),
        tuple(made.nodes), tuple(made.values), tuple(made.groups), tuple(made.edges), tuple(_parts(report)),
        checked=distances is not None, others=others, file=None if file is None else _as_in_file(file, model))
    if profile is None:
        return data
    peak = {"flops": profile.peak.flops, "bandwidth": profile.peak.bandwidth, "threads": profile.peak.threads}
    return replace(data, runs=profile.runs, seconds=profile.native_seconds or profile.seconds,
                   stepwise=profile.seconds, peak=peak)


def _as_in_file(graph: Graph, model: str) -> ViewData:
    made = _Collected(None, (), {}, {})
    made.add(graph, -1)
    facts = (("nodes", f"{sum(1 for _ in graph.walk()):,} in the file"),)
    return ViewData(model, facts, (), tuple(made.nodes), tuple(made.values), tuple(made.groups),
                    tuple(made.edges))


class _Collected:
    """The lists of a page while the graph is walked; without a report, of a graph that does not run."""

    def __init__(self, report: Explanation | None, profiles: Sequence[Any],
                 distances: Mapping[str, Distance], origin: Mapping[Node, tuple[Node, ...]]) -> None:
        self.nodes: list[ViewNode] = []
        self.values: list[ViewValue] = []
        self.groups: list[ViewGroup] = []
        self._reads: list[tuple[Value, int]] = []
        self.distances = distances
        self._index: dict[Value, int] = {}
        self._maker: dict[Value, int] = {}
        self._origin = origin
        parts = () if report is None else report.parts
        self._reports = _queued((r.node, r.op_type, r) for r in (() if report is None else report.nodes))
        self._numpy = {node: why for part in parts for node, why in part.numpy.items()}
        self._free = {node for part in parts if part.plan for node in part.plan.known}
        self._profiles = _queued((p.node, p.op_type, p) for p in profiles)

    def value(self, value: Value | None, kind: str = "") -> int:
        """The index of a value; -1 for one that is absent."""
        if value is None:
            return -1
        if value not in self._index:
            self._index[value] = len(self.values)
            constant = value.const is not None and not kind
            self.values.append(ViewValue(
                value.name, "" if value.type is None else shape_text(value.type),
                "constant" if constant else kind, _elements(value.const) if constant else ""))
        return self._index[value]

    def add(self, graph: Graph, group: int) -> None:
        """Everything of `graph` into the group with index `group`."""
        at = self._border(graph.inputs, "inputs", group)
        for value in graph.inputs:
            self._maker[value] = len(self.nodes)
            self.nodes.append(ViewNode(value.name, "input", "", "", 0, at, (),
                                       (self.value(value, "input"),)))
        for child in grouped(graph):
            self._place(child, group)
        at = self._border(graph.outputs, "outputs", group)
        for value in graph.outputs:
            index = len(self.nodes)
            self.nodes.append(ViewNode(value.name, "output", "", "", 0, at, (self.value(value),), ()))
            self._reads.append((value, index))

    def _border(self, values: Sequence[Value], title: str, group: int) -> int:
        """The group that inputs or outputs stand in: one of their own where they are many."""
        if len(values) <= _BORDER:
            return group
        self.groups.append(ViewGroup(f"{len(values)} {title}", "border", group))
        return len(self.groups) - 1

    def _place(self, child: Scope | Node, group: int) -> None:
        if isinstance(child, Node):
            self._node(child, group)
            return
        index = len(self.groups)
        self.groups.append(ViewGroup(child.title, child.kind, group))
        for inner in child.children:
            self._place(inner, index)

    def _node(self, node: Node, group: int) -> None:
        index, bodies = len(self.nodes), list(node.bodies())
        body = -1
        if bodies:
            body = len(self.groups)
            self.groups.append(ViewGroup(f"{node.kind} {node.label}", "control", group, index))
        report = self._reports(node)
        self.nodes.append(ViewNode(
            node.label, "node", node.op_type, node.domain, node.version, body if bodies else group,
            tuple(self.value(v) for v in node.inputs), tuple(self.value(v) for v in node.outputs), body,
            "" if report is None else report.provider, "" if report is None else report.kernel,
            f"{report.short_part} ({report.part})" if report is not None and report.part else "",
            tuple(_attributes(node)),
            () if report is None else tuple(self._reasons(report)), node.label in self._free,
            _measured(self._profiles(node)), self._distance(node), self._origins(node)))
        self._maker.update((v, index) for v in node.outputs if v is not None)
        for name, inner in _named_bodies(node):
            at = body
            if len(bodies) > 1:
                at = len(self.groups)
                self.groups.append(ViewGroup(name, "body", body, index))
            self.add(inner, at)
        for value in dict.fromkeys(v for v in node.inputs if v is not None):
            self._reads.append((value, index))

    @property
    def edges(self) -> Iterator[tuple[int, int, int]]:
        """Maker, reader and value of each edge; a box may come before what it reads."""
        for value, reader in self._reads:
            if value in self._maker:
                yield self._maker[value], reader, self.value(value)

    def _reasons(self, report: NodeReport) -> Iterator[tuple[str, str]]:
        for refusal in report.refusals:
            yield f"not {refusal.provider}", refusal.reason
        if report.remark:
            yield "no generated code", report.remark
        if report.node in self._numpy:
            yield "on numpy", self._numpy[report.node]

    def _origins(self, node: Node) -> tuple[tuple[str, str], ...]:
        origin = self._origin.get(node, ())
        return tuple((each.op_type, each.label) for each in origin) if differs(node, origin) else ()

    def _distance(self, node: Node) -> Distance | None:
        found = [self.distances[v.name] for v in node.outputs if v is not None and v.name in self.distances]
        return max(found, key=lambda d: math.inf if d.excess is None else d.excess, default=None)


def _queued(rows: Iterable[tuple[str, str, Any]]) -> Any:
    """A function that gives a node the next of `rows` of its label and operator; names need not be unique."""
    waiting: defaultdict[tuple[str, str], deque[Any]] = defaultdict(deque)
    for label, op_type, row in rows:
        waiting[label, op_type].append(row)

    def take(node: Node) -> Any:
        found = waiting[node.label, node.op_type]
        return found.popleft() if found else None
    return take


def _named_bodies(node: Node) -> Iterator[tuple[str, Graph]]:
    for name, attr in node.attrs.items():
        if isinstance(attr, Graph):
            yield name, attr
        elif isinstance(attr, list) and attr and isinstance(attr[0], Graph):
            yield from ((f"{name}[{i}]", graph) for i, graph in enumerate(attr))


def _attributes(node: Node) -> Iterator[tuple[str, str]]:
    for name, attr in node.attrs.items():
        if isinstance(attr, Graph) or (isinstance(attr, list) and attr and isinstance(attr[0], Graph)):
            continue
        yield name, _array(attr) if isinstance(attr, np.ndarray) else _short(
            attr if isinstance(attr, str) else repr(attr))


def _elements(array: Any) -> str:
    """The elements of a small constant."""
    if not isinstance(array, np.ndarray | np.generic) or array.size > _ELEMENTS:
        return ""
    try:
        return _short(", ".join(str(x) for x in np.asarray(array).ravel().tolist()))
    except (TypeError, ValueError):
        return ""


def _array(array: Any) -> str:
    return _elements(array) or f"{array.dtype}[{', '.join(map(str, array.shape))}]"


def _short(text: str) -> str:
    return text if len(text) <= _TEXT else text[:_TEXT - 1] + "…"


def _measured(row: Any) -> Measured | None:
    if row is None:
        return None
    return Measured(row.start, row.seconds, row.calls, row.kernel, row.flop, row.bytes, row.share, row.bound,
                    tuple(row.inputs), tuple(row.outputs), tuple(row.fused))


def _parts(report: Explanation) -> Iterator[ViewPart]:
    for part in report.parts:
        steps = part.plan.steps if part.plan is not None else ()
        yield ViewPart(part.name, part.provider, len(part.nodes), part.arena, part.packed,
                       tuple(f"{step.kernel}: {', '.join(step.nodes)}" for step in steps),
                       part.places)
    if report.outside:
        yield ViewPart("", "", 0, report.outside_bytes, 0, (), report.outside)


def _facts(session: Any, graph: Graph) -> Iterator[tuple[str, str]]:
    info = graph.info
    total = sum(1 for _ in graph.walk())
    yield "nodes", f"{total:,} after optimization"
    size = sum(v.const.nbytes for v in graph.initializers.values() if isinstance(v.const, np.ndarray))
    yield "constants", f"{len(graph.initializers):,}, {size_text(size)}"
    yield "opsets", ", ".join(f"{domain or 'ai.onnx'} {version}" for domain, version in info.opsets.items())
    producer = " ".join(filter(None, (info.producer_name, info.producer_version)))
    if producer:
        yield "producer", producer
    yield "providers", ", ".join(session.get_providers())

