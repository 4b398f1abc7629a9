"""Writes a float model with quantized operators: those on integers (dynamic) or those with scales (static).

Every node is handed to its operator's class in order; what they put into `new_nodes` is the new graph.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from .affine import get_qrange_for_qType, quantize_onnx_initializer
from .base_quantizer import FLOATS, BaseQuantizer, QuantizationParams, names_and_infos, widened_weight_scale
from .onnx_model import ONNXModel, all_graphs, subgraphs
from .operators.base_operator import QuantOperatorBase
from .quant_utils import (
    DEQUANT_OP_NAME,
    QUANT_OP_NAME,
    TENSOR_NAME_QUANT_SUFFIX,
    QuantizationMode,
    QuantizedValue,
    QuantizedValueType,
    __producer__,
    __version__,
    add_dequant_suffix,
    add_infer_metadata,
    add_quant_suffix,
    ms_domain,
    save_and_reload_model_with_shape_infer,
)
from .refused import Failed, InvalidValue, Unsupported
from .registry import CreateOpQuantizer

Quantized = tuple[list[str], list[str], list[str], list[NodeProto]]
"""Names of quantized inputs, of their zero points and scales, and the nodes that quantize them."""
_NOTHING: tuple[None, None, None, None] = (None, None, None, None)
_log = logging.getLogger(__name__)


class ONNXQuantizer(BaseQuantizer):
    """`static`: ranges are given in `tensors_range`; else activations are quantized while running.

    `mode`: QuantizationMode. Raises: InvalidValue for another mode.
    """

    def __init__(self, model: ModelProto, per_channel: bool, reduce_range: bool, mode: QuantizationMode,
                 static: bool, weight_qType: Any, activation_qType: Any, tensors_range: Any,
                 nodes_to_quantize: Any, nodes_to_exclude: Any, op_types_to_quantize: Any,
                 extra_options: dict[str, Any] | None = None) -> None:
        super().__init__(model, per_channel, reduce_range, weight_qType, activation_qType, tensors_range,
                         nodes_to_quantize, nodes_to_exclude, op_types_to_quantize, extra_options)
        if not isinstance(mode, QuantizationMode):
            raise InvalidValue(f"unsupported quantization mode {mode}", expected="a QuantizationMode")
        narrow = {"QInt8", "QUInt8", "QFLOAT8E4M3FN"}
        wide = {kind.name for kind in self.tensor_quant_override_qtypes} - narrow
        if wide:
            raise InvalidValue(f"no quantized operator takes {', '.join(sorted(wide))}",
                               found="extra_options['TensorQuantOverrides']", expected="types of 8 bits",
                               cure="pass quant_format=QuantFormat.QDQ")
        if not static:
            self._split_gemms()
        self.mode = mode
        self.static = static
        self.fuse_dynamic_quant = self.opset_version > 10
        self.q_matmul_const_b_only = bool(self.extra_options.get("MatMulConstBOnly"))
        self.new_nodes: list[NodeProto] = []
        self._by_name: dict[str, NodeProto] = {}
        self._counted = 0
        self.graph_scope = "/"
        graph = self.model.graph()
        made = [name for node in graph.node for name in node.output]
        self.tensor_names = dict.fromkeys([*(v.name for v in (*graph.output, *graph.input)), *made], 1)
        self.quantization_params = self.calculate_quantization_params()
        self.fixed_qrange_uint8_name = "fixed_quantization_range_uint8"
        self.fixed_qrange_int8_name = "fixed_quantization_range_int8"
        self.fixed_zero_name = "fixed_zero"
        self.fixed_zero_zp_name = "fixed_zero_zp"
        self.quantized_value_map: dict[str, QuantizedValue] = {}
        self.generated_value_names = self.model.get_non_initializer_inputs()

    def _split_gemms(self) -> None:
        """Write Gemms as products and sums, whose values then have types too."""
        if any(node.op_type == "Gemm" for graph in all_graphs(self.model.graph()) for node in graph.node):
            self.model.replace_gemm_with_matmul()
            self.model = ONNXModel(save_and_reload_model_with_shape_infer(self.model.model))
            self.value_infos = names_and_infos(self.model.model)
            self.initializers = {tensor.name: tensor for tensor in self.model.initializer()}

    def calculate_quantization_params(self) -> dict[str, QuantizationParams] | None:
        """{name: parameters} of every value with a range; None without ranges."""
        if self.tensors_range is None:
            return None
        self.adjust_tensor_ranges()
        params = {}
        for name in filter(self.is_bounded, self.tensors_range):
            zero, scale, kind = self.named_activation_params(name)
            params[name] = QuantizationParams(zero_point=zero, scale=scale, quant_type=kind)
        return params

    def quantize_subgraph(self, subgraph: GraphProto, graph_key: str) -> GraphProto:
        """A graph within a node, quantized by a quantizer that looks to this one for outer values."""
        wrapped = helper.make_model(subgraph, producer_name="onnx-quantizer",
                                    opset_imports=self.model.model.opset_import)
        add_infer_metadata(wrapped)
        inner = ONNXQuantizer(wrapped, self.per_channel, self.reduce_range, self.mode, self.static,
                              self.weight_qType, self.activation_qType, self.tensors_range,
                              self.nodes_to_quantize, self.nodes_to_exclude, self.op_types_to_quantize,
                              {**self.extra_options, "TensorQuantOverrides": {}})
        inner.parent = self
        inner.graph_scope = f"{self.graph_scope}{graph_key}/"
        inner.quantize_model()
        return inner.model.graph()

    def quantize_node_with_sub_graph(self, node: NodeProto) -> NodeProto:
        """The node, the graphs within it quantized."""
        name = node.name or f"{node.op_type}_node_count_{len(self.new_nodes)}"
        for index, graph in enumerate(subgraphs(node)):
            graph.CopyFrom(self.quantize_subgraph(graph, f"{name}:{index}"))
        return node

    def has_QDQ_nodes(self) -> bool:
        return any(node.op_type in (QUANT_OP_NAME, DEQUANT_OP_NAME) for node in self.model.nodes())

    def find_initializer(self, name: str) -> TensorProto | None:
        """An initializer of this graph or of one around it."""
        found = self.initializers.get(name)
        return self.parent.find_initializer(name) if found is None and self.parent is not None else found

    def find_initializer_in_path(self, initializer_name: str) -> bool:
        return self.find_initializer(initializer_name) is not None

    def rank_of(self, name: str) -> int | None:
        """The number of dimensions of a constant or of a value whose shape is known."""
        tensor = self.find_initializer(name)
        if tensor is not None:
            return len(tensor.dims)
        info = self.value_infos.get(name)
        if info is None or not info.type.tensor_type.HasField("shape"):
            return None
        return len(info.type.tensor_type.shape.dim)

    def find_quantized_value(self, input_name: str) -> QuantizedValue | None:
        """What a value became in this graph or one around it."""
        found = self.quantized_value_map.get(input_name)
        if found is None and self.parent is not None:
            return self.parent.find_quantized_value(input_name)
        return found

    def new_node(self, name: str) -> NodeProto | None:
        """One of the new nodes, by name."""
        for node in self.new_nodes[self._counted:]:
            self._by_name.setdefault(node.name, node)
        self._counted = len(self.new_nodes)
        return self._by_name.get(name) if name else None

    def add_new_nodes(self, nodes: Iterable[NodeProto]) -> None:
        """Add nodes whose outputs are there from now on."""
        for node in nodes:
            self.new_nodes.append(node)
            self.generated_value_names.update(node.output)

    def quantize_model(self) -> ModelProto:
        for node in list(self.model.nodes()):
            if self.enable_subgraph_quantization:
                node = self.quantize_node_with_sub_graph(node)
            count = len(self.new_nodes)
            quantizer = CreateOpQuantizer(self, node)
            if type(quantizer) is not QuantOperatorBase:
                self._check_precision(node)
            quantizer.quantize()
            for made in self.new_nodes[count:]:
                self.generated_value_names.update(made.output)
        self._dequantize_outputs()
        model = self.model.model
        nodes = GraphProto(node=self.new_nodes)
        model.graph.ClearField("node")
        model.graph.node.extend(nodes.node)
        if self.parent is None:
            _, missing = self.model.clean_initializers()
            if missing:
                raise Failed(f"Invalid model with unknown initializers/tensors.{missing}",
                             cure="check the model: these values are read and made nowhere")
        model.producer_name, model.producer_version = __producer__, __version__
        self._import_own_operators()
        return model

    def _check_precision(self, node: NodeProto) -> None:
        """Raises: Unsupported for a node that reads float16, which quantized operators have no scales for."""
        half = next((n for n in node.input if self.get_tensor_type(n) == TensorProto.FLOAT16), None)
        if half is not None and self.weight_qType != TensorProto.FLOAT8E4M3FN:
            raise Unsupported(f"quantized operators take float32, {half!r} is float16", node=node.name,
                              cure="quantize the float32 model, or pass quant_format=QuantFormat.QDQ")

    def _import_own_operators(self) -> None:
        """Import onnxruntime's domain, where a node is of it and the model does not import it."""
        imported = any(opset.domain == ms_domain for opset in self.model.opset_import())
        if not imported and _any_own(self.model.graph()):
            self.model.set_opset_import(ms_domain, 1)

    def get_tensor_type(self, tensor_name: str, mandatory: bool = False) -> int | None:
        """The type of a value's elements, None where it is not known.

        Raises: Failed where it is `mandatory` and neither known nor given as `DefaultTensorType`.
        """
        tensor = self.initializers.get(tensor_name)
        if tensor is not None:
            return tensor.data_type
        info = self.value_infos.get(tensor_name)
        kind = info.type.tensor_type.elem_type if info is not None else TensorProto.UNDEFINED
        if kind != TensorProto.UNDEFINED:
            return kind
        if self.parent is not None:
            return self.parent.get_tensor_type(tensor_name, mandatory)
        if not mandatory:
            return None
        if "DefaultTensorType" in self.extra_options:
            return self.extra_options["DefaultTensorType"]
        raise Failed(f"Unable to find data type for weight_name={tensor_name!r}",
                     cure="run quant_pre_process on the model, or give extra_options['DefaultTensorType'], "
                          "usually onnx.TensorProto.FLOAT")

    def is_float_tensor(self, tensor_name: str) -> bool:
        """Whether a value is known to be float32 or float16."""
        kind = self.get_tensor_type(tensor_name)
        if kind is None and tensor_name:
            _log.warning("the type of %r is not known; what reads it stays float", tensor_name)
        return kind in FLOATS

    def has_params(self, name: str) -> bool:
        """Whether the range of a value was given."""
        return self.quantization_params is not None and name in self.quantization_params

    def can_quantize(self, name: str) -> bool:
        """Whether quantize_activation and quantize_weight can do with this value."""
        if not name or not self.static or name in self.quantized_value_map or self.has_params(name):
            return True
        if name in self.initializers:
            return self.is_valid_quantize_weight(name) and self.is_bounded(name)
        return self.parent is not None and self.parent.can_quantize(name)

    def _get_quantization_params(self, param_name: str, use_scale: float | None = None,
                                 use_zeropoint: int | None = None) -> tuple[bool, str, str, Any, Any]:
        """Add scale and zero point of a value: (found, scale's name, zero point's name, their shapes)."""
        if not self.has_params(param_name):
            return False, "", "", "", ""
        assert self.quantization_params is not None
        params = self.quantization_params[param_name]
        scale, zero, kind = params["scale"], params["zero_point"], params["quant_type"]
        if use_scale is not None and use_zeropoint is not None:
            scale, zero = np.array(use_scale, scale.dtype), np.array(use_zeropoint)
            kind = self.activation_qType
        scale_name, zero_name = f"{param_name}_scale", f"{param_name}_zero_point"
        for name, number, values in ((zero_name, kind, zero),
                                     (scale_name, helper.np_dtype_to_tensor_dtype(scale.dtype), scale)):
            if name not in self.initializers:
                self.put_initializer(helper.make_tensor(name, number, [], np.ravel(values).tolist()))
        return True, scale_name, zero_name, [], []

    def _get_quantize_input_nodes(self, node: NodeProto, input_index: int, qType: int,
                                  given_scale_name: str | None = None, given_zp_name: str | None = None,
                                  initial_type: int | None = None) -> list[NodeProto] | None:
        """Nodes that quantize one input, the last of them the one that makes it; None without parameters."""
        name = node.input[input_index]
        quantized, label = f"{name}{TENSOR_NAME_QUANT_SUFFIX}", add_quant_suffix(name)
        found, scale, zero = True, given_scale_name, given_zp_name
        if scale is None or zero is None:
            found, scale, zero, _, _ = self._get_quantization_params(name)
        nodes: list[NodeProto] = []
        if not found and self.static:
            return None
        if not found:
            scale, zero = f"{name}_scale", f"{name}_zero_point"
            if self.fuse_dynamic_quant and qType == TensorProto.UINT8:
                nodes = [helper.make_node("DynamicQuantizeLinear", [name], [quantized, scale, zero], label)]
            else:
                nodes, scale, zero = self._range_nodes(name, qType, initial_type)
        if not nodes or nodes[-1].op_type != "DynamicQuantizeLinear":
            nodes.append(helper.make_node(QUANT_OP_NAME, [name, scale, zero], [quantized], label))
        self.quantized_value_map[name] = QuantizedValue(name, quantized, scale, zero, qType)
        return nodes

    def _range_nodes(self, name: str, kind: int, float_type: int | None) -> tuple[list[NodeProto], str, str]:
        """Nodes that measure a value's range while running, and the names of its scale and zero point."""
        if kind not in (TensorProto.INT8, TensorProto.UINT8):
            raise Unsupported(f"Unexpected value for qType={kind}.", expected="INT8 or UINT8")
        signed = kind == TensorProto.INT8
        span = float(get_qrange_for_qType(kind).astype(np.uint8)) / (2.0 if signed else 1.0)
        span_name = self.fixed_qrange_int8_name if signed else self.fixed_qrange_uint8_name
        real = float_type or TensorProto.FLOAT
        self.put_initializer(helper.make_tensor(span_name, real, [], [span]))
        scale, zero = f"{name}_scale", f"{name}_zero_point"
        nodes: list[NodeProto] = []

        def add(op_type: str, inputs: list[str], label: str, output: str = "", **attributes: Any) -> str:
            made = output or f"{name}_{label}:0"
            nodes.append(helper.make_node(op_type, inputs, [made], f"{name}_{label}", **attributes))
            return made

        low = add("ReduceMin", [name], "ReduceMin", keepdims=0)
        high = add("ReduceMax", [name], "ReduceMax", keepdims=0)
        if signed:
            both = [add("Abs", [low], "ReduceMin_Abs"), add("Abs", [high], "ReduceMax_Abs")]
            add("Div", [add("Max", both, "Abs_Max"), span_name], "scale_Div", scale)
            self.put_initializer(helper.make_tensor(self.fixed_zero_zp_name, kind, [], [0]))
            return nodes, scale, self.fixed_zero_zp_name
        self.put_initializer(helper.make_tensor(self.fixed_zero_name, real, [], [0.0]))
        add("Div", [add("Sub", [high, low], "scale_Sub"), span_name], "scale_Div", scale)
        below = add("Sub", [self.fixed_zero_name, low], "zero_point_Sub")
        steps = add("Div", [below, scale], "zero_point_Div")
        add("Cast", [add("Floor", [steps], "zero_point_Floor")], "zero_point_Cast", zero, to=kind)
        return nodes, scale, zero

    def quantize_activation(self, node: NodeProto, indices: Iterable[int],
                            from_subgraph: bool = False) -> Any:
        """Quantize some inputs of a node as activations: a Quantized, or four None without parameters."""
        return self._quantize_inputs(node, indices, self.activation_qType, from_subgraph=from_subgraph)

    def quantize_weight(self, node: NodeProto, indices: Iterable[int], reduce_range: bool = False,
                        op_level_per_channel: bool = False, axis: int = -1,
                        from_subgraph: bool = False) -> Any:
        """Quantize some inputs of a node: constants as weights, others as activations."""
        return self._quantize_inputs(node, indices, self.weight_qType, reduce_range, op_level_per_channel,
                                     axis, from_subgraph)

    def _quantize_inputs(self, node: NodeProto, indices: Iterable[int], constant_type: int,
                         reduce_range: bool = False, op_level_per_channel: bool = False, axis: int = -1,
                         from_subgraph: bool = False) -> Any:
        names: list[str] = []
        zeros: list[str] = []
        scales: list[str] = []
        nodes: list[NodeProto] = []
        for index in indices:
            name = node.input[index]
            known = self.quantized_value_map.get(name)
            constant = self.initializers.get(name)
            if known is not None:
                row = known.q_name, known.zp_name, known.scale_name
            elif not name:
                row = "", "", ""
            elif constant is not None and self.per_channel and op_level_per_channel:
                row = self.quantize_weight_per_channel(name, constant_type, axis, reduce_range)
            elif constant is not None:
                row = self.quantize_initializer(constant, constant_type, reduce_range)
            elif self.contains_tensor(name):
                made = self._get_quantize_input_nodes(node, index, self.activation_qType,
                                                      initial_type=self._float_type(name))
                if made is None:
                    return _NOTHING
                if from_subgraph:
                    self.add_new_nodes(made)
                else:
                    nodes += made
                value = self.quantized_value_map[name]
                row = value.q_name, value.zp_name, value.scale_name
            elif self.parent is not None:
                outer = self.parent._quantize_inputs(node, [index], constant_type, reduce_range,
                                                     op_level_per_channel, axis, True)
                if outer[0] is None:
                    return _NOTHING
                row = outer[0][0], outer[1][0], outer[2][0]
            else:
                raise InvalidValue(f"Invalid tensor name to quantize: {name} @graph scope{self.graph_scope}",
                                   node=node.name)
            for rows, entry in zip((names, zeros, scales), row, strict=True):
                rows.append(entry)
        return names, zeros, scales, nodes

    def _float_type(self, name: str) -> int:
        kind = self.get_tensor_type(name)
        return TensorProto.FLOAT if kind is None else kind

    def contains_tensor(self, tensor_name: str) -> bool:
        """Whether this graph makes the value; initializers do not count."""
        return (tensor_name in self.value_infos or tensor_name in self.tensor_names
                or tensor_name in self.generated_value_names)

    def quantize_initializer(self, weight: TensorProto, qType: int, reduce_range: bool = False,
                             keep_float_weight: bool = False) -> tuple[str, str, str]:
        """Quantize a weight as a whole, once: the names of it, its zero point and its scale."""
        known = self.quantized_value_map.get(weight.name)
        if known is not None:
            return known.q_name, known.zp_name, known.scale_name
        return self._noted(weight.name, None, self.quantize_initializer_impl(weight, qType, reduce_range,
                                                                             keep_float_weight))

    def quantize_weight_per_channel(self, weight_name: str, weight_qType: int, channel_axis: int,
                                    reduce_range: bool = True, keep_float_weight: bool = False
                                    ) -> tuple[str, str, str]:
        """Quantize a weight per channel, once: the names of it, its zero points and its scales."""
        known = self.quantized_value_map.get(weight_name)
        if known is not None:
            return known.q_name, known.zp_name, known.scale_name
        return self._noted(weight_name, channel_axis, self.quantize_weight_per_channel_impl(
            weight_name, weight_qType, channel_axis, reduce_range, keep_float_weight))

    def _noted(self, name: str, axis: int | None, names: tuple[str, str, str]) -> tuple[str, str, str]:
        quantized, zero, scale = names
        self.quantized_value_map[name] = QuantizedValue(name, quantized, scale, zero,
                                                        QuantizedValueType.Initializer, axis)
        return names

    def quantize_bias_static(self, bias_name: str, input_name: str, weight_name: str,
                             beta: float = 1.0) -> str:
        """Quantize a bias in steps of the scales of data and weight times `beta`; its new name.

        Scales of the weight that would make a bias leave int32 are widened, and the weight quantized anew.
        """
        known = self.quantized_value_map.get(bias_name)
        if known is not None:
            return known.q_name
        weight = self.quantized_value_map[weight_name]
        data = self.find_quantized_value(input_name)
        data_scale = None if data is None else self.initializer_array(data.scale_name)
        weight_scale = self.initializer_array(weight.scale_name)
        if data_scale is None or weight_scale is None:
            raise InvalidValue(f"Expected {input_name} to be in quantized value map for static quantization")
        zero = self.find_initializer(weight.zp_name)
        if (self.weight_qType == TensorProto.INT8 and zero is not None and weight_name in self.initializers
                and not numpy_helper.to_array(zero).any()):
            bias = numpy_helper.to_array(self.initializers[bias_name])
            wider = widened_weight_scale(data_scale, weight_scale, bias, self.per_channel)
            if wider is not None:
                self._requantize_weight(weight_name, wider)
                weight_scale = wider
        name, scale, zero_name, scales, node_type, kind = self.quantize_bias_static_impl(
            bias_name, data_scale, weight_scale, beta)
        self.quantized_value_map[bias_name] = QuantizedValue(
            bias_name, name, scale, zero_name, QuantizedValueType.Initializer,
            0 if scales.size > 1 else None, node_type=node_type, node_qtype=kind)
        return name

    def _requantize_weight(self, weight_name: str, new_scale: np.ndarray) -> None:
        """Quantize a weight with other scales than before."""
        value, weight = self.quantized_value_map[weight_name], self.initializers[weight_name]
        dtype = helper.tensor_dtype_to_np_dtype(weight.data_type)
        zero = numpy_helper.to_array(self.initializers[value.zp_name])
        shaped = new_scale.astype(dtype).reshape(zero.shape)
        self.put_initializer(numpy_helper.from_array(shaped, value.scale_name))
        self.put_initializer(quantize_onnx_initializer(weight, self.weight_qType, zero, shaped, value.axis,
                                                       value.q_name))

    def _dequantize_value(self, value_name: str) -> NodeProto | None:
        """A node that makes a quantized value float again; None where the value is float or one is there."""
        value = self.quantized_value_map.get(value_name)
        if value is None or value_name in self.generated_value_names:
            return None
        self.generated_value_names.add(value_name)
        axis = {} if value.axis is None else {"axis": value.axis}
        inputs = [value.q_name, value.scale_name, value.zp_name]
        return helper.make_node(DEQUANT_OP_NAME, inputs, [value_name], add_dequant_suffix(value_name), **axis)

    def _dequantize_outputs(self) -> None:
        for output in self.model.graph().output:
            node = self._dequantize_value(output.name)
            if node is not None:
                self.new_nodes.append(node)


def _any_own(graph: GraphProto) -> bool:
    return any(node.domain == ms_domain or any(map(_any_own, subgraphs(node))) for node in graph.node)
