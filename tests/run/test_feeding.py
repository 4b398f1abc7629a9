"""Every kind of input times every kind of Python value: the right answer, or an error that names the input.
And what `run_async` takes at the call."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from graphs import model
from onnx import helper

import orthrus as ort
from orthrus.capi.onnxruntime_pybind11_state import InvalidArgument
from orthrus.ir import ElementType, MapType, OptionalType, SequenceType, TensorType, Type
from orthrus.ops.infer import type_proto

F = np.float32
CPU = ort.OrtDevice.make("cpu", 0)
VALUES: dict[str, Any] = {
    "none": None, "int": 1, "float": 1.5, "bool": True, "str": "a", "bytes": b"a", "complex": 1j,
    "float32": F(1.5), "float64": np.float64(2.5), "int8": np.int8(3), "int64": np.int64(3),
    "bool_": np.bool_(True), "set": {1}, "range": range(3), "iterator": iter([1]), "thing": object(),
    "type": F,
    "ints": [1, 2], "floats": [1.5, 2.5], "strs": ["a", "b"], "bools": [True, False], "nones": [None],
    "wide": [1 << 40], "widest": [1 << 70], "below": [-1], "numerals": ["1.5"], "ragged": [[1, 2], [3]],
    "empty": [], "tuple": (1, 2), "objects": [object()], "arrays": [np.ones(2, F), np.zeros(3, F)],
    "wrong arrays": [np.ones(2, F), np.zeros(3)], "maps": [{"a": 1.5}],
    "a float32": np.ones(2, F), "a float64": np.ones(2), "an int64": np.ones(2, np.int64),
    "a bool": np.ones(2, bool), "a bfloat16": np.ones(2, ml_dtypes.bfloat16),
    "an int4": np.ones(2, ml_dtypes.int4), "other order": np.ones(2, ">f4"), "text": np.array(["a", "b"]),
    "bytes array": np.array([b"a"]), "mixed": np.array([1, "a"], object),
    "dates": np.array(["2020"], "M8[Y]"), "complex array": np.array([1j]),
    "masked": np.ma.array([1.0, 2.0], mask=[1, 0]), "record": np.zeros(2, [("a", "f4")]),
    "scalar array": np.array(2.5, F), "an OrtValue": ort.OrtValue.ortvalue_from_numpy(np.ones(2, F)),
    "dict": {}, "strings to floats": {"a": 1.5}, "ints to floats": {1: 1.5}, "strings to ints": {"a": 4},
    "ints to strings": {1: "q"}, "strings to strings": {"a": "q"}, "ints to ints": {1: 2},
    "to bytes": {"a": b"q"}, "to none": {"a": None}, "to complex": {"a": 1j}, "to arrays": {"a": np.ones(2)},
    "to a scalar array": {"a": np.array(2.5, F)}, "to the widest": {"a": 1 << 70}, "from bytes": {b"a": 1.5},
    "from floats": {1.0: 1.5}, "from none": {None: 1.5}, "from the widest": {1 << 70: 1.5},
    "partly": {"a": 1.5, "b": "q"}, "to float32": {"a": F(1.5)}, "to int32": {"a": np.int32(3)},
    "to bools": {"a": True},
    "sparse": ort.SparseTensor.sparse_coo_from_numpy([2, 2], np.ones(1, F), np.array([[0, 1]]), CPU),
    "sparse doubles": ort.SparseTensor.sparse_coo_from_numpy([2, 2], np.ones(1), np.array([[0, 1]]), CPU),
}
TENSORS = [e for e in ElementType if e.text not in ("complex64", "complex128") and not e.name.startswith(
    ("FLOAT6", "FLOAT8E8"))]
MAPS = [MapType(ElementType.STRING, TensorType(e, ())) for e in (
    ElementType.FLOAT, ElementType.DOUBLE, ElementType.INT64)] + [
    MapType(ElementType.INT64, TensorType(e, ())) for e in (
        ElementType.FLOAT, ElementType.DOUBLE, ElementType.STRING)]
KINDS: list[Type] = [
    *(TensorType(e, (None,)) for e in TENSORS), *MAPS,
    *(SequenceType(TensorType(e, None)) for e in (ElementType.FLOAT, ElementType.INT64, ElementType.STRING)),
    *(OptionalType(TensorType(e, None)) for e in (ElementType.FLOAT, ElementType.INT64)),
]


def session(kind: Type) -> ort.InferenceSession:
    """A model of one input x that hands it on; a map as the row of its values at "a" or 1."""
    node, out = helper.make_node("Identity", ["x"], ["y"]), kind
    domains = {"ai.onnx.ml": 3}
    if isinstance(kind, MapType):
        words = {"string_vocabulary": ["a"]} if kind.key is ElementType.STRING else {"int64_vocabulary": [1]}
        node = helper.make_node("DictVectorizer", ["x"], ["y"], domain="ai.onnx.ml", **words)
        assert isinstance(kind.value, TensorType)
        out = TensorType(kind.value.elem, None)
    infos = [onnx.ValueInfoProto(name=n, type=type_proto(k)) for n, k in (("x", kind), ("y", out))]
    made = model([node], infos[:1], infos[1:], opset=25, ir_version=13, domains=domains)
    return ort.InferenceSession(made.SerializeToString())


def meant(kind: Type, given: Any) -> Any:
    """What the value is as one of `kind`, by numpy's own conversion; objects become texts."""
    if isinstance(kind, OptionalType):
        return None if given is None else meant(kind.elem, given)
    if isinstance(kind, SequenceType):
        return [meant(kind.elem, v) for v in given]
    if isinstance(kind, MapType):
        assert isinstance(kind.value, TensorType) and kind.value.elem is not None
        (key, value), = given.items()
        assert key == ("a" if kind.key is ElementType.STRING else 1)
        assert kind.value.elem.floating or isinstance(value, int | str | np.integer)
        return np.array([[value]], kind.value.elem.numpy)
    assert isinstance(kind, TensorType) and kind.elem is not None
    if isinstance(given, ort.OrtValue):
        given = given.numpy()
    if isinstance(given, np.ndarray) and given.dtype.kind == "S":
        given = np.char.decode(given)
    if kind.elem is ElementType.STRING:
        return np.vectorize(str, otypes=[object])(np.asarray(given, object))
    return np.asarray(given, kind.elem.numpy)


