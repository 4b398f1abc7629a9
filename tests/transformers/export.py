"""Small networks of transformers and diffusers with random weights, exported with both of torch's exporters.

    python tests/transformers/export.py <folder> [name …]

writes <folder>/<name>.<script|dynamo>.onnx for each network of `NETWORKS` that the exporter can do, with what
it was fed and what torch answered beside it in <name>.npz. Biases and scales, which start as zeros and ones,
are drawn too, so that no exporter leaves them out. It needs torch, transformers and diffusers.
"""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

import transformers as tr

EXPORTERS = ("script", "dynamo")
SIZES = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
WORDS = {"vocab_size": 100, "max_position_embeddings": 64}
BATCH, LENGTH, PAST = 2, 8, 5


class Network(NamedTuple):
    """A module, what it is called with in order, the names of both ends, and the dimensions that vary."""

    module: nn.Module
    feeds: dict[str, torch.Tensor]
    outputs: list[str]
    dims: dict[str, dict[int, str]]


class Wrapped(nn.Module):
    """A module of which `call` says how it is fed tensors and what of its answer counts."""

    def __init__(self, module: nn.Module, call: Callable[..., Any]) -> None:
        super().__init__()
        self.module, self.call = module, call

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.call(self.module, *inputs)


def ids(length: int = 0) -> torch.Tensor:
    return torch.randint(3, 99, (BATCH, length or LENGTH), dtype=torch.int64)


def mask(length: int = 0) -> torch.Tensor:
    return torch.ones(BATCH, length or LENGTH, dtype=torch.int64)


TEXT = {0: "batch", 1: "sequence"}


def encoder(model: nn.Module, segments: bool = False) -> Network:
    """Token identifiers and a mask; the last hidden state."""
    feeds = {"input_ids": ids(), "attention_mask": mask()}
    if segments:
        feeds["token_type_ids"] = torch.zeros_like(feeds["input_ids"])

    def call(m, input_ids, attention_mask, *more):
        return m(input_ids=input_ids, attention_mask=attention_mask,
                 **({"token_type_ids": more[0]} if more else {})).last_hidden_state
    return Network(Wrapped(model, call), feeds, ["last_hidden_state"], dict.fromkeys(feeds, TEXT))


def decoder(model: nn.Module, heads: int = 4, size: int = 16, past: bool = False, layers: int = 2,
            new: int = 2) -> Network:
    """Token identifiers and a mask, with the keys and values of earlier tokens or without; logits."""
    if not past:
        def plain(m, input_ids, attention_mask):
            return m(input_ids=input_ids, attention_mask=attention_mask, use_cache=False).logits
        feeds = {"input_ids": ids(), "attention_mask": mask()}
        return Network(Wrapped(model, plain), feeds, ["logits"], dict.fromkeys(feeds, TEXT))

    def cached(m, input_ids, attention_mask, position_ids, *earlier):
        cache = tr.DynamicCache(list(zip(earlier[::2], earlier[1::2], strict=True)))
        out = m(input_ids=input_ids, attention_mask=attention_mask, position_ids=position_ids,
                past_key_values=cache, use_cache=True)
        present = [t for layer in out.past_key_values.layers for t in (layer.keys, layer.values)]
        return (out.logits, *present)
    feeds = {"input_ids": ids(new), "attention_mask": mask(PAST + new),
             "position_ids": torch.arange(PAST, PAST + new).expand(BATCH, new).contiguous()}
    dims: dict[str, dict[int, str]] = {"input_ids": TEXT, "attention_mask": {0: "batch", 1: "total"},
                                       "position_ids": TEXT}
    outputs = ["logits"]
    for i in range(layers):
        for kind in ("key", "value"):
            feeds[f"past_key_values.{i}.{kind}"] = torch.randn(BATCH, heads, PAST, size)
            dims[f"past_key_values.{i}.{kind}"] = {0: "batch", 2: "past"}
            outputs.append(f"present.{i}.{kind}")
    return Network(Wrapped(model, cached), feeds, outputs, dims)


