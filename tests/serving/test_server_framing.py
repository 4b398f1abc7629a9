"""How requests are told apart on a connection: what is no HTTP, what could be read in two ways, what is too
long or too slow. What stands in front is answered first, nothing behind it is taken for a request."""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from served import adds, put, serving
from skips import needs

pytestmark = needs("server libraries")
UNLOAD = b"POST /v2/repository/models/add/unload HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n"
"""What nobody has asked for."""
INFER = b"POST /v2/models/add/infer HTTP/1.1\r\nhost: x\r\n"
CHUNKED = INFER + b"transfer-encoding: chunked\r\n\r\n"
HEADERS = {
    "two meanings": b"content-length: 6\r\ntransfer-encoding: chunked",
    "two meanings, turned": b"transfer-encoding: chunked\r\ncontent-length: 6",
    "two lengths": b"content-length: 6\r\ncontent-length: 60", "list": b"content-length: 6, 6",
    "plus": b"content-length: +6", "minus": b"content-length: -6", "hexadecimal": b"content-length: 0x6",
    "two numbers": b"content-length: 6 6", "exponent": b"content-length: 6e1",
    "no length": b"content-length:",
    "overflow": b"content-length: 184467440737095516220",
    "chunks in between": b"transfer-encoding: chunked, identity", "space": b"content-length : 6",
    "null": b"x: a\0b", "return": b"x: a\rb", "no colon": b"what is this", "no name": b": x",
    "odd name": b"a(b): x", "folded": b"x: a\r\n content-length: 6\r\n b",
}
BROKEN = {
    **{name: INFER + text + b"\r\n\r\n0\r\n\r\n" for name, text in HEADERS.items()},
    "chunk of letters": CHUNKED + b"xyz\r\n", "negative chunk": CHUNKED + b"-1\r\n",
    "chunk's overflow": CHUNKED + b"f" * 20 + b"\r\n", "chunk too long": CHUNKED + b"3\r\nabcdefgh\r\n",
    "chunk's 0x": CHUNKED + b"0x3\r\nabc\r\n0\r\n\r\n",
    "no protocol": b"POST /v2/models/add/infer\r\n\r\n", "other protocol": b"POST / HTTP/9.9\r\n\r\n",
    "no method": b"\0\1\2\3", "lower case": b"post / HTTP/1.1\r\n\r\n",
    "long line": b"GET /" + b"a" * 300_000 + b" HTTP/1.1\r\n\r\n",
    "long header": INFER + b"x: " + b"a" * 300_000 + b"\r\n\r\n",
    "many headers": INFER + b"a: b\r\n" * 60_000 + b"\r\n",
    "long extension": CHUNKED + b"3;" + b"a" * 300_000 + b"\r\nabc\r\n0\r\n\r\n",
    "long trailer": CHUNKED + b"3\r\nabc\r\n0\r\nx: " + b"a" * 300_000 + b"\r\n\r\n",
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("models")
    put(folder, "add", adds(1))
    put(folder, "joined", adds(1), 1, {"max_batch_size": 8, "max_delay": 0.03})
    with serving(folder, body=1 << 20, arrive=20.0) as running:
        yield running


def connected(server: Any) -> socket.socket:
    host, _, port = server.url.removeprefix("http://").partition(":")
    return socket.create_connection((host, int(port)), timeout=60)


def request(x: np.ndarray, model: str = "add", chunks: bool = False) -> bytes:
    head = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": x.shape,
                                   "parameters": {"binary_data_size": x.nbytes}}],
                       "parameters": {"binary_data_output": True}}).encode()
    body = head + x.tobytes()
    told = (f"POST /v2/models/{model}/infer HTTP/1.1\r\nhost: x\r\n"
            f"inference-header-content-length: {len(head)}\r\n")
    if chunks:
        return f"{told}transfer-encoding: chunked\r\n\r\n{len(body):x}\r\n".encode() + body + b"\r\n0\r\n\r\n"
    return f"{told}content-length: {len(body)}\r\n\r\n".encode() + body


def answer(file: Any) -> tuple[int, http.client.HTTPMessage, bytes]:
    status = int(file.readline().split()[1])
    headers = http.client.parse_headers(file)
    return status, headers, file.read(int(headers["content-length"]))


def right(file: Any, x: np.ndarray) -> None:
    status, headers, data = answer(file)
    assert status == 200, data
    found = np.frombuffer(data[int(headers["inference-header-content-length"]):], np.float32)
    np.testing.assert_array_equal(found.reshape(x.shape), x + 1)


