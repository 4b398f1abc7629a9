"""Programs over the host and devices that do their work late: equal results in whatever order is allowed."""

import gc
from typing import Any

import numpy as np
import onnx
import pytest
from draws import draws
from graphs import info, model
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper
from simulated_device import provider
from streamed_device import StreamedDevice

from orthrus import knobs
from orthrus.errors import DeviceReset, Fail
from orthrus.kernels import HOST, copied
from orthrus.plan.program import COPY, LAND
from orthrus.run.config import Config
from orthrus.run.engine import Engine

pytestmark = pytest.mark.usefixtures("quick_collection")

X = np.linspace(-3, 3, 6, dtype=np.float32).reshape(2, 3)
W = np.arange(6, dtype=np.float32).reshape(2, 3)
OPERATORS = {"One": ["Relu", "Add", "Identity"], "Two": ["Sigmoid", "Mul"]}
ONE, TWO = ("Relu", "Sigmoid", "Neg", "Abs", "Identity"), ("Add", "Mul", "Sub")


def engine(proto: onnx.ModelProto, *providers: Any, **config: Any) -> Engine:
    return Engine(proto.SerializeToString(), Config(providers=list(providers), level=0, **config))


@st.composite
def graphs(draw: st.DrawFn) -> onnx.ModelProto:
    """Nodes of one and two inputs, any of them results; some for either device, some for the host."""
    values, nodes = ["x", "z", "w"], list[onnx.NodeProto]()
    for i in range(draw(st.integers(1, 12))):
        if draw(st.booleans()):
            op, inputs = draw(st.sampled_from(ONE)), [draw(st.sampled_from(values))]
        else:
            op, inputs = draw(st.sampled_from(TWO)), [draw(st.sampled_from(values)) for _ in range(2)]
        nodes.append(helper.make_node(op, inputs, [f"v{i}"]))
        values.append(f"v{i}")
    made = values[3:]
    outputs = draw(st.lists(st.sampled_from(made), min_size=1, max_size=4, unique=True))
    return model(nodes, ["x", "z"], outputs, {"w": W})


ORDERS = given(proto=graphs(), seed=st.integers(0, 1 << 16), across=st.booleans(), parallel=st.booleans(),
               pinned=st.sampled_from([0, 1 << 16]), synchronize=st.booleans(), data=st.data())


@draws(10)
@ORDERS
def test_any_order_of_work_gives_the_same(**drawn: Any) -> None:
    in_any_order(**drawn)


@pytest.mark.slow
@draws(60)
@ORDERS
def test_any_order_of_work_of_many_graphs_gives_the_same(**drawn: Any) -> None:
    in_any_order(**drawn)


def in_any_order(proto: onnx.ModelProto, seed: int, across: bool, parallel: bool, pinned: int,
                 synchronize: bool, data: st.DataObject) -> None:
    """Random graphs over the host and two devices; feeds and results on any of these."""
    one, two = (StreamedDevice(i, across, seed=seed + i, pinned_most=pinned) for i in range(2))
    e = engine(proto, provider(one, OPERATORS["One"], "OneExecutionProvider"),
               provider(two, OPERATORS["Two"], "TwoExecutionProvider"), parallel=parallel)
    plain = engine(proto)
    for turn in range(3):
        x, z = X * (turn + 1), W - X + turn
        want = plain.run(None, {"x": x, "z": z})
        places = [data.draw(st.sampled_from([HOST, one, two])) for _ in want]
        feeds = {"x": copied(x, data.draw(st.sampled_from([HOST, one, two]))), "z": z.copy()}
        made = e.run(None, feeds, targets=places, synchronize=synchronize)
        if not synchronize:
            feeds["z"][...] = 77
        again = e.run(None, {"x": X, "z": z}, synchronize=False)
        for array, place, expected in zip(made, places, want, strict=True):
            assert (array.device if place is not HOST else HOST) is place
            np.testing.assert_allclose(copied(array, HOST), expected, rtol=1e-5, atol=1e-6)
        for array, expected in zip(again, plain.run(None, {"x": X, "z": z}), strict=True):
            np.testing.assert_allclose(array, expected, rtol=1e-5, atol=1e-6)
    del made, again, array, feeds
    e.close()
    del e
    gc.collect()
    assert one.emptied() and two.emptied(), (one.usage(), two.usage())


