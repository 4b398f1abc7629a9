"""Where things lie in what generated code reads of this process: numbers of 8-byte cells, counted from 0.

A *program block* is a row of cells (`Cell`) that says what to run; its steps are a table of rows of `STEP`
cells: a kernel's address, its arguments' address, its items, and the grain, the items a thread takes at
least. A *pool block* (`PoolCell`) is what the threads of a process share. `scheduler` writes the code for
both. `EntryCell` is for entering a program from Python (`entry`), the rest for whole runs (`fastcall`).
"""

from __future__ import annotations

STEP = 4
"""Cells of a row of the step table."""

JUMP = -1
"""The items of a row that is a jump."""

PLACES = 512
"""Threads of a run at most."""


class Cell:
    """The cells of a program block. `stop`: the address of a cell that ends the run before its next step once
    it is not 0; `stopped`: such a cell; `done`: steps finished. The rest is for entering from Python
    (`entry.py`)."""

    TABLE, STEPS, SCRATCH, SCRATCH_SIZE, THREADS, POOL, STOP, STOPPED, DONE, PROCESS, ARRAYS, PATCHES, \
        PATCH_COUNT, HOLD, ALARM = range(15)
    END = 16


class PoolCell:
    """The cells of a pool block. A job, from `ticket` to `left`, is one cache line, so that few lines travel.

    `size`: threads there are, the caller's included; `capacity`: how many there may be; `wanted`: how many a
    run asks for; `spin`: pauses before a worker parks, `patience`: before the caller does; `syscall`: address
    of the C library's function, 0 where there is no futex. `ticket`: number of the job (bits from 16 on) and
    seats left in it. `away`: workers parked; `left`: workers done with the job; `waiting`: the caller is
    parked; `held`: a run has the pool; `runs`: runs with large steps going on. `ranges`: per place a line of
    two cells, the next item and the end.
    """

    SIZE, CAPACITY, SPIN, PATIENCE, SYSCALL, WANTED = range(6)
    TICKET, KERNEL, ARGS, CHUNK, TEAM, ROOM, ROOM_SIZE, LEFT = range(16, 24)
    AWAY, WAITING = 48, 64
    HELD, RUNS = 80, 81
    RANGES = 96
    RANGE = 16
    END = 96 + 16 * PLACES


class EntryCell:
    """Cells of what entering a program has to know of this process: functions of the interpreter and
    objects."""

    ARRAY, NONE, INCREF, DECREF, SAVE, RESTORE, CALL, REFUSE, TYPE_ERROR, TEXT, DRIVE = range(11)
    DEFINITION, NAME, END = 16, 20, 40


class ArrayField:
    """What an array object holds behind its header, by 8 bytes."""

    DATA, RANK, DIMS, STRIDES, BASE, DTYPE, FLAGS, END = range(8)


class RunCell:
    """Cells of what generated code has to know of this process: functions, objects, and the dicts of the
    switches that have to be 0."""

    INCREF, DECREF, LIST, SET, SIZE, GET, EQUAL, CLEAR, EMPTY, VIEW, NEW, BASE, ENTER = range(13)
    NONE, ARRAY, DICT, KINDS, ZERO, VALUE, DEBUG, CHECK, BYTE = range(13, 22)
    DEFINITION, NAME, END = 22, 26, 28


class DoorCell:
    """Cells of a door: the target, an object or 0."""

    TARGET, PROCESS, END = range(3)


class TargetCell:
    """Cells of a target. `busy`: a run has it; `block`: the program block, an object; `status`: address of a
    cell that is 0 after a good run; `rows`: one for each array, inputs first; `arrays`: objects of the run;
    `names`: list of the results' names."""

    BUSY, BLOCK, STATUS, INPUTS, OUTPUTS, ROWS, ARRAYS, NAMES, END = range(9)


class RowCell:
    """Cells of a row: the input's name, or the output's place in the list of results; type, rank and the
    address of the shape; bytes of memory in which an output begins at a cache line, 0 where it need not."""

    NAME, DTYPE, RANK, DIMS, ROOM, END = range(6)
