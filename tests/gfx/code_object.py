"""Code objects of AMD's GPUs: an ELF file's bytes go in, code in this process' memory and its kernels'
descriptions come out.

Linked objects (Triton's) and plain relocatable ones (llvmlite's `emit_object`) are taken; what the latter
need of a linker is done here.
"""

from __future__ import annotations

import ctypes
import mmap
import struct
from dataclasses import dataclass
from typing import Any

import msgpack

TARGETS = {0x3F: "gfx90a", 0x4C: "gfx942", 0x41: "gfx1100", 0x46: "gfx1101", 0x47: "gfx1102", 0x4A: "gfx1151",
           0x48: "gfx1200", 0x4E: "gfx1201"}
FAMILIES = {"gfx90a": "cdna", "gfx942": "cdna", "gfx1100": "rdna3", "gfx1101": "rdna3", "gfx1102": "rdna3",
            "gfx1151": "rdna3", "gfx1200": "rdna4", "gfx1201": "rdna4"}
_SYMBOLS, _RELOCATIONS, _NOTES, _EMPTY, _DYNAMIC_SYMBOLS = 2, 4, 7, 8, 11
_ALLOCATED, _METADATA_NOTE, _PAGE = 2, 32, 4096
_KERNEL_CODE_ENTRY, _RESOURCES, _PROPERTIES = 16, 48, 56


@dataclass(frozen=True)
class Kernel:
    """One kernel. `arguments` are the metadata's entries, hidden ones included; `shared` the bytes of local
    data it declares itself; `scratch` the bytes each lane needs."""

    name: str
    entry: int
    end: int
    resources: tuple[int, int]
    properties: int
    arguments: tuple[dict[str, Any], ...]
    argument_bytes: int
    shared: int
    scratch: int
    most_threads: int
    wave: int

    @property
    def explicit(self) -> list[dict[str, Any]]:
        return [a for a in self.arguments if not str(a[".value_kind"]).startswith("hidden")]


@dataclass
class _Section:
    name: str
    type: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    align: int
    at: int = -1


