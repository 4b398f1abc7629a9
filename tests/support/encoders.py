"""Small encoders as exporters write them, made with onnx.helper: torch's script exporter of several years,
the same of networks that stack the heads of all texts in one axis ("stacked": Bart, Clip, Whisper), tf2onnx,
and tf2onnx of Keras's own attention ("einsum", from opset 13 on, none of `STYLES`). All compute the same
network; only the graphs differ."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

HEADS, SIZE, WORDS, LENGTH = 2, 4, 20, 16
HIDDEN = HEADS * SIZE
STYLES = ("torch", "torch-where", "sdpa", "stacked", "tf")


class Encoder:
    """Collects the nodes of an encoder of `layers` layers. `mask`: the form of the mask that comes in:
    "flags" [batch, keys], "pairs" [batch, queries, keys], "scores" [batch, 1, queries, keys] of floats, or
    "" for none; `integer`: the type of ids and flags."""

    def __init__(self, style: str = "torch", opset: int = 14, layers: int = 2, mask: str = "flags",
                 integer: int = TensorProto.INT64, gelu: str = "erf", segments: bool = True,
                 seed: int = 0) -> None:
        self.style, self.opset, self.layers, self.mask, self.integer = style, opset, layers, mask, integer
        self.gelu, self.segments = gelu, segments
        self.rng = np.random.default_rng(seed)
        self.nodes: list[Any] = []
        self.weights: dict[str, np.ndarray] = {}
        self.count = itertools.count()

    def op(self, kind: str, *inputs: Any, **attributes: Any) -> str:
        """One node; arrays and numbers among its inputs become initializers."""
        name = f"{kind}_{next(self.count)}"
        self.nodes.append(helper.make_node(kind, [self.put(v) for v in inputs], [name], name, **attributes))
        return name

    def put(self, value: Any) -> str:
        if isinstance(value, str):
            return value
        array = np.asarray(value, np.float32) if isinstance(value, float) else np.asarray(value)
        name = f"const_{next(self.count)}"
        self.weights[name] = array
        return name

    def weight(self, *shape: int) -> np.ndarray:
        return (self.rng.standard_normal(shape) * 0.5).astype(np.float32)

    def axes(self, kind: str, x: str, axes: list[int], **more: Any) -> str:
        """An operator whose axes are an attribute before opset 13, 18 for the reductions but ReduceSum."""
        since = 18 if kind == "ReduceMean" else 13
        if self.opset < since:
            return self.op(kind, x, axes=axes, **more)
        return self.op(kind, x, np.array(axes, np.int64), **more)

    def model(self) -> onnx.ModelProto:
        x = self.norm(self.embedding())
        if self.style == "tf":
            x = self.op("Reshape", x, np.array([-1, HIDDEN]))
        mask = self.mask_of()
        for _ in range(self.layers):
            x = self.norm(self.op("Add", self.attention(x, mask), x))
            hidden = self.activation(self.linear(x, HIDDEN, 2 * HIDDEN))
            x = self.norm(self.op("Add", self.linear(hidden, 2 * HIDDEN, HIDDEN), x))
        self.nodes[-1].output[0] = "out"
        kind = [("input_ids", self.integer, ["batch", "seq"])]
        kind += [("token_type_ids", self.integer, ["batch", "seq"])] if self.segments else []
        if self.mask in ("flags", "pairs", "scores"):
            kind.append({"flags": ("attention_mask", self.integer, ["batch", "seq"]),
                         "pairs": ("attention_mask", self.integer, ["batch", "seq", "seq"]),
                         "scores": ("attention_mask", TensorProto.FLOAT, ["batch", 1, "seq", "seq"])
                         }[self.mask])
        graph = helper.make_graph(
            self.nodes, "encoder", [helper.make_tensor_value_info(*k) for k in kind],
            [helper.make_tensor_value_info("out", TensorProto.FLOAT, None)],
            [numpy_helper.from_array(v, k) for k, v in self.weights.items()])
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=8)
        made.producer_name = "tf2onnx" if self.style == "tf" else "pytorch"
        made.metadata_props.add(key="author", value="tests")
        return made

    def embedding(self) -> str:
        ids = "input_ids"
        word = self.op("Gather", self.weight(WORDS, HIDDEN), ids)
        length = self.op("Gather", self.op("Shape", ids), np.int64(1), axis=0)
        ends = self.axes("Unsqueeze", length, [0])
        places = self.op("Slice", np.arange(LENGTH, dtype=np.int64)[None], np.array([0]), ends, np.array([1]))
        place = self.op("Gather", self.weight(LENGTH, HIDDEN), places)
        if self.segments:
            word = self.op("Add", word, self.op("Gather", self.weight(2, HIDDEN), "token_type_ids"))
        return self.op("Add", word, place)

    def norm(self, x: str) -> str:
        gamma, beta = 1 + self.weight(HIDDEN) * np.float32(0.1), self.weight(HIDDEN)
        if self.opset >= 17 and self.style == "sdpa":
            return self.op("LayerNormalization", x, gamma, beta, epsilon=1e-12)
        mean = self.axes("ReduceMean", x, [-1], keepdims=1)
        centred = self.op("Sub", x, mean)
        square = self.op("Mul", centred, centred) if self.style == "tf" else self.op("Pow", centred, 2.0)
        root = self.op("Sqrt", self.op("Add", self.axes("ReduceMean", square, [-1], keepdims=1), 1e-12))
        if self.style == "tf":
            scale = self.op("Mul", self.op("Reciprocal", root), gamma)
            shift = self.op("Sub", beta, self.op("Mul", mean, scale))
            return self.op("Add", self.op("Mul", x, scale), shift)
        return self.op("Add", self.op("Mul", self.op("Div", centred, root), gamma), beta)

    def linear(self, x: str, width: int, out: int) -> str:
        return self.op("Add", self.op("MatMul", x, self.weight(width, out)), self.weight(out))

    def activation(self, x: str) -> str:
        if self.gelu == "tanh":
            cube = self.op("Mul", self.op("Pow", x, 3.0), 0.044715)
            arc = self.op("Mul", self.op("Add", x, cube), float(np.sqrt(2 / np.pi)))
            return self.op("Mul", self.op("Mul", x, 0.5), self.op("Add", self.op("Tanh", arc), 1.0))
        if self.gelu == "quick":
            return self.op("Mul", x, self.op("Sigmoid", self.op("Mul", x, 1.702)))
        error = self.op("Erf", self.op("Div", x, 1.41421 if self.gelu == "megatron" else float(np.sqrt(2))))
        if self.style == "tf":
            return self.op("Mul", x, self.op("Mul", self.op("Add", error, 1.0), 0.5))
        return self.op("Mul", self.op("Mul", x, self.op("Add", error, 1.0)), 0.5)

    def mask_of(self) -> str:
        """What is added to the scores, or for "torch-where" and "sdpa" selects among them."""
        if not self.mask or self.mask == "scores":
            return "attention_mask" if self.mask else ""
        axes = [1] if self.mask == "pairs" else [1, 2]
        if self.style == "torch-where":
            flags = self.op("Cast", "attention_mask", to=TensorProto.BOOL)
            return self.op("Not", self.axes("Unsqueeze", flags, axes))
        if self.style == "sdpa":
            flags = self.axes("Unsqueeze", self.op("Cast", "attention_mask", to=TensorProto.BOOL), axes)
            return self.op("Where", flags, 0.0, float(np.finfo(np.float32).min))
        flags = self.op("Cast", self.axes("Unsqueeze", "attention_mask", axes), to=TensorProto.FLOAT)
        return self.op("Mul", self.op("Sub", 1.0, flags), -10000.0)

    def heads(self, x: str) -> str:
        shape = self.op("Shape", "input_ids")
        target = self.op("Concat", shape, np.array([HEADS, SIZE]), axis=0)
        return self.op("Transpose", self.op("Reshape", x, target), perm=[0, 2, 1, 3])

    def einsum(self, x: str, mask: str) -> str:
        """Attention as Keras's MultiHeadAttention computes it."""
        q, k, v = (self.op("Add", self.op("Einsum", x, self.weight(HIDDEN, HEADS, SIZE),
                                          equation="abc,cde->abde"), self.weight(HEADS, SIZE))
                   for _ in range(3))
        scores = self.op("Einsum", k, self.op("Mul", q, float(SIZE ** -0.5)), equation="aecd,abcd->acbe")
        weights = self.op("Softmax", self.op("Add", scores, mask) if mask else scores, axis=3)
        y = self.op("Einsum", weights, v, equation="acbe,aecd->abcd")
        y = self.op("Einsum", y, self.weight(HEADS, SIZE, HIDDEN), equation="abcd,cde->abe")
        return self.op("Add", y, self.weight(HIDDEN))

    def stacked(self, x: str, mask: str) -> str:
        """Attention with one axis for batch and heads, in which the scores are but while they are masked."""
        batch, length = (self.op("Gather", self.op("Shape", "input_ids"), np.array([i])) for i in range(2))
        rows = self.op("Mul", batch, np.array([HEADS]))
        joined = self.op("Concat", rows, np.array([-1, SIZE]), axis=0)
        q, k, v = (self.linear(x, HIDDEN, HIDDEN) for _ in range(3))
        q = self.op("Mul", q, float(SIZE ** -0.5))
        q, k, v = (self.op("Reshape", self.heads(each), joined) for each in (q, k, v))
        scores = self.op("MatMul", q, self.op("Transpose", k, perm=[0, 2, 1]))
        if mask:
            apart = self.op("Concat", batch, np.array([HEADS]), length, length, axis=0)
            scores = self.op("Add", self.op("Reshape", scores, apart), mask)
            scores = self.op("Reshape", scores, self.op("Concat", rows, length, length, axis=0))
        weights = self.op("Softmax", scores, axis=2 if self.opset < 13 else -1)
        apart = self.op("Concat", batch, np.array([HEADS]), length, np.array([SIZE]), axis=0)
        y = self.op("Reshape", self.op("MatMul", weights, v), apart)
        y = self.op("Transpose", y, perm=[0, 2, 1, 3])
        return self.linear(self.op("Reshape", y, np.array([0, 0, HIDDEN])), HIDDEN, HIDDEN)

    def attention(self, x: str, mask: str) -> str:
        if self.style == "einsum":
            return self.einsum(x, mask)
        if self.style == "stacked":
            return self.stacked(x, mask)
        q, k, v = (self.heads(self.linear(x, HIDDEN, HIDDEN)) for _ in range(3))
        kt = self.op("Transpose", k, perm=[0, 1, 3, 2])
        if self.style == "sdpa":
            factor = float(SIZE ** -0.25)
            scores = self.op("MatMul", self.op("Mul", q, factor), self.op("Mul", kt, factor))
        elif self.style == "tf":
            scores = self.op("Mul", self.op("MatMul", q, kt), float(SIZE ** -0.5))
        else:
            scores = self.op("Div", self.op("MatMul", q, kt), float(SIZE ** 0.5))
        if mask and self.style == "torch-where" and self.mask != "scores":
            scores = self.op("Where", mask, float(np.finfo(np.float32).min), scores)
        elif mask:
            scores = self.op("Add", scores, mask)
        weights = self.op("Softmax", scores, axis=3 if self.opset < 13 else -1)
        y = self.op("Transpose", self.op("MatMul", weights, v), perm=[0, 2, 1, 3])
        whole = [-1, HIDDEN] if self.style == "tf" else [0, 0, HIDDEN]
        return self.linear(self.op("Reshape", y, np.array(whole)), HIDDEN, HIDDEN)


def feeds(model: onnx.ModelProto, batch: int = 2, length: int = 5, seed: int = 0, left: bool = False
          ) -> dict[str, np.ndarray]:
    """Ids and masks for an encoder; texts are padded at their ends, or before their beginnings if `left`."""
    rng = np.random.default_rng(seed)
    made: dict[str, np.ndarray] = {}
    for value in model.graph.input:
        kind = helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        rank = len(value.type.tensor_type.shape.dim)
        if value.name == "attention_mask":
            kept = np.arange(length)[None] < rng.integers(1, length + 1, (batch, 1))
            kept = kept[:, ::-1] if left else kept
            if rank == 4:
                made[value.name] = rng.standard_normal((batch, 1, length, length)).astype(kind)
                continue
            made[value.name] = (np.repeat(kept[:, None], length, 1) if rank == 3 else kept).astype(kind)
        else:
            end = 2 if value.name == "token_type_ids" else WORDS
            made[value.name] = rng.integers(0, end, (batch, length)).astype(kind)
    return made
