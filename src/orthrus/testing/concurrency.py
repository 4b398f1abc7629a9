"""Checks of sessions that live together: threads, many sessions, processes, closing, repetition, memory.

Right is what one session gives alone, in one thread. Sessions are those of the public API, so that every
way a run takes is the one that users take.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
import threading
import time
import tracemalloc
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from .bench import Bench, Skip, brief, ours, quiet
from .blocks import Blocks, Sketch, blocks
from .check import by_operator, check, fault
from .closeness import difference
from .report import Finding

FAMILY = "concurrency"
THREADS, TURNS = 4, 8
SECONDS = 60
SESSIONS = 10
ROUNDS = 4
BYTES = 2048
"""Bytes by which a session may grow the process and still not leak."""
RESIDENT = 16384
"""The same for memory that Python does not see, whose allocators are noisier."""


def _model(found: Blocks, constant: int | None = None) -> Any:
    """Three claimed nodes; one of them, where there is a claimed one with two inputs, on a constant."""
    sketch = Sketch(found)
    x = sketch.unary(sketch.unary("x"), 1)
    if constant is not None and found.binary is not None:
        sketch.weights["w"] = found.feed(1000 + constant)
        x = sketch.binary(x, "w")
    return sketch.model([sketch.unary(x, 2)])


def _together(work: Callable[[int], str | None]) -> list[str]:
    """Run `work(i)` on each of some threads, begun together; what they say is wrong, or raised."""
    barrier, said = threading.Barrier(THREADS), list[str]()

    def one(i: int) -> None:
        try:
            barrier.wait(SECONDS)
            if (wrong := work(i)) is not None:
                said.append(wrong)
        except Exception as error:
            said.append(brief(error))

    threads = [threading.Thread(target=one, args=(i,), daemon=True) for i in range(THREADS)]
    for t in threads:
        t.start()
    end = time.monotonic() + SECONDS
    for t in threads:
        t.join(max(0.0, end - time.monotonic()))
    if any(t.is_alive() for t in threads):
        said.append(f"a thread did not end within {SECONDS} s")
    return said


@check(FAMILY)
def repeated_runs(bench: Bench) -> Iterator[Finding]:
    """The same inputs give the same result, to the bit, in every run of a session and in every session:
    whoever looks for the cause of a wrong number has to be able to see it twice."""
    rows = []
    for t in bench.working():
        watched = bench.engine(t.sample.model())
        bench.saw()
        first = [_bits(v) for v in watched.run(t.sample.feeds)]
        for turn in range(3):
            if [_bits(v) for v in watched.run(t.sample.feeds)] != first:
                rows.append((t.sample, f"run {turn + 2} gives other bits than run 1"))
                break
        else:
            if first != [_bits(v) for v in t.outputs]:
                rows.append((t.sample, "a second session gives other bits than the first"))
    yield from by_operator(rows, "the same bits", "sum in a fixed order, seed what is random, and clear what "
                           "a kernel keeps between runs")


def _bits(value: Any) -> Any:
    if not isinstance(value, np.ndarray):
        return repr(value)
    return value.shape, value.dtype.str, value.tolist() if value.dtype == object else value.tobytes()


@check(FAMILY)
def concurrent_runs(bench: Bench) -> Iterator[Finding]:
    """One session may run on several threads at once: a kernel keeps what belongs to a run in local
    variables, and not in itself."""
    found = blocks(bench)
    with bench.registered():
        session = bench.session(_model(found, 0))
        feeds = [found.feed(i) for i in range(THREADS)]
        expected = [session.run(None, {"x": x}) for x in feeds]

        def work(i: int) -> str | None:
            for _ in range(TURNS):
                if wrong := difference(session.run(None, {"x": feeds[i]}), expected[i], bench.slack):
                    return wrong
            return None

        said = _together(work)
        bench.saw(THREADS * TURNS)
        if said:
            yield fault(f"one session on {THREADS} threads", f"{said[0]} (on {len(said)} threads)",
                        "what one thread gives", "keep a run's state in local variables, or hold a lock")


@check(FAMILY)
def many_sessions(bench: Bench) -> Iterator[Finding]:
    """Sessions know nothing of each other: two models with other weights, run in turns, give what each
    gives alone. What a kernel keeps, it keeps in itself, not in the class or the module."""
    found = blocks(bench)
    with bench.registered():
        x, alone = found.feed(1), []
        for i in range(3):
            alone.append(bench.session(_model(found, i)).run(None, {"x": x}))
        sessions = [bench.session(_model(found, i)) for i in range(3)]
        for turn in range(2):
            for i, session in enumerate(sessions):
                bench.saw()
                if wrong := difference(session.run(None, {"x": x}), alone[i], bench.slack):
                    yield fault(f"session {i + 1} of 3, turn {turn + 1}", wrong, "what it gives alone",
                                "keep what belongs to a session in its provider or its kernels")
                    return


@check(FAMILY)
def sessions_on_threads(bench: Bench) -> Iterator[Finding]:
    """Sessions are made on several threads at once, each with its own instance of the provider: what they
    share, such as an engine's handle or a cache, needs a lock."""
    found = blocks(bench)
    with bench.registered():
        x = found.feed(1)
        expected = [bench.session(_model(found, i)).run(None, {"x": x}) for i in range(THREADS)]

        def work(i: int) -> str | None:
            for _ in range(3):
                if wrong := difference(bench.session(_model(found, i)).run(None, {"x": x}), expected[i],
                                       bench.slack):
                    return wrong
            return None

        with quiet():
            said = _together(work)
        bench.saw(3 * THREADS)
        if said:
            yield fault(f"sessions made on {THREADS} threads", f"{said[0]} (on {len(said)} threads)",
                        "what one thread gives", "hold a lock around what sessions share")


