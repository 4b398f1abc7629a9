"""Memory that code can be run from: pages of this process, written, then sealed."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import mmap
import platform
import struct
import sys
import weakref
from collections.abc import Callable
from typing import Any

from ...errors import Fail

ARM_FLUSH = struct.pack(
    "<22I",
    0xD53B0023, 0xD3504C64, 0xD2800085, 0x9AC420A4, 0xD1000486, 0x8A260006,
    0xD50B7B26, 0x8B0400C6, 0xEB0100DF, 0x54FFFFA3, 0xD5033B9F,
    0xD3400C64, 0x9AC420A4, 0xD1000486, 0x8A260006,
    0xD50B7526, 0x8B0400C6, 0xEB0100DF, 0x54FFFFA3, 0xD5033B9F, 0xD5033FDF, 0xD65F03C0)
"""mrs x3, ctr_el0; ubfx x4, x3, 16, 4; mov x5, 4; lsl x4, x5, x4; sub x6, x4, 1; bic x6, x0, x6;
1: dc cvau, x6; add x6, x6, x4; cmp x6, x1; b.lo 1b; dsb ish;
ubfx x4, x3, 0, 4; lsl x4, x5, x4; sub x6, x4, 1; bic x6, x0, x6;
2: ic ivau, x6; add x6, x6, x4; cmp x6, x1; b.lo 2b; dsb ish; isb; ret

What was written between two addresses, x0 and x1, is what AArch64 then fetches from there."""


@functools.cache
def libc() -> ctypes.CDLL:
    """The C library. Raises OSError or TypeError where there is none to be had by no name, as on Windows."""
    library = ctypes.CDLL(None, use_errno=True)
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
    library.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    library.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return library


def pages(size: int) -> int:
    """The address of `size` bytes of zeroed memory on pages of their own, for the life of the process.
    Raises MemoryError."""
    kind = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    at = libc().mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, kind, -1, 0)
    if at in (None, ctypes.c_void_p(-1).value):
        raise MemoryError(f"{size} bytes for generated code: errno {ctypes.get_errno()}")
    return int(at)


class CodePages:
    """Memory that linked objects are written to and that is then made executable. It goes with this, but not
    when the process ends: threads may be in it until then."""

    def __init__(self, size: int) -> None:
        self.size = -(-max(size, 1) // mmap.PAGESIZE) * mmap.PAGESIZE
        self.address = pages(self.size)
        weakref.finalize(self, libc().munmap, self.address, self.size).atexit = False
        self.bytes = memoryview((ctypes.c_char * self.size).from_address(self.address)).cast("B")

    def seal(self) -> None:
        """Make it executable and no longer writable. Raises Fail where that is forbidden."""
        self.protect()
        _flush(self.address, self.address + self.size)

    def protect(self) -> None:
        """The same for pages from which nothing was ever fetched: systems see to it themselves that the first
        fetch finds what was written."""
        if libc().mprotect(self.address, self.size, mmap.PROT_READ | mmap.PROT_EXEC):
            raise Fail("generated code cannot be made executable here",
                       found=f"mprotect: errno {ctypes.get_errno()}",
                       cure="set ORTHRUS_CODEGEN=0 to run on numpy alone")


class Linked(dict[str, int]):
    """An object's functions by name. Their code is there for as long as this is."""

    def __init__(self, functions: dict[str, int], room: Any) -> None:
        super().__init__(functions)
        self._room = room


def placed(code: Any) -> CodePages:
    """Bytes that are the same code wherever they lie, such as an `image` that two addresses have in common,
    ready to run. Raises Fail where memory cannot be made executable."""
    block = CodePages(len(code))
    block.bytes[:len(code)] = memoryview(code)
    block.seal()
    return block


def _flush(begin: int, end: int) -> None:
    """Let instruction fetch see what was written; x86 does so by itself."""
    own = platform.machine()
    if own in ("aarch64", "arm64") and sys.platform == "darwin":
        libc().sys_icache_invalidate(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin))
    elif own in ("aarch64", "arm64"):
        _arm_flush()(begin, end)
    elif own == "riscv64":
        with contextlib.suppress(AttributeError):
            libc().__riscv_flush_icache(ctypes.c_void_p(begin), ctypes.c_void_p(end), 0)


@functools.cache
def _arm_flush() -> Callable[[int, int], None]:
    code = CodePages(len(ARM_FLUSH))
    code.bytes[:len(ARM_FLUSH)] = ARM_FLUSH
    code.protect()
    call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(code.address)
    call.code = code  # type: ignore[attr-defined]
    return call
