"""The library built: C in, `libonnxruntime.so.1` and the headers out.

In: a folder, or none for one in the user's cache, named by all that decides about the library. Out: the
folder; files are written beside and moved into place. The library knows this Python, which it asks to
compile, and the sources of this package, which have to be the same when it does.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import sys
import tempfile
from importlib.resources import as_file, files
from pathlib import Path

from ...api.version import API_LEVEL
from ...codegen.object import cache
from ...errors import Fail
from ..ahead import toolchain
from . import table

SONAME = "libonnxruntime.so.1"
_NAMES = ("libonnxruntime.so", f"libonnxruntime.so.{API_LEVEL}")
"""Other names that programs look for it under."""
_FLAGS = ("-std=c11", "-O2", "-fPIC", "-fvisibility=hidden", "-pthread", "-Wall")
_LINK = ("-shared", f"-Wl,-soname,{SONAME}", "-Wl,-z,nodelete", "-Wl,-z,relro", "-Wl,-z,now", "-pthread")
_HEADER = "onnxruntime_c_api.h"
_FOLDER = "capi"


def place() -> Path:
    """The folder in the cache that a library of these sources lies in, once it is built. Raises Fail without
    one."""
    outer = cache.place()
    if outer is None:
        raise Fail("there is no cache folder to build the library in",
                   cure="name a folder: orthrus capi build --into DIR")
    return Path(outer) / _FOLDER / _stamp()[:16]


def built() -> Path:
    """That folder, built where it was not."""
    folder = place()
    return folder if (folder / "lib" / SONAME).exists() else build(folder)


def build(folder: Path) -> Path:
    """Build library and headers into `folder`, in place of what is there of them. Raises Fail where there is
    no compiler, or it fails, and OSError."""
    folder = folder.absolute()
    folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    tools = toolchain.find(_architecture())
    with (tempfile.TemporaryDirectory(dir=folder.parent, prefix="capi-") as passing,
          as_file(files("orthrus.native")) as native):
        made = Path(passing) / "made"
        for inside in ("lib", "include"):
            (made / inside).mkdir(parents=True)
        _headers(native / "dropin", made / "include")
        _compile(tools, native, made, Path(passing))
        for inside in ("lib", "include"):
            _replace(made / inside, folder / inside)
    return folder


def _architecture() -> str:
    machine = platform.machine()
    return {"AMD64": "x86_64", "arm64": "aarch64"}.get(machine, machine)


def _headers(sources: Path, into: Path) -> None:
    (into / _HEADER).write_text(table.header(), encoding="utf-8")
    for each in sorted(sources.glob("include/*.h")):
        shutil.copy(each, into)


def _compile(tools: toolchain.Toolchain, native: Path, made: Path, passing: Path) -> None:
    (passing / "table.h").write_text(table.declarations(), encoding="utf-8")
    (passing / "table.c").write_text(table.definitions(), encoding="utf-8")
    sources = [*sorted((native / "dropin").glob("*.c")), native / "runtime" / "runtime.c",
               passing / "table.c"]
    tools.run([*tools.cc, *_FLAGS, *told(), f"-I{made / 'include'}", f"-I{passing}", f"-I{native / 'dropin'}",
               *sources, *_LINK, "-o", made / "lib" / SONAME], passing)
    for name in _NAMES:
        (made / "lib" / name).symlink_to(SONAME)


def told() -> list[str]:
    """What the library knows of this Python: where it is, and the sources it has to have."""
    return [f"-DORTHRUS_BUILT_PYTHON={json.dumps(sys.executable)}",
            f'-DORTHRUS_BUILT_STAMP="{cache.stamp()}"']


def _replace(made: Path, target: Path) -> None:
    """Move the files of a folder over those of another."""
    target.mkdir(parents=True, exist_ok=True)
    for each in made.iterdir():
        os.replace(each, target / each.name)


def _stamp() -> str:
    """A digest of all that decides about the library."""
    digest = hashlib.sha256(f"{cache.stamp()} {sys.executable}".encode())
    for folder in ("dropin", "runtime"):
        for each in sorted(Path(str(files("orthrus.native"))).joinpath(folder).rglob("*")):
            if each.suffix in (".c", ".h", ".api"):
                digest.update(f"{each.name} ".encode() + each.read_bytes())
    return digest.hexdigest()
