"""The steps that multiply by weights of few bits on a GPU.

In: A (..., k) of any strides and constant weights (n, k) of codes in blocks. Out: one step, also where A is a
few rows that are normalized first, or where two products of one A end in one tree. Weights are
packed once for all numbers of rows, and take no more memory than the model's.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ...codegen.triton import tiles
from ...codegen.triton.kernels.few_bits import Codes, Left, few_bits_rows, few_bits_tiles, pack, table
from ...codegen.triton.kernels.normal import RMS
from ...codegen.triton.kernels.products import Tile
from ...codegen.write.expr import Expr
from ...ir import in_memory
from ...records import dataclass
from ..pending import Emit, Joining, Pending
from ..tensor import Tensor, extent
from .normal import FEW, Normed, same
from .products import BUSY, arriving, precision
from .walks import LONG, closed, walk

if TYPE_CHECKING:
    from ...codegen.triton.targets import Target
    from ..rules.few_bits import Weights
    from .lower import GpuLowering

_COLUMNS = 64
"""Columns of a strip of few rows."""

_HELD = 256
"""Elements of a column, of all rows, that a program of two products meets at once, at most: it holds both."""

_HIGH = {"wmma": 32}
"""Rows of a tile, at most, where they are not 64: there a thread holds more of what it multiplies."""


@dataclass(eq=False)
class FewBits(Joining):
    """A (..., k) times the transpose of `weights`. `order`: where in A the elements of k are."""

    a: Tensor | Normed
    weights: Weights
    order: Tensor | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.a.shape[:-1], self.weights.n)

    def joint(self, other: FewBits) -> Emit | None:
        """Where they are products of a few rows of one A, by weights that lie alike."""
        one, two, rows = self.weights, other.weights, math.prod(self.shape[:-1])
        if (one.n, one.k, one.how) != (two.n, two.k, two.how) or self.order is not other.order or (
                not same(self.a, other.a) or not rows <= FEW
                or rows * min(one.how.block, 128) > _HELD):
            return None

        def emit(lo: GpuLowering, out: Tensor, tree: Expr | None, operands: Sequence[Tensor]) -> None:
            write(lo, self.a, one, self.order, out, tree, operands, two)
        return emit


def product(a: Tensor | Normed, weights: Weights, order: Tensor | None = None) -> Pending:
    """A (..., k) times the transpose of the weights, float32. `order`: where in A the elements of k are."""
    made = FewBits(a, weights, order)

    def emit(lo: GpuLowering, out: Tensor, tree: Expr | None, operands: Sequence[Tensor]) -> None:
        if out.size:
            write(lo, a, weights, order, out, tree, operands)
    return Pending(made.shape, "float32", emit, what=made)


def write(lo: GpuLowering, factor: Tensor | Normed, weights: Weights, order: Tensor | None, out: Tensor,
          tree: Expr | None, operands: Sequence[Tensor], other: Weights | None = None) -> None:
    """out (..., n) = tree(A (..., k)·weights, operands), where there are `other` weights of two products."""
    n, rows, normed = weights.n, math.prod(out.shape[:-1]), factor if isinstance(factor, Normed) else None
    a = factor.x if isinstance(factor, Normed) else factor
    several = [weights] if other is None else [weights, other]
    codes, held = _codes(weights), [_packed(lo, each) for each in several]
    lead = [*range(out.rank - 1)]
    form, tensors, numbers = walk([a.view(out.shape, (*a.strides[:-1], 0))], [lead, [out.rank - 1]])
    form = replace(form, wide=extent(a.shape, [abs(s) for s in a.strides]) >= LONG)
    step = a.strides[-1]
    left = Left(a.dtype, form, "1" if step == 1 else "s", order is not None, precision(lo, a.dtype),
                None if normed is None else normed.form)
    along: list[Any] = [] if step == 1 else [step]
    names = [lo.table(table, weights.how.values)] if codes.named else []
    extra = [*names, *([] if order is None else [order]), *([] if normed is None else normed.rows)]
    chunks = held[0][0].shape[0]
    few = rows <= FEW
    tile = _tile(lo.target, rows, n, codes)
    programs = -(-n // _COLUMNS) if few else -(-rows // tile.m) * -(-n // tile.n)
    wanted = BUSY * tiles.chip(lo.target).units // programs
    part = -(-chunks // max(1, min(wanted, chunks * codes.chunk // 512, 32)))
    parts = -(-chunks // part)
    closing, cells = closed(out, tree, operands, "float32", [lead, [out.rank - 1]], len(several))
    sums = len(several) + (left.normal is not None and left.normal.kind == RMS)
    size = rows * _COLUMNS * sums if few else tile.m * tile.n
    args = [*tensors, *(t for each in held for t in each), *extra,
            *arriving(lo, parts, programs, size, "float32"), *cells, n, a.shape[-1], chunks, part, *along,
            *([] if normed is None else [normed.epsilon]), *numbers]
    if few:
        spec = few_bits_rows(left=left, codes=codes, closing=closing, rows=rows, columns=_COLUMNS,
                             cut=parts > 1)
        lo.step(spec, args, programs * parts)
    else:
        spec = few_bits_tiles(left=left, codes=codes, closing=closing, tile=tile, cut=parts > 1)
        lo.step(spec, [*args, rows], programs * parts)


def _tile(target: Target, rows: int, n: int, codes: Codes) -> Tile:
    high = min(_HIGH.get(target.matrix, 64), max(16, 1 << (rows - 1).bit_length()))
    wide = 64 if high >= 32 else 32 if n <= 4096 else 64
    return Tile(high, wide, min(codes.block, 32), warps=4, stages=3)


def _codes(weights: Weights) -> Codes:
    """How the weights lie."""
    how = weights.how
    return Codes(how.bits, how.block, how.scale, how.zeros, bool(how.values))


def _packed(lo: GpuLowering, weights: Weights) -> list[Tensor]:
    """Bytes, scales, perhaps zero points."""
    codes, made = _codes(weights), list[Any]()

    def part(i: int) -> np.ndarray:
        if not made:
            made.extend(pack(codes, *map(_plain, weights.make())))
        return made[i]
    key = "few bits", *weights.key, codes
    count = 3 if isinstance(codes.zeros, str) else 2
    return [lo.constant((*key, i), functools.partial(part, i)) for i in range(count)]


def _plain(array: np.ndarray | None) -> Any:
    return None if array is None else in_memory(array)
