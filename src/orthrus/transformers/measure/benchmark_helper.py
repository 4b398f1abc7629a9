"""What benchmarks share: sessions, timed runs, tables of results, memory while a function runs.

In: models, feeds, lists of seconds. Out: result rows as dicts of text, whose keys are the columns of
onnxruntime's tables.
"""

from __future__ import annotations

import logging
import os
import random
import threading
import time
from abc import ABC
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from enum import Enum
from typing import Any

import numpy as np

from ...errors import InvalidArgument
from ...shown import tell
from .machine_info import MachineInfo
from .results import write_rows

logger = logging.getLogger(__name__)

IO_BINDING_DATA_TYPE_MAP = {"float32": np.float32}
"""numpy's types by the names that benchmarks use."""
_SETTINGS = ("engine", "version", "providers", "device", "precision", "optimizer", "io_binding")
_DETAILS = (*_SETTINGS, "model_name", "inputs", "threads", "batch_size", "sequence_length",
            "custom_layer_num", "datetime", "test_times", "QPS", "average_latency_ms", "latency_variance",
            "latency_90_percentile", "latency_95_percentile", "latency_99_percentile")
_SUMMARY = ("model_name", "inputs", "custom_layer_num", *_SETTINGS, "threads")
_PERCENTILES = (90, 95, 99)
_LETTERS = {"dml": "Dml", "migraphx": "MIGraphX", "cuda": "CUDA", "tensorrt": "Tensorrt", "rocm": "ROCM",
            "cpu": "CPU", "dnnl": "Dnnl", "iree": "IREE", "spacemit": "SpaceMIT"}


class Precision(Enum):
    """What a network's weights and activations are."""

    FLOAT32 = "fp32"
    FLOAT16 = "fp16"
    INT8 = "int8"
    INT4 = "int4"

    def __str__(self) -> str:
        return str(self.value)


class OptimizerInfo(Enum):
    """What optimizes a network before it is run: nothing, the session, or the optimizer's script."""

    NOOPT = "no_opt"
    BYORT = "by_ort"
    BYSCRIPT = "by_script"

    def __str__(self) -> str:
        return str(self.value)


class ConfigModifier:
    """Sets how many layers a network is built with, where a number is given."""

    def __init__(self, num_layers: int | None) -> None:
        self.num_layers = num_layers

    def modify(self, config: Any) -> None:
        """Write the number into a configuration of transformers, whatever it calls it."""
        if self.num_layers is None:
            return
        for name in ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers"):
            if hasattr(config, name):
                setattr(config, name, self.num_layers)

    def get_layer_num(self) -> int | None:
        """The number, None where the network keeps its own."""
        return self.num_layers


def providers_of(use_gpu: bool, provider: str | None) -> list[str]:
    """The full names of the providers that a benchmark asks for, the CPU's last. Raises InvalidArgument for
    one that is not here."""
    import orthrus as ort

    there = ort.get_available_providers()
    if provider is None:
        wanted = "CUDAExecutionProvider" if use_gpu else "CPUExecutionProvider"
    else:
        short = provider.removesuffix("ExecutionProvider")
        wanted = f"{_LETTERS.get(short.lower(), short)}ExecutionProvider"
    if wanted not in there:
        raise InvalidArgument(f"{wanted} is not here", found=", ".join(there), expected=wanted,
                              cure="name another by --provider, or leave out --use_gpu")
    return list(dict.fromkeys((wanted, "CPUExecutionProvider")))


def create_onnxruntime_session(onnx_model_path: str, use_gpu: bool, provider: str | None = None,
                               enable_all_optimization: bool = True, num_threads: int = -1,
                               enable_profiling: bool = False, verbose: bool = False,
                               enable_mlas_gemm_fastmath_arm64_bfloat16: bool = False,
                               provider_options: Mapping[str, Any] = {}
                               ) -> Any:
    """A session of this runtime. `provider_options`: options by a provider's name. Raises what making a
    session raises."""
    import orthrus as ort

    options = ort.SessionOptions()
    options.graph_optimization_level = (ort.GraphOptimizationLevel.ORT_ENABLE_ALL if enable_all_optimization
                                        else ort.GraphOptimizationLevel.ORT_ENABLE_BASIC)
    options.enable_profiling = enable_profiling
    if num_threads > 0:
        options.intra_op_num_threads = num_threads
    if verbose:
        options.log_severity_level = 0
    if enable_mlas_gemm_fastmath_arm64_bfloat16:
        options.add_session_config_entry("mlas.enable_gemm_fastmath_arm64_bfloat16", "1")
    providers = [(name, dict(provider_options.get(name, {}))) for name in providers_of(use_gpu, provider)]
    return ort.InferenceSession(onnx_model_path, options, providers=providers)


