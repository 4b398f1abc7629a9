"""What the provider can be told, and the compiler's flags that follow from it.

In: option texts and a part. Out: settings, and a list of flags that says all there is to say about a
compilation beside the model. The flags of a part depend on its operators only where an option is `auto`.
"""

from __future__ import annotations

import hashlib
import platform
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from ...codegen.machines import detect
from ...ir import ElementType, Node
from ..base import Option, compile_seconds, flag, one_of

DEVICES = {
    "local-sync": "llvm-cpu", "local-task": "llvm-cpu", "vulkan": "vulkan-spirv", "cuda": "cuda",
    "hip": "rocm"}
"""Devices by name, and the compiler's backend for each."""

_CHIP = {"vulkan": "--iree-vulkan-target", "cuda": "--iree-cuda-target", "hip": "--iree-rocm-target"}
_DEFAULT_CHIP = {"cuda": "sm_80"}
_STACK = 262144
"""Bytes of stack a kernel may take: LayerNormalization of transformers needs more than the compiler's own
limit of 32768."""

_CONVOLUTIONS = ("Conv", "ConvInteger", "QLinearConv")
PLAIN, IM2COL, BLOCKS = WAYS = ("plain", "im2col", "blocks")
"""Ways to compute convolutions."""
_TILED = "--iree-dispatch-creation-experimental-set-data-tiling-ops"
_WAYS = {
    PLAIN: [],
    IM2COL: ["--iree-global-opt-use-im2col-for-convs", "--iree-llvmcpu-fail-on-large-vector=false"],
    BLOCKS: [f"{_TILED}=convolution", f"{_TILED}=matmul", "--iree-llvmcpu-enable-ukernels=conv_nchwc",
             "--iree-llvmcpu-fail-on-large-vector=false"]}
"""Their flags. What is spelled out of convolutions makes larger vectors than the compiler thinks good."""


def _auto(text: str) -> str | bool:
    return text if text == "auto" else flag(text)


def _words(text: str) -> str:
    shlex.split(text)
    return text


OPTIONS: dict[str, Option] = {
    "device": Option(
        one_of("auto", *DEVICES), "auto",
        "where parts run: local-sync (this thread), local-task (a pool of threads), vulkan, cuda or hip; "
        "auto: local-sync for sessions of one thread, else local-task"),
    "target_triple": Option(
        str, "", "LLVM's name of the machine to compile for, such as riscv64-unknown-linux-gnu; this machine "
                 "where empty"),
    "target_cpu": Option(
        str, "", "processor to compile for: LLVM's name, or host; for cuda, hip and vulkan the chip (sm_80, "
                 "gfx942); host, or the first chip, where empty"),
    "target_features": Option(str, "", "features of the processor, as in +avx2,+fma"),
    "shapes": Option(
        one_of("open", "fixed"), "open",
        "open: a part with open dimensions is compiled once, for any sizes; fixed: at its first run with "
        "each tuple of input shapes, for faster code"),
    "opt_level": Option(one_of("O0", "O1", "O2", "O3"), "O3", "the compiler's level of optimization"),
    "data_tiling": Option(
        _auto, "auto", "1 packs matrices into tiles; 0 does not; auto: for x86-64 and AArch64, where the "
                       "part compiles that way"),
    "convolutions": Option(
        one_of("auto", *WAYS), "auto",
        "blocks: on blocks of 16 channels; im2col: as products of matrices; with both, kernels of one point "
        "or one channel are spelled out; plain: as the compiler likes; auto: the first that a part compiles "
        "with, blocks on processors with AVX-512 only"),
    "compiler_flags": Option(_words, "", "further flags of iree-compile, separated by spaces"),
    "compile_timeout": Option(compile_seconds, 600.0, "seconds that compiling one part may take"),
    "cache_folder": Option(
        str, "", "folder for compiled parts; iree in the folder of generated code where empty"),
    "save_temps": Option(
        str, "", "folder that keeps what each part was compiled from and into: ONNX, MLIR, flags, kernels"),
}


def chosen_device(settings: Mapping[str, Any], threads: int) -> str:
    """The device's name for a session of so many threads, 0 for one per core."""
    device: str = settings["device"]
    return device if device != "auto" else "local-sync" if threads == 1 else "local-task"


def foreign(settings: Mapping[str, Any]) -> bool:
    """Whether the options ask for code that this machine's processor may be unable to run."""
    return bool(settings["target_triple"]) or settings["target_cpu"] not in ("", "host") and (
        DEVICES.get(settings["device"], "llvm-cpu") == "llvm-cpu")


