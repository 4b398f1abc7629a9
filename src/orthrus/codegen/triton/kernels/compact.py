"""What is chosen by its elements, put together: where elements are not zero, and slices by their places.

In: an array in C order, in blocks. Out: of each block how many elements are not zero, and, once it is known
how many come before each, their indices, in order; and slices taken along an axis. Results' sizes are only
known between the two.
"""

from __future__ import annotations

from ...write.expr import BYTES
from ..write import Writer, kernel

FLOATS = frozenset({"float16", "bfloat16", "float32", "float64"})


@kernel
def nonzero_counts(k: Writer, *, dtype: str, block: int) -> None:
    """Of each block of the `count` elements of x, how many are not zero."""
    k.pointer("x", dtype)
    k.pointer("counts", "int64")
    there = _there(k, dtype, block, k.count("count"))
    k.store("counts", "tl.program_id(0)", f"tl.sum({there}.to(tl.int64), 0)")
    k.warps, k.stages = 4, 1


@kernel
def nonzero_places(k: Writer, *, dtype: str, rank: int, block: int) -> None:
    """Where the elements of x that are not zero stand, `total` of them, of which `starts` come before each
    block: `out` has a row for each of x's `rank` axes."""
    k.pointer("x", dtype)
    k.pointer("starts", "int64")
    k.pointer("out", "int64")
    there = _there(k, dtype, block, k.count("count"))
    k.count("total")
    sizes = [k.count(f"size{axis}") for axis in range(rank)]
    k.text(f"""
        within = tl.cumsum({there}.to(tl.int32), 0) - 1
        place = tl.load(starts + tl.program_id(0)) + within
        left = at
        far = tl.full((), 0, tl.int64) + total
    """)
    for axis in reversed(range(rank)):
        k.store("out", f"{axis} * far + place", f"left % {sizes[axis]}" if axis else "left", there)
        if axis:
            k.text(f"left = left // {sizes[axis]}")
    k.warps, k.stages = 4, 1


@kernel
def slices(k: Writer, *, dtype: str, block: int) -> None:
    """The slices of x along an axis of `length` that the `chosen` numbers `places` name, each of `inner`
    elements: `count` in all."""
    k.pointer("x", dtype)
    k.pointer("places", "int64")
    k.pointer("out", dtype)
    for name in ("count", "chosen", "length"):
        k.count(name)
    k.size("inner")
    k.text(f"""
        at = tl.program_id(0).to(tl.int64) * {block} + tl.arange(0, {block})
        inside = at < count
        column = at % inner
        row = at // inner
        which = tl.load(places + row % chosen, mask=inside, other=0)
    """)
    k.store("out", "at", k.load("x", "(row // chosen * length + which) * inner + column", "inside"), "inside")
    k.warps, k.stages = 4, 1


def _there(k: Writer, dtype: str, block: int, count: str) -> str:
    """Which elements of a program's block are not zero; those of floats by their bits, whatever becomes of
    the smallest in arithmetic."""
    k.text(f"""
        at = tl.program_id(0).to(tl.int64) * {block} + tl.arange(0, {block})
        inside = at < {count}
    """)
    x = k.load("x", "at", "inside")
    if dtype == "bool":
        return k.let(f"inside & {x}", "there")
    if dtype in FLOATS:
        x = k.let(f"{x}.to(tl.int{8 * BYTES[dtype]}, bitcast=True) << 1")
    return k.let(f"inside & ({x} != 0)", "there")
