"""Where a GPU's memory comes from: straight from the driver, or from what the program brought along.

In: sizes. Out: addresses. `limit` bytes at most are held at once.
"""

from __future__ import annotations

from typing import Protocol

from ...locks import lock
from .driver import Driver


class Allocator(Protocol):
    """Gives addresses, and takes them back."""

    def allocate(self, size: int) -> int:
        """The address of `size` bytes, a multiple of 256. Raises MemoryError or DriverError."""

    def free(self, address: int) -> None:
        """Take back what `allocate` gave, while work that was asked for may still use it."""


class Direct:
    """Every piece is the driver's own."""

    def __init__(self, driver: Driver, index: int, limit: int = 0) -> None:
        self.driver, self.index, self.limit = driver, index, limit
        self.held = 0
        self._sizes: dict[int, int] = {}
        self._lock = lock()

    def allocate(self, size: int) -> int:
        with self._lock:
            if self.limit and self.held + size > self.limit:
                raise MemoryError(f"{size} bytes beside {self.held} are more than gpu_mem_limit allows, "
                                  f"{self.limit}")
            address = self.driver.allocate(self.index, size)
            self._sizes[address] = size
            self.held += size
            return address

    def free(self, address: int) -> None:
        with self._lock:
            size = self._sizes.pop(address, None)
            if size is not None:
                self.held -= size
                self.driver.free(self.index, address)
