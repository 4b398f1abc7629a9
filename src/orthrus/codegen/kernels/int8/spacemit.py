"""Products of bytes on cores with SpacemiT's matrix instruction: sums exact in int32.

In and out as in `int8`. An item copies its rows of A once into the order the instruction reads them, tiles of
(M, K) one after another; B is packed so that (N, K) of a panel are adjacent.
"""

from __future__ import annotations

from ...machines.machine import Machine
from ...write import spacemit_matrix
from ...write.body import Body
from ...write.emit import I8, I32, I64, V, vec
from ...write.expr import Expr
from ...write.template import template
from ...write.tile import Operand
from .results import CELLS, Results, block_of

DOWN, ACROSS = 3, 4
"""Tiles of the instruction that are computed together: their sums take 24 of 32 registers."""


def shape(machine: Machine) -> tuple[int, int, int]:
    """Positions and columns that are computed together, and bytes of K in a step."""
    assert machine.matrix is not None
    m, n, k = machine.matrix
    return DOWN * m, ACROSS * n, k


def scratch(machine: Machine) -> int:
    """Bytes for the sums of one instruction."""
    assert machine.matrix is not None
    return 4 * machine.matrix[0] * machine.matrix[1]


@template(CELLS)
def int8_ime(f: Body, a: V, b: V, start: V, out: V, taps: V, count: V, run: V, step: V, line_step: V,
             length: V, n: V, width: V, valid: V, out_line: V, out_row: V, out_col: V, tiles: V, tall: V,
             per_rows: V, row_blocks: V, per_cols: V, col_blocks: V, b_line: V, start_line: V, *,
             signed: bool, flat: bool, tail: bool, tree: Expr, operands: tuple[Operand, ...]) -> None:
    """Item (line * row_blocks + rows) * col_blocks + columns; all lines have one B. Scratch: the sums of one
    tile, those of one instruction, the item's rows of A."""
    assert f.machine.matrix is not None
    m, across, depth = f.machine.matrix
    height, panel, _ = shape(f.machine)
    results = Results(f, out, n, width, valid, (out_line, out_row, out_col),
                      (panel // f.machine.lanes(), f.machine.lanes()), tree, operands, flat, tail)
    room = f.scratch
    one = f.gep(room, 4 * height * panel, I8)
    copies = f.gep(one, 4 * m * across, I8)
    row, piece = vec(I32, across), vec(I8, depth)
    size = count * run * height

    def copy(line: V, t: V, to: V) -> None:
        """The rows of A of tile `t`; behind the last one that again."""
        def each(r: V) -> None:
            position = f.fast_min(t * height + r, length - 1)
            base = f.gep(a, line * line_step + position * step, I8)

            def tap(i: V, to: V) -> V:
                source = f.gep(base, f.load(I64, taps, i), I8)

                def move(k: V, to: V) -> V:
                    f.store(f.load(piece, source, k), to)
                    return f.gep(to, height * depth, I8)
                return f.loop(0, run, depth, [to], move)[0]
            f.loop(0, count, 1, [f.gep(to, r * depth, I8)], tap)
        f.loop(0, height, 1, [], each)

    def tile(line: V, t: V, column: V, a_at: V, b_at: V) -> None:
        repeated = [lane for _ in range(m) for lane in range(across)]
        starts = [f.shuffle(f.load(row, start, column + c * across), None, repeated) for c in range(ACROSS)]

        def steps(_: V, a_at: V, b_at: V, *acc: V) -> list[V]:
            rows = [f.load(vec(I8, m * depth), a_at, r * m * depth) for r in range(DOWN)]
            made = list(acc)
            columns = [f.load(vec(I8, across * depth), b_at, c * across * depth) for c in range(ACROSS)]
            for c in range(ACROSS):
                for r in range(DOWN):
                    made[r * ACROSS + c] = spacemit_matrix.multiply(
                        f, made[r * ACROSS + c], rows[r], columns[c], signed, True)
            return [f.gep(a_at, height * depth, I8), f.gep(b_at, panel * depth, I8), *made]
        acc = f.loop(0, count * run, depth, [a_at, b_at, *starts * DOWN], steps)[2:]
        for i, total in enumerate(acc):
            r, c = divmod(i, ACROSS)
            f.store(total, one)
            for j in range(m):
                f.store(f.load(row, one, j * across), room, (r * m + j) * panel + c * across)
        first = t * height
        results.keep(line, first, f.fast_min(length - first, height), column, results.masks(column), room)

    def item(i: V) -> None:
        line, t0, t1, p0, p1 = block_of(f, i, (per_rows, row_blocks, tiles),
                                        (per_cols, col_blocks, (n + (panel - 1)) // panel))
        f.loop(t0, t1, 1, [], lambda t: copy(line, t, f.gep(copies, (t - t0) * size, I8)))
        f.loop(p0, p1, 1, [], lambda p: f.loop(t0, t1, 1, [], lambda t: tile(
            line, t, p * panel, f.gep(copies, (t - t0) * size, I8), f.gep(b, p * (count * run * panel), I8))))
    f.loop(f.lo, f.hi, 1, [], item)
