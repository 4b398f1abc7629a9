"""A model's protobuf with the searches and edits that quantization makes on its main graph."""

from __future__ import annotations

import os
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import EncodeError
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, numpy_helper

from .refused import Failed, InvalidValue

SMALLEST_EXTERNAL = 1024
"""Tensors of fewer bytes stay in the model's file where weights are stored beside it."""
_NONE = np.zeros(0, np.uint8)
_FLOATS = frozenset({TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE, TensorProto.BFLOAT16})


def subgraphs(node: NodeProto) -> Iterator[GraphProto]:
    """The graphs among a node's attributes."""
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            yield attribute.g
        elif attribute.type == AttributeProto.GRAPHS:
            yield from attribute.graphs


def all_graphs(graph: GraphProto) -> Iterator[GraphProto]:
    """A graph and every graph within it, outer ones first."""
    yield graph
    for node in graph.node:
        for inner in subgraphs(node):
            yield from all_graphs(inner)


def first_named(name: str, items: Iterable[Any]) -> Any:
    """The first of the items with this name, or None."""
    return next((item for item in items if item.name == name), None)


def read_names(graph: GraphProto) -> set[str]:
    """The values that a graph reads, in itself and in the graphs of its nodes, whoever makes them."""
    names = {output.name for output in graph.output}
    for node in graph.node:
        names.update(node.input)
        for inner in subgraphs(node):
            names |= read_names(inner)
    return names - {""}


def _drop_unread(graph: GraphProto) -> set[str]:
    """Drop initializers that nothing reads or that a node makes, inner graphs first; what is missing here."""
    needed = {output.name for output in graph.output}
    for node in graph.node:
        needed.update(node.input)
        for inner in subgraphs(node):
            needed |= _drop_unread(inner)
    needed -= {output for node in graph.node for output in node.output}
    unread = {tensor.name for tensor in graph.initializer} - needed
    keep_only(graph.initializer, lambda tensor: tensor.name not in unread)
    keep_only(graph.input, lambda value: value.name not in unread)
    own = {item.name for item in (*graph.initializer, *graph.input)}
    return needed - own - {""}


def keep_only(items: Any, wanted: Any) -> None:
    """Remove from a repeated field what is not wanted, in place."""
    for index in reversed([i for i, item in enumerate(items) if not wanted(item)]):
        del items[index]


def _largest_suffix(names: Iterable[str], prefix: str) -> int:
    """The largest whole number that follows the prefix in one of the names, -1 without any."""
    ends = (name[len(prefix):] for name in names if name.startswith(prefix))
    return max((int(end) for end in ends if end.lstrip("-").isdecimal()), default=-1)


def _by_input(nodes: Iterable[NodeProto]) -> dict[str, list[NodeProto]]:
    readers = dict[str, list[NodeProto]]()
    for node in nodes:
        for name in node.input:
            if name:
                readers.setdefault(name, []).append(node)
    return readers


def _plain_product(node: NodeProto) -> bool:
    """Whether a Gemm is a MatMul and an Add: no factors, no transposed A."""
    given = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
    return {given.get("alpha"), given.get("beta")} <= {None, 1.0} and not given.get("transA")


