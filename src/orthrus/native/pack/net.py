"""A model in the making: nodes, drawn weights, activations as exporters write them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

OPSET = 17
_NUMBERS = np.random.default_rng(7).standard_normal(1 << 16, np.float32) * np.float32(0.05)
"""What weights are made of, again and again."""


class Net:
    """A model in the making: methods add nodes and answer with the name of the result."""

    def __init__(self, opset: int = OPSET) -> None:
        self.nodes: list[Any] = []
        self.weights: dict[str, np.ndarray] = {}
        self.inputs: list[Any] = []
        self.channels: dict[str, int] = {}
        self.drawn = np.random.default_rng(7)
        self.taken = self.sums = 0
        self.opset, self.ml = opset, False

    def input(self, *shape: int | str, kind: int = TensorProto.FLOAT) -> str:
        name = f"x{len(self.inputs)}"
        self.inputs.append(helper.make_tensor_value_info(name, kind, shape))
        if len(shape) > 1 and isinstance(shape[1], int):
            self.channels[name] = shape[1]
        return name

    def const(self, value: Any, dtype: Any = np.float32) -> str:
        name = f"w{len(self.weights)}"
        self.weights[name] = np.asarray(value, dtype)
        return name

    def weight(self, *shape: int) -> str:
        size = math.prod(shape)
        start, self.taken = self.taken % 4093, self.taken + 1
        return self.const(np.resize(_NUMBERS[start:], size).reshape(shape))

    def add(self, op: str, *inputs: str, outputs: int = 1, domain: str = "", **attributes: Any) -> Any:
        names = [f"v{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(op, inputs, names, domain=domain, **attributes))
        self.channels[names[0]] = self.channels.get(inputs[0], 0) if inputs else 0
        return names[0] if outputs == 1 else names

    def conv(self, x: str, cout: int, k: int | Sequence[int] = 1, s: int = 1, act: str = "", groups: int = 1,
             bias: bool = True, dilation: int = 1, padded: bool = True) -> str:
        kernel = (k, k) if isinstance(k, int) else tuple(k)
        pads = [n // 2 * dilation if padded else 0 for n in kernel] * 2
        shape = (cout, self.channels[x] // groups, *kernel)
        given = [self.weight(*shape), *([self.weight(cout)] if bias else [])]
        y = self.add("Conv", x, *given, kernel_shape=kernel, pads=pads,
                     strides=[s] * len(kernel), group=groups, dilations=[dilation] * len(kernel))
        self.channels[y] = cout
        return activated(self, y, act)

    def sum(self, made: str, kept: str) -> str:
        """What was `made` of something plus what was `kept` of it; exporters write them in either order."""
        self.sums += 1
        return str(self.add("Add", *((made, kept) if self.sums % 2 else (kept, made))))

    def depthwise(self, x: str, k: int, s: int = 1, act: str = "") -> str:
        return self.conv(x, self.channels[x], k, s, act, groups=self.channels[x])

    def joined(self, xs: Sequence[str], axis: int = 1) -> str:
        y = self.add("Concat", *xs, axis=axis)
        self.channels[y] = sum(self.channels[x] for x in xs)
        return y

    def model(self, *outputs: str) -> onnx.ModelProto:
        domains = [helper.make_opsetid("", self.opset)]
        if self.ml:
            domains.append(helper.make_opsetid("ai.onnx.ml", 3))
        made = [onnx.ValueInfoProto(name=name) for name in outputs]
        graph = helper.make_graph(self.nodes, "net", self.inputs, made)
        for name, array in self.weights.items():
            graph.initializer.add(name=name, dims=array.shape, raw_data=array.tobytes(),
                                  data_type=helper.np_dtype_to_tensor_dtype(array.dtype))
        return onnx.ModelProto(ir_version=8, opset_import=domains, graph=graph)


def activated(net: Net, x: str, act: str) -> str:
    """An activation as exporters write it."""
    if act in ("", "none"):
        return x
    if act == "relu6":
        return net.add("Clip", x, net.const(0.0), net.const(6.0))
    if act == "silu":
        return net.add("Mul", x, net.add("Sigmoid", x))
    if act == "leaky":
        return net.add("LeakyRelu", x, alpha=0.1)
    if act == "gelu":
        half = net.add("Add", net.add("Erf", net.add("Div", x, net.const(2 ** 0.5))), net.const(1.0))
        return net.add("Mul", net.add("Mul", x, half), net.const(0.5))
    if act == "mish":
        return net.add("Mul", x, net.add("Tanh", net.add("Softplus", x)))
    if act == "prelu":
        return net.add("PRelu", x, net.weight(net.channels[x], 1, 1))
    return net.add({"relu": "Relu", "hardswish": "HardSwish", "sigmoid": "Sigmoid", "tanh": "Tanh",
                    "hardsigmoid": "HardSigmoid", "elu": "Elu"}[act], x)
