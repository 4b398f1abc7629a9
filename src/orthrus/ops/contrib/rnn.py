"""Recurrent layers of com.microsoft: sequences and quantized weights in, hidden states out."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...ir import TensorType, Type, Value
from ..define import define
from ..nn.rnn import _functions, _Layer
from ..tensor.quantize import DynamicQuantizeLinear
from .fused import MS

_BYTES = ("uint8", "int8")


def _as_coded(x: np.ndarray) -> np.ndarray:
    """`x` as its own range quantizes it to uint8, back in float32."""
    codes, scale, zero = DynamicQuantizeLinear.body(x)
    return (codes.astype(np.float32) - np.float32(zero)) * scale


def _weights(codes: np.ndarray, scale: np.ndarray, zero: np.ndarray, name: str) -> np.ndarray:
    """Weights [directions, features, gates], with a scale and zero point per direction or per column, as
    real numbers [directions, gates, features]."""
    directions, _, gates = codes.shape
    for value, what in ((scale, "scale"), (zero, "zero point")):
        if value.size not in (1, directions, directions * gates):
            raise ValueError(f"the {what} of {name} has shape {value.shape}, expected {(directions,)} or"
                             f" {(directions, gates)}")
    by_column = [v.reshape(-1, 1, gates if v.size == directions * gates else 1).astype(np.float32)
                 for v in (scale, zero)]
    return ((codes.astype(np.float32) - by_column[1]) * by_column[0]).transpose(0, 2, 1)


@define(domain=MS, outputs=3, types={"x": ("float",), "w": _BYTES, "r": _BYTES})
def DynamicQuantizeLSTM(x, w, r, b=None, sequence_lens=None, initial_h=None, initial_c=None, p=None,
                        w_scale=None,
                        w_zero_point=None, r_scale=None, r_zero_point=None, *,
                        activation_alpha: list[float] | None = None, activation_beta: list[float]
                        | None = None,
                        activations: list[str] | None = None, clip: float | None = None,
                        direction: str = "forward",
                        hidden_size: int | None = None, input_forget: int = 0):
    """An LSTM whose weights are quantized, W [D, I, 4H] and R [D, H, 4H]; inputs and states are by their
    own range"""
    if w_scale is None or r_scale is None or w_zero_point is None or r_zero_point is None:
        raise ValueError("DynamicQuantizeLSTM needs the scales and zero points of W and R")
    if w.ndim != 3 or r.ndim != 3:
        raise ValueError(f"W and R have shapes {w.shape} and {r.shape}, expected rank 3")
    weights, recurrent = _weights(w, w_scale, w_zero_point, "W"), _weights(r, r_scale, r_zero_point, "R")
    layer = _Layer(_as_coded(x) if x.size else x, weights, recurrent, b, sequence_lens, 4, direction, 0,
                   hidden_size)
    n = layer.hidden
    start_h, start_c = layer.initial(initial_h, "initial_h"), layer.initial(initial_c, "initial_c")
    if p is not None and p.shape != (layer.directions, 3 * n):
        raise ValueError(f"P has shape {p.shape}, expected {(layer.directions, 3 * n)}")
    names = _functions("LSTM", activations, layer.directions, activation_alpha, activation_beta, clip)
    results = []
    for d, functions in enumerate(names):
        peep = np.zeros((3, n), x.dtype) if p is None else p[d].reshape(3, n)
        step = _step(layer.r[d].T, peep, functions, bool(input_forget))
        bias = layer.b[d].reshape(2, -1).sum(axis=0)
        results.append(layer.run(d, step, layer.project(d, bias), start_h[d], start_c[d]))
    return layer.outputs(results)


def _step(recurrent: np.ndarray, peep: np.ndarray, functions: Any, coupled: bool) -> Any:
    f, g, h_of = functions
    n = peep.shape[1]

    def step(x: np.ndarray, h: np.ndarray, c: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        gates = x + (_as_coded(h) @ recurrent if h.size else 0)
        i = f(gates[:, :n] + peep[0] * c)
        forget = 1 - i if coupled else f(gates[:, 2 * n:3 * n] + peep[2] * c)
        c = forget * c + i * g(gates[:, 3 * n:])
        return f(gates[:, n:2 * n] + peep[1] * c) * h_of(c), c

    return step


@DynamicQuantizeLSTM.infer_with
def _lstm_type(x: Value, w: Value, r: Value, *_: Value | None, direction: str, **__: Any) -> list[Type]:
    directions = 2 if direction == "bidirectional" else 1
    steps, batch = x.shape[:2] if x.shape is not None and len(x.shape) == 3 else (None, None)
    hidden = r.shape[1] if r.shape is not None and len(r.shape) == 3 else None
    last = TensorType(x.elem, (directions, batch, hidden))
    return [TensorType(x.elem, (steps, directions, batch, hidden)), last, last]
