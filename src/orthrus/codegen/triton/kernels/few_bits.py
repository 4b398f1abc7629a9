"""Products with weights of 2, 4 or 8 bits in blocks along k, which are unpacked in registers.

In: A (m, k) of any strides, and weights as `pack` lays them: chunks of k, of each chunk all n columns, of
each column as many bytes as a block has elements. A byte holds one code of each of the chunk's blocks, the
first block's in the lowest bits, so that a tile of bytes is a tile of codes for each block, with one scale
for each column. Out: the product under the kernel's tree. Codes less their zero point are multiplied as the
numbers of A are stored, exactly; scales are applied to a block's sums, in float32.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from ....records import dataclass
from ...write.expr import Expr
from ..epilogue import Closing, Walk
from ..parts import Parts
from ..write import Writer, kernel
from .gather import checked, reported
from .normal import Entering, Normal
from .products import Tile, lying, place

_WHOLE = 23
"""Bits of a float32's fraction."""

_MAGIC = 0x4B000000
"""2**23 as a float32."""

_UNROLLED = 128
"""Bytes of a column that a tile has, at most."""


@dataclass(frozen=True)
class Codes:
    """How weights lie: `bits` of a code, `block` elements of k, a power of two, with one scale of type
    `scale`. `zeros`: the zero point of all blocks, or "codes" or "floats" where each has its own; `named`:
    codes are places in a table of float32."""

    bits: int
    block: int
    scale: str
    zeros: int | str = 0
    named: bool = False

    @property
    def blocks(self) -> int:
        """How many blocks a chunk has."""
        return 8 // self.bits

    @property
    def chunk(self) -> int:
        """Elements of k in a chunk."""
        return self.block * self.blocks


def pack(how: Codes, codes: np.ndarray, scales: np.ndarray, zeros: np.ndarray | None
         ) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Bytes (chunks, n, block), scales (blocks, n) and zero points: bytes (chunks, n), or as the scales.
    `codes` (n, bytes) are whole blocks, the first element in the lowest bits; `scales` (n, count); `zeros` as
    the one or the other."""
    n, count = scales.shape
    chunks = -(-count // how.blocks)
    elements = _apart(codes, how.bits)[:, :count * how.block]
    filled = np.zeros((n, chunks * how.chunk), np.uint8)
    filled[:, :elements.shape[1]] = elements
    planes = filled.reshape(n, chunks, how.blocks, how.block)
    made = _joined(planes.transpose(1, 0, 3, 2), how.bits)
    if how.zeros != "codes":
        return made, _by_block(scales, chunks * how.blocks), (
            None if zeros is None else _by_block(zeros, chunks * how.blocks))
    assert zeros is not None
    points = np.zeros((n, chunks * how.blocks), np.uint8)
    points[:, :count] = _apart(zeros, how.bits)[:, :count]
    return made, _by_block(scales, chunks * how.blocks), _joined(
        points.reshape(n, chunks, how.blocks).transpose(1, 0, 2), how.bits)


def _apart(packed: np.ndarray, bits: int) -> np.ndarray:
    """Bytes (n, size) as codes, one each."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    codes = packed[..., None] >> shifts & np.uint8((1 << bits) - 1)
    return codes.reshape(len(packed), -1)


def _joined(codes: np.ndarray, bits: int) -> np.ndarray:
    """Codes (..., as many as a byte has) as bytes (...)."""
    shifted = codes << np.arange(0, 8, bits, dtype=np.uint8)
    return np.ascontiguousarray(np.bitwise_or.reduce(shifted, axis=-1))


def _by_block(numbers: np.ndarray, blocks: int) -> np.ndarray:
    """Numbers (n, count) as (blocks, n), zeros behind."""
    made = np.zeros((blocks, len(numbers)), numbers.dtype)
    made[:numbers.shape[1]] = numbers.T
    return made


