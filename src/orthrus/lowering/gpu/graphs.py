"""Runs recorded as graphs: what a part asks of a device, asked as one from the second time on.

In: the arguments of a run's kernels, and what launches them. Out: the same work done. A graph answers for the
very arguments it was recorded with, all addresses among them, so that nothing is copied into place: it serves
runs whose arrays lie where those of an earlier run lay, as memory of an arena and bound arrays do.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from ...errors import pass_on
from ...kernels import Device, Stream, working
from ...recent import Recent

log = logging.getLogger("orthrus")

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
    """What a device recorded; given back with its last reference, once its last replay is done."""

    def __init__(self, device: Device, number: Any) -> None:
        self.device, self.number, self.pid = device, number, os.getpid()
        self.stream: Stream | None = None

    def replay(self, stream: Stream | None = None) -> None:
        """Ask the device for all of it, on this thread's stream, which is `stream` where that is known."""
        self.stream = stream or working(self.device)
        self.device.replay(self.number)

    def __del__(self) -> None:
        if self.pid != os.getpid():
            return
        with contextlib.suppress(Exception):
            if self.stream is not None:
                self.stream.synchronize()
            self.device.destroy_graph(self.number)


class Graphs:
    """The graphs of one plan on a device, for one run at a time. `whose`: part's they are."""

    def __init__(self, device: Device, whose: str) -> None:
        self.device, self.whose, self.working = device, whose, True
        self._kept: Recent[bytes, Any] = Recent(MOST)

    def run(self, arguments: bytes, launch: Callable[[], None]) -> None:
        """Do what `launch` asks the device for with these arguments, of which it waits for nothing: by
        itself the first time, recorded at the second."""
        found = None
        if self.working and _wanted.get():
            seen = arguments in self._kept
            found = self._kept.kept(arguments, lambda: _WARM)
            if found is _WARM:
                found = self._recorded(launch) if seen else None
                if found is not None:
                    self._kept[arguments] = found
        if found is None:
            launch()
        else:
            found.replay()

    def replayed(self, arguments: bytes, stream: Stream) -> bool:
        """Do what was recorded with these arguments, on this thread's `stream`; False where nothing is."""
        found = self._kept.get(arguments) if _wanted.get() else None
        if type(found) is not Graph:
            return False
        self._kept.move_to_end(arguments)
        found.replay(stream)
        return True

    def __contains__(self, arguments: bytes) -> bool:
        """Whether something is recorded with these."""
        return isinstance(self._kept.get(arguments), Graph)

    def _recorded(self, launch: Callable[[], None]) -> Graph | None:
        """A new graph; None where the device makes none, which is not tried again."""
        try:
            return recorded(self.device, launch)
        except Exception as error:
            pass_on(error)
            log.warning("%s is not recorded as a graph: %s", self.whose, error)
            self.working = False
            return None


def recorded(device: Device, launch: Callable[[], None]) -> Graph:
    """What `launch` asks of a device. Raises where that makes no graph."""
    device.begin_capture()
    try:
        launch()
    except BaseException:
        device.drop_capture()
        raise
    return Graph(device, device.end_capture())
