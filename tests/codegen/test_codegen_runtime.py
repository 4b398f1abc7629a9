"""What carries generated code: executable, the cache, compiling, threads, and entering it from Python."""

from __future__ import annotations

import errno
import functools
import gc
import io
import logging
import os
import random
import struct
import subprocess
import sys
import textwrap
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("llvmlite")

from skips import lacking, needs

from orthrus import knobs, locks
from orthrus.codegen.machines.detect import host
from orthrus.codegen.machines.executable import CodePages
from orthrus.codegen.machines.machine import AVX2, NEON, RVV256, SSE2
from orthrus.codegen.object import build, cache, library
from orthrus.codegen.object.build import assemble
from orthrus.codegen.object.link import link
from orthrus.codegen.runtime import entry, threads, units
from orthrus.codegen.runtime.cells import Cell, PoolCell
from orthrus.codegen.write.body import Body
from orthrus.codegen.write.emit import F32, I64, V
from orthrus.codegen.write.spec import Spec
from orthrus.codegen.write.template import template

HERE = Path(__file__).parent
HOST = host()
if why := lacking("generated code"):
    pytest.skip(why, allow_module_level=True)
assert HOST is not None


@template("x:ptr y:ptr")
def runtime_scaled(f: Body, x: V, y: V, *, by: float) -> None:
    """y[i] = by · x[i] + what the thread's own scratch does not change."""
    table = f.table(F32, [by, 1.0])

    def body(i: V) -> None:
        f.store(f.load(F32, x, i) * f.load(F32, table), f.scratch)
        f.store(f.load(F32, f.scratch), y, i)
    f.loop(f.lo, f.hi, 1, [], body)


@template("flags:ptr first:i64 step:i64")
def runtime_meet(f: Body, flags: V, first: V, step: V) -> None:
    """Item i sets flag i, then waits until flag `first + i * step` is set."""
    def body(i: V) -> None:
        f.line(f"store atomic i64 1, {f.gep(flags, i, I64)} seq_cst, align 8")
        awaited = f.gep(flags, first + i * step, I64)
        f.repeat([], lambda: (f.emit(I64, f"load atomic i64, {awaited} seq_cst, align 8").eq(0), []))
    f.loop(f.lo, f.hi, 1, [], body)


@template("at:ptr value:i64")
def runtime_store(f: Body, at: V, value: V) -> None:
    """Set a cell."""
    f.store(value, at)


def scaled(by: float) -> Spec:
    return runtime_scaled(by=by)


class Scaling:
    """A program of `steps` that multiply by 3: x to y, then y to y."""

    def __init__(self, count: int, steps: int = 3, grain: int = 8, width: int = 1, hold: bool = False,
                 pool: threads.Pool | None = None) -> None:
        assert HOST is not None
        (code,) = library.addresses([scaled(3.0)], HOST)
        self.args = np.zeros((steps, 2), np.int64)
        table = np.array([[code, row.ctypes.data, count, grain] for row in self.args], np.int64)
        room = np.zeros(64 * (width + 1), np.uint8)
        at = room.ctypes.data + -room.ctypes.data % 64
        patches = [[0 if i == 0 and j == 0 else 1, self.args.ctypes.data + 16 * i + 8 * j, 0]
                   for i in range(steps) for j in range(2)]
        self.block = entry.block(table, 2, np.array(patches, np.int64), threads=width, scratch=at,
                                 scratch_size=64, hold=hold, keep=(self.args, room), using=pool)
        self.run = entry.make(self.block)


def meeting(pool: threads.Pool | None, items: int, first: int, step: int
            ) -> tuple[entry.StepBlock, np.ndarray]:
    """A program whose items wait for flags, and the flags."""
    assert HOST is not None
    (code,) = library.addresses([runtime_meet()], HOST)
    flags = np.zeros(8, np.int64)
    args = np.array([flags.ctypes.data, first, step], np.int64)
    table = np.array([[code, args.ctypes.data, items, 1]] * 2, np.int64)
    return entry.block(table[:1 if items > 1 else 2], threads=2, keep=(args, flags), using=pool), flags


def started(run: Callable[..., None]) -> threading.Thread:
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def together(*work: Callable[[], Any]) -> None:
    """Do all of it at once, each in its thread."""
    for thread in [started(each) for each in work]:
        thread.join(60)
        assert not thread.is_alive()


@pytest.fixture(scope="module")
def team() -> threads.Pool:
    return threads.Pool(4)


def until(true: Callable[[], bool]) -> None:
    """Wait for something that has to happen, and may be over at the next look."""
    for _ in range(60_000):
        if true():
            return
        time.sleep(0.001)
    pytest.fail("it did not happen")


# running


