"""Memory for what stays: pieces of large reserves, in huge pages where the system has them; and for large
results.

In: sizes. Out: arrays of bytes that begin at a cache line. A piece that nobody refers to any more gives its
pages back at once, whatever its neighbours do; those of results are kept for a while.
"""

from __future__ import annotations

import contextlib
import gc
import math
import mmap
import os
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from .limits import OWNERS
from .locks import lock

LINE = 64
"""Bytes of a cache line; every piece begins at a multiple."""

_SMALL = 1 << 15
_BLOCK = 1 << 26


class Reserve:
    """`size` bytes of addresses, taken piece by piece. A page costs memory once it is written to."""

    def __init__(self, size: int) -> None:
        self._left = size
        self._pages = _mapped(size)

    def take(self, size: int) -> np.ndarray | None:
        """`size` bytes that begin at a cache line; None where no room is left."""
        if self._pages is None or size > self._left:
            return None
        begin = len(self._pages) - self._left
        self._left -= -(-size // LINE) * LINE
        return discarded(self._pages, begin, size)


def take(size: int) -> np.ndarray:
    """`size` bytes that begin at a cache line."""
    global _block
    if size >= _SMALL:
        with _lock:
            piece = _block.take(size) if size < _BLOCK else Reserve(size).take(size)
            if piece is None:
                _block = Reserve(_BLOCK)
                piece = _block.take(size)
        if piece is not None:
            return piece
    return passing(size)


def settled(array: np.ndarray) -> np.ndarray:
    """An array in C order that no longer changes: where processes have such in common, theirs."""
    return array if _common is None or array.nbytes < _SMALL else _common(array)


def share(common: Callable[[np.ndarray], np.ndarray]) -> None:
    """From now on `common` gives what all processes have of the bytes of an array that no longer changes."""
    global _common
    _common = common


def passing(size: int) -> np.ndarray:
    """`size` bytes that begin at a cache line, in memory that is used again once they are let go."""
    whole = np.empty(size + LINE, np.uint8)
    start = -whole.ctypes.data % LINE
    return whole[start:start + size]


LARGE = 1 << 25
"""Bytes of an array beyond which the C library asks the system for new pages each time."""
_IDLE = 1 << 28
_idle: deque[mmap.mmap] = deque()
"""Pages that nobody looks at, the latest last; all together have `_IDLE` bytes at most."""


def handed_out(shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    """An array for a caller to keep. A large one is in memory that is used again once nobody looks at it:
    pages that are new are written twice, by the system first."""
    size = math.prod(shape) * dtype.itemsize
    if size <= LARGE or dtype.hasobject or (pages := _found(size) or _mapped(size)) is None:
        return np.empty(shape, dtype)
    piece = np.frombuffer(pages, np.uint8, size)
    weakref.finalize(piece, _idled, pages).atexit = False
    made = piece.view(dtype).reshape(shape)
    OWNERS.add(id(made))
    weakref.finalize(made, OWNERS.discard, id(made)).atexit = False
    return made


def _found(size: int) -> mmap.mmap | None:
    """Idle pages of about `size` bytes."""
    for pages in tuple(_idle):
        if size <= len(pages) <= size + size // 4:
            with contextlib.suppress(ValueError):  # somebody else may have been faster
                _idle.remove(pages)
                return pages
    return None


def _idled(pages: mmap.mmap) -> None:
    _idle.append(pages)
    release(_IDLE)


def release(most: int = 0) -> None:
    """Give idle pages back to the system, the oldest first, until they have `most` bytes."""
    with contextlib.suppress(IndexError):
        while sum(map(len, tuple(_idle))) > most:
            _idle.popleft()


def _mapped(size: int) -> mmap.mmap | None:
    """Private memory of this process; None where the system gives none that can be discarded."""
    if not size or not hasattr(mmap, "MADV_DONTNEED") or not hasattr(mmap, "MAP_ANONYMOUS"):
        return None
    with contextlib.suppress(OSError, ValueError, OverflowError):
        made = mmap.mmap(-1, -(-size // LINE) * LINE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with contextlib.suppress(OSError):
            made.madvise(getattr(mmap, "MADV_HUGEPAGE", mmap.MADV_NORMAL))
        return made
    return None


def discarded(pages: mmap.mmap, begin: int, size: int) -> np.ndarray:
    """`size` bytes of a private mapping, whose pages go back to the system with the last reference to them:
    what was written is lost, what lies in a file is there when it is looked at again."""
    piece = np.frombuffer(pages, np.uint8, size, begin)
    if hasattr(mmap, "MADV_DONTNEED"):
        weakref.finalize(piece, _discard, pages, begin, begin + size).atexit = False
    return piece


def _discard(pages: mmap.mmap, begin: int, end: int) -> None:
    """Give the whole pages between two offsets back to the system."""
    first, last = -(-begin // mmap.PAGESIZE) * mmap.PAGESIZE, end // mmap.PAGESIZE * mmap.PAGESIZE
    if last > first:
        pages.madvise(mmap.MADV_DONTNEED, first, last - first)


_common: Callable[[np.ndarray], np.ndarray] | None = None
_block = Reserve(0)
_lock = lock()
_making = 0
_collects = False
_aged, _AGED = 0, 4


@contextlib.contextmanager
def making() -> Iterator[None]:
    """While what is made is to stay, the garbage collector rests: it would go through all of it again and
    again. It works again when the last of those who make is done, unless it had been told not to. The first
    few times in a process, when modules have come as well, it then takes all that is there for old, unless
    the program has frozen objects; were it always so, it would never come to look at what is old."""
    global _making, _collects, _aged
    with _lock:
        _making += 1
        if _making == 1:
            _collects = gc.isenabled()
            gc.disable()
    try:
        yield
    finally:
        with _lock:
            _making = max(_making - 1, 0)
            if not _making and _collects:
                if _aged < _AGED:
                    _aged += 1
                    if not gc.get_freeze_count():  # which goes through all of it
                        gc.freeze()
                        gc.unfreeze()
                gc.enable()


def _in_child() -> None:
    """Those who made something in the parent are not there to be done."""
    global _making
    if _making and _collects:
        gc.enable()
    _making = 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
