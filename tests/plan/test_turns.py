"""Loops and Scans whose turns generated code makes: they give what their bodies give turn by turn."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from control_models import drawn
from graphs import info, model
from onnx import TensorProto, helper, numpy_helper

import orthrus as ort
import orthrus.plan.turns
from orthrus.errors import Fail, InvalidArgument
from orthrus.ir import No
from orthrus.plan.turns import Turning, _Frame

F, INT, B = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
LEVELS = (ort.GraphOptimizationLevel.ORT_ENABLE_ALL, ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
          ort.GraphOptimizationLevel.ORT_ENABLE_BASIC)


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """How many turns were made at once, each time."""
    counts, made = list[int](), Turning.__call__

    def counted(*given: Any) -> Any:
        result = made(*given)
        if result is not None:
            counts.append(result.done)
        return result
    monkeypatch.setattr(Turning, "__call__", counted)
    return counts


def session(given: bytes, seed: int = 0) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1 + seed % 2
    options.graph_optimization_level = LEVELS[seed % 3]
    return ort.InferenceSession(given, options)


def plain(given: bytes, seed: int = 0) -> ort.InferenceSession:
    """A session that calls each body turn by turn."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Turning, "of", classmethod(lambda cls, program: No("the reference")))
        return session(given, seed)


def compare(given: bytes, feeds: list[dict[str, np.ndarray]], seed: int = 0) -> None:
    """Twice each of `feeds`: the same bytes as turn by turn, nothing fed is changed, and results stay as they
    are when others are made."""
    ours, wanted = session(given, seed), list[Any]()
    reference = plain(given, seed)
    for fed in feeds:
        try:
            wanted.append(reference.run(None, fed))
        except Exception as error:
            wanted.append(error)
    kept = []
    for fed, expected in list(zip(feeds, wanted, strict=True)) * 2:
        before = {name: array.copy() for name, array in fed.items()}
        if isinstance(expected, Exception):
            with pytest.raises(type(expected)):
                ours.run(None, fed)
        else:
            kept.append((ours.run(None, fed), expected))
        for name, array in fed.items():
            assert array.tobytes() == before[name].tobytes(), name
    for got, expected in kept:
        for a, b in zip(got, expected, strict=True):
            assert (a.dtype, a.shape) == (b.dtype, b.shape)
            assert a.tobytes() == b.tobytes()


def check_drawn(seed: int) -> None:
    made, feeds = drawn(seed)
    compare(made.SerializeToString(), feeds, seed)


@pytest.mark.parametrize("first", range(0, 60, 20))
def test_random_control_flow(first: int, turns: list[int]) -> None:
    for seed in range(first, first + 20):
        check_drawn(seed)
    assert sum(turns) > 100


@pytest.mark.slow
@pytest.mark.parametrize("first", [101, *(pytest.param(i, marks=pytest.mark.thorough)
                                          for i in range(201, 701, 100))])
def test_much_random_control_flow(first: int) -> None:
    for seed in range(first, first + 100):
        check_drawn(seed)


def loop(nodes: list[Any], states: dict[str, list[int]], results: list[str], rows: int = 0,
         inputs: dict[str, list[int]] | None = None, most: str = "n") -> bytes:
    """A Loop over float32 states by name, whose body reads `number` and `true` and gives `results`, the
    first the condition; fed are n, c, the states and `inputs`."""
    shapes = list(states.values())
    body = helper.make_graph(
        nodes, "turn", [info("number", INT, []), info("true", B, []),
                        *(info(name, F, shape) for name, shape in states.items())],
        [info(results[0], B, []), *(info(name, F, None) for name in results[1:])])
    outputs = [f"y{i}" for i in range(len(states) + rows)]
    return model(
        [helper.make_node("Loop", [most, "c", *(f"{name}_0" for name in states)], outputs, body=body)],
        [info("n", INT, []), info("c", B, []),
         *(info(f"{name}_0", F, shape) for name, shape in zip(states, shapes, strict=True)),
         *(info(name, F, shape) for name, shape in (inputs or {}).items())],
        [info(name, F, None) for name in outputs]).SerializeToString()


def fed(n: int, c: bool = True, **arrays: Any) -> dict[str, np.ndarray]:
    return {"n": np.array(n), "c": np.array(c),
            **{name: np.asarray(array, np.float32) for name, array in arrays.items()}}


def node(op: str, inputs: str, output: str, **attributes: Any) -> Any:
    return helper.make_node(op, inputs.split(), [output], **attributes)


