"""Values shown while a run makes them, one by one.

In: names of values, as a session's configuration lists them, and a function. Out: the function called with
each name and array of a run, as soon as the value is whole. The invariant: a value that is asked for is
computed into memory by itself, and is given up as soon as no step reads it any more.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..errors import InvalidArgument
from ..ir import Graph, Value, in_memory
from ..kernels import HOST, DeviceArray, copied
from ..plan import TRASH, Call
from .executor import Context, Watcher

WATCH = "orthrus.watch"
"""The configuration key of a session that lists the names, as JSON."""

See = Callable[[str, Any], None]


def mark(graph: Graph, entries: Mapping[str, str]) -> None:
    """Let the values of `graph` that `entries` name be watched. Raises InvalidArgument for a list that cannot
    be read."""
    if WATCH not in entries:
        return
    try:
        names = frozenset(json.loads(entries[WATCH]))
    except (ValueError, TypeError) as error:
        raise InvalidArgument(f"the names of the values to watch cannot be read: {error}",
                              found=entries[WATCH][:80], expected="a JSON list of names",
                              cure=f"set {WATCH} to json.dumps([...])") from None
    made = (v for node in graph.nodes for v in node.outputs if v is not None)
    for value in (*graph.inputs, *graph.initializers.values(), *made):
        value.watched = value.name in names


class Showing(Watcher):
    """Calls `see(name, array)` for the watched values of one run, each once: a part may show what it is given
    as well as what it makes. `inputs`: what was fed, and constants."""

    def __init__(self, see: See, inputs: Mapping[Value, Any]) -> None:
        self.see, self.inputs, self.shown = see, inputs, set[Value]()

    def __enter__(self) -> None:
        for value, array in self.inputs.items():
            self._show(value, in_memory(array))

    def inside(self, call: Call, context: Context, seen: Any, *given: Any) -> Any:
        assert call.kernel.stepwise is not None
        return call.kernel.stepwise(given, None, self._show, context.check)

    def after(self, call: Call, slots: Sequence[Any], seen: Any) -> None:
        writes = call.part.outputs if call.part.fused else call.node.outputs
        for value, slot in zip(writes, call.writes, strict=False):
            if value is not None and slot > TRASH:
                self._show(value, slots[slot])

    def _show(self, value: Value, array: Any) -> None:
        if value.watched and value not in self.shown:
            self.shown.add(value)
            self.see(value.name, copied(array, HOST) if isinstance(array, DeviceArray) else array)
