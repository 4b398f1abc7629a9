"""Object code on disk: what one process compiled, the next one reads.

A file holds one object and a digest of it and of the file's name, made of all that the code depends
on: what is written, for which machine, by which sources of this package and by which LLVM. Whatever is wrong
with a file or its folder, the object counts as missing. Code is only taken from a folder that belongs to this
user and that nobody else can write to.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import marshal
import os
import re
import stat
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ... import knobs
from ...memory import take
from ...modelfile import content_of
from ..machines.machine import Machine

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

MAGIC = b"orthrus1"
SECRET = "secret"
"""The file that holds what contents are told with."""
LIMIT = 256 << 20
"""Bytes of a folder's files beyond which the oldest are removed."""

_CODEGEN = os.path.dirname(os.path.dirname(__file__))
"""The folder of everything that decides what is written for a kernel."""
ABOVE = frozenset({
    "api", "backend", "capi", "datasets", "demo", "distributed", "generation", "native", "profiling",
    "quantization", "serving", "testing", "tools", "torch", "transformers"})
"""The stages behind a run, and the packages on top of them: no session is made by them."""
_HEAD = len(MAGIC) + hashlib.sha256().digest_size
_LARGEST = 64 << 20
_HOUR, _DAY = 3600, 86400
_SETTLED = 5 * 10**9
"""Nanoseconds after which a file's times tell any further change: coarser clocks are not in use."""
_SWEPT = "swept"
_KEPT = r"[0-9a-f]{64}(-seen)?"
_LEFT = rf"({_KEPT}|{SECRET}|{_SWEPT})\.[0-9a-f]{{16}}"
"""Names of what is kept, and of what a writer that was killed left. Nothing else in the folder is ours to
remove: `ORTHRUS_CACHE_DIR` may name one that holds other things."""
_log = logging.getLogger("orthrus")


def name(what: str, machine: Machine, origin: str) -> str | None:
    """The file of what `what` describes in full, compiled for `machine`; `origin` is the source file of who
    writes it. None where that cannot be told from one process to the next."""
    sources = _sources()
    if not sources or " at 0x" in what:
        return None
    if not own(origin):
        extra = _digest(origin)
        if not extra:
            return None
        sources += extra
    return hashlib.sha256("\0".join((sources, repr(machine), what)).encode()).hexdigest()


def compiler() -> ModuleSpec | None:
    """Where LLVM's package is; None where it is not installed."""
    from importlib.util import find_spec

    return find_spec("llvmlite")


def own(origin: str) -> bool:
    """Whether a source file is one of this package's code generators."""
    return origin.startswith(_CODEGEN + os.sep)


@functools.cache
def _sources() -> str:
    """A digest of all code generators' sources and of llvmlite's version, empty where they are not readable
    files."""
    found = compiler()
    version = os.path.join(os.path.dirname(found.origin), "_version.py") if found and found.origin else ""
    digests = generators(), _digest(version)
    return "".join(digests) if all(digests) else ""


@functools.cache
def generators() -> str:
    """A digest of all code generators' sources; empty where they are no files."""
    return _stamp(_CODEGEN)


@functools.cache
def stamp() -> str:
    """A digest of the sources that decide what is computed, and how; empty where they are no files."""
    return _stamp(os.path.dirname(_CODEGEN), ABOVE)


@functools.cache
def look() -> str:
    """What tells those sources as they lie on this machine, without reading them where their times will do;
    empty where they are no files."""
    rows = _listed(os.path.dirname(_CODEGEN), ABOVE)
    return _told_by(rows) if rows and _settled(rows) else stamp()


Row = tuple[str, int, int, int, int, int]
"""A source's place, size, times, number and device."""


