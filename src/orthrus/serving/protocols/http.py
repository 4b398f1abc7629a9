"""The Open Inference Protocol over HTTP, as an ASGI application.

In: requests. Out: answers, JSON or JSON with tensors' bytes behind it. What a request may be is bounded
before it is read: its bytes, those of all requests at once, the time it takes to arrive, and what it unpacks
to. Every refusal is JSON with its status; no exception goes further.

An inference is looked for first and takes the short way; all else is a table of routes. One whose body is
whole needs no ASGI: `direct` answers it, without a task of its own.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any
from urllib.parse import parse_qsl

from .. import refusals
from ..budget import Budget, Share
from ..execution import Job
from ..metrics import Metrics
from ..operations import LOG, Operations, Plain
from ..polling import Polling
from ..refusals import Kind, Refusal, invalid
from ..turns import OneByOne
from .asked import JSON, Answer, Asked, Head, Headers, Inferences, parsed, text_of
from .body import LENGTH, Bounds, Receive, body_of

Send = Callable[[dict[str, Any]], Awaitable[None]]
Sender = Callable[[int, Headers, list[Any]], None]
SMALL = 1 << 16
"""Bytes up to which an answer is joined to one piece, and packed on the event loop."""
LONG, DIGITS = 1 << 16, 4
"""Bytes of a body from which on its JSON waits its turn to be read, and digits of that JSON's length where
bytes lie behind it, up to which it does not."""
WORTH = 1024
"""Bytes from which on an answer is packed, where the client takes that."""


class Http:
    """`local`: whether the server's address is a loopback one, so that only this machine's clients come.
    `most`: requests at once."""

    def __init__(self, operations: Operations, metrics: Metrics, bounds: Bounds, budget: Budget,
                 polling: Polling, local: bool, most: int) -> None:
        self.operations, self.metrics, self.bounds = operations, metrics, bounds
        self.budget, self.polling, self.local, self.most, self.active = budget, polling, local, most, 0
        self.repository, self.executor = operations.repository, operations.executor
        self.inferences = Inferences(operations.regions, bounds.json)
        self._packing, self._long = set[asyncio.Task[None]](), OneByOne(polling.loop)

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"only HTTP is served, not {scope['type']}")
        share = Share(self.budget)
        self._enter()
        try:
            if self.active > self.most:
                raise Refusal(Kind.FULL, f"{self.most} requests are in, which is as many as may be", 1.0)
            parts = scope["path"].split("/")
            if parts[-1] == "infer" and scope["method"] == "POST":
                status, headers, pieces = await self._infer(scope, parts, receive, share)
            else:
                status, headers, pieces = await self._other(scope, parts, receive, share)
        except Exception as error:
            status, headers, pieces = failed(error)
        finally:
            share.give()
            self._leave()
        await _answer(send, status, headers, pieces)

    async def _infer(self, scope: Mapping[str, Any], parts: list[str], receive: Receive, share: Share
                     ) -> tuple[int, Headers, list[Any]]:
        arrived = self.executor.clock()
        if len(parts) == 5 and parts[1] == "v2" and parts[2] == "models":
            named = parts[3], ""
        elif len(parts) == 7 and parts[1:3] == ["v2", "models"] and parts[4] == "versions":
            named = parts[3], parts[5]
        else:
            raise refusals.unknown(f"nothing is at {scope['path']!r:.200}")
        version = self.repository.get(*named)
        headers: dict[bytes, bytes] = dict(scope["headers"])
        body = await body_of(headers, receive, self.bounds, share)
        if version.retired:
            version = self.repository.get(*named)
        asked = self.inferences.asked(version, headers.get(LENGTH), body, self.local or near(scope["client"]))
        read = self.executor.clock() - arrived
        job = await self.executor.run(version, asked.feeds, asked.names, arrived, asked.timeout,
                                      self.active == 1)
        made, pieces = self._told(asked, job, 0.0, read)
        if (coding := _coding(headers.get(b"accept-encoding"), pieces)) is not None:
            pieces = await self._packed(coding, made, pieces)
        return 200, made, pieces

    def _told(self, asked: Asked, job: Job, waited: float, read: float) -> Answer:
        """`waited`, `read`: seconds until it was read, and that it took."""
        if job.error is not None:
            raise job.error
        assert job.result is not None
        answer = self.inferences.answer(asked, job.result)
        asked.version.statistics.answered(read, waited + job.started - job.arrived,
                                          job.ended - job.started, self.executor.clock() - job.ended)
        return answer

    def hold(self, head: Head) -> bool:
        """Let an inference in that `direct` will answer, and hold its bytes; False: it is to go the way of
        all other requests, which refuses it. What is held has to be `let_go` once it is answered."""
        if self.active >= self.most or head.length > self.bounds.body:
            return False
        try:
            self.repository.get(head.name, head.version)
            self.budget.take(head.length)
        except Refusal:
            return False
        self._enter()
        return True

    def let_go(self, head: Head) -> None:
        self._leave()
        self.budget.give(head.length)

    def _enter(self) -> None:
        self.active += 1
        self.polling.came()

    def _leave(self) -> None:
        self.active -= 1
        if not self.active and not self.executor.inside:
            self.polling.rest()

    def direct(self, head: Head, body: bytes | memoryview, local: bool, send: Sender) -> None:
        """Have an inference answered whose body is whole, without a task. `send` is called once, now or
        later, with status, headers and pieces of the answer."""
        begin = partial(self._begin, head, body, local, send, self.executor.clock())
        if len(body) > LONG and (head.split is None or len(head.split) > DIGITS):
            self._long.put(begin)
        else:
            begin()

    def _begin(self, head: Head, body: bytes | memoryview, local: bool, send: Sender, arrived: float) -> None:
        began = self.executor.clock()
        try:
            version = self.repository.get(head.name, head.version)
            asked = self.inferences.asked(version, head.split, body, self.local or local)
            then = partial(self._direct, head, asked, began - arrived, self.executor.clock() - began, send)
            job = self.executor.begin(version, asked.feeds, asked.names, arrived, then, asked.timeout,
                                      self.active == 1)
        except Exception as error:
            send(*failed(error))
            return
        if job.done:
            then(job)

    def _direct(self, head: Head, asked: Asked, waited: float, read: float, send: Sender, job: Job) -> None:
        try:
            made, pieces = self._told(asked, job, waited, read)
        except Exception as error:
            send(*failed(error))
            return
        coding = _coding(head.packed, pieces) if head.packed is not None else None
        if coding is None:
            send(200, made, pieces)
            return
        task = asyncio.ensure_future(self._sent_packed(coding, made, pieces, send))
        self._packing.add(task)
        task.add_done_callback(self._packing.discard)

    async def _sent_packed(self, coding: bytes, made: Headers, pieces: list[Any], send: Sender) -> None:
        try:
            pieces = await self._packed(coding, made, pieces)
        except Exception as error:
            send(*failed(error))
        else:
            send(200, made, pieces)

    async def _packed(self, coding: bytes, made: Headers, pieces: list[Any]) -> list[Any]:
        made.append((b"content-encoding", coding))
        if sum(map(len, pieces)) < SMALL:
            return [_packed(coding, pieces)]
        return [await asyncio.to_thread(_packed, coding, pieces)]

    async def _other(self, scope: Mapping[str, Any], parts: list[str], receive: Receive, share: Share
                     ) -> tuple[int, Headers, list[Any]]:
        """Every request but an inference."""
        method = scope["method"]
        if parts == ["", "metrics"] and method in ("GET", "HEAD"):
            return 200, [(b"content-type", self.metrics.content_type)], [self.metrics.text()]
        name, given = _route([part for part in parts[1:] if part], scope["path"])
        reads = {"GET", "HEAD"} if name not in WRITES else {"POST"}
        if name in BOTH:
            reads = {"GET", "HEAD", "POST"}
        if method not in reads:
            raise Refusal(Kind.METHOD, f"{method} is not for {scope['path']!r:.200}; use {sorted(reads)[0]}")
        if method == "POST":
            body = await body_of(dict(scope["headers"]), receive, self.bounds, share)
            given = {**_fields(name, parsed(body, self.bounds.json) if body else {}), **given}
        if name == "repository_index" and b"ready" in scope["query_string"]:
            query = dict(parse_qsl(scope["query_string"].decode("latin-1")))
            given["ready"] = query.get("ready") == "true"
        if name.startswith("system_shared_memory"):
            given["local"] = self.local or near(scope["client"])
        answer: Plain = getattr(self.operations, name)(**given)
        if asyncio.iscoroutine(answer):
            answer = await answer
        if name in FLAGS:
            return (200 if next(iter(answer.values())) else 400), list(JSON), [b""]
        return 200, list(JSON), [text_of(_shaped(name, answer))]


FLAGS = frozenset({"server_live", "server_ready", "model_ready"})
WRITES = frozenset({"repository_index", "repository_model_load", "repository_model_unload",
                    "system_shared_memory_register", "system_shared_memory_unregister",
                    "cuda_shared_memory_register", "cuda_shared_memory_unregister", "trace_setting",
                    "log_settings"})
BOTH = frozenset({"trace_setting", "log_settings", "repository_index"})
FIELDS: dict[str, dict[str, type]] = {
    "repository_index": {"ready": bool}, "repository_model_load": {"parameters": dict},
    "repository_model_unload": {"parameters": dict},
    "system_shared_memory_register": {"key": str, "offset": int, "byte_size": int},
    "cuda_shared_memory_register": {"raw_handle": dict, "device_id": int, "byte_size": int},
}
"""What the JSON of a request may hold, beside what is in its path."""


def _route(parts: list[str], path: str) -> tuple[str, dict[str, Any]]:
    """The operation that a path means, and the fields that are in it."""
    match parts:
        case ["v2"]:
            return "server_metadata", {}
        case ["v2", "health", ("live" | "ready") as what]:
            return f"server_{what}", {}
        case ["v2", "models", "stats"]:
            return "model_statistics", {}
        case ["v2", "models", name]:
            return "model_metadata", {"name": name}
        case ["v2", "models", name, "versions", version]:
            return "model_metadata", {"name": name, "version": version}
        case ["v2", "models", name, *rest, ("ready" | "config" | "stats") as what] if (
                not rest or len(rest) == 2 and rest[0] == "versions"):
            operation = {"ready": "model_ready", "config": "model_config", "stats": "model_statistics"}[what]
            return operation, {"name": name, **({"version": rest[1]} if rest else {})}
        case ["v2", "models", name, "trace", "setting"]:
            return "trace_setting", {"model_name": name}
        case ["v2", "trace", "setting"]:
            return "trace_setting", {}
        case ["v2", "logging"]:
            return "log_settings", {}
        case ["v2", "repository", "index"]:
            return "repository_index", {}
        case ["v2", "repository", "models", name, ("load" | "unload") as what]:
            return f"repository_model_{what}", {"model_name": name}
        case ["v2", ("systemsharedmemory" | "cudasharedmemory") as kind, *rest]:
            family = "system_shared_memory" if kind.startswith("system") else "cuda_shared_memory"
            match rest:
                case [("status" | "unregister") as act]:
                    return f"{family}_{act}", {}
                case ["region", name, ("status" | "register" | "unregister") as deed]:
                    return f"{family}_{deed}", {"name": name}
    raise refusals.unknown(f"nothing is at {path!r:.200}")


def _fields(name: str, given: dict[str, Any]) -> dict[str, Any]:
    if name in ("trace_setting", "log_settings"):
        return {"settings": given}
    known = FIELDS.get(name, {})
    for field, value in given.items():
        if field not in known:
            raise invalid(f"{field!r:.100} is not asked for here; "
                          f"{', '.join(known) or 'nothing'} is")
        if value.__class__ is not known[field]:
            raise invalid(f"{field} is {value!r:.100}; expected {known[field].__name__}")
    return given


def _shaped(name: str, answer: Plain) -> Any:
    """An answer in the form it has over HTTP, where that is another."""
    if name == "repository_index":
        return answer["models"]
    if name.endswith("memory_status"):
        return list(answer["regions"].values())
    if name in ("trace_setting", "log_settings"):
        return {key: value[0] if isinstance(value, list) and key != "trace_level" else value
                for key, value in answer["settings"].items()}
    return answer


def near(client: Any) -> bool:
    """Whether a client is on this machine."""
    return client is None or client[0] in ("127.0.0.1", "::1")


def _coding(takes: bytes | None, pieces: list[Any]) -> bytes | None:
    """How an answer is packed for a client that takes these codings."""
    if takes is None or sum(map(len, pieces)) < WORTH:
        return None
    names = {part.split(b";")[0].strip() for part in takes.lower().split(b",") if b"q=0" not in part
             or b"q=0." in part}
    return next((name for name in (b"gzip", b"deflate") if name in names), None)


def _packed(coding: bytes, pieces: list[Any]) -> bytes:
    packer = zlib.compressobj(1, wbits=31 if coding == b"gzip" else 15)
    return b"".join([*map(packer.compress, pieces), packer.flush()])


def failed(error: BaseException) -> tuple[int, Headers, list[Any]]:
    """The answer to a request that failed."""
    if not isinstance(error, Refusal):
        LOG.debug("a request failed", exc_info=error)
    refusal = refusals.of(error)
    headers = list(JSON)
    if refusal.retry_after is not None:
        headers.append((b"retry-after", b"%d" % max(1, round(refusal.retry_after))))
    if refusal.kind in (Kind.LARGE, Kind.SLOW, Kind.HEAD):
        headers.append((b"connection", b"close"))
    return refusal.kind.http, headers, [text_of({"error": refusal.text})]


async def _answer(send: Send, status: int, headers: Headers, pieces: list[Any]) -> None:
    size = sum(map(len, pieces))
    headers.append((b"content-length", b"%d" % size))
    if size < SMALL and len(pieces) > 1:
        pieces = [b"".join(pieces)]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    last = len(pieces) - 1
    for i, piece in enumerate(pieces):
        await send({"type": "http.response.body", "body": piece, "more_body": i < last})
