"""The Open Inference Protocol over HTTP, as an ASGI application.

In: requests. Out: answers, JSON or JSON with tensors' bytes behind it. What a request may be is bounded
before it is read: its bytes, those of all requests at once, the time it takes to arrive, and what it unpacks
to. Every refusal is JSON with its status; no exception goes further.

An inference is looked for first and takes the short way; all else is a table of routes.
"""

from __future__ import annotations

import asyncio
import json
import zlib
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any
from urllib.parse import parse_qsl

import numpy as np

from . import refusals, tensors
from .body import LENGTH, OTHERS, Bounds, Receive, body_of
from .budget import Budget, Share
from .inference import Given, Inputs, Reader, delivered, timeout_of, wanted
from .metrics import Metrics
from .operations import LOG, Operations, Plain
from .refusals import Kind, Refusal, invalid
from .repository import Version

Send = Callable[[dict[str, Any]], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]
JSON: Headers = [(b"content-type", b"application/json")]
SMALL = 1 << 16
"""Bytes up to which an answer is joined to one piece, and packed on the event loop."""
WORTH = 1024
"""Bytes from which on an answer is packed, where the client takes that."""
SAME, MOST_KNOWN = 2048, 256
"""Bytes of a JSON that is kept, and how many are."""
NOTHING: dict[str, Any] = {}


class Http:
    """`local`: whether the server's address is a loopback one, so that only this machine's clients come.
    `most`: requests at once."""

    def __init__(self, operations: Operations, metrics: Metrics, bounds: Bounds, budget: Budget, local: bool,
                 most: int) -> None:
        self.operations, self.metrics, self.bounds = operations, metrics, bounds
        self.budget, self.local, self.most, self.active = budget, local, most, 0
        self.repository, self.executor = operations.repository, operations.executor
        self._known = dict[bytes, dict[str, Any]]()

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"only HTTP is served, not {scope['type']}")
        share = Share(self.budget)
        self.active += 1
        try:
            if self.active > self.most:
                raise Refusal(Kind.FULL, f"{self.most} requests are in, which is as many as may be", 1.0)
            parts = scope["path"].split("/")
            if parts[-1] == "infer" and scope["method"] == "POST":
                status, headers, pieces = await self._infer(scope, parts, receive, share)
            else:
                status, headers, pieces = await self._other(scope, parts, receive, share)
        except Exception as error:
            if not isinstance(error, Refusal):
                LOG.debug("%s %s", scope["method"], scope["path"], exc_info=error)
            status, headers, pieces = _refused(refusals.of(error))
        finally:
            share.give()
            self.active -= 1
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
        body = await body_of(scope, headers, receive, self.bounds, share)
        if version.retired:
            version = self.repository.get(*named)
        local = self.local or _local(scope)
        regions = self.operations.regions
        split = headers.get(LENGTH)
        if split is not None and (given := _length(split, len(body))) == 0 and len(body):
            inputs, request = _raw(version, body), NOTHING
        else:
            end = len(body) if split is None else given
            request = self._request(body, end)
            inputs = _inputs(Inputs(version, regions, local), request, memoryview(body)[end:])
        parameters = _parameters(request, "the request")
        outputs = wanted(version, [(_field(each, "name"), _parameters(each, "an output"))
                                   for each in _items(request, "outputs")] if request else (), local)
        identity = request.get("id", "")
        if identity.__class__ is not str:
            raise invalid(f"id is {identity!r:.100}; expected a text")
        binary = parameters.get("binary_data_output", request is NOTHING)
        read = self.executor.clock()
        job = await self.executor.run(version, inputs, [each.name for each in outputs], arrived,
                                      timeout_of(parameters) if parameters else None,
                                      len(scope.get("extensions", NOTHING).get(OTHERS, "  ")) == 1)
        assert job.result is not None
        answer, pieces = _outputs(version, delivered(version, job.result, outputs, regions), identity,
                                  bool(binary))
        pieces.insert(0, answer)
        made = ([(b"content-type", b"application/octet-stream"), (LENGTH, b"%d" % len(answer))]
                if len(pieces) > 1 else list(JSON))
        if b"accept-encoding" in headers:
            pieces = await _packed(headers[b"accept-encoding"], made, pieces)
        version.statistics.answered(read - arrived, job.started - job.arrived, job.ended - job.started,
                                    self.executor.clock() - job.ended)
        return 200, made, pieces

    def _request(self, body: bytes | memoryview, end: int) -> dict[str, Any]:
        """The JSON of an inference. What comes before tensors' bytes is mostly the same from one request to
        the next, and is parsed once; nobody changes it."""
        if end == len(body) or end > SAME:
            return _parsed(body[:end] if end != len(body) else body, self.bounds.json)
        text = bytes(body[:end])
        request = self._known.get(text)
        if request is None:
            request = _parsed(text, self.bounds.json)
            if len(self._known) >= MOST_KNOWN:
                self._known.clear()
            self._known[text] = request
        return request

    async def _other(self, scope: Mapping[str, Any], parts: list[str], receive: Receive, share: Share
                     ) -> tuple[int, Headers, list[Any]]:
        """Every request but an inference."""
        method = scope["method"]
        if parts == ["", "metrics"] and method == "GET":
            return 200, [(b"content-type", self.metrics.content_type)], [self.metrics.text()]
        name, given = _route([part for part in parts[1:] if part], scope["path"])
        reads = {"GET", "HEAD"} if name not in WRITES else {"POST"}
        if name in BOTH:
            reads = {"GET", "HEAD", "POST"}
        if method not in reads:
            raise Refusal(Kind.METHOD, f"{method} is not for {scope['path']!r:.200}; use {sorted(reads)[0]}")
        if method == "POST":
            body = await body_of(scope, dict(scope["headers"]), receive, self.bounds, share)
            given = {**_fields(name, _parsed(body, self.bounds.json) if body else {}), **given}
        if name == "repository_index" and b"ready" in scope["query_string"]:
            query = dict(parse_qsl(scope["query_string"].decode("latin-1")))
            given["ready"] = query.get("ready") == "true"
        if name.startswith("system_shared_memory"):
            given["local"] = self.local or _local(scope)
        answer: Plain = getattr(self.operations, name)(**given)
        if asyncio.iscoroutine(answer):
            answer = await answer
        if name in FLAGS:
            return (200 if next(iter(answer.values())) else 400), list(JSON), [b""]
        return 200, list(JSON), [_text(_shaped(name, answer))]


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


