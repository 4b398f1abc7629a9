"""RISC-V code linked for another place, the worker that runs it, and what happens when it does not."""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("llvmlite")

from hypothesis import given
from hypothesis import strategies as st
from skips import needs

from orthrus.codegen.emulate import elf, emulator
from orthrus.codegen.emulate.emulator import Call, Calls, Worker
from orthrus.codegen.emulate.shared import CODE, PAGE, Shared
from orthrus.codegen.machines.machine import BITS, HALF, RVV128, RVV1024, rvv
from orthrus.codegen.object import link, link_riscv
from orthrus.codegen.object.build import assemble
from orthrus.codegen.write.emit import F16, F32, I32, I64, PTR, VOID, Module, V
from orthrus.errors import Fail
from orthrus.ir import No

emulated = needs("emulator")


def kernel(write: object, machine: object = RVV128) -> bytes:
    """The object of a kernel: `write(f, args, scratch)`."""
    module = Module(RVV128.triple)
    f = module.function("kernel", [(PTR, "args"), (I64, "lo"), (I64, "hi"), (PTR, "scratch")], VOID)
    write(f, f.params[0], f.params[3])  # type: ignore[operator]
    f.ret()
    return bytes(assemble(str(module), machine))  # type: ignore[arg-type]


def number(value: int) -> bytes:
    """Stores a number where its first argument points, read from a table in its constants."""
    def write(f, args: V, scratch: V) -> None:
        at = f.load(PTR, args)
        f.store(f.load(I64, f.table(I64, [7, value]), f.load(I64, at)), at)
    return kernel(write)


def bits(word: int, *parts: tuple[int, int, int]) -> int:
    """The number whose bits `to` on are `count` bits of the word from `first` on, the topmost a sign."""
    made = sum((word >> first & (1 << count) - 1) << to for first, count, to in parts)
    top = max(to + count for _, count, to in parts)
    return made - (made >> top - 1 << top)


FIELDS = {
    16: ("<I", 13, ((31, 1, 12), (7, 1, 11), (25, 6, 5), (8, 4, 1)), 0x00B51063),
    17: ("<I", 21, ((31, 1, 20), (12, 8, 12), (20, 1, 11), (21, 10, 1)), 0x0000006F),
    44: ("<H", 9, ((12, 1, 8), (5, 2, 6), (2, 1, 5), (10, 2, 3), (3, 2, 1)), 0xC101),
    45: ("<H", 12, ((12, 1, 11), (8, 1, 10), (9, 2, 8), (6, 1, 7), (7, 1, 6), (2, 1, 5), (11, 1, 4),
                    (3, 3, 1)), 0xA001)}
"""Branches: form, bits of the distance, where they stand in the instruction, an instruction."""


@given(st.sampled_from(tuple(FIELDS)), st.data())
def test_branches_reach_what_they_name(kind: int, data: st.DataObject) -> None:
    form, size, parts, word = FIELDS[kind]
    distance = 2 * data.draw(st.integers(-1 << size - 2, (1 << size - 2) - 1))
    memory = memoryview(bytearray(struct.pack(form, word)))
    link_riscv.PATCHES[kind][1](memory, 0, 0x10000 + distance, 0x10000)
    (made,) = struct.unpack(form, memory)
    assert bits(made, *parts) == distance
    mask = sum((1 << count) - 1 << first for first, count, _ in parts)
    assert made & ~mask == word & ~mask
    with pytest.raises(ValueError, match="does not fit"):
        link_riscv.PATCHES[kind][1](memory, 0, 0x10000 + (1 << size), 0x10000)


