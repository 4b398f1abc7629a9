"""Few rows times weights of few bits, in float32: each word is unpacked in registers, once for all rows.

In: A (m, k), float32, every row filled up with zeros to whole blocks, and panels that `layout.pack` made.
Out: C = tree(A·Bᵀ), contiguous along n. The sum of each block is multiplied by its scale.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...machines.machine import Machine
from ...write.body import Body
from ...write.emit import F32, I64, PTR, V, vec
from ...write.expr import BYTES, Expr
from ...write.template import template
from ...write.tile import Corner, Operand, Rows, TileEpilogue
from .layout import CHUNK, Blocks, Panel

CELLS = "a:ptr b:ptr c:ptr n:i64 k:i64 a_row:i64 c_row:i64"

_UNROLL = 2 * CHUNK
_CHAINS = 8


def most(machine: Machine, cols: int) -> int:
    """Rows whose sums, those of a block and those of all, fit the registers."""
    return max(1, (machine.registers // machine.group * machine.group - 4 - cols) // (2 * cols))


@template(CELLS)
def few_bits_rows(f: Body, a: V, b: V, c: V, n: V, k: V, a_row: V, c_row: V, *, how: Blocks, rows: int,
                  cols: int, tail: bool, tree: Expr | None, operands: tuple[Operand, ...]) -> None:
    """An item is a panel. Behind the cells, per operand: its address and its stride over rows."""
    lanes = f.machine.lanes()
    finish = TileEpilogue(f, tree, operands)
    sides = places(f, CELLS, len(operands))
    zero, size = f.zero(vec(F32, lanes)), rows * cols
    sets = max(1, min(4, _CHAINS // size))

    def item(p: V) -> None:
        col = p * (cols * lanes)
        masks = [f.mask(lanes, n - col - j * lanes) if tail else None for j in range(cols)]
        panel = Panel(f, how, b, p, k, cols, lanes)
        lines = Rows(f, a, a_row * 4, rows)
        ends = len(lines.bases)
        step = min(how.block, _UNROLL)
        row = 4 * cols * lanes

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
                        first = j % sets * size
                        for r in range(rows):
                            x = f.splat(f.load(F32, lines.at(at, r, 4 * (w * how.per_word + j))), lanes)
                            for c, value in enumerate(values):
                                s = first + r * cols + c
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
        made = f.loop(0, panel.count, 1, [*lines.bases, panel.codes, *[zero] * size], block)
        out, *rest = corners(f, [(c, c_row), *sides], 0, col, finish.dtype, operands)
        finish.store(made[ends + 1:], cols, out, rest, masks)
    f.loop(f.lo, f.hi, 1, [], item)


def places(f: Body, cells: str, count: int) -> list[tuple[V, V]]:
    """Behind `cells`, for each operand: its address and its stride over rows."""
    first = len(cells.split())
    return [(f.arg(first + 2 * i, PTR), f.arg(first + 2 * i + 1, I64)) for i in range(count)]


def corners(f: Body, given: Sequence[tuple[V, V]], row: V | int, col: V, dtype: str,
            operands: Sequence[Operand]) -> list[Corner]:
    """Where the result, of type `dtype`, and the operands begin at a row and a column."""
    kinds = [(dtype, True), *((o.dtype, o.col) for o in operands)]
    made = []
    for (at, stride), (name, across) in zip(given, kinds, strict=True):
        offset = stride * row if across is False else stride * row + col
        made.append(Corner(f.gep(at, offset * BYTES[name], "i8"), stride))
    return made
