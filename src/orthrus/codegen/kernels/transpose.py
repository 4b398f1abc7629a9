"""Copies that turn: the source lies along another axis than the target, blocks are turned in registers.

Three ways: blocks, whose vectors are put together of 16 bytes of several rows each, so that whole vectors are
written; and where the shorter axis has few elements without gaps behind them, rows of it woven together
(planes to pixels) or taken apart (pixels to planes).

The last block along an axis begins earlier where it would reach over the end, and writes some elements again.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from ..machines.machine import Machine
from ..write.body import Body
from ..write.emit import I8, I16, I32, I64, V, vec
from ..write.spec import Spec
from ..write.template import template
from .loops import Nest, joined, picked
from .rows import positions

LEAST = 4
"""Elements along both axes from which on blocks pay."""

TILE = 64
"""Elements along the source's axis that an item turns; those behind them are fetched meanwhile, which no
machine does by itself for so many rows."""

DEEP = 512
"""Elements along the target's axis that an item turns."""

GRAIN = 1 << 13
_LANES = 16
"""Lanes of the vectors that are woven and parted, at most, and elements of the rows that are."""
_RUN = 64
"""Vectors' lengths that an item weaves or parts."""
_PICKED = 4
"""Elements of a row up to which lanes are picked, not turned."""
_PIECE = 16
"""Bytes within which one instruction weaves halves of two vectors together."""
_LINE = 64
"""Bytes of a cache line, all of which are read while it is in the cache."""
_CROWD = 1 << 11
"""Bytes by multiples of which lines lie apart that cannot be many in the cache."""
_PIECES = 4
"""Pieces that a vector of a block is made of, at most."""
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
    lanes = min(machine.lanes(size), _LANES)
    narrow, piece = max(lanes, _PICKED), _PIECE // size
    ragged = min(rows, columns) < piece
    if rows <= narrow and target[at] == rows:
        way, few, length = "weave", rows, columns
    elif columns <= narrow and source[last] == columns:
        way, few, length = "part", columns, rows
    elif min(rows, columns) < LEAST:
        return None
    else:
        way, few, length = "block", 0, 0
        lanes = piece
        while not ragged and 2 * lanes <= min(rows, machine.lanes(size), _PIECES * piece):
            lanes *= 2
    tiles, each = -(-length // (_RUN * lanes)), min(length, _RUN * lanes) * few
    if way == "block":
        tiles, each = -(-rows // DEEP) * -(-columns // TILE), min(rows, DEEP) * min(columns, TILE)
    row, column = source[last], target[at]
    crowded = column * size % _CROWD == 0 and row * size % _CROWD != 0
    cells = [rows, columns, row, column, *([sizes[a] for a in outer[1:]] if outer else [])]
    for strides in (target, source):
        cells += [strides[a] for a in outer] or [0]
    spec = turned(way=way, size=size, outer=max(len(outer), 1), few=few, lanes=lanes,
                  line=0 if way != "block" else piece if crowded else _LINE // size,
                  ragged=way == "block" and ragged)
    return spec, cells, prod(sizes[a] for a in outer) * tiles, max(1, GRAIN // each)


@template("out:ptr x:ptr rows:i64 columns:i64 row:i64 column:i64")
def turned(f: Body, out: V, x: V, rows: V, columns: V, row: V, column: V, *, way: str, size: int, outer: int,
           few: int, lanes: int, line: int, ragged: bool) -> None:
    """`rows` lie next to each other in the target, `columns` in the source; `row`: the source's stride from
    row to row, `column`: the target's from column to column. Cells behind: the outer sizes but for the first,
    the target's and the source's outer strides. `lanes`: elements of a vector that is written, or of one that
    is woven or parted. `line`: columns that are turned of some rows before the next rows. `ragged`: a block's
    side is longer than an axis."""
    elem = _RAW[size]
    sizes = [f.arg(6 + i, I64) for i in range(outer - 1)]
    strides = [[f.arg(5 + outer + t * outer + i, I64) for i in range(outer)] for t in range(2)]
    wide = _PIECE // size
    length = rows if way == "part" else columns

    def item(_: V, at: Sequence[V]) -> None:
        places = []
        for base, steps in zip((out, x), strides, strict=True):
            offset = f.i64(0)
            for i, s in zip(at, steps, strict=False):
                offset = offset + i * s
            places.append(f.gep(base, offset, elem))
        target, source = places
        if way == "block":
            (i0, i1), (j0, j1) = (span(at[k], tile, end) for k, tile, end in ((-2, DEEP, rows),
                                                                              (-1, TILE, columns)))
            one = some if ragged else block

            def blocks(i: V, first: V) -> None:
                for k in range(lanes):
                    f.prefetch(source, (i + k) * row + first + TILE, elem)
                f.loop(first, f.fast_min(first + line, j1), wide, [], lambda j: one(target, source, i, j))
            f.loop(j0, j1, line, [], lambda first: f.loop(i0, i1, lanes, [], lambda i: blocks(i, first)))
            return
        begin, end = span(at[-1], _RUN * lanes, length)
        many, single = (weave, weave_one) if way == "weave" else (part, part_one)
        f.when(length >= lanes,
               lambda: f.loop(begin, end, lanes, [],
                              lambda i: many(target, source, f.minimum(i, length - lanes))),
               lambda: f.loop(begin, end, 1, [], lambda i: single(target, source, i)))

    def span(tile: V, size: int, end: V) -> tuple[V, V]:
        return tile * size, f.minimum(tile * size + size, end)

    def weave_one(target: V, source: V, j: V) -> None:
        for r in range(few):
            f.store(f.load(elem, source, j + row * r), target, j * few + r)

    def part_one(target: V, source: V, i: V) -> None:
        for c in range(few):
            f.store(f.load(elem, source, i * few + c), target, i + column * c)

    def block(target: V, source: V, i: V, j: V) -> None:
        i, j = f.minimum(i, rows - lanes), f.minimum(j, columns - wide)
        corner, there = f.gep(source, i * row + j, elem), f.gep(target, j * column + i, elem)
        found = [joined(f, [f.load(vec(elem, wide), corner, row * (k + first))
                            for first in range(0, lanes, wide)]) for k in range(wide)]
        for k, v in enumerate(woven(f, found, wide, wide)):
            f.store(v, there, column * k)

    def some(target: V, source: V, i: V, j: V) -> None:
        high, broad = rows - i, columns - j
        corner, there = f.gep(source, i * row + j, elem), f.gep(target, j * column + i, elem)
        mask, last = f.mask(wide, f.minimum(broad, wide)), high - 1
        found = [f.load_masked(vec(elem, wide), corner, f.minimum(last, k) * row, mask) for k in range(wide)]
        for k, v in enumerate(woven(f, found, wide, wide)):
            count = f.select(broad > k, f.minimum(high, wide), 0)
            f.store_masked(v, there, column * k, f.mask(wide, count))

    def weave(target: V, source: V, j: V) -> None:
        planes = [f.load(vec(elem, lanes), source, j + row * r) for r in range(few)]
        if few <= _PICKED:
            for k in range(few):
                places = [divmod(k * lanes + e, few)[::-1] for e in range(lanes)]
                f.store(picked(f, planes, places), target, j * few + k * lanes)
            return
        full = 1 << (few - 1).bit_length()
        made = woven(f, planes + planes[:1] * (full - few), full, lanes)
        if few == full:
            for k, v in enumerate(made):
                f.store(v, target, j * few + k * lanes)
            return
        each = lanes // full
        for c in range(lanes):
            pixel, to = f.shuffle(made[c // each], None, run(c % each * full, full)), (j + c) * few
            if c < lanes - 1:
                f.store(pixel, target, to)
                continue
            begin = 0
            for count in (8, 4, 2, 1):
                if few & count:
                    f.store(f.shuffle(pixel, None, run(begin, count)) if count > 1 else f.extract(
                        pixel, begin), target, to + begin)
                    begin += count

    def part(target: V, source: V, i: V) -> None:
        if few <= _PICKED:
            found = [f.load(vec(elem, lanes), source, i * few + k * lanes) for k in range(few)]
            for c in range(few):
                places = [divmod(e * few + c, lanes) for e in range(lanes)]
                f.store(picked(f, found, places), target, i + column * c)
            return
        full = 1 << (few - 1).bit_length()
        behind = full - few
        pixels = [f.load(vec(elem, full), source, (i + r) * few - (behind if r == lanes - 1 else 0))
                  for r in range(lanes)]
        if behind:
            pixels[-1] = f.shuffle(pixels[-1], None, [*range(behind, full), *[-1] * behind])
        each = lanes // full
        found = [joined(f, pixels[k * each:(k + 1) * each]) for k in range(full)]
        for c, v in enumerate(woven(f, found, lanes, lanes)[:few]):
            f.store(v, target, i + column * c)
    tiles = [(length + (_RUN * lanes - 1)) // (_RUN * lanes)]
    if way == "block":
        tiles = [(rows + (DEEP - 1)) // DEEP, (columns + (TILE - 1)) // TILE]
    positions(f, [*sizes, *tiles], item)


def run(begin: int, count: int) -> range:
    return range(begin, begin + count)


def woven(f: Body, vectors: Sequence[V], size: int, group: int) -> list[V]:
    """`size` rows one after another in vectors: turned, within each `group` of lanes; sizes and lanes are
    powers of two. Halves of all are woven together as often as doubles a row to all of them."""
    now, half = list(vectors), len(vectors) // 2
    lanes = now[0].lanes
    for _ in range(size.bit_length() - 1):
        pairs = list(zip(now[:half], now[half:], strict=True))
        now = [f.shuffle(a, b, [g + side * group // 2 + e // 2 + lanes * (e % 2)
                                for g in range(0, lanes, group) for e in range(group)])
               for a, b in pairs for side in (0, 1)]
    return now
