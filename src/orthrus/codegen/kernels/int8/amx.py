"""Products of bytes on x86's matrix unit (AMX): tiles of 32 positions by 32 columns, sums exact in int32.

In and out as in `int8`; a tap's `run` is a multiple of 64 bytes. Both signs of A are multiplied as they are.
"""

from __future__ import annotations

from ...machines.machine import Machine
from ...write.body import Body
from ...write.emit import I8, I64, V
from ...write.expr import Expr
from ...write.template import template
from ...write.tile import Masks, Operand
from .. import amx
from .results import CELLS, Results, block_of

CHUNK = 64
"""Bytes of K in a tile."""
PANEL = 32
ROWS = 32
"""Columns and positions that are computed together: two tiles each way."""

_TILE = 1024
_STEP = 2 * _TILE
_TOGETHER = 2
"""Panels of which a tile of positions is computed before the next: they share cache lines of the results."""


def usable(machine: Machine) -> bool:
    """Whether this process may use the unit."""
    return machine.has("amx-int8") and machine.has("avx512vnni") and amx.permitted()


@template(CELLS)
def int8_matrix(f: Body, a: V, b: V, start: V, out: V, taps: V, count: V, run: V, step: V, line_step: V,
                length: V, n: V, width: V, valid: V, out_line: V, out_row: V, out_col: V, tiles: V, tall: V,
                per_rows: V, row_blocks: V, per_cols: V, col_blocks: V, b_line: V, start_line: V, *,
                signed: bool, flat: bool, tail: bool, fetch: int, tree: Expr,
                operands: tuple[Operand, ...]) -> None:
    """Item (line * row_blocks + rows) * col_blocks + columns. Scratch: a tile of sums and 64 bytes. `fetch`:
    cache lines of the panels to come that a tile fetches with each chunk."""
    results = Results(f, out, n, width, valid, (out_line, out_row, out_col), (2, 16), tree, operands, flat,
                      tail)
    name = "tdpbssd" if signed else "tdpbusd"
    for known, types in (("ldtilecfg", "ptr"), ("tilerelease", ""),
                         (name, "i8 immarg, i8 immarg, i8 immarg")):
        f.module.declared["x86." + known] = f"declare void @llvm.x86.{known}({types})"
    whole = f.table(I8, [1] + [0] * 15 + [64, 0] * 8 + [0] * 16 + [16] * 8 + [0] * 8)
    room = f.scratch
    partial = f.gep(room, 4 * _TILE, I8)
    row = f.i64(128)
    still = f.i64(0)

    def share(t: V) -> V:
        """Where in a chunk the part begins that tile `t` of an item fetches."""
        return (t & (32 // fetch - 1)) * (64 * fetch) if fetch else still

    def configure(at: V) -> None:
        f.line(f"call void @llvm.x86.ldtilecfg({at})")

    for i in range(0, 64, 8):
        f.store(f.load(I64, whole, i // 8), partial, i // 8)
    left = length - (tiles - 1) * ROWS
    upper, lower = f.fast_min(left, 16), f.fast_max(left - 16, 1)
    for i, rows in enumerate((upper, upper, lower, lower, upper, lower)):
        f.store(f.cast(rows, I8), partial, 48 + i)
    below = f.select(left > 16, step * 16, still)
    halves: list[int | V] = [upper, upper, lower, lower, upper, lower, 16, 16]
    configure(whole)

    def block(line: V, t: V, column: V, b_at: V, masks: Masks, down: V, rows: V | int,
              ahead: V) -> None:
        """One tile of results: `down` bytes between its upper and its lower half's rows of A, `ahead`
        to what it fetches."""
        tall: list[int | V] = [16] * 8 if rows is ROWS else halves
        first = t * ROWS
        base = f.gep(a, line * line_step + first * step, I8)
        for i in range(4):
            f.load_tile(i, f.gep(start, (line * start_line + column + i % 2 * 16) * 4, I8), still, tall[i])

        def tap(i: V, b: V) -> V:
            def chunk(_: V, at: V, b: V) -> list[V]:
                for i in range(fetch):
                    f.prefetch(f.gep(b, ahead, I8), 64 * i, level=2)
                f.load_tile(4, at, step, tall[4])
                f.load_tile(6, b, row, tall[6])
                f.load_tile(7, f.gep(b, 64, I8), row, tall[7])
                f.load_tile(5, f.gep(at, down, I8), step, tall[5])
                for r in range(2):
                    for c in range(2):
                        f.line(f"call void @llvm.x86.{name}(i8 {2 * r + c}, i8 {4 + r}, i8 {6 + c})")
                return [f.gep(at, CHUNK, I8), f.gep(b, _STEP, I8)]
            return f.loop(0, run, CHUNK, [f.gep(base, f.load(I64, taps, i), I8), b], chunk)[1]
        f.loop(0, count, 1, [b_at], tap)
        for i in range(4):
            to = f.gep(room, i // 2 * 16 * 128 + i % 2 * 64, I8)
            f.store_tile(i, to, row, tall[i])
        results.keep(line, first, rows, column, masks, room)

    def item(i: V) -> None:
        line, t0, t1, p0, p1 = block_of(f, i, (per_rows, row_blocks, tiles),
                                        (per_cols, col_blocks, (n + (PANEL - 1)) // PANEL))
        full = f.select(t1.eq(tiles) & (left < ROWS), t1 - 1, t1)

        def pair(p: V) -> None:
            last = f.fast_min(p + _TOGETHER, p1)

            def each(t: V, down: V, rows: V | int) -> None:
                def panel(p: V) -> None:
                    column = p * PANEL
                    b_at = f.gep(b, line * b_line + p * (count * run * PANEL), I8)
                    ahead = count * run * (_TOGETHER * PANEL) + share(t - t0)
                    block(line, t, column, b_at, results.masks(column), down, rows, ahead)
                f.loop(p, last, 1, [], panel)
            f.loop(t0, full, 1, [], lambda t: each(t, step * 16, ROWS))

            def rest_of_line() -> None:
                configure(partial)
                each(full, below, left)
                configure(whole)
            f.when(full < t1, rest_of_line)
        f.loop(p0, p1, _TOGETHER, [], pair)
    f.loop(f.lo, f.hi, 1, [], item)
    f.line("call void @llvm.x86.tilerelease()")
