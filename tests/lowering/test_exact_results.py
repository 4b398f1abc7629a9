"""Graphs on which a fusion, a declared type or a saved model must not change the answer."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from graphs import info, model
from onnx import helper
from oracle import Case, check, session
from support_graphs import Net

import orthrus as ort
from fuzz.graphs import LEVELS
from orthrus.ir import Graph, TensorType, element_of
from orthrus.load import load, save

F = np.float32


def answers(graph: Graph, feeds: dict[str, np.ndarray], folder: Path) -> list[list[Any]]:
    """The outputs at every level, then those of the saved model."""
    raw = save(graph)
    results = [session(ort, raw, level).run(None, feeds) for level in LEVELS]
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(folder / "saved.onnx")
    ort.InferenceSession(raw, options)
    onnx.checker.check_model(options.optimized_model_filepath)
    results.append(
        session(ort, Path(options.optimized_model_filepath).read_bytes(), LEVELS[0]).run(None, feeds)
    )
    return results


def agree(graph: Graph, feeds: dict[str, np.ndarray], folder: Path, rtol: float = 1e-5) -> None:
    first, *rest = answers(graph, feeds, folder)
    for other in rest:
        for a, b in zip(other, first, strict=True):
            np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol)


def array(*shape: int, dtype: Any = F) -> np.ndarray:
    return np.random.default_rng(3).normal(size=shape).astype(dtype)


# what a rule must leave alone


def test_a_gemm_added_to_itself(tmp_path: Path) -> None:
    n = Net()
    y = n.Gemm(n.input("x", 2, 3), n.constant(array(3, 4)))
    agree(n.outputs(n.Add(y, y)), {"x": array(2, 3)}, tmp_path)


def test_a_transpose_that_moves_nothing_before_a_gemm(tmp_path: Path) -> None:
    n = Net()
    t = n.Transpose(n.input("x", 3, 3), perm=[0, 1])
    agree(n.outputs(t, n.Gemm(t, n.constant(array(3, 3)))), {"x": array(3, 3)}, tmp_path)


@pytest.mark.parametrize("name", ["reciprocal", "hard sigmoid", "hard swish"])
def test_integers_round_between_steps(name: str, tmp_path: Path) -> None:
    n = Net()
    x = n.input("x", 6, dtype=np.int32)
    i = [np.array(v, np.int32) for v in (0, 1, 3, 6)]
    if name == "reciprocal":
        y = n.Mul(n.Div(i[1], x), np.array([5, 6, 7, 8, 9, 10], np.int32))
    else:
        y = n.Clip(n.Add(x, i[2]), i[0], i[3])
        y = n.Div(n.Mul(x, y) if name == "hard swish" else y, i[3])
    feeds = {"x": np.array([1, 2, -2, 3, 5, -1], np.int32)}
    agree(n.outputs(y), feeds, tmp_path)


def test_a_number_of_high_rank_widens_what_has_no_rank(tmp_path: Path) -> None:
    proto = model(
        [
            helper.make_node("Sigmoid", ["x"], ["s"]),
            helper.make_node("Div", ["o", "x"], ["r"]),
            helper.make_node("Mul", ["r", "s"], ["y"]),
        ],
        [info("x", shape=None)],
        [info("y", shape=None)],
        {"o": np.ones((1, 1, 1), F)},
    )
    x = np.array([1.0, 2.0], F)
    for level in LEVELS:
        (y,) = session(ort, proto, level).run(None, {"x": x})
        assert y.shape == (1, 1, 2)


# attention and its masks


def attention(
    mask: Any, keys: Any = "K", dtype: Any = F, where: float | None = None, scale: float = 0.5
) -> Net:
    """softmax(q k' * scale + mask) v in parts; `mask` holds the declared dimensions."""
    n = Net()
    q = n.input("q", "N", 2, "S", 4, dtype=dtype)
    k, v = (n.input(name, "N", 2, "K", 4, dtype=dtype) for name in "kv")
    x = n.Mul(n.MatMul(q, n.Transpose(k, perm=[0, 1, 3, 2])), dtype(scale))
    if where is not None:
        x = n.Where(n.input("mask", *mask, dtype=bool), x, dtype(where))
    elif mask is not None:
        x = n.Add(x, n.input("mask", *mask, dtype=dtype))
    n.outputs(n.MatMul(n.Softmax(x, axis=-1), v))
    return n


def qkv(dtype: Any = F, size: float = 1) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    shapes = {"q": (2, 2, 3, 4), "k": (2, 2, 5, 4), "v": (2, 2, 5, 4)}
    return {name: (rng.normal(size=shape) * size).astype(dtype) for name, shape in shapes.items()}


@pytest.mark.parametrize("shape, declared", [
    *itertools.product([(2, 1, 3, 5), (2, 1, 3, 1), (1, 1, 1, 5), (1, 1, 1, 1)],
                       [(None,) * 4, ("A", "B", "C", "D")]),
    *itertools.product([(2, 1, 3, 5), (2, 1, 3, 1)], [("N", 1, "S", "M")]),
    ((2, 1, 3, 5), ("N", 1, "S", "K"))])
def test_masks_whose_last_dimension_is_not_known(shape: Any, declared: Any, tmp_path: Path) -> None:
    agree(attention(declared).graph, {**qkv(), "mask": array(*shape)}, tmp_path)


def test_a_mask_that_widens_the_scores(tmp_path: Path) -> None:
    n = attention(("M", 1, 1, "K"))
    feeds = {name: a[:1] if name != "mask" else a for name, a in qkv().items()}
    agree(n.graph, {**feeds, "mask": array(2, 1, 1, 5)}, tmp_path)


@pytest.mark.parametrize("least", [-1e9, -1e12, float(np.finfo(F).min)])
def test_rows_excluded_by_a_finite_number_are_uniform(least: float, tmp_path: Path) -> None:
    keep = np.ones((2, 1, 3, 5), bool)
    keep[0, 0, 1] = False
    agree(attention(("N", 1, "S", "K"), where=least).graph, {**qkv(size=9), "mask": keep}, tmp_path)


def test_batches_that_broadcast(tmp_path: Path) -> None:
    n = Net()
    q, k, v = n.input("q", "N", 2, 3, 4), n.input("k", "M", 2, 5, 4), n.input("v", "M", 2, 5, 4)
    n.outputs(n.MatMul(n.Softmax(n.MatMul(q, n.Transpose(k, perm=[0, 1, 3, 2])), axis=-1), v))
    feeds = qkv()
    agree(n.graph, {"q": feeds["q"], "k": feeds["k"][:1], "v": feeds["v"][:1]}, tmp_path)


def test_double_precision_stays(tmp_path: Path) -> None:
    feeds = qkv(np.float64)
    agree(attention(None, dtype=np.float64, scale=0.3).graph, feeds, tmp_path, 1e-12)
    agree(attention(None, dtype=np.float64, scale=0.5).graph, feeds, tmp_path, 1e-12)
    n = Net()
    x = n.input("x", 4, dtype=np.float64)
    n.outputs(n.Mul(x, n.Sigmoid(n.Mul(x, np.float64(1.702)))))
    agree(n.graph, {"x": array(4, dtype=np.float64)}, tmp_path, 1e-12)


# saved models


def test_a_newer_operator_raises_the_opset(tmp_path: Path) -> None:
    n = Net(20)
    x = n.input("x", 2, 3)
    n.outputs(n.Mul(x, n.Sigmoid(x)))
    agree(n.graph, {"x": array(2, 3)}, tmp_path)
    saved = onnx.load(tmp_path / "saved.onnx")
    assert [node.op_type for node in saved.graph.node] == ["Swish"] and not saved.functions
    assert saved.opset_import[0].version == 24


def test_nodes_of_a_branch_get_names_of_their_own(tmp_path: Path) -> None:
    bodies = {
        f"{which}_branch": helper.make_graph(
            [helper.make_node(op, ["h"], [f"{which}_out"], name="n0")], which, [], [info(f"{which}_out")]
        )
        for which, op in (("then", "Exp"), ("else", "Neg"))
    }
    nodes = [
        helper.make_node("Relu", ["x"], ["h"], name="n0"),
        helper.make_node("If", ["c"], ["y"], name="n1", **bodies),
    ]
    proto = model(nodes, ["x"], ["y"], {"c": np.array(True)})
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "saved.onnx")
    ort.InferenceSession(proto.SerializeToString(), options)
    names = [node.name for node in onnx.load(tmp_path / "saved.onnx").graph.node]
    assert len(names) == len(set(names)) == 2


