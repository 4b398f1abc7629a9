"""Plans as native memory: what a run of a compiled part needs, whoever made it.

In: addresses of kernels, the cells of their arguments, the size of an arena. Out: instances, each of which
serves one run at a time; a second run at the same moment gets one of its own. Nothing that lowers or compiles
is imported here: plans come from packages too.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import memory
from ..codegen.runtime.cells import JUMP, STEP
from ..codegen.runtime.fastcall import FastRun
from ..codegen.write.notes import NOTED, refuse
from ..records import cached_property, dataclass

if TYPE_CHECKING:
    from ..codegen.write.spec import Spec
    from .device import PartDevice
    from .step import KernelStep
    from .tensor import Tensor

_IDLE = 4
"""Idle instances a plan keeps."""


class Plan:
    """What an instance needs to know of a part for one tuple of input shapes: kernels, their arguments, where
    in the arena things lie. `take()` gives the memory of one run. `work`: items and grain of each kernel's
    step; `size`, `scratch`: bytes of the arena, and for each thread behind it; `bytes`: of all that a run
    takes, with its outputs; `status`: where in the arena a kernel says that it gave up. `hosts`:
    steps of numpy, each with the number of kernels before it. `steps`: all there are, empty where nobody
    knows."""

    hosts: Sequence[tuple[int, KernelStep]] = ()
    steps: Sequence[KernelStep] = ()
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
    def jumps(self) -> bool:
        """Whether a run may leave steps out, or come to them again; such a plan has kernels alone."""
        return JUMP in self.work[:, 0]

    @property
    def definitions(self) -> bool:
        """Whether numpy has every step: the nodes' definitions do the same without an arena."""
        return not len(self.work) and bool(self.hosts)

    def take(self) -> Instance:
        """An instance nobody uses, in an arena that no run uses."""
        for instance in self.idle:
            if instance.arena.seize():
                try:  # noqa: SIM105
                    self.idle.remove(instance)
                except ValueError:
                    pass
                return instance
        return Instance(self)

    def give(self, instance: Instance) -> None:
        if len(self.idle) < _IDLE:
            self.idle.append(instance)
        instance.arena.let_go()


@dataclass(frozen=True)
class Code:
    """What plans of the same steps have in common: the kernels' addresses, if they are known before the
    device is asked, and what they are; the labels and operators of the nodes they are for, the number of
    inputs. `appends`: an input and an output each that may be the same memory: a cache that rows are appended
    to, and that nothing else reads."""

    known: list[int] | None
    specs: list[Spec]
    names: list[str]
    operators: list[str]
    inputs: int
    appends: frozenset[tuple[int, int]]
    device: PartDevice
    threads: int

    @cached_property
    def kernels(self) -> list[int]:
        """The kernels' addresses as the device gave them. Raises RuntimeError for a kernel that LLVM
        refuses."""
        return self.known if self.known is not None else self.device.addresses(self.specs)

    def ready(self) -> Code:
        """The same, its kernels compiled."""
        assert self.kernels is not None
        return self


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
        self.table = np.empty((len(made.work), STEP), np.int64)
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
            native = [step for step in made.steps if step.spec is not None]
            step = native[row] if native else None
            args = [f"{a.dtype}{list(a.shape)} of the {a.buffer.kind}" if hasattr(a, "buffer") else a
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

    def order(self, arrays: Sequence[np.ndarray]) -> Iterator[int]:
        """The rows as a run of these inputs and outputs comes to them, jumps left out: each is to be run
        before the next is asked for."""
        self.program(0, 0)(*arrays)
        row, count = 0, len(self.table)
        while row < count:
            if self.table[row, 2] != JUMP:
                yield row
                row += 1
                continue
            truth, target, wanted = (ctypes.c_int64 * 3).from_address(int(self.begins[row]))
            true = ctypes.c_uint8.from_address(truth).value != 0
            row = target if true == (wanted != 0) else row + 1

    def view(self, t: Tensor, inputs: Sequence[np.ndarray], outputs: Sequence[np.ndarray]) -> np.ndarray:
        """A tensor as a numpy array."""
        from .tensor import numpy_type

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


def entered(plan: Plan, inputs: Sequence[tuple[tuple[int, ...], np.dtype[Any]]]) -> FastRun | None:
    """What runs a plan for `inputs`, (shape, type) each, all in generated code; None where it has other
    steps, or results that are large, see `handed_out`."""
    sizes = [math.prod(shape) * dtype.itemsize for shape, dtype in plan.outputs]
    if not plan.native or max(sizes, default=0) > memory.LARGE:
        return None
    instance = plan.take()
    call: Any = instance.parts[0][0]
    return FastRun(call.__self__, instance.status, list(inputs), plan.outputs,
                   functools.partial(plan.give, instance))
