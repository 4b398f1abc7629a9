"""`orthrus perf-test`: command lines, lines of output, result files, statistics, comparisons."""

from __future__ import annotations

import importlib.util
import json
import math
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import graphs
import numpy as np
import onnx
import pytest
import typer
from commands import invoking
from onnx import TensorProto, helper, numpy_helper

import orthrus as ort
from orthrus.api.config import INERT
from orthrus.demo import MODEL
from orthrus.tools.perf import flags, latency, report, settings, versus
from orthrus.tools.perf.flags import Flags, UsageFault, rewritten
from orthrus.tools.perf.perf_test import PARSER, command
from orthrus.tools.perf.run import Bench, RunBlock, generated
from orthrus.tools.perf.settings import settings_of

SUMMARY = """Session creation time cost: # s
First inference time cost: # ms
Total inference time cost: # s
Total inference requests: 4
Average inference time cost total: # ms
Total inference run time: # s
Number of inferences per second: #\x20
Avg CPU usage: # %
Peak working set size: # bytes
"""
STATISTICS = """Min Latency: # s
Max Latency: # s
P50 Latency: # s
P90 Latency: # s
P95 Latency: # s
P99 Latency: # s
P999 Latency: # s
"""
USAGE = "Avg CPU usage:#\nPeak working set size:#\nRuns:4\n"
HAS_MATPLOTLIB = importlib.util.find_spec("matplotlib") is not None


def shown(text: str) -> str:
    """Every measured number as `#`; counts stay."""
    kept = ("Total inference requests", "Runs:", "iteration:", "Setting", "setting", "  1.", "  2.", "using")
    return "".join(line if line.startswith(kept) else
                   re.sub(r"(?<![A-Za-z\d])\d+(\.\d+)?(e-?\d+)?", "#", line)
                   for line in text.splitlines(keepends=True))


@pytest.fixture
def perf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Run the command in a folder of its own with digits.onnx in it; answers click's result."""
    folder = tmp_path / "test_digits"
    folder.mkdir()
    monkeypatch.chdir(folder)
    shutil.copy(MODEL, "digits.onnx")
    app = typer.Typer()
    app.command(cls=PARSER)(command)

    return invoking(app)


def test_output_is_what_scripts_read(perf: Any) -> None:
    assert shown(perf("digits.onnx", "-I", "-r", 4).stdout) == SUMMARY + USAGE + STATISTICS


def test_documented_command_lines(perf: Any) -> None:
    """Those that SpaceMIT's documentation gives, with the CPU provider."""
    found = perf("digits.onnx", "-e", "cpu", "-r", 4, "-x", 1, "-S", 1, "-s", "-c", 1, "-i",
                 "SPACEMIT_EP_INTRA_THREAD_NUM|4", "-I")
    assert shown(found.stdout) == "Setting intra_op_num_threads to 1\n" + SUMMARY + USAGE + STATISTICS
    found = perf("digits.onnx", "-x", 2, "-r", 4, "-e", "cpu", "-p", "yolo", "-I")
    assert shown(found.stdout).startswith("Setting intra_op_num_threads to 2\n" + SUMMARY)
    assert len(list(Path().glob("yolo_*.json"))) == 1


def test_another_provider_is_named_with_its_options(perf: Any) -> None:
    found = perf("digits.onnx", "-e", "null", "-r", 4, "-I", "-y", 2, "-P")
    assert found.stdout.startswith("using NullExecutionProvider\nSetting inter_op_num_threads to 2\n")
    assert "nodes: 10 on NullExecutionProvider" in found.stderr


def test_result_file_gets_rows_and_statistics(perf: Any) -> None:
    for statistics in ([], ["-s"]):
        found = perf("digits.onnx", "rows.csv", "-I", "-r", 4, *statistics)
        assert shown(found.stdout) == SUMMARY + (STATISTICS if statistics else "")
    lines = Path("rows.csv").read_text().splitlines(keepends=True)
    assert shown("".join(lines[8:])) == "\n" + STATISTICS
    for i, line in enumerate(lines[:8]):
        name, seconds, peak, cpu, run = line.strip().split(",")
        assert (name, int(run)) == ("digits", i % 4)
        assert 0 < float(seconds) < 10 and int(peak) > 1 << 20 and 0 <= int(cpu) <= 100


