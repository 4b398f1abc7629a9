"""Positive numbers and products of them over long sums: errors stay as small as those of short ones,
whichever kernel adds them up."""

import numpy as np
import pytest
from graphs import info, model
from onnx import NodeProto, helper

import orthrus as ort
from orthrus.ops import find

MOST = 1e-6
"""Of the largest result; onnxruntime's errors are 2e-7 to 4e-7, those of 4,096 numbers that are added one
after another 2e-6 to 3e-6."""
K = 4096


def error(node: NodeProto, feeds: dict[str, np.ndarray], constants: dict[str, np.ndarray], truth: np.ndarray
          ) -> float:
    """The largest difference, as a part of the largest result."""
    inputs = [info(k, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape) for k, v in feeds.items()]
    proto = model([node], inputs, [info("y", shape=None)], constants, domains={"com.microsoft": 1})
    session = ort.InferenceSession(proto.SerializeToString(), fallback="error")
    (y,) = session.run(None, feeds)
    return float(np.abs(y - truth).max() / np.abs(truth).max())


def positive(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).random(shape, np.float32)


@pytest.mark.parametrize("known", (True, False), ids=("weights", "computed"))
@pytest.mark.parametrize("across", (False, True), ids=("B", "B'"))
@pytest.mark.parametrize("n", (1, 7, 64, 300))
@pytest.mark.parametrize("m", (1, 2, 4, 8, 14, 40))
def test_products(m: int, n: int, across: bool, known: bool) -> None:
    a, b = positive(m, K), positive(n, K) if across else positive(K, n)
    node = helper.make_node("Gemm", ["a", "b"], ["y"], transB=int(across))
    given = {"b": b}
    truth = a.astype(np.float64) @ (b.T if across else b).astype(np.float64)
    assert error(node, {"a": a} if known else {"a": a} | given, given if known else {}, truth) < MOST


@pytest.mark.parametrize("keys", (300, 4096, 20_000))
@pytest.mark.parametrize("size", (16, 64))
@pytest.mark.parametrize("queries", (1, 2, 3, 14, 40))
def test_attention(queries: int, size: int, keys: int) -> None:
    q, k, v = positive(1, queries, size), positive(1, keys, size), positive(1, keys, size)
    node = helper.make_node("MultiHeadAttention", ["q", "k", "v"], ["y"], domain="com.microsoft", num_heads=1)
    x, y, z = (each.astype(np.float64) for each in (q, k, v))
    weights = np.exp(x @ y.transpose(0, 2, 1) / size ** 0.5)
    truth = weights @ z / weights.sum(-1, keepdims=True)
    assert error(node, {"q": q, "k": k, "v": v}, {}, truth) < MOST


@pytest.mark.parametrize("size", (1, 8))
def test_convolutions(size: int) -> None:
    x, w = positive(1, K, size, size), positive(24, K, 1, 1)
    truth = np.einsum("nkhw,mk->nmhw", x.astype(np.float64), w[:, :, 0, 0].astype(np.float64))
    assert error(helper.make_node("Conv", ["x", "w"], ["y"]), {"x": x}, {"w": w}, truth) < MOST


@pytest.mark.parametrize("samples", (30, 300))
def test_samples_of_regions(samples: int) -> None:
    """As the number of samples does not divide their distance, corners have weights of every size."""
    x, ends = positive(1, 2, samples, samples), np.array([[0, 0, samples - 1, samples - 1]], np.float32)
    node = helper.make_node("RoiAlign", ["x", "r", "i"], ["y"], output_height=1, output_width=1,
                            sampling_ratio=samples, coordinate_transformation_mode="half_pixel")
    at = np.clip(-0.5 + (np.arange(samples) + 0.5) * (samples - 1) / samples, 0, None)
    table = np.maximum(1 - np.abs(at[:, None] - np.arange(samples)), 0)
    truth = (table @ x.astype(np.float64) @ table.T).mean((2, 3), keepdims=True)
    assert error(node, {"x": x, "r": ends, "i": np.zeros(1, np.int64)}, {}, truth) < MOST


@pytest.mark.parametrize("channels", (2, 16))
def test_depthwise_convolutions(channels: int) -> None:
    """Along rows, whose taps are too many to be written out."""
    x, w = positive(1, channels, 2 * K), positive(channels, 1, K + 5)
    truth = [np.correlate(a, b, "valid") for a, b in zip(x[0].astype(np.float64), w[:, 0].astype(np.float64),
                                                         strict=True)]
    node = helper.make_node("Conv", ["x", "w"], ["y"], group=channels)
    assert error(node, {"x": x}, {"w": w}, np.array([truth])) < MOST


@pytest.mark.parametrize("channels", (1, 16))
@pytest.mark.parametrize("op", ("AveragePool", "LpPool"))
def test_windows(op: str, channels: int) -> None:
    x, of = positive(1, channels, 150, 170), {"kernel_shape": [140, 150], "strides": [4, 5]}
    every = np.lib.stride_tricks.sliding_window_view(x.astype(np.float64), (140, 150), (2, 3))[:, :, ::4, ::5]
    truth = every.mean((-2, -1)) if op == "AveragePool" else np.sqrt((every ** 2).sum((-2, -1)))
    assert error(helper.make_node(op, ["x"], ["y"], **of), {"x": x}, {}, truth) < MOST


@pytest.mark.parametrize("batch", (1, 5))
@pytest.mark.parametrize("kind", ("RNN", "LSTM", "GRU", "GRU-linear"))
def test_states(kind: str, batch: int) -> None:
    """Products of the hidden state, in sums of gates that are small enough for them to tell."""
    op, hidden = kind[:4].strip("-"), 2048
    gates = {"RNN": 1, "GRU": 3, "LSTM": 4}[op]
    linear = {"linear_before_reset": 1} if "-" in kind else {}
    x, w = positive(1, batch, 8), positive(1, gates * hidden, 8) / np.float32(8)
    r, h = positive(1, gates * hidden, hidden) / np.float32(hidden), positive(1, batch, hidden)
    given: dict[str, np.ndarray] = {"x": x, "h": h}
    node = helper.make_node(op, ["x", "w", "r", "", "", "h"], ["y"], hidden_size=hidden, **linear)
    definition = find("", op, 21)
    assert definition is not None
    wide = [v.astype(np.float64) for v in (x, w, r, h)]
    (truth, *_) = definition.bind({"hidden_size": hidden, **linear}, 2)(*wide[:3], None, None, wide[3])
    assert error(node, given, {"w": w, "r": r}, truth) < 5e-7
