"""`python -m orthrus.transformers.models.gpt2.benchmark_gpt2`: milliseconds of a GPT-2's run, and torch's.

In: a network, batches, numbers of new tokens and of tokens in the cache. Out: a row for each in a CSV file.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import datetime
from itertools import product
from typing import Any

import torch

from ....shown import tell
from ...export import exporting, networks
from ...export.io_binding_helper import IOBindingHelper
from ...measure.arguments import parser, switch, value, values
from ...measure.benchmark_helper import create_onnxruntime_session, prepare_environment, setup_logger
from ...measure.results import write_rows
from .convert_to_onnx import MODEL_FLAGS, converted
from .gpt2_helper import MODEL_CLASSES, Gpt2Helper

_COLUMNS = ("model_name", "model_class", "stage", "environment_variables", "gpu", "precision", "optimizer",
            "torchscript", "batch_size", "sequence_length", "past_sequence_length", "disable_io_binding",
            "torch_latency", "onnxruntime_latency", "max_diff")
_FLAGS = {
    **MODEL_FLAGS,
    "onnx_dir": value("--onnx_dir", default=os.path.join(".", "onnx_models"), help="folder of the models"),
    "test_times": value("--test_times", type=int, default=100, help="runs"),
    "validate_onnx": switch("-v", "--validate_onnx", help="compare the results with torch's"),
    "torchscript": switch("--torchscript", help="trace torch's network"),
    "batch_sizes": values("-b", "--batch_sizes", type=int, default=[1], help="texts at once"),
    "sequence_lengths": values("--sequence_lengths", type=int, default=[1], help="new tokens"),
    "past_sequence_lengths": values("-s", "--past_sequence_lengths", type=int,
                                    default=[8, 16, 32, 64, 128, 256], help="tokens in the cache"),
    "result_csv": value("-r", "--result_csv", help="file of the results"),
    "include_copy_output_latency": switch("--include_copy_output_latency",
                                          help="count the copying of bound outputs"),
    "verbose": switch("--verbose", help="say more"),
    "output_torch_latency": switch("--output_torch_latency", help="measure torch too"),
    "disable_io_binding": switch("--disable_io_binding", help="do not bind inputs and outputs"),
}


def parse_arguments(argv: Sequence[str] | None = None) -> Any:
    """The command's flags."""
    return parser("Measure a GPT-2.", "use_gpu", "thread_num", more=_FLAGS).parse_args(argv)


def main(args: Any) -> str:
    """Measure what the flags say and answer the CSV file's path."""
    setup_logger(args.verbose)
    prepare_environment(args.cache_dir, args.onnx_dir, args.use_gpu)
    kind, _, padded = MODEL_CLASSES[args.model_class]
    network = networks.network(args.model_name_or_path, kind, cache_dir=args.cache_dir)
    config, device = network.config, torch.device("cuda:0" if args.use_gpu else "cpu")
    network.to(device)
    args.use_external_data_format = args.auto_mixed_precision = args.keep_io_types = False
    args.io_block_list, args.op_block_list, args.node_block_list = [], [], []
    args.force_fp16_initializers = False
    paths = Gpt2Helper.get_onnx_paths(args.onnx_dir, args.model_name_or_path, args.model_class)
    Gpt2Helper.export_onnx(network, device, paths["raw"], has_position_ids=padded, has_attention_mask=padded)
    runner = create_onnxruntime_session(converted(args, network, paths), args.use_gpu,
                                        num_threads=args.thread_num)
    half = any(each.type == "tensor(float16)" for each in runner.get_inputs())
    traced = Gpt2Helper.torchscript(network, config, device, padded, padded) if args.torchscript else network
    rows = []
    for batch, tokens, past in product(args.batch_sizes, args.sequence_lengths, args.past_sequence_lengths):
        inputs = Gpt2Helper.get_dummy_inputs(batch, past, tokens, config.num_attention_heads,
                                             config.hidden_size, config.n_layer, config.vocab_size, device,
                                             half, padded, padded)
        shapes = Gpt2Helper.get_output_shapes(batch, past, tokens, config, args.model_class)
        if args.disable_io_binding:
            found, latency = Gpt2Helper.onnxruntime_inference(runner, inputs, args.test_times)
        else:
            buffers = IOBindingHelper.get_output_buffers(runner, shapes, device)
            found, latency = Gpt2Helper.onnxruntime_inference_with_binded_io(
                runner, inputs, buffers, shapes, args.test_times,
                include_copy_output_latency=args.include_copy_output_latency)
        row = {"model_name": args.model_name_or_path, "model_class": args.model_class, "stage": args.stage,
               "gpu": args.use_gpu, "precision": args.precision, "optimizer": args.optimize_onnx,
               "torchscript": args.torchscript, "batch_size": batch, "sequence_length": tokens,
               "past_sequence_length": past, "disable_io_binding": args.disable_io_binding,
               "onnxruntime_latency": f"{latency:.2f}"}
        if args.validate_onnx or args.output_torch_latency:
            runs = args.test_times if args.output_torch_latency else 1
            expected, spent = Gpt2Helper.pytorch_inference(traced, inputs, runs)
            row["max_diff"] = f"{exporting.difference(expected, found):.3g}"
            row["torch_latency"] = f"{spent:.2f}" if args.output_torch_latency else ""
        rows.append(row)
        tell(f"batch_size={batch}, sequence_length={tokens}, past_sequence_length={past}: {latency:.2f} ms")
    path = args.result_csv or f"benchmark_result_{datetime.now():%Y%m%d-%H%M%S}.csv"
    write_rows(path, _COLUMNS, rows)
    return path


if __name__ == "__main__":
    tell(f"Results are saved to {main(parse_arguments())}")
