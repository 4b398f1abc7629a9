"""A fused encoder whose layers work on the words of all texts in one row, without the padding between them;
also `python -m orthrus.transformers.convert_to_packing_mode`.

In: an OnnxModel with Attention or MultiHeadAttention over one mask of padding. Out: the same with
RemovePadding before the first layer, the packed forms of attention, and RestorePadding behind the last
normalization. The invariant: where a layer does anything that needs to know where texts end, nothing is
changed. Texts must be padded at their end. Only a GPU computes these operators.
"""

from __future__ import annotations

import argparse
import logging
from collections.abc import Sequence
from typing import Any

import onnx
from onnx import NodeProto, TensorProto, helper

from ...quantization.refused import InvalidValue
from .constants import Operators
from .onnx_model import OnnxModel

__all__ = ["PackingAttention", "PackingAttentionBase", "PackingMode", "PackingMultiHeadAttention", "main"]
logger = logging.getLogger(__name__)
_BY_WORD = frozenset({
    "MatMul", "Gemm", "Add", "Mul", "Gelu", "BiasGelu", "FastGelu", "QuickGelu", "Relu", "Tanh", "Cast",
    "LayerNormalization", "SimplifiedLayerNormalization", "SkipLayerNormalization",
    "SkipSimplifiedLayerNormalization", "Attention", "MultiHeadAttention"})
_NORMS = frozenset({"LayerNormalization", "SkipLayerNormalization", "SimplifiedLayerNormalization",
                    "SkipSimplifiedLayerNormalization"})


class PackingAttentionBase:
    """`mask`: the input of the attention that says where padding is; `hidden`: the one that its texts come
    in by."""

    mask, hidden = 3, 0

    def __init__(self, model: OnnxModel, attention_op_type: str) -> None:
        self.model, self.attention_op_type = model, attention_op_type

    def convert(self, use_symbolic_shape_infer: bool = True) -> None:
        """Pack the model, or say in the log why not. Shapes are not needed: the parameter changes nothing."""
        nodes = self.model.get_nodes_by_op_type(self.attention_op_type)
        refusal = self._refusal(nodes)
        if refusal is None:
            region = self._region(nodes)
            if isinstance(region, str):
                refusal = region
            else:
                self._pack(nodes, *region)
        if refusal is not None:
            logger.warning("%s is not packed: %s", self.attention_op_type, refusal)

    def packed(self, node: NodeProto, offset: str, ends: str) -> NodeProto:
        """The packed form of an attention."""
        raise NotImplementedError

    def _refusal(self, nodes: Sequence[NodeProto]) -> str | None:
        if not nodes:
            return "there is none"
        masks = {node.input[self.mask] if len(node.input) > self.mask else "" for node in nodes}
        if len(masks) > 1 or "" in masks:
            return "its nodes have no mask, or different ones"
        for node in nodes:
            if any(node.input[self.mask + 2:]) or len([o for o in node.output if o]) > 1:
                return f"{node.name} has earlier keys, or gives them on"
            if self.model.get_node_attribute(node, "unidirectional"):
                return f"{node.name} looks back only"
        return None

    def _region(self, nodes: Sequence[NodeProto]) -> tuple[str, str] | str:
        """The value before the first layer and the one behind the last normalization, or what is between
        them that needs the padding."""
        first = self._entry(nodes[0])
        readers = self.model.input_name_to_nodes()
        outputs = {value.name for value in self.model.graph().output}
        order = {id(node): i for i, node in enumerate(self.model.graph().node)}
        reached, last, stack = set[str](), None, [first]
        while stack:
            name = stack.pop()
            if name in reached:
                continue
            reached.add(name)
            for node in readers.get(name, ()):
                if node.op_type in _BY_WORD:
                    stack += [out for out in node.output if out]
                    if node.op_type in _NORMS and (last is None or order[id(node)] > order[id(last)]):
                        last = node
        if last is None or order[id(last)] < max(order[id(node)] for node in nodes):
            return "no normalization follows the last one"
        end, inside = last.output[0], self._before(first, last.output[0])
        for node in inside:
            if node.op_type not in _BY_WORD:
                return f"{node.name or node.op_type} needs the padding"
            for out in node.output:
                if out != end and (out in outputs or any(not any(r is n for n in inside)
                                                         for r in readers.get(out, ()))):
                    return f"%{out} is read behind the last normalization, too"
        return first, end

    def _entry(self, node: NodeProto) -> str:
        return node.input[self.hidden]

    def _before(self, first: str, end: str) -> list[NodeProto]:
        """The nodes between two values."""
        makers = self.model.output_name_to_node()
        found: list[NodeProto] = []
        stack = [end]
        while stack:
            node = makers.get(stack.pop())
            if node is not None and not any(node is other for other in found):
                depends = self._depends(node, first, makers)
                if depends:
                    found.append(node)
                    stack += [name for name in node.input if name != first]
        return found

    def _depends(self, node: NodeProto, first: str, makers: dict[str, NodeProto]) -> bool:
        before = self.model.get_parent_subgraph_nodes(node, [], makers)
        return any(first in other.input for other in (node, *before))

    def _pack(self, nodes: Sequence[NodeProto], first: str, end: str) -> None:
        names = [f"{first}_{part}" for part in ("packed", "offset", "ends", "longest")]
        packed, offset, ends, _ = names
        inside = self._before(first, end)
        counts = self._counts(nodes[0].input[self.mask])
        for node in inside:
            self.model.replace_node_input(node, first, packed)
        restored = f"{end}_packed"
        self.model.replace_node_output(self.model.output_name_to_node()[end], end, restored)
        for node in inside:
            self.model.replace_node_input(node, end, restored)
        for node in nodes:
            node.CopyFrom(self.packed(node, offset, ends))
        create = self.model.create_node_name
        self.model.add_nodes([
            helper.make_node(Operators.REMOVEPADDING, [first, counts], names,
                             create(Operators.REMOVEPADDING), domain="com.microsoft"),
            helper.make_node(Operators.RESTOREPADDING, [restored, offset], [end],
                             create(Operators.RESTOREPADDING), domain="com.microsoft")])
        self.model.clean_shape_infer()
        self.model.topological_sort()
        self.model.update_graph()

    def _counts(self, mask: str) -> str:
        """The words of each text [batch], of a mask that counts them or flags each."""
        made = self.model.output_name_to_node().get(mask)
        if made is not None and (made.op_type == "ReduceSum" or mask in made.output[1:]):
            return mask
        name = f"{mask}_count"
        axes = f"{name}_axes"
        modern = self.model.get_opset_version() >= 13
        if modern:
            self.model.add_initializer(helper.make_tensor(axes, TensorProto.INT64, [1], [1]))
        given: dict[str, Any] = {} if modern else {"axes": [1]}
        self.model.add_node(helper.make_node("ReduceSum", [mask, axes] if modern else [mask], [name],
                                             self.model.create_node_name("ReduceSum"), keepdims=0, **given))
        return name


