"""Compiled parts on disk: private folders, and files that are used only where they are what was written.

In: a folder's name, files of compiled code. Out: the folder, where nobody else may write to it, and whether a
file is sound: its digest lies beside it.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import os
import shutil
import stat
import tempfile
from functools import cache
from pathlib import Path

from ...codegen.object import cache as code_cache

LIMIT = 4 << 30
"""Bytes of compiled parts in a folder beyond which the oldest go."""


def private(given: str, engine: str) -> Path:
    """The folder for compiled parts, which nobody else may write to: the one that is `given`, else that of
    `engine` in the cache of generated code. Raises OSError."""
    base = code_cache.place()
    path = Path(given) if given else Path(base, engine) if base else Path(temporary(engine))
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = path.stat()
    if hasattr(os, "geteuid") and (
            status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)):
        raise PermissionError(f"{path} is not this user's alone")
    return path.absolute()


@cache
def temporary(engine: str) -> str:
    """A folder for the length of this process, where nothing is to be kept."""
    path = tempfile.mkdtemp(prefix=f"orthrus-{engine}-")
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


def keep(made: Path, kept: Path) -> None:
    """Move what was compiled to the place where it is kept, with its digest beside it, and make room for
    it."""
    shutil.move(made, kept)
    _digest_file(kept).write_text(_digest(kept), encoding="ascii")
    trim(kept)


def trim(newest: Path) -> None:
    """Keep the folder of `newest` within its limit; another process may be at it too."""
    with contextlib.suppress(OSError):
        others = [p for p in newest.parent.glob(f"*{newest.suffix}") if p != newest]
        total = newest.stat().st_size + sum(p.stat().st_size for p in others)
        for old in sorted(others, key=lambda p: p.stat().st_mtime):
            if total <= LIMIT:
                break
            total -= old.stat().st_size
            old.unlink()
            _digest_file(old).unlink()


def sound(path: Path) -> bool:
    """Whether a compiled part is there and is what was written."""
    try:
        return _digest_file(path).read_text(encoding="ascii") == _digest(path)
    except (OSError, ValueError):
        return False


def _digest_file(path: Path) -> Path:
    return path.with_suffix(".digest")


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=20)).hexdigest()
