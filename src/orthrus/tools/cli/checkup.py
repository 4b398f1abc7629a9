"""Whether Orthrus works on this machine: what `orthrus doctor` finds out.

In: this process and its machine. Out: `Checkup`: facts in sections, and checks, each `ok`, `note` or `broken`
with its cure. Nothing secret is among them: of the environment only Orthrus's own switches, and paths in the
user's home begin with `~`. Nothing is changed but what a session changes too: the cache of generated code.
"""

from __future__ import annotations

import contextlib
import os
import platform
import stat
import sys
import time
from dataclasses import asdict, field
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

from ... import knobs
from ...processors import usable
from ...records import dataclass

OK, NOTE, BROKEN = "ok", "note", "broken"
NEEDED = ("numpy", "onnx", "ml_dtypes", "llvmlite", "typer", "rich")
PEERS = ("onnxruntime", "openvino", "Pillow", "matplotlib", "scikit-learn", "torch")
VECTORS = ("avx", "amx", "fma", "f16c", "asimd", "sve", "bf16", "i8mm", "rv64")
"""How the features of a processor begin that kernels may care about."""
SIDE = 96
"""Rows and columns of the matrix that the trial kernel turns."""
SAMPLE = 64
"""Files of the cache whose digest is verified."""


@dataclass(frozen=True)
class Check:
    """One thing that was tried: `state` is ok, note or broken; `cure`: what to do about it."""

    name: str
    state: str
    found: str
    cure: str = ""


@dataclass
class Checkup:
    """`facts`: section -> name -> text. Sizes in the texts have their units."""

    facts: dict[str, dict[str, str]] = field(default_factory=dict)
    checks: list[Check] = field(default_factory=list)

    @property
    def broken(self) -> list[Check]:
        """The checks that failed."""
        return [check for check in self.checks if check.state == BROKEN]

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return {"healthy": not self.broken, "checks": [asdict(check) for check in self.checks],
                "facts": self.facts}

    def markdown(self) -> str:
        """A block to paste into a report."""
        lines = ["### orthrus doctor", ""]
        for check in self.checks:
            cure = f"; to cure it: {check.cure}" if check.cure else ""
            lines.append(f"- **{check.state}** {check.name}: {_line(check.found + cure)}")
        for section, facts in self.facts.items():
            lines += ["", f"#### {section}", ""]
            lines += [f"- {name}: {_line(text)}" for name, text in facts.items()]
        return "\n".join(lines) + "\n"


def _line(text: str) -> str:
    return " ".join(text.split()) or "-"


def examine() -> Checkup:
    """Look at everything. Never raises for what is broken."""
    found = Checkup()
    for section, look in (("Versions", versions), ("Machine", machine), ("Code generation", generation),
                          ("Providers", providers), ("Cache of generated code", cache),
                          ("Environment switches", switches)):
        try:
            facts, checks = look()
        except Exception as error:
            facts, checks = {}, [Check(section, BROKEN, f"cannot be examined: {_said(error)}",
                                   getattr(error, "cure", None) or "")]
        found.facts[section] = facts
        found.checks += checks
    for name, attempt in (("a kernel", try_kernel), ("a model", try_model)):
        try:
            found.checks.append(attempt())
        except Exception as error:
            found.checks.append(Check(name, BROKEN, _said(error), getattr(error, "cure", None) or
                                      "set ORTHRUS_CODEGEN=0 to run on numpy, and report this"))
    return found


Found = tuple[dict[str, str], list[Check]]


def _said(error: BaseException) -> str:
    return home(f"{type(error).__name__}: {' '.join(str(error).split())}"[:400])


