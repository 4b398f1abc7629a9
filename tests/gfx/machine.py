"""AMD machine code carried out on the CPU: a code object, a grid and numpy arrays go in, the arrays come out
as the GPU would leave them.

Every access is held to the bytes of an array, of local data or of a lane's scratch: one byte past is an error
that names the instruction. Registers, local data and scratch begin as NaN; with a seed, workgroups and waves
run in a random order. Workgroups run one after the other, so that a kernel which waits for another workgroup
hangs.
"""

from __future__ import annotations

import collections
import ctypes
import functools
import hashlib
import itertools
import os
import random
import struct
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import llvmlite
import llvmlite.binding as llvm
import numpy as np

from . import by_hand
from . import instructions as ins
from .assembly import module_for
from .code_object import CodeObject, Kernel
from .instructions import Decoder, Shape, Unsupported, name_of, parse

POISON = 0x7FD17FD1
_CONTEXT = 24
_BY_HAND = 1
_REASONS = {ins.DONE: "done", ins.BARRIER: "barrier"}


class MachineError(RuntimeError):
    """A kernel did what it must not do, or what this machine cannot."""


class Fault(MachineError):
    """An access outside of what was given."""


class Hang(MachineError):
    """More instructions than allowed."""


@dataclass(frozen=True)
class Address:
    """A pointer into an array, `offset` bytes behind its start: the kernel may touch all of the array."""

    array: np.ndarray
    offset: int


@dataclass
class Report:
    """What a launch did: how often each opcode ran, over all waves."""

    opcodes: collections.Counter[str]
    workgroups: int

    @property
    def instructions(self) -> int:
        return self.opcodes.total()


_LOOP = """
define i64 @reach(i64 %context, i64 %address, i64 %size, i64 %store) {{
entry:
  %c = inttoptr i64 %context to i64*
  %p = getelementptr i64, i64* %c, i64 {regions}
  %pv = load i64, i64* %p
  %table = inttoptr i64 %pv to i64*
  %q = getelementptr i64, i64* %c, i64 {count}
  %n = load i64, i64* %q
  %end = add i64 %address, %size
  %wraps = icmp ult i64 %end, %address
  br i1 %wraps, label %fault, label %head
head:
  %i = phi i64 [0, %entry], [%j, %next]
  %more = icmp ult i64 %i, %n
  br i1 %more, label %body, label %fault
body:
  %at = mul i64 %i, 3
  %a0 = getelementptr i64, i64* %table, i64 %at
  %first = load i64, i64* %a0
  %at1 = add i64 %at, 1
  %a1 = getelementptr i64, i64* %table, i64 %at1
  %last = load i64, i64* %a1
  %at2 = add i64 %at, 2
  %a2 = getelementptr i64, i64* %table, i64 %at2
  %writable = load i64, i64* %a2
  %above = icmp uge i64 %address, %first
  %below = icmp ule i64 %end, %last
  %may = icmp uge i64 %writable, %store
  %in = and i1 %above, %below
  %ok = and i1 %in, %may
  br i1 %ok, label %found, label %next
next:
  %j = add i64 %i, 1
  br label %head
found:
  ret i64 %address
fault:
  %f = getelementptr i64, i64* %c, i64 {fault}
  store i64 %address, i64* %f
  %fb = getelementptr i64, i64* %c, i64 {fault_bytes}
  store i64 %size, i64* %fb
  %s = getelementptr i64, i64* %c, i64 {stop}
  store i64 {faulted}, i64* %s
  %k = getelementptr i64, i64* %c, i64 {sink}
  %kv = load i64, i64* %k
  ret i64 %kv
}}

define void @run(i64* %c, i64* %records, i64 %n, i64* %counts) {{
entry:
  %pcp = getelementptr i64, i64* %c, i64 {pc}
  %stopp = getelementptr i64, i64* %c, i64 {stop}
  %budgetp = getelementptr i64, i64* %c, i64 {budget}
  %lastp = getelementptr i64, i64* %c, i64 {last}
  br label %head
head:
  %pc = load i64, i64* %pcp
  store i64 %pc, i64* %lastp
  %inside = icmp ult i64 %pc, %n
  br i1 %inside, label %fetch, label %bad
fetch:
  %at = mul i64 %pc, {words}
  %rec = getelementptr i64, i64* %records, i64 %at
  %fn = load i64, i64* %rec
  %missing = icmp eq i64 %fn, 0
  br i1 %missing, label %none, label %pay
pay:
  %left = load i64, i64* %budgetp
  %spent = icmp eq i64 %left, 0
  br i1 %spent, label %exhausted, label %count
count:
  %less = sub i64 %left, 1
  store i64 %less, i64* %budgetp
  %cp = getelementptr i64, i64* %counts, i64 %pc
  %cv = load i64, i64* %cp
  %cw = add i64 %cv, 1
  store i64 %cw, i64* %cp
  %sp = getelementptr i64, i64* %rec, i64 1
  %size = load i64, i64* %sp
  %after = add i64 %pc, %size
  store i64 %after, i64* %pcp
  %hand = icmp eq i64 %fn, {by_hand_mark}
  br i1 %hand, label %byhand, label %call
call:
  %f = inttoptr i64 %fn to void (i64*, i64*)*
  call void %f(i64* %c, i64* %rec)
  %s = load i64, i64* %stopp
  %on = icmp eq i64 %s, 0
  br i1 %on, label %head, label %out
bad:
  store i64 {bad_pc}, i64* %stopp
  br label %out
none:
  store i64 {no_function}, i64* %stopp
  br label %out
exhausted:
  store i64 {exhausted}, i64* %stopp
  br label %out
byhand:
  store i64 {by_hand}, i64* %stopp
  br label %out
out:
  ret void
}}
"""


