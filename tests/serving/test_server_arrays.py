"""Long tensors in JSON: read into arrays at once, they mean what a reader of all JSON makes of them."""

from __future__ import annotations

import http.client
import json
import random
import socket
import threading
from contextlib import ExitStack, closing, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from served import put, same, serving
from skips import needs

from orthrus.serving import tensors
from orthrus.serving.refusals import Refusal

pytestmark = needs("server libraries", "simdjson")
EDGES = (0, -0.0, 0.1, 1e-400, 5e-324, 1.7976931348623157e308, 1e22, 123456789012345680, 2**53 + 1,
         -2**53 - 1, 2**63 - 1, -2**63, 16777217, 33554435, 0.1 + 0.2, 3.4028235677973366e38, 1e39, 65520)
ODD = (2**63, 2**64 - 1, 2**64, -2**63 - 1, 10**30, True, None, "1", [], [1], {}, float("nan"), float("inf"))
SHAPES = ((3000,), (1, 3000), (60, 50), (2, 3, 500), (3, 1, 1000), (1000, 3), (3000, 1), (0, 5), (2, 0))


def elements(rng: random.Random, count: int) -> list[Any]:
    match rng.randrange(6):
        case 0:
            return [rng.randint(0, 1) for _ in range(count)]
        case 1:
            return [rng.randint(-128, 127) for _ in range(count)]
        case 2:
            return [rng.getrandbits(64) - 2**63 for _ in range(count)]
        case 3:
            return [float(np.float32(rng.gauss(0, 1))) for _ in range(count)]
        case 4:
            return [rng.choice(EDGES) for _ in range(count)]
    return [rng.uniform(-1, 1) * 10.0 ** rng.randint(-320, 308) for _ in range(count)]


def nested(values: list[Any], shape: tuple[int, ...]) -> list[Any]:
    """As lists in lists."""
    for size in shape[:0:-1]:
        values = [values[i:i + size] for i in range(0, len(values), size)] if size else [[]] * shape[0]
    return values


def text_of(rng: random.Random, request: Any) -> bytes:
    """One of the ways in which a client may write it."""
    return json.dumps(request, indent=rng.choice((None, None, 1)), ensure_ascii=rng.random() < 0.5,
                      separators=rng.choice(((",", ":"), (", ", " : "), (" ,\t", ":\r\n")))).encode()


def made(item: dict[str, Any]) -> np.ndarray | str:
    try:
        found = tensors.of_list(item["data"], tensors.DATATYPES[item["datatype"]], tuple(item["shape"]), "t")
    except Refusal as refusal:
        return refusal.text
    return found


def alike(request: Any, text: bytes) -> bool:
    """Whether it was read into arrays, which then were what a reader of all JSON makes of them, or refused
    by both."""
    from orthrus.serving.protocols import arrays, asked

    found = arrays.loaded(text)
    if found is None:
        return False
    expected = asked.parsed(text, 1 << 30)
    assert found.keys() == expected.keys() and len(found["inputs"]) == len(expected["inputs"])
    for ours, theirs in zip(found["inputs"], expected["inputs"], strict=True):
        assert {**ours, "data": 0} == {**theirs, "data": 0}
        mine, other = made(ours), made(theirs)
        assert isinstance(mine, str) == isinstance(other, str), (mine, other)
        if not isinstance(mine, str):
            assert isinstance(other, np.ndarray) and mine.dtype == other.dtype
            assert mine.shape == other.shape and mine.tobytes() == other.tobytes(), request
    assert {**found, "inputs": 0} == {**expected, "inputs": 0}
    return True


