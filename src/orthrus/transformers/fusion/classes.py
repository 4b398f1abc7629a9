"""onnxruntime.transformers' fusions, each a name for rules of `forms`.

In: an OnnxModel and what the class asks for. `apply()` runs the rules. Those of one switch do the same,
whichever pattern their names come from.
"""

from __future__ import annotations

from typing import Any, ClassVar

from ..fusion_options import AttentionMaskFormat
from ..model.onnx_model import OnnxModel
from .base import Fusion


class AttentionMask:
    """The form in which a fused attention takes a mask."""

    def __init__(self, model: OnnxModel) -> None:
        self.model = model
        self.mask_format = AttentionMaskFormat.AttentionMask

    def set_mask_format(self, mask_format: int) -> None:
        self.mask_format = mask_format


class _Named(Fusion):
    """A fusion that needs nothing but the model."""

    fused, searched = "", ""

    def __init__(self, model: OnnxModel) -> None:
        super().__init__(model, self.fused, self.searched)


class FusionGelu(_Named):
    switches, fused, searched = ("enable_gelu",), "Gelu", "Erf"


class FusionFastGelu(_Named):
    switches, fused, searched = ("enable_gelu",), "FastGelu", "Tanh"


class FusionQuickGelu(_Named):
    switches, fused, searched = ("enable_gelu",), "QuickGelu", "Mul"


class FusionBiasGelu(Fusion):
    switches = ("enable_bias_gelu",)

    def __init__(self, model: OnnxModel, is_fastgelu: bool) -> None:
        fused = "FastGelu" if is_fastgelu else "BiasGelu"
        super().__init__(model, fused, "FastGelu" if is_fastgelu else "Gelu", "add bias")


class FusionGeluApproximation(_Named):
    switches, fused, searched = ("enable_gelu_approximation",), "FastGelu", "Gelu"


class FusionGemmFastGelu(_Named):
    switches, fused, searched = ("enable_gemm_fast_gelu",), "GemmFastGelu", "FastGelu"


class FusionLayerNormalization(Fusion):
    """`check_constant_and_dimension`, `force`: accepted; a scale and a bias are taken in where they fit."""

    switches = ("enable_layer_norm",)

    def __init__(self, model: OnnxModel, check_constant_and_dimension: bool = True, force: bool = False
                 ) -> None:
        super().__init__(model, "LayerNormalization", "ReduceMean")


class FusionLayerNormalizationTF(_Named):
    switches, fused, searched = ("enable_layer_norm",), "LayerNormalization", "Add"


class FusionSimplifiedLayerNormalization(_Named):
    switches, fused, searched = ("enable_layer_norm",), "SimplifiedLayerNormalization", "Mul"


class FusionSkipLayerNormalization(Fusion):
    switches = ("enable_skip_layer_norm",)

    def __init__(self, model: OnnxModel, fused_op_type: str = "SkipLayerNormalization",
                 search_op_types: str = "LayerNormalization", shape_infer: bool = True) -> None:
        super().__init__(model, fused_op_type, search_op_types)


class FusionSkipSimplifiedLayerNormalization(FusionSkipLayerNormalization):
    def __init__(self, model: OnnxModel) -> None:
        super().__init__(model, "SkipSimplifiedLayerNormalization", "SimplifiedLayerNormalization")


class FusionBiasSkipLayerNormalization(_Named):
    switches, searched = ("enable_bias_skip_layer_norm",), "SkipLayerNormalization"
    fused = "SkipLayerNormalization"


class FusionEmbedLayerNormalization(Fusion):
    switches = ("enable_embed_layer_norm",)

    def __init__(self, model: OnnxModel, use_mask_index: bool = False) -> None:
        super().__init__(model, "EmbedLayerNormalization", "LayerNormalization")


class FusionEmbedLayerNoMask(Fusion):
    switches = ("enable_embed_layer_norm",)

    def __init__(self, model: OnnxModel, description: str = "no mask") -> None:
        super().__init__(model, "EmbedLayerNormalization", "LayerNormalization", description)


class FusionAttention(Fusion):
    """`attention_mask`: the form of the mask. `search_op_types`: accepted; every softmax is looked at."""

    switches: ClassVar[tuple[str, ...]] = ("enable_attention",)
    fused = "Attention"

    def __init__(self, model: OnnxModel, hidden_size: int, num_heads: int,
                 attention_mask: AttentionMask | None = None, use_multi_head_attention: bool = False,
                 disable_multi_head_attention_bias: bool = False,
                 search_op_types: Any = ("SkipLayerNormalization", "LayerNormalization")) -> None:
        super().__init__(model, "MultiHeadAttention" if use_multi_head_attention else self.fused,
                         search_op_types)
        self.hidden_size, self.num_heads = hidden_size, num_heads
        self.attention_mask = attention_mask or AttentionMask(model)
        self.options.attention_mask_format = self.attention_mask.mask_format
        self.options.use_multi_head_attention = use_multi_head_attention
        self.options.disable_multi_head_attention_bias = disable_multi_head_attention_bias


