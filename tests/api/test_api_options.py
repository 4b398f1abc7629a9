"""Session and run options: what can be set, to what, and what it does."""

from __future__ import annotations

import copy
import logging
import os
import pickle
import re
import time
from pathlib import Path
from typing import Any

import api_models
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from skips import needs

import orthrus as ort
from orthrus.api import config
from orthrus.capi import onnxruntime_pybind11_state as state
from orthrus.codegen.runtime import threads

DEFAULTS = {"enable_cpu_mem_arena": True, "enable_mem_pattern": True, "enable_mem_reuse": True,
            "enable_profiling": False, "execution_mode": ort.ExecutionMode.ORT_SEQUENTIAL,
            "execution_order": ort.ExecutionOrder.DEFAULT,
            "graph_optimization_level": ort.GraphOptimizationLevel.ORT_ENABLE_ALL, "inter_op_num_threads": 0,
            "intra_op_num_threads": 0, "log_severity_level": -1, "log_verbosity_level": 0, "logid": "",
            "optimized_model_filepath": "", "profile_file_prefix": "onnxruntime_profile_",
            "use_deterministic_compute": False, "use_per_session_threads": True}
VALUES: list[tuple[str, Any, Any]] = [
    ("enable_profiling", 1, True), ("enable_cpu_mem_arena", None, False),
    ("enable_mem_pattern", np.bool_(False), False), ("intra_op_num_threads", -1, -1),
    ("inter_op_num_threads", True, 1), ("inter_op_num_threads", np.int64(3), 3), ("logid", "x", "x"),
    ("logid", b"x", "x"), ("log_severity_level", 9, 9), ("profile_file_prefix", "p", "p"),
    ("execution_mode", ort.ExecutionMode.ORT_PARALLEL, ort.ExecutionMode.ORT_PARALLEL),
    ("graph_optimization_level", ort.GraphOptimizationLevel(99), ort.GraphOptimizationLevel.ORT_ENABLE_ALL)]
REFUSED: list[tuple[str, Any]] = [("graph_optimization_level", 99), ("graph_optimization_level",
                                                                     ort.ExecutionMode.ORT_PARALLEL),
                                  ("enable_profiling", "x"), ("intra_op_num_threads", "2"),
                                  ("intra_op_num_threads", 2.0), ("intra_op_num_threads", None),
                                  ("intra_op_num_threads", 1 << 40), ("logid", 3), ("execution_mode", 1),
                                  ("optimized_model_filepath", Path("/tmp/x"))]


def test_defaults() -> None:
    options = ort.SessionOptions()
    assert {name: getattr(options, name) for name in DEFAULTS} == DEFAULTS
    peer = pytest.importorskip("onnxruntime").SessionOptions()
    for name, value in DEFAULTS.items():
        theirs = getattr(peer, name)
        assert theirs == value if not hasattr(theirs, "name") else (theirs.name, int(theirs)) == (value.name,
                                                                                                  int(value))


@pytest.mark.parametrize(("name", "value", "expected"), VALUES)
def test_what_can_be_set(name: str, value: Any, expected: Any) -> None:
    options = ort.SessionOptions()
    setattr(options, name, value)
    assert getattr(options, name) == expected and type(getattr(options, name)) is type(expected)


@pytest.mark.parametrize(("name", "value"), REFUSED)
def test_what_cannot_be_set(name: str, value: Any) -> None:
    options = ort.SessionOptions()
    with pytest.raises(TypeError, match=r"^\(\): incompatible function arguments"):
        setattr(options, name, value)
    assert getattr(options, name) == DEFAULTS[name]


def test_attributes_there_are_not() -> None:
    with pytest.raises(AttributeError, match="'SessionOptions' object has no attribute 'foo'"):
        ort.SessionOptions().foo = 1  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="'RunOptions' object has no attribute 'foo'"):
        ort.RunOptions().foo = 1  # type: ignore[attr-defined]
    with pytest.raises(TypeError):
        ort.SessionOptions(1)  # type: ignore[call-arg]