@pytest.mark.parametrize("hold", [False, True])
@pytest.mark.parametrize("futex", [True, False])
@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_results_do_not_depend_on_threads(width: int, futex: bool, hold: bool) -> None:
    pool = threads.Pool(4, futex)
    x = np.random.default_rng(1).standard_normal(4099).astype(np.float32)
    for count in (0, 1, 7, 8, 9, 63, 1000, 4099):
        for grain in (1, 8, 1000):
            program = Scaling(count, grain=grain, width=width, hold=hold, pool=pool)
            y = np.zeros_like(x)
            for _ in range(3):
                program.run(x, y)
            expected = np.zeros_like(x)
            for i in range(3):
                np.multiply((x, expected)[i > 0][:count], np.float32(3), out=expected[:count])
            np.testing.assert_array_equal(y, expected)
            assert program.block[Cell.DONE] == 3
    assert pool.size <= width


def test_a_run_counts_no_more_threads_than_it_may_have(team: threads.Pool) -> None:
    with knobs.setting(THREADS=2):
        assert Scaling(1000, width=4, pool=team).block[Cell.THREADS] == 2
        assert threads.Pool(64).capacity == 2
    assert Scaling(1000, width=9, pool=team).block[Cell.THREADS] == 4
    assert Scaling(8, width=4, pool=team).block[Cell.POOL] == 0


def test_sleeping_workers_are_woken_and_help() -> None:
    pool = threads.Pool(2)
    block, flags = meeting(pool, 2, 1, -1)
    run = entry.make(block)
    for _ in range(3):
        flags[:] = 0
        together(run)
        until(lambda: pool.cells[PoolCell.AWAY] == 1)


def test_the_caller_sleeps_until_the_last_worker_is_done() -> None:
    pool = threads.Pool(2)
    block, flags = meeting(pool, 2, 1, 3)
    thread = started(entry.make(block))
    until(lambda: pool.cells[PoolCell.WAITING] == 1)
    assert flags[1] and thread.is_alive()
    flags[4] = 1
    thread.join(60)
    assert not thread.is_alive() and pool.cells[PoolCell.WAITING] == 0


def test_a_run_that_finds_the_pool_busy_works_alone(team: threads.Pool) -> None:
    program = Scaling(1000, width=4, pool=team)
    x, y = np.ones(1000, np.float32), np.zeros(1000, np.float32)
    team.cells[PoolCell.HELD], ticket = 1, team.cells[PoolCell.TICKET]
    program.run(x, y)
    assert team.cells[PoolCell.TICKET] == ticket and (y == 27).all()
    team.cells[PoolCell.HELD], team.cells[PoolCell.RUNS] = 0, 3
    program.run(x, y)
    assert team.cells[PoolCell.TICKET] == ticket and team.cells[PoolCell.RUNS] == 3
    team.cells[PoolCell.RUNS] = 0
    program.run(x, y)
    assert team.cells[PoolCell.TICKET] != ticket and not team.cells[PoolCell.HELD]


def test_python_threads_run_at_the_same_time(team: threads.Pool) -> None:
    wrong: list[int] = []

    def work(seed: int) -> None:
        x = np.random.default_rng(seed).standard_normal(3000).astype(np.float32)
        program, y = Scaling(3000, 4, width=1 + seed % 4, hold=seed == 5, pool=team), np.zeros_like(x)
        expected = x * np.float32(3) * np.float32(3) * np.float32(3) * np.float32(3)
        for _ in range(400):
            y[:] = 0
            program.run(x, y)
            if not np.array_equal(y, expected):
                wrong.append(seed)
    together(*(functools.partial(work, seed) for seed in range(8)))
    assert not wrong
    assert team.cells[PoolCell.RUNS] == 0 and team.cells[PoolCell.HELD] == 0


def test_a_step_that_sets_the_stop_cell_is_the_last() -> None:
    assert HOST is not None
    code, args = library.addresses([runtime_store()], HOST)[0], np.zeros((5, 2), np.int64)
    stops = np.zeros(1, np.int64)
    args[:, 0] = stops.ctypes.data
    args[2, 1] = 1
    block = entry.block(np.array([[code, row.ctypes.data, 1, 1] for row in args], np.int64), keep=(args,))
    run = entry.make(block)
    run()
    assert block[Cell.DONE] == 5
    block[Cell.STOP] = stops.ctypes.data
    run()
    assert block[Cell.DONE] == 3
    run()
    assert block[Cell.DONE] == 0
    stops[0] = 0
    run()
    assert block[Cell.DONE] == 3


def test_another_thread_stops_a_run() -> None:
    block, flags = meeting(None, 1, 1, 0)
    thread = started(entry.make(block))
    until(lambda: flags[0] == 1)
    block[Cell.STOPPED] = 1
    flags[1] = 1
    thread.join(60)
    assert block[Cell.DONE] == 1


@needs("Linux")
def test_idle_threads_use_no_processor(team: threads.Pool) -> None:
    """What the kernel says they used, in hundredths of a second."""
    Scaling(1000, width=4, pool=team).run(np.ones(1000, np.float32), np.zeros(1000, np.float32))
    until(lambda: team.cells[PoolCell.AWAY] == team.size - 1)

    def used() -> int:
        rows = [Path(f"/proc/self/task/{thread}/stat").read_text() for thread in team._ids.values()]
        assert len(rows) == team.size - 1
        return sum(sum(map(int, row.rpartition(")")[2].split()[11:13])) for row in rows)

    before = used()
    time.sleep(0.3)
    assert used() - before < team.size


