"""Programs and arenas: lifetimes, places, reuse, and that results do not depend on them."""

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest
from graphs import chain, info, model
from onnx import helper

from orthrus import knobs
from orthrus.plan import Arena
from orthrus.run.config import Config
from orthrus.run.engine import Engine

BIG = (64, 256)


@pytest.fixture(autouse=True)
def numpy_alone() -> Iterator[None]:
    """Steps and arenas of nodes that run one by one."""
    with knobs.setting(CODEGEN=0):
        yield


def engine(proto: onnx.ModelProto, **config: Any) -> Engine:
    return Engine(proto.SerializeToString(), Config(level=0, **config))


def plan_of(e: Engine) -> Arena:
    """The one arena the engine made."""
    (fetch,) = e._fetches.values()
    plans = [p for p in fetch.plans.values() if p is not None]
    return plans[0].arena


def adds(count: int) -> onnx.ModelProto:
    """v1 = v0 + v0, v2 = v1 + v1, ..."""
    nodes = [helper.make_node("Add", [f"v{i}", f"v{i}"], [f"v{i + 1}"]) for i in range(count)]
    return model(nodes, [info("v0", shape=["N", 256])], [info(f"v{count}", shape=["N", 256])])


def test_slots_are_freed_after_their_last_reader() -> None:
    program = engine(chain(4)).program
    assert [step.frees for step in program.calls] == [(), program.calls[1].reads, program.calls[2].reads,
                                                      program.calls[3].reads]


def test_a_dying_input_gives_its_place() -> None:
    e = engine(adds(5))
    x = np.ones(BIG, np.float32)
    for _ in range(3):
        (y,) = e.run(None, {"v0": x})
        np.testing.assert_array_equal(y, np.full(BIG, 32, np.float32))
    arena = plan_of(e)
    assert len(arena.places) == 4 and arena.size == x.nbytes


def test_one_arena_per_shape_bounded_in_number() -> None:
    e = engine(adds(3))
    for n in range(64, 104):
        for _ in range(3):
            (y,) = e.run(None, {"v0": np.ones((n, 256), np.float32)})
            assert y.shape == (n, 256) and (y == 8).all()
    (fetch,) = e._fetches.values()
    assert len(fetch.plans) == 16


def test_a_view_keeps_its_memory() -> None:
    """A transposed view of v1 is read after v1's last reader; v1's place may not be taken before."""
    nodes = [
        helper.make_node("Add", ["x", "x"], ["a"]), helper.make_node("Transpose", ["a"], ["t"], perm=[1, 0]),
        helper.make_node("Mul", ["x", "x"], ["b"]), helper.make_node("Mul", ["b", "b"], ["c"]),
        helper.make_node("Add", ["c", "b"], ["d"]), helper.make_node("Add", ["d", "t"], ["y"])]
    e = engine(model(nodes, [info("x", shape=[128, 128])], [info("y", shape=[128, 128])]))
    x = np.random.default_rng(0).normal(size=(128, 128)).astype(np.float32)
    for _ in range(3):
        np.testing.assert_allclose(e.run(None, {"x": x})[0], x**4 + x**2 + 2 * x.T, rtol=1e-5, atol=1e-5)


def test_outputs_belong_to_the_caller() -> None:
    """Neither a feed, a constant nor the arena is reachable through an output."""
    nodes = [helper.make_node("Identity", ["x"], ["same"]), helper.make_node("Add", ["x", "w"], ["s"]),
             helper.make_node("Transpose", ["s"], ["t"]), helper.make_node("Identity", ["w"], ["k"])]
    w = np.ones((128, 128), np.float32)
    big = [info(n, shape=[128, 128]) for n in ("same", "t", "k")]
    e = engine(model(nodes, [info("x", shape=[128, 128])], big, {"w": w}))
    x = np.zeros((128, 128), np.float32)
    for _ in range(4):
        same, t, k = e.run(None, {"x": x})
        for out in (same, t, k):
            assert out.flags.writeable
            out += 5
        assert (x == 0).all()
    same, t, k = e.run(None, {"x": x})
    assert (same == 0).all() and (t == 1).all() and (k == 1).all()


