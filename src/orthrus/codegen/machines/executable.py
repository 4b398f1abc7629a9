"""Memory that code can be run from: pages of this process, written, then sealed."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import platform
import weakref

from ...errors import Fail

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def pages(size: int) -> int:
    """The address of `size` bytes of zeroed memory on pages of their own, for the life of the process.
    Raises MemoryError."""
    kind = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    at = _libc.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, kind, -1, 0)
    if at in (None, ctypes.c_void_p(-1).value):
        raise MemoryError(f"{size} bytes for generated code: errno {ctypes.get_errno()}")
    return int(at)


class CodePages:
    """Memory that linked objects are written to and that is then made executable. It goes with this, but not
    when the process ends: threads may be in it until then."""

    def __init__(self, size: int) -> None:
        self.size = -(-max(size, 1) // mmap.PAGESIZE) * mmap.PAGESIZE
        self.address = pages(self.size)
        weakref.finalize(self, _libc.munmap, self.address, self.size).atexit = False
        self.bytes = memoryview((ctypes.c_char * self.size).from_address(self.address)).cast("B")

    def seal(self) -> None:
        """Make it executable and no longer writable. Raises Fail where that is forbidden."""
        if _libc.mprotect(self.address, self.size, mmap.PROT_READ | mmap.PROT_EXEC):
            raise Fail("generated code cannot be made executable here",
                       found=f"mprotect: errno {ctypes.get_errno()}",
                       cure="set ORTHRUS_CODEGEN=0 to run on numpy alone")
        _flush(self.address, self.size)


def _flush(address: int, size: int) -> None:
    """Let instruction fetch see what was written; x86 does so by itself."""
    own = platform.machine()
    with contextlib.suppress(OSError, AttributeError):
        if own in ("aarch64", "arm64"):
            clear = ctypes.CDLL("libgcc_s.so.1").__clear_cache
            clear(ctypes.c_void_p(address), ctypes.c_void_p(address + size))
        elif own == "riscv64":
            _libc.__riscv_flush_icache(ctypes.c_void_p(address), ctypes.c_void_p(address + size), 0)
