"""What a new user meets: a model never seen before, and each tool without more than its path."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import graphs
import numpy as np
import onnx
import pytest
from commands import invoking
from onnx import TensorProto, helper

import orthrus as ort
from orthrus.tools.cli.main import app
from orthrus.tools.view.data import collect

Command = Callable[..., Any]


@pytest.fixture
def orthrus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """Run a command line in a folder of its own; answers click's result."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    return invoking(app)


def saved(model: onnx.ModelProto, name: str = "model.onnx") -> Path:
    onnx.save(model, name)
    return Path(name)


def encoder(kind: str, columns: int, joined: bool, seed: int) -> onnx.ModelProto:
    """Columns of categories as skl2onnx encodes them: each with categories of its own, which alone are
    taken; the columns joined from inputs of their own, or all in one input."""
    rng = np.random.default_rng(seed)
    elem = TensorProto.STRING if kind == "strings" else TensorProto.INT64
    pool = rng.permutation(500)[:3 * columns].reshape(columns, 3)
    names = [f"c{i}" for i in range(columns)] if joined else ["table"]
    nodes = [helper.make_node("Concat", names, ["table"], axis=1)] if joined else []
    constants = []
    for i in range(columns):
        cats = [f"word{n}" for n in pool[i]] if kind == "strings" else [int(n) for n in pool[i]]
        constants.append(helper.make_tensor(f"at{i}", TensorProto.INT64, [1], [i]))
        nodes += [helper.make_node("ArrayFeatureExtractor", ["table", f"at{i}"], [f"e{i}"],
                                   domain="ai.onnx.ml"),
                  helper.make_node("OneHotEncoder", [f"e{i}"], [f"h{i}"], domain="ai.onnx.ml", zeros=0,
                                   **{"cats_strings" if kind == "strings" else "cats_int64s": cats})]
    nodes.append(helper.make_node("Concat", [f"h{i}" for i in range(columns)], ["y"], axis=1))
    inputs = [helper.make_tensor_value_info(n, elem, ["rows", 1 if joined else columns]) for n in names]
    graph = helper.make_graph(nodes, "g", inputs, [
        helper.make_tensor_value_info("y", TensorProto.FLOAT, None)], constants)
    return helper.make_model(graph, ir_version=8, opset_imports=[
        helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)])


@pytest.mark.parametrize("kind", ["strings", "numbers"])
@pytest.mark.parametrize("joined", [True, False])
@pytest.mark.parametrize("columns", [1, 2, 5])
def test_generated_inputs_are_categories_that_the_model_knows(
        orthrus: Command, kind: str, joined: bool, columns: int) -> None:
    model = saved(encoder(kind, columns, joined, columns))
    for seed in range(3):
        assert "error" not in orthrus("run", model, "--seed", seed).output.lower()
    orthrus("profile", model)
    orthrus("compare", model)


def test_perf_test_generates_inputs_where_there_are_none_and_takes_known_texts(orthrus: Command) -> None:
    found = orthrus("perf-test", saved(encoder("strings", 3, True, 0)), "-r", 2)
    assert "inputs are generated, as with -I" in found.stderr and "Runs:2" in found.stdout