def test_enumerations() -> None:
    level = ort.GraphOptimizationLevel.ORT_ENABLE_LAYOUT
    assert repr(level) == "<GraphOptimizationLevel.ORT_ENABLE_LAYOUT: 3>"
    assert str(level) == "GraphOptimizationLevel.ORT_ENABLE_LAYOUT"
    assert ort.GraphOptimizationLevel(
        np.int32(3)) is level and level == 3 and int(level) == 3 and level != "3"
    assert not isinstance(level, int) and pickle.loads(pickle.dumps(level)) is level
    assert ort.OrtMemType.CPU is ort.OrtMemType.CPU_OUTPUT
    assert ort.OrtCompileApiFlags(1) | ort.OrtCompileApiFlags(2) == 3
    with pytest.raises(ValueError, match="5 is no ExecutionMode; there are ORT_SEQUENTIAL=0, ORT_PARALLEL=1"):
        ort.ExecutionMode(5)
    with pytest.raises(TypeError, match="incompatible constructor arguments"):
        ort.ExecutionMode("a")


def test_config_entries() -> None:
    options = ort.SessionOptions()
    options.add_session_config_entry("foo.bar", "x" * 5000)
    assert options.get_session_config_entry("foo.bar") == "x" * 5000
    with pytest.raises(RuntimeError, match="SessionOptions does not have configuration with key: nope"):
        options.get_session_config_entry("nope")
    for key in ("", "k" * 1025):
        with pytest.raises(RuntimeError, match="Config key is empty or longer than maximum length 1024"):
            options.add_session_config_entry(key, "a")
    with pytest.raises(TypeError, match=r"add_session_config_entry\(\): incompatible function arguments"):
        options.add_session_config_entry("a", 1)  # type: ignore[arg-type]
    run = ort.RunOptions()
    run.add_run_config_entry("k", "v")
    assert run.get_run_config_entry("k") == "v"
    with pytest.raises(RuntimeError, match="RunOptions does not have configuration with key: x"):
        run.get_run_config_entry("x")


def test_run_options() -> None:
    run = ort.RunOptions()
    assert (run.log_severity_level, run.log_verbosity_level, run.logid, run.terminate, run.timeout,
            run.only_execute_path_to_fetches) == (-1, 0, "", False, None, False)
    run.terminate, run.timeout, run.logid = 1, 2.5, "x"  # type: ignore[assignment]
    assert run.terminate is True and run.timeout == 2.5
    for name, value in (("terminate", "x"), ("timeout", -1), ("timeout", "x"), ("logid", 1),
                        ("log_severity_level", "a")):
        with pytest.raises(TypeError):
            setattr(run, name, value)
    with pytest.raises(TypeError):
        run.add_active_adapter(3)
    assert pickle.loads(pickle.dumps(run)).timeout == 2.5


@pytest.mark.parametrize(("key", "text", "name", "value"), [
    ("session.intra_op_num_threads", "3", "intra_op_num_threads", 3),
    ("session.inter_op_num_threads", "2", "inter_op_num_threads", 2),
    ("session.enable_cpu_mem_arena", "0", "enable_cpu_mem_arena", False),
    ("session.enable_mem_pattern", "0", "enable_mem_pattern", False),
    ("session.log_id", "me", "logid", "me"),
    ("session.log_severity_level", "4", "log_severity_level", 4),
    ("session.graph_optimization_level", "enable_basic", "graph_optimization_level",
     ort.GraphOptimizationLevel.ORT_ENABLE_BASIC),
    ("session.execution_mode", "parallel", "execution_mode", ort.ExecutionMode.ORT_PARALLEL)])
def test_keys_that_stand_for_properties(key: str, text: str, name: str, value: Any) -> None:
    options = ort.SessionOptions()
    options.add_session_config_entry(key, text)
    session = ort.InferenceSession(api_models.add(), options)
    assert getattr(session.get_session_options(), name) == value
    assert getattr(options, name) == DEFAULTS[name]
    assert (session.run(None, api_models.feeds())[0] == 3).all()


@pytest.mark.parametrize(("key", "text"), [("session.graph_optimization_level", "bogus"),
                                           ("session.intra_op_num_threads", "x"), ("session.execution_mode",
                                                                                   "x"),
                                           ("session.enable_mem_pattern", "x"),
                                           ("optimization.constant_folding_max_output_size_in_bytes", "x")])
def test_values_that_cannot_be_read(key: str, text: str) -> None:
    options = ort.SessionOptions()
    options.add_session_config_entry(key, text)
    with pytest.raises(state.InvalidArgument, match=re.escape(repr(key))):
        ort.InferenceSession(api_models.add(), options)


