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
import sys
import sysconfig
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

from ... import knobs
from ..machines.detect import host
from ..machines.machine import Machine
from ..object.library import functions
from ..write.emit import I32, I64, PTR, Function, Module, V
from . import entry
from .scheduler import cell, put

_HEADER = object.__basicsize__
_FASTCALL = 0x80
_EMPTY, _VIEW = 184, 137
"""The numbers of `PyArray_Empty` and `PyArray_View` in numpy's C interface."""
_FLAGS = 0x101
"""numpy's flags of an array that is C-contiguous and aligned."""


class _Field(IntEnum):
    """What an array object holds behind its header, by 8 bytes."""

    DATA, RANK, DIMS, STRIDES, BASE, DTYPE, FLAGS = range(7)


class _Process(IntEnum):
    """Cells of what generated code has to know of this process: functions, objects, and the dicts of the
    switches that have to be 0."""

    INCREF, DECREF, LIST, SET, SIZE, GET, EQUAL, CLEAR, EMPTY, VIEW, ENTER = range(11)
    NONE, ARRAY, DICT, KINDS, ZERO, VALUE, DEBUG, CHECK = range(11, 19)
    DEFINITION, NAME, END = 19, 23, 25


class _Door(IntEnum):
    """Cells of a door: the target, an object or 0."""

    TARGET, PROCESS = range(2)


class _Cell(IntEnum):
    """Cells of a target. `busy`: a run has it; `block`: the program block, an object; `status`: address of a
    cell that is 0 after a good run; `rows`: one for each array, inputs first; `arrays`: objects of the run;
    `names`: list of the results' names."""

    BUSY, BLOCK, STATUS, INPUTS, OUTPUTS, ROWS, ARRAYS, NAMES = range(8)


class _Row(IntEnum):
    """Cells of a row: the input's name, or the output's place in the list of results; type, rank and the
    address of the shape."""

    NAME, DTYPE, RANK, DIMS = range(4)
    END = 4


class Quick(NamedTuple):
    """The module with `quick(self, args, count)`, where `self` is the array of a door's cells. As a unit of
    the library."""

    header: int
    name: str = "quick"

    @property
    def origin(self) -> str:
        return __file__

    def text(self, machine: Machine) -> str:
        module = Module(machine.triple)
        collect = _collect(module, self.header)
        f = module.function("quick", [(I64, name) for name in ("self", "args", "count")], I64)
        door, args, count = f.params
        door = cell(f, door + self.header, 0)
        process, holder = cell(f, door, _Door.PROCESS), cell(f, door, _Door.TARGET)
        none = cell(f, process, _Process.NONE)

        def decline() -> None:
            _call(f, process, _Process.INCREF, none)
            entry.leave(f, none)
        f.when(holder.eq(0) | count.ne(2), decline)
        target = cell(f, holder + self.header, 0)
        loud = f.const("i1", False)
        for switch in (_Process.DEBUG, _Process.CHECK):
            values, key = cell(f, process, switch), cell(f, process, _Process.VALUE)
            value = _call(f, process, _Process.GET, values, key)
            loud = loud | value.ne(cell(f, process, _Process.ZERO))
        f.when(cell(f, target, _Cell.BUSY).ne(0) | loud, decline)
        put(f, f.i64(1), target, _Cell.BUSY)
        _call(f, process, _Process.INCREF, holder)
        arrays, inputs = cell(f, target, _Cell.ARRAYS), cell(f, target, _Cell.INPUTS)
        results = f.call(collect, [process, target, cell(f, args, 0), cell(f, args, 1)])

        def enter() -> V:
            put(f, f.i64(0), cell(f, target, _Cell.STATUS), 0)
            answer = _call(f, process, _Process.ENTER, cell(f, target, _Cell.BLOCK), arrays,
                           inputs + cell(f, target, _Cell.OUTPUTS))
            f.when(answer.ne(0), lambda: _drop(f, process, answer))
            return answer
        (answer,) = f.when(results.ne(0), enter, lambda: none)
        status = cell(f, cell(f, target, _Cell.STATUS), 0)

        def let_go(i: V) -> None:
            array = cell(f, arrays + i * 8, 0)
            f.when(array.ne(0), lambda: _drop(f, process, array))
            put(f, f.i64(0), arrays + i * 8, 0)
        f.loop(0, inputs, 1, [], let_go)
        put(f, f.i64(0), target, _Cell.BUSY)
        _drop(f, process, holder)
        good = results.ne(0) & answer.ne(0) & status.eq(0)
        f.when(good, lambda: entry.leave(f, results))
        f.when(results.ne(0), lambda: _drop(f, process, results))
        f.when(answer.eq(0), lambda: entry.leave(f, answer))
        _call(f, process, _Process.CLEAR)
        decline()
        f.ret(none)
        return str(module)


