"""A model's protobuf, with the edits of onnxruntime.transformers.onnx_model.

In: a ModelProto, which is changed in place. Out: the same, in `model`. Weights stay where they are until the
model is saved; a file is written whole or not at all.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from ...quantization.onnx_model import (
    ONNXModel,
    all_graphs,
    first_named,
    keep_only,
    read_names,
    save_beside,
    serialized,
    subgraphs,
    write_whole,
)
from ...quantization.refused import Failed, InvalidValue
from ..float16 import convert_float_to_float16
from .search import Searches

__all__ = ["OnnxModel"]
logger = logging.getLogger(__name__)


class OnnxModel(Searches):
    """Lists of nodes and initializers are copies over all graphs, their items the protobuf's own."""

    model: ModelProto

    def __init__(self, model: ModelProto) -> None:
        self.initialize(model)

    def initialize(self, model: ModelProto) -> None:
        self.model = model
        self._node_name_suffix: dict[str, int] = {}
        self.shape_infer_helper: Any = None
        self.enable_shape_infer = True

    def disable_shape_inference(self) -> None:
        self.enable_shape_infer = False

    def infer_runtime_shape(self, dynamic_axis_mapping: Mapping[str, int] | None = None, update: bool = False
                            ) -> Any:
        """A helper that knows the shapes of values for these sizes of named dimensions; None where inference
        is disabled. It is kept until `update`."""
        if not self.enable_shape_infer:
            return None
        from .shape_infer_helper import SymbolicShapeInferenceHelper

        if self.shape_infer_helper is None or update:
            self.shape_infer_helper = SymbolicShapeInferenceHelper(self.model)
        self.shape_infer_helper.infer(dict(dynamic_axis_mapping or {}))
        return self.shape_infer_helper

    def functions(self) -> list[Any]:
        """The model's functions, in a list of one."""
        return [list(self.model.functions)]

    def graph(self) -> GraphProto:
        return self.model.graph

    def graphs(self) -> list[GraphProto]:
        return list(all_graphs(self.model.graph))

    # edits

    def _named(self, graph_name: str | None) -> GraphProto:
        if graph_name is None or graph_name == self.model.graph.name:
            return self.model.graph
        found = self.get_graph_by_name(graph_name)
        if found is None:
            raise InvalidValue("the model has no graph of this name", found=graph_name,
                               expected=", ".join(graph.name for graph in self.graphs()))
        return found

    def remove_node(self, node: NodeProto) -> None:
        """Remove a node from whichever graph has it; one that is in none is no error."""
        graph = self.get_graph_by_node(node)
        if graph is not None:
            graph.node.remove(node)

    def remove_nodes(self, nodes_to_remove: Iterable[NodeProto]) -> None:
        for node in list(nodes_to_remove):
            self.remove_node(node)

    def add_node(self, node: NodeProto, graph_name: str | None = None) -> None:
        """Append to the main graph, or put into another before what reads from it."""
        graph = self._named(graph_name)
        if graph is self.model.graph:
            graph.node.append(node)
        else:
            graph.node.insert(self.get_topological_insert_id(graph, node.output), node)

    def add_nodes(self, nodes_to_add: Iterable[NodeProto],
                  node_name_to_graph_name: Mapping[str, str] | None = None) -> None:
        for node in nodes_to_add:
            self.add_node(node, (node_name_to_graph_name or {}).get(node.name))

    def add_initializer(self, tensor: TensorProto, graph_name: str | None = None) -> None:
        self._named(graph_name).initializer.append(tensor)

    def add_input(self, input: ValueInfoProto, graph_name: str | None = None) -> None:
        self._named(graph_name).input.append(input)

    def remove_initializer(self, tensor: TensorProto) -> None:
        for graph in self.graphs():
            if any(other is tensor or other == tensor for other in graph.initializer):
                graph.initializer.remove(tensor)
                return

    replace_node_input = staticmethod(ONNXModel.replace_node_input)
    replace_node_output = staticmethod(ONNXModel.replace_node_output)

    def replace_input_of_all_nodes(self, old_input_name: str, new_input_name: str) -> None:
        for node in self.nodes():
            self.replace_node_input(node, old_input_name, new_input_name)

    def replace_output_of_all_nodes(self, old_output_name: str, new_output_name: str) -> None:
        for node in self.nodes():
            self.replace_node_output(node, old_output_name, new_output_name)

    def rename_graph_output(self, old_name: str, new_name: str) -> None:
        """Give an output another name everywhere; a value that is no output stays."""
        output = first_named(old_name, self.model.graph.output)
        if output is not None:
            self.replace_input_of_all_nodes(old_name, new_name)
            self.replace_output_of_all_nodes(old_name, new_name)
            output.name = new_name

    def add_prefix_to_names(self, prefix: str) -> None:
        """Put a prefix before all values but the main graph's inputs and outputs."""
        kept = {value.name for value in (*self.model.graph.input, *self.model.graph.output)}

        def named(name: str) -> str:
            return name if not name or name in kept else prefix + name

        for graph in self.graphs():
            inner = () if graph is self.model.graph else (*graph.input, *graph.output)
            for item in (*graph.initializer, *graph.value_info, *inner):
                item.name = named(item.name)
            for node in graph.node:
                node.input[:], node.output[:] = map(named, node.input), map(named, node.output)

    def create_node_name(self, op_type: str, name_prefix: str | None = None) -> str:
        """A node name that no node has and none was given before by this call: a prefix and a number."""
        prefix = name_prefix if name_prefix else op_type + "_"
        if prefix not in self._node_name_suffix:
            ends = (node.name[len(prefix):] for node in self.nodes() if node.name.startswith(prefix))
            self._node_name_suffix[prefix] = max((int(e) for e in ends if e.isdecimal()), default=-1)
        self._node_name_suffix[prefix] += 1
        return f"{prefix}{self._node_name_suffix[prefix]}"

    def change_graph_input_type(self, graph_input: ValueInfoProto, new_type: int
                                ) -> tuple[NodeProto | None, list[NodeProto]]:
        """Give an input another element type; the Cast that was put behind it (None where no node needs it),
        and the Casts that are needed no more and were removed."""
        kind = graph_input.type.tensor_type
        old, removed = kind.elem_type, list[NodeProto]()
        if old == new_type:
            return None, removed
        readers = self.input_name_to_nodes().get(graph_input.name, [])
        for reader in [r for r in readers if r.op_type == "Cast"]:
            if self.get_node_attribute(reader, "to") == new_type:
                self.replace_input_of_all_nodes(reader.output[0], graph_input.name)
                removed.append(reader)
        self.remove_nodes(removed)
        kind.elem_type = new_type
        rest = [r for r in readers if not any(r is cast for cast in removed)]
        if not rest:
            return None, removed
        name = self.create_node_name("Cast")
        made = f"{name}_{graph_input.name}"
        for reader in rest:
            self.replace_node_input(reader, graph_input.name, made)
        cast = helper.make_node("Cast", [graph_input.name], [made], name, to=old)
        self.add_node(cast)
        return cast, removed

    def change_graph_output_type(self, graph_output: ValueInfoProto, new_type: int) -> NodeProto | None:
        """Give an output another element type; the Cast that was put before it, None where it had it."""
        kind = graph_output.type.tensor_type
        if kind.elem_type == new_type:
            return None
        name = self.create_node_name("Cast")
        made = f"{name}_{graph_output.name}"
        self.replace_input_of_all_nodes(graph_output.name, made)
        self.replace_output_of_all_nodes(graph_output.name, made)
        cast = helper.make_node("Cast", [made], [graph_output.name], name, to=new_type)
        self.add_node(cast)
        kind.elem_type = new_type
        return cast

    def remove_cascaded_cast_nodes(self) -> None:
        """Let a Cast of a Cast read what the first one read."""
        makers = self.output_name_to_node()
        for node in self.get_nodes_by_op_type("Cast"):
            while (parent := makers.get(node.input[0])) is not None and parent.op_type == "Cast":
                node.input[0] = parent.input[0]
        self._drop_unread("Cast")

    def remove_useless_cast_nodes(self) -> None:
        """Drop Casts to the type that a value has already."""
        outputs = {value.name for value in self.model.graph.output}
        helped = self.infer_runtime_shape(update=True)
        for node in self.get_nodes_by_op_type("Cast"):
            same = self.get_dtype(node.input[0], helped) == self.get_node_attribute(node, "to")
            if same and node.output[0] not in outputs:
                self.replace_input_of_all_nodes(node.output[0], node.input[0])
        self._drop_unread("Cast")

    def _drop_unread(self, op_type: str) -> None:
        read = read_names(self.model.graph)
        self.remove_nodes([n for n in self.get_nodes_by_op_type(op_type) if not read & set(n.output)])

    def remove_unused_constant(self) -> None:
        """Drop Constant nodes and initializers that nothing reads."""
        read = read_names(self.model.graph)
        for graph in self.graphs():
            keep_only(graph.node, lambda n: n.op_type != "Constant" or n.output[0] in read)
            keep_only(graph.initializer, lambda t: t.name in read)

    def prune_graph(self, outputs: Sequence[str] | None = None, allow_remove_graph_inputs: bool = True
                    ) -> None:
        """Keep these outputs (all, without any named), what they need, and nothing else; inputs that nothing
        reads go too where they may. Raises: InvalidValue for the name of no output."""
        graph = self.model.graph
        if outputs is not None:
            for name in outputs:
                if first_named(name, graph.output) is None:
                    raise InvalidValue("the graph has no output of this name", found=name,
                                       expected=", ".join(value.name for value in graph.output))
            keep_only(graph.output, lambda value: value.name in outputs)
        makers = self.output_name_to_node(exclude_subgraphs=True)
        wanted, seen = [value.name for value in graph.output], set[str]()
        while wanted:
            name = wanted.pop()
            if name in seen:
                continue
            seen.add(name)
            node = makers.get(name)
            if node is not None:
                wanted += [*node.input, *(n for inner in subgraphs(node) for n in read_names(inner))]
        keep_only(graph.node, lambda node: seen & set(node.output))
        self.update_graph(allow_remove_graph_inputs=allow_remove_graph_inputs)

    def update_graph(self, verbose: bool = False, allow_remove_graph_inputs: bool = False) -> None:
        """Drop initializers, and inputs where that is allowed, that nothing reads."""
        self.remove_unused_constant()
        if allow_remove_graph_inputs:
            read = read_names(self.model.graph)
            keep_only(self.model.graph.input, lambda value: value.name in read)

    def clean_shape_infer(self) -> None:
        """Forget the types of the values between inputs and outputs."""
        self.model.graph.ClearField("value_info")

    # float16

    def convert_model_float32_to_float16(self, cast_input_output: bool = True) -> None:
        """The older name of `convert_float_to_float16`."""
        logger.warning("convert_model_float32_to_float16 is deprecated; use convert_float_to_float16")
        self.convert_float_to_float16(keep_io_types=cast_input_output)

    def convert_float_to_float16(self, use_symbolic_shape_infer: bool = True, **kwargs: Any) -> None:
        """float16 in the place of float32; inputs and outputs stay unless `keep_io_types` says otherwise. For
        the other parameters see `float16.convert_float_to_float16`. Types are inferred by this runtime."""
        options = {"keep_io_types": True, **kwargs}
        self.model.CopyFrom(convert_float_to_float16(self.model, **options))

    def use_float16(self) -> bool:
        """Whether a Cast, a tensor or an input is of float16."""
        kinds = [self.get_node_attribute(node, "to") for node in self.get_nodes_by_op_type("Cast")]
        kinds += [t.data_type for graph in self.graphs() for t in graph.initializer]
        kinds += [value.type.tensor_type.elem_type for graph in self.graphs() for value in graph.input]
        return TensorProto.FLOAT16 in kinds

    # equal tensors

    @staticmethod
    def to_data_hash(tensor: TensorProto, base_dir: str = "") -> int:
        """A number that tensors of equal type, shape and values share; `base_dir` has their data."""
        array = numpy_helper.to_array(tensor, base_dir)
        return hash((tensor.data_type, array.shape, array.tobytes()))

    @staticmethod
    def has_same_value(tensor1: TensorProto, tensor2: TensorProto, signature_cache1: Any = None,
                       signature_cache2: Any = None, rtol: float = 1e-05, atol: float = 1e-08) -> bool:
        """Whether two tensors have one type and shape and values that are close. The caches are not needed
        here, and left alone."""
        if tensor1.data_type != tensor2.data_type or list(tensor1.dims) != list(tensor2.dims):
            return False
        a, b = numpy_helper.to_array(tensor1), numpy_helper.to_array(tensor2)
        if a.dtype.kind in "biuOSU":
            return bool(np.array_equal(a, b))
        wide = np.complex128 if a.dtype.kind == "c" else np.float64
        return bool(np.allclose(a.astype(wide), b.astype(wide), rtol, atol))

    def remove_duplicated_initializer(self, cache: Any) -> None:
        """One initializer of the main graph in the place of equal ones. The cache is not needed, and may be
        None."""
        first, graph = dict[Any, str](), self.model.graph
        kept = {value.name for value in (*graph.input, *graph.output)}
        for tensor in list(graph.initializer):
            array = numpy_helper.to_array(tensor)
            if tensor.name in kept or array.dtype == object:
                continue
            known = first.setdefault((tensor.data_type, array.shape, array.tobytes()), tensor.name)
            if known != tensor.name:
                self.replace_input_of_all_nodes(tensor.name, known)
                graph.initializer.remove(tensor)

    # order and files

    @staticmethod
    def graph_topological_sort(graph: GraphProto, is_deterministic: bool = False) -> None:
        """Order the nodes of one graph, each behind those it reads from: turn by turn in the order that they
        have, or in that of their names, those whose values are there by then.

        With `is_deterministic`, graphs of the same nodes have the same order. Raises: Failed where nodes read
        from each other in a circle.
        """
        nodes = sorted(graph.node, key=lambda node: node.name) if is_deterministic else list(graph.node)
        makers = {name: index for index, node in enumerate(nodes) for name in node.output if name}
        reads = {index: {makers[name] for name in {*node.input}.union(*map(read_names, subgraphs(node)))
                         if name in makers} for index, node in enumerate(nodes)}
        turns = dict[int, int]()
        try:
            for index in TopologicalSorter(reads).static_order():
                turns[index] = max((turns[maker] + (maker > index) for maker in reads[index]), default=0)
        except CycleError as error:
            stuck = nodes[error.args[1][0]]
            raise Failed("the nodes read from each other in a circle", node=stuck.name or stuck.op_type
                         ) from None
        ordered = GraphProto(node=[nodes[index] for index in sorted(turns, key=lambda i: (turns[i], i))])
        graph.ClearField("node")
        graph.node.extend(ordered.node)

    def topological_sort(self, is_deterministic: bool = False, dump_model_on_failure: bool = False) -> None:
        """Order the nodes of every graph. Raises: Failed where nodes read from each other in a circle."""
        for graph in self.graphs():
            if is_deterministic or not _sorted(graph):
                self.graph_topological_sort(graph, is_deterministic)

    @staticmethod
    def save(model: ModelProto, output_path: str | os.PathLike[str], save_as_external_data: bool = False,
             all_tensors_to_one_file: bool = True, size_threshold: int = 1024,
             convert_attribute: bool = False) -> None:
        """Write a model; with `save_as_external_data`, tensors of `size_threshold` bytes and more to
        `<name>.data` beside it (or a file for each, without `all_tensors_to_one_file`), those in attributes
        too with `convert_attribute`. The model keeps its weights. Raises: Failed for one above 2 GB in one
        file."""
        known = {opset.domain for opset in model.opset_import}
        for domain in {node.domain for graph in all_graphs(model.graph) for node in graph.node} - known:
            model.opset_import.add(domain=domain, version=1)
        path = Path(output_path)
        if save_as_external_data:
            save_beside(model, path, size_threshold, convert_attribute, all_tensors_to_one_file)
            onnx.load_external_data_for_model(model, str(path.parent))
            return
        write_whole(path, serialized(model))

    def save_model_to_file(self, output_path: str | os.PathLike[str], use_external_data_format: bool = False,
                           all_tensors_to_one_file: bool = True, size_threshold: int = 1024,
                           convert_attribute: bool = False) -> None:
        """Order the nodes and write the model; for the parameters see `save`."""
        self.topological_sort()
        self.save(self.model, output_path, use_external_data_format, all_tensors_to_one_file, size_threshold,
                  convert_attribute)

    # what the model is

    def get_graph_inputs_excluding_initializers(self) -> list[ValueInfoProto]:
        names = {tensor.name for tensor in self.model.graph.initializer}
        return [value for value in self.model.graph.input if value.name not in names]

    def get_opset_version(self) -> int:
        """The version of ONNX's own operators. Raises: InvalidValue where the model imports none."""
        for opset in self.model.opset_import:
            if opset.domain in ("", "ai.onnx"):
                return opset.version
        raise InvalidValue("the model imports no operators of ONNX")

    def get_operator_statistics(self, include_domain: bool = False) -> dict[str, int]:
        """How many nodes of each operator there are, with its domain before it if wanted."""
        return dict(Counter(f"{n.domain}:{n.op_type}" if include_domain and n.domain not in ("", "ai.onnx")
                            else n.op_type for n in self.nodes()))


def _sorted(graph: GraphProto) -> bool:
    """Whether each node stands behind those of its graph that it reads from."""
    made = {name for node in graph.node for name in node.output if name}
    for node in graph.node:
        if made & set(node.input).union(*map(read_names, subgraphs(node))):
            return False
        made -= set(node.output)
    return True
