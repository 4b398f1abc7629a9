"""A request's body over HTTP, read within its bounds.

In: the messages of an ASGI server. Out: the bytes, unpacked; where tensors lie behind JSON, at places in
memory where a session takes them as they are. What is too large, too slow, or over what all requests may hold
is refused before it is held.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import numpy as np

from ...records import dataclass
from ..budget import Share
from ..refusals import Kind, Refusal, invalid, large

Receive = Callable[[], Awaitable[Mapping[str, Any]]]
LENGTH = b"inference-header-content-length"
MOST_UNPACKED = 1032
"""Bytes that a byte of deflate becomes at most."""
LINE = 64
LEFT = "the client left before its request was whole"


@dataclass(frozen=True)
class Bounds:
    """`body`: bytes of a request, unpacked. `json`: bytes of its JSON. `seconds`: a request has to have
    arrived after so many."""

    body: int = 256 << 20
    json: int = 32 << 20
    seconds: float = 30.0


async def body_of(headers: Mapping[bytes, bytes], receive: Receive, bounds: Bounds, share: Share
                  ) -> bytes | memoryview:
    """A request's body. Raises Refusal."""
    declared = headers.get(b"content-length", b"")
    size = int(declared) if declared.isdigit() and len(declared) < 20 else 0
    if size > bounds.body:
        raise large("a body", size, bounds.body)
    share.take(size)
    try:
        async with asyncio.timeout(bounds.seconds):
            message = await receive()
            body: bytes | memoryview = _piece(message)
            if message.get("more_body"):
                body = await (_placed(body, size, headers.get(LENGTH), receive) if size
                              else _joined(body, receive, bounds, share))
    except TimeoutError:
        raise slow(bounds) from None
    share.take(len(body))
    coding = headers.get(b"content-encoding")
    if coding is not None and coding != b"identity":
        share.take(min(bounds.body, MOST_UNPACKED * len(body)))
        body = await asyncio.to_thread(_unpacked, body, coding, bounds.body)
    return body


def slow(bounds: Bounds) -> Refusal:
    return Refusal(Kind.SLOW, f"the request had not arrived after {bounds.seconds:g} s")


def _piece(message: Mapping[str, Any]) -> bytes:
    if message["type"] != "http.request":
        raise invalid(LEFT)
    return message.get("body", b"")


def aligned(size: int, split: bytes | None) -> memoryview:
    """Memory for a body that has the end of its JSON, where its header says one, at the start of a line of
    the cache."""
    place = int(split) if split is not None and split.isdigit() and len(split) < 19 else 0
    buffer = np.empty(size + LINE, np.uint8)
    start = -(buffer.__array_interface__["data"][0] + place) % LINE
    return buffer.data[start:start + size]


async def _placed(first: bytes | memoryview, size: int, split: bytes | None, receive: Receive
                  ) -> memoryview:
    """A body of a size that is known."""
    view = aligned(size, split)
    piece, place, more = first, 0, True
    while True:
        if place + len(piece) > size:
            raise invalid(f"the body has more bytes than the {size} it says")
        view[place:place + len(piece)] = piece
        place += len(piece)
        if not more:
            return view[:place]
        message = await receive()
        piece, more = _piece(message), bool(message.get("more_body"))


async def _joined(first: bytes | memoryview, receive: Receive, bounds: Bounds, share: Share) -> bytes:
    pieces, size, more = [first], len(first), True
    while more:
        message = await receive()
        pieces.append(_piece(message))
        size, more = size + len(pieces[-1]), bool(message.get("more_body"))
        if size > bounds.body:
            raise large("a body", size, bounds.body)
        share.take(size)
    return b"".join(pieces)


def _unpacked(body: bytes | memoryview, coding: bytes, most: int) -> bytes:
    """A packed body; it is not unpacked further than `most` bytes."""
    if coding not in (b"gzip", b"deflate"):
        raise Refusal(Kind.MEDIA, f"Content-Encoding {coding!r:.60} is not taken; gzip and deflate are")
    unpacker = zlib.decompressobj(wbits=31 if coding == b"gzip" else 15)
    try:
        found = unpacker.decompress(body, most + 1)
    except zlib.error as error:
        raise invalid(f"the body is not {coding.decode()}: {error}") from None
    if len(found) > most:
        raise Refusal(Kind.LARGE, f"the body unpacks to more than {most} bytes")
    if not unpacker.eof or unpacker.unused_data:
        raise invalid(f"the body is not one whole {coding.decode()} stream")
    return found
