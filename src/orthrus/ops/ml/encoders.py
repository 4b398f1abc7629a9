"""Encoders of ai.onnx.ml: tables of labels, categories and features in; arrays, or maps for ZipMap, out.

Where the specification leaves a choice (the order of a map's keys, which of two equal keys counts) it is
onnxruntime's.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np

from ...errors import InvalidArgument
from ...ir import ElementType, TensorType, Type, Value
from ...limits import bounded
from ...records import cached_property
from ..define import define, elementwise, xp
from ..functions import sum_of

ML = "ai.onnx.ml"


def array_of(values: list[str] | np.ndarray) -> np.ndarray:
    """Strings as an object array."""
    out = np.empty(len(values), object)
    out[:] = values
    return out


def _per_feature(values: np.ndarray, x: np.ndarray) -> np.ndarray:
    """One value per element of `x`: `values` runs along the features, dimension 1, or 0 for a vector."""
    if values.size == 1 or not x.size:
        return values.reshape(-1)[:1]
    width = x.shape[1] if x.ndim > 1 else x.size
    return values[np.arange(x.size).reshape(x.shape) % width]


@define(domain=ML)
def ArrayFeatureExtractor(x, y):
    """The features `y` names, from the last dimension"""
    indices, width = y.reshape(-1), x.shape[-1] if x.ndim else 0
    if not indices.size:
        raise InvalidArgument("Invalid Y argument: num_indices = 0")
    bad = np.flatnonzero((indices < 0) | (indices >= width))
    if bad.size:
        raise InvalidArgument(f"Invalid Y argument: index is out of range: Y[{bad[0]}] ({indices[bad[0]]})"
                              " must be in"
                              f" [0, {width})")
    bounded((*x.shape[:-1], indices.size), x.dtype)
    found = x[..., indices]
    return found.reshape(1, -1) if x.ndim == 1 else found


@elementwise(domain=ML, widen=False)
def Binarizer(x, *, threshold: float = 0.0):
    """1 where x > threshold, 0 elsewhere"""
    return xp.where(x > threshold, x.dtype.type(1), x.dtype.type(0))


@define(domain=ML)
def CastMap(x, *, cast_to: str = "TO_FLOAT", map_form: str = "DENSE", max_map: int = 1):
    """The values of a map by rising key, as a row; if sparse, each value in the column its key names"""
    casts: dict[str, Any] = {"TO_FLOAT": (np.float32, float, 0.0), "TO_INT64": (np.int64, int, 0),
                             "TO_STRING": (object, lambda v: v if isinstance(v, str) else f"{float(v):f}",
                                           "0.f")}
    if cast_to not in casts or map_form not in ("DENSE", "SPARSE"):
        raise ValueError(f"CastMap knows no cast {cast_to!r} in form {map_form!r}")
    dtype, cast, missing = casts[cast_to]
    keys = sorted(x)
    values = array_of([cast(x[k]) for k in keys])
    if map_form == "DENSE":
        return values.astype(dtype)[None]
    if keys and keys[0] < 0:
        raise ValueError(f"CastMap takes no negative key in sparse form, found {keys[0]}")
    out = np.full(bounded((1, max_map), np.dtype(dtype)), missing, dtype)
    kept = [k for k in keys if k < max_map]
    out[0, kept] = values[:len(kept)]
    return out


_MANY = 32
"""Numbers from which on they are looked up together."""
_BYTE = 255
"""Keys up to which a byte says which of them it is, or none."""
_FEW, _TEXT = 8, np.dtype(object)
_UNKNOWN = "Unknown Category and zeros = 0."
_SMALL = 1 << 12
"""Elements of a result up to which each is compared."""
_DENSE = 1 << 16
"""Between the least and the largest integer of a table that has a place for each."""


class _Table(dict[Any, Any]):
    """What keys stand for."""

    @cached_property
    def _ordered(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """By the kind of numpy's types "i" and "f": the keys of that kind in order, and where in the table
        each stands."""
        found = {}
        for kind, of, dtype in (("i", int, np.int64), ("f", float, np.float64)):
            held = [(key, i) for i, key in enumerate(self) if type(key) is of]
            if held and (kind == "f" or all(-(1 << 63) <= key < 1 << 63 for key, _ in held)):
                keys, places = np.array([k for k, _ in held], dtype), np.array([i for _, i in held])
                order = np.argsort(keys)
                found[kind] = keys[order], places[order]
        return found

    @cached_property
    def _dense(self) -> np.ndarray | None:
        """Where each integer from the least key on stands, the table's length where it does not; None where
        these are many."""
        keys, places = self._ordered["i"]
        if int(keys[-1]) - int(keys[0]) >= _DENSE:
            return None
        found = np.full(int(keys[-1] - keys[0]) + 1, len(self))
        found[keys - keys[0]] = places
        return found

    @cached_property
    def _arrays(self) -> dict[tuple[str, str], np.ndarray]:
        return {}

    @cached_property
    def numbers(self) -> dict[Any, int]:
        """Where in the table each key stands."""
        return {key: i for i, key in enumerate(self)}

    @cached_property
    def width(self) -> int:
        """One more than the largest number that a key stands for."""
        return max(self.values(), default=-1) + 1

    def array(self, default: Any, dtype: np.dtype[Any]) -> np.ndarray:
        """What each key stands for, and behind all of them the default."""
        key = dtype.str, repr(default)
        if (found := self._arrays.get(key)) is None:
            found = np.empty(len(self) + 1, dtype)
            found[:] = [*self.values(), default]
            self._arrays[key] = found
        return found

    def places(self, x: np.ndarray) -> np.ndarray | None:
        """Where the numbers `x` stand, the table's length where they do not; None for what has no order."""
        if x.dtype.kind not in "if" or x.dtype.kind not in self._ordered:
            return None
        keys, places = self._ordered[x.dtype.kind]
        if x.dtype.kind == "i" and (dense := self._dense) is not None:
            x = x.astype(np.int64, copy=False)
            inside = (x >= keys[0]) & (x <= keys[-1])
            return np.where(inside, dense[np.where(inside, x - keys[0], 0)], len(self))
        at = np.minimum(np.searchsorted(keys, x), len(keys) - 1)
        return np.where(keys[at] == x, places[at], len(self))


