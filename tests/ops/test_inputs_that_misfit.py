"""Inputs whose shapes do not go together are InvalidArgument where a node runs, as in onnxruntime, whose
programs catch that; an attribute that no input could do with is Fail."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import orthrus as ort
from orthrus.errors import Fail, InvalidArgument
from orthrus.testing.samples import Sample, samples

OPERATORS = {
    "RotaryEmbedding": (0,), "GRU": (1,), "LSTM": (1,), "RNN": (1,), "ReverseSequence": (1,),
    "ScatterElements": (1,), "Range": (1,), "MatMul": (1,), "InstanceNormalization": (1,),
    "com.microsoft::Attention": (0,),
    "com.microsoft::GroupQueryAttention": (0,), "com.microsoft::MultiHeadAttention": (0,),
    "com.microsoft::MRotaryEmbedding": (0, 2), "com.microsoft::RotaryEmbedding": (0, 2),
    "com.microsoft::MoE": (1,), "com.microsoft::MatMulBnb4": (1, 2), "com.microsoft::QGemm": (3,),
    "com.microsoft::CausalConvWithState": (3,)}
"""Which inputs are given without elements, or with dimensions too many."""
TAKEN_DEEP = {"Range", "MatMul", "InstanceNormalization", "com.microsoft::MatMulBnb4", "com.microsoft::QGemm"}
"""What is as good with more dimensions."""

KNOWN = {(s.kind, i): s for s in reversed(list(samples()))
         for i in OPERATORS.get(s.kind, ()) if i < len(s.model().graph.node[0].input)
         and s.model().graph.node[0].input[i]}


def changed(sample: Sample, which: int, how: str) -> tuple[bytes, dict[str, np.ndarray]]:
    """The sample's model with shapes that are open, and its feeds with one of another rank."""
    model = onnx.ModelProto.FromString(sample.model().SerializeToString())
    model.ir_version = min(model.ir_version, 10)
    for opset in model.opset_import:
        opset.version = min(opset.version, 26) if not opset.domain else opset.version
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.ClearField("shape")
    del model.graph.value_info[:]
    feeds = dict(sample.feeds)
    name = model.graph.node[0].input[which]
    given = np.asarray(feeds[name])
    feeds[name] = given.reshape(-1)[:0] if how == "empty" else given[None, None, None]
    return model.SerializeToString(), feeds


@pytest.mark.parametrize("how", ["empty", "deep"])
@pytest.mark.parametrize(("kind", "which"), KNOWN)
@pytest.mark.parametrize("codegen", ["0", "1"])
def test_it_is_an_invalid_argument(kind: str, which: int, how: str, codegen: str) -> None:
    model, feeds = changed(KNOWN[kind, which], which, how)
    made = ort.InferenceSession(model, provider_options=[{"use_codegen": codegen}],
                                providers=["CPUExecutionProvider"])
    if how == "deep" and kind in TAKEN_DEEP:
        made.run(None, feeds)
        return
    with pytest.raises(InvalidArgument, match="Non-zero status code returned while running"):
        made.run(None, feeds)


def test_all_operators_have_their_samples() -> None:
    assert {kind for kind, _ in KNOWN} == set(OPERATORS)


def test_an_attribute_that_fits_nothing_fails() -> None:
    helper = onnx.helper
    x = helper.make_tensor_value_info("x", 1, None)
    graph = helper.make_graph([helper.make_node("Concat", ["x", "x"], ["y"], axis=7)], "g", [x],
                              [helper.make_tensor_value_info("y", 1, None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with pytest.raises(Fail, match="axis 7 is out of range"):
        ort.InferenceSession(model.SerializeToString()).run(None, {"x": np.ones((2, 3), np.float32)})
