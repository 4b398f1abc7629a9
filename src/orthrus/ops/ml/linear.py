"""Linear and support vector models of ai.onnx.ml: rows of features in; labels and float32 scores, or
targets, out."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...ir import ElementType, TensorType, Type, Value
from ..define import define
from ..functions import sigmoid, sum_of
from .encoders import ML, array_of

TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")


def probit(p: np.ndarray) -> np.ndarray:
    """The normal quantile function by Winitzki's approximation of the inverse error function, relative
    error 2e-3."""
    x = 2 * p - 1
    log = np.log((1 - x) * (1 + x))
    v = 2 / (3.14159 * 0.147) + 0.5 * log
    root = np.sqrt(-v + np.sqrt(v * v - log / 0.147))
    return np.sqrt(2) * np.where(x < 0, -root, root)


def _softmax(x: np.ndarray, keep_zero: bool) -> np.ndarray:
    """Softmax of rows; with `keep_zero`, scores of zero stay zero and do not count."""
    if not x.size:
        return x
    e = np.exp(x - x.max(-1, keepdims=True))
    if keep_zero:
        e = np.where(np.abs(x) > 1e-7, e, 0)
    total = sum_of(e, -1)
    return e / np.where(total == 0, 1, total)


def _known(transform: str) -> None:
    if transform not in TRANSFORMS:
        raise ValueError(f"post_transform is {transform!r}, expected one of {', '.join(TRANSFORMS)}")


def transformed(scores: np.ndarray, transform: str) -> np.ndarray:
    """Scores [rows, classes] after a post_transform. Raises ValueError for a name ONNX does not know."""
    _known(transform)
    if transform == "PROBIT":
        return probit(scores)
    if transform == "LOGISTIC":
        return sigmoid(scores)
    if transform == "NONE":
        return scores
    return _softmax(scores, transform == "SOFTMAX_ZERO")


def transformed_targets(y: np.ndarray, transform: str) -> np.ndarray:
    """Targets [rows, targets] after a post_transform; of a single one, onnxruntime transforms only by
    PROBIT."""
    if y.shape[1] == 1 and transform in TRANSFORMS and transform != "PROBIT":
        return y
    return transformed(y, transform)


def two_columns(score: np.ndarray, transform: str, mirrored: bool) -> np.ndarray:
    """The scores of both classes from that of the second; the first's is 1 - score, or -score if
    `mirrored`."""
    _known(transform)
    if transform == "LOGISTIC":
        return np.stack((sigmoid(-score), sigmoid(score)), 1)
    both = np.stack((-score if mirrored else 1 - score, score), 1)
    return probit(both) if transform == "PROBIT" else both


def labels_of(strings: list[str] | None, ints: Any) -> np.ndarray:
    """The class labels: an object array of strings, or int64; empty if none are given."""
    return array_of(strings) if strings else np.asarray([] if ints is None else ints, np.int64)


def rows_of(x: np.ndarray) -> np.ndarray:
    """Features as a matrix of float32, or float64 where they are; a vector is one row."""
    if x.ndim < 2:
        table = x.reshape(1, -1)
    else:
        table = x.reshape(len(x), int(np.prod(x.shape[1:])))
    return table.astype(np.float64 if x.dtype == np.float64 else np.float32, copy=False)


def _weights(coefficients: list[float], rows: int, x: np.ndarray) -> np.ndarray:
    """`coefficients` as [rows, features of x]. Raises ValueError where their number does not fit."""
    flat = np.asarray(coefficients, x.dtype)
    if rows < 1 or flat.size != rows * x.shape[1]:
        raise ValueError(f"{flat.size} coefficients do not fit {rows} rows of {x.shape[1]} features")
    return flat.reshape(rows, x.shape[1])


@define(domain=ML, prepared=("labels",))
def LinearClassifier(x, *, coefficients: list[float], intercepts: list[float] | None = None,
                     multi_class: int = 0,
                     post_transform: str = "NONE", labels):
    """The class with the highest score, and the scores x @ coefficients' + intercepts. Coefficients beyond
    those of the classes mean nothing."""
    _known(post_transform)
    x = rows_of(x).astype(np.float32, copy=False)
    shift = np.asarray([] if intercepts is None else intercepts, np.float32)
    targets = shift.size or len(labels)
    scores = x @ _weights(coefficients[:targets * x.shape[1]], targets, x).T
    if shift.size:
        scores = scores + shift
    if targets == 1:
        two = labels if len(labels) == 2 else labels_of(["0", "1"] if labels.dtype == object else None,
                                                        [0, 1])
        chosen = two[(scores[:, 0] > 0).astype(np.intp)]
        if len(labels) == 2:
            return chosen, two_columns(scores[:, 0], post_transform, False).astype(np.float32)
        return chosen, (probit(scores) if post_transform == "PROBIT" else scores).astype(np.float32)
    if len(labels) < targets:
        raise ValueError(f"{len(labels)} class labels do not fit {targets} scores")
    return labels[scores.argmax(1)], transformed(scores, post_transform).astype(np.float32)


@LinearClassifier.prepare_with
def _linear_labels(*, classlabels_strings: list[str] | None = None, classlabels_ints: list[int] | None = None
                   ) -> dict[str, Any]:
    return {"labels": labels_of(classlabels_strings, classlabels_ints)}


@LinearClassifier.infer_with
def _linear_classes(x: Value, *, classlabels_strings: list[str] | None = None,
                    classlabels_ints: list[int] | None = None, intercepts: list[float] | None = None, **_: Any
                    ) -> list[Type]:
    labels = labels_of(classlabels_strings, classlabels_ints)
    targets = len(intercepts or ()) or len(labels)
    scores = rows_type(x, 2 if targets == 1 and len(labels) == 2 else targets)
    elem = ElementType.STRING if labels.dtype == object else ElementType.INT64
    return [TensorType(elem, (scores.shape or (None,))[:1]), scores]


@define(domain=ML)
def LinearRegressor(x, *, coefficients: list[float] | None = None, intercepts: list[float] | None = None,
                    post_transform: str = "NONE", targets: int = 1):
    """x @ coefficients' + intercepts, float32. Coefficients beyond those of the targets mean nothing, nor do
    intercepts that are not as many"""
    x = rows_of(x).astype(np.float32, copy=False)
    held = [] if coefficients is None else coefficients
    y = x @ _weights(held[:max(0, targets) * x.shape[1]], targets, x).T
    if intercepts is not None and len(intercepts) == targets:
        y = y + np.asarray(intercepts, np.float32)
    return transformed_targets(y, post_transform).astype(np.float32)


def rows_type(x: Value, columns: int | None) -> TensorType:
    """float32 of a row per row of `x`; a vector is one row."""
    rows = None if x.shape is None else 1 if len(x.shape) < 2 else x.shape[0]
    return TensorType(ElementType.FLOAT, (rows, columns))


@LinearRegressor.infer_with
def _linear_type(x: Value, *, targets: int, **_: Any) -> list[Type]:
    return [rows_type(x, targets)]


def _kernel(x: np.ndarray, vectors: np.ndarray, kind: str, params: list[float] | None) -> np.ndarray:
    """The kernel of every row of `x` with every support vector, [rows, vectors]."""
    given = params if params is not None and len(params) == 3 else (0.0, 0.0, 3.0)
    gamma, coef0, degree = (float(v) for v in given)
    products = x @ vectors.T
    if kind == "LINEAR":
        return products
    if kind == "POLY":
        return np.power(gamma * products + coef0, degree)
    if kind == "SIGMOID":
        return np.tanh(gamma * products + coef0)
    if kind == "RBF":
        distance = (x * x).sum(1)[:, None] + (vectors * vectors).sum(1) - 2 * products
        return np.exp(-gamma * np.maximum(distance, 0))
    raise ValueError(f"kernel_type is {kind!r}, expected LINEAR, POLY, RBF or SIGMOID")


def _coupled(pairwise: np.ndarray) -> np.ndarray:
    """Class probabilities [rows, classes] from pairwise ones [rows, classes, classes].

    The second method of Wu, Lin and Weng (JMLR 5, 2004), with the stopping rule of libsvm.
    """
    rows, classes, _ = pairwise.shape
    flipped = pairwise.swapaxes(1, 2)
    q = -flipped * pairwise
    each = np.arange(classes)
    off = ~np.eye(classes, dtype=bool)
    q[:, each, each] = np.where(off, flipped ** 2, 0).sum(2)
    p = np.full((rows, classes), 1 / classes)
    active = np.arange(rows)
    for _ in range(max(100, classes)):
        sub = q[active]
        now = p[active]
        qp = np.einsum("nij,nj->ni", sub, now)
        pqp = (now * qp).sum(1)
        going = np.abs(qp - pqp[:, None]).max(1) >= 0.005 / classes
        if not going.any():
            break
        active, sub, now, qp, pqp = active[going], sub[going], now[going], qp[going], pqp[going]
        for i in range(classes):
            step = (pqp - qp[:, i]) / sub[:, i, i]
            now[:, i] += step
            pqp = (pqp + step * (step * sub[:, i, i] + 2 * qp[:, i])) / (1 + step) ** 2
            qp = (qp + step[:, None] * sub[:, i]) / (1 + step)[:, None]
            now /= (1 + step)[:, None]
        p[active] = now
    return p


@define(domain=ML, prepared=("labels",))
def SVMClassifier(x, *, coefficients: list[float], kernel_params: list[float] | None = None,
                  kernel_type: str = "LINEAR", post_transform: str = "NONE",
                  prob_a: list[float] | None = None,
                  prob_b: list[float] | None = None, rho: list[float],
                  support_vectors: list[float] | None = None,
                  vectors_per_class: list[int] | None = None, labels):
    """The class most pairs of classes vote for, and the pairwise scores or the class probabilities"""
    x = rows_of(x).astype(np.float64)
    shift = np.asarray(rho, np.float64)
    first, second = ([] if v is None else v for v in (prob_a, prob_b))
    likely = len(first) > 0
    per_class = np.asarray([] if vectors_per_class is None else vectors_per_class, np.int64)
    if not per_class.sum():
        scores = x @ _weights(coefficients, len(labels), x).T + shift[0]
        chosen = scores.argmax(1)
        if shift.size == 1 and len(labels) == 2 and not likely:
            least = scores.max(1)
            chosen[least >= 0.5 if (np.asarray(coefficients) >= 0).all() else least > 0] = 1
        return labels[chosen], transformed(scores, post_transform).astype(np.float32)
    classes, total = per_class.size, int(per_class.sum())
    pairs = [(i, j) for i in range(classes) for j in range(i + 1, classes)]
    weights = np.asarray(coefficients, np.float64)
    if ((per_class < 0).any() or len(labels) != classes or shift.size < len(pairs)
            or weights.size < total * (classes - 1)):
        raise ValueError(f"vectors_per_class {per_class.tolist()}, {len(labels)} labels, {shift.size} rho and"
                         f" {weights.size} coefficients do not fit together")
    kernel = _kernel(x, _weights(support_vectors if support_vectors is not None else [], total, x),
                     kernel_type,
                     kernel_params)
    weights = weights[:total * (classes - 1)].reshape(classes - 1, total)
    ends = np.cumsum(per_class)
    parts = [slice(end - n, end) for end, n in zip(ends, per_class, strict=True)]
    scores = np.stack([kernel[:, parts[i]] @ weights[j - 1, parts[i]] + kernel[:, parts[j]]
                       @ weights[i, parts[j]]
                       + shift[k] for k, (i, j) in enumerate(pairs)], 1) if pairs else np.zeros((len(x), 0))
    votes = np.zeros((len(x), classes), np.int64)
    for k, (i, j) in enumerate(pairs):
        votes[:, i] += scores[:, k] > 0
        votes[:, j] += scores[:, k] <= 0
    chosen = labels[votes.argmax(1)]
    if not likely:
        y = two_columns(scores[:, 0], post_transform, post_transform == "NONE") if len(pairs) == 1 else (
            transformed(scores, post_transform))
        return chosen, y.astype(np.float32)
    if len(first) < len(pairs) or len(second) < len(pairs):
        raise ValueError(f"{len(pairs)} pairs of classes need as many prob_a and prob_b")
    pairwise = np.zeros((len(x), classes, classes))
    for k, (i, j) in enumerate(pairs):
        p = np.clip(sigmoid(-(scores[:, k] * first[k] + second[k])), 1e-7, 1 - 1e-7)
        pairwise[:, i, j], pairwise[:, j, i] = p, 1 - p
    return chosen, transformed(_coupled(pairwise), post_transform).astype(np.float32)


@SVMClassifier.prepare_with
def _svm_labels(*, classlabels_strings: list[str] | None = None, classlabels_ints: list[int] | None = None
                ) -> dict[str, Any]:
    labels = labels_of(classlabels_strings, classlabels_ints)
    if not labels.size:
        raise ValueError("SVMClassifier needs one of classlabels_ints and classlabels_strings")
    return {"labels": labels}


@define(domain=ML)
def SVMRegressor(x, *, coefficients: list[float], kernel_params: list[float] | None = None,
                 kernel_type: str = "LINEAR", n_supports: int = 0, one_class: int = 0,
                 post_transform: str = "NONE",
                 rho: list[float], support_vectors: list[float] | None = None):
    """The weighted kernels with the support vectors plus rho; the sign of it if `one_class`"""
    x = rows_of(x).astype(np.float64)
    if n_supports > 0:
        kernel = _kernel(x, _weights([] if support_vectors is None else support_vectors, n_supports, x),
                         kernel_type,
                         kernel_params)
        weights = _weights(coefficients, 1, kernel)
        y = kernel @ weights.T + float(rho[0])
    else:
        y = x @ _weights(coefficients, 1, x).T + float(rho[0])
    return (np.where(y > 0, 1, -1) if one_class else y).astype(np.float32)


@SVMRegressor.infer_with
def _svm_type(x: Value, **_: Any) -> list[Type]:
    return [rows_type(x, 1)]
