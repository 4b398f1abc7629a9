"""How many machines a load needs, and with which batches.

In: service times, requests a second, and the latency that 99 of 100 answers have to keep. Out: the fewest
machines for each size of batch and each delay, with what the simulator says of them, and which to take.

One machine is simulated with its part of the requests, which is what random routing sends it; a router that
knows the queues does better.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, inf
from typing import Any

from ..records import dataclass
from .simulate import Arrivals, Service, Simulated, Stream, bursts, constant, poisson, simulate

OVERHEAD = 1e-4
"""Seconds of the server's own thread for a request over HTTP: `benchmarks.serving` measures it."""
TRIAL, CONFIRMED = 4_000, 15_000
"""Requests of a simulation that compares, and of one that confirms."""
MOST = 1_000_000
"""Machines; a load that needs more is a mistake."""
QUEUE = 1_000_000
Parted = Callable[[float, int], Arrivals]
"""What one of so many machines gets of so many requests a second, when each goes to any of them."""
NEAR = 10
"""Steps up and down from what the trials found, to where more requests say the same."""


def independent(rate: float, machines: int) -> Arrivals:
    """Requests that know nothing of each other."""
    return poisson(rate / machines)


def even(rate: float, machines: int) -> Arrivals:
    """One after the other, to the machines in turn."""
    return constant(rate / machines)


def bunched(size: float) -> Parted:
    """Bunches of `size` on average, geometrically spread; what falls to one machine is so too."""
    bursts(1.0, size)
    return lambda rate, machines: bursts(rate / machines, 1 + (size - 1) / machines)


@dataclass(frozen=True)
class Choice:
    """One way to serve: batches of so many rows, which wait so many seconds for more, on so many machines."""
    max_batch: int
    max_delay: float
    machines: int
    simulated: Simulated

    def plain(self) -> dict[str, Any]:
        return {"max_batch": self.max_batch, "max_delay": self.max_delay, "machines": self.machines,
                "utilization": self.simulated.utilization, "batch": self.simulated.batch,
                **self.simulated.total.plain()}


@dataclass(frozen=True)
class Plan:
    """The choice that needs the fewest machines, and of those the one with the shortest p99; beside it the
    others that were looked at. `admission`: the chosen one with the goal as a deadline, requests that can't
    keep it refused. `one_down`: a machine's figures where one of them is gone, None where the others then
    fall behind."""
    rate: float
    p99: float
    slots: int
    chosen: Choice
    choices: list[Choice]
    admission: Simulated
    one_down: Simulated | None
    reason: str

    def plain(self) -> dict[str, Any]:
        """All of it for JSON; rates and throughputs of `chosen` are those of one machine."""
        return {"rate": self.rate, "p99_asked": self.p99, "slots": self.slots,
                "machines": self.chosen.machines, "chosen": self.chosen.plain(),
                "admission": self.admission.total.plain(),
                "one_down": None if self.one_down is None else self.one_down.total.plain(),
                "choices": [choice.plain() for choice in self.choices], "reason": self.reason}


