"""Operators on GPUs whose results' sizes only their elements tell: NonZero and Compress.

In: arrays of a device. Out: arrays of it. Kernels count by blocks; the host waits for the counts, from which
it knows how much memory a result takes and where each block's share of it begins, and asks for the rest.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...codegen.triton import compile as compiling
from ...codegen.triton.kernels.compact import nonzero_counts, nonzero_places, slices
from ...codegen.triton.targets import Target
from ...codegen.triton.write import COUNT, POINTERS, SIZE, Spec
from ...errors import EPFail
from ...ir import No
from ...kernels import HOST, Device, DeviceArray, Gate, OpKernelInfo, copied, fill, reference
from ...ops.define import normalized_axis
from .plan import ALIGN

BLOCK = 1024
"""Elements that a program looks at."""

_FAR = 1 << 31


class Sized:
    """The kernel of a node, for arrays of `device`. Raises EPFail where its kernels do not compile."""

    def __init__(self, info: OpKernelInfo, device: Device, target: Target) -> None:
        self.device, self.target, self.node = device, target, info.node
        self.defined: Callable[..., Any] = reference(info.node).run
        self.gate = Gate([v for v in info.node.inputs if v is not None])
        self.axis = info.attribute("axis") if info.node.op_type == "Compress" else None

    def __call__(self, *given: Any) -> DeviceArray:
        arrays = [self._here(a) for a in self.gate(given)]
        made = self._nonzero(arrays[0]) if self.node.op_type == "NonZero" else self._compressed(*arrays)
        if made is None:
            made = copied(np.asarray(self.defined(*(copied(a, HOST) for a in arrays))), self.device)
        return made

    def _here(self, array: Any) -> DeviceArray:
        """`array` on the device, where kernels read it as they are compiled for."""
        if isinstance(array, np.ndarray):
            array = copied(array, self.device)
        if array.handle % ALIGN == 0:
            return array
        made = self.device.array(array.shape, array.dtype)
        fill(made, array)
        return made

    def _nonzero(self, x: DeviceArray) -> DeviceArray | None:
        return None if not x.size or not x.ndim else self._places(x, x.size, x.shape)

    def _compressed(self, x: DeviceArray, condition: DeviceArray) -> DeviceArray | None:
        """None for what has no elements, and what the definition refuses."""
        shape, axis = x.shape, self.axis
        if condition.ndim != 1 or not x.size or not condition.size:
            return None
        if axis is None:
            shape, axis = (x.size,), 0
        if not -len(shape) <= axis < len(shape):
            return None
        axis = normalized_axis(axis, len(shape))
        places = self._places(condition, min(condition.size, shape[axis]), condition.shape)
        chosen, inner = places.size, math.prod(shape[axis + 1:])
        out = self.device.array((*shape[:axis], chosen, *shape[axis + 1:]), x.dtype)
        if out.size:
            self._ask(slices(dtype=x.dtype.name, block=BLOCK),
                      [x, places, out, out.size, chosen, shape[axis], inner], -(-out.size // BLOCK))
        return out

    def _places(self, x: DeviceArray, count: int, shape: Sequence[int]) -> DeviceArray:
        """Where the first `count` elements of `x`, which is of `shape`, are not zero: (rank, how many)."""
        blocks, dtype = -(-count // BLOCK), x.dtype.name
        counts = self.device.array((blocks,), np.dtype(np.int64))
        self._ask(nonzero_counts(dtype=dtype, block=BLOCK), [x, counts, count], blocks)
        met = np.empty(blocks, np.int64)
        self.device.copy_out(counts.handle, met)
        self.device.synchronize(self.device.stream)
        ends = np.cumsum(met)
        total = int(ends[-1])
        out = self.device.array((len(shape), total), np.dtype(np.int64))
        if total:
            starts = ends - met
            self.device.copy_in(starts, counts.handle)
            self._ask(nonzero_places(dtype=dtype, rank=len(shape), block=BLOCK),
                      [x, counts, out, count, total, *shape], blocks)
            self.device.synchronize(self.device.stream)
        return out

    def ready(self, dtype: str, rank: int) -> None:
        """Compile what small arrays need. Raises EPFail."""
        counted = "bool" if self.node.op_type == "Compress" else dtype
        for spec in (nonzero_counts(dtype=counted, block=BLOCK),
                     nonzero_places(dtype=counted, rank=rank, block=BLOCK)):
            self._code(spec, [1] * len(spec.written(self.target).arguments))
        if self.node.op_type == "Compress":
            self._code(slices(dtype=dtype, block=BLOCK), [1] * 7)

    def _code(self, spec: Spec, args: Sequence[Any]) -> compiling.CodeObject:
        declared = spec.written(self.target).arguments
        hints = tuple(("" if value < _FAR else "q") if kind in (COUNT, SIZE) else "16"
                      for (_, kind), value in zip(declared, args, strict=True))
        return compiling.code(spec, self.target, hints)

    def _ask(self, spec: Spec, given: Sequence[Any], blocks: int) -> None:
        """Ask the device's stream for a kernel."""
        args = [a.handle if isinstance(a, DeviceArray) else a for a in given]
        code = self._code(spec, args)
        function = self.device.function(code.data, code.name, code.shared)
        self.device.launch(function, blocks, code.threads, code.shared, code.packed(args))


def kernel(info: OpKernelInfo, device: Device, target: Target) -> Sized | No:
    """The kernel of a node, where its types are such that kernels know."""
    dtypes = info.input_dtypes
    if any(dtype is None or dtype.name not in POINTERS for dtype in dtypes):
        return No("no generated kernel for its types")
    made = Sized(info, device, target)
    first = info.node.inputs[0]
    rank = len(first.shape or ()) if info.node.op_type == "NonZero" and first is not None else 1
    try:
        made.ready(dtypes[0].name, max(rank, 1))
    except EPFail as error:
        return No(error.text)
    return made
