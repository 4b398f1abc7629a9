"""SpacemiT's matrix instruction: what is written, what it becomes when linked, and what it computes."""

from __future__ import annotations

import re
import struct
from dataclasses import replace

import numpy as np
import pytest
from skips import needs

board = pytest.importorskip("board")

from draws import draws  # noqa: E402
from hypothesis import given  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

from orthrus.codegen.emulate.emulator import Call, Calls, Worker  # noqa: E402
from orthrus.codegen.emulate.shared import Shared  # noqa: E402
from orthrus.codegen.machines.machine import (  # noqa: E402
    RVV256,
    SPACEMIT_K1,
    SPACEMIT_K3,
    SPACEMIT_K3_X100,
    Machine,
)
from orthrus.codegen.object import link  # noqa: E402
from orthrus.codegen.object.build import assemble  # noqa: E402
from orthrus.codegen.write import spacemit_matrix  # noqa: E402
from orthrus.codegen.write.body import Body  # noqa: E402
from orthrus.codegen.write.emit import I8, I32, V, vec  # noqa: E402
from orthrus.codegen.write.template import template  # noqa: E402
from orthrus.errors import Fail  # noqa: E402

emulated = needs("emulator")
MACHINES = (SPACEMIT_K1, SPACEMIT_K3)
SIGNS = [(a, b) for a in (False, True) for b in (False, True)]
BITS = {(False, False): 0, (False, True): 1, (True, False): 2, (True, True): 3}


@template("a:ptr b:ptr c:ptr k:i64")
def ime_products(f: Body, a: V, b: V, c: V, k: V, *, signs: tuple[bool, bool], tiles: int) -> None:
    """C (tiles, M, N) += A (tiles, M, K) B (N, K) of `k` steps one after another."""
    m, n, deep = f.machine.matrix or (0, 0, 0)
    sums = [f.load(vec(I32, m * n), c, i * m * n) for i in range(tiles)]

    def step(i: V, *sums: V) -> list[V]:
        right = f.load(vec(I8, n * deep), b, i * (n * deep))
        left = [f.load(vec(I8, m * deep), a, (i * tiles + t) * (m * deep)) for t in range(tiles)]
        return [spacemit_matrix.multiply(f, total, x, right, *signs)
                for total, x in zip(sums, left, strict=True)]
    for i, total in enumerate(f.loop(0, k, 1, sums, step)):
        f.store(total, c, i * m * n)


def words(machine: Machine, signs: tuple[bool, bool]) -> list[int]:
    """The matrix instructions of a linked kernel."""
    code, _ = link.image([bytes(assemble(ime_products(signs=signs, tiles=3).text(machine), machine))],
                         1 << 20, "riscv64")
    return [w for at in range(0, len(code) - 3, 2) for w in struct.unpack_from("<I", code, at)
            if w & 0xFE00007F == 0xE200002B]


def test_tiles() -> None:
    tiles = [spacemit_matrix.tile(m) for m in (*MACHINES, SPACEMIT_K3_X100, RVV256)]
    assert tiles == [(4, 4, 8), (8, 8, 16), None, None]


@pytest.mark.parametrize("machine", MACHINES, ids=("k1", "k3"))
@pytest.mark.parametrize("signs", SIGNS)
def test_one_word_for_each(machine: Machine, signs: tuple[bool, bool]) -> None:
    found = words(machine, signs)
    assert len(found) == 3
    for word in found:
        vd, vs1, vs2 = word >> 7 & 31, word >> 15 & 31, word >> 20 & 31
        assert word == spacemit_matrix.word(BITS[signs], vd, vs1, vs2)
        assert vd % 2 == 0 and not {vs1, vs2} & {vd, vd + 1}


def test_a_word_as_the_vendor_writes_it() -> None:
    assert spacemit_matrix.word(3, 2, 4, 6) == 0xE262312B


