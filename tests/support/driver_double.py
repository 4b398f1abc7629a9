"""Doubles of CUDA's and HIP's libraries: functions with C's calling convention and the vendors' signatures,
whose devices' memory is the heap.

Each checks what it is given: handles are those it gave, of the device that is current, which every function
needs that works on one. `fail` gives a function's next result by its symbol. The one kernel, `scale`, writes
y[i] = factor * x[i]; the kernel `fault` loses the device when the stream is waited for.
"""

from __future__ import annotations

import ctypes
import re
import struct
import threading
from collections import Counter
from typing import Any

from orthrus.providers.gpu.library import Function

CUDA_HEADER = """
CUresult cuInit(unsigned int flags);
CUresult cuDriverGetVersion(int* version);
CUresult cuDeviceGetCount(int* count);
CUresult cuDeviceGet(CUdevice* device, int ordinal);
CUresult cuDeviceGetName(char* name, int len, CUdevice dev);
CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice dev);
CUresult cuDeviceGetAttribute(int* pi, CUdevice_attribute attrib, CUdevice dev);
CUresult cuDevicePrimaryCtxRetain(CUcontext* pctx, CUdevice dev);
CUresult cuCtxGetCurrent(CUcontext* pctx);
CUresult cuCtxSetCurrent(CUcontext ctx);
CUresult cuGetErrorName(CUresult error, const char** text);
CUresult cuMemGetInfo_v2(size_t* free, size_t* total);
CUresult cuMemAlloc_v2(CUdeviceptr* dptr, size_t bytesize);
CUresult cuMemFree_v2(CUdeviceptr dptr);
CUresult cuMemHostAlloc(void** pp, size_t bytesize, unsigned int flags);
CUresult cuMemFreeHost(void* p);
CUresult cuStreamCreate(CUstream* stream, unsigned int flags);
CUresult cuStreamDestroy_v2(CUstream stream);
CUresult cuStreamSynchronize(CUstream stream);
CUresult cuEventCreate(CUevent* event, unsigned int flags);
CUresult cuEventDestroy_v2(CUevent event);
CUresult cuEventRecord(CUevent event, CUstream stream);
CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags);
CUresult cuEventSynchronize(CUevent event);
CUresult cuEventQuery(CUevent event);
CUresult cuEventElapsedTime(float* ms, CUevent start, CUevent end);
CUresult cuMemcpyAsync(CUdeviceptr dst, CUdeviceptr src, size_t count, CUstream stream);
CUresult cuMemsetD8Async(CUdeviceptr dst, unsigned char uc, size_t n, CUstream stream);
CUresult cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned int n, CUjit_option* o, void** v);
CUresult cuModuleUnload(CUmodule module);
CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name);
CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attrib, int value);
CUresult cuLaunchKernel(CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx,
    unsigned int by, unsigned int bz, unsigned int shared, CUstream stream, void** params, void** extra);
CUresult cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode);
CUresult cuStreamEndCapture(CUstream stream, CUgraph* graph);
CUresult cuGraphInstantiateWithFlags(CUgraphExec* exec, CUgraph graph, unsigned long long flags);
CUresult cuGraphDestroy(CUgraph graph);
CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream);
CUresult cuGraphExecDestroy(CUgraphExec exec);
"""
HIP_HEADER = """
hipError_t hipInit(unsigned int flags);
hipError_t hipRuntimeGetVersion(int* version);
hipError_t hipGetDeviceCount(int* count);
hipError_t hipDeviceGetName(char* name, int len, hipDevice_t device);
hipError_t hipDeviceTotalMem(size_t* bytes, hipDevice_t device);
hipError_t hipDeviceGetAttribute(int* pi, hipDeviceAttribute_t attr, int device);
hipError_t hipGetDevicePropertiesR0600(hipDeviceProp_tR0600* prop, int device);
hipError_t hipGetDevice(int* device);
hipError_t hipSetDevice(int device);
const char* hipGetErrorName(hipError_t error);
hipError_t hipMemGetInfo(size_t* free, size_t* total);
hipError_t hipMalloc(void** ptr, size_t size);
hipError_t hipFree(void* ptr);
hipError_t hipHostMalloc(void** ptr, size_t size, unsigned int flags);
hipError_t hipHostFree(void* ptr);
hipError_t hipStreamCreateWithFlags(hipStream_t* stream, unsigned int flags);
hipError_t hipStreamDestroy(hipStream_t stream);
hipError_t hipStreamSynchronize(hipStream_t stream);
hipError_t hipEventCreateWithFlags(hipEvent_t* event, unsigned int flags);
hipError_t hipEventDestroy(hipEvent_t event);
hipError_t hipEventRecord(hipEvent_t event, hipStream_t stream);
hipError_t hipStreamWaitEvent(hipStream_t stream, hipEvent_t event, unsigned int flags);
hipError_t hipEventSynchronize(hipEvent_t event);
hipError_t hipEventQuery(hipEvent_t event);
hipError_t hipEventElapsedTime(float* ms, hipEvent_t start, hipEvent_t stop);
hipError_t hipMemcpyAsync(void* dst, const void* src, size_t bytes, hipMemcpyKind kind, hipStream_t stream);
hipError_t hipMemsetD8Async(hipDeviceptr_t dst, unsigned char value, size_t count, hipStream_t stream);
hipError_t hipModuleLoadDataEx(hipModule_t* module, const void* image, unsigned int n, hipJitOption* o,
    void** v);
hipError_t hipModuleUnload(hipModule_t module);
hipError_t hipModuleGetFunction(hipFunction_t* function, hipModule_t module, const char* name);
hipError_t hipModuleLaunchKernel(hipFunction_t f, unsigned int gx, unsigned int gy, unsigned int gz,
    unsigned int bx, unsigned int by, unsigned int bz, unsigned int shared, hipStream_t stream, void** params,
    void** extra);
hipError_t hipStreamBeginCapture(hipStream_t stream, hipStreamCaptureMode mode);
hipError_t hipStreamEndCapture(hipStream_t stream, hipGraph_t* graph);
hipError_t hipGraphInstantiateWithFlags(hipGraphExec_t* exec, hipGraph_t graph, unsigned long long flags);
hipError_t hipGraphDestroy(hipGraph_t graph);
hipError_t hipGraphLaunch(hipGraphExec_t exec, hipStream_t stream);
hipError_t hipGraphExecDestroy(hipGraphExec_t exec);
"""
_NUMBERS = {"unsigned int": ctypes.c_uint, "int": ctypes.c_int, "size_t": ctypes.c_size_t,
            "unsigned char": ctypes.c_ubyte, "unsigned long long": ctypes.c_ulonglong,
            "CUdeviceptr": ctypes.c_ulonglong, "CUdevice": ctypes.c_int, "hipDevice_t": ctypes.c_int,
            "CUresult": ctypes.c_int, "hipError_t": ctypes.c_int, "CUdevice_attribute": ctypes.c_int,
            "hipDeviceAttribute_t": ctypes.c_int, "CUfunction_attribute": ctypes.c_int,
            "CUstreamCaptureMode": ctypes.c_int, "hipStreamCaptureMode": ctypes.c_int,
            "hipMemcpyKind": ctypes.c_int}