def _lookup(x: np.ndarray, table: _Table, default: Any, dtype: Any) -> np.ndarray:
    """`table[v]` for every element `v`, `default` where there is none."""
    if x.dtype == object:
        words = x.tolist() if x.ndim == 1 else x.ravel().tolist()
        if len(words) >= _MANY and len(table) <= _BYTE:
            found = bytes(map(table.numbers.get, words, itertools.repeat(len(table))))
            return table.array(default, np.dtype(dtype)).take(np.frombuffer(found, np.uint8).reshape(x.shape))
        if dtype is not object and dtype is not _TEXT:
            if len(words) <= _FEW:
                made = np.array([table.get(word, default) for word in words], dtype)
            else:
                made = np.fromiter(map(table.get, words, itertools.repeat(default)), dtype, len(words))
            return made if x.ndim == 1 else made.reshape(x.shape)
        out = np.empty(x.shape, dtype)
        out.ravel()[:] = list(map(table.get, words, itertools.repeat(default)))
        return out
    if x.size >= _MANY and (places := table.places(x)) is not None:
        return table.array(default, np.dtype(dtype))[places]
    out = np.empty(x.shape, dtype)
    out.ravel()[:] = [table.get(v, default) for v in x.ravel().tolist()]
    return out


@define(domain=ML, prepared=("to_int", "to_string"))
def CategoryMapper(x, *, default_int64: int = -1, default_string: str = "_Unused", to_int, to_string):
    """Strings to the integers paired with them, or back"""
    if x.dtype == object:
        return _lookup(x, to_int, default_int64, np.int64)
    return _lookup(x, to_string, default_string, object)


@CategoryMapper.prepare_with
def _categories(*, cats_int64s: list[int] | None = None, cats_strings: list[str]
                | None = None) -> dict[str, Any]:
    numbers, strings = list(cats_int64s if cats_int64s is not None else []), list(cats_strings or [])
    if len(numbers) != len(strings):
        raise ValueError(f"cats_int64s has {len(numbers)} entries and cats_strings {len(strings)}")
    return {"to_int": _Table(zip(strings, numbers, strict=True)),
            "to_string": _Table(zip(numbers, strings, strict=True))}


@define(domain=ML)
def DictVectorizer(x, *, int64_vocabulary: list[int] | None = None, string_vocabulary: list[str]
                   | None = None):
    """The values of a map in the order of a vocabulary, as a row; zero or the empty string where the key
    is missing"""
    vocabulary = string_vocabulary or int64_vocabulary
    if vocabulary is None or not len(vocabulary):
        raise ValueError("DictVectorizer needs one of int64_vocabulary and string_vocabulary")
    example = next(iter(x.values()), np.float32(0))
    dtype = np.dtype(object) if isinstance(example, str) else (
        np.dtype(np.float32) if type(example) is float else np.asarray(example).dtype)
    out = np.empty((1, len(vocabulary)), dtype)
    missing: Any = "" if isinstance(example, str) else 0
    out[0] = [x.get(k, missing) for k in vocabulary]
    return out


