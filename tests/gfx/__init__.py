"""AMD machine code carried out on the CPU."""

import contextlib
import sys

_DEPTH = sys.getrecursionlimit()
with contextlib.suppress(ImportError):
    import tinygrad  # noqa: F401
# the package raises it for the whole process
sys.setrecursionlimit(_DEPTH)
