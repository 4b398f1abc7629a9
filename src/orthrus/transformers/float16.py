"""Float32 models in float16 or bfloat16, under the names of onnxruntime.transformers.float16.

In: a model. Out: a model that computes the same in half of the memory, less exactly. The invariant: it is
valid ONNX, so that an operator without half floats goes on computing in float32.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import onnx
from onnx import (
    ModelProto,
    NodeProto,
    TensorProto,
    ValueInfoProto,
    external_data_helper,
    helper,
    inliner,
    numpy_helper,
)

from ..quantization.onnx_model import all_graphs
from ..quantization.quant_utils import onnx_domain
from ..quantization.refused import InvalidValue
from .narrowing import BFLOAT16, FLOAT, FLOAT16, Narrowing, narrow

__all__ = ["ALWAYS_FLOAT_INPUTS", "DEFAULT_OP_BLOCK_LIST", "InitializerTracker",
           "convert_float_to_bfloat16", "convert_float_to_float16", "convert_float_to_float16_model_path",
           "convert_np_to_float16", "convert_tensor_float_to_float16", "float_to_float16_max_diff",
           "make_value_info_from_tensor"]

logger = logging.getLogger(__name__)
DEFAULT_OP_BLOCK_LIST = [
    "ArrayFeatureExtractor", "Binarizer", "CastMap", "CategoryMapper", "DictVectorizer", "FeatureVectorizer",
    "Imputer", "LabelEncoder", "LinearClassifier", "LinearRegressor", "Normalizer", "OneHotEncoder",
    "RandomUniformLike", "SVMClassifier", "SVMRegressor", "Scaler", "TreeEnsembleClassifier",
    "TreeEnsembleRegressor", "TreeEnsemble", "ZipMap", "NonMaxSuppression", "TopK", "RoiAlign", "Range",
    "CumSum", "Min", "Max", "Upsample"]
"""Operators that stay float32 where nothing else is asked for."""
ALWAYS_FLOAT_INPUTS = {"Resize": [2], "GroupNorm": [1, 2], "SkipGroupNorm": [1, 2]}
"""Inputs that stay float32 where `force_fp16_inputs` does not name them."""
_SMALLEST, _LARGEST = 5.96e-08, 65504.0
_BFLOAT16_OPSET = 13
"""The first version of ONNX whose Cast gives bfloat16."""


def convert_np_to_float16(np_array: np.ndarray, min_positive_val: float = _SMALLEST,
                          max_finite_val: float = _LARGEST) -> np.ndarray:
    """The values in float16, none of which becomes 0 or infinite that was not: small ones get the magnitude
    `min_positive_val`, large ones `max_finite_val`, and a warning tells of it."""
    size = np.abs(np_array)
    small, large = (size > 0) & (size < min_positive_val), np.isfinite(np_array) & (size > max_finite_val)
    for found, what, limit in ((small, "smaller", min_positive_val), (large, "larger", max_finite_val)):
        if found.any():
            logger.warning("%d values of magnitude from %g to %g are %s than float16 has, and become %g",
                           found.sum(), size[found].min(), size[found].max(), what, limit)
            np_array = np.where(found, np.copysign(np.float32(limit), np_array), np_array)
    with np.errstate(over="ignore"):
        return np_array.astype(np.float16)


def _float_tensor(tensor: Any) -> np.ndarray:
    if not isinstance(tensor, TensorProto):
        raise InvalidValue(f"Expected input type is an ONNX TensorProto but got {type(tensor)}")
    if tensor.data_type != FLOAT:
        raise InvalidValue("Expected tensor data type is float.",
                           found=TensorProto.DataType.Name(tensor.data_type))
    return numpy_helper.to_array(tensor)


def convert_tensor_float_to_float16(tensor: TensorProto, min_positive_val: float = _SMALLEST,
                                    max_finite_val: float = _LARGEST) -> TensorProto:
    """The tensor itself, its floats now float16; one of another type as it is. Raises: InvalidValue for what
    is no TensorProto."""
    if not isinstance(tensor, TensorProto) or tensor.data_type == FLOAT:
        _narrowed(min_positive_val, max_finite_val, tensor, FLOAT16)
    return tensor


def _narrowed(smallest: float, largest: float, tensor: TensorProto, kind: int) -> None:
    """Convert a float32 tensor in place."""
    values = _float_tensor(tensor)
    if kind == FLOAT16:
        made = convert_np_to_float16(values, smallest, largest)
    else:
        made = values.astype(helper.tensor_dtype_to_np_dtype(kind))
    del tensor.float_data[:]
    tensor.data_type, tensor.raw_data = kind, made.tobytes()


def float_to_float16_max_diff(tensor: TensorProto, min_positive_val: float = _SMALLEST,
                              max_finite_val: float = _LARGEST) -> float:
    """How far a float32 tensor's values are from what they are in float16, at most; 0.0 for an empty one.
    Raises: InvalidValue for what is no float32 TensorProto."""
    values = _float_tensor(tensor)
    narrow_values = convert_np_to_float16(values, min_positive_val, max_finite_val)
    with np.errstate(invalid="ignore"):
        return float(np.nanmax(np.abs(narrow_values.astype(np.float32) - values), initial=0.0))


def make_value_info_from_tensor(tensor: TensorProto) -> ValueInfoProto:
    """The type of a tensor's value."""
    return helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))


