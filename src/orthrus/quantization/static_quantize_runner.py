"""`python -m orthrus.quantization.static_quantize_runner`: quantize a model with the data beside it.

In: a model file, and folders `test_data_set_*` with `input_*.pb` in its folder. Out: a quantized model file.
Options are those of onnxruntime's tool.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from ..errors import ALL
from ..shown import tell
from .calibrate import CalibrationDataReader, CalibrationMethod
from .quant_utils import QuantFormat, QuantType
from .refused import InvalidValue

_TYPES = {kind.name.lower(): kind for kind in QuantType}
_METHODS = {method.name.lower(): method for method in CalibrationMethod}
_FORMATS = {kind.name.lower(): kind for kind in QuantFormat}

_SWITCHES = {
    "enable_subgraph": ("EnableSubgraph", "quantize bodies of control flow too"),
    "force_quantize_no_input_check": (
        "ForceQuantizeNoInputCheck", "quantize operators such as MaxPool and Transpose though their input "
        "is not; nodes_to_exclude leaves single ones out"),
    "matmul_const_b_only": ("MatMulConstBOnly", "only MatMul whose second factor is constant"),
    "add_qdq_pair_to_weight": ("AddQDQPairToWeight", "keep weights in float, with both Q and DQ behind them"),
    "dedicated_qdq_pair": ("DedicatedQDQPair", "a pair of Q and DQ for each reader"),
    "calib_tensor_range_symmetric": ("CalibTensorRangeSymmetric", "ranges that are centred on 0"),
    "calib_moving_average": ("CalibMovingAverage", "minmax: average the extremes of the data sets"),
    "use_qdq_contrib_ops": ("UseQDQContribOps", "Q and DQ of the domain com.microsoft"),
    "qdq_keep_removable_activations": (
        "QDQKeepRemovableActivations", "keep Clip and Relu where quantizing does their work"),
    "qdq_disable_weight_adjust_for_int32_bias": (
        "QDQDisableWeightAdjustForInt32Bias", "keep a weight's scale though its bias's gets too small"),
}
"""Switches of the command line: the option of the quantizer that each is, and what it does."""


class OnnxModelCalibrationDataReader(CalibrationDataReader):
    """The data sets beside a model file, in the order of their numbers. Raises ValueError where there is
    none, FileNotFoundError where one lacks an input."""

    def __init__(self, model_path: str | os.PathLike[str]) -> None:
        from .. import InferenceSession

        self.model_dir = os.path.dirname(os.fspath(model_path)) or os.curdir
        names = [arg.name for arg in InferenceSession(os.fspath(model_path)).get_inputs()]
        folders = sorted(Path(self.model_dir).glob("test_data_set_*"), key=_number)
        if not folders:
            raise InvalidValue("there is no calibration data beside the model", found=self.model_dir,
                               expected="folders test_data_set_0, … with input_0.pb, …")
        self.calibration_data = iter([
            {name: self.read_onnx_pb_data(folder / f"input_{i}.pb") for i, name in enumerate(names)}
            for folder in folders])

    def get_next(self) -> dict[str, Any] | None:
        """The next data set."""
        return next(self.calibration_data, None)

    def read_onnx_pb_data(self, file_pb: str | os.PathLike[str]) -> np.ndarray:
        """The array of a TensorProto's file."""
        return numpy_helper.to_array(onnx.load_tensor(os.fspath(file_pb)))


