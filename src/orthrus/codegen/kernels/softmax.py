"""Softmax: rows of a strided tensor in, each element's share of its row's exponentials (or its log) out."""

from __future__ import annotations

import math

from ..write import vmath
from ..write.body import Body
from ..write.emit import F32, V, vec
from ..write.expr import Expr
from ..write.template import template
from .rows import Ends, Read, RowForm, RowPlace, Rows


@template("")
def softmax_rows(f: Body, *, form: RowForm, tensors: tuple[Read, ...], reads: int, tree: Expr,
                 after: Expr | None, log: bool) -> None:
    """exp(x - max) over its sum, x being `tree` of the first `reads` tensors; the last tensor is written.
    With `log` its logarithm. NaN along rows without a finite element."""
    rows = Rows(f, form, tensors)
    ends = Ends(rows, tree, reads, after)
    lanes = vec(F32, rows.lanes)
    out = len(tensors) - 1

    def row(item: V) -> None:
        def raised(place: RowPlace, now: V) -> V:
            place.fetch(reads, out)
            e = place.only(vmath.exp_nonpositive(f, place.only(ends.later(place), -math.inf) - most), 0)
            if not log:
                place.keep(e)
            return now + e
        most = rows.sweep(lambda place, now: f.fast_max(place.only(ends.first(place), -math.inf), now),
                          f.const(lanes, -math.inf), f.fast_max)
        total = rows.sweep(raised, f.const(lanes, 0))
        if log:
            less = vmath.log(f, total)
            rows.sweep(lambda place, _: ends.store(place, ends.later(place) - most - less, out))
        else:
            share = 1 / total
            rows.sweep(lambda place, _: ends.store(place, place.kept() * share, out))
    rows.each(row)
