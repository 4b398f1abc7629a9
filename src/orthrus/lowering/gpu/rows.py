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
from ..rule_sets import GPU_RULES
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

LONG_ROW = 1 << 14
"""Elements of rows from which on a few of them are normalized by several blocks each."""


def ordered(t: Tensor, axes: Sequence[int]) -> list[int]:
    """Those of `axes` longer than 1, as `t` lies."""
    return sorted((a for a in axes if t.shape[a] != 1), key=lambda a: (-abs(t.strides[a]), a))


def tile(t: Tensor, kept: Sequence[int], along: Sequence[int], hold: bool) -> Tile:
    """For the rows of `t`, however many there are. `hold`: whole rows, where they fit."""
    length = power(math.prod(t.shape[a] for a in along))
    if kept and t.strides[kept[-1]] == 1 and not (along and t.strides[along[-1]] == 1):
        rows = min(power(_together(t, kept)), ACROSS)
        columns = min(length, (HELD // 2 if hold else SEVERAL) // rows)
    else:
        columns = min(length, HELD if hold else SEVERAL)
        rows = max(1, SEVERAL // columns) if kept else 1
    if hold and columns < length:
        columns = min(columns, SEVERAL * 2 // rows)
    return Tile(rows, columns, columns >= length)


def _together(t: Tensor, kept: Sequence[int]) -> int:
    """How many elements of neighbouring rows lie behind each other."""
    count = 1
    for axis in reversed(kept):
        if t.strides[axis] != count:
            break
        count *= t.shape[axis]
    return count


def groups(t: Tensor, reduced: Sequence[int]) -> tuple[list[int], list[int], int, int]:
    """The axes that count rows and those along them; how many, and how long."""
    along = ordered(t, [a for a in range(t.rank) if a in reduced])
    kept = ordered(t, [a for a in range(t.rank) if a not in reduced])
    return kept, along, math.prod(t.shape[a] for a in kept), math.prod(t.shape[a] for a in along)


def rows(lo: GpuLowering, work: RowWork, out: Tensor, tree: Expr | None, operands: Sequence[Tensor]) -> bool:
    """Append the step that writes `tree`, or none, over the rows' values and `operands` into `out`."""
    tensors = [work.view(t) for t in work.reads.tensors]
    first, target = tensors[0], work.view(out)
    kept, along, count, length = groups(first, work.reduced)
    if length >= LONG_ROW and _plain(work) and count < FEW:
        _over_blocks(lo, work, tensors, target, tree, operands)
        return True
    form = tile(first, kept, along, True)
    reading, cells = read(work.reads.tree, tensors, [kept, along])
    closing, more = closed(target, work.closed(tree), [*work.operands, *map(work.view, operands)], F,
                           [kept, along])
    given: list[Any] = [*cells, *more, count, length]
    kernel = work.kernel
    if isinstance(kernel, Softmax):
        spec = softmax_rows(reading=reading, closing=closing, tile=form, log=kernel.log,
                            steps=kernel.steps)
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
    return True


def _plain(work: RowWork) -> bool:
    """Whether it is a normalization that writes its result alone."""
    it = work.kernel
    return isinstance(it, Norm) and it.kind in ("layer", "rms") and not (it.keeps or it.mean or it.inverse)


def _over_blocks(lo: GpuLowering, work: RowWork, tensors: Sequence[Tensor], out: Tensor, tree: Expr | None,
                 operands: Sequence[Tensor]) -> None:
    """A normalization of few long rows: reductions that several blocks share, and a loop over elements."""
    kernel, axes, met = work.kernel, tuple(work.reduced), list(tensors)
    assert isinstance(kernel, Norm)
    count = lo.numbers([math.prod(out.shape[a] for a in axes)], F)

    def by_row(what: Expr, after: Expr | None = None) -> Expr:
        """The mean along rows, or `after` of it, as a leaf of what is met."""
        total = Folded("sum", what, list(met), axes)
        made, mean = lo.new(total.short, F), Expr("div", (Expr.leaf(0, F), Expr.leaf(1, F)), F)
        fold(lo, total, made, mean if after is None else after.substitute(lambda _: mean),
             [count.expand(total.short)])
        met.append(made.expand(out.shape))
        return Expr.leaf(len(met) - 1, F)
    x = work.reads.tree
    if kernel.kind == "layer":
        x, leaf = Expr("sub", (x, by_row(x)), F), Expr.leaf(0, F)
        finite = Expr("lt", (Expr("abs", (leaf,), F), Expr.const(math.inf, F)), "bool")
        x = Expr("sub", (x, by_row(x, Expr("where", (finite, leaf, Expr.const(0.0, F)), F))), F)
    size = Expr("add", (Expr.leaf(0, F), Expr.const(kernel.epsilon, F)), F)
    value = Expr("mul", (x, by_row(Expr("mul", (x, x), F), Expr("rsqrt", (size,), F))), F)
    first = len(met) - 1
    whole = work.closed(tree).substitute(
        lambda leaf: value if leaf.value == 0 else Expr.leaf(leaf.value + first, leaf.dtype))
    lo.store(out, whole.cast(out.dtype), [*met, *work.operands, *map(work.view, operands)])


def fold(lo: GpuLowering, what: Folded, out: Tensor, after: Expr | None, operands: Sequence[Tensor]) -> None:
    """Append the steps that write `out`, of the shape `what.short`: `after`, or none, over the reduction's
    value and over `operands`, which are of that shape too."""
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
    if not form.whole and length >= LONG and blocks < FEW:
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


GPU_RULES.steps.update(rows=rows, fold=fold)
