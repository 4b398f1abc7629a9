"""The steps that multiply matrices on a GPU.

In: A (..., m, k) and B (..., k, n) of any strides, whose batches broadcast to the result's. Out: one step.
Nothing is copied to lie better: kernels read both factors as they lie.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ...codegen.triton import tiles
from ...codegen.triton.kernels.integer_products import integer_products
from ...codegen.triton.kernels.normal import RMS
from ...codegen.triton.kernels.product_rows import Strip, product_rows
from ...codegen.triton.kernels.products import EACH, MARGIN, ONE, Factors, Tile, products
from ...codegen.triton.targets import CUDA
from ...codegen.write.expr import BYTES, Expr
from ...records import dataclass
from ..pending import Emit, Joining, Out
from ..rule_sets import GPU_RULES
from ..tensor import Tensor, extent
from .normal import FEW, Normed, same
from .tuning import Task
from .walks import LONG, closed, walk

if TYPE_CHECKING:
    from .lower import GpuLowering

SMALL = 8 << 20
"""Bytes of B that are read about as fast by programs that need not wait for each other's sums."""

BUSY = 4
"""Programs to a multiprocessor that together read at the memory's rate."""


@dataclass(frozen=True)
class Zeros:
    """What is subtracted from the bytes of A and B: a number, one for each row of A or column of B, adjacent,
    or MIDDLE; None for 0. `margin`: A's is only what stands beside an image."""

    a: Tensor | str | None = None
    b: Tensor | str | None = None
    margin: bool = False

    def kinds(self) -> tuple[str | None, str | None]:
        """What the kernel is told of them."""
        first, second = (z if z is None or isinstance(z, str) else ONE if z.size == 1 else EACH
                         for z in (self.a, self.b))
        return MARGIN if self.margin and first == ONE else first, second

    def tensors(self) -> list[Tensor]:
        """Those that kernels read."""
        return [z for z in (self.a, self.b) if isinstance(z, Tensor)]


@dataclass(eq=False)
class Dense(Joining):
    """A (..., m, k)·B (..., k, n), written by `lifted` views of what it is to be."""

    a: Tensor | Normed
    b: Tensor
    lifted: Callable[[Tensor], Tensor]

    def joint(self, other: Dense) -> Emit | None:
        """Where they are products of a few rows of one A, by matrices that lie alike."""
        one, two = self.b, other.b
        if not same(self.a, other.a) or (one.dtype, one.shape, one.strides) != (
                two.dtype, two.shape, two.strides) or one.rank != 2 or "float" not in one.dtype or not (
                self.a.shape[-1] and math.prod(self.a.shape[:-1]) <= FEW):
            return None

        def emit(lo: GpuLowering, out: Tensor, tree: Expr | None, operands: Sequence[Tensor]) -> None:
            write(lo, self.a, one, self.lifted(out), tree, [self.lifted(t) for t in operands], other=two)
        return emit


def write(lo: GpuLowering, factor: Tensor | Normed, b: Tensor, out: Tensor, tree: Expr | None,
          operands: Sequence[Tensor], zeros: Zeros | None = None, tile: tuple[Tile, int] | None = None,
          other: Tensor | None = None) -> None:
    """out (..., m, n) = tree(a·b, operands), or of a·b and a·`other`. `tile`: one to take, and into how many
    parts k is cut."""
    a = factor.x if isinstance(factor, Normed) else factor
    if not out.size:
        return
    if not a.shape[-1]:
        _nothing(lo, out, tree, operands)
        return
    zeros = zeros or Zeros()
    *batch, m, n = out.shape
    a = a.expand((*batch, *a.shape[-2:]))
    b = b.expand((*batch, *b.shape[-2:]))
    if n <= FEW < m and zeros == Zeros():
        a, b, out = _turned(b), _turned(a), _turned(out)
        operands = [_turned(t) for t in operands]
        m, n = n, m
    product = _Product(lo, a, b, zeros)
    normed = factor if isinstance(factor, Normed) else None
    if "int" in a.dtype and "int8" not in a.dtype:
        product.by_numbers(out, tree, operands)
    elif zeros == Zeros() and "float" in a.dtype and product.rows <= FEW and tile is None:
        product.by_rows(out, tree, operands, normed, [b] if other is None else [b, other])
    else:
        product.by_tiles(out, tree, operands, tile)


def plain(lo: GpuLowering, a: Tensor, b: Tensor, out: Tensor) -> None:
    """out (..., m, n) = a (..., m, k)·b (..., k, n), all of one type."""
    write(lo, a, b, out, None, [])


