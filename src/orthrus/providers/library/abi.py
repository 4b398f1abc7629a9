"""`orthrus_provider.h` as ctypes sees it: the same structures, field by field, and the same numbers.

In: nothing. Out: structures and types of functions. The invariant: sizes and offsets are those that a C
compiler gives the header.
"""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import (
    CFUNCTYPE,
    POINTER,
    Structure,
    c_char,
    c_char_p,
    c_float,
    c_int32,
    c_int64,
    c_size_t,
    c_uint32,
    c_void_p,
)
from pathlib import Path
from typing import Any

from ...kernels.dlpack import Tensor

HEADER = Path(__file__).with_name("orthrus_provider.h")
ENTRY = "orthrus_provider_library"
VERSION = 1
OK, NOT_IMPLEMENTED = 0, 9
JOIN = -1
CLAIM_BYTES = 65536
"""Bytes of a constant up to which `claim` sees it."""


class Error(Structure):
    _fields_ = [("size", c_size_t), ("node", c_int32), ("text", c_char * 1012)]


class Value(Structure):
    _fields_ = [("name", c_char_p), ("element_type", c_int32), ("rank", c_int32), ("dims", POINTER(c_int64)),
                ("dim_names", POINTER(c_char_p)), ("constant", c_int32), ("bytes", c_size_t),
                ("data", c_void_p)]


class Attribute(Structure):
    _fields_ = [("name", c_char_p), ("type", c_int32), ("count", c_size_t), ("floats", POINTER(c_float)),
                ("ints", POINTER(c_int64)), ("strings", POINTER(c_char_p)),
                ("string_bytes", POINTER(c_size_t)), ("tensor", POINTER(Value))]


class Node(Structure):
    _fields_ = [("op_type", c_char_p), ("domain", c_char_p), ("name", c_char_p), ("label", c_char_p),
                ("version", c_int32), ("free", c_int32), ("inputs", POINTER(c_int32)),
                ("input_count", c_size_t), ("outputs", POINTER(c_int32)), ("output_count", c_size_t),
                ("attributes", POINTER(Attribute)), ("attribute_count", c_size_t)]


class Graph(Structure):
    _fields_ = [("size", c_size_t), ("nodes", POINTER(Node)), ("node_count", c_size_t),
                ("values", POINTER(Value)), ("value_count", c_size_t), ("inputs", POINTER(c_int32)),
                ("input_count", c_size_t), ("outputs", POINTER(c_int32)), ("output_count", c_size_t)]


Take = CFUNCTYPE(None, c_void_p, c_size_t, c_int32)
Refuse = CFUNCTYPE(None, c_void_p, c_size_t, c_void_p)


class Claims(Structure):
    _fields_ = [("size", c_size_t), ("take", Take), ("refuse", Refuse)]


class Session(Structure):
    _fields_ = [("size", c_size_t), ("threads", c_int32)]


class Kernel(Structure):
    _fields_ = [("size", c_size_t), ("handle", c_void_p), ("name", c_char * 248)]


class Output(Structure):
    _fields_ = [("tensor", Tensor), ("made", c_void_p)]


class Setting(Structure):
    _fields_ = [("name", c_char_p), ("value", c_char_p)]


class Option(Structure):
    _fields_ = [("name", c_char_p), ("default_value", c_char_p), ("meaning", c_char_p)]


class Device(Structure):
    _fields_ = [("kind", c_int32), ("vendor_id", c_uint32), ("device_id", c_uint32), ("vendor", c_char_p)]


Probe = CFUNCTYPE(c_int32, POINTER(Error))
Create = CFUNCTYPE(c_int32, POINTER(Setting), c_size_t, POINTER(c_void_p), POINTER(Error))
Release = CFUNCTYPE(None, c_void_p)
Claim = CFUNCTYPE(c_int32, c_void_p, POINTER(Graph), POINTER(Claims), POINTER(Error))
Compile = CFUNCTYPE(c_int32, c_void_p, POINTER(Graph), POINTER(Session), POINTER(Kernel), POINTER(Error))
Run = CFUNCTYPE(c_int32, c_void_p, POINTER(Tensor), c_size_t, POINTER(Output), c_size_t, POINTER(Error))


class Provider(Structure):
    _fields_ = [("size", c_size_t), ("name", c_char_p), ("vendor", c_char_p), ("version", c_char_p),
                ("devices", POINTER(Device)), ("device_count", c_size_t), ("options", POINTER(Option)),
                ("option_count", c_size_t), ("probe", Probe), ("create", Create), ("destroy", Release),
                ("claim", Claim), ("compile", Compile), ("run", Run), ("release", Release)]


class Library(Structure):
    _fields_ = [("abi", c_uint32), ("providers", POINTER(POINTER(Provider))), ("provider_count", c_size_t)]


Entry = CFUNCTYPE(POINTER(Library), c_uint32)

STRUCTURES: dict[str, type[Structure]] = {
    "DLTensor": Tensor, "orthrus_error": Error, "orthrus_value": Value, "orthrus_attribute": Attribute,
    "orthrus_node": Node, "orthrus_graph": Graph, "orthrus_claims": Claims, "orthrus_session": Session,
    "orthrus_kernel": Kernel, "orthrus_output": Output, "orthrus_setting": Setting,
    "orthrus_option": Option, "orthrus_device": Device, "orthrus_provider": Provider,
    "orthrus_library": Library}
"""By the names they have in the header."""


def table(kind: Any, rows: Sequence[Any]) -> Any:
    """An array of C's, whose address is no null pointer even where there are no rows."""
    return (kind * max(1, len(rows)))(*rows)
