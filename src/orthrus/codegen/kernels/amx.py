"""float32 contractions on a matrix unit that multiplies bfloat16 (x86 AMX): each factor as a sum of two.

a = a' + a", both bfloat16, keeps 16 bits of a; a'b' + a"b' + a'b", summed in float32, has an error of about
5e-6 of the largest result, that of a Winograd transform of tiles of four, at several times the speed of
multiply-adds in vectors. An infinite factor may give NaN where float32 gives infinity. `split` writes the two
halves of a tensor as planes; `tiles` multiplies rows of planes with a packed second factor and applies an
elementwise tree before it stores.

A contraction is seen as *lines* of positions: position p of a line starts at `line * line_step + p * step` in
the planes of a chunk, and sums over `segments`: offsets from there, each with a number of chunks. A matrix
product is a line of rows with one segment; a convolution of stride 1 is one line for a whole padded image,
in which the positions between the image's rows are computed and dropped (`width` positions to a row, of which
the first `valid` are kept), with one segment for each tap; with other strides each output row is a line.
"""

from __future__ import annotations

import ctypes
import functools

import numpy as np

from ...records import cached_property, dataclass
from ...shapes.symbolic import choice
from ..machines.machine import Machine
from ..runtime import call_kernel
from ..write.body import Body
from ..write.emit import BF16, F32, I8, I64, PTR, V, vec
from ..write.expr import BYTES, LLVM, Expr, emit
from ..write.template import template

PACKED = "matrix unit"
"""First part of the keys that packed second factors go by."""

CHUNK = 32
"""Elements of the summed dimension that one tile holds."""
PANEL = 32
"""Columns of the result that are computed together, and rows too: two tiles of 16 each way."""
_TILE = 1024
_LEAST, _MOST = 2.0 ** -100, (2 - 2.0 ** -7) * 2.0 ** 127
"""Numbers that are 0 or between these are good as halves."""
_AHEAD = 16 * 4 * _TILE
"""Bytes by which the second factor is fetched ahead into the second cache."""


@functools.cache
def usable(machine: Machine) -> bool:
    """Whether this process may use the matrix unit for bfloat16."""
    return machine.has("amx-bf16") and machine.has("avx512bf16") and permitted()


@functools.cache
def permitted() -> bool:
    """Whether Linux, which has to be asked first, lets this process use tiles."""
    arch_prctl, request, tile_data = 158, 0x1023, 18
    return ctypes.CDLL(None).syscall(arch_prctl, request, tile_data) == 0


