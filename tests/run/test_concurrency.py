"""One session under many threads, across processes, and after a run that broke off."""

import gc
import multiprocessing
import queue
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from big_models import weighty
from graphs import info, model
from onnx import helper
from skips import needs

import orthrus as ort
from orthrus import limits
from orthrus.api import background
from orthrus.errors import Fail
from orthrus.ops import define

X = np.ones((3, 512), np.float32)


def options(level: int = 99, parallel: bool = False) -> ort.SessionOptions:
    made = ort.SessionOptions()
    made.graph_optimization_level = ort.GraphOptimizationLevel(level)
    if parallel:
        made.execution_mode = ort.ExecutionMode.ORT_PARALLEL
    return made


def varied(count: int) -> list[tuple[np.ndarray, float]]:
    rng = np.random.default_rng(count)
    return [(np.full((int(n), 512), v, np.float32), v) for n, v in
            zip(rng.integers(1, 60, count), rng.standard_normal(count), strict=True)]


@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("kind", ["plain", "control"])
def test_many_threads_share_a_session(kind: str, parallel: bool) -> None:
    session = ort.InferenceSession(weighty(kind).SerializeToString(), options(parallel=parallel))
    peer = ort.InferenceSession(weighty(kind).SerializeToString(), options(0))
    failures: list[Any] = []

    def work(seed: int) -> None:
        try:
            for x, _ in varied(12 + seed):
                for _ in range(2):
                    y = session.run(["y"] if seed % 2 else None, {"x": x})[0]
                    np.testing.assert_allclose(y, peer.run(None, {"x": x})[0], rtol=1e-4, atol=1e-4)
                    y += 1
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert not failures and not any(t.is_alive() for t in threads)


@pytest.mark.parametrize("parallel", [False, True])
def test_close_during_runs_ends_in_a_typed_error(parallel: bool) -> None:
    for delay in (0.0, 0.002, 0.02):
        session = ort.InferenceSession(weighty("control").SerializeToString(), options(parallel=parallel))
        ended: queue.Queue[Any] = queue.Queue()

        def work(session: Any = session, ended: Any = ended) -> None:
            try:
                while True:
                    for x, _ in varied(5):
                        for names in (None, ["y"]):
                            assert session.run(names, {"x": x})[0].shape == x.shape
            except BaseException as error:
                ended.put(error)

        threads = [threading.Thread(target=work) for _ in range(4)]
        for t in threads:
            t.start()
        time.sleep(delay)
        session.close()
        for t in threads:
            t.join(30)
        errors = [ended.get_nowait() for _ in threads]
        assert all("has been closed" in str(e) for e in errors), errors
        assert all(type(e).__module__ == "orthrus.errors" for e in errors)


def sums(session: Any) -> list[float]:
    """Each shape comes often enough to be served in every way that runs take."""
    return [float(session.run(None, {"x": x})[0].sum()) for x, _ in varied(6) for _ in range(3)]


def child(session: Any, results: Any) -> None:
    results.put(sums(session))


@needs("POSIX")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("kind", ["plain", "control"])
def test_a_forked_child_runs_what_its_parent_ran(kind: str, parallel: bool) -> None:
    session = ort.InferenceSession(weighty(kind).SerializeToString(), options(parallel=parallel))
    mine = sums(session)
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    workers = [context.Process(target=child, args=(session, results), daemon=True) for _ in range(2)]
    for worker in workers:
        worker.start()
    for _ in workers:
        np.testing.assert_allclose(results.get(timeout=60), mine, rtol=1e-5)
    for worker in workers:
        worker.join(30)
        assert worker.exitcode == 0
    child(session, results)
    np.testing.assert_allclose(results.get(timeout=10), mine, rtol=1e-5)


SPAWN = """
import multiprocessing, sys
import numpy as np, orthrus

def work(session):
    return session.run(None, {'x': np.ones((2, 512), np.float32)})[0].tolist()

if __name__ == '__main__':
    session = orthrus.InferenceSession(sys.argv[1])
    mine = work(session)
    with multiprocessing.get_context('spawn').Pool(2) as pool:
        assert pool.map(work, [session, session]) == [mine, mine]
    print('same')
"""


