"""Streams of devices, and events on them.

In: the verbs of a `Device` that has streams. Out: objects that give back what they stand for with their last
reference. Streams are put in order among each other by events; the host waits only where it reads.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..errors import ALL, DeviceReset, Fail

if TYPE_CHECKING:
    from .device import Device

_thread = threading.local()

numbers = itertools.count(1)
"""Of events, in the order in which they are made."""

_TYPED: tuple[type[Exception], ...] = (*ALL, MemoryError)
"""What a session raises as it is."""


class Stream:
    """A stream of `device`. One that is `foreign`, somebody else's `handle`, may be gone after the run that
    it was given for: what others need to know of it, they ask of the last event of that run, its `mark`.
    `busy`: whether it was asked for something besides kernels since it was waited for; `quiet`: whether all
    that it was ever asked for is done, as it is between the runs of a lane."""

    __slots__ = ("device", "handle", "foreign", "mark", "busy", "quiet", "pid", "__weakref__")

    def __init__(self, device: Device, handle: Any = None, foreign: bool = False) -> None:
        self.device, self.foreign, self.pid = device, foreign, os.getpid()
        self.mark: Event | None = None
        self.busy = self.quiet = False
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
        self.busy = False
        try:
            self.device.synchronize(self.handle)
        except _TYPED:
            raise
        except Exception as error:
            raise refused(self.device, error) from error

    def __del__(self) -> None:
        handle, self.handle = getattr(self, "handle", None), None
        if handle is not None and not self.foreign and self.pid == os.getpid():
            with contextlib.suppress(Exception):
                self.device.synchronize(handle)
                self.device.destroy_stream(handle)


class Event:
    """What `stream` has been asked for until this is made; all of it is done where the stream is no more, or
    quiet. `number`: those of events that were made earlier are lower."""

    __slots__ = ("stream", "handle", "number")

    def __init__(self, stream: Stream) -> None:
        self.stream = stream
        self.handle = None if stream.handle is None or stream.quiet else stream.device.record(stream.handle)
        self.number = next(numbers)

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
    except _TYPED:
        raise
    except Exception as error:
        raise refused(device, error) from error


def refused(device: Device, error: Exception) -> Exception:
    """The typed error for what a device's verb raised."""
    if getattr(error, "lost", False):
        return DeviceReset(f"the device {device!r} answers no more: {error}",
                           cure="start the process anew to use it again; other providers go on working")
    return Fail(f"the device {device!r} failed: {error}", found=type(error).__name__)


class on:
    """`with on(stream):` lets this thread ask that stream of its device."""

    __slots__ = ("stream", "before")

    def __init__(self, stream: Stream) -> None:
        self.stream = stream

    def __enter__(self) -> None:
        self.before = getattr(_thread, "streams", {})
        self.stream.busy = True
        _thread.streams = {**self.before, id(self.stream.device): self.stream}

    def __exit__(self, *_: Any) -> None:
        _thread.streams = self.before


def asked(device: Device) -> Stream | None:
    """The stream of a device that this thread was told to ask, where it was."""
    streams: dict[int, Stream] | None = getattr(_thread, "streams", None)
    return streams.get(id(device)) if streams else None
