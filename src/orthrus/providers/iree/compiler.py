"""ONNX bytes and flags in, the path of a compiled module out: cached on disk, compiled in another process.

A module's name is a digest of all that its content depends on; it is used only from a folder of this user's
and only where its own digest, kept beside it, is right. What fails leaves a reproducer behind where
ORTHRUS_REPRODUCE names a folder for it, and never an exception of the compiler's.
"""

from __future__ import annotations

import hashlib
import logging
import re
import shutil
import tempfile
import time
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ... import knobs
from ...codegen.machines import detect
from ...ir import No
from ...records import dataclass
from ..foreign import kept as store
from ..foreign.process import Process

log = logging.getLogger("orthrus")

COMPILER, RUNTIME = "iree-base-compiler", "iree-base-runtime"
_TOLD = 4000
"""Characters of the compiler's message that a refusal repeats."""
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
        folder = store.private(job.cache_folder, "iree")
        kept = folder / f"{job.key}.vmfb"
        if not job.save_temps and store.sound(kept):
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
        store.keep(made, kept)
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


_worker = Process(f"{__package__}.worker")
