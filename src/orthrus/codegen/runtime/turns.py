"""Generated code that enters programs again and again: the turns of a Loop or a Scan.

A *frame* has a cell for each value of the body: its address in this turn. A turn puts the addresses where the
programs' steps look for them, runs one program after the other, copies what has to lie elsewhere, and only
then says where everything lies in the next turn. A turn in which a program gives up has changed nothing that
is read again.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from enum import IntEnum
from typing import NamedTuple

from ..machines.detect import host
from ..machines.machine import Machine
from ..object.library import functions
from ..write.emit import I8, I64, PTR, Function, Module, V, vec
from .scheduler import cell, put
from .threads import runtime

_WIDE = vec(I64, 8)
_BYTES = 64


class Turn(IntEnum):
    """Cells of the block that `turns` is given. `frame`: address of the frame; `drive`: what runs a program.

    Tables, each an address and a number of rows: `calls` (a program block, the address of its cell that is 0
    after a good run, its patches and how many), each patch (value, address of a cell, bytes to add);
    `copies` (to, from, bytes), `moves` (to, from, a cell of its own), which come at once, `swaps` (value,
    address of its other memory), `strides` (value, bytes). `number`: address of the trip's number;
    `condition`: the value that ends the turns where it is false, or less than 0. `most`: turns to make. Out:
    `done` of them, `going` 0 where the condition said so, `lost` 1 where a program gave up in the turn behind
    those."""

    FRAME, DRIVE, CALLS, CALL_COUNT, COPIES, COPY_COUNT, MOVES, MOVE_COUNT, SWAPS, SWAP_COUNT, STRIDES, \
        STRIDE_COUNT, NUMBER, CONDITION, MOST, DONE, GOING, LOST = range(18)
    END = 18
    CALL = 4


class Turns(NamedTuple):
    """The module with `turns(block)`. As a unit of the library."""

    name: str = "turns"

    @property
    def origin(self) -> str:
        return __file__

    def text(self, machine: Machine) -> str:
        module = Module(machine.triple)
        copy = _copy(module)
        f = module.function("turns", [(I64, "block")])
        (block,) = f.params
        drive = cell(f, block, Turn.DRIVE, PTR)
        frame, condition, most = (cell(f, block, c) for c in (Turn.FRAME, Turn.CONDITION, Turn.MOST))

        def at(value: V) -> V:
            return frame + value * 8

        def rows(at: V, table: int, width: int, each: Callable[[V], None]) -> None:
            first, count = cell(f, at, table), cell(f, at, table + 1)
            f.loop(0, count, 1, [], lambda i: each(first + i * (8 * width)))

        def patch(row: V) -> None:
            put(f, cell(f, at(cell(f, row, 0)), 0) + cell(f, row, 2), cell(f, row, 1), 0)

        def enter(row: V, done: V) -> None:
            rows(row, 2, 3, patch)
            status = cell(f, row, 1)
            put(f, f.i64(0), status, 0)
            f.call(drive, [cell(f, row, 0)])

            def give_up() -> None:
                put(f, done, block, Turn.DONE)
                put(f, f.i64(1), block, Turn.LOST)
                f.ret()
                f.open(f.block())
            f.when(cell(f, status, 0).ne(0), give_up)

        def copied(row: V) -> None:
            f.call(copy, [cell(f, at(cell(f, row, 0)), 0), cell(f, at(cell(f, row, 1)), 0), cell(f, row, 2)])

        def swap(row: V) -> None:
            mine, other = at(cell(f, row, 0)), cell(f, row, 1)
            here = cell(f, mine, 0)
            put(f, other, mine, 0)
            put(f, here, row, 1)

        def turn(done: V) -> tuple[V, list[V]]:
            rows(block, Turn.CALLS, Turn.CALL, lambda row: enter(row, done))
            rows(block, Turn.COPIES, 3, copied)

            def heeded() -> V:
                byte = f.load(I8, f.cast(cell(f, at(condition), 0), PTR), 0, 1)
                return f.select(byte.ne(0), f.i64(1), f.i64(0))
            (going,) = f.when(condition < 0, lambda: f.i64(1), heeded)
            put(f, going, block, Turn.GOING)
            rows(block, Turn.MOVES, 3, lambda row: put(f, cell(f, at(cell(f, row, 1)), 0), row, 2))
            rows(block, Turn.MOVES, 3, lambda row: put(f, cell(f, row, 2), at(cell(f, row, 0)), 0))
            rows(block, Turn.SWAPS, 2, swap)
            rows(block, Turn.STRIDES, 2, lambda row: put(
                f, cell(f, at(cell(f, row, 0)), 0) + cell(f, row, 1), at(cell(f, row, 0)), 0))
            number = cell(f, block, Turn.NUMBER)
            put(f, cell(f, number, 0) + 1, number, 0)
            return going.ne(0) & (done + 1 < most), [done + 1]
        (done,) = f.when(most > 0, lambda: f.repeat([f.i64(0)], turn), lambda: [f.i64(0)])
        put(f, done, block, Turn.DONE)
        f.ret()
        return str(module)


def _copy(module: Module) -> Function:
    """`copy(to, source, count)`: so many bytes."""
    f = module.function("copy", [(I64, name) for name in ("to", "source", "count")], internal=True)
    to, source, count = f.params
    to, source = f.cast(to, PTR), f.cast(source, PTR)
    whole = count // _BYTES * _BYTES
    f.loop(0, whole, _BYTES, [], lambda i: f.store(f.load(_WIDE, f.gep(source, i, I8), 0, 1),
                                                  f.gep(to, i, I8), 0, 1))
    f.loop(whole, count, 1, [], lambda i: f.store(f.load(I8, source, i, 1), to, i, 1))
    f.ret()
    return f


@functools.cache
def turns() -> Callable[[int], None]:
    """`turns(address of a block)`, without the interpreter's lock."""
    machine = host()
    assert machine is not None
    return ctypes.CFUNCTYPE(None, ctypes.c_int64)(functions([Turns()], machine)[0]["turns"])


def drive() -> int:
    """The address of what runs a program."""
    return runtime()["drive"]
