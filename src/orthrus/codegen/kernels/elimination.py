"""Determinants and inverses of small matrices, by elimination with the largest pivot of each column.

In: matrices in C order, one behind the other. Out: a number or a matrix for each. A matrix that is singular
as far as rounding tells, or whose result is no number within the type, is left to the caller.
"""

from __future__ import annotations

from ..machines.machine import Machine
from ..write.body import Body
from ..write.emit import F64, V, vec
from ..write.expr import LLVM
from ..write.template import template

_NOTHING = 2.0 ** -48
"""Times a matrix's rows and its largest magnitude: no more than what rounding leaves of a pivot that is 0."""
_TINY = 2.0 ** -900
"""A product of pivots that is not below this has lost nothing."""


def scratch(machine: Machine, n: int, inverse: bool) -> int:
    """Bytes that a thread needs for an `n` x `n` matrix, and with `inverse` for the one that becomes it."""
    lanes = machine.lanes(8)
    return n * (-(-n // lanes) * lanes) * (16 if inverse else 8)


@template("x:ptr out:ptr status:ptr n:i64")
def eliminated(f: Body, x: V, out: V, status: V, n: V, *, dtype: str, inverse: bool) -> None:
    """An item is an `n` x `n` matrix of x: its determinant, or with `inverse` its inverse. Where one has a
    pivot that is next to nothing beside its largest element, or the result is not finite, or a determinant is
    too small for the products on the way to it, `status` becomes 1. Everything is computed in float64.
    Scratch: see `scratch`."""
    elem, stored, lanes = F64, LLVM[dtype], f.machine.lanes(8)
    ty, narrow = vec(elem, lanes), vec(stored, lanes)
    half = (n + (lanes - 1)) & -lanes
    width = half * 2 if inverse else half
    zero, one = f.const(elem, 0.0), f.const(elem, 1.0)

    def row(r: V) -> V:
        return f.gep(f.scratch, r * width, elem)

    def taken(matrix: V) -> V:
        """The largest magnitude of a matrix, which is then in scratch, with zeros up to whole vectors."""
        def line(r: V, most: V) -> list[V]:
            def some(c: V, most: V) -> V:
                mask = f.mask(lanes, n - c)
                have = f.cast(f.load_masked(narrow, f.gep(matrix, r * n, stored), c, mask), elem)
                f.store(have, row(r), c)
                if inverse:
                    f.store(f.zero(ty), row(r), c + half)
                return f.fast_max(f.unary("fabs", have), most)
            now = f.loop(0, half, lanes, [most], some)
            if inverse:
                f.store(one, row(r), half + r)
            return now
        (most,) = f.loop(0, n, 1, [f.zero(ty)], line)
        return f.reduce(most, f.fast_max)

    def pivot_of(k: V) -> list[V]:
        """The largest magnitude in column `k` from row `k` on, and its row."""
        def look(i: V, most: V, place: V) -> list[V]:
            have = f.unary("fabs", f.load(elem, row(i), k))
            more = have > most
            return [f.select(more, have, most), f.select(more, i, place)]
        return f.loop(k, n, 1, [zero, k], look)

    def swapped(a: V, b: V, begin: V) -> None:
        def some(c: V) -> None:
            first, second = f.load(ty, row(a), c), f.load(ty, row(b), c)
            f.store(second, row(a), c)
            f.store(first, row(b), c)
        f.loop(begin, width, lanes, [], some)

    def cleared(k: V, begin: V, first: V, last: V, scale: V) -> None:
        """Rows from `first` to `last` without what they have of row `k`."""
        def line(i: V) -> None:
            factor = f.splat(-(f.load(elem, row(i), k) * scale), lanes)
            f.loop(begin, width, lanes, [], lambda c: f.store(
                f.fma(factor, f.load(ty, row(k), c), f.load(ty, row(i), c)), row(i), c))
        f.loop(first, last, 1, [], line)

    def item(i: V) -> None:
        limit = taken(f.gep(x, i * n * n, stored)) * (f.cast(n, elem) * _NOTHING)

        def column(k: V, product: V, good: V) -> list[V]:
            most, place = pivot_of(k)
            begin = k & -lanes
            f.when(place.ne(k), lambda: swapped(k, place, begin))
            pivot = f.load(elem, row(k), k)
            scale = one / pivot
            good = good & (most > limit)
            if inverse:
                f.loop(begin, width, lanes, [], lambda c: f.store(
                    f.load(ty, row(k), c) * f.splat(scale, lanes), row(k), c))
                cleared(k, begin, f.i64(0), k, one)
                cleared(k, begin, k + 1, n, one)
                return [product, good]
            cleared(k, begin, k + 1, n, scale)
            product = product * pivot
            product = f.select(place.ne(k), -product, product)
            return [product, good & (f.unary("fabs", product) > _TINY)]
        product, good = f.loop(0, n, 1, [one, f.const("i1", 1)], column)
        if inverse:
            def line(r: V, odd: V) -> list[V]:
                def some(c: V, odd: V) -> V:
                    have = f.cast(f.load(ty, row(r), c + half), stored)
                    f.store_masked(have, f.gep(out, (i * n + r) * n, stored), c, f.mask(lanes, n - c))
                    return odd + (have - have)
                return f.loop(0, half, lanes, [odd], some)
            (odd,) = f.loop(0, n, 1, [f.zero(narrow)], line)
            good = good & f.reduce(odd, lambda a, b: a + b).eq(0.0)
        else:
            made = f.cast(product, stored)
            f.store(made, out, i)
            good = good & (made - made).eq(0.0) & made.ne(0.0)
        f.when(good, lambda: None, lambda: f.store(f.i64(1), status))
    f.loop(f.lo, f.hi, 1, [], item)
