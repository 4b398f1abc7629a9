"""Whose turn it is: requests wait by model, become batches, and share the machine's slots by weight.

In: requests with their rows and deadlines, and the time in seconds, which the caller tells. Out: batches that
may run now, refusals, and requests whose deadline has passed. No thread and no clock is in here. A request
leaves exactly once: in a batch, as expired, cancelled, or handed back when its model is removed.

A model's requests of one key leave in the order they came in. Between models the one that had the least time
on the slots, measured and divided by its weight, is next (start-time fair queueing); one that was idle has
saved nothing up. No slot stays free while a batch is full or has waited as long as it may.
"""

from __future__ import annotations

from collections.abc import Hashable
from itertools import count
from typing import Any, Literal

from ..errors import NotFound
from .queues import Agenda, Batch, Counters, Group, Model, State, Ticket, waits

__all__ = ["Batch", "Counters", "Refused", "State", "Ticket", "Turns"]

LEAST = 1e-6
"""Seconds that a batch is charged at least: where a clock stands still, turns still go round."""


class Refused(Exception):
    """A request that does not get in. `kind`: "full", the queue is; "late", the deadline can't be met.
    `retry_after`: seconds after which it may be worth another try."""

    def __init__(self, reason: str, retry_after: float = 0.0, kind: Literal["full", "late"] = "full") -> None:
        super().__init__(reason)
        self.reason, self.retry_after, self.kind = reason, retry_after, kind

    def __reduce__(self) -> tuple[Any, ...]:
        return Refused, (self.reason, self.retry_after, self.kind)


