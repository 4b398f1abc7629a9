"""Draws for random applications of operators: shapes, axes, arrays of every element type."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
from hypothesis import strategies as st

F16, F32, F64, BF16 = np.float16, np.float32, np.float64, ml_dtypes.bfloat16
SIGNED, UNSIGNED = (np.int8, np.int16, np.int32, np.int64), (np.uint8, np.uint16, np.uint32, np.uint64)
INTS, FLOATS = (*SIGNED, *UNSIGNED), (F32, F64, F16, BF16)
NUMBERS = (*INTS, *FLOATS)
ANY = (*NUMBERS, np.bool_, np.complex64, object)


class Draw:
    """Draws of one case: hypothesis chooses the structure, a generator seeded by it the elements."""

    def __init__(self, draw: Callable[[Any], Any]) -> None:
        self.draw = draw
        self.rng = np.random.default_rng(draw(st.integers(0, 1 << 20)))

    def int(self, low: int, high: int) -> int:
        return self.draw(st.integers(low, high))

    def one(self, options: Sequence[Any]) -> Any:
        return self.draw(st.sampled_from(list(options)))

    def yes(self) -> bool:
        return self.draw(st.booleans())

    def shape(self, low: int = 0, high: int = 4, least: int = 0, most: int = 5) -> tuple[int, ...]:
        """A shape; a dimension of 0 is rare."""
        sizes = [max(least, n) for n in (*range(1, most + 1), *range(1, most + 1), 0)]
        return tuple(self.one(sizes) for _ in range(self.int(low, high)))

    def broadcastable(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """A shape that broadcasts to `shape`."""
        return tuple(1 if self.int(0, 3) == 0 else d for d in shape[self.int(0, len(shape)) :])

    def axis(self, rank: int) -> int:
        return self.int(-rank, rank - 1)

    def axes(self, rank: int, least: int = 0) -> list[int]:
        chosen = [a for a in range(rank) if self.yes()]
        if len(chosen) < least:
            chosen = list(range(min(rank, least)))
        return [a - rank if self.yes() else a for a in self.rng.permutation(chosen).tolist()]

    def array(self, shape: tuple[int, ...], dtype: Any = F32, low: float = -5, high: float = 6) -> np.ndarray:
        """Small values with repeats; for ints, of the whole range now and then."""
        dtype = np.dtype(dtype)
        if dtype.kind == "O":
            return np.asarray(self.rng.choice(np.array(["", "a", "bc", "ä€", "B"], object), shape), object)
        if dtype.kind == "b":
            return np.asarray(self.rng.random(shape) > 0.5)
        if dtype.kind in "iu":
            bounds = np.iinfo(dtype)
            return np.asarray(
                self.rng.integers(
                    max(int(low), bounds.min), min(int(high), bounds.max), shape, dtype=np.int64
                )
            ).astype(dtype)
        if dtype.kind == "c":
            return np.asarray(self.rng.normal(size=shape) + 1j * self.rng.normal(size=shape)).astype(dtype)
        return np.asarray(self.rng.uniform(low, high, shape).round(2)).astype(dtype)

    def wild(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """Values from the ends of the type's range, infinities and NaN among them."""
        dtype = np.dtype(dtype)
        if dtype.kind in "iu":
            bounds = np.iinfo(dtype)
            return np.asarray(self.rng.integers(bounds.min, bounds.max, shape, dtype=dtype, endpoint=True))
        x = self.array(shape, dtype)
        if dtype.kind in "fV":
            odd = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, 1e-5, 300.0, -300.0]).astype(dtype)
            return np.asarray(np.where(self.rng.random(shape) < 0.3, self.rng.choice(odd, shape), x)).astype(
                dtype
            )
        return x


class Dice(Draw):
    """The same draws from `random`: some thirty times faster than hypothesis, and without its shrinking."""

    def __init__(self, r: random.Random) -> None:
        self.r = r
        self.rng = np.random.default_rng(r.getrandbits(32))

    def int(self, low: int, high: int) -> int:
        return self.r.randint(low, high)

    def one(self, options: Sequence[Any]) -> Any:
        return self.r.choice(options)

    def yes(self) -> bool:
        return self.r.random() < 0.5


def ints(*values: Any) -> np.ndarray:
    return np.array(values, np.int64)


def positive(a: int, rank: int) -> int:
    return a % rank if rank else 0
