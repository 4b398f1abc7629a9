"""The table as a whole: a list of KeyValues. Written by the functions, from a `flatbuffers.Builder`; read by
the class."""

from __future__ import annotations

from typing import Any

from .KeyValue import KeyValue, offset, root

_DICT = 0
_REFERENCE = 4
"""Bytes of a reference."""


class TrtTable:
    """A table, in the buffer it lies in."""

    @classmethod
    def GetRootAs(cls, buf: Any, offset: int = 0) -> TrtTable:
        table = cls()
        table.Init(buf, root(buf, offset))
        return table

    @classmethod
    def GetRootAsTrtTable(cls, buf: Any, offset: int = 0) -> TrtTable:
        return cls.GetRootAs(buf, offset)

    def Init(self, buf: Any, pos: int) -> None:
        from flatbuffers.table import Table  # type: ignore[import-untyped]

        self._tab = Table(buf, pos)

    def Dict(self, j: int) -> KeyValue | None:
        """Row `j`; None where the table has no rows."""
        if self.DictIsNone():
            return None
        row = KeyValue()
        first = self._tab.Vector(offset(self._tab, _DICT))
        row.Init(self._tab.Bytes, self._tab.Indirect(first + j * _REFERENCE))
        return row

    def DictLength(self) -> int:
        rows: int = 0 if self.DictIsNone() else self._tab.VectorLen(offset(self._tab, _DICT))
        return rows

    def DictIsNone(self) -> bool:
        return offset(self._tab, _DICT) == 0


def TrtTableStart(builder: Any) -> None:
    builder.StartObject(1)


def TrtTableAddDict(builder: Any, dict: int) -> None:
    builder.PrependUOffsetTRelativeSlot(_DICT, dict, 0)


def TrtTableStartDictVector(builder: Any, numElems: int) -> int:
    made: int = builder.StartVector(_REFERENCE, numElems, _REFERENCE)
    return made


def TrtTableEnd(builder: Any) -> int:
    made: int = builder.EndObject()
    return made


Start, AddDict, StartDictVector, End = TrtTableStart, TrtTableAddDict, TrtTableStartDictVector, TrtTableEnd
