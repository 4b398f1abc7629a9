"""Memory that two processes share: what is written into a block by one is read by the other where it lies.

In: sizes. Out: blocks, each a file in memory that both processes map, known to the other by a number. The
invariant: a block is taken by one user at a time, until the last array over it is gone.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import tempfile
import weakref
from typing import Any

import numpy as np

from ..locks import rlock

_LEAST, _KEPT, LINE = 1 << 16, 1 << 28, 64
"""Bytes of the smallest block, bytes that may lie idle, and what places in a block are multiples of."""


class Block:
    """A file in memory, mapped: `number`, by which the other process knows it, `size` in bytes."""

    def __init__(self, number: int, size: int, file: int | None = None) -> None:
        self.number, self.size = number, size
        self.file = _made(size) if file is None else file
        self.memory = mmap.mmap(self.file, size)

    def array(self, owner: Any, dtype: np.dtype, shape: tuple[int, ...], offset: int) -> np.ndarray:
        """An array over the block's memory; `owner`: what keeps it taken."""
        count = int(np.prod(shape, dtype=np.int64))
        return np.frombuffer(owner, dtype, count, offset).reshape(shape)

    def whole(self) -> Any:
        """All of its memory as an object for `array`."""
        return (ctypes.c_char * self.size).from_buffer(self.memory)

    def close(self) -> None:
        """Give the file up; the memory goes with the last array over it."""
        os.close(self.file)


def _made(size: int) -> int:
    if hasattr(os, "memfd_create"):
        file = os.memfd_create("orthrus")
    else:
        with tempfile.TemporaryFile() as made:
            file = os.dup(made.fileno())
    os.ftruncate(file, size)
    return file


class Pool:
    """Blocks that are used again; `alive`: the numbers of those there are. `constants`: the file of what all
    processes have in common. Safe on many threads."""

    def __init__(self) -> None:
        self.made = 0
        self.alive: set[int] = set()
        self._lock = rlock()
        self._idle: dict[int, list[Block]] = {}
        self._bytes = 0
        self._closed = False
        self.constants = _made(0)
        weakref.finalize(self, os.close, self.constants).atexit = False

    def take(self, size: int) -> tuple[Block, Any]:
        """A block of at least `size` bytes and the owner of its memory: with that, and the arrays over it,
        gone, the block is taken back."""
        rounded = max(_LEAST, 1 << max(size - 1, 1).bit_length())
        with self._lock:
            idle = self._idle.get(rounded)
            if idle:
                block = idle.pop()
                self._bytes -= block.size
            else:
                self.made += 1
                block = Block(self.made, rounded)
                self.alive.add(block.number)
        owner = block.whole()
        weakref.finalize(owner, self._give, block).atexit = False
        return block, owner

    def _give(self, block: Block) -> None:
        with self._lock:
            if self._closed or self._bytes + block.size > _KEPT:
                self.alive.discard(block.number)
                block.close()
                return
            self._bytes += block.size
            self._idle.setdefault(block.size, []).append(block)

    def close(self) -> None:
        """Keep nothing from now on."""
        with self._lock:
            self._closed = True
            for blocks in self._idle.values():
                for block in blocks:
                    block.close()
            self._idle.clear()
