"""One row of the table: a tensor's name and its limit, both as text. Written by the functions, from a
`flatbuffers.Builder`; read by the class."""

from __future__ import annotations

from typing import Any

_KEY, _VALUE = 0, 1


def text(table: Any, slot: int) -> bytes | None:
    """The text in a slot of a table; None where it was not written."""
    place = offset(table, slot)
    found: bytes | None = table.String(place + table.Pos) if place else None
    return found


def offset(table: Any, slot: int) -> int:
    """Where in a table the slot's field lies; 0 where it was not written."""
    found: int = table.Offset(4 + 2 * slot)
    return found


def root(buf: Any, at: int) -> int:
    """Where the outermost table of a buffer begins."""
    from flatbuffers import encode, packer  # type: ignore[import-untyped]

    found: int = encode.Get(packer.uoffset, buf, at)
    return found + at


class KeyValue:
    """A row, in the buffer it lies in."""

    @classmethod
    def GetRootAs(cls, buf: Any, offset: int = 0) -> KeyValue:
        row = cls()
        row.Init(buf, root(buf, offset))
        return row

    @classmethod
    def GetRootAsKeyValue(cls, buf: Any, offset: int = 0) -> KeyValue:
        return cls.GetRootAs(buf, offset)

    def Init(self, buf: Any, pos: int) -> None:
        from flatbuffers.table import Table  # type: ignore[import-untyped]

        self._tab = Table(buf, pos)

    def Key(self) -> bytes | None:
        return text(self._tab, _KEY)

    def Value(self) -> bytes | None:
        return text(self._tab, _VALUE)


def KeyValueStart(builder: Any) -> None:
    builder.StartObject(2)


def KeyValueAddKey(builder: Any, key: int) -> None:
    builder.PrependUOffsetTRelativeSlot(_KEY, key, 0)


def KeyValueAddValue(builder: Any, value: int) -> None:
    builder.PrependUOffsetTRelativeSlot(_VALUE, value, 0)


def KeyValueEnd(builder: Any) -> int:
    made: int = builder.EndObject()
    return made


Start, AddKey, AddValue, End = KeyValueStart, KeyValueAddKey, KeyValueAddValue, KeyValueEnd
