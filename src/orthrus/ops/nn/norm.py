"""Normalizations: a tensor, its scale and shift in, the same shape with mean and variance taken out.

Where inputs may have different element types, each body widens its own: sums are never formed below float32.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...errors import Unfit
from ...ir import HALF, ElementType, TensorType, Type, Value
from ..define import FLOATS, normalized, normalized_axis, op
from ..functions import centred, mean_of, sum_of

_STASH = (ElementType.FLOAT, ElementType.FLOAT16, ElementType.DOUBLE, ElementType.BFLOAT16)


def _working(*arrays: Any) -> np.dtype[Any]:
    """The type to compute in: float64 if one of the arrays has it, else float32."""
    return np.dtype(np.float64 if any(a.dtype == np.float64 for a in arrays) else np.float32)


def _per_channel(value: np.ndarray, x: np.ndarray, name: str, dtype: np.dtype[Any]) -> np.ndarray:
    """A value per channel, shaped to broadcast over x [N, C, ...]; rank 1 counts as one channel."""
    channels = x.shape[1] if x.ndim > 1 else 1
    if value.size != channels:
        raise Unfit(f"{name} has shape {list(value.shape)}, expected [{channels}]")
    return value.astype(dtype, copy=False).reshape(channels, *(1,) * max(x.ndim - 2, 0))


def _standardized(x: np.ndarray, axes: tuple[int, ...], epsilon: float
                  ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(x - mean) / sqrt(variance + epsilon) over `axes`, the mean and the inverse deviation."""
    y, mean = centred(x, axes)
    inverse = 1 / np.sqrt(mean_of(y * y, axes) + x.dtype.type(epsilon))
    y *= inverse
    return y, mean, inverse


