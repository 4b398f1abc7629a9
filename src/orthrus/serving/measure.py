"""How long a model's batches take here, while every slot is at work.

In: a function that runs a batch of so many rows. Out: service times for the simulator, with their spread.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from .simulate import Service

FACTORS = 200
"""At how many points a spread is kept."""


def measure(run: Callable[[int], object], sizes: Sequence[int], slots: int = 1, seconds: float = 0.5
            ) -> Service:
    """Run batches of each of `sizes` rows on `slots` threads at once, for `seconds` each size, five times at
    least. A size's time is its median; the spread is that of all sizes around it."""
    medians, factors = dict[int, float](), list[float]()
    with ThreadPoolExecutor(slots) as pool:
        for rows in sizes:
            run(rows)
            until = time.perf_counter() + seconds
            taken = [each for part in pool.map(lambda _, rows=rows, until=until: _times(run, rows, until),
                                               range(slots)) for each in part]
            medians[rows] = statistics.median(taken)
            factors += (each / max(medians[rows], 1e-9) for each in _thinned(taken))
    return Service(medians, tuple(_thinned(factors)))


def _times(run: Callable[[int], object], rows: int, until: float) -> list[float]:
    taken = list[float]()
    while len(taken) < 5 or time.perf_counter() < until:
        start = time.perf_counter()
        run(rows)
        taken.append(time.perf_counter() - start)
    return taken


def _thinned(values: Sequence[float]) -> list[float]:
    """At most `FACTORS` of them, evenly over their order."""
    ordered, step = sorted(values), max(len(values) / FACTORS, 1.0)
    return [ordered[int((index + 0.5) * step)] for index in range(int(len(ordered) / step))]