def _collect(module: Module, header: int) -> Function:
    """`collect(process, target, names, feeds)`: look up and check the inputs, and make the list of results;
    the arrays of both into the target's cells, inputs with a reference. Gives the list, 0 where something
    does not fit, perhaps with an exception set."""
    labels = ("process", "target", "names", "feeds")
    f = module.function("collect", [(I64, label) for label in labels], I64, True)
    process, target, names, feeds = f.params
    zero = f.i64(0)
    inputs, outputs = cell(f, target, _Cell.INPUTS), cell(f, target, _Cell.OUTPUTS)
    rows, arrays = cell(f, target, _Cell.ROWS), cell(f, target, _Cell.ARRAYS)

    def need(condition: V) -> None:
        f.when(~condition, lambda: entry.leave(f, zero))

    def kind_of(thing: V) -> V:
        return cell(f, thing + (header - 8), 0)

    def named() -> None:
        need(kind_of(names).eq(cell(f, process, _Process.KINDS)))
        equal, expected = cell(f, process, _Process.EQUAL, PTR), cell(f, target, _Cell.NAMES)
        need(f.call(equal, [names, expected, f.i64(2)], I32).eq(1))
    f.when(names.ne(cell(f, process, _Process.NONE)), named)
    need(kind_of(feeds).eq(cell(f, process, _Process.DICT)))
    need(_call(f, process, _Process.SIZE, feeds).eq(inputs))

    def take(i: V) -> None:
        row = rows + i * (8 * _Row.END)
        array = _call(f, process, _Process.GET, feeds, cell(f, row, _Row.NAME))
        need(array.ne(0))
        put(f, array, arrays + i * 8, 0)
        _call(f, process, _Process.INCREF, array)
        need(kind_of(array).eq(cell(f, process, _Process.ARRAY)))
        at, rank = array + header, cell(f, row, _Row.RANK)
        flags = cell(f, at, _Field.FLAGS, I32) & _FLAGS
        need(cell(f, at, _Field.DTYPE).eq(cell(f, row, _Row.DTYPE)) & flags.eq(_FLAGS)
             & f.cast(cell(f, at, _Field.RANK, I32), I64).eq(rank))
        dims, expected = cell(f, at, _Field.DIMS), cell(f, row, _Row.DIMS)
        f.loop(0, rank, 1, [], lambda axis: need(
            cell(f, dims + axis * 8, 0).eq(cell(f, expected + axis * 8, 0))))
    f.loop(0, inputs, 1, [], take)
    results = _call(f, process, _Process.LIST, outputs)
    need(results.ne(0))

    def make(i: V) -> None:
        row = rows + (inputs + i) * (8 * _Row.END)
        dtype, rank, dims = (cell(f, row, c) for c in (_Row.DTYPE, _Row.RANK, _Row.DIMS))
        _call(f, process, _Process.INCREF, dtype)
        memory = _call(f, process, _Process.EMPTY, rank, dims, dtype, zero)

        def give_up() -> None:
            _drop(f, process, results)
            entry.leave(f, zero)
        f.when(memory.eq(0), give_up)
        array = _call(f, process, _Process.VIEW, memory, zero, zero)
        _drop(f, process, memory)
        f.when(array.eq(0), give_up)
        put(f, array, arrays + (inputs + i) * 8, 0)
        _call(f, process, _Process.SET, results, cell(f, row, _Row.NAME), array)
    f.loop(0, outputs, 1, [], make)
    f.ret(results)
    return f


def _call(f: Function, process: V, which: _Process, *args: V) -> V:
    return f.call(cell(f, process, which, PTR), args, I64)


def _drop(f: Function, process: V, thing: V) -> None:
    _call(f, process, _Process.DECREF, thing)


class _Cells(np.ndarray):
    """Cells with an address. `kept`: what they point to."""

    kept: Any


