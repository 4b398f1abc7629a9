"""Elements at computed places: reversed sequences, caches written in the middle, maxima put back, columns
added into images, losses by label.

In: indices from inputs, or from trees over them. Out: what the kernels that gather and fold make of these.
An index out of range makes the part start again by the definitions, which have the error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ....codegen.write.expr import Expr
from ....ir import No, Node
from ....ops.define import normalized_axis
from ....ops.nn.geometry import taps, window
from ...lower import Lowering
from ...rules.gather import INDICES, TYPES, picked, placed, put, scattered
from ...rules.reduce import Folded
from ...tensor import Tensor, c_strides
from ..lower import GpuLowering, Lazy, Pending, lowers
from ..rows import fold

FLOATS = ("float32", "float16", "bfloat16", "float64")
LONG = "int64"

_TAPS = 128
"""Taps of columns up to which there is a launch for each."""


def _count(lo: Lowering, shape: Sequence[int], axis: int) -> Tensor:
    """0, 1, 2... along an axis, of a tensor of `shape`."""
    held = lo.counted(0, shape[axis])
    return held.view(shape, [int(a == axis) for a in range(len(shape))])


def _spread(t: Tensor, shape: Sequence[int], axis: int) -> Tensor:
    """A row along an axis of a tensor of `shape`, the same everywhere else."""
    return t.view(shape, [t.strides[0] if a == axis else 0 for a in range(len(shape))])


def _indices(lo: Lowering, tree: Expr, operands: Sequence[Tensor], shape: Sequence[int],
             axes: Sequence[int]) -> Tensor:
    """What a tree gives at each place along `axes`, as indices of all of `shape`."""
    small = [d if a in axes else 1 for a, d in enumerate(shape)]
    out = lo.new(small, LONG)
    lo.store(out, tree.cast(LONG), [t.view(small, [s if a in axes else 0 for a, s in enumerate(t.strides)])
                                    for t in operands])
    return out.expand(shape)


def _positive(given: Expr, size: int, index: Expr) -> Expr:
    """`index`, or one that is out of range where `given`, which counts from the front alone, is below 0."""
    below = Expr("lt", (given, Expr.const(0, LONG)), "bool")
    return Expr("where", (below, Expr.const(size, LONG), index), LONG)


@lowers("ReverseSequence", types=TYPES)
def reversed_sequence(lo: GpuLowering, node: Node) -> Pending | No:
    """Each sequence from its own end on backwards."""
    vx, vl = node.inputs
    assert vx is not None and vl is not None
    t, attrs = lo.tensor(vx), node.attributes
    time, batch = (normalized_axis(attrs[name], t.rank) for name in ("time_axis", "batch_axis"))
    if not t.size or lo.dtype(vl) not in INDICES or lo.shape(vl) != (t.shape[batch],):
        return No("empty, or its lengths do not fit")
    at, length = Expr.leaf(0, LONG), Expr.leaf(1, lo.dtype(vl)).cast(LONG)
    back = Expr("sub", (Expr("sub", (length, Expr.const(1, LONG)), LONG), at), LONG)
    tree = _positive(length, t.shape[time], Expr("where", (Expr("lt", (at, length), "bool"), back, at), LONG))

    def write(lo: Lowering, out: Tensor) -> None:
        given = [_count(lo, t.shape, time), _spread(lo.tensor(vl), t.shape, batch)]
        picked(lo, t, _indices(lo, tree, given, t.shape, (time, batch)), out, time)
    return placed(t.shape, t.dtype, write)


@lowers("TensorScatter", types=TYPES)
def tensor_scattered(lo: GpuLowering, node: Node) -> Pending | No:
    """A cache, some places of which are written, from where each sample says."""
    vx, vu, vi = (*node.inputs, None)[:3]
    x, update, attrs = lo.tensor(vx), lo.tensor(vu), node.attributes
    axis = normalized_axis(attrs["axis"], x.rank)
    steps = update.shape[axis] if update.rank == x.rank else -1
    if axis == 0 or update.shape != (*x.shape[:axis], steps, *x.shape[axis + 1:]) or not update.size or (
            steps > x.shape[axis] or update.dtype != x.dtype):
        return No("its update is empty or does not fit")
    if vi is not None and (lo.dtype(vi) not in INDICES or lo.shape(vi) != x.shape[:1]):
        return No("its indices do not fit")
    tree, given = Expr.leaf(0, LONG), [_count(lo, update.shape, axis)]
    if vi is not None:
        start = Expr.leaf(1, lo.dtype(vi)).cast(LONG)
        tree = Expr("add", (tree, start), LONG)
        if attrs["mode"] == "circular":
            tree = Expr("remainder", (tree, Expr.const(x.shape[axis], LONG)), LONG)
        tree = _positive(start, x.shape[axis], tree)

    def write(lo: Lowering, out: Tensor) -> None:
        more = [] if vi is None else [_spread(lo.tensor(vi), update.shape, 0)]
        lo.copy(x, out)
        put(lo, out, _indices(lo, tree, [*given, *more], update.shape, (0, axis)), update, axis, "none")
    return placed(x.shape, x.dtype, write)


@lowers("MaxUnpool", types=TYPES)
def unpooled(lo: GpuLowering, node: Node) -> Pending | No:
    """Zeros, and numbers where they came from."""
    vx, vi, vs = (*node.inputs, None)[:3]
    x, indices, attrs = lo.tensor(vx), lo.tensor(vi), node.attributes
    rank = x.rank - 2
    known = None if vs is None else lo.known(vs)
    if rank < 1 or not x.size or indices.shape != x.shape or indices.dtype != LONG or (
            vs is not None and known is None):
        return No("empty, or its indices do not fit")
    kernel, steps, pads = (list(attrs.get(name) or [fill] * count) for name, fill, count in (
        ("kernel_shape", 1, rank), ("strides", 1, rank), ("pads", 0, 2 * rank)))
    if (len(kernel), len(steps), len(pads)) != (rank, rank, 2 * rank):
        return No("its window does not fit")
    size = tuple((n - 1) * s + k - b - e for n, s, k, b, e in zip(
        x.shape[2:], steps, kernel, pads[:rank], pads[rank:], strict=True))
    target = (*x.shape[:2], *size) if known is None else tuple(known.tolist())
    if len(target) != x.rank or target[:2] != x.shape[:2]:
        return No("its output_shape does not fit")
    if any(t < s for t, s in zip(target[2:], size, strict=True)):
        size = target[2:]
    shape = (*x.shape[:2], *size)
    if min(shape) < 1:
        return No("its result is empty")
    place = _positive(Expr.leaf(0, LONG), math.prod(shape), Expr.leaf(0, LONG))

    def write(lo: Lowering, out: Tensor) -> None:
        flat = lo.new((math.prod(shape),), x.dtype)
        zero = Expr.const(0, "int32").cast(x.dtype)
        lo.store(flat, zero, [])
        places = lo.new(x.shape, LONG)
        lo.store(places, place, [indices])
        scattered(lo, flat, places.view((x.size, 1), (1, 1)),
                  lo.contiguous(x).view((x.size,), (1,)), 1, "none")
        inner = out
        if target != shape:
            lo.store(out, zero, [])
        for axis, own in enumerate(shape):
            inner = inner.slice(axis, 0, own)
        lo.copy(flat.view(shape, c_strides(shape)), inner)
    return placed(target, x.dtype, write)


@lowers("Col2Im", types=TYPES)
def columns_to_image(lo: GpuLowering, node: Node) -> Pending | Lazy | No:
    """An image, to which each tap of all blocks is added at once."""
    vx, vs, vb = node.inputs
    t, (size, kernel), attrs = lo.tensor(vx), (lo.known(v) for v in (vs, vb)), node.attributes
    if size is None or kernel is None or t.rank != 3 or not t.size or t.dtype == "bool":
        return No("the image's or the blocks' size is not known, or it is empty")
    high, block = size.tolist(), kernel.tolist()
    try:
        win = window(high, block, attrs.get("strides"), attrs.get("dilations"), attrs.get("pads"))
    except (TypeError, ValueError):
        return No("its window does not fit")
    count, places = math.prod(block), math.prod(win.out)
    if t.shape[1] % count or t.shape[2] != places or not all(high) or count > _TAPS:
        return No(f"its columns do not fit, or it has more than {_TAPS} taps")
    channels = t.shape[1] // count
    shape = (t.shape[0], channels, *high)
    work = "float32" if t.dtype in ("float16", "bfloat16") else t.dtype
    steps = [t.strides[1] * s for s in c_strides(block)], [t.strides[2] * s for s in c_strides(win.out)]
    columns = t.view((t.shape[0], channels, *block, *win.out),
                     (t.strides[0], t.strides[1] * count, *steps[0], *steps[1]))
    total = lo.new(shape, work)
    lo.store(total, Expr.const(0, "int32").cast(work), [])
    more = Expr("add", (Expr.leaf(0, work), Expr.leaf(1, t.dtype).cast(work)), work)
    for tap, outs, ins in taps(high, block, win.strides, win.dilations, win.begin, win.out):
        source, target = columns, total
        for axis in range(len(block)):
            source = _cut(source.slice(2 + axis, tap[axis], 1), 2 + len(block) + axis, outs[axis])
            target = _cut(target, 2 + axis, ins[axis])
        if target.size:
            moved = source.view(target.shape, (*source.strides[:2], *source.strides[2 + len(block):]))
            lo.store(target, more, [target, moved])
    return Lazy(shape, Expr.leaf(0, work).cast(t.dtype), [total])


def _cut(t: Tensor, axis: int, part: slice) -> Tensor:
    places = range(*part.indices(t.shape[axis]))
    return t.slice(axis, places.start, len(places), places.step)


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
    index = Expr("where", (kept, _positive(label, classes, label), Expr.const(0, LONG)), LONG)
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
