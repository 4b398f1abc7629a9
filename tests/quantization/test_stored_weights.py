"""Weights stored in fewer bits than they are computed with: the model computes nearly what it did."""

from __future__ import annotations

from typing import Any

import graphs
import numpy as np
import onnx
import pytest
from onnx import helper

import orthrus as ort
from orthrus.errors import InvalidArgument
from orthrus.quantization.advising import stored
from orthrus.quantization.advising.accuracy import Comparing

WEIGHTS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "Conv": ((1, 16, 9), (24, 8, 3), {"group": 2}), "ConvTranspose": ((1, 16, 9), (16, 12, 3), {"group": 2}),
    "MatMul": ((5, 40), (40, 24), {}), "Gemm": ((5, 40), (40, 24), {}),
    "Gemm turned": ((5, 40), (24, 40), {"transB": 1}), "MatMul batched": ((3, 5, 40), (3, 40, 24), {}),
    "Gather": ((50, 12), (50, 12), {}), "LSTM": ((4, 2, 10), (1, 64, 10), {"hidden_size": 16})}


@pytest.mark.parametrize("kind", WEIGHTS)
@pytest.mark.parametrize("how, least", [(stored.in_bytes, 30), (stored.in_float16, 55)])
def test_weights_are_stored_in_fewer_bits(kind: str, how: Any, least: float) -> None:
    """By channel: each is of another size."""
    shape, size, attrs = WEIGHTS[kind]
    rng, op = np.random.default_rng(4), kind.split()[0]
    axis = 0 if "turned" in kind else stored._CHANNELS[op]
    spread = np.exp(rng.standard_normal(size[axis])).astype(np.float32)
    w = rng.standard_normal(size).astype(np.float32) * np.expand_dims(
        spread, [i for i in range(len(size)) if i != axis % len(size)])
    fixed = {"w": w}
    if op == "LSTM":
        fixed["r"] = rng.standard_normal((1, 64, 16)).astype(np.float32)
    fed = rng.integers(0, 50, (3, 4)) if op == "Gather" else rng.standard_normal(shape).astype(np.float32)
    names = ["w", "x"] if op == "Gather" else ["x", *fixed]
    ends = [[graphs.info("x", elem=helper.np_dtype_to_tensor_dtype(fed.dtype), shape=fed.shape)],
            [graphs.info("y", shape=[None] * {"LSTM": 4, "Gather": 3}.get(op, len(shape)))]]
    source = graphs.model([helper.make_node(op, names, ["y"], "n", **attrs)], *ends, fixed)
    made = how(onnx.ModelProto.FromString(source.SerializeToString()))
    onnx.checker.check_model(made, full_check=True)
    assert made.ByteSize() < 0.6 * source.ByteSize() and how(source, ["n"]).ByteSize() == source.ByteSize()
    wanted = ort.InferenceSession(source.SerializeToString()).run(None, {"x": fed})
    comparing = Comparing()
    comparing.add(wanted, ort.InferenceSession(made.SerializeToString()).run(None, {"x": fed}))
    assert comparing.result().sqnr > least


def test_weights_that_do_not_fit_stay_as_they_are() -> None:
    big = np.full((32, 32), 1e6, np.float32)
    chain = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    ends = [[graphs.info(end, shape=["n", 32])] for end in "xy"]
    assert stored.in_float16(graphs.model(chain, *ends, {"w": big})).graph.node[0].op_type == "MatMul"
    zeros = stored.in_bytes(graphs.model(chain, *ends, {"w": 0 * big}))
    assert not ort.InferenceSession(zeros.SerializeToString()).run(None, {"x": big})[0].any()
    with pytest.raises(InvalidArgument, match="by channel"):
        stored.in_bytes(graphs.model(chain, *ends, {"w": big}, opset=12))