@draws(300)
@given(st.lists(st.one_of(st.integers(0, (1 << 32) - 1).map(lambda w: w | 3),
                          st.sampled_from((0x5B, 0x200205B, 0xF200205B, 0xFE00205B, 0xB200205B, 0xF200305B)),
                          st.integers(0, (1 << 16) - 1).filter(lambda h: h & 3 != 3)), max_size=12))
def test_other_instructions_stay(code: list[int]) -> None:
    """Whatever surrounds it, and however it is aligned: only SiFive's own words change, and to their own."""
    def size(w: int) -> str:
        return "<I" if w & 3 == 3 else "<H"
    before = b"".join(struct.pack(size(w), w) for w in code)
    after, at = spacemit_matrix.rewritten(before), 0
    assert len(after) == len(before)
    for w in code:
        (now,) = struct.unpack_from(size(w), after, at)
        at += struct.calcsize(size(w))
        if size(w) == "<I" and re.fullmatch("1111..1" + ".{10}" + "010" + ".{5}" + "1011011", f"{w:032b}"):
            signs = (0, 3, 1, 2)[w >> 26 & 3]
            assert now == spacemit_matrix.word(signs, w >> 7 & 31, w >> 15 & 31, w >> 20 & 31)
        else:
            assert now == w


def test_the_second_half_of_an_instruction_is_none() -> None:
    """A word that straddles two others."""
    code = struct.pack("<HIH", 1, 0x205B0013, 0xF201)
    assert spacemit_matrix.rewritten(code) == code
    assert spacemit_matrix.rewritten(struct.pack("<HI", 1, 0xF200205B)) != struct.pack("<HI", 1, 0xF200205B)


def test_data_stays() -> None:
    """A table in a kernel that holds SiFive's word, and the objects of other machines."""
    def write(f: Body) -> None:
        f.store(f.load(I32, f.table(I32, [0xF200205B]), f.lo), f.args)
    made = template("")(lambda f: write(f))()
    code, _ = link.image([bytes(assemble(made.text(RVV256), RVV256))], 1 << 20, "riscv64")
    assert struct.pack("<I", 0xF200205B) in code


def test_what_does_not_fit_is_refused() -> None:
    @template("a:ptr")
    def ime_wrong(f: Body, a: V) -> None:
        left, right = f.load(vec(I8, 32), a), f.load(vec(I8, 32), a)
        spacemit_matrix.multiply(f, f.load(vec(I32, 8), a), left, right, True, True)
    with pytest.raises(ValueError, match="c is <8 x i32>, not <16 x i32>"):
        ime_wrong().text(SPACEMIT_K1)
    with pytest.raises(ValueError, match="no matrix instruction"):
        ime_wrong().text(RVV256)


@emulated
@pytest.mark.parametrize("machine", MACHINES, ids=("k1", "k3"))
@pytest.mark.parametrize("signs", SIGNS)
@pytest.mark.parametrize("tiles", (1, 7))
def test_products_are_exact(machine: Machine, signs: tuple[bool, bool], tiles: int) -> None:
    """Every value of a byte, every form, sums that wrap; seven tiles fill the registers."""
    m, n, deep = spacemit_matrix.tile(machine) or (0, 0, 0)
    rng, k = np.random.default_rng(tiles), 5
    kinds = [np.int8 if signed else np.uint8 for signed in signs]
    a = rng.integers(0, 256, (k, tiles, m, deep), np.uint8).view(kinds[0])
    b = rng.integers(0, 256, (k, n, deep), np.uint8).view(kinds[1])
    for x in (a, b):
        x.reshape(-1).view(np.uint8)[:4] = 255
    c = rng.integers(-1 << 31, 1 << 31, (tiles, m, n), np.int64).astype(np.int32)
    wide = c + np.einsum("ktmq,knq->tmn", a.astype(np.int64), b.astype(np.int64))
    row = np.array([a.ctypes.data, b.ctypes.data, c.ctypes.data, k], np.int64)
    board.run(ime_products(signs=signs, tiles=tiles), [a, b, c], row, [0, 1], 0, machine)
    np.testing.assert_array_equal(c, wide.astype(np.int32))


