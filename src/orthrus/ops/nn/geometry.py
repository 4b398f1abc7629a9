"""Sliding windows: attributes of convolutions and pools in, checked integers and index ranges out.

A window at output position `o` touches input positions `o * stride + j * dilation - begin` for the taps `j`
of the kernel. Nothing here pads an array: the ranges name only elements that exist.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ...errors import Unfit
from ...records import dataclass
from ..functions import summing_type

_LARGEST = 1 << 48


@dataclass(frozen=True, slots=True)
class Window:
    """A sliding window over `size`; every field has one int per spatial axis. `begin`, `end`: padding."""

    size: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    begin: tuple[int, ...]
    end: tuple[int, ...]
    out: tuple[int, ...]


def per_axis(given: Sequence[int] | None, count: int, name: str, default: int = 1,
             least: int = 1) -> tuple[int, ...]:
    """`given` as `count` ints, each at least `least`; None or empty gives the default. Raises ValueError."""
    if given is None or not len(given):
        return (default,) * count
    values = tuple(int(v) for v in given)
    if len(values) != count:
        raise ValueError(f"{name} has {len(values)} values {list(values)}, expected {count}")
    if any(v < least for v in values):
        raise ValueError(f"{name} is {list(values)}, expected values of at least {least}")
    if any(v > _LARGEST for v in values):
        raise ValueError(f"{name} is {list(values)}, expected values of at most {_LARGEST}")
    return values


def same_total(size: int, extent: int, stride: int) -> int:
    """The padding that makes a window of `extent` give ceil(size / stride) positions."""
    return max((-(-size // stride) - 1) * stride + extent - size, 0)


def window(size: Sequence[int], kernel: Sequence[int], strides: Sequence[int] | None,
           dilations: Sequence[int] | None, pads: Sequence[int] | None, auto_pad: str = "NOTSET",
           ceil_mode: int = 0, short: bool = False) -> Window:
    """The window these attributes mean over an input of spatial shape `size`.

    `pads` counts only if `auto_pad` is NOTSET. With `ceil_mode` a last window may run over the end, unless
    it would start in the padding behind the input. `short`: an axis may be shorter than the window, which
    then stands there once where less than a stride is missing, and nowhere where less than two are; over
    nothing stands none. Raises ValueError where a value is out of range, Unfit where a window does not fit.
    """
    n = len(size)
    kernel = per_axis(kernel, n, "kernel_shape")
    strides = per_axis(strides, n, "strides")
    dilations = per_axis(dilations, n, "dilations")
    extents = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    if auto_pad in ("NOTSET", ""):
        pads = per_axis(pads, 2 * n, "pads", 0, 0)
        begin, end = pads[:n], pads[n:]
    elif auto_pad == "VALID":
        begin = end = (0,) * n
    elif auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        total = [same_total(s, e, t) for s, e, t in zip(size, extents, strides, strict=True)]
        less, more = tuple(t // 2 for t in total), tuple(t - t // 2 for t in total)
        begin, end = (less, more) if auto_pad == "SAME_UPPER" else (more, less)
        ceil_mode = 0
    else:
        raise ValueError(f"auto_pad is {auto_pad!r}, expected NOTSET, SAME_UPPER, SAME_LOWER or VALID")
    out = []
    for i in range(n):
        room = size[i] + begin[i] + end[i] - extents[i]
        count = room // strides[i] + 1
        if room < 0 and not size[i]:
            count = 0
        elif short and room < 0:
            count = 1 - -room // strides[i]
        elif ceil_mode and room % strides[i] and count * strides[i] < size[i] + begin[i]:
            count += 1
        if count < (0 if short or not size[i] else 1):
            raise (ValueError if short else Unfit)(
                f"the kernel covers {extents[i]} elements of spatial axis {i}, which has {size[i]} and "
                f"{begin[i] + end[i]} of padding")
        out.append(count)
    return Window(tuple(size), kernel, strides, dilations, tuple(begin), tuple(end), tuple(out))


def reach(size: int, count: int, stride: int, offset: int) -> tuple[slice, slice] | None:
    """The positions `o` in [0, count) with `o * stride + offset` in [0, size), and those places, if any."""
    low = max(0, -(offset // stride))
    high = min(count, (size - 1 - offset) // stride + 1)
    if low >= high:
        return None
    return slice(low, high), slice(low * stride + offset, (high - 1) * stride + offset + 1, stride)


def taps(size: Sequence[int], kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int],
         begin: Sequence[int], out: Sequence[int]
         ) -> Iterator[tuple[tuple[int, ...], tuple[slice, ...], tuple[slice, ...]]]:
    """Per tap of the kernel that reads anything: its index, the output ranges served, the input ranges."""
    axes = []
    for n, k, s, d, b, o in zip(size, kernel, strides, dilations, begin, out, strict=True):
        axes.append([(j, *r) for j in useful(n, k, s, d, b, o)
                     if (r := reach(n, o, s, j * d - b)) is not None])
    for parts in itertools.product(*axes):
        yield tuple(p[0] for p in parts), tuple(p[1] for p in parts), tuple(p[2] for p in parts)


def useful(size: int, kernel: int, stride: int, dilation: int, begin: int, out: int) -> range:
    """The taps that can fall on an element at all."""
    first = max(0, -(((out - 1) * stride - begin) // dilation))
    return range(min(first, kernel), max(0, min(kernel, (size - 1 + begin) // dilation + 1)))


def blocks(shape: Sequence[int], limit: int) -> Iterator[tuple[slice, ...]]:
    """Boxes of at most `limit` elements (at least one) that tile `shape`, cut along the first axes first."""
    step = list(shape)
    for i in range(len(step)):
        rest = int(np.prod(step[i + 1:], dtype=object)) if i + 1 < len(step) else 1
        if step[i] * rest <= limit:
            break
        step[i] = max(1, limit // max(rest, 1))
    ranges = [[slice(a, min(a + s, n)) for a in range(0, n, max(s, 1))]
              for n, s in zip(shape, step, strict=True)]
    return itertools.product(*ranges)


def spans(size: int, kernel: int, stride: int, dilation: int, begin: int, out: int
          ) -> Iterator[tuple[slice, np.ndarray]]:
    """The distinct non-empty ranges that the windows of one axis read, and which windows read each.

    For kernels far larger than the input, where taps would be many and almost all empty.
    """
    base = np.arange(out, dtype=np.int64) * stride - begin
    low, high = np.maximum(0, -(base // dilation)), np.minimum(kernel, (size - 1 - base) // dilation + 1)
    full = np.flatnonzero(low < high)
    ends = np.stack([base + low * dilation, base + (high - 1) * dilation + 1], axis=1)[full]
    pairs, owner = np.unique(ends, axis=0, return_inverse=True)
    order = np.argsort(owner.reshape(-1), kind="stable")
    if not len(pairs):
        return
    groups = np.split(full[order], np.cumsum(np.bincount(owner.reshape(-1)))[:-1])
    for (first, last), where in zip(pairs.tolist(), groups, strict=True):
        yield slice(first, last, dilation), where


def fold(x: np.ndarray, axis: int, kernel: int, stride: int, dilation: int, begin: int, out: int, ufunc: Any,
         start: Any) -> np.ndarray:
    """Reduce windows along one axis: its length becomes `out`; a window without elements gives `start`."""
    n = x.shape[axis]
    kind = summing_type(x.dtype, min(kernel, n)) if ufunc is np.add else x.dtype
    if out == 1 and dilation == 1 and begin >= 0 and kernel - begin >= n > 0:
        return ufunc.reduce(x, axis, kind, keepdims=True).astype(x.dtype, copy=False)
    acc = np.full((*x.shape[:axis], out, *x.shape[axis + 1:]), start, kind)
    lead: Any = (slice(None),) * axis
    places = useful(n, kernel, stride, dilation, begin, out)
    if len(places) > 4 * n:
        for span, where in spans(n, kernel, stride, dilation, begin, out):
            acc[(*lead, where)] = ufunc.reduce(x[(*lead, span)], axis, kind, keepdims=True)
        return acc.astype(x.dtype, copy=False)
    for j in places:
        if (r := reach(n, out, stride, j * dilation - begin)) is not None:
            part = acc[(*lead, r[0])]
            ufunc(part, x[(*lead, r[1])], out=part)
    return acc.astype(x.dtype, copy=False)


def covered(kernel: int, stride: int, dilation: int, begin: int, out: int, low: int, high: int) -> np.ndarray:
    """Per window of one axis, how many of its taps lie in [low, high)."""
    base = np.arange(out, dtype=np.int64) * stride - begin
    above, below = -((base - high) // dilation), -((base - low) // dilation)
    return np.clip(above, 0, kernel) - np.clip(below, 0, kernel)
