"""Locks and forks: whatever the threads of a process hold while it forks, its child finds free."""

import os
import re
import signal
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from graphs import info, model
from onnx import helper
from skips import needs

import orthrus as ort
from orthrus import locks
from orthrus.records import cached_property

SOURCE = Path(ort.__file__).parent
OWN_WAY = {
    "locks.py": "makes them",
    "codegen/runtime/threads.py": "a pool is made anew in a child",
    "codegen/emulate": "workers of other processes, which a child asks for anew",
    "providers/spacemit": "their owners, likewise",
    "providers/dnnl/openmp.py": "held over the fork: oneDNN's own threads must be at rest",
    "tools": "commands that do not fork",
    "native/ahead/in_wheel.py": "goes into wheels, which have nothing else of this package",
}
"""Where a lock is made in another way, and why that is right."""


def test_locks_are_made_in_one_way() -> None:
    found = {str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*.py")
             if re.search(r"threading\.R?Lock\(\)", path.read_text(encoding="utf-8"))}
    assert not {name for name in found if not any(name.startswith(way) for way in OWN_WAY)}
    assert all(any(name.startswith(way) for name in found) for way in OWN_WAY)


def test_no_attribute_is_found_under_a_lock() -> None:
    """`functools.cached_property` has one for all objects of a class before Python 3.12."""
    assert [str(path) for path in SOURCE.rglob("*.py")
            if re.search(r"functools(\.| import .*)cached_property", path.read_text(encoding="utf-8"))
            ] == [str(SOURCE / "records.py")]


@needs("POSIX")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_child_finds_what_another_thread_is_finding() -> None:
    begun, done = threading.Event(), threading.Event()

    class Thing:
        def __init__(self, waits: bool) -> None:
            self.waits = waits

        @cached_property
        def value(self) -> int:
            begun.set()
            return done.wait(60) if self.waits else 7
    thread = threading.Thread(target=lambda: Thing(True).value)
    thread.start()
    begun.wait()
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        os._exit(Thing(False).value)
    status = os.waitpid(child, 0)[1]
    done.set()
    thread.join()
    assert os.waitstatus_to_exitcode(status) == 7


def softmax() -> ort.InferenceSession:
    proto = model([helper.make_node("Softmax", ["x"], ["y"])], [info("x", shape=["n", 8])],
                  [info("y", shape=["n", 8])])
    return ort.InferenceSession(proto.SerializeToString())


def test_nobody_holds_a_lock_between_runs() -> None:
    """What somebody has for longer is not to be told by a lock: in a child that would be free, so that two
    have it, or let go of once more."""
    session = softmax()
    for count in (3, 3, 5, 5, 3, 3, 3):
        session.run(None, {"x": np.ones((count, 8), np.float32)})
    binding = session.io_binding()
    binding.bind_cpu_input("x", np.ones((3, 8), np.float32))
    binding.bind_output("y")
    for _ in range(3):
        session.run_with_iobinding(binding)

    def held() -> bool:
        return any(lock.locked() for lock in list(locks._made) if hasattr(lock, "locked"))
    for _ in range(2000):  # what goes on behind a run takes a lock for a moment
        if not held():
            break
        time.sleep(0.01)
    assert not held()


@needs("POSIX")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_child_finds_every_lock_free_and_runs() -> None:
    """Another thread holds all of them, those of a session among them, when the process forks."""
    session = softmax()
    x = np.ones((3, 8), np.float32)
    session.run(None, {"x": x})
    held, done = threading.Event(), threading.Event()
    all_of = list(locks._made)

    def hold() -> None:
        taken = [lock for lock in all_of if lock.acquire(timeout=1)]
        held.set()
        done.wait(60)
        for lock in taken:
            lock.release()
    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    child = os.fork()
    if child == 0:
        good = all(lock.acquire(False) for lock in all_of)
        for lock in all_of:
            lock.release()
        rows = np.ones((5, 8), np.float32)
        good = good and session.run(None, {"x": rows})[0].shape == (5, 8)
        os._exit(0 if good else 1)
    status = os.waitpid(child, 0)[1]
    done.set()
    thread.join()
    assert len(all_of) > 5 and status == 0
