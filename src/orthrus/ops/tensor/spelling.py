"""Numbers as text, and text as numbers.

In: an array of numbers, or of texts. Out: an array of the other, of the same shape. What Python says of each
number or text alone is what holds; many are spelled or read together where that is known to give the same.
"""

from __future__ import annotations

import contextlib
import functools
import re
from array import array
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...ir import ElementType

E = ElementType
_INTEGER = re.compile(r"\s*([+-]?[0-9]+)(?:\.[0-9]*)?\s*")
_COMMON = 1024
"""Whole numbers on either side of 0 whose texts are made once."""
_DIGITS = {E.DOUBLE: 17, E.FLOAT: 9}
_MANY, _MANY_WHOLE, _MANY_REAL = 64, 192, 1024
"""Numbers, texts of whole numbers and of any from which on they are looked at together."""
_LONG = 24
"""Letters of a text, on average, up to which they are read together."""
_PIECE = 1 << 13
"""Texts that are read together."""
_EXACT = 1 << 53
"""A double holds the whole numbers below, and the powers of ten up to `_POWER`, as they are."""
_POWER, _LARGE = 22, 1 << 62
_TENS = np.array([float(f"1e{i}") for i in range(-32, 54)])
_DOUBLE = np.dtype(np.float64)
_FRACTION, _EXPONENT = np.int32(0x7FFFFFFF), np.int32(0x7F800000)


def spelled(x: np.ndarray, source: ElementType) -> np.ndarray:
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
    return np.fromiter(texts, object, len(texts)).reshape(x.shape)


@functools.cache
def _common() -> np.ndarray:
    return np.array(list(map(str, range(-_COMMON, _COMMON))), object)


def _float_texts(values: np.ndarray, most: int) -> list[str]:
    """float32 or float64 in as many digits as tell them apart, `most` or one less."""
    numbers = values.tolist()
    line = f"%.{most - 1}g " * len(numbers) % tuple(numbers)
    texts, finite = line.split(), "n" not in line
    if most == 9 and finite and len(numbers) >= _MANY:
        unsure = np.flatnonzero(_doubtful(values)).tolist()
        again = np.array([float(texts[i]) for i in unsure]).astype(values.dtype)
        apart = (again != values[unsure]).tolist()
        differ = [i for i, unlike in zip(unsure, apart, strict=True) if unlike]
    else:
        read = list(map(float, texts))
        if most == 9:
            read = array("f", read).tolist()
        differ = [] if read == numbers else [
            i for i, (one, other) in enumerate(zip(read, numbers, strict=True)) if one != other]
    for i in differ:
        texts[i] = f"{numbers[i]:.{most}g}"
    if not finite:
        for i in np.flatnonzero(~np.isfinite(values)).tolist():
            texts[i] = "NaN" if numbers[i] != numbers[i] else "INF" if numbers[i] > 0 else "-INF"
    return texts


def _doubtful(values: np.ndarray) -> np.ndarray:
    """Where eight digits may be too few to tell a finite float32 from the next: they are off by almost half
    of the way to the one below, or more."""
    wide = values.astype(np.float64)
    power = np.clip(np.floor(np.log10(np.abs(wide))), -46, 39).astype(np.intp)
    scale = _TENS[39 - power]
    off = np.abs(np.rint(wide * scale) / scale - wide)
    below = (((values.view(np.int32) & _FRACTION) - np.int32(1)) & _EXPONENT).view(np.float32)
    return ~(off < below * np.float32(0.49 / (1 << 23)))


def floats_of(x: np.ndarray, dtype: np.dtype[Any] = _DOUBLE) -> np.ndarray:
    """Text as float64, or that as another type of numpy's. Raises ValueError for what spells no number."""
    given = x.ravel().tolist()
    if len(given) >= _MANY_REAL and (read := _together(given, _decimals)) is not None:
        return read.astype(dtype, copy=False).reshape(x.shape)
    if "_" not in "".join(given):
        with contextlib.suppress(ValueError):
            return np.array(list(map(float, given)), dtype).reshape(x.shape)
    return np.fromiter(map(_number, given), np.float64, x.size).astype(dtype, copy=False).reshape(x.shape)


