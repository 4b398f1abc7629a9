"""T5 and mT5: loaded, exported, optimized and compared."""

from __future__ import annotations

import logging
import os
from typing import Any

import torch

from ...export import finishing, networks
from .t5_decoder import T5Decoder, T5DecoderHelper, T5DecoderInit
from .t5_encoder_decoder_init import T5EncoderDecoderInit, T5EncoderDecoderInitHelper

logger = logging.getLogger(__name__)

PRETRAINED_T5_MODELS = ["t5-small", "t5-base", "t5-large", "t5-3b", "t5-11b"]
PRETRAINED_MT5_MODELS = [f"google/mt5-{size}" for size in ("small", "base", "large", "xl", "xxl")]
_FLOAT_OPERATORS = ["Add", "SimplifiedLayerNormalization", "SkipSimplifiedLayerNormalization", "Relu"]


class T5Helper:
    """Everything is a static method."""

    @staticmethod
    def get_onnx_path(output_dir: str, model_name_or_path: str, suffix: str = "", new_folder: bool = False
                      ) -> str:
        """Where a model lies; with `new_folder` in a folder of its own."""
        name = model_name_or_path
        if os.path.isdir(name):
            name = os.path.basename(os.path.normpath(name))
        name += suffix
        folder = os.path.join(output_dir, name) if new_folder else output_dir
        return os.path.join(folder, f"{name}.onnx")

    @staticmethod
    def load_model(model_name_or_path: str, cache_dir: str, device: torch.device, model_type: str = "t5",
                   state_dict_path: str = "", encoder_decoder_init: bool = False
                   ) -> dict[str, T5EncoderDecoderInit | T5Decoder]:
        """The modules to export, by name: `encoder`, or `encoder_decoder_init`, and `decoder`.
        `state_dict_path`: weights that stand in for the network's."""
        from transformers import MT5ForConditionalGeneration, T5ForConditionalGeneration

        kind = {"t5": T5ForConditionalGeneration, "mt5": MT5ForConditionalGeneration}[model_type]
        network = networks.network(model_name_or_path, kind, cache_dir=cache_dir or None)
        if state_dict_path:
            network.load_state_dict(torch.load(state_dict_path, map_location="cpu", weights_only=True))
        network.to(device)
        config = network.config
        first = T5EncoderDecoderInit(network.encoder, network.decoder, network.lm_head, config,
                                     output_cross_only=not encoder_decoder_init)
        return {"encoder_decoder_init" if encoder_decoder_init else "encoder": first.eval(),
                "decoder": T5Decoder(network.decoder, network.lm_head, config).eval()}

    @staticmethod
    def export_onnx(model: T5Decoder | T5EncoderDecoderInit, device: torch.device, onnx_model_path: str,
                    verbose: bool = True, use_external_data_format: bool = False,
                    use_decoder_input_ids: bool = True, use_int32_inputs: bool = False) -> None:
        """Write a module of `load_model`."""
        if isinstance(model, T5EncoderDecoderInit):
            T5EncoderDecoderInitHelper.export_onnx(model, device, onnx_model_path, use_decoder_input_ids,
                                                   verbose, use_external_data_format, use_int32_inputs)
        else:
            T5DecoderHelper.export_onnx(model, device, onnx_model_path, verbose, use_external_data_format,
                                        use_int32_inputs)

    @staticmethod
    def auto_mixed_precision(onnx_model: Any, op_block_list: list[str] | None = None,
                             force_fp16_logits: bool = False, use_symbolic_shape_infer: bool = True
                             ) -> dict[str, Any]:
        """Let an `OnnxModel` compute in half floats but for these operators and, without
        `force_fp16_logits`, the product that makes the logits; answers what was asked of
        `convert_float_to_float16`."""
        graph = onnx_model.model.graph
        last = [] if force_fp16_logits else [node.name for node in graph.node if "logits" in node.output]
        parameters = {"keep_io_types": [] if force_fp16_logits else ["logits"],
                      "op_block_list": op_block_list or list(_FLOAT_OPERATORS), "node_block_list": last,
                      "force_fp16_initializers": force_fp16_logits}
        onnx_model.convert_float_to_float16(use_symbolic_shape_infer=use_symbolic_shape_infer, **parameters)
        return parameters

    @staticmethod
    def optimize_onnx(onnx_model_path: str, optimized_model_path: str, is_float16: bool,
                      num_attention_heads: int, hidden_size: int, use_external_data_format: bool = False,
                      auto_mixed_precision: bool = True, use_gpu: bool = False, force_fp16_io: bool = False
                      ) -> None:
        """Write a model as the optimizer makes it, of half floats where asked for."""
        from ...optimizer import optimize_model

        if not is_float16 or not auto_mixed_precision:
            finishing.optimize(onnx_model_path, optimized_model_path, "t5", num_attention_heads, hidden_size,
                               is_float16, use_external_data_format, use_gpu=use_gpu,
                               **({"keep_io_types": not force_fp16_io} if is_float16 else {}))
            return
        model = optimize_model(onnx_model_path, "t5", num_heads=num_attention_heads, hidden_size=hidden_size,
                               opt_level=0, use_gpu=use_gpu)
        T5Helper.auto_mixed_precision(model, force_fp16_logits=force_fp16_io)
        model.save_model_to_file(optimized_model_path, use_external_data_format)

    @staticmethod
    def verify_onnx(model: T5Decoder | T5EncoderDecoderInit | T5DecoderInit, ort_session: Any,
                    device: torch.device, use_int32_inputs: bool) -> float:
        """The largest difference from torch over random inputs."""
        if isinstance(model, T5EncoderDecoderInit):
            return T5EncoderDecoderInitHelper.verify_onnx(model, ort_session, device, use_int32_inputs)
        return T5DecoderHelper.verify_onnx(model, ort_session, device, use_int32_inputs)
