"""Cast: an array of one element type in, the same elements in another out.

Every value has a defined result: floats saturate where 32 or 64 bits cannot hold them and NaN becomes 0 in
the integer types (`functions.to_integer`), integers keep their low bits, and a string that spells no number
raises ValueError.
"""

from __future__ import annotations

import contextlib
import functools
import re
from typing import Any

import numpy as np

from ...ir import ElementType, TensorType, Type, Value, element_of
from ...limits import bounded
from ..define import Samples, define, random_array
from ..functions import to_integer, wrapped

E = ElementType
FLOAT8 = frozenset({E.FLOAT8E4M3FN, E.FLOAT8E4M3FNUZ, E.FLOAT8E5M2, E.FLOAT8E5M2FNUZ})
_SATURATING = frozenset({E.FLOAT4E2M1, E.FLOAT6E2M3, E.FLOAT6E3M2})
_INTEGER = re.compile(r"\s*([+-]?[0-9]+)(?:\.[0-9]*)?\s*")
_NATIVE = frozenset({E.FLOAT16, E.FLOAT, E.DOUBLE})
_TEXT = 72
"""Bytes of a number as text, an object of its own."""
_BYTE = np.dtype(np.uint8)
_COMMON = 1024
"""Whole numbers on either side of 0 whose texts are made once."""
_DIGITS = {E.DOUBLE: 17, E.FLOAT: 9}


def converted(x: np.ndarray, to: ElementType, saturate: bool = True, round_mode: str = "up") -> np.ndarray:
    """`x` with elements of type `to`. `saturate` is for the float8 types, `round_mode` for float8e8m0.

    Raises ValueError for a string that spells no number and for an unknown round mode.
    """
    source = element_of(x.dtype)
    if source is to:
        return x
    if to is E.STRING:
        bounded((*x.shape, _TEXT), _BYTE)
        return _spelled(x, source)
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


def _spelled(x: np.ndarray, source: ElementType) -> np.ndarray:
    """Numbers as text: floats in the fewest digits that tell them apart, as "1.5", "1e-07", "INF", "NaN"."""
    if source is E.BOOL:
        texts = ["1" if v else "0" for v in x.ravel().tolist()]
    elif not source.floating:
        whole = x if x.dtype.kind in "iu" else x.astype(np.int64)
        if x.size > 64 and whole.min() >= -_COMMON and whole.max() < _COMMON:
            return _common().take(whole.astype(np.int64) + _COMMON)
        texts = list(map(str, whole.ravel().tolist()))
    else:
        digits = _DIGITS.get(source)
        texts = _float_texts((x if digits else x.astype(np.float32)).ravel(), digits or 9)
    out = np.empty(x.shape, object)
    out.ravel()[:] = texts
    return out


@functools.cache
def _common() -> np.ndarray:
    return np.array(list(map(str, range(-_COMMON, _COMMON))), object)


def _float_texts(values: np.ndarray, most: int) -> list[str]:
    """float32 or float64 in as many digits as tell them apart, `most` or one less."""
    numbers = values.tolist()
    texts = list(map(f"%.{most - 1}g".__mod__, numbers))
    again = np.fromiter(map(float, texts), np.float64, len(texts)).astype(values.dtype)
    for i in np.flatnonzero(again != values).tolist():
        texts[i] = f"{numbers[i]:.{most}g}"
    for i in np.flatnonzero(~np.isfinite(values)).tolist():
        texts[i] = "NaN" if numbers[i] != numbers[i] else "INF" if numbers[i] > 0 else "-INF"
    return texts


def _parsed(x: np.ndarray, to: ElementType, saturate: bool, round_mode: str) -> np.ndarray:
    """Text as numbers. Integers may have a fraction, which is cut off."""
    given = x.ravel().tolist()
    together = "".join(given)
    plain = "_" not in together
    if to.floating:
        floats = None
        if plain:
            with contextlib.suppress(ValueError):
                floats = np.fromiter(map(float, given), np.float64, len(given))
        if floats is None:
            floats = np.fromiter(map(_number, given), np.float64, x.size)
        floats = floats.reshape(x.shape)
        return floats if to is E.DOUBLE else converted(floats, to, saturate, round_mode)
    whole = _whole_numbers(x, given, plain and together.isascii())
    return whole != 0 if to is E.BOOL else wrapped(whole, to.numpy)


def _whole_numbers(x: np.ndarray, given: list[str], plain: bool) -> np.ndarray:
    """Text as integers; `plain`: Python may read it the same way."""
    if plain:
        with contextlib.suppress(ValueError, OverflowError):
            return x.astype(np.int64)
    return np.fromiter(map(_whole, given), np.uint64, x.size).reshape(x.shape)


def _number(text: str) -> float:
    try:
        if "_" in text:
            raise ValueError
        return float(text)
    except ValueError:
        raise ValueError(f"Cast: {text[:40]!r} spells no number") from None


def _whole(text: str) -> int:
    found = _INTEGER.fullmatch(text)
    if found and len(found[1]) < 4000:
        value = int(found[1])
    else:
        number = _number(text)
        if number - number:
            raise ValueError(f"Cast: {text[:40]!r} spells no integer")
        value = int(number)
    return value & 0xFFFFFFFFFFFFFFFF


@define(since=6)
def Cast(x, *, to: int, saturate: int = 1, round_mode: str = "up"):
    """The elements of x as type `to`"""
    return converted(x, ElementType(to), bool(saturate), round_mode)


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
