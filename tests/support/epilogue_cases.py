"""Kernels that take what follows them into themselves, and what may follow: models in which every operand
shape that broadcasts to a kernel's result stands behind it.

`python tests/support/epilogue_cases.py 200 --start 1000` looks for models whose generated code differs
from the operators' definitions.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from onnx import ModelProto, helper, numpy_helper

import orthrus
from fuzz.graphs import apart
from orthrus import knobs
from orthrus.ir import element_of
from orthrus.lowering.native import Native

Shape = tuple[int, ...]
OPSET = 20
SIZES = (1, 2, 3, 5)

ARITHMETIC = ("Add", "Sub", "Mul", "Div", "Max", "Min", "PRelu", "Where", "Less")


class Branches:
    """A model in the making: branches that share inputs and weights, each with an output of its own. What
    `choose` draws is the same for a seed whatever the sizes; `rng` draws numbers."""

    def __init__(self, seed: int, dtype: str = "float32") -> None:
        self.rng, self.choose = np.random.default_rng(seed), np.random.default_rng(seed + 1)
        self.dtype = np.dtype(dtype)
        self.nodes: list[Any] = []
        self.weights: dict[str, np.ndarray] = {}
        self.feeds: dict[str, np.ndarray] = {}
        self.outputs: list[str] = []
        self.said: list[str] = []
        self.count = itertools.count()

    def name(self) -> str:
        return f"v{next(self.count)}"

    def values(self, shape: Shape, dtype: Any = None) -> np.ndarray:
        dtype = np.dtype(dtype or self.dtype)
        if dtype.kind == "b":
            return np.asarray(self.rng.random(shape) < 0.5)
        if dtype.kind in "iu":
            return np.asarray(self.rng.integers(0 if dtype.kind == "u" else -9, 9, shape)).astype(dtype)
        return np.asarray(self.rng.normal(size=shape) + 0.3).round(2).astype(dtype).reshape(shape)

    def given(self, array: np.ndarray) -> str:
        """A graph input."""
        name = self.name()
        self.feeds[name] = array
        return name

    def held(self, array: Any) -> str:
        """An initializer."""
        name = self.name()
        self.weights[name] = np.asarray(array)
        return name

    def node(self, op: str, *inputs: str, outputs: int = 1, domain: str = "", **attrs: Any) -> str:
        made = [self.name() for _ in range(outputs)]
        self.nodes.append(helper.make_node(op, inputs, made, domain=domain, **attrs))
        return made[0]

    def end(self, value: str, said: str) -> None:
        self.outputs.append(value)
        self.said.append(said)

    def model(self, symbolic: bool = False) -> ModelProto:
        infos = []
        for name, array in self.feeds.items():
            shape = [f"{name}_{i}" for i in range(array.ndim)] if symbolic else array.shape
            infos.append(helper.make_tensor_value_info(name, int(element_of(array.dtype)), shape))
        graph = helper.make_graph(
            self.nodes, "branches", infos, [helper.make_empty_tensor_value_info(n) for n in self.outputs],
            [numpy_helper.from_array(a, n) for n, a in self.weights.items()])
        imports = [helper.make_opsetid("", OPSET), helper.make_opsetid("com.microsoft", 1)]
        model: ModelProto = helper.make_model(graph, opset_imports=imports, ir_version=9)
        return model


Kernel = Callable[[Branches, Shape], tuple[Callable[[], str], Shape]]
KERNELS: dict[str, Kernel] = {}
TYPES: dict[str, tuple[str, ...]] = {}
"""The types of the image other than float32 that a kernel is written for."""


def kernel(*names: str, types: tuple[str, ...] = ()) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function of (branches, (N, C, H, W), name) that gives a function which adds the kernel's
    node once more and names its result, and the result's shape."""
    def register(write: Callable[..., Any]) -> Callable[..., Any]:
        for name in names:
            KERNELS[name] = lambda b, shape, name=name: write(b, shape, name)
            TYPES[name] = types
        return write
    return register


def repeated(b: Branches, op: str, *inputs: str, **attrs: Any) -> Callable[[], str]:
    return lambda: b.node(op, *inputs, **attrs)


@kernel("MaxPool", "AveragePool", "LpPool", types=("float16", "float64"))
def pool(b: Branches, s: Shape, name: str) -> Any:
    size = [min(2, d) for d in s[2:]]
    x = b.given(b.values(s))
    return repeated(b, name, x, kernel_shape=size), (
        *s[:2], *(d - k + 1 for d, k in zip(s[2:], size, strict=True)))


