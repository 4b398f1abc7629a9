"""What the provider can be told, by option or, where SpacemiT documents it, by environment variable.

Keys and meanings are those of SpacemiT's own provider, from its documentation of 2026-07; the ones in small
letters are this provider's.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ...errors import InvalidArgument
from ..base import Option, seconds
from .targets import TARGETS

PREFIX = "SPACEMIT_EP_"
_MOST_RUNS = 1024


class _List(tuple[Any, ...]):
    """A list that is written with semicolons."""

    def __str__(self) -> str:
        return ";".join(map(str, self))


def _on(text: str) -> str:
    """SpacemiT takes everything but 1 for off."""
    return "1" if text == "1" else ""


def _count(text: str) -> int:
    if not text.strip().isdigit():
        raise ValueError("it is no whole number")
    return int(text)


def _runs(text: str) -> int:
    if not 1 <= _count(text) <= _MOST_RUNS:
        raise ValueError(f"it is not between 1 and {_MOST_RUNS}")
    return int(text)


def _cores(text: str) -> _List:
    parts = [part.strip() for part in text.split(";") if part.strip()]
    if not all(part.isdigit() for part in parts):
        raise ValueError("it is no list of processors such as 0;1")
    return _List(map(int, parts))


def _names(text: str) -> _List:
    return _List(part.strip() for part in text.split(";") if part.strip())


def _level(text: str) -> int:
    if not text.strip().isdigit():
        raise ValueError("it is no whole number from 0 on")
    return min(int(text), 2)


def _target(text: str) -> str:
    name = "generic" if text == "qemu" else text
    if name and name not in TARGETS:
        raise ValueError(f"there is no such target; known are {', '.join(TARGETS)}")
    return name


def _bits(text: str) -> int:
    if text not in ("128", "256", "512", "1024"):
        raise ValueError("it is not 128, 256, 512 or 1024")
    return int(text)


def _seconds(text: str) -> float | None:
    return seconds(text) or None


_CORES = {0xA03C: "spacemit-k1", 0xA064: "spacemit-k3", 0x5064: "spacemit-k3-x100"}


def _architecture(text: str) -> str:
    found = _CORES.get(int(text, 0)) if text else ""
    if found is None:
        raise ValueError(f"it is none of {', '.join(map(hex, _CORES))}")
    return found


def _nothing(why: str) -> Option:
    return Option(str, "", f"accepted and without effect: {why}")


OPTIONS: dict[str, Option] = {
    PREFIX + "INTRA_THREAD_NUM": Option(
        _count, 0, "threads of a run of this provider's parts; 0: the session's intra_op_num_threads"),
    PREFIX + "INTRA_THREAD_AFFINITY": Option(
        _cores, _List(), "the processor of each of these threads, as 8;10;12;14"),
    PREFIX + "INTER_THREAD_NUM": Option(
        _runs, 1, "runs of the session that go on at the same time, each with threads of its own"),
    PREFIX + "USE_GLOBAL_INTRA_THREAD": Option(
        _on, "", "1: all sessions that say so share the threads of the first, and take turns"),
    PREFIX + "DUMP_SUBGRAPHS": Option(
        _on, "", "1: each part is written to the working folder as an ONNX model"),
    PREFIX + "DEBUG_PROFILE": Option(
        str, "", "prefix of a file that gets when each thread did each step, as Chrome trace events"),
    PREFIX + "DUMP_TENSORS": Option(
        str, "", "folder that gets what the parts' nodes compute, as .npy files"),
    PREFIX + "DISABLE_OP_TYPE_FILTER": Option(_names, _List(), "operators to leave alone, as Conv;Gemm"),
    PREFIX + "DISABLE_OP_NAME_FILTER": Option(_names, _List(), "nodes to leave alone, as Conv1;Conv2"),
    PREFIX + "DISABLE_FLOAT16_EPILOGUE": Option(
        _on, "", "1: what follows a quantized product is computed in float32 on every target; otherwise "
                    "in float16 where the target has that"),
    PREFIX + "DENSE_ACCURACY_LEVEL": Option(
        _level, 2, "MatMul of two computed inputs in a dynamically quantized model: 0 quantizes both, 1 "
                   "computes in float16, 2 and more in float32"),
    PREFIX + "PERFER_CORE_ARCH": Option(
        _architecture, "", "the cores to use, by architecture number: " + ", ".join(
            f"{number:#x} {name}" for number, name in _CORES.items())),
    PREFIX + "ENABLE_BLOCKLAYOUT": _nothing("the layout is chosen by kernel"),
    PREFIX + "ENABLE_DMA": _nothing("kernels use no DMA engine"),
    PREFIX + "DISABLE_TLS_RELEASE": _nothing("threads keep no memory of their own"),
    "shared_lib_path": _nothing("SpacemiT's Python code passes spacemit_ort.EPLibPath, and this provider is "
                                "no library"),
    "provider_factory_entry_point": _nothing("it names a function of that library"),
    "target": Option(
        _target, "", "what to generate code for: " + ", ".join(TARGETS) + "; on a board the board itself, "
        "elsewhere spacemit-k3 where neither this nor SPERT_BACKEND says otherwise"),
    "vlen": Option(_bits, 256, "bits of a vector register of the target generic"),
    "qemu": Option(str, "", "path of the emulator; qemu-riscv64 on PATH where empty"),
    "emulator_timeout": Option(_seconds, 600.0, "seconds that one part may run under emulation; 0 for any"),
}

ENVIRONMENT = {**{PREFIX + name: PREFIX + name for name in (
    "DUMP_SUBGRAPHS", "DEBUG_PROFILE", "DUMP_TENSORS", "DISABLE_OP_TYPE_FILTER", "DISABLE_OP_NAME_FILTER",
    "DISABLE_FLOAT16_EPILOGUE", "DENSE_ACCURACY_LEVEL")}, "SPERT_BACKEND": "target"}
"""Environment variables and the options they stand for where those are not given."""

_REFUSED = {
    PREFIX + "DISABLE_PASSES_FILTER": "it names passes of SpacemiT's own compiler; InferenceSession(..., "
                                      "disabled_optimizers=[...]) leaves out this runtime's",
    PREFIX + "PLUGIN_LIB": "it names a library made for SpacemiT's own provider; register operators with "
                           "@orthrus.op, or kernels of another provider",
}


def merged(options: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The options as given, and from the environment what they leave open. Raises InvalidArgument for one
    that cannot be followed."""
    for key in options:
        if str(key) in _REFUSED:
            raise InvalidArgument(f"SpaceMITExecutionProvider cannot follow {key}: {_REFUSED[str(key)]}",
                                  found=f"{key}={options[key]}", cure="leave the option out")
    found = {key: environment[name] for name, key in ENVIRONMENT.items() if name in environment}
    return {**found, **{str(key): str(value) for key, value in options.items()}}
