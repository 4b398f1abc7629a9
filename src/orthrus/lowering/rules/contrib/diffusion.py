"""Normalizations and gates of diffusion networks, whose pixels come before channels."""

from __future__ import annotations

from typing import Any

from ....codegen.write.expr import Expr
from ....codegen.write.trace import traced
from ....ir import No, Node, Value
from ....ops.nn.activation import Gelu, Swish
from ...lower import Lazy, Lowering, Pending, lowers
from ...rule_sets import BOTH
from ...tensor import Tensor
from ..attention import MS, inputs_of
from ..rows import FLOATS, F, Norm, Reads, affine, alive, finished, lying, now, reading


def _first(t: Tensor, last: bool) -> Tensor:
    """With channels before pixels."""
    return t.permute((0, t.rank - 1, *range(1, t.rank - 1))) if last else t


def _grouped(lo: Lowering, node: Node, reads: Reads, shape: tuple[int, ...], dtype: str, gamma: Value,
             beta: Value, kept: Tensor | None = None) -> Pending | No:
    """The normalization of what is read, in groups of channels."""
    attrs = node.attributes
    groups, last = attrs["groups"], bool(attrs["channels_last"])
    if len(shape) < 3 or 0 in shape or attrs["activation"] not in (0, 1):
        return No("it is no image, or has another activation")
    channels = shape[-1] if last else shape[1]
    if groups < 1 or channels % groups or any(
            lo.shape(v) != (channels,) or lo.dtype(v) not in FLOATS for v in (gamma, beta)):
        return No("its scale and bias do not fit")
    each = channels // groups

    def split(t: Tensor) -> Tensor:
        first = _first(t, last)
        return first.view((first.shape[0], groups, each, *first.shape[2:]),
                          (first.strides[0], first.strides[1] * each, *first.strides[1:]))
    walked = split(reads.tensors[0]).shape
    operands = [t.view(walked, (0, t.strides[0] * each, t.strides[0], *(0,) * (len(walked) - 3)))
                for t in map(lo.tensor, (gamma, beta))]
    tree = affine(operands, F)
    if attrs["activation"]:
        inner = tree
        tree = traced(Swish, {"alpha": 1.0}, [F]).substitute(lambda _: inner)
    return finished(lo, reads, range(2, len(walked)), dtype, Norm("layer", attrs["epsilon"], kept is not None),
                    tree.cast(dtype), operands, split, None if kept is None else split(kept))


@lowers(MS + "GroupNorm", types=FLOATS, sets=BOTH)
def group_norm(lo: Lowering, node: Node) -> Pending | No:
    """Per instance and group of channels, times a scale and plus a bias."""
    x, gamma, beta = node.inputs
    assert x is not None and gamma is not None and beta is not None
    return _grouped(lo, node, reading(lo, x), lo.shape(x), lo.dtype(x), gamma, beta)


@lowers(MS + "SkipGroupNorm", types=FLOATS, sets=BOTH)
def skip_group_norm(lo: Lowering, node: Node) -> Any:
    """The normalization of x + skip + bias, and that sum."""
    x, gamma, beta, skip, bias = inputs_of(node, 5)
    assert x is not None and gamma is not None and beta is not None and skip is not None
    shape, last = lo.shape(x), bool(node.attributes["channels_last"])
    if len(shape) < 3:
        return No("it is no image")
    added = [_spread(lo.tensor(v), shape, last) for v in (skip, bias) if v is not None]
    if any(t is None or t.dtype not in FLOATS for t in added):
        return No("its skip or bias does not fit")
    first = lo.tensor(x)
    reads = Reads(Expr.leaf(0, first.dtype).cast(F), [first])
    for t in added:
        assert t is not None
        leaf = Expr.leaf(len(reads.tensors), t.dtype).cast(F)
        reads = Reads(Expr("add", (reads.tree, leaf), F), [*reads.tensors, t])
    if not alive(lo, node, 1):
        return _grouped(lo, node, reads, shape, first.dtype, gamma, beta)
    total = lo.new(shape, first.dtype, lying(first))
    return now(lo, _grouped(lo, node, reads, shape, first.dtype, gamma, beta, total), total)


def _spread(t: Tensor, shape: tuple[int, ...], last: bool) -> Tensor | None:
    """What is added to each image, or to each pixel of it, broadcast; None where it does not fit."""
    pixels = len(shape) - 2
    if t.rank <= 2:
        lead, steps = (1,) * (2 - t.rank) + t.shape, (0,) * (2 - t.rank) + t.strides
        between, none = (1,) * pixels, (0,) * pixels
        t = t.view((lead[0], *between, lead[1]) if last else (*lead, *between),
                   (steps[0], *none, steps[1]) if last else (*steps, *none))
    fits = t.rank == len(shape) and all(d in (1, e) for d, e in zip(t.shape, shape, strict=True))
    return t.expand(shape) if fits else None


@lowers(MS + "BiasSplitGelu", types=FLOATS, sets=BOTH)
def bias_split_gelu(lo: Lowering, node: Node) -> Lazy | No:
    """The first half, times the Gelu of the second."""
    x, bias = node.inputs
    assert x is not None and bias is not None
    shape = lo.shape(x)
    if not shape or shape[-1] % 2 or lo.shape(bias) != shape[-1:] or lo.dtype(bias) not in FLOATS:
        return No("its bias does not fit")
    half = shape[-1] // 2
    tensors = [t.slice(t.rank - 1, at, half) for at in (0, half) for t in map(lo.tensor, (x, bias))]
    left, right = (Expr("add", tuple(Expr.leaf(i + j, tensors[i + j].dtype).cast(F) for j in (0, 1)), F)
                   for i in (0, 2))
    opened = traced(Gelu, {}, [F]).substitute(lambda _: right)
    tree = Expr("mul", (left, opened), F).cast(lo.dtype(x))
    return Lazy((*shape[:-1], half), tree, [t if t.rank == len(shape) else t.expand(
        (*shape[:-1], half)) for t in tensors])


@lowers(MS + "BiasAdd", types=FLOATS, sets=BOTH)
def bias_add(lo: Lowering, node: Node) -> Lazy | No:
    """x + bias + skip."""
    values = [v for v in node.inputs if v is not None]
    if any(lo.dtype(v) not in FLOATS for v in values):
        return No("its bias or skip is of another type")
    dtype = lo.dtype(values[0])

    def tree(kinds: list[str]) -> Expr:
        x, bias, skip = (Expr.leaf(i, kind).cast(F) for i, kind in enumerate(kinds))
        return Expr("add", (Expr("add", (x, bias), F), skip), F).cast(dtype)
    return lo.elementwise(values, tree)
