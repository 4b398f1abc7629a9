"""A text by a text: a row of a calibration table."""

from __future__ import annotations

from typing import Any

from .binary import Table


class KeyValue(Table):
    """Reads a row."""

    @classmethod
    def GetRootAs(cls, buf: bytes, offset: int = 0) -> KeyValue:
        """The row that a buffer holds as a whole."""
        made = cls()
        made.Init(buf, offset)
        made.Init(buf, made._follow(offset))
        return made

    GetRootAsKeyValue = GetRootAs

    def Key(self) -> bytes | None:
        """The tensor's name."""
        return self._text(0)

    def Value(self) -> bytes | None:
        """Its range."""
        return self._text(1)


def Start(builder: Any) -> None:
    """Begin a row."""
    builder.StartObject(2)


def AddKey(builder: Any, key: int) -> None:
    """Let the row's name be the text at `key`."""
    builder.PrependUOffsetTRelativeSlot(0, key, 0)


def AddValue(builder: Any, value: int) -> None:
    """Let the row's range be the text at `value`."""
    builder.PrependUOffsetTRelativeSlot(1, value, 0)


def End(builder: Any) -> int:
    """End a row; where it lies."""
    return int(builder.EndObject())


KeyValueStart, KeyValueAddKey, KeyValueAddValue, KeyValueEnd = Start, AddKey, AddValue, End
