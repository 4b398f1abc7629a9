"""A compiled program on a GPU's memory: arguments and results lie there, and its work goes to the stream
that the calling thread works on.

In: a program that was compiled without copies, and its part's device. Out: `OnDevice.run`, which returns
when the work is asked for. The library never looks at how much memory a pointer has behind it: shapes are
compared here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import EPFail
from ...kernels import HOST, Device, DeviceArray, Part, copied
from ...kernels.lanes import lane_of
from ..gpu.device import GpuDevice
from .program import FAILURES, Program

_STREAM = "ihipStream_t"
"""What a stream's pointer points to, as the library is told."""


class OnDevice(Program):
    """As `Program`, on arrays of `device`. `twin`: the same program for the host's memory, which is traced in
    another process."""

    def __init__(self, module: Any, file: Path, part: Part, reads: Sequence[int], settings: Mapping[str, Any],
                 device: Device, twin: Callable[[], Program]) -> None:
        super().__init__(module, file, part, reads, settings)
        self.device, self.twin = device, twin
        self.parameters = self.program.get_parameter_shapes()
        given = {name for _, name, _ in self.inputs}
        self.results = sorted(self.parameters.keys() - given, key=lambda name: (len(name), name))
        if len(self.results) != len(self.outputs):
            raise EPFail("a compiled part has other parameters than inputs and results", node=part,
                         found=", ".join(self.parameters), expected=f"{len(self.outputs)} results")

    def run(self, arrays: Sequence[DeviceArray]) -> list[Any]:  # type: ignore[override]
        """The results, once the stream has come to them. Raises EPFail with the library's words."""
        held = {name: arrays[i] for i, name, _ in self.inputs}
        made = [self.device.array(self.parameters[name].lens() if rank else (), dtype)
                for name, (dtype, rank, _) in zip(self.results, self.outputs, strict=True)]
        held.update(zip(self.results, made, strict=True))
        try:
            with self.lock:
                self.program.run_async({name: self._argument(name, array) for name, array in held.items()},
                                       self.device.stream, _STREAM)
        except FAILURES as error:
            raise EPFail(f"MIGraphX failed while running: {error}", node=self.part) from error
        return made

    def _argument(self, name: str, array: DeviceArray) -> Any:
        shape = self.parameters[name]
        if list(array.shape or (1,)) != list(shape.lens()) or array.nbytes != shape.bytes():
            raise EPFail(f"{name} has another shape than the program was compiled for", node=self.part,
                         found=repr(array), expected=str(shape.lens()))
        return self.module.argument_from_pointer(shape, array.handle)

    def traced(self, arrays: Sequence[Any]) -> tuple[list[Any], list[tuple[str, float]]]:
        """The results, and the times of the library's instructions, which include none of its copies."""
        made, spent = self.twin().traced([copied(a, HOST) for a in arrays])
        return [brought(m, self.device) for m in made], spent


def brought(value: np.ndarray, device: Device) -> Any:
    """A copy on a device of what the host has computed, there when this returns."""
    made = copied(value, device)
    lane_of(device).incoming.synchronize()
    return made


def padded(array: DeviceArray, rows: int) -> DeviceArray:
    """A copy with the last row repeated up to `rows`, made by the stream that reads it."""
    device, count = array.device, array.shape[0]
    assert isinstance(device, GpuDevice)
    wide, size = device.array((rows, *array.shape[1:]), array.dtype), array.nbytes // count
    device.copy_across(array, wide.handle)
    for i in range(count, rows):
        device.driver.copy(device.index, wide.handle + i * size, array.handle + (count - 1) * size, size,
                           device.stream)
    return wide


def with_rows(array: np.ndarray, rows: int) -> np.ndarray:
    """`array` with its last row repeated: numbers like those that the model is meant for."""
    return np.concatenate([array, np.repeat(array[-1:], rows - len(array), 0)])


def first_rows(array: Any, rows: int) -> Any:
    """The first rows of an array, in the same memory."""
    if isinstance(array, DeviceArray):
        return DeviceArray(array.memory, (rows, *array.shape[1:]), array.dtype)
    return array[:rows]
