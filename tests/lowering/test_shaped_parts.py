"""Parts and the shapes they are run with: which plans are kept, what a rule's fault does, what ends with the
session."""

from __future__ import annotations

import gc
import logging
import threading
import time
import weakref
from typing import Any

import numpy as np
import pytest
from graphs import info, model
from onnx import helper
from skips import needs

import orthrus as ort
from orthrus import knobs
from orthrus.errors import EPFail
from orthrus.lowering import formula, lower, native, rules  # noqa: F401

pytestmark = needs("generated code")

DNNL = "DnnlExecutionProvider"
CPU = "CPUExecutionProvider"
PROVIDERS = [CPU, pytest.param(DNNL, marks=needs("oneDNN"))]


def softmax() -> bytes:
    proto = model([helper.make_node("Exp", ["x"], ["e"]), helper.make_node("Softmax", ["e"], ["y"])],
                  [info("x", shape=["n", "m"])], [info("y", shape=["n", "m"])])
    return proto.SerializeToString()


def session_of(provider: str = CPU, **more: Any) -> Any:
    return ort.InferenceSession(softmax(), providers=[provider], **more)


def rows(n: int, m: int = 8) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(n).standard_normal((n, m)).astype(np.float32)}


def part_of(session: Any) -> Any:
    (step,) = session._sess._engine.program.calls
    return getattr(step.kernel.run, "__self__", step.kernel.run)


