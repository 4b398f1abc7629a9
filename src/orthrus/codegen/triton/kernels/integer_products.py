"""Matrix products of integers that no matrix unit takes: A (..., m, k) times B (..., k, n), with a tree at
the end. Sums wrap around as the type does."""

from __future__ import annotations

from ..epilogue import Closing
from ..write import Writer, kernel
from .products import Factors, Tile, place


@kernel
def integer_products(k: Writer, *, factors: Factors, closing: Closing, tile: Tile) -> None:
    """A·B. Programs count batches and tiles, and go through k number by number."""
    a, b = (k.pointer(name, d) for name, d in zip("ab", factors.dtypes, strict=True))
    close = closing.declare(k)
    m = k.count("m", factors.walk.near(1) or closing.walk.near(1))
    n, depth = k.size("n"), k.count("depth")
    along = factors.along(k)
    walking = factors.walk.declare(k, "in")
    place(k, m, n, tile)
    k.text(f"""
        rm = row * {tile.m} + tl.arange(0, {tile.m})
        rn = column * {tile.n} + tl.arange(0, {tile.n})
        acc = tl.zeros(({tile.m}, {tile.n}), {k.typed(factors.total)})
    """)
    indices = [("piece", None), ("rm[:, None]", f"rm[:, None] < {m}"), ("rn[None, :]", f"rn[None, :] < {n}")]
    places = walking.offsets([0, 1], indices)
    wide = ".to(tl.int64)" if factors.walk.wide else ""
    with k.block(f"for step in range({depth}):"):
        x, y = (k.load(pointer, f"({at} + step{wide} * {by})", mask)
                for pointer, (at, mask), by in zip((a, b), places, along, strict=True))
        k.text(f"acc += {x} * {y}")
    close.store("acc", indices)
    k.warps, k.stages = tile.warps, tile.stages
