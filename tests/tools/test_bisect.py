"""`orthrus bisect`: the pass, the kernel or the definition that changes a result is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import graphs
import numpy as np
import onnx
import planted
import pytest
from benchmarks.zoo import build, feeds
from onnx import helper
from skips import needs

import orthrus as ort
from orthrus import knobs
from orthrus.demo import MODEL
from orthrus.optimize import PASSES, Pass
from orthrus.optimize.rewrite import Work
from orthrus.tools.compare.bisect import bisect
from orthrus.tools.compare.narrow import least

FEEDS = planted.FEEDS
needs_code = needs("generated code")


def outputs(model: onnx.ModelProto, **switches: Any) -> np.ndarray:
    with knobs.setting(**switches):
        return ort.InferenceSession(model.SerializeToString()).run(None, FEEDS)[0]


def test_halving_finds_where_it_turns() -> None:
    for turn in range(1, 20):
        assert least(1, 19, turn.__le__) == turn


def test_nothing_is_found_where_nothing_is_wrong() -> None:
    found = bisect(planted.network(), FEEDS)
    assert found.verdict == "agree" and not found.culprits


def test_a_wrong_pass_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    planted.wrong_pass(monkeypatch)
    model = planted.network()
    expected = outputs(model, SKIP="fuse_wrong_swish")
    found = bisect(model, FEEDS)
    assert found.verdict == "found" and len(found.culprits) == 1
    culprit = found.culprits[0]
    assert (culprit.kind, culprit.name, culprit.nodes) == ("pass", "fuse_wrong_swish", ("gate", "swish"))
    assert any("HardSwish" in text for text in culprit.after) and any("Sigmoid" in t for t in culprit.before)
    assert culprit.enough and culprit.cure == "ORTHRUS_SKIP=fuse_wrong_swish"
    assert culprit.case is not None and culprit.case.nodes == ("gate", "swish")
    assert np.abs(outputs(model) - expected).max() > 1e-3


def test_a_rewrite_among_many_is_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass that changes the graph three times, the second time to another sum."""
    add = _loaded(helper.make_node("Add", ["x", "x"], ["y"])).nodes[0].op

    def fuse_sums(work: Work) -> int:
        done = 0
        for node in work.graph.nodes:
            if node.op_type == "Sub" and not node.name.endswith("/seen") and work.take():
                if node.name == "second":
                    node.op_type, node.op = "Add", add
                node.name += "/seen"
                done += 1
        return done
    monkeypatch.setattr("orthrus.optimize.PASSES", (Pass(1, fuse_sums, -1), *PASSES))
    nodes = [helper.make_node("Sub", ["x", "k"], ["a"], name="first"),
             helper.make_node("Sub", ["a", "k"], ["b"], name="second"),
             helper.make_node("Sub", ["b", "k"], ["y"], name="third")]
    model = graphs.model(nodes, ["x"], ["y"], {"k": np.float32([0.5])})
    found = bisect(model, {"x": np.ones((2, 3), np.float32)})
    assert found.verdict == "found"
    culprit = found.culprits[0]
    assert (culprit.kind, culprit.name) == ("pass", "fuse_sums") and culprit.nodes == ("second",)
    assert culprit.enough


def _loaded(node: onnx.NodeProto) -> Any:
    from orthrus.load import load

    return load(graphs.model([node], ["x"], ["y"]).SerializeToString())


@needs_code
@pytest.mark.parametrize("plant, nodes, kernel", [
    (planted.wrong_softmax, ("softmax",), "softmax_rows"),
    (planted.wrong_when_fused, ("gemm1", "relu1"), "gemm")])
