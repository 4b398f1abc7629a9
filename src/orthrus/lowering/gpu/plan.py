"""What a GPU does for one tuple of input shapes: kernels to launch with packed arguments, and steps of the
host's between them.

In: a lowering. Out: a plan: its kernels compiled and loaded, the arguments of all of them in one row of
bytes, and where in these the addresses of the arena and of the run's arrays go. Constants are copied to the
device once, when the first plan of a part that reads them is made. """

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any, cast

import numpy as np

from ...codegen.triton import compile as compiling
from ...codegen.triton.compile import CodeObject, Hints
from ...codegen.triton.targets import Target
from ...codegen.triton.write import COUNT, NUMBER, SIZE
from ...ir import Value, in_memory
from ...kernels import Device, Memory, Part, Work
from ...locks import lock
from ...records import dataclass
from ..attribution import Account
from ..memory import appends, plan
from ..report import Trail
from ..step import KernelStep
from ..tensor import Buffer, Tensor, numpy_type
from .graphs import Graphs
from .lower import GpuLowering
from .merging import joined, merged, single

ALIGN = 16
"""Bytes that every array's address is a multiple of: kernels are compiled for that."""

_PIECE = 16
"""Bytes that each kernel's arguments begin at a multiple of."""

FORMATS = {compiling.POINTER: "<u8", compiling.INT32: "<i4", compiling.INT64: "<i8", compiling.FLOAT32:
"<f4"}


@dataclass(frozen=True)
class Launch:
    """One kernel of a plan: what the device calls it, its grid, and where its arguments lie."""

    function: int
    blocks: int
    threads: int
    shared: int
    begin: int
    end: int


class Constants:
    """What kernels read that never changes, on a device: copied there when first asked for."""

    def __init__(self, device: Device) -> None:
        self.device, self.lock = device, lock()
        self.held: dict[int, tuple[Memory, Buffer]] = {}

    def address(self, buffer: Buffer) -> int:
        """Where the device has it. Raises MemoryError."""
        with self.lock:
            if id(buffer) not in self.held:
                array = np.ascontiguousarray(in_memory(buffer.array))
                memory = Memory(self.device, max(1, array.nbytes))
                if array.nbytes:
                    self.device.copy_in(array, memory.handle)
                    self.device.synchronize(self.device.stream)
                self.held[id(buffer)] = memory, buffer
            return int(self.held[id(buffer)][0].handle)


@dataclass
class _Packing:
    """The arguments of a plan while they are put together: `arena` and `arrays` are rows of a cell of 8
    bytes, the offset in the arena, or in an array and which one."""

    data: bytearray = field(default_factory=bytearray)
    arena: list[tuple[int, int]] = field(default_factory=list)
    arrays: list[tuple[int, int, int]] = field(default_factory=list)


