"""Optimizer steps: rate, count, tensors, gradients, accumulators in; new tensors and accumulators out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..define import op

_DOMAIN = "ai.onnx.preview.training"


def _groups(inputs: Sequence[np.ndarray], kinds: int) -> Any:
    """Per optimized tensor its `kinds` inputs."""
    if not inputs or len(inputs) % kinds:
        raise ValueError(f"{len(inputs)} tensors given, expected a multiple of {kinds}")
    count = len(inputs) // kinds
    return zip(*(inputs[i * count:(i + 1) * count] for i in range(kinds)), strict=True)


def _regularized(x: np.ndarray, g: np.ndarray, coefficient: float) -> np.ndarray:
    if x.shape != g.shape:
        raise ValueError(f"a tensor has shape {list(x.shape)} and its gradient {list(g.shape)}")
    return x.dtype.type(coefficient) * x + g


def _scalars(R: np.ndarray, T: np.ndarray) -> tuple[Any, int]:
    if R.size != 1 or T.size != 1:
        raise ValueError(f"R and T have shapes {list(R.shape)} and {list(T.shape)}, expected scalars")
    return R.reshape(-1)[0], int(T.reshape(-1)[0])


def _typed(columns: Sequence[Sequence[np.ndarray]]) -> tuple[np.ndarray, ...]:
    return tuple(v for column in zip(*columns, strict=True) for v in column)


@op(domain=_DOMAIN)
def Adagrad(R, T, *inputs, decay_factor: float = 0.0, epsilon: float = 1e-6, norm_coefficient: float = 0.0):
    """ADAGRAD: inputs are X..., gradients..., accumulated squares...; outputs all but gradients, new."""
    rate, step = _scalars(R, T)
    rate = rate / (1 + step * decay_factor)
    made = []
    for x, g, h in _groups(inputs, 3):
        g = _regularized(x, g, norm_coefficient)
        h = h + g * g
        made.append(((x - rate * g / (np.sqrt(h) + epsilon)).astype(x.dtype), h.astype(x.dtype)))
    return _typed(made)


@op(domain=_DOMAIN)
def Adam(R, T, *inputs, alpha: float = 0.9, beta: float = 0.999, epsilon: float = 1e-6,
         norm_coefficient: float = 0.0, norm_coefficient_post: float = 0.0):
    """Adam: inputs are X..., gradients..., averages..., averages of squares...; outputs all but gradients."""
    rate, step = _scalars(R, T)
    if step > 0:
        rate = rate * np.sqrt(1 - beta ** step) / (1 - alpha ** step)
    made = []
    for x, g, v, h in _groups(inputs, 4):
        g = _regularized(x, g, norm_coefficient)
        v = alpha * v + (1 - alpha) * g
        h = beta * h + (1 - beta) * g * g
        moved = (1 - norm_coefficient_post) * (x - rate * v / (np.sqrt(h) + epsilon))
        made.append((moved.astype(x.dtype), v.astype(x.dtype), h.astype(x.dtype)))
    return _typed(made)


@op(domain=_DOMAIN)
def Momentum(R, T, *inputs, alpha: float, beta: float, mode: str, norm_coefficient: float):
    """Descent with momentum: inputs are X..., gradients..., momenta...; outputs all but gradients, new."""
    rate, step = _scalars(R, T)
    if mode not in ("standard", "nesterov"):
        raise ValueError(f"mode is {mode!r}, expected standard or nesterov")
    made = []
    for x, g, v in _groups(inputs, 3):
        g = _regularized(x, g, norm_coefficient)
        v = alpha * v + (beta if step > 0 else 1.0) * g
        way = g + alpha * v if mode == "nesterov" else v
        made.append(((x - rate * way).astype(x.dtype), v.astype(x.dtype)))
    return _typed(made)
