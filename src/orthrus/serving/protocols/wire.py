"""A connection over HTTP: inferences are answered where they are read, all else is uvicorn's.

In: bytes of a connection, for which uvicorn's own protocol stands: it parses heads, and has whatever is not
a plain inference answered over ASGI. Out: answers in the order of their requests. An inference of a length
that is known is no ASGI request and no task: its body is handed over once it is whole, and a large one is
read from the socket into the memory where it is used, no more of it than its length. A head that was parsed
before, byte for byte, with nothing else before or behind it, is known again without the parser.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from functools import partial
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from .asked import MOST_HEADS, Head, Headers
from .body import LENGTH, aligned, slow
from .http import Http, failed, near

LARGE = 1 << 16
"""Bytes that are read at once, and of an answer that is not joined to one piece."""
MOST_DIGITS, LONGEST = 18, 2048
"""Of a body's length; bytes of a head that is kept."""
END = b"\r\n\r\n"


class _Scratch(threading.local):
    """Where what is not placed is read, one for all connections of an event loop: a read is over when the
    loop comes to the next."""

    def __init__(self) -> None:
        self.view = memoryview(bytearray(LARGE))


_scratch = _Scratch()


class Connection(asyncio.BufferedProtocol):
    """What the transport talks to. `heads`: those that are known, of all connections of a server."""

    def __init__(self, heads: dict[bytes, Head], **given: Any) -> None:
        self._http = _Requests(heads, **given)
        self._scratch = memoryview(bytearray(LARGE)) if sys.platform == "win32" else _scratch.view

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._http.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._http.connection_lost(exc)

    def eof_received(self) -> None:
        self._http.eof_received()

    def pause_writing(self) -> None:
        self._http.pause_writing()

    def resume_writing(self) -> None:
        self._http.resume_writing()

    def get_buffer(self, sizehint: int) -> memoryview:
        left = self._http.left
        return self._scratch if left is None else left

    def buffer_updated(self, nbytes: int) -> None:
        if self._http.left is None:
            self._http.data_received(bytes(self._scratch[:nbytes]))
        else:
            self._http.placed(nbytes)


class _Nobody:
    """Waits for nothing."""

    def set(self) -> None:
        pass


class _Direct:
    """An inference on its way. uvicorn's protocol takes it for a request of its own: `response_complete`,
    `disconnected`, `keep_alive` and `message_event` are that's. `body`: what of it the parser gave;
    `reading`: it is not whole."""

    __slots__ = ("body", "disconnected", "head", "keep_alive", "late", "reading", "response_complete")
    message_event = _Nobody()

    def __init__(self, head: Head) -> None:
        self.head, self.keep_alive, self.body = head, head.keep, b""
        self.disconnected = self.response_complete = False
        self.reading = True
        self.late: asyncio.TimerHandle | None = None


