"""The code beside kernels that runs them, as units of the library: what each is called, and who writes it.

Nothing that writes code is imported before code has to be written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...records import dataclass

if TYPE_CHECKING:
    from ..machines.machine import Machine


@dataclass(frozen=True)
class Runtime:
    """The module's functions: `drive(block)`, `work(pool)`, which a worker thread sits in, and
    `pauses(n)`."""

    name: str = "drive"

    @property
    def origin(self) -> str:
        return __file__

    def text(self, machine: Machine) -> str:
        from . import scheduler

        return scheduler.text(machine)


@dataclass(frozen=True)
class Entry:
    """The module with `run(self, arrays, count)`, where `self` is the array that holds the program block.
    `header`: bytes of an object before its own fields; its type is the last of them."""

    header: int
    name: str = "entry"

    @property
    def origin(self) -> str:
        return __file__

    def text(self, machine: Machine) -> str:
        from . import entering

        return entering.text(machine, self.header)


@dataclass(frozen=True)
class Quick:
    """The module with `quick(self, args, count)`, where `self` is the array of a door's cells."""

    header: int
    name: str = "quick"

    @property
    def origin(self) -> str:
        return __file__

    def text(self, machine: Machine) -> str:
        from . import whole_run

        return whole_run.text(machine, self.header)
