"""The passes that are no rules, and the driver: order, levels, skipping, bounds, journal."""

from __future__ import annotations

import dataclasses
import random

import numpy as np
import onnx
import pytest
from support_graphs import Net, evaluate, feeds, kinds

import orthrus as ort
from orthrus import knobs
from orthrus.ir import Graph, Node, TensorType, Value, verify
from orthrus.limits import DEFAULT
from orthrus.ops import find
from orthrus.optimize import PASSES, optimize
from orthrus.optimize.dimensions import Dimensions
from orthrus.optimize.pattern import Rule

F = np.float32


def ints(*values):
    return np.array(values, np.int64)


def run(build, level=99, opset=None, skip=(), limits=None, **sizes):
    """Optimize what `build` makes, check the results, and give the graph and the journal by name."""
    def made():
        net = Net(opset)
        return net.outputs(*build(net))
    before, after = made(), made()
    given = feeds(before, **{"N": 2, "S": 3, **sizes})
    expected = evaluate(before, given)
    with knobs.setting(CHECK=1):
        journal = optimize(after, level, skip, limits=limits)
    verify(after)
    for a, b in zip(expected, evaluate(after, given), strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-5, atol=1e-5)
    return after, {entry.name: entry for entry in journal}


# dead nodes, initializers


def test_dead_nodes_and_their_makers_go():
    def build(n):
        x = n.input("x", 2, 3)
        n.Exp(n.Add(x, F(2)))
        return [n.Relu(x)]
    graph, journal = run(build, level=1)
    assert kinds(graph) == ["Relu"] and journal["drop_dead_nodes"].count == 2
    assert not graph.initializers and journal["drop_unused_initializers"].count


def test_what_a_body_reads_is_alive():
    def build(n):
        x, cond = n.input("x", 2, 3), n.input("c", dtype=bool)
        y = n.Exp(x)
        return [_if(n, cond, lambda m: m.Add(y, F(1)), lambda m: m.Mul(y, F(2)))]
    graph, _ = run(build)
    assert kinds(graph) == ["Exp", "If"]


def _if(net, cond, then, other):
    bodies = {}
    for name, build in (("then_branch", then), ("else_branch", other)):
        inner = Net(net.opset, net.graph)
        bodies[name] = inner.outputs(build(inner))
    return net.If(cond, **bodies)


# identities


SAME = {
    "Identity": lambda n, x: n.Identity(x),
    "Dropout": lambda n, x: n.Dropout(x, F(0.5)),
    "Cast": lambda n, x: n.Cast(x, to=1),
    "Reshape": lambda n, x: n.Reshape(x, ints(0, -1, 4)),
    "Reshape static": lambda n, x: n.Reshape(x, ints(2, 3, 4)),
    "Transpose": lambda n, x: n.Transpose(x, perm=[0, 1, 2]),
    "Slice": lambda n, x: n.Slice(x, ints(0, 0), ints(3, 1 << 40), ints(1, -1)),
    "Pad": lambda n, x: n.Pad(x, ints(0, 0, 0, 0, 0, 0)),
    "Expand": lambda n, x: n.Expand(x, ints(3, 1)),
    "Expand to own shape": lambda n, x: n.Expand(x, n.Shape(x)),
    "Concat": lambda n, x: n.Concat(x, axis=0),
    "Sum": lambda n, x: n.Sum(x),
    "Tile": lambda n, x: n.Tile(x, ints(1, 1, 1)),
    "Clip": lambda n, x: n.Clip(x),
    "Resize": lambda n, x: n.Resize(x, None, np.ones(3, F)),
    "Add": lambda n, x: n.Add(np.zeros((1, 4), F), x),
    "Sub": lambda n, x: n.Sub(x, F(0)),
    "Mul": lambda n, x: n.Mul(x, np.ones((2, 3, 4), F)),
    "Div": lambda n, x: n.Div(x, F(1)),
    "Pow": lambda n, x: n.Pow(x, F(1)),
    "CastLike": lambda n, x: n.CastLike(x, x),
}
OTHER = {
    "Dropout trained": lambda n, x: n.Dropout(x, F(0), np.array(True)),
    "Cast": lambda n, x: n.Cast(x, to=11),
    "Slice": lambda n, x: n.Slice(x, ints(0), ints(-1), ints(1)),
    "Pad": lambda n, x: n.Pad(x, ints(0, 0, 0, 0, 0, 1)),
    "Expand": lambda n, x: n.Expand(x, ints(2, 2, 3, 4)),
    "Concat": lambda n, x: n.Concat(x, x, axis=0),
    "Sub": lambda n, x: n.Sub(F(0), x),
    "Div": lambda n, x: n.Div(F(1), x),
    "Mul": lambda n, x: n.Mul(x, np.ones((5, 1, 1, 1), F)),
    "Add": lambda n, x: n.Add(x, np.zeros((1, 1, 1, 1), F)),
    "Transpose": lambda n, x: n.Transpose(x, perm=[0, 2, 1]),
    "Tile": lambda n, x: n.Tile(x, ints(1, 1, 2)),
    "Resize": lambda n, x: n.Resize(x, None, np.array([1, 1, 2], F)),
}


