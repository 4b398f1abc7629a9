"""C compilers: what makes libraries and programs of a model's object file.

In: an architecture, and whether what is made brings its C library along. Out: the commands of a compiler that
makes code for it, which is asked and never guessed: one called by `CC`, `cc`, a cross compiler by its usual
name, or the one in the package `ziglang`, which makes code for all of them.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from ...errors import Fail
from ...records import dataclass

CURE = "install a C compiler (apt-get install gcc), or the one on PyPI: pip install ziglang"
FLAGS = ("-std=c11", "-O2")
OLDEST_GLIBC = {"x86_64": "2.17", "aarch64": "2.17", "riscv64": "2.27"}
"""The C library that zig links for: what runs with it runs with later ones."""
_SECONDS = 900
"""For one command: zig compiles a C library at its first static program."""


@dataclass(frozen=True)
class Toolchain:
    """`cc`: the command that compiles and links; `ar`: what makes archives; `static`: whether programs are
    linked with all they need."""

    arch: str
    cc: tuple[str, ...]
    ar: tuple[str, ...]

    def run(self, command: Sequence[str | os.PathLike[str]], folder: Path) -> None:
        """Run a compiler in `folder`. Raises Fail with what it said."""
        words = [os.fspath(word) for word in command]
        try:
            made = subprocess.run(words, cwd=folder, capture_output=True, text=True, errors="replace",
                                  timeout=_SECONDS, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Fail(f"{words[0]} does not run", found=str(error), cure=CURE) from None
        if made.returncode:
            raise Fail(f"{Path(words[0]).name} failed: {shlex.join(words)}",
                       found=(made.stderr or made.stdout).strip()[-2000:] or f"exit code {made.returncode}",
                       cure="name another compiler by the environment variable CC, or pip install ziglang")


def find(arch: str, static: bool = False) -> Toolchain:
    """A toolchain for Linux on `arch`. Raises Fail where there is none."""
    tried = []
    for command, ar in _installed(arch):
        made = _makes(command)
        if made.startswith(f"{arch}-") and "linux" in made:
            if not static or _links_statically(command):
                return Toolchain(arch, command, ar)
            made += " without a static C library"
        tried.append(f"{shlex.join(command)} makes code for {made or 'nothing'}")
    zig = zig_command()
    if zig is not None:
        system = "musl" if static else f"gnu.{OLDEST_GLIBC[arch]}"
        return Toolchain(arch, (*zig, "cc", "-target", f"{arch}-linux-{system}"), (*zig, "ar"))
    raise Fail(f"there is no C compiler for {arch}" + (", with a static C library" if static else ""),
               found="; ".join(tried) or "no compiler at all", cure=CURE)


def _installed(arch: str) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Compilers that are here, each with its maker of archives."""
    found = []
    ar = tuple(shlex.split(os.environ.get("AR", "ar")))
    if os.environ.get("CC"):
        found.append((tuple(shlex.split(os.environ["CC"])), ar))
    if arch == {"AMD64": "x86_64", "arm64": "aarch64"}.get(platform.machine(), platform.machine()):
        found += [((name,), ar) for name in ("cc", "gcc", "clang")]
    cross = f"{arch}-linux-gnu"
    found.append(((f"{cross}-gcc",), (f"{cross}-ar",)))
    return [(command, ar) for command, ar in found if shutil.which(command[0]) and shutil.which(ar[0])]


def zig_command() -> tuple[str, ...] | None:
    """How to call zig, None where it is not installed."""
    if importlib.util.find_spec("ziglang") is not None:
        return sys.executable, "-m", "ziglang"
    path = shutil.which("zig")
    return None if path is None else (path,)


def _makes(command: tuple[str, ...]) -> str:
    """The kind of machine a compiler makes code for."""
    try:
        return subprocess.run([*command, "-dumpmachine"], capture_output=True, text=True, timeout=60,
                              check=False).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


def _links_statically(command: tuple[str, ...]) -> bool:
    try:
        return subprocess.run([*command, "-static", "-pthread", "-x", "c", "-", "-o", os.devnull],
                              input="int main(void) { return 0; }", capture_output=True, text=True,
                              timeout=60, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False
