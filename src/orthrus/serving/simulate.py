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
    run = _Simulation(streams, slots, replicas, None if until is not None else requests, until, overhead / 2,
                      (overhead * shared + beside) / 2, routing, seed)
    for each in run.machines:
        each.turns.overhead = overhead
    end = run.to_the_end()
    outcomes = sorted(run.outcomes, key=lambda outcome: outcome[0])
    counted = outcomes[int(len(outcomes) * warmup):]
    first = counted[0][0] if counted else 0.0
    last = max((end for _, _, end in outcomes if end is not None), default=end)
    total = _figures(counted, run.by_name, max(last - first, 0.0))
    by_stream = {name: _figures([one for one in counted if one[1] == name], run.by_name, total.seconds)
                 for name in run.by_name}
    span = last - (outcomes[0][0] if outcomes else 0.0)
    return Simulated(total, by_stream, run.busy / (span * slots * replicas) if span > 0 else 0.0,
                     run.rows / run.batches if run.batches else 0.0)


class _Simulation:
    """What happens, event by event. `half`: seconds for which a machine's thread reads a request, or writes
    an answer; `taken`: of the slots' cores for either."""

    def __init__(self, streams: Sequence[Stream], slots: int, replicas: int, requests: int | None,
                 until: float | None, half: float, taken: float, routing: str, seed: int) -> None:
        self.requests, self.until, self.half, self.taken, self.routing = requests, until, half, taken, routing
        draw, self.route = random.Random(seed), random.Random(seed + 1)
        self.machines = [_Machine(Turns(slots)) for _ in range(replicas)]
        for each in self.machines:
            for stream in streams:
                each.turns.add(stream.name, stream.weight, stream.max_batch, stream.max_delay, stream.goal,
                               stream.max_queue)
        self.by_name = {stream.name: stream for stream in streams}
        self.sources = {stream.name: stream.arrivals(random.Random(seed + 2 + index))
                        for index, stream in enumerate(streams)}
        self.factors = {stream.name: stream.service.factors(draw) for stream in streams}
        self.events, self.serial = list[tuple[float, int, int, _Machine | None, object]](), count()
        self.outcomes = list[tuple[float, str, float | None]]()
        """Of each request: when it came, for which model, when it was answered; -1: refused, None: given
        up."""
        self.busy = self.rows = self.batches = 0.0
        self.arrived = self.robin = 0

    def to_the_end(self) -> float:
        """All events, the earliest first; answers the time of the last."""
        for name in self.by_name:
            self.announce(name)
        now = 0.0
        while self.events:
            now, kind, _, machine, what = heappop(self.events)
            answered: Sequence[Ticket] | None = ()
            if kind == ARRIVED:
                assert isinstance(what, str)
                machine = self.arrive(what, now)
                answered = None if machine is None else ()
            elif kind == READ:
                assert isinstance(what, tuple) and machine is not None
                name, came = what
                self.read(machine, name, came, now)
            elif kind == FINISHED:
                assert isinstance(what, Batch) and machine is not None
                answered = self.finish(machine, what, now)
            elif kind == WRITTEN:
                assert isinstance(what, Ticket) and machine is not None
                self.leave(machine, what, now)
                answered = None
            elif machine is not None and machine.wake == now:
                machine.wake = None
            if answered is not None:
                assert machine is not None
                self.go_on(machine, answered, now)
        return now

    def event(self, time: float, kind: int, machine: _Machine | None, what: object) -> None:
        heappush(self.events, (time, kind, next(self.serial), machine, what))

    def announce(self, name: str) -> None:
        """A stream's next request will arrive, where there is one."""
        time = next(self.sources[name], None)
        if time is not None and (self.until is None or time <= self.until):
            self.event(time, ARRIVED, None, name)

    def through_front(self, now: float, kind: int, machine: _Machine, what: object) -> None:
        """The machine's one thread reads or writes something, when it is free."""
        machine.front = max(machine.front, now) + self.half
        if self.taken:
            machine.delay(self.taken)
        self.event(machine.front, kind, machine, what)

    def arrive(self, name: str, now: float) -> _Machine | None:
        """A request goes to a machine. Answers this one where it has read it at once, else None."""
        if self.requests is not None and self.arrived >= self.requests:
            return None
        self.arrived += 1
        self.announce(name)
        if self.routing == "random":
            machine = self.route.choice(self.machines)
        elif self.routing == "least" and len(self.machines) > 1:
            machine = min(self.machines, key=lambda each: each.here)
        else:
            machine = self.machines[self.robin % len(self.machines)]
            self.robin += 1
        machine.here += 1
        if self.half or self.taken:
            self.through_front(now, READ, machine, (name, now))
            return None
        self.read(machine, name, now, now)
        return machine

    def read(self, machine: _Machine, name: str, came: float, now: float) -> None:
        """A request that came at `came` waits for its turn, or is refused."""
        stream = self.by_name[name]
        deadline = None if stream.goal is None else came + stream.goal
        try:
            machine.turns.submit(name, stream.rows, now, deadline, payload=came)
        except Refused:
            machine.here -= 1
            self.outcomes.append((came, name, -1.0))

    def finish(self, machine: _Machine, batch: Batch, now: float) -> Sequence[Ticket] | None:
        """A batch has ended: the requests whose answers are still to be written. None where it was delayed
        and ends later."""
        if machine.ends[batch] > now:
            self.event(machine.ends[batch], FINISHED, machine, batch)
            return None
        del machine.ends[batch]
        machine.turns.finished(batch, now)
        self.busy = self.busy + now - batch.started
        self.rows += batch.rows
        self.batches += 1
        if self.half or self.taken:
            return batch.tickets
        for ticket in batch.tickets:
            self.leave(machine, ticket, now)
        return ()

    def leave(self, machine: _Machine, ticket: Ticket, when: float | None) -> None:
        """A request is over, answered at `when`, or given up."""
        machine.here -= 1
        self.outcomes.append((ticket.payload, ticket.name, when))

    def go_on(self, machine: _Machine, answered: Sequence[Ticket], now: float) -> None:
        """What follows on a machine: requests that are too late go, batches begin, answers are written."""
        turns = machine.turns
        for ticket in turns.expired(now):
            self.leave(machine, ticket, None)
        while (batch := turns.next(now)) is not None:
            machine.ends[batch] = end = now + (self.by_name[batch.name].service.mean(batch.rows)
                                               * next(self.factors[batch.name]))
            self.event(end, FINISHED, machine, batch)
        for ticket in answered:
            self.through_front(now, WRITTEN, machine, ticket)
        wake = turns.wake_at(now)
        if wake is not None and (machine.wake is None or wake < machine.wake):
            machine.wake = wake
            self.event(wake, WOKEN, machine, None)


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