def elsewhere(settings: Mapping[str, Any], device: str) -> bool:
    """Whether parts run on something else than this machine's processor."""
    return foreign(settings) or DEVICES[device] != "llvm-cpu"


def target_text(settings: Mapping[str, Any], device: str) -> str:
    """The machine that is compiled for, as people and context files name it: the compiler's backend, the
    architecture, the processor. `host` is followed by a digest of what this processor can do."""
    if DEVICES[device] != "llvm-cpu":
        return f"{DEVICES[device]} {settings['target_cpu'] or _DEFAULT_CHIP.get(device, 'any')}"
    triple, cpu = settings["target_triple"], settings["target_cpu"]
    if triple:
        chip = cpu or "generic"
    else:
        chip = _host() if cpu in ("", "host") else cpu
    return " ".join(filter(None, ("llvm-cpu", triple.partition("-")[0] or platform.machine(), chip,
                                  settings["target_features"])))


def unfit(target: str, device: str) -> str:
    """Why what was compiled for `target` does not run on `device` here, "" where it may."""
    backend, _, rest = target.partition(" ")
    if backend != DEVICES[device]:
        return f"the device {device} runs what is compiled for {DEVICES[device]}"
    if backend != "llvm-cpu":
        return ""
    architecture, _, chip = rest.partition(" ")
    if architecture != platform.machine():
        return f"this machine is {platform.machine()}"
    return "this is another processor" if chip.startswith("host-") and chip != _host() else ""


def _host() -> str:
    return f"host-{hashlib.blake2b(repr(detect.host()).encode(), digest_size=4).hexdigest()}"


def trials(settings: Mapping[str, Any], device: str, nodes: Sequence[Node]
           ) -> list[tuple[str, tuple[str, ...]]]:
    """The ways to compute the convolutions of a part of these nodes, each with the flags to compile it, in
    the order to try: what is `auto` is left out, one after the other, where the compiler cannot do it."""
    triple, chosen = settings["target_triple"], settings["convolutions"]
    tiled = not triple or triple.startswith(("x86_64", "aarch64"))
    tiling = tiled if settings["data_tiling"] == "auto" else settings["data_tiling"]
    ways = [PLAIN]
    if DEVICES[device] == "llvm-cpu" and any(n.op_type in _CONVOLUTIONS for n in nodes):
        ways = [*[BLOCKS] * (tiling and _wide(settings)), IM2COL, PLAIN] if chosen == "auto" else [chosen]
    found = [(way, tiling) for way in ways]
    if settings["data_tiling"] == "auto":
        found.append((ways[-1], False))
    return [(way, _flags(settings, device, nodes, way, tiles)) for way, tiles in dict.fromkeys(found)]


def _wide(settings: Mapping[str, Any]) -> bool:
    """Whether the processor that is compiled for is known to have AVX-512."""
    if foreign(settings) or settings["target_features"]:
        return "+avx512f" in settings["target_features"].split(",")
    host = detect.host()
    return host is not None and "avx512f" in host.features


def _flags(settings: Mapping[str, Any], device: str, nodes: Sequence[Node], way: str, tiling: bool
           ) -> tuple[str, ...]:
    """Every flag of one compilation. A Transpose that moves into a product keeps it from being tiled."""
    flags = ["--iree-input-type=onnx", f"--iree-opt-level={settings['opt_level']}"]
    if any(v is not None and v.elem is ElementType.DOUBLE for n in nodes for v in (*n.inputs, *n.outputs)):
        flags.append("--iree-input-demote-f64-to-f32=false")
    cpu, features, triple = (settings[key] for key in ("target_cpu", "target_features", "target_triple"))
    if DEVICES[device] == "llvm-cpu":
        flags += ["--iree-hal-target-device=local", "--iree-hal-local-target-device-backends=llvm-cpu",
                  f"--iree-llvmcpu-target-cpu={cpu or ('generic' if triple else 'host')}",
                  f"--iree-llvmcpu-stack-allocation-limit={_STACK}"]
        flags += [f"--iree-llvmcpu-target-triple={triple}"] * bool(triple)
        flags += [f"--iree-llvmcpu-target-cpu-features={features}"] * bool(features)
        flags += ["--iree-llvmcpu-target-abi=lp64d"] * triple.startswith("riscv64")
        flags += ["--iree-opt-data-tiling", "--iree-global-opt-propagate-transposes=false"] * tiling
        flags += _WAYS[way]
    else:
        flags.append(f"--iree-hal-target-device={device}")
        if chip := cpu or _DEFAULT_CHIP.get(device, ""):
            flags.append(f"{_CHIP[device]}={chip}")
    return (*flags, *shlex.split(settings["compiler_flags"]))
