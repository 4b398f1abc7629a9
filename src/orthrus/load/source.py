"""What was handed over (a path, an open file, bytes, a ModelProto) becomes a parsed ModelProto and the folder
its data may live in.

A file is read, not mapped. The payload of large tensors is not given to the protobuf parser: a token in
`raw_data` says which it is (`Source.payload`), and its bytes are fetched when somebody looks at them, from
the file as it was opened, whatever its name stands for by then.
"""

from __future__ import annotations

import os
from dataclasses import field
from typing import Any, Protocol

import numpy as np

from ..errors import Fail, InvalidArgument, InvalidProtobuf
from ..limits import Limits
from ..memory import passing
from ..modelfile import ModelFile, unreadable
from ..records import dataclass
from .messages import messages
from .text import readable

_LIFT_ABOVE = 1 << 12


@dataclass
class Source:
    """A parsed model; `path` and `root` are None where it came as bytes and no folder was named."""

    model: Any
    path: str | None
    root: str | None
    token: bytes = b""
    payloads: list[Payload] = field(default_factory=list)

    def payload(self, raw: bytes) -> bytes | Payload:
        """The bytes that a `raw_data` field stands for."""
        if self.token and raw.startswith(self.token):
            return self.payloads[int.from_bytes(raw[len(self.token):], "little")]
        return raw


def open_source(source: Any, limits: Limits, external_root: str | None) -> Source:
    """Read and parse. Raises NoSuchFile, InvalidProtobuf, InvalidArgument or Fail as onnxruntime does, and
    TypeError for anything that is no model."""
    root = os.path.abspath(external_root) if external_root is not None else None
    if isinstance(source, bytes | memoryview):
        return _parse(_Bytes(source), Source(None, None, root), limits)
    if isinstance(source, str | os.PathLike):
        source = ModelFile(os.fsdecode(source))
    if isinstance(source, ModelFile):
        path = source.path
        try:
            opened = Source(None, path, root or os.path.dirname(os.path.abspath(path)))
            return _parse(source, opened, limits)
        except OSError as error:
            raise unreadable(path, error) from None
    if isinstance(source, messages().ModelProto):
        return Source(readable(source, False), None, root)
    raise TypeError(f"Unable to load from type '{type(source)}'")


def _parse(data: _Bytes | ModelFile, source: Source, limits: Limits) -> Source:
    from google.protobuf.message import DecodeError

    if data.size > limits.max_model_bytes:
        raise Fail("the model is larger than the limit", found=f"{data.size} bytes",
                   expected=f"at most {limits.max_model_bytes} bytes", cure="raise Limits.max_model_bytes")
    try:
        whole = _lift(data, source) if data.size else b""
        source.model = readable(messages().ModelProto.FromString(whole), True)
    except (DecodeError, _Malformed):
        text = "Failed to load model because protobuf parsing failed."
        if source.path is not None:
            text = f"Load model from {source.path} failed:Protobuf parsing failed."
        found, cure = _instead(data)
        raise InvalidProtobuf(text, found=found, expected="a ModelProto", cure=cure) from None
    except UnicodeDecodeError as error:
        raise InvalidProtobuf(
            "Failed to load model because protobuf parsing failed.", found=str(error),
            expected="text in UTF-8", cure="mend the text; protobuf in Python alone, which "
            "PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION=python and old protobufs are, takes no other") from None
    if not source.model.HasField("graph"):
        text = "No graph was found in the protobuf."
        raise InvalidArgument(text if source.path is None else f"Load model from {source.path} failed:{text}",
                              found=f"{data.size} bytes without a graph")
    return source


_FORMATS: tuple[tuple[bytes, str, str], ...] = (
    (b"version https://git-lfs", "a pointer of Git LFS, not the file it stands for", "run `git lfs pull`"),
    (b"<", "a page of HTML or XML, as a server answers where there is no such file",
     "download the file itself: its raw or resolve address"),
    (b"{", "JSON, as a server answers where there is no such file, or a model of another format",
     "download the file itself, or convert the model to ONNX"),
    (b"PK\x03\x04", "a ZIP archive, or PyTorch's format, which is one",
     "unpack it, or export the model with torch.onnx.export"),
    (b"\x1f\x8b", "data compressed by gzip", "unpack it"),
    (b"\x89HDF", "HDF5, Keras's format", "convert the model to ONNX, for instance with tf2onnx"),
)
"""What files begin with that people take for models, what that is, and what to do."""


