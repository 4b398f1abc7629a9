"""Running totals along rows: a tree over strided tensors in, at each place the total up to there out.

A block goes along its rows tile by tile and carries each row's total on.
"""

from __future__ import annotations

from ..epilogue import Closing, Reading
from ..trees import TYPES
from ..write import Writer, kernel
from .reductions import FOLDS, start, working
from .rows import Rows, Tile


@kernel
def running_rows(k: Writer, *, reading: Reading, closing: Closing, tile: Tile, kind: str, exclusive: bool,
                 reverse: bool) -> None:
    """The `sum` or `prod` up to each element of a row; with `exclusive` without it, with `reverse` from the
    row's end."""
    read, close = reading.declare(k), closing.declare(k)
    rows = Rows(k, tile, reading.walk.near(0) or closing.walk.near(0))
    dtype, fold = working(reading.tree.dtype), FOLDS[kind]
    none = k.let(f"tl.full((), {start(kind, dtype)}, {TYPES[dtype]})")
    k.text(f"carried = tl.full(({tile.rows}, 1), {start(kind, dtype)}, {TYPES[dtype]})")

    def place(at: str) -> str:
        return f"({rows.length} - 1 - {at})" if reverse else at
    with rows.columns():
        own = rows.inside
        if exclusive:
            k.text("before = c - 1")
            own = f"((c > 0) & (c <= {rows.length}))"
        x = read.load([("r", rows.mask), (place("before" if exclusive else "c"), own)])
        k.text(f"""
            met = tl.where({own}, {x}.to({TYPES[dtype]}), {none})
            so_far = {fold}(carried, tl.associative_scan(met, 1, {fold}))
            carried = {fold}(carried, tl.reduce(met, 1, {fold}, keep_dims=True))
        """)
        value = k.let(f"so_far.to({TYPES[reading.tree.dtype]})")
        close.store(value, [("r", rows.mask), (place("c"), rows.inside)])
