"""What the provider can be told: onnxruntime's options, those of AMD's plugin, and this package's own.

In: option texts and the environment. Out: settings, which the code reads by the plugin's short names. An
environment variable goes before an option, as in onnxruntime's provider; an option given by both of its
names has to say one thing."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...errors import InvalidArgument
from ..base import Option, compile_seconds, flag, one_of

log = logging.getLogger("orthrus")

UNLIMITED = 2**64 - 1
LEGACY = "migraphx_"
"""What the names of onnxruntime's options begin with."""


def _whole(text: str) -> int:
    if (number := int(text)) < 0:
        raise ValueError(f"{text} is below 0")
    return number


def _batches(text: str) -> tuple[int, ...]:
    found = tuple(sorted({int(word) for word in text.strip("()").split(",") if word.strip()}))
    if found and found[0] < 1:
        raise ValueError(f"{text!r} has a batch below 1")
    return found


OPTIONS: dict[str, Option] = {
    "device_id": Option(_whole, 0, "which GPU, counted from 0"),
    "target": Option(one_of("gpu", "ref"), "gpu",
                     "gpu, or ref: MIGraphX's own reference on the processor, far"
                                                   " too slow but for tests"),
    "offload_copy": Option(flag, False,
                           "1 lets MIGraphX copy arguments to the GPU and results back, where they could"
                                        " lie in the GPU's memory"),
    "module_path": Option(str, "", "folder that has the module migraphx, where it is neither installed nor in"
                                   " /opt/rocm/lib"),
    "any_version": Option(flag, False, "1 takes a version of MIGraphX that the table of operators is not of"),
    "fp16_enable": Option(flag, False, "1 computes products and convolutions of float32 in float16"),
    "bf16_enable": Option(flag, False, "1 computes in bfloat16; not together with fp16_enable"),
    "fp8_enable": Option(flag, False,
                         "1 computes products and convolutions in 8-bit floats; needs a calibration"
                                      " table, and not together with int8_enable"),
    "int8_enable": Option(flag, False,
                          "1 computes products and convolutions in int8; needs a calibration table"),
    "int8_calibration_table_name": Option(str, "", "file with the range of each tensor"),
    "int8_use_native_calibration_table": Option(flag, False,
                                                "1 reads it as MIGraphX's and TensorRT's own table;"
                                                             " 0 as one of onnxruntime's"),
    "exhaustive_tune": Option(flag, False, "1 searches for the fastest kernels, which takes long"),
    "fast_math": Option(flag, False, "1 allows approximations, and 32 bits in place of double and int64"),
    "mem_limit": Option(_whole, UNLIMITED,
                        "bytes that a part's weights, inputs and outputs may take together"),
    "model_cache_dir": Option(str, "",
                              "folder for compiled parts; migraphx in the folder of generated code where"
                                       " empty"),
    "cache_dir": Option(str, "",
                        "the plugin's name for model_cache_dir; beside it, the folder that relative names"
                                 " of calibration tables start from"),
    "disable_caching": Option(flag, False, "1 keeps no compiled part beyond this process"),
    "force_recompile": Option(flag, False, "1 compiles what is in the cache again"),
    "compile_timeout": Option(compile_seconds, 600.0, "seconds that compiling one part may take"),
    "max_dynamic_batch": Option(_whole, 0,
                                "largest batch that is padded to a compiled one: powers of two up to"
                                           " this; 0 pads none"),
    "compile_batches": Option(_batches, (),
                              "batches to compile when the session is made, as in 1,4,8; others are"
                                            " padded to the next of them"),
    "dynamic_dims": Option(flag, False,
                           "1 compiles a part with an open batch once, for 1 to max_dynamic_batch,"
                                        " where MIGraphX takes that"),
    "dump_subgraphs": Option(flag, False,
                             "1 writes each part as ONNX to the working folder, and its operators to"
                                          " the log"),
    "hip_graph_enable": Option(flag, False, "has no effect: the Python module has no HIP graphs"),
    "arena_extend_strategy": Option(one_of("kNextPowerOfTwo", "kSameAsRequested"), "kNextPowerOfTwo",
                                    "has no effect: programs own their memory"),
    "external_alloc": Option(str, "0", "has no effect: programs own their memory"),
    "external_free": Option(str, "0", "has no effect: programs own their memory"),
    "external_empty_cache": Option(str, "0", "has no effect: programs own their memory"),
    "compute_mode": Option(one_of("Eager", "Balanced", "Maximum"), "Eager",
                           "has no effect: parts are compiled when"
                           " their shapes are known"),
    "coalesce_io": Option(flag, False, "has no effect: arguments go in one by one"),
    "mlss_use_specific_ops": Option(str, "", "has no effect: the library decides"),
    "cpu_control_flow": Option(flag, True, "has no effect: control flow stays with the runtime"),
    "model_arch": Option(str, "", "has no effect: the library asks the device"),
    "static_pad_seq": Option(flag, False, "has no effect: only batches are padded"),
    "static_pad_seq_len": Option(_whole, 0, "has no effect: only batches are padded"),
    "static_pad_inputs": Option(str, "", "has no effect: only batches are padded"),
    "static_pad_outputs": Option(str, "", "has no effect: only batches are padded"),
}
"""By the plugin's names."""

