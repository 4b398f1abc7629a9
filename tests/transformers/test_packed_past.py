"""Decoders whose earlier keys and values are one tensor, as GPT-2 was exported until transformers 4.26."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from graphs import info, model
from onnx import ModelProto, TensorProto, helper

import orthrus
from orthrus.transformers import optimizer
from orthrus.transformers.model.bert import BertOnnxModel

HEADS, SIZE, LONGEST = 2, 4, 16
WIDTH = HEADS * SIZE
FLOAT, INT, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


class Decoder:
    """One attention; the parameters are where exports differ."""

    def __init__(self, *, halves: str = "split", low: float = -1e4, padding: str = "float",
                 swapped: bool = False, triangle: Any = np.tri, table: type = np.uint8, joined: bool = True,
                 back: int = 0, separate: bool = False) -> None:
        self.halves, self.low, self.padding, self.swapped = halves, low, padding, swapped
        self.table, self.joined, self.back, self.separate = table, joined, back, separate
        self.nodes: list[Any] = []
        rng = np.random.default_rng(7)
        self.weights: dict[str, np.ndarray] = {
            "w": rng.standard_normal((WIDTH, 3 * WIDTH), np.float32),
            "b": rng.standard_normal(3 * WIDTH, np.float32),
            "triangle": triangle(LONGEST)[None, None].astype(table)}

    def op(self, kind: str, *inputs: Any, outputs: int = 1, **attrs: Any) -> Any:
        names = []
        for given in inputs:
            if not isinstance(given, str):
                array = np.asarray(given)
                array = array.astype(np.float32) if array.dtype.kind == "f" else array
                given = f"c{len(self.weights)}"
                self.weights[given] = array
            names.append(given)
        made = [f"v{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(kind, names, made, **attrs))
        return made[0] if outputs == 1 else made

    def add(self, a: str, b: Any) -> Any:
        return self.op("Add", *((b, a) if self.swapped else (a, b)))

    def half(self, which: int) -> str:
        if self.halves == "gather":
            return self.op("Gather", "past", np.int64(which), axis=0)
        return self.op("Squeeze", self.op("Split", "past", np.array([1, 1]), axis=0, outputs=2)[which],
                       np.array([0]))

    def split(self, flat: str) -> str:
        apart = self.op("Reshape", flat, np.array([0, 0, HEADS, SIZE]))
        return self.op("Transpose", apart, perm=[0, 2, 1, 3])

    def projected(self) -> list[str]:
        if self.separate:
            for i, name in enumerate("qkv"):
                part = slice(i * WIDTH, (i + 1) * WIDTH)
                self.weights |= {f"w{name}": self.weights["w"][:, part], f"b{name}": self.weights["b"][part]}
            return [self.add(self.op("MatMul", "x", f"w{name}"), f"b{name}") for name in "qkv"]
        whole = self.add(self.op("MatMul", "x", "w"), "b")
        return self.op("Split", whole, np.array([WIDTH] * 3), axis=2, outputs=3)

    def length(self, value: str) -> str:
        return self.op("Slice", self.op("Shape", value), np.array([-2]), np.array([-1]), np.array([0]))

    def model(self) -> ModelProto:
        q, k, v = map(self.split, self.projected())
        keys = self.op("Concat", self.half(0), k, axis=-2)
        values = self.op("Concat", self.half(1), v, axis=-2)
        total = self.length(keys)
        rows = self.op("Sub", total, self.length(q))
        start = self.op("Sub", rows, np.array([self.back])) if self.back else rows
        end = self.op("Sub", total, np.array([self.back])) if self.back else total
        seen = self.op("Slice", "triangle", start, end, np.array([2]), np.array([1]))
        seen = self.op("Slice", seen, np.array([0]), total, np.array([3]), np.array([1]))
        if self.table is not np.bool_:
            seen = self.op("Cast", seen, to=BOOL)
        scores = self.op("MatMul", q, self.op("Transpose", keys, perm=[0, 1, 3, 2]))
        scores = self.op("Where", seen, self.op("Div", scores, SIZE ** 0.5), float(self.low))
        if self.padding:
            flags = self.op("Unsqueeze", "mask", np.array([1, 2]))
            flags = flags if self.padding == "float" else self.op("Cast", flags, to=FLOAT)
            scores = self.add(scores, self.op("Mul", self.op("Sub", 1.0, flags), -1e4))
        mixed = self.op("MatMul", self.op("Softmax", scores, axis=3), values)
        out = self.op("Reshape", self.op("Transpose", mixed, perm=[0, 2, 1, 3]), np.array([0, 0, WIDTH]))
        self.nodes.append(helper.make_node("Identity", [out], ["out"]))
        outputs = [info("out", FLOAT, ["batch", "new", WIDTH])]
        if self.joined:
            pair = [self.op("Unsqueeze", x, np.array([0])) for x in (keys, values)]
            self.nodes.append(helper.make_node("Concat", pair, ["present"], axis=0))
            outputs.append(info("present", FLOAT, [2, "batch", HEADS, "total", SIZE]))
        inputs = [info("x", FLOAT, ["batch", "new", WIDTH]),
                  info("past", FLOAT, [2, "batch", HEADS, "past", SIZE])]
        if self.padding:
            inputs.append(info("mask", FLOAT if self.padding == "float" else INT, ["batch", "total"]))
        return model(self.nodes, inputs, outputs, self.weights, opset=14)


def answers(runtime: Any, given: ModelProto, past: int, new: int) -> list[np.ndarray]:
    rng = np.random.default_rng(past * 10 + new)
    flags = np.ones((2, past + new), np.int64)
    flags[1, :min(2, past)] = 0
    feeds = {"x": rng.standard_normal((2, new, WIDTH), np.float32),
             "past": rng.standard_normal((2, 2, HEADS, past, SIZE), np.float32),
             "mask": flags.astype(helper.tensor_dtype_to_np_dtype(
                 given.graph.input[-1].type.tensor_type.elem_type))}
    session = runtime.InferenceSession(given.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {it.name: feeds[it.name] for it in given.graph.input})


def optimized(given: ModelProto) -> BertOnnxModel:
    made = optimizer.optimize_model(given, "gpt2", opt_level=0)
    assert isinstance(made, BertOnnxModel)
    return made


def stays(given: ModelProto, made: ModelProto) -> None:
    theirs = pytest.importorskip("onnxruntime")
    for past, new in ((4, 1), (3, 3), (0, 5)):
        expected = answers(theirs, given, past, new)
        for runtime in (orthrus, theirs):
            for a, b in zip(answers(runtime, made, past, new), expected, strict=True):
                np.testing.assert_allclose(a, b, atol=1e-5)


@pytest.mark.parametrize("difference", [
    {}, {"halves": "gather"}, {"low": -3e38}, {"low": -np.inf}, {"padding": "int"}, {"padding": ""},
    {"swapped": True}, {"table": np.bool_}, {"joined": False}, {"separate": True},
    {"halves": "gather", "padding": "", "separate": True, "table": np.bool_, "low": -3e38}])
def test_earlier_keys_and_values_stay_one_tensor(difference: dict[str, Any]) -> None:
    given = Decoder(**difference).model()
    made = optimized(given)
    [node] = made.get_nodes_by_op_type("Attention")
    assert node.name == "GptAttention_0" and node.input[4] == "past"
    assert helper.get_node_attr_value(node, "unidirectional") == 1
    assert not {"Softmax", "Split", "Concat"} & set(made.get_operator_statistics())
    stays(given, made.model)


@pytest.mark.parametrize("difference", [
    {"low": -50.0}, {"triangle": lambda n: np.tri(n, k=-1) + np.eye(n) * np.arange(n) % 2}, {"back": 1}])
def test_what_only_looks_causal_is_not_taken_for_it(difference: dict[str, Any]) -> None:
    given = Decoder(padding="", **difference).model()
    made = optimized(given)
    assert not made.get_nodes_by_op_type("Attention")
    theirs = pytest.importorskip("onnxruntime")
    for a, b in zip(answers(theirs, made.model, 4, 2), answers(theirs, given, 4, 2), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-5)
