"""Where the arguments of kernels lie: the host's memory, or that of a device which numpy cannot read.

In: arrays of numpy's, and shapes. Out: `DeviceArray`s, which only their device and its kernels understand.
Each piece of memory has one owner, a `Memory`, and is given back when nothing refers to that any more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import InvalidArgument
from ..ir import TensorType, element_of
from ..limits import bounded


class Device:
    """A memory of its own. A subclass has a `name` and the verbs; this class itself is the host.

    `kind`, `vendor` and `index` are onnxruntime's numbers for it: `kind` 0 is a CPU, 1 a GPU, 3 an NPU. Work
    on a device is done in the order in which it is asked for, as far as anybody can see: `copy_out` waits for
    what computes the elements, and `free` for what still reads them. The verbs are called on many threads.
    """

    name = "cpu"
    kind, vendor, index = 0, 0, 0

    def allocate(self, size: int) -> Any:
        """New memory of `size` bytes, at least 1. Raises MemoryError."""
        raise self._undefined("allocate(size)")

    def free(self, handle: Any) -> None:
        """Give back what `allocate` gave."""
        raise self._undefined("free(handle)")

    def copy_in(self, array: np.ndarray, handle: Any) -> None:
        """Copy an array of the host, in C order, to the start of the memory `handle`. `array` may be changed
        as soon as this returns."""
        raise self._undefined("copy_in(array, handle)")

    def copy_out(self, handle: Any, array: np.ndarray) -> None:
        """Fill an array of the host, in C order, from the start of the memory `handle`."""
        raise self._undefined("copy_out(handle, array)")

    def copy_across(self, source: DeviceArray, handle: Any) -> bool:
        """Copy an array of any device, this one too, to the memory `handle` of this one; False where that has
        to go by way of the host."""
        return False

    def clear(self, to: int, size: int, byte: int = 0) -> None:
        """Set bytes at an address; for devices whose handles are addresses."""
        raise self._undefined("clear(to, size)")

    def function(self, code: bytes, name: str, shared: int = 0) -> int:
        """A kernel of a code object, to be launched with so many bytes of shared memory. Raises EPFail."""
        raise self._undefined("function(code, name, shared)")

    def launch(self, function: int, blocks: int, threads: int, shared: int, arguments: bytes) -> None:
        """Start a kernel on so many blocks; `arguments` as they lie in memory."""
        raise self._undefined("launch(function, blocks, threads, shared, arguments)")

    def synchronize(self) -> None:
        """Wait until all that was asked for is done."""
        raise self._undefined("synchronize()")

    def array(self, shape: Sequence[int], dtype: Any) -> DeviceArray:
        """A new array here, in C order, its elements not set. Raises MemoryError, InvalidArgument or Fail."""
        kind, dims = np.dtype(dtype), bounded(shape, dtype)
        if kind.hasobject:
            raise InvalidArgument(f"device {self.name} holds numbers only", found=str(kind))
        return DeviceArray(Memory(self, max(1, math.prod(dims) * kind.itemsize)), dims, kind)

    def _undefined(self, verb: str) -> TypeError:
        return TypeError(f"{type(self).__name__} does not define {verb}")

    def __repr__(self) -> str:
        return f"{self.name}:{self.index}"


HOST = Device()
"""This process's own memory, in which arrays are numpy's."""


class Memory:
    """Memory of a device, given back with its last reference."""

    __slots__ = ("device", "handle", "__weakref__")

    def __init__(self, device: Device, size: int) -> None:
        self.device, self.handle = device, device.allocate(size)

    def __del__(self) -> None:
        if hasattr(self, "handle"):
            self.device.free(self.handle)


class DeviceArray:
    """A tensor in a device's memory, in C order from its start on. numpy gets a TypeError for it."""

    __slots__ = ("memory", "shape", "dtype")

    def __init__(self, memory: Memory, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.memory, self.shape, self.dtype = memory, shape, dtype

    @property
    def device(self) -> Device:
        return self.memory.device

    @property
    def handle(self) -> Any:
        """What the device calls this memory."""
        return self.memory.handle

    @property
    def type(self) -> TensorType:
        return TensorType(element_of(self.dtype), self.shape)

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    def __device_array__(self) -> DeviceArray:
        """What else has this method, an OrtValue, gives the array it is of a device, or None."""
        return self

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        raise TypeError(f"an array of device {self.device!r} was read as one of the host")

    __array_ufunc__ = __array_function__ = __array__

    def __repr__(self) -> str:
        return f"<{self.dtype}{list(self.shape)} on {self.device!r}>"


def copied(value: Any, target: Device) -> Any:
    """A new array on `target` with the elements of `value`, an array of whatever device; None is None. Raises
    InvalidArgument for anything else, MemoryError, and Fail where it is over the limits."""
    if value is None:
        return None
    if not isinstance(value, DeviceArray | np.ndarray) or value.dtype.hasobject:
        raise InvalidArgument(f"only tensors of numbers can be copied to {target!r}",
                              found=type(value).__name__, cure="claim no node that reads or gives such")
    if target is not HOST:
        made = target.array(value.shape, value.dtype)
        fill(made, value)
        return made
    array = np.empty(bounded(value.shape, value.dtype), value.dtype)
    if isinstance(value, DeviceArray):
        value.device.copy_out(value.handle, array)
    else:
        array[...] = value
    return array


def fill(array: DeviceArray, value: np.ndarray | DeviceArray) -> None:
    """Write the elements of `value`, of the same type and as many, over those of `array`."""
    device = array.device
    if isinstance(value, DeviceArray):
        if device.copy_across(value, array.handle):
            return
        value = copied(value, HOST)
    device.copy_in(np.ascontiguousarray(value), array.handle)
