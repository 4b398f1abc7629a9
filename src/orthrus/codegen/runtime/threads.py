"""The threads of this process that generated code divides its work over: one pool, started when first needed.

The workers are daemon threads of Python that sit in generated code (`scheduler.py`) without the interpreter's
lock: they spin for a moment after each job and then sleep in the kernel. A child process starts with none and
gets its own. Where the kernel offers no futex, workers come back to Python to sleep, and each run wakes them.
"""

from __future__ import annotations

import _thread
import ctypes
import functools
import logging
import os
import platform
import sys
import threading
import time
from collections.abc import Collection, Sequence

from ... import knobs
from ...processors import usable
from ..machines.detect import host
from ..object.library import functions
from .cells import PLACES
from .cells import PoolCell as Cell
from .units import Runtime

log = logging.getLogger("orthrus")

SPIN = 3e-4
"""Seconds a worker looks for the next job before it sleeps: longer than the small steps between two large
ones."""
SHARED = 1e-5
"""The same where threads of another library want the processors between two of our steps."""
PATIENCE = 1e-4
"""Seconds the caller looks for the last worker before it sleeps."""


@functools.cache
def runtime() -> dict[str, int]:
    """Addresses of `drive`, `work` and `pauses`."""
    machine = host()
    assert machine is not None
    return functions([Runtime()], machine)[0]


_pools: dict[int, Pool] = {}


def pool() -> Pool:
    """The pool of this process."""
    return _pools.get(0) or _pools.setdefault(0, Pool(cores()))


class Pool:
    """Up to `capacity` threads, the caller's included. The block at `address` stays where it is for the life
    of the process, in a forked child too. `cores`: the processor that each but the caller's stays on, any
    where empty."""

    def __init__(self, capacity: int, futex: bool = True, cores: Sequence[int] = ()) -> None:
        from ..machines.executable import pages

        self.address = pages(8 * Cell.END)
        self.cells = (ctypes.c_int64 * Cell.END).from_address(self.address)
        self._work = ctypes.CFUNCTYPE(None, ctypes.c_int64)(runtime()["work"])
        self._cores: Sequence[Collection[int]] = [(core,) for core in cores]
        self._most = max(1, min(capacity, PLACES))
        pause = _pause_seconds()
        self._spins = int(SPIN / pause), int(SHARED / pause)
        self.cells[Cell.SPIN] = self._spins[0]
        self.cells[Cell.PATIENCE] = int(PATIENCE / pause)
        self.cells[Cell.SYSCALL] = _syscall() if futex else 0
        self._reset()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._reset)
        self.alarm = lambda: self.summon(self.cells[Cell.WANTED])

    def share(self) -> None:
        """From now on leave the processors to others soon after each job."""
        self.cells[Cell.SPIN] = self._spins[1]

    def _reset(self) -> None:
        """No worker yet. In a child, whatever the parent's threads were doing is forgotten."""
        self._lock, self._bell = threading.Lock(), threading.Condition()
        self._ids: dict[int, int] = {}
        for cell in (Cell.AWAY, Cell.LEFT, Cell.WAITING, Cell.HELD, Cell.RUNS, Cell.TICKET):
            self.cells[cell] = 0
        self.cells[Cell.SIZE] = 1
        self.cells[Cell.CAPACITY] = self._most

    @property
    def size(self) -> int:
        """Threads there are now."""
        return self.cells[Cell.SIZE]

    @property
    def capacity(self) -> int:
        """Threads a run may ask for."""
        return min(self.cells[Cell.CAPACITY], knobs.THREADS.value or PLACES)

    def ensure(self, threads: int) -> int:
        """Have `threads`, as far as the capacity goes; gives how many there are. A system that refuses
        further ones is not asked again."""
        with self._lock:
            for place in range(self.size, min(threads, self.capacity)):
                try:
                    _thread.start_new_thread(self._sit, (place,))
                except RuntimeError:
                    self.cells[Cell.CAPACITY] = self.size
                    break
                self.cells[Cell.SIZE] += 1
        return self.size

    def summon(self, threads: int) -> None:
        """Have as many threads, and wake those that sleep in Python. `alarm` is what generated code calls for
        it, with `WANTED` set."""
        self.ensure(threads)
        if not self.cells[Cell.SYSCALL]:
            with self._bell:
                self._bell.notify_all()

    def pin(self, cores: Sequence[Collection[int]]) -> None:
        """Keep each thread but the caller's on the processors that `cores` has for it, from now on; threads
        beyond those in `cores` stay as they are. Processors that there are not are reported in the log."""
        with self._lock:
            self._cores = cores
            for place, thread in self._ids.items():
                self._place(place, thread)

    def _place(self, place: int, thread: int) -> None:
        if place <= len(self._cores) and hasattr(os, "sched_setaffinity"):
            try:
                os.sched_setaffinity(thread, self._cores[place - 1])
            except OSError as error:
                log.warning("thread %d is not pinned to processors %s: %s", place,
                            sorted(self._cores[place - 1]), error)

    def _sit(self, place: int) -> None:
        with self._lock:
            self._ids[place] = threading.get_native_id()
            self._place(place, self._ids[place])
        while True:
            self._work(self.address)
            with self._bell:
                self._bell.wait()


def cores() -> int:
    """Processor cores this process may use: those of its affinity mask, threads of one core counted once, as
    far as its control group's quota goes."""
    found = len({_siblings(cpu) for cpu in usable()})
    quota = cpu_quota()
    return max(1, found if quota is None else min(found, quota))


def _siblings(cpu: int) -> str:
    text = _read(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
    return text or f"{cpu}"


def cpu_quota(groups: str = "/proc/self/cgroup", root: str = "/sys/fs/cgroup") -> int | None:
    """Processors the control groups allow, rounded up; None for no limit. Version 2 keeps it in `cpu.max` of
    the group or one above it, version 1 in two files below the controller's own folder."""
    least: float | None = None
    for line in _read(groups).splitlines():
        _, controllers, path = (line.split(":", 2) + ["", ""])[:3]
        if controllers and "cpu" not in controllers.split(","):
            continue
        base = os.path.join(root, controllers) if controllers else root
        if not os.path.isdir(base):
            base = os.path.join(root, "cpu")
        parts = [part for part in path.split("/") if part and part != ".."]
        for depth in range(len(parts), -1, -1):
            folder = os.path.join(base, *parts[:depth])
            if controllers:
                words = [_read(f"{folder}/cpu.cfs_quota_us"), _read(f"{folder}/cpu.cfs_period_us")]
            else:
                words = _read(f"{folder}/cpu.max").split()
            try:
                quota, period = (int(word) for word in words)
            except ValueError:
                continue
            if quota > 0 and period > 0:
                least = min(least or quota / period, quota / period)
    return None if least is None else max(1, -int(-least // 1))


def _read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError:
        return ""


def _syscall() -> int:
    """The C library's `syscall`, 0 where its numbers are not those of Linux."""
    if sys.platform != "linux" or platform.machine() not in ("x86_64", "aarch64", "riscv64"):
        return 0
    return ctypes.cast(ctypes.CDLL(None).syscall, ctypes.c_void_p).value or 0


@functools.cache
def _pause_seconds() -> float:
    """How long one pause of a spinning thread takes, which differs by a factor of ten between processors."""
    pauses, count = ctypes.CFUNCTYPE(None, ctypes.c_int64)(runtime()["pauses"]), 500
    least = 1.0
    for _ in range(4):
        start = time.perf_counter()
        pauses(count)
        least = min(least, time.perf_counter() - start)
    return max(least / count, 1e-10)
