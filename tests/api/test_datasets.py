"""The example models: onnxruntime's names, types and shapes, and what each of them computes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import orthrus
from orthrus.datasets import get_example

EXAMPLES = {
    "sigmoid.onnx": ([("x", "tensor(float)", [3, 4, 5])], [("y", "tensor(float)", [3, 4, 5])]),
    "mul_1.onnx": ([("X", "tensor(float)", [3, 2])], [("Y", "tensor(float)", [3, 2])]),
    "logreg_iris.onnx": ([("float_input", "tensor(float)", [3, 2])],
                         [("label", "tensor(int64)", [3]),
                          ("probabilities", "seq(map(int64,tensor(float)))", [])]),
}


def declared(session: orthrus.InferenceSession) -> tuple[list, list]:
    return tuple([(arg.name, arg.type, arg.shape) for arg in args]  # type: ignore[return-value]
                 for args in (session.get_inputs(), session.get_outputs()))


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_are_declared(name: str) -> None:
    assert declared(orthrus.InferenceSession(get_example(name))) == EXAMPLES[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_onnxruntimes_own_are_declared_so(name: str) -> None:
    peer = pytest.importorskip("onnxruntime")
    theirs = pytest.importorskip("onnxruntime.datasets").get_example(name)
    assert declared(peer.InferenceSession(theirs)) == EXAMPLES[name]


def test_they_compute_what_they_are_called() -> None:
    x = np.linspace(-9, 9, 60, dtype=np.float32).reshape(3, 4, 5)
    [y] = orthrus.InferenceSession(get_example("sigmoid.onnx")).run(None, {"x": x})
    np.testing.assert_allclose(y, 1 / (1 + np.exp(-x.astype(float))), rtol=2e-6)
    factors = np.arange(1, 7, dtype=np.float32).reshape(3, 2)
    [product] = orthrus.InferenceSession(get_example("mul_1.onnx")).run(None, {"X": -factors})
    np.testing.assert_array_equal(product, -factors ** 2)


def test_the_classifier_knows_iris_flowers() -> None:
    session = orthrus.InferenceSession(get_example("logreg_iris.onnx"))
    for petals in ([[1.4, 0.2], [4.7, 1.4], [6.0, 2.5]], [[1.5, 0.4], [4.0, 1.3], [5.1, 1.9]]):
        label, chances = session.run(None, {"float_input": np.array(petals, np.float32)})
        assert label.tolist() == [max(chance, key=chance.get) for chance in chances] == [0, 1, 2]
        np.testing.assert_allclose([sum(chance.values()) for chance in chances], 1, rtol=1e-6)


def test_an_example_that_is_not_there() -> None:
    with pytest.raises(FileNotFoundError, match="^Unable to find example 'nope.onnx'$"):
        get_example("nope.onnx")
    assert Path(get_example("sigmoid.onnx")).is_absolute()