def test_a_fresh_name_is_none_of_an_initializer() -> None:
    graph = load(model([helper.make_node("Add", ["x", "c__1"], ["y"])], ["x"], ["y"], {"c__1": array(2, 3)}))
    kept = graph.initializers["c__1"]
    made = graph.constant(array(1), "c")
    assert made.name != "c__1" and graph.initializers["c__1"] is kept


# declared types


@pytest.mark.parametrize("op", ["GroupNormalization", "MeanVarianceNormalization"])
def test_function_operators_declare_their_type(op: str) -> None:
    rest, attrs = ([array(4), array(4)], {"num_groups": 2}) if op.startswith("G") else ([], {})
    assert check(Case(op, [array(2, 4, 3, 3), *rest], attrs, opset=21)) is None


def test_transposed_convolutions_declare_what_they_compute() -> None:
    x, w = array(1, 2, 5, 5), array(2, 3, 3, 3)
    for attrs in (
        {"auto_pad": "SAME_LOWER", "strides": [2, 2], "output_padding": [1, 1]},
        {"strides": [2, 2], "output_padding": [1, 0], "pads": [1, 1, 0, 0]},
        {"output_shape": [12, 11], "strides": [2, 2]},
    ):
        assert check(Case("ConvTranspose", [x, w], attrs)) is None
    n = Net()
    y = n.ConvTranspose(n.input("x", "N", 2, "H", 5), n.constant(w), pads=[9, 0, 9, 0])
    assert y.type == TensorType(element_of(F), ("N", 3, None, 7))


