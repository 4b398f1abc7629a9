"""Pooling: X [N, C, D1..Dn] in, one number per window out.

Windows are folded axis by axis, so that a window of k×k costs 2k passes; padding is never materialised.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ... import limits
from ...errors import InvalidArgument
from ..define import op
from ..functions import sum_of
from .geometry import Window, covered, fold, per_axis, reach, spans, useful, window


def _pooling(x: np.ndarray, kernel: Sequence[int], strides: Any, dilations: Any, pads: Any, auto_pad: str,
             ceil_mode: int) -> Window:
    if x.ndim < 3:
        raise ValueError(f"X has shape {list(x.shape)}, expected a rank of at least 3")
    if not kernel:
        raise ValueError("kernel_shape is missing, or has no elements")
    win = window(x.shape[2:], kernel, strides, dilations, pads, auto_pad, ceil_mode, short=True)
    for k, d, b, e in zip(win.kernel, win.dilations, win.begin, win.end, strict=True):
        if max(b, e) > (k - 1) * d:
            raise ValueError(f"pads {[*win.begin, *win.end]} should be smaller than the kernel "
                             f"{list(win.kernel)}")
    limits.reserve(4 * 8 * math.prod(limits.bounded((*x.shape[:2], *win.out), np.dtype(np.int64))))
    return win


def _folded(x: np.ndarray, win: Window, ufunc: Any, start: Any) -> np.ndarray:
    for i in reversed(range(len(win.size))):
        x = fold(x, i + 2, win.kernel[i], win.strides[i], win.dilations[i], win.begin[i], win.out[i], ufunc,
                 start)
    return x


def _lowest(dtype: np.dtype[Any]) -> Any:
    return np.iinfo(dtype).min if dtype.kind in "iu" else -np.inf


@op(widen=True)
def MaxPool(X, *, kernel_shape: list[int], auto_pad: str = "NOTSET", ceil_mode: int = 0,
            dilations: list[int] | None = None, pads: list[int] | None = None, storage_order: int = 0,
            strides: list[int] | None = None, n_outputs: int = 1):
    """The largest element of each window and, as second output, its index into the flattened X."""
    win = _pooling(X, kernel_shape, strides, dilations, pads, auto_pad, ceil_mode)
    if n_outputs < 2:
        return _folded(X, win, np.maximum, _lowest(X.dtype))
    places = np.arange(int(np.prod(win.size)), dtype=np.int64)
    places = places.reshape(win.size, order="F" if storage_order else "C")
    images = np.arange(X.shape[0] * X.shape[1], dtype=np.int64).reshape(*X.shape[:2], *(1,) * len(win.size))
    best, index = X, images * places.size + places
    for i in reversed(range(len(win.size))):
        best, index = _largest(best, index, i, win)
    return best, index


def _largest(x: np.ndarray, index: np.ndarray, i: int, win: Window) -> tuple[np.ndarray, np.ndarray]:
    """Fold spatial axis `i`, carrying the index of the first largest element; NaN counts as largest."""
    axis, out = i + 2, win.out[i]
    shape = (*x.shape[:axis], out, *x.shape[axis + 1:])
    best, chosen = np.full(shape, _lowest(x.dtype), x.dtype), np.full(shape, -1, np.int64)
    lead: Any = (slice(None),) * axis
    geometry = (win.size[i], win.kernel[i], win.strides[i], win.dilations[i], win.begin[i], out)
    if len(places := useful(*geometry)) > 4 * win.size[i]:
        for span, where in spans(*geometry):
            part = x[(*lead, span)]
            at = np.expand_dims(np.argmax(part, axis=axis), axis)
            best[(*lead, where)] = np.take_along_axis(part, at, axis)
            chosen[(*lead, where)] = np.take_along_axis(index[(*lead, span)], at, axis)
        return best, chosen
    for j in places:
        r = reach(win.size[i], out, win.strides[i], j * win.dilations[i] - win.begin[i])
        if r is not None:
            old, new = best[(*lead, r[0])], x[(*lead, r[1])]
            better = (new > old) | (chosen[(*lead, r[0])] < 0)
            if x.dtype.kind == "f":
                better |= np.isnan(new) & ~np.isnan(old)
            np.copyto(old, new, where=better)
            np.copyto(chosen[(*lead, r[0])], index[(*lead, r[1])], where=better)
    return best, chosen


@op(widen=True)
def AveragePool(X, *, kernel_shape: list[int], auto_pad: str = "NOTSET", ceil_mode: int = 0,
                count_include_pad: int = 0, dilations: list[int] | None = None, pads: list[int] | None = None,
                strides: list[int] | None = None):
    """The mean of each window; padding counts as zeros with `count_include_pad`, and otherwise not at all."""
    win = _pooling(X, kernel_shape, strides, dilations, pads, auto_pad, ceil_mode)
    count: Any = np.ones((), X.dtype)
    for i, size in enumerate(win.size):
        low, high = (-win.begin[i], size + win.end[i]) if count_include_pad else (0, size)
        along = covered(win.kernel[i], win.strides[i], win.dilations[i], win.begin[i], win.out[i], low, high)
        count = count[..., None] * np.maximum(along, 1).astype(X.dtype)
    return _folded(X, win, np.add, 0) / count


@op(widen=True)
def LpPool(X, *, kernel_shape: list[int] | None = None, auto_pad: str = "NOTSET", ceil_mode: int = 0,
           dilations: list[int] | None = None, p: float = 2, pads: list[int] | None = None,
           strides: list[int] | None = None):
    """The Lp norm of each window."""
    win = _pooling(X, kernel_shape or (), strides, dilations, pads, auto_pad, ceil_mode)
    return _norm(X, p, lambda powers: _folded(powers, win, np.add, 0))


def _norm(x: np.ndarray, p: float, total: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    if not p > 0:
        raise ValueError(f"p is {p}, expected a positive number")
    if p == 1:
        return total(np.abs(x))
    if p == 2:
        return np.sqrt(total(x * x))
    return np.power(total(np.power(np.abs(x), x.dtype.type(p))), x.dtype.type(1 / p))


def _spatial(x: np.ndarray) -> tuple[int, ...]:
    if x.ndim < 2:
        raise ValueError(f"X has shape {list(x.shape)}, expected a rank of at least 2")
    return tuple(range(2, x.ndim))


@op(widen=True)
def GlobalAveragePool(X):
    """The mean over all spatial axes: [N, C, D...] → [N, C, 1...]."""
    axes = _spatial(X)
    return sum_of(X, axes) / X.dtype.type(np.prod(X.shape[2:]))


@op(widen=True)
def GlobalMaxPool(X):
    """The largest element over all spatial axes: [N, C, D...] → [N, C, 1...]."""
    return np.max(X, axis=_spatial(X), keepdims=True, initial=-np.inf)


@op(widen=True)
def GlobalLpPool(X, *, p: float = 2):
    """The Lp norm over all spatial axes: [N, C, D...] → [N, C, 1...]."""
    axes = _spatial(X)
    return _norm(X, p, lambda powers: sum_of(powers, axes))


@op
def MaxUnpool(X, I, output_shape=None, *, kernel_shape: list[int],  # noqa: E741
              pads: list[int] | None = None, strides: list[int] | None = None):
    """Zeros, but for X's elements at the places `I` in the flattened tensor that MaxPool once read.

    That tensor's shape follows from the attributes; it stands at the origin of the larger `output_shape`, if
    given. Where `output_shape` is smaller than it along an axis, the indices count in `output_shape` itself.
    Raises InvalidArgument for an index outside.
    """
    if X.ndim < 3 or I.shape != X.shape:
        raise ValueError(f"X has shape {list(X.shape)} and I {list(I.shape)}, expected equal shapes of rank "
                         "3 or more")
    rank = X.ndim - 2
    kernel, steps = per_axis(kernel_shape, rank, "kernel_shape"), per_axis(strides, rank, "strides")
    given = per_axis(pads, 2 * rank, "pads", 0, 0)
    size = [(n - 1) * s + k - b - e
            for n, s, k, b, e in zip(X.shape[2:], steps, kernel, given[:rank], given[rank:], strict=True)]
    if output_shape is not None:
        target = tuple(output_shape.tolist())
        if len(target) != X.ndim or target[:2] != X.shape[:2]:
            raise ValueError(f"output_shape is {list(target)}, expected {[*X.shape[:2]]} and {rank} spatial "
                             "dimensions")
        limits.bounded(target, X.dtype)
        if any(t < s for t, s in zip(target[2:], size, strict=True)):
            size = list(target[2:])
    if any(s < 0 for s in size):
        raise ValueError(f"pads {list(given)} are larger than the output they are taken from")
    shape = limits.bounded((*X.shape[:2], *size), X.dtype)
    y = np.zeros(shape, X.dtype)
    if I.size and not (I.min() >= 0 and I.max() < y.size):
        bad = int(I.min() if I.min() < 0 else I.max())
        raise InvalidArgument(f"indices element out of data bounds, idx={bad} must be within the inclusive "
                              f"range [0,{y.size - 1}]")
    y.reshape(-1)[I.reshape(-1)] = X.reshape(-1)
    if output_shape is None or shape == target:
        return y
    whole = np.zeros(target, X.dtype)
    whole[tuple(slice(0, s) for s in shape)] = y
    return whole


@op(widen=True)
def LRN(X, *, size: int, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0):
    """Divides by a power of the local sum of squares over `size` neighbouring channels."""
    if size < 1 or X.ndim < 2:
        raise ValueError(f"size is {size} and X has shape {list(X.shape)}, expected at least 1 and rank 2")
    reach = min(size, max(2 * X.shape[1] - 1, 1))
    squares = fold(X * X, 1, reach, 1, 1, (reach - 1) // 2, X.shape[1], np.add, 0)
    return X / np.power(bias + alpha / size * squares, X.dtype.type(beta))
