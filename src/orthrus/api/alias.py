"""This package under another's name: `install_as_onnxruntime()`, or `sys.modules["onnxruntime"] = orthrus`.

In: the import of a module below a name that stands for one of this package's, such as
`onnxruntime.quantization.calibrate`. Out: the module of this package's own name. The invariant: a module is
loaded once, whatever it is called, so that its classes and enums are the same under every name. What
onnxruntime's CPU build lacks too is not found, and under this package's name the error says what to do.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec
    from types import CodeType, ModuleType

_PACKAGE = __name__.partition(".")[0]
STAND_IN = os.path.join(os.path.dirname(__file__), "stand_in")
"""A folder that gives this package onnxruntime's name and version in processes that have it on their path."""

_LEFT_OUT = {f"{_PACKAGE}.training": "this package runs models: train with PyTorch, and export the model"}
"""Modules that other builds of onnxruntime have, and what to do instead."""


class _Aliases:
    """Finds what lies below a module of this package that has another name in `sys.modules`."""

    @staticmethod
    def find_spec(fullname: str, path: Sequence[str] | None,
                  target: ModuleType | None = None) -> ModuleSpec | None:
        parent, _, last = fullname.rpartition(".")
        real = getattr(sys.modules.get(parent), "__name__", parent)
        if fullname in _LEFT_OUT:
            raise ModuleNotFoundError(f"No module named {fullname!r}: {_LEFT_OUT[fullname]}", name=fullname)
        if real == parent or real.partition(".")[0] != _PACKAGE or f"{real}.{last}" in _LEFT_OUT:
            return None
        import importlib.util
        from importlib.machinery import ModuleSpec

        found = importlib.util.find_spec(f"{real}.{last}")
        if found is None:
            return None
        loader: Any = _Same(found)
        spec = ModuleSpec(fullname, loader, origin=found.origin)
        spec.submodule_search_locations = found.submodule_search_locations
        return spec


class _Same:
    """Loads the module that `spec` names; `get_code` is for `runpy`."""

    def __init__(self, spec: ModuleSpec) -> None:
        self.spec = spec

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        import importlib

        sys.modules[module.__name__] = importlib.import_module(self.spec.name)

    def get_code(self, fullname: str) -> CodeType | None:
        loader: Any = self.spec.loader
        return loader.get_code(self.spec.name)


def follow_aliases() -> None:
    """Let every import in this process find modules below an alias of this package."""
    if not any(isinstance(finder, _Aliases) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Aliases())


def install_as_onnxruntime() -> None:
    """From here on `import onnxruntime` gives this package, and `importlib.metadata.version("onnxruntime")`
    the version whose interface it has; in this process and in those that `multiprocessing` starts.

    Raises RuntimeError where another onnxruntime is imported already: its objects would be mixed with these.
    """
    own, other = sys.modules[_PACKAGE], sys.modules.get("onnxruntime")
    if other not in (None, own):
        where = getattr(other, "__file__", "elsewhere")
        raise RuntimeError(f"onnxruntime is imported already, from {where}: call install_as_onnxruntime() "
                           "before anything imports it")
    sys.modules["onnxruntime"] = own
    if STAND_IN not in sys.path:
        sys.path.insert(1, STAND_IN)
