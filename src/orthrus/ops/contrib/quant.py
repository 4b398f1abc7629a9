"""Quantized operators of com.microsoft: integer tensors with scales and zero points in, the same or floats
out.

Each computes on the real numbers its inputs stand for and rounds once at the end, half to even; sums of
products are exact.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...errors import Unfit
from ...ir import ElementType, TensorType, Type, Value, element_of
from ...limits import bounded
from ..define import broadcast, define, normalized_axis
from ..functions import mean_of
from ..math.linalg import matmul
from ..nn.activation import LeakyRelu, Sigmoid, softmax
from ..nn.conv import QLinearConv as OnnxQLinearConv
from ..nn.pool import AveragePool, MaxPool
from ..tensor.quantize import DequantizeLinear as OnnxDequantizeLinear
from ..tensor.quantize import DynamicQuantizeLinear, integer_product, quantized
from ..tensor.quantize import QuantizeLinear_1 as OnnxQuantizeLinear
from .fused import (
    MS,
    channels_first,
    channels_last,
    convolved_shape,
    like_first,
    of_rank,
    product_shape,
    rank_of,
)

_BYTES = ("uint8", "int8")
_QUANTIZED = (*_BYTES, "uint16", "int16", "uint4", "int4")
_FLOAT = ("float",)
_CHUNK = 1 << 24


def real(x: np.ndarray, scale: np.ndarray, zero: np.ndarray | None) -> np.ndarray:
    """The float32 numbers a tensor quantized as a whole stands for. Raises ValueError unless `scale` is a
    scalar."""
    if scale.size != 1 or (zero is not None and zero.size != 1):
        raise ValueError(f"a scale of shape {scale.shape} is no scalar, or its zero point is none")
    y = x.astype(np.float32)
    if zero is not None:
        y -= np.float32(zero.reshape(())[()])
    return y * scale.reshape(()).astype(np.float32)


def coded(y: np.ndarray, scale: np.ndarray, zero: np.ndarray | None, dtype: Any) -> np.ndarray:
    """Real numbers quantized as a whole to `dtype`."""
    if scale.size != 1 or (zero is not None and zero.size != 1):
        raise ValueError(f"a scale of shape {scale.shape} is no scalar, or its zero point is none")
    scaled = np.array(y / scale.reshape(()), np.float32)
    return quantized(scaled, None if zero is None else zero.reshape(()), element_of(dtype))


def by_table(x: np.ndarray, table: np.ndarray) -> np.ndarray:
    """`table[x]`, where the table begins at the least value of x's 8-bit type."""
    return table[x.astype(np.int16) - np.iinfo(x.dtype).min]


def _every(dtype: np.dtype[Any]) -> np.ndarray:
    info = np.iinfo(dtype)
    return np.arange(info.min, info.max + 1, dtype=np.int16).astype(dtype)


@define(domain=MS, types={"x": ("float", "float16"), "y_scale": ("float", "float16"),
                          "y_zero_point": _QUANTIZED})
def QuantizeLinear(x, y_scale, y_zero_point=None, *, axis: int = OnnxQuantizeLinear.defaults["axis"]):
    """saturate(round(x / y_scale) + y_zero_point)"""
    return OnnxQuantizeLinear.body(x, y_scale, y_zero_point, axis=axis)


@QuantizeLinear.infer_with
def _quantize_type(x: Value, y_scale: Value, y_zero_point: Value | None = None, **_: Any) -> list[Type]:
    return [TensorType(ElementType.UINT8 if y_zero_point is None else y_zero_point.elem, x.shape)]


@define(domain=MS, types={"x": (*_QUANTIZED, "int32"), "x_scale": ("float", "float16")})
def DequantizeLinear(x, x_scale, x_zero_point=None, *, axis: int = OnnxDequantizeLinear.defaults["axis"]):
    """(x - x_zero_point) * x_scale"""
    return OnnxDequantizeLinear.body(x, x_scale, x_zero_point, axis=axis)


@DequantizeLinear.infer_with
def _dequantize_type(x: Value, x_scale: Value, *_: Value | None, **__: Any) -> list[Type]:
    return [TensorType(x_scale.elem, x.shape)]


