"""Ids of tokens and characters in com.microsoft: hashes of n-grams, which are places in embedding tables, the
place where predicted tokens leave the source, words of characters. Hashes wrap in the ids' type."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...ir import ElementType, TensorType, Type, Value
from ...limits import bounded
from ..define import define
from ..functions import scalar
from .fused import MS

_IDS = ("int32", "int64")


def _hashed(ids: np.ndarray, before: np.ndarray, first: np.ndarray, fill: Any, multipliers: np.ndarray,
            sizes: np.ndarray, offsets: np.ndarray | None, heads: int) -> np.ndarray:
    """The hashes [tokens, heads * orders] of one sequence. `ids` follow the ids `before` them; at each token
    only what lies from `first` on in both counts, and `fill` stands for the rest."""
    dtype, reach = ids.dtype, len(before)
    whole, tokens = np.concatenate((before, ids)), len(ids)
    at = np.arange(tokens) + reach
    mix = np.zeros(tokens, dtype)
    rows = []
    for shift in range(reach + 1):
        seen = np.where(at - shift >= first, whole[at - shift], dtype.type(fill))
        mix = mix ^ seen * multipliers[shift]
        if shift:
            mine = slice((shift - 1) * heads, shift * heads)
            made = np.mod(mix[:, None], sizes[mine])
            rows.append(made if offsets is None else made + offsets[mine])
    return np.concatenate(rows, 1)


def _starts(ids: np.ndarray, before: np.ndarray, end: Any, segments: np.ndarray | None) -> np.ndarray:
    """From where on, of the ids `before` and these together, each token sees: behind the last `end` before
    it, and no other segment's; `segments` are theirs too."""
    whole, at = np.concatenate((before, ids)), np.arange(len(ids)) + len(before)
    first = np.zeros(len(ids), np.int64)
    places = np.arange(len(whole))
    if end is not None:
        last = np.maximum.accumulate(np.where(whole == end, places + 1, 0))
        first = np.where(at > 0, last[at - 1], 0)
    if segments is not None:
        changed = np.concatenate(([False], segments[1:] != segments[:-1]))
        first = np.maximum(first, np.maximum.accumulate(np.where(changed, places, 0))[at])
    return first


def _check(reach: int, heads: int, multipliers: np.ndarray, sizes: np.ndarray, offsets: np.ndarray | None
           ) -> None:
    if reach < 1 or heads < 1 or multipliers.ndim != 1 or len(multipliers) <= reach or (
            sizes.shape != (reach * heads,)) or (offsets is not None and offsets.shape != sizes.shape):
        raise ValueError(f"multipliers {multipliers.shape} and vocab_sizes {sizes.shape} do not fit n-grams"
                         f" of {reach + 1} ids and {heads} heads for each")
    if (sizes <= 0).any():
        raise ValueError(f"vocab_sizes must be above 0, found {sizes.min()}")


@define(domain=MS, outputs=2, types={"input_ids": _IDS, "segment_ids": ("int32",)})
def NGramHashMapping(input_ids, multipliers, vocab_sizes, past_ids=None, head_offsets=None,
                     eos_token_id=None, segment_ids=None, *, max_ngram_size: int, n_head_per_ngram: int,
                     pad_id: int, reset_on_eos: int = 0):
    """Of each n-gram of ids the exclusive or of its products with multipliers, modulo each head's size; and
    the last ids, for the next call"""
    reach, heads = max_ngram_size - 1, n_head_per_ngram
    _check(reach, heads, multipliers, vocab_sizes, head_offsets)
    if input_ids.ndim != 2 or (past_ids is not None and past_ids.shape != (len(input_ids), reach)) or (
            segment_ids is not None and segment_ids.shape != input_ids.shape):
        raise ValueError(f"past_ids or segment_ids do not fit ids of shape {input_ids.shape}")
    dtype = input_ids.dtype
    end = None if eos_token_id is None else eos_token_id.reshape(-1)[0]
    fill = dtype.type(pad_id) if end is None else end
    before = np.full((len(input_ids), reach), fill) if past_ids is None else past_ids
    y = np.empty((*input_ids.shape, reach * heads), dtype)
    with np.errstate(over="ignore"):
        for b, ids in enumerate(input_ids):
            marks = None
            if segment_ids is not None:
                marks = np.concatenate((np.repeat(segment_ids[b, :1], reach), segment_ids[b]))
            first = _starts(ids, before[b], end if reset_on_eos else None, marks)
            y[b] = _hashed(ids, before[b], first, fill, multipliers, vocab_sizes, head_offsets, heads)
    return y, np.concatenate((before, input_ids), 1)[:, input_ids.shape[1]:]


