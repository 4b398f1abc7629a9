"""Pooling, and the norm over neighbouring channels."""

from __future__ import annotations

import functools
import math
from typing import Any

from ....codegen.triton.kernels.pooling import LOWEST, pooling, response_norm, summed
from ....codegen.write.expr import Expr
from ....ir import No, Node
from ....ops.nn.geometry import Window, window
from ...rules.quantized import qlinear
from ...rules.rows import F, alive
from ...tensor import Tensor, c_strides, last_strides
from ...walk import order_like
from ..lower import GpuLowering, Lazy, Pending, Source, lowers
from ..slides import Windows, slid, tile_of
from ..walks import closed

FLOATS = ("float32", "float16", "bfloat16", "float64")

_KINDS: dict[str | float, str] = {"MaxPool": "max", "AveragePool": "average", 1.0: "l1", 2.0: "l2"}
"""What a window gives, by operator, or by the norm it is."""


def _window(shape: tuple[int, ...], attrs: dict[str, Any]) -> Window | No:
    if not 3 <= len(shape) <= 5 or 0 in shape:
        return No("kernels pool one to three spatial axes of images that are not empty")
    try:
        win = window(shape[2:], attrs["kernel_shape"], attrs.get("strides"), attrs.get("dilations"),
                     attrs.get("pads"), short=True,
                     **{key: attrs[key] for key in ("auto_pad", "ceil_mode") if key in attrs})
    except (KeyError, TypeError, ValueError):
        return No("its window does not fit")
    if 0 in win.out:
        return No("its output is empty")
    if any(max(b, e) > (k - 1) * d
           for k, d, b, e in zip(win.kernel, win.dilations, win.begin, win.end, strict=True)):
        return No("its padding is wider than its kernel")
    return win


@lowers("MaxPool", "AveragePool", "LpPool", types=(*FLOATS, *LOWEST))
def pooled(lo: GpuLowering, node: Node) -> Lazy | Pending | tuple[Tensor, Tensor] | No:
    """One number per window and channel, and for MaxPool its place."""
    (x,) = node.inputs
    assert x is not None
    attrs, dtype = node.attributes, lo.dtype(x)
    kind = _KINDS.get(node.op_type) or _KINDS.get(float(attrs.get("p") or 0), "lp")
    if kind != "max" and dtype not in FLOATS:
        return No(f"kernels have no mean or norm of {dtype}")
    made = windowed(lo, lo.tensor(x), kind, attrs, alive(lo, node, 1))
    if not isinstance(made, Pending) or made.dtype == dtype:
        return made
    return Lazy(made.shape, Expr.leaf(0, made.dtype).cast(dtype), [Source(made)])


