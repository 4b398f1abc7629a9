"""Small float models, one for each operator that is quantized, and ranges of their values."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FLOAT = TensorProto.FLOAT
_PADS = {"pads": [1, 1, 1, 1]}
_IMAGE = {"x": [1, 4, 8, 8]}
_CONV = ("Conv", ["x", "w", "b"], ["c"], _PADS)


def random(name: str, *shape: int, scale: float = 1.0) -> TensorProto:
    """A tensor of normal values that depend on its name and shape."""
    values = np.random.default_rng(zlib.crc32(repr((name, shape)).encode())).normal(size=shape)
    return numpy_helper.from_array((values * scale).astype(np.float32), name)


def integers(name: str, *values: int) -> TensorProto:
    return numpy_helper.from_array(np.array(values, np.int64), name)


def scalar(name: str, value: float) -> TensorProto:
    return numpy_helper.from_array(np.float32(value), name)


def model(nodes: list[tuple[Any, ...]], inputs: dict[str, list[int]], constants: list[TensorProto],
          outputs: list[str] | None = None, opset: int = 17, kinds: dict[str, int] | None = None
          ) -> onnx.ModelProto:
    """A model of (operator, inputs, outputs[, attributes]), the last output of which is the model's."""
    made = [helper.make_node(*row[:3], name=f"n{index}", **(row[3] if len(row) > 3 else {}))
            for index, row in enumerate(nodes)]
    values = [helper.make_tensor_value_info(name, (kinds or {}).get(name, FLOAT), shape)
              for name, shape in inputs.items()]
    results = [helper.make_tensor_value_info(name, FLOAT, None) for name in outputs or [nodes[-1][2][0]]]
    domains = ["", *{row[3]["domain"] for row in nodes if len(row) > 3 and "domain" in row[3]}]
    return helper.make_model(helper.make_graph(made, "graph", values, results, constants), ir_version=8,
                             opset_imports=[helper.make_opsetid(d, 1 if d else opset) for d in domains])


def _behind_conv(*nodes: tuple[Any, ...], constants: tuple[TensorProto, ...] = (),
                 outputs: list[str] | None = None) -> Callable[[], onnx.ModelProto]:
    weights = [random("w", 6, 4, 3, 3), random("b", 6), *constants]
    return lambda: model([_CONV, *nodes], _IMAGE, weights, outputs)


def _with(nodes: list[tuple[Any, ...]], inputs: dict[str, list[int]], *constants: TensorProto,
          **how: Any) -> Callable[[], onnx.ModelProto]:
    return lambda: model(nodes, inputs, list(constants), **how)


def branches() -> onnx.ModelProto:
    """A model whose branches have products, by weights of their own and of the graph around them."""
    then = helper.make_graph(
        [helper.make_node("MatMul", ["c", "wi"], ["ti"], name="inner_product"),
         helper.make_node("Gemm", ["ti", "wg", "bg"], ["to"], name="inner_gemm")], "then", [],
        [helper.make_tensor_value_info("to", FLOAT, [2, 5])],
        [random("wi", 6, 6), random("wg", 6, 5), random("bg", 5)])
    other = helper.make_graph([helper.make_node("MatMul", ["c", "wo"], ["eo"], name="outer_weight")], "else",
                              [], [helper.make_tensor_value_info("eo", FLOAT, [2, 5])])
    return model([("MatMul", ["x", "w"], ["c"]), ("ReduceSum", ["c"], ["sum"], {"keepdims": 0}),
                  ("Greater", ["sum", "zero"], ["positive"]),
                  ("If", ["positive"], ["r"], {"then_branch": then, "else_branch": other}),
                  ("MatMul", ["c", "wo"], ["q"])], {"x": [2, 4]},
                 [random("w", 4, 6), random("wo", 6, 5), scalar("zero", 0.0)], ["r", "q"])


