"""OpenVINO behind the harness: a compiled model as a function of a feed, whatever the element types.

In: a model as bytes and feeds of numpy and ml_dtypes arrays. Out: arrays of the same types. Types under eight
bits are packed the way OpenVINO keeps them.
"""

from __future__ import annotations

import ctypes
from typing import Any

import ml_dtypes
import numpy as np
import openvino

BITS = {"i4": 4, "u4": 4, "f4e2m1": 4, "u2": 2, "u1": 1}
TYPES = {"bf16": ml_dtypes.bfloat16, "f8e4m3": ml_dtypes.float8_e4m3fn, "f8e5m2": ml_dtypes.float8_e5m2,
         "f8e8m0": ml_dtypes.float8_e8m0fnu, "i4": ml_dtypes.int4, "u4": ml_dtypes.uint4,
         "f4e2m1": ml_dtypes.float4_e2m1fn, "u2": ml_dtypes.uint2}
HINTS = {"INFERENCE_PRECISION_HINT": "f32", "EXECUTION_MODE_HINT": "ACCURACY"}


class OpenVino:
    """One compiled model; called with a feed, it gives the outputs in order."""

    def __init__(self, model: bytes) -> None:
        core = openvino.Core()
        self.compiled = core.compile_model(core.read_model(model), "CPU", HINTS)

    def __call__(self, feeds: dict[str, Any]) -> list[Any]:
        request, values = self.compiled.create_infer_request(), list(feeds.values())
        for i, port in enumerate(self.compiled.inputs):
            named = len(self.compiled.inputs) == len(values)
            value = values[i] if named else next(v for n, v in feeds.items() if n in port.get_names())
            request.set_input_tensor(i, _tensor(value, port.get_element_type()))
        request.infer()
        return [_array(request.get_output_tensor(i)) for i in range(len(self.compiled.outputs))]


def _tensor(value: Any, kind: Any) -> Any:
    if not isinstance(value, np.ndarray):
        raise TypeError(f"openvino takes no {type(value).__name__}")
    name = kind.get_type_name()
    if name == "string":
        return openvino.Tensor(value.astype(str) if value.size else np.empty(value.shape, "<U1"))
    tensor = openvino.Tensor(kind, openvino.Shape(list(value.shape)))
    if name in BITS:
        codes = value.view(np.uint8) if name == "f4e2m1" else value.astype(np.int8).view(np.uint8)
        raw = _packed(codes.ravel(), BITS[name])
    else:
        raw = np.frombuffer(np.ascontiguousarray(value).tobytes(), np.uint8)
    if len(raw) != tensor.byte_size:
        raise TypeError(f"openvino: {value.dtype} does not fit {name}")
    ctypes.memmove(tensor.data.ctypes.data, raw.ctypes.data, len(raw))
    return tensor


def _array(tensor: Any) -> np.ndarray:
    name, shape = tensor.get_element_type().get_type_name(), tuple(tensor.shape)
    if name == "string":
        return np.array(tensor.str_data, object).reshape(shape)
    if name not in TYPES:
        return np.array(tensor.data).reshape(shape)
    dtype = TYPES[name]
    raw = np.frombuffer(ctypes.string_at(tensor.data.ctypes.data, tensor.byte_size), np.uint8)
    if name not in BITS:
        return raw.view(dtype).reshape(shape).copy()
    codes = _unpacked(raw, BITS[name], int(np.prod(shape, dtype=np.int64)))
    if name == "f4e2m1":
        return codes.view(dtype).reshape(shape)
    if name == "i4":
        codes = ((codes.astype(np.int8) ^ 8) - 8).astype(np.int8)
    return codes.astype(dtype).reshape(shape)


def _packed(codes: np.ndarray, bits: int) -> np.ndarray:
    per = 8 // bits
    padded = np.concatenate([codes & ((1 << bits) - 1), np.zeros(-len(codes) % per, np.uint8)])
    shifts = np.arange(per, dtype=np.uint8) * bits
    return np.bitwise_or.reduce(padded.reshape(-1, per) << shifts, axis=1).astype(np.uint8)


def _unpacked(raw: np.ndarray, bits: int, count: int) -> np.ndarray:
    shifts = np.arange(8 // bits, dtype=np.uint8) * bits
    return ((raw[:, None] >> shifts) & ((1 << bits) - 1)).reshape(-1)[:count].astype(np.uint8)
