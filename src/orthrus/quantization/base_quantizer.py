"""What both kinds of quantizers share: which nodes are meant, what weights and biases become.

A model with inferred types comes in; `model` holds it while it is changed.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, numpy_helper

from .affine import (
    ONNX_TYPE_TO_NP_TYPE,
    along,
    compute_data_quant_params,
    compute_scale_zp,
    compute_scale_zp_float8,
    get_qmin_qmax_for_qType,
    listed_tensor,
    quantize_nparray,
    quantized_tensor,
    snap_zero_point_to_uint8,
    tensor_proto_to_array,
)
from .calibrate import TensorData
from .onnx_model import ONNXModel, keep_only
from .quant_utils import (
    DEQUANT_OP_NAME,
    QUANT_OP_NAME,
    TENSOR_NAME_QUANT_SUFFIX,
    get_opset_version,
    model_has_infer_metadata,
    normalize_axis,
    save_and_reload_model_with_shape_infer,
)
from .refused import InvalidType, InvalidValue, Unsupported
from .tensor_quant_overrides import TensorQuantOverridesHelper

FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16)
_SYMMETRIC = frozenset({TensorProto.INT4, TensorProto.INT8, TensorProto.INT16, TensorProto.FLOAT8E4M3FN})
_INT32 = np.iinfo(np.int32)
_BIAS_SPAN = float(_INT32.max) - float(_INT32.min + 1)
_BIAS_MARGIN = 1.0001
"""By how much a bias scale exceeds the least one at which no bias leaves int32."""
_log = logging.getLogger(__name__)


class QuantizationParams:
    """The zero point, the scale, the type and, where there is one, the axis of a quantized tensor."""

    def __init__(self, **data: Any) -> None:
        for key, value in data.items():
            if key == "axis" and value is not None and not isinstance(value, int):
                raise InvalidType(f"Axis value must be an int or None, not {type(value)}.")
            if key != "axis" and not isinstance(value, (int, str, np.ndarray, float)):
                raise InvalidType(f"Values must be numpy arrays, int, float, str not {type(value)} for "
                                  f"k={key!r}.")
            if key == "scale" and getattr(value, "dtype", None) not in (np.float32, np.float16):
                raise InvalidValue("scale must a float32 or float16 numpy element but is "
                                   f"{getattr(value, 'dtype', type(value))} for k={key!r}")
        self.data = dict(data)

    def get(self, key: str, default_value: Any = None) -> Any:
        return self.data.get(key, default_value)

    def __iter__(self) -> Iterator[str]:
        return iter(self.data)

    def __getitem__(self, key: str) -> Any:
        return self.data[key]

    def __setitem__(self, key: str, value: Any) -> None:
        self.data[key] = value

    def __len__(self) -> int:
        return len(self.data)



Params = tuple[np.ndarray, np.ndarray, int]


@contextmanager
def naming(what: str) -> Iterator[None]:
    """Say in an error about values whose they are."""
    try:
        yield
    except (InvalidValue, Unsupported) as error:
        raise type(error)(f"{what} cannot be quantized: {error.text}", node=error.node, found=error.found,
                           expected=error.expected, cure=error.cure) from None


def names_and_infos(model: ModelProto) -> dict[str, Any]:
    """{name: ValueInfoProto} of the main graph's values, initializers apart."""
    graph = model.graph
    return {value.name: value for value in (*graph.value_info, *graph.output, *graph.input)}


def widened_weight_scale(input_scale: np.ndarray, weight_scale: np.ndarray, bias: np.ndarray,
                         per_channel: bool) -> np.ndarray | None:
    """Weight scales that keep a bias in steps of input scale * weight scale in int32; None where these do."""
    if not weight_scale.size or not bias.size or (per_channel and weight_scale.ndim != 1):
        return None
    if per_channel:
        fits = bias.size % weight_scale.size == 0
        largest = np.abs(bias).reshape(-1, weight_scale.size if fits else 1).max(axis=0)
        largest = largest if fits else largest.max()
    else:
        largest = np.abs(bias.astype(np.float64)).max()
    least = _BIAS_MARGIN * (2.0 * largest) / np.float64(_BIAS_SPAN)
    scales = weight_scale.astype(np.float64)
    steps = np.float64(input_scale.item()) * scales
    small = (steps < least) & (steps > 0.0)
    if not small.any():
        return None
    wider = scales * (least / np.where(small, steps, 1.0))
    rounded = wider.astype(weight_scale.dtype)
    if weight_scale.dtype == np.float16:
        rounded = np.where(rounded < wider, np.nextafter(rounded, np.float16(np.inf)), rounded)
    return np.where(small, rounded, weight_scale)


