"""Bodies that are read past the parser: in whatever pieces they come, whatever comes behind them."""

from __future__ import annotations

import gc
import http.client
import json
import random
import socket
import threading
import time
import urllib.request
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from served import adds, put, same, serving
from skips import needs

from orthrus.serving.protocols.asked import MOST_HEADS, MOST_KNOWN, Form, Head

pytestmark = needs("server libraries")
LARGE = 1 << 16
ROW = 16


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("models")
    put(folder, "add", adds(1))
    put(folder, "joined", adds(1), 1, {"max_batch_size": 8, "max_delay": 0.002})
    with serving(folder, body=1 << 22) as running:
        yield running


def body_of(x: np.ndarray, total: int = 0) -> tuple[bytes, int]:
    """A request's body and its JSON's length; `total`: bytes of both together."""
    made = {"inputs": [{"name": "x", "datatype": "FP32", "shape": x.shape,
                        "parameters": {"binary_data_size": x.nbytes}}],
            "parameters": {"binary_data_output": True}}
    head = json.dumps(made).encode()
    head += b" " * (total - len(head) - x.nbytes)
    return head + x.tobytes(), len(head)


def request(x: np.ndarray, total: int = 0, model: str = "add", extra: str = "") -> bytes:
    body, split = body_of(x, total)
    return (f"POST /v2/models/{model}/infer HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n"
            f"inference-header-content-length: {split}\r\n{extra}\r\n").encode() + body


def rows(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, 4)).astype(np.float32)


def connected(server: Any) -> socket.socket:
    host, _, port = server.url.removeprefix("http://").partition(":")
    return socket.create_connection((host, int(port)), timeout=60)


def answer(file: Any) -> tuple[int, np.ndarray | bytes]:
    status = int(file.readline().split()[1])
    headers = http.client.parse_headers(file)
    data = file.read(int(headers["content-length"]))
    if status != 200:
        return status, data
    return status, np.frombuffer(data[int(headers["inference-header-content-length"]):], np.float32)


def right(found: tuple[int, Any], x: np.ndarray) -> None:
    assert found[0] == 200, found
    np.testing.assert_array_equal(found[1].reshape(x.shape), x + 1)


@pytest.mark.parametrize("total", [LARGE - 1, LARGE, LARGE + 1, 2 * LARGE - 1, 2 * LARGE, 2 * LARGE + 1,
                                   1 << 20])
