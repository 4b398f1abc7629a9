"""What people ask for by a word: a level of optimization, a provider, a module to import first.

In: words of a command line, a settings file or a call. Out: names as the API has them. Needs nothing but the
API: what only the command line needs is in `cli`.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

LIBRARIES = (".so", ".dylib", ".dll")
"""How the names of shared libraries end."""
LEVELS = {"disable": "ORT_DISABLE_ALL", "basic": "ORT_ENABLE_BASIC", "extended": "ORT_ENABLE_EXTENDED",
          "layout": "ORT_ENABLE_LAYOUT", "all": "ORT_ENABLE_ALL"}


def import_modules(modules: Sequence[str] | None) -> None:
    """Import what registers operators or providers, modules or shared libraries; modules in the working
    directory count."""
    if modules and "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    for name in modules or ():
        if name.endswith(LIBRARIES):
            load_library(name)
        else:
            importlib.import_module(name)


def load_library(path: str) -> list[str]:
    """The names of the providers of a shared library, which are known from here on. Raises Fail for what is
    no such library."""
    from ..providers.library import libraries, register_library

    if path not in libraries():
        register_library(path, path)
    return libraries()[path]


def full_name(name: str, known: Sequence[str]) -> str:
    """The provider that `name` means, short or full. Raises ValueError with those there are."""
    for full in known:
        if name.lower() in (full.lower(), full.removesuffix("ExecutionProvider").lower()):
            return full
    raise ValueError(f"no provider is called {name!r}; there are {', '.join(known)}")
