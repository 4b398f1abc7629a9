"""A compiled module as a function of arrays.

In: a module's file, a device's name and the types of what comes in and goes out. Out: `LoadedModule.start`,
which begins a run and gives a function that waits for it. Arrays go in and out without copies where their
memory allows it: aligned to 64 bytes on the way in, mapped by the device on the way out. Any number of runs
may be under way; a result's shape is never trusted, but compared with what the caller expects.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import EPFail
from ...ir import ElementType
from ...locks import lock

_ALIGNMENT = 64
_SMALL = 1 << 16
"""Bytes up to which a result is copied: it costs less than to keep the device's objects alive with it."""
_ENTRY = "main"
_WORKER_STACK = 1 << 20
"""Bytes of stack that each thread of local-task has: several times what the compiler lets a kernel take."""

_HAL_TYPES = {
    ElementType.FLOAT: "FLOAT_32", ElementType.DOUBLE: "FLOAT_64", ElementType.FLOAT16: "FLOAT_16",
    ElementType.BFLOAT16: "BFLOAT_16", ElementType.BOOL: "BOOL_8", ElementType.INT8: "SINT_8",
    ElementType.UINT8: "UINT_8", ElementType.INT16: "SINT_16", ElementType.UINT16: "UINT_16",
    ElementType.INT32: "SINT_32", ElementType.UINT32: "UINT_32", ElementType.INT64: "SINT_64",
    ElementType.UINT64: "UINT_64", ElementType.FLOAT8E4M3FN: "FLOAT_8_E4M3_FN",
    ElementType.FLOAT8E4M3FNUZ: "FLOAT_8_E4M3_FNUZ", ElementType.FLOAT8E5M2: "FLOAT_8_E5M2",
    ElementType.FLOAT8E5M2FNUZ: "FLOAT_8_E5M2_FNUZ",
}
"""Types that may cross a part's border: those of whole bytes that the runtime has a name for."""

CROSSING = frozenset(_HAL_TYPES)


class LoadedModule:
    """One compiled module on one device. `updates`: whether it may write on what it is given, which is copied
    then. Raises EPFail for a module or a device that does not load."""

    def __init__(self, module: Path, device: str, outputs: Sequence[ElementType], threads: int,
                 updates: bool) -> None:
        import iree.runtime as rt

        self.rt, self.host, self.updates = rt, device in ("local-sync", "local-task"), updates
        self.device = opened(device, threads)
        try:
            instance = _instance()
            self.module = rt.VmModule.mmap(instance, str(module))
            self.context = rt.VmContext(instance, modules=[
                rt.create_hal_module(instance, self.device), self.module])
            self.entry = self.module.lookup_function(f"{_ENTRY}$async")
        except Exception as error:
            raise EPFail(f"IREE does not load a compiled part: {error}", node=module.name,
                         cure="compile it for this machine and this version of IREE") from error
        if self.entry is None:
            raise EPFail("the compiled part has no entry point", node=module.name, expected=_ENTRY)
        self.dtypes = [np.dtype(np.int8 if e is ElementType.BOOL else e.numpy) for e in outputs]
        self.bools = [e is ElementType.BOOL for e in outputs]
        self.lock = lock()

    def start(self, arrays: Sequence[np.ndarray], kinds: Sequence[ElementType]) -> Callable[[], list[Any]]:
        """Begin a run; the function that is answered waits and gives the results. Raises EPFail."""
        rt = self.rt
        semaphore = self.device.create_semaphore(0)
        arguments, made = rt.VmVariantList(len(arrays) + 2), rt.VmVariantList(len(self.dtypes))
        kept = []
        try:
            for array, kind in zip(arrays, kinds, strict=True):
                held, view = self._view(array, kind)
                kept.append(held)
                arguments.push_ref(view)
            arguments.push_ref(rt.HalFence.create_at(semaphore, 0))
            done = rt.HalFence.create_at(semaphore, 1)
            arguments.push_ref(done)
            with self.lock:
                self.context.invoke(self.entry, arguments, made)
        except Exception as error:
            raise _failed(error) from error

        def finish() -> list[Any]:
            try:
                done.wait()
                views = [made.get_as_object(i, rt.HalBufferView) for i in range(len(self.dtypes))]
                found = [self._array(view, i) for i, view in enumerate(views)]
            except Exception as error:
                raise _failed(error) from error
            return [_apart(array, kept) for array in found]
        return finish

    def _view(self, array: np.ndarray, kind: ElementType) -> tuple[np.ndarray, Any]:
        """Memory that a device reads, and its view: the array's own where it can be."""
        rt, element = self.rt, getattr(self.rt.HalElementType, _HAL_TYPES[kind])
        array = np.ascontiguousarray(array).reshape(array.shape)
        allocator = self.device.allocator
        if not self.host:
            return array, allocator.allocate_buffer_copy(
                memory_type=rt.MemoryType.DEVICE_LOCAL, allowed_usage=rt.BufferUsage.DEFAULT,
                device=self.device, buffer=_plain(array), element_type=element)
        fits = array.nbytes and array.flags.writeable and array.ctypes.data % _ALIGNMENT == 0
        held = array if fits and not self.updates else aligned(array)
        buffer = allocator.import_host_allocation(
            held.reshape(-1).view(np.uint8), rt.MemoryType.HOST_LOCAL | rt.MemoryType.DEVICE_VISIBLE,
            rt.BufferUsage.DEFAULT | rt.BufferUsage.MAPPING)
        return held, rt.HalBufferView(buffer, array.shape, element)

    def _array(self, view: Any, index: int) -> np.ndarray:
        """A result as an array: the device's own memory where the host can map it."""
        shape, dtype = tuple(view.shape), self.dtypes[index]
        if 0 in shape:
            return np.empty(shape, np.bool_ if self.bools[index] else dtype)
        if self.host:
            raw = view.map().asarray((int(np.prod(shape)) * dtype.itemsize,), np.dtype(np.uint8))
            raw = raw.copy() if raw.nbytes <= _SMALL else raw
        else:
            raw = np.asarray(self.rt.DeviceArray(self.device, view).to_host()).reshape(-1).view(np.uint8)
        array = raw.view(dtype).reshape(shape)
        return array.view(np.bool_) if self.bools[index] else array


