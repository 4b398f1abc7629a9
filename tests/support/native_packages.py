"""The runtime in C, compiled here and called through ctypes: models opened from packages, and run."""

from __future__ import annotations

import ctypes
import functools
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import orthrus.native
from orthrus.ir import ElementType
from orthrus.memory import take

SOURCES = Path(orthrus.native.__file__).parent / "runtime"
STRICT = ("-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic")

OK, INVALID, NO_MEMORY, DAMAGED, UNSUPPORTED_CPU, SHAPE, BAD_INDEX, OUTSIDE, STOPPED, BUSY = range(10)


class CPieces(ctypes.Structure):
    """`orthrus_pieces`."""

    _fields_ = (("package", ctypes.c_void_p), ("size", ctypes.c_size_t), ("code", ctypes.c_void_p),
                ("constants", ctypes.c_void_p), ("verify", ctypes.c_int))


class COptions(ctypes.Structure):
    """`orthrus_options`."""

    _fields_ = (("size", ctypes.c_size_t), ("threads", ctypes.c_int), ("huge_pages", ctypes.c_int),
                ("allocate", ctypes.c_void_p), ("release", ctypes.c_void_p), ("user", ctypes.c_void_p))


class CValue(ctypes.Structure):
    """`orthrus_value`."""

    _fields_ = (("name", ctypes.c_char_p), ("type", ctypes.c_int), ("rank", ctypes.c_size_t),
                ("shape", ctypes.POINTER(ctypes.c_int64)), ("names", ctypes.POINTER(ctypes.c_char_p)))


def compiler() -> str | None:
    """A C compiler, where there is one."""
    return shutil.which("cc")


def compiled(*given: str | Path, out: Path) -> Path:
    """What `cc` makes of these arguments, beside the strict ones, at `out`."""
    command = [compiler() or "cc", *STRICT, "-O2", "-g", *map(str, given), "-o", str(out), "-lpthread"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    return out


@functools.cache
def runtime() -> Any:
    """The runtime as a shared library of this process."""
    folder = Path(tempfile.mkdtemp(prefix="orthrus-runtime-"))
    made = ctypes.CDLL(str(compiled("-shared", "-fPIC", SOURCES / "runtime.c", out=folder / "runtime.so")))
    shutil.rmtree(folder)
    value, sizes = ctypes.POINTER(CValue), ctypes.POINTER(ctypes.c_int64)
    kinds: dict[Any, str] = {
        ctypes.c_char_p: "last_error target metadata status_text version",
        ctypes.c_size_t: "inputs outputs targets type_size chosen_target",
        value: "input output", sizes: "input_shape output_shape", None: "model_close destroy"}
    for gives, names in kinds.items():
        for name in names.split():
            getattr(made, f"orthrus_{name}").restype = gives
    return made


class Refused(Exception):
    """A status that is not 0: `args[0]`, and its text."""

    def __init__(self, status: int) -> None:
        super().__init__(status, runtime().orthrus_last_error().decode(errors="replace"))
        self.status = status


def checked(status: int) -> None:
    if status:
        raise Refused(status)


class CModel:
    """A model opened by the runtime in C."""

    def __init__(self, data: bytes, verify: bool = True, options: COptions | None = None) -> None:
        self.kept = take(max(len(data), 1))
        self.kept[:len(data)] = np.frombuffer(data, np.uint8)
        self.address = ctypes.c_void_p()
        pieces = CPieces(self.kept.ctypes.data, len(data), None, None, verify)
        checked(runtime().orthrus_model_open(ctypes.byref(pieces), options and ctypes.byref(options),
                                             ctypes.byref(self.address)))

    def values(self) -> tuple[list[CValue], list[CValue]]:
        """Its inputs and outputs."""
        lib = runtime()
        return ([lib.orthrus_input(self.address, ctypes.c_size_t(i)).contents
                 for i in range(lib.orthrus_inputs(self.address))],
                [lib.orthrus_output(self.address, ctypes.c_size_t(i)).contents
                 for i in range(lib.orthrus_outputs(self.address))])

    def close(self) -> None:
        runtime().orthrus_model_close(self.address)


class CContext:
    """A context: called with a model's inputs, in order, it gives its outputs."""

    def __init__(self, model: CModel, threads: int = 1, **options: Any) -> None:
        self.model = model
        self.inputs, self.outputs = model.values()
        self.address = ctypes.c_void_p()
        given = COptions(ctypes.sizeof(COptions), threads, **options)
        checked(runtime().orthrus_create(model.address, ctypes.byref(given), ctypes.byref(self.address)))

    def reshape(self, shapes: Sequence[Sequence[int]]) -> None:
        rows = [(ctypes.c_int64 * len(shape))(*shape) for shape in shapes]
        addresses = (ctypes.c_void_p * len(rows))(*map(ctypes.addressof, rows))
        checked(runtime().orthrus_reshape(self.address, addresses))

    def shape(self, index: int) -> tuple[int, ...]:
        """Of an output of the next run."""
        found = runtime().orthrus_output_shape(self.address, ctypes.c_size_t(index))
        return tuple(found[:self.outputs[index].rank])

    def shapes(self) -> list[tuple[int, ...]]:
        """Of the inputs and outputs of the next run."""
        sizes = [runtime().orthrus_input_shape(self.address, ctypes.c_size_t(i))[:each.rank]
                 for i, each in enumerate(self.inputs)]
        return [*map(tuple, sizes), *(self.shape(i) for i in range(len(self.outputs)))]

    def __call__(self, *arrays: np.ndarray) -> list[np.ndarray]:
        given = [np.ascontiguousarray(a) for a in arrays]
        self.reshape([a.shape for a in arrays])
        made = [np.empty(self.shape(i), ElementType(v.type).numpy) for i, v in enumerate(self.outputs)]
        checked(self.run(given, made))
        return made

    def run(self, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> int:
        """A run with arrays as they are; the status."""
        status: int = runtime().orthrus_run(
            self.address, (ctypes.c_void_p * len(inputs))(*(a.ctypes.data for a in inputs)),
            (ctypes.c_void_p * len(outputs))(*(a.ctypes.data for a in outputs)))
        return status

    def destroy(self) -> None:
        runtime().orthrus_destroy(self.address)
