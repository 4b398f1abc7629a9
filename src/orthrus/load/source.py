"""What was handed over (a path, bytes, a ModelProto) becomes a parsed ModelProto and the folder its data
may live in.

A file is read, not mapped. The payload of large tensors is not given to the protobuf parser: a token in
`raw_data` says which it is (`Source.payload`), and its bytes are fetched when somebody looks at them, from
the file as it was opened, whatever its name stands for by then.
"""

from __future__ import annotations

import os
import stat
import weakref
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..errors import Fail, InvalidArgument, InvalidProtobuf, NoSuchFile
from ..limits import Limits
from ..memory import passing

_LIFT_ABOVE = 1 << 12
_WINDOW = 1 << 18


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
    if isinstance(source, bytes):
        return _parse(_Bytes(source), Source(None, None, root), limits)
    if isinstance(source, str | os.PathLike):
        path = os.fsdecode(source)
        file = _File(_open(path, limits), path)
        try:
            opened = Source(None, path, root or os.path.dirname(os.path.abspath(path)))
            return _parse(file, opened, limits)
        except OSError as error:
            raise _unreadable(path, error) from None
    import onnx

    if isinstance(source, onnx.ModelProto):
        return Source(source, None, root)
    raise TypeError(f"Unable to load from type '{type(source)}'")


def _open(path: str, limits: Limits) -> int:
    """A handle of a regular file. Devices, pipes and folders are refused before a byte is read."""
    flags = os.O_RDONLY
    for name in ("O_NONBLOCK", "O_CLOEXEC", "O_BINARY", "O_NOCTTY"):
        flags |= getattr(os, name, 0)
    try:
        handle = os.open(path, flags)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        raise NoSuchFile(f"Load model from {path} failed:Load model {path} failed. File doesn't exist",
                         cure="check the path; it is relative to the working directory") from None
    except OSError as error:
        if os.path.isdir(path):
            raise _no_file(path, "a directory") from None
        raise _unreadable(path, error) from None
    try:
        info = os.fstat(handle)
        if not stat.S_ISREG(info.st_mode):
            raise _no_file(path, "a directory" if stat.S_ISDIR(info.st_mode) else "no regular file")
    except BaseException:
        os.close(handle)
        raise
    return handle


def _unreadable(path: str, error: OSError) -> Fail:
    return Fail(f"Load model from {path} failed:system error number {error.errno}", found=error.strerror,
                cure="check the file's permissions")


def _no_file(path: str, found: str) -> InvalidProtobuf:
    return InvalidProtobuf(f"Load model from {path} failed:Protobuf parsing failed.", found=found,
                           expected="a regular file with an ONNX ModelProto")


def _parse(data: _Bytes | _File, source: Source, limits: Limits) -> Source:
    import onnx
    from google.protobuf.message import DecodeError

    if data.size > limits.max_model_bytes:
        raise Fail("the model is larger than the limit", found=f"{data.size} bytes",
                   expected=f"at most {limits.max_model_bytes} bytes", cure="raise Limits.max_model_bytes")
    try:
        source.model = onnx.ModelProto.FromString(_lift(data, source))
    except (DecodeError, _Malformed):
        text = "Failed to load model because protobuf parsing failed."
        if source.path is not None:
            text = f"Load model from {source.path} failed:Protobuf parsing failed."
        raise InvalidProtobuf(
            text,
            found=f"{data.size} bytes that are no ONNX ModelProto",
            expected="a ModelProto",
            cure="check that the file is complete and no pointer of Git LFS, archive, or model of another "
            "format",
        ) from None
    if not source.model.HasField("graph"):
        text = "No graph was found in the protobuf."
        raise InvalidArgument(text if source.path is None else f"Load model from {source.path} failed:{text}",
                              found=f"{data.size} bytes without a graph")
    return source


class _Malformed(Exception):
    """The bytes do not follow protobuf's wire format, or end early."""


class _Bytes:
    """A model that is in memory already."""

    def __init__(self, data: bytes) -> None:
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


class _File:
    """A model in an open file, which is closed with the last tensor that may have to be read."""

    def __init__(self, handle: int, path: str) -> None:
        weakref.finalize(self, os.close, handle).atexit = False
        self.handle, self.path = handle, path
        self.size, self.changed = self._state()
        self.window, self.begin = b"", 0

    def _state(self) -> tuple[int, int]:
        info = os.fstat(self.handle)
        return info.st_size, info.st_mtime_ns

    def __getitem__(self, at: int) -> int:
        index = at - self.begin
        if not 0 <= index < len(self.window):
            os.lseek(self.handle, at, os.SEEK_SET)
            self.window, self.begin, index = os.read(self.handle, _WINDOW), at, 0
            if not self.window:
                raise _Malformed
        return self.window[index]

    def piece(self, start: int, end: int) -> Any:
        index = start - self.begin
        if index >= 0 and end - self.begin <= len(self.window):
            return memoryview(self.window)[index:end - self.begin]
        return self.read(start, end).data

    def read(self, start: int, end: int) -> np.ndarray:
        """The bytes from `start` to `end` in memory of their own, aligned. Raises Fail where the file has
        been written to since it was opened."""
        out, done = passing(end - start), 0
        while done < len(out):
            count = _read_into(self.handle, out.data[done:], start + done)
            if not count:
                break
            done += count
        if done < len(out) or self._state() != (self.size, self.changed):
            raise Fail(f"The model's file {self.path} has been written to since it was loaded.",
                       found=f"{self._state()[0]} bytes, written later",
                       expected=f"{self.size} bytes as before",
                       cure="write a new model beside the old one and rename it: sessions keep the old one")
        return out


def _read_into(handle: int, buffer: memoryview, at: int) -> int:
    if hasattr(os, "preadv"):
        return os.preadv(handle, [buffer], at)
    os.lseek(handle, at, os.SEEK_SET)
    with os.fdopen(os.dup(handle), "rb", buffering=0) as file:
        return file.readinto(buffer) or 0


@dataclass(frozen=True)
class Payload:
    """The bytes of one tensor, where the model has them."""

    data: _Bytes | _File
    start: int
    end: int

    def __len__(self) -> int:
        return self.end - self.start

    def read(self, start: int, end: int) -> np.ndarray:
        """Some of the bytes, in memory of their own."""
        return self.data.read(self.start + start, self.start + end)


_PATHS: dict[str, dict[int, str]] = {
    "model": {7: "graph"},
    "graph": {1: "node", 5: "tensor"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor"},
    "tensor": {},
}
_RAW_DATA = 9


def _lift(data: _Bytes | _File, source: Source) -> bytes:
    """The model without the payload of large tensors of the main graph, which `source` then holds.

    Wire format: a message is a row of (tag, content); content of kind 2 is a length and that many bytes.
    Only messages on the way to a large `raw_data` are taken apart; everything else is copied as it stands.
    """
    if data.size < _LIFT_ABOVE:
        return bytes(data.piece(0, data.size))
    source.token = os.urandom(24)
    return b"".join(_walk(data, 0, data.size, "model", source))


def _walk(data: _Bytes | _File, start: int, end: int, kind: str, source: Source) -> list[Any]:
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


def _varint(data: _Bytes | _File, at: int, end: int) -> tuple[int, int]:
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
