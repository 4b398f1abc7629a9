"""Runs recorded as graphs: what a part asks of a device, asked as one from the second time on.

In: the arguments of a run's kernels, and what launches them. Out: the same work done. A graph answers for the
very arguments it was recorded with, all addresses among them, so that nothing is copied into place: it serves
runs whose arrays lie where those of an earlier run lay, as memory of an arena and bound arrays do.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from ...kernels import Device
from ...locks import lock
from ...recent import Recent

MOST = 8
"""Graphs of one plan that are kept, by arguments; the least recently used goes first."""

_WARM: Any = object()
_wanted: ContextVar[bool] = ContextVar("graphs", default=True)


@contextmanager
def unrecorded() -> Iterator[None]:
    """Runs in the block, on this thread, are neither recorded nor replayed."""
    token = _wanted.set(False)
    try:
        yield
    finally:
        _wanted.reset(token)


class Graph:
    """What a device recorded; given back with its last reference."""

    def __init__(self, device: Device, number: Any) -> None:
        self.device, self.number = device, number

    def replay(self) -> None:
        """Ask the device for all of it."""
        self.device.replay(self.number)

    def __del__(self) -> None:
        self.device.destroy_graph(self.number)


class Graphs:
    """The graphs of one plan on a device. `counts`: runs that were launched, recorded and replayed."""

    def __init__(self, device: Device) -> None:
        self.device, self._lock = device, lock()
        self._kept: Recent[bytes, Any] = Recent(MOST)
        self.launched = self.recorded = self.replayed = 0

    def run(self, arguments: bytes, launch: Callable[[], None]) -> None:
        """Do what `launch` asks the device for with these arguments, of which it waits for nothing: by
        itself the first time, recorded at the second."""
        if not _wanted.get():
            self.launched += 1
            launch()
            return
        with self._lock:
            known = self._kept.get(arguments)
            found = self._kept.kept(arguments, lambda: _WARM)
        if known is None:
            self.launched += 1
            launch()
            return
        if found is _WARM:
            found = self._made(launch)
            self.recorded += 1
            with self._lock:
                self._kept[arguments] = found
        self.replayed += 1
        found.replay()

    def _made(self, launch: Callable[[], None]) -> Graph:
        self.device.begin_capture()
        try:
            launch()
        except BaseException:
            self.device.drop_capture()
            raise
        return Graph(self.device, self.device.end_capture())
