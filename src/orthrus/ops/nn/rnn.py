"""Recurrent layers: sequences X [T, N, I] and weights per direction and gate in, all and the last states out.

The input projection of all steps is one matrix product; only the recurrence runs step by step. A reversed
sequence is turned round within its own length, run forward, and turned back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ... import limits
from ...errors import Unfit
from ..define import Op, op
from ..math.arithmetic import Tanh
from .activation import (
    Affine,
    Elu,
    HardSigmoid,
    LeakyRelu,
    Relu,
    ScaledTanh,
    Sigmoid,
    Softplus,
    Softsign,
    ThresholdedRelu,
)

_Function = Callable[[np.ndarray], np.ndarray]
Activation = tuple[Op, dict[str, float]]
"""An operator and its attributes."""

DEFAULTS = {"RNN": ("Tanh",), "GRU": ("Sigmoid", "Tanh"), "LSTM": ("Sigmoid", "Tanh", "Tanh")}
"""The activations of one direction where none are named."""


OPERATORS = (Relu, Tanh, Sigmoid, Softsign, Softplus, LeakyRelu, ThresholdedRelu, Elu, HardSigmoid, Affine,
             ScaledTanh)
_NAMED = {it.name.lower(): it for it in OPERATORS}


def activations_of(kind: str, names: Sequence[str] | None, directions: int, alphas: Sequence[float] | None,
                   betas: Sequence[float] | None) -> list[tuple[Activation, ...]]:
    """Per direction, the activations of a layer of one of `DEFAULTS`; those that have an alpha or beta take
    the lists' next, or keep their default. Raises ValueError for a name that is unknown or missing."""
    per = len(DEFAULTS[kind])
    names = list(names or DEFAULTS[kind] * directions)
    if len(names) < per * directions:
        raise ValueError(f"activations lists {names}, expected {per * directions} names")
    values = {"alpha": iter(alphas or ()), "beta": iter(betas or ())}
    made: list[Activation] = []
    for name in names[:per * directions]:
        it = _NAMED.get(name.lower())
        if it is None:
            raise ValueError(f"activation {name!r} is none of {sorted(_NAMED)}")
        made.append((it, {key: float(next(values[key], default)) for key, default in it.defaults.items()}))
    return [tuple(made[i * per:(i + 1) * per]) for i in range(directions)]


def _functions(kind: str, names: Sequence[str] | None, directions: int, alphas: Sequence[float] | None,
               betas: Sequence[float] | None, clip: float | None) -> list[list[_Function]]:
    """Per direction, the activations. Each clips its input but the third, which is applied to the cell:
    onnxruntime leaves that one alone."""
    return [[it.bind(attrs) if clip is None or i == 2 else _clipped(it.bind(attrs), clip)
             for i, (it, attrs) in enumerate(each)]
            for each in activations_of(kind, names, directions, alphas, betas)]


def _clipped(f: _Function, clip: float) -> _Function:
    if not clip > 0:
        raise ValueError(f"clip is {clip}, expected a positive number")
    return lambda x: f(np.clip(x, x.dtype.type(-clip), x.dtype.type(clip)))


