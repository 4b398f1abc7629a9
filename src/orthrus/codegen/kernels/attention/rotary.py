"""Rotary embedding: pairs of features of queries or keys turned by angles that belong to their position.

In: (batch, head, position, feature) by strides with the features side by side, and caches of cosines and
sines, one row per position. Out: the same shape by other strides, which may be the input itself.
"""

from __future__ import annotations

from ...write.body import Body
from ...write.emit import I64, V, vec
from ...write.expr import LLVM
from ...write.template import template
from .parts import View, columns_of, narrow_store, wide_load


@template("x:ptr cos:ptr sin:ptr positions:ptr status:ptr out:ptr c_b:i64 c_s:i64 p_b:i64 p_s:i64 p_run:i64"
          " first:i64 rows:i64 heads:i64 length:i64")
def turn(f: Body, x: V, cos: V, sin: V, positions: V, status: V, out: V, c_b: V, c_s: V, p_b: V, p_s: V,
         p_run: V,
         first: V, rows: V, heads: V, length: V, *, dtype: str, size: int, half: int, interleaved: bool,
         positions_type: str) -> None:
    """Turn the first 2 * `half` of `size` features; the rest is copied. An item is one position of one batch
    entry.

    Its row in the caches is s * p_run + first, plus positions[b * p_b + s * p_s] unless `positions_type` is
    ""; where the caches have no such row, `status` becomes 1.
    """
    stored, lanes = LLVM[dtype], f.machine.lanes()
    source, target = (View(f, t, len(turn.cells) + 3 * i, dtype) for i, t in enumerate((x, out)))

    def item(i: V) -> None:
        batch, s = i // length, i % length
        at = s * p_run + first
        if positions_type:
            at = at + f.cast(f.load(LLVM[positions_type], positions, batch * p_b + s * p_s), I64)

        def present() -> None:
            angles = [f.gep(t, batch * c_b + at * c_s, stored) for t in (cos, sin)]

            def head(h: V) -> None:
                read = source.at(batch, h, s)
                write = target.at(batch, h, s)
                for c, tail in columns_of(f, half):
                    real, imaginary = (wide_load(f, dtype, t, c, tail) for t in angles)
                    places, tails = [c, c + half], [tail, tail]
                    if interleaved:
                        places = [2 * c, 2 * c + lanes]
                        tails = [f.const(vec("i1", lanes), [p + n < 2 * half for n in range(lanes)])
                                 for p in places]
                    a, b = (wide_load(f, dtype, read, p, t) for p, t in zip(places, tails, strict=True))
                    if interleaved:
                        a, b = (f.shuffle(a, b, range(n, 2 * lanes, 2)) for n in (0, 1))
                    y, z = f.fma(real, a, -(imaginary * b)), f.fma(imaginary, a, real * b)
                    if interleaved:
                        order = [n for k in range(lanes) for n in (k, lanes + k)]
                        y, z = f.shuffle(y, z, order[:lanes]), f.shuffle(y, z, order[lanes:])
                    for turned, p, t in zip((y, z), places, tails, strict=True):
                        narrow_store(f, turned, dtype, write, p, t)
                for c, tail in columns_of(f, size - 2 * half):
                    narrow_store(f, wide_load(f, dtype, read, 2 * half + c, tail), dtype, write, 2 * half + c,
                                 tail)
            f.loop(0, heads, 1, [], head)
        f.when((at >= 0) & (at < rows), present, lambda: f.store(f.i64(1), status))
    f.loop(f.lo, f.hi, 1, [], item)
