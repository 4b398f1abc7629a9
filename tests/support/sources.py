"""The package's own sources, for tests of what stands in them."""

from __future__ import annotations

import ast
import gc
from pathlib import Path

import orthrus

SOURCE = Path(orthrus.__file__).resolve().parent
FILES = sorted(SOURCE.rglob("*.py"))


def named(path: Path) -> str:
    return str(path.relative_to(SOURCE))


def parsed(path: Path) -> ast.Module:
    """The syntax of a file. Nothing of it is garbage, so nobody looks for any while it is made."""
    collects = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(path.read_text(encoding="utf-8"))
    finally:
        if collects:
            gc.enable()
