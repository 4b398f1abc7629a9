"""Weights that are kept in fewer bits than they are computed with.

In: a model, and names of nodes whose weights stay as they are. Out: the same model, in which large constants
are uint8 with a DequantizeLinear behind them, or float16 with a Cast. Arithmetic stays float32.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from ..affine import along, compute_scale_zp, get_qmin_qmax_for_qType, quantize_nparray
from ..onnx_model import ONNXModel
from ..opset import BY_CHANNEL
from ..quant_utils import get_opset_version
from ..refused import Unsupported

LEAST = 256
"""Elements of a constant from which on it is stored in fewer bits."""
_CHANNELS = {"Conv": 0, "ConvTranspose": 1, "Gather": 0, "MatMul": -1, "Gemm": 1, "LSTM": 1, "GRU": 1,
             "RNN": 1}
"""The axis of a weight whose indices have a scale each; the other one of two where a Gemm turns it."""

_HIGHEST = float(np.finfo(np.float16).max)


class _Coded(NamedTuple):
    """`harm`: by channel, the square of the sum of what the codes differ by, and the sum of the squares: what
    inputs whose mean is as large as their spread make of it."""

    scale: np.ndarray
    zero: np.ndarray
    codes: np.ndarray
    harm: np.ndarray


def in_bytes(model: ModelProto, left: Collection[str] = ()) -> ModelProto:
    """Change the model: weights have a scale and a zero point for each channel, or row of a table.

    Raises: Unsupported for operators before version 13, which have no such scales, InvalidValue for weights
    that are not finite.
    """
    if get_opset_version(model) < BY_CHANNEL:
        raise Unsupported("weights have no scales by channel in this version of operators",
                          found=get_opset_version(model), expected=f"{BY_CHANNEL} or later")
    edited = ONNXModel(model)
    for tensor, node in _weights(edited, left):
        axis = _channels(node) % len(tensor.dims)
        values = numpy_helper.to_array(tensor)
        scale, zero, codes = _least_harm(_codes(values, axis, True), _codes(values, axis, False), axis)
        by = {f"{tensor.name}_scale": scale, f"{tensor.name}_zero_point": zero}
        _behind(edited, tensor, numpy_helper.from_array(codes), helper.make_node(
            "DequantizeLinear", ["", *by], [tensor.name], f"{tensor.name}_dequantized", axis=axis))
        for name, array in by.items():
            edited.add_initializer(numpy_helper.from_array(array, name))
    return model


def in_float16(model: ModelProto, left: Collection[str] = ()) -> ModelProto:
    """Change the model; weights beyond float16's range stay as they are."""
    edited = ONNXModel(model)
    for tensor, _ in _weights(edited, left):
        values = numpy_helper.to_array(tensor)
        if np.abs(values).max(initial=0) <= _HIGHEST:
            _behind(edited, tensor, numpy_helper.from_array(values.astype(np.float16)), helper.make_node(
                "Cast", [""], [tensor.name], f"{tensor.name}_widened", to=TensorProto.FLOAT))
    return model


def _weights(edited: ONNXModel, left: Collection[str]) -> list[tuple[TensorProto, NodeProto]]:
    """Large float32 matrices that heavy nodes read, none of them in `left`, and the first of these nodes."""
    readers = edited.input_name_to_nodes()
    ends = {value.name for value in (*edited.graph().input, *edited.graph().output)}
    found = []
    for tensor in edited.initializer():
        nodes = readers.get(tensor.name, [])
        large = len(tensor.dims) > 1 and int(np.prod(tensor.dims)) >= LEAST
        if tensor.data_type == TensorProto.FLOAT and large and nodes and tensor.name not in ends and all(
                node.op_type in _CHANNELS and node.name not in left for node in nodes):
            found.append((tensor, nodes[0]))
    return found


def _codes(values: np.ndarray, axis: int, symmetric: bool) -> _Coded:
    """Values as bytes by channel, and how much harm that does to each channel's sums."""
    others = tuple(i for i in range(values.ndim) if i != axis)
    zero, scale = compute_scale_zp(values.min(others), values.max(others),
                                   *get_qmin_qmax_for_qType(TensorProto.UINT8), symmetric)
    by, low = (along(each, axis, values.shape) for each in (scale, zero))
    codes = quantize_nparray(TensorProto.UINT8, values, by, low)
    error = (codes.astype(np.float32) - low.astype(np.float32)) * by - values
    return _Coded(scale, zero, codes, error.sum(others) ** 2 + (error ** 2).sum(others))


def _least_harm(first: _Coded, second: _Coded, axis: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Scales, zero points and codes, each channel's of the one that does it less harm."""
    better = first.harm <= second.harm
    across = along(better, axis, first.codes.shape)
    return (np.where(better, first.scale, second.scale), np.where(better, first.zero, second.zero),
            np.where(across, first.codes, second.codes))


def _channels(node: NodeProto) -> int:
    turned = any(each.name == "transB" and each.i for each in node.attribute)
    return 0 if turned else _CHANNELS[node.op_type]


def _behind(edited: ONNXModel, tensor: TensorProto, small: TensorProto, node: NodeProto) -> None:
    """Have `node` give what `tensor` was, from `small`."""
    small.name = node.input[0] = f"{tensor.name}_stored"
    edited.remove_initializer(tensor)
    edited.add_initializer(small)
    edited.graph().node.insert(0, node)