def sent(connection: socket.socket, data: bytes) -> None:
    """Send what the server takes; it may end the connection meanwhile."""
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        connection.sendall(data)


def nothing_unasked(server: Any) -> None:
    with connected(server) as connection, connection.makefile("rb") as file:
        connection.sendall(b"GET /v2/models/add/ready HTTP/1.1\r\nhost: x\r\n\r\n")
        assert answer(file)[0] == 200, "a request was made of what is none"


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.parametrize("before", [0, 1, 5])
def test_what_is_no_http_ends_the_connection_behind_what_is(server: Any, name: str, before: int) -> None:
    rng = random.Random(f"{name} {before}")
    asked = [np.full((rng.choice((1, 3, 9000)), 4), i, np.float32) for i in range(before)]
    data = b"".join(request(x, rng.choice(("add", "joined", "joined")), rng.random() < 0.3) for x in asked)
    data += BROKEN[name] + UNLOAD * 3
    with connected(server) as connection, connection.makefile("rb") as file:
        sender = threading.Thread(target=sent, args=(connection, data))
        sender.start()
        for x in asked:
            right(file, x)
        status, headers, text = answer(file)
        assert status in (400, 413, 431) and json.loads(text)["error"], (status, text)
        assert headers["connection"] == "close" and file.read() == b""
        sender.join(60)
    nothing_unasked(server)


@pytest.mark.parametrize("seed", range(4))
def test_mutated_heads(server: Any, seed: int) -> None:
    """Bytes of heads changed at random: all that is answered is typed, and the connection ends."""
    rng, body = random.Random(seed), b"GET /v2/models/add/ready HTTP/1.1\r\nhost: x\r\n\r\n"
    length = b"content-length: %d\r\n" % len(body)
    for _ in range(120):
        more = rng.choice((length, b"", b"expect: 100-continue\r\n", b"content-encoding: gzip\r\n",
                           b"transfer-encoding: chunked\r\n", b"connection: upgrade\r\nupgrade: h2c\r\n"))
        made = bytearray(INFER + more + length + b"connection: close\r\n\r\n")
        for _ in range(rng.randint(1, 3)):
            place = rng.randrange(len(made) - 4)
            made[place:place + rng.choice((0, 1, 4))] = rng.choice((
                b"", b"\0", b" ", b"\t", b"\n", b"\r", b":", b",", b"0", b"9", bytes([rng.randrange(256)])))
        data = bytes(made) + body * 2
        with connected(server) as connection, connection.makefile("rb") as file:
            sent(connection, data)
            connection.shutdown(socket.SHUT_WR)
            with contextlib.suppress(ConnectionResetError):
                while line := file.readline():
                    status = int(line.split()[1])
                    headers = http.client.parse_headers(file)
                    text = file.read(int(headers.get("content-length", 0)))
                    assert status in (100, 200, 400, 404, 405, 408, 413, 415, 431), (status, text, data)
    nothing_unasked(server)


@pytest.mark.parametrize("method, path, status", [
    (b"HEAD", b"/v2/health/ready", 200), (b"HEAD", b"/v2/models/add", 200), (b"HEAD", b"/metrics", 200),
    (b"HEAD", b"/v2/models/nothing", 404), (b"OPTIONS", b"/v2", 405), (b"DELETE", b"/v2/models/add", 405),
    (b"TRACE", b"/v2/models/add/infer", 404)])
def test_other_methods(server: Any, method: bytes, path: bytes, status: int) -> None:
    x = np.ones((2, 4), np.float32)
    with connected(server) as connection, connection.makefile("rb") as file:
        connection.sendall(method + b" " + path + b" HTTP/1.1\r\nhost: x\r\n\r\n" + request(x))
        assert int(file.readline().split()[1]) == status
        headers = http.client.parse_headers(file)
        if method != b"HEAD":
            assert json.loads(file.read(int(headers["content-length"])))["error"]
        right(file, x)


@pytest.mark.parametrize("head", [
    INFER + b"connection: upgrade\r\nupgrade: h2c\r\ncontent-length: 0\r\n\r\n",
    b"GET /v2 HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n",
    b"CONNECT x:80 HTTP/1.1\r\nhost: x\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"])
def test_other_protocols_are_not_spoken(server: Any, head: bytes) -> None:
    with connected(server) as connection, connection.makefile("rb") as file:
        sent(connection, head + UNLOAD)
        assert answer(file)[0] in (200, 400, 404, 405)
        assert file.read() == b""
    nothing_unasked(server)


