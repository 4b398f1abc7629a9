"""Operators on weights quantized ahead and activations quantized while running; their results are float."""

from __future__ import annotations

import numpy as np
from onnx import NodeProto, TensorProto, helper

from ..affine import listed_tensor, quantize_nparray, quantized_tensor
from ..onnx_model import first_named
from ..quant_utils import TENSOR_NAME_QUANT_SUFFIX, get_mul_node, ms_domain
from .base_operator import Operand, QuantOperatorBase
from .qoperator import QOpMatMul

_EMBEDDINGS = range(2, 7)
"""The places of tables, gamma and beta among EmbedLayerNormalization's inputs."""


class _IntegerProduct(QuantOperatorBase):
    """A product of integers, made float and multiplied by both scales."""

    def multiply(self, op_type: str, data: Operand, weight: Operand, output: str,
                 attributes: bool = True) -> None:
        """Add the nodes that compute `output` from quantized data and weight."""
        node, quantizer = self.node, self.quantizer
        product = f"{node.output[0]}_output_quantized"
        kept = () if attributes else tuple(a.name for a in node.attribute)
        integer = self.renamed(op_type, [data[0], weight[0], data[2], weight[2]], [product], without=kept)
        to = quantizer.get_tensor_type(node.output[0], mandatory=True)
        cast = helper.make_node("Cast", [product], [f"{product}_cast_output"], f"{product}_cast", to=to)
        name = f"{integer.name}_scales_mul" if integer.name else f"{data[1]}_{weight[1]}_mul"
        scales = quantizer.new_node(name)
        quantizer.new_nodes += [integer, cast]
        if scales is None:
            scales = get_mul_node([data[1], weight[1]], f"{name}:0", name)
            quantizer.new_nodes.append(scales)
        quantizer.new_nodes.append(get_mul_node([cast.output[0], scales.output[0]], output,
                                                integer.name and f"{integer.name}_output_scale_mul"))


class MatMulInteger(QOpMatMul, _IntegerProduct):
    """A product of matrices."""

    def quantize(self) -> None:
        operands = self.activations([0])
        if operands is None:
            super().quantize()
            return
        weight = self.weight(1, reduce_range=True, op_level_per_channel=True)
        self.multiply("MatMulInteger", operands[0], weight, self.node.output[0], attributes=False)


class ConvInteger(_IntegerProduct):
    """A convolution; its bias is added in float."""

    def quantize(self) -> None:
        node, quantizer = self.node, self.quantizer
        bias = node.input[2] if len(node.input) > 2 else ""
        rank = quantizer.rank_of(node.input[1])
        operands = self.activations([0]) if rank is not None or not bias else None
        if operands is None:
            super().quantize()
            return
        weight = self.weight(1, reduce_range=quantizer.reduce_range)
        output = node.output[0]
        self.multiply("ConvInteger", operands[0], weight, f"{output}quant_scaled_output" if bias else output)
        if bias:
            self.add_bias(quantizer.new_nodes, f"{output}quant_scaled_output")

    def add_bias(self, nodes: list[NodeProto], scaled_output: str) -> None:
        """Add the nodes that shape the bias to channels and add it."""
        output, rank = self.node.output[0], self.quantizer.rank_of(self.node.input[1])
        shape, shaped = f"{output}_bias_reshape_shape", f"{output}_bias_reshape_output"
        sizes = np.array([-1 if axis == 1 else 1 for axis in range(rank)], np.int64)
        self.quantizer.put_initializer(listed_tensor(sizes, TensorProto.INT64, shape))
        nodes += [helper.make_node("Reshape", [self.node.input[2], shape], [shaped]),
                  helper.make_node("Add", [scaled_output, shaped], [output], f"{output}_bias_add")]


class AttentionQuant(QuantOperatorBase):
    """onnxruntime's attention with equal sizes of queries, keys and values."""

    def should_quantize(self) -> bool:
        return self.node.domain == ms_domain and self.quantizer.should_quantize_node(self.node)

    def quantize(self) -> None:
        operands = None
        if first_named("qkv_hidden_sizes", self.node.attribute) is None:
            operands = self.activations([0])
        if operands is None:
            super().quantize()
            return
        data = operands[0]
        weight = self.weight(1, reduce_range=True, op_level_per_channel=True)
        given = [*self.node.input, *[""] * 5]
        self.dequantize(given[2:5])
        inputs = [data[0], weight[0], given[2], data[1], weight[1], given[3], data[2], weight[2], given[4]]
        self.quantizer.new_nodes.append(self.renamed("QAttention", inputs, self.node.output, ms_domain))


class EmbedLayerNormalizationQuant(QuantOperatorBase):
    """Sums of embeddings, normalized: the tables, gamma and beta are quantized."""

    def should_quantize(self) -> bool:
        return self.quantizer.should_quantize_node(self.node)

    def quantize(self) -> None:
        operands = self.activations(_EMBEDDINGS) if len(self.node.output) <= 2 else None
        if operands is None:
            super().quantize()
            return
        names, scales, zeros = zip(*operands, strict=True)
        mask = self.node.input[7] if len(self.node.input) > 7 else ""
        inputs = [*self.node.input[:2], *names, mask, *scales, *zeros]
        self.quantizer.new_nodes.append(
            self.renamed("QEmbedLayerNormalization", inputs, self.node.output, ms_domain))


class LSTMQuant(QuantOperatorBase):
    """A recurrence whose two constant weights are quantized, per row of them or per direction."""

    def quantize(self) -> None:
        node, quantizer = self.node, self.quantizer
        layout = first_named("layout", node.attribute)
        weights = [quantizer.initializers.get(name) for name in node.input[1:3]]
        usable = all(w is not None and len(w.dims) == 3 and quantizer.is_valid_quantize_weight(w.name)
                     for w in weights)
        if not usable or (layout is not None and layout.i):
            super().quantize()
            return
        (data, data_scale, data_zero), (state, state_scale, state_zero) = map(self._weight, node.input[1:3])
        rest = [*node.input[3:8], *[""] * (8 - max(3, len(node.input)))]
        self.dequantize([node.input[0], *rest])
        quantizer.new_nodes.append(self.renamed(
            "DynamicQuantizeLSTM",
            [node.input[0], data, state, *rest, data_scale, data_zero, state_scale, state_zero],
            node.output, ms_domain, without=("layout",)))

    def _weight(self, name: str) -> Operand:
        """A weight [directions, rows, columns] as int8 [directions, columns, rows]."""
        quantizer, kind = self.quantizer, TensorProto.INT8
        names = f"{name}{TENSOR_NAME_QUANT_SUFFIX}", f"{name}_scale", f"{name}_zero_point"
        if names[0] in quantizer.initializers:
            return names
        values = quantizer.initializer_array(name)
        dims = values.shape[:2] if quantizer.is_per_channel() else values.shape[:1]
        rows = values.reshape(int(np.prod(dims)), -1)
        zero, scale = quantizer.channel_params(name, rows, 0, kind, quantizer.is_weight_symmetric(kind),
                                               quantizer.reduce_range, [])
        quantized = quantize_nparray(kind, rows, scale[:, None], zero[:, None]).reshape(values.shape)
        quantizer.put_initializer(quantized_tensor(quantized.transpose(0, 2, 1), kind, names[0]))
        quantizer.put_initializer(listed_tensor(scale.reshape(dims), TensorProto.FLOAT, names[1]))
        quantizer.put_initializer(listed_tensor(zero.reshape(dims), kind, names[2]))
        return names
