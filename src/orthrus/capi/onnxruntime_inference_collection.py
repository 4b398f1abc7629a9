"""The session and what belongs to it, under onnxruntime's module name."""

from __future__ import annotations

from ..api.adapter import AdapterFormat
from ..api.binding import IOBinding
from ..api.compiler import (
    GetInitializerLocationFunc,
    GetInitializerLocationWrapperFunc,
    ModelCompiler,
    make_get_initializer_location_func_wrapper,
)
from ..api.devices import OrtDevice, get_ort_device_type, get_vendor_id_for_device_type
from ..api.enums import OrtDeviceVendorId
from ..api.ortvalue import OrtValue, copy_tensors
from ..api.session import InferenceSession, Session, check_and_normalize_provider_args
from ..api.sparse import SparseTensor
from . import _pybind_state as C

__all__ = ["AdapterFormat", "C", "GetInitializerLocationFunc", "GetInitializerLocationWrapperFunc",
           "IOBinding", "InferenceSession", "ModelCompiler", "OrtDevice", "OrtDeviceVendorId", "OrtValue",
           "Session", "SparseTensor", "check_and_normalize_provider_args", "copy_tensors",
           "get_ort_device_type", "get_vendor_id_for_device_type",
           "make_get_initializer_location_func_wrapper"]
