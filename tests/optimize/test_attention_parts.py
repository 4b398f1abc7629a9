"""A fused attention is what its parts are, NaN and infinities included: of each provider, and of the model
that is saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attention_parts import TYPES, attention
from onnx import TensorProto, helper, numpy_helper
from skips import needs

import orthrus
from fuzz import judge

CPU = "CPUExecutionProvider"
PROVIDERS = [CPU, pytest.param("DnnlExecutionProvider", marks=needs("oneDNN")),
             pytest.param("IREEExecutionProvider", marks=[needs("IREE"), pytest.mark.thorough]),
             pytest.param("SpaceMITExecutionProvider", marks=[needs("emulator"), pytest.mark.slow])]
COUNTS = {CPU: 15, "DnnlExecutionProvider": 30, "IREEExecutionProvider": 12,
          "SpaceMITExecutionProvider": 12}


def fused(session: Any) -> list[str]:
    return [n.kind for n in session._sess._engine.graph.nodes if n.kind.endswith("Attention")]


def same(got: np.ndarray, wanted: np.ndarray, tolerance: float, what: str) -> None:
    np.testing.assert_array_equal(np.isnan(got), np.isnan(wanted), what)
    np.testing.assert_allclose(got.astype(np.float64), wanted.astype(np.float64), tolerance, tolerance,
                               err_msg=what)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_random_forms(provider: str) -> None:
    random_forms(provider, range(COUNTS[provider]))


@pytest.mark.slow
def test_more_random_forms() -> None:
    random_forms(CPU, range(COUNTS[CPU], 300))


def random_forms(provider: str, seeds: range) -> None:
    """Against the definitions of the parts."""
    seen: list[str] = []
    for seed in seeds:
        model, feeds, dtype = attention(seed)
        session = orthrus.InferenceSession(model, providers=[provider, CPU][provider == CPU:])
        seen += fused(session)
        wanted = judge.session(orthrus, model, "ORT_DISABLE_ALL", 1, judge.NUMPY).run(None, feeds)[0]
        same(session.run(None, feeds)[0], wanted, TYPES[dtype], f"seed {seed}")
    if provider != "IREEExecutionProvider":  # which takes the parts
        assert len(seen) > 0.7 * len(seeds) and len(set(seen)) == 2


@pytest.mark.slow
def test_onnxruntime_s_are_the_same() -> None:
    """As far as its operators are exact: its softmax of halves is not."""
    peer = pytest.importorskip("onnxruntime")
    for seed in range(150):
        model, feeds, dtype = attention(seed, (np.float32, np.float64))
        wanted = judge.session(peer, model, "ORT_DISABLE_ALL", 1).run(None, feeds)[0]
        same(orthrus.InferenceSession(model).run(None, feeds)[0], wanted, TYPES[dtype], f"seed {seed}")


@pytest.mark.slow
def test_saved_models_keep_it(tmp_path: Path) -> None:
    """They hold the parts, which onnxruntime runs too, and which are fused again."""
    peer = pytest.importorskip("onnxruntime")
    again = 0
    for seed in range(100):
        model, feeds, dtype = attention(seed, (np.float32,))
        options = orthrus.SessionOptions()
        options.optimized_model_filepath = str(tmp_path / "saved.onnx")
        session = orthrus.InferenceSession(model, options)
        wanted = session.run(None, feeds)[0]
        saved = (tmp_path / "saved.onnx").read_bytes()
        loaded = orthrus.InferenceSession(saved)
        assert fused(loaded) == fused(session), f"seed {seed}"
        again += "orthrus::SoftmaxAttention" in fused(loaded)
        same(loaded.run(None, feeds)[0], wanted, TYPES[dtype], f"seed {seed}")
        if not {"Attention"} & set(fused(session)):
            theirs = judge.session(peer, saved, "ORT_DISABLE_ALL", 1).run(None, feeds)[0]
            same(theirs, wanted, TYPES[dtype], f"seed {seed}")
    assert again > 40


def stacked(size: Any, mask: str = "", wrong: str = "") -> tuple[bytes, dict[str, np.ndarray]]:
    """Attention of three texts whose heads are stacked in the batch's axis. `size`: the batch and the length,
    or their names; `wrong`: what is not as in networks."""
    batch, length = size
    node = helper.make_node
    nodes = [node("Shape", ["q"], ["b"], end=1), node("Shape", ["q"], ["s"], start=1, end=2),
             node("Mul", ["b", "two"], ["rows"]),
             node("Concat", ["rows", "rest", "four"], ["joined"], axis=0),
             node("Concat", ["b", "two", "s", "s"], ["apart"], axis=0),
             node("Concat", ["rows", "s", "s"], ["together"], axis=0),
             node("Concat", [*(["two", "b"] if wrong == "order" else ["b", "two"]), "s", "four"], ["back"],
                  axis=0), node("Mul", ["q", "half"], ["q0"])]
    for name in ("q0", "k", "v"):
        axes = [2, 0, 1, 3] if wrong == "keys" and name == "k" else [0, 2, 1, 3]
        nodes += [node("Reshape", [name, "heads"], [f"{name}_4"]),
                  node("Transpose", [f"{name}_4"], [f"{name}_h"], perm=axes),
                  node("Reshape", [f"{name}_h", "joined"], [f"{name}_3"])]
    nodes += [node("Transpose", ["k_3"], ["kt"], perm=[0, 2, 1]), node("MatMul", ["q0_3", "kt"], ["raw"])]
    scores = "raw"
    if mask:
        nodes += [node("Reshape", ["raw", "apart"], ["raw_4"]),
                  node("Add", ["raw_4", "mask"], ["masked"]) if mask == "added"
                  else node("Where", ["mask", "raw_4", "low"], ["masked"]),
                  node("Reshape", ["masked", "together"], ["scores"])]
        scores = "scores"
    nodes += [node("Softmax", [scores], ["p"], axis=2), node("MatMul", ["p", "v_3"], ["y_3"]),
              node("Reshape", ["y_3", "back"], ["y_4"]),
              node("Transpose", ["y_4"], ["y_h"], perm=[0, 2, 1, 3]),
              node("Reshape", ["y_h", "flat"], ["y"])]
    info = helper.make_tensor_value_info
    kind = TensorProto.FLOAT if mask == "added" else TensorProto.BOOL
    inputs = [info(name, TensorProto.FLOAT, [batch, length, 8]) for name in "qkv"]
    inputs += [info("mask", kind, [batch, 1, length, length])] if mask else []
    constants = {"two": np.array([2]), "four": np.array([4]), "rest": np.array([-1]),
                 "heads": np.array([0, 0, 2, 4]), "flat": np.array([0, 0, -1]), "half": np.float32(0.5),
                 "low": np.float32(-3e38)}
    graph = helper.make_graph(
        nodes, "stacked", inputs,
        [info(name, TensorProto.FLOAT, None) for name in (["y", "p"] if wrong == "read" else ["y"])],
        [numpy_helper.from_array(v, k) for k, v in constants.items()])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    rng = np.random.default_rng(0)
    feeds = {name: rng.standard_normal((3, 5, 8)).astype(np.float32) for name in "qkv"}
    if mask:
        drawn = rng.standard_normal((3, 1, 5, 5)).astype(np.float32)
        feeds["mask"] = drawn if mask == "added" else drawn > -1
    return model.SerializeToString(), feeds


@pytest.mark.parametrize("mask", ["", "added", "chosen"])
@pytest.mark.parametrize("size", [("batch", "length"), (3, 5), ("batch", 5)])
def test_heads_stacked_in_the_axis_of_the_batch(size: Any, mask: str) -> None:
    model, feeds = stacked(size, mask)
    session = orthrus.InferenceSession(model)
    [node] = [n for n in session._sess._engine.graph.nodes if n.kind.endswith("Attention")]
    assert [len(value.shape) for value in node.inputs[:3]] == [3, 3, 3]
    assert not any(n.op_type in ("Transpose", "Reshape", "Mul") for n in session._sess._engine.graph.nodes)
    wanted = judge.session(orthrus, model, "ORT_DISABLE_ALL", 1, judge.NUMPY).run(None, feeds)[0]
    same(session.run(None, feeds)[0], wanted, 1e-5, mask)


@pytest.mark.parametrize("wrong", ["order", "keys", "read"])
@pytest.mark.parametrize("mask", ["", "added"])
def test_heads_that_are_stacked_otherwise(wrong: str, mask: str) -> None:
    """In another order on one side, or with weights that somebody reads: nothing changes."""
    model, feeds = stacked(("batch", "length"), mask, wrong)
    wanted = judge.session(orthrus, model, "ORT_DISABLE_ALL", 1, judge.NUMPY).run(None, feeds)
    for got, each in zip(orthrus.InferenceSession(model).run(None, feeds), wanted, strict=True):
        same(got, each, 1e-5, wrong)
