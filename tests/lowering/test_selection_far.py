"""Diagonals as far away as an int64 says, on several shapes in turn: what is known of one shape is no use for
others then, and says so."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper

import orthrus as ort
from orthrus.shapes.symbolic import Polynomials

FAR = (0, 1, -1, 3, -4, 100, 1 << 31, 1 << 62, -(1 << 62), -(1 << 63), (1 << 63) - 1)
SHAPES = ((3, 3), (1, 1), (4, 7), (7, 2), (0, 3), (40, 33), (3, 3))


def near(k: int) -> int:
    return max(-99, min(99, k))


@pytest.mark.parametrize("k", FAR)
@pytest.mark.parametrize("kind", [TensorProto.FLOAT, TensorProto.BOOL, TensorProto.BFLOAT16])
def test_eye_like(k: int, kind: int) -> None:
    node = helper.make_node("EyeLike", ["x"], ["y"], k=k, dtype=kind)
    info = helper.make_tensor_value_info
    graph = helper.make_graph([node], "g", [info("x", TensorProto.FLOAT, [None, None])],
                              [info("y", kind, None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    session = ort.InferenceSession(model.SerializeToString())
    for shape in SHAPES:
        [y] = session.run(None, {"x": np.ones(shape, np.float32)})
        np.testing.assert_array_equal(y.astype(np.float64), np.eye(*shape, k=near(k)))


@pytest.mark.parametrize("k", FAR)
@pytest.mark.parametrize("domain", ["", "com.microsoft"])
@pytest.mark.parametrize("upper", [0, 1])
def test_triangles(k: int, domain: str, upper: int) -> None:
    node = helper.make_node("Trilu", ["x", "k"], ["y"], domain=domain, upper=upper)
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [None] * 3) for n in "xy")
    graph = helper.make_graph([node], "g", [x], [y], [helper.make_tensor("k", TensorProto.INT64, [], [k])])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    session = ort.InferenceSession(model.SerializeToString())
    for shape in SHAPES:
        given = np.random.default_rng(1).standard_normal((2, *shape)).astype(np.float32)
        np.testing.assert_array_equal(session.run(None, {"x": given})[0],
                                      (np.triu if upper else np.tril)(given, near(k)))


def test_sums_that_do_not_fit_are_not_told() -> None:
    atoms = np.array([1, 3])
    for factor in (1 << 61, 1 << 62, 1 << 63, -(1 << 70)):
        assert Polynomials([(((1,), factor),)]).at(atoms) is None
    fits = Polynomials([(((1,), 1 << 40), ((1, 1), 2))]).at(atoms)
    assert fits is not None and fits.tolist() == [(3 << 40) + 18]
