"""A server in simulated time: arrivals, service times and replicas in; throughput, latencies, refusals out.

In: streams of requests, each for a model with its limits, and machines. Out: what their clients would see.
The requests wait in the very `Turns` that the server has; only time is not real, and an hour takes seconds.
Equal arguments give equal results.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import field
from heapq import heappop, heappush
from itertools import count
from math import ceil
from typing import Literal

from ..records import dataclass
from .schedule import Batch, Refused, Ticket, Turns

Arrivals = Callable[[random.Random], Iterator[float]]
"""Draws the times of requests, seconds, none before the one in front of it."""


def _rate(rate: float) -> float:
    if not 0 < rate < float("inf"):
        raise ValueError(f"a rate of {rate} requests a second: it has to be above 0")
    return rate


def poisson(rate: float) -> Arrivals:
    """Requests that know nothing of each other, `rate` a second on average."""
    _rate(rate)

    def times(draw: random.Random) -> Iterator[float]:
        now = 0.0
        while True:
            now += draw.expovariate(rate)
            yield now
    return times


def constant(rate: float) -> Arrivals:
    """A request every `1 / rate` seconds."""
    _rate(rate)
    return lambda draw: (index / rate for index in count(1))


def bursts(rate: float, size: float = 10) -> Arrivals:
    """`rate` requests a second on average, which come in bunches at one moment: `size` on average,
    geometrically spread, at the times of a Poisson process."""
    _rate(rate)
    if size < 1:
        raise ValueError(f"bursts of {size} requests: at least one")

    def times(draw: random.Random) -> Iterator[float]:
        for now in poisson(rate / size)(draw):
            yield now
            while draw.random() > 1 / size:
                yield now
    return times


def recorded(times: Sequence[float]) -> Arrivals:
    """The times of a trace, seconds in any order, counted from the first."""
    ordered = sorted(times)
    return lambda draw: (time - ordered[0] for time in ordered)


@dataclass(frozen=True)
class Service:
    """How long batches take: `seconds` by rows, on a line between two sizes, and beyond the last on the line
    through the last two. `spread`: factors of which one is drawn for each batch, or "exponential".
    `stretch`: so many factors that follow each other are drawn at once: what is slow is so for a while."""
    seconds: Mapping[int, float]
    spread: Sequence[float] | Literal["exponential"] = (1.0,)
    stretch: int = 1
    sizes: list[int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.seconds or any(rows < 1 or not 0 <= t < float("inf") for rows, t in self.seconds.items()):
            raise ValueError(f"service times {dict(self.seconds)}: expected seconds by rows, rows from 1 on")
        object.__setattr__(self, "sizes", sorted(self.seconds))

    def mean(self, rows: int) -> float:
        """Seconds of a batch of so many rows, without the spread."""
        sizes, seconds = self.sizes, self.seconds
        if rows <= sizes[0]:
            return seconds[sizes[0]]
        if len(sizes) == 1:
            return seconds[sizes[0]] * rows / sizes[0]
        high = min(bisect_right(sizes, rows), len(sizes) - 1)
        low, high = sizes[high - 1], sizes[high]
        return max(seconds[low] + (seconds[high] - seconds[low]) * (rows - low) / (high - low), 0.0)

    def factors(self, draw: random.Random) -> Iterator[float]:
        """What the mean of one batch after the other is multiplied with."""
        while True:
            if self.spread == "exponential":
                yield draw.expovariate(1.0)
                continue
            first = draw.randrange(len(self.spread))
            for index in range(first, first + self.stretch):
                yield self.spread[index % len(self.spread)]


@dataclass(frozen=True)
class Stream:
    """Requests for one model. `rows`: those of each request. The others are `Turns.add`'s."""
    arrivals: Arrivals
    service: Service
    name: str = "model"
    rows: int = 1
    weight: float = 1.0
    max_batch: int = 1
    max_delay: float = 0.0
    goal: float | None = None
    max_queue: int = 1000


