"""Models in layouts of blocks of channels, as onnxruntime saves them when it has optimized all it can, are
what they were before, whatever the size of a block."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import orthrus
from orthrus.load import load
from orthrus.load.blocked import unblocked

BLOCKED = "com.microsoft.nchwc"


def network(seed: int, channels: tuple[int, int, int]) -> bytes:
    """Convolutions of every kind, pools, sums, a concatenation and a resize between them."""
    rng, (first, second, third) = np.random.default_rng(seed), channels
    weights: list[Any] = []

    def weight(*shape: int) -> str:
        array = (rng.standard_normal(shape) / 4).astype(np.float32)
        weights.append(numpy_helper.from_array(array, f"w{len(weights)}"))
        return weights[-1].name

    def conv(x: str, y: str, m: int, c: int, size: int, bias: bool = True, **attrs: Any) -> Any:
        inputs = [x, weight(m, c, size, size), *([weight(m)] if bias else [])]
        return helper.make_node("Conv", inputs, [y], pads=[size // 2] * 4, **attrs)

    weights.append(numpy_helper.from_array(np.array([1, 1, 2, 2], np.float32), "scales"))
    node = helper.make_node
    nodes = [
        conv("x", "a", second, first, 3), node("Relu", ["a"], ["b"]),
        node("MaxPool", ["b"], ["c"], kernel_shape=[2, 2], strides=[2, 2]),
        conv("c", "d", second, 1, 3, group=second), node("Sigmoid", ["d"], ["e"]),
        node("Add", ["e", "c"], ["f"]), conv("f", "g", third, second, 1, bias=False),
        node("LeakyRelu", ["g"], ["h"], alpha=0.2),
        node("AveragePool", ["h"], ["i"], kernel_shape=[3, 3], pads=[1] * 4, strides=[2, 2]),
        conv("i", "j", third, third, 3), node("Add", ["j", "i"], ["k"]), node("Relu", ["k"], ["l"]),
        node("Resize", ["l", "", "scales"], ["m"], mode="nearest", nearest_mode="floor",
             coordinate_transformation_mode="asymmetric"),
        node("Concat", ["m", "h"], ["n"], axis=1), conv("n", "o", 20, 2 * third, 1),
        node("GlobalAveragePool", ["o"], ["p"]), node("HardSigmoid", ["o"], ["q"])]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, first, 12, 16])],
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in "pq"], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)],
                             ir_version=9).SerializeToString()


@pytest.mark.parametrize("channels", [(3, 16, 24), (16, 32, 32), (5, 48, 20), (8, 8, 40)])
def test_as_onnxruntime_saves_them(channels: tuple[int, int, int], tmp_path: Path) -> None:
    peer = pytest.importorskip("onnxruntime")
    options = peer.SessionOptions()
    options.log_severity_level, options.optimized_model_filepath = 4, str(tmp_path / "saved.onnx")
    theirs = peer.InferenceSession(network(1, channels), options, providers=["CPUExecutionProvider"])
    x = np.random.default_rng(2).standard_normal((1, channels[0], 12, 16)).astype(np.float32)
    for level in ("ORT_DISABLE_ALL", "ORT_ENABLE_ALL"):
        given = orthrus.SessionOptions()
        given.graph_optimization_level = getattr(orthrus.GraphOptimizationLevel, level)
        mine = orthrus.InferenceSession(tmp_path / "saved.onnx", given)
        for got, wanted in zip(mine.run(None, {"x": x}), theirs.run(None, {"x": x}), strict=True):
            np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)
    assert not any(node.domain == BLOCKED for node in load(tmp_path / "saved.onnx").nodes)


def blocked(weights: np.ndarray, size: int) -> np.ndarray:
    """Weights (m, c, height, width) by blocks of m, and of c where it is whole ones."""
    m, c, height, width = weights.shape
    inner = size if c % size == 0 else 1
    apart = weights.reshape(m // size, size, c // inner, inner, height, width)
    return apart.transpose(0, 2, 4, 5, 3, 1).reshape(weights.shape)


@pytest.mark.parametrize("size, m, c", [(8, 24, 16), (8, 40, 3), (16, 48, 32), (8, 8, 8), (16, 16, 1)])
def test_weights_are_laid_out_plainly(size: int, m: int, c: int) -> None:
    weights = np.arange(m * c * 6, dtype=np.float32).reshape(m, c, 2, 3)
    np.testing.assert_array_equal(unblocked(blocked(weights, size), size), weights)


def one_convolution(weights: np.ndarray, size: int, kept: int, constant: bool = True, last: int = 0) -> bytes:
    nodes = [helper.make_node("ReorderInput", ["x"], ["a"], domain=BLOCKED, channels_last=last),
             helper.make_node("Conv", ["a", "w"], ["b"], domain=BLOCKED, activation="Relu", pads=[1] * 4),
             helper.make_node("ReorderOutput", ["b"], ["y"], domain=BLOCKED, channels=kept,
                              channels_last=last)]
    fixed = [numpy_helper.from_array(blocked(weights, size), "w")]
    shape = [1, 5, 6, 20] if last else [1, 20, 5, 6]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
    if not constant:
        inputs.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, weights.shape))
    made = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "g", inputs, made, fixed if constant else [])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(BLOCKED, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()


@pytest.mark.parametrize("last", [0, 1])
@pytest.mark.parametrize("size, m, kept, c", [(8, 40, 33, 24), (16, 32, 19, 32)])
def test_blocks_of_either_size(size: int, m: int, kept: int, c: int, last: int) -> None:
    rng = np.random.default_rng(m)
    weights = np.zeros((m, c, 3, 3), np.float32)
    weights[:kept, :20] = rng.standard_normal((kept, 20, 3, 3))
    x = rng.standard_normal((1, 20, 5, 6)).astype(np.float32)
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
    wanted = np.maximum(np.einsum("nchwij,mcij->nmhw", windows, weights[:kept, :20]), 0)
    session = orthrus.InferenceSession(one_convolution(weights, size, kept, last=last))
    (y,) = session.run(None, {"x": np.ascontiguousarray(x.transpose(0, 2, 3, 1)) if last else x})
    np.testing.assert_allclose(y.transpose(0, 3, 1, 2) if last else y, wanted, rtol=1e-4, atol=1e-4)


def test_what_cannot_be_undone_is_said() -> None:
    with pytest.raises(orthrus.errors.NotImplemented, match="Conv.*cannot be undone"):
        load(one_convolution(np.zeros((16, 32, 3, 3), np.float32), 16, 16, constant=False))
