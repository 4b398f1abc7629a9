"""Adapters: named tensors in a file, fed to a model beside its inputs (LoRA).

The file is onnxruntime's, a flatbuffer with identifier TORT: a table (format, adapter and model version,
parameters) whose parameters are tables (name, dims, ONNX element type, raw bytes). It is read with every
offset checked.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping

import numpy as np

from .ortvalue import OrtValue
from .values import CoreValue

_IDENTIFIER = b"TORT"
_FORMAT = 1
_VTABLE = struct.pack("<6H", 12, 20, 4, 8, 12, 16)
"""Four fields of four bytes each: both kinds of table have this form."""


class CoreAdapter:
    """An adapter's content, of the capi layer."""

    __slots__ = ("format_version", "adapter_version", "model_version", "parameters")

    def __init__(self) -> None:
        self.format_version = _FORMAT
        self.adapter_version = 0
        self.model_version = 0
        self.parameters: dict[str, CoreValue] = {}

    def export_adapter(self, path: str) -> None:
        """Write the file. Raises RuntimeError where it cannot be written, or for a parameter that is no
        tensor."""
        content = _written(self)
        try:
            with open(path, "wb") as file:
                file.write(content)
        except OSError as error:
            raise RuntimeError(f"the adapter cannot be written: {error}") from error

    @staticmethod
    def read_adapter(path: str) -> CoreAdapter:
        """Raises RuntimeError for a file that is not there or is no adapter."""
        try:
            with open(path, "rb") as file:
                content = file.read()
        except OSError as error:
            raise RuntimeError("[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : Invalid fd was supplied: -1\n  "
                               f"found: {error}") from error
        return _read(content)


class LoraAdapter:
    """A loaded adapter, for `RunOptions.add_active_adapter`."""

    def __init__(self) -> None:
        self._adapter: CoreAdapter | None = None

    def Load(self, path: str) -> None:
        """Read the file. Raises RuntimeError for a file that is not there or is no adapter."""
        self._adapter = CoreAdapter.read_adapter(os.fspath(path))

    def _parameters(self) -> dict[str, CoreValue]:
        if self._adapter is None:
            raise RuntimeError("the adapter is empty; call Load(path) first")
        return self._adapter.parameters


class AdapterFormat:
    """Makes, writes and reads adapter files."""

    def __init__(self, adapter: CoreAdapter | None = None) -> None:
        self._adapter = CoreAdapter() if adapter is None else adapter

    @staticmethod
    def read_adapter(file_path: os.PathLike[str] | str) -> AdapterFormat:
        """Raises RuntimeError for a file that is not there or is no adapter."""
        return AdapterFormat(CoreAdapter.read_adapter(os.fspath(file_path)))

    def export_adapter(self, file_path: os.PathLike[str] | str) -> None:
        """Write the file. Raises RuntimeError where it cannot be written, or for a parameter that is no
        tensor."""
        self._adapter.export_adapter(os.fspath(file_path))

    def get_format_version(self) -> int:
        return self._adapter.format_version

    def set_adapter_version(self, adapter_version: int) -> None:
        self._adapter.adapter_version = int(adapter_version)

    def get_adapter_version(self) -> int:
        return self._adapter.adapter_version

    def set_model_version(self, model_version: int) -> None:
        self._adapter.model_version = int(model_version)

    def get_model_version(self) -> int:
        return self._adapter.model_version

    def set_parameters(self, params: Mapping[str, OrtValue]) -> None:
        """The tensors by name."""
        self._adapter.parameters = {name: value._ortvalue for name, value in params.items()}

    def get_parameters(self) -> dict[str, OrtValue]:
        return {name: OrtValue(value) for name, value in self._adapter.parameters.items()}


class _Writer:
    """A flatbuffer written front to back: every offset is filled in once what it names is placed."""

    def __init__(self) -> None:
        self.data = bytearray(8)
        self.data[4:8] = _IDENTIFIER

    def align(self, size: int, before: int = 0) -> None:
        """Pad so that what comes `before` bytes later lies at a multiple of `size`."""
        self.data += bytes(-(len(self.data) + before) % size)

    def point(self, at: int) -> None:
        """Let the offset at `at` name the present end."""
        struct.pack_into("<I", self.data, at, len(self.data) - at)

    def table(self, vtable: int, *fields: int) -> int:
        """A table of four fields; answers where the first lies."""
        self.align(4)
        start = len(self.data)
        self.data += struct.pack("<i", start - vtable) + struct.pack("<4i", *fields)
        return start + 4

    def vector(self, at: int, count: int, content: bytes, size: int) -> None:
        """A vector of `count` elements, aligned to `size`, named by the offset at `at`."""
        self.align(max(size, 4), 4)
        self.point(at)
        self.data += struct.pack("<I", count) + content


