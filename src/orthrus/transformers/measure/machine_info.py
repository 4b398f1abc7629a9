"""`python -m orthrus.transformers.machine_info`: this machine and what is installed, as JSON.

Nothing but the system is asked, and NVIDIA's library where `py3nvml` or `pynvml` is installed; what cannot be
known is null. No package is imported to tell its version, but torch for its devices.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import logging
import os
import platform
from typing import Any

from ...shown import tell
from .arguments import parser, switch

_PACKAGES = ("transformers", "onnx", "numpy", "torch", "tensorflow", "protobuf", "flatbuffers",
             "onnxconverter-common", "sympy")
_RUNTIMES = ("orthrus-runtime", "onnxruntime", "onnxruntime-gpu", "ort-nightly", "openvino")


class MachineInfo:
    """What this machine is; `machine_info` is all of it as JSON, which is logged unless `silent`."""

    def __init__(self, silent: bool = False, logger: logging.Logger | None = None) -> None:
        self.silent = silent
        self.logger = logger or logging.getLogger(__name__)
        self.machine_info = json.dumps(self.get_machine_info(), indent=2)
        if not silent:
            self.logger.info(self.machine_info)

    def get_machine_info(self) -> dict[str, Any]:
        """Everything, by subject."""
        return {"gpu": self.get_gpu_info_by_nvml(), "cpu": self.get_cpu_info(),
                "memory": self.get_memory_info(), "os": platform.platform(),
                "python": platform.python_version(), "packages": self.get_related_packages(),
                "onnxruntime": self.get_onnxruntime_info(), "pytorch": self.get_pytorch_info(),
                "tensorflow": self.get_tensorflow_info()}

    def get_memory_info(self) -> dict[str, Any]:
        """Bytes of memory: `total`, and `available` to a new process."""
        rows = _rows("/proc/meminfo")
        return {key: int(rows[name].split()[0]) << 10 if name in rows else None
                for key, name in (("total", "MemTotal"), ("available", "MemAvailable"))}

    def get_cpu_info(self) -> dict[str, Any]:
        """The processor: its brand, cores, hertz, second cache in bytes, features."""
        rows = _rows("/proc/cpuinfo")
        hertz, cache = rows.get("cpu MHz"), _text("/sys/devices/system/cpu/cpu0/cache/index2/size").strip()
        return {"brand": rows.get("model name") or platform.processor() or None,
                "cores": cores(), "logical_cores": os.cpu_count(),
                "hz": f"{float(hertz) / 1e3:.4f} GHz" if hertz else None,
                "l2_cache": int(cache[:-1]) << 10 if cache.endswith("K") else None,
                "flags": ",".join(sorted(rows.get("flags", rows.get("Features", "")).split())) or None,
                "processor": platform.uname().processor}

    def get_gpu_info_by_nvml(self) -> dict[str, Any] | None:
        """NVIDIA's driver and devices; None where there is no driver or no binding to it."""
        nvml = _nvml()
        if nvml is None:
            return None
        try:
            nvml.nvmlInit()
        except nvml.NVMLError:
            return None
        devices = []
        for i in range(nvml.nvmlDeviceGetCount()):
            handle = nvml.nvmlDeviceGetHandleByIndex(i)
            memory = nvml.nvmlDeviceGetMemoryInfo(handle)
            devices.append({"memory_total": memory.total, "memory_available": memory.free,
                            "name": str(nvml.nvmlDeviceGetName(handle))})
        found = {"driver_version": str(nvml.nvmlSystemGetDriverVersion()), "devices": devices}
        nvml.nvmlShutdown()
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        return found if visible is None else {**found, "cuda_visible": visible}

    def get_related_packages(self) -> list[str]:
        """`name==version` of what is installed of runtimes, frameworks and exporters."""
        found = {name: _version(name) for name in (*_RUNTIMES, *_PACKAGES)}
        return [f"{name}=={version}" for name, version in found.items() if version]

    def get_onnxruntime_info(self) -> dict[str, Any]:
        """This runtime, and whether it reaches a GPU."""
        import orthrus as ort

        return {"version": ort.__version__,
                "support_gpu": "CUDAExecutionProvider" in ort.get_available_providers()}

    def get_pytorch_info(self) -> dict[str, Any] | None:
        """torch, and whether it reaches a GPU; None where it is not installed."""
        if importlib.util.find_spec("torch") is None:
            return None
        import torch

        return {"version": torch.__version__, "support_gpu": torch.cuda.is_available(),
                "cuda": torch.version.cuda}

    def get_tensorflow_info(self) -> dict[str, Any] | None:
        """TensorFlow's version; None where it is not installed."""
        version = _version("tensorflow")
        return None if version is None else {"version": version}


def cores() -> int:
    """Physical cores, as far as the system tells them from logical ones."""
    blocks = [_pairs(block) for block in _text("/proc/cpuinfo").split("\n\n")]
    found = {(block.get("physical id"), block["core id"]) for block in blocks if "core id" in block}
    return len(found) or os.cpu_count() or 1


def _pairs(text: str) -> dict[str, str]:
    pairs = (line.partition(":") for line in text.splitlines())
    return {name.strip(): value.strip() for name, colon, value in pairs if colon}


def _text(path: str) -> str:
    """A file of the system's; nothing where there is none."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def _rows(path: str) -> dict[str, str]:
    """`name: value` lines of a file of the system's."""
    return _pairs(_text(path))


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _nvml() -> Any:
    if importlib.util.find_spec("py3nvml") is not None:
        from py3nvml import py3nvml

        return py3nvml
    if importlib.util.find_spec("pynvml") is not None:
        import pynvml

        return pynvml
    return None


def parse_arguments() -> Any:
    """The command's flags."""
    return parser("This machine and what is installed, as JSON.",
                  more={"silent": switch("--silent", help="print only the JSON")}).parse_args()


def get_machine_info(silent: bool = True) -> str:
    """All of `MachineInfo`, as JSON."""
    return MachineInfo(silent).machine_info


def get_device_info(silent: bool = True) -> str:
    """The devices, processor and memory of `MachineInfo`, as JSON."""
    found = MachineInfo(silent).get_machine_info()
    return json.dumps({key: found[key] for key in ("gpu", "cpu", "memory")}, indent=2)


if __name__ == "__main__":
    given = parse_arguments()
    tell(get_machine_info(given.silent))
