"""CUDA's driver, `libcuda.so.1` or `nvcuda.dll`, by ctypes.

In: nothing. Out: a `Driver` of this process, or why there is none. Devices are used by their primary
contexts, which are those that the CUDA runtime, and so PyTorch, uses.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping
from typing import Any

from ..gpu.driver import Properties
from ..gpu.library import Finding, Function, LibraryDriver

FUNCTIONS = {
    "init": Function("cuInit", "u", "2.0"),
    "version": Function("cuDriverGetVersion", "*", "2.2"),
    "count": Function("cuDeviceGetCount", "*", "2.0"),
    "device": Function("cuDeviceGet", "*i", "2.0"),
    "device_name": Function("cuDeviceGetName", "*ii", "2.0"),
    "device_memory": Function("cuDeviceTotalMem_v2", "*i", "3.2"),
    "attribute": Function("cuDeviceGetAttribute", "*ii", "2.0"),
    "context": Function("cuDevicePrimaryCtxRetain", "*i", "7.0"),
    "current": Function("cuCtxGetCurrent", "*", "4.0"),
    "make_current": Function("cuCtxSetCurrent", "p", "4.0"),
    "error_name": Function("cuGetErrorName", "i*", "6.0"),
    "memory_info": Function("cuMemGetInfo_v2", "**", "3.2"),
    "allocate": Function("cuMemAlloc_v2", "*n", "3.2"),
    "free": Function("cuMemFree_v2", "p", "3.2"),
    "allocate_host": Function("cuMemHostAlloc", "*nu", "2.2"),
    "free_host": Function("cuMemFreeHost", "p", "2.0"),
    "create_stream": Function("cuStreamCreate", "*u", "2.0"),
    "destroy_stream": Function("cuStreamDestroy_v2", "p", "4.0"),
    "synchronize": Function("cuStreamSynchronize", "p", "2.0"),
    "create_event": Function("cuEventCreate", "*u", "2.0"),
    "destroy_event": Function("cuEventDestroy_v2", "p", "4.0"),
    "record": Function("cuEventRecord", "pp", "2.0"),
    "wait": Function("cuStreamWaitEvent", "ppu", "3.2"),
    "wait_for": Function("cuEventSynchronize", "p", "2.0"),
    "reached": Function("cuEventQuery", "p", "2.0"),
    "elapsed": Function("cuEventElapsedTime", "*pp", "2.0"),
    "copy": Function("cuMemcpyAsync", "ppnp", "4.0"),
    "fill": Function("cuMemsetD8Async", "pbnp", "3.2"),
    "load": Function("cuModuleLoadDataEx", "*pupp", "2.1"),
    "unload": Function("cuModuleUnload", "p", "2.0"),
    "function": Function("cuModuleGetFunction", "*ps", "2.0"),
    "set_attribute": Function("cuFuncSetAttribute", "pii", "9.0"),
    "launch": Function("cuLaunchKernel", "puuuuuuuppp", "4.0"),
    "begin_capture": Function("cuStreamBeginCapture_v2", "pi", "10.1"),
    "end_capture": Function("cuStreamEndCapture", "p*", "10.0"),
    "instantiate": Function("cuGraphInstantiateWithFlags", "*pq", "11.4"),
    "destroy_recording": Function("cuGraphDestroy", "p", "10.0"),
    "launch_graph": Function("cuGraphLaunch", "pp", "10.0"),
    "destroy_graph": Function("cuGraphExecDestroy", "p", "10.0"),
}
_PROCESSORS, _WARP, _MAJOR, _MINOR, _SHARED = 16, 10, 75, 76, 97
_DYNAMIC_SHARED = 8
_FREELY_SHARED = 48 << 10
"""Bytes of shared memory that a kernel may have without saying so first."""


class CudaDriver(LibraryDriver):
    """NVIDIA's GPUs."""

    name = "CUDA"
    end = 0

    def __init__(self, functions: Mapping[str, Any]) -> None:
        self._contexts: dict[int, int] = {}
        super().__init__(functions)

    def _context(self, index: int) -> int:
        with self._lock:
            if index not in self._contexts:
                out = ctypes.c_void_p()
                self._checked("context", self.functions["context"](ctypes.byref(out), self._device(index)))
                self._contexts[index] = out.value or 0
            return self._contexts[index]

    def _device(self, index: int) -> int:
        return self._number("device", index)

    def _enter(self, index: int) -> int | None:
        context, current = self._contexts.get(index) or self._context(index), ctypes.c_void_p()
        self.functions["current"](ctypes.byref(current))
        if current.value == context:
            return None
        self._checked("make_current", self.functions["make_current"](context))
        return current.value

    def _leave(self, before: int) -> None:
        self.functions["make_current"](before)

    def _error_name(self, code: int) -> str:
        text = ctypes.c_char_p()
        self.functions["error_name"](code, ctypes.byref(text))
        return (text.value or b"an unknown error").decode()

    def properties(self, index: int) -> Properties:
        device, name, memory = self._device(index), ctypes.create_string_buffer(256), ctypes.c_size_t()
        self._checked("device_name", self.functions["device_name"](name, len(name), device))
        self._checked("device_memory", self.functions["device_memory"](ctypes.byref(memory), device))

        def attribute(which: int) -> int:
            return self._number("attribute", which, device)
        return Properties(name.value.decode(), f"sm_{attribute(_MAJOR)}{attribute(_MINOR)}", memory.value,
                          attribute(_PROCESSORS), attribute(_SHARED), attribute(_WARP))

    def function(self, index: int, module: int, name: str, shared: int) -> int:
        found = super().function(index, module, name, shared)
        if shared > _FREELY_SHARED:
            self._do(index, "set_attribute", found, _DYNAMIC_SHARED, shared)
        return found


CUDA = Finding(CudaDriver, FUNCTIONS, ("nvcuda.dll",) if os.name == "nt" else ("libcuda.so.1", "libcuda.so"),
               (12000, "CUDA 12.0"), "install NVIDIA's driver 525 or newer")