class _Layer:
    """The checked inputs of a recurrent layer with `gates` gates, time first and one direction at a time."""

    def __init__(self, x: np.ndarray, w: np.ndarray, r: np.ndarray, b: np.ndarray | None,
                 lengths: np.ndarray | None, gates: int, direction: str, layout: int,
                 hidden_size: int | None) -> None:
        if direction not in ("forward", "foward", "reverse", "bidirectional"):
            raise ValueError(f"direction is {direction!r}, expected forward, reverse or bidirectional")
        if layout not in (0, 1):
            raise ValueError(f"layout is {layout}, expected 0 or 1")
        if x.ndim != 3 or w.ndim != 3 or r.ndim != 3:
            raise Unfit(f"X, W and R have shapes {list(x.shape)}, {list(w.shape)} and {list(r.shape)}, "
                        "expected rank 3")
        self.directions = 2 if direction == "bidirectional" else 1
        self.reverse = (False, True) if direction == "bidirectional" else (direction == "reverse",)
        self.layout = layout
        self.x = x.transpose(1, 0, 2) if layout else x
        self.steps, self.batch, features = self.x.shape
        self.hidden = h = r.shape[2]
        if hidden_size not in (None, 0, h):
            raise Unfit(f"hidden_size is {hidden_size}, but R has shape {list(r.shape)}")
        for value, name, shape in ((w, "W", (self.directions, gates * h, features)),
                                   (r, "R", (self.directions, gates * h, h)),
                                   (b, "B", (self.directions, 2 * gates * h))):
            if value is not None and value.shape != shape:
                raise Unfit(f"{name} has shape {list(value.shape)}, expected {list(shape)}")
        self.w, self.r = w, r
        self.b = b if b is not None else np.zeros((self.directions, 2 * gates * h), x.dtype)
        self.lengths = self._checked(lengths)
        limits.bounded((self.steps, self.directions, self.batch, gates * h), x.dtype)

    def _checked(self, lengths: np.ndarray | None) -> np.ndarray | None:
        if lengths is None:
            return None
        if lengths.shape != (self.batch,):
            raise ValueError(f"sequence_lens has shape {list(lengths.shape)}, expected [{self.batch}]")
        if lengths.size and not (lengths.min() >= 0 and lengths.max() <= self.steps):
            raise ValueError(f"Invalid value/s in sequence_lens. All values must be >= 0 and <= seq_length. "
                             f"seq_length={self.steps}, found {int(lengths.min())} to {int(lengths.max())}")
        return None if (lengths == self.steps).all() else lengths.astype(np.int64)

    def initial(self, given: np.ndarray | None, name: str) -> np.ndarray:
        """The state before the first step, [directions, batch, hidden]; none of a sequence without a step,
        whose last state then is zero, as onnxruntime has it."""
        shape = (self.directions, self.batch, self.hidden)
        if given is None:
            return np.zeros(shape, self.x.dtype)
        state = given.transpose(1, 0, 2) if self.layout and given.ndim == 3 else given
        if state.shape != shape:
            raise ValueError(f"{name} has shape {list(given.shape)}, expected "
                             f"{[shape[1], shape[0], shape[2]] if self.layout else list(shape)}")
        if self.lengths is not None:
            state = np.where((self.lengths > 0)[:, None], state, state.dtype.type(0))
        return state

    def turned(self, values: np.ndarray) -> np.ndarray:
        """[T, N, ...] with each sequence reversed within its length; doing it twice changes nothing."""
        if self.lengths is None:
            return values[::-1]
        t = np.arange(self.steps)[:, None]
        return values[np.where(t < self.lengths, self.lengths - 1 - t, t), np.arange(self.batch)]

    def project(self, d: int, bias: np.ndarray) -> np.ndarray:
        """Direction d's inputs times its W, plus bias: [T, N, gates * hidden]."""
        x = self.turned(self.x) if self.reverse[d] else self.x
        flat = np.matmul(x.reshape(self.steps * self.batch, x.shape[2]), self.w[d].T)
        flat += bias
        return flat.reshape(self.steps, self.batch, flat.shape[1])

    def run(self, d: int, step: Callable[..., tuple[np.ndarray, ...]], inputs: np.ndarray, *states: np.ndarray
            ) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
        """All hidden states [T, N, H] in the sequence's own order, and the last states."""
        y = np.zeros((self.steps, self.batch, self.hidden), self.x.dtype)
        for t in range(self.steps):
            new = step(inputs[t], *states)
            if self.lengths is None:
                y[t], states = new[0], new
            else:
                live = (t < self.lengths)[:, None]
                y[t] = np.where(live, new[0], 0)
                states = tuple(np.where(live, n, s) for n, s in zip(new, states, strict=True))
        return (self.turned(y) if self.reverse[d] else y), states

    def outputs(self, results: list[tuple[np.ndarray, tuple[np.ndarray, ...]]]) -> tuple[np.ndarray, ...]:
        """Y and the last states in the node's layout."""
        y = np.stack([r[0] for r in results], axis=1)
        last = [np.stack(states) for states in zip(*(r[1] for r in results), strict=True)]
        if self.layout:
            return y.transpose(2, 0, 1, 3), *(s.transpose(1, 0, 2) for s in last)
        return y, *last


@op(widen=True)
def RNN(X, W, R, B=None, sequence_lens=None, initial_h=None, *, activation_alpha: list[float] | None = None,
        activation_beta: list[float] | None = None, activations: list[str] | None = None,
        clip: float | None = None, direction: str = "forward", hidden_size: int | None = None,
        layout: int = 0):
    """H_t = f(X_t·Wᵀ + H_{t-1}·Rᵀ + Wb + Rb) → Y [T, D, N, H], Y_h [D, N, H]."""
    layer = _Layer(X, W, R, B, sequence_lens, 1, direction, layout, hidden_size)
    start = layer.initial(initial_h, "initial_h")
    names = _functions("RNN", activations, layer.directions, activation_alpha, activation_beta, clip)
    results = []
    for d, (f,) in enumerate(names):
        recurrent, bias = layer.r[d].T, layer.b[d].reshape(2, -1).sum(axis=0)

        def step(x, h, f=f, recurrent=recurrent):
            return (f(x + h @ recurrent),)

        results.append(layer.run(d, step, layer.project(d, bias), start[d]))
    return layer.outputs(results)


