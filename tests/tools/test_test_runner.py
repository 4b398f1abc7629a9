"""`orthrus test-runner`: which tests it finds, when a result matches, what it prints and how it ends."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import graphs
import ml_dtypes
import numpy as np
import onnx
import pytest
import typer
from commands import invoking
from onnx import TensorProto, helper, numpy_helper
from skips import MODELS, needs
from typer.testing import CliRunner

import orthrus as ort
from orthrus import providers
from orthrus.ir import No, OptionalType, SequenceType, TensorType
from orthrus.kernels import Kernel
from orthrus.tools.cli import feeds
from orthrus.tools.testrunner import data as test_data
from orthrus.tools.testrunner import ml_data, test_runner
from orthrus.tools.testrunner.cases import BROKEN, find_cases, overrides
from orthrus.tools.testrunner.matching import LOOSER, Tolerance, asked, compare

A = np.arange(6, dtype=np.float32).reshape(2, 3)
B = np.full((2, 3), 10, np.float32)
ONNX = Path(onnx.__file__).parent / "backend/test/data"

Runner = Callable[..., Any]
app = typer.Typer()
app.command()(test_runner.command)


@pytest.fixture
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runner:
    """Run a command line in a folder of its own and expect an exit code."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")

    return invoking(app)


def case(name: str, model: onnx.ModelProto | None = None, inputs: Any = None, outputs: Any = None,
         sets: int = 1) -> Path:
    """A folder with a model and data sets: `c = a + b` unless something else is said."""
    folder = Path("tests", name)
    folder.mkdir(parents=True)
    onnx.save(model or graphs.add(), folder / "model.onnx")
    for i in range(sets):
        test_data.write(folder / f"test_data_set_{i}", {"a": A, "b": B} if inputs is None else inputs,
                        {"c": A + B} if outputs is None else outputs)
    return folder


def unknown_operator() -> onnx.ModelProto:
    return graphs.model([helper.make_node("Nonsense", ["a"], ["c"], domain="my")], ["a"], ["c"],
                        domains={"my": 1})


def failing_at_run() -> onnx.ModelProto:
    """Reshape to a shape that the feed does not fit."""
    return graphs.model([helper.make_node("Reshape", ["a", "shape"], ["c"])],
                        ["a", graphs.info("shape", TensorProto.INT64, [1])], [graphs.info("c", shape=[None])])


def mixture() -> None:
    """Every kind of end a test can come to."""
    case("test_good", sets=2)
    case("test_value", outputs={"c": A})
    case("test_shape", outputs={"c": A[:1]})
    case("test_type", outputs={"c": A.astype(np.float64)})
    case("test_unknown", unknown_operator(), {"a": A}, {"c": A})
    case("test_run", failing_at_run(), {"a": A, "shape": np.array([4])}, {"c": A.reshape(-1)})
    case("test_gap")
    Path("tests/test_gap/test_data_set_0/input_1.pb").rename("tests/test_gap/test_data_set_0/input_2.pb")
    case("test_broken_file")
    Path("tests/test_broken_file/model.onnx").write_bytes(b"no model")
    case("bernoulli")
    case("test_no_data", sets=0)
    folder = Path("tests/test_flat")
    folder.mkdir()
    (folder / "model.ort").write_bytes(b"")


SUMMARY = "\n".join([
    "result: ", "\tModels: 8", "\tTotal test cases: 9", "\t\tSucceeded: 2", "\t\tNot implemented: 1",
    "\t\tFailed: 6", "\t\t\tGot exception while loading model: 1", "\t\t\tGot exception while running: 1",
    "\t\t\tResult differs: 3", "\t\t\tOther reason:1", "\tStats by Operator type:",
    "\t\tNot implemented(1): Nonsense", "\t\tFailed:Add, Reshape",
    "Failed Test Cases:broken_file, gap of opset21, run of opset21, shape of opset21, type of opset21, "
    "value of opset21", ""])


def test_every_end_a_test_can_come_to(runner: Runner) -> None:
    mixture()
    found = runner("tests", code=255)
    lines = found.stdout.splitlines()
    assert "Load Test Case: good in tests/test_good" in lines
    assert "Skip test case:: bernoulli " + BROKEN["bernoulli*"] in lines
    assert [line for line in lines if line.startswith("Skip test case:: flat the .ort format")]
    assert found.stdout.endswith(SUMMARY)
    for text in ("value: result differs. Dataset:test_data_set_0",
                 "c: expected 0 (0), got 10 (41200000), diff: 10, tol=0.001 idx=0. 6 of 6 differ",
                 "c: shape mismatch, expected {1,3}, got {2,3}",
                 "c: type mismatch, expected tensor(double), got tensor(float)",
                 "Model unknown failed to load:", "illegal input file name:",
                 "there is no input_1.pb before it", "test value failed, please fix it"):
        assert text in found.stderr, text
    assert "test unknown failed" not in found.stderr and "test good failed" not in found.stderr


