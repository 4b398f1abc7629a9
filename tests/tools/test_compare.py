"""`orthrus compare`: faults are found at the node that makes them, and nothing is found where nothing is."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import graphs
import ml_dtypes
import numpy as np
import onnx
import planted
import pytest
from benchmarks.zoo import build, cases, feeds
from onnx import TensorProto, helper, numpy_helper
from skips import needs
from test_models import MODELS, NAMES

import orthrus as ort
from orthrus import knobs
from orthrus.demo import MODEL
from orthrus.errors import Fail, InvalidArgument, NoSuchFile
from orthrus.tools.compare import sides
from orthrus.tools.compare.compare import compare
from orthrus.tools.compare.comparison import batches, feeds_of
from orthrus.tools.compare.divergence import Tolerance, measure
from orthrus.tools.compare.extract import Model
from orthrus.tools.compare.siblings import compare_models, matches

Plant = Callable[[pytest.MonkeyPatch], None]
FEEDS = planted.FEEDS
needs_code = needs("generated code")


def spread(array: Any) -> np.ndarray:
    return np.asarray(array, np.float32)


# errors

def test_errors_of_floats() -> None:
    found = measure(spread([1, 2, 4]), spread([1, 2, 5]), Tolerance())
    assert (found.max_abs, found.differing, found.elements) == (1, 1, 3)
    assert found.max_rel == pytest.approx(0.2) and found.mean_abs == pytest.approx(1 / 3)
    a, b = np.array([1, 2, 4]), np.array([1, 2, 5])
    assert found.cosine == pytest.approx(a @ b / np.linalg.norm(a) / np.linalg.norm(b))
    assert found.excess == pytest.approx(1 / (1e-4 * 5 + 1e-4 * 5)) and found.beyond
    assert found.worst == ((2,), "4", "5")


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16])
def test_ulps_count_floats_in_between(dtype: Any) -> None:
    one = np.array([1, 0], dtype)
    whole = one.view({2: np.int16, 4: np.int32, 8: np.int64}[one.itemsize])
    further = (whole + np.array([3, 2], whole.dtype)).view(dtype)
    assert measure(further, one, Tolerance()).ulp == 3
    assert measure(-further[1:], further[1:], Tolerance()).ulp == 4
    assert measure(-one, one, Tolerance()).ulp == min(2 * int(whole[0]), 2 ** 62)


def test_what_is_no_number_has_to_meet_its_like() -> None:
    odd = spread([np.nan, np.inf, -np.inf, 1])
    assert not measure(odd, odd.copy(), Tolerance()).beyond
    for other in (spread([0, np.inf, -np.inf, 1]), spread([np.nan, -np.inf, -np.inf, 1]),
                  spread([np.nan, np.inf, 3, 1])):
        found = measure(other, odd, Tolerance())
        assert found.beyond and "one side only" in found.note
        assert json.loads(json.dumps(found.plain(), allow_nan=False))["excess"] == "inf"


def test_tolerances() -> None:
    a, b = spread([0, 1000]), spread([0.05, 1000])
    assert not measure(a, b, Tolerance()).beyond
    assert measure(a, b, Tolerance(rtol=1e-3)).beyond and not measure(a, b, Tolerance(atol=0.1)).beyond
    whole = np.array([3, 4])
    assert measure(whole, whole + 1, Tolerance()).beyond
    assert not measure(whole, whole + 1, Tolerance(steps=1)).beyond
    assert measure(whole, whole + 2, Tolerance(steps=1)).beyond
    fine = np.array([1.0, 1000.0])
    assert not measure(fine * (1 + 1e-6), fine, Tolerance(doubles=1e-4)).beyond
    assert measure(fine * (1 + 1e-6), fine, Tolerance()).beyond
    assert not measure(fine.astype(np.float32) * np.float32(1 + 1e-6), spread(fine), Tolerance()).beyond
    assert not measure(spread([1e-9]), spread([0]), Tolerance(), floor=1e-8).beyond


def test_values_of_other_kinds() -> None:
    assert "int64[2] against float[2]" in measure(np.zeros(2, np.int64), spread([0, 0]), Tolerance()).note
    assert measure(spread([[0]]), spread([0]), Tolerance()).beyond
    texts = np.array(["a", "b"], object)
    assert not measure(np.array([b"a", "b"], object), texts, Tolerance()).beyond
    assert measure(np.array(["a", "c"], object), texts, Tolerance()).worst == ((1,), "c", "b")
    assert measure([spread([1]), spread([2])], [spread([1]), spread([3])], Tolerance()).beyond
    assert measure([spread([1])], [], Tolerance()).beyond
    assert measure({1: 0.5}, {2: 0.5}, Tolerance()).beyond and measure(None, spread([1]), Tolerance()).beyond
    assert not measure(np.zeros((0, 3)), np.zeros((0, 3)), Tolerance()).beyond
    assert measure(np.array(1.0), np.array(2.0), Tolerance()).worst == ((), "1", "2")


def test_large_arrays_are_measured_in_pieces() -> None:
    b = np.random.default_rng(0).standard_normal(3_000_000).astype(np.float32)
    a = b.copy()
    a[2_500_000] += 1
    found = measure(a, b, Tolerance())
    assert found.differing == 1 and found.worst is not None and found.worst[0] == (2_500_000,)


# faults

@pytest.mark.parametrize("isolated", [False, True])
def test_a_wrong_kernel_of_a_provider_is_found(isolated: bool) -> None:
    with planted.wrong_provider() as name:
        found = compare(planted.network(), name, "reference", FEEDS, isolated=isolated)
    assert found.verdict == "diverge" and found.first is not None and found.case is not None
    assert (found.first.node, found.first.value) == ("gate", "s2")
    assert found.first.own is not None and found.first.own.max_abs == pytest.approx(0.01, abs=1e-6)
    assert found.case.nodes == ("gate",) and list(found.case.inputs) == ["g2"]
    by_node = {v.node: v for v in found.values}
    assert by_node["swish"].error.beyond and not by_node["swish"].fault
    assert not by_node["gemm2"].error.beyond
    assert (by_node["gemm2"].own is not None) == isolated


@needs_code
@pytest.mark.parametrize("plant, nodes, kernel", [
    (planted.wrong_softmax, ("softmax",), "softmax_rows"),
    (planted.wrong_when_fused, ("gemm1", "relu1"), "gemm")])
def test_a_wrong_generated_kernel_is_found(plant: Plant, nodes: tuple[str, ...], kernel: str, tmp_path: Path,
                                           monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    found = compare(planted.network(), "cpu", "reference", FEEDS, save=tmp_path)
    assert found.verdict == "diverge" and found.case is not None and found.first is not None
    assert found.case.nodes == nodes and found.first.node == nodes[-1] and kernel in found.case.kernels
    monkeypatch.undo()
    session = ort.InferenceSession(tmp_path / "model.onnx")
    data = tmp_path / "test_data_set_0"
    fed = {arg.name: array_of(data / f"input_{i}.pb") for i, arg in enumerate(session.get_inputs())}
    for i, got in enumerate(session.run(None, fed)):
        np.testing.assert_allclose(got, array_of(data / f"output_{i}.pb"), 1e-4, 1e-6)
    assert sorted(found.files) == sorted(str(f) for f in (*data.glob("*.pb"), tmp_path / "model.onnx"))


@needs_code
def test_a_pass_that_is_wrong_only_in_the_whole_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    planted.wrong_pass(monkeypatch)
    found = compare(planted.network(), "cpu", "reference", FEEDS)
    assert found.verdict == "diverge" and found.case is not None and found.case.nodes == ("gate", "swish")
    assert not any(v.error.beyond for v in found.values) and found.outputs[0].error.beyond
    assert compare(planted.network(), "cpu", "reference", FEEDS, level="disable").verdict == "agree"


def array_of(path: Path) -> np.ndarray:
    return numpy_helper.to_array(onnx.TensorProto.FromString(path.read_bytes()))


def test_a_difference_that_no_node_makes_is_amplified() -> None:
    """exp(1000 * x) over a rounding of x."""
    class Rounding(ort.ExecutionProvider):
        name = "RoundingExecutionProvider"

    @Rounding.kernel("Neg")
    def neg(info: Any) -> Any:
        return lambda x: np.nextafter(-x, np.float32(-np.inf))
    nodes = [helper.make_node("Neg", ["x"], ["a"], name="neg"),
             helper.make_node("Add", ["a", "x"], ["b"], name="add"),
             helper.make_node("Add", ["b", "t"], ["y"], name="least")]
    model = graphs.model(nodes, ["x"], ["y"], {"t": np.float32([1e-6])})
    ort.register_execution_provider(Rounding)
    try:
        found = compare(model, "rounding", "reference", {"x": np.ones((2, 3), np.float32)})
    finally:
        ort.unregister_execution_provider(Rounding.name)
    assert found.verdict == "amplified" and found.first is None
    assert {v.node: v.fault for v in found.values} == {"neg": False, "add": False, "least": False}


def test_a_kernel_that_is_wrong_only_in_its_place_is_found() -> None:
    """Its Softmax halves what comes from a Gemm."""
    class Placed(ort.ExecutionProvider):
        name = "PlacedExecutionProvider"

    @Placed.kernel("Softmax", since=13)
    def softmax(info: Any) -> Any:
        share = 0.5 if info.node.inputs[0].node is not None else 1
        return lambda x: np.exp(x) / np.exp(x).sum(-1, keepdims=True) * np.float32(share)
    ort.register_execution_provider(Placed)
    try:
        found = compare(planted.network(), "placed", "reference", FEEDS)
        again = compare(planted.network(), "placed", "reference", FEEDS, isolated=True)
    finally:
        ort.unregister_execution_provider(Placed.name)
    for it in (found, again):
        assert it.verdict == "diverge" and it.first is not None and it.first.node == "softmax"
        assert it.first.note == "only in its place" and it.case is not None
        assert it.case.nodes == ("gemm3", "softmax")


def test_doubles_that_come_from_floats_are_as_good_as_floats() -> None:
    nodes = [helper.make_node("Sqrt", ["x"], ["r"], name="root"),
             helper.make_node("Cast", ["r"], ["y"], name="wide", to=TensorProto.DOUBLE)]

    class Coarse(ort.ExecutionProvider):
        name = "CoarseExecutionProvider"

    @Coarse.kernel("Sqrt", since=13)
    def root(info: Any) -> Any:
        return lambda x: np.nextafter(np.sqrt(x), x.dtype.type(9))
    ort.register_execution_provider(Coarse)
    try:
        feeds = {"x": np.ones((2, 3), np.float32)}
        wide = graphs.info("y", TensorProto.DOUBLE)
        assert compare(graphs.model(nodes, ["x"], [wide]), "coarse", "reference", feeds).verdict == "agree"
        strict = Tolerance(scaled=1e-9)
        found = compare(graphs.model(nodes, ["x"], [wide]), "coarse", "reference", feeds, tolerance=strict)
        assert found.first is not None and found.first.node == "root"
    finally:
        ort.unregister_execution_provider(Coarse.name)


def test_small_batches_find_the_same() -> None:
    model = Model(planted.network())
    assert list(batches(model, FEEDS, 1)) == [[v] for v in model.values]
    assert list(batches(model, FEEDS, 600)) == [["g1", "r1"], ["g2", "s2"], ["m2", "g3", "y"]]
    with planted.wrong_provider() as name:
        for budget in (1, 600):
            found = compare(model, name, "reference", FEEDS, budget=budget, isolated=True)
            assert found.first is not None and found.first.node == "gate" and len(found.values) == 7


def test_results_that_are_random_are_no_faults() -> None:
    nodes = [helper.make_node("RandomNormalLike", ["x"], ["r"], name="noise"),
             helper.make_node("Add", ["x", "r"], ["y"], name="add")]
    found = compare(graphs.model(nodes, ["x"], ["y"]), "cpu", "reference", seed=3)
    assert found.first is None and found.values[0].note == "random"
    assert not any(v.fault for v in found.values)


def test_a_node_that_fails_by_itself_says_so() -> None:
    class Fragile(ort.ExecutionProvider):
        name = "FragileExecutionProvider"
        seen = 0

    @Fragile.kernel("Sigmoid")
    def sigmoid(info: Any) -> Any:
        if info.node.output.name.endswith("/alone"):
            raise RuntimeError("not today")
        return lambda x: 1 / (1 + np.exp(-x))
    ort.register_execution_provider(Fragile)
    try:
        found = compare(planted.network(), "fragile", "reference", FEEDS, isolated=True)
    finally:
        ort.unregister_execution_provider(Fragile.name)
    notes = {v.node: v.note for v in found.values if v.note}
    assert list(notes) == ["gate"] and "fails by itself" in notes["gate"] and found.verdict == "agree"


# models of every kind

def test_bodies_functions_and_shapes(tmp_path: Path) -> None:
    """A branch that reads outside values, a function, and a shape that is computed."""
    double = helper.make_function("f", "Double", ["v"], ["w"], [helper.make_node("Add", ["v", "v"], ["w"])],
                                  [helper.make_opsetid("", graphs.OPSET)])
    branches = {f"{name}_branch": helper.make_graph(
        [helper.make_node(op, ["d", "k"], ["out"])], name, [], [graphs.info("out", shape=None)])
        for name, op in (("then", "Add"), ("else", "Mul"))}
    nodes = [helper.make_node("Double", ["x"], ["d"], domain="f", name="double"),
             helper.make_node("Constant", [], ["k"], value_float=2.0),
             helper.make_node("If", ["c"], ["i"], name="if", **branches),
             helper.make_node("Shape", ["i"], ["s"], name="shape"),
             helper.make_node("Concat", ["s", "more"], ["t"], name="concat", axis=0),
             helper.make_node("Reshape", ["i", "t"], ["y"], name="reshape")]
    model = graphs.model(nodes, ["x", graphs.info("c", TensorProto.BOOL, [])],
                         [graphs.info("y", shape=None)], {"more": np.array([1])}, domains={"f": 1},
                         functions=[double])
    given = {"x": np.ones((2, 3), np.float32), "c": np.array(True)}
    found = compare(model, "cpu", "reference", given, isolated=True)
    assert found.verdict == "agree" and not any(v.note for v in found.values)
    assert [v.node for v in found.values] == ["double", "if", "shape", "concat", "reshape"]
    taken = Model(model)
    assert taken.derived == {"s", "t"} and taken.labels[:1] == ["double"]
    part = taken.part([taken.labels.index("if"), taken.labels.index("reshape")], ["y"],
                      {"d": given["x"], "c": given["c"], "t": np.array([2, 3, 1])})
    assert [v.name for v in part.graph.input] == ["c", "d"]
    assert ort.InferenceSession(part).run(None, {"d": given["x"], "c": given["c"]})[0].shape == (2, 3, 1)


def test_texts_and_sequences() -> None:
    nodes = [helper.make_node("StringConcat", ["s", "s"], ["t"], name="concat"),
             helper.make_node("SplitToSequence", ["x"], ["q"], name="split", axis=0),
             helper.make_node("SequenceAt", ["q", "at"], ["y"], name="at")]
    model = graphs.model(nodes, [graphs.info("s", TensorProto.STRING, ["N"]), "x"],
                         [graphs.info("t", TensorProto.STRING, ["N"]), graphs.info("y", shape=None)],
                         {"at": np.array(1)})
    found = compare(model, "cpu", "reference", isolated=True)
    assert found.verdict == "agree" and [v.note for v in found.values] == [""] * 3


def test_tensors_outside_the_file(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    onnx.save(planted.network(), folder / "m.onnx", save_as_external_data=True, location="m.data",
              size_threshold=0)
    with planted.wrong_provider() as name:
        found = compare(folder / "m.onnx", name, "reference", FEEDS, isolated=True, save=tmp_path / "case")
    assert found.first is not None and found.first.node == "gate"
    with pytest.MonkeyPatch.context() as patch:
        planted.other_code(patch, "gemm", lambda params: {**params, "tree": None})
        found = compare(folder / "m.onnx", "cpu", "reference", FEEDS, save=tmp_path / "case")
    if found.case is not None:
        assert "Gemm" in found.case.op_types
        assert ort.InferenceSession(tmp_path / "case" / "model.onnx") is not None


def test_models_as_paths_bytes_and_protos(tmp_path: Path) -> None:
    proto = planted.network()
    onnx.save(proto, tmp_path / "m.onnx")
    for source in (str(tmp_path / "m.onnx"), tmp_path / "m.onnx", proto.SerializeToString(), proto):
        assert compare(source, "cpu", "reference", FEEDS).verdict == "agree"
    with pytest.raises(NoSuchFile):
        compare(tmp_path / "none.onnx")


# sides

def test_sides_and_their_options() -> None:
    with pytest.raises(ValueError, match="no provider is called 'gpu'.*onnxruntime can be compared"):
        compare(planted.network(), "gpu")
    with pytest.raises(InvalidArgument, match="reference takes no options"):
        compare(planted.network(), "cpu", ("reference", {"a": 1}))
    with pytest.raises(ValueError, match="level most"):
        compare(planted.network(), "cpu", "cpu", level="most")
    found = compare(planted.network(), "cpu", ("cpu", {"use_codegen": "0"}), FEEDS)
    assert (found.a, found.b) == ("a: CPUExecutionProvider", "b: CPUExecutionProvider")


def test_a_side_that_fails_is_named() -> None:
    with pytest.raises(Fail, match="CPUExecutionProvider: .*Required inputs") as caught:
        compare(planted.network(), "cpu", "reference", {})
    assert "x" in str(caught.value)
    unknown = graphs.model([helper.make_node("Foo", ["x"], ["y"], domain="nobody")], ["x"], ["y"],
                           domains={"nobody": 1})
    with pytest.raises(Fail, match="CPUExecutionProvider: .*nobody:Foo"):
        compare(unknown)


def test_what_was_decided_for_the_whole_holds_for_its_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    def decided(*what: Any) -> Any:
        return sides.settled(sides.side(*what), Model(planted.network()), FEEDS).providers[0][1]
    monkeypatch.setattr(sides, "kernels_of", lambda *_: [("gemm1", "split + tiles")])
    auto = {"use_arena": 1, "float32_precision": "auto"}
    assert decided("cpu", auto) == (("use_arena", "1"), ("float32_precision", "fast"))
    for told in ("exact", "fast"):
        assert decided("cpu", {"float32_precision": told}) == (("float32_precision", told),)
    assert decided("cpu") == ()
    monkeypatch.setattr(sides, "kernels_of", lambda *_: [("gemm1", "gemm")])
    assert decided("cpu", auto) == (("use_arena", "1"), ("float32_precision", "exact"))


def test_onnxruntime_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(Fail, match="onnxruntime is not installed here") as caught:
        compare(planted.network(), "cpu", "onnxruntime")
    assert "pip install onnxruntime" in str(caught.value)


def test_onnxruntime_that_is_this_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", ort)
    with pytest.raises(Fail, match="onnxruntime is this package by another name"):
        compare(planted.network(), "cpu", "onnxruntime")


def test_interpret_sends_nodes_to_numpy() -> None:
    with knobs.setting(INTERPRET="Relu,g?mm2"):
        report = ort.InferenceSession(planted.network().SerializeToString()).explain()
    assert report["relu1"].kernel.startswith(("reference", "numpy"))
    assert report["gemm2"].kernel.startswith(("reference", "numpy"))
    with knobs.setting(INTERPRET="*"), planted.wrong_provider() as name:
        session = ort.InferenceSession(planted.network().SerializeToString(), providers=[
            f"{name.title()}ExecutionProvider"])
        assert set(session.explain().providers) == {"CPUExecutionProvider"}
        assert "ORTHRUS_INTERPRET" in str(session.explain())


# siblings

def quantized() -> onnx.ModelProto:
    """`network` with the values g1 and m2 quantized the way onnxruntime's tool names them, and s2 kept in
    whole numbers."""
    model = planted.network()
    initializers = {"zero": np.uint8(128)}
    for name, scale in (("g1", 0.05), ("m2", 0.02), ("s2", 1 / 255)):
        initializers[f"{name}_scale"] = np.float32(scale)
        initializers[f"{name}_zero_point"] = np.uint8(0 if name == "s2" else 128)
    model.graph.initializer.extend(numpy_helper.from_array(np.array(a), n) for n, a in initializers.items())
    nodes = []
    for node in model.graph.node:
        node.input[:] = [f"{n}_DequantizeLinear_Output" if n in ("g1", "m2") else n for n in node.input]
        if node.name == "gate":
            node.output[:] = ["s2_float"]
        nodes.append(node)
        for name in ("g1", "m2", "s2"):
            made = "s2_float" if name == "s2" else name
            if made in node.output:
                whole = "s2_quantized" if name == "s2" else f"{name}_QuantizeLinear_Output"
                back = "s2" + "_back" if name == "s2" else f"{name}_DequantizeLinear_Output"
                grid = [f"{name}_scale", f"{name}_zero_point"]
                nodes += [helper.make_node("QuantizeLinear", [made, *grid], [whole]),
                          helper.make_node("DequantizeLinear", [whole, *grid], [back])]
    for node in nodes:
        if node.name == "swish":
            node.input[:] = ["g2", "s2_back"]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return model


def test_a_quantized_sibling_is_matched_by_name() -> None:
    plain, other = planted.network(), quantized()
    pairs = {(m.a, m.b): m.how for m in matches(Model(plain), Model(other))}
    assert pairs["g2", "g2"] == "same name" and ("s2", "s2_quantized") in pairs and ("g1", "g1") not in pairs
    assert pairs["g1", "g1_DequantizeLinear_Output"] == "dequantized"
    found = compare_models(plain, other, feeds=FEEDS)
    by_match = {v.match: v for v in found.values}
    dequantized = by_match["g1_DequantizeLinear_Output: dequantized"].error
    assert 0 < dequantized.max_abs <= 0.0251 and found.verdict == "agree" and not found.unmatched
    gate = by_match["s2_quantized: scaled"].error
    assert 0 < gate.max_abs < 0.1 and gate.cosine > 0.99
    back = compare_models(other, plain, feeds=FEEDS)
    assert {v.value for v in back.values} >= {"g1_DequantizeLinear_Output", "s2_quantized", "y"}
    assert back.verdict == "agree"


def test_a_grid_that_replaces_a_relu_is_compared_behind_it() -> None:
    model = graphs.model([helper.make_node("Neg", ["x"], ["n"], name="neg"),
                          helper.make_node("Relu", ["n"], ["y"], name="relu")], ["x"], ["y"])
    grid = {"n_scale": np.float32(0.01), "n_zero_point": np.uint8(0)}
    nodes = [helper.make_node("Neg", ["x"], ["m"]),
             helper.make_node("QuantizeLinear", ["m", *grid], ["n_quantized"]),
             helper.make_node("DequantizeLinear", ["n_quantized", *grid], ["z"])]
    other = graphs.model(nodes, ["x"], ["z"], grid)
    for first, second in ((model, other), (other, model)):
        found = compare_models(first, second, seed=1)
        assert found.verdict == "agree"
        assert any("behind the Relu" in v.match for v in found.values)


def test_a_sibling_that_went_wrong_is_seen() -> None:
    other = quantized()
    for tensor in other.graph.initializer:
        if tensor.name == "m2_scale":
            tensor.CopyFrom(numpy_helper.from_array(np.array(0.001, np.float32), "m2_scale"))
    found = compare_models(planted.network(), other, feeds=FEEDS)
    assert found.verdict == "diverge" and found.first is not None and found.first.node == "swish"
    assert "DequantizeLinear" in found.first.match


def test_a_half_precision_sibling() -> None:
    def half(model: onnx.ModelProto) -> onnx.ModelProto:
        for v in (*model.graph.input, *model.graph.output):
            v.type.tensor_type.elem_type = TensorProto.FLOAT16
        for t in model.graph.initializer:
            t.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(t).astype(np.float16), t.name))
        return model
    found = compare_models(planted.network(), half(planted.network()), feeds=FEEDS)
    assert found.verdict == "agree" and len(found.values) == 7
    assert 1e-5 < max(v.error.max_abs for v in found.values) < 1e-1
    with pytest.raises(Fail, match="no value in common"):
        compare_models(planted.network(), graphs.model(
            [helper.make_node("Relu", ["x"], ["p"]), helper.make_node("Neg", ["p"], ["q"])],
            [graphs.info("x", shape=["N", 16])], ["p", "q"]), feeds=FEEDS)


# the command

@pytest.fixture
def orthrus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    return planted.commands(tmp_path, monkeypatch)


def test_the_command_agrees(orthrus: Callable[..., str]) -> None:
    text = orthrus("compare", MODEL, "--a-option", "use_arena=0", "--b-level", "all", "--isolated")
    assert "The sides agree: 10 values of 10 nodes" in text and "own error" in text
    assert all(name in text for name in ("max abs", "ulp", "cosine", "probability"))
    found = json.loads(orthrus("compare", MODEL, "--json", "--shape", "image=3,1,8,8", "--level", "basic"))
    assert found["verdict"] == "agree" and len(found["values"]) == 10
    assert found["values"][0]["error"]["elements"] == 3 * 64


@needs_code
def test_the_command_finds_and_saves(orthrus: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    planted.wrong_softmax(monkeypatch)
    text = orthrus("compare", MODEL, "--save", "case", code=1)
    assert "The first fault: softmax (Softmax), value probability" in text and "FAULT" in text
    assert "computed by softmax_rows" in text and Path("case/test_data_set_0/output_0.pb").is_file()
    assert "worst element" in text and "as many floats lie between" in text
    planted.wrong_when_fused(monkeypatch)
    onnx.save(planted.network(), "network.onnx")
    np.save("x.npy", FEEDS["x"])
    found = json.loads(orthrus("compare", "network.onnx", "--input", "x=x.npy", "--json", code=1))
    assert found["first"]["node"] == "softmax" and found["case"]["nodes"] == ["softmax"]


def test_the_command_with_a_sibling(orthrus: Callable[..., str]) -> None:
    onnx.save(planted.network(), "plain.onnx")
    onnx.save(quantized(), "quantized.onnx")
    text = orthrus("compare", "plain.onnx", "--against", "quantized.onnx", "--nodes")
    assert "plain.onnx on CPUExecutionProvider" in text and "same name" in text
    assert "dequantized" in text
    assert "diverge" in orthrus("compare", "plain.onnx", "--against", "quantized.onnx", "--rtol", 1e-6,
                                "--json", code=1)
    assert "leave --against out" in orthrus("compare", "plain.onnx", "--against", "quantized.onnx",
                                            "--isolated", code=1)


def test_the_command_says_what_is_wrong(orthrus: Callable[..., str]) -> None:
    assert "no provider is called" in orthrus("compare", MODEL, "--b", "gpu", code=1)
    assert "expected KEY=VALUE" in orthrus("compare", MODEL, "--a-option", "x", code=1)
    assert "doesn't exist" in orthrus("compare", "nothing.onnx", code=1).replace("\n", "")
    Path("text.onnx").write_text("no model, just words")
    assert "no ONNX model" in orthrus("compare", "text.onnx", code=1)


def test_feeds_are_read_and_generated(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", FEEDS["x"])
    model = Model(planted.network())
    np.testing.assert_array_equal(feeds_of(model, [f"x={tmp_path / 'x.npy'}"])["x"], FEEDS["x"])
    assert feeds_of(model, shapes=["x=5,16"])["x"].shape == (5, 16)
    assert (feeds_of(model, seed=1)["x"] != feeds_of(model, seed=2)["x"]).all()


# no false alarms

QUICK = ("mobilenetv2", "resnet18", "bilstm_tagger", "efficientnet_b0")
LONG = ("ppocrv4_rec", "brainmaze_spindle_unet", "ppocrv4_det")


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.thorough)
                                  for n in cases()])
def test_no_false_alarm_on_benchmark_models(name: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    path = tmp_path / f"{name}.onnx"
    onnx.save(build(name), path)
    found = compare(path, "cpu", "onnxruntime", feeds(name), isolated=True)
    path.unlink()
    assert found.verdict in (("agree", "amplified") if name.endswith("_int8") else ("agree",))
    assert [v for v in found.values if v.fault or v.note] == []


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.thorough if n in LONG else ())
                                  for n in NAMES])
def test_no_false_alarm_on_trained_models(name: str) -> None:
    pytest.importorskip("onnxruntime")
    folder = MODELS / name
    if not (folder / "model.onnx").exists():
        pytest.skip("this trained model was not fetched")
    arrays = np.load(folder / "io.npz")
    given = {k[3:]: arrays[k] for k in arrays.files if k.startswith("in:")}
    found = compare(folder / "model.onnx", "cpu", "onnxruntime", given, isolated=True)
    assert found.verdict in ("agree", "amplified")
    assert [v for v in found.values if v.fault or v.note] == []


@pytest.mark.parametrize(("a", "b", "ulp"), [
    (np.float32(0.8), np.nextafter(np.float32(0.8), np.float32(1)), 1), (0.1, 0.1 + 2**-56, 1),
    (0.5, 0.1, None), (float("nan"), float("nan"), 0), (1e300, 1e300, 0), (float("inf"), float("inf"), 0)])
def test_floats_of_maps_are_counted_as_what_they_were(a: float, b: float, ulp: int | None) -> None:
    found = measure({"x": float(a)}, {"x": float(b)}, Tolerance())
    assert found.ulp is not None and (found.ulp == ulp if ulp is not None else found.ulp > 1e9)
    assert not measure({"x": 3}, {"x": 3}, Tolerance()).beyond
