"""How far a quantized model's outputs are from the float model's, over many items of data.

In: pairs of output lists, item by item. Out: an `Accuracy`. Only sums are kept, no outputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...records import dataclass

Score = Callable[[list[list[Any]]], float]
"""What a user knows better: all items' output lists in, a number out, higher for better."""
MEASURES = ("sqnr", "cosine", "agreement", "score")


@dataclass(frozen=True)
class Accuracy:
    """`sqnr`: signal over noise of the worst output, in dB, inf where nothing differs; `cosine`: of the worst
    output; `agreement`: share of the rows in which both have the same largest element, or of equal whole
    numbers, None where no output has rows of two elements or whole numbers; `score`: by the user's function,
    None without one."""

    sqnr: float
    cosine: float
    agreement: float | None = None
    score: float | None = None

    def of(self, measure: str) -> float:
        """One of `MEASURES`; -inf for one that there is not."""
        value = getattr(self, measure)
        return -math.inf if value is None else float(value)

    @property
    def best_measure(self) -> str:
        """What says most of those there are."""
        return next(m for m in ("score", "agreement", "cosine") if getattr(self, m) is not None)


class Decibels:
    """Sums over arrays of which one is trusted: signal, noise and what their angle follows from."""

    def __init__(self) -> None:
        self.signal = self.noise = self.other = self.product = 0.0

    def add(self, trusted: np.ndarray, doubted: np.ndarray) -> None:
        """Numbers that are infinite or none on both sides alike are no noise; on one side they are all."""
        x, y = trusted.astype(np.float64).ravel(), doubted.astype(np.float64).ravel()
        same = (x == y) | (np.isnan(x) & np.isnan(y))
        x, y = np.where(same & ~np.isfinite(x), 0.0, x), np.where(same & ~np.isfinite(y), 0.0, y)
        self.signal += float(x @ x)
        self.other += float(y @ y)
        self.product += float(x @ y)
        self.noise += float((x - y) @ (x - y))

    @property
    def sqnr(self) -> float:
        """10 log10(signal / noise)."""
        if self.noise == 0:
            return math.inf
        if not math.isfinite(self.noise) or self.signal == 0:
            return -math.inf
        return 10 * math.log10(self.signal / self.noise)

    @property
    def cosine(self) -> float:
        """Of the angle between the two; 1 where both are 0."""
        both = math.sqrt(self.signal) * math.sqrt(self.other)
        if both == 0:
            return 1.0 if self.signal == self.other else 0.0
        return self.product / both if math.isfinite(both) else 0.0


class Comparing:
    """Takes outputs of both models, and says in the end how they compare."""

    def __init__(self, score: Score | None = None) -> None:
        self._score = score
        self._kept: list[list[Any]] = []
        self._sums: dict[int, Decibels] = {}
        self._equal = self._rows = 0

    def add(self, trusted: Sequence[Any], doubted: Sequence[Any]) -> None:
        """The outputs of one item. Raises ValueError where their shapes differ."""
        for i, (x, y) in enumerate(zip(trusted, doubted, strict=True)):
            if not isinstance(x, np.ndarray) or x.dtype.kind not in "fiubV" or not x.size:
                continue
            if np.shape(y) != x.shape:
                raise ValueError(f"output {i} has shape {np.shape(y)}, the float model's {x.shape}")
            if x.dtype.kind in "iub":
                self._count(x == y)
                continue
            self._sums.setdefault(i, Decibels()).add(x, y)
            if x.ndim > 1 and x.shape[-1] > 1:
                self._count(x.argmax(-1) == np.asarray(y).argmax(-1))
        if self._score is not None:
            self._kept.append(list(doubted))

    def _count(self, equal: np.ndarray) -> None:
        self._equal += int(equal.sum())
        self._rows += equal.size

    def result(self) -> Accuracy:
        """Over everything that was added."""
        sums = list(self._sums.values())
        agreement = self._equal / self._rows if self._rows else None
        return Accuracy(min((s.sqnr for s in sums), default=math.inf),
                        min((s.cosine for s in sums), default=1.0), agreement,
                        None if self._score is None else float(self._score(self._kept)))