class ONNXModel:
    """A ModelProto, held in `model` and changed in place.

    Lists of nodes and initializers are the protobuf's own; what a search does not find is None.
    """

    def __init__(self, model: ModelProto) -> None:
        self.model = model

    def nodes(self) -> Any:
        return self.model.graph.node

    def initializer(self) -> Any:
        return self.model.graph.initializer

    def graph(self) -> GraphProto:
        return self.model.graph

    def ir_version(self) -> int:
        return self.model.ir_version

    def opset_import(self) -> Any:
        return self.model.opset_import

    def set_opset_import(self, domain: str, version: int) -> None:
        """Give a domain this version, adding the domain where the model does not import it."""
        for opset in self.model.opset_import:
            if opset.domain == domain:
                opset.version = version
                return
        self.model.opset_import.add(domain=domain, version=version)

    def add_node(self, node: NodeProto) -> None:
        self._check_node(node)
        self.model.graph.node.append(node)

    def add_nodes(self, nodes_to_add: Iterable[NodeProto]) -> None:
        for node in nodes_to_add:
            self.add_node(node)

    def remove_node(self, node: NodeProto) -> None:
        """Remove a node; one that is not in the graph is no error."""
        self.remove_nodes([node])

    def remove_nodes(self, nodes_to_remove: Iterable[NodeProto]) -> None:
        for node in list(nodes_to_remove):
            if node in self.model.graph.node:
                self.model.graph.node.remove(node)

    def add_initializer(self, tensor: TensorProto) -> None:
        """Add a tensor unless one of its name is there."""
        if first_named(tensor.name, self.model.graph.initializer) is None:
            self._check_init(tensor)
            self.model.graph.initializer.append(tensor)

    def initializer_extend(self, inits: Sequence[TensorProto]) -> None:
        """Add tensors. Raises: InvalidValue where there are none, or one holds NaN of 8 bits."""
        if not inits:
            raise InvalidValue("no initializers to add", expected="at least one tensor")
        for tensor in inits:
            self._check_init(tensor)
            self.model.graph.initializer.append(tensor)

    def get_initializer(self, name: str) -> TensorProto | None:
        return first_named(name, self.model.graph.initializer)

    def get_initializer_name_set(self) -> set[str]:
        return {tensor.name for tensor in self.model.graph.initializer}

    def remove_initializer(self, tensor: TensorProto) -> None:
        """Remove a tensor, and the graph input of its name."""
        if tensor in self.model.graph.initializer:
            name = tensor.name
            self.model.graph.initializer.remove(tensor)
            keep_only(self.model.graph.input, lambda value: value.name != name)

    def remove_initializers(self, init_to_remove: Iterable[TensorProto]) -> None:
        for tensor in list(init_to_remove):
            self.remove_initializer(tensor)

    def find_graph_input(self, input_name: str) -> Any:
        return first_named(input_name, self.model.graph.input)

    def find_graph_output(self, output_name: str) -> Any:
        return first_named(output_name, self.model.graph.output)

    def is_graph_input(self, tensor_name: str) -> bool:
        return self.find_graph_input(tensor_name) is not None

    def is_graph_output(self, output_name: str) -> bool:
        return self.find_graph_output(output_name) is not None

    def get_tensor_type(self, tensor_name: str) -> Any:
        """The TypeProto.Tensor of an intermediate value, an input or an output."""
        graph = self.model.graph
        found = [first_named(tensor_name, values) for values in (graph.value_info, graph.input, graph.output)]
        return next((value.type.tensor_type for value in found if value is not None), None)

    def get_constant_value(self, output_name: str) -> np.ndarray | None:
        """What a Constant node or an initializer of this name holds."""
        for node in self.model.graph.node:
            if node.op_type == "Constant" and node.output[0] == output_name:
                value = first_named("value", node.attribute)
                if value is not None:
                    return numpy_helper.to_array(value.t)
        tensor = self.get_initializer(output_name)
        return None if tensor is None else numpy_helper.to_array(tensor)

    def get_non_initializer_inputs(self) -> set[str]:
        return {value.name for value in self.model.graph.input} - self.get_initializer_name_set()

    def input_name_to_nodes(self) -> dict[str, list[NodeProto]]:
        """The nodes that read each value, once per place they read it at."""
        return _by_input(self.model.graph.node)

    def output_name_to_node(self) -> dict[str, NodeProto]:
        return {name: node for node in self.model.graph.node for name in node.output if name}

    def get_children(self, node: NodeProto,
                     input_name_to_nodes: dict[str, list[NodeProto]] | None = None) -> list[NodeProto]:
        readers = self.input_name_to_nodes() if input_name_to_nodes is None else input_name_to_nodes
        return [reader for name in node.output for reader in readers.get(name, ())]

    def get_parents(self, node: NodeProto,
                    output_name_to_node: dict[str, NodeProto] | None = None) -> list[NodeProto]:
        makers = self.output_name_to_node() if output_name_to_node is None else output_name_to_node
        return [makers[name] for name in node.input if name in makers]

    def get_parent(self, node: NodeProto, idx: int,
                   output_name_to_node: dict[str, NodeProto] | None = None) -> NodeProto | None:
        makers = self.output_name_to_node() if output_name_to_node is None else output_name_to_node
        return makers.get(node.input[idx]) if idx < len(node.input) else None

    def find_node_by_name(self, node_name: str, new_nodes_list: Iterable[NodeProto],
                          graph: GraphProto) -> NodeProto | None:
        """A node of the graph or among the new ones."""
        return first_named(node_name, [*graph.node, *new_nodes_list])

    def find_nodes_by_initializer(self, graph: GraphProto, initializer: TensorProto) -> list[NodeProto]:
        return [node for node in graph.node for name in node.input if name == initializer.name]

    def get_largest_node_name_suffix(self, node_name_prefix: str) -> int:
        return _largest_suffix((node.name for node in self.model.graph.node), node_name_prefix)

    def get_largest_initializer_name_suffix(self, initializer_name_prefix: str) -> int:
        return _largest_suffix((t.name for t in self.model.graph.initializer), initializer_name_prefix)

    @staticmethod
    def replace_node_input(node: NodeProto, old_input_name: str, new_input_name: str) -> None:
        for index, name in enumerate(node.input):
            if name == old_input_name:
                node.input[index] = new_input_name

    @staticmethod
    def replace_node_output(node: NodeProto, old_output_name: str, new_output_name: str) -> None:
        for index, name in enumerate(node.output):
            if name == old_output_name:
                node.output[index] = new_output_name

    def replace_input_of_all_nodes(self, old_input_name: str, new_input_name: str) -> None:
        for node in self.model.graph.node:
            self.replace_node_input(node, old_input_name, new_input_name)

    def replace_input_of_nodes(self, old_input_name: str, new_input_name: str,
                               node_names_set: Iterable[str]) -> None:
        names = set(node_names_set)
        for node in self.model.graph.node:
            if node.name in names:
                self.replace_node_input(node, old_input_name, new_input_name)

    def replace_output_of_all_nodes(self, old_output_name: str, new_output_name: str) -> None:
        for node in self.model.graph.node:
            self.replace_node_output(node, old_output_name, new_output_name)

    def replace_output_of_nodes(self, old_output_name: str, new_output_name: str,
                                node_names_set: Iterable[str]) -> None:
        names = set(node_names_set)
        for node in self.model.graph.node:
            if node.name in names:
                self.replace_node_output(node, old_output_name, new_output_name)

    def replace_gemm_with_matmul(self) -> None:
        """Write every Gemm without factors and transposed A as MatMul and Add, in inner graphs too."""
        read = Counter(name for graph in all_graphs(self.model.graph)
                       for names in (*(node.input for node in graph.node), [v.name for v in graph.output])
                       for name in names)
        _split_gemms(self.model.graph, [], read, {})

    def remove_unused_constant(self) -> None:
        """Drop Constant nodes and initializers that nothing reads."""
        graph, read = self.model.graph, read_names(self.model.graph)
        keep_only(graph.node, lambda node: node.op_type != "Constant" or node.output[0] in read)
        unread = self.get_initializer_name_set() - read
        keep_only(graph.initializer, lambda tensor: tensor.name not in unread)
        keep_only(graph.input, lambda value: value.name not in unread)

    def clean_initializers(self) -> tuple[GraphProto, set[str]]:
        """Drop the initializers that nothing reads, in inner graphs too; the graph and what it lacks."""
        return self.model.graph, _drop_unread(self.model.graph)

    def topological_sort(self) -> None:
        """Order the nodes so that each stands behind those it reads from, also from its inner graphs.

        As the values arrive: what the graph is given in the order of names, then what the nodes make.
        Raises: Failed where the nodes read from each other in a circle.
        """
        nodes = list(self.model.graph.node)
        reads = [{*node.input}.union(*map(read_names, subgraphs(node))) - {""} for node in nodes]
        readers = dict[str, list[int]]()
        for index, names in enumerate(reads):
            for name in names:
                readers.setdefault(name, []).append(index)
        left = [len(names) for names in reads]
        order = [index for index, count in enumerate(left) if not count]

        def arrive(name: str) -> None:
            for reader in readers.get(name, ()):
                left[reader] -= 1
                if not left[reader]:
                    order.append(reader)

        for name in sorted(readers.keys() - {name for node in nodes for name in node.output}):
            arrive(name)
        for index in order:
            for name in nodes[index].output:
                arrive(name)
        if len(order) != len(nodes):
            stuck = next(node for node, count in zip(nodes, left, strict=True) if count)
            raise Failed("the nodes read from each other in a circle", node=stuck.name or stuck.op_type)
        ordered = [nodes[index] for index in order]
        copies = onnx.GraphProto(node=ordered)
        self.model.graph.ClearField("node")
        self.model.graph.node.extend(copies.node)

    def save_model_to_file(self, output_path: str | Path, use_external_data_format: bool = False) -> None:
        """Write the model; with `use_external_data_format` its tensors go to `<name>.data` beside it.

        The files appear whole or not at all. Raises: Failed where a model above 2 GB shall be one file.
        """
        self.topological_sort()
        for tensor in self.model.graph.initializer:
            self._check_init(tensor)
        if use_external_data_format:
            save_beside(self.model, Path(output_path))
            return
        write_whole(Path(output_path), serialized(self.model))

    def _check_init(self, init: TensorProto, test: str | None = None) -> TensorProto:
        """Refuse a tensor of 8-bit floats that holds NaN."""
        bits = np.frombuffer(init.raw_data, np.uint8) if init.data_type == TensorProto.FLOAT8E4M3FN else _NONE
        if (bits & 127 == 127).any():
            raise InvalidValue(f"Initializer {init.name!r} has nan.",
                               cure="correct the weights, or leave their node out by nodes_to_exclude")
        return init

    def _check_node(self, node: NodeProto) -> NodeProto:
        """Refuse a DequantizeLinear whose zero point is no quantized type."""
        if node.op_type == "DequantizeLinear" and len(node.input) > 2:
            zero_point = self.get_initializer(node.input[2])
            if zero_point is not None and zero_point.data_type in _FLOATS:
                raise Failed("Unsupported DequantizeLinear operator, dequantization from "
                             f"{TensorProto.DataType.Name(zero_point.data_type)}.", node=node.name)
        return node


