"""The matrix instructions of AMD's GPUs, each on random tiles: lanes are filled as the instruction's own
description says, and what comes back is the product."""

from __future__ import annotations

from typing import NamedTuple

import ml_dtypes
import numpy as np
import pytest

from gfx.kernels import ATTRIBUTES, compiled
from gfx.machine import run

pytestmark = pytest.mark.needs("AMD tables")


class Unit(NamedTuple):
    """`call`: the LLVM call for %d of %a, %b, %c; `factor` and `total` the types of a lane's registers."""

    target: str
    opcode: str
    call: str
    declare: str
    factor: str
    total: str
    dtype: type
    size: tuple[int, int, int]


def _wmma(target: str, kind: str, factor: str, total: str, dtype: type, signed: bool = False) -> Unit:
    out = "i32" if signed else "f32"
    suffix = f"{total_suffix(total)}.{total_suffix(factor)}"
    name = f"llvm.amdgcn.wmma.{out}.16x16x16.{kind}.{suffix}"
    if signed:
        call = f"call {total} @{name}(i1 true, {factor} %a, i1 true, {factor} %b, {total} %c, i1 false)"
        declare = f"declare {total} @{name}(i1, {factor}, i1, {factor}, {total}, i1)"
    else:
        call = f"call {total} @{name}({factor} %a, {factor} %b, {total} %c)"
        declare = f"declare {total} @{name}({factor}, {factor}, {total})"
    return Unit(target, f"V_WMMA_{out.upper()}_16X16X16_{kind.upper()}", call, declare, factor, total, dtype,
                (16, 16, 16))


def total_suffix(kind: str) -> str:
    count, _, of = kind.strip("<>").partition(" x ")
    return f"v{count}{ {'float': 'f32', 'half': 'f16'}.get(of, of) }"


def _mfma(name: str, factor: str, total: str, dtype: type, size: tuple[int, int, int]) -> Unit:
    full = f"llvm.amdgcn.mfma.{name}"
    call = f"call {total} @{full}({factor} %a, {factor} %b, {total} %c, i32 0, i32 0, i32 0)"
    declare = f"declare {total} @{full}({factor}, {factor}, {total}, i32, i32, i32)"
    return Unit("gfx942", "V_MFMA_", call, declare, factor, total, dtype, size)


UNITS = [
    _wmma("gfx1100", "f16", "<16 x half>", "<8 x float>", np.float16),
    _wmma("gfx1100", "bf16", "<16 x i16>", "<8 x float>", ml_dtypes.bfloat16),
    _wmma("gfx1100", "iu8", "<4 x i32>", "<8 x i32>", np.int8, signed=True),
    _wmma("gfx1201", "f16", "<8 x half>", "<8 x float>", np.float16),
    _wmma("gfx1201", "bf16", "<8 x i16>", "<8 x float>", ml_dtypes.bfloat16),
    _wmma("gfx1201", "iu8", "<2 x i32>", "<8 x i32>", np.int8, signed=True),
    _mfma("f32.32x32x8f16", "<4 x half>", "<16 x float>", np.float16, (32, 32, 8)),
    _mfma("f32.16x16x16f16", "<4 x half>", "<4 x float>", np.float16, (16, 16, 16)),
    _mfma("f32.32x32x8bf16.1k", "<4 x i16>", "<16 x float>", ml_dtypes.bfloat16, (32, 32, 8)),
    _mfma("f32.16x16x16bf16.1k", "<4 x i16>", "<4 x float>", ml_dtypes.bfloat16, (16, 16, 16)),
    _mfma("i32.32x32x16.i8", "i64", "<16 x i32>", np.int8, (32, 32, 16)),
    _mfma("i32.16x16x32.i8", "i64", "<4 x i32>", np.int8, (16, 16, 32)),
    _mfma("f32.32x32x2f32", "float", "<16 x float>", np.float32, (32, 32, 2)),
    _mfma("f32.16x16x4f32", "float", "<4 x float>", np.float32, (16, 16, 4)),
]


def _factor_lanes(x: np.ndarray, unit: Unit) -> np.ndarray:
    """(rows, k) as (lanes, numbers per lane)."""
    rows, k = x.shape
    if unit.target == "gfx1100":
        return np.concatenate([x, x])
    groups = (64 if unit.target == "gfx942" else 32) // rows
    return x.reshape(rows, groups, k // groups).transpose(1, 0, 2).reshape(groups * rows, -1)


def _total_places(unit: Unit) -> tuple[np.ndarray, np.ndarray]:
    """Row and column of each lane's numbers."""
    m, n, _ = unit.size
    if unit.target != "gfx942":
        lane, r = np.arange(32)[:, None], np.arange(8)[None]
        row = 2 * r + lane // 16 if unit.target == "gfx1100" else r + 8 * (lane // 16)
        return row, lane % 16 + 0 * r
    lane, r = np.arange(64)[:, None], np.arange(m * n // 64)[None]
    return r // 4 * (4 * 64 // n) + lane // n * 4 + r % 4, lane % n + 0 * r


@pytest.mark.parametrize("unit", UNITS, ids=[f"{u.target}-{u.declare[:60].split('@')[1]}" for u in UNITS])
def test_products_are_those_of_matrices(unit: Unit) -> None:
    text = f"""{unit.declare}
define amdgpu_kernel void @k(ptr addrspace(1) %pa, ptr addrspace(1) %pb, ptr addrspace(1) %pc,
                             ptr addrspace(1) %pd) #1 {{
  %i = call i32 @llvm.amdgcn.workitem.id.x()
  %qa = getelementptr {unit.factor}, ptr addrspace(1) %pa, i32 %i
  %a = load {unit.factor}, ptr addrspace(1) %qa, align 4
  %qb = getelementptr {unit.factor}, ptr addrspace(1) %pb, i32 %i
  %b = load {unit.factor}, ptr addrspace(1) %qb, align 4
  %qc = getelementptr {unit.total}, ptr addrspace(1) %pc, i32 %i
  %c = load {unit.total}, ptr addrspace(1) %qc, align 4
  %d = {unit.call}
  %qd = getelementptr {unit.total}, ptr addrspace(1) %pd, i32 %i
  store {unit.total} %d, ptr addrspace(1) %qd, align 4
  ret void
}}
{ATTRIBUTES}"""
    rng = np.random.default_rng(len(unit.call))
    m, n, k = unit.size
    whole = unit.dtype is np.int8
    a, b = (rng.integers(-128, 128, (s, k)).astype(np.int8) if whole else rng.standard_normal((s, k)).astype(
        unit.dtype) for s in (m, n))
    c = rng.integers(-1000, 1000, (m, n)).astype(np.int32 if whole else np.float32)
    place = _total_places(unit)
    lanes = 64 if unit.target == "gfx942" else 32
    d = np.zeros((lanes, place[0].shape[1]), c.dtype)
    report = run(compiled(text, unit.target), "k", 1, [
        np.ascontiguousarray(_factor_lanes(a, unit)), np.ascontiguousarray(_factor_lanes(b, unit)),
        np.ascontiguousarray(c[place]), d], threads=lanes)
    assert any(name.startswith(unit.opcode) for name in report.opcodes)
    found = np.zeros((m, n), c.dtype)
    found[place] = d
    expected = a.astype(np.float64) @ b.astype(np.float64).T + c
    np.testing.assert_allclose(found, expected, rtol=0 if whole else 1e-5, atol=0 if whole else 1e-5)
