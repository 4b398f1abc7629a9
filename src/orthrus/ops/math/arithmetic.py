"""Arithmetic and elementary functions, element by element, and running sums.

Arrays come in, and one array of the first one's type goes out.

Integers wrap in their width; half-precision operands are computed in float32 and rounded once.
"""

from __future__ import annotations

import functools
import math
import operator
from typing import Any

import numpy as np

from ...ir import ElementType, TensorType, Type, Value
from ..define import Op, Samples, define, elementwise, normalized_axis, random_array, xp
from ..functions import scalar, summing_type

_FLOAT_MAX = 3.4028234663852886e38


def aligned(a: np.ndarray, b: np.ndarray, broadcast: int, axis: int | None) -> np.ndarray:
    """`b` as it stands against `a` below opset 7: of the same shape unless `broadcast` is set, and then a run
    of `a`'s dimensions that starts at `axis` or, without it, ends with the last. Raises ValueError where it
    does not fit."""
    if a.shape == b.shape:
        return b
    if not broadcast:
        raise ValueError(f"shapes {a.shape} and {b.shape} differ, and `broadcast` is 0")
    if b.size == 1 and b.ndim <= a.ndim:
        return b.reshape(())
    start = a.ndim - b.ndim if axis is None else axis + a.ndim if axis < 0 else axis
    if start < 0 or start + b.ndim > a.ndim:
        raise ValueError(f"a tensor of shape {b.shape} does not fit shape {a.shape} at axis {start}")
    for have, want in zip(b.shape, a.shape[start:], strict=False):
        if have not in (1, want):
            raise ValueError(f"shape {b.shape} is not broadcast to shape {a.shape} at axis {start}")
    return b.reshape(b.shape + (1,) * (a.ndim - start - b.ndim))


def _without_zeros(x: np.ndarray) -> np.ndarray:
    return np.where(x == 0, np.ones((), x.dtype), x).astype(x.dtype) if x.dtype.kind in "iuf" else x


def below_7(op: Op) -> Op:
    """Define the form of a binary `op` below opset 7, in which the attributes `broadcast` and `axis` align
    its second input with the first, whose shape the result has."""
    def body(a, b, *, broadcast: int = 0, axis: int | None = None):
        return op.body(a, aligned(a, b, broadcast, axis))

    def infer(a: Value, b: Value, **_: Any) -> list[Type]:
        return [TensorType(ElementType.BOOL if op.result == "bool" else a.elem, a.shape)]

    def samples(rng: np.random.Generator, dtype: np.dtype[Any]) -> Samples:
        cases: Any = (((2, 3, 4), {}), ((3,), {"broadcast": 1, "axis": 1}), ((3, 4), {"broadcast": 1}))
        for shape, attrs in cases:
            a, b = random_array(rng, (2, 3, 4), dtype), random_array(rng, shape, dtype)
            yield [a, _without_zeros(b)], attrs

    body.__name__, body.__doc__ = f"{op.name}_1", f"{op.doc}; `broadcast` and `axis` align b with a"
    older: Op = define(body, widen=True, result=op.result)
    older.infer_with(infer)
    older.sample_with(samples)
    return older


@elementwise(ufunc=np.add, since=7)
def Add(a, b):
    """a + b"""
    return a + b


@elementwise(ufunc=np.subtract, since=7)
def Sub(a, b):
    """a - b"""
    return a - b


@elementwise(ufunc=np.multiply, since=7)
def Mul(a, b):
    """a * b"""
    return a * b


@elementwise(since=7)
def Div(a, b):
    """a / b; of integers, truncated toward zero"""
    return xp.divide(a, b)


@elementwise(since=7)
def Pow(x, y):
    """x ** y in the type of x"""
    return xp.power(x, y)


for _op in (Add, Sub, Mul, Div, Pow):
    below_7(_op)