GPU_RULES.steps["product"] = plain


def _nothing(lo: GpuLowering, out: Tensor, tree: Expr | None, operands: Sequence[Tensor]) -> None:
    """The tree of a sum of no products."""
    def given(leaf: Expr) -> Expr:
        return Expr.leaf(leaf.value - 1, leaf.dtype) if leaf.value else Expr.const(
            0.0 if "float" in leaf.dtype else 0, leaf.dtype)
    whole = Expr.leaf(0, out.dtype) if tree is None else tree
    lo.store(out, whole.substitute(given).cast(out.dtype), list(operands))


def _turned(t: Tensor) -> Tensor:
    return t.permute((*range(t.rank - 2), t.rank - 1, t.rank - 2))


class _Product:
    """A product, its batches those of both factors; where B has none, they are rows of A."""

    def __init__(self, lo: GpuLowering, a: Tensor, b: Tensor, zeros: Zeros) -> None:
        self.lo, self.a, self.b, self.zeros = lo, a, b, zeros
        *self.lead, m, self.depth = a.shape
        self.n = b.shape[-1]
        joined = not any(s for s, d in zip(b.strides[:-2], self.lead, strict=True) if d != 1)
        last = len(self.lead)
        joined = joined and zeros.kinds()[0] != EACH
        self.groups: list[list[int]] = (
            [[], [*range(last), last], [last + 1]] if joined else [[*range(last)], [last], [last + 1]])
        self.rows = m * math.prod(self.lead) if joined else m
        self.count = 1 if joined else math.prod(self.lead)

    def factors(self) -> tuple[Factors, list[Any], list[int]]:
        """How kernels read both, the arguments for them, and sizes and strides."""
        shape = (*self.lead, self.a.shape[-2], self.n)
        a = self.a.view(shape, (*self.a.strides[:-1], 0))
        b = self.b.view(shape, (*self.b.strides[:-2], 0, self.b.strides[-1]))
        form, tensors, numbers = walk([a, b], self.groups)
        deep = self.a.strides[-1], self.b.strides[-2]
        wide = any(extent(t.shape, [abs(s) for s in t.strides]) >= LONG for t in (self.a, self.b))
        along = ["1" if s == 1 or self.depth == 1 else "s" for s in deep]
        made = Factors((self.a.dtype, self.b.dtype), replace(form, wide=wide), (along[0], along[1]),
                       precision(self.lo, self.a.dtype), self.zeros.kinds())
        return made, tensors, [s for s, kind in zip(deep, along, strict=True) if kind == "s"] + numbers

    def by_tiles(self, out: Tensor, tree: Expr | None, operands: Sequence[Tensor],
                 given: tuple[Tile, int] | None) -> None:
        factors, tensors, numbers = self.factors()
        problem = tiles.Problem(self.rows, self.n, self.depth, self.count, self.a.dtype, factors.precision)
        tile, parts = given or self._best(problem, factors, out)
        part, parts = self._part(tile.k, parts)
        tiles_of = -(-self.rows // tile.m) * -(-self.n // tile.n) * self.count
        closing, cells = closed(out, tree, operands, factors.total, self.groups)
        spec = products(factors=factors, closing=closing, tile=tile, even=self.depth % tile.k == 0,
                        cut=parts > 1)
        self.lo.step(spec, [*tensors, *self.zeros.tensors(),
                            *arriving(self.lo, parts, tiles_of, tile.m * tile.n, factors.total), *cells,
                            self.rows, self.n, self.depth, part, self.count, *numbers], tiles_of * parts)

    def _best(self, problem: tiles.Problem, factors: Factors, result: Tensor) -> tuple[Tile, int]:
        """The tile to take, and into how many parts k is cut."""
        if self.lo.tuner is None:
            return tiles.best(self.lo.target, problem)
        def compute(lo: GpuLowering, reads: Sequence[Tensor], out: Tensor, way: tuple[Tile, int]) -> None:
            a, b, *rest = reads
            left = iter(rest)
            first, second = (next(left) if isinstance(z, Tensor) else z
                             for z in (self.zeros.a, self.zeros.b))
            _Product(lo, a, b, Zeros(first, second)).by_tiles(out, None, [], way)
        return self.lo.tuner.best(self.lo, Task(
            f"products {factors.signature}", f"{self.rows}x{self.n}x{self.depth}x{self.count}",
            [self.a, self.b, *self.zeros.tensors()], result, compute),
            tiles.candidates(self.lo.target, problem))

    def by_numbers(self, out: Tensor, tree: Expr | None, operands: Sequence[Tensor]) -> None:
        """Without a matrix unit, integers of more than a byte."""
        factors, tensors, numbers = self.factors()
        tile = Tile(min(32, _power(self.rows)), min(64, _power(self.n)), 1, 1)
        closing, cells = closed(out, tree, operands, factors.total, self.groups)
        self.lo.step(integer_products(factors=factors, closing=closing, tile=tile),
                     [*tensors, *cells, self.rows, self.n, self.depth, *numbers],
                     -(-self.rows // tile.m) * -(-self.n // tile.n) * self.count)

    def by_rows(self, out: Tensor, tree: Expr | None, operands: Sequence[Tensor], normed: Normed | None,
                several: Sequence[Tensor]) -> None:
        """`several`: B, and perhaps another of its kind."""
        factors, tensors, numbers = self.factors()
        upright = factors.depth[1] == "1"
        size = 4096 // len(several) // (2 if BYTES[self.b.dtype] > 4 or self.rows > 2 else 1)
        wide = max(16, min(64 if upright else 128, _power(self.n)))
        wide = min(wide, 16) if upright else wide
        units, small = tiles.chip(self.lo.target).units, self.n * self.depth * BYTES[self.b.dtype] <= SMALL
        while small and wide > 16 and -(-self.n // wide) * self.count < units:
            wide //= 2
        deep = max(16, min(size // wide, _power(self.depth)))
        strip = Strip(wide, deep, 4 if wide * deep >= 1024 else 1)
        programs = -(-self.n // wide) * self.count
        wanted = 1 if small and self.depth <= 16 * deep else BUSY * units // programs
        part, parts = self._part(deep, max(1, min(wanted, self.depth // (4 * deep), 64)))
        closing, cells = closed(out, tree, operands, factors.total, self.groups, len(several))
        rows = next(r for r in (1, 2, FEW) if self.rows <= r)
        normal = None if normed is None else normed.form
        spec = product_rows(factors=factors, closing=closing, rows=rows, strip=strip,
                            even=self.depth % deep == 0, cut=parts > 1, normal=normal)
        sums = len(several) + (normal is not None and normal.kind == RMS)
        self.lo.step(spec, [*tensors, *several[1:], *([] if normed is None else normed.rows),
                            *arriving(self.lo, parts, programs, wide * rows * sums, factors.total),
                            *cells, self.n, self.depth, part, self.count,
                            *([self.rows] if rows > 2 else []), *([] if normed is None else [normed.epsilon]),
                            *numbers], programs * parts)

    def _part(self, step: int, parts: int) -> tuple[int, int]:
        """How many elements of k each part has, and how many parts there are then."""
        part = -(-self.depth // (step * parts)) * step
        return part, -(-self.depth // part)


def precision(lo: GpuLowering, dtype: str) -> str:
    """How numbers of `dtype` are multiplied, as `tl.dot` calls it, by every kernel. Sums of three products of
    tf32 stand for float32 nowhere: NVIDIA's matrix units cut their sums off, which leaves long ones ten times
    less exact."""
    tf32 = lo.target.api == CUDA and lo.settings.get("use_tf32", True)
    return "tf32" if tf32 and dtype == "float32" else "ieee"


def arriving(lo: GpuLowering, parts: int, cells: int, size: int, total: str) -> list[Any]:
    """What `parts` programs for each of `cells` add up their sums by, `size` of type `total` each: see
    `codegen.triton.parts`."""
    if parts == 1:
        return []
    return [Out(lo.new((cells * parts, size), total)), Out(counted(lo, cells))]


_COUNTS = 1024
"""Cells whose arrivals are counted in one place, at least."""

_PLACES = 8
"""Places in turns: steps that are asked for as one each have their own."""


def counted(lo: GpuLowering, cells: int) -> Tensor:
    """Counts of arrivals at `cells`, of this run alone. They are 0 again when a kernel is done, so that a
    run's steps share them."""
    key = _power(max(cells, _COUNTS)), len(lo.steps) % _PLACES
    if key not in lo.arrivals:
        made = lo.arrivals[key] = lo.new(key[:1], "int32")
        lo.store(made, Expr.const(0, "int32"), [])
    return lo.arrivals[key]


def _power(size: int) -> int:
    """The next power of two."""
    return 1 << max(0, size - 1).bit_length()
