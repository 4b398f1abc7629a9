"""LpNormalization that exporters took apart, by its ReduceL2."""

from __future__ import annotations

from typing import Any

import onnx

from ....optimize.pattern import number, templates
from ...fusions import Fusion
from ...fusions.fusion import Makers, Nodes
from ...fusions.fusion_layernorm import last_axis
from ...onnx_model import ONNXModel

_SAME = 1e-13


def _normalize(op: Any, x: Any, s: Any, p: Any, m: Any, k: Any, a: Any = None, low: Any = None,
               high: Any = None) -> Any:
    length = op.ReduceL2(x, a, axes=p, keepdims=1)
    return op.Div(x, op.Expand(op.Clip(length, low, high, min=m, max=k), s))


_LP_NORMALIZATION = templates(_normalize)


class FusionLpNormalization(Fusion):
    """x / max(|x|, epsilon) along the last axis becomes one node."""

    def __init__(self, model: ONNXModel, epsilon: float = 1e-12) -> None:
        super().__init__(model, "LpNormalization", "ReduceL2")
        self.epsilon = epsilon

    def fuse(self, reduce_node: onnx.NodeProto, input_name_to_nodes: Nodes,
             output_name_to_node: Makers) -> None:
        """Fuse the LpNormalization that `reduce_node` belongs to, if any."""
        found = self.find_pattern(_LP_NORMALIZATION, reduce_node, output_name_to_node, self._fits)
        if found is not None:
            self.replace(found, [found.bound["x"].name], p=2, axis=-1)

    def _fits(self, bound: dict[str, Any]) -> bool:
        least = number(bound.get("low")) if bound["m"] is None else bound["m"]
        return (least is not None and least > 0 and abs(least - self.epsilon) < _SAME
                and bound.get("high") is None and bound["k"] is None
                and last_axis(bound["p"], bound.get("a"), bound["x"]))