@template("x:ptr y:ptr at:ptr")
def ime_between(f: Body, x: V, y: V, at: V) -> None:
    """The instruction between arithmetic in other registers, with another vector type and length."""
    m, n, deep = f.machine.matrix or (0, 0, 0)
    lanes = f.machine.lanes(2)
    kept = [f.load(vec("i16", lanes), x, i * lanes) for i in range(24)]
    c = f.load(vec(I32, m * n), at)
    left, right = f.load(vec(I8, m * deep), at), f.load(vec(I8, n * deep), at)
    c = spacemit_matrix.multiply(f, c, left, right, True, True)
    for i, v in enumerate(kept):
        f.store(v + i, y, i * lanes)
    f.store(c, at)


@emulated
@pytest.mark.parametrize("machine", MACHINES, ids=("k1", "k3"))
def test_registers_outlive_the_signal(machine: Machine) -> None:
    m, n, _ = spacemit_matrix.tile(machine) or (0, 0, 0)
    x = np.arange(24 * machine.lanes(2), dtype=np.int16).reshape(24, -1)
    y, c = np.zeros_like(x), np.ones((m, n), np.int32)
    row = np.array([x.ctypes.data, y.ctypes.data, c.ctypes.data], np.int64)
    board.run(ime_between(), [x, y, c], row, [0, 1], 0, machine)
    np.testing.assert_array_equal(y, x + np.arange(24, dtype=np.int16)[:, None])


def _raw(bits: int, *code: int) -> None:
    """Run instructions, and return behind them, on a worker of its own."""
    shared = Shared("riscv64")
    at = shared.load([_object(code)])[0]["kernel"]
    Worker(shared, bits, seconds=20).run(Calls(shared, [Call(at, 0, 0, 0, 0, "raw")]))


def _object(code: tuple[int, ...]) -> bytes:
    """An object whose kernel is these instructions: they take the place of as many loads."""
    text = ("target triple = \"riscv64-unknown-linux-gnu\"\n"
            "define void @kernel(ptr %p) nounwind {\n"
            + "".join(f"  %v{i} = load volatile i64, ptr %p, align 8\n" for i in range(len(code)))
            + "  ret void\n}\n")
    plain = replace(RVV256, features=("d", "f", "m", "a"))
    made = bytearray(assemble(text, plain))  # type: ignore[arg-type]
    load = struct.pack("<I", 0x00053003)
    at = made.index(load[1:], 0) - 1
    made[at:at + 4 * len(code)] = struct.pack(f"<{len(code)}I", *code)
    return bytes(made)


@emulated
@pytest.mark.parametrize("bits,word,why", (
    (256, spacemit_matrix.word(3, 8, 4, 6), None),
    (1024, spacemit_matrix.word(0, 8, 4, 6), None),
    (256, spacemit_matrix.word(3, 9, 4, 6), "C begins at an odd register"),
    (256, spacemit_matrix.word(3, 8, 9, 6), "A lies in C"),
    (256, spacemit_matrix.word(3, 8, 4, 8), "B lies in C"),
    (256, spacemit_matrix.word(3, 8, 4, 6) | 1 << 14, "another form of the instruction"),
    (256, spacemit_matrix.word(3, 8, 4, 6) ^ 1 << 25, "another function"),
    (512, spacemit_matrix.word(3, 8, 4, 6), "a register no core of this kind has"),
    (256, 0xF200205B, "rewritten, so it runs"),
    (256, 0xB200205B, "SiFive's instruction for another tile"),
    (256, 0, "no instruction at all")))
def test_unknown_instructions_end_the_worker(bits: int, word: int, why: str | None) -> None:
    if why in (None, "rewritten, so it runs"):
        _raw(bits, word if why is None else word | 8 << 7 | 4 << 15 | 6 << 20)
        return
    with pytest.raises(Fail, match="kernel raw crashed") as caught:
        _raw(bits, word)
    assert "SIGILL" in caught.value.found, why
