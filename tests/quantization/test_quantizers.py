"""The arithmetic of scales, the edits of a model, classes of a program's own, configurations and files."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import onnx
import pytest
from counting import lines_in
from onnx import TensorProto, helper, numpy_helper
from quantization_cases import CASES, feed, model, random, ranges

import orthrus
from orthrus import quantization as ours
from orthrus.quantization import affine, onnx_model, quant_utils, registry


def test_the_package_imports_what_is_used() -> None:
    """`quantize` is a function whatever is imported first, and nothing heavy comes with the package."""
    program = ("import sys, orthrus.quantization as q; assert 'onnx' not in sys.modules\n"
               "import orthrus.quantization.quantize\n"
               "from orthrus.quantization import quantize, QuantType\n"
               "assert callable(quantize) and q.quantize is quantize\n"
               "import orthrus.quantization.operators.conv as conv; assert conv.QDQConv and conv.ConvInteger")
    subprocess.run([sys.executable, "-c", program], check=True)


def _peer() -> tuple[int, ...]:
    try:
        return tuple(map(int, metadata.version("onnxruntime").split(".")[:2]))
    except metadata.PackageNotFoundError:
        return (0, 0)


FEWER_FLAT = _peer() >= (1, 32)
"""Whether onnxruntime quantizes ranges of float16 whose scales are below its normal numbers, and their biases
by way of float32."""


@pytest.mark.parametrize("kind", (TensorProto.INT8, TensorProto.UINT8, TensorProto.INT16, TensorProto.UINT16,
                                  TensorProto.INT4, TensorProto.UINT4))
def test_scales_are_onnxruntimes_bit_for_bit(kind: int) -> None:
    theirs = pytest.importorskip("onnxruntime.quantization.quant_utils")
    generator = np.random.default_rng(kind)
    halves = (np.float16,) if FEWER_FLAT else ()
    for dtype in (np.float32, *halves):
        for scale in (1e-38, 1e-3, 1.0, 1e3):
            for options in ((True, False, None), (False, True, None), (False, False, 0.01)):
                data = (generator.normal(size=37) + generator.normal()) * scale
                data = np.clip(data, -6e4, 6e4).astype(dtype)
                for expected, found in zip(theirs.quantize_data(data, kind, *options),
                                           affine.quantize_data(data, kind, *options), strict=True):
                    assert (expected.dtype, expected.tobytes()) == (found.dtype, found.tobytes())
        weight = generator.normal(size=(11, 14)).astype(dtype)
        weight[:, 3] = 0
        tensor = numpy_helper.from_array(weight, "w")
        for axis in (0, 1):
            for symmetric in (True, False):
                pair = theirs.compute_scale_zp_blocked(weight, kind, axis, 4, symmetric)
                own = affine.compute_scale_zp_blocked(weight, kind, axis, 4, symmetric)
                for expected, found in zip(pair, own, strict=True):
                    assert (expected.shape, expected.tobytes()) == (found.shape, found.tobytes())
                made = [tool.quantize_onnx_initializer(tensor, kind, *pair, axis, block_size=4)
                        for tool in (theirs, affine)]
                assert made[0].SerializeToString() == made[1].SerializeToString()


def test_small_ranges_of_float16_have_scales() -> None:
    data = np.array([-2e-3, 3e-3], np.float16)
    zero, scale = affine.compute_scale_zp(data.min(), data.max(), np.array(0, np.uint8),
                                          np.array(255, np.uint8))
    assert 0 < scale < np.finfo(np.float16).tiny and 0 < zero < 255
    zero, scale = affine.compute_scale_zp(np.float16(0), np.float16(0), np.array(0, np.uint8),
                                          np.array(255, np.uint8))
    assert (zero, scale) == (0, 1)


@pytest.mark.parametrize("per_channel", [False, True])
@pytest.mark.parametrize("adjusted", [False, True])
def test_biases_of_float16_that_small_steps_would_lose(per_channel: bool, adjusted: bool, tmp_path: Path
                                                       ) -> None:
    generator = np.random.default_rng(0)
    weight = (1e-4 * generator.standard_normal((8, 4))).astype(np.float16)
    bias = np.linspace(-3, 3, 4).astype(np.float16)
    graph = helper.make_graph([helper.make_node("Gemm", ["x", "w", "b"], ["y"], name="gemm")], "g", [
        helper.make_tensor_value_info("x", 10, [2, 8])], [helper.make_tensor_value_info("y", 10, [2, 4])], [
        numpy_helper.from_array(weight, "w"), numpy_helper.from_array(bias, "b")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.save(model, tmp_path / "float.onnx")
    x = (1e-2 * generator.standard_normal((2, 8))).astype(np.float16)

    def quantized(tool: Any, name: str) -> onnx.ModelProto:
        class Reader(tool.CalibrationDataReader):  # type: ignore[name-defined, misc]
            feeds = iter([{"x": x}])

            def get_next(self) -> Any:
                return next(self.feeds, None)
        tool.quantize_static(str(tmp_path / "float.onnx"), str(tmp_path / name), Reader(),
                             per_channel=per_channel,
                             extra_options={"QDQDisableWeightAdjustForInt32Bias": not adjusted})
        return onnx.load(tmp_path / name)

    made = quantized(ours, "own.onnx")
    y = orthrus.InferenceSession(made.SerializeToString()).run(None, {"x": x})[0]
    np.testing.assert_allclose(y.astype(np.float32), np.tile(bias, (2, 1)).astype(np.float32), atol=4e-2)
    if FEWER_FLAT:
        theirs = quantized(pytest.importorskip("onnxruntime.quantization"), "theirs.onnx")
        tensors = [{t.name: numpy_helper.to_array(t) for t in m.graph.initializer} for m in (made, theirs)]
        assert tensors[0].keys() == tensors[1].keys()
        for key, value in tensors[0].items():
            assert value.tobytes() == tensors[1][key].tobytes(), key
        nodes = [sorted((n.op_type, *n.input, *n.output) for n in m.graph.node) for m in (made, theirs)]
        assert nodes[0] == nodes[1]


def test_a_large_array_is_rounded_like_its_parts() -> None:
    """Blocks of rows change nothing, with scales per row, per column or one."""
    values = np.random.default_rng(0).normal(size=(700, 900)).astype(np.float32)
    for scale in (np.float32(0.02), np.linspace(0.01, 0.03, 700, dtype=np.float32)[:, None],
                  np.linspace(0.01, 0.03, 900, dtype=np.float32)[None]):
        zero = np.full(np.shape(scale), 3, np.int8)
        whole = affine.quantize_nparray(TensorProto.INT8, values, scale, zero)
        expected = np.clip(np.rint(values / scale) + 3, -128, 127).astype(np.int8)
        np.testing.assert_array_equal(whole, expected)


def test_a_class_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Doubled(registry.QDQOperatorBase):
        def quantize(self) -> None:
            self.quantizer.quantize_activation_tensor(self.node.input[0])

    class Kept(registry.QuantOperatorBase):
        def should_quantize(self) -> bool:
            return True

        def quantize(self) -> None:
            names, zeros, scales, nodes = self.quantizer.quantize_activation(self.node, [0])
            found, scale, zero, _, _ = self.quantizer._get_quantization_params(self.node.output[0])
            assert found
            output = f"{self.node.output[0]}{quant_utils.TENSOR_NAME_QUANT_SUFFIX}"
            self.quantizer.quantized_value_map[self.node.output[0]] = quant_utils.QuantizedValue(
                self.node.output[0], output, scale, zero, quant_utils.QuantizedValueType.Input)
            inputs = [names[0], scales[0], zeros[0], scale, zero]
            self.quantizer.new_nodes += [
                *nodes, helper.make_node("QLinearSigmoid", inputs, [output], domain="com.microsoft")]

    monkeypatch.setitem(registry.QDQRegistry, "Sigmoid", Doubled)
    monkeypatch.setitem(registry.QLinearOpsRegistry, "Sigmoid", Kept)
    source = model([("Sigmoid", ["x"], ["y"])], {"x": [2, 3]}, [])
    cache = tmp_path / "ranges.json"
    found = ours.TensorsData(ours.CalibrationMethod.MinMax, ranges(source, ours.TensorData))
    ours.save_tensors_data(found, cache)
    for form, expected in (("QDQ", ["QuantizeLinear", "DequantizeLinear", "Sigmoid"]),
                           ("QOperator", ["QuantizeLinear", "QLinearSigmoid", "DequantizeLinear"])):
        ours.quantize_static(source, tmp_path / "out.onnx", None, quant_format=ours.QuantFormat[form],
                             activation_type=ours.QuantType.QUInt8, calibration_cache_path=cache,
                             op_types_to_quantize=["Sigmoid"])
        assert [node.op_type for node in onnx.load(tmp_path / "out.onnx").graph.node] == expected


def test_configurations(tmp_path: Path) -> None:
    source = CASES["residual"]()

    class Reader(ours.CalibrationDataReader):
        def __init__(self) -> None:
            self.feeds = iter([{"x": np.ones((1, 4, 8, 8), np.float32)}])

        def get_next(self) -> Any:
            return next(self.feeds, None)

    ours.quantize(source, tmp_path / "a.onnx", ours.StaticQuantConfig(Reader(), per_channel=True))
    ours.quantize_static(source, tmp_path / "b.onnx", Reader(), per_channel=True)
    ours.quantize(source, str(tmp_path / "c.onnx"), ours.DynamicQuantConfig(per_channel=True))
    ours.quantize_dynamic(source, str(tmp_path / "d.onnx"), per_channel=True)
    for one, other in (("a", "b"), ("c", "d")):
        assert (tmp_path / f"{one}.onnx").read_bytes() == (tmp_path / f"{other}.onnx").read_bytes()
    with pytest.raises(TypeError, match="config"):
        ours.quantize(source, tmp_path / "e.onnx", {})


def test_weights_beside_the_model(tmp_path: Path) -> None:
    """External data goes in and comes out; a second run leaves nothing of the first."""
    source = model([("MatMul", ["x", "w"], ["r"])], {"x": [2, 64]}, [random("w", 64, 64)])
    onnx.save(source, tmp_path / "in.onnx", save_as_external_data=True, location="in.data", size_threshold=0)
    for _ in range(2):
        ours.quantize_dynamic(tmp_path / "in.onnx", tmp_path / "out.onnx", use_external_data_format=True)
    assert (tmp_path / "out.onnx.data").stat().st_size == 64 * 64
    one, other = onnx.load(tmp_path / "out.onnx"), tmp_path / "whole.onnx"
    plain = model([("MatMul", ["x", "w"], ["r"])], {"x": [2, 64]}, [random("w", 64, 64)])
    ours.quantize_dynamic(plain, other)
    assert {t.name: numpy_helper.to_array(t).tobytes() for t in one.graph.initializer} == {
        t.name: numpy_helper.to_array(t).tobytes() for t in onnx.load(other).graph.initializer}


def test_a_source_is_left_as_it_was(tmp_path: Path) -> None:
    source = CASES["residual"]()
    before = source.SerializeToString(deterministic=True)
    ours.quantize_dynamic(source, tmp_path / "out.onnx")
    with pytest.raises(ValueError):
        ours.quantize_dynamic(source, tmp_path / "out.onnx", nodes_to_exclude=["nowhere"])
    assert source.SerializeToString(deterministic=True) == before


def test_edits_of_a_model() -> None:
    edited = onnx_model.ONNXModel(CASES["residual"]())
    feeds = feed(edited.model)
    before = orthrus.InferenceSession(edited.model.SerializeToString()).run(None, feeds)[0]
    makers, readers = edited.output_name_to_node(), edited.input_name_to_nodes()
    assert [node.name for node in edited.get_children(makers["r"], readers)] == ["n2", "n3"]
    assert [node.name for node in edited.get_parents(makers["s"], makers)] == ["n2", "n1"]
    assert edited.get_parent(makers["s"], 1).name == "n1" and edited.get_parent(makers["c"], 0) is None
    assert edited.get_largest_node_name_suffix("n") == 7
    edited.add_initializer(random("w7", 2))
    assert edited.get_largest_initializer_name_suffix("w") == 7
    edited.remove_unused_constant()
    assert edited.get_initializer("w7") is None and edited.get_initializer("w") is not None
    nodes = list(edited.nodes())
    reverse = [nodes[index] for index in reversed(range(len(nodes)))]
    copies = onnx.GraphProto(node=reverse)
    edited.graph().ClearField("node")
    edited.graph().node.extend(copies.node)
    edited.topological_sort()
    edited.replace_gemm_with_matmul()
    assert [node.op_type for node in edited.nodes()][-2:] == ["MatMul", "Add"]
    after = orthrus.InferenceSession(edited.model.SerializeToString()).run(None, feeds)[0]
    np.testing.assert_allclose(after, before, rtol=1e-5, atol=1e-5)


def test_a_transposed_weight_keeps_its_description() -> None:
    weight = numpy_helper.from_array(np.ones((2, 3), np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("Gemm", ["x", "w"], ["y"], transB=1)], "gemm",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 2])], [weight],
        value_info=[helper.make_tensor_value_info("w", TensorProto.FLOAT, [2, 3])])
    edited = onnx_model.ONNXModel(helper.make_model(graph))
    edited.replace_gemm_with_matmul()
    (told,) = edited.model.graph.value_info
    assert [dim.dim_value for dim in told.type.tensor_type.shape.dim] == [3, 2]
    onnx.checker.check_model(edited.model, full_check=True)


@pytest.mark.slow
def test_gemms_share_weights() -> None:
    """Between nodes, branches and outputs, transposed and not, biased and not: the same results as Gemms."""
    for seed in range(40):
        draw, numbers, count = Random(seed), np.random.default_rng(seed), iter(range(1000))
        weights = [numpy_helper.from_array(numbers.normal(size=(3, 3)).astype(np.float32), f"w{n}")
                   for n in range(2)]

        def body(depth: int, x: str, draw: Random = draw, count: Any = count) -> tuple[list[Any], str]:
            nodes = []
            for _ in range(draw.randrange(1, 4)):
                made = f"y{next(count)}"
                if depth and draw.random() < 0.5:
                    arms = {}
                    for arm in ("then_branch", "else_branch"):
                        inner, last = body(depth - 1, x)
                        arms[arm] = helper.make_graph(
                            inner, f"g{next(count)}", [],
                            [helper.make_tensor_value_info(last, TensorProto.FLOAT, None)])
                    nodes.append(helper.make_node("If", ["c"], [made], **arms))
                else:
                    given = [x, draw.choice(["w0", "w1"]), *draw.choice([[], ["b"]])]
                    nodes.append(helper.make_node("Gemm", given, [made], transB=draw.randrange(2)))
                x = made
            return nodes, x

        nodes, last = body(2, "x")
        told = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [3, 3])
                for name in [last, *draw.choice([[], ["w0"]])]]
        given = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3, 3]),
                 helper.make_tensor_value_info("b", TensorProto.FLOAT, [3]),
                 helper.make_tensor_value_info("c", TensorProto.BOOL, [])]
        before = helper.make_model(helper.make_graph(nodes, "g", given, told, weights),
                                   opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
        edited = onnx_model.ONNXModel(onnx.ModelProto.FromString(before.SerializeToString()))
        edited.replace_gemm_with_matmul()
        assert "Gemm" not in str(edited.model)
        for condition in (True, False):
            feeds = {"x": numbers.normal(size=(3, 3)).astype(np.float32), "c": np.array(condition),
                     "b": np.ones(3, np.float32)}
            asked, found = (orthrus.InferenceSession(model.SerializeToString()).run(None, feeds)
                            for model in (before, edited.model))
            for a, b in zip(asked, found, strict=True):
                np.testing.assert_allclose(b, a, rtol=1e-4, atol=1e-4)


def test_nodes_are_sorted_as_their_values_arrive() -> None:
    """Without inputs first, then what reads given values by their names; the file's order is no matter."""
    for seed in range(40):
        draw = Random(seed)
        free = [f"given{draw.randrange(1000)}_{n}" for n in range(draw.randrange(3, 9))]
        given, nodes = list(free), [helper.make_node("Constant", [], ["c"], "c", value_float=1.0)]
        free.append("c")
        while len(free) > 1:
            taken = [free.pop(draw.randrange(len(free))) for _ in range(min(len(free), draw.randrange(1, 4)))]
            nodes.append(helper.make_node("Sum", taken, [f"v{len(nodes)}"], f"n{len(nodes)}"))
            free.append(f"v{len(nodes) - 1}")
        orders = set()
        for _ in range(4):
            draw.shuffle(nodes)
            floats = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in (*given, *free)]
            graph = helper.make_graph(nodes, "g", floats[:-1], floats[-1:])
            edited = onnx_model.ONNXModel(helper.make_model(graph))
            edited.topological_sort()
            orders.add(tuple(node.name for node in edited.nodes()))
        (order,) = orders
        by_name = {node.name: node for node in nodes}
        seen = set(given)
        for name in order:
            assert {*by_name[name].input} <= seen
            seen.update(by_name[name].output)
        ready = [by_name[name] for name in order if {*by_name[name].input} <= {*given}]
        assert order[0] == "c" and [max(node.input) for node in ready[1:]] == sorted(
            max(node.input) for node in ready[1:])


