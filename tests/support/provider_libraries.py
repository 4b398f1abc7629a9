"""Libraries of providers, built for tests: the examples, and one that is wrong on demand.

In: a source. Out: the path of the library, in a folder of the test's.
"""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

from orthrus.providers.library import INCLUDE

ROOT = Path(__file__).resolve().parents[2]
C = ROOT / "examples" / "provider_c" / "provider.c"
RUST = ROOT / "examples" / "provider_rust" / "provider.rs"
WRONG = ROOT / "tests" / "providers" / "data" / "wrong_provider.c"
STRICT = ("-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic")


def built(source: Path, folder: Path, *flags: str) -> Path:
    """The library of a source in C or Rust."""
    made = folder / f"lib{source.stem}.so"
    if source.suffix == ".rs":
        command = ["rustc", "--edition", "2021", "-O", "-D", "warnings", "--crate-type", "cdylib"]
    else:
        command = ["cc", *STRICT, "-O1", "-shared", "-fPIC", "-I", INCLUDE, *flags]
    subprocess.run([*command, str(source), "-o", str(made)], check=True)
    return made


class Wrong:
    """The library that is wrong on demand, as its tests speak to it."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self._library = ctypes.CDLL(self.path)
        self._library.living.restype = ctypes.c_long
        self._library.shown.restype = ctypes.c_char_p

    def misbehave(self, how: str) -> None:
        self._library.misbehave(how.encode())

    def living(self) -> tuple[int, ...]:
        """Its providers, kernels and tensors that were not given back yet."""
        return tuple(self._library.living(kind) for kind in range(3))

    def shown(self) -> list[str]:
        """What its claim saw of the last graph."""
        return bytes(self._library.shown()).decode().splitlines()
