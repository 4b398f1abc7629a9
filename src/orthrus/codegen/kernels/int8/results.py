"""Storing sums of products of bytes: which positions of a line are kept, and where they go.

In: tiles of int32 sums, row by row, a row per position. Out: the tree of each, stored; leaf 0 is the sum,
leaf i operand i - 1.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...write.body import Body
from ...write.emit import I8, I32, I64, PTR, V, vec
from ...write.expr import BYTES, Expr
from ...write.tile import Corner, Masks, Operand, TileEpilogue

CELLS = ("a:ptr b:ptr start:ptr out:ptr taps:ptr count:i64 run:i64 step:i64 line_step:i64 length:i64 n:i64 "
         "width:i64 valid:i64 out_line:i64 out_row:i64 out_col:i64 "
         "tiles:i64 tall:i64 per_rows:i64 row_blocks:i64 per_cols:i64 col_blocks:i64 b_line:i64 "
         "start_line:i64")


class Results:
    """Where results go: position p of a line is column p % width of row p / width, kept where less than
    `valid`. `panel`: vectors across, and their lanes. `moving`: which operands differ from one position to
    another, all of them where None. Behind `cells`, per operand: its address and its
    strides over lines, rows and positions."""

    def __init__(self, f: Body, out: V, n: V, width: V, valid: V, strides: tuple[V, V, V],
                 panel: tuple[int, int], tree: Expr, operands: tuple[Operand, ...], flat: bool, tail: bool,
                 cells: str = CELLS, moving: Sequence[bool] | None = None) -> None:
        self.f, self.n, self.width, self.valid, self.flat, self.tail = f, n, width, valid, flat, tail
        self.finish = TileEpilogue(f, tree, operands)
        self.cols, self.lanes = panel
        first = len(cells.split())
        sides = [(f.arg(first + 4 * i, PTR), *(f.arg(first + 4 * i + j, I64) for j in (1, 2, 3)))
                 for i in range(len(operands))]
        moving = [True] * len(operands) if moving is None else moving
        self.targets = [(out, strides, BYTES[tree.dtype], True, True),
                        *((at, (line, row, col), BYTES[o.dtype], o.col, moves)
                          for (at, line, row, col), o, moves in zip(sides, operands, moving, strict=True))]

    def places(self, line: V, y: V | int, x: V, column: V) -> list[Corner]:
        """The result's and the operands' for the position at row `y` and column `x`."""
        f, made = self.f, []
        for at, (by_line, by_row, by_col), size, across, moves in self.targets:
            there = line * by_line + x * by_col if moves else f.i64(0)
            if moves and not isinstance(y, int):
                there = there + y * by_row
            made.append(Corner(f.gep(at, (there + column if across else there) * size, I8), by_col))
        return made

    def masks(self, column: V) -> Masks:
        return [self.f.mask(self.lanes, self.n - column - j * self.lanes) if self.tail else None
                for j in range(self.cols)]

    def keep(self, line: V, first: V, count: V | int, column: V, masks: Masks, room: V) -> None:
        """Store the rows of int32 at `room` that are kept."""
        f, cols = self.f, self.cols
        ty = vec(I32, self.lanes)
        if self.flat:
            out, *rest = self.places(line, 0, first, column)
            self.finish.store_from(room, ty, count, cols, out, rest, masks)
            return
        total = f.i64(count)

        def stretch(r: V, y: V, x: V) -> tuple[V, list[V]]:
            kept = x < self.valid
            size = f.fast_min(f.select(kept, self.valid - x, self.width - x), total - r)

            def store() -> None:
                out, *rest = self.places(line, y, x, column)
                self.finish.store_from(f.gep(room, r * (cols * self.lanes), I32), ty, size, cols, out, rest,
                                       masks)
            f.when(kept, store)
            following, after = r + size, x + size
            wrap = after.eq(self.width)
            return following < total, [following, f.select(wrap, y + 1, y), f.select(wrap, 0, after)]
        y = first // self.width
        f.repeat([f.i64(0), y, first - y * self.width], stretch)


def block_of(f: Body, i: V, rows: tuple[V, V, V], columns: tuple[V, V, V]) -> tuple[V, V, V, V, V]:
    """The line of item `i`, its first tile and its end, its first panel and its end. In: per direction how
    many of them a block has, how many blocks there are, how many tiles or panels."""
    (per_rows, row_blocks, tiles), (per_cols, col_blocks, panels) = rows, columns
    rest = i // col_blocks
    across = i - rest * col_blocks
    line = rest // row_blocks
    t0 = (rest - line * row_blocks) * per_rows
    p0 = across * per_cols
    return line, t0, f.fast_min(t0 + per_rows, tiles), p0, f.fast_min(p0 + per_cols, panels)