def home(path: str) -> str:
    """`path` with the user's folder as `~`."""
    own = os.path.expanduser("~")
    return path.replace(own, "~") if len(own) > 1 else path


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def versions() -> Found:
    """Orthrus, Python, the system, what is needed, and what it can be compared with."""
    import orthrus

    facts = {"orthrus": f"{orthrus.orthrus_version} (API of onnxruntime {orthrus.__version__})",
             "Python": f"{platform.python_version()} {platform.python_implementation()}, "
                       f"{platform.python_compiler()}"
                       + (", free-threaded" if not getattr(sys, "_is_gil_enabled", lambda: True)() else ""),
             "system": platform.platform(),
             "C library": " ".join(platform.libc_ver()).strip() or "not known"}
    checks = []
    for package in NEEDED:
        found = _version(package)
        facts[package] = found or "not installed"
        if found is None and package == "llvmlite":
            checks.append(Check("llvmlite", BROKEN, "not installed: everything runs on numpy, which is slow",
                                "pip install llvmlite"))
        elif found is None:
            checks.append(Check(package, BROKEN, "not installed", f"pip install {package}"))
    if facts["llvmlite"] != "not installed":
        from ...codegen.object.build import llvm_version

        facts["LLVM"] = llvm_version()
    peers = [f"{name} {found}" for name in PEERS if (found := _version(name))]
    facts["optional peers"] = ", ".join(peers) or "none"
    if not checks:
        checks.append(Check("packages", OK, f"all {len(NEEDED)} that are needed are installed"))
    return facts, checks


def machine() -> Found:
    """Processor, cores, quota and memory."""
    from ...codegen.runtime import threads
    from .display import size_text

    model = next((line.split(":", 1)[1].strip() for line in _read("/proc/cpuinfo").splitlines()
                  if line.startswith(("model name", "Model", "cpu model"))), platform.processor())
    flags = next((line.split(":", 1)[1].split() for line in _read("/proc/cpuinfo").splitlines()
                  if line.startswith(("flags", "Features", "isa"))), [])
    quota, memory = threads.cpu_quota(), _memory()
    facts = {"processor": f"{model or 'not known'} ({platform.machine()})",
             "its vector and matrix features": " ".join(sorted(f for f in flags if f.startswith(VECTORS)))
                                               or "not known",
             "logical processors": f"{os.cpu_count()}, {len(usable())} of them in this process's affinity "
                                   "mask",
             "quota of the control group": "none" if quota is None else f"{quota} processors",
             "threads of a run": f"at most {min(threads.cores(), knobs.THREADS.value or threads.cores())}"}
    for name, key in (("memory", "MemTotal"), ("memory available", "MemAvailable")):
        if key in memory:
            facts[name] = size_text(memory[key])
    limit = _memory_limit()
    facts["memory limit of the control group"] = "none" if limit is None else size_text(limit)
    facts["page of memory"] = size_text(os.sysconf("SC_PAGE_SIZE")) if hasattr(os, "sysconf") else "not known"
    return facts, []


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def _memory() -> dict[str, int]:
    rows = (line.split() for line in _read("/proc/meminfo").splitlines())
    return {row[0].rstrip(":"): int(row[1]) << 10 for row in rows if len(row) > 1 and row[1].isdigit()}


def _memory_limit() -> int | None:
    """Bytes the control groups allow: the least on the way up; None for no limit."""
    least: int | None = None
    for line in _read("/proc/self/cgroup").splitlines():
        _, controllers, path = (line.split(":", 2) + ["", ""])[:3]
        if controllers and "memory" not in controllers.split(","):
            continue
        base = "/sys/fs/cgroup" + ("/memory" if controllers else "")
        name = "memory.limit_in_bytes" if controllers else "memory.max"
        parts = [part for part in path.split("/") if part and part != ".."]
        for depth in range(len(parts), -1, -1):
            text = _read(os.path.join(base, *parts[:depth], name)).strip()
            if text.isdigit() and int(text) < 1 << 60:
                least = min(least or int(text), int(text))
    return least