@pytest.mark.parametrize("name", SAME)
def test_identity_goes(name):
    graph, journal = run(lambda n: [n.Neg(SAME[name](n, n.Exp(n.input("x", 2, 3, 4))))])
    assert kinds(graph) == ["Exp", "Neg"] and journal["drop_identity"].count


@pytest.mark.parametrize("name", OTHER)
def test_what_changes_something_stays(name):
    graph, journal = run(lambda n: [n.Neg(OTHER[name](n, n.Exp(n.input("x", 2, 3, 4))))])
    assert len(graph.nodes) == 3 and not journal["drop_identity"].count


def test_graph_outputs_keep_their_names():
    def build(n):
        x = n.input("x", 2, 3)
        y = n.Exp(x)
        return [n.Identity(y), n.Identity(y), n.Identity(x), n.Add(F(1), F(2))]
    graph, _ = run(build)
    assert [v.name for v in graph.outputs] == ["y0", "y1", "y2", "y3"]
    assert kinds(graph).count("Identity") == 2 and graph.initializers["y3"].const == 3


# constants


def test_constants_are_folded_through():
    def build(n):
        c = n.Mul(n.Constant(value=np.arange(4, dtype=F)), n.Constant(value=F(2)))
        return [n.Add(n.input("x", 3, 4), n.Reshape(n.Transpose(c), n.Concat(ints(1), ints(-1), axis=0)))]
    graph, _ = run(build, level=1)
    assert kinds(graph) == ["Add"] and list(graph.initializers.values())[0].const.tolist() == [[0, 2, 4, 6]]


def test_random_and_dequantized_are_not_folded():
    net = Net()
    x = net.input("x", 3)
    noise = net.RandomNormal(shape=[3])
    weight = net.DequantizeLinear(np.array([1, 2, 3], np.int8), F(0.5))
    graph = net.outputs(net.Add(x, noise), net.Mul(x, weight))
    optimize(graph)
    assert {"RandomNormal", "DequantizeLinear"} <= set(kinds(graph))


def test_an_error_is_left_for_run_time():
    net = Net()
    bad = net.Gather(np.arange(3, dtype=F), ints(7))
    graph = net.outputs(net.Add(net.input("x", 1), bad))
    journal = {e.name: e for e in optimize(graph)}
    assert "Gather" in kinds(graph) and "out of" in journal["fold_constants"].declined[0]


def test_folding_is_bounded():
    small = dataclasses.replace(DEFAULT, max_fold_bytes=1000)
    graph, journal = run(
        lambda n: [n.Add(n.input("x", 100, 100), n.Expand(F(3), ints(100, 100)))], limits=small
    )
    assert "Expand" in kinds(graph) and "budget" in journal["fold_constants"].declined[0]
    net = Net()
    graph = net.outputs(net.Tile(np.ones(1, F), ints(1 << 45)))
    optimize(graph)
    assert kinds(graph) == ["Tile"]


def test_overridable_initializers_are_no_constants():
    net = Net()
    x = net.input("x", 3)
    weight = Value("w", TensorType(x.elem, (3,)))
    weight.default = np.ones(3, F)
    net.graph.inputs.append(net.graph.add_initializer(weight))
    graph = net.outputs(net.Mul(x, weight), net.Neg(weight))
    optimize(graph)
    assert kinds(graph) == ["Mul", "Neg"] and weight.const is None and "w" in graph.initializers


# shapes