@NGramHashMapping.infer_with
def _hash_types(input_ids: Value, *_: Value | None, max_ngram_size: int, n_head_per_ngram: int,
                **__: Any) -> list[Type]:
    shape, reach = input_ids.shape, max_ngram_size - 1
    rows = None if shape is None else (*shape, reach * n_head_per_ngram)
    return [TensorType(input_ids.elem, rows),
            TensorType(input_ids.elem, (None if shape is None else shape[0], reach))]


@define(domain=MS, outputs=4, types={"input_ids": _IDS, **dict.fromkeys((
    "cumulative_sequence_length", "segment_ids", "past_segment_ids", "capture_count"), ("int32",))})
def VarlenNGramHashMapping(input_ids, multipliers, vocab_sizes, cumulative_sequence_length, past_ids=None,
                           head_offsets=None, eos_token_id=None, segment_ids=None, past_segment_ids=None,
                           capture_count=None, *, max_ngram_size: int, n_head_per_ngram: int, pad_id: int,
                           reset_on_eos: int = 0, state_update_capacity: int = 0):
    """NGramHashMapping of sequences one behind the other; the last ids and segments of each, and the last
    ids behind each of its first tokens"""
    reach, heads, room = max_ngram_size - 1, n_head_per_ngram, state_update_capacity
    _check(reach, heads, multipliers, vocab_sizes, head_offsets)
    ends, batch = cumulative_sequence_length, len(cumulative_sequence_length) - 1
    shapes = {"past_ids": (past_ids, (batch, reach)), "past_segment_ids": (past_segment_ids, (batch, reach)),
              "segment_ids": (segment_ids, input_ids.shape), "capture_count": (capture_count, (batch,))}
    for name, (value, shape) in shapes.items():
        if value is not None and value.shape != shape:
            raise ValueError(f"{name} has shape {value.shape}, expected {shape}")
    if input_ids.ndim != 1 or batch < 1 or ends[0] or ends[-1] != len(input_ids) or (np.diff(ends) < 1).any():
        raise ValueError(f"cumulative_sequence_length {ends.tolist()} does not divide {input_ids.shape} ids")
    if not 0 <= room <= 8 or (capture_count is not None) != (room > 0):
        raise ValueError(f"state_update_capacity is {room}, expected 0 to 8, and capture_count where it is"
                         " not 0")
    dtype = input_ids.dtype
    end = None if eos_token_id is None else eos_token_id.reshape(-1)[0]
    fill = dtype.type(pad_id) if end is None else end
    y = np.empty((len(input_ids), reach * heads), dtype)
    last, marked = np.empty((batch, reach), dtype), np.zeros((batch, reach), np.int32)
    states = np.full((batch, room, reach), pad_id, dtype)
    with np.errstate(over="ignore"):
        for b in range(batch):
            mine = slice(ends[b], ends[b + 1])
            ids, before = input_ids[mine], np.full(reach, fill) if past_ids is None else past_ids[b]
            marks = None
            if segment_ids is not None:
                own = segment_ids[mine]
                old = np.repeat(own[:1], reach) if past_segment_ids is None else past_segment_ids[b]
                marks = np.concatenate((old, own)).astype(np.int32)
                marked[b] = marks[len(ids):]
            first = _starts(ids, before, end if reset_on_eos else None, marks)
            y[mine] = _hashed(ids, before, first, fill, multipliers, vocab_sizes, head_offsets, heads)
            whole = np.concatenate((before, ids))
            last[b] = whole[len(ids):]
            for i in range(min(room, len(ids), 0 if capture_count is None else int(capture_count[b]))):
                states[b, i] = whole[i + 1:i + 1 + reach]
    return y, last, marked, states


@VarlenNGramHashMapping.infer_with
def _packed_hash_types(input_ids: Value, multipliers: Value, vocab_sizes: Value, ends: Value,
                       *_: Value | None, max_ngram_size: int, n_head_per_ngram: int,
                       state_update_capacity: int, **__: Any) -> list[Type]:
    reach, elem = max_ngram_size - 1, input_ids.elem
    tokens = input_ids.shape[0] if input_ids.shape else None
    batch = ends.shape[0] - 1 if ends.shape and isinstance(ends.shape[0], int) else None
    return [TensorType(elem, (tokens, reach * n_head_per_ngram)), TensorType(elem, (batch, reach)),
            TensorType(ElementType.INT32, (batch, reach)),
            TensorType(elem, (batch, state_update_capacity, reach))]


