"""Sessions: what is taken, how they run, what they say of themselves, and how they fail."""

from __future__ import annotations

import copy
import glob
import json
import logging
import pickle
import threading
from functools import partial
from pathlib import Path
from typing import Any

import api_models
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import orthrus as ort
from orthrus.capi import onnxruntime_pybind11_state as state

CPU = ["CPUExecutionProvider"]


@pytest.fixture
def session() -> ort.InferenceSession:
    return ort.InferenceSession(api_models.add())


def test_what_a_session_is_made_from(tmp_path: Path) -> None:
    raw = api_models.add()
    path = tmp_path / "m.onnx"
    path.write_bytes(raw)
    for source in (raw, str(path), path, bytearray(raw), memoryview(raw), onnx.load_from_string(raw)):
        assert (ort.InferenceSession(source).run(None, api_models.feeds())[0] == 3).all()


@pytest.mark.parametrize("source", [None, 3, 1.5, ["x"]])
def test_what_no_session_is_made_from(source: Any) -> None:
    with pytest.raises(TypeError, match="Unable to load from type"):
        ort.InferenceSession(source)


def test_errors_of_construction() -> None:
    with pytest.raises(TypeError, match="incompatible constructor arguments"):
        ort.InferenceSession("")
    with pytest.raises(TypeError, match="incompatible constructor arguments"):
        ort.InferenceSession(api_models.add(), 3)  # type: ignore[arg-type]
    with pytest.raises(state.NoSuchFile, match="failed. File doesn't exist"):
        ort.InferenceSession("/nonexistent/x.onnx")
    with pytest.raises(ValueError, match="fallback is 'bogus'"):
        ort.InferenceSession(api_models.add(), fallback="bogus", enable_fallback=0)


def test_falsy_options_are_ignored(session: ort.InferenceSession) -> None:
    assert ort.InferenceSession(api_models.add(), {}).run(None, api_models.feeds())  # type: ignore[arg-type]
    assert isinstance(session.get_session_options(), ort.SessionOptions)


def test_what_a_session_says_of_its_model(session: ort.InferenceSession) -> None:
    meta = session.get_modelmeta()
    assert (meta.producer_name, meta.graph_name, meta.domain, meta.description, meta.graph_description) == (
        "maker", "g", "a.domain", "about the model", "about the graph")
    assert meta.version == (1 << 63) - 1
    assert meta.custom_metadata_map == {"key": "value"}
    a, b = session.get_inputs()
    assert str(a) == "NodeArg(name='a', type='tensor(float)', shape=['N', 3])"
    assert (b.name, b.type, b.shape) == ("b", "tensor(float)", [1, 3])
    assert [o.name for o in session.get_outputs()] == ["c"]
    with pytest.raises(AttributeError):
        a.name = "x"  # type: ignore[misc]
    with pytest.raises(TypeError):
        ort.NodeArg()
    assert session.get_providers() == CPU
    assert session.get_provider_options() == {CPU[0]: {}}
    assert session.get_tuning_results() == []
    assert len(session.get_input_memory_infos()) == len(session.get_input_epdevices()) == 2
    assert session._model_path is None
    assert session.explain()["n0"].provider == CPU[0]
    assert "n0" in str(session.explain())


def test_overridable_initializers() -> None:
    session = ort.InferenceSession(api_models.two_outputs())
    assert [i.name for i in session.get_inputs()] == ["x"]
    assert [i.name for i in session.get_overridable_initializers()] == ["w"]
    x = np.array([1, 2], np.float32)
    assert session.run(["m"], {"x": x})[0].tolist() == [10, 20]
    assert session.run(["m"], {"x": x, "w": np.array([3], np.float32)})[0].tolist() == [3, 6]


@pytest.mark.parametrize("names", [None, [], (), ["s", "m"], ("s", "m")])
def test_all_outputs(names: Any) -> None:
    session = ort.InferenceSession(api_models.two_outputs())
    s, m = session.run(names, {"x": np.array([1, 2], np.float32)})
    assert s.tolist() == [11, 12] and m.tolist() == [10, 20]


