"""Models in float16 and bfloat16: valid, near to the float ones, and with onnxruntime's names."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import orthrus as ort
from orthrus.demo import MODEL
from orthrus.errors import InvalidArgument
from orthrus.transformers import float16

FLOAT, HALF, BRAIN = TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16
RNG = np.random.default_rng
node, info = helper.make_node, helper.make_tensor_value_info
X = RNG(1).standard_normal((4, 4)).astype(np.float32)


def model(nodes: list[onnx.NodeProto], outputs: dict[str, int], opset: int = 17, inputs: dict[str, int]
          | None = None, **constants: Any) -> onnx.ModelProto:
    """A graph with the input x (4, 4), or others, and constants."""
    given = inputs or {"x": FLOAT}
    graph = helper.make_graph(
        nodes, "g", [info(name, kind, [4, 4] if name == "x" else []) for name, kind in given.items()],
        [info(name, kind, [None] * (4 if name == "big" else 2)) for name, kind in outputs.items()],
        [numpy_helper.from_array(np.asarray(v, getattr(v, "dtype", np.float32)), k)
         for k, v in constants.items()])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


W = RNG(0).standard_normal((4, 4)).astype(np.float32)


def plain() -> onnx.ModelProto:
    return model([node("MatMul", ["x", "w"], ["a"], "mm"), node("Softmax", ["a"], ["b"], "sm"),
                  node("Add", ["b", "w"], ["y"], "ad"), node("Cast", ["a"], ["i"], "c", to=6),
                  node("Cast", ["i"], ["f"], "c2", to=1)], {"y": FLOAT, "f": FLOAT, "i": 6}, w=W)


def branches(**more: Any) -> onnx.ModelProto:
    """An If whose branches read a value and a constant of the graph around them, one a constant of its own;
    a Loop that carries a float."""
    then = helper.make_graph([node("Add", ["x", "w"], ["t1"], "ba"), node("Softmax", ["t1"], ["t"], "bs")],
                             "then", [], [info("t", FLOAT, [4, 4])])
    other = helper.make_graph([node("Constant", [], ["e"], value=numpy_helper.from_array(W))], "else", [],
                              [info("e", FLOAT, [4, 4])])
    body = helper.make_graph(
        [node("Mul", ["s", "x"], ["s1"], "times"), node("Max", ["s1", "w"], ["s2"], "most"),
         node("Identity", ["go"], ["on"])], "body",
        [info("n", 7, []), info("go", 9, []), info("s", FLOAT, [4, 4])],
        [info("on", 9, []), info("s2", FLOAT, [4, 4])])
    return model([node("If", ["c"], ["h"], "if", then_branch=then, else_branch=other),
                  node("Loop", ["turns", "", "h"], ["y"], "loop", body=body)], {"y": FLOAT},
                 inputs={"x": FLOAT, "c": 9}, w=W, turns=np.array(2), **more)


def unusual() -> onnx.ModelProto:
    """Nodes that choose a type, operators without half floats, floats given as attributes."""
    tensor = numpy_helper.from_array(np.array([1.5], np.float32))
    return model(
        [node("Constant", [], ["k"], value_floats=[0.5, 2.0, 3.0, 4.0]),
         node("Constant", [], ["k1"], value_float=2.5), node("ConstantOfShape", ["sh"], ["cs"], value=tensor),
         node("ConstantOfShape", ["sh"], ["zero"]), node("RandomNormal", [], ["rn"], shape=[4]),
         node("EyeLike", ["x"], ["eye"]), node("QuantizeLinear", ["x", "qs"], ["q"]),
         node("DequantizeLinear", ["q", "qs"], ["dq"]), node("Range", ["r0", "r1", "r2"], ["rg"]),
         node("Mul", ["rn", "zero"], ["none"]), node("Sum", ["x", "k", "k1", "cs", "none", "eye", "dq", "rg"],
                                                     ["y"]),
         node("Unsqueeze", ["y", "front"], ["four"]),
         node("Resize", ["four", "", "twice"], ["big"], mode="nearest")],
        {"y": FLOAT, "big": FLOAT}, sh=np.array([4]), qs=0.1, r0=0.0, r1=4.0, r2=1.0,
        front=np.array([0, 1]), twice=np.array([1, 1, 2, 2], np.float32))


MADE: dict[str, Callable[[], onnx.ModelProto]] = {"plain": plain, "branches": branches, "unusual": unusual,
                                                  "digits": lambda: onnx.load(MODEL)}
GIVEN: dict[str, dict[str, Any]] = {
    "": {}, "keep": {"keep_io_types": True}, "keep x": {"keep_io_types": ["x", "image"]},
    "Softmax": {"op_block_list": ["Softmax"]}, "nodes": {"node_block_list": ["sm", "ad", "times"]},
    "control": {"op_block_list": ["If", "Loop"]}, "nothing": {"op_block_list": []},
    "bf16": {"op_block_list": ["Softmax", "Range"], "use_bfloat16_as_blocked_nodes_dtype": True},
    "force": {"node_block_list": ["mm"], "force_fp16_initializers": True}}


def feeds(session: Any) -> dict[str, Any]:
    types = {"tensor(float)": np.float32, "tensor(float16)": np.float16}
    given: dict[str, Any] = {}
    for arg in session.get_inputs():
        shape = [size if isinstance(size, int) else 2 for size in arg.shape]
        if arg.type == "tensor(bool)":
            given[arg.name] = np.array(True)
        else:
            given[arg.name] = (X if shape == [4, 4] else RNG(0).random(shape)).astype(types[arg.type])
    return given


def computed(made: onnx.ModelProto) -> list[np.ndarray]:
    session = ort.InferenceSession(made.SerializeToString())
    return session.run(None, feeds(session))


def near(got: list[np.ndarray], expected: list[np.ndarray], tolerance: float) -> None:
    for mine, other in zip(got, expected, strict=True):
        mine, other = mine.astype(np.float64), other.astype(np.float64)
        assert mine.shape == other.shape
        assert np.abs(mine - other).max() <= tolerance * max(1, np.abs(other).max())


@pytest.mark.parametrize("name", MADE)
@pytest.mark.parametrize("given", GIVEN)
def test_a_converted_model_is_valid_and_near(name: str, given: str) -> None:
    expected = computed(MADE[name]())
    made = float16.convert_float_to_float16(MADE[name](), **GIVEN[given])
    onnx.checker.check_model(made, full_check=True)
    got = computed(made)
    near(got, expected, 0.05 if given == "bf16" else 0.01)
    keep = GIVEN[given].get("keep_io_types") is True
    for value in made.graph.output:
        assert value.type.tensor_type.elem_type in ({FLOAT, 6, 7} if keep else {HALF, 6, 7})


@pytest.mark.parametrize("name", ["plain", "branches", "digits"])
def test_onnxruntime_computes_the_same(name: str) -> None:
    peer = pytest.importorskip("onnxruntime")
    made = float16.convert_float_to_float16(MADE[name](), keep_io_types=True)
    session = peer.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    near(computed(made), session.run(None, feeds(session)), 0.005)


@pytest.mark.parametrize("given", ["", "keep x", "Softmax"])
def test_names_are_onnxruntimes(given: str) -> None:
    """Where no cast is saved, the nodes are the same in another order."""
    pytest.importorskip("onnxruntime")
    peer = pytest.importorskip("onnxruntime.transformers.float16")
    nodes = [n for n in plain().graph.node if n.op_type != "Cast"]
    pair = []
    for convert in (float16.convert_float_to_float16, peer.convert_float_to_float16):
        found = convert(model(nodes, {"y": FLOAT}, w=W), **GIVEN[given])
        pair.append((Counter(n.SerializeToString() for n in found.graph.node),
                     {t.name: numpy_helper.to_array(t).tobytes() for t in found.graph.initializer},
                     [(v.name, v.type.tensor_type.elem_type) for v in (*found.graph.input,
                                                                       *found.graph.output)]))
    assert pair[0] == pair[1]


def test_neighbours_that_stay_wide_exchange_wide_values() -> None:
    made = float16.convert_float_to_float16(plain(), node_block_list=["sm", "ad"], keep_io_types=["y"])
    casts = [(n.input[0], n.output[0]) for n in made.graph.node if n.op_type == "Cast"]
    assert ("a", "a_cast_to_fp32") in casts and not any("b" in pair for pair in casts)
    wide = {v.name: v for v in onnx.shape_inference.infer_shapes(made).graph.value_info}
    assert wide["b"].type.tensor_type.elem_type == FLOAT


def test_constants_stay_wide_where_only_wide_nodes_read_them() -> None:
    kinds = {t.name: t.data_type for t in float16.convert_float_to_float16(
        plain(), node_block_list=["mm", "ad"]).graph.initializer}
    assert kinds == {"w": FLOAT}
    forced = float16.convert_float_to_float16(plain(), node_block_list=["mm", "ad"],
                                              force_fp16_initializers=True)
    assert forced.graph.initializer[0].data_type == HALF


def test_a_cast_for_a_branch_stands_before_it() -> None:
    made = float16.convert_float_to_float16(branches(), keep_io_types=True)
    types = [n.op_type for n in made.graph.node]
    assert types.index("Cast") < types.index("If")
    body = next(a.g for n in made.graph.node if n.op_type == "Loop" for a in n.attribute if a.name == "body")
    assert Counter(n.op_type for n in body.node) == {"Mul": 1, "Max": 1, "Identity": 1, "Cast": 2}


def test_bfloat16() -> None:
    modern = model([node("MatMul", ["x", "w"], ["a"], "mm"), node("Relu", ["a"], ["b"]),
                    node("Add", ["b", "w"], ["y"])], {"y": FLOAT}, w=W)
    expected = computed(modern)
    made = float16.convert_float_to_bfloat16(modern, keep_io_types=True)
    onnx.checker.check_model(made, full_check=True)
    assert {t.data_type for t in made.graph.initializer} == {BRAIN}
    assert [n.op_type for n in made.graph.node] == ["Cast", "MatMul", "Relu", "Add", "Cast"]
    near(computed(made), expected, 0.03)


def test_operators_without_bfloat16_stay_wide() -> None:
    nodes = [node("ConstantOfShape", ["sh"], ["one"]), node("Selu", ["x"], ["a"]),
             node("Add", ["a", "one"], ["y"])]
    made = float16.convert_float_to_bfloat16(model(nodes, {"y": FLOAT}, sh=np.array([4])))
    onnx.checker.check_model(made, full_check=True)
    assert [n.op_type for n in made.graph.node] == ["ConstantOfShape", "Cast", "Cast", "Selu", "Cast", "Add"]
    with pytest.raises(InvalidArgument, match="opset 11"):
        float16.convert_float_to_bfloat16(model(nodes, {"y": FLOAT}, opset=11, sh=np.array([4])))


def test_a_custom_operator_is_converted_unless_blocked() -> None:
    def own() -> onnx.ModelProto:
        made = model([node("Own", ["x"], ["a"], domain="mine"), node("Relu", ["a"], ["y"])], {"y": FLOAT})
        made.opset_import.add(domain="mine", version=1)
        return made

    assert [n.op_type for n in float16.convert_float_to_float16(own()).graph.node] == ["Own", "Relu"]
    blocked = float16.convert_float_to_float16(own(), op_block_list=["Own"])
    assert [n.op_type for n in blocked.graph.node] == ["Cast", "Own", "Cast", "Relu"]


def test_functions_are_written_out() -> None:
    made = model([node("Twice", ["x"], ["y"], domain="mine")], {"y": FLOAT})
    made.opset_import.add(domain="mine", version=1)
    twice = node("Add", ["v", "v"], ["r"])
    made.functions.append(helper.make_function("mine", "Twice", ["v"], ["r"], [twice],
                                               [helper.make_opsetid("", 17)]))
    found = float16.convert_float_to_float16(made)
    assert [n.op_type for n in found.graph.node] == ["Add"] and not found.functions
    np.testing.assert_array_equal(computed(found)[0], X.astype(np.float16) * 2)


# tensors

VALUES = np.array([0, -0.0, np.inf, -np.inf, np.nan, 1e-9, -1e-9, 5.9e-8, 1e6, -1e6, 65519, 1.5], np.float32)


@pytest.mark.parametrize("limits", [(), (1e-3, 100.0)])
def test_values_are_onnxruntimes(limits: tuple[float, ...], caplog: Any) -> None:
    peer = pytest.importorskip("onnxruntime.transformers.float16")
    with caplog.at_level(logging.WARNING):
        mine = float16.convert_np_to_float16(VALUES, *limits)
        assert "smaller" in caplog.text and "larger" in caplog.text
        other = peer.convert_np_to_float16(VALUES, *limits)
    np.testing.assert_array_equal(mine.view(np.uint16) & 0x7FFF, other.view(np.uint16) & 0x7FFF)
    np.testing.assert_array_equal(np.signbit(mine), np.signbit(VALUES))


def test_tensors_in_either_form() -> None:
    raw = numpy_helper.from_array(VALUES[5:], "t")
    listed = helper.make_tensor("t", FLOAT, [7], VALUES[5:])
    for tensor in (raw, listed):
        difference = float16.float_to_float16_max_diff(tensor)
        assert float16.convert_tensor_float_to_float16(tensor) is tensor
        expected = float16.convert_np_to_float16(VALUES[5:])
        np.testing.assert_array_equal(numpy_helper.to_array(tensor), expected)
        assert difference == 1e6 - 65504
    whole = numpy_helper.from_array(np.arange(3))
    assert float16.convert_tensor_float_to_float16(whole).data_type == TensorProto.INT64
    assert float16.make_value_info_from_tensor(whole).type.tensor_type.elem_type == TensorProto.INT64


def test_a_file_with_its_weights_apart(tmp_path: Path) -> None:
    large = RNG(0).standard_normal((4, 4000)).astype(np.float32)
    made = model([node("MatMul", ["x", "w"], ["y"])], {"y": FLOAT}, w=large)
    onnx.save_model(made, tmp_path / "m.onnx", save_as_external_data=True, location="w", size_threshold=0)
    found = float16.convert_float_to_float16_model_path(tmp_path / "m.onnx", keep_io_types=True)
    near(computed(found), [X @ large], 0.01)
    with pytest.raises(InvalidArgument, match="not read"):
        float16.convert_float_to_float16(onnx.load(tmp_path / "m.onnx", load_external_data=False))


def test_what_cannot_be_converted_is_refused() -> None:
    with pytest.raises(ValueError, match="Expected an ONNX ModelProto"):
        float16.convert_float_to_float16(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="limits"):
        float16.convert_float_to_float16(plain(), max_finite_val=1e6)
    for wrong in (np.ones(2), numpy_helper.from_array(np.ones(2))):
        with pytest.raises(ValueError, match="Expected"):
            float16.float_to_float16_max_diff(wrong)  # type: ignore[arg-type]
