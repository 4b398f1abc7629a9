"""Normalizations: rows of a strided tensor in, each divided by its own size, out; and images, each channel
over a power of its neighbours' squares."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..write import vmath
from ..write.body import Body
from ..write.convert import convert
from ..write.emit import F32, I32, PTR, V, vec
from ..write.expr import LLVM, Expr
from ..write.template import template
from .rows import Ends, Read, RowForm, RowPlace, Rows
from .sample import Block, Frame, Pixel, dot


@template("")
def norm_rows(f: Body, *, form: RowForm, tensors: tuple[Read, ...], reads: int, tree: Expr,
              after: Expr | None, kind: str, keeps: bool = False, mean: bool = False, inverse: bool = False
              ) -> None:
    """Rows divided by their size: x being `tree` of the first `reads` tensors, `layer` (x - mean) /
    sqrt(variance + epsilon), `rms` x / sqrt(mean square + epsilon), `deviation` (x - mean) / (sqrt(variance)
    + epsilon), `l1` and `l2` x over its norm, 0 where that is 0, `max` x over the largest, x where that is 0.
    The variance is that of the centred values, whose own mean, what rounding took from the first, is met in
    the same pass and taken off too.

    The last tensor is written; with `keeps` the last but one gets x itself. Behind the tensors: epsilon, then
    where asked for addresses for each row's mean and factor (float32, one per item, not across).
    """
    rows = Rows(f, form, tensors)
    ends = Ends(rows, tree, reads, after)
    zero, out, epsilon = rows.none, len(tensors) - 1, rows.number()
    means = rows.cell(PTR) if mean else None
    factors = rows.cell(PTR) if inverse else None

    def row(item: V) -> None:
        centred = kind in ("layer", "deviation")

        def entered(place: RowPlace, other: float = 0) -> V:
            x = ends.first(place)
            if keeps:
                place.write(out - 1, x)
            return place.only(x, other)

        middle = rest = zero
        if centred:
            middle = rows.sweep(lambda place, now: now + entered(place), zero) / rows.count

        def spread(place: RowPlace, now: list[V]) -> list[V]:
            place.fetch(reads, out)
            x = place.only(ends.later(place) - middle, 0)
            if form.held:
                place.keep(x)
            return [f.fma(x, x, now[0]), now[1] + x]

        def power(place: RowPlace, now: V) -> V:
            place.fetch(reads, out)
            x = entered(place)
            return now + f.unary("fabs", x) if kind == "l1" else f.fma(x, x, now)

        def largest(place: RowPlace, now: V) -> V:
            place.fetch(reads, out)
            return f.maximum(now, entered(place, -math.inf))
        if kind == "max":
            total = rows.sweep(largest, f.const(zero.ty, -math.inf), f.maximum)
        elif centred:
            total, rest = rows.totals(spread, 2)
            rest = f.select(vmath.isfinite(f, rest), rest / rows.count, 0)
        else:
            total = rows.sweep(power, zero)
        size = total / rows.count
        if centred:
            size = f.maximum(f.fma(-rest, rest, size), 0)
        if kind in ("l1", "l2", "max"):
            factor = f.unary("sqrt", total) if kind == "l2" else total
        elif kind == "deviation":
            factor = 1 / (f.unary("sqrt", size) + epsilon)
        else:
            factor = 1 / f.unary("sqrt", size + epsilon)
        if means is not None:
            mean_of = middle + rest
            f.store(f.extract(mean_of, 0) if rows.lanes > 1 else mean_of, means, item)
        if factors is not None:
            f.store(f.extract(factor, 0) if rows.lanes > 1 else factor, factors, item)

        less = f.select(vmath.isfinite(f, factor), rest * -factor, 0)

        def closed(place: RowPlace, now: V) -> V:
            x = ends.later(place)
            if kind in ("l1", "l2", "max"):
                x = f.select(factor.eq(0), x if kind == "max" else 0, x / factor)
            elif centred:
                x = f.fma(x if form.held else x - middle, factor, less)
            else:
                x = x * factor
            return ends.store(place, x, out)
        rows.sweep(closed)
    rows.each(row)


@template("")
def response_norm(f: Body, *, rank: int, lanes: int, dtype: str, out: str, operands: tuple[Read, ...],
                  after: Expr | None, size: int, beta: float) -> None:
    """x / (bias + factor * sum of squares over `size` neighbouring channels) ** beta, on channels-last
    images.

    Arguments: the frame's, then the input's address and strides (image, spatial axes), bias and factor.
    """
    frame = Frame(f, rank, lanes, "float32", out, operands, after)
    x, strides = frame.cell(PTR), frame.cells(rank + 1)
    bias, factor = frame.cell(F32), frame.cell(F32)
    elem, ty = LLVM[dtype], vec(LLVM[dtype], lanes)
    before = (size - 1) // 2
    counted = f.const(vec(I32, lanes), list(range(lanes)))

    def row(at: Sequence[V]) -> Pixel:
        base = f.gep(x, dot(at, strides), elem)

        def pixel(w: V) -> Block:
            here = f.gep(base, w * strides[-1], elem)

            def block(c: V, vectors: int, mask: V | None) -> list[V]:
                found = []
                for j in range(vectors):
                    first = c + j * lanes if j else c
                    total = f.const(vec(F32, lanes), 0)
                    for o in range(-before, size - before):
                        place = f.cast(first + o, I32)
                        inside = (counted >= -place) & (counted < f.cast(frame.channels, I32) - place)
                        value = convert(f, f.load_masked(ty, here, first + o, inside), dtype, "float32")
                        total = f.fma(value, value, total)
                    own = convert(f, frame.load(here, (dtype, 1), first, mask), dtype, "float32")
                    found.append(own / _power(f, f.fma(total, factor, bias), beta))
                return found
            return block
        return pixel
    frame.each(row)


def _power(f: Body, x: V, beta: float) -> V:
    """x ** beta of a number that is not negative."""
    if beta == 1:
        return x
    root = f.unary("sqrt", x)
    if beta == 0.5:
        return root
    if beta == 0.75:
        return root * f.unary("sqrt", root)
    return vmath.pow(f, x, f.const(x.ty, beta))
