"""Requests in the form of a profile: a trace that Perfetto and chrome://tracing open.

In: the times of batches and of their requests. Out: a file, written when the server ends or is asked. Off,
it costs a look at a flag.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..profiling import Trace
from .refusals import invalid

if TYPE_CHECKING:
    from .repository import Version


class Tracing:
    """`path`: where the trace goes; without one nothing is traced, whatever a client asks for. `rate`: of so
    many batches one is traced. `count`: how many more are, -1 for all."""

    def __init__(self, path: Path | None = None) -> None:
        self.path, self.rate, self.left = path, 1, -1
        self.on = path is not None
        self._trace = Trace() if path is not None else None
        self._seen = 0

    def batch(self, version: Version, arrived: Sequence[float], rows: int, started: float, ended: float,
              thread: int) -> None:
        """A batch ran, with requests that came in at these times, all of `time.perf_counter`."""
        self._seen += 1
        if self._trace is None or self._seen % self.rate or not self.left:
            return
        self.left -= self.left > 0
        named = {"model": version.name, "version": str(version.version)}
        for i, moment in enumerate(arrived):
            self._trace.event("request_queued", int(moment * 1e9), "Request", {**named, "request": str(i)},
                              int(started * 1e9), thread)
        self._trace.event("batch_run", int(started * 1e9), "Request",
                          {**named, "rows": str(rows), "requests": str(len(arrived))}, int(ended * 1e9),
                          thread)

    def write(self) -> None:
        """Write what was traced until now. Raises OSError."""
        if self._trace is not None and self.path is not None:
            self.path.write_text(self._trace.text(), encoding="utf-8")

    def settings(self) -> dict[str, list[str]]:
        """As the protocol's trace extension has them."""
        return {"trace_level": ["TIMESTAMPS" if self.on else "OFF"], "trace_rate": [str(self.rate)],
                "trace_count": [str(self.left)], "log_frequency": ["0"],
                "trace_file": [self.path.name if self.path is not None else ""], "trace_mode": ["triton"]}

    def change(self, given: dict[str, Any]) -> None:
        """Change settings by name; None or an empty list puts one back. Raises Refusal."""
        level, rate, left = self.on, self.rate, self.left
        for name, value in given.items():
            values = [value] if isinstance(value, str | int) else list(value or ())
            if name == "trace_level":
                if not set(values) <= {"OFF", "TIMESTAMPS"}:
                    raise invalid(f"trace_level {values!r:.100}: expected OFF or TIMESTAMPS")
                level = values != ["OFF"] if values else self.path is not None
                if level and self.path is None:
                    raise invalid("nothing can be traced: the server was started without --trace FILE")
            elif name == "trace_rate":
                rate = _whole(name, values, 1, 1)
            elif name == "trace_count":
                left = _whole(name, values, -1, -1)
            elif name not in self.settings() or values and values != self.settings()[name]:
                raise invalid(f"trace setting {name!r:.100} can't be changed by a request; trace_level, "
                              f"trace_rate and trace_count can")
        self.on, self.rate, self.left = level, rate, left


def _whole(name: str, values: list[Any], least: int, default: int) -> int:
    if not values:
        return default
    try:
        number = int(values[0])
    except (TypeError, ValueError):
        number = least - 1
    if number < least or number >> 62 > 0:
        raise invalid(f"{name} {values!r:.100}: expected a whole number from {least} on")
    return number
