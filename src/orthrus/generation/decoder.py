"""A decoder made ready: it takes tokens and gives the logits of what follows, and keeps its cache between.

In: tokens [rows, length], padded on the left. Out: logits [rows, vocab] of the last token. What a run leaves
in the cache is what the next is given, as the session made it; a cache of fixed size alternates between two
buffers, or stays in one.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InvalidArgument
from .signature import Cache, Signature, signature_of

_ROOM = 2048
"""Tokens that a cache of fixed size has room for where neither model nor caller says."""

_LENGTHS = {"found": "prompts of several lengths", "cure": "generate for one at a time"}
_PADDED = 0.05
"""How far logits may be off behind padding, as a part of their range: 8 bits make some per cent."""


class Decoder:
    """A model and its session.

    `model`: a path, the bytes of a model, or a session, of this package or of another with the same API.
    `encoder`: the other half of an encoder-decoder model, in the same ways. `cache_length`: the tokens that a
    cache of fixed size is to hold; given, the cache is taken to be such a one. `in_place`: such a cache is
    one buffer that a run both reads and writes, which GroupQueryAttention does; False where it is read while
    it is written. `embed`: gives the embeddings of tokens for a model of `inputs_embeds`. `sessions`:
    arguments of `InferenceSession`. Raises InvalidArgument for a model that is no decoder. Not for two
    threads at once.
    """

    def __init__(self, model: Any, *, encoder: Any = None, cache_length: int | None = None,
                 in_place: bool = False, embed: Callable[[np.ndarray], np.ndarray] | None = None,
                 **sessions: Any) -> None:
        self.session = _session(model, sessions)
        self.signature: Signature = signature_of(self.session.get_inputs(), self.session.get_outputs(),
                                                 None if cache_length is None else True)
        self.encoder = None if encoder is None else _session(encoder, sessions)
        self.in_place, self.embed = in_place, embed
        self.room = self.signature.room or cache_length or (_ROOM if self.signature.fixed else None)
        roles = self.signature.roles
        if "source" in roles and encoder is None:
            raise InvalidArgument("the decoder reads what an encoder makes of a text", found=roles["source"],
                                  cure="give the encoder's model as encoder=")
        if "tokens" not in roles and embed is None:
            raise InvalidArgument("the model takes embeddings and not tokens", found=roles["embeddings"],
                                  cure="give a function from tokens to embeddings as embed=")
        self._direct = not self.signature.fixed and _gives_arrays(self.session)
        self._value: Any = np.asarray if self._direct else _module(self.session).OrtValue.ortvalue_from_numpy
        self._outputs = [self.signature.logits, *(c.present for c in self.signature.caches)]
        self._heeds_padding = False
        self.seconds = 0.0
        """Seconds spent in the session's runs."""

    def encode(self, tokens: np.ndarray, mask: np.ndarray) -> None:
        """Run the encoder on tokens [rows, length]."""
        assert self.encoder is not None
        feeds: dict[str, np.ndarray] = {}
        for value in self.encoder.get_inputs():
            known = mask if "mask" in value.name else tokens if "ids" in value.name else None
            if known is None:
                raise InvalidArgument("the encoder takes an input that nothing is known for",
                                      found=value.name, expected="input_ids, attention_mask")
            feeds[value.name] = known.astype(np.int32 if "int32" in value.type else np.int64)
        self._source = np.asarray(self.encoder.run(None, feeds)[0]), mask

    def start(self, tokens: np.ndarray, mask: np.ndarray) -> np.ndarray:
        """The logits after `tokens`, with an empty cache. `mask`: 0 where a token is padding on the left.
        Raises InvalidArgument for rows of several lengths where the model has no way to know of them, or
        where the first such prompt shows that it takes padding for tokens."""
        if mask.all() or "source" in self.signature.roles or self._heeds_padding:
            return self._first(tokens, mask)
        if "mask" not in self.signature.roles or "ends" in self.signature.roles:
            raise InvalidArgument("the model cannot be told of padding: it has no attention_mask", **_LENGTHS)
        row = int(mask.sum(1).argmin())
        own = tokens[row:row + 1, mask[row] != 0]
        alone = self._first(own, np.ones_like(own))[0].astype(np.float64)
        logits = self._first(tokens, mask)
        if not np.ptp(logits[row] - alone) <= _PADDED * np.ptp(alone):
            raise InvalidArgument("the model takes padding for tokens: a prompt alone and the same behind "
                                  "padding differ", **_LENGTHS)
        self._heeds_padding = True
        return logits

    def _first(self, tokens: np.ndarray, mask: np.ndarray) -> np.ndarray:
        self._mask, self._written = mask, 0
        self._tokens = np.zeros((len(tokens), 0), np.int64)
        self._spare: dict[str, Any] = {}
        self._cache = {c.past: self._value(c.empty(len(tokens), self.room if c.fixed and self.room else 0))
                       for c in self.signature.caches}
        if not self.signature.one_token:
            return self._run(tokens)
        for i in range(tokens.shape[1]):
            logits = self._run(tokens[:, i:i + 1], mask[:, :i + 1])
        return logits

    def step(self, tokens: np.ndarray, order: np.ndarray | None = None) -> np.ndarray:
        """The logits after one more token in each row [rows]; `order`: which row each continues."""
        if order is not None:
            self._take(order)
        self._mask = np.concatenate([self._mask, np.ones((len(tokens), 1), self._mask.dtype)], 1)
        return self._run(tokens[:, None])

    def repeat(self, count: int) -> None:
        """Every row becomes `count` rows."""
        self._take(np.repeat(np.arange(len(self._mask)), count))

    def _take(self, order: np.ndarray) -> None:
        self._mask, self._tokens = self._mask[order], self._tokens[order]
        if "source" in self.signature.roles:
            self._source = self._source[0][order], self._source[1][order]
        self._spare = {}
        for c in self.signature.caches:
            past = self._cache[c.past]
            self._cache[c.past] = self._value(np.take(past if self._direct else past.numpy(), order, c.rows))

    def _run(self, tokens: np.ndarray, mask: np.ndarray | None = None) -> np.ndarray:
        if not self.signature.caches:
            self._tokens = tokens = np.concatenate([self._tokens, tokens], 1)
        mask = self._mask if mask is None else mask
        before = self._written
        self._written = mask.shape[1]
        if self.room is not None and self._written > self.room:
            raise InvalidArgument("the cache is full", found=f"{self._written} tokens",
                                  expected=f"at most {self.room}",
                                  cure="fewer tokens, or a larger cache_length")
        values = {**self._cache, **{name: self._value(array) for name, array in
                                    self._feeds(tokens, mask, before).items()}}
        start = time.perf_counter()
        logits, made = self._bound(values) if self.signature.fixed else self._plain(values)
        self.seconds += time.perf_counter() - start
        for c in self.signature.caches:
            if not (c.source and before):
                self._cache[c.past] = made[c.present]
        return logits[:, -1] if logits.ndim == 3 else logits

    def _plain(self, values: dict[str, Any]) -> tuple[np.ndarray, dict[str, Any]]:
        run = self.session.run if self._direct else self.session.run_with_ort_values
        logits, *made = run(self._outputs, values)
        return np.asarray(logits), dict(zip(self._outputs[1:], made, strict=True))

    def _bound(self, values: dict[str, Any]) -> tuple[np.ndarray, dict[str, Any]]:
        """A run that writes a cache of fixed size to the spare buffer, or to the one it reads."""
        binding = self.session.io_binding()
        for name, value in values.items():
            binding.bind_ortvalue_input(name, value)
        binding.bind_output(self.signature.logits)
        made = {}
        for c in self.signature.caches:
            if not c.fixed:
                binding.bind_output(c.present)
                continue
            past = values[c.past]
            spare = past if self.in_place else self._spare.pop(c.past, None) or self._like(past, c)
            binding.bind_ortvalue_output(c.present, spare)
            made[c.present] = spare
            self._spare[c.past] = past
        self.session.run_with_iobinding(binding)
        results = dict(zip(self._outputs, binding.get_outputs(), strict=True))
        return results[self.signature.logits].numpy(), {**results, **made}

    def _like(self, past: Any, cache: Cache) -> Any:
        return self._value(np.zeros(past.shape(), cache.dtype))

    def _feeds(self, tokens: np.ndarray, mask: np.ndarray, before: int) -> dict[str, np.ndarray]:
        """The inputs beside the cache."""
        roles, (rows, length) = self.signature.roles, tokens.shape
        given: dict[str, Any] = {"tokens": tokens}
        if "embeddings" in roles and "tokens" not in roles:
            assert self.embed is not None
            given["embeddings"] = self.embed(tokens)
        if "mask" in roles:
            given["mask"] = self._wide(mask)
        if "positions" in roles:
            given["positions"] = np.maximum(np.cumsum(mask, 1)[:, mask.shape[1] - length:] - 1, 0)
        given |= {"places": np.arange(mask.shape[1] - length, mask.shape[1]),
                  "ends": np.full(rows, mask.shape[1] - 1), "total": np.array(mask.shape[1]),
                  "before": np.array(before), "cached": np.array([before > 0])}
        if "source" in roles or "source_mask" in roles:
            given["source"], given["source_mask"] = self._source
        return {name: np.ascontiguousarray(np.asarray(given[role]), self.signature.types[name])
                for role, name in roles.items()}

    def _wide(self, mask: np.ndarray) -> np.ndarray:
        """`mask` as wide as a model with a fixed cache declares it: 0 where nothing is written yet."""
        width = self.signature.mask_width
        if width <= mask.shape[1]:
            return mask
        return np.concatenate([mask, np.zeros((len(mask), width - mask.shape[1]), mask.dtype)], 1)


def _session(model: Any, sessions: dict[str, Any]) -> Any:
    from ..api.session import InferenceSession

    if hasattr(model, "run_with_ort_values"):
        return model
    if hasattr(model, "SerializeToString"):
        model = model.SerializeToString()
    return InferenceSession(str(model) if isinstance(model, Path) else model, **sessions)


def _gives_arrays(session: Any) -> bool:
    """Whether `run` takes and gives arrays without a copy: a session of this package, on the host."""
    from ..api.session import InferenceSession

    return isinstance(session, InferenceSession) and session.get_providers() == ["CPUExecutionProvider"]


def _module(session: Any) -> Any:
    """The package that a session is of."""
    return sys.modules[type(session).__module__.partition(".")[0]]