@given(st.integers(-(1 << 31), (1 << 31) - 0x801), st.sampled_from((24, 25)))
def test_addresses_in_two_halves(distance: int, low: int) -> None:
    memory = memoryview(bytearray(struct.pack("<II", 0x517, 0x53503 if low == 24 else 0xA53023)))
    rows = link_riscv.paired([(4, low, 0), (0, 23, distance)])
    for at, kind, target in rows:
        link_riscv.PATCHES[kind][1](memory, at, target, at)
    high, second = struct.unpack("<II", memory)
    part = bits(second, (20, 12, 0)) if low == 24 else bits(second, (25, 7, 5), (7, 5, 0))
    assert bits(high, (12, 20, 12)) + part == distance
    assert (high & 0xFFF, second & 0x7F) == (0x517, 0x3 if low == 24 else 0x23)
    with pytest.raises(ValueError, match="no high half"):
        link_riscv.paired([(4, low, 8), (0, 23, distance)])


def test_differences_wrap() -> None:
    memory = memoryview(bytearray(12))
    for kind, target in ((36, 5), (40, 9), (35, 3)):
        link_riscv.PATCHES[kind][1](memory, 0 if kind != 35 else 8, target, 0)
    assert struct.unpack("<qi", memory) == (-4, 3)


def test_image() -> None:
    code = number(5)
    first, (found,) = link.image([code], 1 << 20, "riscv64")
    second, _ = link.image([code], 1 << 44, "riscv64")
    assert first == second, "the code depends on where it lies"
    assert found["kernel"] == 1 << 20
    both, (a, b) = link.image([code, number(6)], 1 << 20, "riscv64")
    assert both.startswith(first.rstrip(b"\0")) and a["kernel"] < b["kernel"] < (1 << 20) + len(both)
    for objects, address, arch in (([code], 8, "riscv64"), ([code], 0, "mips"), ([code], 0, "x86_64"),
                                   ([code[:500]], 0, "riscv64"), ([b"no"], 0, "riscv64")):
        with pytest.raises(ValueError):
            link.image(objects, address, arch)
    outside = assemble("declare void @away()\ndefine void @kernel() {\n  call void @away()\n  ret void\n}\n",
                       RVV128)
    with pytest.raises(ValueError, match="outside itself"):
        link.image([bytes(outside)], 0, "riscv64")  # type: ignore[arg-type]


def test_program_file() -> None:
    made = elf.program(b"\x13\0\0\0", 1 << 20, 1 << 20, "riscv64")
    assert made[:4] == b"\x7fELF" and struct.unpack_from("<HHI", made, 16) == (2, 243, 1)
    assert struct.unpack_from("<QQ", made, 24) == (1 << 20, 64) and made[PAGE:] == b"\x13\0\0\0"
    for address, entry in ((8, 8), (1 << 20, 4 + (1 << 20)), (1 << 20, 0)):
        with pytest.raises(ValueError):
            elf.program(b"\x13\0\0\0", address, entry, "riscv64")


def test_machines() -> None:
    assert [rvv(b).lanes() for b in (128, 256, 512, 1024)] == [4, 8, 16, 32]
    assert "+zvl1024b" in RVV1024.feature_text.split(",")
    for wrong in (64, 300, 2048):
        with pytest.raises(ValueError):
            rvv(wrong)


def test_memory() -> None:
    shared = Shared("riscv64")
    a, b = shared.take(100), shared.take(5, PAGE)
    assert a % 64 == 0 and b % PAGE == 0 and a >= shared.address + CODE
    shared.release(a)
    assert shared.take(64) == a, "what was given back is used again"
    before = os.fstat(shared.fd).st_size
    x = shared.array((1 << 22, 2), "float32")
    assert os.fstat(shared.fd).st_size > before and x.shape == (1 << 22, 2)
    x[-1] = 3
    assert ctypes.c_float.from_address(x.ctypes.data + x.nbytes - 4).value == 3
    with pytest.raises(MemoryError):
        shared.take(1 << 40)
    with pytest.raises(ValueError):
        shared.load([b"no object"])
    for at in (a, b, x.ctypes.data):
        shared.release(at)
    shared._reclaim()
    assert len(shared._free) == 1, "neighbours are one again"
    shared.close()


