"""Recurrent layers: one product projects the inputs of all steps and directions, then all steps run in one
kernel, which a layer whose directions have different activations calls once for each. Where weights are
bytes, both products are of bytes.

One step of weights that a run computes, which nothing else would use laid out, or one that begins with no
state and needs no R then, is products with W and R as they lie, and an expression of the gates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...codegen.kernels import rnn
from ...codegen.write.expr import Expr
from ...codegen.write.trace import traced
from ...ir import No, Node, Value
from ...ops.nn.rnn import activations_of
from ...records import dataclass
from ..lower import Lowering, Out, lowers
from ..tensor import Tensor
from . import matmul
from .rnn_weights import Laid, bias_of

F = "float32"

Shape = tuple[int, ...]


@lowers("RNN", "GRU", "LSTM", types=(F,))
def recurrentlayer_of(lo: Lowering, node: Node) -> tuple[Tensor, ...] | No:
    assert node.op is not None
    kind, attrs = node.op_type, node.attributes
    x, w, r, b, lengths, h0, c0, peephole = (*node.inputs, *[None] * 8)[:8]
    assert x is not None
    assert w is not None and r is not None
    shapes = [None if v is None else lo.shape(v) for v in (w, r, b, peephole)]
    layer = layer_of(lo, kind, attrs, x, shapes, lengths, h0, c0)
    if isinstance(layer, No):
        return layer
    if _as_they_lie(lo, layer, w, r):
        return _one_step(lo, (id(node),), layer, lo.tensor(x), w, r, b)
    linear = bool(attrs.get("linear_before_reset"))
    plan = rnn.plan(lo.machine, kind, layer.hidden, layer.batch, linear)
    own: tuple[Any, ...] = (id(node), plan)
    laid = Laid(lo, own, plan, layer.directions)
    projected = _projected(lo, lo.tensor(x), laid, w, laid.bias(b, linear))
    packed = extra = laid.recurrent(r)
    if peephole is not None:
        extra = laid.peephole(peephole)
    elif linear:
        extra = laid.shift(b)
    return layer.written(lo, plan, projected, packed, extra, [packed, 0, 0], False)


@lowers("com.microsoft::DynamicQuantizeLSTM", types=(F,))
def codedlayer_of(lo: Lowering, node: Node) -> tuple[Tensor, ...] | No:
    """An LSTM of bytes."""
    x, w, r, b, lengths, h0, c0, peephole, *numbers = (*node.inputs, *[None] * 12)[:12]
    given = [w, r, b, peephole, *numbers]
    known = [lo.known(v) for v in given]
    if x is None or any(k is None and v is not None for k, v in zip(known, given, strict=True)):
        return No("weights that are not constant")
    weights, recurrent, bias, peep, *parameters = known
    if weights is None or recurrent is None or weights.ndim != 3 or recurrent.ndim != 3:
        return No("weights that are no matrices")
    weights, recurrent = (a.transpose(0, 2, 1) for a in (weights, recurrent))
    shapes = [None if a is None else a.shape for a in (weights, recurrent, bias, peep)]
    layer = layer_of(lo, "LSTM", {"layout": 0, **node.attributes}, x, shapes, lengths, h0, c0)
    if isinstance(layer, No):
        return layer
    columns = layer.directions, 4 * layer.hidden
    w_scale, w_zero, r_scale, r_zero = (_by_column(a, columns) for a in parameters)
    if w_scale is None or w_zero is None or r_scale is None or r_zero is None:
        return No("its scales and zero points are not one for each direction or each column")
    plan = rnn.plan(lo.machine, "LSTM", layer.hidden, layer.batch, coded=True)
    own: tuple[Any, ...] = (id(node), plan)
    total = bias_of(bias, 4, layer.hidden, layer.directions, False)
    projected = _coded_inputs(lo, x, own, plan, weights, w_scale, w_zero, total)
    how = plan.packing(lo.machine)
    packed = lo.constant((*own, "recurrent"), lambda: plan.pack_codes(recurrent, how))
    of_columns = lo.constant((*own, "numbers"), lambda: plan.numbers(recurrent, r_scale, r_zero))
    shifted = bool((r_zero != (0 if recurrent.dtype == np.int8 else 128)).any())
    extra = packed if peephole is None else Laid(lo, own, plan, layer.directions).peephole(peephole)
    return layer.written(lo, plan, projected, packed, extra,
                         [of_columns, of_columns.strides[0], how.run(layer.hidden)], shifted)


def _by_column(given: np.ndarray | None, columns: tuple[int, int]) -> np.ndarray | None:
    """A scale or zero point of weights, one for each direction or each column, as one for each column."""
    if given is None or given.size not in (1, columns[0], columns[0] * columns[1]):
        return None
    whole = given.size == columns[0] * columns[1]
    return np.broadcast_to(given.reshape(-1, columns[1] if whole else 1), columns)


def _coded_inputs(lo: Lowering, x: Value, own: tuple[Any, ...], plan: rnn.RecurrencePlan, weights: np.ndarray,
                  scale: np.ndarray, zero: np.ndarray, bias: np.ndarray) -> Tensor:
    """X, quantized by its own range, times every direction's W of bytes plus biases, as `_projected`."""
    from .quantized import int8, int8_operators

    steps, batch, k = lo.shape(x)
    n = len(weights) * plan.columns

    def matrix() -> tuple[np.ndarray, np.ndarray]:
        codes = np.ascontiguousarray(plan.spread(weights).reshape(n, k).T)
        return codes[None], plan.spread(zero).reshape(n)
    by = lo.constant((*own, "scale"), lambda: plan.spread(scale.astype(np.float32)).reshape(n))
    added = lo.constant((*own, "bias"), lambda: plan.spread(bias).reshape(n))
    second = int8_operators.Second(int8.Factor((*own, "input"), (1, k, n), matrix))
    made = int8_operators.ranged_product(lo, x, second, by, added)
    assert made is not None
    out = lo.new((steps, batch, n), F)
    value = Value("projected inputs")
    lo.bind(value, made)
    lo.left[value] = 1
    lo.into(value, out)
    return out


