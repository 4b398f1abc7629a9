"""Every operator, said once: what it takes, what it means, and from which schema version on."""

import importlib
import pkgutil

from .define import Op, defined, find

_NOT_FAMILIES = {"define", "functions", "schema", "infer"}

for _module in pkgutil.iter_modules(__path__):
    if _module.name not in _NOT_FAMILIES:
        importlib.import_module(f"{__name__}.{_module.name}")

__all__ = ["Op", "defined", "find"]