class FastRun(NamedTuple):
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
        self._cells = np.zeros(len(_Door), np.int64).view(_Cells)
        self._cells[_Door.PROCESS] = _process()
        create = ctypes.pythonapi.PyCFunction_NewEx
        create.restype = ctypes.py_object
        create.argtypes = (ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)
        self.run: Callable[[Any, Any], list[Any] | None] = create(
            _process() + 8 * _Process.DEFINITION, self._cells, None)

    def open(self, program: FastRun) -> None:
        """Serve runs of `program` from now on, and of no other."""
        inputs, outputs = program.inputs, program.outputs
        dims = [d for shape, _ in (*inputs, *outputs) for d in shape]
        count = len(inputs) + len(outputs)
        rows = len(_Cell)
        arrays = rows + _Row.END * count
        at = arrays + count
        made = np.zeros(at + len(dims), np.int64).view(_Cells)
        made[at:] = dims
        start = made.ctypes.data
        made[:rows] = (0, id(program.block), program.status.ctypes.data, len(inputs), len(outputs),
                       start + 8 * rows, start + 8 * arrays, id(self.outputs))
        marks = [*map(id, self.inputs), *self.places]
        for i, ((shape, dtype), mark) in enumerate(zip((*inputs, *outputs), marks, strict=True)):
            row = rows + _Row.END * i
            made[row:row + _Row.END] = (mark, id(dtype), len(shape), start + 8 * at)
            at += len(shape)
        made.kept = (program, self.inputs, self.outputs)
        self._point(made)

    def close(self) -> None:
        """Serve nothing from now on."""
        self._point(None)

    def _point(self, target: _Cells | None) -> None:
        before: _Cells | None = getattr(self._cells, "kept", None)
        self._cells[_Door.TARGET] = 0 if target is None else id(target)
        self._cells.kept = target
        # a run that still has the target keeps it alive by itself, and nobody else may have its memory
        if before is not None and not before[_Cell.BUSY]:
            before.kept[0].give()


@functools.cache
def available() -> bool:
    """Whether doors can be made: arrays look as generated code expects, and one lock guards all objects."""
    if not entry.direct() or sysconfig.get_config_var("Py_GIL_DISABLED"):
        return False
    base = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    for array in (base, base[1:], base.T, np.zeros((0, 2)), np.array(1, np.int8)):
        fields = (ctypes.c_int64 * len(_Field)).from_address(id(array) + _HEADER)
        shape = (ctypes.c_int64 * array.ndim).from_address(fields[_Field.DIMS])
        if ((fields[_Field.RANK] & 0xFFFFFFFF, tuple(shape)) != (array.ndim, array.shape)
                or fields[_Field.DATA] != array.ctypes.data or fields[_Field.DTYPE] != id(array.dtype)
                or fields[_Field.FLAGS] & 0xFFFFFFFF != array.flags.num):
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
    """Address of the cells of `_Process`, which outlive the interpreter."""
    machine = host()
    assert machine is not None
    at, cells = entry.process_cells(_Process.END, {
        _Process.INCREF: "Py_IncRef", _Process.DECREF: "Py_DecRef", _Process.LIST: "PyList_New",
        _Process.SET: "PyList_SetItem", _Process.SIZE: "PyDict_Size",
        _Process.GET: "PyDict_GetItemWithError", _Process.EQUAL: "PyObject_RichCompareBool",
        _Process.CLEAR: "PyErr_Clear"})
    cells[_Process.EMPTY], cells[_Process.VIEW] = _numpy(_EMPTY), _numpy(_VIEW)
    cells[_Process.ENTER] = entry.code()
    things = {_Process.NONE: None, _Process.ARRAY: np.ndarray, _Process.DICT: dict, _Process.KINDS: list,
              _Process.ZERO: 0, _Process.VALUE: _VALUE, _Process.DEBUG: vars(knobs.DEBUG),
              _Process.CHECK: vars(knobs.CHECK)}
    for index, thing in things.items():
        cells[index] = id(thing)
    ctypes.memmove(at + 8 * _Process.NAME, b"quick", 6)
    code = functions([Quick(_HEADER)], machine)[0]["quick"]
    for i, value in enumerate((at + 8 * _Process.NAME, code, _FASTCALL, 0)):
        cells[_Process.DEFINITION + i] = value
    return at


_VALUE = sys.intern("value")