def _sources() -> str:
    """This machine's own text, which its compiled functions depend on."""
    here = Path(__file__).parent
    return "".join((here / f"{n}.py").read_text() for n in (
        "pseudocode", "texts", "functions", "semantics", "instructions", "assembly"))


class _Library:
    """Compiled functions, one per shape; kept in a folder between processes."""

    def __init__(self) -> None:
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        features = llvm.get_host_cpu_features().flatten()
        target = llvm.Target.from_default_triple()
        self.machine = target.create_target_machine(cpu=llvm.get_host_cpu_name(), features=features, opt=2,
                                                    jit=True)
        loop = llvm.parse_assembly(_LOOP.format(
            regions=ins.REGIONS, count=ins.REGION_COUNT, fault=ins.FAULT, fault_bytes=ins.FAULT_BYTES,
            stop=ins.STOP, faulted=ins.FAULTED, sink=ins.SINK, pc=ins.PC, budget=ins.BUDGET, last=ins.LAST,
            words=ins.WORDS, by_hand_mark=_BY_HAND, bad_pc=ins.BAD_PC, no_function=ins.NO_FUNCTION,
            exhausted=ins.EXHAUSTED, by_hand=ins.BY_HAND))
        self.engine = llvm.create_mcjit_compiler(loop, self.machine)
        self.engine.finalize_object()
        self.reach = self.engine.get_function_address("reach")
        words = ctypes.POINTER(ctypes.c_uint64)
        self.run = ctypes.CFUNCTYPE(None, words, words, ctypes.c_uint64, words)(
            self.engine.get_function_address("run"))
        self.found: dict[Shape, int | str] = {}
        stamp = f"{llvmlite.__version__} {llvm.get_host_cpu_name()} {features} {_sources()}"
        self.stamp = hashlib.sha256(stamp.encode()).hexdigest()
        base = os.environ.get("ORTHRUS_CACHE_DIR") or tempfile.gettempdir()
        self.folder = Path(base) / "gfx" / self.stamp[:16]

    def functions(self, shapes: Sequence[Shape]) -> None:
        """Make sure that each shape has a function, or the reason why there is none."""
        for shape in dict.fromkeys(shapes):
            if shape in self.found:
                continue
            key = "f" + hashlib.sha256((self.stamp + repr(shape)).encode()).hexdigest()[:32]
            try:
                code = self._kept(key) or self._compiled(key, shape)
            except Unsupported as reason:
                self.found[shape] = str(reason)
                continue
            self.engine.add_object_file(llvm.ObjectFileRef.from_data(code))
            self.engine.finalize_object()
            self.found[shape] = self.engine.get_function_address(key)

    def _kept(self, key: str) -> bytes | None:
        try:
            return (self.folder / key).read_bytes()
        except OSError:
            return None

    def _compiled(self, key: str, shape: Shape) -> bytes:
        module = llvm.parse_assembly(str(module_for(shape, key)))
        module.verify()
        builder = llvm.create_pass_builder(self.machine, llvm.create_pipeline_tuning_options(speed_level=2))
        builder.getModulePassManager().run(module, builder)
        code: bytes = self.machine.emit_object(module)
        self.folder.mkdir(parents=True, exist_ok=True)
        part = self.folder / f"{key}.{os.getpid()}"
        part.write_bytes(code)
        part.replace(self.folder / key)
        return code


@functools.cache
def _library() -> _Library:
    return _Library()


_lock = threading.RLock()


