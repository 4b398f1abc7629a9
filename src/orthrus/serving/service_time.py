"""How long a batch of so many rows takes, learnt from those that ran.

In: rows and seconds of batches. Out: the expected seconds of a batch, `fixed + each * rows`, and how far off
that is. What lies further back than some twenty batches no longer counts.
"""

from __future__ import annotations

from math import sqrt

MEMORY = 0.95
"""What a batch still weighs when the next one has run."""
CALM = 0.25
"""The part of an error that goes over into the deviation."""


class ServiceTime:
    """A line through the seconds of batches over their rows, neither part of it below zero. Before the first
    measure all is zero."""

    __slots__ = ("_products", "_rows", "_seconds", "_squares", "_weight", "batches", "deviation", "each",
                 "fixed")

    def __init__(self) -> None:
        self.batches = 0
        self.fixed = self.each = self.deviation = 0.0
        self._weight = self._rows = self._seconds = self._squares = self._products = 0.0

    def measured(self, rows: int, seconds: float) -> None:
        """A batch of so many rows has taken so long."""
        seconds = max(seconds, 0.0)
        if self.batches:
            self.deviation += CALM * (abs(seconds - self.mean(rows)) - self.deviation)
        else:
            self.deviation = seconds / 4
        self.batches += 1
        self._weight = self._weight * MEMORY + 1
        self._rows = self._rows * MEMORY + rows
        self._seconds = self._seconds * MEMORY + seconds
        self._squares = self._squares * MEMORY + rows * rows
        self._products = self._products * MEMORY + rows * seconds
        mean_rows, mean = self._rows / self._weight, self._seconds / self._weight
        spread = self._squares / self._weight - mean_rows**2
        if spread <= 1e-6 * mean_rows**2:
            slope = mean / mean_rows
        else:
            slope = max((self._products / self._weight - mean_rows * mean) / spread, 0.0)
        self.fixed = max(mean - slope * mean_rows, 0.0)
        self.each = slope if self.fixed else self._products / self._squares

    def mean(self, rows: float, batches: float = 1) -> float:
        """Expected seconds of so many rows in so many batches, one after the other."""
        return self.fixed * batches + self.each * rows

    def margin(self, batches: float = 1) -> float:
        """Seconds by which so many batches may take longer: four times the deviation of their
        sum, which one in some hundreds passes."""
        return 4 * self.deviation * sqrt(batches)
