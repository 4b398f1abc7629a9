"""What entering a program from Python runs: `run(self, arrays, count)`, a builtin function's body.

In: the array that holds a program block, addresses of array objects, and how many. Out: None, after the
program ran, or 0 with an exception set. See `entry`.
"""

from __future__ import annotations

from ..machines.machine import Machine
from ..write.emit import I64, PTR, Function, Module, V
from .cells import Cell, EntryCell, PoolCell
from .scheduler import cell, put


def text(machine: Machine, header: int) -> str:
    """What the unit `Entry` holds."""
    module = Module(machine.triple)
    f = module.function("run", [(I64, name) for name in ("self", "arrays", "count")], PTR)
    itself, arrays, count = f.params
    block = cell(f, itself + header, 0)
    process = cell(f, block, Cell.PROCESS)
    f.when(count.ne(cell(f, block, Cell.ARRAYS)), lambda: _refuse(f, process))

    def check(i: V) -> None:
        kind = cell(f, cell(f, arrays + i * 8, 0) + (header - 8), 0)
        f.when(kind.ne(cell(f, process, EntryCell.ARRAY)), lambda: _refuse(f, process))
    f.loop(0, count, 1, [], check)
    patches = cell(f, block, Cell.PATCHES)

    def patch(i: V) -> None:
        row = patches + i * 24
        array = cell(f, arrays + cell(f, row, 0) * 8, 0)
        put(f, cell(f, array + header, 0) + cell(f, row, 2), cell(f, row, 1), 0)
    f.loop(0, cell(f, block, Cell.PATCH_COUNT), 1, [], patch)
    f.when(cell(f, block, Cell.POOL).ne(0), lambda: _gather(f, block, process))
    _release(f, block, process)
    none = cell(f, process, EntryCell.NONE, PTR)
    f.call(cell(f, process, EntryCell.INCREF, PTR), [none])
    f.ret(none)
    return str(module)


def leave(f: Function, value: V) -> None:
    """End the function here; what is written next is a block nobody comes to."""
    f.ret(value)
    f.open(f.block())


def _refuse(f: Function, process: V) -> None:
    f.call(cell(f, process, EntryCell.REFUSE, PTR),
           [cell(f, process, EntryCell.TYPE_ERROR, PTR), cell(f, process, EntryCell.TEXT, PTR)])
    leave(f, f.zero(PTR))


def _gather(f: Function, block: V, process: V) -> None:
    """Call for threads, in Python, where there are fewer than this program wants and could have."""
    at = cell(f, block, Cell.POOL)
    wanted = f.minimum(cell(f, block, Cell.THREADS), cell(f, at, PoolCell.CAPACITY))
    asleep = cell(f, at, PoolCell.SYSCALL).eq(0)

    def call() -> None:
        put(f, wanted, at, PoolCell.WANTED)
        result = f.call(cell(f, process, EntryCell.CALL, PTR), [cell(f, block, Cell.ALARM, PTR)], PTR)
        f.when(f.cast(result, I64).eq(0), lambda: leave(f, f.zero(PTR)))
        f.call(cell(f, process, EntryCell.DECREF, PTR), [result])
    f.when((wanted > 1) & ((wanted > cell(f, at, PoolCell.SIZE)) | asleep), call)


def _release(f: Function, block: V, process: V) -> None:
    """Run, with the interpreter's lock or without."""
    drive = cell(f, process, EntryCell.DRIVE, PTR)

    def keep() -> None:
        f.call(drive, [block])

    def free() -> None:
        state = f.call(cell(f, process, EntryCell.SAVE, PTR), [], PTR)
        f.call(drive, [block])
        f.call(cell(f, process, EntryCell.RESTORE, PTR), [state])
    f.when(cell(f, block, Cell.HOLD).ne(0), keep, free)