class _Requests(HttpToolsProtocol):  # type: ignore[misc]
    """`left`: the part of a body's memory that is not filled yet, where one is being read."""

    app: Http
    left: memoryview | None = None

    def __init__(self, heads: dict[bytes, Head], **given: Any) -> None:
        super().__init__(**given)
        self._heads = heads
        self._placing: memoryview | None = None
        self._begun, self._between = 0, True
        self._fresh: _Direct | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._near = near(self.client)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.left = self._placing = None
        if isinstance(self.cycle, _Direct) and self.cycle.reading:
            self._let_go(self.cycle)

    def data_received(self, data: bytes) -> None:
        self._unset_keepalive_if_required()
        while self._between and self._free():
            end = data.find(END) + len(END)
            head = self._heads.get(data[:end])
            if head is None or not self._taken(head):
                break
            behind = end + head.length
            self._begin(head, data[end:behind])
            if behind >= len(data):
                return
            data = data[behind:]
        between, self._begun, self._fresh = self._between, 0, None
        super().data_received(data)
        direct = self._fresh
        if direct is not None:
            end = data.find(END) + len(END)
            if (between and self._begun == 1 and len(data) - end == len(direct.body) and end <= LONGEST
                    and data[:1] == b"P"):
                if len(self._heads) >= MOST_HEADS:
                    del self._heads[next(iter(self._heads))]
                self._heads[data[:end]] = direct.head
            if direct.reading and self.cycle is direct and not direct.disconnected:
                self._place(direct, direct.body)
            direct.body = b""

    def _free(self) -> bool:
        """Whether nothing is before a request that begins now."""
        return ((self.cycle is None or self.cycle.response_complete) and not self.flow.write_paused
                and not self.transport.is_closing())

    def _taken(self, head: Head) -> bool:
        """Whether an inference goes its own way, and its bytes are held."""
        return len(self.connections) < self.limit_concurrency and self.app.hold(head)

    def _head(self) -> Head | None:
        """What a head asks for, where that is a plain inference."""
        if self.parser.get_method() != b"POST" or self.expect_100_continue or self.parser.should_upgrade():
            return None
        match self.url.split(b"/"):
            case [b"", b"v2", b"models", name, b"infer"]:
                version = b""
            case [b"", b"v2", b"models", name, b"versions", version, b"infer"]:
                pass
            case _:
                return None
        headers = dict(self.headers)
        length = headers.get(b"content-length", b"")
        if (b"%" in self.url or b"transfer-encoding" in headers or b"content-encoding" in headers
                or not length.isdigit() or len(length) > MOST_DIGITS):
            return None
        keep = self.parser.get_http_version() != "1.0" and self.parser.should_keep_alive()
        return Head(name.decode("latin-1"), version.decode("latin-1"), int(length), headers.get(LENGTH),
                    headers.get(b"accept-encoding"), keep)

    def on_message_begin(self) -> None:
        self._begun, self._between = self._begun + 1, False
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        head = self._head()
        if head is None or not self._free() or not self._taken(head):
            super().on_headers_complete()
        else:
            self.cycle = self._fresh = _Direct(head)

    def on_body(self, body: bytes) -> None:
        if isinstance(self.cycle, _Direct) and self.cycle.reading:
            self.cycle.body += body
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._between = True
        direct = self.cycle
        if isinstance(direct, _Direct) and direct.reading:
            self._whole(direct, direct.body)
        else:
            super().on_message_complete()

    def _begin(self, head: Head, body: bytes) -> None:
        direct = self.cycle = _Direct(head)
        if len(body) == head.length:
            self._whole(direct, body)
        else:
            self._place(direct, body)

    def _place(self, direct: _Direct, body: bytes) -> None:
        """Read the rest of a body behind what came of it."""
        view = aligned(direct.head.length, direct.head.split)
        view[:len(body)] = body
        self._placing, self.left = view, view[len(body):]
        direct.late = self.loop.call_later(self.app.bounds.seconds, self._late, direct)

    def placed(self, count: int) -> None:
        """So many bytes more have come."""
        assert self.left is not None
        self.left = self.left[count:]
        if self.left:
            return
        view, direct = self._placing, self.cycle
        self._placing = self.left = None
        assert view is not None
        if direct.late is not None:
            direct.late.cancel()
        if not self._between:
            self._between = True
            self.parser = httptools.HttpRequestParser(self)
            with contextlib.suppress(AttributeError):
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._whole(direct, view)

    def _late(self, direct: _Direct) -> None:
        self.left = self._placing = None
        direct.reading = False
        self._answer(direct, *failed(slow(self.app.bounds)))

    def _whole(self, direct: _Direct, body: bytes | memoryview) -> None:
        direct.reading = False
        self.app.direct(direct.head, body, self._near, partial(self._answer, direct))

    def _let_go(self, direct: _Direct) -> None:
        direct.reading = False
        if direct.late is not None:
            direct.late.cancel()
        self.app.let_go(direct.head)

    def _answer(self, direct: _Direct, status: int, headers: Headers, pieces: list[Any]) -> None:
        self._let_go(direct)
        direct.response_complete = True
        if direct.disconnected or self.transport.is_closing():
            return
        size = sum(map(len, pieces))
        content = [STATUS_LINE[status]]
        for name, value in headers:
            if name == b"connection":
                direct.keep_alive = False
            else:
                content += (name, b": ", value, b"\r\n")
        content.append(b"content-length: %d\r\n" % size + (
            b"\r\n" if direct.keep_alive else b"connection: close\r\n\r\n"))
        if size < LARGE:
            self.transport.write(b"".join(content + pieces))
        else:
            self.transport.write(b"".join([*content, pieces[0]]))
            for piece in pieces[1:]:
                self.transport.write(piece)
        if not direct.keep_alive:
            self.transport.close()
        self.on_response_complete()
