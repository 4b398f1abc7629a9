"""Functions of vectors: exp, log, tanh, erf and their like, lane by lane, each with its stated error.

Every function takes the writer and vectors of one type, float32 or float64 unless said otherwise, and gives
a vector. Errors are in units of the last place, of float32 on a machine with fused multiply-add; those of
float64 and of other machines are within 4. NaN gives NaN; infinities, zeros and denormals are as in C.
Nothing branches but for rare operands, and nothing calls out. Polynomials are minimax, lowest power first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ...ops.functions import ERF_LARGE, ERF_MIDDLE, ERF_SMALL
from ...records import dataclass
from .convert import has
from .emit import F32, F64, I32, I64, Function, V, size_of, vec

FUNCTIONS = (
    "sqrt", "rsqrt", "reciprocal", "floor", "ceil", "trunc", "rint", "round", "exp", "exp_nonpositive",
    "exp2", "expm1", "log", "log2", "log1p", "sigmoid", "tanh", "erf", "sinh", "cosh", "asinh", "acosh",
    "atanh", "pow", "isnan", "isinf", "isfinite", "copysign")
"""The functions an expression may name. `pow` takes float32 only."""


@dataclass(frozen=True)
class _Format:
    """Of a float type: the integer type of its width, how many bits its mantissa has, the exponent's bias,
    the number whose addition rounds to an integer, ln 2 in two parts (products of the first with exponents
    are exact), where exp underflows to 0 and overflows, (e^r - 1 - r) / r^2 as a polynomial, and the bits
    of 3/4."""

    bits: str
    mantissa: int
    bias: int
    magic: float
    ln2: tuple[float, float]
    exp: tuple[float, float]
    exp_tail: tuple[float, ...]
    three_quarters: int


_FORMATS = {
    F32: _Format(I32, 23, 127, 1.5 * 2.0 ** 23, (0.693145751953125, 1.428606820309417e-6), (-104.0, 89.0),
                 (0.5, 0.166665196, 0.0416663922, 0.00836883206, 0.00139415357), 0x3F400000),
    F64: _Format(I64, 52, 1023, 1.5 * 2.0 ** 52, (6.93147180369123816490e-01, 1.90821492927058770002e-10),
                 (-746.0, 710.0),
                 (0.5, 0.1666666666666667, 0.04166666666666667, 0.008333333333326084, 0.0013888888888883711,
                  0.0001984126987500228, 2.480158732567746e-05, 2.755725517000089e-06, 2.755727347871858e-07,
                  2.5105312729622103e-08, 2.09147553258932e-09), 0x3FE8000000000000),
}
_LOG = (0.333333373, -0.250001669, 0.199998289, -0.166555122, 0.142708167, -0.127158865, 0.117347263,
        -0.092449978, 0.0387369506)
_LOG_WIDE = (0.3333333333333333, 0.19999999999999954, 0.14285714285745174, 0.11111111103220504,
             0.09090910099293802, 0.07692235448289166, 0.06669696891669157, 0.05808757665751733,
             0.06211557028039042)
_TANH = (-0.333332837, 0.133314863, -0.0537431724, 0.0206497088, -0.00571620278)
_TANH_TABLE = (
    (2.4997172, 3.5005865, 4.99977, 6.9985695, 8.62786, 0.0, 0.0, 0.0, 0.0, 0.0, 0.31252342, 0.43750852,
     0.62510663, 0.875142, 1.2497119, 1.749765),
    (0.9866068, 0.99818003, 0.99990916, 0.99999833, 0.99999994, 0.0, 0.0, 0.0, 0.0, 0.0, 0.302731, 0.41157714,
     0.55467355, 0.7039772, 0.8482028, 0.9413488),
    (0.026607161, 0.003636692, 0.00018192052, 3.336764e-06, 1.2822653e-07, 0.0, 0.0, 0.0, 0.0, 1.0, 0.9083539,
     0.83060426, 0.6923373, 0.50441605, 0.28055185, 0.1138624),
    (-0.02625051, -0.003630053, -0.00018184197, -3.3319488e-06, -3.319643e-07, 0.0, 0.0, 0.0, 0.0,
     -1.0973023e-06, -0.27498692, -0.34185773, -0.3840212, -0.35509744, -0.23796499, -0.10718421),
    (0.017026745, 0.0024089597, 0.00011895335, 2.1964256e-06, 8.567298e-08, 0.0, 0.0, 0.0, 0.0, -0.3332702,
     -0.21953762, -0.13616756, -0.017778832, 0.081839524, 0.10834058, 0.06295021),
    (-0.008055828, -0.0011959024, -5.9591675e-05, -1.1071864e-06, 1.3326226e-06, 0.0, 0.0, 0.0, 0.0,
     -0.0011837172, 0.15813215, 0.16999596, 0.13787307, 0.060756147, -0.012557339, -0.023529297),
    (0.0028880346, 0.0004897038, 2.844033e-05, 5.1456294e-07, 1.6856289e-08, 0.0, 0.0, 0.0, 0.0, 0.14308424,
     0.045504954, -0.0059661986, -0.054359317, -0.058540143, -0.019716455, 0.0034808556),
    (-0.00069630845, -0.00015767437, -9.379675e-06, -1.6649851e-07, -2.3304576e-06, 0.0, 0.0, 0.0, 0.0,
     -0.036976993, -0.07388, -0.06168748, -0.024337027, 0.012868803, 0.015102733, 0.0021054356),
)
"""tanh(c + u) of 1/4 and more by halves of octaves, in the tenth column of what is less: a row of centers c,
then one for each power of u; which column, say the last bits of an exponent and the first of a fraction."""
_SINH = {F32: (0.166666672, 0.00833331142, 0.000198426351, 2.78392508e-06),
         F64: (0.16666666666666666, 0.008333333333333333, 0.00019841269841269773, 2.755731922404034e-06,
               2.505210836405804e-08, 1.6059048396350562e-10, 7.646625361656657e-13, 2.8445264169895285e-15)}
_ERF = (0.12837911, -0.376122028, 0.112786412, -0.0266424231, 0.00477987248, -0.000437357987, -4.28488711e-05)
_ERFC_LOG = (-0.000188036007, 1.12957835, 0.633220136, 0.108418211, -0.025207961, 0.00420442875,
             -0.000441305019, 2.16838544e-05)
_ERF_TABLE = (
    (0.0, 0.276326388, 0.520499885, 0.711155653, 0.842700779, 0.92290014, 0.966105163, 0.986671686,
     0.995322287, 0.998537302, 0.999593019, 0.999899387, 0.999977887, 0.999995708, 0.999999285, 0.999999881),
    (0.282094806, 0.265003562, 0.219695657, 0.160732776, 0.103776872, 0.0591302812, 0.0297325719,
     0.0131937489, 0.00516674668, 0.00178557984, 0.000544571027, 0.000146569306, 3.48132635e-05,
     7.29725662e-06, 1.34985669e-06, 2.20358046e-07),
    (9.79004255e-09, -0.0165624376, -0.0274617746, -0.0301377773, -0.0259438306, -0.0184787363, -0.011150375,
     -0.00577280158, -0.00258407113, -0.00100495177, -0.000339438935, -0.000101045633, -2.53859853e-05,
     -6.28084626e-06, -2.05668084e-06, -3.39263586e-08),
    (-0.00587714976, -0.00483121211, -0.00228875666, 0.000418346492, 0.00216204673, 0.00261771819,
     0.00216800324, 0.00140871562, 0.000753483968, 0.000339445862, 0.000130469823, 4.31298577e-05,
     1.23289619e-05, 3.05919434e-06, 6.60754495e-07, 1.2449388e-07),
    (9.26246571e-07, 0.000492550316, 0.000711428351, 0.000588505354, 0.000268985314, -2.06772347e-05,
     -0.000170403029, -0.000185212863, -0.000131739012, -7.24761921e-05, -3.75112722e-05, -1.17153277e-05,
     -7.01085128e-06, 2.66877862e-07, 3.22091478e-06, -7.43526869e-07),
    (0.000108556116, 7.92240899e-05, 8.13878432e-06, -5.08707126e-05, -6.74371549e-05, -4.59026742e-05,
     -1.45881286e-05, 6.34934941e-06, 1.27266903e-05, 1.03979828e-05, 5.98372935e-06, 2.70604096e-06,
     1.00160491e-06, 3.10369273e-07, 8.15353971e-08, 1.83156796e-08),
)
"""erf((k + u) / 4) for |u| <= 1/2 and k of 16: a row for each power of u; but for `_ERF_REST` times u, which
is what the coefficient at 0 lacks."""
_ERF_REST = -1.46588459e-08
_FAR = 64
"""Powers of two that numbers near the ends of the range are taken nearer by."""
_LOG2 = (2.885390081777931, 0.9617966939151307, 0.577078020674733, 0.41219793923794806, 0.32064447715431554,
         0.2606605871444278, 0.2511094888109028)
_EXP2 = (1.0, 0.6931471805458209, 0.2402265069581221, 0.055504109416557555, 0.009618129159714186,
         0.001333345013657559, 0.00015403455553573818, 1.5310194339173322e-05, 1.3255304503367413e-06)



def format_of(x: V) -> _Format:
    return _FORMATS[x.elem]


def raw(f: Function, x: V) -> V:
    return f.bitcast(x, vec(format_of(x).bits, x.lanes))


def polynomial(f: Function, x: V, coefficients: Sequence[float]) -> V:
    y: Any = f.const(x.ty, coefficients[-1])
    for c in reversed(coefficients[:-1]):
        y = f.fma(y, x, c)
    return y


def _rational(f: Function, x: V, pair: tuple[Sequence[float], Sequence[float]]) -> V:
    num, den = pair
    return polynomial(f, x, num[::-1]) / polynomial(f, x, den[::-1])


def _in_registers(f: Function, x: V) -> bool:
    """Whether `x` is one AVX-512 register of floats."""
    return has(f, "avx512f") and size_of(x.ty) == 64


def any_lane(f: Function, mask: V) -> V:
    if mask.lanes == 1:
        return mask
    return f.bitcast(mask, f"i{mask.lanes}").ne(0)


def _zmm(x: V) -> tuple[str, str, int]:
    """Of an AVX-512 register: the intrinsics' suffix, the type of a mask and the mask of all lanes."""
    return ("ps.512", "i16", -1) if x.elem == F32 else ("pd.512", "i8", -1)


