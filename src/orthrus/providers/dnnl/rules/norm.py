"""Normalizations and softmax."""

from __future__ import annotations

import math

from ....ir import No, Node
from ..binding import (
    DST,
    INFERENCE,
    LRN_ACROSS,
    MEAN,
    SCALE,
    SHIFT,
    SOFTMAX,
    SRC,
    USE_SCALE,
    USE_SHIFT,
    USE_STATISTICS,
    VARIANCE,
)
from ..lower import Lowering
from ..objects import Attr, Primitive
from ..step import lowers
from ..tensor import Argument, Tensor
from .elementwise import between


@lowers("BatchNormalization")
def batch_normalization(lo: Lowering, node: Node) -> Tensor | No:
    """By given statistics, per channel."""
    x = lo.dense(lo.tensor(node.inputs[0]))
    if len(x.shape) < 2:
        return No("no channels")
    scale, shift, mean, variance = (lo.plain(lo.tensor(v)) for v in node.inputs[1:5])
    made = Primitive(lo.lib, "batch_normalization_forward", lo.lib.engine, INFERENCE, x.desc, x.desc,
                     node.attributes["epsilon"], USE_STATISTICS | USE_SCALE | USE_SHIFT, Attr(lo.lib))
    out = lo.new(x.shape, x.desc)
    lo.step(made, [(SRC, x), (MEAN, mean), (VARIANCE, variance), (SCALE, scale), (SHIFT, shift), (DST, out)],
            [out])
    return out


@lowers("LayerNormalization")
def layer_normalization(lo: Lowering, node: Node) -> Tensor:
    """Over the dimensions from `axis` on."""
    attrs = node.attributes
    x = lo.tensor(node.inputs[0])
    axis = attrs["axis"] % len(x.shape)
    shift = node.inputs[2] if len(node.inputs) > 2 else None
    return normalized(lo, x, axis, lo.tensor(node.inputs[1]), None if shift is None else lo.tensor(shift),
                      attrs["epsilon"])


def normalized(lo: Lowering, x: Tensor, axis: int, scale: Tensor, shift: Tensor | None, epsilon: float
               ) -> Tensor:
    """The layer normalization of `x` over the dimensions from `axis` on."""
    columns = math.prod(x.shape[axis:])
    rows = lo.reshaped(x, (x.size // columns, columns))
    flags = USE_SCALE | (0 if shift is None else USE_SHIFT)
    made = Primitive(lo.lib, "layer_normalization_forward", lo.lib.engine, INFERENCE, rows.desc, rows.desc,
                     None, epsilon, flags, Attr(lo.lib))
    out = lo.new(rows.shape, rows.desc)
    args: list[Argument] = [(SRC, rows), (SCALE, lo.reshaped(scale, (columns,))), (DST, out)]
    if shift is not None:
        args.append((SHIFT, lo.reshaped(shift, (columns,))))
    lo.step(made, args, [out])
    return lo.view(out, x.shape)


@lowers("com.microsoft::SkipLayerNormalization")
def skip_layer_normalization(lo: Lowering, node: Node) -> tuple[Tensor | None, ...]:
    """The layer normalization of x + skip + bias over the last dimension, and the sum."""
    inputs = [*node.inputs, None, None]
    total = lo.tensor(inputs[0])
    for value in (inputs[1], inputs[4]):
        if value is not None:
            total = between(lo, "add", total, lo.tensor(value))
    shift = inputs[3]
    y = normalized(lo, total, len(total.shape) - 1, lo.tensor(inputs[2]),
                   None if shift is None else lo.tensor(shift), node.attributes["epsilon"])
    return (y, None, None, total)[:len(node.outputs)]


@lowers("Softmax", "LogSoftmax")
def softmax(lo: Lowering, node: Node) -> Tensor:
    """Over one dimension; before version 13, over all from `axis` on."""
    x = lo.tensor(node.inputs[0])
    axis = node.attributes["axis"] % len(x.shape)
    kind = "log" if node.op_type == "LogSoftmax" else "accurate"
    if node.version < 13:
        rows = lo.reshaped(x, (math.prod(x.shape[:axis]), math.prod(x.shape[axis:])))
        return lo.view(exponentials(lo, rows, 1, kind), x.shape)
    last = len(x.shape) - 1
    order = [i for i in range(last + 1) if i != axis] + [axis]
    made = exponentials(lo, lo.plain(lo.permuted(x, order)), last, kind)
    return lo.permuted(made, [order.index(i) for i in range(last + 1)])


def exponentials(lo: Lowering, x: Tensor, axis: int, kind: str = "accurate") -> Tensor:
    """The softmax of `x` over `axis`."""
    made = Primitive(lo.lib, "softmax_forward", lo.lib.engine, INFERENCE, SOFTMAX[kind], x.desc, x.desc, axis,
                     Attr(lo.lib))
    out = lo.new(x.shape, x.desc)
    lo.step(made, [(SRC, x), (DST, out)], [out])
    return out


@lowers("LRN")
def local_response(lo: Lowering, node: Node) -> Tensor | No:
    """Over neighbouring channels."""
    attrs = node.attributes
    x = lo.dense(lo.tensor(node.inputs[0]))
    if not 3 <= len(x.shape) <= 5:
        return No(f"rank {len(x.shape)}")
    made = Primitive(lo.lib, "lrn_forward", lo.lib.engine, INFERENCE, LRN_ACROSS, x.desc, x.desc,
                     attrs["size"], attrs["alpha"], attrs["beta"], attrs["bias"], Attr(lo.lib))
    out = lo.new(x.shape, x.desc)
    lo.step(made, [(SRC, x), (DST, out)], [out])
    return out
