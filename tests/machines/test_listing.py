"""Assembly taken apart: blocks, loops, classes, vector lengths; and what is expected of real kernels."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("llvmlite")

from benchmarks import riscv_kernels

from orthrus.codegen.kernels import gemm
from orthrus.codegen.machines.machine import AVX2, RVV256, SPACEMIT_K1, SPACEMIT_K3, Machine
from orthrus.codegen.object import riscv_cost
from orthrus.codegen.object.riscv_cost import BasicBlock, Vector, count, innermost, loops

NEST = """
	.text
	.globl	kernel
kernel:                                 # @kernel
	li	a4, 32
	beqz	a0, .LBB0_6
# %bb.1:                                # %outer
	.p2align 2
.LBB0_2:                                # =>This Loop Header: Depth=1
	mv	a1, a2
.Lpcrel_hi0:
	auipc	a5, %pcrel_hi(.Lt0)
.LBB0_3:                                # =>  This Inner Loop Header: Depth=2
	vsetvli	zero, a4, e32, m4, ta, ma
	vle32.v	v8, (a1)
	flw	fa5, 0(a3)
	vfmacc.vf	v0, fa5, v8
	vs1r.v	v8, (sp)                        # vscale x 8-byte Folded Spill
	fmadd.s	fa1, fa2, fa3, fa4
	bnez	a1, .LBB0_3
# %bb.4:
	vsetivli	zero, 5, e16, mf2, ta, ma
	vwmacc.vx	v0, a1, v8
	vmv2r.v	v4, v8
	blt	a0, a1, .LBB0_2
	j	.LBB0_6
.LBB0_5:
	nop
.LBB0_6:
	ret
.Lfunc_end0:
	.size	kernel, .Lfunc_end0-kernel
"""


def by_label(text: str, machine: Machine = SPACEMIT_K1) -> dict[str, BasicBlock]:
    return {b.label: b for b in loops(text, machine)}


def test_blocks_and_where_they_lead() -> None:
    """Blocks begin where branches lead and behind them, not at every label."""
    found = loops(NEST, SPACEMIT_K1)
    assert [(b.label, b.successors, b.depth, b.loop) for b in found] == [
        ("kernel", (".LBB0_6", ".LBB0_2"), 0, None), (".LBB0_2", (".LBB0_3",), 1, ".LBB0_2"),
        (".LBB0_3", (".LBB0_3", ".LBB0_3+"), 2, ".LBB0_3"),
        (".LBB0_3+", (".LBB0_2", ".LBB0_3++"), 1, ".LBB0_2"), (".LBB0_3++", (".LBB0_6",), 0, None),
        (".LBB0_3+++", (".LBB0_6",), 0, None), (".LBB0_6", (), 0, None)]
    assert [b.entry for b in found] == [True] + [False] * 6
    assert [loop.label for loop in innermost(found)] == [".LBB0_3"]
    assert str(found[2].instructions[1]) == "vle32.v v8, (a1)"


def test_classes_and_counts() -> None:
    found = by_label(NEST)
    inner, around = (count(found[label].instructions) for label in (".LBB0_3", ".LBB0_3+"))
    assert inner == riscv_cost.Counts(scalar=2, vector=1, memory=2, configuration=1, branch=1, spills=1,
                                      moves=0, multiply_adds=32 + 1)
    assert around == riscv_cost.Counts(scalar=0, vector=2, memory=0, configuration=1, branch=1, spills=0,
                                    moves=1, multiply_adds=5)
    assert inner.total == 7


def test_lengths_and_types() -> None:
    """A number in a register, kept through a loop; the longest possible; a length that stays; one unknown."""
    found = by_label(NEST)
    assert found[".LBB0_3"].instructions[3].vector == Vector(32, 32, 4)
    assert found[".LBB0_3+"].instructions[1].vector == Vector(5, 16, 0.5)
    text = """kernel:
	li	a1, 100
	vsetvli	a3, zero, e8, m2, ta, ma
	vadd.vv	v8, v8, v10
	vsetvli	zero, zero, e16, m4, ta, ma
	vadd.vv	v8, v8, v12
	vsetvli	zero, a1, e64, m1, ta, ma
	vadd.vv	v8, v8, v9
	addi	a1, a1, 1
	vsetvli	zero, a1, e64, m1, ta, ma
	vadd.vv	v8, v8, v9
	vfmacc.vv	v8, v9, v9
	ret