def test_unknown_keys_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    options = ort.SessionOptions()
    options.add_session_config_entry("session.disable_prepackin", "1")
    options.add_session_config_entry("session.disable_prepacking", "1")
    options.add_session_config_entry("ep.mine.option", "1")
    with caplog.at_level(logging.WARNING, "orthrus"):
        ort.InferenceSession(api_models.add(), options)
    assert caplog.messages == [
        "unknown configuration key 'session.disable_prepackin'; did you mean 'session.disable_prepacking'?"]


def test_keys_are_in_one_table_each() -> None:
    assert not set(config.KEYS) & set(config.INERT)


def test_names_of_optimizers_are_those_of_passes() -> None:
    from orthrus.optimize import PASSES

    known = {p.name for p in PASSES}
    assert {name for names in config.OPTIMIZERS.values() for name in names} <= known


def test_the_ort_format_is_refused() -> None:
    options = ort.SessionOptions()
    options.add_session_config_entry("session.load_model_format", "ORT")
    with pytest.raises(state.Fail, match="ORT model verification failed."):
        ort.InferenceSession(api_models.add(), options)


def test_affinities() -> None:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 3
    options.add_session_config_entry("session.intra_op_thread_affinities", "99;99")
    assert ort.InferenceSession(api_models.add(), options)
    options.intra_op_num_threads = 2
    with pytest.raises(RuntimeError, match="affinities: 2, thread_pool_size: 2"):
        ort.InferenceSession(api_models.add(), options, enable_fallback=0)
    for text in ("0", "x", "3-", "4-2", ""):
        options.add_session_config_entry("session.intra_op_thread_affinities", f"{text};1")
        options.intra_op_num_threads = 3
        with pytest.raises(state.InvalidArgument, match="intra_op_thread_affinities"):
            ort.InferenceSession(api_models.add(), options, enable_fallback=0)


@needs("Linux")
def test_threads_are_pinned_to_the_processors_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a pool of its own: the process's is for every test."""
    mine = threads.Pool(3)
    monkeypatch.setattr(threads, "pool", lambda: mine)
    there = sorted(os.sched_getaffinity(0))
    first, last = there[0], there[-1]

    def pinned(text: str) -> list[set[int]]:
        options = ort.SessionOptions()
        options.intra_op_num_threads = 3
        options.add_session_config_entry("session.intra_op_thread_affinities", text)
        ort.InferenceSession(api_models.add(), options, enable_fallback=0)
        mine.ensure(3)
        end = time.monotonic() + 10
        while len(mine._ids) < 2 and time.monotonic() < end:
            time.sleep(0.001)
        return [os.sched_getaffinity(mine._ids[place]) for place in (1, 2)]

    assert pinned(f"{first + 1};{last + 1}") == [{first}, {last}]
    assert pinned(f"{last + 1};{first + 1}-{last + 1}") == [{last}, set(there)]
    assert os.sched_getaffinity(0) == set(there)


def folded(**arguments: Any) -> list[str]:
    """Operators left of (x + (1 + 2))."""
    one = np.ones(2, np.float32)
    made = api_models.model(
        [helper.make_node("Add", ["p", "q"], ["t"], name="inner"),
         helper.make_node("Add", ["x", "t"], ["y"], name="outer")],
        [api_models.value("x", [2])], [api_models.value("y", [2])], {"p": one, "q": one * 2})
    session = ort.InferenceSession(made.SerializeToString(), **arguments)
    assert session.run(None, {"x": one})[0].tolist() == [4, 4]
    return [report.node for report in session.explain()]


def test_levels_and_disabled_optimizers() -> None:
    assert len(folded()) == 1
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    assert len(folded(sess_options=options)) == 2
    for disabled in ("ConstantFolding", ["ConstantFolding"], {"ConstantFolding", "Unknown"},
                     ["fold_constants"]):
        assert len(folded(disabled_optimizers=disabled)) == 2
    options = ort.SessionOptions()
    options.add_session_config_entry("optimization.disable_specified_optimizers", "ConstantFolding;Unknown")
    assert len(folded(sess_options=options)) == 2
    with pytest.raises(TypeError):
        folded(disabled_optimizers=[1], enable_fallback=0)


