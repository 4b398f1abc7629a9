"""How single operators are quantized, in onnxruntime's modules: `operators.conv` and so on hold its classes.

The modules of onnxruntime's names are made from one table; the classes live in three files.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from . import base_operator, integer, qdq, qdq_base_operator, qoperator

_MODULES: dict[str, tuple[Any, ...]] = {
    "activation": (qoperator.QLinearActivation, qdq.QDQRemovableActivation),
    "argmax": (qoperator.QArgMax,),
    "attention": (integer.AttentionQuant,),
    "binary_op": (qoperator.QLinearBinaryOp,),
    "concat": (qoperator.QLinearConcat,),
    "conv": (integer.ConvInteger, qoperator.QLinearConv, qdq.QDQConv),
    "direct_q8": (qoperator.Direct8BitOp, qdq.QDQDirect8BitOp),
    "embed_layernorm": (integer.EmbedLayerNormalizationQuant,),
    "gather": (qoperator.GatherQuant, qdq.QDQGather),
    "gavgpool": (qoperator.QGlobalAveragePool,),
    "gemm": (qoperator.QLinearGemm, qdq.QDQGemm, qdq.is_B_transposed, qdq.get_beta, qdq.set_default_beta),
    "lstm": (integer.LSTMQuant,),
    "matmul": (qoperator.QOpMatMul, integer.MatMulInteger, qoperator.QLinearMatMul, qdq.QDQMatMul),
    "maxpool": (qoperator.QMaxPool, qdq.QDQMaxPool),
    "norm": (qdq.QDQNormalization,),
    "pad": (qoperator.QPad, qdq.QDQPad),
    "pooling": (qoperator.QLinearPool,),
    "resize": (qoperator.QResize, qdq.QDQResize),
    "softmax": (qoperator.QLinearSoftmax,),
    "split": (qoperator.QSplit, qdq.QDQSplit),
    "where": (qoperator.QLinearWhere, qdq.QDQWhere),
}


def _make(name: str, members: tuple[Any, ...]) -> None:
    module = ModuleType(f"{__name__}.{name}", f"onnxruntime's module `operators.{name}`.")
    module.__package__ = __name__
    module.__spec__ = ModuleSpec(module.__name__, None, origin=__file__)
    for member in (base_operator.QuantOperatorBase, qdq_base_operator.QDQOperatorBase, *members):
        setattr(module, member.__name__, member)
    sys.modules[module.__name__] = module
    globals()[name] = module


for _name, _members in _MODULES.items():
    _make(_name, _members)
