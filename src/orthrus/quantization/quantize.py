"""A float model in, the file of a quantized one out, by ranges measured ahead (static) or later (dynamic).

The output file is written when everything else is done, whole or not at all.
"""

from __future__ import annotations

import copy
import json
import logging
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import onnx
from onnx import ModelProto, NodeProto

from .base_quantizer import BaseQuantizer
from .calibrate import CalibrationMethod, TensorsData, create_calibrator, load_tensors_data, save_tensors_data
from .onnx_model import all_graphs
from .onnx_quantizer import ONNXQuantizer
from .opset import BY_CHANNEL
from .qdq_quantizer import QDQQuantizer
from .quant_utils import (
    DEQUANT_OP_NAME,
    MODEL_SIZE_THRESHOLD,
    QUANT_OP_NAME,
    QuantFormat,
    QuantizationMode,
    QuantType,
    as_quant_type,
    get_opset_version,
    load_model_with_shape_infer,
    model_has_pre_process_metadata,
    save_and_reload_model_with_shape_infer,
    update_opset_version,
    with_opset,
)
from .refused import InvalidType, InvalidValue
from .registry import IntegerOpsRegistry, QDQRegistry, QLinearOpsRegistry
from .smooth import smoothed
from .tensor_quant_overrides import TensorQuantOverridesHelper

Source = Any
"""A path, or an onnx.ModelProto."""
_SIXTEEN_BITS = frozenset({QuantType.QInt16, QuantType.QUInt16})
_FOUR_BITS = frozenset({QuantType.QInt4, QuantType.QUInt4})
_EIGHT_BITS = frozenset({QuantType.QInt8, QuantType.QUInt8})
_NEVER_QUANTIZED = frozenset({"Cast", DEQUANT_OP_NAME, QUANT_OP_NAME})
_CALIBRATION_OPTIONS = {
    "CalibTensorRangeSymmetric": "symmetric", "CalibMovingAverage": "moving_average",
    "CalibMovingAverageConstant": "averaging_constant",
    "CalibMaxIntermediateOutputs": "max_intermediate_outputs", "CalibPercentile": "percentile",
}
"""Names of options, and what a calibrater calls them."""
_log = logging.getLogger(__name__)


class QuantConfig:
    """The parameters that every quantization has. Lists that are None or empty mean everything, or nothing to
    exclude."""

    def __init__(self, activation_type: QuantType = QuantType.QUInt8,
                 weight_type: QuantType = QuantType.QInt8, op_types_to_quantize: list[str] | None = None,
                 nodes_to_quantize: list[str] | None = None, nodes_to_exclude: list[str] | None = None,
                 per_channel: bool = False, reduce_range: bool = False,
                 use_external_data_format: bool = False) -> None:
        self.op_types_to_quantize = op_types_to_quantize or []
        self.per_channel = per_channel
        self.reduce_range = reduce_range
        self.weight_type = weight_type
        self.activation_type = activation_type
        self.nodes_to_quantize = nodes_to_quantize or []
        self.nodes_to_exclude = nodes_to_exclude or []
        self.use_external_data_format = use_external_data_format


class StaticQuantConfig(QuantConfig):
    """The parameters of `quantize_static`."""

    def __init__(self, calibration_data_reader: Any,
                 calibrate_method: CalibrationMethod = CalibrationMethod.MinMax,
                 quant_format: QuantFormat = QuantFormat.QDQ, activation_type: QuantType = QuantType.QInt8,
                 weight_type: QuantType = QuantType.QInt8, op_types_to_quantize: list[str] | None = None,
                 nodes_to_quantize: list[str] | None = None, nodes_to_exclude: list[str] | None = None,
                 per_channel: bool = False, reduce_range: bool = False,
                 use_external_data_format: bool = False, calibration_providers: Any = None,
                 extra_options: dict[str, Any] | None = None) -> None:
        super().__init__(activation_type, weight_type, op_types_to_quantize, nodes_to_quantize,
                         nodes_to_exclude, per_channel, reduce_range, use_external_data_format)
        self.calibration_data_reader = calibration_data_reader
        self.calibrate_method = calibrate_method
        self.quant_format = quant_format
        self.calibration_providers = calibration_providers
        self.extra_options = extra_options or {}


