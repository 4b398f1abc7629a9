"""Parts: nodes of a graph that a provider compiles together; and a compiled one as a file keeps it.

In: a graph and the nodes that are claimed. Out: groups of them that can be one part without making a cycle.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from dataclasses import field, replace

from ..ir import Graph, ModelInfo, Node, Value
from ..records import dataclass


def short_name(provider: str, name: str) -> str:
    """What people call a part that bears onnxruntime's kind of name; the name itself where it is another."""
    number = name.rpartition("_")[2]
    if not name.startswith(provider) or not number.isdecimal():
        return name
    return f"{provider.removesuffix('ExecutionProvider').lower()} {number}"


@dataclass(eq=False)
class Part:
    """What one provider compiles together: nodes in order, the values that come
    in, and those that others read.

    `inputs` holds no constants; a node's constant inputs have their array in `Value.const`. `info`: of the
    model that the nodes are from; `origin`: their graph, where that is known, for as long as it is there.
    """

    provider: str
    nodes: list[Node]
    inputs: list[Value]
    outputs: list[Value]
    name: str = ""
    info: ModelInfo = field(default_factory=ModelInfo)
    origin: weakref.ref[Graph] | None = None

    @property
    def fused(self) -> bool:
        return bool(self.name)

    def __str__(self) -> str:
        return self.name or self.nodes[0].label

    @property
    def short(self) -> str:
        """`cpu 3`: its provider, and its number among the model's parts; "" where it is not fused."""
        return short_name(self.provider, self.name)

    def graph(self) -> Graph:
        """The part as a graph of its own: what others compute comes in as inputs, what others read goes out.
        It shares its nodes and values with the model's graph and is only good for being written."""
        made = Graph(str(self), info=replace(self.info, opsets=dict(self.info.opsets), graph_doc="",
                                             denotations={}))
        made.inputs, made.outputs, made.nodes = list(self.inputs), list(self.outputs), list(self.nodes)
        read = [v for node in self.nodes for v in node.inputs if v is not None]
        read += [v for node in self.nodes for body in node.bodies() for v in body.captures()]
        for value in dict.fromkeys(read):
            if value.const is not None and value.node is None:
                key = value.name if value.name not in made.initializers else made.fresh(value.name)
                made.initializers[key] = value
        return made


@dataclass(frozen=True)
class Stored:
    """A compiled part as a file keeps it: bytes that mean something to its provider only. `version`: of the
    engine that made it, `target`: of the machine it is for, both in the provider's words; `notes`: for
    people; `signature`: see `trust`, empty where nobody signed."""

    data: bytes
    version: str = ""
    target: str = ""
    notes: str = ""
    signature: str = ""


def convex_groups(graph: Graph, claimed: Iterable[Node],
                  apart: Callable[[Value, Node], bool] = lambda value, reader: False) -> list[list[Node]]:
    """`claimed` in connected groups, none of which another node stands between: fusing one makes no cycle.
    `apart`: whether the reader of a value has to be in a later group than what makes it.

    Every node gets a stage, which rises by one wherever a path goes from claimed to unclaimed or back, and
    between nodes that have to be apart; connected claimed nodes of one stage form a group.
    """
    mine = set(claimed)
    stage: dict[Node, int] = {}
    group: dict[Node, int] = {}
    parent: list[int] = []

    def root(i: int) -> int:
        while parent[i] != i:
            parent[i] = parent[parent[i]]
            i = parent[i]
        return i

    for node in graph.nodes:
        values = [v for v in node.inputs if v is not None]
        for body in node.bodies():
            values += body.captures()
        sources = [v.node for v in values if v.node is not None and v.node in stage]
        stage[node] = max((stage[v.node] + ((v.node in mine) != (node in mine) or apart(v, node))
                           for v in values if v.node is not None and v.node in stage),
                          default=int(node not in mine))
        if node in mine:
            group[node] = len(parent)
            parent.append(len(parent))
            for s in sources:
                if s in mine and stage[s] == stage[node]:
                    parent[root(group[s])] = root(group[node])
    out: dict[int, list[Node]] = {}
    for node in graph.nodes:
        if node in mine:
            out.setdefault(root(group[node]), []).append(node)
    return list(out.values())
