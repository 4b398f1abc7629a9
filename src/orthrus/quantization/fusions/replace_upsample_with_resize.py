"""Upsample, which ended with opset 10, written as Resize."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from ..onnx_model import ONNXModel
from .fusion import Fusion, Makers, Nodes


class ReplaceUpsampleWithResize(Fusion):
    """Every Upsample becomes a Resize that computes the same; `opset` is the model's, 10 or less."""

    def __init__(self, model: ONNXModel, opset: int) -> None:
        super().__init__(model, "Resize", "Upsample")
        self.opset = opset

    def fuse(self, node: onnx.NodeProto, input_name_to_nodes: Nodes, output_name_to_node: Makers) -> None:
        """Write one Upsample as Resize: each element stands where its index times 1 / scale points to."""
        mode = self.get_node_attribute(node, "mode")
        region = self._constant(f"{node.output[0]}_roi", [])
        self.nodes_to_remove.append(node)
        self.nodes_to_add.append(onnx.helper.make_node(
            "Resize", [node.input[0], region, self._scales(node)], node.output, node.name,
            mode="linear" if mode in (b"linear", b"bilinear") else "nearest",
            coordinate_transformation_mode="asymmetric", nearest_mode="floor"))

    def _scales(self, node: onnx.NodeProto) -> str:
        """The name of the scales: an input, or a constant made of the attributes that older forms have."""
        if self.opset > 8:
            return str(node.input[1])
        given: Any = self.get_node_attribute(node, "scales")
        if given is None:
            sides = (self.get_node_attribute(node, name) or 1 for name in ("height_scale", "width_scale"))
            given = [1, 1, *sides]
        return self._constant(f"{node.output[0]}_scales", given)

    def _constant(self, name: str, numbers: Any) -> str:
        """Enter a constant of float32, and answer its name."""
        value = numpy_helper.from_array(np.array(numbers, np.float32), name)
        self.nodes_to_add.append(onnx.helper.make_node("Constant", [], [name], value=value))
        return name

    def apply(self) -> bool:
        """Replace every Upsample; whether there was one."""
        changed = super().apply()
        if changed:
            self.model.topological_sort()
        return changed