def test_result_file_that_cannot_be_opened(perf: Any) -> None:
    found = perf("digits.onnx", "nowhere/rows.csv", "-I", "-r", 4)
    assert found.stderr == "failed to open result file 'nowhere/rows.csv'. will dump stats to output.\n"
    assert shown(found.stdout) == SUMMARY + USAGE + STATISTICS


@pytest.mark.parametrize("form", [["-x", "3"], ["-x=3"], ["--x", "3"], ["--x=3"], ["-x3"], ["-Ix3"]])
def test_forms_of_a_flag_with_a_value(perf: Any, form: list[str]) -> None:
    assert perf("digits.onnx", *form, "-I", "-n").stdout.startswith("Setting intra_op_num_threads to 3\n")


@pytest.mark.parametrize(("form", "on"), [
    (["-s"], True), (["--s"], True), (["--s=true"], True), (["-s=1"], True), (["--nos"], False),
    (["-nos"], False), (["--s=false"], False), (["-s", "--nos"], False), (["--nos", "-s"], True),
    (["-s", "-s=0"], False), (["-sI"], True)])
def test_forms_of_a_switch(perf: Any, form: list[str], on: bool) -> None:
    assert ("P50" in perf("digits.onnx", "rows.csv", "-I", "-r", 2, *form).stdout) is on


def test_rewriting_leaves_alone_what_is_no_flag() -> None:
    names = {"x": ("-x", False), "s": ("-s", True), "opt_data": ("--opt_data", False)}
    words = ["model-x.onnx", "-", "--opt-data=a=b", "-x", "-1", "--unknown=3", "--", "-s", "--x=1"]
    assert list(rewritten(words, names)) == [
        "model-x.onnx", "-", "--opt_data", "a=b", "-x", "-1", "--unknown=3", "--", "-s", "--x=1"]
    with pytest.raises(UsageFault, match="-s=maybe: 'maybe' is neither true nor false"):
        list(rewritten(["-s=maybe"], names))


@pytest.mark.parametrize(("args", "told"), [
    ([], "no model is given"),
    (["digits.onnx", "-r", "0"], "greater than or equal to 1|not in the range"),
    (["digits.onnx", "-m", "both"], "-m both: expected duration or times"),
    (["digits.onnx", "-t", "0"], "expected more than no time"),
    (["digits.onnx", "-e", "quantum"], "-e quantum: no such provider; there are .*cpu"),
    (["digits.onnx", "-i", "use_arena"], "'use_arena' is not KEY|VALUE"),
    (["digits.onnx", "-f", "N:0"], "-f N:0: expected NAME:VALUE with a value above 0"),
    (["digits.onnx", "--data_shape", "image"], "--data_shape image: expected NAME:"),
    (["digits.onnx", "--data_shape", "a:[1][2] b:[1]"], "2 for a, 1 for b"),
    (["digits.onnx", "--nothing"], "No such option: --nothing"),
    (["digits.onnx", "-r"], "requires an argument"),
    (["digits.onnx", "--select_ep_devices", "9"], "expected indices below"),
    (["digits.onnx", "a", "b"], "unexpected extra argument"),
    (["digits.onnx", "--vs", "null", "-p", "x"], "--vs goes neither with -p")])
def test_command_lines_that_cannot_be_meant(perf: Any, args: list[str], told: str) -> None:
    found = perf(*args, code=255)
    assert re.search(told, found.stderr) and found.stderr.splitlines()[-1].startswith("See '")
    assert found.stdout == ""


