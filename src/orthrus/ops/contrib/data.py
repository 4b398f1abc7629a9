"""Data movement, distances, hashing and other small operators of com.microsoft: arrays in, arrays out."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np

from ...errors import InvalidArgument
from ...ir import HALF, ElementType, TensorType, Type, Value, element_of
from ...limits import bounded
from ..define import FLOATS, INTS, define, find, normalized_axis
from ..math.linalg import matmul
from ..nn.pool import MaxPool
from ..tensor.selection import as_met, distinct, sort_keys
from .fused import MS, like_first, product_shape

_NARROW = ("float8e4m3fn", "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz", "float4e2m1")
_NUMERIC = ("float", "double", "float16", *INTS)


@define(domain=MS, widen=True, result="same", types={"x": FLOATS})
def Inverse(x):
    """The inverse of each square matrix in the last two dimensions, NaN where there is none"""
    if x.ndim < 2 or x.shape[-1] != x.shape[-2]:
        raise ValueError(f"Inverse takes square matrices, found shape {x.shape}")
    try:
        return np.linalg.inv(x)
    except np.linalg.LinAlgError:
        return _inverses(x.reshape(-1, *x.shape[-2:])).reshape(x.shape)


def _inverses(matrices: np.ndarray) -> np.ndarray:
    """The inverse of each; NaN for those that are singular."""
    made = np.full_like(matrices, np.nan)
    for y, x in zip(made, matrices, strict=True):
        with contextlib.suppress(np.linalg.LinAlgError):
            y[:] = np.linalg.inv(x)
    return made


Inverse.infer_with(like_first)


@define(domain=MS, result="same")
def Trilu(x, k=None, *, upper: int = 1):
    """The upper or lower triangle of each matrix in the last two dimensions, from diagonal `k` on"""
    diagonal = 0 if k is None else int(k.reshape(-1)[0])
    rows, columns = np.arange(x.shape[-2])[:, None], np.arange(x.shape[-1])
    kept = columns - rows >= diagonal if upper else columns - rows <= diagonal
    return np.where(kept, x, x.dtype.type(0))


Trilu.infer_with(like_first)


@define(domain=MS, result="same")
def ExpandDims(x, axis):
    """x with a dimension of 1 at `axis`"""
    return np.expand_dims(x, normalized_axis(axis.reshape(-1)[0], x.ndim + 1))


@define(domain=MS, types={"a": ("float", "double"), "b": ("float", "double")})
def CDist(a, b, *, metric: str = "sqeuclidean"):
    """The distance of every row of A to every row of B"""
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[1]:
        raise ValueError(f"CDist takes two matrices of equal width, found shapes {a.shape} and {b.shape}")
    if metric not in ("euclidean", "sqeuclidean"):
        raise ValueError(f"metric is {metric!r}, expected euclidean or sqeuclidean")
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    square = (wide_a * wide_a).sum(1)[:, None] + (wide_b * wide_b).sum(1) - 2 * matmul(wide_a, wide_b.T)
    square = np.maximum(square, 0)
    return (np.sqrt(square) if metric == "euclidean" else square).astype(a.dtype)


@CDist.infer_with
def _distance_type(a: Value, b: Value, **_: Any) -> list[Type]:
    known = a.shape is not None and b.shape is not None
    return [TensorType(a.elem, (a.shape[0], b.shape[0]) if known else None)]


@define(domain=MS, types={"start": _NUMERIC, "limit": _NUMERIC, "delta": _NUMERIC})
def Range(start, limit, delta=None):
    """The numbers from `start` on, `delta` apart, as long as they do not reach `limit`"""
    first, end = start.reshape(-1)[0], limit.reshape(-1)[0]
    step = start.dtype.type(1) if delta is None else delta.reshape(-1)[0]
    if step == 0:
        raise ValueError("delta in Range operator can not be zero!")
    span = (float(end) - float(first)) / float(step)
    if not np.isfinite(span):
        raise ValueError(f"Range from {first} to {end} by {step} has no end")
    count = max(int(np.ceil(span)), 0)
    bounded((count,), start.dtype)
    return (first + np.arange(count, dtype=start.dtype) * step).astype(start.dtype)


@define(domain=MS, types={"x": ("float", "float16", "double")})
def SampleOp(x):
    """x"""
    return x


SampleOp.infer_with(like_first)


@define(domain=MS, types={"data": ("float", "float16", "double"), "pads": ("int64",)})
def Pad(data, pads, value=None, *, mode: str = "constant"):
    """data with its dimensions extended, as ONNX's Pad of version 11"""
    newest = find("", "Pad", 11)
    assert newest is not None
    return newest.bind({"mode": mode})(data, pads.reshape(-1), None if value is None else value.reshape(()))


