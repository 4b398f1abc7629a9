"""Plans of capacity: as few machines as theory allows, what is asked is kept, what can't be is said."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from orthrus.demo import MODEL
from orthrus.serving.measure import measure
from orthrus.serving.plan import bunched, plan
from orthrus.serving.simulate import Service
from orthrus.tools.cli.main import app
from orthrus.tools.cli.plan_capacity import seconds_of

CONSTANT = Service({1: 0.01})


@pytest.mark.slow
def test_the_fewest_machines_that_keep_the_latency() -> None:
    """M/M/1: p99 is s / (1 - load) * ln 100, which gives the load that a machine may have."""
    service = Service({1: 0.01}, "exponential")
    found = plan(service, 1000, 0.25, max_batch=1, overhead=0)
    load = 1 - 0.01 * 4.605 / 0.25
    assert found.chosen.machines == pytest.approx(1000 * 0.01 / load, abs=2)
    assert found.chosen.simulated.total.quantile(0.99) <= 0.25
    assert found.one_down is not None and found.admission.total.late <= 0.01 * found.admission.total.arrived


@pytest.mark.slow
def test_batches_save_machines() -> None:
    service = Service({1: 0.004, 8: 0.008})
    alone, batched = (plan(service, 3000, 0.05, max_batch=size).chosen for size in (1, 8))
    assert alone.machines >= 13 and batched.machines <= 5 and batched.max_batch > 1


@pytest.mark.slow
def test_bunches_need_more_machines() -> None:
    steady, together = (plan(CONSTANT, 500, 0.05, 1, **more).chosen.machines
                       for more in ({}, {"arrivals": bunched(10)}))
    assert together > steady >= 6


@pytest.mark.slow
def test_slots_beside_each_other_need_fewer_machines() -> None:
    one, four = (plan(CONSTANT, 1000, 0.05, 1, slots=slots).chosen.machines for slots in (1, 4))
    assert four <= one / 4


@pytest.mark.slow
def test_the_thread_that_reads_can_be_what_is_short() -> None:
    assert plan(Service({1: 1e-5}), 10_000, 0.02, 1, slots=8, overhead=1e-3).chosen.machines >= 11


@pytest.mark.slow
def test_what_no_machines_can_keep_is_said() -> None:
    with pytest.raises(ValueError, match="a request alone takes 0.0101 s"):
        plan(CONSTANT, 10, 0.005)
    with pytest.raises(ValueError, match="the longest more than"):
        plan(Service({1: 0.01}, (0.5, 9.0)), 10, 0.05)
    with pytest.raises(ValueError, match="need more than"):
        plan(CONSTANT, 1e12, 1.0)
    with pytest.raises(ValueError, match="rate is 0; p99 is -1"):
        plan(CONSTANT, 0, -1)


def test_measured_times_are_those_of_the_function() -> None:
    """What sleeps twice as long is found to, on as many threads at once as there are slots."""
    most, here, lock = 0, 0, threading.Lock()

    def run(rows: int) -> None:
        nonlocal most, here
        with lock:
            here += 1
            most = max(most, here)
        time.sleep(0.002 * rows)
        with lock:
            here -= 1

    found = measure(run, (1, 8), slots=3, seconds=0.0)
    assert found.seconds[8] > 2 * found.seconds[1] >= 0.004 and most == 3
    assert len(found.spread) == 30


@pytest.mark.slow
def test_the_command_plans_from_times(tmp_path: Path) -> None:
    (tmp_path / "times.json").write_text(json.dumps({"1": 0.004, "8": "12ms"}))
    shown = [CliRunner().invoke(app, ["plan-capacity", "--rate", "900", "--p99", "40ms", "--cores", "1",
                                      "--max-batch", "8", *more])
             for more in (["--service", "1=4ms,8=12ms"],
                          ["--service", str(tmp_path / "times.json"), "--json"])]
    assert [each.exit_code for each in shown] == [0, 0], shown
    assert "2 machines of 1 slot: --max-batch 8" in shown[0].output
    found = json.loads(shown[1].output)
    assert found["machines"] == 2 and found["chosen"]["p99"] <= 0.04
    assert found["service"] == {"1": 0.004, "8": 0.012}


@pytest.mark.slow
def test_the_command_plans_from_a_model() -> None:
    measured = CliRunner().invoke(app, ["plan-capacity", "--rate", "10", "--p99", "5s", "--model", str(MODEL),
                                        "--max-batch", "2", "--seconds", "0", "--json"])
    assert measured.exit_code == 0 and set(json.loads(measured.output)["service"]) == {"1", "2"}


@pytest.mark.parametrize(("arguments", "text"), (
    (["--p99", "40 parsecs", "--service", "1=1ms"], "expected a time"), (["--p99", "1s"], "either MODEL"),
    (["--p99", "1s", "--service", "1=x"], "expected ROWS=TIME"),
    (["--p99", "1s", "--service", "0=1ms"], "from 1"),
    (["--p99", "1s", "--service", "1=1ms", "--arrivals", "bursts:x"], "expected poisson"),
    (["--p99", "1s", "--service", "1=1ms", "--cores", "2", "--threads", "3"], "--threads 3"),
    (["--p99", "1ms", "--service", "1=4ms"], "no number of machines")))
def test_mistakes_are_told_on_one_screen(arguments: list[str], text: str) -> None:
    found = CliRunner().invoke(app, ["plan-capacity", "--rate", "5", *arguments])
    assert found.exit_code == 1 and text in " ".join(found.output.split())


def test_times_have_units() -> None:
    texts = ("50ms", "3us", "0.5s", "2", "1e-3 s")
    assert [seconds_of(text, "") for text in texts] == [0.05, 3e-6, 0.5, 2, 1e-3]
