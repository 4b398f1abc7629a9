"""A driver of AMD GPUs whose kernels the emulator carries out: memory is the host's, and machine code is
AMD's.

In: what the provider asks a `Driver` for. Out: the same memory as a GPU would leave. Each piece of memory is
filled with NaN at first, and one byte past it is an error; whatever a stream is asked for is done at once, in
order, but workgroups and waves in random order. `counts` says how often each verb was called, and which
kernels. """

from __future__ import annotations

import ctypes
import functools
import hashlib
import itertools
import random
import threading
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from orthrus.codegen.triton.targets import TARGETS
from orthrus.providers.gpu.driver import DriverError, Properties

from . import machine
from .code_object import CodeObject

POISON = 0x7F
_ALIGN, _SEEDS = 256, 1 << 30


@functools.lru_cache(256)
def _object(digest: bytes, code: _Code) -> CodeObject:
    return CodeObject(code.data)


class _Code:
    """Bytes of a code object, told apart by their digest alone."""

    def __init__(self, data: bytes) -> None:
        self.data, self.digest = data, hashlib.sha256(data).digest()

    def __hash__(self) -> int:
        return hash(self.digest)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Code) and other.digest == self.digest


class EmulatedDriver:
    """`devices` GPUs of a target, `most` bytes of memory each. `seed`: of the order of workgroups and waves.
    `launched`: how often each kernel was. A kernel that reads or writes where it must not makes the device
    `lost`, as it does a GPU. `spans`: by an address that a kernel is given, from where on and how many bytes
    it may touch; all of the memory that this is in where it is not there."""

    name = "HIP"

    def __init__(self, target: str = "gfx1100", devices: int = 1, most: int = 1 << 30, seed: int = 1) -> None:
        self.target, self.devices, self.most = TARGETS[target], devices, most
        self.random = random.Random(seed)
        self.counts, self.launched = Counter[str](), Counter[str]()
        self.memory: dict[int, np.ndarray] = {}
        self.spans: dict[int, tuple[int, int]] = {}
        self.starts: list[int] = []
        self.pinned: dict[int, np.ndarray] = {}
        self.modules: dict[int, CodeObject] = {}
        self.functions: dict[int, tuple[CodeObject, str]] = {}
        self.graphs: dict[int, list[Callable[[], None]]] = {}
        self.recording: dict[int, list[Callable[[], None]]] = {}
        self.events: dict[int, int] = {}
        self.lost: str = ""
        self.clock = 0
        self._numbers = itertools.count(1)
        self._lock = threading.RLock()

    def _called(self, verb: str) -> None:
        self.counts[verb] += 1
        if self.lost:
            raise DriverError(verb, 700, self.lost, lost=True)

    def count(self) -> int:
        return self.devices

    def properties(self, index: int) -> Properties:
        return Properties(f"emulated {self.target}", str(self.target), self.most, 4, self.target.shared,
                          self.target.warp)

    def memory_info(self, index: int) -> tuple[int, int]:
        held = sum(room.nbytes for room in list(self.memory.values()))
        return self.most - held, self.most

    def allocate(self, index: int, size: int) -> int:
        with self._lock:
            self._called("allocate")
            if self.memory_info(index)[0] < size:
                raise DriverError("allocate", 2, "out of memory", out_of_memory=True)
            whole = np.full(size + _ALIGN, POISON, np.uint8)
            first = -whole.ctypes.data % _ALIGN
            room = whole[first:first + size]
            address = int(room.ctypes.data)
            self.memory[address] = room
            self.starts = sorted(self.memory)
            return address

    def free(self, index: int, address: int) -> None:
        with self._lock:
            self._called("free")
            self.memory.pop(address)[:] = POISON
            self.starts = sorted(self.memory)

    def allocate_host(self, index: int, size: int) -> int:
        self._called("allocate_host")
        room = np.full(size, POISON, np.uint8)
        self.pinned[int(room.ctypes.data)] = room
        return int(room.ctypes.data)

    def free_host(self, index: int, address: int) -> None:
        self._called("free_host")
        del self.pinned[address]

    def create_stream(self, index: int) -> int:
        self._called("create_stream")
        return next(self._numbers)

    def destroy_stream(self, index: int, stream: int) -> None:
        self._called("destroy_stream")

    def synchronize(self, index: int, stream: int) -> None:
        self._called("synchronize")

    def create_event(self, index: int, timed: bool = False) -> int:
        self._called("create_event")
        return next(self._numbers)

    def destroy_event(self, index: int, event: int) -> None:
        self._called("destroy_event")
        self.events.pop(event, None)

    def record(self, index: int, event: int, stream: int) -> None:
        self._called("record")
        self._asked(stream, lambda: self.events.update({event: self.clock}))

    def wait(self, index: int, stream: int, event: int) -> None:
        self._called("wait")

    def wait_for(self, index: int, event: int) -> None:
        self._called("wait_for")

    def reached(self, index: int, event: int) -> bool:
        return True

    def elapsed(self, index: int, start: int, end: int) -> float:
        """A millisecond for a million instructions."""
        return (self.events[end] - self.events[start]) * 1e-6

    def copy(self, index: int, to: int, source: int, size: int, stream: int) -> None:
        self._called("copy")
        self._asked(stream, lambda: self._copy(to, source, size))

    def _copy(self, to: int, source: int, size: int) -> None:
        for address in (to, source):
            found = self.found(address)
            if found is not None and found[1] + size > found[0].nbytes:
                self.lost = f"a copy of {size} bytes at offset {found[1]} of {found[0].nbytes}"
                raise DriverError("copy", 700, self.lost, lost=True)
        ctypes.memmove(to, source, size)

    def fill(self, index: int, to: int, byte: int, size: int, stream: int) -> None:
        self._called("fill")
        self._asked(stream, lambda: ctypes.memset(to, byte, size))

    def load(self, index: int, code: bytes) -> int:
        self._called("load")
        try:
            it = _Code(code)
            found = _object(it.digest, it)
        except ValueError as error:
            raise DriverError("load", 200, f"invalid image: {error}") from None
        if found.target != self.target.arch:
            raise DriverError("load", 209, f"no binary for {self.target}, but for {found.target}")
        number = next(self._numbers)
        self.modules[number] = found
        return number

    def unload(self, index: int, module: int) -> None:
        self._called("unload")
        del self.modules[module]

    def function(self, index: int, module: int, name: str, shared: int) -> int:
        self._called("function")
        code = self.modules[module]
        try:
            code.kernel(name)
        except KeyError as error:
            raise DriverError("function", 500, f"not found: {error}") from None
        number = next(self._numbers)
        self.functions[number] = code, name
        return number

    def launch(self, index: int, function: int, blocks: int, threads: int, shared: int, stream: int,
               arguments: bytes) -> None:
        self._called("launch")
        self._asked(stream, lambda: self._launch(function, blocks, threads, shared, arguments))

    def _launch(self, function: int, blocks: int, threads: int, shared: int, arguments: bytes) -> None:
        code, name = self.functions[function]
        kernel = code.kernel(name)
        values: list[Any] = []
        for it in kernel.explicit:
            raw = arguments[it[".offset"]:it[".offset"] + it[".size"]]
            if len(raw) != it[".size"]:
                raise DriverError("launch", 1, f"{name} takes more arguments than it is given")
            if it[".value_kind"] != "global_buffer":
                values.append(np.frombuffer(raw, np.uint8).view(f"V{len(raw)}")[0])
                continue
            address = int.from_bytes(raw, "little")
            found = self.found(address)
            if found is not None and address in self.spans:
                start, size = self.spans[address]
                first = start - (address - found[1])
                found = found[0][first:first + size], address - start
            if address and found is None:
                self.lost = f"{name} is given {address:#x}, which is no memory of the device's"
                raise DriverError("launch", 700, self.lost, lost=True)
            values.append(None if found is None else machine.Address(*found))
        with self._lock:
            self.launched[name] += 1
            try:
                report = machine.run(code, name, (blocks, 1, 1), values, threads=threads, shared=shared,
                                     seed=self.random.randrange(_SEEDS))
            except machine.MachineError as error:
                self.lost = str(error)
                raise DriverError("launch", 700, self.lost, lost=True) from error
            self.clock += report.instructions

    def found(self, address: int) -> tuple[np.ndarray, int] | None:
        """The memory that an address is in, and where in it."""
        at = bisect_right(self.starts, address) - 1
        if at < 0:
            return None
        start = self.starts[at]
        room = self.memory[start]
        return (room, address - start) if address - start < max(1, room.nbytes) else None

    def _asked(self, stream: int, work: Callable[[], Any]) -> None:
        if stream in self.recording:
            self.recording[stream].append(work)
        else:
            work()

    def begin_capture(self, index: int, stream: int) -> None:
        self._called("begin_capture")
        self.recording[stream] = []

    def end_capture(self, index: int, stream: int) -> int:
        self._called("end_capture")
        number = next(self._numbers)
        self.graphs[number] = self.recording.pop(stream)
        return number

    def launch_graph(self, index: int, graph: int, stream: int) -> None:
        self._called("launch_graph")
        for work in self.graphs[graph]:
            work()

    def destroy_graph(self, index: int, graph: int) -> None:
        self._called("destroy_graph")
        self.graphs.pop(graph, None)
