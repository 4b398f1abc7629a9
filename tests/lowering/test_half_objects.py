"""Kernels of float16 and bfloat16 for machines without instructions for these types: no object calls a
function that converts them, since nothing links one."""

from __future__ import annotations

import epilogue_cases
import pytest
from skips import needs
from test_codegen_math import outside
from test_epilogues import _lowered

from orthrus.codegen.machines.machine import AVX2, AVX512, NEON, SSE2, Machine
from orthrus.codegen.object import library
from orthrus.lowering import rules  # noqa: F401

pytestmark = needs("generated code")
MACHINES = (AVX512, AVX2, SSE2, NEON)
NO_FLOAT16 = ("MaxPool of bytes", "ArgMax", "MatMulInteger", "ConvInteger", "QDQ")
NO_BFLOAT16 = (*NO_FLOAT16, "MaxPool", "AveragePool", "LpPool", "Global", "Conv", "GridSample", "LpNorm",
               "InstanceNorm", "LSTM", "GRU", "TopK")
"""Beginnings of the names of kernels whose operators have no such type in the cases' operator set."""
CASES = [(name, dtype) for dtype, no in (("float16", NO_FLOAT16), ("bfloat16", NO_BFLOAT16))
         for name in epilogue_cases.KERNELS if not name.startswith(no)]


def callers(name: str, dtype: str, machine: Machine) -> list[str]:
    """The kernels of a case whose objects name symbols that are not theirs."""
    steps = _lowered(epilogue_cases.build(1, name, dtype=dtype, most=2, size=(2, 3, 9, 17)), machine)
    specs = [step.spec for step in steps if step.spec is not None]
    assert specs
    return [spec.template for spec, made in zip(specs, library.objects(specs, machine, True), strict=True)
            if outside(made)]


@pytest.mark.parametrize("machine", (AVX2, SSE2), ids=lambda machine: machine.label)
@pytest.mark.parametrize("dtype", ("bfloat16", "float16"))
@pytest.mark.parametrize("name", ("MatMul", "Gemm", "Resize nearest", "Gather", "Concat", "ReduceMax 3 "))
def test_no_kernel_calls_out(name: str, dtype: str, machine: Machine) -> None:
    assert not callers(name, dtype, machine)


@pytest.mark.slow
@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.label)
@pytest.mark.parametrize("name, dtype", CASES)
def test_no_kernel_of_any_family_calls_out(name: str, dtype: str, machine: Machine) -> None:
    assert not callers(name, dtype, machine)
