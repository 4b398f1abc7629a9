"""Providers that are shared libraries, in C or in what can make one: `orthrus_provider.h` says how.

In: the path of a library. Out: providers like any other. `INCLUDE` is the folder of the header.
"""

from .abi import HEADER
from .loader import libraries, register_library, unregister_library

INCLUDE = str(HEADER.parent)

__all__ = ["INCLUDE", "libraries", "register_library", "unregister_library"]