@op(widen=True)
def GRU(X, W, R, B=None, sequence_lens=None, initial_h=None, *, activation_alpha: list[float] | None = None,
        activation_beta: list[float] | None = None, activations: list[str] | None = None,
        clip: float | None = None, direction: str = "forward", hidden_size: int | None = None,
        layout: int = 0, linear_before_reset: int = 0):
    """Gated recurrent unit with gates in the order z, r, h → Y [T, D, N, H], Y_h [D, N, H]."""
    layer = _Layer(X, W, R, B, sequence_lens, 3, direction, layout, hidden_size)
    start, n = layer.initial(initial_h, "initial_h"), layer.hidden
    names = _functions("GRU", activations, layer.directions, activation_alpha, activation_beta, clip)
    results = []
    for d, (f, g) in enumerate(names):
        of_input, of_state = layer.b[d].reshape(2, -1)
        bias = of_input + of_state
        if linear_before_reset:
            bias[2 * n:] = of_input[2 * n:]
        gates, hidden = layer.r[d][:2 * n].T, layer.r[d][2 * n:].T

        def before(x, h, f=f, g=g, recurrent=layer.r[d].T, shift=of_state[2 * n:]):
            linear = h @ recurrent
            zr = f(x[:, :2 * n] + linear[:, :2 * n])
            z = zr[:, :n]
            candidate = g(x[:, 2 * n:] + zr[:, n:] * (linear[:, 2 * n:] + shift))
            return ((1 - z) * candidate + z * h,)

        def after(x, h, f=f, g=g, gates=gates, hidden=hidden):
            zr = f(x[:, :2 * n] + h @ gates)
            z = zr[:, :n]
            candidate = g(x[:, 2 * n:] + (zr[:, n:] * h) @ hidden)
            return ((1 - z) * candidate + z * h,)

        results.append(layer.run(d, before if linear_before_reset else after, layer.project(d, bias),
                                 start[d]))
    return layer.outputs(results)


@op(widen=True)
def LSTM(X, W, R, B=None, sequence_lens=None, initial_h=None, initial_c=None, P=None, *,
         activation_alpha: list[float] | None = None, activation_beta: list[float] | None = None,
         activations: list[str] | None = None, clip: float | None = None, direction: str = "forward",
         hidden_size: int | None = None, input_forget: int = 0, layout: int = 0):
    """Long short-term memory with gates in the order i, o, f, c → Y [T, D, N, H], Y_h and Y_c [D, N, H]."""
    layer = _Layer(X, W, R, B, sequence_lens, 4, direction, layout, hidden_size)
    n = layer.hidden
    start_h, start_c = layer.initial(initial_h, "initial_h"), layer.initial(initial_c, "initial_c")
    if P is not None and P.shape != (layer.directions, 3 * n):
        raise ValueError(f"P has shape {list(P.shape)}, expected {[layer.directions, 3 * n]}")
    names = _functions("LSTM", activations, layer.directions, activation_alpha, activation_beta, clip)
    results = []
    for d, (f, g, h_of) in enumerate(names):
        peep = None if P is None else P[d].reshape(3, n)

        def step(x, h, c, f=f, g=g, h_of=h_of, recurrent=layer.r[d].T, peep=peep):
            gates = x + h @ recurrent
            if peep is None:
                iof = f(gates[:, :3 * n])
                i, o, forget = iof[:, :n], iof[:, n:2 * n], iof[:, 2 * n:]
            else:
                i = f(gates[:, :n] + peep[0] * c)
                forget = f(gates[:, 2 * n:3 * n] + peep[2] * c)
            if input_forget:
                forget = 1 - i
            c = forget * c + i * g(gates[:, 3 * n:])
            if peep is not None:
                o = f(gates[:, n:2 * n] + peep[1] * c)
            return o * h_of(c), c

        bias = layer.b[d].reshape(2, -1).sum(axis=0)
        results.append(layer.run(d, step, layer.project(d, bias), start_h[d], start_c[d]))
    return layer.outputs(results)