def test_who_is_too_slow(server: Any) -> None:
    """Nothing, half a head, and a head byte by byte; behind a request, too."""
    x = np.ones((2, 4), np.float32)
    with serving(server.options.models, arrive=0.3, idle=1.0) as impatient:
        for ahead in (b"", request(x), request(x, "joined")):
            for head in (INFER[:-5], INFER + b"x: y"):
                with connected(impatient) as connection, connection.makefile("rb") as file:
                    connection.sendall(ahead + head)
                    if ahead:
                        right(file, x)
                    status, headers, text = answer(file)
                    assert status == 408 and b"arrived" in text and headers["connection"] == "close"
                    assert file.read() == b""
        with connected(impatient) as connection:
            connection.settimeout(0.01)
            data = b""
            for _ in range(2000):
                sent(connection, b"x")
                try:
                    data = connection.recv(1000)
                    break
                except TimeoutError:
                    continue
                except ConnectionResetError:
                    break
            else:
                raise AssertionError("a head without end was read")
            assert not data or data.startswith((b"HTTP/1.1 408", b"HTTP/1.1 400"))
        with connected(impatient) as connection:
            assert connection.recv(10) == b""


def test_a_body_that_is_passed_over_is_not_waited_for(server: Any) -> None:
    with serving(server.options.models, arrive=0.3) as impatient:
        with connected(impatient) as connection, connection.makefile("rb") as file:
            connection.sendall(INFER.replace(b"add", b"nothing") + b"content-length: 1000\r\n\r\n{")
            assert answer(file)[0] == 404 and file.read() == b""


def test_a_model_that_comes_and_goes(server: Any, tmp_path: Any) -> None:
    """Every answer is the model's or says that it is not there."""
    put(tmp_path, "add", adds(1))
    put(tmp_path, "joined", adds(1), 1, {"max_batch_size": 8, "max_delay": 0.001})
    over, wrong, seen = threading.Event(), list[BaseException](), set[int]()
    with serving(tmp_path) as moving:
        def ask(model: str, count: int) -> None:
            x = np.full((count, 4), count, np.float32)
            try:
                with connected(moving) as connection, connection.makefile("rb") as file:
                    while not over.is_set():
                        connection.sendall(request(x, model) * 3)
                        for _ in range(3):
                            status, headers, data = answer(file)
                            seen.add(status)
                            assert status in (200, 404), data
                            if status == 200:
                                start = int(headers["inference-header-content-length"])
                                np.testing.assert_array_equal(
                                    np.frombuffer(data[start:], np.float32), count + 1)
            except BaseException as error:
                wrong.append(error)
        threads = [threading.Thread(target=ask, args=each)
                   for each in (("add", 1), ("add", 9000), ("joined", 1), ("joined", 2))]
        for each in threads:
            each.start()
        with connected(moving) as connection, connection.makefile("rb") as file:
            for turn in range(12):
                for name in ("add", "joined"):
                    for act in ("unload", "load") if turn % 2 else ("load",):
                        connection.sendall(f"POST /v2/repository/models/{name}/{act} HTTP/1.1\r\nhost: x\r\n"
                                           "content-length: 0\r\n\r\n".encode())
                        assert answer(file)[0] == 200
                        time.sleep(0.005)
        over.set()
        for each in threads:
            each.join(60)
        assert not wrong, wrong
        assert moving._running.operations.executor.inside == 0 and 200 in seen


@pytest.mark.parametrize("behind", [b"", b"GET /v2 HT"])
def test_a_client_that_sends_no_more_is_answered(server: Any, behind: bytes) -> None:
    """Whatever came whole before the client closed its side, and then the connection ends; what did not is no
    request."""
    for rows in range(1, 7):
        x = np.full((rows + 10 * len(behind), 4), rows, np.float32)
        with connected(server) as connection, connection.makefile("rb") as file:
            connection.sendall(request(x, "joined", rows % 2 > 0) * (1 + rows // 3) + behind)
            connection.shutdown(socket.SHUT_WR)
            for _ in range(1 + rows // 3):
                right(file, x)
            assert file.read() == b""
        with connected(server) as connection, connection.makefile("rb") as file:
            connection.sendall(request(x, "joined")[:-rows])
            connection.shutdown(socket.SHUT_WR)
            assert file.read() == b""
    nothing_unasked(server)
