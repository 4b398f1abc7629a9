"""Whisper: loaded, exported and optimized."""

from __future__ import annotations

import logging
import os
from typing import Any

import torch

from ....errors import InvalidArgument
from ...export import finishing, networks
from .whisper_decoder import WhisperDecoder
from .whisper_encoder import WhisperEncoder
from .whisper_encoder_decoder_init import WhisperEncoderDecoderInit

logger = logging.getLogger(__name__)

PRETRAINED_WHISPER_MODELS = [f"whisper-{size}" for size in (
    "tiny", "tiny.en", "base", "base.en", "small", "small.en", "medium", "medium.en", "large", "large-v2",
    "large-v3", "large-v3-turbo")]


class WhisperHelper:
    """Everything is a static method."""

    @staticmethod
    def get_onnx_path(output_dir: str, model_name_or_path: str, suffix: str = "", new_folder: bool = False
                      ) -> str:
        """Where a model lies; with `new_folder` in a folder of its own."""
        name = os.path.basename(os.path.normpath(model_name_or_path)) + suffix
        folder = os.path.join(output_dir, name) if new_folder else output_dir
        return os.path.join(folder, f"{name}.onnx")

    @staticmethod
    def load_model(model_name_or_path: str, model_impl: str, cache_dir: str, device: torch.device,
                   dtype: torch.dtype, merge_encoder_and_decoder_init: bool = True,
                   no_beam_search_op: bool = False, output_qk: bool = False) -> dict[str, torch.nn.Module]:
        """The modules to export, by name: `encoder` and `decoder`. Raises InvalidArgument for what is not
        exported here: OpenAI's own network, and the products of queries and keys."""
        from transformers import WhisperForConditionalGeneration

        if model_impl != "hf" or output_qk:
            raise InvalidArgument("Only transformers' network is exported, without attention's products",
                                  found=f"model_impl={model_impl}, output_qk={output_qk}",
                                  expected="hf, False", cure="set them so")
        network = networks.network(model_name_or_path, WhisperForConditionalGeneration,
                                   cache_dir=cache_dir or None).to(dtype).to(device)
        config = network.config
        first = (WhisperEncoderDecoderInit(config, network, model_impl, no_beam_search_op)
                 if merge_encoder_and_decoder_init else WhisperEncoder(config, network, model_impl))
        return {"encoder": first.eval(),
                "decoder": WhisperDecoder(config, network, model_impl, no_beam_search_op).eval()}

    @staticmethod
    def export_onnx(model: Any, onnx_model_path: str, provider: str, verbose: bool,
                    use_external_data_format: bool, use_fp16_inputs: bool, use_int32_inputs: bool,
                    use_encoder_hidden_states: bool, use_kv_cache_inputs: bool) -> None:
        """Write a module of `load_model`."""
        shared = (onnx_model_path, provider, verbose, use_external_data_format, use_fp16_inputs)
        if isinstance(model, WhisperEncoder):
            model.export_onnx(*shared)
        elif isinstance(model, WhisperEncoderDecoderInit):
            model.export_onnx(*shared, use_int32_inputs)
        else:
            model.export_onnx(*shared, use_int32_inputs, use_encoder_hidden_states, use_kv_cache_inputs)

    @staticmethod
    def optimize_onnx(onnx_model_path: str, optimized_model_path: str, is_float16: bool,
                      num_attention_heads: int, hidden_size: int, num_decoder_layers: int,
                      use_external_data_format: bool = False, use_gpu: bool = False, provider: str = "cpu",
                      is_decoder: bool = False, no_beam_search_op: bool = False,
                      use_decoder_masked_mha: bool = False, output_qk: bool = False) -> None:
        """Write a model as the optimizer makes it, of half floats where asked for."""
        from ...fusion_options import AttentionOpType, FusionOptions

        options = FusionOptions("bart")
        options.set_attention_op_type(AttentionOpType.MultiHeadAttention)
        finishing.optimize(onnx_model_path, optimized_model_path, "bart", num_attention_heads, hidden_size,
                           is_float16, use_external_data_format, options, use_gpu)
