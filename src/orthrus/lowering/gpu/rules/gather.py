"""Elements by index on GPUs: the steps that the rules of both kinds of machines write."""

from __future__ import annotations

import math

from ....codegen.triton.kernels import gather
from ....codegen.write.expr import Expr
from ...rules import gather as shared
from ...rules.rows import lying
from ...tensor import Tensor
from ..elements import power, several
from ..lower import GpuLowering, Out, writes
from ..walks import closed, walk

_ROWS, _COLUMNS = 1024, 512
"""Rows of one element, and columns, of a tile at most."""

_BLOCK = 512
"""Indices that are looked through together."""

_LINES = 1 << 10
"""Lines from which on each is a lane's."""

_FEW = 32
"""Indices of a line up to which the same holds however few lines there are."""

_SHARES = 512
"""Programs that divide a result between them."""


@writes(shared.gathered)
def gathered(lo: GpuLowering, x: Tensor, indices: Tensor, out: Tensor, before: int, tuples: int, parts: int,
             batch: bool) -> None:
    """out[b..., j..., r...] = x[b..., *indices[(b...), j...], r...]; see the CPU's."""
    last = before + tuples
    own, each = (indices.shape[:-1], indices.strides[:-1]) if batch else (indices.shape, indices.strides)
    lead = each if batch else (*(0,) * before, *each)
    assert len(lead) == last and len(own) in (tuples, last)
    first = indices.view(out.shape, (*lead, *(0,) * (out.rank - last)))
    fixed = x.view(out.shape, (*x.strides[:before], *(0,) * tuples, *x.strides[before + parts:]))
    moves = [v for a in range(before, before + parts) for v in (x.shape[a], x.strides[a])]
    _gathered(lo, out, fixed, first, last, indices.strides[-1] if batch else 0, moves)


@writes(shared.picked)
def picked(lo: GpuLowering, x: Tensor, indices: Tensor, out: Tensor, axis: int) -> None:
    """out[at] = x[at], moved along `axis` to indices[at]."""
    fixed = x.view(out.shape, [0 if a == axis else s for a, s in enumerate(x.strides)])
    _gathered(lo, out, fixed, indices, out.rank, 0, [x.shape[axis], x.strides[axis]])


def _gathered(lo: GpuLowering, out: Tensor, x: Tensor, indices: Tensor, last: int, apart: int,
              moves: list[int]) -> None:
    """All of `out`'s shape; the axes from `last` on are those of rows."""
    groups = [range(last), range(last, out.rank)]
    closing, cells = closed(out, Expr.leaf(0, x.dtype), [], x.dtype, groups)
    source, (x_walked, i_walked), numbers = walk([x, indices], groups)
    count, width = math.prod(out.shape[:last]), math.prod(out.shape[last:])
    columns = min(_COLUMNS, power(width))
    rows = several(count, _ROWS // columns)
    spec = gather.gather_rows(closing=closing, source=source, dtype=x.dtype, index=indices.dtype,
                              parts=len(moves) // 2, rows=rows, columns=columns)
    lo.step(spec, [*cells, x_walked, i_walked, Out(lo.status), *numbers, count, width, apart, *moves],
            -(-count // rows) * -(-width // columns))


@writes(shared.put)
def put(lo: GpuLowering, out: Tensor, indices: Tensor, updates: Tensor, axis: int, how: str) -> None:
    """Fold updates[at] into out[at], moved along `axis` to indices[at], in their order."""
    others = [a for a in range(out.rank) if a != axis]
    shape = [indices.shape[a] for a in others]
    lines = math.prod(shape)
    steps = [out.strides[axis], indices.strides[axis], updates.strides[axis]]
    views = [t.view(shape, [t.strides[a] for a in others]) for t in (out, indices, updates)]
    far_of = [t.joined(0, len(others)) for t in views]
    if lines >= _LINES or indices.shape[axis] <= _FEW or None in far_of:
        form, (o, i, u), numbers = walk(views, [range(len(others))], 1)
        block = 4 * lo.target.warp if lines > lo.target.warp else lo.target.warp
        spec = gather.fold_lines(walk=form, dtype=out.dtype, index=indices.dtype, how=how, block=block)
        sizes = [lines, indices.shape[axis], out.shape[axis]]
        lo.step(spec, [o, i, u, Out(lo.status), *numbers, *sizes, *steps], -(-lines // block))
        return
    _folded(lo, (out, indices, updates), [out.shape[axis]], (1, indices.shape[axis], lines), [
        (step, 0, far or 0) for step, far in zip(steps, far_of, strict=True)], how)


@writes(shared.rows_lying)
def rows_lying(lo: GpuLowering, x: Tensor, updates: Tensor, parts: int) -> tuple[int, ...] | None:
    """As `x` lies, where rows are a line each, or lines that are equally far apart: a cache whose axis of
    positions was turned to the front is so."""
    strides = lying(x)
    return strides if _lines(x.view(x.shape, strides), updates, parts) is not None else None


def _lines(out: Tensor, updates: Tensor, parts: int) -> tuple[int, int, int, int, int] | None:
    """Where of the axes of rows those of a line begin, and of `out` how far rows, elements of a line and
    lines are apart, then of `updates` lines; None where they are no such."""
    row, lead = out.joined(0, parts), updates.rank - out.rank + parts
    for split in range(parts, out.rank + 1):
        far, along = out.joined(parts, split), out.joined(split, out.rank)
        if None not in (row, far, along):
            assert row is not None and far is not None and along is not None
            return split, row, along, far, updates.joined(lead, lead + split - parts) or 0
    return None


@writes(shared.scattered)
def scattered(lo: GpuLowering, out: Tensor, indices: Tensor, updates: Tensor, parts: int, how: str) -> None:
    """Fold rows of updates into out[*indices], tuples of `parts`, in their order; all in C order, or `out` as
    `rows_lying` says."""
    found = _lines(out, updates, parts)
    assert found is not None
    split, row, along, far, far_of = found
    width, lines = math.prod(out.shape[split:]), math.prod(out.shape[parts:split])
    _folded(lo, (out, indices, updates), list(out.shape[:parts]), (width, indices.size // parts, lines),
            [(row, along, far), (parts, 1, 0), (width * lines, 1, far_of)], how)


def _folded(lo: GpuLowering, tensors: tuple[Tensor, Tensor, Tensor], limits: list[int],
            sizes: tuple[int, int, int], steps: list[tuple[int, int, int]], how: str) -> None:
    """Rows of updates folded in where tuples of indices into axes of `limits` elements say. `sizes`: a row's,
    how many tuples, how many such problems; `steps`: of result, indices and updates, from row to row, within,
    and from problem to problem."""
    (out, indices, updates), (width, count, repeats) = tensors, sizes
    columns = min(_COLUMNS, power(width))
    across, rows = -(-width // columns), math.prod(limits)
    shares = max(1, min(_SHARES // (across * repeats), rows))
    per = -(-rows // shares)
    shares = -(-rows // per)
    spec = gather.fold_rows(dtype=out.dtype, index=indices.dtype, how=how, parts=len(limits), block=_BLOCK,
                            columns=columns)
    lo.step(spec, [Out(out), indices, updates, Out(lo.status), count, width, per, shares,
                   *(n for three in steps for n in three), *limits], across * shares * repeats)
