"""The words of quantization that its modules share: enums, name suffixes, metadata and how a model is read.

The arithmetic is `affine`'s; its public names are offered here too.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto, external_data_helper

from .affine import (
    FLOAT8_DISTRIBUTIONS,
    FLOAT8_TYPES,
    ONNX_INT_TYPE_RANGE,
    ONNX_INT_TYPE_REDUCED_RANGE,
    ONNX_INT_TYPE_SYMMETRIC_RANGE,
    ONNX_TYPE_TO_NP_TYPE,
    compute_data_quant_params,
    compute_scale_zp,
    compute_scale_zp_blocked,
    compute_scale_zp_float8,
    get_qmin_qmax_for_qType,
    get_qrange_for_qType,
    pack_bytes_to_4bit,
    quantize_data,
    quantize_nparray,
    quantize_onnx_initializer,
    snap_zero_point_to_uint8,
    tensor_proto_to_array,
)
from .calibration.table import write_calibration_table
from .onnx_model import SMALLEST_EXTERNAL, all_graphs
from .onnx_model import first_named as _first_named
from .opset import converted
from .refused import InvalidType, InvalidValue

__all__ = ["BiasToQuantize", "DEQUANT_OP_NAME", "DEQUANT_OUTPUT_SUFFIX", "FLOAT8_DISTRIBUTIONS",
           "FLOAT8_TYPES", "MODEL_SIZE_THRESHOLD", "ONNX_INT_TYPE_RANGE", "ONNX_INT_TYPE_REDUCED_RANGE",
           "ONNX_INT_TYPE_SYMMETRIC_RANGE", "ONNX_TYPE_TO_NP_TYPE", "QUANT_INPUT_SUFFIX", "QUANT_OP_NAME",
           "QuantFormat", "QuantType", "QuantizationMode", "QuantizedInitializer", "QuantizedValue",
           "QuantizedValueType", "TENSOR_NAME_QUANT_SUFFIX", "add_dequant_input_suffix",
           "add_dequant_output_suffix", "add_dequant_suffix", "add_infer_metadata",
           "add_pre_process_metadata", "add_quant_input_suffix", "add_quant_output_suffix",
           "add_quant_suffix", "apply_plot", "attribute_to_kwarg", "compute_data_quant_params",
           "compute_scale_zp", "compute_scale_zp_blocked", "compute_scale_zp_float8", "find_by_name",
           "generate_identified_filename", "get_elem_index", "get_mul_node", "get_opset_version",
           "get_qmin_qmax_for_qType", "get_qrange_for_qType", "load_model_with_shape_infer",
           "model_has_external_data", "model_has_infer_metadata", "model_has_pre_process_metadata",
           "ms_domain", "normalize_axis", "onnx_domain", "optimize_model", "pack_bytes_to_4bit",
           "quantize_data", "quantize_nparray", "quantize_onnx_initializer",
           "save_and_reload_model_with_shape_infer", "smooth_distribution", "snap_zero_point_to_uint8",
           "tensor_proto_to_array", "type_to_name", "update_opset_version", "write_calibration_table"]

__producer__ = "onnx.quantize"
__version__ = "0.1.0"
onnx_domain = "ai.onnx"
ms_domain = "com.microsoft"
QUANT_OP_NAME = "QuantizeLinear"
QUANT_INPUT_SUFFIX = "_QuantizeLinear_Input"
DEQUANT_OP_NAME = "DequantizeLinear"
DEQUANT_OUTPUT_SUFFIX = "_DequantizeLinear_Output"
TENSOR_NAME_QUANT_SUFFIX = "_quantized"
MODEL_SIZE_THRESHOLD = 2 ** 31
"""Bytes of a model from which its weights must lie beside it."""
type_to_name = {number: name for name, number in TensorProto.DataType.items()}

_MARK = 4
"""Bytes that stand for the content of a weight while it lies apart, less than any of its size has."""
_SHAPE_TYPES = (TensorProto.INT64, TensorProto.INT32)
_SIXTEEN_BITS = (TensorProto.INT16, TensorProto.UINT16)
_PREPARED = ("onnx.quant.pre_process", "onnxruntime.quant")
_INFERRED = ("onnx.infer", "onnxruntime.quant")
_log = logging.getLogger(__name__)


class _Named(Enum):
    """An enum whose members print as their names and are made from them."""

    def __str__(self) -> str:
        return self.name

    @classmethod
    def from_string(cls, name: str) -> Any:
        """The member of this name. Raises: InvalidValue where there is none."""
        if name not in cls.__members__:
            raise InvalidValue(f"{name!r} is no {cls.__name__}",
                               expected=f"one of {', '.join(cls.__members__)}")
        return cls[name]


class QuantizationMode(_Named):
    """Whether integers are multiplied and the result is scaled outside, or operators take the scales."""

    IntegerOps = 0
    QLinearOps = 1


class QuantizedValueType(_Named):
    Input = 0
    Initializer = 1


class QuantType(_Named):
    """The types that weights and activations are quantized to."""

    QInt8 = 0
    QUInt8 = 1
    QFLOAT8E4M3FN = 2
    QInt16 = 3
    QUInt16 = 4
    QInt4 = 5
    QUInt4 = 6

    @property
    def tensor_type(self) -> int:
        """TensorProto's number of the type."""
        return TensorProto.DataType.Value(self.name[1:].upper())


