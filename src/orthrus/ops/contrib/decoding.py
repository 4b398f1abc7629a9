"""Attention of decoders in com.microsoft: one token over a cache that beams share, and blocks of keys that
each block of queries sees. Caches hold [batch, heads, capacity, head size]; new rows go behind those held."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...errors import Unfit
from ...ir import TensorType, Type, Value
from ..define import FLOATS, define
from ..functions import working_type
from ..nn.attention import merge_heads
from .attention import _FILTER, _added, _mask_bias, _separate, attended, cached, up_to
from .fused import MS
from .grouped_query import _grouped_parts, _turned

_LENGTHS = ("int32",)


@define(domain=MS, outputs=4, types={**dict.fromkeys(("query", "key", "value", "attention_bias", "past_key",
                                                      "past_value", "bias"), FLOATS),
                                     **dict.fromkeys(("mask_index", "past_sequence_length", "beam_width",
                                                      "cache_indirection"), _LENGTHS)})
def DecoderMaskedMultiHeadAttention(query, key=None, value=None, mask_index=None, attention_bias=None,
                                    past_key=None, past_value=None, past_sequence_length=None,
                                    beam_width=None, cache_indirection=None, bias=None, *,
                                    mask_filter_value: float | None = None, num_heads: int,
                                    output_qk: int = 0, past_present_share_buffer: int = 0,
                                    scale: float | None = None):
    """Attention of one token over the keys and values of another sequence, [batch, heads, length, size], or
    over its own so far; these, and the scores with output_qk"""
    dtype, wide = query.dtype, working_type(query.dtype)
    if query.ndim != 3 or query.shape[1] != 1:
        raise ValueError("DecoderMaskedMultiHeadAttention takes one token, found queries of shape"
                         f" {query.shape}")
    if key is None:
        if query.shape[2] % 3:
            raise Unfit(f"packed queries of shape {query.shape} do not split in three")
        query, first, second = np.split(query, 3, 2)
    else:
        first, second = key, value
    q, k, v = _separate(query.astype(wide), first.astype(wide),
                        None if second is None else second.astype(wide),
                        None if bias is None else bias.astype(wide), num_heads)
    mixed: tuple[np.ndarray, ...] = (k, v)
    present: tuple[np.ndarray | None, ...] = (None, None)
    if key is None or key.ndim == 3:
        mixed, present = _grown((k, v), (past_key, past_value), past_sequence_length,
                                past_present_share_buffer, beam_width, cache_indirection)
    (keys, values), batch, total = mixed, len(q), mixed[0].shape[2]
    mask = _mask_bias(mask_index, batch, 1, total, mask_filter_value or _FILTER, wide)
    added = _added(mask, None if attention_bias is None else attention_bias.astype(wide))
    y, scores, _ = attended(q, keys, values, scale, added)
    grown = [None if p is None else p.astype(dtype) for p in present]
    return merge_heads(y).astype(dtype), *grown, scores.astype(dtype) if output_qk else None


def _grown(new: tuple[np.ndarray, ...], past: tuple[np.ndarray | None, ...], length: np.ndarray | None,
           shared: int, beams: np.ndarray | None, chosen: np.ndarray | None
           ) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]]:
    """Keys and values so far as each beam sees them, and the caches with the `new` rows."""
    if past[0] is None or past[1] is None:
        return new, new
    if not shared:
        whole = tuple(x if old is None else np.concatenate((old.astype(x.dtype), x), 2)
                      for old, x in zip(past, new, strict=True))
        return whole, whole
    capacity, batch = past[0].shape[2], len(new[0])
    held = int(length.reshape(-1)[0]) if length is not None and length.size == 1 else -1
    if not 0 <= held < capacity:
        raise Unfit(f"past_sequence_length {None if length is None else length.tolist()} leaves no room"
                    f" for a token in a cache of {capacity}")
    before = np.full(batch, held)
    caches = tuple(cached(old, x, before, capacity) for old, x in zip(past, new, strict=True))
    seen = tuple(c[:, :, :held + 1] for c in caches)
    width = 1 if beams is None else int(beams.reshape(-1)[0])
    if chosen is None or width <= 1:
        return seen, caches
    named = chosen[:, :, :held]
    if batch % width or chosen.shape != (batch // width, width, capacity) or (
            named.size and not 0 <= named.min() <= named.max() < width):
        raise ValueError(f"cache_indirection of shape {chosen.shape} does not name beams below {width} for a"
                         f" batch of {batch}")
    source = np.arange(batch)[:, None].repeat(held + 1, 1)
    source[:, :held] = named.reshape(batch, held) + np.arange(batch)[:, None] // width * width
    tokens = np.arange(held + 1)
    return tuple(s[source, :, tokens].transpose(0, 2, 1, 3) for s in seen), caches


@DecoderMaskedMultiHeadAttention.infer_with
def _one_token_types(query: Value, key: Value | None = None, value: Value | None = None,
                     mask_index: Value | None = None, attention_bias: Value | None = None,
                     past_key: Value | None = None, *_: Value | None, num_heads: int,
                     past_present_share_buffer: int, **__: Any) -> list[Type]:
    flat = query.shape if query.shape is not None and len(query.shape) == 3 else (None, None, None)
    width = flat[2]
    if key is None:
        width = width // 3 if isinstance(width, int) else None
    elif value is not None and value.shape is not None:
        last = value.shape[-1]
        width = last if len(value.shape) == 3 else last * num_heads if isinstance(last, int) else None
    cache = past_key.shape if past_present_share_buffer and past_key is not None else (None,) * 4
    grown = TensorType(query.elem, cache)
    return [TensorType(query.elem, (*flat[:2], width)), grown, grown,
            TensorType(query.elem, (flat[0], num_heads, 1, None))]


def block_mask(rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Which blocks of keys a block of queries sees, [layouts, blocks, blocks], of the form CSR has it in:
    where each row begins [layouts, blocks + 1], and columns [layouts, most]."""
    if rows.ndim != 2 or columns.ndim != 2 or len(rows) != len(columns) or rows.shape[1] < 1:
        raise ValueError(f"block_row_indices {rows.shape} and block_col_indices {columns.shape} are no lists"
                         " of layouts")
    layouts, blocks = len(rows), rows.shape[1] - 1
    seen = np.zeros((layouts, blocks, blocks), bool)
    for i in range(layouts):
        ends = rows[i].astype(np.int64)
        if ends[0] or (np.diff(ends) < 0).any() or ends[-1] > columns.shape[1]:
            raise ValueError(f"block_row_indices {ends.tolist()} do not rise from 0 to at most"
                             f" {columns.shape[1]}")
        named = columns[i, :ends[-1]]
        if named.size and not 0 <= named.min() <= named.max() < blocks:
            raise ValueError(f"block_col_indices name blocks from {named.min()} to {named.max()} of {blocks}")
        seen[i, np.repeat(np.arange(blocks), np.diff(ends)), named] = True
    return seen


