"""Gates, branches and short convolutions of com.microsoft, as decoders with recurrent states have them.

Inputs of float16 and bfloat16 are computed in float32. Hyper-connections keep C branches of H features each,
"grouped" (..., C, H) or "flattened" (..., C * H).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...errors import Unfit
from ...ir import TensorType, Type, Value
from ..define import Op, define, elementwise
from ..functions import sum_of, summing_type
from ..nn.activation import Sigmoid, Softplus
from .fused import MS, like_first, standardized

HALF_FLOATS = ("float", "float16", "bfloat16")


def _floats(*names: str) -> dict[str, tuple[str, ...]]:
    return dict.fromkeys(names, HALF_FLOATS)


@elementwise(domain=MS, widen=False, types=_floats("x", "y", "gate"))
def GatedAdd(x, y, gate):
    """x + y * gate, where a gate serves a row; the product is rounded to the inputs' type"""
    gated = (y.astype(np.float32) * gate.astype(np.float32)).astype(y.dtype)
    return (x.astype(np.float32) + gated.astype(np.float32)).astype(x.dtype)


@elementwise(domain=MS, widen=False, types=_floats("x", "scale"))
def ScaledSiLU(x, scale=None, *, alpha: float = 1.0):
    """z * sigmoid(z) of z = scale * x, or alpha * x; z and its sigmoid are rounded to the input's type"""
    factor = np.float32(alpha) if scale is None else scale.astype(np.float32)
    z = (x.astype(np.float32) * factor).astype(x.dtype).astype(np.float32)
    return (z * Sigmoid(z).astype(x.dtype).astype(np.float32)).astype(x.dtype)


def _decay(a, bias, scale):
    """scale * log(1 + exp(a + bias))"""
    return scale * Softplus(a + bias)


DECAY = Op(_decay, widen=True, result="same")


@define(domain=MS, outputs=2, types={**_floats("a", "b"), "dt_bias": ("float",), "decay_scale": ("float",)})
def LinearAttentionGate(a, dt_bias, decay_scale, b=None):
    """decay_scale * log(1 + exp(a + dt_bias)) and sigmoid(b): the gates of LinearAttention, by head"""
    if dt_bias.shape != a.shape[-1:] or decay_scale.shape != a.shape[-1:] or (
            b is not None and b.shape != a.shape):
        raise ValueError(f"dt_bias {dt_bias.shape}, decay_scale {decay_scale.shape} and b do not fit a of"
                         f" shape {a.shape}")
    decay = _decay(a.astype(np.float32), dt_bias, decay_scale)
    beta = None if b is None else Sigmoid(b.astype(np.float32)).astype(a.dtype)
    return decay.astype(a.dtype), beta


@LinearAttentionGate.infer_with
def _gate_types(a: Value, *_: Value | None, **__: Any) -> list[Type]:
    return [TensorType(a.elem, a.shape)] * 2


@define(domain=MS, widen=True, result="same", types=_floats("x", "scale", "gate"))
def GatedRMSNorm(x, scale, gate, *, activation: str = "silu", epsilon: float = 1e-5):
    """Each C features of x over the root of their mean square, times scale [C] and gate * sigmoid(gate), or
    sigmoid(gate)"""
    if activation not in ("silu", "swish", "sigmoid"):
        raise ValueError(f"activation is {activation!r}, expected silu, swish or sigmoid")
    if gate.shape != x.shape or scale.ndim != 1 or not scale.size or not x.ndim or x.shape[-1] % scale.size:
        raise ValueError(f"scale {scale.shape} and gate {gate.shape} do not fit x of shape {x.shape}")
    grouped = x.reshape(*x.shape[:-1], -1, scale.size)
    y = (standardized(grouped, epsilon, False)[0] * scale).reshape(x.shape)
    opened = Sigmoid(gate)
    return y * (opened if activation == "sigmoid" else gate * opened)


GatedRMSNorm.infer_with(like_first)


