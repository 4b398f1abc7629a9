"""A driver whose devices do as little as they may: nothing is done before somebody waits for it, and then
nothing but what that needs. Work that was not ordered is done in the wrong order, or not at all.

Memory is the host's. A module's code is the name under which `kernels` has a function of the arguments'
bytes.
"""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from orthrus.providers.gpu.driver import DriverError, Properties

POISON = 0xCD


@dataclass
class _Stream:
    work: list[Callable[[], None]] = field(default_factory=list)
    done: int = 0
    recording: list[Callable[[], None]] | None = None


class LazyDriver:
    """`kernels`: functions by name. `most`: bytes of memory of each device. `counts`: calls by verb.
    `lost`: whether a kernel failed; everything is refused from then on."""

    name = "HIP"

    def __init__(self, devices: int = 2, most: int = 1 << 28, target: str = "gfx1100") -> None:
        self.devices, self.most, self.target = devices, most, target
        self.kernels: dict[str, Callable[[bytes], None]] = {}
        self.counts = Counter[str]()
        self.memory: dict[int, tuple[Any, int]] = {}
        self.pinned: dict[int, Any] = {}
        self.streams: dict[int, _Stream] = {0: _Stream()}
        self.events: dict[int, tuple[int, int] | None] = {}
        self.graphs: dict[int, list[Callable[[], None]]] = {}
        self.functions: dict[int, str] = {}
        self.modules: dict[int, str] = {}
        self.lost = False
        self._numbers = itertools.count(1)
        self._lock = threading.RLock()

    def _called(self, verb: str) -> None:
        self.counts[verb] += 1
        if self.lost:
            raise DriverError(verb, 719, "launch failure", lost=True)

    def count(self) -> int:
        return self.devices

    def properties(self, index: int) -> Properties:
        return Properties(f"lazy {index}", self.target, self.most, 4, 1 << 16, 32)

    def memory_info(self, index: int) -> tuple[int, int]:
        held = sum(size for _, size in self.memory.values())
        return self.most - held, self.most

    def allocate(self, index: int, size: int) -> int:
        self._called("allocate")
        if self.memory_info(index)[0] < size:
            raise DriverError("allocate", 2, "out of memory", out_of_memory=True)
        room = (ctypes.c_uint8 * (size + 256))()
        ctypes.memset(room, POISON, size + 256)
        address = -(-ctypes.addressof(room) // 256) * 256
        self.memory[address] = room, size
        return address

    def free(self, index: int, address: int) -> None:
        self._called("free")
        self._wait_all()
        del self.memory[address]

    def allocate_host(self, index: int, size: int) -> int:
        self._called("allocate_host")
        room = (ctypes.c_uint8 * size)()
        self.pinned[ctypes.addressof(room)] = room
        return ctypes.addressof(room)

    def free_host(self, index: int, address: int) -> None:
        del self.pinned[address]

    def create_stream(self, index: int) -> int:
        with self._lock:
            number = next(self._numbers)
            self.streams[number] = _Stream()
            return number

    def destroy_stream(self, index: int, stream: int) -> None:
        with self._lock:
            self._until(stream, len(self.streams[stream].work))
            del self.streams[stream]

    def synchronize(self, index: int, stream: int) -> None:
        self._called("synchronize")
        with self._lock:
            self._until(stream, len(self.streams[stream].work))

    def create_event(self, index: int, timed: bool = False) -> int:
        with self._lock:
            number = next(self._numbers)
            self.events[number] = None
            return number

    def destroy_event(self, index: int, event: int) -> None:
        del self.events[event]

    def record(self, index: int, event: int, stream: int) -> None:
        self._called("record")
        with self._lock:
            if self.streams[stream].recording is None:
                self.events[event] = stream, len(self.streams[stream].work)

    def wait(self, index: int, stream: int, event: int) -> None:
        self._called("wait")
        with self._lock:
            where = self.events[event]
            if where is not None:
                self._ask(stream, lambda: self._until(*where))

    def wait_for(self, index: int, event: int) -> None:
        self._called("wait_for")
        with self._lock:
            where = self.events[event]
            if where is not None:
                self._until(*where)

    def reached(self, index: int, event: int) -> bool:
        with self._lock:
            where = self.events[event]
            return where is None or where[0] not in self.streams or self.streams[where[0]].done >= where[1]

    def elapsed(self, index: int, start: int, end: int) -> float:
        return 1.0

    def copy(self, index: int, to: int, source: int, size: int, stream: int) -> None:
        self._called("copy")
        self._ask(stream, lambda: ctypes.memmove(to, source, size) and None)

    def fill(self, index: int, to: int, byte: int, size: int, stream: int) -> None:
        self._called("fill")
        self._ask(stream, lambda: ctypes.memset(to, byte, size) and None)

    def load(self, index: int, code: bytes) -> int:
        self._called("load")
        if code.decode() not in self.kernels:
            raise DriverError("load", 209, "no binary for this GPU")
        number = next(self._numbers)
        self.modules[number] = code.decode()
        return number

    def unload(self, index: int, module: int) -> None:
        del self.modules[module]

    def function(self, index: int, module: int, name: str, shared: int) -> int:
        self._called("function")
        number = next(self._numbers)
        self.functions[number] = self.modules[module]
        return number

    def launch(self, index: int, function: int, blocks: int, threads: int, shared: int, stream: int,
               arguments: bytes) -> None:
        self._called("launch")
        kernel = self.kernels[self.functions[function]]

        def run() -> None:
            try:
                kernel(arguments)
            except ArithmeticError:
                self.lost = True
        self._ask(stream, run)

    def begin_capture(self, index: int, stream: int) -> None:
        self.streams[stream].recording = []

    def end_capture(self, index: int, stream: int) -> int:
        recorded, self.streams[stream].recording = self.streams[stream].recording, None
        assert recorded is not None
        number = next(self._numbers)
        self.graphs[number] = recorded
        return number

    def launch_graph(self, index: int, graph: int, stream: int) -> None:
        self._called("launch_graph")
        for work in self.graphs[graph]:
            self._ask(stream, work)

    def destroy_graph(self, index: int, graph: int) -> None:
        self._wait_all()
        del self.graphs[graph]

    def _ask(self, stream: int, work: Callable[[], None]) -> None:
        with self._lock:
            there = self.streams[stream]
            (there.work if there.recording is None else there.recording).append(work)

    def _until(self, stream: int, position: int) -> None:
        """Do what a stream was asked for up to a position."""
        there = self.streams.get(stream, _Stream())
        while there.done < min(position, len(there.work)):
            there.done += 1
            there.work[there.done - 1]()
        if self.lost:
            raise DriverError("synchronize", 719, "launch failure", lost=True)

    def _wait_all(self) -> None:
        with self._lock:
            for number, stream in list(self.streams.items()):
                self._until(number, len(stream.work))