class Turns:
    """The queues of several models in front of `slots` places at which batches run. All times are seconds of
    one clock, which may stand still; one that goes back counts as standing still. Not safe for threads:
    callers take turns.

    `overhead`: seconds a request spends outside, in reading, writing and waiting for the caller; a request
    has to be done so much before its deadline. The caller may set it at any time.
    """

    def __init__(self, slots: int) -> None:
        if slots < 1:
            raise ValueError(f"slots is {slots}: at least one place is needed to run batches at")
        self.slots, self.overhead = slots, 0.0
        self._models = dict[str, Model]()
        self._running = dict[Batch, float]()
        """Batches that run, and when they are expected to end."""
        self._ready = Agenda[Model](lambda model, serial: model.place == (True, serial))
        self._later = Agenda[Model](lambda model, serial: model.place == (False, serial))
        self._deadlines = Agenda[Ticket](waits)
        self._expired = list[Ticket]()
        self._now = self._virtual = self._work = self._weight = 0.0
        self._actives = self._served = 0
        self._started, self._serial = False, count()

    def add(self, name: str, weight: float = 1.0, max_batch: int = 1, max_delay: float = 0.0,
            goal: float | None = None, max_queue: int = 1000) -> None:
        """Let a model's requests in. `weight`: its share of the slots beside the others'. `max_batch`: rows
        of a batch; a request of more runs alone. `max_delay`: seconds that a batch may wait for more rows.
        `goal`: seconds within which a request is to be done that has no deadline of its own. `max_queue`:
        requests that wait at most. Raises ValueError for what is out of range and for a name that is there.
        """
        if name in self._models:
            raise ValueError(f"a model {name!r} is there already: remove it first")
        wrong = [f"{what} is {value}, expected {expected}" for what, value, good, expected in (
            ("weight", weight, 0 < weight < float("inf"), "a number above 0"),
            ("max_batch", max_batch, max_batch >= 1, "1 or more"),
            ("max_delay", max_delay, 0 <= max_delay < float("inf"), "0 or more seconds"),
            ("goal", goal, goal is None or goal > 0, "None or more than 0 seconds"),
            ("max_queue", max_queue, max_queue >= 1, "1 or more")) if not good]
        if wrong:
            raise ValueError(f"model {name!r}: {'; '.join(wrong)}")
        self._models[name] = Model(name, weight, max_batch, max_delay, goal, max_queue)

    def remove(self, name: str) -> list[Ticket]:
        """Let a model go: its waiting requests are handed back, oldest first; its batches that run end as
        ever. Raises NotFound."""
        model = self._model(name)
        left = sorted((ticket for group in model.groups.values() for ticket in group.tickets),
                      key=lambda ticket: ticket.serial)
        for ticket in left:
            self._leave(ticket, State.REMOVED)
        model.removed, model.place = True, None
        self._account(model)
        del self._models[name]
        return left

    def submit(self, name: str, rows: int, now: float, deadline: float | None = None, key: Hashable = None,
               payload: Any = None) -> Ticket:
        """Let a request in, which waits from now on. `deadline`: when the answer is no longer wanted, by
        default the model's goal from now. Only requests of one `key` run together. Raises Refused, NotFound
        for a model that is not there and ValueError for rows below 1."""
        model, now = self._model(name), self._clock(now)
        if rows < 1:
            raise ValueError(f"model {name!r}: a request of {rows} rows; it needs at least one")
        self._expire(now)
        if deadline is None and model.goal is not None:
            deadline = now + model.goal
        if model.waiting >= model.max_queue:
            model.counters.refused_full += 1
            raise Refused(f"model {name!r}: {model.waiting} requests wait, which is as many as may",
                          model.service.mean(model.max_batch) / self.slots)
        if deadline is not None:
            self._admit(model, rows, now, deadline, key)
        group = model.groups.get(key)
        if group is None:
            group = model.groups[key] = Group(model, key)
        ticket = Ticket(name, rows, key, payload, now, deadline, State.WAITING, group, next(self._serial))
        model.waiting, model.rows, model.batches = (
            model.waiting + 1, model.rows + rows, model.batches - group.batches)
        group.append(ticket)
        model.batches += group.batches
        if fresh := model.waiting == 1:
            model.turn = max(model.turn, self._virtual)
        due = now + model.max_delay
        if deadline is not None:
            self._deadlines.push(deadline, ticket)
            due = min(due, max(now, deadline - self.overhead - 2 * model.service.mean(group.tail)
                               - model.service.margin(2)))
        model.agenda.push(due, ticket)
        self._hurry(group)
        model.counters.accepted += 1
        self._account(model)
        self._stand(model, moved=fresh)
        return ticket

    def next(self, now: float) -> Batch | None:
        """A batch that is to run now, or None: no slot is free, or nothing is due. Each one has to be
        `finished`."""
        now = self._clock(now)
        self._expire(now)
        if len(self._running) >= self.slots or (model := self._first(now)) is None:
            return None
        found = model.agenda.first()
        assert found is not None
        group = found[1].group
        tickets, rows = list[Ticket](), 0
        for ticket in group.tickets:
            if tickets and rows + ticket.rows > model.max_batch:
                break
            tickets.append(ticket)
            rows += ticket.rows
        for ticket in tickets:
            ticket.state = State.RUNNING
            group.drop(ticket)
        model.waiting, model.rows = model.waiting - len(tickets), model.rows - rows
        self._settle(group, 1)
        self._hurry(group)
        expected = max(model.service.mean(rows), LEAST)
        batch = Batch(model.name, group.key, tickets, rows, now, expected, model)
        self._running[batch] = now + expected
        self._virtual = max(self._virtual, model.turn)
        model.turn += expected / model.weight
        model.running += len(tickets)
        self._served += 1
        model.served = self._served
        self._account(model)
        self._stand(model, moved=True)
        return batch

    def finished(self, batch: Batch, now: float, ok: bool = True) -> None:
        """A batch has run, and its slot is free; `ok` is False where it failed, and its time tells nothing of
        others. Raises ValueError for a batch that does not run."""
        now, model = self._clock(now), batch.model
        if self._running.pop(batch, None) is None:
            raise ValueError(f"a batch of model {batch.name!r} does not run: it was finished before")
        seconds = max(now - batch.started, 0.0)
        for ticket in batch.tickets:
            ticket.state = State.DONE
        counters, done = model.counters, len(batch.tickets)
        model.running -= done
        counters.finished, counters.failed = counters.finished + done * ok, counters.failed + done * (not ok)
        counters.rows, counters.batches = counters.rows + batch.rows, counters.batches + 1
        counters.busy += seconds
        if ok:
            model.service.measured(batch.rows, seconds)
        model.turn += (max(seconds, LEAST) - batch.expected) / model.weight
        self._account(model)
        self._stand(model, moved=True)

    def cancel(self, ticket: Ticket) -> bool:
        """Take a request out that waits. False where it no longer does."""
        if ticket.state is not State.WAITING:
            return False
        model = ticket.group.model
        self._leave(ticket, State.CANCELLED)
        model.counters.cancelled += 1
        self._account(model)
        return True

    def expired(self, now: float) -> list[Ticket]:
        """Requests whose deadline passed while they waited, each handed out once."""
        self._expire(self._clock(now))
        found, self._expired = self._expired, []
        return found

    def wake_at(self, now: float) -> float | None:
        """When `next` or `expired` will have something, if nothing is submitted and no batch ends until then;
        None: never."""
        now = self._clock(now)
        self._expire(now)
        if self._expired:
            return now
        times = [first[0]] if (first := self._deadlines.first()) is not None else []
        if len(self._running) < self.slots:
            if self._first(now) is not None:
                return now
            if (later := self._later.first()) is not None:
                times.append(later[0])
        return min(times, default=None)

    def measured(self, name: str, rows: int, seconds: float) -> None:
        """A batch of a model has taken so long outside of here, as when it was warmed up. Raises NotFound."""
        model = self._model(name)
        model.service.measured(rows, seconds)
        self._account(model)

    def estimate(self, name: str, rows: int, now: float, key: Hashable = None) -> float:
        """Seconds after which a request would be done if it came now. Raises NotFound."""
        start, run, margin = self._estimate(self._model(name), rows, self._clock(now), key)
        return start + run + margin

    def counters(self) -> dict[str, Counters]:
        """A model's counters by its name; they go on counting."""
        for model in self._models.values():
            model.counters.waiting, model.counters.running = model.waiting, model.running
        return {name: model.counters for name, model in self._models.items()}

    @property
    def running(self) -> int:
        """Slots that are taken."""
        return len(self._running)

    def _model(self, name: str) -> Model:
        model = self._models.get(name)
        if model is None:
            known = ", ".join(map(repr, self._models))
            raise NotFound(f"no model {name!r} is scheduled", expected=known or None)
        return model

    def _clock(self, now: float) -> float:
        self._now = max(self._now, now) if self._started else now
        self._started = True
        return self._now

    def _estimate(self, model: Model, rows: int, now: float, key: Hashable) -> tuple[float, float, float]:
        """Seconds until a request's batch starts, seconds it then runs, and by how much both may be off. What
        is before it: batches that run, and of those that wait all, or as many as the model's share lets go
        first."""
        service, group = model.service, model.groups.get(key)
        joins = group is not None and group.joins(rows)
        beside = group.tail if joins and group is not None else 0
        ahead = max(model.batches - joins, 0)
        own = service.mean(model.rows - beside, ahead)
        share = model.weight / (self._weight + (0.0 if model.active else model.weight))
        before = min(own / share, own + max(self._work - model.work, 0.0))
        if len(self._running) >= self.slots:
            before += sum(max(end - now, 0.0) for end in self._running.values())
        grows = before > 0 or model.max_delay > 0
        last = max(beside + rows, model.max_batch if grows else 0)
        return self.overhead + before / self.slots, service.mean(last), service.margin(1 + ahead / self.slots)

    def _admit(self, model: Model, rows: int, now: float, deadline: float, key: Hashable) -> None:
        """Raises Refused. The model's estimate, and `overhead`, don't count where it has nothing to do: a
        wrong one would never be corrected."""
        start, run, margin = self._estimate(model, rows, now, key)
        idle = not (model.waiting or model.running)
        needed = start - self.overhead if idle else start + run + margin
        if deadline > now and now + needed <= deadline:
            return
        model.counters.refused_late += 1
        raise Refused(f"model {model.name!r}: {start + run + margin:.3f} s until the answer by the queue's "
                      f"length, {max(deadline - now, 0.0):.3f} s until the deadline",
                      max(now + needed - deadline, 0.0), "late")

    def _hurry(self, group: Group) -> None:
        """A full batch is due since its first request came in."""
        if group.rows >= group.model.max_batch and not (head := next(iter(group.tickets))).hurried:
            head.hurried = True
            group.model.agenda.push(head.arrived, head)

    def _leave(self, ticket: Ticket, state: State) -> None:
        group, model = ticket.group, ticket.group.model
        ticket.state = state
        group.drop(ticket)
        model.waiting, model.rows = model.waiting - 1, model.rows - ticket.rows
        self._settle(group, 0)
        self._hurry(group)

    def _settle(self, group: Group, gone: int) -> None:
        model = group.model
        model.batches -= group.batches
        group.settle(gone)
        model.batches += group.batches
        if not group.tickets:
            del model.groups[group.key]

    def _expire(self, now: float) -> None:
        while (first := self._deadlines.first()) is not None and first[0] <= now:
            ticket = first[1]
            self._leave(ticket, State.EXPIRED)
            ticket.group.model.counters.expired += 1
            self._account(ticket.group.model)
            self._expired.append(ticket)

    def _account(self, model: Model) -> None:
        """A model's part in what all models have to do."""
        work = 0.0 if model.removed else model.service.mean(model.rows, model.batches)
        active = not model.removed and (model.waiting > 0 or model.running > 0)
        self._work, model.work = self._work + work - model.work, work
        if active != model.active:
            self._weight += model.weight if active else -model.weight
            self._actives += 1 if active else -1
            model.active = active
        if not self._actives:
            self._weight = self._work = 0.0

    def _stand(self, model: Model, moved: bool = False) -> None:
        """Put a model where it belongs, among the ready ones or those that are due later; `moved`: its turn
        is another."""
        due = None if model.removed else model.agenda.first()
        if due is None:
            model.place = None
        elif due[0] > self._now:
            model.place = (False, self._later.push(due[0], model))
        elif moved or model.place is None or not model.place[0]:
            model.place = (True, self._ready.push((model.turn, model.served), model))

    def _first(self, now: float) -> Model | None:
        """The model that is next among those with something due."""
        while (later := self._later.first()) is not None:
            due = later[1].agenda.first()
            if due is not None and due[0] == later[0] > now:
                break
            self._stand(later[1])
        while (ready := self._ready.first()) is not None:
            due = ready[1].agenda.first()
            if due is not None and due[0] <= now:
                return ready[1]
            self._stand(ready[1])
        return None
