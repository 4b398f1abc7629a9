"""onnxruntime's C interface from Python's ctypes, by the table: any library of it, function by name."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from ctypes import (
    POINTER,
    byref,
    c_bool,
    c_char_p,
    c_double,
    c_float,
    c_int,
    c_int64,
    c_size_t,
    c_uint32,
    c_void_p,
)
from pathlib import Path
from typing import Any

import numpy as np

from orthrus.native.dropin import table
from orthrus.native.dropin.table import Function

SCALARS: dict[str, Any] = {
    "size_t": c_size_t,
    "int64_t": c_int64,
    "uint64_t": ctypes.c_uint64,
    "int": c_int,
    "uint32_t": c_uint32,
    "int32_t": ctypes.c_int32,
    "bool": c_bool,
    "float": c_float,
    "double": c_double,
    "void": None,
    "const char*": c_char_p,
    "const ORTCHAR_T*": c_char_p,
}
TYPES = {
    np.dtype(np.float32): 1,
    np.dtype(np.uint8): 2,
    np.dtype(np.int32): 6,
    np.dtype(np.int64): 7,
    np.dtype(bool): 9,
    np.dtype(np.float64): 11,
}
VERSION = 31


class Refused(Exception):
    """A status."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code}: {text}")
        self.code, self.text = code, text


class Interface:
    """A library's tables. `call(NAME, ...)` raises Refused for a status."""

    def __init__(self, library: Path) -> None:
        interface = table.read()
        self._enums, self._keep = set(interface.enums), list[Any]()
        loaded = ctypes.CDLL(str(library))
        loaded.OrtGetApiBase.restype = POINTER(c_void_p)
        get = ctypes.CFUNCTYPE(c_void_p, c_uint32)(loaded.OrtGetApiBase()[0])
        self._functions: dict[str, Any] = {}
        self._take(get(VERSION), interface.tables["OrtApi"])
        for name in ("ModelEditorApi", "CompileApi", "InteropApi"):
            self._take(self.call(f"Get{name}"), interface.tables[f"Ort{name}"])
        self.env = self.made("CreateEnv", 4, b"tests")
        self.memory = self.made("CreateCpuMemoryInfo", 0, 0)
        self.allocator = self.made("GetAllocatorWithDefaultOptions")

    def _take(self, address: int, functions: Sequence[Function]) -> None:
        slots = ctypes.cast(address, POINTER(c_void_p))
        for i, each in enumerate(functions):
            kinds = [self._kind(p.kind) for p in each.parameters]
            kind = c_void_p if each.returns == table.STATUS else self._kind(each.returns)
            self._functions[each.name] = (
                ctypes.CFUNCTYPE(kind, *kinds)(slots[i]),
                each.returns == table.STATUS,
            )

    def _kind(self, text: str) -> Any:
        return c_int if text in self._enums else SCALARS.get(text, c_void_p)

    def call(self, name: str, *arguments: Any) -> Any:
        function, answers = self._functions[name]
        made = function(*arguments)
        if not answers or made is None:
            return made
        code, text = self.call("GetErrorCode", made), self.call("GetErrorMessage", made).decode()
        self.call("ReleaseStatus", made)
        raise Refused(code, text)

    def made(self, name: str, *arguments: Any, kind: Any = c_void_p) -> Any:
        """What a function puts where its last parameter points."""
        out = kind()
        self.call(name, *arguments, byref(out))
        return out.value

    def kept(self, value: Any) -> Any:
        self._keep.append(value)
        return value

    def array(self, values: Sequence[Any], kind: Any = c_void_p) -> Any:
        return self.kept((kind * max(len(values), 1))(*values))

    def tensor(self, array: np.ndarray) -> int:
        """Over the array's memory."""
        array = self.kept(np.ascontiguousarray(array))
        dims = self.array(array.shape, c_int64)
        value: int = self.made(
            "CreateTensorWithDataAsOrtValue",
            self.memory,
            array.ctypes.data,
            array.nbytes,
            dims,
            array.ndim,
            TYPES[array.dtype],
        )
        return value

    def own_tensor(self, array: np.ndarray) -> int:
        """A copy in memory of the library's allocator."""
        array = np.ascontiguousarray(array)
        dims = self.array(array.shape, c_int64)
        value: int = self.made("CreateTensorAsOrtValue", self.allocator, dims, array.ndim, TYPES[array.dtype])
        ctypes.memmove(self.made("GetTensorMutableData", value), array.ctypes.data, array.nbytes)
        return value

    def numbers(self, value: int) -> np.ndarray:
        """A copy of a tensor's elements."""
        kind, dims, rank = c_int(), POINTER(c_int64)(), c_size_t()
        self.call("GetTensorElementTypeAndShapeDataReference", value, byref(kind), byref(dims), byref(rank))
        shape = [dims[i] for i in range(rank.value)]
        dtype = next(each for each, number in TYPES.items() if number == kind.value)
        data = self.made("GetTensorMutableData", value)
        count = int(np.prod(shape, dtype=np.int64))
        return np.frombuffer(ctypes.string_at(data, count * dtype.itemsize), dtype).reshape(shape).copy()

    def run(
        self, session: int, feeds: Mapping[str, np.ndarray], names: Sequence[str], options: int | None = None
    ) -> list[np.ndarray]:
        outputs = self.array([None] * len(names))
        self.call(
            "Run",
            session,
            options,
            self.array([n.encode() for n in feeds], c_char_p),
            self.array([self.tensor(each) for each in feeds.values()]),
            len(feeds),
            self.array([n.encode() for n in names], c_char_p),
            len(names),
            outputs,
        )
        return [self.numbers(each) for each in outputs]
