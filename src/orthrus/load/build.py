"""ModelProto -> Graph: names become Values, NodeProtos become Nodes with their schema version, functions
are written out.

Every name that a graph defines has its Value before the first node is made, so that nodes may stand in any
order; afterwards the graph is sorted if it has to be. Calls of model-local functions are followed with an
explicit stack; only graphs nested in attributes recurse, and their depth is limited.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from ..errors import Fail, InvalidArgument, InvalidGraph
from ..ir import Graph, ModelInfo, Node, SparseArray, TensorType, Type, Value, type_of
from ..limits import Limits
from ..ops import find
from ..ops.infer import from_type_proto
from . import attributes, check, inline, tensors, versions
from .external import ExternalData
from .scope import Bound, Frame, Scope, expansion
from .source import Source

_IR_WITH_CONSTANT_INITIALIZERS = 4


class Builder:
    """Builds the graph of one model. `declared` collects the types the model states for values that nodes
    make."""

    def __init__(
        self, source: Source, limits: Limits, given: dict[str, np.ndarray], released_only: bool,
        mapped: bool = True
    ) -> None:
        self.source, self.limits, self.given, self.released_only = source, limits, given, released_only
        self.model = source.model
        self.info: ModelInfo
        self.declared: dict[Value, Type] = {}
        self.external = ExternalData(source.root, source.path, mapped)
        self.reader = attributes.Reader(source.payload, self.external.read)
        self.functions: dict[inline.Key, Any] = {}
        self.pending: set[Value] = set()
        self.unsorted: set[Graph] = set()
        self.made = 0
        self.graph: Graph | None = None
        self.resolver = versions.Resolver()

    def build(self) -> Graph:
        """The main graph, sorted; types are not inferred yet."""
        model = self.model
        if not model.HasField("graph"):
            raise InvalidArgument("No graph was found in the protobuf.")
        self.info = versions.describe(model, self.source.path, self.released_only)
        self.functions = inline.collect(model)
        inline.bounded_size(model.graph, self.functions, self.limits)
        self.graph = graph = Graph(model.graph.name, None, self.info)
        self._fill(graph, model.graph, None, Frame(iter(()), Scope(graph), self.info.opsets), 0)
        for name in self.given:
            if name not in graph.initializers:
                self.warn(f"the initializer {name!r} that was given is not used by the model")
        return graph

    def warn(self, text: str) -> None:
        self.info.warnings.append(text)

    # graphs

    def body(self, proto: Any, frame: Frame, depth: int) -> Graph:
        """A graph that is an attribute of a node in `frame`."""
        if depth > self.limits.max_depth:
            raise Fail("the model nests graphs too deeply", found=f"{depth} levels",
                       expected=f"at most {self.limits.max_depth}", cure="raise Limits.max_depth")
        graph = Graph(proto.name, frame.scope.graph)
        self._fill(graph, proto, frame.scope, frame, depth)
        return graph

    def _fill(self, graph: Graph, proto: Any, parent: Scope | None, frame: Frame, depth: int) -> None:
        scope = Scope(graph, parent)
        self._inputs_and_initializers(graph, proto, scope, main=parent is None and depth == 0)
        self._define(proto.node, scope)
        for info in (*proto.value_info, *proto.output):
            value = scope.values.get(info.name)
            if (
                value is not None
                and value in self.pending
                and (kind := self._type_of(info, info.name)) is not None
            ):
                value.type = self.declared[value] = kind
        self.emit(Frame(iter(enumerate(proto.node)), scope, frame.opsets, frame.bound, frame.prefix), depth)
        outputs = []
        for info in proto.output:
            found = self._find(scope, info.name)
            if found is None:
                raise Fail(
                    f"This is an invalid model. Graph output ({info.name}) does not exist in the graph.",
                    node=None if parent is None else f"graph {graph.name}",
                    expected="the name of a node's output, a graph input or an initializer",
                )
            outputs.append(found)
        graph.set_outputs(outputs)
        if graph in self.unsorted:
            try:
                graph.sort()
            except ValueError:
                raise Fail("This is an invalid model. Error: the graph is not acyclic.",
                           node=f"graph {graph.name}") from None

    def _inputs_and_initializers(self, graph: Graph, proto: Any, scope: Scope, main: bool) -> None:
        constants: dict[str, Any] = {}
        for tensor in proto.initializer:
            if tensor.name:
                constants[tensor.name] = tensor
        for sparse in proto.sparse_initializer:
            constants[sparse.values.name] = sparse
        # up to IR 3 every initializer had to be an input as well, and none of them could be fed
        overridable = self.info.ir_version >= _IR_WITH_CONSTANT_INITIALIZERS
        for info in proto.input:
            if info.name in scope.values:
                raise Fail(
                    f"Error: Duplicate definition-site for ({info.name}).",
                    found="two graph inputs of that name",
                )
            kind = self._type_of(info, info.name)
            if check.untyped(kind) and main and info.name not in constants:
                raise Fail(
                    f"This is an invalid model. Model input ({info.name}) does not have type information."
                )
            value = Value(info.name, kind)
            scope.values[info.name] = value
            if main and isinstance(kind, TensorType):
                dims = enumerate(info.type.tensor_type.shape.dim)
                if meant := {axis: d.denotation for axis, d in dims if d.denotation}:
                    self.info.denotations[info.name] = meant
            if info.name not in constants or overridable or not main:
                graph.inputs.append(value)
        fed = set(graph.inputs)
        handed_out = {info.name for info in proto.output}.difference(
            *(node.input for node in proto.node)) if proto.sparse_initializer else ()
        for name, tensor in constants.items():
            array = self._initializer(name, tensor, dense=name not in handed_out)
            known = scope.values.get(name)
            if known is None:
                scope.values[name] = known = Value(name)
            elif not main:
                continue
            else:
                check.initializer(name, known.type, array)
            if known in fed:
                known.default = array
            else:
                known.const = array
            if known.elem is None or not overridable or not main:
                known.type = type_of(array)
            graph.add_initializer(known)
        if main:
            for name, array in self.given.items():
                if name not in scope.values:
                    scope.values[name] = graph.add_initializer(Value(name, type_of(array), None, array))

    def _initializer(self, name: str, tensor: Any, dense: bool = True) -> Any:
        """`dense`: of a sparse tensor, its dense form."""
        if name in self.given:
            array = self.given[name]
            if hasattr(tensor, "data_type"):
                element = tensors.element_type(tensor.data_type, f"initializer '{name}'")
                check.initializer(name, TensorType(element, tuple(tensor.dims)), array)
            return array
        if hasattr(tensor, "indices"):
            what = f"sparse initializer '{name}'"
            sparse = tensors.to_sparse(tensor, self.source.payload, self.external.read, what)
            return tensors.densified(sparse, what) if dense else sparse
        return tensors.to_array(tensor, self.source.payload, self.external.read)

    def _type_of(self, info: Any, name: str) -> Type | None:
        if not info.HasField("type"):
            return None
        try:
            return from_type_proto(info.type)
        except ValueError as error:
            raise Fail(
                f"This is an invalid model. The type of ({name}) is not supported.", found=error
            ) from None

    def _define(self, protos: Any, scope: Scope) -> None:
        """A Value for every output of `protos`, before any node is made. Of Constants that define one name
        the last counts."""
        values, pending, constants = scope.values, self.pending, set[str]()
        for proto in protos:
            constant = proto.op_type == "Constant" and not proto.domain
            for name in proto.output:
                if not name or (constant and name in constants):
                    continue
                if constant:
                    constants.add(name)
                if name in values:
                    raise Fail(f"This is an invalid model. Error: Duplicate definition of name ({name}).",
                               node=proto.name or proto.op_type, expected="one definition per name")
                value = Value(name)
                values[name] = value
                pending.add(value)

    def _find(self, scope: Scope | None, name: str) -> Value | None:
        while scope is not None:
            value = scope.values.get(name)
            if value is not None:
                if value in self.pending:
                    self.unsorted.add(scope.graph)
                return value
            scope = scope.parent
        return None

    # nodes

    def emit(self, first: Frame, depth: int) -> None:
        """Make the nodes of `first` and, where they call functions, those of the functions, in its graph."""
        stack = [first]
        while stack:
            frame = stack[-1]
            called = None
            for index, proto in frame.protos:
                function = self.functions.get(inline.key_of(proto)) if self.functions else None
                if function is not None:
                    called = self._call(frame, index, proto, function)
                    break
                self._node(frame, index, proto, depth)
            else:
                for name, target in frame.after:
                    self._copy(frame, name, target)
                stack.pop()
            if called is not None:
                stack.append(called)

    def _inputs(self, frame: Frame, proto: Any) -> list[Value | None]:
        inputs: list[Value | None] = []
        scope = frame.scope
        for name in proto.input:
            value = None
            if name:
                value = self._find(scope, name)
                if value is None and scope.values.get(name, self) is not None:
                    raise InvalidArgument(
                        f"Invalid model. Node input '{name}' is not a graph input, initializer, or output "
                        "of a previous node.",
                        node=f"{proto.name or proto.op_type} ({proto.op_type})",
                    )
            inputs.append(value)
        while inputs and inputs[-1] is None:
            inputs.pop()
        return inputs

    def _outputs(self, frame: Frame, proto: Any) -> list[Value | None]:
        values = frame.scope.values
        return [values[name] if name else None for name in proto.output]

    def _label(self, frame: Frame, index: int, proto: Any) -> str:
        if proto.name:
            return f"{frame.prefix}{proto.name}"
        return f"{frame.prefix}{proto.op_type}_{index}" if frame.prefix else ""

    def _node(self, frame: Frame, index: int, proto: Any, depth: int) -> None:
        self.made += 1
        if self.made > self.limits.max_nodes:
            raise Fail("the model has too many nodes", expected=f"at most {self.limits.max_nodes}",
                       cure="raise Limits.max_nodes")
        domain = inline.domain_of(proto.domain)
        label = self._label(frame, index, proto)
        what = label or f"{proto.op_type}_{index}"
        inputs, outputs = self._inputs(frame, proto), self._outputs(frame, proto)
        schema, op = self.resolver.resolve(frame.opsets, proto, domain, what, inputs, outputs)
        kinds: dict[str, str] = {}
        attrs: dict[str, Any] = {}
        for attribute in proto.attribute:
            name = attribute.name
            if name == "value" and proto.op_type == "Constant" and attribute.HasField("sparse_tensor"):
                name = "sparse_value"
            if name in kinds:
                raise check.invalid(
                    proto, inputs, outputs, f"Attribute '{name}' appeared multiple times.", node=what
                )
            expected = schema.attributes.get(name, ("", False))[0]
            source, place = attribute, frame
            while source.ref_attr_name:
                bound = place.bound.get(source.ref_attr_name) if place.bound is not None else None
                if place.bound is None:
                    raise check.invalid(
                        proto,
                        inputs,
                        outputs,
                        f"Attribute '{name}' refers to '{source.ref_attr_name}' outside a function",
                        node=what,
                    )
                if bound is None:
                    break
                source, place = bound.proto, bound.frame
            if source.ref_attr_name:
                continue
            kinds[name] = kind = attributes.kind_of(source, expected)
            if expected and kind != expected and kind in ("GRAPH", "GRAPHS", "TENSOR", "TENSORS"):
                raise check.invalid(
                    proto,
                    inputs,
                    outputs,
                    f"Mismatched attribute type in '{proto.name} : {name}'. "
                    f"Expected: '{expected}', actual: '{kind}'",
                    node=what,
                )
            attrs[name] = self.reader.value(source, kind, f"attribute '{name}' of {what}",
                                            functools.partial(self.body, frame=place, depth=depth + 1))
        needed = op.required if op is not None else ()
        check.fits(proto, schema, what, inputs, outputs, attrs, kinds, needed, self.warn)
        if not domain and proto.op_type == "Constant":
            known = {name: value for name, value in attrs.items() if name in schema.attributes}
            self._constant(frame, proto, what, known, outputs)
            return
        if domain in ("", "com.microsoft"):
            attributes.settle(proto.op_type, attrs)
        graph = frame.scope.graph
        node = Node(proto.op_type, domain, schema.version, op, inputs, attrs, label,
                    index if not frame.prefix else self.made)
        if proto.metadata_props:
            node.metadata = {p.key: p.value for p in proto.metadata_props}
        node.doc, node.arity = proto.doc_string, min(len(proto.input), schema.max_input)
        node.outputs = outputs
        for value in outputs:
            if value is not None:
                value.node = node
                self.pending.discard(value)
        graph.nodes.append(node)

    def _constant(
        self, frame: Frame, proto: Any, what: str, attrs: dict[str, Any], outputs: list[Value | None]
    ) -> None:
        """A Constant node becomes an initializer of its graph."""
        if len(attrs) != 1:
            raise check.invalid(
                proto,
                (),
                outputs,
                "One and only one of the attributes 'value', 'value_*' or 'sparse_value' "
                "must be specified for a Constant node.",
                node=what,
                found=sorted(attrs),
            )
        value, = outputs
        if value is None:
            return
        (name, given), = attrs.items()
        if isinstance(given, SparseArray):
            array = tensors.densified(given, what)
        elif name == "value":
            array = given
        else:
            array = np.array(
                given,
                {
                    "value_float": np.float32,
                    "value_floats": np.float32,
                    "value_int": np.int64,
                    "value_ints": np.int64,
                }.get(name, np.object_),
            )
        self.pending.discard(value)
        stated = self.declared.pop(value, None)
        value.const, value.type = array, type_of(array)
        if isinstance(stated, TensorType) and stated.elem not in (None, value.elem):
            raise Fail(
                f"Type Error: Type ({stated}) of output arg ({value.name}) of node ({proto.name}) does "
                f"not match expected type ({value.type}).",
                node=what,
            )
        frame.scope.graph.add_initializer(value)

    # functions

    def _call(self, frame: Frame, index: int, proto: Any, function: Any) -> Frame:
        """The frame of a function's body. As in onnxruntime, attributes that the function does not declare
        are overlooked, and nodes that refer to a declared one that is not given do without it."""
        what = self._label(frame, index, proto) or f"{proto.op_type}_{index}"
        inputs, outputs = self._inputs(frame, proto), self._outputs(frame, proto)
        opsets = {inline.domain_of(e.domain): e.version for e in function.opset_import}
        versions.check_opsets(opsets, self.released_only)
        given = {a.name: Bound(a, frame) for a in proto.attribute}
        return expansion(self.pending, frame, proto, function, opsets, given, inputs, outputs, what, None)

    def _copy(self, frame: Frame, name: str, target: Value) -> None:
        source = self._find(frame.scope, name)
        if source is None:
            raise InvalidGraph(
                f"This is an invalid model. A function returns its input ({name}), which the call leaves "
                "out.",
                node=frame.prefix.rstrip("/"),
            )
        version = 14
        node = Node("Identity", "", version, find("", "Identity", version), [source], {},
                    f"{frame.prefix}Identity_{name}", self.made)
        node.outputs = [target]
        target.node = node
        self.pending.discard(target)
        frame.scope.graph.nodes.append(node)