def test_states_change_places(turns: list[int]) -> None:
    """a, b, c = b, c, tanh(a + b): what is passed on is what was there before the turn."""
    given = loop([node("Identity", "true", "go"), node("Add", "a b", "s"), node("Tanh", "s", "t"),
                  node("Identity", "b", "b2"), node("Identity", "c", "c2")],
                 {"a": [3], "b": [3], "c": [3]}, ["go", "b2", "c2", "t", "t", "a"], 2)
    feeds = [fed(n, a_0=[1, 2, 3], b_0=[4, 5, 6], c_0=[7, 8, 9 + n]) for n in (0, 1, 2, 3, 7, 40)]
    compare(given, feeds)
    assert max(turns) >= 39


@pytest.mark.parametrize("shape", [[], [0], [1], [5], [2, 0, 3]])
def test_states_of_any_size(shape: list[int], turns: list[int]) -> None:
    given = loop([node("Identity", "true", "go"), node("Neg", "a", "m"), node("Sub", "m x", "t")],
                 {"a": shape}, ["go", "t", "x", "a", "t"], 3, inputs={"x": shape})
    drawn = np.random.default_rng(1)
    compare(given, [fed(n, a_0=drawn.random(shape), x=drawn.random(shape)) for n in (0, 1, 6, 6)])
    assert turns or 0 in shape


def test_the_condition_ends_the_turns(turns: list[int]) -> None:
    given = loop([node("Add", "a x", "t"), node("ReduceMax", "t", "top", keepdims=0),
                  node("ReduceMax", "x", "least", keepdims=0), node("Mul", "least least", "square"),
                  node("Less", "top square", "go")],
                 {"a": [4]}, ["go", "t", "t"], 1, inputs={"x": [4]})
    feeds = [fed(1000, c, a_0=np.zeros(4), x=np.full(4, x)) for c in (True, False) for x in (1, 2, 9, 200)]
    compare(given, feeds)
    assert max(turns) == 200


def test_without_a_trip_count(turns: list[int]) -> None:
    given = loop([node("Add", "a x", "t"), node("ReduceMax", "t", "top", keepdims=0),
                  node("Less", "top last", "go")], {"a": [4]}, ["go", "t"],
                 inputs={"x": [4], "last": []}, most="")
    compare(given, [fed(0, a_0=np.zeros(4), x=np.full(4, 0.5), last=last) for last in (0, 3, 5000)])
    assert max(turns) > 9000


@pytest.mark.parametrize("carried", [0, 1])
@pytest.mark.parametrize("level", LEVELS)
def test_a_condition_left_out_at_the_end(carried: int, level: Any) -> None:
    """It counts as an input, and what the body says of it ends the turns, as in onnxruntime."""
    value = helper.make_tensor_value_info
    body = helper.make_graph(
        [node("Less", "n two", "go"), node("Identity", "n", "row"),
         *([node("Add", "a a", "b")] if carried else [])], "body",
        [value("n", INT, []), value("given", B, []), *([value("a", F, [])] if carried else [])],
        [value("go", B, []), *([value("b", F, [])] if carried else []), value("row", INT, [])],
        [numpy_helper.from_array(np.array(2), "two")])
    outputs = ["y", "rows"][1 - carried:]
    looped = helper.make_node("Loop", ["m", "", "x"][:2 + carried], outputs, body=body)
    given = model([looped], [info("m", INT, []), info("x", F, [])],
                  [info(name, {"y": F, "rows": INT}[name], None) for name in outputs])
    options = ort.SessionOptions()
    options.graph_optimization_level = level
    made = ort.InferenceSession(given.SerializeToString(), options)
    for most in (9, 2, 0):
        *last, rows = made.run(None, {"m": np.array(most), "x": np.float32(1)})
        turns = min(most, 3)
        assert rows.tolist() == list(range(turns)) and last == [2.0 ** turns] * carried


@pytest.mark.parametrize("dims", [(a, b) for a in ((), (1,), ("k",)) for b in ((), (1,))])
@pytest.mark.parametrize("most", ["", "m", "three"])
@pytest.mark.parametrize("level", LEVELS)
def test_a_body_that_takes_its_number_as_a_vector(level: Any, most: str, dims: tuple[Any, Any]) -> None:
    """The number and the condition come in the rank that the body declares, as in onnxruntime; whether they
    are read by what wants that rank or only passed on."""
    ranked = {(): "Unsqueeze", (1,): "Squeeze", ("k",): "Squeeze"}
    nodes = [node("Less", "n two", "less"), node("Reshape", "less lone", "go"),
             node("Identity", "n", "number"), node("Identity", "c", "true"),
             node(ranked[dims[0]], "n zero", "other"),
             node(ranked[dims[1]], "c zero", "flag")]
    kinds = {"number": INT, "true": B, "other": INT, "flag": B}
    body = helper.make_graph(nodes, "body", [info("n", INT, list(dims[0])), info("c", B, list(dims[1]))],
                             [info("go", B, []), *(info(name, kind, None) for name, kind in kinds.items())])
    tables = {"two": np.array(2), "lone": np.zeros(0, np.int64), "zero": np.array([0]), "three": np.array(3)}
    given = model([helper.make_node("Loop", [most, ""], [f"all_{name}" for name in kinds], body=body)],
                  [info("m", INT, [])], [info(f"all_{name}", kind, None) for name, kind in kinds.items()],
                  tables)
    options = ort.SessionOptions()
    options.graph_optimization_level = level
    numbers, trues, others, flags = ort.InferenceSession(given.SerializeToString(), options).run(
        None, {"m": np.array(3)})
    for found, wanted, rank in ((numbers, [0, 1, 2], len(dims[0])), (trues, [True] * 3, len(dims[1])),
                                (others, [0, 1, 2], 1 - len(dims[0])), (flags, [True] * 3, 1 - len(dims[1]))):
        assert found.shape == (3, 1)[:1 + rank] and found.ravel().tolist() == wanted


