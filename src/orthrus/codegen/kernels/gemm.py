"""Matrix products C = tree(A·B), batched: the kernels, how B is packed, and how the work is divided.

In: A (rows at any stride, contiguous along K), B as packed panels, as rows along N or as rows along K, and
the operands of an elementwise tree over the sums. Out: C, contiguous along N, rows at any stride. Two batch
dimensions with any strides. Sizes and strides are run-time arguments: a kernel is known by its tile heights,
its source of B and its tree. A and B are floats or whole numbers of 32 or 64 bits, which add up in their own
type, or half precision, or B is of few bits; then sums are float32.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...records import dataclass
from ...shapes.symbolic import choice
from ..machines.machine import Machine
from ..write.body import Body
from ..write.emit import BYTES as SIZES
from ..write.emit import I8, I64, PTR, V, vec
from ..write.expr import BYTES, LLVM, Expr
from ..write.spec import Spec
from ..write.template import template
from ..write.tile import (
    LONG_SUM,
    Corner,
    Operand,
    Rows,
    TileEpilogue,
    as_float,
    joined,
    long_tile,
    shapes,
    total_of,
    widens,
)
from .few_bits.layout import Blocks, Panel, unpack_panel
from .panels import copy, copy_panel, transpose_panel

SOURCES = ("panels", "rows", "copied", "transposed")
"""How B is read: packed by `pack`; in place along N; along N or along K, each panel copied to scratch."""

BLOCKS = "blocks"
"""The same of B packed in blocks of few bits: each panel is unpacked to scratch."""

_COPIES = (*SOURCES[2:], BLOCKS)

FEW_ROWS = 4
"""Rows of A up to which `dots` reads B as it lies along K."""

MOST_COLUMNS = 16
"""Registers across a tile at most."""

STREAMS = 16
"""Rows of a B that no cache holds, read where it lies, which a tile goes along together."""

ABREAST = 8
"""Rows of such a B that `streams` reads side by side, as many as a cache has ways; and rows of A up to which
it does."""

DEEP = 512
"""Rows of such a B from which on it is rather read again for a part of the rows of A than copied."""

RUN = 4096
"""Bytes of each of them that an item of `streams` reads where it does not read all."""

SPLIT = 50_000
"""Multiply-adds below which work is not divided among threads."""

F = "float32"

_LINE = 16


def width(machine: Machine, n: int, size: int = 4) -> int:
    """Columns of a panel for `n` columns of sums of `size` bytes."""
    return machine.lanes(size) * columns(machine, n, size)


def columns(machine: Machine, n: int, size: int = 4) -> int:
    """Registers across a tile for `n` columns: the machine's favourite, or one that computes less in vain."""
    lanes, by_cols = machine.lanes(size), shapes(machine)
    vectors = -(-n // lanes)
    best, *others = list(by_cols)[:3]

    def cost(cols: int) -> float:
        return -(-vectors // cols) * cols * (1.0 if cols == best else 1.04 if cols > 1 else 1.12)
    return min((best, *others), key=cost)


def pack(machine: Machine, b: np.ndarray) -> np.ndarray:
    """B (..., k, n) as panels (..., panels, k, width), the last one filled up with zeros."""
    *batch, k, n = b.shape
    wide = width(machine, n, _size(b.dtype.name))
    panels = -(-n // wide)
    out = np.zeros((*batch, panels, k, wide), b.dtype)
    full = n // wide
    out[..., :full, :, :] = np.moveaxis(b[..., :full * wide].reshape(*batch, k, full, wide), -2, -3)
    if full < panels:
        out[..., full, :, :n - full * wide] = b[..., full * wide:]
    return out


def _size(dtype: str) -> int:
    """Bytes of a sum of products of `dtype`."""
    return BYTES[total_of(dtype)]


@dataclass(frozen=True)
class GemmPlan:
    """How one product is divided. Rows are `tiles` tiles, the first `tall` of heights[0] rows, the others one
    less; a work item is `per_rows` tiles by `per_cols` panels of one matrix. `deep`: elements of K done at a
    time, `split` where that is not all. `tail`: the last panel is not full. `pitch`: of A's copy in scratch,
    0 where A is read in place. `ahead`: steps of K that B is fetched ahead, `fetch`: cache lines of the next
    panel that a tile fetches every four steps; `touch`: a tile fetches its part of C before it starts."""

    source: str
    a_type: str
    b_type: str
    cols: int
    heights: tuple[int, ...]
    tiles: int
    tall: int
    per_rows: int
    per_cols: int
    row_blocks: int
    col_blocks: int
    deep: int
    split: bool
    tail: bool
    pitch: int
    ahead: int
    fetch: int
    touch: bool
    items: int
    grain: int
    scratch: int

    def spec(self, tree: Expr | None, operands: Sequence[Operand], blocks: Blocks | None = None) -> Spec:
        """`blocks`: how B is packed where it is of few bits."""
        return gemm(source=blocks or self.source, a_type=self.a_type, b_type=self.b_type, cols=self.cols,
                    heights=self.heights, split=self.split, tail=self.tail, copies=self.pitch > 0,
                    ahead=self.ahead, fetch=self.fetch, touch=self.touch, tree=tree, operands=tuple(operands))

    def cells(self) -> tuple[int, ...]:
        """The arguments from `tiles` on, before those of the operands."""
        return (self.tiles, self.tall, self.per_rows, self.row_blocks, self.per_cols, self.col_blocks,
                self.deep, self.pitch)


def _across(machine: Machine, rows: int, vectors: int) -> int:
    """Registers across a tile of so few rows that it takes them all, `vectors` at most: B, read where it
    lies, is read in long runs."""
    return 0 if machine.group > 1 else min(MOST_COLUMNS, (machine.registers - 1) // (rows + 1), vectors)


@choice()
def plan(machine: Machine, m: int, n: int, k: int, batch: int, source: str, a_row: int, b_row: int = 0,
         a_type: str = F, b_type: str = F) -> GemmPlan:
    """Divide C (m, n) = A (m, k) B (k, n), `batch` of them; `a_row`, `b_row`: their row strides in elements.
    half of A is widened in a copy where no instruction does."""
    size = _size(a_type)
    lanes, plain = machine.lanes(size), a_type == total_of(a_type)
    cols = columns(machine, n, size)
    tallest, across = shapes(machine)[cols], _across(machine, m, -(-n // lanes)) if source == "rows" else 0
    if across > cols:
        cols, tallest = across, m
    wide = cols * lanes
    tiles = max(1, -(-m // tallest))
    height = -(-m // tiles)
    tall = m - tiles * (height - 1)
    panels = -(-n // wide)
    if source == "rows" and tiles > 2 and (b_row > 512 or 2 * size * k * b_row > machine.l2):
        source = "copied"
    copied = source in _COPIES
    deep, longest = k, machine.l2 // (4 * size * wide)
    if copied:
        longest = min(longest, max(longest // 8, 128))
    if 4 * k > 5 * longest and (tiles > 1 or copied):
        deep = -(-k // -(-k // longest))
        deep = -(-deep // _LINE) * _LINE
    streamed = source == "rows" and tiles == 1 < panels and size * k * n > machine.l2 and k > 4 * STREAMS
    if streamed:
        deep = STREAMS
    split = deep < k
    aliased = machine.l1 <= 32 << 10 and size * a_row % 2048 == 0 and height >= 8 and k >= 64
    copies = plain and aliased and panels > 2 or not plain and not widens(machine, a_type, b_type)
    pitch = -(-deep // _LINE) * _LINE + _LINE if copies else 0
    near = source in SOURCES[:2] and size * k * n <= machine.l2 // 2
    held = machine.l1 // 2 if near else machine.l2 * 5 // 16
    block = max(2 if near else 5, held // max(size * deep * height, 1))
    row_blocks = -(-tiles // block)
    flops = m * n * k * batch
    wanted = min(max(1, flops // SPLIT), 16)
    col_blocks = min(panels, max(1, -(-wanted // (row_blocks * batch))))
    if pitch or split and not copied:
        col_blocks = min(col_blocks, max(1, panels // (2 if streamed else 6)))
    per_cols = -(-panels // max(col_blocks, 1))
    col_blocks = -(-panels // max(per_cols, 1))
    if row_blocks * col_blocks * batch < min(wanted, 4) and tiles > 1:
        row_blocks = min(tiles, -(-(min(wanted, 4) if copied else wanted) // max(col_blocks * batch, 1)))
    per_rows = -(-tiles // row_blocks)
    row_blocks = -(-tiles // per_rows)
    items = batch * row_blocks * col_blocks
    ahead = 8 if across == cols else 0 if source != "panels" else 64 if tiles == 1 else 0 if near else 16
    fetch = min(4, -(-8 // per_rows)) if ahead and per_rows > 1 else 0
    touch = deep >= 384
    room = size * height * wide * (per_rows * per_cols if split else 1)
    panel = -(-deep // _LINE) * _LINE if source == BLOCKS else deep if copied else 0
    scratch = room + size * (pitch * per_rows * height + panel * wide)
    heights = (height, height - 1) if tall < tiles else (height,)
    return GemmPlan(source, a_type, b_type, cols, heights, tiles, tall, per_rows, per_cols, row_blocks,
                col_blocks, deep, split, n % wide != 0, pitch, ahead, fetch, touch, items,
                grain(flops, items), scratch)


def grain(work: int, items: int) -> int:
    """Items a thread should take at least, of `items` that are `work` multiply-adds together."""
    return max(1, -(-SPLIT * items // max(work, 1)))


_BATCHES = "inner:i64 a_out:i64 a_in:i64 b_out:i64 b_in:i64 c_out:i64 c_in:i64"
CELLS = ("a:ptr b:ptr c:ptr n:i64 k:i64 a_row:i64 b_row:i64 c_row:i64 " + _BATCHES +
         " tiles:i64 tall:i64 per_rows:i64 row_blocks:i64 per_cols:i64 col_blocks:i64 deep:i64 pitch:i64")


@template(CELLS)
def gemm(f: Body, a: V, b: V, c: V, n: V, k: V, a_row: V, b_row: V, c_row: V, inner: V, a_out: V, a_in: V,
         b_out: V, b_in: V, c_out: V, c_in: V, tiles: V, tall: V, per_rows: V, row_blocks: V, per_cols: V,
         col_blocks: V, deep: V, pitch: V, *, source: str | Blocks, a_type: str, b_type: str, cols: int,
         heights: tuple[int, ...], split: bool, tail: bool, copies: bool, ahead: int, fetch: int, touch: bool,
         tree: Expr | None, operands: tuple[Operand, ...]) -> None:
    """Item (batch * row_blocks + rows) * col_blocks + columns; `inner`: size of the inner batch dimension.

    Behind the cells, per operand: its address and its strides over rows, outer and inner batches. `split`:
    sums wait in scratch from one part of K to the next; `copies`: A's block is copied to scratch first.
    """
    total = LLVM[total_of(a_type)]
    broad, vectors = cols * f.machine.lanes(SIZES[total]), cols
    lanes, cols = joined(f.machine, cols, widens(f.machine, a_type, b_type), SIZES[total])
    aligned = lanes * SIZES[total]
    sum_type = vec(total, lanes)
    a_elem, b_elem = LLVM[a_type], LLVM[b_type]
    full = heights[0]
    finish = TileEpilogue(f, tree, operands, total_of(a_type))
    sides = _sides(f, len(CELLS.split()), operands)
    zero = f.zero(sum_type)
    tile_size = full * broad
    room, parts = f.scratch, f.alloca(sum_type, full * cols)
    a_copy = f.gep(room, per_rows * per_cols * tile_size if split else tile_size, total)
    b_copy = f.gep(a_copy, pitch * per_rows * full, total) if copies else a_copy

    def row_of(t: V) -> V:
        """The first row of tile `t`."""
        return t * full if len(heights) == 1 else t * (full - 1) + f.fast_min(t, tall)

    def item(i: V, held: V) -> V:
        rest = i // col_blocks
        column = i - rest * col_blocks
        matrix = rest // row_blocks
        block = rest - matrix * row_blocks
        outer = matrix // inner
        at = matrix - outer * inner
        a_at = f.gep(a, outer * a_out + at * a_in, a_elem)
        b_at = f.gep(b, outer * b_out + at * b_in, b_elem)
        c_at = f.gep(c, (outer * c_out + at * c_in), _stored(finish.dtype))
        places = [Corner(f.gep(p, outer * o + at * q, _stored(x.dtype)), r)
                  for (p, r, o, q), x in zip(sides, operands, strict=True)]
        t0 = block * per_rows
        t1 = f.fast_min(t0 + per_rows, tiles)
        p0 = column * per_cols
        p1 = f.fast_min(p0 + per_cols, (n + (broad - 1)) // broad)
        row0 = row_of(t0)

        def copy_a(k0: V, size: V) -> None:
            f.loop(0, row_of(t1) - row0, 1, [], lambda r: copy(
                f, a_elem, f.gep(a_at, (row0 + r) * a_row + k0, a_elem), f.gep(a_copy, r * pitch, total),
                size))

        def over(k0: V | int, size: V, last: V | None) -> None:
            """All tiles of the item over K from `k0`."""
            a_base, stride, stored = f.gep(a_at, k0, a_elem), a_row, a_elem
            if copies:
                if split:
                    copy_a(f.i64(k0), size)
                else:
                    f.when(rest.ne(held), lambda: copy_a(f.i64(k0), size))
                a_base, stride, stored = f.gep(a_copy, -(row0 * pitch), total), pitch, total

            def panel(p: V) -> None:
                col = p * broad
                masks = [f.mask(lanes, n - col - j * lanes) if tail else None for j in range(cols)]
                step: V | int = broad
                if source == "panels":
                    panel_at = f.gep(b_at, (p * k + k0) * broad, b_elem)
                elif source == "rows":
                    panel_at, step = f.gep(b_at, col + b_row * k0, b_elem), b_row
                else:
                    panel_at = b_copy
                    if isinstance(source, Blocks):
                        unpack_panel(f, Panel(f, source, b_at, p, k, vectors, broad // vectors), k0, size,
                                     b_copy)
                    elif source == "copied":
                        start = f.gep(b_at, col + b_row * k0, b_elem)
                        copy_panel(f, b_elem, start, b_row, b_copy, size, lanes, masks)
                    else:
                        start = f.gep(b_at, k0, b_elem)
                        transpose_panel(f, b_elem, start, b_row, n, col, broad, b_copy, size)

                def one(t: V, rows: int) -> None:
                    row = row_of(t)
                    here = room
                    if split:
                        here = f.gep(room, ((p - p0) * per_rows + (t - t0)) * tile_size, total)
                    if touch:
                        line = f.gep(c_at, row * c_row + col, _stored(finish.dtype))
                        for _ in range(rows):
                            for j in range(0, broad * BYTES[finish.dtype], 64):
                                f.prefetch(line, j)
                            line = f.gep(line, c_row, _stored(finish.dtype))
                    stream = None
                    if fetch:
                        share = (t - t0) * (size >> 2) * (64 * fetch)
                        stream = f.gep(b_at, (p + 1) * broad * k * BYTES[b_type] + share, I8)
                    sums = long_tile(f, rows, cols, f.gep(a_base, row * stride, stored), stride, panel_at,
                                     step, size, sum_type, parts, prefetch=ahead, stream=stream, lines=fetch,
                                     mask=masks if source == "rows" else None, a_type=stored,
                                     b_type=b_elem if source in SOURCES[:2] else total)
                    out = Corner(f.gep(c_at, row * c_row + col, _stored(finish.dtype)), c_row)
                    theirs = [Corner(f.gep(x.at, row * x.stride + (col if o.col else 0), _stored(o.dtype)),
                                    x.stride) for x, o in zip(places, operands, strict=True)]
                    if last is None:
                        finish.store(sums, cols, out, theirs, masks, room)
                        return
                    for j, x in enumerate(sums):
                        f.store(x + f.load(sum_type, here, j * lanes, aligned), here, j * lanes, aligned)
                    f.when(last, lambda: finish.store_from(here, sum_type, rows, cols, out, theirs, masks))

                if len(heights) == 1:
                    f.loop(t0, t1, 1, [], lambda t: one(t, full))
                else:
                    f.loop(t0, f.fast_min(t1, tall), 1, [], lambda t: one(t, full))
                    f.loop(f.fast_max(t0, tall), t1, 1, [], lambda t: one(t, full - 1))
            f.loop(p0, p1, 1, [], panel)

        if split:
            f.loop(0, (p1 - p0) * per_rows * tile_size, lanes, [],
                   lambda j: f.store(zero, room, j, aligned))
            f.loop(0, k, deep, [], lambda k0: over(k0, f.fast_min(deep, k - k0), k0 + deep >= k))
        else:
            over(0, k, None)
        return rest

    f.loop(f.lo, f.hi, 1, [f.i64(-1)], item)


Side = tuple[V, V, V, V]
"""An operand's address and its strides over rows, outer and inner batches."""


def _sides(f: Body, first: int, operands: Sequence[Operand]) -> list[Side]:
    """The operands, whose arguments begin with the one numbered `first`."""
    return [(f.arg(at, PTR), f.arg(at + 1, I64), f.arg(at + 2, I64), f.arg(at + 3, I64))
            for at in range(first, first + 4 * len(operands), 4)]


def _corners(f: Body, sides: Sequence[Side], operands: Sequence[Operand], outer: V, at: V, row: V | int,
             col: V) -> list[Corner]:
    """Where the operands of one element of C lie, and what follows it."""
    return [Corner(f.gep(p, outer * o + at * q + row * s + (col if x.col else 0), _stored(x.dtype)), s)
            for (p, s, o, q), x in zip(sides, operands, strict=True)]


_SIDE, _SHALLOW = 4, 128
"""Rows of B that `dots` reads side by side: more would meet in one set of a cache where they lie a power of
two apart; and how long rows may be that are read again for each of A's."""


@choice()
def dots_abreast(machine: Machine, m: int, n: int, k: int, a_type: str = F) -> int:
    """How many rows of A `dots` multiplies by one look at B, as many as registers hold the sums of; 0 where
    tiles do it in less time, which copy B."""
    most = 1 if k <= _SHALLOW else 4 if machine.registers >= 32 else 2
    abreast = next(count for count in range(most, 0, -1) if m % count == 0) if m else 1
    few = m <= FEW_ROWS or (m <= 2 * FEW_ROWS and k >= DEEP and abreast > 2)
    return abreast if few and n >= machine.lanes(BYTES[total_of(a_type)]) else 0


@template("a:ptr b:ptr c:ptr m:i64 n:i64 k:i64 a_row:i64 b_row:i64 c_row:i64 " + _BATCHES + " blocks:i64")
def dots(f: Body, a: V, b: V, c: V, m: V, n: V, k: V, a_row: V, b_row: V, c_row: V, inner: V, a_out: V,
         a_in: V, b_out: V, b_in: V, c_out: V, c_in: V, blocks: V, *, a_type: str, b_type: str,
         abreast: int, tree: Expr | None, operands: tuple[Operand, ...]) -> None:
    """C = tree(A·Bᵀ) for few rows of A, B (n, k) read where it lies, once for `abreast` rows, of which m is a
    multiple; n is at least a vector: item (batch * blocks + block) is a vector of columns. Operands as in
    `gemm`."""
    total = LLVM[total_of(a_type)]
    lanes = f.machine.lanes(SIZES[total])
    side = min(_SIDE, lanes)
    a_elem, b_elem, b_size = LLVM[a_type], LLVM[b_type], BYTES[b_type]
    finish = TileEpilogue(f, tree, operands, total_of(a_type))
    sides = _sides(f, 17, operands)
    whole = k & -lanes
    steps = f.const(vec("i32", lanes), list(range(lanes)))

    def item(i: V) -> None:
        matrix = i // blocks
        wanted = (i - matrix * blocks) * lanes
        outer = matrix // inner
        at = matrix - outer * inner
        col = f.fast_min(wanted, n - lanes)
        mask = steps >= f.splat(f.cast(wanted - col, "i32"), lanes)
        a_at = f.gep(a, outer * a_out + at * a_in, a_elem)
        b_at = f.gep(b, outer * b_out + at * b_in + col * b_row, b_elem)
        rows = Rows(f, b_at, b_row * b_size, lanes)
        tail = f.mask(lanes, k - whole)

        def several(r: V) -> None:
            mine = [f.gep(a_at, (r + q) * a_row, a_elem) for q in range(abreast)]

            def summed(first: int) -> list[V]:
                """Of each row in turn its sums with `side` rows of B from `first` on."""
                def step(j: V, mask: V | None, sums: Sequence[V]) -> list[V]:
                    xs = [as_float(f, f.load_masked(vec(a_elem, lanes), f.gep(each, j, a_elem), 0, mask))
                          for each in mine]
                    bases = [f.gep(base, j, b_elem) for base in rows.bases]
                    ys = [as_float(f, f.load_masked(vec(b_elem, lanes), rows.at(bases, first + y, 0), 0,
                                                    mask)) for y in range(side)]
                    return [f.fma(x, y, sums[q * side + i])
                            for q, x in enumerate(xs) for i, y in enumerate(ys)]
                zeros = [f.zero(vec(total, lanes))] * (abreast * side)
                sums = f.loop(0, whole, lanes, zeros, lambda j, *sums: step(j, None, sums))
                return f.when(whole < k, lambda: step(whole, tail, sums), lambda: sums)
            parts = [summed(first) for first in range(0, lanes, side)]
            for q in range(abreast):
                sums = [v for part in parts for v in part[q * side:(q + 1) * side]]
                places = _corners(f, sides, operands, outer, at, r + q, col)
                out = f.gep(c, outer * c_out + at * c_in + (r + q) * c_row + col, _stored(finish.dtype))
                finish.store([_added(f, sums)], 1, Corner(out), places, mask)
        f.loop(0, m, abreast, [], several)
    f.loop(f.lo, f.hi, 1, [], item)


@dataclass(frozen=True)
class StreamPlan:
    """How a product of `rows` rows that `streams` computes is divided: into `blocks` of `wide` columns."""

    rows: int
    wide: int
    blocks: int
    scratch: int


@choice()
def stream_plan(machine: Machine, m: int, n: int, k: int, batch: int, a_type: str = F, b_type: str = F
                ) -> StreamPlan | None:
    """None where B fits into a cache, or is read by tiles: of many rows of A, or of few columns."""
    size, lanes = _size(a_type), machine.lanes(_size(a_type))
    if not 0 < m <= ABREAST or BYTES[b_type] * k * n <= machine.l2 or n < 4 * lanes or k < 4 * ABREAST:
        return None
    wanted = min(m * n * k * batch // SPLIT, n * BYTES[b_type] // RUN, 16)
    blocks = max(1, wanted, -(-n * m * size // (machine.l1 // 2)))
    wide = -(-n // (2 * lanes * blocks)) * 2 * lanes
    return StreamPlan(m, wide, -(-n // wide), 2 * m * wide * size)


@choice()
def rows_together(machine: Machine, m: int, n: int, k: int, a_type: str = F, b_type: str = F) -> int:
    """How many of the rows of A are better multiplied by themselves: all, or a half or a third of some more
    than `streams` takes, which reads a deep B again for the others in less time than tiles copy it."""
    for parts in (2, 3):
        if ABREAST < m <= ABREAST * 3 // 2 and k >= DEEP and m % parts == 0 and (
                stream_plan(machine, m // parts, n, k, parts, a_type, b_type) is not None):
            return m // parts
    return m


@template("a:ptr b:ptr c:ptr n:i64 k:i64 a_row:i64 b_row:i64 c_row:i64 " + _BATCHES + " wide:i64 blocks:i64")
def streams(f: Body, a: V, b: V, c: V, n: V, k: V, a_row: V, b_row: V, c_row: V, inner: V, a_out: V,
            a_in: V, b_out: V, b_in: V, c_out: V, c_in: V, wide: V, blocks: V, *, rows: int, a_type: str,
            b_type: str, tree: Expr | None, operands: tuple[Operand, ...]) -> None:
    """C = tree(A·B) for few rows of A, B read once where it lies along N, some rows of it side by side from
    end to end: item (batch * blocks + block) is `wide` columns, whose sums wait in scratch, and behind them
    those of the last `LONG_SUM` rows of B. Operands as in `gemm`."""
    total = LLVM[total_of(a_type)]
    lanes = f.machine.lanes(SIZES[total])
    a_elem, b_elem, ty, aligned = LLVM[a_type], LLVM[b_type], vec(total, lanes), lanes * SIZES[total]
    finish = TileEpilogue(f, tree, operands, total_of(a_type))
    sides = _sides(f, 17, operands)
    room, deep = f.scratch, max(ABREAST // rows, 2)
    parts = f.gep(room, wide * rows, total)

    def item(i: V) -> None:
        matrix = i // blocks
        col = (i - matrix * blocks) * wide
        outer = matrix // inner
        at = matrix - outer * inner
        count = f.fast_min(n - col, wide)
        whole = count & -lanes
        tail = f.mask(lanes, count - whole)
        a_at = f.gep(a, outer * a_out + at * a_in, a_elem)
        b_at = f.gep(b, outer * b_out + at * b_in + col, b_elem)
        def clear(place: V) -> None:
            f.loop(0, wide * rows, lanes, [], lambda j: f.store(f.zero(ty), place, j, aligned))

        def add(k0: V, many: int) -> None:
            """`many` rows of B."""
            factors = [[f.splat(as_float(f, f.load(a_elem, a_at, k0 + r * a_row + d)), lanes)
                        for d in range(many)] for r in range(rows)]
            sources = [f.gep(b_at, (k0 + d) * b_row, b_elem) for d in range(many)]

            def step(j: V, mask: V | None = None) -> None:
                given = [as_float(f, f.load_masked(vec(b_elem, lanes), f.gep(x, j, b_elem), 0, mask))
                         for x in sources]
                for r, xs in enumerate(factors):
                    sums = xs[0] * given[0]
                    for x, y in zip(xs[1:], given[1:], strict=True):
                        sums = f.fma(x, y, sums)
                    place = r * wide + j
                    f.store(f.load(ty, parts, place, aligned) + sums, parts, place, aligned)

            def pair(j: V) -> None:
                step(j)
                step(j + lanes)
            even = whole & -(2 * lanes)
            f.loop(0, even, 2 * lanes, [], pair)
            f.when(even < whole, lambda: step(even))
            f.when(whole < count, lambda: step(whole, tail))

        def join(j: V) -> None:
            f.store(f.load(ty, room, j, aligned) + f.load(ty, parts, j, aligned), room, j, aligned)

        def part(first: V) -> None:
            """Some rows, whose sums are added to the others'."""
            clear(parts)
            last = f.fast_min(first + LONG_SUM, k)
            full = last & -deep
            f.loop(first, full, deep, [], lambda k0: add(k0, deep))
            f.loop(full, last, 1, [], lambda k0: add(k0, 1))
            f.loop(0, wide * rows, lanes, [], join)
        clear(room)
        f.loop(0, k, LONG_SUM, [], part)

        def end(j: V, mask: V | None = None) -> None:
            for r in range(rows):
                places = _corners(f, sides, operands, outer, at, r, col + j)
                out = f.gep(c, outer * c_out + at * c_in + r * c_row + col + j, _stored(finish.dtype))
                finish.store([f.load(ty, room, r * wide + j, aligned)], 1, Corner(out), places, mask)
        f.loop(0, whole, lanes, [], end)
        f.when(whole < count, lambda: end(whole, tail))
    f.loop(f.lo, f.hi, 1, [], item)


def _stored(dtype: str) -> str:
    return I8 if dtype == "bool" else LLVM[dtype]


def _added(f: Body, rows: Sequence[V]) -> V:
    """A vector of the rows' sums, each added up in the same order."""
    out, lanes, d = list(rows), len(rows), 1
    while len(out) > 1:
        low = [j + (lanes - d if j & d else 0) for j in range(lanes)]
        out = [f.shuffle(x, y, low) + f.shuffle(x, y, [j + d for j in low])
               for x, y in zip(out[::2], out[1::2], strict=True)]
        d *= 2
    return out[0]
