"""A connection over HTTP whose large bodies are read from the socket into the memory where they are used.

In: bytes of a connection, for which uvicorn's own protocol stands: it parses heads, small bodies and whatever
is not plain, and writes the answers. Out: the same requests; one with a large body of a length that is known
has `PLACED` in its scope, by which the application says where the body goes. Nothing of a body is read before
that, and no more of it than its length.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from .body import OTHERS, PLACED

LARGE = 1 << 16
"""Bytes of a body from which on it is placed; below, its way through the parser costs less than the rest."""
MOST_DIGITS = 18


class _Scratch(threading.local):
    """Where what is not placed is read, one for all connections of an event loop: a read is over when the
    loop comes to the next."""

    def __init__(self) -> None:
        self.view = memoryview(bytearray(LARGE))


_scratch = _Scratch()


class Connection(asyncio.BufferedProtocol):
    """What the transport talks to."""

    def __init__(self, **given: Any) -> None:
        self._http = _Requests(**given)
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


class _Requests(HttpToolsProtocol):  # type: ignore[misc]
    """uvicorn's protocol, which lets a body pass beside its parser. `left`: the part of a body's memory that
    is not filled yet, where one is being read."""

    left: memoryview | None = None

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.scope["extensions"] = {OTHERS: self.tasks}

    def on_headers_complete(self) -> None:
        alone = self.cycle is None or self.cycle.response_complete
        super().on_headers_complete()
        length, plain = 0, alone and not self.expect_100_continue and not self.parser.should_upgrade()
        for name, value in self.headers:
            if name == b"content-length":
                length = int(value) if value.isdigit() and len(value) <= MOST_DIGITS else 0
            elif name == b"transfer-encoding":
                plain = False
        if plain and length >= LARGE:
            self.scope["extensions"][PLACED] = self._place
            self.flow.pause_reading()

    async def _place(self, view: memoryview) -> bool:
        cycle = self.cycle
        came = len(cycle.body)
        view[:came] = cycle.body
        cycle.body.clear()
        if came < len(view) and not cycle.disconnected:
            self.left = view[came:]
            self.flow.resume_reading()
            while self.left is not None and not cycle.disconnected:
                cycle.message_event.clear()
                await cycle.message_event.wait()
        return not cycle.more_body

    def placed(self, count: int) -> None:
        """So many bytes more have come."""
        assert self.left is not None
        self._unset_keepalive_if_required()
        self.left = self.left[count:]
        if not self.left:
            self.left = None
            self.parser = httptools.HttpRequestParser(self)
            with contextlib.suppress(AttributeError):
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
            self.cycle.more_body = False
            self.cycle.message_event.set()

    def on_response_complete(self) -> None:
        if self.left is not None:
            self.left = None
            self.transport.close()
        super().on_response_complete()
