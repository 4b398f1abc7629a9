"""3x3 convolution of stride 1 by Winograd's F(2x2, 3x3) and F(4x4, 3x3), over channels-last images.

A tile is m x m output pixels and the (m + 2) x (m + 2) input pixels they depend on. In: an image (N, C, H, W)
of float32 whose channels are adjacent; weights packed by `WinogradPlan.pack`; an elementwise tree over the
results with its operands. Out: an image of the same kind. Three phases: V = B'dB per tile and channel, one
product M = V·U per position of a tile, and y = A'MA. Where U stays near, one kernel does them block by block
of tiles; where it has to be streamed, each phase is a kernel over the whole image, so that U is read once.
The result differs from the exact one by less than 1e-6 (m = 2) or 5e-6 (m = 4) of the largest output nearby.
Where an output of a tile is not finite, or beyond 2 ** 40, the cell `status` becomes `OUTSIDE`: what a pixel
of the tile holds may then show in outputs that do not depend on it, and the image is to be convolved
directly.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ....records import dataclass
from ....shapes.symbolic import choice
from ...machines.machine import Machine
from ...runtime.call_kernel import aligned
from ...write.body import Body
from ...write.emit import F32, I8, I64, PTR, V, vec
from ...write.expr import BYTES, Expr
from ...write.spec import Spec
from ...write.template import OUTSIDE, template
from ...write.tile import Operand, joined, shapes, tile
from ...write.vmath import any_lane
from .epilogue import PixelEpilogue
from .geometry import CHUNK, Geometry, chunk_of, tile_cols

_A, _B = 0.75, 1.5
"""Points of F(4x4) beside 0 and infinity, each with both signs: exact, and a quarter of the error of 1 and
2."""


def _at(p: float, q: float) -> list[list[float]]:
    """The rows of G for the points p and -p, q and -q being the others."""
    n = 2 * p ** 2 * (p ** 2 - q ** 2)
    return [[1 / n, p / n, p ** 2 / n], [1 / n, -p / n, p ** 2 / n]]


_G = {2: [[1, 0, 0], [.5, .5, .5], [.5, -.5, .5], [0, 0, 1]],
      4: [[1 / (_A * _B) ** 2, 0, 0], *_at(_A, _B), *_at(_B, _A), [0, 0, 1]]}
_MANY = 64
"""Input channels from which on tiles of 4 are used."""

_MOST = 32 << 20
"""Bytes that V and M may take for a whole image."""

_GAP = 64
"""Elements between planes, so that positions of a tile do not fall on the same cache sets."""

_SQUARES = 2.0 ** 80
"""Sum of a tile's squared outputs from which on a transform is not good."""

_SAMPLE = 256
"""Weights that mostly tell by themselves what all of them are like."""

CELLS = ("x:ptr u:ptr y:ptr v:ptr m:ptr status:ptr tiles:i64 block:i64 across:i64 down:i64 cin:i64 cout:i64 "
         "high:i64 wide:i64 ph:i64 pw:i64 oh:i64 ow:i64 xn:i64 xh:i64 xw:i64 yn:i64 yh:i64 yw:i64 "
         "chunk:i64")


def _into(f: Body, m: int, d: Sequence[V]) -> list[V]:
    """B'd of one row or column."""
    if m == 2:
        return [d[0] - d[2], d[1] + d[2], d[2] - d[1], d[1] - d[3]]
    both, product = _A ** 2 + _B ** 2, (_A * _B) ** 2
    even_a, odd_a = f.fma(d[2], -_B ** 2, d[4]), f.fma(d[1], -_B ** 2, d[3])
    even_b, odd_b = f.fma(d[2], -_A ** 2, d[4]), f.fma(d[1], -_A ** 2, d[3])
    first, last = f.fma(d[2], -both, d[4]), f.fma(d[3], -both, d[5])
    return [f.fma(d[0], product, first), f.fma(odd_a, _A, even_a), f.fma(odd_a, -_A, even_a),
            f.fma(odd_b, _B, even_b), f.fma(odd_b, -_B, even_b), f.fma(d[1], product, last)]


