"""What onnxruntime's compiled module is named and holds: the exceptions, the enumerations, and the inner
classes."""

from __future__ import annotations

import types as _types
from typing import TYPE_CHECKING

from ..api import registry as _registry
from ..api.adapter import CoreAdapter as AdapterFormat
from ..api.adapter import LoraAdapter
from ..api.binding import SessionIOBinding
from ..api.compiler import ModelCompiler
from ..api.core import CoreSession as InferenceSession
from ..api.devices import CoreDevice as OrtDevice
from ..api.devices import (
    OrtArenaCfg,
    OrtEpDevice,
    OrtHardwareDevice,
    OrtMemoryInfo,
    OrtSyncStream,
    get_ep_devices,
    get_hardware_devices,
)
from ..api.enums import (
    ArenaExtendStrategy,
    ExecutionMode,
    ExecutionOrder,
    GraphOptimizationLevel,
    OrtAllocatorType,
    OrtCompileApiFlags,
    OrtCompiledModelCompatibility,
    OrtDeviceEpIncompatibilityReason,
    OrtDeviceMemoryType,
    OrtExecutionProviderDevicePolicy,
    OrtHardwareDeviceType,
    OrtMemoryInfoDeviceType,
    OrtMemType,
    OrtSparseFormat,
)
from ..api.environment import (
    create_and_register_allocator,
    create_and_register_allocator_v2,
    disable_telemetry_events,
    enable_telemetry_events,
    get_all_providers,
    get_available_providers,
    get_build_info,
    get_compatibility_info_from_model,
    get_compatibility_info_from_model_bytes,
    get_default_session_options,
    get_device,
    get_hardware_device_ep_incompatibility_details,
    get_model_compatibility_for_ep_devices,
    get_version_string,
    has_collective_ops,
    register_execution_provider_library,
    set_global_thread_pool_sizes,
    set_seed,
    unregister_execution_provider_library,
)
from ..api.logs import (
    set_default_logger_callback,
    set_default_logger_severity,
    set_default_logger_verbosity,
)
from ..api.metadata import (
    ModelMetadata,
    NodeArg,
    OrtEpAssignedNode,
    OrtEpAssignedSubgraph,
    OrtEpContextData,
    OrtEpContextDataBuffer,
    OrtExternalInitializerInfo,
)
from ..api.options import RunOptions, SessionOptions
from ..api.registry import get_all_operator_schema, get_all_opkernel_def, get_registered_ep_kernel_defs
from ..api.sparse import CoreSparse as SparseTensor
from ..api.sparse import SparseBlockSparseView, SparseCooView, SparseCsrView
from ..api.values import CoreValue as OrtValue
from ..api.values import OrtValueVector, is_dlpack_uint8_tensor
from ..api.values import copy_core as copy_tensors
from ..errors import (
    DeviceReset,
    EngineError,
    EPFail,
    Fail,
    InvalidArgument,
    InvalidGraph,
    InvalidProtobuf,
    ModelLoadCanceled,
    ModelLoaded,
    ModelRequiresCompilation,
    NoModel,
    NoSuchFile,
    NotFound,
    NotImplemented,
    RuntimeException,
)
from ..later import later as _later

if TYPE_CHECKING:
    from ..api.model_package import ModelPackage as ModelPackage
    from ..api.model_package import ModelPackageComponentContext as ModelPackageComponentContext
    from ..api.model_package import ModelPackageContext as ModelPackageContext
    from ..api.model_package import ModelPackageOptions as ModelPackageOptions
    from ..api.model_package import ModelPackageWriteMode as ModelPackageWriteMode
    from ..quantization.weights.arrays import quantize_matmul_2bits as quantize_matmul_2bits
    from ..quantization.weights.arrays import quantize_matmul_4bits as quantize_matmul_4bits
    from ..quantization.weights.arrays import quantize_matmul_8bits as quantize_matmul_8bits
    from ..quantization.weights.arrays import quantize_matmul_bnb4 as quantize_matmul_bnb4
    from ..quantization.weights.arrays import quantize_qdq_matmul_2bits as quantize_qdq_matmul_2bits
    from ..quantization.weights.arrays import quantize_qdq_matmul_4bits as quantize_qdq_matmul_4bits