"""
    (block,) = loops(text, SPACEMIT_K1)
    assert [i.vector for i in block.instructions if i.op == "vadd.vv"] == [
        Vector(64, 8, 2), Vector(64, 16, 4), Vector(4, 64, 1), Vector(None, 64, 1)]
    assert block.instructions[-2].products == 0, "of an unknown length"


def test_ways_that_meet() -> None:
    """Only what is the same on both ways is known behind them."""
    text = """kernel:
	li	a1, 16
	vsetvli	zero, a1, e32, m2, ta, ma
	beqz	a0, .LBB0_2
	vsetvli	zero, zero, e16, m1, ta, ma
	vle16.v	v8, (a2)
.LBB0_2:
	vsetvli	zero, zero, e32, m2, ta, ma
	vadd.vv	v8, v8, v10
	beqz	a0, .LBB0_4
	vsetivli	zero, 3, e32, m2, ta, ma
.LBB0_4:
	vadd.vv	v8, v8, v10
	ret
"""
    assert [i.vector for b in loops(text, SPACEMIT_K1) for i in b.instructions if i.op == "vadd.vv"] == [
        Vector(16, 32, 2), Vector(None, 32, 2)]


@pytest.mark.parametrize("op,kind", (
    ("vle32.v", "memory"), ("vsse64.v", "memory"), ("vluxei16.v", "memory"), ("vs4r.v", "memory"),
    ("vl2re32.v", "memory"), ("vlm.v", "memory"), ("vlseg4e8.v", "memory"), ("vsoxei64.v", "memory"),
    ("vslideup.vi", "vector"), ("vsll.vi", "vector"), ("vsub.vv", "vector"), ("vsext.vf2", "vector"),
    ("vssrl.vi", "vector"), ("vsmul.vv", "vector"), ("sf.vqmacc.4x8x4", "vector"), ("smt.vmadot", "vector"),
    ("vsetvli", "configuration"), ("vsetivli", "configuration"), ("bltu", "branch"), ("bnez", "branch"),
    ("ret", "branch"), ("bclr", "scalar"), ("flw", "scalar"), ("sd", "scalar")))
def test_kinds(op: str, kind: str) -> None:
    assert riscv_cost.Instruction(op, ()).kind == kind


def test_the_matrix_instruction_counts_its_tile() -> None:
    text = "kernel:\n\tvsetvli\ta0, zero, e8, m1, ta, ma\n\tsf.vqmacc.4x8x4\tv8, v10, v11\n\tret\n"
    for machine, products in ((SPACEMIT_K1, 4 * 4 * 8), (SPACEMIT_K3, 8 * 8 * 16)):
        (block,) = loops(text, machine)
        assert count(block.instructions).multiply_adds == products


def test_other_machines_are_refused() -> None:
    with pytest.raises(ValueError, match="riscv64 alone"):
        loops(NEST, AVX2)


def test_text_of_either_kind() -> None:
    """LLVM's assembly is compiled, the machine's taken as it is."""
    spec = gemm.plan(RVV256, 100, 128, 128, 1, "panels", 128).spec(None, [])
    text = spec.text(RVV256)
    assert loops(text, RVV256) == loops(str(riscv_cost.assemble(text, RVV256, listing=True)), RVV256)


@pytest.mark.parametrize("label", riscv_kernels.MACHINES)
@pytest.mark.parametrize("dtype", ("float32", "float16"))
def test_nothing_in_the_way_of_products(label: str, dtype: str) -> None:
    """What keeps a core busy that starts two instructions a cycle: no spills, no conversions, every register
    full."""
    machine = riscv_kernels.MACHINES[label]
    for name, make in riscv_kernels.FLOATS.items():
        loop = riscv_kernels.busiest(make(machine, dtype), machine)
        n = count(loop.instructions)
        assert n.spills == 0 and len(loop.blocks) == 1, name
        assert not any("cvt" in i.op for i in loop.instructions), name
        used = [i.vector for i in loop.instructions if i.products]
        assert all(v and v.elements == v.group * 8 * machine.vector / v.width for v in used), name
        assert n.total < 1.4 * riscv_kernels.registers(loop, machine), name


@pytest.mark.parametrize("label", riscv_kernels.MACHINES)
def test_nothing_in_the_way_of_bytes(label: str) -> None:
    for name, types, where, machine, spec in riscv_kernels.kernels():
        if where == label and "int8" in types:
            loop = riscv_kernels.busiest(spec, machine)
            matrix = any(i.op.startswith("sf.vqmacc") for i in loop.instructions)
            assert matrix == ("vmadot" in types) and count(loop.instructions).spills == 0, (name, types)


def test_the_page_is_what_the_kernels_are() -> None:
    page = Path(__file__).parents[2] / "docs" / "spacemit_kernels.md"
    text = page.read_text(encoding="utf-8")
    assert riscv_kernels.renewed(text) == text, f"python -m benchmarks.riscv_kernels {page}"
