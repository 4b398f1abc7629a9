"""ONNX bytes and flags in, the path of a compiled module out: cached on disk, compiled in another process.

A module's name is a digest of all that its content depends on; it is used only from a folder of this user's
and only where its own digest, kept beside it, is right. What fails leaves a reproducer behind where
ORTHRUS_REPRODUCE names a folder for it, and never an exception of the compiler's.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import json
import logging
import os
import re
import select
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ... import knobs
from ...codegen.machines import detect
from ...codegen.object import cache as code_cache
from ...ir import No
from ...locks import lock

log = logging.getLogger("orthrus")

COMPILER, RUNTIME = "iree-base-compiler", "iree-base-runtime"
_TOLD = 4000
"""Characters of the compiler's message that a refusal repeats."""
LIMIT = 4 << 30
"""Bytes of compiled modules in a folder beyond which the oldest go."""

_HINT = "ORTHRUS_REPRODUCE=FOLDER keeps what is needed to see it"


@dataclass(frozen=True)
class Job:
    """One part to compile: its model as ONNX bytes, the flags, a name for people; how long it may take, and
    the folders its options name."""

    name: str
    model: bytes
    flags: tuple[str, ...]
    timeout: float = 600.0
    cache_folder: str = ""
    save_temps: str = ""

    @property
    def key(self) -> str:
        """A digest of what the compiled module depends on."""
        host = repr(detect.host()) if "--iree-llvmcpu-target-cpu=host" in self.flags else ""
        digest = hashlib.blake2b(self.model, digest_size=20)
        digest.update("\0".join((*self.flags, installed(COMPILER) or "", host)).encode())
        return digest.hexdigest()


@cache
def installed(package: str) -> str | None:
    """The version of an installed package, None where it is not there."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def build(job: Job) -> Path | No:
    """The compiled module's file; `No` with the compiler's message where there is none. A message is kept as
    well, and the part not tried again with the same compiler and flags."""
    try:
        folder = _folder(job.cache_folder)
        kept = folder / f"{job.key}.vmfb"
        if not job.save_temps and _sound(kept):
            return kept
        if not job.save_temps and not knobs.REPRODUCE and (told := _refused(kept)) is not None:
            return No(told)
        with tempfile.TemporaryDirectory(dir=folder, prefix="part-") as work:
            return _built(job, Path(work), kept)
    except OSError as error:
        return No(f"a compiled part cannot be written: {error}; the option cache_folder names another place")


def _built(job: Job, work: Path, kept: Path) -> Path | No:
    source, made, text = work / "part.onnx", work / "part.vmfb", work / "part.mlir"
    source.write_bytes(job.model)
    flags = list(job.flags)
    if job.save_temps:
        flags.append(f"--iree-hal-dump-executable-files-to={work / 'kernels'}")
    if installed(COMPILER) is None:
        return No(f"the package {COMPILER} is not installed, and the part was not compiled before")
    start = time.perf_counter()
    asked = {"model": str(source), "output": str(made),
             "mlir": str(text) if job.save_temps or knobs.REPRODUCE else None}
    reply, said = _worker.compile(asked, flags, job.timeout)
    if reply.get("ok"):
        log.debug("IREE compiled %s in %.1f s", job.name, time.perf_counter() - start)
        shutil.move(made, kept)
        _digest_file(kept).write_text(_digest(kept), encoding="ascii")
        _trim(kept)
        _keep(job, work, job.save_temps, "")
        if job.save_temps:
            shutil.copy(kept, Path(job.save_temps) / _safe(job.name) / "part.vmfb")
        return kept
    message = "\n".join(filter(None, (reply["message"], _errors(said))))[:_TOLD]
    message = f"IREE's {reply['stage']} failed: {message}"
    if reply.get("lasting"):
        kept.with_suffix(".refused").write_text(message, encoding="utf-8")
    where = _keep(job, work, knobs.REPRODUCE.value, f"{reply['message']}\n{said}")
    _keep(job, work, job.save_temps, f"{reply['message']}\n{said}")
    return No(f"{message}\n" + (f"reproducer: {where}" if where else _HINT))


def _refused(kept: Path) -> str | None:
    """The compiler's message about a module that it could not make, None where it was not asked yet."""
    try:
        return f"{kept.with_suffix('.refused').read_text(encoding='utf-8')}\n{_HINT}"
    except (OSError, ValueError):
        return None


def _keep(job: Job, work: Path, folder: str, message: str) -> Path | None:
    """Copy what a part was compiled from into a folder of its own, where one is asked for."""
    if not folder:
        return None
    place = Path(folder).absolute() / _safe(job.name)
    try:
        shutil.copytree(work, place, dirs_exist_ok=True)
        command = " ".join(("iree-compile part.mlir -o part.vmfb", *job.flags))
        (place / "flags.txt").write_text(
            f"{COMPILER} {installed(COMPILER)}\n{command}\n", encoding="utf-8")
        if message:
            (place / "message.txt").write_text(message, encoding="utf-8")
    except OSError as error:
        log.warning("what %s was compiled from is not kept: %s", job.name, error)
        return None
    return place