def test_json_and_junit_say_the_same(runner: Runner) -> None:
    mixture()
    found = runner("tests", "--json", "--junit", "report.xml", code=255)
    data = json.loads(found.stdout)
    assert {k: data[k] for k in ("models", "test_cases", "succeeded", "not_implemented", "failed")} == {
        "models": 8, "test_cases": 9, "succeeded": 2, "not_implemented": 1, "failed": 6}
    assert data["reasons"] == {"Got exception while loading model": 1, "Got exception while running": 1,
                               "Result differs": 3, "Other reason": 1}
    codes = {row["name"]: row["code"] for row in data["results"]}
    assert codes == {"good": 1, "value": -3, "shape": -4, "type": -5, "unknown": -6, "run": -2, "gap": -1,
                     "broken_file": -7}
    root = ElementTree.parse("report.xml").getroot()
    (suite,) = root
    assert root.get("tests") == "12" and suite.get("failures") == "6" and suite.get("skipped") == "4"
    failures = {c.get("classname"): c.find("failure") for c in suite}
    assert failures["value"].get("type") == "RESULT_DIFFERS" and failures["good"] is None
    assert {c.get("classname") for c in suite if c.find("skipped") is not None} == {
        "unknown", "bernoulli", "no_data", "flat"}


def test_junit_survives_characters_that_xml_lacks(runner: Runner) -> None:
    a, c = (graphs.info(name, TensorProto.STRING, [1]) for name in "ac")
    text = graphs.model([helper.make_node("Identity", ["a"], ["c"])], [a], [c])
    case("texts", text, {"a": np.array(["\x00\x1b[31m"], object)}, {"c": np.array(["\x07é"], object)})
    runner("tests", "--junit", "report.xml", code=255)
    assert "é" in ElementTree.parse("report.xml").getroot()[0][0][0].get("message", "")


def test_exit_codes(runner: Runner) -> None:
    assert "please specify a test data dir" in runner(code=255).stderr
    assert "--strict" in runner("-h", code=255).stdout and runner("--help").stdout
    case("good")
    runner("tests", "--strict")
    case("unknown", unknown_operator(), {"a": A}, {"c": A})
    runner("tests")
    runner("tests", "--strict", code=3)
    runner("tests", "-n", "good", "--strict")
    runner("tests", "-m", 2)
    assert "asks for at least 3" in runner("tests", "-m", 3, code=255).stderr
    case("wrong", outputs={"c": A})
    runner("tests", "--strict", code=255)
    for wrong in (["-o", 7], ["-i", "a=1"], ["-C", "a"], ["-r", 0], ["-X", "many"]):
        runner("tests", *wrong, code=2)
    Path("empty").mkdir()
    assert "no model was found" in runner("empty").stderr
    runner("empty", "--strict", code=3)


def test_errors_of_the_command_line_name_what_is_known(tmp_path: Path) -> None:
    """As a program of its own, without a traceback."""
    command = [sys.executable, "-m", "orthrus.tools.testrunner.test_runner"]
    for args, text in (([tmp_path / "none"], "no such folder"),
                       ([tmp_path, "-e", "nul"], "NullExecutionProvider"),
                       ([tmp_path, "-n", "add"], "no test has this name among the 0")):
        found = subprocess.run([*command, *map(str, args)], capture_output=True, text=True)
        assert found.returncode == 1 and text in found.stderr and "Traceback" not in found.stderr


def test_one_test_by_name(runner: Runner) -> None:
    case("test_good")
    case("test_wrong", outputs={"c": A})
    case("bernoulli")
    for name in ("good", "test_good", "bernoulli"):
        assert "Models: 1\n" in runner("tests", "-n", name).stdout
    runner("tests", "-n", "wrong", code=255)


def test_several_models_in_a_folder_and_several_folders(runner: Runner) -> None:
    folder = case("nets/test_pair")
    (folder / "model.onnx").rename(folder / "one.onnx")
    onnx.save(graphs.model([helper.make_node("Mul", ["a", "b"], ["c"])], ["a", "b"], ["c"]),
              folder / "two.onnx")
    case("other")
    found = runner("tests/nets", "tests/other", code=255)
    assert "Models: 3\n" in found.stdout and "Failed Test Cases:pair/two of" in found.stdout
    runner("tests/nets/test_pair/one.onnx")
    assert "Models: 1\n" in runner("tests", "-n", "pair/two", code=255).stdout


