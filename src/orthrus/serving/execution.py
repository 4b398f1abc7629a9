"""Requests are run: they take their turns, small ones at once, others on threads, some joined into batches.

In: a version, feeds and a deadline, on the event loop's thread. Out: arrays, or a Refusal. Everything here
belongs to that one thread but `_work`, which runs a batch on another. A job is settled once.

As many batches run at once as there are slots; a session has the processors by the slots, so that no more
threads compute than there are processors. A run that is known to take less than a hop between threads costs
goes on the event loop itself.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from . import refusals
from .lag import Lag
from .queues import Ticket
from .refusals import Kind, Refusal
from .repository import Version
from .schedule import Batch, Refused, Turns
from .service_time import ServiceTime
from .threads import Threads
from .tracing import Tracing

HOP, JOINED, ALONE = 300e-6, 50e-6, 2e-3
"""Seconds that a run on the event loop may take: beside other requests, beside those that it could be joined
to, and where there is no other."""
TRIED, BEYOND = 64, 8
"""One in so many runs is timed on the event loop though on another thread, where it waits for the interpreter
as well, it took longer than it may, by so many times at most."""
UNTIMED = float("inf")
AT_ONCE = 16
"""Runs on the event loop before it looks at its sockets again."""
MOST_SHAPES = 4096


class Job:
    """One request on its way. Times are of the executor's clock: `came` is `arrived` less what it lay in its
    socket, `end` when its answer is no longer wanted. `done` once there is a result or an error; `then` is
    called with it, where that was not at once. `alone`: whether no other request is known of."""

    __slots__ = ("alone", "arrived", "came", "done", "end", "ended", "error", "feeds", "names", "result",
                 "rows", "started", "then", "ticket", "version")

    def __init__(self, version: Version, feeds: dict[str, np.ndarray], names: list[str], arrived: float
                 ) -> None:
        self.version, self.feeds, self.names, self.arrived = version, feeds, names, arrived
        self.result: Sequence[np.ndarray] | None = None
        self.error: Exception | None = None
        self.then: Callable[[Job], None] | None = None
        self.ticket: Ticket | None = None
        self.came = self.started = self.ended = arrived
        self.end: float | None = None
        self.done = self.alone = False
        self.rows = 1


class Executor:
    """`slots`: batches that run at once."""

    def __init__(self, slots: int, tracing: Tracing | None = None) -> None:
        self.turns, self.tracing = Turns(slots), tracing or Tracing()
        self.clock = time.perf_counter
        self._pool = Threads(slots, "orthrus-serve")
        self._loop = asyncio.get_running_loop()
        self._lag, self._answering = Lag(self._loop, self.clock), ServiceTime()
        self._timer: asyncio.TimerHandle | None = None
        self._retired = dict[str, Version]()
        self._idle = asyncio.Event()
        self._idle.set()
        self._jobs = set[Job]()
        self._pumping = self._called = False
        self._threaded = 0
        self._back = 0.0
        """Seconds from a result to its client: an answer is written, and a client may come round to reading
        it as late as this loop comes round to its sockets."""
        self.closing = False

    def serve(self, version: Version) -> None:
        """Let requests of a version in."""
        settings = version.config
        self.turns.add(version.key, settings.weight, settings.max_batch_size, settings.max_delay,
                       settings.goal, settings.max_queue)

    def retire(self, version: Version) -> None:
        """Let a version go, once those of its requests that are in have been answered."""
        version.retired = True
        self._retired[version.key] = version
        self._release(version)

    @property
    def inside(self) -> int:
        """Requests that wait or run."""
        return len(self._jobs)

    async def run(self, version: Version, feeds: dict[str, np.ndarray], names: list[str], arrived: float,
                  timeout: float | None = None, alone: bool = False) -> Job:
        """`begin` a request and wait for it; answers it with its `result` and times. Raises Refusal."""
        waiter = self._loop.create_future()

        def then(_: Job) -> None:
            if not waiter.done():
                waiter.set_result(None)
        job = self.begin(version, feeds, names, arrived, then, timeout, alone)
        if not job.done:
            try:
                await waiter
            except asyncio.CancelledError:
                if not job.done and job.ticket is not None:
                    self.turns.cancel(job.ticket)
                    version.statistics.refused["cancelled"] += 1
                    job.then = None
                    self._settle(job, None, Refusal(Kind.CLOSING, "the client left"))
                raise
        if job.error is not None:
            raise job.error
        return job

    def begin(self, version: Version, feeds: dict[str, np.ndarray], names: list[str], arrived: float,
              then: Callable[[Job], None], timeout: float | None = None, alone: bool = False) -> Job:
        """Have a request run that came in at `arrived` or by the loop's lag earlier. `then` is called with
        it once it has its `result` or its `error`, a Refusal, but where it is `done` when this returns.
        Raises Refusal for one that is not let in, or whose run failed at once. `timeout`: seconds from when
        it came. `alone`: whether no other request is known of."""
        if self.closing:
            raise Refusal(Kind.CLOSING, "the server is shutting down", 1.0)
        now = self.clock()
        lag = self._lag.seconds(now)
        self._back = lag + self._answering.mean(1)
        self.turns.overhead = lag + self._back
        job = Job(version, feeds, names, now)
        job.came = came = arrived - lag
        settings = version.config
        if timeout is not None or settings.timeout is not None:
            job.end = came + min(limit for limit in (timeout, settings.timeout) if limit is not None)
        deadline = came + settings.goal if job.end is None and settings.goal is not None else job.end
        if not self._jobs and not self.turns.running:
            usual = version.ran.get(_shapes(job), UNTIMED)
            if usual < _short(version) and (deadline is None or now + usual < deadline):
                return self._at_once(job)
        key = self._key(job)
        try:
            job.ticket = self.turns.submit(version.key, job.rows, now, deadline, key, job)
        except Refused as error:
            version.statistics.refused[error.kind] += 1
            version.statistics.fail.add(now - came)
            raise Refusal(Kind.LATE if error.kind == "late" and error.retry_after <= 0 else Kind.FULL,
                          error.reason.replace(repr(version.key), repr(version.name)),
                          error.retry_after) from None
        job.then, job.alone = then, alone
        self._jobs.add(job)
        self._idle.clear()
        if not self._called:
            self._called = True
            self._loop.call_soon(self._turn)
        return job

    def _turn(self) -> None:
        """What came in one turn of the event loop is looked at together: it may be joined."""
        self._called = False
        self._pump()

    def _settle(self, job: Job, result: Sequence[np.ndarray] | None, error: Exception | None = None) -> None:
        """A job has a result or an error; which of both it is that its client gets."""
        if job.done:
            return
        version, statistics, now = job.version, job.version.statistics, self.clock()
        job.done = True
        self._jobs.discard(job)
        if not self._jobs:
            self._idle.set()
        if version.retired:
            self._release(version)
        if error is None and job.end is not None and now + self._back > job.end:
            error = self._too_late(version)
        if error is not None:
            statistics.fail.add(now - job.came)
            job.error = refusals.of(error)
        else:
            job.result = result
        then, job.then = job.then, None
        if then is not None:
            then(job)
        self._answering.measured(1, self.clock() - (job.ended if error is None else now))

    @staticmethod
    def _too_late(version: Version) -> Refusal:
        version.statistics.refused["expired"] += 1
        return Refusal(Kind.LATE, f"{version}: the request's time is over before its answer is there")

    def _at_once(self, job: Job) -> Job:
        """Run a short request here and now: nobody else is there whose turn it could be. Raises Refusal."""
        version = job.version
        try:
            job.result = version.session.run(job.names, job.feeds)
        except Exception as error:
            version.statistics.fail.add(self.clock() - job.came)
            raise refusals.of(error) from None
        job.ended, job.done = self.clock(), True
        rows = next((array.shape[0] for array in job.feeds.values() if array.ndim), 1)
        _timed(version, job, job.ended - job.started, True)
        self._ran(version, [job], rows, job.started, job.ended)
        if job.end is not None and job.ended + self._back > job.end:
            version.statistics.fail.add(job.ended - job.came)
            raise self._too_late(version)
        return job

    def _ran(self, version: Version, jobs: Sequence[Job], rows: int, started: float, ended: float) -> None:
        """Write down that a batch ran."""
        version.statistics.batch(rows, ended - started)
        if self.tracing.on:
            self.tracing.batch(version, [job.arrived for job in jobs], rows, started, ended,
                               threading.get_native_id())

    def _key(self, job: Job) -> Any:
        """What requests that run together have in common, and how many rows this one has."""
        feeds = job.feeds
        if job.version.config.max_batch_size == 1:
            return None
        rows = {array.shape[0] if array.ndim else 0 for array in feeds.values()}
        job.rows = max(rows, default=0)
        if len(rows) != 1 or not job.rows:
            job.rows = max(job.rows, 1)
            return job
        return (tuple(job.names), *((name, feeds[name].shape[1:]) for name in sorted(feeds)))

    def _pump(self) -> None:
        """Start what is due."""
        if self._pumping:
            return
        self._pumping = True
        try:
            for _ in range(AT_ONCE):
                now = self.clock()
                batch = self.turns.next(now)
                if batch is None:
                    break
                self._start(batch)
            else:
                self._loop.call_soon(self._pump)
            self._expire(now)
            self._sleep()
        finally:
            self._pumping = False

    def _expire(self, now: float) -> None:
        for ticket in self.turns.expired(now):
            ticket.payload.version.statistics.refused["expired"] += 1
            self._settle(ticket.payload, None, Refusal(
                Kind.LATE, f"{ticket.payload.version}: the request's time was over before its turn came"))

    def _sleep(self) -> None:
        """Wake when time alone will make something due."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now = self.clock()
        at = self.turns.wake_at(now)
        if at is not None:
            self._timer = self._loop.call_later(max(at - now, 0.0), self._pump)

    def _start(self, batch: Batch) -> None:
        job: Job = batch.tickets[0].payload
        if len(batch.tickets) == 1 and self._at_hand(job):
            self._finish(batch, *self._computed(batch), True)
        else:
            self._pool.submit(self._work, batch)

    def _at_hand(self, job: Job) -> bool:
        """Whether a request that runs alone does so on the event loop."""
        version = job.version
        usual, most = version.ran.get(_shapes(job), UNTIMED), _short(version)
        if (job.alone and len(self._jobs) == 1 and usual < ALONE and not version.config.max_delay
                and not version.foreign):
            return True
        if most <= usual < BEYOND * most:
            self._threaded += 1
            return self._threaded % TRIED == 0
        return usual < most

    def _work(self, batch: Batch) -> None:
        made = self._computed(batch)
        try:
            self._loop.call_soon_threadsafe(self._end, batch, *made)
        except RuntimeError:
            if not self._loop.is_closed():
                raise

    def _end(self, batch: Batch, results: Any, started: float, ended: float) -> None:
        self._finish(batch, results, started, ended, False)
        self._pump()

    def _computed(self, batch: Batch) -> tuple[list[Any], float, float]:
        """A result, or the exception in its place, for each ticket of a batch; when it began and ended."""
        jobs = [ticket.payload for ticket in batch.tickets]
        session = jobs[0].version.session
        started = self.clock()
        results = list[Any]()
        try:
            if len(jobs) > 1:
                results = _together(session, jobs)
            else:
                results = [session.run(jobs[0].names, jobs[0].feeds)]
        except Exception as error:
            results = [error] if len(jobs) == 1 else [_alone(session, job) for job in jobs]
        return results, started, self.clock()

    def _finish(self, batch: Batch, results: list[Any], started: float, ended: float, here: bool) -> None:
        ok = not isinstance(results[0], Exception)
        jobs: list[Job] = [ticket.payload for ticket in batch.tickets]
        version = jobs[0].version
        self.turns.finished(batch, self.clock(), ok)
        if len(jobs) == 1 and ok:
            _timed(version, jobs[0], ended - started, here)
        self._ran(version, jobs, batch.rows, started, ended)
        for ticket, job, result in zip(batch.tickets, jobs, results, strict=True):
            job.started, job.ended = started, ended
            ticket.payload = job.ticket = None
            if isinstance(result, Exception):
                self._settle(job, None, result)
            else:
                self._settle(job, result)

    def _release(self, version: Version) -> None:
        """Close a retired version that nothing uses any more."""
        counters = self.turns.counters().get(version.key)
        if counters is None or counters.waiting or counters.running or version.key not in self._retired:
            return
        del self._retired[version.key]
        self.turns.remove(version.key)
        version.session.close()

    async def drain(self, seconds: float) -> bool:
        """Let no more in, and wait so long for those inside; whether all were answered. Those that were not
        are refused."""
        self.closing = True
        try:
            async with asyncio.timeout(seconds):
                await self._idle.wait()
        except TimeoutError:
            for job in list(self._jobs):
                self._settle(job, None, Refusal(Kind.CLOSING, "the server ended before the request did", 1.0))
            return False
        return True

    def close(self) -> None:
        """Let go of the threads."""
        if self._timer is not None:
            self._timer.cancel()
        self._pool.close()

    def waiting(self, version: Version) -> tuple[int, int]:
        """Requests of a version that wait, and that run."""
        counters = self.turns.counters().get(version.key)
        return (counters.waiting, counters.running) if counters is not None else (0, 0)


