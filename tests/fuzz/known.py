"""Differences from onnxruntime that are meant, by operator, each with its reason; a graph that holds one of
these operators is held to the definitions alone where onnxruntime differs from them."""

from __future__ import annotations

import onnx

DIFFERS: dict[str, str] = {}


def excused(model: onnx.ModelProto) -> str | None:
    """The first operator of a model that onnxruntime is known to compute otherwise."""
    return next((node.op_type for node in model.graph.node if node.op_type in DIFFERS), None)
