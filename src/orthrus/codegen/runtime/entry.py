"""Entering a program from Python: a builtin function whose body is generated code.

`make(block)` gives a function of numpy arrays that puts their addresses where the program's steps look for
them and runs it (`entering.py`). Such a call costs some ten nanoseconds, where ctypes needs a microsecond.
The address is read from the array object itself, at a place numpy has kept it at since its first release;
should a check find something else there, the same is done through ctypes.

A program serves one call at a time. The interpreter's lock is given back while it runs, unless it is so small
that this is not worth it.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..machines.detect import host
from ..object.library import functions
from .cells import STEP, Cell, EntryCell
from .threads import Pool, pool, runtime
from .units import Entry

_HEADER = object.__basicsize__
"""Bytes of an object before its own fields; its type is the last of them."""
_FASTCALL = 0x80
_REFUSAL = b"expected arrays, as many as the program takes"


class StepBlock(np.ndarray):
    """A program block: an int64 array of `Cell`s. `kept`: what its addresses point to."""

    kept: tuple[Any, ...]
    pool: Pool | None


def block(table: np.ndarray, arrays: int = 0, patches: np.ndarray | None = None, *, threads: int = 1,
          scratch: int = 0, scratch_size: int = 0, hold: bool = False, keep: Sequence[Any] = (),
          using: Pool | None = None) -> StepBlock:
    """A program block.

    `table`: int64 [steps, 4], rows of a kernel's address, its arguments' address, items, grain. `arrays`: how
    many the function takes; `patches`: int64 [n, 3], rows of an array's index, the address of a cell that
    gets the array's address, and bytes to add to it. `threads`: at most, as far as the pool goes; `scratch`:
    address of `scratch_size` bytes per thread, a multiple of 64. `hold`: keep the interpreter's lock. `keep`:
    whatever owns the memory those addresses point to; table and patches are kept anyway.
    """
    rows = np.zeros((0, 3), np.int64) if patches is None else patches
    for each, width in ((table, STEP), (rows, 3)):
        if each.dtype != np.int64 or each.shape[1:] != (width,) or not each.flags.c_contiguous:
            raise ValueError(f"expected int64 [n, {width}] in C order, not {each.dtype} {each.shape}")
    if len(rows) and not 0 <= rows[:, 0].min() <= rows[:, 0].max() < arrays:
        raise ValueError(f"a patch reads an array that is not among the {arrays}")
    if bool((table[:, 3] < 1).any()):
        raise ValueError("a grain is at least 1")
    made = np.zeros(Cell.END, np.int64).view(StepBlock)
    made.kept, made.pool = (table, rows, *keep), None
    made[Cell.TABLE], made[Cell.STEPS] = table.ctypes.data, len(table)
    made[Cell.SCRATCH], made[Cell.SCRATCH_SIZE] = scratch, scratch_size
    made[Cell.STOP] = made.ctypes.data + 8 * Cell.STOPPED
    made[Cell.PROCESS] = _process()
    made[Cell.ARRAYS], made[Cell.HOLD] = arrays, hold
    made[Cell.PATCHES], made[Cell.PATCH_COUNT] = rows.ctypes.data, len(rows)
    if threads > 1 and bool((table[:, 2] > table[:, 3]).any()):
        made.pool = using or pool()
        made[Cell.THREADS] = min(threads, made.pool.capacity)
        made[Cell.POOL], made[Cell.ALARM] = made.pool.address, id(made.pool.alarm)
    return made


def make(program: StepBlock) -> Callable[..., None]:
    """A function of `program`'s arrays, C-contiguous and of type `np.ndarray` itself, that runs it. Raises
    TypeError for another number of arrays or another type. It ends early once `program[Cell.STOPPED]` is not
    0, which stays so; `program[Cell.DONE]` is how many steps it did."""
    if not direct():
        return functools.partial(_through_ctypes, program)
    create = ctypes.pythonapi.PyCFunction_NewEx
    create.restype, create.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)
    made: Callable[..., None] = create(_process() + 8 * EntryCell.DEFINITION, program, None)
    return made


def code() -> int:
    """Address of what such a function runs, `run(block, arrays, count)`: a program block, the address of a
    row of arrays, and how many. Gives None, or 0 with an exception set."""
    return int(ctypes.c_int64.from_address(_process() + 8 * (EntryCell.DEFINITION + 1)).value)


@functools.cache
def direct() -> bool:
    """Whether array objects look as generated code expects: their type last in the header, their data
    behind."""
    if sys.implementation.name != "cpython":
        return False
    base = np.arange(24, dtype=np.float32)
    for array in (base, base[3:], np.zeros((2, 0)), base.view(StepBlock)):
        kind, data = (ctypes.c_ssize_t * 2).from_address(id(array) + _HEADER - 8)
        if kind != id(type(array)) or data != array.ctypes.data:
            return False
    return True


def address(array: np.ndarray) -> int:
    """Where the elements of an array of type `np.ndarray` itself begin, where array objects look as generated
    code expects (`direct`): a tenth of the time that the array takes to say so."""
    return _address(id(array) + _HEADER).value


_address = ctypes.c_int64.from_address


def _through_ctypes(program: StepBlock, *arrays: np.ndarray) -> None:
    if len(arrays) != program[Cell.ARRAYS] or any(type(array) is not np.ndarray for array in arrays):
        raise TypeError(_REFUSAL.decode())
    for index, at, offset in program.kept[1].tolist():
        ctypes.c_int64.from_address(at).value = arrays[index].ctypes.data + offset
    if program.pool is not None:
        program.pool.summon(int(program[Cell.THREADS]))
    _drive()(program.ctypes.data)


@functools.cache
def _drive() -> Callable[[int], None]:
    return ctypes.CFUNCTYPE(None, ctypes.c_int64)(runtime()["drive"])


def process_cells(count: int, named: Mapping[int, str]) -> tuple[int, Any]:
    """Cells that outlive the interpreter, and their address; those of `named` are addresses of Python's
    functions."""
    from ..machines.executable import pages

    at = pages(8 * count)
    cells = (ctypes.c_int64 * count).from_address(at)
    for index, name in named.items():
        cells[index] = ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value or 0
    return at, cells


@functools.cache
def _process() -> int:
    """Address of the cells of `EntryCell`, which outlive the interpreter: a thread may still be in a program
    then."""
    machine = host()
    assert machine is not None
    at, cells = process_cells(EntryCell.END, {
        EntryCell.INCREF: "Py_IncRef", EntryCell.DECREF: "Py_DecRef", EntryCell.SAVE: "PyEval_SaveThread",
        EntryCell.RESTORE: "PyEval_RestoreThread", EntryCell.CALL: "PyObject_CallNoArgs",
        EntryCell.REFUSE: "PyErr_SetString"})
    cells[EntryCell.ARRAY], cells[EntryCell.NONE] = id(np.ndarray), id(None)
    cells[EntryCell.TYPE_ERROR] = id(TypeError)
    cells[EntryCell.DRIVE] = runtime()["drive"]
    texts = at + 8 * EntryCell.NAME
    ctypes.memmove(texts, b"run\0" + _REFUSAL, 5 + len(_REFUSAL))
    cells[EntryCell.TEXT] = texts + 4
    # CPython's PyMethodDef: name, code, flags, documentation
    code = functions([Entry(_HEADER)], machine)[0]["run"]
    for i, value in enumerate((texts, code, _FASTCALL, 0)):
        cells[EntryCell.DEFINITION + i] = value
    return at