def _out_of(f: Body, m: int, d: Sequence[V]) -> list[V]:
    """A'd of one row or column."""
    if m == 2:
        return [d[0] + d[1] + d[2], d[1] - d[2] - d[3]]
    s, t, p, q = d[1] + d[2], d[1] - d[2], d[3] + d[4], d[3] - d[4]
    return [d[0] + s + p, f.fma(q, _B, t * _A), f.fma(p, _B ** 2, s * _A ** 2),
            f.fma(q, _B ** 3, f.fma(t, _A ** 3, d[5]))]


class _Phases:
    """The three phases over blocks of tiles; `cells` are the kernel's arguments by name."""

    def __init__(self, f: Body, cells: dict[str, V], side: int, cols: int, rows: int, ragged: bool,
                 tails: bool, chunked: bool, ahead: int, tree: Expr | None,
                 operands: Sequence[Operand]) -> None:
        self.f, self.c, self.side, self.cols, self.rows = f, cells, side, cols, rows
        self.ragged, self.tails, self.chunked = ragged, tails, chunked
        self.ahead, self.n = ahead, side + 2
        self.lanes = f.machine.lanes(4)
        self.ty = vec(F32, self.lanes)
        self.finish = PixelEpilogue(f, tree, operands, len(CELLS.split()))
        cin, cout, block = cells["cin"], cells["cout"], cells["block"]
        wide = cols * self.lanes
        self.panels = (cout + (wide - 1)) // wide
        self.v_row = (cin + (self.lanes - 1)) // self.lanes * self.lanes + 16
        self.m_row = self.panels * wide + 16
        self.v_plane, self.m_plane = block * self.v_row + _GAP, block * self.m_row + _GAP
        self.room = f.alloca(self.ty, side * side) if self._looped else None

    @property
    def _looped(self) -> bool:
        tree = self.finish.tree
        return tree is not None and tree.instructions * self.side ** 2 > 160

    def where(self, tile: V) -> tuple[V, V, V]:
        """Image, row and column of tiles."""
        across, down = self.c["across"], self.c["down"]
        rest = tile // across
        image = rest // down
        return image, rest - image * down, tile - rest * across

    def take(self, tile: V, slot: V, v: V, zeros: V, places: V) -> None:
        """The input of `tile`, transformed, into row `slot` of V."""
        f, c, n, lanes = self.f, self.c, self.n, self.lanes
        image, ty, tx = self.where(tile)
        iy, ix = ty * self.side - c["ph"], tx * self.side - c["pw"]
        steps = f.const(vec(I64, 8), list(range(8)))
        columns = steps + ix
        inside = f.compare("lt", columns, c["wide"], True)
        offsets = columns * (c["xw"] * 4)
        for y in range(n):
            row = f.cast(f.gep(c["x"], image * c["xn"] + (iy + y) * c["xh"], F32), I64)
            ok = inside & f.splat(f.compare("lt", iy + y, c["high"], True), 8)
            f.store(f.select(ok, offsets + row, f.splat(f.cast(zeros, I64), 8)), places, y * 8, 64)

        def vector(ch: V) -> None:
            mask = f.mask(lanes, c["cin"] - ch) if self.tails else None
            half = []
            for x in range(n):
                column = []
                for y in range(n):
                    at = f.load(PTR, places, y * 8 + x, 8)
                    column.append(f.load_masked(self.ty, f.gep(at, ch, F32), 0, mask))
                half.append(_into(f, self.side, column))
            out = f.gep(v, slot * self.v_row + ch, F32)
            for y in range(n):
                for x, value in enumerate(_into(f, self.side, [half[x][y] for x in range(n)])):
                    f.store(value, out, self.v_plane * (y * n + x))
        f.loop(0, c["cin"], lanes, [], vector)

    def multiply(self, position: V, panel: V, count: V, v: V, m: V) -> None:
        """One panel of output channels at one position of `count` tiles."""
        f, rows = self.f, self.rows
        lanes, cols = joined(f.machine, self.cols)
        ty, wide, cin = vec(F32, lanes), cols * lanes, self.c["cin"]
        b = f.gep(self.c["u"], (position * self.panels + panel) * (cin * wide), F32)
        source = f.gep(v, position * self.v_plane, F32)
        target = f.gep(m, position * self.m_plane + panel * wide, F32)

        def group(i: V) -> None:
            first = f.minimum(i * rows, count - rows)
            places = [((first + r) * self.m_row + j * lanes) for r in range(rows) for j in range(cols)]
            zeros = [f.zero(ty)] * len(places)

            def summed(k: V | int, length: V) -> list[V]:
                return tile(f, rows, cols, f.gep(source, first * self.v_row + k, F32), self.v_row,
                            f.gep(b, k * wide, F32), wide, length, zeros, prefetch=self.ahead)

            def chunk(k: V) -> None:
                sums = summed(k, f.minimum(cin - k, self.c["chunk"]))
                for place, value in zip(places, sums, strict=True):
                    f.store(f.load(ty, target, place) + value, target, place)
            for place, value in zip(places, zeros if self.chunked else summed(0, cin), strict=True):
                f.store(value, target, place)
            if self.chunked:
                f.loop(0, cin, self.c["chunk"], [], chunk)
        f.loop(0, (count + (rows - 1)) // rows, 1, [], group)

    def give(self, tile: V, slot: V, m: V) -> None:
        """Row `slot` of M, transformed, into the output."""
        f, c, n, side, lanes, finish = self.f, self.c, self.n, self.side, self.lanes, self.finish
        image, ty, tx = self.where(tile)
        oy, ox = ty * side, tx * side
        size = BYTES[finish.dtype]
        target = f.gep(c["y"], (image * c["yn"] + oy * c["yh"] + ox * c["yw"]) * size, I8)

        def vector(ch: V) -> None:
            mask = f.mask(lanes, c["cout"] - ch) if self.tails else None
            source = f.gep(m, slot * self.m_row + ch, F32)
            half = [_out_of(f, side, [f.load(self.ty, source, self.m_plane * (y * n + x)) for y in range(n)])
                    for x in range(n)]
            sides = finish.place(image, f.i64(0), ch)
            fixed = finish.fixed(sides, lanes, [mask])
            out = f.gep(target, ch * size, I8)

            def put(value: V, dy: int | V, dx: int | V) -> None:
                bases = finish.at(sides, oy + dy, ox + dx)
                at = f.gep(out, (c["yh"] * dy + c["yw"] * dx) * size, I8)
                if self.ragged:
                    f.when((oy + dy < c["oh"]) & (ox + dx < c["ow"]),
                           lambda: finish.pixel([value], fixed, bases, at, [mask]))
                else:
                    finish.pixel([value], fixed, bases, at, [mask])

            def stored(r: V) -> None:
                assert self.room is not None
                put(f.load(self.ty, self.room, r * lanes, lanes * 4), r // side, r % side)
            squares = f.zero(self.ty)
            for dy in range(side):
                for dx, value in enumerate(_out_of(f, side, [half[x][dy] for x in range(n)])):
                    squares = f.fma(value, value, squares)
                    if self.room is None:
                        put(value, dy, dx)
                    else:
                        f.store(value, self.room, (dy * side + dx) * lanes, lanes * 4)
            if self.room is not None:
                f.loop(0, side * side, 1, [], stored)
            f.when(any_lane(f, ~f.compare("lt", squares, _SQUARES)),
                   lambda: f.store(f.i64(OUTSIDE), c["status"]))
        f.loop(0, c["cout"], lanes, [], vector)


def _written(write: Callable[[Body, _Phases, dict[str, V]], None]) -> Callable[..., None]:
    names = [cell.partition(":")[0] for cell in CELLS.split()]

    def body(f: Body, **given: Any) -> None:
        cells = {name: given.pop(name) for name in names}
        write(f, _Phases(f, cells, **given), cells)
    body.__name__ = write.__name__
    return body


def _zeros(f: Body, count: V) -> V:
    f.loop(0, count, 1, [], lambda i: f.store(f.const(F32, 0.0), f.scratch, i))
    return f.scratch


@template(CELLS)
@_written
def winograd_blocks(f: Body, p: _Phases, c: dict[str, V]) -> None:
    """Item: a block of tiles, all three phases. Scratch: zeros for a pixel, V and M."""
    zeros, places = _zeros(f, c["cin"]), f.alloca(I64, 64)
    v = f.gep(f.scratch, (c["cin"] + 15) // 16 * 16, F32)
    m = f.gep(v, p.v_plane * p.n ** 2, F32)

    def item(i: V) -> None:
        first = f.minimum(i * c["block"], c["tiles"] - c["block"])
        count = c["block"]
        f.loop(0, count, 1, [], lambda t: p.take(first + t, t, v, zeros, places))

        def position(at: V) -> None:
            f.loop(0, p.panels, 1, [], lambda q: p.multiply(at, q, count, v, m))
        f.loop(0, p.n ** 2, 1, [], position)
        f.loop(i * c["block"] - first, count, 1, [], lambda t: p.give(first + t, t, m))
    f.loop(f.lo, f.hi, 1, [], item)


@template(CELLS)
@_written
def winograd_take(f: Body, p: _Phases, c: dict[str, V]) -> None:
    """Item: a tile's input into V. Scratch: zeros for a pixel."""
    zeros, places = _zeros(f, c["cin"]), f.alloca(I64, 64)
    f.loop(f.lo, f.hi, 1, [], lambda i: p.take(i, i, c["v"], zeros, places))


@template(CELLS)
@_written
def winograd_multiply(f: Body, p: _Phases, c: dict[str, V]) -> None:
    """Item position·panels + panel: V times one panel of U into M."""
    def item(i: V) -> None:
        at = i // p.panels
        p.multiply(at, i - at * p.panels, c["block"], c["v"], c["m"])
    f.loop(f.lo, f.hi, 1, [], item)


@template(CELLS)
@_written
def winograd_give(f: Body, p: _Phases, c: dict[str, V]) -> None:
    """Item: a tile's output out of M."""
    f.loop(f.lo, f.hi, 1, [], lambda i: p.give(i, i, c["m"]))


@dataclass(frozen=True, slots=True)
class WinogradPlan:
    """How a geometry is done: `side` of a tile in pixels, tiles of a `block`, register tiles of `rows` x
    `cols`."""

    geometry: Geometry
    side: int
    block: int
    rows: int
    cols: int
    lanes: int

    @property
    def across(self) -> int:
        return -(-self.geometry.out[2] // self.side)

    @property
    def down(self) -> int:
        return -(-self.geometry.out[1] // self.side)

    @property
    def tiles(self) -> int:
        return self.geometry.batch * self.across * self.down

    @property
    def whole(self) -> bool:
        """Whether each phase is a step of its own, with V and M in memory."""
        return self.block == self.tiles

    @property
    def panels(self) -> int:
        return -(-self.geometry.cout // (self.cols * self.lanes))

    @property
    def chunk(self) -> int:
        """Products summed one after another: fewer with tiles of 4, which amplify errors, as long as weights
        stay near."""
        cin = self.geometry.cin
        return chunk_of(cin, 32 if self.side == 4 and cin <= CHUNK else CHUNK)

    @property
    def v_row(self) -> int:
        """Elements from one tile to the next in a plane of V."""
        return -(-self.geometry.cin // self.lanes) * self.lanes + 16

    @property
    def m_row(self) -> int:
        """Elements from one tile to the next in a plane of M."""
        return self.panels * self.cols * self.lanes + 16

    @property
    def v_size(self) -> int:
        """Elements of V, its planes of equal size."""
        return (self.block * self.v_row + _GAP) * (self.side + 2) ** 2

    @property
    def m_size(self) -> int:
        """Elements of M, its planes of equal size."""
        return (self.block * self.m_row + _GAP) * (self.side + 2) ** 2

    def steps(self, tree: Expr | None, operands: Sequence[Operand]) -> list[tuple[Spec, int, int]]:
        """The kernels in order, each with its items and its bytes of scratch. All take the same cells."""
        g = self.geometry
        common = {"side": self.side, "cols": self.cols, "rows": self.rows,
                  "ragged": bool(g.out[1] % self.side or g.out[2] % self.side),
                  "tails": bool(g.cin % self.lanes or g.cout % self.lanes),
                  "chunked": self.chunk < g.cin,
                  "ahead": 16 if g.cin * self.cols * self.lanes * 4 > 24 << 10 else 0}
        plain = {**common, "tree": None, "operands": ()}
        last = {**common, "tree": tree, "operands": tuple(operands)}
        zeros = -(-g.cin // 16) * 64
        if not self.whole:
            return [(winograd_blocks(**last), -(-self.tiles // self.block),
                     zeros + 4 * (self.v_size + self.m_size) + 64)]
        return [(winograd_take(**plain), self.tiles, zeros),
                (winograd_multiply(**plain), (self.side + 2) ** 2 * self.panels, 0),
                (winograd_give(**last), self.tiles, 0)]

    def cells(self, x_strides: Sequence[int], y_strides: Sequence[int]) -> list[int]:
        """The cells behind x, u, y, v, m and status. Strides in elements: (image, depth, row, pixel)."""
        g, (xn, _, xh, xw), (yn, _, yh, yw) = self.geometry, x_strides, y_strides
        return [self.tiles, self.block, self.across, self.down, g.cin, g.cout, g.size[1], g.size[2],
                g.pads[1], g.pads[2], g.out[1], g.out[2], xn, xh, xw, yn, yh, yw, self.chunk]

    def pack(self, w: np.ndarray) -> np.ndarray:
        """U of weights [Cout, Cin, 1, 3, 3] as panels [position][panel][cin][lanes of the panel]."""
        g, wide = np.array(_G[self.side]), self.cols * self.lanes
        cout, cin = w.shape[:2]
        by_tap = w.reshape(cout * cin, 9).T.astype(np.float64)
        out = aligned(((self.side + 2) ** 2, self.panels, cin, wide))
        flat = np.zeros((self.panels * wide, cin), np.float32)
        for row, u in zip(np.kron(g, g), out, strict=True):
            with np.errstate(all="ignore"):
                flat[:cout] = (row @ by_tap).reshape(cout, cin)
            u[...] = flat.reshape(self.panels, wide, cin).swapaxes(1, 2)
        return out


@choice()
def plan(g: Geometry, machine: Machine, side: int, block: int | None = None) -> WinogradPlan:
    """A plan for a geometry that `choose` accepts."""
    lanes, cols = machine.lanes(4), tile_cols(machine, g.cout)
    tiles = g.batch * -(-g.out[1] // side) * -(-g.out[2] // side)
    positions = (side + 2) ** 2
    if block is None:
        streamed = positions * g.cin * g.cout * 4 > machine.l2 * 3 // 5
        each = positions * 4 * (g.cin + g.cout)
        block = max(14, machine.l2 // 8 // each) if not streamed else (
            tiles if tiles * each <= _MOST else _MOST // 4 // each)
    most = shapes(machine)[cols]
    block = min(tiles, max(block, 1))
    if block < tiles:
        blocks = -(-tiles // block)
        block = -(-tiles // blocks)
    rows = -(-block // -(-block // most))
    return WinogradPlan(g, side, block, rows, cols, lanes)


def few_bits(w: np.ndarray) -> bool:
    """Whether all weights are multiples of 1/256, as those of filters that count or blur: their products with
    whole numbers sum exactly, but not by way of a transform."""
    flat = w.reshape(-1)
    with np.errstate(all="ignore"):
        return all(bool((part * 256 % 1 == 0).all()) for part in (flat[:_SAMPLE], flat))


@choice()
def choose(g: Geometry, machine: Machine) -> int:
    """The side of the tiles that is estimated fastest, 0 where direct convolution is: cycles of multiply-adds
    and transforms, and of weights that come from beyond the second cache at 4 bytes a cycle (6 where they are
    used longer). Tiles of 4 are for 64 input channels on: below, they save less than their errors are
    worth."""
    if (g.kernel != (1, 3, 3) or g.strides != (1, 1, 1) or g.dilations != (1, 1, 1) or g.groups != 1
            or g.size[0] != 1 or g.out[0] != 1 or g.pads[0] or g.cin < 16 or g.cout < 16):
        return 0
    lanes = machine.lanes(4)
    vectors, cols = -(-g.cout // lanes), tile_cols(machine, g.cout)
    sums = g.cin * -(-vectors // cols) * cols / 2 * (1.1 if cols > 1 else 1.3)
    pixels = g.batch * g.out[1] * g.out[2]
    costs = {0: pixels * 9 * sums + 9 * g.cin * g.cout * 4 / 6}
    for side, into, out in ((2, 40, 30), (4, 130, 110))[:2 if g.cin >= _MANY else 1]:
        tiles = g.batch * -(-g.out[1] // side) * -(-g.out[2] // side)
        positions = (side + 2) ** 2
        costs[side] = (positions * max(tiles, 6) * sums + tiles * (-(-g.cin // lanes) * into + vectors * out)
                       + positions * g.cin * g.cout * 4 / 4)
    return min(costs, key=lambda side: costs[side])
