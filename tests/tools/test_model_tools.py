"""The small tools: functions and the command lines that documentation elsewhere shows."""

from __future__ import annotations

import json
import pathlib
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from symbolic_cases import floats, made, shapes, tensor

import orthrus as ort
from orthrus.demo import MODEL
from orthrus.tools import (
    make_dynamic_shape_fixed,
    offline_tuning,
    onnx_model_utils,
    onnx_randomizer,
    onnxruntime_test,
    optimize_onnx_model,
    pytorch_export_helpers,
    remove_initializer_from_input,
    update_onnx_opset,
)

NODE = helper.make_node


@pytest.fixture
def digits(tmp_path: pathlib.Path) -> pathlib.Path:
    file = tmp_path / "digits.onnx"
    file.write_bytes(pathlib.Path(MODEL).read_bytes())
    return file


def nested() -> onnx.ModelProto:
    """An If whose branches read a value of the graph around them; n in both."""
    branches = {k: helper.make_graph([NODE(op, ["r"], [k], name=k)], k, [], [floats(k, "n", 2)])
                for k, op in (("then_branch", "Neg"), ("else_branch", "Abs"))}
    return made([NODE("Relu", ["x"], ["r"], name="relu"), NODE("If", ["c"], ["y"], name="if", **branches),
                 NODE("Add", ["y", "w"], ["z"], name="add")],
                [floats("x", "n", 2), helper.make_tensor_value_info("c", TensorProto.BOOL, [])], ["z"],
                {"w": np.ones(2, np.float32)})


# fixed shapes

def test_a_named_dimension_gets_a_size_everywhere(digits: pathlib.Path, tmp_path: pathlib.Path) -> None:
    target = tmp_path / "fixed.onnx"
    assert make_dynamic_shape_fixed.main(["--dim_param", "N", "--dim_value", "3", str(digits),
                                          str(target)]) == 0
    found = shapes(onnx.load(target))
    assert found["image"] == [3, 1, 8, 8] and found["label"] == [3]
    assert ort.InferenceSession(target).get_outputs()[0].shape[0] == 3


def test_an_input_gets_a_shape(digits: pathlib.Path, tmp_path: pathlib.Path) -> None:
    target = tmp_path / "fixed.onnx"
    assert make_dynamic_shape_fixed.main(
        ["--input_name", "image", "--input_shape", "5,1,8,8", str(digits), str(target)]) == 0
    assert shapes(onnx.load(target))["probability"] == [5, 10]


def test_output_shapes_follow_through_shape_arithmetic() -> None:
    model = made([NODE("Shape", ["x"], ["s"]), NODE("ReduceProd", ["s"], ["p"], keepdims=1),
                  NODE("Reshape", ["x", "p"], ["y"])], [floats("x", "n", "m")], ["y"])
    onnx_model_utils.make_input_shape_fixed(model.graph, "x", [3, 4])
    onnx_model_utils.fix_output_shapes(model)
    assert shapes(model) == {"x": [3, 4], "y": [12]}


@pytest.mark.parametrize("args", [
    [], ["--dim_param", "N"], ["--dim_param", "N", "--dim_value", "0"], ["--input_name", "image"],
    ["--dim_param", "N", "--dim_value", "1", "--input_name", "image"],
    ["--input_name", "image", "--input_shape", "0,1,8,8"]])
def test_half_a_request_is_refused(args: list[str], digits: pathlib.Path, tmp_path: pathlib.Path) -> None:
    with pytest.raises(SystemExit) as left:
        make_dynamic_shape_fixed.main([*args, str(digits), str(tmp_path / "out.onnx")])
    assert left.value.code == 2
    assert not (tmp_path / "out.onnx").exists()


@pytest.mark.parametrize(("name", "shape", "why"), [
    ("x", [3], "Rank mismatch. Existing:2 Replacement:1"), ("x", [3, 5],
                                                            "fixed size of 2 with 5 for dimension 2"),
    ("nobody", [1], "nobody was not found in graph inputs. Valid input names are: x,c")])
