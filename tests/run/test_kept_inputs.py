"""Kept sessions of models whose inputs are odd: one that nothing reads, dimensions whose name lies."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
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
from orthrus.run import keeping
from orthrus.run.engine import Engine
from orthrus.run.kept import Kept

pytestmark = needs("door")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache of its own; making a session takes no long time, whatever it takes."""
    monkeypatch.setattr(keeping, "_LONG", float("inf"))
    with knobs.setting(CACHE=1, CACHE_DIR=str(tmp_path / "cache"), CACHE_SESSIONS=64):
        yield tmp_path / "cache" / "sessions"


def session(source: bytes, *runs: dict[str, Any]) -> ort.InferenceSession:
    """A session that was run so, and all that it keeps written."""
    made = ort.InferenceSession(source)
    for feeds in runs:
        made.run(None, feeds)
    for thread in threading.enumerate():
        if thread.name == "orthrus-keep":
            thread.join()
    return made


def engine(of: ort.InferenceSession) -> Any:
    return of._sess._engine


def told(act: Any) -> tuple[type, str]:
    """What is raised, and what it says."""
    with pytest.raises(Exception) as raised:
        act()
    return raised.type, str(raised.value)


TYPES = {TensorProto.FLOAT: np.float32, TensorProto.INT64: np.int64, TensorProto.BOOL: np.bool_,
         TensorProto.FLOAT16: np.float16, TensorProto.UINT8: np.uint8, TensorProto.DOUBLE: np.float64,
         TensorProto.STRING: object}
SHAPES: list[tuple[Any, tuple[int, ...]]] = [
    ([3], (3,)), (["k"], (7,)), ([2, "k"], (2, 1)), ([], ()), (None, (2, 1, 3)), (["k", 0], (4, 0))]


def unread(place: int, elem: int, shape: Any, rows: Any = "rows") -> bytes:
    """y = relu(a) * b, and an input `u` at this place that nothing reads."""
    inputs = [info("a", shape=[rows, 4]), info("b", shape=[4])]
    inputs.insert(place, helper.make_tensor_value_info("u", elem, shape))
    nodes = [helper.make_node("Relu", ["a"], ["r"]), helper.make_node("Mul", ["r", "b"], ["y"])]
    return bytes(model(nodes, inputs, [info("y", shape=[rows, 4])]).SerializeToString())


@pytest.mark.parametrize("elem", TYPES, ids=TensorProto.DataType.Name)
def test_an_input_that_nothing_reads_is_fed_and_checked(elem: int) -> None:
    rng = np.random.default_rng(elem)
    dtype = TYPES[elem]
    for i, (declared, shape) in enumerate(SHAPES):
        source = unread(i % 3, elem, declared)
        a, b = (rng.standard_normal(size).astype(np.float32) for size in ((int(rng.integers(1, 9)), 4), 4))
        u: np.ndarray = np.full(shape, "text" if dtype is object else 1, dtype)
        feeds = {"b": b, "u": u, "a": a}
        first, _ = session(source, feeds), session(source, feeds)
        third = ort.InferenceSession(source)
        assert (type(engine(first)), type(engine(third))) == (Engine, Kept)
        assert [(v.name, v.type, v.shape) for v in first.get_inputs()] == [
            (v.name, v.type, v.shape) for v in third.get_inputs()]
        for made in (first, third):
            assert engine(made).quick(None, feeds) is not None
            np.testing.assert_array_equal(made.run(None, feeds)[0], np.maximum(a, 0) * b)
            np.testing.assert_array_equal(made.run(["y"], {**feeds, "u": u.tolist()} if shape else feeds)[0],
                                          np.maximum(a, 0) * b)
        wrong: list[dict[str, Any]] = [{"a": a, "b": b}, {**feeds, "v": u}, {**feeds, "u": None}, {"u": u},
                                       {**feeds, "u": np.zeros(shape, np.int32)},
                                       {**feeds, "u": np.zeros(shape, "i2" if dtype is object else object)}]
        if declared:
            wrong += [{**feeds, "u": u[None]},
                      *({**feeds, "u": np.zeros([5 if isinstance(d, int) else 2 for d in declared], dtype)}
                        for d in declared if isinstance(d, int))]
        for each in wrong:
            assert engine(first).quick(None, each) is None and engine(third).quick(None, each) is None
            assert told(lambda: first.run(None, each)) == told(lambda: third.run(None, each))  # noqa: B023
        assert engine(third)._whole is None
        more = np.concatenate([a, -a])
        np.testing.assert_array_equal(third.run(None, {**feeds, "a": more})[0], np.maximum(more, 0) * b)
        assert engine(third)._whole is not None
        for made in (first, third):
            made.close()
            assert "closed" in told(lambda: made.run(None, feeds))[1]  # noqa: B023


def test_an_unread_input_that_shares_the_name_of_a_dimension_has_a_say() -> None:
    source = unread(0, TensorProto.FLOAT, ["rows", "k"])
    a, b = np.ones((3, 4), np.float32), np.ones(4, np.float32)
    for rows in (3, 2, 3):
        made = session(source, {"u": np.ones((rows, 2), np.float32), "a": a, "b": b})
        u = np.ones((rows, 1), np.float32)
        np.testing.assert_array_equal(made.run(None, {"u": u, "a": a, "b": b})[0], a)


