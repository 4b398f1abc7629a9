"""Losses by label.

In: indices from inputs, or from trees over them. Out: what the kernels that gather and fold make of these.
An index out of range makes the part start again by the definitions, which have the error.
"""

from __future__ import annotations

from collections.abc import Sequence

from ....codegen.write.expr import Expr
from ....ir import No, Node
from ...rules.gather import INDICES, picked
from ...rules.places import LONG, positive
from ...rules.reduce import Folded
from ...tensor import Tensor
from ..lower import GpuLowering, Lazy, lowers
from ..rows import fold

FLOATS = ("float32", "float16", "bfloat16", "float64")


@lowers("NegativeLogLikelihoodLoss", types=FLOATS)
def likelihood_loss(lo: GpuLowering, node: Node) -> Lazy | Tensor | No:
    """What is chosen by label, weighted and added up."""
    vx, vl, vw = (*node.inputs, None)[:3]
    return _loss(lo, node, lo.tensor(vx), lo.tensor(vl), None if vw is None else lo.tensor(vw))


@lowers("SoftmaxCrossEntropyLoss", types=FLOATS)
def entropy_loss(lo: GpuLowering, node: Node) -> tuple[Lazy | Tensor, Tensor] | No:
    """The same of the logarithms of softmax."""
    vx, vl, vw = (*node.inputs, None)[:3]
    x = lo.tensor(vx)
    if x.rank < 2 or not x.size:
        return No("empty, or of no classes")
    work = _work(x.dtype)
    value = Expr.leaf(0, x.dtype).cast(work)
    top, total = (lo.new((x.shape[0], 1, *x.shape[2:]), work) for _ in range(2))
    fold(lo, Folded("max", value, [x], (1,)), top, None, [])
    shifted = Expr("sub", (value, Expr.leaf(1, work)), work)
    fold(lo, Folded("sum", Expr("exp", (shifted,), work), [x, top.expand(x.shape)], (1,)), total, None, [])
    logs = lo.new(x.shape, x.dtype)
    lo.store(logs, Expr("sub", (shifted, Expr("log", (Expr.leaf(2, work),), work)), work).cast(x.dtype),
             [x, top, total])
    made = _loss(lo, node, logs, lo.tensor(vl), None if vw is None else lo.tensor(vw))
    return made if isinstance(made, No) else (made, logs)


def _work(dtype: str) -> str:
    return "float64" if dtype == "float64" else "float32"


def _loss(lo: GpuLowering, node: Node, x: Tensor, labels: Tensor, weights: Tensor | None
          ) -> Lazy | Tensor | No:
    """-weight[label] * x[n, label], 0 for a label that is ignored; then reduced."""
    attrs, dtype, work = node.attributes, x.dtype, _work(x.dtype)
    if x.rank < 2 or not x.size or labels.shape != (x.shape[0], *x.shape[2:]) or labels.dtype not in INDICES:
        return No("its labels do not fit its scores")
    if weights is not None and (weights.shape != x.shape[1:2] or weights.dtype != dtype):
        return No("its weights do not fit its scores")
    shape, ignored, classes = labels.shape, attrs.get("ignore_index"), x.shape[1]
    label = Expr.leaf(0, labels.dtype).cast(LONG)
    kept = Expr.const(True, "bool") if ignored is None else Expr(
        "ne", (label, Expr.const(ignored, LONG)), "bool")
    index = Expr("where", (kept, positive(label, classes, label), Expr.const(0, LONG)), LONG)
    at = lo.new((shape[0], 1, *shape[1:]), LONG)
    lo.store(at, index, [labels.view(at.shape, (labels.strides[0], 0, *labels.strides[1:]))])
    found = lo.new(at.shape, dtype)
    picked(lo, x, at, found, 1)
    own, by = labels, [_flat(found, shape)]
    scale = Expr.const(1.0, "float32").cast(work)
    if weights is not None:
        chosen = lo.new(at.shape, dtype)
        picked(lo, weights.view(x.shape, [weights.strides[0] if a == 1 else 0 for a in range(x.rank)]), at,
               chosen, 1)
        by.append(_flat(chosen, shape))
        scale = Expr.leaf(2, dtype).cast(work)
    zero = Expr.const(0.0, "float32").cast(work)
    scale = Expr("where", (kept, scale, zero), work)
    value = Expr("neg", (Expr.leaf(1, dtype).cast(work),), work)
    loss = Expr("where", (kept, Expr("mul", (value, scale), work), zero), work)
    if attrs["reduction"] == "none":
        return Lazy(shape, loss.cast(dtype), [own, *by])
    if attrs["reduction"] not in ("sum", "mean"):
        return No("an unknown reduction")
    axes = tuple(range(len(shape)))
    made = Folded("sum", loss, [own, *by], axes)
    total, out = lo.new(made.short, work), Expr.leaf(0, work)
    if attrs["reduction"] == "mean":
        count = lo.new(made.short, work)
        fold(lo, Folded("sum", scale, [own, *by], axes), count, None, [])
        fold(lo, made, total, None, [])
        return Lazy((), Expr("div", (out, Expr.leaf(1, work)), work).cast(dtype),
                    [total.view((), ()), count.view((), ())])
    fold(lo, made, total, None, [])
    return Lazy((), out.cast(dtype), [total.view((), ())])


def _flat(t: Tensor, shape: Sequence[int]) -> Tensor:
    """Without its axis 1, which has one place."""
    return t.view(shape, (t.strides[0], *t.strides[2:]))
