"""Lowering again: what plans for several shapes share, and what they must not."""

from __future__ import annotations

import threading
from typing import Any
from unittest import mock

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from skips import needs

import orthrus as ort
from orthrus.codegen.write.body import Body
from orthrus.codegen.write.emit import V
from orthrus.codegen.write.expr import Expr
from orthrus.codegen.write.template import template
from orthrus.codegen.write.trace import trace
from orthrus.errors import Fail
from orthrus.ir import element_of
from orthrus.lowering.native import Native
from orthrus.ops import defined, find

F = "float32"
generates = needs("generated code")


@template("x:ptr")
def lowering_probe(f: Body, x: V, *, by: float, tree: Expr | None = None) -> None:
    """Nothing."""


def layers(count: int) -> onnx.ModelProto:
    """[N, 8] times a matrix, with a Softmax behind it, so many times."""
    rng = np.random.default_rng(3)
    nodes, weights, last = [], [], "x"
    for i in range(count):
        weights.append(onnx.numpy_helper.from_array(rng.standard_normal((8, 8)).astype(np.float32), f"w{i}"))
        nodes += [helper.make_node("MatMul", [last, f"w{i}"], [f"m{i}"], name=f"product{i}"),
                  helper.make_node("Softmax", [f"m{i}"], [f"s{i}"], name=f"softmax{i}", axis=1)]
        last = f"s{i}"
    graph = helper.make_graph(
        nodes, "layers", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 8])],
        [helper.make_tensor_value_info(last, TensorProto.FLOAT, ["N", 8])], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def expected(model: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    for weights in model.graph.initializer:
        x = x @ onnx.numpy_helper.to_array(weights)
        x = np.exp(x - x.max(1, keepdims=True))
        x /= x.sum(1, keepdims=True)
    return x


def rows(count: int) -> np.ndarray:
    return np.random.default_rng(count).standard_normal((count, 8)).astype(np.float32)


def native(session: ort.InferenceSession) -> Native:
    """The kernel of the session's one part."""
    core: Any = session._sess
    (step,) = core._engine.program.calls
    kernel = step.kernel.run
    assert isinstance(kernel, Native)
    return kernel


@generates
def test_every_shape_gives_what_it_should() -> None:
    model = layers(3)
    session = ort.InferenceSession(model)
    for count in (5, 64, 5, 7, 200, 1, 64):
        (made,) = session.run(None, {"x": rows(count)})
        np.testing.assert_allclose(made, expected(model, rows(count)), rtol=1e-5, atol=1e-6)


@generates
def test_plans_share_memory() -> None:
    session = ort.InferenceSession(layers(3))
    kernel = native(session)
    arenas = []
    for count in (400, 300, 20):
        kernel(rows(count))
        (instance,) = kernel.plans[((count, 8),)].idle  # type: ignore[union-attr]
        arenas.append(instance.arena)
    assert arenas[0] is arenas[1] is arenas[2]
    kernel(rows(40_000))
    (larger,) = kernel.plans[((40_000, 8),)].idle  # type: ignore[union-attr]
    assert larger.arena is not arenas[0] and larger.arena.size > arenas[0].size
    assert not any(arena.in_use for arena in (*arenas, larger.arena))


@generates
def test_runs_at_the_same_moment_do_not() -> None:
    session = ort.InferenceSession(layers(2))
    kernel = native(session)
    kernel(rows(50)), kernel(rows(30))
    first, second = (kernel.plans[((count, 8),)] for count in (50, 30))
    assert first is not None and second is not None
    one, other, third = first.take(), second.take(), first.take()
    assert len({id(instance.arena) for instance in (one, other, third)}) == 3
    for plan, instance in ((first, one), (second, other), (first, third)):
        plan.give(instance)


@generates
def test_threads_at_several_shapes() -> None:
    model = layers(3)
    session = ort.InferenceSession(model)
    wrong: list[int] = []

    def work(count: int) -> None:
        for _ in range(40):
            (made,) = session.run(None, {"x": rows(count)})
            if not np.allclose(made, expected(model, rows(count)), rtol=1e-5, atol=1e-6):
                wrong.append(count)
    threads = [threading.Thread(target=work, args=(count,)) for count in (3, 100, 700)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@generates
def test_a_run_that_fails_gives_its_memory_back(monkeypatch: pytest.MonkeyPatch) -> None:
    session = ort.InferenceSession(layers(1))
    kernel = native(session)
    kernel(rows(9))
    plan = kernel.plans[((9, 8),)]
    assert plan is not None

    def fail(*_: Any) -> None:
        raise KeyboardInterrupt
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(kernel, "_run", fail)
        kernel(rows(9))
    (instance,) = plan.idle
    assert not instance.arena.in_use


def test_equal_parameters_are_one_kernel() -> None:
    tree = Expr("maximum", (Expr.leaf(0, F), Expr.const(0.0, F)), F)
    same = Expr("maximum", (Expr.leaf(0, F), Expr.const(0.0, F)), F)
    one = lowering_probe(by=2, tree=tree)
    assert one is lowering_probe(tree=same, by=2)
    assert repr(lowering_probe(by=True, tree=tree)) != repr(one)
    for number in (0.0, -0.0, 2.0):
        assert repr(lowering_probe(by=number)) == repr(lowering_probe(by=number)) and (
            str(number) in repr(lowering_probe(by=number)))


@pytest.mark.parametrize("values", [(0.0, -0.0), (0.0, 0), (1, True), (1.0, 1)])
def test_trees_are_what_they_print(values: tuple[Any, Any]) -> None:
    a, b = (Expr("add", (Expr.leaf(0, F), Expr.const(value, F)), F) for value in values)
    assert a != b and repr(a) != repr(b)
    assert len({a, b, a.substitute(lambda leaf: leaf)}) == 2
    shifted = [tree.substitute(lambda leaf: Expr.leaf(leaf.value + 1, F)) for tree in (a, b)]
    assert [repr(tree.args[1].value) for tree in shifted] == [repr(value) for value in values]


def test_leaves_come_in_order_and_are_asked_once() -> None:
    x, y, z = (Expr.leaf(i, F) for i in (2, 0, 1))
    tree = Expr("add", (Expr("mul", (x, y), F), Expr("fma", (y, Expr.const(1.0, F), z), F)), F)
    asked: list[int] = []

    def how(leaf: Expr) -> Expr:
        asked.append(leaf.value)
        return Expr.leaf(leaf.value + 10, leaf.dtype)
    made = tree.substitute(how)
    assert asked == [2, 0, 1] and [leaf.value for leaf in made.leaves()] == [12, 10, 11]
    assert tree.size() == made.size() == 3


def test_traces_tell_attributes_apart() -> None:
    leaky, add = find("", "LeakyRelu", 16), find("", "Add", 14)
    assert leaky is not None and add is not None
    found = [trace(leaky, {"alpha": alpha}, [F]) for alpha in (0.0, -0.0, 0.5, 0.25)]
    assert len({repr(tree) for tree in found}) == 4
    assert trace(leaky, {"alpha": 0.5}, [F]) is found[2]
    sums = [trace(add, {}, [F, F], {1: np.float32(number)}) for number in (0.0, -0.0, 1.0)]
    assert len({repr(tree) for tree in sums}) == 3


ALONE = {
    "nothing to add up": ("MatMul", [(5, 0), (0,)], {}, 1),
    "nothing to add up, batches": ("MatMul", [(2, 3, 0), (2, 0, 4)], {}, 1),
    "nothing to add up, a bias": ("Gemm", [(3, 0), (0, 4), (4,)], {}, 1),
    "a recurrence without its size": ("RNN", [(1, 1, 1), (1, 3, 1), (1, 3, 3)], {}, 2),
    "another one": ("GRU", [(1, 1, 1), (1, 3, 1), (1, 3, 1)], {}, 2),
    "attention without a past": ("Attention", [(1, 2, 1, 5), (1, 2, 2, 5), (1, 2, 2, 1)], {}, 4),
}


@generates
@pytest.mark.parametrize("name", ALONE)
def test_rules_do_not_fail_at_the_edges(name: str) -> None:
    """A node is lowered or declined: `fallback="error"` has a rule's own fault raised."""
    op, shapes, attrs, outputs = ALONE[name]
    arrays = {f"x{i}": np.ones(s, np.float32) for i, s in enumerate(shapes)}
    made = [f"y{i}" for i in range(outputs)]
    graph = helper.make_graph(
        [helper.make_node(op, list(arrays), made, **attrs)], "g",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, a.shape) for n, a in arrays.items()],
        [helper.make_empty_tensor_value_info(made[0])])
    imports = [helper.make_opsetid("", 23)]
    raw = helper.make_model(graph, opset_imports=imports, ir_version=10).SerializeToString()
    got = ort.InferenceSession(raw, fallback="error").run(None, arrays)
    plain = ort.InferenceSession(raw, providers=[("CPUExecutionProvider", {"use_codegen": "0"})])
    np.testing.assert_allclose(got[0], plain.run(None, arrays)[0], 1e-5)


