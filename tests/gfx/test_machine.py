"""What the emulated GPU does with memory, waves and wrong kernels."""

from __future__ import annotations

import numpy as np
import pytest

from gfx.code_object import CodeObject
from gfx.kernels import ATTRIBUTES, TARGETS, compiled, elementwise
from gfx.machine import Fault, Hang, run

pytestmark = [pytest.mark.needs("AMD tables"), pytest.mark.parametrize("target", TARGETS)]

_HEAD = """  %l = call i32 @llvm.amdgcn.workitem.id.x()
  %g = call i32 @llvm.amdgcn.workgroup.id.x()
  %h = mul i32 %g, 256
  %i = add i32 %h, %l
"""
_SHARED = "@s = internal addrspace(3) global [256 x i32] undef, align 4\n"


def _kernel(body: str, arguments: str, declare: str = "") -> str:
    return f"{declare}\ndefine amdgpu_kernel void @k({arguments}) #0 {{\n{_HEAD}{body}\n}}\n{ATTRIBUTES}"


def _reversed(barrier: bool) -> str:
    """Each workgroup's 256 numbers the other way round, through local data."""
    return _kernel(f"""
  %p = getelementptr i32, ptr addrspace(1) %x, i32 %i
  %v = load i32, ptr addrspace(1) %p
  %q = getelementptr [256 x i32], ptr addrspace(3) @s, i32 0, i32 %l
  store volatile i32 %v, ptr addrspace(3) %q
  {'call void @llvm.amdgcn.s.barrier()' if barrier else ''}
  %o = sub i32 255, %l
  %r = getelementptr [256 x i32], ptr addrspace(3) @s, i32 0, i32 %o
  %w = load volatile i32, ptr addrspace(3) %r
  %t = getelementptr i32, ptr addrspace(1) %y, i32 %i
  store i32 %w, ptr addrspace(1) %t
  ret void""", "ptr addrspace(1) noalias %x, ptr addrspace(1) noalias %y", _SHARED)


def _one_more(target: str) -> bytes:
    """y[i] = x[i] + 1 for i below n."""
    return compiled(elementwise("k", "  %y = add i32 %a, 1", ("i32",), "i32") + ATTRIBUTES, target)


@pytest.mark.parametrize("seed", [None, 0, 1, 2])
def test_waves_of_a_workgroup_meet_at_barriers(target: str, seed: int | None) -> None:
    x, y = np.arange(768, dtype=np.int32), np.zeros(768, np.int32)
    report = run(compiled(_reversed(True), target), "k", 3, [x, y], seed=seed)
    assert (y.reshape(3, 256) == x.reshape(3, 256)[:, ::-1]).all()
    assert report.workgroups == 3


def test_a_barrier_left_out_is_seen(target: str) -> None:
    x, y = np.arange(256, dtype=np.int32), np.zeros(256, np.int32)
    run(compiled(_reversed(False), target), "k", 1, [x, y], seed=0)
    assert (y != x[::-1]).any()


def test_accesses_end_at_an_array_s_last_byte(target: str) -> None:
    code = CodeObject(_one_more(target))
    x = np.arange(300, dtype=np.int32)
    y = np.zeros(300, np.int32)
    run(code, "k", 2, [x, y, 300])
    assert (y == x + 1).all()
    with pytest.raises(Fault, match="argument 0"):
        run(code, "k", 2, [x[:299].copy(), y, 300])
    with pytest.raises(Fault, match="argument 1"):
        run(code, "k", 2, [x, y[:299].copy(), 300])
    with pytest.raises(Fault):
        run(code, "k", 2, [None, y, 300])


def test_what_is_read_only_is_not_written(target: str) -> None:
    code = _one_more(target)
    y = np.zeros(300, np.int32)
    y.flags.writeable = False
    with pytest.raises(Fault, match="read only"):
        run(code, "k", 2, [np.zeros(300, np.int32), y, 300])