class CodeObject:
    """Raises ValueError for bytes that are no code object of a target known here."""

    def __init__(self, blob: bytes) -> None:
        self.blob = bytes(blob)
        if self.blob[:5] != b"\x7fELF\x02" or struct.unpack_from("<H", self.blob, 18)[0] != 224:
            raise ValueError("these bytes are no ELF file for AMD GPUs")
        flags = struct.unpack_from("<I", self.blob, 48)[0]
        if flags & 0xFF not in TARGETS:
            raise ValueError(f"the target {flags & 0xFF:#x} is not one of {sorted(FAMILIES)}")
        self.target = TARGETS[flags & 0xFF]
        self.family = FAMILIES[self.target]
        self.sections = self._sections()
        linked = struct.unpack_from("<H", self.blob, 16)[0] != 1
        self.symbols: dict[str, tuple[int, int]] = {}
        if linked:
            self._load_linked()
        else:
            self._link()
        self.kernels = self._kernels()

    def kernel(self, name: str | None = None) -> Kernel:
        """The kernel of this name, or the only one."""
        if name is None and len(self.kernels) == 1:
            return next(iter(self.kernels.values()))
        if name not in self.kernels:
            raise KeyError(f"no kernel {name!r}; there are {sorted(self.kernels)}")
        return self.kernels[name]

    def _sections(self) -> list[_Section]:
        at, = struct.unpack_from("<Q", self.blob, 40)
        size, count, names = struct.unpack_from("<HHH", self.blob, 58)
        raw = [struct.unpack_from("<IIQQQQIIQQ", self.blob, at + i * size) for i in range(count)]
        text = self.blob[raw[names][4]:][:raw[names][5]]
        return [_Section(text[r[0]:text.index(b"\0", r[0])].decode(), *r[1:8], max(r[8], 1)) for r in raw]

    def _map(self, size: int) -> None:
        """Room for `size` bytes and what the decoder looks ahead."""
        self.memory = mmap.mmap(-1, -(-(size + 64) // _PAGE) * _PAGE)
        self.base = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        self.size = size

    def _table(self, section: _Section) -> list[tuple[str, int, int, int]]:
        """A symbol table's entries: name, section, value, size."""
        strings = self.sections[section.link]
        text = self.blob[strings.offset:strings.offset + strings.size]
        found = []
        for at in range(section.offset, section.offset + section.size, 24):
            name, _, _, where, value, size = struct.unpack_from("<IBBHQQ", self.blob, at)
            found.append((text[name:text.index(b"\0", name)].decode(), where, value, size))
        return found

    def _load_linked(self) -> None:
        at, = struct.unpack_from("<Q", self.blob, 32)
        size, count = struct.unpack_from("<HH", self.blob, 54)
        segments = [struct.unpack_from("<IIQQQQQQ", self.blob, at + i * size) for i in range(count)]
        loaded = [s for s in segments if s[0] == 1]
        self._map(max(s[3] + s[6] for s in loaded))
        for _, _, offset, address, _, length, _, _ in loaded:
            self.memory[address:address + length] = self.blob[offset:offset + length]
        for section in self.sections:
            if section.type in (_SYMBOLS, _DYNAMIC_SYMBOLS):
                self.symbols.update({name: (self.base + value, size)
                                     for name, where, value, size in self._table(section) if name and where})
            elif section.type == _RELOCATIONS and section.flags & _ALLOCATED:
                self._relocate_linked(section)

    def _relocate_linked(self, section: _Section) -> None:
        symbols = self._table(self.sections[section.link])
        for at in range(section.offset, section.offset + section.size, 24):
            place, info, add = struct.unpack_from("<QQq", self.blob, at)
            kind, symbol = info & 0xFFFFFFFF, symbols[info >> 32]
            if kind not in (3, 13):
                raise ValueError(f"a relocation of kind {kind} in a linked object")
            value = self.base + add + (symbol[2] if kind == 3 else 0)
            struct.pack_into("<Q", self.memory, place, value)

    def _link(self) -> None:
        """Lay the sections out and fill in what refers from one to another."""
        end = 0
        for section in self.sections:
            if section.flags & _ALLOCATED:
                section.at = -(-end // section.align) * section.align
                end = section.at + section.size
        table = -(-end // 16) * 16
        entries = sum(s.size // 24 for s in self.sections if s.type == _RELOCATIONS)
        self._map(table + 8 * entries)
        for section in self.sections:
            if section.at >= 0 and section.type != _EMPTY:
                self.memory[section.at:section.at + section.size] = \
                    self.blob[section.offset:section.offset + section.size]
        addresses: list[tuple[str, int | None]] = []
        for name, where, value, size in self._table(next(s for s in self.sections if s.type == _SYMBOLS)):
            inside = 0 < where < len(self.sections) and self.sections[where].at >= 0
            address = self.base + self.sections[where].at + value if inside else value if where == 0xFFF1 \
                else 0 if where == 0xFF00 else None
            addresses.append((name, address))
            if name and address is not None:
                self.symbols[name] = (address, size)
        indirect: dict[str, int] = {}
        for section in self.sections:
            if section.type == _RELOCATIONS and self.sections[section.info].at >= 0:
                for at in range(section.offset, section.offset + section.size, 24):
                    self._relocate(section, at, addresses, indirect, table)

    def _relocate(self, section: _Section, at: int, addresses: list[tuple[str, int | None]],
                  indirect: dict[str, int], table: int) -> None:
        offset, info, add = struct.unpack_from("<QQq", self.blob, at)
        kind, (name, symbol) = info & 0xFFFFFFFF, addresses[info >> 32]
        if symbol is None:
            raise ValueError(f"the symbol {name!r} is defined nowhere")
        where = self.sections[section.info].at + offset
        here = self.base + where
        if kind in (7, 8, 9):
            if name not in indirect:
                indirect[name] = table + 8 * len(indirect)
                struct.pack_into("<Q", self.memory, indirect[name], symbol)
            value, size = self.base + indirect[name] + add - here, 4
            value >>= 32 if kind == 9 else 0
        elif kind in (1, 2, 6):
            value, size = symbol + add >> (32 if kind == 2 else 0), 4
        elif kind in (4, 10, 11):
            value, size = symbol + add - here >> (32 if kind == 11 else 0), 4
        elif kind in (3, 5):
            value, size = symbol + add - (here if kind == 5 else 0), 8
        elif kind == 14:
            value, size = (symbol + add - here - 4) // 4, 2
        else:
            raise ValueError(f"a relocation of kind {kind} against {name!r}")
        self.memory[where:where + size] = (value & (1 << 8 * size) - 1).to_bytes(size, "little")

    def _notes(self) -> dict[str, Any]:
        for section in self.sections:
            at = section.offset if section.type == _NOTES else section.offset + section.size
            while at < section.offset + section.size:
                name, size, kind = struct.unpack_from("<III", self.blob, at)
                start = at + 12 + -(-name // 4) * 4
                if kind == _METADATA_NOTE:
                    found: dict[str, Any] = msgpack.unpackb(self.blob[start:start + size])
                    return found
                at = start + -(-size // 4) * 4
        return {}

    def _kernels(self) -> dict[str, Kernel]:
        found = {}
        for it in self._notes().get("amdhsa.kernels", []):
            descriptor, _ = self.symbols[it[".symbol"]]
            raw = ctypes.string_at(descriptor, 64)
            entry = descriptor + struct.unpack_from("<q", raw, _KERNEL_CODE_ENTRY)[0]
            found[it[".name"]] = Kernel(
                it[".name"], entry, entry + self.symbols[it[".name"]][1],
                struct.unpack_from("<II", raw, _RESOURCES), struct.unpack_from("<H", raw, _PROPERTIES)[0],
                tuple(it.get(".args", [])), it.get(".kernarg_segment_size", 0),
                it.get(".group_segment_fixed_size", 0), it.get(".private_segment_fixed_size", 0),
                it.get(".max_flat_workgroup_size", 1024), it.get(".wavefront_size", 64))
        return found