def abs(f: Function, x: V) -> V:
    """|x|; of signed integers too."""
    return f.unary("fabs", x) if x.is_float else f.select(x < 0, -x, x)


def copysign(f: Function, x: V, sign: V) -> V:
    """|x| with the sign of `sign`."""
    top = f.const(raw(f, x).ty, -1) << (8 * size_of(x.elem) - 1)
    return f.bitcast((raw(f, x) & ~top) | (raw(f, sign) & top), x.ty)


def isnan(f: Function, x: V) -> V:
    return x.ne(x)


def isinf(f: Function, x: V) -> V:
    return abs(f, x).eq(math.inf)


def isfinite(f: Function, x: V) -> V:
    return abs(f, x) < math.inf


def sign(f: Function, x: V) -> V:
    """-1, 0 or 1; NaN of NaN. Signed integers too."""
    one = f.const(x.ty, 1)
    return f.select(x > 0, one, f.select(x < 0, -one, f.select(x.eq(0), f.const(x.ty, 0), x)))


def minimum(f: Function, a: V, b: V) -> V:
    """NaN where either is NaN."""
    return f.minimum(a, b)


def maximum(f: Function, a: V, b: V) -> V:
    """NaN where either is NaN."""
    return f.maximum(a, b)


def sqrt(f: Function, x: V) -> V:
    """Correctly rounded."""
    return f.unary("sqrt", x)


