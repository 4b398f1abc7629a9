"""What cannot be quantized is refused by name with a cure, and leaves no file behind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper
from quantization_cases import CASES, feed, model, random, ranges

from orthrus import errors
from orthrus import quantization as ours
from orthrus.quantization.onnx_model import ONNXModel

Type = ours.QuantType


def static(source: Any, out: Path, cached: bool = True, **given: Any) -> None:
    cache = out.with_name("ranges.json")
    if cached and not cache.exists():
        found = ours.TensorsData(ours.CalibrationMethod.MinMax, ranges(source, ours.TensorData))
        ours.save_tensors_data(found, cache)
    ours.quantize_static(source, out, None, calibration_cache_path=cache, **given)


def with_value(name: str, value: float) -> onnx.ModelProto:
    """The residual network with this value among those of a constant."""
    source = CASES["residual"]()
    tensor = next(tensor for tensor in source.graph.initializer if tensor.name == name)
    array = numpy_helper.to_array(tensor).copy()
    array.flat[0] = value
    tensor.CopyFrom(numpy_helper.from_array(array, name))
    return source


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "unknown node": ({"nodes_to_exclude": ["nowhere"]}, "'nowhere'"),
    "unknown node to quantize": ({"nodes_to_quantize": ["n0", "nowhere"]}, "'nowhere'"),
    "no type": ({"weight_type": "QInt8"}, "QuantType"),
    "types": ({"activation_type": Type.QInt8, "weight_type": Type.QUInt8}, "QUInt8"),
    "float8 by half": ({"activation_type": Type.QFLOAT8E4M3FN}, "QFLOAT8E4M3FN"),
    "float8 by MinMax": ({"activation_type": Type.QFLOAT8E4M3FN, "weight_type": Type.QFLOAT8E4M3FN},
                         "Distribution"),
    "16 bits in operators": ({"activation_type": Type.QInt16, "quant_format": ours.QuantFormat.QOperator},
                             "QDQ"),
    "4 bits in operators": ({"activation_type": Type.QUInt8, "weight_type": Type.QInt4,
                             "quant_format": ours.QuantFormat.QOperator}, "QDQ"),
    "overrides in a list": ({"extra_options": {"TensorQuantOverrides": [{"c": {}}]}}, "no dict"),
    "override of nothing": ({"extra_options": {"TensorQuantOverrides": {"nowhere": [{}]}}}, "'nowhere'"),
    "override's scale alone": ({"extra_options": {"TensorQuantOverrides": {"c": [{"scale": 1.0}]}}}, "'c'"),
    "override of the second": ({"extra_options": {"TensorQuantOverrides": {
        "c": [{"symmetric": True}], "d": [{"reduce_range": True}]}}}, "activation d"),
    "override's type": ({"extra_options": {"TensorQuantOverrides": {"c": [{"quant_type": "QInt8"}]}}}, "'c'"),
    "override's axis": ({"extra_options": {"TensorQuantOverrides": {"w": [{"axis": 7}]}}}, "tensor w"),
    "override of 16 bits": ({"quant_format": ours.QuantFormat.QOperator, "activation_type": Type.QUInt8,
                             "extra_options": {"TensorQuantOverrides": {
                                 "c": [{"quant_type": Type.QUInt16}]}}}, "QUInt16"),
    "blocks of a convolution": ({"extra_options": {"BlockSize": 2}}, "'w'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_parameters_of_static_quantization(name: str, tmp_path: Path) -> None:
    given, said = REFUSED[name]
    with pytest.raises((ValueError, TypeError, NotImplementedError)) as caught:
        static(CASES["residual"](), tmp_path / "out.onnx", **given)
    assert isinstance(caught.value, errors.InvalidArgument)
    assert said in str(caught.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ranges.json"]


@pytest.mark.parametrize("kind", (Type.QInt16, Type.QInt4, Type.QFLOAT8E4M3FN, "int8"))
def test_types_of_dynamic_quantization(kind: Any, tmp_path: Path) -> None:
    with pytest.raises(errors.InvalidArgument, match="QInt8"):
        ours.quantize_dynamic(CASES["MatMul"](), tmp_path / "out.onnx", weight_type=kind)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("form", [*ours.QuantFormat])
@pytest.mark.parametrize("name", ("w", "g"))
def test_nan_among_weights(name: str, form: ours.QuantFormat, tmp_path: Path) -> None:
    with pytest.raises(errors.InvalidArgument, match=f"'{name}'"):
        static(with_value(name, np.nan), tmp_path / "out.onnx", quant_format=form,
               per_channel=form is ours.QuantFormat.QDQ)
    assert not (tmp_path / "out.onnx").exists()


def test_nan_among_weights_of_dynamic_quantization(tmp_path: Path) -> None:
    with pytest.raises(errors.InvalidArgument, match="'w'"):
        ours.quantize_dynamic(with_value("w", np.nan), tmp_path / "out.onnx")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("form", [*ours.QuantFormat])
def test_infinity_stays_float(form: ours.QuantFormat, tmp_path: Path) -> None:
    """A mask of -inf is added in float; what else the model does is quantized."""
    mask = numpy_helper.from_array(np.array([0, -np.inf, 0, 0, 0, 0], np.float32), "mask")
    source = model([("MatMul", ["x", "w"], ["m"]), ("Add", ["m", "mask"], ["a"]), ("Softmax", ["a"], ["s"])],
                   {"x": [2, 4]}, [random("w", 4, 6), mask])
    static(source, tmp_path / "out.onnx", quant_format=form, activation_type=Type.QUInt8)
    import orthrus

    result = orthrus.InferenceSession(str(tmp_path / "out.onnx")).run(None, feed(source))[0]
    assert np.isfinite(result).all() and (result[:, 1] < 0.02).all()


@pytest.mark.parametrize("form", ("dynamic", "QDQ", "QOperator"))
def test_what_is_quantized_already(form: str, tmp_path: Path) -> None:
    first, second = tmp_path / "first.onnx", tmp_path / "second.onnx"
    source = CASES["residual"]()
    if form == "dynamic":
        ours.quantize_dynamic(source, first)
    else:
        static(source, first, quant_format=ours.QuantFormat[form], activation_type=Type.QUInt8)
    with pytest.raises(errors.InvalidArgument, match="already quantized"):
        if form == "QDQ":
            static(str(first), second, activation_type=Type.QUInt8)
        else:
            ours.quantize_dynamic(first, second)
    assert not second.exists()


def test_ranges_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(errors.InvalidArgument, match="calibration_data_reader"):
        static(CASES["residual"](), tmp_path / "out.onnx", cached=False)
    ours.save_tensors_data(ours.TensorsData(ours.CalibrationMethod.MinMax, {}), tmp_path / "ranges.json")
    with pytest.raises(errors.InvalidArgument, match="nodes_to_exclude"):
        static(CASES["residual"](), tmp_path / "out.onnx")
    with pytest.raises(errors.InvalidArgument, match="another method"):
        static(CASES["residual"](), tmp_path / "out.onnx", calibrate_method=ours.CalibrationMethod.Entropy)
    assert not (tmp_path / "out.onnx").exists()


@pytest.mark.parametrize("source", (3, None, b"bytes"))
def test_what_is_no_model(source: Any, tmp_path: Path) -> None:
    with pytest.raises(errors.InvalidArgument, match="ModelProto"):
        ours.quantize_dynamic(source, tmp_path / "out.onnx")


def test_half_precision_in_quantized_operators(tmp_path: Path) -> None:
    half = numpy_helper.from_array(np.ones((4, 6), np.float16), "w")
    source = model([("MatMul", ["x", "w"], ["r"])], {"x": [2, 4]}, [half], kinds={"x": TensorProto.FLOAT16})
    source.graph.output[0].type.tensor_type.elem_type = TensorProto.FLOAT16
    with pytest.raises(errors.InvalidArgument, match="float16") as caught:
        ours.quantize_dynamic(source, tmp_path / "out.onnx")
    assert "n0" in str(caught.value)


def test_a_file_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(OSError):
        ours.quantize_dynamic(CASES["MatMul"](), tmp_path / "nowhere" / "out.onnx")
    assert not list(tmp_path.iterdir())


def test_a_model_in_a_circle(tmp_path: Path) -> None:
    source = model([("Relu", ["b"], ["a"]), ("Relu", ["a"], ["b"])], {"x": [2]}, [])
    with pytest.raises(RuntimeError, match="circle"):
        ONNXModel(source).save_model_to_file(tmp_path / "out.onnx")
    assert not list(tmp_path.iterdir())