def generation() -> Found:
    """The description of the machine that kernels are written for, and whether code can be generated."""
    from ...codegen.kernels import amx
    from ...codegen.machines.detect import host
    from ...codegen.object import library

    described, refusal = host(), library.available()
    facts: dict[str, str] = {}
    if described is not None:
        forced = f", forced by ORTHRUS_MACHINE={knobs.MACHINE.value}" if knobs.MACHINE else ""
        facts = {"written for": f"{described.triple}, cpu {described.cpu}{forced}",
                 "vectors": f"{8 * described.vector} bits, {described.registers} registers",
                 "first and second cache": f"{described.l1 >> 10} KiB, {described.l2 >> 10} KiB",
                 "features used": " ".join(described.features) or "none"}
        allowed = "allows it" if amx.usable(described) else "does not allow it"
        facts["matrix unit"] = (f"there is one for bfloat16, and the system {allowed}"
                                if described.has("amx-bf16") else "none for bfloat16")
    if refusal is None:
        return facts, [Check("code generation", OK, "memory can be made executable")]
    if not knobs.CODEGEN:
        return facts, [Check("code generation", NOTE, "switched off by ORTHRUS_CODEGEN=0; all runs on numpy",
                             "unset ORTHRUS_CODEGEN")]
    if described is None:
        return facts, [Check("code generation", NOTE, f"{refusal.reason}; all runs on numpy, which is slow")]
    return facts, [Check("code generation", BROKEN, f"{refusal.reason}: all runs on numpy, which is slow",
                         "install llvmlite" if "llvmlite" in refusal.reason
                         else "allow this process to make memory executable")]


def providers() -> Found:
    """Every registered provider, and why it works here or does not; what fails to load as well."""
    from importlib.metadata import entry_points

    from ...providers import ENTRY_POINTS, known

    facts: dict[str, str] = {}
    checks: list[Check] = []
    registered = known()
    for name, cls in registered.items():
        why = cls.probe()
        facts[name] = "works" if why is None else f"does not work here: {why.reason}"
    for point in entry_points(group=ENTRY_POINTS):
        try:
            loaded = getattr(point.load(), "name", point.name)
            if loaded in facts:
                facts[loaded] += f" (from {point.value})"
        except Exception as error:
            facts[point.name] = f"{point.value} does not load: {_said(error)}"
            checks.append(Check(f"provider {point.name}", BROKEN, facts[point.name],
                                "repair or remove the package that it comes from"))
    working = sum(text.startswith("works") for text in facts.values())
    return facts, checks or [Check("providers", OK, f"{working} of {len(facts)} work here")]


def cache() -> Found:
    """The folder of compiled kernels and of sessions: its size, whose it is, whether its files are whole."""
    from ...codegen.object import cache as stored
    from ...run.session_key import FOLDER
    from .display import size_text

    folder = stored.place()
    if folder is None:
        why = "switched off by ORTHRUS_CACHE=0" if not knobs.CACHE else "there is no folder for it"
        return {"folder": why}, [Check("cache", NOTE, f"{why}: each process compiles anew",
                                       "unset ORTHRUS_CACHE, or set ORTHRUS_CACHE_DIR")]
    facts = {"folder": home(folder)}
    try:
        os.makedirs(folder, 0o700, exist_ok=True)
        status = os.stat(folder)
        entries = [(e.name, e.stat().st_size) for e in os.scandir(folder) if len(e.name) == 64]
        inner = os.path.join(folder, FOLDER)
        kept = [e.stat().st_size for e in os.scandir(inner)] if os.path.isdir(inner) else []
    except OSError as error:
        return facts, [Check("cache", BROKEN, f"{facts['folder']} cannot be used: {error.strerror}",
                             "make the folder writable, or name another one in ORTHRUS_CACHE_DIR")]
    mode, sizes = stat.S_IMODE(status.st_mode), [size for _, size in entries]
    mine, writable = status.st_uid == os.geteuid(), os.access(folder, os.W_OK | os.X_OK)
    private = mine and not mode & (stat.S_IWGRP | stat.S_IWOTH)
    names = sorted(name for name, _ in entries)[:SAMPLE]
    whole = len(stored.load(names)) if private else 0
    facts |= {"entries": f"{len(entries)}, {size_text(sum(sizes))} of at most {size_text(stored.LIMIT)}",
              "mode": f"{mode:04o}, {'this' if mine else 'another'} user's, "
                      f"{'writable' if writable else 'not writable'}",
              "verified": f"{whole} of a sample of {len(names)} are whole",
              "sessions": f"{len(kept)}, {size_text(sum(kept))} of at most "
                          f"{size_text(knobs.CACHE_SESSIONS.value << 20)}"}
    if not private:
        return facts, [Check("cache", BROKEN, f"others may write to {home(folder)}: nothing is read from it",
                             f"chmod go-w {home(folder)}, or name another folder in ORTHRUS_CACHE_DIR")]
    if not writable or not _can_write(folder):
        return facts, [Check("cache", BROKEN, f"{home(folder)} is not writable: each process compiles anew",
                             "make it writable, or name another folder in ORTHRUS_CACHE_DIR")]
    if whole < len(names):
        return facts, [Check("cache", NOTE, f"{len(names) - whole} files are damaged; they are compiled anew",
                             f"empty {home(folder)}")]
    return facts, [Check("cache", OK, f"{len(entries)} entries in {home(folder)}, private and writable")]


