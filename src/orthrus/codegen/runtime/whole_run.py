"""What a whole run in generated code is: `quick(self, args, count)`, a builtin function's body.

In: the array of a door's cells, and the addresses of the names and the feeds. Out: a list of results, or None
where the ordinary way has to be gone. See `fastcall`.
"""

from __future__ import annotations

from ...memory import LINE
from ..machines.machine import Machine
from ..write.emit import I32, I64, PTR, Function, Module, V
from . import entering
from .cells import ArrayField, DoorCell, RowCell, RunCell, TargetCell
from .scheduler import cell, put

_FLAGS = 0x101
"""numpy's flags of an array that is C-contiguous and aligned."""
_OWN = _FLAGS | 0x400
"""The same of one that may be written."""


def text(machine: Machine, header: int) -> str:
    """What the unit `Quick` holds."""
    module = Module(machine.triple)
    collect = _collect(module, header)
    f = module.function("quick", [(I64, name) for name in ("self", "args", "count")], I64)
    door, args, count = f.params
    door = cell(f, door + header, 0)
    process, holder = cell(f, door, DoorCell.PROCESS), cell(f, door, DoorCell.TARGET)
    none = cell(f, process, RunCell.NONE)

    def decline() -> None:
        _call(f, process, RunCell.INCREF, none)
        entering.leave(f, none)
    f.when(holder.eq(0) | count.ne(2), decline)
    target = cell(f, holder + header, 0)
    loud = f.const("i1", False)
    for switch in (RunCell.DEBUG, RunCell.CHECK):
        values, key = cell(f, process, switch), cell(f, process, RunCell.VALUE)
        value = _call(f, process, RunCell.GET, values, key)
        loud = loud | value.ne(cell(f, process, RunCell.ZERO))
    f.when(cell(f, target, TargetCell.BUSY).ne(0) | loud, decline)
    put(f, f.i64(1), target, TargetCell.BUSY)
    _call(f, process, RunCell.INCREF, holder)
    arrays, inputs = cell(f, target, TargetCell.ARRAYS), cell(f, target, TargetCell.INPUTS)
    results = f.call(collect, [process, target, cell(f, args, 0), cell(f, args, 1)])

    def enter() -> V:
        put(f, f.i64(0), cell(f, target, TargetCell.STATUS), 0)
        answer = _call(f, process, RunCell.ENTER, cell(f, target, TargetCell.BLOCK), arrays,
                       inputs + cell(f, target, TargetCell.OUTPUTS))
        f.when(answer.ne(0), lambda: _drop(f, process, answer))
        return answer
    (answer,) = f.when(results.ne(0), enter, lambda: none)
    status = cell(f, cell(f, target, TargetCell.STATUS), 0)

    def let_go(i: V) -> None:
        array = cell(f, arrays + i * 8, 0)
        f.when(array.ne(0), lambda: _drop(f, process, array))
        put(f, f.i64(0), arrays + i * 8, 0)
    f.loop(0, inputs, 1, [], let_go)
    put(f, f.i64(0), target, TargetCell.BUSY)
    _drop(f, process, holder)
    good = results.ne(0) & answer.ne(0) & status.eq(0)
    f.when(good, lambda: entering.leave(f, results))
    f.when(results.ne(0), lambda: _drop(f, process, results))
    f.when(answer.eq(0), lambda: entering.leave(f, answer))
    _call(f, process, RunCell.CLEAR)
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
    inputs, outputs = cell(f, target, TargetCell.INPUTS), cell(f, target, TargetCell.OUTPUTS)
    rows, arrays = cell(f, target, TargetCell.ROWS), cell(f, target, TargetCell.ARRAYS)

    def need(condition: V) -> None:
        f.when(~condition, lambda: entering.leave(f, zero))

    def kind_of(thing: V) -> V:
        return cell(f, thing + (header - 8), 0)

    def named() -> None:
        need(kind_of(names).eq(cell(f, process, RunCell.KINDS)))
        equal, expected = cell(f, process, RunCell.EQUAL, PTR), cell(f, target, TargetCell.NAMES)
        need(f.call(equal, [names, expected, f.i64(2)], I32).eq(1))
    f.when(names.ne(cell(f, process, RunCell.NONE)), named)
    need(kind_of(feeds).eq(cell(f, process, RunCell.DICT)))
    need(_call(f, process, RunCell.SIZE, feeds).eq(inputs))

    def take(i: V) -> None:
        row = rows + i * (8 * RowCell.END)
        array = _call(f, process, RunCell.GET, feeds, cell(f, row, RowCell.NAME))
        need(array.ne(0))
        put(f, array, arrays + i * 8, 0)
        _call(f, process, RunCell.INCREF, array)
        need(kind_of(array).eq(cell(f, process, RunCell.ARRAY)))
        at, rank = array + header, cell(f, row, RowCell.RANK)
        flags = cell(f, at, ArrayField.FLAGS, I32) & _FLAGS
        need(cell(f, at, ArrayField.DTYPE).eq(cell(f, row, RowCell.DTYPE)) & flags.eq(_FLAGS)
             & f.cast(cell(f, at, ArrayField.RANK, I32), I64).eq(rank))
        dims, expected = cell(f, at, ArrayField.DIMS), cell(f, row, RowCell.DIMS)
        f.loop(0, rank, 1, [], lambda axis: need(
            cell(f, dims + axis * 8, 0).eq(cell(f, expected + axis * 8, 0))))
    f.loop(0, inputs, 1, [], take)
    results = _call(f, process, RunCell.LIST, outputs)
    need(results.ne(0))

    def make(i: V) -> None:
        row = rows + (inputs + i) * (8 * RowCell.END)
        dtype, rank, dims = (cell(f, row, c) for c in (RowCell.DTYPE, RowCell.RANK, RowCell.DIMS))
        room = cell(f, row, RowCell.ROOM)

        def need_new(thing: V) -> V:
            def give_up() -> None:
                _drop(f, process, results)
                entering.leave(f, zero)
            f.when(thing.eq(0), give_up)
            return thing

        def anywhere() -> V:
            _call(f, process, RunCell.INCREF, dtype)
            memory = need_new(_call(f, process, RunCell.EMPTY, rank, dims, dtype, zero))
            array = _call(f, process, RunCell.VIEW, memory, zero, zero)
            _drop(f, process, memory)
            return array

        def at_line() -> V:
            byte = cell(f, process, RunCell.BYTE)
            _call(f, process, RunCell.INCREF, byte)
            memory = need_new(_call(f, process, RunCell.EMPTY, f.i64(1), row + 8 * RowCell.ROOM, byte, zero))
            _call(f, process, RunCell.INCREF, dtype)
            begin = (cell(f, memory + header, ArrayField.DATA) + (LINE - 1)) & -LINE
            array = _call(f, process, RunCell.NEW, cell(f, process, RunCell.ARRAY), dtype, rank, dims, zero,
                          begin, f.i64(_OWN), zero)

            def based() -> None:
                _call(f, process, RunCell.BASE, array, memory)
            f.when(array.eq(0), lambda: _drop(f, process, memory), based)
            return array
        (made,) = f.when(room.eq(0), anywhere, at_line)
        array = need_new(made)
        put(f, array, arrays + (inputs + i) * 8, 0)
        _call(f, process, RunCell.SET, results, cell(f, row, RowCell.NAME), array)
    f.loop(0, outputs, 1, [], make)
    f.ret(results)
    return f


def _call(f: Function, process: V, which: int, *args: V) -> V:
    return f.call(cell(f, process, which, PTR), args, I64)


def _drop(f: Function, process: V, thing: V) -> None:
    _call(f, process, RunCell.DECREF, thing)
