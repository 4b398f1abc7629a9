"""Running totals, the k best and the largest on emulated GPUs, against the CPU provider."""

from __future__ import annotations

import numpy as np
import pytest
from emulated_gpu import compare
from gpu_models import by_turns, model, node, numpy_type

pytestmark = [pytest.mark.needs("AMD tables", "Triton"), pytest.mark.slow]

RNG = np.random.default_rng(3)


@pytest.mark.parametrize("dtype", ("float32", "float16", "float64", "int32", "int64"))
@pytest.mark.parametrize("shape, axis", (((3, 37), 1), ((40, 3), 0), ((2, 2500), 1)))
def test_running_totals(dtype: str, shape: tuple[int, ...], axis: int) -> None:
    forms = [(e, r) for e in (0, 1) for r in (0, 1)]
    nodes = [node("CumSum", "x axis", f"y{e}{r}", exclusive=e, reverse=r) for e, r in forms]
    made = model([*nodes, node("Neg", "y01", "z")], {"x": shape}, ["y00", "y10", "z", "y11"], dtype,
                 axis=np.array(axis))
    x = (RNG.normal(size=shape) if "float" in dtype else RNG.integers(-9, 9, shape)).astype(dtype)
    tolerance = {"float16": 0.05, "float32": 1e-4}.get(dtype, 1e-9)
    compare(made, {"x": x}, by_turns(dtype, shape), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", ("float32", "float16", "int32", "uint32", "uint8"))
@pytest.mark.parametrize("shape, axis, k", (((3, 37), 1, 5), ((40, 3), 0, 40), ((2, 1, 5), 1, 1)))
def test_best_of_short_rows(dtype: str, shape: tuple[int, ...], axis: int, k: int) -> None:
    made = model([node("TopK", "x k", "a b", axis=axis), node("TopK", "x k", "c d", axis=axis, largest=0)],
                 {"x": shape}, list("abcd"), dtype, k=np.array([k]))
    if "int" in dtype:
        info = np.iinfo(dtype)
        x = RNG.choice([info.min, info.max, info.max // 2, 1, 2, 3], shape).astype(dtype)
    else:
        x = RNG.choice([0.0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 2, 3], shape).astype(numpy_type(dtype))
    compare(made, {"x": x}, by_turns(dtype, shape))


@pytest.mark.parametrize("shape, k", [((2, 5000), 3),
                                      pytest.param((1, 30000), 200, marks=pytest.mark.thorough)])
def test_best_of_long_rows(shape: tuple[int, ...], k: int) -> None:
    made = model([node("TopK", "x k", "a b")], {"x": shape}, ["a", "b"], k=np.array([k]))
    compare(made, {"x": RNG.integers(0, 4000, shape).astype(np.float32)})


@pytest.mark.parametrize("opset", (12, 22))
def test_hardmax(opset: int) -> None:
    made = model([node("Hardmax", "x", "y", axis=1)], {"x": (3, 4, 5)}, ["y"], opset=opset)
    compare(made, {"x": RNG.integers(0, 3, (3, 4, 5)).astype(np.float32)})
