"""Searches in a ModelProto and the graphs inside it; nothing here changes the model.

In: `graphs()` of the class that inherits this. Out: nodes, tensors and values; what is not found is None.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterator, Sequence
from typing import Any

import numpy as np
from onnx import AttributeProto, GraphProto, NodeProto, TensorProto, helper, numpy_helper

from ...quantization.onnx_model import first_named

__all__ = ["Searches"]
Readers = dict[str, list[NodeProto]]
Makers = dict[str, NodeProto]
Path = list[NodeProto] | None


class Searches:
    """What finds nodes by name, by neighbour and by path; nodes are told apart by identity."""

    def graphs(self) -> list[GraphProto]:
        raise NotImplementedError

    def nodes(self) -> list[NodeProto]:
        """The nodes of all graphs."""
        return [node for graph in self.graphs() for node in graph.node]

    def input_name_to_nodes(self, exclude_subgraphs: bool = False) -> Readers:
        """The nodes that read each value."""
        readers: Readers = {}
        for node in self._nodes(exclude_subgraphs):
            for name in dict.fromkeys(node.input):
                if name:
                    readers.setdefault(name, []).append(node)
        return readers

    def output_name_to_node(self, exclude_subgraphs: bool = False) -> Makers:
        """The node that makes each value."""
        return {name: node for node in self._nodes(exclude_subgraphs) for name in node.output if name}

    def _nodes(self, outermost: bool) -> Iterator[NodeProto]:
        yield from self.graphs()[0].node if outermost else self.nodes()

    def get_graphs_input_names(self) -> list[str]:
        return [value.name for graph in self.graphs() for value in graph.input]

    def get_graphs_output_names(self) -> list[str]:
        return [value.name for graph in self.graphs() for value in graph.output]

    def get_graph_by_node(self, node: NodeProto) -> GraphProto | None:
        return next((g for g in self.graphs() if any(n is node or n == node for n in g.node)), None)

    def get_graph_by_name(self, graph_name: str) -> GraphProto | None:
        return first_named(graph_name, self.graphs())

    def get_topological_insert_id(self, graph: GraphProto, outputs: Sequence[str]) -> int:
        """The place of the first node that reads one of the values, the graph's length without any."""
        return next((i for i, node in enumerate(graph.node) if set(node.input) & set(outputs)),
                    len(graph.node))

    def get_initializer(self, name: str) -> TensorProto | None:
        return next((t for graph in self.graphs() for t in graph.initializer if t.name == name), None)

    def find_graph_input(self, input_name: str) -> Any:
        return next((v for graph in self.graphs() for v in graph.input if v.name == input_name), None)

    def find_graph_output(self, output_name: str) -> Any:
        return next((v for graph in self.graphs() for v in graph.output if v.name == output_name), None)

    def get_nodes_by_op_type(self, op_type: str) -> list[NodeProto]:
        return [node for node in self.nodes() if node.op_type == op_type]

    def get_children(self, node: NodeProto, input_name_to_nodes: Readers | None = None,
                     output_index: int | None = None) -> list[NodeProto]:
        """The nodes that read the node's outputs, or the one output."""
        readers = self.input_name_to_nodes() if input_name_to_nodes is None else input_name_to_nodes
        names = node.output if output_index is None else node.output[output_index:output_index + 1]
        return [reader for name in names for reader in readers.get(name, ())]

    def get_parents(self, node: NodeProto, output_name_to_node: Makers | None = None) -> list[NodeProto]:
        makers = self.output_name_to_node() if output_name_to_node is None else output_name_to_node
        return [makers[name] for name in node.input if name in makers]

    def get_parent(self, node: NodeProto, i: int, output_name_to_node: Makers | None = None
                   ) -> NodeProto | None:
        makers = self.output_name_to_node() if output_name_to_node is None else output_name_to_node
        return makers.get(node.input[i]) if 0 <= i < len(node.input) else None

    def match_first_parent(self, node: NodeProto, parent_op_type: str, output_name_to_node: Makers,
                           exclude: Sequence[NodeProto] = ()) -> tuple[NodeProto | None, int | None]:
        """The first maker of an input of this type, and which input it makes."""
        for index, name in enumerate(node.input):
            parent = output_name_to_node.get(name)
            if parent is not None and parent.op_type == parent_op_type and not _among(parent, exclude):
                return parent, index
        return None, None

    def match_parent(self, node: NodeProto, parent_op_type: str, input_index: int | None = None,
                     output_name_to_node: Makers | None = None, exclude: Sequence[NodeProto] = (),
                     return_indice: list[int] | None = None) -> NodeProto | None:
        """The maker of one input, or of any, if it is of this type; in `return_indice` goes which of any."""
        makers = self.output_name_to_node() if output_name_to_node is None else output_name_to_node
        if input_index is None:
            parent, index = self.match_first_parent(node, parent_op_type, makers, exclude)
            if return_indice is not None and index is not None:
                return_indice.append(index)
            return parent
        parent = self.get_parent(node, input_index, makers)
        fits = parent is not None and parent.op_type == parent_op_type and not _among(parent, exclude)
        return parent if fits else None

    def match_parent_path(self, node: NodeProto, parent_op_types: Sequence[str],
                          parent_input_index: Sequence[int | None] | None = None,
                          output_name_to_node: Makers | None = None,
                          return_indice: list[int] | None = None) -> Path:
        """The makers one behind another, of these types, by these inputs (None: any); None where the path
        ends before."""
        makers = self.output_name_to_node() if output_name_to_node is None else output_name_to_node
        places = [None] * len(parent_op_types) if parent_input_index is None else parent_input_index
        found: list[NodeProto] = []
        for op_type, index in zip(parent_op_types, places, strict=True):
            parent = self.match_parent(node, op_type, index, makers, [], return_indice)
            if parent is None:
                return None
            found.append(parent)
            node = parent
        return found

    def match_parent_paths(self, node: NodeProto, paths: Sequence[Any], output_name_to_node: Makers
                           ) -> tuple[int, Path, list[int] | None]:
        """The number, the nodes and the chosen inputs of the first (types, inputs) that fits; -1 and None
        where none does."""
        for i, (op_types, places) in enumerate(paths):
            chosen: list[int] = []
            found = self.match_parent_path(node, op_types, places, output_name_to_node, chosen)
            if found is not None:
                return i, found, chosen
        return -1, None, None

    def match_parent_paths_all(self, node: NodeProto, paths: Sequence[Any], output_name_to_node: Makers
                               ) -> tuple[list[int], list[list[NodeProto]], list[list[int]]]:
        """The same for every one of the paths that fits."""
        fits: list[Any] = []
        for i, (op_types, places) in enumerate(paths):
            chosen: list[int] = []
            found = self.match_parent_path(node, op_types, places, output_name_to_node, chosen)
            if found is not None:
                fits.append((i, found, chosen))
        return [f[0] for f in fits], [f[1] for f in fits], [f[2] for f in fits]

    def match_child_path(self, node: NodeProto, child_op_types: Sequence[str],
                         edges: Sequence[tuple[int, int]] | None = None,
                         input_name_to_nodes: Readers | None = None,
                         exclude: Sequence[NodeProto] = ()) -> Path:
        """The readers one behind another, of these types; `edges` gives for each the output that is read and
        the input that reads it."""
        readers = self.input_name_to_nodes() if input_name_to_nodes is None else input_name_to_nodes
        found: list[NodeProto] = []
        for step, op_type in enumerate(child_op_types):
            at = edges[step] if edges is not None else None
            fits = [child for child in self.get_children(node, readers, None if at is None else at[0])
                    if child.op_type == op_type and not _among(child, exclude)
                    and (at is None or self._reads(child, node.output[at[0]], at[1]))]
            if not fits:
                return None
            node = fits[0]
            found.append(node)
        return found

    @staticmethod
    def _reads(node: NodeProto, name: str, index: int) -> bool:
        return index < len(node.input) and node.input[index] == name

    def find_first_child_by_type(self, node: NodeProto, child_type: str,
                                 input_name_to_nodes: Readers | None = None, recursive: bool = True
                                 ) -> NodeProto | None:
        """The nearest reader of this type, through other nodes if `recursive`."""
        readers = self.input_name_to_nodes() if input_name_to_nodes is None else input_name_to_nodes
        return _nearest(node, child_type, lambda n: self.get_children(n, readers), recursive)

    def find_first_parent_by_type(self, node: NodeProto, parent_type: str,
                                  output_name_to_node: Makers | None = None, recursive: bool = True
                                  ) -> NodeProto | None:
        """The nearest maker of this type, through other nodes if `recursive`."""
        makers = self.output_name_to_node() if output_name_to_node is None else output_name_to_node
        return _nearest(node, parent_type, lambda n: self.get_parents(n, makers), recursive)

    def get_constant_value(self, output_name: str) -> np.ndarray | None:
        """What an initializer or a Constant node of this name holds."""
        tensor = self.get_initializer(output_name)
        if tensor is not None:
            return numpy_helper.to_array(tensor)
        for node in self.nodes():
            if node.op_type == "Constant" and output_name in node.output:
                for attribute in node.attribute:
                    if attribute.type == AttributeProto.TENSOR:
                        return numpy_helper.to_array(attribute.t)
                    return np.asarray(helper.get_attribute_value(attribute))
        return None

    def get_constant_input(self, node: NodeProto) -> tuple[int | None, np.ndarray | None]:
        """The first input that is constant, and its value."""
        for index, name in enumerate(node.input):
            value = self.get_constant_value(name)
            if value is not None:
                return index, value
        return None, None

    def find_constant_input(self, node: NodeProto, expected_value: float, delta: float = 0.000001) -> int:
        """Which input is the constant number, -1 without one."""
        index, value = self.get_constant_input(node)
        if index is not None and value is not None and value.size == 1 \
                and abs(value.item() - expected_value) < delta:
            return index
        return -1

    def has_constant_input(self, node: NodeProto, expected_value: float, delta: float = 0.000001) -> bool:
        return self.find_constant_input(node, expected_value, delta) >= 0

    def is_constant_with_specified_dimension(self, output_name: str, dimensions: int, description: str
                                             ) -> bool:
        """Whether a value is constant and of this rank."""
        value = self.get_constant_value(output_name)
        return value is not None and value.ndim == dimensions

    def get_children_subgraph_nodes(self, root_node: NodeProto, stop_nodes: Sequence[NodeProto],
                                    input_name_to_nodes: Readers | None = None) -> list[NodeProto]:
        """All nodes between the root and the nodes to stop at, these left out, nearest first."""
        readers = self.input_name_to_nodes() if input_name_to_nodes is None else input_name_to_nodes
        return _reached(root_node, stop_nodes, lambda n: self.get_children(n, readers))

    def get_parent_subgraph_nodes(self, node: NodeProto, stop_nodes: Sequence[NodeProto],
                                  output_name_to_node: Makers | None = None) -> list[NodeProto]:
        makers = self.output_name_to_node() if output_name_to_node is None else output_name_to_node
        return _reached(node, stop_nodes, lambda n: self.get_parents(n, makers))

    def get_graph_inputs(self, current_node: NodeProto, recursive: bool = False) -> list[str]:
        """The graph inputs that the node reads, or that anything before it reads if `recursive`."""
        names = {value.name for value in self.graphs()[0].input}
        nodes = [current_node, *(self.get_parent_subgraph_nodes(current_node, []) if recursive else ())]
        return list(dict.fromkeys(name for node in nodes for name in node.input if name in names))

    @staticmethod
    def get_node_attribute(node: NodeProto, attribute_name: str) -> Any:
        attribute = first_named(attribute_name, node.attribute)
        return None if attribute is None else helper.get_attribute_value(attribute)

    @staticmethod
    def input_index(node_output: str, child_node: NodeProto) -> int:
        """The place at which a node reads a value, -1 where it does not."""
        return list(child_node.input).index(node_output) if node_output in child_node.input else -1

    def is_safe_to_fuse_nodes(self, nodes_to_remove: Sequence[NodeProto], keep_outputs: Container[str],
                              input_name_to_nodes: Readers, output_name_to_node: Makers) -> bool:
        """Whether nothing but these nodes reads what they make, the kept outputs aside."""
        outputs = {value.name for value in self.graphs()[0].output}
        for node in nodes_to_remove:
            for name in node.output:
                if name in keep_outputs:
                    continue
                if name in outputs or any(not _among(reader, nodes_to_remove)
                                          for reader in input_name_to_nodes.get(name, ())):
                    return False
        return True

    @staticmethod
    def tensor_shape_to_list(tensor_type: Any) -> list[Any]:
        """Dimensions as numbers or names, "?" for unknown ones."""
        kinds = {"dim_value": lambda d: d.dim_value, "dim_param": lambda d: d.dim_param}
        return [kinds.get(d.WhichOneof("value"), lambda d: "?")(d) for d in tensor_type.shape.dim]

    def _tensor_type(self, name: str) -> Any:
        for graph in self.graphs():
            for value in (*graph.input, *graph.output, *graph.value_info):
                if value.name == name and value.type.HasField("tensor_type"):
                    return value.type.tensor_type
        return None

    def get_dtype(self, name: str, symbolic_shape_helper: Any = None) -> int | None:
        """The element type of an initializer, an input, an output or a value whose type the model tells."""
        tensor = self.get_initializer(name)
        if tensor is not None:
            return tensor.data_type
        known = _inferred(symbolic_shape_helper, name) or self._tensor_type(name)
        return known.elem_type if known is not None else None

    def get_shape(self, name: str, symbolic_shape_helper: Any = None) -> list[Any] | None:
        """The dimensions, with names where they are symbolic."""
        tensor = self.get_initializer(name)
        if tensor is not None:
            return list(tensor.dims)
        known = _inferred(symbolic_shape_helper, name) or self._tensor_type(name)
        return self.tensor_shape_to_list(known) if known is not None and known.HasField("shape") else None


def _inferred(helped: Any, name: str) -> Any:
    known = getattr(helped, "known_vi_", {}).get(name) if helped is not None else None
    return known.type.tensor_type if known is not None else None


def _among(node: NodeProto, nodes: Sequence[NodeProto]) -> bool:
    return any(other is node or other == node for other in nodes)


def _reached(start: NodeProto, stop: Sequence[NodeProto], step: Any) -> list[NodeProto]:
    found: list[NodeProto] = []
    seen: set[tuple[str, ...]] = set()
    queue = deque(step(start))
    while queue:
        node = queue.popleft()
        key = (*node.output, node.name)
        if key in seen or _among(node, stop):
            continue
        seen.add(key)
        found.append(node)
        queue.extend(step(node))
    return found


def _nearest(node: NodeProto, op_type: str, step: Any, recursive: bool) -> NodeProto | None:
    near = _reached(node, [], step) if recursive else step(node)
    return next((other for other in near if other.op_type == op_type), None)
