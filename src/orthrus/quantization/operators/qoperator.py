"""Operators that take quantized tensors with scales and zero points, and what each takes in which order."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto, numpy_helper

from ..affine import FLOAT8_TYPES, ONNX_INT_TYPE_RANGE, quantize_nparray, quantized_tensor
from ..onnx_model import first_named
from ..quant_utils import TENSOR_NAME_QUANT_SUFFIX, ms_domain
from ..refused import Unsupported
from .base_operator import Operand, QuantOperatorBase
from .qdq import get_beta, is_B_transposed

Names = tuple[str, str]


class QLinearOperator(QuantOperatorBase):
    """One kernel from quantized activations to a quantized result; subclasses say what it reads."""

    def reads(self) -> list[int]:
        """The places of the inputs that are quantized."""
        return [0]

    def inputs(self, operands: list[Operand], result: Names) -> list[str]:
        """What the quantized operator reads."""
        return [*(name for operand in operands for name in operand), *result]

    def range(self) -> tuple[float | None, int | None]:
        """Scale and zero point of the result where the operator decides them, else (None, None)."""
        return None, None

    def more(self) -> dict[str, Any]:
        """Attributes that only the quantized operator has."""
        return {}

    def quantize(self) -> None:
        result = self.result(0, *self.range())
        operands = None if result is None else self.activations(self.reads())
        if result is None or operands is None:
            super().quantize()
            return
        node = self.renamed(f"QLinear{self.node.op_type}", self.inputs(operands, result),
                            [self.give(self.node.output[0], *result)], ms_domain, **self.more())
        self.quantizer.new_nodes.append(node)


class QLinearPool(QLinearOperator):
    """Averages of windows."""


class QLinearBinaryOp(QLinearOperator):
    """Sums and products of two activations."""

    def reads(self) -> list[int]:
        return [0, 1]


class QLinearConcat(QLinearOperator):
    """Any number of activations; the result's parameters come first."""

    def reads(self) -> list[int]:
        return list(range(len(self.node.input)))

    def inputs(self, operands: list[Operand], result: Names) -> list[str]:
        return [*result, *(name for operand in operands for name in operand)]


class QLinearWhere(QLinearOperator):
    """Two activations behind a condition, where that is forced."""

    def should_quantize(self) -> bool:
        forced = bool(self.quantizer.force_quantize_no_input_check)
        return forced and self.quantizer.should_quantize_node(self.node)

    def reads(self) -> list[int]:
        return [1, 2]

    def inputs(self, operands: list[Operand], result: Names) -> list[str]:
        return [self.node.input[0], *super().inputs(operands, result)]


class QLinearSoftmax(QLinearOperator):
    """Results in steps of 1/256 from 0 on."""

    def range(self) -> tuple[float | None, int | None]:
        return 1 / 256.0, 0 if self.quantizer.activation_qType == TensorProto.UINT8 else -128

    def more(self) -> dict[str, Any]:
        return {"opset": self.quantizer.opset_version}


class QLinearActivation(QLinearOperator):
    """Functions of one value. Clip and Relu are dropped where the quantized value is within their limits."""

    def range(self) -> tuple[float | None, int | None]:
        nnapi = self.node.op_type == "Sigmoid" and self.quantizer.extra_options.get("extra.Sigmoid.nnapi")
        return (1 / 256.0, 0) if nnapi else (None, None)

    def quantize(self) -> None:
        if self.node.op_type in ("Relu", "Clip"):
            self.QuantizeClipRelu()
        else:
            super().quantize()

    def QuantizeClipRelu(self) -> None:
        """Drop the node, or keep it in float."""
        values = self.quantizer.quantized_value_map
        found = values.get(self.node.input[0])
        if found is None or self.quantizer.is_activation_symmetric or not self._within(found):
            QuantOperatorBase.quantize(self)
        else:
            values[self.node.output[0]] = found

    def _within(self, value: Any) -> bool:
        """Whether all that the quantized value can be is, to a step, within the node's limits."""
        scale = self.quantizer.initializer_array(value.scale_name)
        zero = self.quantizer.find_initializer(value.zp_name)
        limits = self._limits()
        if scale is None or zero is None or limits is None or zero.data_type not in ONNX_INT_TYPE_RANGE:
            return False
        step, middle = float(scale.item()), int(numpy_helper.to_array(zero).item())
        least, most = ((int(end) - middle) * step for end in ONNX_INT_TYPE_RANGE[zero.data_type])
        return least >= limits[0] - step / 2 and most <= limits[1] + step

    def _limits(self) -> tuple[float, float] | None:
        """The node's limits, None where they are computed while running."""
        if self.node.op_type == "Relu":
            return 0.0, math.inf
        limits = [-math.inf, math.inf]
        for place, name in enumerate(("min", "max")):
            given = first_named(name, self.node.attribute)
            if given is not None:
                limits[place] = given.f
            elif len(self.node.input) > place + 1 and self.node.input[place + 1]:
                value = self.quantizer.model.get_constant_value(self.node.input[place + 1])
                if value is None:
                    return None
                limits[place] = float(value.item())
        return limits[0], limits[1]


