"""Initializers that are graph inputs too: a run may feed another value, and no provider computes with the
old one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import pytest
from graphs import info, model
from onnx import TensorProto, helper
from skips import needs

import orthrus as ort
from orthrus.errors import InvalidArgument
from orthrus.ir import No, Node
from orthrus.kernels import Kernel, OpKernelInfo
from orthrus.load import load, save
from orthrus.providers import ExecutionProvider, Part
from orthrus.providers.dnnl import DnnlExecutionProvider
from orthrus.providers.iree import IREEExecutionProvider

RNG = np.random.default_rng(5)
CPU = "CPUExecutionProvider"
W, B = RNG.standard_normal((4, 3)).astype(np.float32), RNG.standard_normal(3).astype(np.float32)
X = RNG.standard_normal((2, 4)).astype(np.float32)


class Packing(ExecutionProvider):
    """MatMul with a constant matrix and Add with anything; constants are copied when a part is compiled."""

    name = "PackingExecutionProvider"
    fuses = True
    parts: ClassVar[list[Part]] = []

    def claim(self, node: Node) -> No | None:
        if node.op_type not in ("MatMul", "Add"):
            return No(f"{node.op_type} is not mine")
        matrix = node.inputs[1]
        if node.op_type == "MatMul" and (matrix is None or matrix.const is None):
            return No("its matrix is no constant")
        return None

    def compile(self, part: Part) -> Sequence[Kernel | No]:
        self.parts.append(part)
        packed = {v: np.array(v.const) for node in part.nodes for v in node.inputs
                  if v is not None and v.const is not None}

        def run(*arrays: np.ndarray) -> Any:
            known: dict[Any, Any] = {**packed, **dict(zip(part.inputs, arrays, strict=True))}
            for node in part.nodes:
                a, b = (known[v] for v in node.inputs)
                known[node.outputs[0]] = a @ b if node.op_type == "MatMul" else a + b
            results = tuple(known[v] for v in part.outputs)
            return results[0] if len(results) == 1 else results
        return [Kernel(run, "packed")]


class Registered(ExecutionProvider):
    """MatMul by a kernel that keeps the matrix where it is constant."""

    name = "RegisteredExecutionProvider"


@Registered.kernel("MatMul", since=13)
def kept_matrix(info: OpKernelInfo) -> Any:
    matrix = info.constant_input(1)
    return (lambda a, b: a @ b) if matrix is None else (lambda a, b: a @ matrix)


PROVIDERS = [
    pytest.param(CPU, id="cpu"), pytest.param(Packing.name, id="packing"),
    pytest.param(Registered.name, id="registered"),
    pytest.param(DnnlExecutionProvider.name, id="dnnl", marks=needs("oneDNN")),
    pytest.param(IREEExecutionProvider.name, id="iree", marks=needs("IREE"))]


@pytest.fixture(scope="module", autouse=True)
def _registered() -> Iterator[None]:
    for provider in (Packing, Registered):
        ort.register_execution_provider(provider)
    yield
    for provider in (Packing, Registered):
        ort.unregister_execution_provider(provider.name)


def dense(fed: Sequence[str]) -> bytes:
    """y = x w + b, where the initializers `fed` are inputs too."""
    weights = {"w": W, "b": B}
    made = model([helper.make_node("MatMul", ["x", "w"], ["m"], name="product"),
                  helper.make_node("Add", ["m", "b"], ["y"], name="bias")],
                 [info("x", shape=[2, 4]), *(info(k, shape=list(weights[k].shape)) for k in fed)],
                 [info("y", shape=[2, 3])], weights, opset=17)
    raw: bytes = made.SerializeToString()
    return raw


def session(data: bytes, provider: str, plain: bool = False) -> Any:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL if plain else \
        ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    made = ort.InferenceSession(data, options, providers=list(dict.fromkeys([provider, CPU])))
    made.disable_fallback()
    return made


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("fed", [(), ("w",), ("b",), ("w", "b")], ids="-".join)
def test_what_is_fed_counts(provider: str, fed: tuple[str, ...]) -> None:
    made = session(dense(fed), provider)
    assert [v.name for v in made.get_overridable_initializers()] == list(fed)
    for given in ({}, {"w": 2 * W, "b": B - 1}, {}, {"b": B * 3}, {"w": -W}, {}):
        given = {k: v for k, v in given.items() if k in fed}
        np.testing.assert_allclose(made.run(None, {"x": X, **given})[0],
                                   X @ given.get("w", W) + given.get("b", B), rtol=1e-5, atol=1e-6)


def test_an_open_value_is_an_input_of_the_part_and_a_needed_constant_refuses() -> None:
    Packing.parts.clear()
    made = session(dense(["b"]), Packing.name, plain=True)
    [part] = Packing.parts
    assert [v.name for v in part.inputs] == ["x", "b"] and [n.name for n in part.nodes] == ["product", "bias"]
    made = session(dense(["w"]), Packing.name, plain=True)
    report = made.explain()["product"]
    assert report.provider == CPU and "its matrix is no constant" in str(report.refusals[0])


@needs("oneDNN")
def test_onednn_takes_open_weights_and_leaves_open_scales() -> None:
    made = session(dense(["w", "b"]), DnnlExecutionProvider.name, plain=True)
    assert made.explain()["product"].provider == DnnlExecutionProvider.name
    proto = model([helper.make_node("DequantizeLinear", ["q", "s"], ["x"], name="real"),
                   helper.make_node("MatMul", ["x", "w"], ["y"], name="product")],
                  [info("q", TensorProto.INT8, [2, 4]), info("s", shape=[])], [info("y", shape=[2, 3])],
                  {"s": np.array(0.5, np.float32), "w": W}, opset=17)
    made = session(proto.SerializeToString(), DnnlExecutionProvider.name)
    q = np.arange(8, dtype=np.int8).reshape(2, 4)
    for scale in (None, 0.25, None):
        feeds = {"q": q} if scale is None else {"q": q, "s": np.array(scale, np.float32)}
        np.testing.assert_allclose(made.run(None, feeds)[0], (q * np.float32(scale or 0.5)) @ W, rtol=1e-5)
    assert made.explain()["real"].provider == CPU


def test_inside_control_flow() -> None:
    branch = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["t"], name="inner")], "yes", [],
                               [info("t", shape=[2, 3])])
    other = helper.make_graph([helper.make_node("Neg", ["m"], ["e"])], "no", [], [info("e", shape=[2, 3])])
    proto = model([helper.make_node("MatMul", ["x", "w"], ["m"]),
                   helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=other)],
                  [info("x", shape=[2, 4]), info("c", TensorProto.BOOL, []), info("w", shape=[4, 3])],
                  [info("y", shape=[2, 3])], {"w": W}, opset=17)
    made = session(proto.SerializeToString(), CPU)
    for matrix in (W, W * 2, W):
        given = {} if matrix is W else {"w": matrix}
        for yes, sign in ((True, 1), (False, -1)):
            np.testing.assert_allclose(made.run(None, {"x": X, "c": np.array(yes), **given})[0],
                                       sign * (X @ matrix), rtol=1e-5, atol=1e-6)


def test_generated_kernels_run_with_open_weights() -> None:
    assert session(dense(["w", "b"]), CPU, plain=True).explain()["product"].kernel.startswith("generated")


def test_the_default_is_written_back() -> None:
    graph = load(dense(["w"]))
    [w] = [v for v in graph.inputs if v.name == "w"]
    assert w.const is None and w.initial is w.default
    made = session(save(graph), CPU)
    assert [v.name for v in made.get_overridable_initializers()] == ["w"]
    np.testing.assert_allclose(made.run(None, {"x": X})[0], X @ W + B, rtol=1e-5)


@pytest.mark.parametrize("level", [0, 99])
def test_none_leaves_an_initializer_as_it_is(level: int) -> None:
    """In every way to run, before and after another value was fed."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("Add", ["m", "b"], ["y"])]
    inputs = [info("x", shape=[2, 4]), info("w", shape=[4, 3]), info("b", shape=[3])]
    proto = model(nodes, inputs, [info("y", shape=[2, 3])], {"w": W, "b": B})
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel(level)
    made = ort.InferenceSession(proto.SerializeToString(), options, providers=[CPU])
    for feeds, wanted in (({"w": None}, X @ W + B), ({"w": 2 * W, "b": None}, 2 * X @ W + B),
                          ({"b": None, "w": None}, X @ W + B), ({"b": 0 * B}, X @ W)) * 3:
        np.testing.assert_allclose(made.run(None, {"x": X, **feeds})[0], wanted, rtol=1e-5, atol=1e-5)
    with pytest.raises(InvalidArgument, match="only an optional may be None"):
        made.run(None, {"x": None})