def test_fetching_less_runs_less() -> None:
    nodes = [helper.make_node("Relu", ["x"], ["a"], name="r"),
             helper.make_node("Sigmoid", ["x"], ["b"], name="s")]
    e = engine(model(nodes, ["x"], ["a", "b"]))
    e.run(["b"], {"x": np.zeros((2, 3), np.float32)})
    assert [s.node.name for s in e._fetches[("b",)].calls] == ["s"]


@pytest.mark.parametrize("parallel", [False, True])
def test_many_threads_at_once(parallel: bool) -> None:
    e = engine(adds(6), parallel=parallel, inter_op_threads=2)
    wrong: list[int] = []

    def work(k: int) -> None:
        x = np.full(BIG, k, np.float32)
        for _ in range(20):
            if not (e.run(None, {"v0": x})[0] == 64 * k).all():
                wrong.append(k)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong
    e.close()


def test_parallel_equals_sequential() -> None:
    nodes = [helper.make_node("Relu", ["x"], [f"r{i}"]) for i in range(6)]
    nodes += [helper.make_node("Sum", [f"r{i}" for i in range(6)], ["y"])]
    proto = model(nodes, ["x"], ["y"])
    x = np.linspace(-1, 1, 6, dtype=np.float32).reshape(2, 3)
    results = [engine(proto, parallel=p).run(None, {"x": x})[0] for p in (False, True)]
    np.testing.assert_array_equal(*results)


def test_a_failing_step_names_its_node_in_both_executors() -> None:
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["y"], name="bad")]
    proto = model(nodes, ["x", info("shape", 7, [1])], [info("y", shape=None)])
    feeds = {"x": np.zeros((2, 3), np.float32), "shape": np.array([4])}
    text = "Non-zero status code returned while running Reshape node. Name:'bad'"
    for parallel in (False, True):
        with pytest.raises(Exception, match=text):
            engine(proto, parallel=parallel).run(None, feeds)


def test_free_dimensions_by_name_and_by_denotation() -> None:
    proto = model([helper.make_node("Relu", ["x"], ["y"])], [info("x", shape=["N", "C"])],
                  [info("y", shape=["N", "C"])])
    proto.graph.input[0].type.tensor_type.shape.dim[1].denotation = "DATA_CHANNEL"
    e = engine(proto, free_dims={"N": 4}, free_denotations={"DATA_CHANNEL": 3})
    assert e.inputs[0].shape == e.outputs[0].shape == (4, 3)


def test_feeds_may_contradict_dimension_names() -> None:
    """Two inputs say [N, 3]; fed with 1 and 5 rows they broadcast, as without names."""
    nodes = [helper.make_node("Shape", ["a"], ["s"]), helper.make_node("Expand", ["b", "s"], ["e"]),
             helper.make_node("Shape", ["e"], ["y"])]
    proto = model(nodes, [info("a", shape=["N", 3]), info("b", shape=["N", 3])], [info("y", 7, [2])])
    e = Engine(proto.SerializeToString(), Config())
    for rows in ((5, 5), (5, 1), (1, 5)):
        (y,) = e.run(None, {n: np.zeros((r, 3), np.float32) for n, r in zip("ab", rows, strict=True)})
        assert y.tolist() == [5, 3]


@pytest.mark.parametrize("level", [0, 99])
def test_an_initializer_that_may_be_fed_decides_no_shape(level: int) -> None:
    nodes = [helper.make_node("Reshape", ["x", "s"], ["r"]), helper.make_node("Add", ["r", "r"], ["a"]),
             helper.make_node("Mul", ["a", "a"], ["b"]), helper.make_node("Shape", ["b"], ["t"]),
             helper.make_node("Add", ["b", "a"], ["y"])]
    proto = model(nodes, [info("x", shape=[64, 256]), info("s", onnx.TensorProto.INT64, ["rank"])],
                  [info("y", shape=None), info("t", onnx.TensorProto.INT64, None)],
                  {"s": np.array([128, 128])})
    e = Engine(proto.SerializeToString(), Config(level=level))
    x = np.ones((64, 256), np.float32)
    for shape in ((), (32, 512), (32, 512), (256, 64), (4, 64, 64), (4, 64, 64), ()):
        y, told = e.run(None, {"x": x, **({"s": np.array(shape)} if shape else {})})
        assert y.shape == tuple(told) == (shape or (128, 128)) and y.min() == y.max() == 6
