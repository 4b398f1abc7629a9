"""For work done once, such as packing weights: a kernel called from Python by itself, memory to fill."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ... import memory
from ..machines.machine import Machine
from ..object import library
from ..write import notes
from ..write.spec import Spec
from . import entry
from .cells import STEP
from .threads import pool


def run(machine: Machine, spec: Spec, args: Sequence[np.ndarray | int], items: int) -> None:
    """Do all `items` of the kernel of `spec`, on every thread there is. `args`: its cells, an array standing
    for its address; the kernel takes no scratch."""
    (address,) = library.addresses([spec], machine)
    note = np.zeros(notes.NOTED, np.int64)
    cells, first = laid(args, machine, 0, note)
    table = np.zeros((1, STEP), np.int64)
    table[0] = address, cells.ctypes.data + 8 * first, items, max(1, items // 64)
    entry.make(entry.block(table, threads=pool().capacity, keep=(cells, args)))()
    notes.refuse(note, str(spec), None)


def laid(args: Sequence[np.ndarray | int], machine: Machine, scratch: int, note: np.ndarray
         ) -> tuple[np.ndarray, int]:
    """The cells of a kernel's arguments, an array standing for its address, and which of them is the first.
    `scratch`: bytes of each thread; `note`: where a kernel that looks where it reads and writes says so."""
    plain: list[Any] = [a.ctypes.data if isinstance(a, np.ndarray) else a for a in args]
    if not machine.checked:
        return np.array(plain, np.int64), 0
    edges = [_extent(a) if isinstance(a, np.ndarray) else (0, 0) for a in args]
    cells = notes.cells(plain, edges, scratch, note.ctypes.data)
    return np.array(cells, np.int64), notes.front(len(args))


def _extent(array: np.ndarray) -> tuple[int, int]:
    """Where the memory of an array begins and ends, however it lies."""
    at = array.ctypes.data
    if not array.size:
        return at, at
    ways = [(size - 1) * stride for size, stride in zip(array.shape, array.strides, strict=True)]
    return at + sum(min(way, 0) for way in ways), at + sum(max(way, 0) for way in ways) + array.itemsize


def aligned(shape: Sequence[int], dtype: Any = np.float32) -> np.ndarray:
    """New memory that starts at a cache line."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    return memory.take(size).view(dtype).reshape(shape)