def test_copies_begin_early_and_are_waited_for_late() -> None:
    """Inputs go to the device before the first step; a result is waited for when the host reads it."""
    device = StreamedDevice()
    nodes = [helper.make_node("Neg", ["z"], ["n"]), helper.make_node("Relu", ["x"], ["a"]),
             helper.make_node("Add", ["a", "a"], ["b"]), helper.make_node("Abs", ["a"], ["h"]),
             helper.make_node("Add", ["b", "w"], ["y"])]
    e = engine(model(nodes, ["x", "z"], ["y", "h", "n"], {"w": W}), provider(device, ["Relu", "Add"]))
    assert [step.kernel for step in e.program.steps if step.kernel < 0] == [COPY, COPY, COPY, LAND, LAND]
    assert e.program.steps[0].kernel == COPY and e.program.steps[-1].kernel == LAND, str(e.program)
    e.close()


@pytest.mark.parametrize("check", [{"CHECK": 2}, {"DEBUG": 2}])
def test_watched_runs(check: dict[str, int], tmp_path: Any) -> None:
    device = StreamedDevice(seed=3)
    nodes = [helper.make_node("Relu", ["x"], ["a"]), helper.make_node("Add", ["a", "w"], ["b"]),
             helper.make_node("Sigmoid", ["b"], ["y"])]
    proto = model(nodes, ["x"], ["y", "b"], {"w": W})
    want = engine(proto).run(None, {"x": X})
    with knobs.setting(**check):
        e = engine(proto, provider(device, ["Relu", "Sigmoid"]))
        for got, expected in zip(e.run(None, {"x": X}), want, strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-6)
    record: list[Any] = []
    e.run(None, {"x": X}, record=record)
    kernels = [event.work.kernel for event in record if event.work]
    assert "end of the copy to cpu:0" in kernels
    e.close()
    with knobs.setting(DUMP=str(tmp_path), DUMP_WHAT="tensors"):
        e = engine(proto, provider(device, ["Relu", "Sigmoid"]))
        e.run(None, {"x": X})
        e.close()
    written = {path.name.partition("_")[2]: np.load(path) for path in tmp_path.rglob("*.npy")}
    np.testing.assert_array_equal(written["Relu_0.npy"], np.maximum(X, 0))


def test_what_is_refused_is_typed_and_memory_comes_back() -> None:
    device = StreamedDevice(most=1 << 12)
    e = engine(model([helper.make_node("Relu", ["x"], ["y"])], [info("x", shape=["n"])],
                     [info("y", shape=["n"])]), provider(device, ["Relu"]))
    with pytest.raises(Fail, match=r"running MemcpyToDevice.*Failed to allocate.*65536 bytes were asked"):
        e.run(None, {"x": np.zeros(1 << 14, np.float32)})
    assert e.run(None, {"x": X[0]})[0].tolist() == np.maximum(X[0], 0).tolist()
    device.lost = True
    with pytest.raises(DeviceReset):
        e.run(None, {"x": X[0]})
    device.lost = False
    assert e.run(None, {"x": X[0]})[0].tolist() == np.maximum(X[0], 0).tolist()
    e.close()
    del e
    gc.collect()
    assert device.emptied()


def test_constants_are_copied_once() -> None:
    device = StreamedDevice()
    body = helper.make_graph([helper.make_node("Add", ["a", "w"], ["p"])], "b", [], [info("p")])
    other = helper.make_graph([helper.make_node("Sub", ["a", "w"], ["q"])], "c", [], [info("q")])
    nodes = [helper.make_node("Add", ["x", "w"], ["a"]),
             helper.make_node("If", ["c"], ["y"], then_branch=body, else_branch=other)]
    proto = model(nodes, ["x", info("c", onnx.TensorProto.BOOL, ())], ["y"], {"w": W})
    e = engine(proto, provider(device, ["Add", "Sub"]))
    assert device.counts["in"] == 1
    for flag in (True, False, True):
        (got,) = e.run(None, {"x": X, "c": np.array(flag)})
        np.testing.assert_allclose(got, X + 2 * W if flag else X, rtol=1e-6, atol=1e-6)
    assert device.counts["in"] == 4
    e.close()
