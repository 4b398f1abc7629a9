"""`python -m orthrus.transformers.models.t5.convert_to_onnx`: a T5 or mT5 as ONNX.

In: a name of the hub, a folder of weights, or one with a configuration only, for random weights. Out: two
models, of the encoder and of the decoder with its cache, held against torch.
"""

from __future__ import annotations

import logging
import os
from typing import Any

import torch

from ....shown import tell
from ...export import exporting, finishing
from ...measure.arguments import parser, switch, value
from ...measure.benchmark_helper import Precision, prepare_environment, setup_logger
from .t5_helper import PRETRAINED_MT5_MODELS, PRETRAINED_T5_MODELS, T5Helper

logger = logging.getLogger("")

_TOLERANCE = {Precision.FLOAT32: 1e-3, Precision.FLOAT16: 2e-1}
_FLAGS = {
    "model_name_or_path": value("-m", "--model_name_or_path", default=PRETRAINED_T5_MODELS[0],
                                help=f"folder, or name in the hub: {', '.join(PRETRAINED_T5_MODELS)}, "
                                     f"{', '.join(PRETRAINED_MT5_MODELS)}"),
    "model_type": value("--model_type", default="t5", choices=["t5", "mt5"], help="the network's type"),
    "cache_dir": value("--cache_dir", default=os.path.join(".", "cache_models"), help="folder of downloads"),
    "output": value("--output", default=os.path.join(".", "onnx_models"), help="folder of the models"),
    "optimize_onnx": switch("-o", "--optimize_onnx", help="optimize the models"),
    "precision": value("-p", "--precision", default="fp32", choices=["fp32", "fp16"],
                       help="of weights and activations"),
    "verbose": switch("--verbose", help="say more"),
    "use_external_data_format": switch("-e", "--use_external_data_format", help="write the weights apart"),
    "use_decoder_start_token": switch("-s", "--use_decoder_start_token",
                                      help="the first token is the configuration's, not an input"),
    "overwrite": switch("-w", "--overwrite", help="export again what is there"),
    "disable_auto_mixed_precision": switch("--disable_auto_mixed_precision", help="convert all to float16"),
    "force_fp16_io": switch("--force_fp16_io", help="inputs and outputs are float16 too"),
    "use_int64_inputs": switch("--use_int64_inputs", help="take tokens and mask as int64"),
    "state_dict_path": value("--state_dict_path", default="", help="weights that stand in for the network's"),
    "encoder_decoder_init": switch("--encoder_decoder_init",
                                   help="the first model gives the first token too"),
}


def parse_arguments() -> Any:
    """The command's flags."""
    return parser("Convert a T5 to ONNX.", "use_gpu", more=_FLAGS).parse_args()


def export_onnx_models(model_name_or_path: str, cache_dir: str, output_dir: str, use_gpu: bool = False,
                       use_external_data_format: bool = False, optimize_onnx: bool = False,
                       precision: str = Precision.FLOAT32.value, verbose: bool = False,
                       use_decoder_start_token: bool = False, overwrite: bool = False,
                       disable_auto_mixed_precision: bool = False, use_int32_inputs: bool = True,
                       model_type: str = "t5", state_dict_path: str = "", encoder_decoder_init: bool = False,
                       force_fp16_io: bool = False, shape_infer_before_optimization: bool = False
                       ) -> list[str]:
    """Write the models and answer their paths; the log warns of one that differs from torch.
    `shape_infer_before_optimization` changes nothing: the optimizer infers shapes itself."""
    device = torch.device("cuda" if use_gpu else "cpu")
    wanted = Precision(precision)
    modules = T5Helper.load_model(model_name_or_path, cache_dir, device, model_type, state_dict_path,
                                  encoder_decoder_init)
    paths = []
    for name, module in modules.items():
        path = T5Helper.get_onnx_path(output_dir, model_name_or_path, f"_{name}", False)
        if overwrite or not os.path.exists(path):
            T5Helper.export_onnx(module, device, path, verbose, use_external_data_format,
                                 not use_decoder_start_token, use_int32_inputs)
        if optimize_onnx or wanted is not Precision.FLOAT32:
            target = T5Helper.get_onnx_path(output_dir, model_name_or_path, f"_{name}_{precision}", False)
            if overwrite or not os.path.exists(target):
                _made(module, path, target, wanted, optimize_onnx, use_external_data_format,
                      not disable_auto_mixed_precision, use_gpu, force_fp16_io)
            path = target
        gap = T5Helper.verify_onnx(module, exporting.session(path, use_gpu), device, use_int32_inputs)
        if gap > _TOLERANCE[wanted]:
            logger.warning("%s differs from torch by %.3g", path, gap)
        tell(f"{path}: the largest difference from torch {gap:.3g}")
        paths.append(path)
    return paths


def _made(module: Any, path: str, target: str, precision: Precision, optimize: bool, external: bool,
          mixed: bool, use_gpu: bool, half_inputs: bool) -> None:
    half, config = precision is Precision.FLOAT16, module.config
    if optimize:
        T5Helper.optimize_onnx(path, target, half, config.num_heads, config.hidden_size, external, mixed,
                               use_gpu, half_inputs)
    else:
        finishing.convert(path, target, precision, external, not half_inputs)


def main() -> None:
    """The command."""
    given = parse_arguments()
    setup_logger(given.verbose)
    prepare_environment(given.cache_dir, given.output, given.use_gpu)
    export_onnx_models(given.model_name_or_path, given.cache_dir, given.output, given.use_gpu,
                       given.use_external_data_format, given.optimize_onnx, given.precision, given.verbose,
                       given.use_decoder_start_token, given.overwrite, given.disable_auto_mixed_precision,
                       not given.use_int64_inputs, given.model_type, given.state_dict_path,
                       given.encoder_decoder_init, given.force_fp16_io)


if __name__ == "__main__":
    main()
