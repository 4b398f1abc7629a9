"""The worker's program: it serves requests until nobody can send any more, and ends between two calls where
the process that started it has ended.

A request is eight 8-byte cells on standard input, its answer one cell on standard output; before the first
one it writes how many bytes a vector register holds. A request is either

    0, number, six arguments          a system call; the answer is its result
    list, count, six cells unused     `count` calls; the answer is `count`

where a list is a cell that the worker sets to the number of calls begun, so that the other side knows where
the worker stopped, and five cells for each call: kernel, its arguments, first item, end of items, scratch.

What an emulator does not know of SpacemiT's instructions, the program does itself: see `illegal`. Its own
code uses no vector register there. System calls have the same numbers on every architecture there is here.
"""

from __future__ import annotations

import functools
import hashlib
from dataclasses import replace
from typing import NamedTuple

from ..machines.machine import NEON, RVV128, Machine
from ..object import library
from ..write.emit import I64, PTR, VOID, Function, Module, V
from . import elf
from .illegal import SIGNAL, handler
from .system import on_signal, system, vector_bytes

CELLS, ROW = 8, 5
_ADDRESS = 1 << 20
_READ, _WRITE, _EXIT, _PARENT = 63, 64, 93, 173
MACHINES = {"riscv64": replace(RVV128, features=("a", "c", "d", "f", "m")), "aarch64": NEON}
"""What the program is compiled for, by architecture."""


def text(arch: str) -> str:
    """The program as LLVM assembly."""
    module = Module(MACHINES[arch].triple)
    takes_over = handler(module) if arch == "riscv64" else None
    f = module.function("_start", [], VOID)
    request, parent = f.alloca(I64, CELLS), system(f, _PARENT)
    where = f.cast(request, I64)

    def answer(x: V) -> None:
        f.store(x, request)
        system(f, _WRITE, 1, where, 8)

    def serve() -> tuple[V, list[V]]:
        f.when(system(f, _READ, 0, where, 8 * CELLS).ne(8 * CELLS), lambda: _leave(f))
        first, second = (f.load(I64, request, i) for i in range(2))
        f.when(first.eq(0),
               lambda: answer(system(f, second, *(f.load(I64, request, i) for i in range(2, CELLS)))),
               lambda: answer(_run(f, f.cast(first, PTR), second, parent)))
        return f.const("i1", 1), []

    if takes_over is not None:
        on_signal(f, SIGNAL, V(f, PTR, f"@{takes_over.name}"))
    answer(vector_bytes(f))
    f.repeat([], serve)
    f.ret()
    return str(module)


def _leave(f: Function) -> None:
    system(f, _EXIT, 0)


def _run(f: Function, calls: V, count: V, parent: V) -> V:
    def one(i: V) -> None:
        f.when(system(f, _PARENT).ne(parent), lambda: _leave(f))
        f.store(i + 1, calls)
        row = f.gep(calls, i * ROW + 1, I64)
        kernel, args, scratch = (f.load(PTR, row, at) for at in (0, 1, 4))
        f.call(kernel, [args, f.load(I64, row, 2), f.load(I64, row, 3), scratch])

    f.loop(0, count, 1, [], one)
    return count


class WorkerCode(NamedTuple):
    """The program as a unit of the library; `digest` of its text, which several files write."""

    arch: str
    digest: str

    @classmethod
    def now(cls, arch: str) -> WorkerCode:
        return cls(arch, hashlib.blake2b(text(arch).encode(), digest_size=16).hexdigest())

    @property
    def origin(self) -> str:
        return __file__

    def text(self, machine: Machine) -> str:
        return text(self.arch)


@functools.cache
def build(arch: str) -> bytes:
    """The program as an ELF file."""
    made, (found,) = library.image([WorkerCode.now(arch)], MACHINES[arch], _ADDRESS)
    return elf.program(made, _ADDRESS, found["_start"], arch)
