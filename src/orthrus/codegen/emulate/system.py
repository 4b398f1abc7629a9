"""What LLVM has no instruction for, as small functions of the worker in machine words: system calls, and
RISC-V's vector registers as a whole."""

from __future__ import annotations

from ..write.emit import I32, I64, Function, V

_A = tuple(range(10, 18))
_T0, _T1, _T2 = 5, 6, 7
_VL, _VTYPE, _VLENB = 0xC20, 0xC21, 0xC22
_INTO_KERNEL, _FETCH_ANEW, _RETURN = 0x73, 0x100F, 0x8067
_SIGACTION, _SIGINFO = 134, 4


def _add_number(to: int, source: int, number: int) -> int:
    return number << 20 | source << 15 | to << 7 | 0x13


def _read(to: int, register: int) -> int:
    return register << 20 | 2 << 12 | to << 7 | 0x73


def _registers(op: int) -> list[int]:
    """Move all vector registers from (0x27) or to (0x07) memory at a0, in four groups; t2: bytes of one."""
    words = []
    for group in range(0, 32, 8):
        words += [7 << 29 | 0x28 << 20 | _A[0] << 15 | group << 7 | op,
                  _T2 << 20 | _A[0] << 15 | _A[0] << 7 | 0x33]
    return words


_ARM_CALL, _ARM_FETCH_ANEW, _ARM_RETURN = 0xD4000001, 0xD5033FDF, 0xD65F03C0


def _arm_move(to: int, source: int) -> int:
    return 0xAA0003E0 | source << 16 | to


_SYSTEM = [_add_number(_A[7], _A[0], 0), *(_add_number(_A[i], _A[i + 1], 0) for i in range(6)), _INTO_KERNEL,
           _FETCH_ANEW, _RETURN]
_LENGTH = [_read(_A[0], _VLENB), _RETURN]
_ARM_SYSTEM = [_arm_move(8, 0), *(_arm_move(i, i + 1) for i in range(6)), _ARM_CALL, _ARM_FETCH_ANEW,
               _ARM_RETURN]
_ARM_LENGTH = [0xD2800000 | 16 << 5, _ARM_RETURN]
"""Sixteen, whatever the processor: kernels use no other vectors."""
_EIGHT = [_read(_T2, _VLENB), 3 << 20 | _T2 << 15 | 1 << 12 | _T2 << 7 | 0x13]
_SAVE = [_read(_T0, _VL), _read(_T1, _VTYPE), *_EIGHT,
         *(cell << 10 | register << 20 | _A[0] << 15 | 3 << 12 | 0x23
           for cell, register in ((0, _T0), (1, _T1))),
         _add_number(_A[0], _A[0], 16), *_registers(0x27), _RETURN]
_RESTORE = [*(8 * cell << 20 | _A[0] << 15 | 3 << 12 | register << 7 | 0x03
              for cell, register in ((0, _T0), (1, _T1))),
            *_EIGHT, _add_number(_A[0], _A[0], 16), *_registers(0x07),
            0x80007057 | _T1 << 20 | _T0 << 15, _RETURN]
STATE = 16
"""Bytes in front of the registers where they are kept: vector length and type."""


def _arm(f: Function) -> bool:
    return f.module.triple.startswith("aarch64")


def system(f: Function, number: int | V, *args: int | V) -> V:
    """The result of a system call; code that was written before it is seen after it."""
    given = [f.i64(a) for a in (number, *args)]
    words = _ARM_SYSTEM if _arm(f) else _SYSTEM
    return f.call(f.table(I32, words), [*given, *[f.i64(0)] * (7 - len(given))], I64)


def vector_bytes(f: Function) -> V:
    """The bytes of a vector register."""
    return f.call(f.table(I32, _ARM_LENGTH if _arm(f) else _LENGTH), [], I64)


def save(f: Function, to: V) -> None:
    """Vector length and type, then all 32 registers, one after another."""
    f.call(f.table(I32, _SAVE), [to])


def restore(f: Function, source: V) -> None:
    """What `save` saved."""
    f.call(f.table(I32, _RESTORE), [source])


def on_signal(f: Function, number: int, what: V | None) -> None:
    """Call the function at `what` on a signal, as (number, details, context); None: what happens without."""
    action = f.alloca(I64, 3)
    cells: list[int | V] = [0, 0, 0] if what is None else [f.cast(what, I64), _SIGINFO, 0]
    for i, cell in enumerate(cells):
        f.store(f.i64(cell), action, i)
    system(f, _SIGACTION, number, f.cast(action, I64), 0, 8)
