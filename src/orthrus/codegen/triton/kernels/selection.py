"""The k best of each row: values and indices out, best first, of equal ones the first.

Elements become integers of 64 bits that sort as they do: above, 32 bits in the order of the values, NaN being
the largest; below, the index, the first being the largest. Rows that are longer than a tile are sorted in
pieces, the best of which another kernel sorts again. Elements of 64 bits, and very many of long rows, are not
sorted but put where as many others are better as there are places before.
"""

from __future__ import annotations

from ..epilogue import Closing, Reading
from ..write import Writer, kernel
from .reductions import order_key
from .rows import Tile, warps

_LAST = (1 << 32) - 1
_NONE = -1 << 63


@kernel
def best_pieces(k: Writer, *, reading: Reading | None, columns: int, kept: int, least: bool) -> None:
    """Of each piece of `columns` elements of a row the `kept` largest, or with `least` smallest, as integers,
    next to each other. Where nothing is read by a tree, rows of such integers are."""
    read = None if reading is None else reading.declare(k)
    given = k.pointer("given", "int64") if read is None else ""
    out, length = k.pointer("out", "int64"), k.size("length")
    k.text(f"""
        pieces = tl.cdiv({length}, {columns})
        r = (tl.program_id(0) // pieces + tl.arange(0, 1))[:, None]
        c = (tl.program_id(0) % pieces * {columns} + tl.arange(0, {columns}))[None, :]
    """)
    inside = f"(c < {length})"
    if read is None:
        keys = k.load(given, f"r.to(tl.int64) * {length} + c", inside, str(_NONE))
    else:
        assert reading is not None
        keys = _keys(k, read.load([("r", None), ("c", inside)]), reading.tree.dtype, least, inside)
    k.text(f"""
        best = tl.sort({keys}, 1, descending=True)
        place = tl.arange(0, {columns})[None, :]
    """)
    k.store(out, f"tl.program_id(0).to(tl.int64) * {kept} + place", "best", f"place < {kept}")
    k.warps, k.stages = warps(k, columns), 1


@kernel
def best_rows(k: Writer, *, reading: Reading, values: Closing, places: Closing, tile: Tile, least: bool,
              sorted_pieces: bool) -> None:
    """The `k` largest, or with `least` smallest, of each row, and where they stand. With `sorted_pieces` the
    candidates are `length` integers of `best_pieces`, else the row itself."""
    read, value, place = reading.declare(k), values.declare(k, "value"), places.declare(k, "place")
    given = k.pointer("given", "int64") if sorted_pieces else ""
    count, length, wanted = k.count("count", reading.walk.near(0)), k.size("length"), k.size("k")
    inside, mask = f"(c < {length})", f"r < {count}"
    k.text(f"""
        r = (tl.program_id(0) * {tile.rows} + tl.arange(0, {tile.rows}))[:, None]
        c = tl.arange(0, {tile.columns})[None, :]
    """)
    if sorted_pieces:
        keys = k.load(given, f"r.to(tl.int64) * {length} + c", f"({mask}) & {inside}", str(_NONE))
    else:
        keys = _keys(k, read.load([("r", mask), ("c", inside)]), reading.tree.dtype, least, inside)
    k.text(f"""
        best = tl.sort({keys}, 1, descending=True)
        index = (best & {_LAST}) ^ {_LAST}
        chosen = (c < {wanted}) & (r < {count})
        index = tl.where(chosen, index, 0).to(tl.int32)
    """)
    x = read.load([("r", mask), ("index", "chosen")])
    value.store(x, [("r", mask), ("c", f"c < {wanted}")])
    place.store(k.let("index.to(tl.int64)"), [("r", mask), ("c", f"c < {wanted}")])
    k.warps, k.stages = warps(k, tile.elements), 1


@kernel
def ranked_rows(k: Writer, *, reading: Reading, values: Closing, places: Closing, block: int, least: bool
                ) -> None:
    """The `k` largest, or with `least` smallest, of each row, and where they stand: a block of a row's
    elements counts, for each of these, those of the whole row that come before it."""
    read, value, place = reading.declare(k), values.declare(k, "value"), places.declare(k, "place")
    length, wanted = k.size("length"), k.size("k")
    k.text(f"""
        pieces = tl.cdiv({length}, {block})
        r = tl.program_id(0) // pieces
        c = (tl.program_id(0) % pieces * {block} + tl.arange(0, {block}))
        before = tl.zeros(({block},), tl.int32)
    """)
    flip, dtype = "~" if least else "", reading.tree.dtype
    x = read.load([("r", None), ("c", f"c < {length}")])
    k.text(f"own = ({flip}{order_key(k, x, dtype, False)})[:, None]")
    with k.block(f"for start in range(0, {length}, {block}):"):
        k.text(f"""
            others = start + tl.arange(0, {block})
            there = others < {length}
        """)
        other = read.load([("r", None), ("others", "there")])
        k.text(f"""
            key = ({flip}{order_key(k, other, dtype, False)})[None, :]
            better = (key > own) | ((key == own) & (others[None, :] < c[:, None]))
            before += tl.sum((better & there[None, :]).to(tl.int32), 1)
        """)
    chosen = [("r", None), ("before", f"(before < {wanted}) & (c < {length})")]
    value.store(x, chosen)
    place.store("c.to(tl.int64)", chosen)
    k.warps, k.stages = 4, 1


def _keys(k: Writer, x: str, dtype: str, least: bool, inside: str) -> str:
    """The elements as integers, the least there is behind the row's end."""
    flip = "~" if least else ""
    key = k.let(f"{flip}{order_key(k, x, dtype, False)}", "key")
    return k.let(f"tl.where({inside}, ({key}.to(tl.int64) << 32) | (c.to(tl.int64) ^ {_LAST}), {_NONE})")
