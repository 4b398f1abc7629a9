"""Models of thousands of nodes, as exporters write them: nothing fused, every shape computed, one Constant
node per number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from graphs import info, model
from onnx import TensorProto, helper, numpy_helper

_FAR = 2**63 - 1
_SQUARE = np.random.default_rng(0).standard_normal((512, 512)).astype(np.float32) / 16


class Exporter:
    """Appends nodes to a graph; each method gives the name of what it made."""

    def __init__(self, seed: int = 0) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []

    def op(self, kind: str, *inputs: str, outputs: int = 1, **attrs: Any) -> Any:
        number = len(self.nodes)
        names = [f"/{kind}_{number}_output_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(kind, list(inputs), names, f"/{kind}_{number}", **attrs))
        return names[0] if outputs == 1 else names

    def const(self, value: Any, dtype: Any = np.int64) -> str:
        return self.op("Constant", value=numpy_helper.from_array(np.asarray(value, dtype)))

    def weight(self, *shape: int, scale: float | None = None, center: float = 0.0) -> str:
        array = self.rng.standard_normal(shape) * (scale or shape[0] ** -0.5) + center
        name = f"weight_{len(self.initializers)}"
        self.initializers.append(numpy_helper.from_array(array.astype(np.float32), name))
        return name

    def size(self, x: str, axis: int) -> str:
        """Dimension `axis` of `x`, as a scalar."""
        return self.op("Gather", self.op("Shape", x), self.const(axis), axis=0)

    def vector(self, dims: Sequence[str | int]) -> str:
        """Scalars and numbers as one shape."""
        parts = [self.const([d]) if isinstance(d, int) else self.op("Unsqueeze", d, self.const([0]))
                 for d in dims]
        return self.op("Concat", *parts, axis=0)

    def reshape(self, x: str, dims: Sequence[str | int]) -> str:
        return self.op("Reshape", x, self.vector(dims))

    def norm(self, x: str, width: int) -> str:
        """LayerNormalization over the last axis, written out."""
        centred = self.op("Sub", x, self.op("ReduceMean", x, axes=[-1]))
        square = self.op("Pow", centred, self.const(2.0, np.float32))
        variance = self.op("ReduceMean", square, axes=[-1])
        deviation = self.op("Sqrt", self.op("Add", variance, self.const(1e-5, np.float32)))
        scaled = self.op("Mul", self.op("Div", centred, deviation), self.weight(width, scale=0.1, center=1.0))
        return self.op("Add", scaled, self.weight(width, scale=0.1))

    def linear(self, x: str, rows: int, columns: int) -> str:
        return self.op("Add", self.weight(columns, scale=0.1),
                       self.op("MatMul", x, self.weight(rows, columns)))

    def gelu(self, x: str) -> str:
        """Gelu by erf, written out."""
        half = self.op("Erf", self.op("Div", x, self.const(2**0.5, np.float32)))
        doubled = self.op("Mul", x, self.op("Add", half, self.const(1.0, np.float32)))
        return self.op("Mul", doubled, self.const(0.5, np.float32))

    def cut(self, x: str, start: int, end: int, axis: int, step: int = 1) -> str:
        return self.op("Slice", x, self.const([start]), self.const([end]), self.const([axis]),
                       self.const([step]))

    def roll(self, x: str, shift: int) -> str:
        """`x` [batch, height, width, channels] rolled by `shift` along height and width."""
        for axis in (1, 2):
            x = self.op("Concat", self.cut(x, -shift, _FAR, axis), self.cut(x, 0, -shift, axis), axis=axis)
        return x

    def expand(self, x: str, like: str, dims: Sequence[str | int]) -> str:
        """torch's expand: -1 in `dims` keeps a dimension of `like`."""
        wanted = self.vector(dims)
        ones = self.op("ConstantOfShape", self.op("Shape", wanted),
                       value=numpy_helper.from_array(np.ones(1, np.int64)))
        kept = self.op("Equal", wanted, self.op("Mul", ones, self.const(-1)))
        return self.op("Expand", x, self.op("Where", kept, ones, wanted))


