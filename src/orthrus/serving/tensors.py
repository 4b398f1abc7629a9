"""Tensors as the protocol carries them: names of datatypes, bytes, and the lists of JSON and protobuf.

In: bytes or lists of a client, with the datatype and shape it says they have. Out: arrays as a session takes
them, and back. What doesn't fit raises a Refusal that names the tensor. Arrays made of bytes are views of
them; nothing is read past the bytes given.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from .refusals import invalid


class Datatype(NamedTuple):
    """A type of elements: the protocol's name, the session's, numpy's, and the field of protobuf's lists that
    holds it, if one does."""

    name: str
    onnx: str
    dtype: np.dtype
    contents: str


def _kinds() -> list[Datatype]:
    rows = (("BOOL", "bool", bool, "bool_contents"), ("UINT8", "uint8", np.uint8, "uint_contents"),
            ("UINT16", "uint16", np.uint16, "uint_contents"),
            ("UINT32", "uint32", np.uint32, "uint_contents"),
            ("UINT64", "uint64", np.uint64, "uint64_contents"),
            ("INT8", "int8", np.int8, "int_contents"), ("INT16", "int16", np.int16, "int_contents"),
            ("INT32", "int32", np.int32, "int_contents"),
            ("INT64", "int64", np.int64, "int64_contents"),
            ("FP16", "float16", np.float16, ""), ("FP32", "float", np.float32, "fp32_contents"),
            ("FP64", "double", np.float64, "fp64_contents"),
            ("BYTES", "string", object, "bytes_contents"),
            ("BF16", "bfloat16", ml_dtypes.bfloat16, ""))
    return [Datatype(name, onnx, np.dtype(kind), field) for name, onnx, kind, field in rows]


DATATYPES = {kind.name: kind for kind in _kinds()}
OF_ONNX = {f"tensor({kind.onnx})": kind for kind in DATATYPES.values()}
BYTES = DATATYPES["BYTES"]
MOST_DIMS = 64
COPIED = 4096
"""Bytes up to which a copy costs less than a view."""


def datatype_of(name: object, what: str) -> Datatype:
    """The datatype that a request names."""
    kind = DATATYPES.get(name) if isinstance(name, str) else None
    if kind is None:
        raise invalid(f"{what}: datatype {_short(name)}; expected one of {', '.join(DATATYPES)}")
    return kind


def shape_of(given: Any, what: str) -> tuple[int, ...]:
    """A shape out of a request: whole numbers, none below zero."""
    try:
        shape = tuple(given)
    except TypeError:
        raise invalid(f"{what}: shape {_short(given)}; expected a list of sizes") from None
    if len(shape) > MOST_DIMS:
        raise invalid(f"{what}: a shape of {len(shape)} dimensions; at most {MOST_DIMS} are taken")
    for size in shape:
        if size.__class__ is not int or size < 0 or size >> 62:
            raise invalid(f"{what}: shape {_short(list(shape))}; expected whole numbers from 0 on")
    return shape


def of_bytes(data: memoryview | bytes, kind: Datatype, shape: tuple[int, ...], what: str) -> np.ndarray:
    """An array over `data`, not to be written to. BYTES are copied into texts, and what lies at odd places in
    memory to where a session takes it as it is."""
    count = math.prod(shape)
    if kind is BYTES:
        return of_texts(_pieces(data, count, what), shape, what)
    size = count * kind.dtype.itemsize
    if len(data) != size:
        raise invalid(f"{what}: {len(data)} bytes; {kind.name} of shape {list(shape)} takes {size}")
    array = np.frombuffer(data, kind.dtype)
    if not array.flags.aligned:
        array = array.copy()
    if kind.name == "BOOL" and count and array.view(np.uint8).max() > 1:
        raise invalid(f"{what}: a BOOL is a byte 0 or 1, found {array.view(np.uint8).max()}")
    return array.reshape(shape)


def _pieces(data: memoryview | bytes, count: int, what: str) -> Iterable[bytes]:
    """Elements of a BYTES tensor: each has its length before it, four bytes, the lowest first."""
    place, end, found = 0, len(data), list[bytes]()
    while place < end:
        if end - place < 4:
            raise invalid(f"{what}: {end - place} bytes at the end are no element's length")
        [size] = struct.unpack_from("<I", data, place)
        place += 4
        if size > end - place:
            raise invalid(f"{what}: element {len(found)} says it has {size} bytes, {end - place} are left")
        if len(found) == count:
            raise invalid(f"{what}: more elements than the {count} of its shape")
        found.append(bytes(data[place:place + size]))
        place += size
    return found


def of_texts(given: Sequence[Any] | Iterable[Any], shape: tuple[int, ...], what: str) -> np.ndarray:
    """An array of texts, given as such or in UTF-8."""
    texts = list[str]()
    for each in given:
        if isinstance(each, bytes):
            try:
                each = each.decode()
            except UnicodeDecodeError as error:
                raise invalid(f"{what}: element {len(texts)} is not UTF-8 ({error.reason} at byte "
                              f"{error.start}), which texts of a model are") from None
        if not isinstance(each, str):
            raise invalid(f"{what}: element {len(texts)} is {_short(each)}; BYTES takes texts")
        texts.append(each)
    _fits(len(texts), shape, what)
    array = np.empty(len(texts), object)
    array[:] = texts
    return array.reshape(shape)


def of_list(given: Any, kind: Datatype, shape: tuple[int, ...], what: str) -> np.ndarray:
    """An array of JSON's or protobuf's numbers, a list or an array, flat or nested as the shape says."""
    if kind is BYTES:
        return of_texts(_flat(given, what), shape, what)
    if not isinstance(given, list | np.ndarray):
        raise invalid(f"{what}: data is {_short(given)}; expected a list")
    try:
        found = np.asarray(given)
        if found.dtype == object and kind.dtype.kind in "fV" and all(
                each.__class__ in (int, float) for each in found.flat):
            found = found.astype(np.float64)
        elif found.dtype.kind == "f" and kind.dtype == np.uint64:
            found = _whole(np.array(given, object), found)
    except (ValueError, OverflowError, TypeError) as error:
        raise invalid(f"{what}: data is no {kind.name} of shape {list(shape)}: {error}") from None
    if found.ndim > 1 and found.shape != shape:
        raise invalid(f"{what}: data has the shape {list(found.shape)}, the request says {list(shape)}")
    _fits(found.size, shape, what)
    if not found.size:
        return np.empty(shape, kind.dtype)
    return _converted(found, kind, what).reshape(shape)


def _converted(found: np.ndarray, kind: Datatype, what: str) -> np.ndarray:
    to = kind.dtype
    takes = {"b": "b", "i": "iu", "u": "iu"}.get(to.kind, "iuf")
    if to.kind == "b" and found.dtype.kind in "iu" and found.min() >= 0 and found.max() <= 1:
        takes = "iub"
    if found.dtype.kind not in takes:
        raise invalid(f"{what}: data is no list of {kind.name}, it holds {_short(found.flat[0])}")
    if to.kind in "iu":
        least, most = np.iinfo(to).min, np.iinfo(to).max
        if int(found.min()) < least or int(found.max()) > most:
            raise invalid(f"{what}: {kind.name} goes from {least} to {most}, found "
                          f"{int(found.min())} to {int(found.max())}")
    with np.errstate(all="ignore"):
        return found.astype(to)


def _whole(given: np.ndarray, found: np.ndarray) -> np.ndarray:
    """Numbers of which some are above int64, whose array numpy makes one of floats."""
    return given.astype(np.uint64) if all(each.__class__ is int for each in given.flat) else found


def _flat(given: Any, what: str) -> list[Any]:
    if not isinstance(given, list):
        raise invalid(f"{what}: data is {_short(given)}; expected a list")
    flat, waiting = list[Any](), [iter(given)]
    while waiting:
        for each in waiting[-1]:
            if isinstance(each, list):
                waiting.append(iter(each))
                break
            flat.append(each)
        else:
            waiting.pop()
    return flat


def _fits(count: int, shape: tuple[int, ...], what: str) -> None:
    if count != math.prod(shape):
        raise invalid(f"{what}: {count} elements; the shape {list(shape)} has {math.prod(shape)}")


def to_bytes(array: np.ndarray) -> memoryview | bytes:
    """An array's bytes in the protocol's order, without a copy where they lie so and are many; elements of
    BYTES with their lengths."""
    if array.dtype == object:
        pieces = list[bytes]()
        for text in array.flat:
            data = text if isinstance(text, bytes) else str(text).encode()
            pieces += (struct.pack("<I", len(data)), data)
        return b"".join(pieces)
    if array.nbytes <= COPIED:
        return array.tobytes()
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def for_json(array: np.ndarray) -> list[str] | np.ndarray:
    """An array's elements in a row: texts, or numbers, those that are not whole as float64, which says them
    exactly."""
    if array.dtype == object:
        return [text.decode("utf-8", "replace") if isinstance(text, bytes) else str(text)
                for text in array.flat]
    dtype = np.dtype(np.float64) if array.dtype.kind in "fV" else array.dtype
    return array.reshape(-1).astype(dtype, order="C", copy=False)


def classified(array: np.ndarray, count: int, batched: bool) -> np.ndarray:
    """The classification extension: of each row, or of the whole, the `count` highest values as texts
    `value:index`, the highest first."""
    if array.dtype == object or array.dtype.kind == "b":
        raise invalid("classification takes an output of numbers")
    split = batched and array.ndim > 1
    rows = array.reshape(array.shape[0], -1) if split else array.reshape(1, -1)
    count = min(count, rows.shape[1])
    texts = np.empty((len(rows), count), object)
    for i, row in enumerate(rows):
        row = row.astype(np.float64) if row.dtype.kind in "fV" else row
        for j, k in enumerate(np.argsort(-row if row.dtype.kind == "f" else ~row, kind="stable")[:count]):
            texts[i, j] = f"{row[k]:f}:{k}"
    return texts if split else texts[0]


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