@pytest.mark.parametrize("seed", range(8))
def test_arrays_of_a_request_are_those_of_its_lists(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from orthrus.serving.protocols import arrays

    monkeypatch.setattr(arrays, "LONG", 0)
    rng = random.Random(seed)
    for _ in range(24):
        items, wide = list[Any](), True
        for place in range(rng.randint(1, 3)):
            shape = rng.choice(SHAPES)
            values = elements(rng, int(np.prod(shape)))
            data = nested(values, shape) if rng.random() < 0.5 else values
            wide = wide and (data is values or not data or shape[-1] >= arrays.ROW)
            items.append({"name": f"ä{place}", "shape": shape, "data": data, "datatype": rng.choice(
                [name for name in tensors.DATATYPES if name != "BYTES"])})
        request = {"id": rng.choice(("", "7", "\u2028\U0001f600")), "inputs": items,
                   "outputs": [{"name": "y", "parameters": {"classification": 3}}]}
        assert alike(request, text_of(rng, request)) == wide


@pytest.mark.parametrize("odd", ODD, ids=repr)
def test_elements_that_no_array_has(odd: Any) -> None:
    """One in many that is no such number, at any place; and lists that flatten to the same."""
    from orthrus.serving.protocols import asked

    rng = random.Random(repr(odd))
    for kind in ("FP32", "FP64", "INT64", "UINT64", "BOOL"):
        for place in (0, rng.randrange(3000), 2999):
            values = elements(rng, 3000)
            values[place] = odd
            for data in (values, nested(values, (60, 50)), [values[:1500], values[1500:]]):
                request = {"inputs": [{"name": "x", "shape": [3000], "datatype": kind, "data": data}]}
                text = json.dumps(request).encode()
                if not alike(request, text):
                    asked.parsed(text, 1 << 30)


FULL = list(range(3000))


@pytest.mark.parametrize("text", [
    *(json.dumps({"inputs": [{"data": data}]}).encode() for data in (
        [*FULL[:-2], [1, 2], []], [FULL, []], [FULL, FULL[:-1]], [[FULL], FULL], [FULL, [FULL]],
        [[*FULL[:-2], [1, 2], []]] * 2, [*FULL, "["], [[]] * 3000, [*FULL, {"a": [1]}])),
    b'{"inputs": [{"data": %b, "data": [1]}]}' % json.dumps(FULL).encode(),
    b'{"inputs": [{"data": %b, "data\\u0000": [1]}]}' % json.dumps(FULL).encode(),
    b'{"inputs": [{"data": %b}], "inputs": 3}' % json.dumps(FULL).encode(),
    b'{"inputs": [{"data": %b}], "id": "["}' % json.dumps(FULL).encode(),
    b'{"inputs": [{"data": %b}], "id": "\\u005b"}' % json.dumps([*FULL[:-2], [1, 2], []]).encode(),
    b'{"inputs": [{"data": %b}]} x' % json.dumps(FULL).encode(),
    b'{"inputs": [{"data": %b' % json.dumps(FULL).encode(), b"[" * 50_000, b'{"inputs":' * 20_000,
    b'{"inputs": [%b]}' % (b"[" * 900 + b"]" * 900 + b"," + b" " * 20_000 + b"1"),
    json.dumps(FULL * 2).encode(), b"\xff" * 20_000, b" " * 20_000,
    json.dumps({str(i): i for i in FULL}).encode(), json.dumps({"inputs": [{}] * 6000}).encode()],
    ids=lambda text: text[:40].decode("latin-1"))
def test_texts_that_may_mean_something_else(text: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    from orthrus.serving.protocols import arrays

    monkeypatch.setattr(arrays, "LONG", 0)
    assert arrays.loaded(text) is None


def test_a_server_says_the_same_with_and_without_arrays(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Statuses and every byte of the answers, also of refusals."""
    from orthrus.serving.protocols import arrays

    for kind in ("FP32", "INT8", "UINT64", "BOOL", "BYTES"):
        put(tmp_path, kind, same(kind, ("N", "M")))
    rng, texts = random.Random(7), list[tuple[str, bytes]]()
    for kind in ("FP32", "INT8", "UINT64", "BOOL", "BYTES"):
        for _ in range(6):
            values = [str(i) for i in range(3000)] if kind == "BYTES" else elements(rng, 3000)
            data = rng.choice((values, nested(values, (60, 50)), nested(values, (2, 1500)), values[1:]))
            item = {"name": rng.choice("xxxy"), "shape": [60, 50], "data": data,
                    "datatype": rng.choice((kind, kind, "FP64"))}
            texts.append((kind, json.dumps({"inputs": [item] * rng.choice((1, 1, 1, 2))}).encode()))
    with serving(tmp_path) as server:
        def told() -> list[tuple[int, bytes]]:
            found = list[tuple[int, bytes]]()
            with closing(http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=60)) as asked:
                for kind, text in texts:
                    asked.request("POST", f"/v2/models/{kind}/infer", text)
                    answer = asked.getresponse()
                    found.append((answer.status, answer.read()))
            return found
        found = told()
        monkeypatch.setattr(arrays, "simdjson", None)
        assert told() == found
        assert {status for status, *_ in found} == {200, 400}


def test_what_is_long_to_read_lets_others_by(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests that came while one was read: short ones are not behind long ones, which keep their order."""
    from orthrus.serving.protocols.asked import Inferences

    put(tmp_path, "x", same("FP32"))
    started, free, order = threading.Event(), threading.Event(), list[int]()
    asked = Inferences.asked

    def held(self: Inferences, version: Any, split: Any, body: Any, local: bool) -> Any:
        found = asked(self, version, split, body, local)
        if found.feeds["x"].shape[0]:
            order.append(found.feeds["x"].shape[0])
            started.set()
            assert free.wait(60)
        return found
    monkeypatch.setattr(Inferences, "asked", held)

    def posted(rows: int, spaces: int) -> bytes:
        item = {"name": "x", "shape": [rows, 1], "datatype": "FP32", "data": list(range(rows))}
        body = json.dumps({"inputs": [item]}).encode() + b" " * spaces
        return b"POST /v2/models/x/infer HTTP/1.1\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
    given = [(1, 70_000), (2, 70_000), (3, 0), (4, 70_000), (5, 70_000), (6, 0)]
    with serving(tmp_path) as server, ExitStack() as stack:
        host, port = server.url.removeprefix("http://").split(":")
        clients = [stack.enter_context(socket.create_connection((host, int(port)), 60)) for _ in given]
        files = [stack.enter_context(client.makefile("rb")) for client in clients]

        def answered() -> None:
            for file in files:
                assert b" 200 " in file.readline()
                [size] = [int(line[15:]) for line in iter(file.readline, b"\r\n")
                          if line.startswith(b"content-length")]
                file.read(size)
        for client in clients:
            client.sendall(posted(0, 0))
        answered()
        for client, each in zip(clients, given, strict=True):
            client.sendall(posted(*each))
            assert started.wait(60)
        free.set()
        answered()
        assert server._running is not None and not server._running.operations.executor.inside
    assert sorted(order[1:3]) == [3, 6] and order[:1] + order[3:] == [1, 2, 4, 5]


def test_a_call_that_fails_does_not_hold_up_the_others() -> None:
    from orthrus.serving.turns import OneByOne

    waiting, made = list[Any](), list[int]()

    class Loop:
        call_soon = staticmethod(waiting.append)
    line = OneByOne(Loop())

    def fails() -> None:
        line.put(lambda: made.append(3))
        raise ValueError
    for call in (lambda: made.append(1), fails, lambda: made.append(2)):
        line.put(call)
    for count in range(4):
        assert len(waiting) == 1, "one a turn of the loop"
        with pytest.raises(ValueError) if count == 1 else nullcontext():
            waiting.pop()()
    assert made == [1, 2, 3] and not waiting
