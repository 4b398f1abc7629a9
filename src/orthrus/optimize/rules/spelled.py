"""Operators that are put as few others, for which there are general kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...ir import ElementType, No, Value
from ..pattern import rule
from .facts import ints, rank, static

_ML = "ai.onnx.ml::"
_FLOATS = (ElementType.FLOAT, ElementType.DOUBLE)
_WHOLE = (ElementType.INT32, ElementType.INT64)
_FAR = 1 << 30
"""An index that is out of range whatever it indexes."""
_SPAN = 1 << 16
"""Integers from the least to the greatest key of a table with a place for each."""


def _matrix(x: Value) -> int | None:
    """The columns of a matrix where they are known."""
    shape = x.shape
    return shape[1] if shape is not None and len(shape) == 2 and isinstance(shape[1], int) else None


@rule(lambda op, x, a: op("com.microsoft::ExpandDims")(x, op.constant(a)))
def expand_dims(op, x, a):
    axes, n = ints(a), rank(x)
    if axes is None or n is None or not axes or not -n - 1 <= axes[0] <= n:
        return No("its axis is not known to fit")
    return op.Unsqueeze(x, op.ints([axes[0]]))


@rule(lambda op, x: op("ai.onnx.ml::Imputer")(x))
def expand_imputer(op, x, root):
    """One value replaced wherever it stands."""
    shape, floating = x.shape, x.elem in _FLOATS
    given = root.attrs.get("imputed_value_floats" if floating else "imputed_value_int64s")
    if x.elem not in (*_FLOATS, ElementType.INT64) or given is None or (
            shape is None or len(shape) not in (1, 2)):
        return No("its input is no matrix of numbers")
    new = np.asarray(given).reshape(-1)
    old = root.attribute("replaced_value_float" if floating else "replaced_value_int64")
    if not new.size or (new.size > 1 and not isinstance(shape[-1], int)):
        return No("how many features there are is not known")
    if new.size > 1 and new.size != shape[-1]:
        new = new[:1]
    here = op.IsNaN(x) if old != old else op.Equal(x, op.constant(np.array(old), like=x))
    return op.Where(here, op.constant(new if new.size > 1 else new[0], like=x), x)


@rule(lambda op: op("ai.onnx.ml::FeatureVectorizer")(...))
def expand_feature_vectorizer(op, root):
    """Matrices side by side."""
    widths = [_matrix(v) for v in root.inputs]
    told = root.attrs.get("inputdimensions")
    rows = {v.shape[0] for v in root.inputs if v.shape is not None and v.shape}
    if None in widths or len(rows) != 1 or None in rows or (told is not None and list(told) != widths):
        return No("its inputs are not known to be matrices of these widths")
    wide = [v if v.elem is ElementType.FLOAT else op.Cast(v, to=int(ElementType.FLOAT)) for v in root.inputs]
    return op.Concat(*wide, axis=1)


@rule(lambda op, x: op("ai.onnx.ml::OneHotEncoder")(x))
def expand_one_hot_encoder(op, x, root):
    """A comparison of each whole number with the categories."""
    categories = root.attrs.get("cats_int64s")
    if x.elem not in (*_WHOLE, *_FLOATS) or categories is None or not len(categories) or rank(x) is None or (
            root.attrs.get("cats_strings") or not root.attribute("zeros")):
        return No("its categories are no whole numbers, or an unknown one is an error")
    whole, (least, most) = x.elem if x.elem in _WHOLE else ElementType.INT64, ElementType.INT64.span
    if len(set(categories)) != len(categories) or not _within(categories, whole) or (
            whole is not x.elem and (least in categories or most in categories)):
        return No("a category comes twice, or is of another type")
    if whole is not x.elem:
        x = op.Where(op.IsNaN(x), op.constant(np.array(least)), op.Cast(x, to=int(whole)))
    own = op.constant(np.asarray(categories), like=x)
    return op.Cast(op.Equal(op.Unsqueeze(x, op.ints([-1])), own), to=int(ElementType.FLOAT))


def _within(numbers: Sequence[int], kind: ElementType) -> bool:
    least, most = kind.span
    return all(least <= n <= most for n in numbers)


@rule(lambda op, x: op("ai.onnx.ml::LabelEncoder")(x))
def expand_label_encoder(op, x, root):
    """A table with a place for each whole number from the least key to the greatest."""
    if x.elem not in (*_WHOLE, *_FLOATS) or root.op is None or root.version < 2:
        return No("its keys are no numbers")
    try:
        made = root.op.prepare(root.attrs)
    except (TypeError, ValueError):
        return No("its attributes contradict each other")
    table, default = made["table"], made["default"]
    if default.dtype.kind not in "if":
        return No("its values are no numbers")
    keys = list(table)
    if not keys or not all(isinstance(k, int | float) and abs(k) <= _FAR and k == int(k) for k in keys) or (
            max(keys) - min(keys) >= _SPAN):
        return No("its keys are no whole numbers that lie close together")
    low, high = int(min(keys)), int(max(keys))
    places = np.full(high - low + 2, default, default.dtype)
    for key, value in table.items():
        places[int(key) - low] = value
    whole = x if x.elem in _WHOLE else op.Cast(x, to=int(ElementType.INT64))
    inside = op.And(op.GreaterOrEqual(whole, op.constant(low, like=whole)),
                    op.LessOrEqual(whole, op.constant(high, like=whole)))
    if whole is not x:
        inside = op.And(inside, op.Equal(op.Cast(whole, to=int(x.elem)), x))
    at = op.Sub(whole, op.constant(low, like=whole))
    index = op.Where(inside, at, op.constant(high - low + 1, like=whole))
    return op.Gather(op.constant(places, name="values"), index)


def _loss(op: Any, chances: Value, labels: Value, weight: Value | None, root: Any) -> Value | No:
    shape, own = chances.shape, labels.shape
    if chances.elem not in _FLOATS or labels.elem not in _WHOLE or shape is None or own is None or (
            len(shape) < 2 or None in shape or (shape[0], *shape[2:]) != own or shape[1] == 0):
        return No("labels and scores are not known to fit")
    if weight is not None and (weight.shape != (shape[1],) or weight.elem is not chances.elem):
        return No("its weights are not known to fit")
    ignored, reduction = root.attrs.get("ignore_index"), root.attribute("reduction")
    if reduction not in ("none", "sum", "mean") or (
            ignored is not None and not _within([ignored], labels.elem)):
        return No("an unknown reduction, or what is to be ignored is no label")
    apart, one = op.Unsqueeze(labels, op.ints([1])), op.ints([1])
    kept = None
    index = apart
    if ignored is not None:
        kept = op.Not(op.Equal(apart, op.constant(ignored, like=labels)))
        index = op.Where(kept, apart, op.constant(0, like=labels))
    index = op.Where(op.Less(index, op.constant(0, like=labels)), op.constant(_FAR, like=labels), index)
    loss = op.Neg(op.GatherElements(chances, index, axis=1))
    scale = None
    if weight is not None:
        scale = op.Gather(weight, index)
        loss = op.Mul(loss, scale)
    zero = op.constant(0, like=chances)
    if kept is not None:
        loss = op.Where(kept, loss, zero)
        scale = op.Cast(kept, to=int(chances.elem)) if scale is None else op.Where(kept, scale, zero)
    if reduction == "none":
        return op.Squeeze(loss, one)
    if reduction == "mean" and scale is None and all(isinstance(d, int) and d for d in own):
        return op.ReduceMean(loss, keepdims=0)
    total = op.ReduceSum(loss, keepdims=0)
    if reduction == "sum":
        return total
    # of no labels it is no number, where a mean of nothing is 0
    count = (op.Cast(op.Size(labels), to=int(chances.elem)) if scale is None else
             op.ReduceSum(scale, keepdims=0))
    return op.Div(total, count)


@rule(lambda op, x, t, w=None: op.NegativeLogLikelihoodLoss(x, t, w))
def expand_likelihood_loss(op, x, t, w, root):
    """What is picked by the labels, negative, then reduced."""
    return _loss(op, x, t, w, root)


@rule(lambda op, x, t, w=None: op.SoftmaxCrossEntropyLoss(x, t, w))
def expand_cross_entropy(op, x, t, w, root):
    """The loss of a logarithm of softmax, which may be a result too."""
    if x.elem not in _FLOATS or rank(x) is None:
        return No("its scores are no known floats")
    chances = op.LogSoftmax(x, axis=1)
    made = _loss(op, chances, t, w, root)
    return made if isinstance(made, No) or len(root.outputs) == 1 else (made, chances)


@rule(lambda op, t, s: op.AffineGrid(t, op.constant(s)))
def expand_affine_grid(op, t, s, root):
    """The product of points that are known with the maps."""
    size, shape = ints(s), static(t)
    n = 0 if size is None else len(size) - 2
    if size is None or n not in (2, 3) or shape != (size[0], n, n + 1) or t.elem not in _FLOATS or (
            min(size) < 1 or np.prod(size[2:]) > 1 << 20):
        return No("its size is not known to fit")
    points = np.ones((*size[2:], n + 1), t.elem.numpy)
    for a, d in enumerate(size[2:]):
        line = np.linspace(-1, 1, d) if root.attribute("align_corners") else (2 * np.arange(d) + 1) / d - 1
        points[..., n - 1 - a] = line.astype(points.dtype).reshape(-1, *(1,) * (n - 1 - a))
    made = op.MatMul(op.constant(points.reshape(-1, n + 1)), op.Transpose(t, perm=[0, 2, 1]))
    return op.Reshape(made, op.ints([size[0], *size[2:], n]))


@rule(lambda op, a, b: op("com.microsoft::CDist")(a, b))
def expand_distances(op, a, b, root):
    """Squares and products of float64."""
    if _matrix(a) is None or _matrix(a) != _matrix(b) or a.elem not in _FLOATS or a.elem is not b.elem:
        return No("its inputs are not known to be matrices of one width")
    if root.attribute("metric") not in ("euclidean", "sqeuclidean"):
        return No("an unknown metric")
    x, y = (op.Cast(v, to=int(ElementType.DOUBLE)) if v.elem is ElementType.FLOAT else v for v in (a, b))
    squares = op.Add(op.ReduceSumSquare(x, op.ints([1]), keepdims=1),
                     op.Transpose(op.ReduceSumSquare(y, op.ints([1]), keepdims=1), perm=[1, 0]))
    product = op.MatMul(op.Mul(x, op.constant(2.0, like=x)), op.Transpose(y, perm=[1, 0]))
    square = op.Max(op.Sub(squares, product), op.constant(0.0, like=x))
    made = op.Sqrt(square) if root.attribute("metric") == "euclidean" else square
    return made if a.elem is ElementType.DOUBLE else op.Cast(made, to=int(ElementType.FLOAT))


def _similar(op: Any, x: Value, root: Any, vectors: np.ndarray) -> Value | No:
    """The kernel of each row of `x` with each of `vectors`, float64."""
    kind, given = root.attribute("kernel_type"), root.attrs.get("kernel_params")
    known = given is not None and len(given) == 3
    gamma, start, degree = map(float, given) if known else (0.0, 0.0, 3.0)
    product = op.MatMul(x, op.constant(np.ascontiguousarray(vectors.T)))
    if kind == "LINEAR":
        return product
    if kind == "RBF":
        squares = op.Add(op.ReduceSumSquare(x, op.ints([1]), keepdims=1),
                         op.constant((vectors * vectors).sum(1)))
        apart = op.Sub(squares, op.Mul(product, op.constant(2.0, like=x)))
        return op.Exp(op.Mul(op.Max(apart, op.constant(0.0, like=x)), op.constant(-gamma, like=x)))
    if kind not in ("POLY", "SIGMOID"):
        return No("an unknown kernel")
    inner = op.Add(op.Mul(product, op.constant(gamma, like=x)), op.constant(start, like=x))
    return op.Tanh(inner) if kind == "SIGMOID" else op.Pow(inner, op.constant(degree, like=x))


def _vectors(x: Value, root: Any, count: int) -> np.ndarray | None:
    """The support vectors, where they fit."""
    width, flat = _matrix(x), np.asarray(root.attrs.get("support_vectors") or [], np.float64)
    if not width or count < 1 or flat.size != count * width or x.elem not in (*_FLOATS, *_WHOLE):
        return None
    return flat.reshape(count, width)


@rule(lambda op, x: op("ai.onnx.ml::SVMRegressor")(x))
def expand_vector_regressor(op, x, root):
    """Kernels as products, and their weighted sum."""
    count, rho = root.attribute("n_supports"), root.attrs.get("rho")
    vectors = _vectors(x, root, count)
    weights = np.asarray(root.attrs.get("coefficients") or [], np.float64)
    if vectors is None or rho is None or not len(rho) or weights.size != count:
        return No("its support vectors are not known to fit")
    kernel = _similar(op, _wide(op, x), root, vectors)
    if isinstance(kernel, No):
        return kernel
    total = op.MatMul(kernel, op.constant(weights.reshape(-1, 1)))
    y = op.Add(total, op.constant(float(rho[0]), like=kernel))
    if root.attribute("one_class"):
        one, other = (op.constant(v, like=y) for v in (1.0, -1.0))
        y = op.Where(op.Greater(y, op.constant(0.0, like=y)), one, other)
    return op.Cast(y, to=int(ElementType.FLOAT))


def _wide(op: Any, x: Value) -> Value:
    return x if x.elem is ElementType.DOUBLE else op.Cast(x, to=int(ElementType.DOUBLE))


@rule(lambda op, x: op("ai.onnx.ml::SVMClassifier")(x))
def expand_vector_classifier(op, x, root):
    """Kernels as products, a score for each pair of classes, and what most of these say."""
    labels, per_class = root.attrs.get("classlabels_ints"), root.attrs.get("vectors_per_class")
    if labels is None or per_class is None or root.attrs.get("classlabels_strings") or (
            root.attrs.get("prob_a") is not None and len(root.attrs["prob_a"])):
        return No("its labels are texts, or it gives probabilities")
    many, classes = [int(n) for n in per_class], len(labels)
    total, pairs = sum(many), [(i, j) for i in range(classes) for j in range(i + 1, classes)]
    weights = np.asarray(root.attrs.get("coefficients") or [], np.float64)
    rho = np.asarray(root.attrs.get("rho") or [], np.float64)
    vectors = _vectors(x, root, total)
    if vectors is None or len(many) != classes or classes < 2 or min(many) < 0 or rho.size < len(pairs) or (
            weights.size < total * (classes - 1)) or len(root.outputs) != 2:
        return No("its support vectors are not known to fit")
    transform = root.attribute("post_transform")
    if transform not in ("NONE", "LOGISTIC", "SOFTMAX") or (len(pairs) == 1 and transform == "SOFTMAX"):
        return No(f"the post transform {transform}")
    kernel = _similar(op, _wide(op, x), root, vectors)
    if isinstance(kernel, No):
        return kernel
    weights, ends = weights[:total * (classes - 1)].reshape(classes - 1, total), np.cumsum(many)
    every, first, second = np.zeros((total, len(pairs))), *np.zeros((2, len(pairs), classes))
    for k, (i, j) in enumerate(pairs):
        one, other = (slice(ends[c] - many[c], ends[c]) for c in (i, j))
        every[one, k], every[other, k] = weights[j - 1, one], weights[i, other]
        first[k, i] = second[k, j] = 1
    scores = op.Add(op.MatMul(kernel, op.constant(every)), op.constant(rho[:len(pairs)]))
    zero, single = op.constant(0.0, like=scores), int(ElementType.FLOAT)
    votes = op.Add(*(op.MatMul(op.Cast(said, to=single), op.constant(of.astype(np.float32))) for said, of in (
        (op.Greater(scores, zero), first), (op.LessOrEqual(scores, zero), second))))
    chosen = op.Gather(op.constant(np.asarray(labels, np.int64)), op.ArgMax(votes, axis=1, keepdims=0))
    shown = op.Concat(op.Neg(scores), scores, axis=1) if len(pairs) == 1 else scores
    if transform == "SOFTMAX":
        shown = op.Softmax(shown, axis=-1)
    elif transform == "LOGISTIC":
        shown = op.Sigmoid(shown)
    return chosen, op.Cast(shown, to=single)


EXTENDED = (expand_dims, expand_imputer, expand_feature_vectorizer, expand_one_hot_encoder,
            expand_label_encoder, expand_likelihood_loss, expand_cross_entropy, expand_affine_grid,
            expand_distances, expand_vector_regressor, expand_vector_classifier)
