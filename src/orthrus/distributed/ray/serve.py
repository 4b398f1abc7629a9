"""Models behind Ray Serve: requests that wait together run as one batch, a replica holds several models,
tokens come as they are written.

In: a model, several by name, or a folder of them. Out: an application for `serve.run`. Every request is
answered or refused by itself: what is wrong with one never reaches those that share its batch. Routing,
replicas, their restart, autoscaling and queues are Ray Serve's.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import InvalidArgument, NotFound
from ...generation import Decoder, Token, stream
from .columns import Rows, columns_of, joined
from .predictor import session_of

_SETTINGS = frozenset(
    {"inputs", "outputs", "constants", "providers", "options", "tokenizer"}
    | {"max_request_bytes", "max_tokens"}
)


class Served:
    """One model in a replica: its session, and how columns become its inputs."""

    def __init__(self, session: Any, rows: Rows) -> None:
        self.session, self.rows = session, rows

    def answer(
        self, several: Sequence[tuple[dict[str, Any], int]]
    ) -> list[dict[str, np.ndarray] | Exception]:
        """The outputs of each request, in one run where all of them can be; each alone, and its error in its
        place, where that run ends in one. `several`: what `Rows.fit` gave for each."""
        full = [(fed, count) for fed, count in several if count]
        if len(full) > 1:
            try:
                made = self.rows.results(joined([fed for fed, _ in full]), sum(count for _, count in full))
            except Exception:  # whose request it is, each alone will say
                return [self._alone(fed, count) for fed, count in several]
            found: list[dict[str, np.ndarray] | Exception] = []
            at = 0
            for _, count in several:
                found.append({name: column[at : at + count] for name, column in made.items()})
                at += count
            return found
        return [self._alone(fed, count) for fed, count in several]

    def _alone(self, fed: dict[str, Any], count: int) -> dict[str, np.ndarray] | Exception:
        try:
            return self.rows.results(fed, count)
        except Exception as error:
            return error


class Replica:
    """What Ray Serve makes in each replica; `application` makes the deployment of it.

    A handle calls `predict` and, with `options(stream=True)`, `stream`; both take the model's name from the
    handle's `multiplexed_model_id`. Over HTTP it is `__call__`, the name in the header
    `serve_multiplexed_model_id`.
    """

    def __init__(
        self,
        models: Any,
        *,
        inputs: Mapping[str, str] | None = None,
        outputs: Mapping[str, str] | Sequence[str] | None = None,
        constants: Mapping[str, Any] | None = None,
        providers: Sequence[Any] | None = None,
        options: Mapping[str, Any] | None = None,
        tokenizer: Any = None,
        max_request_bytes: int = 64 << 20,
        max_tokens: int = 4096,
    ) -> None:
        self._models, self._tokenizer = models, tokenizer
        self.max_request_bytes, self.max_tokens = max_request_bytes, max_tokens
        self._columns = (inputs, outputs, constants)
        self._session = (providers, options)
        self.runs = 0
        """How many batches went through a session."""
        self._only = None if _several(models) else self._make(models)

    async def load(self, name: str) -> Served:
        """The model called `name`. Raises NotFound where there is none, and what making a session raises."""
        return await asyncio.to_thread(lambda: self._make(_chosen(self._models, name)))

    def _make(self, model: Any) -> Served:
        session = session_of(model, *self._session)
        return Served(session, Rows(session, *self._columns))

    async def together(self, models: list[Served], fed: list[tuple[dict[str, Any], int]]) -> list[Any]:
        """The answers to requests that waited together, those of one model in one run."""
        members: dict[int, list[int]] = {}
        for at, model in enumerate(models):
            members.setdefault(id(model), []).append(at)
        answers: list[Any] = [None] * len(models)
        for places in members.values():
            self.runs += 1
            found = await asyncio.to_thread(models[places[0]].answer, [fed[at] for at in places])
            for at, answer in zip(places, found, strict=True):
                answers[at] = answer
        return answers

    async def _asked_for(self) -> Served:
        from ray import serve

        name = serve.get_multiplexed_model_id()
        if self._only is not None and not name:
            return self._only
        if self._only is None and name:
            return await self.load(name)
        return _chosen(self._models, name)

    async def predict(self, batch: Any) -> dict[str, np.ndarray]:
        """The outputs for the rows of a batch: columns by name, a pyarrow.Table or a pandas.DataFrame. Raises
        InvalidArgument, which names column and row, and NotFound for a model that is not there."""
        model = await self._asked_for()
        fed = model.rows.fit(columns_of(batch))
        # The decorator of `application` makes a list of what several callers give.
        answer: Any = await self.together(model, fed)  # type: ignore[arg-type]
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def stream(self, prompts: Any, **how: Any) -> AsyncIterator[Token]:
        """The tokens of `orthrus.generation.stream` as they come, for a model that is a decoder. `how`:
        its `max_new_tokens`, `stop`, `temperature`, `top_k`, `top_p`, `seed` and `start`. Raises
        InvalidArgument."""
        model = await self._asked_for()
        tokens = await asyncio.to_thread(self._begin, model, prompts, how)
        while (token := await asyncio.to_thread(next, tokens, None)) is not None:
            yield token

    def _begin(self, model: Served, prompts: Any, how: dict[str, Any]) -> Any:
        return stream(Decoder(model.session), prompts, tokenizer=self._tokenizer, **how)

    async def statistics(self) -> dict[str, Any]:
        """Of the replica that is asked: its process and how many batches it ran."""
        return {"pid": os.getpid(), "runs": self.runs}

    async def __call__(self, request: Any) -> Any:
        """`POST {"inputs": {column: rows}}` gives `{"outputs": {column: rows}}`; `POST {"prompt": ...}`, with
        what `stream` takes, gives a line of JSON for each token."""
        from .http import answered

        return await answered(self, request)


def application(
    models: Any,
    *,
    name: str = "orthrus",
    max_batch_size: int = 32,
    batch_wait_timeout_s: float = 0.002,
    models_per_replica: int = 3,
    num_cpus: float = 1,
    num_gpus: float = 0,
    **rest: Any,
) -> Any:
    """An application for `serve.run`.

    `models`: a path that every node has, bytes, or what `put` gave, which lives as long as its program; a
    mapping of names to these; or a folder whose `NAME.onnx` are found when they are asked for.
    `max_batch_size`: requests that run together at most; `batch_wait_timeout_s`: how long the first waits for
    others. `models_per_replica`: how many a replica holds, the least recently asked for going first.
    `num_cpus`, `num_gpus`: of each replica; its sessions have as many threads. `inputs`, `outputs`,
    `constants`, `providers`, `options`: as `OrthrusPredictor`'s, for every model; `tokenizer`: for text in
    `stream`; `max_request_bytes` and `max_tokens`: what a request over HTTP may have and may ask for. All
    others (`num_replicas`, `autoscaling_config`, `max_queued_requests`, ...) are Ray Serve's. Raises
    InvalidArgument for a model that is not there.
    """
    from ray import serve

    for model in models.values() if isinstance(models, Mapping) else [models]:
        if isinstance(model, str | os.PathLike) and not os.path.exists(model):
            raise InvalidArgument(
                f"there is no model {os.fspath(model)!r}", cure="give a path that every node has"
            )
    settings = {key: rest.pop(key) for key in _SETTINGS & rest.keys()}
    made = type(
        "OrthrusReplica",
        (Replica,),
        {
            "load": serve.multiplexed(max_num_models_per_replica=models_per_replica)(Replica.load),
            "together": serve.batch(max_batch_size=max_batch_size, batch_wait_timeout_s=batch_wait_timeout_s)(
                Replica.together
            ),
        },
    )
    actor = {"num_cpus": num_cpus, "num_gpus": num_gpus, **rest.pop("ray_actor_options", {})}
    # Ray Serve's own default is below a batch, which then would never be full.
    rest.setdefault("max_ongoing_requests", 2 * max_batch_size)
    return serve.deployment(made, name=name, ray_actor_options=actor, **rest).bind(models, **settings)


def _several(models: Any) -> bool:
    return isinstance(models, Mapping) or (isinstance(models, str | os.PathLike) and Path(models).is_dir())


def _chosen(models: Any, name: str) -> Any:
    """The model called `name`. A name is looked up and never part of a path. Raises NotFound."""
    if not _several(models):
        models = {}
    elif not isinstance(models, Mapping):
        models = {path.stem: path for path in sorted(Path(models).glob("*.onnx"))}
    if name in models:
        return models[name]
    raise NotFound(
        f"there is no model {name!r}",
        expected=", ".join(map(repr, models)) or "no name: there is one model only",
        cure="handle.options(multiplexed_model_id=...), or the header serve_multiplexed_model_id",
    )


__all__ = ["Replica", "application"]