@define(domain=MS, outputs=2, types=dict.fromkeys(("src_tokens", "cur_tokens", "prev_suffix_match_idx",
                                                   "pred_tokens"), ("int64",)))
def BifurcationDetector(src_tokens, cur_tokens, prev_suffix_match_idx, pred_tokens=None, *,
                        max_ngram_size: int = 3, min_ngram_size: int = 1):
    """The current tokens and those predicted up to the first that is not the source's; and behind the one
    place of the source where their last n-gram stands, -1 where there is none or several"""
    start = int(scalar(prev_suffix_match_idx))
    tokens = cur_tokens
    if pred_tokens is not None:
        rest = src_tokens[start:]
        if not 0 <= start <= len(src_tokens) or len(pred_tokens) != len(rest) + 1:
            raise ValueError(f"{len(pred_tokens)} predicted tokens do not fit {len(src_tokens)} of the source"
                             f" from {start} on")
        wrong = np.nonzero(pred_tokens[:-1] != rest)[0]
        tokens = np.concatenate((cur_tokens, pred_tokens[:(wrong[0] if len(wrong) else len(rest)) + 1]))
    found = -1
    for n in range(max(min_ngram_size, 1), max_ngram_size + 1):
        if n > min(len(tokens), len(src_tokens)):
            break
        windows = np.lib.stride_tricks.sliding_window_view(src_tokens, n)
        places = np.nonzero((windows == tokens[-n:]).all(1))[0]
        if len(places) < 2:
            found = int(places[0]) + n if len(places) else -1
            break
    return tokens, np.full(prev_suffix_match_idx.shape, found, np.int64)


@BifurcationDetector.infer_with
def _detected_types(src_tokens: Value, cur_tokens: Value, index: Value, *_: Value | None, **__: Any
                    ) -> list[Type]:
    return [TensorType(ElementType.INT64, (None,)), TensorType(ElementType.INT64, index.shape)]


@define(domain=MS, types={"sequence": ("int32",), **dict.fromkeys(("w", "b", "c"), ("float",))})
def WordConvEmbedding(sequence, w, b, c, *, char_embedding_size: int | None = None,
                      conv_window_size: int | None = None, embedding_size: int | None = None):
    """Of each word [words, characters] the largest hyperbolic tangents of a convolution over its
    characters' embeddings; zeros for a word that begins with character 0, which fills words up"""
    window, deep = w.shape[2:] if w.ndim == 4 else (0, 0)
    given = ((char_embedding_size, deep), (embedding_size, w.shape[0]), (conv_window_size, window))
    if w.ndim != 4 or w.shape[1] != 1 or b.shape != w.shape[:1] or c.shape[1:] != (deep,) or any(
            wanted not in (None, size) for wanted, size in given):
        raise ValueError(f"W {w.shape}, B {b.shape}, C {c.shape} and the sizes given do not fit together")
    if sequence.ndim != 2 or sequence.shape[1] < window or (
            sequence.size and not 0 <= sequence.min() <= sequence.max() < len(c)):
        raise ValueError(f"words of shape {sequence.shape} are shorter than {window}, or name characters"
                         f" beyond {len(c)}")
    letters = np.lib.stride_tricks.sliding_window_view(c[sequence], window, 1)
    bounded((*letters.shape[:2], len(w)), np.dtype(np.float32))
    made = np.tanh(np.einsum("spcw,fwc->spf", letters, w[:, 0]) + b)
    lengths = np.maximum((sequence != 0).sum(1), window)
    there = np.arange(made.shape[1]) <= (lengths - window)[:, None]
    y = np.where(there[..., None], made, -np.inf).max(1, initial=-np.inf)
    return np.where(sequence[:, :1] != 0, y, 0).astype(np.float32)


@WordConvEmbedding.infer_with
def _word_type(sequence: Value, w: Value, *_: Value | None, **__: Any) -> list[Type]:
    words, size = (v.shape[0] if v.shape else None for v in (sequence, w))
    return [TensorType(w.elem, (words, size))]
