"""A model's file, open: what was read of it once is the same whenever it is read again.

In: a path. Out: bytes of the file as it was opened, whatever its name stands for by then. Every block that is
read is told by a keyed hash of all of it; one that is no longer what it was is an error, whoever changed it
and however: through a mapping, or with the old times put back. Times are believed only when they say that
something changed.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import weakref
from collections.abc import Iterator
from typing import Any

import numpy as np

from .errors import Fail, InvalidProtobuf, NoSuchFile
from .locks import lock
from .memory import passing

_WORDS = 512
_BLOCK = 8 * _WORDS
_PIECE = 64 * _BLOCK
_HALF = np.uint64(32)
_KEY = os.urandom(32)


class ModelFile:
    """A model in an open file, which is closed with the last tensor that may have to be read. `key`: what its
    content is told with, this process's own where None; whoever does not know it cannot make two contents
    alike. Raises NoSuchFile, InvalidProtobuf or Fail as onnxruntime does."""

    def __init__(self, path: str, key: bytes | None = None) -> None:
        self.path, self.handle = path, _open(path)
        weakref.finalize(self, os.close, self.handle).atexit = False
        self.size, self.changed = self._state()
        self._keys = _keys(key or _KEY)
        self._told = np.zeros(-(-self.size // _BLOCK), np.uint64)
        self._known = np.zeros(len(self._told), np.bool_)
        self._lock = lock()
        self._window, self._begin = b"", 0

    def _state(self) -> tuple[int, int]:
        info = os.fstat(self.handle)
        return info.st_size, info.st_mtime_ns

    def __getitem__(self, at: int) -> int:
        index = at - self._begin
        if not 0 <= index < len(self._window):
            self._begin = at // _BLOCK * _BLOCK
            self._window = self.read(self._begin, min(self._begin + _PIECE, self.size)).tobytes()
            index = at - self._begin
        return self._window[index]

    def piece(self, start: int, end: int) -> Any:
        """The bytes from `start` to `end` for a look."""
        index = start - self._begin
        if index >= 0 and end - self._begin <= len(self._window):
            return memoryview(self._window)[index:end - self._begin]
        return self.read(start, end).data

    def read(self, start: int, end: int) -> np.ndarray:
        """The bytes from `start` to `end` in memory of their own, aligned. Raises Fail where the file has
        been written to since it was opened."""
        out = passing(end - start)
        for at, data in self._blocks(start, end):
            low, high = max(start, at), min(end, at + len(data))
            out[low - start:high - start] = data[low - at:high - at]
        if self._state() != (self.size, self.changed):
            raise self._written()
        return out

    def digest(self) -> str:
        """What tells the whole content apart from any other, under this file's key. Raises as `read` does."""
        for _ in self._blocks(0, self.size):
            pass
        return _digest(self.size, self._told.tobytes())

    def _blocks(self, start: int, end: int) -> Iterator[tuple[int, np.ndarray]]:
        """The whole blocks around the bytes from `start` to `end`, some at a time and checked: offsets, and
        memory that the next ones will take."""
        first = start // _BLOCK * _BLOCK
        last = min(-(-end // _BLOCK) * _BLOCK, self.size) if end > start else first
        room = -(-min(_PIECE, last - first) // _BLOCK) * _BLOCK
        space, halves = passing(room), passing(room)
        for at in range(first, last, _PIECE):
            data = space[:min(_PIECE, last - at)]
            self._fill(data, at)
            self._check(at // _BLOCK, _told(space, halves, len(data), self._keys))
            yield at, data

    def _fill(self, data: np.ndarray, at: int) -> None:
        done = 0
        while done < len(data):
            count = read_into(self.handle, data.data[done:], at + done)
            if not count:
                raise self._written()
            done += count

    def _check(self, first: int, told: np.ndarray) -> None:
        blocks = slice(first, first + len(told))
        with self._lock:
            if ((self._told[blocks] != told) & self._known[blocks]).any():
                raise self._written()
            self._told[blocks], self._known[blocks] = told, True

    def _written(self) -> Fail:
        return Fail(f"The model's file {self.path} has been written to since it was loaded.",
                    found=f"{self._state()[0]} bytes, written later", expected=f"{self.size} bytes as before",
                    cure="write a new model beside the old one and rename it: sessions keep the old one")


def content_of(data: np.ndarray, key: bytes) -> str:
    """What `ModelFile.digest` says of a file that holds `data`, bytes, under `key`."""
    keys, told = _keys(key), []
    space, halves = passing(_PIECE), passing(_PIECE)
    for at in range(0, len(data), _PIECE):
        piece = data[at:at + _PIECE]
        space[:len(piece)] = piece
        told.append(_told(space, halves, len(piece), keys).tobytes())
    return _digest(len(data), b"".join(told))


def _digest(size: int, told: bytes) -> str:
    return hashlib.shake_256(size.to_bytes(8, "little") + told).hexdigest(32)


def _keys(key: bytes) -> tuple[np.ndarray, np.ndarray]:
    """Two odd factors for each word of a block."""
    drawn = np.frombuffer(hashlib.shake_256(key).digest(2 * _BLOCK), np.uint64) | np.uint64(1)
    return drawn[:_WORDS], drawn[_WORDS:]


def _told(space: np.ndarray, halves: np.ndarray, size: int, keys: tuple[np.ndarray, np.ndarray]
          ) -> np.ndarray:
    """A number for each block of the first `size` bytes of `space`: the sum of its words and of their upper
    halves, each times a factor of its own, modulo 2**64. Two contents have the same number for one key in
    2**33 at most; such that differ in one word never do."""
    count = -(-size // _BLOCK)
    space[size:count * _BLOCK] = 0
    words = space[:count * _BLOCK].view(np.uint64).reshape(count, _WORDS)
    upper = halves[:count * _BLOCK].view(np.uint64).reshape(count, _WORDS)
    np.right_shift(words, _HALF, out=upper)
    told: np.ndarray = np.dot(words, keys[0]) + np.dot(upper, keys[1])
    return told


def _open(path: str) -> int:
    """A handle of a regular file. Devices, pipes and folders are refused before a byte is read."""
    flags = os.O_RDONLY
    for name in ("O_NONBLOCK", "O_CLOEXEC", "O_BINARY", "O_NOCTTY"):
        flags |= getattr(os, name, 0)
    try:
        handle = os.open(path, flags)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        raise NoSuchFile(f"Load model from {path} failed:Load model {path} failed. File doesn't exist",
                         cure="check the path; it is relative to the working directory") from None
    except OSError as error:
        if os.path.isdir(path):
            raise _no_file(path, "a directory") from None
        raise unreadable(path, error) from None
    try:
        info = os.fstat(handle)
        if not stat.S_ISREG(info.st_mode):
            raise _no_file(path, "a directory" if stat.S_ISDIR(info.st_mode) else "no regular file")
    except BaseException:
        os.close(handle)
        raise
    return handle


def unreadable(path: str, error: OSError) -> Fail:
    """What a file that cannot be read is told as."""
    many = error.errno in (errno.EMFILE, errno.ENFILE)
    return Fail(f"Load model from {path} failed:system error number {error.errno}", found=error.strerror,
                cure="raise the limit of open files (ulimit -n), or close sessions, which hold their files"
                     if many else "check the file's permissions")


def _no_file(path: str, found: str) -> InvalidProtobuf:
    return InvalidProtobuf(f"Load model from {path} failed:Protobuf parsing failed.", found=found,
                           expected="a regular file with an ONNX ModelProto")


def read_into(handle: int, buffer: memoryview, at: int) -> int:
    """Read from an open file at an offset; how many bytes there were, 0 at its end."""
    if hasattr(os, "preadv"):
        return os.preadv(handle, [buffer], at)
    os.lseek(handle, at, os.SEEK_SET)
    with os.fdopen(os.dup(handle), "rb", buffering=0) as file:
        return file.readinto(buffer) or 0
