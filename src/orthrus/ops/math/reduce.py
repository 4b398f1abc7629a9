"""Reductions: an array and axes in, one array without those axes, or with length one there, out.

Sums of floats are formed in float64 and rounded once; those of integers wrap in their width, and functions of
integers that are no integers are computed in float64 and truncated. Over no elements a sum or mean is 0, a
product 1, a maximum the type's lowest value, a minimum its highest.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..define import Samples, define, normalized_axis, random_array, reduction
from ..functions import divide, sum_of, to_integer

Axes = tuple[int, ...]


def _bound(dtype: np.dtype[Any], lowest: bool) -> Any:
    if dtype.kind == "b":
        return not lowest
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return info.min if lowest else info.max
    return -np.inf if lowest else np.inf


def _count(x: np.ndarray, axes: Axes) -> int:
    return int(np.prod([x.shape[a] for a in axes], dtype=np.int64))


def _real(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float64) if x.dtype.kind in "iu" else x


def _like(y: Any, x: np.ndarray) -> np.ndarray:
    """`y` in the type of `x`, truncated where that is an integer type."""
    y = np.asarray(y)
    return to_integer(y, x.dtype) if x.dtype.kind in "iu" and y.dtype.kind == "f" else y


@reduction(axes_input_since=13)
def ReduceSum(x, axes, keepdims):
    """The sum"""
    return sum_of(x, axes, keepdims)


@reduction()
def ReduceMean(x, axes, keepdims):
    """The mean; of integers, truncated toward zero"""
    count = max(_count(x, axes), 1)
    if x.dtype.kind not in "iu":
        return sum_of(x, axes, keepdims) / x.dtype.type(count)
    wide = np.dtype(np.uint64 if x.dtype.kind == "u" else np.int64)
    total = np.asarray(np.sum(x, axis=axes, keepdims=keepdims, dtype=wide))
    return divide(total, np.array(count, wide)).astype(x.dtype)


@reduction()
def ReduceMax(x, axes, keepdims):
    """The largest element; NaN where there is one"""
    start = {"initial": _bound(x.dtype, True)} if not x.size else {}
    return np.asarray(np.max(x, axis=axes, keepdims=keepdims, **start))


@reduction()
def ReduceMin(x, axes, keepdims):
    """The smallest element; NaN where there is one"""
    start = {"initial": _bound(x.dtype, False)} if not x.size else {}
    return np.asarray(np.min(x, axis=axes, keepdims=keepdims, **start))


@reduction()
def ReduceProd(x, axes, keepdims):
    """The product"""
    return np.asarray(np.prod(x, axis=axes, keepdims=keepdims, dtype=x.dtype))


@reduction()
def ReduceL1(x, axes, keepdims):
    """The sum of absolute values"""
    return sum_of(np.abs(x), axes, keepdims)


@reduction()
def ReduceL2(x, axes, keepdims):
    """The square root of the sum of squares"""
    real = _real(x)
    return _like(np.sqrt(sum_of(real * real, axes, keepdims)), x)


@reduction()
def ReduceLogSum(x, axes, keepdims):
    """The logarithm of the sum"""
    return _like(np.log(sum_of(_real(x), axes, keepdims)), x)


@reduction()
def ReduceLogSumExp(x, axes, keepdims):
    """The logarithm of the sum of exponentials, without overflow"""
    real = _real(x)
    top = np.max(real, axis=axes, keepdims=True, initial=-np.inf)
    top = np.where(np.isfinite(top), top, real.dtype.type(0))
    y = np.log(sum_of(np.exp(real - top), axes)) + top
    return _like(y if keepdims else y.reshape([d for i, d in enumerate(x.shape) if i not in axes]), x)


@reduction()
def ReduceSumSquare(x, axes, keepdims):
    """The sum of squares"""
    return sum_of(x * x, axes, keepdims)


def _arg(find: Any, x: np.ndarray, axis: int, keepdims: int, last: int) -> np.ndarray:
    line = normalized_axis(axis, x.ndim)
    if not x.ndim:
        return np.zeros((), np.int64)
    if not x.shape[line]:
        left = [1 if i == line else n for i, n in enumerate(x.shape) if keepdims or i != line]
        if 0 not in left:
            raise ValueError(f"no element to choose along axis {line} of shape {x.shape}")
        return np.zeros(left, np.int64)
    y = x.shape[line] - 1 - find(np.flip(x, line), axis=line) if last else find(x, axis=line)
    y = np.asarray(y, np.int64)
    return np.expand_dims(y, line) if keepdims else y


@define(widen=True)
def ArgMax(data, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0):
    """Where the largest element along `axis` stands, first or last of several; a NaN before all"""
    return _arg(np.argmax, data, axis, keepdims, select_last_index)


@define(widen=True)
def ArgMin(data, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0):
    """Where the smallest element along `axis` stands, first or last of several; a NaN before all"""
    return _arg(np.argmin, data, axis, keepdims, select_last_index)


@ArgMax.sample_with
@ArgMin.sample_with
def _arg_samples(rng: np.random.Generator, dtype: np.dtype[Any]) -> Samples:
    for shape, axis in (((3, 5), 1), ((2, 3, 4), 0), ((2, 3, 4), -2), ((5,), 0)):
        for bits in range(4):
            attrs = {"axis": axis, "keepdims": bits & 1, "select_last_index": bits >> 1}
            yield [random_array(rng, shape, dtype)], attrs
