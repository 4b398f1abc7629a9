"""Memory that this process and a worker see at the same address, so that addresses mean the same on both
sides.

It is a file without a name. Its begin holds code, which the worker may run and not write; what has been code
once is never overwritten, because an emulator keeps running what it has translated. Behind it lie arguments,
tensors and scratch memory.
"""

from __future__ import annotations

import collections
import ctypes
import mmap
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from ...errors import Fail
from ..machines.executable import libc
from ..object.link import image

PAGE = mmap.PAGESIZE
CODE = 64 << 20
"""Bytes for code."""
_DATA = 64 << 30
_STEP = 16 << 20
_ALIGN = 64
_FIRST, _APART, _PLACES = 1 << 44, 1 << 37, 512
_REPLACE, _NO_REPLACE, _NO_RESERVE = 0x10, 0x100000, 0x4000

T = TypeVar("T")


def _mapped(fd: int, size: int, over: int = 0) -> int:
    """The address of the file's first `size` bytes: one that is free in a worker as well, or `over`, where
    something is that goes."""
    call = libc().mmap
    both = mmap.PROT_READ | mmap.PROT_WRITE
    for place in range(_PLACES):
        wanted, how = (over, _REPLACE) if over else (_FIRST + place * _APART, _NO_REPLACE)
        at = call(wanted, size, both, mmap.MAP_SHARED | how | _NO_RESERVE, fd, 0)
        if at == wanted:
            return wanted
        if at not in (None, ctypes.c_void_p(-1).value):
            libc().munmap(ctypes.c_void_p(at), ctypes.c_size_t(size))
    raise Fail("no memory can be shared with a worker", found=f"mmap: errno {ctypes.get_errno()}",
               cure="raise the limit on address space (ulimit -v)")


class Shared:
    """The memory. `arch`: whose code it holds; `size`: bytes of it there are so far; `fd`: the file, for a
    worker to map."""

    def __init__(self, arch: str) -> None:
        self.arch = arch
        self.fd = os.memfd_create("orthrus", os.MFD_CLOEXEC)
        self.address = 0
        try:
            self.size = CODE + _STEP
            os.ftruncate(self.fd, self.size)
            self.address = _mapped(self.fd, CODE + _DATA)
        except BaseException:
            os.close(self.fd)
            raise
        self._code, self._data = self.address, self.address + CODE
        self._free: list[tuple[int, int]] = [(self._data, self._data + _DATA)]
        self._taken: dict[int, int] = {}
        self._left: collections.deque[int] = collections.deque()
        self._lock = threading.Lock()

    def part(self) -> None:
        """In a child process: have the memory as a copy of its own, at the same address."""
        mine, size = os.memfd_create("orthrus", os.MFD_CLOEXEC), CODE + _DATA
        os.ftruncate(mine, self.size)
        with mmap.mmap(mine, self.size) as copy:
            copy.write((ctypes.c_char * self.size).from_address(self.address))
        _mapped(mine, size, self.address)
        os.close(self.fd)
        self.fd, self._lock = mine, threading.Lock()

    def close(self) -> None:
        """Give it back; arrays in it may no longer be touched."""
        if self.address:
            libc().munmap(ctypes.c_void_p(self.address), ctypes.c_size_t(CODE + _DATA))
            os.close(self.fd)
            self.address = 0

    def load(self, objects: Sequence[bytes]) -> list[dict[str, int]]:
        """Link objects for the architecture into the code; per object, the addresses of its functions. Raises
        ValueError for what is no such object, Fail where there is no room."""
        return self.lay(lambda address: image(objects, address, self.arch))

    def lay(self, write: Callable[[int], tuple[Any, T]]) -> T:
        """Take code that `write` writes for the address it is told, and give what it says besides. Raises
        what that raises, Fail where there is no room."""
        with self._lock:
            code, found = write(self._code)
            if self._code + len(code) > self.address + CODE:
                raise Fail("no room for more code", found=f"{CODE} bytes are full",
                           cure="run fewer models in one process")
            ctypes.memmove(self._code, bytes(code), len(code))
            self._code += -(-len(code) // PAGE) * PAGE
        return found

    def holds(self, at: int) -> bool:
        """Whether that address is in this memory's data."""
        return self.address + CODE <= at < self.address + CODE + _DATA

    def take(self, size: int, align: int = _ALIGN) -> int:
        """The address of `size` bytes, aligned to 64 or to a larger power of two; what they hold is not
        known. Raises MemoryError."""
        size = -(-max(size, 1) // _ALIGN) * _ALIGN
        with self._lock:
            self._reclaim()
            for i, (start, end) in enumerate(self._free):
                at = -(-start // align) * align
                if at + size <= end:
                    rest = (start, at), (at + size, end)
                    self._free[i:i + 1] = [part for part in rest if part[0] < part[1]]
                    self._reach(at + size)
                    self._taken[at] = size
                    return at
        raise MemoryError(f"{size} bytes of shared memory")

    def release(self, at: int) -> None:
        """Give back what `take` gave. It may be called at any moment, by the garbage collector too: the
        memory is free from the next `take` on."""
        self._left.append(at)

    def _reclaim(self) -> None:
        while self._left:
            at = self._left.popleft()
            parts = [*self._free, (at, at + self._taken.pop(at))]
            self._free = []
            for start, end in sorted(parts):
                if self._free and self._free[-1][1] == start:
                    self._free[-1] = self._free[-1][0], end
                else:
                    self._free.append((start, end))

    def _reach(self, end: int) -> None:
        """Let the file reach up to that address: what lies behind its end must not be touched."""
        if end - self.address > self.size:
            size = -(-(end - self.address) // _STEP) * _STEP
            try:
                os.ftruncate(self.fd, size)
            except OSError as error:
                raise MemoryError(f"{size} bytes of shared memory: {error.strerror}") from None
            self.size = size

    def array(self, shape: Sequence[int], dtype: str) -> np.ndarray:
        """A new array, its content not known, given back with `release(array.ctypes.data)`."""
        kind, count = np.dtype(dtype), int(np.prod(shape, dtype=np.int64))
        at = self.take(count * kind.itemsize)
        room = (ctypes.c_char * max(count * kind.itemsize, 1)).from_address(at)
        return np.frombuffer(memoryview(room), kind, count).reshape(shape)
