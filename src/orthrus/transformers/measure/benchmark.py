"""`python -m orthrus.transformers.benchmark`: networks of transformers, side by side on engines.

In: names of the hub, folders of weights, or folders with a configuration only, for random weights; batches
and lengths. Out: tables of milliseconds, one row a measurement and one a setting. The engine `onnxruntime` is
this runtime, under the name that the command has for it; `--versus_onnxruntime` adds the other.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import product
from typing import Any

from ...errors import InvalidArgument
from ...shown import tell
from .arguments import parser, switch, value, values
from .benchmark_helper import (
    ConfigModifier,
    OptimizerInfo,
    Precision,
    create_onnxruntime_session,
    get_latency_result,
    inference_ort,
    inference_ort_with_io_binding,
    output_details,
    output_fusion_statistics,
    output_summary,
    prepare_environment,
    providers_of,
    set_random_seed,
    setup_logger,
    timed,
)
from .bert_perf_test import create_session
from .huggingface_models import MODEL_CLASSES, MODELS, described
from .machine_info import cores

logger = logging.getLogger("")
cpu_count = cores()
_ENGINES = ("onnxruntime", "torch", "torch2", "torchscript", "tensorflow")
_WARM = 3
_FLAGS = {
    "models": values("-m", "--models", default=["bert-base-cased", "roberta-base"],
                     help="names in the hub, or folders; known: " + ", ".join(MODELS)),
    "model_source": value("--model_source", default="pt", choices=["pt", "tf"],
                          help="framework of the weights"),
    "model_class": value("--model_class", choices=MODEL_CLASSES, help="class of transformers"),
    "engines": values("-e", "--engines", default=["onnxruntime"], choices=_ENGINES, help="what to measure"),
    "versus_onnxruntime": switch("--versus_onnxruntime", help="measure onnxruntime too, on the same file"),
    "cache_dir": value("-c", "--cache_dir", default=os.path.join(".", "cache_models"),
                       help="folder of downloads"),
    "onnx_dir": value("--onnx_dir", default=os.path.join(".", "onnx_models"), help="folder of the models"),
    "precision": value("-p", "--precision", type=Precision, default=Precision.FLOAT32,
                       choices=list(Precision), help="of weights and activations"),
    "verbose": switch("--verbose", help="say more"),
    "overwrite": switch("--overwrite", help="export again what is there"),
    "optimizer_info": value("-o", "--optimizer_info", type=OptimizerInfo, default=OptimizerInfo.BYSCRIPT,
                            choices=list(OptimizerInfo), help="what optimizes the model"),
    "validate_onnx": switch("-v", "--validate_onnx", help="compare the results with torch's"),
    "fusion_csv": value("-f", "--fusion_csv", help="file for counts of fused operators"),
    "detail_csv": value("-d", "--detail_csv", help="file for a row a measurement"),
    "result_csv": value("-r", "--result_csv", help="file for a row a setting"),
    "input_counts": values("-i", "--input_counts", type=int, default=[1], choices=(1, 2, 3),
                           help="how many inputs the model has"),
    "test_times": value("-t", "--test_times", type=int, default=100, help="runs"),
    "batch_sizes": values("-b", "--batch_sizes", type=int, default=[1], help="rows"),
    "sequence_lengths": values("-s", "--sequence_lengths", type=int, default=[4, 8, 16, 32, 64, 128, 256],
                               help="tokens"),
    "disable_ort_io_binding": switch("--disable_ort_io_binding", help="do not bind inputs and outputs"),
    "num_threads": values("-n", "--num_threads", type=int, default=[0], help="threads; 0: one a core"),
    "force_num_layers": value("--force_num_layers", type=int, help="layers to build the network with"),
    "enable_arm64_bfloat16_fastmath_mlas_gemm": switch("--enable_arm64_bfloat16_fastmath_mlas_gemm",
                                                       help="products of bfloat16 on ARM"),
    "use_mask_index": switch("--use_mask_index", help="masks as lengths, for padding behind the text"),
}


def _row(engine: str, version: str, name: str, precision: Any, optimizer: Any, inputs: int, threads: int,
         shape: tuple[int, int], modifier: Any, use_gpu: bool, providers: Any = "NA") -> dict[str, Any]:
    """What a result has beside its times."""
    return {"engine": engine, "version": version, "providers": providers,
            "device": "cuda" if use_gpu else "cpu", "optimizer": optimizer, "precision": precision,
            "io_binding": "", "model_name": name, "inputs": inputs, "threads": threads,
            "batch_size": shape[0], "sequence_length": shape[1],
            "custom_layer_num": modifier.get_layer_num(), "datetime": str(datetime.now())}


def run_onnxruntime(use_gpu: bool, provider: str | None, model_names: Sequence[str], model_class: str | None,
                    config_modifier: Any, precision: Precision, num_threads: Sequence[int],
                    batch_sizes: Sequence[int], sequence_lengths: Sequence[int], repeat_times: int,
                    input_counts: Sequence[int], optimizer_info: OptimizerInfo, validate_onnx: bool,
                    cache_dir: str, onnx_dir: str, verbose: bool, overwrite: bool,
                    disable_ort_io_binding: bool, use_raw_attention_mask: bool,
                    model_fusion_statistics: dict[str, Any], model_source: str,
                    enable_arm64_bfloat16_fastmath_mlas_gemm: bool, args: Any) -> list[dict[str, Any]]:
    """Rows of results of this runtime. Raises InvalidArgument for weights of TensorFlow."""
    from ..export import networks
    from ..export.onnx_exporter import create_onnxruntime_input, export_onnx_model_from_pt

    if model_source != "pt":
        raise InvalidArgument("transformers has no networks of TensorFlow any more", found=model_source,
                              expected="pt", cure="leave out --model_source")
    results = []
    for name, count in product(model_names, input_counts):
        config = networks.configuration(name, cache_dir)
        inputs, opset, external, kind = described(name, config.model_type)
        if count > len(inputs):
            continue
        path, valid, vocabulary, longest = export_onnx_model_from_pt(
            name, opset, external, kind, model_class, config_modifier, cache_dir, onnx_dir, inputs[:count],
            use_gpu, precision, optimizer_info, validate_onnx, use_raw_attention_mask, overwrite,
            model_fusion_statistics, _options(kind, args))
        if valid is False:
            logger.warning("%s differs from torch", path)
        for runtime, threads in product(_runtimes(args), num_threads):
            session = _session(runtime, path, use_gpu, provider, threads, verbose,
                               enable_arm64_bfloat16_fastmath_mlas_gemm)
            known = {each.name for each in session.get_inputs()}
            for shape in _shapes(batch_sizes, sequence_lengths, longest, kind):
                feed = create_onnxruntime_input(vocabulary, *shape, inputs[:count], config)
                feed = {each: array for each, array in feed.items() if each in known}
                row = _row(runtime.__name__, runtime.__version__, name, precision, optimizer_info, count,
                           threads, shape, config_modifier, use_gpu, ",".join(session.get_providers()))
                if disable_ort_io_binding:
                    found = inference_ort(session, feed, row, repeat_times, shape[0], _WARM)
                else:
                    outputs = session.run(None, feed)
                    found = inference_ort_with_io_binding(
                        session, feed, row, repeat_times, [each.name for each in session.get_outputs()],
                        outputs, [], [], shape[0], "cpu", warm_up_repeat=_WARM)
                results.append(_told(found))
    return results


def _runtimes(args: Any) -> Iterator[Any]:
    import orthrus

    yield orthrus
    if getattr(args, "versus_onnxruntime", False):
        import onnxruntime

        yield onnxruntime


def _session(runtime: Any, path: str, use_gpu: bool, provider: str | None, threads: int, verbose: bool,
             fast: bool) -> Any:
    if runtime.__name__ == "onnxruntime":
        return create_session(path, use_gpu, provider, threads, engine="onnxruntime")
    return create_onnxruntime_session(path, use_gpu, provider, num_threads=threads, verbose=verbose,
                                      enable_mlas_gemm_fastmath_arm64_bfloat16=fast)


def _options(kind: str, args: Any) -> Any:
    from ..fusion_options import FusionOptions

    made = FusionOptions(kind)
    made.use_raw_attention_mask(not getattr(args, "use_mask_index", False))
    return made


def _shapes(batches: Sequence[int], lengths: Sequence[int], longest: int, kind: str
            ) -> Iterator[tuple[int, int]]:
    """Batch and length of each measurement; an image has one length, and no text is longer than it may be."""
    fitting = lengths[:1] if kind in ("vit", "swin") else [each for each in lengths if each <= longest]
    yield from product(batches, fitting)


def _told(row: dict[str, Any]) -> dict[str, Any]:
    tell(f"{row['engine']} {row['model_name']} b{row['batch_size']} s{row['sequence_length']} "
         f"threads={row['threads']}: {row['average_latency_ms']} ms")
    return row


def run_pytorch(use_gpu: bool, model_names: Sequence[str], model_class: str | None, config_modifier: Any,
                precision: Precision, num_threads: Sequence[int], batch_sizes: Sequence[int],
                sequence_lengths: Sequence[int], repeat_times: int, torchscript: bool, torch2: bool,
                cache_dir: str, verbose: bool) -> list[dict[str, Any]]:
    """Rows of results of torch: as it is, traced, or compiled."""
    import torch

    from ..export.onnx_exporter import create_onnxruntime_input, load_pt_model
    from ..export.quantize_helper import QuantizeHelper

    engine = "torchscript" if torchscript else "torch2" if torch2 else "torch"
    device = torch.device("cuda:0" if use_gpu else "cpu")
    results, before = [], torch.get_num_threads()
    for name in model_names:
        config, network = load_pt_model(name, model_class, cache_dir, config_modifier)
        inputs, _, _, kind = described(name, config.model_type)
        if precision is Precision.FLOAT16:
            network.half()
        elif precision is Precision.INT8:
            network = QuantizeHelper.quantize_torch_model(network)
        network.to(device)
        longest = getattr(config, "max_position_embeddings", None) or max(sequence_lengths)
        for threads, shape in product(num_threads, list(_shapes(batch_sizes, sequence_lengths, longest,
                                                                kind))):
            torch.set_num_threads(threads or cpu_count)
            arrays = create_onnxruntime_input(getattr(config, "vocab_size", 0) or 2, *shape, inputs[:1],
                                              config)
            given = torch.from_numpy(next(iter(arrays.values()))).to(device)
            run: Any = network
            if torchscript:
                run = torch.jit.trace(network, given, check_trace=False, strict=False)
            elif torch2:
                run = torch.compile(network)
            with torch.no_grad():
                times = timed(lambda run=run, given=given: run(given),  # type: ignore[misc]
                              repeat_times, _WARM)
            row = _row(engine, torch.__version__, name, precision, "", 1, threads, shape, config_modifier,
                       use_gpu)
            results.append(_told({**row, **get_latency_result(times, shape[0])}))
    torch.set_num_threads(before)
    return results


def parse_arguments() -> Any:
    """The command's flags."""
    return parser("Measure networks of transformers.", "use_gpu", "provider", more=_FLAGS).parse_args()


