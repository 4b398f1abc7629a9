"""A session's profile: events in, a JSON file in onnxruntime's form out.

The file is written by `end`, which a session that is dropped calls too. Times are microseconds from the
profile's start.
"""

from __future__ import annotations

import json
import math
import os
import threading
import time
from typing import Any

_MOST_EVENTS = 1_000_000


def _described(kind: Any) -> dict[str, Any]:
    elem, shape = getattr(kind, "elem", None), getattr(kind, "shape", None)
    return {getattr(elem, "text", str(kind)): list(shape or ())}


def _bytes(kinds: list[Any]) -> int:
    """Bytes of the tensors among `kinds`."""
    dense = [k for k in kinds if hasattr(getattr(k, "elem", None), "numpy") and k.shape is not None]
    return sum(math.prod(k.shape) * k.elem.numpy.itemsize for k in dense)


class Profile:
    """Collects events until it is ended, once."""

    def __init__(self, prefix: str) -> None:
        now = time.time()
        stamp = time.strftime("%Y-%m-%d_%H-%M-%S", time.localtime(now))
        self.path = f"{prefix}_{stamp}_{int(now * 1000) % 1000:03d}.json"
        self.start_ns = time.perf_counter_ns()
        self._events: list[dict[str, Any]] = []
        self._lock = threading.Lock()
        self._ended = False

    def event(self, name: str, start_ns: int, category: str = "Session", args: dict[str, Any] | None = None,
              end_ns: int | None = None) -> None:
        """Add what began at `start_ns` (of `time.perf_counter_ns`) and ended at `end_ns` or now."""
        end = time.perf_counter_ns() if end_ns is None else end_ns
        entry = {"cat": category, "pid": os.getpid(), "tid": threading.get_native_id(),
                 "dur": (end - start_ns) // 1000, "ts": (start_ns - self.start_ns) // 1000, "ph": "X",
                 "name": name, "args": args or {}}
        with self._lock:
            if not self._ended and len(self._events) < _MOST_EVENTS:
                self._events.append(entry)

    def steps(self, record: list[Any]) -> None:
        """Add a Node event for each step of a run, with onnxruntime's fields."""
        for index, (step, start, end, given, made) in enumerate(record):
            node = step.node
            constant = sum(v.const.nbytes for n in step.part.nodes for v in n.inputs
                           if v is not None and hasattr(v.const, "nbytes"))
            name = step.part.name or node.name or f"{node.op_type}_{index}"
            self.event(f"{name}_kernel_time", start, "Node", {
                "op_name": node.op_type, "provider": step.part.provider, "node_index": str(index),
                "input_type_shape": [_described(t) for t in given if t is not None],
                "output_type_shape": [_described(t) for t in made if t is not None],
                "parameter_size": str(constant), "activation_size": str(max(_bytes(given) - constant, 0)),
                "output_size": str(_bytes(made)), "thread_scheduling_stats": ""}, end)

    def end(self) -> str:
        """Write the file and answer its name; "" where it was written before. A file that cannot be written
        raises nothing, as in onnxruntime, and is reported in the log."""
        with self._lock:
            if self._ended:
                return ""
            self._ended = True
        lines = ",\n".join(json.dumps(e, separators=(",", " :")) for e in self._events)
        try:
            with open(self.path, "w", encoding="utf-8") as file:
                file.write(f"[\n{lines}\n]\n")
        except OSError as error:
            import logging

            logging.getLogger("orthrus").warning("the profile cannot be written: %s", error)
        return self.path
