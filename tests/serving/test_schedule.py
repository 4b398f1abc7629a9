"""Whose turn it is: nothing is lost or doubled; order, batches, deadlines, shares, in any order of calls."""

from __future__ import annotations

import pickle
import random
from collections import Counter
from typing import Any

import pytest
from draws import draws
from hypothesis import HealthCheck, Phase
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from orthrus.errors import NotFound
from orthrus.serving.schedule import Batch, Refused, State, Ticket, Turns
from orthrus.serving.service_time import ServiceTime

NAMES = ("a", "b", "c")
STEPS = st.sampled_from((0.0, 0.0, 0.001, 0.01, 0.25, 3.0))


class Calls(RuleBasedStateMachine):
    """Any calls in any order, beside a list of what has to hold."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.turns = Turns(2)
        self.limits = dict[str, tuple[int, float]]()
        self.waiting = list[Ticket]()
        self.running = list[Batch]()
        self.gone = Counter[Any]()
        self.taken = 0

    def leave(self, ticket: Ticket, state: State) -> None:
        assert ticket in self.waiting and ticket.state is state
        self.waiting.remove(ticket)
        self.gone[ticket.payload] += 1

    @rule(name=st.sampled_from(NAMES), weight=st.sampled_from((0.5, 1.0, 8.0)), max_batch=st.integers(1, 5),
          max_delay=st.sampled_from((0.0, 0.01, 0.5)), goal=st.sampled_from((None, 0.02, 1.0)),
          max_queue=st.sampled_from((1, 3, 1000)))
    def add(self, name: str, weight: float, max_batch: int, max_delay: float, goal: float | None,
            max_queue: int) -> None:
        if name in self.limits:
            with pytest.raises(ValueError, match="remove it first"):
                self.turns.add(name)
            return
        self.turns.add(name, weight, max_batch, max_delay, goal, max_queue)
        self.limits[name] = max_batch, max_delay

    @precondition(lambda self: self.limits)
    @rule(data=st.data(), rows=st.integers(1, 7), key=st.sampled_from("xy"),
          within=st.sampled_from((None, None, 0.0, 0.01, 0.3, 5.0)))
    def submit(self, data: Any, rows: int, key: str, within: float | None) -> None:
        name = data.draw(st.sampled_from(sorted(self.limits)))
        self.expire()
        try:
            deadline = None if within is None else self.now + within
            ticket = self.turns.submit(name, rows, self.now, deadline, key, self.taken)
        except Refused as refused:
            assert refused.retry_after >= 0 and refused.kind in ("full", "late")
            return
        assert within != 0.0, "its deadline had passed"
        self.taken += 1
        self.waiting.append(ticket)

    @rule(step=STEPS)
    def pass_time(self, step: float) -> None:
        self.now += step

    @rule()
    def expire(self) -> None:
        for ticket in self.turns.expired(self.now):
            assert ticket.deadline is not None and ticket.deadline <= self.now
            self.leave(ticket, State.EXPIRED)
        assert all(t.deadline is None or t.deadline > self.now for t in self.waiting)

    def due(self) -> bool:
        """Whether a batch may not wait any longer: full, or its first request has waited long enough."""
        rows = Counter[tuple[str, Any]]()
        for ticket in self.waiting:
            if ticket.name in self.limits:
                rows[ticket.name, ticket.key] += ticket.rows
                max_batch, max_delay = self.limits[ticket.name]
                if rows[ticket.name, ticket.key] >= max_batch or self.now >= ticket.arrived + max_delay:
                    return True
        return False

    @rule()
    def take(self) -> None:
        self.expire()
        wake = self.turns.wake_at(self.now)
        batch = self.turns.next(self.now)
        if batch is None:
            assert len(self.running) == 2 or not self.due(), "a slot is free, and a batch is due"
            assert wake is None or wake > self.now
            if wake is not None:
                assert wake <= min((t.deadline for t in self.waiting if t.deadline is not None), default=wake)
            return
        assert len(self.running) < 2 and wake == self.now
        same = [t for t in self.waiting if (t.name, t.key) == (batch.name, batch.key)]
        assert batch.tickets == same[:len(batch.tickets)], "in the order they came in"
        assert batch.rows == sum(t.rows for t in batch.tickets)
        limit = self.limits[batch.name][0]
        assert batch.rows <= limit or len(batch.tickets) == 1
        if len(same) > len(batch.tickets):
            assert batch.rows + same[len(batch.tickets)].rows > limit, "the next one would have gone in"
        for ticket in batch.tickets:
            self.leave(ticket, State.RUNNING)
            assert not self.turns.cancel(ticket)
        self.running.append(batch)

    @rule()
    def wait_until_something_is_due(self) -> None:
        self.expire()
        wake = self.turns.wake_at(self.now)
        if wake is None:
            assert len(self.running) == 2 or not self.waiting
            return
        self.now = wake
        assert self.turns.wake_at(wake) == wake
        before = len(self.waiting)
        self.expire()
        self.take()
        assert len(self.waiting) < before or self.turns.wake_at(wake) != wake

    @precondition(lambda self: self.running)
    @rule(data=st.data(), ok=st.booleans())
    def finish(self, data: Any, ok: bool) -> None:
        batch = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
        self.turns.finished(batch, self.now, ok)
        assert all(ticket.state is State.DONE for ticket in batch.tickets)
        with pytest.raises(ValueError, match="finished before"):
            self.turns.finished(batch, self.now)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def cancel(self, data: Any) -> None:
        self.expire()
        if self.waiting:
            ticket = data.draw(st.sampled_from(self.waiting))
            assert self.turns.cancel(ticket) and not self.turns.cancel(ticket)
            self.leave(ticket, State.CANCELLED)

    @precondition(lambda self: self.limits)
    @rule(data=st.data())
    def remove(self, data: Any) -> None:
        name = data.draw(st.sampled_from(sorted(self.limits)))
        self.expire()
        left = self.turns.remove(name)
        assert left == [ticket for ticket in self.waiting if ticket.name == name]
        for ticket in left:
            self.leave(ticket, State.REMOVED)
        del self.limits[name]
        with pytest.raises(NotFound, match=name):
            self.turns.submit(name, 1, self.now)

    @invariant()
    def nothing_is_lost_or_doubled(self) -> None:
        assert all(times == 1 for times in self.gone.values())
        assert len(self.gone) + len(self.waiting) == self.taken
        assert self.turns.running == len(self.running)
        counters = self.turns.counters()
        expired = sum(t.state is State.EXPIRED for t in self.waiting)
        assert sum(c.waiting for c in counters.values()) == len(self.waiting) - expired

    def teardown(self) -> None:
        """All that is left leaves, with nothing but time and free slots."""
        for _ in range(3 * self.taken + 3):
            for batch in self.running:
                self.turns.finished(batch, self.now)
            self.running.clear()
            self.expire()
            while self.turns.running < 2 and self.due():
                self.take()
            wake = self.turns.wake_at(self.now)
            self.now = self.now if wake is None else wake
        assert not self.waiting and len(self.gone) == self.taken


def test_any_calls_in_any_order() -> None:
    """Histories of forty calls each."""
    run_state_machine_as_test(Calls, settings=draws(
        200, stateful_step_count=40, phases=[Phase.generate], suppress_health_check=list(HealthCheck)))


def test_a_removed_models_requests_come_back_in_their_order_at_equal_times() -> None:
    turns = Turns(1)
    turns.add("a")
    tickets = [turns.submit("a", 1, 0.0, key=key) for key in "xyx"]
    assert turns.remove("a") == tickets


def backlog(turns: Turns, seconds: dict[str, float], until: float, slots: int) -> dict[str, float]:
    """The time each model had on the slots while all of them had something waiting."""
    now, running, had = 0.0, list[tuple[float, int, Batch]](), dict.fromkeys(seconds, 0.0)
    serial = 0
    while now < until:
        for name in seconds:
            while turns.counters()[name].waiting < 4:
                turns.submit(name, 1, now)
        while (batch := turns.next(now)) is not None:
            serial += 1
            running.append((now + seconds[batch.name], serial, batch))
        assert len(running) == slots, "a slot is free while requests wait"
        running.sort()
        now, _, batch = running.pop(0)
        turns.finished(batch, now)
        had[batch.name] += seconds[batch.name]
    return had


@pytest.mark.parametrize("slots", (1, 2, 3))
def test_shares_are_by_weight(slots: int) -> None:
    draw = random.Random(slots)
    for _ in range(20):
        weights = {name: draw.choice((0.5, 1.0, 2.0, 7.0)) for name in NAMES}
        seconds = {name: draw.choice((0.001, 0.01, 0.03)) for name in NAMES}
        turns = Turns(slots)
        for name, weight in weights.items():
            turns.add(name, weight)
        had = backlog(turns, seconds, 2.0, slots)
        served = {name: had[name] / weights[name] for name in NAMES}
        for one in NAMES:
            for other in NAMES:
                bound = (slots + 1) * (seconds[one] / weights[one] + seconds[other] / weights[other])
                assert abs(served[one] - served[other]) <= bound, (weights, seconds, had)


def test_an_idle_model_saves_nothing_up() -> None:
    turns = Turns(1)
    turns.add("a")
    turns.add("b")
    backlog_of_a, now = 0, 0.0
    for _ in range(500):
        turns.submit("a", 1, now)
        batch = turns.next(now)
        assert batch is not None
        now += 0.01
        turns.finished(batch, now)
    order = []
    for _ in range(20):
        turns.submit("a", 1, now)
        turns.submit("b", 1, now)
    for _ in range(20):
        batch = turns.next(now)
        assert batch is not None
        order.append(batch.name)
        backlog_of_a += batch.name == "a"
        now += 0.01
        turns.finished(batch, now)
    assert 9 <= backlog_of_a <= 11, order


def test_turns_go_round_where_the_clock_stands_still() -> None:
    turns = Turns(1)
    for name in NAMES:
        turns.add(name)
        for _ in range(10):
            turns.submit(name, 1, 7.0)
    order = []
    while (batch := turns.next(7.0)) is not None:
        order.append(batch.name)
        turns.finished(batch, 7.0)
    assert len(order) == 30 and all(set(order[i:i + 3]) == set(NAMES) for i in range(0, 30, 3))


def test_a_clock_that_goes_back_stands_still() -> None:
    turns = Turns(1)
    turns.add("a", max_delay=1.0, max_batch=2)
    turns.submit("a", 1, 5.0)
    assert turns.next(2.0) is None and turns.wake_at(2.0) == 6.0
    assert turns.next(6.0) is not None


def test_a_seldom_key_is_not_starved() -> None:
    """Full batches of one key never end; the other's only request goes once its delay is over."""
    turns, now = Turns(1), 0.0
    turns.add("a", max_batch=2, max_delay=0.05)
    seldom = turns.submit("a", 1, now, key="seldom")
    while seldom.state is State.WAITING:
        for _ in range(4):
            if turns.counters()["a"].waiting < 20:
                turns.submit("a", 1, now, key="often")
        batch = turns.next(now)
        assert batch is not None and now < 0.2
        now += 0.01
        turns.finished(batch, now)