def _number(folder: Path) -> tuple[int, str]:
    found = re.search(r"\d+$", folder.name)
    return int(found[0]) if found else 0, folder.name


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of a command line, the process's own where none is given."""
    parser = argparse.ArgumentParser(
        prog="python -m orthrus.quantization.static_quantize_runner",
        description="Quantize a model; the folders test_data_set_* beside it are the calibration data.")
    add = parser.add_argument
    add("-i", "--input_model_path", required=True, metavar="MODEL", help="the model to read")
    add("-o", "--output_quantized_model_path", required=True, metavar="MODEL", help="where to write it")
    add("--activation_type", choices=list(_TYPES), default="quint8", help="of activations (default: quint8)")
    add("--weight_type", choices=list(_TYPES), default="qint8", help="of weights (default: qint8)")
    for flag, (_, what) in _SWITCHES.items():
        add(f"--{flag}", action="store_true", help=what)
    add("--disable_quantize_bias", action="store_true", help="keep biases in float")
    add("--op_types_to_exclude_output_quantization", nargs="+", default=[], metavar="OP",
        help="operators whose outputs stay in float")
    add("--calibration_method", choices=list(_METHODS), default="minmax", help="(default: minmax)")
    add("--quant_format", choices=list(_FORMATS), default="qdq", help="(default: qdq)")
    add("--minimum_real_range", type=float, default=0.0001, metavar="X",
        help="the least that a range may span (default: 0.0001)")
    add("--per_channel", action="store_true", help="a scale for each channel of a weight")
    add("--nodes_to_quantize", nargs="+", metavar="NODE", help="only these")
    add("--nodes_to_exclude", nargs="+", metavar="NODE", help="all but these")
    add("--op_per_channel_axis", nargs=2, action="append", default=[], metavar=("OP", "AXIS"),
        help="which axis of an operator's weight is that of channels")
    add("--tensor_quant_overrides", metavar="FILE", help="JSON of scales and zero points by tensor")
    return parser.parse_args(argv)


def get_tensor_quant_overrides(file: str | os.PathLike[str] | None) -> dict[str, Any]:
    """Overrides by tensor from a JSON file, scales and zero points as arrays; none without a file. Raises
    ValueError for a file that does not hold such."""
    if not file:
        return {}
    try:
        overrides = json.loads(Path(file).read_text(encoding="utf-8"))
        for given in (each for several in overrides.values() for each in several):
            if "scale" in given:
                given["scale"] = np.array(given["scale"], np.float32)
            if "zero_point" in given:
                given["zero_point"] = np.array(given["zero_point"])
    except (ValueError, TypeError, AttributeError) as error:
        raise InvalidValue(f"{os.fspath(file)} cannot be read as overrides: {error}",
                           expected='JSON such as {"tensor": [{"scale": 0.1, "zero_point": 0}]}') from error
    return dict(overrides)


def main(argv: Sequence[str] | None = None) -> int:
    """The command line. Returns the exit code: 1 where the model, its data or an option is at fault."""
    from .quantize import StaticQuantConfig, quantize

    given = parse_arguments(argv)
    faults: tuple[type[Exception], ...] = (OSError, ValueError, *ALL)
    try:
        quantize(given.input_model_path, given.output_quantized_model_path, StaticQuantConfig(
            OnnxModelCalibrationDataReader(given.input_model_path),
            calibrate_method=_METHODS[given.calibration_method], quant_format=_FORMATS[given.quant_format],
            activation_type=_TYPES[given.activation_type], weight_type=_TYPES[given.weight_type],
            nodes_to_quantize=given.nodes_to_quantize, nodes_to_exclude=given.nodes_to_exclude,
            per_channel=given.per_channel, extra_options=_options(given)))
    except faults as error:
        tell(f"{given.input_model_path} is not quantized: {error}", err=True)
        return 1
    return 0


def _options(given: argparse.Namespace) -> dict[str, Any]:
    """The quantizer's extra options."""
    axes = {kind: _axis(kind, axis) for kind, axis in given.op_per_channel_axis}
    return {**{option: getattr(given, flag) for flag, (option, _) in _SWITCHES.items()},
            "QuantizeBias": not given.disable_quantize_bias, "MinimumRealRange": given.minimum_real_range,
            "OpTypesToExcludeOutputQuantization": given.op_types_to_exclude_output_quantization,
            "QDQOpTypePerChannelSupportToAxis": axes,
            "TensorQuantOverrides": get_tensor_quant_overrides(given.tensor_quant_overrides)}


def _axis(kind: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise InvalidValue(f"the axis of {kind} is no number", found=text, expected="such as 1") from None


if __name__ == "__main__":
    sys.exit(main())
