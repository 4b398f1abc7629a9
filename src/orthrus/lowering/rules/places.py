"""Elements at computed places: reversed sequences, caches written in the middle, maxima put back, columns
added into images.

In: indices from inputs, or from trees over them. Out: what the kernels that gather and fold make of these.
An index out of range makes the part start again by the definitions, which have the error.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...codegen.write.expr import Expr
from ...ir import No, Node
from ...ops.define import normalized_axis
from ...ops.nn.geometry import taps, window
from ...ops.tensor.index import WRITE_MODES
from ..lower import BOTH, Lazy, Lowering, Pending, lowers
from ..tensor import Tensor, c_strides
from .gather import INDICES, TYPES, from_front, gathered, placed, put, scattered
from .rows import lying

LONG = "int64"

_TAPS = 128
"""Taps of columns up to which there is a step for each."""


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


def positive(given: Expr, size: int, index: Expr) -> Expr:
    """`index`, or one that is out of range where `given`, which counts from the front alone, is below 0."""
    below = Expr("lt", (given, Expr.const(0, LONG)), "bool")
    return Expr("where", (below, Expr.const(size, LONG), index), LONG)


@lowers("ReverseSequence", types=TYPES, sets=BOTH)
def reversed_sequence(lo: Lowering, node: Node) -> Pending | No:
    """Each sequence from its own end on backwards."""
    vx, vl = node.inputs
    assert vx is not None and vl is not None
    t, attrs = lo.tensor(vx), node.attributes
    time, batch = (normalized_axis(attrs[name], t.rank) for name in ("time_axis", "batch_axis"))
    if not t.size or lo.dtype(vl) not in INDICES or lo.shape(vl) != (t.shape[batch],):
        return No("empty, or its lengths do not fit")
    at, length = Expr.leaf(0, LONG), Expr.leaf(1, lo.dtype(vl)).cast(LONG)
    back = Expr("sub", (Expr("sub", (length, Expr.const(1, LONG)), LONG), at), LONG)
    tree = positive(length, t.shape[time], Expr("where", (Expr("lt", (at, length), "bool"), back, at), LONG))

    order = [batch, time, *(a for a in range(t.rank) if a not in (batch, time))]
    row = (t.shape[batch], t.shape[time], 1)

    def write(lo: Lowering, out: Tensor) -> None:
        lengths, places = lo.tensor(vl), lo.new(row, LONG)
        lo.store(places, tree, [lo.counted(0, row[1]).view(row, (0, 1, 0)),
                                lengths.view(row, (lengths.strides[0], 0, 0))])
        gathered(lo, t.permute(order), places, out.permute(order), 1, 1, 1, True)
    return placed(t.shape, t.dtype, write, lying(t))


@lowers("TensorScatter", types=TYPES, sets=BOTH)
def tensor_scattered(lo: Lowering, node: Node) -> Pending | No:
    """A cache, some places of which are written, from where each sample says."""
    vx, vu, vi = (*node.inputs, None)[:3]
    x, update, attrs = lo.tensor(vx), lo.tensor(vu), node.attributes
    axis = normalized_axis(attrs["axis"], x.rank)
    steps = update.shape[axis] if update.rank == x.rank else -1
    if axis == 0 or update.shape != (*x.shape[:axis], steps, *x.shape[axis + 1:]) or not update.size or (
            steps > x.shape[axis] or update.dtype != x.dtype):
        return No("its update is empty or does not fit")
    if attrs["mode"] not in WRITE_MODES:
        return No(f"its mode {attrs['mode']!r} is unknown")
    if vi is not None and (lo.dtype(vi) not in INDICES or lo.shape(vi) != x.shape[:1]):
        return No("its indices do not fit")
    tree, given = Expr.leaf(0, LONG), [_count(lo, update.shape, axis)]
    if vi is not None:
        start = Expr.leaf(1, lo.dtype(vi)).cast(LONG)
        tree = Expr("add", (tree, start), LONG)
        if attrs["mode"] == "circular":
            tree = Expr("remainder", (tree, Expr.const(x.shape[axis], LONG)), LONG)
        tree = positive(start, x.shape[axis], tree)

    def write(lo: Lowering, out: Tensor) -> None:
        more = [] if vi is None else [_spread(lo.tensor(vi), update.shape, 0)]
        lo.copy(x, out)
        put(lo, out, _indices(lo, tree, [*given, *more], update.shape, (0, axis)), update, axis, "none")
    return placed(x.shape, x.dtype, write)


@lowers("MaxUnpool", types=TYPES, sets=BOTH)
def unpooled(lo: Lowering, node: Node) -> Pending | No:
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

    def write(lo: Lowering, out: Tensor) -> None:
        count, whole = math.prod(shape), target == shape and out.contiguous
        flat = out.view((count,), (1,)) if whole else lo.new((count,), x.dtype)
        zero = Expr.const(0, "int32").cast(x.dtype)
        lo.store(flat, zero, [])
        places = from_front(lo, indices).view((x.size, 1), (1, 1))
        scattered(lo, flat, places, lo.contiguous(x).view((x.size,), (1,)), 1, "none")
        if whole:
            return
        inner = out
        if target != shape:
            lo.store(out, zero, [])
        for axis, own in enumerate(shape):
            inner = inner.slice(axis, 0, own)
        lo.copy(flat.view(shape, c_strides(shape)), inner)
    return placed(target, x.dtype, write)


@lowers("Col2Im", types=TYPES, sets=BOTH)
def columns_to_image(lo: Lowering, node: Node) -> Pending | Lazy | No:
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