def test_local_data_ends_where_it_was_declared(target: str) -> None:
    text = _kernel("""
  %q = getelementptr [256 x i32], ptr addrspace(3) @s, i32 0, i32 %n
  store volatile i32 %l, ptr addrspace(3) %q
  ret void""", "i32 %n", _SHARED)
    code = CodeObject(compiled(text, target))
    run(code, "k", 1, [255])
    with pytest.raises(Fault, match="local data"):
        run(code, "k", 1, [256])


def test_an_endless_kernel_is_ended(target: str) -> None:
    text = _kernel("  br label %loop\nloop:\n  store volatile i32 %l, ptr addrspace(1) %x\n  br label %loop",
                   "ptr addrspace(1) %x")
    with pytest.raises(Hang):
        run(compiled(text, target), "k", 1, [np.zeros(1, np.int32)], budget=10_000)


def test_atomics_count_every_lane(target: str) -> None:
    text = _kernel("""
  %b = and i32 %i, 7
  %p = getelementptr i32, ptr addrspace(1) %x, i32 %b
  %o = atomicrmw add ptr addrspace(1) %p, i32 %i syncscope("agent") monotonic
  %q = getelementptr float, ptr addrspace(1) %y, i32 %b
  %f = uitofp i32 %i to float
  %m = atomicrmw fmax ptr addrspace(1) %q, float %f syncscope("agent") monotonic
  ret void""", "ptr addrspace(1) %x, ptr addrspace(1) %y")
    x, y = np.zeros(8, np.int32), np.full(8, -1, np.float32)
    run(compiled(text, target), "k", 4, [x, y], seed=3)
    lanes = np.arange(1024)
    assert (x == [lanes[lanes % 8 == b].sum() for b in range(8)]).all()
    assert (y == [lanes[lanes % 8 == b].max() for b in range(8)]).all()


def test_what_is_past_a_buffer_reads_as_zero_whatever_was_written_there(target: str) -> None:
    text = _kernel("""
  %r = call ptr addrspace(8) @llvm.amdgcn.make.buffer.rsrc.p8.p1(ptr addrspace(1) %x, i16 0, i64 64,
                                                                 i32 159744)
  call void @llvm.amdgcn.raw.ptr.buffer.store.i32(i32 7, ptr addrspace(8) %r, i32 -2147483648, i32 0, i32 0)
  call void @llvm.amdgcn.s.barrier()
  %v = call i32 @llvm.amdgcn.raw.ptr.buffer.load.i32(ptr addrspace(8) %r, i32 -2147483648, i32 0, i32 0)
  %t = getelementptr i32, ptr addrspace(1) %y, i32 %i
  store i32 %v, ptr addrspace(1) %t
  ret void""", "ptr addrspace(1) %x, ptr addrspace(1) %y", """
declare ptr addrspace(8) @llvm.amdgcn.make.buffer.rsrc.p8.p1(ptr addrspace(1), i16, i64, i32)
declare void @llvm.amdgcn.raw.ptr.buffer.store.i32(i32, ptr addrspace(8), i32, i32, i32)
declare i32 @llvm.amdgcn.raw.ptr.buffer.load.i32(ptr addrspace(8), i32, i32, i32)
""")
    x, y = np.full(16, 3, np.int32), np.full(256, -1, np.int32)
    run(compiled(text, target), "k", 1, [x, y], seed=1)
    assert (y == 0).all() and (x == 3).all()


def test_each_lane_has_its_own_scratch(target: str) -> None:
    text = _kernel("""
  %a = alloca [16 x i32], align 4, addrspace(5)
  br label %fill
fill:
  %j = phi i32 [0, %0], [%k, %fill]
  %p = getelementptr [16 x i32], ptr addrspace(5) %a, i32 0, i32 %j
  %v = mul i32 %j, %i
  store volatile i32 %v, ptr addrspace(5) %p
  %k = add i32 %j, 1
  %more = icmp slt i32 %k, 16
  br i1 %more, label %fill, label %pick
pick:
  %w = and i32 %i, 15
  %q = getelementptr [16 x i32], ptr addrspace(5) %a, i32 0, i32 %w
  %r = load volatile i32, ptr addrspace(5) %q
  %t = getelementptr i32, ptr addrspace(1) %y, i32 %i
  store i32 %r, ptr addrspace(1) %t
  ret void""", "ptr addrspace(1) %y")
    y = np.zeros(512, np.int32)
    run(compiled(text, target), "k", 2, [y], seed=1)
    lanes = np.arange(512)
    assert (y == lanes * (lanes % 16)).all()


