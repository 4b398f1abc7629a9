"""What a user asks for single tensors: {name: [a dict, or one per channel]}, checked before it is used."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from typing import Any

from onnx import TensorProto

from ..records import dataclass
from .quant_utils import QuantType, normalize_axis
from .refused import InvalidType, InvalidValue

Overrides = dict[str, list[dict[str, Any]]]
_NOT_WITH_SCALE = ("symmetric", "reduce_range", "rmax", "rmin")
_SAME_IN_ALL_CHANNELS = ("quant_type", "axis", "symmetric", "reduce_range")


@dataclass(eq=False)
class QuantTypeInfo:
    """A type to quantize to; None where the default holds, `axis` None for a tensor as a whole."""

    quant_type: QuantType | None
    symmetric: bool | None = None
    reduce_range: bool | None = None
    axis: int | None = None

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        """Whether both can mean the same: what either leaves to the default differs from nothing."""
        if not isinstance(other, QuantTypeInfo):
            return NotImplemented
        loose = ((self.symmetric, other.symmetric), (self.reduce_range, other.reduce_range))
        return ((self.quant_type, self.axis) == (other.quant_type, other.axis)
                and all(None in pair or pair[0] == pair[1] for pair in loose))

    @staticmethod
    def load_from_dict(raw_dict: Mapping[str, Any], default_qtype: QuantType | None = None,
                       default_symmetric: bool | None = None,
                       default_reduce_range: bool | None = None) -> QuantTypeInfo:
        return QuantTypeInfo(raw_dict.get("quant_type", default_qtype),
                             raw_dict.get("symmetric", default_symmetric),
                             raw_dict.get("reduce_range", default_reduce_range), raw_dict.get("axis"))

    def save_to_dict(self, raw_dict: dict[str, Any]) -> None:
        """Set the entries of an override that are not left to the default."""
        raw_dict["quant_type"] = self.quant_type
        given = {"symmetric": self.symmetric, "reduce_range": self.reduce_range, "axis": self.axis}
        raw_dict.update({key: value for key, value in given.items() if value is not None})


class TensorQuantOverridesHelper(MutableMapping):
    """The overrides as a mapping of tensor names; `overrides` is the user's own dict.

    Raises: InvalidType for what is none.
    """

    def __init__(self, raw_overrides: Overrides | None) -> None:
        if raw_overrides is not None and not isinstance(raw_overrides, dict | MutableMapping):
            raise InvalidType("TensorQuantOverrides are no dict", found=type(raw_overrides).__name__,
                              expected='such as {"tensor": [{"quant_type": QuantType.QInt16}]}')
        self.overrides = {} if raw_overrides is None else raw_overrides
        self.quant_types: set[QuantType] | None = None
        self.keys_unsupported_with_scale_zp = set(_NOT_WITH_SCALE)

    def __setitem__(self, key: str, value: list[dict[str, Any]]) -> None:
        self.overrides[key] = value

    def __getitem__(self, key: str) -> list[dict[str, Any]]:
        return self.overrides[key]

    def __delitem__(self, key: str) -> None:
        del self.overrides[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.overrides)

    def __len__(self) -> int:
        return len(self.overrides)

    def __str__(self) -> str:
        return str(self.overrides)

    def __repr__(self) -> str:
        return f"TensorQuantOverridesHelper({self.overrides})"

    def _first(self, tensor_name: str) -> dict[str, Any] | None:
        given = self.overrides.get(tensor_name)
        return given[0] if given else None

    def has_per_tensor_overrides(self, tensor_name: str) -> bool:
        first = self._first(tensor_name)
        return first is not None and "axis" not in first

    def has_per_channel_overrides(self, tensor_name: str) -> bool:
        first = self._first(tensor_name)
        return first is not None and "axis" in first

    def overrides_scale_zp(self, tensor_name: str) -> bool:
        first = self._first(tensor_name)
        return first is not None and "scale" in first and "zero_point" in first

    def get_per_tensor_overrides(self, tensor_name: str,
                                 default_val: dict[str, Any] | None = None) -> dict[str, Any] | None:
        """The override of a tensor as a whole. Raises: InvalidValue where it is one per channel."""
        if self.has_per_channel_overrides(tensor_name):
            raise InvalidValue(f"Expected tensor '{tensor_name}' to use per-tensor quantization overrides, "
                               "but found per-channel overrides.",
                               cure="leave 'axis' out of the tensor's overrides")
        if tensor_name not in self.overrides:
            return default_val
        return self._first(tensor_name)

    def get_per_channel_overrides(self, tensor_name: str, default_val: list[dict[str, Any]] | None = None
                                  ) -> list[dict[str, Any]] | None:
        """The overrides of a tensor's channels. Raises: InvalidValue without an axis."""
        given = self.overrides.get(tensor_name, default_val)
        if not given:
            return None
        if "axis" not in given[0]:
            raise InvalidValue(f"Expected tensor '{tensor_name}' to have per-channel quantization overrides "
                               "(axis value is missing).", cure="give 'axis' in the first of them")
        return given

    def get_quant_types(self) -> set[QuantType]:
        """Every type that an override names, also those converted to."""
        if self.quant_types is None:
            entries = [entry for row in self.overrides.values() for entry in row]
            entries += [entry["convert"] for entry in entries if "convert" in entry]
            self.quant_types = {entry["quant_type"] for entry in entries if "quant_type" in entry}
        return self.quant_types

    def is_valid(self, initializers: Mapping[str, TensorProto], activation_names: Iterable[str],
                 default_activation_qtype: Any) -> tuple[bool, str | None]:
        """(True, None), or (False, what is wrong with the first override that is)."""
        activations = set(activation_names)
        for name in self.overrides:
            wrong = self._wrong(name, initializers, activations, default_activation_qtype)
            if wrong:
                return False, wrong
        self.quant_types = None
        return True, None

    def _wrong(self, name: str, initializers: Mapping[str, TensorProto], activations: set[str],
               default_type: Any) -> str | None:
        given = self.overrides[name]
        weight = initializers.get(name)
        if weight is None and name not in activations:
            return f"Tensor '{name}' in TensorQuantOverrides is not present in the model"
        if not isinstance(given, list):
            return f"Tensor quantization overrides for '{name}' are not in a list"
        for index, entry in enumerate(given):
            if not isinstance(entry, dict):
                return f"Tensor quantization overrides at index {index} for '{name}' are not in a dict"
            wrong = _wrong_type(name, entry) or _wrong_keys(name, entry)
            if wrong:
                return wrong
        if len(given) > 1 or (given and given[0].get("axis") is not None):
            return _wrong_channels(name, given, weight)
        return _wrong_tensor(name, given[0], weight is not None, default_type) if given else None

    def update_tensor_overrides(self, tensor_name: str, new_vals: dict[str, Any],
                                channels: Iterable[int] | None = None, overwrite: bool = True) -> bool:
        """Add entries to the overrides of a tensor, of some of its channels; whether that was done.

        Without `overwrite` nothing is done where one of the entries is there already.
        """
        if not new_vals:
            return False
        wanted = None if channels is None else set(channels)
        rows = self.overrides.get(tensor_name) or [{}]
        chosen = [row for index, row in enumerate(rows) if wanted is None or index in wanted]
        if not overwrite and any(new_vals.keys() & row.keys() for row in chosen):
            return False
        self.overrides[tensor_name] = rows
        for row in chosen:
            row.update(new_vals)
        self.quant_types = None
        return True

    def get_node_output_qtype_info(self, output_name: str, default_qtype: QuantType | None,
                                   default_symmetric: bool | None = None) -> QuantTypeInfo:
        """The type a node's output is quantized to."""
        first = self._first(output_name) or {}
        return QuantTypeInfo(first.get("quant_type", default_qtype),
                             first.get("symmetric", default_symmetric))

    def get_node_input_qtype_info(self, input_name: str, node_name: str, default_qtype: QuantType | None,
                                  default_symmetric: bool | None = None,
                                  default_reduce_range: bool | None = None) -> QuantTypeInfo:
        """The type in which a node reads a tensor: the one converted to, where the node receives that."""
        first = self._first(input_name)
        if first is None:
            return QuantTypeInfo(default_qtype, default_symmetric, default_reduce_range)
        convert = first.get("convert")
        if convert is None:
            return QuantTypeInfo.load_from_dict(first, default_qtype, default_symmetric, default_reduce_range)
        receives = "recv_nodes" not in convert or node_name in convert["recv_nodes"]
        kind = convert["quant_type"] if receives else first.get("quant_type", default_qtype)
        return QuantTypeInfo(kind, convert.get("symmetric", default_symmetric))

    def pprint_str(self, indent: int | None = None) -> str:
        """The overrides as json."""
        return json.dumps(self.overrides, default=str, indent=indent)

    def empty(self) -> bool:
        return not self.overrides

    def get_dict(self) -> Overrides:
        return self.overrides