def test_bodies_of_all_sizes(server: Any, total: int) -> None:
    x = rows((total - 1000) // ROW)
    with connected(server) as connection, connection.makefile("rb") as file:
        for _ in range(3):
            connection.sendall(request(x, total))
            right(answer(file), x)


@pytest.mark.parametrize("seed", range(4))
def test_pieces_of_all_sizes_one_request_behind_the_other(server: Any, seed: int) -> None:
    rng = random.Random(seed)
    sent = [rows(rng.choice((1, 3, LARGE // ROW, 3 * LARGE // ROW, 20_000)), i) for i in range(12)]
    data = b"".join(map(request, sent))
    with connected(server) as connection, connection.makefile("rb") as file:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 22)
        place = 0
        while place < len(data):
            size = rng.choice((1, 7, 100, 5_000, 65_536, 65_537, 400_000))
            connection.sendall(data[place:place + size])
            place += size
        for x in sent:
            right(answer(file), x)


def test_a_read_that_ends_a_body_leaves_room(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An event loop reads a socket again at once where a read filled what it was given: one client would be
    answered again and again while others wait."""
    from orthrus.serving.protocols.wire import Connection

    full, real = list[bool](), Connection.buffer_updated

    def noted(self: Any, nbytes: int) -> None:
        placing = self._http.left is not None
        room = len(self.get_buffer(-1))
        real(self, nbytes)
        if placing and self._http.left is None:
            full.append(nbytes == room)
    monkeypatch.setattr(Connection, "buffer_updated", noted)
    with connected(server) as connection, connection.makefile("rb") as file:
        for i in range(8):
            x = rows(5000 * (i + 1), i)
            connection.sendall(request(x))
            right(answer(file), x)
    assert full == [False] * 8


def test_a_refused_body_is_passed_over(server: Any) -> None:
    x = rows(20_000)
    with connected(server) as connection, connection.makefile("rb") as file:
        connection.sendall(request(x, model="nothing") + request(x) + request(x, extra="expect: nothing\r\n"))
        assert answer(file)[0] == 404
        right(answer(file), x)
        right(answer(file), x)


def test_a_body_in_chunks_or_announced(server: Any) -> None:
    x = rows(20_000)
    body, split = body_of(x)
    head = f"POST /v2/models/add/infer HTTP/1.1\r\nhost: x\r\ninference-header-content-length: {split}\r\n"
    with connected(server) as connection, connection.makefile("rb") as file:
        connection.sendall(f"{head}transfer-encoding: chunked\r\n\r\n{len(body):x}\r\n".encode() + body
                           + b"\r\n0\r\n\r\n")
        right(answer(file), x)
        connection.sendall(f"{head}content-length: {len(body)}\r\nexpect: 100-continue\r\n\r\n".encode())
        assert file.readline().startswith(b"HTTP/1.1 100") and file.readline() == b"\r\n"
        connection.sendall(body)
        right(answer(file), x)


def test_a_client_that_leaves(server: Any) -> None:
    x = rows(50_000)
    data = request(x)
    operations = server._running.operations
    for place in (300, LARGE, LARGE + 1, len(data) // 2, len(data) - 1):
        with connected(server) as connection:
            connection.sendall(data[:place])
    with connected(server) as connection, connection.makefile("rb") as file:
        connection.sendall(data)
        right(answer(file), x)
    assert operations.executor.inside == 0


def test_a_client_that_stops(server: Any) -> None:
    data = request(rows(50_000))
    with serving(server.options.models, arrive=0.2) as impatient, connected(impatient) as connection:
        connection.sendall(data[:-1])
        with connection.makefile("rb") as file:
            status, text = answer(file)
            assert status == 408 and b"arrived" in text and file.read() == b""


def posted(path: str, body: bytes, split: int | None = None, extra: str = "", version: str = "1.1") -> bytes:
    told = "" if split is None else f"inference-header-content-length: {split}\r\n"
    return (f"POST {path} HTTP/{version}\r\nhost: x\r\n{extra}{told}content-length: {len(body)}\r\n\r\n"
            ).encode() + body


def kinds(rng: random.Random) -> tuple[bytes, int, np.ndarray | None]:
    """Some request, the status of its answer and, of a right one, what was sent."""
    x = rows(rng.choice((1, 2, 5, LARGE // ROW, 9000)), rng.randrange(100))
    body, split = body_of(x, rng.choice((0, len(x) * ROW + 400)))
    match rng.randrange(12):
        case 0:
            return b"GET /v2/health/ready HTTP/1.1\r\nhost: x\r\n\r\n", 200, None
        case 1:
            return request(x, model="nothing"), 404, None
        case 2:
            return posted("/v2/models/add/infer", body[:-4], split), 400, None
        case 3:
            return posted("/v2/models/add/infer", body, len(body) + 1), 400, None
        case 4:
            return posted("/v2/models/add/infer", b"", 0), 400, None
        case 5:
            return posted("/v2/models/add/infer", zlib.compress(body), split,
                          "content-encoding: deflate\r\n"), 200, x
        case 6:
            chunked = (b"POST /v2/models/add/infer HTTP/1.1\r\nhost: x\r\ninference-header-content-length: "
                       b"%d\r\ntransfer-encoding: chunked\r\n\r\n%x\r\n" % (split, len(body)))
            return chunked + body + b"\r\n0\r\n\r\n", 200, x
        case 7:
            return posted("/v2/models/joined/infer", body, split), 200, x
        case 8:
            return posted("/v2/models/add/versions/1/infer?a=%20", body, split), 200, x
        case _:
            return posted("/v2/models/add/versions/1/infer" if rng.random() < 0.3 else "/v2/models/add/infer",
                          body, split), 200, x


@pytest.mark.parametrize("seed", range(6))
def test_requests_of_all_kinds_are_answered_in_their_order(server: Any, seed: int) -> None:
    rng = random.Random(seed)
    drawn = [kinds(rng) for _ in range(40)]
    data = b"".join(each[0] for each in drawn)

    def send(connection: socket.socket) -> None:
        place = 0
        while place < len(data):
            size = rng.choice((100, 700, 5_000, 65_536, 400_000))
            connection.sendall(data[place:place + size])
            place += size
    with connected(server) as connection, connection.makefile("rb") as file:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sender = threading.Thread(target=send, args=(connection,))
        sender.start()
        for i, (_, status, x) in enumerate(drawn):
            found = answer(file) if x is not None or status != 200 else (plain(file), b"")
            assert found[0] == status, (i, found)
            if x is not None:
                right(found, x)
        sender.join()
    held_nothing(server)


def plain(file: Any) -> int:
    status = int(file.readline().split()[1])
    file.read(int(http.client.parse_headers(file)["content-length"] or 0))
    return status


def held_nothing(server: Any) -> None:
    with urllib.request.urlopen(f"{server.url}/metrics") as found:
        text = found.read().decode()
    [held] = [line for line in text.splitlines() if line.startswith("orthrus_request_bytes ")]
    assert float(held.split()[1]) == 0 and server._running.operations.executor.inside == 0


def test_a_known_head_before_other_bytes(server: Any) -> None:
    """The same head again and again, whole or in two pieces, before bodies that look like heads."""
    rng = np.random.default_rng(3)
    split = body_of(rows(2))[1]
    size = len(body_of(rows(2))[0])
    strange = [b"\r\n\r\n" * 8, b"POST /v2/models/add/infer HTTP/1.1\r\n"[:32], b"\n\n" * 16, b"\r\n" * 16]
    with connected(server) as connection, connection.makefile("rb") as file:
        for i in range(24):
            x = np.frombuffer(strange[i % 4], np.float32).reshape(2, 4) if i % 3 else rows(2, i)
            sent = request(x)
            assert len(sent) - sent.find(b"\r\n\r\n") - 4 == size and body_of(x)[1] == split
            cut = int(rng.integers(1, len(sent))) if i % 2 else len(sent)
            connection.sendall(sent[:cut])
            if cut < len(sent):
                time.sleep(0.002)
                connection.sendall(sent[cut:] + sent)
                right(answer(file), x)
            right(answer(file), x)


@pytest.mark.parametrize("extra, version, stays", [
    ("connection: close\r\n", "1.1", False), ("", "1.0", False), ("", "1.1", True),
    ("connection: keep-alive\r\n", "1.1", True)])
@pytest.mark.parametrize("model, count", [("add", 2), ("add", 20_000), ("joined", 2), ("nothing", 2)])
def test_connections_that_end_with_their_answer(server: Any, extra: str, version: str, stays: bool,
                                                model: str, count: int) -> None:
    x = rows(count)
    body, split = body_of(x)
    for _ in range(2):
        with connected(server) as connection, connection.makefile("rb") as file:
            connection.sendall(posted(f"/v2/models/{model}/infer", body, split, extra, version))
            status, _ = answer(file)
            assert status == (200 if model != "nothing" else 404)
            connection.settimeout(5 if not stays else 0.05)
            if stays:
                connection.sendall(request(x))
                connection.settimeout(60)
                right(answer(file), x)
            else:
                assert file.read() == b""


@pytest.mark.parametrize("coding", ["gzip", "deflate", "gzip;q=0", "br"])
@pytest.mark.parametrize("count", [2, 100, 20_000])
def test_answers_are_packed_for_who_takes_that(server: Any, coding: str, count: int) -> None:
    x = np.ones((count, 4), np.float32)
    body, split = body_of(x)
    with connected(server) as connection, connection.makefile("rb") as file:
        for _ in range(2):
            connection.sendall(posted("/v2/models/add/infer", body, split, f"accept-encoding: {coding}\r\n"))
            assert int(file.readline().split()[1]) == 200
            headers = http.client.parse_headers(file)
            data = file.read(int(headers["content-length"]))
            packed = headers.get("content-encoding")
            assert packed == (coding if coding in ("gzip", "deflate") and count > 2 else None)
            if packed:
                data = zlib.decompress(data, 31 if packed == "gzip" else 15)
            np.testing.assert_array_equal(np.frombuffer(
                data[int(headers["inference-header-content-length"]):], np.float32), 2)


def test_the_same_json_means_what_each_model_makes_of_it(tmp_path: Path) -> None:
    """What is kept of a JSON belongs to one version: of several side by side, or taken away and put back."""
    put(tmp_path, "a", adds(1), 1, {"versions": "all"})
    put(tmp_path, "a", adds(2), 2)
    put(tmp_path, "b", adds(3))
    put(tmp_path, "c", same("INT32"))
    x = rows(2)
    body, split = body_of(x)
    with serving(tmp_path) as server, connected(server) as connection, connection.makefile("rb") as file:
        def ask(path: str, status: int, added: int = 0) -> None:
            connection.sendall(posted(f"/v2/models/{path}/infer", body, split))
            found = answer(file)
            assert found[0] == status, found
            if status == 200:
                np.testing.assert_array_equal(np.asarray(found[1]).reshape(x.shape), x + added)

        def control(name: str, what: str) -> None:
            connection.sendall(posted(f"/v2/repository/models/{name}/{what}", b"{}"))
            assert plain(file) == 200
        for _ in range(3):
            ask("a/versions/1", 200, 1)
            ask("a/versions/2", 200, 2)
            ask("a", 200, 2)
            ask("b", 200, 3)
            ask("c", 400)
        control("b", "unload")
        ask("b", 404)
        put(tmp_path, "b", adds(5))
        control("b", "load")
        for _ in range(2):
            ask("b", 200, 5)


def test_what_is_kept_of_requests_has_a_bound(server: Any) -> None:
    def kept(kind: type) -> int:
        return sum(isinstance(each, kind) for each in gc.get_objects())
    gc.collect()
    before = {Head: kept(Head), Form: kept(Form)}
    x = rows(1)
    with connected(server) as connection, connection.makefile("rb") as file:
        for i in range(MOST_HEADS + 80):
            connection.sendall(request(x, 300 + i, extra=f"x: {i}\r\n"))
            right(answer(file), x)
    gc.collect()
    for kind, most in ((Head, MOST_HEADS), (Form, MOST_KNOWN)):
        assert kept(kind) <= most + 8 and kept(kind) > min(before[kind], most - 8)


def test_who_does_not_read_is_not_written_to_without_end(server: Any) -> None:
    """Answers that a client does not read are not made: its requests stay in its socket."""
    x = rows(50_000)
    data, executor = request(x), server._running.operations.executor
    with connected(server) as connection:
        connection.setblocking(False)
        sent, quiet = 0, 0
        while quiet < 20 and sent < 200 * len(data):
            place = sent % len(data)
            try:
                sent += connection.send(data[place:])
                quiet = 0
            except BlockingIOError:
                quiet += 1
                time.sleep(0.02)
        assert quiet == 20, "all was taken"
    with connected(server) as connection, connection.makefile("rb") as file:
        connection.sendall(data)
        right(answer(file), x)
    assert executor.inside == 0