def test_without_an_emulator(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(emulator, "_PACKAGE", "no_package_of_that_name")
    found = emulator.find("riscv64")
    assert isinstance(found, No) and "apt-get install qemu-user" in found.reason
    emulator.probe.cache_clear()
    assert isinstance(emulator.probe("riscv64", 256), No)
    with pytest.raises(Fail, match="apt-get install qemu-user"):
        Worker(Shared("riscv64"), 256)
    emulator.probe.cache_clear()


def test_an_emulator_from_a_python_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "qemu").mkdir()
    (tmp_path / "qemu" / "__init__.py").touch()
    program = tmp_path / "qemu" / "qemu-riscv64"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", "")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert emulator.find("riscv64") == str(program)


@needs("xuantie-qemu")
@pytest.mark.parametrize("length", (128, 256, 1024))
def test_the_package_on_pypi(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is on PyPI runs kernels for the cores that have float16 and instructions for bits, too."""
    monkeypatch.setenv("PATH", "")
    path = emulator.find("riscv64")
    assert not isinstance(path, No)
    core = replace(rvv(length), features=tuple(sorted({*rvv(length).features, *HALF, *BITS})))

    def write(f, args: V, scratch: V) -> None:
        at = f.load(PTR, args)
        wide = f.cast(f.splat(f.cast(f.load(I64, at), F16), 4), F32)
        f.store(f.cast(f.reduce(wide, V.__add__), I64), at)
    shared = Shared("riscv64")
    cell, row = shared.array((1,), "int64"), shared.array((1,), "int64")
    cell[0], row[0] = 5, cell.ctypes.data
    (found,) = shared.load([kernel(write, core)])
    call = Call(found["kernel"], row.ctypes.data, 0, 1, 0, "it")
    Worker(shared, length, path, 20).run(Calls(shared, [call]))
    assert cell[0] == 20


def test_another_program_is_no_emulator() -> None:
    with pytest.raises(Fail, match="/bin/true runs no program with vectors of 256 bits"):
        Worker(Shared("riscv64"), 256, qemu="/bin/true")


class Board:
    """A worker, and one cell that its kernels write."""

    def __init__(self, bits: int = 256, seconds: float | None = 20) -> None:
        self.shared = Shared("riscv64")
        self.worker = Worker(self.shared, bits, seconds=seconds)
        self.cell, self.args = self.shared.array((1,), "int64"), self.shared.array((1,), "int64")
        self.args[0] = self.cell.ctypes.data

    def call(self, code: bytes, name: str = "it") -> Call:
        (found,) = self.shared.load([code])
        return Call(found["kernel"], self.args.ctypes.data, 0, 1, 0, name)

    def run(self, *calls: Call) -> int:
        """What the cell holds after the calls, 1 before."""
        self.cell[0] = 1
        self.worker.run(Calls(self.shared, calls))
        return int(self.cell[0])


@pytest.fixture
def board() -> Board:
    return Board()


def endless(f, args: V, scratch: V) -> None:
    f.repeat([], lambda: (f.load(I64, f.load(PTR, args)).ne(0), []))


def trap(f, args: V, scratch: V) -> None:
    f.intrinsic("trap", VOID)


def stray(f, args: V, scratch: V) -> None:
    f.store(f.const(I32, 1), f.cast(f.const(I64, 64), PTR))


@emulated
@pytest.mark.parametrize("length", (128, 256, 512, 1024))
def test_vectors_are_as_long_as_asked(length: int) -> None:
    def write(f, args: V, scratch: V) -> None:
        f.store(f.intrinsic("vscale.i64", I64) * 64, f.load(PTR, args))
    board = Board(length)
    assert board.run(board.call(kernel(write))) == length


@emulated
def test_lists_of_calls(board: Board) -> None:
    assert board.run(board.call(number(5))) == 5
    assert board.run(board.call(number(6))) == 6, "code that came later"
    assert board.run() == 1, "no call at all"

    def twice(f, args: V, scratch: V) -> None:
        at = f.load(PTR, args)
        f.store(f.load(I64, at) * 2, at)
    call = board.call(kernel(twice))
    assert board.run(*[call] * 40) == 1 << 40
    calls = Calls(board.shared, [call] * 3)
    for _ in range(2):
        board.cell[0] = 1
        board.worker.run(calls)
        assert board.cell[0] == 8 and calls.begun() == 3


@emulated
def test_memory_that_grew_while_the_worker_ran(board: Board) -> None:
    call = board.call(number(5))
    board.run(call)
    far = board.shared.array((1 << 24,), "int64")
    far[-1], board.args[0] = 1, far[-1:].ctypes.data
    board.worker.run(Calls(board.shared, [call]))
    assert far[-1] == 5


@emulated
@pytest.mark.parametrize("write,signal,cure", ((trap, "SIGILL", "later qemu"), (stray, "SIGSEGV", "report")))
def test_a_crash_names_the_kernel(board: Board, write: object, signal: str, cure: str) -> None:
    good = board.call(number(5), "good")
    bad = board.call(kernel(write), "bad")
    with pytest.raises(Fail, match="kernel bad crashed") as caught:
        board.run(good, bad, good)
    assert caught.value.node == "bad" and signal in caught.value.found and cure in caught.value.cure
    assert board.worker.pid is None and board.cell[0] == 5
    assert board.run(good) == 5, "another worker takes over"


@emulated
def test_code_cannot_be_overwritten(board: Board) -> None:
    def write(f, args: V, scratch: V) -> None:
        f.store(f.const(F32, 0.0), f.cast(f.const(I64, board.shared.address), PTR))
    with pytest.raises(Fail, match="SIGSEGV"):
        board.run(board.call(kernel(write)))


@emulated
def test_a_limit_of_time() -> None:
    board = Board(seconds=0.3)
    with pytest.raises(Fail, match="kernel slow did not end in 0.3 seconds"):
        board.run(board.call(kernel(endless), "slow"))
    assert board.run(board.call(number(5))) == 5


@emulated
def test_a_worker_that_was_ended(board: Board) -> None:
    call = board.call(number(5))
    board.run(call)
    board.worker.close()
    assert board.worker.pid is None and board.run(call) == 5
    pid = board.worker.pid
    assert pid is not None
    os.kill(pid, 9)
    board.worker._process.popen.wait()  # type: ignore[union-attr]
    assert board.run(call) == 5 and board.worker.pid != pid


@emulated
def test_two_workers_share_memory(board: Board) -> None:
    other = Worker(board.shared, 1024)
    calls = Calls(board.shared, [board.call(number(5))])
    for worker in (board.worker, other):
        board.cell[0] = 1
        worker.run(calls)
        assert board.cell[0] == 5


@emulated
def test_not_after_a_fork(board: Board) -> None:
    call = board.call(number(5))
    board.run(call)
    child = os.fork()
    if not child:
        try:
            board.run(call)
        except Fail as error:
            os._exit(0 if "fork" in str(error) else 2)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0 and board.run(call) == 5


@emulated
def test_a_worker_ends_with_its_owner(tmp_path: Path) -> None:
    script = ("import sys, os; sys.path[:0] = sys.argv[1:]; from test_riscv_worker import Board, number\n"
              "b = Board(); b.run(b.call(number(5))); print(b.worker.pid, flush=True); os._exit(0)")
    done = subprocess.run([sys.executable, "-c", script, str(Path(__file__).parent),
                           str(Path(__file__).parents[1] / "support")], capture_output=True, text=True,
                          timeout=60)
    pid = int(done.stdout)
    until = time.monotonic() + 20
    while time.monotonic() < until and Path(f"/proc/{pid}/stat").exists():
        if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
            break
        time.sleep(0.02)
    else:
        assert not Path(f"/proc/{pid}").exists()


def test_nothing_is_left_over(tmp_path: Path) -> None:
    """Arrays and lists go back where they came from."""
    shared = Shared("riscv64")
    made = Calls(shared, [Call(1, 2, 3, 4, 5, "x")])
    assert np.array_equal(np.frombuffer(ctypes.string_at(made.address, 48), np.int64), [0, 1, 2, 3, 4, 5])
    made.release()
    shared._reclaim()
    assert not shared._taken
