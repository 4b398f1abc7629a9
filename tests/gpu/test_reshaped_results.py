"""Results that get or lose dimensions of 1 on emulated GPUs: what follows goes into the kernel all the same.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from emulated_gpu import compare, driver, on_gpu
from gpu_models import by_turns, model, node

pytestmark = pytest.mark.needs("AMD tables", "Triton")

RNG = np.random.default_rng(0)
FOUR = np.array([1, 3, 1, 24])
#        nodes                                                                       fixed           launches
CASES: dict[str, tuple[list[Any], dict[str, np.ndarray], int]] = {
    "a product with a bias": ([node("Gemm", "x w b", "p"), node("Reshape", "p four", "r"),
                               node("Gelu", "r", "y")], {"four": FOUR}, 1),
    "operands behind": ([node("MatMul", "x w", "p"), node("Mul", "p b", "q"), node("Unsqueeze", "q one", "r"),
                         node("Add", "r o", "y")],
                        {"one": np.array([1]), "o": RNG.random((3, 2, 1), "f4")}, 2),
    "rows": ([node("Unsqueeze", "x zero", "u"), node("Softmax", "u", "p"), node("Squeeze", "p zero", "r"),
              node("Sigmoid", "r", "y")], {"zero": np.array([0])}, 1),
    "read twice": ([node("Gemm", "x w b", "p"), node("Reshape", "p four", "r"), node("Gelu", "r", "s"),
                    node("Reshape", "s flat", "f"), node("Add", "f p", "y")],
                   {"four": FOUR, "flat": np.array([3, 24])}, 3),
    "other sizes": ([node("Gemm", "x w b", "p"), node("Reshape", "p two", "r"), node("Gelu", "r", "y")],
                    {"two": np.array([3, 4, 6])}, 2),
}


@pytest.mark.parametrize("name", CASES)
def test_results(name: str) -> None:
    nodes, fixed, launches = CASES[name]
    fixed = {"w": RNG.normal(size=(24, 24)).astype(np.float32), "b": RNG.random(24, "f4"), **fixed}
    used = {name for each in nodes for name in each.input}
    made = model(nodes, {"x": (3, 24)}, ["y"], **{k: v for k, v in fixed.items() if k in used})
    feeds = {"x": RNG.normal(size=(3, 24)).astype(np.float32)}
    (target,) = by_turns(name)
    compare(made, feeds, (target,), rtol=1e-4, atol=1e-5)
    session = on_gpu(made, target)
    session.run(None, feeds)
    assert driver(session).counts["launch"] == launches