def test_output_names_as_they_come() -> None:
    session = ort.InferenceSession(api_models.two_outputs())
    feed = {"x": np.array([1, 2], np.float32)}
    assert [y.tolist() for y in session.run(["m", "s", "m"], feed)] == [[10, 20], [11, 12], [10, 20]]
    assert session.run((n for n in ["m"]), feed)[0].tolist() == [10, 20]  # type: ignore[arg-type]
    assert session.run(output_names=["m"], input_feed=feed, run_options=None)[0].tolist() == [10, 20]
    with pytest.raises(TypeError, match=r"run\(\): incompatible function arguments"):
        session.run("m", feed)
    with pytest.raises(TypeError):
        session.run(5, feed)  # type: ignore[arg-type]
    with pytest.raises(state.InvalidArgument, match="Invalid output name:nope"):
        session.run(["nope"], feed)


@pytest.mark.parametrize(("feed", "kind", "text"), [
    ({"a": np.ones((2, 3), np.float32)}, ValueError,
     r"Required inputs \(\['b'\]\) are missing from input feed \(\['a'\]\)."),
    ({}, ValueError, r"Required inputs \(\['a', 'b'\]\) are missing from input feed \(\[\]\)."),
    ({**api_models.feeds(), "zzz": np.ones(1)}, state.InvalidArgument, "Invalid input name: zzz"),
    ({**api_models.feeds(), "a": np.ones((2, 3))}, state.InvalidArgument,
     r"Unexpected input data type. Actual: \(tensor\(double\)\) , expected: \(tensor\(float\)\)"),
    ({**api_models.feeds(), "a": np.ones((2, 3, 1), np.float32)}, state.InvalidArgument,
     "Invalid rank for input: a Got: 3 Expected: 2 Please fix either the inputs/outputs or the model."),
    ({**api_models.feeds(), "a": np.ones((2, 4), np.float32)}, state.InvalidArgument,
     "Got invalid dimensions for input: a for the following indices\n index: 1 Got: 4 Expected: 3\n Please"),
    ({**api_models.feeds(), "a": 1.0}, RuntimeError, "Unable to handle object of type <class 'float'>"),
    ({**api_models.feeds(), "a": "text"}, RuntimeError,
     "Input must be a list of dictionaries or a single numpy array for input 'a'."),
])
def test_feeds_that_do_not_fit(session: ort.InferenceSession, feed: Any, kind: Any, text: str) -> None:
    for _ in range(3):
        with pytest.raises(kind, match=text):
            session.run(None, feed)


def test_a_feed_that_is_no_mapping(session: ort.InferenceSession) -> None:
    with pytest.raises(AttributeError, match="'list' object has no attribute 'keys'"):
        session.run(None, [np.ones(1)])  # type: ignore[arg-type]


def test_forms_of_a_feed(session: ort.InferenceSession) -> None:
    base = api_models.feeds()
    a = np.arange(6, dtype=np.float32).reshape(2, 3)
    expected = a + base["b"]
    fortran, strided = np.asfortranarray(a), np.repeat(a, 2, 1)[:, ::2]
    fixed = a.copy()
    fixed.flags.writeable = False
    for form in (a, fortran, strided, a.astype(">f4"), a.tolist(), fixed,
                 ort.OrtValue.ortvalue_from_numpy(a)):
        for _ in range(3):
            result = session.run(None, {"a": form, "b": base["b"]})[0]
            assert (result == expected).all() and result.flags.writeable
    assert session.run(None, {"a": np.zeros((0, 3), np.float32), "b": base["b"]})[0].shape == (0, 3)


def test_results_belong_to_the_caller(session: ort.InferenceSession) -> None:
    feed = api_models.feeds()
    kept = [session.run(None, feed)[0] for _ in range(6)]
    kept[0][:] = -1
    assert all((y == 3).all() for y in kept[1:])
    assert (feed["a"] == 1).all()


