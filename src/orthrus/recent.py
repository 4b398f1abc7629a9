"""What was made by keys, as much of it as is kept: the least recently used goes first.

In: a key, and what makes its value. Out: the value, made by one thread at a time and once while it is kept. A
value that is there is found without a lock, however long it takes to make another.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import TypeVar

from .locks import lock

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Recent(OrderedDict[K, V]):
    """At most `most` values by their keys. `gone(key)` is told of each that has to go; `lock` is held while
    one is made."""

    def __init__(self, most: int, gone: Callable[[K], object] = lambda key: None) -> None:
        super().__init__()
        self.most, self.gone, self.lock = most, gone, lock()

    def used(self, key: K) -> V:
        """The value of `key`, which is now the last one used. Raises KeyError."""
        found = self[key]
        self.move_to_end(key)
        return found

    def kept(self, key: K, make: Callable[[], V]) -> V:
        """The value of `key`, made where it is not there. Raises what `make` raises."""
        try:
            return self.used(key)
        except KeyError:
            pass
        with self.lock:
            if key in self:
                return self.used(key)
            made = self[key] = make()
            while len(self) > self.most:
                self.gone(self.popitem(last=False)[0])
            return made
