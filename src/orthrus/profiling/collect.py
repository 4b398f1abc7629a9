"""What runs recorded, added up by node.

In: the events of each run of a session that a profile is open for. Out: a `NodeProfile` for each node, fused
nodes under the one that computes most; with what lies between the nodes they add up to the mean run.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import asdict, field
from pathlib import Path
from typing import Any

from ..ir import Node, shape_text
from ..kernels import Work, short_name
from ..locks import lock
from ..records import dataclass
from ..run.record import Event
from .cost import Cost, cost_of_work, head_of
from .peak import Peak, peak_of
from .trace import Trace

_KEPT_EVENTS = 100_000
"""Events of which the trace is kept."""


@dataclass(frozen=True)
class NodeProfile:
    """One node, or nodes that a kernel computes together, under the one that does most: `fused` names them
    all in their order, `fused_ops` their operators. A node in a body of control flow counts at every turn.

    `kernel`: what computed it, `part`: the fused part it is in, or "". `start`: seconds from the start of the
    first run it was in; `seconds`: per run, the mean, without what bodies within it took; `calls`: in all
    runs together. `flop`, `bytes`: per run, see `cost`. `share`: of the machine's peak, by the rate that
    binds; None where nothing is counted. `bound`: "compute", "memory", or "" where nothing is counted.
    `inputs`, `outputs`: types as text. `depth`: bodies of control flow around it.
    """

    node: str
    op_type: str
    provider: str
    kernel: str
    part: str
    start: float
    seconds: float
    calls: int
    flop: int
    bytes: int
    share: float | None
    bound: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    fused: tuple[str, ...] = ()
    fused_ops: tuple[str, ...] = ()
    depth: int = 0

    @property
    def short_part(self) -> str:
        """`cpu 3` for the part, "" where there is none."""
        return short_name(self.provider, self.part)


@dataclass(eq=False)
class _Sums:
    """What is added up for a node."""

    work: Work
    head: Node
    provider: str
    part: str
    start: int
    depth: int
    nanoseconds: int = 0
    calls: int = 0
    flop: int = 0
    bytes: int = 0
    kernels: dict[str, None] = field(default_factory=dict)


@dataclass(eq=False)
class _Kept:
    """What is known of a `Work`: its cost, and the node it is shown under."""

    cost: Cost
    head: Node


class Profile:
    """The runs of a session while `session.profile()` is open. It may be read at any time; runs that end
    meanwhile are not in what was read.

    `title`: the model's name; `threads`: those of a run, 0 for all cores. `runs`: how many there were.
    `seconds`: the mean run, step by step, without `preparing_seconds`, which lowering, compiling and noting
    the steps took in all of them; `fastest_seconds`: the fastest. `native_seconds`: the mean of the same runs
    not taken apart, None where that was not measured. `between_seconds`: of `seconds`, those in no node.
    """

    def __init__(self, threads: int = 0, title: str = "") -> None:
        self.threads, self.title = threads, title
        self.runs = 0
        self.native_seconds: float | None = None
        self._run_ns = self._ready_ns = self._node_ns = self._least_ns = 0
        self._sums: dict[Node, _Sums] = {}
        self._works: dict[Hashable, _Kept] = {}
        self._traced = 0
        self._trace = Trace()
        self._lock = lock()

    def add(self, record: Sequence[Event], start: int, end: int) -> None:
        """Take in a run that lasted from `start` to `end`, in ns of `time.perf_counter_ns`."""
        own, depths = _nested(record)
        with self._lock:
            self.runs += 1
            ready = sum(e.end - e.start for e in record if e.work is None)
            self._ready_ns += ready
            spent = end - start - ready
            self._run_ns += spent
            self._least_ns = min(self._least_ns, spent) if self.runs > 1 else spent
            for event, nanoseconds, depth in zip(record, own, depths, strict=True):
                if event.work is not None:
                    self._add(event, event.work, nanoseconds, depth, start)
            traced = self._traced < _KEPT_EVENTS
            self._traced += len(record)
        if traced:
            self._trace.run(record, start, end)

    def _add(self, event: Event, work: Work, nanoseconds: int, depth: int, run_start: int) -> None:
        key = (work.node, work.turn, *work.kinds(work.inputs), *work.kinds(work.outputs))
        known = self._works.get(key)
        if known is None:
            known = self._works[key] = _Kept(cost_of_work(work), head_of(work))
        sums = self._sums.get(known.head)
        if sums is None:
            sums = self._sums[known.head] = _Sums(work, known.head, event.step.part.provider,
                                                  event.step.part.name, event.start - run_start, depth)
        sums.nanoseconds += nanoseconds
        self._node_ns += nanoseconds
        sums.calls += work.turn == 1
        sums.flop += known.cost.flop
        sums.bytes += known.cost.bytes
        sums.kernels[work.kernel] = None

    @property
    def seconds(self) -> float:
        return self._run_ns / 1e9 / max(1, self.runs)

    @property
    def fastest_seconds(self) -> float:
        return self._least_ns / 1e9

    @property
    def preparing_seconds(self) -> float:
        return self._ready_ns / 1e9

    @property
    def between_seconds(self) -> float:
        return (self._run_ns - self._node_ns) / 1e9 / max(1, self.runs)

    @property
    def peak(self) -> Peak:
        """What this machine can do with the session's threads."""
        return peak_of(self.threads)

    @property
    def nodes(self) -> tuple[NodeProfile, ...]:
        """In the order in which they first ran."""
        machine = self.peak
        with self._lock:
            sums = sorted(self._sums.values(), key=lambda s: s.start)
            return tuple(self._profile(each, machine) for each in sums)

    def _profile(self, sums: _Sums, machine: Peak) -> NodeProfile:
        runs, work = max(1, self.runs), sums.work
        seconds = sums.nanoseconds / 1e9 / runs
        flop, moved = round(sums.flop / runs), round(sums.bytes / runs)
        share = machine.share(flop, moved, seconds)
        return NodeProfile(
            sums.head.label, sums.head.op_type, sums.provider, " + ".join(sums.kernels), sums.part,
            sums.start / 1e9, seconds, sums.calls, flop, moved, share,
            "" if share is None else machine.bound(flop, moved),
            tuple(shape_text(t) for t in work.kinds(work.inputs)),
            tuple(shape_text(t) for t in work.kinds(work.outputs)),
            tuple(n.label for n in work.nodes), tuple(n.op_type for n in work.nodes), sums.depth)

    def plain(self) -> dict[str, Any]:
        """Everything as plain data, for JSON."""
        return {"model": self.title, "runs": self.runs, "seconds": self.seconds,
                "fastest_seconds": self.fastest_seconds, "native_seconds": self.native_seconds,
                "between_seconds": self.between_seconds,
                "preparing_seconds": self.preparing_seconds,
                "peak": asdict(self.peak), "nodes": [asdict(node) for node in self.nodes]}

    def table(self, most: int | None = None) -> str:
        """The nodes as text, the slowest first; `most`: so many at most."""
        from .table import table

        return table(self, most)

    def to_html(self, path: str | Path | None = None) -> str:
        """The nodes as one HTML page that needs nothing else; written to `path` where one is given."""
        from .page import page

        text = page(self)
        if path is not None:
            Path(path).write_text(text, encoding="utf-8")
        return text

    def to_trace(self, path: str | Path | None = None) -> str:
        """The first runs as a trace for Perfetto or chrome://tracing; written to `path` where one is given.
        """
        text = self._trace.text()
        if path is not None:
            Path(path).write_text(text, encoding="utf-8")
        return text

    def __str__(self) -> str:
        return self.table()

    def __repr__(self) -> str:
        seconds = f", {1e3 * self.seconds:.3f} ms each" if self.runs else ""
        return f"<Profile of {self.title or 'a model'}: {self.runs} runs{seconds}>"

    def _repr_html_(self) -> str:
        from html import escape

        return f'<iframe srcdoc="{escape(self.to_html())}" style="width: 100%; height: 30em"></iframe>'


def _nested(record: Sequence[Event]) -> tuple[list[int], list[int]]:
    """Per event its own nanoseconds, without those of the events within it, and how many are around it.
    Events come in the order in which they ended."""
    own = [e.end - e.start for e in record]
    parents: list[int | None] = [None] * len(record)
    waiting: list[int] = []
    for i, event in enumerate(record):
        while waiting and record[waiting[-1]].start >= event.start:
            child = waiting.pop()
            parents[child] = i
            own[i] -= record[child].end - record[child].start
        waiting.append(i)
    depths = [0] * len(record)
    for i in reversed(range(len(record))):
        parent = parents[i]
        depths[i] = 0 if parent is None else depths[parent] + 1
    return own, depths


def timed_plainly(runs: Sequence[tuple[Callable[[], Any], int]], clock: Callable[[], int]) -> float:
    """The mean seconds of runs: each is called some times, its median counts as often as it says."""
    total, count = 0.0, 0
    for run, times in runs:
        spent: list[int] = []
        run()
        while len(spent) < 3 or (len(spent) < 50 and sum(spent) < 200_000_000):
            start = clock()
            run()
            spent.append(clock() - start)
        total += sorted(spent)[len(spent) // 2] / 1e9 * times
        count += times
    return total / count
