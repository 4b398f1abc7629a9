"""Other systems than Linux, as far as they can be looked at from here: what they lack is neither imported nor
asked for unguarded, and a process without it imports everything and runs models."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from skips import needs
from sources import FILES, SOURCE, named, parsed

from orthrus.codegen.machines import detect

MODULES = "fcntl grp posix pwd pty resource syslog termios tty"
"""Modules of Python that Windows does not have."""
LINUX = {
    "os": """sched_getaffinity sched_setaffinity memfd_create MFD_CLOEXEC eventfd pidfd_open posix_fadvise
             splice getrandom copy_file_range""",
    "mmap": "MADV_HUGEPAGE MAP_POPULATE MAP_NORESERVE", "select": "epoll", "resource": "prlimit"}
"""What these modules hold on Linux, and not on macOS."""
POSIX = {
    "os": """fork register_at_fork getuid geteuid getgid getegid getpgid setsid killpg pread preadv pwrite
             uname fchmod fchown chown getloadavg mkfifo sysconf waitid wait4 confstr statvfs nice openpty
             forkpty O_NOFOLLOW O_NONBLOCK O_DIRECTORY O_CLOEXEC set_blocking posix_spawn WIFSIGNALED""",
    "mmap": """MAP_PRIVATE MAP_SHARED MAP_ANONYMOUS MAP_ANON PROT_READ PROT_WRITE PROT_EXEC MADV_DONTNEED
               MADV_NORMAL MADV_WILLNEED""",
    "select": "poll kqueue", "signal": "SIGKILL SIGALRM SIGUSR1 SIGUSR2 SIGHUP setitimer alarm",
    "time": "clock_gettime tzset"}
"""What they hold there as well, and not on Windows."""
NAMES = {where: {*LINUX.get(where, "").split(), *POSIX.get(where, "").split()}
         for where in {**LINUX, **POSIX}}
LACKING = {"darwin": {where: text.split() for where, text in LINUX.items() if where != "resource"},
           "win32": {where: sorted(NAMES[where]) for where in ("os", "mmap", "select", "time")}}
"""What is taken from a process that plays such a system; no test needs more of it gone."""
GUARDED = {
    "codegen/emulate/": "`find` refuses where the system is not Linux, and nothing goes on from there",
    "codegen/object/cache.py": "`place` says there is no folder where descriptors of folders are not known",
    "codegen/machines/executable.py": "`detect.found` finds no machine where the system is not POSIX",
    "distributed/constants.py": "`placed` starts no process where sockets hand over no files",
    "load/external.py": "PROT_READ is where MAP_PRIVATE is, which is asked for",
    "load/folder.py": "O_DIRECTORY is where O_NOFOLLOW is, which is asked for",
    "memory.py": "`_mapped` asks for two of the names, and gives nothing to discard without",
    "serving/memory.py": "`register` refuses where the system is not Linux, and there is no region without",
    "testing/concurrency.py": "`after_fork` asks for fork; the rest stands behind a file of /proc",
    "tools/cli/checkup.py": "`place` says there is no folder, see codegen/object/cache.py",
    "transformers/measure/affinity_helper.py": "`is_os_supported` asks for one of the names",
    "transformers/measure/benchmark_helper.py": "behind a file of /proc",
    "providers/spacemit/": "on a board, which runs Linux, or behind `emulate`",
}
"""Files, or folders, where something keeps away systems that lack what is used, and what that is."""


def guards(tree: ast.AST) -> dict[ast.AST, set[str]]:
    """Every node below, with the names that somebody looked for around it: `hasattr`, `getattr`, and * where
    AttributeError is caught."""
    around: dict[ast.AST, set[str]] = {}

    def walk(node: ast.AST, known: set[str]) -> None:
        mine = known
        if isinstance(node, ast.FunctionDef | ast.If | ast.IfExp | ast.BoolOp):
            asked = {str(call.args[1].value) for call in ast.walk(node) if isinstance(call, ast.Call)
                     and getattr(call.func, "id", "") in ("hasattr", "getattr") and len(call.args) > 1
                     and isinstance(call.args[1], ast.Constant)}
            mine = known | asked
        if isinstance(node, ast.Try):
            caught = {ast.unparse(h.type) for h in node.handlers if h.type is not None}
            mine = known | ({"*"} if any("AttributeError" in text for text in caught) else set())
        around[node] = mine
        for child in ast.iter_child_nodes(node):
            walk(child, mine)
    walk(tree, set())
    return around


def unguarded(path: Path) -> Iterator[str]:
    tree = parsed(path)
    nodes = list(ast.walk(tree))
    inside = {inner for f in nodes if isinstance(f, ast.FunctionDef) for inner in ast.walk(f)}
    asked = [node for node in nodes if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
             and node.attr in NAMES.get(node.value.id, ())]
    known = guards(tree) if asked else {}
    yield from (f"line {node.lineno}: {ast.unparse(node)}" for node in asked
                if not known[node] & {"*", node.attr})
    for node in nodes:
        if isinstance(node, ast.Import | ast.ImportFrom) and node not in inside:
            names = ([alias.name for alias in node.names] if isinstance(node, ast.Import)
                     else [node.module or ""])
            yield from (f"line {node.lineno}: import {name}" for name in names if name in MODULES.split())
        if (isinstance(node, ast.Call) and node not in inside
                and ast.unparse(node).startswith("ctypes.CDLL(None")):
            yield f"line {node.lineno}: the C library, when the module is imported"


@pytest.mark.slow
def test_nothing_is_asked_of_a_system_that_may_lack_it() -> None:
    files = {named(path): path for path in FILES}
    assert [f"{name}, {what}" for name, path in files.items() if not name.startswith(tuple(GUARDED))
            for what in unguarded(path)] == []


CHILD = """
import importlib, json, os, pkgutil, sys
system, processor = sys.argv[1:]
sys.path[:0] = os.environ["PLACES"].split(os.pathsep)
import ctypes, mmap, pathlib, platform, select, signal, subprocess, tempfile, threading, concurrent.futures
import asyncio, multiprocessing.connection, socket, shutil, sysconfig, uuid, getpass, ctypes.util
import urllib.request
import numpy as np, onnx, llvmlite.binding, ml_dtypes, typer, typer.testing, rich.console, rich.table
import rich.progress, rich.traceback, rich.syntax, rich.markdown, onnx.helper, onnx.reference
EXTRAS = ("torch", "transformers", "ray", "pyarrow", "starlette", "uvicorn", "httptools", "grpc",
          "orjson", "prometheus_client", "simdjson", "PyInstaller")
