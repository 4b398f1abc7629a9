"""The threads that batches run on.

In: functions with their arguments. Out: nothing; what they have to tell they tell themselves. The threads
don't keep a process from ending: a run that never ends is left behind.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any


class Threads:
    """So many threads, which start with the first piece of work."""

    def __init__(self, count: int, name: str) -> None:
        self._count, self._name = count, name
        self._work: SimpleQueue[tuple[Callable[..., None], Any] | None] = SimpleQueue()
        self._started = False

    def submit(self, call: Callable[..., None], argument: Any) -> None:
        """Have `call(argument)` done. It must not raise."""
        if not self._started:
            self._started = True
            for i in range(self._count):
                threading.Thread(target=self._serve, name=f"{self._name}-{i}", daemon=True).start()
        self._work.put((call, argument))

    def close(self) -> None:
        """Let the threads end, each once it has done what it is at."""
        for _ in range(self._count if self._started else 0):
            self._work.put(None)

    def _serve(self) -> None:
        while (work := self._work.get()) is not None:
            call, argument = work
            call(argument)
            del work, call, argument
