"""Scaling, row norms, linear models and feature extraction as steps: what their definitions give."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from draws import draws
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper

import orthrus

ML = "ai.onnx.ml"


def both(nodes: list[Any], inputs: dict[str, np.ndarray], outputs: list[str], native: bool = True,
         uses: tuple[str, ...] = ("0", "1")) -> list[list[Any]]:
    """The results by numpy and by kernels, where all nodes have to be `native`."""
    def described(name: str, a: np.ndarray | None) -> Any:
        if a is None:
            return helper.make_empty_tensor_value_info(name)
        return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
    graph = helper.make_graph(nodes, "g", [described(n, a) for n, a in inputs.items()],
                              [described(n, None) for n in outputs])
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid(ML, 3)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()
    found = []
    for use in uses:
        session = orthrus.InferenceSession(model, providers=[("CPUExecutionProvider", {"use_codegen": use})])
        found.append(session.run(None, inputs))
        if use == "1" and native:
            assert not session.explain().numpy
    return found


def agree(nodes: list[Any], inputs: dict[str, np.ndarray], outputs: list[str]) -> None:
    wanted, found = both(nodes, inputs, outputs)
    for want, y in zip(wanted, found, strict=True):
        assert y.dtype == want.dtype
        np.testing.assert_allclose(y, want, rtol=1e-5, atol=1e-6)


def features(seed: int, dtype: str, *shape: int) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal(shape) * 5).astype(dtype)


DTYPES = st.sampled_from(["float32", "int32", "int64"])
SHAPES = st.sampled_from([(1, 4), (3, 1), (7, 30), (40, 5), (6,), (1,)])


@given(seed=st.integers(0, 99), shape=SHAPES, dtype=DTYPES, one=st.booleans(),
       norm=st.sampled_from(["L1", "L2", "MAX"]))
@draws(25)
def test_scaled_and_normalized(seed: int, shape: tuple[int, ...], dtype: str, one: bool, norm: str) -> None:
    count = 1 if one else shape[-1]
    x = features(seed, dtype, *shape)
    x[:1] = 0
    shift, factor = (features(i, "float32", count).tolist() for i in (1, 2))
    scaler = helper.make_node("Scaler", ["x"], ["s"], domain=ML, offset=shift, scale=factor)
    agree([scaler, helper.make_node("Normalizer", ["s"], ["y"], domain=ML, norm=norm)], {"x": x}, ["y", "s"])
    agree([helper.make_node("Normalizer", ["x"], ["y"], domain=ML, norm=norm)], {"x": x}, ["y"])


@given(seed=st.integers(0, 99), shape=SHAPES, dtype=DTYPES, classes=st.integers(2, 20), shifted=st.booleans(),
       transform=st.sampled_from(["NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO"]))
@draws(25)
def test_linear_models(seed: int, shape: tuple[int, ...], dtype: str, classes: int, shifted: bool,
                       transform: str) -> None:
    x, weights = features(seed, dtype, *shape), features(seed + 1, "float32", classes * shape[-1]) / 10
    attrs: dict[str, Any] = {"coefficients": weights.tolist(), "post_transform": transform, "domain": ML}
    if shifted:
        attrs["intercepts"] = features(seed + 2, "float32", classes).tolist()
    agree([helper.make_node("LinearClassifier", ["x"], ["label", "y"], classlabels_ints=range(5, 5 + classes),
                            **attrs)], {"x": x}, ["label", "y"])
    agree([helper.make_node("LinearRegressor", ["x"], ["y"], targets=classes, **attrs)], {"x": x}, ["y"])


@given(seed=st.integers(0, 99), shape=st.sampled_from([(6,), (3, 6), (2, 3, 6)]), count=st.integers(1, 9),
       dtype=st.sampled_from(["float32", "int64", "float64", "int32"]), axis=st.sampled_from([(0,), (1, 0)]))
@draws(25)
def test_features_by_index(seed: int, shape: tuple[int, ...], count: int, dtype: str, axis: tuple[int, ...]
                           ) -> None:
    indices = np.random.default_rng(seed).integers(0, 6, count).reshape((1,) * (len(axis) - 1) + (-1,))
    node = helper.make_node("ArrayFeatureExtractor", ["x", "i"], ["y"], domain=ML)
    agree([node], {"x": features(seed, dtype, *shape), "i": indices}, ["y"])


@pytest.mark.parametrize("index", [-1, 6])
def test_a_feature_that_is_not_there(index: int) -> None:
    node = helper.make_node("ArrayFeatureExtractor", ["x", "i"], ["y"], domain=ML)
    with pytest.raises(Exception, match="index is out of range"):
        both([node], {"x": features(0, "float32", 2, 6), "i": np.array([1, index])}, ["y"], uses=("1",))


@pytest.mark.parametrize("attrs", [{"norm": "MAX"}])
def test_what_is_left_to_numpy(attrs: dict[str, Any]) -> None:
    nodes = [helper.make_node("Normalizer", ["x"], ["s"], domain=ML, **attrs),
             helper.make_node("Neg", ["s"], ["y"])]
    wanted, found = both(nodes, {"x": features(3, "float32", 4, 5)}, ["y"], native=False)
    np.testing.assert_allclose(found[0], wanted[0], rtol=1e-6)