def _nonzero(rng: np.random.Generator, dtype: np.dtype[Any]) -> Samples:
    for one, other in (((3, 5), (3, 5)), ((4, 7), (4, 1)), ((0, 3), ()), ((), ())):
        yield [random_array(rng, one, dtype), _without_zeros(random_array(rng, other, dtype))], {}


Div.sample_with(_nonzero)


@elementwise()
def Mod(a, b, *, fmod: int = 0):
    """The remainder of a / b, with the sign of b, or of a with `fmod`"""
    return xp.fmod(a, b) if fmod else xp.remainder(a, b)


@Mod.sample_with
def _mod_samples(rng: np.random.Generator, dtype: np.dtype[Any]) -> Samples:
    for inputs, _ in _nonzero(rng, dtype):
        for fmod in (0, 1):
            yield inputs, {"fmod": fmod}


@elementwise(ufunc=np.negative)
def Neg(x):
    """-x"""
    return -x


@elementwise(ufunc=np.absolute)
def Abs(x):
    """|x|"""
    return xp.abs(x)


@elementwise(ufunc=np.sign)
def Sign(x):
    """-1, 0 or 1; NaN of NaN"""
    return xp.sign(x)


@elementwise(ufunc=np.sqrt)
def Sqrt(x):
    """The square root; NaN below zero"""
    return xp.sqrt(x)


@elementwise(ufunc=np.exp)
def Exp(x):
    """e ** x"""
    return xp.exp(x)


@elementwise(ufunc=np.log)
def Log(x):
    """The natural logarithm"""
    return xp.log(x)


@elementwise(ufunc=np.reciprocal)
def Reciprocal(x):
    """1 / x"""
    return 1 / x


@elementwise(ufunc=np.floor)
def Floor(x):
    """The integer at or below x"""
    return xp.floor(x)


@elementwise(ufunc=np.ceil)
def Ceil(x):
    """The integer at or above x"""
    return xp.ceil(x)


@elementwise(ufunc=np.rint)
def Round(x):
    """The nearest integer; of two, the even one"""
    return xp.rint(x)


@elementwise(ufunc=np.sin)
def Sin(x):
    """The sine"""
    return xp.sin(x)


@elementwise(ufunc=np.cos)
def Cos(x):
    """The cosine"""
    return xp.cos(x)


@elementwise(ufunc=np.tan)
def Tan(x):
    """The tangent"""
    return xp.tan(x)


@elementwise(ufunc=np.arcsin)
def Asin(x):
    """The inverse sine"""
    return xp.arcsin(x)


@elementwise(ufunc=np.arccos)
def Acos(x):
    """The inverse cosine"""
    return xp.arccos(x)


@elementwise(ufunc=np.arctan)
def Atan(x):
    """The inverse tangent"""
    return xp.arctan(x)


@elementwise(ufunc=np.sinh)
def Sinh(x):
    """The hyperbolic sine"""
    return xp.sinh(x)


@elementwise(ufunc=np.cosh)
def Cosh(x):
    """The hyperbolic cosine"""
    return xp.cosh(x)


@elementwise(ufunc=np.tanh)
def Tanh(x):
    """The hyperbolic tangent"""
    return xp.tanh(x)


@elementwise(ufunc=np.arcsinh)
def Asinh(x):
    """The inverse hyperbolic sine"""
    return xp.arcsinh(x)


@elementwise(ufunc=np.arccosh)
def Acosh(x):
    """The inverse hyperbolic cosine"""
    return xp.arccosh(x)


@elementwise(ufunc=np.arctanh)
def Atanh(x):
    """The inverse hyperbolic tangent"""
    return xp.arctanh(x)


@elementwise()
def Erf(x):
    """The error function"""
    return xp.erf(x)


@elementwise()
def Max(*xs):
    """The largest of the operands; NaN where one is"""
    return functools.reduce(xp.maximum, xs)


@elementwise()
def Min(*xs):
    """The smallest of the operands; NaN where one is"""
    return functools.reduce(xp.minimum, xs)