@check(FAMILY)
def closed_during_a_run(bench: Bench) -> Iterator[Finding]:
    """A session may be closed, and another one dropped, while a run is under way on a thread: that run
    ends as if nothing were. An engine that sessions share stays until the last of them is gone, and its
    kernels."""
    found = blocks(bench)
    watched, another = bench.engine(_model(found, 0)), bench.engine(_model(found, 0))
    x = found.feed(1)
    expected, _ = watched.run({"x": x}), another.run({"x": x})
    inside, go, said, got = threading.Event(), threading.Event(), list[str](), list[Any]()

    def around(run: Callable[..., Any], *given: Any, **more: Any) -> Any:
        inside.set()
        go.wait(SECONDS)
        return run(*given, **more)

    def work() -> None:
        try:
            got.append(watched.run({"x": x}))
        except Exception as error:
            said.append(brief(error))

    watched.around = around
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    if not inside.wait(SECONDS):
        raise Skip("none of its kernels was called")
    watched.engine.close()
    another.engine.close()
    del another
    gc.collect()
    go.set()
    thread.join(SECONDS)
    bench.saw()
    if thread.is_alive():
        said.append(f"it did not end within {SECONDS} s")
    if said or (wrong := difference(got[0], expected, bench.slack)):
        yield fault("the run under way", said[0] if said else str(wrong), "its result",
                    "count the users of what sessions share, and let kernels hold what they need")


@check(FAMILY)
def after_fork(bench: Bench) -> Iterator[Finding]:
    """A process that was forked runs the sessions of its parent: threads, locks and device handles do not
    come along, and are made anew where `os.getpid()` is another. Where that cannot be, the child raises at
    once one of the documented errors, which says that it was forked."""
    if not hasattr(os, "fork"):
        raise Skip("processes are not forked here")
    found = blocks(bench)
    with bench.registered():
        session = bench.session(_model(found, 0))
        x = found.feed(1)
        expected = session.run(None, {"x": x})
        bench.saw()
        said = _in_child(lambda: _forked(session, x, expected, bench.slack))
        if said:
            yield fault("a forked child", said, "what its parent gives",
                        "make what belongs to a process anew where os.getpid() has changed")
        elif wrong := difference(session.run(None, {"x": x}), expected, bench.slack):
            yield fault("the parent, after it forked", wrong, "what it gave before",
                        "free nothing in the child that is the parent's")


def _forked(session: Any, x: Any, expected: Any, slack: float) -> str:
    """What is wrong with a run in a child."""
    try:
        return difference(session.run(None, {"x": x}), expected, slack) or ""
    except Exception as error:
        if ours(error) and "fork" in str(error):
            return ""
        raise