sys.modules.update(dict.fromkeys(EXTRAS))
sysconfig.get_config_vars()
for where, names in json.loads(os.environ["LACKING"]).items():
    for name in names:
        vars(importlib.import_module(where)).pop(name, None)
if system == "win32":
    for name in os.environ["MODULES"].split():
        sys.modules[name] = None
    os.name, os.supports_dir_fd = "nt", set()
    for module in (pathlib, sys.modules.get("pathlib._local")):
        if module is not None:
            module.WindowsPath = pathlib.PosixPath
    plain = ctypes.CDLL
    def load(name, *args, **options):
        assert name is not None, "no library without a name"
        return plain(name, *args, **options)
    ctypes.CDLL = load
sys.platform, platform.machine, platform.system = system, lambda: processor, lambda: {
    "win32": "Windows", "darwin": "Darwin"}[system]
import orthrus as ort
from orthrus.errors import NotFound
for each in pkgutil.walk_packages(ort.__path__, "orthrus.", lambda name: None):
    if not each.name.endswith("__main__") and each.name not in SKIPPED:
        try:
            importlib.import_module(each.name)
        except (ModuleNotFoundError, NotFound) as error:
            assert (getattr(error, "name", "") or "torch").split(".")[0] in EXTRAS, error
from orthrus.codegen.machines import detect
from orthrus.tools.cli import checkup
found = detect.host()
print(found.triple if found else None)
if processor != "arm64":
    from small_networks import SWEEPS
    for make, feed, sizes in SWEEPS.values():
        given = feed(np.random.default_rng(1), *sizes[len(sizes) // 2])
        got, expected = (
            ort.InferenceSession(make(), providers=[("CPUExecutionProvider", {"use_codegen": use})]
                                 ).run(None, given) for use in ("1", "0"))
        for g, e in zip(got, expected, strict=True):
            np.testing.assert_allclose(g, e, 2e-4, 2e-5)
if system == "darwin" and processor != "arm64":
    print([c.found for c in checkup.examine().checks if c.state == "broken"])
""".replace("SKIPPED", repr({"orthrus.tools.pytorch_export_helpers"}))


def process(system: str, processor: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """One without what `system` lacks that imports all of this package, runs networks, examines itself."""
    tests = Path(__file__).parents[1]
    places = (SOURCE.parent, tests / "support", tests / "machines")
    given = os.environ | {"PLACES": os.pathsep.join(map(str, places)), "ORTHRUS_CACHE_DIR": str(tmp_path),
                          "LACKING": json.dumps(LACKING[system]), "MODULES": MODULES}
    return subprocess.run([sys.executable, "-c", CHILD, system, processor], env=given, text=True,
                          capture_output=True, timeout=300, check=False)


@needs("generated code", "POSIX")
@pytest.mark.parametrize("system,processor,triple", (
    ("darwin", "x86_64", "x86_64-unknown-linux-gnu"), ("darwin", "arm64", "arm64-apple-darwin-elf"),
    ("win32", "AMD64", None)))
def test_a_process_without_what_linux_has(system: str, processor: str, triple: str | None, tmp_path: Path
                                          ) -> None:
    if processor == "x86_64" and detect.platform.machine() != "x86_64":
        pytest.skip("the processor here has no x86 instructions")
    done = process(system, processor, tmp_path)
    assert not done.returncode, done.stderr
    assert done.stdout.splitlines()[0] == str(triple)
    if processor == "x86_64":
        assert done.stdout.splitlines()[1] == "[]"
