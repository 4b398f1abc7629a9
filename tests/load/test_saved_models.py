"""Optimized models as they are saved: what other tools rely on, and what onnxruntime makes of them."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from counting import lines_in
from onnx import TensorProto, helper, numpy_helper

import orthrus as ort
from fuzz.graphs import build, findings
from orthrus.load import load, save, write

LEVELS = sorted(ort.GraphOptimizationLevel.__members__)
NODE, VALUE = helper.make_node, helper.make_tensor_value_info


def saved(model: onnx.ModelProto, level: str, folder: Path) -> onnx.ModelProto:
    options = ort.SessionOptions()
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    options.optimized_model_filepath = str(folder / "saved.onnx")
    ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return onnx.load(options.optimized_model_filepath)


def made(nodes: list[Any], constants: dict[str, np.ndarray], shape: list[int]) -> onnx.ModelProto:
    x, y = VALUE("x", TensorProto.FLOAT, shape), VALUE("y", TensorProto.FLOAT, None)
    held = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "g", [x], [y], held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("text", ["", "what it is for"])
def test_texts_are_written_where_there_are_any(level: str, text: str, tmp_path: Path) -> None:
    model = made([NODE("Erf", ["x"], ["y"], name="e")], {}, [2])
    if text:
        model.doc_string = model.graph.doc_string = model.graph.node[0].doc_string = model.domain = text
        model.producer_name = model.producer_version = text
    out = saved(model, level, tmp_path)
    for proto in (out, out.graph, out.graph.node[0]):
        assert proto.HasField("doc_string") is bool(text) and proto.doc_string == text
    for name in ("domain", "producer_name", "producer_version"):
        assert out.HasField(name) is bool(text) and getattr(out, name) == text


@pytest.mark.parametrize("level", LEVELS)
def test_a_cast_to_the_same_type_stays_where_it_makes_an_output(level: str, tmp_path: Path) -> None:
    float32 = {"to": TensorProto.FLOAT}
    model = made([NODE("Cast", ["x"], ["a"], **float32), NODE("Erf", ["a"], ["b"]),
                  NODE("Cast", ["b"], ["y"], **float32)], {}, [2])
    first = [] if level != "ORT_DISABLE_ALL" else ["Cast"]
    assert [node.op_type for node in saved(model, level, tmp_path).graph.node] == [*first, "Erf", "Cast"]


@pytest.mark.parametrize("level", LEVELS)
def test_absent_inputs_at_the_end_stay(level: str, tmp_path: Path) -> None:
    low = np.float32(-1)
    nodes = [NODE("Clip", ["x", "low", ""], ["a"]), NODE("Sin", ["a"], ["b"]),
             NODE("Clip", ["b", "", ""], ["c"]),
             NODE("Resize", ["c", "", "by", ""], ["d"], mode="nearest"), NODE("Cos", ["d"], ["y"])]
    model = made(nodes, {"low": low, "by": np.float32([1, 2])}, [2, 3])
    out = saved(model, level, tmp_path)
    given = {n.output[0]: list(n.input) for n in model.graph.node}
    kept = [n for n in out.graph.node if n.op_type in ("Clip", "Resize") and n.output[0] in given]
    assert len(kept) >= 2
    for node in kept:
        assert [bool(n) for n in node.input] == [bool(n) for n in given[node.output[0]]]
    onnx.checker.check_model(out)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("count", [1, 2, 7, 8, 9, 16, 300])
def test_how_many_equal_elements_are_one_initializer(level: str, count: int, tmp_path: Path) -> None:
    """As onnxruntime does: whose fusions of what else is shared there go wrong."""
    array = np.arange(count, dtype=np.float32)
    model = made([NODE("Pow", ["x", "a"], ["t"]), NODE("Mod", ["t", "b"], ["y"], fmod=1)],
                 {"a": array, "b": array.copy()}, [2, count])
    shared = count <= 8 and level != "ORT_DISABLE_ALL"
    assert len(saved(model, level, tmp_path).graph.initializer) == 2 - shared


@pytest.mark.parametrize("count", [1, 8, 9, 300, 5000])
def test_nodes_of_equal_constants_are_one(count: int, tmp_path: Path) -> None:
    array = np.arange(count, dtype=np.float32)
    other = np.concatenate([array[:-1], [-1]]).astype(np.float32)
    nodes = [NODE("Pow", ["x", read], [out]) for read, out in ("as", "bt", "cu")]
    model = made([*nodes, NODE("Sum", ["s", "t", "u"], ["y"])], {"a": array, "b": array.copy(), "c": other},
                 [2, count])
    out = saved(model, "ORT_ENABLE_BASIC", tmp_path)
    assert [n.op_type for n in out.graph.node].count("Pow") == (2 if array.nbytes <= 4096 else 3)
    x = np.linspace(1, 2, 2 * count, dtype=np.float32).reshape(2, count) / count
    one, two = (ort.InferenceSession(m.SerializeToString()).run(None, {"x": x})[0] for m in (model, out))
    np.testing.assert_array_equal(one, two)


OUTDATED: dict[str, tuple[int, list[np.ndarray], dict[str, Any]]] = {
    "Upsample": (9, [np.array([1, 1, 2, 2], np.float32)], {"mode": "nearest"}),
    "Scatter": (10, [np.zeros((1, 1, 2, 2), np.int64), np.ones((1, 1, 2, 2), np.float32)], {})}
"""Operators that later opsets have no more: an opset that has each, its inputs behind the first, attributes.
"""


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("op", OUTDATED)
def test_an_operator_that_later_opsets_have_no_more(op: str, level: str, tmp_path: Path) -> None:
    """Beside one that is upgraded to such an opset."""
    opset, inputs, attributes = OUTDATED[op]
    x = np.arange(18, dtype=np.float32).reshape(1, 2, 3, 3)
    feeds = {"x": x, **{f"i{k}": a for k, a in enumerate(inputs)}}
    nodes = [NODE(op, list(feeds), ["u"], **attributes), NODE("ReduceMean", ["u"], ["y"], axes=[0, 1])]
    given = [VALUE(name, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for name, a in feeds.items()]
    graph = helper.make_graph(nodes, "g", given, [VALUE("y", TensorProto.FLOAT, None)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    one, two = (ort.InferenceSession(m.SerializeToString()).run(None, feeds)[0]
                for m in (model, saved(model, level, tmp_path)))
    np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("scale", [2.0, 1.5, None])
@pytest.mark.parametrize("mode", ["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"])
def test_a_resize_beside_what_only_newer_opsets_have(mode: str, scale: float | None, tmp_path: Path) -> None:
    """A Gelu written out becomes that of opset 20, from which on a Resize may mean something else."""
    peer = pytest.importorskip("onnxruntime")
    x = np.linspace(-2, 2, 18, dtype=np.float32).reshape(1, 2, 3, 3)
    how = {"s": np.array([1, 1, scale, scale], np.float32)} if scale else {"n": np.array([1, 2, 5, 7])}
    nodes = [NODE("Div", ["x", "root"], ["a"]), NODE("Erf", ["a"], ["b"]), NODE("Add", ["b", "one"], ["c"]),
             NODE("Mul", ["x", "c"], ["d"]), NODE("Mul", ["d", "half"], ["e"]),
             NODE("Resize", ["e", "", *(["s"] if scale else ["", "n"])], ["y"], mode="linear",
                  coordinate_transformation_mode=mode)]
    numbers = {"root": np.float32(np.sqrt(2)), "one": np.float32(1), "half": np.float32(0.5), **how}
    model = made(nodes, {n: np.asarray(a) for n, a in numbers.items()}, [1, 2, 3, 3])
    out = saved(model, "ORT_ENABLE_ALL", tmp_path)
    one, two = (ort.InferenceSession(m.SerializeToString()).run(None, {"x": x})[0] for m in (model, out))
    np.testing.assert_array_equal(one, two)
    if (mode, scale) != ("align_corners", 1.5):  # no opset has both
        theirs = peer.InferenceSession(out.SerializeToString()).run(None, {"x": x})[0]
        np.testing.assert_allclose(theirs, one, rtol=1e-5, atol=1e-6)


SEEDS = [*range(4), *(pytest.param(n, marks=pytest.mark.slow) for n in range(4, 24))]


@pytest.mark.parametrize("seed", SEEDS)
def test_onnxruntime_runs_what_is_saved(seed: int, tmp_path: Path) -> None:
    peer = pytest.importorskip("onnxruntime")
    model, feeds = build(7_340_000 + seed)
    assert findings(model, feeds, peer, str(tmp_path)) == []


def test_saving_holds_one_weight_at_a_time(tmp_path: Path) -> None:
    """Weights that stay in their file are written to another without being in memory together."""
    count, side = 16, 512
    weights = {f"w{i}": np.full((side, side), i, np.float32) for i in range(count)}
    nodes = [NODE("MatMul", ["x" if not i else f"t{i}", f"w{i}"], [f"t{i + 1}" if i + 1 < count else "y"])
             for i in range(count)]
    onnx.save(made(nodes, weights, [1, side]), tmp_path / "m.onnx", save_as_external_data=True, location="w")
    graph = load(str(tmp_path / "m.onnx"))
    save(graph, tmp_path / "first.onnx", external_file="v")
    tracemalloc.start()
    try:
        save(graph, tmp_path / "s.onnx", external_file="s")
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < 4 * side * side * 4
    for name, value in load(str(tmp_path / "s.onnx")).initializers.items():
        np.testing.assert_array_equal(value.const, weights[name])


@pytest.mark.parametrize("what", ["nodes", "values"])
def test_equal_names_take_linear_work(what: str) -> None:
    def lines(count: int) -> int:
        nodes = [NODE("Relu", [f"v{i}" if i else "x"], [f"v{i + 1}" if i + 1 < count else "y"], name="same")
                 for i in range(count)]
        graph = load(made(nodes, {}, [2]))
        if what == "values":
            for node in graph.nodes[:-1]:
                node.output.name = "same"
        with lines_in(write.__file__) as gone_through:
            proto = write.to_model_proto(graph)
        onnx.checker.check_model(proto)
        assert len({node.name for node in proto.graph.node}) == count
        assert [node.name for node in proto.graph.node][:3] == ["same", "same__1", "same__2"]
        return gone_through.count

    lines(10)
    assert lines(400) < 5 * lines(100)
