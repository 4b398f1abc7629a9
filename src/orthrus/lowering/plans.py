"""What a run of a compiled part needs: a plan per tuple of input shapes, as native memory.

A plan is a table of kernels, the cells of their arguments, and the size of an arena. Such an instance serves
one run at a time; a second run at the same moment gets an instance of its own.
"""

from __future__ import annotations

import functools
import math
import struct
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..codegen.runtime import scheduler
from ..codegen.write.notes import NOTED, front, refuse
from ..codegen.write.notes import cells as guarded
from ..codegen.write.template import Spec
from ..ir import Value, in_memory
from ..kernels import Part, Work
from ..records import dataclass
from ..shapes.symbolic import SymInt
from .attribution import Account
from .device import PartDevice
from .lower import Lowering
from .memory import ALIGN, plan
from .report import Trail
from .step import KernelStep
from .tensor import Buffer, Tensor, numpy_type

_IDLE = 4
"""Idle instances a plan keeps."""

_FLOAT, _BITS = struct.Struct("<f"), struct.Struct("<i")


class Plan:
    """What an instance needs to know of a part for one tuple of input shapes: kernels, their arguments, where
    in the arena things lie. `take()` gives the memory of one run. `work`: items and grain of each kernel's
    step; `size`, `scratch`: bytes of the arena, and for each thread behind it; `bytes`: of all that a run
    takes, with its outputs; `status`: where in the arena a kernel says that it gave up. `hosts`:
    steps of numpy, each with the number of kernels before it."""

    hosts: Sequence[tuple[int, KernelStep]] = ()
    seconds = 0.0

    def __init__(self, code: Code, cells: Cells, work: np.ndarray,
                 outputs: list[tuple[tuple[int, ...], np.dtype]], size: int, scratch: int, status: int
                 ) -> None:
        self.code, self.cells, self.work, self.outputs = code, cells, work, outputs
        self.size, self.scratch, self.status = size, scratch, status
        self.bytes = size + scratch * code.threads + sum(
            math.prod(shape) * dtype.itemsize for shape, dtype in outputs)
        self.small = len(work) < 4 and bool((work[:, 0] <= work[:, 1]).all())
        self.idle: list[Instance] = []

    @property
    def native(self) -> bool:
        """Whether there are kernels and nothing else."""
        return len(self.work) > 0 and not self.hosts

    @property
    def definitions(self) -> bool:
        """Whether numpy has every step: the nodes' definitions do the same without an arena."""
        return not len(self.work) and bool(self.hosts)

    def take(self) -> Instance:
        """An instance nobody uses, in an arena that no run uses."""
        for instance in self.idle:
            if instance.arena.lock.acquire(blocking=False):
                try:  # noqa: SIM105
                    self.idle.remove(instance)
                except ValueError:
                    pass
                return instance
        return Instance(self)

    def give(self, instance: Instance) -> None:
        if len(self.idle) < _IDLE:
            self.idle.append(instance)
        instance.arena.lock.release()


@dataclass(frozen=True)
class Code:
    """What plans of the same steps have in common: which kernels, the labels and operators of the nodes they
    are for, the number of inputs. `appends`: an input and an output each that may be the same memory: a cache
    that rows are appended to, and that nothing else reads. `given`: the kernels' addresses where they are
    known, which else the device gives when they are first asked for."""

    specs: list[Spec]
    names: list[str]
    operators: list[str]
    inputs: int
    appends: frozenset[tuple[int, int]]
    device: PartDevice
    threads: int
    given: list[int] | None = None

    @functools.cached_property
    def kernels(self) -> list[int]:
        """The kernels' addresses. Raises RuntimeError for a kernel that LLVM refuses."""
        return self.given if self.given is not None else self.device.addresses(self.specs)

    def ready(self) -> Code:
        """The same, its kernels compiled."""
        assert self.kernels is not None
        return self

    @staticmethod
    def of(steps: Sequence[KernelStep], inputs: int, device: PartDevice, threads: int) -> Code:
        native = [s for s in steps if s.spec is not None]
        return Code([s.spec for s in native], [s.node.label for s in native],
                    [s.node.op_type for s in native], inputs, _appends(steps), device, threads)


def _appends(steps: Sequence[KernelStep]) -> frozenset[tuple[int, int]]:
    pairs = [(step.args[0], step.args[2]) for step in steps
             if step.spec is not None and step.spec.template == "append_rows"]
    if not pairs:
        return frozenset()
    readers = Counter(index for step in steps for index in {
        a.buffer.index for a in step.args if isinstance(a, Tensor) and a.buffer.kind == "input"})
    return frozenset((old.buffer.index, out.buffer.index) for old, out in pairs
                     if (old.buffer.kind, out.buffer.kind) == ("input", "output")
                     and readers[old.buffer.index] == 1 and old.byte_offset == out.byte_offset == 0)


