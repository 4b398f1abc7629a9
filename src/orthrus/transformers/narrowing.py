"""A float32 model becomes one of narrower floats: who computes in what, and the Casts between them.

In: a ModelProto and `Narrowing`, changed in place. Out: the same computation with float16 or bfloat16 values.
The invariant: every node gets the types that its operator takes, so that the model stays valid; nodes stand
behind those they read from.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import field
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from ..ir import Graph, No, TensorType
from ..load import load
from ..ops.schema import Formal, Schema, lookup
from ..quantization.onnx_model import all_graphs, subgraphs
from ..records import dataclass

FLOAT, FLOAT16, BFLOAT16 = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16
_SPELLED = {FLOAT: "tensor(float)", FLOAT16: "tensor(float16)", BFLOAT16: "tensor(bfloat16)"}
_SHORT = {FLOAT: "fp32", FLOAT16: "fp16", BFLOAT16: "bfloat16"}
_INDIFFERENT = frozenset({"Cast", "Shape", "Size"})
"""Operators that read any type alike."""
_TYPED_BY = {"Cast": "to", "RandomNormal": "dtype", "RandomUniform": "dtype", "RandomNormalLike": "dtype",
             "RandomUniformLike": "dtype", "EyeLike": "dtype", "Bernoulli": "dtype", "SequenceEmpty": "dtype",
             "HannWindow": "output_datatype", "HammingWindow": "output_datatype",
             "BlackmanWindow": "output_datatype", "DequantizeLinear": "output_dtype"}
"""The attribute that says the type of an operator's output."""
_FLOAT_WITHOUT = frozenset({"RandomNormal", "RandomUniform", "SequenceEmpty", "HannWindow", "HammingWindow",
                            "BlackmanWindow"})
"""Operators whose output is float32 where that attribute is absent."""


@dataclass(frozen=True)
class Narrowing:
    """What is asked for. `target`: the type of what is not blocked; `blocked`: of what is, where its operator
    takes it; `operators` and `nodes`: names of what is blocked; `forced`: by operator, inputs that get the
    target whatever its schema says; `wide`: by operator, inputs that stay float32; `keep`: inputs and outputs
    of the graph that stay float32, all where True; `narrowed`: a tensor -> the same in a type, in place."""

    narrowed: Callable[[TensorProto, int], None]
    target: int = FLOAT16
    blocked: int = FLOAT
    operators: frozenset[str] = frozenset()
    nodes: frozenset[str] = frozenset()
    forced: Mapping[str, list[int]] = field(default_factory=dict)
    wide: Mapping[str, list[int]] = field(default_factory=dict)
    keep: bool | frozenset[str] = False
    force_initializers: bool = False

    def keeps(self, name: str) -> bool:
        """Whether an input or output of the graph stays float32."""
        return self.keep if isinstance(self.keep, bool) else name in self.keep

    def blocks(self, node: NodeProto) -> bool:
        return node.op_type in self.operators or bool(node.name) and node.name in self.nodes


def narrow(model: ModelProto, asked: Narrowing) -> None:
    """Change a model in place. Raises: the errors of `orthrus.errors` for a model that cannot be loaded."""
    _Model(model, asked).run()


def float_values(model: ModelProto) -> set[str]:
    """The names of the float32 tensors of a model and of its inner graphs. What is read of an operator that
    nobody knows counts as float32 where its inputs are."""
    found = {t.name for graph in all_graphs(model.graph) for t in graph.initializer if t.data_type == FLOAT}
    found |= {t.values.name for graph in all_graphs(model.graph) for t in graph.sparse_initializer
              if t.values.data_type == FLOAT}
    try:
        _collect(load(model), found)
    except Exception as error:
        if "is not a registered function/op" not in str(error):
            raise
        _guess(onnx.shape_inference.infer_shapes(model).graph, found)
    for graph in all_graphs(model.graph):
        for node in graph.node:
            if node.op_type == "Constant" and _constant_type(node) == FLOAT:
                found.add(node.output[0])
    return found


