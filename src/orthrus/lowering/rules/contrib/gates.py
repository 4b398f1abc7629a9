"""Gates, branches and short convolutions of com.microsoft: normalizations with a gate behind them, sums over
a few branches or taps as one tree over views."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ....codegen.write.expr import Expr
from ....codegen.write.trace import trace, traced
from ....ir import No, Node, Value
from ....ops.contrib.gates import DECAY
from ....ops.nn.activation import Sigmoid, Swish
from ...lower import Lazy, Lowering, Pending, lowers
from ...rule_sets import BOTH
from ...tensor import Tensor, c_strides
from ..attention import MS, inputs_of, result
from ..rows import FLOATS, F, Norm, finished, reading

_FEW = 8
"""Branches or taps up to which their sum is one tree."""


def _leaf(index: int, t: Tensor) -> Expr:
    return Expr.leaf(index, t.dtype).cast(F)


def _sum(terms: Sequence[tuple[Expr, Expr]], total: Expr | None = None) -> Expr:
    """The sum of products, plus `total`."""
    for a, b in terms:
        total = Expr("mul", (a, b), F) if total is None else Expr("fma", (a, b, total), F)
    assert total is not None
    return total


def _grouped(t: Tensor, groups: int) -> Tensor:
    """(..., G * C) as (..., G, C)."""
    each, step = t.shape[-1] // groups, t.strides[-1]
    return t.view((*t.shape[:-1], groups, each), (*t.strides[:-1], each * step, step))


@lowers(MS + "LinearAttentionGate", types=FLOATS, sets=BOTH)
def gate(lo: Lowering, node: Node) -> Any:
    """The decay and the rate."""
    a, bias, scale, b = inputs_of(node, 4)
    assert a is not None and bias is not None and scale is not None
    shape = lo.shape(a)
    if not shape or lo.shape(bias) != shape[-1:] or lo.shape(scale) != shape[-1:] or (
            b is not None and lo.shape(b) != shape):
        return No("its bias, scale or rates do not fit")
    decay = lo.elementwise([a, bias, scale], lambda dtypes: trace(DECAY, {}, dtypes))
    if isinstance(decay, No) or b is None:
        return decay if isinstance(decay, No) else (decay,)
    rate = lo.elementwise([b], lambda dtypes: trace(Sigmoid, {}, dtypes))
    return rate if isinstance(rate, No) else (decay, rate)


@lowers(MS + "GatedRMSNorm", types=FLOATS, sets=BOTH)
def gated_norm(lo: Lowering, node: Node) -> Pending | No:
    """Each group of features over its root mean square, times its scale and the opened gate."""
    x, scale, opened = node.inputs
    assert x is not None and scale is not None and opened is not None
    shape, size, kind = lo.shape(x), lo.shape(scale), node.attributes["activation"]
    if len(size) != 1 or 0 in (*size, *shape) or not shape or shape[-1] % size[0] or (
            lo.shape(opened) != shape or kind not in ("silu", "swish", "sigmoid")
            or {lo.dtype(scale), lo.dtype(opened)} - {*FLOATS}):
        return No("its scale or gate does not fit")
    groups = shape[-1] // size[0]
    gates = _grouped(lo.tensor(opened), groups)
    operands = [lo.tensor(scale).expand(gates.shape), gates]
    then = traced(Sigmoid, {}, [F]) if kind == "sigmoid" else traced(Swish, {"alpha": 1.0}, [F])
    tree = Expr("mul", (Expr("mul", (Expr.leaf(0, F), _leaf(1, operands[0])), F),
                        then.substitute(lambda _: _leaf(2, gates))), F)
    dtype = lo.dtype(x)
    return finished(lo, reading(lo, x), (len(shape),), dtype, Norm("rms", node.attributes["epsilon"]),
                    tree.cast(dtype), operands, lambda t: _grouped(t, groups))


def _branches(lo: Lowering, x: Value, given: int) -> int | No:
    """How many branches streams have that lie flattened, 0 where they are grouped."""
    shape = lo.shape(x)
    if 0 in shape or given < 0 or len(shape) < (1 if given else 2):
        return No("its streams have no branches")
    if not given or shape[-2:-1] == (given,) and shape[-1] % given:
        return 0
    return No("its streams do not divide") if shape[-1] % given else given


@lowers(MS + "BranchwiseRMSNorm", types=FLOATS, sets=BOTH)
def branch_norm(lo: Lowering, node: Node) -> Pending | No:
    """Each branch over its root mean square, times a scale."""
    x, scale = inputs_of(node, 2)
    assert x is not None
    count = _branches(lo, x, node.attributes["num_branches"])
    if isinstance(count, No):
        return count
    shape, dtype = lo.shape(x), lo.dtype(x)
    walked = (*shape[:-1], count, shape[-1] // count) if count else shape
    operands = []
    tree = Expr.leaf(0, F)
    if scale is not None:
        own = lo.shape(scale)
        if own not in (walked[-1:], walked[-2:], (math.prod(walked[-2:]),)) or lo.dtype(scale) not in FLOATS:
            return No("its scale does not fit")
        t = lo.contiguous(lo.tensor(scale))
        if len(own) == 1 and own != walked[-1:]:
            t = t.view(walked[-2:], c_strides(walked[-2:]))
        operands = [t.expand(walked)]
        tree = Expr("mul", (tree, _leaf(1, t)), F)
    return finished(lo, reading(lo, x), (len(walked) - 1,), dtype, Norm("rms", node.attributes["epsilon"]),
                    tree.cast(dtype), operands, (lambda t: _grouped(t, count)) if count else (lambda t: t))


def _streams(lo: Lowering, x: Value, given: int) -> Tensor | No:
    """Streams (..., C, H) of a few branches."""
    count = _branches(lo, x, given)
    if isinstance(count, No):
        return count
    t = _grouped(lo.tensor(x), count) if count else lo.tensor(x)
    return t if t.shape[-2] <= _FEW else No(f"more than {_FEW} branches")


def _gate(lo: Lowering, value: Value, streams: Tensor) -> Tensor | No:
    """A gate by branch or by feature, broadcast to the streams."""
    shape, lead, (count, size) = lo.shape(value), streams.shape[:-2], streams.shape[-2:]
    t = lo.contiguous(lo.tensor(value))
    if t.dtype not in FLOATS:
        return No("a gate of another type")
    for suffix in ((count,), (count, 1), (count, size), (count * size,)):
        if shape == (*lead, *suffix):
            whole = (*lead, count, 1 if math.prod(suffix) == count else size)
            return t.view(whole, c_strides(whole)).expand(streams.shape)
    return No("a gate that does not fit")


@lowers(MS + "HyperConnectionPreMix", types=FLOATS, sets=BOTH)
def mix_before(lo: Lowering, node: Node) -> Lazy | No:
    """The sum of all branches times their gates."""
    x, gates = node.inputs
    assert x is not None and gates is not None
    streams = _streams(lo, x, node.attributes["num_branches"])
    if isinstance(streams, No):
        return streams
    opened = _gate(lo, gates, streams)
    if isinstance(opened, No):
        return opened
    shape, count = (*streams.shape[:-2], streams.shape[-1]), streams.shape[-2]
    operands = [_at(t, c) for t in (streams, opened) for c in range(count)]
    tree = _sum([(_leaf(c, streams), _leaf(count + c, opened)) for c in range(count)])
    factor = Expr.const(node.attributes["reduction_scale"], F)
    return Lazy(shape, Expr("mul", (tree, factor), F).cast(streams.dtype), [*operands])


def _at(t: Tensor, branch: int) -> Tensor:
    """One branch (..., H) of (..., C, H)."""
    return t.view((*t.shape[:-2], t.shape[-1]), (*t.strides[:-2], t.strides[-1]), branch * t.strides[-2])


@lowers(MS + "HyperConnectionPostMix", types=FLOATS, sets=BOTH)
def mix_behind(lo: Lowering, node: Node) -> Tensor | No:
    """Branches, or a mix of them, plus a block's output times its gates."""
    x, block, gates, mix = inputs_of(node, 4)
    assert x is not None and block is not None and gates is not None
    streams = _streams(lo, x, node.attributes["num_branches"])
    if isinstance(streams, No):
        return streams
    opened, lead, count = _gate(lo, gates, streams), streams.shape[:-2], streams.shape[-2]
    if isinstance(opened, No) or lo.shape(block) != (*lead, streams.shape[-1]) or (
            mix is not None and lo.shape(mix) != (*lead, count, count)):
        return No("its gates, block or mix do not fit")
    made = lo.tensor(block)
    spread = made.view((*lead, count, made.shape[-1]), (*made.strides[:-1], 0, made.strides[-1]))
    operands = [opened, spread]
    tree = Expr("mul", (_leaf(0, opened), _leaf(1, spread)), F)
    if mix is None:
        operands.append(streams)
        tree = Expr("add", (_leaf(2, streams), tree), F)
    else:
        table, terms = lo.tensor(mix), []
        for c in range(count):
            one = _at(streams, c)
            operands += [one.view(streams.shape, (*one.strides[:-1], 0, one.strides[-1])),
                         table.view((*lead, count, streams.shape[-1]), (*table.strides[:-1][:-1],
                                                                        table.strides[-1], 0),
                                    c * table.strides[-2])]
            terms.append((_leaf(len(operands) - 2, streams), _leaf(len(operands) - 1, table)))
        tree = _sum(terms, tree)
    out = result(lo, node.outputs[0], lo.shape(x), streams.dtype)
    into = out if out.shape == streams.shape else _grouped(out, count)
    lo.store(into, tree.cast(streams.dtype), operands)
    return out


