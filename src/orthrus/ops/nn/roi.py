"""Pooling over regions of interest: a feature map [N, C, H, W] and boxes in, a small map per box out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ... import limits
from ..define import op

_MOST_SAMPLES = 1 << 52
"""Samples along one axis beyond which their places are no distinct numbers; such a box counts as empty."""


_FAR = 1 << 30
"""Pixels from a map beyond which a corner is where it may."""


def _check(x: np.ndarray, rois: np.ndarray, columns: int, pooled: Sequence[int]) -> None:
    if x.ndim != 4 or rois.ndim != 2 or rois.shape[1] != columns:
        raise ValueError(f"X has shape {list(x.shape)} and rois {list(rois.shape)}, expected [N, C, H, W] "
                         f"and [num_rois, {columns}]")
    if len(pooled) != 2 or min(pooled) < 1:
        raise ValueError(f"the pooled shape is {list(pooled)}, expected two positive numbers")


def _check_batch(batch: np.ndarray, count: int) -> None:
    if batch.size and not (batch.min() >= 0 and batch.max() < count):
        raise ValueError(f"a region names image {int(batch.max() if batch.max() >= count else batch.min())}, "
                         f"expected 0 to {count - 1}")


@op(widen=True)
def MaxRoiPool(X, rois, *, pooled_shape: list[int], spatial_scale: float = 1.0):
    """The maximum of each of pooled_shape bins per box [batch, x1, y1, x2, y2]; an empty bin gives 0."""
    _check(X, rois, 5, pooled_shape)
    (_, channels, height, width), (rows, columns) = X.shape, pooled_shape
    shape = limits.bounded((rois.shape[0], channels, rows, columns), X.dtype)
    if not np.isfinite(rois).all():
        raise ValueError("rois holds a number that is not finite")
    batch = rois[:, 0].astype(np.int64)
    _check_batch(batch, X.shape[0])
    # sizes of bins have the boxes' precision, and halves are rounded away from zero, as onnxruntime has it
    kind = rois.dtype.type
    with np.errstate(over="ignore"):
        scaled = np.clip(rois[:, 1:] * kind(spatial_scale), -_FAR, _FAR)
    whole = np.trunc(scaled)
    corners = (whole + np.copysign(abs(scaled - whole) >= 0.5, scaled)).astype(np.int64).tolist()
    y = np.zeros(shape, X.dtype)
    for r, (x1, y1, x2, y2) in enumerate(corners):
        tops, bottoms = _bins(y1, y2, rows, height, kind)
        lefts, rights = _bins(x1, x2, columns, width, kind)
        for i in np.flatnonzero(bottoms > tops):
            band = X[batch[r], :, tops[i]:bottoms[i]].max(axis=1)
            for j in np.flatnonzero(rights > lefts):
                y[r, :, i, j] = band[:, lefts[j]:rights[j]].max(axis=1)
    return y


def _bins(first: int, last: int, count: int, size: int, kind: Any) -> tuple[np.ndarray, np.ndarray]:
    """Where `count` equal bins over the pixels first..last begin and end, within [0, size]."""
    at = np.arange(count + 1).astype(kind) * (kind(max(last - first + 1, 1)) / kind(count))
    low, high = np.floor(at[:-1]).astype(np.int64) + first, np.ceil(at[1:]).astype(np.int64) + first
    return np.clip(low, 0, size), np.clip(high, 0, size)


@op(widen=True, since=16)
def RoiAlign(X, rois, batch_indices, *, coordinate_transformation_mode: str = "half_pixel", mode: str = "avg",
             output_height: int = 1, output_width: int = 1, sampling_ratio: int = 0,
             spatial_scale: float = 1.0):
    """Mean or maximum of bilinear samples in output_height × output_width bins of the boxes [x1, y1, x2, y2].

    In mode max it is the largest of the samples' four weighted corners, as the operator's test data have it.
    """
    if coordinate_transformation_mode not in ("half_pixel", "output_half_pixel"):
        raise ValueError(f"coordinate_transformation_mode is {coordinate_transformation_mode!r}, expected "
                         "half_pixel or output_half_pixel")
    if mode not in ("avg", "max"):
        raise ValueError(f"mode is {mode!r}, expected avg or max")
    _check(X, rois, 4, (output_height, output_width))
    if sampling_ratio < 0:
        raise ValueError(f"sampling_ratio is {sampling_ratio}, expected at least 0")
    if batch_indices.shape != rois.shape[:1]:
        raise ValueError(f"batch_indices has shape {list(batch_indices.shape)}, expected {[rois.shape[0]]}")
    _check_batch(batch_indices, X.shape[0])
    half = coordinate_transformation_mode == "half_pixel"
    shape = limits.bounded((rois.shape[0], X.shape[1], output_height, output_width), X.dtype)
    y = np.zeros(shape, X.dtype)
    if not X.size:
        return y
    kind = rois.dtype.type
    boxes = rois * kind(spatial_scale) - kind(0.5 if half else 0.0)
    # a rounding above a whole number would take one sample more, so sizes have the boxes' precision
    sizes = boxes[:, 2:] - boxes[:, :2]
    for r, (x1, y1) in enumerate(boxes[:, :2].astype(np.float64)):
        if not (np.isfinite(boxes[r]).all() and np.isfinite(sizes[r]).all()):
            continue
        wide, tall = (size if half else max(size, kind(1)) for size in sizes[r])
        rows = _samples(y1, tall, output_height, sampling_ratio, X.shape[2])
        columns = _samples(x1, wide, output_width, sampling_ratio, X.shape[3])
        image = X[batch_indices[r]]
        if mode == "avg":
            down = _means(image, rows, output_height)
            y[r] = _means(down.swapaxes(1, 2), columns, output_width).swapaxes(1, 2)
        else:
            y[r] = _largest_corner(image, rows, columns, output_height, output_width)
    return y


@op(widen=True)
def RoiAlign_10(X, rois, batch_indices, *, mode: str = "avg", output_height: int = 1, output_width: int = 1,
                sampling_ratio: int = 0, spatial_scale: float = 1.0):
    """The form without a coordinate mode: boxes are not shifted by half a pixel."""
    return RoiAlign.body(X, rois, batch_indices, coordinate_transformation_mode="output_half_pixel",
                         mode=mode, output_height=output_height, output_width=output_width,
                         sampling_ratio=sampling_ratio, spatial_scale=spatial_scale)


def _samples(start: float, length: float, bins: int, ratio: int, size: int
             ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, int]:
    """Samples of one axis that lie on the map: bin, lower and upper pixel, fraction; and samples per bin."""
    per_bin = ratio if ratio > 0 else int(max(np.ceil(length / bins), 0))
    length = float(length)
    if per_bin == 0 or bins * per_bin > _MOST_SAMPLES:
        empty = np.zeros(0, np.int64)
        return empty, empty, empty, np.zeros(0), 1
    step = length / (bins * per_bin)
    first, last = 0, bins * per_bin
    if step > 0:
        first = min(max(first, int(np.ceil((-1 - start) / step - 0.5)) - 1), last)
        last = min(last, int(np.floor((size - start) / step - 0.5)) + 2)
    limits.bounded((max(last - first, 0), 4), np.dtype(np.float64), "sampling grid")
    k = np.arange(first, max(first, last))
    at = start + (k + 0.5) * step
    inside = (at >= -1) & (at <= size)
    k, at = k[inside], np.maximum(at[inside], 0)
    low = np.minimum(at.astype(np.int64), size - 1)
    high = np.minimum(low + 1, size - 1)
    return k // per_bin, low, high, np.where(low == size - 1, 0.0, at - low), per_bin


def _means(image: np.ndarray, samples: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, int],
           count: int) -> np.ndarray:
    """The mean of each bin's samples along axis 1, of the pixels that these lie between and no others."""
    bins, low, high, fraction, per_bin = samples
    y = np.zeros((image.shape[0], count, image.shape[2]), image.dtype)
    for i in range(count):
        mine = bins == i
        pixels = np.concatenate([low[mine], high[mine]])
        weights = np.concatenate([1 - fraction[mine], fraction[mine]]) / per_bin
        limits.bounded((image.shape[0], pixels.size, image.shape[2]), image.dtype, "sampling grid")
        y[:, i] = np.tensordot(image[:, pixels], weights.astype(image.dtype), (1, 0))
    return y


def _largest_corner(image: np.ndarray, rows: tuple, columns: tuple, height: int, width: int) -> np.ndarray:
    bins_y, low_y, high_y, part_y, per_y = rows
    bins_x, low_x, high_x, part_x, per_x = columns
    y = np.full((image.shape[0], height, width), -np.inf, image.dtype)
    for i, j in np.ndindex(height, width):
        a, b = np.flatnonzero(bins_y == i), np.flatnonzero(bins_x == j)
        for at_y, w_y in ((low_y[a], 1 - part_y[a]), (high_y[a], part_y[a])):
            for at_x, w_x in ((low_x[b], 1 - part_x[b]), (high_x[b], part_x[b])):
                limits.bounded((image.shape[0], a.size, b.size), image.dtype, "sampling grid")
                values = image[:, at_y[:, None], at_x] * (w_y[:, None] * w_x).astype(image.dtype)
                np.maximum(y[:, i, j], values.max(axis=(1, 2), initial=-np.inf), out=y[:, i, j])
        if a.size < per_y or b.size < per_x:
            np.maximum(y[:, i, j], 0, out=y[:, i, j])
    return y
