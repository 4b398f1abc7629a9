"""Broken requests over both protocols: each gets a typed answer, and the server holds nothing of it.

Requests are made right first and then mutated: bytes changed, cut, doubled, fields of JSON and of messages
replaced by what nobody expects. Seeds are fixed.
"""

from __future__ import annotations

import gc
import http.client
import json
import os
import random
import socket
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from served import adds, put, same, serving
from skips import needs

from orthrus.serving.inference import Wanted
from orthrus.serving.protocols.asked import Form, Head

pytestmark = needs("server libraries")
ODD: tuple[Any, ...] = (None, True, -1, 0, 1, 2**31, 2**63, 2**64, 1e308, float("nan"), "", "x", "FP32",
                        "\x00", "../../etc", "a" * 5000, [], [[]], [1] * 70, {}, {"a": 1}, [None], [[1], 2],
                        [{}])
KEPT = (Head, Form, Wanted)
TYPED = {400, 404, 405, 408, 413, 415, 501, 503, 504}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("models")
    put(folder, "add", adds(1))
    put(folder, "texts", same("BYTES"))
    put(folder, "joined", adds(1), 1, {"max_batch_size": 8, "max_delay": 0.001, "max_queue": 50})
    with serving(folder, body=1 << 20, json=1 << 16, arrive=0.5, pending=1 << 22) as running:
        yield running


def request() -> tuple[dict[str, Any], bytes]:
    x = np.arange(8, dtype=np.float32)
    tensor = {"name": "x", "datatype": "FP32", "shape": [2, 4], "parameters": {"binary_data_size": x.nbytes}}
    return {"id": "1", "inputs": [tensor], "parameters": {"binary_data_output": True, "timeout": 10_000_000},
            "outputs": [{"name": "y", "parameters": {"binary_data": True, "classification": 0}}]}, x.tobytes()


def mutated(value: Any, rng: random.Random) -> Any:
    """JSON with one of its values another, gone, or doubled."""
    if isinstance(value, dict) and value and rng.random() < 0.85:
        key = rng.choice(list(value))
        made = dict(value)
        if rng.random() < 0.15:
            del made[key]
        elif rng.random() < 0.1:
            made[rng.choice(("shared_memory_region", "sequence_id", "x" * 300))] = rng.choice(ODD)
        else:
            made[key] = mutated(value[key], rng)
        return made
    if isinstance(value, list) and value and rng.random() < 0.7:
        i = rng.randrange(len(value))
        return [*value[:i], *([mutated(value[i], rng)] * rng.choice((1, 1, 2))), *value[i + 1:]]
    return rng.choice(ODD)


def damaged(data: bytes, rng: random.Random) -> bytes:
    made = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        place = rng.randrange(len(made) + 1)
        match rng.randrange(4):
            case 0:
                made[place:place + 1] = bytes([rng.randrange(256)])
            case 1:
                del made[place:place + rng.randint(1, 9)]
            case 2:
                made[place:place] = rng.randbytes(rng.randint(1, 9))
            case 3:
                made[place:] = made[place:][:rng.randrange(40)]
    return bytes(made)


def settled() -> tuple[int, int]:
    """Objects of the server alive, but for what it keeps so many of at most, and open files."""
    gc.collect()
    own = sum(str(type(each).__module__).startswith("orthrus.serving") and not isinstance(each, KEPT)
              for each in gc.get_objects())
    return own, len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0


