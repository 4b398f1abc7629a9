"""What was compiled and what was not, and why.

In: what `from_torch` and the backend note. Out: records that print themselves. A reason, once noted, is kept
until `reset`.
"""

from __future__ import annotations

import logging
import re
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import field
from itertools import count
from typing import TYPE_CHECKING, Any

from ..errors import Fail
from ..records import dataclass

if TYPE_CHECKING:
    from ..api.session import InferenceSession

log = logging.getLogger("orthrus")
_OPERATOR = re.compile(r"\b(?:aten|prims|torchvision|quantized|_c10d\w*|\w+_ops?)[.:]+\w+(?:\.\w+)?")
_LONGEST = 300
_KEPT = 1024


@dataclass(frozen=True)
class Fallback:
    """Something that could not be done, and the reason; `operator`: torch's, where one is to blame."""

    what: str
    why: str
    operator: str | None = None

    def __str__(self) -> str:
        return f"{self.what}: {self.operator + ': ' if self.operator else ''}{self.why}"

    @classmethod
    def of(cls, what: str, error: BaseException) -> Fallback:
        """That an exception ended `what`: the first line of the exception at the root of it."""
        while error.__cause__ is not None:
            error = error.__cause__
        text = getattr(error, "text", None) or str(error) or type(error).__name__
        found = re.search(r"op='([\w:.]+)'", text) or _OPERATOR.search(text)
        lines = [line.strip() for line in text.splitlines() if line.strip()] or [text]
        return cls(what, f"{type(error).__name__}: {lines[0][:_LONGEST]}",
                   found[found.lastindex or 0] if found else None)


@dataclass
class CompiledGraph:
    """One graph that torch's compiler handed over. `nodes`: its calls. `fallback`: why it runs as torch runs
    it, None where it runs here. `sessions`: those that run it now, one per set of parameters, from the first
    call on."""

    name: str
    nodes: int
    fallback: Fallback | None = None
    sessions: Sequence[InferenceSession] = field(default=(), repr=False)

    def explain(self) -> Any:
        """The explanation of the newest session. Raises Fail where there is none."""
        if not self.sessions:
            raise Fail(f"{self.name} has no session", found=self.fallback or "no call yet",
                       expected="a graph that runs on Orthrus and was called")
        return self.sessions[-1].explain()

    def fall_back(self, fallback: Fallback) -> None:
        """Note that this graph runs in eager mode from now on."""
        self.fallback, self.sessions = fallback, ()
        log.warning("torch.compile: %s runs in eager mode: %s", self.name, fallback)

    def __str__(self) -> str:
        runs = f"in eager mode: {self.fallback}" if self.fallback else "on Orthrus"
        return f"{self.name} ({self.nodes} calls) runs {runs}"


@dataclass(frozen=True)
class Report:
    """The graphs of this process, in the order in which they came."""

    graphs: tuple[CompiledGraph, ...]

    @property
    def fallbacks(self) -> list[Fallback]:
        """Why graphs run in eager mode."""
        return [graph.fallback for graph in self.graphs if graph.fallback is not None]

    def __iter__(self) -> Iterator[CompiledGraph]:
        return iter(self.graphs)

    def __len__(self) -> int:
        return len(self.graphs)

    def __str__(self) -> str:
        return "\n".join(map(str, self.graphs)) or "torch.compile handed over no graph"


_graphs: deque[CompiledGraph] = deque(maxlen=_KEPT)
_numbers = count()


def note(nodes: int) -> CompiledGraph:
    """A record for a graph that has just come."""
    _graphs.append(CompiledGraph(f"graph {next(_numbers)}", nodes))
    return _graphs[-1]


def report() -> Report:
    """The graphs that `torch.compile(backend="orthrus")` was handed in this process since `reset`, the last
    1024 of them, and why they run in eager mode where they do."""
    return Report(tuple(_graphs))


def reset() -> None:
    """Forget the graphs noted so far; they run on."""
    _graphs.clear()
