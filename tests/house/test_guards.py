"""Results that depend neither on what lay in memory before, nor on the number of threads, nor on which
instructions the processor has. `guards.py` says how each subject is run, and runs all that the tests leave
out."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable
from typing import Any
from unittest import mock

import numpy as np
import pytest
from graphs import info
from guards import (
    MACHINES,
    NUMPY,
    RUNS,
    Subject,
    by_numpy,
    conformance,
    examine,
    graphs,
    guarded,
    on,
    samples,
    trained,
)
from skips import needs
from small_networks import SWEEPS, Net

import orthrus as ort
from fuzz.graphs import apart
from orthrus.codegen.machines.detect import host
from orthrus.codegen.object import library
from orthrus.lowering import device, instance, native, shaped_part

HOST = host() if library.available() is None else None
GENERATES = needs("generated code")
LIMIT = 5e-5
"""Difference from numpy, in parts of the largest value, that the matrix unit may make."""


def _has(name: str) -> bool:
    asked = set(MACHINES[name].features) - {"sse2"}
    return HOST is not None and HOST.arch == "x86_64" and asked <= set(HOST.features)


KERNELS = [pytest.param("host", marks=GENERATES),
           *(pytest.param(name, marks=[
               pytest.mark.skipif(not _has(name), reason=f"the processor here has no {name}"),
               *[pytest.mark.thorough][:name == "sse2"]]) for name in MACHINES)]
SHARES = {"host": (0, 2), "avx2": (1, 4), "sse2": (3, 4), "numpy": (0, 4)}
"""First and step of each target's share of cases: one target with generated code or another has each."""

slow = pytest.mark.slow


def share(subjects: Iterable[Subject], target: str) -> Iterable[Subject]:
    first, step = SHARES[target]
    return itertools.islice(subjects, first, None, step)


def check(subjects: Iterable[Subject], target: str) -> None:
    """Fail with all that is wrong with the results of `subjects`."""
    count, faults = 0, []
    with on(target), guarded() as guard:
        for subject in subjects:
            count += 1
            faults += examine(subject, guard)
    assert count
    assert not faults, f"{len(faults)} in {count} subjects:\n" + "\n".join(faults)
    assert (guard.parts == 0) == (target == "numpy")
    assert target == "numpy" or guard.divided >= guard.parts / 2 > 0


@slow
@pytest.mark.parametrize("target", [*KERNELS, "numpy"])
def test_test_data_of_onnx(target: str) -> None:
    """Of ONNX's backend test data the first and the last node case of each operator, and all networks, but
    no expanded functions: 529 of 2,036 cases, divided over the targets, since each has to be compiled."""
    check(share(conformance(), target), target)


@slow
@pytest.mark.parametrize("target", [*KERNELS, "numpy"])
def test_samples_of_operators(target: str) -> None:
    """The first of each operator's samples in each type, divided over the targets."""
    check(share(samples(), target), target)


@slow
@pytest.mark.parametrize("target", [*KERNELS, "numpy"])
def test_random_graphs(target: str) -> None:
    """Sixty graphs of `fuzz/graphs.py`, divided over the targets."""
    check(share(graphs(), target), target)


@slow
@needs("models")
@pytest.mark.parametrize("target", KERNELS)
def test_trained_models(target: str) -> None:
    """The trained models that are there, with all their cases: each on this processor, and on one of the
    others."""
    found = trained()
    check(found if target == "host" else found[target == "sse2"::2], target)


