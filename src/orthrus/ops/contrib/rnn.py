"""Recurrent layers of com.microsoft, with quantized weights or with attention to a memory: sequences in,
hidden states out."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...errors import Unfit
from ...ir import TensorType, Type, Value
from ..define import define
from ..nn.activation import softmax
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
        raise Unfit(f"W and R have shapes {w.shape} and {r.shape}, expected rank 3")
    weights, recurrent = _weights(w, w_scale, w_zero_point, "W"), _weights(r, r_scale, r_zero_point, "R")
    layer = _Layer(_as_coded(x) if x.size else x, weights, recurrent, b, sequence_lens, 4, direction, 0,
                   hidden_size)
    start_h, start_c = layer.initial(initial_h, "initial_h"), layer.initial(initial_c, "initial_c")
    peep = _peepholes(p, layer)
    names = _functions("LSTM", activations, layer.directions, activation_alpha, activation_beta, clip)
    results = []
    for d, functions in enumerate(names):
        def step(now, h, c, d=d, functions=functions):
            gates = now + (_as_coded(h) @ layer.r[d].T if h.size else 0)
            return _cell(gates, c, peep[d], functions, bool(input_forget))

        bias = layer.b[d].reshape(2, -1).sum(axis=0)
        results.append(layer.run(d, step, layer.project(d, bias), start_h[d], start_c[d]))
    return layer.outputs(results)


def _cell(gates: np.ndarray, c: np.ndarray, peep: np.ndarray, functions: Any, coupled: bool
          ) -> tuple[np.ndarray, np.ndarray]:
    """The states behind the gates i, o, f, c of an LSTM."""
    (f, g, h_of), n = functions, peep.shape[1]
    i = f(gates[:, :n] + peep[0] * c)
    forget = 1 - i if coupled else f(gates[:, 2 * n:3 * n] + peep[2] * c)
    c = forget * c + i * g(gates[:, 3 * n:])
    return f(gates[:, n:2 * n] + peep[1] * c) * h_of(c), c


def _peepholes(p: np.ndarray | None, layer: _Layer) -> np.ndarray:
    """[directions, 3, hidden]; zeros where there are none."""
    shape = layer.directions, 3 * layer.hidden
    if p is not None and p.shape != shape:
        raise ValueError(f"P has shape {p.shape}, expected {shape}")
    return (np.zeros(shape, layer.x.dtype) if p is None else p).reshape(shape[0], 3, layer.hidden)


@define(domain=MS, outputs=3, types={
    **dict.fromkeys(("x", "w", "r", "b", "initial_h", "initial_c", "p", "qw", "mw", "v", "m", "aw"),
                    ("float", "double")),
    **dict.fromkeys(("sequence_lens", "memory_seq_lens"), ("int32",))})
def AttnLSTM(x, w, r, b=None, sequence_lens=None, initial_h=None, initial_c=None, p=None, qw=None, mw=None,
             v=None, m=None, memory_seq_lens=None, aw=None, *, activation_alpha: list[float] | None = None,
             activation_beta: list[float] | None = None, activations: list[str] | None = None,
             clip: float | None = None, direction: str = "forward", hidden_size: int | None = None,
             input_forget: int = 0):
    """An LSTM whose inputs are joined by what its last state attended to in a memory M [N, S, depth]: a mix
    of it by tanh(M·MW + H·QW)·V, and with AW a projection of state and mix"""
    if qw is None or mw is None or v is None or m is None:
        raise ValueError("AttnLSTM needs QW, MW, V and M")
    features = x.shape[-1]
    layer = _Layer(x, w[..., :features], r, b, sequence_lens, 4, direction, 0, hidden_size)
    count, n, deep, size = layer.directions, layer.hidden, m.shape[-1], qw.shape[-1]
    wide = deep if aw is None else aw.shape[-1]
    shapes = ((w, (count, 4 * n, features + wide)), (qw, (count, n, size)), (mw, (count, deep, size)),
              (v, (count, size)), (aw, (count, n + deep, wide)), (m, (layer.batch, *m.shape[1:])))
    for given, shape in shapes:
        if given is not None and given.shape != shape:
            raise ValueError(f"an input of the attention has shape {given.shape}, expected {shape}")
    there = np.ones(m.shape[:2], bool)
    if memory_seq_lens is not None:
        there = np.arange(m.shape[1]) < memory_seq_lens[:, None]
    memory, peep = np.where(there[..., None], m, m.dtype.type(0)), _peepholes(p, layer)
    names = _functions("LSTM", activations, count, activation_alpha, activation_beta, clip)
    starts = [layer.initial(s, name) for s, name in ((initial_h, "initial_h"), (initial_c, "initial_c"))]
    results = []
    for d, functions in enumerate(names):
        keys = memory @ mw[d]

        def step(now, h, c, attended, d=d, functions=functions, keys=keys):
            gates = now + attended @ w[d, :, features:].T + h @ r[d].T
            h, c = _cell(gates, c, peep[d], functions, bool(input_forget))
            scores = np.where(there, np.tanh(keys + (h @ qw[d])[:, None]) @ v[d], -np.inf)
            mixed = np.matmul(softmax(scores, -1)[:, None], memory)[:, 0]
            return h, c, mixed if aw is None else np.concatenate((h, mixed), 1) @ aw[d]

        y, states = layer.run(d, step, layer.project(d, layer.b[d].reshape(2, -1).sum(axis=0)), starts[0][d],
                              starts[1][d], np.zeros((layer.batch, wide), x.dtype))
        results.append((y, states[:2]))
    return layer.outputs(results)


@DynamicQuantizeLSTM.infer_with
@AttnLSTM.infer_with
def _lstm_type(x: Value, w: Value, r: Value, *_: Value | None, direction: str, **__: Any) -> list[Type]:
    directions = 2 if direction == "bidirectional" else 1
    steps, batch = x.shape[:2] if x.shape is not None and len(x.shape) == 3 else (None, None)
    hidden = r.shape[1] if r.shape is not None and len(r.shape) == 3 else None
    last = TensorType(x.elem, (directions, batch, hidden))
    return [TensorType(x.elem, (steps, directions, batch, hidden)), last, last]
