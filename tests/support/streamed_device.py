"""A simulated device with streams: work is queued, and done as late or in as odd an order as its rules allow.

Memory has addresses, so that an allocator may divide it. What is read before it was written, written while
somebody else reads it or used after it was given back shows as wrong numbers or as a fault, whatever the
order that `seed` chooses. A step of another device waits for nothing of this one but what it is told to.
"""

from __future__ import annotations

import bisect
import ctypes
import gc
import itertools
import random
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np
from simulated_device import SimulatedDevice

from orthrus.ir import No, Node
from orthrus.kernels import Allocator, DeviceArray, Kernel, Lanes, Part, copied, reference, working
from orthrus.kernels.allocator import UNLIMITED
from orthrus.providers import ExecutionProvider, Option, flag


class GPU(ExecutionProvider):
    """A provider of simulated GPUs, `devices` by their index, of the options that GPUs' providers have."""

    listed, fuses = False, True
    options = {"device_id": Option(int, 0, "number"), "gpu_mem_limit": Option(int, UNLIMITED, "bytes"),
               "user_compute_stream": Option(int, None, "handle"), "do_copy_in_default_stream":
               Option(flag, False, "0 or 1")}
    there: ClassVar[list[StreamedDevice]]
    takes: ClassVar[Sequence[str]]

    def __init__(self, options: dict[str, Any] | None = None) -> None:
        super().__init__(options)
        self.device = self.there[self.settings["device_id"]]

    @classmethod
    def devices(cls) -> Sequence[StreamedDevice]:
        return cls.there

    def claim(self, node: Node) -> No | None:
        return None if node.op_type in self.takes else No("not simulated")

    def lanes(self) -> Lanes:
        limit, device = self.settings["gpu_mem_limit"], self.device
        return Lanes(device, Allocator.of(device, limit=limit), self.settings["user_compute_stream"],
                     self.settings["do_copy_in_default_stream"])

    def compile(self, part: Part) -> list[Kernel]:
        return [Kernel(_Whole(self.device, part), "simulated part")]


def gpus(devices: Sequence[StreamedDevice], takes: Sequence[str], name: str = "SimulatedGPUExecutionProvider"
         ) -> type[GPU]:
    """A provider class, to be registered, whose devices are these."""
    made: type[GPU] = type(name, (GPU,), {"name": name, "there": list(devices), "takes": takes})
    return made


class _Whole:
    """A part on a device, which writes where it is told."""

    def __init__(self, device: StreamedDevice, part: Part) -> None:
        self.part, self.device = part, device
        self.kernels = [device.kernel(node) for node in part.nodes]
        self.constants = dict[Any, DeviceArray]()

    def __call__(self, *given: DeviceArray) -> Any:
        known: dict[Any, Any] = dict(zip(self.part.inputs, given, strict=True))
        for node, kernel in zip(self.part.nodes, self.kernels, strict=True):
            made = kernel(*(None if v is None else known.get(v) or self._constant(v) for v in node.inputs))
            known.update(zip(node.outputs, made if isinstance(made, tuple) else (made,), strict=False))
        results = tuple(known[v] for v in self.part.outputs)
        return results if len(results) > 1 else results[0]

    def _constant(self, value: Any) -> DeviceArray:
        if value not in self.constants:
            self.constants[value] = copied(value.const, self.device)
        array = self.constants[value]
        array.memory.reading(working(self.device))
        return array

    def into(self, given: Sequence[DeviceArray], targets: Sequence[DeviceArray | None]) -> Any:
        made = self(*given)
        several = list(made) if isinstance(made, tuple) else [made]
        for i, (target, result) in enumerate(zip(targets, several, strict=True)):
            if target is not None and target.shape == result.shape:
                self.device.launch_work(partial(self._move, target.handle, result.handle, result.nbytes))
                several[i] = target
        return tuple(several) if isinstance(made, tuple) else several[0]

    def _move(self, to: int, at: int, size: int) -> None:
        self.device._memory(to, size)[:] = bytes(self.device._memory(at, size))


class Lost(RuntimeError):
    """What every verb of a lost device raises."""

    lost = True


