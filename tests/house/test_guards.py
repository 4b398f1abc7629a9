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
import onnx
import pytest
from graphs import info, model
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
from onnx import TensorProto, helper
from skips import needs

import orthrus as ort
from fuzz.graphs import apart
from orthrus.codegen.machines.detect import host
from orthrus.codegen.object import library
from orthrus.lowering import device, native, plans

HOST = host() if library.available() is None else None
GENERATES = needs("generated code")
LIMIT = 5e-5
"""Difference from numpy, in parts of the largest value, that the matrix unit may make."""


def _has(name: str) -> bool:
    asked = set(MACHINES[name].features) - {"sse2"}
    return HOST is not None and HOST.arch == "x86_64" and asked <= set(HOST.features)


KERNELS = [pytest.param("host", marks=GENERATES),
           *(pytest.param(name, marks=pytest.mark.skipif(not _has(name),
                                                         reason=f"the processor here has no {name}"))
             for name in MACHINES)]
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


class Net:
    """Nodes one after the other; a call adds one and gives the name of what it makes."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, np.ndarray] = {}
        self.rng = np.random.default_rng(7)

    def __call__(self, op: str, *inputs: Any, **attrs: Any) -> str:
        names = [x if isinstance(x, str) else self.constant(x) for x in inputs]
        out = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, names, [out], **attrs))
        return out

    def constant(self, array: Any) -> str:
        name = f"w{len(self.weights)}"
        self.weights[name] = np.asarray(array)
        return name

    def weight(self, *shape: int) -> str:
        scale = 1 / np.sqrt(max(np.prod(shape[1:]), 1))
        return self.constant((self.rng.standard_normal(shape) * scale).astype(np.float32))

    def model(self, inputs: list[Any], outputs: list[str]) -> bytes:
        made = model(self.nodes, inputs, [info(name, shape=None) for name in outputs], self.weights)
        data: bytes = made.SerializeToString()
        return data


def transformer() -> bytes:
    """Two blocks over token ids [batch, time] with a mask, 4 heads of 16."""
    n = Net()
    x = n("Gather", n.weight(50, 64), "ids")
    mask = n("Mul", n("Sub", np.float32(1), n("Unsqueeze", "mask", np.array([1, 2]))), np.float32(-1e4))
    for _ in range(2):
        heads = []
        for axes in ((0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3)):
            made = n("Add", n("MatMul", x, n.weight(64, 64)), n.weight(64))
            heads.append(n("Transpose", n("Reshape", made, np.array([0, 0, 4, 16])), perm=axes))
        scores = n("Add", n("Div", n("MatMul", heads[0], heads[1]), np.float32(4)), mask)
        read = n("Transpose", n("MatMul", n("Softmax", scores), heads[2]), perm=(0, 2, 1, 3))
        x = _normal(n, n("Add", x, n("MatMul", n("Reshape", read, np.array([0, 0, 64])), n.weight(64, 64))))
        wide = n("Add", n("MatMul", x, n.weight(64, 128)), n.weight(128))
        curve = n("Add", n("Erf", n("Div", wide, np.float32(2 ** 0.5))), np.float32(1))
        wide = n("Mul", n("Mul", wide, curve), np.float32(0.5))
        x = _normal(n, n("Add", n("MatMul", wide, n.weight(128, 64)), x))
    first = n("Tanh", n("Gemm", n("Gather", x, np.array(0), axis=1), n.weight(64, 64)))
    mean = n("ReduceMean", x, np.array([1]), keepdims=0)
    return n.model([info("ids", TensorProto.INT64, ["batch", "time"]), info("mask", shape=["batch", "time"])],
                   [x, first, mean])


def _normal(n: Net, x: str) -> str:
    return n("LayerNormalization", x, n.weight(64), n.weight(64))


def network() -> bytes:
    """Convolutions of every kind over images of any size: dense, strided, depthwise, grouped and transposed,
    with a skip connection, pools and a classifier."""
    n = Net()
    x = _scaled(n, n("Conv", "x", n.weight(16, 3, 3, 3), n.weight(16), pads=[1] * 4, strides=[2, 2]), 16)
    x = n("Relu", x)
    y = n("Clip", n("Conv", x, n.weight(16, 1, 3, 3), group=16, pads=[1] * 4), np.float32(0), np.float32(6))
    y = n("Conv", y, n.weight(16, 16, 1, 1), n.weight(16))
    x = n("Relu", n("Add", x, y))
    y = n("Conv", x, n.weight(24, 16, 3, 3), n.weight(24), pads=[1] * 4)
    y = n("Mul", y, n("Sigmoid", y))
    half = n("MaxPool", y, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    half = n("LeakyRelu", n("Conv", half, n.weight(24, 6, 5, 5), group=4, pads=[2] * 4))
    back = n("ConvTranspose", half, n.weight(24, 8, 2, 2), strides=[2, 2])
    flat = n("Concat", n("GlobalAveragePool", half), n("GlobalMaxPool", y), axis=1)
    logits = n("Softmax", n("Gemm", n("Flatten", flat), n.weight(48, 10), n.weight(10)))
    thin = n("Resize", n("AveragePool", y, kernel_shape=[2, 2], pads=[0, 0, 1, 1]), "",
             np.array([1, 1, 2, 2], np.float32), mode="nearest")
    return n.model([info("x", shape=["batch", 3, "height", "width"])], [back, logits, thin])


def _scaled(n: Net, x: str, channels: int) -> str:
    one = n.constant(np.ones(channels, np.float32))
    return n("BatchNormalization", x, one, n.weight(channels), n.weight(channels), one)


def recurrence() -> bytes:
    """A GRU both ways and an LSTM over [time, batch, 12], with a convolution before them."""
    n = Net()
    x = n("Conv", n("Transpose", "x", perm=(1, 2, 0)), n.weight(20, 12, 3), n.weight(20), pads=[1, 1])
    x = n("Transpose", n("Relu", x), perm=(2, 0, 1))
    x = n("GRU", x, n.weight(2, 48, 20), n.weight(2, 48, 16), n.weight(2, 96), hidden_size=16,
          direction="bidirectional")
    x = n("Reshape", n("Transpose", x, perm=(0, 2, 1, 3)), np.array([0, 0, 32]))
    x = n("Squeeze", n("LSTM", x, n.weight(1, 40, 32), n.weight(1, 40, 10), hidden_size=10), np.array([1]))
    return n.model([info("x", shape=["time", "batch", 12])], [x, n("ReduceMax", x, np.array([0]))])


def ids_of(rng: np.random.Generator, batch: int, time: int) -> dict[str, np.ndarray]:
    lengths = rng.integers(1, time + 1, (batch, 1))
    return {"ids": rng.integers(0, 50, (batch, time)),
            "mask": (np.arange(time) < lengths).astype(np.float32)}


def images_of(rng: np.random.Generator, batch: int, height: int, width: int) -> dict[str, np.ndarray]:
    return {"x": rng.standard_normal((batch, 3, height, width)).astype(np.float32)}


def series_of(rng: np.random.Generator, batch: int, time: int) -> dict[str, np.ndarray]:
    return {"x": rng.standard_normal((time, batch, 12)).astype(np.float32)}


LENGTHS = (*range(1, 20), 23, 24, 25, 31, 32, 33, 47, 48, 49, 63, 64, 65, 79, 100, 127, 128, 129, 200)
IMAGES = [(h, w) for h in (1, 2, 3, 5, 8, 15, 17, 32, 47) for w in (1, 2, 4, 7, 9, 16, 31, 33, 65)]
SWEEPS: dict[str, tuple[Callable[[], bytes], Callable[..., dict[str, np.ndarray]], list[tuple[int, ...]]]] = {
    "transformer": (transformer, ids_of, [(b, t) for t in LENGTHS for b in (1, 3)]),
    "network": (network, images_of, [(1 + (h + w) % 3, h, w) for h, w in IMAGES]),
    "recurrence": (recurrence, series_of, [(b, t) for t in LENGTHS for b in (1, 2, 5)]),
}


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
    with on(target), guarded() as guard, mock.patch.object(native, "PLANS", kept):
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
        make = plans.Instance.__init__

        def made(instance: Any, plan: Any) -> None:
            with mock.patch.object(device.entry, "make", lambda block: None):
                make(instance, plan)
            change(instance.table, plan.code.threads)
            instance.parts = [(instance.program(0, len(instance.table)), None)]
        monkeypatch.setattr(plans.Instance, "__init__", made)
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
    before = np.empty, plans.Plan.take, plans.Plan.give, host()
    with on("sse2"), guarded():
        assert np.isnan(np.empty(3)).all() and (np.empty_like(np.zeros((2, 3), np.int8).T) == -1).all()
    assert before == (np.empty, plans.Plan.take, plans.Plan.give, host())
