"""Small models for the tests of loading: a graph from nodes, and the row of facts each error is compared
with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import onnx
from onnx import TensorProto, helper

node = helper.make_node


def tensor(name: str, shape: Any = (2, 3), element: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, element, shape)


def model(
    nodes: Iterable[onnx.NodeProto],
    inputs: Sequence[Any] | None = None,
    outputs: Sequence[Any] | None = None,
    initializers: Iterable[onnx.TensorProto] = (),
    opsets: dict[str, int] | None = None,
    ir: int = 9,
    functions: Iterable[onnx.FunctionProto] = (),
    **rest: Any,
) -> onnx.ModelProto:
    """A model with input `a: float[2, 3]` and output `c: float` unless said otherwise."""
    graph = helper.make_graph(list(nodes), "g", [tensor("a")] if inputs is None else inputs,
                              [tensor("c", None)] if outputs is None else outputs, list(initializers), **rest)
    opsets = {"": 17} if opsets is None else opsets
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid(d, v) for d, v in opsets.items()],
                             functions=list(functions))
    made.ir_version = ir
    return made


def relu() -> onnx.ModelProto:
    return model([node("Relu", ["a"], ["c"])])


def weight(name: str = "w", shape: Sequence[int] = (2, 3)) -> onnx.TensorProto:
    made = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=shape)
    count = 1
    for d in shape:
        count *= d
    made.raw_data = b"\0\0\x80\x3f" * count
    return made


def nested_functions(levels: int) -> onnx.ModelProto:
    """`levels` functions, each calling the one before it twice: 2**levels nodes once written out."""
    imports = [helper.make_opsetid("", 17), helper.make_opsetid("f", 1)]
    functions = [helper.make_function("f", "F0", ["x"], ["y"], [node("Relu", ["x"], ["y"])], imports)]
    for i in range(1, levels + 1):
        calls = [node(f"F{i - 1}", ["x"], ["t"], domain="f"), node(f"F{i - 1}", ["t"], ["y"], domain="f")]
        functions.append(helper.make_function("f", f"F{i}", ["x"], ["y"], calls, imports))
    return model([node(f"F{levels}", ["a"], ["c"], domain="f")], opsets={"": 17, "f": 1}, functions=functions)
