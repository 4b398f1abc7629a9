"""When two results are the same: types and shapes exactly, numbers up to what rounding explains.

In: lists of run-time values. Out: None, or in words what differs first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..ir import HALF, SparseArray, element_of

RELATIVE = {np.dtype(np.float32): 2e-5, np.dtype(np.complex64): 2e-5}
EXACT = 1e-10
"""Relative bound for float64 and complex128."""
STEPS = 4
"""Units in the last place for types of 16 bits and fewer."""


def difference(got: Sequence[Any], expected: Sequence[Any], slack: float = 1.0) -> str | None:
    """How two lists of outputs differ; None where they agree."""
    if len(got) < len(expected):
        return f"{len(got)} outputs where there are {len(expected)}"
    for k, (a, b) in enumerate(zip(got, expected, strict=False)):
        if (found := apart(a, b, slack)) is not None:
            return found if len(expected) == 1 else f"output {k}: {found}"
    return None


def apart(got: Any, expected: Any, slack: float = 1.0) -> str | None:
    """How two values differ; None where they agree."""
    if isinstance(expected, list) and isinstance(got, list):
        return difference(got, expected, slack) if len(got) == len(expected) else (
            f"a sequence of {len(got)} where there are {len(expected)}")
    if isinstance(expected, SparseArray) and isinstance(got, SparseArray):
        return apart(got.dense(), expected.dense(), slack)
    if not isinstance(expected, np.ndarray):
        return None if type(got) is type(expected) and got == expected else f"{got!r}, expected {expected!r}"
    if not isinstance(got, np.ndarray):
        return f"a {type(got).__name__} where there is an array"
    if got.dtype != expected.dtype or got.shape != expected.shape:
        return f"{_type(got)}, expected {_type(expected)}"
    wrong = _wrong(got, expected, slack)
    if not np.any(wrong):
        return None
    at = tuple(int(i) for i in np.argwhere(wrong)[0]) if np.ndim(wrong) else ()
    where = f" at {list(at)}" if at else ""
    return (f"{int(np.sum(wrong))} of {got.size} elements differ, the first{where}: {got[at]!s}, expected "
            f"{expected[at]!s}")


def _wrong(got: np.ndarray, expected: np.ndarray, slack: float) -> Any:
    from ..ir import ElementType

    elem = element_of(got.dtype)
    if not (elem.floating or elem in (ElementType.COMPLEX64, ElementType.COMPLEX128)):
        return np.asarray(got != expected)
    wide: Any = np.complex128 if got.dtype.kind == "c" else np.float64
    a, b = got.astype(wide), expected.astype(wide)
    rtol = EXACT
    if got.dtype in HALF:
        import ml_dtypes

        rtol = STEPS * float(ml_dtypes.finfo(got.dtype).eps)
    rtol = slack * RELATIVE.get(got.dtype, rtol)
    with np.errstate(all="ignore"):
        finite = np.abs(b[np.isfinite(b)])
        largest = float(finite.max()) if finite.size else 0.0
        close = np.abs(a - b) <= rtol * np.abs(b) + rtol * min(largest, 1.0) + 0.1 * rtol * largest
        return ~(close | (a == b) | (np.isnan(a) & np.isnan(b)))


def _type(array: np.ndarray) -> str:
    return f"{element_of(array.dtype).text}{list(array.shape)}"