def plan(service: Service, rate: float, p99: float, max_batch: int = 32, slots: int = 1, rows: int = 1,
         overhead: float = OVERHEAD, arrivals: Parted = independent, seed: int = 0, shared: bool = True
         ) -> Plan:
    """The fewest machines of `slots` slots that answer `rate` requests a second of `rows` rows each, 99 of
    100 within `p99` seconds.

    Batches of 1, 2, 4 ... `max_batch` rows are tried, without a delay and with an eighth of `p99`.
    `arrivals`: the stream of each machine. `overhead`: seconds of a machine's one thread for each request;
    `shared`: whether they are the slots' cores', as where those are processors.
    Raises ValueError for what is out of range, and where no number of machines is enough, saying why.
    """
    wrong = [f"{what} is {value}" for what, value, good in (
        ("rate", rate, 0 < rate < inf), ("p99", p99, 0 < p99 < inf), ("max_batch", max_batch, max_batch >= 1),
        ("slots", slots, slots >= 1), ("rows", rows, rows >= 1), ("overhead", overhead, 0 <= overhead < inf))
        if not good]
    if wrong:
        raise ValueError(f"a plan needs numbers above 0: {'; '.join(wrong)}")

    def look(batch: int, delay: float, machines: int, requests: int = TRIAL, goal: float | None = None,
             seed: int = seed) -> Simulated | None:
        """One machine's figures; None where it falls behind for good."""
        if machines < 1 or rate / machines >= _most(service, batch, slots, rows, overhead, shared):
            return None
        stream = Stream(arrivals(rate, machines), service, rows=rows, max_batch=batch, max_delay=delay,
                        goal=goal, max_queue=QUEUE)
        return simulate([stream], slots, requests=requests, overhead=overhead, shared=shared, seed=seed)

    def keeps(found: Simulated | None) -> bool:
        return found is not None and found.total.quantile(0.99) <= p99

    def confirmed(batch: int, delay: float, machines: int) -> Choice | None:
        """The fewest machines near those of the trials that keep it over more requests."""
        step, kept = 1 + machines // 50, None
        for _ in range(NEAR):
            found = look(batch, delay, machines, CONFIRMED, seed=seed + 1)
            if found is not None and keeps(found):
                kept, step = Choice(batch, delay, machines, found), -abs(step)
            elif kept is not None:
                break
            machines += step
        return kept

    sizes = sorted({min(2**k, max_batch) for k in range(max_batch.bit_length() + 1)} | {max_batch})
    ways = sorted((_fewest(service, batch, slots, rows, overhead, rate, shared), batch, delay)
                  for batch in sizes for delay in ((0.0, p99 / 8) if batch > 1 else (0.0,)))
    choices, best = list[Choice](), MOST
    for fewest, batch, delay in ways:
        if fewest > best:
            continue
        if not keeps(look(batch, delay, best)):
            continue
        low, high = fewest - 1, fewest
        while high < best and not keeps(look(batch, delay, high)):
            low, high = high, min(2 * high, best)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if keeps(look(batch, delay, middle)) else (middle, high)
        choice = confirmed(batch, delay, high)
        if choice is not None:
            best = min(best, choice.machines)
            choices.append(choice)
    if not choices:
        alone = service.mean(rows) + overhead
        raise ValueError(f"no number of machines keeps 99 of 100 answers within {p99:g} s: a request alone "
                         f"takes {alone:g} s" + (", the longest more than is asked" if alone <= p99 else ""))
    choices.sort(key=lambda choice: (choice.machines, choice.simulated.total.quantile(0.99)))
    chosen = choices[0]
    batch, delay, machines = chosen.max_batch, chosen.max_delay, chosen.machines
    admission = look(batch, delay, machines, CONFIRMED, p99, seed + 1)
    assert admission is not None
    return Plan(rate, p99, slots, chosen, choices, admission, look(batch, delay, machines - 1, CONFIRMED),
                _reason(chosen, service, slots, rows, overhead, rate, p99, shared))


def _most(service: Service, batch: int, slots: int, rows: int, overhead: float, shared: bool) -> float:
    """Requests a second that one machine bears with batches as full as they get."""
    together = max(batch // rows, 1)
    run, front = service.mean(together * rows) + together * overhead * shared, overhead
    return min(slots * together / run if run else inf, 1 / front if front else inf)


def _fewest(service: Service, batch: int, slots: int, rows: int, overhead: float, rate: float, shared: bool
            ) -> int:
    needed = rate / _most(service, batch, slots, rows, overhead, shared)
    if needed > MOST:
        raise ValueError(f"{rate:g} requests a second need more than {MOST} machines")
    return int(needed) + 1


def _reason(chosen: Choice, service: Service, slots: int, rows: int, overhead: float, rate: float, p99: float,
            shared: bool) -> str:
    bears = _most(service, chosen.max_batch, slots, rows, overhead, shared)
    found, least = chosen.simulated, ceil(rate / bears)
    text = (f"a machine bears {bears:.4g} requests a second in batches of {chosen.max_batch}, so that "
            f"{least} {'are' if least > 1 else 'is'} needed at least; ")
    text += (f"with {chosen.machines} the queues are short enough for {1e3 * p99:.4g} ms"
             if chosen.machines > least else "with as many the queues are short enough")
    return (f"{text}: p99 is {1e3 * found.total.quantile(0.99):.4g} ms with {100 * found.utilization:.0f} % "
            f"of the slots' time used")
