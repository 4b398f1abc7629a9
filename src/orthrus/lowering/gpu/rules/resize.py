"""Resize, Upsample and GridSample: pixels out of a few pixels, by tables or by a grid."""

from __future__ import annotations

import math

import numpy as np

from ....codegen.kernels.resize import table
from ....codegen.triton.kernels import sampling
from ....codegen.triton.kernels.sampling import CUBIC, LINEAR, NEAREST, REFLECTION, ZEROS
from ....codegen.write.expr import BYTES, Expr
from ....ir import No, Node
from ....shapes.symbolic import choice, memo
from ...rules.resize import LONGEST, Along, resizing
from ...tensor import Tensor, extent, last_strides
from ...walk import order_like
from ..lower import GpuLowering, Lazy, Pending, Source, lowers
from ..slides import tile_of
from ..walks import LONG, closed

FLOATS = ("float32", "float16", "bfloat16")


def _as(waiting: Pending, dtype: str) -> Pending | Lazy:
    """What a kernel gives as the operator's own type."""
    if waiting.dtype == dtype:
        return waiting
    return Lazy(waiting.shape, Expr.leaf(0, waiting.dtype).cast(dtype), [Source(waiting)])


def _wide(t: Tensor) -> bool:
    return extent(t.shape, [abs(s) for s in t.strides]) >= LONG


def _lifted(t: Tensor) -> Tensor:
    """With an axis of 1 behind all others."""
    return t.view((*t.shape, 1), (*t.strides, 0))


@lowers("Resize", "Upsample", types=tuple(BYTES))
def resized(lo: GpuLowering, node: Node) -> Lazy | Pending | No:
    """Each axis by a table of what its elements read, made once per length."""
    x = node.inputs[0]
    assert x is not None and node.op is not None
    shape, dtype, attrs = lo.shape(x), lo.dtype(x), node.attributes
    nearest = attrs["mode"] == "nearest"
    if 0 in shape or not shape or (dtype not in FLOATS and not nearest):
        return No(f"no generated kernel interpolates {dtype} or what is empty")
    wanted = resizing(lo, node, attrs, shape)
    if isinstance(wanted, No):
        return wanted
    if max((d for d, along in zip(shape, wanted, strict=True) if along is not None), default=0) > LONGEST:
        return No("kernels resize axes of moderate length")
    axes = [*(None if along is None else (along, d, nearest)
              for along, d in zip(wanted, shape, strict=True)), None]
    sizes = [None if it is None else _size(*it) for it in axes]
    made = tuple(d if it is None else it[0] for d, it in zip(shape, sizes, strict=False))
    if 0 in made:
        return No("its output is empty")
    t = _lifted(lo.tensor(x))
    channel = min((a for a, it in enumerate(axes) if it is None),
                  key=lambda a: (t.shape[a] == 1, abs(t.strides[a])))
    over = [a for a in range(t.rank) if a != channel]
    taps = tuple(0 if (size := sizes[a]) is None else size[1] for a in over)
    given = [lo.table(make, *it) for a, count in zip(over, taps, strict=True) if (it := axes[a]) is not None
             for make in (_places, _weights)[:1 + (count > 1)]]
    sums = "float32" if max(taps) > 1 else dtype

    def emit(lo: GpuLowering, out: Tensor, tree: Expr | None, operands: list[Tensor]) -> None:
        closing, cells = closed(_lifted(out), tree, [_lifted(o) for o in operands], sums, [over, [channel]])
        channels = t.shape[channel]
        rows, last = out.size // channels, t.strides[channel]
        tile = tile_of(rows, channels, last == 1)
        spec = sampling.resize(dtype=dtype, taps=taps, near=last == 1, wide=_wide(t), tile=tile,
                               closing=closing)
        lo.step(spec, [t, *given, *cells, *[_lifted(out).shape[a] for a in over[1:]],
                       *[t.strides[a] for a in over], rows, channels, *([] if last == 1 else [last])],
                -(-rows // tile.m) * -(-channels // tile.n))
    strides = order_like(Tensor(dtype, made, t.strides[:-1], t.buffer), t.view(t.shape[:-1], t.strides[:-1]))
    return _as(Pending(made, sums, emit, strides), dtype)


_tabled = memo(1 << 6)(table)


@choice()
def _size(along: Along, length: int, nearest: bool) -> tuple[int, int]:
    """Elements of the result along an axis, and how many places each reads."""
    places, _ = _tabled(along, length, nearest)
    return len(places), places.shape[1]


def _places(along: Along, length: int, nearest: bool) -> np.ndarray:
    """Of the image, by element of the result: int32."""
    return _tabled(along, length, nearest)[0]


def _weights(along: Along, length: int, nearest: bool) -> np.ndarray:
    """Of the places, float32."""
    return _tabled(along, length, nearest)[1]


_MODES = {"linear": LINEAR, "bilinear": LINEAR, "nearest": NEAREST, "cubic": CUBIC, "bicubic": CUBIC}


@lowers("GridSample", "com.microsoft::GridSample", types=FLOATS)
def grid_sampled(lo: GpuLowering, node: Node) -> Lazy | Pending | No:
    """Each pixel out of those around the place that the grid names."""
    x, places = node.inputs
    assert x is not None and places is not None
    shape, where, attrs, dtype = lo.shape(x), lo.shape(places), node.attributes, lo.dtype(x)
    rank = len(shape) - 2
    if not 1 <= rank <= 3 or len(where) != len(shape) or 0 in (*shape, *where) or where[0] != shape[0] or (
            where[-1] != rank):
        return No("kernels sample images with one to three spatial axes that are not empty")
    mode, padding = _MODES.get(attrs["mode"]), attrs["padding_mode"]
    if mode is None or padding not in (ZEROS, sampling.BORDER, REFLECTION) or lo.dtype(places) not in FLOATS:
        return No(f"no generated kernel for mode {attrs['mode']}, {padding}, a grid of {lo.dtype(places)}")
    t, g = lo.tensor(x), lo.tensor(places)
    made = (*shape[:2], *where[1:-1])
    rows, channels, last = math.prod(made) // shape[1], shape[1], t.strides[1]
    sums, tile = dtype if mode == NEAREST else "float32", tile_of(rows, channels, last == 1)

    def emit(lo: GpuLowering, out: Tensor, tree: Expr | None, operands: list[Tensor]) -> None:
        closing, cells = closed(out, tree, operands, sums, [[0, *range(2, out.rank)], [1]])
        spec = sampling.grid_sample(
            dtype=dtype, grid=g.dtype, rank=rank, mode=mode, padding=padding,
            aligned=bool(attrs["align_corners"]), near=last == 1, wide=_wide(t) or _wide(g), tile=tile,
            closing=closing)
        lo.step(spec, [t, g, *cells, *made[2:], *shape[2:], t.strides[0], *t.strides[2:], *g.strides, rows,
                       channels, *([] if last == 1 else [last])],
                -(-rows // tile.m) * -(-channels // tile.n))
    return _as(Pending(made, sums, emit, last_strides(made, channels) if last == 1 else None), dtype)