@pytest.mark.parametrize("declared", [None, [], [1], [2, 3]])
def test_carried_elements_change_their_shape(declared: list[int] | None) -> None:
    """What a body declares of the shapes of a sequence's elements says nothing about the last one: converters
    declare scalars where they know none."""
    carried = [helper.make_tensor_sequence_value_info(name, F, declared) for name in ("s", "t")]
    nodes = [node("Identity", "true", "again"), node("SequenceInsert", "s x", "t")]
    body = helper.make_graph(nodes, "turn", [info("number", INT, []), info("true", B, []), carried[0]],
                             [info("again", B, []), carried[1]])
    made = model([helper.make_node("SequenceEmpty", [], ["s_0"]),
                  helper.make_node("Loop", ["n", "", "s_0"], ["s_n"], body=body),
                  node("ConcatFromSequence", "s_n", "y", axis=1)],
                 [info("n", INT, []), info("x", F, ["a", "b"])], [info("y", F, None)])
    x = np.arange(4, dtype=np.float32).reshape(2, 2)
    [y] = ort.InferenceSession(made.SerializeToString()).run(None, {"n": np.array(3), "x": x})
    np.testing.assert_array_equal(y, np.concatenate([x] * 3, 1), strict=True)


def test_rows_of_many_chunks(turns: list[int]) -> None:
    """Where the condition may end the turns, rows come a MiB at a time."""
    given = loop([node("Tanh", "a", "t"), node("Identity", "true", "go")], {"a": [3000]},
                 ["go", "t", "t"], 1)
    compare(given, [fed(n, a_0=np.random.default_rng(n).random(3000)) for n in (5, 400)])
    assert len(turns) > 8


def test_growing_states_are_left_to_the_body(turns: list[int]) -> None:
    given = loop([node("Identity", "true", "go"), node("Concat", "a x", "t", axis=0)], {"a": [None]},
                 ["go", "t"], inputs={"x": [2]})
    compare(given, [fed(n, a_0=[1, 2, 3], x=[4, 5]) for n in (0, 3, 9)])
    assert not turns


def test_what_a_step_refuses_is_its_error(turns: list[int]) -> None:
    """An index out of range in the eighth turn."""
    given = loop([node("Identity", "true", "go"), node("Gather", "x number", "row", axis=0),
                  node("Add", "a row", "t")], {"a": [3]}, ["go", "t"], inputs={"x": [7, 3]})
    made, x = session(given), np.ones((7, 3))
    for _ in range(2):
        (y,) = made.run(None, fed(7, a_0=np.zeros(3), x=x))
        assert y.tolist() == [7, 7, 7]
        with pytest.raises((Fail, InvalidArgument), match="out of"):
            made.run(None, fed(8, a_0=np.zeros(3), x=x))
    assert turns


def scan(axis: int, back: int, out_axis: int, out_back: int) -> bytes:
    body = helper.make_graph(
        [node("Add", "h x", "s"), node("Tanh", "s", "t"), node("Identity", "x", "z")], "turn",
        [info("h", F, [2, 3]), info("x", F, [2, 3])], [info(name, F, [2, 3]) for name in ("t", "s", "z")])
    return model([helper.make_node("Scan", ["h_0", "x"], ["h", "y", "z"], body=body, num_scan_inputs=1,
                                   scan_input_axes=[axis], scan_input_directions=[back],
                                   scan_output_axes=[out_axis, 0], scan_output_directions=[out_back, 0])],
                 [info("h_0", F, [2, 3]), info("x", F, None)],
                 [info(name, F, None) for name in "hyz"]).SerializeToString()


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -2, -3])
@pytest.mark.parametrize("back", [0, 1])
def test_scanned_axes_and_directions(axis: int, back: int, turns: list[int]) -> None:
    drawn, feeds = np.random.default_rng(3), []
    for trips in (1, 2, 5, 5):
        x = np.moveaxis(drawn.random((trips, 2, 3), np.float32), 0, axis)
        feeds += [{"h_0": drawn.random((2, 3), np.float32), "x": x},
                  {"h_0": drawn.random((3, 2), np.float32).T, "x": np.ascontiguousarray(x)}]
    compare(scan(axis, back, axis, 1 - back), feeds)
    assert max(turns) == 5


