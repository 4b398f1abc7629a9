"""A whole run in generated code: from a dict of arrays to a list of arrays, where nothing is unusual.

A `Door` has a builtin function `run(names, feeds)` and knows one target: a program (`entry.py`) with the
names, types and shapes of its arrays. Where the feeds are exactly those, C-contiguous arrays of numpy's own
class in a plain dict, the function makes the results, enters the program and gives a list. Everything else,
errors included, is None, and has changed nothing: whoever called does it the long way.

A target serves one run at a time; a second one at the same moment gets None. What the function reads of
arrays lies where numpy has kept it since its first release, which is looked at once, and the functions of
numpy's C interface that it calls have had their numbers as long.
"""

from __future__ import annotations

import ctypes
import functools
import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ... import knobs
from ...memory import LINE
from ...records import dataclass
from ..machines.detect import host
from ..object.library import functions
from . import entry
from .cells import ArrayField, DoorCell, RowCell, RunCell, TargetCell
from .units import Quick

_HEADER = object.__basicsize__
_FASTCALL = 0x80
_EMPTY, _VIEW, _NEW, _BASE = 184, 137, 94, 282
"""The numbers of `PyArray_Empty`, `PyArray_View`, `PyArray_NewFromDescr` and `PyArray_SetBaseObject` in
numpy's C interface."""
_AT_LINE = 1 << 12
"""Bytes of a result from which on it begins at a cache line: stores across two lines are slow."""


class _Cells(np.ndarray):
    """Cells with an address. `kept`: what they point to."""

    kept: Any


@dataclass(eq=False)
class FastRun:
    """What a target is made of: a program block whose arrays are `inputs` and then `outputs`, (shape, type)
    each; the cell that is 0 after a good run; and what to call once the target has no use for it."""

    block: entry.StepBlock
    status: np.ndarray
    inputs: list[tuple[tuple[int, ...], np.dtype[Any]]]
    outputs: list[tuple[tuple[int, ...], np.dtype[Any]]]
    give: Callable[[], None]


class Door:
    """`run(names, feeds)` gives the results as a list, or None where it does not serve. `names`: None for all
    outputs, which are called `outputs`; `inputs`: the names of a program's inputs, in its order; `places`:
    where each of its outputs stands among the results. Cells change under the interpreter's lock only."""

    def __init__(self, inputs: Sequence[str], outputs: Sequence[str], places: Sequence[int]) -> None:
        self.inputs, self.outputs = [sys.intern(str(name)) for name in inputs], list(outputs)
        self.places = places
        self._cells = np.zeros(DoorCell.END, np.int64).view(_Cells)
        self._cells[DoorCell.PROCESS] = _process()
        create = ctypes.pythonapi.PyCFunction_NewEx
        create.restype = ctypes.py_object
        create.argtypes = (ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)
        self.run: Callable[[Any, Any], list[Any] | None] = create(
            _process() + 8 * RunCell.DEFINITION, self._cells, None)

    def open(self, program: FastRun) -> None:
        """Serve runs of `program` from now on, and of no other."""
        inputs, outputs = program.inputs, program.outputs
        dims = [d for shape, _ in (*inputs, *outputs) for d in shape]
        count = len(inputs) + len(outputs)
        rows = TargetCell.END
        arrays = rows + RowCell.END * count
        at = arrays + count
        made = np.zeros(at + len(dims), np.int64).view(_Cells)
        made[at:] = dims
        start = made.ctypes.data
        made[:rows] = (0, id(program.block), program.status.ctypes.data, len(inputs), len(outputs),
                       start + 8 * rows, start + 8 * arrays, id(self.outputs))
        marks = [*map(id, self.inputs), *self.places]
        for i, ((shape, dtype), mark) in enumerate(zip((*inputs, *outputs), marks, strict=True)):
            row = rows + RowCell.END * i
            size = math.prod(shape) * dtype.itemsize
            room = size + LINE if i >= len(inputs) and size >= _AT_LINE else 0
            made[row:row + RowCell.END] = (mark, id(dtype), len(shape), start + 8 * at, room)
            at += len(shape)
        made.kept = (program, self.inputs, self.outputs)
        self._point(made)

    def close(self) -> None:
        """Serve nothing from now on."""
        self._point(None)

    def _point(self, target: _Cells | None) -> None:
        before: _Cells | None = getattr(self._cells, "kept", None)
        self._cells[DoorCell.TARGET] = 0 if target is None else id(target)
        self._cells.kept = target
        # a run that still has the target keeps it alive by itself, and nobody else may have its memory
        if before is not None and not before[TargetCell.BUSY]:
            before.kept[0].give()


