"""Comparisons, logic and bits, element by element: arrays in, an array of bools or of their type out."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...ir import ElementType, TensorType, Type, Value, element_of
from ..define import Samples, broadcast, define, elementwise, random_array, xp
from ..functions import wrapped
from .arithmetic import below_7


@elementwise(result="bool", ufunc=np.logical_and, since=7)
def And(a, b):
    """a and b"""
    return xp.logical_and(a, b)


@elementwise(result="bool", ufunc=np.logical_or, since=7)
def Or(a, b):
    """a or b"""
    return xp.logical_or(a, b)


@elementwise(result="bool", ufunc=np.logical_xor, since=7)
def Xor(a, b):
    """Either a or b"""
    return xp.logical_xor(a, b)


@elementwise(result="bool", ufunc=np.logical_not)
def Not(x):
    """Not x"""
    return xp.logical_not(x)


@elementwise(result="bool", ufunc=np.equal, since=7)
def Equal(a, b):
    """a == b"""
    return xp.equal(a, b)


@elementwise(result="bool", ufunc=np.greater, since=7)
def Greater(a, b):
    """a > b"""
    return a > b


@elementwise(result="bool", ufunc=np.less, since=7)
def Less(a, b):
    """a < b"""
    return a < b


for _op in (And, Or, Xor, Equal, Greater, Less):
    below_7(_op)


@elementwise(result="bool", ufunc=np.greater_equal)
def GreaterOrEqual(a, b):
    """a >= b"""
    return a >= b


@elementwise(result="bool", ufunc=np.less_equal)
def LessOrEqual(a, b):
    """a <= b"""
    return a <= b


@elementwise(result=None, widen=False)
def Where(condition, x, y):
    """x where the condition holds, y elsewhere"""
    return xp.where(condition, x, y)


@Where.infer_with
def _where_type(condition: Value, x: Value, y: Value) -> list[Type]:
    return [TensorType(x.elem, broadcast(condition.shape, x.shape, y.shape))]


@Where.sample_with
def _where_samples(rng: np.random.Generator, dtype: np.dtype[Any]) -> Samples:
    for shapes in (((3, 5),) * 3, ((4, 1), (1, 7), ()), ((), (0, 3), (3,)), ((), (), ())):
        yield [random_array(rng, shapes[0], np.dtype(bool)),
               *(random_array(rng, shape, dtype) for shape in shapes[1:])], {}


@elementwise(result="bool", ufunc=np.isnan)
def IsNaN(x):
    """Whether x is no number"""
    return xp.isnan(x)


@elementwise(result="bool")
def IsInf(x, *, detect_negative: int = 1, detect_positive: int = 1):
    """Whether x is infinite, with a sign that is looked for"""
    if detect_negative and detect_positive:
        return xp.isinf(x)
    if detect_positive:
        return x == xp.inf
    return x == -xp.inf if detect_negative else xp.logical_and(x < x, x > x)


@elementwise()
def BitShift(x, y, *, direction: str):
    """x shifted by y bits; to the right, a signed x keeps its sign. The width or more shifts out every bit"""
    if direction not in ("LEFT", "RIGHT"):
        raise ValueError(f"BitShift's direction is LEFT or RIGHT, found {direction!r}")
    return xp.left_shift(x, y) if direction == "LEFT" else xp.right_shift(x, y)


@BitShift.sample_with
def _shift_samples(rng: np.random.Generator, dtype: np.dtype[Any]) -> Samples:
    for direction in ("LEFT", "RIGHT"):
        for shape in ((3, 5), (1, 5), (5,)):
            x, y = random_array(rng, (3, 5), dtype), rng.integers(0, 9, shape).astype(dtype)
            yield [x, y], {"direction": direction}


@elementwise(ufunc=np.bitwise_and)
def BitwiseAnd(a, b):
    """a & b"""
    return a & b


@elementwise(ufunc=np.bitwise_or)
def BitwiseOr(a, b):
    """a | b"""
    return a | b


@elementwise(ufunc=np.bitwise_xor)
def BitwiseXor(a, b):
    """a ^ b"""
    return a ^ b


@elementwise(ufunc=np.invert)
def BitwiseNot(x):
    """~x"""
    return ~x


@define
def BitCast(x, *, to: int):
    """The bits of x as another type of the same width"""
    source, target = element_of(x.dtype), ElementType(to)
    if ElementType.STRING in (source, target) or source.bits != target.bits:
        raise ValueError(f"BitCast takes types of one width, found {source.text} and {target.text}")
    if target is ElementType.BOOL:
        return x.view(np.uint8) != 0
    if target.bits >= 8:
        return x.view(target.numpy)
    low = x.view(np.uint8) & np.uint8((1 << target.bits) - 1)
    signed = target in (ElementType.INT4, ElementType.INT2)
    return wrapped(low, target.numpy) if signed else low.view(target.numpy)
