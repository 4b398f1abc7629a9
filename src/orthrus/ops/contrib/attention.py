"""Attention of com.microsoft: hidden states or projected queries, keys and values in, mixed values and caches
out.

Inside, tensors are [batch, heads, sequence, head size] in float32 (float64 for doubles). Masked scores are
lowered by `mask_filter_value` rather than removed, as in onnxruntime, so that a row without any key still has
weights.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...errors import Unfit
from ...ir import TensorType, Type, Value
from ..define import FLOATS, define
from ..functions import sum_of, working_type
from ..math.linalg import matmul
from ..nn.attention import (
    check_heads,
    grouped_matmul,
    merge_heads,
    rotate,
    rows_at,
    softcapped,
    split_heads,
)
from ..nn.linear_attention import LinearAttention as OnnxLinearAttention
from ..tensor.quantize import integer_product
from .fused import MS, like_first

_FILTER = -10000.0


def attended(q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float | None, bias: np.ndarray | None,
             softcap: float = 0.0, sink: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray,
                                                                            np.ndarray]:
    """The mixed values [B, H, S, V], the scores and the weights [B, H, S, T]; `bias` is added to the scores.

    `sink` [1, H, 1, 1] is the score of one more key that has no value.
    """
    check_heads(q, k, v)
    factor = scale if scale else 1 / math.sqrt(q.shape[3] or 1)
    scores = softcapped(grouped_matmul(q, k.swapaxes(2, 3)) * q.dtype.type(factor), softcap)
    if bias is not None:
        if np.broadcast_shapes(bias.shape, scores.shape) != scores.shape:
            raise Unfit(f"a bias or mask of shape {bias.shape} does not broadcast to the scores"
                        f" {scores.shape}")
        scores = scores + bias
    if not scores.shape[-1]:
        return grouped_matmul(scores, v), scores, scores
    top = scores.max(-1, keepdims=True)
    if sink is not None:
        top = np.maximum(top, sink)
    top = np.where(np.isfinite(top), top, 0)
    weights = np.exp(scores - top)
    total = sum_of(weights, -1)
    if sink is not None:
        total = total + np.exp(sink - top)
    weights = weights / np.where(total == 0, 1, total)
    return grouped_matmul(weights, v), scores, weights


def _causal(length: int, total: int, past: int, dtype: Any) -> np.ndarray:
    """What lowers the keys behind each query, [length, total]."""
    behind = np.arange(total) > past + np.arange(length)[:, None]
    return np.where(behind, np.finfo(dtype).min, 0).astype(dtype)


def _mask_bias(mask: np.ndarray | None, batch: int, length: int, total: int, value: float, dtype: Any
               ) -> np.ndarray | None:
    """A mask as what is added to the scores; `mask` gives key counts [B], ends and starts [2B], or 0 and 1
    per key."""
    if mask is None:
        return None
    keys = np.arange(total)
    if mask.ndim == 1 and mask.size in (batch, 2 * batch):
        kept = keys < mask[:batch, None]
        if mask.size == 2 * batch and batch:
            kept &= keys >= np.minimum(mask[batch:, None], total)
        kept = kept[:, None, None]
    elif mask.ndim == 1 and mask.size == 3 * batch + 2:
        kept = (keys < mask[:batch, None])[:, None, None]
    elif mask.ndim == 2 and mask.shape == (batch, total):
        kept = mask[:, None, None] > 0
    elif mask.ndim == 3 and mask.shape == (batch, length, total):
        kept = mask[:, None] > 0
    elif mask.ndim == 4 and mask.shape[2] >= total and mask.shape[3] >= total:
        kept = mask[:, :, total - length:total, :total] > 0
    else:
        raise Unfit(f"a mask of shape {mask.shape} fits no form for batch {batch}, {length} queries and"
                    f" {total} keys")
    return np.where(kept, 0, value).astype(dtype)


def _added(*terms: np.ndarray | None) -> np.ndarray | None:
    total: np.ndarray | None = None
    for term in terms:
        if term is not None:
            total = term if total is None else np.maximum(total + term, np.finfo(term.dtype).min)
    return total


def _projected(flat: np.ndarray, sizes: tuple[int, int, int], heads: int) -> list[np.ndarray]:
    """[batch, sequence, q + k + v] as queries, keys and values by head."""
    ends = np.cumsum(sizes)[:2]
    return [split_heads(part, heads, name) for part, name in zip(np.split(flat, ends, 2), "QKV", strict=True)]


def _sizes(width: int, given: Any) -> tuple[int, int, int]:
    if given is not None and len(given):
        if len(given) != 3 or sum(given) != width or min(given) < 0:
            raise Unfit(f"qkv_hidden_sizes {list(given)} do not add up to {width}")
        return int(given[0]), int(given[1]), int(given[2])
    if width % 3:
        raise Unfit(f"the weights' width {width} does not split into queries, keys and values")
    return width // 3, width // 3, width // 3


def _self_attention(flat: np.ndarray, sizes: tuple[int, int, int], mask: np.ndarray | None,
                    past: np.ndarray | None,
                    attention_bias: np.ndarray | None, past_length: np.ndarray | None, num_heads: int,
                    unidirectional: int, scale: float | None, mask_filter_value: float | None, share: int
                    ) -> tuple[np.ndarray, np.ndarray]:
    """Attention of projected states [batch, sequence, q + k + v]; the mixed values and the keys and values
    so far."""
    q, k, v = _projected(flat, sizes, num_heads)
    batch, _, length, _ = q.shape
    buffer = None
    if past is not None:
        if past.ndim != 5 or (*past.shape[:3], past.shape[4]) != (2, *k.shape[:2], k.shape[3]):
            raise ValueError(f"past of shape {past.shape} does not fit keys of shape {k.shape}")
        if share:
            held = int(past_length.reshape(-1)[0]) if past_length is not None and past_length.size else 0
            if not 0 <= held <= past.shape[3] - length:
                raise ValueError(f"past_sequence_length {held} and {length} new tokens do not fit a cache of"
                                 f" {past.shape[3]}")
            buffer, past = past, past[:, :, :, :held]
        wide = past.astype(k.dtype)
        k, v = np.concatenate((wide[0], k), 2), np.concatenate((wide[1], v), 2)
    total = k.shape[2]
    bias = _added(_mask_bias(mask, batch, length, total, mask_filter_value or _FILTER, q.dtype),
                  _causal(length, total, total - length, q.dtype) if unidirectional else None,
                  None if attention_bias is None else attention_bias.astype(q.dtype))
    y, _, _ = attended(q, k, v, scale, bias)
    present = np.stack((k, v)) if k.shape == v.shape else np.zeros(0, k.dtype)
    if buffer is not None:
        grown = buffer.astype(present.dtype)
        grown[:, :, :, :total] = present
        present = grown
    return merge_heads(y), present


@define(domain=MS, outputs=2, types={"input": FLOATS, "weights": FLOATS, "bias": FLOATS,
                                     "mask_index": ("int32",)})
def Attention(input, weights, bias=None, mask_index=None, past=None, attention_bias=None,
              past_sequence_length=None, *,
              do_rotary: int = 0, mask_filter_value: float | None = None, num_heads: int,
              past_present_share_buffer: int = 0, qkv_hidden_sizes: list[int] | None = None,
              rotary_embedding_dim: int = 0, scale: float | None = None, unidirectional: int = 0):
    """Self attention of input @ weights + bias, and the keys and values so far"""
    if do_rotary:
        raise ValueError("Attention with do_rotary is not supported; use RotaryEmbedding or"
                         " GroupQueryAttention")
    wide = working_type(input.dtype)
    if input.shape[-1:] != weights.shape[:1]:
        raise Unfit(f"weights of shape {weights.shape} do not fit an input of shape {input.shape}")
    flat = matmul(input.astype(wide), weights.astype(wide))
    if bias is not None:
        flat = flat + bias.astype(wide)
    y, present = _self_attention(flat, _sizes(flat.shape[-1], qkv_hidden_sizes), mask_index, past,
                                 attention_bias,
                                 past_sequence_length, num_heads, unidirectional, scale, mask_filter_value,
                                 past_present_share_buffer)
    return y.astype(input.dtype), present.astype(input.dtype)


@define(domain=MS, outputs=2, types={"input": ("uint8", "int8"), "weight": ("uint8", "int8"),
                                     "bias": ("float",)})
def QAttention(input, weight, bias, input_scale, weight_scale, mask_index=None, input_zero_point=None,
               weight_zero_point=None, past=None, *, do_rotary: int = 0,
               mask_filter_value: float | None = None,
               num_heads: int, past_present_share_buffer: int = 0, scale: float | None = None,
               unidirectional: int = 0):
    """Self attention of quantized input @ weight + bias, and the keys and values so far"""
    if do_rotary:
        raise ValueError("QAttention with do_rotary is not supported")
    if input.shape[-1:] != weight.shape[:1]:
        raise Unfit(f"weights of shape {weight.shape} do not fit an input of shape {input.shape}")
    flat = integer_product(input, weight, input_zero_point, weight_zero_point).astype(np.float32)
    flat = flat * (input_scale.astype(np.float32) * weight_scale.astype(np.float32)) + bias.astype(np.float32)
    y, present = _self_attention(flat, _sizes(flat.shape[-1], None), mask_index, past, None, None, num_heads,
                                 unidirectional, scale, mask_filter_value, 0)
    return y.astype(bias.dtype), present.astype(bias.dtype)


def _separate(query: np.ndarray, key: np.ndarray | None, value: np.ndarray | None, bias: np.ndarray | None,
              heads: int
              ) -> list[np.ndarray]:
    """Queries, keys and values by head, from the forms MultiHeadAttention takes."""
    if query.ndim == 5:
        parts = [query[:, :, :, i].transpose(0, 2, 1, 3) for i in range(3)]
    elif key is None:
        raise ValueError("MultiHeadAttention needs keys, or queries packed with them")
    elif key.ndim == 5:
        parts = [split_heads(query, heads, "query"), *(key[:, :, :, i].transpose(0, 2, 1, 3)
                                                       for i in range(2))]
    elif value is None:
        raise ValueError("MultiHeadAttention needs values, or keys packed with them")
    else:
        parts = [split_heads(query, heads, "query"), split_heads(key, heads, "key"),
                 split_heads(value, heads, "value")]
    if bias is None:
        return parts
    widths = [p.shape[1] * p.shape[3] for p in parts]
    if bias.shape != (sum(widths),):
        raise Unfit(f"the bias has shape {bias.shape}, expected {(sum(widths),)}")
    shifts = np.split(bias, np.cumsum(widths)[:2])
    if key is not None and key.ndim == 4:
        shifts[1:] = [np.zeros_like(b) for b in shifts[1:]]
    return [p + b.reshape(p.shape[1], 1, p.shape[3]) for p, b in zip(parts, shifts, strict=True)]


@define(domain=MS, outputs=4, types={"query": FLOATS, "key": FLOATS, "value": FLOATS,
                                     "key_padding_mask": ("int32",)})
def MultiHeadAttention(query, key=None, value=None, bias=None, key_padding_mask=None, attention_bias=None,
                       past_key=None, past_value=None, past_sequence_length=None, cache_indirection=None, *,
                       mask_filter_value: float | None = None, num_heads: int, scale: float | None = None,
                       unidirectional: int = 0):
    """softmax(query @ key' * scale + bias) @ value, the keys and values so far, and the scores"""
    dtype, wide = query.dtype, working_type(query.dtype)
    given = [None if x is None else x.astype(wide) for x in (key, value, bias)]
    q, k, v = _separate(query.astype(wide), given[0], given[1], given[2], num_heads)
    past, caches = 0, [k, v]
    if past_key is not None and past_value is not None:
        if past_sequence_length is None:
            past = past_key.shape[2]
            k, v = (np.concatenate((old.astype(wide), new), 2)
                    for old, new in ((past_key, k), (past_value, v)))
            caches = [k, v]
        else:
            past, capacity = _held(past_sequence_length, past_key.shape[2], k.shape[2]), past_key.shape[2]
            caches = [cached(old.astype(wide), new, np.full(len(new), past), capacity)
                      for old, new in ((past_key, k), (past_value, v))]
            k, v = (cache[:, :, :past + k.shape[2]] for cache in caches)
    batch, _, length, _ = q.shape
    total = k.shape[2]
    mask = _mask_bias(key_padding_mask, batch, length, total, mask_filter_value or _FILTER, wide)
    added = _added(mask, _causal(length, total, past, wide) if unidirectional else None,
                   None if attention_bias is None else attention_bias.astype(wide))
    y, scores, _ = attended(q, k, v, scale, added)
    return merge_heads(y).astype(dtype), *(c.astype(dtype) for c in caches), scores.astype(dtype)


def _held(given: np.ndarray, capacity: int, length: int) -> int:
    """How many rows of a cache that is written in place are of the past."""
    held = int(given.reshape(-1)[0]) if given.size == 1 else -1
    if not 0 <= held < capacity or held + length > capacity:
        raise Unfit(f"past_sequence_length {given.tolist()} leaves no room for {length} new tokens in a"
                    f" cache of {capacity}; it is one number")
    return held


def positions_of(given: np.ndarray, batch: int, length: int) -> np.ndarray:
    """Positions [batch, length]: as given, or running on from a single offset."""
    if given.size == 1 and given.ndim < 2:
        return np.broadcast_to(int(given.reshape(())) + np.arange(length), (batch, length))
    if given.shape != (batch, length):
        raise Unfit(f"position_ids have shape {given.shape}, expected (1,) or {(batch, length)}")
    return given


@define(domain=MS, widen=True, result="same", types={"input": FLOATS, "position_ids": ("int64",)})
def RotaryEmbedding(input, position_ids, cos_cache, sin_cache, *, interleaved: int = 0,
                    is_packed_batching: int = 0,
                    num_heads: int = 0, rotary_embedding_dim: int = 0, scale: float = 1.0):
    """Pairs of features turned by the angles of their position; `scale` is not applied, as on
    onnxruntime's CPU"""
    if cos_cache.ndim != 2 or cos_cache.shape != sin_cache.shape:
        raise Unfit(f"rotary caches have shapes {cos_cache.shape} and {sin_cache.shape}, expected two"
                    " equal matrices")
    if input.ndim == 4:
        tokens = input.transpose(0, 2, 1, 3)
    else:
        size = cos_cache.shape[1] * 2
        heads = num_heads if rotary_embedding_dim and num_heads else input.shape[-1] // max(size, 1)
        tokens = split_heads(input, heads, "input").transpose(0, 2, 1, 3)
    if 2 * cos_cache.shape[1] > tokens.shape[3] or rotary_embedding_dim not in (0, 2 * cos_cache.shape[1]):
        raise Unfit(f"a rotary cache of width {cos_cache.shape[1]} does not turn"
                    f" {rotary_embedding_dim or 'all'} of"
                    f" {tokens.shape[3]} features")
    places = positions_of(position_ids, *tokens.shape[:2])
    y = rotate(tokens, rows_at(cos_cache, places), rows_at(sin_cache, places), interleaved)
    return y.transpose(0, 2, 1, 3) if input.ndim == 4 else y.reshape(input.shape)


@define(domain=MS, widen=True, result="same", types={"input": FLOATS, "position_ids": ("int64",)})
def MRotaryEmbedding(input, position_ids, cos_cache, sin_cache, *, interleaved: int = 0,
                     is_packed_batching: int = 0, mrope_layout: int = 0, mrope_section: list[int],
                     num_heads: int = 0, rotary_embedding_dim: int = 0, scale: float = 1.0):
    """RotaryEmbedding by three positions of each token [3, batch, sequence]: mrope_section says how many
    angles each has, one behind the other or, in layout 1, in turn"""
    if cos_cache.ndim != 2 or cos_cache.shape != sin_cache.shape or len(mrope_section) != 3 or (
            min(mrope_section) < 0 or sum(mrope_section) != cos_cache.shape[1]):
        raise Unfit(f"mrope_section {list(mrope_section)} does not fit rotary caches of shapes"
                    f" {cos_cache.shape} and {sin_cache.shape}")
    tokens = split_heads(input, num_heads, "input").transpose(0, 2, 1, 3)
    half = cos_cache.shape[1]
    if mrope_layout not in (0, 1) or rotary_embedding_dim not in (0, 2 * half) or 2 * half > tokens.shape[3]:
        raise Unfit(f"mrope_layout {mrope_layout} and a rotary cache of width {half} do not turn"
                    f" {rotary_embedding_dim or 'all'} of {tokens.shape[3]} features")
    if position_ids.shape != (3, *tokens.shape[:2]):
        raise Unfit(f"position_ids have shape {position_ids.shape}, expected {(3, *tokens.shape[:2])}")
    which = stream_of_angle(mrope_section, mrope_layout)
    cos, sin = (np.stack([rows_at(cache, position_ids[s])[..., i] for i, s in enumerate(which)], -1)
                for cache in (cos_cache, sin_cache))
    y = rotate(tokens, cos, sin, interleaved)
    return y.transpose(0, 2, 1, 3) if input.ndim == 4 else y.reshape(input.shape)


MRotaryEmbedding.infer_with(like_first)


def stream_of_angle(section: list[int], layout: int) -> list[int]:
    """Which of three positions, time, height or width, each angle is for."""
    if not layout:
        return [stream for stream, count in enumerate(section) for _ in range(count)]
    which = [0] * sum(section)
    for stream in (1, 2):
        for i in range(stream, min(3 * section[stream], len(which)), 3):
            which[i] = stream
    return which


def cached(past: np.ndarray | None, new: np.ndarray, before: np.ndarray, capacity: int) -> np.ndarray:
    """The cache with the new rows of each batch entry behind its old ones, [batch, heads, capacity, size]."""
    out = np.zeros((*new.shape[:2], capacity, new.shape[3]), new.dtype)
    if past is not None:
        out[:, :, :past.shape[2]] = past
    for b, start in enumerate(before):
        out[b, :, start:start + new.shape[2]] = new[b]
    return out


def up_to(cache: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """The rows that each batch entry has of a cache [batch, heads, rows, size], zeros behind them: anything
    may lie there."""
    there = np.arange(cache.shape[2]) < ends[:, None]
    return cache if there.all() else np.where(there[:, None, :, None], cache, cache.dtype.type(0))


@define(domain=MS, outputs=2, types=dict.fromkeys(("query", "key", "value", "past_state", "decay", "beta"),
                                                  FLOATS))
def LinearAttention(query, key, value, past_state=None, decay=None, beta=None, *, chunk_size: int = 64,
                    kv_num_heads: int, q_num_heads: int, scale: float = 0.0, state_window: int = 0,
                    update_rule: str = "gated_delta"):
    """Attention over a recurrent state, as ONNX's LinearAttention"""
    if state_window:
        raise ValueError("LinearAttention with a state_window is not supported")
    size = query.shape[-1] // max(q_num_heads, 1)
    query_heads = q_num_heads
    if query.ndim == key.ndim == 3 and size and kv_num_heads > 0:
        if 0 < q_num_heads < kv_num_heads:
            query, query_heads = _shared_by(query, q_num_heads, kv_num_heads, "query"), kv_num_heads
        if key.shape[2] < kv_num_heads * size:
            key = _shared_by(key, key.shape[2] // size, kv_num_heads, "key")
    return OnnxLinearAttention.body(query, key, value, past_state, decay, beta, kv_num_heads=kv_num_heads,
                                    q_num_heads=query_heads, scale=scale, update_rule=update_rule)


def _shared_by(x: np.ndarray, heads: int, by: int, name: str) -> np.ndarray:
    """[batch, time, heads * size] with each head as often as `by` heads share it."""
    if heads < 1 or by % heads or x.shape[2] % heads:
        raise ValueError(f"{by} heads of values share {name} of shape {x.shape}, which is no multiple of"
                         f" {heads} heads")
    return np.repeat(x.reshape(*x.shape[:2], heads, -1), by // heads, 2).reshape(*x.shape[:2], -1)


@LinearAttention.infer_with
def _linear_attention_type(query: Value, key: Value, value: Value, past_state: Value | None = None,
                           *_: Value | None,
                           kv_num_heads: int, q_num_heads: int, **__: Any) -> list[Type]:
    width = value.shape[2] if value.shape is not None and len(value.shape) == 3 else None
    inner = width // max(kv_num_heads, 1) if isinstance(width, int) else None
    known = query.shape is not None and len(query.shape) == 3
    deep = query.shape[2] // max(q_num_heads, 1) if known and isinstance(query.shape[2], int) else None
    shape = (*query.shape[:2], None if inner is None else inner * max(q_num_heads, kv_num_heads)
             ) if known else None
    return [TensorType(query.elem, shape), TensorType(query.elem if past_state is None else past_state.elem,
                                                      (query.shape[0] if known else None, kv_num_heads, deep,
                                                       inner))]
