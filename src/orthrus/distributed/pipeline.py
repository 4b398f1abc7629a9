"""A model in stages, each on a device of its own, with several parts of a batch on their way.

In: a model, example feeds, devices. Out: results, in the order of the requests. The invariant: each request
goes through all stages in order, and is answered once.
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
from .blocks import Pool
from .crew import Crew, Piece, Providers, in_order
from .places import placed
from .rows import Port, batch_of, cut, rows_of
from .stages import entries_of, stages_of

_AHEAD = 2
"""Requests in flight per stage."""


class Pipeline:
    """A model in as many stages as `devices` are named (as for `Replicas`), cut so that the dearest stage
    costs least for the example `feeds`. A context manager; safe on many threads.

    `micro_batches`: parts into which `run` cuts a batch. `time_limit`: seconds that a stage may take for one
    part. Raises what making sessions raises, and InvalidArgument for more stages than there are nodes."""

    def __init__(
        self,
        model: str | os.PathLike[str] | bytes,
        feeds: Mapping[str, Any],
        devices: int | Sequence[str | Providers] = 2,
        sess_options: SessionOptions | None = None,
        *,
        micro_batches: int = 4,
        time_limit: float | None = None,
    ) -> None:
        source = model if isinstance(model, bytes) else os.fspath(model)
        self.micro_batches, self._pool = micro_batches, Pool()
        count = devices if isinstance(devices, int) else len(devices)
        self.stages = stages_of(source, feeds, count)
        self._crews: list[Crew] = []
        self._room = threading.Semaphore(_AHEAD * count)
        self._closing = weakref.finalize(self, _close, self._crews, self._pool)
        options = sess_options.__copy__() if sess_options is not None else SessionOptions()
        for key, value in entries_of(source).items():
            options.add_session_config_entry(key, value)
        try:
            for replica in placed(devices, [s.model for s in self.stages], options, self._pool):
                self._crews.append(Crew([replica], self._pool, time_limit))
                self._crews[-1].start()
        except BaseException:
            self.close()
            raise
        self._describe(source)

    def _describe(self, source: str | bytes) -> None:
        from ..load import load

        graph = load(source)
        self.input_names = [v.name for v in graph.inputs if v.default is None]
        self.output_names = [v.name for v in graph.outputs]

        def ports(values: Iterable[Any]) -> list[Port]:
            return [Port(v.name, str(v.type or ""), getattr(v.type, "shape", None)) for v in values]

        self.rows = rows_of(ports(v for v in graph.inputs if v.default is None), ports(graph.outputs))

    def run(self, output_names: Sequence[str] | None, feeds: Mapping[str, Any]) -> list[Any]:
        """As a session's `run`; the batch goes through the stages in `micro_batches` parts, where it can be
        cut (`explain()`). Raises what a session's run raises."""
        count = 0 if isinstance(self.rows, No) else batch_of(self.rows, feeds)
        if isinstance(self.rows, No) or count < 2 or self.micro_batches < 2:
            return self.submit(output_names, feeds).result()
        sliced = set(self.rows.inputs)
        parts = [s for s in cut(count, [1.0] * min(self.micro_batches, count)) if s.start < s.stop]
        futures = [
            self.submit(output_names, {n: v[s] if n in sliced else v for n, v in feeds.items()})
            for s in parts
        ]
        made = [future.result() for future in futures]
        for results in zip(*made, strict=True):
            if any(np.shape(r)[:1] != (s.stop - s.start,) for r, s in zip(results, parts, strict=True)):
                raise Fail(
                    "an output has no row for each item of the batch", cure="Pipeline(..., micro_batches=1)"
                )
        return [np.concatenate(results) for results in zip(*made, strict=True)]

    def submit(self, output_names: Sequence[str] | None, feeds: Mapping[str, Any]) -> Future[list[Any]]:
        """The results, to come. Waits while two requests per stage are in flight."""
        wanted = list(output_names) if output_names else self.output_names
        answer: Future[list[Any]] = Future()
        answer.set_running_or_notify_cancel()
        room = self._room
        room.acquire()
        answer.add_done_callback(lambda _: room.release())
        _advance(self._crews, self.stages, 0, dict(feeds), wanted, answer)
        return answer

    def map(
        self, output_names: Sequence[str] | None, feeds: Iterable[Mapping[str, Any]]
    ) -> Iterator[list[Any]]:
        """The results for each of `feeds`, in order; a few are taken ahead."""
        return in_order(lambda each: self.submit(output_names, each), feeds, _AHEAD * len(self._crews))

    def explain(self) -> str:
        """The stages: what each has, costs and is sent, and where it runs."""
        cutting = (
            f"batches are not cut: {self.rows.reason}"
            if isinstance(self.rows, No)
            else (f"{self.micro_batches} parts of a batch, cut along {', '.join(self.rows.inputs)}")
        )
        return "\n".join(
            [
                cutting,
                *(
                    f"{stage}; {crew.replicas[0]!r}"
                    for stage, crew in zip(self.stages, self._crews, strict=True)
                ),
            ]
        )

    def close(self) -> None:
        """End all stages; so does letting go of this. What is not done fails."""
        self._closing()

    def __enter__(self) -> Pipeline:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()


def _advance(
    crews: Sequence[Crew],
    stages: Sequence[Any],
    at: int,
    values: dict[str, Any],
    wanted: Sequence[str],
    answer: Future[list[Any]],
) -> None:
    """Send what is known of a request to stage `at`, and what that makes to the next; or answer it."""
    try:
        if at == len(stages):
            missing = [n for n in wanted if n not in values]
            if missing:
                raise InvalidArgument(f"Invalid output name:{missing[0]}")
            answer.set_result([values[n] for n in wanted])
            return
        stage = stages[at]
        first = (
            {n: values[n] for n in stage.reads if n in values}
            if at
            else {
                n: v for n, v in values.items() if n in stage.reads or not any(n in s.reads for s in stages)
            }
        )
        piece = crews[at].put(Piece(list(stage.makes), first, 1, {}))
    except Exception as error:
        answer.set_exception(error)
        return

    def then(future: Future[Any]) -> None:
        try:
            values.update(zip(stage.makes, future.result(), strict=True))
        except BaseException as error:
            answer.set_exception(error)
            return
        _advance(crews, stages, at + 1, values, wanted, answer)

    piece.future.add_done_callback(then)


def _close(crews: Sequence[Crew], pool: Pool) -> None:
    for crew in crews:
        crew.close()
    pool.close()