@generates
@pytest.mark.parametrize("dtype", ("float32", "float16"))
@pytest.mark.parametrize("name", sorted({it.name for it in defined() if it.variadic and it.broadcasts}))
def test_operators_of_as_many_operands_as_there_are(name: str, dtype: str) -> None:
    """No tree grows with the number of operands, what is summed in pieces is rounded no sooner, and a number
    that a model holds counts with its rank."""
    rng = np.random.default_rng(5)
    shapes = {"a": (4, 1), "b": (2, 1, 3), "c": (1,)}
    arrays = {n: rng.standard_normal(shape).astype(dtype) for n, shape in shapes.items()}
    whole = helper.make_node(name, [*[*arrays, "d"] * 250, "k", "b"], ["y"])
    graph = helper.make_graph(
        [helper.make_node("Mul", ["a", "b"], ["d"]), whole], "g",
        [helper.make_tensor_value_info(n, int(element_of(a.dtype)), a.shape) for n, a in arrays.items()],
        [helper.make_empty_tensor_value_info("y")],
        [numpy_helper.from_array(np.full((1,) * 4, 0.5, dtype), "k")])
    imports = [helper.make_opsetid("", 21)]
    raw = helper.make_model(graph, opset_imports=imports, ir_version=10).SerializeToString()
    (got,) = ort.InferenceSession(raw, fallback="error").run(None, arrays)
    plain = ort.InferenceSession(raw, providers=[("CPUExecutionProvider", {"use_codegen": "0"})])
    np.testing.assert_allclose(got, plain.run(None, arrays)[0], 1e-5 if dtype == F else 1e-3, 1e-4)