def rsqrt(f: Function, x: V) -> V:
    """1 / sqrt(x), within 1.5."""
    return 1.0 / sqrt(f, x)


def reciprocal(f: Function, x: V) -> V:
    """Correctly rounded."""
    return 1.0 / x


def _rounds(f: Function) -> bool:
    """Whether the machine has instructions that round to integers."""
    machine = getattr(f, "machine", None)
    return machine is None or machine.arch != "x86_64" or machine.has("sse4.1")


def rint(f: Function, x: V) -> V:
    """To the nearest, halves to even."""
    if _rounds(f):
        return f.unary("roundeven", x)
    size = f.const(x.ty, 2.0 ** format_of(x).mantissa)
    near = copysign(f, (abs(f, x) + size) - size, x)
    return f.select(abs(f, x) < size, near, x)


def floor(f: Function, x: V) -> V:
    if _rounds(f):
        return f.unary("floor", x)
    near = rint(f, x)
    return copysign(f, f.select(near > x, near - 1.0, near), x)


def ceil(f: Function, x: V) -> V:
    return f.unary("ceil", x) if _rounds(f) else -floor(f, -x)


def trunc(f: Function, x: V) -> V:
    """To the next integer toward zero."""
    return f.unary("trunc", x) if _rounds(f) else copysign(f, floor(f, abs(f, x)), x)