def test_a_wrong_kernel_is_named(plant: Any, nodes: tuple[str, ...], kernel: str,
                                 monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    model = planted.network()
    expected = outputs(model)
    plant(monkeypatch)
    found = bisect(model, FEEDS, save=tmp_path)
    assert found.verdict == "found" and [c.kind for c in found.culprits] == ["kernel"]
    culprit = found.culprits[0]
    assert culprit.nodes == nodes and kernel in culprit.name and culprit.enough
    assert culprit.cure == f"ORTHRUS_INTERPRET={nodes[-1]}"
    assert np.abs(outputs(model) - expected).max() > 1e-3
    np.testing.assert_allclose(outputs(model, INTERPRET=nodes[-1]), expected, 1e-4, 1e-6)
    assert (tmp_path / "model.onnx").is_file() and (tmp_path / "test_data_set_0" / "output_0.pb").is_file()


def test_a_wrong_kernel_of_a_provider_is_named() -> None:
    with planted.wrong_provider() as name:
        found = bisect(planted.network(), FEEDS, candidate=name)
    culprit = found.culprits[0]
    assert (culprit.kind, culprit.nodes, culprit.enough) == ("kernel", ("gate",), True)


@needs_code
def test_several_culprits_are_named_one_after_the_other(monkeypatch: pytest.MonkeyPatch,
                                                        tmp_path: Path) -> None:
    planted.wrong_softmax(monkeypatch)
    planted.wrong_pass(monkeypatch)
    found = bisect(planted.network(), FEEDS, save=tmp_path)
    assert {(c.kind, c.nodes) for c in found.culprits} == {("kernel", ("softmax",)),
                                                          ("pass", ("gate", "swish"))}
    assert [c.enough for c in found.culprits] == [False, True]
    assert (tmp_path / "model.onnx").is_file() and (tmp_path / "2" / "model.onnx").is_file()


@needs_code
def test_nodes_with_the_same_fault_come_together(monkeypatch: pytest.MonkeyPatch) -> None:
    planted.wrong_softmax(monkeypatch)
    nodes = [helper.make_node("Softmax", [f"v{i}"], [f"v{i + 1}"], name=f"s,{i}") for i in range(3)]
    model = graphs.model(nodes, [graphs.info("v0", shape=(2, 300))], [graphs.info("v3", shape=(2, 300))])
    found = bisect(model, seed=1)
    assert len(found.culprits) == 1 and found.culprits[0].enough
    assert {*found.culprits[0].nodes, *found.culprits[0].others} == {"s,0", "s,1", "s,2"}


def test_a_definition_that_differs_from_onnxruntime_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    assert bisect(planted.network(), FEEDS, against="onnxruntime").verdict == "agree"
    from orthrus.ops import find

    op = find("", "Softmax", 17)
    assert op is not None
    monkeypatch.setattr(op, "body", lambda x, *, axis=-1: np.log1p(x * x))
    with knobs.setting(CODEGEN=0):
        found = bisect(planted.network(), FEEDS, against="onnxruntime")
    assert [(c.kind, c.name, c.nodes) for c in found.culprits] == [("definition", "Softmax", ("softmax",))]


@pytest.fixture
def orthrus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    return planted.commands(tmp_path, monkeypatch)


def test_the_command(orthrus: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert "nothing to look for" in orthrus("bisect", MODEL)
    planted.wrong_pass(monkeypatch)
    onnx.save(planted.network(), "network.onnx")
    text = orthrus("bisect", "network.onnx", "--shape", "x=4,16", "--save", "case", code=1)
    assert "The pass fuse_wrong_swish changes the result, with rewrite 1 of 1" in text
    assert "HardSwish" in text and "leave it out with ORTHRUS_SKIP=fuse_wrong_swish, and both agree" in text
    assert Path("case/model.onnx").is_file()
    found = json.loads(orthrus("bisect", "network.onnx", "--json", code=1))
    assert found["culprits"][0]["name"] == "fuse_wrong_swish" and found["outputs"][0]["output"] == "y"
    assert "nothing to look for" in orthrus("bisect", "network.onnx", "--level", "disable")
    assert "no provider is called" in orthrus("bisect", "network.onnx", "--provider", "gpu", code=1)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mobilenetv2", "bilstm_tagger",
                                  pytest.param("resnet50_int8", marks=pytest.mark.thorough)])
def test_no_false_alarm_on_benchmark_models(name: str, tmp_path: Path) -> None:
    path = tmp_path / f"{name}.onnx"
    onnx.save(build(name), path)
    assert bisect(path, feeds(name)).verdict in ("agree", "amplified")
    path.unlink()
