"""Running one kernel for GPUs by itself, as AMD machine code on the emulator."""

from __future__ import annotations

from typing import Any

import numpy as np

from gfx import machine
from orthrus.codegen.triton import compile as compiling
from orthrus.codegen.triton.targets import TARGETS
from orthrus.codegen.triton.write import COUNT, NUMBER, SIZE, Spec

AMD = ("gfx1100", "gfx942")
"""The targets that kernels are executed for in tests."""


def hints(spec: Spec, target: str, args: tuple[Any, ...]) -> tuple[str, ...]:
    """What a plan finds out of arguments: which are multiples of 16, which take more than 32 bits."""
    found = []
    for (_, kind), value in zip(spec.written(TARGETS[target]).arguments, args, strict=True):
        if kind in (SIZE, COUNT):
            found.append(("q" if not -2 ** 31 <= value < 2 ** 31 else "")
                         + ("16" if value % 16 == 0 and kind == SIZE else ""))
        else:
            found.append("" if kind == NUMBER else "16")
    return tuple(found)


def run(spec: Spec, target: str, *args: Any, items: int, seed: int | None = 1) -> machine.Report:
    """Execute a kernel on arrays, which it reads and writes in place, ints and floats. Arrays end where
    nothing may be read. Raises machine.MachineError."""
    code = compiling.code(spec, TARGETS[target], hints(spec, target, args))
    given = [x.view(np.uint8) if isinstance(x, np.ndarray) and x.dtype == bool else x for x in args]
    return machine.run(machine.CodeObject(code.data), code.name, (items, 1, 1), given, threads=code.threads,
                       shared=code.shared, seed=seed)


def ptx(spec: Spec, target: str, *args: Any) -> str:
    """What NVIDIA's assembler is given of a kernel for such arguments."""
    return compiling.text_of(spec, TARGETS[target], hints(spec, target, args), "ptx")
