"""A model's operators in a later version of ONNX.

In: a ModelProto and a version. Out: a copy that computes the same. onnx's converter does most of it; what it
gets wrong is written anew here before it sees it: Upsample, and Resize of version 10, whose elements stand
where their index over the scale points to.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import onnx.version_converter
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from .onnx_model import all_graphs
from .refused import Failed, Unsupported

BY_CHANNEL = 13
"""The version from which on a DequantizeLinear has scales by channel."""
_RESIZE = 11
"""The version from which on a Resize says where elements stand."""
_ASIDE = "orthrus.aside"
"""A domain that onnx's converter leaves alone."""


def converted(model: ModelProto, version: int) -> ModelProto:
    """A copy of the model with the operators of a version later than its own.

    Raises: Failed where onnx cannot convert it, Unsupported for a Resize of version 10 that no later one is.
    """
    copy = ModelProto()
    copy.CopyFrom(model)
    own = next(each.version for each in copy.opset_import if each.domain in ("", "ai.onnx"))
    moved = [] if own >= _RESIZE else [node for graph in all_graphs(copy.graph) for node in _anew(graph, own)]
    if not moved:
        return _by_onnx(copy, version)
    copy.opset_import.append(helper.make_opsetid(_ASIDE, 1))
    made = _by_onnx(copy, version)
    for graph in all_graphs(made.graph):
        for node in graph.node:
            if node.domain == _ASIDE:
                node.domain = ""
    kept = [entry for entry in made.opset_import if entry.domain != _ASIDE]
    del made.opset_import[:]
    made.opset_import.extend(kept)
    return made


def _by_onnx(model: ModelProto, version: int) -> ModelProto:
    try:
        return onnx.version_converter.convert_version(model, version)
    except Exception as error:
        raise Failed(f"the model cannot be converted to operators of version {version}", found=error,
                     cure="export the model with this version") from error


def _anew(graph: GraphProto, own: int) -> Iterator[NodeProto]:
    """The nodes of a graph that are written anew, as Resize of version 11."""
    known = {tensor.name: tensor for tensor in graph.initializer}
    known |= {node.output[0]: attribute.t for node in graph.node if node.op_type == "Constant"
              for attribute in node.attribute if attribute.name == "value"}
    for node in list(graph.node):
        if node.op_type == "Upsample" or (node.op_type == "Resize" and own < _RESIZE):
            given = {each.name: helper.get_attribute_value(each) for each in node.attribute}
            factors = _factors(node, given, known)
            region = _constant(graph, f"{node.output[0]}_roi", [])
            by = [*node.input[1:2]] or [_constant(graph, f"{node.output[0]}_scales", factors)]
            linear = given.get("mode") in (b"linear", b"bilinear")
            side = "floor" if linear or node.op_type == "Upsample" else _side(node, factors)
            node.CopyFrom(helper.make_node(
                "Resize", [node.input[0], region, *by], node.output, node.name, domain=_ASIDE,
                mode="linear" if linear else "nearest", coordinate_transformation_mode="asymmetric",
                nearest_mode=side))
            yield node


def _factors(node: NodeProto, given: dict[str, Any], known: dict[str, TensorProto]) -> Any:
    """A node's scales, None where they are computed."""
    if len(node.input) > 1:
        return numpy_helper.to_array(known[node.input[1]]) if node.input[1] in known else None
    return given.get("scales") or [1, 1, given.get("height_scale", 1), given.get("width_scale", 1)]


def _side(node: NodeProto, factors: Any) -> str:
    """Which neighbour counts: the one before where an axis grows, the next one where it shrinks."""
    if factors is not None and (np.asarray(factors) >= 1).all():
        return "floor"
    if factors is not None and (np.asarray(factors) <= 1).all():
        return "ceil"
    raise Unsupported(
        "Resize of version 10 takes the neighbour before where an axis grows and the next one where it "
        "shrinks, later versions one of them for all axes", node=node.name or node.output[0],
        found=f"scales {factors}", expected="constant scales that all grow or all shrink",
        cure="export the model with operators of version 11 or later")


def _constant(graph: GraphProto, name: str, numbers: Any) -> str:
    value = numpy_helper.from_array(np.array(numbers, np.float32), name)
    graph.node.insert(0, helper.make_node("Constant", [], [name], value=value))
    return name
