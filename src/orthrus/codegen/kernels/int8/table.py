"""Bytes by a table: out[i] = table[x[i]], the table of 256 bytes indexed by what is read as uint8.

In and out: rows of adjacent bytes, each side's rows a pitch apart. A machine that picks bytes of a register
by bytes of another looks a vector up at once.
"""

from __future__ import annotations

from collections.abc import Callable

from ...write.body import Body
from ...write.emit import I8, I64, V, vec
from ...write.template import template

BLOCK = 1 << 14
"""Bytes of an item."""


@template("x:ptr out:ptr table:ptr n:i64 x_row:i64 out_row:i64 blocks:i64")
def bytes_by_table(f: Body, x: V, out: V, table: V, n: V, x_row: V, out_row: V, blocks: V) -> None:
    """An item is a block of a row of `n` bytes, of which there are `blocks`."""
    lanes, picked = _lookup(f, table)
    ty = vec(I8, lanes)

    def item(i: V) -> None:
        row = i // blocks
        begin = (i - row * blocks) * BLOCK
        end = f.fast_min(begin + BLOCK, n)
        source, target = f.gep(x, row * x_row, I8), f.gep(out, row * out_row, I8)

        def one(j: V) -> None:
            at = f.cast(f.load(I8, source, j), I64, unsigned=True)
            f.store(f.load(I8, table, at), target, j)
        whole = begin + ((end - begin) & -lanes) if lanes > 1 else begin
        if lanes > 1:
            f.loop(begin, whole, lanes, [], lambda j: f.store(picked(f.load(ty, source, j)), target, j))
        f.loop(whole, end, 1, [], one)
    f.loop(f.lo, f.hi, 1, [], item)


def _lookup(f: Body, table: V) -> tuple[int, Callable[[V], V]]:
    """How many bytes the machine looks up at once, and how; 1 where it has no instructions for it."""
    machine = f.machine
    if machine.has("avx512vbmi"):
        return 64, _by_halves(f, table)
    if machine.has("ssse3"):
        return machine.vector, _by_sixteens(f, table)
    if machine.arch == "aarch64":
        return 16, _by_quarters(f, table)
    return 1, lambda x: x


def _by_halves(f: Body, table: V) -> Callable[[V], V]:
    """Two instructions that pick from 128 bytes each."""
    ty = vec(I8, 64)
    parts = [f.load(ty, table, 64 * i) for i in range(4)]

    def picked(x: V) -> V:
        low, high = (f.intrinsic("x86.avx512.vpermi2var.qi.512", ty, a, x, b)
                     for a, b in (parts[:2], parts[2:]))
        return f.select(x < 0, high, low)
    return picked


def _by_sixteens(f: Body, table: V) -> Callable[[V], V]:
    """For every sixteen bytes of the table one that picks from them, and 0 where another does."""
    lanes = f.machine.vector
    ty = vec(I8, lanes)
    name = {16: "x86.ssse3.pshuf.b.128", 32: "x86.avx2.pshuf.b", 64: "x86.avx512.pshuf.b.512"}[lanes]
    parts = [f.shuffle(f.load(vec(I8, 16), table, 16 * i), None, [*range(16)] * (lanes // 16))
             for i in range(16)]

    def picked(x: V) -> V:
        total = f.zero(ty)
        for i, part in enumerate(parts):
            other = f.intrinsic(f"uadd.sat.v{lanes}i8", ty, x - 16 * i if i else x, f.const(ty, 0x70))
            total = total | f.intrinsic(name, ty, part, other)
        return total
    return picked


def _by_quarters(f: Body, table: V) -> Callable[[V], V]:
    """Four instructions that pick from 64 bytes each, and give 0 beyond."""
    ty = vec(I8, 16)
    parts = [f.load(ty, table, 16 * i) for i in range(16)]

    def picked(x: V) -> V:
        total = f.zero(ty)
        for i in range(4):
            index = x - 64 * i if i else x
            total = total | f.intrinsic("aarch64.neon.tbl4.v16i8", ty, *parts[4 * i:4 * i + 4], index)
        return total
    return picked
