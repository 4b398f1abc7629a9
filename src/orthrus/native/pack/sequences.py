"""Networks for text and series: transformers, recurrence, layers of all to all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from .net import Net, activated


def linear(net: Net, x: str, width: int, out: int, act: str = "", bias: bool = True) -> str:
    y = net.add("MatMul", x, net.weight(width, out))
    return activated(net, net.add("Add", net.weight(out), y) if bias else y, act)


def normed(net: Net, x: str, width: int, spelled: bool = False) -> str:
    """Layer normalization, as an operator or as what it was before there was one."""
    if not spelled:
        return net.add("LayerNormalization", x, net.weight(width), net.weight(width), epsilon=1e-5)
    centred = net.add("Sub", x, net.add("ReduceMean", x, axes=[-1]))
    mean = net.add("ReduceMean", net.add("Pow", centred, net.const(2.0)), axes=[-1])
    root = net.add("Sqrt", net.add("Add", mean, net.const(1e-5)))
    y = net.add("Mul", net.add("Div", centred, root), net.weight(width))
    return net.add("Add", y, net.weight(width))


def heads(net: Net, q: str, k: str, v: str, count: int, each: int, mask: str = "", rows: int = -1,
          guarded: bool = False) -> str:
    """Attention, spelled out. `guarded`: as torch exports its own, each factor scaled and NaN taken for 0."""
    def apart(x: str, perm: list[int]) -> str:
        return net.add("Transpose", net.add("Reshape", x, net.const([0, rows, count, each], np.int64)),
                       perm=perm)
    factors = [apart(q, [0, 2, 1, 3]), apart(k, [0, 2, 3, 1])]
    if guarded:
        factors = [net.add("Mul", factor, net.const(each ** -0.25)) for factor in factors]
    scores = net.add("MatMul", *factors)
    if not guarded:
        scores = net.add("Div", scores, net.const(each ** 0.5))
    if mask:
        scores = net.add("Add", scores, mask)
    scores = net.add("Softmax", scores, axis=-1)
    if guarded:
        scores = net.add("Where", net.add("IsNaN", scores), net.const(0.0), scores)
    y = net.add("MatMul", scores, apart(v, [0, 2, 1, 3]))
    return net.add("Reshape", net.add("Transpose", y, perm=[0, 2, 1, 3]),
                   net.const([0, rows, count * each], np.int64))


def encoder(length: int | str, width: int, count: int, act: str, first: bool = False, spelled: bool = False,
            masked: bool = True, batch: int | str = 1, guarded: bool = False) -> onnx.ModelProto:
    """Blocks of a transformer. `first`: normalization comes before what it is for."""
    net = Net()
    ids = net.input(batch, length, kind=TensorProto.INT64)
    mask = ""
    if masked and guarded:
        seen = net.input(batch, 1, length, length, kind=TensorProto.BOOL)
        mask = net.add("Where", seen, net.const(0.0), net.const(-np.inf))
    elif masked:
        given = net.add("Cast", net.input(batch, length, kind=TensorProto.INT64), to=TensorProto.FLOAT)
        given = net.add("Unsqueeze", given, net.const([1, 2], np.int64))
        mask = net.add("Mul", net.add("Sub", net.const(1.0), given), net.const(-3.4028235e38))
    x = net.add("Gather", net.weight(1000, width), ids)
    if isinstance(length, int):
        x = net.add("Add", x, net.weight(1, length, width))
    x = normed(net, x, width, spelled)
    for _ in range(3):
        y = normed(net, x, width, spelled) if first else x
        q, k, v = [linear(net, y, width, width) for _ in range(3)]
        y = heads(net, q, k, v, count, width // count, mask, guarded=guarded)
        x = net.sum(linear(net, y, width, width), x)
        if not first:
            x = normed(net, x, width, spelled)
        y = normed(net, x, width, spelled) if first else x
        y = linear(net, linear(net, y, width, 4 * width, act), 4 * width, width)
        x = net.sum(y, x)
        if not first:
            x = normed(net, x, width, spelled)
    first_row = net.add("Gather", x, net.const(0, np.int64), axis=1)
    pooled = activated(net, net.add("Gemm", first_row, net.weight(width, width), net.weight(width), transB=1),
                       "tanh")
    return net.model(x, net.add("Gemm", pooled, net.weight(2, width), net.weight(2), transB=1))


def looking(size: int, patch: int, width: int, count: int) -> onnx.ModelProto:
    """A transformer over patches of a picture."""
    net = Net()
    rows = (size // patch) ** 2 + 1
    x = net.add("Conv", net.input(1, 3, size, size), net.weight(width, 3, patch, patch), net.weight(width),
                kernel_shape=[patch, patch], strides=[patch, patch])
    x = net.add("Transpose", net.add("Reshape", x, net.const([1, width, -1], np.int64)), perm=[0, 2, 1])
    x = net.add("Concat", net.weight(1, 1, width), x, axis=1)
    x = net.add("Add", x, net.weight(1, rows, width))
    for _ in range(2):
        y = normed(net, x, width)
        three = linear(net, y, width, 3 * width)
        three = net.add("Transpose", net.add("Reshape", three, net.const(
            [1, rows, 3, count, width // count], np.int64)), perm=[2, 0, 3, 1, 4])
        q, k, v = net.add("Split", three, net.const([1, 1, 1], np.int64), outputs=3, axis=0)
        q, k, v = [net.add("Squeeze", part, net.const([0], np.int64)) for part in (q, k, v)]
        scores = net.add("MatMul", net.add("Mul", q, net.const((width // count) ** -0.5)),
                         net.add("Transpose", k, perm=[0, 1, 3, 2]))
        y = net.add("MatMul", net.add("Softmax", scores, axis=-1), v)
        y = net.add("Reshape", net.add("Transpose", y, perm=[0, 2, 1, 3]),
                    net.const([1, rows, width], np.int64))
        x = net.add("Add", x, linear(net, y, width, width))
        y = linear(net, linear(net, normed(net, x, width), width, 4 * width, "gelu"), 4 * width, width)
        x = net.add("Add", x, y)
    x = net.add("Gather", normed(net, x, width), net.const(0, np.int64), axis=1)
    return net.model(net.add("Gemm", x, net.weight(1000, width), net.weight(1000), transB=1))


def staged(size: int, widths: Sequence[int], each: int, window: int = 0) -> onnx.ModelProto:
    """A transformer over patches of 4 pixels, then over those of four together, and so on. `each`: channels
    of a head; `window`: the side of the squares that are seen apart, 0 for all of a picture."""
    net = Net()
    x = net.conv(net.input(1, 3, size, size), widths[0], 4, 4, padded=False)
    side = size // 4
    for i, width in enumerate(widths):
        if i:
            side //= 2
            x = net.add("Reshape", net.add("Transpose", x, perm=[0, 2, 1]),
                        net.const([1, widths[i - 1], side * 2, side * 2], np.int64))
            net.channels[x] = widths[i - 1]
            x = net.conv(x, width, 2, 2, padded=False)
        x = net.add("Transpose", net.add("Reshape", x, net.const([1, width, -1], np.int64)), perm=[0, 2, 1])
        x = normed(net, x, width)
        for _ in range(2):
            y = _apart(net, normed(net, x, width), side, window, width) if window else normed(net, x, width)
            q, k, v = [linear(net, y, width, width) for _ in range(3)]
            y = linear(net, heads(net, q, k, v, width // each, each), width, width)
            x = net.sum(_together(net, y, side, window, width) if window else y, x)
            y = linear(net, linear(net, normed(net, x, width), width, 4 * width, "gelu"), 4 * width, width)
            x = net.sum(y, x)
    x = net.add("ReduceMean", normed(net, x, width), axes=[1], keepdims=0)
    return net.model(net.add("Gemm", x, net.weight(1000, width), net.weight(1000), transB=1))


def _apart(net: Net, x: str, side: int, window: int, width: int) -> str:
    many = side // window
    x = net.add("Reshape", x, net.const([many, window, many, window, width], np.int64))
    return net.add("Reshape", net.add("Transpose", x, perm=[0, 2, 1, 3, 4]),
                   net.const([many * many, window * window, width], np.int64))


def _together(net: Net, x: str, side: int, window: int, width: int) -> str:
    many = side // window
    x = net.add("Reshape", x, net.const([many, many, window, window, width], np.int64))
    return net.add("Reshape", net.add("Transpose", x, perm=[0, 2, 1, 3, 4]),
                   net.const([1, side * side, width], np.int64))


def decoder(length: int | str, past: int | str, width: int, count: int, masked: bool = False
            ) -> onnx.ModelProto:
    """Blocks with a cache, root mean square normalization and a gated layer."""
    net = Net()
    ids = net.input(1, length, kind=TensorProto.INT64)
    both = past + length if isinstance(length, int) and isinstance(past, int) else "both"
    mask = net.input(1, 1, length, both) if masked else ""
    x, each, outputs = net.add("Gather", net.weight(1000, width), ids), width // count, []

    def rms(x: str) -> str:
        mean = net.add("ReduceMean", net.add("Pow", x, net.const(2.0)), axes=[-1])
        root = net.add("Sqrt", net.add("Add", mean, net.const(1e-6)))
        return net.add("Mul", net.weight(width), net.add("Mul", x, net.add("Reciprocal", root)))

    def apart(x: str) -> str:
        return net.add("Transpose", net.add("Reshape", x, net.const([1, -1, count, each], np.int64)),
                       perm=[0, 2, 1, 3])
    for _ in range(2):
        y = rms(x)
        q, k, v = [apart(linear(net, y, width, width, bias=False)) for _ in range(3)]
        k = net.add("Concat", net.input(1, count, past, each), k, axis=2)
        v = net.add("Concat", net.input(1, count, past, each), v, axis=2)
        outputs += [k, v]
        scores = net.add("MatMul", q, net.add("Transpose", k, perm=[0, 1, 3, 2]))
        scores = net.add("Div", scores, net.const(each ** 0.5))
        scores = net.add("Softmax", net.add("Add", scores, mask) if masked else scores, axis=-1)
        y = net.add("Transpose", net.add("MatMul", scores, v), perm=[0, 2, 1, 3])
        y = net.add("Reshape", y, net.const([1, -1, width], np.int64))
        x = net.add("Add", x, linear(net, y, width, width, bias=False))
        y = rms(x)
        gate = linear(net, y, width, 4 * width, "silu", bias=False)
        y = net.add("Mul", gate, linear(net, y, width, 4 * width, bias=False))
        x = net.add("Add", x, linear(net, y, 4 * width, width, bias=False))
    return net.model(linear(net, rms(x), width, 1000, bias=False), *outputs)


def recurrent(kind: str, length: int | str, width: int, hidden: int, both: bool, batch: int = 1,
              layers: int = 1) -> onnx.ModelProto:
    """Recurrence over a series, then a layer for each step."""
    net = Net()
    gates, ways = {"LSTM": 4, "GRU": 3, "RNN": 1}[kind], 1 + both
    x = net.input(length, batch, width)
    for _ in range(layers):
        more: dict[str, Any] = {"linear_before_reset": 1} if kind == "GRU" else {}
        shapes = ((ways, gates * hidden, width), (ways, gates * hidden, hidden), (ways, 2 * gates * hidden))
        y = net.add(kind, x, *[net.weight(*shape) for shape in shapes], hidden_size=hidden,
                    direction="bidirectional" if both else "forward", **more)
        width = ways * hidden
        x = net.add("Reshape", net.add("Transpose", y, perm=[0, 2, 1, 3]),
                    net.const([0, 0, width], np.int64))
    return net.model(net.add("Softmax", linear(net, x, width, 20), axis=-1))


def layered(rows: int | str, widths: tuple[int, ...], act: str, last: str = "") -> onnx.ModelProto:
    """Layers of all to all."""
    net = Net()
    x = net.input(rows, widths[0])
    for width, out in zip(widths, widths[1:], strict=False):
        x = net.add("Gemm", x, net.weight(out, width), net.weight(out), transB=1)
        x = activated(net, x, act if out != widths[-1] else "")
    return net.model(net.add("Softmax", x, axis=-1) if last == "softmax" else activated(net, x, last))
