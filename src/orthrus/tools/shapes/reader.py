"""ModelProto -> Graph for shape inference alone: nothing is checked, folded or refused.

In: a model as its file has it, weights left where they are. Out: a Graph whose values keep the model's names;
calls of the model's functions are written out, an operator that nobody knows has version 1 and no definition.
`Model.graphs` finds the values of each GraphProto again. The invariant: the ModelProto is not changed.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from ...ir import ElementType, Graph, ModelInfo, Node, TensorType, Value, type_of
from ...ops import find
from ...ops import schema as schemas
from ...ops.infer import from_type_proto
from ...records import dataclass

_CONSTANT_LIMIT = 4096
_DEPTH = 64
_CONTRIB = "com.microsoft"
"""Whose operators are known without their domain, too."""
_CONSTANTS = {"value_float": np.float32, "value_floats": np.float32, "value_int": np.int64,
              "value_ints": np.int64, "value_string": np.object_, "value_strings": np.object_}


@dataclass
class Scope:
    """Values by name, of one graph or one call of a function."""

    graph: Graph
    values: dict[str, Value] = field(default_factory=dict)
    outer: Scope | None = None
    opsets: dict[str, int] = field(default_factory=dict)
    attributes: dict[str, Any] | None = None
    prefix: str = ""

    def find(self, name: str) -> Value | None:
        scope: Scope | None = self
        while scope is not None:
            if name in scope.values:
                return scope.values[name]
            scope = scope.outer
        return None


@dataclass
class Model:
    """`graphs`: every GraphProto of the model, with the Graph and the values that were made of it; of a
    body in a function, nothing. `declared`: the types the model states beside those of its inputs."""

    graph: Graph
    graphs: list[tuple[Any, Graph, dict[str, Value]]] = field(default_factory=list)
    declared: dict[Value, Any] = field(default_factory=dict)


class Reader:
    """Reads one ModelProto."""

    def __init__(self, model: Any) -> None:
        self.functions = {(_domain(f.domain), f.name, getattr(f, "overload", "")): f for f in model.functions}
        info = ModelInfo(model.ir_version, {_domain(e.domain): e.version for e in model.opset_import})
        self.out = Model(Graph(model.graph.name, info=info))
        self._fill(self.out.graph, model.graph, Scope(self.out.graph, opsets=info.opsets), 0, True)

    def _fill(self, graph: Graph, proto: Any, scope: Scope, depth: int, outside: bool) -> None:
        if depth > _DEPTH:
            raise ValueError(f"the model nests graphs and functions over {_DEPTH} levels deep")
        for info in proto.input:
            scope.values[info.name] = value = Value(info.name, _type(info))
            graph.inputs.append(value)
        for tensor in proto.initializer:
            self._initializer(scope, tensor.name, tensor)
        for sparse in proto.sparse_initializer:
            scope.values[sparse.values.name] = graph.add_initializer(Value(
                sparse.values.name, TensorType(ElementType(sparse.values.data_type), tuple(sparse.dims))))
        stated = {info.name: info for info in (*proto.output, *proto.value_info)}
        for node in _sorted(proto.node):
            self._node(node, scope, depth, outside)
        for name, value in scope.values.items():
            if name in stated and (kind := _type(stated[name])) is not None and value.node is not None:
                self.out.declared[value] = kind
        graph.set_outputs(v if (v := scope.find(o.name)) is not None else Value(o.name, _type(o))
                          for o in proto.output)
        if outside:
            self.out.graphs.append((proto, graph, scope.values))

    def _initializer(self, scope: Scope, name: str, tensor: Any) -> None:
        kind = TensorType(ElementType(tensor.data_type), tuple(tensor.dims))
        value = scope.values.get(name)
        if value is None:
            scope.values[name] = value = Value(name, kind)
        elif value.shape is None or value.elem is None:
            value.type = kind
        scope.graph.add_initializer(value)
        if value not in scope.graph.inputs or scope.graph.info.ir_version < 4:
            value.const = _array(tensor)
            value.type = kind

    def _node(self, proto: Any, scope: Scope, depth: int, outside: bool) -> None:
        domain = _domain(proto.domain)
        inputs = [scope.find(name) if name else None for name in proto.input]
        while inputs and inputs[-1] is None:
            inputs.pop()
        outputs = []
        for name in proto.output:
            value = scope.values.get(name) if name else None
            if name and (value is None or value.node is not None):
                value = scope.values[name] = Value(scope.prefix + name)
            outputs.append(value)
        function = self.functions.get((domain, proto.op_type, getattr(proto, "overload", "")))
        if function is not None:
            self._call(proto, function, scope, inputs, outputs, depth)
            return
        if proto.op_type == "Constant" and not domain and outputs and outputs[0] is not None:
            self._constant(proto, scope, outputs[0])
            return
        graph, version = scope.graph, 1
        attrs = {a.name: v for a in proto.attribute
                 if (v := self._attribute(a, scope, depth, outside)) is not None}
        found = schemas.lookup(domain, proto.op_type,
                               scope.opsets.get(domain) or schemas.newest_opset(domain) or 1)
        if not domain and not isinstance(found, schemas.Schema):
            other = schemas.lookup(_CONTRIB, proto.op_type, 1)
            domain, found = (_CONTRIB, other) if isinstance(other, schemas.Schema) else (domain, found)
        op = None
        if isinstance(found, schemas.Schema):
            version, op = found.version, find(domain, proto.op_type, found.version)
        node = Node(proto.op_type, domain, version, op, inputs, attrs, scope.prefix + proto.name,
                    len(graph.nodes))
        node.outputs = list(outputs)
        for value in outputs:
            if value is not None:
                value.node = node
        graph.nodes.append(node)

    def _constant(self, proto: Any, scope: Scope, value: Value) -> None:
        for attribute in proto.attribute:
            stated = _bound(attribute, scope)
            if stated is None:
                continue
            if attribute.name == "value":
                value.type = TensorType(ElementType(stated.t.data_type), tuple(stated.t.dims))
                value.const = _array(stated.t)
            elif attribute.name == "sparse_value":
                sparse = stated.sparse_tensor
                value.type = TensorType(ElementType(sparse.values.data_type), tuple(sparse.dims))
            elif attribute.name in _CONSTANTS:
                value.const = np.array(onnx.helper.get_attribute_value(stated), _CONSTANTS[attribute.name])
                value.type = type_of(value.const)
        scope.graph.add_initializer(value)

    def _attribute(self, attribute: Any, scope: Scope, depth: int, outside: bool) -> Any:
        proto = _bound(attribute, scope)
        if proto is None:
            return None
        kinds = onnx.AttributeProto
        if proto.type in (kinds.GRAPH, kinds.GRAPHS):
            bodies = [self._body(g, scope, depth, outside)
                      for g in ([proto.g] if proto.type == kinds.GRAPH else proto.graphs)]
            return bodies[0] if proto.type == kinds.GRAPH else bodies
        if proto.type == kinds.TENSOR:
            return numpy_helper.to_array(proto.t) if not _external(proto.t) else None
        if proto.type == kinds.TYPE_PROTO:
            return from_type_proto(proto.tp)
        value = onnx.helper.get_attribute_value(proto)
        if isinstance(value, bytes):
            return value.decode("utf-8", "surrogateescape")
        if proto.type == kinds.STRINGS:
            return [v.decode("utf-8", "surrogateescape") for v in value]
        return list(value) if proto.type in (kinds.INTS, kinds.FLOATS) else value

    def _body(self, proto: Any, scope: Scope, depth: int, outside: bool) -> Graph:
        graph = Graph(proto.name, scope.graph)
        inner = Scope(graph, {}, scope, scope.opsets, scope.attributes, scope.prefix)
        self._fill(graph, proto, inner, depth + 1, outside)
        return graph

    def _call(self, proto: Any, function: Any, scope: Scope, inputs: list[Value | None],
              outputs: list[Value | None], depth: int) -> None:
        if depth > _DEPTH:
            raise ValueError(f"functions call each other over {_DEPTH} levels deep")
        given = {a.name: a for a in function.attribute_proto}
        given |= {a.name: b for a in proto.attribute if (b := _bound(a, scope)) is not None}
        opsets = {_domain(e.domain): e.version for e in function.opset_import} or scope.opsets
        label = proto.name or f"{proto.op_type}_{len(scope.graph.nodes)}"
        inner = Scope(scope.graph, {}, None, opsets, given, f"{scope.prefix}{label}/")
        for name, value in zip(function.input, inputs, strict=False):
            if value is not None:
                inner.values[name] = value
        passed = set(inner.values)
        for name, value in zip(function.output, outputs, strict=False):
            if value is not None and name not in passed:
                inner.values[name] = value
        for node in function.node:
            self._node(node, inner, depth + 1, False)
        for name, value in zip(function.output, outputs, strict=False):
            if value is not None and name in passed:
                same = Node("Identity", "", 14, find("", "Identity", 14), [inner.values[name]], {},
                            f"{inner.prefix}{name}", len(scope.graph.nodes))
                same.outputs, value.node = [value], same
                scope.graph.nodes.append(same)


def _sorted(nodes: Any) -> list[Any]:
    """Nodes in an order in which every value is made before it is read. Raises ValueError on a cycle."""
    made = {name for node in nodes for name in node.output if name}
    done: set[str] = set()
    waiting, order = list(nodes), list[Any]()
    needs = [{n for n in _reads(node) if n in made} for node in waiting]
    while waiting:
        later, later_needs = [], []
        for node, need in zip(waiting, needs, strict=True):
            if need <= done:
                order.append(node)
                done.update(node.output)
            else:
                later.append(node)
                later_needs.append(need)
        if len(later) == len(waiting):
            raise ValueError("Invalid model with cyclic graph")
        waiting, needs = later, later_needs
    return order


def _reads(node: Any) -> set[str]:
    names = set(node.input)
    for attribute in node.attribute:
        for body in ((attribute.g,) if attribute.HasField("g") else attribute.graphs):
            for inner in body.node:
                names |= _reads(inner)
            names.update(o.name for o in body.output)
            names -= {i.name for i in body.input} | {t.name for t in body.initializer}
            names -= {o for inner in body.node for o in inner.output}
    return names


def _bound(attribute: Any, scope: Scope) -> Any:
    """What an attribute that refers to its function's refers to; None where the call leaves it out."""
    if not attribute.ref_attr_name:
        return attribute
    return (scope.attributes or {}).get(attribute.ref_attr_name)


def _domain(name: str) -> str:
    return "" if name == "ai.onnx" else name


def _type(info: Any) -> Any:
    try:
        return from_type_proto(info.type) if info.HasField("type") else None
    except ValueError:
        return None


def _external(tensor: Any) -> bool:
    return bool(tensor.data_location == onnx.TensorProto.EXTERNAL)


def _array(tensor: Any) -> np.ndarray | None:
    """The elements of a small tensor inside the file."""
    if _external(tensor) or int(np.prod(tensor.dims, dtype=np.float64)) > _CONSTANT_LIMIT:
        return None
    try:
        return numpy_helper.to_array(tensor)
    except (ValueError, TypeError, KeyError):
        return None