def test_a_bound_for_folded_constants() -> None:
    made = api_models.model(
        [helper.make_node("ConstantOfShape", ["p"], ["t"]), helper.make_node("Add", ["x", "t"], ["y"])],
        [api_models.value("x", [2])], [api_models.value("y", [100, 2])], {"p": np.array([100, 2])})
    options = ort.SessionOptions()
    key = "optimization.constant_folding_max_output_size_in_bytes"
    for most, left in (("4", 2), ("4000", 1), ("0", 1)):
        options.add_session_config_entry(key, most)
        assert len(ort.InferenceSession(made.SerializeToString(), options).explain()) == left


def test_the_optimized_model(tmp_path: Path) -> None:
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "o.onnx")
    session = ort.InferenceSession(api_models.two_outputs(), options)
    again = ort.InferenceSession(options.optimized_model_filepath)
    feed = {"x": np.array([1, 2], np.float32)}
    assert [y.tolist() for y in again.run(None, feed)] == [y.tolist() for y in session.run(None, feed)]


def test_the_optimized_model_with_a_data_file(tmp_path: Path) -> None:
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "o.onnx")
    options.add_session_config_entry("session.optimized_model_external_initializers_file_name", "o.bin")
    options.add_session_config_entry("session.optimized_model_external_initializers_min_size_in_bytes", "1")
    ort.InferenceSession(api_models.two_outputs(), options)
    assert (tmp_path / "o.bin").exists()
    again = ort.InferenceSession(options.optimized_model_filepath)
    assert again.run(["m"], {"x": np.array([1, 2], np.float32)})[0].tolist() == [10, 20]


def test_stricter_loading() -> None:
    made = api_models.model([helper.make_node("Add", ["a", "b"], ["c"])], [api_models.value("a", [2]),
                                                                           api_models.value("b", [2])],
                            [api_models.value("c", [5])])
    raw = made.SerializeToString()
    ort.InferenceSession(raw)
    options = ort.SessionOptions()
    options.add_session_config_entry("session.strict_shape_type_inference", "1")
    with pytest.raises(state.Fail):
        ort.InferenceSession(raw, options)


def test_free_dimensions() -> None:
    options = ort.SessionOptions()
    options.add_free_dimension_override_by_name("N", 4)
    options.add_free_dimension_override_by_name("unknown", 4)
    session = ort.InferenceSession(api_models.add(), options)
    assert [i.shape for i in session.get_inputs()] == [[4, 3], [1,
                                                                3]] and session.get_outputs()[0].shape == [4,
                                                                                                           3]
    with pytest.raises(state.InvalidArgument, match="index: 0 Got: 2 Expected: 4"):
        session.run(None, api_models.feeds())
    for wrong in ("3", 3.0):
        with pytest.raises(TypeError):
            options.add_free_dimension_override_by_name("N", wrong)  # type: ignore[arg-type]


def test_free_dimensions_by_denotation() -> None:
    made = onnx.load_from_string(api_models.add())
    made.graph.input[0].type.tensor_type.shape.dim[0].denotation = "DATA_BATCH"
    options = ort.SessionOptions()
    options.add_free_dimension_override_by_denotation("DATA_BATCH", 5)
    session = ort.InferenceSession(made.SerializeToString(), options)
    assert session.get_inputs()[0].shape == [5, 3]


@pytest.mark.parametrize(("stated", "overrides", "said"), [
    (["A", "B"], [("denotation", "data_BATCH", 3)], [3, "B"]),
    (["A", "B"], [("denotation", "DATA_batch", 3), ("denotation", "data_batch", 5)], [3, "B"]),
    (["A", "B"], [("denotation", "Data_Batch", 3), ("denotation", "Data_Batch", 5)], [3, "B"]),
    (["A", "B"], [("name", "A", 3), ("name", "A", 5)], [3, "B"]),
    (["A", "B"], [("name", "a", 3)], ["A", "B"]),
    (["A", "B"], [("name", "A", 3), ("denotation", "Data_Batch", 3)], [3, "B"]),
    ([None, 2], [("denotation", "Data_Batch", 3)], [3, 2]),
    ([3, 2], [("denotation", "Data_Batch", 3)], [3, 2]),
    ([2, 2], [("denotation", "Data_Batch", 3)], "Invalid free dimension override"),
    (["A", 2], [("name", "A", 4), ("denotation", "Data_Batch", 3)], "Conflicting free dimension override"),
    (["A", 2], [("denotation", "Data_Batch", 3), ("name", "A", 4)], "Conflicting free dimension override")])