class QGlobalAveragePool(QuantOperatorBase):
    """Averages of whole channels, where the data is quantized."""

    def quantize(self) -> None:
        data = self.quantizer.quantized_value_map.get(self.node.input[0])
        if data is None:
            super().quantize()
            return
        result = self.result() or (data.scale_name, data.zp_name)
        inputs = [data.q_name, data.scale_name, data.zp_name, *result]
        node = self.renamed(f"QLinear{self.node.op_type}", inputs,
                            [self.give(self.node.output[0], *result)], ms_domain, channels_last=0)
        self.quantizer.new_nodes.append(node)


class QArgMax(QuantOperatorBase):
    """Places of the largest values: the same in quantized ones."""

    def quantize(self) -> None:
        data = self.quantizer.find_quantized_value(self.node.input[0])
        if data is not None:
            self.node.input[0] = data.q_name
        self.quantizer.new_nodes.append(self.node)


class Direct8BitOp(QuantOperatorBase):
    """Moves values: the node itself works on quantized data, whose scale the result keeps."""

    def quantize(self) -> None:
        data = self._data()
        if data is None:
            super().quantize()
            return
        self.node.input[0] = data[0]
        self.node.output[0] = self.give(self.node.output[0], data[1], data[2])
        self.quantizer.new_nodes.append(self.node)

    def _data(self) -> Operand | None:
        if self.quantizer.force_quantize_no_input_check:
            forced = self.quantizer.is_float_tensor(self.node.input[0]) and self.activations([0])
            return forced[0] if forced else None
        found = self.quantizer.find_quantized_value(self.node.input[0])
        return None if found is None else (found.q_name, found.scale_name, found.zp_name)


class QMaxPool(Direct8BitOp):
    """Moves values, of integers from operator set 12 on."""

    def quantize(self) -> None:
        if self.quantizer.opset_version < 12 or self.quantizer.activation_qType in FLOAT8_TYPES:
            QuantOperatorBase.quantize(self)
        else:
            super().quantize()


class QResize(Direct8BitOp):
    """Moves values, from operator set 11 on."""

    def quantize(self) -> None:
        if self.quantizer.opset_version < 11:
            QuantOperatorBase.quantize(self)
        else:
            super().quantize()


class GatherQuant(QuantOperatorBase):
    """Rows of a constant, which is quantized."""

    def should_quantize(self) -> bool:
        meant = self.quantizer.should_quantize_node(self.node)
        return meant and self.quantizer.is_valid_quantize_weight(self.node.input[0])

    def quantize(self) -> None:
        operands = self.activations([0])
        if operands is None:
            super().quantize()
            return
        name, scale, zero = operands[0]
        self.node.input[0] = name
        self.node.output[0] = self.give(self.node.output[0], scale, zero)
        self.quantizer.new_nodes.append(self.node)


class QSplit(QuantOperatorBase):
    """Moves values: every part keeps the data's scale."""

    def quantize(self) -> None:
        operands = self.activations([0])
        if operands is None:
            super().quantize()
            return
        name, scale, zero = operands[0]
        outputs = [self.give(output, scale, zero, f"{output}quantized") for output in self.node.output]
        node = self.renamed(self.node.op_type, [name, *self.node.input[1:]], outputs)
        self.quantizer.new_nodes.append(node)


class QPad(QuantOperatorBase):
    """Moves values and pads with a quantized one, where the data is quantized."""

    def quantize(self) -> None:
        data = self.quantizer.quantized_value_map.get(self.node.input[0])
        if self.quantizer.opset_version < 11 or data is None or not self._padded(data):
            super().quantize()
            return
        self.node.input[0] = data.q_name
        self.node.output[0] = self.give(self.node.output[0], data.scale_name, data.zp_name)
        self.quantizer.new_nodes.append(self.node)

    def _padded(self, data: Any) -> bool:
        """Have the node pad with a quantized value; whether that could be done."""
        mode, inputs = first_named("mode", self.node.attribute), self.node.input
        if mode is not None and mode.s != b"constant":
            return True
        if len(inputs) < 3:
            inputs.append(data.zp_name)
        elif not inputs[2]:
            inputs[2] = data.zp_name
        else:
            scale = self.quantizer.initializer_array(data.scale_name)
            zero = self.quantizer.find_initializer(data.zp_name)
            if scale is None or zero is None:
                return False
            inputs[2] = self._value(data, float(scale.item()), zero)
        return True

    def _value(self, data: Any, scale: float, zero: TensorProto) -> str:
        """The name of the value to pad with, quantized as the data is."""
        constant = self.quantizer.model.get_constant_value(self.node.input[2])
        if constant is None:
            nodes = self.quantizer._get_quantize_input_nodes(self.node, 2, zero.data_type, data.scale_name,
                                                             data.zp_name)
            self.quantizer.new_nodes += nodes
            return nodes[0].output[0]
        name = f"{self.node.output[0]}_padding{TENSOR_NAME_QUANT_SUFFIX}"
        values = quantize_nparray(zero.data_type, constant, scale, numpy_helper.to_array(zero).item())
        self.quantizer.put_initializer(quantized_tensor(values, zero.data_type, name))
        return name


