"""A compiled model, run without Orthrus: needs numpy and the library that lies beside this file.

    model = Model()
    scores, = model.run({"image": image})
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

NAME = Path(__file__).parent.name

_TYPES = {1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64", 9: "bool",
          10: "float16", 11: "float64", 12: "uint32", 13: "uint64", 16: "uint16"}
"""numpy's types by ONNX's numbers; bfloat16 is its bits."""
_Sizes = ctypes.POINTER(ctypes.c_int64)


class _Options(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("threads", ctypes.c_int), ("huge_pages", ctypes.c_int),
                ("allocate", ctypes.c_void_p), ("release", ctypes.c_void_p), ("user", ctypes.c_void_p)]


class _Value(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("type", ctypes.c_int), ("rank", ctypes.c_size_t),
                ("shape", _Sizes), ("names", ctypes.POINTER(ctypes.c_char_p))]


class Error(RuntimeError):
    """What the library says is wrong; `status` is its number in orthrus.h."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Value(NamedTuple):
    """An input or output: a size that may differ between runs is its name, or None."""

    name: str
    dtype: np.dtype
    shape: tuple[int | str | None, ...]


class _Library:
    """The functions of the library, by their names without the model's."""

    def __init__(self) -> None:
        library = ctypes.CDLL(str(Path(__file__).parent / f"lib{NAME}.so"))
        pointer, pointers = ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p)

        def function(name: str, answer: Any, *given: Any) -> Any:
            found = getattr(library, f"{NAME}_{name}")
            found.restype, found.argtypes = answer, given
            return found
        options = ctypes.POINTER(_Options)
        self.open = function("open", ctypes.c_int, ctypes.c_char_p, options, pointers)
        self.close = function("close", None, pointer)
        self.create = function("create", ctypes.c_int, pointer, options, pointers)
        self.destroy = function("destroy", None, pointer)
        self.inputs = function("inputs", ctypes.c_size_t, pointer)
        self.outputs = function("outputs", ctypes.c_size_t, pointer)
        self.input = function("input", ctypes.POINTER(_Value), pointer, ctypes.c_size_t)
        self.output = function("output", ctypes.POINTER(_Value), pointer, ctypes.c_size_t)
        self.reshape = function("reshape", ctypes.c_int, pointer, ctypes.POINTER(_Sizes))
        self.output_shape = function("output_shape", _Sizes, pointer, ctypes.c_size_t)
        self.run = function("run", ctypes.c_int, pointer, pointers, pointers)
        self.last_error = function("last_error", ctypes.c_char_p)
        self.status_text = function("status_text", ctypes.c_char_p, ctypes.c_int)

    def check(self, status: int) -> None:
        if status:
            raise Error(status, f"{self.status_text(status).decode()}: {self.last_error().decode()}")


def _described(value: Any) -> Value:
    shape = [value.shape[i] if value.shape[i] >= 0 else (value.names[i] or b"").decode() or None
             for i in range(value.rank)]
    return Value(value.name.decode(), np.dtype(_TYPES.get(value.type, "V1")), tuple(shape))


class Model:
    """The model, for any number of threads at the same time. `threads`: those that one run may use, 0 for as
    many as this process has cores. Raises Error where it was not compiled for this processor."""

    def __init__(self, threads: int = 0) -> None:
        self._library = library = _Library()
        self._options = _Options(ctypes.sizeof(_Options), threads, 0, None, None, None)
        self._model = ctypes.c_void_p()
        self._idle: list[ctypes.c_void_p] = []
        self._lock = threading.Lock()
        library.check(library.open(None, ctypes.byref(self._options), ctypes.byref(self._model)))
        self.inputs = [_described(library.input(self._model, i).contents)
                       for i in range(library.inputs(self._model))]
        self.outputs = [_described(library.output(self._model, i).contents)
                        for i in range(library.outputs(self._model))]

    def run(self, feeds: Mapping[str, Any]) -> list[np.ndarray]:
        """The outputs for arrays by the inputs' names. Raises Error for shapes that the model was not
        compiled for, KeyError for an input that is missing, TypeError for an array of another type."""
        given = [self._array(value, feeds[value.name]) for value in self.inputs]
        library, context = self._library, self._context()
        try:
            shapes = [(ctypes.c_int64 * max(a.ndim, 1))(*a.shape) for a in given]
            rows = (_Sizes * max(len(given), 1))(*(ctypes.cast(shape, _Sizes) for shape in shapes))
            library.check(library.reshape(context, rows))
            made = [np.empty([library.output_shape(context, i)[d] for d in range(len(value.shape))],
                             value.dtype) for i, value in enumerate(self.outputs)]
            library.check(library.run(context, _addresses(given), _addresses(made)))
        finally:
            with self._lock:
                self._idle.append(context)
        return made

    def _array(self, value: Value, given: Any) -> np.ndarray:
        array = np.asarray(given)
        if array.dtype != value.dtype:
            raise TypeError(f"{value.name}: {array.dtype} is given, {value.dtype} is expected")
        if array.ndim != len(value.shape):
            raise Error(5, f"{value.name}: {array.ndim} dimensions are given, {len(value.shape)} expected")
        return np.ascontiguousarray(array).reshape(array.shape)

    def _context(self) -> ctypes.c_void_p:
        with self._lock:
            if self._idle:
                return self._idle.pop()
        made = ctypes.c_void_p()
        library = self._library
        library.check(library.create(self._model, ctypes.byref(self._options), ctypes.byref(made)))
        return made

    def close(self) -> None:
        """Give its memory back; it must not be running."""
        while self._idle:
            self._library.destroy(self._idle.pop())
        self._library.close(self._model)
        self._model = ctypes.c_void_p()

    def __del__(self) -> None:
        if getattr(self, "_model", None):
            self.close()


def _addresses(arrays: list[np.ndarray]) -> Any:
    return (ctypes.c_void_p * max(len(arrays), 1))(*(a.ctypes.data for a in arrays))
