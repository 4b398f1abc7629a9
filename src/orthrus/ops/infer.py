"""Types flow forward: from a node's inputs to its outputs, and through a whole graph.

A definition with its own rule answers first; ONNX's schema inference answers for the rest. Beside types,
the contents of small integer tensors are followed as far as they are known (`Value.content`), so that a
Reshape to a computed shape still has a type. An inference that fails says nothing here: the caller
decides what a contradiction means.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..ir import (
    ElementType,
    Graph,
    MapType,
    No,
    Node,
    OptionalType,
    SequenceType,
    SparseTensorType,
    TensorType,
    Type,
    Value,
)
from . import schema as schemas
from .contents import content, shape_of
from .shape_types import by_shape, by_variable

_DATA_LIMIT = 1024


_ELEMENTS = {int(e): e for e in ElementType}


class InferenceError(ValueError):
    """The inputs of a node contradict its operator's rules."""


def infer_node(node: Node, inputs: Sequence[Value | None], opsets: dict[str, int]) -> list[Type | None]:
    """The types of `node`'s outputs given `inputs` in place of its own. Raises
    InferenceError on a contradiction."""
    op = node.op
    try:
        if op is not None and op.inferable:
            return op.infer(inputs, node.attrs)
        rule = _CONTROL.get(node.op_type) if not node.domain else None
        if rule is not None:
            return rule(node, inputs, opsets)
        if (typed := by_shape(node, inputs)) is not None:
            return typed
        if node.domain in schemas.ONNX_DOMAINS:
            return _by_schema(node, inputs, opsets)
    except InferenceError:
        raise
    except (ValueError, TypeError, IndexError, KeyError, ZeroDivisionError, OverflowError) as error:
        raise InferenceError(str(error)) from error
    return [None] * len(node.outputs)


def infer_graph(graph: Graph, report: Callable[[Node, InferenceError], None] | None = None) -> None:
    """Type every node's outputs, in order. A type already there is kept where inference knows less."""
    for node in graph.nodes:
        annotate(node, graph.info.opsets, report)


def annotate(node: Node, opsets: dict[str, int],
             report: Callable[[Node, InferenceError], None] | None = None) -> None:
    """Type `node`'s outputs and follow their contents."""
    if node.attrs:
        for body in node.bodies():
            _enter(node, body)
            infer_graph(body, report)
    try:
        types = infer_node(node, node.inputs, opsets)
    except InferenceError as error:
        if report is not None:
            report(node, error)
        types = []
    for value, kind in zip(node.outputs, [*types, *[None] * len(node.outputs)], strict=False):
        if value is not None:
            value.type = merged(kind, value.type)
    first = node.outputs[0] if node.outputs else None
    if first is not None and first.content is None:
        first.content = content(node, node.inputs)


def merged(inferred: Type | None, declared: Type | None) -> Type | None:
    """What both say together; where they contradict, what was inferred."""
    if inferred is None or declared is None:
        return inferred or declared
    if isinstance(inferred, SequenceType | OptionalType) and type(inferred) is type(declared):
        inside = merged(inferred.elem, declared.elem)
        return inferred if inside is None else type(inferred)(inside)
    if not isinstance(inferred, TensorType) or not isinstance(declared, TensorType):
        return inferred
    elem = inferred.elem or declared.elem
    a, b = inferred.shape, declared.shape
    if a is None or b is None or len(a) != len(b):
        return TensorType(elem, b if a is None and inferred.elem in (None, declared.elem) else a)
    return TensorType(elem, tuple(y if x is None else x for x, y in zip(a, b, strict=True)))


def _by_schema(node: Node, inputs: Sequence[Value | None], opsets: dict[str, int]) -> list[Type | None]:
    import onnx
    from onnx import shape_inference

    found = schemas.lookup(node.domain, node.op_type, node.version)
    if isinstance(found, No) or not found.standard or found.version != node.version:
        raise InferenceError(f"ONNX has no {node.kind} of version {node.version}")
    if onnx.defs.onnx_opset_version() < (schemas.newest_opset("") or 0):
        return by_variable(node, inputs, found)
    native = found.native
    if native is None or not native.has_type_and_shape_inference_function:
        return [None] * len(node.outputs)
    proto = onnx.NodeProto(op_type=node.op_type, domain=node.domain)
    types: dict[str, Any] = {}
    data: dict[str, Any] = {}
    for i, value in enumerate(inputs):
        name = f"i{i}" if value is not None else ""
        proto.input.append(name)
        if value is None:
            continue
        if value.type is None or getattr(value.type, "elem", ElementType.FLOAT) is None:
            return [None] * len(node.outputs)
        types[name] = type_proto(value.type)
        if (value.const is not None and isinstance(value.const, np.ndarray)
                and value.const.size <= _DATA_LIMIT and value.const.dtype.kind in "iuf"):
            data[name] = tensor_proto(value.const)
        elif (value.content is not None and all(isinstance(d, int) for d in value.content)
              and isinstance(value.type, TensorType) and value.type.elem is not None):
            told = np.array(value.content, np.int64).astype(value.type.elem.numpy)
            data[name] = tensor_proto(told.reshape(shape_of(value)))
    proto.output.extend(f"o{i}" if v is not None else "" for i, v in enumerate(node.outputs))
    for key, attr in node.attrs.items():
        proto.attribute.append(attribute_proto(key, attr))
    imports = [onnx.OperatorSetIdProto(domain=d, version=v) for d, v in opsets.items()]
    try:
        out = shape_inference.infer_node_outputs(native, proto, types, data, opset_imports=imports)
    except (shape_inference.InferenceError, RuntimeError, ValueError, onnx.checker.ValidationError) as error:
        raise InferenceError(str(error)) from error
    return [from_type_proto(out[n]) if (n := f"o{i}") in out else None for i in range(len(node.outputs))]