def _both_type(a: Value, a_scale: Value, a_zero: Value | None = None, b: Value | None = None,
               *_: Value | None, **__: Any) -> list[Type]:
    return [TensorType(a.elem, None if b is None else broadcast(a.shape, b.shape))]


_BOTH = {"a": _BYTES, "a_scale": _FLOAT, "b": _BYTES, "b_scale": _FLOAT, "c_scale": _FLOAT}


@define(domain=MS, types=_BOTH, optional=("a_zero_point",))
def QLinearAdd(a, a_scale, a_zero_point, b, b_scale, b_zero_point=None, c_scale=None, c_zero_point=None):
    """The sum of two quantized tensors, quantized: a * factor + (b * factor + a constant), with one rounding
    after each product and sum, the result's zero point in the constant"""
    left, right, constant = sum_factors(a_scale, a_zero_point, b_scale, b_zero_point,
                                        _given(c_scale, "C_scale"), c_zero_point)
    return _codes(multiplied(a, left, multiplied(b, right, constant)), a.dtype)


@define(domain=MS, types=_BOTH, optional=("a_zero_point",))
def QLinearMul(a, a_scale, a_zero_point, b, b_scale, b_zero_point=None, c_scale=None, c_zero_point=None):
    """The product of two quantized tensors, quantized; the zero point is added before the rounding"""
    factor, zero = product_factor(a_scale, b_scale, _given(c_scale, "C_scale")), number(c_zero_point)
    one = np.ones((), np.float32)
    return _codes(real(a, one, a_zero_point) * real(b, one, b_zero_point) * factor + zero, a.dtype)


def number(value: np.ndarray | None) -> np.float32:
    """A parameter of a whole tensor, 0 where it is absent. Raises ValueError for more than one number."""
    if value is None:
        return np.float32(0)
    if value.size != 1:
        raise ValueError(f"a scale or zero point of shape {value.shape} is no scalar")
    return np.float32(value.reshape(()).astype(np.float32))


def multiplied(x: Any, y: np.float32, z: Any) -> Any:
    """x * y + z, rounded once to float32; x has 24 bits at most."""
    return (np.asarray(x).astype(np.float64) * np.float64(y) + z).astype(np.float32)


def sum_factors(a_scale: np.ndarray, a_zero: np.ndarray | None, b_scale: np.ndarray,
                b_zero: np.ndarray | None, scale: np.ndarray, zero: np.ndarray | None
                ) -> tuple[np.float32, np.float32, np.float32]:
    """What QLinearAdd multiplies both codes by, and what it adds."""
    left, right = number(a_scale) / number(scale), number(b_scale) / number(scale)
    shift = multiplied(number(a_zero), left, np.float64(right * number(b_zero)))
    return left, right, np.float32(number(zero) - shift)


def product_factor(a_scale: np.ndarray, b_scale: np.ndarray, scale: np.ndarray) -> np.float32:
    """What QLinearMul multiplies the product of both codes by."""
    return np.float32(number(a_scale) * number(b_scale) / number(scale))


