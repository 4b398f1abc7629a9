"""Weights of few bits: how they lie in memory, and how kernels get numbers from them.

In: a matrix (n, k) of codes in blocks along k; each block has a scale, and perhaps a zero point. Out: panels
of `wide` rows of n, each the codes, then the scales, then the zero points of its rows, the same element of
all rows adjacent. Codes stay what they were, in words of 32 bits, the lowest bits first; nothing takes more
memory than the model's own tensors, but for what fills up the last panel and words of zero points.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import numpy as np

from ....records import dataclass
from ...runtime.call_kernel import aligned
from ...write.body import Body
from ...write.convert import has
from ...write.emit import F32, I8, I32, V, vec
from ...write.expr import BYTES, LLVM
from ...write.tile import as_float

CHUNK = 16
"""Elements of k that every block is a multiple of: whole words for any number of bits."""

_LINE = 64
_AHEAD = 4096
"""Bytes of codes that lie between what is read and what is fetched."""


@dataclass(frozen=True)
class Blocks:
    """What is packed: `bits` of a code, `block` elements of k with one scale, of type `scale` (numpy's name).
    `zeros`: the zero point of all blocks, or how each has its own: as "codes" or as "floats" of the type of
    the scales. `values`: the bits of the float32 numbers that codes stand for, where they are no integers."""

    bits: int
    block: int
    scale: str = "float32"
    zeros: int | str = 0
    values: tuple[int, ...] = ()

    @property
    def per_word(self) -> int:
        return 32 // self.bits

    def count(self, k: int) -> int:
        """Blocks along k."""
        return -(-k // self.block)

    def bytes(self, elements: np.ndarray) -> np.ndarray:
        """Codes (n, k), uint8, as bytes (n, size) that hold several, the first in the lowest bits."""
        each = 8 // self.bits
        filled = np.pad(elements, ((0, 0), (0, -elements.shape[1] % each)))
        apart = filled.reshape(len(filled), -1, each) << np.arange(0, 8, self.bits, dtype=np.uint8)
        return np.bitwise_or.reduce(apart, axis=2)

    def whole(self, elements: np.ndarray) -> np.ndarray:
        """The same, filled up with zeros to whole blocks."""
        return self.bytes(np.pad(elements, ((0, 0), (0, -elements.shape[1] % self.block))))

    def parts(self, count: int) -> tuple[int, int, int]:
        """Bytes of codes, scales and zero points of a row with `count` blocks, a size or what stands for one.
        """
        zeros = {"codes": (count + (self.per_word - 1)) // self.per_word * 4,
                 "floats": count * BYTES[self.scale]}
        return (count * (4 * self.block // self.per_word), count * BYTES[self.scale],
                zeros[self.zeros] if isinstance(self.zeros, str) else 0)


def floats(numbers: Sequence[float]) -> tuple[int, ...]:
    """The bits of float32 numbers: `Blocks.values`."""
    return struct.unpack(f"<{len(numbers)}i", struct.pack(f"<{len(numbers)}f", *numbers))


def pack(how: Blocks, wide: int, codes: np.ndarray, scales: np.ndarray, zeros: np.ndarray | None
         ) -> np.ndarray:
    """Panels of `wide` rows, uint8 (panels, bytes). `codes` (n, bytes): whole blocks; `scales` (n, count);
    `zeros` (n, bytes) where they are codes, else (n, count)."""
    n, count = scales.shape
    panels = -(-n // wide)
    sizes = [wide * size for size in how.parts(count)]
    out = aligned((panels, -(-sum(sizes) // _LINE) * _LINE), np.uint8)
    out[...] = 0
    begin = 0
    for rows, size in zip((codes, scales, zeros), sizes, strict=True):
        if rows is None or not size:
            continue
        if rows.dtype == np.uint8:
            rows = _words(rows)
        each = size // (wide * rows.itemsize)
        for p in range(panels):
            mine = rows[p * wide:(p + 1) * wide]
            there = out[p, begin:begin + size].view(rows.dtype).reshape(each, wide)
            there[:, :len(mine)] = mine.T
        begin += size
    return out


def _words(rows: np.ndarray) -> np.ndarray:
    """Bytes (n, size) as words of 32 bits, filled up with zeros."""
    missing = -rows.shape[1] % 4
    if missing:
        rows = np.pad(rows, ((0, 0), (0, missing)))
    return np.ascontiguousarray(rows).view("<u4")


class Panel:
    """A panel where a kernel has come: `count` blocks of `cols` vectors of `lanes` rows each."""

    def __init__(self, f: Body, how: Blocks, b: V, index: V, k: V, cols: int, lanes: int) -> None:
        self.f, self.how, self.cols, self.lanes = f, how, cols, lanes
        self.count = (k + (how.block - 1)) // how.block
        codes, scales, zeros = (f.i64(size) * (cols * lanes) for size in how.parts(self.count))  # type: ignore
        size = (codes + scales + zeros + (_LINE - 1)) & -_LINE
        self.codes = f.gep(b, index * size, I8)
        self.scales = f.gep(self.codes, codes, I8)
        self.zeros = f.gep(self.scales, scales, I8)
        self.table = numbers(how) if lanes == _PERMUTED and has(f, "avx512f") else None

    def word(self, at: V, w: int) -> list[V]:
        """The vectors of word `w` behind `at`."""
        size = 4 * self.lanes
        return [self.f.load(vec(I32, self.lanes), self.f.gep(at, (w * self.cols + c) * size, I8))
                for c in range(self.cols)]

    def fetch(self, at: V, w: int) -> None:
        """Fetch ahead what follows word `w` behind `at`."""
        size = 4 * self.cols * self.lanes
        for line in range(0, size, _LINE):
            self.f.prefetch(at, _AHEAD + w * size + line)

    def fetch_scales(self, block: V) -> None:
        """The same of the scales and zero points that follow a block."""
        f, how, wide = self.f, self.how, self.cols * self.lanes
        ahead = block + max(1, _AHEAD * how.per_word // (4 * wide * how.block))
        rows = [(self.scales, ahead, BYTES[how.scale])]
        if how.zeros == "codes":
            rows.append((self.zeros, ahead // how.per_word, 4))
        elif how.zeros == "floats":
            rows.append((self.zeros, ahead, BYTES[how.scale]))
        for at, row, size in rows:
            for line in range(0, wide * size, _LINE):
                f.prefetch(f.gep(at, row * (wide * size), I8), line)

    def scale(self, block: V) -> list[V]:
        """The scales of a block, a vector each."""
        return self._floats(self.scales, block)

    def zero(self, block: V) -> list[V | None]:
        """The zero points of a block as float32; None where all are the same."""
        f, how = self.f, self.how
        if how.zeros == "floats":
            return list(self._floats(self.zeros, block))
        if how.zeros != "codes":
            return [None] * self.cols
        word = block // how.per_word
        shift = f.splat(f.cast((block - word * how.per_word) * how.bits, I32), self.lanes)
        at = f.gep(self.zeros, word * (4 * self.lanes * self.cols), I8)
        return [f.cast(x.lshr(shift) & ((1 << how.bits) - 1), F32) for x in self.word(at, 0)]

    def _floats(self, at: V, block: V) -> list[V]:
        elem = LLVM[self.how.scale]
        return [as_float(self.f, self.f.load(vec(elem, self.lanes), at, (block * self.cols + c) * self.lanes))
                for c in range(self.cols)]

    def value(self, word: V, j: int, zero: V | None) -> V:
        """What code `j` of each lane stands for, before it is scaled."""
        f, how, at = self.f, self.how, j * self.how.bits
        if self.table is not None and how.zeros != "codes":
            table = f.bitcast(f.const(vec(I32, _PERMUTED), self.table), vec(F32, _PERMUTED))
            made = f.intrinsic("x86.avx512.permvar.sf.512", table.ty, table, word.lshr(at) if at else word)
            return made if zero is None else made - zero
        if how.values:
            return f.gather(F32, f.table(I32, how.values), word.lshr(at) & ((1 << how.bits) - 1))
        if at + how.bits > _MANTISSA:
            word, at = word.lshr(_DOWN), at - _DOWN
        power = f.const(vec(F32, self.lanes), 2.0 ** (_MANTISSA - at))
        made = f.bitcast(word & ((1 << how.bits) - 1 << at) | f.bitcast(power, word.ty), power.ty)
        if zero is None:
            return made - (2.0 ** (_MANTISSA - at) + float(how.zeros))
        return made - (power + zero) if how.zeros == "codes" else made - power - zero


_MANTISSA = 23
"""Bits of a float32's mantissa: an integer in them is read off as the distance to a power of two."""

_DOWN = 12
"""By what a word is shifted so that its upper codes lie in the mantissa."""

_PERMUTED = 16
"""Numbers that an instruction picks from by the low four bits of an index each."""


def numbers(how: Blocks) -> list[int] | None:
    """The bits of float32 that the low four bits of a word stand for; None for codes of more bits."""
    if how.bits > 4:
        return None
    zero = how.zeros if isinstance(how.zeros, int) else 0
    values = how.values or floats([code - zero for code in range(1 << how.bits)])
    return list(values) * (_PERMUTED >> how.bits)


def unpack_panel(f: Body, panel: Panel, begin: V | int, size: V, target: V) -> None:
    """Elements `begin` to `begin + size` of k, as rows of float32 one after another at `target`. `begin` is a
    multiple of CHUNK; rows up to the next one are written too."""
    how, wide = panel.how, panel.cols * panel.lanes
    words = CHUNK // how.per_word
    row = 4 * wide

    def chunk(i: V) -> None:
        k = i + begin
        block = k // how.block
        scales, zeros = panel.scale(block), panel.zero(block)
        at, to = f.gep(panel.codes, k * (row // how.per_word), I8), f.gep(target, i * row, I8)
        for w in range(words):
            vectors = panel.word(at, w)
            for j in range(how.per_word):
                for c, (word, scale, zero) in enumerate(zip(vectors, scales, zeros, strict=True)):
                    f.store(panel.value(word, j, zero) * scale, to,
                            (w * how.per_word + j) * wide + c * panel.lanes, 4 * panel.lanes)
            f.fence()
    f.loop(0, size, CHUNK, [], chunk)
