"""How products with weights of few bits are divided: panels of columns by tiles of rows.

In: sizes. Out: items, each a panel by some tiles, and what their kernels have in common: the loops over
tiles, and where results and operands lie.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ....records import dataclass
from ....shapes.symbolic import choice
from ...machines.machine import Machine
from ...write.body import Body
from ...write.emit import I64, PTR, V
from ...write.expr import BYTES
from ...write.tile import Corner, Masks, Operand

CELLS = "n:i64 k:i64 c_row:i64 tiles:i64 tall:i64 per_rows:i64 row_blocks:i64"


@dataclass(frozen=True)
class Tiles:
    """Rows are `tiles` tiles, the first `tall` of heights[0] rows, the others one less; an item is `per_rows`
    tiles by a panel of `cols` vectors."""

    cols: int
    heights: tuple[int, ...]
    tail: bool
    tiles: int
    tall: int
    per_rows: int
    row_blocks: int
    items: int
    grain: int

    def cells(self) -> tuple[int, ...]:
        """The arguments from `tiles` on, before those of the operands."""
        return self.tiles, self.tall, self.per_rows, self.row_blocks


@choice()
def plan(machine: Machine, m: int, n: int, k: int, wide: int, tallest: int, size: int, split: int) -> Tiles:
    """Divide C (m, n), its panels `wide` columns each, into tiles of up to `tallest` rows. `size`: bytes of
    an element of A; `split`: multiply-adds below which work is not divided among threads."""
    tiles = max(1, -(-m // tallest))
    height = -(-m // tiles)
    tall = m - tiles * (height - 1)
    per_rows = max(1, min(tiles, machine.l2 // 2 // max(1, height * k * size)))
    row_blocks = -(-tiles // per_rows)
    items = -(-n // wide) * row_blocks
    heights = (height, height - 1) if tall < tiles else (height,)
    return Tiles(wide // machine.lanes(), heights, n % wide != 0, tiles, tall, per_rows, row_blocks, items,
                 max(1, -(-split * items // max(m * n * k, 1))))


def over(f: Body, cells: Sequence[V], heights: tuple[int, ...], cols: int, tail: bool,
         one: Callable[[V, V, int, V, Masks], None]) -> None:
    """Item panel * row_blocks + rows: `one` for each tile, with its panel, its first row, how many, its first
    column and which columns exist. `cells`: those of CELLS."""
    n, _, _, tiles, tall, per_rows, row_blocks = cells
    lanes, full = f.machine.lanes(), heights[0]

    def item(i: V) -> None:
        p = i // row_blocks
        t0 = (i - p * row_blocks) * per_rows
        t1 = f.fast_min(t0 + per_rows, tiles)
        col = p * (cols * lanes)
        masks = [f.mask(lanes, n - col - j * lanes) if tail else None for j in range(cols)]
        if len(heights) == 1:
            f.loop(t0, t1, 1, [], lambda t: one(p, t * full, full, col, masks))
            return
        f.loop(t0, f.fast_min(t1, tall), 1, [], lambda t: one(p, t * full, full, col, masks))
        f.loop(f.fast_max(t0, tall), t1, 1, [],
               lambda t: one(p, t * (full - 1) + tall, full - 1, col, masks))
    f.loop(f.lo, f.hi, 1, [], item)


def places(f: Body, cells: str, count: int) -> list[tuple[V, V]]:
    """Behind `cells`, for each operand: its address and its stride over rows."""
    first = len(cells.split())
    return [(f.arg(first + 2 * i, PTR), f.arg(first + 2 * i + 1, I64)) for i in range(count)]


def corners(f: Body, given: Sequence[tuple[V, V]], row: V, col: V, dtype: str, operands: Sequence[Operand]
            ) -> list[Corner]:
    """Where the result, of type `dtype`, and the operands begin at a row and a column."""
    kinds = [(dtype, True), *((o.dtype, o.col) for o in operands)]
    made = []
    for (at, stride), (name, across) in zip(given, kinds, strict=True):
        offset = stride * row + col if across else stride * row
        made.append(Corner(f.gep(at, offset * BYTES[name], "i8"), stride))
    return made