def test_no_thread_before_a_run_needs_one() -> None:
    pool = threads.Pool(4)
    assert (pool.size, pool.capacity) == (1, 4)
    x, y = np.ones(1000, np.float32), np.zeros(1000, np.float32)
    Scaling(1000, width=1, pool=pool).run(x, y)
    Scaling(1000, grain=1000, width=4, pool=pool).run(x, y)
    assert pool.size == 1
    Scaling(1000, width=3, pool=pool).run(x, y)
    assert pool.size == 3
    assert pool.ensure(9) == 4


def test_a_system_without_threads_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def refuse(*_: Any) -> None:
        asked.append(1)
        raise RuntimeError("can't start new thread")
    monkeypatch.setattr(threads._thread, "start_new_thread", refuse)
    pool = threads.Pool(4)
    program, y = Scaling(1000, width=4, pool=pool), np.zeros(1000, np.float32)
    for _ in range(2):
        program.run(np.ones(1000, np.float32), y)
    assert len(asked) == 1 and pool.size == 1 and (y == 27).all()


# entering


def test_arrays_are_checked() -> None:
    program = Scaling(4)
    x, y = np.ones(4, np.float32), np.zeros(4, np.float32)
    wrong: list[tuple[Any, ...]] = [(), (x,), (x, y, y), (x, [1.0]), (None, y), (x, y.view(entry.StepBlock))]
    for run in (program.run, lambda *a: entry._through_ctypes(program.block, *a)):
        for arrays in wrong:
            with pytest.raises(TypeError, match="as many as"):
                run(*arrays)
        assert not y.any()
        run(x, y)
        assert (y == 27).all()
        y[:] = 0


def test_views_and_offsets(monkeypatch: pytest.MonkeyPatch) -> None:
    assert entry.direct()
    base = np.arange(100, dtype=np.float32)
    for direct in (True, False):
        monkeypatch.setattr(entry, "direct", lambda direct=direct: direct)
        program, y = Scaling(10, 1, width=2), np.zeros(30, np.float32)
        program.block.kept[1][:, 2] = 40
        program.run(base[20:], y)
        np.testing.assert_array_equal(y[10:20], base[30:40] * 3)
        assert not y[:10].any() and not y[20:].any()


def test_references_balance() -> None:
    program, x, y = Scaling(64), np.ones(64, np.float32), np.zeros(64, np.float32)
    before = [sys.getrefcount(each) for each in (x, y, program.block, np.ndarray)]
    for _ in range(1000):
        program.run(x, y)
    assert before == [sys.getrefcount(each) for each in (x, y, program.block, np.ndarray)]


def test_a_function_keeps_its_program() -> None:
    run = Scaling(64).run
    gc.collect()
    junk = [np.full(100, -1, np.int64) for _ in range(100)]
    y = np.zeros(64, np.float32)
    run(np.ones(64, np.float32), y)
    assert (y == 27).all() and len(junk) == 100


def test_blocks_are_checked() -> None:
    table = np.zeros((1, 4), np.int64)
    table[:, 3] = 1
    for wrong in (table.astype(np.int32), table[:, :3], np.zeros((4, 1, 4), np.int64)[:, 0].T, table * 0):
        with pytest.raises(ValueError, match="expected|grain"):
            entry.block(wrong)
    with pytest.raises(ValueError, match="among the 1"):
        entry.block(table, 1, np.array([[1, 0, 0]], np.int64))


# processes

PROGRAM = """
import os, sys, threading, time
sys.path[:0] = {tests!r}
import numpy as np
from test_codegen_runtime import PoolCell, Scaling, entry, meeting, started, threads, until
pool = threads.Pool(4)
program = Scaling(1000, width=4, pool=pool)
def check(program=program):
    y = np.zeros(1000, np.float32)
    program.run(np.ones(1000, np.float32), y)
    assert (y == 27).all()
check()
"""


def python(body: str, **environ: str) -> str:
    """What a program prints that ends well and says nothing else."""
    text = PROGRAM.format(tests=[str(HERE), str(HERE.parent / "support")]) + textwrap.dedent(body)
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", text], capture_output=True, text=True,
                          timeout=120, env={**os.environ, **environ})
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


@pytest.mark.parametrize("how", ["pass", "until(lambda: pool.cells[PoolCell.AWAY] == 3)", """
block, flags = meeting(pool, 2, 5, -1)
started(entry.make(block))
until(lambda: flags[0] and flags[1])
""", """
block, flags = meeting(None, 1, 1, 0)
started(entry.make(block))
until(lambda: flags[0])
import atexit
atexit.register(lambda: flags.__setitem__(1, 1))
""", """
def loop():
    program = Scaling(1000, width=4, pool=pool)
    while True:
        check(program)
for _ in range(3):
    started(loop)
time.sleep(0.05)
"""], ids=["spinning", "parked", "running", "ending", "busy"])
def test_the_interpreter_exits(how: str) -> None:
    python(how)


