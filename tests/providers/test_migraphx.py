"""MIGraphXExecutionProvider on a double of the library: results, parts, shapes and batches, options and their
precedence, caches and damage, a compiler that hangs and one that dies."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from foreign import reasons
from graphs import info, model
from migraphx_kit import DOUBLE, NAME, REF, RNG, check, perceptron, rows, session, taken, whole
from onnx import TensorProto, helper

import orthrus as ort
from orthrus import knobs
from orthrus.errors import EPFail, Fail, InvalidArgument
from orthrus.ir import ElementType
from orthrus.providers.foreign import kept
from orthrus.providers.migraphx import MIGraphXExecutionProvider as Provider
from orthrus.providers.migraphx import claims, compiler, settings
from orthrus.providers.migraphx import module as library
from orthrus.providers.migraphx.program import times


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A cache folder of this test's own."""
    return tmp_path / "cache"


@pytest.fixture
def misbehaving(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """A compiling process that takes what is set in the environment, and ends with the test."""
    compiler._process.stop()
    yield monkeypatch
    compiler._process.stop()


@pytest.fixture
def anything(monkeypatch: pytest.MonkeyPatch) -> None:
    """Claim every node, as if the record spoke for all of them."""
    monkeypatch.setattr(claims, "judged", lambda node, target: None)
    monkeypatch.setattr(claims, "torn", lambda group: {})


# the module

def test_what_is_missing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "migraphx", raising=False)
    monkeypatch.setenv("ROCM_PATH", str(tmp_path))
    (tmp_path / "lib").mkdir()
    assert "no module migraphx" in Provider.probe().reason and NAME not in ort.get_available_providers()
    (tmp_path / "lib" / "migraphx.cpython-27-x86_64-linux-gnu.so").write_bytes(b"")
    assert "this is Python 3" in Provider.probe().reason
    (tmp_path / "lib" / "migraphx.py").write_text("import no_such_library")
    assert "does not load" in Provider.probe().reason
    with pytest.raises(EPFail, match="does not load"):
        ort.providers.create(NAME)


ASKED = """
import sys
from orthrus.providers.migraphx import MIGraphXExecutionProvider as Provider
for more in ({"target": "ref"}, {"target": "ref", "any_version": "1"}, {"any_version": "1"}):
    print(Provider.probe_with({"module_path": sys.argv[1], **more}))
"""


@pytest.mark.slow
def test_versions_and_targets() -> None:
    def told(**environment: str) -> list[str]:
        done = subprocess.run([sys.executable, "-c", ASKED, DOUBLE], capture_output=True, text=True,
                              check=True, env={**os.environ, **environment})
        return done.stdout.splitlines()
    assert told()[0] == "None" and "no target gpu" in told()[2]
    old, taken_anyway, _ = told(MIGRAPHX_DOUBLE="version=2.12.0")
    assert "2.12.0 is installed; tried was 2.16" in old and taken_anyway == "None"
    assert told(MIGRAPHX_DOUBLE="gpu=1")[2] == "None"


def test_another_folder_than_the_one_that_is_loaded(tmp_path: Path) -> None:
    library.found(DOUBLE)
    assert "has loaded" in library.found(str(tmp_path)).reason


# results

@pytest.mark.parametrize("n", [1, 3])
def test_one_part_for_any_batch(n: int) -> None:
    made = check(perceptron(), rows(n))
    assert len({node.part for node in made.explain()}) == 1
    assert "compiled for each shape" in made.explain().nodes[0].kernel


def test_no_elements() -> None:
    assert session(perceptron()).run(None, rows(0))[0].shape == (0, 5)


@pytest.mark.parametrize("elem", [ElementType.BOOL, ElementType.INT8, ElementType.UINT64, ElementType.FLOAT16,
                                  ElementType.DOUBLE, ElementType.BFLOAT16])
def test_types_cross_the_border(elem: ElementType) -> None:
    proto = model([helper.make_node("Transpose", ["x"], ["t"]),
                   helper.make_node("Concat", ["t", "t"], ["y"], axis=0)],
                  [info("x", int(elem), [2, 3])], [info("y", int(elem), [6, 2])])
    check(proto, {"x": np.arange(6).reshape(2, 3).astype(elem.numpy)})


