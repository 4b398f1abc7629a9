"""Convolution as register tiles of output pixels by output channels, over channels-last images.

In: an image (N, C, D, H, W) of float32, or of float16 where an instruction widens it, whose channels are
adjacent, any pitch; weights of the same type packed by `direct.pack`; an elementwise tree over the float32
sums with its operands. Out: an image of the same kind, any pitch. The pixels of an output plane are one list
of tiles, so a tile may run over the end of a row: every pixel of a tile has its own address. A tap that falls
outside the image reads zeros in its place. All sizes are run-time arguments; few kernels serve a model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace

from ....records import dataclass
from ...write.body import Body
from ...write.emit import F32, I8, I64, PTR, V, vec
from ...write.expr import BYTES, LLVM, Expr
from ...write.template import OUTSIDE, template
from ...write.tile import Operand, as_float, joined, tile, widens
from ...write.vmath import any_lane
from .epilogue import PixelEpilogue, inside

CELLS = (
    "x:ptr w:ptr y:ptr panels:i64 groups:i64 blocks:i64 per_block:i64 tiles:i64 per_row:i64 full:i64 "
    "depth:i64 width:i64 high:i64 wide:i64 deep:i64 kd:i64 kh:i64 kw:i64 run:i64 sd:i64 sh:i64 sw:i64 "
    "dd:i64 dh:i64 dw:i64 "
    "pd:i64 ph:i64 pw:i64 cout:i64 xn:i64 xd:i64 xh:i64 xw:i64 xg:i64 td:i64 th:i64 tw:i64 "
    "yn:i64 yd:i64 yh:i64 yw:i64 chunk:i64")
_KEPT = 10
"""Addresses of a tile's pixels that stay in registers over the steps written out; the rest is read again."""

Inner = Callable[..., list[V]]
Fetch = Callable[[V, int], None] | int


@dataclass(frozen=True, slots=True)
class TileForm:
    """What `conv_tiles` is written for.

    `heights`: pixels of a tall tile and of a low one; `cols`: registers of output channels; `tail`: the last
    panel of channels is not full. A tap is `run` elements of K; `rolled` (rows, run) writes a plane of taps
    out instead of looping, (0, 0) loops. `even`: every row of the output is divided into `per_row` tiles, of
    which the first `full` have heights[0] pixels and the others heights[-1]; else the whole plane is.
    `edges`: taps may fall outside; scratch is `run` floats then. `trims`: with `even`, a tap may miss the
    image at a tile's first or last pixel, not at both nor at more; else, with `even`, at none. `ahead`: K
    steps that weights are fetched ahead; `share`: every tile fetches 1 / 2^(share - 1) of the next panel into
    the second cache, none for 0. `parts`: what is summed by itself before it is added to the rest, so that
    errors of long sums stay small: the "row"s of a kernel, "chunk"s of `chunk` elements of a tap, or "none".
    `merged`: groups share a panel, and the first cell behind `CELLS`, `status`, becomes `OUTSIDE` where a sum
    is not finite: numbers of one group, times the zeros that the others have for them, may have made it so.
    """

    dtype: str
    heights: tuple[int, ...]
    cols: int
    rolled: tuple[int, int]
    even: bool
    trims: bool
    edges: bool
    tail: bool
    ahead: int
    share: int
    parts: str
    merged: bool = False


@template(CELLS, together=True)
def conv_tiles(f: Body, c: SimpleNamespace, *, form: TileForm, tree: Expr | None,
               operands: tuple[Operand, ...]) -> None:
    """Item ((image·depth + plane)·blocks + block)·groups·panels + group·panels + panel: one panel of output
    channels over one block of tiles."""
    shared = _Kernel(f, c, form, PixelEpilogue(f, tree, operands, len(CELLS.split()) + form.merged))
    f.loop(f.lo, f.hi, 1, [], lambda i: _Panel(shared, i).write())