@define(domain=MS, types={"indices": ("int32", "int64")})
def GatherND(data, indices):
    """The slices of data that the last dimension of `indices` names"""
    depth = indices.shape[-1] if indices.ndim else 0
    if not 1 <= depth <= data.ndim:
        raise ValueError(f"indices of shape {indices.shape} do not index a tensor of rank {data.ndim}")
    wrong = (indices < -np.array(data.shape[:depth])) | (indices >= np.array(data.shape[:depth]))
    if wrong.any():
        raise InvalidArgument(f"invalid index found, index = {indices[wrong][0]}",
                              expected=f"indices into shape {list(data.shape[:depth])}")
    bounded((*indices.shape[:-1], *data.shape[depth:]), data.dtype)
    return data[tuple(np.moveaxis(indices, -1, 0))]


@GatherND.infer_with
def _gathered_type(data: Value, indices: Value) -> list[Type]:
    if data.shape is None or indices.shape is None or not isinstance(indices.shape[-1], int):
        return [TensorType(data.elem, None)]
    return [TensorType(data.elem, (*indices.shape[:-1], *data.shape[indices.shape[-1]:]))]


@define(domain=MS, outputs=3, types={"x": ("float", "double", "float16", *INTS)})
def Unique(x):
    """The distinct elements in the order they come, each element's place among them, and how often each
    comes"""
    if x.ndim != 1:
        raise ValueError(f"Unique takes a vector, found shape {x.shape}")
    first, inverse, counts = as_met(*distinct(sort_keys(x)))
    return x[first], inverse, counts


@Unique.infer_with
def _unique_type(x: Value) -> list[Type]:
    index = ElementType.INT64
    return [TensorType(x.elem, (None,)), TensorType(index, x.shape), TensorType(index, (None,))]


