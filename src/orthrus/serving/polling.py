"""An event loop that looks for the next request for a moment before it sleeps.

In: a sign when the last request inside was answered, and when one comes. Out: a loop that is awake
meanwhile: to wake it takes longer than many a model does. It looks only while the next request has come in
time more often than not of late, and once in a while to see whether it does again: it costs a server whose
clients pause next to nothing.
"""

from __future__ import annotations

from collections.abc import Callable

from .lag import Loop

SHARE, TRIED = 0.25, 32
"""Of the looks of late that found a request, from which on every pause begins with one; else one in so
many."""
MEMORY = 8
"""Looks that the share is made of, about."""


class Polling:
    """`seconds`: of a look, 0 for none; `clock` gives seconds. For one event loop, on its own thread."""

    __slots__ = ("_clock", "_end", "_looking", "_pauses", "_resting", "_seconds", "_share", "loop")

    def __init__(self, loop: Loop, clock: Callable[[], float], seconds: float) -> None:
        self.loop, self._clock, self._seconds = loop, clock, seconds
        self._looking = self._resting = False
        self._end = self._share = 0.0
        self._pauses = 0

    def rest(self) -> None:
        """Nothing is inside any more."""
        self._pauses += 1
        if self._seconds and (self._share >= SHARE or not self._pauses % TRIED):
            self._resting, self._end = True, self._clock() + self._seconds
            if not self._looking:
                self._looking = True
                self.loop.call_soon(self._look)

    def came(self) -> None:
        """A request is there."""
        if self._resting:
            self._resting = False
            self._share += (1 - self._share) / MEMORY

    def _look(self) -> None:
        if self._resting and self._clock() < self._end:
            self.loop.call_soon(self._look)
            return
        self._looking = False
        if self._resting:
            self._resting = False
            self._share -= self._share / MEMORY
