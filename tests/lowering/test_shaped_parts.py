"""Parts and the shapes they are run with: which plans are kept, what a rule's fault does, what ends with the
session."""

from __future__ import annotations

import gc
import logging
import os
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
from orthrus.limits import current
from orthrus.lowering import formula, lower, rules, shaped_part  # noqa: F401
from orthrus.providers.dnnl import rules as dnnl_rules  # noqa: F401
from orthrus.providers.dnnl import step
from orthrus.providers.foreign import fixed, shapes
from orthrus.recent import Recent

pytestmark = needs("generated code")

CPU, DNNL, IREE, RISCV = (f"{name}ExecutionProvider" for name in ("CPU", "Dnnl", "IREE", "SpaceMIT"))
PROVIDERS = [CPU, pytest.param(DNNL, marks=needs("oneDNN")), pytest.param(RISCV, marks=needs("SpaceMIT"))]
"""Those whose parts are a `ShapedPart`."""


def softmax() -> bytes:
    proto = model([helper.make_node("Relu", ["x"], ["e"]), helper.make_node("Softmax", ["e"], ["y"])],
                  [info("x", shape=["n", "m"])], [info("y", shape=["n", "m"])])
    return proto.SerializeToString()


def session_of(provider: str = CPU, **more: Any) -> Any:
    return ort.InferenceSession(softmax(), providers=[provider], **more)


def rows(n: int, m: int = 8) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(n).standard_normal((n, m)).astype(np.float32)}


def part_of(session: Any) -> Any:
    (step,) = session._sess._engine.program.calls
    return getattr(step.kernel.run, "__self__", step.kernel.run)


@pytest.mark.parametrize("provider, options", [
    *[pytest.param(*each.values, {}, marks=each.marks) if not isinstance(each, str) else (each, {})
      for each in PROVIDERS],
    *[pytest.param(IREE, {"shapes": shapes}, marks=needs("IREE")) for shapes in ("open", "fixed")]])