def _shapes(job: Job) -> Any:
    return tuple([array.shape for array in job.feeds.values()])


def _short(version: Version) -> float:
    """Seconds of a run that goes on the event loop beside others; none of an operator that is not this
    package's, which may wait."""
    if version.foreign:
        return 0.0
    return HOP if version.config.max_batch_size == 1 else JOINED


def _timed(version: Version, job: Job, seconds: float, here: bool) -> None:
    """A request ran by itself; `here`: on the event loop. The first run of a shape, which makes things ready,
    tells nothing of the others; one that takes longer for once counts twice the usual at most, as the machine
    did something else; and what was short here is short."""
    shapes, ran = _shapes(job), version.ran
    usual = ran.get(shapes)
    if usual is None:
        if len(ran) < MOST_SHAPES:
            ran[shapes] = UNTIMED
    elif usual == UNTIMED or here and seconds < _short(version) <= usual:
        ran[shapes] = seconds
    else:
        ran[shapes] = usual + (min(seconds, 2 * usual) - usual) / 8


def _together(session: Any, jobs: Sequence[Job]) -> list[Any]:
    """Several requests in one run: rows one after the other, and taken apart again."""
    feeds = {name: np.concatenate([job.feeds[name] for job in jobs]) for name in jobs[0].feeds}
    total = sum(job.rows for job in jobs)
    outputs = session.run(jobs[0].names, feeds)
    wrong = next((name for name, each in zip(jobs[0].names, outputs, strict=True)
                  if each.ndim == 0 or each.shape[0] != total), None)
    if wrong is not None:
        raise Refusal(Kind.FAILED, f"{jobs[0].version}: output {wrong!r} of {total} joined rows has other "
                                   f"rows; set max_batch_size to 1")
    results, first = list[Any](), 0
    for job in jobs:
        results.append([each[first:first + job.rows] for each in outputs])
        first += job.rows
    return results


def _alone(session: Any, job: Job) -> Any:
    """One request of a batch that failed, by itself: another's feed may be at fault."""
    try:
        return session.run(job.names, job.feeds)
    except Exception as error:
        return error


