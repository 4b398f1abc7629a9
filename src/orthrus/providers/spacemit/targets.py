"""The processors code is generated for, by the names SpacemiT's runtime gives them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...codegen import machine
from ...codegen.machine import Machine

TARGETS: dict[str, Machine | None] = {
    "spacemit-k1": machine.rvv(256),
    "spacemit-k3": machine.rvv(1024),
    "spacemit-k3-x100": machine.rvv(256),
    "generic": None,
}
"""What each is to a kernel; `generic` is any core with vectors, whose length is an option."""

DEFAULT = "spacemit-k3"


def chosen(settings: Mapping[str, Any]) -> Machine:
    """The machine the options ask for, on a machine that is none of them."""
    name = settings["target"] or settings["SPACEMIT_EP_PERFER_CORE_ARCH"] or DEFAULT
    return TARGETS[name] or machine.rvv(settings["vlen"])