def test_an_error_that_is_no_refusal_of_the_model_fails(runner: Runner,
                                                        monkeypatch: pytest.MonkeyPatch) -> None:
    case("good")

    def broken(*_: Any, **__: Any) -> Any:
        raise AttributeError("a bug")
    monkeypatch.setattr(ort, "InferenceSession", broken)
    found = runner("tests", code=255)
    assert "Got exception while loading model: 1" in found.stdout and "AttributeError: a bug" in found.stderr


# Data sets


def rename(folder: Path, **names: str) -> None:
    for old, new in names.items():
        (folder / f"{old}.pb").rename(folder / f"{new}.pb")


def test_names_of_files_and_folders(runner: Runner) -> None:
    """onnxruntime's naming, SpaceMIT's, and files that lie beside the model."""
    case("test_usual")
    folder = case("mobilenetv2", sets=2)
    for i in (0, 1):
        made = (folder / f"test_data_set_{i}").rename(folder / f"test_data{i}")
        rename(made, input_0="input0", input_1="input1")
    folder = case("beside", sets=0)
    test_data.write(folder, {"a": A, "b": B}, {"c": A + B})
    rename(folder, input_0="model_input_0", input_1="model_input_1", output_0="model_output_0")
    folder = case("freely_named")
    (folder / "test_data_set_0").rename(folder / "first")
    (folder / "notes").mkdir()
    assert "Total test cases: 5\n\t\tSucceeded: 5" in runner("tests", "--strict").stdout


def test_data_sets_come_in_the_order_of_their_numbers(runner: Runner) -> None:
    folder = case("many", sets=12)
    assert [s.path.name for s in test_data.data_sets(folder / "model.onnx")] == [
        f"test_data_set_{i}" for i in range(12)]


@pytest.mark.parametrize("name", ["input_x", "input_2", "input1", "input"])
def test_a_name_that_is_none_is_said(runner: Runner, name: str) -> None:
    folder = case("odd") / "test_data_set_0"
    (folder / f"{name}.pb").write_bytes((folder / "input_1.pb").read_bytes())
    if name == "input_2":
        (folder / "input_1.pb").unlink()
    with pytest.raises(ValueError, match="illegal input file name:"):
        test_data.data_sets(folder.parent / "model.onnx")
    assert "Other reason:1" in runner("tests", code=255).stdout


def test_values_go_by_name_and_else_by_number(runner: Runner) -> None:
    minus = graphs.model([helper.make_node("Sub", ["a", "b"], ["c"])], ["a", "b"], ["c"])
    folder = case("named", minus, {"b": B, "a": A}, {"c": A - B})
    other = case("numbered", minus, {"x": A, "y": B}, {"z": A - B})
    for each in (folder, other):
        (found,) = test_data.data_sets(each / "model.onnx")
        np.testing.assert_array_equal(found.inputs["a"], A)
        np.testing.assert_array_equal(found.outputs["c"], A - B)
    runner("tests", "--strict")


def test_inputs_with_a_value_of_their_own_may_be_left_out(runner: Runner) -> None:
    model = graphs.model([helper.make_node("Sub", ["a", "b"], ["c"])], ["b", "a"], ["c"], {"b": B})
    case("left_out", model, {"": A}, {"": A - B})
    case("given", model, {"": B + 1, " ": A}, {"": A - B - 1})
    runner("tests", "--strict")


def test_a_value_without_a_message_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="a cannot be written as ONNX test data"):
        test_data.write(tmp_path, {"a": {}})


def test_too_many_values_and_none_expected(runner: Runner) -> None:
    case("many", inputs={"x": A, "y": A, "z": A})
    case("nothing", outputs={})
    found = runner("tests", code=255)
    assert "3 inputs for a model that has 2: a, b" in found.stderr and "Other reason:2" in found.stdout
    assert "there are no expected outputs" in found.stderr


VALUES: dict[str, Any] = {
    "tensor(float)": A, "tensor(float16)": A.astype(np.float16), "tensor(int64)": A.astype(np.int64),
    "tensor(bool)": A > 2, "tensor(string)": np.array(["", "é", "a\nb"], object),
    "tensor(bfloat16)": A.astype(ml_dtypes.bfloat16),
    "tensor(float8e4m3fn)": A.astype(ml_dtypes.float8_e4m3fn),
    "tensor(int4)": A.astype(ml_dtypes.int4), "tensor(complex64)": A.astype(np.complex64) * 1j,
    "seq(tensor(float))": [A, A[:1]], "optional(tensor(float))": A, "optional(seq(tensor(float)))": [A],
}


