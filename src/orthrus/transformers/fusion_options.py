"""Which fusions `optimizer.optimize_model` makes, under the names of onnxruntime.transformers.fusion_options.

In: a model type, or the flags of the command. Out: switches that are plain attributes.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from enum import Enum
from typing import Any

__all__ = ["AttentionMaskFormat", "AttentionOpType", "FusionOptions"]


class AttentionMaskFormat:
    """How a fused attention takes the mask of padding: the number of keys of each row, which is right only
    where padding follows the text; that and where they begin; a flag for each key; not at all."""

    MaskIndexEnd = 0
    MaskIndexEndAndStart = 1
    AttentionMask = 2
    NoMask = 3


class AttentionOpType(Enum):
    """The operators that attention may become."""

    Attention = "Attention"
    MultiHeadAttention = "MultiHeadAttention"
    GroupQueryAttention = "GroupQueryAttention"
    PagedAttention = "PagedAttention"

    def __str__(self) -> str:
        return self.value

    def __hash__(self) -> int:
        return hash(self.value)

    def __eq__(self, other: object) -> bool:
        return getattr(other, "value", None) == self.value


_SWITCHES = {
    "enable_gelu": True, "enable_layer_norm": True, "enable_attention": True,
    "enable_rotary_embeddings": True, "use_multi_head_attention": False,
    "disable_multi_head_attention_bias": False, "enable_skip_layer_norm": True,
    "enable_embed_layer_norm": True, "enable_bias_skip_layer_norm": True, "enable_bias_gelu": True,
    "enable_gelu_approximation": False, "enable_qordered_matmul": True, "enable_shape_inference": True,
    "enable_gemm_fast_gelu": False, "group_norm_channels_last": True,
}
_DIFFUSION = ("enable_nhwc_conv", "enable_group_norm", "enable_skip_group_norm", "enable_bias_splitgelu",
              "enable_packed_qkv", "enable_packed_kv", "enable_bias_add")
_DIFFUSION_TYPES = ("unet", "vae", "clip")
_WITHOUT_EMBEDDING = ("clip", "qwen3")
_MASKS = {"bert": AttentionMaskFormat.MaskIndexEnd, "vit": AttentionMaskFormat.NoMask,
          "qwen3": AttentionMaskFormat.NoMask}

_FLAGS = {
    "disable_attention": ("enable_attention", False, "leave attention as it is"),
    "disable_skip_layer_norm": ("enable_skip_layer_norm", False, "no SkipLayerNormalization"),
    "disable_embed_layer_norm": ("enable_embed_layer_norm", False, "no EmbedLayerNormalization"),
    "disable_bias_skip_layer_norm": ("enable_bias_skip_layer_norm", False,
                                     "no bias inside SkipLayerNormalization"),
    "disable_bias_gelu": ("enable_bias_gelu", False, "no bias inside Gelu and FastGelu"),
    "disable_layer_norm": ("enable_layer_norm", False, "no LayerNormalization"),
    "disable_gelu": ("enable_gelu", False, "leave Gelu as it is"),
    "enable_gelu_approximation": ("enable_gelu_approximation", True,
                                  "FastGelu in the place of Gelu and BiasGelu; results change a little"),
    "disable_shape_inference": ("enable_shape_inference", False,
                                "shapes are inferred in any case; accepted and without effect"),
    "enable_gemm_fast_gelu": ("enable_gemm_fast_gelu", True,
                              "GemmFastGelu, which onnxruntime computes on GPUs only"),
    "use_multi_head_attention": ("use_multi_head_attention", True,
                                 "MultiHeadAttention in the place of Attention"),
    "disable_rotary_embeddings": ("enable_rotary_embeddings", False, "no RotaryEmbedding"),
}
_DIFFUSION_FLAGS = {
    "disable_group_norm": ("enable_group_norm", False, "no GroupNorm"),
    "disable_skip_group_norm": ("enable_skip_group_norm", False, "no SkipGroupNorm"),
    "disable_packed_kv": ("enable_packed_kv", False, "keys and values apart in cross attention"),
    "disable_packed_qkv": ("enable_packed_qkv", False, "queries, keys and values apart in self attention"),
    "disable_bias_add": ("enable_bias_add", False, "no BiasAdd"),
    "disable_bias_splitgelu": ("enable_bias_splitgelu", False, "no BiasSplitGelu"),
    "disable_nhwc_conv": ("enable_nhwc_conv", False, "no NhwcConv"),
    "use_group_norm_channels_first": ("group_norm_channels_last", False,
                                      "GroupNorm with the channels before the pixels"),
}
_MASK_FLAGS = {
    "use_mask_index": "count the keys of each row; for texts padded at their end only",
    "use_raw_attention_mask": "a flag for each key; for texts padded anywhere",
    "no_attention_mask": "leave the mask out; for model_type bert",
}


class FusionOptions:
    """The switches of a model type, each an attribute to be set.

    `attention_mask_format` of "bert" is MaskIndexEnd, of "vit" and "qwen3" NoMask, as in onnxruntime. Since
    the one is wrong for texts that are padded before their beginning, and the other for all that are padded,
    they are followed only where a program or a flag sets them; a fresh object keeps the mask as it is.
    """

    attention_op_type: AttentionOpType | None

    def __init__(self, model_type: str) -> None:
        for name, value in _SWITCHES.items():
            setattr(self, name, value)
        if model_type in _WITHOUT_EMBEDDING:
            self.enable_embed_layer_norm = False
        self.attention_mask_format = _MASKS.get(model_type, AttentionMaskFormat.AttentionMask)
        self.attention_op_type = None
        if model_type in _DIFFUSION_TYPES:
            for name in _DIFFUSION:
                setattr(self, name, True)
        self._chosen = False

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)
        if name == "attention_mask_format":
            object.__setattr__(self, "_chosen", True)

    @property
    def chosen_mask_format(self) -> int | None:
        """The `attention_mask_format` that somebody asked for, None where nobody did."""
        return self.attention_mask_format if self._chosen else None

    def use_raw_attention_mask(self, use_raw_mask: bool = True) -> None:
        """A flag for each key, or the number of keys."""
        self.attention_mask_format = AttentionMaskFormat.AttentionMask if use_raw_mask else \
            AttentionMaskFormat.MaskIndexEnd

    def disable_attention_mask(self) -> None:
        self.attention_mask_format = AttentionMaskFormat.NoMask

    def set_attention_op_type(self, attn_op_type: AttentionOpType) -> None:
        self.attention_op_type = attn_op_type

    @staticmethod
    def parse(args: Namespace) -> FusionOptions:
        """The options that the flags of `add_arguments` and `args.model_type` say."""
        options = FusionOptions(args.model_type)
        flags = {**_FLAGS, **(_DIFFUSION_FLAGS if args.model_type in _DIFFUSION_TYPES else {})}
        for flag, (name, value, _) in flags.items():
            if getattr(args, flag, False):
                setattr(options, name, value)
        if getattr(args, "use_mask_index", False):
            options.use_raw_attention_mask(False)
        if getattr(args, "no_attention_mask", False):
            options.disable_attention_mask()
        if getattr(args, "use_raw_attention_mask", False):
            options.use_raw_attention_mask(True)
        return options

    @staticmethod
    def add_arguments(parser: ArgumentParser) -> None:
        """Add the flags that `parse` reads."""
        told = {flag: text for flag, (_, _, text) in {**_FLAGS, **_DIFFUSION_FLAGS}.items()}
        for flag, text in {**told, **_MASK_FLAGS}.items():
            parser.add_argument(f"--{flag}", action="store_true", help=text)
