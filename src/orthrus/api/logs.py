"""The log: Python's `logging`, logger `orthrus`, with onnxruntime's severities 0 (verbose) to 4 (fatal).

A session with a severity of its own is quieter, or more talkative, than the default while it is created.
Where the program has set up no logging, messages go to stderr in onnxruntime's form.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from types import SimpleNamespace, TracebackType
from typing import Any

from .. import knobs
from ..errors import Fail
from ..locks import lock
from ..shown import shown
from .arguments import mismatch

LEVELS = (logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR, logging.CRITICAL)
_LETTERS = dict(zip(LEVELS, "VIWEF", strict=True))
_COLOURS = {"W": "\x1b[0;93m", "E": "\x1b[1;31m", "F": "\x1b[1;37;41m"}

logger = logging.getLogger("orthrus")
_here = threading.local()
_lock = lock()
_default = 2
_talkative: list[int] = []
_callback: Callable[[int, str, str, str, str], Any] | None = None


class _Format(logging.Formatter):
    """`2026-11-21 04:04:29.930572294 [W:orthrus:<id>, file.py:12 function] text`, coloured on a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        seconds = int(record.created)
        fraction = int((record.created - seconds) * 1e9)
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
        letter = _LETTERS.get(record.levelno, "I")
        name = getattr(_here, "name", "") or "Default"
        text = (f"{stamp}.{fraction:09d} [{letter}:orthrus:{name}, {record.filename}:{record.lineno} "
                f"{record.funcName}] {shown(record.getMessage())}")
        if letter in _COLOURS and sys.stderr.isatty():
            return f"{_COLOURS[letter]}{text}\x1b[m"
        return text


class _Threshold(logging.Filter):
    """Drops what is below the severity in force on this thread."""

    def filter(self, record: logging.LogRecord) -> bool:
        return record.levelno >= LEVELS[getattr(_here, "severity", _default)]


class _Stderr(logging.StreamHandler):
    """Calls the program's callback, or writes to stderr, unless the program has a handler of its own."""

    def __init__(self) -> None:
        super().__init__(sys.stderr)
        self.setFormatter(_Format())

    def emit(self, record: logging.LogRecord) -> None:
        if _called(record):
            return
        if not logging.getLogger().handlers:
            # not setStream, which flushes the one before: it may be closed by now
            self.stream = sys.stderr
            super().emit(record)


def _called(record: logging.LogRecord) -> bool:
    """Whether the program's callback took a message. What it raises goes to `sys.unraisablehook`, and the
    message elsewhere, as do messages of the callback itself."""
    callback = _callback
    if callback is None or getattr(_here, "inside", False):
        return False
    _here.inside = True
    try:
        callback(LEVELS.index(record.levelno) if record.levelno in LEVELS else 1, "orthrus",
                 getattr(_here, "name", "") or "Default",
                 f"{record.filename}:{record.lineno} {record.funcName}", record.getMessage())
        return True
    except Exception as error:
        _ignored(error, callback)
        return False
    finally:
        _here.inside = False


def _ignored(error: Exception, callback: Callable[..., Any]) -> None:
    """Tell of what a callback raised, which goes no further. Python's own hook takes only objects that Python
    makes, so that its text is written here."""
    with contextlib.suppress(Exception):
        if sys.unraisablehook is not sys.__unraisablehook__:
            sys.unraisablehook(_Unraisable(
                exc_type=type(error), exc_value=error, exc_traceback=error.__traceback__, err_msg=None,
                object=callback))
        elif sys.stderr is not None:
            print(f"Exception ignored in: {callback!r}", file=sys.stderr)
            traceback.print_exception(error)


class _Unraisable(SimpleNamespace):
    """What a hook of the program takes."""

    exc_type: type[BaseException]
    exc_value: BaseException | None
    exc_traceback: TracebackType | None
    err_msg: str | None
    object: Any


def set_default_logger_callback(callback: Callable[[int, str, str, str, str], Any] | None, severity: int = 2
                                ) -> None:
    """Give messages to a function, in the place of standard error: severity, category, log id, place and
    message. It sets the default severity too; None takes the function away and leaves that as it is.

    Raises RuntimeError for what cannot be called, and for a severity that is none.
    """
    global _callback
    if not isinstance(severity, int):
        raise mismatch("set_default_logger_callback", "(callback: object, severity: int = 2) -> None",
                       callback, severity)
    if not 0 <= severity <= 4:
        raise RuntimeError(f"severity must be 0, verbose, to 4, fatal, found {severity}")
    if callback is not None and not callable(callback):
        raise RuntimeError(f"callback must be callable or None, found {callback!r}")
    set_up()
    _callback = callback
    if callback is not None:
        set_default_logger_severity(int(severity))


def set_up() -> None:
    """Attach filter and handler, once; a level that the program gave the logger before is the default
    severity."""
    global _default
    with _lock:
        if not any(isinstance(f, _Threshold) for f in logger.filters):
            logger.addFilter(_Threshold())
            logger.addHandler(_Stderr())
            if knobs.DEBUG >= 1:
                _default = 1
                logger.setLevel(LEVELS[_default])
            elif logger.level in LEVELS:
                _default = LEVELS.index(logger.level)
            elif logger.level == logging.NOTSET:
                logger.setLevel(LEVELS[_default])


def set_default_logger_severity(severity: int) -> None:
    """The least severity that is reported: 0 verbose, 1 info, 2 warning, 3 error, 4 fatal. Raises
    RuntimeError beyond."""
    global _default
    if isinstance(severity, bool) or not isinstance(severity, int):
        raise mismatch("set_default_logger_severity", "(arg0: int) -> None", severity)
    if not 0 <= severity <= 4:
        raise RuntimeError("Invalid logging severity. 0:Verbose, 1:Info, 2:Warning, 3:Error, 4:Fatal")
    set_up()
    with _lock:
        _default = severity
        logger.setLevel(LEVELS[min([severity, *_talkative])])


def set_default_logger_verbosity(verbosity: int) -> None:
    """Kept for the API's sake: the log has no levels below verbose."""
    if isinstance(verbosity, bool) or not isinstance(verbosity, int):
        raise mismatch("set_default_logger_verbosity", "(arg0: int) -> None", verbosity)


def check_severity(level: int) -> None:
    """Raises Fail for what is no severity of a run."""
    if not -1 <= level < len(LEVELS):
        raise Fail("Invalid run log severity level. Not a valid onnxruntime::logging::Severity value: "
                   f"{level}", expected="0, verbose, to 4, fatal, or -1 for the session's")


@contextlib.contextmanager
def severity(level: int, name: str) -> Iterator[None]:
    """Report from `level` on this thread, under `name`, for the length of a `with` block; -1 leaves the
    default."""
    set_up()
    if level < 0 and not name:
        yield
        return
    before = getattr(_here, "severity", None), getattr(_here, "name", "")
    own = level if level >= 0 else _default
    with _lock:
        _talkative.append(own)
        if LEVELS[own] < logger.level:
            logger.setLevel(LEVELS[own])
    _here.severity, _here.name = own, name
    try:
        yield
    finally:
        with _lock:
            _talkative.remove(own)
            if logger.level in LEVELS:
                logger.setLevel(LEVELS[min([_default, *_talkative])])
        if before[0] is None:
            del _here.severity
        else:
            _here.severity = before[0]
        _here.name = before[1]
