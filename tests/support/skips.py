"""Why tests are skipped: the one table.

A test says by name what it needs and a machine may lack, `@needs("oneDNN")`; for any other reason it calls
`pytest.skip` with a text that begins with a line of `OTHERWISE`. `conftest` skips what lacks its needs, marks
what needs more than `pip install '.[test]'` brings with `extra`, counts skips by reason at the end, and
fails a test that is skipped for a reason which is not here.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from matrix_unit_double import why_none
from oracle import SATURATES

from orthrus.codegen.emulate import emulator
from orthrus.codegen.object import library
from orthrus.codegen.runtime import fastcall
from orthrus.ir import No
from orthrus.providers import known
from orthrus.providers.iree.compiler import COMPILER, installed

MODELS = Path(os.environ.get("TEST_MODELS", Path(__file__).parents[3] / "shared" / "models"))
"""Trained models, which are no part of this repository: a folder each, with its data in meta.json."""
ORDER = MODELS.parent / "reference" / "ort_c_api_functions.txt"
"""The functions of onnxruntime's own header in their order, up to version 29."""
RECORDINGS = Path("/usr/share/sounds/alsa")
NODE_MODULES = Path(os.environ.get("TEST_NODE_MODULES", "node_modules"))
"""Where npm puts what `npm i onnxruntime-node --ignore-scripts` brings."""
ORT_HEADERS = [Path(each) for each in os.environ.get("ORT_HEADERS", "").split(":") if each]
"""Folders with the headers that onnxruntime ships, of one version each."""
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_EMULATOR = "no qemu-riscv64 on PATH, and no xuantie-qemu: apt-get install qemu-user"
_ARM = "no qemu-aarch64 on PATH: apt-get install qemu-user"


class Need(NamedTuple):
    """What a test may need: whether it is here, what to say where it is not, and whether it is more than
    `pip install '.[test]'` brings."""

    here: Callable[[], bool]
    reason: str
    extra: bool = False


def _probed(provider: str) -> bool:
    name = f"{provider}ExecutionProvider"
    return known((name,))[name].probe() is None


