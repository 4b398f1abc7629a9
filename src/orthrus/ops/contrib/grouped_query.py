"""GroupQueryAttention of com.microsoft: queries, keys and values and a cache in, mixed values and the cache
with the new keys and values out.

Inside, tensors are [batch, heads, sequence, head size] in float32 (float64 for doubles).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...errors import Unfit
from ...limits import bounded
from ..define import FLOATS, define
from ..functions import mean_of, working_type
from ..nn.attention import merge_heads, rotate, rows_at, split_heads
from .attention import attended, cached, positions_of, up_to
from .fused import MS


def _root_mean_square(x: np.ndarray, weight: np.ndarray, epsilon: float) -> np.ndarray:
    return x / np.sqrt(mean_of(x * x, (-1,)) + x.dtype.type(epsilon)) * weight.astype(x.dtype)


def _grouped_parts(query: np.ndarray, key: np.ndarray | None, value: np.ndarray | None, heads: int,
                   shared: int
                   ) -> list[np.ndarray]:
    if query.ndim != 3 or min(heads, shared) < 1 or heads % shared:
        raise Unfit(f"queries of shape {query.shape} do not split into {heads} heads, {shared} of them"
                    " shared")
    if key is not None and value is not None:
        return [split_heads(query, heads, "query"), split_heads(key, shared, "key"),
                split_heads(value, shared, "value")]
    size = query.shape[2] // (heads + 2 * shared)
    if size * (heads + 2 * shared) != query.shape[2]:
        raise Unfit(f"packed queries of width {query.shape[2]} do not split into {heads} + 2 * {shared}"
                    " heads")
    q, k, v = np.split(query, [heads * size, (heads + shared) * size], 2)
    return [split_heads(q, heads, "query"), split_heads(k, shared, "key"), split_heads(v, shared, "value")]


@define(domain=MS, outputs=4, types={"query": FLOATS, "key": FLOATS, "value": FLOATS, "seqlens_k": ("int32",),
                                     "total_sequence_length": ("int32",), "query_seqlens": ("int32",)})
def GroupQueryAttention(query, key=None, value=None, past_key=None, past_value=None, seqlens_k=None,
                        total_sequence_length=None, cos_cache=None, sin_cache=None, position_ids=None,
                        attention_bias=None, head_sink=None, k_scale=None, v_scale=None, q_norm_weight=None,
                        k_norm_weight=None, query_seqlens=None, *, causal: int = 1, do_rotary: int = 0,
                        k_norm_epsilon: float | None = None, k_quant_type: str = "NONE",
                        kv_cache_bit_width: int = 0, kv_num_heads: int, local_window_size: int = -1,
                        num_heads: int, q_norm_epsilon: float | None = None,
                        qk_norm_epsilon: float = 1e-6, qk_output: int = 0, rotary_interleaved: int = 0,
                        scale: float | None = None, sliding_window_cache: int = 0, smooth_softmax: int = 0,
                        softcap: float = 0.0, v_quant_type: str = "NONE"):
    """Causal attention where groups of query heads share keys, over a cache that takes up the new keys and
    values; of `query_seqlens` each batch entry's first tokens are new and the rest is padding"""
    if query_seqlens is not None:
        here = locals()
        return _padded([here[name] for name in GroupQueryAttention.inputs[:-1]], query_seqlens,
                       {name: here[name] for name in GroupQueryAttention.attributes})
    if seqlens_k is None or total_sequence_length is None:
        raise ValueError("GroupQueryAttention needs seqlens_k and total_sequence_length")
    if sliding_window_cache and (local_window_size <= 0 or not causal):
        raise ValueError("GroupQueryAttention over a sliding window needs causal=1 and a local_window_size"
                         f" above 0, found {local_window_size}")
    if (k_quant_type == "NONE") != (v_quant_type == "NONE"):
        raise ValueError(f"k_quant_type {k_quant_type!r} and v_quant_type {v_quant_type!r}: one cache is"
                         " quantized and the other not")
    dtype, wide = query.dtype, working_type(query.dtype)
    given = [None if x is None else x.astype(wide) for x in (key, value)]
    q, k, v = _grouped_parts(query.astype(wide), given[0], given[1], num_heads, kv_num_heads)
    batch, _, length, size = q.shape
    lengths = seqlens_k.reshape(-1).astype(np.int64) + 1
    total = int(total_sequence_length.reshape(-1)[0])
    held = 0 if past_key is None else past_key.shape[2]
    first = length == total
    before = np.zeros(batch, np.int64) if first else lengths - length
    most = lengths.max(initial=0)
    grows = total <= held or sliding_window_cache or total == held + length
    if lengths.shape != (batch,) or total < length or (before < 0).any() or most > max(
            total, held) or not grows:
        raise Unfit(f"seqlens_k {seqlens_k.tolist()} and total_sequence_length {total} do not fit"
                    f" {length} new tokens"
                    f" and a cache of {held}")
    if q_norm_weight is not None and k_norm_weight is not None:
        q = _root_mean_square(q, q_norm_weight, q_norm_epsilon or qk_norm_epsilon)
        k = _root_mean_square(k, k_norm_weight, k_norm_epsilon or qk_norm_epsilon)
    if do_rotary:
        if cos_cache is None or sin_cache is None:
            raise ValueError("GroupQueryAttention with do_rotary needs cos_cache and sin_cache")
        q, k = _turned(q, k, cos_cache.astype(wide), sin_cache.astype(wide), position_ids, before,
                       rotary_interleaved)
    capacity = held if sliding_window_cache else max(total, held)
    if sliding_window_cache and (capacity < local_window_size or (lengths < length).any()
                                 or attention_bias is not None):
        raise ValueError(f"a cache of {capacity} rows that slides holds a window of {local_window_size},"
                         f" takes {length} new tokens of {lengths.tolist()} and has no attention_bias")
    bounded((batch, kv_num_heads, capacity, size), wide)
    codes = [None if kind == "NONE" else CacheCodes(kind, by, kv_cache_bit_width, new.shape)
             for kind, by, new in ((k_quant_type, k_scale, k), (v_quant_type, v_scale, v))]
    added = [new if code is None else code.of(new) for new, code in zip((k, v), codes, strict=True)]
    kept = [_window_rows(n, capacity, local_window_size) for n in before.tolist()] if sliding_window_cache \
        else before.tolist()
    total = max(kept, default=0) + length if sliding_window_cache else total
    grown = [cached(past, new, np.array(kept, np.int64), max(total, capacity))
             for past, new in zip((past_key, past_value), added, strict=True)]
    caches = grown if not sliding_window_cache else [
        _slid(c, kept, length, [_window_rows(n, capacity, local_window_size) for n in lengths.tolist()],
              capacity) for c in grown]
    rows_of = [up_to(c[:, :, :total], np.array(kept, np.int64) + length) for c in grown]
    keys, values = (c if code is None else code.numbers(c).astype(wide)
                    for c, code in zip(rows_of, codes, strict=True))
    at = before[:, None, None, None] + np.arange(length)[:, None]
    rows = (before - kept)[:, None, None, None] + np.arange(total)
    seen = rows <= at if causal else rows < lengths[:, None, None, None]
    if local_window_size >= 0:
        seen = seen & (rows > at - local_window_size)
    bias = np.where(seen, wide.type(0), wide.type(-np.inf))
    if attention_bias is not None:
        sizes = tuple(zip(attention_bias.shape, (batch, num_heads, length), strict=False))
        if attention_bias.ndim != 4 or attention_bias.shape[3] < total or any(
                size not in (1, whole) for size, whole in sizes):
            raise Unfit(f"attention_bias of shape {attention_bias.shape} does not fit scores of shape"
                        f" {(batch, num_heads, length, total)}")
        bias = bias + attention_bias[..., :total].astype(wide)
    sink = None
    if head_sink is not None:
        sink = head_sink.astype(wide).reshape(1, -1, 1, 1)
    elif smooth_softmax > 0:
        sink = np.zeros((1, 1, 1, 1), wide)
    y, scores, weights = attended(q, keys, values, scale, bias, softcap, sink)
    shown = weights if qk_output == 2 else np.where(seen, scores, 0)
    present = [c.astype(dtype) if code is None else c for c, code in zip(caches, codes, strict=True)]
    return merge_heads(y).astype(dtype), *present, shown.astype(dtype)


