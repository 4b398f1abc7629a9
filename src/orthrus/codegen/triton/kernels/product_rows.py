"""Products of a few rows: what is read of B decides how long they take.

In: A (rows, k) and B (..., k, n) of any strides. Out: their product under the kernel's tree. Each element of
B is read once, multiplied by all rows, and summed in float32 or float64 where it came to; a program adds up
its columns at the end, and the last one of each strip those of the parts of k.
"""

from __future__ import annotations

from ....records import dataclass
from ..epilogue import Closing
from ..parts import Parts
from ..write import Writer, kernel
from .products import Factors


@dataclass(frozen=True)
class Strip:
    """What a program reads of B at a time: `n` columns by `k` rows."""

    n: int
    k: int
    warps: int = 4


@kernel
def product_rows(k: Writer, *, factors: Factors, closing: Closing, rows: int, strip: Strip, even: bool,
                 cut: bool) -> None:
    """A·B of `rows` rows, `m` of which are there where they are more than two. Programs count parts of k,
    batches and strips; `even`, `cut`: as of `products`."""
    a, b = (k.pointer(name, d) for name, d in zip("ab", factors.dtypes, strict=True))
    parts = Parts(k, factors.total, cut)
    close = closing.declare(k)
    n, depth, part, batches = k.size("n"), k.count("depth", not even), k.size("part"), k.count("batches")
    m = k.count("m") if rows > 2 else ""
    along = factors.along(k)
    walking = factors.walk.declare(k, "in")
    upright = factors.depth[1] == "1"
    across, down = ("rn[:, None]", "rk[None, :]") if upright else ("rn[None, :]", "rk[:, None]")
    size = f"{strip.n}, {strip.k}" if upright else f"{strip.k}, {strip.n}"
    k.text(f"""
        strips = tl.cdiv({n}, {strip.n})
        program = tl.program_id(0)
        piece = program // strips
        batch = piece % {batches}
        first = piece // {batches} * {part}
        last = tl.minimum(first + {part}, {depth})
        rn = program % strips * {strip.n} + tl.arange(0, {strip.n})
        rk = tl.arange(0, {strip.k})
    """)
    k.warps, k.stages = strip.warps, 2
    wide = ".to(tl.int64)" if factors.walk.wide else ""
    total = k.typed(factors.total)
    (at, mask), = walking.offsets([1], [("batch", None), ("0", None), (across, f"{across} < {n}")])
    k.text(f"b_at = {b} + ({at}) + ({down} + first){wide} * {along[1]}")
    for r in range(rows):
        k.text(f"row{r} = {f'tl.minimum({m} - 1, {r})' if m else f'tl.full((), {r}, tl.int32)'}")
        (at, _), = walking.offsets([0], [("batch", None), (f"row{r}", None), ("0", None)])
        k.text(f"""
            a_at{r} = {a} + ({at}) + (rk + first){wide} * {along[0]}
            acc{r} = tl.zeros(({size}), {total})
        """)
    with k.block(f"for step in range(first, last, {strip.k}):"):
        inside = " & ".join(f"({x})" for x in (mask, None if even else f"{down} < last - step") if x)
        k.text(f"w = tl.load(b_at{f', mask={inside}, other=0' if inside else ''}).to({total})")
        for r in range(rows):
            masked = "" if even else ", mask=rk < last - step, other=0"
            spread = "[None, :]" if upright else "[:, None]"
            k.text(f"""
                acc{r} = tl.fma(tl.load(a_at{r}{masked}).to({total}){spread}, w, acc{r})
                a_at{r} += {strip.k} * {along[0]}
            """)
        k.text(f"b_at += {strip.k} * {along[1]}")
    for r in range(rows):
        k.text(f"sum{r} = tl.sum(acc{r}, {int(upright)})")
    with parts.last("program", f"{batches} * strips", [f"sum{r}" for r in range(rows)],
                    f"tl.arange(0, {strip.n})", strip.n) as sums:
        for r, value in enumerate(sums):
            inside = f"(rn < {n}) & ({r} < {m})" if r > 1 else f"rn < {n}"
            close.store(value, [("batch", None), (f"row{r}", None), ("rn", inside)])
