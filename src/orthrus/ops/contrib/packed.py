"""Rows of a table in the block formats of GGUF files: bytes in, float32 out.

A format is named by its number there. Bytes are little-endian, and a block's codes stand in its lower halves
first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...errors import Unfit
from ...ir import TensorType, Type, Value
from ...ir.types import ElementType
from ...limits import bounded
from ..define import define
from .fused import MS
from .quant import unpacked

_IQ4 = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)
"""What the codes of IQ4_NL and IQ4_XS stand for, before their scale."""


def _half(blocks: np.ndarray, at: int) -> np.ndarray:
    """The float16 at a byte of each block, float32 [blocks, 1]."""
    return np.ascontiguousarray(blocks[:, at:at + 2]).view("<f2").astype(np.float32)


def _halves(codes: np.ndarray) -> np.ndarray:
    """The lower four bits of bytes [..., n], then the upper ones, [..., 2n]."""
    return np.concatenate((codes & 15, codes >> 4), -1)


def _plain(kind: ElementType) -> Callable[[np.ndarray], np.ndarray]:
    return lambda blocks: np.ascontiguousarray(blocks).view(kind.numpy).astype(np.float32)


def _q4_0(blocks: np.ndarray) -> np.ndarray:
    return (_halves(blocks[:, 2:]).astype(np.float32) - 8) * _half(blocks, 0)


def _q5_0(blocks: np.ndarray) -> np.ndarray:
    fifth = unpacked(blocks[:, 2:6], 1)
    return ((_halves(blocks[:, 6:]) | fifth << 4).astype(np.float32) - 16) * _half(blocks, 0)


def _q8_0(blocks: np.ndarray) -> np.ndarray:
    return blocks[:, 2:].view(np.int8).astype(np.float32) * _half(blocks, 0)


def _q2_0(blocks: np.ndarray) -> np.ndarray:
    return (unpacked(blocks[:, 2:], 2).astype(np.float32) - 1) * _half(blocks, 0)


def _q5_k(blocks: np.ndarray) -> np.ndarray:
    """Eight groups of 32, each with a scale and a least value of six bits."""
    told = blocks[:, 4:16]
    first, second, third = told[:, :4], told[:, 4:8], told[:, 8:]
    scale = np.concatenate((first & 63, third & 15 | first >> 6 << 4), 1)[..., None].astype(np.float32)
    least = np.concatenate((second & 63, third >> 4 | second >> 6 << 4), 1)[..., None].astype(np.float32)
    low = _halves(blocks[:, 48:].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    fifth = unpacked(blocks[:, 16:48, None], 1).swapaxes(1, 2)
    codes = (low | fifth << 4).astype(np.float32)
    d, m = _half(blocks, 0)[..., None], _half(blocks, 2)[..., None]
    return ((d * scale) * codes - m * least).reshape(len(blocks), -1)


def _q6_k(blocks: np.ndarray) -> np.ndarray:
    """Sixteen groups of 16, each with a scale of eight bits; two bits of a code lie apart."""
    low = _halves(blocks[:, :128].reshape(-1, 2, 64)).reshape(-1, 2, 4, 32)
    high = blocks[:, 128:192].reshape(-1, 2, 1, 32) >> np.arange(0, 8, 2, dtype=np.uint8)[:, None] & 3
    codes = (low | high << 4).astype(np.float32).reshape(-1, 16, 16) - 32
    scale = blocks[:, 192:208].view(np.int8).astype(np.float32)[..., None]
    return (_half(blocks, 208)[..., None] * scale * codes).reshape(len(blocks), -1)


def _iq4_nl(blocks: np.ndarray) -> np.ndarray:
    return _IQ4[_halves(blocks[:, 2:])] * _half(blocks, 0)


def _iq4_xs(blocks: np.ndarray) -> np.ndarray:
    """Eight groups of 32, each with a scale of six bits, two of them apart."""
    scale = (unpacked(blocks[:, 4:8], 4) | unpacked(blocks[:, 2:4], 2) << 4).astype(np.float32) - 32
    values = _IQ4[_halves(blocks[:, 8:].reshape(-1, 8, 16))]
    return ((_half(blocks, 0) * scale)[..., None] * values).reshape(len(blocks), -1)


FORMATS: dict[int, tuple[int, int, Callable[[np.ndarray], np.ndarray]]] = {
    0: (1, 4, _plain(ElementType.FLOAT)), 1: (1, 2, _plain(ElementType.FLOAT16)),
    2: (32, 18, _q4_0), 6: (32, 22, _q5_0), 8: (32, 34, _q8_0), 13: (256, 176, _q5_k),
    14: (256, 210, _q6_k), 20: (32, 18, _iq4_nl), 23: (256, 136, _iq4_xs),
    30: (1, 2, _plain(ElementType.BFLOAT16)), 42: (64, 18, _q2_0)}
"""By number: elements of a block, its bytes, and what [blocks, bytes] stand for."""

_RESULTS = {1: ElementType.FLOAT, 10: ElementType.FLOAT16, 16: ElementType.BFLOAT16}


@define(domain=MS, types={"data": ("uint8",), "indices": ("int32", "int64")})
def GatherPacked(data, indices, *, K: int, output_dtype: int = 16, packed_type: int):
    """Rows of a table [rows, bytes] as numbers [..., K]; an index that is none of a row is that of the
    first"""
    if packed_type not in FORMATS or output_dtype not in _RESULTS:
        raise ValueError(f"GatherPacked of packed_type {packed_type} into type {output_dtype}: expected one"
                         f" of {', '.join(map(str, FORMATS))}, into one of {', '.join(map(str, _RESULTS))}")
    block, size, decode = FORMATS[packed_type]
    if K < 1 or K % block or data.ndim != 2 or data.shape[1] != K // block * size:
        raise Unfit(f"data of shape {data.shape} are no rows of {K} elements, which are {size} bytes for"
                    f" each {block}")
    if indices.size and not len(data):
        raise Unfit(f"{indices.size} rows cannot be taken from a table without rows")
    made = _RESULTS[output_dtype].numpy
    out = bounded((*indices.shape, K), np.dtype(np.float32))
    inside = np.where((indices >= 0) & (indices < len(data)), indices, 0).reshape(-1)
    with np.errstate(invalid="ignore", over="ignore"):
        values = decode(data[inside].reshape(-1, size))
        return values.reshape(out).astype(made)


@GatherPacked.infer_with
def _row_types(data: Value, indices: Value, *, K: int, output_dtype: int, **_: Any) -> list[Type]:
    return [TensorType(_RESULTS.get(output_dtype),
                       None if indices.shape is None else (*indices.shape, K))]