def _stamp(package: str, without: Collection[str] = ()) -> str:
    """A digest of a package's sources. Files whose places, sizes and times are those of an earlier look are
    not read again, but for such as were changed within its resolution of time. `without`: folders in it that
    are none of them."""
    rows = _listed(package, without)
    if not rows:
        return ""
    seen, digest = _told_by(rows), hashlib.sha256()
    known = load([seen]).get(seen)
    if known is not None:
        return known.decode()
    try:
        for path, *_ in rows:
            with open(path, "rb") as file:
                content = file.read()
            digest.update(f"{path[len(package):]} {len(content)} ".encode("utf-8", "surrogateescape"))
            digest.update(content)
    except OSError:
        return ""
    if _settled(rows):
        store({seen: digest.hexdigest().encode()})
    return digest.hexdigest()


def _told_by(rows: list[Row]) -> str:
    return hashlib.sha256(marshal.dumps(("sources", rows), 0)).hexdigest()


def _settled(rows: Sequence[Row]) -> bool:
    """Whether any further change would show in the files' times."""
    return time.time_ns() - max(max(row[2:4]) for row in rows) > _SETTLED


def _listed(package: str, without: Collection[str]) -> list[Row]:
    rows = list[Row]()
    try:
        _list_sources(package, without, rows)
    except OSError:
        return []
    return sorted(rows)


def _list_sources(folder: str, without: Collection[str], into: list[Row]) -> None:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.endswith(".py"):
                found = entry.stat()
                into.append((entry.path, found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino,
                             found.st_dev))
            elif entry.name not in without and entry.name != "__pycache__" and entry.is_dir(
                    follow_symlinks=False):
                _list_sources(entry.path, (), into)


