"""The compile service: what answers the C library that takes onnxruntime's place.

In: a control socket of the process that started it, over which pairs of a socket and a room come, one for
each conversation; and in these, requests as wire.py reads them. Out: answers: an error code of the C
interface and a text, what was logged meanwhile, and behind them what was asked for. It lives as long as
somebody holds the other end of the control socket, and says there once a second that it does; after a
minute in which nobody asked for anything and nobody's model runs here, it ends, and is started again when
it is needed.
"""

from __future__ import annotations

import contextlib
import importlib
import itertools
import logging
import os
import select
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable

from ... import knobs
from ...api.logs import LEVELS
from ...api.options import RunOptions
from ...api.profile import ProfileFile
from ...codegen.object import cache
from ...errors import ALL
from ...locks import lock
from . import files
from .models import Model, pairs
from .wire import Reader, Room, Writer

(NOTHING, OPEN, PACKAGE, RUN, CANCEL, CLOSE, END_PROFILING, DYNAMIC_OPTIONS, ASSIGNED, COMPATIBILITY, ADAPTER,
 COMPILE) = range(12)
"""What a request is; service.h has the same numbers."""
_FAIL, _INVALID_ARGUMENT = 1, 2
_HEAD = struct.Struct("<q")
_LARGEST = 1 << 40
_BEAT, _IDLE = 1.0, 60.0


def serve(control: socket.socket, stamp: str) -> str:
    """Answer until nobody is there any more; or why nothing is answered at all. `stamp`: the sources that the
    library was built from."""
    if stamp != cache.stamp():
        return ("the library was built by another version of orthrus than this Python has; "
                "orthrus capi build builds it again")
    knobs.CACHE_SESSIONS.value = 0
    logging.getLogger().addHandler(_Told(logging.NOTSET))
    cache.secret()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in filter(None, map(str.strip, knobs.IMPORT.value.split(","))):
        try:
            importlib.import_module(name)
        except Exception as error:
            return f"ORTHRUS_IMPORT: {name} cannot be imported: {type(error).__name__}: {error}"
    own = control.dup()
    os.dup2(os.open(os.devnull, os.O_RDONLY), control.detach())
    Service(own).listen()
    os._exit(0)


class _Told(logging.Handler):
    """Keeps what is logged while a thread answers, for the library to hand on; writes the rest to stderr."""

    here = threading.local()

    def emit(self, record: logging.LogRecord) -> None:
        text = self.format(record)
        records: list[tuple[int, str, str]] | None = getattr(self.here, "records", None)
        if records is None:
            print(text, file=sys.stderr, flush=True)
            return
        severity = sum(record.levelno >= level for level in LEVELS) - 1
        records.append((max(severity, 0), f"{record.filename}:{record.lineno} {record.funcName}", text))