@define(domain=MS)
def UnfoldTensor(input, *, dim: int = -1, size: int, step: int = 1):
    """All windows of `size` along dimension `dim`, `step` apart, their elements in a new last dimension"""
    at = normalized_axis(dim, input.ndim)
    if size < 1 or step < 1 or size > input.shape[at]:
        raise ValueError(f"windows of {size} every {step} do not fit dimension {at} of shape {input.shape}")
    shape = (*input.shape[:at], (input.shape[at] - size) // step + 1, *input.shape[at + 1:], size)
    bounded(shape, input.dtype)
    windows = np.lib.stride_tricks.sliding_window_view(input, size, at)
    return windows[(slice(None),) * at + (slice(None, None, step),)]


def _rotated(x: np.ndarray, by: int) -> np.ndarray:
    return (x << np.uint32(by)) | (x >> np.uint32(32 - by))


def _hashed(rows: np.ndarray, length: int, seed: int) -> np.ndarray:
    """MurmurHash3_x86_32 of each row of bytes [n, length]."""
    state = np.full(len(rows), seed, np.uint32)
    c1, c2 = np.uint32(0xCC9E2D51), np.uint32(0x1B873593)
    whole = length // 4 * 4
    for word in np.ascontiguousarray(rows[:, :whole]).view("<u4").T:
        state ^= _rotated(word * c1, 15) * c2
        state = _rotated(state, 13) * np.uint32(5) + np.uint32(0xE6546B64)
    if length > whole:
        tail = np.zeros(len(rows), np.uint32)
        for i in range(length - whole):
            tail |= rows[:, whole + i].astype(np.uint32) << np.uint32(8 * i)
        state ^= _rotated(tail * c1, 15) * c2
    state ^= np.uint32(length)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        state = (state ^ (state >> np.uint32(shift))) * np.uint32(factor)
    return state ^ (state >> np.uint32(16))


@define(domain=MS, types={"x": ("int32", "uint32", "int64", "uint64", "float", "double", "string")})
def MurmurHash3(x, *, positive: int = 1, seed: int = 0):
    """The 32-bit MurmurHash3 of every element's bytes, as uint32 or, unless `positive`, as int32"""
    start = seed & 0xFFFFFFFF
    if x.dtype == object:
        out = np.empty(x.size, np.uint32)
        for i, text in enumerate(x.reshape(-1)):
            data = np.frombuffer(str(text).encode(), np.uint8)
            out[i] = _hashed(data[None], data.size, start)[0]
    else:
        little = np.ascontiguousarray(x).astype(x.dtype.newbyteorder("<"), copy=False)
        out = _hashed(little.reshape(-1, 1).view(np.uint8), x.dtype.itemsize, start)
    return out.reshape(x.shape).view(np.uint32 if positive else np.int32)


@MurmurHash3.infer_with
def _hash_type(x: Value, *, positive: int, **_: Any) -> list[Type]:
    return [TensorType(ElementType.UINT32 if positive else ElementType.INT32, x.shape)]


@define(domain=MS, widen=True, result="same", types={"x": FLOATS, "rois": FLOATS})
def CropAndResize(x, rois, batch_indices, crop_size, *, extrapolation_value: float = 0.0,
                  mode: str = "bilinear"):
    """Boxes [y1, x1, y2, x2] of images, as parts of their height and width, resized to `crop_size` with
    aligned corners"""
    height, width = (int(v) for v in crop_size.reshape(-1))
    if x.ndim != 4 or rois.ndim != 2 or rois.shape[1] != 4 or batch_indices.shape != rois.shape[:1]:
        raise ValueError(f"x {x.shape}, rois {rois.shape} and batch_indices {batch_indices.shape} do not fit"
                         " together")
    if mode not in ("bilinear", "nearest") or min(height, width) < 1:
        raise ValueError(f"mode is {mode!r} and crop_size {(height, width)}, expected bilinear or nearest,"
                         " and positive")
    if batch_indices.size and not 0 <= batch_indices.min() <= batch_indices.max() < len(x):
        raise InvalidArgument(f"batch_indices run from {batch_indices.min()} to {batch_indices.max()} of"
                              f" {len(x)} images")
    out = np.empty(bounded((len(rois), x.shape[1], height, width), x.dtype), x.dtype)
    places = [_along(rois[:, i], rois[:, i + 2], count, x.shape[2 + i]) for i,
              count in enumerate((height, width))]
    for n, image in enumerate(batch_indices):
        out[n] = _cropped(x[image], places[0][n], places[1][n], mode, extrapolation_value)
    return out


def _along(low: np.ndarray, high: np.ndarray, count: int, size: int) -> np.ndarray:
    """Where the samples of each box lie along one dimension, [boxes, count]; the last lies on the box's end
    exactly, so that a box that ends with the image has no sample outside."""
    last = low.dtype.type(size - 1)
    if count == 1:
        return (low.dtype.type(0.5) * (low + high) * last)[:, None]
    along = low[:, None] * last + np.arange(count, dtype=low.dtype) * ((high - low) * last
                                                                       / (count - 1))[:, None]
    along[:, -1] = high * last
    return along


def _cropped(image: np.ndarray, ys: np.ndarray, xs: np.ndarray, mode: str, outside: float) -> np.ndarray:
    height, width = image.shape[1:]
    inside = ((ys >= 0) & (ys <= height - 1))[:, None] & ((xs >= 0) & (xs <= width - 1))
    y, x = np.clip(np.nan_to_num(ys), 0, height - 1), np.clip(np.nan_to_num(xs), 0, width - 1)
    if mode == "nearest":
        found = image[:, np.floor(y + 0.5).astype(int)][:, :, np.floor(x + 0.5).astype(int)]
    else:
        top, left = np.floor(y).astype(int), np.floor(x).astype(int)
        down, right = np.ceil(y).astype(int), np.ceil(x).astype(int)
        dy, dx = (y - top).astype(image.dtype)[:, None], (x - left).astype(image.dtype)
        upper = image[:, top][:, :, left] * (1 - dx) + image[:, top][:, :, right] * dx
        lower = image[:, down][:, :, left] * (1 - dx) + image[:, down][:, :, right] * dx
        found = upper * (1 - dy) + lower * dy
    return np.where(inside, found, image.dtype.type(outside))


@CropAndResize.infer_with
def _crop_type(x: Value, rois: Value, *_: Value | None, **__: Any) -> list[Type]:
    count = rois.shape[0] if rois.shape else None
    return [TensorType(x.elem, (count, x.shape[1] if x.shape else None, None, None))]


@define(domain=MS, types={"input_ids": ("int64",), "scores": ("float",)})
def NGramRepeatBlock(input_ids, scores, *, ngram_size: int):
    """The scores with -inf for every token that would repeat an n-gram of its row"""
    batch, length = input_ids.shape
    if ngram_size < 1 or scores.ndim != 2 or len(scores) != batch:
        raise ValueError(f"ngram_size {ngram_size} and scores of shape {scores.shape} do not fit ids of"
                         f" {input_ids.shape}")
    out = scores.copy()
    if length < ngram_size:
        return out
    grams = np.lib.stride_tricks.sliding_window_view(input_ids, ngram_size, 1)
    repeated = (grams[:, :, :-1] == input_ids[:, None, length - ngram_size + 1:]).all(2)
    row, at = np.nonzero(repeated)
    token = grams[row, at, -1]
    if token.size and not 0 <= token.min() <= token.max() < scores.shape[1]:
        raise InvalidArgument(f"a token id is outside the {scores.shape[1]} scores",
                              found=f"ids from {token.min()} to {token.max()}",
                              expected=f"0 to {scores.shape[1] - 1}")
    out[row, token] = -np.inf
    return out


@NGramRepeatBlock.infer_with
def _blocked_type(input_ids: Value, scores: Value, **_: Any) -> list[Type]:
    return [TensorType(scores.elem, scores.shape)]


@define(domain=MS)
def SparseToDenseMatMul(a, b, *, alpha: float = 1.0, transA: int = 0, transB: int = 0):
    """alpha * A' @ B' of a sparse A and a dense B"""
    bounded(a.shape, a.values.dtype)
    left = a.dense()
    y = matmul(left.T if transA else left, b.T if transB else b)
    return y if alpha == 1 else (y * alpha).astype(y.dtype)


@SparseToDenseMatMul.infer_with
def _sparse_product_type(a: Value, b: Value, *, transA: int, transB: int, **_: Any) -> list[Type]:
    left, right = (tuple(s[::-1]) if flip and s is not None else s for s,
                   flip in ((a.shape, transA), (b.shape, transB)))
    return [TensorType(b.elem, product_shape(left, right))]


@define(domain=MS, types={"x": ("float",), "m": ("int32",)})
def MaxpoolWithMask(x, m, *, auto_pad: str = "NOTSET", kernel_shape: list[int] | None = None,
                    pads: list[int] | None = None, storage_order: int = 0, strides: list[int] | None = None):
    """The largest element of each window of x up to the first whose mask is 0"""
    kept = np.where(np.broadcast_to(m, x.shape) == 0, x.dtype.type(np.finfo(np.float32).min), x)
    return MaxPool.body(kept, kernel_shape=kernel_shape or [], auto_pad=auto_pad, pads=pads, strides=strides)


@define(domain=MS, types={"data": ("uint8", "uint4", "int4", *_NARROW), "indices": ("int32", "int64")})
def GatherBlockQuantized(data, indices, scales, zero_points=None, *, bits: int = 4, block_size: int = 128,
                         gather_axis: int = 0, quantize_axis: int = 1):
    """The slices of a tensor quantized by blocks that `indices` name, as floats; bytes hold several narrow
    numbers"""
    from .quant import unpacked

    packed = data.dtype == np.uint8 and bits < 8
    wide = unpacked(data, bits) if packed else data
    zero = unpacked(zero_points, bits) if packed and zero_points is not None else zero_points
    gather, along = normalized_axis(gather_axis, wide.ndim), normalized_axis(quantize_axis, wide.ndim)
    if zero is not None and element_of(data.dtype).text in _NARROW:
        raise ValueError("GatherBlockQuantized takes no zero points of floats")
    if block_size < 16 or block_size & (block_size - 1) or gather == along:
        raise ValueError(f"block_size {block_size} and axes {gather} and {along} do not fit"
                         " GatherBlockQuantized")
    size = wide.shape[gather]
    if indices.size and not -size <= indices.min() <= indices.max() < size:
        raise InvalidArgument(f"indices element out of data bounds, idx={indices.max()} must be within the"
                              " inclusive range"
                              f" [{-size},{size - 1}]")
    blocks = -(-wide.shape[along] // block_size)
    if scales.ndim != wide.ndim or scales.shape[along] != blocks:
        raise ValueError(f"scales of shape {scales.shape} do not fit {blocks} blocks along axis {along} of"
                         f" {wide.shape}")
    bounded((*wide.shape[:gather], *indices.shape, *wide.shape[gather + 1:]), np.dtype(np.float32))
    place = np.arange(wide.shape[along]) // block_size

    def taken(x: np.ndarray) -> np.ndarray:
        return x.take(indices, gather).astype(np.float32)

    at = along if along < gather else along + indices.ndim - 1
    y = taken(wide)
    if zero is not None:
        y -= taken(zero[(slice(None),) * along + (slice(blocks),)]).take(place, at)
    elif data.dtype == np.uint8:
        y -= np.float32(1 << (bits - 1))
    y *= taken(scales).take(place, at)
    return y.astype(scales.dtype) if scales.dtype in HALF else y


@define(domain=MS, types={"input": ("float",)})
def DynamicTimeWarping(input):
    """The rows and columns [2, steps] of the cheapest path from the first to the last element of a matrix. A
    step comes from above left or from above where that is cheaper than both others, else from the left"""
    if input.ndim not in (2, 3) or (input.ndim == 3 and len(input) != 1) or not input.size:
        raise ValueError(f"DynamicTimeWarping takes a matrix, found shape {input.shape}")
    cost = input.reshape(input.shape[-2:])
    rows, columns = cost.shape
    total = np.full((rows + 1, columns + 1), np.inf, np.float32)
    total[0, 0] = 0
    came = np.empty((rows, columns, 2), np.int64)
    for i in range(rows):
        for j in range(columns):
            both, above, left = total[i, j], total[i, j + 1], total[i + 1, j]
            step = (1, 1) if both < min(above, left) else (1, 0) if above < min(both, left) else (0, 1)
            came[i, j] = step
            total[i + 1, j + 1] = cost[i, j] + total[i + 1 - step[0], j + 1 - step[1]]
    path, i, j = [], rows - 1, columns - 1
    while i >= 0 and j >= 0:
        path.append((i, j))
        i, j = i - came[i, j, 0], j - came[i, j, 1]
    return np.array(path[::-1], np.int32).T


@DynamicTimeWarping.infer_with
def _path_type(input: Value) -> list[Type]:
    return [TensorType(ElementType.INT32, (2, None))]