def test_static_shapes_are_constants():
    def build(n):
        x = n.input("x", 2, 3, 4)
        shape = n.Shape(x)
        flat = n.Concat(n.Unsqueeze(n.Gather(shape, np.array(0)), ints(0)), ints(-1), axis=0)
        return [n.Reshape(n.Exp(x), flat)]
    graph, _ = run(build)
    assert kinds(graph) == ["Exp", "Reshape"]


def test_computed_reshape_copies_dimensions():
    def build(n):
        x = n.input("x", "N", "S", 12)
        shape = n.Shape(x)
        parts = [n.Unsqueeze(n.Gather(shape, np.array(i)), ints(0)) for i in (0, 1)]
        return [n.Reshape(n.Exp(x), n.Concat(*parts, ints(-1), ints(4), axis=0))]
    graph, _ = run(build)
    assert kinds(graph) == ["Exp", "Reshape"]
    assert graph.nodes[1].inputs[1].const.tolist() == [0, 0, -1, 4]


def test_windows_over_one_dimension_give_equal_ones():
    def build(n):
        x = n.input("x", "N", 3, "S")
        a, b = (n.Conv(x, np.full((4, 3, 2), v, F), strides=[2], pads=[1, 1]) for v in (1, 2))
        return [n.Reshape(n.Exp(a), n.Shape(n.Abs(b)))]
    graph, _ = run(build, level=1, S=9)
    assert kinds(graph) == ["Conv", "Exp"], "the dimensions of a and b are known to be the same"


def test_one_node_for_the_same_dimensions():
    def build(n):
        x = n.input("x", "N", "S")
        a, b = n.Exp(x), n.Neg(x)
        return [n.ConstantOfShape(n.Shape(a)), n.Expand(F(2), n.Shape(b))]
    graph, _ = run(build)
    assert kinds(graph).count("Shape") == 1


@pytest.mark.parametrize("end", ["5", "N"])
@pytest.mark.parametrize("shapes", [((1, -1), (-1, 1)), ((-1,), (1, -1)), ((-1, 1, 1), (1, -1, 1))])
def test_the_same_numbers_in_other_shapes_stay_apart(end, shapes):
    """Ranges that meet across axes, as masks of attention are made."""
    def build(n):
        x = n.input("x", "N", 3)
        last = n.constant(np.array(5)) if end == "5" else n.Squeeze(n.Shape(x, start=0, end=1))
        count = n.Range(n.constant(np.array(0)), last, n.constant(np.array(1)))
        left, right = (n.Reshape(count, n.constant(np.array(shape))) for shape in shapes)
        tall, wide = (n.Unsqueeze(count, n.constant(np.array([axis]))) for axis in (0, 1))
        return [n.Sub(left, right), n.Sub(n.Abs(tall), wide), n.Exp(x)]
    run(build)


@pytest.mark.parametrize("sizes", [
    lambda n, s: s, lambda n, s: n.Cast(n.Cast(s, to=6), to=7), lambda n, s: n.Add(s, ints(0, 1)),
    lambda n, s: n.Concat(n.Gather(s, ints(0)), ints(3), axis=0), lambda n, s: n.Slice(s, ints(0), ints(2)),
    lambda n, s: n.Concat(n.Unsqueeze(n.Squeeze(n.Slice(s, ints(0), ints(1))), ints(0)), ints(-1), axis=0)])
def test_what_follows_from_a_dimension_follows_it_when_more_is_known(sizes):
    n = Net()
    kept = n.Compress(n.input("x", "N", 3), np.array([True, True]), axis=0)
    graph = n.outputs(n.Reshape(n.input("z", "P"), sizes(n, n.Shape(kept))))
    dimensions = Dimensions({**graph.info.opsets}, [graph])
    made, first = graph.outputs[0], graph.nodes[0].output
    dimensions.refine(graph)
    assert made.shape[0] == first.shape[0]
    first.type = TensorType(first.type.elem, ("N", 3))
    dimensions.refine(graph)
    assert made.shape[0] == "N"


def test_invented_dimension_names_are_gone_afterwards():
    graph, _ = run(lambda n: [n.Exp(n.NonZero(n.input("x", "N", 3)))])
    assert graph.nodes[0].output.shape == (2, None)


# repeats


def test_repeats_merge():
    def build(n):
        x = n.input("x", 2, 3)
        return [n.Add(n.Exp(n.Mul(x, F(3))), n.Exp(n.Mul(x, F(3))))]
    graph, journal = run(build, level=1)
    assert kinds(graph) == ["Mul", "Exp", "Add"] and journal["merge_common_subexpressions"].count == 3


