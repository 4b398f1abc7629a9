"""Relocatable ELF objects that hold bytes, made without a compiler, for any processor.

In: an architecture and blobs, each with the symbol that a C program finds it by. Out: the pieces of an object
file, of which linkers make libraries and programs. Nothing in it is relocated, so that it says nothing about
addresses; its symbols are hidden, so that only what is linked with it sees them. Its sections are read-only.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Any

from ...errors import InvalidArgument
from ...records import dataclass

MACHINES = {"x86_64": (62, 0), "aarch64": (183, 0), "riscv64": (243, 5)}
"""By architecture: the machine's number and the flags that its objects carry; RISC-V's say that there are
compressed instructions and that functions take floats in registers, as all of Linux has it."""
LARGEST = 1 << 30
"""Bytes of one blob: code finds what it is linked with within 2 GiB."""

_HEADER, _SECTION, _SYMBOL = struct.Struct("<16sHHIQQQIHHHHHH"), struct.Struct("<IIQQQQIIQQ"), struct.Struct(
    "<IBBHQQ")
_IDENT = b"\x7fELF\2\1\1" + bytes(9)
_RELOCATABLE, _VERSION = 1, 1
_PROGBITS, _SYMTAB, _STRTAB = 1, 2, 3
_ALLOC, _EXECUTE = 2, 4
_GLOBAL_OBJECT, _HIDDEN = 1 << 4 | 1, 2


@dataclass(frozen=True)
class Blob:
    """Bytes under the name `symbol`, in pieces, beginning at a multiple of `align` bytes; `code`: they are
    executed, else read."""

    symbol: str
    pieces: Sequence[Any]
    code: bool = False
    align: int = 64

    @property
    def size(self) -> int:
        return sum(memoryview(piece).nbytes for piece in self.pieces)


class _Names:
    """A table of strings."""

    def __init__(self) -> None:
        self.data = b"\0"

    def at(self, name: str) -> int:
        begin = len(self.data)
        self.data += name.encode() + b"\0"
        return begin


def relocatable(arch: str, blobs: Sequence[Blob]) -> Iterable[Any]:
    """The pieces of an object file for `arch` that holds `blobs`. Raises InvalidArgument for an architecture
    without a number here, and for a blob that no code could reach."""
    if arch not in MACHINES:
        raise InvalidArgument("no object files are made for this architecture", found=arch,
                              expected=f"one of {', '.join(MACHINES)}")
    names, section_names = _Names(), _Names()
    rows, symbols, pieces = [bytes(_SECTION.size)], [bytes(_SYMBOL.size)], list[Any]()
    end = _HEADER.size

    def section(name: str, kind: int, data: Sequence[Any], size: int, flags: int = 0, align: int = 1,
                link: int = 0, info: int = 0, entry: int = 0) -> None:
        nonlocal end
        begin = -(-end // align) * align
        pieces.append(bytes(begin - end))
        pieces.extend(data)
        end = begin + size
        rows.append(_SECTION.pack(section_names.at(name), kind, flags, 0, begin, size, link, info, align,
                                  entry))

    for blob in blobs:
        if blob.size > LARGEST:
            raise InvalidArgument(f"{blob.symbol} is too large for an object file",
                                  found=f"{blob.size} bytes", expected=f"at most {LARGEST}",
                                  cure="keep the weights in a file beside it")
        symbols.append(_SYMBOL.pack(names.at(blob.symbol), _GLOBAL_OBJECT, _HIDDEN, len(rows), 0, blob.size))
        section(f"{'.text' if blob.code else '.rodata'}.{blob.symbol}", _PROGBITS, blob.pieces, blob.size,
                _ALLOC | (_EXECUTE if blob.code else 0), blob.align)
    section(".note.GNU-stack", _PROGBITS, (), 0)
    section(".symtab", _SYMTAB, symbols, _SYMBOL.size * len(symbols), align=8, link=len(rows) + 1, info=1,
            entry=_SYMBOL.size)
    section(".strtab", _STRTAB, [names.data], len(names.data))
    name = section_names.at(".shstrtab")
    table = section_names.data
    rows.append(_SECTION.pack(name, _STRTAB, 0, 0, end, len(table), 0, 0, 1, 0))
    padding = bytes(-(end + len(table)) % 8)
    end += len(table) + len(padding)
    number, flags = MACHINES[arch]
    header = _HEADER.pack(_IDENT, _RELOCATABLE, number, _VERSION, 0, 0, end, flags, _HEADER.size, 0, 0,
                          _SECTION.size, len(rows), len(rows) - 1)
    return [header, *pieces, table, padding, *rows]
