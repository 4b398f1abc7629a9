"""The processors this process may run on: all there are where the system does not say, as on macOS."""

from __future__ import annotations

import os
from collections.abc import Collection


def usable() -> Collection[int]:
    """Their numbers, at least one."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return range(os.cpu_count() or 1)