class GpuPlan:
    """The plan of a list of steps, whose kernels are `codes`, for `inputs` arrays and `outputs` of these
    shapes and types. `address`: where a constant is on `device`.

    `steps` in order, `parts` of the run: launches without a break, each behind the host's step that comes
    first, if one does; `hosted`: whose steps these are. `status`: where in the arena kernels say that they
    gave up, -1 where none may; `size`: bytes of the arena; `bytes`: of all that a run takes, with its
    outputs; `graphs`: runs that are recorded; `appends`: see there."""

    definitions = False
    scratch = 0
    seconds = 0.0
    folded: frozenset[Value] = frozenset()

    def __init__(self, steps: list[KernelStep], codes: Sequence[CodeObject], inputs: int,
                 outputs: list[tuple[tuple[int, ...], np.dtype[Any]]], size: int, status: int, device: Device,
                 address: Callable[[Buffer], int]) -> None:
        self.described(steps, codes, inputs, outputs, size, status, device)
        self.appends = appends(single(steps))
        self._pack(address)

    def described(self, steps: list[KernelStep], codes: Sequence[CodeObject], inputs: int,
                  outputs: list[tuple[tuple[int, ...], np.dtype[Any]]], size: int, status: int, device: Device
                  ) -> None:
        """What is known of a plan before its arguments are."""
        self.steps, self.codes, self.trail = steps, codes, Trail()
        self.inputs, self.outputs, self.size, self.status = inputs, outputs, size, status
        self.bytes = size + sum(math.prod(shape) * dtype.itemsize for shape, dtype in outputs)
        self.device, self.graphs = device, cast(Graphs | None, None)
        self.hosted = [step.node.label for step in steps if step.spec is None]
        self.idle: list[Any] = []

    def works(self, part: Part) -> list[Work]:
        """What each step does, and for which nodes of `part`."""
        return [Work(s.node, s.spec.template if s.spec else s.node.op_type, (s.node,), (), (), {})
                for s in self.steps]

    def _pack(self, address: Callable[[Buffer], int]) -> None:
        packing = _Packing()
        self.launches: list[Launch | None] = []
        codes = iter(self.codes)
        for step in self.steps:
            if step.spec is None:
                self.launches.append(None)
                continue
            code = next(codes)
            begin = len(packing.data)
            self._arguments(step, code, packing, address)
            function = self.device.function(code.data, code.name, code.shared)
            self.launches.append(Launch(function, step.items, code.threads, code.shared, begin,
                                        begin + code.layout[1]))
        self.packed = np.frombuffer(bytes(packing.data), np.uint8)
        self.arena = np.array(packing.arena, np.int64).reshape(-1, 2)
        self.arrays = np.array(packing.arrays, np.int64).reshape(-1, 3)
        self.parts: list[tuple[KernelStep | None, list[Launch]]] = [(None, [])]
        for step, launch in zip(self.steps, self.launches, strict=True):
            if launch is None:
                self.parts.append((step, []))
            else:
                self.parts[-1][1].append(launch)

    def _arguments(self, step: KernelStep, code: CodeObject, packing: _Packing,
                   address: Callable[[Buffer], int]) -> None:
        offsets, size = code.layout
        at = len(packing.data)
        piece = np.zeros(room(size), np.uint8)
        for kind, offset, given in zip(code.kinds, offsets, step.args, strict=False):
            value = given
            if isinstance(given, Tensor):
                value, buffer = 0, given.buffer
                cell = (at + offset) // 8
                if buffer.kind == "const":
                    value = address(buffer) + given.byte_offset
                elif buffer.kind == "arena":
                    packing.arena.append((cell, buffer.offset + given.byte_offset))
                else:
                    which = buffer.index + (self.inputs if buffer.kind == "output" else 0)
                    packing.arrays.append((cell, given.byte_offset, which))
            piece[offset:offset + np.dtype(FORMATS[kind]).itemsize] = np.array(
                [value], FORMATS[kind]).view(np.uint8)
        packing.data += piece.tobytes()

    def packed_for(self, arena: int, addresses: np.ndarray) -> bytes:
        """All arguments of a run whose arena is there, and whose inputs and outputs have these addresses."""
        data = self.packed.copy()
        cells = data.view(np.int64)
        cells[self.arena[:, 0]] = self.arena[:, 1] + arena
        cells[self.arrays[:, 0]] = self.arrays[:, 1] + addresses[self.arrays[:, 2]]
        return data.tobytes()


class LoweredPlan(GpuPlan):
    """The plan that a lowering makes, and what it knew of values."""

    def __init__(self, lowering: GpuLowering, outputs: Sequence[Value], inputs: int, device: Device,
                 constants: Constants) -> None:
        report, target = lowering.status.buffer, lowering.target
        steps = merged(lowering.steps, target, report)
        reports = any(t.buffer is report for s in steps for t in s.outs)
        size = plan(steps, [report] if reports else [])
        made = [(t.shape, numpy_type(t.dtype)) for t in (lowering.outputs[v] for v in outputs)]
        account, trail = Account(lowering), Trail(lowering)
        self.constants = Constants(device)
        shared = {id(t.buffer) for t in lowering.constants.values()}
        lowering.let_go()
        codes = compiling.codes([(s.spec, target, hints(s, target)) for s in steps if s.spec is not None])
        super().__init__(steps, codes, inputs, made, size, report.offset, device, lambda buffer: (
            constants if id(buffer) in shared else self.constants).address(buffer))
        self.account, self.trail, self.folded = account, trail, account.folded

    def works(self, part: Part) -> list[Work]:
        return joined(self.account.works(part, single(self.steps)), self.steps)


def room(size: int) -> int:
    """Bytes from where a kernel's arguments, of so many, begin to where the next one's do."""
    return -(-size // _PIECE) * _PIECE


def hints(step: KernelStep, target: Target) -> Hints:
    """What is known of a step's arguments."""
    assert step.spec is not None
    declared = step.spec.written(target).arguments
    assert len(declared) == len(step.args), (
        f"{step.spec.template} declares {[name for name, _ in declared]} and is given {step.args}")
    return tuple(_hint(kind, given) for (_, kind), given in zip(declared, step.args, strict=True))


def _hint(kind: str, given: Any) -> str:
    if isinstance(given, Tensor):
        start = given.buffer.offset if given.buffer.kind == "arena" else 0
        return "16" if (start + given.byte_offset) % ALIGN == 0 else ""
    if kind in (SIZE, COUNT):
        return ("" if -1 << 31 <= given < 1 << 31 else "q") + ("" if kind == COUNT or given % 16 else "16")
    assert kind == NUMBER, f"{given!r} for a pointer"
    return ""
