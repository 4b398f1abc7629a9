"""Trigonometric functions of vectors and their inverses, lane by lane; conventions are those of `vmath`."""

from __future__ import annotations

import math

from .emit import F32, F64, I64, Function, V, size_of
from .vmath import abs, any_lane, copysign, format_of, polynomial, raw, sqrt

FUNCTIONS = ("sin", "cos", "tan", "asin", "acos", "atan")
"""The functions an expression may name."""

_SIN = {F32: (-0.166666672, 0.0083333794, -0.00019852983, 2.8308018e-06),
        F64: (-0.16666666666666666, 0.008333333333330948, -0.00019841269836756774, 2.7557316101617874e-06,
              -2.505113165023518e-08, 1.5918115263265974e-10)}
_COS = {F32: (0.0416666456, -0.00138873025, 2.44308812e-05),
        F64: (0.041666666666666664, -0.0013888888888887398, 2.480158729876456e-05, -2.7557317271145144e-07,
              2.087614614655861e-09, -1.1382623647474604e-11)}
_ATAN = {F32: (-0.333333015, 0.199986294, -0.142651513, 0.109571025, -0.0841812119, 0.058212325,
               -0.0314341411, 0.0110531384, -0.00182473927),
         F64: (-0.3333333333333333, 0.19999999999999993, -0.1428571428571149, 0.11111111110751482,
               -0.0909090906681608, 0.07692306729194896, -0.06666641869131183, 0.058819230561140225,
               -0.05258020272656758, 0.04719259188242092, -0.04103887546862687, 0.03062299555373551,
               -0.013905374533113229)}
_ASIN = {F32: (0.166667536, 0.0749525204, 0.0454760417, 0.0241520926, 0.0422117971),
         F64: (0.16666666666666669, 0.07499999999998433, 0.04464285714635543, 0.030381944138531247,
               0.02237217294214989, 0.017352392720869973, 0.013971212973552933, 0.011479177415184906,
               0.01032281435018578, 0.005457506718640358, 0.01740087944269402, -0.014851887071247204,
               0.028757851367421566)}
_HALF_PI = {F32: (1.57079637050628662109375, -4.37113900018624283e-8, -1.71512451e-15),
            F64: (1.5707963267948966, 6.123233995736766e-17, -1.4973849048591698e-33)}
_TWO_OVER_PI = int(
    "A2F9836E4E441529FC2757D1F534DDC0DB6295993C439041FE5163ABDEBBC561B7246E3A424DD2E006492EEA09D1921C"
    "FE1DEB1CB129A73EE88235F52EBB4484E99C7026B45F7E413991D639835339F49C845F8BBDF9283B1FF897FFDE05980F"
    "EF2F118B5A0A6D1F6D367ECF27CB09B74F463F669E5FEA2D7527BAC7EBE5F17B3D0739F78A5292EA6BFB5FB11F8D5D08"
    "56033046FC7B6BABF0CFBC209AF4361D", 16)
"""The first 1280 bits of 2 / pi behind the point."""
_FAR = {F32: 1e5, F64: 1e9}
"""From where x minus multiples of pi/2 in three parts is not right to the last place."""


def _quadrant(f: Function, x: V) -> tuple[V, V]:
    """x = k pi/2 + r with |r| <= pi/4, a little more for large x: the integer k, right in its low
    bits, and r. Right to the last place for every x; NaN of infinities."""
    of = format_of(x)
    a = abs(f, x)
    shifted = f.fma(x, 2 / math.pi, of.magic)
    n = shifted - of.magic
    r = x
    for part in _HALF_PI[x.elem]:
        r = f.fma(n, -part, r)
    k = raw(f, shifted)
    machine = getattr(f, "machine", None)
    fused = machine is None or machine.arch != "x86_64" or machine.has("fma")
    far = a > (_FAR[x.elem] if fused else math.pi / 4)

    far_k, far_r = f.when(any_lane(f, far), lambda: _far_quadrant(f, x), lambda: (k, r))
    r = f.select(far, far_r, r)
    return f.select(far, far_k, k), f.select(a < math.inf, r, f.const(x.ty, math.nan))


