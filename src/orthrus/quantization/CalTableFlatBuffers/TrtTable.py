"""A calibration table: rows of texts by texts."""

from __future__ import annotations

from typing import Any

from .binary import Table
from .KeyValue import KeyValue


class TrtTable(Table):
    """Reads a table."""

    @classmethod
    def GetRootAs(cls, buf: bytes, offset: int = 0) -> TrtTable:
        """The table that a buffer holds."""
        made = cls()
        made.Init(buf, offset)
        made.Init(buf, made._follow(offset))
        return made

    GetRootAsTrtTable = GetRootAs

    def Dict(self, j: int) -> KeyValue | None:
        """Row `j`."""
        at = self._field(0)
        if not at:
            return None
        row = KeyValue()
        row.Init(self._buffer, self._follow(at + 4 + 4 * j))
        return row

    def DictLength(self) -> int:
        """How many rows there are."""
        at = self._field(0)
        return self._word(at) if at else 0

    def DictIsNone(self) -> bool:
        """Whether there is no row, nor a place for rows."""
        return not self._field(0)


def Start(builder: Any) -> None:
    """Begin a table."""
    builder.StartObject(1)


def AddDict(builder: Any, dict: int) -> None:
    """Let the table's rows be the vector at `dict`."""
    builder.PrependUOffsetTRelativeSlot(0, dict, 0)


def StartDictVector(builder: Any, numElems: int) -> int:
    """Begin a vector of so many rows."""
    return int(builder.StartVector(4, numElems, 4))


def End(builder: Any) -> int:
    """End a table; where it lies."""
    return int(builder.EndObject())


TrtTableStart, TrtTableAddDict, TrtTableStartDictVector, TrtTableEnd = Start, AddDict, StartDictVector, End
