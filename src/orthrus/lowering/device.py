"""Where the kernels of a compiled part run: their code, the memory they may touch, the programs made of them.

`PartDevice` is this process. A provider whose kernels run elsewhere hands parts another one.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from ..codegen.machines.executable import placed
from ..codegen.machines.machine import Machine
from ..codegen.object import library
from ..codegen.runtime import entry
from ..codegen.runtime.threads import pool
from ..codegen.write.spec import Spec
from ..locks import lock
from ..memory import LINE as ALIGN


class Arena:
    """`size` bytes at `base`, for one run at a time: that for which `seize` said True, until it is `let_go`.
    Plans for other shapes use the same, as memory costs most when it is touched first.

    Who has it keeps it in a forked child, where a lock would be free: a program that is entered without
    Python holds its arena between its runs too."""

    def __init__(self, room: np.ndarray) -> None:
        self.room = room
        self.base = room.ctypes.data + -room.ctypes.data % ALIGN
        self.size = room.nbytes - ALIGN
        self._free = [True]

    @property
    def in_use(self) -> bool:
        """Whether a run has it."""
        return not self._free

    def seize(self) -> bool:
        """Have it; False where somebody else does."""
        try:
            return self._free.pop()
        except IndexError:
            return False

    def let_go(self) -> None:
        """Leave it to others."""
        self._free.append(True)


class Loaded(Protocol):
    """Code where kernels run, for as long as this is."""

    @property
    def address(self) -> int:
        """Where it begins."""


class PartDevice:
    """This process and its pool of threads. `apart`: whether kernels can only touch what `room` gave."""

    apart = False

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._arenas: list[weakref.ref[Arena]] = []
        self._lock = lock()

    @property
    def capacity(self) -> int:
        """Threads a program may use at most."""
        return pool().capacity

    def addresses(self, specs: Sequence[Spec]) -> list[int]:
        """Where kernels start: their code is there for as long as the list. Raises RuntimeError for one that
        LLVM refuses."""
        return library.kernels(specs, self.machine)

    def load(self, image: np.ndarray) -> Loaded:
        """Code that is the same wherever it lies, ready to run. Raises Fail where memory cannot be made
        executable."""
        return placed(image)

    def room(self, size: int) -> np.ndarray:
        """New memory, uint8, that kernels may read and write. Raises MemoryError."""
        return np.empty(size, np.uint8)

    def arena(self, size: int) -> Arena:
        """An arena of at least `size` bytes, seized; a new one where all that are large enough are
        in use. Raises MemoryError."""
        with self._lock:
            there = [arena for each in self._arenas if (arena := each()) is not None]
            for arena in sorted(there, key=lambda arena: arena.size):
                if arena.size >= size and arena.seize():
                    return arena
            step = max(1 << 16, 1 << size.bit_length() >> 3)
            made = Arena(self.room(-(-size // step) * step + ALIGN))
            made.seize()
            self._arenas = [*map(weakref.ref, there), weakref.ref(made)]
            return made

    def empty(self, shape: Sequence[int], dtype: np.dtype) -> np.ndarray:
        """A new array there, in C order."""
        size = math.prod(shape) * dtype.itemsize
        return self.room(size).view(dtype).reshape(shape)

    def constant(self, array: np.ndarray) -> np.ndarray:
        """`array` where kernels can read it."""
        return np.ascontiguousarray(array)

    def ready(self, threads: int) -> None:
        """Threads are about to be needed."""
        pool().summon(threads)

    def program(self, table: np.ndarray, names: Sequence[str], **given: Any) -> Callable[..., None]:
        """A function of arrays, from `room` where kernels are apart, that runs the steps of `table`. `names`:
        whom each is named after. The rest is said at `codegen.runtime.entry.block`."""
        return entry.make(entry.block(table, **given))


class Compiling(PartDevice):
    """No place to run: kernels are compiled for `machine`, and that is all."""

    def addresses(self, specs: Sequence[Spec]) -> list[int]:
        library.objects(specs, self.machine)
        return [0] * len(specs)

    def constant(self, array: np.ndarray) -> np.ndarray:
        return array
