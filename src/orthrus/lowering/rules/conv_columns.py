"""Transposed convolutions to few channels: one product gives what each pixel adds to each pixel, which is
added up then.

In: an image (N, Cin, spatial...) and weights (Cin, Cout / group, K...). Out: the image (N, Cout, spatial...)
between the pads. The result is taken apart by places in blocks as long as the stride: a tap adds a whole
image to its place, shifted by the blocks before it.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from itertools import product as indices

import numpy as np

from ...codegen.write.expr import Expr
from ...records import dataclass
from ..lower import Lowering
from ..rule_sets import RULES
from ..tensor import Tensor, c_strides

_F32 = "float32"
FEW, MANY, MOST_BLOCKS = 8, 8, 128
"""A group's channels of the result below which this is the way, those of the image from which it always is
then where that has two axes at most, and how many blocks are added at most."""
DEEP = 6
"""So many times more channels are summed than made where products are dearer than what is added."""


@dataclass(frozen=True)
class Columns:
    """A transposed convolution without dilation: `image` and `kernel` sizes, `begin` and `size` of the result
    within all that the products reach."""

    image: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    begin: tuple[int, ...]
    size: tuple[int, ...]

    @property
    def blocks(self) -> tuple[int, ...]:
        """Blocks of a kernel, per axis."""
        return tuple(-(-k // s) for k, s in zip(self.kernel, self.strides, strict=True))

    @property
    def reach(self) -> tuple[int, ...]:
        """Blocks that the products reach, per axis."""
        return tuple(d + b - 1 for d, b in zip(self.image, self.blocks, strict=True))

    def fits(self) -> bool:
        """Whether the result lies within what the products reach, and few blocks make it."""
        return math.prod(self.blocks) <= MOST_BLOCKS and all(
            first >= 0 and first + size <= t * s
            for first, size, t, s in zip(self.begin, self.size, self.reach, self.strides, strict=True))


def pays(what: Columns, group: int, cin: int, cout: int, lanes: int) -> bool:
    """Whether `group` groups of so many channels are faster so than phase by phase, in vectors of `lanes`
    channels."""
    if cout >= FEW:
        return 8 * cout <= 5 * lanes and cin >= DEEP * cout
    even = cin == cout and all(k % s == 0 for k, s in zip(what.kernel, what.strides, strict=True))
    rank = len(what.image)
    return (cin >= MANY or cin > cout or (group == 1 and (rank == 1 or even))) and (
        rank < 3 or even or cin >= 3 * cout)


def rows_of(w: np.ndarray, group: int) -> np.ndarray:
    """The weights as the product's first factor (group, Cout / group * taps, Cin / group)."""
    cin = w.shape[0] // group
    return np.ascontiguousarray(np.moveaxis(w.reshape(group, cin, -1), 1, -1))


def write(lo: Lowering, x: Tensor, w: np.ndarray, key: Hashable, group: int, what: Columns, out: Tensor,
          tree: Expr | None, operands: Sequence[Tensor]) -> None:
    """Append the steps that write `out` = tree(the sums, operands)."""
    x, cin = lo.contiguous(x), w.shape[0] // group
    images, pixels = x.shape[0], math.prod(what.image)
    factor = lo.constant(("columns", key), lambda: rows_of(w, group))
    columns, planes = (images, group, cin, pixels), (images, out.shape[1])
    made = lo.new((images, group, factor.shape[1], pixels), _F32)
    RULES.steps["product"](lo, factor, x.view(columns, c_strides(columns)), made)
    added = (*planes, *what.kernel, *what.image)
    made = made.view(added, c_strides(added))
    whole = lo.new((*planes, *(t * s for t, s in zip(what.reach, what.strides, strict=True))), _F32)
    if what.kernel != what.strides:
        made = _summed(lo, made, what)
    lo.copy(made, _apart(whole, what))
    for axis, (first, size) in enumerate(zip(what.begin, what.size, strict=True), 2):
        whole = whole.slice(axis, first, size)
    if tree is None:
        lo.copy(whole, out)
    else:
        lo.store(out, tree, [whole, *operands])


def _summed(lo: Lowering, made: Tensor, what: Columns) -> Tensor:
    """(N, C, place in the block, blocks): what all taps (N, C, taps, pixels) add there."""
    rank = len(what.image)
    sums = lo.new((*made.shape[:2], *what.strides, *what.reach), _F32)
    lo.store(sums, Expr.const(0.0, _F32), [])
    total = Expr("add", (Expr.leaf(0, _F32), Expr.leaf(1, _F32)), _F32)
    for at in indices(*map(range, what.blocks)):
        part, to = made, sums
        for axis, (block, s, k, d) in enumerate(zip(at, what.strides, what.kernel, what.image, strict=True)):
            count = min(s, k - block * s)
            part = part.slice(2 + axis, block * s, count)
            to = to.slice(2 + axis, 0, count).slice(2 + rank + axis, block, d)
        lo.store(to, total, [to, part])
    return sums


def _apart(whole: Tensor, what: Columns) -> Tensor:
    """(N, C, place in the block, blocks) of the image of all that the products reach."""
    along = whole.strides[2:]
    blocks = (a * s for a, s in zip(along, what.strides, strict=True))
    return whole.view((*whole.shape[:2], *what.strides, *what.reach),
                      (*whole.strides[:2], *along, *blocks))
