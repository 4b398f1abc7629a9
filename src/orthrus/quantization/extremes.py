"""The least and the greatest number of an array.

In: an array in any layout. Out: both as one-dimensional arrays, of one number, or of one for each index of
the second dimension. The invariant: a NaN in the array is one in the result.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def extremes(array: np.ndarray, per_channel: bool = False) -> tuple[Any, Any]:
    """(least, greatest); zeros for an array without elements."""
    axes = None if not per_channel or array.ndim < 2 else (0, *range(2, array.ndim))
    if not array.size:
        zeros = np.zeros(1 if axes is None else array.shape[1], array.dtype)
        return zeros, zeros
    return np.min(array, axes).reshape(-1), np.max(array, axes).reshape(-1)
