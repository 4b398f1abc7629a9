"""Why a request gets no result: one table of kinds, each with its status in HTTP and in gRPC.

In: what went wrong. Out: a `Refusal`, the one exception that leaves the server's parts. Its text is the
client's to read: it names the value and the cure, and nothing of the machine beyond the request.
"""

from __future__ import annotations

from enum import Enum
from typing import Any

from ..errors import Fail, InvalidArgument, NoSuchFile, NotFound


class Kind(Enum):
    """HTTP status, gRPC status by name."""

    INVALID = 400, "INVALID_ARGUMENT"
    FORBIDDEN = 403, "PERMISSION_DENIED"
    UNKNOWN = 404, "NOT_FOUND"
    METHOD = 405, "UNIMPLEMENTED"
    SLOW = 408, "DEADLINE_EXCEEDED"
    LARGE = 413, "RESOURCE_EXHAUSTED"
    MEDIA = 415, "INVALID_ARGUMENT"
    HEAD = 431, "RESOURCE_EXHAUSTED"
    FAILED = 500, "INTERNAL"
    UNSUPPORTED = 501, "UNIMPLEMENTED"
    FULL = 503, "RESOURCE_EXHAUSTED"
    CLOSING = 503, "UNAVAILABLE"
    LATE = 504, "DEADLINE_EXCEEDED"

    def __init__(self, http: int, grpc: str) -> None:
        self.http, self.grpc = http, grpc


class Refusal(Exception):
    """`retry_after`: seconds after which another try may be worth it; None: it is not."""

    def __init__(self, kind: Kind, text: str, retry_after: float | None = None) -> None:
        super().__init__(text)
        self.kind, self.text, self.retry_after = kind, text, retry_after

    def __reduce__(self) -> tuple[Any, ...]:
        return Refusal, (self.kind, self.text, self.retry_after)


def invalid(text: str) -> Refusal:
    return Refusal(Kind.INVALID, text)


def unknown(text: str) -> Refusal:
    return Refusal(Kind.UNKNOWN, text)


def large(what: str, size: int, most: int) -> Refusal:
    return Refusal(Kind.LARGE, f"{what} of {size} bytes; at most {most} are taken")


def unsupported(text: str) -> Refusal:
    return Refusal(Kind.UNSUPPORTED, text)


def of(error: BaseException) -> Refusal:
    """What an error of a run becomes: the feed's fault is the client's, any other the server's."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, InvalidArgument | ValueError):
        return invalid(str(error))
    if isinstance(error, NotFound | NoSuchFile):
        return unknown(str(error))
    if isinstance(error, Fail) and "timeout" in error.text:
        return Refusal(Kind.LATE, str(error))
    if isinstance(error, MemoryError):
        return Refusal(Kind.FULL, "there is not enough memory for this request", 1.0)
    return Refusal(Kind.FAILED, str(error) or type(error).__name__)
