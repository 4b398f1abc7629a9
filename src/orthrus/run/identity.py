"""What a session that may be kept goes by: all that decides about what is made of a model.

In: a model's file or bytes, and how its engine is to be made. Out: a name, or None where no session is kept.
A file is told by its place, size and times, and a sample of its content, as a compiler's cache tells a
source; a model in memory by all of its content.
"""

from __future__ import annotations

import hashlib
import os
import stat
import sys
import time
import weakref
from typing import Any

import numpy as np

from .. import knobs
from ..codegen import cache, machine
from ..errors import Fail
from ..limits import DEFAULT
from ..ops import define
from ..providers import CPUExecutionProvider
from .engine import Config

_HARMLESS = ("CACHE", "CACHE_DIR", "CACHE_SESSIONS", "REPRODUCE", "THREADS", "CODEGEN")
"""Switches that change nothing about what is kept, or keep from keeping by themselves."""
_LARGEST = 1 << 26
"""Bytes of a model in memory that is looked at whole."""
_SETTLED = 2.0
"""Seconds a file has to be left alone before its times are believed: changes within less may share one."""
_SAMPLES, _SAMPLE = 32, 1 << 12


def name_of(source: Any, config: Config) -> str | None:
    """What the session goes by: all that decides about what is made. None where it is not kept."""
    if not knobs.CACHE or not knobs.CACHE_SESSIONS >= 1 or any(
            changed and name.removeprefix(knobs.PREFIX) not in _HARMLESS
            for name, (_, changed, _) in knobs.switches().items()):
        return None
    here = machine.host()
    plain = (not config.kernels and not config.initializers and not config.external_initializers
             and config.external_root is None and not config.parallel and not config.optimized_model_path
             and config.limits is DEFAULT and not any(key.startswith("ep.") for key in config.entries)
             and all(type(p) is CPUExecutionProvider for p in config.providers))
    if here is None or not plain:
        return None
    content, code = _content(source), cache.stamp()
    if content is None or not code:
        return None
    told = [content, code, repr(here), np.__version__, sys.version, config.level, sorted(config.skip),
            sorted(config.free_dims.items()), sorted(config.free_denotations.items()),
            sorted(config.entries.items()), config.memory_pattern, config.memory_reuse, config.names_apart,
            [sorted(p.settings.items()) for p in config.providers]]
    return hashlib.sha256(repr(told).encode("utf-8", "surrogatepass")).hexdigest()


def foreign() -> set[tuple[str, str]]:
    """The operators, by domain and name, that this process has definitions or kernels of its own for: no name
    tells of these."""
    return define.foreign() | {
        (entry.definition.domain, entry.definition.op_type) for entry in CPUExecutionProvider.kernels
        if not entry.create.__module__.startswith("orthrus.")}


def _content(source: Any) -> str | None:
    """Which model it is. None for one that cannot be told, and for a file that was written to just now."""
    if isinstance(source, bytes):
        return hashlib.sha256(source).hexdigest() if len(source) <= _LARGEST else None
    if not isinstance(source, str):
        return None
    try:
        file = _opened(source)
    except (OSError, ValueError):
        return None
    try:
        status = os.fstat(file)
        settled = time.time() - max(status.st_mtime, status.st_ctime) >= _SETTLED
        if not settled or not stat.S_ISREG(status.st_mode):
            return None
        digest = hashlib.sha256(os.fsencode(os.path.abspath(source)) + repr(_state(status)).encode())
        for i in range(_SAMPLES):
            digest.update(os.pread(file, _SAMPLE, max(0, status.st_size - _SAMPLE) * i // (_SAMPLES - 1)))
        return digest.hexdigest()
    except OSError:
        return None
    finally:
        os.close(file)


def _opened(path: str) -> int:
    """A descriptor of a file; one that would make its reader wait does not. Raises OSError."""
    return os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))


def _state(status: os.stat_result) -> tuple[int, ...]:
    """What changes whenever somebody writes to a file or puts another in its place."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


class Unchanged:
    """A model's source that can be read later, as it is now: its file stays open. Raises OSError."""

    def __init__(self, source: Any) -> None:
        self.source = source
        self.file: int | None = None
        self.state: tuple[int, ...] = ()
        if not isinstance(source, bytes):
            self.file = _opened(source)
            weakref.finalize(self, os.close, self.file).atexit = False
            self.state = _state(os.fstat(self.file))

    def __call__(self) -> Any:
        """The source to load. Raises Fail where the file has been written to."""
        if self.file is None:
            return self.source
        now = _state(os.fstat(self.file))
        try:
            there = _state(os.stat(self.source))
        except OSError:
            there = ()
        if there == self.state:
            return self.source
        if now[:-1] != self.state[:-1]:
            raise Fail(f"The model's file {self.source} has been written to since its session was made.",
                       found=f"{now[2]} bytes, written later", expected=f"{self.state[2]} bytes as before",
                       cure="write a new model beside the old one and rename it: sessions keep the old one")
        with open(os.dup(self.file), "rb") as file:
            file.seek(0)
            return file.read()
