"""Operators without a definition here run by the function body in their schema: their nodes are replaced by
it.

The bodies of some operators depend on their inputs' types, so this comes after types have flowed. An
operator that has neither a definition nor a body is refused.
"""

from __future__ import annotations

from typing import Any

from .. import errors
from ..errors import Fail
from ..ir import Graph, Node
from ..ops import infer
from ..ops.schema import EP_CONTEXT, Schema, lookup
from .build import Builder
from .scope import Bound, Frame, Scope, expansion
from .write import node_proto


def functions(graph: Graph, builder: Builder) -> None:
    """Expand every node of `graph` and its bodies that has no definition. Raises NotImplemented where that
    cannot be."""
    _expand(graph, builder, 0, 0)


def _expand(graph: Graph, builder: Builder, nested: int, depth: int) -> None:
    if nested > builder.limits.max_depth:
        raise Fail(
            "function bodies of operators nest too deeply",
            expected=f"at most {builder.limits.max_depth} levels",
        )
    for node in graph.nodes:
        for body in node.bodies():
            _expand(body, builder, nested, depth + 1)
    if all(map(_complete, graph.nodes)):
        return
    nodes, graph.nodes = graph.nodes, []
    for node in nodes:
        if _complete(node):
            graph.nodes.append(node)
            continue
        start = len(graph.nodes)
        _write_out(graph, node, builder, depth)
        fresh = Graph(graph.name, graph.outer, graph.info)
        fresh._names = graph._names
        fresh.nodes = graph.nodes[start:]
        del graph.nodes[start:]
        for made in fresh.nodes:
            infer.annotate(made, graph.info.opsets)
        _expand(fresh, builder, nested + 1, depth)
        graph.initializers.update(fresh.initializers)
        graph.nodes += fresh.nodes


def _complete(node: Node) -> bool:
    """Whether there is nothing to write out: `node` has a definition, or stands for what a provider
    compiled."""
    return node.op is not None or lookup(node.domain, node.op_type, node.version) is EP_CONTEXT


def _write_out(graph: Graph, node: Node, builder: Builder, depth: int) -> None:
    """Append the nodes of `node`'s function body to `graph.nodes`, and give up `node`."""
    function = _function(node, graph.info.opsets)
    if function is None:
        raise errors.NotImplemented(
            f"Could not find an implementation for {node.op_type}({node.version}) node with name "
            f"'{node.name}'",
            node=node.label,
            found=f"{node.kind} without a definition or a function body",
            cure="register it with orthrus.op, or give a provider that has it",
        )
    schema = lookup(node.domain, node.op_type, node.version)
    assert isinstance(schema, Schema)
    proto = node_proto(node)
    captured = Scope(graph, None, {v.name: v for body in node.bodies() for v in body.captures()})
    caller = Frame(iter(()), captured, graph.info.opsets)
    given = {a.name: Bound(a, caller) for a in proto.attribute}
    for name, attribute in schema.native.attributes.items():
        if name not in given and attribute.default_value.type:
            given[name] = Bound(attribute.default_value, caller)
    opsets = {
        ("" if e.domain == "ai.onnx" else e.domain): e.version for e in function.opset_import
    } or graph.info.opsets
    inputs, outputs = list(node.inputs), list(node.outputs)
    Graph.detach(node)
    for value in outputs:
        if value is not None:
            value.node = None
            builder.pending.add(value)
    outer = captured if captured.values else None
    frame = expansion(
        builder.pending, caller, proto, function, opsets, given, inputs, outputs, node.label, outer
    )
    builder.emit(frame, depth)


def _function(node: Node, opsets: dict[str, int]) -> Any:
    """The body of `node`'s operator for the model's opset, as a FunctionProto; None where its schema has
    none."""
    import onnx

    schema = lookup(node.domain, node.op_type, node.version)
    native = schema.native if isinstance(schema, Schema) else None
    if native is None:
        return None
    opset = max(opsets.get("", native.since_version), 1)
    data = b""
    for versions, read in ((native.function_opset_versions, _plain),
                           (native.context_dependent_function_opset_versions, _by_context)):
        usable = [v for v in versions if v <= opset] or list(versions)[:1]
        if usable:
            data = read(native, max(usable), node)
        if data:
            return onnx.FunctionProto.FromString(data)
    return None


def _plain(native: Any, version: int, node: Node) -> bytes:
    found: bytes = native.get_function_with_opset_version(version)
    return found


def _by_context(native: Any, version: int, node: Node) -> bytes:
    kinds = [
        b"" if v is None or v.type is None else infer.type_proto(v.type).SerializeToString()
        for v in node.inputs
    ]
    found: bytes = native.get_context_dependent_function_with_opset_version(
        version, node_proto(node).SerializeToString(), kinds)
    return found

