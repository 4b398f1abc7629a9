"""Linear attention: packed queries, keys and values and a state in, outputs and the state after the last
token out.

The state [batch, heads, key size, value size] replaces the cache of softmax attention. Tokens are taken one
after the other, all batches and heads at once, and added up in float64.
"""

from __future__ import annotations

import math

import numpy as np

from ...errors import Unfit
from ..define import define

_RULES = ("linear", "gated", "delta", "gated_delta")


def _unpacked(x: np.ndarray, heads: int, name: str) -> np.ndarray:
    """[batch, time, heads * size] as [time, batch, heads, size]."""
    if x.ndim != 3 or heads < 1 or x.shape[2] % heads:
        raise Unfit(f"{name} of shape {x.shape} does not split into {heads} heads")
    return x.reshape(*x.shape[:2], heads, x.shape[2] // heads).transpose(1, 0, 2, 3)


def linear_attention(query: np.ndarray, key: np.ndarray, value: np.ndarray, state: np.ndarray | None,
                     decay: np.ndarray | None, beta: np.ndarray | None, heads: tuple[int, int], scale: float,
                     rule: str
                     ) -> tuple[np.ndarray, np.ndarray]:
    """The outputs [batch, time, query heads * value size] and the state after the last token, for float32
    inputs.

    `heads` are the numbers of query and of key heads. Raises ValueError where shapes or inputs do not fit the
    rule.
    """
    if rule not in _RULES:
        raise ValueError(f"update_rule is {rule!r}, expected one of {', '.join(_RULES)}")
    gated, delta = rule.startswith("gated"), rule.endswith("delta")
    if (gated and decay is None) or (delta and beta is None):
        raise ValueError(f"the update rule {rule!r} needs the input"
                         f" {'decay' if gated and decay is None else 'beta'}")
    outer, shared = heads
    if shared < 1 or outer % shared:
        raise ValueError(f"{outer} query heads are no multiple of {shared} key heads")
    q, k, v = (_unpacked(x, n, name) for x, n, name in ((query, outer, "query"), (key, shared, "key"),
                                                        (value, shared, "value")))
    time, batch, _, width = q.shape
    if k.shape != (time, batch, shared, width) or v.shape[:3] != k.shape[:3]:
        raise Unfit(f"query {query.shape}, key {key.shape} and value {value.shape} do not fit together")
    expected = (batch, shared, width, v.shape[3])
    now = np.zeros(expected) if state is None else state.astype(np.float64)
    if now.shape != expected:
        raise Unfit(f"past_state has shape {now.shape}, expected {expected}")
    gates = np.exp(_unpacked(decay, shared, "decay"))[..., None] if gated and decay is not None else None
    rates = _unpacked(beta, shared if beta.shape[-1] != 1 else 1,
                      "beta") if delta and beta is not None else None
    if (gates is not None and gates.shape[3] not in (1, width)) or (
            rates is not None and rates.shape[3] != 1):
        raise ValueError("decay or beta has a last dimension that fits neither a head nor its features")
    factor = np.float32(scale or 1 / math.sqrt(width or 1))
    groups = q.reshape(time, batch, shared, outer // shared, width)
    y = np.empty((batch, time, shared, outer // shared, v.shape[3]), np.float32)
    for t in range(time):
        if gates is not None:
            now *= gates[t]
        asked, written = k[t].astype(np.float64), v[t]
        if rates is not None:
            written = rates[t] * (written - np.matmul(asked[:, :, None], now)[:, :, 0])
        now += asked[..., None] * written[:, :, None]
        y[:, t] = np.matmul(groups[t], now)
    return (y * factor).reshape(batch, time, -1), now.astype(np.float32)


@define(since=27)
def LinearAttention(query, key, value, past_state=None, decay=None, beta=None, *, kv_num_heads: int,
                    q_num_heads: int, scale: float = 0.0, update_rule: str = "gated_delta"):
    """o_t = scale * q_t' S_t, where the state S_t takes up k_t and v_t by the update rule"""
    q, k, v = (x.astype(np.float32) for x in (query, key, value))
    held, gate, rate = (None if x is None else x.astype(np.float32) for x in (past_state, decay, beta))
    y, state = linear_attention(q, k, v, held, gate, rate, (q_num_heads, kv_num_heads), scale, update_rule)
    return y.astype(query.dtype), state.astype(query.dtype if past_state is None else past_state.dtype)
