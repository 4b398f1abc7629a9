"""Convolution as register tiles of output pixels by output channels, over channels-last images.

In: an image (N, C, D, H, W) of float32, or of float16 where an instruction widens it, whose channels are
adjacent, any pitch; weights of the same type packed by `pack`; an elementwise tree over the float32 sums with
its operands. Out: an image of the same kind, any pitch. The pixels of an
output plane are one list of tiles, so a tile may run over the end of a row: every pixel of a tile has its own
address. A tap that falls outside the image reads zeros in its place. All sizes are run-time arguments; few
kernels serve a model. """

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import gcd, prod

import numpy as np

from ...shapes.symbolic import choice
from ..machines.machine import Machine
from ..runtime.call_kernel import aligned
from ..write.body import Body
from ..write.emit import BYTES as SIZES
from ..write.emit import F32, I8, I64, PTR, V, vec
from ..write.expr import BYTES, LLVM, Expr, emit
from ..write.template import Spec, template
from ..write.tile import Operand, as_float, joined, load, shapes, tile, widens

_INLINE = 160
"""Operations an epilogue may come to in a tile before it is written as a loop over pixels."""


class Epilogue:
    """Applies a tree to sums and stores them: leaf 0 is the sum, leaf i operand i - 1. An operand's `row`
    says whether it differs from pixel to pixel, `col` whether from channel to channel. Cells from `at` on:
    per operand its address and its strides over images, depth, rows and pixels (elements)."""

    CELLS = 5

    def __init__(self, f: Body, tree: Expr | None, operands: Sequence[Operand], at: int) -> None:
        self.f, self.tree, self.operands = f, tree, tuple(operands)
        self.written = None if tree is None else flushed(tree)
        self.dtype = tree.dtype if tree is not None else "float32"
        self.bases = [f.arg(at + self.CELLS * i, PTR) for i in range(len(operands))]
        self.strides = [[f.arg(at + self.CELLS * i + 1 + j,
                               I64) for j in range(4)] for i in range(len(operands))]

    def place(self, image: V, depth: V, channel: V) -> list[V]:
        """The operands' addresses for one plane, from `channel` on."""
        out = []
        for base, (n, d, _, _), o in zip(self.bases, self.strides, self.operands, strict=True):
            at = image * n + depth * d
            out.append(self.f.gep(base, (at + channel if o.col else at) * BYTES[o.dtype], I8))
        return out

    def at(self, bases: Sequence[V], y: V, x: V) -> list[V]:
        """The operands' addresses for the pixel at row `y` and column `x`."""
        return [self.f.gep(base, (y * row + x * pixel) * BYTES[o.dtype], I8) if o.row else base
                for base, (_, _, row, pixel), o in zip(bases, self.strides, self.operands, strict=True)]

    def fixed(self, bases: Sequence[V], lanes: int, masks: Sequence[V | None]) -> list[list[V] | None]:
        """Per operand that is the same for all pixels its vectors, None for the others."""
        return [None if o.row else self._read(o, base, lanes, masks)
                for o, base in zip(self.operands, bases, strict=True)]

    def _read(self, o: Operand, at: V, lanes: int, masks: Sequence[V | None]) -> list[V]:
        f, elem = self.f, LLVM[o.dtype]
        if not o.col:
            return [f.splat(f.load(elem, at), lanes)] * len(masks)
        return [load(f, vec(elem, lanes), f.gep(at, j * lanes * BYTES[o.dtype], I8), mask)
                for j, mask in enumerate(masks)]

    def pixel(self, sums: Sequence[V], fixed: Sequence[list[V] | None], bases: Sequence[V], out: V,
              masks: Sequence[V | None]) -> None:
        """Store one pixel's vectors at `out`; `bases`: the operands' addresses for it."""
        f, lanes = self.f, sums[0].lanes
        given = [known or self._read(o, base, lanes, masks)
                 for known, o, base in zip(fixed, self.operands, bases, strict=True)]
        for j, (total, mask) in enumerate(zip(sums, masks, strict=True)):
            value = total if self.written is None else emit(f, self.written, [total, *(g[j] for g in given)])
            at = f.gep(out, j * lanes * BYTES[self.dtype], I8)
            if mask is None:
                f.store(value, at)
            else:
                f.store_masked(value, at, 0, mask)

    def tile(self, acc: Sequence[V], rows: int, address: Callable[[int, int | V], V], sides: Sequence[V],
             masks: Sequence[V | None], room: V) -> None:
        """Store `rows` pixels. `address(i, r)`: where pixel r lies in the output (i = 0) or in operand i - 1;
        `room`: memory for the tile."""
        f, cols, lanes = self.f, len(masks), acc[0].lanes
        fixed = self.fixed(sides, lanes, masks)

        def one(r: int | V, sums: Sequence[V]) -> None:
            bases = [address(i + 1, r) if o.row else base
                     for i, (o, base) in enumerate(zip(self.operands, sides, strict=True))]
            self.pixel(sums, fixed, bases, address(0, r), masks)
        if self.tree is None or self.tree.size() * len(acc) <= _INLINE:
            for r in range(rows):
                one(r, acc[r * cols:r * cols + cols])
            return
        for i, x in enumerate(acc):
            f.store(x, room, i * lanes, lanes * 4)

        def stored(r: V) -> None:
            one(r, [f.load(acc[0].ty, room, (r * cols + j) * lanes, lanes * 4) for j in range(cols)])
        f.loop(0, rows, 1, [], stored)


