"""What a request is told that is late by the server's own clock, which is made here."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from orthrus.serving.config import ModelConfig
from orthrus.serving.execution import Executor
from orthrus.serving.lag import Lag
from orthrus.serving.refusals import Kind, Refusal
from orthrus.serving.statistics import Statistics


def served(seconds: float, within: float | None = None, read_late: float = 0.0, **settings: Any
           ) -> tuple[Any, Statistics]:
    """What became of a request to a model whose run takes `seconds`. `read_late`: how long the loop's last
    round took."""
    async def one() -> tuple[Any, Statistics]:
        executor, now = Executor(1), 100.0

        def run(names: Sequence[str], feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
            nonlocal now
            now += seconds
            return [feeds["x"]]
        executor.clock = lambda: now
        version: Any = SimpleNamespace(
            key="#1", name="m", config=ModelConfig(**settings), session=SimpleNamespace(run=run),
            retired=False, statistics=Statistics(), ran=set(), usual=1.0)
        executor.serve(version)
        executor._lag = Lag(asyncio.get_running_loop(), executor.clock)
        executor._lag._last, executor._lag._ended = read_late, now
        try:
            return await executor.run(version, {"x": np.zeros(3)}, ["y"], now, within), version.statistics
        except Refusal as refusal:
            return refusal.kind, version.statistics
        finally:
            executor.close()
    return asyncio.run(one())


def test_an_answer_behind_the_requests_own_time_is_none() -> None:
    kind, statistics = served(0.5, within=0.1)
    assert kind is Kind.LATE and statistics.refused["expired"] == 1
    kind, _ = served(0.5, timeout=0.1)
    assert kind is Kind.LATE


@pytest.mark.parametrize("how", ({"goal": 0.1}, {"within": 1.0}, {"timeout": 1.0}, {}))
def test_an_answer_behind_a_goal_is_given(how: dict[str, Any]) -> None:
    job, statistics = served(0.5, **how)
    assert job.result[0].shape == (3,) and not statistics.refused


def test_what_lay_in_its_socket_too_long_is_not_run() -> None:
    kind, statistics = served(0.01, within=0.1, read_late=0.2)
    assert kind in (Kind.LATE, Kind.FULL) and statistics.refused["late"] == 1 and not statistics.executions
    job, _ = served(0.01, within=0.5, read_late=0.2)
    assert job.arrived == 100.0
