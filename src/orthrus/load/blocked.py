"""Layouts of blocks of channels, in which onnxruntime saves models that it optimized for one machine: their
operators are replaced by ONNX's, on weights that are laid out as ONNX has them.

In: a graph whose types are not inferred. Out: the same graph without nodes of `com.microsoft.nchwc`. Between
them channels are filled up with zeros to whole blocks, which stays so: only where elements lie is another
matter. A model does not say how large its blocks are; its weights do, unless all fit blocks of 16.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ..errors import NotImplemented as NotImplementedFail
from ..ir import Graph, Node, Value
from ..ops import find, infer
from ..ops.schema import BLOCKED, Schema, lookup, newest_opset

_SIZES = (16, 8)
_MS = "com.microsoft"


def plain_layouts(graph: Graph) -> None:
    """Replace the nodes of blocked layouts, also in bodies. Raises NotImplemented for weights or channels
    that are not known."""
    blocked = [node for node in _all_nodes(graph) if node.domain == BLOCKED]
    if blocked:
        _replace(graph, _block(blocked), graph.info.opsets)


def _all_nodes(graph: Graph) -> Iterator[Node]:
    for node in graph.nodes:
        yield node
        for body in node.bodies():
            yield from _all_nodes(body)


def _replace(graph: Graph, block: int, opsets: dict[str, int]) -> None:
    old, graph.nodes = graph.nodes, []
    for node in old:
        for body in node.bodies():
            _replace(body, block, opsets)
        if node.domain == BLOCKED:
            writer = _Writer(graph, block, node, opsets)
            made = _RULES[node.op_type](writer, node)
            writer.write("Identity", [made], {}, "", node.outputs[:1])
            Graph.detach(node)
        else:
            graph.nodes.append(node)
            infer.annotate(node, opsets)


def _block(nodes: Sequence[Node]) -> int:
    """Channels of a block: the largest size that all convolutions' weights fit."""
    weights = [w.shape for node in nodes if node.op_type == "Conv" and (w := node.inputs[1]) is not None]
    return next((b for b in _SIZES if all(shape and shape[0] % b == 0 for shape in weights)), _SIZES[-1])


class _Writer:
    """Writes the newest operators in the place of a node, behind those that stand in the graph."""

    def __init__(self, graph: Graph, block: int, node: Node, opsets: dict[str, int]) -> None:
        self.graph, self.block, self.node, self.opsets = graph, block, node, opsets

    def write(self, op_type: str, inputs: list[Value | None], attrs: dict[str, Any], domain: str = "",
              outputs: list[Value | None] | None = None) -> Value:
        """The first output of a new node."""
        schema = lookup(domain, op_type, 1 if domain else newest_opset("") or 1)
        assert isinstance(schema, Schema)
        label = self.graph.fresh(f"{self.node.label}/{op_type}")
        made = Node(op_type, domain, schema.version, find(domain, op_type, schema.version), inputs, attrs,
                    label, self.node.index)
        made.outputs = outputs or [Value(self.graph.fresh(f"{self.node.label}_{op_type}"))]
        for value in made.outputs:
            if value is not None:
                value.node = made
        self.graph.nodes.append(made)
        infer.annotate(made, self.opsets)
        first = made.outputs[0]
        assert first is not None
        return first

    def constant(self, array: np.ndarray) -> Value:
        return self.graph.constant(array, f"{self.node.label}_constant")

    def fail(self, node: Node, found: str) -> NotImplementedFail:
        return NotImplementedFail(
            f"the blocked layout of {node.op_type} cannot be undone", node=node.label, found=found,
            expected="constant weights and known numbers of channels",
            cure="save the model with a graph optimization level below ORT_ENABLE_ALL")


def _channels(w: _Writer, node: Node, value: Value | None) -> tuple[Value, int]:
    """A value and how many channels it has."""
    shape = None if value is None else value.shape
    if value is None or shape is None or len(shape) != 4 or not isinstance(shape[1], int):
        raise w.fail(node, f"an input of shape {shape}")
    return value, shape[1]


def _attrs(node: Node, *names: str) -> dict[str, Any]:
    return {k: v for k, v in node.attrs.items() if k in names}


_WINDOW = ("auto_pad", "pads", "strides", "dilations", "kernel_shape")


def _conv(w: _Writer, node: Node) -> Value:
    x, weights, *rest = [*node.inputs, None, None][:4]
    known = weights.const if weights is not None else None
    if not isinstance(known, np.ndarray) or known.ndim != 4 or known.shape[0] % w.block:
        raise w.fail(node, "weights that are computed, or fill no blocks")
    attrs = {k: v for k, v in node.attrs.items() if k not in ("activation", "activation_params")}
    inputs = [x, w.constant(unblocked(np.asarray(known), w.block)), *rest]
    if "activation" in node.attrs or rest[1] is not None:
        return w.write("FusedConv", inputs, dict(node.attrs), _MS)
    return w.write("Conv", inputs[:3] if rest[0] is not None else inputs[:2], attrs)


def unblocked(weights: np.ndarray, block: int) -> np.ndarray:
    """Weights (m, c, height, width) that lie by blocks of m, and of c where it is whole blocks too, in the
    order their shape says."""
    m, c, height, width = weights.shape
    if c % block:
        lying = weights.reshape(m // block, c, height, width, block)
        return np.ascontiguousarray(lying.transpose(0, 4, 1, 2, 3)).reshape(weights.shape)
    lying = weights.reshape(m // block, c // block, height, width, block, block)
    return np.ascontiguousarray(lying.transpose(0, 5, 1, 4, 2, 3)).reshape(weights.shape)


def _pool(w: _Writer, node: Node) -> Value:
    names = (*_WINDOW, "ceil_mode", *(["count_include_pad"] if node.op_type == "AveragePool" else []))
    return w.write(node.op_type, [node.inputs[0]], _attrs(node, *names))


def _global_pool(w: _Writer, node: Node) -> Value:
    return w.write(node.op_type, [node.inputs[0]], {})


def _upsample(w: _Writer, node: Node) -> Value:
    scales = np.array(node.attrs.get("scales", [1, 1, 1, 1]), np.float32)
    attrs = {"coordinate_transformation_mode": "asymmetric", "mode": "nearest",
             **_attrs(node, "coordinate_transformation_mode", "mode"), "nearest_mode": "floor"}
    return w.write("Resize", [node.inputs[0], None, w.constant(scales)], attrs)


def _reorder_input(w: _Writer, node: Node) -> Value:
    x = node.inputs[0]
    if node.attrs.get("channels_last") and x is not None:
        x = w.write("Transpose", [x], {"perm": [0, 3, 1, 2]})
    x, count = _channels(w, node, x)
    missing = -count % w.block
    if not missing:
        return x
    return w.write("Pad", [x, w.constant(np.array([0, 0, 0, 0, 0, missing, 0, 0], np.int64))], {})


def _reorder_output(w: _Writer, node: Node) -> Value:
    x, count = _channels(w, node, node.inputs[0])
    kept = node.attrs.get("channels") or count
    if kept < count:
        x = w.write("Slice", [x, *(w.constant(np.array([n], np.int64)) for n in (0, kept, 1))], {})
    return w.write("Transpose", [x], {"perm": [0, 2, 3, 1]}) if node.attrs.get("channels_last") else x


_RULES: dict[str, Callable[[_Writer, Node], Value]] = {
    "Conv": _conv, "MaxPool": _pool, "AveragePool": _pool, "GlobalMaxPool": _global_pool,
    "GlobalAveragePool": _global_pool, "Upsample": _upsample, "ReorderInput": _reorder_input,
    "ReorderOutput": _reorder_output}
