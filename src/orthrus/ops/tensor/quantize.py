"""Linear quantization: real arrays in, quantized out, and back; and matrix products of quantized arrays.

A scale and a zero point are shared by a whole tensor, or hold for one index of an axis, or for a block along
it. A quantized value is never undefined: what is out of range saturates, and NaN becomes the lowest integer.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...ir import HALF, ElementType, element_of
from ...limits import bounded, reserve
from ..define import Samples, define, normalized_axis
from ..math.linalg import matmul
from .cast import narrowed

E = ElementType
_PRECISIONS = frozenset({E.FLOAT, E.FLOAT16, E.BFLOAT16, E.DOUBLE})


def spread(p: np.ndarray, x: np.ndarray, axis: int, block_size: int, what: str) -> np.ndarray:
    """`p`, a scale or zero point, in a shape that broadcasts to `x`. Raises ValueError if it does not fit."""
    if p.size == 1 and not block_size:
        return p.reshape(())
    if p.ndim == 1 and not block_size:
        at = 0 if x.ndim == 1 else normalized_axis(axis, x.ndim)
        if not x.ndim or len(p) != x.shape[at]:
            raise ValueError(f"the {what} has {len(p)} elements for axis {axis} of shape {x.shape}")
        return p.reshape((-1,) + (1,) * (x.ndim - at - 1))
    at = normalized_axis(axis, x.ndim)
    if block_size < 1 or p.ndim != x.ndim:
        raise ValueError(f"a {what} of shape {p.shape} with block_size {block_size} does not fit shape"
                         f" {x.shape}")
    blocks = tuple(-(-d // block_size) if i == at else d for i, d in enumerate(x.shape))
    if p.shape != blocks:
        raise ValueError(f"a {what} of shape {p.shape} does not fit shape {x.shape} in blocks of {block_size}"
                         f" along axis {at}, which takes {blocks}")
    repeated = np.repeat(p, min(block_size, x.shape[at] or 1), axis=at)
    return repeated[(slice(None),) * at + (slice(x.shape[at]),)]


def quantized(real: np.ndarray, zero: np.ndarray | None, target: ElementType, saturate: bool = True
              ) -> np.ndarray:
    """float32 elements, scaled already, rounded to nearest even, shifted by `zero` and saturated in type
    `target`; the floating targets round after the shift. `real` is overwritten."""
    if zero is not None and target.floating:
        real += zero.astype(np.float32)
    if target.floating:
        return narrowed(real, target, saturate)
    np.rint(real, out=real)
    if zero is not None:
        real += zero.astype(np.float32)
    least, most = target.span
    np.fmax(real, np.float32(least), out=real)
    np.fmin(real, np.float32(most), out=real)
    return real.astype(np.int32).astype(target.numpy)


def _target(zero: np.ndarray | None, output_dtype: int) -> ElementType:
    if not output_dtype:
        return E.UINT8 if zero is None else element_of(zero.dtype)
    target = ElementType(output_dtype)
    if zero is not None and element_of(zero.dtype) is not target:
        raise ValueError(f"output_dtype is {target.text}, the zero point {element_of(zero.dtype).text}")
    if target.bits > 16 or target in _PRECISIONS or target in (E.BOOL, E.STRING):
        raise ValueError(f"no tensor is quantized to {target.text}")
    return target


def _coded(x: np.ndarray, y_scale: np.ndarray, y_zero_point: np.ndarray | None, precision: ElementType,
           axis: int, block_size: int, output_dtype: int, saturate: int) -> np.ndarray:
    """`x` over the scale, divided in `precision`, as codes."""
    if precision not in _PRECISIONS:
        raise ValueError(f"QuantizeLinear does not divide in {precision.text}")
    target = _target(y_zero_point, output_dtype)
    scale = spread(y_scale, x, axis, block_size, "scale")
    zero = None if y_zero_point is None else spread(y_zero_point, x, axis, block_size, "zero point")
    reserve(4 * math.prod(bounded(x.shape, np.float32)))
    work = precision.numpy
    real = np.asarray(np.true_divide(x.astype(work, copy=False), scale.astype(work)))
    return quantized(real.astype(np.float32, copy=False), zero, target, bool(saturate))


@define(since=23)
def QuantizeLinear(x, y_scale, y_zero_point=None, *, axis: int = 1, block_size: int = 0,
                   output_dtype: int = 0, precision: int = 0, saturate: int = 1):
    """saturate(round(x / y_scale) + y_zero_point), divided in the type of a scale in half precision, else in
    float32; `precision` asks for another."""
    half = element_of(y_scale.dtype) if y_scale.dtype in HALF else E.FLOAT
    work = ElementType(precision) if precision else half
    return _coded(x, y_scale, y_zero_point, work, axis, block_size, output_dtype, saturate)


@define
def QuantizeLinear_1(x, y_scale, y_zero_point=None, *, axis: int = 1, block_size: int = 0,
                     output_dtype: int = 0, saturate: int = 1):
    """saturate(round(x / y_scale) + y_zero_point), divided in float32"""
    return _coded(x, y_scale, y_zero_point, E.FLOAT, axis, block_size, output_dtype, saturate)


@define
def DequantizeLinear(x, x_scale, x_zero_point=None, *, axis: int = 1, block_size: int = 0,
                     output_dtype: int = 0):
    """(x - x_zero_point) * x_scale"""
    result = ElementType(output_dtype).numpy if output_dtype else x_scale.dtype
    if element_of(result) not in _PRECISIONS:
        raise ValueError(f"DequantizeLinear gives floats, found {element_of(result).text}; give output_dtype")
    reserve(8 * math.prod(bounded(x.shape, np.float32)))
    scale = spread(x_scale, x, axis, block_size, "scale").astype(np.float32)
    if x_zero_point is None:
        y = x.astype(np.float32)
    elif x.dtype == np.int32:
        y = (x.astype(np.int64) - spread(x_zero_point, x, axis, block_size, "zero point")).astype(np.float32)
    else:
        y = x.astype(np.float32)
        y -= spread(x_zero_point, x, axis, block_size, "zero point").astype(np.float32)
    y *= scale
    return y.astype(result, copy=False)


@QuantizeLinear.sample_with
@QuantizeLinear_1.sample_with
def _quantize_samples(rng: np.random.Generator, dtype: np.dtype[Any]) -> Samples:
    x = (rng.normal(size=(2, 4, 3)) * 40).astype(dtype)
    kind = np.float32 if dtype.kind in "iu" else dtype
    for zero in (np.uint8, np.int8):
        for shape, attrs in (((), {}), ((4,), {"axis": 1}), ((2, 2, 3), {"axis": 1, "block_size": 2})):
            scale = (rng.random(shape) + 0.5).astype(kind)
            yield [x, scale, rng.integers(0, 9, shape).astype(zero)], attrs


@DequantizeLinear.sample_with
def _dequantize_samples(rng: np.random.Generator, dtype: np.dtype[Any]) -> Samples:
    for shape, attrs in (((), {}), ((4,), {"axis": 1}), ((2, 2, 3), {"axis": 1, "block_size": 2})):
        yield [rng.integers(0, 8, (2, 4, 3)).astype(dtype), (rng.random(shape) + 0.5).astype(np.float32),
               rng.integers(0, 2, shape).astype(dtype)], attrs


@define(outputs=3)
def DynamicQuantizeLinear(x):
    """x as uint8, with the scale and zero point that its range and 0 span"""
    low, high = (np.asarray(f(x, initial=0)).astype(np.float32) for f in (np.min, np.max))
    scale = np.asarray((high - low) / np.float32(255))
    if not scale:
        scale = np.ones((), np.float32)
    zero = quantized(np.asarray(-low / scale), None, E.UINT8)
    return quantized(np.asarray(x / scale), zero, E.UINT8), scale, zero


def _of_rows(p: np.ndarray | None, a: np.ndarray) -> np.ndarray | None:
    """A parameter of A or of the product: one for all, one a row as a vector, or of a shape that fits."""
    if p is None or p.size == 1:
        return None if p is None else p.reshape(())
    return p[:, None] if p.ndim == 1 and a.ndim > 1 else p


def _of_columns(p: np.ndarray | None) -> np.ndarray | None:
    return p.reshape(()) if p is not None and p.size == 1 else p


def shifted(x: np.ndarray, zero: np.ndarray | None, work: Any) -> np.ndarray:
    """x - zero in type `work`. Raises ValueError if `zero` has more dimensions or other lengths than x."""
    y = x.astype(work)
    if zero is not None:
        if np.broadcast_shapes(x.shape, zero.shape) != x.shape:
            raise ValueError(f"a zero point of shape {zero.shape} does not fit shape {x.shape}")
        y -= zero.astype(work)
    return y


def integer_product(a: np.ndarray, b: np.ndarray, a_zero: np.ndarray | None, b_zero: np.ndarray | None
                    ) -> np.ndarray:
    """(a - a_zero) @ (b - b_zero) of 8-bit integers as int32, exact in float64 and wrapped at the end."""
    y = matmul(shifted(a, _of_rows(a_zero, a), np.float64), shifted(b, _of_columns(b_zero), np.float64))
    return y.astype(np.int64).astype(np.int32)


@define
def MatMulInteger(a, b, a_zero_point=None, b_zero_point=None):
    """(a - a_zero_point) @ (b - b_zero_point) as int32"""
    return integer_product(a, b, a_zero_point, b_zero_point)


@define
def QLinearMatMul(a, a_scale, a_zero_point, b, b_scale, b_zero_point, y_scale, y_zero_point):
    """The product of two quantized matrices, quantized"""
    if a.dtype in HALF or b.dtype in HALF:
        product = matmul(shifted(a, _of_rows(a_zero_point, a), np.float32),
                         shifted(b, _of_columns(b_zero_point), np.float32))
    else:
        product = integer_product(a, b, a_zero_point, b_zero_point)
    scales = [np.asarray(s).astype(np.float32) for s in
              (_of_rows(a_scale, a), _of_columns(b_scale), _of_rows(y_scale, product))]
    real = product.astype(np.float32) * (scales[0] * scales[1] / scales[2])
    if np.shape(real) != product.shape:
        raise ValueError(f"scales of shapes {a_scale.shape}, {b_scale.shape} and {y_scale.shape} do not fit a"
                         f" product of shape {product.shape}")
    return quantized(np.asarray(real), _of_rows(y_zero_point, product), element_of(y_zero_point.dtype))


@MatMulInteger.sample_with
def _product_samples(rng: np.random.Generator, dtype: np.dtype[Any]) -> Samples:
    a, b = (rng.integers(0, 100, shape).astype(dtype) for shape in ((4, 3), (3, 2)))
    yield [a, b], {}
    yield [a, b, np.array(3, dtype), np.array([1, 2], dtype)], {}
    yield [a[:, :0], b[:0]], {}