def main() -> None:
    """The command."""
    given = parse_arguments()
    setup_logger(given.verbose)
    if "tensorflow" in given.engines:
        raise SystemExit("transformers has no networks of TensorFlow any more")
    prepare_environment(given.cache_dir, given.onnx_dir, given.use_gpu, given.provider)
    providers_of(given.use_gpu, given.provider)
    set_random_seed()
    threads = [count or cpu_count for count in given.num_threads]
    modifier, results, fused = ConfigModifier(given.force_num_layers), [], dict[str, Any]()
    for engine in given.engines:
        if engine == "onnxruntime":
            results += run_onnxruntime(
                given.use_gpu, given.provider, given.models, given.model_class, modifier, given.precision,
                threads, given.batch_sizes, given.sequence_lengths, given.test_times, given.input_counts,
                given.optimizer_info, given.validate_onnx, given.cache_dir, given.onnx_dir, given.verbose,
                given.overwrite, given.disable_ort_io_binding, not given.use_mask_index, fused,
                given.model_source, given.enable_arm64_bfloat16_fastmath_mlas_gemm, given)
        else:
            results += run_pytorch(
                given.use_gpu, given.models, given.model_class, modifier, given.precision, threads,
                given.batch_sizes, given.sequence_lengths, given.test_times, engine == "torchscript",
                engine == "torch2", given.cache_dir, given.verbose)
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    output_details(results, given.detail_csv or f"benchmark_detail_{stamp}.csv")
    output_summary(results, given.result_csv or f"benchmark_summary_{stamp}.csv", given)
    if fused:
        output_fusion_statistics(fused, given.fusion_csv or f"benchmark_fusion_{stamp}.csv")


if __name__ == "__main__":
    main()
