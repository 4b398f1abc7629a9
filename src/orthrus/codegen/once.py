"""For work done once, such as packing weights: a kernel called from Python by itself, memory to fill."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import memory
from . import drive, entry, library
from .machine import Machine
from .template import Spec
from .threads import pool


def run(machine: Machine, spec: Spec, args: Sequence[np.ndarray | int], items: int) -> None:
    """Do all `items` of the kernel of `spec`, on every thread there is. `args`: its cells, an array standing
    for its address; the kernel takes no scratch."""
    (address,) = library.addresses([spec], machine)
    cells = np.array([a.ctypes.data if isinstance(a, np.ndarray) else a for a in args], np.int64)
    table = np.zeros((1, drive.STEP), np.int64)
    table[0] = address, cells.ctypes.data, items, max(1, items // 64)
    entry.make(entry.block(table, threads=pool().capacity, keep=(cells, args)))()


def aligned(shape: Sequence[int], dtype: Any = np.float32) -> np.ndarray:
    """New memory that starts at a cache line."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    return memory.take(size).view(dtype).reshape(shape)
