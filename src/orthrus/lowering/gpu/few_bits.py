"""The steps that multiply by weights of few bits on a GPU.

In: A (..., k) of any strides and constant weights (n, k) of codes in blocks. Out: one step. Weights are
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
from ...codegen.triton.kernels.products import Tile
from ...codegen.write.expr import Expr
from ...ir import in_memory
from ..lower import Pending
from ..tensor import Tensor, extent
from .products import BUSY, FEW, arriving, precision
from .walks import LONG, closed, walk

if TYPE_CHECKING:
    from ...codegen.triton.targets import Target
    from ..rules.few_bits import Weights
    from .lower import GpuLowering

_COLUMNS = 64
"""Columns of a strip of few rows."""

_HIGH = {"wmma": 32}
"""Rows of a tile, at most, where they are not 64: there a thread holds more of what it multiplies."""


def product(a: Tensor, weights: Weights, order: Tensor | None = None) -> Pending:
    """A (..., k) times the transpose of the weights, float32. `order`: where in A the elements of k are."""
    shape = (*a.shape[:-1], weights.n)

    def emit(lo: GpuLowering, out: Tensor, tree: Expr | None, operands: Sequence[Tensor]) -> None:
        if out.size:
            write(lo, a, weights, order, out, tree, operands)
    return Pending(shape, "float32", emit)


def write(lo: GpuLowering, a: Tensor, weights: Weights, order: Tensor | None, out: Tensor, tree: Expr | None,
          operands: Sequence[Tensor]) -> None:
    """out (..., n) = tree(a (..., k)·weights, operands)."""
    n, rows = weights.n, math.prod(out.shape[:-1])
    codes, held = _packed(lo, weights)
    lead = [*range(out.rank - 1)]
    form, tensors, numbers = walk([a.view(out.shape, (*a.strides[:-1], 0))], [lead, [out.rank - 1]])
    form = replace(form, wide=extent(a.shape, [abs(s) for s in a.strides]) >= LONG)
    step = a.strides[-1]
    left = Left(a.dtype, form, "1" if step == 1 else "s", order is not None, precision(lo, a.dtype))
    along = [] if step == 1 else [step]
    extra = [t for t in (*held[2:], order) if t is not None]
    chunks = held[0].shape[0]
    few = rows <= FEW
    tile = _tile(lo.target, rows, n, codes)
    programs = -(-n // _COLUMNS) if few else -(-rows // tile.m) * -(-n // tile.n)
    wanted = BUSY * tiles.chip(lo.target).units // programs
    part = -(-chunks // max(1, min(wanted, chunks * codes.chunk // 512, 32)))
    parts = -(-chunks // part)
    closing, cells = closed(out, tree, operands, "float32", [lead, [out.rank - 1]])
    size = rows * _COLUMNS if few else tile.m * tile.n
    args = [*tensors, *held[:2], *extra, *arriving(lo, parts, programs, size, "float32"), *cells, n,
            a.shape[-1], chunks, part, *along, *numbers]
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


def _packed(lo: GpuLowering, weights: Weights) -> tuple[Codes, list[Tensor]]:
    """How the weights lie, and bytes, scales, perhaps zero points and a table."""
    how = weights.how
    codes = Codes(how.bits, how.block, how.scale, how.zeros, bool(how.values))
    made: list[Any] = []

    def part(i: int) -> np.ndarray:
        if not made:
            made.extend(pack(codes, *map(_plain, weights.make())))
        return made[i]
    key = "few bits", *weights.key, codes
    count = 3 if isinstance(how.zeros, str) else 2
    held = [lo.constant((*key, i), functools.partial(part, i)) for i in range(count)]
    if how.values:
        held.append(lo.table(table, how.values))
    return codes, held


def _plain(array: np.ndarray | None) -> Any:
    return None if array is None else in_memory(array)
