"""What CUDA's and ROCm's providers can be told: names, defaults and values as onnxruntime has them.

In: options as a session gives them. Out: tables of `Option`s, and remarks for those that are accepted and
change nothing here, each with its reason.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from ..base import Option

log = logging.getLogger("orthrus")

UNLIMITED = (1 << 64) - 1
"""What `gpu_mem_limit` is by default."""


def _flag(text: str) -> bool:
    if text not in ("0", "1", "true", "false", "True", "False"):
        raise ValueError(f"{text!r} is neither 1 nor 0, true nor false")
    return text in ("1", "true", "True")


def _whole(least: int, most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        digits = text.removeprefix("-")
        if not (digits.isascii() and digits.isdecimal()):
            raise ValueError(f"{text!r} is no whole number")
        if not least <= int(text) <= most:
            raise ValueError(f"{text} is not between {least} and {most}")
        return int(text)
    return read


def _one_of(*names: str) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in names:
            raise ValueError(f"{text!r} is not among {', '.join(names)}")
        return text
    return read


_int, _size = _whole(-1 << 31, (1 << 31) - 1), _whole(0, UNLIMITED)
_TARGET = Option(str, "", "what to compile for, as sm_90 or gfx942; the device's own where it is empty")
_CONVOLUTIONS = "convolutions are kernels generated here"
_LAYOUT = "each kernel chooses its layout"

_SHARED = {
    "device_id": Option(_int, 0, "which of the machine's devices"),
    "has_user_compute_stream": Option(_flag, False, "1 where user_compute_stream is given; that says it too"),
    "user_compute_stream": Option(_size, 0, "address of a stream of the caller's: runs are asked of it"),
    "gpu_mem_limit": Option(_size, UNLIMITED, "bytes of device memory that the session takes at most"),
    "arena_extend_strategy": Option(
        _one_of("kNextPowerOfTwo", "kSameAsRequested"), "kNextPowerOfTwo",
        "how much more is taken of the device: as much again, or what is asked for"),
    "do_copy_in_default_stream": Option(
        _flag, True, "0: arrays are copied to the device on a stream beside the one that computes"),
    "gpu_external_alloc": Option(_size, 0, "address of a function void *(size_t) to take memory from"),
    "gpu_external_free": Option(_size, 0, "address of a function void(void *) to give it back to"),
    "gpu_external_empty_cache": Option(_size, 0, "address of a function void() to call when runs are over"),
    "tunable_op_enable": Option(
        _flag, False, "1: tiles are those that were measured to be fastest, as far as any were"),
    "tunable_op_tuning_enable": Option(
        _flag, False, "1: those of new shapes are measured when they come, if tunable_op_enable is 1 too"),
    "tunable_op_max_tuning_duration_ms": Option(
        _int, 0, "milliseconds that one tile is measured for at most; 0: some"),
    "target": _TARGET,
    "cudnn_conv_algo_search": Option(
        _one_of("EXHAUSTIVE", "HEURISTIC", "DEFAULT"), "EXHAUSTIVE", f"no effect: {_CONVOLUTIONS}"),
}

CUDA: dict[str, Option] = {
    **_SHARED,
    "enable_cuda_graph": Option(
        _flag, False, "1: what a run asks of the device is recorded by shape and from then on asked as one"),
    "use_tf32": Option(_flag, True, "0: products of float32 are float32's; 1: their factors may be rounded "
                                    "to 10 bits where the device multiplies such faster"),
    "cudnn_conv_use_max_workspace": Option(_flag, True, f"no effect: {_CONVOLUTIONS}"),
    "cudnn_conv1d_pad_to_nc1d": Option(_flag, False, f"no effect: {_CONVOLUTIONS}"),
    "enable_cudnn": Option(_flag, True, "no effect: cuDNN is not used"),
    "enable_skip_layer_norm_strict_mode": Option(
        _flag, False, "no effect: normalizations add up in float32 in any case"),
    "prefer_nhwc": Option(_flag, False, f"no effect: {_LAYOUT}"),
    "use_ep_level_unified_stream": Option(_flag, False, "no effect: a run computes on one stream anyway"),
    "fuse_conv_bias": Option(_flag, False, "no effect: biases are part of convolutions' kernels anyway"),
    "sdpa_kernel": Option(_int, 0, "no effect: there is one kernel for attention"),
}
"""By name, onnxruntime's options of CUDAExecutionProvider."""

ROCM: dict[str, Option] = {
    **_SHARED,
    "enable_hip_graph": Option(
        _flag, False, "1: what a run asks of the device is recorded by shape and from then on asked as one"),
    "miopen_conv_exhaustive_search": Option(_flag, False, f"no effect: {_CONVOLUTIONS}"),
    "miopen_conv_use_max_workspace": Option(_flag, True, f"no effect: {_CONVOLUTIONS}"),
}
"""By name, onnxruntime's options of ROCMExecutionProvider, and one of CUDA's that is often given to it."""


def text_of(value: Any) -> str:
    """A setting as onnxruntime writes it."""
    return str(int(value)) if isinstance(value, bool) else str(value)


def remark(provider: str, options: Mapping[str, Option], settings: Mapping[str, Any]) -> None:
    """Warn once of settings other than the default that change nothing here."""
    idle = [f"{name}={text_of(settings[name])} has {option.doc}" for name, option in options.items()
            if option.doc.startswith("no effect") and settings[name] != option.default]
    if idle:
        log.warning("%s: %s", provider, "; ".join(idle))
