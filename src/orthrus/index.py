"""What is written in which module of a package, so that only the modules that are asked for are imported.

In: a table of modules and the names that each registers when it is imported; `python -m orthrus.tools.index`
writes it. Out: the modules of a name, imported. The invariant: what is read is complete, on whichever thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import import_module

Key = tuple[str, str]


class Index:
    """The modules of `package`, as seen from there, and the names each of them registers: operators by domain
    and name, `com.microsoft::Gelu`, in a text with blanks between. A module's body asks for none of them."""

    def __init__(self, package: str, table: Mapping[str, str]) -> None:
        self.package, self.modules = package, tuple(table)
        self._waiting: dict[Key, list[str]] = {}
        for module, names in table.items():
            for name in names.split():
                domain, _, kind = name.rpartition("::")
                self._waiting.setdefault((domain, kind), []).append(module)
        self.keys = frozenset(self._waiting)

    def read(self, key: Key) -> None:
        """Import the modules that register `key`, in the table's order."""
        waiting = self._waiting.get(key)
        if waiting is not None:
            self._import(waiting)
            self._waiting.pop(key, None)

    def read_all(self) -> None:
        """Import every module."""
        if self._waiting:
            self._import(self.modules)
            self._waiting.clear()

    def _import(self, modules: Iterable[str]) -> None:
        for module in modules:
            import_module(f"{self.package}.{module}")