def test_lanes_read_each_other(target: str) -> None:
    text = _kernel("""
  %p = getelementptr i32, ptr addrspace(1) %x, i32 %i
  %v = load i32, ptr addrspace(1) %p
  %o = xor i32 %l, 5
  %a = shl i32 %o, 2
  %w = call i32 @llvm.amdgcn.ds.bpermute(i32 %a, i32 %v)
  %u = call i32 @llvm.amdgcn.update.dpp.i32(i32 0, i32 %v, i32 273, i32 15, i32 15, i1 true)
  %f = call i32 @llvm.amdgcn.readfirstlane.i32(i32 %v)
  %s = add i32 %w, %u
  %r = add i32 %s, %f
  %t = getelementptr i32, ptr addrspace(1) %y, i32 %i
  store i32 %r, ptr addrspace(1) %t
  ret void""", "ptr addrspace(1) %x, ptr addrspace(1) %y", """
declare i32 @llvm.amdgcn.ds.bpermute(i32, i32)
declare i32 @llvm.amdgcn.update.dpp.i32(i32, i32, i32, i32, i32, i1)
declare i32 @llvm.amdgcn.readfirstlane.i32(i32)""")
    x, y = np.random.default_rng(0).integers(0, 1 << 20, 256).astype(np.int32), np.zeros(256, np.int32)
    run(compiled(text, target), "k", 1, [x, y])
    lane = np.arange(256)
    width = 64 if target == "gfx942" else 32
    shifted = np.where(lane % 16 == 0, 0, np.roll(x, 1))
    assert (y == x[lane ^ 5] + shifted + x[lane // width * width]).all()


def test_a_grid_has_three_sides(target: str) -> None:
    text = _kernel("""
  %u = call i32 @llvm.amdgcn.workgroup.id.y()
  %v = call i32 @llvm.amdgcn.workgroup.id.z()
  %a = mul i32 %v, 3
  %b = add i32 %a, %u
  %c = mul i32 %b, 2
  %d = add i32 %c, %g
  %t = getelementptr i32, ptr addrspace(1) %y, i32 %d
  store i32 %d, ptr addrspace(1) %t
  ret void""", "ptr addrspace(1) %y",
                   "declare i32 @llvm.amdgcn.workgroup.id.y()\ndeclare i32 @llvm.amdgcn.workgroup.id.z()")
    y = np.full(24, -1, np.int32)
    run(compiled(text, target), "k", (2, 3, 4), [y], seed=0)
    assert (y == np.arange(24)).all()


def test_local_data_begins_as_nan(target: str) -> None:
    """What a kernel never wrote is no zero."""
    text = _kernel("""
  %q = getelementptr [256 x i32], ptr addrspace(3) @s, i32 0, i32 %l
  %v = load volatile i32, ptr addrspace(3) %q
  %t = getelementptr i32, ptr addrspace(1) %y, i32 %i
  store i32 %v, ptr addrspace(1) %t
  ret void""", "ptr addrspace(1) %y", _SHARED)
    y = np.zeros(256, np.float32)
    run(compiled(text, target), "k", 1, [y])
    assert np.isnan(y).all()


def test_wrong_arguments_are_named(target: str) -> None:
    code = _one_more(target)
    x = np.zeros(4, np.int32)
    with pytest.raises(TypeError, match="argument 2"):
        run(code, "k", 1, [x, x, x])
    with pytest.raises(TypeError, match="argument 0"):
        run(code, "k", 1, [5, x, 4])
    with pytest.raises(TypeError, match="argument 2"):
        run(code, "k", 1, [x, x, np.int64(4)])
    with pytest.raises(KeyError, match="no kernel"):
        run(code, "other", 1, [x, x, 4])
    with pytest.raises(ValueError, match="no ELF"):
        run(b"not code", "k", 1, [])
