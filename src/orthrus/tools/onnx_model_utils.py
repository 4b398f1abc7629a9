"""Functions on ModelProtos: walk them, fix their shapes, raise their opset, optimize a file.

In: models, graphs and paths as `onnx` has them. Out: the same objects changed in place, or facts about them.
Names and arguments are those of `onnxruntime.tools.onnx_model_utils`. The invariant: what is not named in a
call stays as it was.
"""

from __future__ import annotations

import logging
import pathlib
from collections.abc import Callable, Iterator, MutableMapping, MutableSet, Sequence
from typing import Any, Generic, TypeVar

import onnx

from .. import GraphOptimizationLevel, InferenceSession, SessionOptions
from .asked import LEVELS
from .symbolic_shape_infer import Incomplete, infer_shapes

Item = TypeVar("Item")


def iterate_graph_per_node_func(graph: Any, per_node_func: Callable[..., Any], **func_args: Any) -> None:
    """Call `per_node_func(node, **func_args)` for every node of `graph`, each followed by those of the graphs
    in it."""
    for node in graph.node:
        per_node_func(node, **func_args)
        for body in _bodies(node):
            iterate_graph_per_node_func(body, per_node_func, **func_args)


def iterate_graph_per_graph_func(graph: Any, per_graph_func: Callable[..., Any], **func_args: Any) -> None:
    """Call `per_graph_func(graph, **func_args)` for `graph` and every graph in its nodes."""
    for part in _graphs(graph):
        per_graph_func(part, **func_args)


def _graphs(graph: Any) -> Iterator[Any]:
    yield graph
    for node in graph.node:
        for body in _bodies(node):
            yield from _graphs(body)


def _bodies(node: Any) -> Iterator[Any]:
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def get_opsets_imported(model: Any) -> dict[str, int]:
    """Opset version by domain; ONNX's own domain is `ai.onnx`."""
    return {entry.domain or "ai.onnx": entry.version for entry in model.opset_import}


def update_onnx_opset(model_path: pathlib.Path, opset: int, out_path: pathlib.Path | None = None,
                      logger: logging.Logger | None = None) -> Any:
    """The model in the file `model_path`, converted to a newer opset by onnx's version converter and, where
    `out_path` is given, saved there. Raises FileNotFoundError, and the converter's RuntimeError where it
    cannot."""
    from onnx import version_converter

    source = pathlib.Path(model_path).resolve(strict=True)
    if logger:
        logger.info("Updating %s to opset %d", source, opset)
    made = version_converter.convert_version(onnx.load(str(source)), opset)
    if out_path:
        onnx.save(made, str(out_path))
        if logger:
            logger.info("Saved %s", out_path)
    return made


def get_optimization_level(level: str) -> GraphOptimizationLevel:
    """`disable`, `basic`, `extended`, `layout` or `all` as a GraphOptimizationLevel. Raises ValueError for
    any other text."""
    if level not in LEVELS:
        raise ValueError(f"Invalid optimization level of {level}; expected one of {', '.join(LEVELS)}")
    found: GraphOptimizationLevel = getattr(GraphOptimizationLevel, LEVELS[level])
    return found


def optimize_model(model_path: pathlib.Path, output_path: pathlib.Path,
                   level: GraphOptimizationLevel = GraphOptimizationLevel.ORT_ENABLE_BASIC,
                   log_level: int = 3,
                   use_external_initializers: bool = False) -> None:
    """Write the model as it is after optimizing it to `level`. `log_level`: 0 verbose to 4 fatal.
    `use_external_initializers`: weights go into `external_data.pb` beside it, as a model over 2 GB needs.
    Raises FileNotFoundError, and the errors of loading."""
    options = SessionOptions()
    options.optimized_model_filepath = str(pathlib.Path(output_path).resolve())
    options.graph_optimization_level = level
    options.log_severity_level = log_level
    if use_external_initializers:
        options.add_session_config_entry("session.optimized_model_external_initializers_file_name",
                                         "external_data.pb")
    InferenceSession(str(pathlib.Path(model_path).resolve(strict=True)), options,
                     providers=["CPUExecutionProvider"])


def _dimensions(graph: Any) -> Iterator[Any]:
    """Every dimension stated in the graph and the graphs in its nodes."""
    for part in _graphs(graph):
        for info in (*part.input, *part.output, *part.value_info):
            if info.type.HasField("tensor_type"):
                yield from info.type.tensor_type.shape.dim


def _fix(dim: Any, value: int) -> None:
    dim.Clear()
    dim.dim_value = value


def remove_invalid_dim_values(graph: Any) -> None:
    """Make dimensions below 1, which converters write for open ones, unknown."""
    for dim in _dimensions(graph):
        if dim.HasField("dim_value") and dim.dim_value < 1:
            dim.Clear()


def make_dim_param_fixed(graph: Any, param_name: str, value: int) -> None:
    """Give every dimension named `param_name` the size `value`."""
    for dim in _dimensions(graph):
        if dim.HasField("dim_param") and dim.dim_param == param_name:
            _fix(dim, value)