def proto_of(text: str) -> onnx.TypeProto:
    kind, _, rest = text.removesuffix(")").partition("(")
    if kind == "tensor":
        return helper.make_tensor_type_proto(getattr(TensorProto, rest.upper()), None)
    make = helper.make_sequence_type_proto if kind == "seq" else helper.make_optional_type_proto
    return make(proto_of(rest))


@pytest.mark.parametrize("text", VALUES)
def test_every_kind_of_value_goes_through_files(runner: Runner, text: str) -> None:
    ends = [helper.make_value_info(name, proto_of(text)) for name in ("a", "c")]
    model = graphs.model([helper.make_node("Identity", ["a"], ["c"])], ends[:1], ends[1:])
    folder = case("identity", model, sets=0)
    declared = test_data.signature(folder / "model.onnx")
    value = VALUES[text]
    test_data.write(folder / "test_data_set_0", {"a": value}, {"c": value},
                    {**declared.inputs, **declared.outputs})
    (found,) = test_data.data_sets(folder / "model.onnx")
    assert compare(value, found.inputs["a"], Tolerance(0, 0)) is None
    runner("tests", "--strict")


def test_an_empty_optional_goes_through_files(runner: Runner) -> None:
    ends = [helper.make_value_info("a", proto_of("optional(tensor(float))")),
            graphs.info("c", TensorProto.BOOL, [])]
    model = graphs.model([helper.make_node("OptionalHasElement", ["a"], ["c"])], ends[:1], ends[1:])
    case("empty", model, {"a": None}, {"c": np.array(False)})
    runner("tests", "--strict")


def test_maps_and_files_of_several_values(runner: Runner) -> None:
    vectorizer = helper.make_node("DictVectorizer", ["a"], ["c"], domain="ai.onnx.ml",
                                  int64_vocabulary=[10, 20, 30])
    kind = onnx.TypeProto()
    kind.map_type.key_type = TensorProto.INT64
    kind.map_type.value_type.CopyFrom(helper.make_tensor_type_proto(TensorProto.FLOAT, []))
    model = graphs.model([vectorizer], [helper.make_value_info("a", kind)], [graphs.info("c", shape=None)],
                         domains={"ai.onnx.ml": 3})
    folder = case("one_map", model, {"a": {10: np.float32(1), 30: np.float32(2.5)}},
                  {"c": np.array([[1, 0, 2.5]], np.float32)})
    several = case("together", model, sets=0) / "test_data_set_0"
    several.mkdir()
    ml_data.write_messages(several / "inputs.pb", [("a", "MapInt64ToFloat", {10: 1.0, 30: 2.5})])
    ml_data.write_messages(several / "outputs.pb", [("c", "tensor", np.array([[1, 0, 2.5]], np.float32))])
    for each in (folder, several.parent):
        (found,) = test_data.data_sets(each / "model.onnx")
        assert {k: float(v) for k, v in found.inputs["a"].items()} == {10: 1.0, 30: 2.5}
    runner("tests", "--strict")


@pytest.mark.parametrize("kind, value", [
    ("MapStringToString", {"a": "é"}), ("MapInt64ToInt64", {-1: 1 << 40}), ("MapStringToDouble", {"a": 0.1}),
    ("VectorString", ["a", ""]), ("VectorDouble", [0.1, 2.0]), ("VectorMapStringToFloat", [{"a": 0.5}, {}]),
    ("tensor", A)])
def test_messages_with_their_lengths(tmp_path: Path, kind: str, value: Any) -> None:
    path = tmp_path / "inputs.pb"
    ml_data.write_messages(path, [("first", kind, value), ("second", "VectorInt64", range(200))])
    (name, found), (_, numbers) = ml_data.read_messages(path)
    assert name == "first" and np.array_equal(found, value) and numbers.tolist() == list(range(200))
    data = path.read_bytes()
    for cut in (data[:-1], b"\xff" * 12, data + b"\x05"):
        path.write_bytes(cut)
        with pytest.raises(ValueError, match="inputs.pb: no ONNX test data"):
            ml_data.read_messages(path)


