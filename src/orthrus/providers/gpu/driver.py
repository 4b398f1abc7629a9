"""What a GPU's driver can do, in the words that CUDA's and HIP's have in common.

A `Driver` is one of these interfaces: a system's library, or what stands in for it. Addresses, streams,
events, functions and graphs are whole numbers that only the driver understands, 0 being the default stream.
Every call may be made on any thread. What the library refuses is a `DriverError`.
"""

from __future__ import annotations

from typing import Protocol

from ...records import dataclass


class DriverError(RuntimeError):
    """The library's own `code`, its `name` for it, and which call it came of. `out_of_memory`: more was asked
    for than there is; `lost`: the device answers nothing more in this process, as a kernel of ours or of
    somebody else's has read or written where it must not."""

    def __init__(self, call: str, code: int, name: str, out_of_memory: bool = False,
                 lost: bool = False) -> None:
        super().__init__(f"{call}: {name} ({code})")
        self.call, self.code, self.name = call, code, name
        self.out_of_memory, self.lost = out_of_memory, lost


@dataclass(frozen=True)
class Properties:
    """One device: its `target` as compilers call it (`sm_90`, `gfx942`), bytes of memory, multiprocessors,
    bytes of shared memory that a block may ask for, lanes of a warp."""

    name: str
    target: str
    memory: int
    processors: int
    shared: int
    warp: int


class Driver(Protocol):
    """One interface to the GPUs of a machine."""

    name: str
    """`CUDA` or `HIP`."""

    def count(self) -> int:
        """How many devices there are."""

    def properties(self, index: int) -> Properties:
        """What a device is."""

    def memory_info(self, index: int) -> tuple[int, int]:
        """Bytes of a device that are free, and that there are."""

    def allocate(self, index: int, size: int) -> int:
        """The address of `size` bytes of a device's memory, a multiple of 256."""

    def free(self, index: int, address: int) -> None:
        """Give back what `allocate` gave, after all that was asked for until now has been done."""

    def allocate_host(self, index: int, size: int) -> int:
        """The address of host memory that the device copies from and to by itself."""

    def free_host(self, index: int, address: int) -> None:
        """Give back what `allocate_host` gave."""

    def create_stream(self, index: int) -> int:
        """A stream: its work is done in order."""

    def destroy_stream(self, index: int, stream: int) -> None:
        """Give back a stream."""

    def synchronize(self, index: int, stream: int) -> None:
        """Wait until the work of a stream is done; faults of its kernels come out here."""

    def create_event(self, index: int, timed: bool = False) -> int:
        """An event; `timed` where `elapsed` is to be asked of it."""

    def destroy_event(self, index: int, event: int) -> None:
        """Give back an event."""

    def record(self, index: int, event: int, stream: int) -> None:
        """The event is reached when what the stream has been asked for until now is done."""

    def wait(self, index: int, stream: int, event: int) -> None:
        """What the stream is asked for from now on waits for the event."""

    def wait_for(self, index: int, event: int) -> None:
        """The calling thread waits for the event."""

    def reached(self, index: int, event: int) -> bool:
        """Whether the event was reached, or never recorded."""

    def elapsed(self, index: int, start: int, end: int) -> float:
        """Milliseconds between two timed events that were reached."""

    def copy(self, index: int, to: int, source: int, size: int, stream: int) -> None:
        """Copy bytes between addresses of any kind, the host's and devices'. With the host's plain memory
        this may return before or after the copy: the caller waits for the stream before it touches that."""

    def fill(self, index: int, to: int, byte: int, size: int, stream: int) -> None:
        """Set `size` bytes."""

    def load(self, index: int, code: bytes) -> int:
        """A module of machine code: a cubin or PTX, a code object."""

    def unload(self, index: int, module: int) -> None:
        """Give back a module."""

    def function(self, index: int, module: int, name: str, shared: int) -> int:
        """A kernel of a module, which may ask for `shared` bytes of shared memory."""

    def launch(self, index: int, function: int, blocks: int, threads: int, shared: int, stream: int,
               arguments: bytes) -> None:
        """Start a kernel on a grid of `blocks` by 1 by 1, each of `threads`. `arguments`: the values one
        behind the other, each aligned to its size, as the kernel's parameters lie."""

    def begin_capture(self, index: int, stream: int) -> None:
        """From now on what this thread asks the stream for is recorded instead of done; what else goes on in
        the process is not hindered."""

    def end_capture(self, index: int, stream: int) -> int:
        """A graph of what was recorded, ready to be launched."""

    def launch_graph(self, index: int, graph: int, stream: int) -> None:
        """Do all that a graph holds."""

    def destroy_graph(self, index: int, graph: int) -> None:
        """Give back a graph."""
