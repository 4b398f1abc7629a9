"""Small models for the tests of the public API."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

F = TensorProto.FLOAT


def value(name: str, shape: Any, kind: int = F) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def model(nodes: list[Any], inputs: list[Any], outputs: list[Any], initializers: dict[str, np.ndarray]
          | None = None, opset: int = 17, extra_opsets: tuple[Any, ...] = (), **about: Any) -> Any:
    """A ModelProto."""
    tensors = [numpy_helper.from_array(a, n) for n, a in (initializers or {}).items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, tensors, doc_string="about the graph")
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset), *extra_opsets],
                             ir_version=8, **about)


def add(shape: Any = ("N", 3), other: Any = (1, 3)) -> bytes:
    """c = a + b, float32."""
    made = model([helper.make_node("Add", ["a", "b"], ["c"], name="n0")], [value("a", shape), value("b",
                                                                                                    other)],
                 [value("c", shape)], producer_name="maker", doc_string="about the model", domain="a.domain")
    helper.set_model_props(made, {"key": "value"})
    raw: bytes = made.SerializeToString()
    return raw


def feeds() -> dict[str, np.ndarray]:
    return {"a": np.ones((2, 3), np.float32), "b": np.full((1, 3), 2, np.float32)}


def two_outputs() -> bytes:
    """s = x + w and m = x * w, where w may be fed and is 10 otherwise."""
    made = model([helper.make_node("Add", ["x", "w"], ["s"], name="sum"),
                  helper.make_node("Mul", ["x", "w"], ["m"], name="product")],
                 [value("x", [2]), value("w", [1])], [value("s", [2]), value("m", [2])],
                 {"w": np.array([10], np.float32)})
    raw: bytes = made.SerializeToString()
    return raw


def loop(kind: int = F) -> bytes:
    """y: x, added to itself `trips` times; for stopping a run."""
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["go_on"]), helper.make_node("Add", ["acc", "acc"], ["next"])],
        "body",
        [value("i", [], TensorProto.INT64), value("go", [], TensorProto.BOOL), value("acc", [2])],
        [value("go_on", [], TensorProto.BOOL), value("next", [2])])
    made = model([helper.make_node("Loop", ["trips", "", "x"], ["y"], body=body, name="loop")],
                 [value("trips", [], TensorProto.INT64), value("x", [2])], [value("y", [2])])
    raw: bytes = made.SerializeToString()
    return raw


def cast(to: int, shape: Any = (2,)) -> bytes:
    """y = x (float32) as element type `to`."""
    made = model([helper.make_node("Cast", ["x"], ["y"], to=to)], [value("x", shape)], [value("y", shape,
                                                                                              to)], opset=21)
    made.ir_version = 10
    raw: bytes = made.SerializeToString()
    return raw


def sequence() -> bytes:
    """s = [x, y], n = how many there are in the sequence q."""
    made = model([helper.make_node("SequenceConstruct", ["x", "y"], ["s"]), helper.make_node("SequenceLength",
                                                                                             ["q"], ["n"])],
                 [value("x", [2]), value("y", [2]), helper.make_tensor_sequence_value_info("q", F, None)],
                 [helper.make_tensor_sequence_value_info("s", F, None), value("n", [], TensorProto.INT64)])
    raw: bytes = made.SerializeToString()
    return raw
