"""The k best of each row: values and indices out, best first, of equal ones the first.

Elements become integers that sort as they do. The k-th largest is found bit by bit from the top, each bit by
one count over the row; those above it and as many equal ones as are missing are listed and sorted by merging.
Of long rows only those are looked at that are not below the k-th of the largest elements of groups.
Of short rows and few best, a vector of rows is done at a time: each element finds its place in their lists.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from ...shapes.symbolic import choice
from ..machines.machine import Machine
from ..write.body import Body
from ..write.convert import convert
from ..write.emit import I16, I32, I64, V, lanes_of, vec
from ..write.expr import BYTES, LLVM
from ..write.template import template
from ..write.vmath import any_lane
from .gather import Cells, dot
from .reduce import order_key
from .rows import cell_of, positions

UNROLL = 4
SHORT, MOST = 320, 16
"""Elements of a row, and how many best of it, for which rows are done a vector at a time, at most."""
GROUP = 64
"""Vectors of which the largest of each lane is found first, of rows that are long."""


def working(dtype: str) -> str:
    """The type that elements are compared in."""
    return {"float16": "float32", "bfloat16": "float32"}.get(dtype, dtype if BYTES[dtype] >= 4 else "int32")


@choice()
def is_long(lanes: int, length: int, k: int) -> bool:
    """Whether a row has so many groups that their largest elements tell which few are to be looked at."""
    return length >= max(2 * GROUP * max(k, lanes), 4096)


def scratch(machine: Machine, dtype: str, length: int, k: int, far: bool) -> int:
    """Bytes that a thread needs; `far`: of long rows."""
    size = BYTES[working(dtype)]
    lanes = machine.lanes(size)
    block = UNROLL * lanes
    return -(-length // block) * block * size + 32 * (k + 1) + far * 8 * (_most(k) + lanes)


def _most(k: Any) -> Any:
    """Elements of a long row that are looked at, at most."""
    return k * 4 + 1024


@template("values:ptr places:ptr x:ptr length:i64 k:i64 levels:i64")
def best_of_rows(f: Body, values: V, places: V, x: V, length: V, k: V, levels: V, *, dtype: str, outer: int,
                 least: bool, unit: bool, far: bool = False) -> None:
    """The `k` largest, or with `least` smallest, of `length` elements, NaN being the largest there is;
    `levels`: the binary logarithm of k, rounded up; `unit`: the elements lie next to each other, and with
    `far` are many, see `is_long`. Cells behind: outer sizes but for the first, then of the values, of their
    indices (int64) and of x the strides over them and along the row. Scratch: see `scratch`."""
    cells, elem, work = Cells(f, 6), LLVM[dtype], working(dtype)
    sizes = cells.several(outer - 1)
    steps = [cells.several(outer + 1) for _ in range(3)]
    size = BYTES[work]
    key, lanes = I64 if size == 8 else I32, f.machine.lanes(size)
    ty, low = vec(key, lanes), -(1 << 8 * size - 1)
    block = UNROLL * lanes
    room = (length + (block - 1)) & -block
    lists = f.gep(f.scratch, room, key)
    bufs = [f.gep(lists, (k + 1) * i, I64) for i in range(4)]

    def keyed(given: V) -> V:
        return _keyed(f, given, dtype, least)

    few, candidates = _most(k), f.gep(lists, (k + 1) * 4, I64)

    def vector(row: V, i: V) -> V:
        return keyed(f.load(vec(elem, lanes), row, i))

    def number(row: V, i: V) -> V:
        return keyed(f.load(elem, row, i * steps[2][-1]))

    def filled(begin: V, end: V) -> None:
        f.loop(begin, end, 1, [], lambda i: f.store(f.const(key, low), f.scratch, i))

    def everything(row: V) -> None:
        f.loop(room - block, room, lanes, [], lambda i: f.store(f.const(ty, low), f.scratch, i))
        whole = length & -lanes if unit else f.i64(0)
        f.loop(0, whole, lanes, [], lambda i: f.store(vector(row, i), f.scratch, i))
        f.loop(whole, length, 1, [], lambda i: f.store(number(row, i), f.scratch, i))

    def largest_of_groups(row: V) -> V:
        """The k-th of them."""
        whole = length & -lanes

        def group(begin: V, at: V) -> V:
            end = f.minimum(begin + GROUP * lanes, whole)
            (most,) = f.loop(begin, end, lanes, [f.const(ty, low)], lambda i, most: [
                f.select((have := vector(row, i)) > most, have, most)])
            f.store(most, f.scratch, at)
            return at + lanes
        (count,) = f.loop(0, whole, GROUP * lanes, [f.i64(0)], group)
        filled(count, end := (count + (block - 1)) & -block)
        return _nth(f, key, lanes, count, end, k, low)[0]

    def listed(row: V, limit: V) -> V:
        """How many are above `limit`, or of its k first equals; the first of them are in scratch, with their
        indices."""
        whole, higher = length & -lanes, f.select(limit.eq(~low), limit, limit + 1)

        def one(i: V, at: V, left: V) -> list[V]:
            have = number(row, i)
            tie = have.eq(limit) & (left > 0)
            f.store(have, f.scratch, at)
            f.store(i, candidates, at)
            return [at + f.cast((have > limit) | tie, I64), left - f.cast(tie, I64)]

        def some(i: V, at: V, left: V) -> list[V]:
            bar = f.splat(f.select(left > 0, limit, higher), lanes)
            wanted = any_lane(f, vector(row, i) >= bar) & (at <= few)
            return f.when(wanted, lambda: f.loop(i, i + lanes, 1, [at, left], one), lambda: [at, left])
        now = f.loop(0, whole, lanes, [f.i64(0), k], some)
        return f.loop(whole, f.select(now[0] <= few, length, whole), 1, now, one)[0]

    def found(count: V, end: V) -> list[V]:
        """The best of the `count` keys in scratch, filled up to `end`: their places there."""
        nth, above = _nth(f, key, lanes, count, end, k, low)
        _listed(f, ty, end, nth, k - above, bufs[0], bufs[1])
        return sorted_lists(f, k, levels, bufs)[1:2]

    def item(_: V, at: Sequence[V]) -> None:
        to, index, row = (f.gep(b, dot(f, at, s[:-1]), e) for b, s, e in zip(
            (values, places, x), steps, (elem, I64, cell_of(dtype)), strict=True))

        def put(order: V, names: V | None) -> None:
            def one(i: V) -> None:
                place = f.load(I64, order, i)
                place = place if names is None else f.load(I64, names, place)
                f.store(f.load(elem, row, place * steps[2][-1]), to, i * steps[0][-1])
                f.store(place, index, i * steps[1][-1])
            f.loop(0, k, 1, [], one)

        def among_all() -> None:
            everything(row)
            put(found(length, room)[0], None)

        def among(count: V) -> None:
            end = (count + (block - 1)) & -block
            filled(count, end)
            put(found(count, end)[0], candidates)
        if far:
            count = listed(row, largest_of_groups(row))
            f.when(count <= few, lambda: among(count), among_all)
        else:
            among_all()
    positions(f, sizes, item)


def _keyed(f: Body, given: V, dtype: str, least: bool) -> V:
    """Integers that sort as elements do, the best being the largest."""
    work = working(dtype)
    made = order_key(f, convert(f, given, dtype, work), work, False)
    return ~made if least else made


@template("values:ptr places:ptr x:ptr length:i64 rows:i64")
def best_of_short_rows(f: Body, values: V, places: V, x: V, length: V, rows: V, *, dtype: str, outer: int,
                       k: int, least: bool, beside: bool) -> None:
    """The `k` best of each row, as `best_of_rows` gives them, of as many rows at once as a vector has lanes.
    `rows`: size of the last outer dimension; `beside`: along it x's elements lie next to each other. Cells
    behind: outer sizes but for the first and the last, then of the values, of their indices (int64) and of x
    the strides over all of them and along the row."""
    cells, elem = Cells(f, 5), LLVM[dtype]
    sizes = cells.several(max(outer - 2, 0))
    steps = [cells.several(outer + 1) for _ in range(3)]
    key = I64 if BYTES[working(dtype)] == 8 else I32
    lanes = f.machine.lanes(8 if key == I64 else 4)
    ty, raw = vec(key, lanes), I16 if f.as_integers(elem) else elem
    blocks = [(rows + (lanes - 1)) // lanes] if outer > 1 else []
    lists = f.alloca(ty, k)

    def item(_: V, at: Sequence[V]) -> None:
        *place, column = at
        column = column * lanes
        left = f.minimum(rows - column, lanes)
        to, index, source = (
            f.gep(b, dot(f, place, s[:-2]) + column * s[-2], e) for b, s, e in zip(
                (values, places, x), steps, (elem, I64, cell_of(dtype)), strict=True))
        last, mask = f.splat(left - 1, lanes), f.mask(lanes, left)
        number = f.const(vec(I64, lanes), list(range(lanes)))
        moves = f.select(number < last, number, last) * f.splat(steps[2][-2], lanes)

        def keys(i: V) -> V:
            origin = f.gep(source, i * steps[2][-1], raw)
            if beside:
                return _keyed(f, f.load_masked(vec(elem, lanes), origin, 0, mask), dtype, least)
            if f.machine.arch == "riscv64":
                given = f.gather(raw, origin, moves)
            else:  # one by one: see `gather`
                given = f.undef(vec(raw, lanes))
                for u in range(lanes):
                    given = f.insert(given, f.load(raw, origin, f.extract(moves, u)), u)
            return _keyed(f, f.bitcast(given, vec(elem, lanes)), dtype, least)

        def taken(i: V, now: Sequence[V]) -> list[V]:
            """The lists with another element at its place: behind those that are as good."""
            best, order = now[::2], now[1::2]
            one, number = keys(i), f.splat(f.cast(i, key), lanes)
            after = [one > b for b in best]
            made = list[V]()
            for j, (b, o) in enumerate(zip(best, order, strict=True)):
                made += [f.select(after[j], f.select(after[j - 1], x, new) if j else new, old)
                         for x, new, old in ((best[j - 1], one, b), (order[j - 1], number, o))]
            if len(best) < k:
                made += [f.select(after[-1], x, new) if after else new
                         for x, new in zip(now[-2:] or (one, number), (one, number), strict=True)]
            return made
        found: list[V] = []
        for i in range(k):
            found = taken(f.i64(i), found)
        found = f.loop(k, length, 1, found, lambda i, *now: taken(i, now))
        for j, order in enumerate(found[1::2]):
            f.store(order, lists, j * lanes)

        def put(row: V) -> None:
            target, target_index, origin = (f.gep(b, row * s[-2], e) for b, s, e in zip(
                (to, index, source), steps, (elem, I64, raw), strict=True))
            for j in range(k):
                at = f.cast(f.load(key, lists, row + j * lanes), I64)
                f.store(f.load(elem, origin, at * steps[2][-1]), target, j * steps[0][-1])
                f.store(at, target_index, j * steps[1][-1])
        f.loop(0, left, 1, [], put)
    positions(f, [*sizes, *blocks], item)


def _count(f: Body, ty: str, room: V, limit: V, equal: bool) -> V:
    """How many keys lie above `limit`, or at it too."""
    lanes = lanes_of(ty)
    zero = f.const(ty, 0)

    def some(i: V, *now: V) -> list[V]:
        out = []
        for u, n in enumerate(now):
            have = f.load(ty, f.scratch, i + u * lanes)
            out.append(n + f.cast(have >= limit if equal else have > limit, zero.elem))
        return out
    parts = f.loop(0, room, UNROLL * lanes, [zero] * UNROLL, some)
    total = (parts[0] + parts[1]) + (parts[2] + parts[3])
    return f.cast(f.reduce(total, lambda a, b: a + b), I64)


def _extremes(f: Body, ty: str, length: V, k: V, low: int) -> list[V]:
    """The largest of `length` keys, and one that is not above the k-th largest: the smallest of as many
    lanes' largest, where k lanes have one each, else the smallest."""
    lanes = lanes_of(ty)
    block = UNROLL * lanes
    blocks, whole = length - length % block, length & -lanes
    key = f.const(ty, low).elem

    def larger(a: V, b: V) -> V:
        return f.select(a > b, a, b)

    def smaller(a: V, b: V) -> V:
        return f.select(a < b, a, b)

    def some(i: V, *now: V) -> list[V]:
        have = [f.load(ty, f.scratch, i + u * lanes) for u in range(UNROLL)]
        least = functools.reduce(smaller, have, now[-1])
        return [*(larger(h, n) for h, n in zip(have, now, strict=False)), least]
    *each, least = f.loop(0, blocks, block, [*[f.const(ty, low)] * UNROLL, f.const(ty, ~low)], some)
    each[0], least = f.loop(blocks, whole, lanes, [each[0], least], lambda i, most, least: [
        larger(f.load(ty, f.scratch, i), most), smaller(f.load(ty, f.scratch, i), least)])
    bounds = [each]
    while len(bounds[-1]) > 1:
        now = bounds[-1]
        bounds.append([larger(a, b) for a, b in zip(now[::2], now[1::2], strict=True)])
    ends = [f.reduce(bounds[-1][0], larger), f.reduce(least, smaller)]
    most, bound = f.loop(whole, length, 1, ends, lambda i, most, least: [
        larger(f.load(key, f.scratch, i), most), smaller(f.load(key, f.scratch, i), least)])
    for now in bounds:
        few = ((blocks if len(now) > 1 else whole) > 0) & (k <= len(now) * lanes)
        bound = f.select(few, f.reduce(functools.reduce(smaller, now), smaller), bound)
    return [most, bound]