@pytest.mark.parametrize("build", [
    lambda n, x: (n.ReduceSum(x, ints(0)), n.ReduceSum(x, ints(0), keepdims=0)),
    lambda n, x: (n.RandomNormalLike(x), n.RandomNormalLike(x)),
    lambda n, x: (n.Sub(x, F(2)), n.Sub(F(2), x)),
    lambda n, x: (n.DequantizeLinear(n.Cast(x, to=3), F(2)), n.DequantizeLinear(n.Cast(x, to=3), F(2))),
])
def test_differing_nodes_do_not_merge(build):
    net = Net()
    graph = net.outputs(*build(net, net.input("x", 2, 3)))
    count = sum(kind != "Cast" for kind in kinds(graph))
    optimize(graph)
    assert sum(kind != "Cast" for kind in kinds(graph)) == count


# branches and bodies


@pytest.mark.parametrize("taken", [True, False])
def test_constant_condition_inlines_the_branch(taken):
    def build(n):
        x = n.input("x", 2, 3)
        return [
            n.Neg(_if(n, n.constant(np.array(taken)), lambda m: m.Add(m.Exp(x), F(1)), lambda m: m.Abs(x)))
        ]

    graph, journal = run(build)
    assert (
        kinds(graph) == (["Exp", "Add", "Neg"] if taken else ["Abs", "Neg"])
        and journal["fold_branches"].count
    )


def test_branch_that_hands_out_an_outer_value_keeps_the_output_name():
    def build(n):
        x = n.input("x", 2, 3)
        return [_if(n, n.constant(np.array(True)), lambda m: x, lambda m: m.Abs(x))]
    graph, _ = run(build)
    assert graph.outputs[0].name == "y0"


def test_bodies_are_optimized_and_nothing_crosses():
    def build(n):
        x, cond = n.input("x", 2, 3), n.input("c", dtype=bool)
        gate = n.Sigmoid(x)
        return [_if(n, cond, lambda m: m.Mul(x, m.Sigmoid(m.Identity(x))), lambda m: m.Mul(x, gate))]
    graph, _ = run(build)
    assert kinds(graph) == ["Sigmoid", "If"]
    assert [kinds(body) for body in graph.nodes[1].bodies()] == [["Swish"], ["Mul"]]


def test_loop_bodies():
    def build(n):
        x = n.input("x", 3)
        body = Net(n.opset, n.graph)
        turn, go = body.input("turn", dtype=np.int64), body.input("go", dtype=bool)
        state = body.input("state", 3)
        graph = body.outputs(body.Identity(go), body.Add(body.Mul(state, F(1)), x))
        assert turn in graph.inputs
        return [n.Loop(np.array(4), np.array(True), n.Neg(x), body=graph)]
    graph, _ = run(build)
    assert kinds(next(graph.nodes[1].bodies())) == ["Identity", "Add"]


def _no_turns(made, dropped):
    """A Loop that gathers, of no turns: only what its body declares says the rank of what it gathers."""
    def tensor(name, elem, shape):
        return onnx.helper.make_tensor_value_info(name, elem, shape)
    number, truth, real = onnx.TensorProto.INT64, onnx.TensorProto.BOOL, onnx.TensorProto.FLOAT
    node, branch = onnx.helper.make_node, onnx.helper.make_graph
    makers = {
        "Reshape": node("Reshape", ["state", "sizes"], ["made"]),
        "If": node("If", ["go"], ["made"],
                   then_branch=branch([node("Neg", ["state"], ["a"])], "a", [], [tensor("a", real, None)]),
                   else_branch=branch([node("Abs", ["state"], ["b"])], "b", [], [tensor("b", real, None)])),
    }
    body = branch(
        [node("Identity", ["go"], ["on"]), node("Abs", ["state"], ["next"]), makers[made],
         node(dropped, ["made"], ["kept"])],
        "body", [tensor("turn", number, []), tensor("go", truth, []), tensor("state", real, None)],
        [tensor("on", truth, []), tensor("next", real, None), tensor("kept", real, [2, 3])])
    graph = branch([node("Loop", ["turns", "", "x"], ["last", "all"], body=body),
                    node("Transpose", ["all"], ["y"], perm=[2, 0, 1])], "g",
                   [tensor("turns", number, []), tensor("x", real, None), tensor("sizes", number, [None])],
                   [tensor("y", real, None)])
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=9)


