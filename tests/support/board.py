"""Kernels for RISC-V and for AArch64 run under emulation, as if arrays of this process were the worker's.

What a kernel gets is copied into the worker's memory, each array with all the memory it is a part of and
between pages nobody may touch; what the kernel wrote is copied back.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import mmap
from collections.abc import Iterable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np

from orthrus.codegen.emulate.emulator import Call, Calls, Worker
from orthrus.codegen.emulate.shared import PAGE, Shared
from orthrus.codegen.machines import detect
from orthrus.codegen.machines.machine import Machine
from orthrus.codegen.object import library
from orthrus.codegen.object.build import assemble
from orthrus.codegen.write.spec import Spec
from orthrus.lowering import device, native

_FORBIDDEN = 0
guards: dict[int, tuple[int, int]] = {}
"""First page of what lies between guarded ones -> begin and end of the content."""
chosen: list[Machine] = []
"""The last one is what kernels are compiled for and run on, whatever machine they are asked for."""
ran: list[str] = []
"""The kernels that ran, for tests that want to know."""
executed: set[tuple[str, str]] = set()
"""By architecture, the templates of which a kernel was brought into a worker."""


@contextlib.contextmanager
def on(target: Machine) -> Iterator[None]:
    """Single kernels, and the parts that sessions made inside give to the CPU provider, run on `target`."""
    entry = SimpleNamespace(block=lambda table, **given: _Part(target, table, **given),
                            make=lambda part: part.run)

    def brought(specs: Sequence[Spec], machine: Machine) -> list[int]:
        return [loaded(spec, machine) for spec in specs]
    chosen.append(target)
    try:
        with (mock.patch.object(detect, "host", lambda: target), mock.patch.object(device, "entry", entry),
              mock.patch.object(native.Native, "quick", lambda *_: None),
              mock.patch.object(library, "addresses", brought),
              mock.patch.object(library, "kernels", brought)):
            yield
    finally:
        chosen.pop()


@functools.cache
def worker(target: Machine) -> Worker:
    """The worker for kernels written for `target`: on ARM, a processor that has nothing beyond it."""
    model = ("neoverse-n1" if target.has("dotprod") else "cortex-a57") if target.arch == "aarch64" else None
    return _worker(target.arch, 8 * target.vector, model)


@functools.cache
def _worker(arch: str, bits: int, model: str | None) -> Worker:
    return Worker(Shared(arch), bits, seconds=60, model=model)


@functools.cache
def loaded(spec: Spec, target: Machine) -> int:
    """Where a kernel starts in the worker's memory."""
    executed.add((target.arch, spec.template))
    (found,) = worker(target).shared.load(
        [bytes(assemble(spec.text(target), target))])  # type: ignore[arg-type]
    return found["kernel"]


def _extent(x: np.ndarray) -> tuple[int, int]:
    """The addresses of all the memory `x` is a part of."""
    base: Any = x
    while base is not None:
        x = base if isinstance(base, np.ndarray) else x
        base = getattr(base, "base", None)
    first = x.ctypes.data // PAGE * PAGE
    for page in (first, first - PAGE):
        if page in guards and x.ctypes.data <= guards[page][1]:
            return guards[page]
    begin = end = x.ctypes.data
    if x.size:
        for size, stride in zip(x.shape, x.strides, strict=True):
            begin, end = begin + min(0, (size - 1) * stride), end + max(0, (size - 1) * stride)
        end += x.itemsize
    return begin, end


class _Copy:
    """A copy of the memory of some arrays in a worker's memory."""

    def __init__(self, board: Worker, arrays: Iterable[np.ndarray]) -> None:
        self.board, self.spans = board, []
        for low, high in sorted({_extent(x) for x in arrays}):
            if self.spans and low < self.spans[-1][1]:
                first, last = self.spans.pop()
                low, high = first, max(high, last)
            self.spans.append((low, high))
        self.places, self.edges = [], [0]
        for low, high in self.spans:
            self.places.append(self.edges[-1] + PAGE + low % PAGE)
            self.edges.append(-(-(self.places[-1] + high - low) // PAGE) * PAGE)
        self.size = self.edges[-1] + PAGE
        self.area = board.shared.take(self.size, PAGE)
        for low, high in self.spans:
            ctypes.memmove(self.there(low), low, high - low)

    def there(self, at: int) -> int:
        """Where in the copy what lies at `at` is."""
        i = max(i for i, (low, _) in enumerate(self.spans) if low <= at)
        return self.area + self.places[i] + at - self.spans[i][0]

    def move(self, cells: np.ndarray) -> None:
        """Let the cells in the copy that hold addresses hold the copies' addresses."""
        moved = cells.copy()
        for i, value in enumerate(cells.tolist()):
            if any(low <= value <= high for low, high in self.spans):
                moved[i] = self.there(value)
        ctypes.memmove(self.there(cells.ctypes.data), moved.ctypes.data, moved.nbytes)

    def run(self, calls: list[Call], cells: np.ndarray) -> None:
        """Run the calls, and bring back what they changed; `cells` stay as they are."""
        made = Calls(self.board.shared, calls)
        ran.extend(made.names)
        try:
            for edge in self.edges:
                self.board.protect(self.area + edge, PAGE, _FORBIDDEN)
            self.board.run(made)
            self.board.protect(self.area, self.size, mmap.PROT_READ | mmap.PROT_WRITE)
            ctypes.memmove(self.there(cells.ctypes.data), cells.ctypes.data, cells.nbytes)
            for low, high in self.spans:
                if ctypes.string_at(self.there(low), high - low) != ctypes.string_at(low, high - low):
                    ctypes.memmove(low, self.there(low), high - low)
        finally:
            made.release()
            self.board.shared.release(self.area)


def run(spec: Spec, arrays: Sequence[np.ndarray], row: np.ndarray, edges: Sequence[int], scratch: int,
        target: Machine) -> None:
    """Call a kernel with the cells `row`, which name `arrays`, on the items between the edges."""
    room = np.full(scratch + 64, 0xFF, np.uint8)
    copy = _Copy(worker(target), [*arrays, row, room])
    copy.move(row)
    own = copy.there(room.ctypes.data)
    copy.run([Call(loaded(spec, target), copy.there(row.ctypes.data), lo, hi, own + -own % 64, str(spec))
              for lo, hi in zip(edges, edges[1:], strict=False)], row)


class _Part:
    """Steps of a part, as the CPU provider lays them out for its own threads."""

    def __init__(self, target: Machine, table: np.ndarray, *, patches: np.ndarray, scratch: int,
                 keep: tuple[device.Arena, np.ndarray, dict[int, np.ndarray], list[int]], **_: Any) -> None:
        self.target, self.table, self.patches, self.scratch = target, table, patches, scratch
        arena, self.cells, kept, _ = keep
        self.block, self.kept = arena.room, list(kept.values())

    def run(self, *arrays: np.ndarray) -> None:
        for index, at, offset in self.patches.tolist():
            ctypes.c_int64.from_address(at).value = arrays[index].ctypes.data + offset
        copy = _Copy(worker(self.target), [*arrays, self.block, self.cells, *self.kept])
        copy.move(self.cells)
        copy.run([Call(kernel, copy.there(args), 0, items, copy.there(self.scratch), f"step {i}")
                  for i, (kernel, args, items, *_) in enumerate(self.table.tolist())], self.cells)