LONG = tuple(f"{LEGACY}{name}" for name in (
    "fp16_enable", "bf16_enable", "fp8_enable", "int8_enable", "int8_calibration_table_name",
    "int8_use_native_calibration_table", "exhaustive_tune", "mem_limit", "arena_extend_strategy",
    "external_alloc",
    "external_free", "external_empty_cache", "model_cache_dir", "max_dynamic_batch", "compile_batches",
    "hip_graph_enable"))
"""onnxruntime's names, each of which stands for the one without what it begins with."""

DECLARED: dict[str, Option] = {
    **OPTIONS, **{name: OPTIONS[name.removeprefix(LEGACY)] for name in LONG}}
"""Every option by each of its names."""

VARIABLES = {
    "ORT_MIGRAPHX_FP16_ENABLE": "fp16_enable", "ORT_MIGRAPHX_BF16_ENABLE": "bf16_enable",
    "ORT_MIGRAPHX_FP8_ENABLE": "fp8_enable", "ORT_MIGRAPHX_INT8_ENABLE": "int8_enable",
    "ORT_MIGRAPHX_INT8_CALIBRATION_TABLE_NAME": "int8_calibration_table_name",
    "ORT_MIGRAPHX_INT8_USE_NATIVE_CALIBRATION_TABLE": "int8_use_native_calibration_table",
    "ORT_MIGRAPHX_EXHAUSTIVE_TUNE": "exhaustive_tune", "ORT_MIGRAPHX_DUMP_MODEL_OPS": "dump_subgraphs",
    "ORT_MIGRAPHX_CACHE_PATH": "cache_dir", "ORT_MIGRAPHX_MODEL_CACHE_PATH": "model_cache_dir",
    "ORT_MIGRAPHX_MAX_DYNAMIC_BATCH": "max_dynamic_batch", "ORT_MIGRAPHX_COMPILE_BATCHES": "compile_batches",
    "ORT_MIGRAPHX_HIP_GRAPH_ENABLE": "hip_graph_enable", "ORT_MIGRAPHX_COALESCE_IO": "coalesce_io",
}
"""Environment variables and the options that they set."""


def settled(given: Mapping[str, str], read: Mapping[str, Any]) -> dict[str, Any]:
    """The settings by all names, which agree. `given`: the options' texts; `read`: what they say, or the
    defaults, by all names. Raises InvalidArgument for contradictions and for a variable that cannot be read.
    """
    made = {name: read[name] for name in OPTIONS}
    for long in LONG:
        short = long.removeprefix(LEGACY)
        if long not in given:
            continue
        if short in given and read[short] != read[long]:
            raise InvalidArgument(f"the options {short} and {long} are one, and say different things",
                                  found=f"{given[short]} and {given[long]}", cure="leave one of them out")
        made[short] = read[long]
    for variable, name in VARIABLES.items():
        if (text := os.environ.get(variable)) is not None:
            made[name] = _of_environment(variable, name, text)
    _check(made)
    return {**made, **{long: made[long.removeprefix(LEGACY)] for long in LONG}}


def _of_environment(variable: str, name: str, text: str) -> Any:
    try:
        return OPTIONS[name].read(text)
    except ValueError as error:
        raise InvalidArgument(f"the value of the environment variable {variable} cannot be read: {error}",
                              found=text, expected=OPTIONS[name].doc) from error


def _check(made: Mapping[str, Any]) -> None:
    for one, other in (("fp16_enable", "bf16_enable"), ("fp8_enable", "int8_enable")):
        if made[one] and made[other]:
            raise InvalidArgument(f"{one} and {other} exclude each other", found="both are on",
                                  cure="leave one of them out")
    for name in ("int8_enable", "fp8_enable"):
        if made[name] and not made["int8_calibration_table_name"]:
            raise InvalidArgument(f"{name} without ranges gives useless results",
                                  expected="int8_calibration_table_name",
                                  cure="make a table with orthrus.quantization, or use a model with"
                                  " QuantizeLinear")
    if made["dynamic_dims"] and not made["max_dynamic_batch"]:
        raise InvalidArgument("dynamic_dims needs to know the largest batch", expected="max_dynamic_batch")
    idle = [name for name, option in OPTIONS.items()
            if option.doc.startswith("has no effect") and made[name] != option.default]
    if idle:
        log.warning("MIGraphXExecutionProvider: %s", "; ".join(f"{n} {OPTIONS[n].doc}" for n in idle))


def table_file(made: Mapping[str, Any]) -> Path:
    """The calibration table's place: a relative name starts from `cache_dir` where that is given."""
    return Path(made["cache_dir"], made["int8_calibration_table_name"])


def batches(made: Mapping[str, Any]) -> tuple[int, ...]:
    """The batches that others are padded to, in rising order."""
    if made["compile_batches"]:
        found: tuple[int, ...] = made["compile_batches"]
        return found
    largest, found = made["max_dynamic_batch"], ()
    size = 1
    while size < largest:
        found, size = (*found, size), 2 * size
    return (*found, largest) if largest else ()
