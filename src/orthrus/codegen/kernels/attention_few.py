"""Attention of a few queries over many keys, bound by memory: keys and values are read where they lie, once.

Also rows appended to caches of keys and values. The meaning of arguments is that of `attention.attend`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from ...records import dataclass
from ..machines.machine import Machine
from ..write.body import Body
from ..write.emit import F32, I1, I32, I64, V, vec
from ..write.expr import LLVM
from ..write.template import template
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
    up,
    weight_of,
    wide_load,
)

_SUMMED = 64
"""Vectors of weights that are summed one after another."""


@dataclass(frozen=True)
class Few:
    """How `attend_few` lies in scratch: queries and results padded to whole vectors, then rows of scores."""

    width: int
    value_width: int
    block: int

    @staticmethod
    def of(machine: Machine, size: int, value_size: int) -> Few:
        lanes = machine.lanes()
        return Few(ceil(size, lanes), ceil(value_size, lanes), 64)

    def bytes(self, machine: Machine, rows: int, total: int) -> int:
        return 4 * rows * (self.width + self.value_width + ceil(total, machine.lanes()) + machine.lanes())


@template("q:ptr k:ptr v:ptr out:ptr mask:ptr ends:ptr sink:ptr keep:ptr past_k:ptr past_v:ptr"
          " present_k:ptr present_v:ptr kv_heads:i64 group:i64 length:i64 past:i64 total:i64 shift:i64"
          " left:i64 right:i64 ends_add:i64 scale:float cap:float")
def attend_few(f: Body, q: V, k: V, v: V, out: V, mask: V, ends: V, sink: V, keep: V, past_k: V,
               past_v: V, present_k: V, present_v: V, kv_heads: V, group: V, length: V, past: V, total: V,
               shift: V, left: V, right: V, ends_add: V, scale: V, cap: V, *, dtype: str, size: int,
               value_size: int, mask_step: int | None, bounded: bool, ends_type: str, trailing: bool,
               capped: bool, sunk: bool, kept: bool, empty: Empty, rounded: bool, grown: bool) -> None:
    """As `attend`, an item being one key head with all queries that share it. With `grown` the keys and
    values are the `past` ones, then those of `k` and `v`, and all `total` are copied to `present_k` and
    `present_v`."""
    lanes, floats = f.machine.lanes(), vec(F32, f.machine.lanes())
    few = Few.of(f.machine, size, value_size)
    stored = LLVM[dtype]
    zero, unseen = f.zero(floats), f.const(floats, -math.inf)
    steps = f.const(vec(I32, lanes), list(range(lanes)))
    rows, pitch = group * length, up(total, lanes) + lanes
    mixed = f.gep(f.scratch, rows * few.width, F32)
    scores = f.gep(mixed, rows * few.value_width, F32)
    queries, keys, values, results, biases, keeps, old_keys, old_values, all_keys, all_values = (
        View(f, x, len(attend_few.cells) + 3 * i, "float32" if x is mask else "uint8" if x is keep else dtype)
        for i, x in enumerate((q, k, v, out, mask, keep, past_k, past_v, present_k, present_v)))

    def item(i: V) -> None:
        kv_head, batch = i % kv_heads, i // kv_heads
        entry = total
        if ends_type:
            entry = f.cast(f.load(LLVM[ends_type], ends, batch), I64) + ends_add

        def head_of(r: V) -> tuple[V, V]:
            return kv_head * group + r // length, r % length

        def prepare(r: V) -> None:
            head, at = head_of(r)
            row = queries.at(batch, head, at)
            for c, tail in columns_of(f, size):
                x = wide_load(f, dtype, row, c, tail) * f.splat(scale, lanes)
                f.store(x, f.gep(f.scratch, r * few.width, F32), c)
            for c in range(0, few.value_width, lanes):
                f.store(zero, f.gep(mixed, r * few.value_width, F32), c)
        f.loop(0, rows, 1, [], prepare)

        def pass_on(source: V, step: V, target: V, to: V, count: V, width: int) -> None:
            def one(j: V) -> None:
                read, write = f.gep(source, j * step, stored), f.gep(target, j * to, stored)
                for c, tail in columns_of(f, width):
                    ty = vec(stored, lanes)
                    f.store_masked(f.load_masked(ty, read, c, tail), write, c, tail)
            f.loop(0, count, 1, [], one)

        def dot(base: V, step: V, first: V, count: V) -> None:
            """Scores of `count` keys from `base` on, which are keys `first`, ..."""
            def several(j: V) -> None:
                places = [f.gep(base, f.fast_min(j + i, count - 1) * step, stored) for i in range(lanes)]

                def row(r: V) -> None:
                    acc = [zero] * lanes
                    for c, tail in columns_of(f, size):
                        x = f.load(floats, f.gep(f.scratch, r * few.width, F32), c)
                        acc = [f.fma(x, wide_load(f, dtype, p, c, tail), a) for p,
                               a in zip(places, acc, strict=True)]
                    x = fold(f, acc, V.__add__)
                    if capped:
                        x = softcapped(f, x, cap)
                    f.store(x, scores, r * pitch + first + j)
                f.loop(0, rows, 1, [], row)
            f.loop(0, count, lanes, [], several)

        def over(base: V, step: V, count: V, target: V | None, to: V, width: int,
                 use: Callable[[V, V, V], None]) -> None:
            """Blocks of keys or values: `use(address, first, count)`, copied to `target` before."""
            def block(j: V) -> None:
                here, some = f.gep(base, j * step, stored), f.fast_min(count - j, few.block)
                if target is not None:
                    pass_on(here, step, f.gep(target, j * to, stored), to, some, width)
                use(here, j, some)
            f.loop(0, count, few.block, [], block)

        def each(new: View, old: View, both: View, width: int, use: Callable[[V, V, V, V], None]) -> None:
            """All keys or values in blocks: `use(address, step, first, count)`."""
            here, there = new.at(batch, kv_head), both.at(batch, kv_head)
            if not grown:
                over(here, new.step, total, None, both.step, width, lambda at, j, n: use(at, new.step, j, n))
                return
            over(old.at(batch, kv_head), old.step, past, there, both.step, width,
                 lambda at, j, n: use(at, old.step, j, n))
            over(here, new.step, total - past, f.gep(there, past * both.step, stored), both.step, width,
                 lambda at, j, n: use(at, new.step, j + past, n))
        each(keys, old_keys, all_keys, size, dot)

        def soften(r: V) -> None:
            head, at = head_of(r)
            row = f.gep(scores, r * pitch, F32)
            bias, keeping = biases.at(batch, head, at), keeps.at(batch, head, at)
            if bounded:
                place = at + (entry - length if trailing else shift)
                low = f.splat(f.cast(f.fast_max(place - left, 0), I32), lanes)
                high = f.splat(f.cast(f.fast_min(place + right + 1, f.fast_min(entry, total)), I32), lanes)

            def mask_off(j: V, top: V) -> V:
                inside = f.mask(lanes, f.fast_min(total - j, lanes))
                x = f.load(floats, row, j)
                if kept:
                    counts = f.load_masked(vec(I1, lanes), keeping, j, inside)
                    x = f.select(counts, x, unseen if mask_step is None else zero)
                if mask_step == 0:
                    x = x + f.splat(f.load(F32, bias), lanes)
                elif mask_step == 1:
                    x = x + f.load_masked(floats, bias, j, inside, -math.inf)
                if rounded:
                    x = as_stored(f, x, dtype)
                if bounded:
                    key = steps + f.splat(f.cast(j, I32), lanes)
                    inside = inside & (key >= low) & (key < high)
                x = f.select(inside, x, unseen)
                f.store(x, row, j)
                return f.fast_max(x, top)
            top = f.load(F32, sink, head) if sunk else f.const(F32, -math.inf)
            (peaks,) = f.loop(0, total, lanes, [f.splat(top, lanes)], mask_off)
            peak = f.reduce(peaks, f.fast_max)
            safe = f.splat(f.select(peak.eq(-math.inf), f.const(F32, 0.0), peak), lanes)

            def weigh(j: V, total_: V) -> V:
                below = f.load(floats, row, j) - safe
                e = weight_of(f, below)
                f.store(counted(f, e, below) if empty == "guarded" else e, row, j)
                return total_ + e
            (sums,) = f.loop(0, total, _SUMMED * lanes, [zero], lambda j, sums: sums + f.loop(
                j, f.fast_min(j + _SUMMED * lanes, total), lanes, [zero], weigh)[0])
            weight = f.reduce(sums, V.__add__)
            if sunk:
                weight = weight + f.extract(weight_of(f, f.splat(top, lanes) - safe), 0)
            f.store(share_of(f, weight, empty), row, pitch - 1)
        f.loop(0, rows, 1, [], soften)

        def mix(base: V, step: V, first: V, count: V) -> None:
            columns = columns_of(f, value_size)

            def row(r: V) -> None:
                weights = f.gep(scores, r * pitch + first, F32)
                sums = f.gep(mixed, r * few.value_width, F32)
                for n in range(0, len(columns), 4):
                    add_columns(columns[n:n + 4], weights, sums)

            def add_columns(part: Sequence[tuple[int, V | None]], weights: V, sums: V) -> None:
                wide, sets = len(part), 4 if f.machine.registers > 16 else 2

                def add(j: V, *acc: V) -> list[V]:
                    given = list(acc)
                    for u in range(len(acc) // wide):
                        w = f.splat(f.load(F32, f.gep(weights, u, F32), j), lanes)
                        place = f.gep(base, (j + u) * step, stored)
                        for n, (c, tail) in enumerate(part):
                            x = wide_load(f, dtype, place, c, tail)
                            given[u * wide + n] = f.fma(w, x, given[u * wide + n])
                    return given
                acc = f.loop(0, count & -sets, sets, [zero] * (wide * sets), add)
                acc = [_sum(acc[n::wide]) for n in range(wide)]
                acc = f.loop(count & -sets, count, 1, acc, add)
                for x, (c, _) in zip(acc, part, strict=True):
                    f.store(f.load(floats, sums, c) + x, sums, c)
            f.loop(0, rows, 1, [], row)
        each(values, old_values, all_values, value_size, mix)

        def finish(r: V) -> None:
            head, at = head_of(r)
            factor = f.splat(f.load(F32, f.gep(scores, r * pitch, F32), pitch - 1), lanes)
            target = results.at(batch, head, at)
            for c, tail in columns_of(f, value_size):
                x = f.load(floats, f.gep(mixed, r * few.value_width, F32), c) * factor
                narrow_store(f, x, dtype, target, c, tail)
        f.loop(0, rows, 1, [], finish)
    f.loop(f.lo, f.hi, 1, [], item)


def _sum(xs: Sequence[V]) -> V:
    return xs[0] if len(xs) == 1 else _sum(xs[:len(xs) // 2]) + _sum(xs[len(xs) // 2:])


@template("past:ptr new:ptr out:ptr ends:ptr status:ptr heads:i64 held:i64 length:i64 capacity:i64 first:i64")
def append_rows(f: Body, past: V, new: V, out: V, ends: V, status: V, heads: V, held: V, length: V,
                capacity: V,
                first: V, *, dtype: str, size: int, ends_type: str, zeroed: bool) -> None:
    """A cache of keys or values with new rows in it: the `held` rows of `past`, then zeros up to `capacity`
    where `zeroed`, and the `length` rows of `new` from row `first` (plus `ends[batch]`) on; where they do not
    fit, `status` becomes 1. Where `past` and `out` are the same memory, only new rows are written. An item is
    one head."""
    old, added, made = (View(f, x, len(append_rows.cells) + 3 * i, dtype) for i,
                        x in enumerate((past, new, out)))
    lanes, stored = f.machine.lanes(), LLVM[dtype]
    columns = columns_of(f, size)

    def item(i: V) -> None:
        batch, head = i // heads, i % heads
        target = made.at(batch, head)

        def move(source: V | None, step: V, at: V, count: V) -> None:
            def row(j: V) -> None:
                write = f.gep(target, (at + j) * made.step, stored)
                for c, tail in columns:
                    ty = vec(stored, lanes)
                    x = f.zero(ty)
                    if source is not None:
                        read = f.gep(source, j * step, stored)
                        x = f.load_masked(ty, read, c, tail)
                    f.store_masked(x, write, c, tail)
            f.loop(0, count, 1, [], row)
        source = old.at(batch, head)
        here = f.cast(source, I64).eq(f.cast(target, I64)) & old.step.eq(made.step)
        move(source, old.step, f.i64(0), f.select(here, f.i64(0), held))
        if zeroed:
            move(None, old.step, held, capacity - held)
        at = first
        if ends_type:
            at = at + f.cast(f.load(LLVM[ends_type], ends, batch), I64)
        f.when((at >= 0) & (at + length <= capacity),
               lambda: move(added.at(batch, head), added.step, at, length),
               lambda: f.store(f.i64(1), status))
    f.loop(f.lo, f.hi, 1, [], item)
