"""Cast: an array of one element type in, the same elements in another out.

Every value has a defined result: floats saturate where 32 or 64 bits cannot hold them and NaN becomes 0 in
the integer types (`functions.to_integer`), integers keep their low bits, and a string that spells no number
raises ValueError.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...ir import ElementType, TensorType, Type, Value, element_of
from ...limits import HARMLESS, bounded
from ..define import Samples, define, random_array
from ..functions import to_integer, wrapped
from .spelling import floats_of, spelled, whole_of

E = ElementType
FLOAT8 = frozenset({E.FLOAT8E4M3FN, E.FLOAT8E4M3FNUZ, E.FLOAT8E5M2, E.FLOAT8E5M2FNUZ})
_SATURATING = frozenset({E.FLOAT4E2M1, E.FLOAT6E2M3, E.FLOAT6E3M2})
_NATIVE = frozenset({E.FLOAT16, E.FLOAT, E.DOUBLE})
_TEXT = 72
"""Bytes of a number as text, an object of its own."""
_WIDEST = 16
"""Bytes of an element, at most."""
_ELEMENTS = {int(elem): elem for elem in E}
_BYTE = np.dtype(np.uint8)


def converted(x: np.ndarray, to: ElementType, saturate: bool = True, round_mode: str = "up") -> np.ndarray:
    """`x` with elements of type `to`. `saturate` is for the float8 types, `round_mode` for float8e8m0.

    Raises ValueError for a string that spells no number and for an unknown round mode.
    """
    source = element_of(x.dtype)
    if source is to:
        return x
    if to is E.STRING:
        if x.size * _TEXT > HARMLESS:
            bounded((*x.shape, _TEXT), _BYTE)
        return spelled(x, source)
    if x.size > HARMLESS // _WIDEST:
        bounded(x.shape, to.numpy)
    if source is E.STRING:
        return _parsed(x, to, saturate, round_mode)
    if to is E.BOOL:
        return (x.astype(np.float32) if source.bits < 16 else x) != 0
    if x.dtype.kind == "c":
        raise ValueError(f"Cast does not take {source.text}")
    if not to.floating:
        if source.floating:
            return to_integer(x, to.numpy)
        return wrapped(x.astype(np.int64) if x.dtype.kind not in "iu" else x, to.numpy)
    if to in _NATIVE:
        return x.astype(to.numpy)
    if source not in (E.FLOAT, E.DOUBLE):
        x = x.astype(np.float64 if x.dtype.itemsize > 2 else np.float32)
    return narrowed(x, to, saturate, round_mode)


def narrowed(x: np.ndarray, to: ElementType, saturate: bool, round_mode: str = "up") -> np.ndarray:
    """float32 or float64 elements rounded to nearest even in a type of `ml_dtypes`."""
    if to is E.FLOAT8E8M0:
        return _powers(x, saturate, round_mode)
    if to in _SATURATING or (saturate and to in FLOAT8):
        import ml_dtypes

        top = x.dtype.type(ml_dtypes.finfo(to.numpy).max)
        x = np.clip(x, -top, top)
    return x.astype(to.numpy)


def _powers(x: np.ndarray, saturate: bool, round_mode: str) -> np.ndarray:
    """The powers of two, 2**-127 to 2**127, next to `x` in the direction of `round_mode`, as float8e8m0."""
    mantissa, exponent = np.frexp(x)
    if round_mode == "up":
        rounded = mantissa > 0.5
    elif round_mode == "nearest":
        rounded = mantissa >= 0.75
    elif round_mode == "down":
        rounded = np.zeros(x.shape, bool)
    else:
        raise ValueError(f"Cast's round_mode is 'up', 'down' or 'nearest', found {round_mode!r}")
    code = exponent.astype(np.int32) - 1 + rounded + 127
    over, under = (code > 254) | np.isposinf(x), (code < 0) | (x == 0)
    code = np.where(over, 254 if saturate else 255, np.where(under, 0 if saturate else 255, code))
    return np.where(np.isnan(x) | (x < 0), 255, code).astype(np.uint8).view(E.FLOAT8E8M0.numpy)


def _parsed(x: np.ndarray, to: ElementType, saturate: bool, round_mode: str) -> np.ndarray:
    """Text as numbers. Integers may have a fraction, which is cut off."""
    if to.floating:
        if to in _NATIVE:
            return floats_of(x, to.numpy)
        return converted(floats_of(x), to, saturate, round_mode)
    whole = whole_of(x)
    return whole != 0 if to is E.BOOL else wrapped(whole, to.numpy)


@define(since=6)
def Cast(x, *, to: int, saturate: int = 1, round_mode: str = "up"):
    """The elements of x as type `to`"""
    return converted(x, _ELEMENTS.get(to) or ElementType(to), bool(saturate), round_mode)


@define
def Cast_1(x, *, to: str):
    """The elements of x as the type named `to`"""
    return converted(x, _named(to))


def _named(name: str) -> ElementType:
    found = E.__members__.get(name.upper())
    if found is None:
        raise ValueError(f"Cast: {name!r} is no element type")
    return found


@Cast_1.infer_with
def _cast_1_type(x: Value, *, to: str) -> list[Type]:
    return [TensorType(_named(to), x.shape)]


@define
def CastLike(x, target_type, *, saturate: int = 1, round_mode: str = "up"):
    """The elements of x as the element type of another input"""
    return converted(x, element_of(target_type.dtype), bool(saturate), round_mode)


@Cast.sample_with
def _cast_samples(rng: np.random.Generator, dtype: np.dtype[Any]) -> Samples:
    if dtype.kind != "O":
        for to in (E.FLOAT, E.DOUBLE, E.FLOAT16, E.INT32, E.INT64, E.INT8, E.UINT8, E.BOOL):
            yield [random_array(rng, (3, 5), dtype)], {"to": int(to)}