@pytest.mark.parametrize(("args", "told"), [
    (["nowhere.onnx", "-I", "-r", "1"], r"Run failed:\[ONNXRuntimeError\] : 3 : NO_SUCHFILE"),
    (["digits.onnx", "-I", "-e", "dml"], "Run failed:provider dml is not registered here; there are .*cpu"),
    (["digits.onnx", "-I", "-X"], "Run failed:-X: onnxruntime-extensions is compiled"),
    (["digits.onnx", "-I", "-R", "ops.so"], r"Run failed:\[ONNXRuntimeError\] : 1 : FAIL"),
    (["digits.onnx", "-I", "--plugin_ep_libs", "a|b.so"], "Run failed:.*Failed to load library b.so"),
    (["digits.onnx", "-I", "-T", "1;2", "-x", "2"], "affinities: 2, thread_pool_size: 2"),
    (["digits.onnx", "--data_shape", "image:[1,1,9,8]"], "does not fit the declared"),
    (["digits.onnx", "--data_shape", "picture:[1]"], "the model has no input picture; its inputs are image"),
    (["digits.onnx", "-I", "--vs", "no_engine"], "neither a provider .* pip install no_engine;"),
    (["digits.onnx", "-I", "--import", "no_module"], "No module named 'no_module'"),
    (["digits.onnx", "-I", "--plugin_eps", "Foo"], "no device of Foo fits; there are .*CPU")])
def test_what_fails_is_said_and_ends_with_255(perf: Any, args: list[str], told: str) -> None:
    assert re.search(told, perf(*args, code=255).stderr)


def test_every_documented_flag_is_there() -> None:
    """All flags of onnxruntime_perf_test, by name."""
    documented = [*"mrteiCxycPoupsvISfFAMTDZzdqgRXln",
                  "opt_data", "opt_weight_min_size", "opt_save_prepacks", "data_shape",
                  "shrink_arena_between_runs", "enable_cuda_mempool", "spin_duration_us", "spin_backoff_max",
                  "hold_ms_after_session_creation", "plugin_ep_libs", "plugin_eps", "plugin_ep_options",
                  "list_ep_devices", "select_ep_devices", "filter_ep_devices", "compile_ep_context",
                  "compile_model_path", "compile_binary_embed", "compile_only", "enable_telemetry",
                  "telemetry_smoke_sessions", "plugin_ep_force_cpu_allocator"]
    app = typer.Typer()
    app.command(cls=PARSER)(command)
    names = {name.lstrip("-") for option in typer.main.get_command(app).params for name in option.opts}
    assert set(documented) <= names


def test_flags_that_change_nothing_say_so(perf: Any) -> None:
    given = ["-D", "-Z", "--spin_duration_us", "5", "--spin_backoff_max", "70", "-z", "--opt_save_prepacks",
             "--shrink_arena_between_runs", "cpu:0", "-d", "1", "-q", "--enable_cuda_mempool", "1;1",
             "--plugin_ep_force_cpu_allocator", "--enable_telemetry", "--telemetry_smoke_sessions", "2"]
    lines = perf("digits.onnx", "-I", "-r", 1, *given).stderr.splitlines()
    told = {line.split()[0] for line in lines if "no effect" in line}
    assert told == {flag for flag in given if flag.startswith("-")}
    assert perf("digits.onnx", "-I", "-r", 1).stderr == ""


def test_a_note_goes_when_the_key_begins_to_act(monkeypatch: pytest.MonkeyPatch) -> None:
    key = "session.intra_op.allow_spinning"
    assert any(note.startswith("-D") for note in settings.notes(Flags(no_spin=True)))
    monkeypatch.setattr("orthrus.api.config.INERT", tuple(k for k in INERT if k != key))
    assert not any(note.startswith("-D") for note in settings.notes(Flags(no_spin=True)))


@pytest.mark.parametrize(("flags", "budget"), [
    ({}, (None, 600.0)), ({"repeat": 7}, (7, None)), ({"mode": "times"}, (1000, None)),
    ({"seconds": 3.0}, (None, 3.0)), ({"repeat": 7, "seconds": 3.0}, (None, 3.0)),
    ({"mode": "duration", "repeat": 7}, (7, None)), ({"mode": "times", "seconds": 3.0}, (None, 3.0)),
    ({"versus": "null"}, (None, settings.VERSUS_SECONDS)), ({"versus": "null", "repeat": 7}, (7, None))])
def test_modes(flags: dict[str, Any], budget: tuple[Any, Any]) -> None:
    made = settings_of(Flags(model="m.onnx", **flags))
    assert (made.runs, made.seconds) == budget


