"""Weights as onnxruntime's CUDA operators have them, MatMulNBits and the experts of QMoE, in its names.

In: one matrix (N, K) of floats. Out: codes counted from the middle of their range, and scales. The invariant:
what is given as tensors of torch comes back as such, anything else as arrays of numpy; no GPU is needed, and
layouts that only a GPU's kernels read are refused.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from .refused import InvalidValue, Unsupported
from .weights.blockwise import BLOCK_SIZES, pack, quantized

__all__ = ["CudaQuantizer", "has_cuda_weight_prepacking"]

_SMALLEST, _SMALLEST_PER_BLOCK = float(np.finfo(np.float32).eps), 1e-8
"""The least scales of MatMulNBits and QMoE, and of blocks for other operators."""


def has_cuda_weight_prepacking() -> bool:
    """Whether weights can be laid out for onnxruntime's CUDA kernels: never here."""
    return False


class CudaQuantizer:
    """The functions, which need no object. `bits`: 4 or 8; `unsigned_full_range`: whether the lowest code is
    used, which has no counterpart above zero. Raises: InvalidValue for other bits, blocks and shapes,
    Unsupported for prepacked layouts."""

    @staticmethod
    def qmoe_symmetric_per_channel_quantize(weights: Any, bits: int, *, unsigned_full_range: bool = True
                                            ) -> tuple[Any, Any]:
        """(bytes (N, K * bits / 8), scales (N,)) of one expert."""
        matrix, bits = _matrix(weights), _bits(bits)
        if matrix.shape[1] % (8 // bits):
            raise InvalidValue("the weight's rows are no whole bytes", found=f"K {matrix.shape[1]}",
                               expected=f"a multiple of {8 // bits}")
        codes, scales = _symmetric(matrix[:, None], bits, unsigned_full_range, _SMALLEST)
        return _like(weights, _packed(codes[:, 0], bits), scales[:, 0])

    @staticmethod
    def qmoe_per_channel_quantize(weights: Any, bits: int, prepack: bool, force_arch: int = 80, *,
                                  unsigned_full_range: bool = True) -> tuple[Any, Any]:
        """As `qmoe_symmetric_per_channel_quantize`; `prepack` is refused."""
        if prepack:
            raise _prepacked()
        return CudaQuantizer.qmoe_symmetric_per_channel_quantize(weights, bits,
                                                                 unsigned_full_range=unsigned_full_range)

    @staticmethod
    def matmulnbits_blockwise_quantize(weights: Any, bits: int, block_size: int, *, symmetric: bool = True,
                                       return_zero_points: bool = False, abs_scales: bool = True,
                                       flatten_qweight: bool = True, unsigned_full_range: bool = True
                                       ) -> tuple[Any, ...]:
        """(bytes, scales (N, blocks)), and the packed zero points where these are asked for: 0 where
        `symmetric`. Bytes are (N, blocks * block_size * bits / 8), or with `flatten_qweight` False
        (N, blocks, block_size * bits / 8). Scales are positive with or without `abs_scales`."""
        matrix, bits = _matrix(weights), _bits(bits)
        if block_size not in BLOCK_SIZES:
            raise InvalidValue("weights cannot be quantized in blocks of this size", found=block_size,
                               expected=f"one of {', '.join(map(str, BLOCK_SIZES))}")
        blocks = -(-matrix.shape[1] // block_size)
        zeros = np.zeros((len(matrix), -(-blocks * bits // 8)), np.uint8)
        if symmetric:
            codes, scales = _symmetric(_blocks(matrix, block_size), bits, unsigned_full_range, _SMALLEST)
            packed = _packed(codes, bits)
        else:
            made = quantized(np.ascontiguousarray(matrix.T), bits, block_size, False)
            packed, scales = made.packed(), np.ascontiguousarray(made.scales.T)
            own_zeros = made.packed_zero_points()
            assert own_zeros is not None
            zeros = own_zeros
        found = (packed.reshape(len(matrix), -1) if flatten_qweight else packed, scales, zeros)
        return _like(weights, *found[:2 + return_zero_points])

    @staticmethod
    def matmulnbits_prepacked_blockwise_quantize(weights: Any, bits: int, block_size: int,
                                                 force_arch: int = 80, *, symmetric: bool = True,
                                                 return_zero_points: bool = False, abs_scales: bool = True,
                                                 unsigned_full_range: bool = True) -> tuple[Any, ...]:
        """Refused."""
        raise _prepacked()

    @staticmethod
    def qmoe_prepacked_blockwise_quantize(weights: Any, bits: int, block_size: int, force_arch: int = 80, *,
                                          symmetric: bool = True, return_zero_points: bool = False,
                                          abs_scales: bool = False, unsigned_full_range: bool = True
                                          ) -> tuple[Any, ...]:
        """Refused."""
        raise _prepacked()

    @staticmethod
    def symmetric_blockwise_quantize(weights: Any, bits: int, block_size: int, *,
                                     unsigned_full_range: bool = True) -> tuple[Any, Any]:
        """(codes, scales (..., blocks)) of weights (..., K): int8 (..., K), or uint8 (..., K / 2) that hold
        two codes of 4 bits counted from the middle. Raises: InvalidValue where K is odd for 4 bits."""
        matrix, bits = _array(weights), _bits(bits)
        size = matrix.shape[-1]
        if bits == 4 and size % 2:
            raise InvalidValue("the weight's rows are no whole bytes", found=f"K {size}",
                               expected="an even K")
        codes, scales = _symmetric(_blocks(matrix, block_size), bits, unsigned_full_range,
                                   _SMALLEST_PER_BLOCK)
        flat = codes.reshape(*matrix.shape[:-1], -1)[..., :size]
        return _like(weights, _packed(flat, 4) if bits == 4 else (flat ^ np.uint8(128)).view(np.int8), scales)


def _prepacked() -> Unsupported:
    return Unsupported("weights cannot be laid out for onnxruntime's CUDA kernels here",
                       cure="leave the layout to onnxruntime: write MatMulNBits or QMoE without prepacking")


def _array(weights: Any) -> np.ndarray:
    if hasattr(weights, "detach"):
        weights = weights.detach().cpu().float().numpy()
    return np.asarray(weights).astype(np.float32, copy=False)


def _matrix(weights: Any) -> np.ndarray:
    found = _array(weights)
    if found.ndim != 2:
        raise InvalidValue("no weight of one expert", found=f"shape {found.shape}", expected="(N, K)")
    return found


def _bits(bits: int) -> int:
    if int(bits) not in (4, 8):
        raise InvalidValue("weights cannot be quantized to this many bits", found=bits, expected="4 or 8")
    return int(bits)


def _blocks(weights: np.ndarray, block_size: int) -> np.ndarray:
    """The last dimension in blocks, zeros behind its end: (..., blocks, block_size)."""
    if block_size < 1:
        raise InvalidValue("weights cannot be quantized in blocks of this size", found=block_size,
                           expected="a positive number")
    short = -weights.shape[-1] % block_size
    whole = np.pad(weights, (*((0, 0),) * (weights.ndim - 1), (0, short)))
    return whole.reshape(*weights.shape[:-1], -1, block_size)


def _symmetric(blocks: np.ndarray, bits: int, full: bool, smallest: float) -> tuple[np.ndarray, np.ndarray]:
    """uint8 codes of blocks (..., block_size), and their scales."""
    middle = 1 << (bits - 1)
    lowest = -middle if full else 1 - middle
    largest = np.abs(blocks).max(-1, keepdims=True)
    scales = np.maximum(largest / np.float32(-lowest), np.float32(smallest))
    codes = np.clip(np.rint(blocks / scales), lowest, middle - 1) + middle
    return codes.astype(np.uint8), scales[..., 0]


def _packed(codes: np.ndarray, bits: int) -> np.ndarray:
    """Codes put together along the last dimension, which holds whole bytes."""
    return np.ascontiguousarray(np.moveaxis(pack(np.moveaxis(codes, -1, 0), bits), 0, -1))


def _like(given: Any, *arrays: np.ndarray) -> tuple[Any, ...]:
    """The arrays, as tensors of torch where what was given is one."""
    if not hasattr(given, "detach"):
        return arrays
    torch = sys.modules["torch"]
    return tuple(torch.from_numpy(np.ascontiguousarray(array)) for array in arrays)