@functools.lru_cache(256)
def _digest(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
    except OSError:
        return ""


def load(names: Iterable[str]) -> dict[str, bytes]:
    """Those objects of `names` that are there and whole."""
    found: dict[str, bytes] = {}
    with _folder(create=False) as folder:
        if folder is not None:
            for each in names:
                data = _read(each, folder)
                if data is not None:
                    found[each] = data
    return found


def store(objects: Mapping[str, bytes]) -> None:
    """Keep `objects` by name; what cannot be written is left out."""
    with _folder(create=True) as folder:
        if folder is None:
            return
        try:
            for each, data in objects.items():
                _write(each, (MAGIC, _sealed(each, data), data), folder)
            _sweep_sometimes(folder)
        except OSError as error:
            _log.debug("generated code is not kept: %s", error)


def secret() -> bytes | None:
    """Bytes that only who may read the folder knows, the same each time; None where it cannot be written."""
    for _ in range(2):
        found = load([SECRET]).get(SECRET)
        if found is not None:
            return found
        store({SECRET: os.urandom(32)})
    return load([SECRET]).get(SECRET)


def read_whole(each: str, inside: str, quick: bool = False) -> np.ndarray | None:
    """What `write_whole` kept, beginning at a cache line; None where there is nothing, or not all of it."""
    with _folder(create=False, inside=inside) as folder:
        if folder is None or (file := _opened(each, folder)) is None:
            return None
        try:
            size = os.fstat(file).st_size - _Chunks.SIZE
            data = take(max(size, 0))
            if size <= 0 or _filled(each, data, file, quick) != os.pread(file, _Chunks.SIZE, size):
                _log.debug("damaged file in the cache: %s", each)
                return None
            os.utime(file)
            return data
        except (OSError, MemoryError):
            return None
        finally:
            os.close(file)


def write_whole(each: str, pieces: Sequence[Any], inside: str, limit: int, quick: bool = False) -> None:
    """Keep a file of `pieces` in a folder inside the cache's, whose oldest files go once they take more than
    `limit` bytes. `quick`: what tells damage is a sum of products that numpy finds, not a digest that other
    programs know. Raises OSError."""
    with _folder(create=True, inside=inside) as folder:
        if folder is not None:
            chunks = _Chunks(quick)
            for piece in pieces:
                chunks.add(memoryview(piece))
            _write(each, (*pieces, chunks.digest(each)), folder)
            sweep(folder, limit)


class _Chunks:
    """The digest of a file's name and of its chunks' digests: several processors can work on it."""

    LENGTH, SIZE = 1 << 22, hashlib.sha256().digest_size

    def __init__(self, quick: bool) -> None:
        self.done, self.quick = list[bytes](), quick
        self.room, self.used = np.empty(self.LENGTH, np.uint8), 0

    def add(self, piece: memoryview) -> None:
        rest = np.frombuffer(piece, np.uint8)
        while len(rest):
            head = rest[:self.LENGTH - self.used]
            self.room[self.used:self.used + len(head)] = head
            self.used += len(head)
            if self.used == self.LENGTH:
                self.done.append(_told(self.room, self.quick))
                self.used = 0
            rest = rest[len(head):]

    def digest(self, each: str) -> bytes:
        last = [_told(self.room[:self.used], self.quick)] if self.used else []
        return _sealed(each, b"".join(self.done + last))


def _told(chunk: np.ndarray, quick: bool) -> bytes:
    return bytes.fromhex(content_of(chunk, MAGIC)) if quick else hashlib.sha256(chunk.data).digest()


def _filled(each: str, data: np.ndarray, file: int, quick: bool) -> bytes:
    """Read as many bytes as there is room for; the digest of what is kept so as `each`. Where there are many,
    two threads share the work."""
    starts = range(0, len(data), _Chunks.LENGTH)
    found: list[bytes] = [b""] * len(starts)

    def read(numbers: Iterable[int]) -> None:
        for i in numbers:
            chunk = data[starts[i]:starts[i] + _Chunks.LENGTH]
            view, done = chunk.data, 0
            with contextlib.suppress(OSError):
                while done < len(view) and (count := os.preadv(file, [view[done:]], starts[i] + done)):
                    done += count
            found[i] = _told(chunk, quick) if done == len(view) else b""
    numbers = range(len(starts))
    other = threading.Thread(target=read, args=(numbers[1::2],)) if len(starts) > 1 else None
    if other is not None:
        try:
            other.start()
        except RuntimeError:  # there may be no more of them
            other = None
    read(numbers[::2] if other is not None else numbers)
    if other is not None:
        other.join()
    return _sealed(each, b"".join(found))


def remove(each: str, inside: str) -> None:
    """Forget such a file."""
    with _folder(create=False, inside=inside) as folder:
        if folder is not None:
            with contextlib.suppress(OSError):
                os.unlink(each, dir_fd=folder)


@contextlib.contextmanager
def _folder(create: bool, inside: str = "") -> Iterator[int | None]:
    """A descriptor of the folder, None where there is none to be used."""
    path = place()
    if path is None:
        yield None
        return
    outer, path = path, os.path.join(path, inside)
    try:
        for each in (outer, path) if create else ():
            os.makedirs(each, 0o700, exist_ok=True)
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        if create:
            _log.debug("no cache of generated code: %s", error)
        yield None
        return
    try:
        mine = _mine(os.fstat(folder))
        if not mine:
            _log.debug("no cache of generated code: %s is not this user's alone", path)
        yield folder if mine else None
    finally:
        os.close(folder)


def place() -> str | None:
    """Where the folder is, or would be; None where there is none to be used, or where nothing tells whether
    its files are this user's alone."""
    if not knobs.CACHE or os.open not in os.supports_dir_fd:
        return None
    if knobs.CACHE_DIR:
        try:
            return os.path.abspath(knobs.CACHE_DIR.value)
        except OSError:  # the working directory, which it is relative to, is gone
            return None
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):
        base = os.path.expanduser("~/.cache")
    return os.path.join(base, "orthrus") if os.path.isabs(base) else None


