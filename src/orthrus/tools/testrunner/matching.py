"""When a result is what a test expects: onnx_test_runner's rule.

In: an expected value, a computed one, and a `Tolerance`. Out: None, or a `Mismatch` that says which element
is furthest off. Types come first, then shapes. Floats match where
|expected - actual| <= absolute + relative * |expected|; NaN meets NaN only, an infinity itself only.
Integers, booleans and texts are equal or they differ.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any

import numpy as np

from ...ir import ElementType, element_of
from ...records import dataclass

_BLOCK = 1 << 20
_LIMIT = 80

DEFAULT = 1e-3
"""Both tolerances where nothing else is said."""
OTHER = 1e-5
"""One tolerance where only the other is given."""
LOOSER = {"CUDAExecutionProvider": 0.017, "OpenVINOExecutionProvider": 0.009}
"""Both tolerances of providers whose results differ more, by onnxruntime's test runner."""


BFLOAT16 = 2.0 ** -6
"""The relative tolerance of bfloat16, whose neighbours are up to 2**-7 apart; ONNX's own runner allows it."""


@dataclass(frozen=True)
class Tolerance:
    """`clamp`: results are cut to 0...255 before they are compared, as for pictures. `exact`: it is meant for
    bfloat16 too."""

    absolute: float = DEFAULT
    relative: float = DEFAULT
    clamp: bool = False
    exact: bool = False


@dataclass(frozen=True)
class Mismatch:
    """`kind` is "type", "shape" or "value"."""

    kind: str
    text: str


@dataclass(frozen=True)
class Tolerances:
    """Tolerances by test: the default, and for some tests their own."""

    default: Tolerance = Tolerance()
    absolute: Mapping[str, float] = field(default_factory=dict)
    relative: Mapping[str, float] = field(default_factory=dict)

    def of(self, name: str) -> Tolerance:
        """The tolerance of a test, whose name may be listed with `test_` before it."""
        known = (name, f"test_{name}")
        absolute = next((self.absolute[n] for n in known if n in self.absolute), self.default.absolute)
        relative = next((self.relative[n] for n in known if n in self.relative), self.default.relative)
        return Tolerance(absolute, relative, self.default.clamp)


def asked(provider: str, absolute: float | None, relative: float | None) -> Tolerance:
    """The tolerance that was asked for, and the provider's where none was."""
    if absolute is None and relative is None:
        both = LOOSER.get(provider, DEFAULT)
        return Tolerance(both, both)
    return Tolerance(OTHER if absolute is None else absolute, OTHER if relative is None else relative,
                     exact=True)


def compare(expected: Any, actual: Any, tolerance: Tolerance, where: str = "") -> Mismatch | None:
    """None where `actual` is as expected: an array, a list, a dict or None."""
    if expected is None or actual is None:
        if expected is actual:
            return None
        found, wanted = ("nothing" if v is None else "a value" for v in (actual, expected))
        return Mismatch("type", f"{where}expected {wanted}, got {found}")
    if isinstance(expected, list):
        return _compare_lists(expected, actual, tolerance, where)
    if isinstance(expected, dict):
        return _compare_dicts(expected, actual, tolerance, where)
    if not hasattr(actual, "dtype"):
        return Mismatch("type", f"{where}expected a tensor, got {type(actual).__name__}")
    return _compare_arrays(np.asarray(expected), np.asarray(actual), tolerance, where)


def _compare_lists(expected: list[Any], actual: Any, tolerance: Tolerance, where: str) -> Mismatch | None:
    if not isinstance(actual, list | tuple):
        return Mismatch("type", f"{where}expected a sequence, got {type(actual).__name__}")
    if len(expected) != len(actual):
        return Mismatch("shape", f"{where}expected {len(expected)} elements, got {len(actual)}")
    for i, (wanted, got) in enumerate(zip(expected, actual, strict=True)):
        found = compare(wanted, got, tolerance, f"{where}element {i}: ")
        if found is not None:
            return found
    return None


