"""Watched sessions: every value that is named is shown once a run, as its definition says it is."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from graphs import info, model
from onnx import helper, numpy_helper
from small_networks import ids_of, images_of, network, recurrence, series_of, transformer

import orthrus as ort
from orthrus.errors import InvalidArgument


def session(given: bytes, names: list[str], **settings: str) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry("orthrus.watch", json.dumps(names))
    return ort.InferenceSession(given, options, [("CPUExecutionProvider", settings)])


def named(given: bytes) -> list[str]:
    """Every value that a node makes."""
    return [name for node in onnx.load_from_string(given).graph.node for name in node.output if name]


def defined(given: bytes, names: list[str], feeds: dict[str, Any]) -> dict[str, Any]:
    """What these values are by the definitions."""
    made = onnx.load_from_string(given)
    del made.graph.output[:]
    made.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    plain = ort.InferenceSession(made, providers=[("CPUExecutionProvider", {"use_codegen": "0"})])
    return dict(zip(names, plain.run(None, feeds), strict=True))


def shown(it: ort.InferenceSession, feeds: dict[str, Any]) -> tuple[dict[str, Any], list[Any]]:
    """What a run shows, copied while it is there, and its results."""
    found: dict[str, Any] = {}

    def see(name: str, array: np.ndarray) -> None:
        assert name not in found, f"{name} is shown twice"
        found[name] = np.array(array)
    with it.watch(see):
        results = it.run(None, feeds)
    return found, list(results)


def agree(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        assert (found[name].shape, found[name].dtype) == (array.shape, array.dtype), name
        scale = np.abs(array).max() if array.size else 0
        np.testing.assert_allclose(found[name], array, rtol=1e-4, atol=1e-5 * (1 + scale), err_msg=name)


@pytest.mark.parametrize("make, feeds_of, sizes", [
    (transformer, ids_of, [(2, 7), (1, 5)]), (network, images_of, [(2, 32, 24), (1, 17, 40)]),
    (recurrence, series_of, [(6, 2), (3, 1)])])
def test_every_value_of_a_network_is_shown_once(make: Callable[[], bytes], feeds_of: Callable[..., Any],
                                                sizes: list[tuple[int, ...]]) -> None:
    given = make()
    names = named(given)
    watched, rng = session(given, names), np.random.default_rng(1)
    for size in [*sizes, sizes[0]]:
        feeds = feeds_of(rng, *size)
        found, results = shown(watched, feeds)
        agree(found, defined(given, names, feeds))
        for array, plain in zip(results, watched.run(None, feeds), strict=True):
            np.testing.assert_array_equal(array, plain)


def branches() -> bytes:
    """Views, pieces, constants, values that follow from shapes, a body, an operator left to numpy, outputs
    that nobody reads, and a value that is an output of the graph twice over."""
    node, body = helper.make_node, helper.make_graph(
        [helper.make_node("Neg", ["sum"], ["inner"])], "body", [], [info("inner", shape=None)])
    nodes = [
        node("Constant", [], ["two"], value_float=2.0),
        node("Add", ["x", "two"], ["sum"]), node("Transpose", ["sum"], ["turned"]),
        node("Reshape", ["turned", "flat"], ["row"]), node("Split", ["row"], ["head", "tail"], num_outputs=2),
        node("Concat", ["head", "tail", "head"], ["joined"], axis=0),
        node("Shape", ["x"], ["sizes"]), node("Cast", ["sizes"], ["floats"], to=1),
        node("ConstantOfShape", ["sizes"], ["zeros"]), node("Transpose", ["weights"], ["weights_turned"]),
        node("MatMul", ["sum", "weights_turned"], ["product"]),
        node("Relu", ["product"], ["y"]), node("Identity", ["y"], ["z"]),
        node("Unique", ["joined"], ["distinct", "", "", "counts"]),
        node("Dropout", ["product"], ["kept", "mask"]),
        node("If", ["yes"], ["chosen"], then_branch=body, else_branch=body),
    ]
    weights = np.random.default_rng(0).standard_normal((300, 3)).astype(np.float32)
    made = model(nodes, [info("x", shape=["n", 3])], [info("y", shape=None), info("z", shape=None)],
                 {"flat": np.array([-1]), "weights": weights, "yes": np.array(True)})
    return bytes(made.SerializeToString())


@pytest.mark.parametrize("settings", [{}, {"use_codegen": "0"}], ids=["generated", "definitions"])
def test_views_constants_bodies_and_unread_outputs_are_shown(settings: dict[str, str]) -> None:
    given = branches()
    names = named(given)
    feeds = {"x": np.random.default_rng(2).standard_normal((4, 3)).astype(np.float32)}
    found, _ = shown(session(given, names, **settings), feeds)
    agree(found, defined(given, names, feeds))


def test_inputs_are_shown_and_other_values_are_not() -> None:
    feeds = {"x": np.ones((2, 3), np.float32)}
    found, _ = shown(session(branches(), ["x", "row", "no such value"]), feeds)
    assert sorted(found) == ["row", "x"]
    np.testing.assert_array_equal(found["x"], feeds["x"])


def test_a_session_is_quick_before_and_after_it_is_watched() -> None:
    chain = model([helper.make_node("Add", ["a", "b"], ["c"])], ["a", "b"], ["c"]).SerializeToString()
    watched = session(chain, ["c"])
    feeds = {name: np.ones((2, 3), np.float32) for name in "ab"}
    for _ in range(3):
        watched.run(None, feeds)
        found, _ = shown(watched, feeds)
        assert found.keys() == {"c"}
    with watched.watch(lambda name, array: None):
        assert watched._quick is None
    watched.run(None, feeds)


def test_an_error_of_the_looker_ends_the_run_and_the_session_goes_on() -> None:
    watched = session(branches(), ["sum"])
    feeds = {"x": np.ones((2, 3), np.float32)}

    def refuse(name: str, array: np.ndarray) -> None:
        raise InvalidArgument(f"{name} is not welcome")
    with pytest.raises(InvalidArgument, match="sum is not welcome"), watched.watch(refuse):
        watched.run(None, feeds)
    assert shown(watched, feeds)[0].keys() == {"sum"}


def test_a_session_that_was_not_made_to_be_watched_says_so() -> None:
    plain = ort.InferenceSession(branches())
    with pytest.raises(InvalidArgument, match=r"orthrus\.watch"), plain.watch(lambda name, array: None):
        pass
    options = ort.SessionOptions()
    options.add_session_config_entry("orthrus.watch", "[1")
    with pytest.raises(InvalidArgument, match="JSON list"):
        ort.InferenceSession(branches(), options)


def test_weights_that_a_pass_would_fold_are_shown_as_they_are() -> None:
    """A quantized weight's floats, which a plan may never make."""
    codes = np.arange(-64, 64, dtype=np.int8).reshape(8, 16)
    nodes = [helper.make_node("DequantizeLinear", ["codes", "scale"], ["weights"]),
             helper.make_node("MatMul", ["x", "weights"], ["y"])]
    made = model(nodes, [info("x", shape=[2, 8])], [info("y", shape=[2, 16])],
                 {"codes": codes, "scale": np.float32(0.5)})
    found, _ = shown(session(made.SerializeToString(), ["weights", "y"]), {"x": np.ones((2, 8), np.float32)})
    np.testing.assert_array_equal(found["weights"], codes * np.float32(0.5))
    np.testing.assert_allclose(found["y"], np.ones((2, 8)) @ found["weights"], rtol=1e-5)
    assert numpy_helper.to_array(made.graph.initializer[0]).shape == (8, 16)
