"""Operators of com.microsoft that diffusion networks are written in; pixels come before channels."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...ir import TensorType, Type, Value
from ..define import FLOATS, define
from ..functions import working_type
from ..nn.activation import Gelu as OnnxGelu
from ..nn.activation import Swish
from ..nn.norm import GroupNormalization
from .fused import MS, channels_first, channels_last, like_first, of_rank, rank_of

_EPSILON = GroupNormalization.defaults["epsilon"]


def _in_groups(x: np.ndarray, gamma: np.ndarray, beta: np.ndarray, groups: int, epsilon: float,
               activation: int, last: int) -> np.ndarray:
    if activation not in (0, 1):
        raise ValueError(f"the activation is {activation}, expected 0 (none) or 1 (swish)")
    y = GroupNormalization.body(channels_first(x) if last else x, gamma, beta, num_groups=groups,
                                epsilon=epsilon)
    y = Swish.body(y) if activation else y
    return channels_last(y) if last else y


@define(domain=MS, widen=True, result="same", types={"x": FLOATS, "gamma": FLOATS, "beta": FLOATS})
def GroupNorm(x, gamma, beta, *, activation: int, channels_last: int = 1, epsilon: float = _EPSILON,
              groups: int):
    """X [N, D..., C] (channels_last=0: [N, C, D...]) normalized in groups of channels, times gamma, plus
    beta; and swish of that where activation is 1"""
    return _in_groups(x, gamma, beta, groups, epsilon, activation, channels_last)


GroupNorm.infer_with(like_first)


@define(domain=MS, outputs=2,
        types=dict.fromkeys(("x", "gamma", "beta", "skip", "bias"), FLOATS))
def SkipGroupNorm(x, gamma, beta, skip, bias=None, *, activation: int, channels_last: int = 1,
                  epsilon: float = _EPSILON, groups: int):
    """GroupNorm of X + skip + bias, and that sum; skip is like X, or [N, 1..., C], or [N, C]"""
    if skip.ndim == 2:
        skip = np.expand_dims(skip, tuple(range(1, x.ndim - 1) if channels_last else range(2, x.ndim)))
    wide = working_type(x.dtype)
    total = x.astype(wide) + skip.astype(wide)
    if bias is not None:
        bias = bias.astype(wide)
        total = total + (bias if channels_last else bias.reshape(-1, *(1,) * (x.ndim - 2)))
    y = _in_groups(total, gamma, beta, groups, epsilon, activation, channels_last)
    return y.astype(x.dtype), total.astype(x.dtype)


@SkipGroupNorm.infer_with
def _skip_group_norm_type(x: Value, *_: Value | None, **__: Any) -> list[Type]:
    return like_first(x) * 2


@define(domain=MS, widen=True, result="same", types={"x": FLOATS, "bias": FLOATS})
def BiasSplitGelu(x, bias):
    """The first half of x + bias along the last axis, times the Gelu of the second"""
    left, right = np.split(x + bias, 2, -1)
    return left * OnnxGelu.body(right)


@BiasSplitGelu.infer_with
def _split_gelu_type(x: Value, bias: Value, **_: Any) -> list[Type]:
    if x.shape is None:
        return [of_rank(x.elem, rank_of(x))]
    half = x.shape[-1] // 2 if isinstance(x.shape[-1], int) else None
    return [TensorType(x.elem, (*x.shape[:-1], half))]