def test_scalars_and_ranks() -> None:
    proto = model([helper.make_node("Add", ["a", "b"], ["y"]),
                   helper.make_node("ReduceSum", ["a"], ["s"], keepdims=0)],
                  [info("a", shape=[]), info("b", shape=[1])], [info("y", shape=[1]), info("s", shape=[])])
    check(proto, {"a": np.array(2, np.float32), "b": np.array([3], np.float32)})


def test_inputs_of_any_layout() -> None:
    x = RNG.standard_normal((8, 6)).astype(np.float32)
    made, plain = session(perceptron()), ort.InferenceSession(perceptron().SerializeToString())
    odd = np.zeros(6 * 32 + 1, np.uint8)[1:].view(np.float32).reshape(6, 8)
    for each in (x.T, x.T[::-1], np.broadcast_to(x.T[:1], (6, 8)), odd):
        np.testing.assert_allclose(made.run(None, {"x": each})[0], plain.run(None, {"x": each})[0], 1e-5)


def test_arguments_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    made = session(perceptron(2))
    seen: list[int] = []
    mx = library.found(DOUBLE)
    real = mx.program.run
    monkeypatch.setattr(mx.program, "run", lambda self, given: (
        seen.extend(a.ctypes.data for a in given.values()), real(self, given))[1])
    feed = rows(2)
    (y,) = made.run(None, feed)
    assert seen == [feed["x"].ctypes.data] and y.base is not None


def test_results_are_the_callers_own() -> None:
    proto = model([helper.make_node("Identity", ["x"], ["y"]), helper.make_node("Add", ["x", "y"], ["z"])],
                  [info("x")], [info("y"), info("z")])
    made = ort.InferenceSession(proto.SerializeToString(), providers=[(NAME, REF)],
                                disabled_optimizers=["drop_identity"])
    x = np.ones((2, 3), np.float32)
    y, z = made.run(None, {"x": x})
    y += 1
    assert (x == 1).all() and (z == 2).all() and len(taken(made)) == 2


def test_shapes_become_constants() -> None:
    """A Reshape to a shape that follows from an open one: the library has to have it as an initializer."""
    nodes = [helper.make_node("Shape", ["x"], ["s"], start=0, end=1),
             helper.make_node("Concat", ["s", "rest"], ["t"], axis=0), helper.make_node("Reshape",
                                                                                        ["x", "t"], ["r"]),
             helper.make_node("Relu", ["r"], ["y"])]
    proto = model(nodes, [info("x", shape=["N", 2, 3])], [info("y", shape=["N", "M"])],
                  {"rest": np.array([-1])})
    for n in (1, 4):
        check(proto, {"x": RNG.standard_normal((n, 2, 3)).astype(np.float32)})


def test_an_output_that_follows_from_shapes() -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Shape", ["x"], ["s"])]
    proto = model(nodes, [info("x", shape=["N", 3])], [info("y", shape=["N", 3]),
                                                       info("s", TensorProto.INT64, [2])])
    made = session(proto)
    for n in (2, 5):
        _, sizes = made.run(None, {"x": np.zeros((n, 3), np.float32)})
        assert sizes.tolist() == [n, 3]
        sizes += 1


def test_a_constant_that_a_refused_node_computes_is_none() -> None:
    """The shape comes out of a node that is refused, so the Reshape is, too."""
    nodes = [helper.make_node("Shape", ["x"], ["s"]), helper.make_node("BitShift", ["u", "u"], ["v"],
                                                                       direction="LEFT"),
             helper.make_node("Cast", ["v"], ["w"], to=TensorProto.INT64), helper.make_node("Mul",
                                                                                            ["s",
                                                                                             "w"], ["t"]),
             helper.make_node("Reshape", ["x", "t"], ["y"])]
    proto = model(nodes, [info("x", shape=["N", 3]), info("u", TensorProto.UINT8, [1])],
                  [info("y", shape=["A", "B"])])
    made = session(proto)
    assert "has to be a constant" in reasons(made)
    x = np.ones((2, 3), np.float32)
    assert made.run(None, {"x": x, "u": np.array([0], np.uint8)})[0].shape == (2, 3)


