"""The processors code is generated for, by the names SpacemiT's runtime gives them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...codegen.machines.machine import Machine, target

TARGETS = ("spacemit-k1", "spacemit-k3", "spacemit-k3-x100", "generic")
"""The cores for matrices of K1 and of K3, K3's general ones, and any core with vectors, of a length that is
an option."""

DEFAULT = "spacemit-k3"


def named(name: str, vlen: int = 256) -> Machine:
    """What a target is to a kernel. Raises ValueError for one there is not."""
    return target(name.replace("-", "_"), vlen)


def chosen(settings: Mapping[str, Any]) -> Machine:
    """The machine the options ask for where this process runs on none of them."""
    name = settings["target"] or settings["SPACEMIT_EP_PERFER_CORE_ARCH"] or DEFAULT
    return named(name, settings["vlen"])


def label(machine: Machine) -> str:
    """What people call it."""
    found = (name for name in TARGETS if name != "generic" and named(name) == machine)
    return next(found, f"generic, vectors of {8 * machine.vector} bits")
