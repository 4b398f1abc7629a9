"""NonMaxSuppression on the CPU provider: generated code orders the boxes and compares them.

In: arrays of a node's inputs. Out: its rows. What the kernel writes to belongs to one run at a time: a run
takes an entry out of those that lie ready, and puts it back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...codegen.kernels import nms
from ...codegen.machines.machine import Machine
from ...codegen.runtime.threads import pool
from ...codegen.write import notes
from ...kernels import OpKernelInfo, readable
from ...limits import current
from ...ops.nn.sampling import NonMaxSuppression, suppression_limits
from .called import called

_SMALL = 1 << 14
"""Boxes in all up to which one thread compares them."""

_READY = 8
"""Kinds of calls that are kept ready."""

_LAST = 1 << 31
"""Boxes that a place of 32 bits does not count."""


@dataclass
class _Ready:
    """A call for inputs of certain shapes and bounds: `run(boxes, scores, rows)`, the last of
    `shape`, `counts` of which are then written; `note`: see `notes`."""

    run: Callable[..., None]
    shape: tuple[int, ...]
    counts: np.ndarray
    note: np.ndarray


class Suppression:
    """The kernel of a node: an item for each image and class, side by side on the pool's threads."""

    def __init__(self, info: OpKernelInfo, target: Machine) -> None:
        self.target, self.threads = target, info.provider.threads
        self.centered = info.attribute("center_point_box")
        self.ready: dict[tuple[Any, ...], _Ready] = {}

    def __call__(self, boxes: np.ndarray, scores: np.ndarray, *bounds: np.ndarray | None) -> np.ndarray:
        key = self._key(boxes, scores, bounds)
        ready = self.ready.pop(key, None) or self._checked(boxes, scores, bounds)
        if ready is None:
            return NonMaxSuppression(boxes, scores, *bounds, center_point_box=self.centered)
        rows = np.empty(ready.shape, np.int64)
        ready.run(*map(np.asarray, readable((boxes, scores))), rows)
        if self.target.checked:
            notes.refuse(ready.note, "suppressed", None)
        counts = ready.counts.tolist()
        if len(self.ready) >= _READY:
            self.ready.clear()
        self.ready[key] = ready
        if len(rows) == 1:
            return rows[0, :counts[0]].copy()
        return np.concatenate([found[:count] for found, count in zip(rows, counts, strict=True)])

    def _key(self, boxes: np.ndarray, scores: np.ndarray, bounds: Sequence[np.ndarray | None]
             ) -> tuple[Any, ...]:
        """What a call depends on but the elements of boxes and scores."""
        return boxes.shape, scores.shape, *[None if b is None else tuple(b.ravel().tolist()) for b in bounds]

    def _checked(self, boxes: np.ndarray, scores: np.ndarray, bounds: Sequence[np.ndarray | None]
                 ) -> _Ready | None:
        """A new call; None where there is none for such inputs. Raises ValueError where they do not fit."""
        most, limit, least = suppression_limits(boxes, scores, *bounds, center_point_box=self.centered)
        images, classes, total = scores.shape
        lists, most = images * classes, min(most, total)
        if most <= 0 or not lists or total >= _LAST or lists * most * 24 > current().max_tensor_bytes:
            return None
        return self._made(images, classes, total, most, limit, least)

    def _made(self, images: int, classes: int, total: int, most: int, limit: float, least: float | None
              ) -> _Ready:
        target, lists = self.target, images * classes
        counts = np.zeros(lists, np.int64)
        used = 1 if lists * total < _SMALL else min(self.threads or pool().capacity, pool().capacity)
        bits = [int(np.float32(x).view(np.int32)) for x in (limit, least or 0.0)]
        run, note = called(
            target, nms.suppressed(centered=bool(self.centered), bounded=least is not None),
            (0, 0, total, classes, most, *bits, 0, counts),
            {0: 16 * images * total, 1: 4 * lists * total, 7: 24 * lists * most}, lists,
            nms.scratch(total, most, target.lanes()), used)
        return _Ready(run, (lists, most, 3), counts, note)
