"""Small models for tests, made with onnx.helper."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 21


def info(name: str, elem: int = TensorProto.FLOAT,
         shape: Sequence[Any] | None = (2, 3)) -> onnx.ValueInfoProto:
    """A graph input or output."""
    return helper.make_tensor_value_info(name, elem, shape)


def model(nodes: Sequence[onnx.NodeProto], inputs: Sequence[Any], outputs: Sequence[Any],
          initializers: dict[str, np.ndarray] | None = None, opset: int = OPSET, ir_version: int = 10,
          domains: dict[str, int] | None = None, **rest: Any) -> onnx.ModelProto:
    """A model of `nodes`; names among inputs and outputs become float tensors of shape [2, 3]."""
    def as_info(v: Any) -> onnx.ValueInfoProto:
        return info(v) if isinstance(v, str) else v

    graph = helper.make_graph(list(nodes), "g", [as_info(v) for v in inputs], [as_info(v) for v in outputs],
                              [numpy_helper.from_array(a, n) for n, a in (initializers or {}).items()])
    imports = [helper.make_opsetid(d, v) for d, v in {"": opset, **(domains or {})}.items()]
    made = helper.make_model(graph, opset_imports=imports, **rest)
    made.ir_version = ir_version
    return made


def add() -> onnx.ModelProto:
    """c = a + b, all [2, 3]."""
    return model([helper.make_node("Add", ["a", "b"], ["c"], name="n0")], ["a", "b"], ["c"])


def chain(length: int, op: str = "Relu", shape: Sequence[Any] = (2, 3)) -> onnx.ModelProto:
    """`length` nodes of one unary operator, one after the other."""
    nodes = [helper.make_node(op, [f"v{i}"], [f"v{i + 1}"]) for i in range(length)]
    return model(nodes, [info("v0", shape=shape)], [info(f"v{length}", shape=shape)])
