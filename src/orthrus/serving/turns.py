"""What holds an event loop up takes turns: one a turn of the loop, the first that came first.

In: calls. Out: nothing; each is made, and between two of them the loop looks at its sockets. Made where they
came up, all that are ready in one turn would keep every connection whose request is not whole yet waiting for
all of them, once for each part of it that its socket holds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from .lag import Loop


class OneByOne:
    """For one event loop, on its own thread."""

    __slots__ = ("_loop", "_waiting")

    def __init__(self, loop: Loop) -> None:
        self._loop, self._waiting = loop, deque[Callable[[], object]]()

    def put(self, call: Callable[[], object]) -> None:
        self._waiting.append(call)
        if len(self._waiting) == 1:
            self._loop.call_soon(self._next)

    def _next(self) -> None:
        try:
            self._waiting[0]()
        finally:
            self._waiting.popleft()
            if self._waiting:
                self._loop.call_soon(self._next)
