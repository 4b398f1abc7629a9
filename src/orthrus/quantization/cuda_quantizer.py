"""Weights of 4 and 8 bits as onnxruntime's kernels for CUDA take them.

In: one matrix (N, K) of weights, an array or a tensor of torch. Out: codes and scales of the same kind. The
invariant: codes are unsigned and counted from the middle of their range; what is prepacked holds the same
codes in another order.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from .refused import InvalidValue
from .weights.blockwise import pack, quantized

_ROW_TILE = 64
_LEAST_SCALE = np.finfo(np.float32).eps


def has_cuda_weight_prepacking() -> bool:
    """Whether weights can be prepacked: always, as it needs nothing but numpy."""
    return True


class CudaQuantizer:
    """Quantizes one expert of QMoE, or the weight of MatMulNBits. `unsigned_full_range`: use the lowest code
    too, -8 or -128 before the middle is added."""

    @staticmethod
    def qmoe_symmetric_per_channel_quantize(weights: Any, bits: int, *,
                                            unsigned_full_range: bool = True) -> tuple[Any, Any]:
        """A scale for each row: codes, uint8 (N, K * bits / 8), and scales, float32 (N,).

        Raises: InvalidValue for other bits, and for a K that leaves a byte half empty.
        """
        matrix = _matrix(weights, bits)
        _whole(matrix.shape[1], 8 // bits, "K")
        codes, scales = _symmetric(matrix[:, None], bits, unsigned_full_range)
        return _like(weights, _packed(codes[:, 0], bits), scales[:, 0])

    @staticmethod
    def qmoe_per_channel_quantize(weights: Any, bits: int, prepack: bool, force_arch: int = 80, *,
                                  unsigned_full_range: bool = True) -> tuple[Any, Any]:
        """The same; if `prepack`, the codes are uint8 (K, N * bits / 8) in the order of the kernels for SM80
        or SM90, `force_arch`."""
        codes, scales = CudaQuantizer.qmoe_symmetric_per_channel_quantize(
            _matrix(weights, bits), bits, unsigned_full_range=unsigned_full_range)
        if prepack:
            rows, depth = weights.shape
            _whole(rows, 8 // bits, "N")
            codes = _prepacked(codes, depth, bits, force_arch).reshape(depth, -1)
        return _like(weights, codes, scales)

    @staticmethod
    def matmulnbits_blockwise_quantize(
        weights: Any, bits: int, block_size: int, *, symmetric: bool = True, return_zero_points: bool = False,
        abs_scales: bool = True, flatten_qweight: bool = True, unsigned_full_range: bool = True,
    ) -> tuple[Any, ...]:
        """A scale for each block of a row, with MatMulNBits' codes: uint8 (N, bytes), or (N, blocks, bytes of
        a block) without `flatten_qweight`; scales, float32 (N, blocks); and, if `return_zero_points`, uint8
        (N, bytes). `abs_scales`: no scale is negative.

        Raises: InvalidValue for other bits, and for a block size below 1.
        """
        codes, scales, zeros = _blocks(_matrix(weights, bits), bits, block_size, symmetric, abs_scales,
                                       unsigned_full_range)
        codes = codes.reshape(len(codes), -1) if flatten_qweight else codes
        return _like(weights, codes, scales, *[zeros][:return_zero_points])

    @staticmethod
    def matmulnbits_prepacked_blockwise_quantize(
        weights: Any, bits: int, block_size: int, force_arch: int = 80, *, symmetric: bool = True,
        return_zero_points: bool = False, abs_scales: bool = True, unsigned_full_range: bool = True,
    ) -> tuple[Any, ...]:
        """The same, prepacked: uint8 (N, blocks, bytes of a block) for a MatMulNBits whose attribute
        `weight_prepacked` is 1, with `force_arch` 80, or 2, with 90.

        Raises: InvalidValue for blocks that the kernels do not have.
        """
        allowed = (32, 64, 128) if force_arch == 80 else (64, 128)
        if block_size not in allowed:
            raise InvalidValue(f"block_size must be one of {allowed} for force_arch={force_arch}",
                               found=block_size)
        return _prepacked_blocks(weights, bits, block_size, force_arch, symmetric, return_zero_points,
                                 abs_scales, unsigned_full_range, False)

    @staticmethod
    def qmoe_prepacked_blockwise_quantize(
        weights: Any, bits: int, block_size: int, force_arch: int = 80, *, symmetric: bool = True,
        return_zero_points: bool = False, abs_scales: bool = False, unsigned_full_range: bool = True,
    ) -> tuple[Any, ...]:
        """The same for QMoE: uint8 (K, N * bits / 8)."""
        return _prepacked_blocks(weights, bits, block_size, force_arch, symmetric, return_zero_points,
                                 abs_scales, unsigned_full_range, True)

    @staticmethod
    def symmetric_blockwise_quantize(weights: Any, bits: int, block_size: int, *,
                                     unsigned_full_range: bool = True) -> tuple[Any, Any]:
        """Blocks along the last axis of any shape, computed in the weights' own type: codes, uint8 with two
        of 4 bits in a byte, or int8 counted from zero, and scales (..., blocks)."""
        array = _array(weights)
        _allowed(bits)
        length = array.shape[-1]
        blocks = -(-length // block_size)
        padded = np.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, blocks * block_size - length)])
        low, divisor = _range(bits, unsigned_full_range)
        held = padded.reshape(*array.shape[:-1], blocks, block_size)
        scales = np.maximum(np.abs(held).max(-1) / array.dtype.type(divisor), array.dtype.type(1e-8))
        codes = np.clip(np.rint(held / scales[..., None]), low, (1 << (bits - 1)) - 1).astype(np.int8)
        codes = codes.reshape(*array.shape[:-1], -1)[..., :length]
        return _like(weights, _packed((codes + 8).astype(np.uint8), 4) if bits == 4 else codes, scales)


def _allowed(bits: int) -> None:
    if bits not in (4, 8):
        raise InvalidValue("weights for CUDA have 4 or 8 bits", found=bits)


def _whole(size: int, unit: int, name: str) -> None:
    if size % unit:
        raise InvalidValue(f"{name} ({size}) must be divisible by {unit}", found=size,
                           cure="pad the weights with zeros")


def _array(weights: Any) -> np.ndarray:
    """The values of an array or of a tensor; bfloat16, which numpy lacks, as float32."""
    if isinstance(weights, np.ndarray):
        return weights
    held = weights.detach().cpu()
    return np.asarray(held.float() if "bfloat16" in str(held.dtype) else held)


def _matrix(weights: Any, bits: int) -> np.ndarray:
    _allowed(bits)
    array = _array(weights)
    if array.ndim != 2:
        raise InvalidValue("weights of one expert are a matrix (N, K)", found=f"shape {array.shape}")
    return array.astype(np.float32)


def _like(weights: Any, *arrays: np.ndarray) -> tuple[Any, ...]:
    """The arrays as what `weights` is."""
    if isinstance(weights, np.ndarray):
        return tuple(map(np.ascontiguousarray, arrays))
    import torch

    return tuple(torch.from_numpy(np.ascontiguousarray(array)) for array in arrays)


def _range(bits: int, full: bool) -> tuple[int, int]:
    """The lowest code, and what the largest magnitude is divided by."""
    top = (1 << (bits - 1)) - 1
    return (-top - 1, top + 1) if full else (-top, top)


def _symmetric(blocks: np.ndarray, bits: int, full: bool) -> tuple[np.ndarray, np.ndarray]:
    """Blocks along the last axis: unsigned codes, and a scale for each."""
    low, divisor = _range(bits, full)
    scales = np.maximum(np.abs(blocks).max(-1) / np.float32(divisor), _LEAST_SCALE)
    codes = np.clip(np.rint(blocks / scales[..., None]), low, (1 << (bits - 1)) - 1)
    return (codes + (1 << (bits - 1))).astype(np.uint8), scales


def _packed(codes: np.ndarray, bits: int) -> np.ndarray:
    """Codes put together along the last axis, zeros behind it."""
    filled = np.pad(codes, [(0, 0)] * (codes.ndim - 1) + [(0, -codes.shape[-1] % (8 // bits))])
    return np.moveaxis(pack(np.moveaxis(filled, -1, 0), bits), 0, -1)


def _blocks(matrix: np.ndarray, bits: int, block_size: int, symmetric: bool, abs_scales: bool,
            full: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Codes (N, blocks, bytes), scales (N, blocks) and zero points (N, bytes), which a symmetric range leaves
    at 0."""
    if block_size < 1:
        raise InvalidValue("a block has one weight or more", found=block_size)
    rows, depth = matrix.shape
    blocks = -(-depth // block_size)
    if not symmetric:
        made = quantized(matrix.T, bits, block_size, False)
        zeros = made.packed_zero_points()
        assert zeros is not None
        scales = made.scales.T
        return made.packed(), np.abs(scales) if abs_scales else scales, zeros
    padded = np.pad(matrix, ((0, 0), (0, blocks * block_size - depth)))
    codes, scales = _symmetric(padded.reshape(rows, blocks, block_size), bits, full)
    return _packed(codes, bits), scales, np.zeros((rows, -(-blocks * bits // 8)), np.uint8)


def _prepacked_blocks(weights: Any, bits: int, block_size: int, arch: int, symmetric: bool, with_zeros: bool,
                      abs_scales: bool, full: bool, by_depth: bool) -> tuple[Any, ...]:
    """Blocks prepacked: codes (K, bytes) if `by_depth`, else (N, blocks, bytes of a block)."""
    matrix = _matrix(weights, bits)
    rows, depth = matrix.shape
    _whole(depth, block_size, "K")
    _whole(rows, 8 // bits, "N")
    codes, scales, zeros = _blocks(matrix, bits, block_size, symmetric, abs_scales, full)
    moved = _prepacked(codes, depth, bits, arch).reshape((depth, -1) if by_depth else codes.shape)
    return _like(weights, moved, scales, *[zeros][:with_zeros])


def _prepacked(codes: np.ndarray, depth: int, bits: int, arch: int) -> np.ndarray:
    """The bytes of codes (N, ...) of `depth` columns, in the order in which a warp's matrix instructions for
    16-bit activations read them.

    Columns are taken in pairs across each tile of 128 bits; for SM80, tiles of 64 columns of neighbouring
    rows lie side by side; within 32 bits the even codes stand before the odd ones.
    """
    if arch not in (80, 90):
        raise InvalidValue("force_arch must be 80 (SM80) or 90 (SM90)", found=arch)
    rows, tile = len(codes), 128 // bits
    _whole(depth, tile, "K")
    _whole(rows, 8 * 8 // bits, "N")
    held = codes.reshape(rows, -1, 1)
    single = (held >> np.arange(0, 8, bits, dtype=np.uint8)) & np.uint8((1 << bits) - 1)
    order = np.arange(tile).reshape(-1, 4, 2).transpose(1, 0, 2).ravel()
    single = single.reshape(rows, -1, tile)[..., order]
    if arch == 80:
        _whole(depth, _ROW_TILE, "K")
        together = 16 // bits
        single = single.reshape(-1, together, depth // _ROW_TILE, _ROW_TILE).transpose(0, 2, 1, 3)
    word = single.reshape(-1, 32 // bits // 2, 2)
    return _packed(word.transpose(0, 2, 1).reshape(-1), bits)