def type_proto(kind: Type) -> Any:
    """`kind` as an onnx TypeProto."""
    import onnx

    proto = onnx.TypeProto()
    if isinstance(kind, TensorType | SparseTensorType):
        tensor = proto.tensor_type if isinstance(kind, TensorType) else proto.sparse_tensor_type
        tensor.elem_type = int(kind.elem or 0)
        if kind.shape is not None:
            tensor.shape.SetInParent()
            for d in kind.shape:
                dim = tensor.shape.dim.add()
                if isinstance(d, str):
                    dim.dim_param = d
                elif d is not None:
                    dim.dim_value = d
    elif isinstance(kind, SequenceType):
        proto.sequence_type.elem_type.CopyFrom(type_proto(kind.elem))
    elif isinstance(kind, OptionalType):
        proto.optional_type.elem_type.CopyFrom(type_proto(kind.elem))
    elif isinstance(kind, MapType):
        proto.map_type.key_type = int(kind.key)
        proto.map_type.value_type.CopyFrom(type_proto(kind.value))
    return proto


def from_type_proto(proto: Any) -> Type | None:
    """The Type an onnx TypeProto says, None where it says nothing. Raises
    ValueError for an unknown element type."""
    which = proto.WhichOneof("value")
    if which in ("tensor_type", "sparse_tensor_type"):
        tensor = getattr(proto, which)
        shape = None
        if tensor.HasField("shape"):
            shape = tuple(d.dim_param or None if d.HasField("dim_param") else
                          (d.dim_value if d.HasField("dim_value") and d.dim_value >= 0 else None)
                          for d in tensor.shape.dim)
        if which == "sparse_tensor_type":
            return SparseTensorType(ElementType(tensor.elem_type), shape)
        elem = _ELEMENTS.get(tensor.elem_type)
        if elem is None and tensor.elem_type:
            raise ValueError(f"{tensor.elem_type} is no element type")
        return TensorType(elem, shape)
    if which == "sequence_type":
        inner = from_type_proto(proto.sequence_type.elem_type)
        return SequenceType(inner or TensorType(None))
    if which == "optional_type":
        inner = from_type_proto(proto.optional_type.elem_type)
        return OptionalType(inner or TensorType(None))
    if which == "map_type":
        inner = from_type_proto(proto.map_type.value_type)
        return MapType(ElementType(proto.map_type.key_type), inner or TensorType(None))
    return None


def tensor_proto(array: np.ndarray, name: str = "") -> Any:
    """`array` as an onnx TensorProto."""
    from onnx import numpy_helper

    return numpy_helper.from_array(np.ascontiguousarray(array).reshape(array.shape), name)


def attribute_proto(name: str, value: Any) -> Any:
    """An attribute as an onnx AttributeProto; graphs and sparse tensors are not handled here."""
    import onnx

    a = onnx.AttributeProto(name=name)
    kinds = onnx.AttributeProto
    if isinstance(value, float):
        a.type, a.f = kinds.FLOAT, value
    elif isinstance(value, int):
        a.type, a.i = kinds.INT, value
    elif isinstance(value, str):
        a.type, a.s = kinds.STRING, value.encode("utf-8", "surrogateescape")
    elif isinstance(value, np.ndarray):
        a.type = kinds.TENSOR
        a.t.CopyFrom(tensor_proto(value))
    elif isinstance(value, list | tuple):
        if all(isinstance(v, int) for v in value):
            a.type = kinds.INTS
            a.ints.extend(value)
        elif all(isinstance(v, int | float) for v in value):
            a.type = kinds.FLOATS
            a.floats.extend(value)
        elif all(isinstance(v, str) for v in value):
            a.type = kinds.STRINGS
            a.strings.extend(v.encode("utf-8", "surrogateescape") for v in value)
        else:
            raise TypeError(f"attribute {name} holds {type(value[0]).__name__}")
    elif isinstance(value, TensorType | SequenceType | OptionalType | MapType | SparseTensorType):
        a.type = kinds.TYPE_PROTO
        a.tp.CopyFrom(type_proto(value))
    else:
        raise TypeError(f"attribute {name} holds {type(value).__name__}")
    return a


