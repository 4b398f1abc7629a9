"""Images with two spatial axes read at computed places: GridSample, regions, deformed convolutions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...codegen.kernels.grid_sample import grid_taps, region_samples, region_windows
from ...codegen.write.expr import Expr
from ...ir import No, Node
from ...ops.nn.geometry import Window, window
from ..lower import RULES, Lazy, Lowering, Out, Pending, Source, lowers
from ..tensor import Tensor, last_strides
from .gather import INDICES, placed
from .pool import framed, pixels
from .rows import FLOATS, F

MODES = {"bilinear": "linear", "bicubic": "cubic"}
"""Names of older versions, and the newer ones."""

ENDS = ("edges", "centres")
"""What -1 and 1 are, without and with `align_corners`."""

_TAPS = 64
"""Taps of a deformed convolution up to which there is a step for each."""

_RATIO = 1 << 10
"""Samples of a bin along an axis that a model may ask for."""

_SUM = Expr("add", (Expr.leaf(0, F), Expr.leaf(1, F)), F)


@lowers("GridSample", "com.microsoft::GridSample", types=FLOATS)
def grid_sample(lo: Lowering, node: Node) -> Pending | No:
    """Each output pixel from up to sixteen input pixels."""
    x, places = node.inputs
    assert x is not None and places is not None
    shape, where, attrs = lo.shape(x), lo.shape(places), node.attributes
    if len(shape) != 4 or len(where) != 4 or 0 in (*shape, *where) or where[0] != shape[0] or where[3] != 2:
        return No("kernels sample images with two spatial axes")
    if lo.dtype(places) not in FLOATS:
        return No(f"no generated kernel reads coordinates of {lo.dtype(places)}")
    mode, padding = MODES.get(attrs["mode"], attrs["mode"]), attrs["padding_mode"]
    if mode not in ("linear", "nearest", "cubic") or padding not in ("zeros", "border", "reflection"):
        return No(f"no generated kernel for mode {mode} and padding {padding}")
    t, g = lo.channels_last(lo.tensor(x)), lo.tensor(places)

    def emit(lo: Lowering, out: Tensor, tree: Expr | None, operands: Sequence[Tensor]) -> None:
        frame = framed(lo, t, out, tree, operands)
        spec = grid_taps(grid=g.dtype, mode=mode, padding=padding, ends=ENDS[bool(attrs["align_corners"])],
                         **frame.params)
        cells = [*frame.cells, t, *frame.walked(t), *shape[2:], g, *g.strides]
        lo.step(spec, cells, frame.items, frame.grain)
    return pixels((*shape[:2], *where[1:3]), lo.dtype(x), t, emit)


@lowers("RoiAlign", types=FLOATS)
def aligned_regions(lo: Lowering, node: Node) -> Pending | No:
    """The mean or the largest of samples in each bin of a region."""
    vx, vr, vi = node.inputs
    assert vi is not None
    attrs, images = node.attributes, lo.tensor(vi)
    mode = attrs.get("coordinate_transformation_mode", "output_half_pixel")
    bins, ratio = (attrs["output_height"], attrs["output_width"]), attrs["sampling_ratio"]
    if images.dtype not in INDICES or images.shape != lo.shape(vr)[:1] or not 0 <= ratio <= _RATIO or (
            attrs["mode"] not in ("avg", "max") or mode not in ("half_pixel", "output_half_pixel")):
        return No(f"its images do not fit, its mode is unknown, or a bin has more than {_RATIO} samples")
    return _regions(lo, node, 4, bins, [ratio, images, *images.strides], region_samples, index=images.dtype,
                    kind="average" if attrs["mode"] == "avg" else "max", half=mode == "half_pixel")


@lowers("MaxRoiPool", types=FLOATS)
def pooled_regions(lo: Lowering, node: Node) -> Pending | No:
    """The largest number in each bin of a region."""
    return _regions(lo, node, 5, node.attributes["pooled_shape"], [], region_windows)


def _regions(lo: Lowering, node: Node, numbers: int, bins: Sequence[int], more: Sequence[Any],
             kernel: Callable[..., Any], **params: Any) -> Pending | No:
    """A small image for each region, which so many numbers describe."""
    vx, vr = node.inputs[:2]
    assert vx is not None and vr is not None
    shape, given = lo.shape(vx), lo.shape(vr)
    if len(shape) != 4 or given[1:] != (numbers,) or 0 in (*shape, *given) or len(bins) != 2 or (
            min(bins) < 1 or lo.dtype(vr) not in FLOATS):
        return No("its regions do not fit its image, or one of them is empty")
    t, regions = lo.channels_last(lo.tensor(vx)), lo.tensor(vr)

    def emit(lo: Lowering, out: Tensor, tree: Expr | None, operands: Sequence[Tensor]) -> None:
        frame = framed(lo, t, out, tree, operands)
        spec = kernel(regions=regions.dtype, **params, **frame.params)
        cells = [*frame.cells, t, *frame.walked(t), shape[0], *shape[2:], bins[0], regions, *regions.strides,
                 Out(lo.status), float(node.attributes["spatial_scale"]), *more]
        lo.step(spec, cells, frame.items, frame.grain)
    return pixels((given[0], shape[1], *bins), lo.dtype(vx), t, emit)


@lowers("DeformConv", types=(F,))
def deformed_convolution(lo: Lowering, node: Node) -> Lazy | Pending | No:
    """Each tap's pixels are sampled where the offsets say, and lie beside each other; what is left is a
    product with the weights."""
    vx, vw, vo, vb, vm = (*node.inputs, None, None)[:5]
    attrs, x, w, offset = node.attributes, lo.tensor(vx), lo.tensor(vw), lo.tensor(vo)
    mask, bias = (None if v is None else lo.tensor(v) for v in (vm, vb))
    group, own, (n, c) = attrs["group"], attrs["offset_group"], x.shape[:2]
    if x.rank != 4 or w.rank != 4 or 0 in (*x.shape, *w.shape):
        return No("it is empty, or it has not two spatial axes")
    try:
        win = window(x.shape[2:], attrs.get("kernel_shape") or w.shape[2:], attrs.get("strides"),
                     attrs.get("dilations"), attrs.get("pads"))
    except (TypeError, ValueError):
        return No("its window does not fit")
    taps = list(np.ndindex(*win.kernel))
    count, sums, many = len(taps), w.shape[0], w.shape[1]
    if min(own, group) < 1 or c % math.lcm(own, group) or sums % group or w.shape != (
            sums, c // group, *win.kernel) or count > _TAPS or 0 in win.out:
        return No(f"its weights do not fit, its result is empty, or it has more than {_TAPS} taps")
    if offset.shape != (n, own * count * 2, *win.out) or (bias is not None and bias.shape != (sums,)) or (
            mask is not None and mask.shape != (n, own * count, *win.out)):
        return No("its offsets, its mask or its bias do not fit")

    def write(lo: Lowering, out: Tensor) -> None:
        places = lo.new(offset.shape, F)
        _moved(lo, offset, places, taps, win)
        columns = lo.new((n, group * count * many, *win.out), F,
                         last_strides((n, group * count * many, *win.out), group * count * many))
        source, pieces = lo.channels_last(x), math.lcm(own, group)
        each = c // pieces
        for piece, tap in itertools.product(range(pieces), range(count)):
            at = piece * own // pieces * count + tap
            first, among = divmod(piece * each, many)
            _sampled(lo, source.slice(1, piece * each, each), places.slice(1, 2 * at, 2),
                     None if mask is None else mask.slice(1, at, 1),
                     columns.slice(1, (first * count + tap) * many + among, each))
        rows, depth, pixels = sums // group, count * many, math.prod(win.out)
        factor = lo.copied(lo.contiguous(w).view((1, sums, count, many), (0, depth, 1, count)),
                           (0, depth, many, 1))
        plain = out if out.contiguous else lo.new(out.shape, F)
        RULES.steps["product"](
            lo, factor.view((1, group, rows, depth), (0, rows * depth, depth, 1)),
            columns.view((n, group, depth, pixels), (columns.strides[0], depth, 1, group * depth)),
            plain.view((n, group, rows, pixels), (plain.strides[0], rows * pixels, pixels, 1)))
        if plain is not out:
            lo.copy(plain, out)
    made = placed((n, sums, *win.out), F, write)
    if bias is None:
        return made
    spread = bias.view((1, sums, 1, 1), (0, bias.strides[0], 0, 0))
    return Lazy(made.shape, _SUM, [Source(made), spread])


def _moved(lo: Lowering, offset: Tensor, places: Tensor, taps: Sequence[tuple[int, ...]], win: Window
           ) -> None:
    """Where each tap of each window reads, along both axes."""
    n, groups = offset.shape[0], offset.shape[1] // (2 * len(taps))
    for a in (0, 1):
        given, out = (t.view((n, groups, len(taps), *win.out),
                             (t.strides[0], 2 * len(taps) * t.strides[1], 2 * t.strides[1], *t.strides[2:]),
                             a * t.strides[1]) for t in (offset, places))
        starts = lo.table(_starts, win.out[a], win.strides[a], win.begin[a])
        spread = lo.table(_spread, tuple(tap[a] for tap in taps), win.dilations[a])
        lo.store(out, Expr("add", (_SUM, Expr.leaf(2, F)), F), [
            given, spread.view((1, 1, len(taps), 1, 1), (0, 0, 1, 0, 0)),
            starts.view((1, 1, 1, *(d if b == a else 1 for b, d in enumerate(win.out))),
                        (0, 0, 0, 1 - a, a))])


def _sampled(lo: Lowering, x: Tensor, places: Tensor, mask: Tensor | None, out: Tensor) -> None:
    """out = mask times x at `places` (N, 2, H, W), numbers of pixels."""
    ends = places.slice(1, 1, 2, -1).permute((0, 2, 3, 1))
    scale = [] if mask is None else [mask.expand(out.shape)]
    frame = framed(lo, x, out, Expr("mul", (Expr.leaf(0, F), Expr.leaf(1, F)), F) if scale else None, scale)
    spec = grid_taps(grid=F, mode="linear", padding="zeros", ends="pixels", **frame.params)
    lo.step(spec, [*frame.cells, x, *frame.walked(x), *x.shape[2:], ends, *ends.strides], frame.items,
            frame.grain)


def _starts(count: int, step: int, begin: int) -> np.ndarray:
    """Where the windows of an axis begin."""
    return (np.arange(count) * step - begin).astype(np.float32)


def _spread(places: tuple[int, ...], apart: int) -> np.ndarray:
    """How far taps are from the beginning of their window."""
    return np.array(places, np.float32) * apart