class _Once:
    def __init__(self, feeds: dict[str, np.ndarray]) -> None:
        self.feeds: list[dict[str, np.ndarray]] = [feeds]

    def get_next(self) -> dict[str, np.ndarray] | None:
        return self.feeds.pop() if self.feeds else None


def _chain(count: int, op_type: str) -> onnx.ModelProto:
    """x to y by `count` products, each with weights of its own."""
    nodes, held = [], []
    for i in range(count):
        held.append(numpy_helper.from_array(np.full((32, 32), (i + 1) / (i + 2) / 32, np.float32), f"w{i}"))
        inputs = [f"v{i}" if i else "x", f"w{i}"]
        if op_type == "Gemm":
            held.append(numpy_helper.from_array(np.ones(32, np.float32), f"b{i}"))
            inputs.append(f"b{i}")
        nodes.append(helper.make_node(op_type, inputs, [f"v{i + 1}" if i + 1 < count else "y"], name=f"n{i}"))
    ends = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 32])] for name in "xy"]
    graph = helper.make_graph(nodes, "chain", *ends, held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("way", ["static", "dynamic"])
@pytest.mark.parametrize("op_type", ["Gemm", "MatMul"])
def test_work_is_linear_in_the_number_of_weights(way: str, op_type: str, tmp_path: Path) -> None:
    def lines(count: int) -> int:
        source, out = tmp_path / f"{count}.onnx", tmp_path / "q.onnx"
        onnx.save(_chain(count, op_type), source)
        with lines_in("orthrus/quantization") as gone_through:
            if way == "static":
                ours.quantize_static(source, out, _Once({"x": np.ones((1, 32), np.float32)}))
            else:
                ours.quantize_dynamic(source, out)
        kept = {tensor.name for tensor in onnx.load(out).graph.initializer}
        assert way != "static" or kept.isdisjoint(f"{letter}{i}" for letter in "bw" for i in range(count))
        return gone_through.count

    lines(2)
    assert lines(160) < 5 * lines(40)
