"""How much memory a process has taken.

In: nothing but the system's word. Out: bytes, 0 where it says nothing.
"""

from __future__ import annotations

from pathlib import Path


def peak_bytes() -> int:
    """The most resident memory this process has had; 0 where the system does not say."""
    try:
        return 1024 * int(Path("/proc/self/status").read_text().partition("VmHWM:")[2].split()[0])
    except (OSError, IndexError):
        pass
    try:
        import resource
        import sys

        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else 1024 * most
    except ImportError:
        return 0
