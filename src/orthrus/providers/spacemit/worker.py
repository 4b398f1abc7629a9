"""The worker's program: it serves requests until nobody can send any more.

A request is eight 8-byte cells on standard input, its answer one cell on standard output; before the first
one it writes how many bytes a vector register holds. A request is either

    0, number, six arguments          a system call; the answer is its result
    list, count, six cells unused     `count` calls; the answer is `count`

where a list is a cell that the worker sets to the number of calls begun, so that the other side knows where
the worker stopped, and five cells for each call: kernel, its arguments, first item, end of items, scratch.
"""

from __future__ import annotations

import functools

from ...codegen.build import assemble
from ...codegen.emit import I32, I64, PTR, VOID, Function, Module, V
from ...codegen.link import image
from ...codegen.machine import RVV128
from . import elf

CELLS, ROW = 8, 5
_ADDRESS = 1 << 20
_READ, _WRITE, _EXIT = 63, 64, 93


def _syscall() -> list[int]:
    """A function (number, six arguments) -> result: no LLVM instruction leads into the kernel."""
    def move(to: int, source: int) -> int:
        return source << 15 | to << 7 | 0x13

    a = [10 + i for i in range(8)]
    into_kernel, fetch_anew, back = 0x73, 0x100F, 0x8067
    return [move(a[7], a[0]), *(move(a[i], a[i + 1]) for i in range(6)), into_kernel, fetch_anew, back]


def text() -> str:
    """The program as LLVM assembly."""
    module = Module(RVV128.triple)
    f = module.function("_start", [], VOID)
    enter, request = f.table(I32, _syscall()), f.alloca(I64, CELLS)
    where = f.cast(request, I64)

    def call(number: int | V, *args: int | V) -> V:
        given = [f.i64(a) for a in (number, *args)]
        return f.call(enter, [*given, *[f.i64(0)] * (7 - len(given))], I64)

    def answer(x: V) -> None:
        f.store(x, request)
        call(_WRITE, 1, where, 8)

    def leave() -> None:
        call(_EXIT, 0)

    def serve() -> tuple[V, list[V]]:
        f.when(call(_READ, 0, where, 8 * CELLS).ne(8 * CELLS), leave)
        first, second = (f.load(I64, request, i) for i in range(2))
        f.when(first.eq(0),
               lambda: answer(call(second, *(f.load(I64, request, i) for i in range(2, CELLS)))),
               lambda: answer(_run(f, f.cast(first, PTR), second)))
        return f.const("i1", 1), []

    answer(f.intrinsic("vscale.i64", I64) * 8)
    f.repeat([], serve)
    f.ret()
    return str(module)


def _run(f: Function, calls: V, count: V) -> V:
    def one(i: V) -> None:
        f.store(i + 1, calls)
        row = f.gep(calls, i * ROW + 1, I64)
        kernel, args, scratch = (f.load(PTR, row, at) for at in (0, 1, 4))
        f.call(kernel, [args, f.load(I64, row, 2), f.load(I64, row, 3), scratch])

    f.loop(0, count, 1, [], one)
    return count


@functools.cache
def build() -> bytes:
    """The program as an ELF file."""
    made, (found,) = image([bytes(assemble(text(), RVV128))], _ADDRESS, "riscv64")  # type: ignore[arg-type]
    return elf.program(made, _ADDRESS, found["_start"])