def test_data_outside_of_a_file_is_not_followed(runner: Runner) -> None:
    folder = case("outside") / "test_data_set_0"
    tensor = numpy_helper.from_array(A, "a")
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="input_1.pb")
    (folder / "input_0.pb").write_bytes(tensor.SerializeToString())
    assert "lies in another file" in runner("tests", code=255).stderr


@needs("POSIX")
@pytest.mark.parametrize("name", ["test_data_set_0/input_0.pb", "test_data_set_0/output_0.pb",
                                  "test_data_set_0/inputs.pb", "model.onnx", "config.txt"])
def test_nothing_waits_for_a_pipe(name: str, runner: Runner) -> None:
    path = case("pipe") / name
    path.unlink(missing_ok=True)
    if name.endswith("inputs.pb"):
        for file in path.parent.glob("input_*.pb"):
            file.unlink()
    os.mkfifo(path)
    done = subprocess.run([sys.executable, "-m", test_runner.__name__, "tests"], check=False,
                          timeout=60, capture_output=True, text=True)
    assert (done.returncode == 0) == (name == "config.txt") and "Traceback" not in done.stderr, done.stderr
    assert "no regular file" in done.stderr or name.endswith(("inputs.pb", "config.txt"))


def test_a_wrong_file_of_a_tensor_is_a_value_error(tmp_path: Path) -> None:
    """Whatever its fields say: an array of just these dimensions, or ValueError."""
    rng, path = np.random.default_rng(0), tmp_path / "input_0.pb"
    sizes = (-4, -1, 0, 1, 2, 4, 1 << 40, (1 << 63) - 1, -(1 << 63))
    refused = 0
    for _ in range(400):
        tensor = TensorProto(dims=[sizes[i] for i in rng.integers(len(sizes), size=rng.integers(3))],
                             data_type=int(rng.integers(-1, 26)), float_data=[1, 2, 3, 4])
        if rng.random() < 0.5:
            tensor.ClearField("float_data")
            tensor.raw_data = bytes(int(rng.integers(20)))
        path.write_bytes(tensor.SerializeToString() + (b"\x42\x02\xff\xfe" if rng.random() < 0.1 else b""))
        kinds = (None, SequenceType(TensorType(None)), OptionalType(TensorType(None)))
        for kind in kinds:
            try:
                name, value = feeds.read_proto(path, kind)
            except ValueError as error:
                assert str(path) in str(error)
                refused += 1
            else:
                assert isinstance(name, str) and (kind is not None or value.shape == tuple(tensor.dims))
        for how in (tensor.SerializeToString(), b"\x08\x01"):
            path.write_bytes(how)
            with contextlib.suppress(ValueError):
                ml_data.read_messages(path)
    assert refused > 400


def test_results_are_kept_where_nothing_is_compared(runner: Runner) -> None:
    folder = case("kept", outputs={}, sets=2)
    runner("tests", "-I")
    for i in (0, 1):
        rename(folder / f"test_data_set_{i}", actual_output_0="output_0")
    assert "Succeeded: 2" in runner("tests", "--strict").stdout
    np.testing.assert_array_equal(test_data.data_sets(folder / "model.onnx")[1].outputs["c"], A + B)


# Matching


FLOATS = [0.0, -0.0, 1.0, 1.0009765625, 1.001, 0.999, -1.0, 1e-3, 1e-5, 1e-40, 3e38, -3e38, 100.0, 100.09,
          100.11, np.inf, -np.inf, np.nan]


