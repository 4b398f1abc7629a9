"""What has become of a model version's requests: counts, times and their distribution.

In: each request's times, in seconds. Out: numbers that only grow, which the protocol's statistics and the
metrics both read. One thread writes.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from typing import Any

BUCKETS = tuple(round(base * 10.0**power, 9) for power in range(-5, 2) for base in (1.0, 2.5, 5.0))
"""Upper ends of the latency's intervals, from 10 microseconds to 50 seconds."""
MOST_SIZES = 256
"""Batch sizes that have a row of their own."""


class Duration:
    """How often, and for how many nanoseconds in all."""

    __slots__ = ("count", "ns")

    def __init__(self) -> None:
        self.count = self.ns = 0

    def add(self, seconds: float, count: int = 1) -> None:
        self.count += count
        self.ns += int(seconds * 1e9) * count

    def plain(self) -> dict[str, int]:
        return {"count": self.count, "ns": self.ns}


class Statistics:
    """`refused`: requests by why they were not let in or not answered; `latency` counts requests by interval
    of `BUCKETS`, the last one being all above."""

    def __init__(self) -> None:
        self.success, self.fail, self.queue = Duration(), Duration(), Duration()
        self.input, self.infer, self.output = Duration(), Duration(), Duration()
        self.refused = Counter[str]()
        self.batches = dict[int, Duration]()
        self.latency, self.seconds = [0] * (len(BUCKETS) + 1), 0.0
        self.rows = self.executions = self.last = 0

    def batch(self, rows: int, seconds: float) -> None:
        """A batch ran."""
        self.rows, self.executions, self.last = self.rows + rows, self.executions + 1, time.time_ns()
        size = rows if rows in self.batches or len(self.batches) < MOST_SIZES else 0
        found = self.batches.get(size)
        if found is None:
            found = self.batches[size] = Duration()
        found.add(seconds)

    def answered(self, reading: float, queued: float, ran: float, writing: float) -> None:
        """A request was answered; the four parts of its time."""
        total = reading + queued + ran + writing
        self.success.add(total)
        self.input.add(reading)
        self.queue.add(queued)
        self.infer.add(ran)
        self.output.add(writing)
        self.latency[bisect_left(BUCKETS, total)] += 1
        self.seconds += total

    def plain(self) -> dict[str, Any]:
        """As the protocol's statistics extension has it, but for the name."""
        zero = Duration().plain()
        return {
            "last_inference": self.last // 1_000_000, "inference_count": self.rows,
            "execution_count": self.executions,
            "inference_stats": {
                "success": self.success.plain(), "fail": self.fail.plain(), "queue": self.queue.plain(),
                "compute_input": self.input.plain(), "compute_infer": self.infer.plain(),
                "compute_output": self.output.plain(), "cache_hit": zero, "cache_miss": zero},
            "batch_stats": [{"batch_size": size, "compute_input": zero, "compute_infer": spent.plain(),
                             "compute_output": zero} for size, spent in sorted(self.batches.items())],
            "memory_usage": [], "response_stats": {}}