def _safe(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "_", name)[:80] or "part"


def _errors(said: str) -> str:
    """The lines of the compiler's output that say what is wrong."""
    lines = [line.strip() for line in said.splitlines() if "error:" in line]
    return "\n".join(dict.fromkeys(line[:400] for line in lines[:4])) or said[-400:].strip()


def _folder(given: str) -> Path:
    """The folder for compiled modules, which nobody else may write to. Raises OSError."""
    base = code_cache.place()
    path = Path(given) if given else Path(base, "iree") if base else Path(_temporary())
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = path.stat()
    if hasattr(os, "geteuid") and (
            status.st_uid != os.geteuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)):
        raise PermissionError(f"{path} is not this user's alone")
    return path.absolute()


@cache
def _temporary() -> str:
    """A folder for the length of this process, where nothing is to be kept."""
    path = tempfile.mkdtemp(prefix="orthrus-iree-")
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


def _trim(newest: Path) -> None:
    """Keep the folder of `newest` within its limit; another process may be at it too."""
    with contextlib.suppress(OSError):
        others = [p for p in newest.parent.glob("*.vmfb") if p != newest]
        total = newest.stat().st_size + sum(p.stat().st_size for p in others)
        for old in sorted(others, key=lambda p: p.stat().st_mtime):
            if total <= LIMIT:
                break
            total -= old.stat().st_size
            old.unlink()
            _digest_file(old).unlink()


def _digest_file(path: Path) -> Path:
    return path.with_suffix(".digest")


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=20)).hexdigest()


def _sound(path: Path) -> bool:
    """Whether a module is there and is what was written."""
    try:
        return _digest_file(path).read_text(encoding="ascii") == _digest(path)
    except (OSError, ValueError):
        return False


class _Worker:
    """The compiling process of this process: started with the first job, again where it ended and where the
    next job has other flags."""

    def __init__(self) -> None:
        self.lock = lock()
        self.flags: list[str] = []
        self.process: subprocess.Popen[bytes] | None = None
        self.log: Any = None

    def compile(self, job: dict[str, Any], flags: list[str], timeout: float) -> tuple[dict[str, Any], str]:
        """The worker's reply, and what the compiler wrote."""
        with self.lock:
            try:
                process = self._running(flags)
                self.log.seek(0)
                self.log.truncate()
                assert process.stdin is not None
                process.stdin.write(json.dumps(job).encode() + b"\n")
                process.stdin.flush()
                line = self._line(process, timeout)
            except (OSError, ValueError) as error:
                line = b""
                self._end()
                return {"stage": "start", "message": f"the compiler does not start: {error}"}, self._said()
            if line:
                reply: dict[str, Any] = json.loads(line)
                if reply["last"]:
                    self._end()
                return reply, self._said()
            return {"stage": "compile", "message": self._ended(process, timeout)}, self._said()

    def _running(self, flags: list[str]) -> subprocess.Popen[bytes]:
        if self.process is None or self.process.poll() is not None or flags != self.flags:
            self._end()
            self.flags = flags
            self.log = self.log or tempfile.TemporaryFile()  # noqa: SIM115
            self.process = subprocess.Popen(
                [sys.executable, "-m", f"{__package__}.worker", *flags], stdin=subprocess.PIPE,
                stdout=subprocess.PIPE, stderr=self.log, env=_environment())
        return self.process

    @staticmethod
    def _line(process: subprocess.Popen[bytes], timeout: float) -> bytes:
        assert process.stdout is not None
        end, found = time.monotonic() + timeout, b""
        while not found.endswith(b"\n"):
            ready, _, _ = select.select([process.stdout], [], [], max(end - time.monotonic(), 0))
            piece = os.read(process.stdout.fileno(), 1 << 16) if ready else b""
            if not piece:
                return b""
            found += piece
        return found

    def _ended(self, process: subprocess.Popen[bytes], timeout: float) -> str:
        """Why no reply came; the process is gone afterwards."""
        try:
            code = process.wait(1.0)
        except subprocess.TimeoutExpired:
            self._end()
            return f"the compiler did not end within {timeout:g} s; the option compile_timeout allows more"
        self._end()
        return (f"the compiler's process was ended by signal {-code}" if code < 0 else
                f"the compiler's process ended with status {code}")

    def _said(self) -> str:
        if self.log is None:
            return ""
        self.log.seek(0)
        text: str = self.log.read().decode("utf-8", "replace")
        return text

    def _end(self) -> None:
        process, self.process = self.process, None
        if process is not None:
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    stream.close()

    def stop(self) -> None:
        """End the process; the next job starts another."""
        with self.lock:
            self._end()


def _environment() -> dict[str, str]:
    """This process's, with this package where it was imported from."""
    root = str(Path(__file__).resolve().parents[3])
    path = os.pathsep.join(filter(None, (root, os.environ.get("PYTHONPATH", ""))))
    return {**os.environ, "PYTHONPATH": path}


_worker = _Worker()


@atexit.register
def _stop() -> None:
    _worker.stop()


def _in_child() -> None:
    """A forked process has no worker yet: that of its parent is not its own to end."""
    global _worker
    _worker = _Worker()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
