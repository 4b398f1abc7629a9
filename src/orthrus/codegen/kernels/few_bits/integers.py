"""Rows of bytes times weights of few bits: exact sums of integers in each block, multiplied by both scales.

In: A (m, k), which `few_bits_bytes` turns into bytes with a scale for each block of each row, and panels that
`layout.pack` made. Out: C = tree(A·Bᵀ), contiguous along n. Sums over blocks are float32, in order of k: the
results do not depend on how the work is divided.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...machines.machine import Machine
from ...write.body import Body
from ...write.emit import F32, I8, I16, I32, V, vec
from ...write.expr import LLVM, Expr
from ...write.template import template
from ...write.tile import Masks, Operand, Rows, TileEpilogue, as_float
from ..int8.step import unit
from . import tiles as division
from .layout import CHUNK, Blocks, Panel

SPLIT = 400_000
"""Multiply-adds below which work is not divided among threads."""

CODE_SPLIT = 1 << 14
"""Elements of A below which turning it into bytes is not divided."""

_LARGEST = 127
_UNROLL = 2 * CHUNK
_CHAINS = 8


def multiplies(machine: Machine) -> bool:
    """Whether the machine multiplies bytes faster than floats."""
    return unit(machine).kind in ("vnni", "pairs", "sdot")


def shift(machine: Machine, how: Blocks) -> int:
    """What is taken from codes before they are multiplied: those of eight bits may have to be signed."""
    return 128 if how.bits == 8 and unit(machine).kind == "sdot" else 0


def factor(machine: Machine, how: Blocks) -> int:
    """By what `few_bits_bytes` multiplies the sums of A's blocks: the zero point's share in the sum of
    products, or -1 where each block has its own."""
    return shift(machine, how) - how.zeros if isinstance(how.zeros, int) else -1


def order(how: Blocks) -> list[int]:
    """Which of CHUNK elements of k stand where in A: bytes that meet the codes which one mask leaves in a
    word stand together."""
    each = 8 // how.bits
    return [first + i * each + s for first in range(0, CHUNK, how.per_word) for s in range(each)
            for i in range(4)]


@template("a:ptr codes:ptr scales:ptr starts:ptr k:i64 a_row:i64 count:i64")
def few_bits_bytes(f: Body, a: V, codes: V, scales: V, starts: V, k: V, a_row: V, count: V, *, a_type: str,
                   how: Blocks, factor: int) -> None:
    """Item row * count + block: the block's bytes, its scale, and its sum times `factor`. The largest element
    becomes 127; where one is not finite, nor is the scale."""
    elem = LLVM[a_type]
    ints = vec(I32, CHUNK)
    small, magic, turned = 2.0 ** -126, 1.5 * 2 ** 23, order(how)

    def item(i: V) -> None:
        row = i // count
        begin = (i - row * count) * how.block
        end = f.fast_min(begin + how.block, k)
        whole = begin + ((end - begin) & -CHUNK)
        mine = f.gep(a, row * a_row, elem)
        out = f.gep(codes, i * how.block, I8)

        def loaded(j: V, whole: bool) -> V:
            if whole:
                return as_float(f, f.load(vec(elem, CHUNK), mine, j))
            return as_float(f, f.load_masked(vec(elem, CHUNK), mine, j, f.mask(CHUNK, end - j)))

        def size(j: V, most: V, whole: bool) -> V:
            return f.maximum(most, f.bitcast(loaded(j, whole), ints) & 0x7FFFFFFF)
        (most,) = f.loop(begin, whole, CHUNK, [f.zero(ints)], lambda j, most: size(j, most, True))
        (most,) = f.loop(whole, end, CHUNK, [most], lambda j, most: size(j, most, False))
        largest = f.bitcast(f.reduce(most, f.maximum), F32)
        scale = f.fast_max(f.const(F32, small), largest / float(_LARGEST))
        by = f.splat(f.fast_min(float(_LARGEST) / largest, f.const(F32, 1 / small)), CHUNK)

        def code(j: V, total: V, whole: bool) -> V:
            near = f.fma(loaded(j, whole), by, magic)
            made = (f.bitcast(near, ints) << 24) >> 24
            f.store(f.cast(f.shuffle(made, None, turned), I8), out, j - begin)
            return total + made
        (total,) = f.loop(begin, whole, CHUNK, [f.zero(ints)], lambda j, total: code(j, total, True))
        (total,) = f.loop(whole, end, CHUNK, [total], lambda j, total: code(j, total, False))
        filled = begin + ((end - begin + (CHUNK - 1)) & -CHUNK)
        f.loop(filled, begin + how.block, CHUNK, [],
               lambda j: f.store(f.zero(vec(I8, CHUNK)), out, j - begin))
        f.store(scale, scales, i)
        f.store(f.reduce(total, lambda x, y: x + y) * factor, starts, i)
    f.loop(f.lo, f.hi, 1, [], item)


CELLS = "codes:ptr scales:ptr starts:ptr b:ptr c:ptr " + division.CELLS


def most(machine: Machine, cols: int) -> int:
    """Rows whose sums, those of a block and those of all, fit the registers."""
    return max(1, min(14, (machine.registers - 3 - 2 * cols) // (2 * cols)))


class Dot:
    """Sums of products of four bytes, unsigned codes of a word by the signed bytes of A that meet them."""

    def __init__(self, f: Body, how: Blocks, lanes: int) -> None:
        self.f, self.how, self.lanes = f, how, lanes
        self.kind = unit(f.machine).kind
        if self.kind == "pairs" and how.bits < 8 and f.machine.has("ssse3"):
            self.kind = "short pairs"

    def parts(self, word: V) -> list[V]:
        """The codes of a word, four to a lane."""
        f, bits = self.f, self.how.bits
        if bits == 8:
            return [word ^ f.const(word.ty, -0x7F7F7F80) if shift(f.machine, self.how) else word]
        mask = ((1 << bits) - 1) * 0x01010101
        return [(word.lshr(s) if s else word) & mask for s in range(0, 8, bits)]

    def add(self, total: V, parts: Sequence[V], rows: Sequence[V]) -> V:
        """`total` plus the products of all codes of a word with `rows`, four bytes of A each."""
        f, lanes = self.f, self.lanes
        bytes_, pairs = vec(I8, 4 * lanes), vec(I16, 2 * lanes)
        if self.kind == "short pairs":
            name = {4: "ssse3.pmadd.ub.sw.128", 8: "avx2.pmadd.ub.sw", 16: "avx512.pmaddubs.w.512"}[lanes]
            each = [f.intrinsic(f"x86.{name}", pairs, f.bitcast(p, bytes_), f.bitcast(x, bytes_))
                    for p, x in zip(parts, rows, strict=True)]
            found = each[0]
            for x in each[1:]:
                found = found + x
            return total + self._by_pairs(found, f.const(pairs, 1), total.ty)
        for p, x in zip(parts, rows, strict=True):
            if self.kind == "vnni":
                total = f.intrinsic(f"x86.avx512.vpdpbusd.{32 * lanes}", total.ty, total,
                                    f.bitcast(p, bytes_), f.bitcast(x, bytes_))
            elif self.kind == "sdot":
                total = f.intrinsic(f"aarch64.neon.sdot.v{lanes}i32.v{4 * lanes}i8", total.ty, total,
                                    f.bitcast(p, bytes_), f.bitcast(x, bytes_))
            else:
                p, x = f.bitcast(p, pairs), f.bitcast(x, pairs)
                total = total + self._by_pairs(p & 255, (x << 8) >> 8, total.ty)
                total = total + self._by_pairs(p.lshr(8), x >> 8, total.ty)
        return total

    def _by_pairs(self, a: V, b: V, ty: str) -> V:
        name = {4: "sse2.pmadd.wd", 8: "avx2.pmadd.wd", 16: "avx512.pmaddw.d.512"}[self.lanes]
        return self.f.intrinsic(f"x86.{name}", ty, a, b)


@template(CELLS)
def few_bits_integers(f: Body, codes: V, scales: V, starts: V, b: V, c: V, n: V, k: V, c_row: V, tiles: V,
                      tall: V, per_rows: V, row_blocks: V, *, how: Blocks, cols: int,
                      heights: tuple[int, ...], tail: bool, tree: Expr | None,
                      operands: tuple[Operand, ...]) -> None:
    """Items of `tiles.over`. Behind the cells, per operand: its address and its stride over rows."""
    lanes = f.machine.lanes()
    floats, ints = vec(F32, lanes), vec(I32, lanes)
    dot, finish = Dot(f, how, lanes), TileEpilogue(f, tree, operands)
    sides = division.places(f, CELLS, len(operands))
    unroll = min(how.block, _UNROLL)
    words, across, size = unroll // how.per_word, 4 * cols * lanes, 8 // how.bits
    varied, less = isinstance(how.zeros, str), float(shift(f.machine, how))

    def tile(p: V, first: V, rows: int, col: V, masks: Masks) -> None:
        panel = Panel(f, how, b, p, k, cols, lanes)
        sets = min(4, words, -(-_CHAINS // (rows * cols)))
        count, pitch = panel.count, panel.count * how.block
        lines = Rows(f, f.gep(codes, first * pitch, I8), pitch, rows)
        by, begins = (Rows(f, f.gep(at, first * count, F32), count * 4, rows) for at in (scales, starts))
        ends = len(lines.bases)

        def part(_: V, *state: V) -> list[V]:
            at, weights, sums = state[:ends], state[ends], list(state[ends + 1:])
            for w in range(words):
                panel.fetch(weights, w)
                parts = [dot.parts(x) for x in panel.word(weights, w)]
                chain = w % sets * rows * cols
                for r in range(rows):
                    met = [f.splat(f.load(I32, lines.at(at, r, (w * size + s) * 4), 0, 1), lanes)
                           for s in range(size)]
                    for j in range(cols):
                        s = chain + r * cols + j
                        sums[s] = dot.add(sums[s], parts[j], met)
                f.fence()
            return [*(f.gep(x, unroll, I8) for x in at), f.gep(weights, words * across, I8), *sums]

        def block(i: V, *state: V) -> list[V]:
            at, totals = state[:ends], state[3 * ends + 1:]
            panel.fetch_scales(i)
            far, near = state[ends + 1:2 * ends + 1], state[2 * ends + 1:3 * ends + 1]
            begin = [f.splat(f.load(I32, begins.at(near, r, 0)), lanes) for r in range(rows)]
            zero = f.zero(ints)
            sums = [zero if varied else begin[r] for r in range(rows) for _ in range(cols)]
            given = [*at, state[ends], *sums, *[zero] * ((sets - 1) * rows * cols)]
            made = part(i, *given) if how.block == unroll else f.loop(0, how.block, unroll, given, part)
            sums = list(made[ends + 1:])
            for s in range(rows * cols, len(sums)):
                sums[s % (rows * cols)] = sums[s % (rows * cols)] + sums[s]
            weights = panel.scale(i)
            zeros = [None if z is None else z - less if less else z for z in panel.zero(i)]
            after = []
            for r in range(rows):
                own = f.splat(f.load(F32, by.at(far, r, 0)), lanes)
                for j in range(cols):
                    x, z = f.cast(sums[r * cols + j], F32), zeros[j]
                    if z is not None:
                        x = f.fma(z, f.cast(begin[r], F32), x)
                    after.append(f.fma(x * own, weights[j], totals[r * cols + j]))
            return [*made[:ends + 1], *(f.gep(x, 4, I8) for x in (*far, *near)), *after]
        start = [*lines.bases, panel.codes, *by.bases, *begins.bases, *[f.zero(floats)] * (rows * cols)]
        totals = f.loop(0, count, 1, start, block)[3 * ends + 1:]
        out, *rest = division.corners(f, [(c, c_row), *sides], first, col, finish.dtype, operands)
        finish.store(totals, cols, out, rest, masks)

    division.over(f, (n, k, c_row, tiles, tall, per_rows, row_blocks), heights, cols, tail, tile)
