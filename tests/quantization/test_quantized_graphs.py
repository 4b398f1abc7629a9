"""Quantized models are onnxruntime's up to names, scale by scale, and run alike in both runtimes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import same_graphs
from oracle import SATURATES
from quantization_cases import CASES, branches, feed, model, random, ranges, scalar

import orthrus
from orthrus import quantization as ours

theirs = pytest.importorskip("onnxruntime.quantization")
onnxruntime = pytest.importorskip("onnxruntime")
Params = dict[str, Any]
DYNAMIC: tuple[Params, ...] = ({}, {"per_channel": True, "reduce_range": True, "weight_type": "QUInt8"})
U8: Params = {"activation_type": "QUInt8"}
STATIC: tuple[Params, ...] = ({**U8}, {"per_channel": True, "reduce_range": True})
SOME = ("residual", "MatMul", "Gather", "one bias of two", "LayerNormalization", "Split")
"""Models on which every option is tried; the others get each of them in the slow tests."""
QDQ_OPTIONS: tuple[Params, ...] = (
    {**U8, "weight_type": "QUInt8"}, {"activation_type": "QInt16"},
    {"activation_type": "QUInt16", "weight_type": "QInt16"}, {**U8, "weight_type": "QInt4"},
    {**U8, "weight_type": "QUInt4", "per_channel": True},
    *({**U8, "extra_options": options} for options in (
        {"ActivationSymmetric": True}, {"WeightSymmetric": False}, {"ForceQuantizeNoInputCheck": True},
        {"AddQDQPairToWeight": True}, {"OpTypesToExcludeOutputQuantization": ["Conv", "MatMul"]},
        {"DedicatedQDQPair": True}, {"QuantizeBias": False}, {"QDQKeepRemovableActivations": True},
        {"MinimumRealRange": 0.1}, {"UseQDQContribOps": True}, {"QDQDisableWeightAdjustForInt32Bias": True},
        {"ActivationRestrictedAsymmetric": True})),
    {**U8, "per_channel": True, "extra_options": {"QDQOpTypePerChannelSupportToAxis": {"MatMul": 0}}},
)
QOPERATOR_OPTIONS: tuple[Params, ...] = (
    {**U8, "weight_type": "QUInt8"}, {"weight_type": "QInt8"},
    *({**U8, "extra_options": options} for options in (
        {"ActivationSymmetric": True}, {"WeightSymmetric": False}, {"MinimumRealRange": 0.1},
        {"extra.Sigmoid.nnapi": True}, {"MatMulConstBOnly": True}, {"ActivationRestrictedAsymmetric": True})))


def quantized(tool: Any, source: onnx.ModelProto, out: Path, form: str, given: Params) -> onnx.ModelProto:
    """The model as a tool quantizes it: dynamic, QDQ or QOperator, by the ranges of `quantization_cases`."""
    params = {key: getattr(tool.QuantType, value) if key.endswith("_type") else value
              for key, value in given.items()}
    copy = onnx.ModelProto()
    copy.CopyFrom(source)
    if form == "dynamic":
        tool.quantize_dynamic(copy, out, **params)
    else:
        method = tool.CalibrationMethod[params.pop("calibrate_method", "MinMax")]
        cache = out.with_suffix(".json")
        if not cache.exists():
            tool.save_tensors_data(tool.TensorsData(method, ranges(source, tool.TensorData)), cache)
        tool.quantize_static(copy, out, None, quant_format=tool.QuantFormat[form], calibrate_method=method,
                             calibration_cache_path=cache, **params)
    return onnx.load(out)


def assert_same(source: onnx.ModelProto, tmp_path: Path, form: str, given: Params) -> onnx.ModelProto:
    made = [quantized(tool, source, tmp_path / f"{name}.onnx", form, given)
            for name, tool in (("theirs", theirs), ("ours", ours))]
    assert not same_graphs.difference(made[1], made[0])
    expected, found = map(fields, made)
    both = found.keys() & expected.keys()
    assert {name: found[name] for name in both} == {name: expected[name] for name in both}
    return made[1]


def fields(model: onnx.ModelProto) -> dict[str, bool]:
    """Which constants a program finds as bytes, and not in the field of their type."""
    return {tensor.name: tensor.HasField("raw_data") for tensor in model.graph.initializer}


def forms() -> Iterator[tuple[str, Params]]:
    yield from (("dynamic", given) for given in DYNAMIC)
    yield from ((form, given) for form in ("QDQ", "QOperator") for given in STATIC)


def options() -> Iterator[tuple[str, Params]]:
    yield from (("QDQ", given) for given in QDQ_OPTIONS)
    yield from (("QOperator", given) for given in QOPERATOR_OPTIONS)


THEIRS_FAILS = {("Where", "QOperator")}
"""Models that onnxruntime's tool cannot quantize: it leaves a value behind that nothing makes."""


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("form", ("dynamic", "QDQ", "QOperator"))
def test_every_operator(name: str, form: str, tmp_path: Path) -> None:
    if (name, form) in THEIRS_FAILS:
        quantized(ours, CASES[name](), tmp_path / "ours.onnx", form, {**U8})
        return
    assert_same(CASES[name](), tmp_path, form, {**U8} if form != "dynamic" else {})


