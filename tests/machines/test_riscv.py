"""Kernels for RISC-V executed under emulation, with vectors of several lengths, with and without arithmetic
on float16."""

from __future__ import annotations

from typing import Any

import pytest
from skips import needs

families = pytest.importorskip("kernel_families")

from orthrus.codegen.machines import machine as machines  # noqa: E402

TARGETS = {"rvv128": machines.RVV128, "rvv256": machines.RVV256, "rvv1024": machines.RVV1024,
           "k1": machines.SPACEMIT_K1, "k3": machines.SPACEMIT_K3}


def every() -> list[Any]:
    """Every test for every machine; all but a few quick ones are slow."""
    quick = {("loops", "k1"), ("reduce", "rvv256"), ("rows", "k1"), ("gemm", "k1")}
    return [pytest.param(f, t, target, marks=() if (f, target) in quick else pytest.mark.slow)
            for f, tests in families.FAMILIES.items() for t in tests for target in TARGETS]


@needs("emulator")
@pytest.mark.parametrize("family,test,target", every())
def test_kernels(family: str, test: str, target: str) -> None:
    families.run(family, test, TARGETS[target])