@needs("POSIX")
def test_a_forked_child_has_its_own_pool() -> None:
    assert python("""
        block, flags = meeting(pool, 2, 5, -1)
        thread = started(entry.make(block))
        until(lambda: flags[0] and flags[1])
        for i in range(3):
            child = os.fork()
            if not child:
                assert pool.size == 1
                check()
                assert pool.size == 4 and pool.cells[PoolCell.TICKET] >= 1 << 16
                grandchild = os.fork()
                check()
                if grandchild:
                    assert os.waitpid(grandchild, 0)[1] == 0
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
        flags[4:6] = 1
        thread.join()
        assert pool.size == 4
        check()
        print("done")
        """) == "done\n"


def test_processes_share_a_cache(tmp_path: Path) -> None:
    text = """
    import random
    random.seed(os.getpid())
    from test_codegen_runtime import library, scaled, HOST
    specs = [scaled(float(i)) for i in range(100, 120)]
    for batch in range(4):
        random.shuffle(specs)
        library._known.clear()
        assert len(set(library.addresses(specs, HOST))) == 20
    print("llvmlite.binding" in sys.modules)
    """
    results: list[str] = []
    folder = str(tmp_path / "cache")
    together(*[lambda: results.append(python(text, ORTHRUS_CACHE_DIR=folder))] * 3)
    assert len(results) == 3
    assert not [name for name in os.listdir(folder) if "." in name]
    assert python(text, ORTHRUS_CACHE_DIR=folder) == "False\n"


# the cache


@pytest.fixture
def folder(tmp_path: Path) -> Any:
    path = tmp_path / "cache"
    with knobs.setting(CACHE=1, CACHE_DIR=str(path)):
        yield path


def names(folder: Path) -> list[str]:
    return sorted(name for name in os.listdir(folder) if name != "swept") if folder.exists() else []