def setup_logger(verbose: bool = True) -> None:
    """Send this package's log to stderr: with `verbose` from INFO on, else warnings and errors."""
    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING,
                        format="%(filename)20s: %(message)s")
    logging.getLogger().setLevel(logging.INFO if verbose else logging.WARNING)


def prepare_environment(cache_dir: str | None, output_dir: str | None, use_gpu: bool,
                        provider: str | None = None) -> None:
    """Make the folders, and refuse a provider that is not here."""
    for folder in (cache_dir, output_dir):
        if folder:
            os.makedirs(folder, exist_ok=True)
    providers_of(use_gpu, provider)


def get_latency_result(latency_list: Sequence[float], batch_size: int) -> dict[str, Any]:
    """A result's columns from seconds per run: milliseconds, and rows per second."""
    times = 1e3 * np.asarray(latency_list, np.float64)
    mean = float(times.mean())
    return {"test_times": len(times), "latency_variance": f"{1e-3 * float(times.var()):.2f}",
            **{f"latency_{p}_percentile": f"{np.percentile(times, p):.2f}" for p in _PERCENTILES},
            "average_latency_ms": f"{mean:.2f}", "QPS": f"{batch_size * 1e3 / mean:.2f}"}


def output_details(results: Iterable[Mapping[str, Any]], csv_filename: str) -> None:
    """Write a row per result."""
    write_rows(csv_filename, _DETAILS, results, more=True)


def output_summary(results: Sequence[Mapping[str, Any]], csv_filename: str, args: Any) -> None:
    """Write a row per model and setting, with the mean latency for each batch and sequence of `args`
    (`batch_sizes`, `sequence_lengths`) in columns `b1_s8`."""
    shapes = {f"b{batch}_s{length}": (batch, length)
              for batch in args.batch_sizes for length in args.sequence_lengths}
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for result in results:
        row = rows.setdefault(tuple(result[name] for name in _SUMMARY), {n: result[n] for n in _SUMMARY})
        found = (result["batch_size"], result["sequence_length"])
        row.update({column: result["average_latency_ms"] for column, at in shapes.items() if at == found})
    write_rows(csv_filename, (*_SUMMARY, *shapes), rows.values(), more=True)


def output_fusion_statistics(model_fusion_statistics: Mapping[str, Mapping[str, Any]], csv_filename: str
                             ) -> None:
    """Write how many of each operator the optimizer made, a row per model file."""
    from importlib.metadata import PackageNotFoundError, version

    def installed(name: str) -> str:
        try:
            return version(name)
        except PackageNotFoundError:
            return ""

    facts = {"datetime": datetime.now(), "transformers": installed("transformers"),
             "torch": installed("torch")}
    rows = [{"model_filename": model, **facts, **counts} for model, counts in model_fusion_statistics.items()]
    write_rows(csv_filename, list(dict.fromkeys(name for row in rows for name in row)), rows, more=True)


def timed(call: Callable[[], Any], repeat_times: int, warm_up_repeat: int = 0) -> list[float]:
    """Seconds of each of `repeat_times` calls, after `warm_up_repeat` that do not count."""
    for _ in range(warm_up_repeat):
        call()
    times = []
    for _ in range(repeat_times):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return times


def inference_ort(ort_session: Any, ort_inputs: Mapping[str, Any], result_template: Mapping[str, Any],
                  repeat_times: int, batch_size: int, warm_up_repeat: int = 0) -> dict[str, Any]:
    """A result row of runs from numpy to numpy."""
    times = timed(lambda: ort_session.run(None, ort_inputs), repeat_times, warm_up_repeat)
    return {**result_template, "io_binding": False, **get_latency_result(times, batch_size)}