@define(domain=ML)
def FeatureVectorizer(*xs, inputdimensions: list[int] | None = None):
    """The features of all inputs side by side, each cut or filled with zeros to its declared width,
    float32"""
    tables = [x.reshape(len(x), math.prod(x.shape[1:])) if x.ndim > 1 else x.reshape(1, -1) for x in xs]
    widths = [t.shape[1] for t in tables] if inputdimensions is None else [int(n) for n in inputdimensions]
    if len(widths) != len(tables) or any(len(t) != len(tables[0]) for t in tables):
        raise ValueError(f"{len(widths)} inputdimensions do not fit inputs of shapes {[x.shape for x in xs]}")
    if min(widths, default=0) < 0:
        raise ValueError(f"inputdimensions {widths} are not all positive")
    out = np.zeros(bounded((len(tables[0]), sum(widths)), np.dtype(np.float32)), np.float32)
    at = 0
    for table, width in zip(tables, widths, strict=True):
        kept = min(width, table.shape[1])
        out[:, at:at + kept] = table[:, :kept]
        at += width
    return out


@FeatureVectorizer.infer_with
def _features_type(*xs: Value | None, inputdimensions: list[int] | None = None) -> list[Type]:
    shape = xs[0].shape if xs and xs[0] is not None else None
    rows = shape[0] if shape is not None and len(shape) > 1 else None if shape is None else 1
    return [TensorType(ElementType.FLOAT, (rows, None if inputdimensions is None else sum(inputdimensions)))]


@define(domain=ML)
def Imputer(x, *, imputed_value_floats: list[float] | None = None, imputed_value_int64s: list[int]
            | None = None,
            replaced_value_float: float = 0.0, replaced_value_int64: int = 0):
    """x with one value, which may be NaN, replaced by another, or by one per feature"""
    floating = x.dtype.kind == "f"
    given = imputed_value_floats if floating else imputed_value_int64s
    if given is None or not len(given):
        raise ValueError(f"Imputer of {x.dtype} needs imputed_value_{'floats' if floating else 'int64s'}")
    old = replaced_value_float if floating else replaced_value_int64
    new = np.asarray(given).astype(x.dtype)
    if new.size != (x.shape[1] if x.ndim > 1 else x.size):
        new = new[:1]
    return np.where(np.isnan(x) if old != old else x == x.dtype.type(old), _per_feature(new, x), x)


@Imputer.infer_with
def _imputed_type(x: Value, **_: Any) -> list[Type]:
    return [TensorType(x.elem, x.shape)]


def float_like(x: Value, **_: Any) -> list[Type]:
    """float32 of the input's shape."""
    return [TensorType(ElementType.FLOAT, x.shape)]


def _first_given(*candidates: Any) -> np.ndarray:
    """The first non-empty of lists of strings, ints or floats and a tensor, in that order, as an array."""
    strings, ints, floats, tensor = candidates
    if strings:
        return array_of(strings)
    if ints is not None and len(ints):
        return np.asarray(ints, np.int64)
    if floats is not None and len(floats):
        return np.asarray(floats, np.float32)
    if tensor is None:
        raise ValueError("LabelEncoder needs one attribute with keys and one with values")
    return tensor.astype(object) if tensor.dtype.kind in "US" else tensor.reshape(-1)


@define(domain=ML, since=2, prepared=("table", "default"))
def LabelEncoder(x, *, table, default):
    """Each element's value in a table of keys and values; NaN is a key like any other"""
    if x.dtype.kind == "f":
        found = _lookup(x, table, default[()], default.dtype)
        found[np.isnan(x)] = table.get("nan", default[()])
        return found
    return _lookup(x, table, default[()], default.dtype)


@LabelEncoder.prepare_with
def _label_table(*, keys_strings: list[str] | None = None, keys_int64s: list[int] | None = None,
                 keys_floats: list[float] | None = None, keys_tensor: np.ndarray | None = None,
                 values_strings: list[str] | None = None, values_int64s: list[int] | None = None,
                 values_floats: list[float] | None = None, values_tensor: np.ndarray | None = None,
                 default_string: str = "_Unused", default_int64: int = -1, default_float: float = -0.0,
                 default_tensor: np.ndarray | None = None) -> dict[str, Any]:
    keys = _first_given(keys_strings, keys_int64s, keys_floats, keys_tensor)
    values = _first_given(values_strings, values_int64s, values_floats, values_tensor)
    if len(keys) != len(values):
        raise ValueError(f"LabelEncoder has {len(keys)} keys and {len(values)} values")
    if default_tensor is not None:
        default = default_tensor.reshape(-1)[0]
    else:
        default = {"O": default_string, "i": default_int64, "f": default_float}[values.dtype.kind]
    table = _Table()
    for key, value in zip(keys.tolist(), values.tolist(), strict=True):
        table.setdefault("nan" if key != key else key, value)
    return {"table": table, "default": np.array(default, values.dtype)}


