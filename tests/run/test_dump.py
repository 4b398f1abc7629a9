"""Dumps: graphs, parts, tensors and code on disk, and edited kernels in the place of generated ones."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from skips import needs

import orthrus as ort
from orthrus import knobs
from orthrus.codegen.machines.detect import host
from orthrus.codegen.object import library
from orthrus.codegen.object.build import assemble
from orthrus.demo import MODEL, samples
from orthrus.errors import Fail, InvalidArgument
from orthrus.knobs import file_name

generates = needs("generated code")
CODE = re.compile(r"[a-z_]+_[0-9a-f]{10}")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path) -> Iterator[None]:
    with knobs.setting(CACHE_DIR=str(tmp_path / "cache")):
        yield


def session(model: Any, folder: Path, what: str, **more: str) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.add_session_config_entry("orthrus.dump", str(folder))
    options.add_session_config_entry("orthrus.dump_what", what)
    return ort.InferenceSession(model, options, providers=[("CPUExecutionProvider", more)])


def model(nodes: list[Any], inputs: dict[str, Any], outputs: dict[str, Any], **constants: Any) -> bytes:
    def infos(of: dict[str, Any]) -> list[Any]:
        return [helper.make_tensor_value_info(name, *what) for name, what in of.items()]
    graph = helper.make_graph(nodes, "g", infos(inputs), infos(outputs),
                              [onnx.numpy_helper.from_array(v, k) for k, v in constants.items()])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(made.SerializeToString())


def sums() -> bytes:
    """(x + y) * 2.5 - 1.25"""
    return model([helper.make_node("Add", ["x", "y"], ["s"], name="../sum of/all"),
                  helper.make_node("Mul", ["s", "k"], ["m"], name="mul"),
                  helper.make_node("Sub", ["m", "c"], ["z"], name="sub")],
                 {"x": (TensorProto.FLOAT, [40]), "y": (TensorProto.FLOAT, [40])},
                 {"z": (TensorProto.FLOAT, [40])}, k=np.float32(2.5), c=np.float32(1.25))


FEEDS = {"x": np.arange(40, dtype=np.float32), "y": np.ones(40, np.float32)}


def test_names_are_safe_and_distinct() -> None:
    names = ["conv1", "a/b", "a_b", "../../etc/passwd", "", ".", "a" * 300, "a" * 299, "ü", "a b", "A:b",
             "/a/b/"]
    made = [file_name(name) for name in names]
    assert made[0] == "conv1" and made[2] == "a_b" and made == [file_name(name) for name in names]
    assert len(set(made)) == len(made)
    for each in made:
        assert re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,79}", each)


def test_kinds_are_checked(tmp_path: Path) -> None:
    assert knobs.dump_kinds("all") == set(knobs.KINDS)
    assert knobs.dump_kinds("parts, code") == {"parts", "code"}
    with pytest.raises(InvalidArgument, match="passes, parts, tensors, code"):
        session(MODEL, tmp_path, "kernels")
    with knobs.setting(DUMP=str(tmp_path), DUMP_WHAT="no"), pytest.raises(InvalidArgument, match="'no'"):
        ort.InferenceSession(MODEL)


def test_a_session_dumps_for_itself_alone(tmp_path: Path) -> None:
    session(MODEL, tmp_path / "one", "parts")
    ort.InferenceSession(MODEL)
    session(MODEL, tmp_path / "one", "parts")
    assert sorted(p.name for p in (tmp_path / "one").iterdir()) == ["parts", "session2"]
    assert knobs.dump_folder("parts") is None


def test_passes_are_models(tmp_path: Path) -> None:
    x = np.linspace(-2, 2, 64, dtype=np.float32).reshape(8, 8)
    w = np.random.default_rng(0).standard_normal((8, 300)).astype(np.float32)
    made = model([helper.make_node("MatMul", ["x", "w"], ["p"], name="p"),
                  helper.make_node("Add", ["p", "b"], ["a"], name="a"),
                  helper.make_node("Identity", ["a"], ["i"], name="i"),
                  helper.make_node("Relu", ["i"], ["z"], name="r")],
                 {"x": (TensorProto.FLOAT, [8, 8])}, {"z": (TensorProto.FLOAT, [8, 300])},
                 w=w, b=np.ones(300, np.float32))
    with knobs.setting(DUMP=str(tmp_path)):
        whole = ort.InferenceSession(made)
    expected = whole.run(None, {"x": x})[0]
    folder = tmp_path / "passes"
    names = sorted(p.stem for p in folder.glob("*.onnx"))
    assert names[0] == "000_loaded" and len(names) > 2
    assert names == sorted(p.stem for p in folder.glob("*.txt"))
    assert "Identity" in (folder / "000_loaded.txt").read_text()
    assert "Identity" not in (folder / f"{names[-1]}.txt").read_text()
    assert (folder / "weights.data").stat().st_size < 2 * w.nbytes
    for name in names:
        got = ort.InferenceSession(folder / f"{name}.onnx").run(None, {"x": x})[0]
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


@generates
def test_parts_run_by_themselves(tmp_path: Path) -> None:
    """Two parts around a node on numpy: run one after another, they give what the model gives."""
    made = model([helper.make_node("Exp", ["x"], ["e"], name="exp"),
                  helper.make_node("Mul", ["e", "k"], ["n"], name="mul"),
                  helper.make_node("Unique", ["n"], ["u"], name="unique"),
                  helper.make_node("Tanh", ["u"], ["z"], name="tanh")],
                 {"x": (TensorProto.FLOAT, ["N"])}, {"z": (TensorProto.FLOAT, ["K"])}, k=np.float32(0.5))
    whole = session(made, tmp_path, "parts")
    rows = json.loads((tmp_path / "parts" / "index.json").read_text())
    assert [row["nodes"] for row in rows] == [["exp", "mul"], ["unique"], ["tanh"]]
    values = {"x": np.array([1, 0, 1, -1], np.float32)}
    expected = whole.run(None, values)[0]
    for row in rows:
        onnx.checker.check_model(tmp_path / "parts" / row["file"])
        part = ort.InferenceSession(tmp_path / "parts" / row["file"])
        got = part.run(None, {name: values[name] for name in row["inputs"]})
        values.update(zip(row["outputs"], got, strict=True))
    np.testing.assert_array_equal(values["z"], expected)


def test_parts_of_bodies_and_their_captures(tmp_path: Path) -> None:
    branch = helper.make_graph([helper.make_node("Add", ["x", "k"], ["t"], name="inner")], "then", [],
                               [helper.make_tensor_value_info("t", TensorProto.FLOAT, ["N"])])
    other = helper.make_graph([helper.make_node("Neg", ["x"], ["f"], name="other")], "else", [],
                              [helper.make_tensor_value_info("f", TensorProto.FLOAT, ["N"])])
    made = model([helper.make_node("If", ["c"], ["z"], name="if", then_branch=branch, else_branch=other)],
                 {"c": (TensorProto.BOOL, []), "x": (TensorProto.FLOAT, ["N"])},
                 {"z": (TensorProto.FLOAT, ["N"])}, k=np.float32(3))
    whole = session(made, tmp_path, "parts,tensors")
    feeds = {"c": np.array(True), "x": np.arange(3, dtype=np.float32)}
    expected = whole.run(None, feeds)[0]
    rows = {row["nodes"][0]: row for row in json.loads((tmp_path / "parts" / "index.json").read_text())}
    assert set(rows) == {"if", "inner", "other"}
    for name in ("if", "inner"):
        part = ort.InferenceSession(tmp_path / "parts" / rows[name]["file"])
        got = part.run(None, {i.name: feeds[i.name] for i in part.get_inputs()})[0]
        np.testing.assert_array_equal(got, expected)
    run = json.loads((tmp_path / "tensors" / "run_001" / "index.json").read_text())
    assert [row["node"] for row in run if "node" in row] == ["inner", "if"]


@generates
def test_tensors_of_a_run(tmp_path: Path) -> None:
    """What lies in memory inside of a compiled part is what numpy computes there."""
    images = samples()[0][:3]
    for name, more in (("ours", {}), ("numpy", {"use_codegen": "0"})):
        watched = session(MODEL, tmp_path / name, "tensors", **more)
        got = watched.run(None, {"image": images})
        for a, b in zip(got, ort.InferenceSession(MODEL).run(None, {"image": images}), strict=True):
            np.testing.assert_allclose(a, b, atol=1e-6)
    found = {}
    for name in ("ours", "numpy"):
        folder = tmp_path / name / "tensors" / "run_001"
        rows = json.loads((folder / "index.json").read_text())
        found[name] = {row["value"]: np.load(folder / row["file"]) for row in rows
                       if "file" in row and "value" in row}
        np.testing.assert_array_equal(np.load(folder / "0001_input_image.npy"), images)
        absent = [row["value"] for row in rows if "file" not in row]
        assert len(absent) == (2 if name == "ours" else 0), absent
    assert len(found["ours"]) >= 7 and set(found["ours"]) < set(found["numpy"])
    for value, array in found["ours"].items():
        np.testing.assert_allclose(array, found["numpy"][value], rtol=1e-4, atol=1e-5, err_msg=value)


def test_tensors_of_names_and_types_that_files_cannot_have(tmp_path: Path) -> None:
    made = model([helper.make_node("Identity", ["x"], ["y"], name="../../up/" + 200 * "n"),
                  helper.make_node("Cast", ["f"], ["h"], name="half", to=TensorProto.BFLOAT16),
                  helper.make_node("SplitToSequence", ["f"], ["q"], name="many"),
                  helper.make_node("SequenceLength", ["q"], ["n"], name="count"),
                  helper.make_node("StringNormalizer", ["y"], ["z"], name="upper",
                                   case_change_action="UPPER")],
                 {"x": (TensorProto.STRING, [2]), "f": (TensorProto.FLOAT, [2])},
                 {"z": (TensorProto.STRING, [None]), "n": (TensorProto.INT64, []),
                  "h": (TensorProto.BFLOAT16, [2])})
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry("orthrus.dump", str(tmp_path / "dump"))
    options.add_session_config_entry("orthrus.dump_what", "tensors")
    watched = ort.InferenceSession(made, options)
    watched.run(["z", "n"], {"x": np.array(["a", "b"], object), "f": np.ones(2, np.float32)})
    folder = tmp_path / "dump" / "tensors" / "run_001"
    files = sorted(p.name for p in folder.glob("*.npy"))
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+", name) and len(name) < 100 for name in files)
    assert {p.name for p in tmp_path.iterdir()} <= {"dump", "cache"}
    upper = next(name for name in files if name.endswith("_upper.npy"))
    assert np.load(folder / upper).tolist() == ["A", "B"]
    assert sum("_many_" in name for name in files) == 2


def test_only_the_first_runs_are_written(tmp_path: Path) -> None:
    watched = session(sums(), tmp_path, "tensors")
    for _ in range(10):
        watched.run(None, FEEDS)
    assert len(list((tmp_path / "tensors").iterdir())) == 8


@generates
def test_code_is_dumped_under_stable_names(tmp_path: Path) -> None:
    for name in ("a", "b"):
        session(sums(), tmp_path / name, "code").run(None, FEEDS)
    files = sorted(p.name for p in (tmp_path / "a" / "code").iterdir())
    assert files == sorted(p.name for p in (tmp_path / "b" / "code").iterdir())
    assert {p.rpartition(".")[2] for p in files} == {"ll", "s"}
    assert all(CODE.fullmatch(p.rpartition(".")[0]) for p in files)
    part = ort.InferenceSession(sums()).explain().parts[0]
    assert {step.file for step in part.plan.steps} <= {p.rpartition(".")[0] for p in files}
    text = (tmp_path / "a" / "code" / next(p for p in files if p.endswith(".ll"))).read_text()
    machine = host()
    assert machine is not None and assemble(text, machine)


def kernel(folder: Path) -> Path:
    """Dump the code of `sums`, which has one kernel."""
    session(sums(), folder, "code").run(None, FEEDS)
    (only,) = (folder / "code").glob("loop_*.ll")
    return only


@generates
def test_an_edited_kernel_takes_the_place_of_the_generated_one(tmp_path: Path) -> None:
    expected = ort.InferenceSession(sums()).run(None, FEEDS)[0]
    np.testing.assert_allclose(expected, (FEEDS["x"] + FEEDS["y"]) * 2.5 - 1.25, rtol=1e-6)
    path = kernel(tmp_path)
    text = path.read_text()
    assert text.count(" fsub ") and text.count(" fadd ")
    path.write_text(text.replace(" fsub ", " fadd "))
    with knobs.setting(OVERRIDE=str(path.parent)):
        edited = ort.InferenceSession(sums())
        got = edited.run(None, FEEDS)[0]
        assert [step.edited for part in edited.explain().parts for step in part.plan.steps] == [True]
        session(sums(), tmp_path, "code").run(None, FEEDS)
        assert path.read_text() != text, "a dump does not undo an edit"
    np.testing.assert_allclose(got, (FEEDS["x"] + FEEDS["y"]) * 2.5 + 1.25, rtol=1e-6)
    np.testing.assert_array_equal(ort.InferenceSession(sums()).run(None, FEEDS)[0], expected)


@generates
def test_an_edited_kernel_stays_out_of_the_cache(tmp_path: Path) -> None:
    path = kernel(tmp_path)
    path.write_text(path.read_text().replace(" fsub ", " fadd "))
    cache = tmp_path / "another"
    with knobs.setting(OVERRIDE=str(path.parent), CACHE_DIR=str(cache)):
        ort.InferenceSession(sums()).run(None, FEEDS)
    assert not list(cache.glob("*")) if cache.exists() else True


@generates
@pytest.mark.parametrize("change, said", [
    (lambda text: text.replace("ret void", "ret nothing"), "expected type"),
    (lambda text: text.replace("@kernel", "@colonel"), "@kernel"),
    (lambda text: "define void @kernel(", "expected"),
    (lambda text: "declare void @puts(ptr)\ndefine void @kernel(ptr %a, i64 %l, i64 %h, ptr %s) {\n"
                  "call void @puts(ptr %a)\nret void\n}\n", "outside itself"),
    (lambda text: "", "no function"),
    (lambda text: "define void @kernel(ptr %a, i64 %l, i64 %h) {\nret void\n}\n", "ptr %scratch"),
])
def test_a_wrong_kernel_ends_the_making_of_a_session(tmp_path: Path, change: Any, said: str) -> None:
    path = kernel(tmp_path)
    path.write_text(change(path.read_text()))
    with knobs.setting(OVERRIDE=str(path.parent)), pytest.raises(Fail, match=re.escape(path.name)) as caught:
        ort.InferenceSession(sums())
    assert said in str(caught.value)


def test_a_folder_that_is_none_and_a_file_nobody_uses(tmp_path: Path, caplog: pytest.LogCaptureFixture
                                                      ) -> None:
    if library.available() is None:
        with knobs.setting(OVERRIDE=str(tmp_path / "missing")), pytest.raises(Fail, match="missing"):
            ort.InferenceSession(sums())
    (tmp_path / "loop_0000000000.ll").write_text(
        "define void @kernel(ptr %a, i64 %l, i64 %h, ptr %s) {\nret void\n}\n")
    with knobs.setting(OVERRIDE=str(tmp_path)):
        ort.InferenceSession(sums())
    assert "loop_0000000000.ll" in caplog.text
