"""The simulator beside what queueing theory says in closed form, and beside what must hold for any load."""

from __future__ import annotations

from math import factorial, log

import pytest

from orthrus.serving.simulate import (
    Service,
    Simulated,
    Stream,
    bursts,
    constant,
    poisson,
    recorded,
    simulate,
)

pytestmark = pytest.mark.slow
SECONDS = 0.01
EXPONENTIAL = Service({1: SECONDS}, "exponential")
CONSTANT = Service({1: SECONDS})


def queue(rate: float, service: Service, slots: int = 1, requests: int = 20_000) -> Simulated:
    return simulate([Stream(poisson(rate), service, max_queue=100_000)], slots, requests=requests, seed=4)


@pytest.mark.parametrize("slots", (1, 3))
@pytest.mark.parametrize("beside", (0.0, 0.001))
@pytest.mark.parametrize("shared", (True, False))
def test_the_front_takes_the_time_of_the_slots(slots: int, beside: float, shared: bool) -> None:
    """Where all slots are at work, a request costs them its run, what the front takes and what others do."""
    found = simulate([Stream(constant(2 * slots / SECONDS), CONSTANT, max_queue=100_000)], slots,
                     requests=4_000, overhead=0.002, shared=shared, beside=beside, warmup=0.0)
    costs = SECONDS + 0.002 * shared + beside
    late = [simulate([Stream(constant(slots / SECONDS / 8), CONSTANT)], slots, requests=500, overhead=0.002,
                     shared=each, beside=beside).total.quantile(0.99) for each in (shared, False)]
    assert found.total.throughput == pytest.approx(slots / costs, rel=0.03)
    assert late[0] == pytest.approx(late[1], rel=0.05), "an idle core takes nothing of a batch"


def test_slow_times_in_a_row_make_longer_queues() -> None:
    """The same factors: one by one, or as they follow each other."""
    spread = (1.0,) * 60 + (2.5,) * 20
    apart, together = (queue(0.65 / SECONDS, Service({1: SECONDS}, spread, stretch), requests=30_000)
                       for stretch in (1, 40))
    assert together.utilization == pytest.approx(apart.utilization, rel=0.05)
    assert together.total.quantile(0.99) > 1.5 * apart.total.quantile(0.99)


def erlang_c(offered: float, slots: int) -> float:
    """The chance that all of `slots` are taken (M/M/c)."""
    last = offered**slots / factorial(slots) * slots / (slots - offered)
    return last / (sum(offered**k / factorial(k) for k in range(slots)) + last)


@pytest.mark.parametrize("load", (0.3, 0.7, 0.85))
def test_one_slot_and_exponential_times(load: float) -> None:
    """M/M/1: latency is exponential with mean s / (1 - load)."""
    found = queue(load / SECONDS, EXPONENTIAL)
    mean = SECONDS / (1 - load)
    assert found.total.mean == pytest.approx(mean, rel=0.1)
    assert found.utilization == pytest.approx(load, rel=0.03)
    for share in (0.5, 0.9, 0.99):
        assert found.total.quantile(share) == pytest.approx(-log(1 - share) * mean, rel=0.15)


@pytest.mark.parametrize("load", (0.3, 0.7, 0.85))
def test_one_slot_and_constant_times(load: float) -> None:
    """M/D/1: the mean wait is half of M/M/1's (Pollaczek and Khinchine)."""
    found = queue(load / SECONDS, CONSTANT)
    assert found.total.mean == pytest.approx(SECONDS + load * SECONDS / (2 * (1 - load)), rel=0.08)


@pytest.mark.parametrize("slots", (2, 5))
@pytest.mark.parametrize("load", (0.5, 0.8))
def test_several_slots_and_exponential_times(slots: int, load: float) -> None:
    """M/M/c: the mean wait is Erlang's C times s / (c - offered)."""
    found = queue(load * slots / SECONDS, EXPONENTIAL, slots)
    wait = erlang_c(load * slots, slots) * SECONDS / (slots - load * slots)
    assert found.total.mean == pytest.approx(SECONDS + wait, rel=0.06)
    assert found.utilization == pytest.approx(load, rel=0.03)


def test_a_full_queue_refuses_as_erlang_says() -> None:
    """M/M/1/K: with room for K the chance of a refusal is (1 - r) r^K / (1 - r^(K + 1))."""
    load, room = 0.9, 5
    found = simulate([Stream(poisson(load / SECONDS), EXPONENTIAL, max_queue=room - 1)], requests=40_000)
    expected = (1 - load) * load**room / (1 - load**(room + 1))
    assert found.total.refused / found.total.arrived == pytest.approx(expected, rel=0.06)