def _nth(f: Body, key: str, lanes: int, length: V, room: V, k: V, low: int) -> list[V]:
    """The k-th largest key, or any above the next one, and how many are above it: how far it is above one
    that is none too large, bits set from the top as long as k keys are not below. Where k are as large as the
    largest, that is it."""
    ty = vec(key, lanes)
    most, least = _extremes(f, ty, length, k, low)
    span = most - least

    def bit(found: V, mask: V) -> tuple[V, list[V]]:
        higher = found | mask
        count = _count(f, ty, room, f.splat(least + higher, lanes), True)
        count = f.select(f.compare("gt", higher, span, True), f.i64(0), count)
        left = mask.lshr(1)
        return left.ne(0) & count.ne(k), [f.select(count >= k, higher, found), left]

    def searched() -> list[V]:
        below = span
        for step in (1, 2, 4, 8, 16, 32):
            if step < int(key[1:]):
                below = below | below.lshr(step)
        top = f.select(k.eq(length), f.const(key, 0), below ^ below.lshr(1))
        found, _ = f.repeat([f.const(key, 0), top], bit)
        nth = least + found
        return [nth, _count(f, ty, room, f.splat(nth, lanes), False)]

    def several() -> list[V]:
        enough = _count(f, ty, room, f.splat(most, lanes), True) >= k
        return f.when(enough, lambda: [most, f.i64(0)], searched)
    return f.when(k.eq(1), lambda: [most, f.i64(0)], several)


