"""SpacemiT's matrix instruction where the processor does not know it, which is under every emulator so far.

An instruction that is not known raises a signal. The handler takes `smt.vmadot{,u,us,su}` apart, does it on
the saved vector registers, brings them back and goes on behind it. Any other instruction raises the signal
again and ends the process. This holds under qemu's user emulation alone: there the vector registers are the
process's own while a signal is handled, where Linux keeps and brings back a copy.
"""

from __future__ import annotations

from ..machines.machine import TILES
from ..write.emit import I8, I16, I32, I64, PTR, VOID, Function, Module, V
from . import system

SIGNAL = 4
_MASK, _WORD = 0xFE0040FF, 0xE200002B
"""The bits that tell the instruction, of which bit 7 says that C's register is even, and their values."""
_PC = 176 // 8
"""The cell of a signal's context that holds the address of the instruction."""


def handler(module: Module) -> Function:
    """The function for the signal, in `module`."""
    f = module.function("illegal", [(I64, "number"), (PTR, "details"), (PTR, "context")], VOID, internal=True)
    context = f.params[2]
    at = f.load(I64, context, _PC)
    low = f.load(I16, f.cast(at, PTR))
    second = f.select((low & 3).eq(3), at + 2, at)
    high = f.load(I16, f.cast(second, PTR))
    word = f.cast(low, I64, unsigned=True) | f.cast(high, I64, unsigned=True) << 16
    size = system.vector_bytes(f)
    c, a, b = (word.lshr(bit) & 31 for bit in (7, 15, 20))
    known = (word & _MASK).eq(_WORD) & (a.lshr(1)).ne(c.lshr(1)) & (b.lshr(1)).ne(c.lshr(1))
    fits = f.const("i1", 0)
    for vector in TILES:
        fits = fits | size.eq(vector)

    def do() -> None:
        room = f.alloca(I8, system.STATE + 32 * max(TILES))
        system.save(f, room)
        registers = f.gep(room, system.STATE, I8)
        _multiply(f, size, (word & 2 << 12).ne(0), (word & 1 << 12).ne(0),
                  *(f.gep(registers, register * size, I8) for register in (c, a, b)))
        system.restore(f, room)
        f.store(at + 4, context, _PC)
    f.when(known & fits, do, lambda: system.on_signal(f, SIGNAL, None))
    f.ret()
    return f


def _multiply(f: Function, size: V, a_signed: V, b_signed: V, c: V, a: V, b: V) -> None:
    """C += A Bᵀ in memory, with the tile of registers of `size` bytes."""
    (_, (rows, _, deep)), *more = TILES.items()
    m, k = f.i64(rows), f.i64(deep)
    for vector, (rows, _, deep) in more:
        m, k = f.select(size.eq(vector), rows, m), f.select(size.eq(vector), deep, k)

    def element(base: V, index: V, signed: V) -> V:
        x = f.load(I8, base, index)
        return f.select(signed, f.cast(x, I32), f.cast(x, I32, unsigned=True))

    def row(i: V) -> None:
        def column(j: V) -> None:
            (total,) = f.loop(0, k, 1, [f.load(I32, c, i * m + j)], lambda q, total: total + element(
                a, i * k + q, a_signed) * element(b, j * k + q, b_signed))
            f.store(total, c, i * m + j)
        f.loop(0, m, 1, [], column)
    f.loop(0, m, 1, [], row)
