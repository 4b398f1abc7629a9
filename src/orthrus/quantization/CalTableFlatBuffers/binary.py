"""The little of the FlatBuffers format that a table of texts needs, read and written without its package.

Written: from the end to the beginning, tables of offsets, vectors of offsets, and texts, by the method names
of `flatbuffers.Builder`. Read: the same, from bytes. The invariant: what is written is what that package
writes, byte for byte.
"""

from __future__ import annotations

import struct

from ..refused import InvalidValue

_WORD = 4


class Builder:
    """Writes one buffer. Offsets that methods give and take are counted from its end."""

    def __init__(self, initialSize: int = 1024) -> None:
        self._made = b""
        self._fields: list[int] = []
        self._start = self._count = 0
        self._shapes: dict[tuple[int, ...], int] = {}

    def Offset(self) -> int:
        """Where the next thing will lie."""
        return len(self._made)

    def Prep(self, size: int, additional: int) -> None:
        """Fill up, so that something of `size` bytes is aligned behind `additional` more."""
        self._made = bytes(-(len(self._made) + additional) % size) + self._made

    def _put(self, form: str, value: int) -> None:
        self._made = struct.pack(form, value) + self._made

    def CreateString(self, s: str | bytes) -> int:
        """Write a text; where it lies."""
        content = s.encode("utf-8") if isinstance(s, str) else bytes(s)
        self.Prep(_WORD, len(content) + 1)
        self._made = content + b"\0" + self._made
        self._put("<I", len(content))
        return self.Offset()

    def StartObject(self, numfields: int) -> None:
        """Begin a table."""
        self._fields, self._start = [0] * numfields, self.Offset()

    def PrependUOffsetTRelativeSlot(self, o: int, x: int, d: int) -> None:
        """Let field `o` of the table refer to what lies at `x`."""
        if x != d:
            self.PrependUOffsetTRelative(x)
            self._fields[o] = self.Offset()

    def PrependUOffsetTRelative(self, off: int) -> None:
        """Write a reference to what lies at `off`."""
        self.Prep(_WORD, 0)
        self._put("<I", self.Offset() - off + _WORD)

    def EndObject(self) -> int:
        """End a table; where it lies. Tables whose fields lie alike share the description of that."""
        self.Prep(_WORD, 0)
        at = self.Offset() + _WORD
        while self._fields and not self._fields[-1]:
            self._fields.pop()
        fields = [at - field if field else 0 for field in self._fields]
        shape = (2 * (len(fields) + 2), at - self._start, *fields)
        if shape in self._shapes:
            self._put("<i", self._shapes[shape] - at)
        else:
            self._put("<i", 2 * len(shape))
            self._made = struct.pack(f"<{len(shape)}H", *shape) + self._made
            self._shapes[shape] = self.Offset()
        return at

    def StartVector(self, elemSize: int, numElems: int, alignment: int) -> int:
        """Begin a vector of references."""
        self._count = numElems
        self.Prep(max(_WORD, alignment), elemSize * numElems)
        return self.Offset()

    def EndVector(self) -> int:
        """End a vector; where it lies."""
        self._put("<I", self._count)
        return self.Offset()

    def Finish(self, rootTable: int) -> None:
        """End the buffer, whose table lies at `rootTable`."""
        self.Prep(_WORD, _WORD)
        self.PrependUOffsetTRelative(rootTable)

    def Output(self) -> bytes:
        """The whole buffer."""
        return self._made


class Table:
    """One table of a buffer. Reading raises ValueError where the buffer is not what it says."""

    def __init__(self) -> None:
        self._buffer, self._at = b"", 0

    def Init(self, buf: bytes, pos: int) -> None:
        """Be the table at `pos`."""
        self._buffer, self._at = bytes(buf), pos

    def _word(self, at: int, form: str = "<I") -> int:
        if not 0 <= at <= len(self._buffer) - struct.calcsize(form):
            raise InvalidValue("the table refers to what lies outside of it", found=f"byte {at}",
                               expected=f"bytes up to {len(self._buffer)}", cure="write the table again")
        return int(struct.unpack_from(form, self._buffer, at)[0])

    def _field(self, index: int) -> int:
        """What a field refers to; 0 for one that is absent."""
        shape = self._at - self._word(self._at, "<i")
        if 4 + 2 * index >= self._word(shape, "<H"):
            return 0
        offset = self._word(shape + 4 + 2 * index, "<H")
        return self._follow(self._at + offset) if offset else 0

    def _follow(self, at: int) -> int:
        return at + self._word(at)

    def _text(self, index: int) -> bytes | None:
        at = self._field(index)
        if not at:
            return None
        end = at + _WORD + self._word(at)
        self._word(end - 1, "<B")
        return self._buffer[at + _WORD:end]
