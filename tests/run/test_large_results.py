"""Large results are in memory that is used again, but for what somebody still looks at."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from graphs import info, model
from onnx import helper
from skips import needs

import orthrus as ort
from orthrus import limits, memory
from orthrus.errors import Fail
from orthrus.run.config import Config
from orthrus.run.engine import Engine

pytestmark = [needs("POSIX"), needs("generated code")]


GRAPH = model([helper.make_node("Neg", ["x"], ["y"]), helper.make_node("Abs", ["x"], ["z"])],
              [info("x", shape=[None, 64])],
              [info("y", shape=[None, 64]), info("z", shape=[None, 64])]).SerializeToString()


@pytest.fixture
def session(monkeypatch: pytest.MonkeyPatch) -> ort.InferenceSession:
    memory.release()
    monkeypatch.setattr(memory, "LARGE", 1 << 12)
    monkeypatch.setattr(memory, "_IDLE", 1 << 16)
    return ort.InferenceSession(GRAPH)


def rows(count: int, start: float = 0.0) -> np.ndarray:
    return (start - np.arange(64 * count, dtype=np.float32)).reshape(count, 64)


def test_it_is_used_again(session: ort.InferenceSession) -> None:
    places = set()
    for i in range(20):
        x = rows(32, i)
        y, z = session.run(None, {"x": x})
        np.testing.assert_array_equal(y, -x)
        np.testing.assert_array_equal(z, np.abs(x))
        assert y.flags.c_contiguous and y.flags.writeable and not np.shares_memory(y, z)
        y[:] = z[:] = np.nan
        places |= {y.ctypes.data, z.ctypes.data}
    assert len(places) <= 4


LOOKS: list[Callable[[np.ndarray, np.ndarray], Any]] = [
    lambda y, z: y[3:5, ::7], lambda y, z: memoryview(y), lambda y, z: z.view(np.int32),
    lambda y, z: z.reshape(-1)[5:]]


def test_what_somebody_looks_at_stays(session: ort.InferenceSession) -> None:
    kept = []
    for i in range(12):
        kept.append(LOOKS[i % 4](*session.run(None, {"x": rows(32 - i, i)})))
        gc.collect()
    for i, view in enumerate(kept):
        x = rows(32 - i, i)
        np.testing.assert_array_equal(np.asarray(view), np.asarray(LOOKS[i % 4](-x, np.abs(x))))


def test_it_counts_as_held(session: ort.InferenceSession) -> None:
    """By those who add up what a run holds; a view of it does not, nor does what is gone."""
    y, _ = session.run(None, {"x": rows(32)})
    made = memory.handed_out((64, 64), np.dtype(np.float32))
    assert limits.held(made) == made.nbytes and limits.held(made[1:]) == limits.held(made.view(np.int32)) == 0
    assert limits.held(y) == y.nbytes and y.base is not None
    before = set(limits.OWNERS)
    del made
    assert len(before - limits.OWNERS) == 1
    engine = Engine(GRAPH, Config(limits=limits.Limits(max_total_bytes=1 << 13)))
    with pytest.raises(Fail, match="more memory than it may"):
        engine.run(None, {"x": rows(32)})


def test_not_much_lies_idle(session: ort.InferenceSession) -> None:
    held = [session.run(None, {"x": rows(n)}) for n in (20, 60, 100, 140, 180)]
    assert not memory._idle
    del held
    gc.collect()
    assert 0 < sum(map(len, memory._idle)) <= 1 << 16
    options = ort.RunOptions()
    options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    y, z = session.run(None, {"x": rows(40)}, options)
    assert not memory._idle
    np.testing.assert_array_equal(y, -rows(40))
