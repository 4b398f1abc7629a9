"""Half-quadratic quantization: float zero points, chosen so that few weights err much.

In: a matrix (K, N). Out: `Blockwise` with zero points in the weight's type. The invariant: a block's squared
error is never above that of the range's even spread, but for the rounding to the weight's type.

Badri and Shaji, "Half-Quadratic Quantization of Large Machine Learning Models", 2023; the scale and the zero
point that are best for the codes in the least-squares sense follow it here.
"""

from __future__ import annotations

import numpy as np

from .blockwise import Blockwise, in_blocks

_NORM, _FIRST, _GROWTH, _ROUNDS = 0.7, 10.0, 1.01, 20
"""The norm of the error, the weight of its quadratic part and that part's growth, and how often."""
_REFITS = 3
_SMALLEST = np.float32(1e-30)
"""A block's range from which on it is spread; one below is a single value."""


def half_quadratic(weight: np.ndarray, bits: int, block_size: int) -> Blockwise:
    """The matrix (K, N) of finite floats in blocks of `block_size` rows."""
    top = np.float32((1 << bits) - 1)

    def choose(piece: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        scale, zero = (found.astype(weight.dtype) for found in _best(piece, top))
        codes = _codes(piece, scale.astype(np.float32), zero.astype(np.float32), top)
        return codes.astype(np.uint8), scale[:, 0], zero[:, 0]

    return in_blocks(weight, bits, block_size, choose, weight.dtype)


def _best(piece: np.ndarray, top: np.float32) -> tuple[np.ndarray, np.ndarray]:
    """Scale and zero point (blocks, 1, N) of blocks (blocks, block_size, N)."""
    low, high = piece.min(1, keepdims=True), piece.max(1, keepdims=True)
    scale = np.where(high - low > _SMALLEST, (high - low) / top, np.float32(1))
    zero = np.rint(-low / scale)
    best = [scale, zero, _error(piece, scale, zero, top)]
    moved = _shrunk(piece, scale, zero, top)
    _take(best, piece, scale, moved, top)
    for _ in range(_REFITS):
        _take(best, piece, *_refitted(piece, best[0], best[1], top), top)
    return best[0], best[1]


def _take(best: list[np.ndarray], piece: np.ndarray, scale: np.ndarray, zero: np.ndarray, top: np.float32
          ) -> None:
    """Put a scale and a zero point into `best` for the blocks that they make better."""
    error = _error(piece, scale, zero, top)
    better = error < best[2]
    best[:] = [np.where(better, new, old) for new, old in zip((scale, zero, error), best, strict=True)]


def _codes(piece: np.ndarray, scale: np.ndarray, zero: np.ndarray, top: np.float32) -> np.ndarray:
    return np.clip(np.rint(piece / scale + zero), 0, top)


def _error(piece: np.ndarray, scale: np.ndarray, zero: np.ndarray, top: np.float32) -> np.ndarray:
    left = piece - (_codes(piece, scale, zero, top) - zero) * scale
    return np.einsum("bkn,bkn->bn", left, left)[:, None]


def _shrunk(piece: np.ndarray, scale: np.ndarray, zero: np.ndarray, top: np.float32) -> np.ndarray:
    """The zero point after the alternation between a sparse error and the zero point that leaves it."""
    weight = np.float32(_FIRST)
    for _ in range(_ROUNDS):
        codes = _codes(piece, scale, zero, top)
        left = piece - (codes - zero) * scale
        size = np.abs(left)
        kept = np.maximum(size - (size + np.float32(1e-8)) ** np.float32(_NORM - 1) / weight, 0)
        zero = (codes - (piece - np.copysign(kept, left)) / scale).mean(1, keepdims=True, dtype=np.float32)
        weight *= np.float32(_GROWTH)
    return zero


def _refitted(piece: np.ndarray, scale: np.ndarray, zero: np.ndarray, top: np.float32
              ) -> tuple[np.ndarray, np.ndarray]:
    """The line through the codes with the least squared error, as a scale and a zero point."""
    codes = _codes(piece, scale, zero, top)
    code, value = codes.mean(1, keepdims=True), piece.mean(1, keepdims=True)
    apart = codes - code
    spread = np.square(apart).sum(1, keepdims=True)
    shared = (apart * (piece - value)).sum(1, keepdims=True)
    slope = np.divide(shared, spread, out=scale.copy(), where=spread > 0)
    slope = np.where(slope > 0, slope, scale)
    return slope, code - value / slope
