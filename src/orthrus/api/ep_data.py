"""The data of a compiled part on its way to and from a file, as a user's read and write functions see it."""

from __future__ import annotations

from typing import Any


class OrtEpContextDataBuffer:
    """Where a read function puts the data of a compiled part."""

    def __init__(self) -> None:
        raise TypeError("OrtEpContextDataBuffer: No constructor defined!")

    @classmethod
    def _make(cls, max_size: int) -> OrtEpContextDataBuffer:
        made = object.__new__(cls)
        made._data, made._most = None, max_size
        return made

    _data: bytearray | None
    _most: int

    def allocate(self, size: int) -> None:
        """Make room for `size` bytes. Raises RuntimeError for more than `max_size`, or a second time."""
        if self._data is not None:
            raise RuntimeError("the buffer is allocated already")
        if not 0 <= size <= self._most:
            raise RuntimeError(f"{size} bytes are more than the {self._most} allowed")
        self._data = bytearray(size)

    def write(self, data: Any, offset: int = 0) -> None:
        """Write bytes at `offset`. Raises RuntimeError outside the room."""
        content = memoryview(data).cast("B")
        if self._data is None or not 0 <= offset <= len(self._data) - len(content):
            raise RuntimeError(f"{len(content)} bytes at {offset} lie outside the buffer of {self.size}")
        self._data[offset:offset + len(content)] = content

    @property
    def is_allocated(self) -> bool:
        return self._data is not None

    @property
    def size(self) -> int:
        return len(self._data or b"")

    @property
    def max_size(self) -> int:
        return self._most


class OrtEpContextData:
    """The data of a compiled part, as a write function gets it."""

    def __init__(self) -> None:
        raise TypeError("OrtEpContextData: No constructor defined!")

    @classmethod
    def _make(cls, data: bytes) -> OrtEpContextData:
        made = object.__new__(cls)
        made._data = data
        return made

    _data: bytes

    @property
    def size(self) -> int:
        return len(self._data)

    def read(self, offset: int = 0, length: int | None = None) -> bytes:
        """`length` bytes from `offset`, or all to the end. Raises RuntimeError outside the data."""
        end = len(self._data) if length is None else offset + length
        if not 0 <= offset <= end <= len(self._data):
            raise RuntimeError(f"bytes {offset} to {end} lie outside the data of {len(self._data)}")
        return self._data[offset:end]