@dataclass(frozen=True)
class Figures:
    """What came of a stream, or of all. `latency`: seconds from arrival to answer of all answered requests,
    in order. `late`: answered behind their deadline or given up at it. `seconds`: from the first arrival that
    counts to the last answer."""
    arrived: int
    answered: int
    refused: int
    late: int
    seconds: float
    latency: list[float] = field(repr=False)

    @property
    def throughput(self) -> float:
        """Answers a second."""
        return self.answered / self.seconds if self.seconds else 0.0

    @property
    def mean(self) -> float:
        """Seconds to an answer."""
        return sum(self.latency) / len(self.latency) if self.latency else 0.0

    def quantile(self, share: float) -> float:
        """Seconds within which this share of the answers came; 0 where there are none."""
        return self.latency[max(ceil(share * len(self.latency)) - 1, 0)] if self.latency else 0.0

    def plain(self) -> dict[str, float]:
        """The figures for a table or JSON."""
        return {"arrived": self.arrived, "answered": self.answered, "refused": self.refused,
                "late": self.late, "throughput": self.throughput, "mean": self.mean,
                **{f"p{round(100 * share)}": self.quantile(share) for share in (0.5, 0.9, 0.99)}}


@dataclass(frozen=True)
class Simulated:
    """All streams together and each by its name; `utilization`: the part of all slots' time that was used;
    `batch`: rows of a batch on average."""
    total: Figures
    streams: dict[str, Figures]
    utilization: float
    batch: float


class _Machine:
    """A replica: its turns, and when its one thread that reads and writes is free again."""

    __slots__ = ("ends", "front", "here", "next", "turns", "wake")

    def __init__(self, turns: Turns) -> None:
        self.turns, self.front, self.here, self.next = turns, 0.0, 0, 0
        self.wake: float | None = None
        self.ends = dict[Batch, float]()
        """When batches that run will end."""

    def delay(self, seconds: float) -> None:
        """Somebody else takes so long of a core: where all are at work, that of one of the batches."""
        if len(self.ends) < self.turns.slots:
            return
        self.next += 1
        self.ends[list(self.ends)[self.next % len(self.ends)]] += seconds


FINISHED, READ, WRITTEN, ARRIVED, WOKEN = range(5)
"""Kinds of events; at equal times, in this order."""