def _padded(inputs: list[Any], counts: np.ndarray, attributes: dict[str, Any]) -> tuple[np.ndarray, ...]:
    """GroupQueryAttention of each batch entry's first tokens; zeros in the places of padding."""
    query, key, value, past_key, past_value, ends, most, cos, sin, positions, bias = inputs[:11]
    if past_key is None or past_value is None or ends is None or most is None or not attributes["causal"]:
        raise ValueError("query_seqlens needs causal=1, a past_key and past_value, seqlens_k and"
                         " total_sequence_length")
    batch, length = query.shape[:2]
    slides, held = attributes["sliding_window_cache"], past_key.shape[2]
    totals, total = ends.reshape(-1).astype(np.int64) + 1, int(most.reshape(-1)[0])
    capacity = held if slides else max(total, held)
    news = counts.reshape(-1).astype(np.int64)
    before = totals - news if news.shape == totals.shape == (batch,) else np.full(1, -1)
    if not batch or (before < 0).any() or (news < 0).any() or news.max(initial=0) > length or (
            totals.max(initial=0) > total) or not slides and (
            before.max(initial=0) > held or before.max(initial=0) + length > capacity):
        raise Unfit(f"query_seqlens {counts.tolist()} and seqlens_k {ends.tolist()} do not fit {length} new"
                    f" tokens, a total_sequence_length of {total} and a cache of {held}")
    caches = [p if slides else np.pad(p, ((0, 0), (0, 0), (0, capacity - held), (0, 0)))
              for p in (past_key, past_value)]
    made: list[np.ndarray] | None = None
    for b in range(batch):
        entry, count = slice(b, b + 1), int(news[b])
        rows = [x if x is None else x[entry, :count] for x in (query, key, value)]
        angles = [cos, sin]
        if positions is not None and cos is not None and sin is not None:
            at = positions_of(positions, batch, length)[b, :count]
            angles = [np.concatenate((np.zeros((before[b], c.shape[1]), c.dtype), rows_at(c, at)))
                      for c in angles]
        shift = bias if bias is None else bias[entry if len(bias) > 1 else slice(None), :, :count]
        now = GroupQueryAttention.body(*rows, *(c[entry] for c in caches), ends.reshape(-1)[entry],
                                       np.array(totals[b], np.int32), *angles, None, shift, *inputs[11:],
                                       **attributes)
        if made is None:
            made = [np.zeros((batch, length, now[0].shape[2]), now[0].dtype),
                    *(np.zeros((batch, *n.shape[1:]), n.dtype) for n in now[1:3]),
                    np.zeros((batch, now[3].shape[1], length, total), now[3].dtype)]
        kept = capacity if slides else int(totals[b])
        made[0][b, :count] = now[0][0]
        for place in (1, 2):
            made[place][b, :, :kept] = now[place][0, :, :kept]
        made[3][b, :, :count, :now[3].shape[3]] = now[3][0, :, :, :total]
    assert made is not None
    return tuple(made)


