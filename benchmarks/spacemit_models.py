"""Models of SpacemiT's ModelZoo, made from seeds: in float32, in float16, and quantized to 8 bits.

In: a name and a precision. Out: a ModelProto of batch 1. The structure is the real one (the zoo's exported
graphs; vit_b_16 written here after its paper), weights are seeded, so outputs mean nothing. Quantized models
have QuantizeLinear and DequantizeLinear around every tensor between convolutions and products, weights
symmetric per channel, activations asymmetric with ranges from one run on a seeded input.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from . import zoo

MODELS = {"resnet18": "resnet18", "resnet50": "resnet50", "mobilenet_v2": "mobilenetv2", "vit_b_16": "",
          "yolov8n": "yolo_n"}
"""Names in the ModelZoo -> the zoo's names."""

_PRODUCTS = frozenset({"Conv", "Gemm", "MatMul"})
_EXACT = frozenset({"Add", "Concat", "MaxPool", "GlobalAveragePool", "Resize", "Flatten"})
"""Operators whose inputs a quantizer quantizes too, so that nothing is stored wider between them."""


def build(name: str, precision: str = "float32") -> onnx.ModelProto:
    """The model of that name, with a precision of float32, float16 or int8."""
    model = zoo.build(MODELS[name]) if MODELS[name] else vision_transformer()
    for value in (*model.graph.input, *model.graph.output):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.dim_value = 1
    del model.graph.value_info[:]
    return {"float32": lambda m: m, "float16": half, "int8": quantized}[precision](model)


