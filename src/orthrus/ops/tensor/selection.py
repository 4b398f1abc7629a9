"""Operators that pick elements by their values or ranks: one-hot, compress, nonzero, unique, top-k.

Arrays of any element type the schema allows come in; picked elements go out in their own type, positions as
int64.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...errors import InvalidArgument
from ...ir import HALF
from ...limits import HARMLESS, bounded, reserve
from ..define import normalized_axis, op
from .movement import axis_of, scalar, zero_of


def _one_hot(indices: np.ndarray, depth: Any, values: np.ndarray, axis: int, negative: bool) -> np.ndarray:
    size = scalar(depth, "Depth")
    if size < 0:
        raise InvalidArgument("Depth is negative.", found=size, expected=">= 0")
    if values.shape != (2,):
        raise InvalidArgument("values must be a tensor of rank 1 with two elements", found=list(values.shape))
    axis = normalized_axis(axis, indices.ndim, inclusive=True) if axis >= 0 else indices.ndim + 1 + axis
    if axis < 0:
        raise ValueError(f"axis is out of range for indices of rank {indices.ndim}")
    before, after = indices.shape[:axis], indices.shape[axis:]
    out = np.full(bounded((*before, size, *after), values.dtype), values[0], values.dtype)
    if indices.dtype.kind not in "iu":
        indices = np.where(np.isfinite(indices), np.trunc(indices), size)
    hot = (indices >= (-size if negative and indices.dtype.kind != "u" else 0)) & (indices < size)
    flat = hot.reshape(math.prod(before), math.prod(after))
    i, j = np.nonzero(flat)
    at = indices.reshape(flat.shape)[i, j].astype(np.int64)
    out.reshape(flat.shape[0], size, flat.shape[1])[i, np.where(at < 0, at + size, at), j] = values[1]
    return out


@op(since=11)
def OneHot(indices, depth, values, *, axis: int = -1):
    """values[1] at the places `indices` name along a new axis of size `depth`, values[0] elsewhere"""
    return _one_hot(indices, depth, values, axis, True)


@op
def OneHot_9(indices, depth, values, *, axis: int = -1):
    """OneHot in which a negative index names no place"""
    return _one_hot(indices, depth, values, axis, False)


@op
def Compress(x, condition, *, axis: int | None = None):
    """The slices along `axis` for which `condition`, flattened, is true; without `axis`, elements of the
    flattened input"""
    condition = condition.reshape(-1)
    if axis is None:
        x, axis = x.reshape(-1), 0
    axis = axis_of(axis, x.ndim)
    reserve(16 * condition.size + x.nbytes)
    return x.take(condition[:x.shape[axis]].nonzero()[0], axis)


@op
def NonZero(x):
    """The indices of the elements that are not zero: int64 [rank, n]"""
    there = x if x.dtype.kind in "biuf" else x != zero_of(x.dtype)
    if not x.ndim:
        return np.empty((0, int(there != 0)), np.int64)
    if 16 * x.ndim * x.size > HARMLESS:
        bounded((2 * x.ndim, np.count_nonzero(there)), np.int64)
    places = there.nonzero()
    out = np.empty((len(places), len(places[0])), np.int64)
    for row, found in zip(out, places, strict=True):
        row[:] = found
    return out


def sort_keys(x: np.ndarray) -> np.ndarray:
    """`x`, in a type that numpy sorts fast and in the same order."""
    return x.astype(np.float32) if x.dtype in HALF else x


def distinct(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Of the distinct elements of a vector, in rising order, where each first occurs, which of them each
    element is, and how often each occurs; all NaN are one."""
    if x.size > _FEW and x.dtype.kind in "biu":
        low, high = int(x.min()), int(x.max())
        if high - low < 4 * x.size:
            return _counted(x, low)
    elif not x.size:
        return np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int64)
    order = x.argsort()
    ranked = x[order]
    ends = (ranked[1:] != ranked[:-1]).nonzero()[0]
    if x.dtype.kind in "fc" and ranked[-1] != ranked[-1]:
        ends = ends[:ends.searchsorted(np.isnan(ranked).argmax())]
    starts = np.empty(len(ends) + 1, np.int64)
    starts[0] = 0
    np.add(ends, 1, starts[1:])
    counts = np.empty_like(starts)
    np.subtract(starts[1:], starts[:-1], counts[:-1])
    counts[-1] = x.size - starts[-1]
    inverse = np.empty(x.size, np.int64)
    inverse[order] = np.arange(len(starts)).repeat(counts)
    return np.minimum.reduceat(order, starts), inverse, counts


_FEW = 128
"""Elements up to which sorting them takes no longer than to count what lies between them."""


