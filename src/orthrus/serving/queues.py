"""What waits and in which order: requests, groups of them that may run together, models.

In: requests, one at a time. Out: which of them come first, and how many batches they will be. A request is in
one group of one model while its state is WAITING, and in none afterwards.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import field
from enum import Enum
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Any, Generic, TypeVar

from ..records import dataclass
from .service_time import ServiceTime

Item = TypeVar("Item")


class State(Enum):
    """Where a request is. Of `WAITING` it goes to one of the others, of `RUNNING` to `DONE`."""
    WAITING, RUNNING, DONE, EXPIRED, CANCELLED, REMOVED = range(6)


@dataclass(slots=True, eq=False)
class Ticket:
    """A request that was let in. `arrived` and `deadline` are times of the caller's clock; `payload` is the
    caller's."""
    name: str
    rows: int
    key: Hashable
    payload: Any
    arrived: float
    deadline: float | None
    state: State
    group: Group = field(repr=False)
    serial: int = field(repr=False)
    hurried: bool = field(default=False, repr=False)


@dataclass(slots=True, eq=False)
class Batch:
    """Requests of one model and one key that run together, in the order they came in. `expected`: the seconds
    that it is thought to take."""
    name: str
    key: Hashable
    tickets: list[Ticket]
    rows: int
    started: float
    expected: float
    model: Model = field(repr=False)


@dataclass(slots=True)
class Counters:
    """What has become of a model's requests. `busy`: seconds of all its batches; `waiting` and `running` are
    requests at this moment."""
    accepted: int = 0
    refused_full: int = 0
    refused_late: int = 0
    expired: int = 0
    cancelled: int = 0
    finished: int = 0
    failed: int = 0
    rows: int = 0
    batches: int = 0
    busy: float = 0.0
    waiting: int = 0
    running: int = 0


class Agenda(Generic[Item]):
    """What comes first, in O(log n). Entries that have become void stay in until they surface or are half of
    all."""

    __slots__ = ("_heap", "_limit", "_live", "_serial")

    def __init__(self, live: Callable[[Item, int], bool]) -> None:
        self._heap = list[tuple[Any, int, Item]]()
        self._live, self._limit, self._serial = live, 64, count(1)

    def push(self, key: Any, item: Item) -> int:
        """The entry's serial number; equal keys come in its order."""
        if len(self._heap) >= self._limit:
            self._heap = [entry for entry in self._heap if self._live(entry[2], entry[1])]
            heapify(self._heap)
            self._limit = max(64, 2 * len(self._heap))
        serial = next(self._serial)
        heappush(self._heap, (key, serial, item))
        return serial

    def first(self) -> tuple[Any, Item] | None:
        heap = self._heap
        while heap:
            key, serial, item = heap[0]
            if self._live(item, serial):
                return key, item
            heappop(heap)
        return None


def waits(ticket: Ticket, _: int) -> bool:
    return ticket.state is State.WAITING


class Group:
    """Waiting requests of one model and one key. `batches`: how many they will be; `tail`: rows of the last
    one."""

    __slots__ = ("batches", "key", "model", "rows", "tail", "tickets")

    def __init__(self, model: Model, key: Hashable) -> None:
        self.model, self.key = model, key
        self.tickets = OrderedDict[Ticket, None]()
        self.rows = self.batches = self.tail = 0

    def joins(self, rows: int) -> bool:
        """Whether so many rows more go into the last batch."""
        return self.batches > 0 and self.tail + rows <= self.model.max_batch

    def append(self, ticket: Ticket) -> None:
        if self.joins(ticket.rows):
            self.tail += ticket.rows
        else:
            self.batches, self.tail = self.batches + 1, ticket.rows
        self.tickets[ticket] = None
        self.rows += ticket.rows

    def drop(self, ticket: Ticket) -> None:
        del self.tickets[ticket]
        self.rows -= ticket.rows

    def settle(self, gone: int) -> None:
        """So many batches fewer; what was dropped from the middle may have made others fewer too."""
        least = -(-self.rows // self.model.max_batch)
        self.batches = min(max(self.batches - gone, least), len(self.tickets))
        self.tail = self.rows if self.batches == 1 else min(self.tail, self.rows)


class Model:
    """A model's queue, and what it has had of the slots: `turn` is the time on them divided by its weight."""

    __slots__ = ("active", "agenda", "batches", "counters", "goal", "groups", "max_batch", "max_delay",
                 "max_queue", "name", "place", "removed", "rows", "running", "served", "service", "turn",
                 "waiting", "weight", "work")

    def __init__(self, name: str, weight: float, max_batch: int, max_delay: float, goal: float | None,
                 max_queue: int) -> None:
        self.name, self.weight, self.max_batch, self.max_delay = name, weight, max_batch, max_delay
        self.goal, self.max_queue = goal, max_queue
        self.groups = dict[Hashable, Group]()
        self.agenda = Agenda[Ticket](waits)
        self.service, self.counters = ServiceTime(), Counters()
        self.waiting = self.rows = self.batches = self.running = self.served = 0
        self.turn = self.work = 0.0
        self.place: tuple[bool, int] | None = None
        """Which of the two lists of models it stands in, ready ones or not, and its entry's serial."""
        self.active = self.removed = False
