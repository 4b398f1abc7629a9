"""Sessions that are kept: the third is made of what the first two left, or the second of what the first did,
and answers as they did."""

import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from graphs import info, model
from onnx import TensorProto, helper
from skips import needs

import orthrus as ort
from orthrus import knobs
from orthrus.codegen.object import cache
from orthrus.errors import Fail, InvalidArgument
from orthrus.run import keeping
from orthrus.run.engine import Engine
from orthrus.run.kept import Kept

pytestmark = needs("door")

X = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)
W = np.arange(20, dtype=np.float32).reshape(4, 5) / 7


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache of its own; making a session takes no long time, whatever it takes."""
    monkeypatch.setattr(keeping, "_LONG", float("inf"))
    with knobs.setting(CACHE=1, CACHE_DIR=str(tmp_path / "cache"), CACHE_SESSIONS=64):
        yield tmp_path / "cache" / "sessions"


def network(rows: Any = "rows", scale: float = 1.0) -> bytes:
    """`out` = relu(x W) and `sum` = x W + x W, from two inputs of which the second comes first."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["r"]),
             helper.make_node("Mul", ["r", "by"], ["out"]), helper.make_node("Add", ["h", "h"], ["sum"])]
    made = model(nodes, [info("by", shape=[5]), info("x", shape=[rows, 4])],
                 [info("sum", shape=[rows, 5]), info("out", shape=[rows, 5])], {"w": scale * W},
                 producer_name="tests", doc_string="a network")
    made.metadata_props.add(key="author", value="somebody")
    return bytes(made.SerializeToString())


BY = np.linspace(1, 2, 5, dtype=np.float32)
FEEDS = {"x": X, "by": BY}


def expected(x: np.ndarray = X) -> list[np.ndarray]:
    h = x @ W
    return [h + h, np.maximum(h, 0) * BY]


def settled() -> None:
    """Wait until nothing is being written."""
    for thread in threading.enumerate():
        if thread.name == "orthrus-keep":
            thread.join()


def session(source: Any, feeds: dict[str, Any] | None = None, **given: Any) -> ort.InferenceSession:
    """A session that was run once."""
    made = ort.InferenceSession(source, **given)
    made.run(None, FEEDS if feeds is None else feeds)
    settled()
    return made


def prepared(source: Any, feeds: dict[str, Any] | None = None, **given: Any) -> ort.InferenceSession:
    """A session of what two others left, not run yet."""
    for _ in range(2):
        session(source, feeds, **given)
    made = ort.InferenceSession(source, **given)
    assert type(made._sess._engine) is Kept
    return made


def whole(of: ort.InferenceSession) -> bool:
    """Whether the whole engine had to be made after all."""
    return of._sess._engine._whole is not None


def test_the_third_session_is_made_of_what_was_kept() -> None:
    for _ in range(2):
        assert type(session(network())._sess._engine) is Engine
    third = prepared(network())
    for _ in range(3):
        for got, want in zip(third.run(None, FEEDS), expected(), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5)
    (alone,) = third.run(["out"], FEEDS)
    np.testing.assert_allclose(alone, expected()[1], rtol=1e-5)
    assert not whole(third)


def test_a_model_of_many_nodes_is_kept_at_its_first_run(folder: Path) -> None:
    """But not once it comes with other shapes."""
    names = ["x", *(f"v{i}" for i in range(16))]
    nodes = [helper.make_node("Softmax" if i % 2 else "Neg", [a], [b])
             for i, (a, b) in enumerate(zip(names, names[1:], strict=False))]
    source = model(nodes, [info("x", shape=["n", 4])], [info(names[-1], shape=["n", 4])]).SerializeToString()
    (want,) = session(source, {"x": X}).run(None, {"x": X})
    second = ort.InferenceSession(source)
    assert type(second._sess._engine) is Kept
    np.testing.assert_array_equal(second.run(None, {"x": X})[0], want)
    assert not whole(second)
    np.testing.assert_array_equal(second.run(None, {"x": X[:1]})[0], want[:1])
    assert whole(second) and type(ort.InferenceSession(source)._sess._engine) is Engine


def test_what_took_long_to_make_is_kept_at_its_first_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "_LONG", -1.0)
    want = session(network()).run(None, FEEDS)
    second = ort.InferenceSession(network())
    assert type(second._sess._engine) is Kept
    for got, expect in zip(second.run(None, FEEDS), want, strict=True):
        np.testing.assert_array_equal(got, expect)
    assert not whole(second)


