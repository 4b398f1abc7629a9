"""Locks that a forked process finds free: whoever held one in its parent is not there to let go of it.

In: nothing. Out: a `threading.Lock` or `RLock`. What such a lock protects has to be whole between any two
of the holder's statements, as that is where a fork may fall.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any

_made: weakref.WeakSet[Any] = weakref.WeakSet()


def lock() -> threading.Lock:
    """A lock that is free in a forked process."""
    made = threading.Lock()
    _made.add(made)
    return made


def rlock() -> threading.RLock:
    """A lock that its holder may take again, free in a forked process."""
    made = threading.RLock()
    _made.add(made)
    return made


def _in_child() -> None:
    for each in _made:
        each._at_fork_reinit()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
