"""A GPU as this process sees it: its memory, streams, kernels and graphs.

In: a `Driver` and a device's index. Out: a `Device` with streams whose handles are addresses, so that
`handle + offset` is one too. What a driver refuses is raised as it is, but for memory that there is none of,
a MemoryError, and code that does not load, an EPFail.
"""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import numpy as np

from ...errors import EPFail, InvalidArgument
from ...kernels import Device, DeviceArray, Stream
from ...kernels.streams import on
from ...locks import lock
from .driver import Driver, DriverError

VENDORS = {"CUDA": 0x10DE, "HIP": 0x1002}
"""Numbers of the PCI's registry, by the driver's name."""


class GpuDevice(Device):
    """One GPU. `driver`: what it answers to; `properties`: see there; `target`: what kernels are compiled
    for. Raises InvalidArgument for an index there is no device of, and EPFail."""

    kind, streams = 1, True

    def __init__(self, driver: Driver, index: int = 0) -> None:
        self.driver, self.index = driver, index
        self.name, self.vendor = "cuda" if driver.name == "CUDA" else "gpu", VENDORS[driver.name]
        try:
            count = driver.count()
            if not 0 <= index < count:
                raise InvalidArgument(f"Invalid device ID: {index}, must be between 0 (inclusive) and "
                                      f"{count} (exclusive)", cure="name a device there is by device_id")
            self.properties = driver.properties(index)
        except DriverError as error:
            raise EPFail(f"{self!r} cannot be used: {error}") from error
        self.target = self.properties.target
        self._modules: dict[bytes, int] = {}
        self._functions: dict[tuple[bytes, str, int], int] = {}
        self._events: list[int] = []
        self._capturing = threading.local()
        self._lock = lock()

    def allocate(self, size: int) -> int:
        """The address of new memory, a multiple of 256."""
        return self._given(self.driver.allocate, size)

    def allocate_host(self, size: int) -> int:
        """0 where no more can be pinned."""
        try:
            return self._given(self.driver.allocate_host, size)
        except MemoryError:
            return 0

    def _given(self, allocate: Any, size: int) -> int:
        try:
            address: int = allocate(self.index, size)
            return address
        except DriverError as error:
            if error.out_of_memory:
                raise MemoryError(f"{size} bytes of {self!r}: {error}") from error
            raise

    def free(self, handle: int) -> None:
        self.driver.free(self.index, handle)

    def free_host(self, address: int) -> None:
        self.driver.free_host(self.index, address)

    def copy_in(self, array: np.ndarray, handle: int) -> None:
        self.driver.copy(self.index, handle, array.ctypes.data, array.nbytes, self.stream)

    def copy_out(self, handle: int, array: np.ndarray) -> None:
        self.driver.copy(self.index, array.ctypes.data, handle, array.nbytes, self.stream)

    def copy_across(self, source: DeviceArray, handle: int) -> bool:
        """Between devices of one driver, without the host."""
        other = source.device
        if not isinstance(other, GpuDevice) or other.driver is not self.driver:
            return False
        self.driver.copy(self.index, handle, source.handle, source.nbytes, self.stream)
        return True

    def clear(self, address: int, size: int) -> None:
        self.driver.fill(self.index, address, 0, size, self.stream)

    def create_stream(self) -> int:
        return self.driver.create_stream(self.index)

    def destroy_stream(self, stream: int) -> None:
        self.driver.destroy_stream(self.index, stream)

    def synchronize(self, stream: int) -> None:
        self.driver.synchronize(self.index, stream)

    def record(self, stream: int) -> int:
        try:
            event = self._events.pop()
        except IndexError:
            event = self.driver.create_event(self.index)
        self.driver.record(self.index, event, stream)
        return event

    def wait(self, stream: int, event: int) -> None:
        self.driver.wait(self.index, stream, event)

    def wait_for(self, event: int) -> None:
        self.driver.wait_for(self.index, event)

    def destroy_event(self, event: int) -> None:
        """It is used again: who waits for it knows already how far its stream has to come."""
        self._events.append(event)

    def function(self, code: bytes, name: str, shared: int = 0) -> int:
        """Raises EPFail for code that is not for this device."""
        key = code, name, shared
        with self._lock:
            if key not in self._functions:
                try:
                    if code not in self._modules:
                        self._modules[code] = self.driver.load(self.index, code)
                    self._functions[key] = self.driver.function(self.index, self._modules[code], name, shared)
                except DriverError as error:
                    raise EPFail(f"{self!r} does not load the kernel {name}: {error}", found=(
                        f"{len(code)} bytes of code, {shared} bytes of shared memory"),
                        expected=f"code for {self.target}") from error
            return self._functions[key]

    def launch(self, function: int, blocks: int, threads: int, shared: int, arguments: bytes) -> None:
        self.driver.launch(self.index, function, blocks, threads, shared, self.stream, arguments)

    def begin_capture(self) -> None:
        """On a stream of its own, so that nobody else's work or events come into the graph."""
        stream = Stream(self)
        self._capturing.now = capturing = on(stream), stream
        self.driver.begin_capture(self.index, stream.handle)
        capturing[0].__enter__()

    def end_capture(self) -> int:
        capturing, stream = self._capturing.now
        capturing.__exit__()
        try:
            return self.driver.end_capture(self.index, stream.handle)
        finally:
            del self._capturing.now

    def drop_capture(self) -> None:
        with contextlib.suppress(DriverError):
            super().drop_capture()

    def replay(self, graph: int) -> None:
        self.driver.launch_graph(self.index, graph, self.stream)

    def destroy_graph(self, graph: int) -> None:
        self.driver.destroy_graph(self.index, graph)


_shared: dict[tuple[Driver, int], GpuDevice] = {}
_lock = lock()


def shared(driver: Driver, index: int) -> GpuDevice:
    """The device that all in this process share. Raises as the class."""
    with _lock:
        if (driver, index) not in _shared:
            _shared[driver, index] = GpuDevice(driver, index)
        return _shared[driver, index]