def test_sources_are_read_once_and_whenever_they_change(tmp_path: Path,
                                                        monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever changes: content, size, time, place, a file more or less; old files are not read again."""
    package = tmp_path / "package"
    (package / "inner").mkdir(parents=True)
    files = [package / "a.py", package / "inner" / "b.py"]
    for i, each in enumerate(files):
        each.write_text(f"x = {i}")
    with knobs.setting(CACHE=1, CACHE_DIR=str(tmp_path / "cache")):
        monkeypatch.setattr(cache, "_SETTLED", 1 << 62)
        first = cache._stamp(str(package))
        assert first and cache.place() and not list((tmp_path / "cache").glob("*"))  # too new to be sure
        monkeypatch.setattr(cache, "_SETTLED", -1)
        assert cache._stamp(str(package)) == first
        (kept,) = [each for each in (tmp_path / "cache").iterdir() if each.name != cache._SWEPT]
        opened: list[Any] = []
        with monkeypatch.context() as patched:
            patched.setattr("builtins.open", lambda *given, **_: opened.append(given))
            assert cache._stamp(str(package)) == first and not opened
        seen = {first}
        status = files[0].stat()
        files[0].write_text("x = 7")
        os.utime(files[0], ns=(status.st_atime_ns, status.st_mtime_ns))  # ctime tells
        for change in (lambda: None, lambda: files[1].write_text("x = 10"), lambda: files[1].rename(
                package / "c.py"), lambda: (package / "d.py").write_text(""), files[0].unlink):
            change()
            made = cache._stamp(str(package))
            assert made not in seen
            seen.add(made)
        kept.write_bytes(b"damaged")
        assert cache._stamp(str(package)) not in {first, ""}


def test_objects_are_kept(folder: Path) -> None:
    cache.store({"a" * 64: b"one", "b" * 64: b"two" * 100000})
    assert cache.load(["a" * 64, "b" * 64, "c" * 64]) == {"a" * 64: b"one", "b" * 64: b"two" * 100000}
    assert folder.stat().st_mode & 0o777 == 0o700
    assert all((folder / name).stat().st_mode & 0o777 == 0o600 for name in names(folder))
    cache.store({"a" * 64: b"three"})
    assert cache.load(["a" * 64]) == {"a" * 64: b"three"}
    with knobs.setting(CACHE=0):
        assert cache.load(["a" * 64]) == {}
        cache.store({"d" * 64: b"four"})
    assert names(folder) == ["a" * 64, "b" * 64]


def test_damaged_files_count_as_missing(folder: Path) -> None:
    name, data = "a" * 64, os.urandom(300)
    cache.store({name: data})
    whole = (folder / name).read_bytes()
    rng = random.Random(1)
    damaged = [whole[:n] for n in range(0, len(whole), 7)] + [whole + b"x", b""]
    for _ in range(100):
        at = rng.randrange(len(whole))
        damaged.append(whole[:at] + bytes([whole[at] ^ (1 << rng.randrange(8))]) + whole[at + 1:])
    for each in damaged:
        (folder / name).write_bytes(each)
        assert cache.load([name]) == {}
    cache.store({"b" * 64: data})
    os.replace(folder / ("b" * 64), folder / name)
    assert cache.load([name]) == {}, "another file, whole"
    (folder / name).unlink()
    (folder / name).mkdir()
    assert cache.load([name]) == {}
    (folder / name).rmdir()
    os.symlink(folder / "elsewhere", folder / name)
    (folder / "elsewhere").write_bytes(whole)
    assert cache.load([name]) == {}
    os.unlink(folder / name)
    os.mkfifo(folder / name)
    assert cache.load([name]) == {}
    cache.store({name: data})
    assert cache.load([name]) == {name: data}


def test_damaged_code_is_compiled_anew(folder: Path) -> None:
    assert HOST is not None
    library.addresses([scaled(-77.0)], HOST)
    (name,) = names(folder)
    for replace in (lambda path: path.write_bytes(b"orthrus1"),
                    lambda path: cache.store({path.name: b"\x7fELF whole but no object"})):
        replace(folder / name)
        library._known.clear()
        (code,) = library.addresses([scaled(-77.0)], HOST)
        assert cache.load([name])[name][:4] == b"\x7fELF" and code
        library._known.clear()
        assert link([cache.load([name])[name]])


def test_a_folder_of_somebody_else_is_not_used(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.store({"a" * 64: b"one"})
    folder.chmod(0o777)
    assert cache.load(["a" * 64]) == {}
    cache.store({"b" * 64: b"two"})
    folder.chmod(0o700)
    assert cache.load(["a" * 64]) == {"a" * 64: b"one"}
    real = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: real + 1)
    assert cache.load(["a" * 64]) == {}
    cache.store({"b" * 64: b"two"})
    monkeypatch.undo()
    assert names(folder) == ["a" * 64]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EDQUOT, errno.EIO])
def test_a_folder_that_fails(folder: Path, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    assert HOST is not None

    def fail(*_: Any, **__: Any) -> Any:
        raise OSError(code, os.strerror(code))
    for what in ("write", "replace", "open", "makedirs"):
        with monkeypatch.context() as patched:
            patched.setattr(os, what, fail)
            library._known.clear()
            assert library.addresses([scaled(5.5)], HOST)[0]
        assert names(folder) == []
    (folder.parent / "file").write_bytes(b"")
    with knobs.setting(CACHE_DIR=str(folder.parent / "file")):
        cache.store({"a" * 64: b"one"})
        assert cache.load(["a" * 64]) == {}


def test_short_writes_are_continued(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: write(file, bytes(data[:11])))
    cache.store({"a" * 64: b"one" * 20})
    assert cache.load(["a" * 64]) == {"a" * 64: b"one" * 20}


def test_the_oldest_objects_go(folder: Path) -> None:
    cache.store({f"{i:064}": bytes(1000) for i in range(10)})
    left, fresh = (f"{0:064}.{digit * 16}" for digit in "ab")
    for each in (left, fresh):
        (folder / each).write_bytes(b"")
    for i in range(10):
        os.utime(folder / f"{i:064}", (1000 - i, 1000 - i))
    os.utime(folder / left, (0, 0))
    at = os.open(folder, os.O_RDONLY)
    cache.sweep(at, 3500)
    os.close(at)
    assert names(folder) == sorted([*(f"{i:064}" for i in range(3)), fresh])
    assert cache.load([f"{0:064}"]) and (folder / f"{0:064}").stat().st_mtime > 1000


def test_files_of_others_stay(folder: Path) -> None:
    """The folder may be one that holds other things, as somebody's home does."""
    cache.store({"a" * 64: b"one"})
    others = ["Makefile", ".bashrc", "notes.txt", "a" * 63, f"{'a' * 64}.txt", "work/thesis.tex",
              "work/LICENSE"]
    (folder / "work").mkdir(mode=0o700)
    for each in others:
        (folder / each).write_bytes(bytes(1000))
        os.utime(folder / each, (0, 0))
    at = os.open(folder, os.O_RDONLY)
    cache.sweep(at, 0)
    os.close(at)
    assert cache.load(["a" * 64]) == {}
    cache.store({"a" * 64: b"one"})
    assert sum(map(len, cache.contents().values())) == 1
    assert cache.clear()[0] == 1 and all((folder / each).exists() for each in others)


def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch) -> None:
    with knobs.setting(CACHE=1, CACHE_DIR=""):
        monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
        assert cache.place() == "/somewhere/orthrus"
        monkeypatch.setenv("XDG_CACHE_HOME", "relative")
        monkeypatch.setenv("HOME", "/home/me")
        assert cache.place() == "/home/me/.cache/orthrus"
        monkeypatch.setenv("HOME", "")
        assert cache.place() in (None, "/.cache/orthrus")


