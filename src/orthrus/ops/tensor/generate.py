"""Operators that make tensors from shapes, attributes or chance: small inputs in, one tensor out.

No tensor is made before `bounded` has seen its shape.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from ...ir import HALF, ElementType, SparseArray, TensorType, Type, element_of
from ...limits import HARMLESS, bounded, reserve
from ..define import define
from ..functions import scalar, working_type
from .cast import converted

_PIECE = 1 << 13
"""Numbers made at a time: what is done to them after one another is done where they still lie near."""
_RANDOM = (ElementType.FLOAT, ElementType.DOUBLE, ElementType.FLOAT16, ElementType.BFLOAT16)


def _random_type(dtype: Any) -> np.dtype[Any]:
    element = ElementType(dtype)
    if element not in _RANDOM:
        raise ValueError(f"random numbers are floats, found dtype {element.text}")
    return element.numpy


def _drawn(shape: Any, dtype: np.dtype[Any]) -> tuple[int, ...]:
    """`shape`, once draws of that many numbers and what they are made of are within limits."""
    dims = tuple(shape)
    if min(dims, default=0) < 0 or 16 * math.prod(dims) > HARMLESS:
        dims = bounded(shape, dtype)
        reserve(math.prod(dims) * (8 + 2 * working_type(dtype).itemsize))
    return dims


def _scaled(drawn: Any, scale: float, low: float, dtype: np.dtype[Any]) -> np.ndarray:
    """Numbers just drawn, times `scale`, from `low` on."""
    y = np.asarray(drawn)
    if scale != 1:
        y *= scale
    y += low
    return y.astype(dtype, copy=False)


def _normal(shape: Any, dtype: np.dtype[Any], mean: float, scale: float, rng: np.random.Generator
            ) -> np.ndarray:
    return _scaled(rng.standard_normal(_drawn(shape, dtype), working_type(dtype)), scale, mean, dtype)


def _uniform(shape: Any, dtype: np.dtype[Any], low: float, high: float, rng: np.random.Generator
             ) -> np.ndarray:
    return _scaled(rng.random(_drawn(shape, dtype), working_type(dtype)), high - low, low, dtype)


@define
def RandomNormal(*, shape: list[int], dtype: int = 1, mean: float = 0.0, scale: float = 1.0, rng):
    """Draws from the normal distribution"""
    return _normal(shape, _random_type(dtype), mean, scale, rng)


@define
def RandomUniform(*, shape: list[int], dtype: int = 1, low: float = 0.0, high: float = 1.0, rng):
    """Draws from the uniform distribution on [low, high)"""
    return _uniform(shape, _random_type(dtype), low, high, rng)


def _type_like(x: np.ndarray, dtype: int | None) -> np.dtype[Any]:
    return x.dtype if dtype is None else ElementType(dtype).numpy


@define
def RandomNormalLike(x, *, dtype: int | None = None, mean: float = 0.0, scale: float = 1.0, rng):
    """Draws from the normal distribution, as many as x has elements"""
    return _normal(x.shape, _random_like(x, dtype), mean, scale, rng)


@define
def RandomUniformLike(x, *, dtype: int | None = None, low: float = 0.0, high: float = 1.0, rng):
    """Draws from the uniform distribution on [low, high), as many as x has elements"""
    return _uniform(x.shape, _random_like(x, dtype), low, high, rng)


def _random_like(x: np.ndarray, dtype: int | None) -> np.dtype[Any]:
    found = _type_like(x, dtype)
    if found not in _random_types():
        raise ValueError(f"random numbers are floats, found {found}; give `dtype`")
    return found


@functools.cache
def _random_types() -> frozenset[np.dtype[Any]]:
    return frozenset(e.numpy for e in _RANDOM)


@define
def Bernoulli(x, *, dtype: int | None = None, rng):
    """1 with probability x, else 0"""
    wide = x if x.dtype == np.float64 else x.astype(np.float32)
    drawn = np.asarray(rng.random(x.shape, wide.dtype)) < wide
    return drawn.astype(_type_like(x, dtype))


@define
def Multinomial(x, *, dtype: int = 6, sample_size: int = 1, rng):
    """Class numbers drawn with probabilities proportional to exp(x), `sample_size` for each row"""
    element = ElementType(dtype)
    if element not in (ElementType.INT32, ElementType.INT64):
        raise ValueError(f"Multinomial gives int32 or int64, found dtype {element.text}")
    if x.ndim != 2 or not x.shape[1] or sample_size < 1:
        raise ValueError(f"Multinomial takes [batch, classes] and a positive sample_size, found shape"
                         f" {x.shape} and {sample_size}")
    shape = bounded((len(x), sample_size), np.dtype(np.float64))
    reserve(2 * 8 * math.prod(shape))
    out = np.empty(shape, element.numpy)
    logits = x.astype(np.float64)
    logits -= logits.max(axis=1, keepdims=True)
    scores = np.exp(logits, logits).cumsum(1)
    draws = rng.random(shape)
    draws *= scores[:, -1:]
    for row, ends, drawn in zip(out, scores, draws, strict=True):
        row[:] = ends.searchsorted(drawn, "right")
    return np.minimum(out, x.shape[1] - 1, out=out)


def _range(start: Any, limit: Any, delta: Any, dtype: np.dtype[Any], work: np.dtype[Any]) -> np.ndarray:
    first, last, step = [v.item() if work == dtype else float(v)
                         for v in [scalar(start), scalar(limit), scalar(delta)]]
    if step == 0:
        raise ValueError("delta in Range operator can not be zero!")
    if isinstance(step, int):
        count = int(max(-((first - last) // step), 0))
    else:
        span = (last - first) / step
        if not math.isfinite(span):
            raise ValueError(f"Range is not finite from {first} to {last} by {step}")
        count = max(math.ceil(span), 0)
    if 8 * count > HARMLESS:
        bounded((count,), np.dtype(np.int64))
    if work.kind in "iu":
        return _doubled(int(first), int(step), count, dtype)
    y = np.arange(min(count, _PIECE), dtype=work)
    if count <= _PIECE:
        return _advanced(y, first, step).astype(dtype, copy=False)
    steps, y = y, np.empty(count, work)
    for at in range(0, count, _PIECE):
        piece = y[at:at + _PIECE]
        _advanced(np.add(steps[:len(piece)], work.type(at), piece), first, step)
    return y.astype(dtype, copy=False)


def _doubled(first: int, step: int, count: int, dtype: np.dtype[Any]) -> np.ndarray:
    """`count` whole numbers, each modulo what its type holds: a piece, and then what there is once more, as
    far ahead as it is long."""
    done = min(count, _PIECE)
    piece = _advanced(np.arange(done), first, step).astype(dtype, copy=False)
    if done == count:
        return piece
    y = np.empty(count, dtype)
    y[:done] = piece
    while done < count:
        more = min(done, count - done)
        ahead = np.array(step * done % (1 << 64), np.uint64).astype(dtype)
        np.add(y[:more], ahead, y[done:done + more])
        done += more
    return y


def _advanced(numbers: np.ndarray, first: Any, step: Any) -> np.ndarray:
    """first + step * n for each of `numbers`, in their place."""
    if step != 1:
        numbers *= numbers.dtype.type(step)
    if first or step < 0:
        numbers += numbers.dtype.type(first)
    return numbers


@define
def Range(start, limit, delta, *, stash_type: int = 1):
    """start, start + delta, start + 2 * delta, … below limit, or above it for a negative delta"""
    dtype = start.dtype
    return _range(start, limit, delta, dtype, np.dtype(np.float32) if dtype in HALF else dtype)


@define
def EyeLike(x, *, dtype: int | None = None, k: int = 0):
    """1 on the k-th diagonal, 0 elsewhere, in the shape of x"""
    if x.ndim != 2:
        raise ValueError(f"EyeLike takes a matrix, found shape {x.shape}")
    rows, columns = x.shape
    element = _type_like(x, dtype)
    y = np.zeros(bounded(x.shape, element), element)
    k = max(-rows, min(columns, k))
    i = np.arange(max(-k, 0), min(rows, columns - k))
    y[i, i + k] = 1
    return y


@define(prepared=("fill", "zero"))
def ConstantOfShape(shape, *, fill, zero):
    """A tensor of the given shape, filled with the one element of `value`, by default float32 0"""
    if shape.ndim != 1:
        raise ValueError(f"ConstantOfShape takes a shape as a vector, found shape {shape.shape}")
    dims = tuple(shape.tolist())
    if min(dims, default=0) < 0:
        raise ValueError(f"the shape {list(dims)} has a negative dimension")
    if fill.itemsize * math.prod(dims) > HARMLESS:
        bounded(dims, fill.dtype)
    return np.zeros(dims, fill.dtype) if zero else np.full(dims, fill, fill.dtype)


@ConstantOfShape.prepare_with
def _filling(*, value: Any = None) -> dict[str, Any]:
    fill = np.zeros((), np.float32) if value is None else scalar(np.asarray(value))
    return {"fill": fill, "zero": fill.dtype.kind in "iufb" and not any(fill.tobytes())}


@define
def Constant(*, value: Any = None, sparse_value: Any = None, value_float: float | None = None,
             value_floats: list[float] | None = None, value_int: int | None = None,
             value_ints: list[int] | None = None, value_string: str | None = None,
             value_strings: list[str] | None = None):
    """The tensor that the one given attribute says"""
    given: dict[Any, Any] = {np.float32: (value_float, value_floats), np.int64: (value_int, value_ints),
                             object: (value_string, value_strings)}
    plain = [np.array(v, dtype) for dtype, pair in given.items() for v in pair if v is not None]
    found = [*plain, *(v for v in (value, sparse_value) if v is not None)]
    if len(found) != 1:
        raise ValueError(f"Constant takes one value attribute, found {len(found)}")
    if isinstance(found[0], SparseArray):
        bounded(found[0].shape, found[0].values.dtype)
        return found[0].dense()
    return found[0]


@Constant.infer_with
def _constant_type(*, value: Any = None, sparse_value: Any = None, value_float: float | None = None,
                   value_floats: list[float] | None = None, value_int: int | None = None,
                   value_ints: list[int] | None = None, value_string: str | None = None,
                   value_strings: list[str] | None = None) -> list[Type]:
    dense = value if value is not None else sparse_value
    if dense is not None:
        array = dense.values if isinstance(dense, SparseArray) else dense
        return [TensorType(element_of(array.dtype), dense.shape)]
    for element, one, many in ((ElementType.FLOAT, value_float, value_floats),
                               (ElementType.INT64, value_int, value_ints),
                               (ElementType.STRING, value_string, value_strings)):
        if one is not None or many is not None:
            return [TensorType(element, () if many is None else (len(many),))]
    raise ValueError("Constant takes one value attribute, found 0")


def _window(size: np.ndarray, periodic: int, output_datatype: int, *terms: float) -> np.ndarray:
    """The sum of `terms[k]` * cos(2 pi k n / N), N being the size, or one less for a symmetric window."""
    count = int(scalar(size))
    bounded((count,), np.dtype(np.float64))
    if count <= _KEPT:
        return _kept_window(count, periodic, output_datatype, terms).copy()
    reserve(3 * 8 * count)
    return _summed(count, periodic, output_datatype, terms)


_KEPT = 1 << 15
"""Elements up to which a window that comes again is not computed again."""


@functools.lru_cache(16)
def _kept_window(count: int, periodic: int, output_datatype: int, terms: tuple[float, ...]) -> np.ndarray:
    return _summed(count, periodic, output_datatype, terms)


def _summed(count: int, periodic: int, output_datatype: int, terms: tuple[float, ...]) -> np.ndarray:
    turn = np.arange(count) * (2 * np.pi / max(count if periodic else count - 1, 1))
    y = np.full(count, terms[0])
    for k, term in enumerate(terms[1:], 1):
        y += term * np.cos(k * turn)
    if count == 1 and not periodic:
        y[:] = 1
    element = ElementType(output_datatype)
    return converted(y if element.floating else y.astype(np.float32), element)


@define
def HannWindow(size, *, periodic: int = 1, output_datatype: int = 1):
    """0.5 - 0.5 cos(2 pi n / N)"""
    return _window(size, periodic, output_datatype, 0.5, -0.5)


@define
def HammingWindow(size, *, periodic: int = 1, output_datatype: int = 1):
    """25/46 - 21/46 cos(2 pi n / N)"""
    return _window(size, periodic, output_datatype, 25 / 46, -21 / 46)


@define
def BlackmanWindow(size, *, periodic: int = 1, output_datatype: int = 1):
    """0.42 - 0.5 cos(2 pi n / N) + 0.08 cos(4 pi n / N)"""
    return _window(size, periodic, output_datatype, 0.42, -0.5, 0.08)


@define
def MelWeightMatrix(num_mel_bins, dft_length, sample_rate, lower_edge_hertz, upper_edge_hertz, *,
                    output_datatype: int = 1):
    """Triangles evenly spaced on the mel scale, one a column: [dft_length // 2 + 1, num_mel_bins]"""
    bins, length, rate = (int(scalar(v)) for v in (num_mel_bins, dft_length, sample_rate))
    low, high = float(scalar(lower_edge_hertz)), float(scalar(upper_edge_hertz))
    if bins < 0 or length < 0 or rate <= 0 or not -700 < low <= high < math.inf:
        raise ValueError(f"MelWeightMatrix has no {bins} bins from {low} to {high} Hz of {length} samples at"
                         f" {rate} Hz")
    bounded((length + bins,), np.dtype(np.float64))
    rows, columns = bounded((length // 2 + 1, bins), np.dtype(np.float64))
    ends = [2595 * math.log10(1 + hertz / 700) for hertz in (low, high)]
    mels = ends[0] + np.arange(columns + 2) * ((ends[1] - ends[0]) / (columns + 2))
    edges = np.floor((length + 1) * (700 * (10 ** (mels / 2595) - 1)) / rate)
    left, centre, right = edges[:-2], edges[1:-1], edges[2:]
    at = np.arange(rows)[:, None]
    y = np.zeros((rows, columns))
    np.divide(at - left, centre - left, out=y, where=(left <= at) & (at < centre))
    np.divide(right - at, right - centre, out=y, where=(centre < at) & (at < right))
    y[at == centre] = 1
    return converted(y, ElementType(output_datatype))
