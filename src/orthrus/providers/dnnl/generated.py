"""Kernels of generated code among oneDNN's primitives, for what oneDNN has none for.

In: a kernel's name, its arguments as tensors and numbers, its items. Out: a function that runs it on the
threads of the calling thread's OpenMP team, the same that oneDNN's primitives use. Results do not depend on
how the items are divided.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ... import memory
from ...codegen.machines.detect import host
from ...codegen.machines.machine import Machine
from ...codegen.object import library
from ...codegen.runtime.scheduler import cell
from ...codegen.write.emit import I8, I32, I64, PTR, Module
from ...codegen.write.spec import Spec
from ...ir import No
from ...records import dataclass
from .openmp import OpenMP

if TYPE_CHECKING:
    from .tensor import Tensor


@dataclass(frozen=True, eq=False, slots=True)
class GeneratedCode:
    """A kernel with its `cells`, a tensor standing for its address; `scratch`: bytes it wants per thread."""

    spec: Spec
    cells: tuple[Tensor | int, ...]
    items: int
    scratch: int = 0


class _Job(IntEnum):
    """The cells of what a team is given."""

    KERNEL, ARGS, ITEMS, ROOM, ROOM_SIZE, NUMBER, COUNT = range(7)


class Team(NamedTuple):
    """The module with `share(job)`, which each thread of a region calls: it does its part of the items. As a
    unit of the library."""

    name: str = "team"

    @property
    def origin(self) -> str:
        return __file__

    def text(self, machine: Machine) -> str:
        module = Module(machine.triple)
        f = module.function("share", [(I64, "job")])
        (job,) = f.params
        place, count = (f.cast(f.call(cell(f, job, which, PTR), [], I32), I64)
                        for which in (_Job.NUMBER, _Job.COUNT))
        items = cell(f, job, _Job.ITEMS)
        room = f.gep(cell(f, job, _Job.ROOM, PTR), place * cell(f, job, _Job.ROOM_SIZE), I8)
        f.call(cell(f, job, _Job.KERNEL, PTR),
               [cell(f, job, _Job.ARGS, PTR), items * place // count, items * (place + 1) // count, room])
        f.ret()
        return str(module)


def missing() -> No | None:
    """Why no code can be generated here, None where it can."""
    return library.available()


def machine() -> Machine:
    """The machine code is generated for; `missing` has nothing to say."""
    found = host()
    assert found is not None
    return found


class Runner:
    """Makes functions that run kernels on `threads` threads of OpenMP."""

    def __init__(self, openmp: OpenMP, threads: int) -> None:
        self.openmp, self.threads = openmp, threads

    def bring(self, codes: Sequence[GeneratedCode]) -> None:
        """Compile the kernels of `codes`, or read them from the cache, all at once."""
        if codes:
            units = [Team()] if self.threads > 1 else []
            library.functions([*units, *(code.spec for code in codes)], machine())

    def bound(self, code: GeneratedCode, cells: np.ndarray) -> Callable[[], None]:
        """A function that runs `code` with the arguments `cells`, int64, as they are at each call."""
        (kernel,) = library.addresses([code.spec], machine())
        size = -(-code.scratch // memory.LINE) * memory.LINE
        room = memory.passing(max(size * self.threads, 1))
        if self.threads == 1:
            call = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)(
                kernel)
            args, items, at = cells.ctypes.data, code.items, room.ctypes.data

            def alone(_kept: object = (cells, room)) -> None:
                call(args, 0, items, at)
            return alone
        share = library.functions([Team()], machine())[0]["share"]
        job = np.zeros(len(_Job), np.int64)
        job[:] = (kernel, cells.ctypes.data, code.items, room.ctypes.data, size, self.openmp.number,
                  self.openmp.count)
        region, where = self.openmp.region, job.ctypes.data

        def shared(_kept: object = (cells, room, job)) -> None:
            region(share, where)
        return shared