class Service:
    """The models that are open, and the conversations."""

    def __init__(self, control: socket.socket) -> None:
        self.control, self._numbers = control, itertools.count(1)
        self.models: dict[int, Model] = {}
        self.runs: dict[int, RunOptions] = {}
        self.called_off: set[int] = set()
        self.busy, self.asked = 0, time.monotonic()
        self.lock = lock()

    def listen(self) -> None:
        """Take in conversations until the other side is gone, or has no need of this."""
        self.control.setblocking(False)
        with contextlib.suppress(ConnectionError):
            self._listen()

    def _listen(self) -> None:
        while True:
            with contextlib.suppress(BlockingIOError):
                self.control.send(b".")
            if select.select([self.control], [], [], _BEAT)[0]:
                data, handles, _, _ = socket.recv_fds(self.control, 1, 2, socket.MSG_CMSG_CLOEXEC)
                if not data:
                    return
                self._begin(handles)
            elif not self.models and not self.busy and time.monotonic() - self.asked > _IDLE:
                return

    def _begin(self, handles: list[int]) -> None:
        if len(handles) == 2:
            threading.Thread(target=self._converse, args=(socket.socket(fileno=handles[0]), Room(handles[1])),
                             name="orthrus-channel", daemon=True).start()

    def _converse(self, channel: socket.socket, room: Room) -> None:
        with contextlib.closing(channel), contextlib.closing(room), contextlib.suppress(EOFError, OSError):
            while True:
                data, attached = _received(channel)
                with self.lock:
                    self.busy += 1
                room.end = 0
                try:
                    channel.sendall(self._answered(data, attached, room))
                finally:
                    with self.lock:
                        self.busy -= 1
                        self.asked = time.monotonic()

    def _answered(self, data: bytes, attached: int | None, room: Room) -> bytes:
        _Told.here.records = []
        try:
            reader, writer = Reader(data, room), Writer(room)
            self._do(reader, writer, attached)
            said = _said(0, "") + writer.whole()
        except BaseException as error:
            code = getattr(error, "code", _FAIL) if isinstance(error, ALL) else _FAIL
            if isinstance(error, ValueError | TypeError):
                code = _INVALID_ARGUMENT
            said = _said(code, _text(error))
        finally:
            if attached is not None:
                with contextlib.suppress(OSError):
                    os.close(attached)
        return _HEAD.pack(len(said)) + said

    def _do(self, reader: Reader, writer: Writer, attached: int | None) -> None:
        what = reader.number()
        if what == OPEN:
            self._open(reader, writer, attached)
        elif what == CANCEL:
            run = reader.number()
            self.called_off.add(run)
            if run in self.runs:
                self.runs[run].terminate = True
        elif what == NOTHING:
            return
        elif what in _ALONE:
            _ALONE[what](reader, writer)
        elif what in _WITH_MODEL:
            number = reader.number()
            model = self.models.get(number)
            if model is None:
                raise ValueError("the model was closed")
            _WITH_MODEL[what](self, number, model, reader, writer)
        else:
            raise ValueError(f"nothing is asked for by {what}")

    def _open(self, reader: Reader, writer: Writer, attached: int | None) -> None:
        model = Model(reader, attached)
        with self.lock:
            number = next(self._numbers)
            self.models[number] = model
        writer.number(number)
        model.describe(writer)

    def _package(self, number: int, model: Model, reader: Reader, writer: Writer) -> None:
        shapes = [tuple(reader.number() for _ in range(reader.count())) for _ in range(reader.count())]
        made = model.package(shapes)
        for text in (made.name, made.older, made.why):
            writer.text(text)
        data = made.unkept
        writer.number(-1 if data is None else reader.room.put(data))
        writer.number(0 if data is None else len(data))

    def _run(self, number: int, model: Model, reader: Reader, writer: Writer) -> None:
        run, options = reader.number(), RunOptions()
        options.log_severity_level, options.logid = reader.number(), reader.text()
        if prefix := reader.text():
            options._profile = ProfileFile(prefix)
        for _ in range(reader.count()):
            options.add_run_config_entry(reader.text(), reader.text())
        self.runs[run] = options
        try:
            if run in self.called_off:
                options.terminate = True
            model.run(options, reader, writer)
        finally:
            if options._profile is not None:
                options._profile.end()
            del self.runs[run]
            self.called_off.discard(run)

    def _end_profiling(self, number: int, model: Model, reader: Reader, writer: Writer) -> None:
        writer.text(model.session.end_profiling())

    def _dynamic_options(self, number: int, model: Model, reader: Reader, writer: Writer) -> None:
        model.core.set_ep_dynamic_options(pairs(reader))

    def _assigned(self, number: int, model: Model, reader: Reader, writer: Writer) -> None:
        found = model.core.get_provider_graph_assignment_info()
        writer.number(len(found))
        for subgraph in found:
            nodes = subgraph.get_nodes()
            writer.text(subgraph.ep_name)
            writer.number(len(nodes))
            for node in nodes:
                for text in (node.domain, node.op_type, node.name):
                    writer.text(text)

    def _close(self, number: int, model: Model, reader: Reader, writer: Writer) -> None:
        del self.models[number]
        model.close()


_WITH_MODEL: dict[int, Callable[[Service, int, Model, Reader, Writer], None]] = {
    PACKAGE: Service._package, RUN: Service._run, CLOSE: Service._close,
    END_PROFILING: Service._end_profiling, DYNAMIC_OPTIONS: Service._dynamic_options,
    ASSIGNED: Service._assigned}
_ALONE: dict[int, Callable[[Reader, Writer], None]] = {
    COMPATIBILITY: files.compatibility, ADAPTER: files.adapter, COMPILE: files.compiled}


def _text(error: BaseException) -> str:
    """What an error says, without the words that onnxruntime's Python interface puts in front."""
    text = str(error) or type(error).__name__
    status = getattr(error, "status", "")
    return text.partition(f" : {status} : ")[2] if isinstance(error, ALL) else text


def _said(code: int, text: str) -> bytes:
    head = Writer(None)
    head.number(code)
    head.text(text)
    head.number(len(_Told.here.records))
    for severity, place, message in _Told.here.records:
        head.number(severity)
        head.text(place)
        head.text(message)
    return head.whole()


def _received(channel: socket.socket) -> tuple[bytes, int | None]:
    """A message, and the descriptor that came with it. Raises EOFError."""
    head, handles, _, _ = socket.recv_fds(channel, _HEAD.size, 1, socket.MSG_CMSG_CLOEXEC)
    while len(head) < _HEAD.size:
        more = channel.recv(_HEAD.size - len(head)) if head else b""
        if not more:
            raise EOFError
        head += more
    (size,) = _HEAD.unpack(head)
    if not 0 <= size <= _LARGEST:
        raise EOFError
    data = bytearray(size)
    view = memoryview(data)
    while view:
        count = channel.recv_into(view)
        if not count:
            raise EOFError
        view = view[count:]
    return bytes(data), handles[0] if handles else None