def test_settings_reach_the_session(perf: Any) -> None:
    made = settings_of(Flags(
        model="digits.onnx", level=7, no_arena=True, no_pattern=True, intra=2, inter=3, parallel=True,
        config="session.log_id|x optimization.disable_specified_optimizers|fold_constants",
        by_name=["N:4 K:2"], generate=True, repeat=1, options="use_arena|0", denormals=True, in_memory=True))
    bench = Bench(made)
    bench.feed()
    options = bench.session.get_session_options()
    assert options.graph_optimization_level == ort.GraphOptimizationLevel.ORT_ENABLE_ALL
    assert (options.intra_op_num_threads, options.inter_op_num_threads) == (2, 3)
    assert options.execution_mode == ort.ExecutionMode.ORT_PARALLEL
    assert not options.enable_cpu_mem_arena and not options.enable_mem_pattern
    assert options.get_session_config_entry("session.log_id") == "x"
    assert options.get_session_config_entry("session.set_denormal_as_zero") == "1"
    assert bench.session.get_provider_options()["CPUExecutionProvider"] == {"use_arena": "0"}
    assert bench.feeds[0]["image"].shape == (4, 1, 8, 8)
    assert bench.remarks == ["-f K has no effect: no input has a dimension of that name; there are N"]


def test_generated_inputs() -> None:
    kinds = {"f": TensorProto.FLOAT, "i": TensorProto.INT8, "u": TensorProto.UINT8, "d": TensorProto.DOUBLE,
             "n": TensorProto.INT64, "s": TensorProto.STRING, "b": TensorProto.BFLOAT16}
    nodes = [helper.make_node("Identity", [name], [f"{name}_"]) for name in kinds]
    session = ort.InferenceSession(graphs.model(
        nodes, [helper.make_tensor_value_info(n, k, [500, "N", "M"]) for n, k in kinds.items()],
        [helper.make_tensor_value_info(f"{n}_", k, None) for n, k in kinds.items()]))
    zero, none = generated(session.get_inputs(), {}, {"N": 2}, -1)
    assert none == [] and {v.shape for v in zero.values()} == {(500, 2, 1)}
    assert not any(np.any(zero[n] != ("" if n == "s" else 0)) for n in kinds)
    made, plain = generated(session.get_inputs(), {"f": (500, 7, 1)}, {}, 3)
    assert plain == ["d", "n", "s", "b"] and not any(np.any(made[n]) for n in "dnb")
    assert made["f"].shape == (500, 7, 1) and made["f"].dtype == np.float32
    assert 0 <= made["f"].min() < 0.2 and 4.8 < made["f"].max() < 5
    for name, most in (("i", 127), ("u", 255)):
        assert made[name].min() >= 0 and most * 0.95 < made[name].max() <= most
    again, _ = generated(session.get_inputs(), {"f": (500, 7, 1)}, {}, 3)
    np.testing.assert_array_equal(made["f"], again["f"])
    session.run(None, made)


def test_inputs_that_are_no_tensors_are_refused() -> None:
    info = helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, None)
    out = helper.make_tensor_value_info("n", TensorProto.INT64, [])
    model = graphs.model([helper.make_node("SequenceLength", ["s"], ["n"])], [info], [out])
    with pytest.raises(ValueError, match="input s is a seq.*test_data_set_0/input_N.pb"):
        generated(ort.InferenceSession(model).get_inputs(), {}, {}, -1)


def test_a_dimension_that_cannot_be_1(perf: Any) -> None:
    """Another size is found; where there is none, the hint says how to give one."""
    info = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, "H", 8])
    out = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    node = helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[3, 3])
    onnx.save(graphs.model([node], [info], [out]), "pool.onnx")
    found = perf("pool.onnx", "-I", "-r", 1).stderr
    assert "sizes found by trying: H = 224; the model refuses H = 1" in found
    perf("pool.onnx", "-I", "-r", 1, "-f", "H:8")
    nodes = [helper.make_node("MatMul", ["x", "v"], ["p"]), helper.make_node("MatMul", ["x", "w"], ["q"]),
             helper.make_node("Add", ["p", "q"], ["y"])]
    weights = {"v": np.ones((3, 8), np.float32), "w": np.ones((5, 8), np.float32)}
    onnx.save(graphs.model(nodes, [graphs.info("x", shape=["N", "F"])], [out], weights), "rows.onnx")
    told = "inputs were generated with 1 for open dimensions: x [1, 1]; set others with -f NAME:VALUE"
    for more in ([], ["--vs", "cpu"]):
        assert told in perf("rows.onnx", "-I", "-r", 1, *more, code=255).stderr


