"""onnxruntime.quantization's names on this runtime: a float model goes in, a quantized model file comes out.

Every name is imported when it is first used, so that one tool does not pay for the others.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ..later import later

if TYPE_CHECKING:
    from .advising.advice import advise
    from .calibrate import (
        CalibraterBase,
        CalibrationDataReader,
        CalibrationMethod,
        MinMaxCalibrater,
        TensorData,
        TensorsData,
        create_calibrator,
        load_tensors_data,
        save_tensors_data,
    )
    from .cuda_quantizer import CudaQuantizer
    from .qdq_quantizer import QDQQuantizer
    from .quant_utils import QuantFormat, QuantizationMode, QuantType, write_calibration_table
    from .quantize import (
        DynamicQuantConfig,
        StaticQuantConfig,
        get_qdq_config,
        quantize,
        quantize_dynamic,
        quantize_static,
    )
    from .shape_inference import quant_pre_process

_MODULES = ("base_quantizer", "calibrate", "cuda_quantizer", "fusions", "onnx_model", "onnx_quantizer",
            "operators", "qdq_quantizer", "quant_utils", "registry", "shape_inference",
            "tensor_quant_overrides")

__all__ = ["CalibraterBase", "CalibrationDataReader", "CalibrationMethod", "CudaQuantizer",
           "DynamicQuantConfig", "MinMaxCalibrater", "QDQQuantizer", "QuantFormat", "QuantType",
           "QuantizationMode", "StaticQuantConfig", "TensorData", "TensorsData", "advise",
           "create_calibrator", "get_qdq_config", "load_tensors_data", "quant_pre_process", "quantize",
           "quantize_dynamic", "quantize_static", "save_tensors_data", "write_calibration_table"]


class _Package(ModuleType):
    """The package, in which `quantize` is the function, also once the module of that name is imported."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "quantize" and isinstance(value, ModuleType):
            value = value.quantize
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


_name = later(__name__, {
    "advising.advice": ("advise",),
    "calibrate": ("CalibraterBase", "CalibrationDataReader", "CalibrationMethod", "MinMaxCalibrater",
                  "TensorData", "TensorsData", "create_calibrator", "load_tensors_data",
                  "save_tensors_data"),
    "cuda_quantizer": ("CudaQuantizer",),
    "qdq_quantizer": ("QDQQuantizer",),
    "quant_utils": ("QuantFormat", "QuantType", "QuantizationMode", "write_calibration_table"),
    "quantize": ("DynamicQuantConfig", "StaticQuantConfig", "get_qdq_config", "quantize",
                 "quantize_dynamic", "quantize_static"),
    "shape_inference": ("quant_pre_process",),
})


def __getattr__(name: str) -> Any:
    """A public name from the module it lives in, or one of those modules."""
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    return _name(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
