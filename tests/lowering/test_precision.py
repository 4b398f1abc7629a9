"""`float32_precision=auto`: the matrix unit is used where trials show no difference that counts, and the
verdict is believed again only for what it was found for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from graphs import info, model
from matrix_unit_double import matrix_unit
from onnx import TensorProto, helper
from skips import needs

import orthrus as ort
from orthrus import knobs
from orthrus.codegen.kernels import amx
from orthrus.codegen.object import cache
from orthrus.lowering import precision
from orthrus.lowering.native import Native
from orthrus.providers.cpu import CPUExecutionProvider

pytestmark = needs("matrix unit")
F = np.float32
M, K, N = 64, 256, 160


@pytest.fixture(autouse=True)
def unit(tmp_path: Path) -> Iterator[None]:
    with matrix_unit(), knobs.setting(CACHE_DIR=str(tmp_path)):
        yield


def weights(*shape: int) -> np.ndarray:
    return np.random.default_rng(4).standard_normal(shape).astype(F)


def network(*nodes: tuple[str, str, str, dict[str, Any]], output: int = TensorProto.FLOAT, rows: Any = M,
            **constants: np.ndarray) -> onnx.ModelProto:
    """Nodes as (operator, inputs, outputs, attributes) from `x` (rows, K) to `z`."""
    made = [helper.make_node(op, a.split(), b.split(), **attrs) for op, a, b, attrs in nodes]
    return model(made, [info("x", shape=[rows, K])], [info("z", output, None)], constants)


def session(proto: onnx.ModelProto, **options: str) -> ort.InferenceSession:
    return ort.InferenceSession(proto.SerializeToString(), providers=[("CPUExecutionProvider", options)])


def natives(s: ort.InferenceSession) -> list[Native]:
    runs = (step.kernel.run for step in s._sess._engine.program.calls)
    return [run for run in runs if isinstance(run, Native)]


def products(s: ort.InferenceSession) -> int:
    """Steps on the matrix unit in all plans of the session."""
    return sum(step.spec is not None and step.spec.template == "tiles"
               for native in natives(s) for plan in native.lowered() for step in plan.steps)


PRODUCT = ("MatMul", "x w", "y", {})
PLAIN = network(("MatMul", "x w", "z", {}), w=weights(K, N))


def test_the_default_is_exact() -> None:
    assert CPUExecutionProvider().settings["float32_precision"] == "exact"
    assert not products(session(PLAIN))
    assert not products(session(PLAIN, float32_precision="exact"))
    assert products(session(PLAIN, float32_precision="fast"))


def test_auto_uses_the_unit_where_nothing_is_lost() -> None:
    s = session(PLAIN, float32_precision="auto")
    assert products(s)
    x = weights(M, K)
    np.testing.assert_allclose(s.run(None, {"x": x})[0], x @ weights(K, N), rtol=0, atol=2e-3)


def near(w: np.ndarray) -> np.ndarray:
    return (w * F(1 + 2e-6)).astype(F)


W = weights(K, N)
LOWEST = np.array(np.finfo(F).min, F)
IDS = np.random.default_rng(1).integers(0, 1 << 22, (K, N)).astype(F)
LOSSES: dict[str, onnx.ModelProto] = {
    "a mask of the lowest float": network(
        ("Greater", "x zero", "m", {}), ("Where", "m x low", "h", {}), ("MatMul", "h w", "z", {}),
        zero=np.array(0, F), low=LOWEST, w=W / 1000),
    "whole numbers looked up": network(("MatMul", "x w", "z", {}), w=IDS),
    "whole numbers looked up, then cast": network(
        ("MatMul", "x w", "y", {}), ("Cast", "y", "z", {"to": TensorProto.INT64}), w=IDS,
        output=TensorProto.INT64),
    "denormal weights": network(("MatMul", "x w", "z", {}), w=np.where(W > 2.5, W * F(1e-40), W)),
    "weights that are no bfloat16": network(
        ("MatMul", "x w", "y", {}), ("Relu", "y", "z", {}), w=np.where(W > 3.5, np.finfo(F).max, W)),
    "neighbours that cancel": network(("MatMul", "x w", "z", {}), w=np.repeat(W[::2], 2, 0)),
    "halves that cancel": network(("MatMul", "x w", "z", {}), w=np.tile(W[::2], (2, 1))),
    "differences amplified": network(
        PRODUCT, ("Mul", "y big", "u", {}), ("Sin", "u", "z", {}), w=W, big=np.array(1e4, F)),
    "NaN on both sides": network(PRODUCT, ("Sqrt", "y", "z", {}), w=W),
}


@pytest.mark.parametrize("what", LOSSES)
def test_auto_leaves_the_unit_where_something_is_lost(what: str) -> None:
    s = session(LOSSES[what], float32_precision="auto")
    assert not products(s)
    assert products(session(LOSSES[what], float32_precision="fast"))
    x = weights(M, K)
    np.testing.assert_array_equal(s.run(None, {"x": x})[0], session(LOSSES[what]).run(None, {"x": x})[0])


TWO = [PRODUCT, ("MatMul", "x v", "u", {})]
BOTH = [*TWO, ("Concat", "y u", "c", {"axis": 1})]
SCALED = [PRODUCT, ("Mul", "y big", "s", {})]
DECISIONS: dict[str, list[tuple[str, str, str, dict[str, Any]]]] = {
    **{op: [*SCALED, (op, "s", "d", {})] for op in ("Round", "Floor", "Ceil")},
    "Cast": [*SCALED, ("Cast", "s", "d", {"to": TensorProto.INT32})],
    "QuantizeLinear": [*SCALED, ("QuantizeLinear", "s one point", "d", {})],
    "Sign": [*TWO, ("Sub", "y u", "s", {}), ("Sign", "s", "d", {})],
    **{op: [*TWO, (op, "y u", "d", {})] for op in ("Less", "Greater", "LessOrEqual", "GreaterOrEqual")},
    **{op: [*BOTH, (op, "c", "d", {"axis": 1})] for op in ("ArgMax", "ArgMin")},
    "Hardmax": [*BOTH, ("Hardmax", "c", "d", {"axis": 1})],
    "TopK": [*BOTH, ("TopK", "c two", "best d", {"axis": 1})],
}
CONSTANTS = {"w": W, "v": near(W), "big": np.array(3e4, F), "one": np.array(1, F),
             "point": np.array(0, np.int8), "two": np.array([2]), "little": np.array(1e-9, F)}


@pytest.mark.parametrize("after", ["end", "middle"])
@pytest.mark.parametrize("what", DECISIONS)
def test_decisions_count(what: str, after: str) -> None:
    """At the end they are outputs; in the middle what they do to the output is too little to see."""
    nodes = DECISIONS[what]
    if after == "middle":
        nodes = [*nodes, ("Cast", "d", "e", {"to": TensorProto.FLOAT}), ("ReduceMean", "e", "r", {}),
                 ("Mul", "r little", "t", {}), ("Add", "y t", "z", {})]
    else:
        nodes = [*nodes[:-1], (*nodes[-1][:2], nodes[-1][2].replace("d", "z"), nodes[-1][3])]
    read = {name for node in nodes for name in node[1].split()}
    made = network(*nodes, output=TensorProto.UNDEFINED, **{k: v for k, v in CONSTANTS.items() if k in read})
    assert products(session(made, float32_precision="fast"))
    assert not products(session(made, float32_precision="auto"))


def test_a_decision_that_the_unit_does_not_change_is_no_reason() -> None:
    made = network(PRODUCT, ("ArgMax", "y", "z", {"axis": 1}), w=W, output=TensorProto.INT64)
    assert products(session(made, float32_precision="auto"))


def test_decisions_outside_the_part_count() -> None:
    for nodes, output in (([("NonZero", "y", "z", {})], TensorProto.INT64),
                          ([("Relu", "y", "r", {}), ("NonZero", "r", "z", {})], TensorProto.INT64)):
        made = network(PRODUCT, *nodes, output=output, w=W)
        assert products(session(made, float32_precision="fast"))
        assert not products(session(made, float32_precision="auto"))


def test_control_flow_behind_the_part_counts() -> None:
    body = helper.make_graph([helper.make_node("Sqrt", ["y"], ["b"])], "b", [], [info("b")])
    made = network(PRODUCT, ("If", "c", "z", {"then_branch": body, "else_branch": body}), w=W,
                   c=np.array(True))
    made.graph.input.append(info("c", TensorProto.BOOL, []))
    assert products(session(made, float32_precision="fast"))
    assert not products(session(made, float32_precision="auto"))


def test_what_is_not_finite_is_no_agreement() -> None:
    good, bad = np.array([1.0, 2.5], F), np.array([1.0, np.nan], F)
    assert precision._same(good, good, False)
    for other in (bad, np.array([1.0, np.inf], F)):
        assert not precision._same(other, good, False) and not precision._same(good, other, False)
        assert not precision._same(other, other, False)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16, F, np.float64])
def test_floats_of_every_type_are_compared(dtype: Any) -> None:
    good = np.array([1.5, -3.25], dtype)
    assert precision._same(good, good, False) and not precision._same((good * 2).astype(dtype), good, False)
    assert not precision._same(np.array([3]), np.array([4]), False)


# what a verdict is kept for


def trials(monkeypatch: pytest.MonkeyPatch, proto: onnx.ModelProto) -> int:
    """How many trial runs a session of the model makes."""
    count, agrees = [0], precision.Trial._agrees

    def counted(self: precision.Trial, *given: Any) -> bool:
        count[0] += 1
        return agrees(self, *given)
    with monkeypatch.context() as patch:
        patch.setattr(precision.Trial, "_agrees", counted)
        session(proto, float32_precision="auto")
    return count[0]


def leaky(alpha: float = 0.1, weight: float | None = None, **given: Any) -> onnx.ModelProto:
    w = W.copy()
    if weight is not None:
        w[101, 83] = weight
    return network(PRODUCT, ("LeakyRelu", "y", "z", {"alpha": alpha}), w=w, **given)


def test_a_verdict_is_believed_for_the_same_model_only(monkeypatch: pytest.MonkeyPatch) -> None:
    assert trials(monkeypatch, leaky())
    assert not trials(monkeypatch, leaky())
    assert trials(monkeypatch, leaky(alpha=0.2))
    assert trials(monkeypatch, leaky(weight=7.0))
    assert trials(monkeypatch, leaky(rows=M + 1))
    typed = network(PRODUCT, ("Cast", "y", "z", {"to": TensorProto.FLOAT16}), output=TensorProto.FLOAT16, w=W)
    assert trials(monkeypatch, typed)
    assert not trials(monkeypatch, leaky())


def test_a_verdict_is_believed_for_the_same_code_only(monkeypatch: pytest.MonkeyPatch) -> None:
    assert trials(monkeypatch, leaky())
    monkeypatch.setattr(cache, "stamp", lambda: "another")
    assert trials(monkeypatch, leaky())


def test_an_attribute_that_changes_the_verdict() -> None:
    def made(to: int) -> onnx.ModelProto:
        casts = [("Cast", "s", "d", {"to": to}), ("Cast", "d", "z", {"to": TensorProto.FLOAT})]
        return network(*SCALED, *casts, w=W, big=np.array(3e4, F))
    assert products(session(made(TensorProto.DOUBLE), float32_precision="auto"))
    assert not products(session(made(TensorProto.INT32), float32_precision="auto"))


def test_every_shape_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Formulas, which answer for shapes that nobody lowered, are for what needs no trial."""
    s = session(leaky(rows="rows"), float32_precision="auto")
    with knobs.setting(SHAPES=2):
        for rows in (64, 80, 96, 70, 113):
            s.run(None, {"x": weights(rows, K)})
    (native,) = natives(s)
    assert {64, 80, 96, 70, 113} <= {shape[0] for (shape,) in native.tried} and all(native.tried.values())
    assert products(s) == len(native.tried) and not native.learner.formulas


@pytest.mark.parametrize(("value", "good"), [
    (0.0, True), (1.0, True), (1e-20, True), (1e-35, False), (1e-40, False), (np.inf, False), (np.nan, False),
    (np.finfo(F).min, False), (-1e38, True)])
def test_numbers_that_halves_stand_for(value: float, good: bool) -> None:
    assert amx.holds(np.array([1, value, -3], F)) == good
