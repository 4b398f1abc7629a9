"""`python -m orthrus.transformers.models.whisper.convert_to_onnx`: a Whisper as ONNX.

In: a name of the hub, a folder of weights, or one with a configuration only, for random weights. Out: two
models, of the encoder with what the decoder takes of it, and of the decoder with its cache, held against
torch.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import Any

import torch

from ....shown import tell
from ...export import finishing
from ...measure.arguments import parser, switch, value
from ...measure.benchmark_helper import Precision, prepare_environment, setup_logger
from .whisper_helper import PRETRAINED_WHISPER_MODELS, WhisperHelper

logger = logging.getLogger("")

PROVIDERS = {"cpu": "CPUExecutionProvider"}
"""Where a model can be held against torch, by short name."""
_TOLERANCE = {Precision.FLOAT32: 1e-3, Precision.FLOAT16: 2e-1, Precision.INT8: 2.0, Precision.INT4: 4.0}
_FLAGS = {
    "model_name_or_path": value("-m", "--model_name_or_path", required=True,
                                help=f"folder, or name in the hub: {', '.join(PRETRAINED_WHISPER_MODELS)}"),
    "cache_dir": value("--cache_dir", default=os.path.join(".", "cache_models"), help="folder of downloads"),
    "output": value("--output", default=os.path.join(".", "onnx_models"), help="folder of the models"),
    "optimize_onnx": switch("-o", "--optimize_onnx", help="optimize the models"),
    "precision": value("-p", "--precision", type=Precision, default=Precision.FLOAT32,
                       choices=list(Precision), help="of weights and activations"),
    "verbose": switch("--verbose", help="say more"),
    "use_external_data_format": switch("-e", "--use_external_data_format", help="write the weights apart"),
    "overwrite": switch("-w", "--overwrite", help="export again what is there"),
    "use_int64_inputs": switch("--use_int64_inputs", help="take tokens as int64"),
    "no_beam_search_op": switch("--no_beam_search_op", help="the first model gives no first token"),
    "separate_encoder_and_decoder_init": switch("--separate_encoder_and_decoder_init",
                                                help="the first model is the encoder alone"),
    "accuracy_level": value("--accuracy_level", type=int, default=0, help="accuracy_level of MatMulNBits"),
    "quantize_symmetric": switch("--quantize_symmetric", help="4-bit weights without zero points"),
}


def parse_arguments(argv: Sequence[str] | None = None) -> Any:
    """The command's flags."""
    return parser("Convert a Whisper to ONNX.", more=_FLAGS).parse_args(argv)


def export_onnx_models(
        model_name_or_path: str, model_impl: str, cache_dir: str, output_dir: str, use_gpu: bool,
        use_external_data_format: bool, optimize_onnx: bool, precision: Any, verbose: bool,
        use_forced_decoder_ids: bool = False, merge_encoder_and_decoder_init: bool = True,
        no_beam_search_op: bool = False, use_decoder_masked_mha: bool = False, output_qk: bool = False,
        overwrite: bool = False, use_int32_inputs: bool = True, accuracy_level: int = 0,
        quantize_symmetric: bool = False, provider: str = "cpu", quant_method: str = "k_quant") -> list[str]:
    """Write the models and answer their paths; the log warns of one that differs from torch."""
    wanted, device = Precision(precision), torch.device("cuda" if use_gpu else "cpu")
    modules = WhisperHelper.load_model(model_name_or_path, model_impl, cache_dir, device, torch.float32,
                                       merge_encoder_and_decoder_init, no_beam_search_op, output_qk)
    paths = []
    for name, module in modules.items():
        path = WhisperHelper.get_onnx_path(output_dir, model_name_or_path, f"_{name}")
        if overwrite or not os.path.exists(path):
            WhisperHelper.export_onnx(module, path, provider, verbose, use_external_data_format, False,
                                      use_int32_inputs, False, True)
        config: Any = module.config
        half = wanted is Precision.FLOAT16
        if optimize_onnx:
            raw, path = path, WhisperHelper.get_onnx_path(output_dir, model_name_or_path,
                                                          f"_{name}_{wanted}_optimized")
            WhisperHelper.optimize_onnx(raw, path, half, config.encoder_attention_heads, config.d_model,
                                        config.decoder_layers, use_external_data_format, use_gpu, provider,
                                        name == "decoder", no_beam_search_op)
        if wanted in (Precision.INT8, Precision.INT4) or (half and not optimize_onnx):
            raw, path = path, WhisperHelper.get_onnx_path(output_dir, model_name_or_path, f"_{name}_{wanted}")
            finishing.convert(raw, path, wanted, use_external_data_format, symmetric=quantize_symmetric,
                              accuracy_level=accuracy_level)
        gap = module.verify_onnx(path, provider, False, *([use_int32_inputs] if name == "decoder"
                                                           or merge_encoder_and_decoder_init else []))
        if not gap <= _TOLERANCE[wanted]:
            logger.warning("%s differs from torch by %.3g", path, gap)
        tell(f"{path}: the largest difference from torch {gap:.3g}")
        paths.append(path)
    return paths


def main(argv: Sequence[str] | None = None) -> None:
    """The command."""
    given = parse_arguments(argv)
    setup_logger(given.verbose)
    prepare_environment(given.cache_dir, given.output, False)
    export_onnx_models(given.model_name_or_path, "hf", given.cache_dir, given.output, False,
                       given.use_external_data_format, given.optimize_onnx, given.precision, given.verbose,
                       merge_encoder_and_decoder_init=not given.separate_encoder_and_decoder_init,
                       no_beam_search_op=given.no_beam_search_op, overwrite=given.overwrite,
                       use_int32_inputs=not given.use_int64_inputs, accuracy_level=given.accuracy_level,
                       quantize_symmetric=given.quantize_symmetric)


if __name__ == "__main__":
    main()
