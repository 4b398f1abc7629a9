"""Module functions as onnxruntime has them: which errors they raise, threads for all sessions."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

import orthrus as ort
from orthrus.api import environment
from orthrus.capi import onnxruntime_pybind11_state as native
from orthrus.datasets import get_example
from orthrus.errors import Fail, InvalidArgument


@pytest.fixture(autouse=True)
def no_global_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "global_threads", [])


def session(own: bool, threads: int = 0) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.use_per_session_threads, options.intra_op_num_threads = own, threads
    return ort.InferenceSession(get_example("sigmoid.onnx"), options, providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("threads", [1, 2])
def test_threads_for_all_sessions(threads: int) -> None:
    before = session(True, 1)
    ort.set_global_thread_pool_sizes(threads, 1)
    with pytest.raises(RuntimeError, match="use_per_session_threads must be false"):
        session(True)
    shared = session(False, 7)
    x = np.zeros(shared.get_inputs()[0].shape, np.float32)
    for each in (before, shared):
        assert (each.run(None, {"x": x})[0] == .5).all()
    assert shared._sess._engine.config.intra_op_threads == threads
    with pytest.raises(Fail, match="already been created"):
        ort.set_global_thread_pool_sizes(2, 2)


@pytest.mark.parametrize("given", [("a", 1), (1.5, 1), (1, None)])
def test_threads_that_are_no_numbers(given: Any) -> None:
    with pytest.raises(TypeError, match="incompatible function arguments"):
        ort.set_global_thread_pool_sizes(*given)
    session(True)


def compiled(**stated: str) -> bytes:
    model = helper.make_model(helper.make_graph([], "g", [], []), opset_imports=[helper.make_opsetid("", 13)])
    helper.set_model_props(model, {f"ep_compatibility_info.{k}": v for k, v in stated.items()})
    return model.SerializeToString()


def test_what_a_compiled_model_says_of_a_provider(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    for stated, wanted in (({}, None), ({"Mine": "v1"}, "v1"), ({"Other": "v1"}, None)):
        path.write_bytes(compiled(**stated))
        assert native.get_compatibility_info_from_model_bytes(compiled(**stated), "Mine") == wanted
        assert native.get_compatibility_info_from_model(str(path), "Mine") == wanted
    for call, source in ((native.get_compatibility_info_from_model_bytes, b""),
                         (native.get_compatibility_info_from_model_bytes, b"no model at all"),
                         (native.get_compatibility_info_from_model, str(tmp_path / "none.onnx")),
                         (native.get_compatibility_info_from_model, "")):
        with pytest.raises(RuntimeError):
            call(source, "Mine")
    with pytest.raises(RuntimeError):
        native.get_compatibility_info_from_model(str(path), "")


def test_questions_about_devices() -> None:
    ask = native.get_model_compatibility_for_ep_devices
    devices = list(ort.get_ep_devices())
    assert ask(devices[-1:], "x") is native.OrtCompiledModelCompatibility.EP_NOT_APPLICABLE
    with pytest.raises(RuntimeError, match="Invalid argument"):
        ask([], "x")
    for given in ((None, "x"), (devices, None), ([1], "x")):
        with pytest.raises(TypeError, match="incompatible function arguments"):
            ask(*given)
    for name in ("", "Unheard"):
        with pytest.raises(InvalidArgument, match="No valid factory found"):
            native.get_hardware_device_ep_incompatibility_details(name, native.get_hardware_devices()[0])


def test_lists_of_tensors_that_cannot_be_copied() -> None:
    one = ort.OrtValue.ortvalue_from_numpy(np.zeros(2, np.float32))
    for given in (([], []), ([one], []), ([], [one]), ([one], [one, one])):
        with pytest.raises(RuntimeError, match="Invalid arguments provided to CopyTensors"):
            ort.copy_tensors(*given, None)


def test_a_capsule_that_is_looked_at() -> None:
    look, take = native.is_dlpack_uint8_tensor, native.OrtValue.from_dlpack
    for kind in (np.uint8, np.int8, np.float32, np.int64):
        capsule = np.zeros(3, kind).__dlpack__()
        assert look(capsule) is (kind is np.uint8) and look(capsule) is (kind is np.uint8)
        assert take(capsule, False).numpy().dtype == kind
        assert look(capsule) is False
    for given in (None, np.zeros(3, np.uint8), 3):
        with pytest.raises(TypeError, match="incompatible function arguments"):
            look(given)


def test_a_callback_takes_the_log(capfd: pytest.CaptureFixture[str]) -> None:
    got: list[tuple[Any, ...]] = []
    try:
        ort.set_default_logger_callback(lambda *told: got.append(told), severity=1)
        options = ort.SessionOptions()
        options.add_session_config_entry("session.nothing", "1")
        options.logid = "mine"
        ort.InferenceSession(get_example("sigmoid.onnx"), options, providers=["CPUExecutionProvider"])
        severity, category, logid, place, message = next(g for g in got if "session.nothing" in g[4])
        assert (severity, category, logid) == (2, "orthrus", "mine") and ".py:" in place
        assert capfd.readouterr().err == ""
    finally:
        ort.set_default_logger_callback(None)
        ort.set_default_logger_severity(2)


def test_a_callback_that_raises_leaves_messages_to_standard_error(
        capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    raised: list[Any] = []
    monkeypatch.setattr("sys.unraisablehook", raised.append)
    monkeypatch.setattr("logging.root.handlers", [])

    def broken(*told: Any) -> None:
        raise ValueError("no")

    try:
        ort.set_default_logger_callback(broken)
        options = ort.SessionOptions()
        options.add_session_config_entry("session.nothing", "1")
        ort.InferenceSession(get_example("sigmoid.onnx"), options, providers=["CPUExecutionProvider"])
        assert raised[0].exc_type is ValueError and raised[0].object is broken
        assert "session.nothing" in capfd.readouterr().err
    finally:
        ort.set_default_logger_callback(None)


def test_a_callback_that_raises_is_told_of_where_the_program_has_no_hook(
        capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.unraisablehook", sys.__unraisablehook__)
    monkeypatch.setattr("logging.root.handlers", [])

    def broken(*told: Any) -> None:
        raise ValueError("not today")

    try:
        ort.set_default_logger_callback(broken, severity=0)
        session = ort.InferenceSession(get_example("sigmoid.onnx"), providers=["CPUExecutionProvider"])
        session.run(None, {"x": np.zeros((3, 4, 5), np.float32)})
        told = capfd.readouterr().err
        assert "Exception ignored in" in told and "broken" in told and "ValueError: not today" in told
    finally:
        ort.set_default_logger_callback(None)
        ort.set_default_logger_severity(2)


@pytest.mark.parametrize("given", [(5,), (None, 9), (print, -1)])
def test_what_is_no_callback_or_no_severity_is_refused(given: tuple[Any, ...]) -> None:
    with pytest.raises(RuntimeError):
        ort.set_default_logger_callback(*given)
