"""`python -m orthrus.transformers.models.gpt2.convert_to_onnx`: a GPT-2 as ONNX.

In: a name of the hub, a folder of weights, or one with a configuration only, for random weights. Out: the
model, optimized and of fewer bits as asked, held against torch; a row of what was found in a CSV file.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from typing import Any

import torch

from ....errors import Fail
from ....shown import tell
from ...export import exporting, finishing, networks
from ...measure.arguments import parser, switch, value, values
from ...measure.benchmark_helper import Precision, prepare_environment, setup_logger
from ...measure.results import write_rows
from .gpt2_helper import DEFAULT_TOLERANCE, MODEL_CLASSES, PRETRAINED_GPT2_MODELS, Gpt2Helper

logger = logging.getLogger("")

MODEL_FLAGS = {
    "model_name_or_path": value("-m", "--model_name_or_path", required=True,
                                help=f"folder, or name in the hub: {', '.join(PRETRAINED_GPT2_MODELS)}"),
    "model_class": value("--model_class", default="GPT2LMHeadModel", choices=list(MODEL_CLASSES),
                         help="what the network computes"),
    "cache_dir": value("--cache_dir", default=os.path.join(".", "cache_models"), help="folder of downloads"),
    "optimize_onnx": switch("-o", "--optimize_onnx", help="optimize the model"),
    "precision": value("-p", "--precision", type=Precision, default=Precision.FLOAT32,
                       choices=list(Precision), help="of weights and activations"),
    "stage": value("--stage", type=int, default=0, choices=(0, 1, 2),
                   help="1: for the first token, 2: for the others, 0: for both"),
}
_FLAGS = {
    **MODEL_FLAGS,
    "output": value("--output", default=os.path.join(".", "onnx_models"),
                    help="folder, or path that ends in .onnx"),
    "tolerance": value("--tolerance", type=float, default=0, help="difference from torch that is allowed"),
    "test_cases": value("-t", "--test_cases", type=int, default=1000, help="random inputs to compare"),
    "test_runs": value("-r", "--test_runs", type=int, default=10, help="times to do so"),
    "use_external_data_format": switch("-e", "--use_external_data_format", help="write the weights apart"),
    "overwrite": switch("--overwrite", help="export again what is there"),
    "use_int64_inputs": switch("--use_int64_inputs", help="take tokens, positions and mask as int64"),
    "auto_mixed_precision": switch("-a", "--auto_mixed_precision", help="choose what stays float32"),
    "keep_io_types": switch("--keep_io_types", help="inputs and outputs stay float32"),
    "io_block_list": values("--io_block_list", default=[], help="inputs and outputs that stay float32"),
    "op_block_list": values("--op_block_list", default=[], help="operators that stay float32"),
    "node_block_list": values("--node_block_list", default=[], help="nodes that stay float32"),
    "force_fp16_initializers": switch("--force_fp16_initializers", help="convert all constants"),
}
_WITHOUT_MASK = "NoPadding"


def parse_arguments(argv: Sequence[str] | None = None) -> Any:
    """The command's flags."""
    stage = (("-s", *_FLAGS["stage"][0]), _FLAGS["stage"][1])
    return parser("Convert a GPT-2 to ONNX.", "use_gpu", "provider", "verbose",
                  more={**_FLAGS, "stage": stage}).parse_args(argv)


def get_onnx_model_size(onnx_path: str, use_external_data_format: bool) -> int:
    """Bytes of a model, those of its weights apart included."""
    apart = f"{onnx_path}.data"
    more = os.path.getsize(apart) if use_external_data_format and os.path.exists(apart) else 0
    return os.path.getsize(onnx_path) + more


def get_latency_name(batch_size: int, sequence_length: int, past_sequence_length: int) -> str:
    """The column of a mean latency."""
    return (f"average_latency(batch_size={batch_size},sequence_length={sequence_length},"
            f"past_sequence_length={past_sequence_length})")


def _half_parameters(given: Any) -> dict[str, Any]:
    """What `convert_float_to_float16` is asked for."""
    keep = given.io_block_list or bool(given.keep_io_types)
    made: dict[str, Any] = {"keep_io_types": keep, "force_fp16_initializers": given.force_fp16_initializers}
    for name in ("op_block_list", "node_block_list"):
        if getattr(given, name):
            made[name] = getattr(given, name)
    return made


