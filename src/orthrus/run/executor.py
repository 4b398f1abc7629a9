"""The runner: a program's code and a list of slots in, the slots filled; and the error of a failing step.

`execute` walks the code in order, `ParallelExecutor` on several threads, `watched` with somebody looking on.
All of them let go of what is dead, count the bytes they hold, and stop between two steps when told to.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import errors
from ..kernels import Lane, failed, plain, swap_lanes, thread_lanes
from ..limits import OWNERS, Deadline, Limits, held, over, using
from ..locks import lock
from ..plan import TRASH, Call, Code
from ..processors import usable
from .beside import Job, threads

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

_ndarray, _text = np.ndarray, np.dtype(object)
LONG = 3600.0
"""Seconds from which on a timeout is looked at between parts only."""


class Context(Deadline):
    """One run: when it has to stop, how much it may hold, and who watches it.

    It stops when `deadline` says so, else after `seconds`."""

    __slots__ = ("room", "watcher")

    def __init__(self, room: int, seconds: float, deadline: Deadline | None = None,
                 watcher: Watcher | None = None) -> None:
        if deadline is None:
            self.seconds, self.end, self.cancelled = seconds, monotonic() + seconds, None
        else:
            self.seconds, self.end, self.cancelled = deadline.seconds, deadline.end, deadline.cancelled
        self.room, self.watcher = room, watcher

    @property
    def urgent(self) -> bool:
        """Whether the run may be told to stop, or has to soon."""
        return self.cancelled is not None or self.seconds < LONG

    def execute(self, code: Code, slots: list[Any]) -> None:
        """Run a body of control flow inside this run."""
        room = self.room
        if self.watcher is None:
            execute(code, slots, self)
        else:
            watched(code, slots, self, self.watcher)
        self.room = room


def execute(code: Code, slots: list[Any], context: Context) -> None:
    """Run `code` in order. Raises the error of the step that failed, with the step's node in it."""
    end, cancelled, room, step = context.end, context.cancelled, context.room, None
    urgent = context.urgent
    try:
        for run, take, write, frees, step in code:
            if monotonic() > end or (cancelled is not None and cancelled.terminate):
                context.check()
            if urgent and run is step.run and step.kernel.stepwise is not None:
                run = partial(_checking, step, context)
            context.room = room
            if write > 0:
                y = run(*take(slots))
                if type(y) is not _ndarray:
                    y = _single(y)
                slots[write] = y
                if type(y) is not _ndarray:
                    room -= held(y)
                elif y.base is None or id(y) in OWNERS:
                    room -= y.nbytes if y.dtype is not _text else held(y)
            else:
                given = (context, *take(slots)) if step.bodies else take(slots)
                room -= _spread(run(*given), step.writes, slots)
            if room < 0:
                raise over()
            for i in frees:
                if type(dead := slots[i]) is not _ndarray:
                    room += held(dead)
                elif dead.base is None or id(dead) in OWNERS:
                    room += dead.nbytes if dead.dtype is not _text else held(dead)
                slots[i] = dead = None
    except Exception as error:
        if step is None:
            raise
        raise failure(step, error, [slots[i] for i in step.reads]) from error
    finally:
        context.room = room


class Watcher:
    """What sees the steps of a run, those in bodies of control flow too; entered around the run. `inside`,
    where it is not None, runs a kernel that can go step by step: `inside(call, context, seen, *given)`."""

    inside: Callable[..., Any] | None = None

    def __enter__(self) -> None:
        """The run begins."""

    def __exit__(self, *_: Any) -> None:
        """The run has ended, perhaps by an error."""

    def before(self, call: Call, slots: list[Any]) -> Any:
        """What `call` is about to be given lies in `slots`. Answers what the other two get as `seen`."""

    def after(self, call: Call, slots: list[Any], seen: Any) -> None:
        """`call` is done; nothing was freed yet."""


def watched(code: Code, slots: list[Any], context: Context, watcher: Watcher) -> None:
    """As `execute`, with `watcher` looking on."""
    for run, take, write, frees, call in code:
        seen = watcher.before(call, slots)
        if watcher.inside is not None and call.kernel.stepwise is not None:
            run = partial(watcher.inside, call, context, seen)
        execute([(run, take, write, (), call)], slots, context)
        watcher.after(call, slots, seen)
        for i in frees:
            context.room += held(slots[i])
            slots[i] = None


def _checking(step: Call, context: Context, *given: Any) -> Any:
    """A fused step with a look at the deadline behind each of its own."""
    assert step.kernel.stepwise is not None
    return step.kernel.stepwise(given, None, None, context.check)


def _single(value: Any) -> Any:
    """The one output of a step, from what its kernel gave."""
    if type(value) is tuple:
        value = value[0]
    return plain(value)