def _moments(x: np.ndarray, axes: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`x` less its mean over `axes`, the mean and the variance."""
    y, mean = centred(x, axes)
    return y, mean, mean_of(y * y, axes)


def _batch_form(y: np.ndarray, scale: np.ndarray, shift: np.ndarray, variance: np.ndarray, epsilon: float
                ) -> np.ndarray:
    """y * scale / sqrt(variance + epsilon) + shift in place, all of one type and broadcasting over `y`, from
    which the mean is taken."""
    y *= scale / np.sqrt(variance + y.dtype.type(epsilon))
    y += shift
    return y


@op(since=14)
def BatchNormalization(X, scale, B, input_mean, input_var, *, epsilon: float = 1e-5, momentum: float = 0.9,
                       training_mode: int = 0):
    """Per channel of X [N, C, D...]: by the given statistics or, in training mode, by X's own."""
    kind = _working(X, scale, B, input_mean, input_var)
    x = X.astype(kind, copy=False)
    gamma, beta, mean, variance = (
        _per_channel(v, X, name, kind)
        for v, name in ((scale, "scale"), (B, "B"), (input_mean, "input_mean"), (input_var, "input_var")))
    if not training_mode:
        return _batch_form(x - mean, gamma, beta, variance, epsilon).astype(X.dtype, copy=False)
    y, *moments = _moments(x, _all_but_channel(X))
    now_mean, now_variance = (m[0] if X.ndim > 1 else m for m in moments)
    y = _batch_form(y, gamma, beta, now_variance, epsilon)
    running = [(old * momentum + new * (1 - momentum)).reshape(given.shape).astype(given.dtype)
               for old, new, given in ((mean, now_mean, input_mean), (variance, now_variance, input_var))]
    return y.astype(X.dtype, copy=False), *running


def _all_but_channel(x: np.ndarray) -> tuple[int, ...]:
    return (0, *range(2, x.ndim))


@op(widen=True)
def BatchNormalization_1(X, scale, B, mean, var, *, epsilon: float = 1e-5, is_test: int = 0,
                         momentum: float = 0.9, spatial: int = 1, n_outputs: int = 1):
    """The form whose number of outputs says if it trains; without `spatial` each feature stands alone."""
    features = X.shape[1:] if not spatial else None

    def spread(value: np.ndarray, name: str) -> np.ndarray:
        if features is None or value.size != int(np.prod(features)):
            return _per_channel(value, X, name, X.dtype)
        return value.reshape(features)

    gamma, beta = spread(scale, "scale"), spread(B, "B")
    old_mean, old_variance = spread(mean, "mean"), spread(var, "var")
    if is_test or n_outputs == 1:
        return _batch_form(X - old_mean, gamma, beta, old_variance, epsilon)
    axes = _all_but_channel(X) if features is None else (0,)
    y, *moments = _moments(X, axes)
    new_mean, new_variance = (m[0] if X.ndim > 1 else m for m in moments)
    y = _batch_form(y, gamma, beta, new_variance, epsilon)
    keep, take = X.dtype.type(momentum), X.dtype.type(1 - momentum)
    running = [old * keep + new * take for old, new in ((old_mean, new_mean), (old_variance, new_variance))]
    return y, *(v.reshape(mean.shape) if v.size == mean.size else v
                for v in (*running, new_mean, new_variance))


@op(widen=True)
def InstanceNormalization(input, scale, B, *, epsilon: float = 1e-5):
    """Per instance and channel of input [N, C, D...]; scale and B [C]."""
    if input.ndim < 2:
        raise ValueError(f"input has shape {list(input.shape)}, expected a rank of at least 2")
    y, _, _ = _standardized(input, tuple(range(2, input.ndim)), epsilon)
    y *= _per_channel(scale, input, "scale", input.dtype)
    y += _per_channel(B, input, "B", input.dtype)
    return y


def _trailing(x: np.ndarray, axis: int) -> tuple[int, ...]:
    return tuple(range(normalized_axis(axis, x.ndim), x.ndim))


def _stash(stash_type: int) -> np.dtype[Any]:
    if stash_type not in _STASH:
        raise ValueError(f"stash_type is {stash_type}, expected one of {list(map(int, _STASH))}")
    return ElementType(stash_type).numpy


def _check_broadcast(value: np.ndarray, x: np.ndarray, name: str) -> None:
    pairs = zip(value.shape[::-1], x.shape[::-1], strict=False)
    if value.ndim > x.ndim or any(v not in (1, d) for v, d in pairs):
        raise Unfit(f"{name} has shape {list(value.shape)}, which does not broadcast to {list(x.shape)}")


@op
def LayerNormalization(X, Scale, B=None, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1):
    """Over the axes from `axis` on; Mean and InvStdDev come out in the type `stash_type` names."""
    kind, stash = _working(X), _stash(stash_type)
    _check_broadcast(Scale, X, "Scale")
    y, mean, inverse = _standardized(X.astype(kind, copy=False), _trailing(X, axis), epsilon)
    y *= Scale.astype(kind, copy=False)
    if B is not None:
        _check_broadcast(B, X, "B")
        y += B.astype(kind, copy=False)
    return y.astype(X.dtype, copy=False), mean.astype(stash, copy=False), inverse.astype(stash, copy=False)


@op
def RMSNormalization(X, scale, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1):
    """X / sqrt(mean(X²) + epsilon) * scale over the axes from `axis` on; the result has scale's type."""
    kind, axes = _working(X), _trailing(X, axis)
    _stash(stash_type)
    _check_broadcast(scale, X, "scale")
    x = X.astype(kind, copy=False)
    y = x / np.sqrt(mean_of(x * x, axes) + kind.type(epsilon))
    y = y * scale.astype(np.float32 if scale.dtype in HALF else scale.dtype)
    return y.astype(scale.dtype, copy=False)


def _grouped(x: np.ndarray, groups: int, epsilon: float) -> np.ndarray:
    if x.ndim < 2 or groups < 1 or x.shape[1] % groups:
        raise ValueError(f"num_groups is {groups}, expected a divisor of the channels of X, whose shape is "
                         f"{list(x.shape)}")
    inner = x.reshape(x.shape[0], groups, x.shape[1] // groups, *x.shape[2:])
    return _standardized(inner, tuple(range(2, inner.ndim)), epsilon)[0]


@op(since=21, widen=True)
def GroupNormalization(X, scale, bias, *, num_groups: int, epsilon: float = 1e-5, stash_type: int = 1):
    """Per instance and group of channels of X [N, C, D...]; scale and bias [C]."""
    _stash(stash_type)
    y = _grouped(X, num_groups, epsilon).reshape(X.shape)
    y *= _per_channel(scale, X, "scale", X.dtype)
    y += _per_channel(bias, X, "bias", X.dtype)
    return y


@op(widen=True)
def GroupNormalization_18(X, scale, bias, *, num_groups: int, epsilon: float = 1e-5):
    """The form with scale and bias [num_groups]."""
    y = _grouped(X, num_groups, epsilon)
    for value, name in ((scale, "scale"), (bias, "bias")):
        if value.shape != (num_groups,):
            raise ValueError(f"{name} has shape {list(value.shape)}, expected [{num_groups}]")
    shape = (num_groups, *(1,) * (y.ndim - 2))
    y *= scale.reshape(shape)
    y += bias.reshape(shape)
    return y.reshape(X.shape)


@op(widen=True)
def LpNormalization(input, *, axis: int = -1, p: int = 2):
    """Divides by the L1 or L2 norm along `axis`; zero where the norm is zero."""
    axis = normalized_axis(axis, input.ndim)
    if p not in (1, 2):
        raise ValueError(f"p is {p}, expected 1 or 2")
    powers = np.abs(input) if p == 1 else input * input
    norm = sum_of(powers, axis)
    if p == 2:
        norm = np.sqrt(norm)
    return np.where(norm == 0, input.dtype.type(0), input / np.where(norm == 0, input.dtype.type(1), norm))


@op(widen=True, result="same", types={"input": FLOATS})
def MeanVarianceNormalization_1(input, *, across_channels: int = 0, normalize_variance: int = 1):
    """input [N, C, H, W] less its mean, each channel by itself or `across_channels`, and over its deviation
    if `normalize_variance`; an operator of the first versions"""
    axes = (0, 1, 2, 3) if across_channels else (0, 2, 3)
    y, _, variance = _moments(input, tuple(a for a in axes if a < input.ndim))
    return y / np.sqrt(variance) if normalize_variance else y


@MeanVarianceNormalization_1.infer_with
def _normalized_type(input: Value, **_: Any) -> list[Type]:
    return [TensorType(input.elem, input.shape)]


@op(since=9, widen=True)
def MeanVarianceNormalization(X, *, axes: list[int] = [0, 2, 3]):  # noqa: B006
    """(X - mean) / (deviation + 1e-9) over `axes`."""
    y, _, variance = _moments(X, normalized(axes, X.ndim))
    return y / (np.sqrt(variance) + X.dtype.type(1e-9))


@op(widen=True, result="same", types={"input": FLOATS})
def ImageScaler(input, *, bias: list[float], scale: float = 1.0):
    """scale * x + bias of images [N, C, H, W], with a bias for each channel; an operator of the first
    versions"""
    if input.ndim != 4 or len(bias) != input.shape[1]:
        raise ValueError(f"ImageScaler has {len(bias)} biases for images of shape {list(input.shape)}")
    dtype = input.dtype.type
    return input * dtype(scale) + np.array(bias, np.float32).astype(dtype).reshape(-1, 1, 1)


@ImageScaler.infer_with
def _scaled_type(input: Value, **_: Any) -> list[Type]:
    return [TensorType(input.elem, input.shape)]
