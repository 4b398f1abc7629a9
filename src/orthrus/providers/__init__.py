"""The providers: which there are, which work here, and how one is made from its name and options."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from ..errors import EPFail, Fail, InvalidArgument
from ..later import later
from .base import Capability, ExecutionProvider, GraphView, Option, flag
from .cpu import CPUExecutionProvider

if TYPE_CHECKING:
    from ..kernels import Device, Part, convex_groups
    from .null import NullExecutionProvider

ENTRY_POINTS = "orthrus.providers"
ALL = tuple(f"{name}ExecutionProvider" for name in (
    "NvTensorRTRTX", "Tensorrt", "CUDA", "ROCM", "MIGraphX", "OpenVINO", "Dnnl", "IREE", "SpaceMIT",
    "VitisAI", "QNN", "Nnapi", "VSINPU", "Js", "CoreML", "ACL", "Dml", "Rknpu", "WebNN", "WebGpu", "Xnnpack",
    "CANN", "Azure", "Null", "CPU"))
"""Every provider name onnxruntime or Orthrus has, by priority; a session takes those that are registered."""

_OWN: dict[str, str] = {
    "CUDAExecutionProvider": "cuda:CUDAExecutionProvider",
    "ROCMExecutionProvider": "rocm:ROCMExecutionProvider",
    "MIGraphXExecutionProvider": "migraphx:MIGraphXExecutionProvider",
    "DnnlExecutionProvider": "dnnl:DnnlExecutionProvider",
    "IREEExecutionProvider": "iree:IREEExecutionProvider",
    "SpaceMITExecutionProvider": "spacemit:SpaceMITExecutionProvider",
    "NullExecutionProvider": "null:NullExecutionProvider",
}
"""Where this package's further providers are, below this module: read when somebody asks for them."""

_GPUS = tuple(name for name in ("CUDAExecutionProvider", "ROCMExecutionProvider") if name in _OWN)
_NVIDIA, _AMD = 4318, 4098

_classes: dict[str, type[ExecutionProvider]] = {}


def register(cls: type[ExecutionProvider]) -> type[ExecutionProvider]:
    """Make a provider class known by its name. Raises InvalidArgument for no provider,
    Fail for a name that is taken."""
    if not (isinstance(cls, type) and issubclass(cls, ExecutionProvider)) or not getattr(cls, "name", ""):
        raise InvalidArgument("an execution provider is a class with a name", found=repr(cls),
                              expected="a subclass of orthrus.ExecutionProvider with `name = ...`")
    if _classes.get(cls.name, cls) is not cls:
        raise Fail(f"Provider {cls.name} has already been registered.", found=repr(_classes[cls.name]),
                   cure="give the provider another name, or unregister the first")
    _classes[cls.name] = cls
    return cls


def unregister(name: str) -> None:
    """Forget a registered provider. Raises Fail for an unknown name, InvalidArgument for the CPU provider."""
    if name == CPUExecutionProvider.name:
        raise InvalidArgument("the CPU provider is always there", found=name)
    if _classes.pop(name, None) is None:
        raise Fail(f"Execution provider library: {name} was not registered.")


@cache
def _installed() -> None:
    """Register what other packages offer under the entry-point group; one that fails to
    import is reported, not fatal."""
    from importlib.metadata import entry_points

    for point in entry_points(group=ENTRY_POINTS):
        try:
            register(point.load())
        except Exception as error:
            logging.getLogger("orthrus").warning("provider %s from %s does not load: %s", point.name,
                                                 point.value, error)


@cache
def _own(name: str) -> None:
    """Register one of this package's further providers."""
    module, _, attribute = _OWN[name].partition(":")
    register(getattr(import_module(f".{module}", __name__), attribute))


def known(wanted: Iterable[str] | None = None) -> dict[str, type[ExecutionProvider]]:
    """Every registered provider class by name, the CPU provider last. Installed packages are asked for theirs
    unless all that is `wanted` is there, which saves looking through every package."""
    for name in _OWN.keys() if wanted is None else _OWN.keys() & set(wanted):
        _own(name)
    if wanted is None or not _classes.keys() >= set(wanted):
        _installed()
    others = [name for name in _classes if name not in _OWN and name != CPUExecutionProvider.name]
    return {name: _classes[name] for name in (*others, *_OWN, CPUExecutionProvider.name) if name in _classes}


def available() -> list[str]:
    """Names of the registered providers that are listed and work on this machine, by priority, the CPU
    provider last."""
    return [name for name, cls in known().items() if cls.listed and cls.probe() is None]


def device_of(kind: int, vendor: int, index: int) -> Device | None:
    """The device of a registered provider with onnxruntime's numbers; None where there is none. `vendor` 0
    stands for any, and NVIDIA's for AMD's too where only those are, as torch calls both `cuda`."""
    found = [d for cls in known(_GPUS if kind == 1 else ()).values() for d in cls.devices()
             if (d.kind, d.index) == (kind, index)]
    of_vendor = [d for d in found if d.vendor == vendor]
    if not of_vendor and (vendor == 0 or vendor == _NVIDIA and kind == 1):
        of_vendor = [d for d in found if vendor == 0 or d.vendor in (0, _AMD)]
    return of_vendor[0] if of_vendor else None


def create(name: str, options: dict[str, Any] | None = None, target: str = "") -> ExecutionProvider:
    """An instance of provider `name`; with a `target`, one that is only to compile for that. Raises
    InvalidArgument for an unknown name or option, EPFail where it cannot work."""
    cls = known((name,)).get(name)
    if cls is None:
        raise InvalidArgument(f"Unknown Provider Type: {name}", expected=", ".join(known()),
                              cure="register it with orthrus.register_execution_provider, or install "
                                   "its package")
    why = cls.probe_target(target) if target else cls.probe_with(options or {})
    if why is not None:
        raise EPFail(f"{name} cannot work on this machine: {why.reason}")
    return cls(options)


register(CPUExecutionProvider)

__all__ = ["ALL", "CPUExecutionProvider", "Capability", "ExecutionProvider", "GraphView",
           "NullExecutionProvider", "Option", "Part", "available", "convex_groups", "create",
           "device_of", "flag", "known", "register", "unregister"]

__getattr__ = later(__name__, {"null": ("NullExecutionProvider",), ".kernels": ("Part", "convex_groups")})
