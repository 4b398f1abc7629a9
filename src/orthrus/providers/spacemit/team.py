"""Workers that share the steps of a part: each does its own range of every step's items, and none begins a
step before all have done the one before.

In: rows of a step table. Out: for each worker a list of calls; `Team.run` runs them at the same time. No
worker waits for one that ended with the process that started both.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ...codegen.emulate.emulator import Call, Calls, Worker, run
from ...codegen.emulate.shared import Shared
from ...codegen.runtime.scheduler import pointer
from ...codegen.write.body import Body
from ...codegen.write.emit import I32, I64, V
from ...codegen.write.template import template

_YIELD = (0x07C00893, 0x00000073, 0x00008067)
"""li a7, 124 (sched_yield); ecall; ret"""
_PARENT = (0x0AD00893, 0x00000073, 0x00008067)
"""li a7, 173 (getppid); ecall; ret"""
_LEAVE = (0x00000513, 0x05D00893, 0x00000073, 0x00008067)
"""li a0, 0; li a7, 93 (exit); ecall; ret"""
_TIME = (0xC0102573, 0x00008067)
"""rdtime a0; ret"""


@template("counter:ptr wanted:i64 parent:i64")
def gather_workers(f: Body, counter: V, wanted: V, parent: V) -> None:
    """Wait until as many workers as `wanted` have come here; `counter` holds how many have. Where the process
    `parent`, which started them, has ended, some may never come: this worker ends then."""
    rest, whose, leave = (f.table(I32, words) for words in (_YIELD, _PARENT, _LEAVE))
    f.emit(I64, f"atomicrmw add {pointer(f, counter, 0)}, i64 1 seq_cst, align 8")

    def again() -> None:
        f.when(f.call(whose, [], I64).ne(parent), lambda: _call(f, leave))
        _call(f, rest)

    def wait() -> tuple[V, list[V]]:
        here = f.emit(I64, f"load atomic i64, {pointer(f, counter, 0)} acquire, align 8")
        f.when(here < wanted, again)
        return here < wanted, []
    f.repeat([], wait)


def _call(f: Body, function: V) -> None:
    f.call(function, [], I64)


@template("cell:ptr")
def note_time(f: Body, cell: V) -> None:
    """Write the processor's clock."""
    f.store(f.call(f.table(I32, _TIME), [], I64), cell, 0, 8)


class Row(NamedTuple):
    """A step: its kernel's address, the address of its arguments, its items, the least of them worth a
    worker of its own, and whom it is named after."""

    kernel: int
    args: int
    items: int
    grain: int
    name: str


class Team:
    """`size` workers of `vlen` bits. `cores`: the processor each may run on, any where empty; `seconds`: the
    time one run may take. One thread runs at a time, others wait."""

    def __init__(self, shared: Shared, vlen: int, size: int, cores: Sequence[int] = (),
                 seconds: float | None = None, qemu: str | None = None) -> None:
        self.workers = [Worker(shared, vlen, qemu, seconds) for _ in range(size)]
        self.cores = cores
        self._lock = threading.Lock()

    def run(self, lists: Sequence[Calls]) -> None:
        """Let the first workers do a list each. Raises Fail, see `emulator.run`."""
        with self._lock:
            run(self.workers[:len(lists)], lists, self.cores)

    def part(self) -> None:
        """In a child process: have other workers."""
        self._lock = threading.Lock()
        for worker in self.workers:
            worker.part()

    def close(self) -> None:
        """End the workers; a further run starts others."""
        for worker in self.workers:
            worker.close()


def shares(items: int, grain: int, workers: int) -> list[tuple[int, int]]:
    """The range of items of each worker, some of them empty: whole grains, as even as that goes."""
    grains = -(-items // grain)
    edges = [min(items, grain * (grains * i // workers)) for i in range(workers + 1)]
    return list(zip(edges, edges[1:], strict=False))


class Lists:
    """The calls for each worker to do the steps `rows`; worker i has its scratch memory at `scratch[i]`.
    `barrier` and `clock`: addresses of `gather_workers` and `note_time`, the latter 0 where times are not
    wanted."""

    def __init__(self, shared: Shared, rows: Sequence[Row], scratch: Sequence[int], barrier: int,
                 clock: int = 0) -> None:
        size = len(scratch) if any(row.items > row.grain for row in rows) else 1
        self._shared = shared
        self._gates = self._cells(len(rows), 4)
        self._gates[:, 1] = size
        self._stamps = self._cells(size, len(rows), 2, 2)
        lists: list[list[Call]] = [[] for _ in range(size)]
        for i, row in enumerate(rows):
            for w, (begin, end) in enumerate(shares(row.items, row.grain, size)):
                mine = [Call(row.kernel, row.args, begin, end, scratch[w], row.name)] if end > begin else []
                if clock and mine:
                    first, last = (Call(clock, cell.ctypes.data, 0, 1, 0, "the clock")
                                   for cell in self._stamps[w, i])
                    mine = [first, *mine, last]
                if size > 1 and i + 1 < len(rows):
                    gate = self._gates[i].ctypes.data
                    mine.append(Call(barrier, gate, 0, 1, 0, f"the wait for {row.name}"))
                lists[w] += mine
        self.calls = [Calls(shared, made) for made in lists]

    def _cells(self, *shape: int) -> np.ndarray:
        """Rows of cells in shared memory, 0 but for the first, which holds the address of the row's last."""
        made, width = self._shared.array(shape, "int64"), shape[-1]
        made[...] = 0
        row = np.arange(made.size // width).reshape(shape[:-1])
        made[..., 0] = made.ctypes.data + 8 * (width * row + width - 1)
        return made

    def run(self, team: Team) -> np.ndarray:
        """Do the steps once. Gives the clock by worker and step at the begin and at the end, 0 where it was
        not noted."""
        self._gates[:, 2] = os.getpid()
        self._gates[:, -1] = 0
        self._stamps[..., -1] = 0
        team.run(self.calls)
        return self._stamps[..., -1].copy()

    def release(self) -> None:
        for calls in self.calls:
            calls.release()
        for cells in (self._gates, self._stamps):
            self._shared.release(cells.ctypes.data)
