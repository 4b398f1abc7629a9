"""Resize and Upsample: a tensor and a scale or size per axis in, the resampled tensor out.

Every mode is separable: each axis is resampled on its own by a few taps per output element, so nearest is one
gather and linear two. Coordinates are float32 where they follow from float32 scales or a box, and float64
where they follow from sizes. Type rule and definition ask `scaled` and `_by_size` for lengths.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ... import limits
from ...ir import HALF, TensorType, Type, Value
from ...records import dataclass
from ...shapes.windows import scaled
from ..contents import elements
from ..define import normalized_axis, op
from ..functions import summing_type

_F = np.float32
_DENSE = 1 << 24
"""Elements of a weight matrix up to which many taps become a matrix product."""


@dataclass(frozen=True, slots=True)
class _Axis:
    """One resized axis: `length` elements become `out`, or, before rounding, `target` for each `source`.

    Coordinates have the type of those two; `start`..`end` is the box to crop. `whole`: corners are aligned by
    the length after rounding.
    """

    index: int
    length: int
    out: int
    target: Any
    source: Any
    start: float = 0.0
    end: float = 1.0
    whole: bool = False

    @property
    def scale(self) -> float:
        return float(self.target / self.source)


def _coordinates(a: _Axis, mode: str) -> np.ndarray:
    """Where each output element lies on the input's axis."""
    kind = type(a.target)
    x, half, length = np.arange(a.out).astype(kind), kind(0.5), kind(a.length)
    width = length * a.target / a.source
    if mode == "half_pixel":
        return (x + half) * a.source / a.target - half
    if mode == "asymmetric":
        return x * a.source / a.target
    if mode == "align_corners":
        last = kind(a.out if a.whole else width) - 1
        return x * 0 if last == 0 or a.out == 1 else x * (length - 1) / last
    if mode == "pytorch_half_pixel":
        return (x + half) * a.source / a.target - half if a.out > 1 else x * 0
    if mode == "half_pixel_symmetric":
        return length / 2 * (1 - kind(a.out) / width) + (x + half) * a.source / a.target - half
    if mode == "tf_half_pixel_for_nn":  # no shift where an axis stays as it is, as in onnxruntime
        return x if a.source == a.target and a.out == a.length else (x + half) * a.source / a.target
    if mode == "tf_crop_and_resize":
        x, start, end, last = x.astype(_F), _F(a.start), _F(a.end), _F(a.length - 1)
        if a.out > 1:
            return start * last + x * (end - start) * last / _F(a.out - 1)
        return np.full(a.out, _F(0.5) * (start + end) * last)
    raise ValueError(f"coordinate_transformation_mode {mode!r} is unknown")


def _nearest(at: np.ndarray, mode: str, shrinks: bool) -> np.ndarray:
    if mode == "simple":
        return np.ceil(at) if shrinks else np.floor(at)
    if mode == "round_prefer_floor":
        return np.ceil(at - at.dtype.type(0.5))
    if mode == "round_prefer_ceil":
        return np.floor(at + at.dtype.type(0.5))
    if mode == "floor":
        return np.floor(at)
    if mode == "ceil":
        return np.ceil(at)
    raise ValueError(f"nearest_mode {mode!r} is unknown")


def _hat(x: np.ndarray) -> np.ndarray:
    return np.maximum(1 - np.abs(x), 0)


def _cubic(x: np.ndarray, a: float) -> np.ndarray:
    """Keys' cubic convolution kernel."""
    x = np.abs(x)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return np.where(x <= 1, near, np.where(x < 2, far, 0))


def _taps(a: _Axis, at: np.ndarray, mode: str, cubic_a: float, antialias: bool, exclude_outside: bool
          ) -> tuple[np.ndarray, np.ndarray]:
    """For each output element of an axis the input places [out, k] and their weights. What lies outside is
    the edge's, once."""
    stretch = min(a.scale, 1.0) if antialias else 1.0
    support = (1 if mode == "linear" else 2) / stretch
    at = at.astype(np.float64)
    half = int(np.ceil(support))
    limits.bounded((a.out, 2 * half), np.dtype(np.float64), "table of weights")
    places = np.floor(at)[:, None] + np.arange(1 - half, half + 1)
    distance = (places - at[:, None]) * stretch
    weights = _hat(distance) if mode == "linear" else _cubic(distance, cubic_a)
    if exclude_outside and mode == "cubic" or antialias and exclude_outside:
        weights = np.where((places >= 0) & (places < a.length), weights, 0)
    if exclude_outside or antialias:
        total = weights.sum(axis=1, keepdims=True)
        weights = weights / np.where(total == 0, 1, total)
    places = np.clip(places, 0, a.length - 1).astype(np.int64)
    for k in range(1, places.shape[1]):
        again = places[:, k] == places[:, k - 1]
        weights[again, k] += weights[again, k - 1]
        weights[again, k - 1] = 0
    return places, weights


