"""A GPU as this process sees it: its memory, the stream its work is done on, kernels and graphs of them.

In: a `Driver` and a device's index. Out: a `Device` whose handles are addresses, so that `handle + offset`
is one too. All work is asked for on one stream and so done in order; copies may have a stream of their own,
which waits for that one and is waited for. What a driver refuses becomes MemoryError or EPFail.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import weakref
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from typing import Any

import numpy as np

from ...errors import EPFail, InvalidArgument
from ...kernels import Device, DeviceArray
from ...locks import lock
from .driver import Driver, DriverError
from .memory import Allocator, Direct

VENDORS = {"CUDA": 0x10DE, "HIP": 0x1002}
"""Numbers of the PCI's registry, by the driver's name."""

_CHUNKS = {1 << 16: 16, 1 << 22: 4}
"""Bytes of a chunk of pinned memory, and how many of them there are before one is waited for."""


def refused(error: DriverError, device: object) -> Exception:
    """What the session raises for a driver's error."""
    if error.out_of_memory:
        return MemoryError(f"{device!r} has no more memory: {error}")
    cure = "end this process: the driver answers nothing more in it" if error.lost else None
    return EPFail(f"{device!r} failed: {error}", cure=cure)


@contextlib.contextmanager
def typed(device: object) -> Iterator[None]:
    """A driver's errors in the block become the session's."""
    try:
        yield
    except DriverError as error:
        raise refused(error, device) from error


class _Chunk:
    """Pinned memory for one copy at a time: the one its event stands behind."""

    def __init__(self, driver: Driver, index: int, size: int) -> None:
        self.address, self.event = driver.allocate_host(index, size), driver.create_event(index)
        self.bytes = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(self.address))


class Staging:
    """Pinned memory between the host's arrays and a device: a copy goes on while the next chunk is filled."""

    def __init__(self, driver: Driver, index: int) -> None:
        self.driver, self.index = driver, index
        self._idle: dict[int, deque[_Chunk]] = {size: deque() for size in _CHUNKS}
        self._made = dict.fromkeys(_CHUNKS, 0)
        self._lock = lock()

    def _take(self, size: int) -> _Chunk:
        """A chunk for `size` bytes or fewer, whose last copy is done."""
        small, large = _CHUNKS
        kind = small if size <= small else large
        with self._lock:
            idle = self._idle[kind]
            full = self._made[kind] >= _CHUNKS[kind]
            if not idle or not (full or self.driver.reached(self.index, idle[0].event)):
                self._made[kind] += 1
                chunk = None
            else:
                chunk = idle.popleft()
        if chunk is None:
            return _Chunk(self.driver, self.index, kind)
        self.driver.wait_for(self.index, chunk.event)
        return chunk

    def _give(self, chunk: _Chunk) -> None:
        with self._lock:
            self._idle[len(chunk.bytes)].append(chunk)

    def write(self, array: np.ndarray, address: int, stream: int) -> None:
        """Copy `array`, in C order, to the device; it may change as soon as this returns."""
        source, most = array.reshape(-1).view(np.uint8), max(_CHUNKS)
        for begin in range(0, len(source), most):
            piece = source[begin:begin + most]
            chunk = self._take(len(piece))
            chunk.bytes[:len(piece)] = piece
            self.driver.copy(self.index, address + begin, chunk.address, len(piece), stream)
            self.driver.record(self.index, chunk.event, stream)
            self._give(chunk)

    def read(self, address: int, array: np.ndarray, stream: int) -> None:
        """Fill `array`, in C order, from the device; waits for the stream."""
        target, most = array.reshape(-1).view(np.uint8), max(_CHUNKS)
        under_way = deque[tuple[int, int, _Chunk]]()
        for begin in range(0, len(target), most):
            size = min(most, len(target) - begin)
            chunk = self._take(size)
            self.driver.copy(self.index, chunk.address, address + begin, size, stream)
            self.driver.record(self.index, chunk.event, stream)
            under_way.append((begin, size, chunk))
            if len(under_way) > 1:
                self._arrived(target, *under_way.popleft())
        while under_way:
            self._arrived(target, *under_way.popleft())

    def _arrived(self, target: np.ndarray, begin: int, size: int, chunk: _Chunk) -> None:
        self.driver.wait_for(self.index, chunk.event)
        target[begin:begin + size] = chunk.bytes[:size]
        self._give(chunk)