def same(a: Any, b: Any) -> bool:
    if a is None or b is None:
        return a is b
    if isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if b.dtype != object:
        return bool(a.tobytes() == b.tobytes())
    return a.tolist() == b.tolist() and all(isinstance(v, str) for v in a.ravel())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_a_value_is_taken_rightly_or_refused(kind: Type) -> None:
    tried, taken = session(kind), 0
    for label, given in VALUES.items():
        try:
            got = tried.run(None, {"x": given})[0]
        except (InvalidArgument, RuntimeError) as error:
            text = str(error)
            assert re.search(r"\bx\b|object of type|MLDataType", text), f"{label}: {text}"
        else:
            taken += 1
            assert same(got, meant(kind, given)), f"{label}: {given!r} became {got!r}"
    assert taken, "not one value was taken"


@pytest.mark.parametrize("kind", MAPS, ids=str)
def test_an_error_of_a_map_names_what_was_found_and_expected(kind: MapType) -> None:
    key = "a" if kind.key is ElementType.STRING else 1
    wrong = 1.5 if isinstance(kind.value, TensorType) and kind.value.elem is ElementType.STRING else "q"
    with pytest.raises(InvalidArgument) as caught:
        session(kind).run(None, {"x": {key: wrong}})
    error: Any = caught.value
    assert error.node == "input x" and error.expected == str(kind)
    assert repr(wrong) in error.found and repr(key) in error.found


def test_a_sparse_tensor_has_the_declared_type() -> None:
    infos = [onnx.ValueInfoProto(name="x"), helper.make_tensor_value_info("b", 1, [2, 2])]
    infos[0].type.sparse_tensor_type.elem_type = 1
    infos[0].type.sparse_tensor_type.shape.dim.add().dim_value = 2
    infos[0].type.sparse_tensor_type.shape.dim.add().dim_value = 2
    node = helper.make_node("SparseToDenseMatMul", ["x", "b"], ["y"], domain="com.microsoft")
    made = ort.InferenceSession(model([node], infos, [helper.make_tensor_value_info("y", 1, [2, 2])],
                                      domains={"com.microsoft": 1}).SerializeToString())
    b = np.eye(2, dtype=F)
    for label, given in VALUES.items():
        try:
            got = made.run(None, {"x": given, "b": b})[0]
        except (InvalidArgument, RuntimeError):
            continue
        assert label == "sparse" and got.tolist() == [[0, 1], [0, 0]]


N = 128


def product() -> ort.InferenceSession:
    """Outputs `y` = x @ x and `sum`, which take a while, `text` and `each`, which hand on."""
    nodes = [helper.make_node("MatMul", ["x", "x"], ["y"]), helper.make_node("ReduceSum", ["y"], ["sum"]),
             helper.make_node("Identity", ["t"], ["text"]), helper.make_node("Identity", ["s"], ["each"])]
    one = helper.make_tensor_value_info
    sequence = helper.make_tensor_sequence_value_info
    return ort.InferenceSession(model(
        nodes, [one("x", 1, [N, N]), one("t", 8, [2]), sequence("s", 1, None)],
        [one("y", 1, [N, N]), one("sum", 1, None), one("text", 8, [2]), sequence("each", 1, None)],
        opset=17).SerializeToString())


class Calls:
    """Runs under way; `wait()` gives what each of them answered."""

    def __init__(self) -> None:
        self.got: dict[int, tuple[Any, str]] = {}
        self.left = threading.Semaphore(0)

    def __call__(self, results: Any, number: int, error: str) -> None:
        self.got[number] = results, error
        self.left.release()

    def wait(self, count: int) -> dict[int, tuple[Any, str]]:
        for _ in range(count):
            assert self.left.acquire(timeout=60)
        return self.got


