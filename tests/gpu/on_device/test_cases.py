"""ONNX's backend test data on the device: all of it where there is a GPU, a few where it is emulated."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from benchmarks.cases import KINDS, Case, cases, compare

FEW = ("test_add_bcast", "test_matmul_3d", "test_softmax_axis_1", "test_gather_elements_1")


@cache
def _every() -> dict[str, Case]:
    return {case.name: case for case in cases(KINDS)}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """All of them where they are asked for: making them takes some seconds."""
    wanted = FEW
    if "gpu" in metafunc.config.option.markexpr.replace("not gpu", ""):
        wanted = tuple(_every())
    metafunc.parametrize("name", wanted)


def test_a_case(gpu: Any, name: str) -> None:
    if not gpu.real and name not in FEW:
        pytest.skip("an emulated GPU is too slow for all of them")
    case = _every()[name]
    session = gpu.session(case.model, alone=False)
    for feeds, (_, expected) in zip(case.feeds(), case.data, strict=True):
        compare(expected, session.run(None, feeds), case.rtol, case.atol, values=not case.random)