def pack(b: np.ndarray, machine: Machine) -> np.ndarray:
    """The second factor, (segments, K, N) float32 at any strides, as the tiles `tiles` reads: for each panel
    of 32 columns, each segment and each chunk of 32 of K: first halves of both column tiles, then second
    halves."""
    segments, k, n = b.shape
    chunks, panels = -(-k // CHUNK), -(-n // PANEL)
    out = call_kernel.aligned((panels * segments * chunks * 4 * _TILE // 2,), np.uint16)
    steps = [s // 4 for s in b.strides]
    call_kernel.run(machine, pack_tiles(contiguous=steps[2] == 1 or n == 1),
             [b, out, segments, k, n, *steps, chunks], panels * segments * chunks)
    return out


def holds(factor: np.ndarray) -> bool:
    """Whether halves stand for these numbers: all are finite, as halves too, and none is so small that its
    second half, or a product with it, may be a denormal number, which the unit takes for 0."""
    size = np.abs(factor)
    return bool(((size == 0) | ((size >= _LEAST) & (size <= _MOST))).all())


def _halves(f: Body, x: V) -> tuple[V, V]:
    """`x` as the sum of two vectors of bfloat16; the second is 0 where the first is infinite."""
    high = f.cast(x, BF16)
    rest = x - f.cast(high, F32)
    return high, f.cast(f.select(f.compare("eq", rest, rest), rest, 0.0), BF16)


@template("b:ptr out:ptr segments:i64 k:i64 n:i64 by_segment:i64 by_k:i64 by_n:i64 chunks:i64")
def pack_tiles(f: Body, b: V, out: V, segments: V, k: V, n: V, by_segment: V, by_k: V, by_n: V, chunks: V, *,
               contiguous: bool) -> None:
    """An item is one chunk of one segment for one panel. Steps in elements."""
    lanes = 16
    vf = vec(F32, lanes)

    def item(i: V) -> None:
        chunk, place = i % chunks, i // chunks
        segment, panel = place % segments, place // segments
        source = f.gep(b, segment * by_segment, F32)
        target = f.gep(out, i * (4 * _TILE), I8)
        for tile in range(2):
            column = panel * PANEL + tile * lanes
            inside = f.mask(lanes, n - column)
            last = f.maximum(f.minimum(column + lanes, n) - 1, 0)

            def row(at: V, column: V = column, inside: V = inside, last: V = last) -> V:
                """Row `at` of the second factor, zeros behind its last row and column."""
                here = f.gep(source, f.minimum(at, k - 1) * by_k, F32)
                mask = inside & f.splat(at < k, lanes)
                if contiguous:
                    return f.load_masked(vf, here, column, mask)
                value = f.undef(vf)
                for lane in range(lanes):
                    value = f.insert(value, f.load(F32, here, f.minimum(column + lane, last) * by_n), lane)
                return f.select(mask, value, 0.0)

            def two(r: V, tile: int = tile) -> None:
                pairs = [_halves(f, row(chunk * CHUNK + r * 2 + j)) for j in range(2)]
                order = [j for c in range(lanes) for j in (c, lanes + c)]
                for h in range(2):
                    mixed = f.shuffle(pairs[0][h], pairs[1][h], order)
                    f.store(mixed, f.gep(target, r * 64 + (2 * h + tile) * _TILE, I8))
            f.loop(0, 16, 1, [], two)
    f.loop(f.lo, f.hi, 1, [], item)


@template("x:ptr out:ptr rows:i64 cols:i64 count:i64 image_step:i64 row_step:i64 col_step:i64 "
          "top:i64 left:i64 height:i64 width:i64 chunks:i64 chunk_step:i64 plane:i64")
def split(f: Body, x: V, out: V, rows: V, cols: V, count: V, image_step: V, row_step: V, col_step: V, top: V,
          left: V, height: V, width: V, chunks: V, chunk_step: V, plane: V) -> None:
    """x (images, rows, cols, count), by steps in elements, to planes (chunks, images, height, width, 32) of
    bfloat16 with x at `top`, `left` and zeros around it: first halves, and `plane` elements on second halves.
    `chunk_step`: elements between chunks. An item is a row of the planes."""
    lanes = 16
    vf, vb = vec(F32, lanes), vec(BF16, lanes)

    def item(i: V) -> None:
        image, row = i // height, i % height
        target = f.gep(out, i * width * CHUNK, BF16)
        source = f.gep(x, image * image_step + (row - top) * row_step, F32)
        inside = (row >= top) & (row < rows + top)

        def pixel(w: V) -> None:
            to = f.gep(target, w * CHUNK, BF16)

            def copy() -> None:
                start = f.gep(source, (w - left) * col_step, F32)

                def chunk(c: V) -> None:
                    place = f.gep(to, c * chunk_step, BF16)
                    left_over = count - c * CHUNK

                    def whole() -> None:
                        for h in (0, lanes):
                            store(f.load(vf, start, c * CHUNK + h), place, h)

                    def part() -> None:
                        for h in (0, lanes):
                            mask = f.mask(lanes, left_over - h)
                            store(f.load_masked(vf, start, c * CHUNK + h, mask), place, h)
                    f.when(left_over >= CHUNK, whole, part)
                f.loop(0, chunks, 1, [], chunk)

            def clear() -> None:
                def chunk(c: V) -> None:
                    place = f.gep(to, c * chunk_step, BF16)
                    for h in (0, lanes):
                        f.store(f.zero(vb), place, h)
                        f.store(f.zero(vb), f.gep(place, plane, BF16), h)
                f.loop(0, chunks, 1, [], chunk)
            f.when(inside & (w >= left) & (w < cols + left), copy, clear)
        f.loop(0, width, 1, [], pixel)

    def store(value: V, to: V, at: int) -> None:
        high, low = _halves(f, value)
        f.store(high, to, at)
        f.store(low, f.gep(to, plane, BF16), at)
    f.loop(f.lo, f.hi, 1, [], item)


@template("a:ptr plane:i64 chunk_step:i64 step:i64 line_step:i64 length:i64 segments:ptr blocks:ptr "
          "n_blocks:i64 b:ptr panel:i64 pairs:i64 per_line:i64 panels:i64 out:ptr n:i64 width:i64 valid:i64 "
          "out_line:i64 out_row:i64 out_col:i64")
def tiles(f: Body, a: V, plane: V, chunk_step: V, step: V, line_step: V, length: V, segments: V, blocks: V,
          n_blocks: V, b: V, panel: V, pairs: V, per_line: V, panels: V, out: V, n: V, width: V, valid: V,
          out_line: V, out_row: V, out_col: V, *, tree: Expr | None,
          operands: tuple[tuple[int, str], ...] = (), masked: bool = True, share: int = 4) -> None:
    """An item is `pairs` pairs of row tiles of one line against one panel of columns; neighbouring items
    share their rows. Bytes: `plane`, `chunk_step`, `step`, `line_step`, `panel`; elements: `out_line`,
    `out_row`, `out_col`.

    `share`: over how many pairs of rows fetching ahead is spread, a power of two.
    `segments`: rows of (byte offset in the planes, chunks); `blocks`: `n_blocks` + 1 borders in them. Operand
    i of the tree takes four more cells: address, and elements between lines, rows and columns; `operands`:
    its stride along the result's columns (0 or 1) and its type. Scratch: `scratch(pairs)` bytes."""
    lanes = 16
    vf = vec(F32, lanes)
    size_of_result = BYTES[tree.dtype if tree is not None else "float32"]
    base = 21
    sides = [(f.arg(base + 4 * i, PTR), f.arg(base + 4 * i + 1, I64), f.arg(base + 4 * i + 2, I64),
                 f.arg(base + 4 * i + 3, I64), inner, dtype)
                for i, (inner, dtype) in enumerate(operands)]
    config = f.table(I8, [1] + [0] * 15 + [64, 0] * 8 + [0] * 16 + [16] * 8 + [0] * 8)
    for name, types in (("ldtilecfg", "ptr"), ("tilezero", "i8 immarg"), ("tilerelease", ""),
                        ("tdpbf16ps", "i8 immarg, i8 immarg, i8 immarg")):
        f.module.declared["x86." + name] = f"declare void @llvm.x86.{name}({types})"

    def multiply(first: int, second: int) -> None:
        for row in range(2):
            for col in range(2):
                f.line(f"call void @llvm.x86.tdpbf16ps(i8 {2 * row + col}, i8 {first + row}, "
                       f"i8 {second + col})")

    row = f.i64(64)
    f.line(f"call void @llvm.x86.ldtilecfg({config})")
    half = step * 16

    def item(i: V) -> None:
        place, column = i // panels, i % panels
        line, block_of = place // per_line, place % per_line
        first = block_of * pairs * PANEL
        rows_left = length - first
        count = f.minimum((rows_left + (PANEL - 1)) // PANEL, pairs)
        start = f.gep(a, line * line_step + first * step, I8)
        weights = f.gep(b, column * panel, I8)

        def block(k: V, at_weights: V) -> V:
            begin, end = f.load(I64, blocks, k), f.load(I64, blocks, k + 1)

            def pair(p: V, _: V) -> V:
                here = f.gep(start, p * PANEL * step, I8)
                results = f.gep(f.scratch, p * 4 * _TILE, I8)

                def clear() -> None:
                    for t in range(4):
                        f.line(f"call void @llvm.x86.tilezero(i8 {t})")

                def again() -> None:
                    for t in range(4):
                        f.load_tile(t, f.gep(results, t * _TILE, I8), row)
                f.when(k.eq(0), clear, again)

                def segment(s: V, w: V) -> V:
                    offset, chunks = f.load(I64, segments, s * 2), f.load(I64, segments, s * 2 + 1)

                    def chunk(_: V, high: V, w: V) -> list[V]:
                        low = f.gep(high, plane, I8)
                        below = f.gep(high, half, I8)
                        b0, b1, b2, b3 = (f.gep(w, t * _TILE, I8) for t in range(4))
                        coming = f.gep(w, (p & (share - 1)) * (4 * _TILE // share) + _AHEAD, I8)
                        for at in range(0, 4 * _TILE // share, 64):
                            f.prefetch(coming, at, level=2)
                        f.load_tile(4, high, step)
                        f.load_tile(6, b0, row)
                        f.load_tile(7, b1, row)
                        f.load_tile(5, below, step)
                        multiply(4, 6)
                        f.load_tile(6, b2, row)
                        f.load_tile(7, b3, row)
                        multiply(4, 6)
                        f.load_tile(4, low, step)
                        f.load_tile(6, b0, row)
                        f.load_tile(7, b1, row)
                        f.load_tile(5, f.gep(low, half, I8), step)
                        multiply(4, 6)
                        return [f.gep(high, chunk_step, I8), f.gep(w, 4 * _TILE, I8)]
                    return f.loop(0, chunks, 1, [f.gep(here, offset, I8), w], chunk)[1]
                (w,) = f.loop(begin, end, 1, [at_weights], segment)
                for t in range(4):
                    to = f.gep(results, t * _TILE, I8)
                    f.store_tile(t, to, row)
                return w
            return f.loop(0, count, 1, [at_weights], pair)[0]
        f.loop(0, n_blocks, 1, [weights], block)
        keep(line, first, f.minimum(rows_left, pairs * PANEL), column * PANEL)

    def keep(line: V, first: V, count: V, column: V) -> None:
        """Store the finished rows: the tree on each, the dropped positions left out."""
        ends = [f.mask(lanes, n - column), f.mask(lanes, n - column - lanes)]
        target = f.gep(out, (line * out_line + column) * size_of_result, I8)
        bases = [f.gep(p, line * by_line + (column if inner else 0), LLVM[dtype])
                 for p, by_line, _, _, inner, dtype in sides]

        def run_of(r: V, y: V, x: V, size: V) -> None:
            source = f.gep(f.scratch, f.emit(I64, f"lshr {r}, 4") * 512 + (r & 15) * 16, F32)
            starts = [f.gep(target, (y * out_row + x * out_col) * size_of_result, I8), *(
                f.gep(at, y * by_row + x * by_col, LLVM[dtype])
                for at, (_, _, by_row, by_col, _, dtype) in zip(bases, sides, strict=True))]

            def each(_: V, source: V, to: V, *at: V) -> list[V]:
                for c in range(2):
                    value = f.load(vf, source, c * 256)
                    if tree is not None:
                        value = emit(f, tree, [value, *(operand(a, c, inner, dtype) for a, (*_, inner, dtype)
                                                        in zip(at, sides, strict=True))])
                    f.store_masked(value, f.gep(to, c * lanes * size_of_result, I8), 0,
                                   ends[c] if masked else None)
                return [f.gep(source, 16, F32), f.gep(to, out_col * size_of_result, I8), *(
                    f.gep(a, o[3], LLVM[o[5]]) for a, o in zip(at, sides, strict=True))]
            f.loop(0, size, 1, [source, *starts], each)

        def stretch(r: V, y: V, x: V) -> tuple[V, list[V]]:
            kept = x < valid
            size = f.minimum(f.select(kept, f.minimum(valid - x, 16 - (r & 15)), width - x), count - r)
            f.when(kept, lambda: run_of(r, y, x, size))
            following, after = r + size, x + size
            wrap = after.eq(width)
            return following < count, [following, f.select(wrap, y + 1, y), f.select(wrap, 0, after)]

        def operand(at: V, c: int, inner: int, dtype: str) -> V:
            ty = vec(LLVM[dtype], lanes)
            if not inner:
                return f.splat(f.load(LLVM[dtype], at), lanes)
            return f.load_masked(ty, at, c * lanes, ends[c] if masked else None)
        f.repeat([f.i64(0), first // width, first % width], stretch)
    f.loop(f.lo, f.hi, 1, [], item)
    f.line("call void @llvm.x86.tilerelease()")


def scratch(pairs: int) -> int:
    """Bytes of scratch for items of `pairs` pairs of row tiles."""
    return pairs * 4 * _TILE


@dataclass(frozen=True)
class Sums:
    """What a contraction sums: `segments` as (byte offset, chunks), and the borders of blocks of them."""

    segments: tuple[tuple[int, int], ...]
    blocks: tuple[int, ...]

    @cached_property
    def chunks(self) -> int:
        return sum(c for _, c in self.segments)


@choice()
def sums(offsets: tuple[int, ...], chunks: int, chunk_step: int, block: int) -> Sums:
    """Segments at byte `offsets` of `chunks` chunks each, `chunk_step` bytes apart; cut where longer than
    `block` chunks, and grouped: after a block the next rows are taken, so that its share of the second factor
    stays in the first cache."""
    segments: list[tuple[int, int]] = []
    for offset in offsets:
        pieces = -(-chunks // block)
        at = 0
        for i in range(pieces):
            size = (chunks * (i + 1)) // pieces - at
            segments.append((offset + at * chunk_step, size))
            at += size
    blocks, held = [0], 0
    for i, (_, size) in enumerate(segments):
        if held and held + size > block:
            blocks.append(i)
            held = 0
        held += size
    return Sums(tuple(segments), (*blocks, len(segments)))


@choice()
def pairs(lines: int, length: int, panels: int, chunks: int, threads: int = 2) -> tuple[int, int]:
    """Pairs of row tiles to an item, and items to a line: few enough that rows stay in the second cache, and
    enough items to divide."""
    whole = -(-length // PANEL)
    most = max(1, min(16, (640 << 10) // (chunks * CHUNK * PANEL * 4)))
    per_line = -(-whole // most)
    while lines * per_line * panels < 4 * threads and per_line < whole:
        per_line += 1
    each = -(-whole // per_line)
    return each, -(-whole // each)
