"""From ranges to scales and zero points, from real arrays to quantized ones: real = scale * (q - zero).

Types are TensorProto's numbers. Scales are computed in float64 and rounded once to the type of the data, so
that they are onnxruntime's bit for bit; everything works on whole arrays of ranges, one per channel.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto

from .refused import Failed, InvalidType, InvalidValue, Unsupported

FLOAT8_TYPES = (TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT8E4M3FNUZ, TensorProto.FLOAT8E5M2,
                TensorProto.FLOAT8E5M2FNUZ)
FOUR_BITS = (TensorProto.INT4, TensorProto.UINT4)
ONNX_TYPE_TO_NP_TYPE: dict[int, Any] = {
    TensorProto.INT8: np.dtype("int8"), TensorProto.UINT8: np.dtype("uint8"),
    TensorProto.INT16: np.dtype("int16"), TensorProto.UINT16: np.dtype("uint16"),
    TensorProto.FLOAT8E4M3FN: ml_dtypes.float8_e4m3fn,
    TensorProto.INT4: ml_dtypes.int4, TensorProto.UINT4: ml_dtypes.uint4,
}
_BLOCK = 1 << 18
"""Elements that are rounded at once: as many as stay in a processor's cache."""
Range = tuple[np.ndarray, np.ndarray]


def _ranges(**limits: tuple[int, int]) -> dict[int, Range]:
    kinds = {getattr(TensorProto, name): pair for name, pair in limits.items()}
    return {kind: (np.array(low, ONNX_TYPE_TO_NP_TYPE[kind]), np.array(high, ONNX_TYPE_TO_NP_TYPE[kind]))
            for kind, (low, high) in kinds.items()}


ONNX_INT_TYPE_RANGE = _ranges(UINT8=(0, 255), INT8=(-128, 127), UINT16=(0, 65535), INT16=(-32768, 32767),
                              UINT4=(0, 15), INT4=(-8, 7))
ONNX_INT_TYPE_SYMMETRIC_RANGE = _ranges(INT8=(-127, 127), INT16=(-32767, 32767))
ONNX_INT_TYPE_REDUCED_RANGE = _ranges(UINT8=(0, 127), INT8=(-64, 64), UINT16=(0, 32767),
                                      INT16=(-16384, 16384), UINT4=(0, 7), INT4=(-4, 3))
FLOAT8_DISTRIBUTIONS: dict[int, np.ndarray] = {}
"""All finite values of a float8 type, filled when first asked for."""


def _type_name(kind: Any) -> str:
    known = isinstance(kind, int) and kind in TensorProto.DataType.values()
    return TensorProto.DataType.Name(kind) if known else repr(kind)


def _no_quantized_type(kind: Any) -> InvalidValue:
    names = ", ".join(_type_name(known) for known in ONNX_TYPE_TO_NP_TYPE)
    return InvalidValue(f"{_type_name(kind)} is no type to quantize to", expected=f"one of {names}")


def get_qmin_qmax_for_qType(qType: int, reduce_range: bool = False,
                            symmetric: bool = False) -> Range:
    """The least and the largest value of an integer type, as arrays without dimensions of that type.

    `reduce_range` leaves one bit unused; `symmetric` leaves out the least value of int8 and int16.
    Raises: Unsupported for float8, InvalidValue for other types.
    """
    if qType == TensorProto.FLOAT8E4M3FN:
        raise Unsupported("float8 has no range of integers", cure="use compute_scale_zp_float8")
    if reduce_range:
        found = ONNX_INT_TYPE_REDUCED_RANGE.get(qType)
    else:
        narrow = ONNX_INT_TYPE_SYMMETRIC_RANGE.get(qType) if symmetric else None
        found = narrow or ONNX_INT_TYPE_RANGE.get(qType)
    if found is None:
        raise _no_quantized_type(qType)
    return found


def get_qrange_for_qType(qType: int, reduce_range: bool = False,
                         symmetric: bool = False) -> Any:
    """The largest value of an integer type less its least."""
    qmin, qmax = get_qmin_qmax_for_qType(qType, reduce_range, symmetric=symmetric)
    return qmax - qmin


