"""A static program as a file: code and constants at one address, no libraries, nothing writable."""

from __future__ import annotations

import struct

PAGE = 4096
_EXECUTABLE, _LOAD, _READ, _EXECUTE = 2, 1, 4, 1
_MACHINES = {"riscv64": (243, 1 | 4), "aarch64": (183, 0)}
"""Number and flags: those of RISC-V say compressed instructions, and doubles in registers."""


def program(code: bytes, address: int, entry: int, arch: str) -> bytes:
    """An ELF file for `arch` that has `code` at `address`, the begin of a page, and starts at `entry` within
    it. Raises ValueError."""
    if address % PAGE or not address <= entry < address + len(code):
        raise ValueError(f"no program at {address:#x} starts at {entry:#x}")
    machine, flags = _MACHINES[arch]
    head = struct.pack("<4sBBB9xHHIQQQIHHHHHH", b"\x7fELF", 2, 1, 1, _EXECUTABLE, machine, 1, entry, 64, 0,
                       flags, 64, 56, 1, 64, 0, 0)
    segment = struct.pack("<IIQQQQQQ", _LOAD, _READ | _EXECUTE, PAGE, address, address, len(code), len(code),
                          PAGE)
    return (head + segment).ljust(PAGE, b"\0") + code