class InitializerTracker:
    """An initializer and the nodes that read it as float32 and as float16."""

    def __init__(self, initializer: TensorProto) -> None:
        self.initializer = initializer
        self.fp32_nodes: list[NodeProto] = []
        self.fp16_nodes: list[NodeProto] = []

    def add_node(self, node: NodeProto, is_node_blocked: bool) -> None:
        (self.fp32_nodes if is_node_blocked else self.fp16_nodes).append(node)


def convert_float_to_float16(model: ModelProto | str | os.PathLike[str], min_positive_val: float = _SMALLEST,
                             max_finite_val: float = _LARGEST,
                             keep_io_types: bool | Sequence[str] = False, disable_shape_infer: bool = False,
                             op_block_list: Iterable[str] | None = None,
                             node_block_list: Iterable[str] | None = None,
                             force_fp16_initializers: bool = False,
                             force_fp16_inputs: Mapping[str, list[int]] | None = None,
                             use_bfloat16_as_blocked_nodes_dtype: bool = False) -> ModelProto:
    """The model with float16 in the place of float32.

    `model`: a path, or a ModelProto, which is changed. `min_positive_val`, `max_finite_val`: what constants
    are clipped to. `keep_io_types`: the graph's inputs and outputs stay float32, or those in the list.
    `op_block_list` (default DEFAULT_OP_BLOCK_LIST) and `node_block_list`: operators and names of nodes that
    stay float32, with all inside them; an operator whose schema has no float16 does so by itself.
    `force_fp16_initializers`: constants that only such nodes read are float16 too. `force_fp16_inputs`: by
    operator, inputs of ALWAYS_FLOAT_INPUTS that are float16 all the same.
    `use_bfloat16_as_blocked_nodes_dtype`: what is blocked computes in bfloat16 where its operator can. Types
    are inferred by this runtime; `disable_shape_infer` changes nothing.

    Raises: InvalidValue for what is no model, for one whose weights were not loaded and for
    limits that are none of float16's, and the errors of loading.
    """
    if not 0 < min_positive_val < max_finite_val <= float(np.finfo(np.float16).max):
        raise InvalidValue("values cannot be clipped to these limits",
                           found=f"{min_positive_val} and {max_finite_val}",
                           expected="0 < min_positive_val < max_finite_val <= 65504")
    forced = dict(force_fp16_inputs or {})
    return _converted(model, Narrowing(
        partial(_narrowed, min_positive_val, max_finite_val), FLOAT16,
        BFLOAT16 if use_bfloat16_as_blocked_nodes_dtype else FLOAT, _blocked(op_block_list),
        frozenset(node_block_list or ()), forced, ALWAYS_FLOAT_INPUTS, _kept(keep_io_types),
        force_fp16_initializers))


def convert_float_to_bfloat16(model: ModelProto | str | os.PathLike[str],
                              keep_io_types: bool | Sequence[str] = False,
                              op_block_list: Iterable[str] | None = None,
                              node_block_list: Iterable[str] | None = None) -> ModelProto:
    """The model with bfloat16 in the place of float32; for the parameters and errors see
    `convert_float_to_float16`. Operators without bfloat16, which older versions of most are, stay float32.
    Raises: InvalidValue before opset 13, too, which has none at all."""
    return _converted(model, Narrowing(
        partial(_narrowed, 0.0, np.inf), BFLOAT16, FLOAT, _blocked(op_block_list),
        frozenset(node_block_list or ()), {}, ALWAYS_FLOAT_INPUTS, _kept(keep_io_types)))


def convert_float_to_float16_model_path(model_path: str | os.PathLike[str],
                                        min_positive_val: float = _SMALLEST,
                                        max_finite_val: float = _LARGEST,
                                        keep_io_types: bool | Sequence[str] = False) -> ModelProto:
    """As `convert_float_to_float16`, for a model in a file, of any size."""
    return convert_float_to_float16(model_path, min_positive_val, max_finite_val, keep_io_types)


def _blocked(operators: Iterable[str] | None) -> frozenset[str]:
    return frozenset(DEFAULT_OP_BLOCK_LIST if operators is None else operators)


def _kept(keep: bool | Sequence[str]) -> bool | frozenset[str]:
    return keep if isinstance(keep, bool) else frozenset(keep)


def opened(model: Any) -> ModelProto:
    """A model given as a path or a ModelProto, its functions inlined. Raises: InvalidValue for anything
    else, and where weights lie in files that were not read."""
    if isinstance(model, str | os.PathLike):
        model = onnx.load(os.fspath(model))
    if not isinstance(model, ModelProto):
        raise InvalidValue(f"Expected an ONNX ModelProto but got {type(model)}",
                           cure="pass a ModelProto or a path")
    for graph in all_graphs(model.graph):
        for tensor in graph.initializer:
            if external_data_helper.uses_external_data(tensor):
                raise InvalidValue(f"the weight {tensor.name!r} lies in a file that was not read",
                                   cure="pass the model's path, or load it with its external data")
    return inliner.inline_local_functions(model) if model.functions else model


def _converted(model: Any, asked: Narrowing) -> ModelProto:
    found = opened(model)
    version = min((o.version for o in found.opset_import if o.domain in ("", onnx_domain)), default=1)
    if BFLOAT16 in (asked.target, asked.blocked) and version < _BFLOAT16_OPSET:
        raise InvalidValue("the model's operators have no bfloat16", found=f"opset {version}",
                           expected=f"{_BFLOAT16_OPSET} or later",
                           cure="convert the model with orthrus.tools.update_onnx_opset")
    narrow(found, asked)
    return found
