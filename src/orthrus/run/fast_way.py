"""The fast way of a run: one call of generated code from feeds to results, for a program that is one part.

In: the program, and the arrays of runs that went the ordinary way. Out: `run(names, feeds)`, which gives the
results, or None where the ordinary way has to be gone. Whatever it serves has been computed that way before.
Inputs that the program does not read have to be fed with what they are declared to be.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ..codegen.runtime import fastcall
from ..ir import TensorType, Value
from ..locks import lock
from ..plan import Call, Program
from .dimensions import shared_names
from .unread import past

Shapes = tuple[tuple[int, ...], ...]


class FastWay:
    """Serves runs with arrays such as those of the first run, or of the last two in a row that it did not
    serve. `when_served`: told of a step and the shapes it is to be served for; answers whether to be told of
    the next."""

    def __init__(self, step: Call, program: Program, inputs: Sequence[Value], names: Sequence[str],
                 unread: Sequence[Value], most: int) -> None:
        name_of = {slot: v.name for slot, v in zip(program.inputs, inputs, strict=True)}
        reads, places = [name_of[i] for i in step.reads], [program.outputs.index(i) for i in step.writes]
        self.when_served: Callable[[Call | None, Shapes], bool] | None = None
        self._lock = lock()
        self._door: fastcall.Door | None = fastcall.Door(reads, names, places)
        self.run = past(self._door.run, unread, most)
        self._served: Shapes | None = None
        self._seen: Shapes | None = None
        self._told: Shapes | None = None

    @classmethod
    def of(cls, program: Program, inputs: Sequence[Value], names: Sequence[str], most: int) -> FastWay | None:
        """That of a program with these inputs and names of outputs, whose tensors have so many bytes at most;
        None where it has none: it is more than one step, the step reads or writes other things than these, an
        input that it does not read shares the name of a dimension, or its kernel has no such code."""
        step = program.calls[0] if len(program.steps) == 1 else None
        if (step is None or step.kernel.quick is None or len(inputs) != len(program.inputs)
                or len(set(step.reads)) != len(step.reads) or not set(program.inputs).issuperset(step.reads)
                or sorted(step.writes) != sorted(set(program.outputs)) or len(step.writes) != len(names)):
            return None
        unread = [v for slot, v in zip(program.inputs, inputs, strict=True) if slot not in step.reads]
        shared = {name for name, _, _ in shared_names(inputs)} if unread else ()
        if any(v.name in shared or not isinstance(v.type, TensorType) for v in unread):
            return None
        return cls(step, program, inputs, names, unread, most) if fastcall.available() else None

    def learn(self, step: Call, arrays: Sequence[np.ndarray]) -> None:
        """Take note of what the program's step was just run with, the ordinary way."""
        shapes = tuple([a.shape for a in arrays])
        if shapes == self._served:
            return
        if self.when_served is not None and shapes != self._told:
            again, self._told = self.when_served(step, shapes), shapes
            if not again:
                self.when_served = None
        if self._served is not None and self._seen != shapes:
            self._seen = shapes
            return
        quick = step.kernel.quick
        with self._lock:
            if quick is not None and self._door is not None and (program := quick(arrays)) is not None:
                self._door.open(program)
                self._served = shapes

    def close(self) -> None:
        """Serve nothing from now on."""
        with self._lock:
            if self._door is not None:
                self._door.close()
            self._door = None
