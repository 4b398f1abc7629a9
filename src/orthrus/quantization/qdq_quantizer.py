"""Writes a float model with QuantizeLinear and DequantizeLinear around its operators.

First every node's class marks the values it wants quantized; then scales are computed, nodes inserted and
weights and biases quantized. A marked value is quantized once, however many nodes read it.
"""

from __future__ import annotations

import logging
from enum import Enum
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto

from ..records import dataclass
from .affine import (
    compute_scale_zp_blocked,
    listed_tensor,
    quantize_onnx_initializer,
    tensor_proto_to_array,
)
from .base_quantizer import FLOATS, BaseQuantizer, QuantizationParams, naming, widened_weight_scale
from .qdq_insertion import Insertion
from .quant_utils import (
    DEQUANT_OP_NAME,
    ONNX_TYPE_TO_NP_TYPE,
    QuantizedValue,
    QuantizedValueType,
    __producer__,
    __version__,
    add_dequant_output_suffix,
    add_dequant_suffix,
    ms_domain,
    normalize_axis,
)
from .refused import InvalidType, InvalidValue
from .registry import CreateQDQQuantizer

_NEED_OPSET_21 = (TensorProto.UINT16, TensorProto.INT16, TensorProto.UINT4, TensorProto.INT4)
_log = logging.getLogger(__name__)


class QDQQuantTensorType(Enum):
    ACTIVATION = 0
    WEIGHT = 1
    BIAS = 2


@dataclass
class QDQQuantParamProvider:
    """The value whose scale another takes, as the named node reads it."""

    input_name: str
    node_name: str


class QDQTensorQuantInfo:
    """A marked value: what it is, whose scale it takes, along which axis and of which float type it is."""

    def __init__(self, tensor_type: QDQQuantTensorType = QDQQuantTensorType.ACTIVATION,
                 quant_para_provider: QDQQuantParamProvider | None = None, axis: int | None = None,
                 data_type: int | None = None) -> None:
        self.tensor_type = tensor_type
        self.quant_para_provider: Any = quant_para_provider
        self.axis = axis
        self.is_shared = quant_para_provider is not None
        self.data_type = data_type


@dataclass
class QDQBiasQuantInfo:
    """A marked bias: the node that reads it, the two values whose scales it takes and a factor of them."""

    node_name: str
    input_name: str
    weight_name: str
    beta: float


class _Converted:
    """Something of a value, and the same of what the value is converted to for some or (None) all readers."""

    original: Any
    converted: Any
    converted_recv_nodes: set[str] | None

    def get_for_consumer(self, consumer_node_name: str) -> Any:
        """What holds for the value as this node reads it."""
        receives = self.converted_recv_nodes is None or consumer_node_name in self.converted_recv_nodes
        return self.converted if self.converted is not None and receives else self.original


@dataclass
class QDQTensorQuantParams(_Converted):
    """Scales and zero points."""

    original: QuantizationParams
    converted: QuantizationParams | None
    converted_recv_nodes: set[str] | None


@dataclass
class QDQScaleZpInitializers:
    scale: TensorProto
    zero_point: TensorProto


@dataclass
class QDQTensorScaleZpInitializers(_Converted):
    """The tensors of scales and zero points."""

    original: QDQScaleZpInitializers
    converted: QDQScaleZpInitializers | None
    converted_recv_nodes: set[str] | None


@dataclass
class QDQTensorQuantizedValue(_Converted):
    """The names of what a value became."""

    original: QuantizedValue
    converted: QuantizedValue | None
    converted_recv_nodes: set[str] | None