def test_a_deadline_shortens_the_wait_for_more_rows() -> None:
    turns = Turns(1)
    turns.add("a", max_batch=8, max_delay=1.0, goal=0.1)
    for _ in range(10):
        turns.measured("a", 1, 0.01)
    turns.submit("a", 1, 0.0)
    wake = turns.wake_at(0.0)
    assert wake is not None and 0.05 < wake < 0.09
    assert turns.next(wake) is not None


def test_who_can_not_make_it_is_refused_at_once() -> None:
    turns = Turns(1)
    turns.add("a", goal=0.1)
    for _ in range(100):
        turns.measured("a", 1, 0.03)
    turns.submit("a", 1, 0.0)
    batch = turns.next(0.0)
    turns.submit("a", 1, 0.0)
    turns.submit("a", 1, 0.0)
    with pytest.raises(Refused, match="until the answer") as refused:
        turns.submit("a", 1, 0.0)
    assert refused.value.kind == "late" and 0.015 < refused.value.retry_after < 0.04
    assert pickle.loads(pickle.dumps(refused.value)).retry_after == refused.value.retry_after
    turns.overhead = 0.04
    assert batch is not None
    turns.finished(batch, 0.03)
    with pytest.raises(Refused):
        turns.submit("a", 1, 0.03)
    turns.overhead = 0.0
    turns.submit("a", 1, 0.03)
    assert turns.counters()["a"].refused_late == 2


