"""What a session that may be kept goes by: all that decides about what is made of a model.

In: a model's file or bytes, and how its engine is to be made. Out: a name, or None where no session is kept;
and whether a file still holds what a session was made of. A file is named by its place, its size and a sample
of its content; what is kept under that name is believed once all of the content has been compared. A model
in memory is named by all of its content.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import knobs
from ..codegen.machines import detect
from ..codegen.object import cache
from ..errors import Fail
from ..limits import DEFAULT
from ..modelfile import ModelFile
from ..providers import CPUExecutionProvider

if TYPE_CHECKING:
    from .config import Config
from .config import Config

_HARMLESS = ("CACHE", "CACHE_DIR", "CACHE_SESSIONS", "REPRODUCE", "THREADS", "CODEGEN", "MACHINE")
"""Switches that change nothing about what is kept, keep from keeping by themselves, or are told by the
machine."""
_LARGEST = 1 << 26
"""Bytes of a model in memory that is looked at whole."""
FOLDER = "sessions"
"""The folder inside the cache's that packages are in."""
VARIED = b"varied"
"""What is told of a session that is run with other shapes each time."""
_SAMPLES, _SAMPLE = 8, 1 << 12
_AT_ONCE = 1 << 20
"""Bytes of a file that is compared without a thread of its own."""


def name_of(source: Any, config: Config) -> tuple[Any, str | None]:
    """What to make the engine of, a file as it is open from now on; and what the session goes by: all that
    decides about what is made, None where it is not kept. Raises what opening a model's file raises."""
    if not (isinstance(source, str) or (
            isinstance(source, bytes | memoryview) and len(source) <= _LARGEST)):
        return source, None
    machine_and_code = _made_for(config)
    if machine_and_code is None:
        return source, None
    if isinstance(source, str):
        key = cache.secret()
        if key is None:
            return source, None
        source = ModelFile(source, key)
    told = [_content(source), *machine_and_code]
    return source, hashlib.sha256(repr(told).encode("utf-8", "surrogatepass")).hexdigest()


def _made_for(config: Config) -> list[Any] | None:
    """All but the model that decides about what is made. None where it cannot be told."""
    if not knobs.CACHE or not knobs.CACHE_SESSIONS >= 1 or any(
            changed and name.removeprefix(knobs.PREFIX) not in _HARMLESS
            for name, (_, changed, _) in knobs.switches().items()):
        return None
    here = detect.host()
    plain = (not config.kernels and not config.initializers and not config.external_initializers
             and config.external_root is None and not config.parallel and not config.optimized_model_path
             and config.limits is DEFAULT and "orthrus.watch" not in config.entries
             and not any(key.startswith("ep.") for key in config.entries)
             and all(type(p) is CPUExecutionProvider for p in config.providers))
    if here is None or not plain or not (code := cache.look()):
        return None
    return [code, here.told, np.__version__, sys.version, config.level, sorted(config.skip),
            sorted(config.free_dims.items()), sorted(config.free_denotations.items()),
            sorted(config.entries.items()), config.memory_arena, config.memory_pattern, config.memory_reuse,
            config.names_apart,
            [sorted(p.settings.items()) for p in config.providers or (CPUExecutionProvider(),)]]


def marker(name: str) -> str:
    """Where in the cache it is told with which shapes a session was run."""
    return f"{name}-seen"


def give_up(name: str) -> None:
    """Keep nothing of this session from now on."""
    cache.store({marker(name): VARIED})
    cache.remove(name, FOLDER)


def foreign() -> set[tuple[str, str]]:
    """The operators, by domain and name, that this process has definitions or kernels of its own for: no name
    tells of these."""
    define = sys.modules.get("orthrus.ops.define")
    return (set() if define is None else define.foreign()) | {
        (entry.definition.domain, entry.definition.op_type) for entry in CPUExecutionProvider.kernels
        if not entry.create.__module__.startswith("orthrus.")}


def _content(source: ModelFile | bytes | memoryview) -> str:
    """Which model it is, as far as a look tells."""
    if isinstance(source, bytes | memoryview):
        return hashlib.sha256(source).hexdigest()
    digest = hashlib.sha256(os.fsencode(os.path.abspath(source.path)) + source.size.to_bytes(8, "little"))
    for i in range(_SAMPLES):
        start = max(source.size - 1, 0) * i // _SAMPLES // _SAMPLE * _SAMPLE
        digest.update(source.read(start, min(start + _SAMPLE, source.size)).data)
    return digest.hexdigest()


class Proof:
    """Finds out, beside whatever else goes on, whether all of a file's content is what it was when `told` was
    its digest."""

    def __init__(self, file: ModelFile, told: str) -> None:
        self._file, self._told, self._found = file, told, ""
        self._thread: threading.Thread | None = None
        if file.size > _AT_ONCE:
            self._thread = threading.Thread(target=self._look, name="orthrus-compare", daemon=True)
            with contextlib.suppress(RuntimeError):
                self._thread.start()
                return
            self._thread = None
        self._look()

    def _look(self) -> None:
        with contextlib.suppress(Fail, OSError, MemoryError):
            self._found = self._file.digest()

    def holds(self) -> bool:
        """Whether it is. Waits until that is known."""
        thread = self._thread
        if thread is not None:
            thread.join()
        return self._found == self._told