def _local(scope: Mapping[str, Any]) -> bool:
    client = scope.get("client")
    return client is None or client[0] in ("127.0.0.1", "::1")


def _length(given: bytes, size: int) -> int:
    if not given.isdigit() or len(given) > 18 or int(given) > size:
        raise invalid(f"Inference-Header-Content-Length is {given!r:.60}; the body has {size} bytes")
    return int(given)


def _parsed(data: bytes | memoryview, most: int) -> dict[str, Any]:
    """A JSON object."""
    if len(data) > most:
        raise Refusal(Kind.LARGE, f"{len(data)} bytes of JSON; at most {most} are taken: send large "
                                  f"tensors in binary")
    try:
        found = json.loads(data if isinstance(data, bytes) else bytes(data))
    except RecursionError:
        raise invalid("the JSON is nested too deep") from None
    except ValueError as error:
        raise invalid(f"the request is no JSON: {error}") from None
    if found.__class__ is not dict:
        raise invalid(f"the request is a JSON {type(found).__name__}; expected an object")
    return found


def _items(request: Mapping[str, Any], field: str) -> list[Any]:
    items = request.get(field, [])
    if items.__class__ is not list or not all(each.__class__ is dict for each in items):
        raise invalid(f"{field} is {items!r:.100}; expected a list of objects")
    return items


def _field(item: Mapping[str, Any], field: str) -> Any:
    if field not in item:
        raise invalid(f"{item!r:.100} has no {field}")
    return item[field]


def _parameters(item: Mapping[str, Any], what: str) -> dict[str, Any]:
    parameters = item.get("parameters", NOTHING)
    if parameters.__class__ is not dict:
        raise invalid(f"{what}: parameters are {parameters!r:.100}; expected an object")
    return parameters


