"""Nodes that read constant weights: found in a graph and the graphs within it, and written anew on codes.

In: a GraphProto, changed in place; a path of graphs is what a node sees, the outermost first. The invariant:
a new tensor lies in the graph that held the weight, and no two tensors that differ share a name.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx
from onnx import GraphProto, NodeProto, TensorProto, helper, numpy_helper

from .blockwise import FLOATS, Blockwise, check_finite, float_type, integer_type, packed_tensor, weight_array
from .onnx_model import first_named, read_names, subgraphs
from .quant_utils import ms_domain, normalize_axis, onnx_domain
from .refused import InvalidValue

QUANTIZED = frozenset({"MatMulNBits", "MatMulBnb4", "GatherBlockQuantized", "MatMulFpQ4", "MatMulInteger"})
"""Operators on weights of few bits."""
_FOLLOWED = frozenset({"Identity", "Cast", "Transpose", "Constant"})
_log = logging.getLogger(__name__)


class Weight(NamedTuple):
    """A constant as a node reads it: its values, not to be written to, its name there, and the graph that
    holds it."""

    values: np.ndarray
    name: str
    graph: GraphProto


class Suffixes(NamedTuple):
    """What follows a weight's name in the names of its codes, scales and zero points."""

    codes: str = "_Q{bits}"
    scales: str = "_scales"
    zero_points: str = "_zero_points"

    def names(self, weight: str, made: Blockwise) -> tuple[str, str, str]:
        """The three names; codes' suffix may tell bits and block_size."""
        codes = self.codes.format(bits=made.bits, block_size=made.block_size)
        return weight + codes, weight + self.scales, weight + self.zero_points


PLAIN_SUFFIXES = Suffixes()
QDQ_SUFFIXES = Suffixes("_DQ_Q{bits}", "_DQ_scales", "_DQ_zero_points")


def rewrite(graph: GraphProto, visit: Callable[[NodeProto, list[GraphProto]], list[NodeProto]],
            outer: Sequence[GraphProto] = ()) -> None:
    """Put `visit(node, path)` in the place of every node, those of inner graphs first; then drop the
    followed nodes (Transpose, Cast, ...) that nothing reads any more and were read before."""
    path = [*outer, graph]
    read = read_names(graph)
    nodes: list[NodeProto] = []
    for node in graph.node:
        for inner in subgraphs(node):
            rewrite(inner, visit, path)
        nodes += visit(node, path)
    _replace_nodes(graph, nodes)
    while idle := [n for n in graph.node if n.op_type in _FOLLOWED and read.issuperset(n.output)
                   and not read_names(graph).intersection(n.output)]:
        for node in idle:
            graph.node.remove(node)


def each_node(graph: GraphProto, outer: Sequence[GraphProto] = ()
              ) -> Iterator[tuple[NodeProto, list[GraphProto]]]:
    """Every node of a graph and of the graphs within it, with the graphs that it sees."""
    path = [*outer, graph]
    for node in graph.node:
        yield node, path
        for inner in subgraphs(node):
            yield from each_node(inner, path)


def _replace_nodes(graph: GraphProto, nodes: Iterable[NodeProto]) -> None:
    copies = onnx.GraphProto(node=nodes)
    graph.ClearField("node")
    graph.node.extend(copies.node)


def get_initializer(name: str, graph_path: Sequence[GraphProto]
                    ) -> tuple[TensorProto, GraphProto] | tuple[None, None]:
    """The tensor of this name in the innermost graph that has one, and that graph; else (None, None)."""
    for graph in reversed(graph_path):
        tensor = first_named(name, graph.initializer)
        if tensor is not None:
            return tensor, graph
        if first_named(name, graph.input) is not None:
            break
    return None, None


def constant(name: str, path: Sequence[GraphProto]) -> Weight | None:
    """The value of this name if it is an initializer or a Constant, or made of one by Transpose, Cast to a
    float type or Identity; else None."""
    tensor, graph = get_initializer(name, path)
    if tensor is not None and graph is not None:
        return Weight(weight_array(tensor), name, graph)
    for depth in range(len(path), 0, -1):
        for node in path[depth - 1].node:
            if name in node.output:
                return _followed(node, name, path[:depth])
    return None


