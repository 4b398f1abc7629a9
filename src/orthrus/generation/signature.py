"""What a model is as a decoder, read from the names, types and shapes of its inputs and outputs.

In: what `session.get_inputs()` and `session.get_outputs()` list. Out: a `Signature` that says what to feed.
An input that nothing is known for is an error that says which were looked for.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import field
from typing import Any

import ml_dtypes
import numpy as np

from ..errors import InvalidArgument
from ..records import dataclass

_TYPES: dict[str, Any] = {
    "float": np.float32, "double": np.float64, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16,
    "int32": np.int32, "int64": np.int64, "int8": np.int8, "uint8": np.uint8, "bool": np.bool_}
_NAMED = {"tokens": ("input_ids",), "embeddings": ("inputs_embeds",), "mask": ("attention_mask",),
          "positions": ("position_ids",), "places": ("cache_position",),
          "ends": ("seqlens_k",), "total": ("total_sequence_length",), "before": ("past_sequence_length",),
          "cached": ("use_cache_branch",), "source": ("encoder_hidden_states",),
          "source_mask": ("encoder_attention_mask",)}
"""The roles an input may have, and the names it has then."""
_PAST = re.compile(r"past|cache", re.IGNORECASE)


@dataclass(frozen=True)
class Cache:
    """One array that goes from run to run: its input and output, type and shape (-1 where it is not fixed).
    `rows`, `length`: the axes of the batch and of the tokens. `fixed`: it has room for a number of tokens
    from the start. `source`: it is the encoder's and made by the first run alone."""

    past: str
    present: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    rows: int
    length: int
    fixed: bool
    source: bool

    def empty(self, rows: int, length: int) -> np.ndarray:
        """Zeros for so many rows and tokens. Raises InvalidArgument where another dimension is not known."""
        shape = list(self.shape)
        shape[self.rows], shape[self.length] = rows, length
        if -1 in shape:
            raise InvalidArgument(f"the input {self.past} needs a number of heads and their size",
                                  found=list(self.shape),
                                  cure="export the model with these two dimensions fixed")
        return np.zeros(shape, self.dtype)


@dataclass(frozen=True)
class Signature:
    """`roles`: the names of inputs by what they are; `types`: their types by name. `logits`: the output."""

    roles: dict[str, str]
    types: dict[str, np.dtype[Any]]
    logits: str
    caches: list[Cache] = field(default_factory=list)
    mask_width: int = -1
    one_token: bool = False

    @property
    def room(self) -> int | None:
        """How many tokens a cache of fixed size holds; None where it is for the caller to say or it grows."""
        return next((c.shape[c.length] for c in self.caches if c.fixed and c.shape[c.length] > 0), None)

    @property
    def fixed(self) -> bool:
        return any(c.fixed for c in self.caches)


def signature_of(inputs: Sequence[Any], outputs: Sequence[Any], fixed: bool | None = None) -> Signature:
    """The signature of a model. `fixed`: whether its cache has its whole size from the start; None where the
    model's own types are to say so. Raises InvalidArgument for one that is no decoder."""
    roles = {role: v.name for role, names in _NAMED.items() for v in inputs if v.name.lower() in names}
    others = [v for v in inputs if v.name not in roles.values()]
    strange = [v.name for v in others if not _PAST.search(v.name)]
    if strange or not roles.keys() & {"tokens", "embeddings"}:
        looked = ", ".join(name for names in _NAMED.values() for name in names)
        raise InvalidArgument(
            "the model is no decoder that tokens can be generated with",
            found="inputs " + ", ".join(v.name for v in inputs),
            expected=f"input_ids or inputs_embeds, of {looked}; and a cache: past_key_values.N.key and "
                     ".value, past_N, past_key_N and past_value_N, ...",
            cure="export the decoder, such as a transformers model with a language modelling head, for text "
                 "generation")
    logits = _logits(outputs)
    left = [v for v in outputs if v.name != logits]
    same = fixed if fixed is not None else bool(roles.keys() & {"places", "ends"})
    caches = [_cache(v, present, same, fixed is None) for v, present in zip(
        others, _presents(others, left), strict=True)]
    width = next((_shape(v)[-1] for v in inputs if v.name == roles.get("mask") and v.shape), -1)
    tokens = next(_shape(v) for v in inputs if v.name in (roles.get("tokens"), roles.get("embeddings")))
    return Signature(roles, {v.name: _type(v) for v in inputs}, logits, caches, width,
                     len(tokens) > 1 and tokens[1] == 1)


def _logits(outputs: Sequence[Any]) -> str:
    named = [v.name for v in outputs if v.name.lower() in ("logits", "lm_logits")]
    found = named or [v.name for v in outputs if len(v.shape or ()) in (2, 3) and "float" in v.type]
    if not found:
        raise InvalidArgument("the model has no output of logits",
                              found=", ".join(v.name for v in outputs),
                              expected="logits [batch, length, vocab]")
    return found[0]


def _presents(past: Sequence[Any], outputs: Sequence[Any]) -> list[str]:
    """The output that each input of a cache comes from."""
    names, found = [v.name for v in outputs], list[str]()
    for value in past:
        candidates = [value.name.replace(*change) for change in (
            ("past_key_values", "present"), ("past_key_values", "present_key_values"), ("past", "present"),
            ("past_", ""))] + [value.name + "_out", "new_" + value.name, "updated_" + value.name]
        found.append(next((name for name in candidates if name in names), ""))
    if "" not in found:
        return found
    alike = [v.name for v in outputs if len(v.shape or ()) == len(past[0].shape or ())]
    if len(alike) == len(past):
        return alike
    lost = [v.name for v, name in zip(past, found, strict=True) if not name]
    raise InvalidArgument("no output gives what the next run's cache is to be", found=", ".join(lost),
                          expected="an output present.N.key for an input past_key_values.N.key, and the like",
                          cure="export the model with use_cache=True")


def _cache(value: Any, present: str, same: bool, ask: bool) -> Cache:
    shape = _shape(value)
    if len(shape) not in (4, 5):
        raise InvalidArgument(f"the cache {value.name} has an unexpected shape",
                              found=list(value.shape or ()),
                              expected="[batch, heads, length, size] or [2, batch, heads, length, size]")
    rows, length = len(shape) - 4, len(shape) - 2
    source = "encoder" in value.name or "cross" in value.name
    return Cache(value.name, present, _type(value), shape, rows, length,
                 not source and (same or (ask and shape[length] > 0)), source)


def _shape(value: Any) -> tuple[int, ...]:
    return tuple(d if isinstance(d, int) else -1 for d in value.shape or ())


def _type(value: Any) -> np.dtype[Any]:
    name = value.type.removeprefix("tensor(").removesuffix(")")
    if name not in _TYPES:
        raise InvalidArgument(f"the input {value.name} has a type that a decoder has no use for",
                              found=value.type, expected=", ".join(_TYPES))
    return np.dtype(_TYPES[name])
