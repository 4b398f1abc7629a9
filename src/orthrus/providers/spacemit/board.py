"""Parts whose kernels run in this process, on the board's own cores.

A session's threads are its own, or those that all sessions share which say so; see `codegen.runtime.threads`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...codegen.machines.machine import Machine
from ...codegen.runtime import entry
from ...codegen.runtime.threads import Pool
from ...lowering.device import PartDevice

_common: list[Pool] = []
_lock = threading.Lock()


class Board(PartDevice):
    """This process, with `threads` threads, the calling one included, of a pool of its own, or of the
    `common` one, which is as large as its first user asked for. `cores`: the processor of each thread; the
    calling one is left where it is."""

    def __init__(self, machine: Machine, threads: int, cores: Sequence[int] = (), common: bool = False
                 ) -> None:
        super().__init__(machine)
        if not common:
            self.pool = Pool(threads, cores=cores[1:])
            return
        with _lock:
            if not _common:
                _common.append(Pool(threads, cores=cores[1:]))
            self.pool = _common[0]

    @property
    def capacity(self) -> int:
        return self.pool.capacity

    def ready(self, threads: int) -> None:
        self.pool.summon(threads)

    def program(self, table: np.ndarray, names: Sequence[str], **given: Any) -> Callable[..., None]:
        return entry.make(entry.block(table, using=self.pool, **given))
