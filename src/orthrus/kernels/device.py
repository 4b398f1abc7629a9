"""Where the arguments of kernels lie: the host's memory, or that of a device which numpy cannot read.

In: arrays of numpy's, and shapes. Out: `DeviceArray`s, which only their device and its kernels understand.
Each piece of memory has one owner, a `Memory`, and is given back when nothing refers to that any more.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..errors import InvalidArgument
from ..ir import TensorType, element_of
from ..limits import bounded
from ..locks import lock
from .allocator import Allocator
from .lanes import Lane, Lanes, lane_of, working
from .streams import Event, Stream, answered


class Device:
    """A memory of its own. A subclass has a `name` and the verbs; this class itself is the host.

    `kind`, `vendor` and `index` are onnxruntime's numbers for it: `kind` 0 is a CPU, 1 a GPU, 3 an NPU. The
    verbs are called on many threads.

    Where it has no streams, `streams` False, a verb is done when it returns. Where it has, it needs the verbs
    on streams as well; copies, launches and graphs are then asked of the stream that the calling thread works
    on, `self.stream`, and done in order with what else that is asked for.
    """

    name = "cpu"
    kind, vendor, index = 0, 0, 0
    streams = False

    def allocate(self, size: int) -> Any:
        """New memory of `size` bytes, at least 1. Raises MemoryError."""
        raise self._undefined("allocate(size)")

    def free(self, handle: Any) -> None:
        """Give back what `allocate` gave, when all that the device was asked for until now is done."""
        raise self._undefined("free(handle)")

    def allocate_host(self, size: int) -> int:
        """The address of `size` bytes of the host's memory that the device copies from and to by itself; 0
        where it has none such."""
        return 0

    def free_host(self, address: int) -> None:
        """Give back what `allocate_host` gave, which no copy uses any more."""
        raise self._undefined("free_host(address)")

    def copy_in(self, array: np.ndarray, handle: Any) -> None:
        """Copy an array of the host, in C order, to the start of the memory `handle`. `array` stays as it is
        until that is done."""
        raise self._undefined("copy_in(array, handle)")

    def copy_out(self, handle: Any, array: np.ndarray) -> None:
        """Fill an array of the host, in C order, from the start of the memory `handle`. `array` is there
        until that is done."""
        raise self._undefined("copy_out(handle, array)")

    def copy_across(self, source: DeviceArray, handle: Any) -> bool:
        """Copy an array of any device, this one too, to the memory `handle` of this one; False where that has
        to go by way of the host."""
        return False

    def clear(self, address: int, size: int) -> None:
        """Set bytes to 0; for devices whose handles are addresses."""
        raise self._undefined("clear(address, size)")

    def create_stream(self) -> Any:
        """A new stream: what it is asked for is done in order."""
        raise self._undefined("create_stream()")

    def destroy_stream(self, stream: Any) -> None:
        """Give back a stream, all of whose work is done."""
        raise self._undefined("destroy_stream(stream)")

    def synchronize(self, stream: Any) -> None:
        """Wait until a stream's work is done. What went wrong in it is raised here."""
        raise self._undefined("synchronize(stream)")

    def record(self, stream: Any) -> Any:
        """A new event, which is reached when what `stream` has been asked for until now is done."""
        raise self._undefined("record(stream)")

    def wait(self, stream: Any, event: Any) -> None:
        """What `stream` is asked for from now on waits for an event of any stream of this device."""
        raise self._undefined("wait(stream, event)")

    def wait_for(self, event: Any) -> None:
        """This thread waits until an event is reached."""
        raise self._undefined("wait_for(event)")

    def destroy_event(self, event: Any) -> None:
        """Give back an event, which may be waited for still."""
        raise self._undefined("destroy_event(event)")

    def function(self, code: bytes, name: str, shared: int) -> Any:
        """The kernel `name` of a piece of machine code, which may ask for `shared` bytes of shared memory;
        for as long as this process. The same code is loaded once."""
        raise self._undefined("function(code, name, shared)")

    def launch(self, function: Any, blocks: int, threads: int, shared: int, arguments: bytes) -> None:
        """Start a kernel on `blocks` blocks of `threads` threads. `arguments`: its parameters one behind the
        other, each aligned to its size; an array's is its `handle`."""
        raise self._undefined("launch(function, blocks, threads, shared, arguments)")

    def timed(self, work: Callable[[], object]) -> float:
        """Milliseconds that the device takes for what `work` asks this thread's stream for."""
        self.synchronize(self.stream)
        start = time.perf_counter()
        work()
        self.synchronize(self.stream)
        return 1e3 * (time.perf_counter() - start)

    def begin_capture(self) -> None:
        """From now on what this thread's stream is asked for is recorded instead of done. Memory is neither
        allocated nor freed meanwhile, and nothing waited for."""
        raise self._undefined("begin_capture()")

    def end_capture(self) -> Any:
        """A graph of what was recorded, ready to be replayed. Raises where nothing usable was."""
        raise self._undefined("end_capture()")

    def drop_capture(self) -> None:
        """As `end_capture`, for what nobody wants any more."""
        self.destroy_graph(self.end_capture())

    def replay(self, graph: Any) -> None:
        """Do on this thread's stream all that a graph holds, at the addresses it was recorded with."""
        raise self._undefined("replay(graph)")

    def destroy_graph(self, graph: Any) -> None:
        """Give back a graph, all of whose replays are done."""
        raise self._undefined("destroy_graph(graph)")

    @property
    def stream(self) -> Any:
        """That stream, as `create_stream` gave it, which this thread works on; None for a device without."""
        return working(self).handle if self.streams else None

    def array(self, shape: Sequence[int], dtype: Any) -> DeviceArray:
        """A new array here, in C order, its elements not set, for the stream that this thread works on.
        Raises MemoryError, InvalidArgument or Fail."""
        kind, dims = np.dtype(dtype), bounded(shape, dtype)
        if kind.hasobject:
            raise InvalidArgument(f"device {self.name} holds numbers only", found=str(kind))
        return DeviceArray(Memory(self, max(1, math.prod(dims) * kind.itemsize)), dims, kind)

    def ordinary(self) -> Lane:
        """What is used of a device with streams by all that is no run."""
        with _lock:
            if "_ordinary" not in self.__dict__:
                lanes = Lanes(self)
                self.__dict__["_ordinary"] = lanes, lanes.take()
            lanes, lane = self.__dict__["_ordinary"]
        lanes.check()
        made: Lane = lane
        return made

    def pinned(self) -> Allocator | None:
        """The host's memory that this device copies from and to by itself; None where it has none such."""
        if "_pinned" not in self.__dict__:
            with _lock:
                self.__dict__.setdefault("_pinned", Allocator(
                    self._host_memory, self.free_host, f"the host for {self!r}", PINNED
                ) if self.streams else None)
        made: Allocator | None = self.__dict__["_pinned"]
        return made

    def _host_memory(self, size: int) -> int:
        address = self.allocate_host(size)
        if not address:
            pinned = self.__dict__["_pinned"]
            if pinned is not None and not pinned.extended:
                self.__dict__["_pinned"] = None
            raise MemoryError(f"{size} bytes of pinned memory")
        return address

    def _undefined(self, verb: str) -> TypeError:
        return TypeError(f"{type(self).__name__} does not define {verb}")

    def __repr__(self) -> str:
        return f"{self.name}:{self.index}"


