"""Where a quantized model loses accuracy: its tensors beside those of the float model.

In: a float model, the QDQ model made of it, and data. Out: activations and weights in pairs, and how far the
two of a pair are apart. The invariant: pairs are matched by the names that the quantizer gives.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from .calibrate import CalibraterBase
from .onnx_model import ONNXModel
from .quant_utils import (
    DEQUANT_OP_NAME,
    DEQUANT_OUTPUT_SUFFIX,
    QUANT_INPUT_SUFFIX,
    TENSOR_NAME_QUANT_SUFFIX,
    load_model_with_shape_infer,
)
from .refused import Failed, InvalidValue

_SAVED = "_ReshapedSavedOutput"
_FLAT = "LinearReshape_shape"

Arrays = Sequence[np.ndarray] | np.ndarray


def modify_model_output_intermediate_tensors(
        input_model_path: str | Path, output_model_path: str | Path,
        op_types_for_saving: Sequence[str] | None = None, save_as_external_data: bool = False) -> None:
    """Write a model with further outputs: the float tensors that nodes of `op_types_for_saving`, of all where
    that is empty, read and make, each flattened."""
    saver = CalibraterBase(input_model_path, op_types_to_calibrate=op_types_for_saving or [])
    model = saver.model
    tensors, stated = saver.select_tensors_to_calibrate(model)
    graph = model.graph
    graph.initializer.append(numpy_helper.from_array(np.array([-1], np.int64), _FLAT))
    for name in sorted(tensors):
        saved = name + _SAVED
        graph.node.append(helper.make_node("Reshape", [name, _FLAT], [saved], name=saved))
        graph.output.append(helper.make_tensor_value_info(
            saved, stated[name].type.tensor_type.elem_type, [-1]))
    onnx.save(model, os.fspath(output_model_path), save_as_external_data=save_as_external_data)


def collect_activations(augmented_model: str | Path, input_reader: Any, session_options: Any = None,
                        execution_providers: Sequence[Any] | None = None) -> dict[str, list[np.ndarray]]:
    """By tensor, what it was for each item of `input_reader`, flattened; `augmented_model` is what
    `modify_model_output_intermediate_tensors` wrote. Nothing is optimized, unless `session_options` say so.
    Raises RuntimeError where the reader gives nothing."""
    from .. import GraphOptimizationLevel, InferenceSession, SessionOptions

    if session_options is None:
        session_options = SessionOptions()
        session_options.graph_optimization_level = GraphOptimizationLevel.ORT_DISABLE_ALL
    session = InferenceSession(os.fspath(augmented_model), session_options,
                               providers=execution_providers or ["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs() if output.name.endswith(_SAVED)]
    found: dict[str, list[np.ndarray]] = {name.removesuffix(_SAVED): [] for name in names}
    count = 0
    for count, item in enumerate(input_reader, 1):  # noqa: B007
        for kept, array in zip(found.values(), session.run(names, item), strict=True):
            kept.append(np.asarray(array))
    if not count:
        raise Failed("No data is collected while running augmented model!",
                     cure="give a fresh reader: one that was read to its end gives nothing more")
    return found


def create_activation_matching(
        qdq_activations: Mapping[str, Sequence[np.ndarray]],
        float_activations: Mapping[str, Sequence[np.ndarray]] | None = None
        ) -> dict[str, dict[str, Sequence[np.ndarray]]]:
    """By tensor of the float model: `pre_qdq` and `post_qdq`, what it is in the QDQ model before it is
    quantized and after it is dequantized, and `float`, what it is in the float model, where that is known.
    Both arguments are what `collect_activations` gives."""
    matched: dict[str, dict[str, Sequence[np.ndarray]]] = {}
    for name, arrays in qdq_activations.items():
        if name.endswith(QUANT_INPUT_SUFFIX):
            tensor = name.removesuffix(QUANT_INPUT_SUFFIX)
            before, after = arrays, qdq_activations.get(tensor)
        else:
            tensor = name.removesuffix("_1") if name.endswith(f"{DEQUANT_OUTPUT_SUFFIX}_1") else name
            if not tensor.endswith(DEQUANT_OUTPUT_SUFFIX):
                continue
            tensor = tensor.removesuffix(DEQUANT_OUTPUT_SUFFIX)
            before, after = qdq_activations.get(tensor), arrays  # type: ignore[assignment]
        if before is not None and after is not None:
            matched[tensor] = {"pre_qdq": before, "post_qdq": after}
    for tensor, pair in matched.items():
        if float_activations and tensor in float_activations:
            pair["float"] = float_activations[tensor]
    return matched


def create_weight_matching(float_model_path: str | Path, qdq_model_path: str | Path
                           ) -> dict[str, dict[str, np.ndarray]]:
    """By weight of the float model: `float`, and `dequantized`, what the QDQ model makes of it. Weights that
    do not go by the quantizer's names are left out, with a word in the log."""
    before = ONNXModel(load_model_with_shape_infer(Path(float_model_path)))
    after = ONNXModel(load_model_with_shape_infer(Path(qdq_model_path)))
    matched: dict[str, dict[str, np.ndarray]] = {}
    for node in after.nodes():
        codes = after.get_initializer(node.input[0]) if node.op_type == DEQUANT_OP_NAME else None
        if codes is None:
            continue
        name = node.input[0].removesuffix(TENSOR_NAME_QUANT_SUFFIX)
        floats = before.get_initializer(name)
        if name == node.input[0]:
            logging.error("%s: the quantized tensor %s has no name that the quantizer gives", qdq_model_path,
                          name)
        elif floats is None:
            logging.error("%s has no weight %s", float_model_path, name)
        else:
            matched[name] = {"float": numpy_helper.to_array(floats),
                             "dequantized": _dequantized(node, codes, after)}
    return matched


