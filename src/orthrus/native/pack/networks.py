"""Which networks the pack is for: typical blocks at typical sizes, none of them a published model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import onnx
from onnx import TensorProto

from . import forms, quantized, sequences, tables, vision

Network = Callable[[], onnx.ModelProto]


def networks() -> Iterator[Network]:
    """What makes each of the models. These compute nothing of use: what counts is which kernels lowering asks
    for."""
    for act in ("relu", "relu6", "hardswish", "silu"):
        yield partial(vision.mobile, (224, 224), act)
    for act, gate in (("hardswish", "hardsigmoid"), ("silu", "sigmoid"), ("relu", "hardsigmoid")):
        for size in ((224, 224), (640, 640), (256, 256)):
            yield partial(vision.mobile, size, act, "relu" if act != "silu" else act, gate)
    for act in ("relu", "relu6", "hardswish", "leaky"):
        for size in ((224, 224), (128, 128)):
            yield partial(vision.separable, size, act)
    for size in ((48, 320), (48, 192), (32, 100)):
        yield partial(vision.mobile, size, "hardswish", "relu", widths=(16, 32, 64, 128))
        yield partial(vision.separable, size, "hardswish")
    for size in ((224, 224), (640, 640)):
        yield partial(vision.residual, size, "relu", widths=(64, 128, 256, 512))
        yield partial(vision.residual, size, "relu", bottleneck=False)
    for act in ("relu", "silu", "leaky", "elu"):
        yield partial(vision.residual, (32, 32), act, 3, False, widths=(16, 32, 64))
        yield partial(vision.residual, (64, 64), act, 3, widths=(32, 64, 128))
    for act in ("silu", "relu", "leaky", "hardswish", "mish"):
        yield partial(vision.detecting, (640, 640), act)
        yield partial(vision.detecting, (320, 320), act, 32)
        yield partial(vision.detecting, (416, 416), act)
    for kernel, act in ((7, "gelu"), (3, "gelu"), (5, "relu"), (3, "hardswish"), (7, "silu")):
        for widths in ((40, 80, 160, 320), (64, 128, 256, 512), (48, 96, 224, 448)):
            yield partial(vision.mixing, (224, 224), act, kernel, widths, False)
            if act == "gelu":
                yield partial(vision.mixing, (224, 224), act, kernel, widths, True)
                yield partial(vision.mixing, (288, 288), act, kernel, widths, True)
    for act in ("relu", "leaky", "silu"):
        for n in (128, 256, 512):
            up = ("ConvTranspose", "nearest", "linear")[n % 3]
            yield partial(vision.segmenting, (n, n), act, up, 16)
    for act in ("relu", "elu", "gelu"):
        for n in (28, 32, 64, 96, 224, 299):
            yield partial(vision.plain, (n, n), act)
    for n in range(1, 29):
        for act in ("relu", "silu") if n % 2 else ("relu", "hardswish"):
            yield partial(vision.sized, n, act, (3, 3))
        yield partial(vision.sized, n * 14 + n // 2, "relu", (3,))
    for act in ("relu", "leaky", "tanh", "gelu", "sigmoid"):
        for length, channels in ((256, 1), (1000, 3), (16000, 1), (4096, 12)):
            yield partial(vision.along, length, act, channels)
    for length in (21, 32, 64):
        for act, bias in (("relu", True), ("", False)):
            yield from (partial(vision.windows, length, width, filters, act, bias)
                        for width, filters in ((32, 200), (100, 100), (128, 128)))
    yield from _sequences()
    yield from _tables()
    yield from _forms()
    yield from _quantized()


def _sequences() -> Iterator[Network]:
    for width, count in ((128, 2), (384, 12), (768, 12)):
        for length in (1, 8, 16, 32, 64, 128, 256):
            yield partial(sequences.encoder, length, width, count, "gelu", spelled=length % 3 == 1)
        yield partial(sequences.encoder, "n", width, count, "relu", first=True)
        for masked in (True, False):
            for length in (32, 128):
                yield partial(sequences.encoder, length, width, count, "gelu", masked=masked, guarded=True)
    for width in (256, 512):
        yield partial(sequences.encoder, 100, width, 8, "relu", first=True, masked=False)
        yield partial(sequences.encoder, 50, width, 8, "relu", masked=False, spelled=True)
    yield partial(sequences.looking, 224, 16, 192, 3)
    yield partial(sequences.looking, 224, 16, 384, 6)
    yield partial(sequences.looking, 224, 32, 768, 12)
    for width, count in ((192, 3), (256, 4), (768, 12)):
        yield from (partial(sequences.looking, size, 16, width, count) for size in (224, 256, 384))
    for widths in ((32, 64, 160, 256), (64, 128, 320, 512), (96, 192, 384, 768)):
        yield partial(sequences.staged, 224, widths, 32, 7)
        yield partial(sequences.staged, 224, widths, 32)
    for width, count in ((256, 4), (768, 12)):
        for rows, past in ((1, 64), (16, 0), (64, 0)):
            yield from (partial(sequences.decoder, rows, past, width, count, masked)
                        for masked in (False, True))
        yield partial(sequences.decoder, "n", "past", width, count)
    for kind in ("LSTM", "GRU"):
        for hidden in (32, 64, 128, 200, 256, 512):
            for both in (False, True):
                yield partial(sequences.recurrent, kind, 50, hidden, hidden, both)
        yield partial(sequences.recurrent, kind, "n", 128, 128, True)
        yield partial(sequences.recurrent, kind, 50, 64, 128, True, 8)
    for rows in (1, 8, 32, 64, 100, 128):
        for act in ("relu", "tanh", "sigmoid", "gelu", "silu"):
            yield partial(sequences.layered, rows, (784, 512, 256, 100, 10), act, "softmax")
            yield partial(sequences.layered, rows, (30, 64, 32, 1), act, "sigmoid")
    for rows in range(2, 29):
        yield partial(sequences.layered, rows, (64, 96, 50), "relu")
    yield partial(sequences.layered, "n", (64, 100, 10), "relu", "softmax")


def _tables() -> Iterator[Network]:
    for rows in (1, "n", 100, 1000):
        for classes in (0, 2, 3):
            yield partial(tables.forest, rows, 10, 20, classes)
            yield partial(tables.forest, rows, 30, 100, classes)
            yield from (partial(tables.forest, rows, 10, 1, classes, depth) for depth in (4, 10))
            yield partial(tables.fitted, rows, 10, classes)
        for only in (0, 1):
            yield partial(tables.forest, rows, 30, 100, 2, only=only)
    yield from (partial(_same, model) for model in tables.alone())


def _forms() -> Iterator[Network]:
    """Layers of every height of tile, alone."""
    odd = range(15, 28, 2)
    for n in (*range(1, 15), *odd):
        couts = (24, 32, 12, 16, 40, 48) if n in odd or n == 1 else (24, 32)
        yield partial(forms.convolved, (n,), (1,), ("relu", ""), (16, 256), couts)
        yield partial(forms.convolved, (n,), (1,), ("",), (16, 256), (24, 32), bias=False)
        yield partial(forms.convolved, (n,), (3,), ("relu", ""), (32, 256), (24, 32, 16))
        yield partial(forms.convolved, (n,), (3,), ("",), (32, 256), (24, 32), bias=False)
        if n in (1, 2, 4, 8, 12, 14):
            yield partial(forms.convolved, (n,), (1,), ("relu", ""), (512,), (250, 256))
            yield partial(forms.convolved, (n,), (3,), ("relu", ""), (256,), (250, 256))
        yield partial(forms.multiplied, n, ("", "relu"), (64, 512), (10, 32, 24, 128))
    for rows in (49, 50, 64, 196, 197, 256, 784, 3136):
        yield partial(forms.linear_layers, rows, (32, 64, 192, 512, 1536), (64, 160, 192, 512))
    for n in (7, 14, 28, 56):
        yield partial(forms.joined, (n, n), ("", "relu", "silu"), (24, 64, 320, 960), (40, 64, 168, 256))
    for n in (14, 20, 26, 28, 40, 56, 96, 160):
        wide = (12, 16, 24, 32, 40, 48, 256)
        yield partial(forms.convolved, (n, n), (1, 1), ("relu", ""), (16, 48, 224, 512), wide)
        yield partial(forms.convolved, (n, n), (3, 3), ("relu", "sigmoid", ""), (8, 16, 64), wide[:4])
    for shape, other in (((64, 256), ()), ((64, 256), (256,)), ((1, 64, 8, 8), (64, 1, 1)), ((1, 64), (64,))):
        yield partial(forms.blended, shape, other)
    for kind in forms.KINDS:
        yield partial(forms.moved, kind)
        yield partial(forms.computed, kind)
        yield partial(forms.computed, kind, (1, 4, 16))
        for index in (TensorProto.INT64, TensorProto.INT32):
            yield from (partial(forms.gathered, shape, kind, index, axis)
                        for shape, axis in (((64,), 0), ((64, 48), 0), ((8, 48), 1), ((2, 8, 48), 1)))
    for few in (1, 2, 3, 4, 5, 8, 10):
        yield partial(forms.narrow, 1, few, "sigmoid")
        yield partial(forms.narrow, 100, few, "sigmoid")
    for each in ((8, 64), (1, 10), (100, 3), (1, 16, 100), (1, 64, 7, 7), (2, 16, 33)):
        yield partial(forms.reduced, each)
    for kind in ("LSTM", "GRU"):
        for batch in (1, 2, 3, 4):
            yield from (partial(sequences.recurrent, kind, 20, hidden, hidden, both, batch)
                        for hidden in (32, 96, 128) for both in (False, True))


def _quantized() -> Iterator[Network]:
    for size in ((224, 224), (640, 640)):
        nets = [partial(vision.residual, size, "relu", bottleneck=bottleneck) for bottleneck in (True, False)]
        nets += [partial(vision.mobile, size, "relu6"), partial(vision.mobile, size, "hardswish", "relu")]
        for net in nets:
            yield partial(quantized.static, net)
    yield from (partial(quantized.static, net, signed=True, per_channel=False) for net in nets[::2])
    for width, count in ((384, 12), (768, 12)):
        for length in (1, 32, 128):
            net = partial(sequences.encoder, length, width, count, "gelu")
            yield partial(quantized.dynamic, net)
            yield partial(quantized.static, net, signed=True, per_channel=False)
    for rows in (1, 8, 100):
        yield partial(quantized.dynamic, partial(sequences.layered, rows, (784, 512, 256, 100, 10), "relu"))


def _same(model: onnx.ModelProto) -> onnx.ModelProto:
    return model
