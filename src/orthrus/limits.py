"""Budgets: how much memory, how many nodes, how many turns and how long a model may take.

`Limits` belongs to a session; while one loads or runs, its limits are `current()` on that
thread, and whoever is about to make something large asks `bounded` first. The defaults are
finite and follow the machine's memory.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .errors import Fail, InvalidArgument


def _machine_bytes() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 8 << 30


@dataclass(frozen=True)
class Limits:
    """Upper bounds for one session; each can be raised by the caller.

    Sizes are in bytes, times in seconds. `max_total_bytes` bounds what a run holds at once;
    `max_fold_bytes` bounds one folded constant.
    """

    max_tensor_bytes: int = field(default_factory=lambda: _machine_bytes() // 2)
    max_total_bytes: int = field(default_factory=_machine_bytes)
    max_model_bytes: int = 1 << 40
    max_nodes: int = 2_000_000
    max_depth: int = 64
    max_loop_trips: int = 1 << 31
    max_fold_bytes: int = 1 << 26
    run_timeout: float = 24 * 3600.0


DEFAULT = Limits()
_state = threading.local()


def current() -> Limits:
    """The limits in force on this thread."""
    return getattr(_state, "limits", DEFAULT)


def swap(limits: Limits) -> Limits:
    """Put `limits` in force on this thread; answers those that were before."""
    before: Limits = getattr(_state, "limits", DEFAULT)
    _state.limits = limits
    return before


class using:
    """`with using(limits):` puts `limits` in force on this thread."""

    __slots__ = ("limits", "before")

    def __init__(self, limits: Limits) -> None:
        self.limits = limits

    def __enter__(self) -> Limits:
        self.before = swap(self.limits)
        return self.limits

    def __exit__(self, *_: Any) -> None:
        swap(self.before)


HARMLESS = 1 << 24
"""Elements that need no look at the limits before they are made."""


def bounded(shape: Any, dtype: Any, what: str = "output") -> tuple[int, ...]:
    """`shape` as a tuple of ints, once it is known to be a shape and to fit `max_tensor_bytes`.

    Raises InvalidArgument for a negative dimension and Fail for a tensor over the budget.
    """
    dims = tuple(int(d) for d in shape)
    size = np.dtype(dtype).itemsize
    for d in dims:
        if d < 0:
            raise InvalidArgument(f"negative dimension in the shape of the {what}", found=list(dims),
                                  expected=">= 0")
        size *= d
    if size > current().max_tensor_bytes:
        raise Fail(f"the {what} would take {size} bytes", found=f"shape {list(dims)} of {dtype}",
                   expected=f"at most {current().max_tensor_bytes} bytes per tensor",
                   cure="raise Limits.max_tensor_bytes if this size is meant")
    return dims


class Deadline:
    """A moment after which a run stops; `check()` raises Fail once it has passed or `cancelled` says so."""

    __slots__ = ("end", "seconds", "cancelled")

    def __init__(self, seconds: float, cancelled: Any = None) -> None:
        self.seconds, self.end, self.cancelled = seconds, time.monotonic() + seconds, cancelled

    def check(self) -> None:
        if self.cancelled is not None and self.cancelled.terminate:
            raise Fail("Exiting due to terminate flag being set to true.")
        if time.monotonic() > self.end:
            raise Fail("Exiting because the run took longer than its timeout.",
                       found=f"over {self.seconds} s",
                       cure="raise RunOptions.timeout or Limits.run_timeout, or make the work smaller")
