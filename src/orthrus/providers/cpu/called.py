"""One kernel by itself, called by a registered one with arrays of its run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ...codegen.machines.machine import Machine
from ...codegen.object import library
from ...codegen.runtime import call_kernel, entry
from ...codegen.write import notes
from ...codegen.write.spec import Spec


def called(target: Machine, spec: Spec, args: Sequence[Any], fed: Mapping[int, int], items: int = 1,
           scratch: int = 0, threads: int = 1, grain: int = 1, hold: bool = False
           ) -> tuple[Callable[..., None], np.ndarray]:
    """A function that calls the kernel of `spec` with arrays for those of its `args` that are `fed`, which
    have so many bytes; and its note, see `notes`. Other arrays stand for their addresses. `scratch`: bytes of
    each of `threads`; `hold`: keep the interpreter's lock."""
    size = -(-scratch // 64) * 64
    note = np.zeros(notes.NOTED, np.int64)
    memory = call_kernel.aligned((size * threads,), np.uint8)
    (kernel,) = library.addresses([spec], target)
    cells, first = call_kernel.laid(args, target, size, note)
    patches = []
    for array, (number, span) in enumerate(fed.items()):
        patches.append((array, first + number, 0))
        if target.checked:
            edge = first + notes.edge(number)
            patches += [(array, edge, 0), (array, edge + 1, span)]
    rows = np.array([(array, cells.ctypes.data + 8 * cell, more) for array, cell, more in patches], np.int64)
    table = np.array([[kernel, cells.ctypes.data + 8 * first, items, grain]], np.int64)
    return entry.make(entry.block(
        table, len(fed), rows, threads=threads, scratch=memory.ctypes.data, scratch_size=size, hold=hold,
        keep=(cells, *args, memory, note))), note