class BaseQuantizer:
    """The parameters of a quantization and the parts of it that do not depend on the format.

    `tensors_range`: {name: TensorData}, or None where ranges are measured while running. Raises: InvalidType
    for other ranges, InvalidValue for wrong overrides.
    """

    def __init__(self, model: ModelProto, per_channel: bool, reduce_range: bool, weight_qType: Any,
                 activation_qType: Any, tensors_range: Any, nodes_to_quantize: Any, nodes_to_exclude: Any,
                 op_types_to_quantize: Any, extra_options: dict[str, Any] | None = None) -> None:
        if not model_has_infer_metadata(model):
            model = save_and_reload_model_with_shape_infer(model)
        self.value_infos = names_and_infos(model)
        self.model = ONNXModel(model)
        self.opset_version = get_opset_version(model)
        self.per_channel = per_channel
        self.reduce_range = reduce_range
        self.extra_options = extra_options or {}
        option = self.extra_options.get
        self.enable_subgraph_quantization = bool(option("EnableSubgraph", False))
        self.force_quantize_no_input_check = bool(option("ForceQuantizeNoInputCheck", False))
        self._is_weight_symmetric = option("WeightSymmetric")
        self.is_activation_symmetric = option("ActivationSymmetric", False)
        self.is_activation_restricted_asymmetric = option("ActivationRestrictedAsymmetric", False)
        self.min_real_range = option("MinimumRealRange")
        self.parent: Any = None
        self.activation_qType = getattr(activation_qType, "tensor_type", activation_qType)
        self.weight_qType = getattr(weight_qType, "tensor_type", weight_qType)
        if tensors_range is not None:
            for name, found in tensors_range.items():
                if not hasattr(found, "range_value") and not hasattr(found, "avg_std"):
                    raise InvalidType(f"tensors_range contains unexpected types {type(found)}, "
                                      "not TensorData.", found=f"{name}: {found!r}")
        self.tensors_range = None if tensors_range is None else dict(tensors_range.items())
        self._bounded: dict[str, bool] = {}
        self.nodes_to_quantize = nodes_to_quantize
        self.nodes_to_exclude = nodes_to_exclude
        self.op_types_to_quantize = op_types_to_quantize
        self.initializers = {tensor.name: tensor for tensor in self.model.initializer()}
        self.tensor_quant_overrides = TensorQuantOverridesHelper(option("TensorQuantOverrides", {}))
        valid, wrong = self.tensor_quant_overrides.is_valid(self.initializers, self.value_infos.keys(),
                                                            activation_qType)
        if not valid:
            raise InvalidValue(str(wrong), cure="correct extra_options['TensorQuantOverrides']")
        self.tensor_quant_override_qtypes = self.tensor_quant_overrides.get_quant_types()

    def quantize_model(self) -> ModelProto:
        """Change the model into a quantized one and return it."""
        raise NotImplementedError

    def is_weight_symmetric(self, weight_quant_type: int) -> bool:
        """What the option says, or whether the type is signed."""
        asked = self._is_weight_symmetric
        return weight_quant_type in _SYMMETRIC if asked is None else asked

    def is_per_channel(self) -> bool:
        return self.per_channel

    def is_input_a_initializer(self, input_name: str) -> bool:
        return input_name in self.initializers

    def is_valid_quantize_weight(self, weight_name: str) -> bool:
        """Whether this is a float initializer, here or in a graph around this one."""
        weight = self.initializers.get(weight_name)
        if weight is not None:
            return weight.data_type in FLOATS
        if not self.enable_subgraph_quantization or self.parent is None:
            return False
        return self.parent.is_valid_quantize_weight(weight_name)

    def should_quantize_node(self, node: NodeProto) -> bool:
        """Whether the lists of nodes and of operators mean this node."""
        if self.nodes_to_quantize and node.name not in self.nodes_to_quantize:
            return False
        if node.op_type not in self.op_types_to_quantize or node.op_type in (DEQUANT_OP_NAME, QUANT_OP_NAME):
            return False
        return not self.nodes_to_exclude or node.name not in self.nodes_to_exclude

    def is_bounded(self, name: str) -> bool:
        """Whether a float constant or the range of a value has no infinity: masks have, and stay float."""
        if name not in self._bounded:
            found: Any = ()
            if name in self.initializers:
                found = tensor_proto_to_array(self.initializers[name])
            elif self.tensors_range is not None and hasattr(self.tensors_range.get(name), "lowest"):
                found = self.tensors_range[name].range_value
            extremes = [part(found) for part in (np.min, np.max)] if np.size(found) else []
            self._bounded[name] = not np.isinf(extremes).any()
            if not self._bounded[name]:
                _log.warning("%s holds infinity and stays float", name)
        return self._bounded[name]

    def put_initializer(self, tensor: TensorProto) -> None:
        """Add a tensor, in place of one of its name where there is one."""
        present = self.initializers.get(tensor.name)
        if present is not None:
            present.CopyFrom(tensor)
            return
        self.model.initializer_extend([tensor])
        self.initializers[tensor.name] = self.model.initializer()[-1]

    def drop_initializers(self, names: Collection[str]) -> None:
        """Remove tensors, and the graph inputs of their names."""
        for name in names:
            del self.initializers[name]
        for items in (self.model.initializer(), self.model.graph().input):
            keep_only(items, lambda item: item.name not in names)

    def initializer_array(self, name: str) -> np.ndarray | None:
        """The values of a float initializer of this graph or one around it, None where there is none."""
        tensor = self.initializers.get(name)
        if tensor is None:
            return None if self.parent is None else self.parent.initializer_array(name)
        return tensor_proto_to_array(tensor)

    def named_activation_params(self, name: str, overrides: dict[str, Any] | None = None) -> Params:
        """(zero point, scale, type) of an activation from its range and its override, or the one given."""
        assert self.tensors_range is not None
        asked = overrides
        if asked is None:
            asked = self.tensor_quant_overrides.get_per_tensor_overrides(name, default_val={}) or {}
        with naming(f"the value {name!r}"):
            zero, scale, kind = self.activation_params(self.tensors_range[name], asked)
        return zero.squeeze(), scale.squeeze(), kind

    def activation_params(self, range_of: Any, overrides: dict[str, Any]) -> Params:
        """(zero point, scale, type) for a TensorData and an override."""
        kind = self.activation_qType
        if "quant_type" in overrides:
            kind = overrides["quant_type"].tensor_type
        if "scale" in overrides and "zero_point" in overrides:
            scale = np.asarray(overrides["scale"])
            scale = scale if scale.dtype in (np.float32, np.float16) else scale.astype(np.float32)
            return np.asarray(overrides["zero_point"]).astype(ONNX_TYPE_TO_NP_TYPE[kind]), scale, kind
        if kind == TensorProto.FLOAT8E4M3FN:
            zero, scale = compute_scale_zp_float8(kind, range_of.avg_std[1])
            return zero, scale, kind
        low, high = (np.asarray(overrides.get(key, found), dtype=np.asarray(found).dtype)
                     for key, found in zip(("rmin", "rmax"), range_of.range_value, strict=True))
        symmetric = overrides.get("symmetric", self.is_activation_symmetric)
        qmin, qmax = get_qmin_qmax_for_qType(kind, overrides.get("reduce_range", False), symmetric=symmetric)
        if self.is_activation_restricted_asymmetric and kind == TensorProto.UINT8 and not symmetric:
            zero, scale = snap_zero_point_to_uint8(low, high, int(qmin), int(qmax), self.min_real_range)
        else:
            zero, scale = compute_scale_zp(low, high, qmin, qmax, symmetric, self.min_real_range)
        return zero, scale, kind

    def channel_params(self, name: str, data: np.ndarray, axis: int, kind: int, symmetric: bool,
                       reduce_range: bool, overrides: list[dict[str, Any]]) -> tuple[np.ndarray, np.ndarray]:
        """(zero points, scales) of a weight's channels along an axis; errors name it.

        `overrides`: one for each of the first channels, or none.
        """
        rows = np.moveaxis(data, axis, 0).reshape(data.shape[axis], -1)
        if kind == TensorProto.FLOAT8E4M3FN or not rows.size:
            pairs = [compute_data_quant_params(row, kind, symmetric, reduce_range) for row in rows]
            return np.asarray([zero for zero, _ in pairs]), np.asarray([scale for _, scale in pairs])
        low, high = rows.min(axis=1), rows.max(axis=1)
        for index, entry in enumerate(overrides):
            low[index] = entry.get("rmin", low[index])
            high[index] = entry.get("rmax", high[index])
        qmin, qmax = get_qmin_qmax_for_qType(kind, reduce_range, symmetric=symmetric)
        with naming(f"the initializer {name!r}"):
            zero, scale = compute_scale_zp(low, high, qmin, qmax, symmetric, self.min_real_range)
        return zero, scale

    def quantize_initializer_impl(self, weight: TensorProto, qType: int, reduce_range: bool = False,
                                  keep_float_weight: bool = False) -> tuple[str, str, str]:
        """Add a weight quantized as a whole; the names of it, its zero point and its scale.

        With `keep_float_weight` only zero point and scale are added.
        """
        asked = self.tensor_quant_overrides.get_per_tensor_overrides(weight.name, default_val={}) or {}
        kind = asked["quant_type"].tensor_type if "quant_type" in asked else qType
        data = tensor_proto_to_array(weight)
        if "scale" in asked and "zero_point" in asked:
            zero = np.asarray(asked["zero_point"]).astype(ONNX_TYPE_TO_NP_TYPE[kind])
            scale = np.asarray(asked["scale"])
        else:
            symmetric = self.is_activation_symmetric
            if kind == self.weight_qType:
                symmetric = self.is_weight_symmetric(kind)
            zero, scale = self.tensor_params(
                weight.name, data, kind, asked.get("symmetric", symmetric),
                asked.get("reduce_range", self.reduce_range and reduce_range), asked)
        return self._add_quantized(weight, kind, zero, scale, None, keep_float_weight)

    def tensor_params(self, name: str, data: np.ndarray, kind: int, symmetric: bool, reduce_range: bool,
                      overrides: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
        """(zero point, scale) of a weight as a whole; errors name it."""
        with naming(f"the initializer {name!r}"):
            return compute_data_quant_params(data.ravel(), kind, symmetric, reduce_range, self.min_real_range,
                                             overrides.get("rmin"), overrides.get("rmax"))

    def quantize_weight_per_channel_impl(self, weight_name: str, weight_qType: int, channel_axis: int,
                                         reduce_range: bool = True, keep_float_weight: bool = False
                                         ) -> tuple[str, str, str]:
        """Add a weight quantized per channel of an axis; the names of it, its zero points and its scales.

        Raises: InvalidValue for what is no initializer, a wrong axis or overrides of another axis.
        """
        weight = self.initializers.get(weight_name)
        if weight is None:
            raise InvalidValue(f"{weight_name} is not an initializer")
        data = tensor_proto_to_array(weight)
        axis = self.counted_axis(weight_name, channel_axis, data.ndim)
        asked = self.tensor_quant_overrides.get_per_channel_overrides(weight_name, [{"axis": axis}]) or [{}]
        first: dict[str, Any] = asked[0]
        if self.counted_axis(weight_name, first.get("axis", axis), data.ndim) != axis:
            raise InvalidValue(f"Tensor quantization overrides for {weight_name} specify an unexpected axis.",
                               found=first["axis"], expected=axis)
        kind = first["quant_type"].tensor_type if "quant_type" in first else weight_qType
        rows = asked if len(asked) == data.shape[axis] else asked * data.shape[axis]
        if "scale" in first:
            zero = np.asarray([row["zero_point"] for row in rows]).astype(ONNX_TYPE_TO_NP_TYPE[kind])
            scale = np.asarray([row["scale"] for row in rows])
        else:
            zero, scale = self.channel_params(
                weight_name, data, axis, kind, first.get("symmetric", self.is_weight_symmetric(kind)),
                first.get("reduce_range", self.reduce_range and reduce_range), rows)
        return self._add_quantized(weight, kind, zero.reshape(-1), scale.reshape(-1), axis, keep_float_weight)

    @staticmethod
    def counted_axis(name: str, axis: int, rank: int) -> int:
        """The axis counted from the front. Raises: InvalidValue where the tensor has none such."""
        valid, counted = normalize_axis(axis, rank)
        if not valid:
            raise InvalidValue(f"Weight {name} has a per-channel axis with value {axis} that is "
                               f"out-of-bounds for rank {rank}")
        return counted

    def _add_quantized(self, weight: TensorProto, kind: int, zero: np.ndarray, scale: np.ndarray,
                       axis: int | None, keep_float_weight: bool) -> tuple[str, str, str]:
        name, dims = weight.name, [] if axis is None else [weight.dims[axis]]
        names = f"{name}{TENSOR_NAME_QUANT_SUFFIX}", f"{name}_zero_point", f"{name}_scale"
        self.put_initializer(listed_tensor(scale.reshape(dims), weight.data_type, names[2]))
        self.put_initializer(listed_tensor(zero.reshape(dims), kind, names[1]))
        if not keep_float_weight:
            data = tensor_proto_to_array(weight)
            if axis is not None:
                zero, scale = along(zero, axis, data.shape), along(scale, axis, data.shape)
            self.put_initializer(quantized_tensor(quantize_nparray(kind, data, scale, zero), kind, names[0]))
        return names

    def quantize_bias_static_impl(self, bias_name: str, input_scale: np.ndarray, weight_scale: np.ndarray,
                                  beta: float = 1.0, bias_scale_dtype: Any = None
                                  ) -> tuple[str, str, str, np.ndarray, str, int]:
        """Add a bias in steps of input scale * weight scale * beta, zero point 0, as int32. A
        `bias_scale_dtype` is the scales' type in the place of the bias's; they then hold all of the bias.

        The names of it, its scale and its zero point, the scales, the operator that makes it float and the
        type it is. With float8 weights a bias stays float, with scale 1.
        """
        bias = tensor_proto_to_array(self.initializers[bias_name])
        if beta == 0:
            bias, beta = np.zeros_like(bias), 1.0
        name = f"{bias_name}{TENSOR_NAME_QUANT_SUFFIX}"
        scale_name, zero_name = f"{name}_scale", f"{name}_zero_point"
        if self.weight_qType == TensorProto.FLOAT8E4M3FN:
            kept = TensorProto.FLOAT16 if bias.dtype == np.float16 else TensorProto.FLOAT
            scales = np.ones(1, np.float32)
            self.put_initializer(numpy_helper.from_array(bias.astype(np.float32), name))
            self.put_initializer(numpy_helper.from_array(scales, scale_name))
            self.put_initializer(onnx.helper.make_tensor(zero_name, self.weight_qType, [1], [0.0]))
            return name, scale_name, zero_name, scales, "Cast", kept
        steps = np.asarray(input_scale * weight_scale * beta)
        if bias_scale_dtype is not None:
            most = np.abs(np.asarray(bias, np.float64)) / _INT32.max
            most = most.max(initial=0.0) if steps.size == 1 else most
            steps = np.maximum(steps, most * 1.0001).astype(bias_scale_dtype)
            steps = np.where(steps == 0, np.ones_like(steps), steps)
        if steps.size > 1 and bias.ndim == 1 and bias.size != steps.size:
            steps = np.tile(steps, bias.size // steps.size)
        with np.errstate(divide="ignore", invalid="ignore"):
            counts = np.round(np.asarray(bias, np.float64) / np.asarray(steps, np.float64))
        if (np.abs(counts) > _INT32.max).any():
            _log.warning("the bias %s leaves int32: its scale is too small", bias_name)
        counts = np.clip(np.nan_to_num(counts, nan=0.0), float(_INT32.min), float(_INT32.max))
        scales = np.asarray(steps, bias.dtype if bias_scale_dtype is None else bias_scale_dtype).reshape(-1)
        self.put_initializer(numpy_helper.from_array(counts.astype(np.int32).reshape(bias.shape), name))
        self.put_initializer(numpy_helper.from_array(scales, scale_name))
        if scales.size > 1:
            self.put_initializer(numpy_helper.from_array(np.zeros(scales.size, np.int32), zero_name))
        else:
            self.put_initializer(onnx.helper.make_tensor(zero_name, TensorProto.INT32, [], [0]))
        return name, scale_name, zero_name, scales, DEQUANT_OP_NAME, self.weight_qType

    def adjust_tensor_ranges(self) -> None:
        """Give what only a Clip or Relu reads the range of its result, and a Softmax's result [0, 1]."""
        if self.tensors_range is None:
            return
        readers = self.model.input_name_to_nodes()
        ranges = self.tensors_range
        for node in self.model.nodes():
            if node.op_type not in ("Clip", "Relu", "Softmax") or not self.should_quantize_node(node):
                continue
            source, result = node.input[0], node.output[0]
            if node.op_type == "Softmax" and result in ranges:
                ranges[result] = TensorData(lowest=np.float32(0.0), highest=np.float32(1.0))
            known = source in ranges and result in ranges
            if node.op_type != "Softmax" and known and len(readers[source]) == 1:
                ranges[source] = ranges[result]
