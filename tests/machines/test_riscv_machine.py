"""RISC-V machines: the ones described, and the one a process finds itself on, from what Linux says there."""

from __future__ import annotations

import struct

import pytest

from orthrus.codegen.emulate import system
from orthrus.codegen.machines import detect, riscv
from orthrus.codegen.machines.machine import (
    RVV256,
    SPACEMIT_K1,
    SPACEMIT_K3,
    SPACEMIT_K3_X100,
    rvv,
    target,
)

K1_ISA = ("rv64imafdcv_zicbom_zicboz_zicntr_zicond_zicsr_zifencei_zihintpause_zihpm_zfh_zfhmin_zca_zcd_"
          "zba_zbb_zbc_zbs_zkt_zve32f_zve32x_zve64d_zve64f_zve64x_zvfh_zvfhmin_zvkt_sscofpmf_sstc_svinval_svnapot_"
          "svpbmt")
K3_ISA = ("rv64imafdcvh_zicbom_zicbop_zicboz_zicntr_zicond_zicsr_zifencei_zihintntl_zihintpause_zihpm_"
          "zimop_zaamo_zalrsc_zawrs_zfa_zfbfmin_zfh_zfhmin_zca_zcb_zcd_zcmop_zba_zbb_zbc_zbs_zkt_zvbb_zvbc_"
          "zve32f_zve32x_zve64d_zve64f_zve64x_zvfbfmin_zvfbfwma_zvfh_zvfhmin_zvkb_zvkt_sscofpmf_sstc_"
          "svade_svinval_svnapot_svpbmt")


def cpuinfo(cores: int, first: int = 0, **rows: str) -> str:
    """/proc/cpuinfo, as kernels write it: a block per core."""
    return "\n".join(f"processor\t: {i}\nhart\t\t: {i}\n" + "".join(
        f"{name.replace('_', ' ')}\t: {value}\n" for name, value in rows.items())
        for i in range(first, first + cores)) + "\n"


K1 = cpuinfo(8, model_name="Spacemit(R) X60", isa=K1_ISA, mmu="sv39", mvendorid="0x710",
             marchid="0x8000000058000001", mimpid="0x1000000049772200")
K3 = (cpuinfo(8, model_name="Spacemit(R) X100", isa=K3_ISA, mmu="sv39", uarch="spacemit,x100",
              mvendorid="0x710", marchid="0x8000000058000002", hart_isa=K3_ISA)
      + "\n" + cpuinfo(8, 8, model_name="Spacemit(R) A100", isa=K3_ISA, uarch="spacemit,a100",
                       hart_isa=K3_ISA))
PLAIN = cpuinfo(4, isa="rv64imafdcv", mmu="sv48", uarch="thead,c920")
STATED = cpuinfo(2, isa="rv64imafdcbv_zicsr_zvfh_zfh_zvl128b_zvl512b_zvl256b", mmu="sv57")


def never() -> int:
    raise AssertionError("the length is known")


def described(text: str, cores: range, matrix: range = range(0), bytes_: int | None = None):
    return riscv.described(text, set(cores), lambda core: core in matrix,
                           never if bytes_ is None else lambda: bytes_)


def test_described_machines() -> None:
    assert [m.vector * 8 for m in (SPACEMIT_K1, SPACEMIT_K3, SPACEMIT_K3_X100)] == [256, 1024, 256]
    assert [m.matrix for m in (SPACEMIT_K1, SPACEMIT_K3, SPACEMIT_K3_X100)] == [(4, 4, 8), (8, 8, 16), None]
    for m in (SPACEMIT_K1, SPACEMIT_K3, SPACEMIT_K3_X100):
        assert m.has("zvfh") and m.has("zfh") and m.has("v") and list(m.features) == sorted(m.features)
        assert m.has("xsfvqmaccqoq") == (m.matrix is not None)
        if m.matrix is not None:
            rows, columns, deep = m.matrix
            assert rows * deep == columns * deep == m.vector and 4 * rows * columns == 2 * m.vector
    assert target("spacemit_k3") is SPACEMIT_K3 and target("generic", 512) == rvv(512)
    assert not target("generic").has("zvfh") and target("generic").matrix is None
    with pytest.raises(ValueError, match="spacemit_k1, spacemit_k3, spacemit_k3_x100, generic"):
        target("spacemit_k2")


def test_k1() -> None:
    """Its first four cores have the matrix instruction; a process that may run on others does without."""
    assert described(K1, range(4), range(4)) == SPACEMIT_K1
    for cores in (range(8), range(4, 8), range(3, 5)):
        found = described(K1, cores, range(4))
        assert found is not None and found.matrix is None and not found.has("xsfvqmaccqoq")
        assert found.has("zvfh") and found.vector == 32
    unsaid = described(K1, range(4))
    assert unsaid is not None and unsaid.matrix is None, "the device tree does not name them"


def test_k3() -> None:
    """Two kinds of cores, with registers of two lengths."""
    assert described(K3, range(8), range(8, 16)) == SPACEMIT_K3_X100
    assert described(K3, range(8, 16), range(8, 16)) == SPACEMIT_K3
    both = described(K3, range(16), range(8, 16))
    assert both is not None and (both.vector, both.matrix) == (32, None), "what runs on either kind"
    assert both.has("zvfh") and both.has("zvl256b") and not both.has("zvl1024b")


def test_another_board() -> None:
    """The length is asked for where nothing says it, and nothing is assumed beyond the isa string."""
    assert described(PLAIN, range(4), bytes_=16) == rvv(128)
    assert described(PLAIN, range(4), bytes_=256) == rvv(1024), "no longer than kernels know"
    stated = described(STATED, range(2))
    assert stated is not None and stated.vector == 64
    assert {"zfh", "zvfh", "zba", "zbb", "zbs"} <= set(stated.features)


@pytest.mark.parametrize("text", ("", "processor\t: 0\nisa\t: rv64imafdc_zvfh\n", "processor\t: 0\n",
                                  "processor\t: 0\nisa\t: rv32imafdcv\n", cpuinfo(2, 4, isa="rv64imafdcv")))
def test_no_vectors(text: str) -> None:
    assert described(text, range(2), bytes_=32) is None


def test_one_core_without_vectors() -> None:
    text = cpuinfo(1, isa="rv64imafdcv") + "\n" + cpuinfo(1, 1, isa="rv64imafdc")
    assert described(text, range(2), bytes_=16) is None and described(text, range(1), bytes_=16) == rvv(128)


def test_the_length_is_asked_for_in_two_instructions() -> None:
    """The worker asks the same way, and is asked in its own tests."""
    assert struct.pack("<II", *system._LENGTH) == riscv._VLENB


def test_the_process_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    """`detect.found` on a riscv64 machine."""
    monkeypatch.setattr(detect.platform, "machine", lambda: "riscv64")
    monkeypatch.setattr(riscv, "host", lambda: RVV256)
    assert detect.found.__wrapped__() is RVV256
