"""Few rows times a matrix of bytes that is read once, and therefore where it lies: sums exact in int32.

In: A as int16, less its zero point, rows of k next to each other; B (k, n) of int8 or uint8, elements of a
row adjacent, and its zero point, one byte, if it has one. Out: int32, rows `out_row` apart.
"""

from __future__ import annotations

from collections.abc import Sequence

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
_STRIP, _BLOCK = 512, 32
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
    """An item is a strip of columns; the last tile of each column has `rest` rows. Scratch: the sums, of two
    vectors of columns by turns four in the first and four in the second, as x86 pairs two rows of B."""
    lanes = f.machine.lanes()
    sums, wide, both, quad = vec(I32, lanes), cols * lanes, 2 * lanes, min(4, lanes)
    parts = [[i for i in range(both) if i // quad % 2 == half] for half in (0, 1)]
    none = f.cast(f.load(I8, zero), I16, unsigned=unsigned) if pointed else None

    def widened(x: V) -> V:
        x = f.cast(x, I16, unsigned=unsigned)
        return x if none is None else x - f.splat(none, x.lanes)

    def add(total: list[V], given: Sequence[V], source: Sequence[V]) -> None:
        """To `total` the products of pairs of A with two rows of B, or with one."""
        pairs = [f.bitcast(f.splat(x, lanes), vec(I16, both)) for x in given]
        for c in range(0, cols, 2):
            lines = [widened(f.load(vec(I8, both), p, c * lanes)) for p in source]
            x, y = (*lines, f.zero(vec(I16, both)))[:2]
            for half in (0, 1):
                part = f.shuffle(x, y, [i + both * odd for i in parts[half] for odd in (0, 1)])
                for r, two in enumerate(pairs):
                    at = r * cols + c + half
                    total[at] = multiplied(f, total[at], two, part)
            f.fence()

    def tile(first: int, count: int, begin: V, size: V, column: V, kept: V) -> None:
        """Add the products with `size` rows of B from row `begin` on."""
        base, source = f.gep(a, k * first + begin, I16), f.gep(b, begin * row + column, I8)
        lines = Rows(f, base, k * 2, count)
        ends = len(lines.bases)

        def pair(_: V, source: V, *state: V) -> list[V]:
            at, total = state[:ends], list(state[ends:])
            following = f.gep(source, row, I8)
            add(total, [f.load(I32, lines.at(at, r, 0), 0, 2) for r in range(count)], [source, following])
            return [f.gep(following, row, I8), *(f.gep(p, 4, I8) for p in at), *total]
        before = [f.load(sums, kept, i * lanes, 4 * lanes) for i in range(count * cols)]
        source, *state = f.loop(0, size & -2, 2, [source, *lines.bases, *before], pair)
        at, total = state[:ends], state[ends:]

        def odd() -> list[V]:
            made = list(total)
            add(made, [f.cast(f.load(I16, lines.at(at, r, 0)), I32, unsigned=True) for r in range(count)],
                [source])
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
        every_lane = [*parts[0], *parts[1]]
        order = [every_lane.index(i) for i in range(both)]

        def columns(c: V) -> None:
            kept, to = f.gep(f.scratch, (c - begin) * every, I32), f.gep(out, f.fast_min(c, n - wide), I32)
            for r in range(every):
                for j in range(0, wide, both):
                    first, second = (f.load(sums, kept, r * wide + j + half * lanes, 4 * lanes)
                                     for half in (0, 1))
                    for half in (0, 1):
                        f.store(f.shuffle(first, second, order[half * lanes:half * lanes + lanes]),
                                f.gep(to, out_row * r, I32), j + half * lanes)
        f.loop(begin, end, wide, [], columns)
    f.loop(f.lo, f.hi, 1, [], item)