def _instead(data: _Bytes | ModelFile) -> tuple[str, str]:
    """What bytes that are no ModelProto are, and what to do."""
    head = bytes(data.piece(0, min(data.size, 64)))
    for begins, what, cure in _FORMATS:
        if head.lstrip().startswith(begins):
            return f"{data.size} bytes: {what}", cure
    if head[4:8] == b"TFL3":
        return f"{data.size} bytes: a model of TensorFlow Lite", "convert the model to ONNX"
    if head[:1] == b"\x08" and len(head) > 2 and 2 <= head[2] >> 3 <= 8:
        return (f"{data.size} bytes that begin as an ONNX model and end early, or are damaged within",
                "download or copy the file again, and compare its size")
    return f"{data.size} bytes that are no ONNX ModelProto", "check what the file is; ONNX is needed"


class _Malformed(Exception):
    """The bytes do not follow protobuf's wire format, or end early."""


class _Bytes:
    """A model that is in memory already."""

    def __init__(self, data: bytes | memoryview) -> None:
        self.data, self.size = data, len(data)
        self.view = memoryview(data)

    def __getitem__(self, at: int) -> int:
        return self.data[at]

    def piece(self, start: int, end: int) -> Any:
        return self.view[start:end]

    def read(self, start: int, end: int) -> np.ndarray:
        """The bytes from `start` to `end` in memory of their own, aligned."""
        out = passing(end - start)
        out[:] = np.frombuffer(self.data, np.uint8, end - start, start)
        return out


class Stored(Protocol):
    """Bytes that are fetched when somebody looks at them."""

    def read(self, start: int, end: int) -> np.ndarray: ...


@dataclass(frozen=True)
class Payload:
    """The bytes of one tensor, where they are stored."""

    data: Stored
    start: int
    end: int

    def __len__(self) -> int:
        return self.end - self.start

    def read(self, start: int, end: int) -> np.ndarray:
        """Some of the bytes, aligned for elements of every type."""
        return self.data.read(self.start + start, self.start + end)


_PATHS: dict[str, dict[int, str]] = {
    "model": {7: "graph"},
    "graph": {1: "node", 5: "tensor"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor"},
    "tensor": {},
}
_RAW_DATA = 9


def _lift(data: _Bytes | ModelFile, source: Source) -> bytes:
    """The model without the payload of large tensors of the main graph, which `source` then holds.

    Wire format: a message is a row of (tag, content); content of kind 2 is a length and that many bytes.
    Only messages on the way to a large `raw_data` are taken apart; everything else is copied as it stands.
    """
    if data.size < _LIFT_ABOVE:
        return bytes(data.piece(0, data.size))
    source.token = os.urandom(24)
    return b"".join(_walk(data, 0, data.size, "model", source))


def _walk(data: _Bytes | ModelFile, start: int, end: int, kind: str, source: Source) -> list[Any]:
    out: list[Any] = []
    inner = _PATHS[kind]
    at = copied = start
    while at < end:
        begin = at
        tag, at = _varint(data, at, end)
        wire = tag & 7
        if wire == 0:
            _, at = _varint(data, at, end)
        elif wire == 1:
            at += 8
        elif wire == 5:
            at += 4
        elif wire == 2:
            size, at = _varint(data, at, end)
            stop = at + size
            if stop > end:
                raise _Malformed
            number = tag >> 3
            if size > _LIFT_ABOVE:
                content: list[Any] | None = None
                if number in inner:
                    content = _walk(data, at, stop, inner[number], source)
                elif kind == "tensor" and number == _RAW_DATA:
                    content = [source.token + len(source.payloads).to_bytes(8, "little")]
                    source.payloads.append(Payload(data, at, stop))
                if content is not None:
                    length = _to_varint(sum(map(len, content)))
                    out += [data.piece(copied, begin), _to_varint(tag), length, *content]
                    copied = stop
            at = stop
        else:
            # groups are in no ONNX file; the parser decides about them
            break
        if at > end:
            raise _Malformed
    out.append(data.piece(copied, end))
    return out


def _varint(data: _Bytes | ModelFile, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end and shift <= 63:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise _Malformed


def _to_varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
