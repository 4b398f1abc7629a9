"""Turns of a Loop or a Scan without Python between them, for a body all of whose steps are generated code.

In: the body's program, what it captures, its states and the slices it is called with. Out: as many turns as
could be made, with the states behind them and a row of each scan output for every turn; or None where the
body has to be called turn by turn: before it was called so once with values of these kinds, where something
is no plain array, and where a state changes its shape.

Nothing that is given is written to, and nothing of what is given back is memory that is used again.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any, NamedTuple

import numpy as np

from .. import knobs
from ..codegen.runtime import turns as generated
from ..codegen.runtime.cells import Cell
from ..codegen.runtime.entry import StepBlock, address
from ..codegen.runtime.fastcall import FastRun, available
from ..codegen.runtime.turns import Turn
from ..errors import Fail
from ..ir import No, TensorType, Value
from ..kernels import HOST, readable
from ..limits import HARMLESS, bounded, reserve
from ..recent import Recent
from ..records import dataclass
from .program import TRASH, Call, Program

_LINE = 64
_CHUNK, _GROWING = 1 << 26, 1 << 20
"""Bytes of a scan output's rows that are made at a time; the second where the condition may end the turns."""
_PAUSE = 0.01
"""Seconds, about, after which the deadline is looked at."""
_KINDS, _KEPT = 4, 1 << 24
"""Kinds of values for which frames are kept, and the bytes of a frame that is."""
_LOST = 16
"""Turns that a program may give up before it is left alone."""

_Kind = tuple[tuple[int, ...], np.dtype[Any]]


class Made(NamedTuple):
    """What came of turns, `done` of them. `going`: what the last one said of the condition."""

    done: int
    states: list[Any]
    rows: list[np.ndarray]
    going: bool


@dataclass(eq=False)
class _Steps:
    """What a body does: its steps, with the slots that they read and write, and where its results are, all
    past what only passes a value on; the types of what the steps read and of what is `entered`."""

    program: Program
    calls: list[Call]
    reads: list[tuple[int, ...]]
    dtypes: list[list[Any]]
    entered: list[Any]
    results: list[int]

    @classmethod
    def of(cls, program: Program) -> _Steps | No:
        """Those of a body. No where one is not in generated code, or an input is of no known type."""
        calls, reads, same = list[Call](), list[tuple[int, ...]](), dict[int, int]()
        for call in program.calls:
            there = tuple([same.get(slot, slot) for slot in call.reads])
            if _passes(call):
                same[call.writes[0]] = there[0]
            elif call.bodies:
                return No(f"{call.node.label} in it is control flow")
            elif call.kernel.quick is None or call.device is not HOST:
                return No(f"{call.part if call.part.fused else call.node.label} in it is not generated code")
            else:
                calls.append(call)
                reads.append(there)
        dtypes = [[_dtype(v) for v in call.part.inputs] for call in calls]
        entered = [_dtype(v) for v in program.graph.inputs]
        if None in entered:
            return No("it takes what is no tensor of numbers")
        return cls(program, calls, reads, dtypes, entered, [same.get(slot, slot) for slot in program.results])

    @property
    def others(self) -> list[int]:
        """The slots of what the steps and the results take of others, but the body's inputs."""
        made = {slot for call in self.calls for slot in call.writes} | set(self.program.inputs)
        taken = (slot for slots in (*self.reads, self.results) for slot in slots if slot not in made)
        return list(dict.fromkeys(taken))


def _passes(call: Call) -> bool:
    """Whether a step gives what it reads."""
    op = call.node.op
    return (op is not None and op.name == "Identity" and not call.node.domain and call.kernel.run is op.body
            and len(call.reads) == len(call.writes) == 1)


@dataclass(eq=False)
class _Values:
    """What is given for turns: arrays by slot of the body's program, in C order, a row of a scan input for
    its slice; the slices' bytes from turn to turn, by slot; the turns for which there are slices."""

    arrays: dict[int, np.ndarray]
    strides: dict[int, int]
    most: int

    @property
    def kinds(self) -> tuple[_Kind, ...]:
        return tuple([(x.shape, x.dtype) for x in self.arrays.values()])


