"""Down the trees of a forest: `forest_rows`, for rows of features what the leaves they reach say together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ...write.body import Body
from ...write.emit import F32, I32, I64, V, vec
from ...write.expr import LLVM
from ...write.template import template
from .arrays import joining

TOP = 3
"""Levels that are chosen from whole vectors."""
WAYS = 8
"""Rows that walk a group's trees at the same time; half of it where registers are few."""
BATCH = 4
"""Groups of trees of one depth that stand together, so that a single row can walk them at the same time."""
SIGN = 1 << 31


class _Walk:
    """One row's way: its ranks, in `held` vectors or at an address."""

    def __init__(self, f: Body, ranks: V, held: int, bits: int) -> None:
        self.f, self.bits, self.at = f, bits, ranks
        self.lanes = f.machine.lanes(4)
        self.ty = vec(I32, self.lanes)
        self.held = [f.load(self.ty, ranks, i * self.lanes, 64) for i in range(held)]

    def fails(self, word: V) -> V:
        """Per lane whether the row's rank exceeds that of `word`."""
        return self.rank(word) > word

    def rank(self, word: V) -> V:
        f, h = self.f, self.held
        if not h:
            return f.gather(I32, self.at, word & ((1 << self.bits) - 1))
        if len(h) == 1:
            return f.intrinsic("x86.avx512.permvar.si.512", self.ty, h[0], word)
        pairs = [f.intrinsic("x86.avx512.vpermi2var.d.512", self.ty, h[i], word, h[i + 1])
                 for i in range(0, len(h), 2)]
        return pairs[0] if len(pairs) == 1 else f.select((word & 32).ne(0), pairs[1], pairs[0])


def _down(f: Body, place: V, right: V) -> V:
    """The child's place in the next level."""
    twice = place + place
    return f.select(right, twice + 1, twice)


@template("x:ptr x_row:i64 rows:i64 block:i64 y:ptr columns:i64 features:ptr nan_right:ptr search:ptr "
          "searches:ptr tables:ptr groups:ptr sections:ptr count:i64 width:i64 start:ptr links:ptr last:ptr "
          "weights:ptr")
