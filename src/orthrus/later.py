"""Packages whose names are imported when they are first used: whoever needs one does not pay for the others.

In: a package, and which of its modules has which names. Out: the package's `__getattr__`. The same imports
stand under `TYPE_CHECKING` in the package, for those who read types. No name may be that of a module of the
package, which would come in its place.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def later(package: str, homes: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """The `__getattr__` of `package`. `homes`: names by the module that has them, seen from there:
    `gate`, or `.kernels` for one beside the package."""
    home = {name: module for module, names in homes.items() for name in names}

    def imported(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f".{home[name]}", package), name)
        setattr(sys.modules[package], name, value)
        return value
    return imported