class DynamicQuantConfig(QuantConfig):
    """The parameters of `quantize_dynamic`."""

    def __init__(self, weight_type: QuantType = QuantType.QInt8,
                 op_types_to_quantize: list[str] | None = None, nodes_to_quantize: list[str] | None = None,
                 nodes_to_exclude: list[str] | None = None, per_channel: bool = False,
                 reduce_range: bool = False, use_external_data_format: bool = False,
                 extra_options: dict[str, Any] | None = None) -> None:
        super().__init__(weight_type=weight_type, op_types_to_quantize=op_types_to_quantize,
                         nodes_to_quantize=nodes_to_quantize, nodes_to_exclude=nodes_to_exclude,
                         per_channel=per_channel, reduce_range=reduce_range,
                         use_external_data_format=use_external_data_format)
        self.extra_options = extra_options or {}


def get_qdq_config(model_input: Source, calibration_data_reader: Any,
                   calibrate_method: CalibrationMethod = CalibrationMethod.MinMax,
                   calibrate_args: dict[str, Any] | None = None,
                   activation_type: QuantType = QuantType.QUInt8, weight_type: QuantType = QuantType.QInt8,
                   activation_symmetric: bool = False, weight_symmetric: bool | None = None,
                   per_channel: bool = False, reduce_range: bool = False,
                   keep_removable_activations: bool = False, min_real_range: float | None = None,
                   tensor_quant_overrides: dict[str, list[dict[str, Any]]] | None = None,
                   calibration_providers: list[str] | None = None,
                   op_types_to_quantize: list[str] | None = None,
                   nodes_to_exclude: list[str] | Callable[[ModelProto, NodeProto], bool] | None = None,
                   extra_options: dict[str, Any] | None = None) -> StaticQuantConfig:
    """The configuration that quantizes all of a model's operators in QDQ format.

    `calibrate_args`: a calibrater's parameters by its own names. `nodes_to_exclude`: names, or a function of
    the model and a node that is true for those to leave out. The rest as `quantize_static` takes it.
    """
    model = (model_input if isinstance(model_input, ModelProto)
             else onnx.load_model(os.fspath(model_input), load_external_data=False))
    overrides = TensorQuantOverridesHelper(copy.deepcopy(tensor_quant_overrides or {}))
    excluded = set(nodes_to_exclude) if isinstance(nodes_to_exclude, list) else set()
    meant = [node for node in model.graph.node
             if not op_types_to_quantize or node.op_type in op_types_to_quantize]
    if callable(nodes_to_exclude):
        excluded |= {node.name for node in meant if nodes_to_exclude(model, node)}
    op_types = {node.op_type for node in meant if node.name not in excluded} - _NEVER_QUANTIZED
    options: dict[str, Any] = {
        "MinimumRealRange": min_real_range, "QDQKeepRemovableActivations": keep_removable_activations,
        "ActivationSymmetric": activation_symmetric, "WeightSymmetric": weight_symmetric,
        "ForceQuantizeNoInputCheck": True, "TensorQuantOverrides": overrides.get_dict(),
    }
    given = calibrate_args or {}
    options.update({name: given[key] for name, key in _CALIBRATION_OPTIONS.items() if key in given})
    kinds = {as_quant_type(activation_type), as_quant_type(weight_type), *overrides.get_quant_types()}
    if get_opset_version(model) < 21 and not kinds & _SIXTEEN_BITS and kinds & _FOUR_BITS:
        options["UseQDQContribOps"] = True
    external = any(map(onnx.external_data_helper.uses_external_data, model.graph.initializer))
    return StaticQuantConfig(
        calibration_data_reader, calibrate_method, QuantFormat.QDQ, activation_type, weight_type,
        op_types_to_quantize or list(op_types), None, list(excluded), per_channel, reduce_range,
        external or model.ByteSize() >= MODEL_SIZE_THRESHOLD, calibration_providers,
        {**options, **(extra_options or {})})


