"""What the compile service and the library that asks it say to each other, as message.h and wire.c have it.

In: the bytes of a message, and the room that both sides see. Out: numbers, texts and values, and the same
the other way. Numbers take eight bytes; a text has its length in front and zeros behind, up to a multiple of
eight, one at least. Tensors of more than a few bytes lie in the room. Raises ValueError for what is no
message.
"""

from __future__ import annotations

import math
import mmap
import os
import struct
from collections.abc import Iterable
from typing import Any

import numpy as np

from ...ir import (
    ElementType,
    MapType,
    OptionalType,
    SequenceType,
    SparseArray,
    SparseTensorType,
    TensorType,
    element_of,
    type_of,
)
from ...load import tensors

NOTHING, TENSOR, SEQUENCE, MAP, SPARSE, OPTIONAL = 0, 1, 2, 3, 5, 6
"""Kinds of values, by their numbers in the C interface."""
INLINE = 1 << 12
"""Bytes of a tensor that go with the message."""
_LINE = 64
_INT = struct.Struct("<q")
_NUMBERS = {ElementType.UINT2: 24, ElementType.INT2: 25, ElementType.FLOAT8E8M0: 26}
"""Element types whose numbers in the C interface are not ONNX's."""
_ELEMENTS = {**{e.value: e for e in ElementType if e <= ElementType.FLOAT4E2M1},
             **{number: e for e, number in _NUMBERS.items()}}


