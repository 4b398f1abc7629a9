"""Operators on GPUs whose results' sizes only their elements tell: NonZero, Compress, NonMaxSuppression.

In: arrays of a device. Out: arrays of it. Kernels count; the host waits for the counts, from which it knows
how much memory a result takes and where each share of it begins, and asks for the rest.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...codegen.triton import compile as compiling
from ...codegen.triton.kernels.compact import nonzero_counts, nonzero_places, slices
from ...codegen.triton.kernels.suppression import best_boxes, kept_rows
from ...codegen.triton.targets import Target
from ...codegen.triton.write import COUNT, POINTERS, SIZE, Spec
from ...errors import EPFail
from ...ir import No
from ...kernels import HOST, Device, DeviceArray, Gate, OpKernelInfo, copied, fill, reference
from ...ops.define import normalized_axis
from .plan import ALIGN

BLOCK = 1024
"""Elements that a program looks at at a time."""

_FAR = 1 << 31
_INT64 = np.dtype(np.int64)


class Sized:
    """The kernel of a node, for arrays of `device`; `data`: how many of its inputs are to lie there."""

    data = 1

    def __init__(self, info: OpKernelInfo, device: Device, target: Target) -> None:
        self.info, self.device, self.target = info, device, target
        self.defined: Callable[..., Any] = reference(info.node).run
        self.gate = Gate([v for v in info.node.inputs[:self.data] if v is not None])

    def __call__(self, *given: Any) -> DeviceArray:
        arrays = [self._here(a) for a in self.gate(given[:self.data])]
        made = self.made(*arrays, *given[self.data:])
        if made is None:
            held = (a if a is None else copied(a, HOST) for a in (*arrays, *given[self.data:]))
            made = copied(np.asarray(self.defined(*held)), self.device)
        return made

    @abstractmethod
    def made(self, *given: Any) -> DeviceArray | None:
        """The result; None where the definition is to give it, or to say what is wrong."""

    @abstractmethod
    def specs(self) -> list[Spec]:
        """The kernels that it takes."""

    def _here(self, array: Any) -> DeviceArray:
        """`array` on the device, where kernels read it as they are compiled for."""
        if isinstance(array, np.ndarray):
            array = copied(array, self.device)
        if array.handle % ALIGN == 0:
            return array
        made = self.device.array(array.shape, array.dtype)
        fill(made, array)
        return made

    def places(self, x: DeviceArray, count: int, shape: Sequence[int]) -> DeviceArray:
        """Where the first `count` elements of `x`, which is of `shape`, are not zero: (rank, how many)."""
        blocks, dtype = -(-count // BLOCK), x.dtype.name
        counts = self.device.array((blocks,), _INT64)
        self.ask(nonzero_counts(dtype=dtype, block=BLOCK), [x, counts, count], blocks)
        met = self.read(counts)
        total = int(met.sum())
        out = self.device.array((len(shape), total), _INT64)
        if total:
            starts = self.starts(met)
            self.ask(nonzero_places(dtype=dtype, rank=len(shape), block=BLOCK),
                     [x, starts, out, count, total, *shape], blocks)
        return out

    def read(self, counts: DeviceArray) -> np.ndarray:
        """What kernels have counted; waits for them."""
        met = np.empty(counts.shape, counts.dtype)
        self.device.copy_out(counts.handle, met)
        self.device.synchronize(self.device.stream)
        return met

    def starts(self, met: np.ndarray) -> DeviceArray:
        """How many come before each share, on the device."""
        before, made = np.cumsum(met) - met, self.device.array(met.shape, _INT64)
        self.device.copy_in(before, made.handle)
        self.device.synchronize(self.device.stream)
        return made

    def ready(self) -> None:
        """Compile what small arrays need. Raises EPFail."""
        for spec in self.specs():
            self._code(spec, [1] * len(spec.written(self.target).arguments))

    def _code(self, spec: Spec, args: Sequence[Any]) -> compiling.CodeObject:
        declared = spec.written(self.target).arguments
        hints = tuple("16" if kind in _POINTERS else "q" if kind in (COUNT, SIZE) and value >= _FAR else ""
                      for (_, kind), value in zip(declared, args, strict=True))
        return compiling.code(spec, self.target, hints)

    def ask(self, spec: Spec, given: Sequence[Any], blocks: int) -> None:
        """Ask the device's stream for a kernel."""
        args = [a.handle if isinstance(a, DeviceArray) else a for a in given]
        code = self._code(spec, args)
        function = self.device.function(code.data, code.name, code.shared)
        self.device.launch(function, blocks, code.threads, code.shared, code.packed(args))