class _Program:
    """A kernel's instructions as records."""

    def __init__(self, code: CodeObject, kernel: Kernel) -> None:
        library, decoder = _library(), Decoder(code.family)
        self.kernel, self.base = kernel, kernel.entry
        size = kernel.end - kernel.entry
        self.slots = size // 4
        text = ctypes.string_at(kernel.entry, size) + bytes(16)
        self.inst: dict[int, Any] = {}
        self.reasons: dict[int, str] = {}
        decoded: dict[int, ins.Decoded] = {}
        at = 0
        while at < size:
            slot = at // 4
            try:
                inst = parse(text[at:at + 20], code.family)
            except ValueError as error:
                self.reasons[slot], at = str(error), at + 4
                continue
            self.inst[slot] = inst
            try:
                decoded[slot] = decoder.decode(inst, slot)
            except Unsupported as reason:
                self.reasons[slot] = str(reason)
            at += int(inst.size())
        library.functions([d.shape for d in decoded.values() if d.shape is not None])
        self.records = np.zeros((self.slots, ins.WORDS), np.uint64)
        for slot, it in decoded.items():
            made = _BY_HAND if it.shape is None else library.found[it.shape]
            if isinstance(made, str):
                self.reasons[slot] = made
                continue
            self.records[slot, :2 + len(it.words)] = np.array([made, it.length, *it.words], np.uint64)
        self.counts = np.zeros(self.slots, np.uint64)

    def at(self, slot: int) -> str:
        return f"{self.kernel.name}+{4 * slot:#x}: {self.inst.get(slot, '?')}"