def _inputs(inputs: Inputs, request: Mapping[str, Any], rest: memoryview) -> dict[str, np.ndarray]:
    """The inputs of a request; `rest` is what lies behind its JSON."""
    for item in _items(request, "inputs"):
        parameters, name = _parameters(item, "an input"), _field(item, "name")
        size = parameters.get("binary_data_size")
        if size is not None:
            if size.__class__ is not int or not 0 <= size <= len(rest):
                raise invalid(f"input {name!r:.100}: binary_data_size is {size!r:.60}; the body has "
                              f"{len(rest)} bytes left")
            read: Reader = partial(tensors.of_bytes, rest[:size])
            rest = rest[size:]
        else:
            read = partial(tensors.of_list, item.get("data"))
        inputs.take(name, _field(item, "datatype"), _field(item, "shape"), parameters, read)
    if len(rest):
        raise invalid(f"{len(rest)} bytes behind the last input's data belong to none")
    return inputs.done()


def _raw(version: Version, body: bytes | memoryview) -> dict[str, np.ndarray]:
    """A body that is nothing but the bytes of the model's one input."""
    if len(version.inputs) != 1 or [*version.inputs.values()][0].shape.count(-1) > 1:
        raise invalid(f"{version} can't be asked by a body without JSON: that takes a model of one input "
                      f"with at most one open size")
    [tensor] = version.inputs.values()
    if tensor.kind is tensors.BYTES:
        shape: tuple[int, ...] = (1,) * len(tensor.shape)
        return {tensor.name: tensors.of_texts([bytes(body)], shape, f"input {tensor.name!r}")}
    row = tensor.kind.dtype.itemsize
    for size in tensor.shape:
        row *= abs(size)
    open_size = len(body) // row if row else 0
    shape = tuple(open_size if size == -1 else size for size in tensor.shape)
    return {tensor.name: tensors.of_bytes(memoryview(body), tensor.kind, shape, f"input {tensor.name!r}")}


def _outputs(version: Version, given: list[Given], identity: str, binary: bool) -> tuple[bytes, list[Any]]:
    """The JSON of an answer, and the tensors' bytes behind it."""
    pieces, items = list[Any](), list[dict[str, Any]]()
    for each in given:
        item: dict[str, Any] = {"name": each.name, "datatype": each.kind.name, "shape": each.shape}
        if each.array is None:
            item["parameters"] = each.parameters
        elif binary if each.binary is None else each.binary:
            data = tensors.to_bytes(each.array)
            item["parameters"] = {"binary_data_size": len(data)}
            pieces.append(data)
        else:
            item["data"] = tensors.to_list(each.array)
        items.append(item)
    answer: dict[str, Any] = {"model_name": version.name, "model_version": str(version.version),
                              "outputs": items}
    if identity:
        answer["id"] = identity
    return _text(answer), pieces


_encoder = json.JSONEncoder(separators=(",", ":"), check_circular=False)


def _text(data: Any) -> bytes:
    return _encoder.encode(data).encode()


async def _packed(takes: bytes, headers: Headers, pieces: list[Any]) -> list[Any]:
    """An answer as the client takes it."""
    size = sum(map(len, pieces))
    names = {part.split(b";")[0].strip() for part in takes.lower().split(b",") if b"q=0" not in part
             or b"q=0." in part}
    coding = next((name for name in (b"gzip", b"deflate") if name in names), None)
    if coding is None or size < WORTH:
        return pieces
    packer = zlib.compressobj(1, wbits=31 if coding == b"gzip" else 15)

    def pack() -> bytes:
        return b"".join([*map(packer.compress, pieces), packer.flush()])
    headers.append((b"content-encoding", coding))
    return [pack() if size < SMALL else await asyncio.to_thread(pack)]


def _refused(refusal: Refusal) -> tuple[int, Headers, list[Any]]:
    headers = list(JSON)
    if refusal.retry_after is not None:
        headers.append((b"retry-after", b"%d" % max(1, round(refusal.retry_after))))
    if refusal.kind in (Kind.LARGE, Kind.SLOW):
        headers.append((b"connection", b"close"))
    return refusal.kind.http, headers, [_text({"error": refusal.text})]


async def _answer(send: Send, status: int, headers: Headers, pieces: list[Any]) -> None:
    size = sum(map(len, pieces))
    headers.append((b"content-length", b"%d" % size))
    if size < SMALL and len(pieces) > 1:
        pieces = [b"".join(pieces)]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    last = len(pieces) - 1
    for i, piece in enumerate(pieces):
        await send({"type": "http.response.body", "body": piece, "more_body": i < last})