def converted(given: Any, network: Any, paths: dict[str, str]) -> str:
    """Make of the exported model what is asked for, and answer its path."""
    config, precision = network.config, given.precision
    external = given.use_external_data_format
    path = paths["raw"]
    half = precision is Precision.FLOAT16
    if given.optimize_onnx:
        path = paths["fp16" if half else "fp32"]
        Gpt2Helper.optimize_onnx(paths["raw"], path, half, config.num_attention_heads, config.hidden_size,
                                 external, given.auto_mixed_precision, given.stage,
                                 **(_half_parameters(given) if half else {}))
    if precision is Precision.FLOAT32 or (half and given.optimize_onnx):
        return path
    target = paths.get(str(precision), paths["raw"].removesuffix(".onnx") + f"_{precision}.onnx")
    more = _half_parameters(given) if half else {}
    keep = more.pop("keep_io_types", True)
    finishing.convert(path, target, precision, external, keep, **more)
    return target


def main(argv: Sequence[str] | None = None, experiment_name: str = "", run_id: str = "0",
         csv_filename: str = "gpt2_parity_results.csv") -> dict[str, Any]:
    """The command; answers the row of results. Raises Fail where a float32 model differs from torch by more
    than the tolerance."""
    given = parse_arguments(argv)
    setup_logger(given.verbose)
    to_file = given.output.endswith(".onnx")
    folder = os.path.dirname(given.output) or "." if to_file else given.output
    prepare_environment(given.cache_dir, folder, given.use_gpu, given.provider)
    kind, _, padded = MODEL_CLASSES[given.model_class]
    network = networks.network(given.model_name_or_path, kind, cache_dir=given.cache_dir)
    device = torch.device("cuda:0" if given.use_gpu else "cpu")
    network.to(device)
    integers = torch.int64 if given.use_int64_inputs else torch.int32
    typed = {f"{name}_dtype": integers for name in ("input_ids", "position_ids", "attention_mask")}
    paths = Gpt2Helper.get_onnx_paths(folder, given.model_name_or_path, given.model_class,
                                      new_folder=given.use_external_data_format, remove_existing=())
    if given.overwrite or not os.path.exists(paths["raw"]):
        Gpt2Helper.export_onnx(network, device, paths["raw"], given.verbose, given.use_external_data_format,
                               has_position_ids=padded, has_attention_mask=padded, **typed)
    path = converted(given, network, paths)
    if to_file:
        exporting.save(path, given.output, given.use_external_data_format)
        path = given.output
    tolerance = given.tolerance or DEFAULT_TOLERANCE.get(given.precision, DEFAULT_TOLERANCE[Precision.INT8])
    runner = exporting.session(path, given.use_gpu, given.provider)
    half = any(each.type == "tensor(float16)" for each in runner.get_inputs())
    shared = {"is_float16": half, "model_class": given.model_class, "has_position_ids": padded,
              "has_attention_mask": padded, **typed}
    found = Gpt2Helper.test_parity(runner, network, device, rtol=tolerance, atol=tolerance,
                                   test_cases_per_run=given.test_cases, total_runs=given.test_runs,
                                   stage=given.stage, **shared)
    latency = Gpt2Helper.test_performance(runner, network, device, total_runs=20, **shared)
    row = {"experiment": experiment_name, "run_id": run_id, "model_name": given.model_name_or_path,
           "model_class": given.model_class, "precision": str(given.precision), "onnx_path": path,
           "optimizer": given.optimize_onnx, "provider": runner.get_providers()[0], **found,
           "onnx_size_in_MB": round(get_onnx_model_size(path, given.use_external_data_format) / 2**20, 2),
           get_latency_name(8, 1, 32): round(latency, 3)}
    write_rows(csv_filename, list(row), [row], more=True)
    tell(f"{path}: {found['passed']} of {found['test_cases']} cases within {tolerance} of torch, the largest "
         f"difference {found['max_diff']:.3g}")
    if not found["parity"] and given.precision is Precision.FLOAT32:
        raise Fail("The converted model differs from torch", node=path, found=found["max_diff"],
                   expected=f"at most {tolerance}",
                   cure="convert without --optimize_onnx, or raise --tolerance")
    return row


if __name__ == "__main__":
    main()
