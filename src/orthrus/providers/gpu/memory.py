"""Where a session's memory on a GPU comes from: the device, or functions of the program's that it names.

In: a device and a provider's settings. Out: an `Allocator`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

from ...errors import InvalidArgument
from ...kernels import Allocator, Device

_NAMES = ("gpu_external_alloc", "gpu_external_free", "gpu_external_empty_cache")
_Allocate = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_size_t)
_Free = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_EmptyCache = ctypes.CFUNCTYPE(None)


def allocator(device: Device, settings: Mapping[str, Any]) -> Allocator:
    """What sessions with these settings take memory from. Raises InvalidArgument for one external function
    without the other."""
    allocate, free, _ = (settings.get(name, 0) for name in _NAMES)
    if not allocate and not free:
        return Allocator.of(device, **({"limit": settings["gpu_mem_limit"],
                                        "strategy": settings["arena_extend_strategy"]} if settings else {}))
    if not allocate or not free:
        raise InvalidArgument("memory can only be taken from functions together with giving it back",
                              found=", ".join(f"{name}={settings[name]}" for name in _NAMES),
                              expected="addresses of both gpu_external_alloc and gpu_external_free")
    take, give = _Allocate(allocate), _Free(free)

    def taken(size: int) -> int:
        address: int | None = take(size)
        if not address:
            raise MemoryError(f"gpu_external_alloc has no {size} bytes")
        return address
    return Allocator(taken, lambda address: give(address), "gpu_external_alloc", settings["gpu_mem_limit"],
                     "kSameAsRequested", passing=True)


def run_over(settings: Mapping[str, Any]) -> None:
    """Tell the program's functions that a run has ended."""
    if settings.get(_NAMES[2]):
        _EmptyCache(settings[_NAMES[2]])()