def inference_ort_with_io_binding(
        ort_session: Any, ort_inputs: Mapping[str, Any], result_template: Mapping[str, Any],
        repeat_times: int, ort_output_names: Sequence[str], ort_outputs: Sequence[Any],
        output_buffers: list[Any], output_buffer_max_sizes: Sequence[int], batch_size: int, device: Any,
        data_type: Any = np.longlong, warm_up_repeat: int = 0) -> dict[str, Any]:
    """A result row of runs with inputs and outputs bound. `ort_outputs`: arrays of the outputs' shapes and
    types. `output_buffers` is filled with tensors of `output_buffer_max_sizes` elements that lie on `device`;
    an output that fits none of them is bound to memory of its own. `data_type` is not asked: arrays have
    their type."""
    binding = ort_session.io_binding()
    held = []
    for name, value in ort_inputs.items():
        binding.bind_cpu_input(name, np.ascontiguousarray(value))
    if not output_buffers and output_buffer_max_sizes:
        allocateOutputBuffers(output_buffers, output_buffer_max_sizes, device)
    for i, (name, value) in enumerate(zip(ort_output_names, ort_outputs, strict=True)):
        value = np.asarray(value)
        buffer = output_buffers[i] if i < len(output_buffers) else None
        if buffer is not None and value.dtype == np.float32 and buffer.numel() >= value.size:
            binding.bind_output(name, "cpu", 0, value.dtype, value.shape, buffer.data_ptr())
        else:
            held.append(np.empty(value.shape, value.dtype))
            binding.bind_output(name, "cpu", 0, value.dtype, value.shape, held[-1].ctypes.data)
    times = timed(lambda: ort_session.run_with_iobinding(binding), repeat_times, warm_up_repeat)
    return {**result_template, "io_binding": True, **get_latency_result(times, batch_size)}


def allocateOutputBuffers(output_buffers: list[Any], output_buffer_max_sizes: Sequence[int], device: Any
                          ) -> None:
    """Append a float32 tensor of torch for each number of elements."""
    import torch

    output_buffers += [torch.empty(size, dtype=torch.float32, device=device)
                       for size in output_buffer_max_sizes]


def set_random_seed(seed: int = 123) -> None:
    """Seed Python's, numpy's and, where it is imported, torch's random numbers."""
    import sys

    random.seed(seed)
    np.random.seed(seed)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(seed)


def get_gpu_info() -> list[dict[str, Any]] | None:
    """NVIDIA's devices: `id`, `name`, bytes in `total`, `free` and `used`; None where there is none."""
    found = MachineInfo(silent=True).get_gpu_info_by_nvml()
    if not found or not found["devices"]:
        return None
    return [{"id": i, "name": each["name"], "total": each["memory_total"], "free": each["memory_available"],
             "used": each["memory_total"] - each["memory_available"]}
            for i, each in enumerate(found["devices"])]


class MemoryMonitor(ABC):  # noqa: B024
    """Watches memory while `keep_measuring` is true."""

    def __init__(self, keep_measuring: bool = True) -> None:
        self.keep_measuring = keep_measuring

    def measure_cpu_usage(self) -> float:
        """The most megabytes that this process held."""
        most = 0.0
        while True:
            most = max(most, _resident())
            if not self.keep_measuring:
                return most
            time.sleep(0.005)

    def measure_gpu_usage(self) -> list[dict[str, Any]] | None:
        """None: a GPU's memory is not watched."""
        return None


def _resident() -> float:
    """Megabytes that this process holds now, at most since it began where the system does not say."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
    except OSError:
        from ...tools.perf.memory import peak_bytes

        return peak_bytes() / 2**20


def measure_memory(is_gpu: bool, func: Callable[[], Any], monitor_type: str = "cuda",
                   start_memory: Any = None) -> float | None:
    """Call `func` and answer by how many megabytes this process grew at most meanwhile; None where there was
    no growth to see. `start_memory`: what to count from, now by default; with `func` None, now is
    answered."""
    if is_gpu:
        raise InvalidArgument("The memory of a GPU is not measured here", found="is_gpu=True",
                              expected="False", cure="watch it with the vendor's tool")
    if start_memory is None:
        start_memory = _resident()
    if func is None:
        return start_memory
    monitor = MemoryMonitor()
    found: list[float] = []
    thread = threading.Thread(target=lambda: found.append(monitor.measure_cpu_usage()), daemon=True)
    thread.start()
    try:
        func()
    finally:
        monitor.keep_measuring = False
        thread.join()
    growth = found[0] - start_memory
    tell(f"CPU memory usage: before={start_memory:.1f} MB, peak={found[0]:.1f} MB")
    return growth if growth > 0 else None


def get_ort_environment_variables() -> str:
    """The environment's switches of runtimes, `NAME=value` joined by commas."""
    return ",".join(f"{name}={value}" for name, value in sorted(os.environ.items())
                    if name.startswith(("ORT_", "ORTHRUS_")))
