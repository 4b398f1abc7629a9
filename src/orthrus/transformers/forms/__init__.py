"""A model in the operators of com.microsoft, as onnxruntime's transformer optimizer writes them.

In: a model and what is asked for (`Asked`). Out: a model that computes the same under the same opset, with
the same inputs and outputs, and a journal of what was fused and what was declined, and why. Rules are written
as those of `orthrus.optimize` are; `selection` says which of them run.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from onnx import ModelProto

from ...ir import Graph
from ...load import load, to_model_proto
from ...optimize import Entry, at, run_passes
from ...quantization.onnx_model import subgraphs
from ..fusion_options import FusionOptions
from . import names, older, selection
from .asked import Asked
from .selection import Form

__all__ = ["WRITTEN", "Asked", "Form", "optimized", "write_forms"]
WRITTEN = frozenset({
    "Attention", "BiasAdd", "BiasGelu", "BiasSplitGelu", "EmbedLayerNormalization", "FastGelu", "Gelu",
    "GemmFastGelu", "GroupNorm", "GroupQueryAttention", "LayerNormalization", "MultiHeadAttention",
    "NhwcConv", "QuickGelu", "RotaryEmbedding", "SimplifiedLayerNormalization", "SkipGroupNorm",
    "SkipLayerNormalization", "SkipSimplifiedLayerNormalization"})
"""The operators that fusions write."""


def optimized(model: Any, model_type: str = "bert", options: FusionOptions | None = None, num_heads: int = 0,
              hidden_size: int = 0, opt_level: int = 0, only: Iterable[str] | None = None
              ) -> tuple[ModelProto, list[Entry]]:
    """A model (a path, bytes or a ModelProto) rewritten for its type, and the journal; where `only` some of
    the options' switches are named, the others do not count. Raises the errors of loading."""
    graph = load(model)
    _fix_initializers(graph)
    asked = Asked(model_type, options or FusionOptions(model_type), num_heads, hidden_size,
                  graph.info.opsets.get("", 1), None if only is None else frozenset(only))
    known = {node.name for node in graph.nodes} | set(graph.initializers)
    journal = write_forms(graph, asked, opt_level)
    names.name_nodes(graph, asked, known, WRITTEN)
    made = to_model_proto(graph, released=False)
    _leave_domains_out(made.graph)
    return made, journal


def write_forms(graph: Graph, asked: Asked, opt_level: int = 0) -> list[Entry]:
    """Rewrite `graph` in place; the journal."""
    clean = selection.cleaning(opt_level)
    journal = run_passes(graph, [*clean, *selection.passes(selection.ALIKE, asked)], asked)
    journal += run_passes(graph, selection.passes(selection.FORMS, asked), asked)
    journal += run_passes(graph, [*clean, *selection.passes(selection.LEFT, asked)], asked)
    journal += run_passes(graph, at(0, older.write_model_versions), asked)
    return journal


def _leave_domains_out(graph: Any) -> None:
    """State no domain for ONNX's operators, as onnx.helper does, so that nodes compare equal to its."""
    for node in graph.node:
        if not node.domain:
            node.ClearField("domain")
        for inner in subgraphs(node):
            _leave_domains_out(inner)


def _fix_initializers(graph: Graph) -> None:
    """Initializers that older models name among their inputs are constants."""
    for value in graph.initializers.values():
        if value.default is not None:
            value.const, value.default = value.default, None
    fixed = set(graph.initializers.values())
    graph.inputs = [value for value in graph.inputs if value not in fixed]
