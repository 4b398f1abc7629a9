"""What programs written for onnxruntime's SymbolicShapeInference read from its result."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from symbolic_cases import floats, made, shape_of, shapes

import orthrus as ort
from orthrus.tools.symbolic_shape_infer import SymbolicShapeInference, infer_shapes

NODE = helper.make_node
infer = SymbolicShapeInference.infer_shapes


def listed(model: onnx.ModelProto) -> dict[str, Any]:
    return {v.name: (v.type.tensor_type.elem_type, shape_of(v)) for v in model.graph.value_info}


def test_what_is_computed_is_in_value_info_and_what_is_given_is_not() -> None:
    weight = numpy_helper.from_array(np.ones(4, np.float32), "w")
    nodes = [NODE("Relu", ["x"], ["r"]), NODE("Add", ["r", "w"], ["y"])]
    model = made(nodes, [floats("x", "n", 4)], ["y", "r", "x"])
    model.graph.initializer.append(weight)
    model.graph.output.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [4]))
    out = infer(model)
    assert listed(out) == {"r": (1, ["n", 4]), "y": (1, ["n", 4])}
    assert listed(infer(out)) == listed(out)
    ort.InferenceSession(out.SerializeToString())


def branches(*elems: int) -> onnx.ModelProto:
    bodies = {}
    for key, elem in zip(("then_branch", "else_branch"), elems, strict=True):
        node = NODE("Constant", [], [key], value=helper.make_tensor(key, elem, [1], [1]))
        bodies[key] = helper.make_graph([node], key, [], [helper.make_tensor_value_info(key, elem, [1])])
    node = NODE("If", ["flag"], ["y"], name="choice", **bodies)
    graph = helper.make_graph([node], "g", [helper.make_tensor_value_info("flag", TensorProto.BOOL, [])],
                              [helper.make_tensor_value_info("y", elems[0], None)])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


KINDS = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.INT64, TensorProto.BOOL)


@pytest.mark.parametrize("pair", list(itertools.product(KINDS, repeat=2)))
def test_branches_of_other_types(pair: tuple[int, int]) -> None:
    names = [TensorProto.DataType.Name(elem) for elem in pair]
    if names[0] == names[1]:
        assert listed(infer(branches(*pair)))["y"] == (pair[0], [1])
        return
    with pytest.raises(ValueError, match="choice.*{}.*{}".format(*names)):
        infer(branches(*pair))


@pytest.mark.parametrize(("op_type", "count"), [("Gelu", 1), ("BiasGelu", 2), ("QuickGelu", 1)])
def test_an_operator_of_onnxruntime_without_its_domain(op_type: str, count: int) -> None:
    inputs = [floats("x", "n", "s", 8), floats("b", 8)][:count]
    model = made([NODE(op_type, [i.name for i in inputs], ["y"])], inputs, ["y"])
    del model.opset_import[:]
    model.opset_import.append(helper.make_opsetid("", 13))
    assert shapes(infer(model))["y"] == ["n", "s", 8]


@pytest.mark.parametrize(("op_type", "size", "factor"), [
    ("Mul", 1024, .5), ("Div", 768, 1.5), ("Mul", 6, 2.5), ("Div", 9, .75)])
def test_a_size_times_a_fraction(op_type: str, size: int, factor: float) -> None:
    model = made([NODE("Shape", ["x"], ["s"]), NODE(op_type, ["s", "f"], ["to"]),
                  NODE("Resize", ["x", "", "", "to"], ["y"], mode="nearest")], [floats("x", size)], ["y"],
                 {"f": np.float32([factor])})
    assert shapes(infer(model))["y"] == [int(size * factor if op_type == "Mul" else size / factor)]


@pytest.mark.parametrize(("op_type", "factor"), [("Mul", .5), ("Add", .25), ("Sub", 1.5)])
def test_a_size_that_is_no_whole_number_has_a_name(op_type: str, factor: float) -> None:
    model = made([NODE("Shape", ["x"], ["s"]), NODE(op_type, ["s", "f"], ["to"]),
                  NODE("Resize", ["x", "", "", "to"], ["y"], mode="nearest")], [floats("x", 7)], ["y"],
                 {"f": np.float32([factor])})
    [size] = shapes(infer(model))["y"]
    assert isinstance(size, str)


@pytest.mark.parametrize("step", [-3, -2, -1, 1, 2, 3])
def test_slices_counted_from_the_end(step: int) -> None:
    """Long enough dimensions hold what is said; the function is exact for shorter ones."""
    for start, stop in itertools.product(range(-12, 0), repeat=2):
        constants = {"b": np.int64([start]), "e": np.int64([stop]), "a": np.int64([0]), "s": np.int64([step])}
        model = made([NODE("Slice", ["x", "b", "e", "a", "s"], ["y"])], [floats("x", "n")], ["y"], constants)
        [found] = shapes(infer(model))["y"]
        assert found == len(range(40)[start:stop:step])
        [exact] = shapes(infer_shapes(model))["y"]
        least = {"Min": min, "Max": max, "floor": np.floor, "ceiling": np.ceil}
        for n in (1, 2, 5, 11, 30):
            first = max(start, -n) if step < 0 else start
            assert int(eval(str(exact), {**least, "n": n})) == len(range(n)[first:stop:step])


def test_slices_between_both_ends() -> None:
    ends = [*range(-4, 0), 1 << 40]
    for start, stop, step in itertools.product([*range(-4, 4)], ends, range(1, 4)):
        constants = {"b": np.int64([start]), "e": np.int64([stop]), "a": np.int64([0]), "s": np.int64([step])}
        model = made([NODE("Slice", ["x", "b", "e", "a", "s"], ["y"])], [floats("x", "n")], ["y"], constants)
        for found, sizes in ((infer(model), (8, 9, 20)), (infer_shapes(model), (1, 2, 3, 5, 8, 9))):
            [size] = shapes(found)["y"]
            for n in sizes:
                names = {"floor": np.floor, "ceiling": np.ceil, "Min": min, "Max": max, "n": n}
                assert int(eval(str(size), names)) == len(range(n)[start:stop:step])
    for start, stop, text in ((1, -1, "n - 2"), (0, -3, "n - 3"), (2, -3, "n - 5"), (-5, 1 << 40, 5)):
        assert shapes(infer(made([NODE("Slice", ["x", "b", "e"], ["y"])], [floats("x", "n")], ["y"], {
            "b": np.int64([start]), "e": np.int64([stop])})))["y"] == [text]


@pytest.mark.parametrize(("start", "stop", "sign", "out"), [
    (0, 1 << 32, 1, [2, 3]), (-1, -(1 << 32), -1, [2, 3]), (1, 1 << 32, 1, [None, None])])
def test_a_step_that_is_a_dimension(start: int, stop: int, sign: int, out: list[int | None]) -> None:
    """A dimension of a whole number of steps; others, and steps of unknown sign, get a name."""
    for many, expected in zip((2, 3), out, strict=True):
        model = made([
            NODE("Shape", ["x"], ["n"]), NODE("Mul", ["n", "sign"], ["step"]),
            NODE("Concat", ["x"] * many, ["all"], axis=0),
            NODE("Slice", ["all", "b", "e", "a", "step"], ["y"])], [floats("x", "n")], ["y"],
            {"b": np.int64([start]), "e": np.int64([stop]), "a": np.int64([0]), "sign": np.int64([sign])})
        [found] = shapes(infer(model))["y"]
        assert found == expected or (expected is None and isinstance(found, str) and found.isidentifier())


def test_an_unknown_operator_whose_output_states_its_elements_alone() -> None:
    model = made([NODE("Strange", ["x"], ["y"], domain="my")], [floats("x", "n", 3)], ["y"],
                 opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("my", 1)])
    model.graph.output[0].type.CopyFrom(helper.make_tensor_type_proto(TensorProto.INT64, None))
    assert shapes(infer(model)).get("y") is None
    guessed = infer(model, guess_output_rank=True)
    assert shapes(guessed)["y"] == ["Strange_0_o0__d0", "Strange_0_o0__d1"]
    assert guessed.graph.output[0].type.tensor_type.elem_type == TensorProto.INT64


@pytest.mark.parametrize(("equation", "shapes_in", "out"), [
    ("abc, cde -> abde", ([1, "b", 8], [2, 12, "n"]), [1, "b", 12, "n"]), ("i,i", ([5], [5]), []),
    ("...ii->...i", ([3, "k", "k"],), [3, "k"]), ("ij->ji", (["a", "b"],), ["b", "a"]),
    ("bij,bjk", (["b", 2, "c"], ["b", "c", 4]), [2, 4]),
    ("...i,...i->...", (["a", 1, "c"], ["b", "c"]), ["a", "b"])])
def test_letters(equation: str, shapes_in: Any, out: list[Any]) -> None:
    inputs = [floats(f"x{i}", *dims) for i, dims in enumerate(shapes_in)]
    model = made([NODE("Einsum", [i.name for i in inputs], ["y"], equation=equation)], inputs, ["y"])
    assert shapes(infer(model))["y"] == out


@pytest.mark.parametrize(("op_type", "inputs", "weights", "attributes", "out"), [
    ("GatherBlockQuantized", {"w": None, "x": ("b", "s")}, {"w": np.zeros((20, 16), np.uint8)},
     {"gather_axis": 0, "quantize_axis": 1, "block_size": 16, "bits": 4}, ["b", "s", 32]),
    ("UnfoldTensor", {"x": ("b", 3, 12)}, {}, {"dim": -1, "size": 3, "step": 2}, ["b", 3, 5, 3]),
    ("ExpandDims", {"x": ("b", 3), "a": None}, {"a": np.array(-1, np.int32)}, {}, ["b", 3, 1]),
    ("MaxpoolWithMask", {"x": ("b", 3, 9, 9), "m": ("b", 3, 9, 9)}, {}, {"kernel_shape": [3, 3]},
     ["b", 3, 7, 7])])
def test_sizes_that_operators_of_onnxruntime_make(op_type: str, inputs: dict[str, Any],
                                                  weights: dict[str, np.ndarray],
                                                  attributes: dict[str, Any], out: list[Any]) -> None:
    """Here, and as a session says its outputs."""
    kinds = {"GatherBlockQuantized": {"x": TensorProto.INT64}, "MaxpoolWithMask": {"m": TensorProto.INT32}}
    given = [helper.make_tensor_value_info(name, kinds.get(op_type, {}).get(name, TensorProto.FLOAT), shape)
             for name, shape in inputs.items() if shape is not None]
    if op_type == "GatherBlockQuantized":
        weights = {**weights, "s": np.ones((20, 2), np.float32)}
        inputs = {**inputs, "s": None}
    model = made([NODE(op_type, list(inputs), ["y"], domain="com.microsoft", **attributes)], given, ["y"],
                 weights)
    assert shapes(infer(model))["y"] == out
    [told] = ort.InferenceSession(model.SerializeToString()).get_outputs()
    assert told.shape == out
