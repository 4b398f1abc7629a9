"""A ModelProto's graph as the pattern matcher sees it.

In: an ONNXModel, and patterns as the optimizer's rules write them. Out: the NodeProtos that a pattern covers
and what its variables stand for. The invariant: what is found can be taken out of the graph, as nothing
outside, neither a graph output nor a body of control flow, reads a value that the covered nodes make but the
last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import onnx
from onnx import numpy_helper
from onnx.external_data_helper import uses_external_data
from onnx.helper import get_attribute_value

from ...ir import Node, Value
from ...ops.define import find as definition
from ...ops.infer import from_type_proto
from ...optimize.pattern import Apply, Either, Kind, Match, Template, find
from ...records import dataclass
from ..onnx_model import ONNXModel, read_names, subgraphs

_GRAPHS = (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS)
_SMALL = 64
"""Elements up to which a constant's values matter to a pattern."""


@dataclass(frozen=True)
class Found:
    """The nodes that a pattern covers, the last of them first, and what its variables stand for."""

    nodes: list[onnx.NodeProto]
    bound: dict[str, Any]

    @property
    def output(self) -> str:
        """The name of the result."""
        name: str = self.nodes[0].output[0]
        return name


class Sketch:
    """The nodes of the main graph, before any of them is removed."""

    def __init__(self, model: ONNXModel) -> None:
        graph = model.graph()
        self.types = {info.name: info.type for info in (*graph.value_info, *graph.input, *graph.output)}
        self.values: dict[str, Value] = {}
        self.protos: dict[Node, onnx.NodeProto] = {}
        for tensor in graph.initializer:
            self._constant(tensor.name, tensor)
        versions = {_domain(o.domain): o.version for o in model.opset_import()}
        for index, proto in enumerate(graph.node):
            value = next((a.t for a in proto.attribute if a.name == "value"), None)
            if proto.op_type == "Constant" and value is not None:
                self._constant(proto.output[0], value)
            else:
                self._node(index, proto, versions)
        for output in graph.output:
            self._value(output.name).graph_outputs += 1

    def _value(self, name: str) -> Value:
        if name not in self.values:
            told = self.types.get(name)
            self.values[name] = Value(name, None if told is None else from_type_proto(told))
        return self.values[name]

    def _constant(self, name: str, tensor: onnx.TensorProto) -> None:
        size = 1
        for dim in tensor.dims:
            size *= dim
        if size <= _SMALL and not uses_external_data(tensor):
            self._value(name).const = numpy_helper.to_array(tensor)

    def _node(self, index: int, proto: onnx.NodeProto, versions: dict[str, int]) -> None:
        domain = _domain(proto.domain)
        version = versions.get(domain, 1)
        node = Node(proto.op_type, domain, version, definition(domain, proto.op_type, version),
                    [self._value(name) if name else None for name in proto.input],
                    {a.name: get_attribute_value(a) for a in proto.attribute if a.type not in _GRAPHS},
                    proto.name, index)
        node.outputs = [self._value(name) if name else None for name in proto.output]
        for made in node.outputs:
            if made is not None:
                made.node = node
        for name in set[str]().union(*map(read_names, subgraphs(proto))):
            self._value(name).uses.setdefault(node, 1)
        self.protos[node] = proto

    def find(self, templates: tuple[Template, ...], proto: onnx.NodeProto,
             fits: Callable[[dict[str, Any]], bool]) -> Found | None:
        """The first place around `proto` where one of the patterns is and `fits` says yes to what its
        variables stand for. What was found is not found again."""
        start = self.values[proto.output[0]].node
        kinds = {kind for template in templates for kind in _kinds(template.root)}
        for root in _below(start, kinds) if start in self.protos else ():
            for template in templates:
                match = find(template, root, self.protos, False) if template.root.kind == (
                    root.domain, root.op_type) else None
                if match is not None and start in match.nodes and fits(match.bound):
                    return self._taken(root, match)
        return None

    def _taken(self, root: Node, match: Match) -> Found:
        nodes = [root, *(node for node in match.nodes if node is not root)]
        return Found([self.protos.pop(node) for node in nodes], match.bound)


def _domain(name: str) -> str:
    return "" if name == "ai.onnx" else name


def _below(start: Node | None, kinds: set[Kind]) -> Iterator[Node]:
    """`start` and the nodes of these kinds that read what it makes, directly or by others of them."""
    queue = [] if start is None else [start]
    seen = set(queue)
    for node in queue:
        yield node
        readers = [r for value in node.outputs if value is not None for r in value.uses]
        fresh = [r for r in dict.fromkeys(readers) if (r.domain, r.op_type) in kinds and r not in seen]
        seen.update(fresh)
        queue.extend(fresh)


def _kinds(pattern: Any) -> Iterator[Kind]:
    if isinstance(pattern, Apply):
        yield pattern.kind
    for part in pattern.inputs if isinstance(pattern, Apply) else \
            pattern.options if isinstance(pattern, Either) else ():
        yield from _kinds(part)
