"""Convolution to few channels, over images whose rows lie next to each other: lanes are pixels of a row.

In: images (N, C, H, W) of float32 with their margins, any pitch but from pixel to pixel; weights packed by
`PlanesPlan.pack`; an elementwise tree over the sums, whose operands are a number for each channel or one for
all. Out: images of the same kind. Some channels and some vectors of a row are summed at once, so that what is
read of an image serves all of these channels; long sums are sums of parts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod

import numpy as np

from ....records import dataclass
from ....shapes.symbolic import choice
from ...machines.machine import Machine
from ...runtime.call_kernel import aligned
from ...write.body import Body
from ...write.emit import F32, I64, PTR, V, vec
from ...write.expr import LLVM, Expr
from ...write.spec import Spec
from ...write.template import template
from ..rows import closed, positions
from .geometry import CHUNK, Geometry

MOST = 4
"""Channels that are summed at once."""


@dataclass(frozen=True, slots=True)
class PlanesPlan:
    """How `conv_planes` does a geometry without margins: `outs` channels by `vectors` of pixels at once, in
    sums of `parts`: channels, rows and taps of a row."""

    geometry: Geometry
    outs: int
    vectors: int
    ragged: bool
    parts: tuple[int, int, int]
    lanes: int

    @property
    def blocks(self) -> tuple[int, int]:
        """Of channels, and of pixels of a row."""
        return -(-self.geometry.cout // self.outs), -(-self.geometry.out[2] // (self.vectors * self.lanes))

    @property
    def items(self) -> int:
        g = self.geometry
        return g.batch * g.groups * prod(self.blocks) * g.out[1]

    def spec(self, tree: Expr | None, operands: Sequence[str]) -> Spec:
        """The kernel, for operands of these types."""
        g = self.geometry
        whole = self.parts == (g.cin, *g.kernel[1:])
        return conv_planes(outs=self.outs, vectors=self.vectors, ragged=self.ragged,
                           tail=g.cout % self.outs != 0, parts=not whole, tree=tree, operands=tuple(operands))

    def cells(self, x_strides: Sequence[int], y_strides: Sequence[int]) -> list[int]:
        """The cells behind x, w and y. Strides in elements: (image, channel, row)."""
        g, (blocks, along) = self.geometry, self.blocks
        xn, xc, xh = x_strides
        return [g.groups, blocks, g.out[1], along, g.out[2], g.cout, g.cin, *g.kernel[1:], *self.parts,
                xn, g.cin * xc, g.strides[1] * xh, xc, g.dilations[1] * xh, g.dilations[2], *y_strides]

    def pack(self, w: np.ndarray) -> np.ndarray:
        """Weights [Cout, Cin per group, 1, H, W] as [group][block][cin][H][W][outs], zeros behind the last
        channel."""
        g, (blocks, _) = self.geometry, self.blocks
        made = aligned((g.groups, blocks, g.cin, *g.kernel[1:], self.outs), "float32")
        made[...] = 0
        apart = w.reshape(g.groups, g.cout, g.cin, *g.kernel[1:])
        for i in range(g.cout):
            made[:, i // self.outs, ..., i % self.outs] = apart[:, i]
        return made


@choice()
def plan(g: Geometry, machine: Machine) -> PlanesPlan:
    """For a geometry of one deep, whose rows have stride 1 and whose taps all lie inside."""
    lanes, (_, high, wide) = machine.lanes(4), g.kernel
    outs = -(-g.cout // -(-g.cout // MOST))
    most = {1: 8, 2: 6}.get(outs, 4) if machine.registers >= 32 else {1: 6, 2: 4}.get(outs, 2)
    row = -(-g.out[2] // lanes)
    vectors = min(range(1, min(most, row) + 1), key=lambda v: (-(-row // v) * (v + 1), -v))
    parts = (g.cin, high, wide)
    if prod(parts) > CHUNK * 3 // 2:
        taps = high * wide
        parts = ((max(1, CHUNK // taps), high, wide) if taps <= CHUNK else
                 (1, max(1, CHUNK // wide), min(wide, CHUNK)))
    return PlanesPlan(g, outs, vectors, g.out[2] % (lanes * vectors) != 0, parts, lanes)


@template("x:ptr w:ptr y:ptr")
def conv_planes(f: Body, x: V, w: V, y: V, *, outs: int, vectors: int, ragged: bool, tail: bool, parts: bool,
                tree: Expr | None, operands: tuple[str, ...]) -> None:
    """`outs` channels by `vectors` of pixels to an item. `ragged`: rows end within an item; `tail`: channels
    do; `parts`: sums are made of parts. Cells: see `PlanesPlan.cells`; then per operand its address and its
    stride from channel to channel."""
    counted = iter(range(3, 1 << 10))

    def cell(ty: str = I64) -> V:
        return f.arg(next(counted), ty)

    groups, blocks, rows, along, length, channels = (cell() for _ in range(6))
    ends, each = [cell() for _ in range(3)], [cell() for _ in range(3)]
    xn, xg, xh, *steps = (cell() for _ in range(6))
    yn, yc, yh = (cell() for _ in range(3))
    given = [(dtype, cell(PTR), cell()) for dtype in operands]
    lanes = f.machine.lanes(4)
    ty = vec(F32, lanes)
    zero = [f.zero(ty)] * (outs * vectors)
    taps = ends[0] * ends[1] * ends[2]

    def item(_: V, at: Sequence[V]) -> None:
        image, group, block, row, column = at
        first = column * (lanes * vectors)
        masks = [f.mask(lanes, f.minimum(length - first - v * lanes, lanes)) if ragged else None
                 for v in range(vectors)]
        source = f.gep(x, image * xn + group * xg + row * xh + first, F32)
        weights = f.gep(w, (group * blocks + block) * taps * outs, F32)

        def tap(channel: V, high: V, wide: V, *now: V) -> list[V]:
            pixels = f.gep(source, channel * steps[0] + high * steps[1] + wide * steps[2], F32)
            mine = f.gep(weights, ((channel * ends[1] + high) * ends[2] + wide) * outs, F32)
            read = [f.load(ty, pixels, v * lanes) if m is None else f.load_masked(ty, pixels, v * lanes, m)
                    for v, m in enumerate(masks)]
            return [f.fma(f.splat(f.load(F32, mine, o), lanes), pixel, now[o * vectors + v])
                    for o in range(outs) for v, pixel in enumerate(read)]

        def part(begin: Sequence[V], end: Sequence[V]) -> list[V]:
            return _nested(f, begin, end, [f.i64(1)] * 3, zero, tap)

        def joined(*place: V) -> list[V]:
            begin, total = place[:3], place[3:]
            made = part(begin, [f.minimum(b + n, e) for b, n, e in zip(begin, each, ends, strict=True)])
            return [t + m for t, m in zip(total, made, strict=True)]
        start = [f.i64(0)] * 3
        sums = _nested(f, start, ends, each, zero, joined) if parts else part(start, ends)

        def put(o: int) -> None:
            channel = group * channels + block * outs + o
            target = f.gep(y, image * yn + channel * yc + row * yh + first, F32)
            rest = [f.splat(f.load(LLVM[dtype], base, channel * step), lanes) for dtype, base, step in given]
            for v, mask in enumerate(masks):
                value = sums[o * vectors + v]
                if tree is not None:
                    value = closed(f, tree, value, "float32", lambda i: rest[i - 1])
                if mask is None:
                    f.store(value, target, v * lanes)
                else:
                    f.store_masked(value, target, v * lanes, mask)
        for o in range(outs):
            if tail and o:
                f.when(block * outs + o < channels, partial(put, o))
            else:
                put(o)
    positions(f, [groups, blocks, rows, along], item)


def _nested(f: Body, begin: Sequence[V], end: Sequence[V], step: Sequence[V], carried: Sequence[V],
            body: Callable[..., Sequence[V]]) -> list[V]:
    """`carried` = body(*place, *carried) for all places between `begin` and `end`, the last counted first."""
    def inner(depth: int, place: Sequence[V], now: Sequence[V]) -> list[V]:
        if depth == len(begin):
            return list(body(*place, *now))
        return f.loop(begin[depth], end[depth], step[depth], now,
                      lambda i, *more: inner(depth + 1, [*place, i], more))
    return inner(0, [], carried)
