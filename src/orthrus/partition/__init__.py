"""Capability to parts: every provider is asked once, in priority order, and every refusal keeps its reason.

In: an optimized graph and the session's providers, the CPU provider last. Out: `Placement`, whose
parts hold each node of the graph exactly once, in an order in which they can run. Bodies of control
flow have placements of their own.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import field
from graphlib import TopologicalSorter
from hashlib import blake2b

from ..errors import EPFail
from ..errors import NotImplemented as NotImplementedFail
from ..ir import Graph, No, Node, Value
from ..kernels import Part
from ..providers import CPUExecutionProvider
from ..providers.base import INTERPRETED, Capability, ExecutionProvider, GraphView, Remark, interpreted
from ..providers.ep_node import is_context, maker, part_of
from ..records import dataclass


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why `provider` left a node alone."""

    provider: str
    reason: str

    def __str__(self) -> str:
        return f"{self.provider}: {self.reason}"


@dataclass(eq=False)
class Placement:
    """A graph's parts in running order, every node's refusals by the providers asked
    before its own, what its own remarked on it, and the bodies'."""

    graph: Graph
    parts: list[Part]
    refusals: dict[Node, list[Refusal]] = field(default_factory=dict)
    bodies: dict[Graph, Placement] = field(default_factory=dict)
    remarks: dict[Node, Remark] = field(default_factory=dict)


def partition(graph: Graph, providers: Sequence[ExecutionProvider]) -> Placement:
    """Place every node. Raises NotImplemented for a node that nobody takes, EPFail for a
    capability that is impossible."""
    return _partition(graph, providers, _digest(graph), [0])


def _partition(graph: Graph, providers: Sequence[ExecutionProvider], digest: str,
               counter: list[int]) -> Placement:
    bodies = {body: _partition(body, providers, digest, counter)
              for node in graph.nodes for body in node.bodies()}
    free: dict[Node, None] = dict.fromkeys(graph.nodes)
    refusals: dict[Node, list[Refusal]] = {node: [] for node in graph.nodes}
    remarks: dict[Node, Remark] = {}
    owner: dict[Node, Part] = {}
    place = {node: i for i, node in enumerate(graph.nodes)}
    by_name = interpreted()
    for provider in providers:
        numpy_too = provider.name == CPUExecutionProvider.name
        for node in [node for node in free if is_context(node) and maker(node) == provider.name]:
            owner[node] = part_of(node, graph.info)
            del free[node]
        view = GraphView(graph, [node for node in free
                                 if (numpy_too or not by_name(node)) and not is_context(node)])
        _offer(provider, view, free, owner, remarks, place, digest, counter)
        for node in free:
            reason = view.refusals.get(node, "not among its capabilities")
            reason = INTERPRETED if by_name(node) else reason
            reason = f"compiled for {maker(node)}" if is_context(node) else reason
            refusals[node].append(Refusal(provider.name, reason))
    if free:
        node = next(iter(free))
        if is_context(node):
            raise NotImplementedFail(
                f"the model holds a part compiled for {maker(node) or 'an unnamed provider'}", node=node,
                found=f"the providers {', '.join(p.name for p in providers)}",
                cure="ask for that provider, or use the model that this one was compiled from")
        raise NotImplementedFail(
            f"Could not find an implementation for {node.op_type}({node.version}) node with name "
            f"'{node.name}'",
            node=node, found="; ".join(map(str, refusals[node])),
            cure="register the operator with @orthrus.op, or a provider that has it")
    return Placement(graph, _ordered(graph, owner, counter), refusals, bodies, remarks)


def _offer(provider: ExecutionProvider, view: GraphView, free: dict[Node, None], owner: dict[Node, Part],
           remarks: dict[Node, Remark], place: dict[Node, int], digest: str, counter: list[int]) -> None:
    """Let `provider` take of the nodes in `view` what it can: what it took is `free` no more."""
    for capability in provider.get_capability(view):
        if not capability.nodes or any(node not in free for node in capability.nodes):
            continue
        for part in _parts(view.graph, provider, capability, place, digest, counter):
            for node in part.nodes:
                owner[node] = part
                del free[node]
                if node in view.remarks:
                    remarks[node] = view.remarks[node]


def hand_back(placement: Placement, part: Part, why: No, providers: Sequence[ExecutionProvider]) -> None:
    """Offer the nodes of `part`, which its provider cannot compile after all, to the providers behind it.
    Raises NotImplemented where none takes them."""
    place = next(i for i, p in enumerate(providers) if p.name == part.provider)
    graph, free = placement.graph, dict.fromkeys(part.nodes)
    order = {node: i for i, node in enumerate(graph.nodes)}
    owner = {node: other for other in placement.parts if other is not part for node in other.nodes}
    digest, counter = _digest(graph), [len(placement.parts)]
    for node in free:
        placement.refusals[node].append(Refusal(part.provider, why.reason))
    for provider in providers[place + 1:]:
        view = GraphView(graph, list(free))
        _offer(provider, view, free, owner, placement.remarks, order, digest, counter)
        for node in free:
            reason = view.refusals.get(node, "not among its capabilities")
            placement.refusals[node].append(Refusal(provider.name, reason))
    if free:
        node = next(iter(free))
        raise NotImplementedFail(
            f"{part.provider} gave {node.op_type} back, and no provider behind it takes it", node=node,
            found="; ".join(map(str, placement.refusals[node])))
    placement.parts = _ordered(graph, owner, counter)


