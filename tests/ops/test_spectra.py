"""Spectra of sounds in float32 beside the same graph in float64: windows of any size, by generated code and
by the definitions."""

from __future__ import annotations

import numpy as np
import pytest
from benchmarks.mel import wider
from onnx import ModelProto, TensorProto, helper, numpy_helper

import orthrus


def log_mel(size: int, hop: int, window: np.ndarray, weights: np.ndarray) -> ModelProto:
    """As speech recognizers begin: windows, their power, bands, decades."""
    nodes = [helper.make_node("STFT", ["x", "hop", "window", "size"], ["s"]),
             helper.make_node("ReduceSumSquare", ["s", "last"], ["p"], keepdims=0),
             helper.make_node("MatMul", ["p", "weights"], ["m"]),
             helper.make_node("Max", ["m", "floor"], ["c"]), helper.make_node("Log", ["c"], ["l"]),
             helper.make_node("Mul", ["l", "decade"], ["y"])]
    held = {"hop": np.int64(hop), "size": np.int64(size), "window": window, "weights": weights,
            "last": np.array([-1]), "floor": np.float32(1e-10), "decade": np.float32(1 / np.log(10))}
    graph = helper.make_graph(
        nodes, "mel", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", "samples", 1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", "frames", "bands"])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in held.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


@pytest.mark.parametrize("codegen", ["0", "1"])
@pytest.mark.parametrize(("size", "hop"), [(400, 160), (512, 160), (320, 161), (97, 40), (64, 64), (1, 1)])
def test_silence_beside_a_voice_is_as_quiet_as_in_float64(size: int, hop: int, codegen: str) -> None:
    draw = np.random.default_rng(size)
    time = np.arange(3 * 1000) / 16000
    voice = np.sin(2 * np.pi * 440 * time) + 0.5 * np.sin(2 * np.pi * 1234.5 * time)
    x = np.stack([scale * voice + 1e-4 * draw.standard_normal(len(time)) for scale in (1.0, 0.01)])
    x = x.astype(np.float32)[..., None]
    bins = size // 2 + 1
    weights = np.maximum(0, draw.standard_normal((bins, 12)) - 0.5).astype(np.float32) + np.float32(1e-3)
    model = log_mel(size, hop, np.hanning(size + 2)[1:-1].astype(np.float32), weights)
    wide = orthrus.InferenceSession(wider(model).SerializeToString())
    [exact] = wide.run(None, {"x": x.astype(np.float64)})
    providers = [("CPUExecutionProvider", {"use_codegen": codegen})]
    [found] = orthrus.InferenceSession(model.SerializeToString(), providers=providers).run(None, {"x": x})
    assert exact.dtype == np.float64 and found.shape == exact.shape
    np.testing.assert_allclose(found, exact, atol=5e-5)