def as_quant_type(kind: Any) -> QuantType:
    """A QuantType, given as itself or as TensorProto's number of it. Raises: InvalidType for another."""
    for known in QuantType:
        if kind is known or isinstance(kind, int) and kind == known.tensor_type:
            return known
    raise InvalidType(f"{kind!r} is no type to quantize to", expected="a QuantType",
                      cure=f"pass one of {', '.join(f'QuantType.{k}' for k in QuantType)}")


class QuantFormat(_Named):
    """Operators on quantized tensors, or float operators between QuantizeLinear and DequantizeLinear."""

    QOperator = 0
    QDQ = 1


class QuantizedInitializer:
    """A float initializer and what it was quantized to, per channel of `axis` or as a whole."""

    def __init__(self, name: str, initializer: Any, rmins: Any, rmaxs: Any, zero_points: Any, scales: Any,
                 data: Any = (), quantized_data: Any = (), axis: int | None = None) -> None:
        self.name = name
        self.initializer = initializer
        self.rmins = rmins
        self.rmaxs = rmaxs
        self.zero_points = zero_points
        self.scales = scales
        self.data = data
        self.quantized_data = quantized_data
        self.axis = axis


class QuantizedValue:
    """The names of a quantized value, of its scale and of its zero point."""

    def __init__(self, name: str, new_quantized_name: str, scale_name: str, zero_point_name: str,
                 quantized_value_type: Any, axis: int | None = None, node_type: str | None = None,
                 node_qtype: int | None = None, scale_type: int | None = None) -> None:
        self.original_name = name
        self.q_name = new_quantized_name
        self.scale_name = scale_name
        self.zp_name = zero_point_name
        self.value_type = quantized_value_type
        self.axis = axis
        self.node_type = node_type
        self.node_qtype = node_qtype
        self.scale_type = scale_type


class BiasToQuantize:
    """A bias and the two values whose scales it takes."""

    def __init__(self, bias_name: str, input_name: str, weight_name: str) -> None:
        self.bias_name = bias_name
        self.input_name = input_name
        self.weight_name = weight_name


_FIELDS = {AttributeProto.FLOAT: "f", AttributeProto.INT: "i", AttributeProto.STRING: "s",
           AttributeProto.TENSOR: "t", AttributeProto.GRAPH: "g", AttributeProto.FLOATS: "floats",
           AttributeProto.INTS: "ints", AttributeProto.STRINGS: "strings", AttributeProto.TENSORS: "tensors",
           AttributeProto.GRAPHS: "graphs"}


def attribute_to_kwarg(attribute: AttributeProto) -> dict[str, Any]:
    """{name: value} of an attribute, for onnx.helper.make_node. Raises: InvalidValue without a type."""
    if attribute.type not in _FIELDS:
        raise InvalidValue(f"attribute {attribute.name} has unsupported type {attribute.type}.")
    return {attribute.name: getattr(attribute, _FIELDS[attribute.type])}


def find_by_name(item_name: str, item_list: Iterable[Any]) -> Any:
    """The first item of this name, or None."""
    return _first_named(item_name, item_list)


def get_elem_index(elem_name: Any, elem_list: Any) -> int:
    """The last index at which the list holds the element, -1 where it does not."""
    return max((index for index, element in enumerate(elem_list) if element == elem_name), default=-1)


def get_mul_node(inputs: list[str], output: str, name: str) -> NodeProto:
    """A Mul node."""
    return onnx.helper.make_node("Mul", inputs, [output], name)


def generate_identified_filename(filename: Path, identifier: str) -> Path:
    """The path with the identifier put before its suffix."""
    return filename.with_name(f"{filename.stem}{identifier}{filename.suffix}")


