"""The text fields of a model: those that mean something are valid UTF-8, those for people are made so.

In: a parsed ModelProto. Out: one all of whose text fields are `str`; protobuf gives `bytes` for one that is
not valid.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..errors import InvalidProtobuf

_STRING, _MESSAGE = 9, 11
_FREE = frozenset({"doc_string", "producer_name", "producer_version", "metadata_props"})
_FREE_NAMES = frozenset({("GraphProto", "name"), ("NodeProto", "name"), ("ModelProto", "domain")})


def readable(model: Any, own: bool) -> Any:
    """`model` with its free texts readable: changed where it is our `own`, else a copy where something has
    to be. Raises InvalidProtobuf for a name that is not UTF-8."""
    for where, message, name, free in _unreadable(model, "", False):
        if not free:
            found = getattr(message, name)
            raise InvalidProtobuf("Failed to load model because protobuf parsing failed.", found=f"{where}: "
                                  + repr(found if isinstance(found, bytes) else list(found))[:200],
                                  expected="text in UTF-8", cure="write the model again with valid names")
        if not own:
            copy = type(model)()
            copy.CopyFrom(model)
            return readable(copy, True)
        found = getattr(message, name)
        if isinstance(found, bytes):
            setattr(message, name, found.decode("utf-8", "replace"))
        else:
            found[:] = [t.decode("utf-8", "replace") if isinstance(t, bytes) else t for t in found]
    return model


def _unreadable(message: Any, where: str, free: bool) -> Iterator[tuple[str, Any, str, bool]]:
    """Every field of text that is not UTF-8: where, whose, its name, whether it is for people alone."""
    for field, value in message.ListFields():
        kind = field.type
        if kind == _STRING:
            if type(value) is not str and (type(value) is bytes or any(type(t) is bytes for t in value)):
                name = field.name
                yield (f"{where}{name}", message, name,
                       free or name in _FREE or (message.DESCRIPTOR.name, name) in _FREE_NAMES)
        elif kind == _MESSAGE:
            inner = free or field.name in _FREE
            if hasattr(value, "ListFields"):
                yield from _unreadable(value, f"{where}{field.name}.", inner)
            else:
                for i, each in enumerate(value):
                    yield from _unreadable(each, f"{where}{field.name}[{i}].", inner)