def _followed(node: NodeProto, name: str, path: Sequence[GraphProto]) -> Weight | None:
    given = {a.name: a for a in node.attribute}
    if node.op_type not in _FOLLOWED or node.domain not in ("", onnx_domain):
        return None
    if node.op_type == "Constant":
        return Weight(weight_array(given["value"].t), name, path[-1]) if "value" in given else None
    source = constant(node.input[0], path)
    if source is None or node.op_type == "Cast" and given["to"].i not in FLOATS:
        return None
    values = source.values
    if node.op_type == "Cast":
        values = values.astype(float_type(given["to"].i))
    elif node.op_type == "Transpose":
        values = values.transpose(list(given["perm"].ints) if "perm" in given else None)
    return Weight(values, name, source.graph)


def matrix(node: NodeProto, path: Sequence[GraphProto]) -> Weight | None:
    """The constant (K, N) that a MatMul multiplies by, None where it has none that can be quantized.

    Dimensions of 1 before the last two are left out where the result keeps its shape without them. Raises:
    InvalidValue for weights of double, or with values that are not finite.
    """
    weight = constant(node.input[1], path)
    if weight is None or weight.values.dtype.name not in FLOATS.values():
        if weight is not None and weight.values.dtype == np.float64:
            raise InvalidValue(f"weight {weight.name!r} cannot be quantized", node=node.name or node.op_type,
                               found="double", expected="float, float16 or bfloat16",
                               cure="cast the model to float, or leave the node out by nodes_to_exclude")
        return None
    values = weight.values
    leading = values.shape[:-2]
    if values.ndim < 2 or values.size == 0 or any(size != 1 for size in leading):
        _log.info("the weight of %s stays as it is: its shape is %s", node.name, values.shape)
        return None
    if leading and _rank(node.input[0], path) < values.ndim:
        _log.info("the weight of %s stays as it is: its shape widens the result", node.name)
        return None
    values = values.reshape(values.shape[-2:])
    check_finite(values, weight.name)
    return weight._replace(values=values)


def table(node: NodeProto, path: Sequence[GraphProto], axis: int, bits: int
          ) -> tuple[Weight, int, int] | None:
    """The constant that a Gather reads, the axis of its blocks and the one that is gathered from; None where
    it has none that can be quantized. Raises: InvalidValue where it has no such axis, the two are the same,
    codes of 8 bits have blocks along another than the last, or values are not finite."""
    weight = constant(node.input[0], path)
    if weight is None or weight.values.dtype.name not in FLOATS.values() or weight.values.size == 0:
        return None
    rank = weight.values.ndim
    inside, axis = normalize_axis(axis, rank)
    gathered = next((a.i for a in node.attribute if a.name == "axis"), 0) % rank
    if not inside or axis == gathered:
        raise InvalidValue("Invalid quantize axis for Gather node.", node=node.name, found=f"axis {axis}",
                           expected=f"one of {rank} dimensions, and not {gathered}, which is gathered from",
                           cure="correct quant_axes, or leave the node out by nodes_to_exclude")
    if bits == 8 and axis != rank - 1:
        raise InvalidValue("Gather's codes of 8 bits have their blocks along the last axis", node=node.name,
                           found=f"axis {axis} of {rank}", cure="correct quant_axes, or use 4 bits")
    check_finite(weight.values, weight.name)
    return weight, axis, gathered


def _rank(name: str, path: Sequence[GraphProto]) -> int:
    """How many dimensions a value is stated to have, 0 where nothing is."""
    for graph in reversed(path):
        value = first_named(name, [*graph.input, *graph.value_info, *graph.output])
        if value is not None and value.type.tensor_type.HasField("shape"):
            return len(value.type.tensor_type.shape.dim)
    return 0


def add_tensor(graph: GraphProto, tensor: TensorProto) -> str:
    """Add a tensor unless an equal one of its name is there; its name, numbered where another has it."""
    name, count = tensor.name, 0
    while (there := first_named(tensor.name, graph.initializer)) is not None and there != tensor:
        count += 1
        tensor.name = f"{name}_{count}"
    if there is None:
        graph.initializer.append(tensor)
    return tensor.name


def float_tensor(values: np.ndarray, name: str) -> TensorProto:
    """A tensor of the values, which may be of ml_dtypes' types."""
    return numpy_helper.from_array(np.ascontiguousarray(values), name)


