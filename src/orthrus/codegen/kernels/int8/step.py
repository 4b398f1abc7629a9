"""The inner step of products of bytes, per kind of machine: sums of int32 += bytes of A times bytes of B.

In: addresses of rows of A, any int8 or uint8, or for `WIDENED` int16 that hold them, and of a panel of B
(int8), in which the `group` bytes of K that a lane multiplies at once are adjacent. Out: vectors of int32,
exact but for a constant times B's column sums where the machine multiplies only one sign of A
(`Unit.offset`).
"""

from __future__ import annotations

from collections.abc import Sequence

from ....records import dataclass
from ...machines.machine import Machine
from ...write.body import Body
from ...write.emit import I8, I16, I32, V, size_of, vec
from ...write.tile import Rows

UNROLL = 4
"""Steps of K that are written one after another where a row is a multiple of them."""


@dataclass(frozen=True)
class Unit:
    """How a machine multiplies bytes. `group`: bytes of K a lane takes at once; `temporaries`: registers a
    step needs beside the sums, and one for each vector across."""

    kind: str
    group: int
    temporaries: int = 2

    @property
    def size(self) -> int:
        """Bytes of an element of A."""
        return 2 if self.kind == "widened" else 1

    def offset(self, signed: bool) -> int:
        """What a step adds to every element of A, signed or not, before it multiplies."""
        if self.kind == "vnni" and signed:
            return 128
        return -128 if self.kind == "sdot" and not signed else 0


DOT = Unit("vnni", 4)
PAIRS = Unit("pairs", 4, 5)
WIDENED = Unit("widened", 2)
SDOT = Unit("sdot", 4)
WIDE = Unit("wide", 1)


def lanes_of(machine: Machine) -> int:
    """Columns of a vector of sums: of all registers that one instruction works on, where that widens."""
    return machine.lanes() * (machine.group if unit(machine).kind == "wide" else 1)


def unit(machine: Machine, cols: int = 1) -> Unit:
    """What `machine` multiplies bytes with, those of A by `cols` vectors: for more than one it is worth while
    to widen A before."""
    if machine.matrix is not None:
        return Unit("ime", machine.matrix[2])
    if machine.arch == "x86_64":
        if machine.has("avx512vnni" if machine.vector == 64 else "avxvnni"):
            return DOT
        return WIDENED if cols > 1 else PAIRS
    return SDOT if machine.arch == "aarch64" and machine.has("dotprod") else WIDE


class Columns:
    """The vectors of a panel's step of K, ready to be multiplied."""

    def __init__(self, f: Body, unit: Unit, at: V, cols: int, lanes: int) -> None:
        self.f, self.unit, self.lanes = f, unit, lanes
        ty = vec(I8, lanes * unit.group)
        size = size_of(ty)
        loaded = [f.load(ty, at, c * size) for c in range(cols)]
        if unit.kind == "wide":
            self.parts = [[f.cast(f.cast(x, I16), I32)] for x in loaded]
        elif unit.kind == "pairs":
            halves = [f.bitcast(x, vec(I16, 2 * lanes)) for x in loaded]
            self.parts = [[(x << 8) >> 8, x >> 8] for x in halves]
        elif unit.kind == "widened":
            self.parts = [[f.cast(x, I16)] for x in loaded]
        else:
            self.parts = [[f.bitcast(x, vec(I32, lanes)) if unit.kind == "vnni" else x] for x in loaded]

    def row(self, at: V, signed: bool) -> list[V]:
        """The `group` elements of A at `at`, in every lane."""
        f, lanes = self.f, self.lanes
        if self.unit.kind == "wide":
            x = f.splat(f.cast(f.load(I8, at), I16, unsigned=not signed), lanes)
            return [f.cast(x, I32)]
        x = f.splat(f.load(I32, at, 0, 1), lanes)
        if self.unit.kind == "pairs":
            pairs = f.bitcast(x, vec(I16, 2 * lanes))
            return [(pairs << 8) >> 8, pairs >> 8] if signed else [pairs & 255, pairs.lshr(8)]
        if self.unit.kind == "widened":
            return [f.bitcast(x, vec(I16, 2 * lanes))]
        if self.unit.offset(signed):
            x = x ^ f.const(x.ty, -0x7F7F7F80)
        return [x if self.unit.kind == "vnni" else f.bitcast(x, vec(I8, 4 * lanes))]

    def add(self, total: V, row: Sequence[V], column: int) -> V:
        """`total` plus the products of a row of A with vector `column`."""
        f, lanes, kind = self.f, self.lanes, self.unit.kind
        for x, b in zip(row, self.parts[column], strict=True):
            if kind == "vnni":
                total = dot(f, total, x, b)
            elif kind == "sdot":
                total = f.intrinsic(f"aarch64.neon.sdot.v{lanes}i32.v{4 * lanes}i8", total.ty, total, x, b)
            elif kind in ("pairs", "widened"):
                total = multiplied(f, total, x, b)
            else:
                total = total + x * b
        return total


def multiplied(f: Body, total: V, x: V, b: V) -> V:
    """`total` plus the products of two int16 of `x` and two of `b`, lane by lane. On x86 LLVM is not to know
    the terms: it would add some of them before, in registers of their own."""
    if f.machine.arch != "x86_64":
        for odd in (0, 1):
            lanes = range(odd, 2 * total.lanes, 2)
            one, other = (f.cast(f.shuffle(v, None, lanes), I32) for v in (x, b))
            total = total + one * other
        return total
    name = {4: "sse2.pmadd.wd", 8: "avx2.pmadd.wd", 16: "avx512.pmaddw.d.512"}[total.lanes]
    total = total + f.intrinsic(f"x86.{name}", total.ty, x, b)
    return f.emit(total.ty, f'call {total.ty} asm "", "=v,0"({total})', total)


def summed(f: Body, unit: Unit, a: Rows, b: V, run: V, sums: Sequence[V], cols: int, signed: bool,
           unroll: int = UNROLL) -> list[V]:
    """The address behind the part of a panel at `b`, and `sums`, row by row of `cols` vectors, plus the
    products of the first `run` bytes of the rows `a` with it; `run` is a multiple of `unroll` steps."""
    bases, lanes, wide = len(a.bases), sums[0].lanes, unit.group
    each = wide * unit.size

    def steps(_: V, *state: V) -> list[V]:
        at, b, sums = state[:bases], state[bases], list(state[bases + 1:])
        for u in range(unroll):
            across = Columns(f, unit, f.gep(b, u * cols * lanes * wide, I8), cols, lanes)
            for r in range(a.count):
                x = across.row(a.at(at, r, u * each), signed)
                for c in range(cols):
                    sums[r * cols + c] = across.add(sums[r * cols + c], x, c)
            f.fence()
        return [*(f.gep(p, unroll * each, I8) for p in at), f.gep(b, unroll * cols * lanes * wide, I8), *sums]
    return f.loop(0, run, unroll * wide, [*a.bases, b, *sums], steps)[bases:]


def dot(f: Body, total: V, x: V, b: V) -> V:
    """`total` plus the products of four unsigned bytes of `x` and four signed ones of `b`, lane by lane."""
    bytes_ = vec(I8, 4 * total.lanes)
    name = f"x86.avx512.vpdpbusd.{32 * total.lanes}"
    return f.intrinsic(name, total.ty, total, f.bitcast(x, bytes_), f.bitcast(b, bytes_))
