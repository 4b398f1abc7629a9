"""`session.explain()` and `orthrus explain`: parts, kernels, memory, passes, and why nodes are on numpy."""

from __future__ import annotations

import dataclasses
import gc
import json
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from benchmarks.zoo import build, cases
from commands import invoking
from onnx import TensorProto, helper, numpy_helper
from skips import needs
from typer.testing import CliRunner

import orthrus as ort
from orthrus import knobs
from orthrus.demo import MODEL, samples
from orthrus.ir import No
from orthrus.kernels import short_name
from orthrus.lowering import lower
from orthrus.run.explain import Explanation
from orthrus.tools.cli.explain import joined
from orthrus.tools.cli.main import app

generates = needs("generated code")
F = TensorProto.FLOAT


def model(nodes: list[Any], inputs: dict[str, Any], outputs: dict[str, Any], **constants: Any) -> Any:
    def infos(of: dict[str, Any]) -> list[Any]:
        return [helper.make_tensor_value_info(name, *what) for name, what in of.items()]
    graph = helper.make_graph(nodes, "g", infos(inputs), infos(outputs),
                              [numpy_helper.from_array(v, k) for k, v in constants.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def mixed() -> Any:
    """Two parts around a node on numpy, a view that stays alone, and a branch."""
    return model([helper.make_node("Exp", ["x"], ["e"], name="exp"),
                  helper.make_node("Neg", ["e"], ["n"], name="neg"),
                  helper.make_node("Unique", ["n"], ["u"], name="unique", axis=0),
                  helper.make_node("Tanh", ["u"], ["z"], name="tanh")],
                 {"x": (F, ["N"])}, {"z": (F, ["K"])})


def explained(made: Any, **options: str) -> Explanation:
    source = made if isinstance(made, Path) else made.SerializeToString()
    return ort.InferenceSession(source, providers=[("CPUExecutionProvider", options)]).explain()


@generates
def test_a_part_says_what_is_in_it() -> None:
    part, = explained(MODEL).parts
    assert part.nodes[0] == "scale_pixels" and len(part.nodes) == 10
    assert part.provider == "CPUExecutionProvider"
    plan = part.plan
    assert plan is not None and plan.guessed and not plan.interpreted and plan.seconds > 0
    assert plan.inputs == (("image", "float[1, 1, 8, 8]"),)
    assert sum(use.count for use in part.kernels) == len(plan.steps)
    assert all(step.items > 0 and step.file.startswith(step.kernel + "_") for step in plan.steps)
    assert {node for step in plan.steps for node in step.nodes} | set(plan.known) == set(part.nodes)
    assert any(set(step.nodes) == {"conv1", "relu1"} for step in plan.steps)
    assert not part.numpy and str(part).startswith(f"part cpu 0 ({part.name}): 10 nodes")


@generates
def test_parts_have_short_names_that_tell_them_apart(tmp_path: Path) -> None:
    session = ort.InferenceSession(mixed().SerializeToString())
    report = session.explain()
    names = [part.short for part in report.parts]
    assert len(set(names)) == len(names) == 2 and all(name.startswith("cpu ") for name in names)
    assert {node.node: node.short_part for node in report.nodes} == {
        "exp": names[0], "neg": names[0], "unique": "", "tanh": names[1]}
    assert [part["short"] for part in report.plain()["parts"]] == names
    assert f"in {names[1]}" in str(report) and names[1] in report._repr_html_()
    with session.profile() as profile:
        session.run(None, {"x": np.ones(3, np.float32)})
    assert {row.node: row.short_part for row in profile.nodes}["tanh"] == names[1]
    assert names[0] in str(profile) and names[1] in profile.to_html()
    profile.to_trace(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())
    steps = [each["args"] for each in events if each["cat"] == "Node"]
    told = {step["part"]: step["part_name"] for step in steps if "part" in step}
    assert told == {part.short: part.name for part in report.parts} and len(steps) > len(told)


@pytest.mark.parametrize(("provider", "name", "short"), [
    ("CPUExecutionProvider", "CPUExecutionProvider_CPU_404_12_12", "cpu 12"),
    ("Mine", "Mine_whole_1_0_0", "mine 0"), ("CPUExecutionProvider", "kept", "kept"),
    ("CPUExecutionProvider", "Other_CPU_404_1_1", "Other_CPU_404_1_1"), ("DnnlExecutionProvider", "", "")])
def test_short_names(provider: str, name: str, short: str) -> None:
    assert short_name(provider, name) == short


@generates
def test_places_never_share_bytes_while_they_live() -> None:
    part, = explained(MODEL).parts
    assert part.plan is not None
    assert {"scaled", "r1", "pooled"} <= {p.value for p in part.places}
    for i, a in enumerate(part.places):
        assert a.offset >= 0 and a.offset + a.bytes <= part.plan.arena and a.first <= a.last
        for b in part.places[i + 1:]:
            apart = a.offset + a.bytes <= b.offset or b.offset + b.bytes <= a.offset
            assert apart or a.last < b.first or b.last < a.first, (a, b)


@generates
def test_plans_come_with_the_shapes_that_were_run() -> None:
    session = ort.InferenceSession(MODEL)
    before = session.explain()
    assert len(before.parts[0].plans) == 1
    session.run(None, {"image": samples()[0][:5]})
    assert len(before.parts[0].plans) == 1, "an explanation does not change once it has been asked"
    after, = session.explain().parts
    assert [plan.inputs[0][1] for plan in after.plans] == ["float[1, 1, 8, 8]", "float[5, 1, 8, 8]"]
    assert [plan.guessed for plan in after.plans] == [True, False]
    assert after.plan is after.plans[-1] and after.arena > before.parts[0].arena


@generates
def test_memory_adds_up() -> None:
    report = explained(MODEL)
    weights = sum(numpy_helper.to_array(t).nbytes for t in onnx.load(MODEL).graph.initializer)
    assert report.memory.weights >= 0.9 * weights
    assert report.memory.arena == sum(part.arena for part in report.parts) > 0
    assert report.memory.packed == sum(c.bytes for part in report.parts for c in part.constants
                                       if c.how != "as it is") > 0
    assert {"w3", "conv1"} <= {c.value for part in report.parts for c in part.constants}


def test_the_arena_outside_of_parts() -> None:
    nodes = [helper.make_node("Exp", ["x"], ["e"], name="a"), helper.make_node("Neg", ["e"], ["z"], name="b")]
    made = model(nodes, {"x": (F, [64, 256])}, {"z": (F, [64, 256])})
    session = ort.InferenceSession(made.SerializeToString(),
                                   providers=[("CPUExecutionProvider", {"use_codegen": "0"})])
    assert session.explain().outside == ()
    for _ in range(3):
        session.run(None, {"x": np.zeros((64, 256), np.float32)})
    place, = session.explain().memory.places
    assert (place.part, place.value, place.bytes, place.first, place.last) == ("", "e", 64 * 256 * 4, 0, 1)


@generates
def test_why_a_node_is_on_numpy() -> None:
    report = explained(mixed())
    assert report["unique"].remark and not report["unique"].harmless
    assert set(report.numpy) == {"unique"} and "Unique" in report.numpy["unique"]
    assert "not generated: " in str(report["unique"]) and report["exp"].remark == ""


@generates
def test_registered_kernels_are_no_numpy() -> None:
    made = model([helper.make_node("Unique", ["x"], ["u"], name="unique")], {"x": (F, ["N"])},
                 {"u": (F, ["K"])})
    assert not explained(made).numpy and not explained(made)["unique"].remark


def test_why_everything_is_on_numpy() -> None:
    assert set(explained(mixed(), use_codegen="0").numpy.values()) == {"use_codegen=0: no code is generated"}
    with knobs.setting(CODEGEN=0):
        assert "ORTHRUS_CODEGEN=0" in explained(mixed()).numpy["exp"]


@generates
def test_why_a_node_inside_a_part_is_on_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(lower.RULES, ("", "Softmax"), lambda lo, node: No("not on Tuesdays"))
    nodes = [helper.make_node("Exp", ["x"], ["e"], name="exp"),
             helper.make_node("Softmax", ["e"], ["s"], name="soft"),
             helper.make_node("Neg", ["s"], ["z"], name="neg")]
    assert explained(model(nodes, {"x": (F, ["N", 3])}, {"z": (F, ["N", 3])})).numpy == {
        "soft": "not on Tuesdays (for guessed shapes)"}
    report = explained(model(nodes, {"x": (F, [2, 3])}, {"z": (F, [2, 3])}))
    assert report.numpy == {"soft": "not on Tuesdays"}
    part, = report.parts
    assert part.plan is not None
    assert [step.kernel for step in part.plan.steps if not step.file] == ["reference Softmax"]


@generates
def test_why_a_part_is_interpreted(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(lo: Any, node: Any) -> Any:
        raise LookupError("no such trick")
    monkeypatch.setitem(lower.RULES, ("", "Softmax"), fails)
    nodes = [helper.make_node("Exp", ["x"], ["e"], name="exp"),
             helper.make_node("Softmax", ["e"], ["z"], name="soft")]
    made = model(nodes, {"x": (F, ["N", 3])}, {"z": (F, ["N", 3])}).SerializeToString()
    session = ort.InferenceSession(made)
    session.run(None, {"x": np.zeros((2, 3), np.float32)})
    report = session.explain()
    part, = report.parts
    assert [plan.interpreted for plan in part.plans] == 2 * ["LookupError: no such trick"]
    assert set(report.numpy) == {"exp", "soft"} and "no such trick" in report.numpy["exp"]
    assert "no such trick" in str(part)


def test_passes_that_declined_and_that_were_skipped() -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["m"], name="mm"),
             helper.make_node("Add", ["m", "b"], ["z"], name="add")]
    made = model(nodes, {"x": (F, [2, 3, 4])}, {"z": (F, [2, 3, 5])}, w=np.ones((4, 5), np.float32),
                 b=np.ones(5, np.float32)).SerializeToString()
    report = ort.InferenceSession(made, disabled_optimizers=["fuse_gelu"]).explain()
    declined = {d.name: d for d in report.declined}
    assert declined["fuse_matmul_add"].node == "add" and "matrices" in declined["fuse_matmul_add"].reason
    assert report.skipped == {"fuse_gelu": "left out by name"}
    with knobs.setting(SKIP="fuse_swish"):
        assert ort.InferenceSession(made).explain().skipped == {"fuse_swish": "named in ORTHRUS_SKIP"}
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
    skipped = ort.InferenceSession(made, options).explain().skipped
    assert skipped["fuse_gelu"] == "belongs to the level extended" and "fuse_matmul_add" not in skipped


@generates
def test_parts_are_looked_up_when_they_are_asked_for() -> None:
    session = ort.InferenceSession(MODEL)
    report = session.explain()
    session.run(None, {"image": samples()[0][:2]})
    assert len(report.parts[0].plans) == 2


@generates
def test_an_explanation_outlives_its_session_without_keeping_its_graph() -> None:
    session = ort.InferenceSession(MODEL)
    report, graph = session.explain(), weakref.ref(session._sess._engine.graph)
    del session
    gc.collect()
    assert graph() is None
    assert report.parts[0].kernels and json.dumps(report.plain())


def test_a_part_whose_provider_is_silent() -> None:
    from orthrus.kernels import Kernel
    from orthrus.providers.base import ExecutionProvider
    from orthrus.run.config import Config
    from orthrus.run.engine import Engine

    class Joining(ExecutionProvider):
        name = "JoiningExecutionProvider"
        fuses = True

        def claim(self, node: Any) -> No | None:
            return None if node.op_type == "Neg" else No("only Neg")

        def compile(self, part: Any) -> list[Kernel]:
            return [Kernel(lambda x: x if len(part.nodes) % 2 == 0 else -x, "neg")]
    nodes = [helper.make_node("Neg", ["x"], ["e"], name="a"), helper.make_node("Neg", ["e"], ["z"], name="b")]
    made = model(nodes, {"x": (F, [2])}, {"z": (F, [2])})
    report = Engine(made, Config(providers=[Joining()], level=0)).explain()
    part, = report.parts
    assert part.plan is None and part.state == "a kernel of JoiningExecutionProvider"
    assert part.kernels == () and part.arena == part.packed == 0 and report.plain()["parts"][0]["plans"] == []


def test_plain_data_is_complete() -> None:
    data = json.loads(json.dumps(explained(MODEL).plain()))
    assert set(data) >= {"nodes", "providers", "passes", "declined", "skipped", "parts", "numpy", "memory",
                         "seconds"}
    assert set(data["nodes"][0]) == {f.name for f in dataclasses.fields(explained(MODEL).nodes[0])}


def test_names_in_a_row_share_their_beginning() -> None:
    assert joined(["/m/a/Conv", "/m/a/Relu", "Add"]) == "/m/a/Conv + ../Relu + Add"
    assert joined([]) == "" and joined(["x"]) == "x"


Command = Callable[..., Any]


@pytest.fixture
def orthrus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")

    invoke = invoking(app, "explain")
    return lambda *words, **code: invoke(*words, **code).output


@generates
def test_the_command_shows_each_table(orthrus: Command) -> None:
    text = orthrus(MODEL)
    assert "Compiled parts" in text and "Time" in text
    text = orthrus(MODEL, "--parts", "--shape", "image=3,1,8,8")
    assert "float[1, 1, 8, 8] (guessed)" in text and "float[3, 1, 8, 8]\n" in text
    assert "conv1 + relu1" in text and "items" in text and "Placement" not in text
    text = orthrus(MODEL, "--memory")
    assert "Packed constants" in text and "pooled" in text and " to " in text
    assert "Left out" in orthrus(MODEL, "--passes", "--level", "basic")
    assert "Without effect" in orthrus(MODEL, "--passes")


@generates
def test_strict_says_what_fell_and_why(orthrus: Command) -> None:
    onnx.save(mixed(), "mixed.onnx")
    orthrus("mixed.onnx", "--strict")
    text = orthrus("mixed.onnx", "--strict-generated", code=1)
    assert "1 of 4 nodes run on numpy" in text and "unique: " in text
    assert CliRunner().invoke(app, ["run", "mixed.onnx", "--strict-generated"]).exit_code == 1
    assert CliRunner().invoke(app, ["run", str(MODEL), "--strict-generated", "--strict"]).exit_code == 0
    orthrus(MODEL, "--strict-generated", "--strict")
    assert "10 of 10" in orthrus(MODEL, "--strict-generated", "--option", "use_codegen=0", "--json", code=1)
    Path("some.py").write_text(
        "import orthrus as ort\nfrom orthrus.ir import No\n"
        "class Some(ort.ExecutionProvider):\n    name = 'SomeExecutionProvider'\n"
        "    def claim(self, node):\n        return No(f'{node.op_type} is beyond me')\n"
        "class Gone(Some):\n    name = 'GoneExecutionProvider'\n"
        "    @classmethod\n    def probe(cls):\n        return No('no such device')\n"
        "ort.register_execution_provider(Some)\nort.register_execution_provider(Gone)\n")
    try:
        text = orthrus("mixed.onnx", "--import", "some", "--provider", "some", "--strict", code=1)
        assert "4 of 4 nodes fell to the CPU provider" in text and "Unique is beyond me" in text
        assert "no such device" in orthrus("mixed.onnx", "--provider", "gone", "--strict", code=1)
    finally:
        for name in ("SomeExecutionProvider", "GoneExecutionProvider"):
            ort.unregister_execution_provider(name)


@pytest.mark.slow
@generates
@pytest.mark.parametrize("name", cases())
def test_models_explain_themselves(name: str) -> None:
    report = ort.InferenceSession(build(name).SerializeToString()).explain()
    assert json.dumps(report.plain()) and str(report)
    for part in report.parts:
        for plan in part.plans:
            assert plan.interpreted or plan.steps
            worked = {node for step in plan.steps for node in step.nodes} | set(plan.known)
            assert plan.interpreted or len(worked) >= 0.9 * len(part.nodes)