def test_a_slow_run_does_not_close_a_model() -> None:
    """By the estimate no request could ever be in time; one at a time is let in, and corrects it."""
    turns, now = Turns(1), 0.0
    turns.add("a", goal=0.1)
    turns.measured("a", 1, 30.0)
    turns.overhead = 5.0
    for _ in range(200):
        turns.submit("a", 1, now)
        batch = turns.next(now)
        assert batch is not None
        now += 0.001
        turns.finished(batch, now)
    turns.overhead = 0.0
    assert turns.estimate("a", 1, now) < 0.1


def test_a_queue_has_an_end() -> None:
    turns = Turns(1)
    turns.add("a", max_queue=3)
    for _ in range(3):
        turns.submit("a", 1, 0.0)
    with pytest.raises(Refused, match="3 requests wait") as refused:
        turns.submit("a", 1, 0.0)
    assert refused.value.kind == "full"


def test_the_estimate_is_what_then_happens() -> None:
    """Service times that never vary: who is let in is in time, and yet the slots are full."""
    draw = random.Random(3)
    for slots, max_batch in ((1, 1), (1, 4), (2, 1), (2, 4), (3, 8)):
        turns, now, running, late = Turns(slots), 0.0, list[tuple[float, int, Batch]](), 0
        turns.add("a", max_batch=max_batch, goal=0.1)
        for rows in (*range(1, max_batch + 1), 1) * 60:
            turns.measured("a", rows, 0.01 + 0.001 * rows)
        arrivals = [draw.expovariate(3 * slots * max_batch / (0.01 + 0.001 * max_batch)) for _ in range(2000)]
        done = refused = 0
        for index, gap in enumerate(arrivals):
            until = now + gap
            while running and min(running)[0] <= until:
                running.sort()
                now, _, batch = running.pop(0)
                turns.finished(batch, now)
                done += len(batch.tickets)
                late += sum(now > t.arrived + 0.1 + 1e-9 for t in batch.tickets)
                while (batch_ := turns.next(now)) is not None:
                    running.append((now + 0.01 + 0.001 * batch_.rows, index, batch_))
            now = until
            try:
                turns.submit("a", 1, now)
            except Refused:
                refused += 1
            while (batch_ := turns.next(now)) is not None:
                running.append((now + 0.01 + 0.001 * batch_.rows, index, batch_))
        assert not late and not turns.expired(now)
        assert done >= 0.9 * now * slots * max_batch / (0.01 + 0.001 * max_batch), "slots are full"
        assert refused > 1000


