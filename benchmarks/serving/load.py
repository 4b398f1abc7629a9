"""Clients of a server over HTTP, many in one process: in a circle, or at the times of a schedule.

In: a port, the bytes of a request, and how many clients or when. Out: for each request when it was sent, when
its answer was whole, and its status. The bytes are made once: a client costs little beside the server.
"""

from __future__ import annotations

import json
import selectors
import socket
import time
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np

NAMES = {"float32": "FP32", "float64": "FP64", "int64": "INT64", "uint8": "UINT8"}
HEAD = b"\r\n\r\n"
LENGTH = b"\r\ncontent-length:"
SCRATCH = memoryview(bytearray(1 << 20))
"""What of an answer is only counted."""


def text_of(model: str, feeds: Mapping[str, np.ndarray]) -> bytes:
    """A request of the Open Inference Protocol with tensors as JSON, answered so too."""
    inputs = [{"name": name, "shape": list(value.shape), "datatype": NAMES[value.dtype.name],
               "data": value.ravel().tolist()} for name, value in feeds.items()]
    return _posted(model, json.dumps({"inputs": inputs}).encode(), "application/json")


def request_of(model: str, feeds: Mapping[str, np.ndarray], timeout: float | None = None) -> bytes:
    """A request of the Open Inference Protocol with binary tensors, answers binary too."""
    inputs = [{"name": name, "shape": list(value.shape), "datatype": NAMES[value.dtype.name],
               "parameters": {"binary_data_size": value.nbytes}} for name, value in feeds.items()]
    parameters: dict[str, object] = {"binary_data_output": True}
    if timeout is not None:
        parameters["timeout"] = int(1e6 * timeout)
    head = json.dumps({"inputs": inputs, "parameters": parameters}).encode()
    body = head + b"".join(value.tobytes() for value in feeds.values())
    return _posted(model, body, f"application/octet-stream\r\nInference-Header-Content-Length: {len(head)}")


def _posted(model: str, body: bytes, kind: str) -> bytes:
    return (f"POST /v2/models/{model}/infer HTTP/1.1\r\nHost: localhost\r\nContent-Type: {kind}\r\n"
            f"Content-Length: {len(body)}\r\n\r\n").encode() + body


@dataclass
class Answers:
    """Of each request: sent, answered (seconds) and status; 0 where the connection broke."""
    rows: list[tuple[float, float, int]] = field(default_factory=list)
    seconds: float = 0.0
    last: bytes = b""

    def count(self, status: int) -> int:
        return sum(row[2] == status for row in self.rows)

    def statuses(self) -> dict[int, int]:
        return {status: self.count(status) for status in sorted({row[2] for row in self.rows})}

    def latency(self, share: float) -> float:
        """Seconds within which this share of those with status 200 were answered."""
        taken = sorted(row[1] - row[0] for row in self.rows if row[2] == 200)
        return taken[min(int(share * len(taken)), len(taken) - 1)] if taken else float("nan")

    @property
    def rate(self) -> float:
        """Answers with status 200 a second."""
        return self.count(200) / self.seconds if self.seconds else 0.0


class _Client:
    """A connection that stays open."""

    def __init__(self, port: int) -> None:
        self.port, self.start, self.left, self.got = port, 0.0, memoryview(b""), bytearray()
        self.status = self.missing = 0
        self.socket = self._open()

    def _open(self) -> socket.socket:
        made = socket.create_connection(("127.0.0.1", self.port))
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        made.setblocking(False)
        return made

    def send(self, request: bytes, start: float) -> None:
        self.start, self.left = start, memoryview(request)
        self.got.clear()
        self.push()

    def push(self) -> None:
        try:
            while self.left:
                self.left = self.left[self.socket.send(self.left):]
        except BlockingIOError:
            pass
        except OSError:
            self.left = memoryview(b"")

    def pull(self) -> int | None:
        """The status once the answer is whole; 0 where the connection is at its end."""
        try:
            count = self.socket.recv_into(SCRATCH)
        except BlockingIOError:
            return None
        except OSError:
            count = 0
        if not count:
            return 0
        if self.missing:
            self.missing -= count
            return None if self.missing else self.status
        self.got += SCRATCH[:count]
        end = self.got.find(HEAD)
        if end < 0:
            return None
        head = bytes(self.got[:end]).lower()
        at = head.find(LENGTH)
        size = int(head[at + len(LENGTH):].split(b"\r\n", 1)[0]) if at >= 0 else 0
        self.status, self.missing = int(head[9:12]), end + len(HEAD) + size - len(self.got)
        return None if self.missing else self.status


def drive(port: int, request: bytes, clients: int, seconds: float = 0.0, times: Iterable[float] | None = None
          ) -> Answers:
    """Send requests and read their answers.

    Without `times` each of `clients` sends its next request when it has its answer, for `seconds`. With
    `times`, seconds from the start in order, a request leaves then, whatever became of the others, on a free
    one of at most `clients` connections; where none is free its time runs from when it was due.
    """
    found, chosen = Answers(), selectors.DefaultSelector()
    due = deque(times or ())
    opened = times is not None
    free, everyone = list[_Client](), list[_Client]()

    def connect() -> _Client:
        client = _Client(port)
        everyone.append(client)
        chosen.register(client.socket, selectors.EVENT_READ, client)
        return client

    def send(client: _Client, start: float) -> None:
        client.send(request, start)
        if client.left:
            chosen.modify(client.socket, selectors.EVENT_READ | selectors.EVENT_WRITE, client)

    for _ in range(min(clients, 64) if opened else clients):
        free.append(connect())
    begin = time.perf_counter()
    inside = 0
    if not opened:
        while free:
            send(free.pop(), time.perf_counter())
            inside += 1
    while inside or due:
        now = time.perf_counter()
        while due and begin + due[0] <= now and (free or len(everyone) < clients):
            waited = not free
            client = free.pop() if free else connect()
            planned = begin + due.popleft()
            send(client, planned if waited else now)
            inside += 1
        pause = max(begin + due[0] - now, 0.0) if due and (free or len(everyone) < clients) else 1.0
        for key, events in chosen.select(pause):
            client = key.data
            if events & selectors.EVENT_WRITE:
                client.push()
                if not client.left:
                    chosen.modify(client.socket, selectors.EVENT_READ, client)
            if not events & selectors.EVENT_READ:
                continue
            status = client.pull()
            if status is None:
                continue
            now = time.perf_counter()
            if client.start:
                found.rows.append((client.start, now, status))
                inside -= 1
                client.start = 0.0
            if status != 200:
                found.last = bytes(client.got)
            if status == 0 or b"connection: close" in bytes(client.got[:1000]).lower():
                chosen.unregister(client.socket)
                client.socket.close()
                everyone.remove(client)
                if opened or now - begin >= seconds:
                    continue
                client = connect()
            if opened:
                free.append(client)
            elif now - begin < seconds:
                send(client, now)
                inside += 1
    found.seconds = time.perf_counter() - begin
    for client in everyone:
        client.socket.close()
    chosen.close()
    return found