def held() -> tuple[Callable[[], None], Callable[[], None]]:
    """Keep the threads of `run_async` busy, so that what was called has not begun; and let them go."""
    from orthrus.api import background

    gate = threading.Event()
    pool = background._executor()
    return (lambda: [pool.submit(gate.wait) for _ in range(pool._max_workers)] and None), gate.set


def test_async_runs_take_what_is_fed_at_the_call() -> None:
    tried, calls = product(), Calls()
    hold, release = held()
    hold()
    try:
        x, text, parts = np.ones((N, N), F), np.array(["a", "b"], object), [np.zeros(1, F)]
        turned = np.asfortranarray(np.eye(N, dtype=F))
        feed, names, options = {"x": x, "t": text, "s": parts}, ["sum", "text", "each"], ort.RunOptions()
        tried.run_async(names, feed, calls, 0, options)
        feed["x"], names[0] = turned, "y"
        options.timeout = 0.0
        tried.run_async(names, feed, calls, 1)
        listed = {"x": np.full((N, N), 2, F).tolist(), "t": ["c", "d"], "s": parts}
        tried.run_async(names, listed, calls, 2)
        feed.clear()
        names.clear()
        parts.append(np.ones(1, F))
        text[:] = "z"
        turned[...] = 7
        listed["x"][0][0], listed["t"][0] = -1.0, "z"
    finally:
        release()
    got = dict(sorted(calls.wait(3).items()))
    assert [error for _, error in got.values()] == [""] * 3
    assert float(got[0][0][0].ravel()[0]) == N ** 3
    np.testing.assert_array_equal(got[1][0][0], np.eye(N))
    np.testing.assert_array_equal(got[2][0][0], np.full((N, N), 4 * N))
    assert [made[0][1].tolist() for made in got.values()] == [["a", "b"], ["a", "b"], ["c", "d"]]
    assert [len(made[0][2]) for made in got.values()] == [1, 1, 1]


def test_async_runs_share_the_memory_of_arrays_and_stop_when_told() -> None:
    tried, calls = product(), Calls()
    hold, release = held()
    hold()
    try:
        x, options = np.ones((N, N), F), ort.RunOptions()
        feed = {"x": x, "t": np.array(["a", "b"], object), "s": []}
        tried.run_async(["sum"], feed, calls, 0)
        tried.run_async(["sum"], feed, calls, 1, options)
        x[...] = 2
        options.terminate = True
    finally:
        release()
    got = calls.wait(2)
    assert float(got[0][0][0].ravel()[0]) == 4 * N ** 3
    assert "terminate" in got[1][1]


@pytest.mark.parametrize("others", (["é", "", "\ud800"], [np.str_("a")], [b"a"], [1, 2.5], [None, ""], []))
@pytest.mark.parametrize("count", (0, 1, 70))
def test_texts_among_other_things(others: list[Any], count: int) -> None:
    """What is no text becomes one; what is, stays what it is."""
    proto = model([helper.make_node("Identity", ["x"], ["y"])],
                  [helper.make_tensor_value_info("x", onnx.TensorProto.STRING, [None, None])],
                  [helper.make_tensor_value_info("y", onnx.TensorProto.STRING, [None, None])])
    given = np.empty((1, len(others) + count), object)
    given[0] = [*["a", ""][:count], *["b"] * (count - 2), *others]
    made = ort.InferenceSession(proto.SerializeToString()).run(None, {"x": given})[0]
    wanted = [item if isinstance(item, str) else str(item) for item in given[0]]
    assert made.shape == given.shape and made[0].tolist() == wanted
    assert [type(item) for item in made[0]] == [type(item) for item in wanted]


def test_nothing_under_a_name_that_is_no_input_is_not_fed() -> None:
    """As in onnxruntime: programs feed a node's inputs by name, its absent ones ("") with None."""
    nodes = [helper.make_node("Clip", ["x", "", "most"], ["y"])]
    x, most, y = (helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)
                  for name, shape in (("x", [None]), ("most", []), ("y", [None])))
    made = ort.InferenceSession(model(nodes, [x, most], [y]).SerializeToString())
    feeds = {"x": np.array([1, 5], F), "most": np.array(3, F)}
    for _ in range(3):
        for more in ({"": None}, {"other": None}, {"": None, "other": None}):
            assert made.run(None, {**feeds, **more})[0].tolist() == [1, 3]
            assert made.run(["y"], {**more, **feeds})[0].tolist() == [1, 3]
    for wrong in ({"": feeds["x"]}, {"other": feeds["x"]}):
        with pytest.raises(InvalidArgument, match="Invalid input name: "):
            made.run(None, {**feeds, **wrong})
    with pytest.raises(ValueError, match=r"Required inputs \(\['most'\]\) are missing"):
        made.run(None, {"x": feeds["x"], "": None})
    done, errors = threading.Event(), list[str]()

    def told(results: Any, data: Any, error: str) -> None:
        errors.append(error)
        done.set()

    made.run_async(None, {**feeds, "": None}, told, None)
    assert done.wait(60) and errors == [""]