def whole_of(x: np.ndarray) -> np.ndarray:
    """Text as whole numbers of 64 bits; a fraction is cut off. Raises ValueError as `floats_of`, and for what
    is not finite."""
    given = x.ravel().tolist()
    if len(given) >= _MANY_WHOLE and (read := _together(given, _integers)) is not None:
        return read.reshape(x.shape)
    together = "".join(given)
    if together.isascii() and "_" not in together:
        with contextlib.suppress(ValueError, OverflowError):
            return x.astype(np.int64)
    return np.fromiter(map(_whole, given), np.uint64, x.size).reshape(x.shape)


def _together(given: Sequence[str], read: Callable[[Sequence[str], bytes], np.ndarray | None]
              ) -> np.ndarray | None:
    """What `read` makes of texts and of the line of all of them, by pieces; None where it makes nothing of
    some, or they are long."""
    made = []
    for start in range(0, len(given), _PIECE):
        piece = given[start:start + _PIECE]
        line = ",".join(piece)
        if len(line) > _LONG * len(piece) or not line.isascii():
            return None
        if (found := read(piece, line.encode())) is None:
            return None
        made.append(found)
    return np.concatenate(made)


def _integers(given: Sequence[str], line: bytes) -> np.ndarray | None:
    """Texts of digits only, perhaps behind a minus, as int64; None where one is something else or large."""
    whole = _plain(line, len(given))
    return None if whole is None or whole.max() >= _LARGE or whole.min() <= -_LARGE else whole


def _plain(line: bytes, count: int) -> np.ndarray | None:
    """A line of `count` whole numbers between commas as int64, its limits for those beyond; None where it is
    something else."""
    letters = np.frombuffer(line, np.uint8)
    comma, minus = letters == ord(","), letters == ord("-")
    digit = letters - np.uint8(ord("0")) < 10
    if not line or np.count_nonzero(comma) != count - 1 or not (digit | minus)[0] or not digit[-1] or not (
            digit[1:] | (comma[1:] & digit[:-1]) | (minus[1:] & comma[:-1])).all():
        return None
    return np.fromstring(line.decode(), np.int64, sep=",")


def _decimals(given: Sequence[str], line: bytes) -> np.ndarray | None:
    """Texts of digits, perhaps with a point among them and behind a minus, as float64; None where many are
    something else. By the whole number without the point: its division by a power of ten is rounded once."""
    letters = np.frombuffer(line, np.uint8)
    ends = np.append(np.flatnonzero(letters == ord(",")), len(letters))
    others: list[int] = []
    if b"e" in line and len(ends) == len(given):
        others = sorted({*np.searchsorted(ends, np.flatnonzero(letters == ord("e"))).tolist()})
        if len(others) > len(given) // 4:
            return None
        plain = list(given)
        for i in others:
            plain[i] = "1"
        line = ",".join(plain).encode()
        letters = np.frombuffer(line, np.uint8)
        ends = np.append(np.flatnonzero(letters == ord(",")), len(letters))
    points = np.flatnonzero(letters == ord("."))
    places = np.searchsorted(ends, points)
    if (places[1:] == places[:-1]).any() or (whole := _plain(line.translate(None, b"."), len(given))) is None:
        return None
    behind = np.zeros(len(given), np.intp)
    behind[places] = ends[places] - points - 1
    made = whole / _TENS[np.minimum(behind, _POWER) + 32]
    inexact = (whole >= _EXACT) | (whole <= -_EXACT) | (behind > _POWER) | (whole == 0)
    try:
        for i in (*np.flatnonzero(inexact).tolist(), *others):
            made[i] = float(given[i])
    except ValueError:
        return None
    return made


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
