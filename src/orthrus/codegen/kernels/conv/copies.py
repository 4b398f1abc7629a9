"""Copies of images with a margin of zeros."""

from __future__ import annotations

from ...write.body import Body
from ...write.emit import V, vec
from ...write.expr import BYTES, LLVM
from ...write.template import template


@template("x:ptr y:ptr rows:i64 high:i64 run:i64 top:i64 left:i64 pitch:i64 xp:i64 xh:i64")
def pad_rows(f: Body, x: V, y: V, rows: V, high: V, run: V, top: V, left: V, pitch: V, xp: V, xh: V, *,
             dtype: str = "float32") -> None:
    """Copy planes of `high` rows of `run` adjacent elements into planes of `rows` rows, `pitch` apart, at
    (top, left); the rest is 0. Item plane·rows + row. `xp`, `xh`: elements between planes and between rows of
    the source."""
    elem, lanes = LLVM[dtype], f.machine.lanes(BYTES[dtype])
    ty = vec(elem, lanes)

    def fill(out: V, begin: V, end: V) -> None:
        def put(i: V) -> None:
            f.store_masked(f.zero(ty), out, i, f.mask(lanes, end - i))
        f.loop(begin, end, lanes, [], put)

    def row(i: V) -> None:
        plane = i // rows
        at = i - plane * rows - top
        out = f.gep(y, i * pitch, elem)

        def inside() -> None:
            source = f.gep(x, plane * xp + at * xh, elem)
            fill(out, f.i64(0), left)

            def put(j: V) -> None:
                mask = f.mask(lanes, run - j)
                f.store_masked(f.load_masked(ty, source, j, mask), f.gep(out, left, elem), j, mask)
            f.loop(0, run, lanes, [], put)
            fill(out, left + run, pitch)
        f.when((at >= 0) & (at < high), inside, lambda: fill(out, f.i64(0), pitch))
    f.loop(f.lo, f.hi, 1, [], row)
