"""`python -m orthrus.transformers.models.llama.convert_to_onnx`: a Llama or its like as ONNX.

In: a name of the hub, a folder of weights, or one with a configuration only, for random weights. Out: one
model that takes prompts and, with a cache, what follows them; optimized, of fewer bits as asked, held against
torch.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import Any

import torch

from ....shown import tell
from ...export import decoding, exporting, finishing
from ...measure.arguments import parser, switch, value
from ...measure.benchmark_helper import Precision, prepare_environment, setup_logger
from .llama_parity import verify_parity
from .llama_torch import setup_torch_model

torch_export_onnx_opset_version = 14
"""The version of ONNX's operators that onnxruntime's converter asks for; here it is the exporter's own."""
logger = logging.getLogger("")

_FLAGS = {
    "model_name": value("-m", "--model_name", required=True, help="name in the hub, or folder"),
    "input": value("-i", "--input", help="folder of the network, where it is no name of the hub"),
    "output": value("-o", "--output", default=os.path.join(".", "llama_onnx_models"),
                    help="folder to write to"),
    "precision": value("-p", "--precision", type=Precision, default=Precision.FLOAT32,
                       choices=list(Precision), help="of weights and activations"),
    "execution_provider": value("-e", "--execution_provider", default="cpu", help="where it will run"),
    "reexport": switch("-r", "--reexport", help="export again what is there"),
    "use_gqa": switch("--use_gqa", help="fuse attention to GroupQueryAttention"),
    "no_optimize": switch("--no_optimize", help="leave the exported model as it is"),
    "quantization_method": value("-q", "--quantization_method", default="", choices=["", "blockwise"],
                                 help="how 4-bit weights are made"),
    "block_size": value("--block_size", type=int, default=finishing.BLOCK, help="weights that share a scale"),
    "int4_accuracy_level": value("--int4_accuracy_level", type=int, help="accuracy_level of MatMulNBits"),
    "verbose": switch("-v", "--verbose", help="say more"),
    "use_dynamo_export": switch("-d", "--use_dynamo_export", help="export by torch.export, not by tracing"),
    "cache_dir": value("--cache_dir", default="./model_cache", help="folder of downloads"),
}


def _axes(input_names: Sequence[str], output_names: Sequence[str], past: str, total: str) -> dict[str, Any]:
    batch, new = "batch_size", "sequence_length"
    made: dict[str, Any] = {}
    for name in (*input_names, *output_names):
        if name.startswith("past"):
            made[name] = {0: batch, 2: past}
        elif name.startswith("present"):
            made[name] = {0: batch, 2: total}
        elif name == "attention_mask":
            made[name] = {0: batch, 1: total}
        else:
            made[name] = {0: batch, 1: new}
    return made


def get_model_dynamic_axes(input_names: list[str], output_names: list[str]) -> dict[str, Any]:
    """Open dimensions of a model for prompts."""
    return _axes(input_names, output_names, "past_sequence_length", "sequence_length")


def get_model_with_past_kv_dynamic_axes(input_names: list[str], output_names: list[str]) -> dict[str, Any]:
    """Open dimensions of a model for one token after a cache."""
    made = _axes(input_names, output_names, "past_sequence_length", "past_sequence_length + 1")
    for name in ("input_ids", "position_ids", "logits"):
        if name in made:
            made[name] = {0: "batch_size"}
    return made


def get_merged_model_dynamic_axes(input_names: list[str], output_names: list[str]) -> dict[str, Any]:
    """Open dimensions of a model for both."""
    return _axes(input_names, output_names, "past_sequence_length", "total_sequence_length")


def save_onnx_model(onnx_model: Any, output_path: str, data_path: str) -> None:
    """Write a model to a file and its weights to another beside it, which is called `data_path`."""
    import onnx

    onnx.save_model(onnx_model, output_path, save_as_external_data=True, size_threshold=1024,
                    location=os.path.basename(data_path))


def _export(args: Any, config: Any, llama: Any, dynamo: bool) -> str:
    path = os.path.join(args.output, f"{model_name(args)}_decoder_merged_model_fp32.onnx")
    if args.reexport or not os.path.exists(path):
        exporting.export(decoding.Decoder(llama), decoding.example(config, 2, 3, 5), decoding.outputs(config),
                         path, decoding.axes(config), dynamo=dynamo, external=True)
    return path


def model_name(args: Any) -> str:
    """What the files are called after."""
    return os.path.basename(os.path.normpath(args.model_name))


def run_dynamo_export(args: Any, l_config: Any, llama: Any, rank: int = 0, world_size: int = 1) -> str:
    """Write the network by torch.export, and answer the path."""
    return _export(args, l_config, llama, dynamo=True)


def run_torchscript_merged_export(args: Any, l_config: Any, llama: Any, rank: int = 0, world_size: int = 1
                                  ) -> str:
    """Write the network by tracing, and answer the path."""
    return _export(args, l_config, llama, dynamo=False)


def optimize_export(args: Any, config: Any, input_path: str, output_path: str, remove_model: bool = True,
                    world_size: int = 1, window_size: int = -1) -> None:
    """Write the model as the optimizer makes it, and with `remove_model` delete the first."""
    from ...fusion_options import AttentionOpType, FusionOptions

    options = FusionOptions("gpt2")
    if getattr(args, "use_gqa", False):
        options.set_attention_op_type(AttentionOpType.GroupQueryAttention)
    finishing.optimize(input_path, output_path, "gpt2", config.num_attention_heads, config.hidden_size,
                       external=True, options=options)
    if remove_model:
        remove_existing_model(input_path)


def convert_to_float16(args: Any, old_paths: list[str], rank: int = 0) -> list[str]:
    """Write each model with half floats, inputs and outputs too, and answer the paths."""
    made = []
    for path in old_paths:
        made.append(path.replace("fp32", "fp16"))
        finishing.convert(path, made[-1], Precision.FLOAT16, True, False)
    return made


def remove_existing_model(model_path: str) -> None:
    """Delete a model and the file of its weights."""
    exporting.remove(model_path)


def remove_existing_files(output_path: str) -> None:
    """Delete the models in a folder, and the files of their weights."""
    for file in os.listdir(output_path):
        if file.endswith((".onnx", ".onnx.data", ".onnx_data")):
            os.unlink(os.path.join(output_path, file))


def get_args() -> Any:
    """The command's flags."""
    return parser("Convert a Llama to ONNX.", more=_FLAGS).parse_args()


def main() -> None:
    """The command."""
    given = get_args()
    setup_logger(given.verbose)
    prepare_environment(given.cache_dir, given.output, False, given.execution_provider)
    location = given.input or given.model_name
    config, llama = setup_torch_model(given, location, False)
    export = run_dynamo_export if given.use_dynamo_export else run_torchscript_merged_export
    path = export(given, config, llama)
    if not given.no_optimize:
        optimized = path.replace("_fp32.onnx", "_opt_fp32.onnx")
        optimize_export(given, config, path, optimized, remove_model=False)
        path = optimized
    if given.precision is Precision.FLOAT16:
        path, = convert_to_float16(given, [path])
    elif given.precision is not Precision.FLOAT32:
        target = path.replace("fp32", str(given.precision))
        finishing.convert(path, target, given.precision, True, block_size=given.block_size,
                          accuracy_level=given.int4_accuracy_level)
        path = target
    given.onnx_model_path, given.precision = path, str(given.precision)
    for given.use_past_kv in (False, True):
        with torch.no_grad():
            verify_parity(given, location, False, {}, llama, config)
    tell(f"The model is {path}")


if __name__ == "__main__":
    main()
