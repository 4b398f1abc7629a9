"""Attention of many queries: blocks of keys and values lie in scratch, the keys transposed, while register
tiles of queries run over them. The softmax goes on from block to block: a row keeps the largest score so far,
the sum of weights and the weighted sum of values, and fades the last two where a block has a larger score.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ....records import dataclass
from ...machines.machine import Machine
from ...write.body import Body
from ...write.emit import F32, I8, I32, I64, V, vec
from ...write.expr import LLVM
from ...write.template import template
from ...write.tile import LONG_SUM, tile
from .parts import (
    AttentionForm,
    View,
    ceil,
    columns_of,
    counted,
    fold,
    masked_scores,
    narrow_store,
    share_of,
    softcapped,
    transpose,
    up,
    weight_of,
    wide_load,
)


@dataclass(frozen=True)
class Scratch:
    """Where things lie in an item's scratch, in float32 elements from its start; `slot`: one tile's state."""

    pitch: int
    width: int
    column: int
    values: int
    queries: int
    scores: int
    peaks: int
    rows: int
    state: int
    slot: int

    @staticmethod
    def of(machine: Machine, size: int, value_size: int, rows: int, block: int) -> Scratch:
        lanes = machine.lanes()
        pitch, width, column = block + lanes, ceil(value_size, lanes), ceil(rows, lanes)
        values = block * ceil(size, 16)
        queries = values + block * width
        scores = queries + ceil(rows * size, 16)
        peaks = scores + rows * pitch
        per_row = peaks + rows * lanes
        state = per_row + ceil(3 * column, 16)
        return Scratch(pitch, width, column, values, queries, scores, peaks, per_row, state,
                       ceil(column + rows * (lanes + width), 16))


@template("q:ptr k:ptr v:ptr out:ptr mask:ptr ends:ptr sink:ptr keep:ptr kv_heads:i64 group:i64 length:i64"
          " total:i64 shift:i64 left:i64 right:i64 ends_add:i64 scale:float cap:float tiles:i64 tall:i64"
          " chunks:i64 per:i64", together=True)
def attend(f: Body, given: Any, *, rows: int, short: bool, block: int, **form: Any) -> None:
    """softmax(q k' scale + mask) v per head. `tiles` tiles of queries per head, the first `tall` of `rows`
    rows, the rest of one less (`short` says there may be such), the last moved back to end with the queries;
    an item is `per` tiles of the `group` query heads that share a key head. `form`: the fields of an
    `AttentionForm`. Where not `keep`, which lies along keys, a score is 0, or -inf without a mask. `ends`:
    how many keys each batch entry has, less `ends_add`. `sink`: per head, the score of a further key without
    value."""
    many = _ManyQueries(f, given, AttentionForm(**form), rows, short, block)
    f.loop(f.lo, f.hi, 1, [], many.item)


@dataclass(frozen=True)
class _Unit:
    """A tile of queries of one head, from `first` on, against the keys from `begin` to `end` of a block,
    which begins with key `k0` and has `count`; the batch entry has `entry` keys. `state`: the address of what
    the tile keeps from block to block; `last`: whether this is the last one."""

    state: V
    batch: V
    head: V
    first: V
    entry: V
    begin: V
    end: V
    k0: V
    count: V
    last: V


@dataclass(frozen=True)
class _Running:
    """Addresses of a tile's numbers by row. Kept from block to block: the largest scores (`tops`), sums of
    weights and of weighted values. Of this block: `safes`, what its scores are measured from, `fades`, by
    which earlier sums count, and `factors`, by which the last sums are the result. `started`: whether there
    was a block before."""

    tops: V
    sums: V
    mixed: V
    safes: V
    fades: V
    factors: V
    started: V


class _ManyQueries:
    """A kernel `attend` as it is written, for one form."""

    def __init__(self, f: Body, given: Any, form: AttentionForm, rows: int, short: bool, block: int) -> None:
        self.f, self.given, self.form = f, given, form
        self.rows, self.short, self.block = rows, short, block
        self.lanes = f.machine.lanes()
        self.wide, self.floats = 2 * self.lanes, vec(F32, self.lanes)
        self.at = at = Scratch.of(f.machine, form.size, form.value_size, rows, block)
        self.cleared = form.bounded or form.sunk
        self.keys_at = f.scratch
        self.values_at, self.queries_at, self.scores_at, self.peaks_at = (
            f.gep(f.scratch, x, F32) for x in (at.values, at.queries, at.scores, at.peaks))
        types = (form.dtype,) * 4 + ("float32", "uint8")
        self.queries, self.keys, self.values, self.results, self.biases, self.keeps = (
            View(f, x, len(attend.cells) + 3 * i, dtype) for i, (x, dtype) in enumerate(zip(
                (given.q, given.k, given.v, given.out, given.mask, given.keep), types, strict=True)))
        self.zero, self.unseen = f.zero(self.floats), f.const(self.floats, -math.inf)
        self.steps = f.const(vec(I32, self.lanes), list(range(self.lanes)))
        self.blocks = (given.total + (block - 1)) // block
        self.once = self.blocks.eq(1)

    # items and blocks

    def item(self, i: V) -> None:
        """Some tiles of the query heads that share a key head: block by block of its keys, all of them."""
        f, given, form = self.f, self.given, self.form
        chunk, rest = i % given.chunks, i // given.chunks
        kv_head, batch = rest % given.kv_heads, rest // given.kv_heads
        first = chunk * given.per
        end_unit = f.fast_min(first + given.per, given.group * given.tiles)
        entry = given.total
        if form.ends_type:
            entry = f.cast(f.load(LLVM[form.ends_type], given.ends, batch), I64) + given.ends_add

        def over(b: V) -> None:
            k0 = b * self.block
            count = f.fast_min(given.total - k0, self.block)
            self.pack_keys(self.keys.at(batch, kv_head, k0), count)
            self.pack_values(self.values.at(batch, kv_head, k0), count)
            f.loop(first, end_unit, 1, [],
                   lambda u: self.unit(u, first, batch, kv_head, entry, b, k0, count))
        f.loop(0, self.blocks, 1, [], over)

    def pack_keys(self, base: V, count: V) -> None:
        """`count` keys as panels of `wide` columns; the last key is repeated in the rest of its panel."""
        f, size, lanes, wide, dtype = self.f, self.form.size, self.lanes, self.wide, self.form.dtype

        def group_of(j: V) -> None:
            rows_of = [f.gep(base, f.fast_min(j + i, count - 1) * self.keys.step, LLVM[dtype])
                       for i in range(lanes)]
            panel = f.gep(self.keys_at, (j & -wide) * size + (j & lanes), F32)

            def square(d: V, mask: V | None, real: int) -> None:
                columns = transpose(f, [wide_load(f, dtype, r, d, mask) for r in rows_of])
                for i, column in enumerate(columns[:real]):
                    f.store(column, panel, (d + i) * wide)
            f.loop(0, size // lanes * lanes, lanes, [], lambda d: square(d, None, lanes))
            if size % lanes:
                square(f.i64(size // lanes * lanes), columns_of(f, size)[-1][1], size % lanes)
        f.loop(0, up(count, wide), lanes, [], group_of)

    def pack_values(self, base: V, count: V) -> None:
        """`count` rows of values as float32, padded to whole vectors."""
        f, dtype = self.f, self.form.dtype

        def row(j: V) -> None:
            real = f.gep(base, j * self.values.step, LLVM[dtype])
            place = f.gep(self.values_at, j * self.at.width, F32)
            for c, tail in columns_of(f, self.form.value_size):
                f.store(wide_load(f, dtype, real, c, tail), place, c)
        f.loop(0, count, 1, [], row)

    def unit(self, u: V, first: V, batch: V, kv_head: V, entry: V, b: V, k0: V, count: V) -> None:
        """Tile `u` of an item that begins with tile `first`, against block `b`; nothing where it sees none of
        its keys."""
        f, given, bounded = self.f, self.given, self.form.bounded
        head, t = kv_head * given.group + u // given.tiles, u % given.tiles
        height = f.select(f.compare("lt", t, given.tall), f.i64(self.rows), self.rows - 1)
        start = f.fast_min(t * self.rows - f.fast_max(t - given.tall, 0), given.length - height)
        state = f.gep(f.scratch, f.select(self.once, 0, u - first) * self.at.slot + self.at.state, F32)
        last = b.eq(self.blocks - 1)
        begin, end = f.i64(0), up(count, self.wide)
        if self.cleared:
            f.when(b.eq(0), lambda: self.clear(state, head))
        if bounded:
            lowest, _ = self.limits(entry, start)
            _, highest = self.limits(entry, start + height - 1)
            begin = f.fast_max(lowest - k0, 0) & -self.wide
            end = up(f.fast_max(f.fast_min(highest - k0, count), 0), self.wide)
            begin = f.fast_min(begin, end)
        unit = _Unit(state, batch, head, start, entry, begin, end, k0, count, last)

        def some() -> None:
            if self.short:
                f.when(f.compare("lt", t, given.tall), lambda: self.tile_of(unit, self.rows),
                       lambda: self.tile_of(unit, self.rows - 1))
            else:
                self.tile_of(unit, self.rows)
        if bounded:
            f.when((begin < end) | last, some)
        else:
            some()

    def limits(self, entry: V, row: V) -> tuple[V, V]:
        """The keys row `row` sees; `entry`: how many there are."""
        f, given = self.f, self.given
        place = row + (entry - given.length if self.form.trailing else given.shift)
        return (f.fast_max(place - given.left, 0),
                f.fast_min(place + given.right + 1, f.fast_min(entry, given.total)))

    def clear(self, state: V, head: V) -> None:
        """A tile's state before the first block: nothing, or the sink's score with weight one."""
        f, at, lanes, sunk = self.f, self.at, self.lanes, self.form.sunk
        top = f.load(F32, self.given.sink, head) if sunk else f.const(F32, -math.inf)
        for g in range(0, at.column, lanes):
            f.store(f.splat(top, lanes), state, g)
        f.loop(at.column, at.slot // lanes * lanes, lanes, [], lambda j: f.store(self.zero, state, j))
        if sunk:
            weight = f.select(top.eq(-math.inf), f.const(F32, 0.0), 1.0)
            for r in range(self.rows):
                f.store(weight, state, at.column + r * lanes)

    # a tile of queries against a block of keys

    def tile_of(self, u: _Unit, height: int) -> None:
        """The tile's state after this block, and its results after the last."""
        f, at, lanes = self.f, self.at, self.lanes
        self.take_queries(u, height)
        bias = f.gep(self.biases.at(u.batch, u.head, u.first), u.k0 * (self.form.mask_step or 0), F32)
        keeping = f.gep(self.keeps.at(u.batch, u.head, u.first), u.k0, I8)
        f.loop(u.begin, u.end, self.wide, [], lambda j: self.score(u, height, bias, keeping, j))
        tops, sums, mixed = (f.gep(u.state, x, F32) for x in (0, at.column, at.column + self.rows * lanes))
        safes, fades, factors = (f.gep(f.scratch, at.rows + i * at.column, F32) for i in range(3))
        running = _Running(tops, sums, mixed, safes, fades, factors, u.k0 > 0)
        self.raise_tops(running, height)
        f.loop(0, height, 1, [], lambda r: self.soften(u, running, r))
        f.when(u.last, lambda: self.close(running, height))
        keys_end = f.fast_min(u.end, u.count)
        if self.form.ends_type:
            keys_end = f.fast_min(keys_end, u.entry - u.k0)
        keys_end = f.fast_max(keys_end, u.begin)
        target = self.results.at(u.batch, u.head, u.first)
        size = self.form.value_size
        whole = size // self.wide * self.wide
        if whole:
            f.loop(0, whole, self.wide, [],
                   lambda c: self.mix(u, running, height, keys_end, target, c, [None, None]))
        if whole < size:
            self.mix(u, running, height, keys_end, target, f.i64(whole),
                     [tail for c, tail in columns_of(f, size) if c >= whole])

    def take_queries(self, u: _Unit, height: int) -> None:
        """The tile's queries, scaled, and no score seen yet, in scratch."""
        f, lanes, size = self.f, self.lanes, self.form.size
        base = self.queries.at(u.batch, u.head, u.first)
        spread = f.splat(self.given.scale, lanes)
        columns = columns_of(f, size)
        for r in range(height):
            row = f.gep(base, r * self.queries.step, LLVM[self.form.dtype])
            for c, tail in columns:
                x = wide_load(f, self.form.dtype, row, c, tail) * spread
                f.store_masked(x, self.queries_at, r * size + c, tail)
            f.store(self.unseen, self.peaks_at, r * lanes)

    def score(self, u: _Unit, height: int, bias: V, keeping: V, j: V) -> None:
        """The scores of the panel of keys from `j` on, and with them the largest of each row."""
        f, form, lanes = self.f, self.form, self.lanes
        panel = f.gep(self.keys_at, j * form.size, F32)
        inside = [f.mask(lanes, f.fast_max(f.fast_min(u.count - j - c * lanes, lanes), 0)) for c in (0, 1)]
        plain = form.mask_step is None and not form.bounded and not form.capped and not form.kept
        start = [f.select(m, self.zero, self.unseen) if plain else self.zero for m in inside]
        acc = tile(f, height, 2, self.queries_at, form.size, panel, self.wide, form.size, start * height)
        column = self.steps + f.splat(f.cast(u.k0 + j, I32), lanes)
        for r in range(height):
            place = f.gep(f.gep(self.scores_at, r * self.at.pitch, F32), j, F32)
            if form.bounded:
                low, high = (f.splat(f.cast(x, I32), lanes) for x in self.limits(u.entry, u.first + r))
            for c in (0, 1):
                def read(step: V, keyed: bool, r: int = r, c: int = c) -> V:
                    return r * step + j + c * lanes if keyed else r * step
                x = acc[2 * r + c]
                if form.capped:
                    x = softcapped(f, x, self.given.cap)
                x = masked_scores(f, form, x, inside[c], (keeping, self.keeps.step),
                                  (bias, self.biases.step), read)
                if form.bounded:
                    key = column + c * lanes
                    x = f.select((key >= low) & (key < high), x, self.unseen)
                elif not plain:
                    x = f.select(inside[c], x, self.unseen)
                f.store(x, place, c * lanes)
                acc[2 * r + c] = x
            peak = f.load(self.floats, self.peaks_at, r * lanes)
            f.store(f.fast_max(f.fast_max(acc[2 * r], acc[2 * r + 1]), peak), self.peaks_at, r * lanes)

    def raise_tops(self, running: _Running, height: int) -> None:
        """The largest scores with those of this block, and by how much earlier sums fade therefore."""
        f, lanes, floats = self.f, self.lanes, self.floats
        for g in range(0, height, lanes):
            top = fold(f, [f.load(floats, self.peaks_at, r * lanes) if r < height else self.unseen
                           for r in range(g, g + lanes)], f.fast_max)
            before = f.load(floats, running.tops, g)
            if not self.cleared:
                before = f.select(running.started, before, self.unseen)
            top = f.fast_max(top, before)
            safe = f.select(top.eq(-math.inf), self.zero, top)
            f.store(top, running.tops, g)
            f.store(safe, running.safes, g)
            fade = weight_of(f, before - safe)
            if self.form.empty == "guarded":
                fade = counted(f, fade, before - safe)
            f.store(fade, running.fades, g)

    def soften(self, u: _Unit, running: _Running, r: V) -> None:
        """Row `r`'s scores become weights, in their place, and its sum of weights grows."""
        f, lanes, floats = self.f, self.lanes, self.floats
        row = f.gep(self.scores_at, r * self.at.pitch, F32)
        top = f.splat(f.load(F32, running.safes, r), lanes)

        def weigh(j: V, *given: V) -> list[V]:
            below = [f.load(floats, f.gep(row, c * lanes, F32), j) - top for c in (0, 1)]
            weights = [weight_of(f, x) for x in below]
            for c, e in enumerate(weights):
                e = counted(f, e, below[c]) if self.form.empty == "guarded" else e
                f.store(e, f.gep(row, c * lanes, F32), j)
            return [s + e for s, e in zip(given, weights, strict=True)]
        a, b = f.loop(u.begin, u.end, self.wide, [self.zero] * 2, weigh)
        place = f.gep(running.sums, r * lanes, F32)
        new, old = a + b, f.load(floats, place)
        grown = f.fma(old, f.splat(f.load(F32, running.fades, r), lanes), new)
        f.store(grown if self.cleared else f.select(running.started, grown, new), place)

    def close(self, running: _Running, height: int) -> None:
        """One over the sums of weights."""
        f, lanes = self.f, self.lanes
        for g in range(0, height, lanes):
            weight = fold(f, [f.load(self.floats, running.sums, r * lanes) if r < height else self.zero
                              for r in range(g, g + lanes)], V.__add__)
            f.store(share_of(f, weight, self.form.empty), running.factors, g)

    def mix(self, u: _Unit, running: _Running, height: int, keys_end: V, target: V, c: V,
            tails: Sequence[V | None]) -> None:
        """The weighted sums of the vectors of values from feature `c` on, one for each of `tails`; after the
        last block they are the result, at `target`."""
        f, lanes, floats, dtype, width = self.f, self.lanes, self.floats, self.form.dtype, self.at.width
        cols = len(tails)
        sums_of = f.gep(running.mixed, c, F32)
        places = [(sums_of, r * width + i * lanes) for r in range(height) for i in range(cols)]

        def resume() -> list[V]:
            return [f.load(floats, *p) * f.splat(f.load(F32, running.fades, i // cols), lanes)
                    for i, p in enumerate(places)]
        start = resume() if self.cleared else f.when(
            running.started, resume, lambda: [self.zero] * (height * cols))
        for x, p in zip(start, places, strict=True):
            f.store(x, *p)

        def chunk(first: V) -> None:
            acc = tile(f, height, cols, f.gep(self.scores_at, first, F32), self.at.pitch,
                       f.gep(self.values_at, first * width + c, F32), width,
                       f.fast_min(keys_end - first, LONG_SUM), [self.zero] * (height * cols))
            for x, p in zip(acc, places, strict=True):
                f.store(f.load(floats, *p) + x, *p)
        f.loop(u.begin, keys_end, LONG_SUM, [], chunk)

        def give() -> None:
            for r in range(height):
                factor = f.splat(f.load(F32, running.factors, r), lanes)
                row = f.gep(target, r * self.results.step + c, LLVM[dtype])
                for i, tail in enumerate(tails):
                    x = f.load(floats, *places[r * cols + i])
                    narrow_store(f, x * factor, dtype, row, i * lanes, tail)
        f.when(u.last, give)