class _Writer:
    """A graph being written, with seeded weights."""

    def __init__(self, seed: int = 0) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[TensorProto] = []
        self.rng = np.random.default_rng(seed)

    def weight(self, *shape: int, spread: float | None = None) -> str:
        scale = spread if spread is not None else 1 / np.sqrt(shape[0] if len(shape) > 1 else 64)
        values = self.rng.standard_normal(shape, dtype=np.float32) * np.float32(scale)
        return self.constant(values)

    def constant(self, values: Any) -> str:
        self.weights.append(numpy_helper.from_array(np.asarray(values), f"w{len(self.weights)}"))
        return self.weights[-1].name

    def __call__(self, op: str, *inputs: str, outputs: int = 1, **attrs: Any) -> Any:
        names = [f"{op}{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(op, inputs, names, f"{op}_{len(self.nodes)}", **attrs))
        return names[0] if outputs == 1 else names


def vision_transformer(width: int = 768, layers: int = 12, heads: int = 12, size: int = 224,
                       patch: int = 16) -> onnx.ModelProto:
    """ViT with a class token: B/16 by default."""
    f, count = _Writer(), (size // patch) ** 2 + 1
    each = width // heads

    def norm(x: str) -> str:
        return f("LayerNormalization", x, f.constant(np.ones(width, np.float32)),
                 f.constant(np.zeros(width, np.float32)), epsilon=1e-6)

    def linear(x: str, to: int, of: int = width) -> str:
        return f("Add", f("MatMul", x, f.weight(of, to)), f.weight(to, spread=0.02))

    def split(x: str, axes: tuple[int, ...]) -> str:
        return f("Transpose", f("Reshape", x, f.constant(np.array([1, count, heads, each]))), perm=axes)

    pixels = f("Conv", "input", f.weight(width, 3, patch, patch, spread=0.02), f.weight(width, spread=0.02),
               strides=[patch, patch], kernel_shape=[patch, patch])
    rows = f("Transpose", f("Reshape", pixels, f.constant(np.array([1, width, count - 1]))), perm=[0, 2, 1])
    x = f("Add", f("Concat", f.weight(1, 1, width), rows, axis=1), f.weight(1, count, width, spread=0.02))
    for _ in range(layers):
        y = norm(x)
        q, k, v = (split(linear(y, width), axes)
                   for axes in ((0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3)))
        scores = f("Mul", f("MatMul", q, k), f.constant(np.float32(each ** -0.5)))
        mixed = f("Transpose", f("MatMul", f("Softmax", scores, axis=-1), v), perm=[0, 2, 1, 3])
        x = f("Add", x, linear(f("Reshape", mixed, f.constant(np.array([1, count, width]))), width))
        inner = f("Gelu", linear(norm(x), 4 * width))
        x = f("Add", x, linear(inner, width, 4 * width))
    token = f("Gather", norm(x), f.constant(np.int64(0)), axis=1)
    f.nodes.append(helper.make_node("Gemm", [token, f.weight(width, 1000), f.weight(1000, spread=0.02)],
                                    ["output"], "head"))
    graph = helper.make_graph(
        f.nodes, "vit", [helper.make_tensor_value_info("input", TensorProto.FLOAT, [1, 3, size, size])],
        [helper.make_tensor_value_info("output", TensorProto.FLOAT, [1, 1000])], f.weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def half(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model in float16, inputs and outputs too."""
    kept = {name for node in model.graph.node if node.op_type == "Resize" for name in node.input[1:]
            if name}

    def halved(tensor: TensorProto) -> TensorProto:
        if tensor.data_type != TensorProto.FLOAT or tensor.name in kept:
            return tensor
        return numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float16), tensor.name)

    for tensor in model.graph.initializer:
        tensor.CopyFrom(halved(tensor))
    for node in model.graph.node:
        for attribute in node.attribute:
            if node.op_type == "Constant" and attribute.name == "value" and node.output[0] not in kept:
                attribute.t.CopyFrom(halved(attribute.t))
            if node.op_type == "Cast" and attribute.name == "to" and attribute.i == TensorProto.FLOAT:
                attribute.i = TensorProto.FLOAT16
    for value in (*model.graph.input, *model.graph.output):
        if value.type.tensor_type.elem_type == TensorProto.FLOAT:
            value.type.tensor_type.elem_type = TensorProto.FLOAT16
    return model


def quantized(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with quantized weights and activations."""
    graph = model.graph
    constants = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    constants.update((n.output[0], numpy_helper.to_array(n.attribute[0].t)) for n in graph.node
                     if n.op_type == "Constant" and n.attribute[0].name == "value")
    wanted = list(dict.fromkeys(
        name for node in graph.node if node.op_type in _PRODUCTS | _EXACT
        for name in (node.input[:2] if node.op_type in _PRODUCTS else
                     node.input[:1] if node.op_type == "Resize" else node.input)
        if name and name not in constants))
    ranges = _ranges(model, wanted)
    added: list[TensorProto] = []
    pairs: dict[str, tuple[list[onnx.NodeProto], str]] = {}

    def constant(name: str, values: Any) -> str:
        added.append(numpy_helper.from_array(np.asarray(values), name))
        return name

    def activation(name: str) -> str:
        if name not in pairs:
            low, high = ranges[name]
            scale = np.float32(max(high - low, 1e-6) / 255)
            zero = np.uint8(np.clip(round(-low / float(scale)), 0, 255))
            both = [constant(f"{name}_scale", scale), constant(f"{name}_zero", zero)]
            pairs[name] = ([helper.make_node("QuantizeLinear", [name, *both], [f"{name}_q"], f"{name}_q"),
                            helper.make_node("DequantizeLinear", [f"{name}_q", *both], [f"{name}_dq"],
                                             f"{name}_dq")], f"{name}_dq")
        return pairs[name][1]

    def weight(node: onnx.NodeProto, axis: int) -> tuple[list[onnx.NodeProto], np.ndarray]:
        values = constants[node.input[1]]
        rest = tuple(a for a in range(values.ndim) if a != axis)
        scale = np.maximum(np.abs(values).max(rest) / 127, 1e-8).astype(np.float32)
        shape = [-1 if a == axis else 1 for a in range(values.ndim)]
        whole = np.clip(np.rint(values / scale.reshape(shape)), -127, 127).astype(np.int8)
        name = f"{node.name or node.output[0]}_w"
        inputs = [constant(f"{name}_q", whole), constant(f"{name}_s", scale),
                  constant(f"{name}_z", np.zeros(len(scale), np.int8))]
        made = helper.make_node("DequantizeLinear", inputs, [f"{name}_dq"], f"{name}_dq", axis=axis)
        return [made], scale

    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        before: list[onnx.NodeProto] = []
        if node.op_type in _PRODUCTS and node.input[1] in constants:
            attrs = {a.name: a.i for a in node.attribute if a.type == onnx.AttributeProto.INT}
            axis = 0 if node.op_type == "Conv" or attrs.get("transB") else 1
            before, scale = weight(node, axis)
            node.input[1] = before[0].output[0]
            low, high = ranges[node.input[0]]
            if len(node.input) > 2 and node.input[2] in constants:
                step = (scale * np.float32(max(high - low, 1e-6) / 255)).astype(np.float32)
                bias = np.rint(constants[node.input[2]] / step).clip(-2 ** 31, 2 ** 31 - 1).astype(np.int32)
                name = f"{node.name or node.output[0]}_b"
                before.append(helper.make_node(
                    "DequantizeLinear", [constant(f"{name}_q", bias), constant(f"{name}_s", step)],
                    [f"{name}_dq"], f"{name}_dq", axis=0))
                node.input[2] = before[-1].output[0]
        for i, name in enumerate(node.input):
            if name in ranges and (node.op_type in _PRODUCTS and i < 2 or node.op_type in _EXACT):
                new = name not in pairs
                node.input[i] = activation(name)
                before += pairs[name][0] if new else []
        nodes += [*before, node]
    used = {name for node in nodes for name in node.input}
    kept = [t for t in (*graph.initializer, *added) if t.name in used]
    del graph.node[:], graph.initializer[:]
    graph.node.extend(nodes)
    graph.initializer.extend(kept)
    return model


def _ranges(model: onnx.ModelProto, names: Iterable[str]) -> dict[str, tuple[float, float]]:
    """The least and the greatest element of each of those values that is a float, 0 among them, in a run on a
    seeded input."""
    import orthrus as ort

    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    inputs = {v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in copy.graph.input}
    given = {v.name for v in copy.graph.output}
    wanted = [name for name in names if name not in inputs]
    copy.graph.output.extend(onnx.ValueInfoProto(name=name) for name in wanted if name not in given)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(copy.SerializeToString(), options)
    rng = np.random.default_rng(0)
    feed = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in inputs.items()}
    found = {**feed, **dict(zip(wanted, session.run(wanted, feed), strict=True))}
    return {name: (min(0.0, float(x.min())), max(0.0, float(x.max()))) for name, x in found.items()
            if name in set(names) | set(inputs) and x.dtype == np.float32 and x.size}

