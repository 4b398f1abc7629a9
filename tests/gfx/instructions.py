"""Instructions as functions: a decoded instruction goes in, the LLVM function that carries it out and the
words it is called with come out.

Two instructions that differ only in their registers, constants and offsets share a function: these stand in
the record, an array of 64-bit words (0: the function, 1: the instruction's length in words of 4 bytes, from 2
on its operands). A function gets the wave's context and the record.
"""

from __future__ import annotations

import functools
import importlib
import re
import struct
from dataclasses import dataclass, field
from typing import Any

from tinygrad.renderer.amd import decode_inst
from tinygrad.runtime.autogen.amd.rdna3.ins import MUBUF
from tinygrad.runtime.autogen.amd.rdna4.ins import VBUFFER

from . import texts
from .semantics import Unsupported

# Words of a wave's context.
(SGPRS, VGPRS, ACCS, LDS, LDS_BYTES, SCRATCH, SCRATCH_BYTES, CODE, PC, STOP, FAULT, FAULT_BYTES, REGIONS,
 REGION_COUNT, SINK, BUDGET, REACH, LAST) = range(18)
SINK_BYTES = 64
"""Of the place where accesses go that harm nobody: the lower half is read, and stays 0; the upper is written.
"""
DONE, BARRIER, BY_HAND, NO_FUNCTION, BAD_PC, FAULTED, EXHAUSTED = range(1, 8)
WORDS = 16
VCC, NULL, M0, EXEC, SCC = 106, 124, 125, 126, 253
SCALARS = 264
_FLOATS = {240: 0.5, 241: -0.5, 242: 1.0, 243: -1.0, 244: 2.0, 245: -2.0, 246: 4.0, 247: -4.0,
           248: 0.15915494309189535}
_ACCESSES = frozenset({"SMEM", "DS", "FLAT", "GLOBAL", "SCRATCH", "MUBUF", "VFLAT", "VGLOBAL", "VSCRATCH",
                       "VBUFFER"})
_SAME = {"ssrc0": "src0", "ssrc1": "src1", "vsrc0": "src0", "vsrc1": "src1"}
_CARRY = re.compile(r"V_(CNDMASK|ADD_CO_CI|SUB_CO_CI|SUBREV_CO_CI|ADDC_CO|SUBB_CO|SUBBREV_CO)")
_LANES = re.compile(r"V_(READLANE|READFIRSTLANE|WRITELANE|PERMLANE)|DS_(BPERMUTE|PERMUTE|SWIZZLE)")
_MATRIX = re.compile(r"V_(WMMA|SWMMAC|MFMA|SMFMAC|ACCVGPR)_")


@dataclass(frozen=True)
class Operand:
    """`kind`: v a vector register, a an accumulator, s a scalar register, c a number in the record. `word`:
    where the record holds its number. `half`: 1 for the high half of a register. `pick`: which half each half
    of a packed operand comes from. `select`: byte or word of a register, and whether its sign is extended."""

    kind: str
    bits: int
    word: int
    half: int = 0
    absolute: bool = False
    negative: bool = False
    pick: tuple[int, int, int, int] | None = None
    mixed: int | None = None
    select: tuple[int, int] | None = None


@dataclass(frozen=True)
class Part:
    """One operation: a dual instruction has two. `target`: where D0 goes: v, s, or m for a mask of lanes."""

    text: str
    sources: tuple[tuple[str, Operand], ...]
    target: str = ""
    bits: int = 32
    word: int = 0
    half: int = 0
    keep: bool = True
    clamp: bool = False
    scale: int = 0
    carry_in: int = 0
    carry_out: int = 0
    place: tuple[int, int] | None = None


@dataclass(frozen=True)
class Lanes:
    """Data parallel processing: the lane each lane's first operand comes from (-1: none), the lanes that take
    part, and whether a lane without a source gets 0 or keeps what it had."""

    sources: tuple[int, ...]
    enabled: int
    zero: bool
    inactive: bool


