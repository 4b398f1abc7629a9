"""A run taken down: when each of its steps began and ended, and what it did.

In: a run that is watched. Out: an `Event` per step, which `profiling` adds up.
"""

from __future__ import annotations

import logging
import time
from typing import Any, NamedTuple

from .. import knobs
from ..ir import Value, type_of
from ..kernels import DeviceArray, Work
from ..plan import Call
from .executor import Context, Watcher

log = logging.getLogger("orthrus")


class Event(NamedTuple):
    """One timed stretch of a run: `step` of the program, or what one of the steps within it did. `work` None:
    getting ready, before the first of those. Times in ns of `time.perf_counter_ns`."""

    step: Call
    start: int
    end: int
    work: Work | None


class Recording(Watcher):
    """Puts an `Event` into `record` for each step, in a fused part for each step within. Those of a body of
    control flow come before the step that runs it, whose time encloses theirs."""

    def __init__(self, record: list[Any]) -> None:
        self.record = record

    def before(self, call: Call, slots: list[Any]) -> Any:
        if call.kernel.stepwise is None:
            return [_described(slots[i]) for i in call.reads], time.perf_counter_ns()

    def inside(self, call: Call, context: Context, seen: Any, *given: Any) -> Any:
        append, new = self.record.append, tuple.__new__

        def note(work: Work | None, start: int, end: int) -> None:
            # as Event(...), in a third of the time, which counts as the run's
            append(new(Event, (call, start, end, work)))
        assert call.kernel.stepwise is not None
        return call.kernel.stepwise(given, note, None, context.check if context.urgent else None)

    def after(self, call: Call, slots: list[Any], seen: Any) -> None:
        if seen is not None:
            end, (given, start) = time.perf_counter_ns(), seen
            made = [_described(slots[i]) for i in call.writes]
            self.record.append(Event(call, start, end, _work(call, given, made)))

    def __exit__(self, *_: Any) -> None:
        if knobs.DEBUG >= 2:
            for call, start, end, work in self.record:
                what, kernel = (call.part, "preparing") if work is None else (work.label, work.kernel)
                log.info("%9.1f us  %s  %s", (end - start) / 1e3, what, kernel)


def _work(step: Call, given: list[Any], made: list[Any]) -> Work:
    """What a step that is timed whole did."""
    part = step.part
    reads = part.inputs if part.fused else step.node.inputs
    writes = part.outputs if part.fused else step.node.outputs
    types: dict[Value, Any] = {v: v.type for node in part.nodes for v in (*node.inputs, *node.outputs)
                               if v is not None}
    types.update((v, k) for v, k in (*zip(reads, given, strict=False), *zip(writes, made, strict=False))
                 if v is not None and k is not None)
    constant = [v for node in part.nodes for v in node.inputs if v is not None and v.const is not None]
    inputs = dict.fromkeys(v for v in (*reads, *constant) if v is not None)
    return Work(step.node, step.kernel.name, tuple(part.nodes), tuple(inputs),
                tuple(v for v in writes if v is not None), types)


def _described(value: Any) -> Any:
    if isinstance(value, DeviceArray):
        return value.type
    try:
        return None if value is None else type_of(value)
    except TypeError:
        return None
