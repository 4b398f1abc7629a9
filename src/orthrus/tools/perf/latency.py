"""What a list of run times says: percentiles, and which of two engines that took turns is faster.

In: seconds. Out: plain figures, in seconds and ratios. Nothing here measures, prints or draws random numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from statistics import NormalDist
from typing import Any

import numpy as np

from ...records import dataclass

PERCENTILES = {"P50": 0.5, "P90": 0.9, "P95": 0.95, "P99": 0.99, "P999": 0.999}
FEWEST = 3
"""Ratios below which no interval is given."""


@dataclass(frozen=True)
class Latency:
    """Times of `runs` runs, in seconds. A percentile is the time at index floor(runs * p) of the sorted
    times."""

    runs: int
    total: float
    mean: float
    deviation: float
    minimum: float
    maximum: float
    percentiles: dict[str, float]

    @property
    def median(self) -> float:
        return self.percentiles["P50"]

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


def summarize(times: Sequence[float] | np.ndarray) -> Latency:
    """The figures of `times`, in seconds. Raises ValueError for no times."""
    ordered = np.sort(np.asarray(times, np.float64))
    n = len(ordered)
    if not n:
        raise ValueError("no run was timed")
    at = {name: float(ordered[min(int(n * p), n - 1)]) for name, p in PERCENTILES.items()}
    return Latency(n, float(ordered.sum()), float(ordered.mean()), float(ordered.std()), float(ordered[0]),
                   float(ordered[-1]), at)


@dataclass(frozen=True)
class Paired:
    """How two engines compare: `ratio` is the second's time over the first's (above 1: the first is faster),
    between `low` and `high` with the given confidence; both nan where there are too few `units`: launches, or
    pairs of blocks where there were fewer than three launches."""

    ratio: float
    low: float
    high: float
    units: int
    unit: str
    confidence: float

    @property
    def faster(self) -> str:
        """`first`, `second`, or `neither` where the interval holds 1 or there is none."""
        if self.low > 1:
            return "first"
        return "second" if self.high < 1 else "neither"

    def plain(self) -> dict[str, Any]:
        """For JSON; an interval there is not is None."""
        bounds = [None if math.isnan(v) else v for v in (self.low, self.high)]
        return {**asdict(self), "low": bounds[0], "high": bounds[1], "faster": self.faster}


def paired(first: Sequence[Sequence[float]], second: Sequence[Sequence[float]], confidence: float = 0.95
           ) -> Paired:
    """Compare medians of blocks that were run in turns: `first[i][j]` and `second[i][j]` are neighbours in
    time, in launch `i` of the processes.

    The ratio is the geometric mean of the pairs' ratios. A process that is lucky with its memory stays lucky,
    so the pairs of one launch are not independent: the interval is Student's for the launches' mean
    logarithms, and only with fewer than three launches for those of the pairs. Raises ValueError for no
    pairs, lists of different length, or a time that is not positive.
    """
    if [len(row) for row in first] != [len(row) for row in second] or not first or not all(first):
        raise ValueError("the blocks make no pairs")
    logs: list[np.ndarray] = []
    for a, b in zip(first, second, strict=True):
        if not all(math.isfinite(t) and t > 0 for t in (*a, *b)):
            raise ValueError("a time is not positive")
        logs.append(np.log(np.asarray(b, np.float64) / np.asarray(a, np.float64)))
    unit = "launches" if len(logs) >= FEWEST else "pairs of blocks"
    values = np.array([each.mean() for each in logs]) if len(logs) >= FEWEST else np.concatenate(logs)
    middle, n = float(values.mean()), len(values)
    if n < FEWEST:
        return Paired(math.exp(middle), math.nan, math.nan, n, unit, confidence)
    reach = student(n - 1, confidence) * float(values.std(ddof=1)) / math.sqrt(n)
    return Paired(math.exp(middle), math.exp(middle - reach), math.exp(middle + reach), n, unit, confidence)


def student(freedom: int, confidence: float) -> float:
    """Half the width of Student's two-sided interval, in standard errors, with `freedom` degrees of freedom.

    Exact for one and two; from three on the expansion of Fisher and Cornish around the normal quantile
    (Abramowitz and Stegun, 26.7.5), within 0.2 % at three and 0.02 % from five on. Raises ValueError below
    one.
    """
    if freedom < 1:
        raise ValueError(f"{freedom} degrees of freedom")
    if freedom == 1:
        return math.tan(math.pi * confidence / 2)
    if freedom == 2:
        return confidence * math.sqrt(2 / (1 - confidence**2))
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    terms = (z, (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96,
             (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
             (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160)
    return sum(term / freedom**power for power, term in enumerate(terms))
