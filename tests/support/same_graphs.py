"""Models compared up to the names of their values and nodes, and up to the order of nodes.

In: two ModelProtos. Out: their main graphs as tuples that are equal where the graphs are: what each output is
computed from, and how often each node is there. An attribute that says its default is as good as none.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import onnx
from onnx import numpy_helper


def written(model: onnx.ModelProto) -> tuple[Any, ...]:
    """What the model computes, without the names inside: opsets, inputs, outputs and nodes."""
    graph = model.graph
    opsets = {_domain(entry.domain): entry.version for entry in model.opset_import}
    known: dict[str, int] = {"": 0}
    numbers: dict[Any, int] = {}

    def number(key: Any) -> int:
        return numbers.setdefault(key, hash(key))

    for info in graph.input:
        known[info.name] = number(("input", info.name, info.type.SerializeToString()))
    for tensor in graph.initializer:
        known[tensor.name] = number(_array(tensor))
    nodes, left = Counter[int](), list(graph.node)
    while left:
        ready = [node for node in left if all(name in known for name in node.input)]
        assert ready, "the graph is not whole"
        for node in ready:
            attributes = _attributes(node, opsets)
            held = [a.t for a in node.attribute if node.op_type == "Constant" and a.name == "value"]
            key = number(_array(held[0])) if held else number(
                (_domain(node.domain), node.op_type, attributes,
                 tuple(known[name] for name in node.input)))
            for place, name in enumerate(node.output):
                known[name] = key if held else number((key, place))
            nodes[key] += not held
        done = {id(node) for node in ready}
        left = [node for node in left if id(node) not in done]
    outputs = tuple((info.name, known[info.name]) for info in graph.output)
    inputs = tuple(sorted(known[info.name] for info in graph.input))
    return frozenset(opsets.items()), inputs, outputs, frozenset(nodes.items())


def _domain(name: str) -> str:
    return "" if name == "ai.onnx" else name


def _attributes(node: onnx.NodeProto, opsets: dict[str, int]) -> tuple[Any, ...]:
    domain = _domain(node.domain)
    defaults = {}
    if onnx.defs.has(node.op_type, opsets[domain], domain):
        schema = onnx.defs.get_schema(node.op_type, opsets[domain], domain)
        defaults = {name: _attribute(a.default_value) for name, a in schema.attributes.items()}
    return tuple(sorted((a.name, _attribute(a)) for a in node.attribute
                        if _attribute(a) != defaults.get(a.name)))


def _array(tensor: onnx.TensorProto) -> Any:
    return "constant", tensor.data_type, tuple(tensor.dims), numpy_helper.to_array(tensor).tobytes()


def _attribute(attribute: onnx.AttributeProto) -> Any:
    if not attribute.type:
        return None
    if attribute.type == onnx.AttributeProto.TENSOR:
        return repr(_array(attribute.t))
    return repr(onnx.helper.get_attribute_value(attribute))