def _split_gemms(graph: GraphProto, outer: list[GraphProto], read: Mapping[str, int],
                 turned: dict[str, GraphProto]) -> None:
    """`read`: how often a name is read in all graphs; `turned`: the transposed tensors so far, and the
    graph that each is made in."""
    path = [*outer, graph]
    nodes: list[NodeProto] = []
    for node in graph.node:
        for inner in subgraphs(node):
            _split_gemms(inner, path, read, turned)
        if node.op_type == "Gemm" and _plain_product(node):
            nodes += _split_gemm(node, path, read, turned)
        else:
            nodes.append(node)
    copies = onnx.GraphProto(node=nodes)
    graph.ClearField("node")
    graph.node.extend(copies.node)


def _split_gemm(node: NodeProto, path: list[GraphProto], read: Mapping[str, int],
                turned: dict[str, GraphProto]) -> list[NodeProto]:
    made: list[NodeProto] = []
    second = node.input[1]
    transposed = first_named("transB", node.attribute)
    if transposed is not None and transposed.i:
        tensor = next((t for g in reversed(path) for t in g.initializer if t.name == second), None)
        if tensor is not None and read[second] == 1:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).T.copy(), second))
            for scope in path:
                keep_only(scope.input, lambda value: value.name != second)
                for value in scope.value_info:
                    if value.name == second:
                        value.type.tensor_type.shape.dim.reverse()
        else:
            second += "_Transposed"
            while second in turned and all(turned[second] is not graph for graph in path):
                second += "_again"  # made where this node does not see it
            if second not in turned:
                turned[second] = path[-1]
                made.append(onnx.helper.make_node("Transpose", [node.input[1]], [second],
                                                  node.name and f"{node.name}_Transpose"))
    biased = len(node.input) > 2 and bool(node.input[2])
    product = f"{node.output[0]}_MatMul" if biased else node.output[0]
    made.append(onnx.helper.make_node("MatMul", [node.input[0], second], [product],
                                      node.name and f"{node.name}_MatMul"))
    if biased:
        made.append(onnx.helper.make_node("Add", [product, node.input[2]], node.output,
                                          node.name and f"{node.name}_Add"))
    return made


