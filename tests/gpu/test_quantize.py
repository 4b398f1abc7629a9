"""Quantizing on emulated GPUs, against the CPU provider."""

from __future__ import annotations

import numpy as np
import pytest
from emulated_gpu import compare
from gpu_models import model, node

pytestmark = [pytest.mark.needs("AMD tables", "Triton"), pytest.mark.slow]

RNG = np.random.default_rng(2)
SPECIAL = np.array([0.5, 1.5, -0.5, np.inf, -np.inf, 1e9, -1e9, 0, -0.0, 127.5], np.float32)


@pytest.mark.parametrize("dtype", ("int8", "uint8", "int16", "uint16"))
def test_quantize_and_back(dtype: str) -> None:
    """One scale, one for each index of an axis, and one for each block."""
    info = np.iinfo(dtype)
    x = RNG.normal(size=(3, 8, 5)).astype(np.float32) * 40
    x.ravel()[:SPECIAL.size] = SPECIAL
    zero = RNG.integers(info.min // 4, info.max // 4, 8).astype(dtype)
    made = model([node("QuantizeLinear", "x s1 z1", "a"), node("DequantizeLinear", "a s1 z1", "ad"),
                  node("QuantizeLinear", "x s8 z8", "b", axis=1), node("DequantizeLinear", "b s8 z8", "bd",
                                                                       axis=1),
                  node("QuantizeLinear", "x sb zb", "c", axis=1, block_size=3),
                  node("DequantizeLinear", "c sb zb", "cd", axis=1, block_size=3)],
                 {"x": x.shape}, ["a", "ad", "b", "bd", "c", "cd"], s1=np.array(0.3, np.float32),
                 z1=np.array(7, dtype), s8=RNG.uniform(0.1, 2, 8).astype(np.float32), z8=zero,
                 sb=RNG.uniform(0.1, 2, (3, 3, 5)).astype(np.float32),
                 zb=RNG.integers(0, 9, (3, 3, 5)).astype(dtype))
    compare(made, {"x": x})


@pytest.mark.parametrize("shape", ((1,), (5, 40), (20000,)))
def test_by_its_own_range(shape: tuple[int, ...]) -> None:
    made = model([node("DynamicQuantizeLinear", "x", "y s z")], {"x": shape}, ["y", "s", "z"])
    for x in (RNG.normal(size=shape), RNG.uniform(1, 2, shape), np.zeros(shape)):
        compare(made, {"x": x.astype(np.float32)})


def test_operators_of_bytes() -> None:
    numbers = {"sa": np.array(0.03, np.float32), "za": np.array(120, np.uint8),
               "sb": np.array(0.05, np.float32), "zb": np.array(3, np.uint8)}
    nodes = [node("com.microsoft::QLinearAdd", "x sa za w sb zb sa zb", "a"),
             node("com.microsoft::QLinearMul", "x sa za w sb zb sb za", "b"),
             node("com.microsoft::QLinearSigmoid", "x sa za sb zb", "c"),
             node("com.microsoft::QLinearLeakyRelu", "x sa za sb zb", "d", alpha=0.2),
             node("com.microsoft::QLinearSoftmax", "x sa za sb zb", "e", axis=1, opset=13),
             node("com.microsoft::QLinearGlobalAveragePool", "x sa za sb zb", "f")]
    made = model(nodes, {"x": (2, 3, 5, 4), "w": (2, 3, 5, 4)}, list("abcdef"), "uint8", **numbers)
    compare(made, {name: RNG.integers(0, 256, (2, 3, 5, 4)).astype(np.uint8) for name in "xw"})
