"""Columns through a session, without a cluster: types, shapes, rows of many shapes, and what does not fit."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import orthrus
from orthrus.datasets import get_example
from orthrus.distributed.ray.columns import Rows, columns_of, objects
from orthrus.errors import InvalidArgument

KINDS = {"float": TensorProto.FLOAT, "half": TensorProto.FLOAT16, "brain": TensorProto.BFLOAT16,
         "int32": TensorProto.INT32, "uint8": TensorProto.UINT8, "bool": TensorProto.BOOL,
         "text": TensorProto.STRING}


def rows(*inputs: tuple[str, str, list[Any]], **rest: Any) -> Rows:
    """A model that gives back what it gets: output `y` and the input's name for each input."""
    nodes = [helper.make_node("Identity", [name], ["y" + name]) for name, _, _ in inputs]
    values = [[helper.make_tensor_value_info(at + name, KINDS[kind], shape) for name, kind, shape in inputs]
              for at in ("", "y")]
    model = helper.make_model(helper.make_graph(nodes, "same", *values), ir_version=10,
                              opset_imports=[helper.make_opsetid("", 21)])
    return Rows(orthrus.InferenceSession(model.SerializeToString()), **rest)


def told(wrong: pytest.ExceptionInfo[InvalidArgument]) -> str:
    return str(wrong.value)


@pytest.mark.parametrize("kind, given", [
    ("float", np.arange(6, dtype=np.uint8)), ("float", np.array([True, False])), ("half", np.arange(3.0)),
    ("float", np.arange(4, dtype=np.float64)), ("int32", np.arange(5)), ("int32", np.array([True, False])),
    ("uint8", np.array([0, 255])), ("float", np.arange(4, dtype=">f4")), ("brain", np.arange(4.0)),
    ("text", np.array(["a", "bc"])), ("text", objects(["a", "\u00e4"])), ("bool", np.array([True, False])),
    ("float", objects([1, 2.5])), ("float", objects([np.float32(1), 3]))])
def test_numbers_that_keep_their_value_fit(kind: str, given: np.ndarray) -> None:
    found = rows(("x", kind, ["N"])).run({"x": given})["yx"]
    assert found.shape == given.shape and list(found) == [
        each.decode() if isinstance(each, bytes) else each for each in given.tolist()]
    assert found.dtype.isbuiltin == 1


@pytest.mark.parametrize("kind, given, row, found", [
    ("int32", np.array([1, 2, 1 << 31]), 2, "2147483648"), ("uint8", np.array([[1, 2], [3, -1]]), 1, "-1"),
    ("int32", np.array([1.0]), None, "values of float64"), ("bool", np.array([1]), None, "values of int64"),
    ("float", np.array(["1"]), None, "values of <U1"), ("float", objects([1.0, None]), 1, "no value"),
    ("text", objects(["a", None]), 1, "no value"), ("text", objects(["a", 3]), 1, "int"),
    ("text", np.array([1]), None, "int64"), ("uint8", objects([np.array([1]), np.array([300, 1])]), 1, "300"),
    ("float", objects([[1.0], [[1.0], [2.0, 3.0]]]), 1, "different lengths"),
    ("int32", np.array([1 << 63], np.uint64), 0, "9223372036854775808")])
def test_what_does_not_fit_names_the_column_and_the_row(kind: str, given: np.ndarray, row: int | None,
                                                        found: str) -> None:
    shape = ["N", *"MKL"[:np.asarray(given[0]).ndim]]
    with pytest.raises(InvalidArgument) as wrong:
        rows(("x", kind, shape)).run({"x": given})
    assert "column 'x'" in told(wrong) and found in told(wrong)
    assert (f"row {row} " in told(wrong)) if row is not None else "row" not in told(wrong).split("\n")[0]


def test_rows_of_many_shapes_come_back_in_their_order() -> None:
    rng = np.random.default_rng(0)
    cells = [rng.integers(0, 99, rng.integers(0, 4)) for _ in range(50)]
    found = rows(("x", "int32", ["N", "M"])).run({"x": objects(cells)})["yx"]
    assert found.dtype == object and all(map(np.array_equal, found, cells))


def test_texts_of_many_shapes() -> None:
    given = objects([["a"], ["b", "c"], ["d"]])
    found = rows(("x", "text", ["N", "M"])).run({"x": given})["yx"]
    assert [cell.tolist() for cell in found] == given.tolist()


@pytest.mark.parametrize("count", [0, 1, 3, 4, 5, 9])
@pytest.mark.parametrize("first", [1, 4, "N"])
def test_a_fixed_number_of_rows_is_met(first: Any, count: int) -> None:
    given = np.arange(count * 6, dtype=np.float32).reshape(count, 6)
    found = rows(("x", "float", [first, 2, 3])).run({"x": given})["yx"]
    assert found.dtype == np.float32 and np.array_equal(found, given.reshape(count, 2, 3))


def test_columns_by_other_names_constants_and_chosen_outputs() -> None:
    made = rows(("a", "float", ["N"]), ("b", "float", ["K"]), ("c", "int32", ["N", "M"]),
                inputs={"a": "left"}, outputs={"ya": "out", "yc": "more"},
                constants={"b": np.float32([1, 2, 3])})
    ragged = objects([np.arange(i) for i in (1, 2, 1)])
    found = made.run({"left": np.arange(3), "c": ragged, "unread": np.arange(3)})
    assert set(found) == {"out", "more"} and found["out"].tolist() == [0, 1, 2]
    assert [cell.tolist() for cell in found["more"]] == [[0], [0, 1], [0]]
    with pytest.raises(InvalidArgument, match="there is no column 'left' for the input 'a'"):
        made.run({"a": np.arange(3)})
    with pytest.raises(InvalidArgument, match="different lengths"):
        made.run({"left": np.arange(3), "c": np.ones((2, 1), np.int32)})


def test_an_output_without_the_rows_is_an_error() -> None:
    made = rows(("a", "float", ["N"]), ("b", "float", ["K"]), constants={"b": np.float32([1, 2])})
    with pytest.raises(InvalidArgument, match="'yb' does not have a row for each row"):
        made.run({"a": np.arange(3)})


@pytest.mark.parametrize("wrong", [{"inputs": {"z": "a"}}, {"outputs": ["z"]}, {"constants": {"z": 1}},
                                   {"outputs": "z"}])
def test_names_that_the_model_does_not_have(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match="'z'"):
        rows(("x", "float", ["N"]), **wrong)


def test_models_without_rows() -> None:
    with pytest.raises(InvalidArgument, match="no first dimension"):
        rows(("x", "float", []))
    with pytest.raises(InvalidArgument, match="different sizes"):
        rows(("x", "float", [2]), ("z", "float", [3]))
    with pytest.raises(InvalidArgument, match="has no columns"):
        columns_of([1, 2])


def test_bytes_that_nobody_writes_to_are_not_copied() -> None:
    with open(get_example("mul_1.onnx"), "rb") as file:
        content = file.read()
    fixed = np.frombuffer(content, np.uint8)
    session = orthrus.InferenceSession(fixed.data)
    assert session._model_bytes.obj is fixed
    changing = bytearray(content)
    assert isinstance(orthrus.InferenceSession(memoryview(changing).toreadonly())._model_bytes, bytes)
    x = np.ones((3, 2), np.float32)
    for each in (session, pickle.loads(pickle.dumps(session))):
        assert np.array_equal(each.run(None, {"X": x})[0], orthrus.InferenceSession(content).run(
            None, {"X": x})[0])