def _compare_dicts(expected: dict[Any, Any], actual: Any, tolerance: Tolerance,
                   where: str) -> Mismatch | None:
    if not isinstance(actual, dict):
        return Mismatch("type", f"{where}expected a map, got {type(actual).__name__}")
    if expected.keys() != actual.keys():
        odd = next(iter(expected.keys() ^ actual.keys()))
        return Mismatch("shape", f"{where}expected {len(expected)} keys, got {len(actual)}; "
                                 f"{odd!r} is in one only")
    for key, wanted in expected.items():
        value = np.asarray(wanted)
        got = np.asarray(actual[key]).astype(value.dtype)
        found = compare(value, got, tolerance, f"{where}key {key!r}: ")
        if found is not None:
            return found
    return None


def _compare_arrays(expected: np.ndarray, actual: np.ndarray, tolerance: Tolerance,
                    where: str) -> Mismatch | None:
    wanted, got = (element_of(a.dtype) for a in (expected, actual))
    if wanted is not got:
        return Mismatch("type", f"{where}type mismatch, expected tensor({wanted.text}), got "
                                f"tensor({got.text})")
    if expected.shape != actual.shape:
        shapes = ("{" + ",".join(map(str, a.shape)) + "}" for a in (expected, actual))
        return Mismatch("shape", "{}shape mismatch, expected {}, got {}".format(where, *shapes))
    one, other = expected.reshape(-1), actual.reshape(-1)
    if expected.dtype.kind in "OUS":
        return _compare_texts(one, other, where)
    inexact = wanted.floating or expected.dtype.kind == "c"
    if wanted is ElementType.BFLOAT16 and not tolerance.exact:
        tolerance = replace(tolerance, relative=max(tolerance.relative, BFLOAT16))
    count, worst, at = 0, -1.0, 0
    for start in range(0, one.size, _BLOCK):
        off, index, distance = _furthest(one[start:start + _BLOCK], other[start:start + _BLOCK], inexact,
                                         tolerance)
        count += off
        if off and distance > worst:
            worst, at = distance, start + index
    if not count:
        return None
    first, second = _number(one[at], inexact), _number(other[at], inexact)
    tol = tolerance.absolute + tolerance.relative * abs(first) if inexact else 0
    return Mismatch("value", f"{where}expected {_shown(one[at], first)}, got {_shown(other[at], second)}, "
                             f"diff: {abs(first - second):.6g}, tol={tol:.6g} idx={at}. "
                             f"{count} of {one.size} differ")


def _furthest(expected: np.ndarray, actual: np.ndarray, inexact: bool,
              tolerance: Tolerance) -> tuple[int, int, float]:
    """How many elements differ beyond the tolerance, which is furthest off, and how far; inf where that is no
    number."""
    with np.errstate(all="ignore"):
        if inexact:
            wide = np.complex128 if expected.dtype.kind == "c" else np.float64
            one, other = expected.astype(wide), actual.astype(wide)
            if tolerance.clamp and wide is np.float64:
                other = np.clip(other, 0, 255)
            distance = np.abs(one - other)
            near = distance <= tolerance.absolute + tolerance.relative * np.abs(one)
            same = (one == other) | (np.isnan(one) & np.isnan(other))
            off = ~np.where(np.isfinite(one) & np.isfinite(other), near, same)
        else:
            off = expected != actual
            distance = np.abs(expected.astype(np.float64) - actual.astype(np.float64))
    places = np.flatnonzero(off)
    if not places.size:
        return 0, 0, 0.0
    far = np.where(np.isnan(distance[places]), np.inf, distance[places])
    index = int(far.argmax())
    return int(places.size), int(places[index]), float(far[index])


def _compare_texts(expected: np.ndarray, actual: np.ndarray, where: str) -> Mismatch | None:
    pairs = enumerate(zip(expected, actual, strict=True))
    places = [i for i, (one, other) in pairs if str(one) != str(other)]
    if not places:
        return None
    at = places[0]
    one, other = (text if len(text) <= _LIMIT else f"{text[:_LIMIT]}..."
                  for text in (str(expected[at]), str(actual[at])))
    return Mismatch("value", f"{where}expected {one!r}, got {other!r} idx={at}. "
                             f"{len(places)} of {expected.size} differ")


def _number(value: Any, inexact: bool) -> Any:
    if np.iscomplexobj(value):
        return complex(value)
    return float(value) if inexact else int(value)


def _shown(value: Any, number: Any) -> str:
    """A number and its bits."""
    bits = int.from_bytes(np.asarray(value).tobytes(), "little")
    return f"{number if isinstance(number, int) else format(number, '.9g')} ({bits:x})"
