"""What numpy lacks or defines otherwise than ONNX: arrays in, an array out, most element by element.

Integers wrap in their width, and an integer division by zero raises ValueError; all else has a result.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import Unfit
from ..ir import HALF

_FEW = 32
"""Numbers that are summed one after another in their own type, with an error of a few roundings."""


def _polynomial(x: np.ndarray, *coefficients: float) -> np.ndarray:
    y = np.full_like(x, coefficients[0])
    for c in coefficients[1:]:
        y *= x
        y += c
    return y


def _erf32(x: np.ndarray) -> np.ndarray:
    """1 - exp(-a q(a)) of a = |x|, with q the least squares fit of -log(erfc(a)) / a on [0, 4]."""
    a = np.minimum(np.abs(x), np.float32(4))
    q = _polynomial(a, -9.94628080e-08, 2.51873752e-06, -2.83902990e-05, 1.86357967e-04,
                    -7.66706943e-04, 1.81341709e-03, -2.47182949e-04, -1.91286479e-02,
                    1.02775836e-01, 6.36619234e-01, 1.12837918e+00)
    return np.copysign(np.expm1(-a * q), x)


ERF_SMALL = (
    (1.85777706184603153e-1, 3.16112374387056560e0, 1.13864154151050156e2, 3.77485237685302021e2,
     3.20937758913846947e3),
    (1.0, 2.36012909523441209e1, 2.44024637934444173e2, 1.28261652607737228e3, 2.84423683343917062e3))
ERF_MIDDLE = (
    (2.15311535474403846e-8, 5.64188496988670089e-1, 8.88314979438837594e0, 6.61191906371416295e1,
     2.98635138197400131e2, 8.81952221241769090e2, 1.71204761263407058e3, 2.05107837782607147e3,
     1.23033935479799725e3),
    (1.0, 1.57449261107098347e1, 1.17693950891312499e2, 5.37181101862009858e2, 1.62138957456669019e3,
     3.29079923573345963e3, 4.36261909014324716e3, 3.43936767414372164e3, 1.23033935480374942e3))
ERF_LARGE = (
    (1.63153871373020978e-2, 3.05326634961232344e-1, 3.60344899949804439e-1, 1.25781726111229246e-1,
     1.60837851487422766e-2, 6.58749161529837803e-4),
    (1.0, 2.56852019228982242e0, 1.87295284992346725e0, 5.27905102951428412e-1, 6.05183413124413191e-2,
     2.33520497626869185e-3))
"""W. J. Cody's rational approximations (Math. Comp. 23, 1969): numerator, denominator, by falling power."""


def erf(x: np.ndarray) -> np.ndarray:
    """The error function: of float32 within 3 ulp; of other types in float64 within 2 ulp, by Cody's
    approximations."""
    if x.dtype == np.float32:
        return _erf32(x)
    wide = np.asarray(x, np.float64)
    a = np.abs(wide)
    out = np.empty_like(wide)
    small, large = a <= 0.46875, a > 4.0
    mid = ~(small | large)
    if small.any():
        v = wide[small]
        out[small] = v * _rational(v * v, ERF_SMALL)
    if mid.any():
        v = a[mid]
        out[mid] = np.sign(wide[mid]) * (1.0 - np.exp(-v * v) * _rational(v, ERF_MIDDLE))
    if large.any():
        v = a[large]
        s = 1.0 / (v * v)
        tail = np.exp(-v * v) / v * (0.564189583547756287 - s * _rational(s, ERF_LARGE))
        out[large] = np.sign(wide[large]) * (1.0 - tail)
    out[np.isnan(wide)] = np.nan
    return out.astype(np.asarray(x).dtype, copy=False)


def _rational(x: np.ndarray, pair: tuple[tuple[float, ...], tuple[float, ...]]) -> np.ndarray:
    return _polynomial(x, *pair[0]) / _polynomial(x, *pair[1])


def sigmoid(x: np.ndarray) -> np.ndarray:
    """1 / (1 + exp(-x)); 0 where the exponential overflows."""
    with np.errstate(over="ignore"):
        return 1 / (1 + np.exp(-x))


def summing_type(dtype: np.dtype[Any], count: int = _FEW + 1) -> np.dtype[Any]:
    """The type in which `count` numbers of `dtype` are summed: float64 if they are more than a few floats,
    whose sum is rounded once at the end; else `dtype`, in which integers wrap."""
    return np.dtype(np.float64) if count > _FEW and (dtype.kind == "f" or dtype in HALF) else dtype


def sum_of(x: np.ndarray, axes: int | tuple[int, ...] | None, keepdims: bool = True) -> np.ndarray:
    """The sum over `axes`, None being all, in the type of `x`."""
    return np.asarray(np.sum(x, axes, summing_type(x.dtype), keepdims=keepdims), x.dtype)


def mean_of(x: np.ndarray, axes: Sequence[int]) -> np.ndarray:
    """The mean of floating-point numbers over `axes`, which are kept; of no numbers 0."""
    count = math.prod(x.shape[axis] for axis in axes)
    return sum_of(x, tuple(axes)) / x.dtype.type(max(count, 1))