def normalize_axis(axis: int, rank: int) -> tuple[bool, int]:
    """(whether the axis is one of `rank`, the axis counted from the front)."""
    counted = axis + rank if axis < 0 else axis
    return 0 <= counted < rank, counted


def add_quant_suffix(tensor_name: str) -> str:
    return f"{tensor_name}_QuantizeLinear"


def add_quant_input_suffix(tensor_name: str) -> str:
    return f"{tensor_name}{QUANT_INPUT_SUFFIX}"


def add_quant_output_suffix(tensor_name: str) -> str:
    return f"{tensor_name}_QuantizeLinear_Output"


def add_dequant_suffix(tensor_name: str) -> str:
    return f"{tensor_name}_DequantizeLinear"


def add_dequant_input_suffix(tensor_name: str) -> str:
    return f"{tensor_name}_DequantizeLinear_Input"


def add_dequant_output_suffix(tensor_name: str) -> str:
    return f"{tensor_name}{DEQUANT_OUTPUT_SUFFIX}"


def smooth_distribution(p: np.ndarray, eps: float = 0.0001) -> np.ndarray | None:
    """A histogram with `eps` in its empty bins, taken evenly from the others; None where all are empty.

    Raises: InvalidValue where so many bins are empty that the others cannot give it.
    """
    empty = (p == 0).astype(np.float32)
    filled = (p != 0).astype(np.float32)
    count = p.size - empty.sum()
    if not count:
        return None
    taken = eps * float(empty.sum()) / float(count)
    smooth = p.astype(np.float32)
    smooth += eps * empty + (-taken) * filled
    if taken >= 1.0 or (smooth <= 0).any():
        raise InvalidValue("the histogram has too many empty bins to be smoothed",
                           found=f"{int(count)} of {p.size} bins filled", cure="use fewer bins")
    return smooth


def apply_plot(hist: np.ndarray, hist_edges: np.ndarray) -> None:
    """Print a histogram and show it as a diagram. Needs matplotlib."""
    import matplotlib.pyplot as plt

    print(f"Histogram:\n{hist}\nHistogram Edges:\n{hist_edges}")
    plt.stairs(hist, hist_edges, fill=True)
    plt.xlabel("Tensor value")
    plt.ylabel("Counts")
    plt.title("Tensor value V.S. Counts")
    plt.show()


def model_has_external_data(model_path: Path) -> bool:
    """Whether weights of the model's main graph lie in other files."""
    model = onnx.load(os.fspath(model_path), load_external_data=False)
    return any(external_data_helper.uses_external_data(tensor) for tensor in model.graph.initializer)


def optimize_model(model_path: Path, opt_model_path: Path) -> None:
    """Write the model as it is after the basic level of optimization."""
    from .. import GraphOptimizationLevel, InferenceSession, SessionOptions

    options = SessionOptions()
    options.optimized_model_filepath = os.fspath(opt_model_path)
    options.graph_optimization_level = GraphOptimizationLevel.ORT_ENABLE_BASIC
    InferenceSession(os.fspath(model_path), options, providers=["CPUExecutionProvider"],
                     disabled_optimizers=["ConstantSharing"])


def _note(model: ModelProto, mark: tuple[str, str]) -> None:
    if not any(entry.key == mark[0] for entry in model.metadata_props):
        model.metadata_props.add(key=mark[0], value=mark[1])


def _noted(model: ModelProto, mark: tuple[str, str]) -> bool:
    return any((entry.key, entry.value) == mark for entry in model.metadata_props)


def add_pre_process_metadata(model: ModelProto) -> None:
    """Note in the model that it was prepared for quantization."""
    _note(model, _PREPARED)


def model_has_pre_process_metadata(model: ModelProto) -> bool:
    return _noted(model, _PREPARED)


def add_infer_metadata(model: ModelProto) -> None:
    """Note in the model that the types of its values were inferred."""
    _note(model, _INFERRED)


def model_has_infer_metadata(model: ModelProto) -> bool:
    return _noted(model, _INFERRED)


def get_opset_version(model: ModelProto) -> int:
    """The version of ONNX's own operators that the model imports. Raises: InvalidValue without just one."""
    versions = [opset.version for opset in model.opset_import if opset.domain in ("", onnx_domain)]
    if len(versions) != 1:
        raise InvalidValue("Failed to find proper ai.onnx domain",
                           found=f"{len(versions)} imports of ai.onnx", expected="one",
                           cure="import the domain '' once in the model's opset_import")
    return versions[0]


