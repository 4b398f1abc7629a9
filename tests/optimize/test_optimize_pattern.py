"""The pattern language, and the switches."""

from __future__ import annotations

import numpy as np
import pytest
from support_graphs import Net

from orthrus import knobs
from orthrus.ir import No
from orthrus.limits import DEFAULT
from orthrus.optimize import pattern
from orthrus.optimize.pattern import rule
from orthrus.optimize.rewrite import Entry, Work

F = np.float32


def apply(it, build):
    net = Net()
    graph = net.outputs(*build(net))
    entries = {it.name: Entry(it.name, 1)}
    work = Work(graph, DEFAULT, [float("inf")], entries)
    work.run_rules([it])
    work.finish()
    return [n.kind for n in graph.nodes], entries[it.name]


@rule(lambda op, x, a, b=None: op.Clip(op.Mul(x, 2), op.constant(a), b))
def fuse_test(op, x, a, b):
    return op.Relu(x) if b is None else No("an upper bound")


@pytest.mark.parametrize(("build", "kinds"), [
    (lambda n: [n.Clip(n.Mul(n.input("x", 3), F(2)), F(0))], ["Relu"]),
    (lambda n: [n.Clip(n.Mul(F(2), n.input("x", 3)), F(0))], ["Relu"]),
    (lambda n: [n.Clip(n.Mul(n.input("x", 3), F(3)), F(0))], ["Mul", "Clip"]),
    (lambda n: [n.Clip(n.Mul(n.input("x", 3), F(2)), n.input("a"))], ["Mul", "Clip"]),
    (lambda n: [n.Clip(n.Mul(n.input("x", 3), F(2)), F(0), F(6))], ["Mul", "Clip"]),
])
def test_constants_order_and_absent_inputs(build, kinds):
    assert apply(fuse_test, build)[0] == kinds


def test_refusals_are_collected():
    _, entry = apply(fuse_test, lambda n: [n.Clip(n.Mul(n.input("x", 3), F(2)), F(0), F(6))])
    assert entry.declined == ["Clip_1 (Clip-13): an upper bound"]


def test_inner_values_read_elsewhere_block():
    def build(n):
        y = n.Mul(n.input("x", 3), F(2))
        return [n.Clip(y, F(0)), y]
    assert apply(fuse_test, build)[0] == ["Mul", "Clip"]


@rule(lambda op, x, y: op.Mul(op.Add(x, y), op.Sub(x, y)))
def fuse_backtracking(op, x, y):
    return op.Sub(x, y)


def test_orders_are_tried_until_all_variables_agree():
    def build(n):
        a, b = n.input("a", 3), n.input("b", 3)
        return [n.Mul(n.Add(a, b), n.Sub(b, a))]
    assert apply(fuse_backtracking, build)[0] == ["Sub"]


@rule(lambda op, x: op.Exp(x))
def fuse_wrong_type(op, x):
    return op.Cast(x, to=11)


@rule(lambda op, x: op.Exp(x))
def fuse_wrong_shape(op, x):
    return op.Transpose(x, perm=[1, 0])


@pytest.mark.parametrize("it", [fuse_wrong_type, fuse_wrong_shape])
def test_a_replacement_of_another_type_is_refused(it):
    kinds, entry = apply(it, lambda n: [n.Exp(n.input("x", 2, 3))])
    assert kinds == ["Exp"] and "would change" in entry.declined[0]


@rule(lambda op, x, s: op.Softmax(op.either(op.Add(x, s), op.Sub(x, s)), axis=-1),
      lambda op, x, s: op("com.microsoft::FastGelu")(x, s))
def fuse_alternatives(op, x, s, root):
    return op.again(root, x, s) if root.domain and s.const is None else op.Neg(x)


@pytest.mark.parametrize("build", [
    lambda n: n.Softmax(n.Add(n.input("x", 3, 4), n.input("y", 3, 4))),
    lambda n: n.Softmax(n.Sub(n.input("x", 3, 4), n.input("y", 3, 4)), axis=-1),
    lambda n: n.node("com.microsoft", "FastGelu", n.input("x", 3, 4), np.ones(4, F)),
])
def test_alternatives_defaults_and_domains(build):
    assert apply(fuse_alternatives, lambda n: [build(n)])[0] == ["Neg"]


@rule(lambda op, x, p: op.Neg(op.Split(x, p, axis=0)[1]))
def fuse_second_output(op, x, p):
    return op.Slice(x, np.array([2]), np.array([4]))


def test_outputs_by_place():
    def build(place):
        return lambda n: [n.Neg(n.node("", "Split", n.input("x", 4), np.array([2, 2]), outputs=2)[place])]
    assert apply(fuse_second_output, build(1))[0] == ["Slice"]
    assert apply(fuse_second_output, build(0))[0] == ["Split", "Neg"]


def test_numbers_match_within_the_rounding_of_their_type():
    assert pattern.close(float(F(0.044715)), 0.044715, np.float32)
    assert not pattern.close(0.0448, 0.044715, np.float32)
    assert pattern.close(float(np.float16(0.044715)), 0.044715, np.float16)
    assert not pattern.close(3, 2, np.int64) and pattern.close(2, 2.0, np.int64)


def test_unknown_switch_names_the_near_one():
    with pytest.raises(ValueError, match="did you mean ORTHRUS_DEBUG"):
        knobs.read({"ORTHRUS_DEBG": "1"})
    with pytest.raises(ValueError, match="whole number"):
        knobs.read({"ORTHRUS_STOP": "many"})
    with pytest.raises(ValueError, match="unknown switch"), knobs.setting(NOTHING=1):
        pass


def test_setting_is_undone():
    with knobs.setting(DEBUG=3, SKIP="a, b"):
        assert knobs.DEBUG >= 3 and knobs.names(knobs.SKIP) == {"a", "b"}
    assert not knobs.DEBUG >= 3 and not knobs.SKIP
    knobs.read({"PATH": "x", "ORTHRUS_CHECK": "0"})