@kernel("MaxPool strided", "AveragePool strided", types=("float16",))
def pool_strided(b: Branches, s: Shape, name: str) -> Any:
    x = b.given(b.values(s))
    return repeated(b, name.split()[0], x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]), (
        *s[:2], *((d - 1) // 2 + 1 for d in s[2:]))


@kernel("MaxPool 1", "MaxPool 3")
def pool_ranks(b: Branches, s: Shape, name: str) -> Any:
    rank = int(name[-1])
    s = (*s[:2], s[2] * s[3]) if rank == 1 else (*s, 2)
    x = b.given(b.values(s))
    return repeated(b, "MaxPool", x, kernel_shape=[1] * rank), s


@kernel("MaxPool of bytes")
def pool_bytes(b: Branches, s: Shape, name: str) -> Any:
    x = b.given(b.values(s, np.uint8))

    def once() -> str:
        pooled = b.node("MaxPool", x, kernel_shape=[1, 1])
        return b.node("Cast", pooled, to=1)
    return once, s


@kernel("GlobalMaxPool", "GlobalAveragePool", "GlobalLpPool", types=("float16", "float64"))
def pool_all(b: Branches, s: Shape, name: str) -> Any:
    return repeated(b, name, b.given(b.values(s))), (*s[:2], 1, 1)


@kernel("Resize nearest", "Resize linear", "Resize cubic", types=("float16", "float64"))
def resize(b: Branches, s: Shape, name: str) -> Any:
    x, scales = b.given(b.values(s)), b.held(np.array([1, 1, 2, 2], np.float32))
    return repeated(b, "Resize", x, "", scales, mode=name.split()[1]), (*s[:2], 2 * s[2], 2 * s[3])


@kernel("Resize 1")
def resize_line(b: Branches, s: Shape, name: str) -> Any:
    s = (*s[:2], s[2] * s[3])
    x, scales = b.given(b.values(s)), b.held(np.array([1, 1, 3], np.float32))
    return repeated(b, "Resize", x, "", scales, mode="linear"), (*s[:2], 3 * s[2])


@kernel("GridSample")
def grid(b: Branches, s: Shape, name: str) -> Any:
    x, places = b.given(b.values(s)), b.given(b.rng.uniform(-1, 1, (s[0], 3, 2, 2)).astype(b.dtype))
    return repeated(b, "GridSample", x, places, mode="linear"), (*s[:2], 3, 2)


@kernel("LRN", "InstanceNormalization", "LpNormalization", "MeanVarianceNormalization", types=("float16",))
def normalization(b: Branches, s: Shape, name: str) -> Any:
    rest = [b.held(b.values((s[1],))) for _ in range(2 * (name == "InstanceNormalization"))]
    return repeated(b, name, b.given(b.values(s)), *rest, **({"size": 3} if name == "LRN" else {})), s


@kernel("LayerNormalization 1", "LayerNormalization 3", types=("float16", "float64"))
def layer(b: Branches, s: Shape, name: str) -> Any:
    axis = int(name[-1])
    rest = [b.held(b.values(s[axis:])) for _ in range(2)]
    return repeated(b, "LayerNormalization", b.given(b.values(s)), *rest, axis=axis), s


@kernel(*(f"{op} {axis}" for op in ("Softmax", "LogSoftmax") for axis in range(4)))
def softmax(b: Branches, s: Shape, name: str) -> Any:
    op, axis = name.split()
    return repeated(b, op, b.given(b.values(s)), axis=int(axis)), s


_AXES = {"0": (0,), "1": (1,), "3": (3,), "13": (1, 3), "02": (0, 2), "23": (2, 3)}


@kernel(*(f"{op} {axes} {keep}" for op, axes, keep in (
    ("ReduceSum", "1", "kept"), ("ReduceMean", "23", "kept"), ("ReduceMax", "3", ""),
    ("ReduceMean", "0", "kept"), ("ReduceMin", "13", ""), ("ReduceL2", "02", "kept"),
    ("ReduceLogSumExp", "1", ""),
    ("ReduceProd", "3", "kept"), ("ReduceSumSquare", "0", ""))), types=("float16", "float64", "int32"))
def reduction(b: Branches, s: Shape, name: str) -> Any:
    op, which, keep = name.split(" ")
    axes = _AXES[which]
    x, given = b.given(b.values(s)), b.held(np.array(axes))
    kept = tuple(1 if a in axes else d for a, d in enumerate(s) if keep or a not in axes)
    return repeated(b, op, x, given, keepdims=int(bool(keep))), kept


@kernel("ArgMax 1", "ArgMax 3")
def arg(b: Branches, s: Shape, name: str) -> Any:
    axis, x = int(name[-1]), b.given(b.values(s))

    def once() -> str:
        return b.node("Cast", b.node("ArgMax", x, axis=axis), to=1)
    return once, tuple(1 if a == axis else d for a, d in enumerate(s))


def _convolved(b: Branches, s: Shape, out: int, kernel: Shape, **attrs: Any) -> Any:
    group = attrs.get("group", 1)
    x, w = b.given(b.values(s)), b.held(b.values((out, s[1] // group, *kernel)))
    bias = [b.held(b.values((out,)))] if b.choose.random() < 0.5 else []
    strides, pads = attrs.get("strides", (1,) * len(kernel)), attrs.get("pads", (0,) * 2 * len(kernel))
    size = tuple((d + p + q - k) // st + 1 for d, k, st, p, q in zip(
        s[2:], kernel, strides, pads, pads[len(kernel):], strict=False))
    return repeated(b, "Conv", x, w, *bias, **attrs), (s[0], out, *size)


@kernel("Conv 1x1", "Conv 3x3", "Conv strided", "Conv wide", "Conv grouped", "Conv depthwise", "Conv 1",
        "Conv 3", "Conv stem")
def conv(b: Branches, s: Shape, name: str) -> Any:
    n, c, h, w = s
    how = name.split()[1]
    if how == "1x1":
        return _convolved(b, s, 5, (1, 1))
    if how == "3x3":
        return _convolved(b, (n, c + 4, h, w), 3, (3, 3), pads=(1, 1, 1, 1))
    if how == "strided":
        return _convolved(b, (n, c + 4, h, w), 2, (3, 3), pads=(1, 1, 1, 1), strides=(2, 2))
    if how == "wide":
        return _convolved(b, (n, 16, h + 2, w + 2), 32, (3, 3), pads=(1, 1, 1, 1))
    if how == "grouped":
        return _convolved(b, (n, 2 * c, h, w), 4, (1, 1), group=2)
    if how == "depthwise":
        return _convolved(b, s, c, (3, 3), pads=(1, 1, 1, 1), group=c)
    if how == "1":
        return _convolved(b, (n, c, h * w), 3, (1,))
    if how == "3":
        return _convolved(b, (n, c, h, w, 2), 3, (1, 1, 1))
    return _convolved(b, s, 3, (3, 3), pads=(1, 1, 1, 1))


@kernel("ConvTranspose", "ConvTranspose strided", "ConvTranspose grouped")
def transposed(b: Branches, s: Shape, name: str) -> Any:
    n, c, h, w = s
    if name.endswith("strided"):
        x, weights = b.given(b.values(s)), b.held(b.values((c, 3, 2, 2)))
        return repeated(b, "ConvTranspose", x, weights, strides=[2, 2]), (n, 3, 2 * h, 2 * w)
    group = 2 if name.endswith("grouped") else 1
    x, weights = b.given(b.values((n, c * group, h, w))), b.held(b.values((c * group, 2, 2, 1)))
    return repeated(b, "ConvTranspose", x, weights, group=group), (n, 2 * group, h + 1, w)


@kernel("MatMul", "MatMul computed", "MatMul batched", "MatMul vector", "MatMul narrow",
        types=("float16", "float64"))
def matmul(b: Branches, s: Shape, name: str) -> Any:
    n, c, h, w = s
    x = b.given(b.values(s))
    if name == "MatMul vector":
        return repeated(b, "MatMul", x, b.held(b.values((w,)))), s[:3]
    if name == "MatMul batched":
        return repeated(b, "MatMul", x, b.given(b.values((c, w, 3)))), (*s[:3], 3)
    columns = 1 if name == "MatMul narrow" else 5
    other = b.values((w, columns))
    return repeated(b, "MatMul", x, b.given(other) if name == "MatMul computed" else b.held(other)), (
        *s[:3], columns)


@kernel("Gemm", types=("float16", "float64"))
def gemm(b: Branches, s: Shape, name: str) -> Any:
    x, w, c = b.given(b.values((s[0], s[3]))), b.held(b.values((s[1], s[3]))), b.held(b.values((s[1],)))
    return repeated(b, "Gemm", x, w, c, transB=1), s[:2]


@kernel("Gather", "GatherElements", "Pad", "Tile", "DepthToSpace", "CumSum", "Concat", "Transpose", "Slice",
        "Expand", types=("float16", "float64", "int32"))
def moved(b: Branches, s: Shape, name: str) -> Any:
    n, c, h, w = s
    x = b.given(b.values((n, 4 * c, h, w) if name == "DepthToSpace" else s))
    if name == "Gather":
        return repeated(b, name, x, b.given(np.array([0, c - 1, 0])), axis=1), (n, 3, h, w)
    if name == "GatherElements":
        return repeated(b, name, x, b.given(b.rng.integers(0, h, (n, c, 2, w))), axis=2), (n, c, 2, w)
    if name == "Pad":
        return repeated(b, name, x, b.held(np.array([0, 0, 1, 1, 0, 0, 0, 2]))), (n, c, h + 1, w + 3)
    if name == "Tile":
        return repeated(b, name, x, b.held(np.array([1, 2, 1, 1]))), (n, 2 * c, h, w)
    if name == "DepthToSpace":
        return repeated(b, name, x, blocksize=2), (n, c, 2 * h, 2 * w)
    if name == "CumSum":
        return repeated(b, name, x, b.held(np.array(2))), s
    if name == "Concat":
        return repeated(b, name, x, x, axis=1), (n, 2 * c, h, w)
    if name == "Transpose":
        return repeated(b, name, x, perm=[0, 2, 3, 1]), (n, h, w, c)
    if name == "Expand":
        return repeated(b, name, x, b.held(np.array([2, 1, 1, 1, 1]))), (2, *s)
    ends = [b.held(np.array([v])) for v in (0, w + 9, 3, 2)]
    return repeated(b, name, x, *ends), (n, c, h, -(-w // 2))


@kernel("TopK", types=("float16", "float64", "int32"))
def topk(b: Branches, s: Shape, name: str) -> Any:
    x, k = b.given(b.values(s)), b.held(np.array([1]))
    return repeated(b, name, x, k, outputs=2), (*s[:3], 1)


@kernel("MatMulInteger", "ConvInteger", "ConvInteger depthwise", "ConvInteger 1")
def integers(b: Branches, s: Shape, name: str) -> Any:
    n, c, h, w = s
    if name == "MatMulInteger":
        inputs, shape = [b.given(b.values(s, np.uint8)), b.held(b.values((w, 5), np.int8))], (n, c, h, 5)
    elif name.endswith("depthwise"):
        inputs = [b.given(b.values((n, 8, h, w), np.uint8)), b.held(b.values((8, 1, 1, 1), np.int8))]
        shape = (n, 8, h, w)
    elif name.endswith("1"):
        inputs = [b.given(b.values((n, c, h * w), np.uint8)), b.held(b.values((3, c, 1), np.int8))]
        shape = (n, 3, h * w)
    else:
        inputs = [b.given(b.values(s, np.uint8)), b.held(b.values((3, c, 1, 1), np.int8))]
        shape = (n, 3, h, w)
    op, attrs = name.split()[0], {"group": 8} if name.endswith("depthwise") else {}
    return (lambda: b.node("Cast", b.node(op, *inputs, **attrs), to=1)), shape


@kernel("QDQ Conv", "QDQ MatMul")
def dequantized(b: Branches, s: Shape, name: str) -> Any:
    n, c, h, w = s
    x, scale, zero = b.given(b.values(s, np.uint8)), b.held(np.float32(0.5)), b.held(np.uint8(3))
    conv = name == "QDQ Conv"
    y = b.held(b.values((3, c, 1, 1) if conv else (w, 3), np.int8))
    by = b.held(np.array([0.5, 0.25, 1], np.float32))

    def once() -> str:
        first, second = b.node("DequantizeLinear", x, scale, zero), b.node(
            "DequantizeLinear", y, by, axis=0 if conv else 1)
        return b.node("Conv" if conv else "MatMul", first, second)
    return once, (n, 3, h, w) if conv else (n, c, h, 3)


@kernel("LSTM", "GRU")
def recurrent(b: Branches, s: Shape, name: str) -> Any:
    n, c, h, w = s
    gates = 4 if name == "LSTM" else 3
    x = b.given(b.values((h, n, w)))
    inputs = [b.held(b.values((1, gates * c, size))) for size in (w, c)]
    return repeated(b, name, x, *inputs, hidden_size=c), (h, 1, n, c)


@kernel("Attention")
def attention(b: Branches, s: Shape, name: str) -> Any:
    n, c, h, w = s
    q, k, v = (b.given(b.values((n, h, 8 * c))) for _ in range(3))
    return repeated(b, "MultiHeadAttention", q, k, v, num_heads=c, domain="com.microsoft"), (n, h, 8 * c)


@kernel("Add", types=("float16", "float64", "int32"))
def elementwise(b: Branches, s: Shape, name: str) -> Any:
    return repeated(b, name, b.given(b.values(s)), b.given(b.values(s[1:]))), s


def operand_shapes(shape: Shape) -> Iterator[Shape]:
    """Every shape that broadcasts to `shape` by some axes being 1, and the same without leading ones."""
    for mask in itertools.product((False, True), repeat=len(shape)):
        full = tuple(d if on else 1 for d, on in zip(shape, mask, strict=True))
        yield full
        bare = full[next((i for i, d in enumerate(full) if d != 1), len(full)):]
        if bare != full:
            yield bare


def follow(b: Branches, value: str, own: Shape, op: str, computed: bool, left: bool) -> str:
    """`op` of `value` and an operand of the shape `own`, which stands left or right."""
    put = b.given if computed else b.held
    if op == "Where":
        return b.node(op, put(b.values(own, bool)), *((value, put(b.values(own)))[::-1 if left else 1]))
    array = b.values(own)
    other = put(np.where(array == 0, b.dtype.type(1), array))
    if op == "PRelu":
        return b.node(op, value, other)
    return b.node(op, *((other, value) if left and op != "Div" else (value, other)))


def follow_channels(b: Branches, value: str, shape: Shape, op: str, axis: int) -> str:
    """A parameter per index of an axis."""
    if op == "BatchNormalization":
        scale, bias, mean = (b.held(b.values((shape[1],))) for _ in range(3))
        return b.node(op, value, scale, bias, mean, b.held(np.abs(b.values((shape[1],))) + b.dtype.type(1)))
    scale = b.held((np.abs(b.values((shape[axis],))) + 0.25).astype(b.dtype))
    return b.node(op, value, scale, b.held(b.values((shape[axis],), np.uint8)), axis=axis)


def build(seed: int, name: str, dtype: str = "float32", most: int = 64, size: Shape | None = None,
          constant: bool = True) -> Branches:
    """A model with the kernel `name` in each branch for an image of `size`, drawn where None: behind each an
    operand of another shape, `most` at most, and results that are parts of larger ones. Some operands are
    constant, unless not `constant`: then models of one seed for sizes that the weights do not depend on are
    the same."""
    b = Branches(seed, dtype)
    if size is None:
        size = tuple(int(d) for d in b.choose.choice(SIZES, 4))
    once, shape = KERNELS[name](b, size)
    shapes = list(operand_shapes(shape))
    if constant:
        shapes = list(dict.fromkeys(shapes))
    if len(shapes) > most:
        shapes = [shapes[i] for i in sorted(b.choose.choice(len(shapes), most, replace=False))]
    for own in shapes:
        ops = ARITHMETIC if b.dtype.kind == "f" else ("Add", "Sub", "Mul", "Where")
        op = str(b.choose.choice(ops))
        computed, left, twice = (bool(v) for v in b.choose.integers(0, 2, 3))
        computed |= not constant
        value, said = once(), f"{name} {shape} {op} {own}{' computed' * computed}{' left' * left}"
        if twice:
            other, held = shapes[b.choose.integers(len(shapes))], constant and computed
            value = follow(b, value, other, "Add", not held, False)
            said += f" behind Add {other}{'' if held else ' computed'}"
        b.end(follow(b, value, own, op, computed, left), said)
    axes = [int(axis) for axis in b.choose.permutation(len(shape))[:most]]
    for axis in axes:
        own = shapes[b.choose.integers(len(shapes))]
        parts = once(), follow(b, once(), own, "Add", True, False)
        b.end(b.node("Concat", *parts, axis=axis), f"{name} {shape} Concat {axis} with Add {own}")
    if b.dtype == np.float32 and constant:
        if len(shape) > 1:
            b.end(follow_channels(b, once(), shape, "BatchNormalization", 1),
                  f"{name} {shape} BatchNormalization")
        for axis in axes:
            b.end(follow_channels(b, once(), shape, "QuantizeLinear", axis),
                  f"{name} {shape} QuantizeLinear {axis}")
    return b


def session(model: ModelProto, level: str = "ORT_DISABLE_ALL", threads: int = 1) -> Any:
    options = orthrus.SessionOptions()
    options.graph_optimization_level = getattr(orthrus.GraphOptimizationLevel, level)
    options.intra_op_num_threads = threads
    return orthrus.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def defined(model: ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    """What the operators' definitions give."""
    with knobs.setting(CODEGEN=0):
        made: list[np.ndarray] = session(model).run(None, feeds)
    return made


def compared(got: list[np.ndarray], expected: list[np.ndarray], said: list[str]) -> list[str]:
    """What is wrong, a line for each branch."""
    found = []
    for a, b, what in zip(got, expected, said, strict=True):
        if a.dtype == np.uint8 and b.dtype == np.uint8 and a.shape == b.shape:
            a, b = a.astype(np.float32) / 256, b.astype(np.float32) / 256
        unit = {"float64": 1e-12, "float16": 8e-3, "float32": 1e-2 if "Quantize" in what else 2e-5}
        wrong = apart([a], [b], unit.get(a.dtype.name, 0))
        if wrong is not None:
            found.append(f"{what}: {wrong}")
    return found


def refusals(it: Any) -> list[str]:
    """Why parts were not lowered for shapes that they ran with."""
    kernels = [step.kernel.run for step in it._sess._engine.program.calls]
    return [why for each in kernels if isinstance(each, Native)
            for shapes, why in each.refused.items() if shapes not in each.guessed]


def resized(b: Branches, other: Branches) -> bool:
    """Whether what feeds `other` fits the model of `b` with open dimensions."""
    def fixed(branches: Branches) -> Any:
        return [n.SerializeToString() for n in branches.nodes], {
            k: (v.shape, v.size < 9 and v.dtype == np.int64 and v.tolist())
            for k, v in branches.weights.items()}
    return fixed(b) == fixed(other) and {k: v.ndim for k, v in b.feeds.items()} == {
        k: v.ndim for k, v in other.feeds.items()}


def shape_faults(b: Branches, others: Sequence[Branches], shapes: int) -> list[str]:
    """As `faults`, of runs of one session with the feeds of `others` behind and between those of `b`, plans
    made as the switch SHAPES says."""
    model, found = b.model(symbolic=True), []
    runs = [b, *(run for other in others for run in (other, b, other))]
    with np.errstate(all="ignore"), knobs.setting(SHAPES=shapes):
        it = session(model)
        for run in runs:
            found += compared(it.run(None, run.feeds), defined(model, run.feeds), run.said)
    return found + refusals(it)


def faults(b: Branches, level: str = "ORT_DISABLE_ALL", threads: int = 1) -> list[str]:
    """The branches whose generated code does not give what the definitions give, and why parts have none."""
    model = b.model()
    with np.errstate(all="ignore"):
        expected = defined(model, b.feeds)
        it = session(model, level, threads)
        return compared(it.run(None, b.feeds), expected, b.said) + refusals(it)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("count", type=int)
    parser.add_argument("--start", type=int, default=0)
    parser.add_argument("--kernel", default="")
    args = parser.parse_args()
    names = [n for n in KERNELS if args.kernel in n]
    bad = 0
    for seed in range(args.start, args.start + args.count):
        name = names[seed % len(names)]
        rng = np.random.default_rng(seed)
        dtype = str(rng.choice(("float32", *TYPES[name])))
        level = str(rng.choice(("ORT_DISABLE_ALL", "ORT_ENABLE_ALL")))
        try:
            found = faults(build(seed, name, dtype), level, int(rng.integers(1, 3)))
        except Exception as error:
            found = [f"{type(error).__name__}: {str(error)[:400]}"]
        if found:
            bad += 1
            what = f"seed {seed}, {name}, {dtype}, {level}: {len(found)}"
            print(what, *found[:4], sep="\n    ", flush=True)
    print(f"{bad} of {args.count} models")


if __name__ == "__main__":
    main()