def test_an_adaptive_sample_count_follows_the_boxes_precision() -> None:
    rois = np.array([[0.3, 0.66, 1.03, 2.66]], F)
    case = Case("RoiAlign", [array(1, 1, 4, 4), rois, np.zeros(1, np.int64)], {"output_height": 1}, opset=16)
    assert check(case, pytest.importorskip("onnxruntime")) is None


@pytest.mark.parametrize("seed", range(20))
def test_corners_of_regions_are_rounded_as_in_onnxruntime(seed: int) -> None:
    """Halves, and bins whose ends are whole numbers but for the boxes' precision."""
    rng = np.random.default_rng(seed)
    low = rng.integers(-6, 60, (8, 2)) / 2
    rois = np.concatenate([np.zeros((8, 1)), low, low + rng.integers(-4, 80, (8, 2)) / 2], 1).astype(F)
    case = Case("MaxRoiPool", [array(1, 2, 33, 35), rois], {
        "pooled_shape": rng.integers(1, 8, 2).tolist(), "spatial_scale": float(rng.choice((1, 0.5, 0.25)))},
        opset=16)
    assert check(case, pytest.importorskip("onnxruntime")) is None


@pytest.mark.parametrize("dtype, near", [(np.float16, 1.001), (ml_dtypes.bfloat16, 1.0078125), (F, 1.00001)])
def test_a_constant_that_is_not_quite_the_right_one(dtype: Any, near: float, tmp_path: Path) -> None:
    for value in (1.0, near):
        n = Net()
        x = n.input("x", 5, dtype=dtype)
        n.outputs(n.Log(n.Add(n.Exp(x), np.array(value, dtype))))
        passes = {entry.name: entry.count for entry in session(ort, save(n.graph)).explain().passes}
        assert bool(passes["fuse_softplus"]) == (value == 1.0)
