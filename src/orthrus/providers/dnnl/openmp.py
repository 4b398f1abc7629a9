"""The OpenMP runtime that oneDNN brings: how many threads a call uses, how long they look for work, forks.

In: a number of threads. Out: the calling thread's OpenMP setting for as long as a `with` lasts. A team of
workers belongs to the thread that called; it waits for `SPIN` turns behind each parallel region and then
sleeps, and no team is left in a process that is about to fork.
"""

from __future__ import annotations

import ctypes
import os
import threading
from typing import Any

from ...ir import No

NAME = "libgomp.so.1"

SPIN = 20_000
"""Turns an idle worker looks for the next region before it sleeps, some 250 µs: longer than the pause between
two primitives or two parts, and between runs that follow each other at once."""

_SETTINGS = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
_PAUSE_HARD = 2


class OpenMP:
    """libgomp, loaded once. `lock`: held while the process forks, lest the child finds it taken. `number`,
    `count`: addresses of the functions that tell a thread of a region its place, and how many there are."""

    def __init__(self) -> None:
        lib = _loaded()
        self._get: Any = lib.omp_get_max_threads
        self._set: Any = lib.omp_set_num_threads
        self._set.argtypes, self._set.restype = [ctypes.c_int], None
        self._pause: Any = getattr(lib, "omp_pause_resource_all", None)
        self._region: Any = lib.GOMP_parallel
        self._region.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
        self._region.restype = None
        self.number, self.count = (ctypes.cast(function, ctypes.c_void_p).value or 0 for function in (
            lib.omp_get_thread_num, lib.omp_get_num_threads))
        self.lock = threading.Lock()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(before=self._before_fork, after_in_parent=self.lock.release,
                                after_in_child=self.lock.release)

    def _before_fork(self) -> None:
        self.lock.acquire()
        self.dismiss()

    def dismiss(self) -> None:
        """End the calling thread's team; the next region starts another. A forked child, which has no threads
        but one, would wait for the team for ever."""
        if self._pause is not None:
            self._pause(_PAUSE_HARD)

    def region(self, function: int, job: int) -> None:
        """Let every thread of the calling thread's team call the function at an address with `job`."""
        self._region(function, job, 0, 0)

    def threads(self, count: int) -> Threads:
        """`with openmp.threads(n):` regions that this thread enters use `n` threads."""
        return Threads(self._get, self._set, count)


class Threads:
    """The number of threads of the calling thread's regions, put back when it ends."""

    __slots__ = ("get", "set", "count", "before")

    def __init__(self, get: Any, set_: Any, count: int) -> None:
        self.get, self.set, self.count = get, set_, count

    def __enter__(self) -> None:
        self.before = self.get()
        if self.before != self.count:
            self.set(self.count)

    def __exit__(self, *_: Any) -> None:
        if self.before != self.count:
            self.set(self.before)


def missing() -> No | None:
    """Why there is no OpenMP runtime here, None where there is one."""
    try:
        _loaded()
    except OSError as error:
        return No(f"oneDNN needs the OpenMP runtime {NAME}, which cannot be loaded ({error}): install the "
                  "system package libgomp1 (Debian, Ubuntu) or libgomp (Fedora, RHEL)")
    return None


def _loaded() -> ctypes.CDLL:
    """The library. It reads its environment while it is loaded and never again, so that how long idle threads
    spin is said here, unless the user has said it."""
    says = not any(key in os.environ for key in _SETTINGS)
    if says:
        os.environ[_SETTINGS[0]] = str(SPIN)
    try:
        return ctypes.CDLL(NAME, mode=ctypes.RTLD_GLOBAL)
    finally:
        if says:
            del os.environ[_SETTINGS[0]]
