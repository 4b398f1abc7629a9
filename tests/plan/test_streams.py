"""Programs over the host and devices that do their work late: equal results in whatever order is allowed."""

import gc
from typing import Any

import numpy as np
import onnx
from graphs import model
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper
from simulated_device import provider
from streamed_device import StreamedDevice

from orthrus.kernels import HOST, copied
from orthrus.run.engine import Config, Engine

X = np.linspace(-3, 3, 6, dtype=np.float32).reshape(2, 3)
W = np.arange(6, dtype=np.float32).reshape(2, 3)
OPERATORS = {"One": ["Relu", "Add", "Identity"], "Two": ["Sigmoid", "Mul", "Split"]}
ONE, TWO, HOSTS = ("Relu", "Sigmoid", "Neg", "Abs", "Identity"), ("Add", "Mul", "Sub"), "Split"


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


@settings(max_examples=60, deadline=None)
@given(graphs(), st.integers(0, 1 << 16), st.booleans(), st.booleans(), st.sampled_from([0, 1 << 16]),
       st.booleans(), st.data())
def test_any_order_of_work_gives_the_same(proto: onnx.ModelProto, seed: int, across: bool, parallel: bool,
                                          pinned: int, synchronize: bool, data: st.DataObject) -> None:
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
        assert not synchronize or turn or True
    del made, again, array, feeds
    e.close()
    del e
    gc.collect()
    assert one.emptied() and two.emptied(), (one.usage(), two.usage())
