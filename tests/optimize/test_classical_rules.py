"""Labels that are texts are looked up behind a classifier: the same labels and scores as without the rule."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import orthrus

ML = "ai.onnx.ml"


def linear(rng: np.random.Generator, classes: int) -> dict[str, Any]:
    return {"coefficients": rng.standard_normal(4 * classes).tolist(),
            "intercepts": rng.standard_normal(classes).tolist()}


def one_score(rng: np.random.Generator, classes: int) -> dict[str, Any]:
    return {"coefficients": rng.standard_normal(4).tolist(), "intercepts": [0.1]}


def support_vectors(rng: np.random.Generator, classes: int) -> dict[str, Any]:
    pairs = classes * (classes - 1) // 2
    return {"kernel_type": "RBF", "kernel_params": [0.3, 0.0, 0.0], "vectors_per_class": [3] * classes,
            "rho": rng.standard_normal(pairs).tolist(),
            "support_vectors": rng.standard_normal(12 * classes).tolist(),
            "coefficients": rng.standard_normal(3 * classes * (classes - 1)).tolist()}


def trees(rng: np.random.Generator, classes: int) -> dict[str, Any]:
    made: dict[str, list[Any]] = {f"nodes_{name}": [] for name in (
        "treeids", "nodeids", "featureids", "values", "modes", "truenodeids", "falsenodeids")}
    leaves: dict[str, list[Any]] = {f"class_{name}": [] for name in ("treeids", "nodeids", "ids", "weights")}
    for tree, (node, mode) in itertools.product(range(3), enumerate(("BRANCH_LEQ", "LEAF", "LEAF"))):
        for name, value in zip(made, (tree, node, int(rng.integers(4)), float(rng.standard_normal()), mode,
                                      1 if not node else 0, 2 if not node else 0), strict=True):
            made[name].append(value)
        for label in range(classes if node else 0):
            for name, value in zip(leaves, (tree, node, label, float(rng.random())), strict=True):
                leaves[name].append(value)
    return made | leaves


KINDS = {"LinearClassifier": linear, "SVMClassifier": support_vectors, "TreeEnsembleClassifier": trees}


def both(kind: str, attrs: dict[str, Any], labels: list[str]) -> tuple[Any, list[Any], list[Any]]:
    """A session with every pass, its results, and those without."""
    node = helper.make_node(kind, ["x"], ["label", "score"], domain=ML, classlabels_strings=labels, **attrs)
    outs = [helper.make_tensor_value_info("label", TensorProto.STRING, None),
            helper.make_tensor_value_info("score", TensorProto.FLOAT, None)]
    ins = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])]
    graph = helper.make_graph([node], "g", ins, outs)
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17),
                                                                  helper.make_opsetid(ML, 3)])
    options = orthrus.SessionOptions()
    options.graph_optimization_level = orthrus.GraphOptimizationLevel.ORT_DISABLE_ALL
    x = np.random.default_rng(1).standard_normal((33, 4)).astype(np.float32)
    made = orthrus.InferenceSession(model)
    return made, made.run(None, {"x": x}), orthrus.InferenceSession(model, options).run(None, {"x": x})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("classes", (2, 3, 7))
@pytest.mark.parametrize("transform", ("NONE", "SOFTMAX", "LOGISTIC"))
def test_texts_are_looked_up(kind: str, classes: int, transform: str) -> None:
    attrs = KINDS[kind](np.random.default_rng(classes), classes)
    labels = [f"label {(5 * i) % classes}" for i in range(classes)]
    made, got, want = both(kind, {**attrs, "post_transform": transform}, labels)
    assert "pull_label_texts 1" in str(made.explain())
    np.testing.assert_array_equal(got[0], want[0])
    np.testing.assert_allclose(got[1], want[1], 1e-5, 1e-6)
    assert got[0].dtype == want[0].dtype and set(got[0]) <= set(labels)


def test_a_single_score_decides_between_texts() -> None:
    made, got, want = both("LinearClassifier", one_score(np.random.default_rng(0), 2), ["no", "yes"])
    assert "pull_label_texts 1" in str(made.explain())
    np.testing.assert_array_equal(got[0], want[0])
    np.testing.assert_allclose(got[1], want[1], 1e-5, 1e-6)


@pytest.mark.parametrize("labels", (["a"], ["a", "b", "c"]))
def test_labels_of_no_score_stay(labels: list[str]) -> None:
    """With one score the labels are "0" and "1", whatever else is listed."""
    made, got, want = both("LinearClassifier", one_score(np.random.default_rng(0), 1), labels)
    assert "pull_label_texts 1" not in str(made.explain())
    np.testing.assert_array_equal(got[0], want[0])
