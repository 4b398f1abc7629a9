"""Layers by how they are divided: into tiles of some height, panels of some width, sums of some length.

Several layers of one input are one model, so that few models ask for many kernels.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto

from .net import OPSET, Net, activated
from .sequences import linear

KINDS = (TensorProto.FLOAT, TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL, TensorProto.UINT8)
"""Types that models count, look up and mask with."""


def convolved(plane: Sequence[int], kernel: Sequence[int], acts: Sequence[str], cins: Sequence[int],
              couts: Sequence[int], bias: bool = True) -> onnx.ModelProto:
    """Convolutions of several widths to several widths."""
    net, made = Net(), list[str]()
    for cin in cins:
        x = net.input(1, cin, *plane)
        for cout in couts:
            made.extend(net.conv(x, cout, kernel, act=act, bias=bias) for act in acts)
    return net.model(*made)


def joined(plane: Sequence[int], acts: Sequence[str], cins: Sequence[int], couts: Sequence[int]
           ) -> onnx.ModelProto:
    """Convolutions of one tap with a bias alone, activated, and with what is added behind."""
    net, made = Net(), list[str]()
    for cout in couts:
        kept = net.input(1, cout, *plane)
        for cin in cins:
            x = net.add("Relu", net.input(1, cin, *plane))
            made += [net.conv(x, cout, act=act) for act in acts]
            made += [activated(net, net.sum(net.conv(x, cout), kept), act) for act in ("", "relu")]
    return net.model(*made)


def multiplied(rows: int, acts: Sequence[str], deep: Sequence[int], wide: Sequence[int]) -> onnx.ModelProto:
    """Products of so many rows, with a bias and without."""
    net, made = Net(), list[str]()
    for k in deep:
        x = net.input(rows, k)
        for n in wide:
            y = net.add("MatMul", x, net.weight(k, n))
            made.append(y)
            made.extend(activated(net, net.add("Gemm", x, net.weight(k, n), net.weight(n)), act)
                        for act in acts)
    return net.model(*made)


def linear_layers(rows: int, deep: Sequence[int], wide: Sequence[int]) -> onnx.ModelProto:
    """Layers of a transformer of so many rows: alone, with a bias, activated, and with what is added behind.
    A bias of zeros, as networks have that were not trained, is none."""
    net, made = Net(), list[str]()
    for n in wide:
        kept = net.input(1, rows, n)
        for k in deep:
            x = net.input(1, rows, k)
            for bias in (True, False):
                made += [linear(net, x, k, n, act, bias) for act in ("", "gelu")]
                made.append(net.sum(linear(net, x, k, n, bias=bias), kept))
    return net.model(*made)


def gathered(shape: Sequence[int], kind: int, index: int, axis: int) -> onnx.ModelProto:
    """What is looked up by one number, and by several."""
    net = Net()
    x = net.input(*shape, kind=kind)
    return net.model(net.add("Gather", x, net.input(8, kind=index), axis=axis),
                     net.add("Gather", x, net.input(kind=index), axis=axis))


def moved(kind: int) -> onnx.ModelProto:
    """Movement that copies, of elements of one type."""
    net = Net()
    x, row = net.input(4, 48, 64, kind=kind), net.input(1, 64, kind=kind)

    def ints(*values: int) -> str:
        return net.const(values, np.int64)
    made = [net.add("Slice", x, ints(1), ints(60), ints(axis)) for axis in (1, 2)]
    made.append(net.add("Slice", x, ints(0), ints(60), ints(2), ints(2)))
    made += [net.add("Concat", x, x, axis=axis) for axis in (0, 1, 2)]
    made += [net.add("Transpose", x, perm=perm) for perm in ((0, 2, 1), (1, 0, 2), (2, 0, 1))]
    made += [net.add("Expand", row, ints(48, 64)), net.add("Expand", row, ints(4, 48, 64))]
    made += [net.add("Split", x, ints(2, 62), outputs=2, axis=2)[1], net.add("Tile", row, ints(1, 3))]
    flat = net.input(200, kind=kind)
    made += [net.add("Slice", flat, ints(0), ints(200), ints(0), ints(step)) for step in (2, -1)]
    made += [net.add("Pad", flat, ints(3, 5)), net.add("Pad", x, ints(0, 1, 1, 0, 1, 1)),
             net.add("Pad", x, ints(0, 0, 2, 0, 0, 2)), net.add("Pad", x, ints(0, 2, 0, 0, 0, 0))]
    return net.model(*made)


def computed(kind: int, shape: Sequence[int] = (8, 64)) -> onnx.ModelProto:
    """Arithmetic on a type, comparisons with a number and with each other, casts to the others."""
    net = Net()
    x, y = net.input(*shape, kind=kind), net.input(*shape, kind=kind)
    one = net.const(1, onnx.helper.tensor_dtype_to_np_dtype(kind))
    made = [net.add("Cast", x, to=to) for to in KINDS if to != kind]
    if kind == TensorProto.BOOL:
        made += [net.add(op, x, y) for op in ("And", "Or", "Equal")]
        made.append(net.add("Not", x))
    elif kind != TensorProto.UINT8:
        made += [net.add(op, x, other) for op in ("Add", "Sub", "Mul", "Equal", "Less", "Greater")
                 for other in (y, one)]
        less = net.add("Less", x, y)
        made += [net.add("Where", less, x, y), net.add("Where", less, one, x)]
    return net.model(*made)


def narrow(rows: int, few: int, act: str) -> onnx.ModelProto:
    """Elementwise work on tables of few columns."""
    net = Net()
    x = net.input(rows, few)
    y = net.add("Mul", net.add("Sub", x, net.weight(few)), net.weight(few))
    total = net.add("ReduceSum", x, net.const([1], np.int64), keepdims=1)
    return net.model(y, net.add("Div", x, total), net.add("Add", x, net.weight(few)),
                     net.add("Concat", x, net.add("Sub", net.const(1.0), x), axis=1), activated(net, x, act))


def reduced(shape: Sequence[int], opset: int = OPSET) -> onnx.ModelProto:
    """Sums, means and extremes along each axis and along all but the first."""
    net = Net(opset)
    x = net.input(*shape)
    made = list[str]()
    for axes in ([-1], [1], [*range(1, len(shape))], [0]):
        for keep in (0, 1):
            made.append(net.add("ReduceSum", x, net.const(axes, np.int64), keepdims=keep))
            made += [net.add(op, x, axes=axes, keepdims=keep)
                     for op in ("ReduceMean", "ReduceMax", "ReduceMin")]
    return net.model(*made)


def blended(shape: Sequence[int], other: Sequence[int]) -> onnx.ModelProto:
    """A few operators on two arrays, as they stand between others: scaled and shifted, gated, the longer of
    two, a length."""
    net = Net()
    x, y = net.input(*shape), net.input(*shape)
    by, on = net.weight(*other), net.weight(*other)
    scaled, shifted = net.add("Mul", x, by), net.add("Add", x, on)
    length = net.add("Add", net.add("Mul", x, x), net.add("Mul", y, y))
    return net.model(
        net.add("Add", scaled, on), net.add("Relu", shifted), net.add("Sigmoid", net.add("Add", x, y)),
        net.add("Relu", net.add("Add", x, y)), net.add("Max", x, y), net.add("Add", x, net.add("Mul", x, y)),
        net.add("Sub", x, net.add("Mul", y, by)), net.add("Sqrt", length), net.add("Sigmoid", shifted),
        net.add("Exp", net.add("Sub", x, y)), net.add("Mul", net.add("Sub", x, y), net.add("Sub", x, y)),
        net.add("Mul", net.add("Add", x, net.const(1.0)), net.const(0.5)))