@dataclass(frozen=True)
class Left:
    """How A is read: its type, a `walk` of its rows, its stride along k, 1 or s; `ordered`: its elements are
    put into the weights' order by a table; `precision`: as of `products.Factors`; `normal`: the normalization
    of its rows, which enter as they are without it."""

    dtype: str
    walk: Walk
    depth: str
    ordered: bool = False
    precision: str = "ieee"
    normal: Normal | None = None


class _Kernel:
    """What both kernels have: arguments, and a block's codes and scales, those of matrix `which`."""

    def __init__(self, k: Writer, left: Left, codes: Codes, closing: Closing, cut: bool) -> None:
        self.k, self.left, self.codes = k, left, codes
        self.a, self.b = k.pointer("a", left.dtype), list[str]()
        self.scales, self.zeros = list[str](), list[str]()
        own = {"codes": "uint8", "floats": codes.scale}
        for which in ("", "1")[:closing.values]:
            self.b.append(k.pointer(f"b{which}", "uint8"))
            self.scales.append(k.pointer(f"scales{which}", codes.scale))
            if isinstance(codes.zeros, str):
                self.zeros.append(k.pointer(f"zeros{which}", own[codes.zeros]))
        self.table = k.pointer("table", "float32") if codes.named else None
        self.order = k.pointer("order", "int32") if left.ordered else None
        self.entering = Entering(k, left.normal) if left.normal is not None else None
        self.parts = Parts(k, "float32", cut)
        self.close = closing.declare(k)
        self.n, self.depth, self.chunks, self.part = (
            k.size(name) for name in ("n", "depth", "chunks", "part"))
        self.along = "1" if left.depth == "1" else k.size("along")
        if self.entering is not None:
            self.entering.numbers()
        self.walking = left.walk.declare(k, "in")

    def begin(self) -> None:
        """Where a part of the chunks begins and ends."""
        self.k.text(f"""
            first = piece * {self.part}
            last = tl.minimum(first + {self.part}, {self.chunks})
        """)

    def bytes(self, columns: str, at: str) -> str:
        """A tile of bytes: `columns` of n, `at` places within blocks."""
        block = self.codes.block
        return self.k.let(f"tl.load({self.b[0]} + chunk.to(tl.int64) * {self.n} * {block} + "
                          f"{columns} * {block} + {at}, mask={columns} < {self.n}, other=0)", "bytes")

    def numbers(self, packed: str, plane: int) -> str:
        """What the codes of one block stand for, less nothing, float32."""
        k, bits = self.k, self.codes.bits
        code = packed if bits == 8 else f"({packed} >> {plane * bits} & {(1 << bits) - 1})"
        if self.table is not None:
            return k.let(f"tl.load({self.table} + {code}.to(tl.int32))", "code")
        return k.let(f"{code}.to(tl.float32)", "code")

    def words(self, columns: str, at: str, which: int) -> str:
        """A tile of four bytes each: `columns` of n, `at` places of words within blocks."""
        block = self.codes.block // 4
        return self.k.let(f"tl.load(words{which} + (chunk.to(tl.int64) * {self.n} + {columns}) * {block} + "
                          f"{at}, mask={columns} < {self.n}, other=0)", "words")

    def apart(self, words: str, plane: int, which: int) -> tuple[list[str], list[int]]:
        """What the codes of one block stand for, less their zero points, float32: of each of the four bytes a
        tile, times a power of two, and the power's exponent. A code that lies in the lowest bits of a number
        from 2**23 on is that number less 2**23, wherever it lies there."""
        k, codes, made, powers = self.k, self.codes, list[str](), list[int]()
        bits, zero = codes.bits, self.zero(plane, which)
        for byte in range(4):
            place = 8 * byte + bits * plane
            if self.table is not None:
                code = k.let(f"({words} >> {place} & {(1 << bits) - 1}).to(tl.int32)")
                made, powers = [*made, k.let(f"tl.load({self.table} + {code})", "code")], [*powers, 0]
                continue
            power = place if place + bits <= _WHOLE else 0
            moved = words if place == power else f"({words} >> {place})"
            mask = (1 << bits) - 1 << power
            number = k.let(f"({moved} & {mask} | {_MAGIC:#x}).to(tl.float32, bitcast=True)")
            if not isinstance(codes.zeros, str):
                value = f"{number} - {float(2 ** _WHOLE + (codes.zeros << power))}"
            else:
                value = f"{number} - {float(2 ** _WHOLE)} - ({zero} * {float(1 << power)})[:, None]"
            made, powers = [*made, k.let(value, "code")], [*powers, power]
        return made, powers

    def quarters(self, x: str, size: int) -> list[str]:
        """Of each four of the `size` elements of `x` the first, the second and so on, float32."""
        k = self.k
        k.text(f"even, odd = tl.split(tl.reshape({x}.to(tl.float32), ({size // 4}, 2, 2)))")
        parts = []
        for pair in ("even", "odd"):
            first, second = k.fresh("part"), k.fresh("part")
            k.text(f"{first}, {second} = tl.split({pair})")
            parts.append((first, second))
        (a, c), (b, d) = parts
        return [a, b, c, d]

    def scale(self, plane: int, which: int = 0) -> str:
        """A block's scales."""
        return self._by_block(self.scales[which], plane)

    def zero(self, plane: int, which: int = 0) -> str | None:
        """A block's zero points, float32; None where they are 0."""
        codes, k = self.codes, self.k
        if not self.zeros:
            return f"{float(codes.zeros)}" if codes.zeros else None
        if codes.zeros == "floats":
            return self._by_block(self.zeros[which], plane)
        packed = f"tl.load({self.zeros[which]} + chunk * {self.n} + rn, mask=rn < {self.n}, other=0)"
        return k.let(f"({packed} >> {plane * codes.bits} & {(1 << codes.bits) - 1}).to(tl.float32)", "zero")

    def _by_block(self, pointer: str, plane: int) -> str:
        at = f"(chunk * {self.codes.blocks} + {plane}) * {self.n} + rn"
        return self.k.let(f"tl.load({pointer} + {at}, mask=rn < {self.n}, other=0).to(tl.float32)", "scale")

    def row(self, at: str, place: str, inside: str) -> str:
        """Elements of the row that begins at `at`, in A's own order."""
        wide = ".to(tl.int64)" if self.left.walk.wide else ""
        return f"tl.load({self.a} + {at} + ({place}){wide} * {self.along}, mask={inside}, other=0)"

    def columns(self, plane: int, at: str) -> tuple[str, str, str]:
        """Offsets of A's elements that a block's codes are multiplied by, which there are, and their
        places."""
        k, codes = self.k, self.codes
        place = k.let(f"chunk * {codes.chunk} + {plane * codes.block} + {at}", "at")
        inside = k.let(f"{place} < {self.depth}", "inside")
        if self.order is not None:
            place = k.let(f"tl.load({self.order} + {place}, mask={inside}, other=0)", "at")
        wide = ".to(tl.int64)" if self.left.walk.wide else ""
        return f"({place}){wide} * {self.along}", inside, place