@pytest.mark.parametrize("missing", ("starts", "ends", "steps", ""))
def test_elements_of_a_slice_whose_bounds_are_fed(missing: str) -> None:
    """What is not known of a slice is nothing, not the whole: its length is that of the values that come."""
    data = helper.make_tensor("data", TensorProto.INT64, [6], range(6))
    bounds = {"starts": 1, "ends": 6, "steps": 2}
    known = [helper.make_tensor(k, TensorProto.INT64, [1], [v]) for k, v in bounds.items() if k != missing]
    fed = {missing: np.array([bounds[missing]])} if missing else {}
    nodes = [helper.make_node("Slice", ["data", "starts", "ends", "", "steps"], ["s"]),
             helper.make_node("ConstantOfShape", ["s"], ["y"])]
    inputs = [helper.make_tensor_value_info(k, TensorProto.INT64, [1]) for k in fed]
    ends = [helper.make_empty_tensor_value_info(name) for name in "sy"]
    graph = helper.make_graph(nodes, "g", inputs, ends, [data, *known])
    imports = [helper.make_opsetid("", 13)]
    raw = helper.make_model(graph, opset_imports=imports, ir_version=10).SerializeToString()
    for level in (ort.GraphOptimizationLevel.ORT_DISABLE_ALL, ort.GraphOptimizationLevel.ORT_ENABLE_ALL):
        options = ort.SessionOptions()
        options.graph_optimization_level = level
        s, y = ort.InferenceSession(raw, options).run(None, fed)
        assert s.tolist() == [1, 3, 5] and y.shape == (1, 3, 5)


@generates
def test_nothing_is_prepared_for_sizes_nobody_can_feed() -> None:
    """Tables of windows over an axis of that length would take as much memory as the axis."""
    node = helper.make_node("LpPool", ["x"], ["y"], kernel_shape=[5, 5], strides=[3, 3])
    for width, prepared in ((65, True), ((1 << 31) - 1, False)):
        inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 32, width])]
        graph = helper.make_graph([node], "g", inputs, [helper.make_empty_tensor_value_info("y")])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
        with mock.patch.object(Native, "_made", return_value=None) as made:
            ort.InferenceSession(model.SerializeToString(), limits=ort.Limits(max_tensor_bytes=1 << 30))
        assert made.called == prepared


@pytest.mark.parametrize("rows", [0, 1, 2])
@pytest.mark.parametrize("fed", [False, True])
def test_a_rest_that_does_not_divide_is_refused_at_every_batch(rows: int, fed: bool) -> None:
    values = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, 7]),
              helper.make_tensor_value_info("s", TensorProto.INT64, [3])]
    wanted = np.array([0, 2, -1], np.int64)
    graph = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["z"]), helper.make_node("Reshape", ["z", "s"], ["y"])], "g",
        values[:1 + fed], [helper.make_empty_tensor_value_info("y")],
        [] if fed else [numpy_helper.from_array(wanted, "s")])
    model = helper.make_model(graph, ir_version=9, opset_imports=[helper.make_opsetid("", 17)])
    session = ort.InferenceSession(model.SerializeToString())
    with pytest.raises(Fail, match="7 elements do not divide by 2"):
        session.run(None, {"x": np.ones((rows, 7), np.float32), **({"s": wanted} if fed else {})})
