"""Rows times weights of few bits, in float32: each word is unpacked in registers, once for a tile of rows.

In: A (m, k), float32, every row filled up with zeros to whole blocks, and panels that `layout.pack` made.
Out: C = tree(A·Bᵀ), contiguous along n. The sum of each block is multiplied by its scale.
"""

from __future__ import annotations

from ...machines.machine import Machine
from ...write.body import Body
from ...write.emit import F32, V, vec
from ...write.expr import Expr
from ...write.template import template
from ...write.tile import Masks, Operand, Rows, TileEpilogue
from . import tiles as division
from .layout import CHUNK, Blocks, Panel

CELLS = "a:ptr b:ptr c:ptr a_row:i64 " + division.CELLS

_UNROLL = 2 * CHUNK


def most(machine: Machine, cols: int) -> int:
    """Rows whose sums, those of a block and those of all, fit the registers."""
    return max(1, (machine.registers // machine.group * machine.group - 4 - cols) // (2 * cols))


def chains(machine: Machine) -> int:
    """Sums that are added to in turn: more than additions take time for, as far as registers go."""
    return machine.registers // 4 + 4


def takes(machine: Machine, m: int, cols: int) -> bool:
    """Whether unpacking anew for each tile is as fast as unpacking a panel for all rows."""
    tallest = most(machine, cols)
    return m <= tallest or tallest > 5


@template(CELLS)
def few_bits_rows(f: Body, a: V, b: V, c: V, a_row: V, n: V, k: V, c_row: V, tiles: V, tall: V, per_rows: V,
                  row_blocks: V, *, how: Blocks, cols: int, heights: tuple[int, ...], tail: bool,
                  tree: Expr | None, operands: tuple[Operand, ...]) -> None:
    """Items of `tiles.over`. Behind the cells, per operand: its address and its stride over rows."""
    lanes = f.machine.lanes()
    finish = TileEpilogue(f, tree, operands)
    sides = division.places(f, CELLS, len(operands))

    def tile(p: V, first: V, rows: int, col: V, masks: Masks) -> None:
        panel = Panel(f, how, b, p, k, cols, lanes)
        sums = tile_of(f, panel, f.gep(a, first * a_row, F32), a_row, rows)
        out, *rest = division.corners(f, [(c, c_row), *sides], first, col, finish.dtype, operands)
        finish.store(sums, cols, out, rest, masks)
    division.over(f, (n, k, c_row, tiles, tall, per_rows, row_blocks), heights, cols, tail, tile)


def tile_of(f: Body, panel: Panel, a: V, a_row: V, rows: int) -> list[V]:
    """`rows` rows of A from `a` on times a panel: rows * panel.cols vectors of sums."""
    how, cols, lanes = panel.how, panel.cols, panel.lanes
    zero, row, size = f.zero(vec(F32, lanes)), 4 * cols * lanes, rows * cols
    step, sets = min(how.block, _UNROLL), min(4, -(-chains(f.machine) // size))
    lines = Rows(f, a, a_row * 4, rows)
    ends = len(lines.bases)

    def block(i: V, *state: V) -> list[V]:
        zeros, totals = panel.zero(i), state[ends + 1:]
        panel.fetch_scales(i)

        def part(_: V, *state: V) -> list[V]:
            at, codes, sums = state[:ends], state[ends], list(state[ends + 1:])
            for w in range(step // how.per_word):
                panel.fetch(codes, w)
                words = panel.word(codes, w)
                for j in range(how.per_word):
                    values = [panel.value(x, j, z) for x, z in zip(words, zeros, strict=True)]
                    chain = j % sets * size
                    for r in range(rows):
                        x = f.splat(f.load(F32, lines.at(at, r, 4 * (w * how.per_word + j))), lanes)
                        for s, value in enumerate(values, chain + r * cols):
                            sums[s] = f.fma(value, x, sums[s])
                f.fence()
            return [*(f.gep(x, step, F32) for x in at), f.gep(codes, step // how.per_word * row, "i8"),
                    *sums]
        given = [*state[:ends + 1], *[zero] * (size * sets)]
        made = part(i, *given) if how.block == step else f.loop(0, how.block, step, given, part)
        sums = made[ends + 1:]
        for s in range(size, size * sets):
            sums[s % size] = sums[s % size] + sums[s]
        scales = panel.scale(i)
        return [*made[:ends + 1], *(f.fma(x, scales[s % cols], total)
                                    for s, (x, total) in enumerate(zip(sums, totals, strict=False)))]
    return f.loop(0, panel.count, 1, [*lines.bases, panel.codes, *[zero] * size], block)[ends + 1:]
