"""A connection over HTTP: inferences are answered where they are read, all else is uvicorn's.

In: bytes of a connection, for which uvicorn's own protocol stands: it parses heads, and has whatever is not
a plain inference answered over ASGI. Out: answers in the order of their requests. An inference of a length
that is known is no ASGI request and no task: its body is handed over once it is whole, and a large one is
read from the socket into the memory where it is used, no more of it than its length. A head that was parsed
before, byte for byte, with nothing else before or behind it, is known again without the parser.

What is no HTTP, or a head too long or too slow, is answered behind the requests in front of it, and ends the
connection.
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

from ..refusals import Kind, Refusal, invalid
from .asked import MOST_HEADS, Head, Headers
from .body import LENGTH, aligned, slow
from .http import Http, failed, near

LARGE = 1 << 16
"""Bytes that are read at once, and of an answer that is not joined to one piece."""
MOST_DIGITS, LONGEST = 18, 2048
"""Of a body's length; bytes of a head that is kept."""
END = b"\r\n\r\n"
MOST_HEAD = 1 << 16
"""Bytes that may come one after the other of a head, or between the pieces of a body."""
LINGER, MOST_PASSED = 2.0, 1 << 22
"""Seconds, and bytes, that are passed over behind a refusal which ends a connection."""


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

    def eof_received(self) -> bool:
        return self._http.answers_still()

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
    """`left`: the part of a body's memory that is not filled yet, where one is being read, and a byte behind
    it. That byte is never read but where a client sends its next request without waiting: a read that leaves
    room is the socket's last one of this turn of the loop, so that no client is answered again and again
    while others wait."""

    app: Http
    left: memoryview | None = None

    def __init__(self, heads: dict[bytes, Head], **given: Any) -> None:
        super().__init__(**given)
        self._heads = heads
        self._placing: memoryview | None = None
        self._begun, self._between = 0, True
        self._fresh: _Direct | None = None
        self._open, self._vain, self._moved, self._heading = 0, 0, False, False
        self._overdue: asyncio.TimerHandle | None = None
        self._refused: tuple[int, Headers, list[Any]] | None = None
        self._passed_over = 0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._near = near(self.client)
        self.timeout_keep_alive_task = self.loop.call_later(
            self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def connection_lost(self, exc: Exception | None) -> None:
        self._unset_keepalive_if_required()
        super().connection_lost(exc)
        self.left = self._placing = None
        self._whole_message()
        if isinstance(self.cycle, _Direct) and self.cycle.reading:
            self._let_go(self.cycle)

    def answers_still(self) -> bool:
        """Nothing more will come; whether requests that came whole are still to be answered. The connection
        ends with the last one's answer."""
        if not self._open or self._refused is not None or self._reading():
            return False
        self.cycle.keep_alive = False
        return True

    def data_received(self, data: bytes) -> None:
        if self._refused is not None:
            self._passed_over += len(data)
            if self._passed_over > MOST_PASSED:
                self.transport.close()
            return
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
        between, self._begun, self._fresh, self._moved = self._between, 0, None, False
        super().data_received(data)
        if not self._between:
            self._partly(len(data))
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

    def _partly(self, count: int) -> None:
        """So many bytes came of a message that is not whole."""
        if self._overdue is None:
            self._overdue = self.loop.call_later(self.app.bounds.seconds, self._too_slow)
        self._vain = 0 if self._moved else self._vain + count
        if self._vain > MOST_HEAD:
            self._refuse(Refusal(Kind.HEAD, f"more than {MOST_HEAD} bytes of a head, or between the pieces "
                                            "of a body"))

    def _whole_message(self) -> None:
        if self._overdue is not None:
            self._overdue.cancel()
            self._overdue = None
        self._vain = 0

    def _too_slow(self) -> None:
        """A message is not whole in time. A body that is read is refused by who reads it."""
        self._overdue = None
        if self._heading:
            self._refuse(slow(self.app.bounds))
        elif not self._reading():
            self.transport.close()

    def _reading(self) -> bool:
        """Whether the newest request waits for the rest of its body."""
        newest = self.cycle
        return newest is not None and not newest.response_complete and bool(
            newest.reading if isinstance(newest, _Direct) else newest.more_body)

    def send_400_response(self, msg: str) -> None:
        self._refuse(invalid(msg))

    def _unsupported_upgrade_warning(self) -> None:
        """The connection ends with the answer: what comes behind a request for another protocol would be of
        that."""
        self.cycle.keep_alive = False

    def _refuse(self, refusal: Refusal) -> None:
        """Say so once the requests in front have been answered, and take nothing more."""
        if self._refused is not None or self.transport.is_closing():
            return
        self._refused = failed(refusal)
        self._whole_message()
        if self._reading():
            self._open -= 1
            if self.pipeline and self.pipeline[0][0] is self.cycle:
                self.pipeline.popleft()
            elif getattr(self.cycle, "response_started", False):
                self.transport.close()
                return
        if self._open:
            self.flow.pause_reading()
        else:
            self._last_words(*self._refused)

    def _last_words(self, status: int, headers: Headers, pieces: list[Any]) -> None:
        """Answer, and end the connection where its client does, or soon: at once, what it still sends would
        have the system throw away what was answered."""
        if not self.transport.is_closing():
            self.transport.write(_head(status, headers, sum(map(len, pieces)), False) + b"".join(pieces))
            self.transport.write_eof()
            self.flow.resume_reading()
            self._unset_keepalive_if_required()
            self.timeout_keep_alive_task = self.loop.call_later(LINGER, self.transport.close)

    def on_response_complete(self) -> None:
        self._open -= 1
        super().on_response_complete()
        if self._refused is not None and not self._open:
            self._last_words(*self._refused)

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
        self._begun, self._between, self._heading = self._begun + 1, False, True
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._heading, self._moved = False, True
        head = self._head()
        if head is None or not self._free() or not self._taken(head):
            super().on_headers_complete()
        else:
            self.cycle = self._fresh = _Direct(head)
        self._open += 1

    def on_body(self, body: bytes) -> None:
        self._moved = True
        if isinstance(self.cycle, _Direct) and self.cycle.reading:
            self.cycle.body += body
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._between = self._moved = True
        self._whole_message()
        direct = self.cycle
        if isinstance(direct, _Direct) and direct.reading:
            self._whole(direct, direct.body)
        else:
            super().on_message_complete()

    def _begin(self, head: Head, body: bytes) -> None:
        direct = self.cycle = _Direct(head)
        self._open += 1
        if len(body) == head.length:
            self._whole(direct, body)
        else:
            self._place(direct, body)

    def _place(self, direct: _Direct, body: bytes) -> None:
        """Read the rest of a body behind what came of it."""
        view = aligned(direct.head.length + 1, direct.head.split)
        view[:len(body)] = body
        self._placing, self.left = view, view[len(body):]
        direct.late = self.loop.call_later(self.app.bounds.seconds, self._late, direct)

    def placed(self, count: int) -> None:
        """So many bytes more have come."""
        assert self.left is not None
        self.left = self.left[count:]
        if len(self.left) > 1:
            return
        view, direct, over = self._placing, self.cycle, not self.left
        self._placing = self.left = None
        assert view is not None
        if direct.late is not None:
            direct.late.cancel()
        if not self._between:
            self._between = True
            self._whole_message()
            self.parser = httptools.HttpRequestParser(self)
            with contextlib.suppress(AttributeError):
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._whole(direct, view[:-1])
        if over:
            self.data_received(bytes(view[-1:]))

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
        direct.keep_alive = direct.keep_alive and (b"connection", b"close") not in headers
        head = _head(status, headers, size, direct.keep_alive)
        if size < LARGE:
            self.transport.write(b"".join([head, *pieces]))
        else:
            self.transport.write(head + pieces[0])
            for piece in pieces[1:]:
                self.transport.write(piece)
        if not direct.keep_alive:
            self.transport.close()
        self.on_response_complete()


def _head(status: int, headers: Headers, size: int, keep: bool) -> bytes:
    """An answer's head. `keep`: the connection stays."""
    lines = [b"%b: %b\r\n" % each for each in headers if each[0] != b"connection"]
    return b"%b%bcontent-length: %d\r\n%b\r\n" % (
        STATUS_LINE[status], b"".join(lines), size, b"" if keep else b"connection: close\r\n")