def test_views_alone_are_left_to_others() -> None:
    nodes = [helper.make_node("Reshape", ["x", "s"], ["r"], name="view"),
             helper.make_node("NonZero", ["r"], ["n"], name="search"),
             helper.make_node("Cast", ["n"], ["c"], to=TensorProto.FLOAT, name="cast"),
             helper.make_node("Exp", ["c"], ["y"], name="exp")]
    made = session(model(nodes, ["x"], [info("y", shape=[1, "n"])], {"s": np.array([6])}))
    assert taken(made) == ["cast", "exp"] and "nothing but views" in reasons(made)


def test_one_part_where_possible() -> None:
    nodes = [helper.make_node("Exp", ["x"], ["a"]), helper.make_node("Neg", ["x"], ["b"]),
             helper.make_node("Add", ["a", "b"], ["c"]), helper.make_node("Tanh", ["c"], ["y"])]
    made = check(model(nodes, ["x"], ["y"]), {"x": RNG.standard_normal((2, 3)).astype(np.float32)})
    assert len({node.part for node in made.explain()}) == 1


# batches and open dimensions

def test_batches_are_padded_to_compiled_ones(folder: Path) -> None:
    made = session(perceptron(), compile_batches="1,4,8", cache_dir=str(folder))
    assert len(list(folder.glob("*.mxr"))) == 3, "compiled when the session was made"
    plain = ort.InferenceSession(perceptron().SerializeToString())
    for n in (1, 2, 4, 7, 8):
        feed = rows(n)
        np.testing.assert_allclose(made.run(None, feed)[0], plain.run(None, feed)[0], 1e-5)
    assert len(list(folder.glob("*.mxr"))) == 3
    assert made.run(None, rows(11))[0].shape == (11, 5)
    assert len(list(folder.glob("*.mxr"))) == 4, "beyond the largest batch, one for the shape"


def test_powers_of_two_up_to_a_largest_batch(folder: Path) -> None:
    assert settings.batches({"compile_batches": (), "max_dynamic_batch": 6}) == (1, 2, 4, 6)
    made = session(perceptron(), max_dynamic_batch="6", cache_dir=str(folder))
    assert [made.run(None, rows(n))[0].shape[0] for n in (3, 4, 5, 6)] == [3, 4, 5, 6]
    assert len(list(folder.glob("*.mxr"))) == 2


def test_what_is_no_batch_is_not_padded(folder: Path) -> None:
    """The sum over rows would count those that were added."""
    proto = model([helper.make_node("ReduceSum", ["x", "a"], ["y"], keepdims=0)], [info("x", shape=["N", 3])],
                  [info("y", shape=[3])], {"a": np.array([0])})
    made = session(proto, max_dynamic_batch="8", cache_dir=str(folder))
    assert made.run(None, {"x": np.ones((3, 3), np.float32)})[0].tolist() == [3, 3, 3]


def test_dimensions_that_the_library_keeps_open(folder: Path) -> None:
    made = session(perceptron(), dynamic_dims="1", max_dynamic_batch="8", cache_dir=str(folder))
    plain = ort.InferenceSession(perceptron().SerializeToString())
    for n in (1, 3, 8):
        feed = rows(n)
        np.testing.assert_allclose(made.run(None, feed)[0], plain.run(None, feed)[0], 1e-5)
    assert len(list(folder.glob("*.mxr"))) == 1
    assert made.run(None, rows(9))[0].shape == (9, 5), "its range is not checked by the library"
    assert len(list(folder.glob("*.mxr"))) == 2


def test_shapes_that_no_node_takes() -> None:
    proto = model([helper.make_node("Add", ["x", "z"], ["y"])],
                  [info("x", shape=["N"]), info("z", shape=["M"])],
                  [info("y", shape=["K"])])
    made = session(proto)
    with pytest.raises(Fail):
        made.run(None, {"x": np.ones(2, np.float32), "z": np.ones(3, np.float32)})


# options

