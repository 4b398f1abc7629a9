"""Which rules a model type and its options choose, in the order in which they run.

In: what was asked. Out: passes for `optimize.run_passes`, in three turns: make every exporter's graph alike,
in ONNX's own operators; write those in com.microsoft's forms; write out again what found no form.

A `Form` belongs to a switch of FusionOptions and to model types; more forms are added to `FORMS`.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...optimize import PASSES, Pass, at
from ...optimize.pattern import Rule
from ...optimize.rules import activation as onnx_activation
from ...optimize.rules import attention as onnx_attention
from ...optimize.rules import movement as onnx_movement
from ...optimize.rules import normalization as onnx_normalization
from ...optimize.rules import rotary as onnx_rotary
from ...records import dataclass
from . import activation, attention, decoder, diffusion, einsum, embedding, normalization, older
from .asked import Asked


@dataclass(frozen=True)
class Form:
    """Rules that run where a switch is on (always, without one) and for these model types (for all, without
    any)."""

    switch: str
    rules: tuple[Rule, ...]
    models: frozenset[str] = frozenset()

    def chosen(self, asked: Asked) -> bool:
        wanted = asked.only is None or not self.switch or self.switch in asked.only
        return wanted and asked.on(self.switch) and (not self.models or asked.model_type in self.models)


_DIFFUSION = frozenset({"unet", "vae"})

ALIKE: tuple[Form, ...] = (
    Form("enable_gelu", (onnx_activation.fuse_gelu, activation.fuse_megatrons_gelu,
                         onnx_activation.fuse_gelu_tanh, onnx_activation.fuse_swish,
                         onnx_activation.fuse_quick_gelu)),
    Form("", (onnx_activation.fuse_softmax, onnx_movement.merge_casts)),
    Form("enable_layer_norm", onnx_normalization.EXTENDED),
    Form("enable_group_norm", onnx_normalization.GROUPS, _DIFFUSION),
    Form("enable_rotary_embeddings", onnx_rotary.EXTENDED),
    Form("enable_attention", (*einsum.EINSUM, *onnx_attention.EXTENDED)),
)
"""Rules of the runtime's own optimizer, whose operators the forms start from."""

FORMS: tuple[Form, ...] = (
    Form("enable_group_norm", diffusion.GROUPS, _DIFFUSION),
    Form("enable_skip_group_norm", diffusion.SKIPS, _DIFFUSION),
    Form("enable_bias_splitgelu", (diffusion.fuse_bias_split_gelu,), _DIFFUSION),
    Form("enable_nhwc_conv", (diffusion.fuse_nhwc_conv,), _DIFFUSION),
    Form("enable_group_norm", (onnx_movement.merge_transposes,), _DIFFUSION),
    Form("enable_rotary_embeddings", decoder.ROTARY),
    Form("enable_attention", decoder.ATTENTION),
    Form("enable_attention", (attention.fuse_packed_attention_past, attention.fuse_packed_attention,
                              attention.fuse_multi_head_attention)),
    Form("enable_gelu", (activation.fuse_gelu_form, activation.fuse_quick_gelu_form)),
    Form("enable_embed_layer_norm", (embedding.fuse_embed_layer_normalization,
                                      embedding.fuse_embed_skip_layer_normalization)),
    Form("enable_skip_layer_norm", onnx_normalization.LAST),
    Form("enable_layer_norm", (normalization.fuse_simplified_layer_normalization,)),
    Form("enable_bias_skip_layer_norm", (normalization.fuse_bias_skip_layer_normalization,
                                         normalization.fuse_bias_skip_rms_normalization)),
    Form("enable_bias_add", (diffusion.fuse_bias_add,), _DIFFUSION),
    Form("enable_gelu_approximation", (activation.fuse_gelu_approximation,)),
    Form("enable_bias_gelu", (activation.fuse_bias_gelu, activation.fuse_bias_fast_gelu)),
    Form("enable_gemm_fast_gelu", (activation.fuse_gemm_fast_gelu,)),
)
"""Rules that write com.microsoft's operators."""

LEFT: tuple[Form, ...] = (Form("", (*decoder.LEFT, *diffusion.LEFT, attention.expand_attention,
                                    older.expand_shape_part)),)
"""Rules that write out what the rules of `ALIKE` joined and none of `FORMS` took."""

_ALWAYS = ("cleanup", "folding", "movement", "upgrade")


def passes(forms: Iterable[Form], asked: Asked, level: int = 2) -> list[Pass]:
    """The passes of the chosen forms, a row for each."""
    return [it for form in forms if form.chosen(asked) for it in at(level, *form.rules)]


def cleaning(opt_level: int) -> list[Pass]:
    """The passes that keep ONNX's operators: those every fusion relies on, and from the level 1 on all that
    are basic."""
    return [p for p in PASSES if p.level <= 1 and (opt_level > 0 or _relied_on(p))]


def _relied_on(it: Pass) -> bool:
    made = it.what.build if isinstance(it.what, Rule) else it.what
    return made.__module__.rpartition(".")[2] in _ALWAYS
