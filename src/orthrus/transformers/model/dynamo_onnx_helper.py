"""Edits of models that torch's dynamo exporter wrote, under the name of
onnxruntime.transformers.dynamo_onnx_helper.

In: a ModelProto, which is changed in place. `optimizer.optimize_model` needs none of them: functions are
inlined and constants folded as the model is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import AttributeProto, ModelProto, TensorProto, helper, inliner, numpy_helper

from ...quantization.onnx_model import all_graphs, keep_only
from ...quantization.refused import InvalidValue
from .onnx_model import OnnxModel

__all__ = ["DynamoOnnxHelper"]


class DynamoOnnxHelper:
    def __init__(self, model: ModelProto) -> None:
        self.model = OnnxModel(model)

    def update_edges(self, edge_mapping: Mapping[str, str]) -> None:
        """Rename values wherever they are read, made or given out."""
        for old, new in edge_mapping.items():
            self.model.replace_input_of_all_nodes(old, new)
            self.model.replace_output_of_all_nodes(old, new)
            for value in (*self.model.graph().input, *self.model.graph().output):
                if value.name == old:
                    value.name = new

    def unroll_function(self, func_name: str) -> None:
        """Put a function's nodes in the place of its calls. Raises: InvalidValue where the model has none of
        this name."""
        wanted = [(f.domain, f.name) for f in self.model.model.functions if f.name == func_name]
        if not wanted:
            raise InvalidValue("the model has no function of this name", found=func_name)
        self.model.model.CopyFrom(inliner.inline_selected_functions(self.model.model, wanted))

    def remove_function(self, func_name: str, input_id: int, output_id: int) -> None:
        """Let what reads one output of the calls read one of their inputs."""
        for node in self.model.get_nodes_by_op_type(func_name):
            self.model.replace_input_of_all_nodes(node.output[output_id], node.input[input_id])
            self.model.remove_node(node)

    def remove_dropout_layer(self) -> None:
        for name in {n.op_type for n in self.model.nodes() if "Dropout" in n.op_type}:
            self.remove_function(name, 0, 0)

    def remove_lm_head_layer(self) -> None:
        """Make what the Linear called lm_head reads the output, and drop the head."""
        for node in [n for n in self.model.nodes() if "lm_head" in n.op_type]:
            for value in self.model.graph().output:
                if value.name == node.output[0]:
                    value.name = node.input[0]
                    value.type.ClearField("value")
            self.model.remove_node(node)
        self.model.update_graph()

    def add_initializer(self, name: str, data_type: int, dims: Sequence[int], vals: Any, raw: bool = True
                        ) -> TensorProto:
        """Add a tensor; `vals` is an array or bytes where `raw`, else numbers."""
        if raw and not isinstance(vals, bytes):
            vals = np.ascontiguousarray(vals, helper.tensor_dtype_to_np_dtype(data_type)).tobytes()
        tensor = helper.make_tensor(name, data_type, dims, vals, raw)
        self.model.add_initializer(tensor)
        return tensor

    def convert_constants_to_initializers(self, min_size: int = 1) -> None:
        """Make the tensors of Constant nodes, of `min_size` elements and more, initializers."""
        for graph in self.model.graphs():
            taken = []
            for node in graph.node:
                value = node.attribute[0] if node.op_type == "Constant" and node.attribute else None
                if value is not None and value.type == AttributeProto.TENSOR \
                        and int(np.prod(value.t.dims)) >= min_size:
                    value.t.name = node.output[0]
                    graph.initializer.append(value.t)
                    taken.append(node.output[0])
            keep_only(graph.node, lambda n, gone=frozenset(taken): n.op_type != "Constant"
                      or n.output[0] not in gone)

    def clear_metadata(self) -> None:
        """Forget what nodes, values and graphs carry as metadata."""
        for graph in all_graphs(self.model.model.graph):
            for item in (graph, *graph.node, *graph.value_info, *graph.input, *graph.output):
                item.ClearField("metadata_props")

    @staticmethod
    def fold_transpose_initializers(model: ModelProto) -> None:
        """Put the result in the place of each Transpose of an initializer of the main graph."""
        known = {t.name: t for t in model.graph.initializer}
        outputs = {value.name for value in model.graph.output}
        done = set[str]()
        for node in model.graph.node:
            if node.op_type == "Transpose" and node.input[0] in known and node.output[0] not in outputs:
                perm = OnnxModel.get_node_attribute(node, "perm")
                turned = np.ascontiguousarray(numpy_helper.to_array(known[node.input[0]]).transpose(perm))
                model.graph.initializer.append(numpy_helper.from_array(turned, node.output[0]))
                done.add(node.output[0])
        keep_only(model.graph.node, lambda n: n.op_type != "Transpose" or n.output[0] not in done)
        OnnxModel(model).remove_unused_constant()
