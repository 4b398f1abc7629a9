"""Runs of one step, or of none: what they give and raise is what the long way does, whoever runs and however
often."""

import contextvars
import threading
from typing import Any

import numpy as np
import onnx
import pytest
from graphs import info, model
from onnx import TensorProto, helper

import orthrus as ort
from orthrus import errors
from orthrus.limits import Limits, current
from orthrus.run.config import Config
from orthrus.run.engine import Engine

T = TensorProto


def node(op: str, inputs: list[str], outputs: list[str], **attrs: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs, outputs, **attrs)


def typed(name: str, elem: int, shape: Any) -> onnx.ValueInfoProto:
    return info(name, elem, shape)


MODELS = {
    "two results": (model([node("Unique", ["x"], ["y", "", "", "n"], sorted=1)],
                          [typed("x", T.INT64, ["N"])],
                          [typed("y", T.INT64, None), typed("n", T.INT64, None)]),
                    lambda rng, n: {"x": rng.integers(0, 4, n)}),
    "text": (model([node("StringConcat", ["x", "x"], ["y"])], [typed("x", T.STRING, ["N"])],
                   [typed("y", T.STRING, None)], opset=20),
             lambda rng, n: {"x": np.array([f"é{i}" for i in range(n)], object)}),
    "what is fed": (model([node("Identity", ["x"], ["y"])], [typed("x", T.STRING, ["N"])],
                          [typed("y", T.STRING, None)]),
                    lambda rng, n: {"x": np.array([str(i) for i in range(n)], object)}),
    "a constant": (model([node("Shape", ["x"], ["y"])], [typed("x", T.FLOAT, [2, 3])],
                         [typed("y", T.INT64, None)]), lambda rng, n: {"x": np.ones((2, 3), np.float32)}),
    "places": (model([node("NonZero", ["x"], ["y"])], [typed("x", T.FLOAT, ["N"])],
                     [typed("y", T.INT64, None)]),
               lambda rng, n: {"x": rng.integers(0, 2, n).astype(np.float32)}),
    "names that agree": (model([node("StringConcat", ["x", "z"], ["y"])],
                               [typed("x", T.STRING, ["N"]), typed("z", T.STRING, ["N"])],
                               [typed("y", T.STRING, None)], opset=20),
                         lambda rng, n: {k: np.array(["a"] * n, object) for k in "xz"}),
}


def engine(proto: onnx.ModelProto, **more: Any) -> Engine:
    return Engine(proto.SerializeToString(), Config(**more))


@pytest.mark.parametrize("which", MODELS)
def test_results_are_those_of_the_long_way(which: str) -> None:
    proto, feeds = MODELS[which]
    short, long = engine(proto), engine(proto)
    assert short.short is not None and short.quick is not None
    long.short = None
    rng = np.random.default_rng(5)
    for _ in range(3):
        for n in (3, 0, 1, 40):
            fed = feeds(rng, n)
            kept = {k: v.copy() for k, v in fed.items()}
            made, wanted = short.quick(None, fed), long.run(None, fed)
            assert made is not None and len(made) == len(wanted)
            for a, b in zip(made, wanted, strict=True):
                assert a.dtype == b.dtype and a.shape == b.shape and a.tolist() == b.tolist()
                assert a.flags.c_contiguous and a.flags.writeable
                assert a.dtype == object or (a.base is None) == (b.base is None)
                assert not any(np.shares_memory(a, v) for v in fed.values())
                if a.size:
                    a[...] = a.ravel()[:1][0]
            assert all(fed[k].tolist() == kept[k].tolist() for k in fed)


@pytest.mark.parametrize("which", MODELS)
def test_errors_are_those_of_the_long_way(which: str) -> None:
    proto, feeds = MODELS[which]
    short, long = engine(proto), engine(proto)
    long.short = None
    fed = feeds(np.random.default_rng(0), 4)
    name = next(iter(fed))
    wrong = [{}, fed | {"other": 1}, {name: None}, fed | {name: np.ones((4, 4, 4), np.complex64)},
             fed | {name: fed[name][None]}]
    for bad in wrong:
        said = []
        for each in (short, long):
            with pytest.raises(Exception) as caught:
                each.run(None, bad)
            said.append((type(caught.value), str(caught.value)))
        assert said[0] == said[1]
    with pytest.raises(errors.InvalidArgument, match="output name"):
        short.run(["nothing"], fed)
    short.close()
    with pytest.raises(errors.Fail, match="closed"):
        short.run(None, fed)


def test_dimensions_of_one_name_may_differ() -> None:
    e = engine(MODELS["names that agree"][0])
    assert e.run(None, {"x": np.array(["a", "b"], object), "z": np.array(["c"], object)})[0].tolist() == [
        "ac", "bc"]


def test_what_a_run_holds_is_bounded() -> None:
    proto, feeds = MODELS["text"]
    e = engine(proto, limits=Limits(max_total_bytes=1 << 16))
    assert len(e.run(None, feeds(None, 10))[0]) == 10
    for _ in range(2):
        with pytest.raises(errors.Fail, match="would hold more|at most"):
            e.run(None, feeds(None, 2000))
        assert len(e.run(None, feeds(None, 10))[0]) == 10


def test_on_threads() -> None:
    proto, feeds = MODELS["two results"]
    e, wrong = engine(proto), []

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for n in rng.integers(1, 2000, 60).tolist():
            x = feeds(rng, n)["x"]
            y, count = e.run(None, {"x": x})
            if not np.array_equal(y, np.unique(x)) or count.sum() != n:
                wrong.append(n)
    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


ASKED: contextvars.ContextVar[str] = contextvars.ContextVar("asked", default="")


def test_an_operator_of_somebody_else_sees_its_callers_variables() -> None:
    seen = []

    @ort.op("short.way::Look")
    def Look(x):
        seen.append((ASKED.get(), current().max_nodes, np.geterr()["over"]))
        return x + 1
    proto = helper.make_model(helper.make_graph(
        [helper.make_node("Look", ["x"], ["y"], domain="short.way")], "g", [typed("x", T.FLOAT, ["N"])],
        [typed("y", T.FLOAT, ["N"])]), opset_imports=[helper.make_opsetid("", 20),
                                                     helper.make_opsetid("short.way", 1)], ir_version=10)
    e = engine(proto, limits=Limits(max_nodes=77))
    for said in ("a", "b"):
        ASKED.set(said)
        e.run(None, {"x": np.ones(2, np.float32)})
    assert seen == [("a", 77, "ignore"), ("b", 77, "ignore")]
    assert current().max_nodes != 77
