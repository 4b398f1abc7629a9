"""Small edits that fusions of a user's own need, under the names of onnxruntime.transformers.fusion_utils.

In: an OnnxModel, or one of its nodes or tensors. Out: the same, changed.
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto, helper, numpy_helper

from ...quantization.refused import InvalidValue
from ..model.onnx_model import OnnxModel

__all__ = ["FusionUtils", "NumpyHelper"]
logger = logging.getLogger(__name__)
_KINDS = {"int32": TensorProto.INT32, "int64": TensorProto.INT64, "float16": TensorProto.FLOAT16,
          "float": TensorProto.FLOAT, "float32": TensorProto.FLOAT}


class FusionUtils:
    def __init__(self, model: OnnxModel) -> None:
        self.model = model

    def cast_graph_input_to_int32(self, input_name: str) -> tuple[bool, str]:
        """Whether a graph input of this name was cast, and the name of its int32 values."""
        value = self.model.find_graph_input(input_name)
        if value is None or value.type.tensor_type.elem_type == TensorProto.INT32:
            return False, input_name
        return True, self.cast_input_to_int32(input_name)[0]

    def cast_input(self, input_name: str, target_type: str = "int32") -> tuple[str, NodeProto]:
        """A Cast of a value to "int32", "int64", "float16" or "float": the new value and the node."""
        if target_type not in _KINDS:
            raise InvalidValue("the type is not known", found=target_type, expected=", ".join(_KINDS))
        node = self.add_cast_node(input_name, _KINDS[target_type], f"{input_name}_{target_type}")
        return node.output[0], node

    def add_cast_node(self, input_name: str, to_type: int, output_name: str | None = None,
                      output_name_to_node: dict[str, NodeProto] | None = None, graph_name: str | None = None
                      ) -> NodeProto:
        """A Cast to a type, of what a Cast before it read where there is one."""
        makers = self.model.output_name_to_node() if output_name_to_node is None else output_name_to_node
        before = makers.get(input_name)
        source = before.input[0] if before is not None and before.op_type == "Cast" else input_name
        node = helper.make_node("Cast", [source], [output_name or f"{input_name}_cast_to_{to_type}"],
                                self.model.create_node_name("Cast"), to=to_type)
        self.model.add_node(node, graph_name)
        return node

    def cast_input_to_int32(self, input_name: str) -> tuple[str, NodeProto]:
        return self.cast_input(input_name, "int32")

    def remove_cast_int32(self, input_name: str) -> None:
        """Let what reads a Cast of the value to int32 read the value."""
        for node in self.model.input_name_to_nodes().get(input_name, []):
            if node.op_type == "Cast" and OnnxModel.get_node_attribute(node, "to") == TensorProto.INT32:
                self.model.remove_node(node)
                self.model.replace_input_of_all_nodes(node.output[0], input_name)

    @staticmethod
    def update_node_input(node: NodeProto, i: int, new_input_name: str,
                          input_name_to_nodes: dict[str, list[NodeProto]]) -> None:
        """Let a node read another value, and keep the table of readers right."""
        readers = input_name_to_nodes.get(node.input[i], [])
        if sum(name == node.input[i] for name in node.input) == 1:
            readers[:] = [reader for reader in readers if reader is not node]
        node.input[i] = new_input_name
        input_name_to_nodes.setdefault(new_input_name, []).append(node)

    @staticmethod
    def skip_parent(model: OnnxModel, node: NodeProto, parent_node: NodeProto,
                    input_name_to_nodes: dict[str, list[NodeProto]], node_input_index: int = 0,
                    parent_input_index: int = 0) -> bool:
        """Let a node read what its parent reads, and the parent's other readers, too; False where the
        parent's result is a graph output, which it then stays."""
        old, new = node.input[node_input_index], parent_node.input[parent_input_index]
        kept = model.find_graph_output(old) is not None
        for reader in [node] if kept else list(input_name_to_nodes.get(old, [node])):
            for i, name in enumerate(reader.input):
                if name == old:
                    FusionUtils.update_node_input(reader, i, new, input_name_to_nodes)
        return not kept

    def get_squeeze_or_unsqueeze_axes(self, node: NodeProto) -> np.ndarray | None:
        """The axes, of the attribute or of the constant input."""
        axes = OnnxModel.get_node_attribute(node, "axes")
        if axes is not None:
            return np.asarray(axes)
        return self.model.get_constant_value(node.input[1]) if len(node.input) > 1 else None

    @staticmethod
    def check_node_attribute(node: NodeProto, attribute_name: str, expected_value: Any,
                             default_value: Any = None) -> bool:
        """Whether an attribute, or the default where it is absent, is the expected value."""
        found = OnnxModel.get_node_attribute(node, attribute_name)
        found = default_value if found is None else found
        if isinstance(expected_value, list):
            return found is not None and list(found) == expected_value
        return bool(found == expected_value)

    @staticmethod
    def transpose_2d_int8_tensor(tensor: TensorProto) -> TensorProto:
        """The tensor itself, a matrix of int8, transposed. Raises: InvalidValue for another."""
        if len(tensor.dims) != 2 or tensor.data_type != TensorProto.INT8:
            raise InvalidValue("only a matrix of int8 can be transposed", found=str(list(tensor.dims)))
        turned = np.ascontiguousarray(numpy_helper.to_array(tensor).T)
        tensor.CopyFrom(numpy_helper.from_array(turned, tensor.name))
        return tensor

    @staticmethod
    def check_qdq_node_for_fusion(node: NodeProto, model: OnnxModel,
                                  allow_per_tensor_quantization_only: bool = True) -> bool:
        """Whether a QuantizeLinear or DequantizeLinear has a constant scale, one for all unless allowed
        otherwise, and no zero point but 0."""
        if node.op_type not in ("QuantizeLinear", "DequantizeLinear"):
            return False
        scale = model.get_constant_value(node.input[1])
        zero = model.get_constant_value(node.input[2]) if len(node.input) > 2 and node.input[2] else None
        whole = scale is not None and (scale.size == 1 or not allow_per_tensor_quantization_only)
        return whole and (zero is None or not np.any(zero))

    def check_node_input_value(self, node: NodeProto, input_index: int, expected_value: Any) -> bool:
        """Whether an input is constant and this number, or this list."""
        value = self.model.get_constant_value(node.input[input_index])
        if value is None:
            return False
        if isinstance(expected_value, list):
            return value.tolist() == expected_value
        return value.size == 1 and bool(value.item() == expected_value)

    def remove_identity_nodes(self) -> None:
        """Drop Identity nodes but those that make a graph output."""
        self._drop("Identity", lambda node: True)

    def remove_cascaded_cast_nodes(self) -> None:
        self.model.remove_cascaded_cast_nodes()

    def remove_useless_cast_nodes(self) -> None:
        self.model.remove_useless_cast_nodes()

    def remove_useless_reshape_nodes(self) -> None:
        """Drop each Reshape to the shape that its input has for every size."""
        helped = self.model.infer_runtime_shape(update=True)
        if helped is not None:
            self._drop("Reshape", lambda n: None not in map(helped.get_edge_shape, (n.input[0], n.output[0]))
                       and helped.compare_shape(n.input[0], n.output[0]))

    def _drop(self, op_type: str, useless: Any) -> None:
        outputs = {value.name for value in self.model.graph().output}
        for node in self.model.get_nodes_by_op_type(op_type):
            if node.output[0] not in outputs and useless(node):
                self.model.replace_input_of_all_nodes(node.output[0], node.input[0])
                self.model.remove_node(node)


class NumpyHelper:
    @staticmethod
    def to_array(tensor: TensorProto, fill_zeros: bool = False) -> np.ndarray:
        """A tensor's values, or zeros of its type and shape."""
        if fill_zeros:
            return np.zeros(tuple(tensor.dims), helper.tensor_dtype_to_np_dtype(tensor.data_type))
        return numpy_helper.to_array(tensor)