def _written(adapter: CoreAdapter) -> bytes:
    from ..ir import element_of

    out = _Writer()
    vtable = len(out.data)
    out.data += _VTABLE
    out.align(4)
    struct.pack_into("<I", out.data, 0, len(out.data))
    first = out.table(vtable, adapter.format_version, adapter.adapter_version, adapter.model_version, 0)
    count = len(adapter.parameters)
    out.vector(first + 12, count, bytes(4 * count), 4)
    slots = len(out.data) - 4 * count
    for i, (name, value) in enumerate(adapter.parameters.items()):
        array = value._array(f"parameter {name} is no tensor")
        if array.dtype == object:
            raise RuntimeError(f"parameter {name} is a tensor of strings, which an adapter cannot hold")
        out.align(4)
        out.point(slots + 4 * i)
        field = out.table(vtable, 0, 0, int(element_of(array.dtype)), 0)
        text = name.encode("utf-8")
        out.vector(field, len(text), text + b"\0", 1)
        out.vector(field + 4, array.ndim, struct.pack(f"<{array.ndim}q", *array.shape), 8)
        little = array if array.dtype.kind == "V" else array.astype(array.dtype.newbyteorder("<"), copy=False)
        out.vector(field + 12, array.nbytes, little.tobytes(), 8)
    return bytes(out.data)


class _Reader:
    """Reads a flatbuffer; whatever lies outside it raises ValueError."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    def number(self, kind: str, at: int) -> int:
        if not 0 <= at <= len(self.data) - struct.calcsize(kind):
            raise ValueError(f"an offset leads outside the {len(self.data)} bytes")
        return int(struct.unpack_from(kind, self.data, at)[0])

    def field(self, table: int, index: int) -> int | None:
        """Where field `index` of a table lies, None where it is left out."""
        vtable = table - self.number("<i", table)
        if 4 + 2 * index + 2 > self.number("<H", vtable):
            return None
        offset = self.number("<H", vtable + 4 + 2 * index)
        return table + offset if offset else None

    def integer(self, table: int, index: int) -> int:
        at = self.field(table, index)
        return 0 if at is None else self.number("<i", at)

    def vector(self, table: int, index: int, size: int) -> tuple[int, int]:
        """Where the elements of a vector begin, and how many there are."""
        at = self.field(table, index)
        if at is None:
            return 0, 0
        start = at + self.number("<I", at)
        count = self.number("<I", start)
        if count * size > len(self.data) - start - 4:
            raise ValueError(f"a vector of {count} elements leads outside the {len(self.data)} bytes")
        return start + 4, count


def _read(data: bytes) -> CoreAdapter:
    from ..ir import ElementType

    adapter = CoreAdapter()
    try:
        if data[4:8] != _IDENTIFIER:
            raise ValueError("it does not bear the identifier TORT")
        reader = _Reader(data)
        root = reader.number("<I", 0)
        adapter.format_version = reader.integer(root, 0)
        if adapter.format_version != _FORMAT:
            raise ValueError(f"its format version is {adapter.format_version}, expected {_FORMAT}")
        adapter.adapter_version, adapter.model_version = reader.integer(root, 1), reader.integer(root, 2)
        start, count = reader.vector(root, 3, 4)
        left = len(data)
        for i in range(count):
            table = start + 4 * i + reader.number("<I", start + 4 * i)
            at, length = reader.vector(table, 0, 1)
            name = data[at:at + length].decode("utf-8")
            at, rank = reader.vector(table, 1, 8)
            shape = struct.unpack_from(f"<{rank}q", data, at)
            kind = ElementType(reader.integer(table, 2))
            at, size = reader.vector(table, 3, 1)
            elements = int(np.prod(shape, dtype=object))
            if any(d < 0 for d in shape) or elements * kind.numpy.itemsize != size or kind.numpy.hasobject:
                raise ValueError(f"parameter {name!r} of {kind.text}{list(shape)} has {size} bytes")
            left -= size
            if left < 0 or name in adapter.parameters:
                raise ValueError(f"parameter {name!r} is there twice, or shares its bytes with others")
            found = np.frombuffer(data, kind.numpy, elements, at)
            adapter.parameters[name] = CoreValue._make(found.reshape(shape).copy())
    except (ValueError, struct.error) as error:
        raise RuntimeError(f"the file is no adapter: {error}") from error
    return adapter
