"""Recurrent layers of com.microsoft over packed tokens: requests of different lengths behind each other, and
what each leaves for its next call.

Tokens are [total, ...]; `cu_seqlens` [requests + 1] says where each request begins. A *capture* is what the
first tokens of a request add to its state, for a program that takes back some of them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...errors import Unfit
from ...ir import TensorType, Type, Value
from ...ir.types import ElementType
from ...limits import bounded
from ..define import define
from ..functions import sum_of
from ..nn.activation import Sigmoid, Softplus
from ..nn.linear_attention import linear_attention
from .fused import MS
from .gates import HALF_FLOATS, CausalConvWithState

MOST_CAPTURED = 8
_GATES = ("none", "softplus", "qwen", "sigmoid", "kda")


def _bounds(given: np.ndarray, total: int) -> list[tuple[int, int]]:
    """Where each request begins and ends."""
    if given.ndim != 1 or given.size < 2 or given[0] or given[-1] != total or (np.diff(given) < 0).any():
        raise Unfit(f"the beginnings of requests {given.tolist()} do not rise from 0 to {total} tokens")
    return list(zip(given[:-1].tolist(), given[1:].tolist(), strict=True))


def _captures(given: np.ndarray | None, capacity: int, lengths: list[int]) -> list[int]:
    """How many tokens of each request are captured."""
    if not 0 <= capacity <= MOST_CAPTURED:
        raise ValueError(f"state_update_capacity is {capacity}, expected 0 to {MOST_CAPTURED}")
    if (given is None) != (capacity == 0):
        raise ValueError("capture_count is there exactly where state_update_capacity is above 0, found"
                         f" {capacity}")
    if given is None:
        return [0] * len(lengths)
    if given.shape != (len(lengths),):
        raise Unfit(f"capture_count has shape {given.shape}, expected {(len(lengths),)}")
    return [max(0, min(int(n), capacity, length)) for n, length in zip(given, lengths, strict=True)]


@define(domain=MS, outputs=3, types={
    **dict.fromkeys(("input", "weight", "bias", "initial_state", "kernel_delta", "previous_mask"),
                    HALF_FLOATS),
    **dict.fromkeys(("cumulative_sequence_length", "capture_count"), ("int32",))})
def VarlenCausalConvWithState(input, weight, cumulative_sequence_length, bias=None, initial_state=None,
                              capture_count=None, kernel_delta=None, previous_mask=None, *,
                              activation: str = "none", delta_offset: int = 0, dilation: int = 1,
                              group_size: int = 1, state_update_capacity: int = 0):
    """CausalConvWithState for each request of packed tokens [total, channels]; and the first inputs of each,
    [requests, state_update_capacity, channels]"""
    if kernel_delta is not None or previous_mask is not None:
        raise ValueError("VarlenCausalConvWithState takes no kernel_delta and no previous_mask: taps that"
                         " change from token to token are not supported")
    if input.ndim != 2 or initial_state is None:
        raise Unfit(f"an input of shape {input.shape}, expected two dimensions and an initial_state")
    spans = _bounds(cumulative_sequence_length, len(input))
    if initial_state.ndim != 3 or len(initial_state) != len(spans):
        raise Unfit(f"initial_state of shape {initial_state.shape} does not fit {len(spans)} requests")
    counts = _captures(capture_count, state_update_capacity, [end - start for start, end in spans])
    y, states = np.empty_like(input), np.empty_like(initial_state)
    shape = bounded((len(spans), state_update_capacity, input.shape[1]), input.dtype)
    update = np.zeros(shape, input.dtype)
    for i, ((start, end), count) in enumerate(zip(spans, counts, strict=True)):
        made, states[i:i + 1] = CausalConvWithState.body(
            input[start:end].T[None], weight, bias, initial_state[i:i + 1], activation=activation,
            dilation=dilation)
        y[start:end] = made[0].T
        update[i, :count] = input[start:start + count]
    return y, states, update


@VarlenCausalConvWithState.infer_with
def _varlen_types(input: Value, weight: Value, starts: Value, bias: Value | None = None,
                  initial_state: Value | None = None, *_: Value | None, state_update_capacity: int,
                  **__: Any) -> list[Type]:
    state = None if initial_state is None else initial_state.shape
    width = None if input.shape is None else input.shape[-1]
    requests = None if state is None else state[0]
    return [TensorType(input.elem, input.shape), TensorType(input.elem, state),
            TensorType(input.elem, (requests, state_update_capacity, width))]


def _heads_of(query: np.ndarray, key: np.ndarray | None, value: np.ndarray | None,
              state: np.ndarray | None) -> tuple[np.ndarray, ...]:
    """Queries, keys and values [total, heads, size], float32, from the forms GatedDeltaNet takes."""
    if state is not None and state.ndim != 4:
        raise Unfit(f"initial_state has shape {state.shape}, expected four dimensions")
    if (key is None) != (value is None):
        raise ValueError("key and value are given both, or neither where query has all three")
    if key is None or value is None:
        if state is None or query.ndim not in (2, 3):
            raise Unfit(f"packed queries of shape {query.shape} need an initial_state, which says how many"
                        " heads there are")
        heads, deep, size = state.shape[1:]
        rest = query.shape[-1] - heads * deep
        if rest <= 0 or not size or rest % (2 * size):
            raise Unfit(f"packed queries of width {query.shape[-1]} do not fit a state of shape"
                        f" {state.shape}")
        flat = query.reshape(-1, query.shape[-1])
        parts = np.split(flat, [rest // 2, rest], 1)
        found = [p.reshape(len(flat), -1, n) for p, n in zip(parts, (size, size, deep), strict=True)]
    else:
        if query.ndim not in (3, 4) or key.shape != query.shape or value.shape[:-2] != query.shape[:-2]:
            raise Unfit(f"query {query.shape}, key {key.shape} and value {value.shape} do not fit together")
        found = [x.reshape(-1, *x.shape[-2:]) for x in (query, key, value)]
    if not found[0].shape[1] or found[2].shape[1] % found[0].shape[1]:
        raise Unfit(f"{found[2].shape[1]} heads of values are no multiple of {found[0].shape[1]} of queries")
    return tuple(x.astype(np.float32) for x in found)


def _decays(decay: np.ndarray | None, a_log: np.ndarray | None, dt_bias: np.ndarray | None, kind: str,
            lower: float, shape: tuple[int, int, int]) -> np.ndarray | None:
    """The logarithms of the decay [total, heads, 1 or size]."""
    if kind not in _GATES:
        raise ValueError(f"gate_activation is {kind!r}, expected one of {', '.join(_GATES)}")
    if decay is None:
        return None
    total, heads, size = shape
    if decay.size not in (total * heads, total * heads * size):
        raise Unfit(f"decay of shape {decay.shape} does not fit {total} tokens and {heads} heads of {size}")
    raw = decay.astype(np.float32).reshape(total, heads, -1)
    if kind == "none":
        return raw
    if a_log is None or dt_bias is None or a_log.shape != (heads,) or dt_bias.size not in (
            heads, heads * raw.shape[2]):
        raise Unfit(f"gate_activation {kind!r} needs a_log of {heads} heads, and dt_bias by head or by head"
                    " and feature")
    rate = np.exp(a_log)[:, None]
    shifted = raw + dt_bias.reshape(heads, -1)
    if kind in ("softplus", "qwen"):
        return np.asarray(-rate * Softplus(shifted))
    return np.asarray(np.float32(lower) * Sigmoid(rate * shifted))


def _normalized(x: np.ndarray) -> np.ndarray:
    return x / np.sqrt(sum_of(x * x, -1) + np.float32(1e-12))


def _captured(k: np.ndarray, v: np.ndarray, gates: np.ndarray, rates: np.ndarray | None, state: np.ndarray,
              capacity: int, shared: int) -> np.ndarray:
    """What the tokens of `k` and `v` add to a state, in a row of `capacity` decays, keys and deltas."""
    now = state.astype(np.float64)
    count, heads = v.shape[:2]
    factors = np.exp(gates.astype(np.float64))
    deltas = np.zeros((capacity, *v.shape[1:]))
    for t in range(count):
        now = now * factors[t][..., None]
        told = v[t] if rates is None else rates[t][:, None] * (
            v[t] - np.matmul(k[t][:, None].astype(np.float64), now)[:, 0])
        now = now + k[t][..., None] * told[:, None]
        deltas[t] = told
    room = [np.zeros((capacity, *x.shape[1:])) for x in (gates, k[:, ::heads // shared])]
    room[0][:count], room[1][:count] = factors, k[:, ::heads // shared]
    return np.concatenate([x.ravel() for x in (*room, deltas)]).astype(np.float32)


@define(domain=MS, outputs=3, types={
    **dict.fromkeys(("query", "key", "value", "decay", "beta"), HALF_FLOATS),
    **dict.fromkeys(("cu_seqlens", "capture_count", "state_update_active"), ("int32",)),
    **dict.fromkeys(("initial_state", "a_log", "dt_bias"), ("float",))})
def GatedDeltaNet(query, key=None, value=None, cu_seqlens=None, decay=None, beta=None, initial_state=None,
                  a_log=None, dt_bias=None, capture_count=None, state_update_active=None, *,
                  beta_activation: str = "none", chunk_size: int = 64, gate_activation: str = "none",
                  gate_lower_bound: float = -5.0, qk_l2_norm: int = 0, scale: float = 0.0,
                  state_update_capacity: int = 0, update_rule: str = "gated_delta"):
    """LinearAttention over packed tokens, with its gates and the state [requests, heads, value size, key
    size]"""
    q, k, v = _heads_of(query, key, value, initial_state)
    total, shared, size = q.shape
    heads, deep = v.shape[1:]
    if cu_seqlens is None and initial_state is None:
        raise ValueError("GatedDeltaNet needs cu_seqlens or an initial_state, which say how many requests"
                         " there are")
    if cu_seqlens is None:
        count = len(initial_state)
        if not count or total % count:
            raise Unfit(f"{total} tokens do not divide into {count} requests of one length")
        cu_seqlens = np.arange(count + 1) * (total // count)
    spans = _bounds(cu_seqlens, total)
    expected = bounded((len(spans), heads, deep, size), np.dtype(np.float32))
    states = np.zeros(expected, np.float32) if initial_state is None else initial_state.copy()
    if states.shape != expected:
        raise Unfit(f"initial_state has shape {states.shape}, expected {expected}")
    if (decay is not None) != update_rule.startswith("gated") or (
            (beta is not None) != update_rule.endswith("delta")):
        raise ValueError(f"decay is for gated rules and beta for those of deltas, found update_rule"
                         f" {update_rule!r} with {'one' if decay is not None else 'no'} decay and"
                         f" {'one' if beta is not None else 'no'} beta")
    gates = _decays(decay, a_log, dt_bias, gate_activation, gate_lower_bound, (total, heads, size))
    if beta is not None and beta.size != total * heads:
        raise Unfit(f"beta of shape {beta.shape} does not fit {total} tokens and {heads} heads")
    rates = None if beta is None else beta.astype(np.float32).reshape(total, heads)
    if beta_activation not in ("none", "sigmoid"):
        raise ValueError(f"beta_activation is {beta_activation!r}, expected none or sigmoid")
    if rates is not None and beta_activation == "sigmoid":
        rates = Sigmoid(rates)
    if qk_l2_norm:
        q, k = _normalized(q), _normalized(k)
    counts = _captures(capture_count, state_update_capacity, [end - start for start, end in spans])
    if state_update_active is not None and not state_update_active.any():
        counts = [0] * len(spans)
    q, k = (np.repeat(x, heads // shared, 1) for x in (q, k))
    told = np.zeros((total, heads, 1), np.float32) if gates is None else gates
    width = heads * told.shape[2] + shared * size + heads * deep
    update = np.zeros(bounded((len(spans), state_update_capacity * width), np.dtype(np.float32)), np.float32)
    y = np.empty((total, heads, deep), np.float32)
    for i, ((start, end), held) in enumerate(zip(spans, counts, strict=True)):
        if start == end:
            continue
        rows = slice(start, end)
        state = states[i].swapaxes(1, 2)
        if held:
            first = slice(start, start + held)
            update[i] = _captured(k[first], v[first], told[first], None if rates is None else rates[first],
                                  state, state_update_capacity, shared)
        one = [x[rows].reshape(1, end - start, -1) for x in (q, k, v)]
        by = [None if x is None else x[rows].reshape(1, end - start, -1) for x in (gates, rates)]
        made, after = linear_attention(one[0], one[1], one[2], state[None], by[0], by[1], (heads, heads),
                                       scale, update_rule)
        y[rows], states[i] = made.reshape(-1, heads, deep), after[0].swapaxes(1, 2)
    lead = query.shape[:1] if key is None and query.ndim == 2 else query.shape[:-1 if key is None else -2]
    return y.reshape(*lead, heads, deep).astype(query.dtype), states, update


@GatedDeltaNet.infer_with
def _gated_delta_types(query: Value, key: Value | None = None, value: Value | None = None,
                       cu_seqlens: Value | None = None, decay: Value | None = None,
                       beta: Value | None = None, initial_state: Value | None = None, *_: Value | None,
                       **__: Any) -> list[Type]:
    state = None if initial_state is None else initial_state.shape
    shape = None if value is None else value.shape
    if value is None and query.shape is not None and state is not None:
        shape = (*query.shape[:-1], state[1], state[2])
    return [TensorType(query.elem, shape), TensorType(ElementType.FLOAT, state),
            TensorType(ElementType.FLOAT, None)]