class QDQQuantizer(BaseQuantizer):
    """`tensors_range`: {name: TensorData} of the values; the rest as BaseQuantizer takes it."""

    def __init__(self, model: ModelProto, per_channel: bool, reduce_range: bool, weight_qType: Any,
                 activation_qType: Any, tensors_range: Any, nodes_to_quantize: Any, nodes_to_exclude: Any,
                 op_types_to_quantize: Any, extra_options: dict[str, Any] | None = None) -> None:
        super().__init__(model, per_channel, reduce_range, weight_qType, activation_qType, tensors_range,
                         nodes_to_quantize, nodes_to_exclude, op_types_to_quantize, extra_options)
        option = self.extra_options.get
        self.tensors_to_quantize: dict[str, QDQTensorQuantInfo] = {}
        self.bias_to_quantize: dict[str, QDQBiasQuantInfo] = {}
        self.nodes_to_remove: list[NodeProto] = []
        self.op_types_to_exclude_output_quantization = option("OpTypesToExcludeOutputQuantization", [])
        self.add_qdq_pair_to_weight = option("AddQDQPairToWeight", False)
        self.quantize_bias = option("QuantizeBias", True)
        self.dedicated_qdq_pair = option("DedicatedQDQPair", False)
        self.tensor_to_its_receiving_nodes: dict[str, list[NodeProto]] = {}
        self.tensor_to_producing_dq: dict[str, NodeProto] = {}
        self.qdq_op_type_per_channel_support_to_axis = option("QDQOpTypePerChannelSupportToAxis", {})
        self.qdq_op_domain = self._operators_domain(bool(option("UseQDQContribOps", False)))
        self.qdq_keep_removable_activations = option("QDQKeepRemovableActivations", False)
        self.qdq_disable_weight_adjust_for_int32_bias = option("QDQDisableWeightAdjustForInt32Bias", False)
        self.block_size: int = option("BlockSize", 0)
        self._name_nodes()
        self.insertion = Insertion(self.model, self.qdq_op_domain)
        self.quantization_params = self.calc_graph_quant_params()
        self.initializer_quant_params: dict[str, QuantizationParams] = {}
        self.quantized_value_map: dict[str, QDQTensorQuantizedValue] = {}

    def _operators_domain(self, contributed: bool) -> str | None:
        """The domain of the inserted operators: onnxruntime's where it is asked for or the types need it."""
        kinds = {self.activation_qType, self.weight_qType,
                 *(kind.tensor_type for kind in self.tensor_quant_override_qtypes)}
        needed = self.opset_version < 21 and not kinds.isdisjoint(_NEED_OPSET_21)
        values = (*self.value_infos, *self.initializers) if self.opset_version < 19 else ()
        needed = needed or any(self._get_tensor_type(name) == TensorProto.FLOAT16 for name in values)
        if needed and not contributed:
            _log.warning("in operator set %d only %s has QuantizeLinear of these types: it is used",
                         self.opset_version, ms_domain)
        return ms_domain if needed or contributed else None

    def _name_nodes(self) -> None:
        """Name the nodes without a name: marks tell the readers of a value apart by their names."""
        taken = {node.name for node in self.model.nodes()}
        for index, node in enumerate(self.model.nodes()):
            if not node.name:
                name = f"{node.op_type}_{index}"
                while name in taken:
                    name += "_"
                taken.add(name)
                node.name = name

    def quantize_model(self) -> ModelProto:
        self.insertion.index()
        for node in list(self.model.nodes()):
            if self.should_quantize_node(node):
                CreateQDQQuantizer(self, node).quantize()
                for name in dict.fromkeys(filter(None, node.input)):
                    self.tensor_to_its_receiving_nodes.setdefault(name, []).append(node)
            if node.op_type == DEQUANT_OP_NAME:
                self.tensor_to_producing_dq[node.output[0]] = node
        self.initializer_quant_params = self._calc_initializer_quant_params()
        self._adjust_weight_quant_params_for_bias_tensors()
        self._quantize_normal_tensors()
        self._quantize_sharing_param_tensors()
        if self.quantize_bias:
            self._quantize_bias_tensors()
        self.insertion.finish(self.nodes_to_remove)
        if not self.add_qdq_pair_to_weight:
            self.model.clean_initializers()
        model = self.model.model
        model.producer_name, model.producer_version = __producer__, __version__
        if self.qdq_op_domain == ms_domain:
            self.model.set_opset_import(ms_domain, 1)
        return model

    def remove_node(self, node: NodeProto) -> None:
        """Have a node removed when all is inserted."""
        self.nodes_to_remove.append(node)

    def remove_nodes(self) -> None:
        """Remove the nodes that remove_node was told."""
        self.model.remove_nodes(self.nodes_to_remove)

    def try_replacing_upstream_output(self, upstream_output_name: str, output_name: str) -> bool:
        """Let what makes one value make the other instead; whether nothing else needs the first."""
        params = [self.quantization_params.get(name) for name in (upstream_output_name, output_name)]
        if any(found is None or found.converted is not None for found in params):
            return False
        outer = self.model.is_graph_output, self.model.is_graph_input
        if any(is_one(upstream_output_name) for is_one in outer):
            return False
        if self.insertion.reads(upstream_output_name) != 1:
            return False
        self.insertion.rename_output(upstream_output_name, output_name)
        self.tensors_to_quantize.pop(upstream_output_name, None)
        return True

    def _get_tensor_type(self, tensor_name: str) -> int | None:
        """The type of a value's elements, None where it is not known."""
        weight = self.initializers.get(tensor_name)
        if weight is not None:
            return weight.data_type
        info = self.value_infos.get(tensor_name)
        if info is None or not info.type.HasField("tensor_type"):
            return None
        return info.type.tensor_type.elem_type

    def _is_tensor_quantizable(self, tensor_name: str) -> bool:
        kind = self._get_tensor_type(tensor_name)
        if kind is None:
            _log.warning("the type of %r is not known; it stays as it is", tensor_name)
        return kind in FLOATS and self.is_bounded(tensor_name)

    def _mark(self, tensor_name: str, kind: QDQQuantTensorType,
              provider: QDQQuantParamProvider | None = None) -> None:
        if not self._is_tensor_quantizable(tensor_name):
            return
        if provider is not None or tensor_name not in self.tensors_to_quantize:
            self.tensors_to_quantize[tensor_name] = QDQTensorQuantInfo(
                kind, provider, data_type=self._get_tensor_type(tensor_name))

    def quantize_activation_tensor(self, tensor_name: str) -> None:
        """Mark a value as an activation."""
        self._mark(tensor_name, QDQQuantTensorType.ACTIVATION)

    def quantize_output_same_as_input(self, output_name: str, input_name: str, node_name: str) -> None:
        """Mark a value that takes the scale of another one, as the named node reads that."""
        self._mark(output_name, QDQQuantTensorType.ACTIVATION, QDQQuantParamProvider(input_name, node_name))

    def quantize_weight_tensor(self, tensor_name: str) -> None:
        """Mark a value as a weight."""
        self._mark(tensor_name, QDQQuantTensorType.WEIGHT)

    def quantize_weight_tensor_per_channel(self, tensor_name: str, axis: int) -> None:
        """Mark a constant as a weight with a scale per channel of the axis."""
        weight = self.initializers.get(tensor_name)
        if weight is None:
            _log.warning("%s is no constant: it is not quantized per channel", tensor_name)
        elif weight.data_type in FLOATS:
            self.tensors_to_quantize[tensor_name] = QDQTensorQuantInfo(
                QDQQuantTensorType.WEIGHT, axis=axis, data_type=weight.data_type)

    def quantize_bias_tensor(self, node_name: str, bias_name: str, input_name: str, weight_name: str,
                             beta: float = 1.0) -> None:
        """Mark a constant as a bias in steps of the scales of data and weight times beta.

        One that another node reads too is copied; one with overrides is a weight.
        """
        bias = self.initializers.get(bias_name)
        if self.tensor_quant_overrides.get(bias_name):
            per_channel, axis = self.is_tensor_per_channel(bias_name, default_axis=0)
            if per_channel and axis is not None:
                self.quantize_weight_tensor_per_channel(bias_name, axis)
            else:
                self.quantize_weight_tensor(bias_name)
            return
        if bias is None or bias.data_type not in FLOATS:
            _log.warning("the bias %s of %s is no float constant and stays as it is", bias_name, node_name)
            return
        name = bias_name
        if bias_name in self.bias_to_quantize:
            name = self._copied(bias).name
            self.insertion.rename_inputs(bias_name, name, {node_name})
        self.bias_to_quantize[name] = QDQBiasQuantInfo(node_name, input_name, weight_name, beta)

    def _copied(self, tensor: TensorProto) -> TensorProto:
        copy = TensorProto()
        copy.CopyFrom(tensor)
        copy.name = f"{tensor.name}{self.model.get_largest_initializer_name_suffix(tensor.name) + 1}"
        self.put_initializer(copy)
        return copy

    def is_tensor_quantized(self, tensor_name: str) -> bool:
        """Whether a value is marked."""
        return tensor_name in self.tensors_to_quantize or tensor_name in self.bias_to_quantize

    def is_tensor_per_channel(self, tensor_name: str, default_axis: int, op_type: str | None = None
                              ) -> tuple[bool, int | None]:
        """(whether a constant gets a scale per channel, along which axis)."""
        weight, overrides = self.initializers.get(tensor_name), self.tensor_quant_overrides
        if weight is None or overrides.has_per_tensor_overrides(tensor_name):
            return False, None
        axis = default_axis
        if overrides.has_per_channel_overrides(tensor_name):
            axis = overrides[tensor_name][0]["axis"]
        elif not self.per_channel:
            return False, None
        elif op_type:
            axis = self.qdq_op_type_per_channel_support_to_axis.get(op_type, default_axis)
        valid, counted = normalize_axis(axis, len(weight.dims))
        if not valid:
            _log.warning("%s has no axis %d: it is quantized as a whole", tensor_name, axis)
            return False, None
        return True, counted

    def calc_quant_params(self, tensor_data: Any, quant_overrides: dict[str, Any]) -> QuantizationParams:
        """Scale and zero point for a range and an override."""
        zero, scale, kind = self.activation_params(tensor_data, quant_overrides)
        return QuantizationParams(zero_point=zero.squeeze(), scale=scale.squeeze(), quant_type=kind)

    def calc_graph_quant_params(self) -> dict[str, QDQTensorQuantParams]:
        """{name: parameters} of every value with a range."""
        if self.tensors_range is None:
            return {}
        self.adjust_tensor_ranges()
        params = {}
        for name in filter(self.is_bounded, self.tensors_range):
            asked = self.tensor_quant_overrides.get_per_tensor_overrides(name, default_val={}) or {}
            convert = asked.get("convert")
            original, converted = [
                None if entry is None else self._named_params(name, entry) for entry in (asked, convert)]
            assert original is not None
            receivers = None if convert is None else convert.get("recv_nodes")
            params[name] = QDQTensorQuantParams(original, converted, receivers)
        return params

    def _named_params(self, name: str, overrides: dict[str, Any]) -> QuantizationParams:
        zero, scale, kind = self.named_activation_params(name, overrides)
        return QuantizationParams(zero_point=zero, scale=scale, quant_type=kind)

    def _calc_initializer_quant_params(self) -> dict[str, QuantizationParams]:
        """{name: parameters} of every marked constant."""
        return {name: self._weight_params(name, info) for name, info in self.tensors_to_quantize.items()
                if name in self.initializers}

    def _weight_params(self, name: str, info: QDQTensorQuantInfo) -> QuantizationParams:
        data = tensor_proto_to_array(self.initializers[name])
        rows = self.tensor_quant_overrides.get(name) or [{}]
        first, weight = rows[0], info.tensor_type is QDQQuantTensorType.WEIGHT
        kind = self.weight_qType if weight else self.activation_qType
        if "quant_type" in first:
            kind = first["quant_type"].tensor_type
        axis = first.get("axis", info.axis)
        if axis is not None:
            axis = self.counted_axis(name, axis, data.ndim)
        if self.tensor_quant_overrides.overrides_scale_zp(name):
            zeros = np.asarray([row["zero_point"] for row in rows]).astype(ONNX_TYPE_TO_NP_TYPE[kind])
            scales = np.asarray([row["scale"] for row in rows]).astype(data.dtype)
            axis = axis if "axis" in first else None
            shape = () if axis is None else (-1,)
            return QuantizationParams(zero_point=zeros.reshape(shape), scale=scales.reshape(shape),
                                      quant_type=kind, axis=axis)
        by_type = self.is_weight_symmetric(kind) if weight else self.is_activation_symmetric
        symmetric = first.get("symmetric", axis is not None or by_type)
        reduce_range = first.get("reduce_range", self.reduce_range)
        if weight and self.block_size > 0:
            axis = axis or self.counted_axis(name, 0, data.ndim)
            with naming(f"the initializer {name!r}"):
                zeros, scales = compute_scale_zp_blocked(data, kind, axis, self.block_size, symmetric)
            return QuantizationParams(zero_point=zeros, scale=scales, quant_type=kind, axis=axis,
                                      block_size=self.block_size)
        if axis is None:
            zeros, scales = self.tensor_params(name, data, kind, symmetric, reduce_range, first)
        else:
            zeros, scales = self.channel_params(name, data, axis, kind, symmetric, reduce_range, rows)
        return QuantizationParams(zero_point=zeros, scale=scales, quant_type=kind, axis=axis)

    def _adjust_weight_quant_params_for_bias_tensors(self) -> None:
        """Widen the scales of weights that would make a bias leave int32."""
        if self.qdq_disable_weight_adjust_for_int32_bias:
            return
        for name, info in self.bias_to_quantize.items():
            data = self.quantization_params.get(info.input_name)
            marked = self.tensors_to_quantize.get(info.input_name)
            weight = self.initializer_quant_params.get(info.weight_name)
            if data is None or marked is None or weight is None or weight["zero_point"].any():
                continue
            if weight["quant_type"] not in (TensorProto.INT8, TensorProto.INT16):
                continue
            dtype = onnx.helper.tensor_dtype_to_np_dtype(marked.data_type)
            scale = np.asarray(data.get_for_consumer(info.node_name)["scale"], dtype=dtype)
            bias = tensor_proto_to_array(self.initializers[name])
            wider = widened_weight_scale(scale, weight["scale"], bias, weight.get("axis") is not None)
            if wider is not None:
                weight["scale"] = wider

    def _quantize_normal_tensors(self) -> None:
        """Insert nodes for the marked values with scales of their own."""
        for name, info in list(self.tensors_to_quantize.items()):
            if name in self.quantized_value_map or info.is_shared:
                continue
            del self.tensors_to_quantize[name]
            if name in self.initializers:
                self._add_qdq_nodes_for_initializer(self.initializers[name])
            elif name not in self.tensor_to_producing_dq:
                made = self._make_tensor_scale_zp_initializers(name)
                if made is None:
                    raise InvalidValue(f"Quantization parameters are not specified for param {name}.",
                                       expected="the range of every value that is quantized",
                                       cure="calibrate this value too, or leave the nodes that read and make "
                                            "it out by nodes_to_exclude")
                self._insert(name, made, info.data_type)

    def _quantize_sharing_param_tensors(self) -> None:
        """Insert nodes for the marked values that take another one's scale, those of others' others last."""
        while self.tensors_to_quantize:
            ready = [(name, info) for name, info in self.tensors_to_quantize.items()
                     if info.quant_para_provider.input_name in self.quantized_value_map]
            if not ready:
                for info in self.tensors_to_quantize.values():
                    info.is_shared = False
                self._quantize_normal_tensors()
            for name, info in ready:
                del self.tensors_to_quantize[name]
                if name in self.initializers or name in self.tensor_to_producing_dq:
                    raise InvalidValue(f"{name} is quantized already and cannot take another value's scale")
                provider = info.quant_para_provider
                source = self.quantized_value_map[provider.input_name].get_for_consumer(provider.node_name)
                params = self.quantization_params.get(name)
                converted = receivers = None
                if params is not None and params.converted is not None:
                    converted = self._make_scale_zp_initializers(name, params.converted, "_convert")
                    receivers = params.converted_recv_nodes
                original = QDQScaleZpInitializers(self.initializers[source.scale_name],
                                                  self.initializers[source.zp_name])
                made = QDQTensorScaleZpInitializers(original, converted, receivers)
                self._insert(name, made, info.data_type)

    def _insert(self, name: str, made: QDQTensorScaleZpInitializers, data_type: int | None) -> None:
        """Insert the nodes of an activation with these scales and zero points."""
        first = made.original.scale.name, made.original.zero_point.name
        readers = self.tensor_to_its_receiving_nodes.get(name, [])
        dedicated = bool(self.dedicated_qdq_pair) and len(readers) > 1
        if made.converted is None:
            output = (self.insertion.pairs(name, readers, *first) if dedicated
                      else self.insertion.pair(name, *first))
            self.quantized_value_map[name] = QDQTensorQuantizedValue(
                self._value(name, output, first, data_type), None, None)
            return
        if dedicated:
            raise InvalidValue(f"the overrides convert {name}, which several nodes read",
                               cure="leave out extra_options['DedicatedQDQPair'] or the conversion")
        second = made.converted.scale.name, made.converted.zero_point.name
        every = {node.name for node in readers}
        receivers = every if made.converted_recv_nodes is None else set(made.converted_recv_nodes)
        outputs = self.insertion.conversion(name, every, receivers, first, second)
        self.quantized_value_map[name] = QDQTensorQuantizedValue(
            self._value(name, outputs[0], first, data_type), self._value(name, outputs[1], second, data_type),
            receivers)

    @staticmethod
    def _value(name: str, output: str, made: tuple[str, str], data_type: int | None) -> QuantizedValue:
        return QuantizedValue(name, output, *made, QuantizedValueType.Input, scale_type=data_type)

    def _add_qdq_nodes_for_initializer(self, weight_proto: TensorProto) -> None:
        """Insert the nodes of a constant: both for its float values, or one for the quantized ones."""
        name, params = weight_proto.name, self.initializer_quant_params[weight_proto.name]
        axis, block_size = params.get("axis"), params.get("block_size")
        made = self._make_scale_zp_initializers(name, params)
        names = made.scale.name, made.zero_point.name
        quantized = None
        if not self.add_qdq_pair_to_weight:
            with naming(f"the initializer {name!r}"):
                tensor = quantize_onnx_initializer(weight_proto, params["quant_type"], params["zero_point"],
                                                   params["scale"], axis, block_size=block_size)
            self.put_initializer(tensor)
            quantized = tensor.name
        self.insertion.constant(name, quantized, *names, axis, block_size)
        value = QuantizedValue(name, quantized or "", *names, QuantizedValueType.Initializer, axis=axis)
        self.quantized_value_map[name] = QDQTensorQuantizedValue(value, None, None)

    def _quantize_bias_tensors(self) -> None:
        """Quantize the marked biases, each made float again under its own name."""
        replaced = set[str]()
        for name, info in self.bias_to_quantize.items():
            if name in self.quantized_value_map or not self.quantize_bias_static(name, info):
                continue
            value = self.quantized_value_map[name].original
            kind = self.initializers[name].data_type
            replaced.add(name)
            label = add_dequant_suffix(name)
            if value.node_type == "Cast":
                node = onnx.helper.make_node("Cast", [value.q_name], [name], label, to=kind)
            else:
                wide = kind == TensorProto.FLOAT16 and (
                    self.initializers[value.scale_name].data_type == TensorProto.FLOAT)
                made = add_dequant_output_suffix(name) if wide else name
                node = self.insertion.dequantize(value.q_name, made, label, value.scale_name, value.zp_name,
                                                 value.axis)
                if wide:
                    self.insertion.add(node)
                    node = onnx.helper.make_node("Cast", [made], [name], f"{name}_Cast", to=kind)
            self.insertion.add(node)
        self.drop_initializers(replaced)

    def _get_tensor_quantization_scale(self, tensor_name: str, consumer_node_name: str) -> np.ndarray | None:
        """The scale of a value as a node reads it, also of one that was quantized in the model before."""
        value = self.quantized_value_map.get(tensor_name)
        if value is not None:
            return self.initializer_array(value.get_for_consumer(consumer_node_name).scale_name)
        maker = self.tensor_to_producing_dq.get(tensor_name)
        return None if maker is None else self.initializer_array(maker.input[1])

    def quantize_bias_static(self, bias_name: str, bias_info: QDQBiasQuantInfo) -> str:
        """Quantize a bias in steps of the scales of data and weight; its name, empty where it stays float."""
        known = self.quantized_value_map.get(bias_name)
        if known is not None:
            return known.original.q_name
        data, weight = (self._get_tensor_quantization_scale(name, bias_info.node_name)
                        for name in (bias_info.input_name, bias_info.weight_name))
        if data is None or weight is None:
            _log.warning("the bias %s stays float: %s or its weight is not quantized", bias_name,
                         bias_info.input_name)
            return ""
        size = int(np.prod(self.initializers[bias_name].dims))
        if weight.size > 1 and size % weight.size:
            _log.warning("the bias %s stays float: %d values do not fit %d scales of %s", bias_name, size,
                         weight.size, bias_info.weight_name)
            return ""
        bias, wide = tensor_proto_to_array(self.initializers[bias_name]), None
        if bias.dtype == np.float16 and self.weight_qType != TensorProto.FLOAT8E4M3FN:
            small = np.asarray(data * weight * bias_info.beta, np.float16).astype(np.float64)
            if (small == 0).any() or (np.abs(bias.astype(np.float64)) > np.iinfo(np.int32).max * small).any():
                data, weight, wide = data.astype(np.float32), weight.astype(np.float32), np.float32
        name, scale, zero, steps, node_type, kind = self.quantize_bias_static_impl(
            bias_name, data, weight, bias_info.beta, wide)
        axis = len(self.initializers[bias_name].dims) - 1 if steps.size > 1 else None
        value = QuantizedValue(bias_name, name, scale, zero, QuantizedValueType.Initializer, axis,
                               node_type=node_type, node_qtype=kind)
        self.quantized_value_map[bias_name] = QDQTensorQuantizedValue(value, None, None)
        return name

    def _make_scale_zp_initializers(self, param_name: str, quant_params: QuantizationParams,
                                    init_name_suffix: str = "") -> QDQScaleZpInitializers:
        """Add the tensors of a scale and a zero point."""
        zero, scale = (np.asarray(quant_params[what]) for what in ("zero_point", "scale"))
        names = [f"{param_name}_{what}{init_name_suffix}" for what in ("zero_point", "scale")]
        tensors = (listed_tensor(zero, quant_params["quant_type"], names[0]),
                   listed_tensor(scale, onnx.helper.np_dtype_to_tensor_dtype(scale.dtype), names[1]))
        for tensor in tensors:
            if tensor.name not in self.initializers:
                self.put_initializer(tensor)
        return QDQScaleZpInitializers(self.initializers[names[1]], self.initializers[names[0]])

    def _make_tensor_scale_zp_initializers(self, tensor_name: str) -> QDQTensorScaleZpInitializers | None:
        """Add the tensors of a value's scales and zero points; None where it has no range."""
        params = self.quantization_params.get(tensor_name)
        if params is None:
            return None
        if not isinstance(params, QDQTensorQuantParams):
            raise InvalidType(f"Unexpected type {type(params)} for {tensor_name!r}.",
                              expected="QDQTensorQuantParams")
        original = self._make_scale_zp_initializers(tensor_name, params.original)
        converted = (None if params.converted is None
                     else self._make_scale_zp_initializers(tensor_name, params.converted, "_convert"))
        return QDQTensorScaleZpInitializers(original, converted, params.converted_recv_nodes)
