"""What a model's steps would take on a SpacemiT chip, from the code that would run there.

In: plans that a `Planner` and a `Rest` made instead of running anything. Out: a `StepTime` for each step.
Every distinct kernel with its arguments is followed once (`cycles_walk`): all its items where they are few,
else a pair at two places, the others taken to cost what the second of a pair does.

A step takes as long as its instructions, or as its bytes need from L2 and from DRAM, whichever is longer;
what the step before left in L2 need not come from DRAM. Steps of numpy are a guess: see `HOST`.
"""

from __future__ import annotations

import contextlib
import functools
import struct
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...codegen.machines.machine import Machine
from ...codegen.write.spec import Spec
from ...kernels import Part
from ...lowering.device import PartDevice
from ...lowering.native import Native
from ...lowering.plans import Stepped
from ...lowering.step import KernelStep
from ...lowering.tensor import Tensor
from ...records import dataclass
from ..generating import CompleteProvider, GeneratingProvider
from . import cycles_code, targets
from .cycles import Chip
from .cycles import chip as known
from .cycles_timing import MATRIX, MOVER, VECTORS
from .cycles_walk import NOTHING_DONE, Look, Tally, TooLong, Walk
from .provider import SpaceMITExecutionProvider

HOST = (50_000.0, 4.0)
"""Nanoseconds that a step of numpy takes: for calling it, and per byte of its tensors. Assumed."""

_FEW, _SAMPLE, _PLACES = 6, 2, (0.2, 0.7)
"""Items that are all followed; where there are more, how many in a row, and from where on among them."""
_ARENA, _OTHERS, _APART = 1 << 36, 1 << 41, 1 << 34
_TABLE = 4096
"""Bytes of a constant up to which kernels that read others are taken to be others."""


class _Paper(PartDevice):
    """Where nothing runs: kernels have no address, constants stay where they are."""

    def __init__(self, machine: Machine, cores: int) -> None:
        super().__init__(machine)
        self._cores = cores

    @property
    def capacity(self) -> int:
        return self._cores

    def addresses(self, specs: Sequence[Spec]) -> list[int]:
        return [0] * len(specs)

    def constant(self, array: np.ndarray) -> np.ndarray:
        return array


class _Planning(GeneratingProvider):
    """Nothing that is compiled runs: `made` gets what would."""

    def __init__(self, target: str, cores: int, options: dict[str, str] | None = None) -> None:
        super().__init__(options)
        self.machine = machine_of(target)
        self.runs_on = _Paper(self.machine, cores)
        self.made: list[Native] = []

    @classmethod
    def probe(cls) -> None:
        return None

    def _machine(self) -> Machine:
        return self.machine

    def _device(self, machine: Machine) -> PartDevice:
        return self.runs_on

    def _prepared(self, part: Part, device: PartDevice) -> Native:
        native = super()._prepared(part, device)
        self.made.append(native)
        return native


class Planner(_Planning, SpaceMITExecutionProvider):
    """The provider on paper."""

    def __init__(self, target: str, cores: int) -> None:
        super().__init__(target, cores, {"target": target})


class Rest(_Planning, CompleteProvider):
    """What the CPU provider would be on the chip: it takes what `Planner` leaves."""

    name = "CPUExecutionProvider"


def machine_of(target: str) -> Machine:
    """The machine that code for `target` is generated for. Raises InvalidArgument that lists the names."""
    known(target)
    return targets.named(target)


@dataclass(frozen=True)
class StepTime:
    """One step. `milliseconds` on all cores, `cycles` of the core that takes longest; `bound`: what it waits
    for: "matrix" or "vector", the unit that is busy most of the time; "issue", instructions one after the
    other, or their results; "memory"; "host" for a step of numpy. `instructions` and `busy` of all items;
    `near`, `far`: bytes from L2 and DRAM."""

    step: KernelStep
    kernel: str
    milliseconds: float
    cycles: float
    bound: str
    items: int
    instructions: int = 0
    near: float = 0.0
    far: float = 0.0
    busy: tuple[float, ...] = ()


