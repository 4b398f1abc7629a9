"""An event loop that looks for the next request before it sleeps, on one whose time is made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from orthrus.serving.polling import MEMORY, TRIED, Polling

WINDOW, ROUND = 100e-6, 5e-6


class Rounds:
    """An event loop, a round of which takes `ROUND` seconds; `looks` counts those that kept it awake."""

    def __init__(self, seconds: float = WINDOW) -> None:
        self.now, self.looks = 0.0, 0
        self.ready = list[Callable[[], Any]]()
        self.polling = Polling(self, lambda: self.now, seconds)

    def call_soon(self, callback: Callable[[], Any], /) -> None:
        self.ready.append(callback)

    def pause(self, seconds: float) -> None:
        """An answer goes out, and so much later the next request comes."""
        self.polling.rest()
        end = self.now + seconds
        while self.now < end and self.ready:
            ready, self.ready = self.ready, []
            self.looks += len(ready)
            self.now += ROUND
            for callback in ready:
                callback()
        self.now = end
        self.polling.came()

    def looked(self, seconds: float, pauses: int = 200) -> int:
        before = self.looks
        for _ in range(pauses):
            self.pause(seconds)
        return self.looks - before


def test_clients_that_follow_at_once_find_it_awake() -> None:
    loop = Rounds()
    loop.looked(WINDOW / 4, 4 * TRIED)
    assert loop.looked(WINDOW / 4, 100) >= 100 * int(WINDOW / 4 / ROUND)


def test_clients_that_pause_let_it_sleep() -> None:
    loop = Rounds()
    loop.looked(WINDOW / 4)
    loop.looked(100 * WINDOW, 2 * MEMORY)
    assert loop.looked(100 * WINDOW, 10 * TRIED) <= 11 * (WINDOW / ROUND + 2), "one in many"


def test_one_chain_of_looks_at_a_time() -> None:
    loop = Rounds()
    loop.looked(WINDOW / 4)
    for _ in range(5):
        loop.polling.rest()
        loop.polling.came()
    assert len(loop.ready) <= 1


def test_without_a_window_it_never_looks() -> None:
    assert not Rounds(0.0).looked(WINDOW / 4)