def test_a_folder_seen_from_one_that_is_gone_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with knobs.setting(CACHE=1, CACHE_DIR="kept"):
        assert cache.place() is None and cache.load(["x"]) == {} and cache.clear() == (0, 0)
        cache.store({"x": b"y"})


def test_names_tell_everything_apart() -> None:
    assert HOST is not None
    specs = [scaled(0.0), scaled(-0.0), scaled(1.0), scaled(1), scaled(True)]  # type: ignore[arg-type]
    found = [cache.name(repr(spec), machine, spec.origin) for spec in specs for machine in (HOST, AVX2)]
    assert len(set(found)) == 10 and None not in found
    assert cache.name("<function f at 0x7f00>", HOST, specs[0].origin) is None
    assert cache.name("x", HOST, "/nowhere/at/all.py") is None
    assert cache.name("x", HOST, __file__) != cache.name("x", HOST, cache.__file__)


# compiling

UNROLLED = "\ndefine void @unrolled(ptr %p) {\n" + "".join(
    f"  %{i} = getelementptr i8, ptr %p, i64 {i}\n  store i8 0, ptr %{i}\n"
    for i in range(1, 20)) + "  ret void\n}\n"
"""A function of many addresses, for the end of a module."""


def test_equal_parameters_may_be_different_kernels() -> None:
    assert HOST is not None
    x, signs = np.ones(3, np.float32), []
    for by in (0.0, -0.0):
        (code,) = library.addresses([scaled(by)], HOST)
        y, room = np.ones(3, np.float32), np.zeros(16, np.float32)
        args = np.array([x.ctypes.data, y.ctypes.data], np.int64)
        table = np.array([[code, args.ctypes.data, 3, 1]], np.int64)
        entry.make(entry.block(table, scratch=room.ctypes.data, keep=(args,)))()
        signs.append(np.signbit(y).tolist())
    assert signs == [[False] * 3, [True] * 3]


def test_code_stays_as_long_as_it_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    assert HOST is not None
    monkeypatch.setattr(library, "_recent", deque(maxlen=1))
    held, by_address = library.kernels([scaled(101.5)], HOST), scaled(102.5)
    library.addresses([by_address], HOST)
    library.kernels([scaled(103.5)], HOST)
    known = library._known[HOST]
    assert {repr(scaled(101.5)), repr(by_address)} <= set(known)
    del held
    assert repr(scaled(101.5)) not in known and repr(by_address) in known


def bad(error: Exception) -> Any:
    raise error


