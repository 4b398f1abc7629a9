"""The matrix instruction of SpacemiT's cores: a small product of 8-bit integers, added to 32-bit sums.

In: A (M, K) and B (N, K), rows one after another, and C (M, N), as vectors of exactly one and of two
registers. Out: C + A Bᵀ, modulo 2^32. `Machine.matrix` says (M, N, K): the tile grows with the register, the
instruction is the same.

LLVM has no way to write it. It has SiFive's instruction, whose operands are the same registers in the same
bits, so that is what a kernel asks for; `rewritten` puts SpacemiT's word into its place when an object is
linked, so that no machine ever gets to see the other.
"""

from __future__ import annotations

import struct

from ..machines.machine import Machine
from . import rvv_intrinsics
from .emit import I8, I32, Function, V, vec

_FORMS = {(False, False): "u", (True, True): "", (False, True): "us", (True, False): "su"}
"""By whether A and B are signed: what follows `vqmacc` in SiFive's name, and `vmadot` in SpacemiT's."""
_MASK, _SIFIVE = 0xF200707F, 0xF200205B
"""The bits that tell SiFive's instruction from any other (`sf.vqmacc{,u,us,su}.4x8x4`), and their values."""
_FIELDS, _SPACEMIT = 0x01FF8F80, 0xE200002B
"""The bits of the registers, and of SpacemiT's instruction with unsigned operands."""
_UNSIGNED, _SIGNED, _SIGNED_A, _SIGNED_B = 0, 3, 2, 1
_SIGNS = {0: _UNSIGNED, 1: _SIGNED, 2: _SIGNED_B, 3: _SIGNED_A}
"""Bits 26 and 27 of SiFive's instruction -> bits 12 to 14 of SpacemiT's."""


def tile(machine: Machine) -> tuple[int, int, int] | None:
    """(M, N, K) of the machine's instruction, None without one."""
    return machine.matrix


def multiply(f: Function, c: V, a: V, b: V, a_signed: bool, b_signed: bool) -> V:
    """c + a bᵀ: `a` is M * K and `b` N * K elements of i8, row by row, `c` M * N of i32."""
    machine: Machine = f.machine  # type: ignore[attr-defined]
    if machine.matrix is None:
        raise ValueError("the machine has no matrix instruction")
    m, n, k = machine.matrix
    want = {"c": vec(I32, m * n), "a": vec(I8, m * k), "b": vec(I8, n * k)}
    for name, x in (("c", c), ("a", a), ("b", b)):
        if x.ty != want[name]:
            raise ValueError(f"{name} is {x.ty}, not {want[name]}")
    return rvv_intrinsics.call(f, f"sf.vqmacc{_FORMS[a_signed, b_signed]}.4x8x4", c, [a, b], m * k, 3)


def word(signs: int, vd: int, vs1: int, vs2: int) -> int:
    """`smt.vmadot` of registers `vd` (even), `vs1` and `vs2`; `signs`: 2 for signed A, 1 for signed B."""
    return _SPACEMIT | vs2 << 20 | vs1 << 15 | signs << 12 | vd << 7


def rewritten(code: bytes) -> bytes:
    """RISC-V instructions with SiFive's matrix instruction replaced; all others stay. `code` is instructions
    alone, from the first to the last."""
    made, at = bytearray(code), 0
    while at + 4 <= len(made):
        if made[at] & 3 != 3:
            at += 2
            continue
        (found,) = struct.unpack_from("<I", made, at)
        if found & _MASK == _SIFIVE:
            struct.pack_into("<I", made, at, _SPACEMIT | found & _FIELDS | _SIGNS[found >> 26 & 3] << 12)
        at += 4
    return bytes(made)
