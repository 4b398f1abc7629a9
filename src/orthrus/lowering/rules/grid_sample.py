"""GridSample of images with two spatial axes."""

from __future__ import annotations

from collections.abc import Sequence

from ...codegen.kernels.grid_sample import grid_taps
from ...codegen.write.expr import Expr
from ...ir import No, Node
from ..lower import Lowering, Pending, lowers
from ..tensor import Tensor
from .pool import framed, pixels
from .rows import FLOATS

MODES = {"bilinear": "linear", "bicubic": "cubic"}
"""Names of older versions, and the newer ones."""


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
        spec = grid_taps(grid=g.dtype, mode=mode, padding=padding, align=bool(attrs["align_corners"]),
                         **frame.params)
        cells = [*frame.cells, t, *frame.walked(t), *shape[2:], g, *g.strides]
        lo.step(spec, cells, frame.items, frame.grain)
    return pixels((*shape[:2], *where[1:3]), lo.dtype(x), t, emit)
