"""Steps for GPUs without a session: what rules write is recorded, and executed on the emulator."""

from __future__ import annotations

import collections
import math
from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes  # noqa: F401 - numpy knows its types by name then
import numpy as np
from gpu_kernels import run

from orthrus.codegen.triton.targets import TARGETS
from orthrus.codegen.write.expr import Expr
from orthrus.lowering.tensor import Buffer, Tensor, c_strides


class Steps:
    """Stands in for a lowering to `target`: tensors over arrays, and the steps written over them."""

    tuner = None

    def __init__(self, target: str, **settings: Any) -> None:
        self.target, self.settings = TARGETS[target], settings
        self.steps: list[tuple[Any, list[Any], int]] = []
        self.tables: dict[Any, Tensor] = {}
        self.arrivals: dict[tuple[int, int], Tensor] = {}
        self.opcodes = collections.Counter[str]()

    def over(self, array: np.ndarray) -> Tensor:
        """A tensor that an array, or a view of one without negative strides, is."""
        base = array if array.base is None else array.base
        while isinstance(base.base, np.ndarray):
            base = base.base
        assert isinstance(base, np.ndarray)
        apart = array.__array_interface__["data"][0] - base.__array_interface__["data"][0]
        offset = apart // array.itemsize
        buffer = Buffer("input", base.nbytes, array=base)
        strides = tuple(s // array.itemsize if d > 1 else 0
                        for s, d in zip(array.strides, array.shape, strict=True))
        return Tensor(array.dtype.name, array.shape, strides, buffer, offset)

    def new(self, shape: Sequence[int], dtype: str) -> Tensor:
        array = np.empty(math.prod(shape), np.dtype(dtype))
        array.view(np.uint8)[...] = 0xFF
        return Tensor(dtype, tuple(shape), c_strides(shape), Buffer("arena", array.nbytes, array=array))

    def constant(self, key: Any, make: Callable[[], np.ndarray]) -> Tensor:
        return self.over(np.ascontiguousarray(make()))

    def table(self, make: Callable[..., np.ndarray], *given: Any) -> Tensor:
        if (make, given) not in self.tables:
            self.tables[make, given] = self.constant(None, lambda: make(*given))
        return self.tables[make, given]

    def store(self, out: Tensor, tree: Expr, operands: Sequence[Tensor]) -> None:
        """Fill with a constant, here and now."""
        assert tree.op == "const" and not operands
        out.buffer.array.view(out.dtype)[...] = tree.value

    def step(self, spec: Any, args: Sequence[Any], items: int) -> None:
        self.steps.append((spec, [getattr(a, "tensor", a) for a in args], items))

    def arguments(self, args: Sequence[Any]) -> list[Any]:
        """Arrays for tensors."""
        return [a.buffer.array.reshape(-1)[a.offset:] if isinstance(a, Tensor) else a for a in args]

    def execute(self, seed: int = 1) -> None:
        """Run what was recorded, and count its instructions. Tables and counts are left as they were."""
        for spec, args, items in self.steps:
            self.opcodes += run(spec, self.target.arch, *self.arguments(args), items=items, seed=seed).opcodes
        for (make, given), table in self.tables.items():
            np.testing.assert_array_equal(table.buffer.array, make(*given))
        assert not any(counts.buffer.array.any() for counts in self.arrivals.values())

    def ran(self, prefix: str) -> int:
        """How many instructions of such a name were executed."""
        return sum(n for name, n in self.opcodes.items() if name.lower().startswith(prefix))