def test_data_sets_are_run(perf: Any) -> None:
    """Two folders of test data with different batch sizes: both are taken."""
    for i, batch in enumerate((2, 5)):
        folder = Path(f"test_data_set_{i}")
        folder.mkdir()
        array = np.full((batch, 1, 8, 8), i, np.float32)
        (folder / "input_0.pb").write_bytes(numpy_helper.from_array(array, "image").SerializeToString())
    perf("digits.onnx", "-r", 4)
    bench = Bench(settings_of(Flags(model="digits.onnx", repeat=30)))
    bench.feed()
    shapes: list[int] = []
    run = bench.session.run
    bench.session.run = lambda names, feed: shapes.append(len(feed["image"])) or run(names, feed)
    block = bench.block(30, None)
    assert len(block.times) == len(shapes) == 30 and set(shapes) == {2, 5}
    assert not block.groups


def test_shape_groups_take_turns(perf: Any) -> None:
    found = perf("digits.onnx", "-r", 5, "--data_shape", "image:[1,1,8,8][3,1,8,8]", "--json")
    data = json.loads(found.stdout)
    assert [g["shapes"] for g in data["groups"]] == ["image : [1,1,8,8]", "image : [3,1,8,8]"]
    assert [g["latency"]["runs"] for g in data["groups"]] == [3, 2]
    assert len(data["first_inference_seconds"]) == 2
    text = shown(perf("digits.onnx", "-r", 1, "--data_shape", "image:[1,1,8,8][3,1,8,8]").stdout)
    assert text.endswith("Latency per shape group:\n  1. image : [1,1,8,8]\n      Median:  # ms\n"
                         "      Average: # ms\n      Min:     # ms\n      Max:     # ms\n"
                         "  2. image : [3,1,8,8]\n      no run\n")


class Clock:
    """A clock that advances by what each run is said to take."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
        self.now, self.seconds = 0.0, seconds
        monkeypatch.setattr("orthrus.tools.perf.run.time.perf_counter", lambda: self.now)

    def run(self, names: Any, feed: Any) -> list[Any]:
        self.now += self.seconds
        return []


def test_duration_ends_when_times_sum_up(perf: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(settings_of(Flags(model="digits.onnx", generate=True)))
    bench.feed()
    clock = Clock(monkeypatch, 0.25)
    bench.session.run = clock.run
    ticks: list[tuple[int, float]] = []
    block = bench.block(None, 2.0, lambda runs, spent: ticks.append((runs, spent)))
    assert list(block.times) == [0.25] * 8 and block.wall == 2.0
    assert ticks[0] == (1, 0.25) and ticks[-1] == (8, 2.0)
    assert list(bench.block(None, 0.1).times) == [0.25]
    assert len(bench.block(3, None).times) == 3


def test_an_interrupt_keeps_what_was_measured(perf: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = iter(range(10))
    real = ort.InferenceSession.run

    def run(self: Any, names: Any, feed: Any) -> Any:
        if next(runs) == 4:
            raise KeyboardInterrupt
        return real(self, names, feed)

    monkeypatch.setattr(ort.InferenceSession, "run", run)
    found = perf("digits.onnx", "-I", "-r", 9, code=130)
    assert "Total inference requests: 3\n" in found.stdout and "interrupted after 3 runs" in found.stderr


def test_concurrent_runs(perf: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exactly so many runs, never more than asked for at once, and more than one."""
    import threading

    made = settings_of(Flags(model="digits.onnx", generate=True, concurrent=3, repeat=30))
    bench = Bench(made)
    bench.feed()
    lock, inside, most = threading.Lock(), [0], [0]
    together = threading.Barrier(3)

    def run(names: Any, feed: Any) -> list[Any]:
        with lock:
            inside[0] += 1
            most[0] = max(most[0], inside[0])
        together.wait(10)
        with lock:
            inside[0] -= 1
        return []

    bench.session.run = run
    assert len(bench.block(30, None).times) == 30 and most[0] == 3
    bench.session.run = lambda names, feed: 1 / 0
    with pytest.raises(ZeroDivisionError):
        bench.block(30, None)


