"""Relocations of RISC-V objects: what LLVM leaves open in position-independent code that is not relaxed.

An address that an instruction cannot hold is reached in two: `auipc` adds 20 bits to the program counter, and
the instruction that uses the address adds 12 more, signed. The second one's relocation names the `auipc`, not
the address, so the two are brought together before anything is patched.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

_HIGH, _LOW_LOAD, _LOW_STORE = 23, 24, 25

Row = tuple[int, int, int]
"""A relocation: the place it changes, its type, what it points to; both counted from the same begin."""


def paired(rows: Sequence[Row]) -> list[Row]:
    """`rows` with the low halves pointing where their `auipc` points, less the way from it to them, so that
    target less place is the same for both. Raises ValueError where an `auipc` is missing."""
    high = {at: target for at, kind, target in rows if kind == _HIGH}
    made = []
    for at, kind, target in rows:
        if kind in (_LOW_LOAD, _LOW_STORE):
            if target not in high:
                raise ValueError("the low half of an address has no high half")
            target = high[target] - target + at
        made.append((at, kind, target))
    return made


def _fits(distance: int, bits: int) -> int:
    """`distance`, that fits a signed field of so many bits. Raises ValueError."""
    if not -1 << bits - 1 <= distance < 1 << bits - 1:
        raise ValueError(f"a distance of {distance} bytes does not fit {bits} bits")
    return distance


def _upper(distance: int) -> int:
    """The field of an `auipc`: rounded, because the 12 bits that follow are signed."""
    return _fits(distance + 0x800, 32) & 0xFFFFF000


def _load(distance: int) -> int:
    return (distance & 0xFFF) << 20


def _store(distance: int) -> int:
    return (distance >> 5 & 0x7F) << 25 | (distance & 0x1F) << 7


def _branch(distance: int) -> int:
    d = _fits(distance, 13)
    return (d >> 12 & 1) << 31 | (d >> 5 & 0x3F) << 25 | (d >> 1 & 0xF) << 8 | (d >> 11 & 1) << 7


def _jump(distance: int) -> int:
    d = _fits(distance, 21)
    return (d >> 20 & 1) << 31 | (d >> 1 & 0x3FF) << 21 | (d >> 11 & 1) << 20 | (d >> 12 & 0xFF) << 12


def _short_branch(distance: int) -> int:
    d = _fits(distance, 9)
    return ((d >> 8 & 1) << 12 | (d >> 3 & 3) << 10 | (d >> 6 & 3) << 5 | (d >> 1 & 3) << 3
            | (d >> 5 & 1) << 2)


def _short_jump(distance: int) -> int:
    d = _fits(distance, 12)
    return ((d >> 11 & 1) << 12 | (d >> 4 & 1) << 11 | (d >> 8 & 3) << 9 | (d >> 10 & 1) << 8
            | (d >> 6 & 1) << 7 | (d >> 7 & 1) << 6 | (d >> 1 & 7) << 3 | (d >> 5 & 1) << 2)


Patch = Callable[[memoryview, int, int, int], None]


def _field(of: Callable[[int], int], mask: int, form: str = "<I") -> Patch:
    """Put the bits `of(distance)` into the instruction's bits `mask`."""
    def patch(memory: memoryview, at: int, target: int, here: int) -> None:
        (word,) = struct.unpack_from(form, memory, at)
        struct.pack_into(form, memory, at, word & ~mask | of(target - here))
    return patch


def _call(memory: memoryview, at: int, target: int, here: int) -> None:
    """An `auipc` and the `jalr` behind it."""
    _field(_upper, 0xFFFFF000)(memory, at, target, here)
    _field(_load, 0xFFF00000)(memory, at + 4, target, here)


def _absolute(memory: memoryview, at: int, target: int, here: int) -> None:
    struct.pack_into("<Q", memory, at, target)


def _relative(memory: memoryview, at: int, target: int, here: int) -> None:
    struct.pack_into("<i", memory, at, target - here)


def _sum(form: str, bits: int, sign: int) -> Patch:
    """Add the address to what stands there, or take it away: two of them give a difference."""
    def patch(memory: memoryview, at: int, target: int, here: int) -> None:
        (value,) = struct.unpack_from(form, memory, at)
        struct.pack_into(form, memory, at, value + sign * target & (1 << bits) - 1)
    return patch


PATCHES: dict[int, tuple[int, Patch]] = {
    2: (8, _absolute),
    16: (4, _field(_branch, 0xFE000F80)), 17: (4, _field(_jump, 0xFFFFF000)),
    18: (8, _call), 19: (8, _call),
    _HIGH: (4, _field(_upper, 0xFFFFF000)), _LOW_LOAD: (4, _field(_load, 0xFFF00000)),
    _LOW_STORE: (4, _field(_store, 0xFE000F80)),
    35: (4, _sum("<I", 32, 1)), 36: (8, _sum("<Q", 64, 1)),
    39: (4, _sum("<I", 32, -1)), 40: (8, _sum("<Q", 64, -1)),
    44: (2, _field(_short_branch, 0x1C7C, "<H")), 45: (2, _field(_short_jump, 0x1FFC, "<H")),
    57: (4, _relative)}
"""By relocation type: the bytes it changes, and how (memory, where in it, target, own address)."""
