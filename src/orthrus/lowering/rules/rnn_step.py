"""A recurrent layer of one step: products with W and R as they lie, and an expression of the gates.

In: a layer whose weights a run computes, which nothing else would use laid out; or one that begins with no
state, and needs no R then. Out: what the kernel of many steps makes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...codegen.kernels.rnn import GATES
from ...codegen.write.expr import Expr
from ...ir import Value
from ..lower import Lowering
from ..tensor import Tensor
from . import matmul

if TYPE_CHECKING:
    from .rnn import Layer

F = "float32"


def wanted(lo: Lowering, layer: Layer, w: Value, r: Value) -> bool:
    """Whether a layer is computed so."""
    plain = not (layer.lengths or layer.peepholes or layer.attrs["clip"] or layer.attrs.get("input_forget"))
    return plain and layer.steps == 1 and (
        not (lo.knows(w) and lo.knows(r)) or _stateless(lo, layer, r))


def _stateless(lo: Lowering, layer: Layer, r: Value) -> bool:
    """Whether the state adds nothing: an infinite weight times 0 is no number."""
    known = lo.known(r)
    return layer.kind == "RNN" and layer.h0 is None and known is not None and bool(np.isfinite(known).all())


def written(lo: Lowering, own: tuple[Any, ...], layer: Layer, x: Tensor, w: Value, r: Value, b: Value | None
            ) -> tuple[Tensor, ...]:
    """The results; `x`: [steps, batch, n] or as `layout` has it; `own`: the key of what is known."""
    layout, batch, n = layer.attrs["layout"], layer.batch, layer.hidden
    directions, width = layer.directions, x.shape[2]
    flat = lo.contiguous(x).view((batch, width), (width, 1))
    nothing = lo.constant(("zeros", n), lambda: np.zeros(n, np.float32)).expand((directions, batch, n))
    starts = [nothing if v is None else _led(lo.tensor(v), layout) for v in (layer.h0, layer.c0)]
    y = lo.new((batch, 1, directions, n) if layout else (1, directions, batch, n), F)
    count = 2 if layer.kind == "LSTM" else 1
    lasts = [lo.new((batch, directions, n) if layout else (directions, batch, n), F) for _ in range(count)]
    stateless = _stateless(lo, layer, r)
    for d in range(directions):
        h, c = (lo.contiguous(t.slice(0, d, 1)).view((batch, n), (n, 1)) if t is not nothing
                else nothing.slice(0, d, 1).view((batch, n), (0, 1)) for t in starts)
        step = _Step(lo, own, layer, d, b)
        made = _led(lasts[0], layout).slice(0, d, 1).reshape((batch, n))
        cell = _led(lasts[-1], layout).slice(0, d, 1).reshape((batch, n))
        assert made is not None and cell is not None
        getattr(step, layer.kind.lower())(flat, w, None if stateless else r, h, c, made, cell)
        lo.copy(made, y.view((batch, n), (directions * n, 1) if layout else (n, 1),
                             d * n if layout else d * batch * n))
    return (y, *lasts)


def _led(t: Tensor, layout: int) -> Tensor:
    """A state with its directions first."""
    return t.permute((1, 0, 2)) if layout else t


class _Step:
    """One direction's step."""

    def __init__(self, lo: Lowering, own: tuple[Any, ...], layer: Layer, d: int, b: Value | None) -> None:
        self.lo, self.own, self.layer, self.d, self.n = lo, own, layer, d, layer.hidden
        self.acts = layer.activations[d]
        self.b = None if b is None else lo.contiguous(lo.tensor(b))

    def bias(self, half: int, gates: range) -> list[Tensor]:
        """W's biases, `half` 0, or R's."""
        if self.b is None:
            return []
        n, all_gates = self.n, GATES[self.layer.kind]
        return [self.b.view((len(gates) * n,), (1,), ((2 * self.d + half) * all_gates + gates.start) * n)]

    def times(self, a: Tensor, weights: Value, gates: range, addends: Sequence[Tensor]) -> Tensor:
        """a·weightsᵀ for some gates, and what is added: [batch, gates * hidden]."""
        lo, known = self.lo, self.lo.known(weights)
        lines = range(gates.start * self.n, gates.stop * self.n)
        whole, k = lo.tensor(weights), a.shape[1]
        whole = whole if 1 in whole.strides[1:] else lo.contiguous(whole)
        factor = whole.slice(0, self.d, 1).slice(1, lines.start, len(lines))
        out = lo.new((self.layer.batch, len(lines)), F)
        tree = Expr.leaf(0, F)
        for i in range(len(addends)):
            tree = Expr("add", (tree, Expr.leaf(i + 1, F)), F)
        packed: matmul.Weights | None = None
        if known is not None:
            key = (*self.own, "step", id(weights), self.d, gates.start, gates.stop)
            packed = key, lambda: np.ascontiguousarray(known[self.d, lines.start:lines.stop].T)
        matmul.write(lo, a, factor.view((k, len(lines)), (factor.strides[2], factor.strides[1])), packed, out,
                     tree, [t.expand(out.shape) for t in addends])
        return out

    def gate(self, sums: Tensor, which: int) -> Tensor:
        return sums.slice(1, which * self.n, self.n)

    def act(self, which: int, leaf: int) -> Expr:
        return self.acts[which].substitute(lambda _: Expr.leaf(leaf, F))

    def rnn(self, x: Tensor, w: Value, r: Value | None, h: Tensor, _: Tensor, made: Tensor, __: Tensor
            ) -> None:
        every = range(1)
        sums = self.times(x, w, every, [*self.bias(0, every), *self.bias(1, every)])
        if r is not None:
            sums = self.times(h, r, every, [sums])
        self.lo.store(made, self.act(0, 0), [sums])

    def gru(self, x: Tensor, w: Value, r: Value, h: Tensor, _: Tensor, made: Tensor, __: Tensor) -> None:
        lo, linear = self.lo, bool(self.layer.attrs.get("linear_before_reset"))
        both, last = range(2), range(2, 3)
        zr = self.times(x, w, both, [*self.bias(0, both), *self.bias(1, both)])
        zr = self.times(h, r, both, [zr])
        given = self.times(x, w, last, [*self.bias(0, last), *([] if linear else self.bias(1, last))])
        reset = _by(self.act(0, 0), Expr.leaf(1, F))
        if linear:
            sums = lo.new((self.layer.batch, self.n), F)
            lo.store(sums, Expr("add", (reset, Expr.leaf(2, F)), F),
                     [self.gate(zr, 1), self.times(h, r, last, self.bias(1, last)), given])
        else:
            kept = lo.new((self.layer.batch, self.n), F)
            lo.store(kept, reset, [self.gate(zr, 1), h])
            sums = self.times(kept, r, last, [given])
        z, one = self.act(0, 0), Expr.const(1.0, F)
        new = _by(Expr("sub", (one, z), F), self.act(1, 1))
        lo.store(made, Expr("add", (new, _by(z, Expr.leaf(2, F))), F), [self.gate(zr, 0), sums, h])

    def lstm(self, x: Tensor, w: Value, r: Value, h: Tensor, c: Tensor, made: Tensor, cell: Tensor) -> None:
        every = range(4)
        sums = self.times(x, w, every, [*self.bias(0, every), *self.bias(1, every)])
        sums = self.times(h, r, every, [sums])
        i, o, forget, g = (self.gate(sums, which) for which in every)
        self.lo.store(cell, Expr("add", (_by(self.act(0, 0), Expr.leaf(1, F)),
                                         _by(self.act(0, 2), self.act(1, 3))), F), [forget, c, i, g])
        self.lo.store(made, _by(self.act(0, 0), self.act(2, 1)), [o, cell])


def _by(x: Expr, y: Expr) -> Expr:
    return Expr("mul", (x, y), F)