def _collect(graph: Graph, found: set[str]) -> None:
    made = (value for node in graph.nodes for value in node.outputs if value is not None)
    for value in (*graph.inputs, *made):
        if isinstance(value.type, TensorType) and value.type.elem == FLOAT:
            found.add(value.name)
    for node in graph.nodes:
        for body in node.bodies():
            _collect(body, found)


def _guess(graph: GraphProto, found: set[str]) -> None:
    known = {v.name: v.type.tensor_type.elem_type for v in (*graph.value_info, *graph.input, *graph.output)}
    found.update(name for name, kind in known.items() if kind == FLOAT)
    for node in graph.node:
        for body in subgraphs(node):
            _guess(body, found)
        if found.intersection(node.input):
            found.update(name for name in node.output if name and name not in known)


def _constant_type(node: NodeProto) -> int | None:
    for attribute in node.attribute:
        if attribute.name in ("value_float", "value_floats"):
            return FLOAT
        if attribute.name == "value":
            return attribute.t.data_type
        if attribute.name == "sparse_value":
            return attribute.sparse_tensor.values.data_type
    return None


@dataclass(frozen=True)
class _Ports:
    """The types that a node reads and gives, None for what is no float32 tensor, 0 where any type will do;
    `inner`: what the graphs in it compute in."""

    reads: list[int | None]
    gives: list[int | None]
    inner: int


