"""Groups of weights rounded to few bits: (groups, group_size) in, codes, scales and zero points out.

Scales are double. The invariant: a code is between 0 and 2 ** bits - 1 ("uint"), or the same counted from the
middle ("int", symmetric).
"""

from __future__ import annotations

import numpy as np

from ..refused import InvalidValue

_STEPS, _STEP = 20, 0.1
"""How many spreads of a range k-quant tries, and how they differ."""
_PIECE = 1 << 17


def as_groups(data: np.ndarray, group_size: int) -> np.ndarray:
    """The values in rows of `group_size`, which -1 makes the last dimension's."""
    return data.reshape(-1, data.shape[-1] if group_size == -1 else group_size)


def quant_tensor(data: np.ndarray, num_bits: int = 4, group_size: int = 32, scheme: str = "asym",
                 dtype: str = "int", ratio: float = 1.0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(codes, scales, zero points) of groups of `group_size` along the last dimension, -1 for all of it.

    `scheme`: "sym" spreads the largest magnitude to both sides, "asym" the range; a range that lies on one
    side of zero is widened to it, since a zero point must be a code. `ratio` narrows the range. Codes and
    scales are double, (groups, group_size) and (groups, 1); zero points are uint8 for dtype "uint", else
    double. Raises: InvalidValue for another scheme or dtype.
    """
    if scheme not in ("sym", "asym") or dtype not in ("int", "uint"):
        raise InvalidValue("weights cannot be quantized so", found=f"scheme {scheme!r}, dtype {dtype!r}",
                           expected="'sym' or 'asym', 'int' or 'uint'")
    groups = as_groups(data, group_size)
    codes, scale, zero = np.empty(groups.shape), np.empty((len(groups), 1)), np.empty((len(groups), 1))
    step = max(1, _PIECE // max(1, groups.shape[1]))
    for start in range(0, len(groups), step):
        part = slice(start, start + step)
        chosen = nearest(groups[part, :, None], num_bits, scheme == "sym", ratio, dtype == "uint")
        codes[part], scale[part], zero[part] = chosen[0][..., 0], chosen[1], chosen[2]
    return codes, scale, zero.astype(np.uint8) if dtype == "uint" else zero


def nearest(piece: np.ndarray, bits: int, symmetric: bool, ratio: float = 1.0, unsigned: bool = True
            ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Codes, scales and zero points (double) of groups (groups, group_size, N); see `quant_tensor`."""
    low = np.minimum(piece.min(1), 0) * ratio
    high = np.maximum(piece.max(1), 0) * ratio
    top, middle = (1 << bits) - 1, 1 << (bits - 1)
    wide = 2 * np.maximum(-low, high).astype(np.float64) if symmetric else (high - low).astype(np.float64)
    scale = np.where(wide > 0, wide / top, 1.0)
    if symmetric:
        zero, least = np.full(scale.shape, middle if unsigned else 0.0), 0 if unsigned else -middle
    else:
        zero, least = np.clip(np.round(-low / scale), 0, top), 0
    codes = piece / scale[:, None]
    codes += zero[:, None]
    np.rint(codes, out=codes)
    return np.clip(codes, least, least + top, out=codes), scale, zero


def qdq_tensor(data: np.ndarray, num_bits: int = 4, group_size: int = 32, scheme: str = "asym",
               dtype: str = "int", ratio: float = 1.0) -> np.ndarray:
    """What remains of the values when they are quantized as by `quant_tensor`: double, in the same shape."""
    codes, scale, zero = quant_tensor(data, num_bits, group_size, scheme, dtype, ratio)
    return ((codes - zero) * scale).reshape(data.shape)


def pad_tensor(weight: np.ndarray, group_size: int, k_blocks: int) -> np.ndarray:
    """The matrix (K, N) with rows of zeros up to `k_blocks` groups; -1 is one group of all rows."""
    wanted = weight.shape[0] if group_size == -1 else group_size * k_blocks
    return np.pad(weight, ((0, max(0, wanted - weight.shape[0])), (0, 0)))


def get_weight_scale(weight: np.ndarray, group_size: int) -> np.ndarray:
    """How much of its group's largest magnitude each input channel has, in the mean of a weight (N, K): (K,).
    Groups of zeros count as zero."""
    size = np.abs(as_groups(weight, group_size))
    most = size.max(1, keepdims=True)
    share = np.divide(size, most, out=np.zeros_like(size), where=most > 0)
    mean: np.ndarray = share.reshape(weight.shape).mean(0)
    return mean


def quant_tensor_k_quant_cpu(data: np.ndarray, num_bits: int = 4, group_size: int = 32
                             ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(codes, scales, zero points) of groups along the last dimension, as k-quants choose them: of some
    spreads of the range the one after whose least-squares fit the weighted squared error is least, large
    values weighing more. Codes and scales are double, zero points uint8. A range on one side of zero is
    widened to it.
    """
    groups = as_groups(data, group_size)
    codes = np.empty(groups.shape)
    scales, zeros = np.empty((len(groups), 1)), np.empty((len(groups), 1), np.uint8)
    step = max(1, _PIECE // max(1, groups.shape[1]))
    for start in range(0, len(groups), step):
        part = slice(start, start + step)
        codes[part], scales[part], zeros[part] = k_quant(groups[part].astype(np.float32), num_bits)
    return codes, scales, zeros


def k_quant(groups: np.ndarray, bits: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Codes, scales and zero points of float32 groups (groups, group_size); see `quant_tensor_k_quant_cpu`.
    The order of the sums is part of the result."""
    top = (1 << bits) - 1
    weights = np.sqrt(_summed(groups ** 2) / groups.shape[1]) + np.abs(groups)
    whole, weighted = _summed(weights), _summed(weights * groups)
    low, high = groups.min(1, keepdims=True), groups.max(1, keepdims=True)
    one_sided = (low > 0) | (high < 0)
    low, high = np.where(one_sided, np.minimum(low, 0), low), np.where(one_sided, np.maximum(high, 0), high)
    scale = 1 / _factor(top, low, high)
    error = _summed(weights * (scale * _spread(groups, top, low, high, top) + low - groups) ** 2)
    for index in range(_STEPS):
        tried = _spread(groups, -1 + _STEP * index + top, low, high, top)
        heavy = weights * tried
        once, twice, crossed = _summed(heavy), _summed(heavy * tried), _summed(heavy * groups)
        apart = whole * twice - once ** 2
        with np.errstate(divide="ignore", invalid="ignore"):
            slope = (whole * crossed - weighted * once) / apart
            start = (twice * weighted - once * crossed) / apart
            now = _summed(weights * (slope * tried + start - groups) ** 2)
        better = (now < error) & (~one_sided | (start <= 0) & (start + slope * top >= 0))
        error, scale, low = (np.where(better, *pair) for pair in ((now, error), (slope, scale), (start, low)))
    zero = np.clip((-low / scale).round(), 0, top).astype(np.uint8)
    scale = scale.astype(np.float64)
    return np.clip(np.rint(groups / scale + zero), 0, top), scale, zero


def _factor(steps: float, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """By what a range is multiplied to be `steps` long."""
    return np.divide(np.float32(steps), high - low, out=np.ones_like(low), where=high != low)


def _spread(groups: np.ndarray, steps: float, low: np.ndarray, high: np.ndarray, top: int) -> np.ndarray:
    """The codes of a range spread over `steps`."""
    return np.clip(np.rint(_factor(steps, low, high) * (groups - low)), 0, top)


def _summed(values: np.ndarray) -> np.ndarray:
    total: np.ndarray = values.sum(1, keepdims=True)
    return total