CASES: dict[str, Callable[[], onnx.ModelProto]] = {
    "Conv": _behind_conv(),
    "Relu": _behind_conv(("Relu", ["c"], ["r"])),
    "Clip": _behind_conv(("Clip", ["c", "low", "high"], ["r"]),
                         constants=(scalar("low", 0.0), scalar("high", 6.0))),
    "LeakyRelu": _behind_conv(("LeakyRelu", ["c"], ["r"], {"alpha": 0.1})),
    "Sigmoid": _behind_conv(("Sigmoid", ["c"], ["s"]), ("Mul", ["c", "s"], ["r"])),
    "Add": _behind_conv(("Add", ["c", "k"], ["r"]), constants=(random("k", 6, 1, 1),)),
    "MaxPool": _behind_conv(("MaxPool", ["c"], ["r"], {"kernel_shape": [2, 2]})),
    "AveragePool": _behind_conv(("AveragePool", ["c"], ["r"], {"kernel_shape": [2, 2]})),
    "GlobalAveragePool": _behind_conv(("GlobalAveragePool", ["c"], ["r"])),
    "Concat": _behind_conv(("Concat", ["c", "x"], ["r"], {"axis": 1})),
    "Split": _behind_conv(("Split", ["c", "parts"], ["r", "q"], {"axis": 1}),
                          constants=(integers("parts", 2, 4),), outputs=["r", "q"]),
    "Pad": _behind_conv(("Pad", ["c", "pads"], ["r"]), constants=(integers("pads", 0, 0, 1, 1, 0, 0, 1, 1),)),
    "Pad with a value": _behind_conv(("Pad", ["c", "pads", "value"], ["r"]), constants=(
        integers("pads", 0, 0, 1, 1, 0, 0, 1, 1), scalar("value", 0.5))),
    "Pad by reflection": _behind_conv(("Pad", ["c", "pads"], ["r"], {"mode": "reflect"}), constants=(
        integers("pads", 0, 0, 1, 1, 0, 0, 1, 1),)),
    "Reshape": _behind_conv(("Reshape", ["c", "shape"], ["r"]), constants=(integers("shape", 1, -1),)),
    "Transpose": _behind_conv(("Transpose", ["c"], ["r"], {"perm": [0, 2, 3, 1]})),
    "Squeeze": _behind_conv(("Squeeze", ["c", "axes"], ["s"]), ("Unsqueeze", ["s", "axes"], ["u"]),
                            ("Flatten", ["u"], ["r"]), constants=(integers("axes", 0),)),
    "Resize": _behind_conv(("Resize", ["c", "", "scales"], ["r"]), constants=(
        numpy_helper.from_array(np.array([1, 1, 2, 2], np.float32), "scales"),)),
    "Where": _with([("Conv", ["x", "w", "b"], ["c"], _PADS), ("Relu", ["c"], ["d"]),
                    ("Where", ["m", "d", "k"], ["r"])], _IMAGE, random("w", 6, 4, 3, 3), random("b", 6),
                   random("k", 1), numpy_helper.from_array(np.ones((1, 6, 8, 8), bool), "m")),
    "ArgMax": _behind_conv(("ArgMax", ["c"], ["a"], {"axis": 1}), ("Cast", ["a"], ["r"], {"to": FLOAT})),
    "Softmax": _behind_conv(("Softmax", ["c"], ["r"], {"axis": 1})),
    "InstanceNormalization": _behind_conv(("InstanceNormalization", ["c", "s", "t"], ["r"]),
                                          constants=(random("s", 6), random("t", 6))),
    "BatchNormalization": _behind_conv(
        ("BatchNormalization", ["c", "s", "t", "mean", "var"], ["r"]),
        constants=(random("s", 6), random("t", 6), random("mean", 6),
                   numpy_helper.from_array(np.ones(6, np.float32), "var"))),
    "LayerNormalization": _with([("LayerNormalization", ["x", "s", "t"], ["r"])], _IMAGE, random("s", 8),
                                random("t", 8)),
    "ConvTranspose": _with([("ConvTranspose", ["x", "w", "b"], ["r"])], _IMAGE, random("w", 4, 6, 3, 3),
                           random("b", 6)),
    "one bias of two": _with([_CONV, ("Conv", ["x", "v", "b"], ["d"], _PADS),
                              ("Add", ["c", "d"], ["r"])], _IMAGE, random("w", 6, 4, 3, 3),
                             random("v", 6, 4, 3, 3), random("b", 6)),
    "large bias": _with([_CONV], _IMAGE, random("w", 6, 4, 3, 3, scale=1e-9), random("b", 6, scale=10.0)),
    "Gemm": _with([("Gemm", ["x", "w", "b"], ["r"])], {"x": [2, 4]}, random("w", 4, 6), random("b", 6)),
    "Gemm transposed": _with([("Gemm", ["x", "w", "b"], ["g"], {"transB": 1}), ("Relu", ["g"], ["r"])],
                             {"x": [2, 4]}, random("w", 6, 4), random("b", 6)),
    "MatMul": _with([("MatMul", ["x", "w"], ["m"]), ("Add", ["m", "b"], ["r"])], {"x": [2, 4]},
                    random("w", 4, 6), random("b", 6)),
    "MatMul of two inputs": _with([("MatMul", ["x", "y"], ["r"])], {"x": [2, 4], "y": [4, 5]}),
    "two products": _with([("MatMul", ["x", "w"], ["c"]), ("MatMul", ["x", "v"], ["d"]),
                           ("Add", ["c", "d"], ["r"])], {"x": [2, 4]}, random("w", 4, 6), random("v", 4, 6)),
    "LSTM": _with([("LSTM", ["x", "W", "R", "B"], ["r", "h"], {"hidden_size": 5})], {"x": [3, 1, 4]},
                  random("W", 1, 20, 4), random("R", 1, 20, 5), random("B", 1, 40)),
    "LSTM both ways": _with([("LSTM", ["x", "W", "R"], ["r", "h"],
                              {"hidden_size": 5, "direction": "bidirectional"})], {"x": [3, 1, 4]},
                            random("W", 2, 20, 4), random("R", 2, 20, 5)),
    "Gather": _with([("Gather", ["w", "i"], ["g"]), ("MatMul", ["g", "v"], ["c"]),
                     ("Add", ["c", "x"], ["r"])], {"x": [2, 6]}, random("w", 10, 4), integers("i", 1, 2),
                    random("v", 4, 6)),
    "tied weights": _with([("Gather", ["w", "i"], ["g"]), ("Transpose", ["w"], ["t"]),
                           ("MatMul", ["g", "t"], ["c"]), ("Add", ["c", "x"], ["r"])], {"x": [2, 10]},
                          random("w", 10, 4), integers("i", 1, 2)),
    "Attention": _with([("Attention", ["x", "w", "b"], ["r"], {"num_heads": 2, "domain": "com.microsoft"})],
                       {"x": [1, 3, 4]}, random("w", 4, 12), random("b", 12)),
    "EmbedLayerNormalization": _with(
        [("EmbedLayerNormalization", ["ids", "segments", "we", "pe", "se", "g", "t"], ["r", "mask"],
          {"domain": "com.microsoft"})], {"ids": [1, 3], "segments": [1, 3]}, random("we", 10, 4),
        random("pe", 5, 4), random("se", 2, 4), random("g", 4), random("t", 4),
        kinds={"ids": TensorProto.INT32, "segments": TensorProto.INT32}),
    "Slice and TopK": _behind_conv(("Slice", ["c", "from", "to"], ["s"]),
                                   ("TopK", ["s", "count"], ["r", "i"]),
                                   constants=(integers("from", 0), integers("to", 1), integers("count", 2)),
                                   outputs=["r"]),
    "CumSum": _with([("CumSum", ["x", "axis"], ["r"])], _IMAGE,
                    numpy_helper.from_array(np.array(1, np.int64), "axis")),
    "residual": _behind_conv(
        ("Relu", ["c"], ["r"]), ("Conv", ["r", "v", "e"], ["d"], _PADS), ("Add", ["d", "r"], ["s"]),
        ("Relu", ["s"], ["t"]), ("GlobalAveragePool", ["t"], ["p"]), ("Flatten", ["p"], ["f"]),
        ("Gemm", ["f", "g", "h"], ["o"], {"transB": 1}),
        constants=(random("v", 6, 6, 3, 3), random("e", 6), random("g", 10, 6), random("h", 10))),
}