class _Model:
    """One conversion. `wanted`: the types that are read of a value; `ports`: what nodes read and give, in
    the order in which `_plan` and `_rewrite` come to them; `settled`: the types of graphs' inputs and
    outputs."""

    def __init__(self, model: ModelProto, asked: Narrowing) -> None:
        self.model, self.asked = model, asked
        self.floats = float_values(model)
        self.opsets = {o.domain: o.version for o in model.opset_import}
        self.wanted = dict[str, set[int]]()
        self.ports = deque[_Ports]()
        self.names = {name for graph in all_graphs(model.graph) for node in graph.node
                      for name in (*node.input, *node.output)} | self.floats
        self.settled = dict[str, int]()

    def run(self) -> None:
        graph = self.model.graph
        for value in (*graph.input, *graph.output):
            if value.name in self.floats:
                self.settled[value.name] = FLOAT if self.asked.keeps(value.name) else self.asked.target
        self._plan(graph)
        for name, kind in self.settled.items():
            self.wanted.setdefault(name, set()).add(kind)
        scope = _Scope(self)
        for index, value in enumerate(graph.input):
            if value.name in self.floats:
                scope.versions[value.name] = {self.settled[value.name]: value.name}
                scope.spelled[value.name] = (f"graph_input_cast_{index}", f"graph_input_cast{index}")
        for index, value in enumerate(graph.output):
            if value.name in self.floats:
                scope.spelled[value.name] = (f"graph_output_cast_{index}", f"graph_output_cast{index}")
        self._rewrite(graph, scope)

    def _plan(self, graph: GraphProto, inner: int | None = None) -> None:
        """Note what every node reads and gives, and which types of each value are read. `inner`: what the
        node that the graph belongs to computes in, None for the main graph."""
        for node in graph.node:
            if inner in (None, self.asked.target):
                kind = self.asked.blocked if self.asked.blocks(node) else self.asked.target
            else:
                kind = inner
            ports = self._ports_of(node, kind)
            self.ports.append(ports)
            for name, wanted in zip(node.input, ports.reads, strict=True):
                if wanted:
                    self.wanted.setdefault(name, set()).add(wanted)
            for body in subgraphs(node):
                for value in (*body.input, *body.output):
                    if value.name in self.floats:
                        self.settled[value.name] = ports.inner
                        self.wanted.setdefault(value.name, set()).add(ports.inner)
                self._plan(body, ports.inner)

    def _ports_of(self, node: NodeProto, kind: int) -> _Ports:
        domain = "" if node.domain == "ai.onnx" else node.domain
        found = lookup(domain, node.op_type, self.opsets.get(node.domain, self.opsets.get(domain, 1)))
        schema = None if isinstance(found, No) else found
        formals = [schema.input_at(i) if schema else None for i in range(len(node.input))]
        floats = [name in self.floats for name in node.input]
        narrow_only = any(f and formal is not None and formal.types and _taken(formal, kind) != kind
                          for f, formal in zip(floats, formals, strict=True))
        reads: list[int | None] = []
        for index, formal in enumerate(formals):
            reads.append(self._read(node, index, formal, kind, narrow_only) if floats[index] else None)
        return _Ports(reads, [self._given(node, schema, index, reads, kind) if name in self.floats else None
                              for index, name in enumerate(node.output)], kind)

    def _read(self, node: NodeProto, index: int, formal: Formal | None, kind: int, narrow_only: bool) -> int:
        if node.op_type in _INDIFFERENT:
            return 0
        if index in self.asked.forced.get(node.op_type, ()):
            return self.asked.target
        if index in self.asked.wide.get(node.op_type, ()):
            return FLOAT
        if formal is None or not formal.types:
            return FLOAT if narrow_only else kind
        return _taken(formal, kind)

    def _given(self, node: NodeProto, schema: Schema | None, index: int, reads: list[int | None], kind: int
               ) -> int:
        formal = schema.output_at(index) if schema else None
        if _chooses(node):
            kinds = {self.asked.target, self.asked.blocked}
            return 0 if formal is None or all(_taken(formal, k) == k for k in kinds) else FLOAT
        if formal is not None and formal.types:
            assert schema is not None
            inputs = zip(reads, map(schema.input_at, range(len(reads))), strict=True)
            same = [read for read, other in inputs if read and other and other.variable == formal.variable]
            return same[0] if same else _taken(formal, kind)
        return next((read for read in reads if read), kind)

    def _rewrite(self, graph: GraphProto, scope: _Scope) -> None:
        for tensor in graph.initializer:
            self._store(tensor, scope)
        for sparse in graph.sparse_initializer:
            self._store(sparse.values, scope)
        for value in graph.input:
            if value.name in self.floats and value.name not in scope.versions:
                scope.versions[value.name] = {self.settled[value.name]: value.name}
        for node in graph.node:
            ports = self.ports.popleft()
            for index, (name, kind) in enumerate(zip(node.input, ports.reads, strict=True)):
                if kind is not None:
                    node.input[index] = scope.version(name, kind)
            for body in subgraphs(node):
                self._rewrite(body, _Scope(self, scope))
            scope.nodes.append(node)
            for index, kind in enumerate(ports.gives):
                if kind is not None:
                    self._make(node, index, kind, scope)
        if scope.outer is not None:
            for value in graph.output:
                if value.name in self.floats:
                    kind = self.settled[value.name]
                    value.name = scope.version(value.name, kind)
                    value.type.tensor_type.elem_type = kind
        _retype(graph, self.settled)
        copies = onnx.GraphProto(node=scope.nodes)
        graph.ClearField("node")
        graph.node.extend(copies.node)

    def _store(self, tensor: TensorProto, scope: _Scope) -> None:
        """Convert an initializer to the type that its readers want."""
        name = tensor.name
        if tensor.data_type != FLOAT:
            return
        wanted, target = self.wanted.get(name, {self.asked.target}), self.asked.target
        if name in self.settled:
            kind = self.settled[name]
        elif target in wanted or self.asked.force_initializers:
            kind = target
        else:
            kind = next(iter(wanted)) if len(wanted) == 1 else FLOAT
        if kind != FLOAT:
            self.asked.narrowed(tensor, kind)
        scope.versions[name] = {kind: name}

    def _make(self, node: NodeProto, index: int, kind: int, scope: _Scope) -> None:
        """Note an output, and give it under its own name in the type that its readers want most."""
        name, target = node.output[index], self.asked.target
        wanted = self.wanted.get(name, set())
        first = self.settled.get(name)
        if first is None:
            first = target if target in wanted or not wanted else next(iter(wanted))
        if kind == 0:
            kind = _choose(node, first, self.asked.narrowed)
        if name not in self.settled and (wanted <= {kind} or kind == target):
            first = kind
        if first == kind:
            scope.versions[name] = {kind: name}
            return
        if (kept := scope.spelled.get(name)) is not None and first == FLOAT:
            raw, label = kept
        else:
            raw = self.unused(f"{name}_cast_to_{_SHORT[first]}")
            label = f"{raw}_node"
        node.output[index] = raw
        scope.nodes.append(helper.make_node("Cast", [raw], [name], label, to=first))
        scope.versions[name] = {kind: raw, first: name}

    def unused(self, name: str) -> str:
        """The name, numbered where it is taken."""
        free, count = name, 0
        while free in self.names:
            count += 1
            free = f"{name}_{count}"
        self.names.add(free)
        return free


