"""Boxes on feature maps, and the grids of affine maps."""

from __future__ import annotations

from typing import Any

import numpy as np

from ....codegen.triton.kernels.regions import region_bins
from ....codegen.write.expr import Expr
from ....ir import No, Node
from ...rules.gather import INDICES
from ...rules.rows import FLOATS
from ...tensor import Tensor
from ..elements import power
from ..lower import GpuLowering, Lazy, Out, Pending, Source, lowers
from ..walks import closed

F = "float32"

_RATIO = 1 << 10
"""Samples of a bin along an axis that a model may ask for."""

_BLOCK = 128
"""Bins of a block."""


@lowers("RoiAlign", types=FLOATS)
def aligned_regions(lo: GpuLowering, node: Node) -> Lazy | No:
    """The mean or the largest of samples in each box's bins."""
    vx, vr, vi = node.inputs
    assert node.op is not None
    attrs, x, boxes, images = node.attributes, lo.tensor(vx), lo.tensor(vr), lo.tensor(vi)
    rows, columns, ratio = (attrs[name] for name in ("output_height", "output_width", "sampling_ratio"))
    mode = attrs.get("coordinate_transformation_mode", "output_half_pixel")
    if x.rank != 4 or boxes.rank != 2 or boxes.shape[1] != 4 or images.shape != boxes.shape[:1] or (
            not x.size or not boxes.size or boxes.dtype != x.dtype or images.dtype not in INDICES):
        return No("its boxes do not fit its map, or it is empty")
    if min(rows, columns) < 1 or not 0 <= ratio <= _RATIO or attrs["mode"] not in ("avg", "max") or (
            mode not in ("half_pixel", "output_half_pixel")):
        return No(f"its bins are none, of more than {_RATIO} samples, or of an unknown mode")
    shape = (boxes.shape[0], x.shape[1], rows, columns)
    kind = "average" if attrs["mode"] == "avg" else "max"

    def emit(lo: GpuLowering, out: Tensor, tree: Expr | None, operands: list[Tensor]) -> None:
        closing, cells = closed(out, tree, operands, F, [range(4)])
        block = min(_BLOCK, max(lo.target.warp, power(out.size)))
        spec = region_bins(dtype=x.dtype, index=images.dtype, kind=kind, half=mode == "half_pixel",
                           closing=closing, block=block)
        given: list[Any] = [x, boxes, images, Out(lo.status), *cells, out.size, x.shape[0], *shape[1:],
                            *x.shape[2:], *x.strides, *boxes.strides, *images.strides, ratio,
                            float(attrs["spatial_scale"])]
        lo.step(spec, given, -(-out.size // block))
    made = Pending(shape, F, emit)
    return Lazy(shape, Expr.leaf(0, F).cast(x.dtype), [Source(made)])


@lowers("AffineGrid", types=(*FLOATS, "float64"))
def affine_grid(lo: GpuLowering, node: Node) -> Lazy | No:
    """At each place the sum of its coordinates, each times a column of the map."""
    vt, vs = node.inputs
    known, theta = lo.known(vs), lo.tensor(vt)
    dims = [] if known is None else known.tolist()
    rank = len(dims) - 2
    if rank not in (2, 3) or theta.shape != (dims[0], rank, rank + 1) or min(dims) < 1:
        return No("its size is not known, empty or does not fit its maps")
    work = "float64" if theta.dtype == "float64" else F
    shape = (dims[0], *dims[2:], rank)
    operands = list[Tensor]()

    def column(j: int) -> Expr:
        operands.append(theta.view((dims[0], *(1,) * rank, rank),
                                   (theta.strides[0], *(0,) * rank, theta.strides[1]), j * theta.strides[2]))
        return Expr.leaf(len(operands) - 1, theta.dtype).cast(work)
    total = column(rank)
    for a, n in enumerate(dims[2:]):
        line = lo.table(_line, n, bool(node.attributes["align_corners"]), work)
        operands.append(line.view([n if b == a + 1 else 1 for b in range(rank + 2)],
                                  [int(b == a + 1) for b in range(rank + 2)]))
        place = Expr.leaf(len(operands) - 1, work)
        total = Expr("add", (total, Expr("mul", (place, column(rank - 1 - a)), work)), work)
    return Lazy(shape, total.cast(theta.dtype), [*operands])


def _line(count: int, ends: bool, dtype: str) -> np.ndarray:
    """Coordinates of pixels from -1 to 1: of their middles, or with `ends` from the first to the last."""
    made = np.linspace(-1, 1, count) if ends else (2 * np.arange(count) + 1) / count - 1
    return made.astype(dtype)
