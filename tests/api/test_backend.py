"""onnx's Backend interface: what it takes, what it answers, as onnxruntime's."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any
from unittest import SkipTest

import numpy as np
import onnx
import pytest
from graphs import add, chain
from onnx import helper
from onnx.checker import ValidationError

import orthrus as ort
from orthrus import backend
from orthrus.backend.backend import OnnxRuntimeBackend
from orthrus.backend.backend_rep import OnnxRuntimeBackendRep

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def imports(*opsets: tuple[str, int]) -> onnx.ModelProto:
    made = add()
    del made.opset_import[:]
    made.opset_import.extend(helper.make_opsetid(*each) for each in opsets)
    return made


def test_a_model_in_every_form(tmp_path: Path) -> None:
    path = tmp_path / "add.onnx"
    onnx.save(add(), path)
    session = ort.InferenceSession(path)
    for model in (add(), add().SerializeToString(), str(path), path, session, backend.prepare(add())):
        made = backend.prepare(model)
        assert type(made) is OnnxRuntimeBackendRep and backend.prepare(made) is made
        for got in (made.run([X, X]), backend.run(model, [X, X]), backend.run(model, [X, X], "CPU")):
            assert isinstance(got, list)
            np.testing.assert_array_equal(got[0], X + X)


def test_inputs_by_their_order() -> None:
    made = backend.prepare(add())
    np.testing.assert_array_equal(made.run([X, -X, X])[0], 0 * X)
    for few in ([X], [], X, (X, X), {"a": X, "b": X}, None):
        with pytest.raises(RuntimeError, match="expect 2 inputs"):
            made.run(few)
    one = backend.prepare(chain(1, "Neg"))
    for given in (X, [X]):
        np.testing.assert_array_equal(one.run(given)[0], -X)


def test_options_go_where_they_belong() -> None:
    level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    made: Any = backend.prepare(add(), "CPU", graph_optimization_level=level, log_severity_level=3, nobodys=1)
    assert made._session.get_session_options().graph_optimization_level == level
    np.testing.assert_array_equal(made.run([X, X], log_severity_level=3, nobodys=1)[0], X + X)
    with pytest.raises(TypeError):
        backend.prepare(add(), graph_optimization_level=[])


def test_devices() -> None:
    assert backend.supports_device("CPU") and not backend.supports_device("FPGA")
    assert backend.supports_device("CUDA") is (ort.get_device() == "GPU")
    assert backend.is_compatible(add()) and not backend.is_compatible(add(), "FPGA")
    with pytest.raises(RuntimeError, match="Incompatible device expected 'FPGA', got"):
        backend.prepare(add(), "FPGA")
    with pytest.raises(TypeError):
        backend.supports_device(None)  # type: ignore[arg-type]


@pytest.mark.parametrize(("opsets", "domain"), [
    ((("", 17),), None), ((("", 17), ("ai.onnx.ml", 3)), None), ((("", 17), ("foo", 3)), "foo"),
    ((("", 17), ("com.microsoft", 1)), "com.microsoft"), ((("", 99),), "ai.onnx")])
def test_released_operator_sets(opsets: Any, domain: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    model = imports(*opsets)
    if domain is None:
        assert OnnxRuntimeBackend.is_opset_supported(model) == (True, "")
        return
    with pytest.raises(SkipTest, match=f"Got Domain '{domain}'"):
        backend.prepare(model)
    monkeypatch.setattr(OnnxRuntimeBackend, "allowReleasedOpsetsOnly", False)
    assert OnnxRuntimeBackend.is_opset_supported(model) == (True, "")


def test_what_is_no_model(tmp_path: Path) -> None:
    wrong = add()
    wrong.graph.node[0].op_type = "Adx"
    with pytest.raises(ValidationError):
        backend.prepare(wrong)
    with pytest.raises(ort.errors.NoSuchFile):
        backend.prepare(str(tmp_path / "nope.onnx"))
    with pytest.raises(NotImplementedError):
        OnnxRuntimeBackend.run_node(add().graph.node[0], [X, X])


def test_the_interface_is_onnxruntimes() -> None:
    theirs = pytest.importorskip("onnxruntime.backend")
    for name in ("is_compatible", "prepare", "run", "supports_device"):
        ours = inspect.signature(getattr(backend, name)).parameters
        assert [(p.name, p.kind, p.default) for p in ours.values()] == [
            (p.name, p.kind, p.default) for p in inspect.signature(getattr(theirs, name)).parameters.values()]