def _counted(x: np.ndarray, low: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`distinct` of whole numbers from `low` on that lie close together."""
    at = (x - x.dtype.type(low) if x.itemsize == 8 else x.astype(np.int64) - low).astype(np.int64, copy=False)
    counts = np.bincount(at)
    there = counts.nonzero()[0]
    first, place = np.empty((2, len(counts)), np.int64)
    first[at[::-1]] = np.arange(x.size - 1, -1, -1)
    place[there] = np.arange(len(there))
    return first[there], place[at], counts[there]


def as_met(first: np.ndarray, inverse: np.ndarray, counts: np.ndarray
           ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What `distinct` gives, the distinct elements in the order in which they come."""
    met = np.zeros(len(inverse), np.bool_)
    met[first] = True
    place = (met.cumsum() - 1)[first]
    ordered = np.empty_like(counts)
    ordered[place] = counts
    return met.nonzero()[0], place[inverse], ordered


@op(outputs=4)
def Unique(x, *, axis: int | None = None, sorted: int = 1):
    """The distinct elements, or slices along `axis`: themselves, where each first occurs, which of them each
    element of the input is, and how often each occurs"""
    if axis is None:
        x, axis = x.reshape(-1), 0
        _room_to_sort(x, 6)
        keys = sort_keys(x)
    else:
        axis = axis_of(axis, x.ndim)
        _room_to_sort(x, 9)
        rows = np.moveaxis(x, axis, 0).reshape(x.shape[axis], x.size // max(x.shape[axis], 1))
        ranks = np.unique(sort_keys(rows), return_inverse=True)[1].reshape(rows.shape)
        keys = ranks if rows.shape[1] else np.zeros((len(rows), 1), np.int64)
    if keys.ndim == 1:
        first, inverse, counts = distinct(keys)
    else:
        _, first, inverse, counts = np.unique(keys, True, True, True, axis=0)
        inverse = inverse.reshape(-1)
    if not sorted:
        first, inverse, counts = as_met(first, inverse, counts)
    return x.take(first, axis), *(v.astype(np.int64, copy=False) for v in (first, inverse, counts))


def _room_to_sort(x: np.ndarray, count: int) -> None:
    """The positions of the elements of `x` fit into a tensor, and `count` tensors of them into the run."""
    if 8 * count * x.size > HARMLESS:
        reserve(count * math.prod(bounded(x.shape, np.int64)) * 8, "to sort by")


def _ranked(keys: np.ndarray, largest: int) -> np.ndarray:
    """The order that sorts the last axis, equal elements by rising index; NaN counts as the largest."""
    if not largest:
        return np.argsort(keys, -1, "stable")
    return keys.shape[-1] - 1 - np.argsort(keys[..., ::-1], -1, "stable")[..., ::-1]


def _best(keys: np.ndarray, k: int, largest: int) -> np.ndarray:
    """The indices [rows, k] of the k best of each row of `keys` [rows, n], best first."""
    n = keys.shape[1]
    if n < 64 or k > n // 4 or not k or (keys.dtype.kind == "f" and np.isnan(keys).any()):
        return _ranked(keys, largest)[:, :k]
    nth = n - k if largest else k - 1
    edge = np.partition(keys, nth, -1)[:, nth:nth + 1]
    chosen = keys > edge if largest else keys < edge
    ties = keys == edge
    room = k - np.count_nonzero(chosen, -1, keepdims=True)
    chosen |= ties & (np.cumsum(ties, -1) <= room)
    at = np.nonzero(chosen)[1].reshape(-1, k)
    return np.take_along_axis(at, _ranked(np.take_along_axis(keys, at, -1), largest), -1)


def _top_k(x: np.ndarray, k: int, axis: int, largest: int) -> tuple[np.ndarray, np.ndarray]:
    axis = axis_of(axis, x.ndim)
    if not 0 <= k <= x.shape[axis]:
        raise ValueError(f"k argument [{k}] should not be greater than specified axis dim value "
                         f"[{x.shape[axis]}], nor negative")
    _room_to_sort(x, 3)
    moved = np.moveaxis(x, axis, -1)
    keys = sort_keys(moved).reshape(moved.size // max(moved.shape[-1], 1), moved.shape[-1])
    at = np.moveaxis(_best(keys, k, largest).reshape(*moved.shape[:-1], k), -1, axis)
    at = at.astype(np.int64, copy=False)
    return np.take_along_axis(x, at, axis), at


@op(since=10, outputs=2)
def TopK(x, k, *, axis: int = -1, largest: int = 1, sorted: int = 1):
    """The k largest or smallest elements along `axis`, best first, and their indices; of equal ones the first
    wins"""
    return _top_k(x, scalar(k, "K"), axis, largest)


@op(outputs=2)
def TopK_1(x, *, k: int, axis: int = -1):
    """TopK with k as an attribute"""
    return _top_k(x, k, axis, 1)