def check_static_quant_arguments(quant_format: QuantFormat, activation_type: QuantType,
                                 weight_type: QuantType) -> None:
    """Raises: InvalidType for what is no type or format, InvalidValue for those that do not go together."""
    activation_type, weight_type = map(as_quant_type, (activation_type, weight_type))
    if not isinstance(quant_format, QuantFormat):
        raise InvalidType(f"{quant_format!r} is no format", expected="a QuantFormat")
    kinds = {activation_type, weight_type}
    pair = f"activation_type={activation_type}, weight_type={weight_type}"
    if (activation_type, weight_type) == (QuantType.QInt8, QuantType.QUInt8):
        raise InvalidValue(f"quantization doesn't support data format: {pair}",
                           cure="pass weight_type=QuantType.QInt8")
    if QuantType.QFLOAT8E4M3FN in kinds and len(kinds) > 1:
        raise InvalidValue(f"quantization doesn't support data format: {pair}",
                           cure="pass QFLOAT8E4M3FN for both or for none")
    if quant_format is QuantFormat.QOperator:
        if kinds & (_SIXTEEN_BITS | _FOUR_BITS):
            raise InvalidValue("Only QuantFormat.QDQ supports 16-bit quantization types, and 4-bit ones.",
                               found=pair, cure="pass quant_format=QuantFormat.QDQ")
        if kinds == {QuantType.QInt8}:
            _log.warning("operators on QInt8 activations are slow on x64; QuantFormat.QDQ is not")


def _read(source: Source) -> ModelProto:
    """A copy of the model with inferred types. Raises: InvalidType for what is neither path nor model."""
    if isinstance(source, ModelProto):
        model = save_and_reload_model_with_shape_infer(source)
    elif isinstance(source, (str, os.PathLike)):
        model = load_model_with_shape_infer(Path(source))
    else:
        raise InvalidType(f"a model cannot be read from a {type(source).__name__}",
                          expected="a path or an onnx.ModelProto")
    if not model_has_pre_process_metadata(model):
        _log.info("the model was not prepared: quant_pre_process infers shapes and fuses operators first")
    return model


def _check_nodes(model: ModelProto, *lists: tuple[str, Iterable[str]]) -> None:
    """Raises: InvalidValue for a name in a list that no node of the model has."""
    nodes = [node for graph in all_graphs(model.graph) for node in graph.node]
    names = {node.name for node in nodes}
    names |= {f"{node.name}{end}" for node in nodes if node.op_type == "Gemm" for end in ("_MatMul", "_Add")}
    for parameter, listed in lists:
        unknown = sorted(set(listed) - names)
        if unknown:
            raise InvalidValue(f"{parameter} names nodes that the model does not have",
                               found=", ".join(map(repr, unknown)), expected="names of nodes",
                               cure="look the names up, `orthrus info` shows them; fusing changes them")


def _with_products(model: ModelProto, listed: list[str] | None) -> list[str]:
    """A list of nodes' names with those of the products that Gemms among them are split into."""
    gemms = {node.name for graph in all_graphs(model.graph) for node in graph.node if node.op_type == "Gemm"}
    names = listed or []
    return [*names, *(f"{name}_MatMul" for name in names if name in gemms)]


def _quantized_already(model: ModelProto) -> Iterator[NodeProto]:
    """The nodes whose data comes from a DequantizeLinear of what a node quantized."""
    makers = {name: node for node in model.graph.node for name in node.output}
    for node in model.graph.node:
        before = [makers.get(name) for name in node.input]
        for maker in before:
            if maker is not None and maker.op_type == DEQUANT_OP_NAME and node.op_type != QUANT_OP_NAME:
                source = makers.get(maker.input[0])
                if source is not None and source.op_type == QUANT_OP_NAME:
                    yield node
                    break