_NORMAL = 87.0
"""e^-x is a normal float32 up to here."""


def flushed(tree: Expr) -> Expr:
    """`tree` with sigmoids of float32 that are 0 below -87 instead of denormal, and have no denormals on the
    way: arithmetic on those, here and where the output is read, takes a hundred times as long."""
    args = tuple(map(flushed, tree.args))
    if tree.op != "sigmoid" or tree.dtype != "float32":
        return Expr(tree.op, args, tree.dtype, tree.value)
    x, (least, most, zero) = args[0], (Expr.const(n, "float32") for n in (-_NORMAL, _NORMAL, 0.0))
    held = Expr("maximum", (Expr("minimum", (x, most), "float32"), least), "float32")
    value = Expr("sigmoid", (held,), "float32")
    return Expr("where", (Expr("lt", (x, least), "bool"), zero, value), "float32")


# the kernel

LONG = 128
"""Products that are summed one after another, at most."""

CONV_CELLS = (
    "x:ptr w:ptr y:ptr panels:i64 groups:i64 blocks:i64 per_block:i64 tiles:i64 per_row:i64 full:i64 "
    "depth:i64 width:i64 high:i64 wide:i64 deep:i64 kd:i64 kh:i64 kw:i64 run:i64 sd:i64 sh:i64 sw:i64 "
    "dd:i64 dh:i64 dw:i64 "
    "pd:i64 ph:i64 pw:i64 cout:i64 xn:i64 xd:i64 xh:i64 xw:i64 xg:i64 td:i64 th:i64 tw:i64 "
    "yn:i64 yd:i64 yh:i64 yw:i64 chunk:i64")


