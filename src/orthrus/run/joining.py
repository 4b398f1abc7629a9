"""Control flow of many runs: what is several parts becomes one, for the sizes that a session is run with.

In: an engine whose program is several parts by its control flow, as sizes may depend on the branch or on the
turns, and the runs it served. Out: a fast way for runs of the shapes that came again and again, once the
whole, lowered for these beside the runs, has given the very bits of one of them. Where a Loop gathers a row a
turn and its number of turns is fed, that number is as good as a shape.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..codegen.runtime import fastcall
from ..ir import Graph, No, TensorType
from ..limits import HARMLESS, Limits, using
from ..locks import awaited, lock
from ..providers import CPUExecutionProvider
from .session_key import foreign

if TYPE_CHECKING:
    from ..lowering.native import Native
    from .engine import Engine
    from .fast_way import Shapes

log = logging.getLogger("orthrus")

CONTROL = frozenset({"If", "Loop", "Scan"})
RUNS = 16
"""Runs of the same shapes and turns, one after another, before their parts are joined."""
JOINED = 4
"""Times that parts are joined at most, each for other shapes or turns."""
_WEIGHTS = 1 << 22
"""Bytes of constants from which on a program stays as it is: each part has its own of them."""


class Joining:
    """Joins the parts of an engine's program. `run`: serves runs like those it was opened for, else None."""

    def __init__(self, graph: Graph, provider: CPUExecutionProvider, names: Sequence[str], limits: Limits
                 ) -> None:
        self._graph, self._provider, self._limits, self._lock = graph, provider, limits, lock()
        self._native: Native | No | None = None
        self._turns, self._names = _turns(graph), list(names)
        self._door: fastcall.Door | None = None
        self._last: tuple[Shapes, list[Any]] | None = None
        self._runs, self._left, self._closed = 0, JOINED, False
        self.run: Callable[[Any, Any], list[Any] | None] | None = None
        if _constants(graph) > _WEIGHTS:
            self._left = 0

    @classmethod
    def of(cls, engine: Engine) -> Joining | None:
        """That of an engine; None where its program is one part, is not by its control flow alone that it is
        several, or has anything but tensors between feeds and results."""
        graph = engine.graph
        control = {node.op_type for node in graph.walk() if node.has_bodies}
        written = {v for v in graph.outputs if v.node is not None}
        plain = bool(control) and control <= CONTROL and len(written) == len(graph.outputs)
        if (not plain or engine.fast is not None or engine.overridable
                or len(engine.inputs) != len(graph.inputs) or not foreign().isdisjoint(engine.kinds)
                or not fastcall.available()
                or not all(isinstance(v.type, TensorType) and v.type.elem is not None
                           for v in (*engine.inputs, *engine.outputs))):
            return None
        provider = next(p for p in engine.providers if isinstance(p, CPUExecutionProvider))
        return cls(graph, provider, [v.name for v in engine.outputs], engine.config.limits)

    def told(self, fed: Sequence[Any], made: Sequence[Any]) -> None:
        """Take note of a run and its results, the ordinary way."""
        if not self._left or not all(type(value) is np.ndarray for value in fed):
            return
        turns = [fed[i] for i in self._turns]
        if any(value.size != 1 for value in turns):
            return
        last = tuple([value.shape for value in fed]), [value.item() for value in turns]
        if last != self._last:
            self._last, self._runs = last, 0
        self._runs += 1
        if self._runs != RUNS or sum(value.nbytes for value in (*fed, *made)) > HARMLESS:
            return
        self._left -= 1
        copies = [value.copy() for value in fed], [value.copy() for value in made]
        thread = awaited(threading.Thread(target=self._join, args=(*last, *copies), name="orthrus-join"))
        try:
            thread.start()
        except RuntimeError as error:
            log.debug("parts are not joined: %s", error)

    def _join(self, shapes: Shapes, turns: Sequence[Any], fed: Sequence[np.ndarray],
              made: Sequence[np.ndarray]) -> None:
        try:
            with using(self._limits), np.errstate(all="ignore"):
                native = self._whole()
                if isinstance(native, No):
                    return
                again = native(*fed)
                program = native.quick(fed) if native.quick is not None else None
        except Exception as error:
            log.debug("parts are not joined for %s: %s: %s", shapes, type(error).__name__, error)
            return
        if program is None:
            return
        same = all(map(_same, again if isinstance(again, tuple) else (again,), made))
        with self._lock:
            if not same or self._closed:
                program.give()
                self._left = 0
                return
            # of its own: who still holds the one before has compared other turns
            before, inputs = self._door, [v.name for v in self._graph.inputs]
            self._door = door = fastcall.Door(inputs, self._names, range(len(self._names)))
            door.open(program)
            self.run = door.run if not turns else functools.partial(
                _fed_again, door.run, [(inputs[i], x) for i, x in zip(self._turns, turns, strict=True)])
            if before is not None:
                before.close()

    def native(self, shapes: Shapes) -> Native | No:
        """What runs all of the graph for whatever is fed, lowered for inputs of these shapes; why nothing
        does. Raises what lowering raises."""
        if self._turns:
            return No("the rows that a Loop gathers are as many as a fed number says")
        native = self._whole()
        if not isinstance(native, No):
            native.plan_for(shapes)
        return native

    def _whole(self) -> Native | No:
        with self._lock:
            if self._native is None:
                self._native = self._entire()
            return self._native

    def _entire(self) -> Native | No:
        machine = self._provider._machine()
        if isinstance(machine, No):
            return machine
        native = self._provider.entire(self._graph, self._provider._device(machine))
        if not isinstance(native, No):
            native.learner.background = False
            native.deciding = self._turns
        return native

    def close(self) -> None:
        """Serve nothing from now on."""
        with self._lock:
            self._closed, self._left, self.run = True, 0, None
            if self._door is not None:
                self._door.close()
            if self._native is not None and not isinstance(self._native, No):
                self._native.close()


def _turns(graph: Graph) -> list[int]:
    """The inputs that say how many turns the Loops that gather make."""
    ends = {v for node in graph.walk() if node.op_type == "Loop" for v in node.inputs[:2]
            if len(node.attrs["body"].outputs) > len(node.inputs) - 1}
    return [i for i, v in enumerate(graph.inputs) if v in ends]


def _fed_again(run: Callable[[Any, Any], list[Any] | None], turns: Sequence[tuple[str, Any]], names: Any,
               feeds: Any) -> list[Any] | None:
    """A run where these numbers are fed as they were; None where others are."""
    if feeds.__class__ is dict:
        for name, x in turns:
            fed = feeds.get(name)
            if type(fed) is not np.ndarray or fed.size != 1 or fed.item() != x:
                return None
    return run(names, feeds)


def _constants(graph: Graph) -> int:
    """Bytes of all constants, those of bodies too."""
    graphs = [graph, *(body for node in graph.walk() for body in node.bodies())]
    return sum(getattr(v.const, "nbytes", 0) for each in graphs for v in each.initializers.values())


def _same(a: np.ndarray, b: Any) -> bool:
    return type(b) is np.ndarray and (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())