def serialized(model: ModelProto) -> bytes:
    """The model as one message. Raises: Failed for one above 2 GB."""
    try:
        if (size := model.ByteSize()) < onnx.checker.MAXIMUM_PROTOBUF:
            return model.SerializeToString()
    except EncodeError:
        size = sum(len(t.raw_data) for graph in all_graphs(model.graph) for t in graph.initializer)
    raise Failed("the model is too large for one file", found=f"{size} bytes",
                 expected=f"fewer than {onnx.checker.MAXIMUM_PROTOBUF} bytes",
                 cure="pass use_external_data_format=True")


def write_whole(path: Path, content: bytes) -> None:
    """Write a file under another name, then give it its own."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def save_beside(model: ModelProto, path: Path, threshold: int = SMALLEST_EXTERNAL, attributes: bool = True,
                one_file: bool = True) -> None:
    """Write the model and its tensors of `threshold` bytes and more, those in `attributes` too, to `path` and
    `<name>.data` beside it, or to a file for each tensor: all files or none."""
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}.") as folder:
        onnx.save_model(model, str(Path(folder, path.name)), save_as_external_data=True,
                        all_tensors_to_one_file=one_file, location=f"{path.name}.data" if one_file else None,
                        size_threshold=threshold, convert_attribute=attributes)
        for written in sorted(Path(folder).iterdir(), key=lambda file: file.name == path.name):
            os.replace(written, path.with_name(written.name))
