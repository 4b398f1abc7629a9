"""QuantizeLinear and DequantizeLinear put into a graph between the node that makes a value and its readers.

Readers and makers are looked up in an index that every change keeps true; the new nodes join the graph in
`finish`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from onnx import GraphProto, NodeProto, helper

from .onnx_model import ONNXModel, read_names, subgraphs
from .quant_utils import (
    DEQUANT_OP_NAME,
    QUANT_OP_NAME,
    add_dequant_output_suffix,
    add_dequant_suffix,
    add_quant_input_suffix,
    add_quant_output_suffix,
    add_quant_suffix,
)

Names = tuple[str, str]
"""The names of a scale and of its zero point."""


class Insertion:
    """A model's graph, and the nodes that are added to it. `domain`: that of the inserted operators."""

    def __init__(self, model: ONNXModel, domain: str | None) -> None:
        self.model = model
        self.domain = domain
        self._new: list[NodeProto] = []
        self._readers: dict[str, list[NodeProto]] = {}
        self._makers: dict[str, list[NodeProto]] = {}
        self._outputs: set[str] = set()
        self._read_within: set[str] = set()

    def index(self) -> None:
        """Look up who reads and makes what; call it before the first change."""
        nodes = self.model.nodes()
        self._readers = self.model.input_name_to_nodes()
        self._makers = {name: [node] for node in nodes for name in node.output if name}
        self._outputs = {output.name for output in self.model.graph().output}
        self._read_within = set().union(*(read_names(graph) for node in nodes for graph in subgraphs(node)))

    def reads(self, name: str) -> int:
        """How often a value is read, by graphs within nodes too."""
        return len(self._readers.get(name, ())) + (name in self._read_within)

    def add(self, node: NodeProto) -> None:
        """Have a node join the graph."""
        self._new.append(node)

    def finish(self, unwanted: Iterable[NodeProto]) -> None:
        """Put the new nodes into the graph and take the unwanted ones out."""
        gone = {id(node) for node in unwanted}
        graph = self.model.graph()
        kept = GraphProto(node=[node for node in graph.node if id(node) not in gone])
        graph.ClearField("node")
        graph.node.extend(kept.node)
        graph.node.extend(self._new)
        self._new = []

    def rename_inputs(self, old: str, new: str, names: Iterable[str] | None = None) -> None:
        """Have the nodes of these names, or all that read a value, read another one instead."""
        wanted = None if names is None else set(names)
        left = []
        for node in self._readers.pop(old, ()):
            if wanted is None or node.name in wanted:
                self.model.replace_node_input(node, old, new)
                self._readers.setdefault(new, []).append(node)
            else:
                left.append(node)
        if left:
            self._readers[old] = left

    def rename_output(self, old: str, new: str) -> None:
        """Have the nodes that make a value make it under another name."""
        for node in self._makers.pop(old, ()):
            self.model.replace_node_output(node, old, new)
            self._makers.setdefault(new, []).append(node)

    def quantize(self, source: str, output: str, name: str, scale: str, zero: str, axis: int | None = None,
                 block_size: int = 0) -> NodeProto:
        """A QuantizeLinear."""
        return self._node(QUANT_OP_NAME, source, output, name, scale, zero, axis, block_size)

    def dequantize(self, source: str, output: str, name: str, scale: str, zero: str, axis: int | None = None,
                   block_size: int = 0) -> NodeProto:
        """A DequantizeLinear."""
        return self._node(DEQUANT_OP_NAME, source, output, name, scale, zero, axis, block_size)

    def _node(self, op_type: str, source: str, output: str, name: str, scale: str, zero: str,
              axis: int | None, block_size: int) -> NodeProto:
        attributes: dict[str, Any] = {} if axis is None else {"axis": axis}
        if block_size:
            attributes["block_size"] = block_size
        return helper.make_node(op_type, [source, scale, zero], [output], name, domain=self.domain,
                                **attributes)

    def _both(self, tensor: str, source: str, output: str, scale: str, zero: str, end: str = "",
              axis: int | None = None, block_size: int = 0) -> None:
        """Add both nodes of a value. `end`: what follows its name in those of the nodes."""
        between = f"{add_quant_output_suffix(tensor)}{end}"
        how = scale, zero, axis, block_size
        self._new += [self.quantize(source, between, f"{add_quant_suffix(tensor)}{end}", *how),
                      self.dequantize(between, output, f"{add_dequant_suffix(tensor)}{end}", *how)]

    def pair(self, tensor: str, scale: str, zero: str) -> str:
        """Both nodes between an activation and all that reads it; the name that is read from then on."""
        source, output = tensor, add_dequant_output_suffix(tensor)
        if tensor in self._outputs:
            source, output = add_quant_input_suffix(tensor), tensor
            self.rename_output(tensor, source)
        else:
            self.rename_inputs(tensor, output)
        self._both(tensor, source, output, scale, zero)
        return output

    def pairs(self, tensor: str, readers: list[NodeProto], scale: str, zero: str) -> str:
        """Both nodes for each of an activation's readers; the name that the first one reads from then on."""
        outputs = [f"{add_dequant_output_suffix(tensor)}_{number}" for number in range(1, len(readers) + 1)]
        for number, (node, output) in enumerate(zip(readers, outputs, strict=True), 1):
            self._both(tensor, tensor, output, scale, zero, f"_{number}")
            self.rename_inputs(tensor, output, {node.name})
        return outputs[0]

    def constant(self, tensor: str, quantized: str | None, scale: str, zero: str, axis: int | None,
                 block_size: int) -> None:
        """The nodes between a constant and all that reads it: one behind its quantized values, else both."""
        output = add_dequant_output_suffix(tensor)
        self.rename_inputs(tensor, output)
        if quantized is None:
            self._both(tensor, tensor, output, scale, zero, axis=axis, block_size=block_size)
        else:
            self._new.append(self.dequantize(quantized, output, add_dequant_suffix(tensor), scale, zero, axis,
                                             block_size))

    def conversion(self, tensor: str, readers: set[str], receivers: set[str], first: Names, second: Names
                   ) -> Names:
        """The nodes of an activation that is converted from one type to another for some of its readers.

        A DequantizeLinear of the first type is shared by the conversion only where all readers receive the
        second. The names that are read from then on in the first and in the second type.
        """
        is_output, everyone = tensor in self._outputs, len(receivers) == len(readers)
        source = tensor
        if is_output:
            source = add_quant_input_suffix(tensor)
            self.rename_output(tensor, source)
        between = add_quant_output_suffix(tensor)
        plain = tensor if is_output and not everyone else add_dequant_output_suffix(tensor)
        changed = f"{tensor}_convert"
        if not everyone and plain != tensor:
            self.rename_inputs(tensor, plain, readers - receivers)
        self._new += [self.quantize(source, between, add_quant_suffix(tensor), *first),
                      self.dequantize(between, plain, add_dequant_suffix(tensor), *first)]
        again = plain
        if not everyone:
            again = add_quant_input_suffix(changed)
            self._new.append(self.dequantize(between, again, add_dequant_suffix(f"{changed}_clone"), *first))
        result = tensor if is_output and everyone else add_dequant_output_suffix(changed)
        if result != tensor:
            self.rename_inputs(tensor, result, receivers)
        self._both(changed, again, result, *second)
        return plain, result