@slow
@pytest.mark.parametrize("target", KERNELS)
@pytest.mark.parametrize("name", SWEEPS)
def test_sizes(name: str, target: str) -> None:
    """More sizes than a part keeps plans for, mixed, in one session, and the first ones again at the end;
    each against numpy. Of some eighty sizes each target draws others."""
    make, feeds_of, sizes = SWEEPS[name]
    count, kept = (24, 16) if target == "host" else (10, 6)
    chosen = random.Random(target).sample(sizes, count)
    data, rng = make(), np.random.default_rng(0)
    feeds = [feeds_of(rng, *size) for size in (*chosen, *chosen[:5])]
    plain = ort.InferenceSession(data, providers=[NUMPY])

    def judge(i: int, got: list[Any]) -> str | None:
        return apart(got, plain.run(None, feeds[i]), LIMIT)
    with on(target), guarded() as guard, mock.patch.object(shaped_part, "PLANS", kept):
        faults = examine(Subject(name, data, feeds, judge), guard)
    assert not faults, "\n".join(faults)
    assert guard.parts >= len(RUNS) * len(feeds), "not all of it was compiled"


def two_steps() -> Subject:
    """The largest values of rows, after a product: a maximum does not let NaN through that is not there, and
    the product is a step of its own."""
    n = Net()
    y = n("ReduceMax", n("Softmax", n("MatMul", "x", n.weight(40, 24))), np.array([0]), keepdims=0)
    feeds = [{"x": np.random.default_rng(0).standard_normal((9, 40)).astype(np.float32)}]
    data = n.model([info("x", shape=["n", 40])], [y])
    return Subject("two steps", data, feeds, by_numpy(data, feeds))


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Has a defect put into every step table: `change(table, threads)`."""
    def plant(change: Callable[[np.ndarray, int], None]) -> None:
        make = instance.Instance.__init__

        def made(instance: Any, plan: Any) -> None:
            with mock.patch.object(device.entry, "make", lambda block: None):
                make(instance, plan)
            change(instance.table, plan.code.threads)
            instance.parts = [(instance.program(0, len(instance.table)), None)]
        monkeypatch.setattr(instance.Instance, "__init__", made)
    return plant


@GENERATES
def test_a_value_that_is_not_written_is_seen(planted: Callable[..., None]) -> None:
    def skip_the_first(table: np.ndarray, threads: int) -> None:
        assert len(table) > 1
        table[0, 2] = 0
    with guarded() as guard:
        assert examine(two_steps(), guard) == []
    planted(skip_the_first)
    with guarded() as guard:
        faults = examine(two_steps(), guard)
    assert "byte 0xff, threads 1" in faults[0] and any("byte 0x7f" in fault for fault in faults)


@GENERATES
def test_an_output_that_is_not_written_is_seen(planted: Callable[..., None]) -> None:
    def leave_the_last(table: np.ndarray, threads: int) -> None:
        table[-1, 2] = 0
    planted(leave_the_last)
    with guarded() as guard:
        assert any("byte 0x7f, threads 2: output 0" in fault for fault in examine(two_steps(), guard))


@GENERATES
def test_a_result_that_depends_on_threads_is_seen(planted: Callable[..., None]) -> None:
    def lose_an_item(table: np.ndarray, threads: int) -> None:
        assert (table[:, 3] == 1).all()
        table[0, 2] -= threads == 2
    planted(lose_an_item)
    with guarded() as guard:
        (fault,) = examine(two_steps(), guard)
    assert "byte 0x7f, threads 2: output 0 is not that of the first run" in fault


@pytest.mark.parametrize("target", [*KERNELS, "numpy"])
def test_the_machine_is_the_one_asked_for(target: str) -> None:
    found, make = [], native.Native.__init__

    def made(self: Any, part: Any, given: Any, *rest: Any) -> None:
        found.append(given.machine)
        make(self, part, given, *rest)
    with mock.patch.object(native.Native, "__init__", made):
        check([two_steps()], target)
    assert found == {"host": [HOST], "numpy": []}.get(target, [MACHINES.get(target)])


@GENERATES
def test_nothing_of_it_stays() -> None:
    before = np.empty, instance.Plan.take, instance.Plan.give, host()
    with on("sse2"), guarded():
        assert np.isnan(np.empty(3)).all() and (np.empty_like(np.zeros((2, 3), np.int8).T) == -1).all()
    assert before == (np.empty, instance.Plan.take, instance.Plan.give, host())
