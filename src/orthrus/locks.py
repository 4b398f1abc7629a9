"""Locks that a forked process finds free: whoever held one in its parent is not there to let go of it; and
threads that a fork waits for, as they hold locks of others.

In: nothing. Out: a `threading.Lock` or `RLock`. What such a lock protects has to be whole between any two
of the holder's statements, as that is where a fork may fall.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any

_made: weakref.WeakSet[Any] = weakref.WeakSet()
_threads: weakref.WeakSet[threading.Thread] = weakref.WeakSet()


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


def freed(made: Any) -> None:
    """Let a lock that another package made be free in a forked process, if it is one of `threading`'s."""
    if hasattr(made, "_at_fork_reinit"):
        _made.add(made)


def awaited(thread: threading.Thread) -> threading.Thread:
    """The same thread, which is done before the process forks."""
    _threads.add(thread)
    return thread


def _settle() -> None:
    for thread in list(_threads):
        if thread.is_alive() and thread is not threading.current_thread():
            thread.join()


def _in_child() -> None:
    for each in _made:
        each._at_fork_reinit()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_settle, after_in_child=_in_child)
