"""Convolutions to few channels plane by plane: lanes of a vector are pixels of a row, not channels."""

from __future__ import annotations

import numpy as np

from ...codegen.kernels.conv import planes
from ...codegen.kernels.conv.copies import pad_rows
from ...codegen.kernels.conv.geometry import Geometry
from ...codegen.write.expr import Expr
from ..lower import Lowering, Out
from ..tensor import Tensor
from ..walk import Walked
from .conv_weights import Computed, Known, Weights

FEW = 4
"""Channels of a group's results up to which this is the way."""
SHORT, WIDE = 9, 6
"""Taps of many groups up to which it is, and vectors in a row from which on."""
_F32 = "float32"


class Planes:
    """One convolution of `x` (N, C, H, W), ready to be written into an output."""

    def __init__(self, lo: Lowering, g: Geometry, x: Tensor, weights: Known) -> None:
        self.g, self.weights = g, weights
        high, wide = ((n - 1) * s + (k - 1) * d + 1 for n, s, k, d in zip(
            g.out[1:], g.strides[1:], g.kernel[1:], g.dilations[1:], strict=True))
        self.x = _with_margins(lo, x, g, high, wide)
        self.plan = planes.plan(g.within((1, high, wide)), lo.machine)

    def write(self, lo: Lowering, out: Tensor, tree: Expr | None, operands: list[Tensor]) -> None:
        """Append the steps that put the tree of the convolution into `out`."""
        if 0 in out.shape:
            return
        alike = all(not t.strides[a] or t.shape[a] == 1 for t in operands for a in range(t.rank) if a != 1)
        direct = alike and out.dtype == _F32 and out.strides[-1] == 1
        target, then, given = (out, tree, operands) if direct else (lo.new(out.shape, _F32), None, [])
        image = _image(target)
        packed = lo.constant((*self.weights.key, "planes", self.plan.outs),
                             lambda: self.plan.pack(np.asarray(self.weights.make(), np.float32)))
        x, plan = self.x, self.plan
        cells = plan.cells((x.strides[0], x.strides[1], x.strides[2]), image.strides[:3])
        rest = [cell for t in given for cell in (Walked(t, t.shape, t.strides), t.strides[1])]
        lo.step(plan.spec(then, [t.dtype for t in given]),
                [x, packed, Walked(target, target.shape, target.strides, True), *cells, *rest], plan.items, 4)
        if not direct:
            lo.store(out, tree or Expr.leaf(0, _F32), [target, *operands])


def of(lo: Lowering, g: Geometry, x: Tensor, weights: Weights) -> Planes | None:
    """That of a convolution; None where another way is as good."""
    taps, channels, lanes = g.kernel[1] * g.kernel[2], g.groups * g.cout, lo.machine.lanes(4)
    if (isinstance(weights, Computed) or x.dtype != _F32 or g.cout > FEW or g.strides[2] != 1
            or g.size[0] != 1 or g.kernel[0] != 1 or g.out[0] != 1 or g.pads[0] or min(g.pads) < 0):
        return None
    if g.groups == 1:
        return Planes(lo, g, x, weights) if taps > 1 or g.cin == 1 else None
    many = channels >= lanes
    if x.strides[-1] != 1 or g.out[2] < (WIDE * lanes if many else lanes) or (
            many and (taps > SHORT or channels % lanes == 0)):
        return None
    return Planes(lo, g, x, weights)


def _image(t: Tensor) -> Tensor:
    """Images of one or two axes, or of three of which the first is 1, with two."""
    shape, strides = ((*all_[:2], *all_[2:][-2:]) for all_ in (t.shape, t.strides))
    if t.rank == 3:
        shape, strides = (*shape[:2], 1, shape[2]), (*strides[:2], 0, strides[2])
    return t.view(shape, strides)


def _with_margins(lo: Lowering, x: Tensor, g: Geometry, high: int, wide: int) -> Tensor:
    """`x` with so many rows and pixels that every tap lies inside."""
    t = _image(x)
    if t.strides[-1] != 1 or (g.leaves and t.shape[0] > 1 and t.strides[0] != t.shape[1] * t.strides[1]):
        t = lo.contiguous(t)
    if not g.leaves:
        return t.slice(2, 0, high).slice(3, 0, wide)
    made = lo.new((t.shape[0], t.shape[1], high, wide), _F32)
    left = min(g.pads[2], wide)
    plane = t.strides[1] if t.shape[1] > 1 else t.strides[0]
    lo.step(pad_rows(dtype=_F32), [t, Out(made), high, t.shape[2], min(t.shape[3], wide - left), g.pads[1],
                                   left, wide, plane, t.strides[2]], t.shape[0] * t.shape[1] * high, 16)
    return made
