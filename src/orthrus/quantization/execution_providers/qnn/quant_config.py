"""The configuration of `quantize` for models that run on QNN.

In: a float model and what its user wants of single tensors. Out: a StaticQuantConfig whose overrides hold
what QNN asks for besides: weights of products and normalizations of the weights' type, no product by channel,
and the scales that it fixes for Sigmoid and Tanh in 16 bits.
"""

from __future__ import annotations

import copy
import logging
import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx.external_data_helper import uses_external_data

from ...calibrate import CalibrationDataReader, CalibrationMethod
from ...quant_utils import MODEL_SIZE_THRESHOLD, QuantType, get_opset_version
from ...quantize import StaticQuantConfig
from ...tensor_quant_overrides import TensorQuantOverridesHelper
from .mixed_precision_overrides_utils import MixedPrecisionTensorQuantOverridesFixer

__all__ = ["MODEL_SIZE_THRESHOLD", "OP_TYPES_TO_EXCLUDE", "Q16_TYPES", "Q4_TYPES", "Q8_TYPES",
           "QnnCompatibilityOverrides", "get_qnn_qdq_config", "warn_unable_to_override"]

Q16_TYPES = {QuantType.QInt16, QuantType.QUInt16}
Q8_TYPES = {QuantType.QInt8, QuantType.QUInt8}
Q4_TYPES = {QuantType.QInt4, QuantType.QUInt4}
OP_TYPES_TO_EXCLUDE = {"Cast"}

_LEAST_RANGE = 0.0001
_STANDARD_FROM = 21
"""The opset whose QuantizeLinear has 4 and 16 bits; before it, com.microsoft's does."""
_FIXED_RANGES = {
    ("Sigmoid", QuantType.QUInt16): (2.0 ** -16, np.uint16(0)),
    ("Sigmoid", QuantType.QInt16): (2.0 ** -15, np.int16(0)),
    ("Tanh", QuantType.QUInt16): (2.0 ** -15, np.uint16(32768)),
    ("Tanh", QuantType.QInt16): (2.0 ** -15, np.int16(0)),
}
"""Scale and zero point of what an operator makes, by its type."""
_log = logging.getLogger(__name__)


def warn_unable_to_override(node: onnx.NodeProto, what_str: str, tensor_name: str, io_kind: str) -> None:
    """Warn that a user's override stands where QNN asks for another."""
    _log.warning("%s of %s %r of the %s node %r stays as the overrides given say, which QNN may refuse",
                 what_str, io_kind, tensor_name, node.op_type, node.name)


def get_qnn_qdq_config(
    model_input: str | Path | onnx.ModelProto,
    calibration_data_reader: CalibrationDataReader,
    calibrate_method: CalibrationMethod = CalibrationMethod.MinMax,
    activation_type: QuantType = QuantType.QUInt8,
    weight_type: QuantType = QuantType.QUInt8,
    per_channel: bool = False,
    init_overrides: dict[str, list[dict[str, Any]]] | None = None,
    add_qtype_converts: bool = True,
    activation_symmetric: bool = False,
    weight_symmetric: bool | None = None,
    keep_removable_activations: bool = False,
    stride: int | None = None,
    calibration_providers: list[str] | None = None,
    op_types_to_quantize: list[str] | None = None,
    nodes_to_exclude: list[str] | None = None,
) -> StaticQuantConfig:
    """A configuration for `quantize(model, output, config)`.

    `init_overrides`: what is wanted of single tensors, as `extra_options["TensorQuantOverrides"]` has it; it
    stays as it is, and a copy is completed. `add_qtype_converts`: where it gives an activation another type,
    convert it for the nodes around. `weight_symmetric`: None for the weights' types with a sign only.
    `keep_removable_activations`: keep Relu and Clip where the quantized range has them already. `stride`: see
    `extra_options["CalibStridedMinMax"]`. The other parameters are those of StaticQuantConfig.

    Raises: InvalidValue for overrides that do not fit the model.
    """
    model = model_input if isinstance(model_input, onnx.ModelProto) else onnx.load_model(
        os.fspath(model_input), load_external_data=False)
    if weight_symmetric is None:
        weight_symmetric = weight_type in {QuantType.QInt8, QuantType.QInt16}
    overrides = TensorQuantOverridesHelper(copy.deepcopy(init_overrides or {}))
    if add_qtype_converts and not overrides.empty():
        MixedPrecisionTensorQuantOverridesFixer.create_from_model(overrides, model, activation_type).apply(
            activation_type, activation_symmetric)
    initializers = {tensor.name: tensor for tensor in model.graph.initializer}
    compatible = QnnCompatibilityOverrides(activation_type, weight_type, activation_symmetric,
                                           weight_symmetric, per_channel, overrides, initializers)
    chosen = [node for node in model.graph.node
              if (not op_types_to_quantize or node.op_type in op_types_to_quantize)
              and node.name not in (nodes_to_exclude or ())]
    for node in chosen:
        compatible.process_node(node)
    options = {
        "MinimumRealRange": _LEAST_RANGE, "DedicatedQDQPair": False,
        "QDQKeepRemovableActivations": keep_removable_activations,
        "TensorQuantOverrides": overrides.get_dict(), "ActivationSymmetric": activation_symmetric,
        "WeightSymmetric": weight_symmetric, "CalibStridedMinMax": stride,
    }
    if get_opset_version(model) < _STANDARD_FROM and (
            {activation_type, weight_type} | overrides.get_quant_types()) & (Q16_TYPES | Q4_TYPES):
        options["UseQDQContribOps"] = True
    beside = any(map(uses_external_data, initializers.values())) or model.ByteSize() >= MODEL_SIZE_THRESHOLD
    return StaticQuantConfig(
        calibration_data_reader, calibrate_method=calibrate_method, activation_type=activation_type,
        weight_type=weight_type, nodes_to_exclude=nodes_to_exclude, per_channel=per_channel,
        op_types_to_quantize=op_types_to_quantize or sorted(
            {node.op_type for node in chosen} - OP_TYPES_TO_EXCLUDE),
        use_external_data_format=beside, calibration_providers=calibration_providers, extra_options=options)


