"""Constants that the processes of a machine have in common: packed weights lie in memory once.

In: arrays that no longer change. Out: arrays of the same bytes, over a file in memory that all processes map
and none of them may write to through what it gets. The file begins with a table: of each constant the digest,
and where it lies. An entry is written once its bytes are there, by one process at a time.
"""

from __future__ import annotations

import hashlib
import mmap
import os
import struct

import numpy as np

from ..locks import lock

_ROW = struct.Struct("<32sQ")
_ROWS = 1 << 15
_HUGE = 1 << 21
"""Bytes that a constant begins at a multiple of, where the system may have pages of so many."""

_lock = lock()
"""For this process; the file's own keeps others out."""


class Constants:
    """The file, by its descriptor, which processes hand each other. Safe on many threads, and where a process
    is killed meanwhile."""

    def __init__(self, file: int) -> None:
        self._file, self._rows = file, 0
        self._known = dict[bytes, int]()

    def common(self, array: np.ndarray) -> np.ndarray:
        """What all processes have of these bytes, from now on if none had them; `array` itself where there is
        no room for it."""
        import fcntl

        data = array.reshape(-1).view(np.uint8)
        digest = hashlib.sha256(data.data).digest()
        try:
            with _lock:
                fcntl.lockf(self._file, fcntl.LOCK_EX)
                try:
                    at = self._place(digest)
                    if at is None:
                        at = self._put(digest, data)
                finally:
                    fcntl.lockf(self._file, fcntl.LOCK_UN)
            mapped = mmap.mmap(self._file, len(data), mmap.MAP_SHARED, mmap.PROT_READ, offset=at)
        except OSError:
            return array
        if hasattr(mmap, "MADV_HUGEPAGE") and len(data) >= _HUGE:
            mapped.madvise(mmap.MADV_HUGEPAGE)
        return np.frombuffer(mapped, np.uint8).view(array.dtype).reshape(array.shape)

    def _place(self, digest: bytes) -> int | None:
        """Where these bytes lie, if they do; what others have put there is known then."""
        while digest not in self._known:
            row = os.pread(self._file, _ROW.size, self._rows * _ROW.size)
            each, at = _ROW.unpack(row.ljust(_ROW.size, b"\0"))
            if not at or self._rows == _ROWS:
                return None
            self._known[each], self._rows = at, self._rows + 1
        return self._known[digest]

    def _put(self, digest: bytes, data: np.ndarray) -> int:
        """Raises OSError where there is no room."""
        if self._rows == _ROWS:
            raise OSError("no room for another constant")
        unit = _HUGE if len(data) >= _HUGE else mmap.ALLOCATIONGRANULARITY
        at = -(-max(os.fstat(self._file).st_size, _ROWS * _ROW.size) // unit) * unit
        written = 0
        while written < len(data):
            written += os.pwrite(self._file, data[written:].data, at + written)
        os.pwrite(self._file, _ROW.pack(digest, at), self._rows * _ROW.size)
        self._known[digest], self._rows = at, self._rows + 1
        return at