class _Regions:
    """What a kernel may touch."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, int, int]] = []
        self.names: list[str] = []
        self.kept: list[Any] = []

    def add(self, name: str, array: np.ndarray, writable: bool) -> int:
        start = int(array.ctypes.data)
        self.rows.append((start, start + array.nbytes, int(writable)))
        self.names.append(name)
        self.kept.append(array)
        return start

    def describe(self, address: int) -> str:
        near = min(range(len(self.rows)), key=lambda i: max(self.rows[i][0] - address,
                                                            address - self.rows[i][1], 0))
        start, end, writable = self.rows[near]
        kind = "" if writable else " (read only)"
        return f"offset {address - start} of {self.names[near]}{kind}, which has {end - start} bytes"


def run(code: CodeObject | bytes, kernel: str | None, grid: int | Sequence[int], arguments: Sequence[Any], *,
        threads: int | None = None, shared: int = 0, seed: int | None = None,
        budget: int = 200_000_000) -> Report:
    """Launch a kernel over `grid` workgroups of `threads` threads (as many as it was compiled for).

    `arguments`: contiguous arrays, or an Address, for pointers, changed in place; None for a null pointer;
    numbers as wide as the parameter says (numpy scalars keep their bytes). Trailing pointers may be left out.
    `shared`: bytes of local data beside what the kernel declares.
    Raises Fault, Hang and MachineError.
    """
    code = code if isinstance(code, CodeObject) else CodeObject(code)
    found = code.kernel(kernel)
    width = 64 if code.family == "cdna" else 32
    if found.wave != width:
        raise MachineError(f"{found.name} is compiled for waves of {found.wave} lanes, not {width}")
    sizes = (grid,) if isinstance(grid, int) else tuple(grid)
    with _lock:
        programs = code.__dict__.setdefault("programs", {})
        if found.name not in programs:
            programs[found.name] = _Program(code, found)
        return _Launch(code, programs[found.name], sizes, arguments, threads or found.most_threads, shared,
                       seed, budget).go()


class _Launch:
    def __init__(self, code: CodeObject, program: _Program, grid: tuple[int, ...], arguments: Sequence[Any],
                 threads: int, shared: int, seed: int | None, budget: int) -> None:
        self.code, self.program, self.kernel = code, program, program.kernel
        self.width = self.kernel.wave
        self.dims, self.grid = len(grid), (*grid, 1, 1)[:3]
        self.threads, self.budget = threads, budget
        self.random = None if seed is None else random.Random(seed)
        if not 0 < threads <= self.kernel.most_threads:
            raise ValueError(f"{threads} threads; {self.kernel.name} allows 1 to {self.kernel.most_threads}")
        self.regions = _Regions()
        self.regions.add("the code", np.ctypeslib.as_array(
            (ctypes.c_uint8 * code.size).from_address(code.base)), False)
        self.lds = np.zeros(max(4, self.kernel.shared + shared), np.uint8)
        self.sink = np.zeros(ins.SINK_BYTES, np.uint8)
        self.scratch_bytes = -(-self.kernel.scratch // 16) * 16
        self.packed = self._arguments(arguments)
        self.where = self.regions.add("the arguments", self.packed, False)
        self.packet = np.frombuffer(struct.pack(
            "<HHHHHHIIIIIQQQQ", 0, self.dims, threads, 1, 1, 0, self.grid[0] * threads, self.grid[1],
            self.grid[2], self.kernel.scratch, len(self.lds), 0, self.where, 0, 0), np.uint8)
        self.dispatch = self.regions.add("the dispatch packet", self.packet, False)
        self.waves = [self._wave() for _ in range(-(-threads // self.width))]
        self.regions.add("the sink", self.sink, True)
        self.table = np.array(self.regions.rows, np.uint64)

    def _arguments(self, given: Sequence[Any]) -> np.ndarray:
        packed = np.zeros(max(self.kernel.argument_bytes, 16) + 64, np.uint8)
        wanted = self.kernel.explicit
        if len(given) > len(wanted):
            raise TypeError(f"{self.kernel.name} takes {len(wanted)} arguments, not {len(given)}")
        for i, it in enumerate(wanted):
            pointer = it[".value_kind"] == "global_buffer"
            if i >= len(given) and not pointer:
                raise TypeError(f"{self.kernel.name} needs its argument {i}")
            raw = self._argument(i, given[i] if i < len(given) else None, pointer, it[".size"])
            packed[it[".offset"]:it[".offset"] + it[".size"]] = np.frombuffer(raw, np.uint8)
        hidden = {"hidden_grid_dims": self.dims,
                  **{f"hidden_block_count_{c}": self.grid[i] for i, c in enumerate("xyz")},
                  **{f"hidden_group_size_{c}": (self.threads, 1, 1)[i] for i, c in enumerate("xyz")}}
        for it in self.kernel.arguments:
            value = hidden.get(it[".value_kind"])
            if value is not None:
                raw = value.to_bytes(it[".size"], "little")
                packed[it[".offset"]:it[".offset"] + it[".size"]] = np.frombuffer(raw, np.uint8)
        return packed

    def _argument(self, at: int, value: Any, pointer: bool, size: int) -> bytes:
        if isinstance(value, Address):
            start = self._argument(at, value.array, pointer, size)
            return struct.pack("<Q", struct.unpack("<Q", start)[0] + value.offset)
        if isinstance(value, np.ndarray):
            if not pointer:
                raise TypeError(f"argument {at} of {self.kernel.name} is a number, not an array")
            if not value.flags.c_contiguous:
                raise ValueError(f"argument {at} of {self.kernel.name} is not contiguous")
            return struct.pack("<Q", self.regions.add(f"argument {at}", value, value.flags.writeable))
        if value is None:
            return bytes(size)
        if pointer:
            raise TypeError(f"argument {at} of {self.kernel.name} is a pointer, not {type(value).__name__}")
        if isinstance(value, np.generic):
            raw = value.tobytes()
        elif isinstance(value, float):
            raw = struct.pack({2: "<e", 4: "<f", 8: "<d"}[size], value)
        else:
            raw = (int(value) & (1 << 8 * size) - 1).to_bytes(size, "little")
        if len(raw) != size:
            raise TypeError(f"argument {at} of {self.kernel.name} has {size} bytes, not {len(raw)}")
        return raw

    def _wave(self) -> tuple[np.ndarray, by_hand.Wave, np.ndarray]:
        """A wave's context and registers, and its lanes' scratch."""
        sgprs = np.zeros(ins.SCALARS, np.uint32)
        vgprs = np.zeros((512, self.width), np.uint32)
        accs = np.zeros((512, self.width), np.uint32)
        scratch = np.zeros(max(16, self.scratch_bytes * self.width), np.uint8)
        context = np.zeros(_CONTEXT, np.uint64)
        for word, value in ((ins.SGPRS, sgprs.ctypes.data), (ins.VGPRS, vgprs.ctypes.data),
                            (ins.ACCS, accs.ctypes.data), (ins.LDS, self.lds.ctypes.data),
                            (ins.LDS_BYTES, len(self.lds)),
                            (ins.SCRATCH, scratch.ctypes.data), (ins.SCRATCH_BYTES, self.scratch_bytes),
                            (ins.CODE, self.program.base), (ins.SINK, self.sink.ctypes.data),
                            (ins.REACH, _library().reach)):
            context[word] = value
        return context, by_hand.Wave(self.code.family, sgprs, vgprs, accs), scratch

    def go(self) -> Report:
        self.program.counts[:] = 0
        order = [group[::-1] for group in itertools.product(*map(range, self.grid[::-1]))]
        if self.random is not None:
            self.random.shuffle(order)
        for group in order:
            self._group(group)
        opcodes: collections.Counter[str] = collections.Counter()
        for slot in np.flatnonzero(self.program.counts):
            opcodes[name_of(self.program.inst[int(slot)])] += int(self.program.counts[slot])
        return Report(opcodes, len(order))

    def _group(self, group: tuple[int, int, int]) -> None:
        self.lds[:] = np.resize(np.frombuffer(struct.pack("<I", POISON), np.uint8), len(self.lds))
        for i, (context, wave, scratch) in enumerate(self.waves):
            self._begin(i, group, context, wave, scratch)
        alive = list(range(len(self.waves)))
        while alive:
            if self.random is not None:
                self.random.shuffle(alive)
            alive = [i for i in alive if self._until_stop(i, group) == ins.BARRIER]

    def _begin(self, index: int, group: tuple[int, int, int], context: np.ndarray, wave: by_hand.Wave,
               scratch: np.ndarray) -> None:
        kernel = self.kernel
        wave.sgprs[:], wave.vgprs[:], wave.accs[:] = POISON, POISON, POISON
        scratch.view(np.uint32)[:] = POISON
        lanes = min(self.width, self.threads - index * self.width)
        enabled = (1 << lanes) - 1
        user: list[int] = []
        for bit, words in ((0, (0, 0, 0xFFFFFFFF, 0)), (1, _halves(self.dispatch)), (2, (0, 0)),
                           (3, _halves(self.where)), (4, (0, 0)), (5, (0, 0)), (6, (kernel.scratch,))):
            if kernel.properties >> bit & 1:
                user += words
        wave.sgprs[:len(user)] = user
        if self.code.family == "rdna4":
            wave.sgprs[117], wave.sgprs[115] = group[0], group[1] & 0xFFFF | group[2] << 16
            wave.sgprs[116] = index << 25
        else:
            at = kernel.resources[1] >> 1 & 31
            for axis in range(3):
                if kernel.resources[1] >> 7 + axis & 1:
                    wave.sgprs[at], at = group[axis], at + 1
        if self.code.family != "cdna":
            wave.sgprs[ins.NULL] = 0
        wave.sgprs[ins.EXEC], wave.sgprs[ins.EXEC + 1] = enabled & 0xFFFFFFFF, enabled >> 32
        wave.sgprs[ins.SCC] = 0
        wave.vgprs[0] = np.arange(index * self.width, (index + 1) * self.width)
        context[ins.PC] = 0
        context[ins.REGIONS], context[ins.REGION_COUNT] = self.table.ctypes.data, len(self.table)

    def _until_stop(self, index: int, group: tuple[int, int, int]) -> int:
        """Run a wave to its end or to a barrier."""
        context, wave, _ = self.waves[index]
        words = ctypes.POINTER(ctypes.c_uint64)
        program = self.program
        arguments = (context.ctypes.data_as(words), program.records.ctypes.data_as(words), program.slots,
                     program.counts.ctypes.data_as(words))
        while True:
            context[ins.STOP], context[ins.BUDGET] = 0, self.budget
            _library().run(*arguments)
            self.budget = int(context[ins.BUDGET])
            stop, slot = int(context[ins.STOP]), int(context[ins.LAST])
            if stop in _REASONS:
                return stop
            place = f"workgroup {group}, wave {index}, {program.at(slot)}"
            if stop == ins.BY_HAND:
                try:
                    by_hand.carry_out(program.inst[slot], wave)
                except Unsupported as reason:
                    raise MachineError(f"{place}: {reason}") from None
                continue
            self._fail(stop, slot, place, context)

    def _fail(self, stop: int, slot: int, place: str, context: np.ndarray) -> None:
        if stop == ins.EXHAUSTED:
            raise Hang(f"{place}: no instructions are left")
        if stop == ins.NO_FUNCTION:
            raise MachineError(f"{place}: {self.program.reasons.get(slot, 'no instruction begins here')}")
        if stop == ins.BAD_PC:
            raise MachineError(f"{place}: a jump out of the kernel")
        address, size = int(context[ins.FAULT]), int(context[ins.FAULT_BYTES])
        name = name_of(self.program.inst[slot])
        if name.startswith("DS_"):
            where = f"offset {address} of {len(self.lds)} bytes of local data"
        elif name.startswith("SCRATCH_"):
            where = f"offset {address} of {self.scratch_bytes} bytes of scratch"
        else:
            where = self.regions.describe(address)
        raise Fault(f"{place}: {size} bytes at {where}")


def _halves(value: int) -> tuple[int, int]:
    return value & 0xFFFFFFFF, value >> 32
