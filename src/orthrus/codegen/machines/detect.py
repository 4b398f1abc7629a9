"""The machine this process runs on: what the system says of the processor -> a `Machine`."""

from __future__ import annotations

import functools
import os
import platform
from dataclasses import replace

from . import riscv
from .machine import AVX2, AVX512, NEON, SSE2, Machine

_EXTRA = ("avx512vnni", "avx512bf16", "avx512fp16", "avx512vbmi", "avx512vbmi2", "avxvnni", "amx-tile",
          "amx-bf16", "amx-int8")
"""Features kernels may use beyond a machine's base."""


def _flags() -> set[str]:
    """The processor's features as Linux lists them, in LLVM's spelling."""
    try:
        with open("/proc/cpuinfo") as lines:
            for line in lines:
                if line.startswith(("flags", "Features")):
                    names = set(line.split(":", 1)[1].split())
                    break
            else:
                return set()
    except OSError:
        return set()
    spelled = {"sse4_1": "sse4.1", "sse4_2": "sse4.2", "pni": "sse3", "bmi1": "bmi", "abm": "lzcnt",
               "avx512_vnni": "avx512vnni", "avx512_bf16": "avx512bf16", "avx512_fp16": "avx512fp16",
               "avx512_vbmi2": "avx512vbmi2", "avx_vnni": "avxvnni", "amx_tile": "amx-tile",
               "amx_bf16": "amx-bf16", "amx_int8": "amx-int8"}
    return {spelled.get(name, name) for name in names}


def _cache(index: int, default: int) -> int:
    try:
        with open(f"/sys/devices/system/cpu/cpu0/cache/index{index}/size") as file:
            text = file.read().strip()
        return int(text[:-1]) * {"K": 1 << 10, "M": 1 << 20}[text[-1]]
    except (OSError, ValueError, KeyError):
        return default


@functools.cache
def host() -> Machine | None:
    """The machine this process runs on, None where kernels cannot be generated for it."""
    arch = {"AMD64": "x86_64", "arm64": "aarch64"}.get(platform.machine(), platform.machine())
    if os.name != "posix":
        return None
    l1, l2 = _cache(0, 32 << 10), _cache(2, 1 << 20)
    if arch == "riscv64":
        return riscv.host()
    if arch == "aarch64":
        return replace(NEON, l1=l1, l2=l2)
    if arch != "x86_64":
        return None
    flags = _flags()
    base = next((m for m in (AVX512, AVX2) if flags.issuperset(m.features)), SSE2)
    extra = tuple(f for f in _EXTRA if f in flags) if base is AVX512 else ()
    return replace(base, features=tuple(sorted({*base.features, *extra})), l1=l1, l2=l2)