class Stepped(Plan):
    """The plan of a list of steps; what their lowering knew is in `trail` and `folded`."""

    folded: frozenset[Value] = frozenset()

    def __init__(self, steps: list[KernelStep], inputs: int, outputs: list[tuple[tuple[int, ...], np.dtype]],
                 size: int, scratch: int, status: int, device: PartDevice, threads: int) -> None:
        self.steps, self.trail = steps, Trail()
        native = [s for s in steps if s.spec is not None]
        work = np.array([(s.items, s.grain) for s in native], np.int64).reshape(-1, 2)
        code = Code.of(steps, inputs, device, threads)
        super().__init__(code, Cells.of(steps, inputs, device, status), work, outputs, size, scratch, status)
        if len(native) < len(steps):
            self.hosts = [(i - at, step) for at, (i, step) in enumerate(
                (i, step) for i, step in enumerate(steps) if step.spec is None)]

    def works(self, part: Part) -> list[Work]:
        """What each step does, and for which nodes of `part`."""
        return [Work(s.node, s.spec.template if s.spec else s.node.op_type, (s.node,), (), (), {})
                for s in self.steps]


class Lowered(Stepped):
    """The plan that a lowering makes, and what it knew of values."""

    def __init__(self, lowering: Lowering, n_inputs: int, outputs: Sequence[Value], device: PartDevice,
                 threads: int) -> None:
        steps = lowering.steps
        size = plan(steps, [lowering.status.buffer], lowering.loops)
        scratch = -(-max((s.scratch for s in steps), default=0) // ALIGN) * ALIGN
        made = [(t.shape, numpy_type(t.dtype)) for t in (lowering.outputs[v] for v in outputs)]
        account, trail = Account(lowering), Trail(lowering)
        lowering.let_go()
        super().__init__(steps, n_inputs, made, size, scratch, lowering.status.buffer.offset, device, threads)
        self.account, self.trail, self.folded = account, trail, account.folded

    def works(self, part: Part) -> list[Work]:
        return self.account.works(part, self.steps)


@dataclass(frozen=True)
class Cells:
    """The arguments of a plan's kernels, without what depends on where its arena and its arrays lie: 0 in
    `values`, and a row in `arena`, of a cell and an offset, or in `arrays`, of an array's index, a cell and
    bytes into the array. `begins`: the first cell of each kernel's step. `kept` owns what is pointed to;
    `constants`: which cells point there, each with the array and bytes into it."""

    values: np.ndarray
    arena: np.ndarray
    arrays: np.ndarray
    begins: np.ndarray
    kept: Any
    constants: Callable[[], list[tuple[int, np.ndarray, int]]]

    @staticmethod
    def of(steps: Sequence[KernelStep], inputs: int, device: PartDevice, status: int) -> Cells:
        given = Arguments(steps, inputs, device, Buffer("arena", 64, offset=status))
        arena = [(cell, buffer.offset + offset) for cell, buffer, offset in given.arena]
        return Cells(np.array(given.values, np.int64), np.array(arena, np.int64).reshape(-1, 2),
                     np.array(given.arrays, np.int64).reshape(-1, 3), np.array(given.begins, np.int64),
                     given.kept, lambda: given.constants)


class Arguments:
    """What kernels are given, cell behind cell: `values`, which may be `SymInt`s, and 0 for what is not known
    yet: in `arena` and `tables` a cell, the buffer whose address it is, and bytes into it; in `arrays` an
    array's index, a cell and bytes. `begins`, `kept`, `constants`: see `Cells`. `report`: the buffer of the
    status."""

    def __init__(self, steps: Sequence[KernelStep], inputs: int, device: PartDevice, report: Buffer) -> None:
        self.values: list[Any] = []
        self.arena: list[tuple[int, Buffer, int]] = []
        self.tables: list[tuple[int, Buffer, int]] = []
        self.arrays: list[tuple[int, int, int]] = []
        self.begins: list[int] = []
        self.kept: dict[int, np.ndarray] = {}
        self.constants: list[tuple[int, np.ndarray, Any]] = []
        self.inputs, self.device = inputs, device
        checked = device.machine.checked
        for step in steps:
            if step.spec is None:
                for a in step.args:
                    if isinstance(a, Tensor) and a.buffer.array is not None:
                        laid(a.buffer, device, self.kept)
                continue
            self.begins.append(len(self.values) + (front(len(step.args)) if checked else 0))
            for a in step_args(step, report) if checked else step.args:
                self.values.append(self._pointed(a) if isinstance(a, Tensor) else
                                   a if type(a) in (int, SymInt) else bits(a))

    def _pointed(self, t: Tensor) -> int:
        """The address of a tensor's first element, or 0."""
        cell, buffer, offset = len(self.values), t.buffer, t.byte_offset
        if buffer.array is not None:
            at = laid(buffer, self.device, self.kept)
            self.constants.append((cell, self.kept[at], offset))
            return at + offset
        if buffer.kind in ("arena", "table"):
            (self.arena if buffer.kind == "arena" else self.tables).append((cell, buffer, offset))
        else:
            self.arrays.append((buffer.index + (self.inputs if buffer.kind == "output" else 0), cell, offset))
        return 0


def step_args(step: KernelStep, report: Buffer) -> list[Any]:
    """The arguments of a step whose kernel looks where it reads and writes, and what stands in front of them.
    `report`: that of the status, whose cells behind the first are for a note."""
    edges = [(Tensor("int8", (), (), a.buffer), Tensor("int8", (), (), a.buffer, a.buffer.size))
             if isinstance(a, Tensor) else (0, 0) for a in step.args]
    return guarded(step.args, edges, step.scratch, Tensor("int64", (), (), report, 1))


def bits(number: float) -> int:
    """What a cell holds for a number that is no size."""
    return int(_BITS.unpack(_FLOAT.pack(number))[0]) if isinstance(number, float) else int(number)


def laid(buffer: Buffer, device: PartDevice, kept: dict[int, np.ndarray]) -> int:
    """The address of a constant, where kernels can read it; its array is put into `kept`."""
    if not buffer.address:
        buffer.array = device.constant(in_memory(buffer.array))
        buffer.address = buffer.array.ctypes.data
    assert buffer.array is not None
    kept[buffer.address] = buffer.array
    return buffer.address


class Instance:
    """Arena, argument cells and step table of one run. `run(inputs, outputs)` fills the outputs."""

    def __init__(self, made: Plan) -> None:
        code, given = made.code, made.cells
        device, threads = code.device, code.threads
        self.arena = device.arena(made.size + made.scratch * threads)
        self.base = self.arena.base
        self._start = self.base - self.arena.room.ctypes.data
        self.status = np.ndarray(1 + NOTED, np.int64, self.arena.room.data, self._start + made.status)
        cells = device.room(8 * len(given.values) + 8).view(np.int64)
        cells[:-1] = given.values
        cells[given.arena[:, 0]] = given.arena[:, 1] + self.base
        self.table = np.empty((len(made.work), scheduler.STEP), np.int64)
        self.table[:, 0] = code.kernels
        self.begins = self.table[:, 1] = given.begins * 8 + cells.ctypes.data
        self.table[:, 2:4] = made.work
        patches = given.arrays * (1, 8, 1)
        patches[:, 1] += cells.ctypes.data
        self.names = code.names
        self._alone: dict[int, Callable[..., None]] = {}
        self._program = functools.partial(
            device.program, arrays=code.inputs + len(made.outputs), patches=patches, threads=threads,
            scratch=self.base + made.size, scratch_size=made.scratch, hold=made.small,
            keep=(self.arena, cells, given.kept, code.kernels))
        first = 0
        self.parts: list[tuple[Callable[..., None] | None, KernelStep | None]] = []
        for row, step in (*made.hosts, (len(self.table), None)):
            self.parts.append((self.program(first, row) if row > first else None, step))
            first = row

    def look(self, made: Plan) -> None:
        """Raise EPFail where a kernel that looks where it reads and writes has noted something."""
        note = self.status[1:]
        if note[0]:
            row = int(np.searchsorted(self.begins, note[-1]))
            step = [s for s in made.steps if s.spec][row] if isinstance(made, Stepped) else None
            args = [f"{a.dtype}{list(a.shape)} of the {a.buffer.kind}" if isinstance(a, Tensor) else a
                    for a in (step.args if step else ())]
            refuse(note, str(step.spec) if step else "by a formula", self.names[row], args)

    def program(self, first: int, last: int) -> Callable[..., None]:
        """A function that runs these rows of the table."""
        return self._program(self.table[first:last], self.names[first:last])

    def single(self, row: int) -> Callable[..., None]:
        """A function that runs one row of the table alone."""
        if row not in self._alone:
            self._alone[row] = self.program(row, row + 1)
        return self._alone[row]

    def view(self, t: Tensor, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> np.ndarray:
        """A tensor as a numpy array."""
        b = t.buffer
        dtype = numpy_type(t.dtype)
        strides = tuple(s * dtype.itemsize for s in t.strides)
        if b.kind == "arena":
            at = self._start + b.offset + t.byte_offset
            return np.ndarray(t.shape, dtype, self.arena.room.data, at, strides)
        whole = inputs[b.index] if b.kind == "input" else outputs[b.index] if b.kind == "output" else b.array
        assert whole is not None
        flat = whole.reshape(-1)
        return np.lib.stride_tricks.as_strided(flat[t.offset:], t.shape, strides)
