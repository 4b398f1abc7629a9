"""A device whose memory is the host's, where numpy cannot see it, and a provider that computes there.

Arrays are opaque: a copy that is missing is a TypeError, memory that is read after it was given back, or
given back twice, an AssertionError. The device counts what is allocated and copied.
"""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from orthrus.ir import No, Node
from orthrus.kernels import Device, DeviceArray, Kernel, Part, reference
from orthrus.providers import ExecutionProvider


class SimulatedDevice(Device):
    """`counts`: allocated, freed, in, out, across. `live`: bytes by handle."""

    name, kind = "simulated", 3

    def __init__(self, index: int = 0, across: bool = False, most: int = 1 << 30) -> None:
        self.index, self.across, self.most = index, across, most
        self.counts, self.live = Counter[str](), dict[int, bytearray]()
        self._handles, self._lock = itertools.count(1), threading.Lock()

    def _count(self, what: str) -> None:
        with self._lock:
            self.counts[what] += 1

    def allocate(self, size: int) -> int:
        if sum(map(len, list(self.live.values()))) + size > self.most:
            raise MemoryError(f"{size} bytes on {self!r}")
        handle = next(self._handles)
        self.live[handle] = bytearray(b"\xcd") * size
        self._count("allocated")
        return handle

    def free(self, handle: int) -> None:
        assert self.live.pop(handle, None) is not None, "given back twice"
        self._count("freed")

    def copy_in(self, array: np.ndarray, handle: int) -> None:
        assert type(array) is np.ndarray and array.flags.c_contiguous
        self.live[handle][:array.nbytes] = array.tobytes()
        self._count("in")

    def copy_out(self, handle: int, array: np.ndarray) -> None:
        array[...] = self._elements(handle, array.shape, array.dtype)
        self._count("out")

    def copy_across(self, source: DeviceArray, handle: int) -> bool:
        if source.device is not self and not (self.across and isinstance(source.device, SimulatedDevice)):
            return False
        self.live[handle][:source.nbytes] = bytes(source.device.live[source.handle][:source.nbytes])
        self._count("across")
        return True

    def _elements(self, handle: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
        count = int(np.prod(shape, dtype=np.int64))
        return np.frombuffer(bytes(self.live[handle]), dtype, count).reshape(shape)

    def kernel(self, node: Node) -> Callable[..., Any]:
        """The kernel of a node, of a device that does its work later."""
        raise NotImplementedError

    def read(self, array: DeviceArray) -> np.ndarray:
        """What a kernel of this device sees."""
        if not isinstance(array, DeviceArray) or array.device is not self:
            raise TypeError(f"a kernel of {self!r} was given {type(array).__name__}")
        return self._elements(array.handle, array.shape, array.dtype)

    def made(self, array: Any) -> DeviceArray:
        """What a kernel of this device gives."""
        array = np.ascontiguousarray(array)
        out = self.array(array.shape, array.dtype)
        self.live[out.handle][:array.nbytes] = array.tobytes()
        return out

    @property
    def copies(self) -> tuple[int, int, int]:
        """Copies in, out and across."""
        return self.counts["in"], self.counts["out"], self.counts["across"]

    @property
    def empty(self) -> bool:
        """Whether all that was allocated was given back, once."""
        return not self.live and self.counts["allocated"] == self.counts["freed"]


def provider(device: SimulatedDevice, operators: Sequence[str], name: str = "SimulatedExecutionProvider",
             fused: bool = False) -> ExecutionProvider:
    """A provider that takes nodes of `operators`, or those whose names end in `@` and `name`'s first letter,
    and computes them by their definitions, on `device`."""
    def claim(self: ExecutionProvider, node: Node) -> No | None:
        if node.has_bodies or node.op_type not in operators:
            return No("not simulated")
        return None

    def compile_part(self: ExecutionProvider, part: Part) -> list[Kernel]:
        if part.fused:
            return [Kernel(_part(device, part), "simulated part")]
        return [Kernel(_node(device, node), f"simulated {node.op_type}") for node in part.nodes]
    kind = type(name, (ExecutionProvider,), {"name": name, "fuses": fused, "listed": False, "claim": claim,
                                             "compile": compile_part, "device": device})
    made: ExecutionProvider = kind()
    return made


def _node(device: SimulatedDevice, node: Node) -> Callable[..., Any]:
    if device.streams:
        return device.kernel(node)
    compute = reference(node).run

    def run(*given: DeviceArray | None) -> Any:
        if node.op_type in ("Identity", "Reshape"):
            return _same_memory(device, compute, given)
        made = compute(*(None if a is None else device.read(a) for a in given))
        return tuple(map(device.made, made)) if isinstance(made, tuple) else device.made(made)
    return run


def _same_memory(device: SimulatedDevice, compute: Callable[..., Any], given: Sequence[Any]) -> DeviceArray:
    """A view, as kernels of devices give them too."""
    made = compute(*map(device.read, given))
    return DeviceArray(given[0].memory, made.shape, made.dtype)


def _part(device: SimulatedDevice, part: Part) -> Callable[..., Any]:
    def run(*given: DeviceArray) -> Any:
        known: dict[Any, Any] = dict(zip(part.inputs, map(device.read, given), strict=True))
        for node in part.nodes:
            arrays = [None if v is None else known.get(v, v.const) for v in node.inputs]
            made = reference(node).run(*arrays)
            known.update(zip(node.outputs, made if isinstance(made, tuple) else (made,), strict=False))
        results = tuple(device.made(known[v]) for v in part.outputs)
        return results[0] if len(results) == 1 else results
    return run