def test_a_shape_that_does_not_fit_is_refused(name: str, shape: list[int], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        onnx_model_utils.make_input_shape_fixed(nested().graph, name, shape)


def test_a_file_that_is_not_there_is_one_line(tmp_path: pathlib.Path,
                                              capsys: pytest.CaptureFixture[str]) -> None:
    assert make_dynamic_shape_fixed.main(["--dim_param", "N", "--dim_value", "3", str(tmp_path / "no.onnx"),
                                          str(tmp_path / "out.onnx")]) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_names_in_bodies_are_fixed_too() -> None:
    model = nested()
    onnx_model_utils.make_dim_param_fixed(model.graph, "n", 7)
    sizes: list[Any] = []
    onnx_model_utils.iterate_graph_per_graph_func(
        model.graph, lambda g, to: to.extend(d.dim_value for o in g.output
                                             for d in o.type.tensor_type.shape.dim), to=sizes)
    assert sizes == [7, 2, 7, 2]


def test_sizes_below_one_become_open() -> None:
    model = made([NODE("Relu", ["x"], ["y"])], [floats("x", -1, 0, 3)], ["y"])
    onnx_model_utils.remove_invalid_dim_values(model.graph)
    assert shapes(model)["x"] == [None, None, 3]


# facts about models

def test_every_node_is_visited() -> None:
    seen: list[str] = []
    onnx_model_utils.iterate_graph_per_node_func(nested().graph, lambda n, out: out.append(n.op_type),
                                                 out=seen)
    assert seen == ["Relu", "If", "Abs", "Neg", "Add"]


def test_who_makes_and_who_reads() -> None:
    graph = nested().graph
    relu, branch, add = graph.node
    producers, consumers = onnx_model_utils.get_producer_consumer_maps(graph)
    assert relu in producers[branch] and list(consumers[branch]) == [add]
    assert relu not in producers and add not in consumers
    assert {n.name for n in producers[add]} == {"if"}


def test_a_value_nobody_makes_is_reported() -> None:
    graph = made([NODE("Add", ["x", "ghost"], ["y"])], [floats("x", 1)], ["y"]).graph
    with pytest.raises(ValueError, match="missing inputs of ghost"):
        onnx_model_utils.get_producer_consumer_maps(graph)


def test_fixed_size_tensors() -> None:
    fixed = onnx_model_utils.is_fixed_size_tensor
    assert fixed(floats("x", 1, 2)) and fixed(floats("x"))
    assert not fixed(floats("x", "n", 2)) and not fixed(floats("x", None)) and not fixed(floats("x", 0))
    assert not fixed(helper.make_tensor_sequence_value_info("x", TensorProto.FLOAT, [1]))
    assert not fixed(helper.make_tensor_value_info("x", TensorProto.FLOAT, None))


def test_opsets_and_levels() -> None:
    assert onnx_model_utils.get_opsets_imported(nested()) == {"ai.onnx": 17, "com.microsoft": 1}
    level = onnx_model_utils.get_optimization_level
    assert level("extended") is ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    with pytest.raises(ValueError, match="Invalid optimization level of best"):
        level("best")


def test_a_file_with_its_shapes(digits: pathlib.Path) -> None:
    found = onnx_model_utils.ModelProtoWithShapeInfo(digits).model_with_shape_info
    assert shapes(found)["pooled"] == ["N", 16, 4, 4]


# files to files

def test_a_newer_opset(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, target = tmp_path / "old.onnx", tmp_path / "new.onnx"
    onnx.save(made([NODE("Softmax", ["x"], ["y"], axis=1)], [floats("x", 2, 3)], ["y"], opset=11,
                   opset_imports=[helper.make_opsetid("", 11)]), source)
    assert update_onnx_opset.main(["--opset", "17", str(source), str(target)]) == 0
    assert onnx_model_utils.get_opsets_imported(onnx.load(target)) == {"ai.onnx": 17}
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_allclose(ort.InferenceSession(target).run(None, {"x": x})[0],
                               ort.InferenceSession(source).run(None, {"x": x})[0], rtol=1e-6)
    assert update_onnx_opset.main(["--opset", "1000", str(source), str(target)]) == 1
    assert capsys.readouterr().err


def test_an_optimized_file(tmp_path: pathlib.Path) -> None:
    source, target = tmp_path / "model.onnx", tmp_path / "small.onnx"
    onnx.save(made([NODE("Add", ["a", "b"], ["c"]), NODE("Mul", ["x", "c"], ["d"]), NODE("Identity", ["d"],
                                                                                         ["y"])],
                   [floats("x", 2)], ["y"], {"a": np.float32([1, 2]), "b": np.float32([3, 4])}), source)
    assert optimize_onnx_model.main(["--opt_level", "basic", str(source), str(target)]) == 0
    assert [n.op_type for n in onnx.load(target).graph.node] == ["Mul"]
    np.testing.assert_array_equal(ort.InferenceSession(target).run(None, {"x": np.ones(2, np.float32)})[0],
                                  [4, 6])


def test_weights_are_taken_out_of_the_inputs(tmp_path: pathlib.Path,
                                             capsys: pytest.CaptureFixture[str]) -> None:
    source, target = tmp_path / "model.onnx", tmp_path / "out.onnx"
    model = made([NODE("Add", ["x", "w"], ["y"])], [floats("x", 2), floats("w", 2)], ["y"],
                 {"w": np.float32([1, 2])})
    onnx.save(model, source)
    assert remove_initializer_from_input.main(["--input", str(source), "--output", str(target)]) == 0
    assert [i.name for i in onnx.load(target).graph.input] == ["x"]
    assert not remove_initializer_from_input.remove_initializer_from_input(onnx.load(target))
    model.ir_version = 3
    assert not remove_initializer_from_input.remove_initializer_from_input(model)
    assert len(model.graph.input) == 2 and "below 4" in capsys.readouterr().err


def test_random_weights_keep_shapes_types_and_ranges(digits: pathlib.Path, tmp_path: pathlib.Path) -> None:
    target = tmp_path / "folder" / "random.onnx"
    assert onnx_randomizer.main(["-m", str(digits), "-o", str(target)]) == 0
    changed = 0
    for a, b in zip(onnx.load(digits).graph.initializer, onnx.load(target).graph.initializer, strict=True):
        x, y = numpy_helper.to_array(a), numpy_helper.to_array(b)
        assert a.name == b.name and x.shape == y.shape and x.dtype == y.dtype
        assert y.min() >= x.min() and y.max() <= x.max()
        assert x.size > onnx_randomizer.SIZE_THRESHOLD or np.array_equal(x, y)
        changed += not np.array_equal(x, y)
    assert changed
    ort.InferenceSession(target)


def test_random_weights_of_bodies_and_odd_types() -> None:
    model = nested()
    body = helper.get_attribute_value(model.graph.node[1].attribute[0])
    body.initializer.append(tensor("texts", np.array(["a"] * 20, object)))
    body.initializer.append(tensor("flags", np.arange(20) % 2 == 0))
    onnx_randomizer.graph_iterator(model, lambda g: onnx_randomizer.randomize_graph_initializer(
        g, np.random.default_rng(0)))
    texts, flags = (numpy_helper.to_array(t) for t in body.initializer)
    assert set(texts.tolist()) <= {"a", b"a"} and flags.dtype == bool and 0 < flags.sum() < 20


# tuning results

def entry(ep: str, version: str, **results: Any) -> dict[str, Any]:
    return {"ep": ep, "validators": {"VERSION": version}, "results": results}


def test_tuning_results_are_embedded_taken_out_and_merged(
        digits: pathlib.Path, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second, merged = (tmp_path / f"{name}.json" for name in ("first", "second", "merged"))
    target, out = tmp_path / "tuned.onnx", tmp_path / "out.json"
    first.write_text(json.dumps([entry("CPU", "1", gemm={"NN_1": 3})]))
    second.write_text(json.dumps([entry("CPU", "1", gemm={"NN_1": 9, "NN_2": 4}), entry("CPU", "2",
                                                                                        gemm={})]))
    wanted = [entry("CPU", "1", gemm={"NN_1": 3, "NN_2": 4}), entry("CPU", "2", gemm={})]
    assert offline_tuning.main(["merge", str(merged), str(first), str(second)]) == 0
    assert json.loads(merged.read_text()) == wanted
    assert offline_tuning.main(["embed", str(target), str(digits), str(first), str(second)]) == 0
    assert offline_tuning.main(["extract", str(target), str(out)]) == 0
    assert json.loads(out.read_text()) == wanted
    assert offline_tuning.main(["embed", str(target), str(target), str(first)]) == 1
    assert "--force" in capsys.readouterr().err
    assert offline_tuning.main(["embed", "-f", str(target), str(target), str(first)]) == 0
    assert offline_tuning.main(["pprint", str(target)]) == 0
    assert "NN_1" in capsys.readouterr().out
    assert offline_tuning.main(["extract", str(digits), str(out)]) == 1
    assert "does not have tuning results" in capsys.readouterr().err
    assert ort.InferenceSession(target).get_modelmeta().custom_metadata_map["tuning_results"]


# onnxruntime_test

def test_the_four_lines(digits: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert onnxruntime_test.main([str(digits), "3", "--symbolic_dims", "N=4,M=2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["model", "version", "iterations", "avg latency"]
    assert lines[2] == "iterations: 3" and lines[3].endswith(" ms")


def test_feeds_fit_the_inputs(digits: pathlib.Path) -> None:
    status, feeds, outputs = onnxruntime_test.run_model(digits, 1, symbolic_dims={"N": "4"})
    assert status == 0 and feeds["image"].shape == (4, 1, 8, 8) and len(outputs[0]) == 4
    kinds = ["tensor(float16)", "tensor(uint8)", "tensor(int64)", "tensor(bool)"]
    fake = SimpleNamespace(get_inputs=lambda: [
        SimpleNamespace(name=k, type=k, shape=["n", None, 2]) for k in kinds])
    made_up = onnxruntime_test.generate_feeds(fake, {"n": 3})
    assert {k: (v.shape, v.dtype.name) for k, v in made_up.items()} == {
        k: ((3, 1, 2), k[7:-1]) for k in kinds}


def test_texts_cannot_be_made_up(capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path) -> None:
    file = tmp_path / "texts.onnx"
    onnx.save(made([NODE("Identity", ["x"], ["y"])], [helper.make_tensor_value_info("x", TensorProto.STRING,
                                                                                    [1])],
                   ["y"]), file)
    assert onnxruntime_test.main([str(file), "1"]) == 1
    assert "unsupported input type tensor(string) for input x" in capsys.readouterr().err


def test_a_trace_is_written(digits: pathlib.Path, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path,
                            capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    assert onnxruntime_test.main([str(digits), "1", "--profile"]) == 0
    trace = pathlib.Path(capsys.readouterr().out.splitlines()[-1].removeprefix("trace file written to: "))
    assert json.loads(trace.read_text())


# torch

class Module:
    """What is looked at of a torch module."""

    def forward(self, x: Any, pair: Any, mask: Any = None, *more: Any, scale: Any = None,
                **rest: Any) -> None: ...


def test_inputs_are_named_after_parameters() -> None:
    x = np.zeros(1)
    names, values = pytorch_export_helpers.infer_input_info(Module(), x, [x, {"k": x}], None, x, scale=x,
                                                            extra=x)
    assert names == ["x", "pair_0", "pair_1_k", "more_0", "scale", "extra"]
    assert values[:4] == (x, [x, {"k": x}], None, x) and len(values) == 6
    names, values = pytorch_export_helpers.infer_input_info(Module(), x, x)
    assert names == ["x", "pair"] and values[2] == {}