@dataclass(eq=False)
class Layer:
    """A recurrent layer whose inputs are as the definition wants them. `lengths`, `h0`, `c0`: inputs, None
    where absent; `peepholes`: whether gates see the cell."""

    kind: str
    attrs: dict[str, Any]
    activations: list[tuple[Expr, ...]]
    steps: int
    batch: int
    hidden: int
    lengths: Value | None
    h0: Value | None
    c0: Value | None
    peepholes: bool

    @property
    def directions(self) -> int:
        return len(self.activations)

    def written(self, lo: Lowering, plan: rnn.RecurrencePlan, projected: Tensor, packed: Tensor,
                extra: Tensor, numbers: list[Any], shifted: bool) -> tuple[Tensor, ...]:
        """Append the steps' kernel, and give its results. `projected`: inputs times W; `packed`: R; `extra`
        and `numbers`: what belongs to it."""
        layout, steps, batch, hidden = self.attrs["layout"], self.steps, self.batch, self.hidden
        directions = self.directions
        over = (projected.strides[1], projected.strides[0]) if layout else projected.strides[:2]
        y = lo.new((batch, steps, directions, hidden) if layout else (steps, directions, batch, hidden), F)
        y_strides = [y.strides[i] for i in ((1, 0, 2) if layout else (0, 2, 1))]
        cells: list[Any] = [projected, *over, plan.columns, packed, packed.strides[0], Out(y), *y_strides]
        lasts = []
        for v in (self.h0, self.c0)[:2 if self.kind == "LSTM" else 1]:
            start = lo.tensor(v) if v is not None else lo.constant(
                ("zeros", hidden), lambda: np.zeros(hidden, np.float32)).expand((directions, batch, hidden))
            if start.strides[2] != 1 and hidden > 1:
                start = lo.contiguous(start)
            if v is not None and self.lengths is not None:
                start = self._begun(lo, start)
            turned = layout and v is not None
            last = lo.new((batch, directions, hidden) if layout else (directions, batch, hidden), F)
            lasts.append(last)
            cells += [start, start.strides[0 if turned else 1], start.strides[1 if turned else 0], Out(last),
                      last.strides[0 if layout else 1], last.strides[1 if layout else 0]]
        cells += [packed, 0, 0] * 2 * (self.kind != "LSTM")
        lengths = packed if self.lengths is None else lo.contiguous(lo.tensor(self.lengths))
        cells += [extra, extra.strides[0], lengths, Out(lo.status), steps, batch, hidden, plan.blocks,
                  plan.tiles, plan.per_item, plan.items]
        backward = 0 if self.attrs["direction"] == "reverse" else 1
        same = len(set(self.activations)) == 1
        for first, count in [(0, directions)] if same else [(d, 1) for d in range(directions)]:
            spec = plan.spec(self.activations[first], self.attrs["clip"] or 0.0, self.peepholes,
                             self.lengths is not None, bool(self.attrs.get("input_forget")), shifted)
            lo.step(spec, [*cells, first, backward, *numbers], count * plan.items, 1, plan.scratch)
        return (y, *lasts) if self.kind == "LSTM" else (y, lasts[0])

    def _begun(self, lo: Lowering, start: Tensor) -> Tensor:
        assert self.lengths is not None
        counts = lo.tensor(self.lengths)
        along = (counts.strides[0], 0, 0) if self.attrs["layout"] else (0, counts.strides[0], 0)
        made = lo.new(start.shape, F)
        lo.store(made, begun(F), [start, counts.view(start.shape, along)])
        return made


def begun(dtype: str) -> Expr:
    """A state before the first step, leaf 0, zero where there is none by the lengths, leaf 1: it is the last
    state there."""
    some = Expr("lt", (Expr.const(0, "int32"), Expr.leaf(1, "int32")), "bool")
    return Expr("where", (some, Expr.leaf(0, dtype).cast(F), Expr.const(0.0, F)), F)