class _Scope:
    """The values of a graph and, through `outer`, of those around it. `versions`: by name, what a value is
    called in each type; `nodes`: the graph's new nodes; `spelled`: by name of an input or output of the
    model, what its converted value and the Cast are called."""

    def __init__(self, whole: _Model, outer: _Scope | None = None) -> None:
        self.whole, self.outer = whole, outer
        self.versions = dict[str, dict[int, str]]()
        self.nodes: list[NodeProto] = []
        self.spelled: dict[str, tuple[str, str]] = {}

    def version(self, name: str, kind: int) -> str:
        """What the value is called in a type, 0 for any; where it has no such name, a Cast is put into the
        graph that it belongs to."""
        if name not in self.versions:
            assert self.outer is not None, name
            return self.outer.version(name, kind)
        known = self.versions[name]
        if kind in known:
            return known[kind]
        source = known.get(FLOAT) or next(iter(known.values()))
        if kind == 0:
            return source
        if kind == self.whole.asked.target and source == name and name in self.spelled:
            made, label = self.spelled[name]
        else:
            made = self.whole.unused(f"{source}_cast_to_{_SHORT[kind]}")
            label = f"{made}_node"
        self.nodes.append(helper.make_node("Cast", [source], [made], label, to=kind))
        known[kind] = made
        return made


def _taken(formal: Formal, kind: int) -> int:
    """The type that a formal parameter takes in the place of another."""
    return kind if _SPELLED[kind] in formal.types or _SPELLED[FLOAT] not in formal.types else FLOAT


def _chooses(node: NodeProto) -> bool:
    """Whether a node with a float32 output may give any other type just as well."""
    if node.op_type in ("Constant", "ConstantOfShape") or node.op_type in _FLOAT_WITHOUT:
        return True
    attribute = _TYPED_BY.get(node.op_type)
    return attribute is not None and any(a.name == attribute and a.i == FLOAT for a in node.attribute)


def _choose(node: NodeProto, kind: int, narrowed: Callable[[TensorProto, int], None]) -> int:
    """Let a node that chooses give a type; the type."""
    if node.op_type not in ("Constant", "ConstantOfShape"):
        name = _TYPED_BY[node.op_type]
        attribute = next((a for a in node.attribute if a.name == name), None)
        if attribute is None:
            attribute = node.attribute.add(name=name, type=AttributeProto.INT)
        attribute.i = kind
        return kind
    for attribute in node.attribute:
        if attribute.name == "sparse_value" and kind != FLOAT:
            narrowed(attribute.sparse_tensor.values, kind)
            return kind
        if attribute.name in ("value_float", "value_floats"):
            values = attribute.f if attribute.name == "value_float" else list(attribute.floats)
            tensor = numpy_helper.from_array(np.array(values, np.float32))
            attribute.CopyFrom(helper.make_attribute("value", tensor))
    held = next((a for a in node.attribute if a.name == "value"), None)
    if held is None:
        held = node.attribute.add(name="value", type=AttributeProto.TENSOR)
        held.t.CopyFrom(numpy_helper.from_array(np.zeros(1, np.float32)))
    if kind != FLOAT:
        narrowed(held.t, kind)
    return kind


def _retype(graph: GraphProto, settled: Mapping[str, int]) -> None:
    """State the types of a graph's inputs and outputs; those of other floats are left to inference."""
    for value in (*graph.input, *graph.output):
        if value.name in settled and value.type.HasField("tensor_type"):
            value.type.tensor_type.elem_type = settled[value.name]
    kept = [value for value in graph.value_info if value.type.tensor_type.elem_type != FLOAT]
    copies: Any = GraphProto(value_info=kept)
    graph.ClearField("value_info")
    graph.value_info.extend(copies.value_info)