def _listed(f: Body, ty: str, room: V, nth: V, ties: V, keys: V, order: V) -> None:
    """Keys above `nth` and the first `ties` equal ones, with their indices, in order."""
    lanes = lanes_of(ty)

    def several(i: V, at: V, left: V) -> list[V]:
        def one(j: V, at: V, left: V) -> list[V]:
            have = f.load(nth.ty, f.scratch, j)
            tie = have.eq(nth) & (left > 0)
            f.store(f.cast(have, I64), keys, at)
            f.store(j, order, at)
            return [at + f.cast((have > nth) | tie, I64), left - f.cast(tie, I64)]
        have = f.load(ty, f.scratch, i)
        wanted = any_lane(f, have >= f.splat(nth, lanes))
        return f.when(wanted, lambda: f.loop(i, i + lanes, 1, [at, left], one), lambda: [at, left])
    f.loop(0, room, lanes, [f.i64(0), ties], several)


def sorted_lists(f: Body, k: V, levels: V, bufs: Sequence[V]) -> list[V]:
    """The lists with the largest key first, equal ones as they stand: keys and indices, and their spare
    memory. Blocks of some vectors are sorted by counting, then merged in pairs, each from both its ends."""
    block = _sorted_blocks(f, k, bufs)

    def level(_: V, keys: V, order: V, more: V, others: V, width: V) -> list[V]:
        def put(at: V, a: V, b: V, i: V, j: V, left: V) -> V:
            f.store(f.select(left, a, b), more, at)
            f.store(f.load(I64, order, f.select(left, i, j)), others, at)
            return f.cast(left, I64)

        def pair(begin: V) -> None:
            middle, end = f.minimum(begin + width, k), f.minimum(begin + width * 2, k)

            def ends(t: V, i: V, j: V, last_i: V, last_j: V) -> list[V]:
                a, b = f.load(I64, keys, f.minimum(i, middle - 1)), f.load(I64, keys, f.minimum(j, end - 1))
                step = put(begin + t, a, b, i, j, (i < middle) & ((j >= end) | (a >= b)))
                a, b = f.load(I64, keys, f.maximum(last_i, begin)), f.load(I64, keys, last_j)
                back = put(end - 1 - t, a, b, last_i, last_j,
                           (last_j < middle) | ((last_i >= begin) & (a < b)))
                return [i + step, j + (1 - step), last_i - back, last_j - (1 - back)]
            half = (end - begin + 1) >> 1
            f.loop(0, half, 1, [begin, middle, middle - 1, end - 1], ends)
        f.loop(0, k, width * 2, [], pair)
        return [more, others, keys, order, width * 2]
    left = f.maximum(levels - (block.bit_length() - 1), 0)
    return f.loop(0, left, 1, [*bufs[2:], *bufs[:2], f.i64(block)], level)[:4]