def test_a_session_goes_to_a_spawned_process(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(weighty().SerializeToString())
    (tmp_path / "main.py").write_text(SPAWN)
    done = subprocess.run([sys.executable, str(tmp_path / "main.py"), str(tmp_path / "m.onnx")],
                          capture_output=True, text=True, timeout=120)
    assert done.stdout == "same\n", done.stderr


LATE = """
import sys, threading
import numpy as np, orthrus

def made():
    options = orthrus.SessionOptions()
    options.execution_mode = orthrus.ExecutionMode.ORT_PARALLEL
    return orthrus.InferenceSession(sys.argv[1], options)

def runs(session, rows):
    feeds, there, got = {'x': np.ones((rows, 512), np.float32)}, threading.Event(), []
    def callback(results, _, error):
        got.extend([error, *results])
        there.set()
        if rows == 3:
            try:
                session.run_async(None, feeds, callback, None)
            except orthrus.errors.Fail as refused:
                got.append('refused')
    session.run_async(None, feeds, callback, None)
    assert there.wait(60) and not got[0], got[0]
    (y,) = session.run(None, feeds)
    assert y.tobytes() == got[1].tobytes() and y.shape[0] == rows

def late():
    threading.main_thread().join()
    for rows in (2, 3, 3, 4):
        runs(session, rows)
    runs(made(), 5)
    print('same', flush=True)

session = made()
if sys.argv[2] == 'used':
    runs(session, 2)
threading.Thread(target=late).start()
"""


@pytest.mark.parametrize("before", ["used", "new"])
def test_threads_run_on_behind_the_main_one(before: str, tmp_path: Path) -> None:
    """Pools of Python's take no work then. Runs whose callbacks begin others come to an end."""
    (tmp_path / "m.onnx").write_bytes(weighty("control").SerializeToString())
    (tmp_path / "main.py").write_text(LATE)
    done = subprocess.run([sys.executable, str(tmp_path / "main.py"), str(tmp_path / "m.onnx"), before],
                          capture_output=True, text=True, timeout=120)
    assert done.stdout == "same\n", done.stderr


def test_no_further_thread_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A system that starts none, as by `ulimit -u`: whatever uses threads does without."""
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")
    peer = ort.InferenceSession(weighty("control").SerializeToString())
    mine = sums(peer)
    monkeypatch.setattr(background, "_pool", None)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        session = ort.InferenceSession(weighty("control").SerializeToString(), options(parallel=True))
        np.testing.assert_allclose(sums(session), mine, rtol=1e-5)
        got: list[Any] = []
        session.run_async(None, {"x": X}, lambda results, *_: got.extend(results), None)
        (y,) = session.run(None, {"x": X})
    np.testing.assert_array_equal(got[0], y)
    session.run(None, {"x": X})


class Stop(Exception):
    """Raised by a kernel."""


@pytest.fixture
def moody() -> Iterator[dict[str, Any]]:
    """An operator that does what `mood["act"]` does, then doubles."""
    mood: dict[str, Any] = {"act": None}

    @ort.op("test.scale::Moody", version=1)
    def Moody(x: Any) -> Any:
        if mood["act"] is not None:
            mood["act"]()
        return 2 * x

    yield mood
    define.forget("test.scale", "Moody")


def moody_model() -> bytes:
    nodes = [helper.make_node("Add", ["x", "x"], ["a"]),
             helper.make_node("Moody", ["a"], ["b"], "m", domain="test.scale"),
             helper.make_node("Add", ["b", "a"], ["c"]), helper.make_node("Add", ["c", "a"], ["y"])]
    return model(nodes, [info("x", shape=["N", 512])], [info("y", shape=["N", 512])],
                 domains={"test.scale": 1}).SerializeToString()


def fail() -> None:
    raise Stop("bad mood")


def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


@pytest.fixture
def listening() -> Iterator[None]:
    """Interrupts are heard, which a process that was started in the background does not by itself."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("act", [fail, interrupt], ids=["exception", "interrupt"])
@pytest.mark.usefixtures("listening")
def test_a_run_that_breaks_off_leaves_the_session_usable(moody: Any, act: Any, parallel: bool) -> None:
    session = ort.InferenceSession(moody_model(), options(parallel=parallel))
    x = np.ones((100, 512), np.float32)
    for turn in range(6):
        moody["act"] = act if turn % 2 else None
        if not turn % 2:
            assert session.run(None, {"x": x})[0].max() == 8
            continue
        with pytest.raises(KeyboardInterrupt if act is interrupt else Fail):
            session.run(None, {"x": x})


@needs("POSIX")
@pytest.mark.usefixtures("listening")
def test_no_step_goes_on_once_an_interrupt_is_out(moody: Any) -> None:
    """Whoever gets it may let go of the memory that is fed."""
    session, ended = ort.InferenceSession(moody_model(), options(parallel=True)), threading.Event()
    main = threading.get_ident()

    def slow() -> None:
        signal.pthread_kill(main, signal.SIGINT)
        time.sleep(0.5)
        ended.set()
    moody["act"] = slow
    with pytest.raises(KeyboardInterrupt):
        session.run(None, {"x": X})
    assert ended.is_set()


@pytest.mark.parametrize("parallel", [False, True])
def test_a_failed_run_holds_nothing(moody: Any, parallel: bool) -> None:
    """Once the error is gone, so are the intermediate results its traceback saw."""
    session = ort.InferenceSession(moody_model(), options(parallel=parallel))
    x = np.ones((100, 512), np.float32)
    fed = weakref.ref(x)
    gc.disable()
    moody["act"] = fail
    try:
        session.run(None, {"x": x})
        raise AssertionError("it ran")
    except Exception as error:
        assert "bad mood" in str(error)
    del x
    gc.enable()
    assert fed() is None


def test_state_of_the_thread_is_restored(moody: Any) -> None:
    session = ort.InferenceSession(moody_model(), limits=ort.Limits(max_nodes=10))
    seen: list[Any] = []
    moody["act"] = lambda: seen.append((limits.current().max_nodes, np.geterr()["over"]))
    before = limits.current(), np.geterr()
    session.run(None, {"x": X})
    moody["act"] = fail
    with pytest.raises(Exception, match="bad mood"):
        session.run(None, {"x": X})
    assert seen == [(10, "ignore")] and (limits.current(), np.geterr()) == before