def _wrong_type(name: str, entry: dict[str, Any]) -> str | None:
    for place in (entry, entry.get("convert", {})):
        kind = place.get("quant_type")
        if kind is not None and getattr(kind, "tensor_type", None) is None:
            return f"The 'quant_type' of tensor '{name}' is {kind!r}, expected a QuantType"
    return None


def _wrong_keys(name: str, entry: dict[str, Any]) -> str | None:
    for place in (entry, entry.get("convert", {})):
        if ("scale" in place) != ("zero_point" in place):
            return ("Must provide both 'scale' and 'zero_point' if one of the overrides is provided "
                    f"(tensor '{name}')")
        clashing = [key for key in _NOT_WITH_SCALE if key in place] if "scale" in place else []
        if clashing:
            return (f"Tensor override option(s) [{', '.join(clashing)}] are invalid with 'scale' and "
                    f"'zero_point' (tensor '{name}')")
    return None


def _wrong_tensor(name: str, entry: dict[str, Any], is_weight: bool, default_type: Any) -> str | None:
    convert = entry.get("convert")
    if not is_weight and ("reduce_range" in entry or "reduce_range" in (convert or {})):
        return f"Option 'reduce_range' is only supported for initializers, not for activation {name}"
    if convert is None:
        return None
    if is_weight:
        return f"Cannot use 'convert' override for initializers (tensor '{name}')"
    if "quant_type" not in convert:
        return f"'convert' options (tensor '{name}') must specify a 'quant_type'"
    if convert["quant_type"] == entry.get("quant_type", default_type):
        return f"'convert' quant_type must differ from original quant_type (tensor '{name}')"
    return None


