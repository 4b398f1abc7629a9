"""Overrides of some activations' types completed to a model that is whole.

In: overrides that give activations another type than the default, and the model. Out: the same overrides,
with a conversion wherever a node of another type reads a value. The invariant: all values that a node reads
and makes have one type, so that a QDQ model has integer kernels for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import onnx

from ....records import dataclass
from ...quant_utils import QuantType, save_and_reload_model_with_shape_infer
from ...refused import InvalidValue
from ...tensor_quant_overrides import QuantTypeInfo, TensorQuantOverridesHelper

_QUANTIZED = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16)


@dataclass
class TensorTypeRequest:
    """What nodes ask of a value: the type it is made with, and the type in which the nodes named read it;
    None where nobody asks, which means the default."""

    producer: QuantTypeInfo | None
    consumers: tuple[QuantTypeInfo, set[str]] | None


class _Conversion(NamedTuple):
    """The type a value is made with, and the one it is converted to for these nodes."""

    made: QuantTypeInfo
    read: QuantTypeInfo
    readers: set[str]


class MixedPrecisionTensorQuantOverridesFixer:
    """Completes `overrides`; the maps lead from a value's name to the node that makes it, the nodes that read
    it, its description, and its tensor where it is an initializer."""

    def __init__(self, overrides: TensorQuantOverridesHelper, producers: dict[str, onnx.NodeProto],
                 consumers: dict[str, list[onnx.NodeProto]], value_infos: dict[str, onnx.ValueInfoProto],
                 initializers: dict[str, onnx.TensorProto]) -> None:
        self.overrides = overrides
        self.producers = producers
        self.consumers = consumers
        self.value_infos = value_infos
        self.initializers = initializers

    @staticmethod
    def create_from_model(overrides: TensorQuantOverridesHelper, model: onnx.ModelProto,
                          default_activation_qtype: QuantType) -> MixedPrecisionTensorQuantOverridesFixer:
        """One for this model.

        Raises: InvalidValue for overrides that do not fit it.
        """
        graph = save_and_reload_model_with_shape_infer(model).graph
        consumers: dict[str, list[onnx.NodeProto]] = {}
        for node in graph.node:
            for name in filter(None, node.input):
                consumers.setdefault(name, []).append(node)
        fixer = MixedPrecisionTensorQuantOverridesFixer(
            overrides, {name: node for node in graph.node for name in node.output}, consumers,
            {info.name: info for info in (*graph.value_info, *graph.output, *graph.input)},
            {tensor.name: tensor for tensor in graph.initializer})
        fixer._check(default_activation_qtype)
        return fixer

    def apply(self, default_activation_qtype: QuantType, default_activation_symmetric: bool) -> None:
        """Complete the overrides in place, for activations that have this type where nothing else is said.

        Raises: InvalidValue where two nodes ask different types of a value, or what they ask contradicts an
        override.
        """
        requests = self.get_desired_tensor_types(default_activation_qtype, default_activation_symmetric)
        for name, request in requests.items():
            conversion = self._conversion(name, request, default_activation_qtype)
            if conversion is not None:
                self._enter(name, conversion)
        self._check(default_activation_qtype)

    def get_desired_tensor_types(self, default_activation_qtype: QuantType,
                                 default_activation_symmetric: bool) -> dict[str, TensorTypeRequest]:
        """What each value is asked for: an activation with a type of its own hands it to the node that makes
        it and to those that read it, and these ask it of all their inputs and outputs. Onnxruntime does so
        where only the symmetry differs too, and then converts a type to itself."""
        usual = QuantTypeInfo(default_activation_qtype, default_activation_symmetric)
        requests: dict[str, TensorTypeRequest] = {}
        for name, rows in self.overrides.items():
            if not self._is_activation(name) or len(rows) != 1 or "convert" in rows[0]:
                continue
            own = QuantTypeInfo.load_from_dict(rows[0], usual.quant_type)
            if own.quant_type != usual.quant_type:
                for node in self._nodes_at(name):
                    self._ask(requests, own, node)
        return requests

    def _nodes_at(self, name: str) -> Iterator[onnx.NodeProto]:
        if name in self.producers:
            yield self.producers[name]
        yield from self.consumers.get(name, ())

    def _ask(self, requests: dict[str, TensorTypeRequest], own: QuantTypeInfo, node: onnx.NodeProto) -> None:
        """Enter that `node` makes and reads values of the type `own`."""
        for name in filter(self._is_activation, node.output):
            request = requests.setdefault(name, TensorTypeRequest(None, None))
            if request.producer not in (None, own):
                raise InvalidValue(f"Tensor {name} has multiple types.", node=node.name,
                                   cure="override all activations around the node alike")
            request.producer = own
        for name in filter(self._is_activation, node.input):
            request = requests.setdefault(name, TensorTypeRequest(None, None))
            if request.consumers is None:
                request.consumers = own, set()
            if request.consumers[0] != own:
                raise InvalidValue(f"Tensor {name} has consumers requesting different types.",
                                   node=node.name, cure="override the activations behind it alike")
            if not node.name:
                raise InvalidValue(f"Node of type {node.op_type} with output 0 {node.output[0]} does not "
                                   "have a name!", cure="qnn_preprocess_model names every node")
            request.consumers[1].add(node.name)

    def _conversion(self, name: str, request: TensorTypeRequest,
                    usual: QuantType) -> _Conversion | None:
        """The conversion that a value needs, if any; without readers it only gets its type."""
        everyone = {node.name for node in self.consumers.get(name, ())}
        made = request.producer or self.overrides.get_node_output_qtype_info(name, usual)
        asked, readers = request.consumers or (None, set[str]())
        if asked is not None and asked != made:
            return _Conversion(made, asked, readers)
        if request.producer is not None:
            return _Conversion(made, QuantTypeInfo(usual), everyone - readers)
        if readers & self._converted(name, everyone):
            raise InvalidValue(f"Tensor override for '{name}' converts the type for consumers that need the "
                               "original type.", found=", ".join(sorted(readers)))
        return None

    def _converted(self, name: str, everyone: set[str]) -> set[str]:
        """The nodes for which an override converts a value already."""
        rows = self.overrides.get(name) or [{}]
        found: set[str] = rows[0]["convert"].get("recv_nodes", everyone) if "convert" in rows[0] else set()
        return found

    def _enter(self, name: str, conversion: _Conversion) -> None:
        """Write a value's type and its conversion into the overrides."""
        if not self.overrides.get(name):
            self.overrides[name] = [{}]
            conversion.made.save_to_dict(self.overrides[name][0])
        row = self.overrides[name][0]
        _agree(name, "producer", conversion.made, QuantTypeInfo.load_from_dict(row))
        if conversion.readers:
            if "convert" not in row:
                row["convert"] = {}
                conversion.read.save_to_dict(row["convert"])
            _agree(name, "consumer", conversion.read, QuantTypeInfo.load_from_dict(row["convert"]))
            row["convert"].setdefault("recv_nodes", set()).update(conversion.readers)

    def _is_activation(self, name: str) -> bool:
        """Whether a value is of floats and no initializer, so that it may have a type of its own."""
        if not name or name in self.initializers or name not in self.value_infos:
            return False
        kind = self.value_infos[name].type
        return kind.HasField("tensor_type") and kind.tensor_type.elem_type in _QUANTIZED

    def _check(self, usual: QuantType) -> None:
        valid, why = self.overrides.is_valid(self.initializers, set(self.value_infos), usual)
        if not valid:
            raise InvalidValue(why or "the overrides do not fit the model",
                               found=self.overrides.pprint_str(indent=4))


def _agree(name: str, side: str, wanted: QuantTypeInfo, given: QuantTypeInfo) -> None:
    if wanted != given:
        raise InvalidValue(f"Desired {side} quant_type for {name} doesn't match existing type.",
                           found=given, expected=wanted, cure="leave the override out, or override the "
                           "activations around it alike")