"""C's types that are no pointers, nor handles, which are."""


def declared(header: str) -> dict[str, list[Any]]:
    """By function what it gives and takes, as ctypes has it."""
    found = {}
    for gives, name, takes in re.findall(r"([\w ]+?\**)\s*(\w+)\(([^)]*)\);", header):
        types = [re.match(r"(?:const )?([\w ]+?)\s*(\**)\s*\w+$", t.strip()) for t in takes.split(",")]
        found[name] = [_ctype(gives.replace("*", ""), "*" in gives),
                       *(_ctype(m[1], bool(m[2])) for m in types if m)]
    return found


def _ctype(name: str, pointer: bool) -> Any:
    return ctypes.c_void_p if pointer else _NUMBERS.get(name.strip(), ctypes.c_void_p)


class _Raw(ctypes._CFuncPtr):
    """A function at an address, of which nothing is known yet."""

    _flags_, _restype_ = 1, ctypes.c_int


def _put(kind: Any, at: int, value: Any) -> int:
    kind.from_address(at).value = value
    return 0


class DriverDouble:
    """A library of `table`'s functions as `header` declares them; `without`: symbols that it lacks."""

    def __init__(self, table: dict[str, Function], header: str, *, devices: int = 2,
                 version: int | None = None, without: tuple[str, ...] = (),
                 architecture: bytes = b"gfx942:sramecc+:xnack-", memory: int = 1 << 34) -> None:
        self.hip = "hipInit" in header
        self.devices, self.architecture, self.memory = devices, architecture, memory
        self.reported = version if version is not None else 60300000 if self.hip else 12080
        self.calls, self.fail = Counter[str](), dict[str, int]()
        self.live = dict[int, tuple[str, int]]()
        self.kept, self.recording, self.graphs = dict[int, Any](), dict[int, list[Any]](), dict[int, Any]()
        self.attributes, self.launched = dict[int, tuple[int, int]](), list[tuple[Any, ...]]()
        self.wrong: list[str] = []
        self.lost = self.faulting = 0
        self._here, self._next = threading.local(), 0x7F0000000100
        self._names = {code: ctypes.create_string_buffer(text) for code, text in (
            (2, b"OUT_OF_MEMORY"), (100, b"NO_DEVICE"), (209, b"NO_BINARY_FOR_GPU"),
            (719, b"LAUNCH_FAILED"), (801, b"NOT_SUPPORTED"), (1, b"INVALID_VALUE"))}
        self._callbacks = []
        for verb, it in table.items():
            if it.symbol not in without:
                setattr(self, it.symbol, self._made(it.symbol, verb, declared(header)[it.symbol]))

    def _made(self, symbol: str, verb: str, types: list[Any]) -> Any:
        does = getattr(self, f"_{verb}")

        def called(*given: Any) -> Any:
            self.calls[symbol] += 1
            try:
                if symbol in self.fail:
                    return self.fail.pop(symbol)
                if self.lost and verb not in ("error_name", "current", "make_current"):
                    return self.lost
                return does(*(0 if a is None else a for a in given))
            except Exception as error:
                self.wrong.append(f"{symbol}{given}: {error!r}")
                return 1
        callback = ctypes.CFUNCTYPE(*types)(called)
        self._callbacks.append(callback)
        function: Any = _Raw(ctypes.cast(callback, ctypes.c_void_p).value)
        function.__name__ = symbol
        return function

    def _give(self, kind: str, at: int) -> int:
        """A new handle of the current device's, above 32 bits."""
        self._next += 0x100
        self.live[self._next] = kind, self.on()
        return _put(ctypes.c_void_p, at, self._next)

    def _take(self, kind: str, handle: int, end: bool = False) -> int:
        """Whether this is a handle of the current device's."""
        assert self.live.get(handle) == (kind, self.on()), (kind, handle, self.live.get(handle))
        if end:
            del self.live[handle]
        return 0

    def on(self) -> int:
        """The device that is this thread's current one."""
        device = getattr(self._here, "device", 0 if self.hip else None)
        assert device is not None, "no context is current"
        return device

    def _stream(self, handle: int) -> int:
        return 0 if handle == 0 else self._take("stream", handle)

    def _init(self, flags: int) -> int:
        assert flags == 0
        return 0

    def _version(self, out: int) -> int:
        return _put(ctypes.c_int, out, self.reported)

    def _count(self, out: int) -> int:
        return _put(ctypes.c_int, out, self.devices)

    def _device(self, out: int, ordinal: int) -> int:
        return _put(ctypes.c_int, out, ordinal)

    def _context(self, out: int, device: int) -> int:
        return _put(ctypes.c_void_p, out, 0x7E0000000000 + device)

    def _current(self, out: int) -> int:
        if self.hip:
            return _put(ctypes.c_int, out, self.on())
        device = getattr(self._here, "device", None)
        return _put(ctypes.c_void_p, out, None if device is None else 0x7E0000000000 + device)

    def _make_current(self, which: int) -> int:
        self._here.device = which if self.hip else None if which == 0 else which - 0x7E0000000000
        return 0

    def _device_name(self, out: int, size: int, device: int) -> int:
        assert size >= 32
        name = b"Double %d" % device
        ctypes.memmove(out, name + b"\0", len(name) + 1)
        return 0

    def _device_memory(self, out: int, device: int) -> int:
        return _put(ctypes.c_size_t, out, self.memory)

    def _attribute(self, out: int, which: int, device: int) -> int:
        values = {63: 304, 74: 65536, 87: 64} if self.hip else {16: 132, 10: 32, 75: 9, 76: 0, 97: 232448}
        return _put(ctypes.c_int, out, values[which])

    def _device_properties(self, out: int, device: int) -> int:
        ctypes.memset(out, 0, 1472)
        ctypes.memmove(out, b"a gfx of sorts", 14)
        ctypes.memmove(out + 1160, self.architecture, len(self.architecture))
        return 0

    def _error_name(self, code: int, out: int = 0) -> int | None:
        address = ctypes.addressof(self._names.get(code, self._names[1]))
        return address if self.hip else _put(ctypes.c_void_p, out, address)

    def _memory_info(self, free: int, total: int) -> int:
        self.on()
        _put(ctypes.c_size_t, free, self.memory - 5)
        return _put(ctypes.c_size_t, total, self.memory)

    def _allocate(self, out: int, size: int) -> int:
        if size > self.memory:
            return 2
        room = ctypes.create_string_buffer(size + 256)
        address = -(-ctypes.addressof(room) // 256) * 256
        self.kept[address], self.live[address] = room, ("memory", self.on())
        return _put(ctypes.c_void_p, out, address)

    def _free(self, address: int) -> int:
        del self.kept[address]
        return self._take("memory", address, True)

    def _allocate_host(self, out: int, size: int, flags: int) -> int:
        assert flags == 1
        return self._allocate(out, size)

    _free_host = _free

    def _create_stream(self, out: int, flags: int) -> int:
        assert flags == 1
        return self._give("stream", out)

    def _destroy_stream(self, stream: int) -> int:
        return self._take("stream", stream, True)

    def _synchronize(self, stream: int) -> int:
        self._stream(stream)
        self.lost = self.lost or self.faulting
        return self.lost

    def _create_event(self, out: int, flags: int) -> int:
        assert flags in (0, 2)
        return self._give("event", out)

    def _destroy_event(self, event: int) -> int:
        return self._take("event", event, True)

    def _record(self, event: int, stream: int) -> int:
        return self._take("event", event) or self._stream(stream)

    def _wait(self, stream: int, event: int, flags: int) -> int:
        assert flags == 0
        return self._take("event", event) or self._stream(stream)

    def _wait_for(self, event: int) -> int:
        return self._take("event", event)

    _reached = _wait_for

    def _elapsed(self, out: int, start: int, end: int) -> int:
        self._take("event", start)
        self._take("event", end)
        return _put(ctypes.c_float, out, 1.5)

    def _ask(self, stream: int, work: Any) -> int:
        self._stream(stream)
        if stream in self.recording:
            self.recording[stream].append(work)
        else:
            work()
        return 0

    def _copy(self, to: int, source: int, size: int, *rest: int) -> int:
        assert not self.hip or rest[0] == 4
        return self._ask(rest[-1], lambda: ctypes.memmove(to, source, size))

    def _fill(self, to: int, byte: int, size: int, stream: int) -> int:
        return self._ask(stream, lambda: ctypes.memset(to, byte, size))

    def _load(self, out: int, image: int, count: int, options: int, values: int) -> int:
        assert count == 2
        assert list((ctypes.c_int * 2).from_address(options)) == [5, 6]
        log, room = (ctypes.c_void_p * 2).from_address(values)
        if ctypes.string_at(image, 4) != b"code":
            ctypes.memmove(log, b"this is no image\0", 17)
            assert room and room >= 1024
            return 209
        return self._give("module", out)

    def _unload(self, module: int) -> int:
        return self._take("module", module, True)

    def _function(self, out: int, module: int, name: int) -> int:
        self._take("module", module)
        self._give("function", out)
        self.kept[self._next] = ctypes.string_at(name).decode()
        return 0

    def _set_attribute(self, function: int, which: int, value: int) -> int:
        self.attributes[function] = which, value
        return self._take("function", function)

    def _launch(self, f: int, gx: int, gy: int, gz: int, bx: int, by: int, bz: int, shared: int, stream: int,
                params: int, extra: int) -> int:
        self._take("function", f)
        assert (gy, gz, by, bz, params) == (1, 1, 1, 1, 0)
        tag, at, other, size, end = (ctypes.c_void_p * 5).from_address(extra)
        assert (tag, other, end or 0) == (1, 2, 3 if self.hip else 0)
        arguments = ctypes.string_at(at or 0, ctypes.c_size_t.from_address(size or 0).value)
        self.launched.append((gx, bx, shared, stream, arguments))
        return self._ask(stream, lambda: self._run(self.kept[f], arguments))

    def _run(self, name: str, arguments: bytes) -> None:
        if name == "fault":
            self.faulting = 719
            return
        y, x, count, factor = struct.unpack("<QQif", arguments)
        to, source = ((ctypes.c_float * count).from_address(a) for a in (y, x))
        for i in range(count):
            to[i] = factor * source[i]

    def _begin_capture(self, stream: int, mode: int) -> int:
        assert mode == 1
        self.recording[stream] = []
        return self._stream(stream)

    def _end_capture(self, stream: int, out: int) -> int:
        self._stream(stream)
        recorded = self.recording.pop(stream)
        self._give("graph", out)
        self.graphs[self._next] = recorded
        return 0

    def _instantiate(self, out: int, graph: int, flags: int) -> int:
        assert flags == 0
        self._take("graph", graph)
        self._give("executable", out)
        self.graphs[self._next] = self.graphs[graph]
        return 0

    def _destroy_recording(self, graph: int) -> int:
        return self._take("graph", graph, True)

    def _launch_graph(self, graph: int, stream: int) -> int:
        self._take("executable", graph)
        self._stream(stream)
        for work in self.graphs[graph]:
            work()
        return 0

    def _destroy_graph(self, graph: int) -> int:
        return self._take("executable", graph, True)
