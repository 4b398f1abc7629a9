"""SmoothQuant: what is large in some channels of an activation is moved into the weights that read it.

A float model and feeds go in, a float model that computes the same comes out: each channel of an activation
is divided by a factor and the weights' rows of it are multiplied by that. Source: Xiao and others,
SmoothQuant, 2023.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from .onnx_model import ONNXModel, read_names, subgraphs
from .quant_utils import get_opset_version
from .refused import InvalidValue

_LEAST = 1e-5
"""No factor is below it."""


class _Reader(NamedTuple):
    """A node that multiplies an activation by a constant: its weight, and the weight's axis of channels."""

    node: NodeProto
    weight: TensorProto
    axis: int


def smoothed(model: ModelProto, feeds: Iterable[dict[str, Any]], alpha: float = 0.5,
             folding: bool = True) -> tuple[ModelProto, list[str]]:
    """A copy of the model, smoothed, and the names of the nodes that were added to it.

    `alpha`: how much of the activations' size goes to the weights, from 0 to 1. `folding`: divide in a
    LayerNormalization before, where there is one, instead of in a Mul. Raises: InvalidValue for another
    alpha and where there are no feeds.
    """
    if not 0.0 <= alpha <= 1.0:
        raise InvalidValue("SmoothQuantAlpha is out of range", found=alpha, expected="a number from 0 to 1")
    copy = ModelProto()
    copy.CopyFrom(model)
    edited = ONNXModel(copy)
    groups = _groups(edited)
    peaks = _peaks(copy, groups, feeds)
    readers = edited.input_name_to_nodes()
    inner = set().union(*(read_names(graph) for node in edited.nodes() for graph in subgraphs(node)))
    makers, added = edited.output_name_to_node(), list[str]()
    for name, group in groups.items():
        factors = _move(group, peaks[name], alpha)
        alone = len(readers[name]) == len(group) and not edited.is_graph_output(name) and name not in inner
        if not (folding and alone and _folded(edited, makers.get(name), factors)):
            added.append(_divide(edited, name, group, factors))
    edited.topological_sort()
    return copy, added


def _groups(edited: ONNXModel) -> dict[str, list[_Reader]]:
    """{activation: the nodes that multiply its channels by a float constant that no other node reads}."""
    constants = {tensor.name: tensor for tensor in edited.initializer()
                 if tensor.data_type == TensorProto.FLOAT}
    counts = {name: len(nodes) for name, nodes in edited.input_name_to_nodes().items()}
    groups = dict[str, list[_Reader]]()
    for node in edited.nodes():
        weight = constants.get(node.input[1]) if len(node.input) > 1 else None
        axis = None if weight is None else _axis(node, len(weight.dims))
        if weight is None or axis is None or counts[weight.name] > 1 or node.input[0] in constants:
            continue
        group = groups.setdefault(node.input[0], [])
        if not group or (group[0].node.op_type == "Conv") == (node.op_type == "Conv"):
            group.append(_Reader(node, weight, axis))
    return groups


def _axis(node: NodeProto, rank: int) -> int | None:
    """The axis of a weight along which it is multiplied by the channels; None where there is none."""
    given = {attribute.name: attribute.i for attribute in node.attribute}
    if node.op_type == "MatMul":
        return rank - 2 if rank >= 2 else None
    if node.op_type == "Gemm":
        return None if given.get("transA") else int(bool(given.get("transB")))
    return 1 if node.op_type == "Conv" and given.get("group", 1) == 1 else None


