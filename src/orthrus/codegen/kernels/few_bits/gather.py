"""Rows of a table of few bits, by index, as floats.

In: a table (size, k) as it is stored: codes with the first in the lowest bits, a scale for each block of k,
perhaps a zero point. Out: (code - zero) * scale of the rows that indices name, each rounded once.
"""

from __future__ import annotations

from ...write.body import Body
from ...write.convert import convert
from ...write.emit import F32, I8, I32, V, vec
from ...write.expr import LLVM
from ...write.template import template
from ...write.tile import as_float
from ..gather import index_at
from .layout import CHUNK, Blocks

PIECE = 1024
"""Elements of a row that an item gathers at most; a multiple of every block."""


@template("out:ptr codes:ptr scales:ptr zeros:ptr indices:ptr status:ptr size:i64 k:i64 pieces:i64 "
          "code_row:i64 scale_row:i64 zero_row:i64")
def few_bits_gather(f: Body, out: V, codes: V, scales: V, zeros: V, indices: V, status: V, size: V, k: V,
                    pieces: V, code_row: V, scale_row: V, zero_row: V, *, how: Blocks, dtype: str) -> None:
    """Item index * pieces + piece. Bytes: `code_row`, `zero_row`; elements: `scale_row`. An index out of
    range sets `status`. `dtype`: of the indices; the result is of the scales' type."""
    elem = LLVM[how.scale]
    each, mask = 8 // how.bits, (1 << how.bits) - 1

    def item(i: V) -> None:
        which = i // pieces
        begin = (i - which * pieces) * PIECE
        end = f.fast_min(begin + PIECE, k)
        row, good = index_at(f, status, indices, which, dtype, size)
        mine, by = f.gep(codes, row * code_row, I8), f.gep(scales, row * scale_row, elem)
        low, to = f.gep(zeros, row * zero_row, I8), f.gep(out, which * k, elem)

        def one(at: V, j: V) -> V:
            """Code `j` behind `at`, as a float."""
            byte = f.load(I8, at, j // each)
            shifted = byte.lshr(f.cast((j - j // each * each) * how.bits, I8)) & mask if each > 1 else byte
            return f.cast(f.cast(shifted, I32, unsigned=True), F32)

        def zero(block: V) -> V:
            return one(low, block) if how.zeros == "codes" else f.const(F32, float(how.zeros))

        def put(x: V, j: V) -> None:
            f.store(convert(f, x, "float32", how.scale), to, j)

        def block(first: V) -> None:
            index = first // how.block
            scale, shift = as_float(f, f.load(elem, by, index)), zero(index)
            last = f.fast_min(first + how.block, end)
            whole = first + ((last - first) & -CHUNK)

            def chunk(j: V) -> None:
                found = _unpacked(f, f.load(vec(I8, CHUNK // each), mine, j // each), how)
                put((found - f.splat(shift, CHUNK)) * f.splat(scale, CHUNK), j)
            f.loop(first, whole, CHUNK, [], chunk)
            f.loop(whole, last, 1, [], lambda j: put((one(mine, j) - shift) * scale, j))
        f.when(good, lambda: f.loop(begin, end, how.block, [], block))
    f.loop(f.lo, f.hi, 1, [], item)


def _unpacked(f: Body, x: V, how: Blocks) -> V:
    """All codes of a vector of bytes, in order, as float32."""
    each = 8 // how.bits
    parts = [(x.lshr(s) if s else x) & ((1 << how.bits) - 1) for s in range(0, 8, how.bits)] if each > 1 \
        else [x]
    while len(parts) > 1:
        half, lanes = len(parts) // 2, parts[0].lanes
        order = [i + side * lanes for i in range(lanes) for side in (0, 1)]
        parts = [f.shuffle(parts[i], parts[i + half], order) for i in range(half)]
    return f.cast(f.cast(parts[0], I32, unsigned=True), F32)