def _attributes(node: NodeProto, *names: str) -> dict[str, Any]:
    return {a.name: helper.get_attribute_value(a) for a in node.attribute if a.name in names}


class PackingAttention(PackingAttentionBase):
    def __init__(self, model: OnnxModel) -> None:
        super().__init__(model, Operators.ATTENTION)

    def packed(self, node: NodeProto, offset: str, ends: str) -> NodeProto:
        return helper.make_node(
            Operators.PACKEDATTENTION, [*node.input[:3], offset, ends, *node.input[5:6]], node.output[:1],
            node.name, domain="com.microsoft", **_attributes(node, "num_heads", "qkv_hidden_sizes", "scale"))


class PackingMultiHeadAttention(PackingAttentionBase):
    mask = 4

    def __init__(self, model: OnnxModel) -> None:
        super().__init__(model, Operators.MULTI_HEAD_ATTENTION)

    def _entry(self, node: NodeProto) -> str:
        """What the projection of the queries reads."""
        name, makers = node.input[0], self.model.output_name_to_node()
        while (made := makers.get(name)) is not None and made.op_type in ("Add", "MatMul"):
            name = next(n for n in made.input if self.model.get_initializer(n) is None)
            if made.op_type == "MatMul":
                break
        return name

    def packed(self, node: NodeProto, offset: str, ends: str) -> NodeProto:
        bias = node.input[3] if len(node.input) > 3 else ""
        return helper.make_node(
            Operators.PACKED_MULTI_HEAD_ATTENTION, [*node.input[:3], bias, offset, ends, *node.input[5:6]],
            node.output[:1], node.name, domain="com.microsoft", **_attributes(node, "num_heads", "scale"))


class PackingMode:
    """Packs whichever attention the model has."""

    def __init__(self, model: OnnxModel) -> None:
        self.model = model

    def convert(self, use_symbolic_shape_infer: bool = True) -> None:
        kinds = (PackingAttention(self.model), PackingMultiHeadAttention(self.model))
        found = [kind for kind in kinds if self.model.get_nodes_by_op_type(kind.attention_op_type)]
        if len(found) != 1:
            raise InvalidValue("a model with one kind of fused attention can be packed",
                               found=", ".join(k.attention_op_type for k in found) or "none",
                               expected="Attention or MultiHeadAttention",
                               cure="fuse it with orthrus.transformers.optimizer")
        found[0].convert(use_symbolic_shape_infer)


def main(argv: Sequence[str] | None = None) -> None:
    """The command."""
    parser = argparse.ArgumentParser(description="Let a fused encoder work without padding, on a GPU.")
    parser.add_argument("--input", required=True, help="the model to read")
    parser.add_argument("--output", required=True, help="the model to write")
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--use_external_data_format", action="store_true",
                        help="weights go to a file beside the model")
    args = parser.parse_args(argv)
    logging.basicConfig(level=logging.DEBUG if args.verbose else logging.INFO, format="%(message)s")
    model = OnnxModel(onnx.load(args.input))
    PackingMode(model).convert()
    model.save_model_to_file(args.output, args.use_external_data_format)


if __name__ == "__main__":
    main()
