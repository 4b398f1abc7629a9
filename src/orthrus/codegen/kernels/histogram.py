"""How many elements lie in each of many bins.

In: float32 elements next to each other, and the edges of the bins. Out: counts for each item, which the
caller adds up: the items divide the elements, and the sums do not depend on how.
"""

from __future__ import annotations

from ..write.body import Body
from ..write.emit import F32, I32, I64, V, vec
from ..write.template import template

ROWS = 4
"""Rows of counts that an item of `histogram_parts` has: neighbours that lie in one bin do not wait for each
other."""


@template("x:ptr edges:ptr counts:ptr n:i64 bins:i64 chunk:i64")
def histogram_parts(f: Body, x: V, edges: V, counts: V, n: V, bins: V, chunk: V, *,
                    magnitudes: bool) -> None:
    """How many of each `chunk` elements lie in each of `bins` between `edges`, which rise by steps that are
    equal up to a small part of one; ROWS rows of 32-bit counts for an item, the last of each row for what
    lies in none. An element on an edge is above it, but for the last edge. `magnitudes`: signs are left out.
    """
    lanes = f.machine.lanes()
    floats = vec(F32, lanes)
    low, high = f.load(F32, edges), f.load(F32, edges, bins)
    scale = f.splat(f.cast(bins, F32) / (high - low), lanes)
    first, end_edge = f.splat(low, lanes), f.splat(high, lanes)
    top, none = f.splat(f.cast(bins - 1, I32), lanes), f.splat(f.cast(bins, I32), lanes)
    most = f.cast(top, F32)

    def bin_of(value: V) -> V:
        """A guess by the step, set right by the edges around it."""
        inside = (value >= first) & (value <= end_edge)
        guess = f.fast_max(f.fast_min((value - first) * scale, most), f.zero(floats))
        index = f.cast(guess, I32)
        below = (value < f.gather(F32, edges, index, mask=inside)) & inside
        index = f.select(below, index - 1, index)
        above = (value >= f.gather(F32, edges, index + 1, mask=inside)) & inside & index.ne(top)
        return f.select(inside, f.select(above, index + 1, index), none)

    def item(i: V) -> None:
        begin = i * chunk
        end = f.fast_min(begin + chunk, n)
        rows = [f.gep(counts, (i * ROWS + r) * (bins + 1), I32) for r in range(ROWS)]

        def some(j: V) -> None:
            value = f.load_masked(floats, x, j, f.mask(lanes, end - j), float("nan"))
            index = bin_of(f.unary("fabs", value) if magnitudes else value)
            for lane in range(lanes):
                at = f.cast(f.extract(index, lane), I64)
                row = rows[lane % ROWS]
                f.store(f.load(I32, row, at) + 1, row, at)
        f.loop(begin, end, lanes, [], some)
    f.loop(f.lo, f.hi, 1, [], item)
