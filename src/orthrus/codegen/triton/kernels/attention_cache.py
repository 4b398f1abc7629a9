"""What stands before attention: caches of keys and values that take up new rows, and rotary positions.

In: tensors (batch, head, position, feature) of any strides. An index that a cache does not have sets `status`
and reads and writes nothing. """

from __future__ import annotations

from ..write import Writer, kernel
from .entering import View


@kernel
def append_rows(k: Writer, *, dtype: str, size: int, near: tuple[bool, bool, bool], ends_type: str,
                zeroed: bool, rows: int, sure: bool) -> None:
    """A cache of keys or values with new rows in it: the `held` rows of `past`, then zeros up to `capacity`
    where `zeroed`, and the `length` rows of `new` from row `first` (plus `ends[batch]`) on. Where they do not
    fit, unless it is `sure` that they do, `status` becomes 1. Where `past` and `out` are the same memory,
    only new rows are written. A program has `rows` rows of one head."""
    for name in ("past", "new", "out"):
        k.pointer(name, dtype)
    if ends_type:
        k.pointer("ends", ends_type)
    if not sure:
        k.pointer("status", "int64")
    for name in ("heads", "held", "length", "capacity", "first"):
        k.count(name)
    past, new, out = (View.declare(k, name, side)
                      for name, side in zip(("past", "new", "out"), near, strict=True))
    k.text(f"""
        tiles = tl.cdiv(capacity, {rows})
        tile = tl.program_id(0) % tiles
        unit = tl.program_id(0) // tiles
        batch, head = (unit // heads).to(tl.int64), (unit % heads).to(tl.int64)
        row = tile * {rows} + tl.arange(0, {rows})
        feature = tl.arange(0, {1 << (size - 1).bit_length()})
        begin = first{" + tl.load(ends + batch).to(tl.int32)" if ends_type else ""}
        fits = (begin >= 0) & (begin + length <= capacity)
        fresh = fits & (row >= begin) & (row < begin + length)
        there = (feature < {size})[None, :]
        alike = (past_s0 == out_s0) & (past_s1 == out_s1) & (past_s2 == out_s2)
        same = (past.to(tl.int64) == out.to(tl.int64)) & alike
        kept = (row < {"capacity" if zeroed else "held"}) & (fresh == 0) & ((row >= held) | (same == 0))
    """)
    if not sure:
        k.text("tl.store(status + tl.arange(0, 1), tl.full((1,), 1, tl.int64), mask=fits == 0)")
    old = k.load("past", past.at("row[:, None]", "feature[None, :]"),
                 "(kept & (row < held))[:, None] & there")
    added = k.load("new", new.at("(row - begin)[:, None]", "feature[None, :]"), "fresh[:, None] & there")
    k.store("out", out.at("row[:, None]", "feature[None, :]"), f"tl.where(fresh[:, None], {added}, {old})",
            "(kept | fresh)[:, None] & there")
    k.warps, k.stages = 4, 1


@kernel
def turn(k: Writer, *, dtype: str, size: int, half: int, near: tuple[bool, bool], interleaved: bool,
         positions_type: str, rows: int, sure: bool) -> None:
    """Turn the first 2 * `half` of `size` features; the rest is copied. A program has `rows` heads of
    positions. The row of a position in the caches is s * p_run + first, plus positions[b * p_b + s * p_s]
    unless `positions_type` is empty; where the caches have no such row, which they have where it is `sure`,
    `status` becomes 1."""
    for name in ("x", "cos", "sin"):
        k.pointer(name, dtype)
    if positions_type:
        k.pointer("positions", positions_type)
    if not sure:
        k.pointer("status", "int64")
    k.pointer("out", dtype)
    for name in ("c_b", "c_s"):
        k.size(name)
    for name in ("p_b", "p_s", "p_run", "first", "places", "heads", "length", "units"):
        k.count(name)
    x, out = (View.declare(k, name, side) for name, side in zip(("x", "out"), near, strict=True))
    k.text(f"""
        unit = tl.program_id(0) * {rows} + tl.arange(0, {rows})
        inside = unit < units
        head = (unit % heads).to(tl.int64)[:, None]
        place = unit // heads % length
        batch = (unit // heads // length).to(tl.int64)
        at = (place * p_run + first).to(tl.int64)
    """)
    if positions_type:
        k.text("at += tl.load(positions + batch * p_b + place * p_s, mask=inside, other=0).to(tl.int64)")
    k.text("known = (at >= 0) & (at < places)")
    if not sure:
        k.text("""
            wrong = tl.sum((inside & (known == 0)).to(tl.int32))
            tl.store(status + tl.arange(0, 1), tl.full((1,), 1, tl.int64), mask=wrong > 0)
        """)
    k.text(f"""
        inside = (inside & known)[:, None]
        pair = tl.arange(0, {1 << (half - 1).bit_length()})[None, :]
        angle = (batch * c_b + at * c_s)[:, None] + pair
        batch, place = batch[:, None], place[:, None]
        both = inside & (pair < {half})
        real = tl.load(cos + angle, mask=both, other=0).to(tl.float32)
        imaginary = tl.load(sin + angle, mask=both, other=0).to(tl.float32)
    """)
    left, right = ("2 * pair", "2 * pair + 1") if interleaved else ("pair", f"pair + {half}")
    a, b = (k.let(f"tl.load(x + {x.at('place', which)}, mask=both, other=0).to(tl.float32)")
            for which in (left, right))
    k.store("out", out.at("place", left), f"tl.fma(real, {a}, -(imaginary * {b}))", "both")
    k.store("out", out.at("place", right), f"tl.fma(imaginary, {a}, real * {b})", "both")
    if size > 2 * half:
        k.text(f"rest = {2 * half} + tl.arange(0, {1 << (size - 2 * half - 1).bit_length()})[None, :]")
        others = f"inside & (rest < {size})"
        k.store("out", out.at("place", "rest"), k.load("x", x.at("place", "rest"), others), others)
    k.warps, k.stages = 4, 1
