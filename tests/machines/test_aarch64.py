"""Kernels for AArch64 executed under emulation, on processors that have nothing beyond what these are written
for: the kernels' own tests, products of bytes, and whole models."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from skips import needs

families = pytest.importorskip("kernel_families")

from orthrus.codegen.machines.machine import NEON  # noqa: E402

TARGETS = {"neon": NEON, "dotprod": replace(NEON, features=("dotprod", "neon"))}
emulated = needs("ARM emulator")


def every() -> list[Any]:
    """Every test on NEON, those of bytes with their instruction too; all but a few are slow."""
    quick = {"loops", "reduce", "rows", "gemm"}
    return [pytest.param(f, t, target, marks=() if f in quick else pytest.mark.slow)
            for f, tests in families.FAMILIES.items() for t in tests
            for target in (TARGETS if f == "int8" else ("neon",))]


@emulated
@pytest.mark.parametrize("family,test,target", every())
def test_kernels(family: str, test: str, target: str) -> None:
    families.run(family, test, TARGETS[target])