NEEDS = {
    "generated code": Need(lambda: library.available() is None, "no code is generated here"),
    "door": Need(lambda: library.available() is None and fastcall.available(),
                 "this interpreter has no door to generated code"),
    "matrix unit": Need(lambda: not why_none(), "the processor here has no matrix unit, nor a double of one"),
    "VNNI": Need(lambda: not SATURATES, "the processor here has no VNNI"),
    "no board": Need(lambda: platform.machine() != "riscv64", "the processor here is a board's"),
    "long double": Need(lambda: np.finfo(np.longdouble).nmant >= 60, "nothing wider than float64 here"),
    "POSIX": Need(lambda: os.name == "posix", "no fork, no pipes, or open files that cannot be deleted here"),
    "root": Need(lambda: os.name == "posix" and os.geteuid() == 0, "only root can give files away"),
    "Linux": Need(lambda: sys.platform.startswith("linux"), "no /proc here, or threads cannot be pinned"),
    "oneDNN": Need(lambda: _probed("Dnnl"),
                   "oneDNN or libgomp is not here: pip install orthrus-runtime[dnnl]", extra=True),
    "IREE": Need(lambda: _probed("IREE") and installed(COMPILER) is not None,
                 "IREE is not here: pip install orthrus-runtime[iree]", extra=True),
    "MIGraphX": Need(lambda: known(("MIGraphXExecutionProvider",))["MIGraphXExecutionProvider"].probe_with(
        {"target": "ref"}) is None, "MIGraphX is not here: AMD's package migraphx, of ROCm", extra=True),
    "SpaceMIT": Need(lambda: _probed("SpaceMIT"), _EMULATOR, extra=True),
    "emulator": Need(lambda: not isinstance(emulator.find("riscv64"), No), _EMULATOR, extra=True),
    "ARM emulator": Need(lambda: not isinstance(emulator.find("aarch64"), No), _ARM, extra=True),
    "C compiler": Need(lambda: shutil.which("cc") is not None, "no cc on PATH: apt-get install gcc",
                       extra=True),
    "C++ compiler": Need(lambda: shutil.which("c++") is not None, "no c++ on PATH: apt-get install g++",
                         extra=True),
    "Rust": Need(lambda: shutil.which("rustc") is not None, "no rustc on PATH", extra=True),
    "CMake": Need(lambda: shutil.which("cmake") is not None and shutil.which("pkg-config") is not None,
                  "no cmake or pkg-config on PATH", extra=True),
    "x86-64 emulator": Need(lambda: shutil.which("qemu-x86_64") is not None,
                            "no qemu-x86_64 on PATH: apt-get install qemu-user", extra=True),
    "zig": Need(lambda: importlib.util.find_spec("ziglang") is not None or shutil.which("zig") is not None,
                "zig is not here: pip install ziglang", extra=True),
    "valgrind": Need(lambda: shutil.which("valgrind") is not None,
                     "no valgrind on PATH: apt-get install valgrind", extra=True),
    "AMD tables": Need(lambda: all(map(importlib.util.find_spec, ("tinygrad", "msgpack"))),
                       "AMD's instruction tables are not here: pip install orthrus-runtime[gfx]", extra=True),
    "Triton": Need(lambda: importlib.util.find_spec("triton") is not None,
                   "Triton is not here: pip install triton", extra=True),
    "GPU": Need(lambda: _probed("CUDA") or _probed("ROCM"), "there is no GPU here", extra=True),
    "xuantie-qemu": Need(lambda: importlib.util.find_spec("qemu") is not None,
                         "xuantie-qemu is not here: pip install orthrus-runtime[spacemit]", extra=True),
    "torch": Need(lambda: all(map(importlib.util.find_spec, ("torch", "onnxscript"))),
                  "PyTorch is not here: pip install orthrus-runtime[torch]", extra=True),
    "transformers": Need(lambda: importlib.util.find_spec("transformers") is not None,
                         "transformers is not here: pip install transformers", extra=True),
    "onnxruntime-node": Need(
        lambda: shutil.which("node") is not None and (NODE_MODULES / "onnxruntime-node").is_dir(),
        "no node, or no onnxruntime-node in $TEST_NODE_MODULES: npm i onnxruntime-node --ignore-scripts",
        extra=True),
    "sherpa-onnx": Need(lambda: importlib.util.find_spec("sherpa_onnx") is not None,
                        "sherpa-onnx is not here: pip install sherpa-onnx", extra=True),
    "embed-anything": Need(lambda: importlib.util.find_spec("embed_anything") is not None,
                           "embed-anything is not here: pip install embed-anything", extra=True),
    "models": Need(lambda: any(MODELS.glob("*/meta.json")),
                   "no trained models in $TEST_MODELS or ../shared/models", extra=True),
    "onnxruntime's headers": Need(
        lambda: bool(ORT_HEADERS) and all((path / "onnxruntime_cxx_api.h").is_file() for path in ORT_HEADERS),
        "$ORT_HEADERS names no folders with onnxruntime's headers: Debian's package libonnxruntime-dev",
        extra=True),
    "header": Need(ORDER.exists, f"no {ORDER}", extra=True),
    "recordings": Need(RECORDINGS.exists, f"no recordings in {RECORDINGS}: apt-get install alsa-utils",
                       extra=True),
    "browser": Need(lambda: any(map(shutil.which, BROWSERS)) and shutil.which("chromedriver") is not None,
                    "no browser with its driver: apt-get install chromium chromium-driver", extra=True),
    "server libraries": Need(lambda: all(map(importlib.util.find_spec, (
        "uvicorn", "grpc", "orjson", "prometheus_client", "tritonclient"))),
                             "the server's libraries or a client are not here: pip install"
                             " orthrus-runtime[serve] tritonclient[http,grpc]", extra=True),
    "simdjson": Need(lambda: importlib.util.find_spec("simdjson") is not None,
                     "simdjson is not here: pip install pysimdjson", extra=True),
    "Ray": Need(lambda: all(map(importlib.util.find_spec, ("ray", "pyarrow", "pandas"))),
                "Ray is not here: pip install orthrus-runtime[ray]", extra=True),
    "VIEW_SHOTS": Need(lambda: "VIEW_SHOTS" in os.environ,
                       "draws the pictures of docs/, by hand: VIEW_SHOTS names a page of `orthrus view`"),
}

OTHERWISE = {
    "onnxruntime does not run it": "nothing to compare with; what else the test looks at holds",
    "onnxruntime's own tool is wrong": "symbolic shapes of two trained models, and exports on which its"
                                       " transformer optimizer fails",
    "this trained model was not fetched": "its archive could not be had, see fetch.py beside the models",
    "the processor here has no ": "instructions of a machine that code is generated for",
    "this file system has no such file": "devices, pipes and links that hostile models name",
    "an emulated GPU ": "what only a real one shows, or in a time to wait for",
    "nothing to look at: ": "a check of the kit for authors of providers, on few operators",
    "this C compiler has no sanitizers": "the example of a provider in C, with every access watched",
    "qemu 7 ends itself": "where two conversions to integers round to zero; later ones do not",
    **{f"could not import '{name}": "not everywhere is there a wheel of what '.[test]' asks for"
       for name in ("cryptography", "matplotlib", "onnxruntime", "PIL", "selenium", "sklearn", "sympy",
                    "torch", "transformers")},
}


def needs(*names: str) -> pytest.MarkDecorator:
    """The mark of a test, a class or a module that needs these of `NEEDS`."""
    assert set(names) <= set(NEEDS), names
    return pytest.mark.needs(*names)


@cache
def lacking(name: str) -> str | None:
    """The reason to skip what needs `name`; None where it is here."""
    return None if NEEDS[name].here() else NEEDS[name].reason


def known_reason(text: str) -> str | None:
    """The line of the table that a skip's reason is; None for one which is not there."""
    reasons = [need.reason for need in NEEDS.values()]
    return next((line for line in (*reasons, *OTHERWISE) if text.startswith(line)), None)
