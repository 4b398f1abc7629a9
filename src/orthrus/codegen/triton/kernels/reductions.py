"""Reductions: a tree over strided tensors, folded along a row, one number per row out.

A block has a tile of rows by columns, whose lanes carry what they met on their way along the row and are
folded at the end: the order depends on sizes alone. Where rows are few and long, blocks fold pieces of them,
and another kernel those. Integers narrower than 32 bits are folded in 32.
"""

from __future__ import annotations

from ...write.expr import BYTES
from ..epilogue import Closing, Reading
from ..trees import TYPES
from ..write import Writer, kernel
from .rows import Tile, warps

FOLDS = {"sum": "_sum", "prod": "_product", "max": "_largest", "min": "_least"}
"""The functions that fold two numbers."""


@kernel
def reduce_rows(k: Writer, *, reading: Reading, closing: Closing, tile: Tile, kind: str, pieces: bool
                ) -> None:
    """`kind` (`sum`, `prod`, `max`, `min`) of what is read along each row. With `pieces`, of each piece of
    `span` elements of it, and the result has a group for the pieces before that for the rows."""
    read, close = reading.declare(k), closing.declare(k)
    count, length = k.count("count", reading.walk.near(0)), k.size("length")
    dtype = reading.tree.dtype
    work = working(dtype)
    _enter(k, tile, count, length, k.size("span") if pieces else None)
    indices = [("r", None if tile.rows == 1 else f"r < {count}"), ("c", "c < end")]
    k.text(f"so_far = tl.full(({tile.rows}, {tile.columns}), {start(kind, dtype)}, {TYPES[work]})")

    def met() -> None:
        x = read.load(indices)
        k.text(f"so_far = tl.where(c < end, {FOLDS[kind]}(so_far, {x}.to({TYPES[work]})), so_far)")
    _along(k, tile, pieces, met)
    value = k.let(f"tl.reduce(so_far, 1, {FOLDS[kind]}).to({TYPES[dtype]})")
    close.store(value, [*([("piece", None)] if pieces else []), ("row", f"row < {count}")])


@kernel
def arg_rows(k: Writer, *, reading: Reading, closing: Closing, tile: Tile, least: bool, last: bool) -> None:
    """Where in each row the largest, or `least`, element stands, of several the first or the `last`; NaN is
    beyond all. The value is int64."""
    read, close = reading.declare(k), closing.declare(k)
    count, length = k.count("count", reading.walk.near(0)), k.size("length")
    dtype = reading.tree.dtype
    bits = 64 if BYTES[dtype] == 8 else 32
    beyond = -1 if last else (1 << 31) - 1
    _enter(k, tile, count, length, None)
    shape = f"({tile.rows}, {tile.columns})"
    k.text(f"""
        highest = tl.full({shape}, {-1 << bits - 1}, tl.int{bits})
        places = tl.full({shape}, {beyond}, tl.int32)
    """)

    def met() -> None:
        x = read.load([("r", None if tile.rows == 1 else f"r < {count}"), ("c", "c < end")])
        key = k.let(order_key(k, x, dtype, least), "key")
        k.text(f"""
            better = ({key} {">=" if last else ">"} highest) & (c < end)
            highest = tl.where(better, {key}, highest)
            places = tl.where(better, c, places)
        """)
    _along(k, tile, False, met)
    k.text(f"""
        top, place = tl.reduce((highest, places), 1, {"_later_best" if last else "_first_best"})
        place = tl.where((place < 0) | (place == {(1 << 31) - 1}), 0, place)
    """)
    close.store(k.let("place.to(tl.int64)"), [("row", f"row < {count}")])


def _enter(k: Writer, tile: Tile, count: str, length: str, span: str | None) -> None:
    """Which rows, and from where to where."""
    k.text("block = tl.program_id(0)")
    if span is None:
        k.text(f"end = {length}")
    else:
        k.text(f"""
            piece = block // tl.cdiv({count}, {tile.rows})
            block = block % tl.cdiv({count}, {tile.rows})
            begin = piece * {span}
            end = tl.minimum(begin + {span}, {length})
        """)
    k.text(f"""
        row = block * {tile.rows} + tl.arange(0, {tile.rows})
        r = row[:, None]
    """)
    k.warps, k.stages = warps(k, tile.elements), 2


def _along(k: Writer, tile: Tile, pieces: bool, met: object) -> None:
    """Run `met` for all columns."""
    every = f"tl.arange(0, {tile.columns})[None, :]"
    assert callable(met)
    if tile.whole:
        k.text(f"c = {every}")
        met()
        return
    with k.block(f"for at in range({'begin' if pieces else '0'}, end, {tile.columns}):"):
        k.text(f"c = at + {every}")
        met()


def working(dtype: str) -> str:
    """The type that numbers are folded in."""
    return "int32" if "float" not in dtype and BYTES[dtype] < 4 else dtype


def start(kind: str, dtype: str) -> str:
    """What changes nothing."""
    if kind in ("sum", "prod"):
        return "0" if kind == "sum" else "1"
    lowest = kind == "max"
    if "float" in dtype:
        return f'float("{"-" if lowest else ""}inf")'
    bits = 8 * BYTES[dtype]
    if dtype.startswith("u"):
        return "0" if lowest else str((1 << bits) - 1)
    return str(-(1 << bits - 1) if lowest else (1 << bits - 1) - 1)


def order_key(k: Writer, x: str, dtype: str, least: bool) -> str:
    """A signed integer of 32 or 64 bits that grows with `x`, or with `least` falls; of NaN the largest."""
    bits = 64 if BYTES[dtype] == 8 else 32
    flip = "~" if least else ""
    if "float" not in dtype:
        if dtype in ("uint32", "uint64"):
            return f"{flip}(({x} ^ (1 << {bits - 1})).to(tl.int{bits}, bitcast=True))"
        return f"{flip}({x}.to(tl.int{bits}))"
    raw = k.let(f"({x} + 0.0).to(tl.int{bits}, bitcast=True)", "raw")
    most = (1 << bits - 1) - 1
    return f"tl.where({x} != {x}, {most}, {flip}({raw} ^ (({raw} >> {bits - 1}) & {most})))"
