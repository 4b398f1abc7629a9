"""The fast way of a run: one call of generated code from feeds to results, for a program that is one part.

In: the program, and the arrays of runs that went the ordinary way. Out: `run(names, feeds)`, which gives the
results, or None where the ordinary way has to be gone. Whatever it serves has been computed that way before.
Inputs that the program does not read have to be fed with what they are declared to be. Behind the one part
there may be steps that pick texts of the model by the numbers it gives, such as a classifier's labels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..codegen.runtime import fastcall
from ..ir import TensorType, Value
from ..locks import lock
from ..plan import Call, Program
from .dimensions import shared_names
from .unread import Run, past

Shapes = tuple[tuple[int, ...], ...]
Picked = tuple[int, np.ndarray]
"""Where texts go that numbers pick, and the texts there are."""


class FastWay:
    """Serves runs with arrays such as those of the first run, or of the last two in a row that it did not
    serve. `when_served`: told of a step and the shapes it is to be served for; answers whether to be told of
    the next."""

    def __init__(self, step: Call, program: Program, inputs: Sequence[Value], names: Sequence[str],
                 unread: Sequence[Value], most: int, picked: Mapping[int, Picked]) -> None:
        name_of = {slot: v.name for slot, v in zip(program.inputs, inputs, strict=True)}
        reads, places = [name_of[i] for i in step.reads], [program.outputs.index(
            picked[i][0] if i in picked else i) for i in step.writes]
        self.when_served: Callable[[Call | None, Shapes], bool] | None = None
        self._lock = lock()
        self._door: fastcall.Door | None = fastcall.Door(reads, names, places)
        tables = [(program.outputs.index(slot), texts) for slot, texts in picked.values()]
        run = _picking(self._door.run, tables) if tables else self._door.run
        self.run = past(run, unread, most)
        self._served: Shapes | None = None
        self._seen: Shapes | None = None
        self._told: Shapes | None = None

    @classmethod
    def of(cls, program: Program, inputs: Sequence[Value], names: Sequence[str], most: int) -> FastWay | None:
        """That of a program with these inputs and names of outputs, whose tensors have so many bytes at most;
        None where it has none: it is more than one step that computes, the steps read or write other things
        than these, an input that they do not read shares the name of a dimension, or the kernel has no such
        code."""
        step = program.calls[0] if program.calls else None
        if (step is None or step.kernel.quick is None or len(inputs) != len(program.inputs)
                or len(set(step.reads)) != len(step.reads) or not set(program.inputs).issuperset(step.reads)
                or len(step.writes) != len(names) or (picked := _picked(program)) is None
                or sorted(picked[i][0] if i in picked else i for i in step.writes) != sorted(
                    set(program.outputs))):
            return None
        unread = [v for slot, v in zip(program.inputs, inputs, strict=True) if slot not in step.reads]
        shared = {name for name, _, _ in shared_names(inputs)} if unread else ()
        if any(v.name in shared or not isinstance(v.type, TensorType) for v in unread):
            return None
        return cls(step, program, inputs, names, unread, most, picked) if fastcall.available() else None

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


def _picked(program: Program) -> dict[int, Picked] | None:
    """By slot of the numbers: what the steps behind the first pick by them; None where they do anything else.
    """
    found = dict[int, Picked]()
    constants = program.constants
    for call in program.calls[1:]:
        node = call.node
        if len(call.part.nodes) != 1 or (node.domain, node.op_type) != ("", "Gather") or not call.kernel.own:
            return None
        table, numbers = call.reads
        texts = program.template[table] if table in constants else None
        if (type(texts) is not np.ndarray or texts.dtype != object or texts.ndim != 1 or numbers in found):
            return None
        found[numbers] = call.writes[0], texts
    return found


def _picking(run: Run, tables: Sequence[Picked]) -> Run:
    """`run`, with texts in place of the numbers that pick them, by the place among the results."""
    def picking(names: Any, feeds: Any) -> list[Any] | None:
        made = run(names, feeds)
        if made is not None:
            try:
                for place, texts in tables:
                    made[place] = np.asarray(texts.take(made[place]), object)
            except IndexError:
                return None
        return made
    return picking