def _float_tensors(model: ModelProto) -> Iterator[TensorProto]:
    """The initializers whose values decide no shape and that take room."""
    for graph in all_graphs(model.graph):
        for tensor in graph.initializer:
            large = len(tensor.raw_data) >= SMALLEST_EXTERNAL
            if large and tensor.data_type not in _SHAPE_TYPES:
                yield tensor


@contextmanager
def _weights_apart(model: ModelProto) -> Iterator[dict[int, bytes]]:
    """The model without the bytes of its large weights, while the context lasts; the bytes by their place."""
    tensors = list(_float_tensors(model))
    apart = {}
    try:
        for index, tensor in enumerate(tensors):
            apart[index] = tensor.raw_data
            tensor.raw_data = index.to_bytes(_MARK, "little")
        yield apart
    finally:
        for index, content in apart.items():
            tensors[index].raw_data = content


def _restored(model: ModelProto, apart: dict[int, bytes]) -> ModelProto:
    """Give the weights of a model made from one without them their bytes again."""
    for graph in all_graphs(model.graph):
        for tensor in graph.initializer:
            if len(tensor.raw_data) == _MARK and int(np.prod(tensor.dims)) > 8 * _MARK:
                tensor.raw_data = apart[int.from_bytes(tensor.raw_data, "little")]
    return model


def _inferred(model: ModelProto) -> ModelProto:
    """A copy of the model with the types and shapes of all its values."""
    with _weights_apart(model) as apart:
        copy = onnx.shape_inference.infer_shapes(model)
    add_infer_metadata(copy)
    return _restored(copy, apart)


def load_model_with_shape_infer(model_path: Path) -> ModelProto:
    """A model from a file, weights and all, with the types and shapes of all its values."""
    path = os.fspath(model_path)
    model = _inferred(onnx.load(path, load_external_data=False))
    external_data_helper.load_external_data_for_model(model, os.path.dirname(os.path.abspath(path)))
    return model


def save_and_reload_model_with_shape_infer(model: ModelProto) -> ModelProto:
    """A copy of the model with the types and shapes of all its values; it may be above 2 GB."""
    return _inferred(model)


def _override_types(tensor_quant_overrides: Any) -> set[Any]:
    """The types that overrides name; nothing of what is not formed as overrides are."""
    rows = tensor_quant_overrides.values() if isinstance(tensor_quant_overrides, dict) else ()
    given = [entry for row in rows if isinstance(row, list) for entry in row if isinstance(entry, dict)]
    converts = [entry["convert"] for entry in given if isinstance(entry.get("convert"), dict)]
    return {entry.get("quant_type") for entry in (*given, *converts)}


def _needed_opset(version: int, types: set[Any], block_size: int) -> tuple[int, str]:
    """The least version of operators with all that is asked for, and what asks for it."""
    if block_size > 0 and version < 21:
        return 21, "quantization in blocks"
    if TensorProto.FLOAT8E4M3FN in types and version < 19:
        return 19, "quantization to float 8"
    if types.intersection(_SIXTEEN_BITS) and version < 21:
        return 21, "quantization to 16-bit integers"
    return max(version, 10 if version == 10 else 11), "quantization"


def update_opset_version(model: ModelProto, weight_type: QuantType, activation_type: QuantType | None = None,
                         tensor_quant_overrides: dict | None = None, block_size: int = 0) -> ModelProto:
    """The model itself, or a copy converted to the first operator set that has the types asked for.

    Raises: Failed where onnx cannot convert the model, Unsupported where nothing can.
    """
    version = get_opset_version(model)
    kinds = {weight_type, activation_type} | _override_types(tensor_quant_overrides)
    wanted = {getattr(kind, "tensor_type", kind) for kind in kinds}
    if version == 10:
        _log.warning("operators of version 10 cannot be fused; version 11 and later run faster")
    return with_opset(model, *_needed_opset(version, wanted, block_size))


def with_opset(model: ModelProto, target: int, reason: str) -> ModelProto:
    """The model itself, or a copy converted to operators of version `target`, where `reason` needs a later
    version than its own.

    Raises: Failed where onnx cannot convert the model, Unsupported where nothing can.
    """
    version = get_opset_version(model)
    if version >= target:
        return model
    _log.warning("converting the model's operators from version %d to %d, which %s needs", version, target,
                 reason)
    with _weights_apart(model) as apart:
        made = converted(model, target)
    return _inferred(_restored(made, apart))
