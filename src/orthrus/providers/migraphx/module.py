"""The Python module of MIGraphX: where it is, and whether it is one that the table of operators is of.

In: a folder that an option names, or nothing. Out: the module, or why there is none. It is looked for among
installed packages, on `PYTHONPATH`, and in the `lib` of `ROCM_PATH`, /opt/rocm where that is not set.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from ...ir import No
from ..gpu.hip import HIP
from .table import VERSION

NAME = "migraphx"


def folders(given: str = "") -> list[str]:
    """Folders to look in beside those of `sys.path`."""
    if given:
        return [given]
    rocm = os.environ.get("ROCM_PATH", "/opt/rocm")
    return [os.path.join(rocm, "lib"), os.path.join(rocm, "lib64")]


def found(given: str = "", any_version: bool = False) -> Any:
    """The module, imported; `No` where it is missing, does not load, or is of another version."""
    module = sys.modules.get(NAME) or _imported(given)
    if isinstance(module, No):
        return module
    place = os.path.dirname(os.path.realpath(getattr(module, "__file__", None) or ""))
    if given and place != os.path.realpath(given):
        return No(f"this process has loaded the module {NAME} of {place} already")
    version = str(getattr(module, "__version__", ""))
    if not any_version and not version.startswith(f"{VERSION}."):
        return No(f"MIGraphX {version or 'of unknown version'} is installed; tried was {VERSION}; the option"
                  " any_version=1 takes it all the same")
    return module


def _imported(given: str) -> Any:
    places = [folder for folder in folders(given) if os.path.isdir(folder)]
    before = list(sys.path)
    sys.path[:] = [*places, *before] if given else [*before, *places]
    try:
        if find_spec(NAME) is None:
            return No(_missing(given, places))
        return import_module(NAME)
    except (ImportError, OSError, ValueError) as error:
        return No(f"the module {NAME} does not load: {error}")
    finally:
        sys.path[:] = before


def _missing(given: str, places: list[str]) -> str:
    """What is missing: a module for this Python, or any."""
    for folder in places:
        others = sorted(p.name for p in Path(folder).glob(f"{NAME}.*.so"))
        if others:
            version = ".".join(map(str, sys.version_info[:2]))
            return (f"{folder} has {', '.join(others)}, and this is Python {version}, which takes"
                    f" {NAME}{EXTENSION_SUFFIXES[0]}")
    where = given or "this Python, PYTHONPATH, " + ", ".join(folders())
    return (f"there is no module {NAME} in {where}; install ROCm's package migraphx, or name its folder by"
            " the option module_path")


def target(module: Any, name: str) -> Any:
    """The library's target of this name, `No` where it has none."""
    try:
        return module.get_target(name)
    except RuntimeError as error:
        return No(f"MIGraphX has no target {name} here: {error}")


def select_device(index: int) -> None:
    """Let this process's work go to GPU `index`. Raises RuntimeError where there is none such."""
    driver = HIP.driver()
    if isinstance(driver, No):
        raise RuntimeError(driver.reason)
    if not 0 <= index < driver.count():
        raise RuntimeError(f"Invalid device ID: {index}, must be between 0 (inclusive) and {driver.count()}"
                           " (exclusive)")
    driver.functions["make_current"](index)