def make_input_shape_fixed(graph: Any, input_name: str, fixed_shape: Sequence[int]) -> None:
    """Give an input a fixed shape; a name that is replaced is replaced everywhere. Dimensions below 1 count
    as unknown. Raises ValueError where there is no such input, or it has another rank or another size."""
    remove_invalid_dim_values(graph)
    info = next((i for i in graph.input if i.name == input_name), None)
    if info is None:
        raise ValueError(f"Input {input_name} was not found in graph inputs. "
                         f"Valid input names are: {','.join(i.name for i in graph.input)}")
    if not info.type.HasField("tensor_type"):
        raise ValueError(f"Input {input_name} is not a tensor")
    dims = info.type.tensor_type.shape.dim
    if len(dims) != len(fixed_shape):
        raise ValueError(f"Rank mismatch. Existing:{len(dims)} Replacement:{len(fixed_shape)}")
    for axis, (dim, size) in enumerate(zip(dims, fixed_shape, strict=True)):
        if dim.HasField("dim_value") and dim.dim_value != size:
            raise ValueError(f"Can't replace existing fixed size of {dim.dim_value} with {size} "
                             f"for dimension {axis + 1}")
        if dim.HasField("dim_param"):
            make_dim_param_fixed(graph, dim.dim_param, size)
        else:
            _fix(dim, size)


def fix_output_shapes(model: Any) -> None:
    """Write the shapes of outputs that are fixed now that the inputs' are."""
    found = {o.name: o for o in _inferred(model).graph.output}
    for info in model.graph.output:
        if not is_fixed_size_tensor(info) and is_fixed_size_tensor(found[info.name]):
            info.type.tensor_type.shape.CopyFrom(found[info.name].type.tensor_type.shape)


def _inferred(model: Any) -> Any:
    """The model with its shapes, as far as they follow where an operator is unknown."""
    try:
        return infer_shapes(model)
    except Incomplete as error:
        return error.model


def is_fixed_size_tensor(value: Any) -> bool:
    """Whether a ValueInfoProto is a tensor whose dimensions are all numbers above 0."""
    if not value.type.HasField("tensor_type") or not value.type.tensor_type.HasField("shape"):
        return False
    return all(d.HasField("dim_value") and d.dim_value > 0 for d in value.type.tensor_type.shape.dim)


class NodeSet(MutableSet[Item], Generic[Item]):
    """A set of nodes, which protobuf does not let be hashed, by identity."""

    def __init__(self, items: Sequence[Item] = ()) -> None:
        self._items = {id(item): item for item in items}

    def __contains__(self, item: object) -> bool:
        return id(item) in self._items

    def __iter__(self) -> Iterator[Item]:
        return iter(self._items.values())

    def __len__(self) -> int:
        return len(self._items)

    def add(self, value: Item) -> None:
        self._items[id(value)] = value

    def discard(self, value: Item) -> None:
        self._items.pop(id(value), None)


class NodeMap(MutableMapping[Item, NodeSet[Item]], Generic[Item]):
    """A mapping from nodes to sets of nodes, by identity."""

    def __init__(self) -> None:
        self._items: dict[int, tuple[Item, NodeSet[Item]]] = {}

    def __getitem__(self, key: Item) -> NodeSet[Item]:
        return self._items[id(key)][1]

    def __setitem__(self, key: Item, value: NodeSet[Item]) -> None:
        self._items[id(key)] = key, value

    def __delitem__(self, key: Item) -> None:
        del self._items[id(key)]

    def __contains__(self, key: object) -> bool:
        return id(key) in self._items

    def __iter__(self) -> Iterator[Item]:
        return (node for node, _ in self._items.values())

    def __len__(self) -> int:
        return len(self._items)


def get_producer_consumer_maps(graph: Any) -> tuple[NodeMap[Any], NodeMap[Any]]:
    """Two maps over the nodes of `graph` and the graphs in its nodes: from a node to those whose results it
    reads, and from a node to those that read its results. A node with bodies reads what they take from
    outside. Keys are the graph's own NodeProto objects. Raises ValueError where nothing makes a value."""
    producers, consumers = NodeMap[Any](), NodeMap[Any]()
    missing = _link(graph, producers, consumers)
    if missing:
        raise ValueError("This appears to be an invalid model with missing inputs of "
                         f"{','.join(sorted(missing))}")
    return producers, consumers


def _link(graph: Any, producers: NodeMap[Any], consumers: NodeMap[Any]) -> set[str]:
    """Enter the graph's nodes; the names it takes from outside."""
    given = {i.name for i in graph.input} | {t.name for t in graph.initializer}
    given |= {t.values.name for t in graph.sparse_initializer}
    makers: dict[str, Any] = {}
    outside: set[str] = set()
    for node in graph.node:
        reads = dict.fromkeys(node.input)
        for body in _bodies(node):
            reads |= dict.fromkeys(sorted(_link(body, producers, consumers)))
        for name in reads:
            if name in makers:
                producers.setdefault(node, NodeSet()).add(makers[name])
                consumers.setdefault(makers[name], NodeSet()).add(node)
            elif name and name not in given:
                outside.add(name)
        makers |= dict.fromkeys((name for name in node.output if name), node)
    return outside


class ModelProtoWithShapeInfo:
    """A model file with the shapes of its values: `model_with_shape_info` is the ModelProto. Shapes behind an
    operator nobody knows are left out. Raises what onnx.load raises."""

    def __init__(self, model_path: pathlib.Path) -> None:
        self.model_path = model_path
        self.model_with_shape_info = _inferred(onnx.load(str(model_path)))