_POINTERS = frozenset(POINTERS.values())


class NonZero(Sized):
    """Where elements are not zero."""

    def made(self, *given: Any) -> DeviceArray | None:
        (x,) = given
        return self.places(x, x.size, x.shape) if x.size and x.ndim else None

    def specs(self) -> list[Spec]:
        (value,), (dtype,) = self.info.node.inputs, self.info.input_dtypes
        rank = len(value.shape or ()) if value is not None else 0
        return [nonzero_counts(dtype=dtype.name, block=BLOCK),
                nonzero_places(dtype=dtype.name, rank=max(rank, 1), block=BLOCK)]


class Compress(Sized):
    """Slices that a vector of truth chooses."""

    data = 2

    def made(self, *given: Any) -> DeviceArray | None:
        x, condition = given
        shape, axis = x.shape, self.info.attribute("axis")
        if condition.ndim != 1 or not x.size or not condition.size:
            return None
        if axis is None:
            shape, axis = (x.size,), 0
        if not -len(shape) <= axis < len(shape):
            return None
        axis = normalized_axis(axis, len(shape))
        places = self.places(condition, min(condition.size, shape[axis]), condition.shape)
        chosen, inner = places.size, math.prod(shape[axis + 1:])
        out = self.device.array((*shape[:axis], chosen, *shape[axis + 1:]), x.dtype)
        if out.size:
            self.ask(slices(dtype=x.dtype.name, block=BLOCK),
                     [x, places, out, out.size, chosen, shape[axis], inner], -(-out.size // BLOCK))
        return out

    def specs(self) -> list[Spec]:
        dtype = self.info.input_dtypes[0].name
        return [nonzero_counts(dtype="bool", block=BLOCK), nonzero_places(dtype="bool", rank=1, block=BLOCK),
                slices(dtype=dtype, block=BLOCK)]


class NonMaxSuppression(Sized):
    """Of each image and class, the best boxes that overlap no better one."""

    data = 2

    def made(self, *given: Any) -> DeviceArray | None:
        boxes, scores, *rest = given
        most, limit, least = (self._number(i, v) for i, v in enumerate((*rest, None, None, None)[:3], 2))
        fits = boxes.ndim == scores.ndim == 3 and boxes.shape[2] == 4 and (
            scores.shape[::2] == boxes.shape[:2]) and self.info.attribute("center_point_box") in (0, 1)
        if not fits or not scores.size or most is None or most <= 0 or not 0 <= (limit or 0) <= 1:
            return None
        (images, classes, count), array = scores.shape, self.device.array
        lists, most = images * classes, min(most, count)
        keys, kept, counts = (array(shape, _INT64) for shape in ((lists, count), (lists, most), (lists,)))
        self.ask(self._spec(least is not None),
                 [boxes, scores, keys, kept, counts, count, classes, most, limit or 0.0,
                  *([] if least is None else [least])], lists)
        met = self.read(counts)
        out = array((int(met.sum()), 3), _INT64)
        if out.size:
            pieces = -(-most // BLOCK)
            self.ask(kept_rows(block=BLOCK), [kept, counts, self.starts(met), out, pieces, classes, most],
                     lists * pieces)
        return out

    def _number(self, place: int, given: Any) -> Any:
        """What one of its inputs of one element says; None without it."""
        known = self.info.constant_input(place)
        if known is None and given is not None:
            known = np.asarray(copied(given, HOST))
        return None if known is None or known.size != 1 else known.item()

    def _spec(self, least: bool) -> Spec:
        return best_boxes(centered=bool(self.info.attribute("center_point_box")), least=least)

    def specs(self) -> list[Spec]:
        return [self._spec(len(self.info.node.inputs) > 4), kept_rows(block=BLOCK)]


_KERNELS: dict[str, type[Sized]] = {
    "NonZero": NonZero, "Compress": Compress, "NonMaxSuppression": NonMaxSuppression}


def kernel(info: OpKernelInfo, device: Device, target: Target) -> Sized | No:
    """The kernel of a node, where its types are such that kernels know."""
    kind = _KERNELS[info.node.op_type]
    if any(dtype is None or dtype.name not in POINTERS for dtype in info.input_dtypes[:kind.data]):
        return No("no generated kernel for its types")
    made = kind(info, device, target)
    try:
        made.ready()
    except EPFail as error:
        return No(error.text)
    return made