@kernel
def few_bits_rows(k: Writer, *, left: Left, codes: Codes, closing: Closing, rows: int, columns: int,
                  cut: bool) -> None:
    """A·B of `rows` rows, by each B of as many as the closing has values. Programs count parts of k, if it is
    `cut`, and strips of `columns`."""
    it = _Kernel(k, left, codes, closing, cut)
    wide = min(codes.block, _UNROLLED)
    k.text(f"""
        strips = tl.cdiv({it.n}, {columns})
        program = tl.program_id(0)
        piece = program // strips
        rn = program % strips * {columns} + tl.arange(0, {columns})
        rw = tl.arange(0, {wide})
        word = tl.arange(0, {wide // 4})
    """)
    several = range(closing.values)
    for which in several:
        k.text(f"words{which} = {it.b[which]}.to(tl.pointer_type(tl.uint32))")
    it.begin()
    k.warps = max(1, min(4, columns * wide // (16 * k.target.warp)))
    entering, row_at = it.entering, list[str]()
    for r in range(rows):
        k.text(f"row{r} = tl.full((), {r}, tl.int32)")
        for which in several:
            k.text(f"acc{which}_{r} = tl.zeros(({columns}, {wide // 4}), tl.float32)")
        row_at += [it.walking.offsets([0], [(f"row{r}", None), ("0", None)])[0][0]]
        if entering is not None:
            entering.begin(r, it.depth, functools.partial(it.row, row_at[r]), wide)
    with k.block("for chunk in range(first, last):"):
        for begin in range(0, codes.block, wide):
            packed = [it.words("rn[:, None]", f"(word + {begin // 4})[None, :]", which) for which in several]
            at = f"(rw + {begin})" if begin else "rw"
            for plane in range(codes.blocks):
                parts = [(it.apart(words, plane, which), it.scale(plane, which))
                         for which, words in enumerate(packed)]
                offset, inside, spot = it.columns(plane, at)
                affine = None if entering is None else entering.affine(spot, inside)
                for r in range(rows):
                    x = k.let(f"tl.load({it.a} + {row_at[r]} + {offset}, mask={inside}, other=0)", "x")
                    if entering is not None and affine is not None:
                        x = entering.entered(x, r, affine, inside)
                    quarters = it.quarters(x, wide)
                    for which, (values, scale) in enumerate(parts):
                        total = None
                        for value, power, each in zip(*values, quarters, strict=True):
                            each = k.let(f"{each} * {2.0 ** -power!r}") if power else each
                            by = f"{value}, {each}[None, :]"
                            total = k.let(f"{value} * {each}[None, :]" if total is None else
                                          f"tl.fma({by}, {total})", "total")
                        acc = f"acc{which}_{r}"
                        k.text(f"{acc} = tl.fma({total}, {scale}[:, None], {acc})")
    sums = [f"tl.sum(acc{which}_{r}, 1)" for r in range(rows) for which in several]
    if entering is not None and entering.kept:
        sums += entering.squares(rows, columns)
    with it.parts.last("program", "strips", [k.let(value, "sum") for value in sums],
                       f"tl.arange(0, {columns})", columns) as whole:
        for r in range(rows):
            mine = list(whole[r * closing.values:(r + 1) * closing.values])
            if entering is not None and entering.kept:
                mine = entering.finished(mine, whole[rows * closing.values + r], it.depth)
            it.close.store(mine[0], [(f"row{r}", None), ("rn", f"rn < {it.n}")], *mine[1:])


@kernel
def few_bits_tiles(k: Writer, *, left: Left, codes: Codes, closing: Closing, tile: Tile, cut: bool
                   ) -> None:
    """A·B of many rows. Programs count parts of k, if it is `cut`, and tiles, whose `k` is how many bytes of
    a column."""
    it = _Kernel(k, left, codes, closing, cut)
    m = k.count("m", left.walk.near(1) or closing.walk.near(1))
    place(k, m, it.n, tile)
    k.text(f"""
        rm = row * {tile.m} + tl.arange(0, {tile.m})
        rn = column * {tile.n} + tl.arange(0, {tile.n})
        rw = tl.arange(0, {tile.k})
        acc = tl.zeros(({tile.m}, {tile.n}), tl.float32)
    """)
    it.begin()
    k.warps, k.stages = tile.warps, tile.stages
    (row_at, mask), = it.walking.offsets([0], [("rm[:, None]", f"rm[:, None] < {m}"), ("0", None)],
                                               whole=True)
    how = f", input_precision='{left.precision}'" if left.dtype == "float32" else ""
    with k.block("for chunk in range(first, last):"), k.block(
            f"for begin in range(0, {codes.block}, {tile.k}):"):
        k.text("at = rw + begin")
        packed = it.bytes("rn[None, :]", "at[:, None]")
        for plane in range(codes.blocks):
            value, zero, scale = it.numbers(packed, plane), it.zero(plane), it.scale(plane)
            if zero is not None and codes.zeros != "floats":
                value = k.let(f"{value} - {zero}{'[None, :]' if it.zeros else ''}", "code")
            offset, inside, _ = it.columns(plane, "at[None, :]")
            x = k.let(f"tl.load({it.a} + {row_at} + {offset}, mask={mask} & {inside}, other=0)", "x")
            k.text(f"sums = tl.dot({x}, {value}.to({k.typed(left.dtype)}){how}, out_dtype=tl.float32)")
            if codes.zeros == "floats":
                k.text(f"sums -= tl.sum({x}.to(tl.float32), 1)[:, None] * {zero}[None, :]")
            k.text(f"acc = tl.fma(sums, tl.broadcast_to({scale}[None, :], ({tile.m}, {tile.n})), acc)")
    rows, columns = ("rm[:, None]", f"rm[:, None] < {m}"), ("rn[None, :]", f"rn[None, :] < {it.n}")
    with it.parts.last("program", "tiles", ["acc"], *lying(tile)) as (value,):
        it.close.store(value, [rows, columns])


@kernel
def few_bits_gather(k: Writer, *, codes: Codes, index: str, rows: int, columns: int) -> None:
    """Rows of a table (size, width) of codes that `count` indices name, as (code - zero) * scale in float32,
    rounded once to the scales' type. All in C order; bytes hold codes along a row, the first in the lowest
    bits. An index out of range sets `status`, and nothing is written for it."""
    k.pointer("out", codes.scale)
    k.pointer("codes", "uint8")
    k.pointer("scales", codes.scale)
    if codes.zeros == "codes":
        k.pointer("zeros", "uint8")
    k.pointer("indices", index)
    k.pointer("status", "int64")
    for name in ("count", "size", "pieces"):
        k.count(name)
    for name in ("width", "code_row", "scale_row", "zero_row"):
        k.size(name)
    each, mask = codes.blocks, (1 << codes.bits) - 1

    def one(pointer: str, row: str, at: str, inside: str) -> str:
        """Code `at` of a row of bytes, as a float."""
        byte = k.load(pointer, f"{row} + {at} // {each}", inside)
        return k.let(f"(({byte} >> ({at} % {each} * {codes.bits}).to(tl.uint8)) & {mask}).to(tl.float32)")
    k.text(f"""
        r = (tl.program_id(0) // pieces * {rows} + tl.arange(0, {rows}))[:, None]
        c = (tl.program_id(0) % pieces * {columns} + tl.arange(0, {columns}))[None, :]
        there = r < count
    """)
    given = k.load("indices", "r", "there")
    at, good = checked(k, given, "size", index)
    reported(k, f"there & ({good} == 0)")
    k.text(f"""
        inside = there & {good} & (c < width)
        row = tl.where({good}, {at}, 0).to(tl.int64)
        block = c // {codes.block}
    """)
    value = one("codes", "row * code_row", "c", "inside")
    zero = one("zeros", "row * zero_row", "block",
               "inside") if codes.zeros == "codes" else f"{float(codes.zeros)}"
    scale = k.load("scales", "row * scale_row + block", "inside")
    made = k.let(f"({value} - {zero}) * {scale}.to(tl.float32)")
    value = k.tree(Expr.leaf(0, "float32").cast(codes.scale), [made])
    k.store("out", "r.to(tl.int64) * width + c", value, "inside")
    k.warps, k.stages = max(1, min(4, rows * columns // 256)), 1


def table(values: Any) -> np.ndarray:
    """The numbers that codes stand for, of float32's bits."""
    return np.array(values, np.int32).view(np.float32)
