"""What a request is told that is late by the server's own clock, which is made here."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from orthrus.serving.config import ModelConfig
from orthrus.serving.execution import UNTIMED, Executor, Job, _timed
from orthrus.serving.lag import Lag
from orthrus.serving.refusals import Kind, Refusal
from orthrus.serving.statistics import Statistics


def served(seconds: float, within: float | None = None, read_late: float = 0.0, usual: float | None = None,
           **settings: Any) -> tuple[Any, Statistics]:
    """What became of a request to a model whose run takes `seconds`. `read_late`: how long the loop's last
    round took; `usual`: what runs took before."""
    async def one() -> tuple[Any, Statistics]:
        executor, now = Executor(1), 100.0

        def run(names: Sequence[str], feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
            nonlocal now
            now += seconds
            return [feeds["x"]]
        executor.clock = lambda: now
        version: Any = SimpleNamespace(
            key="#1", name="m", config=ModelConfig(**settings), session=SimpleNamespace(run=run),
            retired=False, statistics=Statistics(), foreign=False,
            ran={} if usual is None else {((3,),): usual})
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


def test_an_answer_that_would_reach_its_client_too_late_is_none() -> None:
    """The way back counts: as long as the loop takes to come round to its sockets."""
    kind, statistics = served(0.5, within=0.8, read_late=0.2)
    assert kind is Kind.LATE and statistics.refused["expired"] == 1 and statistics.executions == 1
    assert served(0.3, within=0.8, read_late=0.2)[0].result is not None


def test_a_short_run_that_took_long_for_once_is_late() -> None:
    kind, statistics = served(0.5, within=0.1, usual=1e-4)
    assert kind is Kind.LATE and statistics.refused["expired"] == 1 and statistics.executions == 1
    assert served(0.05, within=0.1, usual=1e-4)[0].result is not None


@pytest.mark.parametrize("how", ({"goal": 0.1}, {"within": 1.0}, {"timeout": 1.0}, {}))
def test_an_answer_behind_a_goal_is_given(how: dict[str, Any]) -> None:
    job, statistics = served(0.5, **how)
    assert job.result[0].shape == (3,) and not statistics.refused


def run_often(seconds: list[float], here: bool, known: float | None = None, **settings: Any) -> float:
    """What is thought of a shape's time after runs of these seconds."""
    version: Any = SimpleNamespace(config=ModelConfig(**settings), ran={}, foreign=False)
    job = Job(version, {"x": np.zeros(3)}, ["y"], 0.0)
    if known is not None:
        version.ran[((3,),)] = known
    for each in seconds:
        _timed(version, job, each, here)
    [found] = version.ran.values()
    return found


def test_the_time_of_a_run() -> None:
    assert run_often([9.0], True) == UNTIMED
    assert run_often([9.0, 1e-4], False) == 1e-4
    assert run_often([9.0, *[1e-4, 1e-4, 1e-4, 9.0] * 50], True) < 2e-4
    assert run_often([9.0, *[1e-3] * 50], False) == pytest.approx(1e-3)
    assert run_often([1e-4], True, known=9.0) == 1e-4
    assert run_often([1e-4], False, known=9.0) > 7.0


@pytest.mark.parametrize("settings, usual, here", [
    ({}, 1e-4, 100), ({}, 1e-3, 1), ({}, 1.0, 0), ({"max_batch_size": 8}, 1e-4, 1),
    ({"max_batch_size": 8}, 1e-5, 100), ({}, UNTIMED, 0)])
def test_where_a_run_goes(settings: dict[str, Any], usual: float, here: int) -> None:
    async def count(foreign: bool) -> int:
        executor = Executor(1)
        version: Any = SimpleNamespace(config=ModelConfig(**settings), ran={((3,),): usual}, foreign=foreign)
        job = Job(version, {"x": np.zeros(3)}, ["y"], 0.0)
        found = sum(executor._at_hand(job) for _ in range(100))
        executor.close()
        return found
    assert asyncio.run(count(False)) == here
    assert asyncio.run(count(True)) == 0


def test_what_lay_in_its_socket_too_long_is_not_run() -> None:
    kind, statistics = served(0.01, within=0.1, read_late=0.2)
    assert kind in (Kind.LATE, Kind.FULL) and statistics.refused["late"] == 1 and not statistics.executions
    job, _ = served(0.01, within=0.5, read_late=0.2)
    assert job.arrived == 100.0
