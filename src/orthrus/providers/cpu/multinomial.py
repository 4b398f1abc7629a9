"""Multinomial on the CPU provider: numpy draws, generated code finds the classes.

In: an array of the node's input. Out: its result. A run takes an entry out of those that lie ready, and puts
it back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ... import seeds
from ...codegen.kernels import draws
from ...codegen.machines.machine import Machine
from ...codegen.runtime.threads import pool
from ...codegen.write import notes
from ...ir import ElementType, No
from ...kernels import OpKernelInfo, readable
from ...limits import HARMLESS, bounded, reserve
from .called import called

_SMALL = 1 << 18
"""Comparisons up to which one thread makes them."""
_MANY = 1 << 12
"""Classes from which on the definition's search is faster than comparing a draw with each."""
_READY = 8
"""Kinds of calls that are kept ready."""

_Ready = tuple[Callable[..., None], np.ndarray]


class Draws:
    """The kernel of a node; what it is not for is computed by the definition, with the same generator."""

    def __init__(self, info: OpKernelInfo, target: Machine) -> None:
        node = info.node
        assert node.op is not None
        self.target, self.threads = target, info.provider.threads
        self.rng = seeds.generator(node.attrs.get("seed"), node.index)
        self.otherwise = node.op.bind(node.attrs, 1, self.rng, info.input_dtypes)
        self.samples = int(info.attribute("sample_size"))
        self.result = ElementType(info.attribute("dtype")).numpy
        self.ready: dict[Any, _Ready | None] = {}

    @classmethod
    def of(cls, info: OpKernelInfo, target: Machine) -> Draws | No:
        """That of a node; No for a type that the definition refuses."""
        if info.attribute("dtype") not in (ElementType.INT32, ElementType.INT64):
            return No("no such result")
        return cls(info, target)

    def __call__(self, x: np.ndarray) -> Any:
        if x.ndim != 2 or not x.size or self.samples < 1 or x.shape[1] >= _MANY or (
                x.dtype not in (np.float32, np.float64, np.float16)):
            return self.otherwise(x)
        shape = (len(x), self.samples)
        if 16 * len(x) * self.samples > HARMLESS:
            bounded(shape, np.dtype(np.float64))
            reserve(16 * len(x) * self.samples)
        key = x.shape, x.dtype
        ready = self.ready.pop(key, None)
        run, note = ready or self._made(x)
        (x,) = readable((x,))
        out = np.empty(shape, self.result)
        run(x, self.rng.random(shape), out)
        if self.target.checked:
            notes.refuse(note, "drawn", None)
        if len(self.ready) >= _READY:
            self.ready.clear()
        self.ready[key] = run, note
        return out

    def _made(self, x: np.ndarray) -> _Ready:
        rows, classes = x.shape
        work = rows * classes * self.samples
        used = 1 if work < _SMALL else min(self.threads or pool().capacity, pool().capacity)
        return called(
            self.target, draws.drawn_classes(dtype=x.dtype.name, result=self.result.name),
            (0, 0, 0, classes, self.samples),
            {0: x.nbytes, 1: 8 * rows * self.samples, 2: self.result.itemsize * rows * self.samples}, rows,
            draws.scratch(self.target, classes), used, hold=work < 1 << 12)