__getattr__ = _later(__name__, {"..api.model_package": (
    "ModelPackage", "ModelPackageComponentContext", "ModelPackageContext", "ModelPackageOptions",
    "ModelPackageWriteMode"), "..quantization.weights.arrays": (
    "quantize_matmul_2bits", "quantize_matmul_4bits", "quantize_matmul_8bits", "quantize_matmul_bnb4",
    "quantize_qdq_matmul_2bits", "quantize_qdq_matmul_4bits")})
kNextPowerOfTwo = ArenaExtendStrategy.kNextPowerOfTwo
kSameAsRequested = ArenaExtendStrategy.kSameAsRequested


class SessionObjectInitializer:
    """The type of `get_session_initializer`'s answer, which nothing takes any more."""


def get_session_initializer() -> SessionObjectInitializer:
    return SessionObjectInitializer()


class _Schemas(_types.ModuleType):
    """`schemadef`: its OpSchema is that of the onnx package, imported when it is asked for."""

    def __getattr__(self, name: str) -> object:
        if name != "OpSchema":
            raise AttributeError(name)
        from onnx.defs import OpSchema

        return OpSchema


opkernel = _types.ModuleType(f"{__name__}.opkernel", "Kernel definitions.")
opkernel.KernelDef = _registry.KernelDef  # type: ignore[attr-defined]
schemadef = _Schemas(f"{__name__}.schemadef", "Operator schemas.")

__all__ = ["AdapterFormat", "ArenaExtendStrategy", "DeviceReset", "EPFail", "EngineError", "ExecutionMode",
           "ExecutionOrder", "Fail", "GraphOptimizationLevel", "InferenceSession", "InvalidArgument",
           "InvalidGraph", "InvalidProtobuf", "LoraAdapter", "ModelCompiler", "ModelLoadCanceled",
           "ModelLoaded", "ModelMetadata", "ModelPackage", "ModelPackageComponentContext",
           "ModelPackageContext", "ModelPackageOptions", "ModelPackageWriteMode",
           "ModelRequiresCompilation", "NoModel", "NoSuchFile", "NodeArg", "NotFound", "NotImplemented",
           "OrtAllocatorType", "OrtArenaCfg", "OrtCompileApiFlags", "OrtCompiledModelCompatibility",
           "OrtDevice", "OrtDeviceEpIncompatibilityReason", "OrtDeviceMemoryType", "OrtEpAssignedNode",
           "OrtEpAssignedSubgraph", "OrtEpContextData", "OrtEpContextDataBuffer", "OrtEpDevice",
           "OrtExecutionProviderDevicePolicy", "OrtExternalInitializerInfo", "OrtHardwareDevice",
           "OrtHardwareDeviceType", "OrtMemType", "OrtMemoryInfo", "OrtMemoryInfoDeviceType",
           "OrtSparseFormat", "OrtSyncStream", "OrtValue", "OrtValueVector", "RunOptions",
           "RuntimeException", "SessionIOBinding", "SessionObjectInitializer", "SessionOptions",
           "SparseBlockSparseView", "SparseCooView", "SparseCsrView", "SparseTensor", "copy_tensors",
           "create_and_register_allocator", "create_and_register_allocator_v2", "disable_telemetry_events",
           "enable_telemetry_events", "get_all_operator_schema", "get_all_opkernel_def",
           "get_all_providers", "get_available_providers", "get_build_info",
           "get_compatibility_info_from_model", "get_compatibility_info_from_model_bytes",
           "get_default_session_options", "get_device", "get_ep_devices",
           "get_hardware_device_ep_incompatibility_details", "get_hardware_devices",
           "get_model_compatibility_for_ep_devices", "get_registered_ep_kernel_defs",
           "get_session_initializer", "get_version_string", "has_collective_ops", "is_dlpack_uint8_tensor",
           "kNextPowerOfTwo", "kSameAsRequested", "opkernel", "register_execution_provider_library",
           "schemadef", "set_default_logger_callback", "set_default_logger_severity",
           "set_default_logger_verbosity", "set_global_thread_pool_sizes", "set_seed",
           "unregister_execution_provider_library"]