def windowed(lo: GpuLowering, t: Tensor, kind: str, attrs: dict[str, Any], counted: bool = False
             ) -> Pending | tuple[Tensor, Tensor] | No:
    """One number per window of `t` (N, C, spatial...), in the type it is computed in; with `counted` the
    largest and its place."""
    dtype, p = t.dtype, float(attrs.get("p") or 0)
    win = _window(t.shape, attrs)
    if isinstance(win, No):
        return win
    if kind == "lp" and (not p > 0 or dtype == "float64"):
        return No(f"no kernel for p = {p} and {dtype}")
    shape = (*t.shape[:2], *win.out)
    rows, channels = t.shape[0] * math.prod(win.out), t.shape[1]
    windows = Windows(win.kernel, win.strides, win.dilations, win.begin, win.out)
    it, tile = slid(t, windows), tile_of(rows, channels, t.strides[1] == 1)
    groups = [[0, *range(2, t.rank)], [1]]
    sums, near = summed(kind, dtype), t.strides[1] == 1
    extra: list[int | float] = [p] if kind == "lp" else []
    if kind == "average":
        padded = attrs["count_include_pad"]
        extra = [number for i in it.bounded for number in (
            (-win.begin[i], win.size[i] + win.end[i]) if padded else (0, win.size[i]))]
    params = {"kind": kind, "dtype": dtype, "slide": it.slide, "taps": it.taps, "near": near, "tile": tile}
    numbers = [*it.numbers, rows, channels, *([] if near else [t.strides[1]])]
    items = -(-rows // tile.m) * -(-channels // tile.n)

    def emit(lo: GpuLowering, out: Tensor, tree: Expr | None, operands: list[Tensor]) -> None:
        closing, cells = closed(out, tree, operands, sums, groups)
        lo.step(pooling(**params, closing=closing), [it.image, *cells, *numbers, *extra], items)
    if not counted:
        return Pending(shape, sums, emit, last_strides(shape, channels) if near else None)
    best, places = lo.new(shape, dtype), lo.new(shape, "int64")
    order = c_strides(t.shape) if not attrs["storage_order"] else (
        *c_strides(t.shape)[:2], *reversed(c_strides(tuple(reversed(t.shape[2:])))))
    counter = slid(t.view(t.shape, order), windows)
    closing, cells = closed(best, None, [], dtype, groups)
    placing, placed = closed(places, None, [], "int64", groups)
    lo.step(pooling(**params, closing=closing, places=(placing, counter.slide)), [
        it.image, *cells, *numbers, *placed, *counter.numbers, math.prod(t.shape[2:])], items)
    return best, places


def _of_bytes(lo: GpuLowering, t: Tensor, kind: str, attrs: dict[str, Any], low: Tensor | None = None
              ) -> Pending | tuple[Tensor, Tensor] | No:
    """The largest byte of each window, or the mean of what the bytes are more than `low`."""
    if low is not None:
        real = lo.new(t.shape, F, order_like(t, t))
        less = Expr("sub", (Expr.leaf(0, t.dtype).cast(F), Expr.leaf(1, F)), F)
        lo.store(real, less, [t, low.view((), ())])
        t = real
    return windowed(lo, t, kind, attrs)


_RULES: dict[str, Any] = {
    "NhwcMaxPool": qlinear.nhwc_max_pool, "QLinearAveragePool": qlinear.qlinear_average_pool,
}
for _kind, _rule in _RULES.items():
    lowers(qlinear.MS + _kind, types=tuple(LOWEST))(functools.partial(_rule, pool=_of_bytes))


@lowers("LRN", types=FLOATS[:3])
def response_normed(lo: GpuLowering, node: Node) -> Lazy | Pending | No:
    """Each channel over a power of the squares around it."""
    (x,) = node.inputs
    assert x is not None
    attrs, shape, dtype = node.attributes, lo.shape(x), lo.dtype(x)
    if len(shape) < 2 or attrs["size"] < 1 or 0 in shape:
        return No("it has no channels")
    t, sums = lo.tensor(x), summed("average", dtype)
    rest = t.rank - 2
    it = slid(t, Windows((1,) * rest, (1,) * rest, (1,) * rest, (0,) * rest, t.shape[2:]))
    rows, channels, near = t.size // t.shape[1], t.shape[1], t.strides[1] == 1
    tile = tile_of(rows, channels, t.strides[1] == 1)

    def emit(lo: GpuLowering, out: Tensor, tree: Expr | None, operands: list[Tensor]) -> None:
        closing, cells = closed(out, tree, operands, sums, [[0, *range(2, out.rank)], [1]])
        reach = min(attrs["size"], max(2 * channels - 1, 1))
        spec = response_norm(dtype=dtype, slide=it.slide, near=near, tile=tile, closing=closing)
        lo.step(spec, [it.image, *cells, *it.numbers, rows, channels, *([] if near else [t.strides[1]]),
                       reach, float(attrs["bias"]), attrs["alpha"] / attrs["size"], float(attrs["beta"])],
                -(-rows // tile.m) * -(-channels // tile.n))
    waiting = Pending(shape, sums, emit, last_strides(shape, channels) if near and rest else None)
    return waiting if sums == dtype else Lazy(shape, Expr.leaf(0, sums).cast(dtype), [Source(waiting)])
