"""Pooling: an image in, one number per window and channel out.

Per axis two tables say where a window begins and how many of its taps lie within the image, so that borders,
dilations and padding of any kind cost nothing but the tables.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ...ops.nn.geometry import Window, covered
from ..machines.machine import Machine
from ..write.body import Body
from ..write.convert import convert
from ..write.emit import F32, I32, I64, PTR, V, vec
from ..write.expr import LLVM, Expr
from ..write.template import template
from .loops import picked
from .rows import Read, positions
from .sample import Block, Frame, Pixel, dot, lanes_for

LOWEST = {"int8": -128, "uint8": 0}
PLANES = ("float32", "float16", "bfloat16", "float64")
"""Types that are pooled where rows lie together."""
DTYPES = (*PLANES, *LOWEST)
FARTHEST = 4
"""Distance of two windows of a row up to which vectors of them are picked."""
_WRITTEN = 8
"""Taps that are written one after the other."""
_LONG = 16
"""Taps along the last axis from which on each line has a sum of its own, so that errors of long sums stay
small."""


@template("")
def pool_windows(f: Body, *, rank: int, lanes: int, dtype: str, out: str, operands: tuple[Read, ...],
                 after: Expr | None, kind: str, taps: int) -> None:
    """`max`, `average`, `l1` or `l2` over the windows of `rank` spatial axes, or the `place` (int32) of the
    first largest element, NaN before all others. A window without an element gives the lowest number of the
    type, 0, or as its place -1. `taps`: those of a whole window along the last axis, written
    out.

    Arguments: the frame's, then the input's address and strides (image, spatial axes), the distance of two
    taps per axis, and per axis the tables of first elements and of taps (int32); for the average also what
    the sum of a window is divided by along that axis (float32), and where that is of bytes
    the address of a float32 number that is taken off each; for places, how far apart elements and taps
    of each axis are.
    """
    placed = kind == "place"
    working = dtype if dtype in LOWEST and kind in ("max", "place") else working_type(dtype)
    frame = Frame(f, rank, lanes, "int32" if placed else working, out, operands, after)
    x, strides, steps = frame.cell(PTR), frame.cells(rank + 1), frame.cells(rank)
    begins, counts = frame.cells(rank, PTR), frame.cells(rank, PTR)
    sizes = frame.cells(rank, PTR) if kind == "average" else []
    zero = f.load(F32, frame.cell(PTR)) if kind == "average" and dtype in LOWEST else None
    numbers, apart = (frame.cells(rank), frame.cells(rank)) if placed else ([], [])
    elem = LLVM[dtype]
    begin = f.const(vec(LLVM[working], lanes),
                    LOWEST.get(dtype, -math.inf) if kind in ("max", "place") else 0)
    nowhere = f.const(vec(I32, lanes), -1)

    def number(table: V, at: V) -> V:
        return f.cast(f.load(I32, table, at), I64)

    def row(at: Sequence[V]) -> Pixel:
        firsts = [number(b, i) for b, i in zip(begins, at[1:], strict=False)]
        within = [number(c, i) for c, i in zip(counts, at[1:], strict=False)]
        base = f.gep(x, dot([at[0], *firsts], strides), elem)
        size = [f.load(F32, s, i) for s, i in zip(sizes, at[1:], strict=False)]

        def pixel(w: V) -> Block:
            corner = f.gep(base, number(begins[-1], w) * strides[-1], elem)
            origin = dot([*firsts, number(begins[-1], w)], numbers) if placed else None
            across = number(counts[-1], w)
            share, start = None, begin
            if zero is not None:
                there = across
                for count in within:
                    there = there * count
                start = f.splat(-(f.cast(there, F32) * zero), lanes)
            if kind == "average":
                count = f.load(F32, sizes[-1], w)
                for s in size:
                    count = count * s
                share = 1 / f.cast(count, LLVM[working_type(dtype)])

            def block(c: V, vectors: int, mask: V | None) -> list[V]:
                def tap(p: V, sums: Sequence[V], place: V | None = None) -> list[V]:
                    found = [frame.load(p, (dtype, 1), c + j * lanes if j else c, mask)
                             for j in range(vectors)]
                    if place is not None:
                        here = f.splat(f.cast(place, I32), lanes)
                        return _larger(f, [convert(f, v, dtype, working) for v in found], here, sums, dtype)
                    return [_joined(f, kind, s, convert(f, v, dtype, working), dtype)
                            for s, v in zip(sums, found, strict=True)]

                def line(p: V, sums: Sequence[V]) -> list[V]:
                    def some(sums: Sequence[V] = sums) -> list[V]:
                        return f.loop(0, across, 1, sums,
                                      lambda t, *now: tap(f.gep(p, t * steps[-1], elem), now))

                    def apart() -> list[V]:
                        return [a + b for a, b in zip(sums, some([begin] * vectors), strict=True)]

                    def whole() -> list[V]:
                        now = list(sums)
                        for t in range(taps):
                            now = tap(f.gep(p, steps[-1] * t, elem) if t else p, now)
                        return now
                    if taps >= _LONG and kind not in ("max", "place"):
                        return apart()
                    return f.when(across.eq(taps), whole, some) if 0 < taps <= 4 else some()

                def nest(axis: int, p: V, sums: Sequence[V]) -> list[V]:
                    if axis == rank - 1:
                        return line(p, sums)
                    return f.loop(0, within[axis], 1, sums,
                                  lambda t, *now: nest(axis + 1, f.gep(p, t * steps[axis], elem), now))
                def places(axis: int, p: V, place: V, sums: Sequence[V]) -> list[V]:
                    if axis == rank:
                        return tap(p, sums, place)
                    return f.loop(0, within[axis] if axis < rank - 1 else across, 1, sums,
                                  lambda t, *now: places(axis + 1, f.gep(p, t * steps[axis], elem),
                                                         place + t * apart[axis], now))
                if origin is not None:
                    return places(0, corner, origin, [start, nowhere] * vectors)[1::2]
                sums = nest(0, corner, [start] * vectors)
                if share is not None:
                    return [s * share for s in sums]
                return [f.unary("sqrt", s) for s in sums] if kind == "l2" else sums
            return block
        return pixel
    frame.each(row)


def _larger(f: Body, values: Sequence[V], here: V, best: Sequence[V], dtype: str) -> list[V]:
    """The largest so far and where it is, alternately, after `values` at `here`."""
    made: list[V] = []
    for x, old, at in zip(values, best[::2], best[1::2], strict=True):
        better = f.compare("gt", x, old, dtype.startswith("u")) | (at < 0)
        if x.is_float:
            better = better | (x.ne(x) & old.eq(old))
        made += [f.select(better, x, old), f.select(better, here, at)]
    return made


def _joined(f: Body, kind: str, total: V, x: V, dtype: str) -> V:
    if kind == "max":
        if dtype.startswith("u"):
            return f.select(f.compare("gt", x, total, True), x, total)
        return f.maximum(total, x)
    if kind == "l2":
        return f.fma(x, x, total)
    return total + (f.unary("fabs", x) if kind == "l1" else x)


def working_type(dtype: str) -> str:
    """In which sums and comparisons are made."""
    return "float64" if dtype == "float64" else "float32"


def planes_room(machine: Machine, dtype: str, width: int, wide: int, left: int, taps: int, step: int,
                apart: int) -> int:
    """Elements that a row of `wide` of the input takes with its margins, for `width` windows."""
    lanes = lanes_for(machine, dtype)
    read = -(-width // lanes) * lanes * step + ((taps - 1) * apart // step + 1) * step
    return max(read, left + -(-wide // lanes) * lanes) + lanes


@template("out:ptr x:ptr channels:i64 rows:i64 wide:i64 width:i64 left:i64 room:i64 x_image:i64 "
          "x_channel:i64 x_row:i64 x_tap:i64 out_image:i64 out_channel:i64 out_row:i64 begins:ptr counts:ptr")
def pool_planes(f: Body, out: V, x: V, channels: V, rows: V, wide: V, width: V, left: V, room: V, x_image: V,
                x_channel: V, x_row: V, x_tap: V, out_image: V, out_channel: V, out_row: V, begins: V,
                counts: V, *, dtype: str, kind: str, down: int, taps: int, step: int, apart: int) -> None:
    """As `pool_windows`, of two axes where the elements of a row lie together: windows of `down` rows and of
    `taps` elements `apart` in a row, `step` from each other. An item is a row of results: its rows are made
    one in scratch, with margins. The tables are those of the rows; `left` elements of a row's first window
    lie before it. Behind the cells, for the average, what is divided by along each axis."""
    working, elem = working_type(dtype), LLVM[dtype]
    lanes = lanes_for(f.machine, dtype)
    ty, read_ty = vec(LLVM[working], lanes), vec(elem, lanes)
    least = -math.inf if kind == "max" else 0.0
    nothing, line = f.const(ty, least), f.scratch
    by_row, by_column = (f.arg(17, PTR), f.arg(18, PTR)) if kind == "average" else (None, None)
    inner = "max" if kind == "max" else "sum"
    f.loop(0, room, lanes, [], lambda i: f.store(nothing, line, f.fast_min(i, room - lanes)))

    def join_rows(base: V, count: V | None) -> None:
        def one(at: V, w: V, mask: V | None, total: V) -> V:
            v = f.load_masked(read_ty, at, w, mask, least)
            return _joined(f, kind, total, convert(f, v, dtype, working), dtype)

        def vector(w: V, mask: V | None) -> None:
            if count is None:
                total = nothing
                for t in range(down):
                    total = one(f.gep(base, x_tap * t, elem) if t else base, w, mask, total)
            else:
                (total,) = f.loop(0, count, 1, [nothing], lambda t, total: one(
                    f.gep(base, x_tap * t, elem), w, mask, total))
            f.store(total, line, left + w)
        whole = wide & -lanes
        f.loop(0, whole, lanes, [], lambda w: vector(w, None))
        f.when(whole < wide, lambda: vector(whole, f.mask(lanes, wide - whole)))

    def windows(to: V, w: V, share: V | None, mask: V | None) -> None:
        total, loaded = None, dict[int, list[V]]()
        first = w * step
        for t in range(taps):
            far, lane = divmod(t * apart, step)
            if far not in loaded:
                loaded[far] = [f.load(ty, line, first + (far * step + j * lanes)) for j in range(step)]
            v = picked(f, loaded[far], [divmod(i * step + lane, lanes) for i in range(lanes)])
            total = v if total is None else _joined(f, inner, total, v, working)
        assert total is not None
        if share is not None and by_column is not None:
            along = f.load_masked(vec(F32, lanes), by_column, w, mask, 1.0)
            total = total * (1 / f.cast(along * share, LLVM[working]))
        elif kind == "l2":
            total = f.unary("sqrt", total)
        made = convert(f, total, working, dtype)
        f.store_masked(made, to, w, mask)

    def item(_: V, at: Sequence[V]) -> None:
        image, channel, y = at
        base = image * x_image + channel * x_channel + f.cast(f.load(I32, begins, y), I64) * x_row
        base = f.gep(x, base, elem)
        count = f.cast(f.load(I32, counts, y), I64)
        if down <= _WRITTEN:
            f.when(count.eq(down), lambda: join_rows(base, None), lambda: join_rows(base, count))
        else:
            join_rows(base, count)
        to = f.gep(out, image * out_image + channel * out_channel + y * out_row, elem)
        share = None if by_row is None else f.splat(f.load(F32, by_row, y), lanes)
        whole = width & -lanes
        f.loop(0, whole, lanes, [], lambda w: windows(to, w, share, None))
        f.when(whole < width, lambda: windows(to, whole, share, f.mask(lanes, width - whole)))
    positions(f, [channels, rows], item)


def tables(size: int, kernel: int, stride: int, dilation: int, begin: int, out: int
           ) -> tuple[np.ndarray, np.ndarray]:
    """Per window of one axis its first element within [0, size) and how many of its taps lie there."""
    base = np.arange(out, dtype=np.int64) * stride - begin
    low = np.clip(-(base // dilation), 0, kernel)
    high = np.clip(-((base - size) // dilation), 0, kernel)
    count = np.maximum(high - low, 0)
    return np.where(count > 0, base + low * dilation, 0).astype(np.int32), count.astype(np.int32)


def divisors(win: Window, axis: int, padded: bool) -> np.ndarray:
    """What each window's sum is divided by along an axis: its taps, `padded`: also those in the padding."""
    low, high = (-win.begin[axis], win.size[axis] + win.end[axis]) if padded else (0, win.size[axis])
    along = covered(win.kernel[axis], win.strides[axis], win.dilations[axis], win.begin[axis], win.out[axis],
                    low, high)
    divided: np.ndarray = np.maximum(along, 1).astype(np.float32)
    return divided