def round(f: Function, x: V) -> V:
    """To the nearest, halves away from zero."""
    down = trunc(f, x)
    return f.select(abs(f, x - down) >= 0.5, down + copysign(f, f.const(x.ty, 1.0), x), down)


def _clamped(f: Function, x: V, low: float, high: float) -> V:
    """`x` held in [low, high]; NaN stays."""
    return f.fast_min(f.const(x.ty, high), f.fast_max(f.const(x.ty, low), x))


def _reduced(f: Function, x: V) -> tuple[V, V, V]:
    """x = n ln 2 + r with |r| <= ln 2 / 2: the float whose low bits are n, then n and r."""
    of = format_of(x)
    shifted = f.fma(x, 1 / math.log(2), of.magic)
    n = shifted - of.magic
    r = f.fma(n, -of.ln2[1], f.fma(n, -of.ln2[0], x))
    return shifted, n, r


def _exp_near(f: Function, r: V) -> V:
    """e^r for |r| <= ln 2 / 2."""
    return f.fma(f.fma(polynomial(f, r, format_of(r).exp_tail), r, 1.0), r, 1.0)


def _expm1_near(f: Function, r: V) -> V:
    """e^r - 1 for |r| <= ln 2 / 2."""
    return f.fma(r * r, polynomial(f, r, format_of(r).exp_tail), r)


def _power_of_two(f: Function, shifted: V, more: int = 0) -> V:
    """2^(n + more), a normal number, where the low bits of `shifted` are n."""
    of = format_of(shifted)
    return f.bitcast((raw(f, shifted) + (of.bias + more)) << of.mantissa, shifted.ty)


def _scaled(f: Function, x: V, shifted: V, n: V, more: int = 0) -> V:
    """x times 2^(n + more), to infinity and to denormals too."""
    if _in_registers(f, x):
        suffix, mask, full = _zmm(x)
        exponent = n + float(more) if more else n
        return f.intrinsic(f"x86.avx512.mask.scalef.{suffix}", x.ty, x, exponent, x, f.const(mask, full),
                           f.const(I32, 4))
    of = format_of(x)
    exponent = raw(f, shifted) - (_bits_of(of.magic, of) - more)
    half = exponent >> 1
    for part in (half, exponent - half):
        x = x * f.bitcast((part + of.bias) << of.mantissa, x.ty)
    return x


def _bits_of(x: float, of: _Format) -> int:
    """The bits of a power of two and a half."""
    mantissa, exponent = math.frexp(x)
    return (exponent - 1 + of.bias << of.mantissa) + int((2 * mantissa - 1) * 2 ** of.mantissa)


def _exp(f: Function, x: V, more: int = 0) -> V:
    shifted, n, r = _reduced(f, x)
    return _scaled(f, _exp_near(f, r), shifted, n, more)


def exp(f: Function, x: V) -> V:
    """e^x, within 1.2."""
    return _exp(f, _clamped(f, x, *format_of(x).exp))


def exp_nonpositive(f: Function, x: V) -> V:
    """e^x for x <= 0, within 1.1; 0 below -87 (-708 of float64), never a denormal."""
    least = f.const(x.ty, -87.0 if x.elem == F32 else -708.0)
    shifted, _, r = _reduced(f, f.fast_max(least, x))
    y = (_exp_near(f, r)) * _power_of_two(f, shifted)
    return f.select(x < least, f.const(x.ty, 0.0), y)


