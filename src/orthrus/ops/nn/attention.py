"""Attention over a whole sequence and rotary positions: queries, keys and values in, mixed values out.

Inside, tensors are [batch, heads, sequence, head size]; several query heads may share one key head. Each step
of the specification's function body that ends in a half-precision type is rounded to that type here too.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ...errors import InvalidArgument, Unfit
from ...ir import HALF, OWN, ElementType
from ...limits import bounded
from ..define import define
from ..functions import sum_of, working_type


def rounded(x: np.ndarray, dtype: Any) -> np.ndarray:
    """`x` with the precision of `dtype`, in that type's working type."""
    return x.astype(dtype).astype(np.float32) if dtype in HALF else x.astype(dtype, copy=False)


def split_heads(x: np.ndarray, heads: int | None, name: str) -> np.ndarray:
    """[batch, sequence, heads * size] as [batch, heads, sequence, size]; a tensor of rank 4 stays."""
    if x.ndim == 4:
        return x
    if x.ndim != 3 or not heads or heads < 0 or x.shape[2] % heads:
        raise Unfit(f"{name} of shape {x.shape} does not split into {heads} heads")
    return x.reshape(*x.shape[:2], heads, x.shape[2] // heads).transpose(0, 2, 1, 3)


def merge_heads(x: np.ndarray) -> np.ndarray:
    """[batch, heads, sequence, size] as [batch, sequence, heads * size]."""
    batch, heads, length, size = x.shape
    return x.transpose(0, 2, 1, 3).reshape(batch, length, heads * size)


def grouped_matmul(q: np.ndarray, k: np.ndarray) -> np.ndarray:
    """`q` [B, Hq, M, K] times `k` [B, Hk, K, N], where each head of `k` serves Hq / Hk consecutive heads
    of `q`."""
    batch, heads, rows, inner = q.shape
    shared = k.shape[1]
    bounded((batch, heads, rows, k.shape[3]), q.dtype, "attention scores")
    if shared == heads:
        return np.matmul(q, k)
    y = np.matmul(q.reshape(batch, shared, heads // shared * rows, inner), k)
    return y.reshape(batch, heads, rows, k.shape[3])


def check_heads(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> None:
    """Raise ValueError unless the shapes of 4-D queries, keys and values fit together."""
    if any(x.ndim != 4 for x in (q, k, v)):
        raise Unfit(f"attention takes tensors of one rank, found shapes {q.shape}, {k.shape} and"
                    f" {v.shape}")
    if k.shape[:3] != v.shape[:3] or q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3]:
        raise Unfit(f"queries {q.shape}, keys {k.shape} and values {v.shape} do not fit together")
    if not k.shape[1] or q.shape[1] % k.shape[1]:
        raise Unfit(f"{q.shape[1]} query heads are no multiple of {k.shape[1]} key heads")


def softmax_rows(x: np.ndarray, dtype: Any = None) -> np.ndarray:
    """Softmax along the last axis with every step in the precision of `dtype`, that of `x` if None; a row
    of -inf only gives NaN."""
    if not x.shape[-1]:
        return x
    dtype = x.dtype if dtype is None else dtype
    e = rounded(np.exp(rounded(x - x.max(-1, keepdims=True), dtype)), dtype)
    return rounded(e / rounded(sum_of(e, -1), dtype), dtype)


def softcapped(x: np.ndarray, cap: float) -> np.ndarray:
    """Scores squashed to within a positive cap; any other leaves them as they are."""
    return x.dtype.type(cap) * np.tanh(x / x.dtype.type(cap)) if cap > 0 else x


def _mask_bias(mask: np.ndarray, total: int, dtype: Any) -> np.ndarray:
    """A mask as what is added to the scores; keys past its end are excluded."""
    bias = np.where(mask, 0, -np.inf).astype(dtype) if mask.dtype == bool else mask.astype(dtype)
    if mask.ndim and mask.shape[-1] < total:
        pad = [(0, 0)] * (mask.ndim - 1) + [(0, total - mask.shape[-1])]
        bias = np.pad(bias, pad, constant_values=-np.inf)
    return bias


def _allowed(length: int, total: int, offset: np.ndarray, nonpad: np.ndarray | None, causal: int, left: int,
             right: int
             ) -> np.ndarray | None:
    """Which keys each query may see, [batch or 1, 1, length, total]; None where all may."""
    if nonpad is None and not causal and left < 0 and right < 0:
        return None
    keys = np.arange(total)
    position = offset.reshape(-1, 1, 1, 1) + np.arange(length)[:, None]
    seen = np.ones((offset.size, 1, length, total), bool)
    if causal:
        seen &= keys <= position
    if left >= 0:
        seen &= keys >= position - left
    if right >= 0:
        seen &= keys <= position + right
    if nonpad is not None:
        seen = seen & (keys < nonpad.reshape(-1, 1, 1, 1))
    return seen


def _by_head(q: np.ndarray, k: np.ndarray, v: np.ndarray, past_key: np.ndarray | None,
             past_value: np.ndarray | None, heads: int | None, shared: int | None) -> tuple[np.ndarray, ...]:
    """Queries by head, and keys and values by head with the earlier ones before them."""
    q = split_heads(q, heads, "Q")
    k, v = split_heads(k, shared, "K"), split_heads(v, shared, "V")
    if (past_key is None) != (past_value is None):
        raise ValueError("past_key and past_value have to be given together")
    if past_key is not None and past_value is not None:
        k, v = np.concatenate((past_key, k), 2), np.concatenate((past_value, v), 2)
    check_heads(q, k, v)
    return q, k, v


def _products(q: np.ndarray, k: np.ndarray, scale: float, dtype: Any) -> np.ndarray:
    """q @ k' * scale with each step in the precision of `dtype`."""
    wide = working_type(dtype)
    root = rounded(np.sqrt(wide.type(scale)), dtype)
    return rounded(grouped_matmul(rounded(q.astype(wide) * root, dtype),
                                  rounded(k.astype(wide) * root, dtype).swapaxes(2, 3)), dtype)


@define(since=23)
def Attention(q, k, v, attn_mask=None, past_key=None, past_value=None, nonpad_kv_seqlen=None, *,
              is_causal: int = 0, kv_num_heads: int | None = None, left_window_size: int = -1,
              q_num_heads: int | None = None, qk_matmul_output_mode: int = 0, right_window_size: int = -1,
              scale: float | None = None, softcap: float = 0.0, softmax_precision: int | None = None,
              n_outputs: int):
    """softmax(q @ k' * scale + bias) @ v, with a cache of earlier keys and values"""
    flat, dtype = q.ndim == 3, q.dtype
    q, k, v = _by_head(q, k, v, past_key, past_value, q_num_heads, kv_num_heads)
    batch, heads, length, size = q.shape
    total = k.shape[2]
    if not 0 <= qk_matmul_output_mode < 4:
        raise ValueError(f"qk_matmul_output_mode is {qk_matmul_output_mode}, expected 0 to 3")
    if nonpad_kv_seqlen is not None and nonpad_kv_seqlen.shape != (batch,):
        raise ValueError(f"nonpad_kv_seqlen has shape {nonpad_kv_seqlen.shape}, expected {(batch,)}")
    if past_key is not None or nonpad_kv_seqlen is None:
        offset = np.array([0 if past_key is None else past_key.shape[2]])
    else:
        offset = nonpad_kv_seqlen - length

    wide = working_type(dtype)
    raw = _products(q, k, 1 / math.sqrt(size or 1) if scale is None else scale, dtype)
    capped = rounded(softcapped(raw, softcap), dtype)
    bias = None if attn_mask is None else _mask_bias(attn_mask, total, wide)
    seen = _allowed(length, total, offset, nonpad_kv_seqlen, is_causal, left_window_size, right_window_size)
    if seen is not None:
        bias = np.where(seen, wide.type(0) if bias is None else bias, wide.type(-np.inf))
    scores = capped
    if bias is not None:
        if np.broadcast_shapes(bias.shape, capped.shape) != capped.shape:
            raise Unfit(f"a mask of shape {attn_mask.shape} does not broadcast to the scores"
                        f" {capped.shape}")
        scores = rounded(capped + bias, dtype)
    precision = dtype if softmax_precision is None else ElementType(softmax_precision).numpy
    weights = rounded(softmax_rows(rounded(scores, precision), precision), dtype)
    if bias is not None and total:
        weights = np.where(bias.max(-1, keepdims=True) == -np.inf, weights.dtype.type(0), weights)
    y = grouped_matmul(weights.astype(wide, copy=False), v.astype(wide)).astype(dtype)
    shown = (raw, capped, scores, weights)[qk_matmul_output_mode].astype(dtype) if n_outputs > 3 else None
    return (merge_heads(y) if flat else y, k, v, shown)[:max(n_outputs, 1)]


@define(domain=OWN, outputs=3, types={"keep": ("bool",)})
def SoftmaxAttention(q, k, v, bias=None, past_key=None, past_value=None, keep=None, *, guarded: int = 0,
                     kv_num_heads: int | None = None, q_num_heads: int | None = None, scale: float = 1.0,
                     softmax_precision: int | None = None, n_outputs: int):
    """softmax(scores + bias) @ v, the scores being q @ k' * scale and, where not `keep`, 0, or -inf without a
    bias: what exporters write in parts. Softmax is numbers over their sum: a row without a key, all -inf, is
    NaN here and 0 in Attention. `guarded`: weights that are NaN count as 0."""
    flat, dtype = q.ndim == 3, q.dtype
    q, k, v = _by_head(q, k, v, past_key, past_value, q_num_heads, kv_num_heads)
    wide = working_type(dtype)
    scores = _products(q, k, scale, dtype)
    for name, given in (("bias", bias), ("keep", keep)):
        if given is not None and np.broadcast_shapes(given.shape, scores.shape) != scores.shape:
            raise Unfit(f"{name} of shape {given.shape} does not broadcast to the scores {scores.shape}")
    if keep is not None:
        scores = np.where(keep, scores, wide.type(-np.inf if bias is None else 0))
    if bias is not None:
        scores = rounded(scores + bias.astype(wide), dtype)
    precision = dtype if softmax_precision is None else ElementType(softmax_precision).numpy
    weights = rounded(softmax_rows(rounded(scores, precision), precision), dtype)
    if guarded:
        weights = np.where(np.isnan(weights), weights.dtype.type(0), weights)
    y = grouped_matmul(weights.astype(wide, copy=False), v.astype(wide)).astype(dtype)
    return (merge_heads(y) if flat else y, k, v)[:max(n_outputs, 1)]


@define(domain="ai.onnx.preview")
def FlexAttention(q, k, v, *, prob_mod: Callable[..., list[Any]] | None = None, scale: float | None = None,
                  score_mod: Callable[..., list[Any]] | None = None, softmax_precision: int | None = None):
    """softmax(q @ k' * scale) @ v, with the scores and the probabilities passed through bodies of the
    model"""
    check_heads(q, k, v)
    inner = working_type(q.dtype) if softmax_precision is None else ElementType(softmax_precision).numpy
    wide = working_type(q.dtype)
    factor = 1 / math.sqrt(q.shape[3] or 1) if scale is None else scale
    scores = (grouped_matmul(q.astype(wide), k.astype(wide).swapaxes(2, 3)) * wide.type(factor)).astype(inner)
    scores = _modified(score_mod, scores, "score_mod")
    weights = softmax_rows(scores.astype(working_type(inner)), inner).astype(inner)
    weights = _modified(prob_mod, weights, "prob_mod")
    return grouped_matmul(weights.astype(wide), v.astype(wide)).astype(q.dtype)


def _modified(body: Callable[..., list[Any]] | None, x: np.ndarray, name: str) -> np.ndarray:
    if body is None:
        return x
    y = body(x)[0]
    if y.shape != x.shape or y.dtype != x.dtype:
        raise ValueError(f"{name} made {y.dtype}{list(y.shape)} of {x.dtype}{list(x.shape)}; it has to keep"
                         " both")
    return y


def rotate(x: np.ndarray, cos: np.ndarray, sin: np.ndarray, interleaved: int) -> np.ndarray:
    """`x` [batch, sequence, heads, size] with the pairs in its first 2 * cos.shape[-1] features turned.

    `cos` and `sin` are [batch, sequence, half]. A pair is two neighbours if `interleaved`, else it stands
    half apart.
    """
    half = cos.shape[-1]
    cos, sin = cos[:, :, None], sin[:, :, None]
    if interleaved:
        first, second = x[..., 0:2 * half:2], x[..., 1:2 * half:2]
    else:
        first, second = x[..., :half], x[..., half:2 * half]
    y = x.copy()
    real, imaginary = cos * first - sin * second, sin * first + cos * second
    if interleaved:
        y[..., 0:2 * half:2], y[..., 1:2 * half:2] = real, imaginary
    else:
        y[..., :half], y[..., half:2 * half] = real, imaginary
    return y


def rows_at(cache: np.ndarray, positions: np.ndarray) -> np.ndarray:
    """`cache[positions]`. Raises InvalidArgument for a position the cache does not hold."""
    if positions.size and (positions.min() < 0 or positions.max() >= len(cache)):
        raise InvalidArgument("position_ids are out of the range of the rotary cache",
                              found=f"{positions.min()} to {positions.max()}",
                              expected=f"0 to {len(cache) - 1}")
    return cache[positions]


@define(widen=True, result="same", since=23)
def RotaryEmbedding(x, cos_cache, sin_cache, position_ids=None, *, interleaved: int = 0,
                    num_heads: int | None = None,
                    rotary_embedding_dim: int = 0):
    """Pairs of features turned by angles that grow with the position"""
    by_token = x.transpose(0, 2, 1, 3) if x.ndim == 4 else split_heads(x, num_heads,
                                                                       "X").transpose(0, 2, 1, 3)
    dim = rotary_embedding_dim or by_token.shape[3]
    if position_ids is not None:
        cos_cache, sin_cache = rows_at(cos_cache, position_ids), rows_at(sin_cache, position_ids)
    expected = (*by_token.shape[:2], dim // 2)
    if dim % 2 or dim > by_token.shape[3] or cos_cache.shape != expected or sin_cache.shape != expected:
        raise Unfit(f"rotary caches of shapes {cos_cache.shape} and {sin_cache.shape} do not turn {dim}"
                    " of"
                    f" {by_token.shape[3]} features, expected {expected}")
    y = rotate(by_token, cos_cache, sin_cache, interleaved)
    return y.transpose(0, 2, 1, 3) if x.ndim == 4 else y.reshape(x.shape)
