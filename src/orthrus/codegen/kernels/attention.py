"""Attention kernels: queries, keys and values by strides in, mixed values out; scores never leave the cache.

`attend` is for many queries: a work item takes one head of keys (with every query head that shares it, or
some of their rows), copies blocks of its keys, transposed, and of its values into scratch and runs register
tiles over them, with the softmax running on from block to block. `attend_few` is for one query or a handful
over a long cache: it reads keys and values where they lie, once, and copies them to a grown cache on the way
if asked.

Row i of the queries sees the keys from i + shift - left to i + shift + right, and none from the end on; what
a row gives that sees none, `Empty` says. Storage is float32 or half precision, arithmetic float32; sums over
keys run in blocks, and a weight below e^-87 counts as 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from ...records import dataclass
from ...shapes.symbolic import choice
from ..machines.machine import Machine
from ..write.body import Body
from ..write.emit import F32, I1, I8, I32, I64, V, vec
from ..write.expr import LLVM
from ..write.spec import Spec
from ..write.template import template
from ..write.tile import LONG_SUM, shapes, tile
from .attention_few import Few, attend_few
from .attention_parts import (
    Empty,
    View,
    as_stored,
    ceil,
    columns_of,
    counted,
    fold,
    narrow_store,
    share_of,
    softcapped,
    transpose,
    up,
    weight_of,
    wide_load,
)

FEW_QUERIES = 2
"""Queries per head up to which `attend_few` is the faster one."""


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
          " chunks:i64 per:i64")
def attend(f: Body, q: V, k: V, v: V, out: V, mask: V, ends: V, sink: V, keep: V, kv_heads: V, group: V,
           length: V, total: V, shift: V, left: V, right: V, ends_add: V, scale: V, cap: V, tiles: V, tall: V,
           chunks: V, per: V, *, dtype: str, size: int, value_size: int, rows: int, short: bool, block: int,
           mask_step: int | None, bounded: bool, ends_type: str, trailing: bool, capped: bool, sunk: bool,
           kept: bool, empty: Empty, rounded: bool) -> None:
    """softmax(q k' scale + mask) v per head. `tiles` tiles of queries per head, the first `tall` of `rows`
    rows, the rest of one less (`short` says there may be such), the last moved back to end with the queries;
    an item is `per` tiles of the `group` query heads that share a key head. `mask_step`: None without mask,
    else its stride along keys, 0 or 1. Where not `keep`, which lies along keys, a score is 0, or -inf without
    a mask. `rounded`: scores are of type `dtype`. `ends`: how many keys each batch entry has, less
    `ends_add`; `trailing`: queries are the last `length` of them. `sink`: per head, the score of a further
    key without value."""
    lanes, floats = f.machine.lanes(), vec(F32, f.machine.lanes())
    at = Scratch.of(f.machine, size, value_size, rows, block)
    width, pitch, wide = at.width, at.pitch, 2 * lanes
    keys_at, cleared = f.scratch, bounded or sunk
    values_at, queries_at, scores_at, peaks_at = (
        f.gep(f.scratch, x, F32) for x in (at.values, at.queries, at.scores, at.peaks))
    queries, keys, values, results, biases, keeps = (
        View(f, x, len(attend.cells) + 3 * i, "float32" if x is mask else "uint8" if x is keep else dtype)
        for i, x in enumerate((q, k, v, out, mask, keep)))
    zero, unseen = f.zero(floats), f.const(floats, -math.inf)
    steps = f.const(vec(I32, lanes), list(range(lanes)))
    blocks = (total + (block - 1)) // block
    once = blocks.eq(1)

    def pack_keys(base: V, count: V) -> None:
        """`count` keys as panels of `wide` columns; the last key is repeated in the rest of its panel."""
        def group_of(j: V) -> None:
            rows_of = [f.gep(base, f.fast_min(j + i, count - 1) * keys.step,
                             LLVM[dtype]) for i in range(lanes)]
            panel = f.gep(keys_at, (j & -wide) * size + (j & lanes), F32)

            def square(d: V, mask: V | None, real: int) -> None:
                columns = transpose(f, [wide_load(f, dtype, r, d, mask) for r in rows_of])
                for i, column in enumerate(columns[:real]):
                    f.store(column, panel, (d + i) * wide)
            f.loop(0, size // lanes * lanes, lanes, [], lambda d: square(d, None, lanes))
            if size % lanes:
                square(f.i64(size // lanes * lanes), columns_of(f, size)[-1][1], size % lanes)
        f.loop(0, up(count, wide), lanes, [], group_of)

    def pack_values(base: V, count: V) -> None:
        def row(j: V) -> None:
            real, place = f.gep(base, j * values.step, LLVM[dtype]), f.gep(values_at, j * width, F32)
            for c, tail in columns_of(f, value_size):
                f.store(wide_load(f, dtype, real, c, tail), place, c)
        f.loop(0, count, 1, [], row)

    def tile_of(state: V, head: V, first: V, height: int, entry: V, begin: V, end: V, k0: V, count: V,
                batch: V, last: V) -> None:
        """One tile of queries against the block's keys from `begin` to `end`."""
        base = queries.at(batch, head, first)
        spread = f.splat(scale, lanes)
        columns = columns_of(f, size)
        for r in range(height):
            row = f.gep(base, r * queries.step, LLVM[dtype])
            for c, tail in columns:
                x = wide_load(f, dtype, row, c, tail) * spread
                f.store_masked(x, queries_at, r * size + c, tail)
            f.store(unseen, peaks_at, r * lanes)
        bias = f.gep(biases.at(batch, head, first), k0 * (mask_step or 0), F32)
        keeping = f.gep(keeps.at(batch, head, first), k0, I8)

        def score(j: V) -> None:
            panel = f.gep(keys_at, j * size, F32)
            inside = [f.mask(lanes, f.fast_max(f.fast_min(count - j - c * lanes, lanes), 0)) for c in (0, 1)]
            plain = mask_step is None and not bounded and not capped and not kept
            start = [f.select(m, zero, unseen) if plain else zero for m in inside]
            acc = tile(f, height, 2, queries_at, size, panel, wide, size, start * height)
            column = steps + f.splat(f.cast(k0 + j, I32), lanes)
            for r in range(height):
                place = f.gep(f.gep(scores_at, r * pitch, F32), j, F32)
                if bounded:
                    low, high = (f.splat(f.cast(x, I32), lanes) for x in limits(entry, first + r))
                for c in (0, 1):
                    x = acc[2 * r + c]
                    if capped:
                        x = softcapped(f, x, cap)
                    if kept:
                        at_key = r * keeps.step + j + c * lanes
                        counts = f.load_masked(vec(I1, lanes), keeping, at_key, inside[c])
                        x = f.select(counts, x, unseen if mask_step is None else zero)
                    if mask_step == 0:
                        x = x + f.splat(f.load(F32, bias, r * biases.step), lanes)
                    elif mask_step == 1:
                        x = x + f.load_masked(floats, bias, r * biases.step + j + c * lanes, inside[c],
                                              -math.inf)
                    if rounded:
                        x = as_stored(f, x, dtype)
                    if bounded:
                        key = column + c * lanes
                        x = f.select((key >= low) & (key < high), x, unseen)
                    elif not plain:
                        x = f.select(inside[c], x, unseen)
                    f.store(x, place, c * lanes)
                    acc[2 * r + c] = x
                peak = f.load(floats, peaks_at, r * lanes)
                f.store(f.fast_max(f.fast_max(acc[2 * r], acc[2 * r + 1]), peak), peaks_at, r * lanes)
        f.loop(begin, end, wide, [], score)

        tops, sums, mixed = (f.gep(state, x, F32) for x in (0, at.column, at.column + rows * lanes))
        safes, fades, factors = (f.gep(f.scratch, at.rows + i * at.column, F32) for i in range(3))
        started = k0 > 0
        for g in range(0, height, lanes):
            top = fold(f, [f.load(floats, peaks_at, r * lanes) if r < height else unseen
                           for r in range(g, g + lanes)], f.fast_max)
            before = f.load(floats, tops, g)
            if not cleared:
                before = f.select(started, before, unseen)
            top = f.fast_max(top, before)
            safe = f.select(top.eq(-math.inf), zero, top)
            f.store(top, tops, g)
            f.store(safe, safes, g)
            fade = weight_of(f, before - safe)
            f.store(counted(f, fade, before - safe) if empty == "guarded" else fade, fades, g)

        def soften(r: V) -> None:
            row, top = f.gep(scores_at, r * pitch, F32), f.splat(f.load(F32, safes, r), lanes)

            def weigh(j: V, *given: V) -> list[V]:
                below = [f.load(floats, f.gep(row, c * lanes, F32), j) - top for c in (0, 1)]
                weights = [weight_of(f, x) for x in below]
                for c, e in enumerate(weights):
                    e = counted(f, e, below[c]) if empty == "guarded" else e
                    f.store(e, f.gep(row, c * lanes, F32), j)
                return [s + e for s, e in zip(given, weights, strict=True)]
            a, b = f.loop(begin, end, wide, [zero] * 2, weigh)
            place = f.gep(sums, r * lanes, F32)
            new, old = a + b, f.load(floats, place)
            grown = f.fma(old, f.splat(f.load(F32, fades, r), lanes), new)
            f.store(grown if cleared else f.select(started, grown, new), place)
        f.loop(0, height, 1, [], soften)

        def close() -> None:
            for g in range(0, height, lanes):
                weight = fold(f, [f.load(floats, sums, r * lanes) if r < height else zero
                                  for r in range(g, g + lanes)], V.__add__)
                f.store(share_of(f, weight, empty), factors, g)
        f.when(last, close)
        keys_end = f.fast_max(f.fast_min(end, count), begin)
        target = results.at(batch, head, first)

        def mix(c: V, tails: Sequence[V | None]) -> None:
            cols = len(tails)
            sums_of = f.gep(mixed, c, F32)
            places = [(sums_of, r * width + i * lanes) for r in range(height) for i in range(cols)]

            def resume() -> list[V]:
                return [f.load(floats, *p) * f.splat(f.load(F32, fades, i // cols), lanes)
                        for i, p in enumerate(places)]
            start = resume() if cleared else f.when(started, resume, lambda: [zero] * (height * cols))
            for x, p in zip(start, places, strict=True):
                f.store(x, *p)

            def chunk(first: V) -> None:
                acc = tile(f, height, cols, f.gep(scores_at, first, F32), pitch,
                           f.gep(values_at, first * width + c, F32), width,
                           f.fast_min(keys_end - first, LONG_SUM), [zero] * (height * cols))
                for x, p in zip(acc, places, strict=True):
                    f.store(f.load(floats, *p) + x, *p)
            f.loop(begin, keys_end, LONG_SUM, [], chunk)

            def give() -> None:
                for r in range(height):
                    factor = f.splat(f.load(F32, factors, r), lanes)
                    row = f.gep(target, r * results.step + c, LLVM[dtype])
                    for i, tail in enumerate(tails):
                        x = f.load(floats, *places[r * cols + i])
                        narrow_store(f, x * factor, dtype, row, i * lanes, tail)
            f.when(last, give)
        whole = value_size // wide * wide
        if whole:
            f.loop(0, whole, wide, [], lambda c: mix(c, [None, None]))
        if whole < value_size:
            mix(f.i64(whole), [tail for c, tail in columns_of(f, value_size) if c >= whole])

    def limits(entry: V, row: V) -> tuple[V, V]:
        """The keys row `row` sees; `entry`: how many there are."""
        place = row + (entry - length if trailing else shift)
        return f.fast_max(place - left, 0), f.fast_min(place + right + 1, f.fast_min(entry, total))

    def item(i: V) -> None:
        chunk, rest = i % chunks, i // chunks
        kv_head, batch = rest % kv_heads, rest // kv_heads
        first = chunk * per
        end_unit = f.fast_min(first + per, group * tiles)
        entry = total
        if ends_type:
            entry = f.cast(f.load(LLVM[ends_type], ends, batch), I64) + ends_add

        def over(b: V) -> None:
            k0 = b * block
            count = f.fast_min(total - k0, block)
            pack_keys(keys.at(batch, kv_head, k0), count)
            pack_values(values.at(batch, kv_head, k0), count)

            def unit(u: V) -> None:
                head, t = kv_head * group + u // tiles, u % tiles
                height = f.select(f.compare("lt", t, tall), f.i64(rows), rows - 1)
                start = f.fast_min(t * rows - f.fast_max(t - tall, 0), length - height)
                state = f.gep(f.scratch, f.select(once, 0, u - first) * at.slot + at.state, F32)
                last = b.eq(blocks - 1)

                def clear() -> None:
                    top = f.load(F32, sink, head) if sunk else f.const(F32, -math.inf)
                    for g in range(0, at.column, lanes):
                        f.store(f.splat(top, lanes), state, g)
                    f.loop(at.column, at.slot // lanes * lanes, lanes, [], lambda j: f.store(zero, state, j))
                    if sunk:
                        weight = f.select(top.eq(-math.inf), f.const(F32, 0.0), 1.0)
                        for r in range(rows):
                            f.store(weight, state, at.column + r * lanes)
                begin, end = f.i64(0), up(count, wide)
                if cleared:
                    f.when(b.eq(0), clear)
                if bounded:
                    lowest, _ = limits(entry, start)
                    _, highest = limits(entry, start + height - 1)
                    begin = f.fast_max(lowest - k0, 0) & -wide
                    end = up(f.fast_max(f.fast_min(highest - k0, count), 0), wide)
                    begin = f.fast_min(begin, end)

                def at_height(h: int) -> Callable[[], None]:
                    return lambda: tile_of(state, head, start, h, entry, begin, end, k0, count, batch, last)

                def some() -> None:
                    if short:
                        f.when(f.compare("lt", t, tall), at_height(rows), at_height(rows - 1))
                    else:
                        at_height(rows)()
                if bounded:
                    f.when((begin < end) | last, some)
                else:
                    some()
            f.loop(first, end_unit, 1, [], unit)
        f.loop(0, blocks, 1, [], over)
    f.loop(f.lo, f.hi, 1, [], item)


@dataclass(frozen=True)
class AttentionForm:
    """What of an attention a kernel is written for; see `attend`."""

    dtype: str
    size: int
    value_size: int
    mask_step: int | None = None
    bounded: bool = False
    ends_type: str = ""
    trailing: bool = False
    capped: bool = False
    sunk: bool = False
    kept: bool = False
    empty: Empty = "zero"
    rounded: bool = False


@dataclass(frozen=True)
class AttentionPlan:
    """A kernel, its items and bytes of scratch; `tiling` are the arguments from `tiles` to `per`, None where
    the kernel is `attend_few`."""

    spec: Spec
    items: int
    scratch: int
    tiling: tuple[int, int, int, int] | None


@choice()
def plan(machine: Machine, form: AttentionForm, batch: int, heads: int, kv_heads: int, length: int,
         total: int, threads: int = 1, grown: bool = False) -> AttentionPlan:
    """The kernel for `length` queries per head over `total` keys. `grown`: keys are copied to a cache on the
    way, which only `attend_few` does."""
    group = heads // kv_heads
    if grown or is_few(length):
        few = Few.of(machine, form.size, form.value_size)
        return AttentionPlan(attend_few(grown=grown, **vars(form)), batch * kv_heads,
                    few.bytes(machine, group * length, total), None)
    tiles, rows, tall = _tiling(shapes(machine)[2], length)
    block = block_of(machine, form.size + form.value_size)
    at = Scratch.of(machine, form.size, form.value_size, rows, block)
    most_slots = group * tiles if total <= block else max(machine.l2 // 12 // at.slot, 1)
    chunks = _chunks(batch * kv_heads, group * tiles, threads, most_slots)
    per = -(-group * tiles // chunks)
    chunks = -(-group * tiles // per)
    slots = 1 if total <= block else per
    return AttentionPlan(attend(rows=rows, short=tiles > 1, block=block, **vars(form)),
                         batch * kv_heads * chunks, 4 * (at.state + slots * at.slot),
                         (tiles, tall, chunks, per))


def _tiling(most: int, length: int) -> tuple[int, int, int]:
    """How `length` queries are divided: tiles, rows of the tall ones, how many those are. Beyond one tile the
    kernel is the same for every length: where tiles of two heights do not come out even, the last rows are
    done twice."""
    tiles = -(-length // most)
    if tiles == 1:
        return 1, length, 1
    return tiles, most, length - tiles * (most - 1) if length >= tiles * (most - 1) else tiles


def is_few(length: int, grown: bool = False) -> bool:
    """Whether `attend_few` is the faster kernel for so many queries; a cache it copies on the way pays for
    more."""
    return length <= (FEW_QUERIES + 2 if grown else FEW_QUERIES)


def block_of(machine: Machine, width: int) -> int:
    """Keys per block: as many as fit well into the second cache, a power of two."""
    block = 128
    while 2 * block * width * 4 <= machine.l2 // 2:
        block *= 2
    return block


def _chunks(heads: int, tiles: int, threads: int, most: int) -> int:
    """Into how many items the tiles of a head are divided, `most` tiles each, so that the threads end
    together. Packing keys and values costs about as much as half a tile."""
    best, least_time = 1, math.inf
    for chunks in range(-(-tiles // most), min(tiles, 4 * threads) + 1) or [-(-tiles // most)]:
        per = -(-tiles // chunks)
        time = -(-heads * -(-tiles // per) // threads) * (per + 0.5)
        if time < 0.97 * least_time:
            best, least_time = chunks, time
    return best


def arguments(made: AttentionPlan, tensors: Sequence[Any], strides: Sequence[Sequence[int]], kv_heads: int,
              group: int, length: int, total: int, window: tuple[int, int, int], ends_add: int, scale: float,
              cap: float,
              cache: tuple[Sequence[Any], Sequence[Sequence[int]], int] | None = None) -> list[Any]:
    """A plan's kernel arguments. `tensors`: q, k, v, out, mask, ends, sink, keep, 0 for those absent;
    `strides`: batch, head and position of q, k, v, out, mask and keep. `window`: shift, left, right. `cache`:
    past and present keys and values, their strides, and how many are past."""
    numbers = [*window, ends_add, scale, cap]
    if made.tiling is not None:
        lead, tail = [*tensors, kv_heads, group, length, total, *numbers, *made.tiling], strides
    else:
        arrays, steps, past = cache or ([0] * 4, [(0, 0, 0)] * 4, 0)
        lead, tail = [*tensors, *arrays, kv_heads, group, length, past, total, *numbers], [*strides, *steps]
    return [*lead, *(s for three in tail for s in three)]
