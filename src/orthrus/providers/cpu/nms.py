"""NonMaxSuppression on the CPU provider: the definition, with the comparison of boxes generated."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...codegen.kernels import nms
from ...codegen.machines.machine import Machine
from ...codegen.object import library
from ...codegen.runtime import call_kernel, entry
from ...codegen.runtime.threads import pool
from ...codegen.write import notes
from ...kernels import OpKernelInfo
from ...ops.nn.sampling import suppressed

_SMALL = 1 << 14
"""Boxes in all up to which one thread compares them."""


def kernel(info: OpKernelInfo, target: Machine) -> Callable[..., Any]:
    """A list of boxes for each image and class, side by side on the pool's threads."""
    best = functools.partial(_best, target, info.provider.threads)
    return functools.partial(suppressed, best, center_point_box=info.attribute("center_point_box"))


def _best(target: Machine, threads: int, lists: Sequence[tuple[np.ndarray, np.ndarray]], most: int,
          limit: float) -> list[np.ndarray]:
    starts = np.cumsum([0, *(len(low) for low, _ in lists)], dtype=np.int64)
    total, longest = int(starts[-1]), int(np.diff(starts).max())
    most = min(most, longest)
    boxes = np.empty((2, 2, total), np.float32)
    for side in (0, 1):
        np.concatenate([pair[side] for pair in lists], out=boxes[side].T)
    chosen, counts = np.empty(total, np.int64), np.empty(len(lists), np.int64)
    used = 1 if total < _SMALL else min(threads or pool().capacity, pool().capacity)
    size = -(-nms.scratch(most, target.lanes()) // 64) * 64
    room = np.empty(size * used + 64, np.uint8)
    bits = int(np.float32(limit).view(np.int32))
    note = np.zeros(notes.NOTED, np.int64)
    cells, first = call_kernel.laid((boxes, total, starts, most, bits, chosen, counts), target, size, note)
    (kernel,) = library.addresses([nms.suppressed()], target)
    table = np.array([[kernel, cells.ctypes.data + 8 * first, len(lists), 1]], np.int64)
    entry.make(entry.block(table, threads=used, scratch=room.ctypes.data + -room.ctypes.data % 64,
                           scratch_size=size))()
    notes.refuse(note, "suppressed", None)
    return [chosen[begin:begin + count]
            for begin, count in zip(starts.tolist(), counts.tolist(), strict=False)]
