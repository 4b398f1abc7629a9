"""LayerNormalization that exporters took apart, by its ReduceMean."""

from __future__ import annotations

from typing import Any

import onnx

from ...optimize.pattern import number, templates
from ...optimize.rules.facts import ints, rank
from ..onnx_model import ONNXModel
from .fusion import Fusion, Makers, Nodes

_LARGEST_EPSILON = 1e-4


def _forms(op: Any, x: Any, e: Any, g: Any, t: Any, p: Any, q: Any, a: Any = None,
           b: Any = None) -> list[Any]:
    def less_mean() -> Any:
        return op.Sub(x, op.ReduceMean(x, a, axes=p, keepdims=1))

    def normalized(numerator: Any, d: Any) -> Any:
        square = op.either(op.Pow(d, 2), op.Mul(d, d))
        variance = op.ReduceMean(square, b, axes=q, keepdims=1)
        return op.Add(op.Mul(op.Div(numerator, op.Sqrt(op.Add(variance, op.constant(e)))), g), t)

    d, mean = less_mean(), op.ReduceMean(x, a, axes=p, keepdims=1)
    twice = op.Sub(x, mean), op.Sub(x, mean)
    return [form for above, below in ((d, d), twice) for form in (
        normalized(above, below), normalized(above, op.Cast(below)))]


_LAYER_NORMALIZATION = templates(_forms)


def last_axis(attribute: Any, given: Any, x: Any) -> bool:
    """Whether a reduction of `x` goes along its last axis only, by its attribute or by its input `axes`."""
    axes = ints(given) if attribute is None else list(attribute)
    count = rank(x)
    return axes == [-1] or (count is not None and axes == [count - 1])


class FusionLayerNormalization(Fusion):
    """(x - mean) / sqrt(mean((x - mean) ** 2) + epsilon) * scale + bias along the last axis becomes one
    node."""

    def __init__(self, model: ONNXModel) -> None:
        super().__init__(model, "LayerNormalization", "ReduceMean")

    def fuse(self, reduce_mean_node: onnx.NodeProto, input_name_to_nodes: Nodes,
             output_name_to_node: Makers) -> None:
        """Fuse the LayerNormalization that `reduce_mean_node` belongs to, if any."""
        found = self.find_pattern(_LAYER_NORMALIZATION, reduce_mean_node, output_name_to_node, self._fits)
        if found is not None:
            bound = found.bound
            self.replace(found, [bound[name].name for name in "xgt"], epsilon=number(bound["e"]))

    def _fits(self, bound: dict[str, Any]) -> bool:
        epsilon, x = number(bound["e"]), bound["x"]
        return (epsilon is not None and 0 < epsilon <= _LARGEST_EPSILON
                and all(self.is_constant_with_specified_rank(bound[name].name, 1) for name in "gt")
                and last_axis(bound["p"], bound.get("a"), x) and last_axis(bound["q"], bound.get("b"), x))