def _check_float(quantizer: BaseQuantizer) -> None:
    """Raises: InvalidValue where a node that shall be quantized is quantized already."""
    for node in _quantized_already(quantizer.model.model):
        if quantizer.should_quantize_node(node):
            raise InvalidValue("the model is already quantized", node=f"{node.name} ({node.op_type})",
                               found="its input comes from DequantizeLinear",
                               cure="quantize the float model, or leave the node out by nodes_to_exclude")
    nodes = quantizer.model.nodes()
    if not any(map(quantizer.should_quantize_node, nodes)):
        done = next((node for node in nodes if _is_quantized(node)), None)
        if done is not None:
            raise InvalidValue("the model is already quantized", node=f"{done.name} ({done.op_type})",
                               found="no float operator that can be quantized is left",
                               cure="quantize the float model")


def _is_quantized(node: NodeProto) -> bool:
    return (node.op_type.startswith(("QLinear", "DynamicQuantize", "QGemm", "QAttention"))
            or node.op_type.endswith("Integer") or node.op_type in (QUANT_OP_NAME, DEQUANT_OP_NAME))


def _ranges(source: Source, reader: Any, op_types: list[str], method: CalibrationMethod, providers: Any,
            options: dict[str, Any]) -> TensorsData:
    """The ranges of the model's values over the reader's data."""
    wanted = {key: options[name] for name, key in _CALIBRATION_OPTIONS.items() if name in options}
    with tempfile.TemporaryDirectory(prefix="orthrus.quant.") as folder:
        path = source
        if isinstance(source, ModelProto):
            path = os.path.join(folder, "model.onnx")
            stored = ModelProto()
            stored.CopyFrom(source)
            onnx.save_model(stored, path, save_as_external_data=True)
        calibrator = create_calibrator(Path(path), op_types, calibrate_method=method, providers=providers,
                                       extra_options=wanted)
        stride = options.get("CalibStridedMinMax")
        if not stride:
            calibrator.collect_data(reader)
        else:
            total = len(reader)
            if total % stride:
                raise InvalidValue(f"Total data size ({total}) is not divisible by stride size ({stride}).")
            for start in range(0, total, stride):
                reader.set_range(start_index=start, end_index=start + stride)
                calibrator.collect_data(reader)
        ranges = calibrator.compute_data()
    if not isinstance(ranges, TensorsData):
        raise InvalidType(f"Unexpected type {type(ranges)} for tensors_range of {type(calibrator)}.")
    return ranges


def _smoothed(model: ModelProto, reader: Any, options: dict[str, Any]) -> tuple[ModelProto, list[str]]:
    """The model smoothed by a copy of the reader, and the nodes added to it.

    Raises: InvalidValue without a reader or for one that cannot be copied.
    """
    if reader is None:
        raise InvalidValue("SmoothQuant requires a non-None calibration_data_reader: a cache keeps ranges of "
                           "tensors, not of their channels", cure="pass a reader of sample data")
    try:
        feeds = copy.deepcopy(reader)
    except TypeError as error:
        raise InvalidValue("SmoothQuant reads the data twice, and this reader cannot be copied", found=error,
                           cure="keep a list in the reader, no generator") from error
    made, added = smoothed(model, feeds, options.get("SmoothQuantAlpha", 0.5),
                           options.get("SmoothQuantFolding", True))
    return save_and_reload_model_with_shape_infer(made), added


