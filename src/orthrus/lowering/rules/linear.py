"""What surrounds and ends pipelines of ai.onnx.ml: scaling, row norms, linear models, features by index.

In: a matrix with a row of features each, or a vector as one row; float32 is computed. Out: float32, int64
labels, or the features picked.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from ...codegen.write.expr import LLVM, Expr
from ...ir import No, Node
from ...ops.ml.linear import TRANSFORMS
from ..elements import store
from ..lower import Lazy, Lowering, Pending, lowers
from ..tensor import Tensor
from .matmul import write
from .rows import F, Norm, Reads, finished
from .tree_ensemble import close_scores

TYPES = ("float32", "float64", "int32", "int64")
ML = "ai.onnx.ml::"
_LOWERED = tuple(name for name in TRANSFORMS if name != "PROBIT")


@lowers(ML + "Scaler", types=TYPES)
def scale(lo: Lowering, node: Node) -> Lazy | No:
    """(x - offset) * scale."""
    (x,) = node.inputs
    assert x is not None
    lazy, attrs = lo.lazy(x), node.attributes
    shift, factor = (np.asarray([] if attrs[name] is None else attrs[name], np.float32)
                     for name in ("offset", "scale"))
    if len(lazy.shape) not in (1, 2) or shift.size != factor.size or shift.size not in (1, lazy.shape[-1]):
        return No("its features do not fit")
    tree, count = lazy.tree.cast(F), len(lazy.operands)
    if lazy.source is not None and lazy.tree.dtype != F:
        return No("a kernel's value of another type")
    operands = [lo.constant((id(node), name), partial(np.asarray, a))
                for name, a in (("offset", shift), ("scale", factor))]
    tree = Expr("mul", (Expr("sub", (tree, Expr.leaf(count, F)), F), Expr.leaf(count + 1, F)), F)
    return Lazy(lazy.shape, tree, [*lazy.operands, *operands])


@lowers(ML + "Normalizer", types=TYPES)
def normalize(lo: Lowering, node: Node) -> Pending | No:
    """Each row over its norm."""
    (x,) = node.inputs
    assert x is not None
    norm, rank = node.attributes["norm"], len(lo.shape(x))
    if rank not in (1, 2) or norm not in ("L1", "L2", "MAX"):
        return No("an unknown norm, or rows of several axes")
    t = lo.tensor(x)
    return finished(lo, Reads(Expr.leaf(0, t.dtype).cast(F), [t]), [rank - 1], F, Norm(norm.lower()))


def _scores(lo: Lowering, node: Node, targets: int, shift: np.ndarray) -> Tensor | No:
    """x @ coefficients' + intercepts."""
    x = lo.tensor(node.inputs[0])
    rows = x.shape[0] if x.rank > 1 else 1
    width = x.size // rows if rows else 0
    flat = np.asarray(node.attributes["coefficients"] or [], np.float32)[:max(0, targets) * width]
    if targets < 1 or not width or flat.size != targets * width or shift.size not in (0, targets):
        return No("its coefficients do not fit")
    if x.dtype != F:
        made = lo.new(x.shape, F)
        store(lo, made, Expr.leaf(0, x.dtype).cast(F), [x])
        x = made
    table = x if x.rank == 2 and x.strides[1] == 1 else lo.contiguous(x)
    if table.rank != 2:
        table = table.view((rows, width), (width, 1))
    key, weights = ("linear", id(node), width), flat.reshape(targets, width).T
    tree, operands = None, []
    if shift.size:
        tree = Expr("add", (Expr.leaf(0, F), Expr.leaf(1, F)), F)
        operands = [lo.constant((*key, "intercepts"), lambda: shift).expand((rows, targets))]
    out = lo.new((rows, targets), F)
    write(lo, table, lo.constant(key, lambda: weights), (key, lambda: weights), out, tree, operands)
    return out


@lowers(ML + "LinearClassifier", types=TYPES)
def classify(lo: Lowering, node: Node) -> tuple[Tensor, Tensor] | No:
    """The label of the highest score, and the scores behind their transform."""
    assert node.op is not None
    attrs, labels = node.attributes, node.op.prepare(node.attrs)["labels"]
    given = node.attrs.get("intercepts")
    shift = np.asarray([] if given is None else given, np.float32)
    targets = shift.size or len(labels)
    transform = attrs["post_transform"]
    if labels.dtype != np.int64 or targets < 2 or len(labels) < targets or transform not in _LOWERED:
        return No(f"labels of another form, or the post transform {transform!r}")
    y = _scores(lo, node, targets, shift)
    if isinstance(y, No):
        return y
    names = lo.constant((id(node), "names"), lambda: labels)
    return close_scores(lo, y, transform, "most", names), y


@lowers(ML + "LinearRegressor", types=TYPES)
def regress(lo: Lowering, node: Node) -> Tensor | No:
    """The scores behind their transform, which one target does without."""
    attrs = node.attributes
    targets, transform = attrs["targets"], attrs["post_transform"]
    if transform not in _LOWERED:
        return No(f"no generated kernel for the post transform {transform!r}")
    shift = np.asarray(attrs["intercepts"] or [], np.float32)
    y = _scores(lo, node, targets, shift if shift.size == targets else shift[:0])
    if not isinstance(y, No) and targets > 1:
        close_scores(lo, y, transform)
    return y


@lowers(ML + "ArrayFeatureExtractor", types=tuple(LLVM))
def extract(lo: Lowering, node: Node) -> Pending | No:
    """The last axis at some indices, which may not be negative."""
    x, given = (lo.tensor(v) for v in node.inputs)
    if not x.size or not given.size or not x.rank:
        return No("empty or a scalar")
    if x.rank == 1:
        x = x.view((1, *x.shape), (0, *x.strides))
    from .gather import from_front, gathered, placed

    def write(lo: Lowering, out: Tensor) -> None:
        indices = from_front(lo, given).view((given.size,), (1,))
        gathered(lo, x, indices, out, x.rank - 1, 1, 1, False)
    return placed((*x.shape[:-1], given.size), x.dtype, write)