class QnnCompatibilityOverrides:
    """Adds to `overrides` what QNN asks for, node by node; a weight that has overrides keeps them.

    `initializers` is the model's, by name."""

    def __init__(self, default_activation_qtype: QuantType, default_weight_qtype: QuantType,
                 activation_symmetric: bool, weight_symmetric: bool, per_channel: bool,
                 overrides: TensorQuantOverridesHelper, initializers: dict[str, onnx.TensorProto]) -> None:
        self.default_activation_qtype = default_activation_qtype
        self.default_weight_qtype = default_weight_qtype
        self.activation_symmetric = activation_symmetric
        self.weight_symmetric = weight_symmetric
        self.per_channel = per_channel
        self.overrides = overrides
        self.initializers = initializers

    def process_node(self, node: onnx.NodeProto) -> None:
        """Add what QNN asks for at this node, if anything."""
        if node.op_type in ("MatMul", "LayerNormalization") and not self.per_channel:
            self._give_weight_its_type(node)
        elif node.op_type == "MatMul":
            self._keep_weights_whole(node)
        elif node.op_type in ("Sigmoid", "Tanh"):
            self._fix_range(node)

    def _as_weight(self) -> dict[str, Any]:
        return {"quant_type": self.default_weight_qtype, "symmetric": self.weight_symmetric}

    def _give_weight_its_type(self, node: onnx.NodeProto) -> None:
        """Beside an activation of 16 bits, give an initializer the weights' type of 8 bits; the quantizer
        would give it the activations'."""
        weights, wide = [], False
        for name in filter(None, node.input[:2]):
            is_weight = name in self.initializers
            kind = self.overrides.get_node_input_qtype_info(
                name, node.name, None if is_weight else self.default_activation_qtype)
            as_weight = (kind.quant_type, kind.symmetric) == tuple(self._as_weight().values())
            if kind.axis is not None or (is_weight and as_weight):
                return
            if is_weight:
                weights.append(name)
            wide |= not is_weight and kind.quant_type in Q16_TYPES
        if (self.default_weight_qtype in Q8_TYPES and wide and weights
                and not self.overrides.update_tensor_overrides(weights[-1], self._as_weight(),
                                                               overwrite=False)):
            warn_unable_to_override(node, "quant_type/symmetric", weights[-1], "input weight")

    def _keep_weights_whole(self, node: onnx.NodeProto) -> None:
        """Quantize a product's initializers as a whole, where the others go by channel."""
        for name in node.input:
            if name in self.initializers and name not in self.overrides:
                self.overrides.update_tensor_overrides(name, self._as_weight())

    def _fix_range(self, node: onnx.NodeProto) -> None:
        """Give what the node makes the scale and zero point that QNN has for it in 16 bits."""
        kind = self.overrides.get_node_output_qtype_info(node.output[0],
                                                         self.default_activation_qtype).quant_type
        if kind is not None and (node.op_type, kind) in _FIXED_RANGES:
            scale, zero_point = _FIXED_RANGES[node.op_type, kind]
            self.overrides.update_tensor_overrides(node.output[0], {
                "quant_type": kind, "scale": np.array(scale, np.float32),
                "zero_point": np.array(zero_point)})
