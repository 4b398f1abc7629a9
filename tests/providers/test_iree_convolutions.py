"""Convolutions as they are spelled out for IREE: what a model means stays the same, and IREE computes it."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import onnx
import pytest
from graphs import info, model
from onnx import TensorProto, helper
from skips import needs

import orthrus as ort
from orthrus.providers.iree import IREEExecutionProvider
from orthrus.providers.iree.convolutions import spelled

RNG = np.random.default_rng(0)


def convolution(x: tuple[Any, ...], w: tuple[int, ...], bias: bool = True, elem: int = TensorProto.FLOAT,
                opset: int = 17, **attributes: Any) -> onnx.ModelProto:
    """y = Conv(x, w), of a batch of 2 where the first dimension has a name."""
    dtype = helper.tensor_dtype_to_np_dtype(elem)
    constants = {"w": RNG.standard_normal(w).astype(dtype)}
    if bias:
        constants["b"] = RNG.standard_normal(w[0]).astype(dtype)
    node = helper.make_node("Conv", ["x", *constants], ["y"], name="conv", **attributes)
    made = model([node], [info("x", elem, list(x))], [info("y", elem, None)], constants, opset=opset)
    return onnx.shape_inference.infer_shapes(made)


def case(**given: Any) -> dict[str, Any]:
    """Arguments of `convolution`."""
    return given


def feed(proto: onnx.ModelProto) -> dict[str, np.ndarray]:
    kind = proto.graph.input[0].type.tensor_type
    shape = [d.dim_value or 2 for d in kind.shape.dim]
    return {"x": RNG.standard_normal(shape).astype(helper.tensor_dtype_to_np_dtype(kind.elem_type))}


def operators(raw: bytes) -> Counter[str]:
    return Counter(node.op_type for node in onnx.ModelProto.FromString(raw).graph.node)


CASES = {
    "a point": (case(x=(1, 5, 4, 3), w=(7, 5, 1, 1)), "MatMul"),
    "a point of a batch": (case(x=(3, 5, 4, 3), w=(7, 5, 1, 1), bias=False), "MatMul"),
    "a point of an open batch": (case(x=("N", 5, 4, 3), w=(7, 5, 1, 1), strides=[2, 3]), "MatMul"),
    "a point on a line": (case(x=(1, 5, 9), w=(7, 5, 1), strides=[2]), "MatMul"),
    "a long point": (case(x=(1, 500, 3, 3), w=(7, 500, 1, 1)), "MatMul"),
    "a long point of a batch": (case(x=("N", 200, 3, 3), w=(7, 200, 1, 1), bias=False), "MatMul"),
    "many channels": (case(x=(1, 50, 6, 7), w=(9, 50, 3, 3), pads=[1, 0, 1, 2], strides=[2, 1]), "Conv"),
    "many channels of a batch": (case(x=("N", 200, 5, 5), w=(4, 200, 3, 3), bias=False,
                                      auto_pad="SAME_LOWER"), "Conv"),
    "a channel": (case(x=(1, 6, 8, 9), w=(6, 1, 3, 3), group=6, pads=[1, 1, 1, 1]), "Add"),
    "a channel in steps": (case(x=(2, 6, 8, 9), w=(6, 1, 5, 3), group=6, pads=[1, 0, 2, 1], strides=[2, 3]),
                           "Add"),
    "a channel, dilated": (case(x=(1, 4, 11, 12), w=(4, 1, 3, 3), group=4, dilations=[2, 3], strides=[3, 2],
                                bias=False), "Add"),
    "a channel, same": (case(x=("N", 4, 7, 6), w=(4, 1, 5, 5), group=4, auto_pad="SAME_UPPER",
                             strides=[2, 2]), "Add"),
    "a channel on a line": (case(x=(1, 4, 20), w=(4, 1, 4), group=4, pads=[3, 0]), "Add"),
    "a channel in space": (case(x=(1, 3, 4, 5, 6), w=(3, 1, 2, 3, 2), group=3, strides=[1, 2, 1]), "Add"),
    "double": (case(x=(1, 4, 7, 6), w=(4, 1, 3, 3), group=4, elem=TensorProto.DOUBLE), "Add"),
    "steps": (case(x=(1, 3, 15, 14), w=(8, 3, 7, 7), strides=[2, 2], pads=[3, 3, 3, 3]), "Conv"),
    "steps of a batch": (case(x=("N", 4, 15, 14), w=(8, 4, 3, 5), strides=[2, 3], pads=[1, 0, 0, 2]), "Conv"),
    "patches": (case(x=(2, 3, 12, 8), w=(8, 3, 4, 4), strides=[4, 4], bias=False), "MatMul"),
    "patches with a rest": (case(x=(1, 3, 13, 11), w=(8, 3, 4, 4), strides=[4, 4]), "MatMul"),
}


@pytest.mark.parametrize("name", CASES)
def test_what_is_spelled_out_means_the_same(name: str) -> None:
    given, expected = CASES[name]
    proto = convolution(**given)
    made = spelled(proto.SerializeToString(), True)
    assert made is not None and operators(made)[expected]
    assert bool(operators(made)["Conv"]) == (expected == "Conv")
    onnx.checker.check_model(onnx.ModelProto.FromString(made), full_check=True)
    fed = feed(proto)
    want = ort.InferenceSession(proto.SerializeToString()).run(None, fed)[0]
    got = ort.InferenceSession(made).run(None, fed)[0]
    assert got.dtype == want.dtype and got.shape == want.shape
    np.testing.assert_allclose(got, want, 1e-4, 1e-4)


@pytest.mark.parametrize("given", [
    case(x=(1, 80, 6, 6), w=(4, 80, 3, 3)), case(x=(1, 8, 6, 6), w=(4, 4, 3, 3), group=2),
    case(x=(1, 8, "H", 6), w=(8, 1, 3, 3), group=8), case(x=(1, 8, 6, 6), w=(4, 8, 1, 1), pads=[1, 1, 1, 1]),
    case(x=(1, 8, 6, 6), w=(8, 1, 1, 1), group=8, elem=TensorProto.FLOAT16),
    case(x=(1, 8, 6, 6), w=(8, 8, 1, 1), opset=9)])
def test_what_is_left(given: dict[str, Any]) -> None:
    raw = convolution(**given).SerializeToString()
    made = spelled(raw, False)
    assert made is not None and operators(made) == {"Conv": 1}


def test_computed_weights() -> None:
    proto = model([helper.make_node("Conv", ["x", "w"], ["y"])], [info("x", shape=[1, 3, 4, 4]), info(
        "w", shape=[5, 3, 1, 1])], [info("y", shape=[1, 5, 4, 4])], opset=17)
    made = spelled(proto.SerializeToString(), True)
    assert made is not None and operators(made)["MatMul"] == 1
    fed = {"x": RNG.random((1, 3, 4, 4), np.float32), "w": RNG.random((5, 3, 1, 1), np.float32)}
    np.testing.assert_allclose(ort.InferenceSession(made).run(None, fed)[0], ort.InferenceSession(
        proto.SerializeToString()).run(None, fed)[0], 1e-5)


def test_long_sums_are_of_shorter_ones() -> None:
    """No more than about 150 terms are added up one by one, in no more than 8 sums."""
    for channels, sums in ((16, 1), (32, 2), (64, 4), (128, 8), (1024, 8)):
        proto = convolution((1, channels, 4, 4), (8, channels, 3, 3))
        made = spelled(proto.SerializeToString(), True)
        assert made is not None
        counted = operators(made)
        assert (counted["Conv"], counted["Add"]) == (sums, sums - 1)


@pytest.mark.parametrize("given", [
    case(x=(1, 8, 6, 6), w=(4, 4, 3, 3), group=2), case(x=(1, 8, 9, 9), w=(4, 8, 3, 3), dilations=[2, 2]),
    case(x=(1, 2, 6, 6), w=(4, 2, 3, 3)), case(x=(1, 8, 6), w=(4, 8, 3)),
    case(x=(1, 8, "H", 6), w=(8, 8, 3, 3)), case(x=(1, 8, 6, 6), w=(8, 8, 3, 3), elem=TensorProto.DOUBLE)])
def test_what_blocks_of_channels_are_not_for(given: dict[str, Any]) -> None:
    assert spelled(convolution(**given).SerializeToString(), True) is None


@needs("IREE")
@pytest.mark.parametrize("way", ["blocks", "im2col", "plain", "auto"])
@pytest.mark.parametrize("device", ["local-sync", "local-task"])
def test_iree_computes_them(way: str, device: str) -> None:
    nodes = [helper.make_node("Conv", ["x", "w1", "b1"], ["c1"], strides=[2, 2], pads=[1, 1, 1, 1]),
             helper.make_node("Relu", ["c1"], ["r1"]),
             helper.make_node("Conv", ["r1", "w2"], ["c2"], group=16, pads=[1, 1, 1, 1]),
             helper.make_node("Conv", ["c2", "w3"], ["c3"]),
             helper.make_node("Conv", ["c3", "w4"], ["y"], pads=[0, 1, 1, 0])]
    shapes = {"w1": (16, 3, 3, 3), "b1": (16,), "w2": (16, 1, 3, 3), "w3": (24, 16, 1, 1),
              "w4": (5, 24, 2, 2)}
    constants = {k: RNG.standard_normal(s).astype(np.float32) for k, s in shapes.items()}
    raw = model(nodes, [info("x", shape=[1, 3, 14, 13])], [info("y", shape=None)], constants,
                opset=17).SerializeToString()
    x = {"x": RNG.standard_normal((1, 3, 14, 13)).astype(np.float32)}
    options = {"convolutions": way, "device": device}
    made = ort.InferenceSession(raw, providers=[(IREEExecutionProvider.name, options)], fallback="error")
    want = ort.InferenceSession(raw).run(None, x)[0]
    np.testing.assert_allclose(made.run(None, x)[0], want, 1e-4, 1e-4 * np.abs(want).max())
