"""Convolutions and transposed convolutions, of reals and of integers with scales."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from ....ir import No, Node
from ....ops.nn.conv import transposed
from ....ops.nn.geometry import per_axis, window
from ..binding import BIAS, CONVOLUTION, DECONVOLUTION, DST, INFERENCE, SCALES, SRC, WEIGHTS, dims
from ..fuse import finish
from ..lower import Lowering
from ..objects import Attr, Desc, Primitive, Scaling, Sum, last_strides, open_layout, strided
from ..step import LINKS, lowers
from ..tensor import Argument, Quantized, Tensor
from .winograd import transformed


@lowers("Conv")
def convolution(lo: Lowering, node: Node) -> None:
    """X [N, C, D...] and W [M, C/group, K...]; integers stay integers where both are quantized."""
    qx, qw = lo.quantized(node.inputs[0]), lo.quantized(node.inputs[1])
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    b = None if bias is None else lo.plain(lo.tensor(bias))
    if qx is not None and qw is not None and fits(qx, qw, 0):
        scalings, args = scaled(lo, qx, qw, 1 if node.attributes["group"] == 1 else 3)
        _convolve(lo, node, qx.tensor, qw.tensor, b, "float32", scalings, args, integer=True)
    else:
        if lo.winograd and transformed(lo, node, b):
            return
        *before, (x, w) = _pieces(lo, node)
        over = None
        for piece in before:
            over = _added(lo, node, *piece, over)
        _convolve(lo, node, x, w, b, x.dtype, over=over)


@lowers("QLinearConv")
def quantized_convolution(lo: Lowering, node: Node) -> No | None:
    """As between DequantizeLinear and QuantizeLinear; B is in units of both scales."""
    found = operands(lo, node, 0)
    if isinstance(found, No):
        return found
    qx, qw, end = found
    bias = lo.known(node.inputs[8]) if len(node.inputs) > 8 else None
    if bias is not None and bias.shape != qw.tensor.shape[:1]:
        return No("its bias is not one for each channel")
    b = None
    if bias is not None:
        b = lo.constant(("bias", id(node)), lambda: (bias * (qx.scale.reshape(()) * qw.scale.reshape(-1))
                                                     ).astype(np.float32))
    scalings, args = scaled(lo, qx, qw, 1 if node.attributes["group"] == 1 else 3)
    more, further = lo.scaled(end, DST)
    _convolve(lo, node, qx.tensor, qw.tensor, b, end.tensor.dtype, [*scalings, *more], [*args, *further],
              fuse=False)
    return None


def operands(lo: Lowering, node: Node, axis: int) -> tuple[Quantized, Quantized, Quantized] | No:
    """Both sides of a QLinear operator and what its result is scaled by, as a tensor of that type."""
    x, w = lo.tensor(node.inputs[0]), lo.tensor(node.inputs[3])
    numbers = [lo.known(v) for v in (*node.inputs[1:3], *node.inputs[4:8])]
    sides = [n for n in numbers if n is not None]
    if len(sides) != 6:
        return No("a scale or zero point is no constant")
    qx, qw = Quantized(x, sides[0], sides[1], 0, node), Quantized(w, sides[2], sides[3], axis, node)
    if not fits(qx, qw, axis) or sides[4].size != 1:
        return No("scales by row, or weights that are not int8 around zero")
    end = lo.constant(("end", id(node)), lambda: sides[5].reshape(1))
    return qx, qw, Quantized(end, sides[4], sides[5], 0, node)


def fits(x: Quantized, w: Quantized, axis: int) -> bool:
    """Whether a product of the two can be formed of integers: one scale for x, one in all or one for each
    index of `axis` for w, whose zero points are 0."""
    if not x.whole or w.tensor.dtype != "int8" or w.zero.any() or x.tensor.dtype not in ("int8", "uint8"):
        return False
    return w.scale.size == 1 or (w.axis % len(w.tensor.shape) == axis % len(w.tensor.shape)
                                 and w.scale.size == w.tensor.shape[axis])


def scaled(lo: Lowering, qx: Quantized, qw: Quantized, mask: int) -> tuple[list[Scaling], list[Argument]]:
    """The scales of both sides; `mask`: the dimensions of the weights that theirs are for."""
    scalings, args = lo.scaled(qx, SRC)
    scalings.append(Scaling(WEIGHTS, "scales", 0 if qw.scale.size == 1 else mask))
    return scalings, [*args, (SCALES | WEIGHTS, scales_of(lo, qw))]


def scales_of(lo: Lowering, found: Quantized) -> Tensor:
    """The scales of weights as an argument."""
    return lo.constant(("scales", id(found.node)), lambda: found.scale.astype(np.float32).reshape(-1))


def _pieces(lo: Lowering, node: Node) -> list[tuple[Tensor, Tensor]]:
    """The image and weights of a convolution; or of each part of an image that lies in several tensors, whose
    convolutions add up to it."""
    parts, weights = lo.joined(node.inputs[0]), lo.known(node.inputs[1])
    if not parts or weights is None:
        return [(lo.tensor(node.inputs[0]), lo.tensor(node.inputs[1]))]
    found, at = [], 0
    for part in parts:
        mine = weights[:, at:at + part.shape[1]]
        found.append((part, lo.constant(("weights", id(node), at), partial(np.ascontiguousarray, mine))))
        at += part.shape[1]
    return found


class _Made:
    """Makes the primitives of a convolution."""

    def __init__(self, lo: Lowering, node: Node, x: Tensor, w: Tensor, bias: Tensor | None) -> None:
        self.lo, self.bias, attrs = lo, bias, node.attributes
        self.win = window(x.shape[2:], attrs["kernel_shape"] or w.shape[2:], attrs["strides"],
                          attrs["dilations"], attrs["pads"], attrs["auto_pad"])
        self.group, self.out = attrs["group"], (x.shape[0], w.shape[0], *self.win.out)
        if self.group > 1:
            w = lo.reshaped(w, (self.group, w.shape[0] // self.group, *w.shape[1:]))
        self.x, self.w = x, w
        self.source, self.weights = (open_layout(lo.lib, t.shape, t.dtype) for t in (x, w))

    def make(self, desc: Desc, attr: Attr) -> Primitive:
        win = self.win
        return Primitive(self.lo.lib, "convolution_forward", self.lo.lib.engine, INFERENCE, CONVOLUTION,
                         self.source, self.weights, None if self.bias is None else self.bias.desc, desc,
                         dims(win.strides), dims([d - 1 for d in win.dilations]), dims(win.begin),
                         dims(win.end), attr)

    def reads(self, p: Primitive) -> list[Argument]:
        x, w = self.x, self.w
        args = [(SRC, self.lo.laid(x, p.desc(SRC, x.shape, x.dtype))),
                (WEIGHTS, self.lo.laid(w, p.desc(WEIGHTS, w.shape, w.dtype)))]
        return args if self.bias is None else [*args, (BIAS, self.bias)]


def _added(lo: Lowering, node: Node, x: Tensor, w: Tensor, over: Tensor | None) -> Tensor:
    """The convolution of a piece, added to what is in `over`."""
    it = _Made(lo, node, x, w, None)
    made = it.make(open_layout(lo.lib, it.out, x.dtype) if over is None else over.desc,
                   Attr(lo.lib, [] if over is None else [Sum()]))
    out = lo.new(it.out, made.desc(DST, it.out, x.dtype)) if over is None else over
    lo.step(made, [*it.reads(made), (DST, out)], [out])
    return out


def _convolve(lo: Lowering, node: Node, x: Tensor, w: Tensor, bias: Tensor | None, dtype: str,
              scalings: Sequence[Scaling] = (), more: Sequence[Argument] = (), integer: bool = False,
              fuse: bool = True, over: Tensor | None = None) -> None:
    """Write the step of a convolution."""
    it = _Made(lo, node, x, w, bias)
    layout = None
    if x.shape[1] < 4 and dtype == "float32" and _feeds_convolutions(lo, node):
        layout = strided(lo.lib, it.out, dtype, last_strides(it.out))
    finish(lo, node, it.out, dtype, it.make, lambda p: [*it.reads(p), *more], layout=layout,
           scalings=scalings, integer=integer, fuse=fuse, over=over)


def _feeds_convolutions(lo: Lowering, node: Node) -> bool:
    """Whether a result is read by convolutions alone, which want channels last: the first one of a model,
    with few channels, would choose blocks."""
    value = node.output
    while (reader := lo.only_reader(value)) is not None and (reader.domain, reader.op_type) in LINKS:
        value = reader.output
    return bool(value.uses) and all(reader.op_type == "Conv" for reader in value.uses)


@lowers("ConvTranspose")
def transposed_convolution(lo: Lowering, node: Node) -> None:
    """X [N, C, D...] and W [C, M/group, K...]."""
    attrs, lib = node.attributes, lo.lib
    x, w = lo.tensor(node.inputs[0]), lo.tensor(node.inputs[1])
    rank, group = len(x.shape) - 2, attrs["group"]
    kernel = per_axis(attrs["kernel_shape"] or w.shape[2:], rank, "kernel_shape")
    steps = per_axis(attrs["strides"], rank, "strides")
    spread = per_axis(attrs["dilations"], rank, "dilations")
    begin, size = transposed(x.shape[2:], kernel, steps, spread, attrs["auto_pad"], attrs["output_padding"],
                             attrs["output_shape"], attrs["pads"])
    end = [(n - 1) * s + (k - 1) * d + 1 - b - o
           for n, s, k, d, b, o in zip(x.shape[2:], steps, kernel, spread, begin, size, strict=True)]
    out = (x.shape[0], w.shape[1] * group, *size)
    given = node.inputs[2] if len(node.inputs) > 2 else None
    bias = None if given is None else lo.plain(lo.tensor(given))
    order = [1, 0, *range(2, rank + 2)]
    if group > 1:
        w = lo.reshaped(w, (group, w.shape[0] // group, *w.shape[1:]))
        order = [0, 2, 1, *range(3, rank + 3)]
    w = lo.permuted(w, order)
    source, weights = open_layout(lib, x.shape, x.dtype), open_layout(lib, w.shape, w.dtype)

    def make(desc: Desc, attr: Attr) -> Primitive:
        return Primitive(lib, "deconvolution_forward", lib.engine, INFERENCE, DECONVOLUTION, source, weights,
                         None if bias is None else bias.desc, desc, dims(steps),
                         dims([d - 1 for d in spread]), dims(begin), dims(end), attr)

    def reads(p: Primitive) -> list[Argument]:
        args = [(SRC, lo.laid(x, p.desc(SRC, x.shape, x.dtype))),
                (WEIGHTS, lo.laid(w, p.desc(WEIGHTS, w.shape, w.dtype)))]
        return args if bias is None else [*args, (BIAS, bias)]
    finish(lo, node, out, x.dtype, make, reads)
