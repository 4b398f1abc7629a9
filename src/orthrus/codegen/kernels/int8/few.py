"""Few rows times a matrix of bytes that is read once, and therefore where it lies: sums exact in int32.

In: A as int16, less its zero point, rows of k next to each other; B (k, n) of int8 or uint8, elements of a
row adjacent, and its zero point, one byte, if it has one. Out: int32, rows `out_row` apart.
"""

from __future__ import annotations

from ...machines.machine import Machine
from ...write.body import Body
from ...write.emit import I8, I16, I32, V, vec
from ...write.spec import Spec
from ...write.template import template
from ...write.tile import Rows
from .step import multiplied, unit

MOST = 8
"""Rows that are worth the reading of B."""
_SUMS = 8
"""Vectors of sums a tile has at most."""
_STRIP, _BLOCK = 512, 16
"""Columns of an item, and rows of B that its sums go through together."""


def worth(machine: Machine, m: int, n: int) -> bool:
    """Whether `m` rows by `n` columns are multiplied so."""
    return m <= MOST and n >= 2 * machine.lanes() and unit(machine, 2).kind == "widened"


def plan(machine: Machine, m: int, n: int, k: int, unsigned: bool, pointed: bool
         ) -> tuple[Spec, int, int, int]:
    """The kernel, its items, their grain and bytes of scratch. `pointed`: B has a zero point."""
    tiles = -(-m // 4)
    rows = -(-m // tiles)
    cols = next(c for c in (8, 4, 2) if c == 2 or rows * c <= _SUMS and c * machine.lanes() <= n)
    spec = int8_few(rows=rows, rest=m - (tiles - 1) * rows, tiles=tiles, cols=cols, unsigned=unsigned,
                    pointed=pointed)
    return spec, -(-n // _STRIP), max(1, (1 << 17) // (m * k * _STRIP)), 4 * m * _STRIP


@template("a:ptr b:ptr zero:ptr out:ptr n:i64 k:i64 row:i64 out_row:i64")
def int8_few(f: Body, a: V, b: V, zero: V, out: V, n: V, k: V, row: V, out_row: V, *, rows: int, rest: int,
             tiles: int, cols: int, unsigned: bool, pointed: bool) -> None:
    """An item is a strip of columns; the last tile of each column has `rest` rows. Scratch: the sums."""
    lanes = f.machine.lanes()
    sums, wide, both = vec(I32, lanes), cols * lanes, 2 * lanes
    none = f.cast(f.load(I8, zero), I16, unsigned=unsigned) if pointed else None

    def widened(x: V) -> V:
        x = f.cast(x, I16, unsigned=unsigned)
        return x if none is None else x - f.splat(none, x.lanes)

    def tile(first: int, count: int, begin: V, size: V, column: V, kept: V) -> None:
        """Add the products with `size` rows of B from row `begin` on."""
        base, source = f.gep(a, k * first + begin, I16), f.gep(b, begin * row + column, I8)
        lines = Rows(f, base, k * 2, count)
        ends = len(lines.bases)

        def pair(_: V, source: V, *state: V) -> list[V]:
            at, total = state[:ends], list(state[ends:])
            following = f.gep(source, row, I8)
            given = [f.bitcast(f.splat(f.load(I32, lines.at(at, r, 0), 0, 2), lanes), vec(I16, both))
                     for r in range(count)]
            for c in range(cols):
                if c % 2 == 0:
                    x, y = (f.load(vec(I8, both), p, c * lanes) for p in (source, following))
                order = [c % 2 * lanes + i // 2 + both * (i % 2) for i in range(both)]
                part = widened(f.shuffle(x, y, order))
                for r, two in enumerate(given):
                    total[r * cols + c] = multiplied(f, total[r * cols + c], two, part)
                if c % 2:
                    f.fence()
            return [f.gep(following, row, I8), *(f.gep(p, 4, I8) for p in at), *total]
        before = [f.load(sums, kept, i * lanes, 4 * lanes) for i in range(count * cols)]
        source, *state = f.loop(0, size & -2, 2, [source, *lines.bases, *before], pair)
        at, total = state[:ends], state[ends:]

        def odd() -> list[V]:
            made = list(total)
            for c in range(cols):
                part = f.cast(widened(f.load(vec(I8, lanes), source, c * lanes)), I32)
                for r in range(count):
                    one = f.cast(f.load(I16, lines.at(at, r, 0)), I32)
                    made[r * cols + c] = made[r * cols + c] + f.splat(one, lanes) * part
            return made
        total = f.when((size & 1).ne(0), odd, lambda: list(total))
        for i, x in enumerate(total):
            f.store(x, kept, i * lanes, 4 * lanes)

    def item(i: V) -> None:
        begin = i * _STRIP
        end, every = f.fast_min(begin + _STRIP, n), (tiles - 1) * rows + rest
        f.loop(0, every * _STRIP, lanes, [], lambda j: f.store(f.zero(sums), f.scratch, j, 4 * lanes))

        def block(k0: V) -> None:
            size = f.fast_min(k - k0, _BLOCK)

            def columns(c: V) -> None:
                kept = f.gep(f.scratch, (c - begin) * every, I32)
                for t in range(tiles):
                    tile(t * rows, rest if t == tiles - 1 else rows, k0, size, f.fast_min(c, n - wide),
                         f.gep(kept, t * rows * wide, I32))
            f.loop(begin, end, wide, [], columns)
        f.loop(0, k, _BLOCK, [], block)

        def columns(c: V) -> None:
            kept, to = f.gep(f.scratch, (c - begin) * every, I32), f.gep(out, f.fast_min(c, n - wide), I32)
            for r in range(every):
                for j in range(0, wide, lanes):
                    f.store(f.load(sums, kept, r * wide + j, 4 * lanes), f.gep(to, out_row * r, I32), j)
        f.loop(begin, end, wide, [], columns)
    f.loop(f.lo, f.hi, 1, [], item)