def test_shapes_in_use_keep_what_was_made_for_them(provider: str, options: dict[str, str],
                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    """In every cache that a provider has by shapes, the one used least recently goes, not the one known
    longest."""
    most = 2
    monkeypatch.setattr(knobs.SHAPES, "value", 0)
    monkeypatch.setattr(shaped_part, "PLANS", most)
    monkeypatch.setattr(fixed, "_LOADED", most)
    monkeypatch.setattr(shapes, "_KEPT", most)
    made: list[tuple[Recent[Any, Any], Any]] = []
    original = Recent.kept

    def counted(self: Any, key: Any, make: Any) -> Any:
        def make_and_count() -> Any:
            made.append((self, key))
            return make()
        found = original(self, key, make_and_count)
        assert len(self) <= self.most == most
        return found
    monkeypatch.setattr(Recent, "kept", counted)
    session = session_of(provider, provider_options=[options])

    def times(n: int) -> int:
        """How often anything was made for `n` rows, in the cache that made it most often."""
        caches = [id(cache) for cache, key in made if key[0][0] == n]
        return max((caches.count(each) for each in caches), default=0)
    for n in range(11, 11 + 2 * most):
        for again in (10, n, 10):
            session.run(None, rows(again))
    assert times(10) == 1 and all(times(n) == 1 for n in range(11, 11 + 2 * most))
    made.clear()
    last = [10, *range(11 + most + 1, 11 + 2 * most)]
    for n in last * 3:
        session.run(None, rows(n))
    assert len(last) == most and not made


@pytest.mark.parametrize("provider", PROVIDERS)
def test_closing_a_session_closes_its_parts(provider: str) -> None:
    session = session_of(provider)
    part = part_of(session)
    assert not part.learner.closed
    session.close()
    assert part.learner.closed


def broken(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def rule(lo: Any, node: Any) -> Any:
        raise error
    for table in (lower.RULES, step.RULES):
        monkeypatch.setitem(table, ("", "Softmax"), rule)


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("error", [NameError("name 'sofmax' is not defined"), TypeError("no"), KeyError(3),
                                   AssertionError(), ValueError("shapes")], ids=lambda e: type(e).__name__)
def test_a_rule_that_raises_is_told_once(provider: str, error: Exception, monkeypatch: pytest.MonkeyPatch,
                                         caplog: pytest.LogCaptureFixture) -> None:
    broken(monkeypatch, error)
    session = session_of(provider)
    with caplog.at_level(logging.WARNING, "orthrus"):
        for n in (3, 3, 4, 5):
            x = rows(n)["x"]
            expected = np.exp(np.maximum(x, 0))
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


@pytest.mark.parametrize("provider", PROVIDERS)
def test_a_rule_that_raises_is_an_error_where_nothing_may_fall_back(provider: str,
                                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    broken(monkeypatch, NameError("name 'sofmax' is not defined"))
    session = session_of(provider, fallback="error")
    with pytest.raises(EPFail, match="sofmax"):
        session.run(None, rows(3))


def test_feeds_that_no_definition_takes_are_no_fault_of_a_rule(caplog: pytest.LogCaptureFixture) -> None:
    proto = model([helper.make_node("Add", ["a", "b"], ["c"]), helper.make_node("Exp", ["c"], ["d"])],
                  [info("a", shape=["n", "k"]), info("b", shape=["m", "k"])], [info("d", shape=None)])
    session = ort.InferenceSession(proto.SerializeToString())
    with caplog.at_level(logging.WARNING, "orthrus"), pytest.raises(ort.capi.onnxruntime_pybind11_state.Fail):
        session.run(None, {"a": np.ones((3, 4), np.float32), "b": np.ones((2, 4), np.float32)})
    assert not [r for r in caplog.records if "which is slow" in r.getMessage()]


HELD = threading.Lock()


def slowly(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Let formulas be found on threads, by 0.05 seconds a node, each with a lock held that is not this
    package's; the event is set once one has begun."""
    monkeypatch.setattr(knobs.SHAPES, "value", 1)
    begun, original = threading.Event(), formula.Open._on_host

    def slow(self: Any, node: Any) -> bool:
        with HELD:
            begun.set()
            time.sleep(0.05)
            return original(self, node)
    monkeypatch.setattr(formula.Open, "_on_host", slow)
    return begun


def learners() -> list[threading.Thread]:
    return [t for t in threading.enumerate() if t.name == "orthrus formula" and t.is_alive()]


def test_a_fork_while_a_formula_is_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, session = slowly(monkeypatch), session_of()
    session.run(None, rows(3))
    assert begun.wait(30) and learners()
    child = os.fork()
    if not child:
        try:
            free = HELD.acquire(timeout=5)
            HELD.release()
            for n in (3, 7, 9):
                session.run(None, rows(n))
            os._exit(not free)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_what_looks_for_a_formula_has_the_limits_of_its_session(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, original, seen = slowly(monkeypatch), formula.Open._on_host, set()
    monkeypatch.setattr(formula.Open, "_on_host", lambda self, node: (
        seen.add(current().max_tensor_bytes) or original(self, node)))
    session = session_of(limits=ort.Limits(max_tensor_bytes=1 << 20))
    session.run(None, rows(3))
    assert begun.wait(30)
    for thread in learners():
        thread.join()
    assert seen == {1 << 20}


@pytest.mark.parametrize("way", ["close", "del"])
def test_what_looks_for_a_formula_ends_with_the_session(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long it would go on: it lets go of the part between two nodes."""
    begun = slowly(monkeypatch)
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
        assert not learners()
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
        assert len(weights) == 2 and bool(part_of(session).learner.formulas) == bool(shapes)
        del graph, session
        assert [ref() for ref in weights] == [None] * 2
    finally:
        gc.enable()