@pytest.mark.parametrize("dropped", ["Identity", "Dropout", "Sum"])
@pytest.mark.parametrize("made", ["Reshape", "If"])
def test_what_a_body_declares_outlives_the_operator_that_made_it(made, dropped):
    model = _no_turns(made, dropped).SerializeToString()
    feeds = {"x": np.ones((2, 3), F), "sizes": np.array([2, 3])}
    for level in ort.GraphOptimizationLevel.__members__.values():
        options = ort.SessionOptions()
        options.graph_optimization_level = level
        session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        for turns in (0, 2):
            assert session.run(None, feeds | {"turns": np.array(turns)})[0].shape == (3, turns, 2), level


# older forms


X = (2, 3, 4)
OLD = {
    ("Squeeze", 11): lambda n: n.Squeeze(n.input("x", 2, 1, 3), axes=[1]),
    ("Unsqueeze", 11): lambda n: n.Unsqueeze(n.input("x", 2, 3), axes=[0, -1]),
    ("ReduceMean", 13): lambda n: n.ReduceMean(n.input("x", *X), axes=[-1], keepdims=0),
    ("ReduceSum", 11): lambda n: n.ReduceSum(n.input("x", *X)),
    ("Clip", 6): lambda n: n.Clip(n.input("x", *X), min=-0.5, max=0.5),
    ("Pad", 10): lambda n: n.Pad(n.input("x", 2, 3), pads=[0, 1, 2, 0], value=1.5),
    ("Slice", 9): lambda n: n.Slice(n.input("x", *X), starts=[1, 0], ends=[3, -1], axes=[1, 2]),
    ("Split", 11): lambda n: n.node("", "Split", n.input("x", 5, 2), axis=0, split=[2, 3], outputs=2)[1],
    ("Split", 13): lambda n: n.node("", "Split", n.input("x", 4, 2), axis=0, outputs=2)[1],
    ("TopK", 9): lambda n: n.node("", "TopK", n.input("x", *X), k=2, outputs=2)[0],
    ("Upsample", 9): lambda n: n.Upsample(
        n.input("x", 1, 1, 2, 3), np.array([1, 1, 2, 2], F), mode="nearest"
    ),
    ("Upsample", 7): lambda n: n.Upsample(
        n.input("x", 1, 1, 2, 3), scales=[1.0, 1.0, 2.0, 1.5], mode="linear"
    ),
    ("Resize", 10): lambda n: n.Resize(n.input("x", 1, 1, 4, 3), np.array([1, 1, 0.5, 2], F), mode="nearest"),
    ("Softmax", 11): lambda n: n.Softmax(n.input("x", *X), axis=2),
    ("LogSoftmax", 11): lambda n: n.LogSoftmax(n.input("x", 3, 4)),
    ("Add", 6): lambda n: n.Add(n.input("x", 2, 3, 4), np.ones(3, F), broadcast=1, axis=1),
    ("PRelu", 6): lambda n: n.PRelu(n.input("x", 2, 3, 4), np.array([1, 2, 3], F)),
    ("GroupNormalization", 18): lambda n: n.GroupNormalization(
        n.input("x", 2, 4, 3), np.array([1, 2], F), np.array([3, 4], F), num_groups=2
    ),
    ("DFT", 17): lambda n: n.DFT(n.input("x", 2, 6, 1), axis=1),
    ("GridSample", 16): lambda n: n.GridSample(
        n.input("x", 1, 1, 4, 4), n.input("g", 1, 2, 2, 2), mode="bilinear"
    ),
    ("Scatter", 10): lambda n: n.Scatter(n.input("x", 2, 3), np.array([[0, 1, 1]]), np.ones((1, 3), F)),
}


@pytest.mark.parametrize(("name", "opset"), OLD, ids=lambda v: str(v))
def test_older_form_becomes_the_newest(name, opset):
    graph, journal = run(lambda n: [OLD[name, opset](n)], opset=opset, level=0)
    node = graph.nodes[0]
    assert journal["upgrade_old_forms"].count == 1 and node.op is find("", node.op_type, node.version)
    assert node.op is find("", node.op_type, 1 << 30)