def forest_rows(f: Body, x: V, x_row: V, rows: V, block: V, y: V, columns: V, features: V, nan_right: V,
                search: V, searches: V, tables: V, groups: V, sections: V, count: V, width: V, start: V,
                links: V, last: V, weights: V, *, dtype: str, bits: int, held: int, chained: bool, wide: bool,
                join: str) -> None:
    """y [rows, targets] float32 = what the trees say of each row of x (`x_row` elements apart, features next
    to each other) joined by sum, min or max, plus `start` [targets]. Items are blocks of `block` rows. A
    section is a target with its trees, or all targets with `wide` leaves of `width` weights. The forest's
    arrays are those of `Packed`."""
    lanes, ways = f.machine.lanes(4), WAYS if f.machine.registers >= 32 else WAYS // 2
    ints, floats = vec(I32, lanes), vec(F32, lanes)
    pitch = f.i64(held * lanes) if held else columns * lanes
    sums = f.gep(f.scratch, block * pitch, I32)
    lane = f.const(ints, list(range(lanes)))
    neutral, joined = joining(f, join, floats)

    def each(n: V, body: Callable[[V, int], None]) -> None:
        """Run body(first, how many) over n rows."""
        whole = n & -ways
        f.loop(0, whole, ways, [], lambda r: body(r, ways))
        f.loop(whole, n, 1, [], lambda r: body(r, 1))

    def rank(first: V, r: V, several: int) -> None:
        at = [f.gep(x, (first + r + w) * x_row, LLVM[dtype]) for w in range(several)]

        def batch(c: V) -> None:
            column = c * lanes
            feature = f.load(ints, features, column)
            to_right = f.load(ints, nan_right, column).ne(0)
            record = f.gep(searches, c * 2, I64)
            table, depth = f.gep(search, f.load(I64, record), F32), f.load(I64, record, 1)
            value = [f.cast(f.gather(LLVM[dtype], a, feature), F32) for a in at]
            root = f.load(floats, table)
            places = [_down(f, lane, root < v) for v in value]

            def level(i: V, now: V, *p: V) -> list[V]:
                here = [_down(f, q, f.gather(F32, now, q) < v) for q, v in zip(p, value, strict=True)]
                return [f.gep(now, f.i64(lanes) << i, F32), *here]
            ends = f.loop(1, depth, 1, [f.gep(table, lanes, F32), *places], level)[1:]
            base = lane << f.splat(f.cast(depth, I32), lanes)
            for w, (p, v) in enumerate(zip(ends, value, strict=True)):
                word = ((p - base) << bits) ^ f.const(ints, -SIGN)
                top = f.const(ints, ((1 << 32 - bits) - 1 << bits) - SIGN)
                f.store(f.select(v.ne(v) & to_right, top, word), f.scratch, (r + w) * pitch + column, 64)
        f.loop(0, columns, 1, [], batch)

    def add(leaf: V, row: V) -> None:
        if not wide:
            at = f.gep(sums, row * lanes, F32)
            f.store(joined(f.bitcast(leaf, floats), f.load(floats, at, 0, 64)), at, 0, 64)
            return
        to = f.gep(sums, row * width * lanes, F32)

        def one(k: V) -> None:
            weight = f.gather(F32, f.gep(weights, k, F32), leaf)
            f.store(joined(weight, f.load(floats, to, k * lanes, 64)), to, k * lanes, 64)
        f.loop(0, width, 1, [], one)

    def descend(way: Sequence[_Walk], tables: Sequence[V], top: Sequence[Sequence[V]], depth: V, linked: bool
                ) -> list[V]:
        """What the leaves hold for each row and the table it walks; one table may serve all."""
        def level(i: V, now: V, *p: V) -> list[V]:
            bases = [f.gep(t, now, I32) for t in tables]
            words = [f.gather(I32, bases[w % len(bases)], q) for w, q in enumerate(p)]
            return [now + (f.i64(lanes) << i), *(_down(f, q, w.fails(word))
                                                 for q, w, word in zip(p, way, words, strict=True))]
        places = [_start(f, w, top[i % len(top)], lane) for i, w in enumerate(way)]
        now, *places = f.loop(TOP, depth, 1, [f.i64(lanes * ((1 << TOP) - 1)), *places], level)
        leaves = [f.gather(I32, f.gep(tables[i % len(tables)], now, I32), p) for i, p in enumerate(places)]
        return _chain(f, way, links, last, leaves) if linked else leaves

    def row_at(r: V) -> _Walk:
        return _Walk(f, f.gep(f.scratch, r * pitch, I32), held, bits)

    def walk(n: V, linked: bool) -> Any:
        def run(g: V) -> None:
            record = f.gep(groups, g * (BATCH + 2), I64)
            depth, many = f.load(I64, record, BATCH), f.load(I64, record, BATCH + 1)

            def table_at(j: V | int) -> tuple[V, list[V]]:
                at = f.gep(tables, f.load(I64, record, j), I32)
                return at, [f.load(ints, at, i * lanes) for i in range((1 << TOP) - 1)]

            def one(j: V) -> None:
                at, top = table_at(j)

                def some(r: V) -> None:
                    way = [row_at(r + w) for w in range(ways)]
                    for w, leaf in enumerate(descend(way, [at], [top], depth, linked)):
                        add(leaf, r + w)
                f.loop(0, n & -ways, ways, [], some)
            f.loop(0, many, 1, [], one)

            def single(r: V) -> None:
                at, top = zip(*(table_at(j) for j in range(BATCH)), strict=True)
                for j, leaf in enumerate(descend([row_at(r)] * BATCH, at, top, depth, linked)):
                    f.when(many > j, partial(add, leaf, r))
            f.loop(n & -ways, n, 1, [], single)
        return run

    def item(i: V) -> None:
        first = i * block
        n = f.minimum(rows - first, block)
        each(n, lambda r, several: rank(first, r, several))

        def section(s: V) -> None:
            f.loop(0, n * width, 1, [], lambda j: f.store(neutral, sums, j * lanes, 64))
            bounds = f.gep(sections, s * 3, I64)
            begin, middle, end = (f.load(I64, bounds, j) for j in range(3))
            f.loop(begin, middle, 1, [], walk(n, False))
            if chained:
                f.loop(middle, end, 1, [], walk(n, True))

            def close(j: V) -> None:
                total = f.reduce(f.load(floats, sums, j * lanes, 64), joined)
                place = j if wide else j * count + s
                column = j % width if wide else s
                f.store(total + f.load(F32, start, column), y, first * (width if wide else count) + place)
            f.loop(0, n * width, 1, [], close)
        f.loop(0, count, 1, [], section)
    f.loop(f.lo, f.hi, 1, [], item)


def _start(f: Body, way: _Walk, top: Sequence[V], lane: V) -> V:
    """A row's place in the first level behind `top`, whose nodes are whole vectors."""
    place, nodes = lane << TOP, list(top)
    sides: list[V] = []
    for level in range(TOP):
        choice, nodes = nodes[:1 << level], nodes[1 << level:]
        for side in reversed(sides):
            choice = [f.select(side, choice[j + 1], choice[j]) for j in range(0, len(choice), 2)]
        sides.append(way.fails(choice[0]))
        place = f.select(sides[-1], place + (1 << TOP - 1 - level), place)
    return place


def _chain(f: Body, way: Sequence[_Walk], links: V, last: V, places: Sequence[V]) -> list[V]:
    """Follow the links until no lane moves; what the leaves hold."""
    lanes = places[0].lanes

    def step(*p: V) -> tuple[V, list[V]]:
        new, moved = [], f.zero(vec("i1", lanes))
        for q, w in zip(p, way, strict=True):
            right = w.fails(f.gather(I32, links, q, I64))
            child = f.gather(I32, f.gep(links, 1, I32), q, I64)
            new.append(f.select(right, child + 1, child))
            moved = moved | new[-1].ne(q)
        return f.compare("ne", f.bitcast(moved, f"i{lanes}"), 0), new
    return [f.gather(I32, last, p) for p in f.repeat(list(places), step)]