@pytest.mark.parametrize("crew", (1, 2, 3, 20))
def test_threads_make_the_same(crew: int) -> None:
    """Whatever their number, and whichever of LLVM's options a module asks for, in order. A text that does
    not hold, or cannot be written, is an error, after which all is as before."""
    assert HOST is not None
    texts = [scaled(float(i)).text(HOST) for i in range(7)]
    texts.insert(3, texts[3] + UNROLLED)
    x86 = HOST.arch == "x86_64"
    assert [build._plain(text, HOST) for text in texts] == [i == 3 and x86 for i in range(8)]
    expected, told = [assemble(text, HOST) for text in texts], list[int]()
    assert build.assemble_all(iter(texts), HOST, crew, lambda: told.append(1)) == expected
    assert len(told) == len(texts) and build.assemble_all([], HOST, crew) == []
    with pytest.raises(RuntimeError, match="expected"):
        build.assemble_all([*texts[:3], "no assembly", *texts], HOST, crew)
    with pytest.raises(ZeroDivisionError):
        build.assemble_all((text if i < 5 else text * (1 // 0) for i, text in enumerate(texts)), HOST, crew)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(threading.Thread, "start", lambda self: bad(RuntimeError("can't start new thread")))
        assert build.assemble_all(texts, HOST, crew) == expected
    with pytest.MonkeyPatch.context() as patch, pytest.raises(MemoryError):
        patch.setattr(build, "_emitted", lambda text, target: bad(MemoryError()))
        build.assemble_all(texts, HOST, crew)
    assert build.assemble_all(texts, HOST, crew) == expected


@pytest.mark.parametrize("first", (0, 1))
def test_every_text_is_compiled_with_its_own_option(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long others take."""
    assert HOST is not None
    plain = scaled(2.0).text(HOST)
    texts = [plain + UNROLLED if i % 2 == first else plain for i in range(12)]
    now, wrong = list[bool](), list[str]()

    def emitted(text: str, target: Any) -> bytes:
        begun = now[-1]
        time.sleep(0.002)
        wrong.extend([text] * (begun != now[-1] or begun != text.endswith(UNROLLED)))
        return b""
    monkeypatch.setattr(build, "_plain", lambda text, machine: text.endswith(UNROLLED))
    monkeypatch.setattr(build, "_choose", now.append)
    monkeypatch.setattr(build, "_emitted", emitted)
    build.assemble_all(texts, HOST, 3)
    assert now == [not first, bool(first)] and not wrong


@needs("POSIX")
@pytest.mark.parametrize("crew", [1, 3])
def test_llvm_is_not_asked_where_memory_ends(crew: int) -> None:
    """It would end the process, as it has no errors for that. Whatever the limit is, there is code or a
    MemoryError."""
    assert python(f"""
        import collections, resource
        from orthrus.codegen.object import build
        from orthrus.codegen.runtime import scheduler
        machine, ends = threads.host(), collections.Counter()
        texts = [scheduler.text(machine)] * 6
        build._llvm()
        for more in range(0, 320, 12):
            if not (child := os.fork()):
                with open("/proc/self/statm") as file:
                    size = int(file.read().split()[0]) * resource.getpagesize()
                resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
                resource.setrlimit(resource.RLIMIT_AS, (size + (more << 20),) * 2)
                try:
                    build.assemble_all(texts, machine, {crew})
                    os._exit(1)
                except MemoryError:
                    os._exit(2)
            ends[os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])] += 1
        print(*sorted(ends))
        """) == "1 2\n"


def test_llvm_compiles_without_the_lock_of_llvmlite() -> None:
    """Else threads would wait for each other; and a forked process finds it free."""
    from llvmlite.binding import ffi

    assert HOST is not None
    text, others = scaled(3.5).text(HOST), list[bool]()
    emit = ffi.lib.LLVMPY_TargetMachineEmitToMemory
    assert type(emit._cfn).__name__ == "_FuncPtr"

    def locked() -> None:
        with emit._lock:
            others.append(True)

    class Watched:
        """The function without its lock; meanwhile another thread can have it."""

        _lock = emit._lock

        def _cfn(self, *args: object) -> object:
            together(locked)
            return emit._cfn(*args)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(ffi.lib._fntab, "LLVMPY_TargetMachineEmitToMemory", Watched())
        assemble(text, HOST)
    assert others == [True] and emit._lock._lock in locks._made


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("shown", (Terminal(), io.StringIO()), ids=("terminal", "file"))
def test_who_waits_for_kernels_is_told(shown: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal, in a line that is gone at the end, else in the log, once; not before it takes long."""
    assert HOST is not None
    texts = [scaled(by).text(HOST) for by in (2.0, 3.0)]
    logged = list[str]()
    monkeypatch.setattr(library._log, "info", lambda form, *given: logged.append(form % given))
    monkeypatch.setattr(sys, "stderr", shown)
    monkeypatch.setattr(sys, "__stderr__", shown)
    monkeypatch.setattr(library, "_PATIENCE", 1e9)
    library.compile_all(texts, len(texts), HOST, 1)
    assert shown.getvalue() == "" and not logged
    monkeypatch.setattr(library, "_PATIENCE", 0.0)
    library.compile_all(texts, len(texts), HOST, 1)
    if shown.isatty():
        lines = shown.getvalue().split("\r")
        assert [line[-6:] for line in lines] == ["", "1 of 2", "2 of 2", " " * 6, ""]
    else:
        assert shown.getvalue() == ""
    assert [told[-6:] for told in logged] == ([] if shown.isatty() else ["1 of 2"])


def test_threads_ask_for_the_same_kernels(folder: Path) -> None:
    assert HOST is not None
    machine, specs, results = HOST, [scaled(200.0 + i) for i in range(10)], []
    together(*[lambda: results.append(library.addresses(specs, machine))] * 4)
    assert len(results) == 4 and all(found == results[0] for found in results)
    assert library.addresses(specs * 2, HOST) == results[0] * 2


def forget() -> None:
    """Let it be found out again whether code can be generated."""
    library._refusal.cache_clear()
    library._unable.cache_clear()


def test_what_is_missing_is_said_once(monkeypatch: pytest.MonkeyPatch,
                                      caplog: pytest.LogCaptureFixture) -> None:
    assert library.available() is None
    with knobs.setting(CODEGEN=0):
        assert not library.available() and library.available() is not None
    monkeypatch.setattr(logging.getLogger("orthrus"), "propagate", True)
    for module, name, reason in ((cache, "compiler", "llvmlite"), (library, "host", "machine")):
        with monkeypatch.context() as patched, caplog.at_level(logging.WARNING, "orthrus"):
            forget()
            caplog.clear()
            patched.setattr(module, name, lambda: None)
            refusals = [library.available() for _ in range(3)]
            assert all(each is not None and reason in each.reason for each in refusals)
            assert len(caplog.records) == 1 and "slow" in caplog.text
    forget()
    assert library.available() is None


@pytest.mark.parametrize("machine", [AVX2, SSE2, NEON, RVV256], ids=lambda m: f"{m.arch}-{m.vector}")
def test_the_runtime_is_written_for_every_machine(machine: Any) -> None:
    for unit in (units.Runtime(), units.Entry(16)):
        assert bytes(assemble(unit.text(machine), machine))[:4] == b"\x7fELF"  # type: ignore[arg-type]


# executable


@pytest.fixture(scope="module")
def thing() -> bytes:
    assert HOST is not None
    return bytes(assemble(scaled(2.5).text(HOST), HOST))  # type: ignore[arg-type]


def test_code_is_not_writable(thing: bytes) -> None:
    (found,) = link([thing])
    rows = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
    spans = [(*(int(end, 16) for end in row[0].split("-")), row[1]) for row in rows]
    assert [rights for lo, hi, rights in spans if lo <= found["kernel"] < hi] == ["r-xp"]


def test_objects_that_break_off(thing: bytes) -> None:
    for end in range(0, len(thing), 3):
        with pytest.raises(ValueError):
            link([thing[:end]])
    for wrong in (b"", b"\x7fELF", os.urandom(1000), thing.replace(b"\x7fELF\x02", b"\x7fELF\x01")):
        with pytest.raises(ValueError):
            link([thing, wrong])


def test_damaged_objects_are_refused_or_harmless(thing: bytes) -> None:
    rng = random.Random(7)
    refused = 0
    for _ in range(1500):
        data = bytearray(thing)
        for _ in range(rng.randrange(1, 4)):
            if rng.random() < 0.5:
                data[rng.randrange(len(data))] = rng.choice([0, 1, 2, 127, 128, 255, rng.randrange(256)])
            else:
                at = rng.randrange(len(data) - 8) & ~7
                value = rng.choice([-1, 0, 1 << 62, len(data), rng.randrange(1 << 40)])
                struct.pack_into("<q", data, at, value)
        try:
            link([bytes(data)])
        except ValueError:
            refused += 1
    assert refused > 100


def test_only_the_outside_is_refused() -> None:
    assert HOST is not None
    head = f'target triple = "{HOST.triple}"\n'
    for text in ("declare void @other()\ndefine void @kernel() { call void @other() ret void }",
                 "@g = global i64 7\ndefine i64 @kernel() { %v = load i64, ptr @g ret i64 %v }",
                 "@g = thread_local global i64 7\ndefine i64 @kernel() { %v = load i64, ptr @g ret i64 %v }"):
        with pytest.raises(ValueError):
            link([assemble(head + text, HOST)])  # type: ignore[list-item]
    text = ("define internal i64 @two() noinline { ret i64 2 }\n"
            "define i64 @kernel() { %v = call i64 @two() ret i64 %v }")
    found = link([assemble(head + text, HOST)] * 3)  # type: ignore[list-item]
    assert len({each["kernel"] for each in found}) == 3


def test_memory_that_cannot_be_executable(monkeypatch: pytest.MonkeyPatch) -> None:
    from orthrus.codegen.machines import executable
    from orthrus.errors import Fail

    class Refusing:
        mmap, munmap = executable.libc().mmap, executable.libc().munmap

        @staticmethod
        def mprotect(*_: Any) -> int:
            return -1
    monkeypatch.setattr(executable, "libc", Refusing)
    with pytest.raises(Fail, match="ORTHRUS_CODEGEN=0"):
        CodePages(1).seal()
    forget()
    refusal = library.available()
    assert refusal is not None and "executable" in refusal.reason
    monkeypatch.undo()
    forget()
    assert library.available() is None


# how many threads


def test_quotas_of_control_groups(tmp_path: Path) -> None:
    def quota(groups: str, **files: str) -> int | None:
        root = tmp_path / str(len(list(tmp_path.iterdir())))
        root.mkdir()
        for name, text in files.items():
            path = root / name.replace("__", "/").replace("_max", ".max").replace("cpu_cfs", "cpu.cfs")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        (root / "groups").write_text(groups)
        return threads.cpu_quota(str(root / "groups"), str(root))
    assert quota("0::/a/b\n", a__b__cpu_max="150000 100000\n") == 2
    assert quota("0::/a/b\n", a__b__cpu_max="max 100000\n", a__cpu_max="100000 100000\n") == 1
    assert quota("0::/a/b\n", cpu_max="20000 100000\n") == 1
    assert quota("0::/\n") is None
    v1 = "4:memory:/x\n3:cpu,cpuacct:/x\n0::/\n"
    files = {"cpu__x__cpu_cfs_quota_us": "300000\n", "cpu__x__cpu_cfs_period_us": "100000\n"}
    assert quota(v1, **files) == 3
    assert quota(v1, **{**files, "cpu__x__cpu_cfs_quota_us": "-1\n"}) is None
    assert quota("nonsense") is None
    assert threads.cpu_quota(str(tmp_path / "missing"), str(tmp_path)) is None


def test_cores_respect_the_affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    assert 1 <= threads.cores() <= (os.cpu_count() or 1)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    monkeypatch.setattr(threads, "_siblings", lambda cpu: f"{cpu // 2}")
    monkeypatch.setattr(threads, "cpu_quota", lambda: None)
    assert threads.cores() == 2
    monkeypatch.setattr(threads, "cpu_quota", lambda: 1)
    assert threads.cores() == 1