def _wrong_channels(name: str, given: list[dict[str, Any]], weight: TensorProto | None) -> str | None:
    if weight is None:
        return f"Tensor '{name}' has per-channel overrides, but is not an initializer"
    first = given[0]
    axis = first.get("axis")
    if axis is None:
        return (f"Per-channel overrides for tensor {name} is missing an 'axis' value in the first channel "
                "dictionary.")
    valid, counted = normalize_axis(axis, len(weight.dims))
    if not valid:
        return f"Axis override value is out-of-bounds for tensor {name} (rank {len(weight.dims)})"
    if len(given) not in (1, weight.dims[counted]):
        return (f"Incorrect number of channel overrides for tensor {name} (axis {axis}), "
                f"expected {weight.dims[counted]}, but found {len(given)}.")
    if ("rmin" in first) != ("rmax" in first):
        return f"Must provide both 'rmin' and 'rmax' if one is provided (tensor '{name}')"
    for index, entry in enumerate(given):
        if "convert" in entry:
            return f"Cannot use 'convert' override for initializers, such as {name}."
        for key in _SAME_IN_ALL_CHANNELS:
            allowed = (axis, counted) if key == "axis" else (first.get(key),)
            if key in entry and entry[key] not in allowed:
                return f"Channel {key} for tensor '{name}' does not match at index {index}."
        for key in ("scale", "rmin"):
            if key in first and key not in entry:
                return (f"Per-channel overrides that specify {key} must do so for all channels, "
                        f"but tensor '{name}' is missing it at index {index}.")
    return None
