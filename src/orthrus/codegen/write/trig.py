"""Trigonometric functions of vectors and their inverses, lane by lane; conventions are those of `vmath`."""

from __future__ import annotations

import math

from .emit import F32, F64, I32, I64, Function, V
from .vmath import abs, any_lane, copysign, format_of, polynomial, raw, sqrt

FUNCTIONS = ("sin", "cos", "tan", "asin", "acos", "atan")
"""The functions an expression may name. The first three take float32 only."""

_SIN = (-0.166666672, 0.0083333794, -0.00019852983, 2.8308018e-06)
_COS = (0.0416666456, -0.00138873025, 2.44308812e-05)
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
_HALF_PI = (1.57079637050628662109375, -4.37113900018624283e-8, -1.71512451e-15)
_TWO_OVER_PI = 0xA2F9836E4E441529FC2757D1F534DDC0DB6295993C439041FE5163ABDEBBC561
"""The first 256 bits of 2 / pi behind the point."""


def _quadrant(f: Function, x: V) -> tuple[V, V]:
    """float32 x = k pi/2 + r with |r| <= pi/4, a little more for large x: the integer k, right in its low
    bits, and r. Right to the last place for every x; NaN of infinities."""
    of = format_of(x)
    a = abs(f, x)
    shifted = f.fma(x, 2 / math.pi, of.magic)
    n = shifted - of.magic
    r = x
    for part in _HALF_PI:
        r = f.fma(n, -part, r)
    k = raw(f, shifted)
    machine = getattr(f, "machine", None)
    fused = machine is None or machine.arch != "x86_64" or machine.has("fma")
    far = a > (1e5 if fused else math.pi / 4)

    far_k, far_r = f.when(any_lane(f, far), lambda: _far_quadrant(f, x), lambda: (k, r))
    r = f.select(far, far_r, r)
    return f.select(far, far_k, k), f.select(a < math.inf, r, f.const(x.ty, math.nan))


def _far_quadrant(f: Function, x: V) -> tuple[V, V]:
    """`_quadrant` of |x| >= 1/2, a lane at a time and in integers: x times those 96 bits of 2 / pi that make
    more than multiples of 4."""
    table = f.table(I64, [_TWO_OVER_PI >> 186 - 8 * i + 32 * j & 0xFFFFFFFF
                          for i in range(17) for j in (2, 1, 0)])

    def lane(bits: V) -> tuple[V, V]:
        at = f.maximum((bits.lshr(23) & 255) - 126, f.const(I32, 0))
        number = f.cast(((bits & 0x7FFFFF) | 0x800000) << (at & 7), I64)
        row = f.cast((at >> 3) * 3, I64)
        a, b, c = (number * f.load(I64, table, row + j) for j in range(3))
        turns = (a << 32) + b + c.lshr(32)
        k = (turns + (1 << 61)).lshr(62)
        r = f.cast(f.cast(turns - (k << 62), F64) * (math.pi * 2.0 ** -63), F32)
        negative = bits < 0
        k = f.cast(k, I32)
        return f.select(negative, -k, k), f.select(negative, -r, r)

    bits = raw(f, x)
    if x.lanes == 1:
        return lane(bits)

    def step(i: V, ks: V, rs: V) -> tuple[V, V]:
        k, r = lane(f.extract(bits, i))
        return f.insert(ks, k, i), f.insert(rs, r, i)
    ks, rs = f.loop(0, x.lanes, 1, [f.zero(bits.ty), f.zero(x.ty)], step)
    return ks, rs


def _sine_cosine(f: Function, r: V) -> tuple[V, V]:
    z = r * r
    sine = f.fma(r * z, polynomial(f, z, _SIN), r)
    return sine, f.fma(z * z, polynomial(f, z, _COS), f.fma(z, -0.5, 1.0))


def _turned(f: Function, k: V, sine: V, cosine: V) -> V:
    y = f.select((k & 1).ne(0), cosine, sine)
    return f.bitcast(raw(f, y) ^ ((k & 2) << 30), y.ty)


def sin(f: Function, x: V) -> V:
    """Of float32, within 1.5."""
    k, r = _quadrant(f, x)
    return f.select(x.eq(0.0), x, _turned(f, k, *_sine_cosine(f, r)))


def cos(f: Function, x: V) -> V:
    """Of float32, within 1.5."""
    k, r = _quadrant(f, x)
    return _turned(f, k + 1, *_sine_cosine(f, r))


def tan(f: Function, x: V) -> V:
    """Of float32, within 3.5."""
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
