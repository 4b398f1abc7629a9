"""Rows on a GPU: softmax and normalizations, and reductions along them.

In: what rules ask of a row kernel or a reduction, over tensors of any strides. Out: steps. The axes that stay
count rows, those that go their elements; each kind is walked in the order in which the first tensor lies.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ...codegen.triton.kernels.reductions import arg_rows, reduce_rows
from ...codegen.triton.kernels.rows import Tile, norm_rows, softmax_rows
from ...codegen.write.expr import Expr
from ..rules.reduce import Folded
from ..rules.rows import F, Norm, RowWork, Softmax
from ..tensor import Tensor
from .elements import power
from .lower import Out
from .walks import closed, read

if TYPE_CHECKING:
    from .lower import GpuLowering

HELD = 1 << 13
"""Elements of a tile of whole rows, at most."""

SEVERAL = 1 << 10
"""Elements of a tile, where there may be more."""

ACROSS = 32
"""Rows of a tile, where neighbours are of different rows."""

FEW, LONG, PIECE, MOST = 64, 1 << 13, 1 << 11, 256
"""With so few blocks and such long rows a reduction is done in pieces first, of so many elements or more, and
no more pieces than that."""


def ordered(t: Tensor, axes: Sequence[int]) -> list[int]:
    """Those of `axes` longer than 1, as `t` lies."""
    return sorted((a for a in axes if t.shape[a] != 1), key=lambda a: (-abs(t.strides[a]), a))


def tile(t: Tensor, kept: Sequence[int], along: Sequence[int], hold: bool) -> Tile:
    """For the rows of `t`. `hold`: whole rows, where they fit."""
    count, length = (power(math.prod(t.shape[a] for a in axes)) for axes in (kept, along))
    if kept and t.strides[kept[-1]] == 1 and not (along and t.strides[along[-1]] == 1):
        rows = min(count, ACROSS)
        columns = min(length, (HELD // 2 if hold else SEVERAL) // rows)
    else:
        columns = min(length, HELD if hold else SEVERAL)
        rows = min(count, max(1, SEVERAL // columns))
    if hold and columns < length:
        columns = min(columns, SEVERAL * 2 // rows)
    return Tile(rows, columns, columns >= length)


def groups(t: Tensor, reduced: Sequence[int]) -> tuple[list[int], list[int], int, int]:
    """The axes that count rows and those along them; how many, and how long."""
    along = ordered(t, [a for a in range(t.rank) if a in reduced])
    kept = ordered(t, [a for a in range(t.rank) if a not in reduced])
    return kept, along, math.prod(t.shape[a] for a in kept), math.prod(t.shape[a] for a in along)


def rows(lo: GpuLowering, work: RowWork, out: Tensor, tree: Expr | None, operands: Sequence[Tensor]) -> None:
    """See `Lowering.rows`."""
    tensors = [work.view(t) for t in work.reads.tensors]
    first, target = tensors[0], work.view(out)
    kept, along, count, length = groups(first, work.reduced)
    form = tile(first, kept, along, True)
    reading, cells = read(work.reads.tree, tensors, [kept, along])
    closing, more = closed(target, work.closed(tree), [*work.operands, *map(work.view, operands)], F,
                           [kept, along])
    given: list[Any] = [*cells, *more, count, length]
    kernel = work.kernel
    if isinstance(kernel, Softmax):
        spec = softmax_rows(reading=reading, closing=closing, tile=form, log=kernel.log)
    else:
        assert isinstance(kernel, Norm)
        keep = None
        if work.kept is not None:
            keep, own = closed(work.kept, None, [], F, [kept, along])
            given += own
        spec = norm_rows(reading=reading, closing=closing, tile=form, kind=kernel.kind, keep=keep,
                         mean=kernel.mean is not None, inverse=kernel.inverse is not None)
        given += [kernel.epsilon, *(Out(t) for t in (kernel.mean, kernel.inverse) if t is not None)]
    lo.step(spec, given, -(-count // form.rows))


def fold(lo: GpuLowering, what: Folded, out: Tensor, after: Expr | None, operands: Sequence[Tensor]) -> None:
    """See `Lowering.fold`."""
    kept, along, count, length = groups(what.tensors[0], what.axes)
    form = tile(what.tensors[0], kept, along, False)
    blocks = -(-count // form.rows)
    reading, cells = read(what.tree, what.tensors, [kept, along])
    if what.kind.startswith("arg"):
        closing, more = closed(out, after, operands, "int64", [kept])
        spec = arg_rows(reading=reading, closing=closing, tile=form, least="min" in what.kind,
                        last="last" in what.kind)
        lo.step(spec, [*cells, *more, count, length], blocks)
        return
    if blocks < FEW and length >= LONG and not form.whole:
        span = max(PIECE, -(-length // MOST))
        pieces = -(-length // span)
        parts = lo.new((pieces, *what.short), what.dtype)
        closing, more = closed(parts, None, [], what.dtype, [[0], [a + 1 for a in kept]])
        spec = reduce_rows(reading=reading, closing=closing, tile=form, kind=what.kind, pieces=True)
        lo.step(spec, [*cells, *more, count, length, span], blocks * pieces)
        joined = Folded(what.kind, Expr.leaf(0, what.dtype), [parts], (0,))
        fold(lo, joined, _raised(out), after, [_raised(t) for t in operands])
        return
    closing, more = closed(out, after, operands, what.dtype, [kept])
    spec = reduce_rows(reading=reading, closing=closing, tile=form, kind=what.kind, pieces=False)
    lo.step(spec, [*cells, *more, count, length], blocks)


def _raised(t: Tensor) -> Tensor:
    """With an axis of 1 in front."""
    return t.view((1, *t.shape), (0, *t.strides))