@define(domain=MS, outputs=3, types={**dict.fromkeys(("query", "key", "value", "past_key", "past_value",
                                                      "cos_cache", "sin_cache"), FLOATS),
                                     **dict.fromkeys(("block_row_indices", "block_col_indices",
                                                      "total_sequence_length", "key_total_sequence_lengths"),
                                                     _LENGTHS)})
def SparseAttention(query, key=None, value=None, past_key=None, past_value=None, block_row_indices=None,
                    block_col_indices=None, total_sequence_length=None, key_total_sequence_lengths=None,
                    cos_cache=None, sin_cache=None, *,
                    do_rotary: int = 0, kv_num_heads: int, num_heads: int, rotary_interleaved: int = 0,
                    scale: float | None = None, sparse_block_size: int):
    """Causal attention over a cache, of which a block of queries sees some blocks of keys; layouts of blocks
    are the heads' in turn"""
    needed = (past_key, past_value, block_row_indices, block_col_indices, total_sequence_length,
              key_total_sequence_lengths)
    if any(x is None for x in needed):
        raise ValueError("SparseAttention needs its caches, the lists of blocks and both lengths")
    dtype, wide = query.dtype, working_type(query.dtype)
    given = [None if x is None else x.astype(wide) for x in (key, value)]
    q, k, v = _grouped_parts(query.astype(wide), given[0], given[1], num_heads, kv_num_heads)
    batch, _, length, _ = q.shape
    total, ends = int(total_sequence_length.reshape(-1)[0]), key_total_sequence_lengths.reshape(-1)
    blocks = block_mask(block_row_indices, block_col_indices)
    capacity = past_key.shape[2]
    before = np.zeros(batch, np.int64) if total == length else ends.astype(np.int64) - length
    if ends.shape != (batch,) or not length <= total <= capacity or (before < 0).any() or (
            before + length > total).any() or sparse_block_size < 1 or num_heads % max(len(blocks), 1) or (
            total > blocks.shape[1] * sparse_block_size):
        raise Unfit(f"key_total_sequence_lengths {ends.tolist()}, total_sequence_length {total} and"
                    f" {len(blocks)} layouts of {blocks.shape[1]} blocks do not fit {length} new tokens,"
                    f" a cache of {capacity} and {num_heads} heads")
    if do_rotary:
        if cos_cache is None or sin_cache is None:
            raise ValueError("SparseAttention with do_rotary needs cos_cache and sin_cache")
        q, k = _turned(q, k, cos_cache.astype(wide), sin_cache.astype(wide), None, before,
                       rotary_interleaved)
    caches = [cached(past, new, before, capacity) for past, new in ((past_key, k), (past_value, v))]
    keys, values = (up_to(c[:, :, :total], before + length) for c in caches)
    at, tokens = before[:, None] + np.arange(length), np.arange(total)
    seen = blocks[:, at // sparse_block_size][..., tokens // sparse_block_size] & (tokens <= at[..., None])
    bias = np.where(np.tile(seen, (num_heads // len(blocks), 1, 1, 1)), wide.type(0), wide.type(-np.inf))
    y, _, _ = attended(q, keys, values, scale, bias.swapaxes(0, 1))
    return merge_heads(y).astype(dtype), caches[0].astype(dtype), caches[1].astype(dtype)


@SparseAttention.infer_with
def _sparse_types(query: Value, key: Value | None = None, value: Value | None = None,
                  past_key: Value | None = None, past_value: Value | None = None, *_: Value | None,
                  kv_num_heads: int, num_heads: int, **__: Any) -> list[Type]:
    shape = query.shape
    if shape is not None and len(shape) == 3 and key is None and isinstance(shape[2], int):
        shape = (*shape[:2], shape[2] // max(num_heads + 2 * kv_num_heads, 1) * num_heads)
    caches = [TensorType(query.elem, None if v is None else v.shape) for v in (past_key, past_value)]
    return [TensorType(query.elem, shape), *caches]
