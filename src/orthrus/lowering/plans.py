"""Plans made of the steps that a lowering wrote: a table of kernels, the cells of their arguments, and the
size of an arena."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..codegen.write.notes import cells as guarded
from ..codegen.write.notes import front
from ..errors import NotImplemented as NotImplementedFail
from ..ir import Value, in_memory
from ..kernels import Part, Work
from ..shapes.symbolic import SymInt
from .attribution import Account
from .device import PartDevice
from .instance import Cells, Code, Plan
from .lower import Lowering
from .memory import ALIGN, appends, plan
from .report import Trail
from .step import KernelStep
from .tensor import Buffer, Tensor, numpy_type

_FLOAT, _BITS = struct.Struct("<f"), struct.Struct("<i")


def code_of(steps: Sequence[KernelStep], inputs: int, device: PartDevice, threads: int) -> Code:
    """What plans of `steps` have in common."""
    native = [s for s in steps if s.spec is not None]
    specs = [s.spec for s in native]
    return Code(None, specs, [s.node.label for s in native],
                [s.node.op_type for s in native], inputs, appends(steps), device, threads)


class Stepped(Plan):
    """The plan of a list of steps; what their lowering knew is in `trail` and `folded`."""

    folded: frozenset[Value] = frozenset()

    def __init__(self, steps: list[KernelStep], inputs: int, outputs: list[tuple[tuple[int, ...], np.dtype]],
                 size: int, scratch: int, status: int, device: PartDevice, threads: int) -> None:
        self.steps, self.trail = steps, Trail()
        native = [s for s in steps if s.spec is not None]
        work = np.array([(s.items, s.grain) for s in native], np.int64).reshape(-1, 2)
        code = code_of(steps, inputs, device, threads)
        super().__init__(code, cells_of(steps, inputs, device, status), work, outputs, size, scratch, status)
        if len(native) < len(steps):
            self.hosts = [(i - at, step) for at, (i, step) in enumerate(
                (i, step) for i, step in enumerate(steps) if step.spec is None)]
            if self.jumps:
                raise NotImplementedFail(f"{self.hosts[0][1].node.label}: numpy computes it, and no step of "
                                         "numpy's is come to by a jump")

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


def cells_of(steps: Sequence[KernelStep], inputs: int, device: PartDevice, status: int) -> Cells:
    """The arguments of `steps`. `status`: where in the arena that of the kernels is."""
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


