"""Kernels for shapes that a session guessed: compiled when a run has these shapes, and not before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from skips import lacking

import orthrus as ort
from orthrus.lowering.device import PartDevice

if why := lacking("generated code"):
    pytest.skip(why, allow_module_level=True)
X = np.linspace(-2, 2, 24, dtype=np.float32).reshape(3, 8)


def session(rows: int | str) -> Any:
    nodes = [helper.make_node("Softmax", ["x"], ["h"]), helper.make_node("Neg", ["h"], ["y"])]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


def expected(x: np.ndarray) -> np.ndarray:
    made = np.exp(x - x.max(-1, keepdims=True))
    return -made / made.sum(-1, keepdims=True)


@pytest.mark.parametrize("rows, early", [("n", False), (3, True)])
def test_only_known_shapes_are_compiled_for_before_a_run(rows: int | str, early: bool,
                                                         monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    plain = PartDevice.addresses
    monkeypatch.setattr(PartDevice, "addresses",
                        lambda self, specs: asked.extend(specs) or plain(self, specs))
    made = session(rows)
    assert bool(asked) == early
    np.testing.assert_allclose(made.run(None, {"x": X})[0], expected(X), rtol=1e-5)
    assert asked


def test_what_llvm_refuses_is_computed_by_definitions(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: PartDevice, specs: Sequence[Any]) -> list[int]:
        raise RuntimeError("LLVM refuses")
    monkeypatch.setattr(PartDevice, "addresses", refuse)
    for rows in ("n", 3):
        made = session(rows)
        for x in (X[:1], X) if rows == "n" else (X,):
            np.testing.assert_allclose(made.run(None, {"x": x})[0], expected(x), rtol=1e-5)
