"""Parts whose kernels run in workers under emulation.

All arrays a kernel touches lie in memory shared with the workers; what comes from elsewhere is copied there,
what parts compute stays there and is an array like any other. One such memory serves all sessions of a
process; every session has workers of its own unless they are told to share.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import queue
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ...codegen.emulate.shared import Shared
from ...codegen.machines.machine import Machine
from ...codegen.object import library
from ...codegen.write.spec import Spec
from ...lowering.device import Loaded, PartDevice
from .profile import Profile
from .team import Lists, Row, Team, gather_workers, note_time

_lock = threading.Lock()
_known: dict[tuple[Machine, str], int] = {}
"""Where kernels of this process's workers start."""


@functools.cache
def memory() -> Shared:
    """The memory of this process's workers."""
    return Shared("riscv64")


def bring(specs: Sequence[Spec], machine: Machine) -> list[int]:
    """Where kernels start in the workers' memory."""
    with _lock:
        missing = {repr(spec): spec for spec in specs if (machine, repr(spec)) not in _known}
        if missing:
            found = memory().lay(lambda at: library.image(list(missing.values()), machine, at))
            _known.update(((machine, name), each["kernel"])
                          for name, each in zip(missing, found, strict=True))
        return [_known[machine, repr(spec)] for spec in specs]


_all: weakref.WeakSet[Teams] = weakref.WeakSet()


class _Room:
    """Shared memory that is given back when no array refers to it any more."""

    def __init__(self, shared: Shared, size: int) -> None:
        self.shared, self.at = shared, shared.take(size)
        self.__array_interface__ = {"shape": (size,), "typestr": "|u1", "data": (self.at, False),
                                    "version": 3}

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError):
            self.shared.release(self.at)


class Teams:
    """`count` teams, each for one run at a time."""

    def __init__(self, vlen: int, size: int, count: int = 1, cores: Sequence[int] = (),
                 seconds: float | None = None, qemu: str | None = None) -> None:
        self.size = size
        self.all = [Team(memory(), vlen, size, cores, seconds, qemu) for _ in range(count)]
        self._give()
        _all.add(self)

    def _give(self) -> None:
        self._free: queue.LifoQueue[Team] = queue.LifoQueue()
        for team in self.all:
            self._free.put(team)

    def part(self) -> None:
        """In a child process: have other workers, all of them free."""
        for team in self.all:
            team.part()
        self._give()

    @contextlib.contextmanager
    def one(self) -> Iterator[Team]:
        """A team that is free; waits for one."""
        team = self._free.get()
        try:
            yield team
        finally:
            self._free.put(team)

    def close(self) -> None:
        for team in self.all:
            team.close()


_common: dict[int, Teams] = {}


def common(vlen: int, *given: Any) -> Teams:
    """The one team that sessions share which say so, as its first user asked for it."""
    with _lock:
        return _common.get(vlen) or _common.setdefault(vlen, Teams(vlen, *given))


def _part() -> None:
    global _lock
    _lock = threading.Lock()
    if memory.cache_info().currsize:
        memory().part()
    for teams in list(_all):
        teams.part()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_part)


class _Loaded(NamedTuple):
    """Code in the workers' memory, which stays."""

    address: int


class Emulated(PartDevice):
    """Workers under qemu. `profile`: gets when each worker did each step, where there is one."""

    apart = True

    def __init__(self, machine: Machine, teams: Teams, profile: Profile | None = None) -> None:
        super().__init__(machine)
        self.teams, self.profile = teams, profile

    @property
    def capacity(self) -> int:
        return self.teams.size

    def addresses(self, specs: Sequence[Spec]) -> list[int]:
        return bring(specs, self.machine)

    def load(self, image: np.ndarray) -> Loaded:
        return memory().lay(lambda at: (image, _Loaded(at)))

    def room(self, size: int) -> np.ndarray:
        return np.asarray(_Room(memory(), size))

    def constant(self, array: np.ndarray) -> np.ndarray:
        array = np.asarray(array)
        if array.flags.c_contiguous and memory().holds(array.ctypes.data):
            return array
        made = self.empty(array.shape, array.dtype)
        made[...] = array
        return made

    def ready(self, threads: int) -> None:
        """Workers start with the first run."""

    def program(self, table: np.ndarray, names: Sequence[str], **given: Any) -> Callable[..., None]:
        return _Program(self, table, names, **given).run


class _Program:
    def __init__(self, device: Emulated, table: np.ndarray, names: Sequence[str], *, arrays: int,
                 patches: np.ndarray, threads: int, scratch: int, scratch_size: int, hold: bool,
                 keep: tuple[Any, ...]) -> None:
        self.device, self.names, self.patches, self.kept = device, list(names), patches.tolist(), keep
        rows = [Row(kernel, args, items, grain, name)
                for (kernel, args, items, grain), name in zip(table.tolist(), names, strict=True)]
        barrier, clock = bring([gather_workers(), note_time()], device.machine)
        self.lists = Lists(memory(), rows, [scratch + i * scratch_size for i in range(threads)], barrier,
                           clock if device.profile is not None else 0)
        weakref.finalize(self, self.lists.release)

    def run(self, *arrays: np.ndarray) -> None:
        for index, at, offset in self.patches:
            ctypes.c_int64.from_address(at).value = arrays[index].ctypes.data + offset
        with self.device.teams.one() as team:
            if self.device.profile is None:
                self.lists.run(team)
            else:
                with self.device.profile.run(self.names) as note:
                    note(self.lists.run(team))
