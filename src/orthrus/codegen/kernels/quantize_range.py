"""The range of a float32 tensor, and what quantizes it to uint8: `range_parts`, then `range_codes`.

In: elements next to each other. Out: the scale and the zero point of DynamicQuantizeLinear, and three numbers
that divide by the scale without a division: a power of two by which dividend and scale are multiplied first,
the scale so multiplied, and its inverse.
"""

from __future__ import annotations

from ..write.body import Body
from ..write.emit import F32, V, vec
from ..write.expr import Expr, emit
from ..write.template import template

CHUNK = 1 << 14
"""Elements of which an item finds the range."""

_CHAINS = 4


@template("x:ptr parts:ptr n:i64")
def range_parts(f: Body, x: V, parts: V, n: V) -> None:
    """The least and the greatest of each CHUNK elements and 0; NaN for both where one is NaN."""
    lanes = f.machine.lanes()
    floats, step = vec(F32, lanes), _CHAINS * lanes

    def item(i: V) -> None:
        begin = i * CHUNK
        end = f.fast_min(begin + CHUNK, n)
        whole = begin + ((end - begin) & -step)
        zero, false = f.zero(floats), f.zero(vec("i1", lanes))

        def joined(value: V, low: V, high: V, bad: V) -> tuple[V, V, V]:
            return f.fast_min(value, low), f.fast_max(value, high), bad | value.ne(value)

        def wide(j: V, *state: V) -> list[V]:
            made = list(state)
            for c in range(_CHAINS):
                made[3 * c:3 * c + 3] = joined(f.load(floats, x, j + c * lanes), *state[3 * c:3 * c + 3])
            return made

        def rest(j: V, *state: V) -> list[V]:
            value = f.load_masked(floats, x, j, f.mask(lanes, end - j))
            return list(joined(value, *state))
        made = f.loop(begin, whole, step, [zero, zero, false] * _CHAINS, wide)
        low, high, bad = made[:3]
        for c in range(1, _CHAINS):
            low, high = f.fast_min(low, made[3 * c]), f.fast_max(high, made[3 * c + 1])
            bad = bad | made[3 * c + 2]
        low, high, bad = f.loop(whole, end, lanes, [low, high, bad], rest)
        nan = f.const(floats, float("nan"))
        for at, value, combine in ((0, low, f.minimum), (1, high, f.maximum)):
            f.store(f.reduce(f.select(bad, nan, value), combine), parts, i * 2 + at)
    f.loop(f.lo, f.hi, 1, [], item)


@template("parts:ptr count:i64 scale:ptr zero:ptr divisor:ptr")
def range_codes(f: Body, parts: V, count: V, scale: V, zero: V, divisor: V) -> None:
    """One item: scale, zero point and divisor from `count` pairs of the least and the greatest."""
    none = f.const(F32, 0.0)

    def item(_: V) -> None:
        low, high = f.loop(0, count, 1, [none, none], lambda i, low, high: [
            f.minimum(low, f.load(F32, parts, i * 2)), f.maximum(high, f.load(F32, parts, i * 2 + 1))])
        by = (high - low) / 255.0
        by = f.select(by.eq(0.0), f.const(F32, 1.0), by)
        value, least, most = Expr.leaf(0, "float32"), Expr.const(0.0, "float32"), Expr.const(255.0, "float32")
        code = emit(f, Expr("quantize", (value, least, most, Expr.const(0, "int32")), "uint8"), [-low / by])
        f.store(by, scale)
        small, large = f.const(F32, 2.0 ** 80), f.const(F32, 2.0 ** -80)
        power = f.select(by < 2.0 ** -60, small, f.select(by > 2.0 ** 60, large, f.const(F32, 1.0)))
        for i, x in enumerate((power, by * power, 1.0 / (by * power))):
            f.store(x, divisor, i)
        f.store(code, zero)
    f.loop(f.lo, f.hi, 1, [], item)