def exp2(f: Function, x: V) -> V:
    """2^x, within 1.2."""
    of = format_of(x)
    x = _clamped(f, x, of.exp[0] / math.log(2) - 1, of.exp[1] / math.log(2))
    shifted = x + of.magic
    n = shifted - of.magic
    return _scaled(f, _exp_near(f, (x - n) * math.log(2)), shifted, n)


def expm1(f: Function, x: V) -> V:
    """e^x - 1, within 2."""
    of = format_of(x)
    held = _clamped(f, x, -1.0 - (of.mantissa + 1) * math.log(2), of.exp[1])
    shifted, _, r = _reduced(f, held)
    half = _power_of_two(f, shifted, -1)
    y = f.fma(half, _expm1_near(f, r), half - 0.5)
    return f.select(abs(f, x) < 2.0 ** -(of.mantissa + 2), x, y + y)


def _split(f: Function, x: V) -> tuple[V, V]:
    """Positive normal x = m 2^e with m in [3/4, 3/2): m and the integer e."""
    of = format_of(x)
    above = raw(f, x) - of.three_quarters
    m = f.bitcast((above & (1 << of.mantissa) - 1) + of.three_quarters, x.ty)
    return m, above >> of.mantissa


def _log_near(f: Function, u: V, e: V) -> V:
    """log(1 + u) + e ln 2 for 1 + u in [3/4, 3/2)."""
    high, low = format_of(u).ln2
    if u.elem == F32:
        square = u * u
        t = f.fma(e, low, square * u * polynomial(f, u, _LOG))
        return f.fma(e, high, u + f.fma(square, -0.5, t))
    s = u / (u + 2.0)
    z = s * s
    half = u * u * 0.5
    rest = z * polynomial(f, z, _LOG_WIDE) * 2.0
    return f.fma(e, high, u - (half - f.fma(s, half + rest, e * low)))


def _exponents(f: Function, x: V) -> tuple[V, V]:
    """x = m 2^e as floats, denormals too; m in [3/4, 3/2). On AVX-512 the e of 0 is -inf, of inf inf, and the
    m of negative numbers NaN."""
    of = format_of(x)
    if _in_registers(f, x):
        suffix, mask, full = _zmm(x)
        every, exact = f.const(mask, full), f.const(I32, 4)
        e = f.intrinsic(f"x86.avx512.mask.getexp.{suffix}", x.ty, x, x, every, exact)
        m = f.intrinsic(f"x86.avx512.mask.getmant.{suffix}", x.ty, x, f.const(I32, 0b1011), x, every, exact)
        return m, f.select(m < 1.0, e + 1.0, e)
    tiny = x < 2.0 ** (1 - of.bias)
    m, exponent = _split(f, f.select(tiny, x * 2.0 ** of.mantissa, x))
    e = f.cast(exponent, x.elem)
    return m, f.select(tiny, e - float(of.mantissa), e)


def _log_special(f: Function, x: V, y: V) -> V:
    """`y`, put right where x is not a positive number."""
    y = f.select(x < math.inf, y, x)
    y = f.select(x.eq(0.0), f.const(x.ty, -math.inf), y)
    return f.select(x < 0.0, f.const(x.ty, math.nan), y)


def log(f: Function, x: V) -> V:
    """The natural logarithm, within 1."""
    m, e = _exponents(f, x)
    y = _log_near(f, m - 1.0, e)
    return y if _in_registers(f, x) else _log_special(f, x, y)


def log2(f: Function, x: V) -> V:
    """The logarithm to base 2, within 2."""
    m, e = _exponents(f, x)
    y = f.fma(_log_near(f, m - 1.0, f.const(x.ty, 0.0)), 1 / math.log(2), e)
    return y if _in_registers(f, x) else _log_special(f, x, y)


