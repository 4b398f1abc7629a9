"""Softmax and Hardmax: rows of a strided tensor in, out each element's share of its row's exponentials (or
its log), or 1 where it is the largest."""

from __future__ import annotations

import math

from ..write import vmath
from ..write.body import Body
from ..write.convert import convert
from ..write.emit import V
from ..write.expr import Expr
from ..write.template import template
from .rows import Ends, Read, RowForm, RowPlace, Rows


@template("")
def softmax_rows(f: Body, *, form: RowForm, tensors: tuple[Read, ...], reads: int, tree: Expr,
                 after: Expr | None, log: bool, steps: str = "") -> None:
    """exp(x - max) over its sum, x being `tree` of the first `reads` tensors; the last tensor is written.
    With `log` its logarithm. NaN along rows without a finite element. `steps`: the type that exponentials and
    their sum are rounded to, where they are."""
    rows = Rows(f, form, tensors)
    ends = Ends(rows, tree, reads, after)
    out = len(tensors) - 1

    def rounded(x: V) -> V:
        return convert(f, convert(f, x, form.dtype, steps), steps, form.dtype) if steps else x

    def row(item: V) -> None:
        def raised(place: RowPlace, now: V) -> V:
            place.fetch(reads, out)
            e = rounded(vmath.exp_nonpositive(f, place.only(ends.later(place), -math.inf) - most))
            e = place.only(e, 0)
            if not log:
                place.keep(e)
            return now + e
        most = rows.sweep(lambda place, now: f.fast_max(place.only(ends.first(place), -math.inf), now),
                          f.const(rows.vector, -math.inf), f.fast_max)
        total = rows.sweep(raised, rows.none)
        if log:
            less = vmath.log(f, total)
            rows.sweep(lambda place, _: ends.store(place, ends.later(place) - most - less, out))
        elif steps:
            whole = rounded(total)
            rows.sweep(lambda place, _: ends.store(place, place.kept() / whole, out))
        else:
            share = 1 / total
            rows.sweep(lambda place, _: ends.store(place, place.kept() * share, out))
    rows.each(row)


@template("")
def hardmax_rows(f: Body, *, form: RowForm, tensors: tuple[Read, ...], reads: int, tree: Expr,
                 after: Expr | None) -> None:
    """1 at the first largest element of each row, or at the first NaN where there is one, and 0 elsewhere; x
    as in `softmax_rows`. Rows of one run, no longer than their type counts."""
    rows = Rows(f, form, tensors)
    ends = Ends(rows, tree, reads, after)
    one, least, past = (f.const(rows.vector, x) for x in (1, -math.inf, math.inf))
    lane = rows.none if form.across else f.const(rows.vector, list(range(rows.lanes)))

    def number(place: RowPlace) -> V:
        """Which elements of their rows these are."""
        at = place.index
        if isinstance(at, int):
            return lane + f.const(rows.vector, at)
        return lane + f.splat(f.cast(at, rows.elem), rows.lanes)

    def row(item: V) -> None:
        most = rows.sweep(lambda place, now: f.maximum(place.only(ends.first(place), -math.inf), now), least,
                          f.maximum)

        def largest(place: RowPlace, now: V) -> V:
            x = ends.later(place)
            hit = x.eq(most) | vmath.isnan(f, x)
            return f.fast_min(place.only(f.select(hit, number(place), past), math.inf), now)
        first = rows.sweep(largest, past, f.fast_min)
        rows.sweep(lambda place, _: ends.store(place, f.select(number(place).eq(first), one, rows.none),
                                               len(tensors) - 1))
    rows.each(row)