@pytest.mark.parametrize("compiled", [False, True])
def test_free_dimensions_given_in_several_ways(stated: list[Any], overrides: list[tuple[str, str, int]],
                                               said: Any, compiled: bool) -> None:
    value = helper.make_tensor_value_info
    x = value("x", 1, stated, shape_denotation=["Data_Batch", ""])
    graph = helper.make_graph([helper.make_node("Abs", ["x"], ["y"])], "g", [x], [value("y", 1, stated)])
    opsets = [helper.make_opsetid("", 17)]
    raw = helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()
    options = ort.SessionOptions()
    for kind, name, size in overrides:
        getattr(options, "add_free_dimension_override_by_" + kind)(name, size)

    def shapes() -> list[Any]:
        if not compiled:
            made = ort.InferenceSession(raw, options, providers=["CPUExecutionProvider"])
            return [made.get_inputs()[0].shape, made.get_outputs()[0].shape]
        made = ort.InferenceSession(ort.ModelCompiler(options, raw).compile_to_bytes())
        return [made.get_inputs()[0].shape, made.get_outputs()[0].shape]
    if isinstance(said, str):
        with pytest.raises(state.InvalidArgument, match=said):
            shapes()
    else:
        assert shapes() == [said, said]


@pytest.mark.parametrize("mode", [ort.ExecutionMode.ORT_SEQUENTIAL, ort.ExecutionMode.ORT_PARALLEL])
@pytest.mark.parametrize(("across", "within"), [(-1, 0), (-5, -1), (0, -1), (1, 1), (3, 1)])
def test_any_number_of_threads_is_taken(mode: ort.ExecutionMode, across: int, within: int) -> None:
    options = ort.SessionOptions()
    options.execution_mode, options.inter_op_num_threads, options.intra_op_num_threads = mode, across, within
    assert (ort.InferenceSession(api_models.add(), options).run(None, api_models.feeds())[0] == 3).all()


def test_added_initializers() -> None:
    options = ort.SessionOptions()
    weight = ort.OrtValue.ortvalue_from_numpy(np.array([7], np.float32))
    options.add_initializer("w", weight)
    with pytest.raises(RuntimeError, match="An OrtValue for this name has already been added: w"):
        options.add_initializer("w", weight)
    with pytest.raises(RuntimeError, match="The provided Python object must be an OrtValue"):
        options.add_initializer("v", 3)
    session = ort.InferenceSession(api_models.two_outputs(), options)
    assert session.run(["m"], {"x": np.array([1, 2], np.float32)})[0].tolist() == [7, 14]


def external(tmp_path: Path) -> tuple[str, np.ndarray]:
    """A model whose initializer w lies in a file that is not there, behind 8 other bytes."""
    weight = np.array([3], np.float32)
    made = onnx.load_from_string(api_models.two_outputs())
    tensor = made.graph.initializer[0]
    tensor.CopyFrom(numpy_helper.from_array(weight, "w"))
    tensor.ClearField("raw_data")
    tensor.data_location = 1
    for key, text in (("location", "w.bin"), ("offset", "8"), ("length", "4")):
        tensor.external_data.add(key=key, value=text)
    del made.graph.input[1:]
    path = tmp_path / "m.onnx"
    path.write_bytes(made.SerializeToString())
    return str(path), weight