def swin(depths: Sequence[int] = (2, 2, 18, 2), width: int = 16, heads: int = 2, window: int = 4,
         size: int | None = 64, classes: int = 10) -> onnx.ModelProto:
    """A vision transformer with shifted windows, opset 17: `image` ["batch", 3, size, size] to `logits`
    ["batch", classes]; `size` None leaves height and width dynamic, multiples of 2**len(depths) * window.

    The stages' patch merging, the windows, their masks and every Reshape compute their shapes anew. With the
    defaults it has 24 blocks and over 3,600 nodes beside its Constants.
    """
    e = Exporter()
    dims = ["height", "width"] if size is None else [size, size]
    x = e.op("Conv", "image", e.weight(width, 3, 2, 2), e.weight(width), kernel_shape=[2, 2], strides=[2, 2])
    batch, high, wide = (e.size(x, axis) for axis in (0, 2, 3))
    x = e.op("Transpose", e.reshape(x, [batch, width, -1]), perm=[0, 2, 1])
    x = e.norm(x, width)
    for stage, depth in enumerate(depths):
        for block in range(depth):
            x = _block(e, x, high, wide, width, heads, window, window // 2 if block % 2 else 0)
        if stage + 1 < len(depths):
            x, high, wide = _merge(e, x, high, wide, width)
            width, heads = 2 * width, 2 * heads
    x = e.op("ReduceMean", e.norm(x, width), axes=[1], keepdims=0)
    e.op("Gemm", x, e.weight(width, classes), e.weight(classes))
    e.nodes[-1].output[0] = "logits"
    graph = helper.make_graph(
        e.nodes, "swin", [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 3, *dims])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", classes])], e.initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    return model


def _merge(e: Exporter, x: str, high: str, wide: str, width: int) -> tuple[str, str, str]:
    """Four neighbouring patches become one, of twice the width."""
    batch = e.size(x, 0)
    x = e.reshape(x, [batch, high, wide, width])
    quarters = [e.cut(e.cut(x, i, _FAR, 1, 2), j, _FAR, 2, 2) for j in (0, 1) for i in (0, 1)]
    x = e.reshape(e.op("Concat", *quarters, axis=-1), [batch, -1, 4 * width])
    x = e.op("MatMul", e.norm(x, 4 * width), e.weight(4 * width, 2 * width))
    return x, e.op("Div", high, e.const(2)), e.op("Div", wide, e.const(2))


def _windows(e: Exporter, x: str, window: int, width: int) -> str:
    """[batch, height, width, channels] to [batch * windows, window * window, channels]."""
    batch, high, wide = (e.size(x, axis) for axis in range(3))
    rows, columns = e.op("Div", high, e.const(window)), e.op("Div", wide, e.const(window))
    x = e.reshape(x, [batch, rows, window, columns, window, width])
    x = e.reshape(e.op("Transpose", x, perm=[0, 1, 3, 2, 4, 5]), [-1, window, window, width])
    return e.reshape(x, [-1, window * window, width])


def _mask(e: Exporter, like: str, high: str, wide: str, window: int, shift: int) -> str:
    """[windows, window * window, window * window]: -100 between patches that were no neighbours before the
    roll."""
    regions = []
    for size in (high, wide):
        places = e.op("Range", e.const(0), size, e.const(1))
        late = e.op("Not", e.op("Less", places, e.op("Sub", size, e.const(window))))
        last = e.op("Not", e.op("Less", places, e.op("Sub", size, e.const(shift))))
        regions.append(e.op("Add", e.op("Cast", late, to=TensorProto.INT64),
                            e.op("Cast", last, to=TensorProto.INT64)))
    rows = e.op("Mul", e.op("Unsqueeze", regions[0], e.const([1])), e.const(3))
    ids = e.op("Add", rows, e.op("Unsqueeze", regions[1], e.const([0])))
    ids = e.op("Cast", e.op("Unsqueeze", ids, e.const([0, 3])), to=TensorProto.FLOAT)
    ids = e.reshape(_windows(e, ids, window, 1), [-1, window * window])
    apart = e.op("Sub", e.op("Unsqueeze", ids, e.const([1])), e.op("Unsqueeze", ids, e.const([2])))
    same = e.op("Equal", apart, e.const(0.0, np.float32))
    return e.op("Where", same, e.const(0.0, np.float32), e.const(-100.0, np.float32))


def _attention(e: Exporter, x: str, mask: str | None, width: int, heads: int, window: int) -> str:
    """Self-attention inside each window, with a bias by relative position."""
    count, tokens, head = e.size(x, 0), e.size(x, 1), width // heads
    qkv = e.reshape(e.linear(x, width, 3 * width), [count, tokens, 3, heads, head])
    qkv = e.op("Transpose", qkv, perm=[2, 0, 3, 1, 4])
    q, k, v = (e.op("Gather", qkv, e.const(i), axis=0) for i in range(3))
    q = e.op("Mul", q, e.const(head**-0.5, np.float32))
    scores = e.op("MatMul", q, e.op("Transpose", k, perm=[0, 1, 3, 2]))
    places = np.arange(window * window)
    apart = [np.subtract.outer(p, p) + window - 1 for p in (places // window, places % window)]
    index = e.const((apart[0] * (2 * window - 1) + apart[1]).ravel())
    bias = e.op("Gather", e.weight((2 * window - 1) ** 2, heads), index, axis=0)
    bias = e.op("Transpose", e.reshape(bias, [window * window, window * window, -1]), perm=[2, 0, 1])
    scores = e.op("Add", scores, e.op("Unsqueeze", bias, e.const([0])))
    if mask is not None:
        windows = e.size(mask, 0)
        scores = e.reshape(scores, [e.op("Div", count, windows), windows, heads, tokens, tokens])
        lifted = e.op("Unsqueeze", e.op("Unsqueeze", mask, e.const([1])), e.const([0]))
        lifted = e.expand(lifted, mask, [1, -1, heads, tokens, tokens])
        scores = e.reshape(e.op("Add", scores, lifted), [-1, heads, tokens, tokens])
    mixed = e.op("MatMul", e.op("Softmax", scores, axis=-1), v)
    mixed = e.reshape(e.op("Transpose", mixed, perm=[0, 2, 1, 3]), [count, tokens, width])
    return e.linear(mixed, width, width)


def _block(e: Exporter, x: str, high: str, wide: str, width: int, heads: int, window: int, shift: int) -> str:
    batch, tokens = e.size(x, 0), e.size(x, 1)
    y = e.reshape(e.norm(x, width), [batch, high, wide, width])
    mask = None
    if shift:
        y = e.roll(y, -shift)
        mask = _mask(e, y, high, wide, window, shift)
    y = _attention(e, _windows(e, y, window, width), mask, width, heads, window)
    y = e.reshape(y, [-1, window, window, width])
    rows, columns = e.op("Div", high, e.const(window)), e.op("Div", wide, e.const(window))
    count = e.op("Div", e.size(y, 0), e.op("Mul", rows, columns))
    y = e.reshape(y, [count, rows, columns, window, window, width])
    y = e.reshape(e.op("Transpose", y, perm=[0, 1, 3, 2, 4, 5]), [count, high, wide, width])
    if shift:
        y = e.roll(y, shift)
    x = e.op("Add", x, e.reshape(y, [batch, tokens, width]))
    inner = e.gelu(e.linear(e.norm(x, width), width, 4 * width))
    return e.op("Add", x, e.linear(inner, 4 * width, width))


def chain(length: int, op: str) -> onnx.ModelProto:
    """`length` nodes one after the other, `v0` to `out`: Relu, Transpose, or Add or MatMul with a weight."""
    extra, weights = [], []
    if op in ("Add", "MatMul"):
        array = np.ones(4, np.float32) if op == "Add" else np.eye(4, dtype=np.float32)
        extra, weights = ["w"], [numpy_helper.from_array(array, "w")]
    attrs = {"perm": [1, 0]} if op == "Transpose" else {}
    names = [f"v{i}" for i in range(length)] + ["out"]
    nodes = [helper.make_node(op, [a, *extra], [b], **attrs)
             for a, b in zip(names[:-1], names[1:], strict=True)]
    rows = 4 if op == "Transpose" else "rows"
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [rows, 4]) for name in ("v0", "out")]
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    return model


def weighty(kind: str = "plain") -> onnx.ModelProto:
    """[N, 512] to [N, 512] by a megabyte of weights, in a chain or in the branches of an If."""
    weights = {"w": _SQUARE}
    ends = [info("x", shape=["N", 512])], [info("y", shape=["N", 512])]
    if kind == "plain":
        nodes = [helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("Add", ["a", "x"], ["b"]),
                 helper.make_node("Relu", ["b"], ["y"])]
        return model(nodes, *ends, weights)

    def branch(name: str) -> onnx.GraphProto:
        own = numpy_helper.from_array(_SQUARE, f"own_{name}")
        nodes = [helper.make_node("MatMul", ["x", "w"], [f"h_{name}"]),
                 helper.make_node("MatMul", [f"h_{name}", f"own_{name}"], [f"o_{name}"])]
        return helper.make_graph(nodes, name, [], [info(f"o_{name}", shape=None)], [own])

    nodes = [helper.make_node("ReduceMax", ["x"], ["m"], keepdims=0),
             helper.make_node("Cast", ["m"], ["c"], to=TensorProto.BOOL),
             helper.make_node("If", ["c"], ["y"], then_branch=branch("t"), else_branch=branch("e"))]
    return model(nodes, *ends, weights)
