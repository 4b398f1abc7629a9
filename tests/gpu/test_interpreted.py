"""Kernels as CUDA's provider asks for them, run by Triton's interpreter, against the CPU provider."""

from __future__ import annotations

import numpy as np
import pytest
from emulated_gpu import compare
from gpu_models import model, node, numpy_type

pytestmark = [pytest.mark.needs("AMD tables", "Triton"), pytest.mark.slow]

RNG = np.random.default_rng(4)


@pytest.mark.parametrize("dtype", ("float32", "float16", "bfloat16"))
def test_rows(dtype: str) -> None:
    """Softmax, normalizations, reductions, functions, running totals, places."""
    nodes = [node("Softmax", "x", "a", axis=1), node("LayerNormalization", "x s", "b"),
             node("ReduceMax", "x axes", "c"), node("ReduceSum", "x", "d"), node("Erf", "x", "e"),
             node("CumSum", "x one", "f"), node("Transpose", "x", "g", perm=[2, 0, 1]),
             node("ArgMin", "x", "h"), node("Pow", "x x", "i")]
    made = model(nodes, {"x": (3, 70, 5)}, list("abcdefghi"), dtype, s=np.ones(5, numpy_type(dtype)),
                 axes=np.array([0, 2]), one=np.array(1))
    tolerance = {"float32": 1e-5, "float16": 5e-3, "bfloat16": 4e-2}[dtype]
    compare(made, {"x": np.abs(RNG.normal(size=(3, 70, 5))).astype(numpy_type(dtype))}, ["interpreted"],
            rtol=tolerance, atol=tolerance)


def test_the_best() -> None:
    made = model([node("TopK", "x k", "a b")], {"x": (2, 5000)}, ["a", "b"], k=np.array([5]))
    compare(made, {"x": RNG.integers(0, 900, (2, 5000)).astype(np.float32)}, ["interpreted"])