@elementwise()
def Sum(*xs):
    """The sum of the operands"""
    return functools.reduce(operator.add, xs)


@elementwise()
def Mean(*xs):
    """The sum of the operands over their count"""
    return functools.reduce(operator.add, xs) / len(xs)


@elementwise(since=11)
def Clip(x, min=None, max=None):
    """min(max(x, `min`), `max`), each bound if given"""
    if min is not None:
        x = xp.maximum(x, xp.scalar(min))
    return x if max is None else xp.minimum(x, xp.scalar(max))


@Clip.infer_with
def _clip_type(x: Value, min: Value | None = None, max: Value | None = None) -> list[Type]:
    return [TensorType(x.elem, x.shape)]


@Clip.sample_with
def _clip_samples(rng: np.random.Generator, dtype: np.dtype[Any]) -> Samples:
    x, low, high = random_array(rng, (4, 7), dtype), np.array(1, dtype), np.array(3, dtype)
    for bounds in ((low, high), (high, low), (None, high), (low,), ()):
        yield [x, *bounds], {}


@elementwise(since=6)
def Clip_6(x, *, min: float = -_FLOAT_MAX, max: float = _FLOAT_MAX):
    """min(max(x, `min`), `max`)"""
    return xp.minimum(xp.maximum(x, x.dtype.type(min)), x.dtype.type(max))


@elementwise()
def Clip_1(x, *, min: float | None = None, max: float | None = None):
    """min(max(x, `min`), `max`), each bound if given"""
    if min is not None:
        x = xp.maximum(x, x.dtype.type(min))
    return x if max is None else xp.minimum(x, x.dtype.type(max))


_PART = 1 << 16
"""Elements of which the running totals are formed in a wider type at once."""


def _running(fold: np.ufunc, x: np.ndarray, axis: np.ndarray, exclusive: int, reverse: int) -> np.ndarray:
    if not x.ndim:
        raise ValueError("a running total takes a tensor of rank 1 or more, found a scalar")
    line = normalized_axis(scalar(axis), x.ndim)
    turned = np.moveaxis(x, line, 0)
    turned = turned[::-1] if reverse else turned
    y = np.empty_like(turned)
    given, out = turned, y
    if exclusive and len(turned):
        y[0] = fold.identity
        given, out = turned[:-1], y[1:]
    kind = summing_type(x.dtype, len(turned)) if fold is np.add else x.dtype
    if kind == x.dtype:
        fold.accumulate(given, 0, kind, out)
    else:
        total: Any = -0.0  # adds nothing, not even a sign
        step = max(_PART // max(math.prod(turned.shape[1:]), 1), 1)
        for first in range(0, len(given), step):
            part = given[first:first + step].astype(kind)
            part[0] += total
            out[first:first + step] = np.add.accumulate(part, 0, out=part)
            total = part[-1]
    return np.moveaxis(y[::-1] if reverse else y, 0, line)


@define(widen=True, result="same")
def CumSum(x, axis, *, exclusive: int = 0, reverse: int = 0):
    """The sum up to each element along `axis`, with or without it, from the front or in reverse"""
    return _running(np.add, x, axis, exclusive, reverse)


@define(widen=True, result="same")
def CumProd(x, axis, *, exclusive: int = 0, reverse: int = 0):
    """The product up to each element along `axis`, with or without it, from the front or in reverse"""
    return _running(np.multiply, x, axis, exclusive, reverse)


@CumSum.sample_with
@CumProd.sample_with
def _running_samples(rng: np.random.Generator, dtype: np.dtype[Any]) -> Samples:
    for bits in range(4):
        for shape, axis in (((3, 5), 1), ((2, 3, 4), -2), ((0, 3), 0)):
            size = math.prod(shape)
            x = random_array(rng, shape, dtype) if size else np.zeros(shape, dtype)
            yield [x, np.array(axis)], {"exclusive": bits & 1, "reverse": bits >> 1}
