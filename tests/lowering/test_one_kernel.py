"""Models that differ in learned numbers, or in the order of what is added, ask for the same kernels and are
computed rightly."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from skips import needs

import orthrus as ort
from orthrus.codegen.machines.detect import host
from orthrus.codegen.write.expr import Expr, ordered
from orthrus.native.pack.build import asked

pytestmark = needs("generated code")

SHAPES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "conv": ((1, 5, 6, 7), (24, 5, 1, 1), {}), "few": ((2, 16, 5, 5), (1, 16, 3, 3), {}),
    "depthwise": ((1, 16, 6, 7), (16, 1, 3, 3), {"group": 16}),
    "transform": ((1, 32, 20, 20), (32, 32, 3, 3), {}), "stem": ((1, 3, 9, 9), (12, 3, 3, 3), {}),
    "gemm": ((3, 20), (20, 33), {}), "dots": ((1, 20), (20, 1), {}), "elements": ((3, 20), (), {}),
    "number": ((), (), {})}


def network(kind: str, numbers: tuple[float, float], turned: bool, between: str = "HardSwish"
            ) -> onnx.ModelProto:
    """A product, an activation, a learned scale and a learned shift."""
    shape, weights, attributes = SHAPES[kind]
    drawn = np.random.default_rng(1)
    given = {"w": drawn.standard_normal(weights).astype(np.float32),
             "scale": np.array(numbers[:1] if shape else numbers[0], np.float32),
             "shift": np.array(numbers[1], np.float32)}
    product = "Conv" if len(weights) > 2 else "MatMul" if weights else "Abs"

    def pair(a: str, b: str) -> list[str]:
        return [b, a] if turned else [a, b]
    nodes = [helper.make_node(product, ["x", "w"] if weights else ["x"], ["p"], **attributes),
             helper.make_node(between, ["p"], ["a"]), helper.make_node("Mul", pair("a", "scale"), ["m"]),
             helper.make_node("Add", pair("m", "shift"), ["y"])]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", 1, shape)],
                              [helper.make_tensor_value_info("y", 1, None)],
                              [onnx.numpy_helper.from_array(a, n) for n, a in given.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def kernels(model: onnx.ModelProto) -> set[str]:
    here = host()
    assert here is not None
    return set(asked(model.SerializeToString(), here))


def right(model: onnx.ModelProto, x: np.ndarray) -> None:
    """Kernels give what the definitions give."""
    got, wanted = (np.asarray(ort.InferenceSession(model.SerializeToString(), providers=[
        ("CPUExecutionProvider", {"use_codegen": how})]).run(None, {"x": x})[0]) for how in "10")
    np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("kind", SHAPES)
def test_learned_numbers_and_orders_ask_for_the_same(kind: str) -> None:
    before = None
    for seed in range(3):
        numbers = tuple(np.random.default_rng(seed).standard_normal(2))
        model = network(kind, (numbers[0], numbers[1]), bool(seed % 2))
        found = kernels(model)
        assert before is None or found == before
        before = found
        x = np.asarray(np.random.default_rng(seed).standard_normal(SHAPES[kind][0]), np.float32)
        right(model, x)


def test_written_numbers_stay() -> None:
    assert kernels(network("conv", (0.5, 2.0), False)) != kernels(network("conv", (0.25, 2.0), False))
    assert kernels(network("conv", (0.1, 3.0), False)) != kernels(network("conv", (0.1, 1e-6), False))
    assert kernels(network("conv", (1 / 6, 3.0), False)) != kernels(network("conv", (2 ** 0.5, 3.0), False))


@pytest.mark.parametrize("kind", ("gemm", "elements"))
def test_odd_numbers(kind: str) -> None:
    """What is no number, and what has no fraction, as in a definition."""
    for odd in (np.nan, np.inf, -np.inf, -0.0, 1e-44, 3.4028235e38, 0.33333334):
        model = network(kind, (1.2345678, odd), True, "Relu")
        x = np.linspace(-2, 2, 60, dtype=np.float32).reshape(3, 20)
        right(model, x)


def drawn_tree(rng: np.random.Generator, depth: int) -> Expr:
    if depth == 0 or rng.random() < 0.15:
        if rng.random() < 0.25:
            return Expr.const(float(np.float32(rng.standard_normal())), "float32")
        return Expr.leaf(int(rng.integers(4)), "float32")
    op = str(rng.choice(["add", "mul", "sub", "neg", "maximum"]))
    return Expr(op, tuple(drawn_tree(rng, depth - 1) for _ in range(1 if op == "neg" else 2)), "float32")


def shuffled(rng: np.random.Generator, it: Expr) -> Expr:
    args = tuple(shuffled(rng, a) for a in it.args)
    if it.op in ("add", "mul") and rng.random() < 0.5:
        args = args[::-1]
    return Expr(it.op, args, it.dtype, it.value)


def value(it: Expr, leaves: np.ndarray) -> np.ndarray:
    if it.op == "leaf":
        return np.asarray(leaves[it.value])
    if it.op == "const":
        return np.full(leaves.shape[1:], it.value, np.float32)
    how = {"add": np.add, "mul": np.multiply, "sub": np.subtract, "neg": np.negative, "maximum": np.maximum}
    return np.asarray(how[it.op](*(value(a, leaves) for a in it.args)))


def test_order_changes_no_bit() -> None:
    rng = np.random.default_rng(5)
    leaves = rng.standard_normal((4, 16)).astype(np.float32)
    once = 0
    for _ in range(300):
        tree = drawn_tree(rng, 5)
        made, other = ordered(tree), ordered(shuffled(rng, tree))
        assert ordered(made) == made and made.operations == tree.operations
        assert value(made, leaves).tobytes() == value(tree, leaves).tobytes()
        assert value(other, leaves).tobytes() == value(tree, leaves).tobytes()
        once += made == other
    assert once > 100