class Estimator:
    """Follows kernels for one target and remembers what it found. One for several models, core counts and
    variations of a chip saves most of the work."""

    def __init__(self, target: str) -> None:
        self.machine = machine_of(target)
        self._codes: dict[Spec, cycles_code.CycleCode] = {}
        self._known: dict[Any, Tally] = {}

    def times(self, plan: Stepped, chip: Chip, cores: int) -> list[StepTime]:
        """A time for each step of `plan` on `cores` cores."""
        resident, memory = _Resident(0.75 * chip.l2), _Memory()
        return [self._time(step, memory, chip, cores, resident) for step in plan.steps]

    def _time(self, step: KernelStep, memory: _Memory, chip: Chip, cores: int, resident: _Resident
              ) -> StepTime:
        size = sum(t.buffer.size or t.size * t.itemsize for t in step.tensors())
        if step.spec is None:
            spent = host_time(size)
            return StepTime(step, f"reference {step.node.op_type}", spent, spent * 1e6 * chip.core.clock,
                            "host", 1, far=size)
        used = max(1, min(cores, step.items // step.grain))
        tally = self._tally(step, memory, chip, used)
        share = -(-step.items // used) / step.items
        near = tally.near * share / chip.core.l2_rate / chip.core.clock
        far = max(0.0, tally.far - resident.hits(step))
        waiting = max(near, far / chip.bandwidth(used))
        working = tally.cycles * share / chip.core.clock
        spent = max(working, waiting) if chip.overlapped else working + waiting
        fork = 1000 * chip.fork * (1.0 if used > 1 else 0.1)
        return StepTime(step, step.spec.template, (spent + fork) / 1e6, tally.cycles * share,
                        _bound(tally, working, waiting), step.items, tally.instructions, tally.near, far,
                        tally.busy)

    def _tally(self, step: KernelStep, memory: _Memory, chip: Chip, cores: int) -> Tally:
        """All items of a step, on one core while `cores` work."""
        assert step.spec is not None
        cells = [memory.cell(a) for a in step.args]
        numbers = tuple(_table(a) if isinstance(a, Tensor) else c
                        for c, a in zip(cells, step.args, strict=True))
        near = replace(chip.core, clock=1.0, l2_rate=1.0)
        key = step.spec, step.items, numbers, near, chip.l2, min(cores, 2)
        if key not in self._known:
            code = self._codes.get(step.spec)
            if code is None:
                code = self._codes[step.spec] = cycles_code.read(step.spec.text(self.machine), self.machine)
            walk = Walk(code, chip, cores if cores == 1 else chip.cluster)
            self._known[key] = _all_items(walk, cells, step.items, memory.look)
        return self._known[key]


def _all_items(walk: Walk, cells: list[int], items: int, look: Look) -> Tally:
    if items <= _FEW:
        with contextlib.suppress(TooLong):
            return walk.run(cells, 0, items, look)
    once = several = NOTHING_DONE
    places = [round(at * (items - _SAMPLE)) for at in _PLACES if items > _SAMPLE] or [0]
    size = min(_SAMPLE, items)
    for begin in places:
        once = once.plus(walk.run(cells, begin, begin + 1, look))
        if size > 1:
            several = several.plus(walk.run(cells, begin, begin + size, look))
    if size == 1:
        return once
    more = several.plus(once.scaled(-1.0)).scaled(1 / len(places) / (size - 1))
    return once.scaled(1 / len(places)).plus(more.scaled(items - 1))


def _bound(tally: Tally, working: float, waiting: float) -> str:
    if waiting > working:
        return "memory"
    vector = tally.busy[VECTORS] + tally.busy[MATRIX]
    if tally.busy[MATRIX] > 0.5 * tally.cycles:
        return "matrix"
    return "vector" if max(vector, tally.busy[MOVER]) > 0.5 * tally.cycles else "issue"


class _Resident:
    """Which buffers lie in a cache of `room` bytes, the last used ones."""

    def __init__(self, room: float) -> None:
        self.room = room
        self.held: OrderedDict[int, int] = OrderedDict()

    def hits(self, step: KernelStep) -> int:
        """The bytes of a step that are there, or that it writes and leaves there."""
        found = 0
        written = {id(t.buffer) for t in step.outs}
        for t in {id(t.buffer): t for t in step.tensors()}.values():
            size = t.buffer.size or t.size * t.itemsize
            known = id(t.buffer) in self.held
            if size <= self.room / 2 and (known or id(t.buffer) in written):
                found += size
            self.held[id(t.buffer)] = size
            self.held.move_to_end(id(t.buffer))
        while sum(self.held.values()) > self.room:
            self.held.popitem(last=False)
        return found


def _table(t: Tensor) -> bytes:
    """What a kernel may go by beside numbers: a small constant of integers."""
    array = t.buffer.array
    small = array is not None and array.dtype.kind in "iu" and array.itemsize >= 4 and array.nbytes <= _TABLE
    return array.tobytes() if small and array is not None else b""


class _Memory:
    """Addresses for the buffers of a plan, as far apart as none is large."""

    def __init__(self) -> None:
        self.buffers: dict[int, int] = {}
        self.arrays: list[np.ndarray | None] = []

    def cell(self, a: Any) -> int:
        """An argument as a kernel gets it."""
        if not isinstance(a, Tensor):
            return struct.unpack("<i", struct.pack("<f", a))[0] if isinstance(a, float) else int(a)
        if a.buffer.kind == "arena":
            return _ARENA + a.buffer.offset + a.byte_offset
        if id(a.buffer) not in self.buffers:
            self.buffers[id(a.buffer)] = len(self.arrays)
            self.arrays.append(a.buffer.array)
        return _OTHERS + _APART * self.buffers[id(a.buffer)] + a.byte_offset

    def look(self, where: int, size: int) -> int:
        """The number of `size` bytes at an address, 0 where that is no constant's."""
        which, at = divmod(where - _OTHERS, _APART)
        array = self.arrays[which] if 0 <= which < len(self.arrays) else None
        if array is None or at + size > array.nbytes:
            return 0
        raw = array.reshape(-1).view(np.uint8)[at:at + size].tobytes()
        return int.from_bytes(raw, "little", signed=True)


@functools.cache
def estimator(target: str) -> Estimator:
    """The estimator of a target that this process keeps."""
    return Estimator(target)


def host_time(size: float = 0.0) -> float:
    """Milliseconds of a step of numpy over tensors of `size` bytes."""
    return (HOST[0] + HOST[1] * size) / 1e6