class StreamedDevice(SimulatedDevice):
    """`counts` as of a simulated device, and `launched`, `waits`, `synchronized`. `pinned_most`: bytes of
    pinned memory that there are. `lost`: nothing is answered any more."""

    streams = True

    def __init__(self, index: int = 0, across: bool = False, most: int = 1 << 30, seed: int = 0,
                 pinned_most: int = 1 << 24) -> None:
        super().__init__(index, across, most)
        self.random, self.pinned_most, self.lost = random.Random(seed), pinned_most, False
        self._lock = threading.RLock()  # type: ignore[assignment]
        self.queues: dict[int, deque[Any]] = {}
        self.events: dict[int, bool] = {}
        self.hosts: dict[int, Any] = {}
        self.captured: list[Callable[[], None]] | None = None
        self._numbers, self._next = itertools.count(1), 1 << 20

    def _ask(self) -> None:
        if self.lost:
            raise Lost("simulated")

    def allocate(self, size: int) -> int:
        with self._lock:
            self._ask()
            if sum(map(len, self.live.values())) + size > self.most:
                raise MemoryError(f"{size} bytes on {self!r}")
            handle, self._next = self._next, self._next + -(-size // 256) * 256 + 4096
            self.live[handle] = bytearray(b"\xcd") * size
            self._count("allocated")
            return handle

    def free(self, handle: int) -> None:
        with self._lock:
            while self._some():
                pass
            super().free(handle)

    def allocate_host(self, size: int) -> int:
        with self._lock:
            if sum(map(ctypes.sizeof, self.hosts.values())) + size > self.pinned_most:
                return 0
            made = (ctypes.c_ubyte * (size + 256))()
            address = -(-ctypes.addressof(made) // 256) * 256
            ctypes.memset(ctypes.addressof(made), 0xab, size + 256)
            self.hosts[address] = made
            return address

    def free_host(self, address: int) -> None:
        with self._lock:
            del self.hosts[address]

    def _memory(self, address: int, size: int) -> memoryview:
        """The live bytes at an address inside a region."""
        starts = sorted(self.live)
        at = bisect.bisect_right(starts, address) - 1
        assert at >= 0, f"{address} is no address"
        region, offset = self.live[starts[at]], address - starts[at]
        assert offset + size <= len(region), f"{size} bytes at {address} are not all there"
        return memoryview(region)[offset:offset + size]

    def _host(self, array: np.ndarray) -> Callable[[], np.ndarray]:
        """The array when the copy is done: pinned memory, or an array that is still there."""
        start = array.ctypes.data
        if any(begin <= start < begin + ctypes.sizeof(made) for begin, made in self.hosts.items()):
            shape, dtype, size = array.shape, array.dtype, array.nbytes
            return lambda: np.frombuffer((ctypes.c_ubyte * size).from_address(start), dtype).reshape(shape)
        there = weakref.ref(array)

        def alive() -> np.ndarray:
            found = there()
            assert found is not None, "the host's array of a copy is gone"
            return found
        return alive

    def _queue(self, work: Callable[[], None]) -> None:
        with self._lock:
            self._ask()
            if self.captured is not None:
                self.captured.append(work)
                return
            self.queues[self.stream].append(work)
            for _ in range(self.random.choice((0, 0, 1, 3))):
                self._some()

    def _some(self, streams: list[int] | None = None) -> bool:
        """Do one piece of work of any stream that may go on; False where there is none."""
        ready = [s for s, queue in self.queues.items() if queue and not (
            isinstance(queue[0], int) and not self.events[queue[0]])]
        if not ready:
            return False
        work = self.queues[self.random.choice(ready)].popleft()
        if not isinstance(work, int):
            work()
        return True

    def copy_in(self, array: np.ndarray, handle: int) -> None:
        assert type(array) is np.ndarray and array.flags.c_contiguous
        host, size = self._host(array), array.nbytes

        def work() -> None:
            self._memory(handle, size)[:] = host().tobytes()
        self._queue(work)
        self._count("in")

    def copy_out(self, handle: int, array: np.ndarray) -> None:
        host, size = self._host(array), array.nbytes

        def work() -> None:
            host().reshape(-1).view(np.uint8)[:] = np.frombuffer(self._memory(handle, size), np.uint8)
        self._queue(work)
        self._count("out")

    def copy_across(self, source: DeviceArray, handle: int) -> bool:
        there, size = source.device, source.nbytes
        if there is not self and not (self.across and isinstance(there, StreamedDevice)):
            return False
        address = source.handle

        def work() -> None:
            self._memory(handle, size)[:] = bytes(there._memory(address, size))
        self._queue(work)
        self._count("across")
        return True

    def create_stream(self) -> int:
        with self._lock:
            self._ask()
            stream = next(self._numbers)
            self.queues[stream] = deque()
            return stream

    def destroy_stream(self, stream: int) -> None:
        with self._lock:
            self._until(lambda: not self.queues[stream])
            del self.queues[stream]

    def synchronize(self, stream: int) -> None:
        with self._lock:
            self._ask()
            self._until(lambda: not self.queues[stream])
            self._count("synchronized")

    def record(self, stream: int) -> int:
        with self._lock:
            self._ask()
            event = next(self._numbers)
            self.events[event] = False
            self.queues[stream].append(lambda: self.events.__setitem__(event, True))
            return event

    def wait(self, stream: int, event: int) -> None:
        with self._lock:
            self.queues[stream].append(event)
            self._count("waits")

    def wait_for(self, event: int) -> None:
        with self._lock:
            self._ask()
            self._until(lambda: self.events[event])

    def destroy_event(self, event: int) -> None:
        """Nothing: streams may wait for it still."""

    def _until(self, done: Callable[[], bool]) -> None:
        while not done():
            assert self._some(), "streams wait for each other"

    def launch_work(self, work: Callable[[], None]) -> None:
        """A kernel that computes what `work` does."""
        self._queue(work)
        self._count("launched")

    def begin_capture(self) -> None:
        self.captured = []

    def end_capture(self) -> Any:
        graph, self.captured = self.captured, None
        return graph

    def replay(self, graph: Any) -> None:
        for work in graph:
            self._queue(work)

    def read(self, array: DeviceArray) -> np.ndarray:
        """The elements once all is done."""
        with self._lock:
            while self._some():
                pass
            return self._elements(array.handle, array.shape, array.dtype)

    def _elements(self, handle: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        return np.frombuffer(bytes(self._memory(handle, size)), dtype).reshape(shape)

    def kernel(self, node: Node) -> Callable[..., Any]:
        """A kernel for a node whose results' shapes do not depend on what its inputs hold."""
        compute = reference(node).run

        def run(*given: DeviceArray | None) -> Any:
            for each in given:
                if each is not None and (not isinstance(each, DeviceArray) or each.device is not self):
                    raise TypeError(f"a kernel of {self!r} was given {type(each).__name__}")
            if node.op_type == "Identity" and given[0] is not None:
                return DeviceArray(given[0].memory, given[0].shape, given[0].dtype)
            like = compute(*(None if a is None else np.zeros(a.shape, a.dtype) for a in given))
            several = like if isinstance(like, tuple) else (like,)
            outs = [self.array(np.shape(each), each.dtype) for each in several]
            ins = [None if a is None else (a.handle, a.shape, a.dtype) for a in given]
            at = [(out.handle, out.nbytes) for out in outs]

            def work() -> None:
                made = compute(*(None if a is None else self._elements(*a) for a in ins))
                results = made if isinstance(made, tuple) else (made,)
                for (handle, size), each in zip(at, results, strict=True):
                    self._memory(handle, size)[:] = np.ascontiguousarray(each).tobytes()
            self.launch_work(work)
            return tuple(outs) if isinstance(like, tuple) else outs[0]
        return run

    @property
    def idle(self) -> bool:
        """Whether no work is left."""
        return not any(self.queues.values())

    def emptied(self) -> bool:
        """Whether all memory was given back once the allocators have given back theirs."""
        return all(stats["InUse"] == 0 for stats in self.usage())

    def usage(self) -> list[dict[str, int]]:
        return [each.stats for each in gc.get_objects() if isinstance(each, Allocator)
                and each.name == repr(self) and each._allocate.__self__ is self]


