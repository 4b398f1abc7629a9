"""Numbers counted by bins, as `numpy.histogram` counts them.

In: edges, and arrays, one after the other. Out: how many of the numbers lie between each two edges; one that
lies on an edge is above it, but for the last edge. The invariant: dividing the numbers into arrays otherwise
changes nothing.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from ..refused import InvalidValue

_FEW = 1 << 12
"""Elements up to which numpy is as fast as generated code."""
_MOST_BINS = 1 << 16
_ROUNDINGS = 16
"""How many times the rounding of the largest edge a bin has to be wide for generated code to find it."""
_ITEMS = 8
"""Parts of an array that have counts of their own."""


class Counting:
    """Bins between `edges`, and `counts` by bin. `span`: the number of bins and the outermost edges, where
    all bins are of one width; `reach`: the last edge as it was given. `margin`: how many of the bins on
    either side a narrower histogram does not have. `magnitudes`: count without signs."""

    def __init__(self, edges: np.ndarray, dtype: Any, *, magnitudes: bool = False, margin: int = 0,
                 span: tuple[int, Any, Any] | None = None) -> None:
        self.edges, self.dtype, self.magnitudes, self.margin = edges, np.dtype(dtype), magnitudes, margin
        self.span, self.reach = span, edges[-1] if span is None else span[2]
        self.counts = np.zeros(max(len(edges) - 1, 0), np.int64)
        self.even = len(edges) > 0 and span is not None and _even(edges)

    @classmethod
    def uniform(cls, bins: int, first: Any, last: Any, dtype: Any, *, magnitudes: bool = False,
                margin: int = 0, edges: np.ndarray | None = None) -> Counting:
        """`bins` of one width from `first` to `last`; `edges` where they were computed before."""
        if edges is None:
            try:
                edges = np.histogram_bin_edges(np.empty(0, dtype), bins, (first, last))
            except ValueError as error:
                raise InvalidValue(f"no histogram can be made: {error}", expected="fewer bins",
                                   found=f"{bins} bins of {np.dtype(dtype)} from {first} to {last}",
                                   cure="lower num_bins") from None
        return cls(edges, dtype, magnitudes=magnitudes, margin=margin, span=(bins, first, last))

    @classmethod
    def none(cls, reach: Any) -> Counting:
        """No bins, for numbers up to `reach`."""
        return cls(np.empty(0, reach.dtype), reach.dtype, span=(0, -reach, reach))

    def add(self, array: np.ndarray) -> None:
        """Count the numbers of an array."""
        if not len(self.counts):
            return
        if self.even and (found := _counted(array, self.edges, self.magnitudes)) is not None:
            self.counts += found
            return
        if self.magnitudes:
            array = np.absolute(array)
        if self.span is None:
            self.counts += np.histogram(array, self.edges)[0]
        else:
            bins, first, last = self.span
            self.counts += np.histogram(array, bins, (first, last))[0]


def _even(edges: np.ndarray) -> bool:
    """Whether bins of one width are wide enough that generated code finds those that numpy finds."""
    bins = len(edges) - 1
    if edges.dtype != np.float32 or bins > _MOST_BINS:
        return False
    width = (float(edges[-1]) - float(edges[0])) / bins
    least = _ROUNDINGS * float(np.spacing(np.abs(edges).max()))
    return least < width < float(np.finfo(np.float32).max) / bins


def _counted(array: np.ndarray, edges: np.ndarray, magnitudes: bool) -> np.ndarray | None:
    """The counts in generated code; None for an array that is not of float32 and in one piece, or is small,
    and where no code is generated."""
    if array.dtype != np.float32 or array.size < _FEW or (machine := _machine()) is None:
        return None
    flat = array.ravel("K")
    if not np.may_share_memory(flat, array):
        return None
    from ...codegen.kernels.histogram import ROWS, histogram_parts
    from ...codegen.runtime import call_kernel

    bins, chunk = len(edges) - 1, -(-flat.size // _ITEMS)
    counts = np.zeros((_ITEMS * ROWS, bins + 1), np.int32)
    call_kernel.run(machine, histogram_parts(magnitudes=magnitudes),
                    [flat, edges, counts, flat.size, bins, chunk], _ITEMS)
    made: np.ndarray = counts[:, :bins].sum(0, dtype=np.int64)
    return made


@functools.cache
def _machine() -> Any:
    """What code is generated for, None where none is."""
    from ...codegen.machines.detect import host
    from ...codegen.object import library

    return host() if library.available() is None else None