def test_both_forms_say_the_same() -> None:
    assert set(settings.LONG) <= set(Provider.options)
    for long in settings.LONG:
        short = long.removeprefix("migraphx_")
        if settings.OPTIONS[short].read is settings.flag and short not in ("int8_enable", "fp8_enable"):
            assert Provider({long: "1"}).settings[short] is Provider({short: "1"}).settings[long] is True
    assert Provider({"migraphx_mem_limit": "7", "mem_limit": "7"}).settings["mem_limit"] == 7
    with pytest.raises(InvalidArgument, match="are one, and say different things"):
        Provider({"migraphx_mem_limit": "7", "mem_limit": "8"})


@pytest.mark.parametrize("variable", settings.VARIABLES)
def test_the_environment_goes_before_options(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name = settings.VARIABLES[variable]
    low, high = {"compile_batches": ("1,2", "1,4"), "max_dynamic_batch": ("2", "4")}.get(
        name, ("0", "1") if settings.OPTIONS[name].read is settings.flag else ("here", "there"))
    before = {"int8_calibration_table_name": "t"} if name in ("int8_enable", "fp8_enable") else {}
    monkeypatch.setattr("orthrus.providers.migraphx.read_ranges", lambda path, native: {})
    monkeypatch.setenv(variable, high)
    assert Provider({name: low, **before}).settings[name] == settings.OPTIONS[name].read(high)
    if settings.OPTIONS[name].read is not str:
        monkeypatch.setenv(variable, "nonsense")
        with pytest.raises(InvalidArgument, match=variable):
            Provider()


@pytest.mark.parametrize(("options", "told"), [
    ({"fp16_enable": "1", "bf16_enable": "1"}, "exclude"), ({"fp8_enable": "1", "int8_enable": "1"},
                                                            "exclude"),
    ({"int8_enable": "1"}, "useless"), ({"dynamic_dims": "1"}, "largest batch"), ({"target": "cpu"},
                                                                                  "target"),
    ({"compile_batches": "0,4"}, "compile_batches"), ({"compile_timeout": "0"}, "compile_timeout"),
    ({"int8_enable": "1", "int8_calibration_table_name": "/no/such"}, "cannot be read")])
def test_options_that_cannot_be(options: dict[str, str], told: str) -> None:
    with pytest.raises(InvalidArgument, match=told):
        Provider(options)


def test_an_option_without_effect_is_said(caplog: pytest.LogCaptureFixture) -> None:
    Provider({"hip_graph_enable": "1", "compute_mode": "Maximum"})
    assert "hip_graph_enable has no effect" in caplog.text and "compute_mode" in caplog.text


def test_a_limit_on_memory() -> None:
    made = session(perceptron(2), mem_limit="100")
    assert not taken(made) and "mem_limit" in reasons(made)


@pytest.mark.parametrize("option", ["fp16_enable", "bf16_enable"])
def test_precisions_are_chosen_before_compiling(option: str, folder: Path) -> None:
    check(perceptron(2), rows(2), **{option: "1", "cache_dir": str(folder)})


def test_parts_are_dumped(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    session(perceptron(2), dump_subgraphs="1")
    (path,) = tmp_path.glob("*.onnx")
    made = onnx.load(path)
    assert [node.op_type for node in made.graph.node] == ["Gemm", "Relu", "Softmax"]
    assert ort.InferenceSession(path).run(None, {"i0": rows(2)["x"]})[0].shape == (2, 5)


# caches, damage, limits, deaths

def test_the_cache_saves_the_compiler(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    real = compiler._process.compile
    monkeypatch.setattr(compiler._process, "compile", lambda *job: (asked.append(job), real(*job))[1])
    check(perceptron(2), rows(2), cache_dir=str(folder))
    check(perceptron(2), rows(2), cache_dir=str(folder))
    assert len(asked) == 1
    check(perceptron(2), rows(2), cache_dir=str(folder), exhaustive_tune="1")
    assert len(list(folder.glob("*.mxr"))) == 2 and folder.stat().st_mode & 0o077 == 0
    before = [p.stat().st_mtime_ns for p in sorted(folder.glob("*.mxr"))]
    session(perceptron(2), cache_dir=str(folder), force_recompile="1")
    assert [p.stat().st_mtime_ns for p in sorted(folder.glob("*.mxr"))] != before


def test_other_weights_are_another_part(folder: Path) -> None:
    other = perceptron(2)
    other.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(np.ones((8, 5), np.float32), "w"))
    big = perceptron(2)
    for proto in (big, other, big):
        check(proto, rows(2), cache_dir=str(folder))
    assert len(list(folder.glob("*.mxr"))) == 2


@pytest.mark.parametrize("how", ["cut", "changed", "no digest"])
def test_a_damaged_program_is_compiled_anew(folder: Path, how: str) -> None:
    session(perceptron(2), cache_dir=str(folder))
    (path,) = folder.glob("*.mxr")
    raw = path.read_bytes()
    if how == "no digest":
        path.with_suffix(".digest").unlink()
    path.write_bytes(raw[:50] if how == "cut" else raw[:-1] + b"?" if how == "changed" else raw)
    check(perceptron(2), rows(2), cache_dir=str(folder))
    assert path.read_bytes() == raw


def test_a_folder_of_everybody_is_not_used(folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o777)
    made = session(perceptron(2), cache_dir=str(folder))
    assert not taken(made) and "not this user's alone" in reasons(made)


def test_nothing_is_kept_where_caching_is_off(folder: Path) -> None:
    check(perceptron(2), rows(2), cache_dir=str(folder), disable_caching="1")
    assert not folder.exists()


def test_old_programs_make_room(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "LIMIT", 700)
    session(perceptron(2), cache_dir=str(folder))
    session(perceptron(3), cache_dir=str(folder))
    assert len(list(folder.glob("*.mxr"))) == len(list(folder.glob("*.digest"))) == 1


@pytest.mark.slow
def test_a_compiler_that_hangs(folder: Path, misbehaving: pytest.MonkeyPatch) -> None:
    misbehaving.setenv("MIGRAPHX_DOUBLE", "compile=sleep")
    made = session(perceptron(2), cache_dir=str(folder), compile_timeout="3")
    assert not taken(made) and "did not end within 3 s" in reasons(made)
    assert made.run(None, rows(2))[0].shape == (2, 5)
    misbehaving.delenv("MIGRAPHX_DOUBLE")
    assert whole(session(perceptron(2), cache_dir=str(folder)))


@pytest.mark.slow
def test_a_compiler_that_dies(folder: Path, misbehaving: pytest.MonkeyPatch) -> None:
    misbehaving.setenv("MIGRAPHX_DOUBLE", "compile=die")
    made = session(perceptron(2), cache_dir=str(folder))
    assert not taken(made) and "ended by signal 11" in reasons(made)
    with pytest.raises(Fail, match="ended by signal 11"):
        session(perceptron(2), "error", cache_dir=str(folder))


def test_a_parser_that_dies(folder: Path, anything: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A division of integers by zero, which the parser computes."""
    monkeypatch.setattr("orthrus.providers.migraphx.model._FOLDS", frozenset())
    proto = model([helper.make_node("Div", ["a", "b"], ["d"]), helper.make_node("Add", ["x", "d"], ["y"])],
                  [info("x", TensorProto.INT32, [1])], [info("y", TensorProto.INT32, [1])],
                  {"a": np.array([3], np.int32), "b": np.array([0], np.int32)})
    made = ort.InferenceSession(proto.SerializeToString(), providers=[(NAME,
                                                                       {**REF, "cache_dir": str(folder)})],
                                disabled_optimizers=["fold_constants", "fold_shapes"])
    assert not taken(made) and "ended by signal 8" in reasons(made)


def test_words_of_a_refusal(folder: Path, anything: None, tmp_path: Path,
                            monkeypatch: pytest.MonkeyPatch) -> None:
    """What the record does not know the library may still refuse: its words are the reason, and are kept."""
    proto = model([helper.make_node("BitwiseNot", ["x"], ["y"])], [info("x", TensorProto.INT32, [2])],
                  [info("y", TensorProto.INT32, [2])])
    with knobs.setting(REPRODUCE=str(tmp_path / "seen")):
        made = session(proto, cache_dir=str(folder))
    assert "parse failed" in reasons(made) and "Unknown operator: BitwiseNot" in reasons(made)
    assert list((tmp_path / "seen").rglob("part.onnx")) and list(folder.glob("*.refused"))
    monkeypatch.setattr(compiler._process, "compile", None)
    assert "Unknown operator: BitwiseNot" in reasons(session(proto, cache_dir=str(folder)))


def test_outputs_that_the_parser_leaves_out(folder: Path, anything: None) -> None:
    proto = model([helper.make_node("MaxPool", ["x"], ["y", "i"], kernel_shape=[2, 2])],
                  [info("x", shape=[1, 1, 4, 4])],
                  [info("y", shape=[1, 1, 3, 3]), info("i", TensorProto.INT64, [1, 1, 3, 3])])
    assert "1 outputs were found, and 2 are needed" in reasons(session(proto, cache_dir=str(folder)))


def test_what_fails_while_running_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    made = session(perceptron(2))

    def fails(self: Any, given: Any) -> Any:
        raise RuntimeError("/src/op.hpp:1: compute: out of range")
    monkeypatch.setattr(library.found(DOUBLE).program, "run", fails)
    with pytest.raises(EPFail, match="MIGraphX failed while running: .*out of range"):
        made.run(None, rows(2))


def test_threads_share_a_program() -> None:
    from concurrent.futures import ThreadPoolExecutor

    made, plain = session(perceptron()), ort.InferenceSession(perceptron().SerializeToString())
    feeds = [rows(n % 3 + 1) for n in range(12)]
    with ThreadPoolExecutor(4) as pool:
        for feed, got in zip(feeds, pool.map(lambda f: made.run(None, f)[0], feeds), strict=True):
            np.testing.assert_allclose(got, plain.run(None, feed)[0], 1e-5)


# profiles

@pytest.mark.slow
def test_profiles_have_the_librarys_own_times() -> None:
    made = session(perceptron(2))
    with made.profile() as profile:
        made.run(None, rows(2))
    assert "ref::softmax" in str(profile)


def test_times_are_read_as_they_are_printed() -> None:
    said = ("Run instruction: @0 = check_context::migraphx::gpu::context -> float_type, {}, {}, target_id=0\n"
            "Time: 0.0012ms, 0.003ms\n[WARN] something\n"
            "Run instruction: main:@5 = gpu::code_object[kernel=mul_add](@1) -> half_type, {2, 3}\n"
            "Time: 1.5ms, 2e-1ms\n")
    assert [name for name, _ in times(said)] == ["check_context::migraphx::gpu::context", "gpu::code_object"]
    assert [seconds for _, seconds in times(said)] == pytest.approx([3e-6, 2e-4])
    assert times("nothing of the kind") == []


# compiled models

def compiled(tmp_path: Path, proto: onnx.ModelProto, **options: str) -> Path:
    chosen = ort.SessionOptions()
    chosen.add_provider(NAME, {**REF, **options})
    path = tmp_path / "made.onnx"
    ort.ModelCompiler(chosen, proto.SerializeToString()).compile_to_file(str(path))
    return path


def test_compiled_models(tmp_path: Path) -> None:
    path = compiled(tmp_path, perceptron(2))
    (node,) = onnx.load(path).graph.node
    texts = {a.name: a.s for a in node.attribute}
    assert node.op_type == "EPContext" and texts["hardware_architecture"] == b"ref"
    assert texts["ep_sdk_version"].startswith(b"migraphx 2.16")
    with pytest.raises(Fail, match="machine code"):
        ort.InferenceSession(path, providers=[(NAME, REF)])
    feed = rows(2)
    made = ort.InferenceSession(path, providers=[(NAME, REF)], trust=True)
    np.testing.assert_allclose(made.run(None, feed)[0], session(perceptron(2)).run(None, feed)[0], 1e-6)


@pytest.mark.parametrize(("attribute", "value", "told"), [
    ("ep_sdk_version", b"migraphx 2.12.0", "compiled by migraphx 2.12.0"),
    ("hardware_architecture", b"gpu", "compiled for gpu"), ("ep_cache_context", b"gone.bin",
                                                            "does not exist")])
def test_compiled_models_that_do_not_fit(tmp_path: Path, attribute: str, value: bytes, told: str) -> None:
    path = compiled(tmp_path, perceptron(2))
    proto = onnx.load(path)
    for each in proto.graph.node[0].attribute:
        if each.name == attribute:
            each.s = value
    onnx.save(proto, path)
    with pytest.raises(EPFail, match=told):
        ort.InferenceSession(path, providers=[(NAME, REF)], trust=True)


@pytest.mark.parametrize("raw", [b"", b"no line", b'{"reads": [7], "offload": true}\nrest',
                                 b'{"reads": [0], "offload": true}\nrest'])
def test_compiled_parts_that_are_none(tmp_path: Path, raw: bytes) -> None:
    path = compiled(tmp_path, perceptron(2))
    next(tmp_path.glob("*.bin")).write_bytes(raw)
    with pytest.raises(EPFail, match=r"damaged|does not load|holds nothing"):
        ort.InferenceSession(path, providers=[(NAME, REF)], trust=True)


def test_open_shapes_are_no_compiled_part(tmp_path: Path) -> None:
    assert "EPContext" not in {node.op_type for node in onnx.load(compiled(tmp_path,
                                                                           perceptron())).graph.node}




# eight bits

def ranged(folder: Path, made: str = "calibration.json") -> str:
    """A table of the range of x, and of that of a value within, as `orthrus.quantization` writes it."""
    from orthrus.quantization import write_calibration_table
    from orthrus.quantization.calibrate import CalibrationMethod, TensorsData

    ends = {name: (np.float32(-3), np.float32(3)) for name in ("x", "m", "w")}
    write_calibration_table(TensorsData(CalibrationMethod.MinMax, ends), dir=str(folder))
    return str(folder / made)


@pytest.mark.parametrize("made", ["calibration.json", "calibration.cache", "calibration.flatbuffers"])
def test_eight_bits_by_a_table_of_onnxruntimes(tmp_path: Path, made: str,
                                               monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    table = {"int8_enable": "1", "int8_calibration_table_name": ranged(tmp_path, made), "dump_subgraphs": "1"}
    eight, feed = session(perceptron(2), **table), {"x": np.linspace(0, 0.5, 16, dtype=np.float32).reshape(2,
                                                                                                           8)}
    (path,) = tmp_path.glob("*.onnx")
    kinds = [node.op_type for node in onnx.load(path).graph.node]
    assert kinds[:5] == ["QuantizeLinear", "DequantizeLinear"] * 2 + ["Gemm"]
    exact = ort.InferenceSession(perceptron(2).SerializeToString()).run(None, feed)[0]
    difference = np.abs(eight.run(None, feed)[0] - exact).max()
    assert 1e-6 < difference < 0.05


def test_tables_of_tensorrts_own(tmp_path: Path) -> None:
    step = np.array(3 / 127, ">f4").tobytes().hex()
    (tmp_path / "native").write_text(f"TRT-8601-EntropyCalibration2\nx: {step}\nb: d: {step}\n")
    given = {"int8_enable": "1", "int8_calibration_table_name": "native", "cache_dir": str(tmp_path),
             "int8_use_native_calibration_table": "1"}
    assert Provider(given).ranges == pytest.approx({"x": 3, "b: d": 3})
    with pytest.raises(InvalidArgument, match="cannot be read"):
        Provider({**given, "int8_use_native_calibration_table": "0"})


@pytest.mark.parametrize("raw", [b"", b"x nan\n", b"{", b'{"data": {}}', b"x\n"])
def test_tables_that_are_none(tmp_path: Path, raw: bytes) -> None:
    for name in ("t.json", "t.cache", "t.flatbuffers"):
        (tmp_path / name).write_bytes(raw)
        with pytest.raises(InvalidArgument, match="cannot be read"):
            Provider({"int8_enable": "1", "int8_calibration_table_name": str(tmp_path / name)})


def test_eight_bit_floats_are_calibrated(tmp_path: Path) -> None:
    assert whole(session(perceptron(2), fp8_enable="1", cache_dir=str(tmp_path / "c"),
                         int8_calibration_table_name=ranged(tmp_path)))


SCALED = """<ir_version: 10, opset_import: ["" : 21]>
g (float[2, 6] x, float s, int64[1] k, bool b) => (float[2, 3] y, int64[1] n, bool c)
<float[6, 3] w = {1, -2, 3, 4, -5, 6, 7, 8, -9, 1, 1, 2, -3, 4, 5, 6, 7, 8}>
{
    m = MatMul(x, w)
    y = Mul(m, s)
    n = Neg(k)
    c = Not(b)
}"""


def test_every_parameter_is_calibrated_in_its_own_shape(tmp_path: Path) -> None:
    """The library takes an argument of one element for none of rank 0; what is no float gets zeros."""
    model = onnx.parser.parse_model(SCALED)
    made = session(model, fp8_enable="1", cache_dir=str(tmp_path / "c"),
                   int8_calibration_table_name=ranged(tmp_path))
    assert whole(made), made.explain()
    made.run(None, {"x": np.ones((2, 6), np.float32), "s": np.float32(2), "k": np.ones(1, np.int64),
                    "b": np.array(True)})


# as users write it

GUIDE = """
import os
import numpy as np
import orthrus as ort
from orthrus.demo import MODEL, samples
from orthrus.quantization import QuantType, quantize_dynamic

NAME = "MIGraphXExecutionProvider"
assert ort.__version__ and NAME in ort.get_available_providers()
images = samples()[0]
session = ort.InferenceSession(MODEL, providers=[NAME])
feed = {session.get_inputs()[0].name: images}
wanted = ort.InferenceSession(MODEL).run(None, feed)[0]
assert session.get_providers()[0] == NAME and session.get_inputs()[0].shape
np.testing.assert_array_equal(session.run([session.get_outputs()[0].name], feed)[0], wanted)
assert NAME in {node.provider for node in session.explain()}

chosen = ort.SessionOptions()
chosen.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_ALL
chosen.enable_profiling = True
options = {"device_id": 0, "migraphx_exhaustive_tune": True}
profiled = ort.InferenceSession(MODEL, chosen, providers=[(NAME, options)])
profiled.run(None, feed)
profiled.end_profiling()

quantize_dynamic(MODEL, "quantized.onnx", weight_type=QuantType.QInt8)
ort.InferenceSession("quantized.onnx", providers=[NAME]).run(None, feed)

sessions = [ort.InferenceSession(MODEL, providers=[(NAME, {"device_id": i})]) for i in (0, 0)]
size = len(images) // 2
parts = [s.run(None, {session.get_inputs()[0].name: images[i * size:None if i else size]})[0]
         for i, s in enumerate(sessions)]
np.testing.assert_array_equal(np.concatenate(parts), wanted)
"""


@pytest.mark.slow
def test_the_guides_snippets(tmp_path: Path) -> None:
    """A GPU's target as the double has it, the module where users have it: on PYTHONPATH."""
    path = os.pathsep.join([DOUBLE, *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run([sys.executable, "-c", GUIDE], cwd=tmp_path, capture_output=True, text=True,
                          env={**os.environ, "PYTHONPATH": path, "MIGRAPHX_DOUBLE": "gpu=1"})
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.slow
def test_the_page_runs_on_the_double(tmp_path: Path) -> None:
    page = Path(__file__).parents[2] / "docs" / "migraphx.md"
    code = "\n".join(re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S))
    path = os.pathsep.join([DOUBLE, *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run([sys.executable, "-c", f"{code}\nassert works"], cwd=tmp_path, capture_output=True,
                          text=True, env={**os.environ, "PYTHONPATH": path, "MIGRAPHX_DOUBLE": "gpu=1"})
    assert done.returncode == 0, done.stderr[-3000:]


def test_one_element_in_another_rank() -> None:
    """As onnxruntime and the CPU provider take it."""
    proto = model([helper.make_node("Mul", ["x", "s"], ["y"])],
                  [info("x", shape=["N", 3]), info("s", shape=[])],
                  [info("y", shape=["N", 3])])
    feed = {"x": np.ones((2, 3), np.float32), "s": np.array([2], np.float32)}
    assert (session(proto).run(None, feed)[0] == 2).all()
