"""Sessions at work: requests wait in one list, and a thread for each session takes the next that it may.

In: requests. Out: their futures, done. The invariant: each request is answered once, with the session's
results or with an error; what a session was doing when its process failed is done again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from ..api.options import RunOptions, SessionOptions
from ..api.session import InferenceSession
from ..errors import Fail
from .blocks import Pool
from .process import Into, Lost, Process
from .rows import ports

log = logging.getLogger("orthrus")
Providers = Sequence[str | tuple[str, dict[str, Any]]]
_CLOSED = "These replicas have been closed."
_LEARN, _TRIES, _STARTS = 0.3, 5, 20
"""The weight of the newest speed; how often a request is tried, and how often a process is started."""


class Piece:
    """A request, or a part of one. `place`: its number among the parts; `whose`: the replica it is for."""

    def __init__(
        self,
        names: Sequence[str] | None,
        feeds: dict[str, Any],
        rows: int,
        entries: dict[str, str],
        whose: Replica | None = None,
        into: Into | None = None,
    ) -> None:
        self.names, self.feeds, self.rows, self.entries = names, feeds, rows, entries
        self.whose, self.into, self.tries = whose, into, 0
        self.future: Future[list[Any] | None] = Future()


class DeviceSession:
    """A session of this process on a device, as `Process` has it."""

    def __init__(self, model: Any, options: SessionOptions, providers: Providers) -> None:
        self.session = InferenceSession(model, options, providers=list(providers))
        self.ports = ports(self.session)
        self.running: RunOptions | None = None

    def run(
        self,
        names: Sequence[str] | None,
        feeds: dict[str, Any],
        entries: dict[str, str],
        into: Into | None,
        limit: float | None,
    ) -> list[Any] | None:
        options = RunOptions()
        for key, value in entries.items():
            options.add_run_config_entry(key, value)
        options.timeout, self.running = limit, options
        try:
            return list(self.session.run(names, feeds, options))
        finally:
            self.running = None

    def start(self) -> None:
        """It is there."""

    def alive(self) -> bool:
        return True

    def terminate(self) -> None:
        if (options := self.running) is not None:
            options.terminate = True

    def close(self) -> None:
        self.session.close()


class Replica:
    """One of the sessions. `cores`: those its process is pinned to; `rows_per_second`: its speed so far,
    None before its first run; `requests`: parts it has answered; `restarts`: how often its process was
    replaced."""

    def __init__(
        self, number: int, engine: Process | DeviceSession, cores: Sequence[int], device: str
    ) -> None:
        self.number, self.engine, self.cores, self.device = number, engine, tuple(cores), device
        self.rows_per_second: float | None = None
        self.requests = self.restarts = 0

    @property
    def pid(self) -> int | None:
        """The process's number; None for a session of this process."""
        child = self.engine.child if isinstance(self.engine, Process) else None
        return child.pid if child is not None else None

    @property
    def ready(self) -> bool:
        """Whether it takes requests; not while its process starts."""
        return not isinstance(self.engine, Process) or self.engine.ready

    def learn(self, rows: int, seconds: float) -> None:
        """Take note of a run."""
        speed = rows / max(seconds, 1e-9)
        before = self.rows_per_second
        self.rows_per_second = speed if before is None else before + _LEARN * (speed - before)

    def __repr__(self) -> str:
        speed = "" if self.rows_per_second is None else f", {self.rows_per_second:.4g} rows/s"
        done = f"{self.requests} requests, {self.restarts} restarts"
        return f"<Replica {self.number} on {self.device}{speed}, {done}>"