@dataclass(frozen=True)
class Memory:
    """How an access finds its bytes. `space`: global, lds, scratch, scalar or buffer. The words name what is
    added up: a vector register (and its bits), scalar registers, a constant; `extra` is negative where it
    names a constant."""

    space: str
    vector: int = 0
    vector_bits: int = 0
    scalar: int = 0
    scalar_bits: int = 0
    extra: int = 0
    offset: int = 0
    resource: int = 0
    index: int = 0
    offsets: tuple[int, int] = (0, 0)
    data: int = 0
    data2: int = 0
    result: int = 0
    returned: bool = True
    accumulator: bool = False


@dataclass(frozen=True)
class Shape:
    """All that decides about a function's code."""

    family: str
    width: int
    what: str
    parts: tuple[Part, ...] = ()
    lanes: Lanes | None = None
    memory: Memory | None = None


@dataclass
class Decoded:
    """`shape` is None for what is done by hand; `words` is the record from word 2 on."""

    name: str
    length: int
    shape: Shape | None
    words: list[int] = field(default_factory=list)


class _Record:
    def __init__(self) -> None:
        self.words: list[int] = []

    def put(self, value: int) -> int:
        self.words.append(value & (1 << 64) - 1)
        if len(self.words) > WORDS - 2:
            raise Unsupported("more operands than a record holds")
        return len(self.words) + 1


def parse(code: bytes, family: str) -> Any:
    """The instruction at the beginning of `code`. Raises ValueError."""
    word = int.from_bytes(code[:4], "little")
    # the package's list of formats leaves these two out
    for where, form in (("rdna3", MUBUF), ("rdna4", VBUFFER)):
        fixed = form.encoding
        if family == where and word >> fixed.lo & fixed.mask == fixed.default:
            return form.from_bytes(code)
    found = decode_inst(code, family)
    if type(found).__name__ == "VOP3_SDST" and found.src0.offset == _DPP16:
        return _permuted(type(found)).from_bytes(code)
    return found


_DPP16 = 250
"""What stands for the first source where a word behind says which lane it comes from."""


@functools.cache
def _permuted(form: Any) -> Any:
    """A comparison's format with such a word, which the package leaves out."""
    other = importlib.import_module(form.__module__).VOP3_DPP16
    return type("VOP3_SDST_DPP16", (form,), {k: v for k, v in vars(other).items() if not k.startswith("_")})


def name_of(inst: Any) -> str:
    if hasattr(inst, "opx"):
        return f"{inst.opx.name}::{inst.opy.name}"
    return str(inst.op.name)