SPECIAL = np.array([np.inf, 1, 1, -0.0, 0, -np.inf, 2, 7, -np.inf, 1, -1, 2, 4, 3, 0, 5], F).reshape(2, 4, 2)
BARE = {
    "Clip": (6, SPECIAL, {}), "DFT": (17, np.ones((2, 4, 1), F), {}), "TopK": (9, SPECIAL, {"k": 2}),
    "Slice": (9, SPECIAL, {"starts": [1], "ends": [3]}), "Pad": (10, SPECIAL, {"pads": [0, 0, 0, 1, 0, 0]}),
    "Squeeze": (11, SPECIAL[:, :1], {}), **dict.fromkeys(("ReduceMax", "ReduceSum"), (11, SPECIAL, {})),
    **dict.fromkeys(("Softmax", "LogSoftmax", "Hardmax"), (11, SPECIAL[1, 1:], {})),
}


@pytest.mark.parametrize("name", BARE)
def test_an_older_form_keeps_the_defaults_of_its_attributes(name):
    opset, x, attrs = BARE[name]
    net = Net(opset)
    graph = net.outputs(net.node("", name, net.input("x", *x.shape), **attrs))
    (before,) = evaluate(graph, {"x": x})
    assert {e.name: e.count for e in optimize(graph, 0)}["upgrade_old_forms"] == 1
    np.testing.assert_array_equal(evaluate(graph, {"x": x})[0], before)


def test_flattening_softmax_stays():
    graph, journal = run(lambda n: [n.Softmax(n.input("x", *X), axis=1)], opset=11)
    assert graph.nodes[0].version == 11 and "flattens" in journal["upgrade_old_forms"].declined[0]


# the driver


def _gelu(n):
    x = n.input("x", 2, 3)
    return [n.Mul(n.Mul(n.Identity(x), n.Add(n.Erf(n.Div(x, F(2 ** 0.5))), F(1))), F(0.5))]


def test_levels_are_prefixes():
    levels = [p.level for p in PASSES]
    assert levels == sorted(levels) and set(levels) == {0, 1, 2, 3}
    assert "Identity" in kinds(run(_gelu, level=0)[0])
    assert "Erf" in kinds(run(_gelu, level=1)[0])
    assert kinds(run(_gelu, level=2)[0]) == ["Gelu"]


def test_names_follow_the_closed_list_of_verbs():
    verbs = {"fuse", "merge", "fold", "drop", "expand", "push", "pull", "upgrade"}
    assert {p.name.split("_")[0] for p in PASSES} <= verbs


def test_skip_by_argument_and_by_switch():
    assert "Erf" in kinds(run(_gelu, skip=["fuse_gelu"])[0])
    with knobs.setting(SKIP="fuse_gelu, drop_identity"):
        graph, journal = run(_gelu)
    assert "Identity" in kinds(graph) and "fuse_gelu" not in journal


def test_stop_counts_rewrites():
    whole = sum(e.count for e in run(_gelu)[1].values() if e.name != "drop_unused_initializers")
    for stop in range(whole + 1):
        with knobs.setting(STOP=stop):
            _, journal = run(_gelu)
        done = sum(
            e.count for e in journal.values() if e.name not in ("drop_unused_initializers", "drop_dead_nodes")
        )
        assert done <= stop
    assert done


def test_dump_and_record(tmp_path):
    seen = []
    net = Net()
    graph = net.outputs(*_gelu(net))
    with knobs.setting(DUMP=str(tmp_path)):
        optimize(graph, record=lambda name, g: seen.append((name, len(g.nodes))))
    files = sorted((tmp_path / "passes").glob("*.txt"))
    assert len(files) == len(seen) + 1 > 2 and files[1].name.startswith("001_")
    assert any("fuse_gelu" in name for name, _ in seen) and "Gelu" in files[-1].read_text()


def test_optimizing_twice_changes_nothing():
    graph, _ = run(_gelu)
    text = str(graph)
    assert not any(e.count for e in optimize(graph)) and str(graph) == text


def test_missing_operator_declines(monkeypatch):
    from orthrus.optimize import rewrite
    rewrite.newest.cache_clear()
    real = rewrite.define.find
    monkeypatch.setattr(
        rewrite.define, "find", lambda d, name, v: None if name == "Gelu" else real(d, name, v)
    )
    graph, journal = run(_gelu)
    rewrite.newest.cache_clear()
    assert "Erf" in kinds(graph) and "Gelu has no definition" in journal["fuse_gelu"].declined[0]


