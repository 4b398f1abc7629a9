"""Recurrent layers on GPUs: a product for the inputs of all steps, then the steps."""

from __future__ import annotations

from typing import Any

import numpy as np

from ....codegen.triton.kernels import recurrence
from ....codegen.triton.kernels.recurrence import FIRST, GATES, SECOND, WHOLE, CellForm
from ....codegen.write.expr import Expr
from ....ir import No, Node
from ...rules.rnn import begun, layer_of
from ...rules.rnn_weights import bias_of
from ...rules.rows import FLOATS
from ...tensor import Tensor, numpy_type
from .. import products
from ..elements import power
from ..lower import GpuLowering, Out, lowers

F = "float32"
_WHOLE = 64
"""Hidden lanes up to which one program does all steps."""

_STEPS = 1 << 12
"""Steps that are launched one by one, at most."""


@lowers("RNN", "GRU", "LSTM", types=FLOATS)
def recurrent_layer(lo: GpuLowering, node: Node) -> tuple[Tensor, ...] | No:
    """Y and the last states."""
    x, w, r, b, lengths, h0, c0, peephole = (*node.inputs, *[None] * 8)[:8]
    assert x is not None and w is not None and r is not None
    known = [lo.known(v) for v in (w, r, b, peephole)]
    if any(k is None and v is not None for k, v in zip(known, (w, r, b, peephole), strict=True)):
        return No("weights that are not constant")
    shapes = [None if a is None else a.shape for a in known]
    layer = layer_of(lo, node.op_type, node.attributes, x, shapes, lengths, h0, c0)
    if isinstance(layer, No):
        return layer
    dtype, attrs = lo.dtype(x), node.attributes
    if any(v is not None and lo.dtype(v) != dtype for v in (w, r, b, h0, c0, peephole)):
        return No("several types")
    kind, hidden, batch, steps = layer.kind, layer.hidden, layer.batch, layer.steps
    if hidden > _WHOLE and steps > _STEPS:
        return No(f"more than {_STEPS} steps")
    directions, gates, layout = layer.directions, GATES[kind], attrs["layout"]
    linear = kind == "GRU" and bool(attrs.get("linear_before_reset"))
    inputs, given = lo.tensor(x), known[2]
    bias = None if given is None else lo.constant((id(node), "bias"), lambda: np.ascontiguousarray(
        bias_of(np.asarray(given, np.float32), gates, hidden, directions, linear)))
    projected = _projected(lo, inputs.permute((1, 0, 2)) if layout else inputs, lo.tensor(w), bias)
    more: list[Any] = [] if peephole is None else [lo.tensor(peephole)]
    if linear:
        none = np.zeros((directions, hidden), numpy_type(dtype))
        more.append(lo.constant((id(node), "shift"), lambda: none if given is None else np.ascontiguousarray(
            given[:, -hidden:])))
    if lengths is not None:
        more += [lo.contiguous(lo.tensor(lengths)), Out(lo.status)]
    y = lo.new((batch, steps, directions, hidden) if layout else (steps, directions, batch, hidden), dtype)
    y_strides = [y.strides[i] for i in ((2, 1, 0) if layout else (1, 0, 2))]
    states = [_state(lo, v, lengths, (directions, batch, hidden), layout)
              for v in ((h0, c0) if kind == "LSTM" else (h0,))]
    lead = [projected, lo.contiguous(lo.tensor(r)), *more, Out(y)]
    sizes = [0 if attrs["direction"] == "reverse" else 1, steps, batch, hidden, *projected.strides[:3],
             *y_strides]
    ends: list[list[Tensor]] = []
    same = len(set(layer.activations)) == 1
    for first, count in [(0, directions)] if same else [(d, 1) for d in range(directions)]:
        form = CellForm(kind, layer.activations[first], dtype, float(attrs["clip"] or 0),
                        peephole is not None, lengths is not None, bool(attrs.get("input_forget")), linear,
                        products.precision(lo, dtype))
        ends.append(_stepped(lo, form, lead, states, [first, *sizes], count))
    return (y, *(_given(lo, own, dtype, layout) for own in zip(*ends, strict=True)))


def _projected(lo: GpuLowering, x: Tensor, weights: Tensor, bias: Tensor | None) -> Tensor:
    """X times every direction's W plus biases, float32, [directions, steps, batch, gates * hidden]."""
    directions, columns, features = weights.shape
    out = lo.new((directions, *x.shape[:2], columns), F)
    tree = None if bias is None else Expr("add", (Expr.leaf(0, F), Expr.leaf(1, F)), F)
    for d in range(directions):
        each, own = out.view(out.shape[1:], out.strides[1:], d * out.strides[0]), weights.strides
        operands = [] if bias is None else [bias.view(each.shape, (0, 0, 1), d * columns)]
        turned = weights.view((features, columns), (own[2], own[1]), d * own[0])
        products.write(lo, x, turned, each, tree, operands)
    return out


def _state(lo: GpuLowering, value: Any, lengths: Any, shape: tuple[int, ...], layout: int) -> Tensor:
    """A state before the first step, float32, that steps may write to."""
    made = lo.new(shape, F)
    if value is None:
        lo.store(made, Expr.const(0.0, F), [])
        return made
    t = lo.tensor(value)
    tree, reads = Expr.leaf(0, t.dtype).cast(F), [t.permute((1, 0, 2)) if layout else t]
    if lengths is not None:
        counts = lo.tensor(lengths)
        tree, reads = begun(t.dtype), [*reads, counts.view(shape, (0, counts.strides[0], 0))]
    lo.store(made, tree, reads)
    return made


def _given(lo: GpuLowering, own: tuple[Tensor, ...], dtype: str, layout: int) -> Tensor:
    """A last state as the operator gives it, out of one tensor for all directions, or one for each."""
    if len(own) == 1 and dtype == F:
        return own[0].permute((1, 0, 2)) if layout else own[0]
    made = lo.new(own[0].shape, dtype)
    for d, t in enumerate(own):
        parts = [made, t] if len(own) == 1 else [made.slice(0, d, 1), t.slice(0, d, 1)]
        lo.store(parts[0], Expr.leaf(0, F).cast(dtype), parts[1:])
    return made.permute((1, 0, 2)) if layout else made


def _stepped(lo: GpuLowering, form: CellForm, lead: list[Any], states: list[Tensor], sizes: list[int],
             count: int) -> list[Tensor]:
    """Append the steps of `count` directions; gives where the states are then."""
    h, *cells = states
    _, batch, hidden = h.shape
    steps, written = sizes[2], [Out(t) for t in cells]
    rows = max(16, min(32, power(batch)))
    if hidden <= _WHOLE:
        spec = recurrence.recurrence(form=form, rows=rows, columns=max(16, power(hidden)))
        lo.step(spec, [*lead, Out(h), *written, *sizes], count * -(-batch // rows))
        return states
    columns = 16 if batch <= 16 else 32
    items = count * -(-batch // rows) * -(-hidden // columns)
    later = lo.new(h.shape, F)
    phases: tuple[str, ...] = (WHOLE,)
    between: list[Tensor] = []
    if form.kind == "GRU" and not form.linear:
        phases, between = (FIRST, SECOND), [lo.new(h.shape, F), lo.new(h.shape, F)]
    for t in range(steps):
        for phase in phases:
            spec = recurrence.recurrence_step(form=form, phase=phase, rows=rows, columns=columns, deep=32)
            more = [Out(b) for b in between] if phase == FIRST else [Out(later), *between]
            lo.step(spec, [*lead, h, *written, *sizes, *more, t], items)
        h, later = later, h
    return [h, *cells]