class Decoder:
    """Decodes instructions of one family: cdna, rdna3 or rdna4."""

    def __init__(self, family: str) -> None:
        self.family, self.width = family, 64 if family == "cdna" else 32
        self.null = 124 if family != "cdna" else -1

    def decode(self, inst: Any, slot: int) -> Decoded:
        """`slot` is the instruction's place in the code, in words of 4 bytes. Raises Unsupported."""
        name, length = name_of(inst), inst.size() // 4
        form = re.sub(r"_(LIT|DPP16|DPP8|SDWA|SDST|SDWA_SDST|MFMA)(?=_|$)", "", type(inst).__name__)
        record = _Record()
        if _LANES.match(name) or _MATRIX.match(name):
            return Decoded(name, length, None)
        if form == "SOPP":
            return Decoded(name, length, self._program(inst, name, slot + length, record), record.words)
        if form == "VOPD":
            shape = self._dual(inst, record)
        elif form in _ACCESSES:
            shape = self._access(inst, form, name, record)
        else:
            shape = self._operation(inst, form, name, record)
        return Decoded(name, length, shape, record.words)

    def _text(self, name: str) -> str:
        found = texts.text(self.family, name)
        if found is None:
            raise Unsupported(f"nothing is known of {name}")
        return found

    # operands

    def source(self, record: _Record, inst: Any, name: str, bits: int, form: str = "B32",
               literal: int | None = None, **more: Any) -> Operand:
        code = getattr(inst, name).offset
        if getattr(inst, f"s{name[-1]}", 0):
            code &= 0xFF
        return self.coded(record, code, bits, form, literal if literal is not None else inst._literal, **more)

    def coded(self, record: _Record, code: int, bits: int, form: str, literal: int | None,
              **more: Any) -> Operand:
        if code >= 256:
            index = code - 256
            if more.pop("short", False) and bits == 16 and index >= 128:
                index, more["half"] = index - 128, 1
            return Operand("v", bits, record.put(index), **more)
        more.pop("short", None)
        if code < 128 or code == SCC:
            return Operand("s", bits, record.put(code), **more)
        return Operand("c", bits, record.put(self._constant(code, bits, form, literal)), **more)

    def _constant(self, code: int, bits: int, form: str, literal: int | None) -> int:
        if code == 255:
            assert literal is not None
            if bits == 64 and form.endswith("F64"):
                return literal << 32
            if bits == 64 and form.endswith("I64") and literal >> 31:
                return literal | 0xFFFFFFFF << 32
            return literal | literal << 32 if form.startswith("PK2_F32") else literal
        if 128 <= code <= 208:
            return (code - 128 if code <= 192 else 192 - code) & (1 << 64) - 1
        if code not in _FLOATS:
            raise Unsupported(f"the operand {code}")
        value = _FLOATS[code]
        if form.startswith("PK2_F32"):
            return struct.unpack("<I", struct.pack("<f", value))[0] * 0x100000001
        if bits == 64:
            return struct.unpack("<Q", struct.pack("<d", value))[0]
        if form.endswith("BF16"):
            return struct.unpack("<I", struct.pack("<f", value))[0] >> 16
        if bits == 16 or form.endswith(("F16", "U16", "I16", "B16")):
            return struct.unpack("<H", struct.pack("<e", value))[0]
        return struct.unpack("<I", struct.pack("<f", value))[0]

    def scalar_target(self, record: _Record, code: int) -> int:
        return record.put(SCALARS - 4 if code == self.null else code)

    # forms

    def _program(self, inst: Any, name: str, after: int, record: _Record) -> Shape:
        if not name.startswith(("S_CBRANCH", "S_BRANCH")):
            record.put(0)
            return Shape(self.family, self.width, name if name in ("S_ENDPGM", "S_BARRIER", "S_BARRIER_WAIT")
                         else self._idle(name))
        step = inst.simm16 - (1 << 16) if inst.simm16 >> 15 else inst.simm16
        record.put(after + step)
        return Shape(self.family, self.width, name)

    def _idle(self, name: str) -> str:
        if self._text(name):
            raise Unsupported(f"{name} is not carried out here")
        return "S_NOP"

    def _dual(self, inst: Any, record: _Record) -> Shape:
        parts = []
        for which in "xy":
            name = getattr(inst, "op" + which).name
            sources = [("S0", self.source(record, inst, f"src{which}0", 32, "F32")),
                       ("S1", self.source(record, inst, f"vsrc{which}1", 32, "F32"))]
            text = self._text(name)
            if "SIMM32" in text:
                sources.append(("SIMM32", Operand("c", 32, record.put(inst._literal))))
            target = record.put(getattr(inst, "vdst" + which).offset - 256)
            parts.append(Part(text, tuple(sources), "v", 32, target))
        return Shape(self.family, self.width, "lanes", tuple(parts))

    def _operation(self, inst: Any, form: str, name: str, record: _Record) -> Shape:
        text = self._text(name)
        vector = form.startswith("VOP") and not name.startswith("V_S_")
        formats = {_SAME.get(k, k): v for k, v in inst.operands.items()}
        wide = {k: v[1] for k, v in formats.items()}
        kinds = {k: v[0].name.removeprefix("FMT_NUM_") for k, v in formats.items()}
        sources: list[tuple[str, Operand]] = []
        fields = {n: _SAME.get(n, n) for n in ("ssrc0", "ssrc1", "src0", "vsrc1", "src1", "src2")
                  if hasattr(type(inst), n)}
        carry = _CARRY.match(name) is not None
        permuted = "DPP" in type(inst).__name__ or "SDWA" in type(inst).__name__
        carry_in = 0
        for at, plain in fields.items():
            if plain not in wide:
                continue
            position = int(plain[-1])
            if position == 2 and carry:
                carry_in = self.coded(record, getattr(inst, at).offset, 64, "B64", None).word
                continue
            field_name = "vsrc0" if permuted and plain == "src0" else at
            more = self._modifiers(inst, form, name, position, wide[plain], kinds[plain])
            kind = "F16" if more.get("mixed", 0) & 2 else kinds[plain]
            made = self.source(record, inst, field_name, wide[plain], kind, **more)
            sources.append((f"S{position}", made))
        if "SIMM32" in text:
            sources.append(("SIMM32", Operand("c", 32, record.put(inst._literal))))
        if form == "SOPK":
            # the newer texts name the immediate S0, or S1 where the register is compared
            own = "SIMM16" in text or "CMPK" in name
            given = "SIMM16" if "SIMM16" in text else "S1" if own else "S0"
            sources.append((given, Operand("c", 16, record.put(inst.simm16))))
            if own:
                sources.append(("S0", Operand("s", 32, record.put(inst.sdst.offset))))
        part = self._target(inst, form, name, text, wide, kinds, tuple(sources), record, carry_in)
        if not vector:
            return Shape(self.family, self.width, "scalar", (part,))
        return Shape(self.family, self.width, "lanes", (part,), self._permutation(inst))

    def _modifiers(self, inst: Any, form: str, name: str, position: int, bits: int,
                   kind: str) -> dict[str, Any]:
        more: dict[str, Any] = {}
        floating = "F" in kind or kind.startswith("B")
        if form in ("VOP3", "VOP3SD"):
            more["negative"] = bool(inst.neg >> position & 1) and floating
            more["absolute"] = bool(getattr(inst, "abs", 0) >> position & 1) and floating
            if bits == 16:
                more["half"] = getattr(inst, "opsel", 0) >> position & 1
        elif form == "VOP3P" and "_MIX" in name:
            high = inst.opsel_hi | inst.opsel_hi2 << 2
            more["mixed"] = (2 if high >> position & 1 else 0) | (inst.opsel >> position & 1)
            more["negative"] = bool(inst.neg >> position & 1)
            more["absolute"] = bool(inst.neg_hi >> position & 1)
        elif form == "VOP3P" and (kind.startswith("PK") or bits in (32, 64)) and "DOT4" not in name:
            high = inst.opsel_hi | inst.opsel_hi2 << 2
            if kind.startswith("PK"):
                more["pick"] = (inst.opsel >> position & 1, high >> position & 1,
                                inst.neg >> position & 1, inst.neg_hi >> position & 1)
            elif floating:
                more["negative"] = bool(inst.neg >> position & 1)
        elif form in ("VOP1", "VOP2", "VOPC"):
            more["short"] = self.family != "cdna"
            if hasattr(type(inst), f"src{position}_neg"):
                more["negative"] = bool(getattr(inst, f"src{position}_neg"))
                more["absolute"] = bool(getattr(inst, f"src{position}_abs"))
            if hasattr(type(inst), f"src{position}_sel"):
                more["select"] = (getattr(inst, f"src{position}_sel"), getattr(inst, f"src{position}_sext"))
        return more

    def _target(self, inst: Any, form: str, name: str, text: str, wide: dict[str, int], kinds: dict[str, str],
                sources: tuple[tuple[str, Operand], ...], record: _Record, carry_in: int) -> Part:
        carry_out = record.put(inst.sdst.offset) if form == "VOP3SD" or hasattr(type(inst), "sd") else 0
        clamp, scale = bool(getattr(inst, "clmp", 0)), getattr(inst, "omod", 0)
        if clamp and (own := texts.clamped(name)) is not None:
            text, clamp = own, False
        if name.startswith("V_S_"):
            return Part(text, sources, "s", 32, self.scalar_target(record, inst.vdst.offset & 0xFF))
        if form.startswith("SOP"):
            has = hasattr(type(inst), "sdst") and "D0" in text
            at = self.scalar_target(record, inst.sdst.offset) if has else 0
            return Part(text, sources, "s" if at else "", wide.get("sdst", 32), at)
        if form == "VOPC" or (form == "VOP3" and type(inst).__name__.startswith("VOP3_SDST")):
            code = inst.vdst.offset if form == "VOP3" else inst.sdst.offset if getattr(inst, "sd", 0) else VCC
            return Part(text, sources, "m", 64, self.scalar_target(record, code))
        bits, half, index = wide.get("vdst", 32), 0, inst.vdst.offset - 256
        if bits == 16 and form in ("VOP1", "VOP2") and self.family != "cdna" and index >= 128:
            half, index = 1, index - 128
        elif bits == 16 and form == "VOP3":
            half = getattr(inst, "opsel", 0) >> 3 & 1
        keep = self.family != "cdna" or "MIX" in name or half == 1
        place = (inst.dst_sel, inst.dst_unused) if hasattr(type(inst), "dst_sel") else None
        floating = "F" in kinds.get("vdst", "")
        return Part(text, sources, "v", bits, record.put(index), half, keep, clamp and floating,
                    scale if floating else 0, carry_in, carry_out, place)

    def _permutation(self, inst: Any) -> Lanes | None:
        if "DPP8" in type(inst).__name__:
            picks = [getattr(inst, f"lane_sel_{i}") for i in range(8)]
            sources = tuple(lane // 8 * 8 + picks[lane % 8] for lane in range(self.width))
            return Lanes(sources, (1 << self.width) - 1, False, inst.src0.offset == 234)
        if "DPP16" not in type(inst).__name__:
            return None
        enabled = 0
        for lane in range(self.width):
            if inst.row_mask >> lane // 16 & 1 and inst.bank_mask >> lane % 16 // 4 & 1:
                enabled |= 1 << lane
        sources = tuple(self._from_lane(inst.dpp, lane) for lane in range(self.width))
        return Lanes(sources, enabled, bool(inst.bc), bool(getattr(inst, "fi", 0)))

    def _from_lane(self, control: int, lane: int) -> int:
        row, at = lane // 16 * 16, lane % 16
        if control < 0x100:
            return lane // 4 * 4 + (control >> lane % 4 * 2 & 3)
        kind, count = control >> 4, control & 15
        if kind == 0x10:
            return row + at + count if at + count < 16 else -1
        if kind == 0x11:
            return row + at - count if at >= count else -1
        if kind == 0x12:
            return row + (at - count) % 16
        if kind == 0x15 and self.family != "cdna":
            return row + count
        if kind == 0x16 and self.family != "cdna":
            return row + (at ^ count)
        one = {0x130: lane + 1 if lane + 1 < self.width else -1, 0x134: (lane + 1) % self.width,
               0x138: lane - 1, 0x13C: (lane - 1) % self.width, 0x140: row + 15 - at,
               0x141: lane // 8 * 8 + 7 - lane % 8, 0x142: row - 1 if row else -1,
               0x143: 31 if lane >= 32 else -1}
        if control not in one:
            raise Unsupported(f"the lane control {control:#x}")
        return one[control]

    # memory

    def _access(self, inst: Any, form: str, name: str, record: _Record) -> Shape:
        text = self._text(name)
        if not text:
            return Shape(self.family, self.width, "S_NOP")
        kind = form.removeprefix("V") if form != "VBUFFER" else "MUBUF"
        made = {"SMEM": self._scalar_access, "DS": self._lds_access, "MUBUF": self._buffer_access}.get(
            kind, self._flat_access)(inst, kind, name, record)
        part = Part(text, (), "v" if made.result else "", inst.op_bits.get("vdst", inst.op_bits.get(
            "vdata", inst.op_bits.get("sdata", 32))))
        return Shape(self.family, self.width, "access", (part,), None, made)

    def _scalar_access(self, inst: Any, kind: str, name: str, record: _Record) -> Memory:
        if "BUFFER" in name:
            raise Unsupported(f"{name} is not carried out here")
        offset = _signed(getattr(inst, "ioffset", None), 24) if hasattr(type(inst), "ioffset") else _signed(
            inst.offset, 21)
        extra = inst.soffset.offset
        if self.family == "cdna":
            has_extra = bool(inst.soffset_en)
            if not inst.imm and not inst.soffset_en:
                offset, extra, has_extra = 0, inst.offset & 0x7F, True
        else:
            has_extra = extra != self.null
        base = inst.sbase
        return Memory("scalar", scalar=record.put(getattr(base, "offset", base)), scalar_bits=64,
                      extra=record.put(extra) if has_extra else 0, offset=record.put(offset),
                      result=record.put(inst.sdata.offset))

    def _lds_access(self, inst: Any, kind: str, name: str, record: _Record) -> Memory:
        joined = inst.offset0 | inst.offset1 << 8
        returned = any(w in name for w in ("LOAD", "READ", "RTN"))
        return Memory("lds", vector=record.put(inst.addr.offset - 256), vector_bits=32,
                      offset=record.put(joined), offsets=(record.put(inst.offset0), record.put(inst.offset1)),
                      data=record.put(inst.data0.offset - 256), data2=record.put(inst.data1.offset - 256),
                      result=record.put(inst.vdst.offset - 256) if returned else 0, returned=returned,
                      accumulator=bool(getattr(inst, "acc", 0)))

    def _flat_access(self, inst: Any, kind: str, name: str, record: _Record) -> Memory:
        newer = self.family == "rdna4"
        vector, data = (inst.vaddr, inst.vsrc) if newer else (inst.addr, inst.data)
        offset = _signed(inst.ioffset, 24) if newer else _signed(inst.offset, 13)
        saddr = inst.saddr.offset
        none = saddr in ((124, 127) if self.family != "cdna" else (127,))
        if kind == "SCRATCH":
            use_vector = bool(inst.sve)
            return Memory("scratch", vector=record.put(vector.offset - 256) if use_vector else 0,
                          vector_bits=32 if use_vector else 0, scalar=0 if none else record.put(saddr),
                          scalar_bits=0 if none else 32, offset=record.put(offset), **self._data(
                              inst, name, data, record))
        return Memory("global", vector=record.put(vector.offset - 256), vector_bits=64 if none else 32,
                      scalar=0 if none else record.put(saddr), scalar_bits=0 if none else 64,
                      offset=record.put(offset), **self._data(inst, name, data, record))

    def _data(self, inst: Any, name: str, data: Any, record: _Record) -> dict[str, Any]:
        returned = "LOAD" in name
        if "ATOMIC" in name:
            flag = {"rdna3": "glc", "cdna": "sc0"}.get(self.family)
            returned = bool(getattr(inst, flag)) if flag else bool(inst.th & 1)
        return {"data": record.put(data.offset - 256),
                "result": record.put(inst.vdst.offset - 256) if returned else 0, "returned": returned,
                "accumulator": bool(getattr(inst, "acc", 0))}

    def _buffer_access(self, inst: Any, kind: str, name: str, record: _Record) -> Memory:
        if getattr(inst, "lds", 0) or "FORMAT" in name:
            raise Unsupported(f"{name} into shared memory, or with a format")
        newer = self.family == "rdna4"
        vdata = record.put(inst.vdata.offset - 256)
        returned = "LOAD" in name
        if "ATOMIC" in name:
            flag = {"rdna3": "glc", "cdna": "sc0"}.get(self.family)
            returned = bool(getattr(inst, flag)) if flag else bool(inst.th & 1)
        code, resource = inst.soffset.offset, inst.rsrc if newer else inst.srsrc.offset
        extra = None if code == self.null else self.coded(record, code, 32, "B32", None)
        vector = record.put(inst.vaddr.offset - 256 + (1 if inst.idxen else 0)) if inst.offen else 0
        return Memory("buffer", vector=vector, vector_bits=32 if vector else 0,
                      extra=0 if extra is None else extra.word if extra.kind == "s" else -extra.word,
                      offset=record.put(_signed(inst.ioffset, 24) if newer else inst.offset),
                      resource=record.put(resource),
                      index=record.put(inst.vaddr.offset - 256) if inst.idxen else 0,
                      data=vdata, result=vdata if returned else 0, returned=returned,
                      accumulator=bool(getattr(inst, "acc", 0)))


def _signed(value: int, bits: int) -> int:
    return value - (1 << bits) if value >> bits - 1 & 1 else value
