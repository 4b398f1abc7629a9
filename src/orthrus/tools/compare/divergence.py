"""How far two values are apart, and whether that is too far.

In: what one side gave, what the other gave, and a `Tolerance`. Out: a `Divergence`. Nothing here runs a
model. Large arrays are measured in pieces, so that measuring needs little memory beside them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import numpy as np

from ...ir import HALF, SparseArray, shape_text, type_of
from ...records import dataclass

_PIECE = 1 << 20
_LEAST = 1e-30
_OMITTED = 1e-5
_SCALED = {2: 1e-2, 4: 1e-4, 8: 1e-9}
_BFLOAT16, _TINY = 5e-2, 0.3


@dataclass(frozen=True)
class Tolerance:
    """How far apart elements may be.

    With `rtol` or `atol`: |a - b| <= atol + rtol * |b|, the one left out being 1e-5. With neither: a share of
    the largest magnitude of b, and as much again of the element's own: 1e-4 for float, 1e-9 for double, 1e-2
    for float16, 5e-2 for bfloat16, 0.3 for smaller floats; or `scaled` for all of them, `doubles` for
    double. Whole numbers may be `steps` apart; everything else has to be equal.
    """

    rtol: float | None = None
    atol: float | None = None
    scaled: float | None = None
    steps: int = 0
    doubles: float = _SCALED[8]

    def of(self, dtype: np.dtype[Any], largest: float) -> tuple[float, float]:
        """(absolute, relative) for elements of `dtype` in an array of that largest magnitude."""
        if self.rtol is not None or self.atol is not None:
            return (_OMITTED if self.atol is None else self.atol,
                    _OMITTED if self.rtol is None else self.rtol)
        if dtype.kind in "iu":
            return max(self.steps, 0.5, largest * (self.scaled or 0)), 0.0
        double = dtype in (np.float64, np.complex128)
        share = self.scaled if self.scaled is not None else self.doubles if double else _share(dtype)
        return share * max(largest, _LEAST), share


def _share(dtype: np.dtype[Any]) -> float:
    if dtype.kind == "V" or dtype.name.startswith(("bfloat", "float8_", "float6_", "float4_")):
        return _BFLOAT16 if dtype.name == "bfloat16" else _TINY
    return _SCALED.get(dtype.itemsize // (2 if dtype.kind == "c" else 1), 1e-4)


@dataclass(frozen=True)
class Divergence:
    """The differences of one value. `max_rel` is relative to the larger of the two elements, `ulp` counts
    floating-point numbers between them (None for other types), `excess` is the largest difference in units of
    what is allowed: above 1 is too far, infinite where nothing can be compared, with the reason in `note`.
    `worst`: the index of the largest excess, and both elements there."""

    max_abs: float = 0.0
    max_rel: float = 0.0
    mean_abs: float = 0.0
    ulp: int | None = None
    cosine: float = 1.0
    excess: float = 0.0
    differing: int = 0
    elements: int = 0
    note: str = ""
    worst: tuple[tuple[int, ...], str, str] | None = None

    @property
    def beyond(self) -> bool:
        return self.excess > 1

    def plain(self) -> dict[str, Any]:
        """For JSON; numbers that are not finite become texts."""
        return {k: str(v) if isinstance(v, float) and not math.isfinite(v) else v
                for k, v in {**asdict(self), "beyond": self.beyond}.items()}


def measure(got: Any, expected: Any, tolerance: Tolerance, floor: float = 0.0) -> Divergence:
    """How far `got` is from `expected`: arrays, numbers, texts, sequences, maps, None. `floor`: an absolute
    difference of floats that is allowed at least."""
    if isinstance(expected, list | dict):
        return _of_many(got, expected, tolerance)
    if isinstance(got, SparseArray) and isinstance(expected, SparseArray):
        got, expected = got.dense(), expected.dense()
    if got is None or expected is None:
        return Divergence() if got is expected else _apart(f"{_kind(got)} against {_kind(expected)}")
    a, b = np.asarray(got), np.asarray(expected)
    if (a.shape, _plain(a)) != (b.shape, _plain(b)):
        return _apart(f"{_kind(a)} against {_kind(b)}")
    if a.dtype.kind in "OUSTb":
        return _of_equals(a, b)
    with np.errstate(all="ignore"):
        return _of_numbers(a, b, tolerance, floor)


def _plain(array: np.ndarray) -> str:
    return "text" if array.dtype.kind in "OUST" else array.dtype.name


def _kind(value: Any) -> str:
    try:
        return "nothing" if value is None else shape_text(type_of(value))
    except TypeError:
        return type(value).__name__


def _apart(note: str) -> Divergence:
    return Divergence(math.inf, math.inf, math.inf, None, 0.0, math.inf, note=note)


def _of_many(got: Any, expected: Any, tolerance: Tolerance) -> Divergence:
    """The worst of the elements of a sequence or a map."""
    if type(got) is not type(expected) or len(got) != len(expected):
        return _apart(f"{len(got) if hasattr(got, '__len__') else _kind(got)} elements against "
                      f"{len(expected)}")
    if isinstance(expected, dict):
        if set(got) != set(expected):
            return _apart("the keys of the maps differ")
        pairs = [_singles(got[key], expected[key]) for key in expected]
    else:
        pairs = list(zip(got, expected, strict=True))
    return max((measure(a, b, tolerance) for a, b in pairs), key=lambda d: d.excess, default=Divergence())


def _singles(got: Any, expected: Any) -> tuple[Any, Any]:
    """A map's floats as the float32 that they were, where both were: Python's own floats are doubles."""
    if isinstance(got, float) and isinstance(expected, float):
        with np.errstate(over="ignore"):
            short = np.array([got, expected], np.float32)
        if np.array_equal(short, [got, expected], equal_nan=True):
            return short[0], short[1]
    return got, expected


def _of_equals(a: np.ndarray, b: np.ndarray) -> Divergence:
    if a.dtype.kind == "b":
        different = a != b
    else:
        different = np.array([_text(x) != _text(y) for x, y in zip(a.ravel(), b.ravel(), strict=True)], bool)
    count, flat = int(different.sum()), different.ravel()
    if not count:
        return Divergence(elements=a.size)
    at = int(flat.argmax())
    worst = _index(at, a.shape), str(a.ravel()[at]), str(b.ravel()[at])
    return Divergence(1.0, 1.0, count / a.size, None, 1 - count / a.size, math.inf, count, a.size,
                      f"{count} of {a.size} elements differ", worst)


def _text(value: Any) -> str:
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value)


def _index(at: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(at, shape)) if shape else ()


def _of_numbers(a: np.ndarray, b: np.ndarray, tolerance: Tolerance, floor: float) -> Divergence:
    largest = max((float(np.max(np.abs(y[np.isfinite(y)]), initial=0)) for _, _, y in _pieces(a, b)),
                  default=0.0)
    absolute, relative = tolerance.of(a.dtype, largest)
    absolute = max(absolute, floor) if a.dtype.kind not in "iu" else absolute
    max_abs = max_rel = total = excess = dot = aa = bb = 0.0
    ulp = 0 if _steps(a.reshape(-1)[:0]) is not None else None
    differing, place, odd = 0, -1, ""
    a_flat, b_flat = a.reshape(-1), b.reshape(-1)
    for start, x, y in _pieces(a, b):
        fits = np.isfinite(x) & np.isfinite(y)
        unfit = ~fits & ~((x == y) | (np.isnan(x) & np.isnan(y)))
        gap = np.where(fits, np.abs(np.where(fits, x, 0) - np.where(fits, y, 0)), 0.0)
        ratio = np.where(unfit, np.inf, gap / np.maximum(absolute + relative * np.where(fits, np.abs(y), 0),
                                                         5e-324))
        at = int(ratio.argmax())
        if ratio[at] > excess:
            excess, place = float(ratio[at]), start + at
        if unfit.any() and not odd:
            odd = "NaN or infinite on one side only"
        differing += int(np.count_nonzero(gap)) + int(unfit.sum())
        max_abs = max(max_abs, float(gap.max()))
        size = np.where(fits, np.maximum(np.maximum(np.abs(x), np.abs(y)), _LEAST), 1)
        max_rel = max(max_rel, float((gap / size).max()))
        total += float(gap.sum())
        x, y = np.where(fits, x, 0), np.where(fits, y, 0)
        dot, aa, bb = (dot + float(np.vdot(y, x).real), aa + float(np.vdot(x, x).real),
                       bb + float(np.vdot(y, y).real))
        if ulp is not None and gap.any():
            flat = slice(start, start + len(x))
            ulp = max(ulp, int(np.where(fits, _between(a_flat[flat], b_flat[flat]), 0).max()))
    lengths = math.sqrt(aa) * math.sqrt(bb)
    cosine = (1.0 if aa == bb == 0 else min(dot / lengths, 1.0) if lengths and math.isfinite(lengths)
              else 0.0)
    worst = None if place < 0 else (_index(place, a.shape), _shown(a, place), _shown(b, place))
    return Divergence(max_abs, max_rel, total / a.size if a.size else 0.0, ulp, cosine, excess, differing,
                      a.size, odd, worst)


def _pieces(a: np.ndarray, b: np.ndarray) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
    """(offset, piece of a, piece of b) as double, or complex, precision."""
    wide = np.complex128 if a.dtype.kind == "c" else np.float64
    x, y = a.reshape(-1), b.reshape(-1)
    for start in range(0, x.size, _PIECE):
        yield start, x[start:start + _PIECE].astype(wide), y[start:start + _PIECE].astype(wide)


def _steps(array: np.ndarray) -> np.ndarray | None:
    """Where elements stand in the order of all floats of their type; None for other types."""
    if array.dtype.kind != "f" and array.dtype not in HALF:
        return None
    size = array.dtype.itemsize
    if size not in (2, 4, 8):
        return None
    bits = np.ascontiguousarray(array).view(f"i{size}").astype(np.int64)
    ordered: np.ndarray = np.where(bits < 0, -(1 << (8 * size - 1)) - bits, bits)
    return ordered


def _between(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """How many floats lie from each element of `a` to that of `b`, 2**62 at most."""
    p, q = _steps(a), _steps(b)
    assert p is not None and q is not None
    far = np.abs(p.astype(np.float64) - q.astype(np.float64)) > 2.0 ** 62
    gap: np.ndarray = np.where(far, 2 ** 62, np.abs(p - q))
    return gap


def _shown(array: np.ndarray, place: int) -> str:
    value = array.reshape(-1)[place]
    return f"{float(value):.9g}" if array.dtype.kind not in "iuc" else str(value)
