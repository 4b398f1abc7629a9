"""The drop-in library in tests: models of each kind of value, feeds and results in files, and the service
spoken to from Python."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from orthrus.modelfile import ModelFile
from orthrus.native import dropin as package
from orthrus.native.dropin import table
from orthrus.native.dropin.service import OPEN, PACKAGE, RUN, Service
from orthrus.native.dropin.wire import Reader, Room, Writer

HERE = Path(__file__).parents[1] / "native"
SOURCES = Path(str(package.__file__)).parent
HEAD = '<ir_version: 9, opset_import: ["" : 20, "ai.onnx.ml" : 3]>\n'
def their_library() -> Path:
    """onnxruntime's own library, for programs that ask for the interface's newest version."""
    peer = pytest.importorskip("onnxruntime")
    if int(peer.__version__.split(".")[1]) < table.LEVEL:
        pytest.skip(f"onnxruntime does not run it: {peer.__version__} has no version {table.LEVEL} of the"
                    " interface")
    return next(Path(peer.__file__).parent.glob("capi/libonnxruntime.so*"))


TEXTS = {
    "native": "g (float[2, 8] x) => (float[2, 8] y) { a = Relu(x) b = Exp(a) y = Add(a, b) }",
    "shapes": "g (float[N, M] x) => (float[N, M] y) { a = Tanh(x) b = Exp(a) y = Add(a, b) }",
    "strings": "g (string[N] x) => (string[N] y) { y = StringConcat(x, x) }",
    "sequence": "g (seq(float[N]) x) => (seq(float[N]) y, float[M] z) {"
                " y = SequenceMap <body = b (float[N] i) => (float[N] o) { o = Neg(i) }>(x)"
                " z = ConcatFromSequence <axis = 0>(y) }",
    "two": "g (float[N, M] a, float[N, M] b) => (float[N, M] s, float[N, M] d) {"
           " s = Add(a, b) t = Add(b, b) d = Sub(s, t) }",
    "two_in_service": "g (float[N, M] a, float[N, M] b) => (float[N, M] s, float[N, M] d) {"
                      " zero = Constant<value = int64 {0}>() c = Constant<value = bool {1}>()"
                      " t = Sub(a, b) q = SequenceConstruct(t) d = SequenceAt(q, zero)"
                      " s = If <then_branch = x () => (float[N, M] p) { p = Add(a, b) },"
                      " else_branch = y () => (float[N, M] o) { o = Sub(a, b) }>(c) }",
    "control": "g (float[4] x, bool c) => (float[4] y) {"
               " y = If <then_branch = t () => (float[4] p) { p = Neg(x) },"
               " else_branch = e () => (float[4] q) { q = Exp(x) }>(c) }",
    "turns": "g (float[N] x, int64 n) => (float[N] y) <bool t = {1}> {"
             " y = Loop <body = b (int64 i, bool c, float[N] s) => (bool c, float[N] r) { r = Tanh(s) }>"
             "(n, t, x) }",
    "apart": "g (float[N] x, float[2] w) => (float[N] y, float[2] z) { y = Tanh(x) z = Exp(w) }",
    "pairs": "g (float[3, 2] x) => (int64[2, K] y, float[3, 2] z) { y = NonZero(x) z = Exp(x) }",
}


def models() -> dict[str, tuple[onnx.ModelProto, dict[str, Any]]]:
    """A model of each kind of value, with feeds."""
    rng = np.random.default_rng(0)
    feeds: dict[str, dict[str, Any]] = {
        "native": {"x": rng.random((2, 8), np.float32)},
        "shapes": {"x": rng.random((3, 5), np.float32)},
        "strings": {"x": np.array(["a", "", "Zürich", "c" * 300], object)},
        "sequence": {"x": [rng.random(2, np.float32), rng.random(5000, np.float32)]},
        "two": {name: rng.random((2, 3), np.float32) for name in "ab"},
        "two_in_service": {name: rng.random((2, 3), np.float32) for name in "ab"},
        "control": {"x": rng.random(4, np.float32), "c": np.array(False)},
        "turns": {"x": rng.random(6, np.float32), "n": np.array(7)},
        "apart": {"x": rng.random(5, np.float32), "w": rng.random(2, np.float32)},
        "pairs": {"x": np.float32([[1, 0], [0, 2], [3, 4]])},
        "map": {"x": rng.random((3, 2), np.float32)},
    }
    made = {name: onnx.parser.parse_model(HEAD + text) for name, text in TEXTS.items()}
    made["map"] = _zip_map()
    return {name: (model, feeds[name]) for name, model in made.items()}


def _zip_map() -> onnx.ModelProto:
    helper, float32 = onnx.helper, onnx.TensorProto.FLOAT
    node = helper.make_node("ZipMap", ["x"], ["y"], domain="ai.onnx.ml", classlabels_strings=["no", "yes"])
    kind = helper.make_sequence_type_proto(helper.make_map_type_proto(
        onnx.TensorProto.STRING, helper.make_tensor_type_proto(float32, [])))
    graph = helper.make_graph([node], "g", [helper.make_tensor_value_info("x", float32, ["N", 2])],
                              [helper.make_value_info("y", kind)])
    return helper.make_model(graph, ir_version=9, opset_imports=[
        helper.make_opsetid("", 20), helper.make_opsetid("ai.onnx.ml", 3)])


def same(a: Any, b: Any) -> bool:
    """Whether two values are equal, bit for bit."""
    if isinstance(a, list):
        return isinstance(b, list) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, np.ndarray):
        return (isinstance(b, np.ndarray) and a.dtype == b.dtype and a.shape == b.shape
                and (a.tolist() == b.tolist() if a.dtype == object else a.tobytes() == b.tobytes()))
    return bool(a == b)


def client(folder: Path) -> Path:
    """The program `client.c` against the library."""
    from orthrus.native.dropin import build

    made, library = folder / "client", build.built()
    subprocess.run(["cc", "-std=c11", "-O1", "-g", "-Wall", "-Wextra", "-Werror",
                    f"-I{library / 'include'}", f"-I{SOURCES}", HERE / "client.c", SOURCES / "message.c",
                    "-o", made, f"-L{library / 'lib'}", f"-l:{build.SONAME}", "-pthread",
                    f"-Wl,-rpath,{library / 'lib'}"], check=True)
    return made


def written(feeds: Mapping[str, Any], path: Path) -> Path:
    """Feeds as the client reads them."""
    writer = Writer(None)
    writer.number(len(feeds))
    for name, value in feeds.items():
        writer.text(name)
        writer.value(value)
    path.write_bytes(writer.whole())
    return path


def results(path: Path, count: int) -> list[Any]:
    """What the client wrote."""
    reader = Reader(path.read_bytes(), Room(-1))
    return [reader.value() for _ in range(count)]


def surroundings(**changed: str) -> dict[str, str]:
    """The environment of a program with the library: the service finds this package."""
    path = os.pathsep.join(filter(None, [str(SOURCES.parents[2]), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path, "ORTHRUS_PYTHON": sys.executable, **changed}


class Asker:
    """A conversation with the service of this process."""

    def __init__(self, channel: socket.socket, room: Room) -> None:
        self.channel, self.room = channel, room

    def raw(self, message: bytes) -> Reader:
        """The answer, behind its code, text and the log's records, which are in `code`, `text`, `records`."""
        self.channel.sendall(struct.pack("<q", len(message)) + message)
        (size,) = struct.unpack("<q", self._received(8))
        answer = Reader(self._received(size), self.room)
        self.code, self.text = answer.number(), answer.text()
        self.records = [(answer.number(), answer.text(), answer.text()) for _ in range(answer.number())]
        self.room.end = 0
        return answer

    def _received(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = self.channel.recv(size - len(data))
            assert piece, "the service hung up"
            data += piece
        return data

    def open(self, path: Path, name: str = "", content: str | None = None) -> tuple[int, Reader]:
        """The model's number, and its description. `content`: the digest that its file is said to have."""
        from orthrus.codegen.object import cache

        writer = Writer(None)
        writer.number(OPEN)
        writer.text(str(path))
        writer.number(-1)
        writer.text(name)
        writer.text(ModelFile(str(path), cache.secret()).digest() if content is None else content)
        for number in (99, 0, 1, 0, 0, 0, 0, 1, 0, 1, -1, 0):
            writer.number(number)
        writer.text("")
        writer.text("")
        writer.number(0)
        writer.text("")
        for _ in range(4):
            writer.number(0)
        answer = self.raw(writer.whole())
        assert not self.code, self.text
        return answer.number(), answer

    def package(self, model: int, *shapes: tuple[int, ...]) -> tuple[str, str, int, int]:
        """The package's name, why there is none, and where it lies in the room."""
        writer = Writer(None)
        for number in (PACKAGE, model, len(shapes)):
            writer.number(number)
        for shape in shapes:
            for number in (len(shape), *shape):
                writer.number(number)
        answer = self.raw(writer.whole())
        assert not self.code, self.text
        name, _, why = answer.text(), answer.text(), answer.text()
        return name, why, answer.number(), answer.number()

    def run(self, model: int, names: list[str], feeds: Mapping[str, Any], number: int = 1) -> list[Any]:
        """Results, or none where `code` is not 0."""
        writer = Writer(self.room)
        for each in (RUN, model, number, -1):
            writer.number(each)
        writer.text("")
        writer.text("")
        writer.number(0)
        writer.texts(names)
        writer.number(len(feeds))
        for name, value in feeds.items():
            writer.text(name)
            writer.value(value)
        answer = self.raw(writer.whole())
        return [] if self.code else [answer.value() for _ in names]


@contextlib.contextmanager
def service() -> Iterator[Asker]:
    """A service on a thread of this process."""
    ours, theirs = socket.socketpair()
    served = Service(theirs)
    thread = threading.Thread(target=served.listen)
    thread.start()
    mine, other = socket.socketpair()
    room = os.memfd_create("room")
    socket.send_fds(ours, [b"C"], [other.fileno(), room])
    other.close()
    try:
        yield Asker(mine, Room(room))
    finally:
        mine.close()
        ours.close()
        thread.join(20)
        theirs.close()
        os.close(room)
        assert not thread.is_alive()