class QOpMatMul(QuantOperatorBase):
    """A product: one of its factors is float and, where that is asked for, the second is a constant."""

    def should_quantize(self) -> bool:
        if not self.quantizer.should_quantize_node(self.node):
            return False
        second = self.node.input[1]
        if not any(map(self.quantizer.is_float_tensor, (second, self.node.input[0]))):
            return False
        return not self.quantizer.q_matmul_const_b_only or self.quantizer.find_initializer_in_path(second)


class QLinearMatMul(QOpMatMul):
    """A product with a quantized result."""

    def quantize(self) -> None:
        result = self.result()
        operands = None if result is None else self.activations([0])
        if result is None or operands is None or not self.quantizer.can_quantize(self.node.input[1]):
            super().quantize()
            return
        operands.append(self.weight(1, reduce_range=True, op_level_per_channel=True))
        domain = ms_domain if self.quantizer.weight_qType in FLOAT8_TYPES else ""
        self.quantizer.new_nodes.append(NodeProto(
            op_type="QLinearMatMul", domain=domain, name=self.node.name and f"{self.node.name}_quant",
            input=[*operands[0], *operands[1], *result],
            output=[self.give(self.node.output[0], *result)]))


class QLinearConv(QuantOperatorBase):
    """Data, weight and a bias in the steps of both."""

    def quantize(self) -> None:
        node, result = self.node, self.result()
        bias = node.input[2] if len(node.input) > 2 else ""
        constant = not bias or self.quantizer.is_input_a_initializer(bias)
        operands = self.activations([0]) if result is not None and constant else None
        if result is None or operands is None or not self.quantizer.can_quantize(node.input[1]):
            super().quantize()
            return
        operands.append(self._weight())
        quantized_bias = ""
        if bias:
            quantized_bias = self.quantizer.quantize_bias_static(bias, node.input[0], node.input[1],
                                                                 self.bias_factor())
        self.quantizer.new_nodes.append(self.made(operands, quantized_bias, result))

    def _weight(self) -> Operand:
        name, quantizer = self.node.input[1], self.quantizer
        if not (quantizer.is_per_channel() and quantizer.is_input_a_initializer(name)):
            return self.weight(1, reduce_range=quantizer.reduce_range)
        quantized, zero, scale = quantizer.quantize_weight_per_channel(name, self.channel_type(),
                                                                       self.channel_axis())
        return quantized, scale, zero

    def channel_type(self) -> int:
        """The type of a weight quantized per channel."""
        return TensorProto.INT8

    def channel_axis(self) -> int:
        """The axis of the weight's output channels."""
        return 0

    def bias_factor(self) -> float:
        """What the steps of a bias are multiplied by."""
        return 1.0

    def made(self, operands: list[Operand], bias: str, result: Names) -> NodeProto:
        """The quantized node."""
        if bias and self.quantizer.weight_qType in FLOAT8_TYPES:
            raise Unsupported("Quantization to FLOAT8E4M3FN for operator Conv is not supported.",
                              node=self.node.name, cure="leave the node out by nodes_to_exclude")
        return self.renamed("QLinearConv", [*operands[0], *operands[1], *result, *([bias] if bias else [])],
                            [self.give(self.node.output[0], *result)])


class QLinearGemm(QLinearConv, QOpMatMul):
    """A product and a bias; the factor of the bias is in its steps."""

    def should_quantize(self) -> bool:
        return QOpMatMul.should_quantize(self)

    def channel_type(self) -> int:
        return self.quantizer.weight_qType

    def channel_axis(self) -> int:
        return 0 if is_B_transposed(self.node) else 1

    def bias_factor(self) -> float:
        alpha = first_named("alpha", self.node.attribute)
        return float(np.float64(1.0 if alpha is None else alpha.f) / get_beta(self.node))

    def made(self, operands: list[Operand], bias: str, result: Names) -> NodeProto:
        return self.renamed("QGemm", [*operands[0], *operands[1], bias, *result],
                            [self.give(self.node.output[0], *result)], ms_domain, without=("beta",))