@pytest.mark.parametrize("slow", [False, True])
def test_a_large_file_is_kept_at_its_first_run_where_writing_it_is_the_less(
        slow: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else at its second, however many its nodes are."""
    monkeypatch.setattr(keeping, "_FEW", 100)
    monkeypatch.setattr(keeping, "_MANY", 1)
    monkeypatch.setattr(keeping, "_PACE", 1e12 if slow else 0)
    path = tmp_path / "m.onnx"
    path.write_bytes(network())
    for _ in range(1 if slow else 2):
        assert type(session(str(path))._sess._engine) is Engine
    assert type(session(str(path))._sess._engine) is Kept


def test_numbers_that_transforms_are_not_for_go_to_the_whole_engine() -> None:
    rng = np.random.default_rng(0)
    w, x = (rng.standard_normal(shape).astype(np.float32) for shape in ((64, 64, 3, 3), (1, 64, 28, 28)))
    made = model([helper.make_node("Conv", ["x", "w"], ["y"], pads=[1] * 4)], [info("x", shape=x.shape)],
                 [info("y", shape=x.shape)], {"w": w}).SerializeToString()
    third = prepared(made, {"x": x})
    (before,) = third.run(None, {"x": x})
    assert not whole(third)
    odd = x.copy()
    odd[0, 3, 8, 8] = np.nan
    (got,) = third.run(None, {"x": odd})
    touched = np.zeros(x.shape, bool)
    touched[:, :, 7:10, 7:10] = True
    np.testing.assert_array_equal(np.isnan(got), touched)
    np.testing.assert_allclose(got[~touched], before[~touched], atol=2e-4)
    np.testing.assert_array_equal(third.run(None, {"x": x})[0], before)


def test_it_describes_itself_as_the_first_did() -> None:
    first, third = session(network()), prepared(network())
    for one, other in ((first.get_inputs(), third.get_inputs()), (first.get_outputs(), third.get_outputs())):
        assert [(v.name, v.type, v.shape) for v in one] == [(v.name, v.type, v.shape) for v in other]
    before, after = first.get_modelmeta(), third.get_modelmeta()
    for name in ("producer_name", "graph_name", "description", "version", "custom_metadata_map", "domain"):
        assert getattr(before, name) == getattr(after, name)
    assert before.custom_metadata_map == {"author": "somebody"}
    assert third.get_providers() == first.get_providers()
    assert third.get_provider_options() == first.get_provider_options()
    assert not third.get_overridable_initializers() and not whole(third)


def test_wrong_feeds_get_the_errors_they_always_got() -> None:
    first, third = session(network()), prepared(network())
    for feeds in ({"x": X}, {"x": X.astype(np.float64), "by": BY}, {"x": X[0], "by": BY}, {**FEEDS, "y": X}):
        with pytest.raises(Exception) as before:
            first.run(None, feeds)
        with pytest.raises(Exception) as after:
            third.run(None, feeds)
        assert (type(before.value), str(before.value)) == (type(after.value), str(after.value))
    assert not whole(third)


def test_sizes_that_contradict_each_others_names_are_taken() -> None:
    source = bytes(model([helper.make_node("Concat", ["a", "b"], ["c"], axis=0)],
                         [info("a", shape=["n"]), info("b", shape=["n"])],
                         [info("c", shape=["m"])]).SerializeToString())
    feeds = {"a": X[0], "b": X[1]}
    third = prepared(source, feeds)
    for count in (4, 2, 4):
        (made,) = third.run(None, {"a": X[0], "b": X[1, :count]})
        np.testing.assert_array_equal(made, [*X[0], *X[1, :count]])


def test_other_shapes_get_the_whole_engine_and_end_the_keeping() -> None:
    third = prepared(network())
    more = np.concatenate([X, X + 1])
    for got, want in zip(third.run(None, {"x": more, "by": BY}), expected(more), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5)
    assert whole(third)
    for x in (X, more, X):
        np.testing.assert_allclose(third.run(["out"], {"x": x, "by": BY})[0], expected(x)[1], rtol=1e-5)
    assert type(ort.InferenceSession(network())._sess._engine) is Engine


def test_a_model_that_is_run_with_many_shapes_is_not_kept(folder: Path) -> None:
    for _ in range(3):
        made = session(network())
        made.run(None, {"x": X[:1], "by": BY})
        made.run(None, {"x": X[:2], "by": BY})
        assert type(made._sess._engine) is Engine
    assert not folder.exists()


def test_every_other_way_to_run_gives_the_same() -> None:
    third = prepared(network())
    options = ort.RunOptions()
    options.log_severity_level = 3
    results = [third.run(None, FEEDS, options)]
    binding = third.io_binding()
    for name, array in FEEDS.items():
        binding.bind_cpu_input(name, array)
    binding.bind_output("sum")
    binding.bind_output("out")
    third.run_with_iobinding(binding)
    results.append(binding.copy_outputs_to_cpu())
    done = threading.Event()

    def finished(made: Any, _: Any, error: str) -> None:
        assert not error
        results.append(list(made))
        done.set()
    third.run_async(None, FEEDS, finished, None)
    assert done.wait(60)
    values = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in FEEDS.items()}
    results.append([v.numpy() for v in third.run_with_ort_values(None, values)])
    assert not whole(third)
    for made in results:
        for got, want in zip(made, expected(), strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5)


def test_explanations_and_profiles_are_those_of_the_whole_model() -> None:
    first, third = session(network()), prepared(network())
    assert [str(n) for n in third.explain()] == [str(n) for n in first.explain()] and whole(third)
    again = ort.InferenceSession(network())
    with again.profile(compare=False) as profile:
        again.run(None, FEEDS)
    assert "MatMul" in profile.table() and whole(again)
    np.testing.assert_allclose(again.run(None, FEEDS)[1], expected()[1], rtol=1e-5)


def test_a_closed_session_runs_no_more() -> None:
    first, third = session(network()), prepared(network())
    first.close()
    third.close()
    for each in (first, third):
        with pytest.raises(Fail, match="closed"):
            each.run(None, FEEDS)


def test_what_decides_about_code_decides_about_the_name() -> None:
    prepared(network())
    level = ort.SessionOptions()
    level.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    fixed = ort.SessionOptions()
    fixed.add_free_dimension_override_by_name("rows", 3)
    others: list[dict[str, Any]] = [
        {"sess_options": level}, {"sess_options": fixed}, {"disabled_optimizers": ["fold_constants"]},
        *({"providers": [("CPUExecutionProvider", {"float32_precision": p})]} for p in ("fast", "auto"))]
    for given in others:
        assert type(ort.InferenceSession(network(), **given)._sess._engine) is Engine
    assert type(ort.InferenceSession(network(scale=2.0))._sess._engine) is Engine
    same = ort.SessionOptions()
    same.intra_op_num_threads = 1
    for given in ({"sess_options": same}, {"providers": ["CPUExecutionProvider"]},
                  {"providers": [("CPUExecutionProvider", {"float32_precision": "exact"})]}):
        found = ort.InferenceSession(network(), **given)
        np.testing.assert_allclose(found.run(None, FEEDS)[1], expected()[1], rtol=1e-5)


@pytest.mark.parametrize("switches", [{"CACHE": 0}, {"CACHE_SESSIONS": 0}, {"CHECK": 1}, {"DEBUG": 1},
                                      {"CODEGEN": 0}, {"INTERPRET": "Relu"}], ids=str)
def test_switches_that_turn_it_off(switches: dict[str, Any]) -> None:
    prepared(network())
    with knobs.setting(**switches):
        assert type(ort.InferenceSession(network())._sess._engine) is Engine


def test_operators_with_a_meaning_of_the_users_own_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    from orthrus.kernels import KernelRegistry
    from orthrus.ops import define
    from orthrus.providers import CPUExecutionProvider

    prepared(network())
    define.define(lambda x: x, name="OfMyOwn", domain="tests")
    try:
        assert type(ort.InferenceSession(network())._sess._engine) is Kept
    finally:
        define.forget("tests", "OfMyOwn")
    registry = KernelRegistry()
    monkeypatch.setattr(CPUExecutionProvider, "kernels", registry)
    registry.kernel("Relu", provider=CPUExecutionProvider.name)(lambda info: lambda x: x - 1)
    for _ in range(3):
        made = session(network())
        assert type(made._sess._engine) is Engine
        np.testing.assert_allclose(made.run(None, FEEDS)[1], (X @ W - 1) * BY, rtol=1e-5)
    monkeypatch.undo()
    assert type(ort.InferenceSession(network())._sess._engine) is Kept


def test_models_that_are_not_one_part_of_code_are_left_alone(folder: Path) -> None:
    text = model([helper.make_node("StringConcat", ["a", "b"], ["c"])],
                 [info(n, onnx.TensorProto.STRING, [2]) for n in "ab"],
                 [info("c", onnx.TensorProto.STRING, [2])]).SerializeToString()
    words = {"a": np.array(["x", "y"], object), "b": np.array(["z", ""], object)}
    fed = model([helper.make_node("Add", ["x", "y"], ["z"])], [info("x"), info("y")], [info("z")],
                {"y": np.ones((2, 3), np.float32)}).SerializeToString()
    for source, feeds in ((text, words), (fed, {"x": np.zeros((2, 3), np.float32)})):
        for _ in range(3):
            assert type(session(source, feeds)._sess._engine) is Engine
    assert not folder.exists()


def branching(rows: Any = "rows", other: Any = None) -> bytes:
    """`out` is x W where `go`, else -x, or x with `other` columns, which sizes contradict; `sum` is 2 x."""
    then = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["a"]),
                              helper.make_node("Relu", ["a"], ["t"])], "then", [], [info("t", shape=None)])
    less = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["e"]) if other is None else
         helper.make_node("Reshape", ["x", "sizes"], ["e"])], "else", [], [info("e", shape=None)])
    nodes = [helper.make_node("If", ["go"], ["r"], then_branch=then, else_branch=less),
             helper.make_node("Mul", ["r", "r"], ["out"]), helper.make_node("Add", ["x", "x"], ["sum"])]
    return bytes(model(
        nodes, [info("x", shape=[rows, 4]), info("go", TensorProto.BOOL, [])],
        [info("out", shape=None), info("sum", shape=[rows, 4])],
        {"w": W[:, :4].copy(), "sizes": np.array([7, other or 1], np.int64)}).SerializeToString())


@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize("other", [None, 3])
def test_a_model_that_branches_is_kept_with_its_branches(slow: bool, other: int | None,
                                                          monkeypatch: pytest.MonkeyPatch) -> None:
    """Even one that these sizes contradict, which errs as it did."""
    source = branching(other=other)
    feeds = [{"x": X, "go": np.array(go)} for go in (True, False)]
    first = ort.InferenceSession(source)

    def answer(of: ort.InferenceSession, fed: dict[str, Any]) -> Any:
        try:
            return of.run(None, fed)
        except Exception as error:
            return type(error), str(error)
    want = [answer(first, fed) for fed in feeds]
    assert not isinstance(want[1], tuple) or other is not None
    monkeypatch.setattr(keeping, "_LONG", -1.0 if slow else float("inf"))
    if slow:
        session(source, feeds[0])
    made = ort.InferenceSession(source) if slow else prepared(source, feeds[0])
    assert type(made._sess._engine) is Kept
    for _ in range(3):
        for fed, expect in zip(feeds, want, strict=True):
            got = answer(made, fed)
            assert got == expect if isinstance(expect, tuple) else all(
                map(np.array_equal, got, expect))
        assert whole(made) == (other is not None)
    more = {"x": X[:2], "go": np.array(True)}
    np.testing.assert_array_equal(made.run(["out"], more)[0], first.run(["out"], more)[0])
    assert whole(made)


def test_branches_of_other_sizes_are_not_kept(folder: Path) -> None:
    then = helper.make_graph([helper.make_node("Neg", ["x"], ["t"])], "then", [], [info("t", shape=None)])
    other = helper.make_graph([helper.make_node("Transpose", ["x"], ["e"], perm=[1, 0])], "else", [],
                              [info("e", shape=None)])
    nodes = [helper.make_node("If", ["go"], ["r"], then_branch=then, else_branch=other),
             helper.make_node("Exp", ["r"], ["out"])]
    source = model(nodes, [info("x", shape=["n", 4]), info("go", TensorProto.BOOL, [])],
                   [info("out", shape=None)]).SerializeToString()
    for go in (True, False, True, False):
        made = session(source, {"x": X, "go": np.array(go)})
        assert type(made._sess._engine) is Engine
        np.testing.assert_allclose(made.run(None, {"x": X, "go": np.array(go)})[0],
                                   np.exp(-X if go else X.T), rtol=1e-6)
    assert not folder.exists()


def damages() -> dict[str, Callable[[bytes], bytes]]:
    def flipped(at: float) -> Callable[[bytes], bytes]:
        def flip(data: bytes) -> bytes:
            i = int(at * (len(data) - 1))
            return data[:i] + bytes([data[i] ^ 64]) + data[i + 1:]
        return flip
    return {"empty": lambda data: b"", "short": lambda data: data[:100], "cut": lambda data: data[:-9],
            "longer": lambda data: data + b"x", "other": lambda data: bytes(len(data)),
            **{f"flipped at {at}": flipped(at) for at in (0, 0.001, 0.01, 0.1, 0.5, 0.9, 1)}}


@pytest.mark.parametrize("damage", damages())
def test_a_damaged_file_is_not_believed(damage: str, folder: Path) -> None:
    prepared(network())
    (file,) = folder.iterdir()
    file.write_bytes(damages()[damage](file.read_bytes()))
    found = ort.InferenceSession(network())
    assert type(found._sess._engine) is Engine
    np.testing.assert_allclose(found.run(None, FEEDS)[1], expected()[1], rtol=1e-5)
    settled()
    assert type(ort.InferenceSession(network())._sess._engine) is Kept


def test_what_was_kept_of_another_model_is_not_believed(folder: Path) -> None:
    """Each of two files, in the other's place: their models have the same inputs and outputs."""
    prepared(network())
    (first,) = folder.iterdir()
    prepared(network(scale=2.0))
    (second,) = {*folder.iterdir()} - {first}
    data = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(data)
    for scale in (1.0, 2.0):
        found = ort.InferenceSession(network(scale=scale))
        assert type(found._sess._engine) is Engine
        np.testing.assert_allclose(found.run(None, FEEDS)[1], scale * expected()[1], rtol=1e-5)


def test_a_folder_that_others_may_write_to_is_not_believed(folder: Path) -> None:
    prepared(network())
    folder.chmod(0o777)
    assert type(ort.InferenceSession(network())._sess._engine) is Engine
    folder.chmod(0o700)
    assert type(ort.InferenceSession(network())._sess._engine) is Kept


@needs("POSIX")
@pytest.mark.parametrize("what", [pytest.param("owner", marks=needs("root")), "group may write",
                                  "others may write"])
def test_a_file_of_the_cache_that_is_not_this_users_alone_is_not_believed(what: str, folder: Path) -> None:
    prepared(network())
    for each in (*folder.iterdir(), *(f for f in folder.parent.iterdir() if f.is_file())):
        there = cache.load([each.name]) or cache.read_whole(each.name, folder.name, quick=True) is not None
        assert there or not each.stat().st_size
        if what != "owner":
            each.chmod(0o620 if what == "group may write" else 0o602)
        else:
            os.chown(each, 12345, -1)
        assert not cache.load([each.name]) and cache.read_whole(each.name, folder.name, quick=True) is None
    assert type(ort.InferenceSession(network())._sess._engine) is Engine


def test_a_folder_that_cannot_be_written_costs_nothing(folder: Path) -> None:
    folder.parent.mkdir()
    folder.write_text("in the way")
    for _ in range(3):
        made = session(network())
        assert type(made._sess._engine) is Engine


def test_old_sessions_make_room_for_new_ones(folder: Path) -> None:
    def large(i: int) -> bytes:
        weights = np.full((600, 400), i, np.float32)
        return bytes(model([helper.make_node("MatMul", ["x", "w"], ["y"])], [info("x", shape=[2, 600])],
                           [info("y", shape=[2, 400])], {"w": weights}).SerializeToString())
    feeds = {"x": np.ones((2, 600), np.float32)}
    with knobs.setting(CACHE_SESSIONS=3):
        for i in range(4):
            prepared(large(i), feeds)
        assert sum(file.stat().st_size for file in folder.iterdir()) <= 3 << 20
        kinds = [type(ort.InferenceSession(large(i))._sess._engine) for i in range(4)]
    assert kinds[0] is Engine and kinds[-1] is Kept
    with knobs.setting(CACHE_SESSIONS=1):
        for _ in range(3):
            assert type(session(large(7), feeds)._sess._engine) is Engine


def large(path: Path, size: int) -> tuple[Path, int]:
    """A product with ones, and where one of them lies in its file, away from what a look at it samples."""
    source = model([helper.make_node("MatMul", ["x", "w"], ["an_output"])], [info("x", shape=["n", size])],
                   [info("an_output", shape=["n", size])], {"w": np.ones((size, size), np.float32)})
    path.write_bytes(source.SerializeToString())
    first = path.read_bytes().index(np.ones(8, np.float32).tobytes())
    row = next(row for row in range(size // 3, size)
               if all(abs(first + 4 * (row * size + 7) - i * path.stat().st_size // 8) > 8192
                      for i in range(9)))
    return path, first + 4 * (row * size + 7)


def mapped(path: Path, place: int) -> Callable[[], None]:
    pages = np.memmap(path, np.uint8, "r+")
    pages[place] = pages[place]
    before = path.stat()

    def change() -> None:
        pages[place:place + 4] = np.frombuffer(np.float32(1000).tobytes(), np.uint8)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    return change


def in_place(path: Path, place: int) -> Callable[[], None]:
    before = path.stat()

    def change() -> None:
        with path.open("r+b") as file:
            file.seek(place)
            file.write(np.float32(1000).tobytes())
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    return change


def renamed(path: Path, place: int) -> Callable[[], None]:
    before, data = path.stat(), bytearray(path.read_bytes())
    data[place:place + 4] = np.float32(1000).tobytes()

    def change() -> None:
        other = path.with_name("other")
        other.write_bytes(data)
        os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
        other.replace(path)
    return change


CHANGES = {"mapped": mapped, "in place": in_place, "renamed": renamed}


class TestFiles:
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        made = tmp_path / "model.onnx"
        made.write_bytes(network())
        return made

    def test_a_file_is_told_by_place_and_content(self, path: Path) -> None:
        prepared(str(path))
        os.utime(path, ns=(1, 1))
        assert type(ort.InferenceSession(str(path))._sess._engine) is Kept
        moved = path.with_name("moved.onnx")
        moved.write_bytes(path.read_bytes())
        assert type(ort.InferenceSession(str(moved))._sess._engine) is Engine
        path.write_bytes(network(scale=3.0))
        changed = ort.InferenceSession(str(path))
        assert type(changed._sess._engine) is Engine
        np.testing.assert_allclose(changed.run(None, FEEDS)[1], 3 * expected()[1], rtol=1e-5)

    def test_a_file_put_in_its_place_with_its_times_is_another(self, path: Path) -> None:
        prepared(str(path))
        before = path.stat()
        other = path.with_name("other.onnx")
        other.write_bytes(network(scale=3.0))
        os.utime(other, ns=(before.st_atime_ns, before.st_mtime_ns))
        other.replace(path)
        assert path.stat().st_size == before.st_size and path.stat().st_mtime_ns == before.st_mtime_ns
        changed = ort.InferenceSession(str(path))
        np.testing.assert_allclose(changed.run(None, FEEDS)[1], 3 * expected()[1], rtol=1e-5)

    @pytest.mark.parametrize("size", [300, 1000])
    @pytest.mark.parametrize("when", ["before", "created", "run"])
    @pytest.mark.parametrize("how", CHANGES)
    def test_a_weight_changed_without_moving_the_times(self, how: str, when: str, size: int,
                                                       tmp_path: Path) -> None:
        """The answer is that of the weights as they were when the session was made, or as they are now, or an
        error; never some of both, and a session made afterwards has what is there."""
        path, place = large(tmp_path / "large.onnx", size)
        feeds = {"x": np.ones((1, size), np.float32)}
        old = np.full((1, size), size, np.float32)
        new = old.copy()
        new[0, 7] += 999
        for _ in range(2):
            session(str(path), feeds)
        change = CHANGES[how](path, place)
        if when == "before":
            change()
        third = ort.InferenceSession(str(path))
        assert type(third._sess._engine) is (Engine if when == "before" else Kept)
        if when == "created":
            change()
        elif when == "run":
            np.testing.assert_array_equal(third.run(None, feeds)[0], old)
            change()
        allowed = {"before": [new], "created": [old, new], "run": [old]}[when]
        seen = []
        for rows in (1, 1, 2, 1, 3, 2):
            try:
                (made,) = third.run(None, {"x": np.ones((rows, size), np.float32)})
            except Fail as error:
                assert when != "before" and "has been written to" in str(error)
                continue
            seen.append(made[:1].tobytes())
            assert (made == made[0]).all()
        assert set(seen) <= {each.tobytes() for each in allowed} and len(set(seen)) <= 1
        assert when == "created" or seen
        np.testing.assert_array_equal(session(str(path), feeds).run(None, feeds)[0], new)

    def test_what_was_kept_of_another_content_describes_nothing(self, tmp_path: Path) -> None:
        path, _ = large(tmp_path / "large.onnx", 1000)
        feeds = {"x": np.ones((1, 1000), np.float32)}
        for _ in range(2):
            session(str(path), feeds)
        data = path.read_bytes()
        assert data.count(b"an_output") == 2
        path.write_bytes(data.replace(b"an_output", b"an_outpot"))
        third = ort.InferenceSession(str(path))
        assert [v.name for v in third.get_outputs()] == ["an_outpot"]
        third.run(["an_outpot"], feeds)

    def test_a_changed_model_is_kept_again(self, tmp_path: Path) -> None:
        path, place = large(tmp_path / "large.onnx", 1000)
        feeds = {"x": np.ones((1, 1000), np.float32)}
        for _ in range(2):
            session(str(path), feeds)
        CHANGES["mapped"](path, place)()
        for _ in range(3):
            last = session(str(path), feeds)
        assert type(last._sess._engine) is Kept and not whole(last)

    @pytest.mark.parametrize("end", ["removed", "replaced"])
    def test_the_whole_engine_is_that_of_the_model_as_it_was(self, path: Path, end: str) -> None:
        third = prepared(str(path))
        path.unlink()
        if end == "replaced":
            path.write_bytes(network(scale=3.0))
        np.testing.assert_allclose(third.run(None, {"x": X[:2], "by": BY})[1], expected(X[:2])[1], rtol=1e-5)
        assert whole(third)

    def test_a_file_written_to_meanwhile_is_an_error(self, path: Path) -> None:
        third = prepared(str(path))
        third.run(None, FEEDS)
        with path.open("r+b") as file:
            file.write(network(scale=3.0))
        os.utime(path, ns=(1, 1))
        np.testing.assert_allclose(third.run(None, FEEDS)[1], expected()[1], rtol=1e-5)
        with pytest.raises(Fail, match="written to since"):
            third.run(None, {"x": X[:2], "by": BY})
        with pytest.raises(Fail, match="written to since"):
            third.explain()

    def test_data_outside_the_model_file_is_not_watched_over(self, tmp_path: Path, folder: Path) -> None:
        path = tmp_path / "outside.onnx"
        onnx.save(onnx.load_from_string(network()), str(path), save_as_external_data=True, size_threshold=1)
        for _ in range(3):
            assert type(session(str(path))._sess._engine) is Engine
        assert not folder.exists()


def test_an_index_out_of_range_is_said_by_the_definition() -> None:
    gather = bytes(model([helper.make_node("Gather", ["w", "i"], ["y"])],
                         [info("i", onnx.TensorProto.INT64, [3])], [info("y", shape=[3, 5])],
                         {"w": W}).SerializeToString())
    good, bad = {"i": np.array([0, 3, -4])}, {"i": np.array([0, 4, 1])}
    first = session(gather, good)
    third = prepared(gather, good)
    with pytest.raises(Exception) as before:
        first.run(None, bad)
    with pytest.raises(Exception) as after:
        third.run(None, bad)
    assert str(before.value) == str(after.value) and "must be within" in str(after.value)
    np.testing.assert_array_equal(third.run(None, good)[0], W[[0, 3, -4]])
    assert type(ort.InferenceSession(gather)._sess._engine) is Kept


def test_what_was_kept_goes_with_its_session() -> None:
    import gc
    import weakref

    third = prepared(network())
    third.run(None, FEEDS)
    kept = weakref.ref(third._sess._engine._package)
    gc.collect()
    gc.disable()
    try:
        third.explain()
        assert kept() is None
        other = prepared(network())
        engine = weakref.ref(other._sess._engine)
        del other
        assert engine() is None
    finally:
        gc.enable()


def test_many_threads_at_once() -> None:
    third = prepared(network())
    wrong = list[Any]()

    def work(i: int) -> None:
        x = X[:1 + i % 3]
        for _ in range(20):
            made = third.run(None, {"x": x, "by": BY})
            if not np.allclose(made[1], expected(x)[1], rtol=1e-5):
                wrong.append(made)
    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_it_reads_neither_onnx_nor_the_compiler(folder: Path) -> None:
    prepared(network())
    code = ("import sys, numpy as np\nsys.modules['onnx'] = None\n"
            "import orthrus as ort\n"
            "data = sys.stdin.buffer.read()\n"
            "s = ort.InferenceSession(data)\n"
            "x = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4)\n"
            "by = np.linspace(1, 2, 5, dtype=np.float32)\n"
            "print(type(s._sess._engine).__name__, s.run(None, {'x': x, 'by': by})[1].tolist())\n"
            "print([m for m in sys.modules if m.startswith(('orthrus.optimize', 'orthrus.load', "
            "'orthrus.ops.nn.conv', 'orthrus.lowering.rules', 'llvmlite'))])\n")
    done = subprocess.run([sys.executable, "-c", code], input=network(), capture_output=True, check=False,
                          env={**os.environ, "ORTHRUS_CACHE_DIR": str(folder.parent),
                               "ORTHRUS_CACHE_SESSIONS": "64"}, timeout=120)
    first, second = done.stdout.decode().splitlines()
    assert first.startswith("Kept ") and second == "[]", done.stderr.decode()
    np.testing.assert_allclose(eval(first.removeprefix("Kept ")), expected()[1], rtol=1e-5)


COMPILED = """
import importlib.util, sys
real = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "llvmlite" else real(name, *rest)
sys.modules["llvmlite"] = None
import numpy as np, orthrus as ort
s = ort.InferenceSession("c.onnx", trust=True)
print(s.explain())
np.save("y.npy", s.run(None, dict(np.load("x.npz")))[1])
"""


def test_a_model_compiled_ahead_runs_without_a_compiler(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(network())
    np.savez(tmp_path / "x.npz", **FEEDS)
    environment = {**os.environ, "ORTHRUS_CACHE": "0"}
    tool = ["-c", "from orthrus.tools.cli.main import main; main()"]
    for command in ([*tool, "compile", "m.onnx", "--provider", "cpu", "--dim", "rows=3", "--out", "c.onnx"],
                    ["-c", COMPILED]):
        done = subprocess.run([sys.executable, *command], cwd=tmp_path, capture_output=True, text=True,
                              check=False, env=environment, timeout=300)
        assert done.returncode == 0, done.stderr
    assert "compiled ahead" in done.stdout and "slow" not in done.stderr
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), expected()[1], rtol=1e-5)
    (only,) = onnx.load(tmp_path / "c.onnx").graph.node
    assert only.op_type == "EPContext"


def test_a_model_compiled_for_another_machine_is_refused(tmp_path: Path,
                                                         monkeypatch: pytest.MonkeyPatch) -> None:
    from orthrus.codegen.machines import detect, machine
    from orthrus.errors import EPFail

    options = ort.SessionOptions()
    options.add_free_dimension_override_by_name("rows", 3)
    options.add_session_config_entry("ep.context_enable", "1")
    options.add_session_config_entry("ep.context_file_path", str(tmp_path / "c.onnx"))
    ort.InferenceSession(network(), options)
    made = ort.InferenceSession(str(tmp_path / "c.onnx"), trust=True)
    np.testing.assert_allclose(made.run(None, FEEDS)[1], expected()[1], rtol=1e-5)
    with pytest.raises(InvalidArgument, match="Got: 2 Expected: 3"):
        made.run(None, {"x": X[:2], "by": BY})
    monkeypatch.setattr(detect, "host", lambda: machine.SSE2)
    with pytest.raises(EPFail, match="some of which x86_64 with vectors of 128 bits here lacks"):
        ort.InferenceSession(str(tmp_path / "c.onnx"), trust=True)


def test_each_byte_of_the_package_counts(tmp_path: Path) -> None:
    """Sizes and times are not looked at: images are built with the times of another version."""
    source = Path(ort.__file__).parent
    copy = tmp_path / "package"
    shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__"))

    def stamp(of: Path) -> str:
        return cache._stamp(str(of), cache.ABOVE)
    first = stamp(copy)
    files = [file for file in sorted(copy.rglob("*.py"))
             if file.relative_to(copy).parts[0] not in cache.ABOVE]
    assert first == stamp(source) == cache.stamp() != ""
    rng = np.random.default_rng(0)
    for file in (files[int(i)] for i in rng.integers(len(files), size=12)):
        before, status = file.read_bytes(), file.stat()
        at = int(rng.integers(len(before) or 1))
        file.write_bytes(before[:at] + b"~" + before[at + 1:])
        os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
        assert stamp(copy) != first
        file.write_bytes(before)
    assert stamp(copy) == first
    files[0].rename(files[0].with_name("renamed.py"))
    assert stamp(copy) != first


def test_a_file_of_the_package_that_was_written_to_is_told(tmp_path: Path,
                                                           monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose time and size were put back; a new one by its content; and one that is as it was is not read."""
    copy = tmp_path / "package"
    (copy / "codegen").mkdir(parents=True)
    files = [copy / "a.py", copy / "codegen" / "b.py"]
    for file in files:
        file.write_text("x = 1")
    monkeypatch.setattr(cache, "_CODEGEN", str(copy / "codegen"))

    def look() -> str:
        cache.stamp.cache_clear()
        cache.look.cache_clear()
        return cache.look()
    try:
        for settled in (-1, 1 << 62):
            monkeypatch.setattr(cache, "_SETTLED", settled)
            before, seen = look(), set[str]()
            assert before and look() == before
            for number, file in enumerate(files):
                status = file.stat()
                file.write_text(f"x = {number + 2}")
                os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
                seen.add(look())
                file.write_text("x = 1")
            assert len(seen) == 2 and before not in seen
        monkeypatch.setattr(cache, "_SETTLED", -1)
        monkeypatch.setattr("builtins.open", lambda *given, **_: pytest.fail("a source was read"))
        assert look()
    finally:
        monkeypatch.undo()
        cache.stamp.cache_clear()
        cache.look.cache_clear()


@pytest.mark.parametrize("step", [pytest.param(8, marks=pytest.mark.slow),
                                  pytest.param(1, marks=pytest.mark.thorough)])
def test_onnx_cases_give_the_same_from_what_was_kept(step: int) -> None:
    """Every case of ONNX's own, or every eighth, that is one part of code, run as kept, bit for bit as
    before."""
    from onnx.backend.test.loader import load_model_tests

    kinds = {Kept: 0, Engine: 0}
    for case in load_model_tests(kind="node")[::step]:
        source, names = case.model.SerializeToString(), [v.name for v in case.model.graph.input]
        feeds = dict(zip(names, case.data_sets[0][0], strict=False))
        try:
            before = session(source, feeds).run(None, feeds)
            session(source, feeds)
            third = ort.InferenceSession(source)
        except Exception:
            continue
        kinds[type(third._sess._engine)] += 1
        if type(third._sess._engine) is Kept:
            for got, want in zip(third.run(None, feeds), before, strict=True):
                np.testing.assert_array_equal(got, want, case.name)
    assert kinds[Kept] > 500 // step, kinds
