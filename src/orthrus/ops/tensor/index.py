"""Operators that read or write at positions given by an index tensor: the gathers, the scatters and their
kin.

Data of any element type comes in with int32 or int64 indices, which may count from the back. Every index is
checked before it is used; one out of bounds raises InvalidArgument with the index and the range.
"""

from __future__ import annotations

import math
from typing import NoReturn

import numpy as np

from ...errors import InvalidArgument, Unfit
from ...ir import HALF
from ...limits import bounded
from ..define import normalized_axis, op
from ..functions import summing_type
from .movement import axis_of, chosen


def _out_of_bounds(indices: np.ndarray, size: int) -> NoReturn:
    bad = indices[(indices < -size) | (indices >= size)]
    raise InvalidArgument(f"indices element out of data bounds, idx={bad.flat[0]} must be within the "
                          f"inclusive range [{-size},{size - 1}]")


def _wrapped(indices: np.ndarray, size: int) -> np.ndarray:
    """Indices below `size` counted from the front, as int64. Raises InvalidArgument for one out of bounds."""
    indices = indices.astype(np.int64, copy=False)
    if not indices.size:
        return indices
    low, high = indices.min(), indices.max()
    if low < -size or high >= size:
        _out_of_bounds(indices, size)
    return np.where(indices < 0, indices + size, indices) if low < 0 else indices


@op
def Gather(data, indices, *, axis: int = 0):
    """The slices of `data` along `axis` at `indices`, whose dimensions take the axis' place"""
    axis = axis_of(axis, data.ndim)
    size = data.shape[axis]
    bounded((*data.shape[:axis], *indices.shape, *data.shape[axis + 1:]), data.dtype)
    try:
        return np.asarray(data.take(indices, axis), data.dtype)
    except IndexError:
        _out_of_bounds(indices, size)


def _same_rank(data: np.ndarray, indices: np.ndarray, axis: int) -> int:
    if not data.ndim or data.ndim != indices.ndim:
        raise Unfit("data and indices must have the same rank of at least 1, "
                    f"found {data.ndim} and {indices.ndim}")
    axis = normalized_axis(axis, data.ndim)
    for i, (d, n) in enumerate(zip(data.shape, indices.shape, strict=True)):
        if i != axis and n > d:
            raise InvalidArgument("'indices' shape should have values within bounds of 'data' shape. "
                                  f"Invalid value in indices shape is: {n}",
                                  found=list(indices.shape),
                                  expected=f"at most {list(data.shape)} off axis {axis}")
    return axis


def _flat_positions(shape: tuple[int, ...], indices: np.ndarray, axis: int) -> np.ndarray:
    """Where, in row-major order, element `indices` on `axis` lies with each index's own place on the other
    axes."""
    bounded((2, *indices.shape), np.int64, "positions")
    at = _wrapped(indices, shape[axis]) * math.prod(shape[axis + 1:])
    for i, n in enumerate(indices.shape):
        if i != axis:
            steps = np.arange(n) * math.prod(shape[i + 1:])
            at = at + steps.reshape([n if j == i else 1 for j in range(indices.ndim)])
    return at


@op
def GatherElements(data, indices, *, axis: int = 0):
    """For each index the element of `data` at that place on `axis` and at the index's own place on the
    others"""
    axis = _same_rank(data, indices, axis)
    return np.take(data, _flat_positions(data.shape, indices, axis))


def _tuple_positions(dims: tuple[int, ...], indices: np.ndarray) -> np.ndarray:
    """Where, in row-major order over `dims`, each tuple along the last axis of `indices` points."""
    at = np.zeros(indices.shape[:-1], np.int64)
    for i, d in enumerate(dims):
        at = at * d + _wrapped(indices[..., i], d)
    return at


@op
def GatherND(data, indices, *, batch_dims: int = 0):
    """The slices of `data` at the index tuples along the last axis of `indices`, batch by batch"""
    b = batch_dims
    if not data.ndim or not indices.ndim or not 0 <= b < min(data.ndim, indices.ndim):
        raise ValueError(f"batch_dims {b} must be below the ranks of data ({data.ndim}) and indices "
                         f"({indices.ndim})")
    k = indices.shape[-1]
    if not 1 <= k <= data.ndim - b:
        raise InvalidArgument("last dimension of indices must not be larger than rank of input tensor, nor 0",
                              found=k, expected=f"1 to {data.ndim - b}")
    if data.shape[:b] != indices.shape[:b]:
        raise ValueError(f"the first {b} dimensions of data {list(data.shape)} and indices "
                         f"{list(indices.shape)} differ")
    dims, rest = data.shape[b:b + k], data.shape[b + k:]
    shape = bounded((*indices.shape[:-1], *rest), data.dtype)
    batches = math.prod(data.shape[:b])
    at = _tuple_positions(dims, indices).reshape(batches, math.prod(indices.shape[b:-1]))
    at = at + (np.arange(batches) * math.prod(dims))[:, None]
    return np.take(data.reshape(batches * math.prod(dims), *rest), at, 0).reshape(shape)


