"""The tools that feed, measure, compare and profile a BERT, on one small enough to be written down."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper, parser

import orthrus as ort
from orthrus.errors import InvalidArgument
from orthrus.tools.testrunner import data
from orthrus.transformers import benchmark_helper as helper
from orthrus.transformers import bert_perf_test as perf
from orthrus.transformers import bert_test_data, compare_bert_results, metrics, past_helper, profiler
from orthrus.transformers import profile_result_processor as tables

TEXT = """<ir_version: 8, opset_import: ["" : 17]>
g (int64[b, s] input_ids, int64[b, s] token_type_ids, int64[b, s] attention_mask)
    => (float[b, s, 4] hidden, float[b, 4] pooled) {
  x = Gather (words, input_ids)
  t = Gather (kinds, token_type_ids)
  sum = Add (x, t)
  m = Cast <to = 1> (attention_mask)
  m3 = Unsqueeze (m, last)
  kept = Mul (sum, m3)
  y = MatMul (kept, w)
  hidden = Tanh (y)
  pooled = ReduceMean <axes = [1], keepdims = 0> (hidden)
}"""
ROWS = 50


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    made, rng = parser.parse_model(TEXT), np.random.default_rng(0)
    for name, array in (("words", rng.normal(size=(ROWS, 4))), ("kinds", rng.normal(size=(2, 4))),
                        ("w", rng.normal(size=(4, 4)))):
        made.graph.initializer.append(numpy_helper.from_array(array.astype(np.float32), name))
    made.graph.initializer.append(numpy_helper.from_array(np.array([2]), "last"))
    path = tmp_path_factory.mktemp("bert") / "bert.onnx"
    onnx.save(made, path)
    return str(path)


def run(monkeypatch: pytest.MonkeyPatch, tool: Any, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", ["tool", *arguments])
    tool.main()


def test_inputs_are_drawn_as_onnxruntime_draws_them() -> None:
    theirs = pytest.importorskip("onnxruntime.transformers.bert_test_data")
    value = onnx.helper.make_tensor_value_info
    for kind in (1, 6, 7):
        ids, segments = (value(name, kind, ["b", "s"]) for name in ("ids", "segments"))
        for mask_type in (1, 2, 3):
            mask = value("mask", kind, ["b"] if mask_type == 1 else ["b", "s"])
            for average, drawn in ((8, False), (5, True), (2, True), (1, True), (8, True)):
                given = (3, 8, 4, 7, False, ids, segments, mask, average, drawn, mask_type)
                for ours, other in zip(bert_test_data.generate_test_data(*given),
                                       theirs.generate_test_data(*given), strict=True):
                    assert list(ours) == list(other)
                    for name, array in ours.items():
                        np.testing.assert_array_equal(array, other[name])
                        if name != "mask" or kind != 1:
                            assert array.dtype == other[name].dtype


def test_a_folder_holds_inputs_and_what_the_model_makes_of_them(model: str, tmp_path: Path,
                                                               monkeypatch: pytest.MonkeyPatch) -> None:
    run(monkeypatch, bert_test_data, "--model", model, "--output_dir", str(tmp_path), "--samples", "2",
        "--batch_size", "3", "--sequence_length", "6", "-a", "4", "-r")
    session = ort.InferenceSession(model)
    for i in range(2):
        found = data.read(data.DataFolder(tmp_path / f"test_data_set_{i}"), data.signature(Path(model)))
        assert list(found.inputs) == ["input_ids", "token_type_ids", "attention_mask"]
        assert found.inputs["input_ids"].max() < ROWS, "tokens are of the model's vocabulary"
        for ours, kept in zip(session.run(None, found.inputs), found.outputs.values(), strict=True):
            np.testing.assert_array_equal(ours, kept)


@pytest.mark.parametrize(("names", "found"), [
    (["a", "b", "c"], None), (["ids"], None), (["ids", "mask", "token_type"], ["ids", "token_type", "mask"]),
    (["my_mask", "segment_ids", "x"], ["x", "segment_ids", "my_mask"]), (["mask", "mask2", "ids"], None)])
def test_three_inputs_are_told_by_their_names(names: list[str], found: list[str] | None) -> None:
    values = [onnx.helper.make_tensor_value_info(name, 7, ["b", "s"]) for name in names]
    made = onnx.helper.make_model(onnx.helper.make_graph([], "g", values, []))
    if found is None:
        with pytest.raises(ValueError, match="inputs"):
            bert_test_data.find_bert_inputs(made)
    else:
        assert [each.name for each in bert_test_data.find_bert_inputs(made)] == found


def test_a_measurement_has_onnxruntimes_columns(model: str, monkeypatch: pytest.MonkeyPatch,
                                               tmp_path: Path) -> None:
    copy = tmp_path / "bert.onnx"
    copy.write_bytes(Path(model).read_bytes())

    def here(*given: Any) -> None:
        perf.run_one_test(*given)

    monkeypatch.setattr(perf, "launch_test", here)
    run(monkeypatch, perf, "--model", str(copy), "-b", "2", "1", "-s", "4", "--samples", "2", "-t", "3",
        "-n", "1", "--use_io_binding")
    table, = tmp_path.glob("perf_results_CPU_B1-2_S4_*.txt")
    rows = list(csv.DictReader(table.open(encoding="utf-8"), delimiter="\t"))
    assert list(rows[0]) == [
        "Latency(ms)", "Latency_P50", "Latency_P75", "Latency_P90", "Latency_P95", "Latency_P99",
        "Throughput(QPS)", "model", "graph_optimization_level", "intra_op_num_threads", "batch_size",
        "sequence_length", "test_cases", "test_times", "use_gpu", "use_io_binding",
        "average_sequence_length", "random_sequence_length"]
    assert sorted(row["batch_size"] for row in rows) == ["1", "2"]
    assert all(row["graph_optimization_level"] == "ENABLE_ALL" for row in rows)


def test_a_measurement_in_a_process_of_its_own(model: str) -> None:
    code = ("if __name__ == '__main__':\n"
            "    import sys; from orthrus.transformers import bert_perf_test as t\n"
            f"    sys.argv = ['t', '--model', {model!r}, '-b', '1', '-s', '4', '--samples', '1', '-t', '2', "
            "'-n', '1']; t.main()")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0 and "Average latency" in done.stdout, done.stderr


def test_outputs_with_io_binding_are_those_without(model: str) -> None:
    session = perf.create_session(model, False, None, 1)
    feeds = [{name: np.full((2, 3), number) for name in ("input_ids", "token_type_ids", "attention_mask")}
             for number in (0, 1)]
    names = [each.name for each in session.get_outputs()]
    plain, _ = perf.onnxruntime_inference(session, feeds, names)
    setting = perf.TestSetting(2, 3, 2, 1, False, True, "", 1, 3, False, 2, 3, False)
    bound, times = perf.onnxruntime_inference_with_io_binding(session, feeds, names, setting)
    assert len(times) == 2
    for first, second in zip(plain, bound, strict=True):
        for x, y in zip(first, second, strict=True):
            np.testing.assert_array_equal(x, y)


def test_models_are_compared(model: str, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    shared = (str(tmp_path / "data"), 2, 4, False, 3, 5, False, 1e-3, 1e-4, None, None, None, 2)
    most, passed = compare_bert_results.run_test(model, model, *shared)
    assert most < 1e-5 and passed is True and "100% passed" in capsys.readouterr().out
    assert sorted(path.name for path in (tmp_path / "data").iterdir()) == [
        f"test_data_set_{i}" for i in range(3)]
    other = onnx.load(model)
    weights = numpy_helper.to_array(other.graph.initializer[2]) + 1
    other.graph.initializer[2].CopyFrom(numpy_helper.from_array(weights, "w"))
    onnx.save(other, tmp_path / "other.onnx")
    most, passed = compare_bert_results.run_test(model, str(tmp_path / "other.onnx"), *shared)
    assert most > 0.1 and passed is False and "3 out of 3 results NOT passed" in capsys.readouterr().out


@pytest.mark.parametrize("gaps", [(0.0,), (0.0, 0.0), (5e-4, 2e-4), (0.0, 1.0), (1.0, 0.0), (2.0, 1.0, 0.0)])
def test_a_comparison_says_whether_it_passed(gaps: tuple[float, ...]) -> None:
    first, second = ([[np.full(3, gap)] for gap in row] for row in (np.zeros(len(gaps)), gaps))
    most, passed = compare_bert_results.compare(first, second, False)
    assert most == pytest.approx(max(gaps)) and passed is (max(gaps) < 1e-3)


def test_numbers_that_are_none_on_one_side_are_no_match() -> None:
    for x, y in (([1.0, np.nan], [1.0, 2.0]), ([np.nan], [np.nan])):
        assert compare_bert_results.compare([[np.array(x)]], [[np.array(y)]], False)[0] == np.inf
    with pytest.raises(InvalidArgument, match="differ in shape"):
        compare_bert_results.compare([[np.zeros(2)]], [[np.zeros((2, 1))]], False)


EVENTS = [{"cat": "Node", "dur": dur, "ts": 0, "ph": "X", "name": name, "args": args} for name, dur, args in [
    ("A_fence_before", 1, {"op_name": "Add"}),
    ("A_kernel_time", 10, {"op_name": "Add", "provider": "CPUExecutionProvider"}),
    ("A_fence_after", 2, {"op_name": "Add"}),
    ("B_kernel_time", 30, {"op_name": "MatMul", "provider": "CUDAExecutionProvider"}),
    ("A_kernel_time", 20, {"op_name": "Add", "provider": "CPUExecutionProvider"}),
    ("C_kernel_time", 1, {"op_name": "Sub", "provider": "CPUExecutionProvider"})]]


def test_tables_of_a_profile_are_onnxruntimes(model: str, tmp_path: Path,
                                             monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = pytest.importorskip("onnxruntime.transformers.profile_result_processor")
    monkeypatch.chdir(tmp_path)
    feeds = profiler.create_bert_inputs(onnx.load(model), 2, 4, 3)
    file = profiler.run_profile(model, False, None, False, 1, feeds)
    recorded = json.loads(Path(file).read_text(encoding="utf-8"))
    for events in (EVENTS, recorded):
        assert tables.group_node_results(events) == theirs.group_node_results(events)
        for only, least in ((False, 0), (True, 0.1)):
            assert (tables.parse_node_results(events, only, least)
                    == theirs.parse_node_results(events, only, least))
    args = tables.parse_arguments(["-i", file])
    assert any(line.endswith("\tMatMul") for line in tables.process_results(file, args))


def test_inputs_by_declared_shapes() -> None:
    value = onnx.helper.make_tensor_value_info
    values = [value("input_ids", 7, ["batch_size", "seq_len"]),
              value("global_mask", 7, ["batch_size", "sequence_length"]),
              value("past_0", 1, [2, "batch_size", 4, "past_seq_len", 8]),
              value("k", 6, []), value("flags", 9, ["b", 3, "s"])]
    made = onnx.helper.make_model(onnx.helper.make_graph([], "g", values[:1] + values[2:4], []))
    feed, = profiler.create_gpt2_inputs(made, 2, 3, 5, 1)
    assert {name: (array.shape, array.dtype.name) for name, array in feed.items()} == {
        "input_ids": ((2, 3), "int64"), "past_0": ((2, 2, 4, 5, 8), "float32"), "k": ((), "int32")}
    made = onnx.helper.make_model(onnx.helper.make_graph([], "g", values[:2], []))
    feed, = profiler.create_longformer_inputs(made, 2, 4, 1, 1)
    assert feed["global_mask"].tolist() == [[1, 0, 0, 0]] * 2
    made = onnx.helper.make_model(onnx.helper.make_graph([], "g", values[4:], []))
    assert profiler.create_dummy_inputs(made, 2, 5, 1)[0]["flags"].shape == (2, 3, 5)
    with pytest.raises(InvalidArgument, match="symbol is not supported: b"):
        profiler.create_gpt2_inputs(made, 2, 3, 5, 1)


def test_tables_of_results(tmp_path: Path) -> None:
    row = {**dict.fromkeys(helper._DETAILS, "x"), "batch_size": 1, "sequence_length": 8,
           **helper.get_latency_result([0.01, 0.02, 0.03], 4)}
    assert (row["average_latency_ms"], row["QPS"], row["latency_variance"]) == ("20.00", "200.00", "0.07")
    args = type("Args", (), {"batch_sizes": [1, 2], "sequence_lengths": [8]})
    helper.output_summary([row, {**row, "batch_size": 2}], str(tmp_path / "s.csv"), args)
    line, = csv.DictReader((tmp_path / "s.csv").open())
    assert (line["b1_s8"], line["b2_s8"]) == ("20.00", "20.00")
    record = metrics.BenchmarkRecord("m", "fp32", "orthrus", "cpu", "orthrus", "1", batch_size=4)
    record.metrics.customized["kept"] = 1
    metrics.BenchmarkRecord.save_as_csv(str(tmp_path / "r.csv"), [record])
    metrics.BenchmarkRecord.save_as_json(str(tmp_path / "r.json"), [record])
    line, = csv.DictReader((tmp_path / "r.csv").open())
    assert [line[name] for name in ("config.model_info.full_name", "config.batch_size", "metrics.kept")
            ] == ["m", "4", "1"]
    assert json.loads((tmp_path / "r.json").read_text())[0]["config"]["precision"] == "fp32"
    assert not [path for path in tmp_path.iterdir() if path.suffix == ".part"]


def test_memory_is_what_a_function_takes() -> None:
    kept = []
    grown = helper.measure_memory(False, lambda: kept.append(np.ones(8 << 20)))
    assert grown is not None and grown > 50
    with pytest.raises(InvalidArgument, match="GPU"):
        helper.measure_memory(True, lambda: None)


def test_past_is_named_and_grouped_as_onnxruntime_does() -> None:
    names = past_helper.PastKeyValuesHelper
    flat = names.get_past_names(2)
    assert flat == [f"past_{part}_{kind}_{layer}" for kind in ("self", "cross") for layer in (0, 1)
                    for part in ("key", "value")]
    layers = names.back_group_by_layer(flat)
    assert layers[1] == ("past_key_self_1", "past_value_self_1", "past_key_cross_1", "past_value_cross_1")
    assert names.group_by_self_and_cross(layers, concat=True) == flat
    assert names.get_input_names(flat) == names.get_past_names(2, present=True)
    with pytest.raises(ValueError, match="four"):
        names.group_by_layer(flat[:7], 2)


def test_this_machine_is_told_without_other_packages() -> None:
    from orthrus.transformers import machine_info

    found = json.loads(machine_info.get_machine_info())
    assert set(found) == {"gpu", "cpu", "memory", "os", "python", "packages", "onnxruntime", "pytorch",
                          "tensorflow"}
    assert found["cpu"]["logical_cores"] >= found["cpu"]["cores"] >= 1
    assert any(each.startswith("numpy==") for each in found["packages"])
    assert set(json.loads(machine_info.get_device_info())) == {"gpu", "cpu", "memory"}
