"""How graphs inside a node are run as decoders: what they take, in which order, and what of it they keep.

In: tokens. Out: the logits [rows, vocab] of what follows. The cache stays between two steps as the graph made
it; rows are gathered only where a search changed their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from ....errors import InvalidArgument
from ....ir import TensorType, Value
from ....limits import charge, held

Body = Any
"""A graph inside a node: `body(*inputs)` gives a list; `inputs` and `outputs` are its Values."""


class Decoder(Protocol):
    """What a search needs of a model."""

    def start(self, beams: int) -> np.ndarray:
        """The logits after what is given, of each row of the batch `beams` times; once, before any step."""

    def step(self, tokens: np.ndarray, order: np.ndarray | None) -> np.ndarray:
        """The logits after all `tokens` [rows, length]; `order`: which row each continues, None for its own.
        """


def last(logits: np.ndarray) -> np.ndarray:
    """The logits [rows, vocab] of the last token of [rows, length, vocab]."""
    if logits.ndim != 3:
        raise InvalidArgument("logits of a decoder have three dimensions", found=list(logits.shape))
    return logits[:, -1]


def ordered(cache: Sequence[np.ndarray], order: np.ndarray | None, axis: int) -> Sequence[np.ndarray]:
    """`cache` with its rows, along `axis`, in `order`."""
    return cache if order is None else [np.take(part, order, axis) for part in cache]


def empty_cache(value: Value, rows: int, row_axis: int, length_axis: int) -> np.ndarray:
    """A cache of no tokens for the input `value`. Raises InvalidArgument where it does not say how many heads
    there are and how large each is."""
    kind = value.type
    shape = list(kind.shape or ()) if isinstance(kind, TensorType) else []
    if len(shape) > length_axis:
        shape[row_axis], shape[length_axis] = rows, 0
    sizes = [d for d in shape if isinstance(d, int)]
    if not isinstance(kind, TensorType) or not sizes or len(sizes) < len(shape):
        raise InvalidArgument(f"the decoder's input {value.name} needs a number of heads and their size",
                              found=str(kind), cure="give these dimensions numbers in the subgraph")
    return np.zeros(sizes, np.dtype(np.float32) if kind.elem is None else kind.elem.numpy)


class Account:
    """What a cache takes of the memory that the run may hold."""

    def __init__(self) -> None:
        self.bytes = 0

    def holds(self, *caches: Sequence[np.ndarray]) -> None:
        """These from now on, and nothing else. Raises Fail where that is too much."""
        size = sum(held(part) for cache in caches for part in cache)
        charge(size - self.bytes)
        self.bytes = size


def mask_of(tokens: np.ndarray, mask: np.ndarray | None, told: np.ndarray) -> np.ndarray:
    """`mask`, or where there is none, what the tokens have `told`. Raises InvalidArgument for another shape.
    """
    if mask is None:
        return told.astype(np.int32)
    if mask.shape != tokens.shape:
        raise InvalidArgument("attention_mask has to have the shape of input_ids", found=list(mask.shape),
                              expected=list(tokens.shape))
    return mask


class Gpt:
    """A decoder of `input_ids`, `position_ids`, `attention_mask` and the cache past_i
    [2, rows, heads, length, size]; `first`, where there is one, makes the first step."""

    def __init__(self, body: Body, first: Body | None, tokens: np.ndarray, mask: np.ndarray | None, pad: int
                 ) -> None:
        self.body, self.first = body, first or body
        self.names = [value.name for value in body.inputs[:3]]
        if self.names != ["input_ids", "position_ids", "attention_mask"] or len(body.inputs) < 4:
            raise InvalidArgument("the decoder subgraph is none of model_type 0 (gpt2)",
                                  found=", ".join(value.name for value in body.inputs),
                                  expected="input_ids, position_ids, attention_mask, past_0, ...")
        self.tokens, self.mask, self.pad, self.account = tokens, mask, pad, Account()

    def start(self, beams: int) -> np.ndarray:
        tokens = np.repeat(self.tokens, beams, 0)
        own = tokens != self.pad
        counted = np.cumsum(own, 1, dtype=np.int32)
        self.mask = np.repeat(mask_of(self.tokens, self.mask, self.tokens != self.pad), beams, 0)
        self.position = counted[:, -1:].copy()
        past = [empty_cache(value, len(tokens), 1, 3) for value in self.first.inputs[3:]]
        return self._run(self.first, tokens, np.where(own, counted - 1, 0).astype(np.int32), past)

    def step(self, tokens: np.ndarray, order: np.ndarray | None) -> np.ndarray:
        assert self.mask is not None
        place = self.position
        self.mask = np.concatenate([self.mask, np.ones((len(place), 1), self.mask.dtype)], 1)
        self.position = place + 1
        return self._run(self.body, tokens[:, -1:], place, ordered(self.cache, order, 1))

    def _run(self, body: Body, tokens: np.ndarray, positions: np.ndarray, past: Sequence[np.ndarray]
             ) -> np.ndarray:
        logits, *self.cache = body(tokens, positions, self.mask, *past)
        self.account.holds(self.cache)
        return last(logits)


class EncoderDecoder:
    """An encoder, and a decoder of `input_ids` with the cache past_key_self_i, past_value_self_i
    [rows, heads, length, size] and the encoder's past_key_cross_i, past_value_cross_i. `source`: what the
    encoder reads, [batch, length] of tokens or [batch, features, frames]; `prompt`: what the decoder begins
    with [batch, length]. An encoder may make the decoder's first step itself."""

    def __init__(self, encoder: Body | None, decoder: Body, source: np.ndarray, mask: np.ndarray | None,
                 prompt: np.ndarray, pad: int) -> None:
        if encoder is None:
            raise InvalidArgument("an encoder-decoder model needs the subgraph encoder",
                                  cure="give the attribute encoder, or model_type 0 for a decoder alone")
        self.encoder, self.decoder, self.prompt, self.account = encoder, decoder, prompt, Account()
        self.given: dict[str, np.ndarray] = {"encoder_input_ids": source, "decoder_input_ids": prompt}
        if source.ndim == 2:
            self.given["encoder_attention_mask"] = mask_of(
                source, mask, np.logical_or.accumulate(source != pad, 1))
        self.own = [v for v in decoder.inputs if v.name.startswith(("past_key_self", "past_value_self"))]
        if not self.own or "input_ids" not in [v.name for v in decoder.inputs]:
            raise InvalidArgument("the decoder subgraph is none of an encoder-decoder model",
                                  found=", ".join(value.name for value in decoder.inputs),
                                  expected="input_ids, past_key_self_0, past_value_self_0, ...")
        tokens = decoder.inputs[[v.name for v in decoder.inputs].index("input_ids")].type
        self.whole = isinstance(tokens, TensorType) and tokens.shape is not None and tokens.shape[1] != 1

    def start(self, beams: int) -> np.ndarray:
        unknown = [v.name for v in self.encoder.inputs if v.name not in self.given]
        if unknown:
            raise InvalidArgument("the encoder subgraph takes an input that nothing is known for",
                                  found=", ".join(unknown), expected=", ".join(self.given))
        made = dict(zip([v.name for v in self.encoder.outputs],
                        self.encoder(*(self.given[v.name] for v in self.encoder.inputs)), strict=True))
        rows = {k: np.repeat(v, beams, 0) if beams > 1 else v for k, v in made.items()}
        self.fixed = {"past" + k.removeprefix("present"): v for k, v in rows.items() if "_cross_" in k}
        if "encoder_hidden_states" in rows:
            self.fixed["encoder_hidden_states"] = rows["encoder_hidden_states"]
        if "encoder_attention_mask" in self.given:
            self.fixed["encoder_attention_mask"] = np.repeat(self.given["encoder_attention_mask"], beams, 0)
        if "logits" in rows:
            self.cache: Sequence[np.ndarray] = [rows["present" + v.name.removeprefix("past")]
                                                for v in self.own]
            return last(rows["logits"])
        prompt = np.repeat(self.prompt, beams, 0)
        self.cache = [empty_cache(v, len(prompt), 0, 2) for v in self.own]
        return self._run(prompt)

    def step(self, tokens: np.ndarray, order: np.ndarray | None) -> np.ndarray:
        self.cache = ordered(self.cache, order, 0)
        return self._run(tokens if self.whole else tokens[:, -1:])

    def _run(self, tokens: np.ndarray) -> np.ndarray:
        given = {**self.fixed, "input_ids": tokens,
                 **{v.name: part for v, part in zip(self.own, self.cache, strict=True)}}
        lacking = [v.name for v in self.decoder.inputs if v.name not in given]
        if lacking:
            raise InvalidArgument("the decoder subgraph takes inputs that nothing is known for",
                                  found=", ".join(lacking), expected=", ".join(given))
        logits, *self.cache = self.decoder(*(given[v.name] for v in self.decoder.inputs))
        self.account.holds(self.cache, [*self.fixed.values()])
        return last(logits)

