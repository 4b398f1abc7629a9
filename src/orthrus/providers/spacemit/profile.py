"""When each worker did each step of a session's parts, as a file of Chrome trace events.

Workers note a clock of their own, whose unit is not known: the first and the last note of a run are laid on
its begin and its end.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

log = logging.getLogger("orthrus")

_count = itertools.count()


class Profile:
    """The events of one session. `write` puts them into `<prefix>_<date>_<time>[_<number>].json`; `types`:
    the operators that each step serves, by the name of the node it goes by."""

    def __init__(self, prefix: str) -> None:
        number = next(_count)
        self.path = os.path.abspath(prefix + time.strftime("_%Y-%m-%d_%H-%M-%S")
                                    + (f"_{number}" if number else "") + ".json")
        self.types: dict[str, str] = {}
        self._events: list[dict[str, Any]] = []
        self._lock = threading.Lock()
        self._zero = time.perf_counter_ns()

    def add(self, name: str, worker: int, begin: float, end: float) -> None:
        """An event, with its times in nanoseconds of `time.perf_counter_ns`."""
        event = {"cat": "Node", "pid": os.getpid(), "tid": worker, "ph": "X", "name": name,
                 "ts": (begin - self._zero) / 1e3, "dur": (end - begin) / 1e3,
                 "args": {"op_name": self.types.get(name, ""), "provider": "SpaceMITExecutionProvider"}}
        with self._lock:
            self._events.append(event)

    @contextlib.contextmanager
    def run(self, names: Sequence[str]) -> Iterator[Callable[[np.ndarray], None]]:
        """Around a run: what is given takes the workers' clocks by worker, step, begin and end, 0 where a
        worker had no part in a step."""
        began = time.perf_counter_ns()

        def note(clocks: np.ndarray) -> None:
            took = time.perf_counter_ns() - began
            there = clocks[clocks != 0]
            if not there.size:
                return
            first, unit = int(there.min()), took / max(int(there.max() - there.min()), 1)
            for worker, steps in enumerate((clocks - first).tolist()):
                for name, (begin, end) in zip(names, steps, strict=True):
                    if end >= begin >= 0:
                        self.add(name, worker, began + unit * begin, began + unit * end)
        yield note

    def write(self) -> None:
        """Write what there is so far; a warning says where that cannot be."""
        try:
            with self._lock, open(self.path, "w", encoding="utf-8") as file:
                json.dump({"traceEvents": self._events}, file)
        except (OSError, ValueError) as error:
            log.warning("the profile is not written to %s: %s; SPACEMIT_EP_DEBUG_PROFILE begins with a "
                        "folder that is there", self.path, error)