def centred(x: np.ndarray, axes: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
    """`x` less its mean over `axes`, and that mean, whose rounding to the type of `x` only itself suffers."""
    count = max(math.prod(x.shape[axis] for axis in axes), 1)
    total = np.sum(x, tuple(axes), summing_type(x.dtype), keepdims=True)
    mean = total.astype(x.dtype) / x.dtype.type(count)
    rest = (total / count - mean).astype(x.dtype)
    y = x - mean
    y -= np.where(np.isfinite(rest), rest, 0)
    return y, mean


def _divisible(b: np.ndarray, y: Any) -> Any:
    if np.size(y) and not np.all(b):
        raise ValueError("integer division by zero")
    return y


def divide(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a / b; of integers, truncated toward zero. Raises ValueError where an integer `b` is zero."""
    if a.dtype.kind not in "iu":
        return np.true_divide(a, b)
    with np.errstate(divide="ignore", over="ignore"):
        floor = _divisible(b, np.floor_divide(a, b))
        if a.dtype.kind == "u":
            return floor
        short = (floor * b != a) & ((a < 0) != (b < 0))
    return floor + short.astype(a.dtype)


def remainder(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a - floor(a / b) * b, with the sign of `b`. Raises ValueError where an integer `b` is zero."""
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        y = np.remainder(a, b)
    return _divisible(b, y) if a.dtype.kind in "iu" else y


def fmod(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """a - trunc(a / b) * b, with the sign of `a`. Raises ValueError where an integer `b` is zero."""
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        y = np.fmod(a, b)
    return _divisible(b, y) if a.dtype.kind in "iu" else y


def power(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """x ** y in the type of `x`; the exponent may have any other.

    Of two integers exact and wrapping, where a negative exponent gives the truncated fraction. An integer to
    the power of a float is cut toward zero. What no integer stands for, a number too large, NaN and 0 to a
    negative power, gives the least.
    """
    if y.dtype == x.dtype and x.dtype.kind == "f":
        return x * x if y.size == 1 and y.ndim <= x.ndim and y.item() == 2 else np.power(x, y)
    if x.dtype.kind not in "iu":
        return np.power(x.astype(np.float64), y.astype(np.float64)).astype(x.dtype)
    if y.dtype.kind not in "iu":
        return _cut(np.power(x.astype(np.float64), y.astype(np.float64)), x.dtype)
    if y.dtype.kind == "u" or not (y < 0).any():
        return np.power(x.astype(np.uint64), y.astype(np.uint64)).astype(x.dtype)
    whole = np.power(x.astype(np.uint64), np.maximum(y, 0).astype(np.uint64)).astype(x.dtype)
    sign = np.where((x == -1) & (y % 2 != 0), -1, 1)
    fraction = np.where(x == 0, np.iinfo(x.dtype).min, np.where(abs(x) == 1, sign, 0))
    return np.where(y < 0, fraction, whole).astype(x.dtype)


def _cut(x: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    """float64 as integers, cut toward zero; the least where `dtype` cannot hold it."""
    least = np.iinfo(dtype).min
    fits = (x > least - 1.0) & (x < np.iinfo(dtype).max + 1.0)
    return np.where(fits, np.where(fits, x, 0).astype(dtype), dtype.type(least))


def _saturated(x: np.ndarray, dtype: np.dtype[Any], low: float, high: float) -> np.ndarray:
    """The integers at or toward zero of the elements of `x`, held in [low, high); NaN gives 0."""
    if not x.size or (x.min() >= low and x.max() < high):
        return x.astype(dtype)
    over, under = x >= high, x < low
    y = np.where(over | under | np.isnan(x), x.dtype.type(0), x).astype(dtype)
    return np.where(over, dtype.type(int(high) - 1), np.where(under, dtype.type(int(low)), y))


def to_integer(x: np.ndarray, dtype: Any) -> np.ndarray:
    """Floats as integers, truncated toward zero. What 32 bits (64 for the wide types) cannot hold saturates
    there and NaN gives 0; a narrower type then keeps the low bits, as it does of an integer. Of what two or
    four bits cannot hold the standard says nothing: it is what `ml_dtypes` gives, as in its test data."""
    dtype = np.dtype(dtype)
    if dtype.kind not in "iu":
        with np.errstate(invalid="ignore"):
            return x.astype(dtype)
    if x.dtype.itemsize < 4 or x.dtype.kind != "f":
        x = x.astype(np.float32)
    if dtype == np.uint64:
        signed = _saturated(np.minimum(x, 0), np.dtype(np.int64), -2.0**63, 2.0**63).astype(dtype)
        return np.where(x < 0, signed, _saturated(np.maximum(x, 0), dtype, 0.0, 2.0**64))
    if dtype in (np.int64, np.uint32):
        return _saturated(x, np.dtype(np.int64), -2.0**63, 2.0**63).astype(dtype, copy=False)
    return wrapped(_saturated(x, np.dtype(np.int32), -2.0**31, 2.0**31), dtype)


def wrapped(x: np.ndarray, dtype: Any) -> np.ndarray:
    """Integers in another integer type, which keeps the low bits."""
    dtype = np.dtype(dtype)
    if dtype.kind in "iu":
        return x.astype(dtype, copy=False)
    import ml_dtypes

    bits = ml_dtypes.iinfo(dtype).bits
    low = x.astype(np.int8) << np.int8(8 - bits)
    signed = ml_dtypes.iinfo(dtype).min < 0
    return ((low if signed else low.view(np.uint8)) >> (8 - bits)).astype(dtype)


def scalar(x: np.ndarray) -> np.ndarray:
    """The one element of `x`, without dimensions. Raises ValueError if there are more or none."""
    if x.size != 1:
        raise Unfit(f"a scalar is expected, found shape {x.shape}")
    return x.reshape(())


def working_type(dtype: Any) -> np.dtype[Any]:
    """The type a step is computed in: float64 for itself, float32 for every other."""
    return np.dtype(np.float64 if dtype == np.float64 else np.float32)