def _kept_ranges(path: Path, method: CalibrationMethod, smooth: bool) -> TensorsData | None:
    """The ranges in a cache; None where there is none, or one of a model that was smoothed otherwise.

    Raises: InvalidValue where the path is no file or the cache was made by another method.
    """
    if not path.exists():
        return None
    if not path.is_file():
        raise InvalidValue(f"calibration_cache_path is not a file: {path}")
    ranges = load_tensors_data(path)
    if bool(json.loads(path.read_text(encoding="utf-8")).get("smooth_quant", False)) != smooth:
        _log.warning("the calibration cache %s has another smooth_quant; it is computed anew", path)
        return None
    if ranges.calibration_method != method:
        raise InvalidValue(f"the calibration cache {path} was made by another method",
                           found=ranges.calibration_method, expected=method,
                           cure="delete the cache, or pass calibrate_method as it was")
    return ranges


def quantize_static(model_input: Source, model_output: str | Path, calibration_data_reader: Any = None,
                    quant_format: QuantFormat = QuantFormat.QDQ,
                    op_types_to_quantize: list[str] | None = None, per_channel: bool = False,
                    reduce_range: bool = False, activation_type: QuantType = QuantType.QInt8,
                    weight_type: QuantType = QuantType.QInt8, nodes_to_quantize: list[str] | None = None,
                    nodes_to_exclude: list[str] | None = None, use_external_data_format: bool = False,
                    calibrate_method: CalibrationMethod = CalibrationMethod.MinMax,
                    calibration_providers: Any = None, extra_options: dict[str, Any] | None = None,
                    calibration_cache_path: str | Path | None = None) -> None:
    """Quantize weights and activations by the ranges that activations have over sample data.

    `model_input`: a path or a ModelProto; `model_output`: the file to write. `calibration_data_reader` yields
    feeds; it may be None where `calibration_cache_path` names a file of ranges, which is written where it is
    not there. QDQ puts QuantizeLinear and DequantizeLinear around operators, QOperator replaces them.
    Types are QuantTypes or TensorProto's numbers of them. `per_channel`: weights get a scale per output
    channel; `reduce_range`: they get 7 bits of 8. Lists of operators and of node names say what is quantized;
    all where they are empty. `use_external_data_format`: weights go to a file beside the model's, as
    they must above 2 GB. `extra_options`: see the documentation.
    Raises: InvalidValue, InvalidType and Unsupported for parameters and models that do not fit; then nothing
    is written.
    """
    activation_type, weight_type = map(as_quant_type, (activation_type, weight_type))
    check_static_quant_arguments(quant_format, activation_type, weight_type)
    if activation_type is QuantType.QFLOAT8E4M3FN and calibrate_method is not CalibrationMethod.Distribution:
        raise InvalidValue("Only Distribution calibration method is supported for float quantization.",
                           found=calibrate_method, cure="pass CalibrationMethod.Distribution")
    options = dict(extra_options or {})
    op_types = list(op_types_to_quantize or {**QLinearOpsRegistry, **QDQRegistry})
    model = _read(model_input)
    _check_nodes(model, ("nodes_to_quantize", nodes_to_quantize or ()),
                 ("nodes_to_exclude", nodes_to_exclude or ()))
    smooth, excluded = bool(options.get("SmoothQuant")), list(nodes_to_exclude or ())
    if smooth:
        model, added = _smoothed(model, calibration_data_reader, options)
        model_input = model
        excluded += added
    updated = update_opset_version(model, weight_type, activation_type, options.get("TensorQuantOverrides"),
                                   options.get("BlockSize", 0))
    if quant_format is QuantFormat.QDQ and per_channel:
        updated = with_opset(updated, BY_CHANNEL, "a scale for each channel")
    cache = None if calibration_cache_path is None else Path(calibration_cache_path)
    ranges = None if cache is None else _kept_ranges(cache, calibrate_method, smooth)
    if ranges is None and calibration_data_reader is None:
        raise InvalidValue("Either calibration_data_reader or an existing calibration_cache_path must be "
                           "provided.", cure="pass a reader of sample data")

    def quantizer(known: TensorsData | None) -> ONNXQuantizer | QDQQuantizer:
        if quant_format is QuantFormat.QOperator:
            return ONNXQuantizer(updated, per_channel, reduce_range, QuantizationMode.QLinearOps, True,
                                 weight_type, activation_type, known, nodes_to_quantize, excluded, op_types,
                                 options)
        return QDQQuantizer(updated, per_channel, reduce_range, weight_type, activation_type, known,
                            nodes_to_quantize, excluded, op_types, options)

    _check_float(quantizer(None))
    if ranges is None:
        source = model_input if updated is model else updated
        ranges = _ranges(source, calibration_data_reader, op_types, calibrate_method, calibration_providers,
                         options)
        if cache is not None:
            save_tensors_data(ranges, cache, smooth_quant=smooth)
    made = quantizer(ranges)
    made.quantize_model()
    made.model.save_model_to_file(model_output, use_external_data_format)


