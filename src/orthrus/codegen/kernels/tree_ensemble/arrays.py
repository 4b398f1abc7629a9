"""What every kernel of forests has of its forest, and how it joins what trees say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ....records import dataclass
from ...write.body import Body
from ...write.emit import V


@dataclass(frozen=True, eq=False)
class ForestArrays:
    """A forest as a kernel reads it: its parameters and arrays, `width` weights a leaf, and how many features
    a row has at least. `spoken[t]`: every row meets a leaf for target t, `mentioned[t]`: some leaf is for
    it."""

    params: tuple[tuple[str, Any], ...]
    width: int
    arrays: dict[str, np.ndarray]
    spoken: np.ndarray
    mentioned: np.ndarray
    inputs: int


def joining(f: Body, join: str, ty: str) -> tuple[V, Callable[[V, V], V]]:
    """What changes nothing, as a value of this type, and what joins two by sum, min or max."""
    def joined(a: V, b: V) -> V:
        return a + b if join == "sum" else f.fast_min(a, b) if join == "min" else f.fast_max(a, b)
    return f.const(ty, {"sum": 0.0, "min": np.inf, "max": -np.inf}[join]), joined