def ranges(source: onnx.ModelProto, kind: type, seed: int = 0) -> dict[str, Any]:
    """{name: range} of all float values, as `kind` (a TensorData); a Relu's begin at 0."""
    graph = onnx.shape_inference.infer_shapes(source).graph
    constants = {tensor.name for tensor in graph.initializer}
    positive = {name for node in graph.node for name in node.output
                if node.op_type in ("Relu", "Clip", "Sigmoid")}
    found = {}
    for value in (*graph.value_info, *graph.output, *graph.input):
        if value.type.tensor_type.elem_type != FLOAT or value.name in constants:
            continue
        generator = np.random.default_rng([seed, zlib.crc32(value.name.encode())])
        low, high = sorted(generator.normal(size=2) * 3)
        if value.name in positive:
            low, high = 0.0, min(abs(high), 6.0)
        found[value.name] = kind(lowest=np.array(low, np.float32), highest=np.array(high, np.float32),
                                 avg=np.array(0, np.float32), std=np.array(abs(high), np.float32))
    return found


def feed(source: onnx.ModelProto, seed: int = 0) -> dict[str, np.ndarray]:
    """Values of the shapes and types that a model's inputs have."""
    generator = np.random.default_rng(seed)
    constants = {tensor.name for tensor in source.graph.initializer}
    values = {}
    for value in source.graph.input:
        kind = value.type.tensor_type
        shape = [size.dim_value for size in kind.shape.dim]
        if value.name not in constants:
            values[value.name] = (generator.normal(size=shape).astype(np.float32) if kind.elem_type == FLOAT
                                  else generator.integers(0, 2, size=shape).astype(np.int32))
    return values
