"""`inputs.pb` and `outputs.pb`: files in which onnxruntime's test data keeps several values, maps among them.

In: a file of messages, each with its length before it. Out: names and values: an array for a tensor or a
vector, a dict for a map, a list of dicts for a vector of maps. The messages are described here, field by
field, as no package ships them; a tensor within one is ONNX's own TensorProto.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from ..cli.feeds import check_tensors, content

_SCALARS = {"String": 9, "Int64": 3, "Float": 2, "Double": 1}
"""Protobuf's number of each element type."""
_DTYPES: dict[str, Any] = {"String": object, "Int64": np.int64, "Float": np.float32, "Double": np.float64}
_ORDER = ("MapStringToString", "MapStringToInt64", "MapStringToFloat", "MapStringToDouble",
          "MapInt64ToString", "MapInt64ToInt64", "MapInt64ToFloat", "MapInt64ToDouble",
          "VectorString", "VectorFloat", "VectorInt64", "VectorDouble",
          "VectorMapStringToFloat", "VectorMapInt64ToFloat")
"""The kinds of value, by field number from 1."""
_TENSOR, _NAME = 16, 15
_OPTIONAL, _REPEATED, _MESSAGE, _BYTES, _STRING = 1, 3, 11, 12, 9
_PACKAGE = "onnxruntime.proto"


def read_messages(path: Path) -> list[tuple[str, Any]]:
    """Name and value of each message of a file. Raises ValueError where it holds something else, OSError
    where it cannot be read."""
    from google.protobuf.message import DecodeError

    data = content(path)
    try:
        return [_value(text) for text in _split(data)]
    except (DecodeError, ValueError, TypeError, KeyError, AttributeError, OverflowError, IndexError) as error:
        raise ValueError(f"{path}: no ONNX test data ({error})") from None


def write_messages(path: Path, values: Iterable[tuple[str, str, Any]]) -> None:
    """Write (name, kind, value) as a file that `read_messages` reads; a kind is "tensor" or a message's name,
    such as `MapInt64ToFloat`."""
    path.write_bytes(b"".join(_with_length(_message(*each)) for each in values))


def _split(data: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(data):
        size = shift = 0
        while True:
            if at >= len(data) or shift > 63:
                raise ValueError("a length is cut off")
            byte = data[at]
            size |= (byte & 127) << shift
            at, shift = at + 1, shift + 7
            if byte < 128:
                break
        if at + size > len(data):
            raise ValueError(f"a message of {size} bytes is cut off")
        yield data[at:at + size]
        at += size


def _with_length(text: bytes) -> bytes:
    size, head = len(text), bytearray()
    while size > 127:
        head.append(size & 127 | 128)
        size >>= 7
    return bytes([*head, size]) + text


def _value(text: bytes) -> tuple[str, Any]:
    import onnx
    from onnx import numpy_helper

    data = _classes()["TraditionalMLData"].FromString(text)
    which = data.WhichOneof("values")
    if which is None:
        raise ValueError("a message holds no value")
    if which == "tensor":
        tensor = onnx.TensorProto.FromString(data.tensor)
        check_tensors(tensor)
        return data.name or tensor.name, numpy_helper.to_array(tensor)
    held = getattr(data, which).v
    if which.startswith("VectorMap"):
        return data.name, [dict(each.v) for each in held]
    if which.startswith("Vector"):
        return data.name, np.array(list(held), _DTYPES[which.removeprefix("Vector")])
    return data.name, dict(held)


def _message(name: str, kind: str, value: Any) -> bytes:
    from onnx import numpy_helper

    data = _classes()["TraditionalMLData"](name=name)
    if kind == "tensor":
        data.tensor = numpy_helper.from_array(np.asarray(value)).SerializeToString()
    elif kind.startswith("VectorMap"):
        for each in value:
            getattr(data, kind).v.add().v.update(each)
    elif kind.startswith("Vector"):
        getattr(data, kind).v.extend(value)
    else:
        getattr(data, kind).v.update(value)
    return data.SerializeToString()


@cache
def _classes() -> dict[str, Any]:
    """The message classes by name; fields of `TraditionalMLData` are called as their messages are."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="orthrus_test_data.proto", package=_PACKAGE,
                                              syntax="proto3")
    for kind in _ORDER:
        message = file.message_type.add(name=kind)
        if kind.startswith("VectorMap"):
            message.field.add(name="v", number=1, label=_REPEATED, type=_MESSAGE,
                              type_name=f".{_PACKAGE}.{kind.removeprefix('Vector')}")
        elif kind.startswith("Vector"):
            message.field.add(name="v", number=1, label=_REPEATED,
                              type=_SCALARS[kind.removeprefix("Vector")])
        else:
            key, _, value = kind.removeprefix("Map").partition("To")
            entry = message.nested_type.add(name="VEntry")
            entry.options.map_entry = True
            entry.field.add(name="key", number=1, label=_OPTIONAL, type=_SCALARS[key])
            entry.field.add(name="value", number=2, label=_OPTIONAL, type=_SCALARS[value])
            message.field.add(name="v", number=1, label=_REPEATED, type=_MESSAGE,
                              type_name=f".{_PACKAGE}.{kind}.VEntry")
    data = file.message_type.add(name="TraditionalMLData")
    data.oneof_decl.add(name="values")
    for number, kind in enumerate(_ORDER, 1):
        data.field.add(name=kind, number=number, label=_OPTIONAL, type=_MESSAGE,
                       type_name=f".{_PACKAGE}.{kind}", oneof_index=0)
    data.field.add(name="tensor", number=_TENSOR, label=_OPTIONAL, type=_BYTES, oneof_index=0)
    data.field.add(name="name", number=_NAME, label=_OPTIONAL, type=_STRING)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{_PACKAGE}.{name}"))
            for name in (*_ORDER, "TraditionalMLData")}