def test_binding(perf: Any) -> None:
    found = perf("digits.onnx", "-I", "-r", 4, "-g")
    average = "Average inference time cost total: # ms\n"
    assert shown(found.stdout).startswith(SUMMARY.replace(
        average, average + "Average inference time cost submission: # ms\n"))


def test_verbose_tells_every_run(perf: Any) -> None:
    lines = perf("digits.onnx", "-I", "-r", 3, "-v").stdout.splitlines()
    told = [line for line in lines if line.startswith("iteration:")]
    assert [line.split(",time_cost:")[0] for line in told] == ["iteration:1", "iteration:2", "iteration:3"]
    assert all(float(line.split(":")[-1]) > 0 for line in told)


def test_only_creating_a_session(perf: Any) -> None:
    found = perf("digits.onnx", "-n", "--hold_ms_after_session_creation", 1)
    assert shown(found.stdout) == SUMMARY.splitlines(keepends=True)[0] + "SESSION_READY\n"


def test_optimized_and_compiled_models(perf: Any) -> None:
    perf("digits.onnx", "-n", "-u", "small.onnx", "--opt_data", "small.bin", "--opt_weight_min_size", 16)
    assert Path("small.bin").stat().st_size > Path("small.onnx").stat().st_size
    perf("digits.onnx", "--compile_ep_context", "--compile_only")
    onnx.checker.check_model("model_ctx.onnx")
    perf("digits.onnx", "--compile_ep_context", "--compile_model_path", "c.onnx", "-I", "-r", 1)
    assert Path("c.onnx").exists()


def test_devices(perf: Any) -> None:
    found = json.loads(perf("--list_ep_devices", "--json").stdout)
    assert [each["name"] for each in found] == [d.ep_name for d in ort.get_ep_devices()]
    assert "===== device id 0 ======\nname: " in perf("--list_ep_devices").stdout
    last = len(found) - 1
    for args in (["--select_ep_devices", last], ["--filter_ep_devices", "version|" + ort.orthrus_version],
                 ["--plugin_eps", "CPUExecutionProvider", "--plugin_ep_options", "use_arena|0"]):
        data = json.loads(perf("digits.onnx", "-I", "-r", 1, "--json", *args).stdout)
        assert "CPUExecutionProvider" in data["providers"]
    assert data["providers"] == {"CPUExecutionProvider": {"use_arena": "0"}}


def test_json_holds_everything(perf: Any) -> None:
    data = json.loads(perf("digits.onnx", "-I", "-r", 4, "--json").stdout)
    assert len(data["times"]) == data["requests"] == data["latency"]["runs"] == 4
    assert data["latency"]["total"] == pytest.approx(sum(data["times"]))
    assert data["latency"]["percentiles"]["P50"] == sorted(data["times"])[2]
    assert data["inferences_per_second"] == pytest.approx(4 / data["run_seconds"])
    assert data["placement"] == {"CPUExecutionProvider": 10} and data["model_name"] == "digits"
    assert data["session_creation_seconds"] > 0 and data["peak_bytes"] > 1 << 20


def test_a_provider_of_ones_own(perf: Any) -> None:
    Path("mine.py").write_text("import orthrus as ort\n"
                               "class Mine(ort.ExecutionProvider):\n    name = 'MineExecutionProvider'\n"
                               "ort.register_execution_provider(Mine)\n")
    try:
        found = perf("digits.onnx", "-I", "-r", 1, "--import", "mine", "-e", "mine")
    finally:
        ort.unregister_execution_provider("MineExecutionProvider")
    assert found.stdout.startswith("using MineExecutionProvider\n")
    assert "nodes: 10 on CPUExecutionProvider" in found.stderr