def test_narrow_types_come_out_as_ml_dtypes() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    for kind, dtype in ((TensorProto.BFLOAT16, ml_dtypes.bfloat16), (TensorProto.FLOAT8E4M3FN,
                                                                     ml_dtypes.float8_e4m3fn),
                        (TensorProto.INT4, ml_dtypes.int4)):
        session = ort.InferenceSession(api_models.cast(kind))
        x = np.array([1, -2], np.float32)
        assert session.run(None, {"x": x})[0].dtype == dtype
        value = session.run_with_ort_values(None, {"x": ort.OrtValue.ortvalue_from_numpy(x)})[0]
        assert value.numpy().dtype == dtype and value.element_type() == kind
        assert value.numpy().astype(np.float32).tolist() == [1, -2]


def test_sequences() -> None:
    session = ort.InferenceSession(api_models.sequence())
    assert session.get_inputs()[2].type == "seq(tensor(float))" and session.get_inputs()[2].shape == []
    x = np.ones(2, np.float32)
    s, n = session.run(None, {"x": x, "y": x, "q": [x, x, x]})
    assert len(s) == 2 and n == 3
    values = session.run_with_ort_values(["s"], {
        "x": ort.OrtValue.ortvalue_from_numpy(x), "y": ort.OrtValue.ortvalue_from_numpy(x),
        "q": session.run_with_ort_values(["s"], {
            "x": ort.OrtValue.ortvalue_from_numpy(x), "y": ort.OrtValue.ortvalue_from_numpy(x),
            "q": ort.OrtValue(state.OrtValue._make([x]))})[0]})
    assert values[0].is_tensor_sequence() and values[0].data_type() == "seq(tensor(float))"


UNKNOWN = "Specified provider '{}' is not in available provider names.Available providers: '"


@pytest.mark.parametrize(("providers", "options", "warning", "text"), [
    (["FooExecutionProvider"], None, UNKNOWN.format("FooExecutionProvider"),
     "Unknown Provider Type: FooExecutionProvider"),
    (["CUDAExecutionProvider"], None, UNKNOWN.format("CUDAExecutionProvider"), None),
    (["cpu"], None, UNKNOWN.format("cpu"), "Unknown Provider Type: cpu"),
    (CPU * 2, None, "Duplicate provider 'CPUExecutionProvider' encountered, ignoring.", None),
    ({"CPUExecutionProvider"}, None, None, "'providers' should be a sequence."),
    ([3], None, None, "'providers' values must be either strings or (string, dict) tuples."),
    (CPU, [], None, "'providers' and 'provider_options' should be the same length if both are given."),
    (CPU, {}, None, "'provider_options' should be a sequence."),
    (CPU, [3], None, "'provider_options' values must be dicts."),
    ([(CPU[0], {})], [{}], None,
     "Only string values for 'providers' are supported if 'provider_options' is given."),
    (["TensorrtExecutionProvider", "NvTensorRTRTXExecutionProvider"], None, None, "Cannot enable both"),
])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_provider_arguments(providers: Any, options: Any, warning: str | None, text: str | None,
                            capsys: pytest.CaptureFixture[str]) -> None:
    if warning is None:
        session = ort.InferenceSession(api_models.add(), providers=providers, provider_options=options)
    else:
        with pytest.warns(UserWarning) as caught:
            session = ort.InferenceSession(api_models.add(), providers=providers, provider_options=options)
        assert warning in str(caught[0].message)
    printed = capsys.readouterr().out
    assert session.get_providers() == CPU
    if text is None:
        assert printed == ""
        return
    lines = printed.splitlines()
    assert lines[0] == "*************** EP Error ***************"
    assert lines[1].startswith(f"EP Error {text}") and lines[1].endswith(f"when using {providers}")
    assert lines[2] == "Falling back to ['CPUExecutionProvider'] and retrying."
    assert lines[3] == "****************************************"
    with pytest.raises((ValueError, RuntimeError)):
        ort.InferenceSession(api_models.add(), providers=providers, provider_options=options,
                             enable_fallback=0)