def _without_extent(scale: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    """Which scales their type has no number for: float32 those below its normal numbers, float16, which is
    quantized in float32, only those that are 0 in it."""
    if dtype == np.float16:
        return np.asarray(scale.astype(dtype) == 0)
    return np.asarray(scale < np.finfo(dtype).tiny)


def compute_scale_zp(rmin: Any, rmax: Any, qmin: Any, qmax: Any, symmetric: bool = False,
                     min_real_range: float | None = None) -> list[np.ndarray]:
    """[zero point, scale] such that [rmin, rmax], widened to hold 0, is represented by [qmin, qmax].

    `rmin` and `rmax` may be arrays of one shape, which the results then have. `symmetric` widens the range to
    [-m, m]; `min_real_range` raises rmax to at least rmin plus it. A range without extent has scale 1 and
    zero point 0. Raises: InvalidValue where 0 is not within [qmin, qmax], or a range is not finite.
    """
    if qmin > 0 or qmax < 0:
        raise InvalidValue(f"qmin and qmax must meet requirement: qmin <= 0 <= qmax while qmin:{qmin}, "
                           f"qmmax:{qmax}")
    low, high, least = np.asarray(rmin), np.asarray(rmax), np.asarray(qmin)
    low = np.minimum(low, np.zeros_like(low))
    high = np.maximum(high, np.zeros_like(high))
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise InvalidValue("a range of values is not finite", found=f"[{rmin}, {rmax}]",
                           expected="finite numbers", cure="look for NaN and infinity in weights and data")
    if min_real_range is not None:
        high = np.maximum(high, low + np.asarray(min_real_range, dtype=low.dtype))
    if symmetric:
        high = np.maximum(np.abs(low), np.abs(high))
        low = -high
    first, last = np.float64(qmin), np.float64(qmax)
    scale = (high.astype(np.float64) - low.astype(np.float64)) / (last - first)
    flat = _without_extent(scale, high.dtype)
    steps = np.where(flat, 1.0, scale)
    zero = np.round((first + last) / 2.0) if symmetric else np.round(first - low / steps)
    return [np.where(flat, 0, zero).astype(least.dtype), steps.astype(high.dtype)]


def snap_zero_point_to_uint8(rmin: Any, rmax: Any, qmin: int = 0, qmax: int = 255,
                             min_real_range: float | None = None) -> Range:
    """(zero point, scale), the zero point at qmin for a range without negative values, else in the middle.

    The scale, float32, covers the range without clipping it.
    """
    first, last = int(qmin), int(qmax)
    middle = (first + last + 1) // 2
    low = min(float(np.squeeze(rmin)), 0.0)
    high = max(float(np.squeeze(rmax)), 0.0)
    if min_real_range is not None and min_real_range > 0:
        high = max(high, low + float(min_real_range))
    zero = first if low >= 0.0 else middle
    if high <= low:
        scale = 1.0 / max(1, last - first)
    elif low >= 0.0:
        scale = high / (last - first)
    else:
        scale = max(-low / (middle - first), high / (last - middle))
    if min_real_range is not None:
        scale = max(float(np.float32(scale)), min_real_range / (last - first))
    return np.array(zero, np.uint8), np.array(scale, np.float32)


def compute_scale_zp_float8(element_type: int, std: Any) -> list[np.ndarray]:
    """[zero point, scale] that bring values of this standard deviation to that of all float8 values."""
    if element_type != TensorProto.FLOAT8E4M3FN:
        raise InvalidValue(f"Quantization to element_type={element_type} not implemented.",
                           expected="FLOAT8E4M3FN")
    if element_type not in FLOAT8_DISTRIBUTIONS:
        values = np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
        FLOAT8_DISTRIBUTIONS[element_type] = values[np.isfinite(values)]
    spread = np.std(FLOAT8_DISTRIBUTIONS[element_type])
    return [np.array(0, ml_dtypes.float8_e4m3fn), np.array(std / spread, dtype=std.dtype)]


def compute_scale_zp_blocked(weight: np.ndarray, quant_type: int, axis: int, block_size: int,
                             symmetric: bool) -> Range:
    """(zero points, scales) of a matrix in blocks of `block_size` along an axis.

    Both have the matrix's shape with ceil(size / block_size) in that axis. Raises: Unsupported for other
    ranks than 2.
    """
    if weight.ndim != 2:
        raise Unsupported("only matrices are quantized in blocks", found=f"shape {list(weight.shape)}",
                          cure="reshape the weight to 2 dimensions, or quantize it per channel")
    count = -(-weight.shape[axis] // block_size)
    starts = np.arange(count) * block_size
    zero = np.zeros((), weight.dtype)
    low = np.minimum(np.minimum.reduceat(weight, starts, axis), zero)
    high = np.maximum(np.maximum.reduceat(weight, starts, axis), zero)
    if symmetric:
        high = np.maximum(np.abs(low), np.abs(high))
        low = -high
    qmin, qmax = get_qmin_qmax_for_qType(quant_type, symmetric=symmetric)
    first, last = np.float64(qmin), np.float64(qmax)
    scale = ((high - low).astype(np.float64) / (last - first)).astype(weight.dtype)
    flat = _without_extent(scale, weight.dtype)
    scale = np.where(flat, np.ones_like(scale), scale)
    if symmetric:
        zeros = np.full(scale.shape, np.round((first + last) / 2.0))
    else:
        zeros = np.clip(np.round(first - low.astype(np.float64) / scale.astype(np.float64)), first, last)
        zeros[flat] = 0
    return zeros.astype(qmin.dtype), scale


def compute_data_quant_params(data: np.ndarray, quant_type: int, symmetric: bool, reduce_range: bool = False,
                              min_real_range: float | None = None, rmin_override: float | None = None,
                              rmax_override: float | None = None) -> Range:
    """(zero point, scale) for an array, from its least and largest value unless these are given.

    For float8 from its standard deviation. Raises: InvalidType for what is no array, InvalidValue for types
    that are not quantized to and for values that are not finite.
    """
    if not isinstance(data, np.ndarray):
        raise InvalidType(f"Weight must be given as an array not {type(data)}.")
    if quant_type == TensorProto.FLOAT8E4M3FN:
        if reduce_range:
            raise Failed("Unsupported option reduce_range=True for float 8.", cure="pass reduce_range=False")
        zero, scale = compute_scale_zp_float8(quant_type, np.std(data))
        return zero, scale
    if quant_type not in ONNX_INT_TYPE_RANGE:
        raise _no_quantized_type(quant_type)
    qmin, qmax = get_qmin_qmax_for_qType(quant_type, reduce_range, symmetric=symmetric)
    if not data.size:
        return np.array(0, qmin.dtype), np.array(1.0, data.dtype)
    low = np.array(data.min() if rmin_override is None else rmin_override, data.dtype)
    high = np.array(data.max() if rmax_override is None else rmax_override, data.dtype)
    zero, scale = compute_scale_zp(low, high, qmin, qmax, symmetric, min_real_range)
    return zero, scale


def quantize_nparray(qType: int, arr: np.ndarray, scale: Any, zero_point: Any,
                     low: Any = None, high: Any = None) -> np.ndarray:
    """An array rounded to scale * (q - zero_point), clipped to the type's range and to [low, high].

    `scale` and `zero_point` broadcast to the array. Raises: InvalidValue for NaN, Unsupported for float8 with
    a zero point.
    """
    if qType not in ONNX_TYPE_TO_NP_TYPE:
        raise _no_quantized_type(qType)
    kind = ONNX_TYPE_TO_NP_TYPE[qType]
    if qType == TensorProto.FLOAT8E4M3FN:
        if np.any(np.asarray(zero_point).astype(np.float32)):
            raise Unsupported(f"zero_point is expected to be null for float 8 not {zero_point!r}.")
        largest = float(ml_dtypes.finfo(kind).max)
        return np.asarray(np.clip(arr / scale, -largest, largest)).astype(kind)
    qmin, qmax = (float(limit) for limit in ONNX_INT_TYPE_RANGE[qType])
    bottom = qmin if low is None else max(qmin, float(low))
    top = qmax if high is None else min(qmax, float(high))
    values, zeros = np.asarray(arr), np.asarray(zero_point).astype(np.float32)
    if not values.ndim:
        return _rounded(values, scale, zeros, bottom, top).astype(kind)
    result = np.empty(values.shape, kind)
    step = max(1, _BLOCK * len(values) // max(values.size, 1))
    for start in range(0, len(values), step):
        rows = slice(start, start + step)
        result[rows] = _rounded(values[rows], _rows(scale, rows), _rows(zeros, rows), bottom, top)
    return result


def _rows(part: Any, rows: slice) -> Any:
    """What of a scale or zero point, broadcast to an array, belongs to these rows of the array."""
    return part[rows] if np.ndim(part) and len(part) > 1 else part


def _rounded(values: np.ndarray, scale: Any, zero: np.ndarray, low: float, high: float) -> np.ndarray:
    quotient = np.asarray(values.astype(np.float32, copy=False) / scale)
    np.rint(quotient, out=quotient)
    quotient += zero
    if np.isnan(quotient).any():
        raise InvalidValue("NaN cannot be quantized to integers", cure="correct the weights or the scale")
    return np.clip(quotient, low, high, out=quotient)


def quantize_data(data: Any, qType: int, symmetric: bool, reduce_range: bool = False,
                  min_real_range: float | None = None, rmin_override: float | None = None,
                  rmax_override: float | None = None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(zero point, scale, quantized array): compute_data_quant_params and quantize_nparray in one."""
    zero, scale = compute_data_quant_params(data, qType, symmetric, reduce_range, min_real_range,
                                            rmin_override, rmax_override)
    quantized = quantize_nparray(qType, data, scale, zero)
    if qType in FLOAT8_TYPES and (quantized.view(np.uint8).ravel() & 127 == 127).any():
        raise Failed("one of the quantized values is NaN", found=f"data in [{data.min()}, {data.max()}]")
    return zero, scale, quantized


def pack_bytes_to_4bit(src_8bit: bytes) -> bytearray:
    """Two values of 4 bits in each byte, the first in the low half; an odd count leaves a high half 0."""
    values = np.frombuffer(src_8bit, np.uint8) & 15
    pairs = np.pad(values, (0, values.size % 2)).reshape(-1, 2)
    return bytearray((pairs[:, 0] | pairs[:, 1] << 4).astype(np.uint8).tobytes())


def quantized_tensor(values: np.ndarray, kind: int, name: str) -> TensorProto:
    """A tensor of quantized values, those of 4 bits packed."""
    if kind in FOUR_BITS:
        raw = bytes(pack_bytes_to_4bit(values.astype(np.int8).tobytes()))
    else:
        raw = np.ascontiguousarray(values.astype(ONNX_TYPE_TO_NP_TYPE[kind])).tobytes()
    return TensorProto(name=name, data_type=kind, dims=values.shape, raw_data=raw)


def listed_tensor(values: np.ndarray, kind: int, name: str) -> TensorProto:
    """A tensor that holds its values in the field of its type and not as bytes, as onnxruntime's scales and
    zero points do: programs read `float_data` and `int32_data` of them."""
    return onnx.helper.make_tensor(name, kind, values.shape, values.ravel().tolist())


def along(values: np.ndarray, axis: int, shape: tuple[int, ...], block_size: int = 0) -> np.ndarray:
    """Scales or zero points per channel (one dimension) or block (the tensor's), broadcast to its shape."""
    if block_size:
        return np.repeat(values, block_size, axis).take(range(shape[axis]), axis)
    return values.reshape([-1 if i == axis else 1 for i in range(len(shape))])


def quantize_onnx_initializer(weight: TensorProto, quant_type: int, zero_point: np.ndarray, scale: np.ndarray,
                              axis: int | None = None, quant_weight_name: str | None = None,
                              block_size: int = 0) -> TensorProto:
    """A float tensor quantized: per tensor, per channel of an axis, or per block along it.

    The result is called `<name>_quantized` unless named. Raises: InvalidValue for other types and NaN.
    """
    data = tensor_proto_to_array(weight)
    if axis is not None:
        scale = along(np.asarray(scale), axis, data.shape, block_size)
        zero_point = along(np.asarray(zero_point), axis, data.shape, block_size)
    try:
        values = quantize_nparray(quant_type, data, scale, zero_point)
    except InvalidValue as error:
        raise InvalidValue(f"the initializer {weight.name!r} cannot be quantized: {error.text}",
                           cure=error.cure) from None
    return quantized_tensor(values, quant_type, quant_weight_name or f"{weight.name}_quantized")


def tensor_proto_to_array(initializer: TensorProto) -> np.ndarray:
    """A float32 or float16 tensor's values, not to be written to. Raises: InvalidValue for other types."""
    if initializer.data_type not in (TensorProto.FLOAT, TensorProto.FLOAT16):
        raise InvalidValue(f"Only float type is supported. Weights {initializer.name} is "
                           f"{_type_name(initializer.data_type)}",
                           cure="leave the nodes that read it out by nodes_to_exclude")
    if initializer.HasField("raw_data"):
        dtype = onnx.helper.tensor_dtype_to_np_dtype(initializer.data_type)
        return np.frombuffer(initializer.raw_data, dtype).reshape(tuple(initializer.dims))
    return onnx.numpy_helper.to_array(initializer)