@pytest.mark.slow
def test_comparison_with_another_provider(perf: Any) -> None:
    """In processes of their own, in turns, with an interval."""
    data = json.loads(perf("digits.onnx", "-I", "-S", 1, "-r", 40, "--vs", "null", "--launches", 2,
                           "--json").stdout)
    versus = data["versus"]
    assert versus["unit"] == "pairs of blocks" and versus["units"] == 8
    assert versus["low"] < versus["ratio"] < versus["high"] and versus["difference"] > 0.5
    for side, provider in (("first", "CPUExecutionProvider"), ("second", "NullExecutionProvider")):
        assert versus[side]["placement"] == {provider: 10} and versus[side]["latency"]["runs"] == 40
        assert [[len(block) for block in launch] for launch in versus[side]["blocks"]] == [[5] * 4] * 2
        assert len(versus[side]["session_creation_seconds"]) == 2
    assert data["times"] == [t for launch in versus["first"]["blocks"] for block in launch for t in block]


def test_comparison_with_another_engine(perf: Any) -> None:
    pytest.importorskip("onnxruntime")
    found = perf("digits.onnx", "-I", "-S", 1, "-r", 8, "--vs", "onnxruntime", "--launches", 1)
    assert shown(found.stdout).startswith(SUMMARY.replace("requests: 4", "requests: 8"))
    assert "orthrus cpu" in found.stdout and "onnxruntime cpu" in found.stdout
    assert re.search(r"4 pairs of blocks\)\noutputs (are the same|differ by [\d.]+e-\d+ of the largest)\n$",
                     found.stdout)


def test_a_side_that_fails_is_named(perf: Any) -> None:
    found = perf("digits.onnx", "-I", "-r", 2, "--vs", "onnxruntime:NoSuchProvider", code=255)
    assert re.search("Run failed:(onnxruntime nosuchprovider: |--vs)", found.stderr)
    assert "numpy has no InferenceSession" in perf("digits.onnx", "-I", "-r", 2, "--vs", "numpy",
                                                   code=255).stderr


def side(engine: str, times: list[list[float]]) -> versus.Side:
    from array import array

    made = settings_of(Flags(model="m.onnx", provider=engine, repeat=1))
    return versus.Side(made, [versus.Opened(creation=1.0, first=[0.5])],
                            [[RunBlock(array("d", block), wall=sum(block)) for block in times]])


@pytest.mark.parametrize(("second", "told"), [
    ([[1.1], [1.1], [1.11]], "orthrus cpu is 1.103 times as fast as orthrus null (ratio 1.103, 95 % "),
    ([[0.5], [0.5], [0.51]], "orthrus null is 1.987 times as fast as orthrus cpu (ratio 0.503, 95 % "),
    ([[0.9], [1.1], [1.01]], "no difference: orthrus null takes 1.000 times as long as orthrus cpu (95 % "),
    ([[1.1]], "orthrus null takes 1.100 times as long as orthrus cpu; 1 pairs of blocks are too few to say")])
def test_verdicts(second: list[list[float]], told: str) -> None:
    first, other = side("cpu", [[1.0]] * len(second)), side("null", second)
    found = versus.Comparison(first, other, latency.paired(first.medians, other.medians), 0.0)
    lines = list(report.verdict(found))
    assert lines[0].startswith(told) and lines[1] == "outputs are the same"


def test_budget_of_a_comparison() -> None:
    made = settings_of(Flags(model="m.onnx", repeat=103))
    shares = versus._shares(made, 5)
    assert sum(runs or 0 for launch in shares for runs, _ in launch) == 103
    assert [len(launch) for launch in shares] == [4] * 5
    assert versus._shares(replace(made, runs=3), 5) == [[(1, None)]] * 3
    shares = versus._shares(replace(made, runs=None, seconds=10.0), 5)
    assert sum(seconds or 0 for launch in shares for _, seconds in launch) == pytest.approx(10)