def test_provider_options_reach_the_provider() -> None:
    for arguments in ({"providers": [(CPU[0], {"use_arena": 0})]},
                      {"providers": CPU, "provider_options": [{"use_arena": "0"}]}):
        session = ort.InferenceSession(api_models.add(), **arguments)  # type: ignore[arg-type]
        assert session.get_provider_options() == {CPU[0]: {"use_arena": "0"}}
    assert ort.InferenceSession(api_models.add(), providers=[(CPU[0], {"bogus": 1})])
    with pytest.raises(state.InvalidArgument, match="no option 'bogus'"):
        ort.InferenceSession(api_models.add(), providers=[("NullExecutionProvider", {"bogus": 1})])


def test_setting_providers_anew(session: ort.InferenceSession) -> None:
    session.set_providers(["NullExecutionProvider", *CPU])
    assert session.get_providers() == ["NullExecutionProvider", *CPU]
    with pytest.warns(UserWarning), pytest.raises(RuntimeError, match="Unknown Provider Type: Foo"):
        session.set_providers(["Foo"])
    assert session.get_providers() == ["NullExecutionProvider", *CPU]
    session.set_providers(CPU, provider_options=[{}])
    assert (session.run(None, api_models.feeds())[0] == 3).all()
    with pytest.raises(ValueError, match="should be a sequence"):
        session.set_providers({CPU[0]})  # type: ignore[arg-type]


def test_options_with_providers_of_their_own() -> None:
    options = ort.SessionOptions()
    options.add_provider("NullExecutionProvider", {})
    assert ort.InferenceSession(api_models.add(), options).get_providers()[0] == "NullExecutionProvider"
    with pytest.warns(UserWarning, match="SessionOptions has already been configured with providers"):
        assert ort.InferenceSession(api_models.add(), options, CPU).get_providers() == CPU


class Failing(ort.ExecutionProvider):
    """Takes every Add, and fails when it runs."""

    name = "FailingExecutionProvider"

    def claim(self, node: Any) -> Any:
        from orthrus.ir import No

        return None if node.op_type == "Add" else No("not an Add")

    def compile(self, part: Any) -> Any:
        from orthrus.errors import EPFail
        from orthrus.kernels import Kernel

        def run(*_: Any) -> Any:
            raise EPFail("the device is gone")
        return [Kernel(run, "failing") for _ in part.nodes]


def test_falling_back_while_running(capsys: pytest.CaptureFixture[str]) -> None:
    ort.register_execution_provider(Failing)
    try:
        session = ort.InferenceSession(api_models.add(), providers=["FailingExecutionProvider"])
        assert (session.run(None, api_models.feeds())[0] == 3).all()
        assert session.get_providers() == CPU
        printed = capsys.readouterr().out
        assert "EP Error: " in printed and "Falling back to ['CPUExecutionProvider'] and retrying." in printed
        session = ort.InferenceSession(api_models.add(), providers=["FailingExecutionProvider"])
        session.disable_fallback()
        with pytest.raises(state.EPFail, match="the device is gone"):
            session.run(None, api_models.feeds())
        assert any(d.ep_name == Failing.name for d in ort.get_ep_devices())
    finally:
        ort.unregister_execution_provider(Failing.name)


def test_no_fallback_to_the_cpu() -> None:
    options = ort.SessionOptions()
    options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    with pytest.raises(state.Fail, match="fallback to CPU EP has been explicitly disabled by the user."):
        ort.InferenceSession(api_models.add(), options)
    with pytest.raises(state.InvalidArgument, match="Conflicting session configuration: explicitly added the "
                       "CPU EP"):
        ort.InferenceSession(api_models.add(), options, CPU)
    assert ort.InferenceSession(api_models.add(), options, ["NullExecutionProvider"])