def test_an_unread_input_over_the_limit_is_refused() -> None:
    limits = ort.Limits(max_tensor_bytes=64)
    made = ort.InferenceSession(unread(2, TensorProto.FLOAT, ["k"]), limits=limits)
    feeds = {"a": np.ones((2, 4), np.float32), "b": np.ones(4, np.float32), "u": np.ones(16, np.float32)}
    for _ in range(2):
        made.run(None, feeds)
    assert engine(made).quick(None, feeds) is not None
    assert "over the limit" in told(lambda: made.run(None, {**feeds, "u": np.ones(17, np.float32)}))[1]


def lying(rng: np.random.Generator) -> tuple[bytes, dict[str, Any], dict[str, Any], dict[str, Any]]:
    """A model in which one name stands for several sizes, feeds that say so in two ways, and such that do
    not."""
    count, rank = int(rng.integers(1, 4)), int(rng.integers(2, 4))
    axes = [f"d{axis}" for axis in range(rank)]
    apart = [[str(rng.choice(["?", axes[axis]])) for axis in range(rank)] for _ in range(count)]
    apart[0][:2] = ["?", "?"]
    nodes = [helper.make_node("ReduceMax", ["x0"], ["most"], keepdims=0)]
    for i in range(count):
        nodes += [helper.make_node("Max", [f"x{i}", "most"], [f"m{i}"]),
                  helper.make_node("Transpose", [f"m{i}"], [f"y{i}"], perm=[1, 0, *range(2, rank)])]
    source = bytes(model(nodes, [info(f"x{i}", shape=shape) for i, shape in enumerate(apart)],
                         [info(f"y{i}", shape=None) for i in range(count)]).SerializeToString())

    def feeds(first: int, second: int) -> dict[str, Any]:
        shapes = [[first, second if i == 0 else first, *[first] * (rank - 2)] for i in range(count)]
        return {f"x{i}": rng.standard_normal(shape).astype(np.float32) for i, shape in enumerate(shapes)}
    a, b = (int(n) for n in rng.choice(np.arange(1, 9), 2, replace=False))
    return source, feeds(a, b), feeds(b, a), feeds(a, a)


def wanted(feeds: dict[str, Any]) -> list[np.ndarray]:
    most = feeds["x0"].max()
    return [np.swapaxes(np.maximum(x, most), 0, 1) for x in feeds.values()]


def check(of: ort.InferenceSession, feeds: dict[str, Any]) -> None:
    for got, want in zip(of.run(None, feeds), wanted(feeds), strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("seed", range(12))
def test_a_session_whose_dimensions_names_lie_is_kept(seed: int) -> None:
    source, feeds, other, same = lying(np.random.default_rng(seed))
    first, _ = session(source, feeds), session(source, feeds)
    third = ort.InferenceSession(source)
    assert type(engine(third)) is Kept
    for describe in (ort.InferenceSession.get_inputs, ort.InferenceSession.get_outputs):
        assert [(v.name, v.type, v.shape) for v in describe(first)] == [
            (v.name, v.type, v.shape) for v in describe(third)]
    for _ in range(2):
        check(third, feeds)
    last = third.get_outputs()[-1].name
    np.testing.assert_array_equal(third.run([last], feeds)[0], wanted(feeds)[-1])
    assert engine(third)._whole is None
    wrong = {**feeds, "x0": feeds["x0"].astype(np.float64)}
    assert told(lambda: first.run(None, wrong)) == told(lambda: third.run(None, wrong))
    assert engine(third)._whole is None
    for each in ((other, same, feeds) if seed % 2 else (same, feeds, other)):
        check(third, each)
        assert engine(third)._whole is not None
    assert type(engine(ort.InferenceSession(source))) is Engine


@pytest.mark.parametrize("order", ["agree first", "lie first", "agree alone"])
def test_feeds_that_lie_sometimes(order: str) -> None:
    """Nothing is kept of a session that was run with shapes that agree and then with such that do not; of one
    whose names turned out to lie at its first run, what lied is kept, and answers everything."""
    source, feeds, _, same = lying(np.random.default_rng(5))
    runs = {"agree first": (same, feeds), "lie first": (feeds, same), "agree alone": (same,)}[order]
    for _ in range(2):
        session(source, *runs)
    third = ort.InferenceSession(source)
    assert type(engine(third)) is (Engine if order == "agree first" else Kept)
    for each in (*runs, feeds, same, feeds):
        check(third, each)


def test_what_watches_a_session_does_not_hold_it() -> None:
    source, feeds, *_ = lying(np.random.default_rng(1))
    gc.collect()
    gc.disable()
    try:
        made = session(source, feeds)
        seen = weakref.ref(engine(made))
        literal = weakref.ref(engine(made)._literal)
        assert literal() is not None
        del made
        assert seen() is None and literal() is None
    finally:
        gc.enable()


def test_a_file_whose_names_lie_is_kept_at_its_first_run(tmp_path: Path,
                                                         monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeping, "_LONG", -1.0)
    source, feeds, other, _ = lying(np.random.default_rng(2))
    path = tmp_path / "m.onnx"
    onnx.save(onnx.load_from_string(source), str(path))
    session(str(path), feeds)  # type: ignore[arg-type]
    second = ort.InferenceSession(str(path))
    assert type(engine(second)) is Kept
    check(second, feeds)
    check(second, other)