def _dequantized(node: onnx.NodeProto, codes: TensorProto, model: ONNXModel) -> np.ndarray:
    """What a DequantizeLinear makes of constant `codes`, by its definition."""
    from ..ops import find

    axis = next((a.i for a in node.attribute if a.name == "axis"), 1)
    block = next((a.i for a in node.attribute if a.name == "block_size"), 0)
    constants = [model.get_initializer(name) for name in node.input[1:] if name]
    if any(each is None for each in constants):
        raise InvalidValue(f"the scale or the zero point of {codes.name} is not constant", node=node.name)
    arrays = [numpy_helper.to_array(each) for each in (codes, *constants)]
    definition = find("", "DequantizeLinear", 21)
    assert definition is not None
    made: np.ndarray = definition.bind({"axis": axis, "block_size": block})(*arrays)
    return made


def compute_signal_to_quantization_noice_ratio(x: Arrays, y: Arrays) -> float:
    """How much larger `x` is than its difference to `y`, in decibels; both are arrays or lists of them.
    Raises RuntimeError for lists of different lengths."""
    left, right = ([given] if isinstance(given, np.ndarray) else list(given) for given in (x, y))
    if len(left) != len(right):
        raise Failed("Unequal number of tensors to compare!", found=f"{len(left)} and {len(right)}")
    signal, other = np.concatenate(left).flatten(), np.concatenate(right).flatten()
    least = np.finfo(float).eps
    noise = max(np.linalg.norm(signal - other), least)
    return 20 * math.log10(max(np.linalg.norm(signal), least) / noise)


def compute_weight_error(
        weights_match: Mapping[str, Mapping[str, np.ndarray]],
        err_func: Callable[[Any, Any], float] = compute_signal_to_quantization_noice_ratio
        ) -> dict[str, float]:
    """`err_func(float, dequantized)` by weight."""
    return {name: err_func(pair["float"], pair["dequantized"]) for name, pair in weights_match.items()}


def compute_activation_error(
        activations_match: Mapping[str, Mapping[str, Sequence[np.ndarray]]],
        err_func: Callable[[Any, Any], float] = compute_signal_to_quantization_noice_ratio
        ) -> dict[str, dict[str, float]]:
    """By tensor `qdq_err`, `err_func(pre_qdq, post_qdq)`, and `xmodel_err`, `err_func(float, post_qdq)`,
    where the float model's tensor is known."""
    found = {}
    for name, pair in activations_match.items():
        found[name] = {"qdq_err": err_func(pair["pre_qdq"], pair["post_qdq"])}
        if pair.get("float"):
            found[name]["xmodel_err"] = err_func(pair["float"], pair["post_qdq"])
    return found