def _sorted_blocks(f: Body, k: V, bufs: Sequence[V]) -> int:
    """Sort blocks of the lists into their spare memory; how long blocks are."""
    keys, order, more, others = bufs
    lanes = f.machine.lanes(8)
    block, ty = 4 * lanes, vec(I64, lanes)
    ranks, numbers = f.alloca(I64, block), f.const(ty, list(range(lanes)))

    def sort(begin: V) -> None:
        here, count = f.gep(keys, begin, I64), f.minimum(k - begin, block)

        def ranked(first: V) -> None:
            have = f.load_masked(ty, here, first, f.mask(lanes, count - first))
            places = f.splat(first, lanes) + numbers

            def one(i: V, rank: V) -> list[V]:
                other = f.splat(f.load(I64, here, i), lanes)
                before = (other > have) | (other.eq(have) & (f.splat(i, lanes) < places))
                return [rank + f.cast(before, I64)]
            (rank,) = f.loop(0, count, 1, [f.const(ty, 0)], one)
            f.store(rank, ranks, first)
        f.loop(0, count, lanes, [], ranked)

        def put(i: V) -> None:
            to = begin + f.load(I64, ranks, i)
            f.store(f.load(I64, here, i), more, to)
            f.store(f.load(I64, order, begin + i), others, to)
        f.loop(0, count, 1, [], put)
    f.loop(0, k, block, [], sort)
    return block
