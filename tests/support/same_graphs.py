"""Two models compared up to names: the operators, their attributes, who reads whom and what constants hold.

A value's form is that of the node that makes it, from the outputs down, so that the order of nodes and every
name drop out. Each form is a digest; where two differ, `difference` walks down to the first node that does.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper


class Form:
    """The canonical form of a graph's values."""

    def __init__(self, graph: onnx.GraphProto, outer: Form | None = None) -> None:
        self.graph = graph
        self.outer = outer
        self.constants = {tensor.name: tensor for tensor in graph.initializer}
        self.inputs = [value.name for value in graph.input if value.name not in self.constants]
        self.makers = {name: (node, place) for node in graph.node for place, name in enumerate(node.output)}
        self.known: dict[str, str] = {}

    def value(self, name: str) -> str:
        """The digest of a value."""
        if name not in self.known:
            self.known[name] = self._value(name)
        return self.known[name]

    def _value(self, name: str) -> str:
        if not name:
            return "none"
        if name in self.makers:
            node, place = self.makers[name]
            return digest(self.node(node), place)
        if name in self.constants:
            return digest("constant", constant(self.constants[name]))
        if name in self.inputs:
            return f"input {self.inputs.index(name)}{self.outer is not None}"
        assert self.outer is not None, f"nothing makes {name!r}"
        return self.outer.value(name)

    def node(self, node: onnx.NodeProto) -> str:
        return digest(node.domain if node.domain != "ai.onnx" else "", node.op_type,
                      [self.value(name) for name in trimmed(node.input)],
                      sorted((a.name, self.attribute(a)) for a in node.attribute), len(node.output))

    def attribute(self, attribute: onnx.AttributeProto) -> str:
        if attribute.type == onnx.AttributeProto.GRAPH:
            return Form(attribute.g, self).digest()
        if attribute.type == onnx.AttributeProto.GRAPHS:
            return digest([Form(graph, self).digest() for graph in attribute.graphs])
        if attribute.type == onnx.AttributeProto.TENSOR:
            return constant(attribute.t)
        return repr(onnx.helper.get_attribute_value(attribute))

    def digest(self) -> str:
        return digest([self.value(output.name) for output in self.graph.output])


def trimmed(names: Any) -> list[str]:
    """Inputs without the absent ones at the end."""
    kept = list(names)
    while kept and not kept[-1]:
        kept.pop()
    return kept


def digest(*parts: Any) -> str:
    return hashlib.sha1(repr(parts).encode()).hexdigest()


def constant(tensor: onnx.TensorProto) -> str:
    array = np.ascontiguousarray(numpy_helper.to_array(tensor))
    return f"{tensor.data_type} {array.shape} {hashlib.sha1(array.tobytes()).hexdigest()}"


def _shown(form: Form, name: str) -> str:
    if name in form.makers:
        node, place = form.makers[name]
        attributes = {a.name: str(onnx.helper.get_attribute_value(a))[:60] for a in node.attribute}
        return f"{node.domain}:{node.op_type}{attributes} {node.name!r}[{place}]"
    if name in form.constants:
        tensor = form.constants[name]
        values = numpy_helper.to_array(tensor).ravel()[:6]
        return f"constant {name!r} {tensor.data_type} {list(tensor.dims)} {values}"
    return f"value {name!r}"


def _walk(one: Form, first: str, other: Form, second: str, path: list[str],
          seen: set[tuple[str, str]]) -> str:
    if (first, second) in seen or one.value(first) == other.value(second):
        return ""
    seen.add((first, second))
    here = [*path, f"{_shown(one, first)}  |  {_shown(other, second)}"]
    a, b = one.makers.get(first), other.makers.get(second)
    kinds = [node and (node[0].op_type, len(trimmed(node[0].input))) for node in (a, b)]
    if a is None or b is None or kinds[0] != kinds[1]:
        return "\n  ".join(here[-4:])
    for x, y in zip(a[0].input, b[0].input, strict=False):
        found = _walk(one, x, other, y, here, seen)
        if found:
            return found
    return "\n  ".join(here[-4:])


def difference(ours: onnx.ModelProto, theirs: onnx.ModelProto) -> str:
    """Where two models differ but in names; empty where they do not."""
    one, other = Form(ours.graph), Form(theirs.graph)
    versions = [{opset.domain: opset.version for opset in model.opset_import} for model in (ours, theirs)]
    names = [[value.name for value in (*model.graph.input, *model.graph.output)] for model in (ours, theirs)]
    if versions[0] != versions[1]:
        return f"operator sets: {versions[0]} | {versions[1]}"
    if names[0] != names[1]:
        return f"inputs and outputs: {names[0]} | {names[1]}"
    for output in ours.graph.output:
        found = _walk(one, output.name, other, output.name, [], set())
        if found:
            return found
    return ""