def _peaks(model: ModelProto, groups: dict[str, list[_Reader]], feeds: Iterable[dict[str, Any]]
           ) -> dict[str, np.ndarray]:
    """{activation: the largest magnitude of each of its channels over the feeds}."""
    from .. import InferenceSession

    measuring = ModelProto()
    measuring.CopyFrom(model)
    graph, by_input = measuring.graph, get_opset_version(model) >= 18
    graph.ClearField("output")
    for index, (name, group) in enumerate(groups.items()):
        axes = [axis for axis in range(len(group[0].weight.dims)) if axis != 1]
        flat = name
        if group[0].node.op_type != "Conv":
            axes, flat = [0], f"{name}_rows_{index}"
            graph.node.append(helper.make_node("Flatten", [name], [flat], axis=-1))
        size, peak, places = (f"{name}_{what}_{index}" for what in ("sizes", "peak", "axes"))
        how: dict[str, Any] = {} if by_input else {"axes": axes}
        if by_input:
            graph.initializer.append(numpy_helper.from_array(np.array(axes, np.int64), places))
        graph.node.append(helper.make_node("Abs", [flat], [size]))
        graph.node.append(helper.make_node("ReduceMax", [size, places] if by_input else [size], [peak],
                                           keepdims=0, **how))
        graph.output.append(helper.make_tensor_value_info(peak, TensorProto.FLOAT, None))
    if not groups:
        return {}
    with tempfile.TemporaryDirectory(prefix="orthrus.quant.") as folder:
        path = os.path.join(folder, "model.onnx")
        onnx.save_model(measuring, path, save_as_external_data=True)
        session, found = InferenceSession(path), list[np.ndarray]()
        for feed in feeds:
            now = [np.asarray(peak) for peak in session.run(None, feed)]
            found = [np.maximum(*pair) for pair in zip(found, now, strict=True)] if found else now
    if not found:
        raise InvalidValue("SmoothQuant has no feeds to measure", cure="pass a reader that gives some")
    return dict(zip(groups, found, strict=True))


def _move(group: list[_Reader], peaks: np.ndarray, alpha: float) -> np.ndarray:
    """Multiply the weights by the factors of the channels, which are returned."""
    arrays = [numpy_helper.to_array(reader.weight) for reader in group]
    largest = np.max([np.abs(np.moveaxis(array, reader.axis, 0)).reshape(len(peaks), -1).max(axis=1)
                      for array, reader in zip(arrays, group, strict=True)], axis=0)
    usable = (peaks > 0) & (largest > 0) & np.isfinite(peaks)
    sizes, weights = np.where(usable, peaks, 1.0), np.where(usable, largest, 1.0)
    factors = np.where(usable, np.maximum(sizes ** alpha / weights ** (1 - alpha), _LEAST), 1.0)
    factors = factors.astype(np.float32)
    for array, reader in zip(arrays, group, strict=True):
        shape = [-1 if axis == reader.axis else 1 for axis in range(array.ndim)]
        reader.weight.CopyFrom(numpy_helper.from_array(array * factors.reshape(shape), reader.weight.name))
    return factors


def _folded(edited: ONNXModel, maker: NodeProto | None, factors: np.ndarray) -> bool:
    """Divide the scale and bias of the LayerNormalization that makes a value; whether there is such a one."""
    if maker is None or maker.op_type != "LayerNormalization":
        return False
    counts = edited.input_name_to_nodes()
    tensors = [edited.get_initializer(name) for name in maker.input[1:] if name]
    for tensor in tensors:
        fits = tensor is not None and list(tensor.dims) == [len(factors)] and len(counts[tensor.name]) == 1
        if not fits:
            return False
    for tensor in tensors:
        if tensor is not None:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) / factors, tensor.name))
    return True


def _divide(edited: ONNXModel, name: str, group: list[_Reader], factors: np.ndarray) -> str:
    """Have a group read its activation divided by the factors; the name of the Mul that is added."""
    rank = len(group[0].weight.dims)
    shape = (-1, *(1,) * (rank - 2)) if group[0].node.op_type == "Conv" else (-1,)
    constant, output, label = f"{name}_smooth_scale", f"{name}_smooth_output", f"{name}_smooth_mul"
    edited.add_initializer(numpy_helper.from_array((1 / factors).astype(np.float32).reshape(shape), constant))
    edited.add_node(helper.make_node("Mul", [name, constant], [output], label))
    for reader in group:
        reader.node.input[0] = output
    return label
