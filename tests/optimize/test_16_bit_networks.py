"""Networks whose values pass through sixteen bits give the same optimized as not, and as in onnxruntime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import orthrus

N = 8
VALUE = helper.make_tensor_value_info


class Network:
    """A network of [N, N] that is drawn; each result may be quantized and back."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.domain = self.one("", "com.microsoft")
        live = [self.coded("x")]
        for _ in range(int(self.rng.integers(3, 8))):
            made = self.layer(live)
            live.append(self.coded(made) if self.rng.random() < 0.85 else made)
        self.node("Identity", live[-1], to="y")

    def one(self, *choices: Any) -> Any:
        return choices[int(self.rng.integers(len(choices)))]

    def node(self, op: str, *inputs: str, to: str = "", **attrs: Any) -> str:
        name = to or f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, inputs, [name], **attrs))
        return name

    def constant(self, array: Any) -> str:
        self.constants.append(numpy_helper.from_array(np.asarray(array), f"c{len(self.constants)}"))
        return self.constants[-1].name

    def coded(self, x: str) -> str:
        info = np.iinfo(self.one(np.int16, np.uint16))
        by = self.constant(np.float32(self.one(4, 16, 60) / (int(info.max) - int(info.min))))
        middle = (int(info.max) + int(info.min) + 1) // 2
        zero = self.constant(info.dtype.type(middle + self.one(0, 0, int(self.rng.integers(-9000, 9000)))))
        codes = self.node("QuantizeLinear", x, by, zero, domain=self.domain)
        return self.node("DequantizeLinear", codes, by, zero, domain=self.domain)

    def weight(self, *shape: int) -> str:
        info = np.iinfo(self.one(np.int16, np.uint16))
        codes = self.rng.integers(info.min, int(info.max) + 1, shape).astype(info.dtype)
        size = self.one((), (shape[-1],))
        by = self.rng.uniform(0.5, 1, size).astype(np.float32) / np.float32(int(info.max) - int(info.min))
        zero = np.full(size, (int(info.max) + int(info.min) + 1) // 2, info.dtype)
        return self.node("DequantizeLinear", self.constant(codes), self.constant(by), self.constant(zero),
                         domain=self.domain, axis=len(shape) - 1)

    def layer(self, live: list[str]) -> str:
        a, b = self.one(*live), self.one(*live)
        op = self.one("MatMul", "Gemm", "Add", "Mul", "Sub", "Relu", "Sigmoid", "Tanh", "Softmax", "Concat",
                      "Transpose", "MaxPool", "LayerNormalization", "Identity")
        if op == "MatMul":
            return self.node(op, a, self.one(b, self.weight(N, N)))
        if op == "Gemm":
            return self.node(op, a, self.weight(N, N), self.weight(N), transB=self.one(0, 1))
        if op in ("Add", "Mul", "Sub"):
            return self.node(op, a, self.one(b, self.weight(N)))
        if op == "Concat":
            return self.node("MatMul", self.coded(self.node(op, a, b, axis=1)), self.weight(2 * N, N))
        if op == "Transpose":
            return self.node(op, self.coded(self.node(op, a, perm=[1, 0])), perm=[1, 0])
        if op == "MaxPool":
            image = self.node("Reshape", a, self.constant(np.array([1, 1, N, N])))
            pooled = self.coded(self.node(op, self.coded(image), kernel_shape=[3, 3], pads=[1] * 4))
            return self.node("Reshape", pooled, self.constant(np.array([N, N])))
        if op == "LayerNormalization":
            return self.node(op, a, self.weight(N), self.weight(N), axis=-1)
        return self.node(op, a)

    def model(self) -> bytes:
        x, y = (VALUE(name, TensorProto.FLOAT, [N, N]) for name in "xy")
        graph = helper.make_graph(self.nodes, "sixteen", [x], [y], self.constants)
        made: onnx.ModelProto = helper.make_model(graph, ir_version=10, opset_imports=[
            helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)])
        return made.SerializeToString()


@pytest.mark.parametrize("seed", range(40))
def test_levels_agree(seed: int) -> None:
    """A value that is rounded the other way moves by a step of sixteen bits, and what follows by little."""
    peer = pytest.importorskip("onnxruntime")
    network = Network(seed)
    model, x = network.model(), network.rng.standard_normal((N, N)).astype(np.float32)
    found = []
    for runtime, level in ((peer, "ORT_DISABLE_ALL"), (orthrus, "ORT_DISABLE_ALL"),
                           (orthrus, "ORT_ENABLE_BASIC"), (orthrus, "ORT_ENABLE_ALL")):
        options = runtime.SessionOptions()
        options.graph_optimization_level = getattr(runtime.GraphOptimizationLevel, level)
        it = runtime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        found.append(it.run(None, {"x": x})[0])
    for got in found[1:]:
        np.testing.assert_allclose(got, found[0], rtol=0, atol=0.02 * max(1.0, float(np.abs(found[0]).max())))


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16])
@pytest.mark.parametrize("op", ["MatMul", "Gemm"])
def test_weights_of_com_microsoft_in_no_blocks_keep_their_kernel(op: str, dtype: Any, caplog: Any) -> None:
    codes = np.arange(N * N, dtype=dtype).reshape(N, N)
    flip = op == "Gemm"
    nodes = [helper.make_node("DequantizeLinear", ["q", "s", "z"], ["w"], axis=int(flip),
                              domain="com.microsoft"),
             helper.make_node(op, ["x", "w"], ["y"], **({"transB": 1} if flip else {}))]
    constants = [numpy_helper.from_array(a, n) for a, n in (
        (codes, "q"), (np.full(N, 0.1, np.float32), "s"), (np.ones(N, dtype), "z"))]
    x, y = (VALUE(name, TensorProto.FLOAT, [N, N]) for name in "xy")
    graph = helper.make_graph(nodes, "w", [x], [y], constants)
    made = helper.make_model(graph, ir_version=10, opset_imports=[
        helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)])
    options = orthrus.SessionOptions()
    options.graph_optimization_level = orthrus.GraphOptimizationLevel.ORT_DISABLE_ALL
    it = orthrus.InferenceSession(made.SerializeToString(), options)
    [got] = it.run(None, {"x": np.eye(N, dtype=np.float32)})
    expected = (codes.astype(np.float32) - 1) * np.float32(0.1)
    np.testing.assert_allclose(got, expected.T if flip else expected, rtol=1e-5, atol=1e-5)
    assert not [r for r in caplog.records if "definitions" in r.getMessage()]