def seq2seq_decoder(model: nn.Module, past: bool, heads: int = 4, size: int = 16, layers: int = 2) -> Network:
    """One step of a decoder that looks at an encoder's states, with earlier keys and values or without."""
    encoded = torch.randn(BATCH, LENGTH, heads * size)
    if not past:
        def plain(m, input_ids, states):
            return m(input_ids=input_ids, encoder_hidden_states=states, use_cache=False).last_hidden_state
        return Network(Wrapped(model, plain), {"input_ids": ids(3), "encoder_hidden_states": encoded},
                       ["last_hidden_state"],
                       {"input_ids": TEXT, "encoder_hidden_states": {0: "batch", 1: "encoded"}})

    def cached(m, input_ids, states, *earlier):
        own = tr.DynamicCache(list(zip(earlier[:2 * layers:2], earlier[1:2 * layers:2], strict=True)))
        cross = tr.DynamicCache(list(zip(earlier[2 * layers::2], earlier[2 * layers + 1::2], strict=True)))
        cache = tr.EncoderDecoderCache(own, cross)
        out = m(input_ids=input_ids, encoder_hidden_states=states, past_key_values=cache, use_cache=True)
        own = out.past_key_values.self_attention_cache
        return (out.last_hidden_state, *(t for it in own.layers for t in (it.keys, it.values)))
    feeds = {"input_ids": ids(1), "encoder_hidden_states": encoded}
    dims: dict[str, dict[int, str]] = {"input_ids": {0: "batch"},
                                       "encoder_hidden_states": {0: "batch", 1: "encoded"}}
    for part, length, name in (("decoder", PAST, "past"), ("encoder", LENGTH, "encoded")):
        for i in range(layers):
            for kind in ("key", "value"):
                feeds[f"past.{i}.{part}.{kind}"] = torch.randn(BATCH, heads, length, size)
                dims[f"past.{i}.{part}.{kind}"] = {0: "batch", 2: name}
    outputs = ["last_hidden_state",
               *(f"present.{i}.decoder.{kind}" for i in range(layers) for kind in ("key", "value"))]
    return Network(Wrapped(model, cached), feeds, outputs, dims)


def vision(model: nn.Module, size: int = 32, get: str = "last_hidden_state") -> Network:
    def call(m, pixels):
        return getattr(m(pixels), get)
    return Network(Wrapped(model, call), {"pixel_values": torch.randn(BATCH, 3, size, size)}, [get],
                   {"pixel_values": {0: "batch"}})


def speech(model: nn.Module, feeds: dict[str, torch.Tensor], dims: dict[int, str]) -> Network:
    def call(m, x):
        return m(x).last_hidden_state
    return Network(Wrapped(model, call), feeds, ["last_hidden_state"], dict.fromkeys(feeds, dims))


def _gpt_neox() -> Any:
    return tr.GPTNeoXForCausalLM(tr.GPTNeoXConfig(**SIZES, **WORDS))


def _gptj() -> Any:
    return tr.GPTJForCausalLM(tr.GPTJConfig(vocab_size=100, n_positions=64, n_embd=64, n_layer=2, n_head=4,
                                            rotary_dim=8))


def _gpt2() -> Any:
    return tr.GPT2LMHeadModel(tr.GPT2Config(vocab_size=100, n_positions=64, n_embd=64, n_layer=2, n_head=4))


def _llama(groups: int = 4) -> Any:
    return tr.LlamaForCausalLM(tr.LlamaConfig(**SIZES, **WORDS, num_key_value_heads=groups))


def _mistral() -> Any:
    return tr.MistralForCausalLM(tr.MistralConfig(**SIZES, **WORDS, num_key_value_heads=2,
                                                  sliding_window=None))


def _qwen2() -> Any:
    return tr.Qwen2ForCausalLM(tr.Qwen2Config(**SIZES, **WORDS, num_key_value_heads=2))


def _phi() -> Any:
    return tr.PhiForCausalLM(tr.PhiConfig(**SIZES, **WORDS, partial_rotary_factor=0.5))


def _t5() -> Any:
    return tr.T5Model(tr.T5Config(vocab_size=100, d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4))