def _grouped(x: np.ndarray, branches: int) -> np.ndarray:
    """Streams as (..., C, H)."""
    if branches < 0 or x.ndim < (1 if branches else 2) or (branches and x.shape[-1] % branches
                                                           and x.shape[-2:-1] != (branches,)):
        raise ValueError(f"streams of shape {x.shape} have no {branches or 'grouped'} branches")
    if not branches:
        return x
    return x.reshape(*x.shape[:-1], branches, x.shape[-1] // branches)


def _gate(gate: np.ndarray, streams: np.ndarray, name: str) -> np.ndarray:
    """A gate per branch or per feature, so that it broadcasts to the streams (..., C, H)."""
    lead, (branches, features) = streams.shape[:-2], streams.shape[-2:]
    for suffix in ((branches,), (branches, 1), (branches, features), (branches * features,)):
        if gate.shape == (*lead, *suffix):
            wide = features if math.prod(suffix) != branches else 1
            return gate.reshape(*lead, branches, wide)
    raise ValueError(f"{name} of shape {gate.shape} does not fit streams of shape {streams.shape}")


@define(domain=MS, widen=True, result="same", types=_floats("x", "scale"))
def BranchwiseRMSNorm(x, scale=None, *, epsilon: float = 1e-5, num_branches: int = 0):
    """Each branch over the root of its mean square, times scale (C * H), (C, H) or (H)"""
    streams = _grouped(x, num_branches)
    y = standardized(streams, epsilon, False)[0]
    if scale is not None:
        if scale.shape not in (streams.shape[-1:], streams.shape[-2:], (math.prod(streams.shape[-2:]),)):
            raise ValueError(f"a scale of shape {scale.shape} does not fit streams of shape {streams.shape}")
        y = y * scale.reshape(-1, streams.shape[-1])
    return y.reshape(x.shape)


BranchwiseRMSNorm.infer_with(like_first)


@define(domain=MS, widen=True, result="same", types=_floats("streams", "pre_mix"))
def HyperConnectionPreMix(streams, pre_mix, *, num_branches: int = 0, reduction_scale: float = 1.0):
    """The sum of all branches, each times its gate, times reduction_scale"""
    grouped = _grouped(streams, num_branches)
    total = sum_of(grouped * _gate(pre_mix, grouped, "pre_mix"), -2, False)
    return total * np.float32(reduction_scale)


@HyperConnectionPreMix.infer_with
def _premixed_type(streams: Value, *_: Value | None, num_branches: int, **__: Any) -> list[Type]:
    return [TensorType(streams.elem, _reduced(streams.shape, num_branches))]


def _reduced(shape: Any, branches: int) -> Any:
    """The shape of streams without their branches."""
    if shape is None or not branches:
        return None if shape is None or len(shape) < 2 else (*shape[:-2], shape[-1])
    last = shape[-1] // branches if shape and isinstance(shape[-1], int) else None
    return (*shape[:-1], last)


@define(domain=MS, widen=True, result="same",
        types=_floats("streams", "block_output", "post_mix", "stream_mix"))
def HyperConnectionPostMix(streams, block_output, post_mix, stream_mix=None, *, num_branches: int = 0):
    """Each branch, or a mix of all by stream_mix (..., from, to), plus block_output times its gate"""
    grouped = _grouped(streams, num_branches)
    lead, branches = grouped.shape[:-2], grouped.shape[-2]
    if block_output.shape != (*lead, grouped.shape[-1]):
        raise ValueError(f"block_output of shape {block_output.shape} does not fit streams of shape"
                         f" {grouped.shape}")
    added = _gate(post_mix, grouped, "post_mix") * block_output[..., None, :]
    if stream_mix is not None:
        if stream_mix.shape != (*lead, branches, branches):
            raise ValueError(f"stream_mix of shape {stream_mix.shape} does not fit streams of shape"
                             f" {grouped.shape}")
        grouped = np.matmul(stream_mix.swapaxes(-1, -2), grouped)
    return (grouped + added).reshape(streams.shape)


HyperConnectionPostMix.infer_with(like_first)


@define(domain=MS, outputs=2, types=_floats("key", "query", "value", "key_norm_scale", "query_norm_scale",
                                            "conv_norm_scale"))
def EngramGate(key, query, value, key_norm_scale, query_norm_scale, conv_norm_scale=None, *,
               epsilon: float = 1e-5):
    """value times a gate by the normalized product of key and query; and its branchwise normalization"""
    dtype = key.dtype
    k, q, v, k_scale, q_scale = (x.astype(np.float32)
                                 for x in (key, query, value, key_norm_scale, query_norm_scale))
    after = None if conv_norm_scale is None else conv_norm_scale.astype(np.float32)
    if k.ndim != 4 or q.shape != k.shape or v.shape != (*k.shape[:2], k.shape[3]) or any(
            s is not None and s.shape != k.shape[2:] for s in (k_scale, q_scale, after)):
        raise ValueError(f"query {q.shape}, value {v.shape} and the scales do not fit keys of shape"
                         f" {k.shape}")
    both = [standardized(x, epsilon, False)[0] * s for x, s in ((k, k_scale), (q, q_scale))]
    dot = sum_of(both[0] * both[1], -1) / np.float32(math.sqrt(k.shape[3] or 1))
    gate = Sigmoid(np.sign(dot) * np.sqrt(np.maximum(np.abs(dot), np.float32(1e-6))))
    y = gate * v[:, :, None]
    normed = None if after is None else (standardized(y, epsilon, False)[0] * after).astype(dtype)
    return y.astype(dtype), normed


@EngramGate.infer_with
def _engram_types(key: Value, *_: Value | None, **__: Any) -> list[Type]:
    return [TensorType(key.elem, key.shape)] * 2


@define(domain=MS, outputs=2, types=_floats("input", "weight", "bias", "past_state"))
def CausalConvWithState(input, weight, bias=None, past_state=None, *, activation: str = "none",
                        channels_last: int = 0, dilation: int = 1, input_channel_offset: int = 0,
                        input_channels: int = 0, ndim: int = 1, state_channels_last: int = -1,
                        state_length: int = 0, state_update_capacity: int = 0, state_window: int = 0):
    """A convolution of each channel over what came before, whose last inputs are the state for the next
    call"""
    if ndim != 1 or state_window or dilation < 1 or activation not in ("none", "silu", "swish"):
        raise ValueError("CausalConvWithState takes one dimension, no state_window, a dilation from 1 on and"
                         f" the activations none, silu and swish; found {ndim}, {state_window}, {dilation}"
                         f" and {activation!r}")
    if input_channel_offset or input_channels or state_length or state_update_capacity or (
            state_channels_last not in (-1, channels_last)):
        raise ValueError("CausalConvWithState convolves every channel of its input, and its state is laid as"
                         " its input and just long enough: input_channel_offset, input_channels, state_length"
                         " and state_update_capacity are 0, and state_channels_last is -1")
    along = 1 if channels_last else 2
    rank = input.ndim
    if rank < 3 or (not channels_last and rank != 3) or weight.ndim != 3 or weight.shape[1] != 1 or (
            weight.shape[0] != input.size // max(input.shape[0] * input.shape[along], 1) and input.size):
        raise Unfit(f"a weight of shape {weight.shape} does not fit an input of shape {input.shape}")
    taps, held = weight.shape[2], (weight.shape[2] - 1) * dilation
    shape = (*input.shape[:along], held, *input.shape[along + 1:])
    if past_state is not None and past_state.shape != shape:
        raise Unfit(f"past_state has shape {past_state.shape}, expected {shape}")
    if bias is not None and bias.shape != weight.shape[:1]:
        raise Unfit(f"the bias has shape {bias.shape}, expected {weight.shape[:1]}")
    before = np.zeros(shape, input.dtype) if past_state is None else past_state.astype(input.dtype)
    whole = np.concatenate((before, input), along)
    length = input.shape[along]
    by_channel = input.shape[2:] if channels_last else (-1, 1)
    y = np.zeros(input.shape, summing_type(np.dtype(np.float32), taps))
    for j in range(taps):
        part = whole[(slice(None),) * along + (slice(j * dilation, j * dilation + length),)]
        y += part.astype(np.float32) * weight[:, 0, j].astype(np.float32).reshape(by_channel)
    y = y.astype(np.float32, copy=False)
    if bias is not None:
        y += bias.astype(np.float32).reshape(by_channel)
    if activation != "none":
        y = y * Sigmoid(y)
    state = whole[(slice(None),) * along + (slice(length, length + held),)]
    return y.astype(input.dtype), state


@CausalConvWithState.infer_with
def _causal_types(input: Value, weight: Value, *_: Value | None, channels_last: int, dilation: int,
                  **__: Any) -> list[Type]:
    shape, taps = input.shape, None if weight.shape is None else weight.shape[-1]
    held = (taps - 1) * dilation if isinstance(taps, int) else None
    along = 1 if channels_last else 2
    state = None if shape is None else (*shape[:along], held, *shape[along + 1:])
    return [TensorType(input.elem, shape), TensorType(input.elem, state)]
