"""HIP's runtime, `libamdhip64.so` or `amdhip64.dll`, by ctypes.

In: nothing. Out: a `Driver` of this process, or why there is none.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Iterator
from pathlib import Path

from .driver import Properties
from .library import Finding, Function, LibraryDriver

FUNCTIONS = {
    "init": Function("hipInit", "u", "1.6"),
    "version": Function("hipRuntimeGetVersion", "*", "1.6"),
    "count": Function("hipGetDeviceCount", "*", "1.6"),
    "device_name": Function("hipDeviceGetName", "*ii", "1.6"),
    "device_memory": Function("hipDeviceTotalMem", "*i", "1.6"),
    "attribute": Function("hipDeviceGetAttribute", "*ii", "1.6"),
    "device_properties": Function("hipGetDevicePropertiesR0600", "*i", "6.0"),
    "current": Function("hipGetDevice", "*", "1.6"),
    "make_current": Function("hipSetDevice", "i", "1.6"),
    "error_name": Function("hipGetErrorName", "i", "1.6", ctypes.c_char_p),
    "memory_info": Function("hipMemGetInfo", "**", "1.6"),
    "allocate": Function("hipMalloc", "*n", "1.6"),
    "free": Function("hipFree", "p", "1.6"),
    "allocate_host": Function("hipHostMalloc", "*nu", "1.6"),
    "free_host": Function("hipHostFree", "p", "1.6"),
    "create_stream": Function("hipStreamCreateWithFlags", "*u", "1.6"),
    "destroy_stream": Function("hipStreamDestroy", "p", "1.6"),
    "synchronize": Function("hipStreamSynchronize", "p", "1.6"),
    "create_event": Function("hipEventCreateWithFlags", "*u", "1.6"),
    "destroy_event": Function("hipEventDestroy", "p", "1.6"),
    "record": Function("hipEventRecord", "pp", "1.6"),
    "wait": Function("hipStreamWaitEvent", "ppu", "1.6"),
    "wait_for": Function("hipEventSynchronize", "p", "1.6"),
    "reached": Function("hipEventQuery", "p", "1.6"),
    "elapsed": Function("hipEventElapsedTime", "*pp", "1.6"),
    "copy": Function("hipMemcpyAsync", "ppnip", "1.6"),
    "fill": Function("hipMemsetD8Async", "pbnp", "3.0"),
    "load": Function("hipModuleLoadDataEx", "*pupp", "1.6"),
    "unload": Function("hipModuleUnload", "p", "1.6"),
    "function": Function("hipModuleGetFunction", "*ps", "1.6"),
    "launch": Function("hipModuleLaunchKernel", "puuuuuuuppp", "1.6"),
    "begin_capture": Function("hipStreamBeginCapture", "pi", "4.3"),
    "end_capture": Function("hipStreamEndCapture", "p*", "4.3"),
    "instantiate": Function("hipGraphInstantiateWithFlags", "*pq", "5.0"),
    "destroy_recording": Function("hipGraphDestroy", "p", "4.3"),
    "launch_graph": Function("hipGraphLaunch", "pp", "4.3"),
    "destroy_graph": Function("hipGraphExecDestroy", "p", "4.3"),
}
_PROCESSORS, _SHARED, _WARP = 63, 74, 87
_ANY_DIRECTION = 4
_ROOM, _NAME_BYTES, _ARCHITECTURE_AT = 16384, 256, 1160
"""Bytes for a device's properties, of which HIP 6 writes 1472; those of its name, which come first; where
HIP 6 has its architecture."""
_ARCHITECTURE = re.compile(rb"gfx[0-9a-f]+(?::[a-z]+[+-])*(?=\0)")


class HipDriver(LibraryDriver):
    """AMD's GPUs."""

    name = "HIP"
    end = 3

    def _enter(self, index: int) -> int | None:
        current = ctypes.c_int(-1)
        self.functions["current"](ctypes.byref(current))
        if current.value == index:
            return None
        self._checked("make_current", self.functions["make_current"](index))
        return current.value

    def _leave(self, before: int) -> None:
        self.functions["make_current"](before)

    def _error_name(self, code: int) -> str:
        return (self.functions["error_name"](code) or b"an unknown error").decode()

    def properties(self, index: int) -> Properties:
        name, memory = ctypes.create_string_buffer(_NAME_BYTES), ctypes.c_size_t()
        self._checked("device_name", self.functions["device_name"](name, len(name), index))
        self._checked("device_memory", self.functions["device_memory"](ctypes.byref(memory), index))

        def attribute(which: int) -> int:
            return self._number("attribute", which, index)
        return Properties(name.value.decode(), self._architecture(index), memory.value,
                          attribute(_PROCESSORS), attribute(_SHARED), attribute(_WARP))

    def _architecture(self, index: int) -> str:
        """The target of a device, its features included: `gfx942:sramecc+:xnack-`. Where it is not where
        HIP 6 has it, it is looked for: no other property reads like one."""
        room = ctypes.create_string_buffer(_ROOM)
        self._checked("device_properties", self.functions["device_properties"](room, index))
        found = (_ARCHITECTURE.match(room.raw, _ARCHITECTURE_AT)
                 or _ARCHITECTURE.search(room.raw, _NAME_BYTES))
        return found.group().decode() if found else "an unknown architecture"

    def copy(self, index: int, to: int, source: int, size: int, stream: int) -> None:
        self._do(index, "copy", to, source, size, _ANY_DIRECTION, stream)


def _names() -> Iterator[str]:
    if os.name == "nt":
        yield from ("amdhip64_7.dll", "amdhip64_6.dll", "amdhip64.dll")
        return
    folders = [Path(os.environ.get("ROCM_PATH") or "/opt/rocm") / "lib"]
    for name in ("libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so"):
        yield name
        yield from (str(folder / name) for folder in folders)


HIP = Finding(HipDriver, FUNCTIONS, tuple(_names()), (60000000, "ROCm 6.0"),
              "install AMD's driver and ROCm 6.0 or newer")