def _bart() -> Any:
    return tr.BartModel(tr.BartConfig(
        vocab_size=100, d_model=64, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=128, decoder_ffn_dim=128, max_position_embeddings=64))


def _whisper() -> Any:
    return tr.WhisperModel(tr.WhisperConfig(
        vocab_size=100, num_mel_bins=16, d_model=64, encoder_layers=2, decoder_layers=2,
        encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=128, decoder_ffn_dim=128,
        max_source_positions=32, max_target_positions=32, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        decoder_start_token_id=1))


def _vision(config: Any, **more: Any) -> Any:
    return config(**SIZES, image_size=32, patch_size=8, **more)


def _swin() -> Network:
    return vision(tr.SwinModel(tr.SwinConfig(image_size=32, patch_size=2, embed_dim=32, depths=[2, 2],
                                             num_heads=[2, 4], window_size=4)))


def _clip_text() -> Network:
    model = tr.CLIPTextModel(tr.CLIPTextConfig(**SIZES, **WORDS, eos_token_id=2))

    def call(m, input_ids):
        return m(input_ids).last_hidden_state
    return Network(Wrapped(model, call), {"input_ids": ids()}, ["last_hidden_state"], {"input_ids": TEXT})


def _conformer() -> Network:
    config = tr.Wav2Vec2ConformerConfig(
        **SIZES, vocab_size=32, conv_dim=(32, 32), conv_stride=(5, 2), conv_kernel=(10, 3),
        num_feat_extract_layers=2, num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=4,
        position_embeddings_type="relative", conv_depthwise_kernel_size=7)
    return speech(tr.Wav2Vec2ConformerModel(config), {"input_values": torch.randn(BATCH, 800)},
                  {0: "batch"})


def _sam() -> Network:
    config = tr.SamMaskDecoderConfig(hidden_size=32, mlp_dim=64, num_hidden_layers=2, num_attention_heads=4,
                                     iou_head_hidden_dim=32)
    from transformers.models.sam.modeling_sam import SamMaskDecoder

    def call(m, image, positions, sparse, dense):
        return m(image_embeddings=image, image_positional_embeddings=positions,
                 sparse_prompt_embeddings=sparse, dense_prompt_embeddings=dense, multimask_output=True)[:2]
    feeds = {"image_embeddings": torch.randn(1, 32, 8, 8), "image_positions": torch.randn(1, 32, 8, 8),
             "sparse": torch.randn(1, 1, 3, 32), "dense": torch.randn(1, 32, 8, 8)}
    return Network(Wrapped(SamMaskDecoder(config), call), feeds, ["masks", "scores"],
                   {"sparse": {2: "points"}})


def _sam2() -> Network:
    from transformers.models.sam2.configuration_sam2 import Sam2MaskDecoderConfig
    from transformers.models.sam2.modeling_sam2 import Sam2MaskDecoder
    config = Sam2MaskDecoderConfig(hidden_size=32, mlp_dim=64, num_hidden_layers=2, num_attention_heads=4,
                                   iou_head_hidden_dim=32, dynamic_multimask_via_stability=False)

    def call(m, image, positions, sparse, dense, fine, finer):
        return m(image_embeddings=image, image_positional_embeddings=positions,
                 sparse_prompt_embeddings=sparse, dense_prompt_embeddings=dense, multimask_output=True,
                 high_resolution_features=[fine, finer])[:2]
    feeds = {"image_embeddings": torch.randn(1, 32, 8, 8), "image_positions": torch.randn(1, 32, 8, 8),
             "sparse": torch.randn(1, 1, 3, 32), "dense": torch.randn(1, 32, 8, 8),
             "fine": torch.randn(1, 4, 32, 32), "finer": torch.randn(1, 8, 16, 16)}
    return Network(Wrapped(Sam2MaskDecoder(config), call), feeds, ["masks", "scores"],
                   {"sparse": {2: "points"}})


