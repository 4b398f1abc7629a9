"""Argument checks that answer as onnxruntime's compiled module does: TypeError with the accepted form and
what was given."""

from __future__ import annotations

import operator
from typing import Any


def mismatch(function: str, signature: str, *given: Any) -> TypeError:
    """The error for arguments of the wrong type; `function` is "" for a property."""
    what = "constructor" if function == "__init__" else "function"
    shown = ", ".join(_short(g) for g in given)
    return TypeError(f"{function}(): incompatible {what} arguments. The following argument types are "
                     f"supported:\n    1. {signature}\n\nInvoked with: {shown}")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 300 else text[:297] + "..."


def as_bool(value: Any) -> bool:
    """True and False, None as False, and what has a truth value of its own. Raises TypeError."""
    if isinstance(value, bool):
        return value
    if value is None:
        return False
    if isinstance(value, str | bytes) or not hasattr(type(value), "__bool__"):
        raise TypeError
    return bool(value)


def as_int(value: Any) -> int:
    """A 32-bit integer. Raises TypeError; a float is none."""
    number = operator.index(value)
    if not -(1 << 31) <= number < 1 << 31:
        raise TypeError
    return number


def as_str(value: Any) -> str:
    """A text, bytes decoded. Raises TypeError."""
    if isinstance(value, bytes):
        return value.decode("utf-8")
    if not isinstance(value, str):
        raise TypeError
    return value


class Setting:
    """A typed attribute of an options object: it has a default, and refuses a value of another type.

    `kind` is the C++ side's name for the type in the error; `read` takes a value and raises TypeError. Values
    live in the object's `_values` dict.
    """

    def __init__(self, kind: str, read: Any, default: Any, doc: str) -> None:
        self.kind, self.read, self.default, self.__doc__ = kind, read, default, doc

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else instance._values.get(self.name, self.default)

    def __set__(self, instance: Any, value: Any) -> None:
        try:
            instance._values[self.name] = self.read(value)
        except (TypeError, UnicodeDecodeError):
            raise mismatch("", f"(arg0: {type(instance).__name__}, arg1: {self.kind}) -> None", instance,
                           value) from None


def member(kind: type) -> Any:
    """A reader that takes members of an enumeration only."""
    def read(value: Any) -> Any:
        if type(value) is not kind:
            raise TypeError
        return value
    return read