def test_difference_of_outputs() -> None:
    a = np.array([1.0, -4.0, np.nan, np.inf], np.float32)
    assert versus.difference([a], [a]) == 0
    assert versus.difference([a], [a + np.float32(1)]) == 0.25
    assert versus.difference([a], [np.zeros(4)]) == math.inf
    assert versus.difference([a], [a[:2]]) == math.inf and versus.difference([a], []) == math.inf
    assert versus.difference([["text"]], [["text"]]) is None


def test_percentiles_are_taken_by_index() -> None:
    told = latency.summarize(range(1000, 0, -1))
    assert told.percentiles == {"P50": 501, "P90": 901, "P95": 951, "P99": 991, "P999": 1000}
    assert (told.minimum, told.maximum, told.mean, told.total) == (1, 1000, 500.5, 500500)
    assert latency.summarize([3.0]).percentiles["P999"] == 3
    with pytest.raises(ValueError, match="no run"):
        latency.summarize([])


@pytest.mark.parametrize(("freedom", "quantile"), [
    (1, 12.7062), (2, 4.3027), (3, 3.1824), (4, 2.7764), (5, 2.5706), (9, 2.2622), (99, 1.9842)])
def test_quantiles_of_student(freedom: int, quantile: float) -> None:
    """The table of the textbooks."""
    assert latency.student(freedom, 0.95) == pytest.approx(quantile, rel=2e-3)


@pytest.mark.parametrize(("launches", "spread"), [(5, 0.02), (1, 0.0)])
def test_intervals_hold_the_truth_as_often_as_they_say(launches: int, spread: float) -> None:
    """1,000 made-up comparisons of programs whose launches differ by 2 %, true ratio 1.1."""
    rng = np.random.default_rng(7)
    held = 0
    for _ in range(1000):
        luck = np.exp(rng.normal(0, spread, (2, launches, 1)))
        times = luck * np.exp(rng.normal(0, 0.03, (2, launches, 8)))
        found = latency.paired(times[0].tolist(), (1.1 * times[1]).tolist())
        held += found.low <= 1.1 <= found.high
    assert 930 <= held <= 970


def test_pairs_that_are_none() -> None:
    for first, second in (([], []), ([[1.0]], [[1.0, 2.0]]), ([[1.0]], [[0.0]]), ([[]], [[]])):
        with pytest.raises(ValueError):
            latency.paired(first, second)


@pytest.mark.skipif(not HAS_MATPLOTLIB, reason="could not import 'matplotlib'")
def test_plots(perf: Any) -> None:
    found = perf("digits.onnx", "-I", "-r", 30, "--plot", "times.png")
    assert Path("times.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n" and "plot written" in found.stderr
    from orthrus.tools.perf.plot import plot

    rng = np.random.default_rng(0)
    plot(Path("two.svg"), {"one engine": rng.uniform(1e-6, 1e-3, 500), "another": np.full(3, 2e-6)}, "title")
    text = Path("two.svg").read_text()
    assert "svg" in text and len(text) > 20000
    for name, told in (("times.doc", "a plot's name ends in one of"), ("no/times.png", "there is no folder")):
        assert told in perf("digits.onnx", "-I", "-r", 1, "--plot", name, code=255).stderr


def test_without_matplotlib_nothing_is_run(perf: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    found = perf("digits.onnx", "-I", "-r", 1, "--plot", "times.png", code=255)
    assert "Run failed:" in found.stderr and "pip install 'orthrus-runtime[plot]'" in found.stderr
    assert found.stdout == ""


def test_as_a_module_of_its_own(perf: Any) -> None:
    line = [sys.executable, "-m", "orthrus.tools.perf.perf_test", "digits.onnx", "-I", "-r=4", "-s"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and shown(done.stdout) == SUMMARY + USAGE + STATISTICS, done.stderr
    code = "import sys, orthrus.tools.perf.perf_test; print(*{'numpy', 'matplotlib'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "matplotlib" not in done.stdout


def test_help_is_complete(perf: Any) -> None:
    text = perf("-h").stdout
    assert perf("--help").stdout == text
    for name in (f.metadata[flags.KEY].param_decls for f in flags.fields(Flags)):
        assert not name or name[0] in text
