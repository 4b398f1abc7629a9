"""The operators whose values are not all marked alike between QuantizeLinear and DequantizeLinear."""

from __future__ import annotations

import logging

import numpy as np
import onnx

from ..affine import FLOAT8_TYPES
from ..base_quantizer import FLOATS
from ..onnx_model import first_named
from .qdq_base_operator import QDQOperatorBase

_FROM_THE_INPUT = (b"reflect", b"edge", b"wrap")
"""Modes of Pad that pad with values of the input."""
_log = logging.getLogger(__name__)


def is_B_transposed(gemm_node: onnx.NodeProto) -> bool:
    """Whether a Gemm transposes its second factor."""
    found = first_named("transB", gemm_node.attribute)
    return found is not None and found.i > 0


def get_beta(gemm_node: onnx.NodeProto) -> float:
    """A Gemm's factor of its bias."""
    found = first_named("beta", gemm_node.attribute)
    return 1.0 if found is None else found.f


def set_default_beta(gemm_node: onnx.NodeProto) -> float:
    """Set a Gemm's factor of its bias, where it is given, to 1."""
    found = first_named("beta", gemm_node.attribute)
    if found is not None:
        found.f = 1.0
    return 1.0


class QDQConv(QDQOperatorBase):
    """Data, weight and result; a bias in the steps of data and weight."""

    def quantize(self) -> None:
        self.quantizer.quantize_activation_tensor(self.node.input[0])
        for name in self.results:
            self.quantizer.quantize_activation_tensor(name)
        self.mark_weight(self.node.input[1], self.weight_axis())
        self.mark_bias()

    def weight_axis(self) -> int:
        """The axis of the weight's output channels."""
        return 1 if self.node.op_type == "ConvTranspose" else 0


class QDQGemm(QDQConv):
    """As a convolution; a bias that is computed while running stays float."""

    def weight_axis(self) -> int:
        return 0 if is_B_transposed(self.node) else 1

    def mark_bias(self, beta: float = 1.0) -> None:
        node = self.node
        if len(node.input) > 2 and not self.quantizer.is_input_a_initializer(node.input[2]):
            _log.warning("the bias of Gemm %s is no constant and stays float", node.name)
            return
        super().mark_bias(get_beta(node))


class QDQMatMul(QDQOperatorBase):
    """Factors that are constants are weights."""

    def quantize(self) -> None:
        for name in (*self.node.input, *self.results):
            if self.quantizer.is_input_a_initializer(name):
                self.mark_weight(name, 1, self.node.op_type)
            else:
                self.quantizer.quantize_activation_tensor(name)


class QDQNormalization(QDQOperatorBase):
    """Data, scale, results; a bias in the steps of data and scale."""

    def quantize(self) -> None:
        data, scale = self.node.input[:2]
        self.quantizer.quantize_activation_tensor(data)
        if self.quantizer.is_input_a_initializer(scale):
            self.mark_weight(scale, 1, self.node.op_type)
        else:
            self.quantizer.quantize_activation_tensor(scale)
        self.mark_bias()
        for name in self.results:
            self.quantizer.quantize_activation_tensor(name)


class QDQDirect8BitOp(QDQOperatorBase):
    """Moves values: the result takes the data's scale, where the data is quantized or that is forced."""

    def quantize(self) -> None:
        data = self.node.input[0]
        if self.quantizer.force_quantize_no_input_check:
            self.quantizer.quantize_activation_tensor(data)
        elif not self.quantizer.is_tensor_quantized(data):
            return
        for name in self.results[:1]:
            self.share(name)


class QDQMaxPool(QDQDirect8BitOp):
    """Moves values, of integers from operator set 12 on."""

    def quantize(self) -> None:
        if self.quantizer.opset_version >= 12 and self.quantizer.activation_qType not in FLOAT8_TYPES:
            super().quantize()


class QDQResize(QDQDirect8BitOp):
    """Moves values, from operator set 11 on."""

    def quantize(self) -> None:
        if self.quantizer.opset_version >= 11:
            super().quantize()


class QDQGather(QDQOperatorBase):
    """Moves values; constant data is always quantized."""

    def quantize(self) -> None:
        data = self.node.input[0]
        if self.quantizer.is_valid_quantize_weight(data) or self.quantizer.force_quantize_no_input_check:
            self.quantizer.quantize_activation_tensor(data)
        elif not self.quantizer.is_tensor_quantized(data):
            return
        self.share(self.node.output[0])


class QDQSplit(QDQOperatorBase):
    """Moves values: every result takes the data's scale."""

    def quantize(self) -> None:
        if not self.quantizer.is_tensor_quantized(self.node.input[0]):
            self.quantizer.quantize_activation_tensor(self.node.input[0])
        for name in self.results:
            self.share(name)


class QDQWhere(QDQOperatorBase):
    """Two values and a result, where both are quantized or that is forced."""

    def quantize(self) -> None:
        choices = self.node.input[1:3]
        if self.quantizer.force_quantize_no_input_check:
            for name in choices:
                if not self.quantizer.is_tensor_quantized(name):
                    self.quantizer.quantize_activation_tensor(name)
        elif not all(map(self.quantizer.is_tensor_quantized, choices)):
            return
        for name in self.results:
            self.quantizer.quantize_activation_tensor(name)


class QDQRemovableActivation(QDQOperatorBase):
    """A Clip or Relu, dropped where quantizing the result clips the same."""

    def quantize(self) -> None:
        source, result = self.node.input[0], self.node.output[0]
        if not self.quantizer.is_tensor_quantized(source):
            return
        kept = self.quantizer.is_activation_symmetric or self.quantizer.qdq_keep_removable_activations
        if not kept and self.quantizer.try_replacing_upstream_output(source, result):
            self.quantizer.remove_node(self.node)
        else:
            self.quantizer.quantize_activation_tensor(source)
        if not self.disable_qdq_for_node_output:
            self.quantizer.quantize_activation_tensor(result)


class QDQPad(QDQOperatorBase):
    """The result takes the data's scale where what is padded with is in its range."""

    def quantize(self) -> None:
        for name in filter(None, self.node.input):
            self.quantizer.quantize_activation_tensor(name)
        for name in self.results:
            if self._pads_within_range():
                self.share(name)
            else:
                self.quantizer.quantize_activation_tensor(name)

    def _pads_within_range(self) -> bool:
        mode = first_named("mode", self.node.attribute)
        if mode is not None and mode.s in _FROM_THE_INPUT:
            return True
        value = self._value()
        return value is not None and value.dtype in (np.float32, np.float16) and float(value.item()) == 0

    def _value(self) -> np.ndarray | None:
        """What a constant Pad pads with, None where that is not known."""
        kind = self.quantizer.model.get_tensor_type(self.node.input[0])
        if kind is None or kind.elem_type not in FLOATS:
            return None
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
        if self.quantizer.opset_version < 11:
            given = first_named("value", self.node.attribute)
            return np.array(0 if given is None else given.f, dtype)
        if len(self.node.input) > 2 and self.node.input[2]:
            return self.quantizer.model.get_constant_value(self.node.input[2])
        return np.array(0, dtype)
