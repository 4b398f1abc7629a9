"""What samples are made with: arrays drawn for one of them, and the register of those who make some.

In: a random generator and an element type. Out: arrays; the same arguments always give the same ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ..ops.define import random_array

Made = tuple[Any, ...]
Maker = Callable[["Draw"], Iterator[Made]]
MAKERS: dict[tuple[str, str], tuple[Maker, tuple[str, ...]]] = {}
"""By domain and operator: a function that yields (inputs, attributes[, number of outputs]), and the
element types it is meant for; empty for all that the schema allows."""

FLOATS = ("float", "double", "float16", "bfloat16")


class Draw:
    """Arrays for one sample: `d(2, 3)` has the sample's type, the others say theirs."""

    def __init__(self, rng: np.random.Generator, dtype: np.dtype[Any]) -> None:
        self.rng, self.dtype = rng, dtype

    def __call__(self, *shape: int) -> np.ndarray:
        return random_array(self.rng, shape, self.dtype)

    def of(self, dtype: Any, *shape: int) -> np.ndarray:
        return random_array(self.rng, shape, dtype)

    def positive(self, *shape: int) -> np.ndarray:
        """Between 0.5 and 2.5: variances, scales."""
        return np.asarray(0.5 + 2 * self.rng.random(shape)).astype(self.dtype)

    def small(self, *shape: int) -> np.ndarray:
        """Weights, whose sums of products stay within the range of every type."""
        return np.asarray(self.rng.normal(size=shape) / 4).astype(self.dtype)

    def below(self, end: int, *shape: int) -> np.ndarray:
        """Indices from 0 to `end` - 1, int64."""
        return self.rng.integers(0, end, shape)


def ints(*values: Any) -> np.ndarray:
    """An int64 vector."""
    return np.array(values, np.int64)


def sampled(name: str, *types: str, domain: str = "") -> Callable[[Maker], Maker]:
    """Register the samples of an operator; `types` narrows those its schema allows."""
    def decorate(make: Maker) -> Maker:
        MAKERS[domain, name] = make, types
        return make
    return decorate