def test_external_initializers(tmp_path: Path) -> None:
    path, weight = external(tmp_path)
    feed = {"x": np.array([1, 2], np.float32)}
    options = ort.SessionOptions()
    options.add_external_initializers(["w"], [ort.OrtValue.ortvalue_from_numpy(weight)])
    assert ort.InferenceSession(path, options).run(["m"], feed)[0].tolist() == [3, 6]
    options = ort.SessionOptions()
    options.add_external_initializers_from_files_in_memory(["w.bin"], [bytes(8) + weight.tobytes()], [12])
    assert ort.InferenceSession(path, options).run(["m"], feed)[0].tolist() == [3, 6]
    options = ort.SessionOptions()
    options.add_external_initializers(["zz"], [ort.OrtValue.ortvalue_from_numpy(weight)])
    with pytest.raises(state.Fail, match="Failed to find existing initializer with name zz"):
        ort.InferenceSession(path, options)
    with pytest.raises(RuntimeError, match="equal length"):
        options.add_external_initializers(["w"], [])
    with pytest.raises(AttributeError):
        options.add_external_initializers(["w"], [2])
    short = ort.SessionOptions()
    short.add_external_initializers_from_files_in_memory(["w.bin"], [bytes(9)], [9])
    with pytest.raises(state.InvalidArgument, match="does not lie in the file given in memory"):
        ort.InferenceSession(path, short)
    with pytest.raises(RuntimeError, match="holds 1 bytes, not 2"):
        options.add_external_initializers_from_files_in_memory(["a"], [b"x"], [2])
    with pytest.raises(TypeError):
        options.add_external_initializers_from_files_in_memory(["a"], ["text"], [1])


def test_added_providers() -> None:
    options = ort.SessionOptions()
    assert not options.has_providers()
    with pytest.raises(RuntimeError, match="Unknown Provider Type: FooExecutionProvider"):
        options.add_provider("FooExecutionProvider", {})
    with pytest.raises(state.InvalidArgument, match="Failed to add provider of type "
                       "'TensorrtExecutionProvider'"):
        options.add_provider("TensorrtExecutionProvider", {})
    with pytest.raises(TypeError):
        options.add_provider("CPUExecutionProvider", {"a": 1})  # type: ignore[dict-item]
    with pytest.raises(state.InvalidArgument, match="Must provide one or more OrtEpDevice instances."):
        options.add_provider_for_devices([], {})
    devices = [d for d in ort.get_ep_devices() if d.ep_name == "CPUExecutionProvider"]
    assert devices[0].device.type == ort.OrtHardwareDeviceType.CPU
    options.add_provider_for_devices(devices, {})
    assert options.has_providers()
    assert ort.InferenceSession(api_models.add(), options).get_providers() == ["CPUExecutionProvider"]


@pytest.mark.parametrize("policy", list(ort.OrtExecutionProviderDevicePolicy))
def test_selection_policies(policy: Any) -> None:
    options = ort.SessionOptions()
    options.set_provider_selection_policy(policy)
    assert options.has_providers()
    assert ort.InferenceSession(api_models.add(), options).get_providers()[-1] == "CPUExecutionProvider"
    with pytest.raises(TypeError):
        options.set_provider_selection_policy(1)  # type: ignore[arg-type]


