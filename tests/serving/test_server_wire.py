"""Bodies that are read past the parser: in whatever pieces they come, whatever comes behind them."""

from __future__ import annotations

import http.client
import json
import random
import socket
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from served import adds, put, serving
from skips import needs

pytestmark = needs("server libraries")
LARGE = 1 << 16
ROW = 16


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("models")
    put(folder, "add", adds(1))
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