def _unet() -> Network:
    import diffusers
    model = diffusers.UNet2DConditionModel(
        sample_size=16, in_channels=4, out_channels=4, layers_per_block=1, block_out_channels=(32, 64),
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), norm_num_groups=32,
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"), cross_attention_dim=32, attention_head_dim=8)

    def call(m, sample, step, states):
        return m(sample, step, states).sample
    feeds = {"sample": torch.randn(BATCH, 4, 16, 16), "timestep": torch.tensor([10], dtype=torch.int64),
             "encoder_hidden_states": torch.randn(BATCH, LENGTH, 32)}
    return Network(Wrapped(model, call), feeds, ["out_sample"],
                   {"sample": {0: "batch"}, "encoder_hidden_states": {0: "batch"}})


def _vae(part: str) -> Network:
    import diffusers
    model = diffusers.AutoencoderKL(
        block_out_channels=(32, 64), down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2, latent_channels=4, norm_num_groups=32, sample_size=32)
    if part == "decoder":
        def decode(m, latent):
            return m.decode(latent).sample
        return Network(Wrapped(model, decode), {"latent_sample": torch.randn(BATCH, 4, 8, 8)}, ["sample"],
                       {"latent_sample": {0: "batch"}})

    def encode(m, sample):
        return m.encode(sample).latent_dist.mean
    return Network(Wrapped(model, encode), {"sample": torch.randn(BATCH, 3, 32, 32)}, ["latent"],
                   {"sample": {0: "batch"}})


def _diffused(model: nn.Module, more: dict[str, torch.Tensor]) -> Network:
    def call(m, sample, states, pooled, step, *extra):
        return m(hidden_states=sample, encoder_hidden_states=states, pooled_projections=pooled, timestep=step,
                 **dict(zip(more, extra, strict=True))).sample
    feeds = {"hidden_states": torch.randn(BATCH, 4, 16, 16) if not more else torch.randn(BATCH, 16, 4),
             "encoder_hidden_states": torch.randn(BATCH, LENGTH, 32),
             "pooled_projections": torch.randn(BATCH, 64), "timestep": torch.tensor([10.0] * BATCH), **more}
    return Network(Wrapped(model, call), feeds, ["out_sample"],
                   {} if more else {k: {0: "batch"} for k in feeds})


def _sd3(norm: str | None) -> Network:
    import diffusers
    return _diffused(diffusers.SD3Transformer2DModel(
        sample_size=16, patch_size=2, in_channels=4, num_layers=2, attention_head_dim=16,
        num_attention_heads=4,
        joint_attention_dim=32, caption_projection_dim=64, pooled_projection_dim=64, out_channels=4,
        pos_embed_max_size=16, qk_norm=norm), {})


def _flux() -> Network:
    import diffusers
    return _diffused(diffusers.FluxTransformer2DModel(
        patch_size=1, in_channels=4, num_layers=1, num_single_layers=1, attention_head_dim=16,
        num_attention_heads=4, joint_attention_dim=32, pooled_projection_dim=64, axes_dims_rope=(4, 6, 6)),
        {"img_ids": torch.randn(16, 3), "txt_ids": torch.randn(LENGTH, 3)})


