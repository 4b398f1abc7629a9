"""A result that is a constant of the session is the caller's own: writing into it changes no later run, by
whatever way it was had, and none by any other way."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from graphs import info, model
from onnx import TensorProto, helper, numpy_helper

import orthrus as ort
from orthrus import knobs

W = np.arange(1, 7, dtype=np.float32).reshape(2, 3)
FEEDS = {"x": np.full((2, 3), 7, np.float32), "c": np.array(True)}
INPUTS = ["x", info("c", TensorProto.BOOL, ())]


def node(op: str, inputs: list[str], outputs: list[str], **attrs: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs, outputs, **attrs)


def branches(then: list[onnx.NodeProto], outer: list[onnx.NodeProto]) -> onnx.ModelProto:
    """y: what the nodes of a body make of what is captured from the outer graph."""
    body = helper.make_graph(then, "then", [], [info("o")])
    other = helper.make_graph([node("Relu", ["x"], ["p"])], "else", [], [info("p")])
    return model([*outer, node("If", ["c"], ["y"], then_branch=body, else_branch=other)], INPUTS, ["y"],
                 {"w": W})


def plain(*nodes: onnx.NodeProto, output: str = "y") -> onnx.ModelProto:
    """The result is there before any run; `x` and `c` are read beside it."""
    beside = node("Where", ["c", "x", "w"], ["beside"])
    return model([*nodes, beside], INPUTS, [output, "beside"], {"w": W})


CONSTANT = node("Constant", [], ["k"], value=numpy_helper.from_array(W, "k"))
MODELS = {
    "initializer": plain(output="w"),
    "identity of an initializer": plain(node("Identity", ["w"], ["y"])),
    "identity twice": plain(node("Identity", ["w"], ["i"]), node("Identity", ["i"], ["y"])),
    "node Constant": plain(CONSTANT, output="k"),
    "identity of a node Constant": plain(CONSTANT, node("Identity", ["k"], ["y"])),
    "folded": plain(node("Add", ["w", "w"], ["y"])),
    "identity of what was folded": plain(node("Add", ["w", "w"], ["f"]), node("Identity", ["f"], ["y"])),
    "reshaped after folding": plain(node("Add", ["w", "w"], ["f"]), node("Flatten", ["f"], ["y"])),
    "captured initializer": branches([node("Identity", ["w"], ["o"])], []),
    "captured, folded outside": branches([node("Identity", ["f"], ["o"])], [node("Add", ["w", "w"], ["f"])]),
    "folded inside": branches([node("Add", ["w", "w"], ["o"])], []),
    "constant of the body": branches(
        [node("Constant", [], ["o"], value=numpy_helper.from_array(W, "o"))], []),
}


def session(proto: onnx.ModelProto, level: int = 99) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel(level)
    return ort.InferenceSession(proto.SerializeToString(), options)


def given(proto: onnx.ModelProto) -> ort.InferenceSession:
    """A session whose initializer is the caller's array, writable as it is."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_initializer("w", ort.OrtValue.ortvalue_from_numpy(W.copy()))
    return ort.InferenceSession(proto.SerializeToString(), options)


def run(s: Any, name: str) -> np.ndarray:
    return s.run(None, FEEDS)[0]


def run_named(s: Any, name: str) -> np.ndarray:
    return s.run([name], FEEDS)[0]


def run_twice_in_one(s: Any, name: str) -> np.ndarray:
    first, second = s.run([name, name], FEEDS)
    first[...] = -5
    return second


def run_with_options(s: Any, name: str) -> np.ndarray:
    return s.run([name], FEEDS, ort.RunOptions())[0]


def run_watched(s: Any, name: str) -> np.ndarray:
    with s.profile(compare=False):
        return s.run([name], FEEDS)[0]


def run_with_ort_values(s: Any, name: str) -> np.ndarray:
    fed = {key: ort.OrtValue.ortvalue_from_numpy(value) for key, value in FEEDS.items()}
    return s.run_with_ort_values([name], fed)[0].numpy()


def bound(s: Any) -> Any:
    binding = s.io_binding()
    for key, value in FEEDS.items():
        binding.bind_cpu_input(key, value)
    return binding


def run_with_iobinding(s: Any, name: str) -> np.ndarray:
    binding = bound(s)
    binding.bind_output(name)
    s.run_with_iobinding(binding)
    return binding.get_outputs()[0].numpy()


def run_into_memory(s: Any, name: str) -> np.ndarray:
    binding, target = bound(s), ort.OrtValue.ortvalue_from_numpy(np.zeros((2, 3), np.float32))
    binding.bind_ortvalue_output(name, target)
    s.run_with_iobinding(binding)
    return target.numpy()


def run_async(s: Any, name: str) -> np.ndarray:
    done, found = threading.Event(), []

    def callback(results: Any, _: Any, error: str) -> None:
        found.append((results, error))
        done.set()
    s.run_async([name], FEEDS, callback, None)
    assert done.wait(60)
    (results, error), = found
    assert not error
    return results[0]


WAYS: list[Callable[[Any, str], np.ndarray]] = [
    run, run_named, run_twice_in_one, run_with_options, run_watched, run_with_ort_values,
    run_with_iobinding, run_into_memory, run_async]


def unchanged(s: Any) -> None:
    """Write into what each way gives; it and all others have to give the same afterwards."""
    name = s.get_outputs()[0].name
    expected = run(s, name).copy()
    assert expected.any()
    for way in WAYS:
        made = way(s, name)
        assert np.array_equal(made, expected), way.__name__
        made[...] = -5
        for other in WAYS:
            assert np.array_equal(other(s, name), expected), (way.__name__, other.__name__)


@pytest.mark.parametrize("level", [0, 99])
@pytest.mark.parametrize("name", MODELS)
def test_a_result_that_is_a_constant_is_the_callers_own(name: str, level: int) -> None:
    unchanged(session(MODELS[name], level))


@pytest.mark.parametrize("name", MODELS)
def test_one_that_the_caller_gave_as_initializer_too(name: str) -> None:
    unchanged(given(MODELS[name]))


@pytest.mark.parametrize("name", MODELS)
def test_what_is_kept_of_a_session_changes_nothing(name: str, tmp_path: Path) -> None:
    with knobs.setting(CACHE=1, CACHE_DIR=str(tmp_path), CACHE_SESSIONS=64):
        for _ in range(3):
            unchanged(session(MODELS[name]))
            for thread in threading.enumerate():
                if thread.name == "orthrus-keep":
                    thread.join()