def _plain(array: np.ndarray) -> np.ndarray:
    """`array` under a type that the buffer protocol has: ml_dtypes' are none."""
    return array if array.dtype.kind in "biufc" else array.view(f"u{array.dtype.itemsize}")


def aligned(array: np.ndarray) -> np.ndarray:
    """A copy of `array` at an address that kernels can read vectors from."""
    room = np.empty(max(array.nbytes, 1) + _ALIGNMENT, np.uint8)
    at = -room.ctypes.data % _ALIGNMENT
    if not array.nbytes:
        return room[at:at + 1]
    made = room[at:at + array.nbytes].view(array.dtype).reshape(array.shape)
    np.copyto(made, array)
    return made


def _apart(array: np.ndarray, inputs: Sequence[np.ndarray]) -> np.ndarray:
    """`array`, copied where it looks at an input: a module may hand its argument through."""
    return array.copy() if any(np.may_share_memory(array, held) for held in inputs) else array


def _failed(error: Exception) -> EPFail:
    return EPFail(f"IREE failed while running: {str(error).strip()}")


@cache
def _instance() -> Any:
    import iree.runtime as rt

    return rt.VmInstance()


_devices: dict[str, Any] = {}
_opening = lock()


def opened(name: str, threads: int) -> Any:
    """The device of this name, one per process; `threads` of the first session that asks decide how large
    the pool of local-task is. Raises EPFail where there is none."""
    import iree.runtime as rt

    with _opening:
        if name not in _devices:
            try:
                if name == "local-task":
                    rt.flags.parse_flags(f"--task_worker_stack_size={_WORKER_STACK}")
                    rt.flags.parse_flags(*[f"--task_topology_group_count={threads}"] * (threads > 0))
                _devices[name] = rt.get_device(name, cache=False)
            except (ValueError, RuntimeError) as error:
                raise EPFail(f"IREE has no device {name} here: {str(error).strip()}",
                             found=", ".join(rt.query_available_drivers()),
                             cure="the option device names another") from error
        return _devices[name]
