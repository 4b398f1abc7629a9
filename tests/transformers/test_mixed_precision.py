"""Mixed precision: the nodes that float16 breaks stay float32, and few others."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import orthrus as ort
from orthrus.errors import InvalidArgument
from orthrus.transformers.mixed_precision import (
    auto_convert_mixed_precision,
    convert_float_to_mixed_precision,
    nodes_that_stay_float,
)

RNG = np.random.default_rng
FEED = {"x": RNG(0).standard_normal((4, 8)).astype(np.float32)}


def chain() -> onnx.ModelProto:
    """Products around squares that overflow, a sum of many that loses digits, and nodes without names."""
    node = helper.make_node
    constants = {"w": RNG(1).standard_normal((8, 8)).astype(np.float32), "large": np.float32(3e4),
                 "small": np.float32(1e-4), "one": np.float32(1)}
    nodes = [node("MatMul", ["x", "w"], ["a"], "first"), node("Relu", ["a"], ["b"]),
             node("Mul", ["b", "large"], ["c"], "grow"), node("Mul", ["c", "c"], ["d"], "square"),
             node("Sqrt", ["d"], ["e"], "root"), node("Div", ["e", "large"], ["f"], "shrink"),
             node("Add", ["f", "one"], ["g"]), node("MatMul", ["g", "w"], ["h"], "last"),
             node("Tanh", ["h"], ["y"])]
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info("x", 1, ["n", 8])],
                              [helper.make_tensor_value_info("y", 1, ["n", 8])],
                              [numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def ran(made: onnx.ModelProto, feed: dict[str, Any]) -> np.ndarray:
    result: np.ndarray = ort.InferenceSession(made.SerializeToString()).run(None, feed)[0]
    return result


def test_only_what_breaks_stays_float() -> None:
    before = chain().SerializeToString()
    given = chain()
    made = convert_float_to_mixed_precision(given, [FEED, {"x": FEED["x"][:2] * 2}])
    assert given.SerializeToString() == before
    onnx.checker.check_model(made, full_check=True)
    exact = ran(chain(), FEED)
    assert np.abs(ran(made, FEED) - exact).max() <= 0.01 * np.abs(exact).max()
    stay = nodes_that_stay_float(chain(), FEED)
    assert {"square", "root"} <= set(stay) <= {"grow", "square", "root", "shrink"}
    assert stay == [n.name for n in given.graph.node if n.name in stay]


def test_a_model_that_is_right_in_float16_is_float16() -> None:
    made = chain()
    del made.graph.node[2:6]
    made.graph.node[2].input[0] = "b"
    assert nodes_that_stay_float(made, FEED) == []
    found = convert_float_to_mixed_precision(made, FEED, keep_io_types=False)
    assert {n.op_type for n in found.graph.node} == {"MatMul", "Relu", "Add", "Tanh"}
    narrow = ran(found, {"x": FEED["x"].astype(np.float16)})
    assert narrow.dtype == np.float16


def test_a_tighter_tolerance_keeps_more_nodes() -> None:
    loose, tight = (nodes_that_stay_float(chain(), FEED, tolerance) for tolerance in (0.02, 1e-4))
    assert len(loose) < len(tight) <= 9


def test_bfloat16_has_room_for_the_squares() -> None:
    assert nodes_that_stay_float(chain(), FEED, 0.2, bfloat16=True) == []


def test_the_older_function() -> None:
    made = auto_convert_mixed_precision(chain(), FEED, rtol=0.02, atol=0.02, keep_io_types=True)
    np.testing.assert_allclose(ran(made, FEED), ran(chain(), FEED), rtol=0.02, atol=0.02)
    with pytest.raises(InvalidArgument, match="which results are right"):
        auto_convert_mixed_precision(chain(), FEED)
    with pytest.raises(InvalidArgument, match="in float32 either"):
        auto_convert_mixed_precision(chain(), FEED, validate_fn=lambda expected, got: False)
    with pytest.raises(InvalidArgument, match="no feeds"):
        convert_float_to_mixed_precision(chain(), [])