def test_turns_end_where_the_run_is_told_to(monkeypatch: pytest.MonkeyPatch) -> None:
    given = loop([node("Identity", "true", "go"), node("Tanh", "a", "t")], {"a": [8]}, ["go", "t"], most="")
    made, options, entered, run = session(given), ort.RunOptions(), list[int](), _Frame.run

    def told(frame: _Frame, most: int) -> int:
        entered.append(most)
        options.terminate = len(entered) == 5
        return run(frame, min(most, 100))
    monkeypatch.setattr(_Frame, "run", told)
    with pytest.raises(Fail, match="terminate"):
        made.run(None, fed(0, a_0=np.zeros(8)), options)
    assert len(entered) == 5


def test_turns_are_bounded(turns: list[int]) -> None:
    given = loop([node("Identity", "true", "go"), node("Tanh", "a", "t")], {"a": [8]}, ["go", "t"], most="")
    made = ort.InferenceSession(given, limits=ort.Limits(max_loop_trips=1000))
    with pytest.raises(Fail, match="1000 trips"):
        made.run(None, fed(0, a_0=np.zeros(8)))
    assert sum(turns) == 999


def test_many_threads_have_frames_of_their_own(turns: list[int]) -> None:
    given = loop([node("Identity", "true", "go"), node("Mul", "a x", "s"), node("Tanh", "s", "t")],
                 {"a": [64]}, ["go", "t", "t"], 1, inputs={"x": [64]})
    made, reference, failures = session(given), plain(given), list[BaseException]()

    def work(seed: int) -> None:
        drawn = np.random.default_rng(seed)
        try:
            for n in (30, 2, 90) * 5:
                feeds = fed(n, a_0=drawn.random(64), x=drawn.random(64) + 1)
                for a, b in zip(made.run(None, feeds), reference.run(None, feeds), strict=True):
                    np.testing.assert_array_equal(a, b)
        except BaseException as error:
            failures.append(error)
    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures and turns


def test_explanation_tells() -> None:
    given = loop([node("Identity", "true", "go"), node("Tanh", "a", "t")], {"a": [8]}, ["go", "t"])
    assert "control Loop, turns in generated code" in str(session(given).explain())
    nonzero = loop([node("Identity", "true", "go"), node("NonZero", "a", "i"), node("Cast", "i", "f", to=F),
                    node("ReduceSum", "f", "t", keepdims=0)], {"a": []}, ["go", "t"])
    assert "control Loop, turn by turn: " in str(session(nonzero).explain())


def test_initializers_and_captures_are_only_read(turns: list[int]) -> None:
    """States that become a constant of the body, a capture, the number."""
    body = helper.make_graph(
        [node("Identity", "true", "go"), node("Cast", "number", "f", to=F), node("Identity", "k", "k2"),
         node("Identity", "x", "x2"), node("Identity", "number", "m")], "turn",
        [info("number", INT, []), info("true", B, []), info("a", F, [2]), info("b", F, [2]),
         info("i", INT, [])],
        [info("go", B, []), info("k2", F, [2]), info("x2", F, [2]), info("m", INT, []), info("f", F, []),
         info("a", F, [2])], [numpy_helper.from_array(np.array([5, 6], np.float32), "k")])
    given = model([helper.make_node("Loop", ["n", "c", "x", "x", "n"], ["y0", "y1", "y2", "y3", "y4"],
                                    body=body)],
                  [info("n", INT, []), info("c", B, []), info("x", F, [2])],
                  [info(f"y{i}", INT if i == 2 else F, None) for i in range(5)]).SerializeToString()
    for seed in range(3):
        compare(given, [fed(n, x=[n, 2]) for n in (0, 1, 2, 9, 9)], seed)
    assert turns


def test_scanned_inputs_are_copied_by_chunks(turns: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """An axis that is not the first: so many slices at a time as a chunk holds."""
    monkeypatch.setattr(orthrus.plan.turns, "_CHUNK", 100)
    drawn = np.random.default_rng(5)
    for trips in (1, 4, 5, 23, 23):
        compare(scan(1, 0, 0, 0), [{"h_0": drawn.random((2, 3), np.float32),
                                    "x": drawn.random((2, trips, 3), np.float32)}])
    assert max(turns) == 4