@pytest.mark.parametrize("kind", ["zero", "constant", "transpose", "activation"])
def test_long_chains_take_linear_work(kind, monkeypatch):
    """Work is counted in looks at candidates and in rewrites, for one length and for four times that."""
    from orthrus.optimize import rewrite
    looks = []

    def counted(self, node, table, real=rewrite.Work._rewrite):
        looks.append(1)
        return real(self, node, table)
    monkeypatch.setattr(rewrite.Work, "_rewrite", counted)

    def work(length):
        looks.clear()
        net = Net()
        x = net.constant(np.ones((2, 3), F)) if kind == "constant" else net.input("x", 2, 3)
        one, zero = net.constant(F(1.5)), net.constant(F(0))
        for i in range(length):
            x = {"zero": lambda x: net.Add(x, zero), "constant": lambda x: net.Add(x, one),
                 "transpose": lambda x: net.Transpose(x, perm=[1, 0]),
                 "activation": lambda x, i=i: net.Mul(x, net.Sigmoid(x)) if i % 3 else
                 net.Relu(net.Transpose(x, perm=[1, 0]))}[kind](x)
        graph = net.outputs(net.Neg(x))
        journal = optimize(graph)
        verify(graph)
        return len(looks) + sum(e.count for e in journal)
    small, large = work(500), work(2000)
    assert large <= 4.5 * small + 100


def test_a_deep_chain_needs_no_recursion():
    graph = Graph("deep")
    x = Value("x", TensorType(1, (2,)))
    graph.inputs.append(x)
    definition, made = find("", "Neg", 13), [x]
    for i in range(20_000):
        node = Node("Neg", "", 13, definition, [made[-1]], {}, "", i)
        node.outputs = [Value(f"v{i}", x.type, node)]
        graph.nodes.append(node)
        made.append(node.output)
    graph.set_outputs([made[-1]])
    optimize(graph)
    assert len(graph.nodes) <= 1


class Watched(list):
    """Inputs that count how often they are gone through."""

    walks = 0

    def __iter__(self):
        Watched.walks += 1
        return super().__iter__()


@pytest.mark.parametrize("kind", ["twins", "copies", "constants"])
def test_one_reader_of_many_takes_linear_work(kind):
    """A node's inputs are redirected one by one without going through all of them each time."""
    def walks(length):
        net = Net()
        x = net.input("x", 2)
        read = {"twins": lambda i: net.Relu(x), "copies": lambda i: net.Identity(net.Neg(x)),
                "constants": lambda i: net.constant(np.full(2, i % 3, F))}[kind]
        graph = net.outputs(net.Concat(*map(read, range(length)), x, axis=0))
        node = next(n for n in graph.nodes if n.op_type == "Concat")
        node.inputs, Watched.walks = Watched(node.inputs), 0
        journal, taken = optimize(graph, skip={"fold_constants"}), Watched.walks
        verify(graph)
        assert sum(e.count for e in journal) >= length - 3
        return taken
    assert walks(2000) <= walks(200) + 20


@pytest.mark.parametrize("seed", range(20))
def test_redirecting_is_setting_each_input(seed):
    r = random.Random(seed)
    values = [Value(f"v{i}", TensorType(1, (2,))) for i in range(9)]
    node = Node("Concat", "", 13, None, r.choices([*values, None], k=r.choice([5, 65, 200])), {})
    for _ in range(60):
        if r.random() < 0.3:
            Graph.set_input(node, r.randrange(len(node.inputs)), r.choice([*values, None]))
            continue
        old, new = r.choice(values), r.choice(values)
        if old.uses:
            expected = [new if v is old else v for v in node.inputs]
            Graph.redirect(node, old, new)
            assert node.inputs == expected
        assert all(v.uses == ({node: n} if (n := node.inputs.count(v)) else {}) for v in values)


def test_every_pass_alone_keeps_results():
    def build(n):
        x = n.input("x", "N", 4)
        h = n.Gemm(n.Transpose(n.Transpose(x)), np.eye(4, dtype=F), np.ones(4, F))
        return [n.Mul(h, n.Sigmoid(h)), n.Reshape(n.Identity(h), n.Shape(x))]
    for one in PASSES:
        run(build, skip={p.name for p in PASSES if p.name != one.name})
        if not isinstance(one.what, Rule):
            run(build, skip={one.name})
