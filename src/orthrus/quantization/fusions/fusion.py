"""The base of fusions: nodes of a model replaced by fewer.

In: an ONNXModel. Out: the same model, changed by `apply`. A subclass says in `fuse` which nodes go and which
come, `nodes_to_remove` and `nodes_to_add`; the model itself stays as it is until `apply` has asked for every
node of the operator searched for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import onnx

from ...optimize.pattern import Template
from ..onnx_model import ONNXModel
from .sketch import Found, Sketch

Nodes = dict[str, list[onnx.NodeProto]]
Makers = dict[str, onnx.NodeProto]


class Fusion:
    """Replaces patterns that hold a node of the operator `search_op_type` by a node `fused_op_type`."""

    def __init__(self, model: ONNXModel, fused_op_type: str, search_op_type: str) -> None:
        self.search_op_type = search_op_type
        self.fused_op_type = fused_op_type
        self.model = model
        self.nodes_to_remove: list[onnx.NodeProto] = []
        self.nodes_to_add: list[onnx.NodeProto] = []
        self._next_suffix: int | None = None
        self._sketched: tuple[Makers, Sketch] | None = None

    def fuse(self, node: onnx.NodeProto, input_name_to_nodes: Nodes, output_name_to_node: Makers) -> Any:
        """Look at one node of the operator searched for, and enter what goes and what comes. The two maps
        lead from a value's name to the nodes that read it and to the one that makes it."""
        raise NotImplementedError

    def apply(self) -> bool:
        """Fuse wherever it can be done; whether the model changed."""
        readers, makers = self.model.input_name_to_nodes(), self.model.output_name_to_node()
        for node in self.model.nodes():
            if node.op_type == self.search_op_type:
                self.fuse(node, readers, makers)
        self.model.remove_nodes(self.nodes_to_remove)
        self.model.add_nodes(self.nodes_to_add)
        changed = bool(self.nodes_to_remove or self.nodes_to_add)
        if changed:
            self.model.remove_unused_constant()
        return changed

    def find_pattern(self, templates: tuple[Template, ...], node: onnx.NodeProto, makers: Makers,
                     fits: Callable[[dict[str, Any]], bool]) -> Found | None:
        """The optimizer's patterns looked for around `node`: see `Sketch.find`. `makers` is the map that
        `fuse` was given."""
        if self._sketched is None or self._sketched[0] is not makers:
            self._sketched = makers, Sketch(self.model)
        return self._sketched[1].find(templates, node, fits)

    def replace(self, found: Found, inputs: Sequence[str], domain: str = "", **attributes: Any) -> None:
        """Enter a node of the fused operator in the place of what was found."""
        self.nodes_to_remove.extend(found.nodes)
        self.nodes_to_add.append(onnx.helper.make_node(
            self.fused_op_type, inputs, [found.output], self.create_unique_node_name(), domain=domain,
            **attributes))

    def create_unique_node_name(self) -> str:
        """A name for a fused node that the model does not have."""
        prefix = f"{self.fused_op_type}_fused_{self.search_op_type}_"
        if self._next_suffix is None:
            self._next_suffix = self.model.get_largest_node_name_suffix(prefix) + 1
        self._next_suffix += 1
        return f"{prefix}{self._next_suffix - 1}"

    @staticmethod
    def is_safe_to_fuse_nodes(nodes_to_remove: list[onnx.NodeProto], keep_outputs: Iterable[str],
                              input_name_to_nodes: Nodes, output_name_to_node: Makers) -> bool:
        """Whether no node but these reads what they make, apart from `keep_outputs`."""
        inner = {name for node in nodes_to_remove for name in node.output} - set(keep_outputs)
        readers = [reader for name in inner for reader in input_name_to_nodes.get(name, ())]
        return all(reader in nodes_to_remove for reader in readers)

    @staticmethod
    def get_node_attribute(node: onnx.NodeProto, attribute_name: str) -> Any:
        """The attribute's value; None where the node does not have it."""
        return next((onnx.helper.get_attribute_value(a) for a in node.attribute if a.name == attribute_name),
                    None)

    @staticmethod
    def input_index(node_output: str, child_node: onnx.NodeProto) -> int:
        """Where `child_node` reads a value first; -1 where it does not."""
        return next((place for place, name in enumerate(child_node.input) if name == node_output), -1)

    @staticmethod
    def tensor_shape_to_list(tensor_type: onnx.TypeProto.Tensor) -> list[int | str]:
        """The dimensions: numbers, names, "?" for one that says neither."""
        return [dim.dim_value if dim.HasField("dim_value") else
                dim.dim_param if dim.HasField("dim_param") else "?" for dim in tensor_type.shape.dim]

    def get_constant_input(self, node: onnx.NodeProto) -> tuple[Any, Any]:
        """The place and the array of the node's first constant input; (None, None) where it has none."""
        values = ((place, self.model.get_constant_value(name)) for place, name in enumerate(node.input))
        return next((found for found in values if found[1] is not None), (None, None))

    def find_constant_input(self, node: onnx.NodeProto, expected_value: float,
                            delta: float = 0.000001) -> int:
        """The place of the node's first constant input where it is this one number; -1 otherwise."""
        place, value = self.get_constant_input(node)
        matches = value is not None and value.size == 1 and abs(value.item() - expected_value) < delta
        return place if matches else -1

    def has_constant_input(self, node: onnx.NodeProto, expected_value: float,
                           delta: float = 0.000001) -> bool:
        """Whether the node's first constant input is this one number."""
        return self.find_constant_input(node, expected_value, delta) >= 0

    def is_constant_with_specified_rank(self, output_name: str, rank: int) -> bool:
        """Whether a value is a constant of this rank."""
        value = self.model.get_constant_value(output_name)
        return value is not None and value.ndim == rank

    def match_first_parent(self, node: onnx.NodeProto, parent_op_type: str,
                           output_name_to_node: Makers | None = None,
                           exclude: Sequence[onnx.NodeProto] = ()
                           ) -> tuple[onnx.NodeProto | None, int | None]:
        """The first node of an operator that makes an input of `node`, and which input; (None, None) where
        there is none outside `exclude`."""
        makers = self.model.output_name_to_node() if output_name_to_node is None else output_name_to_node
        for place, name in enumerate(node.input):
            parent = makers.get(name)
            if parent is not None and parent.op_type == parent_op_type and parent not in exclude:
                return parent, place
        return None, None

    def match_parent(self, node: onnx.NodeProto, parent_op_type: str, input_index: int | None = None,
                     output_name_to_node: Makers | None = None, exclude: Sequence[onnx.NodeProto] = (),
                     return_indice: list[Any] | None = None) -> onnx.NodeProto | None:
        """The node of an operator that makes the input at a place, or, where none is given, any input; its
        place is then appended to `return_indice`."""
        makers = self.model.output_name_to_node() if output_name_to_node is None else output_name_to_node
        if input_index is None:
            found, place = self.match_first_parent(node, parent_op_type, makers, exclude)
            if return_indice is not None:
                return_indice.append(place)
            return found
        parent = makers.get(node.input[input_index]) if input_index < len(node.input) else None
        fits = parent is not None and parent.op_type == parent_op_type and parent not in exclude
        return parent if fits else None

    def match_parent_path(self, node: onnx.NodeProto, parent_op_types: Sequence[str],
                          parent_input_index: Sequence[int | None] | None = None,
                          output_name_to_node: Makers | None = None,
                          return_indice: list[Any] | None = None) -> list[onnx.NodeProto] | None:
        """The nodes of these operators up from `node`, each making an input of the one before; None where
        the path breaks off."""
        makers = self.model.output_name_to_node() if output_name_to_node is None else output_name_to_node
        places = [None] * len(parent_op_types) if parent_input_index is None else parent_input_index
        path: list[onnx.NodeProto] = []
        for kind, place in zip(parent_op_types, places, strict=True):
            parent = self.match_parent(path[-1] if path else node, kind, place, makers,
                                       return_indice=return_indice)
            if parent is None:
                return None
            path.append(parent)
        return path

    def match_parent_paths(self, node: onnx.NodeProto, paths: Sequence[tuple[Sequence[str], Sequence[Any]]],
                           output_name_to_node: Makers
                           ) -> tuple[int, list[onnx.NodeProto] | None, list[Any] | None]:
        """Which of several paths leads up from `node`, its nodes, and the places that were left open;
        (-1, None, None) where none does."""
        for number, (kinds, places) in enumerate(paths):
            open_places: list[Any] = []
            path = self.match_parent_path(node, kinds, places, output_name_to_node, open_places)
            if path:
                return number, path, open_places
        return -1, None, None

    def find_first_child_by_type(self, node: onnx.NodeProto, child_type: str,
                                 input_name_to_nodes: Nodes | None = None,
                                 recursive: bool = True) -> onnx.NodeProto | None:
        """A node of an operator among those that read what `node` makes and, where `recursive`, those below
        them; the nearest one."""
        readers = self.model.input_name_to_nodes() if input_name_to_nodes is None else input_name_to_nodes
        waiting = deque(reversed(self.model.get_children(node, readers)))
        while waiting:
            child: onnx.NodeProto = waiting.popleft()
            if child.op_type == child_type:
                return child
            if recursive:
                waiting.extend(self.model.get_children(child, readers))
        return None
