"""An open `session.profile()`: the session's runs in, a `profiling.Profile` and their time untouched out.

What was fed is kept until the profile is closed, an example for each tuple of input shapes, and run again
then, as fast as the engine can.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from ..locks import lock
from ..profiling import Profile
from ..profiling.collect import timed_plainly

_EXAMPLES = 8
"""Tuples of input shapes beyond which the plain time is not measured."""


class Collecting:
    """Takes runs for `profile`."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self._asked: dict[Any, tuple[Any, dict[str, Any], int]] = {}
        self._lock = lock()

    def add(self, record: Sequence[Any], start: int, end: int, names: Any, feeds: dict[str, Any]) -> None:
        """Take a run from `start` to `end`, in ns of `time.perf_counter_ns`."""
        self.profile.add(record, start, end)
        key = (tuple(names) if names else None,
               tuple((name, getattr(value, "shape", None)) for name, value in feeds.items()))
        with self._lock:
            if key in self._asked or len(self._asked) <= _EXAMPLES:
                self._asked[key] = (names, feeds, self._asked.get(key, (0, 0, 0))[2] + 1)

    def time_plainly(self, engine: Any) -> None:
        """Measure the plain runs: not where there were too many shapes, nor for a graph that draws random
        numbers, which the next run would miss. Raises what the engine raises."""
        if not self._asked or len(self._asked) > _EXAMPLES or _random(engine.graph):
            return
        runs = [(partial(_run, engine, names, feeds), count) for names, feeds, count in self._asked.values()]
        self.profile.native_seconds = timed_plainly(runs, time.perf_counter_ns)


def _run(engine: Any, names: Any, feeds: dict[str, Any]) -> None:
    """A run the way a session does it."""
    if engine.quick is None or engine.quick(names, feeds) is None:
        engine.run(names, feeds)


def _random(graph: Any) -> bool:
    return any((node.op is not None and "rng" in node.op.runtime) or any(map(_random, node.bodies()))
               for node in graph.nodes)
