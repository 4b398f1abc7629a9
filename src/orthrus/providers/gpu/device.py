"""A GPU as this process sees it: its memory, streams, kernels and graphs.

In: a `Driver` and a device's index. Out: a `Device` with streams whose handles are addresses, so that
`handle + offset` is one too. What a driver refuses is a MemoryError where memory is short, an EPFail where
code does not load, DeviceReset where the device is lost to this process, else Fail.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from ...errors import DeviceReset, EPFail, Fail, InvalidArgument
from ...kernels import Device, DeviceArray, Stream
from ...kernels.streams import on, refused
from ...locks import lock
from .driver import Driver, DriverError

VENDORS = {"CUDA": 0x10DE, "HIP": 0x1002}
"""Numbers of the PCI's registry, by the driver's name."""


class _Asked:
    """The verbs of a driver, with a session's errors in the place of the driver's."""

    def __init__(self, driver: Driver, device: Device) -> None:
        self.driver, self.device = driver, device

    def __getattr__(self, verb: str) -> Any:
        ask, device = getattr(self.driver, verb), self.device

        def asked(*given: Any) -> Any:
            try:
                return ask(*given)
            except DriverError as error:
                if error.out_of_memory:
                    raise MemoryError(f"{device!r}: {error}") from error
                raise refused(device, error) from error
        setattr(self, verb, asked)
        return asked


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
        self._ask = _Asked(driver, self)
        self._modules: dict[bytes, int] = {}
        self._functions: dict[tuple[bytes, str, int], int] = {}
        self._events: list[int] = []
        self._capturing = threading.local()
        self._lock = lock()

    def allocate(self, size: int) -> int:
        """The address of new memory, a multiple of 256."""
        address: int = self._ask.allocate(self.index, size)
        return address

    def allocate_host(self, size: int) -> int:
        """0 where no more can be pinned."""
        try:
            address: int = self._ask.allocate_host(self.index, size)
            return address
        except MemoryError:
            return 0

    def free(self, handle: int) -> None:
        self._ask.free(self.index, handle)

    def free_host(self, address: int) -> None:
        self._ask.free_host(self.index, address)

    def copy_in(self, array: np.ndarray, handle: int) -> None:
        self._ask.copy(self.index, handle, array.ctypes.data, array.nbytes, self.stream)

    def copy_out(self, handle: int, array: np.ndarray) -> None:
        self._ask.copy(self.index, array.ctypes.data, handle, array.nbytes, self.stream)

    def copy_across(self, source: DeviceArray, handle: int) -> bool:
        """Between devices of one driver, without the host."""
        other = source.device
        if not isinstance(other, GpuDevice) or other.driver is not self.driver:
            return False
        self._ask.copy(self.index, handle, source.handle, source.nbytes, self.stream)
        return True

    def clear(self, address: int, size: int) -> None:
        self._ask.fill(self.index, address, 0, size, self.stream)

    def create_stream(self) -> int:
        stream: int = self._ask.create_stream(self.index)
        return stream

    def destroy_stream(self, stream: int) -> None:
        self._ask.destroy_stream(self.index, stream)

    def synchronize(self, stream: int) -> None:
        self._ask.synchronize(self.index, stream)

    def record(self, stream: int) -> int:
        try:
            event: int = self._events.pop()
        except IndexError:
            event = self._ask.create_event(self.index)
        self._ask.record(self.index, event, stream)
        return event

    def wait(self, stream: int, event: int) -> None:
        self._ask.wait(self.index, stream, event)

    def wait_for(self, event: int) -> None:
        self._ask.wait_for(self.index, event)

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
        self._ask.launch(self.index, function, blocks, threads, shared, self.stream, arguments)

    def timed(self, work: Callable[[], object]) -> float:
        """By events on the stream."""
        ask, index = self._ask, self.index
        events = [ask.create_event(index, True) for _ in range(2)]
        try:
            ask.synchronize(index, self.stream)
            ask.record(index, events[0], self.stream)
            work()
            ask.record(index, events[1], self.stream)
            ask.wait_for(index, events[1])
            spent: float = ask.elapsed(index, *events)
            return spent
        finally:
            for event in events:
                ask.destroy_event(index, event)

    def begin_capture(self) -> None:
        """On a stream of its own, so that nobody else's work or events come into the graph."""
        stream = Stream(self)
        self._capturing.now = capturing = on(stream), stream
        self._ask.begin_capture(self.index, stream.handle)
        capturing[0].__enter__()

    def end_capture(self) -> int:
        capturing, stream = self._capturing.now
        capturing.__exit__()
        try:
            graph: int = self._ask.end_capture(self.index, stream.handle)
            return graph
        finally:
            del self._capturing.now

    def drop_capture(self) -> None:
        with contextlib.suppress(Fail, DeviceReset):
            super().drop_capture()

    def replay(self, graph: int) -> None:
        self._ask.launch_graph(self.index, graph, self.stream)

    def destroy_graph(self, graph: int) -> None:
        self._ask.destroy_graph(self.index, graph)


_shared: dict[tuple[Driver, int], GpuDevice] = {}
_lock = lock()


def shared(driver: Driver, index: int) -> GpuDevice:
    """The device that all in this process share. Raises as the class."""
    with _lock:
        if (driver, index) not in _shared:
            _shared[driver, index] = GpuDevice(driver, index)
        return _shared[driver, index]
