"""Division, remainders, shifts and whole powers of vectors, lane by lane. No operand makes them trap."""

from __future__ import annotations

import math

from .emit import F32, F64, I8, I16, I32, I64, Function, V, size_of, vec
from .vmath import abs, any_lane, copysign, trunc


def fmod(f: Function, a: V, b: V, unsigned: bool = False) -> V:
    """a - trunc(a / b) b, with the sign of a, exactly: of floats and integers. Integers do not trap on 0.

    Of floats a step takes the divisor as often as the first 24 digits of the quotient say, in two parts, so
    that its products are float64 whole. So is what is left: a multiple of the last digits of both.
    """
    if not a.is_float:
        return a - quotient(f, a, b, unsigned) * b
    size, divisor = f.cast(abs(f, a), F64), f.cast(abs(f, b), F64)

    def upper(x: V) -> V:
        return f.bitcast(f.bitcast(x, vec(I64, a.lanes)) & -(1 << 29), x.ty)

    def step(rest: V) -> tuple[V, list[V]]:
        by, q = divisor, rest / divisor
        if a.elem == F64:
            far = any_lane(f, (abs(f, q) >= _FAR) & (rest < math.inf))
            by, q = f.when(far, lambda: farther(rest, q), lambda: (by, q))
        q = -trunc(f, upper(q))
        high = upper(by) if a.elem == F64 else by
        rest = f.fma(q, high, rest)
        if a.elem == F64:
            rest = f.fma(q, by - high, rest)
        left = abs(f, rest)
        return any_lane(f, (left >= divisor) & (divisor > 0.0) & (left < math.inf)), [rest]

    def farther(rest: V, q: V) -> tuple[V, V]:
        """Where the quotient may be none that float64 has, a power of two times the divisor."""
        by = divisor
        for _ in range(2):
            by = f.select(abs(f, q) >= _FAR, by * _FAR, by)
            q = rest / by
        return by, q

    (rest,) = f.repeat([size], step)
    rest = f.select(rest < 0.0, rest + divisor, rest)
    rest = f.select(divisor.eq(math.inf), size, rest)
    return copysign(f, f.cast(f.select(size < math.inf, rest, f.const(rest.ty, math.nan)), a.elem), a)


_FAR = 2.0 ** 990


def remainder(f: Function, a: V, b: V, unsigned: bool = False) -> V:
    """a - floor(a / b) b, with the sign of b: of floats and integers. Integers do not trap on 0."""
    rest = fmod(f, a, b, unsigned)
    if unsigned:
        return rest
    other = f.select((rest < 0) ^ (b < 0), rest + b, rest)
    if a.is_float:
        other = f.select(rest.eq(0.0), copysign(f, rest, b), other)
        return f.select(rest.ne(rest), rest, other)
    return f.select(rest.eq(0), rest, other)


_EXACT = {I8: F32, I16: F32, I32: F64}
"""Floats whose quotient of two integers, rounded to zero, is exact."""


def by_floats(f: Function, a: V, b: V, unsigned: bool = False) -> V:
    """`quotient`, by floats where they are exact: few machines divide vectors of integers."""
    work = _EXACT.get(a.elem)
    if work is None:
        return quotient(f, a, b, unsigned)
    safe = f.select(b.eq(0), f.const(b.ty, 1), b)
    negated = None if unsigned else safe.eq(-1)
    if negated is not None:
        safe = f.select(negated, f.const(b.ty, 1), safe)
    real = f.cast(a, work, unsigned) / f.cast(safe, work, unsigned)
    whole = f.cast(f.cast(real, I32, unsigned), a.elem)
    return whole if negated is None else f.select(negated, -a, whole)


def quotient(f: Function, a: V, b: V, unsigned: bool = False) -> V:
    """Integer a / b rounded to zero; it wraps, and is a where b is 0."""
    safe = f.select(b.eq(0), f.const(b.ty, 1), b)

    def whole() -> V:
        if unsigned:
            return f.binary("udiv", a, safe)
        negated = safe.eq(-1)
        return f.select(negated, -a, a // f.select(negated, f.const(b.ty, 1), safe))

    def real() -> V:
        return f.cast(f.cast(a, F64, unsigned) / f.cast(safe, F64, unsigned), a.elem, unsigned)
    if a.elem != I64 or a.lanes == 1:
        return whole()
    far = [f.compare("ge", v if unsigned else v + _HALF, _HALF << (not unsigned), unsigned=True)
           for v in (a, safe)]
    (found,) = f.when(any_lane(f, far[0] | far[1]), whole, real)
    return found


_HALF = 1 << 52
"""Two integers of 64 bits that are no larger, in magnitude, have a quotient in float64 whose whole part is
right: it is off by less than what it lacks to the next integer."""


def shift_left(f: Function, x: V, by: V) -> V:
    """0 where the shift is not below the width."""
    width = 8 * size_of(x.elem)
    inside = f.compare("lt", by, width, unsigned=True)
    return f.select(inside, x << f.select(inside, by, 0), f.const(x.ty, 0))


def shift_right(f: Function, x: V, by: V, unsigned: bool = False) -> V:
    """The sign of x throughout where the shift is not below the width."""
    width = 8 * size_of(x.elem)
    inside = f.compare("lt", by, width, unsigned=True)
    by = f.select(inside, by, width - 1)
    return f.select(inside, x.lshr(by), f.const(x.ty, 0)) if unsigned else x >> by


def power(f: Function, x: V, y: V) -> V:
    """Integer x^y, wrapping, for y >= 0 taken as unsigned."""
    def step(result: V, base: V, left: V) -> tuple[V, list[V]]:
        result = f.select((left & 1).ne(0), result * base, result)
        left = left.lshr(1)
        return any_lane(f, left.ne(0)), [result, base * base, left]
    return f.repeat([f.const(x.ty, 1), x, y], step)[0]


def next_up(f: Function, x: V) -> V:
    """The least float32 above x, which is below infinity."""
    bits = f.bitcast(x + f.like(0.0, x), vec(I32, x.lanes))
    return f.bitcast(f.select(x >= f.like(0.0, x), bits + 1, bits - 1), x.ty)
