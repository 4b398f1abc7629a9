"""Object code into this process: reads an ELF object, copies its sections side by side and relocates them.

What LLVM emits for a module that calls nothing outside itself needs a handful of relocations; doing them here
spares the load of LLVM in a process whose kernels are already on disk. Memory is written first and made
executable afterwards, never both at once. It goes with the last of the `Linked` functions in it.

An object may come from a damaged file: every offset is checked, and what does not hold is a ValueError.
"""

from __future__ import annotations

import mmap
import platform
import struct
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, TypeVar

from ..machines.executable import CodePages, Linked
from . import link_riscv

_WRITE, _ALLOC, _EXECUTE, _TLS = 1, 2, 4, 0x400
_PROGBITS, _SYMTAB, _RELA, _NOTE, _NOBITS, _REL, _UNWIND = 1, 2, 4, 7, 8, 9, 0x70000001
_FUNCTION = 2
_MACHINES = {"x86_64": 62, "AMD64": 62, "aarch64": 183, "arm64": 183, "riscv64": 243}
_X86, _ARM, _RISCV = 62, 183, 243
_LARGEST = 1 << 28
"""Bytes of code and tables in one block at most."""

class _Room(Protocol):
    """Where linked objects go: the bytes, and the address these will have when they run."""

    address: int
    bytes: memoryview


class _Image:
    """Code written here to be run elsewhere, at an address known now."""

    def __init__(self, size: int, address: int) -> None:
        self.address = address
        self.bytes = memoryview(bytearray(size))


class _Section(NamedTuple):
    """A row of the section table, as the format lays it out."""

    name: int
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    align: int
    entry: int


