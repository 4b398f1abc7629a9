"""What stands for time in tests, as clocks tell more of the machine: how many functions are called."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass
class Count:
    """How many functions were called, Python's and C's."""

    calls: int = 0


@dataclass
class Lines:
    """How many lines of Python were gone through."""

    count: int = 0


@contextmanager
def lines_in(part: str) -> Iterator[Lines]:
    """Count the lines of files with `part` in their paths that a `with` block goes through on this thread."""
    lines, before = Lines(), sys.gettrace()

    def trace(frame: Any, event: str, _argument: Any) -> Any:
        lines.count += event == "line"
        return trace if part in frame.f_code.co_filename else None

    sys.settrace(trace)
    try:
        yield lines
    finally:
        sys.settrace(before)


@contextmanager
def counted() -> Iterator[Count]:
    """Count the calls of a `with` block on this thread."""
    count = Count()

    def note(_frame: Any, event: str, _argument: Any) -> None:
        count.calls += event in ("call", "c_call")

    sys.setprofile(note)
    try:
        yield count
    finally:
        sys.setprofile(None)