@functools.cache
def available() -> bool:
    """Whether doors can be made: arrays look as generated code expects, and one lock guards all objects."""
    if not entry.direct() or "t" in getattr(sys, "abiflags", ""):
        return False
    base = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    for array in (base, base[1:], base.T, np.zeros((0, 2)), np.array(1, np.int8)):
        fields = (ctypes.c_int64 * ArrayField.END).from_address(id(array) + _HEADER)
        shape = (ctypes.c_int64 * array.ndim).from_address(fields[ArrayField.DIMS])
        if ((fields[ArrayField.RANK] & 0xFFFFFFFF, tuple(shape)) != (array.ndim, array.shape)
                or fields[ArrayField.DATA] != array.ctypes.data or fields[ArrayField.DTYPE] != id(array.dtype)
                or fields[ArrayField.FLAGS] & 0xFFFFFFFF != array.flags.num):
            return False
    return _numpy(_EMPTY) != 0


def _numpy(number: int) -> int:
    """Address of a function of numpy's C interface, 0 where numpy does not show that."""
    capsule = getattr(getattr(getattr(np, "_core", None), "multiarray", None), "_ARRAY_API", None)
    if capsule is None:
        return 0
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    table = pointer(capsule, None)
    return ctypes.c_void_p.from_address(table + 8 * number).value or 0


@functools.cache
def _process() -> int:
    """Address of the cells of `RunCell`, which outlive the interpreter."""
    machine = host()
    assert machine is not None
    at, cells = entry.process_cells(RunCell.END, {
        RunCell.INCREF: "Py_IncRef", RunCell.DECREF: "Py_DecRef", RunCell.LIST: "PyList_New",
        RunCell.SET: "PyList_SetItem", RunCell.SIZE: "PyDict_Size",
        RunCell.GET: "PyDict_GetItemWithError", RunCell.EQUAL: "PyObject_RichCompareBool",
        RunCell.CLEAR: "PyErr_Clear"})
    cells[RunCell.EMPTY], cells[RunCell.VIEW] = _numpy(_EMPTY), _numpy(_VIEW)
    cells[RunCell.NEW], cells[RunCell.BASE] = _numpy(_NEW), _numpy(_BASE)
    cells[RunCell.ENTER] = entry.code()
    things = {RunCell.NONE: None, RunCell.ARRAY: np.ndarray, RunCell.DICT: dict, RunCell.KINDS: list,
              RunCell.ZERO: 0, RunCell.VALUE: _VALUE, RunCell.DEBUG: vars(knobs.DEBUG),
              RunCell.CHECK: vars(knobs.CHECK), RunCell.BYTE: _BYTE}
    for index, thing in things.items():
        cells[index] = id(thing)
    ctypes.memmove(at + 8 * RunCell.NAME, b"quick", 6)
    code = functions([Quick(_HEADER)], machine)[0]["quick"]
    for i, value in enumerate((at + 8 * RunCell.NAME, code, _FASTCALL, 0)):
        cells[RunCell.DEFINITION + i] = value
    return at


_VALUE, _BYTE = sys.intern("value"), np.dtype(np.uint8)