def _window_rows(tokens: int, capacity: int, window: int) -> int:
    """How many rows of a cache that slides hold something after so many tokens: it fills up, then the last
    `window` move to its start, and so on."""
    return tokens if tokens <= capacity else window + (tokens - capacity - 1) % (capacity - window + 1)


def _slid(cache: np.ndarray, old: list[int], length: int, kept: list[int], capacity: int) -> np.ndarray:
    """The last `kept` rows of each batch entry's `old` and `length` new ones, at the start of a cache."""
    out = cache[:, :, :capacity].copy()
    for b, (before, most) in enumerate(zip(old, kept, strict=True)):
        out[b, :, :most] = cache[b, :, before + length - most:before + length]
    return out


class CacheCodes:
    """Rows of a cache [batch, heads, length, size] as codes: int8, or of four bits, from 8 below 0 on, two in
    a byte, the first in its lower half. `scale` is for all, or by head and feature."""

    def __init__(self, kind: str, scale: np.ndarray | None, bits: int, shape: tuple[int, ...]) -> None:
        heads, size = shape[1], shape[3]
        if kind not in ("PER_TENSOR", "PER_CHANNEL") or bits not in (4, 8) or scale is None or (
                scale.size != (1 if kind == "PER_TENSOR" else heads * size)) or (bits == 4 and size % 2):
            raise ValueError(f"a cache quantized {kind!r} to {bits} bits with scales of shape"
                             f" {None if scale is None else scale.shape} does not fit {heads} heads of {size}"
                             " features: expected PER_TENSOR or PER_CHANNEL, and 4 or 8 bits")
        self.bits = bits
        self.scale = scale.reshape(()) if kind == "PER_TENSOR" else scale.reshape(1, heads, 1, size)

    def of(self, x: np.ndarray) -> np.ndarray:
        """Codes of numbers, rounded half to even."""
        most = 1 << (self.bits - 1)
        codes = np.clip(np.rint(x / self.scale), -most, most - 1)
        if self.bits == 8:
            return codes.astype(np.int8)
        low = (codes + most).astype(np.uint8)
        return low[..., ::2] | low[..., 1::2] << 4

    def numbers(self, codes: np.ndarray) -> np.ndarray:
        """What codes stand for, float32."""
        if self.bits == 4:
            both = np.stack((codes & 15, codes >> 4), -1)
            codes = both.reshape(*codes.shape[:-1], -1).astype(np.int8) - 8
        return codes.astype(np.float32) * self.scale


def _turned(q: np.ndarray, k: np.ndarray, cos: np.ndarray, sin: np.ndarray, positions: np.ndarray | None,
            before: np.ndarray, interleaved: int) -> tuple[np.ndarray, ...]:
    """Queries and keys turned by their positions, which run on from `before`, or from the first of those
    given; with a past, given ones hold one by one."""
    if positions is not None and before.any():
        places = positions_of(positions.reshape(q.shape[0], -1), q.shape[0], q.shape[2])
    else:
        start = 0 if positions is None or not positions.size else int(positions.flat[0])
        places = before[:, None] + start + np.arange(q.shape[2])
    angles = rows_at(cos, places), rows_at(sin, places)
    if 2 * cos.shape[1] > q.shape[3]:
        raise ValueError(f"a rotary cache of width {cos.shape[1]} does not fit a head of {q.shape[3]}"
                         " features")
    return tuple(rotate(x.transpose(0, 2, 1, 3), *angles, interleaved).transpose(0, 2, 1, 3) for x in (q, k))