def test_memory_is_bounded_by_what_waits() -> None:
    """Requests that come and are cancelled leave nothing behind, though one before them goes on waiting."""
    turns = Turns(1)
    turns.add("a", max_batch=4, max_delay=1e6)
    turns.submit("a", 1, 0.0, deadline=1e6)
    for _ in range(5000):
        assert turns.cancel(turns.submit("a", 1, 0.0, deadline=1e6))
    model = turns._models["a"]
    sizes = (model.agenda._heap, turns._deadlines._heap, turns._later._heap, turns._ready._heap,
             model.groups[None].tickets)
    assert all(len(each) <= 128 for each in sizes), [len(each) for each in sizes]


@pytest.mark.parametrize(("wrong", "text"), (
    ({"weight": 0}, "weight"), ({"weight": float("nan")}, "weight"), ({"max_batch": 0}, "max_batch"),
    ({"max_delay": -1}, "max_delay"), ({"goal": 0}, "goal"), ({"max_queue": 0}, "max_queue")))
def test_what_is_out_of_range_is_named(wrong: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Turns(1).add("a", **wrong)
    with pytest.raises(ValueError, match="slots"):
        Turns(0)


def test_service_times_are_a_line_over_rows() -> None:
    draw, service = random.Random(5), ServiceTime()
    assert service.mean(8) == 0
    for _ in range(200):
        rows = draw.randint(1, 16)
        service.measured(rows, (0.01 + 0.002 * rows) * draw.uniform(0.95, 1.05))
    assert service.mean(1) == pytest.approx(0.012, rel=0.1)
    assert service.mean(16) == pytest.approx(0.042, rel=0.1)
    assert 0 < service.margin() < 0.01
    for _ in range(400):
        service.measured(4, 0.001)
    assert service.mean(4) == pytest.approx(0.001, rel=0.01) and service.mean(8) >= service.mean(4)
