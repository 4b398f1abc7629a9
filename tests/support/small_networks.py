"""Small whole networks with open sizes, and their feeds: a transformer, a convolutional one, a recurrence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from graphs import info, model
from onnx import TensorProto, helper


class Net:
    """Nodes one after the other; a call adds one and gives the name of what it makes."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, np.ndarray] = {}
        self.rng = np.random.default_rng(7)

    def __call__(self, op: str, *inputs: Any, **attrs: Any) -> str:
        names = [x if isinstance(x, str) else self.constant(x) for x in inputs]
        out = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, names, [out], **attrs))
        return out

    def constant(self, array: Any) -> str:
        name = f"w{len(self.weights)}"
        self.weights[name] = np.asarray(array)
        return name

    def weight(self, *shape: int) -> str:
        scale = 1 / np.sqrt(max(np.prod(shape[1:]), 1))
        return self.constant((self.rng.standard_normal(shape) * scale).astype(np.float32))

    def model(self, inputs: list[Any], outputs: list[str]) -> bytes:
        made = model(self.nodes, inputs, [info(name, shape=None) for name in outputs], self.weights)
        data: bytes = made.SerializeToString()
        return data


def transformer() -> bytes:
    """Two blocks over token ids [batch, time] with a mask, 4 heads of 16."""
    n = Net()
    x = n("Gather", n.weight(50, 64), "ids")
    mask = n("Mul", n("Sub", np.float32(1), n("Unsqueeze", "mask", np.array([1, 2]))), np.float32(-1e4))
    for _ in range(2):
        heads = []
        for axes in ((0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3)):
            made = n("Add", n("MatMul", x, n.weight(64, 64)), n.weight(64))
            heads.append(n("Transpose", n("Reshape", made, np.array([0, 0, 4, 16])), perm=axes))
        scores = n("Add", n("Div", n("MatMul", heads[0], heads[1]), np.float32(4)), mask)
        read = n("Transpose", n("MatMul", n("Softmax", scores), heads[2]), perm=(0, 2, 1, 3))
        x = _normal(n, n("Add", x, n("MatMul", n("Reshape", read, np.array([0, 0, 64])), n.weight(64, 64))))
        wide = n("Add", n("MatMul", x, n.weight(64, 128)), n.weight(128))
        curve = n("Add", n("Erf", n("Div", wide, np.float32(2 ** 0.5))), np.float32(1))
        wide = n("Mul", n("Mul", wide, curve), np.float32(0.5))
        x = _normal(n, n("Add", n("MatMul", wide, n.weight(128, 64)), x))
    first = n("Tanh", n("Gemm", n("Gather", x, np.array(0), axis=1), n.weight(64, 64)))
    mean = n("ReduceMean", x, np.array([1]), keepdims=0)
    return n.model([info("ids", TensorProto.INT64, ["batch", "time"]), info("mask", shape=["batch", "time"])],
                   [x, first, mean])


def _normal(n: Net, x: str) -> str:
    return n("LayerNormalization", x, n.weight(64), n.weight(64))


def network() -> bytes:
    """Convolutions of every kind over images of any size: dense, strided, depthwise, grouped and transposed,
    with a skip connection, pools and a classifier."""
    n = Net()
    x = _scaled(n, n("Conv", "x", n.weight(16, 3, 3, 3), n.weight(16), pads=[1] * 4, strides=[2, 2]), 16)
    x = n("Relu", x)
    y = n("Clip", n("Conv", x, n.weight(16, 1, 3, 3), group=16, pads=[1] * 4), np.float32(0), np.float32(6))
    y = n("Conv", y, n.weight(16, 16, 1, 1), n.weight(16))
    x = n("Relu", n("Add", x, y))
    y = n("Conv", x, n.weight(24, 16, 3, 3), n.weight(24), pads=[1] * 4)
    y = n("Mul", y, n("Sigmoid", y))
    half = n("MaxPool", y, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    half = n("LeakyRelu", n("Conv", half, n.weight(24, 6, 5, 5), group=4, pads=[2] * 4))
    back = n("ConvTranspose", half, n.weight(24, 8, 2, 2), strides=[2, 2])
    flat = n("Concat", n("GlobalAveragePool", half), n("GlobalMaxPool", y), axis=1)
    logits = n("Softmax", n("Gemm", n("Flatten", flat), n.weight(48, 10), n.weight(10)))
    thin = n("Resize", n("AveragePool", y, kernel_shape=[2, 2], pads=[0, 0, 1, 1]), "",
             np.array([1, 1, 2, 2], np.float32), mode="nearest")
    return n.model([info("x", shape=["batch", 3, "height", "width"])], [back, logits, thin])


def _scaled(n: Net, x: str, channels: int) -> str:
    one = n.constant(np.ones(channels, np.float32))
    return n("BatchNormalization", x, one, n.weight(channels), n.weight(channels), one)


def recurrence() -> bytes:
    """A GRU both ways and an LSTM over [time, batch, 12], with a convolution before them."""
    n = Net()
    x = n("Conv", n("Transpose", "x", perm=(1, 2, 0)), n.weight(20, 12, 3), n.weight(20), pads=[1, 1])
    x = n("Transpose", n("Relu", x), perm=(2, 0, 1))
    x = n("GRU", x, n.weight(2, 48, 20), n.weight(2, 48, 16), n.weight(2, 96), hidden_size=16,
          direction="bidirectional")
    x = n("Reshape", n("Transpose", x, perm=(0, 2, 1, 3)), np.array([0, 0, 32]))
    x = n("Squeeze", n("LSTM", x, n.weight(1, 40, 32), n.weight(1, 40, 10), hidden_size=10), np.array([1]))
    return n.model([info("x", shape=["time", "batch", 12])], [x, n("ReduceMax", x, np.array([0]))])


def ids_of(rng: np.random.Generator, batch: int, time: int) -> dict[str, np.ndarray]:
    lengths = rng.integers(1, time + 1, (batch, 1))
    return {"ids": rng.integers(0, 50, (batch, time)),
            "mask": (np.arange(time) < lengths).astype(np.float32)}


def images_of(rng: np.random.Generator, batch: int, height: int, width: int) -> dict[str, np.ndarray]:
    return {"x": rng.standard_normal((batch, 3, height, width)).astype(np.float32)}


def series_of(rng: np.random.Generator, batch: int, time: int) -> dict[str, np.ndarray]:
    return {"x": rng.standard_normal((time, batch, 12)).astype(np.float32)}


LENGTHS = (*range(1, 20), 23, 24, 25, 31, 32, 33, 47, 48, 49, 63, 64, 65, 79, 100, 127, 128, 129, 200)
IMAGES = [(h, w) for h in (1, 2, 3, 5, 8, 15, 17, 32, 47) for w in (1, 2, 4, 7, 9, 16, 31, 33, 65)]
SWEEPS: dict[str, tuple[Callable[[], bytes], Callable[..., dict[str, np.ndarray]], list[tuple[int, ...]]]] = {
    "transformer": (transformer, ids_of, [(b, t) for t in LENGTHS for b in (1, 3)]),
    "network": (network, images_of, [(1 + (h + w) % 3, h, w) for h, w in IMAGES]),
    "recurrence": (recurrence, series_of, [(b, t) for t in LENGTHS for b in (1, 2, 5)]),
}