def _codes(y: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    return quantized(np.asarray(y, np.float32), None, element_of(dtype))


QLinearAdd.infer_with(_both_type)
QLinearMul.infer_with(_both_type)


def _given(value: np.ndarray | None, name: str) -> np.ndarray:
    if value is None:
        raise ValueError(f"the input {name} is missing")
    return value


@define(domain=MS, types={"x": _BYTES, "x_scale": _FLOAT, "y_scale": _FLOAT})
def QLinearSigmoid(x, x_scale, x_zero_point=None, y_scale=None, y_zero_point=None):
    """The sigmoid of a quantized tensor, quantized"""
    y = Sigmoid(real(_every(x.dtype), x_scale, x_zero_point))
    return by_table(x, coded(y, _given(y_scale, "Y_scale"), y_zero_point, x.dtype))


@define(domain=MS, types={"x": _BYTES, "x_scale": _FLOAT, "y_scale": _FLOAT})
def QLinearLeakyRelu(x, x_scale, x_zero_point=None, y_scale=None, y_zero_point=None, *,
                     alpha: float = LeakyRelu.defaults["alpha"]):
    """The LeakyRelu of a quantized tensor, quantized"""
    y = LeakyRelu(real(_every(x.dtype), x_scale, x_zero_point), alpha=alpha)
    return by_table(x, coded(y, _given(y_scale, "Y_scale"), y_zero_point, x.dtype))


@define(domain=MS, types={"x": _BYTES, "x_scale": _FLOAT, "y_scale": _FLOAT})
def QLinearSoftmax(x, x_scale, x_zero_point=None, y_scale=None, y_zero_point=None, *, axis: int = -1,
                   opset: int):
    """The softmax of a quantized tensor, quantized; below opset 13 over all dimensions from `axis` on"""
    at = normalized_axis(axis, x.ndim)
    wide = real(x, x_scale, x_zero_point)
    if opset < 13:
        y = softmax(wide.reshape(int(np.prod(x.shape[:at])), -1), 1).reshape(x.shape)
    else:
        y = softmax(wide, at)
    return coded(y, _given(y_scale, "y_scale"), y_zero_point, x.dtype)


for _unary in (QLinearSigmoid, QLinearLeakyRelu, QLinearSoftmax):
    _unary.infer_with(like_first)


@define(domain=MS, types={"x": _BYTES, "x_scale": _FLOAT, "y_scale": _FLOAT})
def QLinearAveragePool(x, x_scale, x_zero_point=None, y_scale=None, y_zero_point=None, *,
                       auto_pad: str = "NOTSET",
                       ceil_mode: int = 0, channels_last: int = 0, count_include_pad: int = 0,
                       kernel_shape: list[int], pads: list[int] | None = None,
                       strides: list[int] | None = None):
    """The mean of each window of a quantized tensor, quantized"""
    wide = real(channels_first(x) if channels_last else x, x_scale, x_zero_point)
    y = AveragePool.body(wide, kernel_shape=kernel_shape, auto_pad=auto_pad, ceil_mode=ceil_mode,
                         count_include_pad=count_include_pad, pads=pads, strides=strides)
    y = coded(y, _given(y_scale, "y_scale"), y_zero_point, x.dtype)
    return _moved_back(y) if channels_last else y


def _moved_back(y: np.ndarray) -> np.ndarray:
    return channels_last(y)


@QLinearAveragePool.infer_with
def _average_type(x: Value, *_: Value | None, **__: Any) -> list[Type]:
    return [of_rank(x.elem, rank_of(x))]


@define(domain=MS, types={"x": _BYTES, "x_scale": _FLOAT, "y_scale": _FLOAT})
def QLinearGlobalAveragePool(x, x_scale, x_zero_point, y_scale, y_zero_point, *, channels_last: int = 0):
    """The mean over all spatial dimensions of a quantized tensor, quantized"""
    axes = tuple(range(1, x.ndim - 1) if channels_last else range(2, x.ndim))
    return coded(mean_of(real(x, x_scale, x_zero_point), axes), y_scale, y_zero_point, x.dtype)


@QLinearGlobalAveragePool.infer_with
def _global_average_type(x: Value, *_: Value | None, channels_last: int, **__: Any) -> list[Type]:
    if x.shape is None:
        return [TensorType(x.elem, None)]
    ones = (1,) * (len(x.shape) - 2)
    return [TensorType(x.elem, (x.shape[0], *ones, x.shape[-1]) if channels_last else (*x.shape[:2], *ones))]


@define(domain=MS, types={"y_scale": _FLOAT, "y_zero_point": _BYTES})
def QLinearConcat(y_scale, y_zero_point, *inputs, axis: int):
    """Quantized tensors, each followed by its scale and zero point, joined along `axis` and quantized"""
    if not inputs or len(inputs) % 3:
        raise ValueError("QLinearConcat takes tensors with their scales and zero points, found"
                         f" {len(inputs)} inputs")
    parts = []
    for x, scale, zero in zip(inputs[::3], inputs[1::3], inputs[2::3], strict=True):
        same = scale.size == 1 and scale == y_scale and x.dtype == y_zero_point.dtype and zero == y_zero_point
        parts.append(x if same else coded(real(x, scale, zero), y_scale, y_zero_point, y_zero_point.dtype))
    return np.concatenate(parts, normalized_axis(axis, parts[0].ndim))


@QLinearConcat.infer_with
def _concat_type(y_scale: Value, y_zero_point: Value, *inputs: Value | None, axis: int) -> list[Type]:
    shapes = [x.shape for x in inputs[::3] if x is not None and x.shape is not None]
    if not shapes or 3 * len(shapes) != len(inputs):
        return [TensorType(y_zero_point.elem, None)]
    at = normalized_axis(axis, len(shapes[0]))
    sizes = [s[at] for s in shapes]
    shape = list(shapes[0])
    shape[at] = sum(sizes) if all(isinstance(n, int) for n in sizes) else None
    return [TensorType(y_zero_point.elem, tuple(shape))]


@define(domain=MS, types={"condition": ("bool",), "x": _BYTES, "x_scale": _FLOAT, "y": _BYTES,
                          "y_scale": _FLOAT})
def QLinearWhere(condition, x, x_scale, x_zero_point, y, y_scale, y_zero_point, z_scale, z_zero_point):
    """x where the condition holds, else y, all quantized"""
    return np.where(condition, coded(real(x, x_scale, x_zero_point), z_scale, z_zero_point, x.dtype),
                    coded(real(y, y_scale, y_zero_point), z_scale, z_zero_point, x.dtype))


@QLinearWhere.infer_with
def _where_type(condition: Value, x: Value, x_scale: Value, x_zero: Value, y: Value, *_: Value | None,
                **__: Any
                ) -> list[Type]:
    return [TensorType(x.elem, broadcast(condition.shape, x.shape, y.shape))]


@define(domain=MS, types={"a": _BYTES, "a_scale": _FLOAT, "b": _BYTES, "b_scale": _FLOAT, "c": ("int32",)})
def QGemm(a, a_scale, a_zero_point, b, b_scale, b_zero_point, c=None, y_scale=None, y_zero_point=None, *,
          alpha: float = 1.0, transA: int = 0, transB: int = 0):
    """alpha * A' @ B' + C of quantized matrices, quantized or, without y_scale, as floats"""
    try:
        total = integer_product(a.T if transA else a, b.T if transB else b, a_zero_point, b_zero_point)
    except ValueError as error:
        raise Unfit(str(error)) from None
    if c is not None:
        total = total + c
    factors = gemm_factors(alpha, a_scale, b_scale, y_scale)
    y = (total.astype(np.float32) * factors).astype(np.float32)
    if y_scale is None:
        return y
    return quantized(y, None if y_zero_point is None else np.asarray(number(y_zero_point)),
                     element_of(a.dtype if y_zero_point is None else y_zero_point.dtype))


def gemm_factors(alpha: float, a_scale: np.ndarray, b_scale: np.ndarray, y_scale: np.ndarray | None
                 ) -> np.ndarray:
    """What QGemm multiplies its sums by: one number, or one for each column."""
    factors = np.float32(alpha) * number(a_scale) * b_scale.astype(np.float32)
    return factors if y_scale is None else factors / number(y_scale)


@QGemm.infer_with
def _gemm_type(a: Value, a_scale: Value, a_zero: Value, b: Value, b_scale: Value, b_zero: Value,
               c: Value | None = None,
               y_scale: Value | None = None, y_zero_point: Value | None = None, *, transA: int, transB: int,
               **_: Any
               ) -> list[Type]:
    elem = a_scale.elem if y_scale is None else a.elem if y_zero_point is None else y_zero_point.elem
    left, right = (s[::-1] if flip and s is not None else s for s, flip in ((a.shape, transA),
                                                                            (b.shape, transB)))
    return [TensorType(elem, product_shape(left, right))]


@define(domain=MS, types={"x": _BYTES, "w": _BYTES, "b": ("int32",)})
def QLinearConv(x, x_scale, x_zero_point, w, w_scale, w_zero_point, y_scale, y_zero_point, b=None, *,
                auto_pad: str = "NOTSET", channels_last: int = 0, dilations: list[int] | None = None,
                group: int = 1,
                kernel_shape: list[int] | None = None, pads: list[int] | None = None,
                strides: list[int] | None = None):
    """The convolution of quantized tensors, X and the result perhaps [N, D..., C], quantized"""
    y = OnnxQLinearConv.body(channels_first(x) if channels_last else x, x_scale, x_zero_point, w, w_scale,
                             w_zero_point,
                             y_scale, y_zero_point, b, auto_pad=auto_pad, dilations=dilations, group=group,
                             kernel_shape=kernel_shape, pads=pads, strides=strides)
    return _moved_back(y) if channels_last else y


@QLinearConv.infer_with
def _conv_type(x: Value, x_scale: Value, x_zero: Value, w: Value, w_scale: Value, w_zero: Value,
               y_scale: Value,
               y_zero_point: Value, b: Value | None = None, *, auto_pad: str, channels_last: int,
               dilations: Any,
               pads: Any, strides: Any, **_: Any) -> list[Type]:
    if channels_last or x.shape is None:
        return [of_rank(y_zero_point.elem, rank_of(x))]
    return [TensorType(y_zero_point.elem, convolved_shape(x.shape, w.shape, auto_pad, dilations, pads,
                                                          strides))]


@define(domain=MS, types={"x": _BYTES})
def NhwcMaxPool(x, *, auto_pad: str = "NOTSET", ceil_mode: int = 0, dilations: list[int] | None = None,
                kernel_shape: list[int], pads: list[int] | None = None, strides: list[int] | None = None):
    """The largest element of each window of X [N, D..., C]"""
    return channels_last(MaxPool.body(channels_first(x), kernel_shape=kernel_shape, auto_pad=auto_pad,
                                      ceil_mode=ceil_mode, dilations=dilations, pads=pads, strides=strides))


NhwcMaxPool.infer_with(_average_type)


def _row_by_column(total: np.ndarray, a_scale: np.ndarray, b_scale: np.ndarray,
                   bias: np.ndarray | None) -> np.ndarray:
    y = total.astype(np.float32) * (a_scale.astype(np.float32) * b_scale.astype(np.float32))
    return y if bias is None else y + bias


@define(domain=MS, types={"a": _FLOAT, "b": _BYTES, "b_scale": _FLOAT, "b_zero_point": _BYTES,
                          "bias": _FLOAT})
def DynamicQuantizeMatMul(a, b, b_scale, b_zero_point=None, bias=None):
    """The product of A, quantized by its own range, and a quantized B, as floats"""
    codes, scale, zero = DynamicQuantizeLinear.body(a)
    return _row_by_column(integer_product(codes, b, zero, b_zero_point), scale, b_scale, bias)


@DynamicQuantizeMatMul.infer_with
def _dynamic_product_type(a: Value, b: Value, *_: Value | None, **__: Any) -> list[Type]:
    return [TensorType(a.elem, product_shape(a.shape, b.shape))]


@define(domain=MS, types={"a": _BYTES, "b": _BYTES, "a_scale": ("float", "float16"),
                          "b_scale": ("float", "float16")})
def MatMulIntegerToFloat(a, b, a_scale, b_scale, a_zero_point=None, b_zero_point=None, bias=None):
    """The product of quantized matrices, as floats"""
    y = _row_by_column(integer_product(a, b, a_zero_point, b_zero_point), a_scale, b_scale, bias)
    return y.astype(a_scale.dtype, copy=False)


@MatMulIntegerToFloat.infer_with
def _integer_product_type(a: Value, b: Value, a_scale: Value, *_: Value | None, **__: Any) -> list[Type]:
    return [TensorType(a_scale.elem, product_shape(a.shape, b.shape))]


@define(domain=MS, types={"a": ("int16",), "b": ("int16",)})
def MatMulInteger16(a, b):
    """The product of two int16 matrices as int32"""
    return matmul(a.astype(np.int32), b.astype(np.int32))


@MatMulInteger16.infer_with
def _product16_type(a: Value, b: Value) -> list[Type]:
    return [TensorType(ElementType.INT32, product_shape(a.shape, b.shape))]


def unpacked(packed: np.ndarray, bits: int) -> np.ndarray:
    """The `bits`-wide unsigned numbers along the last dimension of bytes, least significant first."""
    if bits == 8:
        return packed
    if bits in (1, 2, 4):
        shifts = np.arange(0, 8, bits, dtype=np.uint8)
        parts = (packed[..., None] >> shifts) & np.uint8((1 << bits) - 1)
        return parts.reshape(*packed.shape[:-1], -1)
    each = np.unpackbits(packed, axis=-1, bitorder="little")
    each = each[..., :each.shape[-1] // bits * bits].reshape(*packed.shape[:-1], -1, bits)
    return (each << np.arange(bits, dtype=np.uint8)).sum(-1, dtype=np.uint8)


@define(domain=MS, widen=True, result="same", types={"a": ("float", "float16", "bfloat16"), "b": ("uint8",)})
def MatMulNBits(a, b, scales, zero_points=None, g_idx=None, bias=None, *, K: int, N: int,
                accuracy_level: int = 0,
                bits: int = 4, block_size: int, weight_prepacked: int = 0):
    """The product of A and the transpose of a matrix [N, K] that is packed in blocks of few bits each; zeros
    where a dimension of the packed matrix is 0"""
    if not 2 <= bits <= 8 or block_size < 16 or block_size & (block_size - 1) or min(K, N) < 0:
        raise ValueError("MatMulNBits takes 2 to 8 bits and a power of two from 16 on as block_size, found"
                         f" {bits} and"
                         f" {block_size}")
    if weight_prepacked:
        raise ValueError("MatMulNBits takes only weights in ONNX's order: weight_prepacked has to be 0")
    blocks = -(-K // block_size)
    size = block_size * bits // 8
    whole = (N, blocks, size)
    if b.ndim == 3 and not b.size and a.shape[-1:] == (K,) and all(
            found in (0, full) for found, full in zip(b.shape, whole, strict=True)):
        y = np.zeros(bounded((*a.shape[:-1], N), a.dtype), a.dtype)
        return y if bias is None else y + bias
    if a.shape[-1:] != (K,) or b.size != N * blocks * size or scales.size != N * blocks:
        raise Unfit(f"A {a.shape}, B {b.shape} and scales {scales.shape} do not fit N {N}, K {K},"
                    f" {bits} bits and"
                    f" blocks of {block_size}")
    packed = b.reshape(whole)
    scale = scales.reshape(N, blocks, 1)
    zero = _zero_points(zero_points, N, blocks, bits)
    group = None if g_idx is None else g_idx.reshape(-1)[:K]
    if group is not None and group.size and not 0 <= group.min() <= group.max() < blocks:
        raise ValueError(f"g_idx names block {group.max()} of {blocks}")
    y = np.empty(bounded((*a.shape[:-1], N), a.dtype), a.dtype)
    rows = max(_CHUNK // max(K, 1), 1)
    for first in range(0, N, rows):
        part = slice(first, first + rows)
        codes = unpacked(packed[part], bits).astype(a.dtype)
        if group is None:
            weight = ((codes - zero[part]) * scale[part]).reshape(len(codes), -1)[:, :K]
        else:
            flat = codes.reshape(len(codes), -1)[:, :K]
            weight = (flat - zero[part, group, 0]) * scale[part, group, 0]
        y[..., part] = np.matmul(a, weight.T)
    return y if bias is None else y + bias


def _zero_points(given: np.ndarray | None, rows: int, blocks: int, bits: int) -> np.ndarray:
    """A zero point per row and block, [rows, blocks, 1]."""
    if given is None:
        return np.full((rows, blocks, 1), 1 << (bits - 1), np.float32)
    if given.dtype == np.uint8:
        wide = -(-blocks * bits // 8)
        if given.size != rows * wide:
            raise ValueError(f"packed zero points of shape {given.shape} do not fit {rows} rows of {blocks}"
                             " blocks")
        return unpacked(given.reshape(rows, wide), bits)[:, :blocks, None].astype(np.float32)
    if given.size != rows * blocks:
        raise ValueError(f"zero points of shape {given.shape} do not fit {rows} rows of {blocks} blocks")
    return given.reshape(rows, blocks, 1).astype(np.float32)


@MatMulNBits.infer_with
def _bits_type(a: Value, *_: Value | None, N: int, **__: Any) -> list[Type]:
    return [TensorType(a.elem, None if a.shape is None else (*a.shape[:-1], N))]


NF4 = (-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
       -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
       0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023,
       1.0)
"""What the codes of a normal float of four bits stand for: quantiles of the normal distribution."""

_FP4 = (0.0, 1 / 192, 2 / 3, 1.0, 1 / 3, 1 / 2, 1 / 6, 1 / 4)
FP4 = (*_FP4, *(-x for x in _FP4))
"""The same of a float of four bits: its sign, then the other three."""


@define(domain=MS, widen=True, result="same", types={"a": ("float", "float16", "bfloat16"), "b": ("uint8",)})
def MatMulBnb4(a, b, absmax, *, K: int, N: int, block_size: int, quant_type: int, training_mode: int = 0,
               transB: int = 1):
    """The product of A and a matrix [N, K], or with transB its transpose, of floats of four bits, the first
    in a byte's upper half, in blocks of its elements one after another"""
    if quant_type not in (0, 1) or block_size < 16 or block_size & (block_size - 1) or min(K, N) < 0:
        raise ValueError("MatMulBnb4 takes 0 or 1 as quant_type and a power of two from 16 on as block_size,"
                         f" found {quant_type} and {block_size}")
    blocks = -(-N * K // block_size)
    if a.shape[-1:] != ((K if transB else N),) or b.size != (N * K + 1) // 2 or absmax.size != blocks:
        raise Unfit(f"A {a.shape}, B {b.shape} and absmax {absmax.shape} do not fit N {N}, K {K} and"
                    f" blocks of {block_size}")
    bounded((*a.shape[:-1], N if transB else K), a.dtype)
    bounded((N, K), np.dtype(np.float32))
    codes = unpacked(b.reshape(-1), 4).reshape(-1, 2)[:, ::-1].reshape(-1)[:N * K]
    values = np.array((FP4, NF4)[quant_type], np.float32)
    weight = values[codes] * np.repeat(absmax.reshape(-1).astype(np.float32), block_size)[:N * K]
    weight = weight.reshape(N, K)
    return np.matmul(a, weight.T if transB else weight)


@MatMulBnb4.infer_with
def _bnb4_type(a: Value, *_: Value | None, N: int, K: int, transB: int, **__: Any) -> list[Type]:
    return [TensorType(a.elem, None if a.shape is None else (*a.shape[:-1], N if transB else K))]


_Q4 = 32
"""Elements of a block of MatMulFpQ4."""


def q4_blocks(b: np.ndarray, n: int, k: int, kind: int) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Codes [n, blocks, 32], scales [n, blocks] and zero points of a blob: blocks along k of a scale, with
    another kind than 0 a byte's zero point, and the lower halves of 16 bytes before the upper ones."""
    count, extra = -(-k // _Q4), int(kind != 0)
    size = 4 + extra + _Q4 // 2
    if n < 1 or k < 1 or b.size != n * count * size:
        raise ValueError(f"a blob of {b.size} bytes does not fit {n} columns of {k} elements in blocks of"
                         f" {size} bytes")
    rows = np.ascontiguousarray(b).reshape(n, count, size)
    scales = np.ascontiguousarray(rows[..., :4]).view("<f4")[..., 0]
    codes = rows[..., 4 + extra:]
    return np.concatenate((codes & 15, codes >> 4), -1), scales, rows[..., 4] if extra else None


@define(domain=MS, types={"a": ("float",), "b": ("uint8",), "b_shape": ("int64",)})
def MatMulFpQ4(a, b, b_shape, *, blk_quant_type: int = 1):
    """The product of A and a matrix [K, N] of codes of four bits in a blob of blocks"""
    if b_shape.shape != (2,) or a.shape[-1:] != (b_shape[0],):
        raise ValueError(f"A of shape {a.shape} does not fit a matrix of shape {b_shape.tolist()}")
    k, n = (int(d) for d in b_shape)
    bounded((n, k), np.dtype(np.float32))
    codes, scales, zeros = q4_blocks(b, n, k, blk_quant_type)
    low = np.float32(8) if zeros is None else zeros[..., None].astype(np.float32)
    weight = (codes.astype(np.float32) - low) * scales[..., None]
    return np.matmul(a, weight.reshape(n, -1)[:, :k].T)


@MatMulFpQ4.infer_with
def _q4_type(a: Value, b: Value, b_shape: Value, **_: Any) -> list[Type]:
    known = b_shape.const if isinstance(b_shape.const, np.ndarray) and b_shape.const.size == 2 else None
    n = None if known is None else int(known[1])
    return [TensorType(a.elem, None if a.shape is None else (*a.shape[:-1], n))]
