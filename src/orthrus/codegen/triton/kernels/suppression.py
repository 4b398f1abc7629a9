"""Boxes that no better one overlaps, by lists: one program has the boxes and scores of an image and a class.

Scores become integers of 64 bits that sort as they do, equal ones by their place, NaN behind all. The best is
kept and what it overlaps is taken out, time after time. Overlaps are computed as the definition does, each
step rounded.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...write.expr import Expr
from ..write import Writer, kernel

_LAST = (1 << 32) - 1
_GONE = -1 << 63
F = "float32"


@kernel
def best_boxes(k: Writer, *, centered: bool, least: bool) -> None:
    """`kept`: for each list the places of the boxes to keep, best first, `most` at most; `counts`: how many.
    `keys` is room for a number for each score. `boxes`: in a list; `limit`: what may be shared of a union;
    with `least`, scores that are not above `bound` count for nothing. A block of them is as many as a program
    has threads, so that each of these reads what it alone writes."""
    k.warps, k.stages = 4, 1
    block = k.warps * k.target.warp
    for name, dtype in (("corners", F), ("scores", F), ("keys", "int64"), ("kept", "int64"),
                        ("counts", "int64")):
        k.pointer(name, dtype)
    for name in ("boxes", "classes", "most"):
        k.count(name)
    k.number("limit")
    if least:
        k.number("bound")
    k.text(f"""
        own = tl.program_id(0).to(tl.int64) * boxes
        image = (tl.program_id(0) // classes).to(tl.int64) * boxes
        top = tl.full(({block},), {_GONE}, tl.int64)
    """)
    with k.block(f"for start in range(0, boxes, {block}):"):
        k.text(f"""
            c = start + tl.arange(0, {block})
            inside = c < boxes
        """)
        x = k.load("scores", "own + c", "inside")
        k.text(f"""
            bits = tl.where({x} == 0, 0.0, {x}).to(tl.int32, bitcast=True)
            order = tl.where({x} == {x}, bits ^ ((bits >> 31) & 0x7fffffff), -0x7fffffff)
            counts_here = inside{f' & ({x} > bound)' if least else ''}
            key = (order.to(tl.int64) << 32) | (c.to(tl.int64) ^ {_LAST})
            key = tl.where(counts_here, key, {_GONE})
            top = tl.maximum(top, key)
        """)
        k.store("keys", "own + c", "key", "inside")
    k.text("""
        tl.debug_barrier()
        found = 0
        best = tl.max(top, 0)
    """)
    with k.block(f"while (found < most) & (best > {_GONE}):"):
        k.text(f"""
            index = (best & {_LAST}) ^ {_LAST}
            tl.store(kept + tl.program_id(0).to(tl.int64) * most + found, index)
            top = tl.full(({block},), {_GONE}, tl.int64)
        """)
        better = _corners(k, "(index + tl.arange(0, 1))", None, centered)
        area = k.let(f"({better[2]} - {better[0]}) * ({better[3]} - {better[1]})", "area")
        with k.block(f"for start in range(0, boxes, {block}):"):
            k.text(f"""
                c = start + tl.arange(0, {block})
                inside = c < boxes
            """)
            key = k.load("keys", "own + c", "inside", str(_GONE))
            gone = _overlapping(k, better, area, _corners(k, "c", "inside", centered))
            k.text(f"""
                key = tl.where({gone} | (c == index), {_GONE}, {key})
                top = tl.maximum(top, key)
            """)
            k.store("keys", "own + c", "key", "inside")
        k.text("""
            tl.debug_barrier()
            found += 1
            best = tl.max(top, 0)
        """)
    k.text("tl.store(counts + tl.program_id(0), found.to(tl.int64))")


@kernel
def kept_rows(k: Writer, *, block: int) -> None:
    """Rows of image, class and box: of each list its `counts` first `kept` of `most`, behind the `starts`
    rows of the lists before it."""
    for name in ("kept", "counts", "starts", "out"):
        k.pointer(name, "int64")
    for name in ("pieces", "classes", "most"):
        k.count(name)
    k.text(f"""
        own = (tl.program_id(0) // pieces).to(tl.int64)
        i = tl.program_id(0) % pieces * {block} + tl.arange(0, {block})
        inside = i < tl.load(counts + own)
        row = (tl.load(starts + own) + i) * 3
        zero = i.to(tl.int64) * 0
    """)
    k.store("out", "row", "zero + own // classes", "inside")
    k.store("out", "row + 1", "zero + own % classes", "inside")
    k.store("out", "row + 2", k.load("kept", "own * most + i", "inside"), "inside")
    k.warps, k.stages = 4, 1


def _corners(k: Writer, at: str, mask: str | None, centered: bool) -> Sequence[str]:
    """The lower and the upper corner of a box, or of a block of them: two and two numbers."""
    a, b, c, d = (k.load("corners", f"(image + {at}) * 4 + {i}", mask) for i in range(4))
    if centered:
        return [k.let(text) for text in (f"{a} - {c} * 0.5", f"{b} - {d} * 0.5", f"{a} + {c} * 0.5",
                                         f"{b} + {d} * 0.5")]
    return [_extreme(k, kind, *pair) for kind in ("minimum", "maximum") for pair in ((a, c), (b, d))]


def _extreme(k: Writer, kind: str, a: str, b: str) -> str:
    """The lesser or the greater; NaN where one is."""
    return k.tree(Expr(kind, (Expr.leaf(0, F), Expr.leaf(1, F)), F), [a, b])


def _overlapping(k: Writer, better: Sequence[str], area: str, others: Sequence[str]) -> str:
    """Whether boxes share more than `limit` of their union with a better one."""
    zero = k.let("tl.zeros((1,), tl.float32)", "zero")
    sides = []
    for axis in (0, 1):
        side = k.let(f"{_extreme(k, 'minimum', better[2 + axis], others[2 + axis])} - "
                     f"{_extreme(k, 'maximum', better[axis], others[axis])}", "side")
        sides.append(_extreme(k, "maximum", side, zero))
    k.text(f"""
        overlap = {sides[0]} * {sides[1]}
        other = ({others[2]} - {others[0]}) * ({others[3]} - {others[1]})
        union = ({area} + other) - overlap
        solid = ({area} > 0) & (other > 0) & (union > 0)
        union = tl.where(solid, union, 1.0)
    """)
    share = k.tree(Expr("div", (Expr.leaf(0, F), Expr.leaf(1, F)), F), ["overlap", "union"])
    return k.let(f"solid & ({share} > limit)", "gone")
