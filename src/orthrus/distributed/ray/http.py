"""A replica's requests over HTTP: JSON in, JSON or a line of it for each token out.

In: a request of Starlette's. Out: its response. A request is refused with a status of its own: 400 for what
does not fit, 404 for a model that is not there, 405 for another method, 413 for too large a body.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import numpy as np

from ...errors import InvalidArgument, NotFound

_HOW = frozenset({"max_new_tokens", "stop", "temperature", "top_k", "top_p", "seed", "start"})


class _TooLarge(Exception):
    pass


async def answered(replica: Any, request: Any) -> Any:
    """The response of a replica (`serve.Replica`) to a request."""
    from starlette.responses import JSONResponse, StreamingResponse

    if request.method != "POST":
        return JSONResponse({"error": f"{request.method} is not POST"}, 405, {"allow": "POST"})
    try:
        asked = _asked(await _body(request, replica.max_request_bytes))
        if "inputs" in asked:
            found = await replica.predict(asked["inputs"])
            return JSONResponse({"outputs": {name: _plain(column) for name, column in found.items()}})
        count = asked.get("max_new_tokens", 0)
        if count > replica.max_tokens:
            raise InvalidArgument(
                "max_new_tokens is too large", found=count, expected=f"max_tokens, {replica.max_tokens}"
            )
        tokens = replica.stream(asked.pop("prompt"), **asked)
        first = await anext(tokens, None)  # what is wrong shows before the response begins
    except _TooLarge as error:
        return JSONResponse({"error": str(error)}, 413)
    except NotFound as error:
        return JSONResponse({"error": str(error)}, 404)
    except InvalidArgument as error:
        return JSONResponse({"error": str(error)}, 400)
    return StreamingResponse(_lines(first, tokens), media_type="application/x-ndjson")


async def _body(request: Any, limit: int) -> bytes:
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > limit:
            raise _TooLarge(f"the body has more than max_request_bytes, {limit} bytes")
        parts.append(part)
    return b"".join(parts)


def _asked(body: bytes) -> dict[str, Any]:
    """What a body asks for: `inputs`, or `prompt` and how. Raises InvalidArgument."""
    try:
        asked = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise InvalidArgument("the body is no JSON", found=str(error)) from None
    expected = '{"inputs": {column: rows}}, or {"prompt": tokens or text} with ' + ", ".join(sorted(_HOW))
    if not isinstance(asked, dict):
        raise InvalidArgument("the body is no object", found=type(asked).__name__, expected=expected)
    if asked.keys() != {"inputs"} and asked.keys() - _HOW != {"prompt"}:
        found = ", ".join(map(repr, asked)) or "nothing"
        raise InvalidArgument("the body has other keys", found=found, expected=expected)
    if "inputs" in asked and not isinstance(asked["inputs"], dict):
        found = type(asked["inputs"]).__name__
        raise InvalidArgument("inputs are no columns", found=found, expected=expected)
    for name in _HOW & asked.keys():
        stops = name == "stop" and isinstance(asked[name], list)
        for value in asked[name] if stops else [asked[name]]:
            number = int | float if name in ("temperature", "top_p") else int
            if not isinstance(value, number) or isinstance(value, bool):
                raise InvalidArgument(f"{name} is no number", found=repr(value)[:40])
    _prompt(asked.get("prompt", [0]))
    return asked


def _prompt(prompt: Any) -> None:
    several = isinstance(prompt, list) and prompt and isinstance(prompt[0], list | str)
    for row in prompt if several else [prompt]:
        tokens = isinstance(row, list) and all(type(each) is int and 0 <= each < 1 << 31 for each in row)
        if not row or not (tokens or isinstance(row, str)):
            raise InvalidArgument(
                "prompt does not fit", found=repr(row)[:40], expected="a text, tokens, or a list of either"
            )


def _plain(column: np.ndarray) -> list[Any]:
    """A column as JSON has it. Raises InvalidArgument for numbers that it has not."""
    for part in column if column.dtype == object else [column]:
        if isinstance(part, np.ndarray) and part.dtype.kind == "f" and not np.isfinite(part).all():
            raise InvalidArgument(
                "an output has values that JSON has no numbers for",
                found="NaN or an infinity",
                cure="ask through a handle, which gives arrays",
            )
    return [row.tolist() if isinstance(row, np.ndarray | np.generic) else row for row in column]


async def _lines(first: Any, tokens: AsyncIterator[Any]) -> AsyncIterator[bytes]:
    token = first
    while token is not None:
        yield json.dumps(token._asdict()).encode() + b"\n"
        token = await anext(tokens, None)
