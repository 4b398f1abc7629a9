"""Products of bytes C = tree(A·B), sums exact in int32: the kernels, how B is packed, how work is divided.

In: A, int8 or uint8, or int16 that hold them where the machine reads these (`widened`), as *lines* of
positions: position p of a line starts `step` bytes behind the one before, and its row of K is, for each tap,
`run` elements at an offset from there. A matrix is a line of rows with one tap; a convolution of an image
with margins is a line of all its pixels, in which those between the end of one output row and the begin of
the next are dropped. B is int8 or uint8 less a zero point, packed by `pack` or, where it is computed, by
`int8.pack`; lines may have one each. Out: leaf 0 of the tree is the sum plus `start` (int32, one per column);
int32 is stored without a tree. The results do not depend on how the work is divided, nor on the machine.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ....records import dataclass
from ...machines.machine import Machine
from ...runtime.call_kernel import aligned
from ...write.body import Body
from ...write.emit import I8, I32, I64, V, vec
from ...write.expr import Expr
from ...write.spec import Spec
from ...write.template import template
from ...write.tile import Masks, Operand, Rows
from . import amx, spacemit
from .results import CELLS, Results, block_of
from .step import UNROLL, Unit, lanes_of, summed, unit

SPLIT = 200_000
"""Multiply-adds below which work is not divided among threads."""

_VALUE = Expr.leaf(0, "int32")


@dataclass(frozen=True)
class Packing:
    """How B lies: for each panel of `width` columns each tap, `run` elements of K of which `group` together
    are adjacent. `run` is a tap's length, a multiple of `multiple`, filled up with zeros."""

    group: int
    width: int
    multiple: int

    def run(self, k: int) -> int:
        return -(-k // self.multiple) * self.multiple


def sums(b: np.ndarray, zero: np.ndarray | None) -> np.ndarray:
    """The sums of the columns of B (taps, k, n), less `zero`, as int32."""
    made = b.sum((0, 1), dtype=np.int64)
    low = 0 if zero is None else zero.astype(np.int64).reshape(-1)
    return (made - b.shape[0] * b.shape[1] * low).astype(np.int32)


def pack(b: np.ndarray, zero: np.ndarray | None, how: Packing) -> np.ndarray:
    """B (taps, k, n) of int8 or uint8, less `zero`, one for all or one for each column, as (panels, parts *
    taps, run / group, width, group). `parts`: how many int8 each element is the sum of, the taps of one after
    those of another."""
    left = b if zero is None or not zero.any() else b.astype(np.int16) - zero.astype(np.int16)
    if left.dtype == np.uint8:
        left = left.astype(np.int16)
    found = [left] if left.dtype == np.int8 else []
    while not found or (left.dtype != np.int8 and left.any()):
        part = np.clip(left, -128, 127)
        left = left - part
        found.append(part.astype(np.int8))
    taps, k, n = b.shape
    run, wide, group = how.run(k), how.width, how.group
    panels = -(-n // wide)
    out = aligned((panels, len(found) * taps, run // group, wide, group), np.int8)
    out[...] = 0
    for i, part in enumerate(found):
        for panel in range(panels):
            mine = out[panel, i * taps:(i + 1) * taps]
            columns = part[:, :, panel * wide:(panel + 1) * wide]
            for j in range(min(group, k)):
                each = columns[:, j::group]
                mine[:, :each.shape[1], :each.shape[2], j] = each
    return out


@dataclass(frozen=True)
class ProductPlan:
    """How one product is divided. A line is `tiles` tiles, the first `tall` of heights[0] positions, the
    others one less; an item is `per_rows` tiles by `per_cols` panels of one line. `kind`: of the machine's
    instructions, "amx" for its matrix unit; `unrolled`: `run` is a multiple of four groups; `flat`: no
    position is dropped; `fetch`: cache lines of B that a tile fetches ahead with each 2 KB of it."""

    packing: Packing
    kind: str
    signed: bool
    offset: int
    cols: int
    heights: tuple[int, ...]
    unrolled: bool
    flat: bool
    tail: bool
    fetch: int
    tiles: int
    tall: int
    per_rows: int
    row_blocks: int
    per_cols: int
    col_blocks: int
    items: int
    grain: int
    scratch: int

    def spec(self, tree: Expr | None, operands: Sequence[Operand]) -> Spec:
        if self.kind == "ime":
            return spacemit.int8_ime(signed=self.signed, flat=self.flat, tail=self.tail, tree=tree or _VALUE,
                                     operands=tuple(operands))
        if self.kind == "amx":
            return amx.int8_matrix(signed=self.signed, flat=self.flat, tail=self.tail, fetch=self.fetch,
                                        tree=tree or _VALUE, operands=tuple(operands))
        return int8_tiles(signed=self.signed, cols=self.cols, heights=self.heights, unrolled=self.unrolled,
                          flat=self.flat, tail=self.tail, tree=tree or _VALUE, operands=tuple(operands))

    def start(self, sums: np.ndarray, bias: np.ndarray | None = None, zero: int = 0) -> np.ndarray:
        """What the sums start from: `bias` less what A's zero point and the machine add; whole panels."""
        n, wide = len(sums), self.packing.width
        made = -(zero + self.offset) * sums.astype(np.int64)
        out = aligned((-(-n // wide) * wide,), np.int32)
        out[:n], out[n:] = made if bias is None else made + bias, 0
        return out

    def cells(self, b_line: int = 0, start_line: int = 0) -> tuple[int, ...]:
        """The arguments from `tiles` on; `b_line`, `start_line`: from a line's B and start to the next's."""
        return (self.tiles, self.tall, self.per_rows, self.row_blocks, self.per_cols, self.col_blocks, b_line,
                start_line)


def columns(machine: Machine, n: int) -> int:
    """Vectors across a tile of `n` columns."""
    if machine.group > 1:
        return 1
    vectors = -(-n // machine.lanes())
    best = 2
    return min((best, 1, 3), key=lambda c: -(-vectors // c) * c * (1.0 if c == best else 1.04))


def packing(machine: Machine, n: int, k: int, matrix: bool) -> Packing:
    """How B is packed: for taps of `k` elements and `n` columns; `matrix`: for the matrix unit."""
    if matrix:
        return Packing(4, amx.PANEL, amx.CHUNK)
    cols = columns(machine, n)
    mine = unit(machine, cols)
    wide = spacemit.shape(machine)[1] if mine.kind == "ime" else cols * lanes_of(machine)
    return Packing(mine.group, wide, mine.group)


def on_matrix_unit(machine: Machine, positions: int, n: int, k: int, copied: bool) -> bool:
    """Whether a product with taps of `k` elements is done by the matrix unit; `copied`: A is copied anyway,
    not only to fill its taps up for the unit."""
    if not copied and k % amx.CHUNK and k < 3 * amx.CHUNK:
        return False
    waste = (-(-k // amx.CHUNK) * amx.CHUNK) * (-(-n // amx.PANEL) * amx.PANEL)
    return positions >= 8 and n >= 16 and waste <= 4 * k * n and amx.usable(machine)


def widened(machine: Machine, how: Packing) -> bool:
    """Whether A is read as int16."""
    return how.multiple != amx.CHUNK and unit(machine, how.width // lanes_of(machine)).size > 1


def tallest(machine: Machine, mine: Unit, cols: int) -> int:
    """Rows of a tile whose sums fit the registers."""
    if machine.group > 1:
        return machine.registers // machine.group - 1
    free = machine.registers - mine.temporaries - cols
    return max(1, min(14, free // cols))


def plan(machine: Machine, how: Packing, lines: int, length: int, n: int, taps: int, run: int, step: int,
         signed: bool, flat: bool) -> ProductPlan:
    """Divide `lines` lines of `length` positions, `step` bytes apart, by `n` columns."""
    cols, panels = how.width // lanes_of(machine), -(-n // how.width)
    mine = unit(machine, cols)
    kind = "amx" if how.multiple == amx.CHUNK else mine.kind
    fixed = {"amx": amx.ROWS, "ime": spacemit.DOWN * (machine.matrix or (1,))[0]}.get(kind)
    tiles = max(1, -(-length // (fixed or tallest(machine, mine, cols))))
    height = fixed or -(-length // tiles)
    tall = tiles if fixed else length - tiles * (height - 1)
    work, wide = lines * length * n * taps * run, widened(machine, how)
    wanted = min(max(1, work // SPLIT), 16)
    read = taps * run if kind == "ime" else max(step, run << wide if taps == 1 else step)
    block = max(1, min(tiles, (machine.l2 // 8) // max(1, height * read)))
    per_rows = min(block, max(1, -(-tiles * lines // wanted)))
    row_blocks = -(-tiles // per_rows)
    col_blocks = 1
    pairs = -(-panels // 2)
    if lines * row_blocks < wanted:
        col_blocks = min(pairs, -(-wanted // (lines * row_blocks)))
    read_once = panels * how.width * taps * run
    if pairs >= 8 and read_once > length * step <= machine.l2 // 2 and kind != "ime":
        row_blocks, per_rows = 1, tiles
        col_blocks = min(pairs, max(1, -(-wanted // lines)))
    per_cols = 2 * -(-pairs // col_blocks)
    col_blocks = -(-panels // per_cols)
    items = lines * row_blocks * col_blocks
    heights = (height, height - 1) if tall < tiles else (height,)
    fetch = 32 >> min(per_rows.bit_length() - 1, 3) if kind == "amx" and per_rows < 16 else 0
    more = 64 if kind == "amx" else 0
    if kind == "ime":
        more = spacemit.scratch(machine) + per_rows * height * taps * run
    offset = 0 if kind == "amx" else mine.offset(signed)
    unrolled = run % (UNROLL * mine.group) == 0
    return ProductPlan(how, kind, signed and not wide, offset, cols, heights, unrolled, flat,
                       n % how.width != 0, fetch, tiles, tall, per_rows, row_blocks, per_cols, col_blocks,
                       items, max(1, -(-SPLIT * items // max(work, 1))), 4 * how.width * height + more)


@template(CELLS)
def int8_tiles(f: Body, a: V, b: V, start: V, out: V, taps: V, count: V, run: V, step: V, line_step: V,
               length: V, n: V, width: V, valid: V, out_line: V, out_row: V, out_col: V, tiles: V, tall: V,
               per_rows: V, row_blocks: V, per_cols: V, col_blocks: V, b_line: V, start_line: V, *,
               signed: bool, cols: int, heights: tuple[int, ...], unrolled: bool, flat: bool, tail: bool,
               tree: Expr, operands: tuple[Operand, ...]) -> None:
    """Item (line * row_blocks + rows) * col_blocks + columns, by vectors. Bytes: `taps` (offsets),
    `step`, `line_step`, `b_line`; elements: `run`, `out_line`, `out_row`, `out_col`, `start_line`."""
    mine, lanes, full = unit(f.machine, cols), lanes_of(f.machine), heights[0]
    panel, sums_ty = cols * lanes, vec(I32, lanes)
    results = Results(f, out, n, width, valid, (out_line, out_row, out_col), (cols, lanes), tree, operands,
                      flat, tail)

    def tile(line: V, first: V, rows: int, column: V, b_at: V, starts: Sequence[V], masks: Masks) -> None:
        base = f.gep(a, line * line_step + first * step, I8)

        def tap(i: V, b: V, *acc: V) -> list[V]:
            a_rows = Rows(f, f.gep(base, f.load(I64, taps, i), I8), step, rows)
            return summed(f, mine, a_rows, b, run, acc, cols, signed, UNROLL if unrolled else 1)
        acc = f.loop(0, count, 1, [b_at, *[x for _ in range(rows) for x in starts]], tap)[1:]
        if flat:
            to, *rest = results.places(line, 0, first, column)
            results.finish.store(acc, cols, to, rest, masks, f.scratch)
            return
        for i, x in enumerate(acc):
            f.store(x, f.scratch, i * lanes, 4 * lanes)
        results.keep(line, first, rows, column, masks, f.scratch)

    def item(i: V) -> None:
        line, t0, t1, p0, p1 = block_of(f, i, (per_rows, row_blocks, tiles),
                                        (per_cols, col_blocks, (n + (panel - 1)) // panel))

        def across(p: V) -> None:
            column = p * panel
            b_at = f.gep(b, line * b_line + p * (count * run * panel), I8)
            first = line * start_line + column
            starts = [f.load(sums_ty, start, first + j * lanes, 4 * lanes) for j in range(cols)]
            masks = results.masks(column)

            def row_of(t: V) -> V:
                return t * full if len(heights) == 1 else t * (full - 1) + f.fast_min(t, tall)

            def one(t: V, rows: int) -> None:
                tile(line, row_of(t), rows, column, b_at, starts, masks)
            if len(heights) == 1:
                f.loop(t0, t1, 1, [], lambda t: one(t, full))
            else:
                f.loop(t0, f.fast_min(t1, tall), 1, [], lambda t: one(t, full))
                f.loop(f.fast_max(t0, tall), t1, 1, [], lambda t: one(t, full - 1))
        f.loop(p0, p1, 1, [], across)
    f.loop(f.lo, f.hi, 1, [], item)