def _parts(graph: Graph, provider: ExecutionProvider, capability: Capability, place: dict[Node, int],
           digest: str, counter: list[int]) -> list[Part]:
    if capability.name is None:
        return [Part(provider.name, [node], *_border([node]), info=graph.info, origin=weakref.ref(graph))
                for node in capability.nodes]
    nodes = sorted(set(capability.nodes), key=place.__getitem__)
    return [_fused(graph, provider.name, f"{provider.name}_{capability.name}_{digest}", nodes, counter)]


def _fused(graph: Graph, provider: str, stem: str, nodes: list[Node], counter: list[int]) -> Part:
    name = f"{stem}_{counter[0]}_{counter[0]}"
    counter[0] += 1
    return Part(provider, nodes, *_border(nodes), name, graph.info, weakref.ref(graph))


def _border(nodes: Sequence[Node]) -> tuple[list[Value], list[Value]]:
    """What comes in and is no constant, and what others read."""
    if len(nodes) == 1 and not nodes[0].has_bodies:
        inputs = dict.fromkeys(v for v in nodes[0].inputs if v is not None and v.const is None)
        return list(inputs), [v for v in nodes[0].outputs if v is not None and not v.dead]
    inside, made = set(nodes), {v for node in nodes for v in node.outputs if v is not None}
    below = {inner for node in nodes for body in node.bodies() for inner in body.walk()}
    read: dict[Value, None] = {}
    for node in nodes:
        values = [*node.inputs, *(v for body in node.bodies() for v in body.captures())]
        read.update((v, None) for v in values if v is not None and v not in made and v.const is None)
    outputs = [v for node in nodes for v in node.outputs
               if v is not None and (v.graph_outputs
                                     or any(u not in inside and u not in below for u in v.uses))]
    return list(read), outputs


def _ordered(graph: Graph, owner: dict[Node, Part], counter: list[int]) -> list[Part]:
    """Parts in an order in which each runs after what it reads. Where fused parts of several providers wait
    for each other, those that were placed later are divided. Raises EPFail for one that waits for itself."""
    if not any(part.fused for part in owner.values()):
        return [owner[node] for node in graph.nodes]
    parts = list(dict.fromkeys(owner[node] for node in graph.nodes))
    order = _by_reads(parts)
    if len(order) == len(parts):
        return order
    placed: dict[Node, Part] = {}
    for part in dict.fromkeys(owner.values()):
        if part.fused and len(_stages(graph, {}, part.nodes)) > 1:
            raise EPFail(f"{part.provider} asked for a part that would wait for itself", node=part.name,
                         cure="return connected, convex groups from get_capability; "
                              "convex_groups(graph, nodes) makes them")
        for piece in _divided(graph, placed, part, counter):
            placed.update(dict.fromkeys(piece.nodes, piece))
    return _by_reads(list(dict.fromkeys(placed[node] for node in graph.nodes)))


def _by_reads(parts: Sequence[Part]) -> list[Part]:
    """`parts`, each after those whose results it reads; without those that wait for each other."""
    maker = {v: part for part in parts for v in part.outputs}
    waits: dict[Part, int] = {}
    readers: dict[Part, list[Part]] = {part: [] for part in parts}
    for part in parts:
        sources = {maker[v] for v in part.inputs if v in maker}
        waits[part] = len(sources)
        for source in sources:
            readers[source].append(part)
    order, ready = list[Part](), [part for part in reversed(parts) if not waits[part]]
    while ready:
        part = ready.pop()
        order.append(part)
        for reader in reversed(readers[part]):
            waits[reader] -= 1
            if not waits[reader]:
                ready.append(reader)
    return order


def _divided(graph: Graph, placed: Mapping[Node, Part], part: Part, counter: list[int]) -> list[Part]:
    """A part, or the parts it has to become so that none waits for one of `placed` that waits for it."""
    stages = _stages(graph, placed, part.nodes) if part.fused else []
    if len(stages) < 2:
        return [part]
    stem = part.name.rsplit("_", 2)[0]
    return [_fused(graph, part.provider, stem, nodes, counter) for nodes in stages]


def _stages(graph: Graph, placed: Mapping[Node, Part], nodes: Sequence[Node]) -> list[list[Node]]:
    """`nodes` by how often a path to them, through whole parts that are `placed`, has left them before."""
    mine = set(nodes)
    units: dict[Part | Node, list[Node]] = {}
    for node in graph.nodes:
        units.setdefault(placed.get(node, node), []).append(node)
    reads = {unit: {placed.get(v.node, v.node) for v in _border(held)[0] if v.node is not None}
             for unit, held in units.items()}
    stage: dict[Part | Node, int] = {}
    for unit in TopologicalSorter(reads).static_order():
        if unit in units:
            stage[unit] = max((stage[source] + (source in mine and unit not in mine)
                               for source in reads[unit] if source in stage), default=0)
    found: dict[int, list[Node]] = {}
    for node in nodes:
        found.setdefault(stage[node], []).append(node)
    return [found[i] for i in sorted(found)]


def _digest(graph: Graph) -> str:
    """A number for the model, as onnxruntime puts into the names of fused nodes."""
    digest = blake2b(digest_size=8)
    for node in graph.nodes:
        text = f"{node.kind}{[v.name if v else '' for v in node.outputs]}"
        digest.update(text.encode("utf-8", "surrogatepass"))
    return str(int.from_bytes(digest.digest(), "little"))
