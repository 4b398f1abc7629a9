"""Operators over rows of what other operators left lying in any order: generated, and right."""

import numpy as np
import onnx
import pytest
from graphs import info, model
from onnx import helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from orthrus.run.config import Config
from orthrus.run.engine import Engine

FLOAT = onnx.TensorProto.FLOAT


class Skip(OpRun):
    """The definition of com.microsoft's operator, without a bias."""

    op_domain = "com.microsoft"
    def _run(self, x, y, scale, epsilon=1e-12):
        total = x + y
        mean = total.mean(-1, keepdims=True)
        variance = np.square(total - mean).mean(-1, keepdims=True)
        return (total - mean) / np.sqrt(variance + epsilon) * scale, mean, variance, total


Skip.__name__ = "SkipLayerNormalization"


def turned(name: str, rng: np.random.Generator, shape: tuple[int, ...], nodes: list[onnx.NodeProto]
           ) -> tuple[str, onnx.ValueInfoProto, np.ndarray]:
    """A value of `shape` that lies in a random order, what it is made from, and an array for that."""
    order = [int(a) for a in rng.permutation(len(shape))]
    given = [shape[order.index(a)] for a in range(len(shape))]
    nodes.append(helper.make_node("Transpose", [f"{name}_in"], [name], perm=order))
    return name, info(f"{name}_in", FLOAT, given), rng.standard_normal(given).astype(np.float32)


def made(kind: str, rng: np.random.Generator, shape: tuple[int, ...]
         ) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """An operator over rows of two views' sum, and inputs."""
    nodes: list[onnx.NodeProto] = []
    given = [turned(name, rng, shape, nodes) for name in ("x", "y")]
    outputs = ["out"]
    if kind == "skip":
        nodes.append(helper.make_node("SkipLayerNormalization", ["x", "y", "scale"], ["out", "", "", "sum"],
                                      domain="com.microsoft"))
        outputs.append("sum")
    else:
        nodes.append(helper.make_node("Add", ["x", "y"], ["joined"]))
        axis = int(rng.integers(len(shape))) if kind != "LayerNormalization" else -1
        inputs = ["joined", "scale"] if kind == "LayerNormalization" else ["joined"]
        nodes.append(helper.make_node(kind, inputs, ["out"], axis=axis))
    made = model(nodes, [each[1] for each in given], [info(name, FLOAT, list(shape)) for name in outputs],
                 {"scale": rng.standard_normal(shape[-1]).astype(np.float32)})
    made.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return made, {each[1].name: each[2] for each in given}


@pytest.mark.parametrize("kind", ["skip", "LayerNormalization", "Softmax", "LpNormalization", "Hardmax"])
def test_no_order_is_left_to_a_reference(kind: str) -> None:
    rng = np.random.default_rng(len(kind))
    for _ in range(25):
        shape = tuple(int(rng.choice([1, 2, 3, 5, 16])) for _ in range(int(rng.integers(2, 5))))
        proto, feeds = made(kind, rng, shape)
        engine = Engine(proto.SerializeToString(), Config())
        found = engine.run(None, feeds)
        assert "reference" not in str(engine.explain()), (shape, proto.graph.node)
        expected = ReferenceEvaluator(proto, new_ops=[Skip]).run(None, feeds)
        for each, wanted in zip(found, expected, strict=True):
            np.testing.assert_allclose(each, wanted, 2e-5, 2e-5)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("kind", ["Softmax", "LogSoftmax", "Hardmax"])
def test_rows_of_one_element(kind: str, dtype: type) -> None:
    """In both forms of the operators; what is not finite is no number then."""
    x = np.array([1.5, np.nan, np.inf, -np.inf, -7.0, 0.0], dtype)
    element = helper.np_dtype_to_tensor_dtype(x.dtype)
    for version, shape, axis in ((11, (6, 1), 1), (11, (2, 3, 1, 1), 2), (13, (6, 1), -1),
                                 (13, (3, 1, 2), 1)):
        nodes = [helper.make_node("Neg", ["x"], ["n"]), helper.make_node(kind, ["n"], ["y"], axis=axis)]
        proto = model(nodes, [info("x", element, shape)], [info("y", element, shape)], opset=version)
        engine = Engine(proto.SerializeToString(), Config())
        [y] = engine.run(None, {"x": x.reshape(shape)})
        with np.errstate(invalid="ignore"):
            none = x - x
        wanted = {"Softmax": none + 1, "LogSoftmax": none, "Hardmax": np.ones_like(x)}[kind]
        np.testing.assert_array_equal(y, wanted.reshape(shape))
        assert y.dtype == dtype and "rows" not in str(engine.explain())