def over_http(server: Any, count: int, seed: int) -> set[int]:
    rng, seen = random.Random(seed), set[int]()
    address = server.url.removeprefix("http://")
    connection = http.client.HTTPConnection(address, timeout=30)
    for _ in range(count):
        head, tail = request()
        name = rng.choice(("add", "add", "joined", "texts"))
        headers = dict[str, str]()
        body = json.dumps(mutated(head, rng) if rng.random() < 0.7 else head).encode()
        headers["Inference-Header-Content-Length"] = str(len(body) if rng.random() < 0.9
                                                         else rng.choice(("-1", "0", "x", 10**9, 5)))
        body += tail if rng.random() < 0.8 else rng.randbytes(rng.randrange(64))
        if rng.random() < 0.3:
            body = damaged(body, rng)
        if rng.random() < 0.1:
            headers["Content-Encoding"] = rng.choice(("gzip", "deflate", "br", "x"))
            if rng.random() < 0.5:
                body = zlib.compress(body)
        path = f"/v2/models/{name}/infer" if rng.random() < 0.9 else rng.choice((
            "/v2/models//infer", f"/v2/models/{name}/versions/../infer", "/v2/models/%2e%2e%2f/infer", "//",
            "/v2/repository/models/x/load", "/v2/systemsharedmemory/region/r/register", "/v2/logging",
            "/v2/trace/setting", f"/v2/models/{name}/versions/{'9' * 40}/infer", "/v2/models/%00/infer"))
        try:
            connection.request(rng.choice(("POST",) * 9 + ("PUT",)), path, body, headers)
            answer = connection.getresponse()
            data = answer.read()
        except (http.client.HTTPException, ConnectionError):
            connection.close()
            raise
        seen.add(answer.status)
        if answer.status != 200:
            assert answer.status in TYPED, (answer.status, data)
            assert json.loads(data)["error"], data
    connection.close()
    return seen


def over_grpc(server: Any, count: int, seed: int) -> set[str]:
    import grpc

    from orthrus.serving.protocols.messages import messages

    rng, seen, found = random.Random(seed), set[str](), messages()
    kind = found.types["ModelInferRequest"]
    right = kind(model_name="add", id="1", raw_input_contents=[np.ones(8, np.float32).tobytes()],
                 inputs=[{"name": "x", "datatype": "FP32", "shape": [2, 4]}], outputs=[{"name": "y"}])
    right.parameters["timeout"].int64_param = 10_000_000
    listed = kind(model_name="joined", inputs=[{
        "name": "x", "datatype": "FP32", "shape": [1, 4], "contents": {"fp32_contents": [1, 2, 3, 4]}}])
    texts = [each.SerializeToString() for each in (right, listed)]
    with grpc.insecure_channel(server.grpc_address) as channel:
        calls = [channel.unary_unary(f"/{found.service}/{method.name}") for method in found.methods
                 if not method.streams]
        infer = channel.unary_unary(f"/{found.service}/ModelInfer")
        for _ in range(count):
            call = infer if rng.random() < 0.8 else rng.choice(calls)
            try:
                call(damaged(rng.choice(texts), rng), timeout=30)
                seen.add("OK")
            except grpc.RpcError as error:
                assert error.code() not in (grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL), error
                assert error.details()
                seen.add(error.code().name)
    return seen


def right(server: Any) -> None:
    """The server still does what it is for."""
    import tritonclient.grpc

    with tritonclient.grpc.InferenceServerClient(server.grpc_address) as client:
        feed = tritonclient.grpc.InferInput("x", [2, 4], "FP32")
        feed.set_data_from_numpy(np.ones((2, 4), np.float32))
        np.testing.assert_array_equal(client.infer("add", [feed]).as_numpy("y"), np.full((2, 4), 2))


def broken(server: Any, count: int, seed: int) -> None:
    right(server)
    over_http(server, 40, seed), over_grpc(server, 40, seed)
    before = settled()
    assert {200, 400, 404} <= over_http(server, count, seed + 1)
    assert {"OK", "INVALID_ARGUMENT", "NOT_FOUND"} <= over_grpc(server, count, seed + 2)
    right(server)
    after = settled()
    assert after[0] <= before[0] + 20 and after[1] <= before[1] + 5, (before, after)
    executor = server._running.operations.executor
    assert executor.inside == 0 and executor.turns.running == 0


@pytest.mark.slow
def test_broken_requests(server: Any) -> None:
    broken(server, 500, 1)


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(2, 12))
def test_many_broken_requests(server: Any, seed: int) -> None:
    broken(server, 500, 100 * seed)


def status_of(server: Any, data: bytes) -> tuple[int, bytes]:
    """The answer to bytes as they are."""
    host, _, port = server.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        connection.sendall(data)
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        return answer.status, answer.read()


INFER = b"POST /v2/models/add/infer HTTP/1.1\r\nhost: x\r\n"