def _enter(node: Node, body: Graph) -> None:
    """Type a body's inputs from the node that runs it."""
    for value, kind in zip(body.inputs, body_inputs(node), strict=False):
        value.type = merged(value.type, kind)


def body_inputs(node: Node) -> list[Type | None]:
    """What a node that runs one body again and again gives to it, as far as that is known."""
    if node.domain:
        return []
    if node.op_type == "Loop":
        carried = [_loose(v.type) if v is not None else None for v in node.inputs[2:]]
        own = [lone(v.type) for v in node.attrs["body"].inputs[:2]] + [(), ()]
        return [TensorType(ElementType.INT64, own[0]), TensorType(ElementType.BOOL, own[1]), *carried]
    if node.op_type == "SequenceMap":
        kinds = [v.type if v is not None else None for v in node.inputs]
        return [kind.elem if isinstance(kind, SequenceType) else kind for kind in kinds]
    if node.op_type != "Scan":
        return []
    inputs = node.inputs[1:] if node.version < 9 else node.inputs
    scanned = int(node.attrs.get("num_scan_inputs", 0))
    states = len(inputs) - scanned
    given = [_loose(v.type) if v is not None else None for v in inputs[:states]]
    if node.version < 9:
        return given + [_loose(v.type) if v is not None else None for v in inputs[states:]]
    axes = node.attrs.get("scan_input_axes") or [0] * scanned
    return given + [_without_axis(v, a) for v, a in zip(inputs[states:], axes, strict=False)]


def lone(declared: Type | None) -> tuple[int, ...]:
    """The shape in which a body is given one element: (1,) where it declares a vector, () elsewhere."""
    return (1,) if isinstance(declared, TensorType) and len(declared.shape or ()) == 1 else ()


def _loose(kind: Type | None) -> Type | None:
    """A loop-carried value keeps its element type; its shape, and those of a sequence's elements, may change
    from turn to turn."""
    if isinstance(kind, SequenceType | OptionalType):
        inside = _loose(kind.elem)
        return kind if inside is None else type(kind)(inside)
    return TensorType(kind.elem, None) if isinstance(kind, TensorType) else kind


def _without_axis(value: Value | None, axis: int) -> Type | None:
    if value is None or not isinstance(value.type, TensorType):
        return None
    if value.type.shape is None:
        return value.type
    axis = axis % len(value.type.shape) if value.type.shape else 0
    return TensorType(value.type.elem, tuple(d for i, d in enumerate(value.type.shape) if i != axis))


def _union(a: Type | None, b: Type | None) -> Type | None:
    """A type that holds whichever of two branches ran."""
    if a is None or b is None:
        return None
    if isinstance(a, TensorType) and isinstance(b, TensorType):
        if a.elem != b.elem and None not in (a.elem, b.elem):
            raise InferenceError(f"the branches give {a} and {b}")
        if a.shape is None or b.shape is None or len(a.shape) != len(b.shape):
            return TensorType(a.elem or b.elem, None)
        return TensorType(a.elem or b.elem, tuple(x if x == y else None
                                                  for x, y in zip(a.shape, b.shape, strict=True)))
    return a if not isinstance(b, OptionalType) else b


def _infer_if(node: Node, inputs: Sequence[Value | None], opsets: dict[str, int]) -> list[Type | None]:
    branches = [node.attrs[k].outputs for k in ("then_branch", "else_branch")]
    if len(branches[0]) != len(branches[1]) or len(branches[0]) < len(node.outputs):
        raise InferenceError(f"then_branch and else_branch have {len(branches[0])} and {len(branches[1])} "
                             f"outputs, the node {len(node.outputs)}")
    return [_union(a.type, b.type) for a, b in zip(*branches, strict=True)]


def _infer_loop(node: Node, inputs: Sequence[Value | None], opsets: dict[str, int]) -> list[Type | None]:
    carried = max(len(node.inputs) - 2, 0)
    made = [v.type for v in node.attrs["body"].outputs[1:]]
    return [*(_loose(t) for t in made[:carried]), *(_stacked(t, 0) for t in made[carried:])]


def _infer_scan(node: Node, inputs: Sequence[Value | None], opsets: dict[str, int]) -> list[Type | None]:
    if node.version < 9:
        return [None] * len(node.outputs)
    states = len(node.inputs) - int(node.attrs["num_scan_inputs"])
    made = [v.type for v in node.attrs["body"].outputs]
    axes = node.attrs.get("scan_output_axes") or [0] * (len(made) - states)
    return [*made[:states], *(_stacked(t, a) for t, a in zip(made[states:], axes, strict=False))]


def _stacked(kind: Type | None, axis: int) -> Type | None:
    if not isinstance(kind, TensorType) or kind.shape is None:
        return kind
    shape = list(kind.shape)
    shape.insert(axis if axis >= 0 else axis + len(shape) + 1, None)
    return TensorType(kind.elem, tuple(shape))


_CONTROL: dict[str, Callable[..., list[Type | None]]] = {
    "If": _infer_if, "Loop": _infer_loop, "Scan": _infer_scan,
}