def test_requests_in_step_with_the_slot_never_wait() -> None:
    found = simulate([Stream(constant(0.999 / SECONDS), CONSTANT)], requests=2_000)
    assert found.total.quantile(1.0) == pytest.approx(SECONDS)
    assert found.total.answered == found.total.arrived == 1_800


def test_bursts_wait_for_each_other() -> None:
    steady, bunched = (simulate([Stream(arrivals, CONSTANT)], requests=20_000).total.mean
                       for arrivals in (poisson(30), bursts(30, 10)))
    assert bunched > 4 * steady


def test_batches_carry_what_single_requests_can_not() -> None:
    """16 rows take twice one row's time: in batches, four times the load of one by one is carried."""
    service = Service({1: 0.01, 16: 0.02})
    alone, batched = (simulate([Stream(poisson(400), service, max_batch=size, goal=0.1)], requests=10_000)
                      for size in (1, 16))
    assert alone.total.throughput == pytest.approx(100, rel=0.05) and alone.total.refused > 6_000
    assert batched.total.refused + batched.total.late == 0 and batched.batch > 3
    assert service.mean(31) == pytest.approx(0.03) and service.mean(1) == 0.01


@pytest.mark.parametrize("slots", (1, 2))
def test_overload_keeps_deadlines_and_throughput(slots: int) -> None:
    """Three times what can be carried: as much as can is answered, and in time."""
    service = Service({1: 0.01, 8: 0.03}, (0.8, 0.9, 1.0, 1.1, 1.2))
    capacity = slots * 8 / 0.03
    found = simulate([Stream(poisson(3 * capacity), service, max_batch=8, goal=0.2)], slots, requests=20_000)
    assert found.total.throughput > 0.9 * capacity
    assert found.total.late <= 0.005 * found.total.answered
    assert found.total.quantile(0.99) <= 0.2


def test_models_share_by_weight_in_overload() -> None:
    streams = [Stream(poisson(150), CONSTANT, name, weight=weight, goal=0.5)
               for name, weight in (("heavy", 3.0), ("light", 1.0))]
    found = simulate(streams, requests=20_000)
    assert found.streams["heavy"].answered / found.streams["light"].answered == pytest.approx(3, rel=0.1)


@pytest.mark.parametrize("routing", ("least", "round robin", "random"))
def test_replicas_are_many_machines(routing: str) -> None:
    found = simulate([Stream(poisson(300), EXPONENTIAL, max_queue=100_000)], replicas=5, routing=routing,
                     requests=30_000)
    alone = SECONDS / (1 - 0.6)
    if routing == "random":
        assert found.total.mean == pytest.approx(alone, rel=0.1)
    else:
        assert SECONDS < found.total.mean < 0.9 * alone


def test_the_thread_that_reads_and_writes_is_a_queue_too() -> None:
    """A free slot for each: what is waited for is the front, M/D/1 in the limit of one visit."""
    none, some = (simulate([Stream(poisson(800), CONSTANT)], slots=50, overhead=overhead, requests=20_000)
                  for overhead in (0.0, 0.001))
    assert none.total.mean == pytest.approx(SECONDS)
    assert SECONDS + 0.0015 < some.total.mean < SECONDS + 0.01


def test_a_trace_is_played_again_and_counted_whole() -> None:
    times = [5.0, 5.0, 5.0, 6.0]
    found = simulate([Stream(recorded(times), CONSTANT)], warmup=0)
    assert found.total.latency == pytest.approx([0.01, 0.01, 0.02, 0.03])
    assert found.total.arrived == 4 and found.total.seconds == pytest.approx(1.01)
    assert simulate([Stream(recorded([]), CONSTANT)]).total.plain()["throughput"] == 0
    ended = simulate([Stream(constant(10), CONSTANT)], until=1.0, warmup=0)
    assert ended.total.arrived == 10


def test_equal_arguments_give_equal_results() -> None:
    one, two = (simulate([Stream(bursts(50), EXPONENTIAL, max_batch=4, max_delay=0.01, goal=0.1)], 2, 2,
                         requests=3_000) for _ in range(2))
    assert one == two
    assert one.total.answered + one.total.refused + one.total.late >= one.total.arrived == 2_700


@pytest.mark.parametrize("wrong", (
    lambda: poisson(0), lambda: bursts(5, 0.5), lambda: Service({}), lambda: Service({0: 1.0}),
    lambda: simulate([]), lambda: simulate([Stream(poisson(1), CONSTANT)], replicas=0),
    lambda: simulate([Stream(poisson(1), CONSTANT)], slots=0)))
def test_what_is_out_of_range_is_refused(wrong: object) -> None:
    with pytest.raises(ValueError, match="."):
        wrong()  # type: ignore[operator]