class _Kernel:
    """What all items share: the cells, what is written for, and memory for a tile."""

    def __init__(self, f: Body, c: SimpleNamespace, form: TileForm, finish: PixelEpilogue) -> None:
        self.f, self.c, self.form, self.finish = f, c, form, finish
        self.elem, self.size = LLVM[form.dtype], BYTES[form.dtype]
        self.wide_panel = form.cols * f.machine.lanes()
        self.lanes, self.cols = joined(f.machine, form.cols, widens(f.machine, form.dtype, form.dtype))
        self.count = 16 if form.heights[0] > 8 else 8
        self.places = f.alloca(I64, self.count)
        self.outs = [f.alloca(I64, self.count) for _ in range(1 + len(finish.operands))]
        self.room = f.alloca(vec(F32, self.lanes), form.heights[0] * self.cols)
        self.totals = f.alloca(vec(F32, self.lanes), form.heights[0] * self.cols)
        self.steps = f.const(vec(I64, self.count), list(range(self.count)))
        self.panel_size = c.kd * c.kh * c.kw * c.run * self.wide_panel
        self.zeros = f.cast(f.scratch, I64)
        if form.edges:
            f.loop(0, c.run, 1, [], lambda i: f.store(f.const(self.elem, 0.0), f.scratch, i))

    def gather(self, rows: int, offset: V, b: V, run: V, acc: Sequence[V], prefetch: Fetch) -> list[V]:
        """acc[r * cols + c] += sum over k of pixel r's element offset + k times b's row k; pixel r's address
        is `places[r]`."""
        f, lanes, cols, elem, wide = self.f, self.lanes, self.cols, self.elem, self.wide_panel

        def steps(count: int) -> Inner:
            def body(k: V, b: V, *acc: V) -> list[V]:
                total = list(acc)
                kept = [f.load(PTR, self.places, r, 8) for r in range(min(rows, _KEPT))]
                for u in range(count):
                    row = [as_float(f, f.load(vec(elem, lanes), b, u * wide + j * lanes))
                           for j in range(cols)]
                    if callable(prefetch):
                        prefetch(f.gep(b, u * wide, elem), u)
                    elif prefetch:
                        for j in range(0, wide, 64 // self.size):
                            f.prefetch(b, (u + prefetch) * wide + j, elem)
                    for r in range(rows):
                        base = kept[r] if r < len(kept) else f.load(PTR, self.places, r, 8)
                        a = as_float(f, f.splat(f.load(elem, f.gep(base, k, elem), u), lanes))
                        for j in range(cols):
                            total[r * cols + j] = f.fma(a, row[j], total[r * cols + j])
                    f.fence()
                return [f.gep(b, count * wide, elem), *total]
            return body
        whole = offset + (run & -4)
        state = f.loop(offset, whole, 4, [b, *acc], steps(4))
        return f.loop(whole, offset + run, 1, state, steps(1))[1:]


class _Panel:
    """One item: a panel of output channels over a block of tiles of one plane."""

    def __init__(self, k: _Kernel, i: V) -> None:
        f, c = k.f, k.c
        self.k, self.f, self.c, self.form = k, f, c, k.form
        rest = i // c.panels
        panel = i - rest * c.panels
        q = rest // c.groups
        group = rest - q * c.groups
        plane = q // c.blocks
        self.block = q - plane * c.blocks
        image = plane // c.depth
        z = plane - image * c.depth
        self.weights = f.gep(c.w, (group * c.panels + panel) * k.panel_size, k.elem)
        channel = panel * k.wide_panel
        first_z = z * c.sd - c.pd
        self.front: V
        self.back: V
        self.front, self.back = (inside(f, first_z, c.dd, c.kd, c.deep) if k.form.edges
                                 else (f.i64(0), c.kd))
        self.x = f.gep(c.x, image * c.xn + first_z * c.xd - c.ph * c.xh - c.pw * c.xw + group * c.xg, k.elem)
        self.y = f.gep(c.y, (image * c.yn + z * c.yd + group * c.cout + channel) * BYTES[k.finish.dtype], I8)
        self.sides = k.finish.place(image, z, group * c.cout + channel)
        self.masks = [f.mask(k.lanes, c.cout - channel - j * k.lanes) if k.form.tail else None
                      for j in range(k.cols)]
        self.zero = f.zero(vec(F32, k.lanes))

    def write(self) -> None:
        """The tiles of the block."""
        f, c = self.f, self.c
        begin = self.block * c.per_block
        end = f.minimum(begin + c.per_block, c.tiles)
        tall, low = self.form.heights[0], self.form.heights[-1]

        def in_row(t: V) -> None:
            oy = t // c.per_row
            at = t - oy * c.per_row
            if low == tall:
                self.regular(t, tall, oy, at * tall)
            else:
                f.when(at < c.full, lambda: self.regular(t, tall, oy, at * tall),
                       lambda: self.regular(t, low, oy, c.full * tall + (at - c.full) * low))
        if self.form.even:
            f.loop(begin, end, 1, [], in_row)
            return
        f.loop(begin, f.minimum(end, c.full), 1, [], lambda t: self.odd(t, tall, t * tall))
        if low != tall:
            f.loop(f.maximum(begin, c.full), end, 1, [],
                   lambda t: self.odd(t, low, c.full * tall + (t - c.full) * low))

    # sums

    def summed(self, size: int, acc: Sequence[V], level: str, inner: Inner) -> list[V]:
        """`inner` of the sums so far; of zeros, then added to `totals`, where `level` is what is summed by
        itself."""
        if self.form.parts != level:
            return inner(*acc)
        f, totals, lanes = self.f, self.k.totals, self.k.lanes
        for i, part in enumerate(inner(*[self.zero] * size)):
            before = f.load(part.ty, totals, i * lanes, lanes * 4)
            f.store(before + part, totals, i * lanes, lanes * 4)
        return []

    def finish(self, rows: int, inner: Inner, address: Callable[[int, int | V], V]) -> None:
        """The pixels of a tile: `inner` over depth, then what ends them."""
        f, k, size = self.f, self.k, rows * self.k.cols
        if self.form.parts == "none":
            acc = f.loop(self.front, self.back, 1, [self.zero] * size, inner)
            self.tell(acc)
            k.finish.tile(acc, rows, address, self.sides, self.masks, k.room)
            return
        f.loop(0, size, 1, [], lambda i: f.store(self.zero, k.totals, i * k.lanes, k.lanes * 4))
        f.loop(self.front, self.back, 1, [], inner)
        if self.form.merged:
            self.tell([f.load(self.zero.ty, k.totals, i * k.lanes, k.lanes * 4) for i in range(size)])
        k.finish.stored(k.totals, self.zero.ty, rows, address, self.sides, self.masks)

    def tell(self, sums: Sequence[V]) -> None:
        """Whether sums of several groups are not finite."""
        if not self.form.merged:
            return
        f, spoiled = self.f, self.zero
        for x in sums:
            spoiled = f.fma(x, self.zero, spoiled)
        f.when(any_lane(f, ~spoiled.eq(self.zero)),
               lambda: f.store(f.i64(OUTSIDE), f.arg(len(CELLS.split()), PTR)))

    def chunked(self, size: int, acc: Sequence[V], inner: Inner) -> list[V]:
        """A tap: `inner` of where a chunk begins, its length and sums."""
        f, c = self.f, self.c
        if self.form.parts != "chunk":
            return inner(f.i64(0), c.run, *acc)
        f.loop(0, c.run, c.chunk, [], lambda k: self.summed(
            size, [], "chunk", lambda *acc: inner(k, f.minimum(c.run - k, c.chunk), *acc)))
        return []

    def fetch(self, t: V) -> Fetch:
        """What a step of K fetches."""
        f, k, ahead, share = self.f, self.k, self.form.ahead, self.form.share
        if not share:
            return ahead
        coming = f.cast(self.weights, I64) + (k.panel_size * k.size
                                              + (t % (1 << share - 1)) * (k.panel_size * k.size >> share - 1))
        start = f.cast(self.weights, I64)

        def step(row: V, u: int) -> None:
            if ahead:
                for j in range(0, k.wide_panel, 64 // k.size):
                    f.prefetch(row, ahead * k.wide_panel + j, k.elem)
            step = k.wide_panel * k.size >> share - 1
            if u * step % 64 == 0:
                here = coming + ((f.cast(row, I64) - start) >> share - 1)
                for line in range(0, max(step, 64), 64):
                    f.prefetch(f.cast(here, PTR), line, level=2)
        return step

    # tiles

    def regular(self, t: V, rows: int, oy: V, ox: V) -> None:
        """A tile within a row of the output: its pixels lie evenly."""
        f, c, k, form = self.f, self.c, self.k, self.form
        start = f.gep(self.x, oy * (c.sh * c.xh) + ox * (c.sw * c.xw), k.elem)
        a_row, size = c.sw * c.xw, rows * k.cols

        def written_out(jz: V, *acc: V) -> list[V]:
            total, (high, run) = list(acc), form.rolled
            b = f.gep(self.weights, jz * (high * run * k.wide_panel), k.elem)
            for jy in range(high):
                total = tile(f, rows, k.cols, f.gep(start, jz * c.td + jy * c.th, k.elem), a_row,
                             f.gep(b, jy * run * k.wide_panel, k.elem), k.wide_panel, run, total,
                             a_type=k.elem, b_type=k.elem)
            return total

        def taps(jz: V, *acc: V) -> list[V]:
            def over_y(jy: V, *acc: V) -> list[V]:
                return self.summed(size, acc, "row", lambda *acc: f.loop(
                    0, c.kw, 1, acc,
                    lambda jx, *acc: self._tap(t, rows, ox, start, a_row, (jz, jy, jx), acc)))
            if not form.edges:
                return f.loop(0, c.kh, 1, acc, over_y)
            from_y, to_y = inside(f, oy * c.sh - c.ph, c.dh, c.kh, c.high)
            return f.loop(from_y, to_y, 1, acc, over_y)
        bases = [f.gep(self.y, (oy * c.yh + ox * c.yw) * BYTES[k.finish.dtype], I8)]
        sizes = [c.yw * BYTES[k.finish.dtype]]
        for base, (_, _, row, pixel), o in self._operands():
            bases.append(f.gep(base, (oy * row + ox * pixel) * BYTES[o.dtype], I8))
            sizes.append(pixel * BYTES[o.dtype])
        self.finish(rows, written_out if form.rolled[0] else taps,
                    lambda i, r: f.gep(bases[i], sizes[i] * r, I8))

    def _tap(self, t: V, rows: int, ox: V, start: V, a_row: V, at: tuple[V, V, V], acc: Sequence[V]
             ) -> list[V]:
        """One tap of a tile within a row, cut at the image's border where tiles are trimmed."""
        f, c, k = self.f, self.c, self.k
        jz, jy, jx = at
        fetch = self.fetch(t)

        def piece(begin: V, length: V, *acc: V) -> list[V]:
            b = f.gep(self.weights, (((jz * c.kh + jy) * c.kw + jx) * c.run + begin) * k.wide_panel, k.elem)
            a = f.gep(start, jz * c.td + jy * c.th + jx * c.tw + begin, k.elem)

            def part(a: V, first: int, last: int) -> list[V]:
                mid = tile(f, last - first, k.cols, a, a_row, b, k.wide_panel, length,
                           acc[first * k.cols:last * k.cols], prefetch=fetch, a_type=k.elem, b_type=k.elem)
                return [*acc[:first * k.cols], *mid, *acc[last * k.cols:]]
            if not self.form.trims:
                return part(a, 0, rows)
            left = ox * c.sw - c.pw + jx * c.dw
            return f.when((left >= 0) & (left + (rows - 1) * c.sw < c.wide), lambda: part(a, 0, rows),
                          lambda: f.when(left < 0, lambda: part(f.gep(a, a_row, k.elem), 1, rows),
                                         lambda: part(a, 0, rows - 1)))
        return self.chunked(rows * k.cols, acc, piece)

    def odd(self, t: V, rows: int, first: V) -> None:
        """A tile that may run over the end of a row: every pixel has its own address."""
        f, c, k = self.f, self.c, self.k
        oy0 = first // c.width
        ox0 = first - oy0 * c.width
        wraps = (ox0 + (rows - 1)) // c.width

        def wrap(_: V, ox: V, oy: V) -> tuple[V, V]:
            over = ox >= c.width
            return f.select(over, ox - c.width, ox), f.select(over, oy + 1, oy)
        ox, oy = f.loop(0, wraps, 1, [k.steps + ox0, f.splat(oy0, k.count)], wrap)
        at = f.cast(self.x, I64) + (oy * (c.sh * c.xh) + ox * (c.sw * c.xw)) * k.size
        f.store(at, k.places, 0, 64)
        _addresses(f, k.outs[0], self.y, oy * c.yh + ox * c.yw, k.finish.dtype)
        for slot, (base, (_, _, row, pixel), o) in zip(k.outs[1:], self._operands(), strict=True):
            if o.row:
                _addresses(f, slot, base, oy * row + ox * pixel, o.dtype)
        outside: V | None = None
        from_y, to_y = f.i64(0), c.kh
        iy, ix = oy * c.sh - c.ph, ox * c.sw - c.pw
        if self.form.edges:
            spread = wraps > 0
            top, bottom = oy0 * c.sh - c.ph, (oy0 + wraps) * c.sh - c.ph
            left = f.select(spread, 0, ox0) * c.sw - c.pw
            right = f.select(spread, c.width - 1, ox0 + (rows - 1)) * c.sw - c.pw + (c.kw - 1) * c.dw
            outside = (top < 0) | (bottom + (c.kh - 1) * c.dh >= c.high) | (left < 0) | (right >= c.wide)
            from_y, to_y = f.when(outside, lambda: (inside(f, bottom, c.dh, c.kh, c.high)[0],
                                                    inside(f, top, c.dh, c.kh, c.high)[1]),
                                  lambda: (from_y, to_y))

        def tap(jz: V, jy: V, jx: V, acc: Sequence[V]) -> list[V]:
            offset = jz * c.td + jy * c.th + jx * c.tw
            b = f.gep(self.weights, ((jz * c.kh + jy) * c.kw + jx) * c.run * k.wide_panel, k.elem)
            fetch = self.fetch(t)
            if outside is not None:
                def move() -> None:
                    cy, cx = iy + jy * c.dh, ix + jx * c.dw
                    ok = (f.compare("lt", cy, c.high, True)) & (f.compare("lt", cx, c.wide, True))
                    away = f.splat(k.zeros - offset * k.size, k.count)
                    f.store(f.select(ok, at, away), k.places, 0, 64)
                f.when(outside, move)
            return self.chunked(rows * k.cols, acc, lambda begin, length, *acc: k.gather(
                rows, offset + begin, f.gep(b, begin * k.wide_panel, k.elem), length, acc, fetch))

        def over_z(jz: V, *acc: V) -> list[V]:
            return f.loop(from_y, to_y, 1, acc, lambda jy, *acc: self.summed(
                rows * k.cols, acc, "row",
                lambda *acc: f.loop(0, c.kw, 1, acc, lambda jx, *acc: tap(jz, jy, jx, acc))))
        self.finish(rows, over_z, lambda i, r: f.load(PTR, k.outs[i], r, 8))

    def _operands(self) -> list[tuple[V, list[V], Operand]]:
        """Each operand of the tree: its address in this plane, its strides, its kind."""
        finish = self.k.finish
        return list(zip(self.sides, finish.strides, finish.operands, strict=True))


def _addresses(f: Body, slot: V, base: V, index: V, dtype: str) -> None:
    f.store(f.splat(f.cast(base, I64), index.lanes) + index * BYTES[dtype], slot, 0, 64)