@pytest.mark.parametrize(("form", "given"), [*options()], ids=str)
def test_every_option(form: str, given: Params, tmp_path: Path) -> None:
    for name in SOME[:2]:
        folder = tmp_path / name
        folder.mkdir()
        assert_same(CASES[name](), folder, form, given)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_every_option_on_every_operator(name: str, tmp_path: Path) -> None:
    for index, (form, given) in enumerate([*forms(), *options()]):
        if (name, form) not in THEIRS_FAILS:
            folder = tmp_path / str(index)
            folder.mkdir()
            assert_same(CASES[name](), folder, form, given)


@pytest.mark.parametrize("name", CASES)
def test_both_runtimes_compute_the_same(name: str, tmp_path: Path) -> None:
    source = CASES[name]()
    for form in ("dynamic", "QDQ", "QOperator"):
        out = tmp_path / f"{form}.onnx"
        given = {} if form == "dynamic" else {**U8}
        quantized(ours, source, out, form, given | {"reduce_range": SATURATES})
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level = 4
        reference = onnxruntime.InferenceSession(str(out), options, providers=["CPUExecutionProvider"])
        found = orthrus.InferenceSession(str(out)).run(None, feed(source))
        for expected, value in zip(reference.run(None, feed(source)), found, strict=True):
            np.testing.assert_allclose(value, expected, rtol=0, atol=0.02 * max(np.abs(expected).max(), 1e-6))


def test_float8(tmp_path: Path) -> None:
    given = {"activation_type": "QFLOAT8E4M3FN", "weight_type": "QFLOAT8E4M3FN",
             "calibrate_method": "Distribution"}
    assert_same(CASES["Gemm"](), tmp_path, "QDQ", given)


def test_weights_in_blocks(tmp_path: Path) -> None:
    assert_same(CASES["MatMul"](), tmp_path, "QDQ",
                {**U8, "weight_type": "QInt4", "extra_options": {"BlockSize": 2}})