def test_assignments() -> None:
    with pytest.raises(state.Fail, match="must be set to"):
        ort.InferenceSession(api_models.add()).get_provider_graph_assignment_info()
    options = ort.SessionOptions()
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    (part,) = ort.InferenceSession(api_models.add(), options).get_provider_graph_assignment_info()
    (node,) = part.get_nodes()
    assert (part.ep_name, node.domain, node.op_type, node.name) == (CPU[0], "", "Add", "n0")


def test_pickle_and_copies(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(api_models.add())
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    for source in (str(path), api_models.add(), onnx.load(path)):
        session = ort.InferenceSession(source, options, [(CPU[0], {"use_arena": "0"})])
        for twin in (pickle.loads(pickle.dumps(session)), copy.copy(session), copy.deepcopy(session)):
            assert (twin.run(None, api_models.feeds())[0] == 3).all()
            assert twin.get_provider_options() == session.get_provider_options()
            assert twin.get_session_options().intra_op_num_threads == 1


class Pickled(ort.InferenceSession):
    """The way insightface and others make a session picklable."""

    def __init__(self, model_path: str, **kwargs: Any) -> None:
        super().__init__(model_path, **kwargs)
        self.model_path = model_path

    def __getstate__(self) -> dict[str, Any]:
        return {"model_path": self.model_path}

    def __setstate__(self, values: dict[str, Any]) -> None:
        self.__init__(values["model_path"])  # type: ignore[misc]


class Extended(ort.InferenceSession):
    """A subclass with an attribute and no pickling of its own."""

    label = ""


def test_subclasses(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(api_models.add())
    twin = pickle.loads(pickle.dumps(Pickled(str(path))))
    assert twin.model_path == str(path) and (twin.run(None, api_models.feeds())[0] == 3).all()
    extended = Extended(str(path))
    extended.label = "mine"
    assert pickle.loads(pickle.dumps(extended)).label == "mine"


def test_the_inner_session(session: ort.InferenceSession) -> None:
    feed = api_models.feeds()
    assert (session._sess.run(["c"], feed, None)[0] == 3).all()
    assert (session._sess.run(["c"], feed, ort.RunOptions())[0] == 3).all()
    assert [i.name for i in session._sess.inputs_meta] == ["a", "b"]
    with pytest.raises(state.InvalidArgument, match="At least one output should be requested."):
        session._sess.run([], feed, None)
    core = state.InferenceSession(ort.SessionOptions(), api_models.add(), False, False)
    core.initialize_session([], [], set())
    assert (core.run(["c"], feed, None)[0] == 3).all()


def test_many_threads_at_once(session: ort.InferenceSession) -> None:
    wrong: list[Any] = []

    def work(k: int) -> None:
        for i in range(50):
            a = np.full((1 + (i + k) % 3, 3), k, np.float32)
            result = session.run(None, {"a": a, "b": np.ones((1, 3), np.float32)})[0]
            if result.shape != a.shape or not (result == k + 1).all():
                wrong.append((k, i))
    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def called(run: Any) -> tuple[Any, ...]:
    """What a callback of run_async got, and whether it came on another thread."""
    done, got = threading.Event(), list[Any]()

    def callback(*given: Any) -> None:
        got.extend((*given, threading.current_thread() is not threading.main_thread()))
        done.set()
    assert run(callback) is None
    assert done.wait(20)
    return tuple(got)


def test_run_async(session: ort.InferenceSession) -> None:
    feed = api_models.feeds()
    results, data, error, elsewhere = called(lambda cb: session.run_async(["c"], feed, cb, "mine"))
    assert (results[0] == 3).all() and (data, error, elsewhere) == ("mine", "", True)
    results, data, error, elsewhere = called(lambda cb: session.run_async(None, {**feed, "b": np.ones((1,
                                                                                                       3))},
                                                                          cb, None))
    assert results == [
        ] and error == "Unexpected input data type. Actual: (tensor(double)) , expected: (tensor(float))"
    with pytest.raises(ValueError, match="Required inputs"):
        session.run_async(None, {"a": feed["a"]}, print, None)
    assert called(lambda cb: session.run_async(["q"], feed, cb, None))[2].startswith("Invalid output name:")


def test_terminate(session: ort.InferenceSession) -> None:
    options = ort.RunOptions()
    options.terminate = True
    with pytest.raises(state.Fail, match="Exiting due to terminate flag being set to true."):
        session.run(None, api_models.feeds(), options)
    options.terminate = False
    assert session.run(None, api_models.feeds(), options)


def test_terminate_from_another_thread() -> None:
    session = ort.InferenceSession(api_models.loop())
    options = ort.RunOptions()
    timer = threading.Timer(0.2, lambda: setattr(options, "terminate", True))
    timer.start()
    with pytest.raises(state.Fail, match="terminate flag"):
        session.run(None, {"trips": np.array(1 << 30), "x": np.ones(2, np.float32)}, options)


def test_a_timeout() -> None:
    session = ort.InferenceSession(api_models.loop())
    options = ort.RunOptions()
    options.timeout = 0.1
    with pytest.raises(state.Fail, match="longer than its timeout"):
        session.run(None, {"trips": np.array(1 << 30), "x": np.ones(2, np.float32)}, options)
    limited = ort.InferenceSession(api_models.loop(), limits=ort.Limits(run_timeout=0.1))
    with pytest.raises(state.Fail, match="longer than its timeout"):
        limited.run(None, {"trips": np.array(1 << 30), "x": np.ones(2, np.float32)})


def test_closing() -> None:
    with ort.InferenceSession(api_models.add()) as session:
        assert session.run(None, api_models.feeds())
    with pytest.raises(state.Fail, match="has been closed"):
        session.run(None, api_models.feeds())
    session.close()


def test_a_profile(tmp_path: Path) -> None:
    options = ort.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "p")
    session = ort.InferenceSession(api_models.add(), options)
    session.run(None, api_models.feeds())
    session.run(["c"], api_models.feeds(), ort.RunOptions())
    name = session.end_profiling()
    assert glob.glob(str(tmp_path / "p_*.json")) == [name]
    assert session.end_profiling() == "" and session.get_profiling_start_time_ns() > 0
    events = json.loads(Path(name).read_text(encoding="utf-8"))
    names = [e["name"] for e in events if e["cat"] == "Session"]
    assert names[:2] == ["model_loading_array", "session_initialization"] and names.count("model_run") == 2
    assert all(e["ph"] == "X" and e["dur"] >= 0 and e["ts"] >= 0 for e in events)
    unwritable = ort.SessionOptions()
    unwritable.enable_profiling = True
    unwritable.profile_file_prefix = str(tmp_path / "missing" / "p")
    assert "missing" in ort.InferenceSession(api_models.add(), unwritable).end_profiling()


def test_no_profile(session: ort.InferenceSession) -> None:
    assert session.end_profiling() == "" and session.get_profiling_start_time_ns() == 0


def test_severity_of_one_session(capsys: pytest.CaptureFixture[str],
                                 caplog: pytest.LogCaptureFixture) -> None:
    options = ort.SessionOptions()
    options.log_severity_level = 0
    options.logid = "talkative"
    with caplog.at_level(logging.DEBUG, "orthrus"):
        ort.InferenceSession(api_models.add(), options)
    assert " All nodes placed on [CPUExecutionProvider]. Number of nodes: 1" in caplog.messages


def test_bad_severity(capsys: pytest.CaptureFixture[str]) -> None:
    options = ort.SessionOptions()
    options.log_severity_level = 9
    with pytest.raises(RuntimeError, match="Not a valid onnxruntime::logging::Severity value: 9"):
        ort.InferenceSession(api_models.add(), options)
    assert "EP Error" in capsys.readouterr().out


@pytest.mark.parametrize("level", range(-3, 8))
def test_severity_of_a_run(level: int, session: ort.InferenceSession) -> None:
    """By whichever way the run goes: a level that is none is a Fail that says so, as in onnxruntime."""
    options = ort.RunOptions()
    options.log_severity_level = level
    feeds, binding = api_models.feeds(), session.io_binding()
    for name, value in feeds.items():
        binding.bind_cpu_input(name, value)
    binding.bind_output(session.get_outputs()[0].name)
    ways = partial(session.run, None, feeds, options), partial(session.run_with_iobinding, binding, options)
    for run in ways:
        for _ in range(2):  # the second by the shortest way, where there is one
            if -1 <= level <= 4:
                run()
                continue
            with pytest.raises(Exception, match=f"Not a valid onnxruntime::logging::Severity value: {level}"):
                run()


def test_dynamic_options_and_the_rest(session: ort.InferenceSession) -> None:
    session.set_ep_dynamic_options({"foo": "bar"})
    session.release_captured_graph()
    session.set_tuning_results([])
    with pytest.raises(KeyError, match="ep"):
        session.set_tuning_results([{}])
    given = {"ep": "CPUExecutionProvider", "validators": {}, "results": {}}
    session.set_tuning_results([given])
    with pytest.raises(RuntimeError, match="CPUExecutionProvider does not support TunableOp"):
        session.set_tuning_results([given], error_on_invalid=True)
    assert session.create_ortvalue_from_shape_and_type([2], np.float32, "cpu").shape() == [2]


def test_config_from_the_model() -> None:
    made = onnx.load_from_string(api_models.add())
    helper.set_model_props(made, {"ort_config": json.dumps({"session_options": {
        "intra_op_num_threads": 3, "graph_optimization_level": 1, "unknown": 1}})})
    raw = made.SerializeToString()
    session = ort.InferenceSession(raw, read_config_from_model=1)
    assert session.get_session_options().intra_op_num_threads == 3
    assert session.get_session_options(
        ).graph_optimization_level == ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    assert ort.InferenceSession(raw).get_session_options().intra_op_num_threads == 0
    helper.set_model_props(made, {"ort_config": "{"})
    with pytest.raises(state.InvalidArgument, match="ort_config"):
        ort.InferenceSession(made.SerializeToString(), read_config_from_model=1)


@pytest.mark.parametrize("make", [
    lambda o: o.run(None, {"a": np.ones((2, 3), np.float32)}),
    lambda o: o.run(None, {**api_models.feeds(), "a": np.ones((2, 3))}),
    lambda o: o.run(None, {**api_models.feeds(), "a": np.ones((2, 4), np.float32)}),
    lambda o: o.run(["nope"], api_models.feeds()),
    lambda o: o.run("c", api_models.feeds()),
    lambda o: o.run(None, {**api_models.feeds(), "a": 2.0}),
])
def test_errors_begin_as_those_of_onnxruntime(session: ort.InferenceSession, make: Any) -> None:
    peer = pytest.importorskip("onnxruntime").InferenceSession(api_models.add(), providers=CPU)
    with pytest.raises(Exception) as theirs:
        make(peer)
    with pytest.raises(Exception) as ours:
        make(session)
    assert type(ours.value).__name__ == type(theirs.value).__name__
    first = str(
        theirs.value).partition("Invoked with")[0].replace("onnxruntime.capi.onnxruntime_pybind11_state.", "")
    assert str(ours.value).startswith(first)


def test_a_profile_holds_an_event_per_node(tmp_path: Path) -> None:
    options = ort.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(tmp_path / "p")
    session = ort.InferenceSession(api_models.add(), options)
    session.run(None, {"a": np.zeros((2, 3), np.float32), "b": np.zeros((1, 3), np.float32)})
    events = json.loads(Path(session.end_profiling()).read_text())
    (node,) = [e for e in events if e["cat"] == "Node"]
    assert node["name"].endswith("_kernel_time") and node["args"]["op_name"] == "Add"
    assert node["args"]["provider"] == "CPUExecutionProvider" and node["args"]["output_size"] == "24"
    assert node["args"]["input_type_shape"] == [{"float": [2, 3]}, {"float": [1, 3]}]
    names = {e["name"] for e in events}
    assert {"session_initialization", "model_run", "SequentialExecutor::Execute"} <= names
