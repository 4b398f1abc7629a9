"""The model classes of the other model types: each says which rules are its own, and what it counts.

In: a ModelProto. Out: the same object, fused as `bert.BertOnnxModel` does.
"""

from __future__ import annotations

from typing import ClassVar

from onnx import ModelProto

from ...quantization.refused import InvalidValue
from ..fusion.classes import FusionT5Attention, FusionTnlrAttention
from ..fusion_options import FusionOptions
from .bert import ATTENTIONS, GELUS, NORMS, BertOnnxModel, told, total

__all__ = ["BartOnnxModel", "BertOnnxModelKeras", "BertOnnxModelTF", "ClipOnnxModel",
           "ConformerOnnxModel", "FusionT5Attention", "FusionTnlrAttention", "Gpt2OnnxModel",
           "MmditOnnxModel", "PhiOnnxModel", "Sam2OnnxModel", "T5OnnxModel", "TnlrOnnxModel",
           "UnetOnnxModel", "VaeOnnxModel"]


class _Told(BertOnnxModel):
    """What is always told its heads and its width, 0 where nobody knows them."""

    def __init__(self, model: ModelProto, num_heads: int, hidden_size: int) -> None:
        super().__init__(model, num_heads, hidden_size)


class BertOnnxModelTF(_Told):
    """As tf2onnx writes it."""

    model_type = "bert_tf"

    def remove_identity(self) -> None:
        self._tidy()


class BertOnnxModelKeras(BertOnnxModelTF):
    """As keras2onnx writes it."""

    model_type = "bert_keras"


class Gpt2OnnxModel(_Told):
    model_type = "gpt2"


class BartOnnxModel(_Told):
    """`model_impl`: "hf", the only implementation there is."""

    model_type = "bart"

    def __init__(self, model: ModelProto, num_heads: int, hidden_size: int, model_impl: str = "hf") -> None:
        if model_impl != "hf":
            raise InvalidValue("the implementation is not known", found=model_impl, expected="hf")
        super().__init__(model, num_heads, hidden_size)


class T5OnnxModel(BertOnnxModel):
    model_type = "t5"


class ConformerOnnxModel(_Told):
    model_type = "conformer"


class TnlrOnnxModel(_Told):
    model_type = "tnlr"


class ClipOnnxModel(BertOnnxModel):
    model_type = "clip"
    fused_operators = ("Attention", "FastGelu", "Gelu", "LayerNormalization", "QuickGelu", "BiasGelu",
                       "SkipLayerNormalization")


class _WithOptions(BertOnnxModel):
    """What has its attention fused by a method that takes options."""

    def fuse_multi_head_attention(self, options: FusionOptions | None = None) -> None:
        self.options = options or self.options
        self.fuse("enable_attention")


class MmditOnnxModel(_WithOptions):
    model_type = "mmdit"
    fused_operators = ("FastGelu", "MultiHeadAttention", "LayerNormalization", "SimplifiedLayerNormalization")


class Sam2OnnxModel(_WithOptions):
    model_type = "sam2"
    fused_operators = ("MultiHeadAttention", "LayerNormalization", "SkipLayerNormalization")


class UnetOnnxModel(_WithOptions):
    model_type = "unet"
    fused_operators: ClassVar[tuple[str, ...]] = (
        "Attention", "MultiHeadAttention", "LayerNormalization", "SkipLayerNormalization", "BiasSplitGelu",
        "GroupNorm", "SkipGroupNorm", "NhwcConv", "BiasAdd")

    def remove_useless_div(self) -> None:
        """Drop divisions by 1."""
        self._tidy()

    def convert_conv_to_nhwc(self) -> None:
        self.fuse("enable_nhwc_conv")

    def merge_adjacent_transpose(self) -> None:
        self._tidy()

    def fuse_bias_add(self) -> None:
        self.fuse("enable_bias_add")

    def optimize(self, options: FusionOptions | None = None, add_dynamic_axes: bool = False) -> None:
        super().optimize(options, False)


class VaeOnnxModel(UnetOnnxModel):
    model_type = "vae"
    fused_operators = ("Attention", "GroupNorm", "SkipGroupNorm", "NhwcConv")


class PhiOnnxModel(_Told):
    model_type = "phi"
    fused_operators = ("Attention", "MultiHeadAttention", "GroupQueryAttention", "PagedAttention", "Gelu",
                       "BiasGelu", "FastGelu", "LayerNormalization", "SkipLayerNormalization")

    def is_fully_optimized(self, fused_op_count: dict[str, int] | None = None) -> bool:
        """Whether there is an attention, and a Gelu and a normalization to each."""
        counts = self.get_fused_operator_statistics() if fused_op_count is None else fused_op_count
        attentions, gelus, norms = (total(counts, names) for names in (ATTENTIONS, GELUS, NORMS))
        return told({"an attention": attentions > 0, "a Gelu for each attention": attentions == gelus,
                      "a normalization for each attention": norms >= attentions})
