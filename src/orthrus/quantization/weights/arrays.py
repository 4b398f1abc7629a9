"""Weights of few bits in the caller's arrays, as the functions of onnxruntime's compiled module have it.

In: a matrix of weights. Out: codes, scales and zero points, written from the beginning of arrays that the
caller made, in C order. The invariant: the numbers are those of `blockwise` and `float4`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..refused import InvalidValue
from .blockwise import BLOCK_SIZES, FLOATS, check_finite, check_layout, pack, quantized
from .float4 import in_float4

__all__ = ["quantize_matmul_2bits", "quantize_matmul_4bits", "quantize_matmul_8bits", "quantize_matmul_bnb4",
           "quantize_qdq_matmul_2bits", "quantize_qdq_matmul_4bits"]


def quantize_matmul_2bits(packed: np.ndarray, weight: np.ndarray, scales: np.ndarray, zero_points: np.ndarray,
                          block_size: int, columns: int, rows: int, is_symmetric: bool, /) -> None:
    """Quantize to 2 bits as MatMulNBits has them; see `quantize_matmul_4bits`."""
    _as_matmul_nbits(2, packed, weight, scales, zero_points, block_size, columns, rows, is_symmetric)


def quantize_matmul_4bits(packed: np.ndarray, weight: np.ndarray, scales: np.ndarray, zero_points: np.ndarray,
                          block_size: int, columns: int, rows: int, is_symmetric: bool, /) -> None:
    """Quantize to 4 bits as MatMulNBits has them.

    `weight`: floats (rows, columns), taken in the type of `scales`. With blocks = ceil(rows / block_size),
    `packed` takes uint8 (columns, blocks, block_size * bits / 8), `scales` float32 or float16 (columns,
    blocks), `zero_points` uint8 (columns, ceil(blocks * bits / 8)), which stays as it is where
    `is_symmetric`. Raises: InvalidValue for other types, sizes and blocks, and for weights that are not
    finite.
    """
    _as_matmul_nbits(4, packed, weight, scales, zero_points, block_size, columns, rows, is_symmetric)


def quantize_matmul_8bits(packed: np.ndarray, weight: np.ndarray, scales: np.ndarray, zero_points: np.ndarray,
                          block_size: int, columns: int, rows: int, is_symmetric: bool, /) -> None:
    """Quantize to 8 bits as MatMulNBits has them; see `quantize_matmul_4bits`."""
    _as_matmul_nbits(8, packed, weight, scales, zero_points, block_size, columns, rows, is_symmetric)


def quantize_qdq_matmul_2bits(packed: np.ndarray, weight: np.ndarray, scales: np.ndarray,
                              zero_points: np.ndarray, block_size: int, columns: int, rows: int,
                              is_symmetric: bool, /) -> bool:
    """Quantize to 2 bits as DequantizeLinear has them; see `quantize_qdq_matmul_4bits`."""
    return _as_dequantize_linear(2, packed, weight, scales, zero_points, block_size, columns, rows,
                                 is_symmetric)


def quantize_qdq_matmul_4bits(packed: np.ndarray, weight: np.ndarray, scales: np.ndarray,
                              zero_points: np.ndarray, block_size: int, columns: int, rows: int,
                              is_symmetric: bool, /) -> bool:
    """Quantize to 4 bits as DequantizeLinear has them; True where the codes are signed: where `is_symmetric`.

    `weight`: floats (rows, columns), taken in the type of `scales`. With blocks = ceil(rows / block_size),
    `packed` takes the codes (rows, columns) in uint8 (ceil(rows * columns * bits / 8),), `scales` float32 or
    float16 (blocks, columns), `zero_points` uint8 (ceil(blocks * columns * bits / 8),), which stays as it is
    where `is_symmetric`. Raises: InvalidValue for other types, sizes and blocks, and for weights that are not
    finite.
    """
    return _as_dequantize_linear(4, packed, weight, scales, zero_points, block_size, columns, rows,
                                 is_symmetric)


def quantize_matmul_bnb4(packed: np.ndarray, transposed: np.ndarray, absmax: np.ndarray, block_size: int,
                         quant_type: int, columns: int, rows: int, /) -> None:
    """Quantize to floats of 4 bits as MatMulBnb4 has them.

    `transposed`: floats (columns, rows), taken in the type of `absmax`. `quant_type`: 0 for FP4, 1 for NF4.
    `packed` takes uint8 (ceil(rows * columns / 2),), `absmax` float32 or float16 (ceil(rows * columns /
    block_size),). Raises: InvalidValue for other types, sizes and blocks.
    """
    if quant_type not in (0, 1):
        raise InvalidValue("there is no such 4-bit float", found=quant_type, expected="0 (FP4) or 1 (NF4)")
    if block_size not in BLOCK_SIZES:
        raise InvalidValue("weights cannot be quantized in blocks of this size", found=block_size,
                           expected=f"one of {', '.join(map(str, BLOCK_SIZES))}")
    weight = _matrix(transposed, absmax, columns, rows)
    codes, largest = in_float4(weight.reshape(-1), block_size, nf4=quant_type == 1)
    _write(("packed", packed, codes), ("absmax", absmax, largest))


def _as_matmul_nbits(bits: int, packed: np.ndarray, weight: np.ndarray, scales: np.ndarray,
                     zero_points: np.ndarray, block_size: int, columns: int, rows: int, symmetric: bool
                     ) -> None:
    check_layout(bits, block_size)
    made = quantized(_matrix(weight, scales, rows, columns), bits, block_size, symmetric)
    _write(("packed", packed, made.packed()), ("scales", scales, made.scales.T),
           ("zero_points", zero_points, made.packed_zero_points()))


def _as_dequantize_linear(bits: int, packed: np.ndarray, weight: np.ndarray, scales: np.ndarray,
                          zero_points: np.ndarray, block_size: int, columns: int, rows: int, symmetric: bool
                          ) -> bool:
    check_layout(bits, block_size)
    made = quantized(_matrix(weight, scales, rows, columns), bits, block_size, symmetric)
    signs = np.uint8(1 << (bits - 1) if symmetric else 0)

    def flat(codes: np.ndarray) -> np.ndarray:
        return pack(np.pad(codes.reshape(-1), (0, -codes.size % (8 // bits))), bits)

    _write(("packed", packed, flat(made.codes[:rows] ^ signs)), ("scales", scales, made.scales),
           ("zero_points", zero_points, None if made.zero_points is None else flat(made.zero_points)))
    return bool(symmetric)


def _matrix(weight: Any, scales: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """The weights as finite floats (rows, columns) of the scales' type."""
    kind = getattr(scales, "dtype", None)
    if getattr(kind, "name", None) not in FLOATS.values():
        raise InvalidValue("scales cannot be written into this", found=kind or type(scales).__name__,
                           expected="an array of float32 or float16")
    found = np.asarray(weight, kind)
    if found.size != rows * columns or not found.size:
        raise InvalidValue("the weight has another size", found=found.shape, expected=(rows, columns),
                           cure="give the weight's own numbers of columns and rows")
    found = found.reshape(rows, columns)
    check_finite(found, "weight")
    return found


def _write(*results: tuple[str, np.ndarray, np.ndarray | None]) -> None:
    """Each result at the beginning of its array; none is written where one does not fit."""
    for name, to, result in results:
        if result is None:
            continue
        if (not isinstance(to, np.ndarray) or to.dtype != result.dtype or to.size < result.size
                or not to.flags.c_contiguous or not to.flags.writeable):
            raise InvalidValue(f"{name} cannot be written into this",
                               found=f"{to.dtype} {to.shape}, {to.flags.c_contiguous=}, {to.flags.writeable=}"
                               if isinstance(to, np.ndarray) else type(to).__name__,
                               expected=f"a writable C-contiguous array of {result.size} {result.dtype}")
    for _, to, result in results:
        if result is not None:
            to.reshape(-1)[:result.size] = result.reshape(-1)
