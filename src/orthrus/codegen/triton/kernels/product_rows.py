"""Products of a few rows: what is read of B decides how long they take.

In: A (rows, k) and B (..., k, n) of any strides, or several B that lie alike. Out: their product under the
kernel's tree, or of A that is normalized first. Each element of B is read once, multiplied by all rows, and
summed in float32 or float64 where it came to; a program adds up its columns at the end, and the last one of
each strip those of the parts of k.
"""

from __future__ import annotations

from ....records import dataclass
from ..epilogue import Closing
from ..parts import Parts
from ..write import Writer, kernel
from .normal import Entering, Normal
from .products import Factors


@dataclass(frozen=True)
class Strip:
    """What a program reads of B at a time: `n` columns by `k` rows."""

    n: int
    k: int
    warps: int = 4


@kernel
def product_rows(k: Writer, *, factors: Factors, closing: Closing, rows: int, strip: Strip, even: bool,
                 cut: bool, normal: Normal | None = None) -> None:
    """A·B of `rows` rows, `m` of which are there where they are more than two, by each B of as many as the
    closing has values. Programs count parts of k, batches and strips; `even`, `cut`: as of `products`."""
    a, b = (k.pointer(name, d) for name, d in zip("ab", factors.dtypes, strict=True))
    several = [b, *(k.pointer(f"b{i}", factors.dtypes[1]) for i in range(1, closing.values))]
    entering = None if normal is None else Entering(k, normal)
    parts = Parts(k, factors.total, cut)
    close = closing.declare(k)
    n, depth, part, batches = k.size("n"), k.count("depth", not even), k.size("part"), k.count("batches")
    m = k.count("m") if rows > 2 else ""
    if entering is not None:
        entering.numbers()
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
    k.text(f"b_at = ({at}) + ({down} + first){wide} * {along[1]}")
    for r in range(rows):
        k.text(f"row{r} = {f'tl.minimum({m} - 1, {r})' if m else f'tl.full((), {r}, tl.int32)'}")
        (at, _), = walking.offsets([0], [("batch", None), (f"row{r}", None), ("0", None)])
        k.text(f"a_row{r} = {a} + ({at})")
        if entering is not None:
            entering.begin(r, depth, lambda place, inside, r=r: (  # type: ignore[misc]
                f"tl.load(a_row{r} + ({place}){wide} * {along[0]}, mask={inside}, other=0)"), strip.k)
        k.text(f"a_at{r} = a_row{r} + (rk + first){wide} * {along[0]}")
        for i in range(len(several)):
            k.text(f"acc{i}_{r} = tl.zeros(({size}), {total})")
    with k.block(f"for step in range(first, last, {strip.k}):"):
        inside = " & ".join(f"({x})" for x in (mask, None if even else f"{down} < last - step") if x)
        for i, pointer in enumerate(several):
            k.text(f"w{i} = tl.load({pointer} + b_at{f', mask={inside}, other=0' if inside else ''})"
                   f".to({total})")
        there = None if even else "rk < last - step"
        affine = None if entering is None else entering.affine("(step + rk)", there)
        for r in range(rows):
            x = k.let(f"tl.load(a_at{r}{'' if there is None else f', mask={there}, other=0'})", "x")
            if entering is not None and affine is not None:
                x = entering.entered(x, r, affine, there)
            spread = "[None, :]" if upright else "[:, None]"
            x = k.let(f"{x}.to({total}){spread}", "x")
            for i in range(len(several)):
                k.text(f"acc{i}_{r} = tl.fma({x}, w{i}, acc{i}_{r})")
            k.text(f"a_at{r} += {strip.k} * {along[0]}")
        k.text(f"b_at += {strip.k} * {along[1]}")
    sums = [f"tl.sum(acc{i}_{r}, {int(upright)})" for r in range(rows) for i in range(len(several))]
    if entering is not None and entering.kept:
        sums += entering.squares(rows, strip.n)
    with parts.last("program", f"{batches} * strips", [k.let(value, "sum") for value in sums],
                    f"tl.arange(0, {strip.n})", strip.n) as whole:
        for r in range(rows):
            mine = list(whole[r * len(several):(r + 1) * len(several)])
            if entering is not None and entering.kept:
                mine = entering.finished(mine, whole[rows * len(several) + r], depth)
            inside = f"(rn < {n}) & ({r} < {m})" if r > 1 else f"rn < {n}"
            close.store(mine[0], [("batch", None), (f"row{r}", None), ("rn", inside)], *mine[1:])
