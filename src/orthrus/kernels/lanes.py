"""What runs use of devices that have streams: which of these, and what memory is taken from.

In: a device, and what a session is told of it. Out: a lane for each run that is going on, and which lane and
stream the calling thread works on. A lane serves one run at a time.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..errors import Fail
from ..locks import lock
from .allocator import Allocator
from .streams import Event, Stream, answered, asked, numbers

if TYPE_CHECKING:
    from .device import Device

_thread = threading.local()
_NONE: dict[int, Any] = {}


class Lane:
    """What one run at a time uses of a device: a stream to compute on, those to copy in and out on, and what
    memory is taken from. `together`: copies in are asked of the stream that computes."""

    __slots__ = ("device", "allocator", "compute", "incoming", "outgoing", "streams")

    def __init__(self, device: Device, allocator: Allocator, compute: Stream | None = None,
                 together: bool = False) -> None:
        self.device, self.allocator = device, allocator
        self.compute = Stream(device) if compute is None else compute
        self.incoming = self.compute if together else Stream(device)
        self.outgoing = Stream(device)
        self.streams = self.compute, self.incoming, self.outgoing

    def woken(self) -> Lane:
        """This lane, of which a run is going to ask something."""
        for stream in self.streams:
            stream.quiet = False
        return self

    def settle(self) -> None:
        """Wait until all is done: memory that was given back is free for any stream from now on."""
        before = next(numbers)
        self.compute.synchronize()
        for stream in (self.incoming, self.outgoing):
            if stream.busy:
                stream.synchronize()
        for stream in self.streams:
            stream.quiet = not stream.foreign
        for allocator in (self.allocator, self.device.pinned()):
            if allocator is not None:
                allocator.settled(self.streams, before)


class Lanes:
    """The lanes of one session on a device, as many as runs go on at once. `stream`: somebody else's, which
    all of them compute on."""

    def __init__(self, device: Device, allocator: Allocator | None = None, stream: Any = None,
                 together: bool = False) -> None:
        self.device, self.together, self._pid = device, together, os.getpid()
        self.allocator = Allocator.of(device) if allocator is None else allocator
        self._compute = None if stream is None else Stream(device, stream, foreign=True)
        self._idle: list[Lane] = []
        self._lock = lock()
        self._runs = 0

    def take(self) -> Lane:
        """A lane that no run uses. Raises Fail in a forked process."""
        self.check()
        with self._lock:
            self._runs += 1
            if self._compute is not None:
                self._compute.mark = None
            if self._idle:
                return self._idle.pop().woken()
        return answered(self.device, lambda: Lane(self.device, self.allocator, self._compute, self.together))

    def check(self) -> None:
        """Raise Fail in a process that was forked after this was made."""
        if self._pid != os.getpid():
            raise Fail(f"the device {self.device!r} was opened before this process was forked",
                       cure="start processes that use a device by multiprocessing's spawn")

    def give(self, lane: Lane, sound: bool = True) -> None:
        """Give back what `take` gave; `sound`: whether its streams are of further use."""
        with self._lock:
            self._runs -= 1
            if self._compute is not None and not self._runs and sound:
                self._compute.mark = Event(self._compute)
            if sound:
                self._idle.append(lane)


class running:
    """`with running(lanes):` lets this thread work on one lane of each. Behind it all that was asked for is
    done, unless `synchronize` is False. Raises then what went wrong, typed."""

    __slots__ = ("given", "synchronize", "taken", "before")

    def __init__(self, lanes: Sequence[Lanes], synchronize: bool = True) -> None:
        self.given, self.synchronize = lanes, synchronize

    def __enter__(self) -> None:
        self.taken = list[Lane]()
        try:
            for lanes in self.given:
                self.taken.append(lanes.take())
        except BaseException:
            self._give()
            raise
        self.before = swap_lanes({id(lane.device): lane for lane in self.taken})

    def __exit__(self, kind: Any, *_: Any) -> None:
        swap_lanes(self.before)
        try:
            for lane in self.taken if self.synchronize or kind is not None else ():
                lane.settle()
        except Exception:
            self._give(sound=False)
            if kind is None:
                raise
        else:
            self._give()

    def _give(self, sound: bool = True) -> None:
        for lanes, lane in zip(self.given, self.taken, strict=False):
            lanes.give(lane, sound)


def swap_lanes(lanes: dict[int, Lane]) -> dict[int, Lane]:
    """Let this thread work on `lanes`, by the ids of their devices; answers those before."""
    before: dict[int, Lane] = getattr(_thread, "lanes", {})
    _thread.lanes = lanes
    return before


def thread_lanes() -> dict[int, Lane]:
    """The lanes that this thread works on."""
    return getattr(_thread, "lanes", {})


def lane_of(device: Device) -> Lane:
    """The lane of a device that this thread works on: its run's, else one that all of the process share."""
    return thread_lanes().get(id(device)) or device.ordinary()


def working(device: Device) -> Stream:
    """The stream of a device that this thread works on."""
    stream = asked(device)
    if stream is None:
        lane: Lane | None = _thread.__dict__.get("lanes", _NONE).get(id(device))
        stream = (device.ordinary() if lane is None else lane).compute
    return stream
