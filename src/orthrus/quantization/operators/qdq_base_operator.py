"""Which values of one node get QuantizeLinear and DequantizeLinear; as it stands here, all float ones."""

from __future__ import annotations

from typing import Any

from onnx import NodeProto


class QDQOperatorBase:
    """A node and the QDQQuantizer at work. `quantize` marks values; the quantizer inserts the nodes."""

    def __init__(self, onnx_quantizer: Any, onnx_node: NodeProto) -> None:
        self.quantizer = onnx_quantizer
        self.node = onnx_node
        excluded = onnx_quantizer.op_types_to_exclude_output_quantization
        self.disable_qdq_for_node_output = onnx_node.op_type in excluded

    @property
    def results(self) -> list[str]:
        """The outputs to quantize: none for operators whose outputs stay float."""
        return [] if self.disable_qdq_for_node_output else [name for name in self.node.output if name]

    def quantize(self) -> None:
        """Mark every input and every output."""
        for name in (*filter(None, self.node.input), *self.results):
            self.quantizer.quantize_activation_tensor(name)

    def share(self, output: str) -> None:
        """Mark an output to take scale and zero point from the first input."""
        self.quantizer.quantize_output_same_as_input(output, self.node.input[0], self.node.name)

    def mark_weight(self, name: str, axis: int, op_type: str | None = None) -> None:
        """Mark a weight, per channel of the axis where that is asked for."""
        per_channel, chosen = self.quantizer.is_tensor_per_channel(name, default_axis=axis, op_type=op_type)
        if per_channel:
            self.quantizer.quantize_weight_tensor_per_channel(name, chosen)
        else:
            self.quantizer.quantize_weight_tensor(name)

    def mark_bias(self, beta: float = 1.0) -> None:
        """Mark the third input as a bias in the steps of the first two."""
        node = self.node
        if len(node.input) > 2 and node.input[2]:
            self.quantizer.quantize_bias_tensor(node.name, node.input[2], node.input[0], node.input[1], beta)