def _in_child(work: Callable[[], str]) -> str:
    """What `work` says in a forked child; how the child ended where it said nothing."""
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        sys.stdout.flush()
        sys.stderr.flush()
        child = os.fork()
    if not child:
        try:
            os.close(read)
            try:
                said = work()
            except BaseException as error:
                said = brief(error)
            os.write(write, b"." + said.encode()[:4000])
        finally:
            os._exit(0)
    os.close(write)
    timer = threading.Timer(SECONDS, os.kill, (child, signal.SIGKILL))
    timer.daemon = True
    timer.start()
    try:
        with os.fdopen(read, "rb") as pipe:
            text = pipe.read()
        _, status = os.waitpid(child, 0)
    finally:
        timer.cancel()
    if not text:
        return f"it ended with signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else "it said nothing"
    return text[1:].decode(errors="replace")


@check(FAMILY)
def leaks(bench: Bench) -> Iterator[Finding]:
    """A session that is dropped leaves nothing: its provider is gone, and making sessions over and over
    takes no more memory, neither Python's nor an engine's."""
    found = blocks(bench)
    model, x = _model(found, 0), found.feed(1)
    with bench.registered():
        instances = _made(bench, model, x, 3)
        gc.collect()
        bench.saw(SESSIONS)
        if alive := sum(ref() is not None for ref in instances):
            yield fault(f"{len(instances)} sessions made and dropped",
                        f"{alive} instances of the provider are alive", "none",
                        "keep no instance, part or kernel in a class, a module or a global cache")
            return
        grown, kinds = _growth(bench, model, x)
        if grown > BYTES:
            more = f"; more of {kinds}" if kinds else ""
            yield fault("sessions made, run and dropped",
                        f"each keeps {grown:.0f} bytes of Python's memory{more}",
                        f"at most {BYTES}", "keep nothing of a session outside of its provider and kernels")
            return
        rest = _resident_growth(bench, model, x)
        if rest > RESIDENT:
            yield fault("sessions made, run and dropped",
                        f"each keeps {rest / 1024:.0f} KiB that Python does not see",
                        f"at most {RESIDENT // 1024}",
                        "free what the engine was given: weakref.finalize(kernel, engine.free, handle)")


def _made(bench: Bench, model: Any, x: np.ndarray, count: int) -> list[Any]:
    """Make, run and drop sessions; weak references to their instances of the provider."""
    found = []
    for _ in range(count):
        session = bench.session(model)
        for _ in range(2):
            session.run(None, {"x": x})
        found += [weakref.ref(p) for p in session._sess._engine.providers if type(p) is bench.provider]
        del session
    return found


def _growth(bench: Bench, model: Any, x: np.ndarray) -> tuple[float, str]:
    """Bytes per session that Python's memory grows by, and the kinds of objects there are more of."""
    tracing = tracemalloc.is_tracing()
    if not tracing:
        tracemalloc.start()

    def one() -> tuple[float, str]:
        objects, before = _objects(), tracemalloc.get_traced_memory()[0]
        _made(bench, model, x, SESSIONS)
        gc.collect()
        grown = (tracemalloc.get_traced_memory()[0] - before) / SESSIONS
        more = Counter({k: v for k, v in (_objects() - objects).items() if v >= SESSIONS})
        return grown, ", ".join(f"{v} {k}" for k, v in more.most_common(4))

    try:
        return _second_least(one, BYTES)
    finally:
        if not tracing:
            tracemalloc.stop()


def _second_least(one: Callable[[], tuple[float, str]], enough: float) -> tuple[float, str]:
    """The second smallest of what some rounds grew by, with what is said of it.

    What fills a cache once is in the first rounds only, a leak is in every one; but what others give back
    meanwhile (an allocator its free pages, a thread what it held) may hide it in one of them."""
    rounds: list[tuple[float, str]] = []
    for _ in range(ROUNDS):
        rounds = sorted([*rounds, one()])
        if len(rounds) > 1 and rounds[1][0] <= enough:
            break
    return rounds[1]


def _objects() -> Counter[str]:
    return Counter(type(o).__name__ for o in gc.get_objects())


def _resident_growth(bench: Bench, model: Any, x: np.ndarray) -> float:
    """Bytes per session of resident memory; 0 where the system does not tell."""
    def one() -> tuple[float, str]:
        before = _resident()
        _made(bench, model, x, SESSIONS)
        gc.collect()
        return (_resident() - before) / SESSIONS, ""

    return _second_least(one, RESIDENT)[0]


def _resident() -> int:
    """Bytes of the process in memory, what its allocator keeps free left out; 0 where no system tells."""
    try:
        libc = ctypes.CDLL(None)
        if hasattr(libc, "malloc_trim"):
            libc.malloc_trim(ctypes.c_size_t(0))
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, TypeError):
        return 0
