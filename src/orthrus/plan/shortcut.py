"""Steps of generated code among others, entered without Python.

In: the kernel of a step. Out: a function that does what its `run` does, by one call of generated code where
arrays come that are like those of the run before, and results are small.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..codegen.runtime import fastcall
from ..kernels import Kernel
from ..limits import HARMLESS
from ..locks import lock

Kinds = tuple[tuple[int, ...], ...]


class Shortcut:
    """`run` of `kernel`, which makes `results` of `count` arrays."""

    def __init__(self, kernel: Kernel, count: int, results: int) -> None:
        self.kernel, self.single = kernel, results == 1
        names = [f"shortcut {i}" for i in range(max(count, results))]
        self.names = names[:count]
        self._door = fastcall.Door(self.names, names[:results], range(results))
        self.names = self._door.inputs
        self._enter = self._door.run
        self._lock = lock()
        self._served: Kinds | None = None
        self._seen: Kinds | None = None

    @classmethod
    def of(cls, kernel: Kernel, count: int, results: int) -> Callable[..., Any]:
        """That of a kernel; its `run` itself where it has no such code."""
        if kernel.quick is None or not fastcall.available():
            return kernel.run
        return cls(kernel, count, results)

    def __call__(self, *given: Any) -> Any:
        made = self._enter(None, dict(zip(self.names, given, strict=False)))
        if made is not None:
            return made[0] if self.single else tuple(made)
        results = self.kernel.run(*given)
        shapes = tuple([getattr(a, "shape", ()) for a in given])
        if shapes != self._served:
            self._learn(shapes, given)
        return results

    def _learn(self, shapes: Kinds, given: Sequence[Any]) -> None:
        """Serve shapes that come a second time in a row, and the first there are."""
        if self._served is not None and self._seen != shapes:
            self._seen = shapes
            return
        quick = self.kernel.quick
        if quick is None or any(type(a) is not np.ndarray for a in given):
            return
        with self._lock:
            program = quick(given)
            if program is None:
                return
            self._served = shapes
            size = sum(math.prod(shape) * dtype.itemsize for shape, dtype in program.outputs)
            if size <= HARMLESS:
                self._door.open(program)
            else:
                self._door.close()
                program.give()

    def close(self) -> None:
        """Give back what it holds."""
        with self._lock:
            self._door.close()
