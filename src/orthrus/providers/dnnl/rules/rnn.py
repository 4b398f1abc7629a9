"""Recurrent layers: LSTM, GRU and RNN with their standard functions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ....ir import No, Node
from ..binding import (
    BIAS,
    DIRECTION,
    DST,
    DST_1,
    DST_2,
    ELTWISE,
    INFERENCE,
    SRC,
    SRC_1,
    SRC_2,
    WEIGHTS,
    WEIGHTS_1,
)
from ..lower import Lowering
from ..objects import Attr, Desc, Primitive, open_layout, strided
from ..step import lowers
from ..tensor import Argument, Tensor

_ORDER = {"LSTM": (0, 2, 3, 1), "GRU": (0, 1, 2), "RNN": (0,)}
"""oneDNN's gates in ONNX's order: i f c o of i o f c, u r o of z r h."""


@lowers("LSTM", "GRU", "RNN")
def recurrent(lo: Lowering, node: Node) -> tuple[Tensor | None, ...] | No:
    """X [T, N, I], W [D, G*H, I], R [D, G*H, H], B [D, 2*G*H] to Y [T, D, N, H], Y_h and Y_c [D, N, H]."""
    attrs, lib = node.attributes, lo.lib
    x, w, r, b, _, h0, c0 = [*node.inputs, *(None,) * 7][:7]
    kind, order = node.op_type, _ORDER[node.op_type]
    weights, recurrence = lo.known(w), lo.known(r)
    biases = lo.known(b)
    if weights is None or recurrence is None or (b is not None and biases is None):
        return No("its weights are no constants")
    steps, batch, width = lo.shape(x)
    sides, hidden, gates = recurrence.shape[0], recurrence.shape[2], len(order)
    apart = kind == "GRU" and bool(attrs["linear_before_reset"])

    def gate_last(array: np.ndarray) -> Callable[[], np.ndarray]:
        """[D, G*H, I] to [1, D, I, G, H]."""
        def make() -> np.ndarray:
            by_gate = array.reshape(sides, gates, hidden, -1)[:, list(order)]
            return by_gate.transpose(0, 3, 1, 2)[None].astype(np.float32)
        return make

    def added() -> np.ndarray:
        both = np.zeros((sides, 2, gates, hidden), np.float32) if biases is None else biases.reshape(
            sides, 2, gates, hidden)[:, :, list(order)]
        if not apart:
            return both.sum(1)[None].astype(np.float32)
        split = [both[:, :, :2].sum(1), both[:, :1, 2], both[:, 1:, 2]]
        return np.concatenate(split, 1)[None].astype(np.float32)

    wt, rt = lo.constant(("layer", id(w)), gate_last(weights)), lo.constant(("iter", id(r)),
                                                                           gate_last(recurrence))
    bt = lo.constant(("bias", id(b), id(node)), added)
    source = lo.plain(lo.tensor(x))
    state, out_shape = (1, sides, batch, hidden), (steps, batch, sides * hidden)
    start = lo.reshaped(lo.tensor(h0), state) if h0 is not None else None
    cell = lo.reshaped(lo.tensor(c0), state) if c0 is not None else None
    if kind == "LSTM" and (start is None) != (cell is None):
        zeros = lo.constant(("zeros", state), lambda: np.zeros(state, np.float32))
        start, cell = start or zeros, cell or zeros
    whole, last = strided(lib, out_shape, "float32"), strided(lib, state, "float32")
    common = (lib.engine, INFERENCE, *((ELTWISE["tanh"],) if kind == "RNN" else ()),
              DIRECTION[attrs["direction"]], source.desc)
    layouts = (open_layout(lib, wt.shape, "float32"), open_layout(lib, rt.shape, "float32"))
    first: Desc | None = None if start is None else last
    attr = Attr(lib)
    if kind == "LSTM":
        made = Primitive(lib, "lstm_forward", *common, first, None if cell is None else last, *layouts, None,
                         None, bt.desc, whole, last, last, 0, attr)
    elif kind == "GRU":
        made = Primitive(lib, "lbr_gru_forward" if apart else "gru_forward", *common, first, *layouts,
                         bt.desc, whole, last, 0, attr)
    else:
        made = Primitive(lib, "vanilla_rnn_forward", *common, first, *layouts, bt.desc, whole, last, 0, 0.0,
                         0.0, attr)
    y, y_h, y_c = lo.new(out_shape, whole), lo.new(state, last), lo.new(state, last)
    args: list[Argument] = [(SRC, source), (WEIGHTS, lo.laid(wt, made.desc(WEIGHTS, wt.shape, "float32"))),
                            (WEIGHTS_1, lo.laid(rt, made.desc(WEIGHTS_1, rt.shape, "float32"))), (BIAS, bt),
                            (DST, y), (DST_1, y_h)]
    outs = [y, y_h]
    if start is not None:
        args.append((SRC_1, start))
    if kind == "LSTM":
        args.append((DST_2, y_c))
        outs.append(y_c)
        if cell is not None:
            args.append((SRC_2, cell))
    lo.step(made, args, outs)
    by_side = lo.view(y, (steps, batch, sides, hidden))
    found = (lo.permuted(by_side, (0, 2, 1, 3)), lo.view(y_h, (sides, batch, hidden)),
             lo.view(y_c, (sides, batch, hidden)))
    return found[:len(node.outputs)]