def log1p(f: Function, x: V) -> V:
    """log(1 + x), within 1.5."""
    of = format_of(x)
    u = x + 1.0
    lost = x - (u - 1.0)
    m, e = _split(f, u)
    up_to = f.minimum(e, f.const(e.ty, of.bias - 1))
    scale = f.bitcast((f.const(e.ty, of.bias) - up_to) << of.mantissa, x.ty)
    y = _log_near(f, f.fma(lost, scale, m - 1.0), f.cast(e, x.elem))
    y = f.select(x < math.inf, y, x)
    y = f.select(abs(f, x) < 2.0 ** -(of.mantissa + 2), x, y)
    y = f.select(x.eq(-1.0), f.const(x.ty, -math.inf), y)
    return f.select(x < -1.0, f.const(x.ty, math.nan), y)


def sigmoid(f: Function, x: V) -> V:
    """1 / (1 + e^-x), within 2."""
    shifted, _, r = _reduced(f, -_clamped(f, x, format_of(x).exp[0], 40.0))
    power, one = _power_of_two(f, shifted, -_FAR), f.const(x.ty, 2.0 ** -_FAR)
    slope = f.fma(polynomial(f, r, format_of(x).exp_tail), r, 1.0)
    return one / (f.fma(power * r, slope, one) + power)


def tanh(f: Function, x: V) -> V:
    """Within 1.5."""
    if x.elem == F32 and _in_registers(f, x):
        return _tanh_by_table(f, x)
    a = f.fast_min(f.const(x.ty, 9.25 if x.elem == F32 else 20.0), abs(f, x))
    if x.elem == F64:
        shifted, _, r = _reduced(f, a + a)
        power = _power_of_two(f, shifted)
        t = f.fma(power, _expm1_near(f, r), power - 1.0)
        return copysign(f, t / (t + 2.0), x)
    of = format_of(x)
    shifted = f.fma(a, 2 / math.log(2), of.magic)
    half = f.fma(shifted - of.magic, -math.log(2) / 2, a)
    tail = [c * 2.0 ** i for i, c in enumerate(of.exp_tail, 2)]
    near = f.fma(f.fma(polynomial(f, half, tail), half, 2.0), half, 1.0)
    large = 1.0 - 2.0 / f.fma(_power_of_two(f, shifted), near, 1.0)
    z = a * a
    return copysign(f, f.select(a < 0.625, f.fma(a * z, polynomial(f, z, _TANH), a), large), x)


def _tanh_by_table(f: Function, x: V) -> V:
    """A polynomial for each of 12 intervals, its coefficients picked out of registers."""
    a = f.fast_min(f.const(x.ty, 9.25), abs(f, x))
    bits = raw(f, a)
    index = f.maximum(bits, f.const(bits.ty, _bits_of(0.1875, format_of(x)))) >> 22
    center, *rows = (f.intrinsic("x86.avx512.permvar.sf.512", x.ty, f.const(x.ty, row), index)
                     for row in _TANH_TABLE)
    u = a - center
    y = rows[-1]
    for row in reversed(rows[:-1]):
        y = f.fma(y, u, row)
    return copysign(f, y, x)


def erf(f: Function, x: V) -> V:
    """The error function, within 2."""
    a = abs(f, x)
    if x.elem == F64:
        return copysign(f, _erf_wide(f, a), x)
    if _in_registers(f, x):
        return _erf_by_table(f, x)
    shifted, _, r = _reduced(f, -polynomial(f, f.fast_min(f.const(x.ty, 3.9375), a), _ERFC_LOG))
    power = _power_of_two(f, shifted)
    large = f.fma(-power, _expm1_near(f, r), 1.0 - power)
    return copysign(f, f.select(a < 1.0, f.fma(a, polynomial(f, a * a, _ERF), a), large), x)


def _erf_by_table(f: Function, x: V) -> V:
    """A polynomial for each of 16 intervals, its coefficients picked out of registers."""
    a = f.fast_min(f.const(x.ty, 3.87), abs(f, x)) * 4.0
    magic = format_of(x).magic
    shifted = a + magic
    u = a - (shifted - magic)
    index = raw(f, shifted)
    rows = [f.intrinsic("x86.avx512.permvar.sf.512", x.ty, f.const(x.ty, row), index) for row in _ERF_TABLE]
    rows[0] = f.fma(u, _ERF_REST, rows[0])
    y = rows[-1]
    for row in reversed(rows[:-1]):
        y = f.fma(y, u, row)
    return copysign(f, f.select(abs(f, x) > 3.919, f.const(x.ty, 1.0), y), x)


