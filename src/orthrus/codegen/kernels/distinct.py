"""The distinct elements of a vector: where each first occurs, which of them each element is, their counts.

Elements become integers that sort as they do, -0 and 0 the same one and all NaN another. These are found in a
table by their hashes; where they are to be in rising order, they are sorted in the end.
"""

from __future__ import annotations

from ..write.body import Body
from ..write.convert import convert
from ..write.emit import I32, I64, V, vec
from ..write.expr import LLVM
from ..write.template import template
from .reduce import order_key
from .top_k import sorted_lists, working

_SPREAD = 0x9E3779B97F4A7C15 - (1 << 64)
"""2**64 over the golden ratio: multiples of it lie far from each other."""


def scratch(n: int, bits: int, ordered: bool) -> int:
    """Bytes that are needed for up to `n` elements and a table of 2**`bits` places."""
    return (4 << bits) + 8 * (n + 1) * (7 if ordered else 1)


@template("x:ptr first:ptr inverse:ptr counts:ptr sizes:ptr bits:i64 room:i64")
def distinct_elements(f: Body, x: V, first: V, inverse: V, counts: V, sizes: V, bits: V, room: V, *,
                      dtype: str, ordered: bool) -> None:
    """Of sizes[0] elements, 1 to `room`, how many are distinct to sizes[1]; of these, in rising order with
    `ordered`, else in the order in which they come, where each `first` is and how many `counts` says there
    are; which of them each element is to `inverse`; all int64. One item. The table has 2**`bits` places, more
    than there are elements. Scratch: see `scratch`."""
    elem, work = LLVM[dtype], working(dtype)
    lanes = f.machine.lanes()
    keys = f.gep(f.scratch, f.i64(1) << bits, I32)
    lists = [f.gep(keys, (room + 1) * i, I64) for i in range(1, 7 if ordered else 1)]
    where, often = lists[4:] if ordered else (first, counts)

    def put(i: V, found: V) -> list[V]:
        have = convert(f, f.load(elem, x, i), dtype, work)
        key = f.cast(order_key(f, have, work, False), I64)

        def look(at: V, _: V) -> tuple[V, list[V]]:
            slot = f.cast(f.load(I32, f.scratch, at), I64)
            other = slot.ne(0) & f.load(I64, keys, slot).ne(key)
            return other, [f.select(other, (at + 1) & ((f.i64(1) << bits) - 1), at), slot]
        at, slot = f.repeat([(key * _SPREAD).lshr(64 - bits), f.i64(0)], look)

        def new() -> V:
            f.store(f.cast(found + 1, I32), f.scratch, at)
            f.store(key, keys, found + 1)
            f.store(i, where, found)
            f.store(f.i64(0), often, found)
            return found + 1
        (more,) = f.when(slot.eq(0), new, lambda: found)
        which = f.select(slot.eq(0), found, slot - 1)
        f.store(which, inverse, i)
        f.store(f.load(I64, often, which) + 1, often, which)
        return [more]

    def everything(_: V) -> None:
        n = f.load(I64, sizes)
        f.store(f.i64(0), keys)
        f.loop(0, f.i64(1) << bits, lanes, [], lambda i: f.store(f.zero(vec(I32, lanes)), f.scratch, i))
        (found,) = f.loop(0, n, 1, [f.i64(0)], put)
        f.store(found, sizes, 1)
        if ordered:
            _ranked(n, found)

    def _ranked(n: V, found: V) -> None:
        def listed(i: V) -> None:
            f.store(~f.load(I64, keys, i + 1), lists[0], i)
            f.store(i, lists[1], i)
        f.loop(0, found, 1, [], listed)

        def doubled(width: V, levels: V) -> tuple[V, list[V]]:
            more = width < found
            return more, [width << 1, f.select(more, levels + 1, levels)]
        _, levels = f.repeat([f.i64(1), f.i64(0)], doubled)
        _, order, place, _ = sorted_lists(f, found, levels, lists[:4])

        def placed(i: V) -> None:
            which = f.load(I64, order, i)
            f.store(i, place, which)
            f.store(f.load(I64, where, which), first, i)
            f.store(f.load(I64, often, which), counts, i)
        f.loop(0, found, 1, [], placed)
        f.loop(0, n, 1, [], lambda i: f.store(f.load(I64, place, f.load(I64, inverse, i)), inverse, i))
    f.loop(f.lo, f.hi, 1, [], everything)
