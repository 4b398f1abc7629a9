"""Numbers counted by bins, as `numpy.histogram` counts them.

In: edges, and arrays, one after the other. Out: how many of the numbers lie between each two edges; one that
lies on an edge is above it, but for the last edge. The invariant: dividing the numbers into arrays otherwise
changes nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .refused import InvalidValue


class Counting:
    """Bins between `edges`, and `counts` by bin. `span`: the number of bins and the outermost edges, where
    all bins are of one width; `reach`: the last edge as it was given. `margin`: how many of the bins on
    either side a narrower histogram does not have. `magnitudes`: count without signs."""

    def __init__(self, edges: np.ndarray, dtype: Any, *, magnitudes: bool = False, margin: int = 0,
                 span: tuple[int, Any, Any] | None = None) -> None:
        self.edges, self.dtype, self.magnitudes, self.margin = edges, np.dtype(dtype), magnitudes, margin
        self.span, self.reach = span, edges[-1] if span is None else span[2]
        self.counts = np.zeros(len(edges) - 1, np.int64)

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

    def add(self, array: np.ndarray) -> None:
        """Count the numbers of an array."""
        if self.magnitudes:
            array = np.absolute(array)
        if self.span is None:
            self.counts += np.histogram(array, self.edges)[0]
        else:
            bins, first, last = self.span
            self.counts += np.histogram(array, bins, (first, last))[0]
