"""BertOnnxModel: what fuses a model of an encoder, counts what was fused, and adjusts inputs and axes.

In: a ModelProto and, where known, its number of heads and its width. Out: the same object, rewritten by the
rules of `forms`; `journal` says what was fused, and what was declined and why.
"""

from __future__ import annotations

import copy
import logging
from typing import Any, ClassVar

from onnx import ModelProto, TensorProto

from ...optimize import Entry
from ...quantization.refused import InvalidValue
from .. import forms
from ..fusion_options import FusionOptions
from .onnx_model import OnnxModel

__all__ = ["BertOnnxModel"]
logger = logging.getLogger(__name__)
_TIDY = frozenset[str]()
ATTENTIONS = ("Attention", "MultiHeadAttention", "GroupQueryAttention", "PagedAttention", "QOrderedAttention")
GELUS = ("Gelu", "BiasGelu", "FastGelu", "GemmFastGelu", "QOrderedGelu")
NORMS = ("LayerNormalization", "SimplifiedLayerNormalization", "SkipLayerNormalization",
         "SkipSimplifiedLayerNormalization", "QOrderedLayerNormalization")


class BertOnnxModel(OnnxModel):
    """`num_heads` and `hidden_size` are 0 where the model shall tell them. Raises: InvalidValue where they do
    not fit each other."""

    model_type: ClassVar[str] = "bert"
    fused_operators: ClassVar[tuple[str, ...]] = (
        "EmbedLayerNormalization", "Attention", "MultiHeadAttention", "Gelu", "FastGelu", "BiasGelu",
        "GemmFastGelu", "LayerNormalization", "SimplifiedLayerNormalization", "SkipLayerNormalization",
        "SkipSimplifiedLayerNormalization", "RotaryEmbedding", "QOrderedAttention", "QOrderedGelu",
        "QOrderedLayerNormalization", "QOrderedMatMul")

    def __init__(self, model: ModelProto, num_heads: int = 0, hidden_size: int = 0) -> None:
        if num_heads < 0 or hidden_size < 0 or (num_heads and hidden_size % num_heads):
            raise InvalidValue("the width is no multiple of the number of heads",
                               found=f"num_heads={num_heads}, hidden_size={hidden_size}",
                               cure="pass 0 for both, and they are found in the model")
        super().__init__(model)
        self.num_heads, self.hidden_size = num_heads, hidden_size
        self.options = FusionOptions(self.model_type)
        self.journal: list[Entry] = []

    def optimize(self, options: FusionOptions | None = None, add_dynamic_axes: bool = False) -> None:
        """Fuse all that the options switch on (those of the model type, without any given)."""
        self.options = options or self.options
        self.fuse()
        if add_dynamic_axes:
            self.use_dynamic_axes()
        logger.info("opset version: %d", self.get_opset_version())

    def fuse(self, *switches: str, opt_level: int = 0) -> None:
        """Fuse what these switches of FusionOptions stand for, all that are on where none is named."""
        options = copy.copy(self.options)
        for switch in switches:
            setattr(options, switch, True)
        model, journal = forms.optimized(self.model, self.model_type, options, self.num_heads,
                                         self.hidden_size, opt_level, switches or None)
        self.model.CopyFrom(model)
        self.journal += journal

    def fuse_constant_fold(self) -> None:
        self._tidy()

    def fuse_attention(self) -> None:
        self.fuse("enable_attention")

    def fuse_gelu(self) -> None:
        self.fuse("enable_gelu")

    def fuse_bias_gelu(self, is_fastgelu: bool) -> None:
        """Take the bias into Gelu and FastGelu, both of them."""
        self.fuse("enable_bias_gelu")

    def gelu_approximation(self) -> None:
        self.fuse("enable_gelu_approximation")

    def fuse_gemm_fast_gelu(self) -> None:
        self.fuse("enable_gemm_fast_gelu")

    def fuse_add_bias_skip_layer_norm(self) -> None:
        self.fuse("enable_bias_skip_layer_norm")

    def fuse_reshape(self) -> None:
        self._tidy()

    def fuse_shape(self) -> None:
        self._tidy()

    def fuse_embed_layer(self, use_mask_index: bool) -> None:
        self.fuse("enable_embed_layer_norm")

    def fuse_layer_norm(self) -> None:
        self.fuse("enable_layer_norm")

    def fuse_simplified_layer_norm(self) -> None:
        self.fuse("enable_layer_norm")

    def fuse_skip_layer_norm(self, shape_infer: bool = True) -> None:
        self.fuse("enable_skip_layer_norm")

    def fuse_skip_simplified_layer_norm(self) -> None:
        self.fuse("enable_skip_layer_norm")

    def fuse_rotary_embeddings(self) -> None:
        self.fuse("enable_rotary_embeddings")

    def _tidy(self) -> None:
        """Fold constants and shapes and drop what does nothing; no fusion."""
        model, journal = forms.optimized(self.model, self.model_type, self.options, only=_TIDY)
        self.model.CopyFrom(model)
        self.journal += journal

    def preprocess(self) -> None:
        self._tidy()

    def adjust_reshape_and_expand(self) -> None:
        """Drop every Reshape and Expand to the shape that its input has."""
        self._tidy()

    def clean_graph(self) -> None:
        self._tidy()

    def postprocess(self) -> None:
        """Drop what nothing needs any more."""
        self._tidy()
        self.prune_graph(allow_remove_graph_inputs=False)

    def get_graph_inputs_from_node_type(self, op_type: str, input_indices: list[int], casted: bool
                                        ) -> list[str]:
        """The graph inputs that nodes of a type read at these places, through a Cast if `casted`."""
        makers, names = self.output_name_to_node(), {value.name for value in self.graph().input}
        found = []
        for node in self.get_nodes_by_op_type(op_type):
            for name in (node.input[i] for i in input_indices if i < len(node.input)):
                made = makers.get(name)
                if casted and made is not None and made.op_type == "Cast":
                    name = made.input[0]
                elif casted:
                    continue
                if name in names:
                    found.append(name)
        return list(dict.fromkeys(found))

    def get_graph_inputs_from_fused_nodes(self, casted: bool) -> list[str]:
        """The graph inputs that hold ids or flags for fused nodes, through a Cast if `casted`."""
        places = {"EmbedLayerNormalization": [0, 1, 7], "Attention": [3], "MultiHeadAttention": [4]}
        return [name for op_type, at in places.items()
                for name in self.get_graph_inputs_from_node_type(op_type, at, casted)]

    def change_graph_inputs_to_int32(self) -> None:
        """Make ids and flags that fused nodes read through a Cast int32 themselves."""
        wanted = set(self.get_graph_inputs_from_fused_nodes(casted=True))
        added = removed = 0
        for value in self.graph().input:
            if value.name in wanted:
                cast, dropped = self.change_graph_input_type(value, TensorProto.INT32)
                added, removed = added + (cast is not None), removed + len(dropped)
        self.topological_sort()
        logger.info("inputs are int32: %d Cast nodes added, %d removed", added, removed)

    def use_dynamic_axes(self, dynamic_batch_dim: str = "batch_size", dynamic_seq_len: str = "max_seq_len"
                         ) -> None:
        """Name the first dimension of inputs and outputs, and the second of ids and flags."""
        ids = {*self.get_graph_inputs_from_fused_nodes(True), *self.get_graph_inputs_from_fused_nodes(False)}
        for value in (*self.graph().input, *self.graph().output):
            dims = value.type.tensor_type.shape.dim
            if len(dims) > 0 and (value.name in ids or value in list(self.graph().output)):
                dims[0].dim_param = dynamic_batch_dim
            if len(dims) > 1 and value.name in ids:
                dims[1].dim_param = dynamic_seq_len

    def get_fused_operator_statistics(self) -> dict[str, int]:
        """How many nodes there are of each operator that fusions of this model type write."""
        found = self.get_operator_statistics()
        return {name: found.get(name, 0) for name in self.fused_operators}

    def is_fully_optimized(self, fused_op_count: dict[str, int] | None = None) -> bool:
        """Whether there is an attention, a Gelu to each, two normalizations to each, and an embedding."""
        counts = self.get_fused_operator_statistics() if fused_op_count is None else fused_op_count
        attentions, gelus, norms = (total(counts, names) for names in (ATTENTIONS, GELUS, NORMS))
        found = {"an attention": attentions > 0, "a Gelu for each attention": attentions == gelus,
                 "two normalizations for each attention": norms >= 2 * attentions,
                 "an EmbedLayerNormalization": counts.get("EmbedLayerNormalization", 0) > 0}
        return told(found)

    def convert_to_packing_mode(self, use_symbolic_shape_infer: bool = False) -> None:
        """Let attention work on texts without their padding; see `PackingMode`."""
        from .convert_to_packing_mode import PackingMode

        PackingMode(self).convert(use_symbolic_shape_infer)


def total(counts: dict[str, int], names: tuple[str, ...]) -> int:
    return sum(counts.get(name, 0) for name in names)


def told(found: dict[str, Any]) -> bool:
    missing = [what for what, there in found.items() if not there]
    if missing:
        logger.warning("not fused: %s", ", ".join(missing))
    return not missing