@pytest.mark.parametrize("data, status", [
    (INFER + b"content-length: 9999999\r\n\r\n", 413),
    (INFER + b"content-length: 20\r\n\r\n{", 408),
    (INFER + b"content-length: 20\r\n\r\n", 408),
    (INFER + b"transfer-encoding: chunked\r\n\r\n" + (b"10000\r\n" + b"a" * 65536 + b"\r\n") * 20, 413),
    (INFER + b"transfer-encoding: chunked\r\n\r\n1\r\n{\r\n", 408),
    (INFER + b"content-length: 0\r\n\r\n", 400),
    (INFER + b"content-length: 40000\r\n\r\n" + b"[" * 40000, 400),
    (INFER + b"content-length: 5014\r\n\r\n" + b'{"inputs": ' + b"9" * 5001 + b"]}", 400),
    (INFER + b"content-length: 70000\r\n\r\n" + b" " * 70000, 413),
    (b"GET /v2/models/add/infer HTTP/1.1\r\nhost: x\r\n\r\n", 404),
    (b"BREW / HTTP/1.1\r\nhost: x\r\n\r\n", 400),
    (b"GET /v2/../../etc/passwd HTTP/1.1\r\nhost: x\r\n\r\n", 404),
    (b"no request at all\r\n\r\n", 400)],
    ids=["length", "late", "nothing", "chunks", "late chunks", "empty", "deep", "digits", "json", "get",
         "method", "path", "nonsense"])
def test_what_is_no_request(server: Any, data: bytes, status: int) -> None:
    assert status_of(server, data)[0] == status


@pytest.mark.parametrize("coding", ("gzip", "deflate"))
def test_what_unpacks_to_too_much(server: Any, coding: str) -> None:
    packer = zlib.compressobj(9, wbits=31 if coding == "gzip" else 15)
    data = b"".join([*(packer.compress(bytes(1 << 20)) for _ in range(64)), packer.flush()])
    head = f"content-encoding: {coding}\r\ncontent-length: {len(data)}\r\n\r\n"
    status, text = status_of(server, INFER + head.encode() + data)
    assert status == 413 and b"unpacks to more than 1048576" in text


def test_a_call_that_unpacks_to_too_much(server: Any) -> None:
    import grpc

    with grpc.insecure_channel(server.grpc_address, compression=grpc.Compression.Gzip) as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        with pytest.raises(grpc.RpcError) as found:
            call(bytes(64 << 20), timeout=60)
    assert found.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    right(server)


def test_requests_are_refused_while_too_many_bytes_are_held(server: Any) -> None:
    host, _, port = server.url.removeprefix("http://").partition(":")
    held = [socket.create_connection((host, int(port))) for _ in range(4)]
    for each in held:
        each.sendall(INFER + b"content-length: 1048576\r\n\r\n" + b"{")
    statuses = {status_of(server, INFER + b"content-length: 900000\r\n\r\n")[0] for _ in range(3)}
    for each in held:
        each.close()
    assert 503 in statuses


def test_an_error_names_no_path(server: Any, tmp_path: Path) -> None:
    body = json.dumps({"inputs": []}).encode()
    status, text = status_of(server, INFER + b"content-length: %d\r\n\r\n" % len(body) + body)
    assert status == 400 and b"needs the input 'x'" in text and b"/" not in text


def test_a_model_that_cannot_be_loaded_names_no_path(server: Any) -> None:
    folder = server.options.models
    put(folder, "no_model", b"no model")
    put(folder, "no_settings", adds(1), 1, {"max_batch_size": -1})
    for name in ("no_model", "no_settings"):
        status, text = status_of(server, f"POST /v2/repository/models/{name}/load HTTP/1.1\r\nhost: x\r\n"
                                         "content-length: 0\r\n\r\n".encode())
        assert status == 400 and str(folder.parent).encode() not in text, text
    status, text = status_of(server, b"POST /v2/repository/index HTTP/1.1\r\nhost: x\r\n"
                                     b"content-length: 0\r\n\r\n")
    assert status == 200 and b"no_model" in text and str(folder.parent).encode() not in text
