"""Budgets: how much memory, how many nodes, how many turns and how long a model may take.

`Limits` belongs to a session; while one loads or runs, its limits are `current()` on that thread. Whoever
is about to make something large asks before it does: `bounded` for a tensor, `reserve` for any other memory.
Both look also at what is left of `max_total_bytes`, which the account of the run on this thread knows. All
sizes are bytes. The defaults are finite and follow the machine's memory.
"""

from __future__ import annotations

import math
import os
import sys
import time
from contextvars import ContextVar
from dataclasses import field
from typing import Any

import numpy as np

from .errors import Fail, InvalidArgument
from .records import dataclass


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
_state: ContextVar[tuple[Limits, Any]] = ContextVar("limits", default=(DEFAULT, None))


def current() -> Limits:
    """The limits in force on this thread."""
    return _state.get()[0]


def swap(limits: Limits, account: Any = None) -> tuple[Limits, Any]:
    """Put `limits` and the account of a run in force on this thread; answers those that were before. An
    account has `room`: the bytes that the run may still take."""
    before = _state.get()
    _state.set((limits, account))
    return before


class using:
    """`with using(limits, account):` puts both in force on this thread."""

    __slots__ = ("given", "before")

    def __init__(self, limits: Limits, account: Any = None) -> None:
        self.given = limits, account

    def __enter__(self) -> Limits:
        self.before = swap(*self.given)
        return self.given[0]

    def __exit__(self, *_: Any) -> None:
        swap(*self.before)


HARMLESS = 1 << 20
"""Bytes that need no look at the limits before they are made, where that look costs more than they do."""


def bounded(shape: Any, dtype: Any, what: str = "output") -> tuple[int, ...]:
    """`shape` as a tuple of ints, once it is known to be a shape, to fit `max_tensor_bytes`, and what is left
    of `max_total_bytes`.

    Raises InvalidArgument for a negative dimension and Fail for a tensor over the budget.
    """
    dims = tuple(map(int, shape))
    if dims and min(dims) < 0:
        raise InvalidArgument(f"negative dimension in the shape of the {what}", found=list(dims),
                              expected=">= 0")
    size = math.prod(dims) * (dtype if isinstance(dtype, np.dtype) else np.dtype(dtype)).itemsize
    limits, account = _state.get()
    most = limits.max_tensor_bytes
    if size > most:
        raise Fail(f"the {what} would take {size} bytes", found=f"shape {list(dims)} of {dtype}",
                   expected=f"at most {most} bytes per tensor",
                   cure="raise Limits.max_tensor_bytes if this size is meant")
    if size > (limits.max_total_bytes if account is None else account.room):
        reserve(size, f"shape {list(dims)} of {dtype}")
    return dims


def _left() -> int:
    """What is left of `max_total_bytes`."""
    limits, account = _state.get()
    room: int = limits.max_total_bytes if account is None else account.room
    return room


def reserve(size: int, found: str = "") -> None:
    """Raise Fail where `size` bytes more are over what is left of `max_total_bytes`."""
    if size > _left():
        raise over(f"{size} bytes more" + (f", {found}" if found else ""))


def charge(size: int) -> None:
    """Take `size` bytes, fewer than 0 to give some back, from what the run has left, until the step that
    holds them ends. Raises Fail where it has less."""
    account = _state.get()[1]
    if account is not None:
        account.room -= size
        if account.room < 0:
            raise over()


def over(found: str = "") -> Fail:
    """The error of a run that would hold more than it may."""
    most = current().max_total_bytes
    return Fail("the run would hold more memory than it may", found=found or f"over {most} bytes in all",
                expected=f"at most {most} bytes in all",
                cure="raise Limits.max_total_bytes, or feed less at once")


OWNERS: set[int] = set()
"""The ids of arrays that nobody shares memory with though it is another object's; see `memory.handed_out`."""
_FEW = 1 << 24
"""Bytes of text up to which letters that two elements share count twice."""
_LETTERS = 80
"""Bytes of a string beside its letters, at most."""


def held(value: Any) -> int:
    """The bytes of memory that `value` owns: an array, text with its letters, a sequence with its elements.
    Of text that may be more than it is, as long as it is little."""
    if isinstance(value, np.ndarray):
        if value.base is not None and id(value) not in OWNERS:
            return 0
        if not value.dtype.hasobject:
            return value.nbytes
        items = value.ravel().tolist()
        most = value.nbytes + _LETTERS * len(items) + 4 * sum(map(len, items)) if set(map(type, items)) <= {
            str} else _FEW + 1
        return most if most <= _FEW else value.nbytes + sum(
            map(sys.getsizeof, {id(item): item for item in items}.values()))
    if isinstance(value, list):
        known = getattr(value, "held", None)
        return sum(map(held, value)) if known is None else int(known)
    return 0


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
