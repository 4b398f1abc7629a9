"""TensorProto -> numpy array: every element type, raw or typed fields, dense or sparse, and the way back.

Sizes are checked against the bytes that are there before anything is allocated; an array over `raw_data`
shares its memory where the alignment allows it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ..errors import Fail
from ..ir import ElementType, LazyArray, SparseArray
from ..limits import bounded, current
from .source import Payload

Resolve = Callable[[bytes], Any]

_STORED = 1 << 16
"""Bytes from which on a tensor stays in its file until it is looked at."""

_INT32_FIELD = frozenset(
    {
        ElementType.INT32,
        ElementType.INT16,
        ElementType.INT8,
        ElementType.UINT16,
        ElementType.UINT8,
        ElementType.BOOL,
        ElementType.FLOAT16,
        ElementType.BFLOAT16,
        ElementType.FLOAT8E4M3FN,
        ElementType.FLOAT8E4M3FNUZ,
        ElementType.FLOAT8E5M2,
        ElementType.FLOAT8E5M2FNUZ,
        ElementType.FLOAT8E8M0,
        ElementType.INT4,
        ElementType.UINT4,
        ElementType.FLOAT4E2M1,
        ElementType.INT2,
        ElementType.UINT2,
        ElementType.FLOAT6E2M3,
        ElementType.FLOAT6E3M2,
    }
)
_FIELDS = {
    ElementType.FLOAT: ("float_data", np.float32), ElementType.COMPLEX64: ("float_data", np.float32),
    ElementType.INT64: ("int64_data", np.int64), ElementType.DOUBLE: ("double_data", np.float64),
    ElementType.COMPLEX128: ("double_data", np.float64), ElementType.UINT32: ("uint64_data", np.uint64),
    ElementType.UINT64: ("uint64_data", np.uint64), ElementType.STRING: ("string_data", None),
    **dict.fromkeys(_INT32_FIELD, ("int32_data", np.int32))}
_TYPED = ("float_data", "int32_data", "string_data", "int64_data", "double_data", "uint64_data")


def element_type(number: int, what: str) -> ElementType:
    """The element type numbered `number`. Raises Fail for UNDEFINED and unknown numbers."""
    try:
        return ElementType(number)
    except ValueError:
        raise Fail(
            f"This is an invalid model. Tensor element type {number} of {what} is not supported.",
            found=f"element type {number}",
            expected="a TensorProto.DataType other than UNDEFINED",
        ) from None


def shape_of(dims: Any, element: ElementType, what: str) -> tuple[int, ...]:
    """`dims` as a shape. Raises Fail for a negative dimension, or a tensor over the budget."""
    shape = tuple(dims)
    if any(d < 0 for d in shape):
        raise Fail(
            f"Out of bounds dimensions in TypeProto_Tensor of {what}",
            found=list(shape),
            expected="dimensions >= 0",
        )
    size = math.prod(shape) * element.numpy.itemsize
    if size > current().max_tensor_bytes:
        raise Fail(f"{what} would take {size} bytes", found=f"shape {list(shape)} of {element.text}",
                   expected=f"at most {current().max_tensor_bytes} bytes per tensor",
                   cure="raise Limits.max_tensor_bytes if this size is meant")
    return shape


def packed_bytes(count: int, element: ElementType) -> int:
    """The bytes `count` elements take in a model."""
    return (count * element.bits + 7) // 8


def to_array(tensor: Any, payload: Resolve, external: Callable[[Any, ElementType, tuple[int, ...]], Any],
             what: str = "") -> np.ndarray:
    """The array a TensorProto says. `payload` resolves its raw_data, `external` gives the bytes that lie
    outside.

    Raises Fail where type, dimensions and data do not fit together.
    """
    what = what or f"initializer '{tensor.name}'"
    element = element_type(tensor.data_type, what)
    shape = shape_of(tensor.dims, element, what)
    count = math.prod(shape)
    if tensor.HasField("segment"):
        raise Fail(f"Deserialize tensor {tensor.name} failed. Segments are not supported.", node=what)
    if tensor.data_location == 1:
        if element is ElementType.STRING:
            raise Fail(f"Deserialize tensor {tensor.name} failed. String data can not be stored externally.")
        return from_bytes(external(tensor, element, shape), element, shape, what)
    if tensor.external_data:
        raise Fail(
            f"Deserialize tensor {tensor.name} failed. It names external data but is not stored externally.",
            found="external_data with data_location DEFAULT",
            expected="data_location EXTERNAL",
        )
    filled = [f for f in _TYPED if len(getattr(tensor, f))]
    if tensor.HasField("raw_data"):
        if element is ElementType.STRING:
            raise Fail(f"{what}: string elements in raw_data", expected="string_data")
        if filled:
            raise Fail(f"{what}: both raw_data and {filled[0]} are set", expected="one of them")
        return from_bytes(payload(tensor.raw_data), element, shape, what)
    name, stored = _FIELDS[element]
    if any(f != name for f in filled):
        raise Fail(f"{what}: {filled[0]} is set", expected=f"{name} for elements of type {element.text}")
    values = getattr(tensor, name)
    expected = count
    if element in (ElementType.COMPLEX64, ElementType.COMPLEX128):
        expected = 2 * count
    elif element.bits in (2, 4):
        expected = packed_bytes(count, element)
    if len(values) != expected:
        raise Fail(
            f"{what}: data field count ({len(values)}) does not match expected count ({expected})",
            found=f"{len(values)} in {name}",
            expected=f"{expected} for shape {list(shape)} of {element.text}",
        )
    if element is ElementType.STRING:
        out = np.empty(count, object)
        out[:] = [v.decode("utf-8", "surrogateescape") for v in values]
        return out.reshape(shape)
    given = np.array(values, stored)
    if element in _INT32_FIELD:
        given = _from_int32(given, element, count)
    elif element in (ElementType.COMPLEX64, ElementType.COMPLEX128):
        given = given.view(element.numpy)
    return given.astype(element.numpy, copy=False).reshape(shape)


def _from_int32(given: np.ndarray, element: ElementType, count: int) -> np.ndarray:
    """Elements kept one per int32 (bit patterns for types without an int of their own), or packed a byte
    per int32."""
    if element is ElementType.BOOL:
        return given != 0
    if element.bits in (2, 4):
        return unpack(given.astype(np.uint8), element, count)
    if element.bits == 6:
        return (given.astype(np.uint8) & 0x3F).view(element.numpy)
    if element.floating:
        return given.astype(np.uint16 if element.bits == 16 else np.uint8).view(element.numpy)
    return given.astype(element.numpy)


def from_bytes(data: Any, element: ElementType, shape: tuple[int, ...], what: str = "tensor") -> np.ndarray:
    """Little-endian bytes as an array, read-only and sharing them where it can. Raises Fail if their number
    is wrong."""
    count = math.prod(shape)
    expected, found = packed_bytes(count, element), len(data)
    if found != expected:
        raise Fail(
            f"{what}: raw_data size ({found} bytes) does not match expected size ({expected} bytes)",
            found=f"{found} bytes",
            expected=f"{expected} bytes for shape {list(shape)} of {element.text}",
        )
    if isinstance(data, Payload):
        whole = np.little_endian and element.bits >= 8 and element is not ElementType.BOOL
        if whole and expected >= _STORED:
            return LazyArray(element.numpy, shape, data.read)  # type: ignore[return-value]
        data = data.read(0, expected)
        data.flags.writeable = False
    if element.bits < 8:
        return unpack(np.frombuffer(data, np.uint8), element, count).reshape(shape)
    if element is ElementType.BOOL:
        bits = np.frombuffer(data, np.uint8)
        out = bits.view(np.bool_) if not bits.size or bits.max() <= 1 else bits != 0
        return out.reshape(shape)
    dtype = element.numpy
    if np.little_endian:
        array = np.frombuffer(data, dtype)
        return (array if array.flags.aligned else array.copy()).reshape(shape)
    wide = dtype.itemsize // (2 if dtype.kind == "c" else 1)
    return np.frombuffer(data, f"u{wide}").byteswap().view(dtype).reshape(shape)


def unpack(packed: np.ndarray, element: ElementType, count: int) -> np.ndarray:
    """`count` elements of 2, 4 or 6 bits, lowest bits first, one per byte."""
    bits = element.bits
    if bits == 6:
        flat = np.unpackbits(packed, bitorder="little")[:count * 6].reshape(count, 6)
        return np.packbits(flat, axis=1, bitorder="little").reshape(count).view(element.numpy)
    per, mask = 8 // bits, (1 << bits) - 1
    codes = ((packed[:, None] >> (np.arange(per, dtype=np.uint8) * bits)) & mask).reshape(-1)[:count]
    if element in (ElementType.INT4, ElementType.INT2):
        sign = 1 << (bits - 1)
        codes = (codes ^ sign).astype(np.int8) - np.int8(sign)
        return codes.astype(element.numpy)
    if element in (ElementType.UINT4, ElementType.UINT2):
        return codes.astype(element.numpy)
    return np.ascontiguousarray(codes).view(element.numpy)


def to_sparse(sparse: Any, payload: Resolve, external: Callable[[Any, ElementType, tuple[int, ...]], Any],
              what: str = "") -> SparseArray:
    """A SparseTensorProto in coordinate form, its indices in ascending order whatever theirs is in the file.
    Raises Fail for indices out of range, repeated, or of the wrong shape."""
    what = what or f"sparse initializer '{sparse.values.name}'"
    values = to_array(sparse.values, payload, external, f"values of {what}")
    element = element_type(sparse.values.data_type, what)
    dims = tuple(sparse.dims)
    if any(d < 0 for d in dims) or not dims:
        raise Fail(
            f"{what}: sparse dimensions are invalid", found=list(dims), expected="one or more dimensions >= 0"
        )
    del element
    if sparse.indices.data_type not in (0, ElementType.INT64):
        raise Fail(f"{what}: sparse indices must be int64", found=f"element type {sparse.indices.data_type}")
    if values.ndim != 1:
        raise Fail(f"{what}: sparse values must have rank 1", found=f"shape {list(values.shape)}")
    indices = (
        to_array(sparse.indices, payload, external, f"indices of {what}")
        if sparse.indices.data_type
        else np.zeros((0,), np.int64)
    )
    total = math.prod(dims)
    if total >= 1 << 63:
        raise Fail(f"{what}: the dense size overflows", found=list(dims))
    if indices.ndim == 1 and len(indices) == len(values):
        linear = indices
        if linear.size and (linear.min() < 0 or linear.max() >= total):
            raise Fail(f"{what}: sparse index out of range", found=f"[{linear.min()}, {linear.max()}]",
                       expected=f"within [0, {total - 1}]")
        coordinates = (
            np.stack(np.unravel_index(linear, dims), 1) if linear.size else np.zeros((0, len(dims)), np.int64)
        )
    elif indices.ndim == 2 and indices.shape == (len(values), len(dims)):
        coordinates = indices
        if coordinates.size and ((coordinates < 0).any() or (coordinates >= np.array(dims)).any()):
            raise Fail(f"{what}: sparse index out of range", expected=f"within the shape {list(dims)}")
        linear = (
            np.ravel_multi_index(tuple(coordinates.T), dims) if coordinates.size else np.zeros(0, np.int64)
        )
    else:
        raise Fail(f"{what}: sparse indices have the wrong shape", found=list(indices.shape),
                   expected=f"[{len(values)}] or [{len(values)}, {len(dims)}]")
    if linear.size > 1 and not (np.diff(linear) > 0).all():
        order = np.argsort(linear, kind="stable")
        linear, coordinates, values = linear[order], coordinates[order], values[order]
        repeats = np.flatnonzero(np.diff(linear) == 0)
        if repeats.size:
            raise Fail(f"{what}: a sparse index is repeated", found=coordinates[repeats[0]].tolist(),
                       expected="each index once", cure="add up or drop the values of repeated indices")
    return SparseArray(values, np.ascontiguousarray(coordinates, np.int64), dims, indices.ndim == 1)


def densified(sparse: SparseArray, what: str) -> np.ndarray:
    """The dense form, once it is known to fit the budget."""
    bounded(sparse.shape, sparse.values.dtype, f"dense form of {what}")
    return sparse.dense()


def pack(array: np.ndarray, element: ElementType) -> bytes:
    """The little-endian bytes of a contiguous array in a model's packing."""
    bits = element.bits
    if bits >= 8:
        array = np.ascontiguousarray(array)
        return array.tobytes() if np.little_endian else array.astype(array.dtype.newbyteorder("<")).tobytes()
    if element in (ElementType.INT4, ElementType.UINT4, ElementType.INT2, ElementType.UINT2):
        codes = array.astype(np.int8).view(np.uint8).ravel() & ((1 << bits) - 1)
    else:
        codes = np.ascontiguousarray(array).view(np.uint8).ravel() & ((1 << bits) - 1)
    spread = np.unpackbits(codes.astype(np.uint8)[:, None], axis=1, bitorder="little", count=bits)
    return np.packbits(spread.ravel(), bitorder="little").tobytes()
