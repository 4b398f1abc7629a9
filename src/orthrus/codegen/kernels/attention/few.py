"""Attention of a few queries over many keys, bound by memory: keys and values are read where they lie, once.

Also rows appended to caches of keys and values. The meaning of arguments is that of `many.attend`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from ....records import dataclass
from ...machines.machine import Machine
from ...write.body import Body
from ...write.emit import F32, I32, I64, V, vec
from ...write.expr import LLVM
from ...write.template import template
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
          " left:i64 right:i64 ends_add:i64 scale:float cap:float", together=True)
def attend_few(f: Body, given: Any, *, grown: bool, **form: Any) -> None:
    """As `many.attend`, an item being one key head with all queries that share it. With `grown` the keys and
    values are the `past` ones, then those of `k` and `v`, and all `total` are copied to `present_k` and
    `present_v`."""
    few = _FewQueries(f, given, AttentionForm(**form), grown)
    f.loop(f.lo, f.hi, 1, [], few.item)


class _FewQueries:
    """A kernel `attend_few` as it is written, for one form. A row is a query of one of the query heads."""

    kv_head: V
    batch: V
    entry: V
    """Of the item that is being written; `entry`: how many keys the batch entry has."""

    def __init__(self, f: Body, given: Any, form: AttentionForm, grown: bool) -> None:
        self.f, self.given, self.form, self.grown = f, given, form, grown
        self.lanes = f.machine.lanes()
        self.floats, self.stored = vec(F32, self.lanes), LLVM[form.dtype]
        self.few = few = Few.of(f.machine, form.size, form.value_size)
        self.zero, self.unseen = f.zero(self.floats), f.const(self.floats, -math.inf)
        self.steps = f.const(vec(I32, self.lanes), list(range(self.lanes)))
        self.rows, self.pitch = given.group * given.length, up(given.total, self.lanes) + self.lanes
        self.mixed = f.gep(f.scratch, self.rows * few.width, F32)
        self.scores = f.gep(self.mixed, self.rows * few.value_width, F32)
        tensors = (given.q, given.k, given.v, given.out, given.mask, given.keep, given.past_k, given.past_v,
                   given.present_k, given.present_v)
        types = (form.dtype,) * 4 + ("float32", "uint8") + (form.dtype,) * 4
        (self.queries, self.keys, self.values, self.results, self.biases, self.keeps, self.old_keys,
         self.old_values, self.all_keys, self.all_values) = (
            View(f, x, len(attend_few.cells) + 3 * i, dtype)
            for i, (x, dtype) in enumerate(zip(tensors, types, strict=True)))

    def item(self, i: V) -> None:
        """A key head: scores of all its keys, weights, the weighted sums of values, and these divided."""
        f, given = self.f, self.given
        self.kv_head, self.batch = i % given.kv_heads, i // given.kv_heads
        self.entry = given.total
        if self.form.ends_type:
            end = f.load(LLVM[self.form.ends_type], given.ends, self.batch)
            self.entry = f.cast(end, I64) + given.ends_add
        f.loop(0, self.rows, 1, [], self.prepare)
        self.each(self.keys, self.old_keys, self.all_keys, self.form.size, self.dot)
        f.loop(0, self.rows, 1, [], self.soften)
        self.each(self.values, self.old_values, self.all_values, self.form.value_size, self.mix)
        f.loop(0, self.rows, 1, [], self.finish)

    def head_of(self, r: V) -> tuple[V, V]:
        """The query head of row `r`, and which of its queries it is."""
        return self.kv_head * self.given.group + r // self.given.length, r % self.given.length

    def prepare(self, r: V) -> None:
        """Row `r`'s query, scaled, and nothing mixed yet."""
        f, dtype, few = self.f, self.form.dtype, self.few
        head, at = self.head_of(r)
        row = self.queries.at(self.batch, head, at)
        for c, tail in columns_of(f, self.form.size):
            x = wide_load(f, dtype, row, c, tail) * f.splat(self.given.scale, self.lanes)
            f.store(x, f.gep(f.scratch, r * few.width, F32), c)
        for c in range(0, few.value_width, self.lanes):
            f.store(self.zero, f.gep(self.mixed, r * few.value_width, F32), c)

    # keys and values, where they lie

    def each(self, new: View, old: View, both: View, width: int, use: Callable[[V, V, V, V], None]) -> None:
        """All keys or values in blocks: `use(address, step, first, count)`."""
        f, given = self.f, self.given
        here, there = new.at(self.batch, self.kv_head), both.at(self.batch, self.kv_head)
        if not self.grown:
            self.over(here, new.step, given.total, None, both.step, width,
                      lambda at, j, n: use(at, new.step, j, n))
            return
        self.over(old.at(self.batch, self.kv_head), old.step, given.past, there, both.step, width,
                  lambda at, j, n: use(at, old.step, j, n))
        self.over(here, new.step, given.total - given.past, f.gep(there, given.past * both.step, self.stored),
                  both.step, width, lambda at, j, n: use(at, new.step, j + given.past, n))

    def over(self, base: V, step: V, count: V, target: V | None, to: V, width: int,
             use: Callable[[V, V, V], None]) -> None:
        """Blocks of keys or values: `use(address, first, count)`, copied to `target` before."""
        f = self.f

        def block(j: V) -> None:
            here, some = f.gep(base, j * step, self.stored), f.fast_min(count - j, self.few.block)
            if target is not None:
                self.pass_on(here, step, f.gep(target, j * to, self.stored), to, some, width)
            use(here, j, some)
        f.loop(0, count, self.few.block, [], block)

    def pass_on(self, source: V, step: V, target: V, to: V, count: V, width: int) -> None:
        """`count` rows of keys or values copied."""
        f, stored = self.f, self.stored

        def one(j: V) -> None:
            read, write = f.gep(source, j * step, stored), f.gep(target, j * to, stored)
            for c, tail in columns_of(f, width):
                f.store_masked(f.load_masked(vec(stored, self.lanes), read, c, tail), write, c, tail)
        f.loop(0, count, 1, [], one)

    # scores, weights, results

    def dot(self, base: V, step: V, first: V, count: V) -> None:
        """Scores of `count` keys from `base` on, which are keys `first`, ..."""
        f, form, lanes = self.f, self.form, self.lanes

        def several(j: V) -> None:
            places = [f.gep(base, f.fast_min(j + i, count - 1) * step, self.stored) for i in range(lanes)]

            def row(r: V) -> None:
                acc = [self.zero] * lanes
                for c, tail in columns_of(f, form.size):
                    x = f.load(self.floats, f.gep(f.scratch, r * self.few.width, F32), c)
                    acc = [f.fma(x, wide_load(f, form.dtype, p, c, tail), a)
                           for p, a in zip(places, acc, strict=True)]
                x = fold(f, acc, V.__add__)
                if form.capped:
                    x = softcapped(f, x, self.given.cap)
                f.store(x, self.scores, r * self.pitch + first + j)
            f.loop(0, self.rows, 1, [], row)
        f.loop(0, count, lanes, [], several)

    def soften(self, r: V) -> None:
        """Row `r`'s scores become weights; one over their sum is put behind them."""
        f, given, form, lanes, floats = self.f, self.given, self.form, self.lanes, self.floats
        total = given.total
        head, at = self.head_of(r)
        row = f.gep(self.scores, r * self.pitch, F32)
        bias, keeping = self.biases.at(self.batch, head, at), self.keeps.at(self.batch, head, at)
        if form.bounded:
            place = at + (self.entry - given.length if form.trailing else given.shift)
            low = f.splat(f.cast(f.fast_max(place - given.left, 0), I32), lanes)
            most = f.fast_min(place + given.right + 1, f.fast_min(self.entry, total))
            high = f.splat(f.cast(most, I32), lanes)

        def mask_off(j: V, top: V) -> V:
            inside = f.mask(lanes, f.fast_min(total - j, lanes))
            x = f.load(floats, row, j)
            x = masked_scores(f, form, x, inside, (keeping, self.keeps.step), (bias, self.biases.step),
                              lambda _, keyed: j if keyed else 0)
            if form.bounded:
                key = self.steps + f.splat(f.cast(j, I32), lanes)
                inside = inside & (key >= low) & (key < high)
            x = f.select(inside, x, self.unseen)
            f.store(x, row, j)
            return f.fast_max(x, top)
        top = f.load(F32, given.sink, head) if form.sunk else f.const(F32, -math.inf)
        (peaks,) = f.loop(0, total, lanes, [f.splat(top, lanes)], mask_off)
        peak = f.reduce(peaks, f.fast_max)
        safe = f.splat(f.select(peak.eq(-math.inf), f.const(F32, 0.0), peak), lanes)

        def weigh(j: V, total_: V) -> V:
            below = f.load(floats, row, j) - safe
            e = weight_of(f, below)
            f.store(counted(f, e, below) if form.empty == "guarded" else e, row, j)
            return total_ + e
        (sums,) = f.loop(0, total, _SUMMED * lanes, [self.zero], lambda j, sums: sums + f.loop(
            j, f.fast_min(j + _SUMMED * lanes, total), lanes, [self.zero], weigh)[0])
        weight = f.reduce(sums, V.__add__)
        if form.sunk:
            weight = weight + f.extract(weight_of(f, f.splat(top, lanes) - safe), 0)
        f.store(share_of(f, weight, form.empty), row, self.pitch - 1)

    def mix(self, base: V, step: V, first: V, count: V) -> None:
        """The sums grow by `count` values from `base` on, with the weights of keys `first`, ..., as far as
        the batch entry has keys: 0 times what lies behind them may be NaN."""
        f = self.f
        if self.form.ends_type:
            count = f.fast_max(f.fast_min(self.entry - first, count), 0)
        columns = columns_of(f, self.form.value_size)

        def row(r: V) -> None:
            weights = f.gep(self.scores, r * self.pitch + first, F32)
            sums = f.gep(self.mixed, r * self.few.value_width, F32)
            for n in range(0, len(columns), 4):
                self.add_columns(base, step, count, columns[n:n + 4], weights, sums)
        f.loop(0, self.rows, 1, [], row)

    def add_columns(self, base: V, step: V, count: V, part: Sequence[tuple[int, V | None]], weights: V,
                    sums: V) -> None:
        """As `mix`, of some vectors of one row's sums."""
        f, lanes = self.f, self.lanes
        wide, sets = len(part), 4 if f.machine.registers > 16 else 2

        def add(j: V, *acc: V) -> list[V]:
            given = list(acc)
            for u in range(len(acc) // wide):
                w = f.splat(f.load(F32, f.gep(weights, u, F32), j), lanes)
                place = f.gep(base, (j + u) * step, self.stored)
                for n, (c, tail) in enumerate(part):
                    x = wide_load(f, self.form.dtype, place, c, tail)
                    given[u * wide + n] = f.fma(w, x, given[u * wide + n])
            return given
        acc = f.loop(0, count & -sets, sets, [self.zero] * (wide * sets), add)
        acc = [_sum(acc[n::wide]) for n in range(wide)]
        acc = f.loop(count & -sets, count, 1, acc, add)
        for x, (c, _) in zip(acc, part, strict=True):
            f.store(f.load(self.floats, sums, c) + x, sums, c)

    def finish(self, r: V) -> None:
        """Row `r`'s sums by the sum of weights, as they are stored."""
        f, lanes = self.f, self.lanes
        head, at = self.head_of(r)
        factor = f.splat(f.load(F32, f.gep(self.scores, r * self.pitch, F32), self.pitch - 1), lanes)
        target = self.results.at(self.batch, head, at)
        for c, tail in columns_of(f, self.form.value_size):
            x = f.load(self.floats, f.gep(self.mixed, r * self.few.value_width, F32), c) * factor
            narrow_store(f, x, self.form.dtype, target, c, tail)


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