def _erf_wide(f: Function, a: V) -> V:
    """Of float64 a >= 0, by the same approximations as the reference."""
    small = a * _rational(f, a * a, ERF_SMALL)
    held = f.fast_min(f.const(a.ty, 6.0), a)
    decay = _exp(f, -(held * held))
    middle = 1.0 - decay * _rational(f, held, ERF_MIDDLE)
    s = 1.0 / (held * held)
    large = 1.0 - decay / held * (1 / math.sqrt(math.pi) - s * _rational(f, s, ERF_LARGE))
    return f.select(a <= 0.46875, small, f.select(a <= 4.0, middle, large))


def sinh(f: Function, x: V) -> V:
    """Within 2.5."""
    a = abs(f, x)
    half = _exp(f, f.fast_min(f.const(x.ty, format_of(x).exp[1] + 1.0), a), -1)
    z = a * a
    small = f.fma(a * z, polynomial(f, z, _SINH[x.elem]), a)
    return copysign(f, f.select(a < 1.0, small, half - 0.25 / half), x)


def cosh(f: Function, x: V) -> V:
    """Within 2."""
    half = _exp(f, f.fast_min(f.const(x.ty, format_of(x).exp[1] + 1.0), abs(f, x)), -1)
    return half + 0.25 / half


def asinh(f: Function, x: V) -> V:
    """Within 3."""
    a = abs(f, x)
    large = a > 2.0 ** (format_of(x).mantissa + 5)
    square = a * a
    u = f.select(large, a, a + square / (sqrt(f, square + 1.0) + 1.0))
    y = log1p(f, u) + f.select(large, f.const(x.ty, math.log(2)), 0.0)
    return copysign(f, y, x)


def acosh(f: Function, x: V) -> V:
    """Within 3; NaN below 1."""
    large = x > 2.0 ** (format_of(x).mantissa + 5)
    t = x - 1.0
    u = f.select(large, x, t + sqrt(f, t * (t + 2.0)))
    y = log1p(f, u) + f.select(large, f.const(x.ty, math.log(2)), 0.0)
    return f.select(x < 1.0, f.const(x.ty, math.nan), y)


def atanh(f: Function, x: V) -> V:
    """Within 3; NaN outside [-1, 1]."""
    a = abs(f, x)
    y = log1p(f, (a + a) / (1.0 - a)) * 0.5
    return f.select(a < 2.0 ** -(format_of(x).mantissa // 2 + 2), x, copysign(f, y, x))


def pow(f: Function, x: V, y: V) -> V:
    """x^y of float32 x, within 0.6; y is float32 or float64. Computed in float64 with 40 good bits."""
    wide, y = f.cast(abs(f, x), F64), f.cast(y, F64)
    m, e = _split(f, wide)
    s = (m - 1.0) / (m + 1.0)
    log = f.fma(s, polynomial(f, s * s, _LOG2), f.cast(e, F64))
    log = f.select(wide.eq(0.0), f.const(wide.ty, -math.inf), f.select(wide < math.inf, log, wide))
    z = f.select(wide.eq(1.0) & isinf(f, y), f.const(y.ty, 0.0), log * y)
    z = _clamped(f, z, -200.0, 200.0)
    of = format_of(z)
    shifted = z + of.magic
    power = polynomial(f, z - (shifted - of.magic), _EXP2) * _power_of_two(f, shifted)
    result = f.cast(power, F32)
    whole, half = y.eq(rint(f, y)), y * 0.5
    odd = whole & half.ne(rint(f, half))
    negative = raw(f, x) < 0
    result = f.select(odd & negative, -result, result)
    result = f.select((x < 0.0) & ~whole & (wide < math.inf) & wide.ne(0.0), f.const(x.ty, math.nan), result)
    return f.select(x.eq(1.0) | y.eq(0.0), f.const(x.ty, 1.0), result)
