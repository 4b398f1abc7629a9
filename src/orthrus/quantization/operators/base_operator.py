"""How one node of a model becomes a quantized operator; as it stands here, it stays float.

A subclass is made for a node, asked `should_quantize`, and adds its nodes to `quantizer.new_nodes`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import onnx
from onnx import NodeProto

from ..onnx_model import read_names, subgraphs
from ..quant_utils import TENSOR_NAME_QUANT_SUFFIX, QuantizedValue, QuantizedValueType

Operand = tuple[str, str, str]
"""The names of a quantized value, of its scale and of its zero point: the order operators take them in."""


class QuantOperatorBase:
    """A node and the ONNXQuantizer at work. What it reads is dequantized where it was quantized before."""

    def __init__(self, onnx_quantizer: Any, onnx_node: NodeProto) -> None:
        self.quantizer = onnx_quantizer
        self.node = onnx_node

    def should_quantize(self) -> bool:
        """Whether the node is meant and its first input is float."""
        meant = self.quantizer.should_quantize_node(self.node)
        return meant and bool(self.node.input) and self.quantizer.is_float_tensor(self.node.input[0])

    def quantize(self) -> None:
        """Keep the node, with every value it reads in float."""
        outer = set().union(*map(read_names, subgraphs(self.node)))
        self.dequantize([*self.node.input, *sorted(outer)])
        self.quantizer.new_nodes.append(self.node)

    def dequantize(self, names: Iterable[str]) -> None:
        """Make float again those of the values that were quantized."""
        for name in names:
            made = self.quantizer._dequantize_value(name)
            if made is not None:
                self.quantizer.new_nodes.append(made)

    def renamed(self, op_type: str, inputs: Iterable[str], outputs: Iterable[str], domain: str = "",
                without: tuple[str, ...] = (), **more: Any) -> NodeProto:
        """The node under another operator, with its attributes but those in `without`, and `more`."""
        left_out = {*without, *more}
        node = NodeProto(op_type=op_type, domain=domain, input=list(inputs), output=list(outputs),
                         name=self.node.name and f"{self.node.name}_quant",
                         attribute=[a for a in self.node.attribute if a.name not in left_out])
        node.attribute.extend(onnx.helper.make_attribute(name, value) for name, value in more.items())
        return node

    def give(self, output: str, scale: str, zero: str, name: str = "") -> str:
        """Note that an output of the node is now a quantized value; that value's name."""
        quantized = name or f"{output}{TENSOR_NAME_QUANT_SUFFIX}"
        self.quantizer.quantized_value_map[output] = QuantizedValue(output, quantized, scale, zero,
                                                                    QuantizedValueType.Input)
        return quantized

    def activations(self, indices: Iterable[int]) -> list[Operand] | None:
        """The node's inputs at these places, quantized as activations; None where one has no parameters."""
        places = list(indices)
        if not all(self.quantizer.can_quantize(self.node.input[place]) for place in places):
            return None
        return self._added(*self.quantizer.quantize_activation(self.node, places))

    def weight(self, index: int, **how: Any) -> Operand:
        """The node's input at this place, quantized as a weight."""
        return self._added(*self.quantizer.quantize_weight(self.node, [index], **how))[0]

    def _added(self, names: list[str], zeros: list[str], scales: list[str], nodes: list[NodeProto]
               ) -> list[Operand]:
        self.quantizer.new_nodes += nodes
        return list(zip(names, scales, zeros, strict=True))

    def result(self, index: int = 0, scale: float | None = None, zero: int | None = None
               ) -> tuple[str, str] | None:
        """The names of scale and zero point of an output, None where its range is not known."""
        name = self.node.output[index]
        if not self.quantizer.has_params(name):
            return None
        _, scale_name, zero_name, _, _ = self.quantizer._get_quantization_params(name, scale, zero)
        return scale_name, zero_name
