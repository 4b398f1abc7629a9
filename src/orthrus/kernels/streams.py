"""Streams of devices, events on them, and what a thread uses of a device while it runs a program there.

In: the verbs of a `Device` that has streams. Out: objects that give back what they stand for with their last
reference. Streams are put in order among each other by events; the host waits only where it reads.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from ..errors import ALL, DeviceReset, Fail
from ..locks import lock

if TYPE_CHECKING:
    from .allocator import Allocator
    from .device import Device

_thread = threading.local()


class Stream:
    """A stream of `device`. One that is `foreign`, somebody else's `handle`, may be gone after the run that it
    was given for: what others need to know of it, they ask of the last event of that run, its `mark`."""

    __slots__ = ("device", "handle", "foreign", "mark", "pid", "__weakref__")

    def __init__(self, device: Device, handle: Any = None, foreign: bool = False) -> None:
        self.device, self.foreign, self.pid = device, foreign, os.getpid()
        self.mark: Event | None = None
        self.handle = handle if foreign else device.create_stream()

    def event(self) -> Event:
        """What is reached when all that was asked for until now is done."""
        return self.mark if self.mark is not None else Event(self)

    def after(self, event: Event) -> None:
        """Let what is asked for from now on wait for `event`; this thread waits where it is of another
        device."""
        if event.stream.device is not self.device:
            event.wait()
        elif event.stream is not self and event.handle is not None:
            self.device.wait(self.handle, event.handle)

    def synchronize(self) -> None:
        """Wait until all is done. Raises what went wrong in it, typed."""
        answered(self.device, lambda: self.device.synchronize(self.handle))

    def __del__(self) -> None:
        handle, self.handle = getattr(self, "handle", None), None
        if handle is not None and not self.foreign and self.pid == os.getpid():
            with contextlib.suppress(Exception):
                self.device.synchronize(handle)
                self.device.destroy_stream(handle)


class Event:
    """What `stream` has been asked for until this is made; all of it is done where the stream is no more."""

    __slots__ = ("stream", "handle")

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.handle = None if stream.handle is None else stream.device.record(stream.handle)

    def wait(self) -> None:
        """Let this thread wait. Raises what went wrong, typed."""
        device = self.stream.device
        if self.handle is not None:
            answered(device, lambda: device.wait_for(self.handle))

    def __del__(self) -> None:
        if getattr(self, "handle", None) is not None and self.stream.pid == os.getpid():
            with contextlib.suppress(Exception):
                self.stream.device.destroy_event(self.handle)


def answered(device: Device, ask: Callable[[], Any]) -> Any:
    """What `ask` gives. What a device refuses is Fail, DeviceReset where it is lost for this process."""
    try:
        return ask()
    except (*ALL, MemoryError):
        raise
    except Exception as error:
        raise refused(device, error) from error


def refused(device: Device, error: Exception) -> Exception:
    """The typed error for what a device's verb raised."""
    if getattr(error, "lost", False):
        return DeviceReset(f"the device {device!r} answers no more: {error}",
                           cure="start the process anew to use it again; other providers go on working")
    return Fail(f"the device {device!r} failed: {error}", found=type(error).__name__)


class Lane:
    """What one run at a time uses of a device: a stream to compute on, those to copy in and out on, and what
    memory is taken from. `together`: copies in are asked of the stream that computes."""

    __slots__ = ("device", "allocator", "compute", "incoming", "outgoing")

    def __init__(self, device: Device, allocator: Allocator, compute: Stream | None = None,
                 together: bool = False) -> None:
        self.device, self.allocator = device, allocator
        self.compute = Stream(device) if compute is None else compute
        self.incoming = self.compute if together else Stream(device)
        self.outgoing = Stream(device)

    @property
    def streams(self) -> list[Stream]:
        return [self.compute, self.incoming, self.outgoing]

    def settle(self) -> None:
        """Wait until all is done: memory that was given back is free for any stream from now on."""
        for stream in dict.fromkeys(self.streams):
            stream.synchronize()
        self.allocator.settled(self.streams)


class Lanes:
    """The lanes of one session on a device, as many as runs go on at once. `stream`: somebody else's, which
    all of them compute on."""

    def __init__(self, device: Device, allocator: Allocator | None = None, stream: Any = None,
                 together: bool = False) -> None:
        from .allocator import Allocator

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
                return self._idle.pop()
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


class on:
    """`with on(stream):` lets this thread ask that stream of its device."""

    __slots__ = ("stream", "before")

    def __init__(self, stream: Stream) -> None:
        self.stream = stream

    def __enter__(self) -> None:
        self.before = getattr(_thread, "streams", {})
        _thread.streams = {**self.before, id(self.stream.device): self.stream}

    def __exit__(self, *_: Any) -> None:
        _thread.streams = self.before


def lane_of(device: Device) -> Lane:
    """The lane of a device that this thread works on: its run's, else one that all of the process share."""
    return thread_lanes().get(id(device)) or device.ordinary()


def working(device: Device) -> Stream:
    """The stream of a device that this thread works on."""
    return getattr(_thread, "streams", {}).get(id(device)) or lane_of(device).compute