class _Object:
    """The parts of an ELF file that linking needs."""

    def __init__(self, data: bytes) -> None:
        if data[:6] != b"\x7fELF\x02\x01":
            raise ValueError("not a 64-bit little-endian ELF object")
        if struct.unpack_from("<H", data, 16) != (1,):
            raise ValueError("not a relocatable object")
        self.data = data
        (self.machine,) = struct.unpack_from("<H", data, 18)
        (offset,) = struct.unpack_from("<Q", data, 40)
        entry, count = struct.unpack_from("<HH", data, 58)
        if entry != 64 or not count:
            raise ValueError("no table of sections")
        self.sections = [_Section._make(struct.unpack_from("<IIQQQQIIQQ", data, offset + 64 * i))
                         for i in range(count)]
        self.place: dict[int, int] = {}
        for section in self.sections:
            if section.kind not in (0, _NOBITS) and section.offset + section.size > len(data):
                raise ValueError("a section reaches beyond the end")

    def layout(self, at: int) -> int:
        """Give every section that is loaded its place from `at` on; returns the end."""
        for i, section in enumerate(self.sections):
            if not section.flags & _ALLOC or section.kind in (_NOTE, _UNWIND) or not section.size:
                continue
            if section.kind != _PROGBITS or section.flags & (_WRITE | _TLS):
                raise ValueError(f"a section of kind {section.kind}, flags {section.flags} is not supported")
            align = max(section.align, 64)
            if align & align - 1 or align > mmap.PAGESIZE:
                raise ValueError(f"a section wants to be aligned to {section.align} bytes")
            at = -(-at // align) * align
            self.place[i] = at
            at += section.size
            if at > _LARGEST:
                raise ValueError("too large")
        return at

    def copy(self, block: _Room) -> dict[str, int]:
        """Copy and relocate; returns the addresses of the functions."""
        for i, at in self.place.items():
            section = self.sections[i]
            content = self.data[section.offset:section.offset + section.size]
            if self.machine == _RISCV and section.flags & _EXECUTE:
                from ..write import spacemit_matrix

                content = spacemit_matrix.rewritten(content)
            block.bytes[at:at + section.size] = content
        found: dict[str, int] = {}
        for section in self.sections:
            if section.kind == _SYMTAB:
                found |= self._functions(section, block)
            elif section.kind in (_RELA, _REL) and section.info in self.place:
                if section.kind == _REL:
                    raise ValueError("relocations without addends are not supported")
                self._relocate(section, block)
        return found

    def _functions(self, table: _Section, block: _Room) -> dict[str, int]:
        names = self._section(table.link)
        found: dict[str, int] = {}
        for name, bits, _, section, value, _ in struct.iter_unpack("<IBBHQQ", self._content(table, 24)):
            if bits & 15 == _FUNCTION and section in self.place:
                start = names.offset + name
                end = self.data.find(b"\0", start, names.offset + names.size)
                if end < 0 or value >= self.sections[section].size:
                    raise ValueError("a symbol lies outside its section")
                found[self.data[start:end].decode()] = block.address + self.place[section] + value
        return found

    def _relocate(self, table: _Section, block: _Room) -> None:
        to, size = self.place[table.info], self.sections[table.info].size
        symbols = self._section(table.link)
        place, patches = self.place, _PATCHES.get(self.machine, {})
        rows: list[tuple[int, int, int]] = []
        for where, packed, addend in struct.iter_unpack("<QQq", self._content(table, 24)):
            index, kind = packed >> 32, packed & 0xFFFFFFFF
            if 24 * index + 24 > symbols.size:
                raise ValueError("a relocation names no symbol")
            _, _, _, section, value, _ = struct.unpack_from("<IBBHQQ", self.data, symbols.offset + 24 * index)
            if section not in place:
                raise ValueError("the object refers to a symbol outside itself")
            if kind not in patches:
                raise ValueError(f"relocation {kind} for machine {self.machine} is not known")
            if where + patches[kind][0] > size:
                raise ValueError("a relocation lies outside its section")
            rows.append((to + where, kind, place[section] + value + addend))
        if self.machine == _RISCV:
            rows = link_riscv.paired(rows)
        for at, kind, target in rows:
            patches[kind][1](block.bytes, at, block.address + target, block.address + at)

    def _section(self, index: int) -> _Section:
        if index >= len(self.sections):
            raise ValueError(f"no section {index}")
        return self.sections[index]

    def _content(self, section: _Section, row: int) -> bytes:
        if section.size % row:
            raise ValueError("a table ends within a row")
        return self.data[section.offset:section.offset + section.size]


def _relative(memory: memoryview, at: int, target: int, here: int) -> None:
    struct.pack_into("<i", memory, at, target - here)


def _relative_64(memory: memoryview, at: int, target: int, here: int) -> None:
    struct.pack_into("<q", memory, at, target - here)


def _absolute_64(memory: memoryview, at: int, target: int, here: int) -> None:
    struct.pack_into("<Q", memory, at, target)


def _arm_word(change: Callable[[int, int], int]) -> Callable[[memoryview, int, int, int], None]:
    """Put the bits `change(target, here)` into an instruction."""
    def patch(memory: memoryview, at: int, target: int, here: int) -> None:
        (word,) = struct.unpack_from("<I", memory, at)
        struct.pack_into("<I", memory, at, word | change(target, here))
    return patch


def _arm_page(target: int, here: int) -> int:
    count = (target >> 12) - (here >> 12)
    return (count & 3) << 29 | (count >> 2 & 0x7FFFF) << 5


def _arm_low(shift: int) -> Callable[[int, int], int]:
    """The low 12 bits of an address, in units of what is loaded."""
    return lambda target, here: (target & 0xFFF) >> shift << 10


def _arm_branch(target: int, here: int) -> int:
    return target - here >> 2 & 0x3FFFFFF


_PATCHES: dict[int, dict[int, tuple[int, Callable[[memoryview, int, int, int], None]]]] = {
    _X86: {1: (8, _absolute_64), 2: (4, _relative), 4: (4, _relative), 24: (8, _relative_64)},
    _ARM: {257: (8, _absolute_64), 260: (8, _relative_64), 261: (4, _relative),
           275: (4, _arm_word(_arm_page)),
           277: (4, _arm_word(_arm_low(0))), 278: (4, _arm_word(_arm_low(0))),
           284: (4, _arm_word(_arm_low(1))), 285: (4, _arm_word(_arm_low(2))),
           286: (4, _arm_word(_arm_low(3))), 299: (4, _arm_word(_arm_low(4))),
           282: (4, _arm_word(_arm_branch)), 283: (4, _arm_word(_arm_branch))},
    _RISCV: link_riscv.PATCHES}
"""By machine and relocation type: the bytes it changes, and how (memory, where in it, target, own
address)."""


def link(objects: Sequence[bytes]) -> list[Linked]:
    """Load `objects` into one block; per object, its functions. Raises ValueError for what is no object of
    ours, Fail where memory cannot be made executable."""
    block, found = _linked(objects, _MACHINES.get(platform.machine()), CodePages)
    block.seal()
    return [Linked(each, block) for each in found]


def image(objects: Sequence[bytes], address: int, arch: str) -> tuple[bytes, list[dict[str, int]]]:
    """The code of `objects` as it has to lie at `address`, the begin of a page, of a machine of `arch`
    (`riscv64`, ...) that need not be this one; and per object, its functions by name. Raises ValueError as
    `link` does."""
    if address % mmap.PAGESIZE or arch not in _MACHINES:
        raise ValueError(f"no code can be laid at {address:#x} for {arch!r}")
    made, found = _linked(objects, _MACHINES[arch], lambda size: _Image(size, address))
    return bytes(made.bytes), found


_R = TypeVar("_R", bound=_Room)


def _linked(objects: Sequence[bytes], machine: int | None, room: Callable[[int], _R]
            ) -> tuple[_R, list[dict[str, int]]]:
    try:
        parsed, at = [_Object(data) for data in objects], 0
        for each in parsed:
            if each.machine != machine:
                raise ValueError(f"an object for machine {each.machine}, not {machine}")
            at = each.layout(at)
        made = room(at)
        return made, [each.copy(made) for each in parsed]
    except (struct.error, OverflowError) as error:
        raise ValueError(f"an object breaks off: {error}") from None