class Crew:
    """`replicas` and what waits for them; `time_limit`: seconds that a request may take. Nobody but the
    threads refers to what they serve for, so that what is let go of can be closed."""

    def __init__(self, replicas: list[Replica], pool: Pool, time_limit: float | None) -> None:
        self.replicas, self.pool, self.time_limit = replicas, pool, time_limit
        self.changed = threading.Condition()
        self.waiting: deque[Piece] = deque()
        self.threads: list[threading.Thread] = []
        self.open, self.why = True, ""

    def start(self) -> None:
        """Start the processes: the first by itself, so that the others find in the cache what it compiled."""
        processes = [r.engine for r in self.replicas if isinstance(r.engine, Process)]
        for first in processes[:1]:
            _started(first)
        errors: list[Exception] = []

        def start(engine: Process) -> None:
            try:
                _started(engine)
            except Exception as error:
                errors.append(error)

        threads = [threading.Thread(target=start, args=(engine,)) for engine in processes[1:]]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        self.threads = [
            threading.Thread(target=self._serve, args=(r,), name=f"replica {r.number}", daemon=True)
            for r in self.replicas
        ]
        for thread in self.threads:
            thread.start()

    def put(self, piece: Piece) -> Piece:
        with self.changed:
            if not self.open:
                raise self.over()
            self._assign(piece)
            self.waiting.append(piece)
            self.changed.notify_all()
        return piece

    def _assign(self, piece: Piece) -> None:
        """Let a piece that is for a replica which has been given up be for anybody."""
        if piece.whose not in self.replicas:
            piece.whose = None

    def _next(self, replica: Replica) -> Piece | None:
        """The first piece that is for this replica or for any; None when all is over."""
        with self.changed:
            while True:
                for piece in self.waiting:
                    if piece.whose in (None, replica):
                        self.waiting.remove(piece)
                        self.changed.notify_all()
                        return piece
                if not self.open:
                    return None
                self.changed.wait()

    def _serve(self, replica: Replica) -> None:
        """Do the pieces that come, until there are no more."""
        while (piece := self._next(replica)) is not None:
            if not piece.future.running() and not piece.future.set_running_or_notify_cancel():
                continue
            if not replica.engine.alive() and not self._anew(replica):
                self._put_back(piece)
                return
            start = time.perf_counter()
            try:
                made = replica.engine.run(
                    piece.names, piece.feeds, piece.entries, piece.into, self.time_limit
                )
            except Lost as lost:
                if not self._again(replica, piece, lost):
                    return
                continue
            except Exception as error:
                error.add_note(f"on replica {replica.number} ({replica.device})")
                piece.future.set_exception(error)
                continue
            replica.requests += 1
            replica.learn(piece.rows, time.perf_counter() - start)
            piece.future.set_result(made)

    def _again(self, replica: Replica, piece: Piece, lost: Lost) -> bool:
        """Start the replica anew, and let the piece be done by whoever is free. Whether the replica is there
        again."""
        piece.tries, piece.whose = piece.tries + 1, None
        if piece.tries < _TRIES:
            self._put_back(piece)
        else:
            cure = (
                "raise time_limit" if lost.hung else "run it in a session of this process to see what it does"
            )
            _fail(
                piece, Fail(f"{piece.tries} replicas were lost with this request", found=str(lost), cure=cure)
            )
        return self._anew(replica)

    def _put_back(self, piece: Piece) -> None:
        """Let somebody else do it, before all that waits."""
        with self.changed:
            if self.open:
                self._assign(piece)
                self.waiting.appendleft(piece)
                self.changed.notify_all()
                return
        _fail(piece, self.over())

    def _anew(self, replica: Replica) -> bool:
        """Start the replica's process again; whether it is there. One that ends while it starts is started
        again, some times; one whose session cannot be made is given up."""
        why: Exception = Fail("a replica does not start")
        for _ in range(_STARTS):
            if not self.open:
                return False
            try:
                replica.engine.start()
            except Lost as lost:
                why = lost
                continue
            except Exception as error:
                why = error
                break
            replica.restarts += 1
            return True
        self._gone(replica, why)
        return False

    def _gone(self, replica: Replica, why: Exception) -> None:
        """A replica does not start again: what is only for it is for anybody; with the last, all ends."""
        log.warning("%r is given up: %s", replica, why)
        with self.changed:
            self.replicas = [r for r in self.replicas if r is not replica] or self.replicas
            for piece in self.waiting:
                self._assign(piece)
            if self.replicas == [replica]:
                self.open, self.why = False, str(why)
                for piece in self.waiting:
                    _fail(piece, self.over())
                self.waiting.clear()
            self.changed.notify_all()

    def terminate(self) -> None:
        """End the runs that are going on: they raise what a session's do when they are told to end."""
        for replica in self.replicas:
            replica.engine.terminate()

    def close(self) -> None:
        """End all processes. What is not done fails."""
        with self.changed:
            self.open = False
            for piece in self.waiting:
                _fail(piece, self.over())
            self.waiting.clear()
            self.changed.notify_all()
        for replica in self.replicas:
            replica.engine.close()
        for thread in self.threads:
            if thread is not threading.current_thread():
                thread.join(5.0)
        self.pool.close()

    def over(self) -> Exception:
        """What a request is told that comes too late."""
        if self.why:
            return Fail("no replica is left, and none can be started", found=self.why)
        return Fail(_CLOSED, cure="make new ones")


def in_order(
    submit: Callable[[Mapping[str, Any]], Future[list[Any]]], feeds: Iterable[Mapping[str, Any]], most: int
) -> Iterator[list[Any]]:
    """The results for each of `feeds`, in order; at most `most` are taken ahead."""
    ahead: deque[Future[list[Any]]] = deque()
    for each in feeds:
        ahead.append(submit(each))
        if len(ahead) > most:
            yield ahead.popleft().result()
    while ahead:
        yield ahead.popleft().result()


def _fail(piece: Piece, error: Exception) -> None:
    """End a request that nobody has answered or cancelled."""
    if not piece.future.done():
        piece.future.set_exception(error)


def _started(engine: Process) -> None:
    try:
        engine.start()
    except Lost as lost:
        raise Fail(
            "a replica does not start",
            found=str(lost),
            cure="make a session of the model in this process to see what it needs",
        ) from None
