"""Weights of 2, 4 and 8 bits: a matrix (K, N) in, codes with a scale and a zero point per block out.

A block is `block_size` rows of one column. The invariant: a weight is nearly (code - zero point) * scale, and
a code has `bits` bits, whatever the method that chose it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import onnx
from onnx import TensorProto, helper

from ...records import dataclass
from ..refused import InvalidValue

BITS = (2, 4, 8)
BLOCK_SIZES = (16, 32, 64, 128, 256)
FLOATS = {TensorProto.FLOAT: "float32", TensorProto.FLOAT16: "float16", TensorProto.BFLOAT16: "bfloat16"}
"""TensorProto's types of weights that are quantized."""

Choice: TypeAlias = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray, np.ndarray]]
"""Whole blocks (blocks, block_size, N) of float32, zeros behind the last row -> codes, scales and zero
points."""

_PIECE = 1 << 17
"""Elements that are worked on at once: few enough for a processor's second cache."""
_BELOW_HALF = np.nextafter(np.float32(0.5), np.float32(0))


@dataclass(frozen=True)
class Blockwise:
    """A quantized matrix of `rows` x N. `codes`: uint8 (blocks * block_size, N);
    `scales`: (blocks, N) in the weight's type; `zero_points`: (blocks, N), uint8 or in the weight's type,
    None where all are half of the range."""

    codes: np.ndarray
    scales: np.ndarray
    zero_points: np.ndarray | None
    rows: int
    bits: int
    block_size: int

    def dequantized(self) -> np.ndarray:
        """The float32 matrix (rows, N) that stands in the codes."""
        blocks, columns = self.scales.shape
        middle = np.float32(1 << (self.bits - 1))
        zero = middle if self.zero_points is None else self.zero_points[:, None].astype(np.float32)
        codes = self.codes.reshape(blocks, self.block_size, columns).astype(np.float32)
        real = (codes - zero) * self.scales[:, None].astype(np.float32)
        return real.reshape(-1, columns)[:self.rows]

    def packed(self) -> np.ndarray:
        """The codes as MatMulNBits has them: uint8 (N, blocks, block_size * bits / 8)."""
        blocks, columns = self.scales.shape
        return np.ascontiguousarray(pack(self.codes, self.bits).T).reshape(columns, blocks, -1)

    def packed_zero_points(self) -> np.ndarray | None:
        """The zero points as MatMulNBits has them: (N, bytes) where they are codes, filled up with half of
        the range; else (N, blocks)."""
        if self.zero_points is None or self.zero_points.dtype != np.uint8:
            return None if self.zero_points is None else np.ascontiguousarray(self.zero_points.T)
        short = -len(self.zero_points) % (8 // self.bits)
        whole = np.pad(self.zero_points, ((0, short), (0, 0)), constant_values=1 << (self.bits - 1))
        return np.ascontiguousarray(pack(whole, self.bits).T)


def pack(codes: np.ndarray, bits: int) -> np.ndarray:
    """Codes put together along the first axis, which holds a whole number of bytes; the first one lowest."""
    per_byte = 8 // bits
    packed = codes[::per_byte].copy(order="K")
    for place in range(1, per_byte):
        packed |= codes[place::per_byte] << np.uint8(place * bits)
    return packed


def packed_tensor(codes: np.ndarray, bits: int, signed: bool, name: str) -> TensorProto:
    """Codes of any shape as a tensor of the integer type of `bits` bits. `signed`: they are counted from the
    middle of the range."""
    flat = codes.reshape(-1)
    if signed:
        flat = flat ^ np.uint8(1 << (bits - 1))
    whole = np.pad(flat, (0, -flat.size % (8 // bits)))
    return helper.make_tensor(name, integer_type(bits, signed), codes.shape, pack(whole, bits).tobytes(),
                              raw=True)


def integer_type(bits: int, signed: bool) -> int:
    """TensorProto's number of an integer type."""
    return TensorProto.DataType.Value(f"{'' if signed else 'U'}INT{bits}")


def weight_array(tensor: TensorProto, base_dir: str = "") -> np.ndarray:
    """A tensor's values: a view of its bytes where it holds them raw, not to be written to."""
    if tensor.data_type not in FLOATS or not tensor.raw_data:
        return onnx.numpy_helper.to_array(tensor, base_dir)
    return np.frombuffer(tensor.raw_data, float_type(tensor.data_type)).reshape(tuple(tensor.dims))


def float_type(kind: int) -> np.dtype:
    """numpy's type of one of `FLOATS`."""
    return np.dtype(helper.tensor_dtype_to_np_dtype(kind))


def check_layout(bits: int, block_size: int) -> None:
    """Raises: InvalidValue where MatMulNBits has no such bits or blocks."""
    if bits not in BITS:
        raise InvalidValue("weights cannot be quantized to this many bits", found=bits, expected="2, 4 or 8")
    if block_size not in BLOCK_SIZES:
        raise InvalidValue("weights cannot be quantized in blocks of this size", found=block_size,
                           expected=f"one of {', '.join(map(str, BLOCK_SIZES))}")


def check_finite(weight: np.ndarray, name: str) -> None:
    """Raises: InvalidValue where one of the values is NaN or infinite."""
    for start in range(0, len(weight), step := max(1, _PIECE // max(1, weight[0].size))):
        piece = weight[start:start + step]
        if not np.isfinite(piece).all():
            bad = piece[~np.isfinite(piece)][0]
            raise InvalidValue(f"weight {name!r} cannot be quantized", found=f"the value {bad}",
                               expected="finite values",
                               cure="correct the weight, or leave its node out by nodes_to_exclude")


def in_blocks(weight: np.ndarray, bits: int, block_size: int, choose: Choice,
              zero_type: Any = np.uint8) -> Blockwise:
    """The matrix (K, N) of finite floats, quantized by `choose` piece by piece."""
    rows, columns = weight.shape
    blocks = -(-rows // block_size)
    codes = np.empty((blocks, block_size, columns), np.uint8)
    scales = np.empty((blocks, columns), weight.dtype)
    zeros = np.empty((blocks, columns), zero_type)
    step = max(1, _PIECE // (block_size * columns))
    for first in range(0, blocks, step):
        part = slice(first, min(first + step, blocks))
        held = weight[first * block_size:part.stop * block_size].astype(np.float32, copy=False)
        if short := (part.stop - first) * block_size - len(held):
            held = np.pad(held, ((0, short), (0, 0)))
        codes[part], scales[part], zeros[part] = choose(held.reshape(-1, block_size, columns))
    return Blockwise(codes.reshape(-1, columns), scales, zeros, rows, bits, block_size)


def quantized(weight: np.ndarray, bits: int, block_size: int, symmetric: bool) -> Blockwise:
    """The matrix (K, N) of finite floats, rounded to the nearest codes.

    Asymmetric: a block's range, zero in it, is spread over all codes. Symmetric: the value farthest from zero
    is the lowest code, so that a scale may be negative. A float16 or bfloat16 scale is rounded before it is
    divided by. Codes behind the last row are 0.
    """
    def choose(piece: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        scale, zero = _ranges(piece, bits, symmetric, weight.dtype)
        return _coded(piece, scale, zero, bits), scale, zero

    made = in_blocks(weight, bits, block_size, choose)
    made.codes[made.rows:] = 0
    return replace(made, zero_points=None) if symmetric else made


def quantized_by_division(weight: np.ndarray, bits: int, block_size: int, symmetric: bool) -> Blockwise:
    """As `quantized`, for the tables that Gather reads: values are divided by the scale, in the weight's own
    arithmetic, halves go to the even code, and a block of zeros has the middle as its code."""
    middle, top = 1 << (bits - 1), (1 << bits) - 1

    def choose(piece: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        piece = piece.astype(weight.dtype, copy=False)
        low, high = piece.min(1), piece.max(1)
        if symmetric:
            scale = np.where(high > -low, high, low) / weight.dtype.type(-middle)
            zero = np.full(scale.shape, middle, np.uint8)
        else:
            low, high = np.minimum(low, 0), np.maximum(high, 0)
            scale = (high - low) / weight.dtype.type(top)
            zero = np.divide(-low, scale, out=np.full_like(low, middle), where=scale != 0)
            zero = np.clip(np.rint(zero), 0, top).astype(np.uint8)
        spread = np.divide(piece, scale[:, None], out=np.zeros_like(piece), where=scale[:, None] != 0)
        if symmetric:
            spread = np.rint(spread)
        codes = np.clip(np.rint(spread + zero[:, None].astype(weight.dtype)), 0, top)
        return codes.astype(np.uint8), scale, zero

    made = in_blocks(weight, bits, block_size, choose)
    return replace(made, zero_points=None) if symmetric else made


def _ranges(piece: np.ndarray, bits: int, symmetric: bool, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """Scales in the weight's type and zero points of the blocks (blocks, block_size, N)."""
    low, high = np.minimum(piece.min(1), 0), np.maximum(piece.max(1), 0)
    if symmetric:
        farthest = np.where(high > -low, high, low)
        scale = farthest / np.float32(-(1 << (bits - 1)))
        return scale.astype(dtype), np.full(scale.shape, 1 << (bits - 1), np.uint8)
    top = np.float32((1 << bits) - 1)
    scale = (high - low) / top
    zero = np.divide(-low, scale, out=np.zeros_like(low), where=scale != 0)
    return scale.astype(dtype), _rounded(np.minimum(zero, top))


def _coded(piece: np.ndarray, scale: np.ndarray, zero: np.ndarray, bits: int) -> np.ndarray:
    """The codes nearest to the values."""
    scale = scale.astype(np.float32)
    factor = np.divide(np.float32(1), scale, out=np.zeros_like(scale),
                       where=np.abs(scale) > np.finfo(np.float32).tiny)
    spread = piece * factor[:, None]
    spread += zero[:, None].astype(np.float32)
    return _rounded(np.clip(spread, 0, np.float32((1 << bits) - 1), out=spread))


def _rounded(values: np.ndarray) -> np.ndarray:
    """Values of 0 and more as the nearest bytes, halves away from zero."""
    return (values + _BELOW_HALF).astype(np.uint8)