def _opened(each: str, folder: int) -> int | None:
    """A descriptor of a regular file of this user's alone, None where there is none."""
    try:
        file = os.open(each, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
    except OSError:
        return None
    status = os.fstat(file)
    if stat.S_ISREG(status.st_mode) and _mine(status):
        return file
    _log.debug("not this user's alone: %s in the cache", each)
    os.close(file)
    return None


def _mine(status: os.stat_result) -> bool:
    """Whether a file or folder is this user's, and nobody else may write to it."""
    return status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _read(each: str, folder: int) -> bytes | None:
    file = _opened(each, folder)
    if file is None:
        return None
    try:
        status = os.fstat(file)
        if not _HEAD < status.st_size <= _LARGEST:
            return None
        data = os.read(file, status.st_size)
        if len(data) != status.st_size or data[:len(MAGIC)] != MAGIC:
            return None
        content = data[_HEAD:]
        if _sealed(each, content) != data[len(MAGIC):_HEAD]:
            _log.debug("damaged code in the cache: %s", each)
            return None
        if time.time() - status.st_mtime > _DAY:
            os.utime(file)
        return content
    except OSError:
        return None
    finally:
        os.close(file)


def _sealed(each: str, content: bytes) -> bytes:
    """A digest by which neither other bytes nor another file's are taken for what is kept as `each`."""
    digest = hashlib.sha256(each.encode() + b"\0")
    digest.update(content)
    return digest.digest()


def _write(each: str, pieces: Iterable[Any], folder: int) -> None:
    """Written under a name of its own and moved into place, so that a reader sees all of it or none."""
    passing = f"{each}.{os.urandom(8).hex()}"
    file = os.open(passing, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=folder)
    try:
        try:
            for piece in pieces:
                left = memoryview(piece)
                while left:
                    left = left[os.write(file, left):]
        finally:
            os.close(file)
        os.replace(passing, each, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(passing, dir_fd=folder)
        raise


def _sweep_sometimes(folder: int) -> None:
    """Keep the folder within its limit, looking once an hour."""
    try:
        fresh = time.time() - os.stat(_SWEPT, dir_fd=folder).st_mtime < _HOUR
    except OSError:
        fresh = False
    if not fresh:
        os.close(os.open(_SWEPT, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600, dir_fd=folder))
        os.utime(_SWEPT, dir_fd=folder)
        sweep(folder, LIMIT)


def contents() -> dict[str, list[tuple[int, float]]]:
    """The bytes and the time of last use of each file that is kept, by the folder inside that it is in;
    kernels are in none."""
    found: dict[str, list[tuple[int, float]]] = {}
    for inside, folder in _folders():
        found[inside or "kernels"] = [(status.st_size, status.st_mtime) for _, status in _files(folder)]
    return found


def clear() -> tuple[int, int]:
    """Forget everything; how many files that were, and bytes. What runs keeps what it has loaded."""
    files = size = 0
    for _, folder in _folders():
        for each, status in _files(folder):
            with contextlib.suppress(OSError):
                os.unlink(each, dir_fd=folder)
                files, size = files + 1, size + status.st_size
    return files, size


def _folders() -> Iterator[tuple[str, int]]:
    """The folder, and those inside it that are this user's alone, with their names."""
    with _folder(create=False) as outer:
        if outer is None:
            return
        yield "", outer
        for inside in sorted(os.listdir(outer)):
            if stat.S_ISDIR(os.stat(inside, dir_fd=outer, follow_symlinks=False).st_mode):
                with _folder(create=False, inside=inside) as folder:
                    if folder is not None:
                        yield inside, folder


def _files(folder: int) -> list[tuple[str, os.stat_result]]:
    """The files of a folder that are kept there, or left behind."""
    found = []
    for each in os.listdir(folder):
        with contextlib.suppress(OSError):
            if re.fullmatch(_KEPT, each) or re.fullmatch(_LEFT, each):
                status = os.stat(each, dir_fd=folder, follow_symlinks=False)
                if stat.S_ISREG(status.st_mode):
                    found.append((each, status))
    return found


def sweep(folder: int, limit: int) -> None:
    """Remove what writers left behind, then the oldest objects until `limit` bytes are left."""
    now, objects = time.time(), []
    for each, status in _files(folder):
        if re.fullmatch(_KEPT, each):
            objects.append((status.st_mtime, status.st_size, each))
        elif now - status.st_mtime > _HOUR:
            with contextlib.suppress(OSError):
                os.unlink(each, dir_fd=folder)
    total = sum(size for _, size, _ in objects)
    for _, size, each in sorted(objects):
        if total <= limit:
            break
        with contextlib.suppress(OSError):
            os.unlink(each, dir_fd=folder)
            total -= size