def test_a_selection_delegate() -> None:
    seen: list[Any] = []

    def first(devices: Any, model: Any, runtime: Any, most: int) -> Any:
        seen.append((model, runtime, most))
        return devices[-1:]
    options = ort.SessionOptions()
    options.set_provider_selection_policy_delegate(first)
    assert ort.InferenceSession(api_models.add(), options).get_providers() == ["CPUExecutionProvider"]
    assert seen == [({"key": "value", "doc_string": "about the model", "domain": "a.domain",
                      "graph_name": "g", "graph_description": "about the graph",
                      "model_version": str((1 << 63) - 1), "producer_name": "maker", "producer_version": ""},
                     {}, 8)]
    options.set_provider_selection_policy_delegate(lambda *_: [])
    with pytest.raises(state.Fail, match="EP selection delegate did not select anything."):
        ort.InferenceSession(api_models.add(), options)
    options.set_provider_selection_policy_delegate(lambda *_: 1 // 0)  # type: ignore[arg-type, return-value]
    with pytest.raises(state.Fail, match="EP selection delegate failed: ZeroDivisionError"):
        ort.InferenceSession(api_models.add(), options)


def test_cancelled_loading() -> None:
    options = ort.SessionOptions()
    options.set_load_cancellation_flag(True)
    with pytest.raises(state.ModelLoadCanceled, match="Graph loading canceled due to user request."):
        ort.InferenceSession(api_models.add(), options)


def test_libraries_that_cannot_be_loaded(tmp_path: Path) -> None:
    library = tmp_path / "x.so"
    library.write_bytes(b"")
    missing = ("Failed to load library /nope.so with error: /nope.so: cannot open shared object file: No "
               "such file or directory")
    with pytest.raises(state.Fail, match=missing):
        ort.SessionOptions().register_custom_ops_library("/nope.so")
    with pytest.raises(state.Fail, match=r"@orthrus\.op"):
        ort.SessionOptions().register_custom_ops_library(str(library))
    with pytest.raises(state.Fail, match=missing):
        ort.register_execution_provider_library("x", "/nope.so")
    with pytest.raises(state.Fail, match="register_execution_provider"):
        ort.register_execution_provider_library("x", str(library))
    with pytest.raises(state.Fail, match="Execution provider library: foo was not registered."):
        ort.unregister_execution_provider_library("foo")


def test_copies_of_options() -> None:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 2
    options.add_session_config_entry("a", "b")
    options.add_initializer("w", ort.OrtValue.ortvalue_from_numpy(np.array([7], np.float32)))
    for twin in (copy.copy(options), copy.deepcopy(options), pickle.loads(pickle.dumps(options))):
        assert twin.intra_op_num_threads == 2 and twin.get_session_config_entry("a") == "b"
        twin.add_session_config_entry("a", "c")
        twin.intra_op_num_threads = 5
        assert ort.InferenceSession(api_models.two_outputs(), twin)
    assert options.intra_op_num_threads == 2 and options.get_session_config_entry("a") == "b"


def test_loggers() -> None:
    for wrong in (9, -1):
        with pytest.raises(RuntimeError, match="Invalid logging severity"):
            ort.set_default_logger_severity(wrong)
    with pytest.raises(TypeError):
        ort.set_default_logger_severity("x")  # type: ignore[arg-type]
    ort.set_default_logger_verbosity(3)
    try:
        ort.set_default_logger_severity(3)
        assert logging.getLogger("orthrus").level == logging.ERROR
    finally:
        ort.set_default_logger_severity(2)


def test_seeds() -> None:
    from orthrus import seeds

    made = api_models.model([helper.make_node("RandomNormal", [], ["y"], shape=[4])], [],
                            [api_models.value("y", [4])])
    raw = made.SerializeToString()
    try:
        ort.set_seed(7)
        first, second = (ort.InferenceSession(raw) for _ in range(2))
        one, two = (first.run(None, {})[0] for _ in range(2))
        assert (second.run(None, {})[0] == one).all() and not (one == two).all()
        ort.set_seed(8)
        assert not (ort.InferenceSession(raw).run(None, {})[0] == one).all()
    finally:
        seeds.clear()
    with pytest.raises(TypeError):
        ort.set_seed("a")  # type: ignore[arg-type]


def test_an_operator_in_python() -> None:
    @ort.op("my.domain::Scaled", version=1)
    def Scaled(x, bias=None, *, scale: float = 2.0, times: list[int] | None = None):  # type: ignore[no-untyped-def]
        return x * np.float32(scale) + (0 if bias is None else bias) + sum(times or [])

    try:
        made = api_models.model(
            [helper.make_node("Scaled", ["x"], ["y"], domain="my.domain", scale=3.0, times=[1, 2])],
            [api_models.value("x", ["N"])], [api_models.value("y", ["N"])],
            extra_opsets=(helper.make_opsetid("my.domain", 1),))
        session = ort.InferenceSession(made.SerializeToString())
        assert session.run(None, {"x": np.array([1, 2], np.float32)})[0].tolist() == [6, 9]
        assert session.explain()[session.explain().nodes[0].node].op_type == "Scaled"

        @ort.op("my.domain::Scaled", version=1)
        def again(x, *, scale: float = 2.0, times: list[int] | None = None):  # type: ignore[no-untyped-def]
            return -x
        assert ort.InferenceSession(made.SerializeToString()).run(None, {"x": np.ones(1,
                                                                                      np.float32)})[0] == -1
    finally:
        ort.unregister_op("my.domain::Scaled")
    with pytest.raises(state.Fail, match="is not a registered function/op"):
        ort.InferenceSession(made.SerializeToString())
    with pytest.raises(ValueError, match="was not defined by orthrus.op"):
        ort.unregister_op("my.domain::Scaled")
    with pytest.raises(ValueError, match="is no operator name"):
        ort.op("::x")
    with pytest.raises(ValueError, match="is defined already"):
        ort.op("Relu", version=1)(lambda x: x)