@lowers(MS + "CausalConvWithState", types=FLOATS, sets=BOTH)
def causal_conv(lo: Lowering, node: Node) -> Any:
    """The taps are as many views of what came before and now."""
    vx, v_weight, v_bias, v_past = inputs_of(node, 4)
    assert vx is not None and v_weight is not None
    at, shape, kernel = node.attributes, lo.shape(vx), lo.shape(v_weight)
    along, dilation, kind = 1 if at["channels_last"] else 2, at["dilation"], at["activation"]
    if at["ndim"] != 1 or at["state_window"] or kind not in ("none", "silu", "swish") or dilation < 1:
        return No("several dimensions or states, or another activation")
    if at["input_channel_offset"] or at["input_channels"] or at["state_length"] or (
            at["state_update_capacity"] or at["state_channels_last"] not in (-1, at["channels_last"])):
        return No("a part of its channels, or a state of another form")
    channels = shape[2:] if along == 1 else shape[1:2]
    if len(shape) < 3 or (along == 2 and len(shape) != 3) or 0 in (*shape, *kernel) or len(kernel) != 3 or (
            kernel[1] != 1 or kernel[0] != math.prod(channels) or kernel[2] > _FEW):
        return No(f"its weights do not fit, or it is empty or has more than {_FEW} taps")
    held = (kernel[2] - 1) * dilation
    before = (*shape[:along], held, *shape[along + 1:])
    if v_past is not None and lo.shape(v_past) != before or (
            v_bias is not None and lo.shape(v_bias) != kernel[:1]):
        return No("its state or bias does not fit")
    x = lo.tensor(vx)
    whole = lo.new((*shape[:along], held + shape[along], *shape[along + 1:]), x.dtype)
    if held and v_past is not None:
        lo.store(whole.slice(along, 0, held), _leaf(0, past := lo.tensor(v_past)).cast(x.dtype), [past])
    elif held:
        lo.store(whole.slice(along, 0, held), Expr.const(0.0, x.dtype), [])
    lo.copy(x, whole.slice(along, held, shape[along]))
    weight = lo.contiguous(lo.tensor(v_weight))

    def by_channel(t: Tensor, step: int, first: int) -> Tensor:
        lying = [step * s for s in c_strides(channels)]
        if along == 1:
            return t.view((1, 1, *channels), (0, 0, *lying), first).expand(shape)
        return t.view((1, *channels, 1), (0, *lying, 0), first).expand(shape)
    taps = [whole.slice(along, j * dilation, shape[along]) for j in range(kernel[2])]
    operands = [*taps, *(by_channel(weight, kernel[2], j) for j in range(kernel[2]))]
    total = None
    if v_bias is not None:
        bias = lo.contiguous(lo.tensor(v_bias))
        total = _leaf(len(operands), bias)
        operands.append(by_channel(bias, 1, 0))
    tree = _sum([(_leaf(j, x), _leaf(len(taps) + j, weight)) for j in range(len(taps))], total)
    if kind != "none":
        inner = tree
        tree = traced(Swish, {"alpha": 1.0}, [F]).substitute(lambda _: inner)
    y = result(lo, node.outputs[0], shape, x.dtype)
    lo.store(y, tree.cast(x.dtype), operands)
    return y, whole.slice(along, shape[along], held)
