"""What fuses one kind of operator in an OnnxModel.

In: an OnnxModel, changed in place. Out: how often each operator was written, in `fused_count`. A class of
this package names the switches of FusionOptions whose rules it runs; one of a user's own overrides `fuse`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from onnx import NodeProto, TensorProto, helper

from .. import forms
from ..fusion_options import FusionOptions
from ..model.onnx_model import OnnxModel

__all__ = ["Fusion"]
logger = logging.getLogger(__name__)


class Fusion:
    """`search_op_types`: the operators whose nodes `fuse` is called with. `switches`: the rules that run
    where no `fuse` is written; `model_type`: for which type of model."""

    switches: ClassVar[tuple[str, ...]] = ()
    model_type: ClassVar[str] = "bert"

    def __init__(self, model: OnnxModel, fused_op_type: str, search_op_types: str | Sequence[str],
                 description: str = "") -> None:
        self.model, self.fused_op_type = model, fused_op_type
        self.search_op_types = [search_op_types] if isinstance(search_op_types, str) else \
            list(search_op_types)
        self.description = f"{fused_op_type}({description})" if description else fused_op_type
        self.nodes_to_remove: list[NodeProto] = []
        self.nodes_to_add: list[NodeProto] = []
        self.node_name_to_graph_name: dict[str, str] = {}
        self.this_graph_name: str | None = None
        self.prune_graph = False
        self.fused_count: dict[str, int] = {}
        self.num_heads = self.hidden_size = 0
        self.options = FusionOptions(self.model_type)

    def increase_counter(self, fused_op_name: str) -> None:
        self.fused_count[fused_op_name] = self.fused_count.get(fused_op_name, 0) + 1

    def fuse(self, node: NodeProto, input_name_to_nodes: dict[str, list[NodeProto]],
             output_name_to_node: dict[str, NodeProto]) -> None:
        """Look at one node; what to take out goes to `nodes_to_remove`, what to put in to `nodes_to_add` and,
        by name, to `node_name_to_graph_name`. For classes of a user's own."""
        raise NotImplementedError

    def apply(self) -> None:
        """Fuse wherever it can be."""
        if type(self).fuse is Fusion.fuse:
            self._run_rules()
        else:
            self._walk()
        for name, count in self.fused_count.items():
            logger.info("fused %s: %d", name, count)

    def _run_rules(self) -> None:
        before = self.model.get_operator_statistics()
        for switch in self.switches:
            setattr(self.options, switch, True)
        model, _ = forms.optimized(self.model.model, self.model_type, self.options, self.num_heads,
                                   self.hidden_size, only=self.switches)
        self.model.model.CopyFrom(model)
        for name, count in self.model.get_operator_statistics().items():
            if name in forms.WRITTEN and count > before.get(name, 0):
                self.fused_count[name] = count - before.get(name, 0)

    def _walk(self) -> None:
        readers, makers = self.model.input_name_to_nodes(), self.model.output_name_to_node()
        for op_type in self.search_op_types:
            for node in self.model.get_nodes_by_op_type(op_type):
                graph = self.model.get_graph_by_node(node)
                if graph is not None:
                    self.this_graph_name = graph.name
                    self.fuse(node, readers, makers)
        self.model.remove_nodes(self.nodes_to_remove)
        self.model.add_nodes(self.nodes_to_add, self.node_name_to_graph_name)
        if self.prune_graph:
            self.model.prune_graph()
        elif self.nodes_to_remove or self.nodes_to_add:
            self.model.update_graph()

    def add_initializer(self, name: str, data_type: int, dims: Sequence[int], vals: Any, raw: bool = True
                        ) -> TensorProto:
        """Add a tensor to the graph in work; `vals` is an array or bytes where `raw`, else numbers."""
        if raw and not isinstance(vals, bytes):
            vals = np.ascontiguousarray(vals, helper.tensor_dtype_to_np_dtype(data_type)).tobytes()
        tensor = helper.make_tensor(name, data_type, dims, vals, raw)
        self.model.add_initializer(tensor, self.this_graph_name)
        return tensor

    def remove_initializer(self, tensor: TensorProto) -> None:
        self.model.remove_initializer(tensor)

    def add_nodes_to_remove(self, nodes: Sequence[NodeProto]) -> None:
        self.nodes_to_remove += [n for n in nodes if not any(n is other for other in self.nodes_to_remove)]

    def add_nodes_to_remove_with_nodes_to_keep(self, nodes: Sequence[NodeProto],
                                               nodes_to_keep: Sequence[NodeProto]) -> None:
        self.add_nodes_to_remove([n for n in nodes if not any(n is kept for kept in nodes_to_keep)])
