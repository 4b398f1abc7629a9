"""What PyInstaller has to know to put this package into a program: `hook-orthrus.py`, by an entry point.

In: nothing. Out: the folder of the hook. A frozen program has the modules that are imported by name, the data
that they read, and the sources, by which the cache of compiled kernels is told.
"""

from __future__ import annotations

import os


def folders() -> list[str]:
    """Where PyInstaller looks for hooks."""
    return [os.path.dirname(__file__)]