def layer_of(lo: Lowering, kind: str, attrs: dict[str, Any], x: Value, shapes: Sequence[Shape | None],
             lengths: Value | None, h0: Value | None, c0: Value | None) -> Layer | No:
    """The layer of x and of W and R [directions, gates * hidden, n], biases and peephole weights of these
    `shapes`."""
    weights, recurrent, _, peephole = shapes
    assert weights is not None and recurrent is not None
    if len(weights) != 3 or len(recurrent) != 3:
        return No("weights that are no matrices")
    activations = _activations(kind, attrs, weights[0])
    shape = lo.shape(x)
    if isinstance(activations, No) or not _fits(kind, attrs, shape, shapes, lo, lengths, h0, c0):
        return activations if isinstance(activations, No) else No("shapes that do not fit or empty ones")
    steps, batch = (shape[1], shape[0]) if attrs["layout"] else shape[:2]
    return Layer(kind, attrs, activations, steps, batch, recurrent[2], lengths, h0, c0, peephole is not None)


def _activations(kind: str, attrs: dict[str, Any], directions: int) -> list[tuple[Expr, ...]] | No:
    """Their trees, per direction."""
    try:
        named = activations_of(kind, attrs["activations"], directions, attrs["activation_alpha"],
                               attrs["activation_beta"])
    except ValueError as error:
        return No(str(error))
    return [tuple([traced(op, given, [F]) for op, given in each]) for each in named]


def _fits(kind: str, attrs: dict[str, Any], x: Shape, shapes: Sequence[Shape | None],
          lo: Lowering, lengths: Value | None, h0: Value | None, c0: Value | None) -> bool:
    """Whether shapes and attributes are as the definition wants them, and nothing is empty."""
    w, r, b, p = shapes
    assert w is not None and r is not None
    directions = 2 if attrs["direction"] == "bidirectional" else 1
    if len(x) != 3 or 0 in x or 0 in r or attrs["layout"] not in (0, 1):
        return False
    if attrs["direction"] not in ("forward", "foward", "reverse", "bidirectional"):
        return False
    batch, hidden, gates = x[0 if attrs["layout"] else 1], r[2], rnn.GATES[kind]
    state = (batch, directions, hidden) if attrs["layout"] else (directions, batch, hidden)
    clip = attrs["clip"]
    return (w == (directions, gates * hidden, x[2]) and r == (directions, gates * hidden, hidden)
            and (b is None or b == (directions, 2 * gates * hidden))
            and (p is None or p == (directions, 3 * hidden))
            and attrs["hidden_size"] in (None, 0, hidden) and (clip is None or clip > 0)
            and all(v is None or lo.shape(v) == state for v in (h0, c0))
            and (lengths is None or (lo.shape(lengths) == (batch,) and lo.dtype(lengths) == "int32")))


def _projected(lo: Lowering, x: Tensor, laid: Laid, w: Value, bias: Tensor) -> Tensor:
    """X times every direction's W plus biases, [.., .., directions * columns] in the order of `laid`."""
    plan, weights = laid.plan, lo.known(w)
    rows, k, n = x.shape[0] * x.shape[1], x.shape[2], laid.directions * plan.columns
    flat = x.reshape((rows, k)) or lo.contiguous(x).reshape((rows, k))
    assert flat is not None
    if flat.strides[1] != 1 and k > 1:
        flat = lo.contiguous(flat)
    out = lo.new((rows, n), F)
    tree = Expr("add", (Expr.leaf(0, F), Expr.leaf(1, F)), F)
    known: matmul.Weights | None = None
    if weights is not None:
        known = (*laid.own, "input"), lambda: np.ascontiguousarray(plan.spread(weights).reshape(n, k).T)
    factor = laid.inputs(w) if weights is None else lo.tensor(w).view((k, n), (1, k))
    matmul.write(lo, flat, factor, known, out, tree, [bias.expand((rows, n))])
    return out.view((*x.shape[:2], n), (x.shape[1] * n, n, 1))


def _as_they_lie(lo: Lowering, layer: Layer, w: Value, r: Value) -> bool:
    """Whether a layer is one step of products with W and R as they lie."""
    plain = not (layer.lengths or layer.peepholes or layer.attrs["clip"] or layer.attrs.get("input_forget"))
    return plain and layer.steps == 1 and (
        not (lo.knows(w) and lo.knows(r)) or _stateless(lo, layer, r))


def _stateless(lo: Lowering, layer: Layer, r: Value) -> bool:
    """Whether the state adds nothing: an infinite weight times 0 is no number."""
    known = lo.known(r)
    return layer.kind == "RNN" and layer.h0 is None and known is not None and bool(np.isfinite(known).all())


def _one_step(lo: Lowering, own: tuple[Any, ...], layer: Layer, x: Tensor, w: Value, r: Value,
              b: Value | None) -> tuple[Tensor, ...]:
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
        n, all_gates = self.n, rnn.GATES[self.layer.kind]
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