OVERRIDES: dict[str, Callable[[Any], dict[str, Any]]] = {
    "type": lambda kinds: {"c": [{"quant_type": kinds.QUInt16}]},
    "range": lambda kinds: {"c": [{"rmin": np.float32(-1), "rmax": np.float32(2)}]},
    "scale": lambda kinds: {"c": [{"scale": np.array(0.5, np.float32), "zero_point": np.array(3, np.uint8)}]},
    "symmetric": lambda kinds: {"c": [{"symmetric": True}]},
    "axis": lambda kinds: {"w": [{"axis": 0, "symmetric": False}]},
    "4 bits": lambda kinds: {"w": [{"quant_type": kinds.QInt4, "axis": 0}]},
    "weight's scale": lambda kinds: {"w": [{"scale": np.array(0.5, np.float32),
                                            "zero_point": np.array(0, np.int8)}]},
    "channels' scales": lambda kinds: {"w": [{"axis": 0, "scale": np.float32(0.1 * (i + 1)),
                                              "zero_point": np.int8(0)} for i in range(6)]},
    "channels' ranges": lambda kinds: {"w": [{"axis": 0, "rmin": np.float32(-i - 1),
                                              "rmax": np.float32(i + 0.5)} for i in range(6)]},
    "bias": lambda kinds: {"b": [{"quant_type": kinds.QInt8}]},
    "converted": lambda kinds: {"s": [{"quant_type": kinds.QUInt8,
                                       "convert": {"quant_type": kinds.QUInt16}}]},
    "converted for one": lambda kinds: {"r": [{"quant_type": kinds.QUInt8, "convert": {
        "quant_type": kinds.QUInt16, "recv_nodes": {"n3"}}}]},
    "converted output": lambda kinds: {"o": [{"quant_type": kinds.QUInt8,
                                              "convert": {"quant_type": kinds.QUInt16}}]},
    "converted input": lambda kinds: {"x": [{"quant_type": kinds.QUInt8,
                                             "convert": {"quant_type": kinds.QUInt16}}]},
    "converted and shared": lambda kinds: {"f": [{"quant_type": kinds.QUInt8,
                                                  "convert": {"quant_type": kinds.QUInt16}}]},
}


@pytest.mark.parametrize("name", OVERRIDES)
def test_overrides_of_single_tensors(name: str, tmp_path: Path) -> None:
    source = CASES["residual"]()
    made = [quantized(tool, source, tmp_path / f"{who}.onnx", "QDQ", {
        **U8, "extra_options": {"TensorQuantOverrides": OVERRIDES[name](tool.QuantType)}})
        for who, tool in (("ours", ours), ("theirs", theirs))]
    assert not same_graphs.difference(*made)


@pytest.mark.parametrize("given", (
    {"nodes_to_quantize": ["n0"]}, {"nodes_to_exclude": ["n0", "n3"]}, {"op_types_to_quantize": ["Conv"]},
    {"op_types_to_quantize": ["Add", "Relu"]}), ids=str)
@pytest.mark.parametrize("form", ("dynamic", "QDQ", "QOperator"))
def test_lists_of_nodes_and_operators(given: Params, form: str, tmp_path: Path) -> None:
    assert_same(CASES["residual"](), tmp_path, form, given)


@pytest.mark.parametrize("within", (True, False))
@pytest.mark.parametrize("form", ("dynamic", "QDQ"))
def test_branches(within: bool, form: str, tmp_path: Path) -> None:
    assert_same(branches(), tmp_path, form, {"extra_options": {"EnableSubgraph": within}})


@pytest.mark.parametrize("opset", (7, 9, 10, 11, 13, 21))
def test_operator_sets(opset: int, tmp_path: Path) -> None:
    source = model([("Conv", ["x", "w", "b"], ["c"], {"pads": [1, 1, 1, 1]}), ("Relu", ["c"], ["r"]),
                    ("MaxPool", ["r"], ["p"], {"kernel_shape": [2, 2]}), ("Flatten", ["p"], ["f"]),
                    ("MatMul", ["f", "v"], ["o"])], {"x": [1, 4, 8, 8]},
                   [random("w", 6, 4, 3, 3), random("b", 6), random("v", 294, 5)], opset=opset)
    for form in ("dynamic", "QDQ", "QOperator") if opset > 10 else ("dynamic",):
        folder = tmp_path / form
        folder.mkdir()
        assert_same(source, folder, form, {})


@pytest.mark.parametrize("form", ("dynamic", "QDQ", "QOperator"))
def test_types_by_their_numbers(form: str, tmp_path: Path) -> None:
    """A type is as good as TensorProto's number of it."""
    source, number = CASES["residual"](), onnx.TensorProto.DataType.Value
    names = {"weight_type": "QInt8"} if form == "dynamic" else {"weight_type": "QInt8", **U8}
    made = []
    for place, kinds in enumerate(({key: ours.QuantType[name] for key, name in names.items()},
                                   {key: number(name[1:].upper()) for key, name in names.items()})):
        out = tmp_path / f"{place}.onnx"
        if form == "dynamic":
            ours.quantize_dynamic(source, out, **kinds)
        else:
            cache = tmp_path / "ranges.json"
            ours.save_tensors_data(ours.TensorsData(ours.CalibrationMethod.MinMax,
                                                    ranges(source, ours.TensorData)), cache)
            ours.quantize_static(source, out, None, ours.QuantFormat[form], calibration_cache_path=cache,
                                 **kinds)
        made.append(onnx.load(out))
    assert not same_graphs.difference(*made)
    ours.get_qdq_config(source, None, activation_type=number("UINT16"), weight_type=number("INT4"))