def _can_write(folder: str) -> bool:
    path = os.path.join(folder, f"doctor.{os.getpid()}")
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
        return True
    except OSError:
        return False
    finally:
        with contextlib.suppress(OSError):
            os.unlink(path)


def switches() -> Found:
    """Orthrus's environment switches that are set."""
    facts = {name: home(str(value)) for name, (value, changed, _) in knobs.switches().items() if changed}
    return facts or {"none": "all have their defaults"}, []


def try_kernel() -> Check:
    """Write, compile, link and run one kernel, past the cache, and compare with numpy."""
    from ...codegen.kernels import loops, transpose
    from ...codegen.machines.detect import host
    from ...codegen.object import library
    from ...codegen.object.build import assemble
    from ...codegen.runtime import call_kernel

    described = host()
    if described is None or library.available() is not None:
        return Check("a kernel", NOTE, "not tried: no code is generated here")
    x = np.random.default_rng(0).standard_normal((SIDE, SIDE)).astype(np.float32)
    out = np.zeros_like(x)
    planned = transpose.plan(described, loops.Nest(x.shape, ((SIDE, 1), (1, SIDE))), x.itemsize)
    assert planned is not None
    spec, cells, items, _ = planned
    start = time.perf_counter()
    assemble(spec.text(described), described)
    compiled = time.perf_counter() - start
    start = time.perf_counter()
    call_kernel.run(described, spec, [out, x, *cells], items)
    took = time.perf_counter() - start
    if not np.array_equal(out, x.T):
        return Check("a kernel", BROKEN, f"{spec.template} gives other numbers than numpy",
                     "set ORTHRUS_CODEGEN=0, and report this")
    return Check("a kernel", OK, f"{spec.template} compiled in {1e3 * compiled:.1f} ms and gives numpy's "
                 f"numbers, linked and run in {1e3 * took:.1f} ms")


def try_model() -> Check:
    """Run the shipped model by generated code and by numpy, and compare."""
    import orthrus as ort

    from ...demo import MODEL, samples

    images = samples()[0]
    made: dict[str, list[Any]] = {}
    seconds: dict[str, tuple[float, float]] = {}
    options: dict[str, str]
    for name, options in (("generated", {}), ("numpy", {"use_codegen": "0"})):
        start = time.perf_counter()
        session = ort.InferenceSession(MODEL, providers=[("CPUExecutionProvider", options)])
        created = time.perf_counter() - start
        session.run(None, {"image": images})
        start = time.perf_counter()
        made[name] = list(session.run(None, {"image": images}))
        seconds[name] = created, time.perf_counter() - start
    worst = max(float(np.abs(a.astype(np.float64) - b).max())
                for a, b in zip(made["generated"], made["numpy"], strict=True))
    said = (f"the shipped model, {len(images)} images: session {1e3 * seconds['generated'][0]:.1f} ms, run "
            f"{1e3 * seconds['generated'][1]:.2f} ms, on numpy {1e3 * seconds['numpy'][1]:.2f} ms, largest "
            f"difference {worst:.1e}")
    if not worst < 1e-4:
        return Check("a model", BROKEN, said, "set ORTHRUS_CODEGEN=0, and report this")
    return Check("a model", OK, said)