class _Masked(FusionAttention):
    """One that is told the form of the mask."""

    def __init__(self, model: OnnxModel, hidden_size: int, num_heads: int, attention_mask: AttentionMask
                 ) -> None:
        super().__init__(model, hidden_size, num_heads, attention_mask)


class FusionBartAttention(_Masked):
    model_type = "bart"


class FusionConformerAttention(_Masked):
    model_type = "conformer"


class FusionT5Attention(_Masked):
    model_type = "t5"


class FusionTnlrAttention(_Masked):
    model_type = "tnlr"


class _Unmasked(FusionAttention):
    """One that leaves the mask's form to the model's type."""

    def __init__(self, model: OnnxModel, hidden_size: int, num_heads: int) -> None:
        super().__init__(model, hidden_size, num_heads)


class FusionAttentionClip(_Unmasked):
    model_type = "clip"


class FusionAttentionVae(_Unmasked):
    model_type = "vae"


class FusionMultiHeadAttentionSam2(_Unmasked):
    model_type, fused = "sam2", "MultiHeadAttention"


class FusionRotaryAttention(_Unmasked):
    switches = ("enable_attention", "enable_rotary_embeddings")


class _OfDiT(_Named):
    switches, model_type = ("enable_attention",), "mmdit"
    fused, searched = "MultiHeadAttention", "Softmax"


class FusionMultiHeadAttentionMMDit(_OfDiT):
    pass


class FusionMultiHeadAttentionDiT(_OfDiT):
    pass


class FusionRotaryEmbeddings(_Named):
    switches, fused, searched = ("enable_rotary_embeddings",), "RotaryEmbedding", "Add"


class FusionAttentionUnet(FusionAttention):
    """`is_cross_attention`: accepted; both kinds are looked for."""

    model_type = "unet"

    def __init__(self, model: OnnxModel, hidden_size: int, num_heads: int, is_cross_attention: bool,
                 enable_packed_qkv: bool, enable_packed_kv: bool) -> None:
        super().__init__(model, hidden_size, num_heads)
        self.options.enable_packed_qkv, self.options.enable_packed_kv = enable_packed_qkv, enable_packed_kv


class FusionGptAttention(Fusion):
    switches, model_type = ("enable_attention",), "gpt2"

    def __init__(self, model: OnnxModel, num_heads: int) -> None:
        super().__init__(model, "Attention", ["LayerNormalization", "SkipLayerNormalization"], "with past")
        self.num_heads = num_heads


class FusionGptAttentionNoPast(FusionGptAttention):
    pass


class FusionGptAttentionMegatron(FusionGptAttention):
    pass


class _OfUnet(_Named):
    model_type = "unet"


class FusionBiasAdd(_OfUnet):
    switches, fused, searched = ("enable_bias_add",), "BiasAdd", "Add"


class FusionBiasSplitGelu(_OfUnet):
    switches, fused, searched = ("enable_bias_splitgelu",), "BiasSplitGelu", "Gelu"


class FusionSkipGroupNorm(_OfUnet):
    switches, fused, searched = ("enable_skip_group_norm",), "SkipGroupNorm", "GroupNorm"


class FusionGroupNorm(Fusion):
    switches, model_type = ("enable_group_norm",), "unet"

    def __init__(self, model: OnnxModel, channels_last: bool = True) -> None:
        super().__init__(model, "GroupNorm", "Add")
        self.options.group_norm_channels_last = channels_last


class FusionNhwcConv(Fusion):
    """`update_weight`: accepted; the weights are laid out as the operator takes them."""

    switches, model_type = ("enable_nhwc_conv",), "unet"

    def __init__(self, model: OnnxModel, update_weight: bool = False) -> None:
        super().__init__(model, "NhwcConv", "Conv")


class FusionConstantFold(_Named):
    """Constants and shapes are folded, and what does nothing is dropped."""

    fused, searched = "", "Transpose"


class FusionReshape(FusionConstantFold):
    searched = "Reshape"


class FusionShape(FusionConstantFold):
    searched = "Concat"


class FusionTranspose(FusionConstantFold):
    searched = "Transpose"
