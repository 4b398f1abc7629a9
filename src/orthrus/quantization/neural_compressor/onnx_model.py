"""A model with the searches and edits of weight-only quantization, under the names of Intel's tool.

In: a path or a model, which is not copied. Out: the same model, changed in place. The invariant: what a
search does not find is None or empty.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, numpy_helper

from ..onnx_model import ONNXModel as _Model
from ..onnx_model import first_named, read_names
from .util import MAXIMUM_PROTOBUF


class ONNXModel(_Model):
    """A ModelProto, held in `model`, with the path it was read from in `model_path`, None without one."""

    model: ModelProto
    model_path: str | None

    def __init__(self, model: str | Path | ModelProto | _Model, **kwargs: Any) -> None:
        """`model`: a path, whose external data are read too unless `load_external_data=False`, or a model."""
        self.model_path = None
        if isinstance(model, str | Path):
            self.model_path = os.fspath(model)
            found = onnx.load(self.model_path, load_external_data=kwargs.get("load_external_data", True))
        else:
            found = model.model if isinstance(model, _Model) else model
            self.model_path = getattr(model, "model_path", None)
        super().__init__(found)

    @property
    def is_large_model(self) -> bool:
        """Whether the model is too large for one file."""
        return self.model.ByteSize() >= MAXIMUM_PROTOBUF

    def framework(self) -> str:
        return "onnxruntime"

    def input(self) -> list[str]:
        """The names of the graph's inputs."""
        return [value.name for value in self.model.graph.input]

    def output(self) -> list[str]:
        """The names of the graph's outputs."""
        return [value.name for value in self.model.graph.output]

    def save(self, root: str | Path) -> None:
        """Write the model; weights beside it where it is too large for one file."""
        self.save_model_to_file(root, self.is_large_model)

    def add_initializers(self, tensors: Iterable[TensorProto]) -> None:
        for tensor in tensors:
            self.add_initializer(tensor)

    def get_initializer_share_num(self, name: str) -> int:
        """How often nodes of the graph read an initializer; 0 where there is none of this name."""
        if self.get_initializer(name) is None:
            return 0
        return sum(read == name for node in self.model.graph.node for read in node.input)

    def get_node(self, name: str) -> NodeProto | None:
        found: NodeProto | None = first_named(name, self.model.graph.node)
        return found

    def set_initializer(self, tensor: str, array: np.ndarray, raw: bool = False) -> None:
        """Give an initializer, by its name, other values; they are stored raw in any case."""
        held = self.get_initializer(tensor)
        if held is not None:
            held.CopyFrom(numpy_helper.from_array(array, tensor))

    @property
    def input_name_to_nodes(self) -> dict[str, list[NodeProto]]:  # type: ignore[override]
        """The nodes that read each value, once per place they read it at."""
        return super().input_name_to_nodes()

    @property
    def output_name_to_node(self) -> dict[str, NodeProto]:  # type: ignore[override]
        """The node that makes each value."""
        return super().output_name_to_node()

    def get_children(self, node: NodeProto,
                     input_name_to_nodes: dict[str, list[NodeProto]] | None = None) -> list[NodeProto]:
        return super().get_children(node, input_name_to_nodes or self.input_name_to_nodes)

    def get_parents(self, node: NodeProto,
                    output_name_to_node: dict[str, NodeProto] | None = None) -> list[NodeProto]:
        return super().get_parents(node, output_name_to_node or self.output_name_to_node)

    def get_parent(self, node: NodeProto, idx: int,
                   output_name_to_node: dict[str, NodeProto] | None = None) -> NodeProto | None:
        return super().get_parent(node, idx, output_name_to_node or self.output_name_to_node)

    def get_siblings(self, node: NodeProto) -> list[NodeProto]:
        """The other nodes that read what the node's parents make."""
        made = self.output_name_to_node
        around = [child for parent in self.get_parents(node, made) for child in self.get_children(parent)]
        return [child for child in around if child != node]

    def replace_input_of_all_nodes(self, old_input_name: str, new_input_name: str,
                                   white_optype: Collection[str] | None = None,
                                   black_optype: Collection[str] | None = None) -> None:
        """Let nodes read another value: those of the operators `white_optype` or, where it is empty, all but
        those of `black_optype`."""
        for node in self._of(white_optype, black_optype):
            self.replace_node_input(node, old_input_name, new_input_name)

    def replace_output_of_all_nodes(self, old_output_name: str, new_output_name: str,
                                    white_optype: Collection[str] | None = None,
                                    black_optype: Collection[str] | None = None) -> None:
        """Give a value another name where it is made; the operators as above."""
        for node in self._of(white_optype, black_optype):
            self.replace_node_output(node, old_output_name, new_output_name)

    def _of(self, wanted: Collection[str] | None, others: Collection[str] | None) -> list[NodeProto]:
        return [node for node in self.model.graph.node
                if (node.op_type in wanted if wanted else node.op_type not in (others or ()))]

    def topological_sort(self, enable_subgraph: bool = False) -> None:
        """Order the nodes; what inner graphs read counts in any case."""
        super().topological_sort()

    def remove_unused_nodes(self) -> None:
        """Drop the nodes that nothing reads from, and what only they read."""
        while idle := [node for node in self.model.graph.node
                       if not read_names(self.model.graph).intersection(node.output)]:
            self.remove_nodes(idle)

    def remove_unused_init(self) -> None:
        """Drop the initializers that nothing reads."""
        self.clean_initializers()

    def add_tensors_to_outputs(self, tensor_names: Iterable[str]) -> None:
        """Let values be outputs of the graph too; their types are left to inference."""
        known = set(self.output())
        self.model.graph.output.extend(onnx.ValueInfoProto(name=n) for n in tensor_names if n not in known)

    def remove_tensors_from_outputs(self, tensor_names: Iterable[str]) -> None:
        dropped = set(tensor_names)
        for value in [value for value in self.model.graph.output if value.name in dropped]:
            self.model.graph.output.remove(value)

    def match_first_parent(self, node: NodeProto, parent_op_type: str,
                           output_name_to_node: dict[str, NodeProto], exclude: Sequence[NodeProto] = ()
                           ) -> tuple[NodeProto | None, int | None]:
        """(the first parent of this type, the input that it makes), else (None, None)."""
        for index, name in enumerate(node.input):
            parent = output_name_to_node.get(name)
            if parent is not None and parent.op_type == parent_op_type and parent not in exclude:
                return parent, index
        return None, None

    def match_parent(self, node: NodeProto, parent_op_type: str, input_index: int | None = None,
                     output_name_to_node: dict[str, NodeProto] | None = None,
                     exclude: Sequence[NodeProto] = (), return_indice: list[int] | None = None
                     ) -> NodeProto | None:
        """The parent of this type that makes the input, or any input; which one goes into `return_indice`."""
        made = output_name_to_node or self.output_name_to_node
        if input_index is None:
            parent, found = self.match_first_parent(node, parent_op_type, made, exclude)
            if found is not None and return_indice is not None:
                return_indice.append(found)
            return parent
        parent = self.get_parent(node, input_index, made)
        fits = parent is not None and parent.op_type == parent_op_type and parent not in exclude
        return parent if fits else None

    def match_parent_path(self, node: NodeProto, parent_op_types: Sequence[str],
                          parent_input_index: Sequence[int | None],
                          output_name_to_node: dict[str, NodeProto] | None = None,
                          return_indice: list[int] | None = None) -> list[NodeProto] | None:
        """The chain of parents of these types, each at its input; None where it breaks off."""
        made, path = output_name_to_node or self.output_name_to_node, list[NodeProto]()
        for kind, index in zip(parent_op_types, parent_input_index, strict=True):
            parent = self.match_parent(node, kind, index, made, path, return_indice)
            if parent is None:
                return None
            path.append(parent)
            node = parent
        return path

    def get_nodes_chain(self, start: Iterable[Any], stop: Iterable[Any],
                        result_chain: list[str] | None = None) -> list[str]:
        """The names of the nodes from which `start` is computed, back to `stop`, both given as names or
        nodes; the start first."""
        chain = [] if result_chain is None else result_chain
        ends, made = {_name(item) for item in stop}, self.output_name_to_node
        waiting = [_name(item) for item in start]
        for name in waiting:
            node = self.get_node(name)
            if node is None or name in chain:
                continue
            chain.append(name)
            if name not in ends:
                waiting += [parent.name for parent in self.get_parents(node, made)]
        return chain


def _name(item: Any) -> str:
    return item if isinstance(item, str) else str(item.name)