class Graph:
    """Kernels and copies that are asked for as one; given back with its last reference."""

    def __init__(self, device: GpuDevice, number: int) -> None:
        self.device, self.number = device, number

    def launch(self) -> None:
        """Do all of it, behind what the device was asked for before."""
        driver, index = self.device.driver, self.device.index
        try:
            driver.launch_graph(index, self.number, self.device.stream)
        except DriverError as error:
            raise refused(error, self.device) from error

    def __del__(self) -> None:
        with contextlib.suppress(DriverError):
            self.device.driver.destroy_graph(self.device.index, self.number)


class GpuDevice(Device):
    """One GPU. `driver`: what it answers to; `target`: what kernels are compiled for; `stream`: where its
    work is done; `properties`: see there.

    `copies_apart`: copies have a stream of their own. `memory`: where `allocate` takes from, the driver
    itself where it is None. Raises InvalidArgument for an index there is no device of, and EPFail.
    """

    kind = 1

    def __init__(self, driver: Driver, index: int = 0, memory: Allocator | None = None,
                 copies_apart: bool = False) -> None:
        self.driver, self.index = driver, index
        self.name, self.vendor = "cuda" if driver.name == "CUDA" else "gpu", VENDORS[driver.name]
        with typed(self):
            count = driver.count()
            if not 0 <= index < count:
                raise InvalidArgument(f"Invalid device ID: {index}, must be between 0 (inclusive) and "
                                      f"{count} (exclusive)", cure="name a device there is by device_id")
            self.properties = driver.properties(index)
            self.memory = memory or Direct(driver, index)
            self.stream = driver.create_stream(index)
            self.copies = driver.create_stream(index) if copies_apart else self.stream
        self.target = self.properties.target
        self.staging = Staging(driver, index)
        self._modules: dict[bytes, int] = {}
        self._functions: dict[tuple[bytes, str, int], int] = {}
        self._events: dict[int, int] = {}
        self._lock = lock()
        _all.add(self)

    def allocate(self, size: int) -> int:
        """The address of new memory, a multiple of 256."""
        with typed(self):
            return self.memory.allocate(size)

    def free(self, handle: int) -> None:
        """Work that was asked for before may still use it; work asked for later may get it."""
        with contextlib.suppress(DriverError):
            self.memory.free(handle)

    def copy_in(self, array: np.ndarray, handle: int) -> None:
        with typed(self):
            self._follow(self.copies, self.stream)
            self.staging.write(array, handle, self.copies)
            self._follow(self.stream, self.copies)

    def copy_out(self, handle: int, array: np.ndarray) -> None:
        with typed(self):
            self._follow(self.copies, self.stream)
            self.staging.read(handle, array, self.copies)

    def copy_across(self, source: DeviceArray, handle: int) -> bool:
        """Between devices of one driver, without the host."""
        other = source.device
        if not isinstance(other, GpuDevice) or other.driver is not self.driver:
            return False
        with typed(self):
            if other is not self:
                self.after(other)
            self.driver.copy(self.index, handle, source.handle, source.nbytes, self.stream)
            if other is not self:
                other.after(self)
        return True

    def move(self, to: int, source: int, size: int, stream: int | None = None) -> None:
        """Copy bytes between addresses of this device."""
        with typed(self):
            self.driver.copy(self.index, to, source, size, self.stream if stream is None else stream)

    def clear(self, to: int, size: int, byte: int = 0, stream: int | None = None) -> None:
        """Set bytes of this device."""
        with typed(self):
            self.driver.fill(self.index, to, byte, size, self.stream if stream is None else stream)

    def function(self, code: bytes, name: str, shared: int = 0) -> int:
        """A kernel of a code object, which is loaded once. `shared`: bytes of shared memory it is going to be
        launched with. Raises EPFail for code that is not for this device."""
        key = code, name, shared
        with self._lock, typed(self):
            if key not in self._functions:
                if code not in self._modules:
                    self._modules[code] = self.driver.load(self.index, code)
                self._functions[key] = self.driver.function(self.index, self._modules[code], name, shared)
            return self._functions[key]

    def launch(self, function: int, blocks: int, threads: int, shared: int, arguments: bytes,
               stream: int | None = None) -> None:
        """Start a kernel; see `Driver.launch`."""
        try:
            self.driver.launch(self.index, function, blocks, threads, shared,
                               self.stream if stream is None else stream, arguments)
        except DriverError as error:
            raise refused(error, self) from error

    def captured(self, work: Callable[[int], None]) -> Graph:
        """A graph of what `work(stream)` asks that stream for, none of which is done. Raises what `work`
        raises, and EPFail."""
        driver, index = self.driver, self.index
        with typed(self):
            stream = driver.create_stream(index)
            try:
                driver.begin_capture(index, stream)
                try:
                    work(stream)
                except BaseException:
                    with contextlib.suppress(DriverError):
                        driver.destroy_graph(index, driver.end_capture(index, stream))
                    raise
                return Graph(self, driver.end_capture(index, stream))
            finally:
                driver.destroy_stream(index, stream)

    def synchronize(self) -> None:
        """Wait until all that was asked for is done; what kernels did wrong comes out here."""
        with typed(self):
            self.driver.synchronize(self.index, self.stream)

    def after(self, other: GpuDevice) -> None:
        """What is asked for from now on waits for what `other` has been asked for."""
        with typed(self):
            event = other._event(other.stream)
            other.driver.record(other.index, event, other.stream)
            self.driver.wait(self.index, self.stream, event)

    def join(self, stream: int) -> None:
        """What is asked for from now on waits for a stream of somebody else's."""
        with typed(self):
            self._follow(self.stream, stream)

    def rejoin(self, stream: int) -> None:
        """A stream of somebody else's waits for what was asked for until now."""
        with typed(self):
            self._follow(stream, self.stream)

    def _follow(self, later: int, earlier: int) -> None:
        """What the stream `later` is asked for from now on waits for `earlier`."""
        if later != earlier:
            event = self._event(earlier)
            self.driver.record(self.index, event, earlier)
            self.driver.wait(self.index, later, event)

    def _event(self, stream: int) -> int:
        """The event that marks how far a stream was asked. Threads share it: one may then wait for what
        another asked for since."""
        with self._lock:
            if stream not in self._events:
                self._events[stream] = self.driver.create_event(self.index)
            return self._events[stream]


_all: weakref.WeakSet[GpuDevice] = weakref.WeakSet()
_shared: dict[Hashable, GpuDevice] = {}
_lock = lock()


def shared(driver: Driver, index: int, key: Hashable = (), **given: Any) -> GpuDevice:
    """The device that all in this process share who ask for this driver, index and `key`; `given` to its
    maker, for the first."""
    with _lock:
        found = driver, index, key
        if found not in _shared:
            _shared[found] = GpuDevice(driver, index, **given)
        return _shared[found]


class _Parents:
    """What the driver of a device is in a forked process: it belongs to the parent."""

    def __init__(self, name: str) -> None:
        self.name, self.parent = name, os.getppid()

    def __getattr__(self, verb: str) -> Any:
        raise EPFail(
            f"process {os.getpid()} is forked from {self.parent}, whose {self.name} devices it cannot use",
            cure="start processes by multiprocessing's spawn or forkserver, or make sessions in them only")

    def destroy_graph(self, *_: int) -> None:
        """It is the parent's."""


def _in_child() -> None:
    for device in list(_all):
        parents: Any = _Parents(device.driver.name)
        device.driver = device.staging.driver = parents
        device.memory = Direct(parents, device.index)
    _shared.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
