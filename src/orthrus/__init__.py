"""Orthrus: an ONNX runtime with the API of onnxruntime, and execution providers as Python classes.

    import orthrus as ort
    session = ort.InferenceSession("model.onnx")
    outputs = session.run(None, {"x": array})

`__version__` is the level of the onnxruntime API, which programs compare; `orthrus_version` is the package's
own. Beyond onnxruntime's names there are `op`, `ExecutionProvider`, `register_execution_provider`,
`KernelRegistry`, `Limits`, `generate`, `from_torch` and `install_as_onnxruntime`.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from .api.adapter import AdapterFormat, LoraAdapter
from .api.alias import follow_aliases, install_as_onnxruntime
from .api.binding import IOBinding, SessionIOBinding
from .api.compiler import ModelCompiler
from .api.custom_op import op, unregister_op
from .api.devices import (
    OrtArenaCfg,
    OrtDevice,
    OrtEpDevice,
    OrtHardwareDevice,
    OrtMemoryInfo,
    OrtSyncStream,
    get_ep_devices,
)
from .api.enums import (
    ExecutionMode,
    ExecutionOrder,
    GraphOptimizationLevel,
    OrtAllocatorType,
    OrtCompileApiFlags,
    OrtDeviceMemoryType,
    OrtDeviceVendorId,
    OrtExecutionProviderDevicePolicy,
    OrtHardwareDeviceType,
    OrtMemoryInfoDeviceType,
    OrtMemType,
    OrtSparseFormat,
)
from .api.environment import (
    create_and_register_allocator,
    create_and_register_allocator_v2,
    disable_telemetry_events,
    enable_telemetry_events,
    get_all_providers,
    get_available_providers,
    get_build_info,
    get_device,
    get_version_string,
    has_collective_ops,
    preload_dlls,
    print_debug_info,
    register_execution_provider_library,
    set_global_thread_pool_sizes,
    set_seed,
    unregister_execution_provider_library,
)
from .api.logs import (
    set_default_logger_callback,
    set_default_logger_severity,
    set_default_logger_verbosity,
)
from .api.metadata import (
    ModelMetadata,
    NodeArg,
    OrtEpAssignedNode,
    OrtEpAssignedSubgraph,
    OrtEpContextData,
    OrtEpContextDataBuffer,
    OrtExternalInitializerInfo,
)
from .api.options import RunOptions, SessionOptions
from .api.ortvalue import OrtValue, copy_tensors
from .api.session import InferenceSession
from .api.sparse import SparseTensor
from .api.version import API_LEVEL as __version__
from .api.version import VERSION as orthrus_version

if TYPE_CHECKING:
    from . import capi
    from .api.model_package import (
        ModelPackage,
        ModelPackageComponentContext,
        ModelPackageContext,
        ModelPackageOptions,
        ModelPackageWriteMode,
    )
    from .capi import onnxruntime_validation
    from .generation import generate
    from .kernels import KernelRegistry
    from .limits import Limits
    from .providers import ExecutionProvider
    from .providers import register as register_execution_provider
    from .providers import unregister as unregister_execution_provider
    from .torch import from_torch as from_torch

__author__ = "The Orthrus developers"
package_name = "orthrus"
version = __version__
cuda_version = ""
import_capi_exception = None

follow_aliases()

_LATER = {
    "capi": ("orthrus.capi", None),
    **{name: ("orthrus.api.model_package", name) for name in (
        "ModelPackage", "ModelPackageComponentContext", "ModelPackageContext", "ModelPackageOptions",
        "ModelPackageWriteMode")},
    "onnxruntime_validation": ("orthrus.capi.onnxruntime_validation", None),
    "Limits": ("orthrus.limits", "Limits"),
    "ExecutionProvider": ("orthrus.providers", "ExecutionProvider"),
    "KernelRegistry": ("orthrus.kernels", "KernelRegistry"),
    "from_torch": ("orthrus.torch", "from_torch"),
    "generate": ("orthrus.generation", "generate"),
    "register_execution_provider": ("orthrus.providers", "register"),
    "torch": ("orthrus.torch", None),
    "unregister_execution_provider": ("orthrus.providers", "unregister"),
}

__all__ = ["AdapterFormat", "ExecutionMode", "ExecutionOrder", "ExecutionProvider", "GraphOptimizationLevel",
           "IOBinding", "InferenceSession", "KernelRegistry", "Limits", "LoraAdapter", "ModelCompiler",
           "ModelMetadata", "ModelPackage", "ModelPackageComponentContext", "ModelPackageContext",
           "ModelPackageOptions", "ModelPackageWriteMode",
           "NodeArg", "OrtAllocatorType", "OrtArenaCfg", "OrtCompileApiFlags", "OrtDevice",
           "OrtDeviceMemoryType", "OrtDeviceVendorId", "OrtEpAssignedNode", "OrtEpAssignedSubgraph",
           "OrtEpContextData", "OrtEpContextDataBuffer", "OrtEpDevice", "OrtExecutionProviderDevicePolicy",
           "OrtExternalInitializerInfo", "OrtHardwareDevice", "OrtHardwareDeviceType", "OrtMemType",
           "OrtMemoryInfo", "OrtMemoryInfoDeviceType", "OrtSparseFormat", "OrtSyncStream", "OrtValue",
           "RunOptions", "SessionIOBinding", "SessionOptions", "SparseTensor", "__author__", "__version__",
           "capi", "contextlib", "copy_tensors", "create_and_register_allocator",
           "create_and_register_allocator_v2", "cuda_version", "disable_telemetry_events",
           "enable_telemetry_events", "generate", "get_all_providers", "get_available_providers",
           "get_build_info", "get_device", "get_ep_devices", "get_version_string", "has_collective_ops",
           "import_capi_exception", "install_as_onnxruntime", "onnxruntime_validation", "op",
           "orthrus_version", "package_name",
           "preload_dlls", "print_debug_info", "register_execution_provider",
           "register_execution_provider_library", "set_default_logger_callback",
           "set_default_logger_severity", "set_default_logger_verbosity", "set_global_thread_pool_sizes",
           "set_seed",
           "unregister_execution_provider", "unregister_execution_provider_library", "unregister_op",
           "version"]


def __getattr__(name: str) -> Any:
    """What is imported when it is first asked for: modules that would make `import orthrus` slow."""
    import importlib

    if name not in _LATER:
        raise AttributeError(f"module 'orthrus' has no attribute {name!r}")
    module, attribute = _LATER[name]
    found = importlib.import_module(module)
    value = found if attribute is None else getattr(found, attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*(name for name in globals() if name.startswith("__")), *__all__})