def test_the_configuration_of_all_operators() -> None:
    source = CASES["residual"]()
    kinds = [tool.get_qdq_config(source, None, activation_type=tool.QuantType.QUInt16,
                                 weight_type=tool.QuantType.QInt4, min_real_range=0.01,
                                 calibrate_args={"percentile": 99.0},
                                 nodes_to_exclude=lambda _, node: node.op_type == "Add")
             for tool in (ours, theirs)]
    for kind in kinds:
        kind.op_types_to_quantize.sort()
    first, second = map(vars, kinds)
    assert repr(first).replace("orthrus", "onnxruntime") == repr(second)


def test_a_difference_is_seen(tmp_path: Path) -> None:
    """The comparison itself: a scale, an attribute, a type, an order of inputs."""
    source = CASES["residual"]()
    made = quantized(ours, source, tmp_path / "a.onnx", "QDQ", {**U8})
    for form, given in (("QDQ", {}), ("QDQ", {**U8, "per_channel": True}), ("QOperator", {**U8})):
        other = quantized(ours, source, tmp_path / "b.onnx", form, given)
        assert same_graphs.difference(made, other)
    for change in (_scale, _attribute, _swap):
        other = onnx.ModelProto()
        other.CopyFrom(made)
        change(other.graph)
        assert same_graphs.difference(made, other), change.__name__


def _scale(graph: onnx.GraphProto) -> None:
    tensor = next(tensor for tensor in graph.initializer if tensor.name == "d_scale")
    value = np.nextafter(onnx.numpy_helper.to_array(tensor), np.float32(1))
    tensor.CopyFrom(onnx.numpy_helper.from_array(value, tensor.name))


def _attribute(graph: onnx.GraphProto) -> None:
    next(node for node in graph.node if node.op_type == "Conv").attribute[0].ints[0] = 2


def _swap(graph: onnx.GraphProto) -> None:
    node = next(node for node in graph.node if node.op_type == "Add")
    node.input[:] = node.input[::-1]


def test_what_a_clip_keeps_out_stays_out(tmp_path: Path) -> None:
    """A Clip whose limits the scale of its data does not hold is kept: dropping it lets values pass."""
    source = model([("Conv", ["x", "w", "b"], ["c"]), ("Relu", ["c"], ["r"]),
                    ("Clip", ["r", "low", "high"], ["k"]), ("Conv", ["k", "v"], ["o"])], {"x": [1, 4, 8, 8]},
                   [random("w", 6, 4, 3, 3), random("b", 6), random("v", 2, 6, 1, 1), scalar("low", 0.0),
                    scalar("high", 0.5)])
    data = ranges(source, ours.TensorData)
    for name, low, high in (("x", -4, 4), ("r", 0, 20), ("k", 0, 0.5), ("o", -5, 5)):
        data[name] = ours.TensorData(lowest=np.float32(low), highest=np.float32(high))
    cache, out = tmp_path / "cache.json", tmp_path / "out.onnx"
    ours.save_tensors_data(ours.TensorsData(ours.CalibrationMethod.MinMax, data), cache)
    ours.quantize_static(source, out, None, quant_format=ours.QuantFormat.QOperator,
                         activation_type=ours.QuantType.QUInt8, calibration_cache_path=cache)
    expected = orthrus.InferenceSession(source.SerializeToString()).run(None, feed(source))[0]
    found = orthrus.InferenceSession(str(out)).run(None, feed(source))[0]
    assert np.abs(found - expected).max() < 0.7 and np.abs(found - expected).mean() < 0.1
