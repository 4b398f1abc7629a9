"""How long a model's batches take here, while every slot is at work.

In: a function that runs a batch of so many rows. Out: service times for the simulator, with their spread.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from .simulate import Service

STRETCH, STRETCHES = 32, 100
"""Runs that are kept as they followed each other, and how many times so many."""


def measure(run: Callable[[int], object], sizes: Sequence[int], slots: int = 1, seconds: float = 0.5
            ) -> Service:
    """Run batches of each of `sizes` rows on `slots` threads at once, for `seconds` each size, five times at
    least. A size's time is its median; the spread is that of all sizes around it, in the order in which they
    ran."""
    medians, factors = dict[int, float](), list[float]()
    with ThreadPoolExecutor(slots) as pool:
        for rows in sizes:
            run(rows)
            until = time.perf_counter() + seconds
            taken = [each for part in pool.map(lambda _, rows=rows, until=until: _times(run, rows, until),
                                               range(slots)) for each in part]
            medians[rows] = statistics.median(taken)
            factors += (each / max(medians[rows], 1e-9) for each in _thinned(taken))
    return Service(medians, tuple(factors), STRETCH)


def _times(run: Callable[[int], object], rows: int, until: float) -> list[float]:
    taken = list[float]()
    while len(taken) < 5 or time.perf_counter() < until:
        start = time.perf_counter()
        run(rows)
        taken.append(time.perf_counter() - start)
    return taken


def _thinned(values: Sequence[float]) -> list[float]:
    """At most so many stretches of them, evenly over all."""
    if len(values) <= STRETCH * STRETCHES:
        return list(values)
    starts = (index * (len(values) - STRETCH) // (STRETCHES - 1) for index in range(STRETCHES))
    return [each for start in starts for each in values[start:start + STRETCH]]