def _resample(x: np.ndarray, axis: int, places: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Each output element of `axis` becomes the weighted sum of its places; one of weight 0 is not read,
    whatever lies there."""
    count, length = places.shape[1], x.shape[axis]
    if count > 8 and length * places.shape[0] <= _DENSE and np.isfinite(x).all():
        table = np.zeros((places.shape[0], length))
        np.add.at(table, (np.arange(places.shape[0])[:, None], places), weights)
        table = table.astype(x.dtype)
        if axis == x.ndim - 1:
            return np.matmul(x, table.T)
        return np.moveaxis(np.tensordot(table, x, axes=(1, axis)), 0, axis)
    weights = weights.astype(x.real.dtype)
    shape = (-1, *(1,) * (x.ndim - 1 - axis))
    kind = summing_type(x.dtype, count)
    y: Any = None
    for k in range(count):
        read = weights[:, k] != 0
        if not read.any():
            continue
        part = np.take(x, places[:, k], axis=axis)
        part *= weights[:, k].reshape(shape)
        if not read.all():
            part[(slice(None),) * axis + (~read,)] = -0.0  # adds nothing, not even a sign
        y = part.astype(kind, copy=False) if y is None else np.add(y, part, out=y)
    if y is None:
        y = np.zeros((*x.shape[:axis], len(places), *x.shape[axis + 1:]), x.dtype)
    return y.astype(x.dtype, copy=False)


def _resize(x: np.ndarray, axes: Sequence[_Axis], mode: str, coordinate: str, nearest_mode: str = "simple",
            cubic_a: float = -0.75, antialias: bool = False, exclude_outside: bool = False,
            extrapolation: float = 0.0) -> np.ndarray:
    shape = list(x.shape)
    for a in axes:
        shape[a.index] = a.out
    limits.bounded(shape, x.dtype)
    if mode not in ("nearest", "linear", "bilinear", "cubic"):
        raise ValueError(f"mode is {mode!r}, expected nearest, linear or cubic")
    mode = "linear" if mode == "bilinear" else mode
    if 0 in shape:
        return np.zeros(shape, x.dtype)
    if 0 in x.shape:
        raise ValueError(f"an empty tensor of shape {list(x.shape)} cannot be resized to {shape}")
    dtype, outside = x.dtype, []
    if mode != "nearest":
        if dtype.kind == "O":
            raise ValueError(f"mode {mode} cannot interpolate strings")
        x = x.astype(_F if dtype in HALF or dtype.kind in "iub" and dtype.itemsize < 4 else
                     np.float64 if dtype.kind in "iub" else dtype, copy=False)
    rounds = antialias and mode != "nearest" and dtype.kind in "iu"
    for a in sorted(axes, key=lambda a: -a.index if rounds else a.out / a.length):
        at = _coordinates(a, coordinate)
        at = np.clip(np.nan_to_num(at, nan=-1), -(1 << 40), 1 << 40)
        if coordinate == "tf_crop_and_resize":
            outside.append((a.index, (at < 0) | (at > a.length - 1)))
        if a.out == a.length and (at == np.arange(a.length)).all():
            continue
        if mode == "nearest":
            places = np.clip(_nearest(at, nearest_mode, a.scale < 1), 0, a.length - 1)
            x = np.take(x, places.astype(np.int64), axis=a.index)
        else:
            filtered = antialias and a.scale < 1
            x = _resample(x, a.index, *_taps(a, at, mode, cubic_a, filtered, exclude_outside))
            x = _rounded(x, dtype) if rounds else x
    x = _back(x, dtype)
    if any(mask.any() for _, mask in outside):
        x = x.copy()
        fill = _fill(extrapolation, dtype)
        for index, mask in outside:
            x[(slice(None),) * index + (mask,)] = fill
    return x


def _fill(value: float, dtype: np.dtype[Any]) -> Any:
    return str(value) if dtype.kind == "O" else _back(np.asarray(value), dtype)


def _back(x: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    """Interpolated numbers in the tensor's own type; integers are cut toward zero and saturate.

    A number within rounding error of an integer counts as that integer.
    """
    if x.dtype == dtype:
        return x
    if dtype.kind in "iu":
        whole = np.rint(x)
        x = np.where(np.abs(x - whole) <= 1e-6 * np.maximum(np.abs(x), 32), whole, x)
        range_ = np.iinfo(dtype)
        high = range_.max if dtype.itemsize < 8 else np.nextafter(np.float64(range_.max), 0)
        return np.clip(np.nan_to_num(x), range_.min, high).astype(dtype)
    return x.astype(dtype)


def _rounded(x: np.ndarray, dtype: np.dtype[Any]) -> np.ndarray:
    """Interpolated numbers rounded to integers that `dtype` holds, halves away from zero; a number within
    rounding error of a half counts as that half."""
    size = np.abs(x)
    x = np.copysign(np.floor(size + (0.5 + 1e-6 * np.maximum(size, 32))), x)
    range_ = np.iinfo(dtype)
    return np.clip(x, range_.min, range_.max)


def _checked_scales(scales: Any, rank: int) -> list[np.float32]:
    values = [_F(s) for s in np.ravel(scales)]
    if len(values) != rank:
        raise ValueError(f"scales has {len(values)} values, expected {rank}")
    if not all(0 < s < np.inf for s in values):
        raise ValueError(f"scales is {[float(s) for s in values]}, expected positive finite numbers")
    return values


def _resized(whole: bool) -> Callable[..., np.ndarray]:
    """Resize since 11. `whole`: aligned corners go by the whole number of output elements, as the text of all
    versions says; the standard's test data, which are those of version 19, go by the scaled length."""
    def Resize(X, roi=None, scales=None, sizes=None, *, antialias: int = 0, axes: list[int] | None = None,
               coordinate_transformation_mode: str = "half_pixel", cubic_coeff_a: float = -0.75,
               exclude_outside: int = 0, extrapolation_value: float = 0.0,
               keep_aspect_ratio_policy: str = "stretch", mode: str = "nearest",
               nearest_mode: str = "round_prefer_floor"):
        """Resamples `axes` of X (all where absent) by `scales` or to `sizes`, one of which is given. Integers
        are cut toward zero at the end; with `antialias` they are rounded after each axis, the last axis
        first, as in onnxruntime."""
        chosen = _chosen(axes, X.ndim)
        by_scale, by_size = scales is not None and scales.size > 0, sizes is not None and sizes.size > 0
        if X.ndim and by_scale == by_size:
            raise ValueError("exactly one of scales and sizes must be given")
        count, box = len(chosen), [0.0] * len(chosen) + [1.0] * len(chosen)
        if coordinate_transformation_mode == "tf_crop_and_resize":
            if roi is None or roi.size != 2 * count:
                raise ValueError(f"roi has {0 if roi is None else roi.size} values, expected {2 * count}")
            box = np.ravel(roi).astype(np.float64).tolist()
        lengths = [X.shape[c] for c in chosen]
        if by_size:
            factors, outs = _by_size(sizes.tolist(), lengths, keep_aspect_ratio_policy)
        else:
            given = _checked_scales(scales if by_scale else (), count)
            factors = [(f, _F(1)) for f in given]
            outs = [scaled(n, f) for n, f in zip(lengths, given, strict=True)]
        resized = [_Axis(c, n, o, *f, box[i], box[count + i], whole)
                   for i, (c, n, o, f) in enumerate(zip(chosen, lengths, outs, factors, strict=True))]
        return _resize(X, resized, mode, coordinate_transformation_mode, nearest_mode, cubic_coeff_a,
                       bool(antialias), bool(exclude_outside), extrapolation_value)
    return Resize


Resize = op(_resized(whole=False), since=19)
Resize_11 = op(_resized(whole=True), since=11)


def _chosen(axes: list[int] | None, rank: int) -> list[int]:
    chosen = [normalized_axis(a, rank) for a in axes] if axes else list(range(rank))
    if len(set(chosen)) != len(chosen):
        raise ValueError(f"axes {axes} name an axis twice")
    return chosen


def _by_size(sizes: list[int], lengths: list[int], policy: str
             ) -> tuple[list[tuple[Any, Any]], list[int]]:
    """The target and source of each axis and its output size, for the wanted `sizes`."""
    if len(sizes) != len(lengths) or any(s < 0 for s in sizes):
        raise ValueError(f"sizes is {sizes}, expected {len(lengths)} non-negative numbers")
    pairs = [(np.float64(s), np.float64(max(n, 1))) for s, n in zip(sizes, lengths, strict=True)]
    if policy == "stretch" or not sizes:
        return pairs, sizes
    if policy not in ("not_larger", "not_smaller"):
        raise ValueError(f"keep_aspect_ratio_policy is {policy!r}, expected stretch, not_larger or "
                         "not_smaller")
    one = (min if policy == "not_larger" else max)(pairs, key=lambda p: p[0] / p[1])
    return [one] * len(sizes), [int(np.floor(n * one[0] / one[1] + 0.5)) for n in lengths]


@op
def Resize_10(X, scales, *, mode: str = "nearest"):
    """The form by scales alone: output element x stands at x / scale."""
    return _by_scales(X, scales, mode)


def _by_scales(x: np.ndarray, scales: Any, mode: str) -> np.ndarray:
    factors = _checked_scales(scales, x.ndim)
    axes = [_Axis(i, n, scaled(n, f), f, _F(1))
            for i, (n, f) in enumerate(zip(x.shape, factors, strict=True))]
    return _resize(x, axes, mode, "asymmetric")


@op(since=9)
def Upsample(X, scales, *, mode: str = "nearest"):
    """Resamples X by one scale per axis."""
    return _by_scales(X, scales, mode)


@op
def Upsample_7(X, *, scales: list[float], mode: str = "nearest"):
    """The form with the scales as an attribute."""
    return _by_scales(X, scales, mode)


@op
def Upsample_1(X, *, height_scale: float, width_scale: float, mode: str = "nearest"):
    """The form for X [N, C, H, W] with two scales."""
    if X.ndim != 4:
        raise ValueError(f"X has shape {list(X.shape)}, expected [N, C, H, W]")
    return _by_scales(X, [1.0, 1.0, height_scale, width_scale], mode)


@Resize.infer_with
@Resize_11.infer_with
def resize_type(x: Value, roi: Value | None = None, scales: Value | None = None, sizes: Value | None = None,
                *, axes: list[int] | None, keep_aspect_ratio_policy: str, **_: Any) -> list[Type]:
    """The input's type with `axes` resized; the lengths are unknown where scales or sizes are."""
    if x.shape is None:
        return [TensorType(x.elem, None)]
    out, chosen, told = list(x.shape), _chosen(axes, len(x.shape)), elements(sizes)
    lengths, given = [out[c] for c in chosen], _known_scales(scales, len(chosen))
    made: Sequence[Any] = [None] * len(chosen)
    if given is not None:
        made = _scaled_lengths(lengths, given)
    elif told and all(isinstance(n, int) for n in (*told, *lengths)):
        made = _by_size(list(told), lengths, keep_aspect_ratio_policy)[1]
    elif told and keep_aspect_ratio_policy == "stretch":
        made = told
    for c, n in zip(chosen, made, strict=True):
        out[c] = n
    return [TensorType(x.elem, tuple(out))]


def _known_scales(scales: Value | None, rank: int) -> list[np.float32] | None:
    array = scales.const if scales is not None else None
    return _checked_scales(array, rank) if isinstance(array, np.ndarray) and array.size else None


def _scaled_lengths(lengths: Sequence[Any], scales: Sequence[np.float32]) -> list[Any]:
    return [scaled(n, f) if isinstance(n, int) else n if f == 1 else None
            for n, f in zip(lengths, scales, strict=True)]


@Resize_10.infer_with
@Upsample.infer_with
def scaled_type(x: Value, scales: Value, **_: Any) -> list[Type]:
    """The input's type times the scales, where they are known."""
    if x.shape is None:
        return [TensorType(x.elem, None)]
    given = _known_scales(scales, len(x.shape))
    made = [None] * len(x.shape) if given is None else _scaled_lengths(x.shape, given)
    return [TensorType(x.elem, tuple(made))]


@Upsample_7.infer_with
def upsample_type(x: Value, *, scales: list[float], **_: Any) -> list[Type]:
    """The input's type times the scales."""
    if x.shape is None:
        return [TensorType(x.elem, None)]
    return [TensorType(x.elem, tuple(_scaled_lengths(x.shape, _checked_scales(scales, len(x.shape)))))]


@Upsample_1.infer_with
def upsample_image_type(x: Value, *, height_scale: float, width_scale: float, **_: Any) -> list[Type]:
    """The input's type times the two scales."""
    return upsample_type(x, scales=[1.0, 1.0, height_scale, width_scale])
