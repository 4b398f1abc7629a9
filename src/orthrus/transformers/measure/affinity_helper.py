"""The processors this process may run on, put back after a library changed them."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection

logger = logging.getLogger(__name__)


class AffinitySetting:
    """Remembers the affinity of this process. Where the system has none, as on macOS, nothing happens."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.affinity: Collection[int] | None = None
        self.is_os_supported = hasattr(os, "sched_getaffinity")
        if not self.is_os_supported:
            logger.warning("this system does not tell or set the processors of a process")

    def get_affinity(self) -> None:
        """Remember where this process may run now."""
        if self.is_os_supported:
            self.affinity = os.sched_getaffinity(self.pid)

    def set_affinity(self) -> None:
        """Let this process run where it might when `get_affinity` was called, and nowhere else."""
        if self.affinity is not None and os.sched_getaffinity(self.pid) != self.affinity:
            os.sched_setaffinity(self.pid, self.affinity)
            logger.warning("the processors of process %s are %s again", self.pid, sorted(self.affinity))


if __name__ == "__main__":
    setting = AffinitySetting()
    setting.get_affinity()
    setting.set_affinity()