HOST = Device()
"""This process's own memory, in which arrays are numpy's."""

PINNED = 1 << 28
"""Bytes of the host's memory at most that are pinned for one device."""

_lock = lock()


class Memory:
    """Memory of a device, given back with its last reference.

    Where the device has streams, this one is `home` to one, for which it was taken, and knows what else
    touched it: who is about to read or write it says so, and comes after what wrote it, or read it.
    """

    __slots__ = ("device", "handle", "owner", "home", "users", "_allocator", "_seen", "_writer", "_ready",
                 "__weakref__")

    def __init__(self, device: Device, size: int, handle: Any = None, owner: Any = None) -> None:
        """`handle`: memory that is there already, of somebody else whom `owner` keeps alive."""
        self.device, self.owner = device, owner
        self.home: Stream | None = None
        self.users, self._seen = set[Stream](), set[Stream]()
        self._writer: Stream | None = None
        self._ready: Event | None = None
        self._allocator: Allocator | None = None
        if handle is not None:
            self.handle, self.owner = handle, owner if owner is not None else self.users
        elif device.streams:
            self.home = self._writer = working(device)
            allocator = lane_of(device).allocator
            self.handle = answered(device, lambda: allocator.allocate(size, self.home))
            self._allocator = allocator
            self._seen.add(self.home)
        else:
            self.handle = device.allocate(size)

    def reading(self, stream: Stream) -> None:
        """Let what `stream` is asked for from now on come after what last wrote this."""
        if stream in self._seen:
            return
        if self._ready is not None:
            stream.after(self._ready)
        elif self._writer is not None:
            stream.after(self._writer.event())
        self._touched(stream)

    def writing(self, stream: Stream) -> None:
        """Let what `stream` is asked for from now on come after what wrote and read this."""
        if self._writer is stream and self._ready is None and self._seen == {stream}:
            return
        self.reading(stream)
        for other in self._seen - {stream}:
            stream.after(other.event())
        self._seen, self._writer, self._ready = {stream}, stream, None

    def written(self, event: Event) -> None:
        """What writes this is done when `event` is reached."""
        self._ready, self._writer, self._seen = event, event.stream, {event.stream}
        self._touched(event.stream)

    def wait(self) -> None:
        """Let this thread wait for what last wrote this. Raises what went wrong, typed."""
        if self._ready is not None:
            self._ready.wait()
        elif self._writer is not None:
            self._writer.event().wait()

    def _touched(self, stream: Stream) -> None:
        self._seen.add(stream)
        if stream is not self.home:
            self.users.add(stream)

    def __del__(self) -> None:
        if not hasattr(self, "handle") or self.owner is not None:
            return
        if self._allocator is not None:
            self._allocator.free(self.handle, self.users)
        elif not self.device.streams:
            self.device.free(self.handle)


class DeviceArray:
    """A tensor in a device's memory, in C order from its start on. numpy gets a TypeError for it."""

    __slots__ = ("memory", "shape", "dtype")

    def __init__(self, memory: Memory, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.memory, self.shape, self.dtype = memory, shape, dtype

    @property
    def device(self) -> Device:
        return self.memory.device

    @property
    def handle(self) -> Any:
        """What the device calls this memory."""
        return self.memory.handle

    @property
    def type(self) -> TensorType:
        return TensorType(element_of(self.dtype), self.shape)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    def __device_array__(self) -> DeviceArray:
        """What else has this method, an OrtValue, gives the array it is of a device, or None."""
        return self

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        raise TypeError(f"an array of device {self.device!r} was read as one of the host")

    __array_ufunc__ = __array_function__ = __array__

    def __repr__(self) -> str:
        return f"<{self.dtype}{list(self.shape)} on {self.device!r}>"
