"""Copies that turn: the source lies along another axis than the target, blocks are turned in registers.

Three ways: square blocks of one vector's lanes; and where the shorter axis has at most `NARROW` elements
without gaps behind them, rows of it woven together (planes to pixels) or taken apart (pixels to planes).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ..machines.machine import Machine
from ..write.body import Body
from ..write.emit import I8, I16, I32, I64, V, size_of, vec
from ..write.template import Spec, template
from .loops import Nest, picked
from .rows import positions

NARROW = 4
LEAST = 4
"""Elements along both axes from which on blocks pay."""

TILE = 64
"""Elements along the source's axis that an item turns."""

GRAIN = 1 << 13
_WOVEN = 16
"""Bytes of a vector up to which one instruction weaves halves of two together."""
_LINE = 64
"""Bytes of the target that are written one after another: those of a cache line, which may not stay long."""
_RAW = {1: I8, 2: I16, 4: I32, 8: I64}


def plan(machine: Machine, made: Nest, size: int) -> tuple[Spec, list[int], int, int] | None:
    """The kernel for a nest of a target and a source of `size` bytes an element: its spec, the cells behind
    the two addresses, its items and their grain. None where the source does not lie along another axis."""
    sizes, (target, source) = made.sizes, made.strides
    if len(sizes) < 2 or target[-1] != 1 or 1 not in source[:-1] or source[-1] in (0, 1):
        return None
    at, last = source.index(1), len(sizes) - 1
    rows, columns = sizes[last], sizes[at]
    outer = [a for a in range(last) if a != at]
    way = "block"
    if rows <= NARROW and target[at] == rows:
        way = "weave"
    elif columns <= NARROW and source[last] == columns:
        way = "part"
    elif min(rows, columns) < LEAST:
        return None
    lanes = min(machine.lanes(size), 16)
    length = {"block": columns, "weave": columns, "part": rows}[way]
    tile = TILE if way == "block" else 64 * lanes
    few = {"block": 0, "weave": rows, "part": columns}[way]
    cells = [rows, columns, source[last], target[at], *([sizes[a] for a in outer[1:]] if outer else [])]
    for strides in (target, source):
        cells += [strides[a] for a in outer] or [0]
    items = prod(sizes[a] for a in outer) * -(-length // tile)
    each = min(length, tile) * (rows if way == "block" else few)
    spec = turned(way=way, size=size, outer=max(len(outer), 1), few=few, lanes=lanes)
    return spec, cells, items, max(1, GRAIN // each)


@template("out:ptr x:ptr rows:i64 columns:i64 row:i64 column:i64")
def turned(f: Body, out: V, x: V, rows: V, columns: V, row: V, column: V, *, way: str, size: int, outer: int,
           few: int, lanes: int) -> None:
    """`rows` lie next to each other in the target, `columns` in the source; `row`: the source's stride from
    row to row, `column`: the target's from column to column. Cells behind: the outer sizes but for the first,
    the target's and the source's outer strides."""
    elem = _RAW[size]
    ty = vec(elem, lanes)
    sizes = [f.arg(6 + i, I64) for i in range(outer - 1)]
    strides = [[f.arg(5 + outer + t * outer + i, I64) for i in range(outer)] for t in range(2)]
    tile = TILE if way == "block" else 64 * lanes
    length = rows if way == "part" else columns

    def item(_: V, at: Sequence[V]) -> None:
        places = []
        for base, steps in zip((out, x), strides, strict=True):
            offset = f.i64(0)
            for i, s in zip(at, steps, strict=False):
                offset = offset + i * s
            places.append(f.gep(base, offset, elem))
        target, source = places
        begin = at[-1] * tile
        end = f.minimum(begin + tile, length)
        if way == "block":
            line = max(lanes, _LINE // size)
            f.loop(0, rows, line, [], lambda first: f.loop(begin, end, lanes, [], lambda j: f.loop(
                first, f.fast_min(first + line, rows), lanes, [], lambda i: square(target, source, i, j))))
            return
        whole = begin + ((end - begin) & -lanes)
        if way == "weave":
            f.loop(begin, whole, lanes, [], lambda j: weave(target, source, j))
            f.loop(whole, end, 1, [], lambda j: weave_one(target, source, j))
        else:
            f.loop(begin, whole, lanes, [], lambda i: part(target, source, i))
            f.loop(whole, end, 1, [], lambda i: part_one(target, source, i))

    def weave_one(target: V, source: V, j: V) -> None:
        for r in range(few):
            f.store(f.load(elem, source, j + row * r), target, j * few + r)

    def part_one(target: V, source: V, i: V) -> None:
        for c in range(few):
            f.store(f.load(elem, source, i * few + c), target, i + column * c)

    def square(target: V, source: V, i: V, j: V) -> None:
        high, wide = rows - i, columns - j
        corner, there = f.gep(source, i * row + j, elem), f.gep(target, j * column + i, elem)

        def full() -> None:
            for k, v in enumerate(turn(f, [f.load(ty, corner, row * k) for k in range(lanes)])):
                f.store(v, there, column * k)

        def some() -> None:
            mask = f.mask(lanes, f.minimum(wide, lanes))
            last = high - 1
            found = [f.load_masked(ty, corner, f.minimum(last, k) * row, mask) for k in range(lanes)]
            for k, v in enumerate(turn(f, found)):
                count = f.select(wide > k, f.minimum(high, lanes), 0)
                f.store_masked(v, there, column * k, f.mask(lanes, count))
        f.when((high >= lanes) & (wide >= lanes), full, some)

    def weave(target: V, source: V, j: V) -> None:
        planes = [f.load(ty, source, j + row * r) for r in range(few)]
        for k in range(few):
            places = [divmod(k * lanes + e, few)[::-1] for e in range(lanes)]
            f.store(picked(f, planes, places), target, j * few + k * lanes)

    def part(target: V, source: V, i: V) -> None:
        found = [f.load(ty, source, i * few + k * lanes) for k in range(few)]
        for c in range(few):
            places = [divmod(e * few + c, lanes) for e in range(lanes)]
            f.store(picked(f, found, places), target, i + column * c)
    positions(f, [*sizes, (length + (tile - 1)) // tile], item)


def turn(f: Body, rows: Sequence[V]) -> list[V]:
    """As many vectors as they have lanes, transposed."""
    rows, lanes = list(rows), len(rows)
    if size_of(rows[0].ty) <= _WOVEN:
        for _ in range(lanes.bit_length() - 1):
            pairs = [(rows[i], rows[i + lanes // 2]) for i in range(lanes // 2)]
            rows = [f.shuffle(a, b, [half * lanes // 2 + e // 2 + lanes * (e % 2) for e in range(lanes)])
                    for a, b in pairs for half in (0, 1)]
        return rows
    s = 1
    while s < lanes:
        low = [e if not e & s else lanes + e - s for e in range(lanes)]
        high = [e + s if not e & s else lanes + e for e in range(lanes)]
        for i in range(lanes):
            if not i & s:
                a, b = rows[i], rows[i + s]
                rows[i], rows[i + s] = f.shuffle(a, b, low), f.shuffle(a, b, high)
        s *= 2
    return rows