@dataclass(eq=False)
class _Room:
    """Places in memory to come: (offset, bytes), each at a line."""

    size: int = 0

    def take(self, count: int) -> int:
        at, self.size = self.size, self.size + -(-max(count, 1) // _LINE) * _LINE
        return at


@dataclass(eq=False)
class _Table:
    """Rows of a table of the native code, as they are found."""

    width: int
    rows: list[tuple[int, ...]] = field(default_factory=list)

    def array(self) -> np.ndarray:
        return np.array(self.rows, np.int64).reshape(-1, self.width)


class _Frame:
    """Native memory of turns over values of certain kinds; one run at a time. `scans`: by scan output the
    value that is put at the row, and the row's kind; `last`: by state what is moved to it, None where it
    stays, and the scan output among whose rows it lies, if it does. `pace`: turns to make without a look at
    the deadline; `lost`: those that the program gave up."""

    def __init__(self, steps: _Steps, values: _Values, fast: Sequence[FastRun], leading: int, states: int,
                 heeded: bool) -> None:
        self.steps = steps
        self.index = {slot: i for i, slot in enumerate(values.arrays)}
        self._kinds = {slot: (a.shape, a.dtype) for slot, a in values.arrays.items()}
        self._places = itertools.count(len(self.index))
        self._made: dict[int, int] = {}
        self._sizes: dict[int, int] = {}
        self._copies, self._moves = _Table(3), _Table(3)
        self.fit = True
        self._number_steps(fast)
        before = 1 if leading else 0
        rows = self._number_scans(steps.results[before + states:])
        inputs = steps.program.inputs[leading:leading + states]
        views = self._number_states(inputs, steps.results[before:before + states], rows)
        condition = -1
        if heeded:
            condition = self.index[steps.results[0]]
            shape, dtype = self._kinds[steps.results[0]]
            self.fit &= dtype == np.bool_ and _bytes((shape, dtype)) == 1
        room, twice = _Room(), list[tuple[int, int]]()
        for value, size in self._sizes.items():
            if value not in rows:
                twice.append((value, room.take(size)))
                room.take(size)
        number, truth = room.take(8), room.take(1)
        self.size = room.size
        if self.fit:
            self._allocate(twice, views, steps.program.inputs[:leading], number, truth)
            self._write_block(values.strides, condition)

    # values by number, and what happens to them between two turns

    def _number_steps(self, fast: Sequence[FastRun]) -> None:
        """Numbers of the values that steps make."""
        self.touched: list[list[int]] = []
        for call, reads, run in zip(self.steps.calls, self.steps.reads, fast, strict=True):
            self.touched.append([self.index[slot] for slot in reads])
            for slot, kind in zip(call.writes, run.outputs, strict=True):
                self.touched[-1].append(value := next(self._places))
                self._sizes[value] = _bytes(kind)
                if slot != TRASH:
                    self.index[slot], self._made[slot], self._kinds[slot] = value, value, kind

    def _number_scans(self, results: Sequence[int]) -> dict[int, int]:
        """The scan outputs by the values that steps make at their rows. One that no step makes, or that
        another scan output has already, is copied there."""
        self.scans: list[tuple[int, _Kind]] = []
        rows: dict[int, int] = {}
        for slot in results:
            if slot in self._made and self._made[slot] not in rows:
                value = self._made[slot]
                rows[value] = len(self.scans)
            else:
                value = next(self._places)
                self._copies.rows.append((value, self.index[slot], _bytes(self._kinds[slot])))
            self.scans.append((value, self._kinds[slot]))
        return rows

    def _number_states(self, inputs: Sequence[int], results: Sequence[int], rows: Mapping[int, int]
                       ) -> list[tuple[int, _Kind]]:
        """The values that become states of the next turn, with their kinds. One that no step makes is copied
        first."""
        self.last: list[tuple[int | None, int | None]] = []
        views: list[tuple[int, _Kind]] = []
        for own, slot in zip(inputs, results, strict=True):
            self.fit &= self._kinds[own] == self._kinds[slot]
            if own == slot:
                self.last.append((None, None))
                continue
            value = self._made.get(slot, -1)
            if value < 0:
                value = next(self._places)
                self._sizes[value] = _bytes(self._kinds[slot])
                self._copies.rows.append((value, self.index[slot], self._sizes[value]))
            self._moves.rows.append((self.index[own], value, 0))
            self.last.append((self.index[own], rows.get(value)))
            views.append((value, self._kinds[slot]))
        return views

    # memory

    def _allocate(self, twice: Sequence[tuple[int, int]], views: Sequence[tuple[int, _Kind]],
                  leading: Sequence[int], number: int, truth: int) -> None:
        """Memory of the values in `twice`, each at two places, of which turns use one after the other, and of
        the turn's number and condition."""
        self.memory = np.empty(self.size + _LINE, np.uint8)
        base = -(-self.memory.ctypes.data // _LINE) * _LINE
        start = base - self.memory.ctypes.data
        self.number = self.memory[start + number:start + number + 8].view(np.int64)
        self.memory[start + truth] = 1
        self.frame = np.zeros(next(self._places), np.int64)
        self.first = [(value, base + at, base + at + -(-max(self._sizes[value], 1) // _LINE) * _LINE)
                      for value, at in twice]
        self.views: dict[int, np.ndarray] = {}
        lying = {value: (one, other) for value, one, other in self.first}
        for value, (shape, dtype) in views:
            for at in lying.get(value, ()):
                self.views[at] = np.ndarray(shape, dtype, self.memory.data, at - self.memory.ctypes.data)
        self.leading = {slot: base + at for slot, at in zip(leading, (number, truth), strict=False)}

    def _write_block(self, strided: Iterable[int], condition: int) -> None:
        """What the native code is given."""
        self.strides = [(self.index[slot], slot) for slot in strided]
        self.tables = {
            Turn.COPIES: self._copies.array(), Turn.MOVES: self._moves.array(),
            Turn.SWAPS: np.array([(value, 0) for value, _, _ in self.first], np.int64).reshape(-1, 2),
            Turn.STRIDES: np.zeros((len(self.strides) + len(self.scans), 2), np.int64)}
        self.block = np.zeros(Turn.END, np.int64)
        self.block[Turn.FRAME], self.block[Turn.DRIVE] = self.frame.ctypes.data, generated.drive()
        self.block[Turn.NUMBER], self.block[Turn.CONDITION] = self.number.ctypes.data, condition
        for which, table in self.tables.items():
            self.block[which], self.block[which + 1] = table.ctypes.data, len(table)
        self.address, self.enter = self.block.ctypes.data, generated.turns()
        self.programs: list[StepBlock] = []
        self.pace, self.lost = 4, 0

    def bind(self, fast: Sequence[FastRun]) -> None:
        """Enter these programs from now on."""
        if len(self.programs) == len(fast) and all(
                a is b.block for a, b in zip(self.programs, fast, strict=True)):
            return
        self.programs = [run.block for run in fast]
        self.patches = [run.block.kept[1].copy() for run in fast]
        calls = self.tables[Turn.CALLS] = np.zeros((len(fast), Turn.CALL), np.int64)
        for row, run, touched, patches in zip(calls, fast, self.touched, self.patches, strict=True):
            patches[:, 0] = np.array(touched, np.int64)[patches[:, 0]]
            row[:] = run.block.ctypes.data, run.status.ctypes.data, patches.ctypes.data, len(patches)
        self.block[Turn.CALLS], self.block[Turn.CALL_COUNT] = calls.ctypes.data, len(calls)

    def begin(self, values: _Values, rows: Sequence[np.ndarray], first: int) -> None:
        """The next turn is number `first`, of these values, and puts its scan outputs there."""
        frame, swaps, strides = self.frame, self.tables[Turn.SWAPS], self.tables[Turn.STRIDES]
        frame[:len(values.arrays)] = [self.leading.get(slot) or address(array)
                                      for slot, array in values.arrays.items()]
        for i, (value, one, other) in enumerate(self.first):
            frame[value], swaps[i, 1] = one, other
        for i, (value, slot) in enumerate(self.strides):
            strides[i] = value, values.strides[slot]
        for i, ((value, kind), array) in enumerate(zip(self.scans, rows, strict=True), len(self.strides)):
            frame[value] = address(array)
            strides[i] = value, _bytes(kind)
        self.number[0] = first

    def run(self, most: int) -> int:
        """Make so many turns, or fewer; answers how many."""
        block = self.block
        block[Turn.MOST], block[Turn.GOING], block[Turn.LOST] = most, 1, 0
        self.enter(self.address)
        self.lost += int(block[Turn.LOST])
        return int(block[Turn.DONE])

    def states(self, before: Sequence[Any], rows: Sequence[np.ndarray], count: int) -> list[Any]:
        """The states after `count` turns, which began with `before`."""
        return [old if own is None else rows[row][count - 1:count].reshape(rows[row].shape[1:]).copy()
                if row is not None else self.views[int(self.frame[own])].copy()
                for old, (own, row) in zip(before, self.last, strict=True)]


class Turning:
    """What makes the turns of a body; turns made at the same moment have frames of their own."""

    def __init__(self, steps: _Steps) -> None:
        self.steps, self.others = steps, steps.others
        self._idle: Recent[Any, list[_Frame]] = Recent(_KINDS)

    @classmethod
    def of(cls, program: Program) -> Turning | No:
        """That of a body. No where a step of it has no such code."""
        if program.places or not available():
            return No("its values lie on a device" if program.places else "this Python's arrays are others")
        steps = _Steps.of(program)
        return steps if isinstance(steps, No) else cls(steps)

    def __call__(self, leading: Sequence[np.ndarray], states: Sequence[Any], slices: Sequence[np.ndarray],
                 captured: Sequence[Any], first: int, most: int, heeded: bool, context: Any) -> Made | None:
        """Turns from number `first` on, `most` at the most. `leading`: a Loop's number and condition;
        `slices`: a Scan's inputs, their first axis that of the turns to come; `heeded`: whether the condition
        ends them. `context`: of the run, which may be told to stop."""
        if context.watcher is not None or knobs.DEBUG or knobs.CHECK:
            return None
        values = self._values([*leading, *states], slices, captured)
        fast = self._programs(values) if values is not None else None
        if values is None or fast is None:
            return None
        try:
            key = len(leading), heeded, values.kinds
            idle = self._idle.kept(key, list)
            frame = idle.pop() if idle else _Frame(
                self.steps, values, fast, len(leading), len(states), heeded)
            made = None
            if frame.fit and frame.lost <= _LOST and not (context.urgent and frame.pace < 2):
                frame.bind(fast)
                made = _made(frame, values, states, first, most, heeded, context)
            if frame.size < _KEPT:
                idle.append(frame)
            return made
        finally:
            for run in fast:
                run.give()

    def _programs(self, values: _Values) -> list[FastRun] | None:
        """What the steps are in generated code, in memory of this run's; None where one is not."""
        fast, known = list[FastRun](), values.arrays
        for call, slots, dtypes in zip(self.steps.calls, self.steps.reads, self.steps.dtypes, strict=True):
            reads, quick = [known[slot] for slot in slots], call.kernel.quick
            run = quick(reads) if quick is not None and [x.dtype for x in reads] == dtypes else None
            if run is None:
                for other in fast:
                    other.give()
                return None
            fast.append(run)
            if len(fast) < len(self.steps.calls):
                known = known | {slot: np.broadcast_to(np.zeros((), dtype), shape)
                                 for slot, (shape, dtype) in zip(call.writes, run.outputs, strict=True)}
        return fast

    def _values(self, given: list[Any], slices: Sequence[np.ndarray], captured: Sequence[Any]
                ) -> _Values | None:
        """All that turns read, None where something is not for generated code."""
        program, strides, most = self.steps.program, dict[int, int](), sys.maxsize
        if slices:
            for slot, x in zip(program.inputs[len(given):], slices, strict=False):
                if type(x) is not np.ndarray:
                    return None
                if not (x[:1].flags.c_contiguous and x.flags.aligned):
                    (x,) = readable([x[:max(1, _CHUNK // max(x[:1].nbytes, 1))]])
                    most = min(most, len(x))
                strides[slot] = x.strides[0]
                given.append(x[:1].reshape(x.shape[1:]))
        for x in (*given, *captured):
            if type(x) is not np.ndarray:
                return None
        if [x.dtype for x in given] != self.steps.entered:
            return None
        arrays = dict(zip(program.inputs, readable(given), strict=True))
        if self.others:
            slots = dict(zip(program.captures, captured, strict=True))
            others = [slots[slot] if slot in slots else program.template[slot] for slot in self.others]
            if not all(map(_plain, others)):
                return None
            arrays.update(zip(self.others, readable(others), strict=True))
        return _Values(arrays, strides, most)


def _made(frame: _Frame, values: _Values, states: Sequence[Any], first: int, most: int, heeded: bool,
          context: Any) -> Made | None:
    chunk = _GROWING if heeded else _CHUNK
    most = min([most, values.most, *(max(1, chunk // max(_bytes(kind), 1)) for _, kind in frame.scans)])
    try:
        if frame.size > HARMLESS:
            reserve(frame.size)
        rows = [np.empty(bounded((most, *shape), dtype), dtype) for _, (shape, dtype) in frame.scans]
    except Fail:
        return None
    frame.begin(values, rows, first)
    for program in frame.programs:
        if program.pool is not None:
            program.pool.summon(int(program[Cell.THREADS]))
    done, going = 0, True
    while done < most and going:
        context.check()
        asked, start = min(most - done, frame.pace), time.perf_counter()
        came = frame.run(asked)
        done += came
        took = time.perf_counter() - start
        if took < _PAUSE / 4 and asked == frame.pace:
            frame.pace *= 4
        elif took > _PAUSE:
            frame.pace = max(1, frame.pace // 2)
        if frame.block[Turn.LOST]:
            break
        going = bool(frame.block[Turn.GOING])
    if not done:
        return None
    after = frame.states(states, rows, done)
    return Made(done, after, rows if done == most else [x[:done].copy() for x in rows], going)


def _dtype(value: Value) -> np.dtype[Any] | None:
    """The type of a tensor's elements that lie in memory; None where that is not known, and for text."""
    found = value.elem.numpy if isinstance(value.type, TensorType) and value.elem is not None else None
    return None if found is None or found.hasobject else found


def _plain(x: Any) -> bool:
    return type(x) is np.ndarray and not x.dtype.hasobject and x.dtype.isnative


def _bytes(kind: _Kind) -> int:
    size = kind[1].itemsize
    for d in kind[0]:
        size *= d
    return size
