"""Unique of both domains on the CPU provider: generated code that finds elements by their hashes.

In: an array of the node's input. Out: its results. What the kernel writes to belongs to one run at a time: a
run takes an entry out of those that lie ready, and puts it back.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...codegen.kernels import distinct
from ...codegen.machines.machine import Machine
from ...codegen.write import notes
from ...codegen.write.expr import LLVM
from ...ir import No
from ...kernels import OpKernelInfo, readable
from ...limits import HARMLESS, reserve
from ...ops.tensor.selection import sort_keys
from .called import called

MOST = 1 << 16
"""Elements up to which they are found in a table, which the caches hold then."""
FEW = 1 << 10
"""Elements up to which the kernel puts those that are distinct in order; numpy is faster for more."""


@dataclass
class _Ready:
    """`run(x, inverse)` for so many elements at most: see `distinct_elements`; `note`: see `notes`."""

    run: Callable[..., None]
    first: np.ndarray
    counts: np.ndarray
    sizes: np.ndarray
    note: np.ndarray


class Distinct:
    """The kernel of a node; what it is not for is computed by the definition, `otherwise`."""

    def __init__(self, dtype: np.dtype[Any], target: Machine, ordered: bool, positions: bool,
                 otherwise: Callable[..., Any]) -> None:
        self.dtype, self.target, self.otherwise = dtype, target, otherwise
        self.ordered, self.positions = ordered, positions
        self.ready: dict[int, _Ready] = {}

    @classmethod
    def of(cls, info: OpKernelInfo, target: Machine, otherwise: Callable[..., Any]) -> Distinct | No:
        """That of a node; No where it is for slices, or elements that kernels do not compute with."""
        dtype = info.input_dtypes[0]
        if dtype is None or dtype.name not in LLVM or dtype.kind == "b":
            return No("no generated kernel for its elements")
        if info.attribute("axis") is not None:
            return No("no generated kernel for slices")
        own = info.node.domain == ""
        return cls(dtype, target, own and bool(info.attribute("sorted")), own, otherwise)

    def __call__(self, x: np.ndarray) -> Any:
        n = x.size
        if not 0 < n <= MOST or x.dtype != self.dtype or not (self.positions or x.ndim == 1):
            return self.otherwise(x)
        room = n if self.target.checked else 1 << (n - 1).bit_length()
        ready = self.ready.pop(room, None) or self._made(room)
        if 64 * n > HARMLESS:
            reserve(64 * n)
        (x,) = readable((x,))
        inverse = np.empty(n, np.int64)
        ready.sizes[0] = n
        ready.run(x, inverse)
        if self.target.checked:
            notes.refuse(ready.note, "distinct", None)
        found = ready.sizes.item(1)
        first, counts = ready.first[:found].copy(), ready.counts[:found].copy()
        self.ready[room] = ready
        elements = x.reshape(-1).take(first)
        if self.ordered and room > FEW:
            order = sort_keys(elements).argsort()
            place = np.empty(found, np.int64)
            place[order] = np.arange(found)
            return elements[order], first[order], place[inverse], counts[order]
        return (elements, first, inverse, counts) if self.positions else (elements, inverse, counts)

    def _made(self, room: int) -> _Ready:
        target, bits = self.target, max((2 * room - 1).bit_length(), 6)
        first, counts = np.empty((2, room), np.int64)
        sizes, ordered = np.zeros(2, np.int64), self.ordered and room <= FEW
        run, note = called(
            target, distinct.distinct_elements(dtype=self.dtype.name, ordered=ordered),
            (0, first, 0, counts, sizes, bits, room), {0: self.dtype.itemsize * room, 2: 8 * room},
            scratch=distinct.scratch(room, bits, ordered), hold=room <= FEW)
        return _Ready(run, first, counts, sizes, note)
