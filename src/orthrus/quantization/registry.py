"""Which class quantizes which operator, in three tables that a program may add its own classes to."""

from __future__ import annotations

from typing import Any

from onnx import NodeProto

from .operators.base_operator import QuantOperatorBase
from .operators.integer import (
    AttentionQuant,
    ConvInteger,
    EmbedLayerNormalizationQuant,
    LSTMQuant,
    MatMulInteger,
)
from .operators.qdq import (
    QDQConv,
    QDQDirect8BitOp,
    QDQGather,
    QDQGemm,
    QDQMatMul,
    QDQMaxPool,
    QDQNormalization,
    QDQPad,
    QDQRemovableActivation,
    QDQResize,
    QDQSplit,
    QDQWhere,
)
from .operators.qdq_base_operator import QDQOperatorBase
from .operators.qoperator import (
    Direct8BitOp,
    GatherQuant,
    QArgMax,
    QGlobalAveragePool,
    QLinearActivation,
    QLinearBinaryOp,
    QLinearConcat,
    QLinearConv,
    QLinearGemm,
    QLinearMatMul,
    QLinearPool,
    QLinearSoftmax,
    QLinearWhere,
    QMaxPool,
    QPad,
    QResize,
    QSplit,
)
from .quant_utils import QuantizationMode

CommonOpsRegistry: dict[str, Any] = {
    "EmbedLayerNormalization": EmbedLayerNormalizationQuant, "Gather": GatherQuant, "Transpose": Direct8BitOp,
}
IntegerOpsRegistry: dict[str, Any] = {
    "Attention": AttentionQuant, "Conv": ConvInteger, "LSTM": LSTMQuant, "MatMul": MatMulInteger,
    **CommonOpsRegistry,
}
QLinearOpsRegistry: dict[str, Any] = {
    "Add": QLinearBinaryOp, "ArgMax": QArgMax, "AveragePool": QLinearPool, "Clip": QLinearActivation,
    "Concat": QLinearConcat, "Conv": QLinearConv, "Flatten": Direct8BitOp, "Gemm": QLinearGemm,
    "GlobalAveragePool": QGlobalAveragePool, "LeakyRelu": QLinearActivation, "MatMul": QLinearMatMul,
    "MaxPool": QMaxPool, "Mul": QLinearBinaryOp, "Pad": QPad, "Relu": QLinearActivation,
    "Reshape": Direct8BitOp, "Resize": QResize, "Sigmoid": QLinearActivation, "Softmax": QLinearSoftmax,
    "Split": QSplit, "Squeeze": Direct8BitOp, "Unsqueeze": Direct8BitOp, "Where": QLinearWhere,
    **CommonOpsRegistry,
}
QDQRegistry: dict[str, Any] = {
    "AveragePool": QDQDirect8BitOp, "BatchNormalization": QDQNormalization, "Clip": QDQRemovableActivation,
    "Conv": QDQConv, "ConvTranspose": QDQConv, "CumSum": QDQOperatorBase, "Flatten": QDQDirect8BitOp,
    "Gather": QDQGather, "GatherElements": QDQGather, "Gemm": QDQGemm,
    "InstanceNormalization": QDQNormalization, "LayerNormalization": QDQNormalization, "MatMul": QDQMatMul,
    "MaxPool": QDQMaxPool, "Pad": QDQPad, "Relu": QDQRemovableActivation, "Reshape": QDQDirect8BitOp,
    "Resize": QDQResize, "Slice": QDQDirect8BitOp, "Split": QDQSplit, "Squeeze": QDQDirect8BitOp,
    "TopK": QDQDirect8BitOp, "Transpose": QDQDirect8BitOp, "Unsqueeze": QDQDirect8BitOp, "Where": QDQWhere,
}


def CreateDefaultOpQuantizer(onnx_quantizer: Any, node: NodeProto) -> QuantOperatorBase:
    """What keeps a node float."""
    return QuantOperatorBase(onnx_quantizer, node)


def CreateOpQuantizer(onnx_quantizer: Any, node: NodeProto) -> QuantOperatorBase:
    """What quantizes a node into a quantized operator, or keeps it float."""
    integers = onnx_quantizer.mode == QuantizationMode.IntegerOps
    made = (IntegerOpsRegistry if integers else QLinearOpsRegistry).get(node.op_type)
    quantizer = None if made is None else made(onnx_quantizer, node)
    if quantizer is not None and quantizer.should_quantize():
        return quantizer
    return QuantOperatorBase(onnx_quantizer, node)


def CreateQDQQuantizer(onnx_quantizer: Any, node: NodeProto) -> QDQOperatorBase:
    """What marks a node's values for QuantizeLinear and DequantizeLinear."""
    return QDQRegistry.get(node.op_type, QDQOperatorBase)(onnx_quantizer, node)