def simulate(streams: Sequence[Stream], slots: int = 1, replicas: int = 1, requests: int = 20_000,
             until: float | None = None, overhead: float = 0.0, shared: bool = False, beside: float = 0.0,
             routing: Literal["least", "round robin", "random"] = "least", warmup: float = 0.1, seed: int = 0
             ) -> Simulated:
    """Let requests come to `replicas` machines of `slots` slots each.

    It ends behind so many requests, or those until `until` seconds, when the last has left. `overhead`:
    seconds of each machine's one thread that reads requests and writes answers, half of it for either.
    `shared`: whether that thread computes on the slots' cores, so that batches take longer where all are at
    work; `beside`: seconds of those cores that others take for each request, as clients on the same machine.
    `routing`: to the machine with the fewest requests, in turn, or any. The first part `warmup` of the
    requests fills the machines and is not counted. Raises ValueError for what is out of range.
    """
    if replicas < 1 or requests < 1 or overhead < 0 or beside < 0 or not 0 <= warmup < 1 or not streams:
        raise ValueError(f"replicas {replicas}, requests {requests}, {len(streams)} streams, overhead "
                         f"{overhead}, warmup {warmup}: expected one or more of the first three, 0 or more "
                         f"seconds, a part below 1")
    draw, route = random.Random(seed), random.Random(seed + 1)
    machines = [_Machine(Turns(slots)) for _ in range(replicas)]
    for each in machines:
        each.turns.overhead = overhead
        for stream in streams:
            each.turns.add(stream.name, stream.weight, stream.max_batch, stream.max_delay, stream.goal,
                           stream.max_queue)
    by_name = {stream.name: stream for stream in streams}
    sources = {stream.name: stream.arrivals(random.Random(seed + 2 + index))
               for index, stream in enumerate(streams)}
    events, serial = list[tuple[float, int, int, _Machine | None, object]](), count()
    half, robin, taken = overhead / 2, 0, (overhead * shared + beside) / 2
    factors = {stream.name: stream.service.factors(draw) for stream in streams}
    outcomes = list[tuple[float, str, float | None]]()
    """Of each request: when it came, for which model, when it was answered; -1: refused, None: given up."""
    busy = rows = batches = arrived = 0.0

    def event(time: float, kind: int, machine: _Machine | None, what: object) -> None:
        heappush(events, (time, kind, next(serial), machine, what))

    def through_front(now: float, kind: int, machine: _Machine, what: object) -> None:
        machine.front = max(machine.front, now) + half
        if taken:
            machine.delay(taken)
        event(machine.front, kind, machine, what)

    def arrive(name: str) -> None:
        time = next(sources[name], None)
        if time is not None and (until is None or time <= until):
            event(time, ARRIVED, None, name)

    for stream in streams:
        arrive(stream.name)
    now = 0.0
    while events:
        now, kind, _, machine, what = heappop(events)
        if kind == ARRIVED:
            assert isinstance(what, str)
            if until is None and arrived >= requests:
                continue
            arrived += 1
            arrive(what)
            if routing == "random":
                machine = route.choice(machines)
            elif routing == "least" and replicas > 1:
                machine = min(machines, key=lambda each: each.here)
            else:
                machine = machines[robin % replicas]
                robin += 1
            machine.here += 1
            if half or taken:
                through_front(now, READ, machine, (what, now))
                continue
            kind, what = READ, (what, now)
        assert machine is not None
        turns, answered = machine.turns, list[Ticket]()
        if kind == READ:
            assert isinstance(what, tuple)
            name, came = what
            stream = by_name[name]
            deadline = None if stream.goal is None else came + stream.goal
            try:
                turns.submit(name, stream.rows, now, deadline, payload=came)
            except Refused:
                machine.here -= 1
                outcomes.append((came, name, -1.0))
        elif kind == FINISHED:
            assert isinstance(what, Batch)
            if machine.ends[what] > now:
                event(machine.ends[what], FINISHED, machine, what)
                continue
            del machine.ends[what]
            turns.finished(what, now)
            busy, rows, batches = busy + now - what.started, rows + what.rows, batches + 1
            if half or taken:
                answered = what.tickets
            else:
                machine.here -= len(what.tickets)
                outcomes += [(ticket.payload, ticket.name, now) for ticket in what.tickets]
        elif kind == WRITTEN:
            assert isinstance(what, Ticket)
            machine.here -= 1
            outcomes.append((what.payload, what.name, now))
            continue
        elif machine.wake == now:
            machine.wake = None
        for ticket in turns.expired(now):
            machine.here -= 1
            outcomes.append((ticket.payload, ticket.name, None))
        while (batch := turns.next(now)) is not None:
            machine.ends[batch] = end = now + (by_name[batch.name].service.mean(batch.rows)
                                               * next(factors[batch.name]))
            event(end, FINISHED, machine, batch)
        for ticket in answered:
            through_front(now, WRITTEN, machine, ticket)
        wake = turns.wake_at(now)
        if wake is not None and (machine.wake is None or wake < machine.wake):
            machine.wake = wake
            event(wake, WOKEN, machine, None)
    outcomes.sort(key=lambda outcome: outcome[0])
    counted = outcomes[int(len(outcomes) * warmup):]
    first = counted[0][0] if counted else 0.0
    last = max((end for _, _, end in outcomes if end is not None), default=now)
    total = _figures(counted, by_name, max(last - first, 0.0))
    by_stream = {name: _figures([one for one in counted if one[1] == name], by_name, total.seconds)
                 for name in by_name}
    span = last - (outcomes[0][0] if outcomes else 0.0)
    return Simulated(total, by_stream, busy / (span * slots * replicas) if span > 0 else 0.0,
                     rows / batches if batches else 0.0)


def _figures(outcomes: Sequence[tuple[float, str, float | None]], streams: Mapping[str, Stream],
             seconds: float) -> Figures:
    latency, refused, late = list[float](), 0, 0
    for came, name, end in outcomes:
        goal = streams[name].goal
        if end is None:
            late += 1
        elif end < 0:
            refused += 1
        else:
            latency.append(end - came)
            late += goal is not None and end - came > goal * (1 + 1e-9)
    return Figures(len(outcomes), len(latency), refused, late, seconds, sorted(latency))