def as_matmul_nbits(node: NodeProto, weight: Weight, made: Blockwise, accuracy_level: int | None,
                    suffixes: Suffixes = PLAIN_SUFFIXES) -> list[NodeProto]:
    """A MatMul as a MatMulNBits. `accuracy_level` None: the attribute is left out."""
    codes, scales, zeros = suffixes.names(weight.name, made)
    tensors = [float_tensor(made.packed(), codes), float_tensor(made.scales.T, scales)]
    zero_points = made.packed_zero_points()
    if zero_points is not None:
        tensors.append(float_tensor(zero_points, zeros))
    given: dict[str, Any] = {"K": made.rows, "N": made.scales.shape[1], "bits": made.bits,
                             "block_size": made.block_size}
    if accuracy_level is not None:
        given["accuracy_level"] = accuracy_level
    inputs = [node.input[0], *(add_tensor(weight.graph, tensor) for tensor in tensors)]
    name = node.name and f"{node.name}_Q{made.bits}"
    return [helper.make_node("MatMulNBits", inputs, [node.output[0]], name, domain=ms_domain, **given)]


def as_dequantized(node: NodeProto, weight: Weight, made: Blockwise, transposed: bool = False
                   ) -> list[NodeProto]:
    """A MatMul behind a DequantizeLinear of codes (K, N). `transposed`: of codes (N, K), and a Transpose.

    Raises: InvalidValue for zero points that are no codes.
    """
    if made.zero_points is not None and made.zero_points.dtype != np.uint8:
        raise InvalidValue("float zero points cannot be written with DequantizeLinear", node=node.name,
                           cure="use QuantFormat.QOperator, or another algorithm")
    codes, scales, zeros = QDQ_SUFFIXES.names(weight.name, made)
    signed = made.zero_points is None
    turned = (lambda a: np.ascontiguousarray(a.T)) if transposed else (lambda a: a)
    tensors = [packed_tensor(turned(made.codes[:made.rows]), made.bits, signed, codes),
               float_tensor(turned(made.scales), scales)]
    if made.zero_points is not None:
        tensors.append(packed_tensor(turned(made.zero_points), made.bits, signed, zeros))
    inputs = [add_tensor(weight.graph, tensor) for tensor in tensors]
    real = f"{inputs[0]}_output"
    name = node.name and f"{node.name}_DQ_Q{made.bits}"
    nodes = [helper.make_node("DequantizeLinear", inputs, [real], name, axis=int(transposed),
                              block_size=made.block_size)]
    if transposed:
        nodes.append(helper.make_node("Transpose", [real], [f"{real}_transposed"], perm=[1, 0]))
        real += "_transposed"
    name = node.name and f"{node.name}_matmul_Q{made.bits}"
    return [*nodes, helper.make_node("MatMul", [node.input[0], real], [node.output[0]], name)]


def as_gather(node: NodeProto, weight: Weight, made: Blockwise, axis: int, gather_axis: int
              ) -> list[NodeProto]:
    """A Gather from blocks along `axis` of a tensor, which `made` holds with that axis first and the others
    flat behind it."""
    shape = weight.values.shape
    codes, scales, zeros = PLAIN_SUFFIXES.names(weight.name, made)
    signed = made.zero_points is None and made.bits == 4

    def restored(flat: np.ndarray) -> np.ndarray:
        others = (*shape[:axis], *shape[axis + 1:])
        return np.ascontiguousarray(np.moveaxis(flat.reshape(len(flat), *others), 0, axis))

    tensors = [packed_tensor(restored(made.codes[:made.rows]), made.bits, signed, codes),
               float_tensor(restored(made.scales), scales)]
    if made.zero_points is not None:
        tensors.append(packed_tensor(restored(made.zero_points), made.bits, signed, zeros))
    inputs = [add_tensor(weight.graph, tensor) for tensor in tensors]
    inputs.insert(1, node.input[1])
    given = {"gather_axis": gather_axis, "quantize_axis": axis, "block_size": made.block_size}
    if tensors[0].data_type == integer_type(8, False):
        given["bits"] = made.bits
    name = node.name and f"{node.name}_Q{made.bits}"
    return [helper.make_node("GatherBlockQuantized", inputs, [node.output[0]], name, domain=ms_domain,
                             **given)]
