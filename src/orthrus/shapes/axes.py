"""Axes as places among the dimensions of a tensor.

In: an axis, or several, counted from the front or from the back, and a rank. Out: places from 0. The
invariant: an axis that a tensor of this rank does not have raises ValueError.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


def normalized(axes: Any, rank: int) -> tuple[int, ...]:
    """`axes` as sorted non-negative ints, each once; None or empty means all. Raises ValueError out of
    range."""
    if axes is None or not np.size(axes):
        return tuple(range(rank))
    return tuple(sorted({places([a], rank)[0] for a in np.ravel(axes).tolist()}))


def places(axes: Sequence[int], rank: int) -> list[int]:
    """`axes` as non-negative ints in their order. Raises ValueError out of range or if one is repeated."""
    if bad := [a for a in axes if not -rank <= a < rank]:
        raise ValueError(f"axis {bad[0]} is out of range for a tensor of rank {rank}")
    out = [a % rank for a in axes]
    if len(set(out)) != len(out):
        raise ValueError(f"axes {list(axes)} name an axis twice")
    return out


def normalized_axis(axis: Any, rank: int, inclusive: bool = False) -> int:
    """`axis` as a non-negative int below `rank` (`inclusive`: at most `rank`).
    Raises ValueError out of range."""
    end = rank + inclusive
    if not -rank <= (axis := int(axis)) < max(end, 1):
        raise ValueError(f"axis {axis} is out of range for a tensor of rank {rank}")
    return axis + rank if axis < 0 else axis
