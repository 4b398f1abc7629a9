"""What a run hands out is the caller's own: no memory of feeds, constants, plans or other results."""

from typing import Any

import numpy as np
import onnx
import pytest
from graphs import info, model
from onnx import TensorProto, helper, numpy_helper

from orthrus import knobs
from orthrus.run import fetch
from orthrus.run.config import Config
from orthrus.run.engine import Engine
from orthrus.run.results import results, root

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def engine(proto: onnx.ModelProto, level: int = 0) -> Engine:
    return Engine(proto.SerializeToString(), Config(level=level))


def node(op: str, inputs: list[str], outputs: list[str], **attrs: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs, outputs, **attrs)


def test_a_feed_that_comes_through_is_copied() -> None:
    e = engine(model([node("Identity", ["x"], ["y"]), node("Flatten", ["x"], ["z"], axis=0)], ["x"],
                     ["y", info("z", shape=None)]))
    x = X.copy()
    for _ in range(3):
        for y in e.run(None, {"x": x}):
            assert not np.shares_memory(x, y) and y.flags.writeable
        y, z = e.run(None, {"x": np.broadcast_to(X[:1], (2, 3))})
        y += 1
        assert z.ravel().tolist() == [0, 1, 2] * 2


def test_two_results_never_share() -> None:
    nodes = [node("Relu", ["x"], ["y"]), node("Identity", ["y"], ["same"]), node("Flatten", ["y"], ["view"]),
             node("Transpose", ["y"], ["turned"])]
    outputs = ["view", "y", "same", "turned"]
    e = engine(model(nodes, ["x"], [info(n, shape=None) for n in outputs]))
    for names in (outputs, outputs[::-1], ["y", "y"]):
        for _ in range(3):
            made = e.run(names, {"x": X})
            for i, a in enumerate(made):
                assert a.flags.c_contiguous and a.flags.writeable
                assert not any(np.shares_memory(a, b) for b in made[:i])


@pytest.mark.parametrize("level", [0, 99])
def test_a_constant_is_copied(level: int) -> None:
    e = engine(model([node("Identity", ["w"], ["y"]), node("Add", ["x", "w"], ["z"])], ["x"], ["y", "z"],
                     {"w": X}), level)
    first, _ = e.run(None, {"x": X})
    first += 1
    assert np.array_equal(e.run(["y"], {"x": X})[0], X)


def test_a_constant_of_a_body_is_copied() -> None:
    body = helper.make_graph([node("Identity", ["w"], ["o"])], "b", [], [info("o")],
                             [numpy_helper.from_array(X, "w")])
    other = helper.make_graph([node("Relu", ["x"], ["p"])], "c", [], [info("p")])
    e = engine(model([node("If", ["c"], ["y"], then_branch=body, else_branch=other)],
                     [info("c", TensorProto.BOOL, ()), "x"], ["y"]))
    feeds = {"c": np.array(True), "x": X}
    y, = e.run(None, feeds)
    y += 1
    assert np.array_equal(e.run(None, feeds)[0], X)


def test_an_element_of_a_fed_sequence_is_copied() -> None:
    kind = helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, None)
    e = engine(model([node("SequenceAt", ["s", "i"], ["y"])], [kind, info("i", TensorProto.INT64, ())],
                     [info("y", shape=None)]))
    sequence = [X.copy(), X.copy()]
    y, = e.run(None, {"s": sequence, "i": np.array(1)})
    assert not np.shares_memory(y, sequence[1])


def test_a_small_view_does_not_keep_a_large_array() -> None:
    e = engine(model([node("Relu", ["x"], ["r"]), node("Slice", ["r", "zero", "one"], ["y"])],
                     [info("x", shape=["N", 4])], [info("y", shape=None)],
                     {"zero": np.array([0]), "one": np.array([1])}))
    y, = e.run(None, {"x": np.ones((1000, 4), np.float32)})
    assert y.base.shape == y.shape == (1, 4)


def test_one_result_whatever_it_is_a_view_of() -> None:
    rng = np.random.default_rng(0)
    views = [lambda a: a, lambda a: a[3:9], lambda a: a.reshape(4, 6), lambda a: a[::-1],
             lambda a: a.reshape(4, 6)[1:, ::2], lambda a: a[:1]]
    for _ in range(300):
        fed, constant, own = (rng.permutation(24).astype(dtype) for dtype in
                              rng.choice([np.float32, np.int64, object], 3))
        shown, known, made = (views[int(i)] for i in rng.integers(0, len(views), 3))
        value = made((own, own, fed, constant)[int(rng.integers(4))])
        y, = results([value], [shown(fed)], frozenset({id(root(known(constant)))}), None)
        assert np.array_equal(y, value) and y.flags.carray
        assert not np.shares_memory(y, fed) and not np.shares_memory(y, constant)
        assert root(y).nbytes <= 4 * y.nbytes


def growing() -> Engine:
    nodes = [node("Add", ["x", "x"], ["a"]), node("Mul", ["a", "x"], ["b"]), node("Add", ["b", "b"], ["y"])]
    with knobs.setting(CODEGEN=0):
        return engine(model(nodes, [info("x", shape=["N", 64])], [info("y", shape=["N", 64])]))


def run_at(e: Engine, rows: int) -> None:
    x = np.full((rows, 64), 2, np.float32)
    assert e.run(None, {"x": x})[0][-1, -1] == 16


def test_the_least_recently_used_plan_goes_first() -> None:
    e = growing()
    for rows in range(100, 100 + fetch.PLANS):
        run_at(e, rows), run_at(e, rows)
    plans = e._fetches[None].plans
    assert len(plans) == fetch.PLANS
    run_at(e, 100)
    run_at(e, 500), run_at(e, 500)
    assert len(plans) == fetch.PLANS and ((100, 64),) in plans and ((101, 64),) not in plans


def test_idle_blocks_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "IDLE_BYTES", 1 << 20)
    e = growing()
    for turn in range(40):
        run_at(e, 1000 + turn % 8), run_at(e, 1000 + turn % 8)
    plans = [p for p in e._fetches[None].plans.values() if p is not None]
    assert len(plans) == 8
    assert sum(p.arena.size * len(p.idle) for p in plans[:-1]) <= fetch.IDLE_BYTES + plans[-1].arena.size


def test_the_arena_counts_against_the_limit() -> None:
    from orthrus import Limits
    from orthrus.errors import Fail

    nodes = [node("Add", ["x", "x"], ["a"]), node("Add", ["a", "x"], ["b"]), node("Add", ["b", "a"], ["y"])]
    proto = model(nodes, [info("x", shape=["N", 64])], [info("y", shape=["N", 64])])
    e = Engine(proto.SerializeToString(), Config(level=0, limits=Limits(max_total_bytes=1 << 16)))
    x = np.ones((1000, 64), np.float32)
    for _ in range(4):
        with pytest.raises(Fail, match="more memory than it may"):
            e.run(None, {"x": x})
    assert e.run(None, {"x": x[:9]})[0].shape == (9, 64)
