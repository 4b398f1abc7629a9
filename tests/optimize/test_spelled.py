"""Operators put as others: the same results as their definitions, for random attributes, shapes and types."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from graphs import info, model
from onnx import helper

from orthrus import errors
from orthrus.optimize.rules import spelled
from orthrus.run.config import Config
from orthrus.run.engine import Engine

ML, MS = "ai.onnx.ml", "com.microsoft"
Rng = np.random.Generator
Made = tuple[str, str, list[np.ndarray], dict[str, np.ndarray], dict[str, Any], int]
"""Operator, domain, what is fed, what is held behind that, attributes, outputs."""


def numbers(rng: Rng, *shape: int, dtype: Any = np.float32) -> np.ndarray:
    made = rng.standard_normal(shape).astype(dtype)
    for special in (np.nan, np.inf, -np.inf, 0.0):
        made[rng.random(shape) < 0.03] = special
    return made


def plain(rng: Rng, *shape: int, dtype: Any = np.float32) -> np.ndarray:
    return rng.standard_normal(shape).astype(dtype)


def rows(rng: Rng) -> int:
    return int(rng.choice([0, 1, 2, 3, 33]))


def expand_dims(rng: Rng) -> Made:
    return ("ExpandDims", MS, [numbers(rng, 2, 3)], {"a": np.array(rng.integers(-3, 3), np.int32)}, {}, 1)


def imputer(rng: Rng) -> Made:
    width, whole = int(rng.integers(1, 6)), bool(rng.integers(2))
    many = width if rng.integers(2) else 1
    if whole:
        x = rng.integers(-2, 3, (rows(rng), width))
        return "Imputer", ML, [x], {}, {"imputed_value_int64s": list(range(9, 9 + many)),
                                        "replaced_value_int64": int(rng.integers(-2, 3))}, 1
    old = float(rng.choice([np.nan, 0.0, np.inf]))
    dtype = rng.choice([np.float32, np.float64])
    return "Imputer", ML, [numbers(rng, rows(rng), width, dtype=dtype)], {}, {
        "imputed_value_floats": plain(rng, many).tolist(), "replaced_value_float": old}, 1


def vectorizer(rng: Rng) -> Made:
    n, widths = rows(rng), rng.integers(1, 5, 3).tolist()
    fed = [rng.integers(0, 9, (n, w)) if i else numbers(rng, n, w) for i, w in enumerate(widths)]
    return "FeatureVectorizer", ML, fed[:1] if rng.integers(2) else fed[1:], {}, {}, 1


def one_hot(rng: Rng) -> Made:
    shape = (rows(rng), 2)[:int(rng.integers(1, 3))]
    dtype = rng.choice([np.int32, np.int64, np.float32, np.float64])
    x = rng.integers(-3, 9, shape).astype(dtype)
    if x.dtype.kind == "f":
        for special in (np.nan, np.inf, -np.inf, 0.5, -0.5, 2.75, 1e30, -1e30):
            x[rng.random(shape) < 0.05] = special
    return "OneHotEncoder", ML, [x], {}, {
        "cats_int64s": rng.permutation(np.arange(-2, 7)).tolist()}, 1


def labels(rng: Rng) -> Made:
    keys = rng.choice(np.arange(-20, 20), int(rng.integers(1, 20)), replace=False)
    x = rng.integers(-25, 25, (rows(rng), 3))
    values = plain(rng, len(keys)).tolist()
    if rng.integers(2):
        wide = x.astype(np.float32)
        for special in (np.nan, np.inf, -np.inf, 0.5, -0.0, 1e30):
            wide[rng.random(x.shape) < 0.05] = special
        return "LabelEncoder", ML, [wide], {}, {"keys_floats": keys.astype(float).tolist(),
                                               "values_floats": values, "default_float": 7.0}, 1
    return "LabelEncoder", ML, [x], {}, {"keys_int64s": keys.tolist(), "values_floats": values}, 1


def loss(name: str) -> Callable[[Rng], Made]:
    def made(rng: Rng) -> Made:
        around = [(), (3,), (2, 3)][int(rng.integers(3))]
        n, classes = int(rng.integers(1, 5)), int(rng.integers(1, 7))
        t = rng.integers(0, classes, (n, *around)).astype(rng.choice([np.int32, np.int64]))
        attrs: dict[str, Any] = {"reduction": str(rng.choice(["none", "sum", "mean"]))}
        if rng.integers(2):
            attrs["ignore_index"] = int(rng.choice([-1, 0, classes, -100]))
            t[rng.random(t.shape) < 0.3] = attrs["ignore_index"]
        dtype = rng.choice([np.float32, np.float64])
        fed = [plain(rng, n, classes, *around, dtype=dtype), t]
        if rng.integers(2):
            fed.append(np.abs(plain(rng, classes, dtype=dtype)) + 1)
        outputs = int(rng.integers(1, 3)) if name.startswith("Softmax") else 1
        return name, "", fed, {}, attrs, outputs
    return made


def affine(rng: Rng) -> Made:
    n = int(rng.integers(2, 4))
    size = rng.integers(1, 6, n + 2)
    return "AffineGrid", "", [plain(rng, int(size[0]), n, n + 1)], {"s": size}, {
        "align_corners": int(rng.integers(2))}, 1


def distances(rng: Rng) -> Made:
    dtype = rng.choice([np.float32, np.float64])
    a, b = (plain(rng, int(rng.integers(1, 9)), 4, dtype=dtype) for _ in range(2))
    return "CDist", MS, [a, b], {}, {"metric": str(rng.choice(["euclidean", "sqeuclidean"]))}, 1


def similar(rng: Rng) -> dict[str, Any]:
    return {"kernel_type": str(rng.choice(["LINEAR", "POLY", "RBF", "SIGMOID"])),
            "kernel_params": [0.3, 0.5, 2.0]}


def regressor(rng: Rng) -> Made:
    count = int(rng.integers(1, 7))
    return "SVMRegressor", ML, [plain(rng, rows(rng), 3)], {}, {
        **similar(rng), "n_supports": count, "coefficients": plain(rng, count).tolist(), "rho": [0.2],
        "support_vectors": plain(rng, count * 3).tolist(), "one_class": int(rng.integers(2))}, 1


def classifier(rng: Rng) -> Made:
    classes = int(rng.integers(2, 5))
    many = rng.integers(1, 4, classes).tolist()
    transform = str(rng.choice(["NONE", "LOGISTIC", *(["SOFTMAX"] if classes > 2 else [])]))
    x = plain(rng, rows(rng), 3)
    x[rng.random(x.shape) < 0.02] = np.nan
    return "SVMClassifier", ML, [x], {}, {
        **similar(rng), "vectors_per_class": many, "post_transform": transform,
        "coefficients": plain(rng, sum(many) * (classes - 1)).tolist(),
        "rho": plain(rng, classes * (classes - 1) // 2).tolist(),
        "support_vectors": plain(rng, sum(many) * 3).tolist(),
        "classlabels_ints": rng.permutation(np.arange(classes) * 3).tolist()}, 2


CASES = {each.__name__: each for each in (expand_dims, imputer, vectorizer, one_hot, labels,
                                          affine, distances, regressor, classifier)}
CASES |= {"likelihood": loss("NegativeLogLikelihoodLoss"), "entropy": loss("SoftmaxCrossEntropyLoss")}


SPARED: dict[str, Made] = {
    "expand_dims": ("ExpandDims", MS, [np.ones(3, np.float32), np.array(0, np.int32)], {}, {}, 1),
    "imputer": ("Imputer", ML, [np.ones((1, 2, 3), np.float32)], {}, {"imputed_value_floats": [1.0]}, 1),
    "vectorizer": ("FeatureVectorizer", ML, [np.ones((2, 3), np.float32)], {}, {"inputdimensions": [2]}, 1),
    "one_hot": ("OneHotEncoder", ML, [np.ones(2, np.int64)], {}, {"cats_int64s": [1, 2], "zeros": 0}, 1),
    "labels": ("LabelEncoder", ML, [np.ones(2, np.int64)], {}, {"keys_int64s": [1, 1 << 20],
                                                               "values_floats": [1.0, 2.0]}, 1),
    "affine": ("AffineGrid", "", [np.ones((1, 2, 3), np.float32), np.array([1, 1, 2, 2])], {}, {}, 1),
    "distances": ("CDist", MS, [np.ones((2, 2), np.float32)] * 2, {}, {"metric": "cosine"}, 1),
    "regressor": ("SVMRegressor", ML, [np.ones((2, 2), np.float32)], {}, {
        "coefficients": [1.0], "support_vectors": [1.0, 1.0], "n_supports": 1, "rho": [0.0],
        "kernel_type": "OTHER"}, 1),
    "classifier": ("SVMClassifier", ML, [np.ones((2, 2), np.float32)], {}, {
        "coefficients": [1.0, 1.0], "support_vectors": [1.0] * 4, "vectors_per_class": [1, 1], "rho": [0.0],
        "classlabels_ints": [0, 1], "prob_a": [1.0], "prob_b": [0.0]}, 2),
    "likelihood": ("NegativeLogLikelihoodLoss", "", [np.ones((1, 2), np.float16), np.zeros(1, np.int64)],
                   {}, {}, 1),
    "entropy": ("SoftmaxCrossEntropyLoss", "", [np.ones((1, 2), np.float16), np.zeros(1, np.int64)],
                {}, {}, 1),
}


@pytest.mark.parametrize("which", SPARED)
def test_what_is_left_alone(which: str) -> None:
    written, _ = proto(SPARED[which])
    assert SPARED[which][0] in {n.op_type for n in Engine(written, Config()).graph.nodes}


def test_every_rule_is_tried() -> None:
    assert len(spelled.EXTENDED) == len(CASES) == len(SPARED) and set(CASES) == set(SPARED)


def proto(made: Made) -> tuple[bytes, dict[str, np.ndarray]]:
    name, domain, fed, held, attrs, outputs = made
    feeds = {f"x{i}": x for i, x in enumerate(fed)}
    names = [f"y{i}" for i in range(outputs)]
    node = helper.make_node(name, [*feeds, *held], names, domain=domain, **attrs)
    inputs = [info(k, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape) for k, v in feeds.items()]
    whole = model([node], inputs, [info(n, 0, None) for n in names], held, opset=20,
                  domains={ML: 3, MS: 1})
    return whole.SerializeToString(), feeds


@pytest.mark.parametrize("which", CASES)
def test_the_definition_says_the_same(which: str) -> None:
    rng = np.random.default_rng(sum(map(ord, which)))
    for _ in range(25):
        made = CASES[which](rng)
        written, feeds = proto(made)
        spelled, plainly = Engine(written, Config()), Engine(written, Config(level=0))
        assert made[0] not in {n.op_type for n in spelled.graph.nodes}, made[4]
        for a, b in zip(spelled.run(None, feeds), plainly.run(None, feeds), strict=True):
            assert a.dtype == b.dtype and a.shape == b.shape
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("label", [-1, 5, 1 << 20])
@pytest.mark.parametrize("name", ["NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"])
def test_a_label_that_there_is_not_is_an_error(name: str, label: int) -> None:
    for kind in (np.int32, np.int64):
        fed = [np.ones((2, 5), np.float32), np.array([0, label], kind)]
        written, feeds = proto((name, "", fed, {}, {}, 1))
        for _ in range(2):
            with pytest.raises(errors.InvalidArgument):
                Engine(written, Config()).run(None, feeds)
