"""Loops over elements: a tree over operands of any strides goes to a result of any strides.

In: tensors of one shape, whose axes are merged where they can be. Out: the result, in one of two forms.
*flat* counts all elements by one number, and is for what lies alike, or has short rows. *tiles* of two axes
are for the rest: wherever a tensor's elements are neighbours, along the one axis or the other, they are read
or written together; where the axes differ the block turns the tile around in the memory it shares. """

from __future__ import annotations

from ..epilogue import Closing
from ..write import Writer, kernel


@kernel
def elementwise(k: Writer, *, closing: Closing, block: int) -> None:
    """A block of `block` elements by their number."""
    close = closing.declare(k)
    n = k.size("n")
    wide = ".to(tl.int64)" if closing.walk.wide else ""
    k.text(f"""
        i = tl.program_id(0){wide} * {block} + tl.arange(0, {block})
    """)
    close.store("i", [("i", f"i < {n}")])
    k.warps, k.stages = max(1, min(8, block // 256)), 1


@kernel
def elementwise_tiles(k: Writer, *, closing: Closing, rows: int, columns: int) -> None:
    """A tile of `rows` by `columns` at one place of the axes before those two."""
    close = closing.declare(k)
    height, width = k.count("height", closing.walk.near(1)), k.size("width")
    k.text(f"""
        across = tl.cdiv({width}, {columns})
        down = tl.cdiv({height}, {rows})
        tile = tl.program_id(0)
        c = tile % across * {columns} + tl.arange(0, {columns})
        r = tile // across % down * {rows} + tl.arange(0, {rows})
        place = tile // across // down
    """)
    close.store("r", [("place", None), ("r[:, None]", f"r[:, None] < {height}"),
                      ("c[None, :]", f"c[None, :] < {width}")])
    k.warps, k.stages = max(1, min(8, rows * columns // 512)), 1


@kernel
def none_zero(k: Writer, *, dtype: str, block: int) -> None:
    """Set `status` to 1 where one of `n` elements is 0."""
    x, status, n = k.pointer("x", dtype), k.pointer("status", "int64"), k.size("n")
    k.text(f"""
        i = tl.program_id(0).to(tl.int64) * {block} + tl.arange(0, {block})
    """)
    value = k.load(x, "i", f"i < {n}", "1")
    k.text(f"""
        zeros = tl.sum(({value} == 0).to(tl.int32))
        tl.store({status} + tl.arange(0, 1), tl.full((1,), 1, tl.int64), mask=zeros > 0)
    """)
