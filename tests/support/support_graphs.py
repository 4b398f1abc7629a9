"""Small graphs by hand, and an interpreter that runs a graph node by node through the operators' own
definitions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from orthrus.ir import Graph, ModelInfo, Node, TensorType, Value, element_of
from orthrus.ops import find
from orthrus.ops.infer import annotate
from orthrus.ops.schema import newest_opset


def evaluate(graph: Graph, feeds: dict[str, Any], outer: dict[Value, Any] | None = None) -> list[Any]:
    """The graph's outputs for `feeds` by input name; bodies of If and Loop run through their definitions
    too."""
    values: dict[Value, Any] = dict(outer or {})
    values.update({v: v.const for v in graph.initializers.values()})
    for value in graph.inputs:
        if value.name in feeds:
            values[value] = feeds[value.name]
    for node in graph.nodes:
        attrs = {k: _body(v, values) if isinstance(v, Graph) else v for k, v in node.attrs.items()}
        assert node.op is not None, f"{node} has no definition"
        run = node.op.bind(attrs, len(node.outputs), np.random.default_rng(0))
        with np.errstate(all="ignore"):
            result = run(*(None if v is None else values[v] for v in node.inputs))
        results = result if isinstance(result, tuple) else (result,)
        for value, array in zip(node.outputs, results, strict=False):
            if value is not None:
                values[value] = array
    return [values[v] for v in graph.outputs]


def _body(graph: Graph, values: dict[Value, Any]) -> Callable[..., list[Any]]:
    def run(*inputs: Any) -> list[Any]:
        return evaluate(graph, {v.name: x for v, x in zip(graph.inputs, inputs, strict=False)}, values)
    return run


class Net:
    """`net.Add(x, y)` adds a node and gives its output; arrays become initializers. `opset` is that of the
    model."""

    def __init__(self, opset: int | None = None, outer: Graph | None = None) -> None:
        self.opset = opset or newest_opset("") or 1
        info = outer.info if outer else ModelInfo(opsets={"": self.opset, "com.microsoft": 1})
        self.graph = Graph("test", outer, info)

    def input(self, name: str, *shape: Any, dtype: Any = np.float32) -> Value:
        value = Value(name, TensorType(element_of(dtype), tuple(shape)))
        self.graph.inputs.append(value)
        return value

    def constant(self, array: Any) -> Value:
        return self.graph.constant(np.asarray(array), "c")

    def outputs(self, *values: Value) -> Graph:
        for i, value in enumerate(values):
            if value.node is not None:
                value.name = f"y{i}"
        self.graph.set_outputs(values)
        return self.graph

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return lambda *inputs, **attrs: self.node("", name, *inputs, **attrs)

    def node(self, domain: str, name: str, *inputs: Any, outputs: int = 1, **attrs: Any) -> Any:
        from onnx import defs

        version = self.opset if domain else defs.get_schema(name, self.opset, domain).since_version
        values = [v if v is None or isinstance(v, Value) else self.constant(v) for v in inputs]
        made = Node(
            name, domain, version, find(domain, name, version), values, attrs, "", len(self.graph.nodes)
        )
        made.outputs = [Value(self.graph.fresh(name.lower()), None, made) for _ in range(outputs)]
        self.graph.nodes.append(made)
        annotate(made, self.graph.info.opsets)
        return made.output if outputs == 1 else tuple(made.outputs)


def kinds(graph: Graph) -> list[str]:
    """The operators of a graph, in order."""
    return [node.kind for node in graph.nodes]


def feeds(graph: Graph, seed: int = 0, **sizes: int) -> dict[str, np.ndarray]:
    """Random inputs for a graph whose named dimensions take `sizes`."""
    rng = np.random.default_rng(seed)
    out = {}
    for value in graph.inputs:
        shape = tuple(d if isinstance(d, int) else sizes[d] for d in value.shape)
        dtype = value.elem.numpy
        if dtype.kind == "b":
            out[value.name] = rng.random(shape) > 0.5
        elif dtype.kind in "iu":
            out[value.name] = rng.integers(0, 5, shape).astype(dtype)
        else:
            out[value.name] = rng.normal(size=shape).astype(dtype)
    return out
