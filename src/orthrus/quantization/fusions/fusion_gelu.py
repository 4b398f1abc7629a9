"""Gelu that exporters took apart, by its Erf."""

from __future__ import annotations

from typing import Any

import onnx

from ...optimize.pattern import number, templates
from ..onnx_model import ONNXModel
from .fusion import Fusion, Makers, Nodes

_ROOT_TWO, _ROOT_HALF, _ROUNDED = 1.4142, 0.7071067690849304, 1e-3
"""Exporters write the square roots with few digits."""


def _from_pytorch(op: Any, x: Any, c: Any) -> list[Any]:
    e = op.Add(op.Erf(op.Div(x, op.constant(c))), 1)
    return [op.Mul(op.Mul(x, 0.5), e), op.Mul(op.Mul(x, e), 0.5)]


def _from_keras(op: Any, x: Any, c: Any) -> list[Any]:
    root = op.either(op.constant(c), op.Sqrt(2))
    return [op.Mul(x, op.Mul(op.Add(op.Erf(op.Div(x, root)), 1), 0.5))]


def _from_tensorflow(op: Any, x: Any, c: Any) -> list[Any]:
    return [op.Mul(x, op.Mul(op.Add(op.Erf(op.Mul(x, op.constant(c))), 1), 0.5))]


_PYTORCH, _KERAS, _TENSORFLOW = map(templates, (_from_pytorch, _from_keras, _from_tensorflow))


class FusionGelu(Fusion):
    """x * (1 + erf(x / sqrt(2))) / 2 becomes com.microsoft's Gelu."""

    def __init__(self, model: ONNXModel) -> None:
        super().__init__(model, "Gelu", "Erf")

    def fuse(self, erf_node: onnx.NodeProto, input_name_to_nodes: Nodes,
             output_name_to_node: Makers) -> None:
        """Fuse the Gelu that `erf_node` belongs to, if any."""
        ways = self.fuse_1, self.fuse_2, self.fuse_3
        if any(way(erf_node, input_name_to_nodes, output_name_to_node) for way in ways):
            self.model.set_opset_import("com.microsoft", 1)

    def fuse_1(self, erf_node: onnx.NodeProto, input_name_to_nodes: Nodes,
               output_name_to_node: Makers) -> bool:
        """As PyTorch writes it: the half is a factor of x, or of the whole."""
        return self._fuse(_PYTORCH, _ROOT_TWO, erf_node, output_name_to_node)

    def fuse_2(self, erf_node: onnx.NodeProto, input_name_to_nodes: Nodes,
               output_name_to_node: Makers) -> bool:
        """As Keras writes it: the half is a factor of the other side, and the root may be computed."""
        return self._fuse(_KERAS, _ROOT_TWO, erf_node, output_name_to_node)

    def fuse_3(self, erf_node: onnx.NodeProto, input_name_to_nodes: Nodes,
               output_name_to_node: Makers) -> bool:
        """As TensorFlow writes it: multiplied by the root of a half."""
        return self._fuse(_TENSORFLOW, _ROOT_HALF, erf_node, output_name_to_node)

    def _fuse(self, patterns: Any, root: float, erf_node: onnx.NodeProto, makers: Makers) -> bool:
        def fits(bound: dict[str, Any]) -> bool:
            factor = number(bound["c"]) if "c" in bound else root
            return factor is not None and abs(factor - root) < _ROUNDED

        found = self.find_pattern(patterns, erf_node, makers, fits)
        if found is not None:
            self.replace(found, [found.bound["x"].name], "com.microsoft")
        return found is not None
