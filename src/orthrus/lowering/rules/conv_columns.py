"""Transposed convolutions to few channels: one product gives what each pixel adds to each pixel, and one tree
adds it up.

In: an image (N, Cin, spatial...) and weights (Cin, Cout / group, K...). Out: the image (N, Cout, spatial...)
between the pads. Taps are stride apart within a block, so that blocks as long as the stride, shifted by
whole blocks, are what is added.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from functools import reduce
from itertools import product as indices

import numpy as np

from ...codegen.write.expr import Expr
from ...records import dataclass
from ..lower import Lowering
from ..rule_sets import RULES
from ..tensor import Tensor, c_strides

_F32 = "float32"
FEW, MANY, MOST_BLOCKS = 8, 8, 36
"""A group's channels of the result below which this is the way, those of the image from which it always is
then, and how many blocks are added at most."""


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


def pays(what: Columns, group: int, cin: int, cout: int) -> bool:
    """Whether `group` groups of so many channels are faster so than phase by phase."""
    even = cin == cout and all(k % s == 0 for k, s in zip(what.kernel, what.strides, strict=True))
    return cout < FEW and (cin >= MANY or cin > cout or (group == 1 and (len(what.image) == 1 or even)))


def rows_of(w: np.ndarray, group: int) -> np.ndarray:
    """The weights as the product's first factor (group, Cout / group * taps, Cin / group)."""
    cin = w.shape[0] // group
    return np.ascontiguousarray(np.moveaxis(w.reshape(group, cin, -1), 1, -1))


def write(lo: Lowering, x: Tensor, w: np.ndarray, key: Hashable, group: int, what: Columns, out: Tensor,
          tree: Expr | None, operands: Sequence[Tensor]) -> None:
    """Append the steps that write `out` = tree(the sums, operands)."""
    x, cin, cout = lo.contiguous(x), w.shape[0] // group, w.shape[1]
    images, pixels, rank = x.shape[0], math.prod(what.image), len(what.image)
    factor = lo.constant(("columns", key), lambda: rows_of(w, group))
    rows = factor.shape[1]
    taps = tuple(b * s for b, s in zip(what.blocks, what.strides, strict=True))
    beside = [b - 1 for b in what.blocks]
    padded = [d + 2 * m for d, m in zip(what.image, beside, strict=True)]
    wide = lo.new((images, group * cout, *taps, *padded), _F32)
    middle = _bordered(lo, _filled(lo, wide, what.kernel), beside)
    lines = (rows * wide.strides[1 + rank], wide.strides[1 + rank])
    direct = rank == 1 and taps == what.kernel
    if direct:
        made = middle.view((images, group, rows, pixels), (wide.strides[0], *lines, 1))
    else:
        made = lo.new((images, group, rows, pixels), _F32)
    columns = (images, group, cin, pixels)
    RULES.steps["product"](lo, factor, x.view(columns, c_strides(columns)), made)
    if not direct:
        lo.copy(made.view(middle.shape, c_strides(middle.shape)), middle)
    whole = lo.new((*wide.shape[:2], *(t * s for t, s in zip(what.reach, what.strides, strict=True))), _F32)
    blocks = list(indices(*(range(b) for b in what.blocks)))
    leaves: list[Expr] = [Expr.leaf(i, _F32) for i in range(len(blocks))]
    total = reduce(lambda a, b: Expr("add", (a, b), _F32), leaves)
    lo.store(_apart(whole, what), total, [_shifted(wide, what, at) for at in blocks])
    for axis, (first, size) in enumerate(zip(what.begin, what.size, strict=True), 2):
        whole = whole.slice(axis, first, size)
    if tree is None:
        lo.copy(whole, out)
    else:
        lo.store(out, tree, [whole, *operands])


def _filled(lo: Lowering, wide: Tensor, kernel: Sequence[int]) -> Tensor:
    """The taps of `wide` that the kernel has; those that fill it up to whole blocks are zeros, whatever the
    image's numbers are."""
    part = wide
    for axis, count in enumerate(kernel, 2):
        if count < wide.shape[axis]:
            lo.store(part.slice(axis, count, wide.shape[axis] - count), Expr.const(0.0, _F32), [])
            part = part.slice(axis, 0, count)
    return part


def _bordered(lo: Lowering, wide: Tensor, beside: Sequence[int]) -> Tensor:
    """The middle of `wide`, whose last axes have borders of so many zeros."""
    part, first = wide, wide.rank - len(beside)
    for axis, count in enumerate(beside, first):
        inner = wide.shape[axis] - 2 * count
        if count:
            lo.store(part.slice(axis, 0, count), Expr.const(0.0, _F32), [])
            lo.store(part.slice(axis, count + inner, count), Expr.const(0.0, _F32), [])
        part = part.slice(axis, count, inner)
    return part


def _apart(whole: Tensor, what: Columns) -> Tensor:
    """(N, C, blocks and place in the block, per axis)."""
    shape, strides = list(whole.shape[:2]), list(whole.strides[:2])
    for t, s, apart in zip(what.reach, what.strides, whole.strides[2:], strict=True):
        shape += [t, s]
        strides += [s * apart, apart]
    return whole.view(shape, strides)


def _shifted(wide: Tensor, what: Columns, at: Sequence[int]) -> Tensor:
    """What block `at` of the kernel adds, as `_apart` has it."""
    shape, strides, offset, rank = list(wide.shape[:2]), list(wide.strides[:2]), 0, len(what.image)
    for axis, (t, s, b, block) in enumerate(zip(what.reach, what.strides, what.blocks, at, strict=True)):
        tap, pixel = wide.strides[2 + axis], wide.strides[2 + rank + axis]
        shape += [t, s]
        strides += [pixel, tap]
        offset += block * s * tap + (b - 1 - block) * pixel
    return wide.view(shape, strides, offset)