def quantize_dynamic(model_input: Source, model_output: str | Path,
                     op_types_to_quantize: list[str] | None = None, per_channel: bool = False,
                     reduce_range: bool = False,
                     weight_type: QuantType = QuantType.QInt8, nodes_to_quantize: list[str] | None = None,
                     nodes_to_exclude: list[str] | None = None, use_external_data_format: bool = False,
                     extra_options: dict[str, Any] | None = None) -> None:
    """Quantize weights; activations are quantized, to uint8, while the model runs. No data is needed.

    Parameters and errors as those of `quantize_static`; weights are QInt8 or QUInt8.
    """
    weight_type = as_quant_type(weight_type)
    if weight_type not in _EIGHT_BITS:
        raise InvalidValue(f"weights cannot be {weight_type} where activations are quantized while running",
                           expected="QInt8 or QUInt8", cure="pass one of them, or use quantize_static or "
                           "MatMulNBitsQuantizer")
    options = {"MatMulConstBOnly": True, **(extra_options or {})}
    model = _read(model_input)
    _check_nodes(model, ("nodes_to_quantize", nodes_to_quantize or ()),
                 ("nodes_to_exclude", nodes_to_exclude or ()))
    op_types = list(op_types_to_quantize or IntegerOpsRegistry)
    made = ONNXQuantizer(update_opset_version(model, weight_type), per_channel, reduce_range,
                         QuantizationMode.IntegerOps, False, weight_type, QuantType.QUInt8, None,
                         _with_products(model, nodes_to_quantize), _with_products(model, nodes_to_exclude),
                         op_types, options)
    _check_float(made)
    made.quantize_model()
    made.model.save_model_to_file(model_output, use_external_data_format)


def quantize(model_input: Source, model_output: str | Path, quant_config: Any) -> None:
    """Quantize by a StaticQuantConfig, a DynamicQuantConfig or a configuration of MatMulNBitsQuantizer.

    Raises: InvalidType for another configuration, and what the functions it calls raise.
    """
    if isinstance(quant_config, StaticQuantConfig):
        quantize_static(model_input, model_output, **vars(quant_config))
    elif isinstance(quant_config, DynamicQuantConfig):
        given = {key: value for key, value in vars(quant_config).items() if key != "activation_type"}
        quantize_dynamic(model_input, model_output, **given)
    else:
        _quantize_weights(model_input, model_output, quant_config)


def _quantize_weights(model_input: Source, model_output: str | Path, quant_config: Any) -> None:
    from .matmul_nbits_quantizer import MatMulNBitsQuantizer, WeightOnlyQuantConfig

    if not isinstance(quant_config, WeightOnlyQuantConfig):
        raise InvalidType("Invalid quantization config type, it must be either StaticQuantConfig, "
                          "DynamicQuantConfig, or WeightOnlyQuantConfig.", found=type(quant_config).__name__)
    model = model_input if isinstance(model_input, ModelProto) else onnx.load(os.fspath(model_input))
    quantizer = MatMulNBitsQuantizer(model, algo_config=quant_config)
    quantizer.process()
    quantizer.model.save_model_to_file(model_output, True)