@template(CONV_CELLS)
def conv_tiles(f: Body, x: V, w: V, y: V, panels: V, groups: V, blocks: V, per_block: V, tiles: V,
               per_row: V, full: V, depth: V, width: V, high: V, wide: V, deep: V, kd: V, kh: V, kw: V,
               run: V, sd: V, sh: V, sw: V, dd: V, dh: V, dw: V, pd: V, ph: V, pw: V, cout: V, xn: V, xd: V,
               xh: V, xw: V, xg: V, td: V, th: V, tw: V, yn: V, yd: V, yh: V, yw: V,
               chunk: V, *, dtype: str, heights: tuple[int, ...], cols: int, rolled: tuple[int, int],
               even: bool, trims: bool, edges: bool, tail: bool, ahead: int, share: int, parts: str,
               tree: Expr | None, operands: tuple[Operand, ...]) -> None:
    """Item ((image·depth + plane)·blocks + block)·groups·panels + group·panels + panel: one panel of output
    channels over one block of tiles.

    A tap is `run` elements of K; `rolled` (rows, run) writes a plane of taps out instead of looping, (0, 0)
    loops. `even`: every row of the output is divided into `per_row` tiles, of which the first `full` have
    heights[0] pixels and the others heights[-1]; else the whole plane is. `edges`: taps may fall outside;
    scratch is `run` floats then. `trims`: with `even`, a tap may miss the image at a tile's first or last
    pixel, not at both nor at more; else, with `even`, at none. `ahead`: K steps that weights are fetched
    ahead; `share`: every tile fetches 1 / 2^(share - 1) of the next panel into the second cache, none for 0.
    `parts`: what is summed by itself before it is added to the rest, so that errors of long sums stay small:
    the "row"s of a kernel, "chunk"s of `chunk` elements of a tap, or "none".
    """
    wide_panel = cols * f.machine.lanes()
    lanes, cols = joined(f.machine, cols, widens(f.machine, dtype, dtype))
    elem, size = LLVM[dtype], BYTES[dtype]
    finish = Epilogue(f, tree, operands, len(CONV_CELLS.split()))
    count = 16 if heights[0] > 8 else 8
    places = f.alloca(I64, count)
    outs = [f.alloca(I64, count) for _ in range(1 + len(operands))]
    room = f.alloca(vec(F32, lanes), heights[0] * cols)
    totals = f.alloca(vec(F32, lanes), heights[0] * cols)
    steps = f.const(vec(I64, count), list(range(count)))
    panel_size = kd * kh * kw * run * wide_panel
    zeros = f.cast(f.scratch, I64)
    if edges:
        f.loop(0, run, 1, [], lambda i: f.store(f.const(elem, 0.0), f.scratch, i))

    def item(i: V) -> None:
        rest = i // panels
        panel = i - rest * panels
        q = rest // groups
        group = rest - q * groups
        plane = q // blocks
        block = q - plane * blocks
        image = plane // depth
        z = plane - image * depth
        weights = f.gep(w, (group * panels + panel) * panel_size, elem)
        channel = panel * wide_panel
        first_z = z * sd - pd
        from_z, to_z = inside(f, first_z, dd, kd, deep) if edges else (f.i64(0), kd)
        x_plane = f.gep(x, image * xn + first_z * xd - ph * xh - pw * xw + group * xg, elem)
        y_plane = f.gep(y, (image * yn + z * yd + group * cout + channel) * BYTES[finish.dtype], I8)
        sides = finish.place(image, z, group * cout + channel)
        masks = [f.mask(lanes, cout - channel - j * lanes) if tail else None for j in range(cols)]
        zero = f.zero(vec(F32, lanes))

        def total_of(size: int) -> list[V]:
            return [f.load(vec(F32, lanes), totals, i * lanes, lanes * 4) for i in range(size)]

        def put(sums: Sequence[V]) -> None:
            for i, value in enumerate(sums):
                f.store(value, totals, i * lanes, lanes * 4)

        def summed(size: int, acc: Sequence[V], level: str, inner: Callable[..., list[V]]) -> list[V]:
            """`inner` of the sums so far; of zeros, then added to `totals`, where `level` is what is summed
            by itself."""
            if parts != level:
                return inner(*acc)
            made = inner(*[zero] * size)
            put([a + b for a, b in zip(total_of(size), made, strict=True)])
            return []

        def whole(size: int, inner: Callable[..., list[V]]) -> list[V]:
            """All taps over depth."""
            if parts == "none":
                return f.loop(from_z, to_z, 1, [zero] * size, inner)
            put([zero] * size)
            f.loop(from_z, to_z, 1, [], inner)
            return total_of(size)

        def chunked(size: int, acc: Sequence[V], inner: Callable[..., list[V]]) -> list[V]:
            """A tap: `inner` of where a chunk begins, its length and sums."""
            if parts != "chunk":
                return inner(f.i64(0), run, *acc)
            f.loop(0, run, chunk, [], lambda k: summed(
                size, [], "chunk", lambda *acc: inner(k, f.minimum(run - k, chunk), *acc)))
            return []

        def prefetch_of(t: V) -> Callable[[V, int], None] | int:
            """What a step of K fetches."""
            if not share:
                return ahead
            coming = f.cast(weights, I64) + (panel_size * size
                                             + (t % (1 << share - 1)) * (panel_size * size >> share - 1))
            start = f.cast(weights, I64)

            def fetch(row: V, u: int) -> None:
                if ahead:
                    for j in range(0, wide_panel, 64 // size):
                        f.prefetch(row, ahead * wide_panel + j, elem)
                step = wide_panel * size >> share - 1
                if u * step % 64 == 0:
                    here = coming + ((f.cast(row, I64) - start) >> share - 1)
                    for line in range(0, max(step, 64), 64):
                        f.prefetch(f.cast(here, PTR), line, level=2)
            return fetch

        def regular(t: V, rows: int, oy: V, ox: V) -> None:
            start = f.gep(x_plane, oy * (sh * xh) + ox * (sw * xw), elem)
            a_row = sw * xw

            def taps(jz: V, *acc: V) -> list[V]:
                if rolled[0]:
                    total = list(acc)
                    b = f.gep(weights, jz * (rolled[0] * rolled[1] * wide_panel), elem)
                    for jy in range(rolled[0]):
                        total = tile(f, rows, cols, f.gep(start, jz * td + jy * th, elem), a_row,
                                     f.gep(b, jy * rolled[1] * wide_panel, elem), wide_panel, rolled[1],
                                     total, a_type=elem, b_type=elem)
                    return total

                def over_y(jy: V, *acc: V) -> list[V]:
                    def over_x(jx: V, *acc: V) -> list[V]:
                        fetch = prefetch_of(t)

                        def piece(k: V, length: V, *acc: V) -> list[V]:
                            b = f.gep(weights, (((jz * kh + jy) * kw + jx) * run + k) * wide_panel, elem)
                            a = f.gep(start, jz * td + jy * th + jx * tw + k, elem)

                            def part(a: V, first: int, last: int) -> list[V]:
                                mid = tile(f, last - first, cols, a, a_row, b, wide_panel, length,
                                           acc[first * cols:last * cols], prefetch=fetch, a_type=elem,
                                           b_type=elem)
                                return [*acc[:first * cols], *mid, *acc[last * cols:]]
                            if not trims:
                                return part(a, 0, rows)
                            left = ox * sw - pw + jx * dw
                            return f.when(
                                (left >= 0) & (left + (rows - 1) * sw < wide), lambda: part(a, 0, rows),
                                lambda: f.when(left < 0, lambda: part(f.gep(a, a_row, elem), 1, rows),
                                               lambda: part(a, 0, rows - 1)))
                        return chunked(rows * cols, acc, piece)
                    return summed(rows * cols, acc, "row", lambda *acc: f.loop(0, kw, 1, acc, over_x))
                if not edges:
                    return f.loop(0, kh, 1, acc, over_y)
                from_y, to_y = inside(f, oy * sh - ph, dh, kh, high)
                return f.loop(from_y, to_y, 1, acc, over_y)
            acc = whole(rows * cols, taps)
            bases = [f.gep(y_plane, (oy * yh + ox * yw) * BYTES[finish.dtype], I8)]
            sizes = [yw * BYTES[finish.dtype]]
            for base, (_, _, row, pixel), o in zip(sides, finish.strides, operands, strict=True):
                bases.append(f.gep(base, (oy * row + ox * pixel) * BYTES[o.dtype], I8))
                sizes.append(pixel * BYTES[o.dtype])
            finish.tile(acc, rows, lambda i, r: f.gep(bases[i], sizes[i] * r, I8), sides, masks, room)

        def odd(t: V, rows: int, first: V) -> None:
            oy0 = first // width
            ox0 = first - oy0 * width
            wraps = (ox0 + (rows - 1)) // width

            def wrap(_: V, ox: V, oy: V) -> tuple[V, V]:
                over = ox >= width
                return f.select(over, ox - width, ox), f.select(over, oy + 1, oy)
            ox, oy = f.loop(0, wraps, 1, [steps + ox0, f.splat(oy0, count)], wrap)
            at = f.cast(x_plane, I64) + (oy * (sh * xh) + ox * (sw * xw)) * size
            f.store(at, places, 0, 64)
            _addresses(f, outs[0], y_plane, oy * yh + ox * yw, finish.dtype)
            for slot, base, (_, _, row, pixel), o in zip(outs[1:], sides, finish.strides, operands,
                                                         strict=True):
                if o.row:
                    _addresses(f, slot, base, oy * row + ox * pixel, o.dtype)
            outside: V | None = None
            from_y, to_y = f.i64(0), kh
            iy, ix = oy * sh - ph, ox * sw - pw
            if edges:
                spread = wraps > 0
                top, bottom = oy0 * sh - ph, (oy0 + wraps) * sh - ph
                left = f.select(spread, 0, ox0) * sw - pw
                right = f.select(spread, width - 1, ox0 + (rows - 1)) * sw - pw + (kw - 1) * dw
                outside = (top < 0) | (bottom + (kh - 1) * dh >= high) | (left < 0) | (right >= wide)
                from_y, to_y = f.when(outside, lambda: (inside(f, bottom, dh, kh, high)[0],
                                                        inside(f, top, dh, kh, high)[1]),
                                      lambda: (from_y, to_y))

            def over_z(jz: V, *acc: V) -> list[V]:
                def over_y(jy: V, *acc: V) -> list[V]:
                    def over_x(jx: V, *acc: V) -> list[V]:
                        offset = jz * td + jy * th + jx * tw
                        b = f.gep(weights, ((jz * kh + jy) * kw + jx) * run * wide_panel, elem)
                        fetch = prefetch_of(t)
                        if outside is not None:
                            def move() -> None:
                                cy, cx = iy + jy * dh, ix + jx * dw
                                ok = (f.compare("lt", cy, high, True)) & (f.compare("lt", cx, wide, True))
                                away = f.splat(zeros - offset * size, count)
                                f.store(f.select(ok, at, away), places, 0, 64)
                            f.when(outside, move)
                        return chunked(rows * cols, acc, lambda k, length, *acc: _gather(
                            f, rows, cols, places, offset + k, f.gep(b, k * wide_panel, elem), length, acc,
                            fetch, elem))
                    return summed(rows * cols, acc, "row", lambda *acc: f.loop(0, kw, 1, acc, over_x))
                return f.loop(from_y, to_y, 1, acc, over_y)
            acc = whole(rows * cols, over_z)
            finish.tile(acc, rows, lambda i, r: f.load(PTR, outs[i], r, 8), sides, masks, room)

        begin = block * per_block
        end = f.minimum(begin + per_block, tiles)
        tall, low = heights[0], heights[-1]

        def in_row(t: V) -> None:
            oy = t // per_row
            at = t - oy * per_row
            if low == tall:
                regular(t, tall, oy, at * tall)
            else:
                f.when(at < full, lambda: regular(t, tall, oy, at * tall),
                       lambda: regular(t, low, oy, full * tall + (at - full) * low))
        if even:
            f.loop(begin, end, 1, [], in_row)
            return
        f.loop(begin, f.minimum(end, full), 1, [], lambda t: odd(t, tall, t * tall))
        if low != tall:
            f.loop(f.maximum(begin, full), end, 1, [], lambda t: odd(t, low, full * tall + (t - full) * low))

    f.loop(f.lo, f.hi, 1, [], item)


_KEPT = 10
"""Addresses of a tile's pixels that stay in registers over the steps written out; the rest is read again."""


def _gather(f: Body, rows: int, cols: int, places: V, offset: V, b: V, run: V, acc: Sequence[V],
            prefetch: Callable[[V, int], None] | int, elem: str) -> list[V]:
    """acc[r * cols + c] += sum over k of pixel r's element offset + k times b's row k; pixel r's address is
    `places[r]`, `elem` the type of both."""
    lanes = acc[0].lanes
    wide = cols * lanes

    def steps(count: int) -> Callable[..., list[V]]:
        def body(k: V, b: V, *acc: V) -> list[V]:
            total = list(acc)
            kept = [f.load(PTR, places, r, 8) for r in range(min(rows, _KEPT))]
            for u in range(count):
                row = [as_float(f, f.load(vec(elem, lanes), b, u * wide + j * lanes)) for j in range(cols)]
                if callable(prefetch):
                    prefetch(f.gep(b, u * wide, elem), u)
                elif prefetch:
                    for j in range(0, wide, 64 // SIZES[elem]):
                        f.prefetch(b, (u + prefetch) * wide + j, elem)
                for r in range(rows):
                    base = kept[r] if r < len(kept) else f.load(PTR, places, r, 8)
                    a = as_float(f, f.splat(f.load(elem, f.gep(base, k, elem), u), lanes))
                    for j in range(cols):
                        total[r * cols + j] = f.fma(a, row[j], total[r * cols + j])
                f.fence()
            return [f.gep(b, count * wide, elem), *total]
        return body
    whole = offset + (run & -4)
    state = f.loop(offset, whole, 4, [b, *acc], steps(4))
    return f.loop(whole, offset + run, 1, state, steps(1))[1:]


def _addresses(f: Body, slot: V, base: V, index: V, dtype: str) -> None:
    f.store(f.splat(f.cast(base, I64), index.lanes) + index * BYTES[dtype], slot, 0, 64)


def inside(f: Body, first: V, step: V, count: V, size: V) -> tuple[V, V]:
    """Which of `count` taps, `step` apart from `first` on, lie in range(size): from, to."""
    begin = f.maximum((f.maximum(-first, 0) + step - 1) // step, 0)
    end = f.minimum((f.maximum(size - first, 0) + step - 1) // step, count)
    return f.minimum(begin, count), end


# copies with a margin

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


# planning

@dataclass(frozen=True, slots=True)
class Geometry:
    """A convolution in numbers: always three spatial axes, leading ones 1. Channels are counted per group;
    `pads` are those before the image, `out` the output's size, which says how far it goes behind."""

    batch: int
    groups: int
    cin: int
    cout: int
    size: tuple[int, int, int]
    kernel: tuple[int, int, int]
    strides: tuple[int, int, int]
    dilations: tuple[int, int, int]
    pads: tuple[int, int, int]
    out: tuple[int, int, int]

    @property
    def work(self) -> int:
        """Multiplications."""
        return self.batch * self.groups * self.cin * self.cout * prod(self.kernel) * prod(self.out)

    @property
    def leaves(self) -> bool:
        """Whether any tap falls outside the image."""
        return any(p > 0 or (o - 1) * s - p + (k - 1) * d >= n for n, k, s, d, p, o in zip(
            self.size, self.kernel, self.strides, self.dilations, self.pads, self.out, strict=True))


@dataclass(frozen=True, slots=True)
class Plan:
    """How `conv_tiles` does a geometry: its parameters and the cells that divide the work."""

    geometry: Geometry
    merge: int
    heights: tuple[int, ...]
    cols: int
    panels: int
    rolled: tuple[int, int]
    even: bool
    trims: bool
    edges: bool
    ahead: int
    share: int
    tiles: int
    per_row: int
    full: int
    per_block: int
    width: int
    lanes: int
    parts: str
    chunk: int
    dtype: str

    @property
    def blocks(self) -> int:
        return -(-self.tiles // self.per_block)

    @property
    def items(self) -> int:
        g = self.geometry
        return g.batch * g.out[0] * self.blocks * g.groups * self.panels

    @property
    def scratch(self) -> int:
        return self.geometry.cin * 4 if self.edges else 0

    def spec(self, tree: Expr | None, operands: Sequence[Operand]) -> Spec:
        return conv_tiles(dtype=self.dtype, heights=self.heights, cols=self.cols, rolled=self.rolled,
                          even=self.even, trims=self.trims, edges=self.edges, ahead=self.ahead,
                          share=self.share, parts=self.parts, tree=tree,
                          tail=self.geometry.cout % (self.cols * self.lanes) != 0, operands=tuple(operands))

    def cells(self, x_strides: Sequence[int], y_strides: Sequence[int]) -> list[int]:
        """The cells behind x, w and y. Strides in elements: (image, depth, row, pixel)."""
        g = self.geometry
        xn, xd, xh, xw = x_strides
        steps = [d * s for d, s in zip(g.dilations, (xd, xh, xw), strict=True)]
        return [self.panels, g.groups, self.blocks, self.per_block, self.tiles, self.per_row, self.full,
                g.out[0], self.width,
                g.size[1], g.size[2], g.size[0], *g.kernel, g.cin, *g.strides, *g.dilations, *g.pads, g.cout,
                xn, xd, xh, xw, g.cin, *steps, *y_strides, self.chunk]

    def pack(self, w: np.ndarray) -> np.ndarray:
        """The panels of weights [Cout, Cin per group, spatial...] (before merging groups)."""
        return pack(w, self.geometry.groups * self.merge, self.merge, self.cols * self.lanes, self.dtype)


def pack(w: np.ndarray, groups: int, merge: int, wide: int, dtype: str = "float32") -> np.ndarray:
    """Weights [Cout, Cin / groups, spatial...] as panels [group][panel][spatial...][cin][wide], zeros behind
    the last channel. `merge` groups become one, its weights a block diagonal."""
    w = np.asarray(w, np.float32)
    cout, cin = w.shape[0] // groups, w.shape[1]
    w = w.reshape(groups // merge, merge, cout, cin, *w.shape[2:])
    joined = np.zeros((groups // merge, merge, cout, merge, cin, *w.shape[4:]), np.float32)
    for i in range(merge):
        joined[:, i, :, i] = w[:, i]
    panels = -(-cout * merge // wide)
    out = np.zeros((groups // merge, panels * wide, merge * cin, *w.shape[4:]), np.float32)
    out[:, :cout * merge] = joined.reshape(groups // merge, merge * cout, merge * cin, *w.shape[4:])
    out = out.reshape(groups // merge, panels, wide, *out.shape[2:])
    moved = np.moveaxis(out, (2, 3), (-1, -2))
    packed = aligned(moved.shape, dtype)
    packed[...] = moved
    return packed


def tile_cols(machine: Machine, cout: int) -> int:
    """Registers of output channels a tile has: the fewest idle lanes, narrow tiles counted as slower."""
    vectors = -(-cout // machine.lanes(4))
    slower = {1: 1.25, 2: 1.06, 4: 1.0} if machine.group > 1 else {1: 1.25, 2: 1.0, 3: 1.03}
    return min((c for c in slower if c <= vectors), key=lambda c: (-(-vectors // c) * c * slower[c], -c))


def split(pixels: int, most: int) -> tuple[tuple[int, ...], int, int]:
    """Divide `pixels` into tiles of at most `most`, as even as can be: heights, tiles, how many are of the
    first."""
    tiles = -(-pixels // most)
    low = pixels // tiles
    more = pixels - tiles * low
    return ((low + 1, low), tiles, more) if more else ((low,), tiles, tiles)


def merged(g: Geometry, machine: Machine) -> int:
    """How many groups are computed as one: small ones fill a vector together."""
    best = 1
    for m in range(2, g.groups + 1):
        if g.groups % m == 0 and m * g.cout <= machine.lanes(4):
            best = m
    return best


@choice()
def plan(g: Geometry, machine: Machine, flat: bool = False, rolled: tuple[int, int] = (0, 0),
         ahead: int | None = None, share: int | None = None, block: int | None = None,
         cols: int | None = None, dtype: str = "float32") -> Plan:
    """A plan for `g` with images and weights of `dtype`. `flat`: the pixels of input and output lie evenly in
    a plane, so that a 1x1 kernel of stride 1 that crops none may count them as one row. The rest
    overrides what is chosen."""
    lanes = machine.lanes(4)
    merge = merged(g, machine)
    if merge > 1:
        g = Geometry(g.batch, g.groups // merge, g.cin * merge, g.cout * merge, g.size, g.kernel, g.strides,
                     g.dilations, g.pads, g.out)
    edges = g.leaves
    cols = cols or tile_cols(machine, g.cout)
    pixels = g.out[1] * g.out[2]
    taps = prod(g.kernel)
    alike = g.out[1] == 1 or g.out[2] == g.size[2]
    width = pixels if flat and taps == 1 and alike and not edges else g.out[2]
    most = shapes(machine)[cols]
    heights, per_row, full = split(width, most)
    trims = edges and _misses(g) != (0, 0)
    even = width == pixels and not edges or not (trims and (max(_misses(g)) > 1 or heights[-1] < 2 or (
        (width - 1) * g.strides[2] >= g.size[2]))) and (heights[-1] * 2 > most or not edges and g.cin < 16)
    tiles = per_row * (pixels // width)
    if not even:
        heights, tiles, full = split(pixels, most)
        per_row, trims = tiles, False
    panels = -(-g.cout // (cols * lanes))
    panel = taps * g.cin * cols * lanes * BYTES[dtype]
    weights = panel * panels * g.groups
    row = g.cin * BYTES[dtype] * g.strides[1] * g.strides[2] * heights[0]
    streamed = weights >= machine.l2 // 8
    if block is None:
        block = machine.l2 // 2 if streamed else machine.l1 * 2 // 3
    per_block = max(1, min(tiles, block // max(row, 1)))
    per_block = -(-tiles // -(-tiles // per_block))
    if share is None:
        share = 1 + min(per_block.bit_length() - 1, 3) if streamed and g.groups == 1 else 0
    if ahead is None:
        ahead = 0 if panel <= machine.l1 * 2 // 3 or (taps == 1 and share) else 32 if taps == 1 else 16
    parts = "none" if rolled[0] or taps * g.cin <= LONG * 3 // 2 else (
        "row" if 1 < g.kernel[2] * g.cin <= LONG else "chunk")
    return Plan(g, merge, heights, cols, panels, rolled, even, trims, edges, ahead, share, tiles, per_row,
                full, per_block, width, lanes, parts, chunk_of(g.cin, LONG), dtype)


def chunk_of(run: int, most: int) -> int:
    """The length of the parts that a sum of `run` products is made of, at most `most`, which 4 divides."""
    return -(-run // -(-run // most) // 4) * 4


def _misses(g: Geometry) -> tuple[int, int]:
    """How many pixels of an output row have a tap outside the image: at its beginning, at its end."""
    k, s, d, p, o, n = g.kernel[2], g.strides[2], g.dilations[2], g.pads[2], g.out[2], g.size[2]
    begin = min(o, max(0, -(-p // s)))
    end = sum((o - 1 - i) * s - p + (k - 1) * d >= n for i in range(min(o, 3)))
    return begin, end


def preferred_pitch(channels: int) -> int:
    """Elements from pixel to pixel that keep neighbouring pixels off the same cache sets."""
    return channels + 16 if channels * 4 % 2048 == 0 else channels


@dataclass(frozen=True, slots=True)
class Stem:
    """A convolution with few input channels: the image is copied with its margins, each channel a plane, and
    the taps of a kernel row are one run. `planes` (images times channels), `rows` and `pitch` size the
    copy."""

    plan: Plan
    planes: int
    rows: int
    pitch: int
    channels: int
    high: int
    wide: int
    top: int
    left: int

    def copy_cells(self, x_plane: int, x_row: int) -> list[int]:
        """The cells of `pad_rows` behind x and y: the source's elements between planes and between rows."""
        return [self.rows, self.high, self.wide, self.top, self.left, self.pitch, x_plane, x_row]

    @property
    def strides(self) -> tuple[int, int, int, int]:
        """The copy's strides as `Plan.cells` wants them."""
        plane = self.rows * self.pitch
        return self.channels * plane, plane, self.pitch, 1

    def pack(self, w: np.ndarray) -> np.ndarray:
        return self.plan.pack(np.moveaxis(w, -1, 1)[..., None])


@choice()
def plan_stem(g: Geometry, machine: Machine, dtype: str = "float32") -> Stem:
    """The plan for one group, no depth, and a kernel that is not spread along rows."""
    _, kh, kw = g.kernel
    _, oh, ow = g.out
    _, sh, sw = g.strides
    rows, pitch = max((oh - 1) * sh + (kh - 1) * g.dilations[1] + 1, 1), (ow - 1) * sw + kw
    inner = Geometry(g.batch, 1, kw, g.cout, (g.cin, rows, pitch), (g.cin, kh, 1), (1, sh, sw),
                     (1, g.dilations[1], 1), (0, 0, 0), g.out)
    rolled = (kh, kw) if kh * kw <= 9 else (0, 0)
    left = min(g.pads[2], pitch)
    return Stem(plan(inner, machine, rolled=rolled, dtype=dtype), g.batch * g.cin, rows, pitch,
                g.cin, g.size[1], min(g.size[2], pitch - left), g.pads[1], left)


@dataclass(frozen=True, slots=True)
class Phase:
    """Every stride-th output along one axis of a transposed convolution, from `start` on: a plain convolution
    of the taps that `pick` takes, in its order."""

    kernel: int
    dilation: int
    pad: int
    out: int
    pick: slice
    start: int


def _phases(k: int, s: int, d: int, p: int, o: int) -> list[Phase]:
    """The phases along an axis of kernel `k`, stride `s`, dilation `d`, `p` cut off before it, output `o`."""
    step, made = s // gcd(s, d), []
    for start in range(min(s, o)):
        taps = [j for j in range(min(step, k)) if (start + p - j * d) % s == 0]
        out = len(range(start, o, s))
        if not taps:
            made.append(Phase(0, 1, 0, out, slice(0, 0), start))
            continue
        count = len(range(taps[0], k, step))
        last = taps[0] + (count - 1) * step
        made.append(Phase(count, d * step // s, -((start + p - last * d) // s), out,
                          slice(last, taps[0] - 1 if taps[0] else None, -step), start))
    return made


def phases(g: Geometry) -> list[tuple[Geometry, tuple[slice, slice, slice], tuple[int, int, int]]]:
    """A transposed convolution as plain ones, one per phase of its output: the geometry, which taps it has
    and the first output pixel. `g` is the transposed one: `strides` and `dilations` as given, `out` its full
    output, `pads` what is cut off before it."""
    deep, high, wide = (_phases(*axis) for axis in zip(g.kernel, g.strides, g.dilations, g.pads, g.out,
                                                       strict=True))
    return [(Geometry(g.batch, g.groups, g.cin, g.cout, g.size, (z.kernel, y.kernel, x.kernel), (1, 1, 1),
                      (z.dilation, y.dilation, x.dilation), (z.pad, y.pad, x.pad), (z.out, y.out, x.out)),
             (z.pick, y.pick, x.pick), (z.start, y.start, x.start))
            for z in deep for y in high for x in wide]