def test_perf_test_says_how_long_it_takes(orthrus: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    from orthrus.tools.perf import run

    monkeypatch.setattr(run.Bench, "block", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    assert "600 s: -t SECONDS or -r RUNS" in orthrus("perf-test", saved(graphs.add()), code=130).stderr


def open_model(*dims: Any) -> onnx.ModelProto:
    graph = helper.make_graph([helper.make_node("Tanh", ["x"], ["y"])], "g", [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, list(dims))], [
        helper.make_tensor_value_info("y", TensorProto.FLOAT, list(dims))])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_compile_names_the_sizes_that_are_open_and_what_it_says_works(orthrus: Command) -> None:
    told = orthrus("compile", saved(open_model("batch", 3, "width")), code=1).output
    flags = re.search(r"sizes to batch, width: ((--dim \w+=1 ?)+);", told)
    assert flags is not None
    assert "1 of 1 nodes compiled" in orthrus("compile", "model.onnx", *flags[1].split()).stdout


def test_compile_says_what_to_do_with_dimensions_without_names(orthrus: Command) -> None:
    told = orthrus("compile", saved(open_model(None, 3)), code=1).output
    assert "make_dynamic_shape_fixed --input_name x --input_shape" in told


def test_compile_says_why_control_flow_stays(orthrus: Command) -> None:
    value = helper.make_tensor_value_info
    nodes = [helper.make_node("Add", ["held", "x"], ["more"]), helper.make_node("Identity", ["go"], ["on"])]
    body = helper.make_graph(
        nodes, "body",
        [value("turn", TensorProto.INT64, []), value("go", TensorProto.BOOL, []),
         value("held", TensorProto.FLOAT, [2])],
        [value("on", TensorProto.BOOL, []), value("more", TensorProto.FLOAT, [2])])
    graph = helper.make_graph([helper.make_node("Loop", ["n", "", "x"], ["y"], "again", body=body)], "g",
                              [value("x", TensorProto.FLOAT, [2]), value("n", TensorProto.INT64, [])],
                              [value("y", TensorProto.FLOAT, [2])])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    told = orthrus("compile", saved(model), code=1).output
    assert re.search(r"again \(Loop-16\): control flow stays in a model.*--emit library", told, re.DOTALL)


def test_run_tells_the_declared_type_of_what_is_no_tensor(orthrus: Command) -> None:
    nodes = [helper.make_node("ZipMap", ["x"], ["y"], domain="ai.onnx.ml", classlabels_int64s=[3, 4])]
    kind = helper.make_sequence_type_proto(helper.make_map_type_proto(
        TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, [])))
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2])],
                              [helper.make_value_info("y", kind)])
    model = saved(helper.make_model(graph, ir_version=8, opset_imports=[
        helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]))
    (row,) = json.loads(orthrus("run", model, "--json").stdout)["outputs"]
    declared = ort.InferenceSession(str(model)).get_outputs()[0].type
    assert row["type"] == declared == "seq(map(int64,tensor(float)))"


@pytest.mark.slow
def test_plan_capacity_takes_the_model_where_all_tools_take_it(orthrus: Command) -> None:
    model, given = saved(graphs.add()), ["--rate", 5, "--p99", "5s", "--cores", 1, "--seconds", 0.01]
    assert "1 machine" in orthrus("plan-capacity", model, *given).stdout
    told = orthrus("plan-capacity", model, "--service", "1=1ms", *given, code=1).output
    assert "either MODEL" in told


def test_the_model_of_a_path_with_dots_has_its_folders_name(orthrus: Command, tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    saved(graphs.add())
    told = orthrus("test-runner", "inner/../model.onnx").output
    assert f"Skip test case:: {tmp_path.name.removeprefix('test_')} there is no test data" in told


def test_check_provider_says_what_it_does_where_nobody_watches(
        orthrus: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    from orthrus.tools.cli import display

    monkeypatch.setattr(display, "PATIENCE", 0.0)
    found = orthrus("check-provider", "cpu", "--check", "signatures", "--check", "probe", "--operator", "Add")
    assert re.findall(r"check (\d) of 2: (\w+)", found.stderr) == [("1", "signatures"), ("2", "probe")]
    assert "check 1 of" not in found.stdout


def quantized_layers(layers: int, seed: int) -> onnx.ModelProto:
    """Layers whose weights are dequantized where the names of their nodes are no scopes; scopes interleave,
    as layers read each other at random."""
    rng, nodes, made = np.random.default_rng(seed), [], ["x"]
    for i in range(12):
        nodes.append(helper.make_node("DequantizeLinear", [f"q{i}", "scale"], [f"w{i}"],
                                      name=f"layer.w{i}_Deq"))
    for i in rng.permutation(6 * layers):
        at = f"/layer.{i % layers}/n{i}"
        nodes.append(helper.make_node(
            "Sum", [made[-1], made[rng.integers(len(made))], f"w{rng.integers(12)}"], [at + "_out"], name=at))
        made.append(at + "_out")
    constants = {f"q{i}": np.full(3, i, np.uint8) for i in range(12)}
    return graphs.model(nodes, ["x"], [made[-1]], {**constants, "scale": np.float32(0.5)})


@pytest.mark.parametrize("seed", range(4))
def test_weights_that_are_prepared_stand_with_their_first_reader_and_no_edge_is_lost(seed: int) -> None:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    it = ort.InferenceSession(quantized_layers(5, seed).SerializeToString(), options)
    graph, data = it._sess._engine.graph, collect(it, "")
    reads = {(v.node.label if v.node else v.name, n.label) for n in graph.nodes for v in n.inputs
             if v is not None and v.const is None}
    found = {(data.nodes[a].name, data.nodes[b].name) for a, b, _ in data.edges}
    assert reads <= found
    group = {n.name: n.group for n in data.nodes}
    for node in graph.nodes:
        if node.op_type == "DequantizeLinear" and node.outputs[0] is not None and node.outputs[0].uses:
            first = min(node.outputs[0].uses, key=graph.nodes.index)
            assert group[node.label] == group[first.label]
