"""The function a template writes: what every kernel starts with, and the accesses that need its machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..machines.machine import Machine
from .emit import (
    BYTES,
    F16,
    F32,
    HALVES,
    I1,
    I8,
    I16,
    I32,
    I64,
    PTR,
    Function,
    Module,
    V,
    elem_of,
    lanes_of,
    suffix,
    vec,
)
from .spec import ENTRY

_MANY = 1 << 13
"""Bytes from which on moves of strings are faster than vectors."""
_MOVED = "={di},={si},={cx},0,1,2,~{memory},~{dirflag},~{fpsr},~{flags}"


def _holds(machine: Machine, half: str) -> bool:
    """Whether the machine has vectors of a half precision type, or converts it without calling a function."""
    if machine.arch == "riscv64":
        return machine.has("zvfh")
    if machine.arch == "x86_64":
        return machine.has("f16c" if half == F16 else "avx512bf16")
    return True


def _true_lanes(mask: V) -> list[int] | None:
    """The lanes that are true in a mask that is written out; None for any other."""
    lanes = mask.ref.strip("<>").split(", ")
    return None if not mask.ref.startswith("<") else [i for i, lane in enumerate(lanes) if lane == "i1 true"]


class Body(Function):
    """The function a template writes. `lo`, `hi`: the work items; `scratch`: memory of this thread's own,
    64-byte aligned, of the size the step asks for; `machine`: what is written for."""

    def __init__(self, module: Module, machine: Machine) -> None:
        super().__init__(module, ENTRY, [("ptr", "args"), ("i64", "lo"), ("i64", "hi"), ("ptr", "scratch")],
                         "void", False)
        module.functions.append(self)
        self.machine = machine
        self.args, self.lo, self.hi, self.scratch = self.params

    def as_integers(self, ty: str) -> bool:
        return ty in HALVES and not _holds(self.machine, ty)

    def arg(self, index: int, ty: str) -> V:
        """Cell `index` of the arguments, as `ptr`, `i64`, `i32`, `float` or `double`."""
        if ty not in (PTR, I64, F32, I32, "double"):
            raise ValueError(f"an argument is no {ty}")
        return self.load(ty, self.gep(self.args, index, I64), 0, 8)

    def copied(self, elem: str, source: V, target: V, count: V, vectors: Callable[[], Any]) -> None:
        """Copy `count` elements next to each other: by `vectors()`, or where these are many bytes by the
        processor's own moves of strings, which read no line that they write over. All with AVX-512 have fast
        ones; one that checks what is read and written looks at vectors alone."""
        if self.machine.checked or not self.machine.has("avx512f"):
            vectors()
            return
        size = count * BYTES[elem]
        call = f'call {{ ptr, ptr, i64 }} asm sideeffect "rep movsb", "{_MOVED}"({target}, {source}, {size})'
        self.when(size >= _MANY, lambda: self.line(call), vectors)

    def load_masked(self, ty: str, base: V, index: int | V, mask: V | None, other: Any = 0) -> V:
        """Lanes outside `mask` are not read and get `other`; without one all are read."""
        if mask is None:
            return self.load(ty, base, index)
        elem, lanes = elem_of(ty), lanes_of(ty)
        if elem == I1:
            return self.load_masked(vec(I8, lanes), base, index, mask, other).ne(0)
        if elem in HALVES:
            bits = vec(I16, lanes)
            filler = self.bitcast(other if isinstance(other, V) else self.const(ty, other), bits)
            return self.bitcast(self.load_masked(bits, base, index, mask, filler), ty)
        at = self.gep(base, index, elem)
        name = f"masked.load.v{lanes}{suffix(elem)}.p0"
        self.module.declared[name] = f"declare {ty} @llvm.{name}(ptr, {mask.ty}, {ty})"
        filler = other if isinstance(other, V) else self.const(ty, other)
        return self.emit(ty, f"call {ty} @llvm.{name}(ptr align {BYTES[elem]} {at.ref}, {mask}, {filler})")

    def store_masked(self, x: V, base: V, index: int | V, mask: V | None) -> None:
        """Lanes outside `mask` are not written; without one all are."""
        if mask is None:
            self.store(x, base, index)
            return
        only = _true_lanes(mask)
        if only is not None and len(only) < 2:
            # LLVM 22 stores the one element as wide as it was before a conversion to fewer bytes
            for lane in only:
                self.store(self.extract(x, lane), base, index + lane)
            return
        if x.elem == I1:
            x = self.cast(x, I8)
        if x.elem in HALVES:
            x = self.bitcast(x, vec(I16, x.lanes))
        at = self.gep(base, index, x.elem)
        name = f"masked.store.v{x.lanes}{suffix(x.elem)}.p0"
        self.module.declared[name] = f"declare void @llvm.{name}({x.ty}, ptr, {mask.ty})"
        self.line(f"call void @llvm.{name}({x}, ptr align {BYTES[x.elem]} {at.ref}, {mask})")

    def gather(self, elem: str, base: V, index: V, step: str = "", mask: V | None = None) -> V:
        """The elements of type `elem` at `base` + index, counted in elements of type `step`; 0 where not in
        `mask`."""
        at = self.emit(vec(PTR, index.lanes), f"getelementptr {step or elem}, {base}, {index}", base)
        return self.gathered(elem, at, mask if mask is not None else self.const(vec(I1, index.lanes), True))

    def gathered(self, elem: str, at: V, mask: V) -> V:
        """The elements at the addresses `at`; 0 where not in `mask`."""
        if self.as_integers(elem):
            return self.bitcast(self.gathered(I16, at, mask), vec(elem, at.lanes))
        ty, name = vec(elem, at.lanes), f"masked.gather.v{at.lanes}{suffix(elem)}.v{at.lanes}p0"
        self.module.declared[name] = f"declare {ty} @llvm.{name}({at.ty}, {mask.ty}, {ty})"
        return self.emit(ty, f"call {ty} @llvm.{name}({at.ty} align {BYTES[elem]} {at.ref}, {mask}, "
                             f"{self.zero(ty)})")

    def scatter(self, x: V, base: V, index: V, mask: V) -> None:
        """Store the lanes of `x` that are in `mask` at `base` + index, counted in its elements."""
        at = self.emit(vec(PTR, x.lanes), f"getelementptr {x.elem}, {base}, {index}", base)
        self.scattered(x, at, mask)

    def scattered(self, x: V, at: V, mask: V) -> None:
        if self.as_integers(x.elem):
            x = self.bitcast(x, vec(I16, x.lanes))
        name = f"masked.scatter.v{x.lanes}{suffix(x.elem)}.v{x.lanes}p0"
        self.module.declared[name] = f"declare void @llvm.{name}({x.ty}, {at.ty}, {mask.ty})"
        self.line(f"call void @llvm.{name}({x}, {at.ty} align {BYTES[x.elem]} {at.ref}, {mask})")

    def load_tile(self, tile: int, at: V, stride: V, rows: int | V = 16) -> None:
        """A register of the matrix unit: `rows` rows of 64 bytes, as many as it is configured for, `stride`
        bytes apart."""
        self.module.declared["x86.tileloadd64"] = "declare void @llvm.x86.tileloadd64(i8 immarg, ptr, i64)"
        self.line(f"call void @llvm.x86.tileloadd64(i8 {tile}, {at}, {stride})")

    def store_tile(self, tile: int, at: V, stride: V, rows: int | V = 16) -> None:
        self.module.declared["x86.tilestored64"] = "declare void @llvm.x86.tilestored64(i8 immarg, ptr, i64)"
        self.line(f"call void @llvm.x86.tilestored64(i8 {tile}, {at}, {stride})")

    def fence(self) -> None:
        """None on RISC-V: nothing is moved there anyway, and behind one LLVM sets the vector length anew."""
        if self.machine.arch != "riscv64":
            super().fence()
