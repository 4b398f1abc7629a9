"""Weights as floats of 4 bits, FP4 or NF4: a flat array in, two codes in a byte and a scale per block out.

The invariant: a weight is nearly the float of its code, times the largest magnitude of its block.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_PIECE = 1 << 17
_FP4 = (0.0026041700039058924, 0.0859375, 0.2083333283662796, 0.2916666567325592, 0.4166666865348816,
        0.5833330154418945, 0.8333333134651184)
_FP4_CODES = np.array([0, 1, 6, 7, 4, 5, 2, 3], np.uint8)
_NF4 = (-0.8480964303016663, -0.6106328964233398, -0.4599952697753906, -0.33967941999435425,
        -0.23460739850997925, -0.13791173696517944, -0.045525018125772476, 0.03979014977812767,
        0.1202552542090416, 0.2035212516784668, 0.2920137643814087, 0.3893125355243683, 0.5016633868217468,
        0.6427869200706482, 0.8614783883094788)
"""The values above which the next code is the nearer one; FP4's are magnitudes, whose codes follow."""


def in_float4(flat: np.ndarray, block_size: int, nf4: bool) -> tuple[np.ndarray, np.ndarray]:
    """(bytes, scales) of floats (n,): uint8 (ceil(n / 2),) with the first of two codes highest, and the
    blocks' largest magnitudes (ceil(n / block_size),) in the weights' type. `nf4`: NF4's floats, else
    FP4's."""
    codes_of = _nf4_codes if nf4 else _fp4_codes
    blocks = -(-flat.size // block_size)
    scales = np.empty(blocks, flat.dtype)
    codes = np.tile(codes_of(np.zeros(1, np.float32)), flat.size + flat.size % 2)
    step = max(1, _PIECE // block_size)
    for first in range(0, blocks, step):
        held = slice(first * block_size, (first + step) * block_size)
        piece = flat[held].astype(np.float32)
        values = np.pad(piece, (0, -piece.size % block_size)).reshape(-1, block_size)
        largest = np.abs(values).max(1, keepdims=True)
        scales[first:first + step] = largest[:, 0]
        factor = np.divide(np.float32(1), largest, out=np.zeros_like(largest), where=largest > 0)
        codes[held.start:held.start + piece.size] = codes_of(values * factor).reshape(-1)[:piece.size]
    return codes[::2] << np.uint8(4) | codes[1::2], scales


def _fp4_codes(values: np.ndarray) -> np.ndarray:
    """FP4's nearest codes of values from -1 to 1."""
    return _FP4_CODES[_above(np.abs(values), _FP4)] | (values < 0).view(np.uint8) << np.uint8(3)


def _nf4_codes(values: np.ndarray) -> np.ndarray:
    """NF4's nearest codes of values from -1 to 1."""
    return _above(values, _NF4)


def _above(values: np.ndarray, limits: Sequence[float]) -> np.ndarray:
    """How many of the limits each value is above."""
    count = np.zeros(values.shape, np.uint8)
    for limit in limits:
        count += values > np.float32(limit)
    return count
