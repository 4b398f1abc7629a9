"""Code goes with the last session that could run it, and with none before."""

from __future__ import annotations

import gc
import threading
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from graphs import info, model
from onnx import helper
from skips import needs

import orthrus as ort
from orthrus.codegen.object import library

pytestmark = [needs("generated code"), needs("Linux")]
X = np.linspace(-2, 2, 1 << 16, dtype=np.float32).reshape(64, -1)


@pytest.fixture(autouse=True)
def _few_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "_recent", deque(maxlen=4))


def opened(number: int) -> ort.InferenceSession:
    """A session of a model whose kernels no other number shares: one of few binary digits is in the code."""
    nodes = [helper.make_node("LeakyRelu", ["x"], ["a"], alpha=(number + 1) / 4096),
             helper.make_node("ReduceSum", ["a"], ["s"]), helper.make_node("Neg", ["a"], ["b"])]
    made = model(nodes, [info("x", shape=["n", "k"])], [info("s", shape=None), info("b", shape=["n", "k"])])
    return ort.InferenceSession(made.SerializeToString())


def check(session: ort.InferenceSession, number: int) -> None:
    for x in (X, X[:1], X[:1], X[:3, :5].copy()):
        _, negative = session.run(None, {"x": x})
        by = np.float32((number + 1) / 4096)
        np.testing.assert_allclose(negative, -np.where(x < 0, x * by, x), rtol=1e-6)


def executable() -> int:
    """Bytes of code in this process that came from no file."""
    gc.collect()
    rows = [row.split() for row in Path("/proc/self/maps").read_text().splitlines()]
    spans = [row[0].split("-") for row in rows if len(row) == 5 and "x" in row[1]]
    return sum(int(end, 16) - int(begin, 16) for begin, end in spans)


@pytest.mark.slow
def test_two_hundred_closed_sessions_leave_no_code() -> None:
    for number in range(20):
        check(opened(number), number)
    before, ways = executable(), [lambda session: session.close(), lambda session: None]
    for number in range(20, 220):
        session = opened(number)
        check(session, number)
        ways[number % 2](session)
    del session
    assert executable() - before < 40 * 4096


@pytest.mark.slow
def test_open_sessions_keep_theirs() -> None:
    before = executable()
    held = [opened(number) for number in range(1000, 1040)]
    for number, session in enumerate(held, 1000):
        check(session, number)
    assert executable() - before >= 40 * 4096
    twin = opened(1039)
    for session in held[::2]:
        session.close()
    for number in range(2000, 2040):
        check(opened(number), number)
    for number, session in list(enumerate(held, 1000))[1::2]:
        check(session, number)
    held.clear()
    check(twin, 1039)


def test_a_session_that_is_closed_while_it_runs() -> None:
    """A run under way ends as if nothing were, whatever comes to lie where other code was."""
    wrong: list[Any] = []
    for number in range(3000, 3010):
        session, begun = opened(number), threading.Event()

        def work(session: ort.InferenceSession, begun: threading.Event, number: int) -> None:
            try:
                while True:
                    check(session, number)
                    begun.set()
            except ort.capi.onnxruntime_pybind11_state.Fail as error:
                if "closed" not in str(error):
                    wrong.append(error)
            except BaseException as error:
                wrong.append(error)
        threads = [threading.Thread(target=work, args=(session, begun, number)) for _ in range(2)]
        for thread in threads:
            thread.start()
        assert begun.wait(60)
        session.close()
        del session
        check(opened(number + 500), number + 500)
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
    assert not wrong