class Room:
    """Memory that both sides see: a file without a name, which whoever puts something there makes longer."""

    def __init__(self, handle: int) -> None:
        self._handle, self.end = handle, 0
        self._map: mmap.mmap | None = None

    def close(self) -> None:
        os.close(self._handle)

    def look(self, at: int, size: int) -> np.ndarray:
        """`size` bytes that stay as they are until the next message. Raises ValueError."""
        if at < 0 or size < 0:
            raise ValueError(f"no bytes at {at}, {size} of them")
        if self._map is None or at + size > len(self._map):
            length = os.fstat(self._handle).st_size
            if at + size > length:
                raise ValueError(f"no room from {at} to {at + size}, there are {length} bytes")
            self._map = mmap.mmap(self._handle, length)
        self.end = max(self.end, at + size)
        return np.frombuffer(self._map, np.uint8, size, at)

    def put(self, data: np.ndarray) -> int:
        """Where bytes lie from now on: behind all that this message and the last one hold. Raises OSError."""
        at = -(-self.end // _LINE) * _LINE
        length = os.fstat(self._handle).st_size
        if at + len(data) > length:
            os.posix_fallocate(self._handle, 0, at + len(data))
        self.look(at, len(data))[:] = data
        return at


class Reader:
    """Takes a message apart."""

    def __init__(self, data: bytes, room: Room) -> None:
        self._data, self._at, self.room = data, 0, room

    def number(self) -> int:
        try:
            (found,) = _INT.unpack_from(self._data, self._at)
        except struct.error:
            raise ValueError("a message that ends too early") from None
        self._at += _INT.size
        return int(found)

    def count(self) -> int:
        found = self.number()
        if not 0 <= found <= len(self._data):
            raise ValueError(f"a message with {found} of something")
        return found

    def raw(self) -> bytes:
        size = self.count()
        found = self._data[self._at:self._at + size]
        self._at += (size | 7) + 1
        if self._at > len(self._data):
            raise ValueError("a message that ends too early")
        return found

    def text(self) -> str:
        return self.raw().decode("utf-8", "surrogateescape")

    def value(self) -> Any:
        """An array, a list, a dict, a SparseArray, or None for an optional of nothing."""
        kind = self.number()
        if kind == TENSOR:
            return self._tensor()
        if kind == SEQUENCE:
            return [self.value() for _ in range(self.count())]
        if kind == MAP:
            keys, values = self.value(), self.value()
            return dict(zip(keys.tolist(), values.tolist() if values.dtype != object else list(values),
                            strict=True))
        if kind == SPARSE:
            shape = tuple(self.number() for _ in range(self.count()))
            values, indices = self.value(), self.value()
            return SparseArray(values, np.ascontiguousarray(indices).reshape(len(values), len(shape)), shape)
        if kind in (NOTHING, OPTIONAL):
            return None
        raise ValueError(f"no value is of kind {kind}")

    def _tensor(self) -> np.ndarray:
        element = _ELEMENTS.get(self.number())
        if element is None:
            raise ValueError("a tensor of no type")
        shape = tuple(self.number() for _ in range(self.count()))
        count = math.prod(shape)
        if element is ElementType.STRING:
            out = np.empty(count, object)
            out[:] = [self.text() for _ in range(self.count())]
            return out.reshape(shape)
        at, size = self.number(), self.number()
        data = np.frombuffer(self.raw(), np.uint8) if at < 0 else self.room.look(at, size)
        if element.bits < 8:
            return tensors.unpack(data, element, count).reshape(shape)
        return data.view(element.numpy).reshape(shape) if count else np.empty(shape, element.numpy)


class Writer:
    """Puts a message together. `room`: where larger tensors go, None where there are none."""

    def __init__(self, room: Room | None) -> None:
        self.room, self._pieces = room, list[bytes]()

    def whole(self) -> bytes:
        return b"".join(self._pieces)

    def number(self, number: int) -> None:
        self._pieces.append(_INT.pack(number))

    def raw(self, data: bytes) -> None:
        self._pieces += [_INT.pack(len(data)), data, bytes((len(data) | 7) + 1 - len(data))]

    def text(self, text: str) -> None:
        self.raw(text.encode("utf-8", "surrogateescape"))

    def texts(self, texts: Iterable[str]) -> None:
        texts = list(texts)
        self.number(len(texts))
        for each in texts:
            self.text(each)

    def value(self, value: Any, kind: Any = None) -> None:
        """A result, of the type that it was declared with."""
        if isinstance(kind, OptionalType):
            kind = kind.elem
        if value is None:
            self.number(NOTHING)
        elif isinstance(value, list):
            self.number(SEQUENCE)
            self.number(len(value))
            for each in value:
                self.value(each, kind.elem if isinstance(kind, SequenceType) else None)
        elif isinstance(value, dict):
            self._map(value, kind if isinstance(kind, MapType) else type_of(value))
        elif isinstance(value, SparseArray):
            self.number(SPARSE)
            self._numbers(value.shape)
            self._tensor(value.values)
            self._tensor(np.ascontiguousarray(value.indices, np.int64))
        else:
            self._tensor(np.asarray(value))

    def _map(self, value: dict[Any, Any], kind: Any) -> None:
        self.number(MAP)
        items = kind.value.elem if isinstance(kind.value, TensorType) else None
        self._tensor(_filled(list(value), kind.key))
        self._tensor(_filled(list(value.values()), items or ElementType.FLOAT))

    def _numbers(self, numbers: Iterable[int]) -> None:
        numbers = list(numbers)
        for each in (len(numbers), *numbers):
            self.number(each)

    def _tensor(self, array: np.ndarray) -> None:
        element = element_of(array.dtype)
        self.number(TENSOR)
        self.number(_NUMBERS.get(element, element.value))
        self._numbers(array.shape)
        if element is ElementType.STRING:
            self.texts(str(each) for each in array.ravel())
            return
        if element.bits < 8:
            data = np.frombuffer(tensors.pack(array, element), np.uint8)
        else:
            data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        inline = len(data) <= INLINE or self.room is None
        self.number(-1 if self.room is None or inline else self.room.put(data))
        self.number(len(data))
        if inline:
            self.raw(data.tobytes())

    def kind(self, kind: Any) -> None:
        """A declared type: its kind; elements, rank, sizes and names of dimensions of a tensor, -1 for a rank
        or a size that is open."""
        if isinstance(kind, TensorType | SparseTensorType):
            self.number(TENSOR if isinstance(kind, TensorType) else SPARSE)
            self.number(0 if kind.elem is None else _NUMBERS.get(kind.elem, kind.elem.value))
            self.number(-1 if kind.shape is None else len(kind.shape))
            for each in kind.shape or ():
                self.number(each if isinstance(each, int) else -1)
                self.text(each if isinstance(each, str) else "")
        elif isinstance(kind, MapType):
            self.number(MAP)
            self.number(_NUMBERS.get(kind.key, kind.key.value))
            self.kind(kind.value)
        elif isinstance(kind, SequenceType | OptionalType):
            self.number(SEQUENCE if isinstance(kind, SequenceType) else OPTIONAL)
            self.kind(kind.elem)
        else:
            self.number(NOTHING)


def _filled(items: list[Any], element: ElementType) -> np.ndarray:
    out = np.empty(len(items), element.numpy)
    for i, each in enumerate(items):
        out[i] = each
    return out