WRITE_MODES = ("linear", "circular")
_REDUCTIONS = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def _scattered(data: np.ndarray, at: np.ndarray, updates: np.ndarray, reduction: str) -> np.ndarray:
    """A copy of `data` with `updates` written at, or folded into, the row-major positions `at`; the last
    write wins."""
    chosen(reduction, ("none", *_REDUCTIONS), "reduction")
    if updates.dtype != data.dtype:
        raise TypeError(f"updates of type {updates.dtype} do not fit data of type {data.dtype}")
    if reduction == "none":
        out = np.array(data, order="C")
        out.reshape(-1)[at] = updates
        return out
    wide = np.dtype(np.float32) if data.dtype in HALF else data.dtype
    wide = summing_type(wide, at.size) if reduction == "add" else wide
    out = np.array(data, wide, order="C")
    with np.errstate(all="ignore"):
        _REDUCTIONS[reduction].at(out.reshape(-1), at.ravel(), updates.astype(wide, copy=False).ravel())
    return out.astype(data.dtype, copy=False)


@op
def ScatterElements(data, indices, updates, *, axis: int = 0, reduction: str = "none"):
    """`data` with each update written at its index on `axis` and at its own place on the others"""
    axis = _same_rank(data, indices, axis)
    if updates.shape != indices.shape:
        raise InvalidArgument("Indices vs updates dimensions differs", found=list(updates.shape),
                              expected=list(indices.shape))
    return _scattered(data, _flat_positions(data.shape, indices, axis), updates, reduction)


@op
def Scatter(data, indices, updates, *, axis: int = 0):
    """ScatterElements under its first name"""
    return ScatterElements.body(data, indices, updates, axis=axis)


@op
def ScatterND(data, indices, updates, *, reduction: str = "none"):
    """`data` with each slice of `updates` written where the tuples along the last axis of `indices` point"""
    if not data.ndim or not indices.ndim:
        raise ValueError("data and indices must have rank 1 or more")
    k = indices.shape[-1]
    if k > data.ndim:
        raise InvalidArgument("last dimension of indices must not be larger than rank of input tensor",
                              found=k, expected=f"at most {data.ndim}")
    expected = (*indices.shape[:-1], *data.shape[k:])
    if updates.shape != expected:
        raise InvalidArgument("updates tensor should have shape equal to indices.shape[:-1] + data.shape[k:]",
                              found=list(updates.shape), expected=list(expected))
    width = math.prod(data.shape[k:])
    at = _tuple_positions(data.shape[:k], indices)[..., None] * width + np.arange(width)
    return _scattered(data, at.reshape(expected), updates, reduction)


@op
def ReverseSequence(x, sequence_lens, *, batch_axis: int = 1, time_axis: int = 0):
    """The first sequence_lens[i] elements on the time axis reversed, for each position i on the batch axis"""
    if x.ndim < 2:
        raise ValueError(f"expected a tensor of rank 2 or more, found rank {x.ndim}")
    if {batch_axis, time_axis} != {0, 1}:
        raise ValueError(f"batch_axis {batch_axis} and time_axis {time_axis} must be 0 and 1, or 1 and 0")
    steps, batch = x.shape[time_axis], x.shape[batch_axis]
    lens = np.asarray(sequence_lens)
    if lens.shape != (batch,):
        raise Unfit(f"sequence_lens shape must be {{{batch}}}, found {list(lens.shape)}")
    for bad in lens[(lens < 0) | (lens > steps)][:1]:
        raise ValueError(f"Invalid sequence length: {bad}. Value must be in range [0,{steps}]")
    t = np.arange(steps)[:, None]
    at = np.where(t < lens, lens - 1 - t, t)
    return x[at, np.arange(batch)] if time_axis == 0 else x[np.arange(batch)[:, None], at.T]



@op
def TensorScatter(past_cache, update, write_indices=None, *, mode: str = "linear", axis: int = -2):
    """The cache with `update` written along `axis`, from write_indices[i] on for each sample i of the
    batch"""
    chosen(mode, WRITE_MODES, "mode")
    axis = axis_of(axis, past_cache.ndim)
    size, dims = past_cache.shape[axis], list(past_cache.shape)
    steps = update.shape[axis] if update.ndim == past_cache.ndim else -1
    dims[axis] = steps
    if axis == 0 or list(update.shape) != dims or steps > size:
        raise ValueError(f"update of shape {list(update.shape)} does not fit a cache of shape "
                         f"{list(past_cache.shape)} on axis {axis}, which must not be 0")
    batch = past_cache.shape[0]
    start = np.zeros(batch, np.int64) if write_indices is None else np.asarray(write_indices)
    if start.shape != (batch,):
        raise ValueError(f"write_indices must have shape [{batch}], found {list(start.shape)}")
    if (start < 0).any() or (mode == "linear" and (start > size - steps).any()):
        raise InvalidArgument("write_indices out of bounds", found=start.tolist(),
                              expected=f"0 <= index, and index + {steps} <= {size} in linear mode")
    at = (start[:, None] % max(size, 1) + np.arange(steps)) % max(size, 1)
    out = past_cache.copy()
    np.moveaxis(out, axis, 1)[np.arange(batch)[:, None], at] = np.moveaxis(update, axis, 1)
    return out
