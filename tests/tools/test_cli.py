"""The `orthrus` command: what it prints, what it writes, and how it ends."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import graphs
import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

from orthrus import knobs
from orthrus.demo import MODEL
from orthrus.tools.cli.main import app

Command = Callable[..., Any]


@pytest.fixture
def orthrus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Run a command line in a folder of its own; `ok=False` expects it to fail with exit code 1 and no
    traceback."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")

    def invoke(*args: object, ok: bool = True) -> str:
        found = CliRunner().invoke(app, [str(a) for a in args])
        assert found.exit_code == (0 if ok else 1), found.output
        assert "Traceback" not in found.output and found.output.count("\n") <= 25 or ok
        return found.output
    return invoke


def saved(model: onnx.ModelProto, name: str = "model.onnx") -> Path:
    onnx.save(model, name)
    return Path(name)


def test_run_generates_what_is_not_given(orthrus: Command) -> None:
    text = orthrus("run", MODEL, "--shape", "image=3,1,8,8")
    assert "tensor(float)" in text and "[3, 1, 8, 8]" in text
    assert "label" in text and "tensor(int64)" in text and "[3, 10]" in text


def test_run_is_the_same_for_the_same_seed(orthrus: Command) -> None:
    def values(seed: int) -> Any:
        return json.loads(orthrus("run", MODEL, "--seed", seed, "--json"))["outputs"]

    assert values(1) == values(1) != values(2)


def test_run_takes_npy_npz_and_pb(orthrus: Command) -> None:
    model = saved(graphs.add())
    a, b = np.arange(6, dtype=np.float32).reshape(2, 3), np.full((2, 3), 10, np.float32)
    np.save("a.npy", a)
    Path("b.pb").write_bytes(numpy_helper.from_array(b, "b").SerializeToString())
    np.savez("both.npz", a=a, b=b)
    for given in (["-i", "a=a.npy", "-i", "b=b.pb"], ["-i", "a=a.npy", "-i", "b.pb"], ["-i", "both.npz"]):
        orthrus("run", model, *given, "--save", "out.npz", "--output-dir", "out")
        np.testing.assert_array_equal(np.load("out.npz")["c"], a + b)
        np.testing.assert_array_equal(np.load("out/c.npy"), a + b)


def test_run_selects_repeats_and_times(orthrus: Command) -> None:
    found = json.loads(orthrus("run", MODEL, "--output", "label", "--repeat", 5, "--json"))
    assert [row["name"] for row in found["outputs"]] == ["label"]
    assert len(found["run_seconds"]) == 5 and found["generated"] == {"image": [1, 1, 8, 8]}
    assert "5 more: median" in orthrus("run", MODEL, "--repeat", 5)


def test_types_without_a_numpy_type_go_through_files(orthrus: Command) -> None:
    info = graphs.info
    kinds = {"half": TensorProto.BFLOAT16, "small": TensorProto.FLOAT8E4M3FN}
    nodes = [helper.make_node("Identity", [n], [f"{n}_out"]) for n in kinds]
    saved(graphs.model(nodes, [info(n, k) for n, k in kinds.items()],
                       [info(f"{n}_out", k) for n, k in kinds.items()]))
    half = np.arange(6).reshape(2, 3).astype(ml_dtypes.bfloat16)
    np.save("half.npy", half)
    orthrus("run", "model.onnx", "-i", "half=half.npy", "--save", "out.npz")
    np.testing.assert_array_equal(np.load("out.npz")["half_out"].view(ml_dtypes.bfloat16), half)


def test_texts_and_sequences(orthrus: Command) -> None:
    text = graphs.info("s", TensorProto.STRING, ["N"])
    split = graphs.info("t", TensorProto.STRING, ["N"])
    saved(graphs.model([helper.make_node("StringConcat", ["s", "s"], ["t"])], [text], [split]))
    np.save("s.npy", np.array(["ab", "ç"]))
    assert "abab, çç" in orthrus("run", "model.onnx", "-i", "s.npy", "--save", "out.npz")
    assert np.load("out.npz")["t"].tolist() == ["abab", "çç"]

    kind = helper.make_tensor_sequence_value_info("parts", TensorProto.FLOAT, None)
    saved(graphs.model([helper.make_node("SplitToSequence", ["x"], ["parts"], axis=0)], ["x"], [kind]))
    orthrus("run", "model.onnx", "--save", "out.npz")
    assert np.load("out.npz").files == ["parts.0", "parts.1"]


def test_info(orthrus: Command) -> None:
    text = orthrus("info", MODEL)
    for expected in ("image", "[N, 1, 8, 8]", "Conv", "9,931", "train_digits.py", "ai.onnx 17", "accuracy"):
        assert expected in text
    found = json.loads(orthrus("info", MODEL, "--json"))
    assert found["operators"]["Conv"] == 2 and found["parameters"] == 9931
    assert found["opsets"] == {"ai.onnx": 17}
    assert found["inputs"] == [["image", "tensor(float)", ["N", 1, 8, 8]]]


def test_explain(orthrus: Command) -> None:
    text = orthrus("explain", MODEL)
    assert "CPUExecutionProvider" in text and "partition" in text
    found = json.loads(orthrus("explain", MODEL, "--level", "disable", "--json"))
    assert {n["op_type"] for n in found["nodes"]} >= {"Conv", "Relu", "Gemm"}
    assert found["providers"] == {"CPUExecutionProvider": len(found["nodes"])}
    assert "conv1" in orthrus("explain", MODEL, "--nodes", "--level", "disable")


def test_providers(orthrus: Command) -> None:
    assert "use_arena" in orthrus("providers")
    found = {f["name"]: f for f in json.loads(orthrus("providers", "--json"))}
    assert found["CPUExecutionProvider"]["works"] and "use_arena" in found["CPUExecutionProvider"]["options"]


def test_provider_by_short_name_with_an_option(orthrus: Command) -> None:
    orthrus("run", MODEL, "--provider", "cpu", "--option", "use_arena=0")
    orthrus("run", MODEL, "-p", "null", "-p", "CPU", "-o", "cpu:use_arena=0")
    assert "has no option 'fast'" in orthrus("run", MODEL, "-p", "null", "-o", "fast=1", ok=False)
    assert "KEY=VALUE" in orthrus("run", MODEL, "--option", "use_arena", ok=False)
    assert "NullExecutionProvider" in orthrus("run", MODEL, "--provider", "cudda", ok=False)


def test_import_registers_operators(orthrus: Command) -> None:
    Path("wave_operators.py").write_text("import orthrus\n\n@orthrus.op('my.tests::Wave', version=1)\n"
                                         "def Wave(x):\n    return x + 1\n")
    node = helper.make_node("Wave", ["x"], ["y"], domain="my.tests")
    saved(graphs.model([node], ["x"], ["y"], domains={"my.tests": 1}))
    assert "y" in orthrus("run", "model.onnx", "--import", "wave_operators")


def test_demo(orthrus: Command) -> None:
    text = orthrus("demo", "--count", 3)
    assert "█" in text and "held-out digits right" in text and "µs" in text and "CPUExecutionProvider" in text
    assert json.loads(orthrus("demo", "--json"))["accuracy"] >= 0.97


@pytest.mark.parametrize("args, expected", [
    (["run", "missing.onnx"], "NoSuchFile: Load model"),
    (["run", "junk.onnx"], "InvalidProtobuf: "),
    (["run", "."], "Protobuf parsing failed"),
    (["info", "junk.onnx"], "InvalidProtobuf: "),
    (["explain", "missing.onnx"], "NoSuchFile: Load model"),
    (["run", MODEL, "--input", "picture=x.npy"], "inputs are image"),
    (["run", MODEL, "--input", "image=x.npy"], "no such file"),
    (["run", MODEL, "--input", "image=x.jpg"], ".npz"),
    (["run", MODEL, "--input", "image=junk.npy"], "no readable numpy file"),
    (["run", MODEL, "--input", "image=objects.npy"], "no readable numpy file"),
    (["run", MODEL, "--input", "image=junk.pb"], "no ONNX TensorProto"),
    (["run", MODEL, "--input", "image=wrong.npy"], "Invalid rank for input"),
    (["run", MODEL, "--input", "other.npz"], "no input"),
    (["run", MODEL, "--shape", "image=1,2"], "does not fit"),
    (["run", MODEL, "--shape", "image=a"], "expected NAME="),
    (["run", MODEL, "--shape", "picture=1"], "no input"),
    (["run", MODEL, "--output", "nothing"], "Invalid output name"),
    (["run", MODEL, "--level", "most"], "expected one of"),
    (["run", MODEL, "--import", "no_such_module_here"], "no_such_module_here"),
])
def test_what_is_wrong_is_said_on_one_screen(args: list[object], expected: str, orthrus: Command) -> None:
    Path("junk.onnx").write_bytes(b"this is no model")
    Path("junk.npy").write_bytes(b"this is no array")
    Path("junk.pb").write_bytes(b"\xff\xff\xff")
    np.save("objects.npy", np.array([{}], object), allow_pickle=True)
    np.save("wrong.npy", np.zeros((2, 3), np.float32))
    np.savez("other.npz", nothing=np.zeros(1))
    assert expected in " ".join(orthrus(*args, ok=False).split())


def test_brackets_in_names_are_no_markup(orthrus: Command) -> None:
    node = helper.make_node("Relu", ["[red]x[/red]"], ["[/]y"], name="[bold]n")
    saved(graphs.model([node], [graphs.info("[red]x[/red]")], [graphs.info("[/]y")]))
    assert "[red]x[/red]" in orthrus("run", "model.onnx", "--output-dir", "out")
    assert "[/]y" in orthrus("info", "model.onnx")
    assert [p.suffix for p in Path("out").iterdir()] == [".npy"]


def test_the_command_line_itself() -> None:
    def call(*args: str) -> Any:
        return subprocess.run([sys.executable, "-c", "from orthrus.tools.cli.main import main; main()",
                               *args], capture_output=True, text=True)

    assert call("--version").stdout.startswith("orthrus ")
    assert call("run").returncode == 2
    failed = call("run", "missing.onnx")
    assert failed.returncode == 1 and not failed.stdout and "NoSuchFile: Load model" in failed.stderr
    assert "Traceback" not in failed.stderr
    assert "classify" in call("--help").stdout.lower()


def test_an_error_with_generated_inputs_says_how_to_give_them(tmp_path: Path) -> None:
    nodes = [helper.make_node("Reshape", ["x", "s"], ["y"])]
    made = graphs.model(nodes, [graphs.info("x", shape=["N", "M"])],
                        [graphs.info("y", shape=[7, 3])], {"s": np.array([7, 3])})
    onnx.save(made, tmp_path / "m.onnx")
    done = CliRunner().invoke(app, ["run", str(tmp_path / "m.onnx")])
    assert done.exit_code == 1 and "--shape NAME=1,2,3" in done.output
    assert CliRunner().invoke(app, ["run", str(tmp_path / "m.onnx"), "--shape", "x=7,3"]).exit_code == 0


def test_help_flows(orthrus: Command) -> None:
    """A paragraph is one line until the terminal breaks it, and the list of commands has a sentence each."""
    listed = orthrus("--help")
    assert "what the passes did, and what each stage took." in orthrus("explain", "--help")
    assert "counts as not implemented" not in listed and "as onnx_test_runner does" in listed


def test_help_has_a_short_name(orthrus: Command) -> None:
    assert orthrus("-h") == orthrus("--help") and orthrus("run", "-h") == orthrus("run", "--help")


def test_the_module_is_the_command() -> None:
    made = subprocess.run([sys.executable, "-m", "orthrus", "--version"], capture_output=True, text=True,
                          check=True)
    assert made.stdout.startswith("orthrus ")


def test_defaults_are_written_as_they_are_given(orthrus: Command) -> None:
    text = orthrus("providers")
    assert "Options of CPUExecutionProvider" in text
    assert "frozenset" not in text and "False" not in text and "None" not in text


def test_cache_is_listed_warmed_and_cleared(orthrus: Command, tmp_path: Path) -> None:
    import orthrus as ort
    from orthrus.run.kept import Kept

    with knobs.setting(CACHE_DIR=str(tmp_path / "cache"), CACHE=1, CACHE_SESSIONS=64):
        x = graphs.info("x", shape=[4, 64])
        weights = {"w": np.ones((64, 3), np.float32)}
        nodes = [helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("Relu", ["a"], ["y"])]
        onnx.save(graphs.model(nodes, [x], [graphs.info("y", shape=[4, 3])], weights), tmp_path / "m.onnx")
        assert json.loads(orthrus("cache", "list", "--json"))["kinds"] == []
        orthrus("cache", "warm", tmp_path / "m.onnx")
        found = {kind["what"]: kind for kind in json.loads(orthrus("cache", "list", "--json"))["kinds"]}
        assert set(found) == {"kernels", "sessions"} and all(kind["bytes"] for kind in found.values())
        for providers in (None, ["CPUExecutionProvider"]):
            session = ort.InferenceSession(str(tmp_path / "m.onnx"), providers=providers)
            assert isinstance(session._sess._engine, Kept)
        assert int(orthrus("cache", "size")) == sum(kind["bytes"] for kind in found.values())
        assert "removed" in orthrus("cache", "clear")
        assert json.loads(orthrus("cache", "list", "--json"))["bytes"] == 0
        for wrong in (["warm"], ["list", "m.onnx"], ["forget"]):
            assert CliRunner().invoke(app, ["cache", *wrong]).exit_code == 2


@pytest.mark.parametrize("encoding", ["ascii", "cp1252"])
def test_a_terminal_that_lacks_characters(encoding: str, orthrus: Command) -> None:
    """As for a file on Windows, or in a container without a locale."""
    name = "größe_日本_😀"
    x, y = (graphs.info(each, shape=[name, 3]) for each in ("x", name))
    path = saved(graphs.model([helper.make_node("Relu", ["x"], [name], name=name)], [x], [y]))
    runner = CliRunner(charset=encoding)

    def told(*args: object) -> str:
        found = runner.invoke(app, list(map(str, args)))
        assert found.exit_code == 0, found.exception
        return found.stdout_bytes.decode(encoding)
    for command in (["demo", "--count", 2], ["--help"], ["run", "--help"], ["info", path], ["run", path],
                    ["explain", path, "--nodes"]):
        assert told(*command)
    assert "\\U0001f600" in told("info", path)
    assert json.loads(told("info", path, "--json")) == json.loads(orthrus("info", path, "--json"))
    found = runner.invoke(app, ["info", f"{name}.onnx"])
    assert found.exit_code == 1 and "\\U0001f600.onnx" in found.stderr_bytes.decode(encoding)
