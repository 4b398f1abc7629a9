"""Copies between the host's memory and those of devices.

In: an array, and where its elements are to be. Out: a new array there, or an array there written over. A copy
is asked of streams of its own where the device has some, in order with what makes the elements and what reads
them; the host waits only for elements that it gets, when they are `landed`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

import numpy as np

from ..errors import InvalidArgument
from ..limits import bounded
from .device import HOST, Device, DeviceArray
from .lanes import lane_of, working
from .streams import Event, Stream, answered, on

STAGED = 1 << 26
"""Bytes up to which an array of the host is copied to pinned memory first, so that nobody waits for it."""


class Landing:
    """An array of the host that a device fills: whole once `event` is reached, and not let go of before."""

    __slots__ = ("_array", "_event")

    def __init__(self, array: np.ndarray, event: Event) -> None:
        self._array, self._event = array, event

    def landed(self) -> np.ndarray:
        """The array, whole. Raises what went wrong in between, typed."""
        self._event.wait()
        memory: Any = self._array
        while isinstance(memory, np.ndarray):
            memory = memory.base
        if isinstance(memory, _Pinned):
            memory.users = ()
        return self._array

    def __del__(self) -> None:
        if self._array.base is None:
            with contextlib.suppress(Exception):
                self._event.wait()


def copied(value: Any, target: Device) -> Any:
    """A new array on `target` with the elements of `value`, an array of whatever device; None is None. Raises
    InvalidArgument for anything else, MemoryError, and Fail where it is over the limits."""
    return landed(begun(value, target))


def begun(value: Any, target: Device) -> Any:
    """As `copied`, but perhaps a `Landing` where the target is the host."""
    if value is None:
        return None
    if not isinstance(value, DeviceArray | np.ndarray) or value.dtype.hasobject:
        raise InvalidArgument(f"only tensors of numbers can be copied to {target!r}",
                              found=type(value).__name__, cure="claim no node that reads or gives such")
    if target is not HOST:
        made = _room(value, target)
        fill(made, value)
        return made
    dims = bounded(value.shape, value.dtype)
    if isinstance(value, DeviceArray):
        return _out(value, dims)
    array = np.empty(dims, value.dtype)
    array[...] = value
    return array


def _room(value: Any, target: Device) -> DeviceArray:
    """A new array like `value`, for the stream that is going to copy it."""
    if not target.streams:
        return target.array(value.shape, value.dtype)
    with on(_into(value, target)):
        return target.array(value.shape, value.dtype)


def _into(value: Any, target: Device) -> Stream:
    """The stream that copies `value` to a device: what the device made itself comes on that which made it."""
    lane = lane_of(target)
    return lane.compute if isinstance(value, DeviceArray) and value.device is target else lane.incoming


def ordered(stream: Stream, reads: Iterable[Any], writes: Iterable[Any] = ()) -> None:
    """Let what `stream` is asked for from now on come after all that makes the arrays of devices among
    `reads` and touches those among `writes`."""
    for each in reads:
        if type(each) is DeviceArray:
            each.memory.reading(stream)
    for each in writes:
        if type(each) is DeviceArray:
            each.memory.writing(stream)


def finished(arrays: Iterable[Any]) -> None:
    """Wait for the elements of those of `arrays` that lie on devices. Raises what went wrong, typed."""
    for each in arrays:
        if type(each) is DeviceArray:
            each.memory.wait()


def pinned_zeros(shape: tuple[int, ...], dtype: np.dtype[Any], device: Device) -> np.ndarray:
    """An array of zeros in memory of the host that `device` copies from and to by itself, where there is
    such."""
    array = _host_array(shape, dtype, device, working(device)) if device.streams else np.empty(shape, dtype)
    array[...] = 0
    return array


def landed(value: Any) -> Any:
    """What `begun` gave, whole."""
    return value.landed() if isinstance(value, Landing) else value


def fill(array: DeviceArray, value: np.ndarray | DeviceArray) -> None:
    """Write the elements of `value`, of the same type and as many, over those of `array`."""
    if isinstance(value, DeviceArray):
        if _across(value, array):
            return
        value = copied(value, HOST)
    device, value = array.device, np.ascontiguousarray(value)
    if not device.streams:
        device.copy_in(value, array.handle)
        return
    stream = _into(value, device)
    staged = _staged(value, device, stream)
    array.memory.writing(stream)
    with on(stream):
        answered(device, lambda: device.copy_in(value if staged is None else staged, array.handle))
    event = stream.event()
    array.memory.written(event)
    if staged is None:
        event.wait()


def _across(value: DeviceArray, array: DeviceArray) -> bool:
    device = array.device
    if not device.streams:
        return device.copy_across(value, array.handle)
    stream = _into(value, device)
    value.memory.reading(stream)
    array.memory.writing(stream)
    with on(stream):
        done: bool = answered(device, lambda: device.copy_across(value, array.handle))
    if done:
        array.memory.written(stream.event())
    return done


def _out(value: DeviceArray, shape: tuple[int, ...]) -> Any:
    device = value.device
    if not device.streams:
        array = np.empty(shape, value.dtype)
        device.copy_out(value.handle, array)
        return array
    stream = lane_of(device).outgoing
    array = _host_array(shape, value.dtype, device, stream)
    value.memory.reading(stream)
    with on(stream):
        answered(device, lambda: device.copy_out(value.handle, array))
    return Landing(array, stream.event())


class _Pinned:
    """Pinned memory that an array looks at, given back with it. `users`: the streams that may touch it."""

    def __init__(self, device: Device, size: int, stream: Stream) -> None:
        allocator = device.pinned()
        if allocator is None:
            raise MemoryError
        self.users: tuple[Stream, ...] = (stream,)
        self.address = allocator.allocate(size)
        self.allocator = allocator
        self.__array_interface__ = {"data": (self.address, False), "shape": (size,), "typestr": "|u1",
                                    "version": 3}

    def __del__(self) -> None:
        if hasattr(self, "allocator"):
            self.allocator.free(self.address, self.users)


def _host_array(shape: tuple[int, ...], dtype: np.dtype[Any], device: Device, stream: Stream) -> np.ndarray:
    """A new array of the host, pinned where that can be, which `stream` will touch."""
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    try:
        pinned = _Pinned(device, size, stream) if 0 < size <= STAGED else None
    except MemoryError:
        pinned = None
    if pinned is None:
        return np.empty(shape, dtype)
    return np.asarray(pinned).view(dtype).reshape(shape)


def _staged(value: np.ndarray, device: Device, stream: Stream) -> np.ndarray | None:
    """A copy in pinned memory; None where there is none for it."""
    array = _host_array(value.shape, value.dtype, device, stream)
    if array.base is None:
        return None
    array[...] = value
    return array
