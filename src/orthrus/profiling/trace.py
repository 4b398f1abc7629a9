"""A trace that Perfetto and chrome://tracing open: a session's events in onnxruntime's form.

In: what runs recorded. Out: JSON, one array with an event to a line; times in whole microseconds from the
trace's start, parents after their children and never shorter than they are.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Sequence
from typing import Any

from ..ir import Node, Type, Value
from ..kernels import Part, Work
from ..locks import lock
from ..run.record import Event
from .cost import head_of, size
from .flops import Unknown

MOST_EVENTS = 1_000_000
_SEEN = 100_000
"""Nanoseconds from which on getting ready is worth an event."""


class Trace:
    """Collects events; on any thread."""

    def __init__(self) -> None:
        self.start_ns = time.perf_counter_ns()
        self._events: list[dict[str, Any]] = []
        self._order: dict[Node, int] = {}
        self._closed = False
        self._lock = lock()

    def event(self, name: str, start_ns: int, category: str = "Session", args: dict[str, Any] | None = None,
              end_ns: int | None = None, thread: int | None = None) -> None:
        """Add what began at `start_ns` (of `time.perf_counter_ns`) and ended at `end_ns` or now."""
        end = time.perf_counter_ns() if end_ns is None else end_ns
        first, last = ((t - self.start_ns) // 1000 for t in (start_ns, end))
        entry = {"cat": category, "pid": os.getpid(), "tid": thread or threading.get_native_id(),
                 "dur": last - first, "ts": first, "ph": "X", "name": name, "args": args or {}}
        with self._lock:
            if not self._closed and len(self._events) < MOST_EVENTS:
                self._events.append(entry)

    def run(self, record: Sequence[Event], start_ns: int, end_ns: int, thread: int | None = None) -> None:
        """Add a run: an event for each step, named after its node, and the two that enclose them."""
        for step, start, end, work in record:
            if work is not None:
                self.event(f"{head_of(work).label}_kernel_time", start, "Node",
                           self._described(work, step.part), end, thread)
            elif end - start > _SEEN:
                self.event(f"{step.part}_preparation", start, args={"part": step.part.short}, end_ns=end,
                           thread=thread)
        self.event("SequentialExecutor::Execute", start_ns, end_ns=end_ns, thread=thread)
        self.event("model_run", start_ns, end_ns=end_ns, thread=thread)

    def _described(self, work: Work, part: Part) -> dict[str, Any]:
        node = head_of(work)
        constant = [v for v in work.inputs if v.const is not None]
        args = {
            "op_name": node.op_type, "provider": part.provider, "node_index": str(self._index(node)),
            "input_type_shape": [_shape(t) for t in work.kinds(work.inputs)],
            "output_type_shape": [_shape(t) for t in work.kinds(work.outputs)],
            "parameter_size": str(_bytes(constant, work)),
            "activation_size": str(_bytes([v for v in work.inputs if v.const is None], work)),
            "output_size": str(_bytes(work.outputs, work)), "thread_scheduling_stats": "",
            "kernel": work.kernel}
        if len(work.nodes) > 1:
            args["fused_nodes"] = [each.label for each in work.nodes]
            args["fused_ops"] = [each.op_type for each in work.nodes]
        if part.fused:
            args["part"], args["part_name"] = part.short, part.name
        if work.turns > 1:
            args["step"] = f"{work.turn}/{work.turns}"
        return args

    def _index(self, node: Node) -> int:
        with self._lock:
            return self._order.setdefault(node, len(self._order))

    def text(self) -> str:
        """The trace as JSON."""
        with self._lock:
            lines = ",\n".join(json.dumps(e, separators=(",", " :")) for e in self._events)
        return f"[\n{lines}\n]\n"

    def close(self) -> bool:
        """Take no more events; whether it still took some."""
        with self._lock:
            was, self._closed = self._closed, True
        return not was


def _shape(kind: Type) -> dict[str, Any]:
    elem, shape = getattr(kind, "elem", None), getattr(kind, "shape", None)
    return {getattr(elem, "text", str(kind)): list(shape or ())}


def _bytes(values: Sequence[Value], work: Work) -> int:
    total = 0
    for value in values:
        try:
            total += size(value, work.types)
        except Unknown:
            continue
    return total
