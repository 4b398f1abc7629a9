"""Networks as quantizers leave them: this package's write what onnxruntime's do."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx

from ...quantization.calibrate import CalibrationMethod, TensorsData
from ...quantization.onnx_quantizer import ONNXQuantizer
from ...quantization.qdq_quantizer import QDQQuantizer
from ...quantization.quant_utils import QuantizationMode, QuantType
from ...quantization.registry import IntegerOpsRegistry, QDQRegistry, QLinearOpsRegistry

_ABOVE = {"Relu", "Sigmoid", "Softmax"}
"""Operators whose results are not negative, so that their zero point is 0."""


def static(net: Callable[[], onnx.ModelProto], signed: bool = False, per_channel: bool = True
           ) -> onnx.ModelProto:
    """Weights and activations, these `signed` or not, by ranges that are given, not found."""
    model = net()
    most = np.float32(6)
    ranges = {name: (0 * most if node.op_type in _ABOVE else -most, most)
              for node in model.graph.node for name in node.output}
    ranges |= {each.name: (-most, most) for each in model.graph.input}
    made = QDQQuantizer(model, per_channel, False, QuantType.QInt8,
                        QuantType.QInt8 if signed else QuantType.QUInt8,
                        TensorsData(CalibrationMethod.MinMax, ranges), None, None,
                        [*QLinearOpsRegistry, *QDQRegistry], {})
    made.quantize_model()
    return made.model.model


def dynamic(net: Callable[[], onnx.ModelProto], per_channel: bool = False) -> onnx.ModelProto:
    """Weights; activations while the model runs."""
    made = ONNXQuantizer(net(), per_channel, False, QuantizationMode.IntegerOps, False, QuantType.QInt8,
                         QuantType.QUInt8, None, None, None, list(IntegerOpsRegistry),
                         {"MatMulConstBOnly": True})
    made.quantize_model()
    return made.model.model