NETWORKS: dict[str, Callable[[], Network]] = {
    "bert": lambda: encoder(tr.BertModel(tr.BertConfig(**SIZES, **WORDS)), segments=True),
    "roberta": lambda: encoder(tr.RobertaModel(tr.RobertaConfig(**SIZES, **WORDS))),
    "distilbert": lambda: encoder(tr.DistilBertModel(tr.DistilBertConfig(
        dim=64, n_layers=2, n_heads=4, hidden_dim=128, **WORDS))),
    "albert": lambda: encoder(tr.AlbertModel(tr.AlbertConfig(embedding_size=32, **SIZES, **WORDS)), True),
    "gpt2": lambda: decoder(_gpt2()),
    "gpt2_past": lambda: decoder(_gpt2(), past=True),
    "gpt_neox": lambda: decoder(_gpt_neox()),
    "gpt_neox_past": lambda: decoder(_gpt_neox(), past=True),
    "gptj": lambda: decoder(_gptj()),
    "t5_encoder": lambda: encoder(_t5().encoder),
    "t5_decoder": lambda: seq2seq_decoder(_t5().decoder, past=False),
    "t5_decoder_past": lambda: seq2seq_decoder(_t5().decoder, past=True),
    "bart_encoder": lambda: encoder(_bart().encoder),
    "bart_decoder": lambda: seq2seq_decoder(_bart().decoder, past=False),
    "bart_decoder_past": lambda: seq2seq_decoder(_bart().decoder, past=True),
    "vit": lambda: vision(tr.ViTModel(_vision(tr.ViTConfig))),
    "deit": lambda: vision(tr.DeiTModel(_vision(tr.DeiTConfig))),
    "swin": _swin,
    "clip_text": _clip_text,
    "clip_vision": lambda: vision(tr.CLIPVisionModel(_vision(tr.CLIPVisionConfig))),
    "llama": lambda: decoder(_llama()),
    "llama_past": lambda: decoder(_llama(), past=True),
    "llama_gqa_past": lambda: decoder(_llama(2), heads=2, past=True),
    "mistral": lambda: decoder(_mistral()),
    "qwen2_past": lambda: decoder(_qwen2(), heads=2, past=True),
    "phi": lambda: decoder(_phi()),
    "phi_past": lambda: decoder(_phi(), past=True),
    "whisper_encoder": lambda: speech(_whisper().encoder, {"input_features": torch.randn(BATCH, 16, 64)},
                                      {0: "batch"}),
    "whisper_decoder": lambda: seq2seq_decoder(_whisper().decoder, past=False),
    "whisper_decoder_past": lambda: seq2seq_decoder(_whisper().decoder, past=True),
    "conformer": _conformer,
    "sam_mask_decoder": _sam,
    "sam2_mask_decoder": _sam2,
    "unet": _unet,
    "vae_encoder": lambda: _vae("encoder"),
    "vae_decoder": lambda: _vae("decoder"),
    "sd3": lambda: _sd3(None),
    "sd35": lambda: _sd3("rms_norm"),
    "flux": _flux,
}


def export(name: str, exporter: str, folder: Path,
           networks: dict[str, Callable[[], Network]] = NETWORKS) -> None:
    torch.manual_seed(sum(map(ord, name)))
    np.random.seed(0)
    network = networks[name]()
    module = network.module.eval()
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.ndim == 1:
                parameter += 0.1 * torch.randn_like(parameter)
    if exporter == "script":
        for part in module.modules():
            if hasattr(part, "config") and hasattr(part.config, "_attn_implementation"):
                part.config._attn_implementation = "eager"
    path = folder / f"{name}.{exporter}.onnx"
    feeds = tuple(network.feeds.values())
    with torch.no_grad():
        if exporter == "script":
            torch.onnx.export(module, feeds, str(path), input_names=list(network.feeds),
                              output_names=network.outputs, dynamic_axes=network.dims, opset_version=17,
                              dynamo=False)
        else:
            shapes = tuple(dict.fromkeys(network.dims.get(n, {}), torch.export.Dim.DYNAMIC)
                           for n in network.feeds)
            torch.onnx.export(module, feeds, str(path), input_names=list(network.feeds),
                              output_names=network.outputs, dynamic_shapes=(shapes,), opset_version=18,
                              dynamo=True, external_data=False, verbose=False)
        answers = module(*feeds)
    answers = answers if isinstance(answers, tuple | list) else (answers,)
    np.savez(folder / f"{name}.npz", **{k: v.numpy() for k, v in network.feeds.items()},
             **{f"out:{k}": v.numpy() for k, v in zip(network.outputs, answers, strict=True)})


def main(folder: str, *names: str) -> None:
    Path(folder).mkdir(parents=True, exist_ok=True)
    for name in names or NETWORKS:
        for exporter in EXPORTERS:
            command = [sys.executable, __file__, "--one", folder, name, exporter]
            done = subprocess.run(command, capture_output=True, text=True, timeout=600)
            why = done.stderr.strip().splitlines()[-1:] if done.returncode else []
            print(name, exporter, why[0][:300] if why else "done", flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    if sys.argv[1] == "--one":
        export(sys.argv[3], sys.argv[4], Path(sys.argv[2]))
    else:
        main(*sys.argv[1:])
