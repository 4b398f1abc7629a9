"""The names that onnxruntime's transformer optimizer gives to the nodes it writes.

In: a graph of forms, and the names of the nodes it was made from. Out: the same graph; its new nodes and some
of their values have the names that scripts look for (in `nodes_to_exclude`, in profiles).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container

from ...ir import Graph, Node, Value
from .asked import Asked

_PREFIXES = {"LayerNormalization": "LayerNorm", "SimplifiedLayerNormalization": "RMSNorm",
             "SkipLayerNormalization": "SkipLayerNorm", "SkipSimplifiedLayerNormalization": "SkipLayerNorm",
             "BiasGelu": "Gelu"}
"""Operator → what its nodes' names begin with, where that is not the operator."""
_BIAS = {"SkipLayerNormalization": 4, "SkipSimplifiedLayerNormalization": 3, "FastGelu": 1, "BiasGelu": 1}
"""Operator → which of its inputs is a bias that was a node of its own."""
_FIRST = {"SkipLayerNormalization": "LayerNorm", "EmbedLayerNormalization": "LayerNorm",
          "SkipSimplifiedLayerNormalization": "RMSNorm"}
"""Operator → the form it is made from, which had taken a number before."""
_MULTI_HEAD = frozenset({"mmdit", "phi", "sam2", "t5", "unet", "vae"})
"""Model types whose MultiHeadAttentions are called so; those of others are called Attention."""
_PACKED = {"Attention": {1: "_qkv_weight", 2: "_qkv_bias"}, "MultiHeadAttention": {3: "_qkv_bias"}}
"""What follows an attention's name in those of the constants that are packed for it, by their place."""
_RESULTS = {"EmbedLayerNormalization": ("_output", "_dummy_mask_index")}
"""What follows a node's name in those of its results."""


def name_nodes(graph: Graph, asked: Asked, known: Container[str], written: Container[str]) -> None:
    """Name nodes of the operators in `written`, and constants packed for attentions, but for the `known`."""
    fused = not any(node.name in known and node.op_type in ("LayerNormalization", "RMSNormalization")
                    for node in graph.nodes)
    numbers: Counter[str] = Counter()
    taken = {node.name for node in graph.nodes}
    for node in graph.nodes:
        if node.op_type not in written or node.name in known:
            continue
        prefix = _prefix(node, asked)
        if fused and node.op_type in _FIRST:
            numbers[_FIRST[node.op_type]] += 1
        number, numbers[prefix] = numbers[prefix], numbers[prefix] + 1
        if _has_input(node, _BIAS.get(node.op_type)):
            prefix += "_AddBias"
            number, numbers[prefix] = numbers[prefix], numbers[prefix] + 1
        while (name := f"{prefix}_{number}") in taken:
            number += 1
        taken.add(name)
        node.name = name
        for place, suffix in _PACKED.get(node.op_type, {}).items():
            if _has_input(node, place):
                _name_constant(graph, node.inputs[place], name + suffix, known)
        for value, suffix in zip(node.outputs, _RESULTS.get(node.op_type, ()), strict=False):
            if value is not None and not value.graph_outputs:
                value.name = name + suffix
        if prefix.startswith("Skip"):  # means and deviations, behind which the sum stands
            node.outputs[1:-1] = [None if it is None or it.dead else it for it in node.outputs[1:-1]]


def _prefix(node: Node, asked: Asked) -> str:
    kind = node.op_type
    if kind == "Attention" and asked.model_type == "gpt2" and _has_input(node, 4):
        return "GptAttention"
    if kind == "MultiHeadAttention" and asked.model_type not in _MULTI_HEAD:
        return "Attention"
    return _PREFIXES.get(kind, kind)


def _has_input(node: Node, which: int | None) -> bool:
    return which is not None and len(node.inputs) > which and node.inputs[which] is not None


def _name_constant(graph: Graph, value: Value | None, name: str, known: Container[str]) -> None:
    if value is not None and value.name not in known and graph.initializers.get(value.name) is value:
        del graph.initializers[value.name]
        value.name = graph.fresh(name) if name in graph.initializers else name
        graph.add_initializer(value)