@pytest.mark.parametrize("provider", PROVIDERS)
def test_shapes_that_come_back_keep_their_plan(provider: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shape used least recently goes, not the one known longest."""
    monkeypatch.setattr(knobs.SHAPES, "value", 0)
    session = session_of(provider)
    made: list[int] = []
    part = part_of(session)
    original = type(part)._made
    monkeypatch.setattr(type(part), "_made", lambda self, key, kinds: (
        made.append(key[0][0]) if key not in self.plans else None) or original(self, key, kinds))
    for n in range(1, 3 * native.PLANS):
        for again in (n, 1):
            session.run(None, rows(again))
            session.run(None, rows(again))
    assert made.count(1) <= 1 and len(part.plans) <= native.PLANS and len(made) > 2 * native.PLANS


def broken(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def rule(lo: Any, node: Any) -> Any:
        raise error
    monkeypatch.setitem(lower.RULES, ("", "Softmax"), rule)


@pytest.mark.parametrize("error", [NameError("name 'sofmax' is not defined"), TypeError("no"), KeyError(3),
                                   AssertionError(), ValueError("shapes")], ids=lambda e: type(e).__name__)
def test_a_rule_that_raises_is_told_once(error: Exception, monkeypatch: pytest.MonkeyPatch,
                                         caplog: pytest.LogCaptureFixture) -> None:
    broken(monkeypatch, error)
    session = session_of()
    with caplog.at_level(logging.WARNING, "orthrus"):
        for n in (3, 3, 4, 5):
            x = rows(n)["x"]
            expected = np.exp(np.exp(x))
            np.testing.assert_allclose(session.run(None, {"x": x})[0],
                                       expected / expected.sum(-1, keepdims=True), rtol=1e-5)
    (told,) = [r.getMessage() for r in caplog.records if "which is slow" in r.getMessage()]
    assert type(error).__name__ in told and __file__ in told


def test_weights_go_with_a_session_whose_rule_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    def rule(lo: Any, node: Any) -> Any:
        raise NameError("name 'sofmax' is not defined")
    monkeypatch.setitem(lower.RULES, ("", "Softmax"), rule)
    proto = model([helper.make_node("MatMul", ["x", "w"], ["e"]), helper.make_node("Softmax", ["e"], ["y"])],
                  [info("x", shape=["n", 256])], [info("y", shape=["n", 256])],
                  {"w": np.ones((256, 256), np.float32)})
    gc.collect()
    gc.disable()
    try:
        session = ort.InferenceSession(proto.SerializeToString())
        session.run(None, rows(3, 256))
        graph = session._sess._engine.graph
        weights = [weakref.ref(v.const) for v in graph.initializers.values() if v.const.nbytes > 1 << 16]
        del graph, session
        assert len(weights) == 1 and weights[0]() is None
    finally:
        gc.enable()


def test_a_rule_that_raises_is_an_error_where_nothing_may_fall_back(monkeypatch: pytest.MonkeyPatch) -> None:
    broken(monkeypatch, NameError("name 'sofmax' is not defined"))
    session = session_of(fallback="error")
    with pytest.raises(EPFail, match="sofmax"):
        session.run(None, rows(3))


def test_feeds_that_no_definition_takes_are_no_fault_of_a_rule(caplog: pytest.LogCaptureFixture) -> None:
    proto = model([helper.make_node("Add", ["a", "b"], ["c"]), helper.make_node("Exp", ["c"], ["d"])],
                  [info("a", shape=["n", "k"]), info("b", shape=["m", "k"])], [info("d", shape=None)])
    session = ort.InferenceSession(proto.SerializeToString())
    with caplog.at_level(logging.WARNING, "orthrus"), pytest.raises(ort.capi.onnxruntime_pybind11_state.Fail):
        session.run(None, {"a": np.ones((3, 4), np.float32), "b": np.ones((2, 4), np.float32)})
    assert not [r for r in caplog.records if "which is slow" in r.getMessage()]


@pytest.mark.parametrize("way", ["close", "del"])
def test_what_looks_for_a_formula_ends_with_the_session(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long it would go on: it lets go of the part between two nodes."""
    monkeypatch.setattr(knobs.SHAPES, "value", 1)
    begun, original = threading.Event(), formula.Open._on_host

    def slow(self: Any, node: Any) -> bool:
        begun.set()
        time.sleep(0.05)
        return original(self, node)
    monkeypatch.setattr(formula.Open, "_on_host", slow)
    count = 100
    names = ["x", *(f"v{i}" for i in range(count))]
    nodes = [helper.make_node("Softmax", [a], [b]) for a, b in zip(names, names[1:], strict=False)]
    proto = model([*nodes, helper.make_node("MatMul", [names[-1], "w"], ["y"])],
                  [info("x", shape=["n", 256])], [info("y", shape=["n", 256])],
                  {"w": np.ones((256, 256), np.float32)})
    session = ort.InferenceSession(proto.SerializeToString())
    for n in (3, 4, 5):
        session.run(None, rows(n, 256))
    assert begun.wait(30)
    graph = session._sess._engine.graph
    (weights,) = [weakref.ref(v.const) for v in graph.initializers.values() if v.const.nbytes > 1 << 16]
    del graph
    gc.collect()
    gc.disable()
    try:
        if way == "close":
            session.close()
        else:
            del session
        assert not any(t.name == "orthrus formula" and t.is_alive() for t in threading.enumerate())
        assert weights() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("shapes", [0, 2])
@pytest.mark.parametrize("attrs", [{"output_shape": [10, 8], "strides": [3, 2]},
                                   {"output_shape": [9], "strides": [2]},
                                   {"auto_pad": "SAME_UPPER", "strides": [2, 3]},
                                   {"auto_pad": "SAME_LOWER", "strides": [3, 1], "output_shape": [11, 7]}],
                         ids=str)
def test_packed_weights_are_those_of_the_shape(attrs: dict[str, Any], shapes: int) -> None:
    """What is packed for one shape serves another only where it would be the same: phases of a transposed
    convolution have other taps where padding follows from the input's size."""
    rank = len(attrs["strides"])
    rng = np.random.default_rng(0)
    proto = model([helper.make_node("ConvTranspose", ["x", "w"], ["y"], **attrs)],
                  [info("x", shape=["n", 3, *"hw"[:rank]])], [info("y", shape=None)],
                  {"w": rng.standard_normal((3, 2, 4, 3)[:2 + rank]).astype(np.float32)}, opset=22)
    with knobs.setting(CHECK=2, SHAPES=shapes):
        session = ort.InferenceSession(proto.SerializeToString(), fallback="error")
        session.disable_fallback()
        for size in ((2, 2), (3, 3), (5, 4), (2, 2), (1, 3), (4, 1)):
            session.run(None, {"x": rng.standard_normal((2, 3, *size[:rank])).astype(np.float32)})


@pytest.mark.parametrize("shapes", [0, 2])
def test_weights_go_with_a_session_that_ran_with_many_shapes(shapes: int, monkeypatch: pytest.MonkeyPatch
                                                             ) -> None:
    """Neither plans nor formulas refer to what made them: no garbage collector has to come by."""
    monkeypatch.setattr(knobs.SHAPES, "value", shapes)
    ones = np.ones(256, np.float32)
    proto = model(
        [helper.make_node("MatMul", ["x", "w"], ["a"]),
         helper.make_node("LayerNormalization", ["a", "s", "s"], ["b"]),
         helper.make_node("Transpose", ["b"], ["t"], perm=[1, 0]),
         helper.make_node("Softmax", ["t"], ["c"], axis=0),
         helper.make_node("ReduceMean", ["c"], ["m"], keepdims=1),
         helper.make_node("Sub", ["c", "m"], ["d"]),
         helper.make_node("Gemm", ["d", "v"], ["e"], transA=1, transB=1),
         helper.make_node("QuantizeLinear", ["e", "q", "z"], ["f"]),
         helper.make_node("DequantizeLinear", ["f", "q", "z"], ["g"]),
         helper.make_node("MatMul", ["g", "w"], ["y"])],
        [info("x", shape=["n", 256])], [info("y", shape=["n", 256])],
        {"w": np.ones((256, 256), np.float32), "v": np.eye(256, dtype=np.float32), "s": ones,
         "q": np.float32(0.1), "z": np.uint8(3)})
    gc.collect()
    gc.disable()
    try:
        session = ort.InferenceSession(proto.SerializeToString())
        for n in (3, 4, 5, 9, 3):
            session.run(None, rows(n, 256))
        graph = session._sess._engine.graph
        weights = [weakref.ref(v.const) for v in graph.initializers.values() if v.const.nbytes > 1 << 16]
        assert len(weights) == 2 and bool(part_of(session).formulas) == bool(shapes)
        del graph, session
        assert [ref() for ref in weights] == [None] * 2
    finally:
        gc.enable()
