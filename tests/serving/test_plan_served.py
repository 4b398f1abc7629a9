"""A plan of capacity, and the simulator's times, beside the running server.

The model sleeps, so that a batch takes what it takes on any machine, and what the machine itself was late by
is measured meanwhile and allowed for. The simulator is told the very times at which requests came.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper
from served import model, put, serving
from skips import needs

import orthrus
from orthrus.serving.plan import plan
from orthrus.serving.simulate import Service, Stream, poisson, recorded, simulate

pytestmark = [needs("server libraries"), pytest.mark.slow]
BATCH, NAP, SECONDS = 4, 0.04, 3.0
MOST = BATCH / NAP
"""Requests a second that one slot can answer, whatever the machine: no sleep is shorter."""


@orthrus.op("served.test::Nap")
def nap(x: np.ndarray) -> np.ndarray:
    """Takes as long for any rows."""
    time.sleep(NAP)
    return x.copy()


class Late:
    """By how much this machine is late at most, while it is entered."""

    def __enter__(self) -> Late:
        self.seconds, self._end = 0.0, threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()
        return self

    def _look(self) -> None:
        before = time.perf_counter()
        while not self._end.wait(0.005):
            now = time.perf_counter()
            self.seconds, before = max(self.seconds, now - before - 0.005), now

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()


def due_at(rate: float) -> list[float]:
    """When requests come."""
    return list(takewhile(lambda at: at < SECONDS, poisson(rate)(random.Random(5))))


def served(folder: Path, rate: float, **settings: Any) -> tuple[Counter[str], list[float], Service, float]:
    """Of requests that come at such a rate: how many were answered or refused, what that took, what the
    server says of its batches, and how late the machine was."""
    from tritonclient.grpc import InferenceServerClient, InferInput
    from tritonclient.utils import InferenceServerException

    naps = [helper.make_node("Nap", ["x"], ["y"], domain="served.test")]
    put(folder, "naps", model(naps, {"x": ("FP32", ["N", 1])}, {"y": ("FP32", ["N", 1])}), 1,
        {"max_batch_size": BATCH, **settings})
    outcomes, taken, held = Counter[str](), list[float](), threading.Lock()
    with serving(folder, port=None) as server, InferenceServerClient(server.grpc_address) as client:
        feed = InferInput("x", [1, 1], "FP32")
        feed.set_data_from_numpy(np.ones((1, 1), np.float32))
        for _ in range(3):
            client.infer("naps", [feed])

        def one(due: float) -> None:
            time.sleep(max(due - time.perf_counter(), 0.0))
            try:
                client.infer("naps", [feed])
                outcome = "answered"
            except InferenceServerException as error:
                outcome = str(error.status())
            with held:
                outcomes[outcome] += 1
                taken.append(time.perf_counter() - due)
        with Late() as late, ThreadPoolExecutor(128) as pool:
            start = time.perf_counter() + 0.1
            list(pool.map(one, [start + at for at in due_at(rate)]))
        [found] = client.get_inference_statistics("naps", as_json=True)["model_stats"]
    seconds = {int(each["batch_size"]): int(each["compute_infer"]["ns"]) / 1e9
               / int(each["compute_infer"]["count"]) for each in found["batch_stats"]}
    return outcomes, sorted(taken), Service(seconds), late.seconds


def test_what_is_planned_is_kept(tmp_path: Path) -> None:
    rate = 0.6 * MOST
    outcomes, taken, service, late = served(tmp_path, rate)
    assert set(outcomes) == {"answered"}
    assert min(service.seconds.values()) >= NAP
    planned = plan(service, rate, 1.0 + 10 * late, max_batch=BATCH).chosen
    assert planned.machines == 1
    figures = simulate([Stream(recorded(due_at(rate)), service, max_batch=BATCH)], warmup=0.0).total
    assert figures.answered == len(taken)
    for share in (0.25, 0.5, 0.75, 0.9, 0.99):
        took, told = taken[int(share * len(taken))], figures.quantile(share)
        assert 0.8 * told - late <= took <= 1.25 * told + 0.005 + 2 * late, (share, took, told, late)


def test_what_is_beyond_the_plan_is_refused(tmp_path: Path) -> None:
    goal = 5 * NAP
    assert plan(Service({1: NAP, BATCH: NAP}), 3 * MOST, goal, max_batch=BATCH).chosen.machines > 3
    outcomes, taken, _, _ = served(tmp_path, 3 * MOST, goal=goal)
    assert set(outcomes) <= {"answered", "StatusCode.RESOURCE_EXHAUSTED", "StatusCode.DEADLINE_EXCEEDED"}
    lasted = SECONDS + taken[-1]
    assert 0 < outcomes["answered"] <= MOST * lasted + BATCH
    if len(taken) / lasted > 2 * MOST:
        assert outcomes["StatusCode.RESOURCE_EXHAUSTED"] > 0
