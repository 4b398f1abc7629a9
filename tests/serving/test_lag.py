"""The lag of an event loop, on one whose time is made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from orthrus.serving.lag import Lag


class Rounds:
    """An event loop of which each round runs what was there at its start."""

    def __init__(self) -> None:
        self.now = 0.0
        self.ready = list[Callable[[], Any]]()
        self.lag = Lag(self, lambda: self.now)

    def call_soon(self, callback: Callable[[], Any], /) -> None:
        self.ready.append(callback)

    def round(self, requests: int, seconds: float) -> list[float]:
        """One round with so many requests that take so long each; the lag each of them is told."""
        ready, self.ready = self.ready, []
        for callback in ready:
            callback()
        told = []
        for _ in range(requests):
            told.append(self.lag.seconds(self.now))
            self.now += seconds
        return told


def test_one_at_a_time_is_not_late() -> None:
    loop = Rounds()
    for _ in range(100):
        assert loop.round(1, 0.0001) == [pytest.approx(0, abs=0.00021)]
        loop.round(0, 0.0)
        loop.now += 0.1


def test_in_a_crowd_two_rounds_are_counted() -> None:
    loop = Rounds()
    assert max(loop.round(50, 0.001)) < 0.05
    loop.round(50, 0.001)
    for told in (loop.round(50, 0.001), loop.round(50, 0.001)):
        assert told == pytest.approx([0.1] * 50)


def test_a_long_round_is_known_while_it_lasts() -> None:
    loop = Rounds()
    assert loop.round(3, 0.2) == pytest.approx([0.0, 0.2, 0.4])


def test_what_was_long_ago_is_forgotten() -> None:
    loop = Rounds()
    for _ in range(3):
        loop.round(50, 0.001)
    loop.round(0, 0.0)
    loop.now += 1.0
    assert loop.round(1, 0.0) == [0.0]
    assert not loop.round(0, 0.0) and not loop.ready, "an idle loop is left alone"