def _far_quadrant(f: Function, x: V) -> tuple[V, V]:
    """`_quadrant` of |x| >= 1/2, a lane at a time and in integers: x times those 96 or 192 bits of 2 / pi
    that make more than multiples of 4."""
    of = format_of(x)
    words, rows = (3, 17) if x.elem == F32 else (6, 129)
    last = 1280 - 32 * words + of.mantissa + 3
    table = f.table(I64, [_TWO_OVER_PI >> last - 8 * i + 32 * j & 0xFFFFFFFF
                          for i in range(rows) for j in reversed(range(words))])

    def lane(bits: V) -> tuple[V, V]:
        exponent = bits.lshr(of.mantissa) & (2 * of.bias + 1)
        at = f.maximum(exponent - (of.bias - 1), f.const(bits.ty, 0))
        whole = f.const(bits.ty, 1 << of.mantissa)
        number = f.cast(((bits & (whole - 1)) | whole) << (at & 7), I64)
        row = f.cast((at >> 3) * words, I64)
        high, low = _turns(f, number, [f.load(I64, table, row + j) for j in range(words)])
        k = (high + (1 << 61)).lshr(62)
        r = f.cast(high - (k << 62), F64)
        if low is not None:
            r = f.fma(f.cast(low.lshr(1), F64), 2.0 ** -63, r)
        r = f.cast(r * (math.pi * 2.0 ** -63), x.elem)
        negative = bits < 0
        k = f.cast(k, of.bits)
        return f.select(negative, -k, k), f.select(negative, -r, r)

    bits = raw(f, x)
    if x.lanes == 1:
        return lane(bits)

    def step(i: V, ks: V, rs: V) -> tuple[V, V]:
        k, r = lane(f.extract(bits, i))
        return f.insert(ks, k, i), f.insert(rs, r, i)
    ks, rs = f.loop(0, x.lanes, 1, [f.zero(bits.ty), f.zero(x.ty)], step)
    return ks, rs


def _turns(f: Function, number: V, words: list[V]) -> tuple[V, V | None]:
    """The low bits of a number of up to 31 or 60 bits times one of 3 or 6 words of 32 bits, but for the last
    32 or 64: 64 bits, and of six words the next 64."""
    if len(words) == 3:
        a, b, c = (number * w for w in words)
        return (a << 32) + b + c.lshr(32), None
    low, high = number & 0xFFFFFFFF, number.lshr(32)
    made: list[V] = []
    carry = below = f.const(I64, 0)
    for word in reversed(words):
        total = low * word + carry
        crossed = high * below + (total & 0xFFFFFFFF)
        made.append(crossed & 0xFFFFFFFF)
        carry, below = total.lshr(32) + crossed.lshr(32), word
    return (made[5] << 32) | made[4], (made[3] << 32) | made[2]


def _sine_cosine(f: Function, r: V) -> tuple[V, V]:
    z = r * r
    sine = f.fma(r * z, polynomial(f, z, _SIN[r.elem]), r)
    return sine, f.fma(z * z, polynomial(f, z, _COS[r.elem]), f.fma(z, -0.5, 1.0))


def _turned(f: Function, k: V, sine: V, cosine: V) -> V:
    y = f.select((k & 1).ne(0), cosine, sine)
    return f.bitcast(raw(f, y) ^ ((k & 2) << (8 * size_of(y.elem) - 2)), y.ty)


def sin(f: Function, x: V) -> V:
    """Within 1.5."""
    k, r = _quadrant(f, x)
    return f.select(x.eq(0.0), x, _turned(f, k, *_sine_cosine(f, r)))


def cos(f: Function, x: V) -> V:
    """Within 1.5."""
    k, r = _quadrant(f, x)
    return _turned(f, k + 1, *_sine_cosine(f, r))


def tan(f: Function, x: V) -> V:
    """Within 3.5."""
    k, r = _quadrant(f, x)
    sine, cosine = _sine_cosine(f, r)
    odd = (k & 1).ne(0)
    y = f.select(odd, -cosine, sine) / f.select(odd, sine, cosine)
    return f.select(x.eq(0.0), x, y)


def _asin_near(f: Function, x: V, z: V) -> V:
    """asin(x) for |x| <= 1/2 and z = x * x."""
    return f.fma(x * z, polynomial(f, z, _ASIN[x.elem]), x)


def asin(f: Function, x: V) -> V:
    """Within 2.5; NaN outside [-1, 1]."""
    a = abs(f, x)
    near = a < 0.5
    z = f.select(near, a * a, f.fma(a, -0.5, 0.5))
    y = _asin_near(f, f.select(near, a, sqrt(f, z)), z)
    return copysign(f, f.select(near, y, f.fma(y, -2.0, math.pi / 2)), x)


def acos(f: Function, x: V) -> V:
    """Within 2; NaN outside [-1, 1]."""
    a = abs(f, x)
    near = a < 0.5
    z = f.select(near, a * a, f.fma(a, -0.5, 0.5))
    y = _asin_near(f, f.select(near, x, sqrt(f, z)), z)
    return f.select(near, math.pi / 2 - y, f.select(x < 0.0, f.fma(y, -2.0, math.pi), y + y))


def atan(f: Function, x: V) -> V:
    """Within 2."""
    a = abs(f, x)
    steep = a > 1.0
    t = f.select(steep, -1.0 / a, a)
    turn = f.select(steep, f.const(x.ty, math.pi / 2), 0.0)
    if x.elem == F64:
        high = t > math.sqrt(2) - 1
        low = t < 1 - math.sqrt(2)
        one = f.select(high, f.const(x.ty, 1.0), f.select(low, f.const(x.ty, -1.0), 0.0))
        t = (t - one) / f.fma(t, one, 1.0)
        turn = f.fma(one, math.pi / 4, turn)
    z = t * t
    return copysign(f, turn + f.fma(t * z, polynomial(f, z, _ATAN[x.elem]), t), x)
