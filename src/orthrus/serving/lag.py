"""How long requests lie in their sockets, and answers in the loop, before an event loop comes round to them.

In: a sign at each request. Out: seconds. A loop that is idle reads at once; one that is busy reads what came
while it went its last round, and hands it on in the round after. A round is measured only where there was a
request in it, by a callback that runs first in the next: nothing waits for it, and an idle loop is not woken.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

STALE = 0.01
"""Seconds after which a round that nothing followed says nothing of now."""


class Loop(Protocol):
    def call_soon(self, callback: Callable[[], Any], /) -> Any: ...


class Lag:
    """`clock` gives seconds. For one event loop, on its own thread."""

    __slots__ = ("_before", "_began", "_clock", "_ended", "_last", "_loop")

    def __init__(self, loop: Loop, clock: Callable[[], float]) -> None:
        self._loop, self._clock = loop, clock
        self._began: float | None = None
        self._before = self._last = 0.0
        self._ended = float("-inf")

    def seconds(self, now: float) -> float:
        """By how much what is read now may be late: the last two rounds, or what is known of this one."""
        if self._began is None:
            self._began = now
            self._loop.call_soon(self._round)
            if now - self._ended > STALE + self._last:
                self._before = self._last = 0.0
        return max(self._before + self._last, now - self._began)

    def _round(self) -> None:
        now = self._clock()
        if self._began is not None:
            self._before, self._last = self._last, now - self._began
        self._began, self._ended = None, now