@pytest.mark.parametrize("absolute, relative", [(1e-3, 1e-3), (0, 0), (1e-5, 0), (0, 1e-3), (0, 10)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_rule_of_floats(dtype: Any, absolute: float, relative: float) -> None:
    for one, other in itertools.product(np.array(FLOATS, dtype), repeat=2):
        expected, actual = float(one), float(other)
        if np.isnan(expected) or np.isnan(actual):
            near = np.isnan(expected) and np.isnan(actual)
        elif np.isinf(expected) or np.isinf(actual):
            near = expected == actual
        else:
            near = abs(expected - actual) <= absolute + relative * abs(expected)
        found = compare(np.array([0, one], dtype), np.array([0, other], dtype), Tolerance(absolute, relative))
        assert (found is None) == near, (expected, actual)
        assert found is None or (found.kind == "value" and "idx=1. 1 of 2 differ" in found.text)


@pytest.mark.parametrize("dtype", [np.int8, np.uint64, np.bool_, ml_dtypes.int4, np.int64])
def test_whole_numbers_are_equal_or_differ(dtype: Any) -> None:
    one, other = np.array([0, 1, 0], dtype), np.array([0, 1, 1], dtype)
    assert compare(one, one.copy(), Tolerance(9, 9)) is None
    found = compare(one, other, Tolerance(9, 9))
    assert found is not None
    assert "expected 0 (0), got 1 (1), diff: 1, tol=0 idx=2. 1 of 3 differ" in found.text


def test_whole_numbers_beyond_the_doubles() -> None:
    found = compare(np.array([1 << 60]), np.array([(1 << 60) + 1]), Tolerance())
    assert found is not None and "diff: 1," in found.text


def test_the_furthest_element_is_named() -> None:
    size = 3_000_000
    one = np.zeros(size, np.float32)
    other = one.copy()
    other[[5, 2_500_000, 2_900_000]] = 1, -7, np.nextafter(np.float32(0.001), np.float32(1))
    found = compare(one, other, Tolerance())
    assert found is not None and "got -7 (c0e00000), diff: 7, tol=0.001 idx=2500000. 3 of" in found.text
    other[17] = np.nan
    found = compare(one, other, Tolerance())
    assert found is not None and "got nan" in found.text and "idx=17. 4 of" in found.text


def test_bfloat16_has_its_own_tolerance_unless_one_is_asked_for() -> None:
    one = np.array([1], ml_dtypes.bfloat16)
    other = np.array([1 + 2**-7], ml_dtypes.bfloat16)
    assert compare(one, other, Tolerance()) is None
    assert compare(one, np.array([1 + 2**-5], ml_dtypes.bfloat16), Tolerance()) is not None
    assert compare(one, other, asked("CPUExecutionProvider", 1e-3, None)) is not None


@pytest.mark.parametrize("wanted, got, text", [
    (None, A, "expected nothing, got a value"), (A, None, "expected a value, got nothing"),
    ([A], A, "expected a sequence"), ([A], [A, A], "expected 1 elements, got 2"),
    (A, [A], "expected a tensor"), ([A, A], [A, A + 1], "element 1: expected"),
    ({1: 2.0}, A, "expected a map"),
    ({1: 2.0}, {2: 2.0}, "is in one only"), ({1: 2.0}, {1: 3.0}, "key 1: expected 2"),
    (np.array(["a", "b"], object), np.array(["a", "c"], object),
     "expected 'b', got 'c' idx=1. 1 of 2 differ"),
    (np.complex64(1 + 1j).reshape(1), np.complex64(1 - 1j).reshape(1), "diff: 2")])
def test_values_that_are_no_plain_tensors(wanted: Any, got: Any, text: str) -> None:
    found = compare(wanted, got, Tolerance())
    assert found is not None and text in found.text
    assert compare(wanted, wanted, Tolerance()) is None


# Tolerances


def test_where_the_tolerance_comes_from(runner: Runner) -> None:
    """The command line, the model's config.txt, the overrides file, the default: the first that says."""
    folder = case("test_near", outputs={"c": A + B + np.float32(0.05)})
    runner("tests", code=255)
    runner("tests", "-a", 0.1)
    runner("tests", "-t", 0.01)
    runner("tests", "-t", 0.001, code=255)
    table = Path("testdata/onnx_backend_test_series_overrides.jsonc")
    table.parent.mkdir()
    table.write_text('{ // by test\n "atol_default": 1e-5, "rtol_default": 1e-3, /* own */\n'
                     ' "atol_overrides": {"test_near": 0.1, "http://x": 1,},\n}')
    runner("tests")
    runner("tests", "-t", 0.001, code=255)
    config = folder / "config.txt"
    config.write_text("per_sample_tolerance:0.00001\nrelative_per_sample_tolerance: 1e-5\n")
    runner("tests", code=255)
    runner("tests", "-a", 0.1)
    table.write_text('{"atol_default": 1e-5}')
    config.write_text("per_sample_tolerance:0.2\n")
    runner("tests")
    config.write_text("per_sample_tolerance:much\n")
    assert "config.txt: could not convert" in runner("tests", code=255).stderr
    table.write_text("[]")
    with pytest.raises(ValueError, match="no table of tolerances"):
        overrides(Path.cwd())


def test_results_are_cut_to_a_picture_where_the_model_says_so(runner: Runner) -> None:
    folder = case("picture", inputs={"a": A * 100, "b": B}, outputs={"c": np.minimum(A * 100 + B, 255)})
    runner("tests", code=255)
    (folder / "config.txt").write_text("post_processing:true\n")
    runner("tests")


def test_tolerances_of_providers() -> None:
    assert asked("CPUExecutionProvider", None, None) == Tolerance(1e-3, 1e-3)
    assert asked("CUDAExecutionProvider", None, None).relative == LOOSER["CUDAExecutionProvider"] == 0.017
    assert asked("OpenVINOExecutionProvider", None, None).absolute == 0.009
    assert asked("CUDAExecutionProvider", 0.5, None) == Tolerance(0.5, 1e-5, exact=True)


# Flags


class Fussy(ort.ExecutionProvider):
    """Adds, in a way that an option chooses, and says what it was asked for and how."""

    name = "FussyExecutionProvider"
    options = {"off_by": providers.Option(float, 0.0, "added to each sum"),
               "device_id": providers.Option(int, -1, "the device")}
    meeting: threading.Barrier | None = None
    seen: list[Any] = []

    def claim(self, node: Any) -> No | None:
        return None if node.op_type == "Add" else No("no Add")

    def compile(self, part: Any) -> list[Kernel]:
        def run(a: Any, b: Any) -> Any:
            if self.meeting is not None:
                self.meeting.wait()
            return a + b + np.float32(self.settings["off_by"])

        self.seen.append(self.settings["device_id"])
        return [Kernel(run, "fussy")]


@pytest.fixture
def fussy() -> Iterator[type[Fussy]]:
    ort.register_execution_provider(Fussy)
    Fussy.seen, Fussy.meeting = [], None
    yield Fussy
    providers.unregister(Fussy.name)


def test_a_provider_by_either_name_with_options(runner: Runner, fussy: type[Fussy]) -> None:
    case("sum")
    for name in ("fussy", "FussyExecutionProvider"):
        runner("tests", "-e", name)
        runner("tests", "-e", name, "-i", "off_by|1 device_id|4", code=255)
    runner("tests", "-e", "fussy", "-d", 3)
    assert fussy.seen == [-1, 4, -1, 4, 3]
    assert "Not implemented: 1" in runner("tests", "-e", "fussy", "-i", "nonsense|1").stdout
    assert "has no option device_id" in runner("tests", "-d", 1).stderr


@pytest.mark.parametrize("flags", [["-c", 2, "-r", 2], ["-X", 2, "-r", 2], ["-j", 1, "-X", 4, "-r", 4]])
def test_runs_of_one_model_meet(runner: Runner, fussy: type[Fussy], flags: list[Any]) -> None:
    case("sum")
    fussy.meeting = threading.Barrier(flags[-1], timeout=20)
    runner("tests", "-e", "fussy", *flags)


def test_runs_of_several_models_meet(runner: Runner, fussy: type[Fussy]) -> None:
    case("one")
    case("two")
    fussy.meeting = threading.Barrier(2, timeout=20)
    runner("tests", "-e", "fussy", "-j", 2, "-c", 1)


@pytest.mark.parametrize("flags", [["-c", 1, "-j", 1], ["-X", 1], ["-X", 1, "-j", 2, "-c", 2]])
def test_runs_do_not_meet_where_one_at_a_time_is_asked_for(runner: Runner, fussy: type[Fussy],
                                                         flags: list[Any]) -> None:
    case("one")
    case("two")
    fussy.meeting = threading.Barrier(2, timeout=0.1)
    found = runner("tests", "-e", "fussy", "-r", 2, *flags, code=255)
    assert "Got exception while running: 2" in found.stdout


def test_one_bad_run_of_many_fails_its_data_set(runner: Runner, fussy: type[Fussy]) -> None:
    case("sum", sets=3)
    fussy.meeting = threading.Barrier(8, timeout=0.1)
    found = runner("tests", "-e", "fussy", "-r", 3, "-c", 9, code=255)
    assert "Total test cases: 3\n" in found.stdout


def test_flags_reach_the_session(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    case("sum")
    real, found = ort.InferenceSession, []

    def session(model: Any, options: Any, **rest: Any) -> Any:
        found.append(options)
        return real(model, options, **rest)
    monkeypatch.setattr(ort, "InferenceSession", session)
    runner("tests")
    noted = runner("tests", "-A", "-M", "-x", "-z", "-v", "-f", "-b", "-o", 1, "-C",
                   "session.intra_op_num_threads|1 my.key|a|b")
    plain, given = found
    for name, before, after in (
            ("enable_cpu_mem_arena", True, False), ("enable_mem_pattern", True, False),
            ("execution_mode", ort.ExecutionMode.ORT_SEQUENTIAL, ort.ExecutionMode.ORT_PARALLEL),
            ("graph_optimization_level", ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
             ort.GraphOptimizationLevel.ORT_ENABLE_BASIC)):
        assert (getattr(plain, name), getattr(given, name)) == (before, after)
    assert given.get_session_config_entry("my.key") == "a|b"
    assert given.get_session_config_entry("session.set_denormal_as_zero") == "1"
    assert "-z is taken" in noted.stderr and "sum: passed. Dataset:test_data_set_0" in noted.stderr


def test_a_pause_ends_with_enter(runner: Runner) -> None:
    case("sum")
    found = CliRunner().invoke(app, ["tests", "-p"], input="\n")
    assert found.exit_code == 0 and f"process {os.getpid()} waits" in found.stderr


def test_the_main_command_knows_it() -> None:
    from orthrus.tools.cli.main import app as main

    found = CliRunner().invoke(main, ["test-runner", "--help"])
    assert found.exit_code == 0 and "onnx_test_runner" in found.output


# ONNX's own suite, and trained models


@pytest.mark.parametrize("kind, count", [("simple", 23), ("pytorch-operator", 35)])
def test_stored_cases_of_onnx(runner: Runner, kind: str, count: int) -> None:
    assert f"Models: {count}\n\tTotal test cases: {count}\n\t\tSucceeded: {count}\n" in runner(
        ONNX / kind, "--strict").stdout


@pytest.mark.slow
@pytest.mark.parametrize("kind, count", [("pytorch-converted", 82), ("light", 9)])
def test_more_stored_cases_of_onnx(runner: Runner, kind: str, count: int) -> None:
    assert f"Total test cases: {count}\n\t\tSucceeded: {count}\n" in runner(ONNX / kind, "--strict").stdout


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["node", "node_expanded", "simple"])
def test_cases_of_onnx_as_folders(runner: Runner, kind: str) -> None:
    """All that the package makes, but the random draws, which are skipped by name."""
    from benchmarks.cases import cases

    found = cases([kind])
    for each in found:
        folder = Path(kind, each.name)
        folder.mkdir(parents=True)
        (folder / "model.onnx").write_bytes(each.model.SerializeToString())
        declared = test_data.signature(folder / "model.onnx")
        for i, (feed, (_, wanted)) in enumerate(zip(each.feeds(), each.data, strict=True)):
            answers = dict(zip(declared.outputs, wanted, strict=True))
            test_data.write(folder / f"test_data_set_{i}", feed, answers,
                            {**declared.inputs, **declared.outputs})
    data = json.loads(runner(kind, "--json").stdout)
    assert {"test_" + row["name"] for row in data["skipped"]} == {c.name for c in found if c.random}
    assert data["succeeded"] == data["test_cases"] == sum(len(c.data) for c in found if not c.random)


@pytest.mark.slow
@needs("models")
def test_trained_models_as_folders(runner: Runner) -> None:
    """Each with the inputs and answers it came with, and the tolerance those were given with."""
    count = 0
    for meta in sorted(MODELS.glob("*/meta.json")):
        rules = json.loads(meta.read_text())
        model = meta.with_name("model.onnx")
        if not model.exists():
            continue
        folder = Path("trained", meta.parent.name)
        folder.mkdir(parents=True)
        (folder / "model.onnx").symlink_to(model.resolve())
        declared = test_data.signature(model)
        for i, each in enumerate(rules["cases"]):
            arrays = np.load(meta.with_name(each["file"]))
            sides = [{k.removeprefix(mark): arrays[k] for k in arrays.files if k.startswith(mark)}
                     for mark in ("in:", "out:")]
            test_data.write(folder / f"test_data_set_{i}", *sides, {**declared.inputs, **declared.outputs})
            count += 1
        given = [rule for each in rules["cases"] for rule in each["tolerance"].values()]
        (folder / "config.txt").write_text("".join(
            f"{key}:{max((rule.get(name, 0) for rule in given), default=0)}\n" for key, name in (
                ("per_sample_tolerance", "atol"), ("relative_per_sample_tolerance", "rtol"))))
    assert f"Total test cases: {count}\n\t\tSucceeded: {count}\n" in runner("trained", "--strict").stdout


def test_a_symbolic_link_names_the_folder_it_is_in(runner: Runner) -> None:
    folder = case("real")
    Path("tests/test_link").mkdir()
    Path("tests/test_link/model.onnx").symlink_to((folder / "model.onnx").resolve())
    test_data.write(Path("tests/test_link/test_data_set_0"), {"a": A, "b": B}, {"c": A + B})
    assert [c.name for c in find_cases([Path("tests")])] == ["real", "link"]