@define(domain=ML, prepared=("to_int", "to_string"))
def LabelEncoder_1(x, *, classes_strings: list[str] | None = None, default_int64: int = -1,
                   default_string: str = "_Unused", to_int, to_string):
    """Strings to their place among the classes, or back"""
    if x.dtype == object:
        return _lookup(x, to_int, default_int64, np.int64)
    return _lookup(x, to_string, default_string, object)


@LabelEncoder_1.prepare_with
def _places(*, classes_strings: list[str] | None = None) -> dict[str, Any]:
    names = list(enumerate(classes_strings or ()))
    return {"to_int": _Table((name, i) for i, name in names), "to_string": _Table(names)}


@define(domain=ML)
def Normalizer(x, *, norm: str = "MAX"):
    """Each row divided by its norm, float32; a row whose norm is zero stays"""
    if x.ndim > 2:
        raise ValueError(f"Normalizer takes a vector or a matrix, found shape {x.shape}")
    y = x.astype(np.float32)
    if not y.size:
        return y
    if norm == "MAX":
        size = y.max(-1, keepdims=True)
    elif norm == "L1":
        size = sum_of(np.abs(y), -1)
    elif norm == "L2":
        size = np.sqrt(sum_of(y * y, -1))
    else:
        raise ValueError(f"norm is {norm!r}, expected MAX, L1 or L2")
    return y / np.where(size == 0, np.float32(1), size)


Normalizer.infer_with(float_like)


@define(domain=ML, prepared=("columns",))
def OneHotEncoder(x, *, zeros: int = 1, columns):
    """A row of categories per element with 1 at its own, float32; unknown ones are all zero, or an error"""
    width = columns.width
    flat = x.reshape(-1) if x.dtype == object else x.reshape(-1).astype(np.int64)
    if len(flat) <= _FEW and width <= _SMALL:
        out = np.zeros((len(flat), width), np.float32)
        for row, at in zip(out, map(columns.get, flat.tolist()), strict=True):
            if at is not None:
                row[at] = 1
            elif not zeros:
                raise ValueError(_UNKNOWN)
        return out.reshape((*x.shape, width))
    found = _lookup(flat, columns, -1, np.int64)
    if not zeros and (found < 0).any():
        raise ValueError(_UNKNOWN)
    shape = bounded((*x.shape, width), np.float32)
    out = np.zeros(shape, np.float32)
    rows = np.flatnonzero(found >= 0)
    out.reshape(-1, max(width, 1))[rows, found[rows]] = 1
    return out


@OneHotEncoder.prepare_with
def _columns(*, cats_int64s: list[int] | None = None, cats_strings: list[str]
             | None = None) -> dict[str, Any]:
    categories = list(cats_strings or (cats_int64s if cats_int64s is not None else []))
    if not categories:
        raise ValueError("OneHotEncoder needs one of cats_int64s and cats_strings")
    return {"columns": _Table((name, i) for i, name in enumerate(categories))}


@define(domain=ML)
def Scaler(x, *, offset: list[float] | None = None, scale: list[float] | None = None):
    """(x - offset) * scale, with one value for all or one per feature, float32"""
    shift, factor = (np.asarray([] if v is None else v, np.float32) for v in (offset, scale))
    width = x.shape[1] if x.ndim > 1 else x.size
    if shift.size != factor.size or shift.size not in (1, width):
        raise InvalidArgument(f"Either both scale and offset can be of feature size ({width}) or 1",
                              found=f"{factor.size} scales and {shift.size} offsets")
    return (x.astype(np.float32) - _per_feature(shift, x)) * _per_feature(factor, x)


Scaler.infer_with(float_like)


@define(domain=ML)
def ZipMap(x, *, classlabels_int64s: list[int] | None = None, classlabels_strings: list[str] | None = None):
    """A map from class label to score per row"""
    ints: Any = [] if classlabels_int64s is None else classlabels_int64s
    labels: list[Any] = list(classlabels_strings or ints)
    rows = x.reshape(1, -1) if x.ndim == 1 else x
    if rows.ndim != 2 or rows.shape[1] != len(labels):
        raise InvalidArgument(f"Input features_per_batch[{rows.shape[-1]}] != number of"
                              f" classlabels[{len(labels)}]")
    order = sorted(range(len(labels)), key=lambda i: labels[i])
    keys = [labels[i] for i in order]
    return [dict(zip(keys, row, strict=True)) for row in rows[:, order].tolist()]
