"""Replicas of one session on the cores or devices of a machine.

In: a model, and where to run it. Out: results, in the order of the requests, whoever computed them. The
invariant: each request is answered once, with the session's results or with an error; what a replica was
doing when it failed is done again.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np

from ..api.options import SessionOptions
from ..errors import Fail, InvalidArgument
from ..ir import No
from ..processors import usable
from .blocks import Pool
from .crew import Crew, DeviceSession, Piece, Providers, Replica, in_order
from .messages import room
from .places import placed
from .process import Into
from .rows import Rows, batch_of, cut, rows_of

_AHEAD = 2
"""Requests in flight per replica."""


class Replicas:
    """Sessions of one model side by side. A context manager; safe on many threads.

    `model`: a path, or its bytes. `devices`: what each replica runs on: `"cpu"` is a process of its own that
    is pinned to its share of the cores, `"cuda:0"`, `"rocm:1"` or a list of providers a session of this
    process; a number is so many processes, by default one per core. `providers`: for the processes.
    `batch_inputs`: names of the inputs that `run` cuts along their first axis, by default those whose first
    dimension is open and has one name; `()` cuts nothing. `time_limit`: seconds that a part may take; a
    replica that takes longer is restarted and the part done again, five times at most. `imports`: modules
    that register operators or providers in each process.

    Raises what making a session raises."""

    def __init__(
        self,
        model: str | os.PathLike[str] | bytes,
        devices: int | Sequence[str | Providers] | None = None,
        sess_options: SessionOptions | None = None,
        providers: Providers | None = None,
        *,
        batch_inputs: Sequence[str] | None = None,
        time_limit: float | None = None,
        imports: Sequence[str] = (),
    ) -> None:
        count = len(usable()) if devices is None else devices if isinstance(devices, int) else len(devices)
        options = sess_options if sess_options is not None else SessionOptions()
        self._pool = Pool()
        source = os.fspath(model) if not isinstance(model, bytes) else model
        made = placed(
            devices if devices is not None else count,
            [source] * count,
            options,
            self._pool,
            providers,
            imports,
        )
        self._crew = Crew(made, self._pool, time_limit)
        self._room = threading.Semaphore(_AHEAD * count)
        self._closing = weakref.finalize(self, self._crew.close)
        try:
            self._crew.start()
        except BaseException:
            self.close()
            raise
        self._describe(batch_inputs)

    @property
    def replicas(self) -> list[Replica]:
        """Those that there are."""
        return self._crew.replicas

    @property
    def time_limit(self) -> float | None:
        """Seconds that a request, or a part of one, may take."""
        return self._crew.time_limit

    @time_limit.setter
    def time_limit(self, seconds: float | None) -> None:
        self._crew.time_limit = seconds

    def _describe(self, batch_inputs: Sequence[str] | None) -> None:
        """Take note of the model's inputs and outputs."""
        inputs, outputs = self.replicas[0].engine.ports
        self.input_names, self.output_names = [i.name for i in inputs], [o.name for o in outputs]
        if batch_inputs is not None:
            unknown = set(batch_inputs) - set(self.input_names)
            if unknown:
                raise InvalidArgument(
                    f"the model has no input {sorted(unknown)[0]}", expected=", ".join(self.input_names)
                )
        self.rows: Rows | No = (
            rows_of(inputs, outputs)
            if batch_inputs is None
            else (Rows(tuple(batch_inputs), None) if batch_inputs else No("batch_inputs is empty"))
        )
        self._learned: dict[Any, list[tuple[np.dtype, tuple[int, ...]]]] = {}

    def run(
        self,
        output_names: Sequence[str] | None,
        feeds: Mapping[str, Any],
        run_entries: Mapping[str, str] | None = None,
    ) -> list[Any]:
        """As a session's `run`, the batch cut over the replicas by their speed. Where batches are not cut
        (`explain()` says why) one replica runs all of it. Raises what a session's run raises, and Fail where
        every try ended a process."""
        names = list(output_names) if output_names else None
        whole, entries = dict(feeds), dict(run_entries or {})
        count = 0 if isinstance(self.rows, No) else batch_of(self.rows, whole)
        if isinstance(self.rows, No) or count < 2 or len(self.replicas) == 1:
            return self._result(self._crew.put(Piece(names, whole, max(count, 1), entries)))
        known = [r.rows_per_second for r in self.replicas]
        usual = max((k for k in known if k), default=1.0)
        parts = [
            (r, s)
            for r, s in zip(self.replicas, cut(count, [k or usual for k in known]), strict=True)
            if s.start < s.stop
        ]
        sliced = set(self.rows.inputs)
        key = (
            tuple(names or ()),
            *(
                (n, v.dtype.name, v.shape[1 if n in sliced else 0 :])
                for n, v in whole.items()
                if isinstance(v, np.ndarray)
            ),
        )
        joined = self._joined(key, count)
        pieces = []
        for replica, s in parts:
            fed = {n: v[s] if n in sliced else v for n, v in whole.items()}
            into = None if joined is None else joined.part(s)
            pieces.append(self._crew.put(Piece(names, fed, s.stop - s.start, entries, replica, into)))
        made = [self._result(piece) for piece in pieces]
        if joined is not None and not any(joined.missed(m) for m in made):
            return list(joined.arrays)
        return self._put_together(
            key,
            [
                joined.of(s) if joined is not None and m is None else m
                for (_, s), m in zip(parts, made, strict=True)
            ],
            parts,
        )

    def _joined(self, key: Any, count: int) -> _Joined | None:
        """Memory for the results of a batch such as an earlier one."""
        rows = self._learned.get(key)
        if rows is None or any(isinstance(r.engine, DeviceSession) for r in self.replicas):
            return None
        return _Joined(self._pool, [(dtype, (count, *shape)) for dtype, shape in rows])

    def _put_together(self, key: Any, made: Sequence[Any], parts: Sequence[Any]) -> list[Any]:
        """The parts' results as those of the batch."""
        names = list(key[0]) or self.output_names
        out = []
        for i, name in enumerate(names):
            pieces = [results[i] for results in made]
            for piece, (_, s) in zip(pieces, parts, strict=True):
                if not isinstance(piece, np.ndarray) or not piece.ndim or len(piece) != s.stop - s.start:
                    raise Fail(
                        f"the output {name} has no row for each item of the batch",
                        found=f"{np.shape(piece)} for {s.stop - s.start} rows",
                        cure="Replicas(..., batch_inputs=()) runs each batch whole",
                    )
            out.append(np.concatenate(pieces))
        if all(o.dtype.kind not in "OUS" for o in out):
            if len(self._learned) > 64:
                self._learned.clear()
            self._learned[key] = [(o.dtype, o.shape[1:]) for o in out]
        return out

    def submit(
        self,
        output_names: Sequence[str] | None,
        feeds: Mapping[str, Any],
        run_entries: Mapping[str, str] | None = None,
    ) -> Future[list[Any]]:
        """The results, to come, of a run that the next free replica does whole. Waits while two requests per
        replica are in flight."""
        piece = Piece(
            list(output_names) if output_names else None,
            dict(feeds),
            self._count(feeds),
            dict(run_entries or {}),
        )
        room = self._room
        room.acquire()
        piece.future.add_done_callback(lambda _: room.release())
        self._crew.put(piece)
        return piece.future  # type: ignore[return-value]

    def map(
        self, output_names: Sequence[str] | None, feeds: Iterable[Mapping[str, Any]]
    ) -> Iterator[list[Any]]:
        """The results for each of `feeds`, in order; no more than a few are taken ahead."""
        return in_order(lambda each: self.submit(output_names, each), feeds, _AHEAD * len(self.replicas))

    def _count(self, feeds: Mapping[str, Any]) -> int:
        return 1 if isinstance(self.rows, No) else max(batch_of(self.rows, feeds), 1)

    @staticmethod
    def _result(piece: Piece) -> Any:
        return piece.future.result()

    def explain(self) -> str:
        """What each replica runs on and has done, and how batches are cut."""
        cutting = (
            f"batches are not cut: {self.rows.reason}"
            if isinstance(self.rows, No)
            else f"batches are cut along the first axis of {', '.join(self.rows.inputs)}, by speed"
        )
        return "\n".join([cutting, *map(repr, self.replicas)])

    def terminate(self) -> None:
        """End the runs that are going on: they raise what a session's do when they are told to end."""
        self._crew.terminate()

    def close(self) -> None:
        """End all processes; so does letting go of this. What is not done fails."""
        self._closing()

    def __enter__(self) -> Replicas:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


class _Joined:
    """The results of a batch in one block, written part by part."""

    def __init__(self, pool: Pool, kinds: Sequence[tuple[np.dtype, tuple[int, ...]]]) -> None:
        stand_ins = [np.lib.stride_tricks.as_strided(np.empty(1, d), s, (0,) * len(s)) for d, s in kinds]
        size, self.places = room(stand_ins)
        self.block, owner = pool.take(size)
        self.arrays = [
            self.block.array(owner, d, s, at) for (d, s), at in zip(kinds, self.places, strict=True)
        ]

    def part(self, s: slice) -> Into:
        places = [
            at + s.start * (a.nbytes // max(len(a), 1))
            for a, at in zip(self.arrays, self.places, strict=True)
        ]
        return Into(self.block, self.of(s), places)

    def of(self, s: slice) -> list[np.ndarray]:
        return [a[s] for a in self.arrays]

    @staticmethod
    def missed(made: Any) -> bool:
        """Whether a part's results are elsewhere."""
        return made is not None
