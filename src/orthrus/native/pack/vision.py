"""Networks for pictures and sound, made of the blocks that most of them are made of."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
from onnx import TensorProto

from .net import Net, activated
from .sequences import linear, normed


def squeezed(net: Net, x: str, act: str, gate: str) -> str:
    """Squeeze and excitation."""
    few = max(8, net.channels[x] // 4)
    s = net.conv(net.conv(net.add("GlobalAveragePool", x), few, act=act), net.channels[x], act=gate)
    return net.add("Mul", x, s)


def classified(net: Net, x: str, classes: int = 1000) -> str:
    y = net.add("Flatten", net.add("GlobalAveragePool", x))
    return net.add("Gemm", y, net.weight(classes, net.channels[x]), net.weight(classes), transB=1)


def mobile(size: tuple[int, int], act: str, excited: str = "", gate: str = "hardsigmoid", batch: int = 1,
           widths: Sequence[int] = (16, 24, 40, 80, 112, 192)) -> onnx.ModelProto:
    """Inverted residual blocks: expand, depthwise, project."""
    net = Net()
    x = net.conv(net.input(batch, 3, *size), 32, 3, 2, act)
    x = net.conv(net.depthwise(x, 3, 1, act), 16)
    for i, width in enumerate(widths):
        for s, k in ((2 if i != 4 else 1, 3), (1, 5 if i % 2 else 3), (1, 3 if i % 2 else 5)):
            y = net.depthwise(net.conv(x, net.channels[x] * 6, act=act), k, s, act)
            if excited:
                y = squeezed(net, y, excited, gate)
            y = net.conv(y, width)
            x = net.sum(y, x) if s == 1 and net.channels[x] == width else y
    x = net.conv(x, 960, act=act)
    return net.model(classified(net, x))


def separable(size: tuple[int, int], act: str) -> onnx.ModelProto:
    """Depthwise and pointwise, each activated."""
    net = Net()
    x = net.conv(net.input(1, 3, *size), 32, 3, 2, act)
    for width, s in ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), (512, 1), (1024, 2),
                     (1024, 1)):
        x = net.conv(net.depthwise(x, 3 if s == 1 else 5, s, act), width, act=act)
    return net.model(classified(net, x))


def residual(size: tuple[int, int], act: str, stem: int = 7, bottleneck: bool = True, batch: int = 1,
             widths: Sequence[int] = (64, 128, 256, 512)) -> onnx.ModelProto:
    """Residual blocks behind a stem."""
    net = Net()
    x = net.conv(net.input(batch, 3, *size), widths[0], stem, 2 if stem > 3 else 1, act)
    if stem > 3:
        x = net.add("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    for i, width in enumerate(widths):
        out = width * 4 if bottleneck else width
        for j in range(3):
            s = 2 if j == 0 and i else 1
            y = net.conv(x, width, act=act) if bottleneck else x
            y = net.conv(y, width, 3, s, act)
            y = net.conv(y, out) if bottleneck else net.conv(y, out, 3)
            if s == 2 or net.channels[x] != out:
                x = net.conv(x, out, 1, s)
            x = activated(net, net.sum(y, x) if j else net.add("Add", y, x), act)
    return net.model(classified(net, x))


def detecting(size: tuple[int, int], act: str, width: int = 16) -> onnx.ModelProto:
    """Stages of split and joined branches, a pyramid up and down, heads."""
    net = Net()
    x, levels = net.conv(net.input(1, 3, *size), width, 3, 2, act), []
    for i in range(4):
        x = net.conv(x, width << i + 1, 3, 2, act)
        x = _split(net, x, width << i + 1, act, True)
        levels.append(x)
    y = net.conv(x, net.channels[x] // 2, act=act)
    pools = [y]
    for _ in range(3):
        pools.append(net.add("MaxPool", pools[-1], kernel_shape=[5, 5], strides=[1, 1], pads=[2, 2, 2, 2]))
    x = net.conv(net.joined(pools), net.channels[x], act=act)
    up = x
    heads = []
    for level in levels[2:0:-1]:
        y = net.add("Resize", up, "", net.const([1.0, 1.0, 2.0, 2.0]), mode="nearest",
                    coordinate_transformation_mode="asymmetric", nearest_mode="floor")
        up = _split(net, net.joined([y, level]), net.channels[level], act, False)
        heads.append(up)
    heads.append(_split(net, net.joined([net.conv(heads[0], net.channels[heads[0]], 3, 2, act), x]),
                        net.channels[x], act, False))
    outs = []
    for head in heads:
        boxes = net.conv(net.conv(head, 64, 3, act=act), 64)
        kinds = net.conv(net.conv(head, 80, 3, act=act), 80)
        out = net.add("Reshape", net.joined([boxes, kinds]), net.const([1, 144, -1], np.int64))
        outs.append(out)
        outs.append(net.conv(head, 255, act="sigmoid"))
    flat = net.add("Concat", *outs[::2], axis=2)
    a, b = net.add("Split", flat, net.const([64, 80], np.int64), outputs=2, axis=1)
    four = net.add("Reshape", a, net.const([1, 4, 16, -1], np.int64))
    soft = net.add("Softmax", net.add("Transpose", four, perm=[0, 2, 1, 3]), axis=1)
    net.channels[soft] = 16
    return net.model(net.conv(soft, 1, bias=False), net.add("Sigmoid", b), *outs[1::2])


def _split(net: Net, x: str, width: int, act: str, added: bool) -> str:
    x = net.conv(x, width, act=act)
    half = width // 2
    a, b = net.add("Split", x, net.const([half, half], np.int64), outputs=2, axis=1)
    net.channels[a] = net.channels[b] = half
    y = net.conv(net.conv(b, half, 3, act=act), half, 3, act=act)
    if added:
        y = net.sum(b, y)
    return net.conv(net.joined([a, b, y]), width, act=act)


def segmenting(size: tuple[int, int], act: str, up: str, width: int = 32) -> onnx.ModelProto:
    """Down by pooling, up by transposed convolution or resizing, levels joined."""
    net = Net()
    x, levels = net.input(1, 3, *size), []
    for i in range(4):
        x = net.conv(net.conv(x, width << i, 3, act=act), width << i, 3, act=act)
        if i < 3:
            levels.append(x)
            x = net.add("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    for i in (2, 1, 0):
        if up == "ConvTranspose":
            y = net.add("ConvTranspose", x, net.weight(net.channels[x], width << i, 2, 2),
                        net.weight(width << i), kernel_shape=[2, 2], strides=[2, 2])
            net.channels[y] = width << i
        else:
            y = net.add("Resize", x, "", net.const([1.0, 1.0, 2.0, 2.0]), mode=up,
                        coordinate_transformation_mode="asymmetric" if up == "nearest" else "half_pixel")
        x = net.conv(net.conv(net.joined([levels[i], y]), width << i, 3, act=act), width << i, 3, act=act)
    return net.model(net.conv(x, 1, act="sigmoid"), net.add("Softmax", net.conv(x, 21), axis=1))


def mixing(size: tuple[int, int], act: str, kernel: int, widths: Sequence[int], last: bool
           ) -> onnx.ModelProto:
    """Blocks of a depthwise convolution and two layers for each pixel, to which what went in is added: these
    normalized and multiplied with channels `last`, or all convolutions."""
    net = Net()
    x = net.conv(net.input(1, 3, *size), widths[0], 4, 4) if last else net.conv(
        net.conv(net.input(1, 3, *size), widths[0] // 2, 3, 2, act), widths[0], 3, 2, act)
    for i, width in enumerate(widths):
        if i:
            x = net.conv(x, width, 2 if last else 3, 2, padded=not last)
        for _ in range(2):
            y = net.depthwise(x, kernel)
            if last:
                y = normed(net, net.add("Transpose", y, perm=[0, 2, 3, 1]), width)
                y = linear(net, linear(net, y, width, 4 * width, act), 4 * width, width)
                y = net.add("Mul", net.weight(width), y)
                x = net.sum(net.add("Transpose", y, perm=[0, 3, 1, 2]), x)
            else:
                x = net.sum(net.depthwise(x, 3), x)
                x = net.sum(net.conv(net.conv(y, 4 * width, act=act), width), x)
            net.channels[x] = width
    x = normed(net, net.add("ReduceMean", x, axes=[2, 3], keepdims=0), width)
    return net.model(net.add("Gemm", x, net.weight(1000, width), net.weight(1000), transB=1))


def plain(size: tuple[int, int], act: str) -> onnx.ModelProto:
    """Convolutions and pools, then layers of all to all; convolutions of other sizes, unequal and spread."""
    net = Net()
    x = net.conv(net.input(1, 3, *size), 64, 3, act=act)
    for width in (64, 128, 256):
        x = net.conv(net.conv(x, width, 3, act=act), width, 3, act=act)
        x = net.add("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    a = net.conv(net.conv(x, 128, act=act), 128, (1, 7), act=act)
    b = net.conv(net.conv(x, 96, 3, 1, act), 96, (7, 1), act=act)
    c = net.conv(x, 64, 5, act=act)
    d = net.conv(net.add("AveragePool", x, kernel_shape=[3, 3], pads=[1, 1, 1, 1]), 64, act=act)
    x = net.joined([a, b, c, d, net.conv(x, 64, 3, dilation=2, act=act)])
    x = net.conv(x, 256, 3, 2, act, groups=32)
    x = net.add("AveragePool", x, kernel_shape=[2, 2], strides=[2, 2])
    return net.model(classified(net, x, 10))


def sized(n: int, act: str, kernel: tuple[int, ...]) -> onnx.ModelProto:
    """Full and odd numbers of channels over `n` pixels along each axis: how these are divided into tiles."""
    net = Net()
    x = net.input(1, 32, *[n] * len(kernel))
    x = net.conv(net.conv(x, 64, kernel, act=act), 96, kernel)
    one = [1] * len(kernel)
    x = net.conv(net.conv(x, 64, one, act=act), 40, one, act=act)
    for _ in range(2):
        x = net.sum(net.conv(net.conv(x, 40, kernel, act=act), 40, one), x)
    x = net.conv(net.conv(x, 160, one, act=act), 16, kernel, act="sigmoid")
    return net.model(net.conv(x, 24, one))


def along(length: int, act: str, channels: int = 1) -> onnx.ModelProto:
    """Convolutions of one axis, as over sound and text."""
    net = Net()
    x = net.conv(net.input(1, channels, length), 32, (7,), 2, act)
    for width, k in ((64, 3), (64, 5), (128, 3), (128, 9), (256, 1)):
        x = net.conv(x, width, (k,), 1, act)
        x = net.add("MaxPool", x, kernel_shape=[2], strides=[2])
    x = net.conv(x, 256, (31,), act=act, groups=256)
    return net.model(net.conv(x, 2, (1,), act="sigmoid"), net.add("ReduceMean", x, axes=[2], keepdims=0))


def windows(length: int, width: int, filters: int, act: str, bias: bool) -> onnx.ModelProto:
    """Convolutions of many lengths over the same text, the best of each."""
    net = Net()
    x = net.add("Gather", net.weight(200, width), net.input(1, length, kind=TensorProto.INT64))
    x = net.add("Transpose", x, perm=[0, 2, 1])
    net.channels[x] = width
    best = [net.add("GlobalMaxPool", net.conv(x, filters, (k,), act=act, bias=bias, padded=False))
            for k in range(1, min(length, 13))]
    y = net.add("Flatten", net.joined(best))
    return net.model(net.add("Gemm", y, net.weight(2, filters * len(best)), net.weight(2), transB=1))
