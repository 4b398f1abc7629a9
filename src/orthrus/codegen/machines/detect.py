"""The machine that kernels are written for in this process: what the system says of the processor, and the
switch `ORTHRUS_MACHINE`, which names a lesser one -> a `Machine`."""

from __future__ import annotations

import functools
import os
import platform
import sys
from dataclasses import replace

from ... import knobs
from ...errors import InvalidArgument
from .machine import BEYOND, DARWIN, FORCED, NEON, Machine


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
               "amx_bf16": "amx-bf16", "amx_int8": "amx-int8", "asimddp": "dotprod"}
    return {spelled.get(name, name) for name in names}


def _cache(index: int, default: int) -> int:
    try:
        with open(f"/sys/devices/system/cpu/cpu0/cache/index{index}/size") as file:
            text = file.read().strip()
        return int(text[:-1]) * {"K": 1 << 10, "M": 1 << 20}[text[-1]]
    except (OSError, ValueError, KeyError):
        return default


def host() -> Machine | None:
    """The machine that kernels are written for: this one, or the lesser one that `ORTHRUS_MACHINE` names;
    None where none can be generated. Raises InvalidArgument for a name that this processor cannot stand for.
    """
    return _chosen(knobs.MACHINE.value)


@functools.cache
def _chosen(name: str) -> Machine | None:
    here = found()
    if not name:
        return here
    base, *more = name.split("+")
    if base not in FORCED or not {*more} <= {*BEYOND.get(base, ())}:
        raise _refused(f"names none of {', '.join(FORCED)}", name, here)
    plain = FORCED[base]
    if here is not None and here.arch == plain.arch:
        lesser = replace(plain, triple=here.triple, features=tuple(sorted({*plain.features, *more})),
                         l1=here.l1, l2=here.l2)
        if here.runs(lesser):
            return lesser
    raise _refused("names a machine that this processor cannot stand for", name, here)


def _refused(what: str, name: str, here: Machine | None) -> InvalidArgument:
    able = [] if here is None else [each for each, m in FORCED.items() if m.arch == here.arch
                                    and here.runs(replace(m, triple=here.triple))]
    more = [f"+{f}" for each in able for f in BEYOND.get(each, ()) if here is not None and here.has(f)]
    expected = f"one of {', '.join(able)}" if able else "nothing, as no code can be generated here"
    if more:
        expected += f", perhaps with {', '.join(sorted({*more}))}"
    return InvalidArgument(f"ORTHRUS_MACHINE {what}", found=name, expected=expected,
                           cure="unset it to use all that the processor has")


@functools.cache
def found() -> Machine | None:
    """The machine this process runs on, None where kernels cannot be generated for it."""
    arch = {"AMD64": "x86_64", "arm64": "aarch64"}.get(platform.machine(), platform.machine())
    if os.name != "posix":
        return None
    l1, l2 = _cache(0, 32 << 10), _cache(2, 1 << 20)
    if arch == "riscv64":
        from . import riscv

        return riscv.host()
    if sys.platform == "darwin" and arch == "aarch64":
        return replace(NEON, triple=DARWIN, features=("dotprod", "neon"))
    flags = _flags()
    for name in {"x86_64": ("avx512", "avx2", "sse2"), "aarch64": ("neon",)}.get(arch, ()):
        base = FORCED[name]
        if name in ("sse2", "neon") or flags.issuperset(base.features):
            extra = flags.intersection(BEYOND.get(name, ()))
            return replace(base, features=tuple(sorted({*base.features, *extra})), l1=l1, l2=l2)
    return None