def _spread(values: Any, writes: tuple[int, ...], slots: list[Any]) -> int:
    """Put a step's outputs into their slots; returns the bytes they hold."""
    if type(values) is not tuple:
        values = tuple(values) if isinstance(values, list) and len(writes) > 1 else (values,)
    if len(values) < len(writes):
        raise ValueError(f"the kernel gave {len(values)} outputs, the node has {len(writes)}")
    room = 0
    for i, value in zip(writes, values, strict=False):
        slots[i] = value = value if type(value) is _ndarray else plain(value)
        if i > TRASH:
            room += held(value)
    return room


def failure(step: Call, error: Exception, inputs: list[Any]) -> Exception:
    """What a step's exception becomes."""
    return failed(step.node, error, inputs, str(step.part) if step.part.fused else step.node.name)


class ParallelExecutor:
    """Runs steps whose inputs are ready on `threads` threads, for 0 and less on as many as the process has
    cores; on the run's own where there are none to be had. Threads start with the first run, not before."""

    def __init__(self, threads: int, limits: Limits) -> None:
        self.threads, self.limits = threads if threads > 0 else max(2, len(usable())), limits
        self._pool: ThreadPoolExecutor | None = None
        self._pid, self._closed = os.getpid(), False
        self._lock = lock()

    def pool(self) -> ThreadPoolExecutor | None:
        """The pool, None where there can be none; a forked child gets one of its own. Raises Fail after
        `close`."""
        if self._pid != os.getpid():
            self._pool, self._pid = None, os.getpid()
        with self._lock:
            if self._closed:
                raise _closed()
            if self._pool is None:
                self._pool = threads(self.threads, "orthrus-inter-op")
            return self._pool

    def close(self) -> None:
        """Let the threads end once they have done their step."""
        self._closed = True
        if self._pool is not None and self._pid == os.getpid():
            self._pool.shutdown(wait=False)
        self._pool = None

    def execute(self, code: Code, slots: list[Any], context: Context) -> None:
        """Run `code`, every step as soon as the steps it reads from are done."""
        error = self._first_error(code, slots, context)
        if error is not None:
            try:
                raise error
            finally:
                # its traceback holds this frame
                del error

    def _first_error(self, code: Code, slots: list[Any], context: Context) -> BaseException | None:
        """Run `code`; answers what the first step to fail raised, once no step is running."""
        from concurrent.futures import FIRST_COMPLETED, Future, wait

        waits, readers = _dependencies(code)
        ready = [i for i, count in enumerate(waits) if not count]
        readers_left = [0] * len(slots)
        for entry in code:
            for s in set(entry[4].reads):
                readers_left[s] += 1
        freeable = {s for entry in code for s in entry[3]}
        pool = self.pool()
        running: dict[Future[None], int] = {}
        error: BaseException | None = None
        room, lanes = context.room, thread_lanes()
        while ready or running:
            while ready and error is None:
                i = ready.pop()
                future: Future[None] = Future()
                account = Context(room, 0.0, context)
                job = Job(partial(self._step, code[i], slots, account, lanes), future)
                if not job.given_to(pool):
                    if self._closed:
                        error = _closed()
                        break
                    job()
                running[future] = i
            if not running:
                break
            try:
                done, _ = wait(running, return_when=FIRST_COMPLETED)
            except BaseException:
                # what steps are still at is the caller's again after this
                wait([future for future in running if not future.cancel()])
                raise
            for future in done:
                i = running.pop(future)
                if (failed := future.exception()) is not None:
                    error = error or failed
                    continue
                step = code[i][4]
                room -= sum(held(slots[s]) for s in step.writes if s > TRASH)
                if room < 0:
                    error = error or failure(step, over(), [])
                for s in set(step.reads):
                    readers_left[s] -= 1
                    if not readers_left[s] and s in freeable:
                        room += held(slots[s])
                        slots[s] = None
                for reader in readers[i]:
                    waits[reader] -= 1
                    if not waits[reader]:
                        ready.append(reader)
            if error is not None:
                ready.clear()
        return error

    def _step(self, entry: Any, slots: list[Any], context: Context, lanes: dict[int, Lane]) -> None:
        before = swap_lanes(lanes)
        try:
            with using(self.limits, context), np.errstate(all="ignore"):
                execute([(*entry[:3], (), entry[4])], slots, context)
        finally:
            swap_lanes(before)


def _closed() -> Exception:
    return errors.Fail("This session has been closed.", cure="make a new one")


def _dependencies(code: Code) -> tuple[list[int], list[list[int]]]:
    maker = {s: i for i, entry in enumerate(code) for s in entry[4].writes if s > TRASH}
    waits, readers = [0] * len(code), [list[int]() for _ in code]
    for i, entry in enumerate(code):
        for source in {maker[s] for s in entry[4].reads if s in maker}:
            waits[i] += 1
            readers[source].append(i)
    return waits, readers
